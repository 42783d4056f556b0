"""`shoal init` and `shoal join` refuse what an agent would refuse at each of its starts, or what no agent can work with, before
they write anything: the same words with the mistake mended work on the same folder."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"


def shoal(*words, cwd=None):
    return subprocess.run([str(SHOAL), *map(str, words)], capture_output=True, text=True, timeout=60, cwd=cwd)


@pytest.fixture
def folder():
    """A short path: sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as path:
        yield pathlib.Path(path)


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    data = tmp_path_factory.mktemp("founder") / "d"
    assert shoal("init", "--data", data.name, cwd=data.parent).returncode == 0
    return data / "mesh.key"


REFUSED = [
    (("--name", "y" * 300), "--name"),
    (("--domain", "y" * 300), "--domain"),
    (("--name", "a\nslots 3"), "--name"),
    (("--host", "gpu1.example.org"), "getent hosts"),
    (("--host", "0.0.0.0"), "ip -brief address"),
    (("--host", "::"), "ip -brief address"),
    (("--host", "224.0.0.1"), "ip -brief address"),
    (("--host", "ff02::1"), "ip -brief address"),
    (("--api-host", "nowhere"), "numeric"),
    (("--api-plain", "--api-host", "10.0.0.1"), "--api-plain"),
    (("--inventory", "foo:3"), "cpu:N or gpu:N"),
    (("--transport", "rdma"), "auto, ucx or tcp"),
    (("--python", "/nonexistent/python"), "--python"),
    (("--metrics-token-file", "/nonexistent"), "/nonexistent"),
]


@pytest.mark.parametrize("options,said", REFUSED, ids=[" ".join(row[0])[:30].replace("\n", " ") for row in REFUSED])
@pytest.mark.parametrize("verb", ["init", "join"])
def test_settings_that_no_agent_takes_are_refused_and_nothing_is_written(folder, key, verb, options, said):
    words = [verb, "--data", folder / "d"] if verb == "init" else [verb, "127.0.0.1:7410", "--data", folder / "d", "--secret-file", key]
    done = shoal(*words, *options)
    assert done.returncode in (1, 2) and said in done.stderr, (done.returncode, done.stderr)
    assert not (folder / "d").exists(), "nothing was made"
    assert shoal(*words).returncode == 0, "and the folder is still to be had"


@pytest.mark.parametrize("user", ["a b", "y" * 64, "a\u00e9", "x" * 300])
def test_a_first_user_who_could_not_log_on_is_refused(folder, user):
    done = shoal("init", "--data", folder / "d", "--admin-user", user)
    assert done.returncode == 2 and "1 to 63 of A-Z" in done.stderr, done.stderr
    assert not (folder / "d").exists()


@pytest.mark.parametrize("password,said", [("", "is empty"), ("x" * 257, "longer than 256 bytes")])
def test_a_password_file_without_a_password_of_use(folder, password, said):
    (folder / "password").write_text(password)
    done = shoal("init", "--data", folder / "d", "--admin-password-file", folder / "password")
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (folder / "d").exists()
    (folder / "password").write_text("y" * 256 + "\n")
    assert shoal("init", "--data", folder / "d", "--admin-password-file", folder / "password").returncode == 0


def test_a_path_too_long_for_sockets_is_refused_however_it_is_written(folder):
    (folder / "deep").mkdir()
    for data, cwd in ((folder / ("x" * 60), None), ("x" * 45, folder / "deep"), ("./" + "x" * 45 + "/", folder / "deep")):
        done = shoal("init", "--data", data, cwd=cwd)
        assert done.returncode == 2 and "choose a shorter path" in done.stderr, done.stderr
    assert [path.name for path in folder.rglob("*")] == ["deep"]
    assert shoal("init", "--data", "x", cwd=folder / "deep").returncode == 0


def test_what_join_lacks_is_named(folder, key):
    assert "needs --secret-file" in shoal("join", "127.0.0.1:7410", "--data", folder / "d").stderr
    assert "--data" in shoal("join", "127.0.0.1:7410", "--secret-file", key).stderr
    assert "address of" in shoal("join", "--data", folder / "d", "--secret-file", key).stderr
    assert "getent hosts" in shoal("join", "gpu1:7410", "--data", folder / "d", "--secret-file", key).stderr


@pytest.mark.parametrize("typed,want", [("fd77::1:7410", "[fd77::1]:7410"), ("fd77::1", "[fd77::1]:7410"), ("::1", "[::1]:7410"),
                                        ("fd77::a:b", "[fd77::a:b]:7410")])
def test_an_address_of_ipv6_stands_in_brackets(folder, key, typed, want):
    """What stands behind its last colon is a port to whoever types it, and part of the address to who reads it."""
    words = ("--data", folder / "d", "--secret-file", key)
    for asked in (("join", typed, *words), ("join", "--join", typed, *words)):
        done = shoal(*asked)
        assert done.returncode == 2 and "in brackets" in done.stderr and want in done.stderr, done.stderr
    assert not (folder / "d").exists()
    assert shoal("join", want, *words).returncode == 0
    assert (folder / "d" / "seeds").read_text() == want + "\n"


def test_a_secret_file_that_is_a_directory_is_called_one(folder):
    done = shoal("join", "127.0.0.1:7410", "--data", folder / "d", "--secret-file", folder)
    assert done.returncode == 2 and "is a directory" in done.stderr, done.stderr


def test_what_is_to_be_typed_next_can_be_typed(folder, key):
    """Also where a path has blanks and quotes."""
    data = folder / "my d'ata"
    for words in (("init",), ("join", "127.0.0.1:7410", "--secret-file", key)):
        done = shoal(*words, "--data", data)
        assert done.returncode == 0, done.stderr
        typed = next(shlex.split(line.split("start it:")[1]) for line in done.stdout.splitlines() if "start it:" in line)
        assert typed == ["shoal", "agent", "--data", str(data)], done.stdout
        if words[0] == "init":
            assert "'%s'" % str(data / "mesh.key").replace("'", "'\\''") in done.stdout
        shutil.rmtree(data)


def test_a_host_whose_python_lacks_torch_is_told_so(folder, key):
    venv.create(folder / "bare", with_pip=False, symlinks=True)
    for words in (("init",), ("join", "127.0.0.1:7410", "--secret-file", key)):
        for python, lacks in ((folder / "bare" / "bin" / "python", True), (sys.executable, False)):
            data = folder / ("%s-%s" % (words[0], lacks))
            said = shoal(*words, "--data", data, "--python", python)
            assert said.returncode == 0 and ("no torch" in said.stdout and "--setup-python" in said.stdout) == lacks, said.stdout


def test_a_relative_path_is_kept_as_one_that_holds_from_everywhere(folder):
    """The agent is started from another folder, by a service manager, say."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(shutil.which(sys.executable))
    (folder / "token").write_text("t" * 40)
    done = shoal("init", "--data", "d", "--python", "bin/python", "--metrics-token-file", "token", "--libs", "lib", cwd=folder)
    assert done.returncode == 0, done.stderr
    kept = dict(line.split(" ", 1) for line in (folder / "d" / "agent.conf").read_text().splitlines() if line[0] != "#")
    assert kept == {"python": str(folder / "bin/python"), "metrics-token-file": str(folder / "token"), "libs": str(folder / "lib")}
    assert shoal("init", "--data", "e", "--python", "python3", cwd=folder).returncode == 0
    assert "\npython python3\n" in (folder / "e" / "agent.conf").read_text(), "a name that is looked up in PATH stays one"
