"""The README's "By hand", word for word, on three hosts: each has a network and mounts of its own, its /var/lib and its home.

    hub: bridge 10.0.0.254/24 --+-- veth | host 1: 10.0.0.1
                                +-- veth | host 2: 10.0.0.2
                                +-- veth | host 3: 10.0.0.3      the hub's network is no one else's either"""

import json
import os
import pathlib
import pty
import re
import select
import subprocess
import tempfile
import termios
import time

import apart
import pytest
from conftest import OUT, ROOT
from mesh import Failed, Mesh

REASON = apart.why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "hosts can be apart")
START_SECONDS = 30  # from the first agent's start to the first committed step by all workers


def blocks():
    """The shell's words of "By hand": first host, another host, anywhere."""
    section = re.search(r"^## By hand\n(.*?)^## ", (ROOT / "README.md").read_text(), re.M | re.S).group(1)
    return re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)


class HandHost:
    """A network, mounts, and what was started there."""

    def __init__(self, hub, number):
        self.namespace, self.wire = "%s%d" % (hub, number), "%sv%d" % (hub, number)
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))
        self.log, self.agent = self.home / "agent.log", None
        apart.ip("netns", "add", self.namespace)
        apart.ip("-n", hub, "link", "add", self.wire, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        apart.ip("-n", hub, "link", "set", self.wire, "master", "br0", "up")
        apart.ip("-n", self.namespace, "link", "set", "lo", "up")
        apart.ip("-n", self.namespace, "addr", "add", "10.0.0.%d/24" % number, "dev", "eth0")
        apart.ip("-n", self.namespace, "link", "set", "eth0", "up")
        self.holder = subprocess.Popen(["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", "sh", "-ec",
                                        "mount -t tmpfs none /var/lib; hostname host%d; echo ready; exec sleep infinity" % number],
                                       stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "ready\n"
        self.env = {"HOME": str(self.home), "TERM": "xterm", "LANG": "C.UTF-8",
                    "PATH": "%s:%s:%s" % (OUT, ROOT / ".venv" / "bin", os.environ["PATH"])}

    def words(self, script):
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--mount", "--uts", "--wd=%s" % ROOT, "sh", "-ec", script]

    def run(self, script):
        return subprocess.run(self.words(script), env=self.env, capture_output=True, text=True, timeout=60)

    def start(self, script):
        """A block that ends with an agent in the foreground. mesh.key is where the user works."""
        with open(self.log, "wb") as log:
            self.agent = subprocess.Popen(self.words("cd %s\n%s" % (self.home, script)), env=self.env, stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log)

    def said(self):
        return self.log.read_text(errors="replace")

    def type(self, script, answers, seconds=60):
        """As a person at a terminal: answers = {what is asked: what is typed}. What the terminal shows."""
        pid, terminal = pty.fork()
        if pid == 0:
            words = self.words(script)
            os.execvpe(words[0], words, self.env)
        shown, at, end = "", 0, time.monotonic() + seconds
        while time.monotonic() < end and select.select([terminal], [], [], end - time.monotonic())[0]:
            try:
                shown += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                break  # it has ended
            for question, answer in answers.items():
                found = shown.find(question, at)
                if found >= 0:
                    at = found + len(question)
                    if "Password" in question:  # what is typed before the echo is off is thrown away
                        Mesh.until(lambda: not termios.tcgetattr(terminal)[3] & termios.ECHO, 5, "no echo", pause=0.01)
                    os.write(terminal, (answer + "\n").encode())
        os.close(terminal)
        return shown, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def kill_all(self):
        """Were there none?"""
        pids = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True).stdout.split()
        for pid in pids:
            try:
                os.kill(int(pid), 9)
            except ProcessLookupError:
                pass
        return not pids

    def end(self):
        Mesh.until(self.kill_all, 10, "the end of all processes of a host")
        self.holder.wait()
        if self.agent is not None:
            self.agent.wait()
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True)
        subprocess.run(["rm", "-rf", str(self.home)])


@pytest.fixture
def hosts():
    hub = "sh%x" % os.getpid()
    made = []
    apart.ip("netns", "add", hub)
    try:
        apart.ip("-n", hub, "link", "add", "br0", "type", "bridge")
        apart.ip("-n", hub, "addr", "add", "10.0.0.254/24", "dev", "br0")
        apart.ip("-n", hub, "link", "set", "br0", "up")
        for number in (1, 2, 3):
            made.append(HandHost(hub, number))
        yield made
    finally:
        for host in made:
            print("---- %s\n%s" % (host.namespace, host.said()[-3000:] if host.log.exists() else ""))
            host.end()
        subprocess.run(["ip", "netns", "del", hub], capture_output=True)


def until(condition, seconds, told):
    """With all that is told if it does not come about."""
    try:
        return Mesh.until(condition, seconds, "what the README promises", pause=0.2)
    except Failed as error:
        raise Failed("%s\n%s" % (error, told())) from None


@pytest.mark.alone
def test_the_readme_trains_on_three_hosts(hosts):
    first, other, anywhere = blocks()
    limit = START_SECONDS * max(1.0, os.getloadavg()[0] / os.cpu_count())  # others' work on this machine is not ours
    began = time.monotonic()
    hosts[0].start(first)
    password = until(lambda: re.search(r"password (\S+)", hosts[0].said()), 20, hosts[0].said).group(1)
    key = until(lambda: hosts[0].run("cat /var/lib/shoal/mesh.key").stdout, 20, hosts[0].said)
    for number, host in enumerate(hosts[1:], 2):
        (host.home / "mesh.key").write_text(key)
        host.start(other.replace("10.0.0.2", "10.0.0.%d" % number))
    until(lambda: hosts[1].said().count("is alive") == 2, 20, hosts[1].said)  # nobody types faster than that
    typed = lambda: hosts[2].type(anywhere, {"Password of admin": password, "(yes/no)": "yes"})  # noqa: E731
    # It may answer "try again in a second": so does the user.
    shown, code = Mesh.until(lambda: (got := typed()) and "try again in a second" not in got[0] and got, 10, "a logon", pause=1)
    assert code == 0, shown
    assert shown.count("alive") == 3, shown
    job = re.search(r"shoal-[0-9a-z]{16}", shown).group(0)

    def facts():
        done = hosts[2].run("SHOAL_NODE=https://10.0.0.2:9243 shoal job show %s -o json" % job)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def told():
        return "%s\n%s" % (facts(), hosts[0].run("SHOAL_NODE=https://10.0.0.2:9243 shoal why %s" % job).stdout)

    until(lambda: facts().get("steps", 0) > 0, 120, told)
    step = time.monotonic() - began
    until(lambda: facts().get("workers") == 6, 60, told)
    print("first committed step after %.1f s, 6 workers after %.1f s" % (step, time.monotonic() - began))
    where = hosts[2].run("SHOAL_NODE=https://10.0.0.2:9243 shoal node list -o json").stdout
    assert "10.0.0.3" in where
    assert step <= limit, "%.1f s of %.1f" % (step, limit)
