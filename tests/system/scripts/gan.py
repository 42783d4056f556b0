"""Two networks, two optimizers, one step for both."""
import torch
from fabric_model import FabricModel
from torch import nn


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))


def step(model, data, eva, loader, args):
    critic, maker = model.get_optimizer()
    criterion = model.get_loss_function()
    real = data[0]
    fake = model.generator(torch.randn(len(real), 3))
    critic.zero_grad()
    loss = criterion(model.critic(real), torch.ones(len(real), 1)) + criterion(model.critic(fake.detach()), torch.zeros(len(real), 1))
    loss.backward()
    critic.step()
    maker.zero_grad()
    fooled = criterion(model.critic(fake), torch.ones(len(real), 1))
    fooled.backward()
    maker.step()
    return 0.0, loss + fooled


def datasets():
    return torch.utils.data.TensorDataset(torch.randn(60, 2, generator=torch.Generator().manual_seed(1)) + 3), None


torch.manual_seed(5)
model = Gan()
optimizers = [torch.optim.Adam(model.critic.parameters(), lr=0.01), torch.optim.SGD(model.generator.parameters(), lr=0.01)]
FabricModel(model, datasets, nn.BCEWithLogitsLoss(), optimizers, fn_step_train=step).train(2, 4, 3)
assert all(optimizer.state for optimizer in optimizers[:1])
