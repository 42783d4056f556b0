"""A function that returns DataLoaders, as a training loop has them."""
import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def collate(samples):
    return torch.stack([x for x, _ in samples]) * 2, torch.stack([y for _, y in samples])


def loaders():
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x.sum(dim=1) > 0).long())
    return DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate, num_workers=2), DataLoader(data, batch_size=8)


torch.manual_seed(5)
model = nn.Linear(6, 2)
FabricModel(model, loaders, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())).train(2, 4, 3)
