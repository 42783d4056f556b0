"""Figures of training on a card: a GPT of 124 million parameters with autocast to bfloat16 and AdamW, tokens drawn at random.

    samples.py [--device cuda|cpu] [--seconds N] [--only NAME,NAME] [--out FOLDER] [--size gpt2|tiny]

    alone    a plain loop that never waits for the device, FabricModel with one engine, the plain loop again: in one process (B2 of
             reference/data-plane); then a plain loop that logs its loss at each step, the same with deterministic kernels, and FabricModel as
             a job, each a process of its own
    shared   two processes on one card: DistributedDataParallel over gloo, and FabricModel as a job of two engines (B3)
    joins    a second engine takes parameters and optimizer state while the first one trains (B8)

With a word more it is one of these processes: `samples.py run KIND SIZE BATCH STEPS` prints one line of JSON, and as the script of a job it is
FabricModel. Times are those between steps at the host, without the first ones; the mean ends when the device is through. The exit status is the number of parts that failed; figures are told, not judged."""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

SIZES = {  # layers, heads, width, words, tokens of a sample
    "gpt2": (12, 12, 768, 50257, 1024), "gpt2wide": (12, 12, 960, 50257, 1024), "tiny": (2, 2, 32, 211, 32)}
WARM = 8


# ---- the network: what a user would write ----

def network(size):
    import torch
    from torch import nn
    from torch.nn import functional

    layers, heads, width, words, tokens = SIZES[size]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, length, _ = x.shape
            q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in self.mix(self.before(x)).split(width, dim=2))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.after(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, x):
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
                for block in self.blocks:
                    h = block(h)
                return functional.linear(self.norm(h), self.words.weight)

    torch.manual_seed(0)
    return Gpt()


def loss_of(outputs, targets):
    from torch.nn import functional

    return functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())


def rows(size, count):
    import torch

    words, tokens = SIZES[size][3:]

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.text = torch.randint(words, (64 * tokens,), generator=torch.Generator().manual_seed(1))

        def __len__(self):
            return count

        def __getitem__(self, i):
            at = i * 977 % (len(self.text) - tokens - 1)
            return self.text[at:at + tokens], self.text[at + 1:at + tokens + 1]

    return Rows()


def device_of():
    return os.environ.get("SAMPLES_DEVICE", "cuda")


def say(kind, times, **more):
    """`times`: at the end of each step."""
    steps = [1e3 * (b - a) for a, b in zip(times[WARM:], times[WARM + 1:])]
    mean = 1e3 * (times[-1] - times[WARM]) / (len(times) - 1 - WARM)
    print("FIGURES " + json.dumps({"kind": kind, "steps": len(steps), "mean_ms": round(mean, 3), "median_ms": round(statistics.median(steps), 3),
                                   "worst_ms": round(max(steps), 3), **more}), flush=True)


# ---- the processes ----

