"""A mesh of several agents on this machine, as the demo and the system tests use it: each agent has its own data folder,
ports and identity, as a host of its own would."""

import http.client
import io
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PASSWORD = "swim together"
# Made once: a default context reads the system's certificates, 30 ms of a core for each question of a test that polls.
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TLS.check_hostname, TLS.verify_mode = False, ssl.CERT_NONE


GIVEN = set()


def free_ports(count):
    """Ports that the kernel does not give to outgoing connections: one of those would be taken again before its agent has
    started, or while it is down. None is given twice: that of an agent that has not started yet looks free."""
    low, high = map(int, pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    lane, lanes = map(int, os.environ.get("SHOAL_LANE", "0/1").split("/"))  # tests that run beside these take the others
    free, ports = [], [*range(10000, low), *range(high + 1, 65536)] or range(10000, 65536)
    for port in random.sample([port for port in ports if port % lanes == lane and port not in GIVEN], 1000):
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
            try:
                stream.bind(("127.0.0.1", port))
                datagram.bind(("127.0.0.1", port))
            except OSError:
                continue
        free.append(port)
        GIVEN.add(port)
        if len(free) == count:
            return free
    raise Failed("no %d free ports on 127.0.0.1 outside of %d to %d" % (count, low, high))


def start_time(pid):
    """Field 22 of /proc/pid/stat: a pid is the same process only with the same start."""
    with open("/proc/%d/stat" % pid) as stat:
        return int(stat.read().rpartition(")")[2].split()[19])


def descendants(pid):
    """Every process below `pid`, itself first."""
    found = [pid]
    for known in found:
        for task in pathlib.Path("/proc/%d/task" % known).glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                pass
    return found


class Failed(Exception):
    pass


class Host:
    """One agent and what runs under it."""

    def __init__(self, mesh, name):
        self.mesh, self.name = mesh, name
        self.data = mesh.folder / name
        self.port, self.api_port = free_ports(2)
        self.address, self.within = "127.0.0.1", []  # within: words before the agent's command, of a host with its own world
        self.log = mesh.folder / (name + ".log")
        self.process = None
        self.links = {}  # of get(): each thread its own

    @property
    def url(self):
        return "https://%s:%d" % (self.address, self.api_port)

    def prepare(self, seed=None):
        if seed is None:
            self.mesh.shoal("init", "--data", self.data, "--mesh-name", "demo", "--admin-user", "admin",
                            "--admin-password-file", self.mesh.password_file)
            shutil.copy(self.data / "mesh.key", self.mesh.key)  # as an operator carries it to other hosts
            if (self.data / "tls/ca.crt").exists():  # the previous version has none
                shutil.copy(self.data / "tls/ca.crt", self.mesh.ca)
        else:
            self.mesh.shoal("join", "%s:%d" % (seed.address, seed.port), "--data", self.data, "--secret-file",
                            self.mesh.key)

    def lends(self):
        return "--inventory", "cpu:%d" % self.mesh.slots

    def start(self, *options):
        command = [*self.within, str(self.mesh.binary), "agent", "--data", str(self.data), "--name", self.name,
                   "--host", self.address, "--port", str(self.port), "--api-host", self.address, "--api-port", str(self.api_port),
                   *self.lends(), "--prefill", "16", "--python", self.mesh.python,
                   *map(str, self.mesh.agent_options), *map(str, options)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def runners(self):
        """Runners of this host: they are started with its folder as an argument, and outlive the agent."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                argv = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if len(argv) > 3 and argv[1] == b"runner" and argv[2].startswith(os.fsencode(str(self.data) + "/")):
                found.append(int(entry.name))
        return found

    def everything(self):
        pids = [self.process.pid] if self.process and self.process.poll() is None else []
        for runner in self.runners():
            pids += descendants(runner)
        return pids

    def kill(self, number=signal.SIGKILL):
        """The agent alone."""
        self.process.send_signal(number)
        self.process.wait()

    def lose(self):
        """As if the host lost its power: every process at once, then its disk."""
        for pid in self.everything():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process:
            self.process.wait()
        shutil.rmtree(self.data, ignore_errors=True)

    def stop(self):
        for pid in self.everything():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process:
            self.process.wait()

    def get(self, path, timeout=5):
        """JSON of a native path, over a connection that is kept: most tests poll, and a TLS handshake costs ten times the question."""
        headers = {"Authorization": "Bearer " + self.mesh.token(self)}
        key = (os.getpid(), threading.get_ident(), self.address, self.api_port)
        link = self.links.pop(key, None)
        for kept in (True, False) if link else (False,):
            link = link if kept else http.client.HTTPSConnection(self.address, self.api_port, timeout=timeout, context=TLS)
            try:
                if kept:
                    link.sock.settimeout(timeout)
                link.request("GET", path, headers=headers)
                answer = link.getresponse()
                body = answer.read()
                break
            except (OSError, http.client.HTTPException) as error:
                link.close()
                if not kept or isinstance(error, TimeoutError):  # a kept one may be of an agent that has ended since
                    raise
        if not answer.will_close:
            self.links[key] = link
        if answer.status >= 400:
            raise urllib.error.HTTPError(self.url + path, answer.status, answer.reason, answer.headers, io.BytesIO(body))
        return json.loads(body)


class Mesh:
    """`with Mesh(...) as mesh:` — three hosts by default; everything is ended and removed at the end."""

    host_class = Host

    def __init__(self, binary=None, slots=2, python=None, keep=False, agent_options=()):
        self.binary = pathlib.Path(binary or ROOT / "build/release/shoal").resolve()
        self.slots, self.keep, self.agent_options = slots, keep, agent_options
        self.python = str(python or ROOT / ".venv/bin/python")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-", dir=os.environ.get("SHOAL_TEST_DIR", "/tmp")))
        self.password_file = self.folder / "password"
        self.password_file.write_text(PASSWORD + "\n")
        self.password_file.chmod(0o600)
        self.key, self.ca = self.folder / "mesh.key", self.folder / "ca.crt"
        self.hosts, self._token = [], None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if self.keep and not error:
            return
        for host in self.hosts:
            host.stop()
        if error and os.environ.get("SHOAL_KEEP_LOGS"):
            print("logs stay in %s" % self.folder)
        else:
            self.remove_folder()

    def remove_folder(self, tries=100):
        """A compiler, say, that outlives the engine which started it makes its folders anew: until no process is left that
        was given a path here, and nothing else is."""
        for _ in range(tries):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.is_in_use() and not self.folder.exists():
                return
            time.sleep(0.1)
        print("%s could not be removed" % self.folder, file=sys.stderr)

    def is_in_use(self):
        """Whether another process has a path of the folder in its environment."""
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if path.parent.name != str(os.getpid()) and bytes(self.folder) + b"/" in path.read_bytes():
                    return True
            except OSError:  # it has ended, or is another user's
                continue
        return False

    def add(self, name, *options, seed=None):
        host = self.host_class(self, name)
        host.prepare(seed or (self.hosts[0] if self.hosts else None))
        self.hosts.append(host)
        return host.start(*options)

    def grow(self, names):
        for name in names:
            self.add(name)
        for host in self.hosts:
            self.until(lambda: self.knows(host, len(self.hosts)), 30, "%s knows %d hosts" % (host.name, len(self.hosts)))
        return self.hosts

    def knows(self, host, count):
        try:
            nodes = host.get("/v1/nodes")
        except OSError:
            return False
        return sum(node["state"] == "alive" and node["slots"] > 0 for node in nodes) >= count

    def token(self, host):
        if self._token is None:
            answer = self.shoal("logon", "admin", "--node", host.url, "--output", "json", "--token-file",
                                self.folder / "token", check=False)
            if answer.returncode != 0:
                raise OSError(answer.stderr.strip())
            self._token = (self.folder / "token").read_text().strip()
        return self._token

    def trust(self):
        """What makes `shoal` believe the mesh's hosts."""
        return {"SHOAL_CA": str(self.ca)} if self.ca.exists() else {"SHOAL_INSECURE": "1"}

    def shoal(self, *words, check=True, timeout=60):
        env = dict(os.environ, SHOAL_USER="admin", SHOAL_PASSWORD=PASSWORD, **self.trust())
        done = subprocess.run([str(self.binary), *map(str, words)], env=env, capture_output=True, text=True, errors="replace",
                              timeout=timeout)
        if check and done.returncode != 0:
            raise Failed("shoal %s: exit code %d\n%s%s" % (" ".join(map(str, words)), done.returncode, done.stdout, done.stderr))
        return done

    def cli(self, host, *words, **options):
        """One verb as a user would say it, JSON back."""
        end = words.index("--") if "--" in words else len(words)  # what follows belongs to the script
        done = self.shoal(*words[:end], "--node", host.url, "--output", "json", *words[end:], **options)
        return json.loads(done.stdout) if done.stdout.strip() else None

    @staticmethod
    def until(condition, seconds, what, pause=0.05):
        end = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise Failed("not within %g s: %s" % (seconds, what))
            time.sleep(pause)

    def job(self, job, *hosts):
        """The job as the first host that answers shows it."""
        for host in hosts or self.hosts:
            try:
                return host.get("/v1/jobs/" + job)
            except OSError:
                continue
        return None

    def workers(self, job, hosts=None):
        """{worker id: (host, pid, start time, control page words)} of every live worker of the job."""
        found = {}
        for host in hosts or self.hosts:
            try:
                pages = host.get("/v1/debug/epochs")
            except OSError:
                continue
            for page in pages:
                for worker in page["workers"] if page["job"] == job else ():
                    try:
                        found[worker["worker"]] = (host, worker["pid"], start_time(worker["pid"]), worker)
                    except OSError:
                        pass
        return found


def job_id(text):
    return re.search(r"shoal-[0-9a-z]{16}", text).group(0)
