"""What a process of this host, or a member of the mesh, may try against workers and agents: sockets that pass descriptors,
greetings with a worker's name, connections that say nothing."""

import array
import os
import pathlib
import socket
import struct

import pytest
import training
from helpers import ended, submit
from training import Run


def descriptors(host):
    return len(os.listdir("/proc/%d/fd" % host.process.pid))


@pytest.fixture
def running(mesh, script, tmp_path):
    """(host, job) of a script that runs until the test ends."""
    release = tmp_path / "release"
    text = "import os, sys, time\nopen(sys.argv[1] + '.began', 'w').close()\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
    job = submit(mesh, mesh.hosts[0], script(text), script=(str(release),))
    mesh.until(lambda: (tmp_path / "release.began").exists(), 60, "it runs")
    host = next(host for host in mesh.hosts if (host.data / "jobs" / job / "runner.sock").exists())
    yield host, job
    release.touch()
    assert ended(mesh, job)["state"] == "FINISHED"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "train"
    path.mkdir()
    (path / "main.py").write_text(training.SCRIPT)
    yield path
    Run.end_all()


def dial(host):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(str(host.data / "w.sock"))  # without a timeout it waits for a place in the queue
    one.settimeout(20)
    return one


def test_messages_with_two_descriptors_leave_none_open(mesh, running):
    host, _ = running
    before = descriptors(host)
    with open("/dev/null", "rb") as first, open("/dev/null", "rb") as second:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [first.fileno(), second.fileno()]))]
        for _ in range(600):
            with dial(host) as one:
                one.sendmsg([b"no message of a worker's library"], passed)
                assert one.recv(1) == b"", "the agent hangs up"
    mesh.until(lambda: descriptors(host) <= before + 4, 10, "%d descriptors as before" % before)


def listening(pid):
    """Ports of the process's own TCP sockets that listen, with their address."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % pid):
        try:
            target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for row in pathlib.Path("/proc/%d/net/tcp" % pid).read_text().splitlines()[1:]:
        words = row.split()
        if words[3] == "0A" and words[9] in inodes:
            address, port = words[1].split(":")
            yield socket.inet_ntoa(struct.pack("<I", int(address, 16))), int(port, 16)


def knock(address):
    """A connection, or None: a full queue of the kernel refuses it, or lets it wait."""
    try:
        return socket.create_connection(address, timeout=1)
    except (ConnectionRefusedError, TimeoutError):
        return None


def test_silent_connections_do_not_stop_training(mesh, folder):
    """300 on every worker's data port and 300 on every agent's socket, then an engine dies: what is left must meet anew."""
    run = Run(mesh, mesh.hosts[0], folder, workers=3, epochs=3)
    founders = run.gather()
    run.pace(training.SLOW)  # it must not end before it was attacked
    silent = []
    try:
        for worker in founders:
            for address in listening(run.seen[worker][1]):
                for _ in range(300):
                    if (one := knock(address)) is None:
                        break  # the kernel's queue is full: more would only wait, and training ends meanwhile
                    silent.append(one)
        assert silent, "no worker listens: nothing was attacked"
        silent += [dial(host) for host in mesh.hosts for _ in range(300)]
        run.kill(sorted(founders)[0])
        run.pace(run.usual)
        run.step(run.facts["steps"] + 5, 60)
        run.finish(120)
    finally:
        for one in silent:
            one.close()
