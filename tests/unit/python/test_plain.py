"""What engines tell each other of callbacks and optimizers: values that cannot run code when they are read."""

import collections
import dataclasses
import enum
import os
import pickle
import random
import struct
import threading

import msgpack
import numpy
import pytest
import torch
from pyedt import _plain, _state


def travel(value, own=None, named=()):
    """Said by one engine, read by another that has `own` at its place."""
    by_name, tensors = dict(named), []

    def add(tensor):
        tensors.append(tensor.detach().clone())
        return len(tensors) - 1

    by_id = {id(one): name for name, one in by_name.items()}
    said = _plain.Writer(lambda one: by_id.get(id(one)), add).dump(value)
    return _plain.Reader(by_name.__getitem__, tensors, own).load(said)


@pytest.mark.parametrize("value", (
    None, True, 3, -(1 << 63), 1 << 200, 2.5, float("-inf"), "text", b"bytes", bytearray(b"more"), 1 + 2j, [], [1, [2, (3,)]], (), (1, "2"),
    {1, 2}, frozenset("ab"), {"a": {2: None, (1, 2): [3]}}, collections.OrderedDict(b=1, a=2), collections.Counter("aab"),
    collections.deque([1, 2]), torch.Size([2, 3]), torch.float16, torch.device("cpu"), numpy.float32(1.5)), ids=repr)
def test_plain_values_come_back(value):
    back = travel(value)
    assert back == value and type(back) is type(value)


def test_what_is_written_of_a_state_that_was_given_has_the_bits_of_the_givers():
    """A pickle refers back to a text that was there before: it must be the same object after the way, too."""
    value = {"state": {n: {"step": n, "exp_avg": [n], "name": "step"} for n in range(3)}, "groups": [{"lr": 0.1, "step": 1}, {"lr": 0.2}]}
    assert pickle.dumps(travel(value)) == pickle.dumps(value)


def test_tensors_and_arrays_come_back_to_the_bit():
    tensor, parameter = torch.randn(3, 2), torch.nn.Parameter(torch.randn(4))
    array = numpy.arange(6, dtype="<i2").reshape(2, 3)
    back = travel({"t": tensor, "p": parameter, "a": array, "again": tensor})
    assert torch.equal(back["t"], tensor) and back["t"] is back["again"] and not back["t"].requires_grad
    assert torch.equal(back["p"], parameter) and type(back["p"]) is torch.nn.Parameter and back["p"].requires_grad
    assert back["a"].dtype == array.dtype and (back["a"] == array).all()


class Inner:
    def __init__(self):
        self.seen = 0


class Best:
    def __init__(self):
        self.losses, self.inner, self.lock, self.chance = [], Inner(), threading.Lock(), random.Random(1)
        self.shown = print


class Outer:
    """Its class has no object among those of a joiner's callbacks, but stands beside one of them."""

    def __init__(self):
        self.value = None


def test_a_callback_takes_what_it_can_into_the_receivers_own():
    donor, own = Best(), Best()
    donor.losses.append(0.5)
    donor.inner.seen = 7
    donor.same = donor.losses
    donor.outer = Outer()
    donor.outer.value = donor.inner
    lock, chance = own.lock, own.chance
    own.gone = 1
    back = travel([donor], [own])
    assert back == [own] and own.losses == [0.5] and own.same is own.losses
    assert own.inner.seen == 7 and own.outer.value is own.inner and type(own.outer) is Outer
    assert own.lock is lock and own.chance is chance and own.shown is print and not hasattr(own, "gone")


class Mode(enum.Enum):
    WARM, MAIN = "warm", "main"


class Place(str, enum.Enum):
    HERE, THERE = "here", "there"


class Point(collections.namedtuple("Point", "x y")):
    def shifted(self):
        return Point(self.x + 1, Place.THERE)


@dataclasses.dataclass
class Slim:
    __slots__ = ("epoch", "loss")
    epoch: int
    loss: object


class Holder:
    def __init__(self, value):
        self.value = value

    def known(self):
        return Mode, Place, Point, Slim


KINDS = ((collections.deque(maxlen=2), collections.deque([1, 2], maxlen=2)), (Mode.WARM, Mode.MAIN), (None, Place.THERE),
         (Point(0, 0), Point([1], Mode.MAIN)), (None, Point(1, 2)), (Slim(0, None), Slim(3, Point(1, 2))), (None, Slim(1, 0.5)),
         (collections.defaultdict(list), collections.defaultdict(list, a=[1])), (None, collections.defaultdict(None, a=1)),
         (collections.defaultdict(threading.Lock), collections.defaultdict(threading.Lock, a=2)))


@pytest.mark.parametrize("mine, theirs", KINDS, ids=lambda one: type(one).__name__)
def test_values_of_every_day_come_back_into_a_callback(mine, theirs):
    own = Holder(mine)
    back = travel([Holder(theirs)], [own])[0]
    assert back is own and own.value == theirs and type(own.value) is type(theirs)
    assert getattr(own.value, "maxlen", None) == getattr(theirs, "maxlen", None)
    assert not isinstance(theirs, (enum.Enum)) or own.value is theirs
    assert getattr(own.value, "default_factory", None) is getattr(theirs, "default_factory", None)
    assert [(one.name, one.value) for one in Mode] == [("WARM", "warm"), ("MAIN", "main")]


