"""`shoal doctor`: what it says of this host and what to do, in 80 columns; the memory that the limits imply; and the Python
that `--setup-python` makes."""

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import venv
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs" / "demo"))

from mesh import Mesh, free_ports  # noqa: E402

SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"


def shoal(*words, **env):
    return subprocess.run([str(SHOAL), *map(str, words)], capture_output=True, text=True, timeout=200, env={**os.environ, **env})


@pytest.fixture
def data():
    """A short path: sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as folder:
        yield pathlib.Path(folder) / "d"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python without torch."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def checks(*words):
    done = shoal("doctor", *words, "--output", "json")
    said = json.loads(done.stdout)
    assert said["ok"] == (done.returncode == 0)
    return {row["check"]: (row["state"], row["text"]) for row in said["checks"]}


def test_the_tables_add_up(data):
    assert shoal("init", "--data", data, "--python", sys.executable).returncode == 0
    done = shoal("doctor", "--data", data)
    assert done.returncode == 0 and len(done.stdout.splitlines()) < 25 and "memory: at most" not in done.stdout, "short, where nothing is wrong"
    done = shoal("doctor", "--data", data, "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    total = int(re.search(r"^ok +memory: at most (\d+) MiB", done.stdout, re.M).group(1))
    rows = re.findall(r"^ +(\S.*?) +(\d+) x +(\d+) B +(\d+) KiB$", done.stdout, re.M)
    assert len(rows) >= 25
    assert sum(int(count) * int(each) for _, count, each, _ in rows) // (1 << 20) == total
    for what, count, each, kib in rows:
        assert int(count) * int(each) // 1024 == int(kib), what
    named = {what.split(":")[0] for what, _, _, _ in rows}
    assert named >= {"gossip", "raft", "support", "sched", "lead", "slots", "links", "store", "blobs", "api"}
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"torch \d\S+, numpy \d", done.stdout)


def test_a_folder_that_is_none(tmp_path):
    done = shoal("doctor", "--data", tmp_path / "none")
    assert done.returncode != 0 and done.stdout.startswith("bad ")


def test_what_keeps_jobs_away_is_said_with_what_to_do(data, bare, tmp_path):
    assert shoal("init", "--data", data, "--python", bare).returncode == 0
    done = shoal("doctor", "--data", data)
    assert done.returncode == 1
    assert "has no torch" in done.stdout and "--setup-python" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    said = checks("--data", data)
    assert said["python"][0] == "bad" and "slots" not in said
    said = checks("--data", data, "--libs", tmp_path)
    assert said["libs"][0] == "bad" and "--libs" in said["libs"][1]
    said = checks("--data", data, "--host", "192.0.2.7")
    assert said["address"][0] == "bad" and "192.0.2.7" in said["address"][1]


def test_a_torch_that_cannot_be_imported(data, bare, tmp_path):
    """It is there, so the host offers slots; doctor finds out."""
    for name in ("torch", "numpy"):
        (tmp_path / (name + ".py")).write_text("raise ImportError('libwhat.so.1: no such file')")
    assert shoal("init", "--data", data, "--python", bare).returncode == 0
    done = shoal("doctor", "--data", data, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and "libwhat.so.1: no such file" in " ".join(done.stdout.split())


def test_a_host_of_tensorflow_alone_serves_jobs(data, bare, tmp_path):
    for name, version in (("tensorflow", "2.15.1"), ("numpy", "1.26.4")):
        (tmp_path / (name + ".py")).write_text("__version__ = '%s'\n" % version)
    assert shoal("init", "--data", data, "--python", bare).returncode == 0
    done = shoal("doctor", "--data", data, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout
    assert ": tensorflow 2.15.1, numpy 1.26.4" in " ".join(done.stdout.split())
    (tmp_path / "numpy.py").unlink()
    assert "or no numpy" in " ".join(shoal("doctor", "--data", data, PYTHONPATH=str(tmp_path)).stdout.split())


def test_a_mesh_leaves_no_folder_to_who_writes_a_moment_longer():
    """As a compiler does whose engine was killed: it makes folders again that were removed."""
    with Mesh(SHOAL) as mesh:
        home = mesh.folder / "alpha" / "home"
        writes = ("import os, time\nend = time.monotonic() + 1\nwhile time.monotonic() < end:\n    os.makedirs(os.environ['HOME'] + "
                  "'/.cache/x', exist_ok=True)\n    time.sleep(0.01)\n")
        other = subprocess.Popen([sys.executable, "-c", writes], env={**os.environ, "HOME": str(home)})
        Mesh.until(home.exists, 30, "it has begun")
    left = mesh.folder.exists()
    other.wait()
    assert not left and not mesh.folder.exists()


def test_ports_and_peers(data, bare):
    assert shoal("init", "--data", data, "--python", bare).returncode == 0
    with socket.socket() as taken, socket.socket() as peer:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = checks("--data", data, "--port", port)
        assert said["ports"] == ("bad", "port %d is in use by another program: give --port" % port)
        state, text = checks("--data", data, "--join", "127.0.0.1:%d" % port)["peers"]  # it takes connections, and is silent
        assert state == "bad" and "does not answer" in text, text
        peer.bind(("127.0.0.1", 0))  # nobody listens there
        state, text = checks("--data", data, "--join", "127.0.0.1:%d" % peer.getsockname()[1])["peers"]
        assert state == "bad" and "refused" in text and "firewalls" in text


def key_of(data):
    """The secret of a mesh of its own."""
    assert shoal("init", "--data", data).returncode == 0
    return (data / "mesh.key").read_text()


@contextlib.contextmanager
def agent(data, python):
    """Runs one of its own mesh on `data`; gives its ports for links and for the API."""
    assert shoal("init", "--data", data, "--python", python).returncode == 0
    with running(data) as (_, ports):
        yield ports


@contextlib.contextmanager
def running(data, *words):
    """An agent on `data`; its log, and its ports for links and for the API."""
    ports = free_ports(2)
    words = [*words, "--port", ports[0], "--api-port", ports[1], "--prefill", "16", "--inventory", "cpu:1"]
    with open(data.parent / (data.name + ".log"), "wb") as log:
        process = subprocess.Popen([str(SHOAL), "agent", "--data", str(data), *map(str, words)], stdout=log, stderr=log)
    try:
        Mesh.until(lambda: " API on " in open(log.name).read(), 30, "the agent runs")
        yield log.name, ports
    finally:
        process.kill()
        process.wait()


def peers(data, port):
    """What it says of the host that it is told to join, and then of those that the folder knows."""
    said = json.loads(shoal("doctor", "--data", data, "--join", "127.0.0.1:%d" % port, "--output", "json").stdout)
    return [(row["state"], row["text"]) for row in said["checks"] if row["check"] == "peers"]


def test_it_says_what_answers_where_a_peer_should(data, bare):
    joined = data.parent / "j"
    with agent(data, bare) as (port, api_port), agent(data.parent / "other", bare) as (other, _):
        assert shoal("join", "127.0.0.1:%d" % port, "--data", joined, "--secret-file", data / "mesh.key", "--python", bare).returncode == 0
        for asked, want, said in ((port, "ok", "an agent of this mesh"), (api_port, "bad", "an agent's API"), (other, "bad", "another mesh secret")):
            state, text = peers(joined, asked)[0]
            assert state == want and said in text, text
        assert len(peers(joined, port)) == 1, "it was told that one already"
        assert "own agent" in peers(data, port)[0][1]


def test_whoever_is_not_found_is_named_in_the_log(data, bare, tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        told = "127.0.0.1:%d" % nobody.getsockname()[1]
        (tmp_path / "key").write_text(key_of(data.parent / "other"))
        assert shoal("join", told, "--data", data, "--secret-file", tmp_path / "key", "--python", bare).returncode == 0
        with running(data) as (log, _):
            Mesh.until(lambda: "no host answers that this one was told to join (%s)" % told in open(log).read(), 30, "it says whom it asked")


def test_a_host_that_is_named_as_another_says_so(data, bare):
    others = [data.parent / "b", data.parent / "c"]
    assert shoal("init", "--data", data, "--python", bare).returncode == 0
    with running(data, "--name", "same") as (log, ports):
        for other in others:
            assert shoal("join", "127.0.0.1:%d" % ports[0], "--data", other, "--secret-file", data / "mesh.key", "--python", bare).returncode == 0
        with running(others[0], "--name", "same") as (second, (port, _)), running(others[1], "--name", "other") as (third, _):
            for path, at in ((log, port), (second, ports[0])):
                Mesh.until(lambda: "warning: the host at 127.0.0.1:%d is named same, too" % at in open(path).read(), 30, "it is said")
            Mesh.until(lambda: open(third).read().count("same is alive") == 2, 30, "the third knows both")
        assert "warning" not in open(third).read() and "--name" in open(second).read()


def wheel(folder, name, version):
    folder.mkdir(exist_ok=True)
    info = "%s-%s.dist-info/" % (name, version)
    with zipfile.ZipFile(folder / ("%s-%s-py3-none-any.whl" % (name, version)), "w") as archive:
        archive.writestr(name + ".py", "__version__ = '%s'\n" % version)
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version))
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")


def pins():
    """The versions that a mesh's hosts have, by package."""
    text = (ROOT / "node/agent/python_packages.h").read_text()
    return dict(re.findall(r'^#define PYTHON_[A-Z_]+ "([a-z-]+)==([0-9.]+)"', text, re.M))


