"""What becomes of the script's objects on their way: paths, locks, names; and who gets what of a batch."""

import pathlib
import pickle
import subprocess
import sys
import threading
import types

import pytest
import torch
from torch import nn

from pyedt import _batches, _chance, _loader, _travel

THERE = {"DATA_DIR": "/there/data", "RESULT_DIR": "/there/data/results", "cwd": "/there/code"}


def test_paths_below_a_root_are_those_of_this_host(monkeypatch):
    monkeypatch.setattr(_travel, "roots", lambda: {"DATA_DIR": "/here", "RESULT_DIR": "/results of here", "cwd": "/there/code"})
    sent = {"plain": "/there/data/mnist/x", "root": "/there/data", "result": ("/there/data/results/model",) * 2,
            "path": pathlib.Path("/there/data/a/b"), "other": "/there/database", "within": "see /there/data", "long": "/there/data/" + "ä" * 300,
            "code": "/there/code/main.py", "bytes": b"/there/data/x", "tensor": torch.arange(40000)}
    got = pickle.loads(_travel.moved(_travel.dumps(sent, ()), THERE))
    assert torch.equal(got.pop("tensor"), sent.pop("tensor"))
    assert got == {"plain": "/here/mnist/x", "root": "/here", "result": ("/results of here/model",) * 2,
                   "path": pathlib.Path("/here/a/b"), "other": "/there/database", "within": "see /there/data", "long": "/here/" + "ä" * 300,
                   "code": "/there/code/main.py", "bytes": b"/there/data/x"}


def test_where_folders_are_the_same_nothing_is_changed(monkeypatch):
    monkeypatch.setattr(_travel, "roots", lambda: dict(THERE))
    pickled = _travel.dumps({"x": "/there/data/y"}, ())
    assert _travel.moved(pickled, THERE) is pickled
    assert _travel.moved(pickled, {"HOME": "/there/data"}) is pickled, "a root that this host does not know"


def test_a_lock_is_a_new_one():
    lock = threading.RLock()
    with lock:
        got = pickle.loads(_travel.dumps({"a": lock, "b": lock, "condition": threading.Condition(), "event": threading.Event()}, ()))
    assert got["a"] is got["b"] and got["a"].acquire(blocking=False)
    with got["condition"]:
        got["event"].set()


class SummaryWriter:
    """As TensorBoard's: it holds threads and files."""

    def __init__(self, log_dir):
        self.log_dir, self.lock, self.file = log_dir, threading.Lock(), open(__file__)


SummaryWriter.__module__ = "tensorboardX.writer"


def test_a_tensorboard_writer_is_made_anew_for_the_same_folder(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", sys.modules[__name__])
    monkeypatch.setitem(sys.modules, "tensorboardX.writer", sys.modules[__name__])
    got = pickle.loads(_travel.dumps(SummaryWriter("/runs/1"), ()))
    assert got.log_dir == "/runs/1" and not got.file.closed


class Halved(nn.Module):
    def forward(self, x):
        return x / 2


class Kept(nn.Linear):
    """It leaves something out of its pickle."""

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "cache"}


def test_parametrized_modules_travel_and_stay_parametrized():
    from torch.nn.utils import parametrizations, parametrize

    torch.manual_seed(3)
    first, second = parametrizations.weight_norm(nn.Linear(3, 4)), parametrizations.spectral_norm(Kept(4, 4))
    parametrize.register_parametrization(second, "bias", Halved())
    second.cache = threading.Thread()
    model = nn.Sequential(first, second, parametrizations.orthogonal(nn.Linear(4, 2)), first.parametrizations.weight)
    optimizer = torch.optim.Adam(model.parameters())
    got, its = pickle.loads(_travel.dumps((model, optimizer), [optimizer]))
    assert got.state_dict().keys() == model.state_dict().keys() and not hasattr(got[1], "cache")
    assert got[3] is got[0].parametrizations.weight, "what was one module is one"
    x = torch.ones(2, 3)
    got.eval(), model.eval()
    assert torch.equal(got[:3](x), model[:3](x)) and torch.equal(got[1].bias, second.bias)
    assert {id(p) for p in its.param_groups[0]["params"]} == {id(p) for p in got.parameters()}
    again = pickle.loads(_travel.dumps(got, ()))
    assert torch.equal(again[:3](x), model[:3](x)), "and once more: as a job's model does"


def halve(x):
    return x / 2


