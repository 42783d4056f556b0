"""Training that stops when validation gets no better: a round a call, and the best weights at the end. Then one that a callback
ends, by an error that the script catches: it goes on with the checkpoint of then."""
import copy
import os

import torch
from callbacks import Callback
from fabric_model import FabricModel
from torch import nn


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.last = patience, float("inf"), 0, None

    def log_test_metrics(self, metrics, iteration, epoch):
        self.last = metrics["loss"]

    def stop(self):
        self.bad = 0 if self.last < self.best else self.bad + 1
        self.best = min(self.best, self.last)
        return self.bad >= self.patience


def datasets():
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 2, (60,), generator=torch.Generator().manual_seed(2))  # nothing is to be learned
    return torch.utils.data.TensorDataset(x[:40], y[:40]), torch.utils.data.TensorDataset(x[40:], y[40:])


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
stopping = EarlyStopping(1)
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, driver_logger_callback=stopping)
for rounds in range(6):
    fabric.train(1, 5, 4)
    if stopping.last < stopping.best:
        best = copy.deepcopy(model.state_dict())
    if stopping.stop():
        break
print("stopped after", rounds + 1, "rounds, best", stopping.best)
assert stopping.bad == 1, "it never got worse"
model.load_state_dict(best)


class StopTraining(Exception):
    pass


class Enough(Callback):
    def __init__(self, wanted):
        super().__init__()
        self.wanted, self.losses = wanted, []

    def on_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, save_model=False):
        mean, self.losses = sum(self.losses) / len(self.losses), []
        if mean < self.wanted:
            raise StopTraining("epoch %d" % (epoch + 1))


second = nn.Linear(4, 2)
fabric = FabricModel(second, lambda: (datasets()[0], None), nn.CrossEntropyLoss(), torch.optim.Adam(second.parameters(), lr=0.02), user_callback=Enough(0.7))
try:
    fabric.train(50, 5, 4)
    raise SystemExit("it was to be stopped")
except (RuntimeError, StopTraining) as error:  # the second where the script runs alone
    last = int(str(error).split("epoch ")[1].split()[0])
folder = os.path.join(os.environ.get("RESULT_DIR", "result"), "model", "train")
second.load_state_dict(torch.load(os.path.join(folder, "model_epoch_%d.pth" % last), weights_only=True))
print("stopped after epoch", last)
model = nn.ModuleList([model, second])
