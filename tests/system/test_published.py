"""A published sample's shape, as WMLA's users submit it: the client's request with all that it sends, and `shoal job run`."""

import gzip
import io
import json
import os
import pathlib
import shutil
import struct

import pytest
import training
from helpers import ended, log_of, result_of, submit
from test_bad_input import post, tar

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
MNIST = os.environ.get("SHOAL_TEST_MNIST", "")  # a folder with the test set of MNIST; without it scikit-learn's digits, in its format
MAIN = """
from __future__ import print_function
import argparse, gzip, os, struct, sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
fabric_zip = os.path.join(os.environ["FABRIC_HOME"], "libs", "fabric.zip")
sys.path.insert(0, fabric_zip)
from fabric_model import FabricModel
from edtcallback import EDTLoggerCallback

parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
print("data", os.environ["DATA_DIR"])

class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=5)
        self.drop = nn.Dropout2d()
        self.fc = nn.Linear(576, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.drop(self.conv1(x)), 2))
        return F.log_softmax(self.fc(x.view(-1, 576)), dim=1)

def read(name, head):
    with gzip.open(os.path.join(os.environ["DATA_DIR"], name)) as file:
        return np.frombuffer(file.read()[head:], np.uint8)

class Digits(torch.utils.data.Dataset):
    def __init__(self, chosen):
        self.x = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[chosen]
        self.y = read("t10k-labels-idx1-ubyte.gz", 8)[chosen]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.from_numpy((self.x[i] / 255.0 - 0.1307) / 0.3081).float(), int(self.y[i])

def getDatasets():
    return Digits(slice(0, 600)), Digits(slice(600, 700))

if __name__ == "__main__":
    torch.manual_seed(1)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    edt_m = FabricModel(model, getDatasets, F.nll_loss, optimizer, driver_logger=EDTLoggerCallback(), enable_onnx=False)
    edt_m.train(args.epochs, args.batch_size, 3)
"""
# What clients of several versions send, all at once.
ARGS = ("--exec-start edtPyTorch --numWorker 3 --gpuPerWorker 1 --workerMemory 4G --workerDeviceType cpu --numPs 2 --edt-options "
        "maxWorkers=3,mode=async,staleness=2 --cs-datastore-meta type=fs,data_path=mnist --model-main pytorch_mnist_EDT.py --model-dir "
        "pytorch_mnist_edt --python-version 3.10 --msd-env OMP_NUM_THREADS=1 --ig dli --batch-size 32 --epochs 2 --lr 0.05")
SAID = ("--numPs 2 has no effect here: no process is a parameter server", "mode=async is done as sync_gdc", "--edt-options: staleness has no effect")


def put_data(folder):
    folder.mkdir(parents=True)
    if MNIST:
        for path in pathlib.Path(MNIST).glob("t10k-*.gz"):
            shutil.copy(path, folder)
        return
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    large = images[:1000].reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">IIII", 2051, 1000, 28, 28))
        file.write((numpy.pad(large, ((0, 0), (2, 2), (2, 2))) * 15).astype("uint8").tobytes())
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">II", 2049, 1000) + labels[:1000].astype("uint8").tobytes())


def test_a_sample_is_trained_as_its_client_submits_it_and_by_one_worker_to_the_same_bits(mesh, tmp_path):
    alpha, beta, gamma = mesh.hosts
    for host in mesh.hosts:
        put_data(host.data / "datasets" / "mnist")
    helper = (pathlib.Path(__file__).parent / "scripts" / "edtcallback.py").read_bytes()
    content = tar({"pytorch_mnist_edt/pytorch_mnist_EDT.py": MAIN.encode(), "pytorch_mnist_edt/edtcallback.py": helper})
    status, text = post(mesh, beta, content, ARGS, "pytorch_mnist_edt.modelDir.tar")
    assert status in (200, 201, 202), (status, text)
    job = json.loads(text)["id"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "main.py").write_text(MAIN)
    (tmp_path / "model" / "edtcallback.py").write_bytes(helper)
    alone = submit(mesh, alpha, tmp_path / "model", "--workers", 1, "--data-path", "mnist", framework="edtPyTorch",
                   script=("--batch-size", "32", "--epochs", "2", "--lr", "0.05"))
    found = []
    for one in (job, alone):
        facts = ended(mesh, one, 240)
        assert facts["state"] == "FINISHED", facts
        files = result_of(mesh, gamma, one, tmp_path)
        found.append({name: torch.load(io.BytesIO(files["model/train/model_epoch_final%s.pth" % name]), weights_only=True)
                      for name in ("", "_optimizer_state")})
    assert training.difference(found[0], found[1]) is None
    launcher = log_of(mesh, alpha, job, "--which", "launcher")
    for line in SAID:
        assert launcher.count(line) == 1, (line, launcher)
    assert "has no effect" not in log_of(mesh, alpha, alone, "--which", "launcher")
