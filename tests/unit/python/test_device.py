"""Which device an engine computes on, and what tells apart those that compute other bits."""

import os

import pytest
import torch
from pyedt import _engine, _trainer


@pytest.fixture
def card(monkeypatch):
    """A card, as torch would tell of it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Pretence 80GB")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.parametrize("granted", (None, ""))
def test_without_a_granted_card_it_is_the_processor(card, monkeypatch, granted):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if granted is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", granted)
    assert _trainer.engine_device() == torch.device("cpu")
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_granted_card_is_the_only_one_and_gives_the_same_bits(card, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000")
    assert _trainer.engine_device() == torch.device("cuda", 0)
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and not torch.backends.cudnn.benchmark


def test_a_card_that_torch_cannot_use_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000")
    assert _trainer.engine_device() == torch.device("cpu")


def test_the_numeric_class_names_card_and_library(card, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000")
    named = _engine.numeric_class(_engine.device_class(_trainer.engine_device()))
    assert named.endswith(" cuda-13.0 NVIDIA Pretence 80GB") and len(named) < 160
    assert _engine.numeric_class(_engine.device_class(torch.device("cpu"))).endswith(" cpu")
