"""Results for others. save_to_onnx: which inputs a network is written with, when it is refused, and, where the package onnx is installed, what the
written network answers."""

import os
import zipfile

import numpy as np
import pytest
import torch
from jobs import Rows, network
from torch import nn

from fabric_model import FabricModel
from pyedt import _batches, _onnx

X, Y, Z = torch.ones(1, 6), torch.zeros(1, dtype=torch.long), torch.full((1, 6), 2.0)


class Two(nn.Module):
    def forward(self, left, right):
        return left + right


class Named(nn.Module):
    def forward(self, input_ids, mask=None):
        return input_ids


INPUTS = [
    ("a pair", network(), (X, Y), ((X,), {})),
    ("a pair with two inputs", Two(), ((X, Z), Y), ((X, Z), {})),
    ("inputs by name", Two(), ({"left": X, "right": Z}, Y), ((), {"left": X, "right": Z})),
    ("three items", Two(), [X, Z, Y], ((X, Z), {})),
    ("one tensor", network(), X, ((X,), {})),
    ("a tuple of one", network(), (X,), ((X,), {})),
    ("a dict", Named(), {"input_ids": X, "labels": Y, "mask": Z}, ((), {"input_ids": X, "mask": Z})),
    ("a dict that the network takes whole", network(), {"a": X, "y": Y}, (({"a": X},), {})),
]


@pytest.mark.parametrize("what,model,batch,wanted", INPUTS, ids=[row[0] for row in INPUTS])
def test_the_network_is_written_with_the_inputs_that_it_trains_with(what, model, batch, wanted):
    assert _batches.Batches(model, lambda outputs, targets: outputs, ()).inputs(batch) == wanted


def train(save_to_onnx=True, model=None):
    torch.manual_seed(5)
    model = model or network()
    fabric = FabricModel(model, lambda: (Rows(40), Rows(8)), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1),
                         save_to_onnx=save_to_onnx)
    fabric.train(1, 4, 2)
    return model


@pytest.fixture
def result(tmp_path, alone):
    return tmp_path / "result" / "model" / "train"


def weights(model):
    return b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())


def test_a_network_that_cannot_be_written_is_refused_before_its_first_step(result, monkeypatch):
    written = []

    def export(network, *rest, **options):
        written.append(weights(network))
        raise TypeError("no such operator:\n  grid")

    monkeypatch.setattr(_onnx, "missing", lambda backend: "")
    monkeypatch.setattr(torch.onnx, "export", export)
    model = network()
    before = weights(model)
    with pytest.raises(RuntimeError, match="save_to_onnx: this network cannot be written as ONNX.*no such operator: grid"):
        train(model=model)
    assert written == [before] and weights(model) == before and not result.exists()


def test_trying_it_first_changes_no_bit(result, monkeypatch):
    monkeypatch.setattr(_onnx, "missing", lambda backend: "")
    monkeypatch.setattr(torch.onnx, "export", lambda network, given, path, **options: open(path, "w").close())
    assert weights(train()) == weights(train(save_to_onnx=False))
    assert sorted(os.listdir(result)) == ["model_epoch_1.pth", "model_epoch_1_optimizer_state.pth", "model_epoch_final.onnx",
                                          "model_epoch_final.pth", "model_epoch_final_optimizer_state.pth"]


def test_download_gives_what_was_trained(result, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("APP_ID", "shoal-7")
    model = network()
    fabric = FabricModel(model, lambda: (Rows(40), None), nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(RuntimeError, match="comes after train"):
        fabric.download()
    fabric.train(1, 4, 2)
    folder = tmp_path / "deep" / "er"
    assert fabric.download(str(folder)) == str(folder / "shoal-7.zip") and os.listdir(folder) == ["shoal-7.zip"]
    assert capsys.readouterr().out.splitlines()[-1] == "Save model:  %s" % (folder / "shoal-7.zip")
    with zipfile.ZipFile(folder / "shoal-7.zip") as archive:
        assert archive.read("model/train/model_epoch_final.pth") == (result / "model_epoch_final.pth").read_bytes()


def test_what_is_written_answers_as_the_network(result):
    """For any number of samples."""
    reference = pytest.importorskip("onnx.reference", reason="set-up installs no onnx")
    model = train().eval()
    written = reference.ReferenceEvaluator(str(result / "model_epoch_final.onnx"))
    for samples in (1, 7):
        x = torch.randn(samples, 6)
        assert np.allclose(written.run(["output"], {"input": x.numpy()})[0], model(x).detach().numpy(), atol=1e-5)
