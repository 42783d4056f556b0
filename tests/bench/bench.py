"""What all parts of the benches share: the table, the conditions of a row, clients, and an elastic job that is watched through its
control pages. The parts themselves: run.py, services.py."""

import http.client
import json
import mmap
import os
import pathlib
import re
import shutil
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "docs" / "demo"), str(ROOT / "tests" / "system")]
from mesh import Failed, Mesh, job_id  # noqa: E402

PYTHON = str(ROOT / ".venv/bin/python")
STUCK_S = 30  # what has not happened by then is not waited for

# The driver of a job of C workers: the options are its bundle.
C_DRIVER = """
import os

os.execv(os.environ["BENCH_CWORKER"], ["cworker", "driver", os.path.abspath("bundle"), *%r])
"""


class Table:
    """Rows: what, goal, Shoal (C workers where there are workers), torch workers, beside it, conditions."""

    def __init__(self, options):
        self.options, self.rows, self.fresh = options, [], 0

    def row(self, what, goal, measured, beside="", torch="-"):
        self.rows.append([what, goal, measured, torch, beside])
        print("    %s: %s | %s | %s" % (what, measured, torch, beside), file=sys.stderr, flush=True)

    def part(self, name, function):
        """A part that fails says so in the table, and the others go on. Its rows get the conditions under which it ran."""
        if self.options.only and name not in self.options.only:
            return
        began, load = time.monotonic(), os.getloadavg()[0]
        self.options.scheduling, self.options.syncs = "", [plain_fdatasync(self.options.folder)]
        try:
            function(self, self.options)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.row(name, "", "not measured: %s" % str(error).splitlines()[0][:160])
        self.options.syncs.append(plain_fdatasync(self.options.folder))
        conditions = "%sload %.1f to %.1f; fdatasync p50 %.2f ms (%.2f to %.2f); %s" % (
            "agents: %s; " % self.options.scheduling if self.options.scheduling else "", load, os.getloadavg()[0],
            statistics.median(self.options.syncs), min(self.options.syncs), max(self.options.syncs), self.options.file_system)
        for row in self.rows[self.fresh:]:
            row.append(conditions)
        self.fresh = len(self.rows)
        print("    (%s: %.0f s; %s)" % (name, time.monotonic() - began, conditions), file=sys.stderr, flush=True)

    def show(self):
        print("| what | goal | Shoal (workers: in C) | workers: torch | beside it, same run | conditions |\n|---|---|---|---|---|---|")
        for row in self.rows:
            print("| %s |" % " | ".join(row))


def spread(values, unit="ms", scale=1e3):
    """Median and worst of what was measured."""
    if not values:
        return "unmeasured"
    return "median %.4g, worst %.4g %s (n=%d)" % (statistics.median(values) * scale, max(values) * scale, unit, len(values))


# ---- conditions ----


def file_system(folder):
    best = ("", "?")
    for line in open("/proc/mounts"):
        _, where, kind = line.split()[:3]
        if (str(folder) + "/").startswith(where.rstrip("/") + "/") and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]


