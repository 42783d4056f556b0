"""Gradients that stay on a device with an engine that is alone: the bits are those of sums that go through libshoal. There is no
card here: what is the processor's counts as a device's, in memory apart from libshoal's."""

import numpy as np
import pytest
import torch
from jobs import bits, make_header, make_parts, make_trainer, numbers, run_mesh
from torch import nn

from pyedt import _comm, _compute, _records, _stage, _sums, _update


def leaves(parts, seed, shapes=((3, 5), (7,), (0,))):
    """A gradient a mini-batch: large and tiny numbers, zeroes of both signs, and parameters that have none."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for v in range(parts):
        row = []
        for i, shape in enumerate(shapes):
            grad = torch.randn(shape, generator=generator) * 10.0 ** (v % 7 - 3)
            grad[torch.rand(shape, generator=generator) < 0.3] = -0.0 if v % 3 != 1 else 0.0
            row.append(None if i == 1 and v % 3 == 1 else grad)
        made.append(row)
    return made


def want(rows, samples):
    """What libshoal makes of them (scale, tree, divide), parameter by parameter."""
    out = []
    for i in range(len(rows[0])):
        column = [row[i].numpy() if row[i] is not None else None for row in rows]
        there = next((c for c in column if c is not None), None)
        if there is None:
            out.append(None)
            continue
        column = [np.zeros_like(there) if c is None else c for c in column]
        weighted = [c * np.float32(n) + np.float32(0) for c, n in zip(column, samples)]
        out.append(_records.tree_sum(weighted) / np.float32(sum(samples)))
    return out


@pytest.mark.parametrize("samples", ([8], [5], [4] * 8, [4] * 6, [4] * 7 + [1], [8, 8, 2], [3] * 5, [7, 4], [16] * 13))
def test_a_sum_has_the_bits_of_libshoals(samples):
    rows = leaves(len(samples), len(samples))
    wanted = want(rows, samples)
    sums = _sums.Sums(len(samples))
    for v, (row, count) in enumerate(zip(rows, samples)):
        sums.add(v, 1, count, [None if grad is None else grad.clone() for grad in row])
    got = sums.result()
    assert [None if g is None else g.numpy().tobytes() for g in got] == [None if w is None else w.tobytes() for w in wanted]


def test_a_gradient_that_two_parameters_share_is_added_once_to_each():
    shared = torch.ones(4)
    sums = _sums.Sums(2)
    sums.add(0, 1, 3, [shared, shared.view(2, 2)])
    sums.add(1, 1, 3, [torch.ones(4), torch.ones(2, 2)])
    assert [grad.flatten().tolist() for grad in sums.result()] == [[1.0] * 4] * 2


def test_a_sum_that_lacks_a_mini_batch_is_none():
    sums = _sums.Sums(3)
    sums.add(0, 1, 4, [torch.ones(1)])
    sums.add(1, 1, 4, [torch.ones(1)])
    with pytest.raises(RuntimeError, match="mini-batches 0 to 2 is not that of the step's 3"):
        sums.result()


@pytest.fixture
def device(monkeypatch):
    """Whether gradients lie on a device: off at first. The update is torch's own either way, as it is there."""
    here = {"on": False}
    monkeypatch.setattr(_update.Update, "_count", lambda self: 0)
    monkeypatch.setattr(_compute, "on_host", lambda device: not here["on"])
    return here


def own_step(model, data, eva, loader, args):
    x, y = data
    model.get_optimizer().zero_grad()
    out = model(x)
    loss = model.get_loss_function()(out, y)
    loss.backward()
    model.get_optimizer().step()
    return eva(out, y), loss