def plain(kind, size, batch, steps):
    """As nanoGPT does it: a fused AdamW, pinned batches."""
    import torch

    device = device_of()
    torch.use_deterministic_algorithms(kind == "deterministic", warn_only=True)
    if kind == "deterministic":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.utils.deterministic.fill_uninitialized_memory = False
    model = network(size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    data, times, losses = rows(size, 1 << 30), [], []
    for step in range(steps):
        x, y = (torch.stack(part) for part in zip(*(data[step * batch + i] for i in range(batch))))
        if device == "cuda":
            x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        loss = loss_of(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if kind != "plain" else loss.detach())
        times.append(time.monotonic())
        if step == WARM and kind == "plain":
            finish(device)
            times[-1] = time.monotonic()
    finish(device)
    times[-1] = time.monotonic()
    losses[-1] = torch.as_tensor(losses[-1])
    say(kind, times, loss=round(losses[-1].item(), 4))


def finish(device):
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def pair(size, batch, steps):
    """Interleaved in one process, where the second and the fourth are FabricModel's."""
    for turn in range(2):
        plain("plain", size, batch, steps)
        fabric("fabric", size, batch, steps, 1)


def ddp_rank(rank, port, size, batch, steps):
    import torch
    import torch.distributed as dist

    device = device_of()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(network(size).to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    data, times, loss = rows(size, 1 << 30), [], None
    for step in range(steps):
        x, y = (torch.stack(part) for part in zip(*(data[(2 * step + rank) * batch + i] for i in range(batch))))
        if device == "cuda":
            x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        loss = loss_of(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.monotonic())
    if rank == 0:
        say("ddp", times, loss=round(loss.item(), 4))
    dist.destroy_process_group()


def ddp(size, batch, steps):
    import socket

    import torch.multiprocessing as processes

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [processes.get_context("spawn").Process(target=ddp_rank, args=(rank, port, size, batch, steps)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        sys.exit("a rank failed")


def fabric(kind, size, batch, steps, virtual):
    """In this process, or as the script of a job; each engine tells its times."""
    import torch
    from callbacks import Callback
    from fabric_model import FabricModel

    class Times(Callback):
        """Kept in a module: what a callback holds goes to joiners, with the state."""

        def on_train_begin(self):
            sys.modules["time"].samples = []

        def on_batch_end(self, batch, logs=None):
            if batch % virtual == virtual - 1:
                sys.modules["time"].samples.append(time.monotonic())

        def on_train_end(self):
            times = sys.modules["time"].samples
            if len(times) > WARM + 2:
                say(kind, times, engine=os.environ.get("SHOAL_WORKER_ID", "alone"))
                print("TIMES " + json.dumps([round(t, 4) for t in times]), flush=True)

    model = network(size)
    FabricModel(model, lambda: (rows(size, steps * virtual * batch), None), loss_of, torch.optim.AdamW(model.parameters(), lr=3e-4),
                user_callback=[Times()]).train(1, batch, virtual, checkpoint_freq=1000)


def process(words):
    kind, size, batch, steps = words[0], words[1], int(words[2]), int(words[3])
    if kind == "pair":
        pair(size, batch, steps)
    elif kind in ("plain", "logs", "deterministic"):
        plain(kind, size, batch, steps)
    elif kind == "ddp":
        ddp(size, batch, steps)
    else:
        fabric(kind, size, batch, steps, int(words[4]))


# ---- who starts them ----

def figures(text):
    return [json.loads(line[8:]) for line in text.splitlines() if line.startswith("FIGURES ")]


class Parts:
    def __init__(self, words, out):
        import training

        training.lay_out_fabric()
        self.training, self.out = training, out
        self.device, self.size = words.device, words.size
        self.end = time.monotonic() + words.seconds
        self.mesh = None
        self.text = []

    def left(self, wanted):
        return max(1.0, min(wanted, self.end - time.monotonic()))

    def one(self, kind, size, batch, steps, *more):
        env = dict(os.environ, SAMPLES_DEVICE=self.device, OMP_NUM_THREADS="1")
        if kind == "pair" and self.device == "cuda":
            env.setdefault("CUDA_VISIBLE_DEVICES", "0")
        env["PYTHONPATH"] = os.pathsep.join([str(self.training.ROOT / "collective/python"), *(env.get("PYTHONPATH") or "").split(os.pathsep)])
        env["FABRIC_HOME"] = str(self.training.RELEASE / "fabric")
        folder = tempfile.mkdtemp(prefix="samples-")
        env["RESULT_DIR"] = folder
        try:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), "run", kind, size, str(batch), str(steps), *map(str, more)],
                                  env=env, capture_output=True, text=True, errors="replace", timeout=self.left(60), cwd=folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.text.append("==== %s\n%s\n%s" % (kind, done.stdout[-20000:], done.stderr[-6000:]))
        found = figures(done.stdout)
        if done.returncode != 0 or not found:
            raise RuntimeError("%s: exit status %d: %s" % (kind, done.returncode, (done.stderr or done.stdout)[-1500:]))
        return found if kind == "pair" else found[0]

    def grown(self):
        if self.mesh is None:
            self.mesh = self.training.CardMesh(self.training.RELEASE / "shoal", slots=2, python=sys.executable)
            self.mesh.on_card = self.device == "cuda"
            self.mesh.grow(("alpha",))
        return self.mesh

    def job(self, kind, size, batch, steps, virtual, workers):
        mesh = self.grown()
        folder = mesh.folder / ("model-%s-%d" % (kind, len(self.text)))
        folder.mkdir()
        source = pathlib.Path(__file__).read_text()
        (folder / "main.py").write_text(source)
        return self.training.submit(mesh, mesh.hosts[0], folder, "--workers", str(workers), "--env", "SAMPLES_DEVICE=" + self.device,
                                    framework="edtPyTorch", script=("run", kind, size, batch, steps, virtual))

    def tell(self, job):
        """What there is to be seen of a job that does not end."""
        host = self.mesh.hosts[0]
        print("---- %s does not end: %s" % (job, json.dumps(self.mesh.job(job))[:1500]))
        print(self.mesh.shoal("why", job, "--node", host.url).stdout)
        for path in sorted(path for path in host.data.glob("**/%s/**/*" % job) if path.is_file()):
            print("%d bytes, %.1f s ago: %s" % (path.stat().st_size, time.time() - path.stat().st_mtime, path.relative_to(host.data)))
            if path.name in ("stdout", "stderr", "launcher", "driver.stdout"):
                print(path.read_text(errors="replace")[-1500:])
        sys.stdout.flush()

    def ended(self, job, seconds):
        mesh = self.mesh
        try:
            facts = self.training.ended(mesh, job, self.left(seconds))
        except Exception:
            self.tell(job)
            raise
        text = "\n".join(path.read_text(errors="replace") for name in ("stdout", "stderr")
                         for path in sorted(mesh.hosts[0].data.glob("**/%s/**/%s" % (job, name))))
        self.text.append("==== %s\n%s" % (job, text[-60000:]))
        if facts["state"] != "FINISHED":
            raise RuntimeError("%s ended as %s: %s" % (job, facts["state"], facts["detail"]))
        return text

    # ---- parts ----

    def alone(self):
        batch, steps = (16, 50) if self.device == "cuda" else (4, 50)
        table = list(self.one("pair", self.size, batch, steps))
        for kind in ("logs", "deterministic", "job"):
            if self.end - time.monotonic() < 25:
                break
            table += (figures(self.ended(self.job("job", self.size, batch, steps, 1, 1), 60))[:1] if kind == "job"
                      else [self.one(kind, self.size, batch, steps)])
        for row in table:
            print("    " + json.dumps(row), flush=True)
        best = {kind: min(row["mean_ms"] for row in table if row["kind"] == kind) for kind in {row["kind"] for row in table}}
        return ", ".join("%s %.2f ms (%.3f of plain)" % (kind, best[kind], best[kind] / best["plain"])
                         for kind in ("plain", "fabric", "logs", "deterministic", "job") if kind in best)

    def shared(self):
        batch, steps = (8, 20) if self.device == "cuda" else (4, 20)
        theirs = self.one("ddp", self.size, batch, steps)
        ours = figures(self.ended(self.job("shared", self.size, batch, steps, 2, 2), 60))
        for row in [theirs, *ours]:
            print("    " + json.dumps(row), flush=True)
        if not ours:
            raise RuntimeError("no engine was there from the first steps on")
        mine = max(row["median_ms"] for row in ours)
        return "gloo %.1f ms, ours %.1f ms of %d engines: %.2f times" % (theirs["median_ms"], mine, len(ours), theirs["median_ms"] / mine)

    def joins(self):
        """The first engine alone, until a slot that a sleeper holds is free."""
        mesh = self.grown()
        size, batch, steps = ("gpt2wide", 8, 140) if self.size == "gpt2" else (self.size, 4, 400)
        sleeper, go = mesh.folder / "sleeper", mesh.folder / "go"
        sleeper.mkdir()
        (sleeper / "main.py").write_text("import os, time\nend = time.time() + 90\nwhile not os.path.exists(%r) and time.time() < end:\n    time.sleep(0.02)\n" % str(go))
        holds = self.training.submit(mesh, mesh.hosts[0], sleeper)
        mesh.until(lambda: sum(node["slotsFree"] for node in mesh.hosts[0].get("/v1/nodes")) == 1, self.left(30), "the sleeper")
        job = self.job("joins", size, batch, steps, 2, 2)

        def trains():
            words = [words for _, _, _, words in mesh.workers(job).values()]
            facts = mesh.job(job)
            if facts and facts["hasEnded"]:
                raise RuntimeError("%s ended before the join: %s" % (job, facts["detail"]))
            return words and words[0]["applied"] > 30
        mesh.until(trains, self.left(60), "thirty steps")
        go.touch()
        text = self.ended(job, 90)
        self.training.ended(mesh, holds, self.left(20))
        lines = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("TIMES ")]
        if not lines:
            raise RuntimeError("no engine told its times")
        donor = max(lines, key=len)
        steps = [1e3 * (b - a) for a, b in zip(donor[WARM:], donor[WARM + 1:])]
        usual, worst = statistics.median(steps[:20]), max(steps)
        return "donor's usual step %.1f ms alone, its longest %.1f ms; %d engines told times of %s steps" % (
            usual, worst, len(lines), [len(line) for line in lines])


PARTS = ("shared", "joins", "alone")


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "run":
        process(sys.argv[2:])
        return
    words = argparse.ArgumentParser()
    words.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    words.add_argument("--seconds", type=float, default=170)
    words.add_argument("--only", default=",".join(PARTS))
    words.add_argument("--out", default=os.environ.get("OUT"))
    words.add_argument("--size", default="gpt2", choices=tuple(SIZES))
    words = words.parse_args()
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    out = pathlib.Path(words.out or tempfile.mkdtemp(prefix="shoal-samples-"))
    out.mkdir(parents=True, exist_ok=True)
    parts, table = Parts(words, out), []
    try:
        for name in words.only.split(","):
            began = time.monotonic()
            try:
                text, ok = getattr(parts, name)(), True
            except Exception as error:  # one part's failure is not the next one's
                traceback.print_exc(file=sys.stdout)
                text, ok = "%s: %s" % (type(error).__name__, " ".join(str(error).split())[-400:]), False
            table.append("%-8s %-6s %5.1f s  %s" % (name, "ok" if ok else "FAILED", time.monotonic() - began, text))
            print(table[-1], flush=True)
    finally:
        (out / "samples-logs.txt").write_text("\n".join(parts.text)[-(4 << 20):], errors="replace")
        if parts.mesh is not None:
            parts.mesh.__exit__(None, None, None)
    print("---- samples on %s, logs in %s" % (words.device, out))
    print("\n".join(table))
    sys.exit(sum("FAILED" in row for row in table))


if __name__ == "__main__":
    main()
