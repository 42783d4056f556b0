"""Training on a real card: jobs of FabricModel and of plain PyTorch on a mesh of one agent, whose slots share the card. With the
interpreter that has torch, after a build, without pytest; on a machine without a card the same with --device cpu.

    training.py [--device cuda|cpu] [--seconds N] [--only NAME,NAME] [--out FOLDER]

One line a check, a table last; the logs go to FOLDER (default: $OUT, else a folder in /tmp). The exit status is the number of
checks that failed."""

import argparse
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
for folder in ("docs/demo", "tests/system"):
    sys.path.insert(0, str(ROOT / folder))

from helpers import ended, log_of, submit  # noqa: E402
from mesh import Failed, Host, Mesh  # noqa: E402

RELEASE = pathlib.Path(os.environ.get("SHOAL_OUT") or ROOT / "build/release")
SLOTS, VIRTUAL, BATCH, STEPS = 4, 8, 8, 20
LOG_BYTES = 4 << 20  # of all logs that are kept

# A network with BatchNorm and dropout; each sample takes as long as the file PACE says, so that there is time to kill an engine.
COMMON = """
import os, sys, time
import torch
from torch import nn
from fabric_model import FabricModel

class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.x = torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))
        self.y = (self.x.mean(dim=(1, 2, 3)) * 40).long().clamp(-4, 5) + 4
    def __len__(self):
        return len(self.y)
    def __getitem__(self, i):
        try:
            with open(os.environ["PACE"]) as pace:
                time.sleep(float(pace.read()))
        except (KeyError, FileNotFoundError, ValueError):
            pass
        return self.x[i], self.y[i]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                  nn.Dropout(0.2), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
        self.said = False
    def forward(self, x):
        if not self.said:
            self.said = True
            place = next(self.parameters()).device
            held = torch.cuda.memory_allocated(place) if place.type == "cuda" else 0
            print("FORWARD on %s, batch on %s, %d bytes of it, at %.3f" % (place, x.device, held, time.time()), flush=True)
        return self.body(x)

def rows():
    if os.environ.get("LIKE_A_DEVICE"):  # the processor in a device's place: gradients are added up beside libshoal's memory
        from pyedt import _compute, _update
        _compute.on_host, _update.Update._count = lambda device: False, lambda self: 0
    return Rows({samples}), None

torch.manual_seed(5)
"""

SAME_BITS = COMMON + """
model = Net()
FabricModel(model, rows, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.003)).train(2, {batch}, {virtual})
"""

# Device words where users write them; the step is the script's own.
CUDA_WORDS = COMMON + """
device = torch.device("{device}")
model = Net().to(device)

def step(model, data, eva, loader, args):
    x, y = data[0].cuda(non_blocking=True), data[1].to("{device}:0")
    model.get_optimizer().zero_grad()
    out = model(x)
    loss = model.get_loss_function()(out, y)
    loss.backward()
    model.get_optimizer().step()
    return eva(out, y), loss

FabricModel(model, rows, nn.CrossEntropyLoss().cuda(), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            fn_step_train=step).train(1, {batch}, {virtual})
"""

AUTOCAST = COMMON + """
class Mixed(Net):
    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            out = super().forward(x)
        print("AUTOCAST", out.dtype, flush=True)
        return out.float()

model = Mixed()
FabricModel(model, rows, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.003)).train(1, {batch}, {virtual})
"""

# In bfloat16 as long sequences: torch's own attention has a kernel of the same bits each time only if it may not merely warn.
ATTENTION = COMMON + """
class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.mix, self.out = nn.Linear(64, 64 * 256), nn.Linear(64, 192), nn.Linear(64, 10)
    def forward(self, x):
        if not getattr(self, "said", False):
            self.said = True
            print("FORWARD on %s, batch on %s, %d bytes of it, at %.3f" % (self.out.weight.device, x.device, 1, time.time()), flush=True)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            h = self.enter(x.flatten(1)).view(len(x), 256, 64)
            q, k, v = (part.view(len(x), 256, 1, 64).transpose(1, 2) for part in self.mix(h).split(64, dim=2))
            h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(h.transpose(1, 2).flatten(2).mean(dim=1)).float()

model = Attends()
FabricModel(model, rows, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=0.003)).train(1, {batch}, {virtual})
"""

