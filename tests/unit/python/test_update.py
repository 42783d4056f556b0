"""The update of the weights by libshoal (_update.py): each rule to the bit as NumPy has it and nearly as torch has it; by slices
the same bits as whole, whatever a script does with its weights; what refers to weights goes on to see them."""

import ctypes
import mmap
import os
import pathlib
import warnings

import numpy as np
import pytest
import reference_update
import torch
from conftest import ROOT
from jobs import bits, make_parts, make_trainer, network, run_mesh
from reference_comm import ReferenceComm
from torch import nn

from pyedt import _comm, _update

KINDS = [
    (torch.optim.SGD, dict(lr=0.1)),
    (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1, dampening=0.2)),
    (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True)),
    (torch.optim.Adam, dict(lr=0.01)),
    (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1, amsgrad=True, maximize=True)),
    (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1)),
    (torch.optim.RMSprop, dict(lr=0.01)),
    (torch.optim.RMSprop, dict(lr=0.01, momentum=0.9, centered=True, weight_decay=0.1)),
    (torch.optim.RMSprop, dict(lr=0.01, centered=True)),
    (torch.optim.Adagrad, dict(lr=0.01, lr_decay=0.1, weight_decay=0.1)),
]
NAMES = ["%s %s" % (kind.__name__, " ".join(words)) for kind, words in KINDS]
CPU = torch.device("cpu")


LIBRARY = pathlib.Path(os.environ.get("SHOAL_OUT", pathlib.Path(ROOT) / "build" / "release")) / "libshoal.so"


@pytest.fixture
def alone(monkeypatch):
    if not LIBRARY.exists():
        pytest.skip("nothing is built in %s" % LIBRARY.parent)
    monkeypatch.setenv("SHOAL_LIBRARY", str(LIBRARY))
    comm = _comm.Communicator(solo=True)
    yield comm
    comm.close()


def parameters():
    torch.manual_seed(3)
    return [nn.Parameter(torch.randn(*shape)) for shape in ((7, 13), (5,), (0, 3), (41, 3))]


@pytest.mark.parametrize("kind,words", KINDS, ids=NAMES)
def test_a_rule_is_what_numpy_has_to_the_bit_and_what_torch_has_nearly(alone, kind, words):
    ours, oracles, theirs = parameters(), parameters(), parameters()
    optimizer, oracle, plain = (kind(some, **words) for some in (ours, oracles, theirs))
    update, checked = _update.Update(optimizer, ours, CPU), _update.Update(oracle, oracles, CPU)
    alone.ready(["loss"], call=1, virtual_workers=1, sum_elems=sum(p.numel() for p in ours), samples=9, minibatch=1, data_epochs=1,
                steps_per_epoch=9, param_count=len(ours), update_vectors=update.vectors)
    for step in range(6):
        grads = [torch.randn_like(p) for p in ours]
        flat = torch.cat([g.reshape(-1) for g in grads]).numpy()
        for some in (ours, oracles, theirs):
            for p, g in zip(some, grads):
                p.grad = g.clone()
        plain.step()
        if not update.prepare():  # there is no state yet
            assert step == 0
            optimizer.step()
            oracle.step()
            continue
        alone.result()[:] = flat
        update._run_whole(alone)
        assert checked.prepare()
        checked._parts["into"] = checked._parts["from"]
        reference_update.run(flat, checked._parts.ctypes.data, len(checked._parts))
        torch._foreach_add_(update._steps + checked._steps, 1) if update._steps else None
        for mine, its, other in zip(ours, oracles, theirs):
            assert mine.detach().numpy().tobytes() == its.detach().numpy().tobytes()
            assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)
            for name, value in optimizer.state[mine].items():
                assert value is None or torch.equal(value, oracle.state[its][name])
                assert value is None or torch.allclose(value, plain.state[other][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind,words", [
    (torch.optim.Adadelta, {}), (torch.optim.SparseAdam, {}), (torch.optim.SGD, dict(lr=0.1, foreach=True)),
    (torch.optim.SGD, dict(lr=0.1, foreach=False)), (torch.optim.Adam, dict(fused=True)), (torch.optim.Adam, dict(capturable=True)),
    (torch.optim.SGD, dict(lr=torch.tensor(0.1))), (torch.optim.SGD, dict(lr=0.1, differentiable=True))], ids=str)
