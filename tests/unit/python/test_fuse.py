"""Mini-batches that an engine holds, computed as one (_fuse.py, decision 0040)."""

import pytest
import torch
from jobs import bits, make_header, make_parts, make_trainer, numbers, run_mesh
from torch import nn

from pyedt import _arguments, _fuse


def is_node(begin, end, count):
    span = 1
    while span < end - begin:
        span *= 2
    return begin % span == 0 and (end == begin + span or end == count)


@pytest.mark.parametrize("count", range(1, 20))
def test_groups_are_the_largest_nodes_of_what_is_missing(count):
    for first in range(count):
        for last in range(first, count):
            for begin in range(first + 1):
                # held: first .. last - 1; what is above it comes upwards, what is below it downwards
                mine = list(range(last, count)) + list(range(first - 1, begin - 1, -1)) if last > first else list(range(begin, count))
                groups = _fuse.groups(mine, count)
                assert sorted(v for group in groups for v in group) == sorted(mine)
                assert all(is_node(group[0], group[-1] + 1, count) for group in groups)
                downs = [group[0] for group in groups if group[0] < last and last > first]
                assert downs == sorted(downs, reverse=True), "the held range stays one piece"
                ups = [group for group in groups if group[0] >= last or last == first]
                assert all(not is_node(a[0], b[-1] + 1, count) for a, b in zip(ups, ups[1:])), (mine, groups)


def linear():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def trained(sizes, fuse, until=8, **others):
    def make(comm):
        torch.manual_seed(5)
        model = others.get("model", linear)()
        parts = make_parts(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), **{k: v for k, v in others.items() if k != "model"})
        return make_trainer(comm, parts, make_header(fuse=fuse))
    trainers, shared, _ = run_mesh(sizes, make, until)
    assert len({trainer.digest() for trainer in trainers}) == 1
    return trainers[0], shared


@pytest.mark.parametrize("engines", [1, 3, 8])
def test_the_same_training_but_for_rounding(engines):
    (alone, apart), (trainer, shared) = trained(lambda s: 1, False), trained(lambda s: engines, True)
    for mine, theirs in zip(trainer.carrier.parameters, alone.carrier.parameters):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)
    samples = [[part[:3] for part in row[4]] for row in numbers(shared)]
    assert samples == [[part[:3] for part in row[4]] for row in numbers(apart)], "each mini-batch has its own samples in the record"


def test_one_batch_is_computed_for_the_whole_of_a_step(monkeypatch):
    seen, forward = [], nn.Sequential.forward
    monkeypatch.setattr(nn.Sequential, "forward", lambda self, x: (seen.append((len(x), self.training)), forward(self, x))[1])
    trained(lambda s: 1, True, 3)
    assert [count for count, training in seen if training] == [32, 32, 32]


def test_engines_come_and_go_in_between():
    (alone, _), (trainer, _) = trained(lambda s: 1, False), trained(lambda s: 1 + s * 7 % 5, True)
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(alone.carrier.parameters, trainer.carrier.parameters))


def test_a_loss_that_is_no_mean_is_computed_one_by_one(capfd):
    loss = {"loss": nn.CrossEntropyLoss(reduction="sum")}
    (alone, _), (trainer, _) = trained(lambda s: 1, False, **loss), trained(lambda s: 2, True, **loss)
    assert bits(alone) == bits(trainer)
    assert "the loss is no mean over samples" in capfd.readouterr().out


def test_batches_that_cannot_be_joined_are_computed_one_by_one(capfd):
    class Pick(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()

        def forward(self, x, word):
            return self.inner(x)

    def collate(samples):
        return (torch.stack([x for x, _ in samples]), "word"), torch.stack([y for _, y in samples])

    more = {"model": Pick, "collate": collate}
    (alone, _), (trainer, _) = trained(lambda s: 1, False, **more), trained(lambda s: 2, True, **more)
    assert bits(alone) == bits(trainer)
    assert "cannot be joined: a batch has a str" in capfd.readouterr().out


def test_who_asks_for_it(monkeypatch):
    assert not _arguments.may_fuse(None) and _arguments.may_fuse(True)
    monkeypatch.setenv("SHOAL_FUSE", "1")
    assert _arguments.may_fuse(None) and not _arguments.may_fuse(False)
    monkeypatch.setenv("SHOAL_FUSE", "yes")
    with pytest.raises(ValueError, match="SHOAL_FUSE is 'yes'"):
        _arguments.may_fuse(None)
    with pytest.raises(TypeError, match="fuse must be True or False, got int"):
        _arguments.may_fuse(1)