def test_setup_python_makes_what_jobs_need(data, bare, tmp_path):
    """From the index that pip is configured for: here a folder. It has a newer torch, too, which other hosts do not have."""
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}  # a host's file may constrain
    assert set(pins()) == {"torch", "numpy", "scikit-learn"}
    for name, version in pins().items():
        wheel(tmp_path / "all", name.replace("-", "_"), version)
    wheel(tmp_path, "torch", "99.0")
    failed = shoal("init", "--data", data, "--python", bare, "--setup-python", **pip)
    assert failed.returncode == 1 and "PIP_INDEX_URL" in failed.stderr and "--python" in failed.stderr
    assert not (data / "identity").exists()
    pip["PIP_FIND_LINKS"] += " " + str(tmp_path / "all")
    done = shoal("init", "--data", data, "--python", bare, "--setup-python", **pip)
    assert done.returncode == 0, done.stderr
    said = done.stderr[:done.stderr.index("on disk")]
    assert all("%s==%s" % pin in said for pin in pins().items()) and "MB" in said and "the same torch" in said, done.stderr
    assert "python %s/python/bin/python" % data in (data / "agent.conf").read_text()
    had = subprocess.run([str(data / "python/bin/python"), "-c", "import torch, numpy; print(torch.__version__, numpy.__version__)"],
                         capture_output=True, text=True).stdout.split()
    assert had == [pins()["torch"], pins()["numpy"]]
    assert checks("--data", data)["slots"][0] == "ok"


