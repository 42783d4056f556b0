"""Rows about services: what Shoal takes for a request of a model, beside HAProxy, MLServer, Ray Serve and plain loops in the same run.

The agent, or the rival, runs on the first core; the client (load.c) and a backend that does nothing (noop.c) on the second one.
Requests a second and core are requests by the CPU time of all the server's processes. Rivals are fetched on demand into
build/rivals: HAProxy from Debian, the others from the Python index into a virtual environment there; one that does not come is
said so in its place."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from bench import PYTHON, ROOT, alive, scheduling, spread, watch
from mesh import TLS, Failed, Host, Mesh, descendants, free_ports

RIVALS = ROOT / "build/rivals"
SERVER_CPU, CLIENT_CPU = 0, 1
ROUNDS, SECONDS = 3, 3  # of fast models

KERNEL = """
import json

from redhareapi import Kernel


class Noop(Kernel):
    def on_task_invoke(self, task):
        while task is not None:
            asked = json.loads(task.get_input_data())
            task.set_output_data(json.dumps({"model_name": "noop", "outputs": asked["inputs"]}))
            task = task.next()


Noop().run()
"""

MLSERVER = """
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput


class Noop(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        return InferenceResponse(model_name="noop", outputs=[ResponseOutput(name=i.name, shape=i.shape, datatype=i.datatype, data=i.data)
                                                             for i in payload.inputs])
"""

RAY = """
import sys
import time

import ray
from ray import serve

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})


@serve.deployment(max_ongoing_requests=256)
class Noop:
    async def __call__(self, request):
        asked = await request.json()
        return {"model_name": "noop", "outputs": asked["inputs"]}


serve.run(Noop.bind(), route_prefix="/")
print("ready", flush=True)
time.sleep(3600)
"""


# ---- processes ----


def pin(pids, cpu):
    """Every thread; those that come later have it from these."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in pathlib.Path("/proc/%d/task" % pid).iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), {cpu})


def wait_port(port, process=None, seconds=120):
    def there():
        if process is not None and process.poll() is not None:
            raise Failed("it ended with %d" % process.returncode)
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    watch(there, seconds, 0.02)


def started(*words, cpu=SERVER_CPU, **more):
    """A process on a core, with its log beside it in RIVALS."""
    log = open(RIVALS / ("%s.log" % pathlib.Path(words[0]).name), "ab")
    process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **more)
    os.sched_setaffinity(process.pid, {cpu})
    return process


@contextlib.contextmanager
def running(*words, port=None, cpu=SERVER_CPU, **more):
    process = started(*words, cpu=cpu, **more)
    try:
        if port is not None:
            wait_port(port, process)
        yield process
    finally:
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def family(process):
    """It and all below it, and those that it has left to init: they have its mark in their environment."""
    mark = b"SHOAL_BENCH_RIVAL=%d" % process.pid
    found = set(descendants(process.pid))
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return [pid for pid in found if alive(pid)]


def cpu_of(pids):
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += cpu_ns(pid) / 1e9
    return total


def cpu_ns(pid):
    """Nanoseconds that all threads of a process have run: ticks of 10 ms are too coarse for three seconds."""
    spent = 0
    for task in pathlib.Path("/proc/%d/task" % pid).iterdir():
        with contextlib.suppress(OSError):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent


# ---- the client ----


