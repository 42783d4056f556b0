"""A callback that holds a lock and a writer of its own; then training goes on from the checkpoint of the first call."""
import os
import threading

import torch
from callbacks import Callback
from fabric_model import FabricModel
from torch import nn


class Writer(Callback):
    def __init__(self):
        super().__init__()
        self.lock, self.condition = threading.RLock(), threading.Lock()
        self.seen = []

    def on_epoch_end(self, epoch, save_model=False):
        with self.lock, self.condition:
            self.seen.append(epoch)


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None


torch.manual_seed(5)
model = nn.Linear(6, 2)
optimizer = torch.optim.Adam(model.parameters())
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=Writer())
fabric.train(1, 4, 3)
folder = os.path.join(os.environ.get("RESULT_DIR", "result"), "model", "train")
fresh = nn.Linear(6, 2)
fresh.load_state_dict(torch.load(os.path.join(folder, "model_epoch_1.pth")))
again = torch.optim.Adam(fresh.parameters())
again.load_state_dict(torch.load(os.path.join(folder, "model_epoch_1_optimizer_state.pth")))
steps = int(optimizer.state[model.weight]["step"])
fabric.train(1, 4, 3)
FabricModel(fresh, datasets, nn.CrossEntropyLoss(), again).train(1, 4, 3)
assert int(optimizer.state[model.weight]["step"]) == int(again.state[fresh.weight]["step"]) == 2 * steps
model = nn.ModuleList([model, fresh])
