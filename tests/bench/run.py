"""What Shoal takes, as a Markdown table: `make bench`, or run.py --out build/release [--only submit,idle] [--repeat 20].

Agents are real processes on loopback (docs/demo/mesh.py), the C worker runs under tests/system/comm_harness. Nothing here
passes or fails: a row that cannot be measured says why. Rivals run in turn with what they are compared to."""

import argparse
import http.client
import json
import mmap
import os
import pathlib
import re
import signal
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "docs" / "demo"))
from mesh import Failed, Mesh, job_id  # noqa: E402

PYTHON = str(ROOT / ".venv/bin/python")
DIGITS = (ROOT / "docs" / "demo" / "digits" / "main.py").read_text().replace("EPOCHS, BATCH, ENGINES = 100,", "EPOCHS, BATCH, ENGINES = 5000,")
STUCK_S = 30  # what has not happened by then is not waited for

# 16 MiB of gradients and next to no computing; every engine keeps BALLAST bytes resident.
WIDE = """
import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

ballast = []

def datasets():
    ballast.append(bytearray(b"x") * (%d << 20))
    x = torch.randn(4096, 2048, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x), TensorDataset(x[:1], x[:1])

torch.manual_seed(7)
model = nn.Linear(2048, 2048, bias=False)
fabric = FabricModel(model, datasets, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.001))
fabric.train(1000, 1, 3, validation_freq=1000, checkpoint_freq=1000)
"""


class Table:
    def __init__(self, only):
        self.only, self.rows = only, []

    def row(self, what, goal, measured, beside=""):
        self.rows.append((what, goal, measured, beside))
        print("    %s: %s %s" % (what, measured, beside), file=sys.stderr, flush=True)

    def part(self, name, function, *arguments):
        """A part that fails says so in the table, and the others go on."""
        if self.only and name not in self.only:
            return
        began = time.monotonic()
        try:
            function(self, *arguments)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            self.row(name, "", "not measured: %s" % str(error).splitlines()[0][:160])
        print("    (%s: %.0f s)" % (name, time.monotonic() - began), file=sys.stderr, flush=True)

    def show(self):
        print("| what | goal | Shoal | beside it, same run |\n|---|---|---|---|")
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
        self.connection = http.client.HTTPSConnection("127.0.0.1", host.api_port, context=context, timeout=10)

    def call(self, method, path, body=None, **head):
        self.connection.request(method, path, body, dict(self.head, **head))
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise Failed("%s %s: %d %s" % (method, path, answer.status, text[:120]))
        return json.loads(text)

    def get(self, path):
        return self.call("GET", path)

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
        """{worker id: (epoch word, complete, applied, pid)}"""
        found = {}
        for slot in range(self.SLOTS):
            at = self.FIRST + self.SLOT * slot
            worker, _, epoch, _, complete, applied, _, _, pid = struct.unpack_from("<7QIi", self.map, at)
            if worker:
                found[worker] = (epoch, complete, applied, pid)
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


class Elastic:
    """A job of elastic workers in a mesh, watched through its control pages."""

    def __init__(self, mesh, script, workers):
        folder = mesh.folder / ("job-%d" % time.monotonic_ns())
        folder.mkdir()
        (folder / "main.py").write_text(script)
        self.mesh, self.wanted = mesh, workers
        answer = mesh.cli(mesh.hosts[0], "job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--model-dir", folder,
                          "--workers", workers)
        self.job = job_id(json.dumps(answer))
        self.pages = {}

    def steady(self, hosts=None, count=None, seconds=60):
        """Until all workers (or `count` at least) have applied a step and no epoch has changed for a second."""
        hosts, count = hosts or self.mesh.hosts, count or self.wanted
        since, word = time.monotonic(), None
        end = since + seconds
        while time.monotonic() < end:
            self.pages = {}
            seen = self.mesh.workers(self.job, hosts)
            for host, pid, _, _ in seen.values():
                if host.name not in self.pages:
                    self.pages[host.name] = Page(pid)
            now = sorted(self.live(hosts).values())
            words = [w[0] for w in now]
            if len(now) < count or len(set(words)) != 1 or min(w[2] for w in now) == 0 or words != word:
                since, word = time.monotonic(), words
            elif time.monotonic() - since > 1:
                return seen
            time.sleep(0.1)
        raise Failed("the job was not steady with %d workers within %d s: %s" % (count, seconds, self.mesh.job(self.job)))

    def live(self, hosts):
        found = {}
        for host in hosts:
            if host.name in self.pages:
                found.update({w: v for w, v in self.pages[host.name].workers().items() if alive(v[3])})
        return found

    def step_seconds(self, hosts, seconds=1.0):
        first = max(w[2] for w in self.live(hosts).values())
        time.sleep(seconds)
        return seconds / max(1, max(w[2] for w in self.live(hosts).values()) - first)

    def until_next_step(self, names, lost, before):
        """From now until every worker but the lost ones has completed a step of another epoch."""
        pages = [self.pages[name] for name in names if name in self.pages]

        def all_on():
            now = {w: v for page in pages for w, v in page.workers().items() if w in before and w not in lost}
            return all(v[0] != before[w][0] and v[1] > before[w][1] for w, v in now.items())

        return watch(all_on)[0]

    def end(self):
        self.mesh.shoal("job", "stop", self.job, "--node", self.mesh.hosts[0].url, check=False)
        self.mesh.until(lambda: (f := self.mesh.job(self.job)) and f["hasEnded"], 60, "the job's end")


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def new_mesh(options, count=3, **others):
    mesh = Mesh(options.out / "shoal", python=PYTHON, **others)
    try:
        mesh.grow(["alpha", "beta", "gamma", "delta"][:count])
    except BaseException:
        mesh.__exit__(None, None, None)
        raise
    return mesh


