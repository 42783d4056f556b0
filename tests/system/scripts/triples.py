"""Samples of three: two inputs and a target, one input with target and weight, and one tensor that is its own target."""
import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
y = x.sum(dim=1, keepdim=True)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, left, right):
        return self.left(left) + self.right(right)


def weighted(outputs, targets, weights):
    return (weights * (outputs - targets) ** 2).mean()


torch.manual_seed(5)
models = [Two(), nn.Linear(6, 1), nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 6))]
data = [TensorDataset(x, x * 2, y), TensorDataset(x, y, torch.rand(40, 1)), TensorDataset(x)]
losses = [nn.MSELoss(), weighted, nn.MSELoss()]
for model, rows, loss in zip(models, data, losses):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    FabricModel(model, lambda: (rows, rows), loss, optimizer).train(1, 4, 3)
model = nn.ModuleList(models)
