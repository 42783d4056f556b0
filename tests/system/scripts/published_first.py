"""The shape of the elastic PyTorch samples of WMLA 1.2.3 to 2.3: a strict parser, the library's zip at the head of the path, data
below DATA_DIR that the data function reads, digits by a CNN with dropout, the loggers of G1, and a guard."""
import argparse
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

if os.environ.get("FABRIC_HOME"):
    sys.path.insert(0, os.path.join(os.environ["FABRIC_HOME"], "libs", "fabric.zip"))
from edtcallback import EDTLoggerCallback
from fabric_model import FabricModel

parser = argparse.ArgumentParser(description="elastic digits")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--no-cuda", action="store_true", default=False)
parser.add_argument("--numWorker", type=int, default=4)
args = parser.parse_args()
use_cuda = not args.no_cuda and torch.cuda.is_available()
data_dir = os.environ.get("DATA_DIR") or "."
print("data in", data_dir, "cuda", use_cuda)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(36, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv1(x)), 2))
        return F.log_softmax(self.fc1(x.view(-1, 36)), dim=1)


class Digits(torch.utils.data.Dataset):
    """As torchvision's, in little."""

    def __init__(self, root, train=True, transform=None):
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        chosen = slice(0, 96) if train else slice(96, 128)
        self.data, self.targets, self.transform = images[chosen].reshape(-1, 8, 8), labels[chosen], transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data[index]), int(self.targets[index])


def to_tensor(image):
    return torch.from_numpy(np.asarray(image, dtype=np.float32))[None] / 16.0


def getDatasets():
    return Digits(data_dir, train=True, transform=to_tensor), Digits(data_dir, train=False, transform=to_tensor)


if __name__ == "__main__":
    torch.manual_seed(1)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5, weight_decay=1e-4)
    edt_m = FabricModel(model, getDatasets, F.nll_loss, optimizer, driver_logger=EDTLoggerCallback())
    edt_m.train(args.epochs, args.batch_size, args.numWorker)
    print("done")
