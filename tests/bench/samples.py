"""CPU seconds of training an MLP of 10.1 million parameters, 40 MB of gradients: mini-batches of 64, two to a step, SGD with
momentum, one thread. Whose they are comes first: `plain` is a loop of PyTorch, `shoal` is FabricModel with one engine in this
process. Prints samples a second of CPU time, which what else runs here disturbs least."""

import sys
import time

import torch
from torch import nn

MINIBATCH, VIRTUAL, STEPS = 64, 2, 24
SAMPLES = MINIBATCH * VIRTUAL * STEPS


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1000, 3000), nn.ReLU(), nn.Linear(3000, 2000), nn.ReLU(), nn.Linear(2000, 500), nn.ReLU(),
                         nn.Linear(500, 10))


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(512, 1000, generator=torch.Generator().manual_seed(1)), torch.arange(512) % 10

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index % 512], self.y[index % 512]


def datasets():
    return Rows(), None


def plain(model, optimizer):
    rows, loss = Rows(), nn.CrossEntropyLoss()
    for step in range(STEPS):
        optimizer.zero_grad()
        for v in range(VIRTUAL):
            first = (step * VIRTUAL + v) * MINIBATCH
            picked = [rows[i] for i in range(first, first + MINIBATCH)]
            x, y = torch.stack([x for x, _ in picked]), torch.stack([y for _, y in picked])
            (loss(model(x), y) / VIRTUAL).backward()
        optimizer.step()


def shoal(model, optimizer):
    from fabric_model import FabricModel

    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer).train(1, MINIBATCH, VIRTUAL, checkpoint_freq=100)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = network()
    began = time.process_time()
    {"plain": plain, "shoal": shoal}[sys.argv[1]](model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    print("samples a second %.1f" % (SAMPLES / (time.process_time() - began)))
