"""What Shoal takes, as a Markdown table: `make bench`, or run.py --out build/release [--only submit,idle] [--repeat 20].

Agents are real processes, on loopback (docs/demo/mesh.py) or, where hosts are lost, with a network of their own each
(tests/system/apart.py, as root). Workers are C workers (tests/system/cworker.c, started by c_engines/) in one column and
torch's in another. Nothing here passes or fails: a row that cannot be measured says why. Rivals run in turn with what they
are compared to, and each row says under which conditions it was measured."""

import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from bench import (PYTHON, ROOT, STUCK_S, Client, Elastic, Table, commit, cpu_model, cpu_seconds, file_system, new_mesh, plain_fdatasync,
                   resident, set_nice, signal_all, spread, watch)
import apart
import services
from mesh import Failed

UCX = next((str(path) for path in sorted(ROOT.glob(".venv/lib/python3*/site-packages/libucx/lib/libucp.so.0"))), "")  # .ci/setup
DIGITS = (ROOT / "docs" / "demo" / "digits" / "main.py").read_text().replace("EPOCHS, BATCH, ENGINES = 100,", "EPOCHS, BATCH, ENGINES = 5000,")

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

C_WIDE = "elems=4194304 v=3 samples=30000000 minibatch=1 epochs=1 ballast=%d"
C_SMALL = "elems=340000 v=8 samples=80000000 minibatch=2 epochs=1 compute_us=1000"  # as many parameters as the digits


# ---- rows ----


def submits(table, options):
    rates, p50s, p99s, worsts, cpu, fsyncs = [], [], [], [], [], []
    for _ in range(3):
        with new_mesh(options) as mesh:
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


def list_many(table, options):
    """What one node does for a list of the whole mesh; the others do the same at the same time."""
    for jobs in (100000, 1000000):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            done = subprocess.run([str(options.out / "tests/bench/list_many"), folder + "/index", str(jobs)], capture_output=True,
                                  text=True, timeout=300)
        if done.returncode != 0:
            raise Failed(done.stderr.strip())
        found = {k: float(v) for k, v in re.findall(r"(\w+) ([\d.]+)", done.stdout)}
        table.row("list of %d jobs, index filled directly, pages of 1,000" % jobs, "no turn over 20 ms",
                  "first page %.1f ms, all pages %.0f ms, 100 active ones %.1f ms, longest turn of the loop %.1f ms" % (
                      found["all_first_ms"], found["all_sum_ms"], found["active_first_ms"], found["longest_turn_ms"]),
                  "a filter that nothing matches %.0f ms, by name %.0f ms (in a thread); filling %.1f us a job; RSS + %.0f MiB, "
                  "pages of the index included" % (found["nothing_first_ms"], found["by_name_first_ms"], found["fill_us"],
                                                   found["rss_growth_kib"] / 1024))


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


STEPS = """
import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

def datasets():
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x), TensorDataset(x[:1], x[:1])

model = nn.Linear(64, 64)
FabricModel(model, datasets, nn.MSELoss(), torch.optim.Adam(model.parameters())).train(2, 8, 2)
"""


