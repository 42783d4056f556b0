"""A step that calls optimizer.step(), of the library's optimizer and of the script's own name for it, with a GradScaler."""
import torch
from fabric_model import FabricModel
from torch import nn

scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def step(model, data, eva, loader, args):
    inputs, labels = data
    outputs = model(inputs)
    loss = model.get_loss_function()(outputs, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return eva(outputs, labels), loss


def scaled(model, data, eva, loader, args):
    inputs, labels = data
    model.get_optimizer().zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(inputs)
        loss = model.get_loss_function()(outputs, labels)
    scaler.scale(loss).backward()
    scaler.step(model.get_optimizer())
    scaler.update()
    return eva(outputs, labels), loss


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None


torch.manual_seed(5)
model = nn.Linear(6, 2)
optimizer = torch.optim.Adam(model.parameters())
before = model.weight.detach().clone()
for function in (step, scaled):
    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, fn_step_train=function).train(1, 4, 3)
    assert not torch.equal(before, model.weight), "it has learned nothing"
