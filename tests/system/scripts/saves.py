"""A callback that saves the network as scripts do, whole and in parts, and a plain Python that loads it."""
import copy
import os
import subprocess
import sys

import torch
from callbacks import Callback
from fabric_model import FabricModel
from torch import nn

LOADS = """
import sys, torch
state, network, part, copied = (torch.load(sys.argv[1] + name, weights_only=name != "network") for name in ("state", "network", "part", "copied"))
assert network.state_dict().keys() == state.keys() == copied.keys() and set(part) <= {name[2:] for name in state}
assert all(torch.equal(state[name], other[name]) for other in (network.state_dict(), copied) for name in state)
network(torch.ones(2, 6))
"""


class Saves(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        if save_model:
            start = os.path.join(os.environ["RESULT_DIR"], "model", "saves-")
            torch.save(self.model.state_dict(), start + "state")
            torch.save(self.model, start + "network")
            torch.save(self.model[1].state_dict(), start + "part")
            torch.save(copy.deepcopy(self.model).state_dict(), start + "copied")


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 512), nn.BatchNorm1d(512), nn.Linear(512, 2))
optimizer = torch.optim.Adam(model.parameters())
FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=Saves()).train(2, 4, 3)
start = os.path.join(os.environ["RESULT_DIR"], "model", "saves-")
subprocess.run([sys.executable, "-c", LOADS, start], check=True)
assert os.path.getsize(start + "state") < 4 * 512 * 11 + 8000, "each weight once"