def first_steps(table, options):
    """Submit to first committed step: the first job of a host imports its framework, those after it find it loaded."""
    cold, warm = [], []
    for _ in range(options.few):
        with new_mesh(options, 1, slots=2) as mesh:
            client = Client(mesh, mesh.hosts[0])
            for times in (cold, warm, warm):
                began = time.monotonic()
                job = client.submit("edtPyTorch", STEPS, "--numWorker 2")
                watch(lambda: client.get("/v1/jobs/" + job)["steps"] > 0, pause=0.005)
                times.append(time.monotonic() - began)
                mesh.until(lambda: client.get("/v1/jobs/" + job)["hasEnded"], STUCK_S, "the job's end", pause=0.1)
                mesh.until(lambda: "the framework loaded waits" in mesh.hosts[0].log.read_text(), 60, "an interpreter waits", pause=0.1)
    table.row("submit to first committed step, 2 torch workers, a host that has run such a job", "<= 1.2 s", "-",
              "the first job of a host: " + spread(cold), torch=spread(warm))


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
        job = Elastic(mesh, 3, DIGITS)
        for _ in range(options.few):
            seen = job.steady()
            page = next(iter(job.pages.values()))
            old = set(seen) | set(page.workers())
            victim = sorted(seen)[-1]
            os.kill(seen[victim][1], signal.SIGKILL)
            died = time.monotonic()
            watch(lambda: set(page.workers()) - old)
            granted = time.monotonic()
            watch(lambda: any(v.applied for w, v in page.workers().items() if w not in old))
            torch.append(time.monotonic() - granted)
            from_death.append(time.monotonic() - died)
        job.end()
    table.row("join: slot granted to first committed step, framework loaded", "<= 0.5 s",
              "fork and exec of it under the harness: " + spread(c),
              "torch, from the death of the worker that is replaced: " + spread(from_death), torch=spread(torch))


def kill_rounds(options, rounds, **workers):
    """Kills of one of three workers on a host: (what is not computing, all, steps without a death), in seconds."""
    rests, wholes, steps = [], [], []
    with new_mesh(options, 1, slots=3) as mesh:
        job = Elastic(mesh, 3, **workers)
        for i in range(rounds):
            seen = job.steady()
            steps.append(job.step_seconds(mesh.hosts, 0.5))
            victim = sorted(seen)[i % 3]
            whole, computing = job.next_step(lambda: os.kill(seen[victim][1], signal.SIGKILL), {victim}, mesh.hosts)
            print("    killed: %.1f ms, computing %.1f" % (whole * 1e3, computing * 1e3), file=sys.stderr, flush=True)
            rests.append(whole - computing)
            wholes.append(whole)
        job.end()
    return rests, wholes, steps


def worker_killed(table, options):
    for ballast, words in ((0, "0"), (2048, "2 GB")):
        rest, whole, steps = kill_rounds(options, options.repeat, c=C_WIDE % ballast)
        torch_rest, torch_whole, torch_steps = kill_rounds(options, options.repeat, script=WIDE % ballast)
        table.row("worker killed (%s resident): SIGKILL to the last survivor's complete, less recomputing, 16 MiB of gradients, 3 workers"
                  % words, "<= 15 ms same host", spread(rest),
                  "recomputing included: C %s, torch %s; a step without a death: C %.1f ms, torch %.1f ms" % (
                      spread(whole), spread(torch_whole), statistics.median(steps) * 1e3, statistics.median(torch_steps) * 1e3),
                  torch=spread(torch_rest))


def strike_host(host, silent):
    """A host is gone: all its processes at once, or its packets only (it goes on, and hears nobody)."""
    if silent:
        host.cut()
    else:
        signal_all(host.everything(), signal.SIGKILL)


def lost_rounds(options, silent, rounds, **workers):
    """Hosts lost out of fresh meshes of three, in turn one that does not lead the job and the one that does: seconds to the
    next step, of each sort."""
    times = ([], [])
    for i in range(rounds):
        with new_mesh(options, kind=apart.ApartMesh) as mesh:
            job = Elastic(mesh, 6, **workers)
            job.steady()
            leader = mesh.job(job.job)["leader"]
            victim = next(host for host in mesh.hosts if (host.name == leader) == bool(i % 2))
            rest = [host for host in mesh.hosts if host is not victim]
            took = job.next_step(lambda: strike_host(victim, silent), set(job.live([victim])), rest)[0]
            print("    lost%s%s: %.3f s" % (" (silent)" if silent else "", " (leader)" if i % 2 else "", took), file=sys.stderr, flush=True)
            times[i % 2].append(took)
    return times


def must_be_apart():
    if apart.why_not():
        raise Failed("hosts cannot be apart here: " + apart.why_not())


