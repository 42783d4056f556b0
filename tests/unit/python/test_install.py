"""make install puts a program into a folder that runs from there and finds its own FABRIC_HOME."""

import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_an_installed_program_finds_what_it_needs(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "--no-print-directory", "install", "PREFIX=/opt/shoal", "DESTDIR=%s" % tmp_path],
                          cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    root = tmp_path / "opt" / "shoal"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert {"bin/shoal", "lib/libshoal.so", "lib/shoal/fabric/build.version", "lib/shoal/fabric/native/warm.py",
            "lib/shoal/fabric/native/libshoal-warm.so", "share/man/man1/shoal.1",
            "share/man/man8/shoal-agent.8"} <= files
    assert not [name for name in files if "__pycache__" in name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opt"]
    shoal = str(root / "bin" / "shoal")
    data = tempfile.mkdtemp(prefix="shoal-", dir="/tmp") + "/d"  # a data folder's path is short
    assert subprocess.run([shoal, "version"], capture_output=True, text=True).stdout.startswith("shoal ")
    assert subprocess.run([shoal, "init", "--data", data, "--mesh-name", "lab"], capture_output=True).returncode == 0
    said = subprocess.run([shoal, "doctor", "--data", data], capture_output=True, text=True).stdout
    home = next(line for line in said.splitlines() if "FABRIC_HOME" in line)
    shutil.rmtree(pathlib.Path(data).parent)
    assert home.startswith("ok ") and pathlib.Path(home.split()[-1]).resolve() == root / "lib" / "shoal" / "fabric"
