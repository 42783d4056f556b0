"""The published fn_step_train and fn_test."""
import torch
from fabric_model import FabricModel
from torch import nn


def train(model, data, eva, train_loader, fn_args):
    model.train()
    model.get_optimizer().zero_grad()
    inputs, labels = data
    outputs = model(inputs)
    loss = model.get_loss_function()(outputs, labels)
    loss.backward()
    return eva(outputs, labels), loss


def test(model, test_iter, fn_args):
    criterion = model.get_loss_function()
    model.eval()
    losses = [criterion(model(x), y).item() for x, y in test_iter]
    return sum(losses) / len(losses)


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long())
    return data, data


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, fn_step_train=train, fn_test=test).train(2, 4, 3)