def host_lost(table, options, silent, what):
    must_be_apart()
    c, torch = (lost_rounds(options, silent, options.repeat, **workers) for workers in ({"c": C_SMALL}, {"script": DIGITS}))
    table.row(what + ": time to the next step, 3 hosts apart, 6 workers", "<= 1.5 s", spread(c[0] + c[1], "s", 1),
              "one that led the job: C %s, torch %s; one that did not: C %s, torch %s" % tuple(
                  spread(times, "s", 1) for times in (c[1], torch[1], c[0], torch[0])), torch=spread(torch[0] + torch[1], "s", 1))


def node_lost(table, options):
    host_lost(table, options, False, "node lost (every process of the host killed)")


def node_silent(table, options):
    host_lost(table, options, True, "node silent (its packets dropped)")


def new_leaders(mesh, jobs, silent):
    """The host that leads most of the jobs is struck: seconds until each of its jobs is led elsewhere."""
    leads = {host: {g["group"] for g in host.get("/v1/debug/groups") if g["leads"]} & set(jobs) for host in mesh.hosts}
    victim = max(mesh.hosts, key=lambda host: len(leads[host]))
    clients, led = [Client(mesh, host) for host in mesh.hosts if host is not victim], leads[victim]
    for one in clients:
        one.get("/v1/debug/groups")
    began, times = time.monotonic(), {}
    strike_host(victim, silent)
    while led - set(times) and time.monotonic() - began < STUCK_S:
        for one in clients:
            for group in one.get("/v1/debug/groups"):
                if group["leads"] and group["group"] in led:
                    times.setdefault(group["group"], time.monotonic() - began)
        time.sleep(0.005)
    if silent:
        victim.cut(off=False)
    else:
        victim.process.wait()
        victim.start()
    return [times.get(job, STUCK_S) for job in led]


def host_that_leads_lost(table, options, silent, what):
    must_be_apart()
    times = []
    with new_mesh(options, kind=apart.ApartMesh) as mesh:
        clients = [Client(mesh, host) for host in mesh.hosts]
        jobs = [clients[i % 3].submit("PyTorch", "print(%d)" % i, "--workerDeviceType", "gpu") for i in range(12)]
        for _ in range(options.repeat):
            time.sleep(2)  # support is mutual again, and no vote is bound to a leader that was
            times += new_leaders(mesh, jobs, silent)
            mesh.until(lambda: all(mesh.knows(host, 3) for host in mesh.hosts), 60, "three hosts again")
    table.row(what + ": new leader of its jobs", "median <= 0.8 s, worst 1.5 s", spread(times, "s", 1), "%d strikes" % options.repeat)


def leader_lost(table, options):
    host_that_leads_lost(table, options, False, "job leader's host killed")


def leader_silent(table, options):
    host_that_leads_lost(table, options, True, "job leader's host silent (its packets dropped)")