def plain_fdatasync(folder, count=100):
    """p50 of a 4 KiB write and fdatasync inside a file that is there in full."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        fd, times = file.fileno(), []
        os.write(fd, bytes(1 << 20))
        os.fsync(fd)
        for i in range(count):
            os.pwrite(fd, os.urandom(4096), 4096 * (i % 256))
            began = time.monotonic()
            os.fdatasync(fd)
            times.append(time.monotonic() - began)
    return statistics.median(times) * 1e3


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")


def cpu_model():
    found = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())
    return found.group(1) if found else "?"


def scheduling(mesh):
    found = re.search(r"scheduling (.*)", mesh.hosts[0].log.read_text())
    return found.group(1) if found else "not said"


# ---- help ----


class Client:
    """One kept connection; Host.get() shakes hands each time."""

    def __init__(self, mesh, host):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.head = {"Authorization": "Bearer " + mesh.token(host)}
        self.connection = http.client.HTTPSConnection(host.address, host.api_port, context=context, timeout=10)

    def call(self, method, path, body=None, **head):
        self.connection.request(method, path, body, dict(self.head, **head))
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise Failed("%s %s: %d %s" % (method, path, answer.status, text[:120]))
        return json.loads(text)

    def get(self, path):
        return self.call("GET", path)

    def metric(self, name):
        self.connection.request("GET", "/v1/metrics", headers=self.head)
        found = re.search(r"^%s (\S+)" % name, self.connection.getresponse().read().decode(), re.M)
        return float(found.group(1)) if found else 0

    def run(self, *words, args=""):
        """A program that lies on every host: no file is sent."""
        form = json.dumps({"args": "--exec-start PyTorch %s --user-cmd -- " % args + " ".join(words)})
        body = "--shoal\r\nContent-Disposition: form-data; name=\"data\"\r\n\r\n%s\r\n--shoal--\r\n" % form
        return job_id(json.dumps(self.call("POST", "/platform/rest/deeplearning/v1/execs", body,
                                           **{"Content-Type": "multipart/form-data; boundary=shoal"})))

    def submit(self, framework, script, *words):
        args = "--exec-start %s --model-main main.py %s" % (framework, " ".join(words))
        body = ("--shoal\r\nContent-Disposition: form-data; name=\"file\"; filename=\"main.py\"\r\n\r\n%s\r\n--shoal--\r\n" % script)
        answer = self.call("POST", "/platform/rest/deeplearning/v1/execs?args=" + args.strip().replace(" ", "%20"), body,
                           **{"Content-Type": "multipart/form-data; boundary=shoal"})
        return job_id(json.dumps(answer))


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", open("/proc/%d/status" % pid).read()).group(1)) * 1024


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


class Worker:
    """A worker's words of the control page (include/shoal/worker.h, struct shoal_control_slot), as they are at one moment."""

    COMPUTING = 3  # enum shoal_activity

    def __init__(self, words):
        (_, _, self.epoch, _, self.complete, self.applied, _, self.activity, self.pid, _, _, _, _, self.computed_ns,
         self.computing_ns, self.first_epoch, self.first_ns) = struct.unpack_from("<7QIiII6Q", words)

    def computed_since(self, before, then_ns):
        """Nanoseconds of computing since `then_ns`, when its words were `before`: what was in hand counts from then on."""
        spent = self.computed_ns - before.computed_ns
        if before.activity == self.COMPUTING and before.computing_ns < then_ns:
            spent -= then_ns - before.computing_ns
        return max(0, spent)


class Page:
    """A host's control page of a job, mapped out of a process that has it open: what workers do, without asking anyone."""

    SLOTS, SLOT, FIRST = 64, 128, 128

    def __init__(self, pid):
        self.map = None
        for fd in pathlib.Path("/proc/%d/fd" % pid).iterdir():
            try:
                if "memfd:" not in os.readlink(fd) or os.stat(fd).st_size != self.FIRST + self.SLOTS * self.SLOT:
                    continue
                with open(fd, "rb") as file:
                    self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            except OSError:
                continue
        if self.map is None:
            raise Failed("process %d has no control page" % pid)

    def workers(self):
        """{worker id: Worker}"""
        found = {}
        for slot in range(self.SLOTS):
            at = self.FIRST + self.SLOT * slot
            worker = struct.unpack_from("<Q", self.map, at)[0]
            if worker:
                found[worker] = Worker(self.map[at:at + self.SLOT])
        return found


