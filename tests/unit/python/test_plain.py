"""What engines tell each other of callbacks and optimizers: values that cannot run code when they are read."""

import collections
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
