"""Strikes at random under requests: a kernel, its watcher, a runner, an agent, a whole host. No answer is another request's, none is
computed twice, and only what was under way at a strike may fail. The seed is printed; SHOAL_DRAW=N repeats it, as far as the machine
lets it."""

import collections
import http.client
import os
import pathlib
import random
import signal
import threading
import time
import zlib

import pytest
from mesh import TLS, descendants
from test_service_kernels import deploy

SEED = int(os.environ.get("SHOAL_DRAW", "1"), 0)
CLIENTS, RATE = 8, 200  # requests in a second, all clients together
KINDS = ("kernel", "watcher", "runner", "agent", "host")
# How long after a strike requests may still go where it struck. Agents are told of a broken link at once, and of a host that is
# silent within 2 s; a machine that is busy takes longer for both.
GRACE_S = 5
KERNEL = """
import os, zlib
from redhareapi import Kernel

class Sums(Kernel):
    def on_kernel_start(self, context):
        self.file = os.open(os.path.join(%r, str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def on_task_invoke(self, task):
        while task is not None:
            body = task.get_input_data_extend()
            os.write(self.file, body + b"\\n")
            task.set_output_data(b"%%s is %%08x" %% (body, zlib.crc32(body)))
            task = task.next()

if __name__ == "__main__":
    Sums().run()
"""
Asked = collections.namedtuple("Asked", "name host began ended status body")


class Clients:
    """They ask hosts that are up, each its next request on the connection that it has."""

    def __init__(self, mesh, service):
        self.mesh, self.path, self.token = mesh, "/v2/models/%s/infer" % service, mesh.token(mesh.hosts[0])
        self.up, self.asked, self._stop = list(mesh.hosts), [], threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(CLIENTS)]
        for one in self._threads:
            one.start()

    def _run(self, number):
        chance, links, count, due = random.Random(number), {}, 0, time.monotonic()
        while not self._stop.is_set():
            host, name = chance.choice(list(self.up)), "%d-%d" % (number, count)
            count += 1
            began = time.monotonic()
            status, body = self._ask(links, host, name.encode())
            self.asked.append(Asked(name, host.name, began, time.monotonic(), status, body))
            due = max(due + CLIENTS / RATE, time.monotonic() - 0.5)
            self._stop.wait(max(0, due - time.monotonic()))

    def _ask(self, links, host, body):
        try:
            if host.name not in links:
                links[host.name] = http.client.HTTPSConnection(host.address, host.api_port, timeout=70, context=TLS)
            links[host.name].request("POST", self.path, body, {"Authorization": "Bearer " + self.token})
            answer = links[host.name].getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            links.pop(host.name).close()
            return 0, repr(error).encode()

    def go_on(self, seconds):
        """Nothing happens for so long but requests."""
        self._stop.wait(seconds)

    def end(self):
        self._stop.set()
        for one in self._threads:
            one.join(100)
            assert not one.is_alive(), "a request has no end"
        return self.asked


def argv_of(pid):
    try:
        return pathlib.Path("/proc/%d/cmdline" % pid).read_bytes().split(b"\0")
    except OSError:
        return []


def processes(host, kind):
    """Of the host's runners: these, the watchers of kernels, or the kernels."""
    runners = host.runners()
    if kind == "runner":
        return runners
    below = [(pid, argv_of(pid)) for runner in runners for pid in descendants(runner)[1:]]
    return [pid for pid, argv in below if b"pyedt.kernel_host" in argv and (b"--kernel" in argv) == (kind == "kernel")]


def strike(clients, host, kind, chance):
    """Whether there was something to strike. An agent and a host come again."""
    if kind in ("agent", "host"):
        clients.up.remove(host)
        host.kill() if kind == "agent" else host.stop()
        return True
    pids = processes(host, kind)
    if pids:
        try:
            os.kill(chance.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
    return bool(pids)


def chaos(mesh, folder, seed, strikes, pause_s):
    print("seed %d: SHOAL_DRAW=%d" % (seed, seed))
    chance, done, deck = random.Random(seed), [], []
    clients = Clients(mesh, "sums")
    try:
        while len(done) < strikes:
            deck = deck or chance.sample(KINDS, len(KINDS))  # each kind once before one comes again
            host, kind = chance.choice(mesh.hosts), deck[-1]
            clients.go_on(chance.uniform(0.5, 1) * pause_s)
            began = time.monotonic()
            if not strike(clients, host, kind, chance):
                continue  # nothing of this kind is there: the last strike has been here
            deck.pop()
            if kind in ("agent", "host"):
                host.start()
                mesh.until(lambda: mesh.knows(host, len(mesh.hosts)), 60, "%s is back" % host.name)
                clients.up.append(host)
            done.append((began, time.monotonic(), host.name, kind))
        mesh.until(lambda: mesh.cli(host, "service", "show", "sums")["ready"] == 3, 120, "all replicas are back")
    finally:
        asked = clients.end()
    judge(asked, done, folder)


def judge(asked, strikes, folder):
    computed = collections.Counter(line for file in folder.iterdir() for line in file.read_bytes().splitlines())
    twice = [name for name, count in computed.items() if count > 1]
    assert not twice, "computed twice: %r of %r" % (twice[:9], strikes)
    good = [one for one in asked if one.status == 200]
    for one in good:
        assert one.body == b"%s is %08x" % (one.name.encode(), zlib.crc32(one.name.encode())), one
        assert one.name.encode() in computed, one
    for one in asked:
        if one.status != 200:
            assert any(one.began <= ended + GRACE_S and one.ended >= began for began, ended, _, _ in strikes), (one, strikes)
    seconds = max(one.ended for one in asked) - min(one.began for one in asked)
    print("%d strikes (%s), %d requests in %.0f s, %d failed" % (
        len(strikes), ", ".join("%s %s" % row[2:] for row in strikes), len(asked), seconds, len(asked) - len(good)))
    assert len(good) > len(asked) * 0.8, collections.Counter((one.status, one.body[:80]) for one in asked if one.status != 200)


@pytest.fixture
def served(new_mesh, tmp_path):
    mesh, package, folder = new_mesh(), tmp_path / "package", tmp_path / "computed"
    package.mkdir()
    folder.mkdir()
    (package / "kernel.py").write_text(KERNEL % str(folder))
    (package / "model.json").write_text('{"name": "sums", "kernel_path": "kernel.py"}')
    deploy(mesh, "sums", package, 3)
    for host in mesh.hosts:
        mesh.until(lambda: mesh.cli(host, "service", "show", "sums")["ready"] == 3, 120, "%s knows three kernels" % host.name)
    return mesh, folder


def test_a_few_strikes_cost_only_what_was_under_way(served):
    chaos(*served, SEED, 5, 0.5)


@pytest.mark.soak
@pytest.mark.parametrize("round", range(3))
def test_twenty_strikes_cost_only_what_was_under_way(served, round):
    chaos(*served, SEED * 100 + round, 20, 2)