def test_set_up_installs_the_same_versions():
    """`.ci/setup` reads them where --setup-python has them."""
    text = (ROOT / ".ci/setup").read_text()
    pinned = next(line for line in text.splitlines() if line.startswith("pinned()"))
    for name, version in pins().items():
        said = subprocess.run(["sh", "-c", "%s\npinned %s" % (pinned, name)], cwd=ROOT, capture_output=True, text=True)
        assert said.stdout == "%s==%s\n" % (name, version) and "$(pinned %s)" % name in text


def test_set_up_finds_out_what_is_missing(bare):
    """Also a module of a package that is not there, which importlib raises for; and a demo needs no tests' packages."""
    text = (ROOT / ".ci/setup").read_text()
    has = text[text.index("has() {"):text.index("\n}\n", text.index("has() {")) + 3]
    for module, want in (("nosuch.protobuf", 1), ("nosuch", 1), ("json.decoder", 0)):
        done = subprocess.run(["sh", "-c", "%s\nhas %s" % (has, module)], env={"python": str(bare)}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (want, ""), (module, done)
    pairs = {line.split("=", 1)[0] for line in text.splitlines() if "google.protobuf" in line}
    assert pairs == {'[ "${1:-}" '}, "only without --demo"


def test_setup_python_takes_one_that_has_all(data):
    done = shoal("init", "--data", data, "--python", sys.executable, "--setup-python")
    assert done.returncode == 0 and not (data / "python").exists()
    assert "python %s" % sys.executable in (data / "agent.conf").read_text()


def test_training_data_goes_over_ipv6_too(data):
    assert shoal("init", "--data", data, "--python", sys.executable, "--inventory", "cpu:1").returncode == 0
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip("this host has no ::1: %s" % error)
    said = checks("--data", data, "--host", "::1")
    assert said["fabric"] == ("ok", "training data between hosts: unsealed, by ::1")
    assert "loopback" in said["transport"][1]


def test_it_says_what_training_data_goes_over(data):
    assert shoal("init", "--data", data, "--python", sys.executable, "--inventory", "cpu:1").returncode == 0
    state, text = checks("--data", data, "--transport", "tcp")["transport"]
    assert (state, text) == ("ok", "training data between hosts: TCP, by --transport tcp")
    words, env = ("doctor", "--data", data, "--output", "json"), {"SHOAL_UCX": "/no/such/libucp.so.0"}
    state, text = checks("--data", data)["transport"]
    assert (state, text) == ("ok", "training data between hosts: TCP, since they are all on loopback")
    for more, want in (("auto", "note"), ("ucx", "bad")):
        done = shoal(*words, "--fabric-trusted", "lo,lo", "--transport", more, **env)  # named, as any other interface
        row = next(row for row in json.loads(done.stdout)["checks"] if row["check"] == "transport")
        assert row["state"] == want and "/no/such/libucp.so.0" in row["text"] and "pip install libucx-cu13" in row["text"]
    if importlib.util.find_spec("libucx"):
        state, text = checks("--data", data, "--transport", "ucx")["transport"]
        assert state == "ok" and re.search(r"UCX 1[.]\d+[.]\d+ \(\S+/libucx/lib/libucp[.]so[.]0\)", text)
    done = shoal("doctor", "--data", data, "--transport", "rdma")
    assert done.returncode != 0 and '"rdma" is not auto, ucx or tcp' in done.stdout


def test_secrets_that_others_can_read(data):
    assert shoal("init", "--data", data, "--python", sys.executable).returncode == 0
    assert checks("--data", data)["secrets"][0] == "ok"
    (data / "mesh.key").chmod(0o644)
    state, text = checks("--data", data)["secrets"]
    assert state == "bad" and "%s/mesh.key" % data in text and "chmod 600" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_that_is_full(data):
    assert shoal("init", "--data", data, "--python", sys.executable).returncode == 0
    assert checks("--data", data)["disk"][0] == "ok"
    (data / "blobs").mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", data / "blobs"], capture_output=True).returncode != 0:
        pytest.skip("may not mount here")
    try:
        state, text = checks("--data", data)["disk"]
    finally:
        subprocess.run(["umount", data / "blobs"], check=True)
    assert state == "bad" and "%s/blobs is full: 20 MiB are free" % data in text