# ---- rows ----


def submits(table, options):
    rates, p50s, p99s, worsts, cpu, fsyncs = [], [], [], [], [], []
    for _ in range(3):
        with new_mesh(options) as mesh:
            options.scheduling = scheduling(mesh)
            mesh.token(mesh.hosts[0])
            time.sleep(0.5)
            fsyncs.append(plain_fdatasync(mesh.folder))
            before = sum(cpu_seconds(host.process.pid) for host in mesh.hosts)
            done = subprocess.run([str(options.out / "tests/bench/submit"), str(mesh.folder / "token"), "seconds=3",
                                   *(str(host.api_port) for host in mesh.hosts)], capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                raise Failed(done.stderr.strip())
            spent = sum(cpu_seconds(host.process.pid) for host in mesh.hosts) - before
            found = {k: float(v) for k, v in re.findall(r"(\w+) ([\d.]+)", done.stdout)}
            if found["refused"]:
                print("    refused: " + done.stdout, file=sys.stderr)
            rates.append(found["rate"])
            p50s.append(found["p50"])
            p99s.append(found["p99"])
            worsts.append(found["worst"])
            cpu.append(spent / (found["submits"] + 64) * 1e3)
    table.row("durable submit, 8 clients, kept HTTPS connections to 3 nodes, jobs pending", ">= 800/s, p50 <= 10 ms",
              "%.0f/s (%s), p50 %.2f ms, p99 %.1f ms, worst %.0f ms" % (statistics.median(rates), ", ".join("%.0f" % r for r in rates),
              statistics.median(p50s), statistics.median(p99s), max(worsts)),
              "%.2f ms of CPU a submit (three agents together); fdatasync p50 %.2f ms" % (statistics.median(cpu), statistics.median(fsyncs)))


def first_line(table, options):
    ours, plain = [], []
    script = "import time; print(time.monotonic_ns(), flush=True)"
    with new_mesh(options) as mesh:
        clients = [Client(mesh, host) for host in mesh.hosts]
        for i in range(options.repeat):
            client = clients[i % 3]
            began = time.monotonic_ns()
            done = subprocess.run([PYTHON, "-c", script], capture_output=True, text=True)
            plain.append((int(done.stdout) - began) / 1e9)
            began = time.monotonic_ns()
            job = client.submit("PyTorch", script)
            mesh.until(lambda: client.get("/v1/jobs/" + job)["hasEnded"], STUCK_S, "the job's end", pause=0.1)
            said = mesh.until(lambda: mesh.shoal("job", "logs", job, "--node", mesh.hosts[i % 3].url).stdout.split(), 5, "the log")
            ours.append((int(said[0]) - began) / 1e9)
    table.row("submit to first line of a script that imports nothing", "p50 <= 70 ms", spread(ours),
              "the same script by fork and exec alone: " + spread(plain))


def harness(options, scenario, words, seed):
    done = subprocess.run([str(options.out / "tests/system/comm_harness"), str(options.out / "tests/system/cworker"), "scenario=" + scenario,
                           "rounds=0", "seed=%d" % seed, "options=" + words], capture_output=True, text=True, timeout=90)
    numbers = re.findall(r"([\d.]+) ms", done.stdout)
    return [float(n) / 1e3 for n in numbers]


def joins(table, options):
    c, torch, from_death = [], [], []
    for i in range(options.repeat):
        c += harness(options, "time_join", "elems=340000 v=8 samples=600 minibatch=2 epochs=1", i + 1)[:1]
    with new_mesh(options, 1, slots=3) as mesh:
        job = Elastic(mesh, DIGITS, 3)
        for _ in range(options.few):
            seen = job.steady()
            page = next(iter(job.pages.values()))
            old = set(seen) | set(page.workers())
            victim = sorted(seen)[-1]
            os.kill(seen[victim][1], signal.SIGKILL)
            died = time.monotonic()
            watch(lambda: set(page.workers()) - old)
            granted = time.monotonic()
            watch(lambda: any(v[2] for w, v in page.workers().items() if w not in old))
            torch.append(time.monotonic() - granted)
            from_death.append(time.monotonic() - died)
        job.end()
    table.row("join: slot granted to first committed step, framework loaded", "<= 0.5 s",
              "C worker (fork and exec of it under the harness): %s; torch: %s" % (spread(c), spread(torch)),
              "torch, from the death of the worker that is replaced: " + spread(from_death))


def worker_killed(table, options):
    for ballast, words in ((0, "0"), (2048, "2 GB")):
        c, c_all, torch, steps = [], [], [], []
        rounds = options.repeat if ballast == 0 else options.few
        for i in range(rounds):
            found = harness(options, "time_kill_small", "elems=4194304 v=3 samples=90 minibatch=1 epochs=1 ballast=%d" % ballast, i + 1)
            if len(found) == 2:
                c.append(found[0] - found[1])
                c_all.append(found[0])
        with new_mesh(options, 1, slots=3) as mesh:
            job = Elastic(mesh, WIDE % ballast, 3)
            for i in range(options.few if ballast == 0 else 3):
                seen = job.steady()
                steps.append(job.step_seconds(mesh.hosts, 0.5))
                before = job.live(mesh.hosts)
                victim = sorted(seen)[i % 3]
                os.kill(seen[victim][1], signal.SIGKILL)
                torch.append(job.until_next_step(["alpha"], {victim}, before))
            job.end()
        table.row("worker killed (%s resident): SIGKILL to the last survivor's complete, less recomputing, 16 MiB of gradients" % words,
                  "<= 15 ms same host", "C worker: %s; torch, recomputing and the step included: %s" % (spread(c), spread(torch)),
                  "C worker with computing: %s; a torch step without a death: %.1f ms" % (spread(c_all), statistics.median(steps) * 1e3))


def node_lost(table, options):
    killed, stopped = [], []
    with new_mesh(options) as mesh:
        job, why = Elastic(mesh, DIGITS, 6), ""
        for i in range(2 * options.few):
            time.sleep(1)
            leader = mesh.job(job.job)["leader"]
            try:
                job.steady(count=4)
            except Failed as error:
                why = "ended early: %s" % str(error)[:100]
                break
            victim = max((host for host in mesh.hosts if host.name != leader), key=lambda host: len(job.live([host])))
            rest = [host for host in mesh.hosts if host is not victim]
            before = job.live(mesh.hosts)
            lost = {w for w, v in job.live([victim]).items()}
            pids = victim.everything()
            number = signal.SIGKILL if i % 2 == 0 else signal.SIGSTOP
            signal_all(pids, number)
            took = job.until_next_step([host.name for host in rest], lost, before)
            (killed if i % 2 == 0 else stopped).append(took)
            if i % 2 == 0:
                victim.process.wait()
                victim.start()
            else:
                signal_all(pids, signal.SIGCONT)
        job.end()
    table.row("node lost (every process of a host that does not lead killed): time to the next step, torch", "<= 1.5 s", spread(killed, "s", 1), why)
    table.row("node silent (every process of it stopped, in place of packets dropped): time to the next step, torch", "<= 1.5 s",
              spread(stopped, "s", 1), "C worker: unmeasured, it has no agent")


def leader_lost(table, options):
    killed, stopped = [], []
    with new_mesh(options) as mesh:
        clients = [Client(mesh, host) for host in mesh.hosts]
        jobs = [clients[i % 3].submit("PyTorch", "print(%d)" % i, "--workerDeviceType", "gpu") for i in range(12)]
        for i in range(2 * options.few):
            time.sleep(2)
            leads = {host: {g["group"] for g in host.get("/v1/debug/groups") if g["leads"]} & set(jobs) for host in mesh.hosts}
            victim = max(mesh.hosts, key=lambda host: len(leads[host]))
            rest, led = [host for host in mesh.hosts if host is not victim], leads[victim]
            clients = [Client(mesh, host) for host in rest]
            for one in clients:
                one.get("/v1/debug/groups")
            victim.process.send_signal(signal.SIGKILL if i % 2 == 0 else signal.SIGSTOP)
            began, times = time.monotonic(), {}
            while led - set(times) and time.monotonic() - began < STUCK_S:
                for one in clients:
                    for group in one.get("/v1/debug/groups"):
                        if group["leads"] and group["group"] in led:
                            times.setdefault(group["group"], time.monotonic() - began)
                time.sleep(0.005)
            (killed if i % 2 == 0 else stopped).extend([times.get(job, STUCK_S) for job in led])
            if i % 2 == 0:
                victim.process.wait()
                victim.start()
            else:
                victim.process.send_signal(signal.SIGCONT)
            mesh.until(lambda: all(mesh.knows(host, 3) for host in mesh.hosts), 30, "three hosts again")
    table.row("job leader's host killed: new leader", "median <= 0.8 s, worst 1.5 s", spread(killed, "s", 1), "%d kills" % options.few)
    table.row("job leader's host silent (agent stopped, in place of packets dropped): new leader", "median <= 0.8 s, worst 1.5 s",
              spread(stopped, "s", 1), "%d stops" % options.few)


def all_reduce(table, options):
    ours, gloo = {}, {}
    for _ in range(3):
        done = subprocess.run([str(options.out / "tests/bench/allreduce"), "iterations=20"], capture_output=True, text=True, timeout=120)
        if "WRONG" in done.stdout or done.returncode != 0:
            raise Failed("a wrong sum: " + done.stdout + done.stderr)
        for kind, kib, median in re.findall(r"workers (.*?)\s+(\d+) KiB\s+median\s+([\d.]+)", done.stdout):
            ours.setdefault((kind, int(kib)), []).append(float(median))
        done = subprocess.run([PYTHON, str(ROOT / "tests/bench/gloo.py"), "20", "1024,16384"], capture_output=True, text=True, timeout=120)
        for kib, median in re.findall(r"gloo (\d+) KiB median ([\d.]+)", done.stdout):
            gloo.setdefault(int(kib), []).append(float(median))

    def compare(kind, kib):
        pairs = [theirs / mine for mine, theirs in zip(ours[kind, kib], gloo[kib])]
        return "%.1fx gloo (worst of 3 rounds %.1fx), %.0f us" % (statistics.median(pairs), min(pairs), statistics.median(ours[kind, kib]))

    for kib, text in ((1024, "1"), (16384, "16")):
        table.row("all-reduce %s MiB, 2 workers in one host, gradients in the arena" % text, ">= 8x gloo", compare("arena", kib),
                  "private buffers: %s; gloo %.0f us" % (compare("private", kib), statistics.median(gloo[kib])))
    table.row("all-reduce 16 MiB, 2 hosts over loopback", ">= 1.3x gloo", compare("2 hosts", 16384),
              "1 MiB: %s; gloo 16 MiB %.0f us" % (compare("2 hosts", 1024), statistics.median(gloo[16384])))


def idle(table, options):
    with new_mesh(options) as mesh:
        time.sleep(3)
        before = [cpu_seconds(host.process.pid) for host in mesh.hosts]
        time.sleep(20)
        shares = [(cpu_seconds(host.process.pid) - cpu) * 5 for host, cpu in zip(mesh.hosts, before)]
        sizes = [resident(host.process.pid) / 1e6 for host in mesh.hosts]
    table.row("idle agent in the 3-node mesh", "<= 16 MB RSS, <= 0.5 % of a core",
              "%.1f MB, %.2f %% of a core (worst %.1f MB, %.2f %%)" % (statistics.median(sizes), statistics.median(shares), max(sizes), max(shares)),
              "over 20 s")


PARTS = {"submit": submits, "first_line": first_line, "idle": idle, "all_reduce": all_reduce, "join": joins,
         "worker_killed": worker_killed, "node_lost": node_lost, "leader_lost": leader_lost}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "build/release")
    arguments.add_argument("--only", type=lambda text: text.split(","), help=", ".join(PARTS))
    arguments.add_argument("--repeat", type=int, default=20, help="rounds of what takes seconds")
    arguments.add_argument("--few", type=int, default=7, help="rounds of what takes long")
    options = arguments.parse_args()
    options.out = options.out.resolve()
    options.scheduling = "not asked"
    folder = os.environ.get("SHOAL_TEST_DIR", "/tmp")
    kind = file_system(os.path.realpath(folder))
    if kind == "tmpfs":
        sys.exit("%s is a tmpfs, where nothing is durable: name a folder on a disk in SHOAL_TEST_DIR" % folder)
    load, sync = os.getloadavg(), plain_fdatasync(folder)
    table = Table(options.only)
    for name, function in PARTS.items():
        table.part(name, function, options)
    print("Commit %s. %d cores, %s. Load average %.1f before, %.1f after. Files on %s; fdatasync p50 %.2f ms before, %.2f ms after. "
          "Scheduling class of the agents: %s.\n" % (commit(), os.cpu_count(), cpu_model(), load[0], os.getloadavg()[0], kind, sync,
                                                     plain_fdatasync(folder), options.scheduling))
    table.show()


if __name__ == "__main__":
    main()