def all_reduce(table, options):
    ours, gloo = {}, {}
    for _ in range(options.repeat):  # in turn, so that what else runs here disturbs both
        for seal, words, more in (("", [], {"SHOAL_TRANSPORT": "tcp"}), (" sealed", ["hosts=2"], {"SHOAL_FABRIC_SEALED": "lo"}),
                                  (" ucx", ["hosts=2"], {"SHOAL_TRANSPORT": "ucx", "SHOAL_UCX": UCX})):
            if "ucx" in seal and not UCX:
                continue
            done = subprocess.run([str(options.out / "tests/bench/allreduce"), "iterations=20", *words], capture_output=True, text=True,
                                  timeout=120, env={**os.environ, **more})
            if "WRONG" in done.stdout or done.returncode != 0:
                raise Failed("a wrong sum: " + done.stdout + done.stderr)
            for kind, kib, median in re.findall(r"workers (.*?)\s+(\d+) KiB\s+median\s+([\d.]+)", done.stdout):
                ours.setdefault((kind + seal, int(kib)), []).append(float(median))
        done = subprocess.run([PYTHON, str(ROOT / "tests/bench/gloo.py"), "20", "1024,16384"], capture_output=True, text=True, timeout=120)
        for kib, median in re.findall(r"gloo (\d+) KiB median ([\d.]+)", done.stdout):
            gloo.setdefault(int(kib), []).append(float(median))

    def compare(kind, kib):
        pairs = [theirs / mine for mine, theirs in zip(ours[kind, kib], gloo[kib])]
        return "%.2fx gloo (worst of %d rounds %.2fx), %.0f us" % (
            statistics.median(pairs), len(pairs), min(pairs), statistics.median(ours[kind, kib]))

    for kib, text in ((1024, "1"), (16384, "16")):
        table.row("all-reduce %s MiB, 2 workers in one host, gradients in the arena" % text, ">= 8x gloo", compare("arena", kib),
                  "private buffers: %s; gloo %.0f us" % (compare("private", kib), statistics.median(gloo[kib])))
    table.row("all-reduce 16 MiB, 2 hosts over loopback", ">= 1.3x gloo", compare("2 hosts", 16384),
              "1 MiB: %s; gloo 16 MiB %.0f us" % (compare("2 hosts", 1024), statistics.median(gloo[16384])))
    if UCX:
        table.row("the same over UCX", ">= 2.5x gloo", compare("2 hosts ucx", 16384), "1 MiB: %s; 16 MiB %.2fx our TCP" % (
            compare("2 hosts ucx", 1024), statistics.median(tcp / ucx for tcp, ucx in zip(ours["2 hosts", 16384], ours["2 hosts ucx", 16384]))))
    table.row("the same, sealed", "-", compare("2 hosts sealed", 16384), "1 MiB: %s" % compare("2 hosts sealed", 1024))


SAMPLES = (("cnn", 2), ("cnn", 8), ("mlp", 2))  # model, mini-batches a step
SAMPLE_SECONDS = 4


def samples_script(name, virtual, fuse):
    text = (ROOT / "tests/bench/samples.py").read_text()
    return text.replace('MODEL, VIRTUAL, FUSE = "mlp", 2, False', "MODEL, VIRTUAL, FUSE = %r, %d, %r" % (name, virtual, fuse))


def elastic_rate(mesh, hosts, workers, name, virtual, fuse=False):
    """(samples a second of the clock, of all workers' CPU time) of a job of so many workers, on the first hosts of the mesh."""
    each = {"cnn": 16, "mlp": 64}[name] * virtual
    job = Elastic(mesh, workers, samples_script(name, virtual, fuse))
    try:
        pids = [pid for _, pid, _, _ in job.steady(hosts).values()]
        first, cpu, began = max(w.applied for w in job.live(hosts).values()), sum(map(cpu_seconds, pids)), time.monotonic()
        time.sleep(SAMPLE_SECONDS)
        done = (max(w.applied for w in job.live(hosts).values()) - first) * each
        return done / (time.monotonic() - began), done / max(0.01, sum(map(cpu_seconds, pids)) - cpu)
    finally:
        job.end()


def rival_rate(env, kind, name, virtual):
    done = subprocess.run([PYTHON, str(ROOT / "tests/bench/samples.py"), kind, name, str(virtual), str(SAMPLE_SECONDS)],
                          capture_output=True, text=True, timeout=200, env=env)
    found = re.search(r"samples a second ([\d.]+), of CPU time ([\d.]+)", done.stdout)
    if done.returncode != 0 or not found:
        raise Failed("samples of %s: %s" % (kind, done.stdout + done.stderr))
    return float(found.group(1)), float(found.group(2))