def test_others_are_updated_by_the_optimizer_itself(kind, words):
    assert _update.Update(kind(parameters(), **words), parameters(), CPU).vectors == 0


def test_a_hook_or_another_type_of_number_leaves_it_to_the_optimizer():
    ours = parameters()
    optimizer = torch.optim.SGD(ours, lr=0.1)
    update = _update.Update(optimizer, ours, CPU)
    assert update.prepare()
    hook = optimizer.register_step_post_hook(lambda *_: None)
    assert not update.prepare()
    hook.remove()
    assert update.prepare()
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    assert not update.prepare()
    wide = [nn.Parameter(torch.randn(3, dtype=torch.float64))]
    assert _update.Update(torch.optim.SGD(wide, lr=0.1), wide, CPU).vectors == 0


# ---- by slices ----


class SharingComm(ReferenceComm):
    """A rank whose host has others, too: it finds the update made, in one of two places by turns."""

    @staticmethod
    def new_place(shape):
        return np.full(shape, np.nan, np.float32)

    def ready(self, metric_names, **sizes):
        super().ready(metric_names, **sizes)
        self.vectors = sizes["update_vectors"]
        self.places = [self.new_place((self.vectors, sizes["sum_elems"])) for _ in range(2)]
        self.kept, self._made = [], None

    def update(self, turn, parts, count):
        self._offer = turn, np.frombuffer(ctypes.string_at(parts, count * _update.PART.itemsize), dtype=_update.PART).copy()

    def reduce(self):
        super().reduce()
        self._made, offer, self._offer = None, getattr(self, "_offer", None), None
        if offer is None:
            return
        turn, parts = offer
        place = self.places[turn & 1]
        for part in parts:
            used = int((part["from"] != 0).sum())
            part["into"][:used] = [place[k].ctypes.data + 4 * int(part["begin"]) for k in range(used)]
        reference_update.run(self._result, parts.ctypes.data, len(parts))
        self._made = place

    def updated(self):
        return None if self._made is None else [vector.ctypes.data for vector in self._made]

    def update_keep(self, address):
        which = [place[0].ctypes.data for place in self.places].index(address)
        self.kept.append(self.places[which])
        self.places[which] = np.full_like(self.places[which], np.nan)


def sharing(make):
    """A maker of trainers on hosts with others."""
    return lambda comm: make(SharingComm(comm.shared))


def job(kind, words, model=network, **others):
    def make(comm):
        torch.manual_seed(11)
        net = model()
        return make_trainer(comm, make_parts(net, kind(net.parameters(), **words), **others))
    return make


def one(step):
    """What a script does with its weights on its own, it does where it has mini-batches: not everywhere in a short step."""
    return 1


def compare(make, sizes=lambda s: 2, until=30):
    """Trainers of a run by slices, whose bits are those of one without."""
    whole, _, _ = run_mesh(sizes, make, until)
    divided, _, everyone = run_mesh(sizes, sharing(make), until)
    assert bits(divided[0]) == bits(whole[0])
    assert bits(divided[0]) == bits(divided[-1])
    assert not any(t._update.divided for t in whole)
    return everyone


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """run_mesh() drives trainers step by step: what train_steps() does before the gradients."""
    assign = ReferenceComm.assign

    def offering(self, step):
        mine = assign(self, step)
        self.trainer.offer_update(step)
        return mine

    from pyedt import _trainer
    made = _trainer.Trainer.__init__

    def making(self, comm, *more, **named):
        comm.trainer = self
        made(self, comm, *more, **named)

    monkeypatch.setattr(ReferenceComm, "assign", offering)
    monkeypatch.setattr(_trainer.Trainer, "__init__", making)


@pytest.mark.parametrize("kind,words", KINDS, ids=NAMES)
def test_by_slices_or_whole_the_bits_are_the_same(kind, words):
    everyone = compare(job(kind, words), lambda s: 1 + s % 3 if s < 12 else 2)
    for trainer in everyone:
        assert trainer._update.divided >= trainer.applied_steps - 1 and not trainer._update._stays
        assert not trainer.comm.kept