def load(options, ports, path="/", token=None, body=None, tls=False, **words):
    """What load.c says, as numbers; `said` is its last words."""
    command = ["taskset", "-c", str(CLIENT_CPU), str(options.out / "tests/bench/load"), *map(str, ports), "path=" + path,
               "tls=%d" % tls, *(["token=%s" % token] if token else []), *(["body=%s" % body] if body else []),
               *("%s=%s" % pair for pair in words.items())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failed(done.stderr.strip() or "the client ended with %d" % done.returncode)
    found = {k: float(v) for k, v in re.findall(r"(\w+) ([\d.]+)", done.stdout.partition(" cpu ")[0])}
    found["said"] = done.stdout.strip()
    if found["refused"] or found["broken"]:
        print("    client: " + found["said"], file=sys.stderr)
    return found


def measured(options, pids, ports, clients, warm=200, **more):
    """(load's words, CPU microseconds of `pids` a request)"""
    load(options, ports, clients=clients, seconds=1, warm=warm, **more)
    before = cpu_of(pids)
    found = load(options, ports, clients=clients, seconds=SECONDS, warm=0, **more)
    spent = cpu_of(pids) - before
    if not found["requests"]:
        raise Failed("no request was answered: " + found["said"])
    return found, spent / found["requests"] * 1e6


# ---- Shoal ----


class PlainHost(Host):
    """One that speaks HTTP without TLS, as behind a proxy: what a rival without TLS is compared to."""

    @property
    def url(self):
        return "http://%s:%d" % (self.address, self.api_port)


class PlainMesh(Mesh):
    host_class = PlainHost


class Served:
    """A mesh with services on it."""

    def __init__(self, options, plain=False, slots=2, python=PYTHON):
        self.options, self.plain = options, plain
        kind = PlainMesh if plain else Mesh
        self.mesh = kind(options.out / "shoal", python=python, slots=slots, agent_options=("--api-plain",) if plain else ())
        self.mesh.worker_nice = options.nice

    def __enter__(self):
        return self

    def grow(self, count):
        self.mesh.grow(["alpha", "beta", "gamma"][:count])
        self.options.scheduling = scheduling(self.mesh)
        self.mesh.token(self.mesh.hosts[0])
        return self

    def __exit__(self, *error):
        self.mesh.__exit__(*error)

    def ask(self, name, body=b"{}", method="POST", path="/v2/models/%s/infer", host=0, timeout=60):
        host = self.mesh.hosts[host]
        request = urllib.request.Request(host.url + (path % name if "%" in path else path), data=body, method=method,
                                         headers={"Authorization": "Bearer " + self.mesh.token(host), "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=TLS) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()

    def deploy(self, name, files, replicas=1, command=(), policy=None):
        package = self.mesh.folder / ("package-" + name)
        package.mkdir()
        for file, content in files.items():
            (package / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        words = ["service", "deploy", name, "--package", package, "--replicas", 0 if policy else replicas]
        self.mesh.cli(self.mesh.hosts[0], *words, *(["--", *command] if command else []))
        if policy:
            for path, body in (("/dlim/v1/model/%s/appprofile", json.dumps({"policy": policy}).encode()),
                               ("/dlim/v1/model/%s/operation/start", None)):
                status, said = self.ask(name, body, "PUT", path)
                if status != 200:
                    raise Failed("%s: %d %s" % (path % name, status, said[:200]))
            replicas = policy["kernel_min"]
        self.ready(name, replicas)

    def show(self, name, host=0):
        return self.mesh.cli(self.mesh.hosts[host], "service", "show", name)

    def ready(self, name, count, seconds=90):
        for host in range(len(self.mesh.hosts)):
            self.mesh.until(lambda: self.show(name, host)["ready"] == count, seconds, "%s has %d kernels" % (name, count), 0.02)

    def noop(self, name, replicas=1, batch=64, delay_ms=0, policy=None):
        self.deploy(name, {"note": "noop"}, replicas, (self.options.out / "tests/bench/noop", "kernel", "batch=%d" % batch,
                                                       "delay_ms=%d" % delay_ms), policy)

    def pin_agents(self):
        """Agents on the server's core, what runs below runners on the client's."""
        pin([host.process.pid for host in self.mesh.hosts], SERVER_CPU)
        for host in self.mesh.hosts:
            for runner in host.runners():
                pin(descendants(runner), CLIENT_CPU)

    def ports(self):
        return [host.api_port for host in self.mesh.hosts]

    def call(self, name):
        return {"path": "/v2/models/%s/infer" % name, "token": self.mesh.folder / "token", "tls": not self.plain}

    def agents(self):
        return [host.process.pid for host in self.mesh.hosts]

    def kernels(self):
        return [pid for host in self.mesh.hosts for runner in host.runners() for pid in descendants(runner)]


def body_file(mesh, value):
    path = mesh.folder / "body"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def kilobyte():
    return {"inputs": [{"name": "x", "shape": [1, 900], "datatype": "BYTES", "data": ["x" * 900]}]}


# ---- rivals ----


def fetched(name, packages, *needs):
    """The Python of an environment with these packages; Failed says why there is none."""
    python = RIVALS / name / "bin/python"
    RIVALS.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(RIVALS / name)], check=True, capture_output=True)
    # What .venv has (torch) is seen, too, and nothing of it is changed.
    site = next((RIVALS / name).glob("lib/python3*/site-packages"))
    (site / "shoal_bench.pth").write_text("\n".join(str(path) for path in sorted((ROOT / ".venv").glob("lib/python3*/site-packages"))))
    if subprocess.run([str(python), "-c", "import " + ", ".join(needs)], capture_output=True).returncode != 0:
        done = subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise Failed("%s does not install: %s" % (packages[0], said[0][:120]))
    return python


def haproxy():
    """(path, environment) of HAProxy, unpacked from Debian's package where it is not installed."""
    installed = shutil.which("haproxy")
    if installed:
        return installed, dict(os.environ)
    root = RIVALS / "haproxy"
    program = root / "usr/sbin/haproxy"
    if not program.exists():
        root.mkdir(parents=True, exist_ok=True)
        packages = ["haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"]
        done = subprocess.run(["apt-get", "download", *packages], cwd=root, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed("HAProxy does not install: " + (done.stderr.strip().splitlines() or ["?"])[-1][:120])
        for package in root.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    return str(program), dict(os.environ, LD_LIBRARY_PATH=str(root / "usr/lib/x86_64-linux-gnu"))


@contextlib.contextmanager
def haproxy_before(mesh, backend_port, tls):
    program, environment = haproxy()
    port = free_ports(1)[0]
    pem = mesh.folder / "haproxy.pem"
    if tls:
        folder = mesh.hosts[0].data / "tls"
        pem.write_text("".join(path.read_text() for path in sorted(folder.glob("*")) if path.suffix in (".crt", ".key", ".pem")
                               and not path.name.startswith("ca")))
    config = mesh.folder / ("haproxy-%d.cfg" % tls)
    config.write_text("global\n  nbthread 1\n  maxconn 2000\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n"
                      "  timeout server 60s\nfrontend f\n  bind 127.0.0.1:%d%s\n  default_backend b\nbackend b\n  server s 127.0.0.1:%d\n" % (
                          port, " ssl crt %s" % pem if tls else "", backend_port))
    with running(program, "-f", config, "-db", port=port, env=environment) as process:
        yield port, process


# ---- R1 ----


def router(table, options):
    """The router and nothing else: a backend in C that answers with the body. HAProxy in front of one over TCP, in turn with it."""
    for plain in (True, False):
        found = {}
        with Served(options, plain=plain) as served:
            served.grow(1)
            served.noop("noop")
            served.pin_agents()
            body, port = body_file(served.mesh, kilobyte()), free_ports(1)[0]
            with running(options.out / "tests/bench/noop", "http", port, port=port, cpu=CLIENT_CPU), \
                    haproxy_before(served.mesh, port, not plain) as (proxy, process):
                for _ in range(ROUNDS):
                    for clients in (1, 32):
                        for who, pids, ports, more in (("direct", [], [port], {}),
                                                       ("haproxy", [process.pid], [proxy], {"tls": not plain}),
                                                       ("shoal", served.agents(), served.ports(), served.call("noop"))):
                            found.setdefault((who, clients), []).append(measured(options, pids, ports, clients, body=body, **more))
        router_row(table, "plain HTTP" if plain else "TLS", found)


def middle(rounds, name):
    return statistics.median(one[0][name] for one in rounds)


def router_row(table, how, found):
    def words(who):
        direct = middle(found["direct", 1], "p50")
        alone, busy = (statistics.median(one[1] for one in found[who, clients]) for clients in (1, 32))
        return "p50 +%.0f us and %.0f us of CPU alone; %.1f us of CPU with 32 clients: %.0f/s a core (by the clock %.0f/s), p99 %.2f ms" % (
            middle(found[who, 1], "p50") - direct, alone, busy, 1e6 / busy, middle(found[who, 32], "rate"), middle(found[who, 32], "p99") / 1e3)

    table.row("router alone, %s, 1 kB of JSON, a backend in C that does nothing" % how, "p50 <= +20 us, <= 20 us of CPU, >= 30,000/s a core",
              words("shoal"), "HAProxy, one thread: " + words("haproxy"))


# ---- two nodes ----


def two_nodes(table, options):
    """A node that has the kernel is asked, then one that has none and passes the request on: what the way between costs both agents."""
    found = {}
    with Served(options, plain=True) as served:
        served.grow(2)
        served.noop("noop")
        served.pin_agents()
        has = next(i for i, host in enumerate(served.mesh.hosts) if any(len(descendants(runner)) > 1 for runner in host.runners()))
        files = {name: served.mesh.folder / name for name in ("kilobyte", "mebibyte")}
        files["kilobyte"].write_text(json.dumps(kilobyte()))
        files["mebibyte"].write_bytes(os.urandom(1 << 20))
        for _ in range(ROUNDS):
            for size, clients in (("kilobyte", 1), ("kilobyte", 32), ("mebibyte", 1), ("mebibyte", 8)):
                for who, at in (("one", has), ("two", 1 - has)):
                    found.setdefault((size, clients, who), []).append(measured(
                        options, served.agents(), [served.ports()[at]], clients, body=files[size], warm=20, type="application/octet-stream",
                        **served.call("noop")))

    def words(size, clients, who):
        rounds = found[size, clients, who]
        return "%.1f us of CPU, p50 %.0f us" % (statistics.median(one[1] for one in rounds), middle(rounds, "p50"))

    for size, many in (("kilobyte", 32), ("mebibyte", 8)):
        table.row("a %s of binary through a node without the kernel, plain HTTP, both agents" % size, "",
                  "alone %s; %d clients %s" % (words(size, 1, "two"), many, words(size, many, "two")),
                  "through the node with it: alone %s; %d clients %s" % (words(size, 1, "one"), many, words(size, many, "one")))


# ---- R2, R3 ----


@contextlib.contextmanager
def mlserver(options, folder):
    python = fetched("serve", ["mlserver"], "mlserver")
    ports = free_ports(3)
    model = folder / "mlserver"
    model.mkdir(exist_ok=True)
    (model / "noop.py").write_text(MLSERVER)
    (model / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "http_port": ports[0], "grpc_port": ports[1], "metrics_port": ports[2],
                                                     "parallel_workers": 0, "debug": False}))
    (model / "model-settings.json").write_text(json.dumps({"name": "noop", "implementation": "noop.Noop"}))
    with running(python.with_name("mlserver"), "start", model, cwd=model, env=dict(os.environ, PYTHONPATH=str(model))) as process:
        def ready():
            if process.poll() is not None:
                raise Failed("MLServer ended with %d" % process.returncode)
            with contextlib.suppress(OSError):
                return urllib.request.urlopen("http://127.0.0.1:%d/v2/models/noop/ready" % ports[0], timeout=2).status == 200

        watch(ready, 120, 0.2)
        yield ports[0], process, "/v2/models/noop/infer"


@contextlib.contextmanager
def ray_serve(options, folder):
    python = fetched("serve", ["ray[serve]"], "ray.serve", "starlette")
    port = free_ports(1)[0]
    program = folder / "ray_noop.py"
    program.write_text(RAY)
    out = folder / "ray.out"
    shell = 'export SHOAL_BENCH_RIVAL=$$; exec "$0" "$@"'
    with open(out, "wb") as said:
        process = subprocess.Popen(["sh", "-c", shell, str(python), str(program), str(port)], stdin=subprocess.DEVNULL, stdout=said,
                                   stderr=subprocess.STDOUT, start_new_session=True,
                                   env=dict(os.environ, RAY_raylet_start_wait_time_s="200", RAY_USAGE_STATS_ENABLED="0"))
        try:
            watch(lambda: b"ready" in out.read_bytes() or process.poll() is not None, 240, 0.2)
            if process.poll() is not None:
                raise Failed("Ray Serve ended: " + out.read_text(errors="replace").strip().splitlines()[-1][:120])
            yield port, process, "/"
        finally:
            for pid in family(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def no_op(table, options):
    """A kernel of WMLA in Python that parses an OIP request and answers it, beside the same in MLServer and Ray Serve."""
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(Served(options, plain=True)).grow(1)
        served.deploy("noop", {"kernel.py": KERNEL, "model.json": '{"name": "noop", "kernel_path": "kernel.py"}'},
                      policy={"kernel_min": 1, "kernel_max": 1, "task_batch_size": 64})
        pin(served.agents() + served.kernels(), SERVER_CPU)
        body = body_file(served.mesh, {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}]})
        port = free_ports(1)[0]
        stack.enter_context(running(options.out / "tests/bench/noop", "http", port, port=port, cpu=CLIENT_CPU))
        who = {"direct": lambda: ([], [port], {"path": "/"}),
               "Shoal": lambda: (served.agents() + served.kernels(), served.ports(), served.call("noop"))}
        missing = []
        for name, rival in (("MLServer", mlserver), ("Ray Serve", ray_serve)):
            try:
                at, process, path = stack.enter_context(rival(options, served.mesh.folder))
                pin(family(process), SERVER_CPU)
                who[name] = lambda at=at, process=process, path=path: (family(process), [at], {"path": path})
            except (Failed, OSError, subprocess.SubprocessError) as error:
                missing.append("%s: not measured (%s)" % (name, error))
        found = {}
        for _ in range(ROUNDS):
            for clients in (1, 16):
                for name, of in who.items():
                    pids, ports, more = of()
                    found.setdefault((name, clients), []).append(measured(options, pids, ports, clients, body=body, **more))

    def words(name):
        direct = middle(found["direct", 1], "p50")
        busy = statistics.median(one[1] for one in found[name, 16])
        return "%.0f/s a core (%.0f us of CPU), by the clock %.0f/s; alone p50 +%.0f us, p99 %.2f ms; 16 clients p50 %.2f, p99 %.2f ms" % (
            1e6 / busy, busy, middle(found[name, 16], "rate"), middle(found[name, 1], "p50") - direct, middle(found[name, 1], "p99") / 1e3,
            middle(found[name, 16], "p50") / 1e3, middle(found[name, 16], "p99") / 1e3)

    rivals = [name for name in who if name not in ("direct", "Shoal")]
    table.row("a model that does nothing, OIP in JSON, a Python kernel, plain HTTP", ">= 10,000/s a core, p50 <= +150 us; >= 10x rivals' "
              "rate a core, p99 <= 1/10", words("Shoal"), "; ".join(["%s: %s" % (name, words(name)) for name in rivals] + missing))


