"""The engine server: what it forks, to whom that belongs, and that the slot's lock goes with it."""

import array
import ctypes
import fcntl
import os
import select
import socket
import subprocess
import sys
import time

import pytest
from conftest import PACKAGES
from pyedt import _bundle
from pyedt.engine_server import pack, unpack

PR_SET_CHILD_SUBREAPER = 36
NICE = os.getpriority(os.PRIO_PROCESS, 0)  # of this run, and so of the server

# Stands in for the engine: says what it is, then ends as told.
ENGINE = """
import os, sys, threading
def main():
    import ctypes, torch
    signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)
    loading = os.getpriority(os.PRIO_PROCESS, 0)
    loaded()
    print(os.getpid(), os.getppid(), os.getsid(0), os.getpriority(os.PRIO_PROCESS, 0), os.getcwd(), os.environ["SHOAL_SLOT"],
          len(os.listdir("/proc/self/task")), torch.get_num_threads(), "FIRST" in os.environ,
          signal.value, loading, flush=True)
    print("trouble", file=sys.stderr, flush=True)
    input_is_null = sys.stdin.read() == ""
    return 7 if input_is_null else 1
"""


def start_server(code, others=(), folder=None):
    """(our socket, process) of a server that runs after `code`; its engines fall to us."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = dict(os.environ, SHOAL_SERVER_FD=str(theirs.fileno()), FIRST="1",
                       OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # as an agent sets them
    environment.update(others)
    for name in ("SHOAL_WORKER_ID", "SHOAL_SLOT", "SHOAL_TOKEN"):
        environment.pop(name, None)
    said = [open(folder / ("server." + name), "w") for name in ("stdout", "stderr")] if folder else [None, None]
    process = subprocess.Popen([sys.executable, "-c", code + "\nimport pyedt.engine_server as s\ns.main()"],
                               env=environment, pass_fds=[theirs.fileno()], stdout=said[0], stderr=said[1])
    for file in filter(None, said):
        file.close()
    theirs.close()
    ours.settimeout(60)
    return ours, process


def stop_server(ours, process):
    ours.close()
    process.wait(60)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("server")
    (tmp_path / "engine.py").write_text(ENGINE)
    ours, process = start_server("import sys; sys.path.insert(0, %r)\nimport pyedt._engine as e\n"
                                 "exec(open(%r).read(), e.__dict__)" % (PACKAGES, str(tmp_path / "engine.py")))
    yield ours, process
    stop_server(ours, process)


def command(tmp_path, slot, **others):
    folder = tmp_path / ("engine-%d" % slot)
    folder.mkdir()
    environment = dict(PATH=os.environ["PATH"], SHOAL_SLOT=str(slot), OMP_NUM_THREADS="1")
    return dict({"fork": slot, "worker": 100 + slot, "nice": NICE + 5, "cwd": str(folder), "env": environment,
                 "stdout": str(folder / "log" / "stdout"), "stderr": str(folder / "log" / "stderr")}, **others)


def ask(server, message, descriptors=()):
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    server.sendmsg([pack(message)], ancillary)
    answer = unpack(server.recv(8192))
    assert answer["worker"] == message["worker"]
    return answer


def ended(pid):
    """The exit status of an engine: it is ours by now."""
    fd = os.pidfd_open(pid)
    select.select([fd], [], [], 60)
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_engines_are_forked_belong_to_us_and_hold_their_slots_lock(server, tmp_path):
    ours, process = server
    for slot in (3, 4):
        lock_path = tmp_path / ("lock-%d" % slot)
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        order = command(tmp_path, slot)
        answer = ask(ours, order, [lock])
        os.close(lock)
        assert answer["forked"] == slot
        assert ended(answer["pid"]) == 7
        pid, parent, session, nice, cwd, own_slot, tasks, threads, first, death, loading = open(order["stdout"]).read().split()
        assert int(pid) == answer["pid"] == int(session)
        assert int(parent) == os.getpid() and int(parent) != process.pid, "it fell to the subreaper"
        assert (int(nice), cwd, own_slot, int(tasks), int(threads), first) == (NICE + 5, order["cwd"], str(slot), 1, 1, "False")
        assert int(death) == 9, "it dies with the runner"
        assert int(loading) == NICE, "it loads like any process, and steps back when it is ready"
        assert open(order["stderr"]).read() == "trouble\n"
        again = os.open(lock_path, os.O_RDWR)
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)


def test_the_lock_stands_while_the_engine_lives(server, tmp_path):
    ours, _ = server
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    order = command(tmp_path, 1, stdout=str(fifo))  # the engine waits in opening its log until somebody reads it
    answer = ask(ours, order, [lock])
    os.close(lock)
    again = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    reader = os.open(fifo, os.O_RDONLY)
    assert ended(answer["pid"]) == 7
    os.close(reader)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)


def test_forking_takes_milliseconds(server, tmp_path):
    ours, _ = server
    ended(ask(ours, command(tmp_path, 0))["pid"])  # the framework is loaded by now
    started = time.monotonic()
    answer = ask(ours, command(tmp_path, 1))
    ended(answer["pid"])
    assert time.monotonic() - started < 5, "an import would be paid again"


def test_a_bad_directory_ends_the_engine_and_not_the_server(server, tmp_path):
    ours, _ = server
    answer = ask(ours, command(tmp_path, 0, cwd="/nowhere"))
    assert ended(answer["pid"]) == 1
    assert "nowhere" in open(tmp_path / "engine-0" / "log" / "stderr").read()
    assert ended(ask(ours, command(tmp_path, 1))["pid"]) == 7


def test_an_environment_may_hold_any_bytes(server, tmp_path):
    ours, _ = server
    order = command(tmp_path, 0)
    order["env"]["RAW"] = os.fsdecode(b"\xff\xfe")
    assert ended(ask(ours, order)["pid"]) == 7


def test_a_server_with_a_thread_starts_engines_afresh(tmp_path):
    ours, process = start_server("import threading, time\n"
                                 "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")
    environment = dict(command(tmp_path, 0)["env"], PYTHONPATH=os.environ["PYTHONPATH"])
    answer = ask(ours, command(tmp_path, 1, env=environment))
    assert ended(answer["pid"]) == 2, "the real engine, which has no agent here"
    assert "started by Shoal's agent" in open(tmp_path / "engine-1" / "log" / "stderr").read()
    stop_server(ours, process)


def test_messages_of_later_versions_and_any_bytes():
    message = {"worker": 2**63 + 5, "env": {"RAW": "\udcff\udcfe", "PLAIN": "\u20ac"}, "later": [1, None]}
    assert unpack(pack(message)) == message
    assert pack({"b": 1, "a": 2}) == b"e\x01\x01\x82\xa1a\x02\xa1b\x01", "in the order of names"
    assert unpack(b"e\x09\x01\x80") == {}
    with pytest.raises(ValueError, match="version 9, which asks for a reader of version 2"):
        unpack(b"e\x09\x02\x80")
    with pytest.raises(ValueError, match="no message"):
        unpack(b'{"fork": 1}')


def test_the_marks_of_the_first_worker_leave_the_servers_environment(monkeypatch):
    from pyedt import engine_server

    calls = []
    monkeypatch.setattr(os, "execve", lambda *arguments: calls.append(arguments))
    engine_server.forget_worker()
    assert calls == []
    monkeypatch.setenv("SHOAL_WORKER_ID", "7")
    engine_server.forget_worker()
    assert "SHOAL_WORKER_ID" not in calls[0][2] and calls[0][1][1:] == ["-m", "pyedt.engine_server"]


def test_a_second_thread_or_an_open_gpu_forbids_forking(monkeypatch):
    import threading

    from pyedt import engine_server

    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    assert "threads" in engine_server.cannot_fork()
    release.set()
    thread.join()
    listdir, readlink = os.listdir, os.readlink
    monkeypatch.setattr(os, "listdir", lambda path: ["1"] if path.endswith("task") else listdir(path))
    monkeypatch.setattr(os, "readlink", lambda path: "/dev/nvidia0" if path.endswith("/1") else readlink(path))
    assert "/dev/nvidia0" in engine_server.cannot_fork()


# Says which modules were there before it did anything, imports one of them itself, and is ready.
LOADS = """
import os, sys
def main():
    print(*[name for name in ("spice", "herb", "own") if name in sys.modules], os.environ.get("SPICED", "plain"), flush=True)
    if os.path.exists("../wants-herb"):
        import herb, own
    loaded()
    return 7
