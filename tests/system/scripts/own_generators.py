"""Noise from generators of its own: of torch, NumPy and random, in the data set, in the script and in the network."""
import random

import numpy as np
import torch
from fabric_model import FabricModel
from torch import nn

script_noise = np.random.default_rng(7)


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.torch, self.numpy, self.python = torch.Generator().manual_seed(1), np.random.RandomState(2), random.Random(3)
        self.x = torch.randn(40, 6, generator=self.torch)

    def __len__(self):
        return 40

    def __getitem__(self, i):
        noise = torch.randn(6, generator=self.torch) + self.numpy.rand() + self.python.random() + script_noise.random()
        return (self.x[i] + noise).float(), (self.x[i].sum() > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.noise = nn.Linear(6, 2), random.Random(4)

    def forward(self, x):
        return self.inner(x) + self.noise.random()


def datasets():
    rows = Rows()
    return torch.utils.data.random_split(rows, [30, 10], generator=torch.Generator().manual_seed(9))


torch.manual_seed(5)
model = Net()
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())).train(2, 4, 3)
