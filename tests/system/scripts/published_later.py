"""The shape of the samples and notebooks of 4.x: no guard, metrics, loggers of G3 that derive from nothing, a collate function, a
callback that changes the learning rate, the effective batch instead of engines."""
import torch
from callbacks import Callback
from pyedt.fabric_model import FabricModel
from torch import nn


class Logger:
    def __init__(self, name):
        self.name, self.calls = name, 0

    def on_train_begin(self):
        print(self.name, "begins", flush=True)

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.calls += 1
        assert set(metrics) == {"loss", "accuracy", "spread"} and workers >= 1, metrics

    def log_test_metrics(self, metrics, iteration, epoch):
        print(self.name, "epoch", epoch, sorted(metrics), flush=True)

    def on_train_end(self):
        print(self.name, "calls", self.calls, flush=True)


class LRDecay(Callback):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def on_epoch_begin(self, epoch):
        for group in self.params["optimizer"].param_groups:
            group["lr"] *= self.gamma


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


class Spread:
    def __call__(self, outputs, targets):
        return outputs.std()


def collate(samples):
    images, labels = zip(*samples)
    return torch.stack(images) * 2 - 1, torch.tensor(labels)


def get_datasets():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = [(torch.tensor(image / 16.0, dtype=torch.float32), int(label)) for image, label in zip(images[:90], labels)]
    return rows[:70], rows[70:]


torch.manual_seed(3)
model = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 10))
driver = Logger("driver")
fabric = FabricModel(model, get_datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.01),
                     metrics=[accuracy, Spread()], driver_logger_callback=driver, worker_logger_callback=Logger("worker"),
                     user_callback=[LRDecay(0.8)], fn_batch_collate=collate)
fabric.train(2, 6, effective_batch_size=20, validation_freq=1, checkpoint_freq=0)
assert driver.calls == 2 * 12, driver.calls  # mini-batches of both epochs
