"""Samples a second of training: a CNN of 338,000 parameters on digits, or an MLP of 10.1 million, 40 MB of gradients; SGD with
momentum, one thread. The first word says whose they are: `plain` is a loop of PyTorch, `whole` the same with all mini-batches of
a step as one, `ddp` two ranks of DistributedDataParallel over gloo, `shoal` FabricModel with one engine in this process. Without
a word it is the script of an elastic job, which trains until it is stopped (run.py).

    samples.py plain|whole|ddp|shoal cnn|mlp V SECONDS        prints samples a second, of the clock and of CPU time"""

import os
import sys
import time

import torch
from torch import nn

MODEL, VIRTUAL, FUSE = "mlp", 2, False  # run.py writes others here
MINIBATCH = {"cnn": 16, "mlp": 64}
WARM = 5  # steps before the clock starts


def network(model):
    torch.manual_seed(0)
    if model == "mlp":
        return nn.Sequential(nn.Linear(1000, 3000), nn.ReLU(), nn.Linear(3000, 2000), nn.ReLU(), nn.Linear(2000, 500), nn.ReLU(),
                             nn.Linear(500, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 464), nn.ReLU(), nn.Dropout(0.3), nn.Linear(464, 10))


class Rows(torch.utils.data.Dataset):
    def __init__(self, model, count):
        shape = (1000,) if model == "mlp" else (1, 8, 8)
        self.x, self.y = torch.randn(512, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(512) % 10
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.x[index % 512], self.y[index % 512]


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batch(rows, first, count):
    picked = [rows[i] for i in range(first, first + count)]
    return torch.stack([x for x, _ in picked]), torch.stack([y for _, y in picked])


def report(steps, samples, clock, cpu):
    print("samples a second %.1f, of CPU time %.1f, ms a step %.3f" % (samples / clock, samples / cpu, 1e3 * clock / steps))


def run_for(seconds, step, samples):
    """Steps until the time is over; each of so many samples."""
    for _ in range(WARM):
        step()
    began, cpu, steps = time.monotonic(), time.process_time(), 0
    while time.monotonic() - began < seconds:
        step()
        steps += 1
    report(steps, steps * samples, time.monotonic() - began, time.process_time() - cpu)


def plain(name, virtual, seconds, whole=False):
    model, rows, loss = network(name), Rows(name, 1 << 30), nn.CrossEntropyLoss()
    optimizer, size, at = optimizer_of(model), MINIBATCH[name] * (virtual if whole else 1), [0]

    def step():
        optimizer.zero_grad()
        for _ in range(1 if whole else virtual):
            x, y = batch(rows, at[0], size)
            at[0] += size
            (loss(model(x), y) / (1 if whole else virtual)).backward()
        optimizer.step()

    run_for(seconds, step, MINIBATCH[name] * virtual)


def ddp_rank(rank, port, name, virtual, seconds):
    import contextlib

    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    plain_model = network(name)
    model, rows, loss = nn.parallel.DistributedDataParallel(plain_model), Rows(name, 1 << 30), nn.CrossEntropyLoss()
    optimizer, mine = optimizer_of(plain_model), virtual // 2

    def step():
        optimizer.zero_grad()
        for i in range(mine):
            with model.no_sync() if i + 1 < mine else contextlib.nullcontext():
                x, y = batch(rows, i * MINIBATCH[name], MINIBATCH[name])
                (loss(model(x), y) / mine).backward()
        optimizer.step()

    began = time.monotonic()
    steps = torch.zeros(1)
    for _ in range(WARM):
        step()
    began = time.monotonic()
    while steps[0] >= 0:  # rank 0 says when the time is over
        step()
        steps += 1
        if steps[0] % 10 == 0:
            over = torch.tensor([1.0 if time.monotonic() - began >= seconds else 0.0])
            dist.broadcast(over, 0)
            if over[0]:
                break
    clock = time.monotonic() - began
    if rank == 0:
        done = int(steps[0])
        report(done, done * virtual * MINIBATCH[name], clock, time.process_time())
    dist.destroy_process_group()


def ddp(name, virtual, seconds):
    import socket

    import torch.multiprocessing as processes

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = processes.get_context("fork")
    ranks = [context.Process(target=ddp_rank, args=(rank, port, name, virtual, seconds)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()


def shoal(name, virtual, seconds):
    from fabric_model import FabricModel

    began, cpu = time.monotonic(), time.process_time()
    steps = int(seconds * (8 if name == "mlp" else 100))
    model = network(name)
    FabricModel(model, lambda: (Rows(name, steps * virtual * MINIBATCH[name]), None), nn.CrossEntropyLoss(), optimizer_of(model)).train(
        1, MINIBATCH[name], virtual, checkpoint_freq=1000)
    report(steps, steps * virtual * MINIBATCH[name], time.monotonic() - began, time.process_time() - cpu)


def datasets():
    return Rows(MODEL, 1 << 24), None


def job():
    """Elastic, until it is stopped."""
    from fabric_model import FabricModel

    model = network(MODEL)
    more = {"fuse": True} if FUSE else {}
    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer_of(model), **more).train(1000, MINIBATCH[MODEL], VIRTUAL, checkpoint_freq=1000)


def main():
    if len(sys.argv) < 2:
        job()
        return
    torch.set_num_threads(1)
    name, virtual, seconds = sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    {"plain": plain, "whole": lambda *words: plain(*words, whole=True), "ddp": ddp, "shoal": shoal}[sys.argv[1]](name, virtual, seconds)


if __name__ == "__main__":
    main()
