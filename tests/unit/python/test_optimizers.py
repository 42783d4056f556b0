"""The update of the weights: torch's fused kernel where it takes all of it, torch's plain one else (O3 of _optimizers.py)."""

import copy
import subprocess
import sys

import pytest
import torch

from pyedt import _optimizers

KINDS = [
    (torch.optim.SGD, dict(lr=0.1)),
    (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)),
    (torch.optim.Adam, dict(amsgrad=True)),
    (torch.optim.AdamW, dict()),
    (torch.optim.Adagrad, dict()),
]


def pair(kind, words):
    """The same parameters under two optimizers: one that torch steps, one that we do."""
    torch.manual_seed(3)
    ours = [torch.nn.Parameter(torch.randn(7, 13)), torch.nn.Parameter(torch.randn(5))]
    theirs = copy.deepcopy(ours)
    return (kind(theirs, **words), theirs), (kind(ours, **words), ours)


def give(parameters, others, without=()):
    for i, (mine, other) in enumerate(zip(parameters, others)):
        mine.grad = None if i in without else torch.randn_like(mine)
        other.grad = None if i in without else mine.grad.clone()


@pytest.mark.parametrize("kind,words", KINDS, ids=["%s %s" % (kind.__name__, " ".join(words)) for kind, words in KINDS])
def test_a_fused_update_differs_by_rounding_and_leaves_no_trace(kind, words, monkeypatch):
    (plain, theirs), (fused, ours) = pair(kind, words)
    seen, step = [], kind.step
    monkeypatch.setattr(kind, "step", lambda self, *more: (seen.append(self.param_groups[0]["fused"]), step(self, *more))[1])
    for _ in range(5):
        give(ours, theirs)
        kept = [p.grad.clone() for p in ours]
        plain.step()
        _optimizers.update(fused)
        assert all(torch.equal(p.grad, was) for p, was in zip(ours, kept)), "the result is read, never written"
    assert seen == [None, True] * 5
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(ours, theirs))
    assert fused.state_dict()["param_groups"] == plain.state_dict()["param_groups"]
    assert [{k: v.dtype for k, v in s.items() if isinstance(v, torch.Tensor)} for s in fused.state.values()] == [
        {k: v.dtype for k, v in s.items() if isinstance(v, torch.Tensor)} for s in plain.state.values()]


@pytest.mark.parametrize("words", [dict(foreach=False), dict(foreach=True), dict(fused=False), dict(differentiable=True)], ids=str)
def test_what_the_script_chose_stays(words):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1, **words)
    parameter.grad = torch.ones(3)
    assert not _optimizers.may_fuse(optimizer)


def test_a_parameter_without_a_gradient_makes_the_update_plain_and_the_next_one_right():
    (plain, theirs), (fused, ours) = pair(torch.optim.SGD, dict(lr=0.1, momentum=0.9))
    for without in ((1,), (), (0,), ()):  # the second one finds a momentum for the first parameter alone
        give(ours, theirs, without)
        plain.step()
        _optimizers.update(fused)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(ours, theirs))


def test_other_optimizers_are_stepped_as_they_are():
    parameter = torch.nn.Parameter(torch.ones(3))

    class Own(torch.optim.SGD):
        pass

    for optimizer in (torch.optim.RMSprop([parameter]), Own([parameter], lr=0.1)):
        parameter.grad = torch.ones(3)
        assert not _optimizers.may_fuse(optimizer)
        _optimizers.update(optimizer)
    assert parameter[0] < 1


@pytest.mark.parametrize("kind,there", [("SGD", True), ("Adam", True), ("AdamW", True), ("Adagrad", False)])
def test_on_a_device_only_what_has_a_fused_kernel_there_is_fused(kind, there):
    """A device that holds no values stands for a card."""
    parameter = torch.nn.Parameter(torch.zeros(3, device="meta"))
    parameter.grad = torch.zeros(3, device="meta")
    assert _optimizers.may_fuse(getattr(torch.optim, kind)([parameter], lr=0.1)) is there


def test_a_count_of_steps_that_lies_elsewhere_goes_to_its_parameter(monkeypatch):
    """The first update could not be fused, and torch keeps the count on the processor then."""
    parameter = torch.nn.Parameter(torch.zeros(3, device="meta"))
    parameter.grad = torch.zeros(3, device="meta")
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter] = {"step": torch.tensor(1.0)}
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: None)
    _optimizers.update(optimizer)
    assert optimizer.state[parameter]["step"].device.type == "meta"


WAITS = """
import sys, types
import torch
import fabric_model
from torch import nn

model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))

def train(kind):
    optimizer = kind([p for p in model.parameters() if p.ndim == 2 or kind.__name__ != "Muon"], lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.ones(4, 1, 8, 8)), torch.tensor([1, 2, 3, 4]))
        loss.backward()
        return loss
    for _ in range(2):
        closure()
        optimizer.step(*[closure] * (kind.__name__ == "LBFGS"))
        schedule.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer

kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type) and kind not in (torch.optim.Optimizer, torch.optim.SparseAdam)]
made = [train(kind) for kind in kinds]
assert len(made) > 10 and "torch._dynamo.config" not in sys.modules, "an optimizer has imported the compiler"
waited = sys.modules["torch._dynamo"]
assert waited.__name__ == "torch._dynamo" and waited.__spec__.origin.endswith("__init__.py") and "torch._dynamo.config" not in sys.modules

def fused(x):
    made[0].zero_grad()  # which the compiler leaves alone, though it has run before
    return 2 * x + 1

seen = []
def backend(graph, inputs):
    seen.append(graph)
    return graph.forward

assert torch.compile(fused, backend=backend)(torch.ones(3)).tolist() == [3, 3, 3] and len(seen) == 1
assert torch._dynamo is waited is sys.modules["torch._dynamo"] and type(waited) is types.ModuleType
assert waited.disable.__module__.startswith("torch._dynamo") and waited.config.__name__ == "torch._dynamo.config"
train(torch.optim.Adam)
"""


@pytest.mark.parametrize("first", ["import torch", "import torch._dynamo", "import fabric_model"])
def test_the_compiler_is_imported_once_something_is_compiled(first):
    """Not by the first optimizer, which costs more than a second; where the script has imported it, it stays."""
    text = first + "\n" + WAITS
    if first == "import torch._dynamo":
        text = text.replace('"torch._dynamo.config" not in sys.modules', '"torch._dynamo.config" in sys.modules')
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_submodule_of_the_compiler_brings_all_of_it():
    text = "import torch, fabric_model\nimport torch._dynamo.config as config\nassert config is torch._dynamo.config and torch._dynamo.optimize"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