class Skips(nn.Module):
    """Leaves one layer out where the batch says so: its parameters have no gradient then."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.low = nn.Linear(8, 8).to(torch.bfloat16)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        if x.sum() > 14:
            x = self.second(x)
        return self.out(self.low(x.to(torch.bfloat16)).float())


KINDS = {
    "plain": lambda: make_parts(),
    "a step of its own": lambda: make_parts(fn_step_train=own_step),
    "sgd": lambda: (lambda m: make_parts(m, torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)))(Skips()),
    "layers without a gradient": lambda: make_parts(Skips()),
    "metrics of its own": lambda: make_parts(metrics=[lambda outputs, targets: outputs.abs().mean()]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_alone_keeps_its_gradients_and_trains_to_the_same_bits(device, kind):
    names = ["loss", "accuracy"]

    def make(comm):
        torch.manual_seed(5)
        return make_trainer(comm, KINDS[kind](), make_header(metric_names=names, test_names=names))

    wanted = run_mesh(lambda s: 2, make)
    device["on"] = True
    got = run_mesh(lambda s: 1, make)
    assert got[0][0].comm.kept == 12, "each train step is kept"
    assert bits(got[0][0]) == bits(wanted[0][0]) and numbers(got[1]) == numbers(wanted[1])


def test_engines_that_come_and_go_change_no_bit_of_what_is_kept(device):
    wanted = run_mesh(lambda s: 1)
    device["on"] = True
    got = run_mesh(lambda s: 1 + (s // 3) % 2)
    kept = sum(trainer.comm.kept for trainer in got[2])
    assert 0 < kept < 12, "some steps are an engine's alone, some are not"
    assert bits(got[0][0]) == bits(wanted[0][0]) and numbers(got[1]) == numbers(wanted[1])


class Again(nn.Module):
    """A layer that backward comes to twice, each time with a gradient of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.first(x))
        inner = x.detach().requires_grad_()
        with torch.enable_grad():
            if self.training:
                self.out(inner).pow(2).mean().backward()  # as reentrant checkpoints do
        return self.out(x)


STAGED = dict(KINDS, **{"a gradient that comes twice": lambda: make_parts(Again())})


@pytest.mark.parametrize("engines", (2, 3, 8))
@pytest.mark.parametrize("kind", STAGED)
def test_engines_put_the_sums_of_their_devices_where_they_are_added_up(device, kind, engines):
    names = ["loss", "accuracy"]

    def make(comm):
        torch.manual_seed(5)
        return make_trainer(comm, STAGED[kind](), make_header(metric_names=names, test_names=names))

    wanted = run_mesh(lambda s: 1, make)
    device["on"] = True
    got = run_mesh(lambda s: engines, make)
    assert got[0][0].comm.kept == 0 and got[0][0].comm.placed >= 12
    assert bits(got[0][0]) == bits(wanted[0][0]) and numbers(got[1]) == numbers(wanted[1])


class Pins:
    """A libshoal whose driver pins so much and no more; the result lies in memory that the test moves."""

    def __init__(self, most):
        self.most, self.pinned, self.said, self.parts = most, {}, [], []

    def device_open(self, ordinal):
        self.said.append("open %d" % ordinal)

    def pin(self, address, length):
        assert address not in self.pinned
        if len(self.pinned) == self.most:
            raise _comm.CommError("cuMemHostRegister on device 0 (Pretence GPU): CUDA_ERROR_OUT_OF_MEMORY (2)")
        self.pinned[address] = length
        self.said.append("pin")

    def unpin(self, address):
        del self.pinned[address]
        self.said.append("unpin")

    def result_parts(self):
        return self.parts


class Ended:
    """An event of a copy."""

    def __init__(self, said):
        self._said = said

    def synchronize(self):
        self._said.append("waited")


def slices(values, *cuts):
    cuts = [0, *cuts, len(values)]
    return [(a, b - a, values.ctypes.data + 4 * a) for a, b in zip(cuts, cuts[1:])]


def test_the_result_comes_back_from_slices_that_are_pinned_while_they_are_its(monkeypatch):
    monkeypatch.setattr(_stage, "has_driver", lambda device: True)
    comm, result, into = Pins(9), np.arange(10, dtype=np.float32), torch.zeros(10)
    place = np.zeros(10, dtype=np.float32)
    stage = _stage.Stage(torch.device("cpu"), 10, comm)
    stage.begin(place.ctypes.data)
    comm.parts = slices(result, 4)
    for _ in range(3):
        stage.fetch(into)
    assert into.tolist() == result.tolist() and comm.said == ["open 0", "pin", "pin", "pin"]
    stage._fetched = Ended(comm.said)
    comm.parts = slices(result, 4, 7)  # a third worker: the first slice stays
    stage.fetch(into)
    assert comm.said[4:] == ["waited", "unpin", "pin", "pin"], "what is copied stays pinned until it is"
    assert comm.pinned == {place.ctypes.data: 40, result.ctypes.data: 16, result.ctypes.data + 16: 12, result.ctypes.data + 28: 12}
    stage.close()
    assert comm.pinned == {}