def test_an_object_of_another_module_of_the_job_comes_though_the_receiver_has_none_yet(tmp_path, monkeypatch):
    """A callback of the script that makes it when it first needs it."""
    (tmp_path / "figures.py").write_text("class Inner:\n    def __init__(self):\n        self.n = 7\n\n\n"
                                         "class Figures:\n    def __init__(self):\n        self.inner = Inner()\n")
    (tmp_path / "script.py").write_text("import figures\nfrom figures import Figures\n\n\nclass Named:\n    best = None\n\n    def see(self):\n"
                                        "        self.best = Figures()\n\n\nclass Dotted(Named):\n    def see(self):\n"
                                        "        self.best = figures.Figures()\n")
    (tmp_path / "elsewhere").symlink_to(tmp_path)  # the folder may have two names
    monkeypatch.setenv("DLI_WORK_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.syspath_prepend(str(tmp_path))
    import script

    for made in script.Named, script.Dotted:
        donor, own = made(), made()
        donor.see()
        travel([donor], [own])
        assert own.best.inner.n == 7 and type(own.best) is type(donor.best)
    with pytest.raises(ValueError, match="do not know"):
        travel([donor.best], [Inner()])


def test_what_was_one_object_and_is_two_comes_back_as_two():
    own, donor = Holder(Best()), Holder(Best())
    own.best, lock = own.value, own.value.lock
    donor.best = Best()
    donor.best.losses, donor.value.losses = [1], [2]
    travel([donor], [own])
    assert (own.best.losses, own.value.losses) == ([1], [2]) and own.best.lock is lock and own.value.lock is lock


def test_what_both_have_is_named():
    model = torch.nn.Linear(2, 2)
    callback, own = Inner(), Inner()
    callback.model = model
    assert travel([callback], [own], {"model": model})[0].model is model


def test_what_cannot_travel_outside_of_an_object_is_told():
    with pytest.raises(_plain.Cannot, match=r"state\['a'\] is a lock, which cannot travel"):
        travel({"a": threading.Lock()})
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(_plain.Cannot, match="too deeply"):
        travel(deep)


class Trap:
    fired = []

    def __init__(self):
        self.fired.append("init")

    def __reduce__(self):
        return os.mkdir, ("made",)

    def __setstate__(self, state):
        self.fired.append("setstate")


def test_no_code_runs_and_no_class_of_elsewhere_is_made(tmp_path):
    own = {"callbacks": [Inner()]}
    for said in (["c", 0, "subprocess", "Popen", {"args": "x"}, []], ["c", 0, "os", "system", {}, []],
                 ["c", 0, "tempfile", "_TemporaryFileCloser", {"name": "x"}, []], ["c", 0, "builtins", "eval", {}, []],
                 ["c", 0, __name__, "os.mkdir", {}, []], ["o", "nobody"], ["r", 5], ["t", 0, 9, "cpu", False, False],
                 ["y", "enum", "Enum", "x"], ["y", __name__, "Inner", "x"], ["a", 0, __name__, "Inner", []], ["a", 0, "os", "stat_result", []],
                 ["h", 0, "eval", []], ["c", 0, __name__, "Mode", {}, []], ["c", 0, __name__, "Point", {}, []], ["q", 0, [], 1, 2],
                 ["n", "O", [1], b"8bytes.."], ["d", "nn"], ["zz"], {"a": 1}, [], ["i", "9" * 100000], ["c"]):
        with pytest.raises(ValueError, match="does not read"):
            _plain.Reader({}.__getitem__, [], own).load(msgpack.packb(said))
    assert not (tmp_path / "made").exists()
    Trap.fired.clear()
    back = travel([object.__new__(Trap)], [object.__new__(Trap)])
    assert type(back[0]) is Trap and Trap.fired == [] and not (tmp_path / "made").exists()


def test_a_pickle_is_no_state(tmp_path):
    text = b'{"step": 1, "parameters": 0, "tensors": []}'
    body = pickle.dumps(object.__new__(Trap))
    carrier = _state.Carrier(torch.nn.Linear(1, 1), None, torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1),
                             type("Buffers", (), {"tensors": [], "commit": lambda self: None})())
    text = text.replace(b'"parameters": 0', b'"parameters": %d' % len(carrier.parameters))
    tensors = [p.detach().clone() for p in carrier.parameters]
    with pytest.raises(ValueError, match="does not read"):
        carrier.take(_state.MAGIC + struct.pack("<I", len(text)) + text + body, tensors)
    with pytest.raises(ValueError, match="no state of an engine"):
        carrier.take(b"SHOALST1" + struct.pack("<I", len(text)) + text + body, tensors)
    assert not (tmp_path / "made").exists()


def test_noise_is_refused():
    chance = random.Random(5)
    donor = Best()
    donor.tensor = torch.zeros(2)
    good = _plain.Writer(lambda one: None, lambda tensor: 0).dump({"callbacks": [donor], "x": {"a": (1, 2.5), "b": [None, b"1"]}})
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        bad = bad[:chance.randint(0, len(bad))] if chance.random() < 0.3 else bad
        try:
            _plain.Reader({}.__getitem__, [torch.zeros(2)], {"callbacks": [Best()]}).load(bad)
        except ValueError:
            pass  # and nothing else