def samples(table, options):
    """Samples a second of two models: plain PyTorch, DDP over gloo, our workers on one host and on two, in turn."""
    fabric = options.out / "fabric"
    with tempfile.TemporaryDirectory() as folder, new_mesh(options, 1) as one, new_mesh(options, 2, slots=1) as two:
        env = {**os.environ, "FABRIC_HOME": str(fabric), "RESULT_DIR": folder, "OMP_NUM_THREADS": "1",
               "PYTHONPATH": "%s:%s" % (fabric / "libs/fabric.zip", fabric / "tools")}
        for name, virtual in SAMPLES:
            rates = {}
            for _ in range(min(options.repeat, 3)):
                for kind, measure in (("plain", lambda: rival_rate(env, "plain", name, virtual)),
                                      ("whole", lambda: rival_rate(env, "whole", name, virtual)),
                                      ("ddp", lambda: rival_rate(env, "ddp", name, virtual)),
                                      ("1", lambda: elastic_rate(one, one.hosts, 1, name, virtual)),
                                      ("fused", lambda: elastic_rate(one, one.hosts, 1, name, virtual, True)),
                                      ("2", lambda: elastic_rate(one, one.hosts, 2, name, virtual)),
                                      ("2 hosts", lambda: elastic_rate(two, two.hosts, 2, name, virtual))):
                    rates.setdefault(kind, []).append(measure())
            samples_rows(table, name, virtual, rates)


def samples_rows(table, name, virtual, rates):
    what = "samples a second, %s, %d mini-batches of %d a step: " % (name.upper(), virtual, {"cnn": 16, "mlp": 64}[name])

    def ratio(ours, theirs, times=1, cpu=False):
        pairs = [a[cpu] / (times * b[cpu]) for a, b in zip(rates[ours], rates[theirs])]
        return "%.2fx (%.2f to %.2f)" % (statistics.median(pairs), min(pairs), max(pairs))

    def rate(kind):
        return "%.0f" % statistics.median(clock for clock, _ in rates[kind])

    table.row(what + "1 worker against plain PyTorch doing the same", ">= 0.97x", "%s, %s/s" % (ratio("1", "plain"), rate("1")),
              "plain %s/s; by CPU time %s" % (rate("plain"), ratio("1", "plain", cpu=True)))
    table.row(what + "1 worker with fuse, against one batch", ">= 0.95x", "%s, %s/s" % (ratio("fused", "whole"), rate("fused")),
              "one batch %s/s; by CPU time %s" % (rate("whole"), ratio("fused", "whole", cpu=True)))
    for kind, where, efficient, gloo in (("2", "on a host", "0.95x", {"cnn": "1.8x", "mlp": "1.6x"}[name]),
                                         ("2 hosts", "on two hosts", {"cnn": "0.90x", "mlp": "0.85x"}[name], {"cnn": "1.6x", "mlp": "1.4x"}[name])):
        table.row(what + "2 workers %s against twice 1 worker" % where, ">= " + efficient, "%s, %s/s" % (ratio(kind, "1", 2), rate(kind)),
                  "by CPU time %s" % ratio(kind, "1", cpu=True))
        table.row(what + "2 workers %s against DDP with gloo" % where, ">= " + gloo, ratio(kind, "ddp"), "DDP %s/s" % rate("ddp"))


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


# ---- many short jobs ----


def job_cpu(mesh):
    """Seconds of all agents, and of their spawn helpers with all that ended below them: runners and what those ran."""
    agents = helpers = 0.0
    for host in mesh.hosts:
        agents += cpu_seconds(host.process.pid)
        for pid in pathlib.Path("/proc/%d/task/%d/children" % (host.process.pid, host.process.pid)).read_text().split():
            fields = open("/proc/%s/stat" % pid).read().rpartition(")")[2].split()
            helpers += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return agents, helpers


def insist(submit):
    """An answer 503 says: later."""
    for _ in range(2000):
        try:
            return submit()
        except Failed as error:
            if ": 503 " not in str(error):
                raise
            time.sleep(0.01)
    raise Failed("refused for 20 s")