# ---- R4 ----


def gates(table, options):
    """Knative's: 1,000/s for a while, then from none to 3,000/s on 100 ms of work. Theirs scales; here a kernel in C takes 256 at one time,
    and one address has 256 connections at most: 2,000/s."""
    with Served(options, plain=True) as served:
        served.grow(1)
        served.noop("noop")
        served.noop("slow", delay_ms=100, batch=256, replicas=1)
        served.pin_agents()
        body, port = body_file(served.mesh, kilobyte()), free_ports(1)[0]
        with running(options.out / "tests/bench/noop", "http", port, port=port, cpu=CLIENT_CPU):
            direct = load(options, [port], body=body, clients=64, seconds=5, rate=1000, warm=10)
            through = load(options, served.ports(), body=body, clients=64, seconds=5, rate=1000, warm=10, **served.call("noop"))
            ramp = load(options, served.ports(), body=body, clients=250, seconds=15, rate=2000, ramp=1, warm=2, **served.call("slow"))
    table.row("1,000 requests/s for 5 s: p95 added (Knative's first gate)", "<= 2.5 ms (Knative: 10 ms)", "%.2f ms, %.0f not answered with 200" % (
        (through["p95"] - direct["p95"]) / 1e3, through["refused"] + through["broken"]), "the backend alone: p95 %.2f ms" % (direct["p95"] / 1e3))
    table.row("0 to 2,000 requests/s in 15 s on 100 ms of work, one kernel of 256 places: p95 (its ramp)", "<= 104 ms (Knative: 115 ms), no error",
              "%.1f ms, worst %.1f ms, %.0f of %.0f not answered with 200, %.0f not sent in time" % (
                  ramp["p95"] / 1e3, ramp["worst"] / 1e3, ramp["refused"] + ramp["broken"], ramp["requests"] + ramp["refused"] + ramp["broken"], ramp["late"]))


