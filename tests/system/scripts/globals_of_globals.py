"""Functions and classes that name other globals of the script, in every way that Python has."""
import functools
from dataclasses import dataclass, field

import torch
from fabric_model import FabricModel
from torch import nn

SIZES = {"in": 6, "out": 2}


def noisy(x, much=0.1):
    return x + much * torch.randn_like(x)


def labels(x):
    return (x.sum(dim=1) > 0).long()


@dataclass
class Options:
    much: float = 0.1
    names: list = field(default_factory=lambda: list(SIZES))


def make_rows(count):
    class Rows(torch.utils.data.Dataset):
        transform = staticmethod(functools.partial(noisy, much=0.2))
        later = staticmethod(lambda x: noisy(x))
        made = [noisy(torch.zeros(1)) for _ in range(2)]
        options = Options()

        def __init__(self):
            self.x = torch.randn(count, SIZES["in"], generator=torch.Generator().manual_seed(1))
            self.y = eval("labels(self.x)")

        def __len__(self):
            return count

        def __getitem__(self, i):
            return globals()["noisy"](self.later(self.transform(self.x[i])), self.options.much), self.y[i]

    return Rows()


def datasets():
    return make_rows(40), make_rows(10)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(SIZES["in"], SIZES["out"])

    def forward(self, x):
        return self.layers(noisy(x))


torch.manual_seed(5)
model = Net()
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())).train(2, 4, 3)
