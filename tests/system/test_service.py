"""The agent as a service: what it tells a service manager over NOTIFY_SOCKET, and what SIGHUP does."""

import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess

import pytest
from helpers import ended, log_of, submit
from mesh import Host, Mesh, descendants

OUT = pathlib.Path(os.environ.get("SHOAL_OUT", pathlib.Path(__file__).resolve().parents[2] / "build" / "release"))
WATCHDOG_MS = 400
RTPRIO = ["prlimit", "--rtprio=1:1"]


class Manager:
    """What systemd is to a service of Type=notify."""

    def __init__(self, folder):
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)

    def forget(self):
        """A dozen messages that nobody has read fill the socket, and later ones are lost."""
        while select.select([self.socket], [], [], 0)[0]:
            self.socket.recv(4096)

    def hear(self, wanted, seconds=20):
        """What comes until a message has `wanted` in it; the last one has it."""
        heard = []
        while select.select([self.socket], [], [], seconds)[0]:
            heard.append(self.socket.recv(4096).decode())
            if wanted in heard[-1]:
                return heard
        raise AssertionError("no %s; heard %s" % (wanted, heard[-20:]))


@pytest.fixture(scope="module")
def service():
    """(host, manager, what it said until READY=1) of one agent that a service manager has started, with a limit that lets
    it have a real-time class where the test may give one."""
    with Mesh(OUT / "shoal") as mesh:
        manager, host = Manager(mesh.folder), Host(mesh, "alpha")
        host.prepare()
        host.within = ["env", "NOTIFY_SOCKET=" + manager.path, "WATCHDOG_USEC=%d" % (WATCHDOG_MS * 1000)]
        if subprocess.run([*RTPRIO, "true"], capture_output=True).returncode == 0:
            host.within += RTPRIO
        mesh.hosts.append(host)
        host.start("--log-level", "info")
        said = manager.hear("READY=1")
        assert host.get("/v1/nodes")  # it serves from that word on
        yield host, manager, said


def test_it_says_when_it_serves_and_how_it_is(service):
    host, manager, said = service
    assert said[-1].startswith("READY=1\nSTATUS=mesh demo: 1 of 1 nodes alive; 2 slots, 0 jobs here")
    assert not [word for word in said[:-1] if "READY" in word]


def test_no_child_finds_the_managers_socket(service):
    host, _, _ = service
    children = descendants(host.process.pid)[1:]
    assert children
    for child in children:
        names = {word.split(b"=")[0] for word in pathlib.Path("/proc/%d/environ" % child).read_bytes().split(b"\0")}
        assert b"PATH" in names and not names & {b"NOTIFY_SOCKET", b"WATCHDOG_USEC"}


def test_the_watchdog_is_fed_by_the_loop(service):
    host, manager, _ = service
    manager.hear("WATCHDOG=1")
    manager.hear("WATCHDOG=1", WATCHDOG_MS / 1000)
    host.process.send_signal(signal.SIGSTOP)  # the loop stands: nothing feeds the dog
    manager.forget()
    quiet = not select.select([manager.socket], [], [], 2 * WATCHDOG_MS / 1000)[0]
    host.process.send_signal(signal.SIGCONT)
    assert quiet
    manager.hear("WATCHDOG=1")


def reload(host, manager, text):
    """What the log says of it."""
    (host.data / "agent.conf").write_text(text)
    before = len(host.log.read_text())
    host.process.send_signal(signal.SIGHUP)
    heard = manager.hear("READY=1")
    assert any(word.startswith("RELOADING=1\nMONOTONIC_USEC=") for word in heard)
    return host.log.read_text()[before:]


SCRIPT = """
import json, os, resource
print(json.dumps([os.environ.get("SHOAL_LOG_MIB"), resource.getrlimit(resource.RLIMIT_RTPRIO),
                  resource.getrlimit(resource.RLIMIT_NICE)]))
"""


def test_sighup_reads_the_configuration_again(service, script):
    host, manager, _ = service
    said = reload(host, manager, "# a line for people\nlog-max 7\narchive-after 900\nlog-level debug\nname other\n")
    assert "log-max is 7 (was its default): in force from now on" in said
    assert "archive-after is 900 (was its default): takes a restart of the agent" in said
    assert "log-level" not in said and "name" not in said  # the command line stands above the file
    job = submit(host.mesh, host, script(SCRIPT))
    ended(host.mesh, job)
    log_mib, rtprio, nice = json.loads(log_of(host.mesh, host, job))
    assert log_mib == "7"
    assert (rtprio, nice) == ([0, 0], [0, 0])  # the class was the agent's alone
    said = reload(host, manager, "archive-after 900\n")
    assert "log-max is its default (was 7): in force from now on" in said and "archive-after" not in said