"""


class Kitchen:
    """A server with modules in an environment of its own, a folder of the user's, and the bundle of a call."""

    def __init__(self, folder, monkeypatch, spice, modules=("spice",), environment=(), call=True):
        self.folder = folder
        for name, text in (("env/spice.py", spice), ("env/herb.py", ""), ("user/own.py", ""), ("engine.py", LOADS)):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        bundle = folder / "call-1"
        _bundle.write(str(bundle), {"modules": list(modules)}, b"")
        if call:
            self.call()
        monkeypatch.setenv("SHOAL_CALL_BUNDLE", str(folder / "call.bundle"))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([PACKAGES, str(folder / "env"), str(folder / "user"), str(folder / "site")]))
        # Also of the server that starts afresh: its environment is what lies below `env`, and its engine is ours.
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(
            "import sysconfig\nget = sysconfig.get_paths\n"
            "sysconfig.get_paths = lambda *words: dict(get(*words), purelib=%r)\n"
            "if __import__('os').environ.get('SHOAL_SERVER_FD'):\n"
            "    import pyedt._engine as e\n    exec(open(%r).read(), e.__dict__)\n"
            "    import pyedt._preload as p\n    p.CALL_SECONDS = 60\n"
            % (str(folder / "env"), str(folder / "engine.py")))
        for name, value in environment:
            monkeypatch.setenv(name, value)
        self.ours, self.process = start_server("", dict(environment), folder)

    def call(self):
        os.symlink(self.folder / "call-1", self.folder / "call.bundle")

    def until_loaded(self):
        end = time.monotonic() + 60
        while "has loaded" not in (self.folder / "server.stdout").read_text():
            assert time.monotonic() < end, "the server does not come up"
            time.sleep(0.01)

    def engine(self, slot):
        """What the engine found when it came."""
        order = command(self.folder, slot)
        assert ended(ask(self.ours, order)["pid"]) == 7, open(order["stderr"]).read()
        return open(order["stdout"]).read().split()

    def close(self):
        stop_server(self.ours, self.process)
        return (self.folder / "server.stderr").read_text()