SCALER = COMMON + """
model = Net()

def step(model, data, eva, loader, args):
    x, y = (part.to(next(model.parameters()).device) for part in data)
    scaler = torch.amp.GradScaler(x.device.type, init_scale=1024.0, enabled=x.is_cuda)
    model.get_optimizer().zero_grad()
    with torch.autocast(x.device.type, dtype=torch.float16 if x.is_cuda else torch.bfloat16):
        out = model(x)
        loss = model.get_loss_function()(out, y)
    scaler.scale(loss).backward()
    scaler.step(model.get_optimizer())
    scaler.update()
    return eva(out, y), loss

FabricModel(model, rows, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.05), fn_step_train=step).train(1, {batch}, {virtual})
"""

LOADERS = COMMON + """
def loaders():
    data = torch.utils.data.TensorDataset(*(t for t in (Rows({samples}).x, Rows({samples}).y)))
    return torch.utils.data.DataLoader(data, batch_size={batch}, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True), None

model = Net()
FabricModel(model, loaders, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.05)).train(
    1, {batch}, {virtual}, num_dataloader_threads=2)
"""

TOO_MUCH = COMMON + """
class Net(Net):
    def forward(self, x):
        held = torch.empty(1 << 50, dtype=torch.uint8, device=x.device)
        return super().forward(x) + held[0]

model = Net()
FabricModel(model, rows, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.05)).train(1, {batch}, {virtual})
"""

# Until memory is really out, not one request that no card could fill.
FILLS = COMMON + """
class Net(Net):
    def forward(self, x):
        if x.is_cuda:
            held = []
            while True:
                held.append(torch.empty(1 << 30, dtype=torch.uint8, device=x.device))
        raise RuntimeError("this device is out of memory")

model = Net()
FabricModel(model, rows, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.05)).train(1, {batch}, {virtual})
"""

PLAIN = """
import os, time, torch
device = "{device}"
said = os.environ["CUDA_VISIBLE_DEVICES"]
if device == "cuda":
    assert torch.cuda.is_available(), "torch finds no card: CUDA_VISIBLE_DEVICES=%s LD_LIBRARY_PATH=%s" % (said, os.environ.get("LD_LIBRARY_PATH"))
torch.manual_seed(1)
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 64, device=device)
first = last = None
for _ in range(20):
    optimizer.zero_grad()
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    first, last = first or loss.item(), loss.item()
assert last < first
print("PLAIN sees", torch.cuda.device_count() if device == "cuda" else 0, "devices, visible:", said, torch.cuda.get_device_name(0) if device == "cuda" else "cpu")
os.makedirs(os.path.join(os.environ["RESULT_DIR"], "model"), exist_ok=True)
torch.save(model.state_dict(), os.path.join(os.environ["RESULT_DIR"], "model", "plain.pth"))
"""


class CardHost(Host):
    def lends(self):
        return ("--slots", str(self.mesh.slots)) if self.mesh.on_card else super().lends()


class CardMesh(Mesh):
    host_class = CardHost


def lay_out_fabric():
    """What `make` lays out beside the program; on a machine that has only the programs, from the tree."""
    if not (RELEASE / "fabric/build.version").exists():
        subprocess.run([sys.executable, str(ROOT / "collective/python/build_fabric.py"), str(RELEASE / "fabric"),
                        str(RELEASE / "libshoal.so"), str(RELEASE / "libshoal-warm.so")], check=True, timeout=60)