def test_what_changes_the_gradient_of_a_parameter_travels_with_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.register_hook(lambda gradient: gradient * (model[0].weight > 9))  # of the parameter itself, which holds it
    model[0].weight.register_hook(lambda gradient: gradient + 3)
    model[1].weight.register_hook(lambda gradient: gradient * 2)
    model[1].weight.requires_grad_(False)
    model[1].tied = model[0].weight
    got = pickle.loads(_travel.dumps(model, ()))
    assert type(got[0].weight) is nn.Parameter and got[1].tied is got[0].weight and not got[1].weight.requires_grad
    got(torch.ones(1, 2)).sum().backward()
    assert torch.equal(got[0].weight.grad, torch.full((2, 2), 3.0)) and torch.equal(got[0].weight, model[0].weight)
    assert got[1].weight.grad is None and len(got[1].weight._backward_hooks) == 1
    model[0].bias.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(_travel.Refused, match=r"shape \(2,\) has a hook .*register_hook\(\)"):
        _travel.dumps(model, ())


def test_a_module_of_torch_jit_is_refused_with_what_to_do():
    scripted = torch.jit.trace(nn.Linear(1, 1), torch.zeros(1))
    with pytest.raises(TypeError, match=r"Linear was made by torch.jit.*after train\(\)"):
        _travel.dumps(nn.Sequential(scripted), ())
    with pytest.raises(TypeError, match=r"halve was made by torch.jit"):
        _travel.dumps({"loss": torch.jit.trace(halve, torch.zeros(1))}, ())


def test_another_optimizer_is_refused_by_its_name():
    model = nn.Linear(1, 1)
    known, other = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters(), lr=1)
    _travel.dumps(known, [known])
    with pytest.raises(TypeError, match=r"another optimizer \(SGD\).*optimizer=\["):
        _travel.dumps(lambda: other, [known])


CUDA = """
import torch
@torch.jit.script
def before(x: torch.Tensor):
    return x + torch.zeros(2)
import fabric_model
@torch.jit.script
def after(x: torch.Tensor):
    return x + torch.ones(2).to("cpu")
model = torch.nn.Linear(2, 2).cuda().to("cuda:1").to(torch.device("cuda"), torch.float64)
assert model.weight.dtype == torch.float64 and model.weight.device.type == "cpu"
x = torch.zeros(2, device="cuda").cuda(non_blocking=True).to(device="cuda").pin_memory()
assert torch.equal(before(x) + after(x), torch.ones(2)) and torch.zeros_like(x, device="cuda").device.type == "cpu"
torch.save(x, "x.pt")
torch.load("x.pt", map_location="cuda:0")
from pyedt import _travel
assert b"torch" in _travel.dumps(torch.zeros, ()) and len(_travel.dumps(torch.zeros, ())) < 100, "by its name"
"""


def test_cuda_is_a_word_for_the_cpu_where_no_gpu_is(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CUDA)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("there is no GPU here") == 1


# ---- batches ----

