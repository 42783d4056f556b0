"""An IterableDataset that shards itself by rank and by loader process, as those for torchrun do: here every engine sees all of it."""
import os

import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, files, rows):
        self.files, self.rows = files, rows

    def __iter__(self):
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for number, seed in enumerate(self.files):
            if number % (world * workers) != rank * workers + worker:
                continue
            chance = torch.Generator().manual_seed(seed)
            for _ in range(self.rows):
                x = torch.randn(6, generator=chance)
                yield x, (x.sum() > 0).long()


def datasets():
    return (DataLoader(Shards(range(5), 10), batch_size=4, num_workers=2, pin_memory=True, persistent_workers=True),
            DataLoader(Shards(range(5, 7), 4), batch_size=4))


class Count:
    def __init__(self):
        self.last = 0

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.last = iteration


torch.manual_seed(5)
model = nn.Linear(6, 2)
count = Count()
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), driver_logger_callback=count).train(
    2, 4, 3, num_dataloader_threads=1)
assert count.last == 2 * 13, count.last  # 50 samples, each once in a data epoch
