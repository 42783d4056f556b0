"""The fabric home: where everything lies, and that a script finds it there."""

import os
import subprocess
import sys
import zipfile

from conftest import PACKAGES


def build(out, library):
    subprocess.run([sys.executable, os.path.join(PACKAGES, "build_fabric.py"), str(out), str(library)], check=True)


def tree(out):
    return {os.path.relpath(os.path.join(r, n), out): open(os.path.join(r, n), "rb").read()
            for r, _, names in os.walk(out) for n in names}


def test_the_layout_and_that_building_twice_changes_nothing(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"library")
    build(tmp_path / "a", tmp_path / "lib.so")
    first = tree(tmp_path / "a")
    assert {"libs/fabric.zip", "native/libshoal.so", "native/libshoal.so.0", "site/cloudpickle/__init__.py", "site/msgpack/fallback.py", "tools/emetrics.py", "tools/elog.py",
            "build.version"} <= set(first)
    stamps = {name: os.stat(tmp_path / "a" / name).st_mtime_ns for name in first}
    build(tmp_path / "a", tmp_path / "lib.so")
    assert tree(tmp_path / "a") == first
    assert stamps == {name: os.stat(tmp_path / "a" / name).st_mtime_ns for name in first}
    (tmp_path / "lib.so").write_bytes(b"another library")
    build(tmp_path / "a", tmp_path / "lib.so")
    assert tree(tmp_path / "a")["build.version"] != first["build.version"]


def test_the_zip_shadows_nothing_of_the_users(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"library")
    build(tmp_path / "a", tmp_path / "lib.so")
    names = zipfile.ZipFile(tmp_path / "a" / "libs" / "fabric.zip").namelist()
    tops = {name.split("/")[0].removesuffix(".py") for name in names}
    assert tops == {"fabric_model", "callbacks", "pyedt", "redhareapi", "redhareapiversion"}


def test_a_script_imports_from_the_zip(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"library")
    home = tmp_path / "a"
    build(home, tmp_path / "lib.so")
    environment = dict(os.environ, FABRIC_HOME=str(home), FABRIC_BACKEND="pytorch",
                       PYTHONPATH=os.pathsep.join([str(home / "tools"), str(home / "libs" / "fabric.zip")]))

    def run(code, *options):
        done = subprocess.run([sys.executable, *options, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    library = "%s/native/libshoal.so" % home
    assert run("from pyedt import _comm; print(_comm.library_path())") == [library]
    # No environment at all, and the home told from the zip's own place.
    del environment["FABRIC_HOME"]
    code = ("from fabric_model import FabricModel; from callbacks import Callback; import emetrics, elog, sys, cloudpickle\n"
            "print(FabricModel.__module__, cloudpickle.__file__, sys.path[-1])")
    assert run(code, "-S")[-3:] == ["pyedt.fabric_model", "%s/site/cloudpickle/__init__.py" % home, "%s/site" % home]
    assert run("from pyedt import _comm; print(_comm.library_path())") == [library]
    code = "import pyedt, msgpack; print(msgpack.__file__, msgpack.unpackb(msgpack.packb({'a': [1, b'x']}))['a'][0])"
    assert run(code, "-S") == ["%s/site/msgpack/__init__.py" % home, "1"], "for environments that have none"
