"""A loss that is trained too: its parameters come back."""
import torch
from fabric_model import FabricModel
from torch import nn


class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(2, 3))

    def forward(self, outputs, targets):
        return ((outputs - self.centers[targets]) ** 2).mean()


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None


torch.manual_seed(5)
net, loss = nn.Linear(6, 3), Center()
before = loss.centers.detach().clone()
optimizer = torch.optim.Adam([*net.parameters(), *loss.parameters()])
FabricModel(net, datasets, loss, optimizer).train(1, 4, 3)
assert not torch.equal(before, loss.centers), "the trained centers are lost"
model = nn.ModuleList([net, loss])
