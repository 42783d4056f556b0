"""Autocast within forward(), and a network whose inner part is bfloat16."""
import torch
from fabric_model import FabricModel
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.low, self.head = nn.Linear(144, 8).to(torch.bfloat16), nn.Linear(8, 2)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def features(self, x):
        return torch.relu(self.norm(self.conv(x))).flatten(1)

    def forward(self, x):
        return self.head(self.low(self.features(x).to(torch.bfloat16)).float())


def datasets():
    x = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, (x.mean(dim=(1, 2, 3)) > 0.5).long())
    return data, data


torch.manual_seed(5)
model = Net()
FabricModel(model, datasets, nn.CrossEntropyLoss(label_smoothing=0.1), torch.optim.AdamW(model.parameters(), lr=0.01)).train(2, 4, 3)