def test_memory_that_is_not_pinned_is_said_once_and_copied(monkeypatch, capsys):
    monkeypatch.setattr(_stage, "has_driver", lambda device: True)
    comm, result, into = Pins(1), np.arange(10, dtype=np.float32), torch.zeros(10)
    comm.parts = slices(result, 2, 5)
    stage = _stage.Stage(torch.device("cpu"), 10, comm)
    for _ in range(2):
        stage.fetch(into)
    assert into.tolist() == result.tolist() and len(comm.pinned) == 1
    said = capsys.readouterr().out
    assert said.count("gradients go through memory that the driver did not pin: cuMemHostRegister on device 0") == 1, said
    stage.close()
    assert comm.pinned == {}


def test_no_mini_batch_of_mine_is_told_of_before_the_last_result_is_copied():
    comm = Pins(0)
    stage = _stage.Stage(torch.device("cpu"), 4, comm)
    place = np.zeros(4, dtype=np.float32)
    stage.begin(place.ctypes.data)
    stage._fetched = Ended(comm.said)
    stage.send(0, torch.ones(4))
    stage.finish(lambda offset, elems, address: comm.said.append("told"))
    assert comm.said == ["waited", "told"]


def test_an_engine_without_a_mini_batch_waits_for_its_copy_of_the_result_too(device):
    device["on"] = True
    trainers, _, _ = run_mesh(lambda s: 8, until=1)
    gradients, said = trainers[0].gradients, []
    gradients._stage._fetched = Ended(said)
    gradients.assigned(trainers[0].comm, 8, [])
    assert said == ["waited"]


class Chancy(nn.Module):
    """Has a kernel with the same bits each time as long as torch may not only warn; from the fifth forward on it has none at all."""

    def __init__(self):
        super().__init__()
        self.out, self.seen = nn.Linear(6, 2), []

    def forward(self, x):
        strict = not torch.is_deterministic_algorithms_warn_only_enabled() and torch.are_deterministic_algorithms_enabled()
        if self.training:
            self.seen.append(strict)
            if len(self.seen) >= 5 and strict:
                raise RuntimeError("chancy does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'. You can")
        return self.out(x)


@pytest.mark.parametrize("engines", (1, 8))
def test_kernels_of_a_device_give_the_same_bits_or_it_is_said_once_that_they_do_not(device, engines, capsys):
    device["on"] = True
    made = []

    def make(comm):
        made.append(Chancy())
        return make_trainer(comm, make_parts(made[-1]))

    trainers, _, _ = run_mesh(lambda s: engines, make, until=6)
    assert trainers[0].applied == 6 and not torch.are_deterministic_algorithms_enabled()
    seen = made[0].seen
    assert seen[:5] == [True] * 5 and not any(seen[5:]) and len(seen) > 5
    said = capsys.readouterr().out
    assert said.count("Warning: the bits of the result depend on chance: chancy does not have a deterministic implementation") == engines


def test_a_step_that_is_assigned_anew_begins_from_nothing(device):
    wanted = run_mesh(lambda s: 1, until=3)
    device["on"] = True
    trainers, _, _ = run_mesh(lambda s: 1, until=2)
    trainer = trainers[0]
    step = trainer.schedule.at(3)
    mine = trainer.comm.assign(step)
    trainer.begin_step(step, mine)
    for v in mine[:5]:
        trainer.compute(step, v)
    trainer.comm.shared.step = None  # the epoch is revoked
    mine = trainer.comm.assign(step)
    trainer.begin_step(step, mine)
    for v in mine:
        trainer.compute(step, v)
    trainer.comm.reduce()
    trainer.comm.apply_allowed()
    trainer.apply(step)
    assert bits(trainer) == bits(wanted[0][0])