# ---- R5 ----

SLEEPY = KERNEL.replace("class Noop(Kernel):", """class Noop(Kernel):
    def on_kernel_start(self, kernel_context):
        import time
        time.sleep(0.5)
""")


def load_seconds(folder):
    """From the start of the kernel's program by itself to the word that it is ready."""
    path = folder / "alone.sock"
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "collective/python"), SHOAL_KERNEL_SOCKET=str(path), SHOAL_SERVICE_PROFILE="{}")
    began = time.monotonic()
    host = subprocess.Popen([PYTHON, "-m", "pyedt.kernel_host"], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        watch(path.exists, pause=0.001)
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(path))
            link.recv(1 << 16)
            return time.monotonic() - began
    finally:
        for pid in descendants(host.pid):
            os.kill(pid, signal.SIGKILL)
        host.wait()
        path.unlink(missing_ok=True)


def from_zero(table, options):
    took, alone, wrong = [], [], 0
    with Served(options) as served:
        served.grow(3)
        served.deploy("noop", {"kernel.py": SLEEPY, "model.json": '{"name": "noop", "kernel_path": "kernel.py"}'},
                      policy={"kernel_min": 0, "kernel_max": 2, "schedule_interval": 1, "kernel_delay_release_time": 1, "task_batch_size": 8})
        body = json.dumps({"inputs": []}).encode()
        package = served.mesh.folder / "package-noop"
        for number in range(7):
            served.ready("noop", 0)
            alone.append(load_seconds(package))
            began = time.monotonic()
            status, _ = served.ask("noop", body, host=number % 3)
            took.append(time.monotonic() - began)
            wrong += status != 200
    added = [a - b for a, b in zip(took, alone)]
    table.row("from no kernel: first answer, beyond the kernel's own load time (start and 0.5 s of sleep)", "<= 250 ms, none refused",
              spread(added) + ", %d refused" % wrong, "load time by itself: " + spread(alone))


