"""What a job may say to the socket that its runner listens on for its agent: whoever connects there was taken for a new agent,
the one before was hung up on, took that for its runner's death, and ended the job with a reason that was not true."""

import contextlib
import socket

from helpers import ended, log_of, submit

# Prints how many of its connections were hung up on. Frames as an agent says them: kind, version, oldest, and fields.
KNOCKS = r"""
import os, pathlib, socket, struct, sys
path = pathlib.Path(os.environ["SHOAL_AGENT_SOCKET"]).parent / "jobs" / os.environ["DLI_EXECID"] / "runner.sock"
def order(kind, worker=0):
    return struct.pack("<BBBQIII?QQQQ", kind, 1, 1, worker, 0, 0, 0, False, 0, 0, 0, 0) + b"\0" * 4
SAID = [None, b"", b"\0", b"no message of an agent", os.urandom(60000), order(5), order(4, int(os.environ.get("SHOAL_WORKER_ID", 0)))]
def knock(words):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.settimeout(20)
        one.connect(str(path))
        try:
            if words is not None:
                one.send(words)
            return one.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True
gone = sum(knock(words) for _ in range(20) for words in SAID)
if os.fork() == 0:  # and as somebody's orphan
    os.setsid()
    if os.fork() == 0:
        os._exit(0 if knock(b"an orphan's") else 1)
    os._exit(0)
os.wait()
print("hung up", gone, "of", 20 * len(SAID), flush=True)
"""


def test_garbage_on_its_runners_socket_ends_the_connection_and_not_the_job(mesh, script):
    host = mesh.hosts[0]
    job = submit(mesh, host, script(KNOCKS))
    facts = ended(mesh, job)
    assert facts["state"] == "FINISHED", facts
    assert log_of(mesh, host, job).split() == ["hung", "up", "140", "of", "140"]


RUNS = "import os, sys, time\nopen(sys.argv[1] + '.began', 'w').close()\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\n"


def test_who_is_not_of_the_job_does_not_take_its_runner_from_its_agent_either(mesh, script, tmp_path):
    """Another process of the agent's user. Once the agent has died, the next one is let in, and the job goes on."""
    release = tmp_path / "release"
    job = submit(mesh, mesh.hosts[0], script(RUNS), script=(str(release),))
    mesh.until(lambda: (tmp_path / "release.began").exists(), 60, "it runs")
    host = next(host for host in mesh.hosts if (host.data / "jobs" / job / "runner.sock").exists())
    for words in (None, b"garbage") * 20:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            one.settimeout(20)
            one.connect(str(host.data / "jobs" / job / "runner.sock"))
            if words is not None:
                one.send(words)
            assert one.recv(1) == b"", "it is hung up on"
    host.kill()
    host.start()
    mesh.until(lambda: mesh.knows(host, 3), 30, "the agent is back")
    release.touch()
    facts = ended(mesh, job)
    assert facts["state"] == "FINISHED", facts