def scripts(submit):
    """How 6 clients submit `count` scripts by turns."""
    def send(mesh, count):
        def client(number):
            mine = Client(mesh, mesh.hosts[number % 3])
            for _ in range(count // 6):
                insist(lambda: submit(mine))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return send


def programs(options, program):
    """The same for a program that lies on every host. The clients are in C: six in Python took more CPU than the agents."""
    def send(mesh, count):
        done = subprocess.run([options.out / "tests/bench/submit", mesh.folder / "token", "clients=6", "count=%d" % count, "run=" + program,
                               *(str(host.api_port) for host in mesh.hosts)], capture_output=True, text=True, timeout=120)
        if done.returncode != 0 or " refused 0 " not in done.stdout:
            raise Failed((done.stderr or done.stdout).strip())
    return send


def burst(mesh, send, count):
    """(jobs a second, ms of agents' CPU a job, ms of runners and programs a job) of `count` jobs, until the list at one node has none left."""
    asked = Client(mesh, mesh.hosts[0])
    cpu, began = job_cpu(mesh), time.monotonic()
    send(mesh, count)
    watch(lambda: not asked.get("/v1/jobs?active=true&limit=1")["jobs"], 120, 0.02)
    took, (agents, helpers) = time.monotonic() - began, [b - a for a, b in zip(cpu, job_cpu(mesh))]
    return count / took, agents / count * 1e3, helpers / count * 1e3


def one_by_one(mesh, submit, count=40):
    """Seconds from submit to the end as a client sees it."""
    took, clients = [], [Client(mesh, host) for host in mesh.hosts]
    for number in range(count):
        began = time.monotonic()
        job = submit(clients[number % 3])
        watch(lambda: clients[number % 3].get("/v1/jobs/" + job)["hasEnded"], pause=0.002)
        took.append(time.monotonic() - began)
    return took


def xargs(count, *words):
    began = time.monotonic()
    subprocess.run(["xargs", "-P", str(os.cpu_count()), "-n", "1", *words], input="\n".join(map(str, range(count))), text=True, check=True)
    return count / (time.monotonic() - began)


def jobs_row(table, options, what, goal, submit, send, count, rival):
    with new_mesh(options, slots=4) as mesh:
        mesh.token(mesh.hosts[0])
        time.sleep(1)
        alone = one_by_one(mesh, submit)
        rate, agents, helpers = burst(mesh, send, count)
        clients = [Client(mesh, host) for host in mesh.hosts]
        longest = max(client.metric("shoal_loop_turn_longest_seconds") for client in clients) * 1e3
        late = sum(client.metric("shoal_loop_turns_late_total") for client in clients)
    table.row(what, goal, "%.0f jobs/s, p50 %.0f ms alone; CPU a job: agents %.1f ms, runners with the program %.1f ms" % (
        rate, statistics.median(alone) * 1e3, agents, helpers),
        "xargs -P %d: %.0f/s; longest turn of a loop %.0f ms, %d over 20 ms" % (os.cpu_count(), rival(), longest, late))


def noop_jobs(table, options):
    jobs_row(table, options, "no-op jobs (`/bin/true`), 300 at once, 12 slots", ">= 300/s, p50 <= 30 ms, <= 2 ms CPU",
             lambda client: client.run("/bin/true"), programs(options, "/bin/true"), 300, lambda: xargs(1000, "/bin/true"))


def python_jobs(table, options):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        script = pathlib.Path(folder) / "main.py"
        script.write_text("pass\n")
        for what, words in (("cold", ()), ("`--warm`", ("--msd-warm",))):
            def submit(client, words=words):
                return client.submit("PyTorch", "pass\n", *words)
            jobs_row(table, options, "no-op Python jobs, %s, 120 at once, 12 slots" % what, ">= 0.9 of xargs with the same Python",
                     submit, scripts(submit), 120, lambda: xargs(120, PYTHON, str(script)))


def straggler(table, options):
    """From a slot's release, or a job's acknowledgement where that is later, to the next start on that slot: by the jobs' own clocks."""
    script = 'echo begin $(date +%s%N) "$TASK_JOB_ID" "$PWD" "$TASK_ID" >> FILE; sleep 0.1; echo end $(date +%s%N) "$TASK_JOB_ID" >> FILE'
    gaps = []
    with new_mesh(options, slots=2) as mesh:
        lines = pathlib.Path(mesh.folder) / "straggler"
        program = pathlib.Path(mesh.folder) / "straggler.sh"
        program.write_text("#!/bin/sh\n" + script.replace("FILE", str(lines)) + "\n")
        program.chmod(0o755)
        clients = [Client(mesh, host) for host in mesh.hosts]
        time.sleep(0.5)
        acknowledged = {}
        for number in range(60):
            job = insist(lambda: clients[number % 3].run(str(program)))
            acknowledged[job] = time.time_ns()
        for job in acknowledged:
            watch(lambda: clients[0].get("/v1/jobs/" + job)["hasEnded"], 120, 0.05)
        words = [line.split() for line in lines.read_text().splitlines()]
    ends = {job: int(ns) for what, ns, job, *_ in words if what == "end"}
    slots = {}
    for what, ns, job, *place in words:
        if what == "begin":
            slots.setdefault((place[0].replace(job, ""), place[1]), []).append((int(ns), job))
    for runs in slots.values():
        runs.sort()
        for (_, last), (began, job) in zip(runs, runs[1:]):
            gaps.append((began - max(ends[last], acknowledged[job])) / 1e9)
    table.row("60 jobs of 0.1 s on 3 nodes with 2 slots each: from a slot's release to its next start", "worst <= 50 ms", spread(gaps),
              "%d gaps on %d slots, what ends and starts a process included" % (len(gaps), len(slots)))


def array_tasks(table, options):
    with new_mesh(options, slots=4) as mesh:
        mesh.token(mesh.hosts[0])
        client, rates = Client(mesh, mesh.hosts[0]), []
        for _ in range(3):
            time.sleep(1)
            cpu, began = job_cpu(mesh), time.monotonic()
            job = insist(lambda: client.run("/bin/true", args="--msd-array 0-999"))
            watch(lambda: client.get("/v1/jobs/" + job)["hasEnded"], 120, 0.02)
            took, (agents, helpers) = time.monotonic() - began, [b - a for a, b in zip(cpu, job_cpu(mesh))]
            facts = client.get("/v1/jobs/" + job)
            if facts["state"] != "FINISHED":
                raise Failed("an array ended as %s: %s" % (facts["state"], facts["detail"]))
            rates.append((1000 / took, agents, helpers))
    rates.sort()
    table.row("1,000 tasks of one array, `/bin/true`, 12 slots", ">= 300/s, <= 2 ms CPU", "%.0f tasks/s; CPU a task: agents %.1f ms, "
              "runners with the program %.1f ms" % rates[1], "slowest %.0f, fastest %.0f/s" % (rates[0][0], rates[2][0]))


def rss_ended(table, options):
    """Groups of jobs that ended last are in memory up to a bound, so the first thousand costs what the second does not."""
    send = programs(options, "/bin/true")
    with new_mesh(options, slots=4) as mesh:
        mesh.token(mesh.hosts[0])
        burst(mesh, send, 60)
        grown = []
        for _ in range(2):
            before = [resident(host.process.pid) for host in mesh.hosts]
            burst(mesh, send, 1000)
            time.sleep(4)  # an ended job is forgotten after 2 s
            grown.append(", ".join("%.1f" % ((resident(host.process.pid) - size) / 1e6) for host, size in zip(mesh.hosts, before)))
        groups = [Client(mesh, host).metric("shoal_groups") for host in mesh.hosts]
    table.row("memory after 1,000 and 2,000 ended jobs", "<= 2 kB an ended job", "the first thousand grew agents by %s kB a job, the "
              "second by %s" % tuple(grown), "groups in memory: %s" % ", ".join(map(str, groups)))


def many_pending(table, options):
    """100,000 unless --pending says otherwise: at 1,000 submits a second it takes two minutes."""
    with new_mesh(options) as mesh:
        mesh.token(mesh.hosts[0])
        client = Client(mesh, mesh.hosts[0])

        def known():
            return client.metric("shoal_groups") + client.metric("shoal_groups_parked")

        def submit(seconds):
            done = subprocess.run([str(options.out / "tests/bench/submit"), str(mesh.folder / "token"), "seconds=%d" % seconds,
                                   *(str(host.api_port) for host in mesh.hosts)], capture_output=True, text=True, timeout=120, check=True)
            return int(re.search(r"refused (\d+)", done.stdout)[1])

        refused = submit(2)
        before, first, began = [resident(host.process.pid) for host in mesh.hosts], known(), time.monotonic()
        while known() < options.pending:
            refused += submit(10)
        took, count = time.monotonic() - began, known() - first
        mesh.until(lambda: client.metric("shoal_groups") < 1400, 60, "most are parked")
        grown = [(resident(host.process.pid) - size) / count / 1e3 for host, size in zip(mesh.hosts, before)]
        host, groups = mesh.hosts[1], client.metric("shoal_groups")
        host.kill()
        began = time.monotonic()
        host.start()
        mesh.until(lambda: mesh.knows(host, 3), 120, "it is back")
        back = time.monotonic() - began
    table.row("%d pending jobs" % (first + count), "taken, bounded memory", "%.0f submits/s, %d refused; %s kB a job and agent, %d groups in memory" % (
        count / took, refused, ", ".join("%.1f" % kb for kb in grown), groups), "an agent that is killed answers again after %.1f s" % back)


def asleep(table, options):
    done = subprocess.run([str(options.out / "tests/bench/asleep"), "100000", "1000000"], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    found = {k: float(v) for k, v in re.findall(r"(\w+) ([\d.]+)", done.stdout)}
    table.row("100,000 parked jobs and 1,000,000 ended ones in one core", "<= 2 kB an ended job", "%.0f bytes a parked job, %.0f an ended one" % (
        found["row_bytes"], found["record_bytes"]), "restored in %.1f s of CPU; a minute of upkeep alone costs %.1f s" % (found["fill_s"], found["minute_s"]))


PARTS = {"submit": submits, "first_line": first_line, "first_step": first_steps, "idle": idle, "all_reduce": all_reduce,
         "samples": samples, "join": joins,
         "worker_killed": worker_killed, "node_lost": node_lost, "node_silent": node_silent, "leader_lost": leader_lost,
         "leader_silent": leader_silent, "noop_jobs": noop_jobs, "python_jobs": python_jobs, "rss_ended": rss_ended, "array_tasks": array_tasks, "straggler": straggler,
         "list_many": list_many,
         "many_pending": many_pending, "asleep": asleep, **services.PARTS}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=pathlib.Path, default=ROOT / "build/release")
    arguments.add_argument("--only", type=lambda text: text.split(","), help=", ".join(PARTS))
    arguments.add_argument("--repeat", type=int, default=20, help="rounds of what is killed, lost and started")
    arguments.add_argument("--pending", type=int, default=100000, help="jobs of many_pending")
    arguments.add_argument("--few", type=int, default=7, help="joins of torch workers")
    arguments.add_argument("--nice", type=int, help="of workers, clients and rivals, instead of what they have: -20 where other "
                           "work shares the cores, to see what would be seen without it (root)")
    options = arguments.parse_args()
    if options.nice is not None:
        set_nice(os.getpid(), options.nice)
    options.out = options.out.resolve()
    options.folder = os.path.realpath(os.environ.get("SHOAL_TEST_DIR", "/tmp"))
    options.file_system = file_system(options.folder)
    if options.file_system == "tmpfs":
        sys.exit("%s is a tmpfs, where nothing is durable: name a folder on a disk in SHOAL_TEST_DIR" % options.folder)
    table = Table(options)
    for name, function in PARTS.items():
        table.part(name, function)
    print("Commit %s. %d cores, %s. Workers, clients and rivals are in the normal scheduling class, %s.\n" % (
        commit(), os.cpu_count(), cpu_model(), "workers at nice 5" if options.nice is None else "all at nice %d" % options.nice))
    table.show()


if __name__ == "__main__":
    main()
