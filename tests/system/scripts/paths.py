"""Paths that the script has made of the variables, as globals, within an object and in a Path."""
import os
import pathlib

import torch
from fabric_model import FabricModel
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
RESULT = pathlib.Path(os.environ.get("RESULT_DIR", "."))
NAMES = {"cwd": os.getcwd(), "result": os.path.join(os.environ.get("RESULT_DIR", "."), "model")}


class Where:
    def __init__(self, data):
        self.data = data


where = Where((os.environ.get("DATA_DIR", "."),))


def datasets():
    assert os.path.samefile(HERE, os.path.dirname(os.path.abspath("main.py"))) and os.getcwd() == NAMES["cwd"]
    assert str(RESULT) == os.environ.get("RESULT_DIR", ".") and NAMES["result"].startswith(str(RESULT))
    assert where.data == (os.environ.get("DATA_DIR", "."),)
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None


torch.manual_seed(5)
model = nn.Linear(6, 2)
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(1, 4, 3)