class Rare(nn.Module):
    """A weight that only some mini-batches use: some steps leave it without a gradient."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        return self.a(x) + (self.b(x) if float(x[:, 0].max()) > 2.2 else 0)


def test_a_step_that_leaves_a_weight_out_is_the_optimizers_own():
    everyone = compare(job(torch.optim.Adam, dict(lr=0.01), Rare))
    update = everyone[0]._update
    assert 0 < update.divided < everyone[0].applied_steps - 1


class Renormed(nn.Module):
    """A forward that gives a weight other memory, as layers with a maximal norm do, and one that writes into it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 2)

    def forward(self, x):
        self.a.weight.data = torch.renorm(self.a.weight.data, 2, 0, 0.5)
        self.b.weight.data.clamp_(-0.2, 0.2)
        return self.b(self.a(x))


def test_a_forward_that_writes_weights_has_its_way():
    """Once a weight has other memory, what was offered with the old one is not taken."""
    everyone = compare(job(torch.optim.SGD, dict(lr=0.1, momentum=0.9), Renormed), one)
    assert everyone[0]._update.divided == 0


class Clamped(Renormed):
    def forward(self, x):
        with torch.no_grad():
            self.a.weight.clamp_(-0.1, 0.1)
        self.b.weight.data.clamp_(-0.2, 0.2)
        return self.b(self.a(x))


def test_what_a_forward_writes_goes_into_the_next_update():
    everyone = compare(job(torch.optim.SGD, dict(lr=0.1, momentum=0.9), Clamped), one)
    assert everyone[0]._update.divided == everyone[0].applied_steps - 1


class Holder:
    """A callback of the script's that keeps aliases, and one day writes through them."""

    def __init__(self, at_once):
        self.at_once, self.held, self.seen = at_once, None, 0

    def on_train_begin(self):
        self.hold() if self.at_once else None

    def hold(self):
        self.held = [p.data for p in self.model.parameters()]

    def on_epoch_begin(self, epoch):
        if self.held is None and epoch == 1:
            self.hold()
        elif self.held is not None:
            self.seen += all(torch.equal(a, p) for a, p in zip(self.held, self.model.parameters()))
            self.held[0].mul_(0.5)
            assert torch.equal(self.held[0], next(self.model.parameters()))


@pytest.mark.parametrize("at_once", [True, False], ids=["from the beginning", "when weights lie in the arena"])
def test_who_holds_an_alias_of_weights_sees_them_change(at_once):
    def make(comm):
        return job(torch.optim.Adam, dict(lr=0.01), callbacks=[Holder(at_once)])(comm)

    everyone = compare(make, one, None)
    for trainer in everyone:
        assert trainer._update._stays and trainer._update.divided > 3
        assert len(trainer.comm.kept) == (0 if at_once else 1)
        assert trainer._callbacks[0].seen >= 1


def test_state_that_is_to_be_alone_lies_in_no_place_of_the_host():
    trainers, _, _ = run_mesh(lambda s: 2, sharing(job(torch.optim.Adam, dict(lr=0.01))), until=5)
    trainer = trainers[0]
    before = bits(trainer)
    trainer.keep_alone()
    for place in trainer.comm.places:
        place[:] = np.nan
    assert bits(trainer) == before and trainer._update._view is None
    trainer.keep_alone()


class Forking:
    """A callback that has a process of its own look at the weights, as to save them beside the training."""

    def on_epoch_end(self, epoch, save_model=False):
        child = os.fork()
        if child == 0:
            os._exit(sum(p.sum().isnan().item() for p in self.model.parameters()))
        assert os.waitpid(child, 0)[1] == 0


def test_a_process_that_a_script_forks_has_the_weights(monkeypatch):
    """The arena's memory is not there in one."""
    def arena(shape, *more):
        memory = mmap.mmap(-1, max(4 * shape[0] * shape[1], 1))
        memory.madvise(mmap.MADV_DONTFORK)
        return np.frombuffer(memory, dtype=np.float32, count=shape[0] * shape[1]).reshape(shape)

    monkeypatch.setattr(SharingComm, "new_place", staticmethod(arena))
    everyone = compare(lambda comm: job(torch.optim.Adam, dict(lr=0.01), callbacks=[Forking()])(comm), until=None)
    assert all(trainer._update.divided > 3 for trainer in everyone)


def test_a_scheduler_sees_the_optimizer_step():
    def make(comm):
        trainer = job(torch.optim.SGD, dict(lr=0.1, momentum=0.9))(comm)
        trainer.scheduler = torch.optim.lr_scheduler.StepLR(trainer._optimizer, 1, 0.5)
        return trainer

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trainer in compare(make, until=4):
            trainer.scheduler.step()