def test_what_a_call_imports_is_there_before_the_fork(tmp_path, monkeypatch):
    kitchen = Kitchen(tmp_path, monkeypatch, "import os; os.environ['SPICED'] = 'hot'")
    assert kitchen.engine(0) == ["spice", "hot"], "and what the import left in the environment is there, too"
    assert kitchen.close() == ""


def test_the_first_engine_waits_for_a_call_that_is_on_its_way(tmp_path, monkeypatch):
    kitchen = Kitchen(tmp_path, monkeypatch, "", call=False)
    order = command(kitchen.folder, 0)
    kitchen.until_loaded()
    kitchen.ours.send(pack(order))
    assert not select.select([kitchen.ours], [], [], 0.5)[0], "it could have forked by now"
    kitchen.call()
    assert ended(unpack(kitchen.ours.recv(8192))["pid"]) == 7
    assert open(order["stdout"]).read().split() == ["spice", "plain"]
    kitchen.close()


def test_what_the_first_engine_imported_is_there_for_the_second_but_not_the_users_own(tmp_path, monkeypatch):
    kitchen = Kitchen(tmp_path, monkeypatch, "", modules=())
    (tmp_path / "wants-herb").touch()
    assert kitchen.engine(0) == ["plain"]
    assert kitchen.engine(1) == ["herb", "plain"]
    assert kitchen.close() == ""


@pytest.mark.parametrize("spice, reason", [
    ("import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "2 threads"),
    ("import random; random.random()", "random numbers"),
    ("import numpy; numpy.random.rand()", "random numbers"),
    ("import torch; torch.rand(1)", "random numbers"),
    ("import torch; torch.manual_seed(1)", "random numbers"),
])
def test_an_import_that_would_tell_engines_apart_is_left_to_them(tmp_path, monkeypatch, spice, reason):
    kitchen = Kitchen(tmp_path, monkeypatch, spice)
    assert kitchen.engine(0) == ["plain"]
    said = kitchen.close()
    assert reason in said and "starts afresh" in said


def test_a_module_that_is_the_users_own_here_is_left_to_the_engines(tmp_path, monkeypatch):
    kitchen = Kitchen(tmp_path, monkeypatch, "", modules=("own",))
    assert kitchen.engine(0) == ["plain"]
    assert "own is not of the environment" in kitchen.close()


def test_a_module_that_cannot_be_imported_stops_nobody(tmp_path, monkeypatch):
    kitchen = Kitchen(tmp_path, monkeypatch, "raise SystemExit(3)")
    assert kitchen.engine(0) == ["plain"]
    assert kitchen.close() == ""


def test_nothing_is_preloaded_for_slots_of_several_threads(tmp_path, monkeypatch):
    kitchen = Kitchen(tmp_path, monkeypatch, "", environment=[("MKL_NUM_THREADS", "2")])
    assert kitchen.engine(0) == ["plain"], "a library would size its pool for one"
    kitchen.close()


def test_the_names_in_a_pickle(tmp_path, monkeypatch):
    import colorsys

    import cloudpickle
    from pyedt import _preload

    (tmp_path / "ownpaint.py").write_text("def mix(): pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    import ownpaint

    def datasets():
        return colorsys.rgb_to_hsv, ownpaint.mix

    names = _preload.named_in(cloudpickle.dumps({"datasets": datasets, "text": "textwrap.nothing"}))
    assert "colorsys" in names and "ownpaint" not in names and "textwrap" not in names


@pytest.mark.parametrize("backend, missing", [("keras", "tensorflow"), ("pytorch", "torch")])
def test_an_engine_without_its_framework_names_it(tmp_path, backend, missing):
    """Where the server ended instead, the user was told of a server, and not what the host lacks."""
    ours, process = start_server("import sys; sys.path.insert(0, %r)\nsys.modules[%r] = None" % (PACKAGES, missing),
                                 {"FABRIC_BACKEND": backend}, tmp_path)
    try:
        order = command(tmp_path, 2)
        order["env"].update(FABRIC_BACKEND=backend, SHOAL_AGENT_SOCKET="/nowhere/w.sock")
        assert ended(ask(ours, order)["pid"]) == 1
        last = open(order["stderr"]).read().splitlines()[-1]
        assert last.startswith("ModuleNotFoundError") and missing in last
    finally:
        stop_server(ours, process)