# ---- R6 ----


def borrowed(table, options):
    """A burst takes slots of a job that trains on all others, and gives them back; the job's ledger has each sample once."""
    from training import SCRIPT, Outcome, Run, assert_exact
    taken, back, lost = [], [], 0
    with Served(options) as served:
        served.grow(3)
        served.noop("burst", batch=1, delay_ms=200, policy={"kernel_min": 1, "kernel_max": 4, "schedule_interval": 1,
                                                            "kernel_delay_release_time": 2})
        folder = served.mesh.folder / "model"
        folder.mkdir()
        (folder / "main.py").write_text(SCRIPT)
        run = Run(served.mesh, served.mesh.hosts[1], folder, workers=6, epochs=6, pace=0.05)
        run.until(lambda facts: run.members() == 5, 180, "the job trains on all slots but one")
        run.pace(0.05)
        for number in range(3):
            leave = threading.Event()
            told = []

            def client():
                while not leave.is_set():
                    told.append(served.ask("burst", b"{}", host=number % 3)[0])

            clients = [threading.Thread(target=client) for _ in range(8)]
            for one in clients:
                one.start()
            taken.append(watch(lambda: served.show("burst")["ready"] >= 2, 60, 0.02)[0])
            watch(lambda: served.show("burst")["ready"] == 4, 90, 0.05)
            leave.set()
            for one in clients:
                one.join()
            ended = time.monotonic()
            lost += sum(status != 200 for status in told)
            run.until(lambda facts: run.members() == 5, 90, "the job has its slots back")
            back.append(time.monotonic() - ended)
        exact = "ended as %s" % run.finish(180)["state"]
        with contextlib.suppress(AssertionError):
            assert_exact(Outcome(run, served.mesh.hosts[0], served.mesh.folder))
            exact = "0"
        run.started.clear()
    table.row("a burst on a model of one kernel takes a slot from elastic training: until the second kernel is ready", "<= 2 s, 0 steps lost",
              "%s, steps or samples lost: %s; %d requests refused" % (spread(taken, "s", 1), exact, lost),
              "slots back with the job after the burst, 2 s of release delay included: " + spread(back, "s", 1))


