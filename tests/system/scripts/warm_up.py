"""A learning rate that warms up: torch's schedulers, made in the script on its optimizer, and stepped in a callback."""
import torch
from callbacks import Callback
from fabric_model import FabricModel
from torch import nn


class Warmup(Callback):
    def __init__(self, scheduler, updates):
        super().__init__()
        self.scheduler, self.updates, self.seen = scheduler, updates, 0
        self.rates = []

    def on_epoch_end(self, epoch, save_model=False):
        self.scheduler.step()
        self.rates.append(self.params["optimizer"].param_groups[0]["lr"])

    def on_train_end(self):
        wanted = [0.1 * min(1.0, (epoch + 2) / 4) for epoch in range(4)]
        assert all(abs(one - other) < 1e-9 for one, other in zip(self.rates, wanted)) and self.rates, (self.rates, wanted)


class Batches(Callback):
    """By updates: changes the rate within a data epoch."""

    def __init__(self, base):
        self.base, self.seen = base, 0

    def on_batch_end(self, batch, logs=None):
        self.seen += 1
        for group in self.params["optimizer"].param_groups:
            group["lr"] = self.base * min(1.0, self.seen / 12)


def datasets():
    x = torch.randn(36, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None


torch.manual_seed(5)
first, second = nn.Linear(6, 2), nn.Linear(6, 2)
optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / 4))
FabricModel(first, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=[Warmup(scheduler, 4)]).train(4, 4, 3)
FabricModel(second, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(second.parameters(), lr=0.0), user_callback=Batches(0.1)).train(2, 4, 3)
assert abs(optimizer.param_groups[0]["lr"] - 0.1) < 1e-9, optimizer.param_groups[0]["lr"]
model = nn.ModuleList([first, second])
