"""shoal top: fits any width, knows q, NO_COLOR and pipes, and says that a job starts."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pytest
from test_http_api import GOOD, OUT, TYPE, Server, multipart

PATH = "/platform/rest/deeplearning/v1/execs?args=--exec-start%20edtPyTorch%20--model-main%20main.py%20--model-dir%20md%20--numWorker%202"


def submit(server):
    client = server.client()
    client.request("POST", PATH, body=multipart([("file", "md.tar.gz", GOOD)]),
                   headers={"Authorization": "Basic YWRhOnNlY3JldA==", "Content-Type": TYPE})
    assert client.getresponse().status == 200


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("fake"), False, job_ms=600000)  # its jobs wait for as long as these tests may take
    submit(made)
    submit(made)
    yield made
    made.stop()


def environment(server, **more):
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "SHOAL_NODE": server.url(), "SHOAL_USER": "ada",
            "SHOAL_PASSWORD": "secret", "LC_ALL": "C.UTF-8", **more}


def in_terminal(server, width, keys, seconds=20, **more):
    """(what the terminal was sent, exit code) of `shoal top` in a terminal so wide, into which `keys` are typed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(str(OUT / "shoal"), ["shoal", "top"], environment(server, **{"TERM": "xterm-256color", **more}))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    out, end, typed = b"", time.monotonic() + seconds, False
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.2)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                break
            if not data:
                break
            out += data
        if b"STEPS" in out and not typed:
            typed = os.write(fd, keys) > 0
    os.close(fd)
    return out, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_pipe_gets_one_plain_frame_that_fits(server):
    for width in (20, 40, 59, 60, 80, 100, 132, 200, 1000):
        done = subprocess.run([str(OUT / "shoal"), "top"], env=environment(server, COLUMNS=str(width)), capture_output=True, text=True,
                              timeout=30)
        assert done.returncode == 0 and "\033" not in done.stdout
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= width, (width, lines)
        assert sum(line.startswith("JOB") for line in lines) == 1 and not any(line != line.rstrip() for line in lines)
        if width >= 80:
            assert "STEPS/S" in done.stdout and "LOSS" in done.stdout
        if width >= 200:  # what its workers' data goes over
            assert "OVER" in done.stdout and "ucx 1.22 " in next(line for line in lines if line.startswith("shoal-"))


def test_an_elastic_job_without_a_step_is_starting(tmp_path, monkeypatch):
    monkeypatch.setenv("API_FAKE_NO_STEP", "1")
    made = Server(tmp_path, False, job_ms=600000)
    submit(made)
    done = subprocess.run([str(OUT / "shoal"), "top"], env=environment(made, COLUMNS="80"), capture_output=True, text=True, timeout=30)
    row = next(line for line in done.stdout.splitlines() if line.startswith("shoal-"))
    assert row.split()[3] == "starting" and made.stop() == 0


@pytest.mark.parametrize("keys", [b"q", b"\x03"])
def test_a_terminal_is_drawn_and_left(server, keys):
    out, code = in_terminal(server, 80, keys)
    assert code == 0 and b"\033[?1049h" in out and out.count(b"\033[?1049l") == 1  # entered, and left as it was
    assert b"nodes alive" in out


def test_colour_goes_by_no_color(server):
    colour = re.compile(rb"\033\[[0-9;]*3[1-3]m")
    assert colour.search(in_terminal(server, 100, b"q")[0])
    assert not colour.search(in_terminal(server, 100, b"q", NO_COLOR="1")[0])


@pytest.mark.parametrize("term", ["dumb", "no-such-terminal"])
def test_a_terminal_that_cannot_be_drawn_on_is_refused(server, term):
    out, code = in_terminal(server, 100, b"q", TERM=term)
    assert code == 2 and b'TERM is "%s"' % term.encode() in out and b"--count 1" in out, out