class Checks:
    def __init__(self, mesh, device, out, seconds):
        self.mesh, self.device, self.out = mesh, device, out
        self.end = time.monotonic() + seconds
        self.host = mesh.hosts[0]
        self.reference = None
        self.jobs = []

    # ---- jobs ----

    def left(self, wanted):
        """How long a wait may take: the whole script has one end."""
        return max(5.0, min(wanted, self.end - time.monotonic()))

    def folder(self, text):
        made = pathlib.Path(tempfile.mkdtemp(prefix="model-", dir=self.mesh.folder))
        words = {"samples": STEPS // 2 * BATCH * VIRTUAL, "batch": BATCH, "virtual": VIRTUAL, "device": self.device}
        (made / "main.py").write_text(re.sub(r"\{(samples|batch|virtual|device)\}", lambda m: str(words[m[1]]), text))
        return made

    def start(self, text, workers=1, framework="edtPyTorch", env=()):
        env = dict(env, **({"LIKE_A_DEVICE": "1"} if self.device == "cpu" else {}))
        options = [word for name, value in env.items() for word in ("--env", "%s=%s" % (name, value))]
        if framework == "edtPyTorch":
            options += ["--workers", str(workers)]
        job = submit(self.mesh, self.host, self.folder(text), *options, framework=framework)
        self.jobs.append(job)
        return job

    def finish(self, job, seconds=60, state="FINISHED"):
        facts = ended(self.mesh, job, self.left(seconds))
        if facts["state"] != state:
            raise Failed("%s ended as %s, not %s: %s\n%s" % (job, facts["state"], state, facts["detail"], self.said(job)[-3000:]))
        return facts

    def said(self, job):
        """All that the job's processes have printed."""
        texts = [log_of(self.mesh, self.host, job), log_of(self.mesh, self.host, job, "--which", "err")]
        for name in ("stdout", "stderr"):
            texts += [path.read_text(errors="replace") for path in self.host.data.glob("**/%s/**/%s" % (job, name))]
        return "\n".join(texts)

    def result(self, job):
        """{name: bytes}."""
        archive = self.mesh.folder / (job + ".zip")
        self.mesh.shoal("job", "result", job, archive, "--node", self.host.url)
        with zipfile.ZipFile(archive) as content:
            return {name.rsplit("/", 1)[-1]: content.read(name) for name in content.namelist()}

    def trained(self, job):
        """The final tensors, which must load where there is no card: all of them are the CPU's."""
        import torch

        files = self.result(job)
        found = []
        for name in ("model_epoch_final.pth", "model_epoch_final_optimizer_state.pth"):
            value = torch.load(io.BytesIO(files[name]), weights_only=True)
            found.append(value)
            for tensor in tensors(value):
                if tensor.device.type != "cpu":
                    raise Failed("%s holds a tensor of %s" % (name, tensor.device))
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise Failed("%s holds a number that is not finite" % name)
        return found

    def forwards(self, job):
        lines = re.findall(r"^FORWARD on (\S+), batch on (\S+), (\d+) bytes of it, at (\S+)$", self.said(job), re.M)
        if not lines:
            raise Failed("no engine said where it computes\n" + self.said(job)[-3000:])
        return lines

    def on_device(self, job):
        """Every engine of the job computed on the device, and held memory there."""
        for place, batch, held, _ in self.forwards(job):
            if self.device == "cuda" and (place != "cuda:0" or batch != "cuda:0" or int(held) == 0):
                raise Failed("an engine computed on %s with a batch on %s and %s bytes" % (place, batch, held))

    def run(self, text, workers=1, seconds=60):
        job = self.start(text, workers)
        self.finish(job, seconds)
        self.on_device(job)
        return job

    # ---- the checks ----

    def basics(self):
        """A job on the card ends well; its result loads anywhere; how long until its first forward."""
        began = time.time()
        job = self.run(SAME_BITS, 1, 90)
        first = min(float(line[3]) for line in self.forwards(job)) - began
        self.reference = self.trained(job)
        return "submit to first forward %.2f s" % first

    def again(self):
        """The second job of the kind: what a warm host needs."""
        began = time.time()
        job = self.run(SAME_BITS, 1)
        first = min(float(line[3]) for line in self.forwards(job)) - began
        self.equal(job)
        text = self.said(job)
        held = [line for line in text.splitlines() if "the server holds" in line or "the server has" in line]
        if held:
            raise Failed("an engine was not forked: %s" % held[0])
        return "submit to first forward %.2f s" % first

    def equal(self, job):
        if self.reference is None:
            raise Failed("there is no reference: the check `basics` did not end well")
        where = difference(self.trained(job), self.reference)
        if where is not None:
            raise Failed("the bits of one engine and of this job differ at %s" % where)

    def two(self):
        """B7: the same bits with two engines."""
        self.equal(self.run(SAME_BITS, 2))

    def four(self):
        """B7: the same bits with four engines."""
        self.equal(self.run(SAME_BITS, 4))

    def kills(self):
        """B7: the same bits with four engines of which two are killed on the way."""
        pace = self.mesh.folder / "pace"
        pace.write_text("0.004")
        job = self.start(SAME_BITS, 4, env={"PACE": pace})
        try:
            killed = 0
            for least in (2, 5):
                def there(least=least):
                    facts = self.mesh.job(job)
                    if facts and facts["hasEnded"]:
                        raise Failed("%s ended before a kill: %s %s" % (job, facts["state"], facts["detail"]))
                    members = [(pid, words) for _, pid, _, words in self.mesh.workers(job).values() if words["applied"] >= least]
                    return len(members) >= 2 and members
                members = self.mesh.until(there, self.left(60), "two engines past step %d" % least)
                os.kill(members[0][0], signal.SIGKILL)
                killed += 1
        finally:
            pace.write_text("0")
        self.finish(job, 60)
        self.on_device(job)
        self.equal(job)
        return "%d killed" % killed

    def cuda_words(self):
        """.cuda(), .to("cuda"), torch.device("cuda") in a script and in its own step."""
        job = self.run(CUDA_WORDS)
        first = self.trained(job)
        where = difference(self.trained(self.run(CUDA_WORDS, 2)), first)
        if where is not None:
            raise Failed("two engines give other bits at %s" % where)

    def autocast(self):
        """Autocast in forward(), with one engine and with two."""
        job = self.run(AUTOCAST)
        if "AUTOCAST torch.bfloat16" not in self.said(job):
            raise Failed("autocast gave no bfloat16")
        where = difference(self.trained(self.run(AUTOCAST, 2)), self.trained(job))
        if where is not None:
            raise Failed("two engines give other bits at %s" % where)

    def attention(self):
        """The same bits of attention in bfloat16, with one engine, once more, and with two."""
        first = self.trained(self.run(ATTENTION))
        for workers in (1, 2):
            where = difference(self.trained(self.run(ATTENTION, workers)), first)
            if where is not None:
                raise Failed("%d engines give other bits at %s" % (workers, where))

    def scaler(self):
        """A GradScaler in a step of the script's own."""
        self.trained(self.run(SCALER))

    def loaders(self):
        """DataLoaders with workers and pinned memory, and loader processes of ours."""
        job = self.run(LOADERS)
        first = self.trained(job)
        where = difference(self.trained(self.run(LOADERS, 2)), first)
        if where is not None:
            raise Failed("two engines give other bits at %s" % where)

    def plain(self):
        """A job of plain PyTorch sees its card and no other."""
        job = self.start(PLAIN, framework="PyTorch")
        self.finish(job, 60)
        line = re.search(r"^PLAIN sees (\d+) devices, visible: (\S*) ?(.*)$", self.said(job), re.M)
        if line is None or (self.device == "cuda" and (line[1] != "1" or not line[2])):
            raise Failed("it said: %s" % (line and line[0]))
        if "plain.pth" not in self.result(job):
            raise Failed("its result has no plain.pth")
        return line[0]

    def too_much(self):
        """Device memory that no card has: the job fails and says why; its slots are free after it."""
        return self.runs_out(TOO_MUCH)

    def fills(self):
        """The same where memory is taken bit by bit."""
        return self.runs_out(FILLS)

    def runs_out(self, text):
        job = self.start(text)
        facts = self.finish(job, 90, state="ERROR")
        why = facts["detail"] + self.mesh.shoal("why", job, "--node", self.host.url, check=False).stdout
        if not re.search(r"out of memory|allocate memory|MemoryError", why):
            raise Failed("why does not name the memory: %s" % why[-600:])
        if "main.py" not in why:
            raise Failed("why does not name the script's line: %s" % why[-600:])

        def free():
            return all(node["slotsFree"] == node["slots"] for node in self.host.get("/v1/nodes"))
        self.mesh.until(free, self.left(20), "free slots after %s" % job)
        after = self.start(PLAIN, framework="PyTorch")
        self.finish(after, 60)
        return facts["detail"][:160]

    def warm(self):
        """No warm interpreter and no engine server holds the card: what is forked from them could not use it."""
        if self.device != "cuda":
            return "nothing to look at without a card"
        holders, looked = [], 0
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if "engine_server" not in command and "warm.py" not in command:
                    continue
                looked += 1
                if any(os.readlink(fd).startswith("/dev/nvidia") for fd in (entry / "fd").iterdir()):
                    holders.append("%s %s" % (entry.name, command))
            except OSError:
                continue
        engines = {pid for job in self.jobs for _, pid, _, _ in self.mesh.workers(job).values()}
        holders = [holder for holder in holders if int(holder.split()[0]) not in engines]
        if holders:
            raise Failed("holds the card: %s" % "; ".join(holders))
        return "%d looked at" % looked

    # ---- logs ----

    def keep_logs(self):
        with open(self.out / "training-logs.txt", "w", encoding="utf-8", errors="replace") as out:
            out.write("==== agent\n%s\n" % self.host.log.read_text(errors="replace")[-200000:])
            size = 0
            for job in self.jobs:
                text = "==== %s\n%s\n" % (job, self.said(job)[-60000:])
                size += len(text)
                if size < LOG_BYTES:
                    out.write(text)


CHECKS = ("basics", "two", "four", "kills", "again", "warm", "plain", "cuda_words", "autocast", "attention", "scaler", "loaders", "too_much", "fills")


def tensors(value):
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def difference(mine, theirs, path=""):
    """Where two nested values differ in a bit; None if nowhere."""
    import torch

    if isinstance(mine, torch.Tensor):
        same = isinstance(theirs, torch.Tensor) and mine.dtype == theirs.dtype and torch.equal(mine, theirs)
        return None if same else path or "the top"
    if isinstance(mine, dict):
        if not isinstance(theirs, dict) or list(mine) != list(theirs):
            return path + " (keys)"
        return next((d for key in mine if (d := difference(mine[key], theirs[key], "%s/%s" % (path, key)))), None)
    if isinstance(mine, (list, tuple)):
        if len(mine) != len(theirs):
            return path + " (length)"
        return next((d for i in range(len(mine)) if (d := difference(mine[i], theirs[i], "%s/%d" % (path, i)))), None)
    return None if mine == theirs else path or "the top"


def run_checks(checks, names):
    """One line a check; (name, ok, text) of all."""
    rows = []
    for name in names:
        began = time.monotonic()
        try:
            if checks.end - began < 5:
                raise Failed("not run: the time is over")
            text, ok = getattr(checks, name)() or "", True
        except Exception as error:  # one check's failure is not the next one's
            text, ok = "%s: %s" % (type(error).__name__, error), False
            traceback.print_exc(file=sys.stdout)
        rows.append((name, ok, "%5.1f s  %s" % (time.monotonic() - began, " ".join(text.split())[:300])))
        print("%-12s %-6s %s" % (name, "ok" if ok else "FAILED", rows[-1][2]), flush=True)
    return rows


def main():
    words = argparse.ArgumentParser()
    words.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    words.add_argument("--seconds", type=float, default=170)
    words.add_argument("--only", default=",".join(CHECKS))
    words.add_argument("--out", default=os.environ.get("OUT"))
    words = words.parse_args()
    out = pathlib.Path(words.out or tempfile.mkdtemp(prefix="shoal-training-"))
    out.mkdir(parents=True, exist_ok=True)
    lay_out_fabric()
    mesh = CardMesh(RELEASE / "shoal", slots=SLOTS, python=sys.executable)
    mesh.on_card = words.device == "cuda"
    with mesh:
        mesh.grow(("alpha",))
        checks = Checks(mesh, words.device, out, words.seconds)
        try:
            rows = run_checks(checks, words.only.split(","))
        finally:
            checks.keep_logs()
    print("---- training on %s with %s, logs in %s" % (words.device, sys.executable, out))
    for name, ok, text in rows:
        print("%-12s %-6s %s" % (name, "ok" if ok else "FAILED", text))
    sys.exit(sum(not ok for _, ok, _ in rows))


if __name__ == "__main__":
    main()
