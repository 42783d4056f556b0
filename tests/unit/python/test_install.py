"""make install puts a program into a folder that runs from there and finds its own FABRIC_HOME, what a worker in C needs to
be built, and what a service needs; make deb makes packages of the same."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
VERSION = re.search(r'#define SHOAL_VERSION "(.*)"', (ROOT / "node" / "agent" / "agent.h").read_text()).group(1)
# Calls of both public headers; alone in the world it is a communicator of one.
WORKER = """
#include <shoal/collective.h>
#include <shoal/worker.h>

int main(void)
{
    struct shoal_comm *comm = NULL;
    enum shoal_err err = shoal_comm_open_solo(&comm, NULL);

    printf("%s, %d, %s\\n", shoal_err_name(err), shoal_comm_is_solo(comm), SHOAL_ENV_SOCKET);
    shoal_comm_close(comm);
    return err == SHOAL_OK ? 0 : 1;
}
"""


def run(*command, **options):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run([str(word) for word in command], env=dict(env, **options.pop("env", {})), capture_output=True, text=True,
                          timeout=600, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    destination = tmp_path_factory.mktemp("install")
    done = run("make", "--no-print-directory", "install", "PREFIX=/opt/shoal", "DESTDIR=%s" % destination, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in destination.iterdir()) == ["opt"]
    return destination / "opt" / "shoal"


def test_an_installed_program_finds_what_it_needs(installed):
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    assert {"bin/shoal", "lib/shoal/shoal-runner", "lib/libshoal.so", "lib/libshoal.so.0", "lib/shoal/fabric/build.version",
            "lib/shoal/fabric/native/warm.py", "lib/shoal/fabric/native/libshoal-warm.so", "share/man/man1/shoal.1",
            "share/man/man8/shoal-agent.8", "share/doc/shoal/LICENSE", "share/doc/shoal/examples/agent.conf",
            "share/bash-completion/completions/shoal", "share/zsh/vendor-completions/_shoal",
            "share/fish/vendor_completions.d/shoal.fish", "lib/systemd/system/shoal-agent.service",
            "lib/sysusers.d/shoal.conf", "lib/tmpfiles.d/shoal.conf"} <= files
    assert not [name for name in files if "__pycache__" in name]
    shoal = str(installed / "bin" / "shoal")
    data = tempfile.mkdtemp(prefix="shoal-", dir="/tmp") + "/d"  # a data folder's path is short
    assert run(shoal, "version").stdout == "shoal %s\n" % VERSION
    assert run(shoal, "init", "--data", data, "--mesh-name", "lab").returncode == 0
    said = run(shoal, "doctor", "--data", data).stdout
    home = re.search(r"^ok +FABRIC_HOME\s+(\S+)", said, re.M)
    shutil.rmtree(pathlib.Path(data).parent)
    assert home and pathlib.Path(home.group(1)).resolve() == installed / "lib" / "shoal" / "fabric"


def test_a_worker_in_c_is_built_from_what_is_installed(installed, tmp_path):
    source, program = tmp_path / "worker.c", tmp_path / "worker"
    source.write_text(WORKER)
    flags = ["-I%s/include" % installed, "-L%s/lib" % installed, "-lshoal"]
    if shutil.which("pkg-config"):
        said = run("pkg-config", "--cflags", "--libs", "shoal", env={"PKG_CONFIG_PATH": "%s/lib/pkgconfig" % installed,
                                                                     "PKG_CONFIG_SYSROOT_DIR": str(installed.parents[1])})
        assert shlex.split(said.stdout) == flags, said.stderr
        assert run("pkg-config", "--modversion", "shoal", env={"PKG_CONFIG_PATH": "%s/lib/pkgconfig" % installed}).stdout.strip() == VERSION
    made = run("gcc", "-std=c11", "-Wall", "-Werror", source, *flags, "-o", program)
    assert made.returncode == 0, made.stderr
    assert "libshoal.so.0" in run("readelf", "-d", program).stdout  # what a later, other library cannot stand in for
    done = run(program, env={"LD_LIBRARY_PATH": "%s/lib" % installed})
    assert (done.returncode, done.stdout) == (0, "ok, 1, SHOAL_AGENT_SOCKET\n")


def test_a_folder_with_a_blank_is_one(tmp_path):
    done = run("make", "--no-print-directory", "install", "PREFIX=/usr", "DESTDIR=%s" % (tmp_path / "a b"), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a b"] and (tmp_path / "a b" / "usr" / "bin" / "shoal").is_file()


def loader(tmp_path, folder, uid):
    """What is said after an install to a system whose loader looks into `folder`, and whether ldconfig was run for it."""
    for name, text in (("ldconfig", 'if [ "$1" = -N ]; then echo "%s: (from x)"; else echo ran > %s/ran; fi' % (folder, tmp_path)),
                       ("id", "echo %d" % uid)):
        (tmp_path / name).write_text("#!/bin/sh\n%s\n" % text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "ran").unlink(missing_ok=True)
    (tmp_path / "lib").mkdir(exist_ok=True)
    done = run(ROOT / "packaging" / "found_by_the_loader", tmp_path / "lib", "libshoal.so.0",
               env={"PATH": "%s:%s" % (tmp_path, os.environ["PATH"])})
    assert done.returncode == 0, done.stderr
    return done.stdout, (tmp_path / "ran").exists()


def test_an_install_tells_the_loader_of_the_library(tmp_path):
    assert loader(tmp_path, tmp_path / "lib", 0) == ("", True)
    said, ran = loader(tmp_path, tmp_path / "lib", 1000)
    assert "run ldconfig as root" in said and not ran
    said, ran = loader(tmp_path, "/nonexistent", 0)
    assert "-Wl,-rpath,%s/lib" % tmp_path in said and not ran


def test_pages_that_are_installed_lead_nowhere_dead(installed):
    """README.md, and what it leads to. A page may name source, which is not there."""
    pages = installed / "share" / "doc" / "shoal"
    dead = []
    for page in [pages / "README.md", *(pages / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in link and (ROOT / page.relative_to(pages).parent / link).exists() and not (page.parent / link).exists():
                dead.append("%s: %s" % (page.relative_to(pages), link))
    assert (pages / "docs" / "tutorial" / "README.md").is_file() and (pages / "docs" / "SECURITY.md").is_file()
    assert not dead, dead


# ---- the service ----

def settings(unit):
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))


def test_the_service_is_started_again_for_ever(installed):
    """A full disk passes: a service that systemd has given up on would stay down."""
    lines = (installed / "lib" / "systemd" / "system" / "shoal-agent.service").read_text().splitlines()
    assert "StartLimitIntervalSec=0" in lines and "Restart=on-failure" in lines
    assert 2 <= int(next(line for line in lines if line.startswith("RestartSec=")).partition("=")[2]) < 10  # a lease freezes then


def test_the_service_is_one_that_systemd_takes(installed, tmp_path):
    path = installed / "lib" / "systemd" / "system" / "shoal-agent.service"
    unit = settings(path.read_text())
    assert unit["ExecStart"] == "/opt/shoal/bin/shoal agent --data /var/lib/shoal"
    # What the design asks for: jobs outlive the agent, one that is out of memory ends alone, and the loop is watched.
    assert (unit["Type"], unit["KillMode"], unit["OOMPolicy"], unit["Delegate"]) == ("notify", "process", "continue", "yes")
    assert int(unit["WatchdogSec"]) > 0 and unit["ExecReload"] == "/bin/kill -HUP $MAINPID"
    # What would part jobs from the next agent, from GPUs, from their compilers, or the agent from its class.
    assert not {"PrivateTmp", "PrivateDevices", "DynamicUser", "MemoryDenyWriteExecute", "RestrictRealtime"} & set(unit)
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze: the unit's lines are not checked")
    copy = tmp_path / "shoal-agent.service"
    copy.write_text(path.read_text().replace("/opt/shoal", str(installed)))
    said = run("systemd-analyze", "verify", "--man=no", copy)
    ours = [line for line in said.stderr.splitlines() if "shoal" in line and "user" not in line.lower()]
    assert not ours
    score = run("systemd-analyze", "security", "--offline=true", copy).stdout
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", score)
    if exposure:
        assert float(exposure.group(1)) < 6.0, score


def test_its_user_and_its_folder(installed, tmp_path):
    if not shutil.which("systemd-sysusers") or not shutil.which("systemd-tmpfiles"):
        pytest.skip("no systemd-sysusers")
    (tmp_path / "etc").mkdir()
    made = run("systemd-sysusers", "--root=%s" % tmp_path, installed / "lib" / "sysusers.d" / "shoal.conf")
    assert made.returncode == 0, made.stderr
    user = next(line for line in (tmp_path / "etc" / "passwd").read_text().splitlines() if line.startswith("shoal:")).split(":")
    assert user[5] == "/var/lib/shoal" and user[6].endswith("nologin") and 0 < int(user[2]) < 1000
    if os.geteuid() != 0:
        pytest.skip("not root: the folder cannot be given to its user")
    made = run("systemd-tmpfiles", "--root=%s" % tmp_path, "--create", installed / "lib" / "tmpfiles.d" / "shoal.conf")
    assert made.returncode == 0, made.stderr
    folder = (tmp_path / "var" / "lib" / "shoal").stat()
    assert (folder.st_mode & 0o7777, folder.st_uid) == (0o700, int(user[2]))


def test_the_example_configuration_is_one(installed):
    """Every setting that it shows, switched on, is taken."""
    text = (installed / "share" / "doc" / "shoal" / "examples" / "agent.conf").read_text()
    shown = [line for line in re.findall(r"^#([a-z-]+ \S+)$", text, flags=re.M) if not line.startswith("python ")]
    assert len(shown) > 5
    data = pathlib.Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))  # a data folder's path is short
    (data / "agent.conf").write_text("\n".join(shown) + "\n")
    said = run(installed / "bin" / "shoal", "doctor", "--data", data).stdout
    (data / "agent.conf").write_text("slots 65\n")
    wrong = run(installed / "bin" / "shoal", "doctor", "--data", data).stdout
    shutil.rmtree(data)
    assert "agent.conf:1: slots" in wrong and "agent.conf" not in said, said  # it stops later, for want of an identity


# ---- packages ----

def test_the_changelog_names_the_version():
    first = (ROOT / "packaging" / "debian" / "changelog").read_text().splitlines()[0]
    assert first.startswith("shoal (%s) " % VERSION)


def test_packages_take_what_is_installed(installed):
    """Each file of `make install` is in one package, or said not to be: dh_missing refuses to build packages that leave one out."""
    said = [line.split()[0] for names in sorted((ROOT / "packaging" / "debian").glob("*install*")) for line in names.read_text().splitlines()]
    taken = [re.sub(r"^usr/lib/\*/", "usr/lib/", word) for word in said]
    files = ["usr/" + str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_symlink() or path.is_file()]
    assert len(files) > 20
    left = [name for name in files if not any(name == word or name.startswith(word + "/") for word in taken)]
    assert left == []


def test_what_packages_cannot_be_built_without_is_named(tmp_path):
    for tool in ("make", "sh"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    done = run(shutil.which("make"), "--no-print-directory", "deb", cwd=ROOT, env={"PATH": str(tmp_path)})
    assert done.returncode != 0 and "apt-get install debhelper dpkg-dev" in done.stderr, done.stderr
    assert not re.search(r"\bgcc\b|\bcc\b", done.stdout), "before anything is built"


def test_a_python_environment_that_is_a_link_is_not_packed(tmp_path):
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".venv").symlink_to("elsewhere")
    assert run("git", "init", "-q", cwd=tmp_path).returncode == 0
    said = run("git", "ls-files", "-co", "--exclude-standard", cwd=tmp_path)
    assert said.stdout.split() == [".gitignore"], said


@pytest.mark.soak
def test_packages_are_built_installed_and_removed(tmp_path):
    """dpkg installs them below a root of their own, scripts and all; the program runs from there."""
    for tool in ("dpkg-buildpackage", "dh", "dpkg"):
        if not shutil.which(tool):
            pytest.skip("no %s: apt-get install debhelper dpkg-dev" % tool)
    done = run("make", "--no-print-directory", "deb", cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not re.search(r"^[EW]: ", done.stdout, flags=re.M), done.stdout
    ours = (ROOT / "build" / "deb").glob("*-dbgsym_*.deb")
    ids = [line.split()[-1] for path in ours for line in run("dpkg-deb", "-c", path).stdout.splitlines() if line.endswith(".debug")]
    assert len(ids) == len(set(ids)) > 0, "debug symbols of one library in two packages"
    packages = {path.name.split("_")[0]: path for path in (ROOT / "build" / "deb").glob("*.deb") if "dbgsym" not in path.name}
    assert sorted(packages) == ["libshoal-dev", "libshoal0", "shoal", "shoal-fabric"]
    if os.geteuid() != 0:
        pytest.skip("not root: the packages are built, but not installed")
    for folder in ("etc", "var/lib/dpkg/info", "var/lib/dpkg/updates"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "var" / "lib" / "dpkg" / "status").touch()
    # What they depend on is installed in the root beside this one.
    dpkg = ["dpkg", "--root=%s" % tmp_path, "--force-depends", "--force-script-chrootless", "--no-triggers"]
    done = run(*dpkg, "-i", *packages.values())
    assert done.returncode == 0, done.stderr
    assert "shoal:x:" in (tmp_path / "etc" / "passwd").read_text()
    assert (tmp_path / "var" / "lib" / "shoal").stat().st_mode & 0o7777 == 0o700
    pages = [path.name for path in (tmp_path / "usr/share/doc/shoal").rglob("*.md*")]
    assert "README.md" in pages and not [name for name in pages if name.endswith(".gz")], "pages name each other"
    shoal = tmp_path / "usr" / "bin" / "shoal"
    assert run(shoal, "version").stdout == "shoal %s\n" % VERSION
    data = tempfile.mkdtemp(prefix="shoal-", dir="/tmp") + "/d"  # a data folder's path is short
    made = run(shoal, "init", "--data", data)
    shutil.rmtree(pathlib.Path(data).parent)
    assert made.returncode == 0, made.stderr
    done = run(*dpkg, "-P", *packages)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "usr" / "bin").exists() and not list((tmp_path / "usr").rglob("*libshoal*"))