@pytest.mark.parametrize("text, says", [
    ("log-max 9\nlog-max 0\n", 'agent.conf:2: log-max: "0" is not a number from 1 to'),
    ("log-max 9\nlogmax 9\n", 'agent.conf:2: there is no setting "logmax"'),
    ("log-level loud\n", 'agent.conf:1: log-level: "loud" is not debug or info'),
    ("log-max 9\0\n", "is not text"),
])
def test_a_configuration_with_an_error_changes_nothing(service, text, says):
    host, manager, _ = service
    said = reload(host, manager, text)
    assert "nothing is reloaded: " in said and says in said and "in force" not in said
    assert "log-max is 9" not in reload(host, manager, "archive-after 900\n")


def test_a_configuration_that_is_missing_changes_nothing(service):
    host, manager, _ = service
    assert "log-max is 5" in reload(host, manager, "log-max 5\n")
    (host.data / "agent.conf").unlink()
    before = len(host.log.read_text())
    host.process.send_signal(signal.SIGHUP)
    manager.hear("READY=1")
    said = host.log.read_text()[before:]
    assert "nothing is reloaded: there is no agent.conf in " in said and "its default" not in said, said
    assert "log-max is its default (was 5)" in reload(host, manager, "archive-after 900\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_disk_without_room_is_said_once_and_when_there_is_room(service):
    host, manager, _ = service
    mesh = host.mesh
    before = len(host.log.read_text())
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", host.data / "blobs"], capture_output=True).returncode != 0:
        pytest.skip("may not mount here")
    try:
        mesh.until(lambda: "/blobs is full: 20 MiB are free" in host.log.read_text()[before:], 30, "it says that the disk is full")
    finally:
        subprocess.run(["umount", host.data / "blobs"], check=True)
    mesh.until(lambda: "there is room again on the disk of " in host.log.read_text()[before:], 30, "it says that there is room again")
    assert host.log.read_text()[before:].count("is full: ") == 1
    manager.forget()


def test_sigterm_is_orderly(service):
    host, manager, _ = service
    host.process.send_signal(signal.SIGTERM)
    assert "STOPPING=1" in manager.hear("STOPPING=1")[-1]
    assert host.process.wait(10) == 0
    host.start()
    manager.hear("READY=1")


def test_what_keeps_it_from_starting_is_its_status(service):
    host, manager, _ = service
    host.kill(signal.SIGTERM)
    (host.data / "agent.conf").write_text("slots 65\n")
    host.start()
    assert "cannot start: " in manager.hear("STATUS=cannot")[-1]
    assert host.process.wait(10) == 2
    (host.data / "agent.conf").unlink()


def test_jobs_run_without_any_capability(script):
    """As the installed unit starts it: CapabilityBoundingSet= and NoNewPrivileges=yes."""
    unit = (pathlib.Path(__file__).resolve().parents[2] / "packaging" / "shoal-agent.service.in").read_text().splitlines()
    assert {"CapabilityBoundingSet=", "NoNewPrivileges=yes"} <= set(unit)
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    if subprocess.run([*bare, "true"], capture_output=True).returncode != 0:
        pytest.skip("setpriv may not take capabilities away here")
    with Mesh(OUT / "shoal") as mesh:
        host = Host(mesh, "alpha")
        host.prepare()
        host.within = bare
        mesh.hosts.append(host)
        host.start()
        mesh.until(lambda: mesh.knows(host, 1), 20, "the host serves")
        job = submit(mesh, host, script("print(open('/proc/self/status').read())"))
        assert ended(mesh, job)["state"] == "FINISHED"
        log = log_of(mesh, host, job)
        assert "CapEff:\t0000000000000000" in log and "NoNewPrivs:\t1" in log


def test_an_abstract_socket(tmp_path):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind("\0shoal-test-%d" % os.getpid())
    with Mesh(OUT / "shoal") as mesh:
        host = Host(mesh, "alpha")
        host.prepare()
        host.within = ["env", "NOTIFY_SOCKET=@shoal-test-%d" % os.getpid()]
        mesh.hosts.append(host)
        host.start()
        manager.settimeout(20)
        assert manager.recv(4096).startswith(b"READY=1\n")


def test_an_agent_whose_log_nobody_reads_goes_on_and_ends(new_mesh):
    """A logger that is stuck: the pipe is full before the agent's first word."""
    mesh = new_mesh(())
    host = Host(mesh, "alpha")
    host.prepare()
    mesh.hosts.append(host)
    unread, log = os.pipe()
    os.set_blocking(log, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(log, b"-" * 4096):
            pass
    os.set_blocking(log, True)
    host.log = pathlib.Path("/dev/fd/%d" % log)
    host.start()
    try:
        mesh.until(lambda: mesh.knows(host, 1), 20, "it answers")
        assert host.get("/v1/nodes")
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(10) == 0
    finally:
        os.close(log)
        os.close(unread)
        host.log = mesh.folder / "alpha.log"
        host.log.touch()
