"""Handwritten digits, trained elastically: an ordinary FabricModel script.

scikit-learn's 1,797 bundled digits of 8x8 pixels. Every fifth is kept aside: the network never trains on those, and
docs/demo/evaluate.py measures the final model on them."""

import torch
from fabric_model import FabricModel
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

EPOCHS, BATCH, ENGINES = 100, 16, 8


def digits():
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    held_out = torch.arange(len(labels)) % 5 == 0
    return images, labels, held_out


def datasets():
    images, labels, held_out = digits()
    return (TensorDataset(images[~held_out], labels[~held_out]), TensorDataset(images[held_out], labels[held_out]))


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 464), nn.ReLU(), nn.Dropout(0.3), nn.Linear(464, 10))


def main():
    torch.manual_seed(7)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer)
    fabric.train(EPOCHS, BATCH, ENGINES, validation_freq=10, checkpoint_freq=50)


if __name__ == "__main__":
    main()
