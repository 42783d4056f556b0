"""One allocation of an agent's start fails, each time another one: the agent comes up, or it ends with a line that says what there
was no memory for. It never crashes, and takes no healthy folder for a damaged one."""

import os
import pathlib
import random
import signal
import subprocess

import pytest

SEED = int(os.environ.get("SHOAL_DRAW", "1"), 0)
FIRST = 24  # all of the first ones, then a part of the others, drawn anew for each commit
LAST = 240
DRAWN = int(os.environ.get("DRAWN", "30"))
SAID = ("memory", "no thread", "TLS", "broken invariant: ")  # the last one with file and line: where an agent cannot go on without
WRONG = ("damaged", "there is no ", "new data folder")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    source = pathlib.Path(__file__).with_name("preload") / "nth_allocation.c"
    made = tmp_path_factory.mktemp("preload") / "nth_allocation.so"
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", "-o", str(made), str(source)], check=True)
    return made


def start(mesh, host, shim, number):
    """(exit code, whether it came up, its words)"""
    host.log.write_text("")
    host.within = ["env", "LD_PRELOAD=%s" % shim, "SHOAL_ALLOC_FAIL=%d" % number]
    host.start()
    up = mesh.until(lambda: host.process.poll() is not None or mesh.knows(host, 1), 20, "it is up, or has ended", pause=0.01)
    up = up and host.process.poll() is None
    if up:
        host.process.send_signal(signal.SIGTERM)
    return host.process.wait(20), up, host.log.read_text()


def test_an_agent_starts_or_says_why_not_whichever_allocation_fails(new_mesh, shim):
    print("again: make test T=system/no_memory SEED=%d" % SEED)
    mesh = new_mesh(("alpha",))
    host = mesh.hosts[0]
    host.kill(signal.SIGTERM)
    numbers = [*range(1, FIRST), *sorted(random.Random(SEED).sample(range(FIRST, LAST), DRAWN))]
    ended = 0
    for number in numbers:
        code, up, text = start(mesh, host, shim, number)
        told = "allocation %d: code %d, %s: %s" % (number, code, "up" if up else "not up", text[-400:])
        assert code in (0, 1, 2, -signal.SIGABRT), told
        assert not any(word in text for word in WRONG), told
        if code != 0:
            ended += 1  # libuv ends the process without a word when it cannot make what its handles need
            assert any(word in text for word in SAID) or (code == -signal.SIGABRT and text == ""), told
    assert ended > FIRST // 2, "only %d of %d starts met the allocation that fails" % (ended, len(numbers))
    host.within = []
    host.start()
    mesh.until(lambda: mesh.knows(host, 1), 20, "it starts as before")