# ---- R7 ----


def node_dies(table, options):
    """Two nodes are asked, the third one has a kernel, too, and dies."""
    with Served(options, slots=1) as served:
        served.grow(3)
        served.noop("noop", replicas=3, batch=4, delay_ms=20)
        body = body_file(served.mesh, kilobyte())
        victim = served.mesh.hosts[2]
        at = threading.Timer(2.0, victim.lose)
        at.start()
        found = load(options, served.ports()[:2], body=body, clients=24, seconds=5, warm=2, **served.call("noop"))
        at.join()
        asked = [host for host in served.mesh.hosts if host is not victim]
    table.row("a node with one of three kernels of 4 places dies under 24 clients of the other two nodes", "errors <= in flight there (4 in the "
              "kernel, what waited there goes elsewhere)", "%.0f of %.0f requests not answered with 200; worst %.0f ms" % (
                  found["refused"] + found["broken"], found["requests"] + found["refused"], found["worst"] / 1e3),
              "p50 %.1f, p99 %.1f ms, of 20 ms of work; %d nodes left" % (found["p50"] / 1e3, found["p99"] / 1e3, len(asked)))


# ---- real models ----

MODELS = """
import sys, torch
from torch import nn
torch.manual_seed(7)
cnn = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                    nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
torch.jit.script(cnn).save(sys.argv[1] + "/cnn.pt")
import numpy, onnx
from onnx import TensorProto, helper, numpy_helper
def weights(name, *shape):
    return numpy_helper.from_array(numpy.random.default_rng(7).standard_normal(shape).astype("float32") * 0.03, name)
graph = helper.make_graph([helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
                           helper.make_node("Gemm", ["r", "w2", "b2"], ["y"])], "mlp",
                          [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
                          [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 10])],
                          [weights("w1", 64, 1024), weights("b1", 1024), weights("w2", 1024, 10), weights("b2", 10)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 8
onnx.save(model, sys.argv[1] + "/mlp.onnx")
"""