class Net(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward


def plus(outputs, *targets):
    return outputs, *targets


ONE, TWO = (lambda x: x), (lambda x, mask=None: (x, mask))
LEFT, RIGHT = torch.ones(()), torch.zeros(())
GIVEN = [  # what, forward, loss, batch, outputs, what the loss gets after them
    ("a pair", ONE, plus, [1, 2], 1, (2,)),
    ("a pair of inputs", lambda a, b: (a, b), plus, [(1, 2), 3], (1, 2), (3,)),
    ("named inputs", lambda a, b: (a, b), plus, [{"b": 1, "a": 2}, 3], (2, 1), (3,)),
    ("two inputs and a target", lambda a, b: (a, b), plus, [1, 2, 3], (1, 2), (3,)),
    ("an input, a target and its weight", ONE, plus, [1, 2, 3], 1, (2, 3)),
    ("the loss takes one, the network may take two", TWO, lambda outputs, y: outputs, [1, 2, 3], (1, 2), (3,)),
    ("one item", ONE, plus, [4], 4, (4,)),
    ("a dict", lambda x, y2=0: (x, y2), plus, {"x": 1, "label": 2, "id": 3}, (1, 0), (2,)),
    ("a dict whose labels the network wants, too", lambda x, labels: (x, labels), plus, {"x": 1, "labels": 2}, (1, 2), (2,)),
    ("a dict for any names", lambda **all: all, plus, {"x": 1, "y": 2}, {"x": 1}, (2,)),
    ("all for the network", lambda a, b, c: (a, b, c), lambda outputs: outputs, [1, 2, 3], (1, 2, 3), ()),
    ("all for the network, and a loss that takes any", lambda a, b, c: (a, b, c), lambda outputs, *rest: outputs, [1, 2, 3], (1, 2, 3), ()),
    ("two for the network", lambda a, b: (a, b), lambda outputs: outputs, [LEFT, RIGHT], (LEFT, RIGHT), ()),
    ("a dict as a whole", lambda batch: batch, plus, {"x": 1, "z": 2}, {"x": 1, "z": 2}, ({"x": 1, "z": 2},)),
]


@pytest.mark.parametrize("what,forward,loss,batch,outputs,targets", GIVEN, ids=[g[0] for g in GIVEN])
def test_who_gets_what_of_a_batch(what, forward, loss, batch, outputs, targets):
    assert _batches.Batches(Net(forward), loss, []).forward(batch) == (outputs, targets)


def test_a_metric_of_two_arguments_gets_the_first_target():
    batches = _batches.Batches(Net(ONE), plus, [lambda outputs, y: y, lambda outputs, y, w: w])
    assert batches.measure(0, (5, 7)) == [5, 7]


@pytest.mark.parametrize("value,words", [
    (lambda loss: loss.expand(8), r"loss function must return one number; it returned Tensor \[8\]: reduction='none'\?"),
    (lambda loss: loss.item(), r"must return a tensor, not float: without .item\(\)"),
    (lambda loss: loss.detach(), r"depends on no parameter that is trained: by .detach\(\)"),
    (lambda loss: None, r"must return one number; it returned None"),
    (lambda loss: (loss, {"kl": 1}), r"it returned tuple of 2 \(Tensor \[\], \{'kl': int\}\)")])
def test_a_loss_that_is_none_is_said_by_what_it_is(value, words):
    batches = _batches.Batches(nn.Linear(1, 1), lambda outputs, y: value(outputs.mean()), [])
    with pytest.raises(TypeError, match=words):
        batches.loss_to_train(*batches.forward([torch.ones(2, 1), torch.ones(2, 1)]))


def test_a_metric_that_is_no_number_is_named():
    def confusion(outputs, y):
        return [1, 2]

    with pytest.raises(TypeError, match=r"metric confusion must return one number; it returned list of 2 \(int, int\)"):
        _batches.Batches(nn.Linear(1, 1), plus, [confusion]).measure(0, (1,))


@pytest.mark.parametrize("odd,words", [
    ((torch.ones(5), 0), r"sample 7 of the data set is tuple of 2 \(Tensor \[4\], int\), sample 3 is tuple of 2 \(Tensor \[5\], int\)"),
    (None, r"sample 3 is None\. "), ])
def test_samples_that_make_no_batch_are_named(odd, words):
    rows = [(torch.ones(4), 0)] * 9
    rows[3] = odd
    with pytest.raises(TypeError, match=words):
        _loader.fetch(_loader.Handout(rows, torch.utils.data.default_collate), [7, 3, 1])
    with pytest.raises(TypeError, match="Make them alike, or give a fn_batch_collate: [^:]+$"):  # before torch's own words, which may be long
        _loader.fetch(_loader.Handout(rows, torch.utils.data.default_collate), [7, 3, 1])

    def own(samples):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        _loader.fetch(_loader.Handout(rows, own), [7, 3, 1])


# ---- chance ----

def test_generators_are_found_wherever_the_script_has_put_them():
    import random

    import numpy as np

    inner = np.random.default_rng(1)

    class Rows:
        def __init__(self):
            self.parts = [{"rng": random.Random(1)}, torch.Generator()]
            self.shared = random  # the module's own is seeded already

        def __getitem__(self, i):
            return inner.random()

    found = _chance.find([Rows(), np.random.mtrand._rand])
    assert {type(one) for one in found} == {random.Random, torch.Generator, np.random.Generator}


def test_the_scripts_own_seed_counts_and_the_minibatch_too():
    def draw(own, seed):
        generator = torch.Generator().manual_seed(own)
        _chance.Chance([[generator]]).seed(seed)
        return torch.rand(1, generator=generator).item()

    assert draw(1, 1) == draw(1, 1) != draw(2, 1) != draw(2, 2)


def test_code_keeps_its_file_and_line():
    def fails():
        raise KeyError("row")

    made = pickle.loads(_travel.dumps(types.FunctionType(fails.__code__, {"__name__": "__main__"}), None))
    assert made.__code__.co_filename == __file__ and made.__code__.co_firstlineno == fails.__code__.co_firstlineno