def watch(condition, seconds=STUCK_S, pause=0.0005):
    """Seconds until `condition` gives something, and that."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return time.monotonic() - began, value
        if time.monotonic() - began > seconds:
            raise Failed("not within %d s" % seconds)
        time.sleep(pause)


def set_nice(pid, nice):
    """Of every thread, and of its session as the kernel weighs it against other sessions (sched_autogroup)."""
    for task in pathlib.Path("/proc/%d/task" % pid).iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
    group = pathlib.Path("/proc/%d/autogroup" % pid)
    if group.exists():
        group.write_text(str(nice))


class Elastic:
    """A job of elastic workers in a mesh, watched through its control pages. `script`: of torch workers; or `c`: the options
    of C workers."""

    def __init__(self, mesh, workers, script=None, c=None):
        folder = mesh.folder / ("job-%d" % time.monotonic_ns())
        folder.mkdir()
        words = []
        if c is not None:
            script = C_DRIVER % c.split()
            shutil.copytree(ROOT / "tests/bench/c_engines/pyedt", folder / "pyedt", ignore=shutil.ignore_patterns("__pycache__"))
            words = ["--env", "BENCH_CWORKER=%s" % (mesh.binary.parent / "tests/system/cworker")]
        (folder / "main.py").write_text(script)
        self.mesh, self.wanted = mesh, workers
        answer = mesh.cli(mesh.hosts[0], "job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--model-dir", folder,
                          "--workers", workers, *words)
        self.job = job_id(json.dumps(answer))
        self.pages = {}

    def steady(self, hosts=None, count=None, seconds=60):
        """Until all workers (or `count` at least) have applied a step and no epoch has changed for a second."""
        hosts, count = hosts or self.mesh.hosts, count or self.wanted
        since, words = time.monotonic(), None
        end = since + seconds
        while time.monotonic() < end:
            self.pages = {}
            seen = self.mesh.workers(self.job, hosts)
            for host, pid, _, _ in seen.values():
                if host.name not in self.pages:
                    self.pages[host.name] = Page(pid)
            now = self.live(hosts).values()
            epochs = [worker.epoch for worker in now]
            if len(now) < count or len(set(epochs)) != 1 or min(worker.applied for worker in now) == 0 or epochs != words:
                since, words = time.monotonic(), epochs
            elif time.monotonic() - since > 1:
                self.renice([pid for _, pid, _, _ in seen.values()])
                return seen
            time.sleep(0.1)
        raise Failed("the job was not steady with %d workers within %d s: %s" % (count, seconds, self.mesh.job(self.job)))

    def renice(self, pids):
        for pid in pids if self.mesh.worker_nice is not None else ():
            set_nice(pid, self.mesh.worker_nice)

    def live(self, hosts):
        found = {}
        for host in hosts:
            if host.name in self.pages:
                found.update({w: v for w, v in self.pages[host.name].workers().items() if alive(v.pid)})
        return found

    def step_seconds(self, hosts, seconds=1.0):
        first = max(worker.applied for worker in self.live(hosts).values())
        time.sleep(seconds)
        return seconds / max(1, max(worker.applied for worker in self.live(hosts).values()) - first)

    def next_step(self, strike, lost, rest):
        """(seconds from the strike until the last survivor, on hosts `rest`, has completed a step of a later epoch; how long
        the survivor that computed most did so meanwhile). Both by the workers' own words."""
        pages = [self.pages[host.name] for host in rest if host.name in self.pages]
        before = {w: v for page in pages for w, v in page.workers().items() if w not in lost and alive(v.pid)}
        began_ns = time.monotonic_ns()
        strike()

        def all_on():
            now = {w: v for page in pages for w, v in page.workers().items() if w in before}
            return len(now) == len(before) and all(v.first_epoch > before[w].epoch for w, v in now.items()) and now

        now = watch(all_on)[1]
        return ((max(v.first_ns for v in now.values()) - began_ns) / 1e9,
                max(v.computed_since(before[w], began_ns) for w, v in now.items()) / 1e9)

    def end(self):
        self.mesh.shoal("job", "stop", self.job, "--node", self.mesh.hosts[0].url, check=False)
        self.mesh.until(lambda: (f := self.mesh.job(self.job)) and f["hasEnded"], 60, "the job's end")


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def new_mesh(options, count=3, kind=Mesh, **others):
    mesh = kind(options.out / "shoal", python=PYTHON, **others)
    mesh.worker_nice = options.nice
    try:
        mesh.grow(["alpha", "beta", "gamma", "delta"][:count])
    except BaseException:
        mesh.__exit__(None, None, None)
        raise
    options.scheduling = scheduling(mesh)
    options.syncs.append(plain_fdatasync(mesh.folder))
    return mesh