LOOP = """
import sys, time
kind, path, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "cnn":
    import torch
    torch.set_num_threads(1)
    model, x = torch.jit.load(path), torch.rand(rows, 1, 8, 8)
    def call():
        with torch.inference_mode():
            return model(x)
else:
    import numpy, onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session, x = onnxruntime.InferenceSession(path, options), numpy.random.rand(rows, 64).astype("float32")
    def call():
        return session.run(None, {"x": x})
for _ in range(50):
    call()
began, count, cpu = time.monotonic(), 0, time.process_time()
while time.monotonic() - began < 3:
    call()
    count += 1
print(count / (time.process_time() - cpu))
"""


def real_models(table, options):
    python = fetched("serve", ["mlserver", "onnxruntime", "onnx"], "onnxruntime", "onnx", "torch")
    with Served(options, plain=True, python=python) as served:
        served.grow(1)
        made = served.mesh.folder / "made"
        made.mkdir()
        subprocess.run([str(python), "-c", MODELS, str(made)], check=True, capture_output=True)
        for kind, file, shape in (("cnn", "cnn.pt", [1, 8, 8]), ("mlp", "mlp.onnx", [64])):
            served.deploy(kind, {file: (made / file).read_bytes(), "model.json": json.dumps({"name": kind, "mk_environments": [
                {"name": "OMP_NUM_THREADS", "value": "1"}]})}, policy={"kernel_min": 1, "kernel_max": 1, "task_batch_size": 32})
            pin(served.agents() + served.kernels(), SERVER_CPU)
            for rows in (1, 32):
                model_row(table, options, served, python, made / file, (kind, rows, shape))


def model_row(table, options, served, python, path, what):
    kind, rows, shape = what
    count = rows
    for one in shape:
        count *= one
    data = {"inputs": [{"name": "x" if kind == "mlp" else "input", "shape": [rows, *shape], "datatype": "FP32",
                        "data": [round((i * 37 % 101) / 101, 3) for i in range(count)]}]}
    body, ours, plain, alone = body_file(served.mesh, data), [], [], []
    for _ in range(ROUNDS - 1):
        done = subprocess.run(["taskset", "-c", str(SERVER_CPU), str(python), "-c", LOOP, kind, str(path), str(rows)], capture_output=True,
                              text=True, check=True)
        plain.append(float(done.stdout))
        kernels = served.kernels()
        alone.append(measured(options, kernels, served.ports(), 1, warm=5, body=body, **served.call(kind)))
        ours.append(measured(options, served.agents() + kernels, served.ports(), 16, warm=5, body=body, **served.call(kind)))
    rate = statistics.median(1e6 / one[1] for one in ours)
    loop = statistics.median(plain)
    table.row("%s, %d rows a request, JSON, 16 clients: calls a CPU second of agent and kernel, against a plain loop" % (
        "CNN in TorchScript" if kind == "cnn" else "MLP in ONNX", rows), ">= 0.9x", "%.2fx, %.0f/s a core" % (rate / loop, rate),
        "plain loop %.0f/s a core; by the clock %.0f/s; alone p50 %.2f ms" % (loop, middle(ours, "rate"), middle(alone, "p50") / 1e3))


PARTS = {"serve_router": router, "serve_two_nodes": two_nodes, "serve_noop": no_op, "serve_gates": gates, "serve_zero": from_zero,
         "serve_borrowed": borrowed, "serve_node_dies": node_dies, "serve_models": real_models}
