"""The bits of training: the same for any number of engines, whoever joins or leaves, and the promises of the step."""

import copy
import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from jobs import Rows, bits, make_header, make_parts, make_trainer, network, numbers, run_mesh, step_together
from reference_comm import ReferenceComm, Shared
from torch import nn

from pyedt import _bundle, _chance, _comm, _compute, _data, _engine, _loader, _order, _records, _schedule, _state, _trainer
from pyedt.callbacks import Callback


@pytest.fixture(scope="module")
def one():
    os.environ["RESULT_DIR"] = "/tmp"
    trainers, shared, _ = run_mesh(lambda s: 1)
    return bits(trainers[0]), numbers(shared)


MESHES = [
    ("six engines", lambda s: 6),
    ("eight engines, one mini-batch each", lambda s: 8),
    ("more engines than virtual workers", lambda s: 11),
    ("a joiner in the first data epoch", lambda s: 1 if s < 3 else 2),
    ("a joiner after a validation", lambda s: 2 if s < 10 else 3),
    ("engines come and go at every step", lambda s: 1 + s * 7 % 5),
    ("the oldest engine leaves", lambda s: 3 if s < 6 else 1),
]


@pytest.mark.parametrize("name,sizes", MESHES, ids=[m[0] for m in MESHES])
def test_same_bits(one, name, sizes):
    trainers, shared, _ = run_mesh(sizes)
    for trainer in trainers:
        assert bits(trainer) == one[0]
    assert numbers(shared) == one[1]
    assert len({trainer.digest() for trainer in trainers}) == 1


def test_training_learns(one):
    losses = [row[4][0][3][0] for row in one[1] if row[1] == 0]
    assert losses[-1] < losses[0]


def test_every_sample_is_handed_out_once_per_data_epoch(one):
    for epoch in range(3):
        low = sum(part[1] for row in one[1] if row[1] == 0 and row[2] == epoch for part in row[4]) % 2**64
        assert low == _order.sample_sum(77, list(range(101)))[0]


def test_a_sample_skipped_shows_in_the_sums(monkeypatch):
    fetch = _loader.fetch
    monkeypatch.setattr(_loader, "fetch", lambda handout, ids: fetch(handout, ids[:-1] if len(ids) == 4 and 5 in ids else ids))
    _, shared, _ = run_mesh(lambda s: 1, until=4)
    rows = numbers(shared)
    assert sum(p[0] for row in rows for p in row[4]) == 100
    assert sum(p[1] for row in rows for p in row[4]) % 2**64 != _order.sample_sum(77, list(range(101)))[0]


def test_a_sample_doubled_shows_in_the_sums(monkeypatch):
    fetch = _loader.fetch
    monkeypatch.setattr(_loader, "fetch", lambda handout, ids: fetch(handout, [ids[0] if i == 5 else i for i in ids]))
    _, shared, _ = run_mesh(lambda s: 1, until=4)
    total = sum(p[1] for row in numbers(shared) for p in row[4]) % 2**64
    assert total != _order.sample_sum(77, list(range(101)))[0]


@pytest.mark.parametrize("what,factor", [("dropped", 0.0), ("added twice", 2.0)])
def test_a_gradient_dropped_or_doubled_after_its_samples_were_handed_out_shows_in_the_weights(one, monkeypatch, what,
                                                                                             factor):
    collect, calls = _compute.Gradients.collect, []

    def planted(self):
        touched = collect(self)
        calls.append(1)
        if len(calls) == 9:
            self._work.mul_(factor)
        return touched

    monkeypatch.setattr(_compute.Gradients, "collect", planted)
    trainers, shared, _ = run_mesh(lambda s: 1)
    assert bits(trainers[0]) != one[0]
    sums = [[(p[1], p[2]) for p in row[4]] for row in numbers(shared)]
    assert sums == [[(p[1], p[2]) for p in row[4]] for row in one[1]], "the sums alone cannot tell"


def test_updates_are_applied_steps_times_parameters():
    trainers, _, _ = run_mesh(lambda s: 2)
    for trainer in trainers:
        assert trainer.applied_steps == 12
        assert trainer.updates == 12 * len(trainer.gradients.parameters)


def test_loader_children_change_no_bit(one):
    def make(comm):
        return make_trainer(comm, header=make_header(loader_threads=2))

    trainers, shared, everyone = run_mesh(lambda s: 2, make)
    for trainer in everyone:
        trainer.unbind()
    assert bits(trainers[0]) == one[0] and numbers(shared) == one[1]


class Broken(Rows):
    def __getitem__(self, index):
        if index == 50:
            raise KeyError("row fifty")
        return super().__getitem__(index)


def test_an_error_in_a_loader_child_arrives_with_its_trace(monkeypatch):
    loader = _loader.Loader((_data.DataSet(Broken(60)), None), None, _chance.seed_all, 1)
    loader.get(0, (1, 0), 5, [1, 2])
    with pytest.raises(RuntimeError, match="(?s)failed in a loader process.*row fifty"):
        loader.get(0, (1, 1), 5, [49, 50])
    loader.close()


def test_what_a_loader_child_raises_is_told_with_its_cause_and_the_users_line():
    loader = _loader.Loader((_data.DataSet(Broken(60)), None), None, _chance.seed_all, 1)
    with pytest.raises(RuntimeError) as raised:
        loader.get(0, (1, 1), 5, [49, 50])
    loader.close()
    words = _engine.failure_text(raised.value)
    assert words.startswith("KeyError: 'row fifty' (test_training.py, line ") and words.endswith("in __getitem__: raise KeyError(\"row fifty\"))")
    assert _engine.failure(raised.value) == _comm.FAILED_USER_CODE


def test_rows_of_something_large_come_from_a_loader_child_without_the_rest():
    """As where a collate function puts no samples together, and those are rows of one tensor."""
    rows = torch.utils.data.TensorDataset(torch.arange(4000000, dtype=torch.float32).view(1000, 4000))
    loader = _loader.Loader((_data.DataSet(rows), None), lambda batch: (batch, torch.stack([x for x, in batch]).t()[::4]), _chance.seed_all, 1)
    (batch, some), _ = loader.get(0, (1, 1), 5, [7, 0])
    loader.close()
    assert [x[1].item() for x, in batch] == [28001.0, 1.0] and sum(x.untyped_storage().nbytes() for x, in batch) == 2 * 16000
    assert torch.equal(some[1], torch.tensor([28004.0, 4.0])) and some.stride() == (4, 4000)


class Leaving(Rows):
    def __getitem__(self, index):
        sys.exit("no such file")


@pytest.mark.parametrize("children", [0, 1])
def test_a_script_that_ends_itself_has_failed_in_a_loader_child_too(children):
    """Else another engine tries again, and again."""
    loader = _loader.Loader((_data.DataSet(Leaving(60)), None), None, _chance.seed_all, children)
    with pytest.raises((SystemExit, RuntimeError)) as raised:
        loader.get(0, (1, 1), 5, [49, 50])
    loader.close()
    assert _engine.failure_text(raised.value).startswith("SystemExit: no such file (test_training.py")
    assert _engine.failure(raised.value) == _comm.FAILED_USER_CODE


@pytest.mark.parametrize("error", [SystemExit("enough"), KeyboardInterrupt("enough")], ids=lambda error: type(error).__name__)
def test_what_an_engine_says_of_a_script_that_ends_itself(monkeypatch, error):
    class Comm:
        def __init__(self, *arguments):
            pass

        def failed(self, *said):
            told.append(said)

        def close(self):
            pass

    def raising(comm):
        raise error

    told = []
    monkeypatch.setenv("SHOAL_AGENT_SOCKET", "none")
    monkeypatch.setattr(_engine, "serves", False)
    monkeypatch.setattr(_comm, "Communicator", Comm)
    monkeypatch.setattr(_engine, "serve_calls", raising)
    assert _engine.main() == 1
    assert [(kind, text.split(" (")[0]) for kind, text in told] == [(_comm.FAILED_USER_CODE, type(error).__name__ + ": enough")]


def test_what_a_datasets_function_forks_holds_no_other_engine_up():
    """As the process of a multiprocessing.Manager, which lives as long as the data set."""
    waits, ends = os.pipe()
    with _engine.SharedDirectoryLock():
        child = os.fork()
        if child == 0:
            os.close(ends)
            os.read(waits, 1)
            os._exit(0)
    other = os.open(os.getcwd(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is held still
    finally:
        for fd in (other, ends, waits):
            os.close(fd)
        os.waitpid(child, 0)


def test_words_that_do_not_fit_end_with_a_whole_one():
    assert _engine.failure_text(ValueError("word " * 20)) == "ValueError: " + " ".join(["word"] * 20)
    text = _engine.failure_text(ValueError("word " * 90))
    assert 260 < len(text) <= _engine.TEXT_CHARACTERS and text.endswith(" word ...")
    assert len(_engine.failure_text(ValueError("x" * 900))) == _engine.TEXT_CHARACTERS


def test_a_dead_loader_child_is_no_fault_of_the_users_code():
    loader = _loader.Loader((_data.DataSet(Rows(60)), None), None, _chance.seed_all, 1)
    os.kill(loader._children[0].pid, 9)
    with pytest.raises(_loader.LoaderLost):
        loader.get(0, (1, 0), 5, [1, 2])
    loader.close()


# ---- gradients ----

class Branches(nn.Module):
    """One branch is used only by rows whose first number is large: some mini-batches leave it untouched."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.never = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        out = self.a(x)
        return out + self.b(x) if x[:, 0].max() > 1.2 else out


def branches():
    torch.manual_seed(11)
    model = Branches()
    return make_parts(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1))


def test_an_untouched_parameter_has_no_gradient_in_the_update():
    trainers, _, _ = run_mesh(lambda s: 2, lambda comm: make_trainer(comm, branches()))
    model, fresh = trainers[0]._model, branches()["model"]
    assert torch.equal(model.never.weight, fresh.never.weight), "weight decay must not move it"
    assert not torch.equal(model.b.weight, fresh.b.weight)
    other, _, _ = run_mesh(lambda s: 5, lambda comm: make_trainer(comm, branches()))
    assert bits(trainers[0]) == bits(other[0])


def frozen():
    torch.manual_seed(11)
    model = network()
    for p in model[0].parameters():
        p.requires_grad = False
    return make_parts(model, torch.optim.SGD(model[4].parameters(), lr=0.1))


def test_frozen_layers_stay_and_the_last_layer_learns():
    trainers, _, _ = run_mesh(lambda s: 1, lambda comm: make_trainer(comm, frozen()))
    assert torch.equal(trainers[0]._model[0].weight, frozen()["model"][0].weight)
    assert not torch.equal(trainers[0]._model[4].weight, frozen()["model"][4].weight)


class Scaling(torch.optim.SGD):
    """An optimizer of a script's own, which works on .grad in place."""

    def step(self, closure=None):
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            parameter.grad.mul_(0.5)
        return super().step(closure)


def halved(optimizer, *_):
    for parameter in (p for group in optimizer.param_groups for p in group["params"] if p.grad is not None):
        parameter.grad.mul_(0.5)


OPTIMIZERS = [
    (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True), None, True),
    (torch.optim.SGD, dict(lr=0.1, maximize=True), None, True),
    (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1, amsgrad=True), None, True),
    (torch.optim.AdamW, dict(lr=0.01, maximize=True), None, True),
    (torch.optim.RMSprop, dict(lr=0.01, momentum=0.9, centered=True, weight_decay=0.1), None, True),
    (torch.optim.Adagrad, dict(lr=0.01, lr_decay=0.1, weight_decay=0.1), None, True),
    (torch.optim.SGD, dict(lr=0.1, foreach=True, momentum=0.9, nesterov=True), None, False),
    (torch.optim.SGD, dict(lr=0.1), halved, False),
    (Scaling, dict(lr=0.1), None, False),
]


@pytest.mark.parametrize("kind,words,hook,in_place", OPTIMIZERS)
def test_the_result_stands_after_the_update_and_is_copied_only_where_it_must_be(monkeypatch, kind, words, hook, in_place):
    step, seen = _compute.Gradients.step, []

    def watched(self, comm):
        before = self._result.clone()
        updated = step(self, comm)
        seen.append((torch.equal(self._result, before), self._applied is None))
        return updated

    def make(comm):
        torch.manual_seed(11)
        model = network()
        optimizer = kind(model.parameters(), **words)
        if hook:
            optimizer.register_step_pre_hook(hook)
        return make_trainer(comm, make_parts(model, optimizer))

    monkeypatch.setattr(_compute.Gradients, "step", watched)
    trainers, _, _ = run_mesh(lambda s: 2, make, until=4)
    assert seen and set(seen) == {(True, in_place)}
    assert bits(trainers[0]) == bits(trainers[1])


def clipping_step(model, data, eva, train_loader, fn_args):
    model.zero_grad()
    loss = model.get_loss_function()(model(data[0]), data[1])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    model.get_optimizer().step()
    return 0.0, loss


def test_gradients_of_parameters_that_no_optimizer_has_are_of_one_minibatch():
    """As where a body is left as it is without requires_grad_(False), and all are clipped."""
    def make(comm, fn_step_train=clipping_step):
        torch.manual_seed(11)
        model = network()
        optimizer = torch.optim.SGD(model[4].parameters(), 0.1)
        return make_trainer(comm, make_parts(model, optimizer, fn_step_train=fn_step_train))

    alone, _, _ = run_mesh(lambda s: 1, make, until=3)
    three, _, _ = run_mesh(lambda s: 3, make, until=3)
    assert [bits(trainer) for trainer in three] == [bits(alone[0])] * 3

    (trainer,), _, _ = run_mesh(lambda s: 1, lambda comm: make(comm, fn_step_train=None), until=3)
    batch, seen = trainer._loader.get(0, (3, 0), 5, [0, 1, 2, 3])[0], []
    for _ in range(2):
        trainer._train_on(batch, 5, 0, 4)
        trainer.gradients.cancel()
        seen.append(trainer._model[0].weight.grad.clone())
    assert torch.equal(*seen) and seen[0].abs().max() > 0


class Twice(nn.Module):
    """From some mini-batches on, a gradient comes twice: once by itself, and once from a backward within the backward."""

    def __init__(self, sometimes):
        super().__init__()
        self.a, self.b, self.empty = nn.Linear(6, 6), nn.Linear(6, 2), nn.Parameter(torch.zeros(0))
        self.sometimes = sometimes

    def forward(self, x):
        rare = x[:, 0].max() > 1.9
        x = self.a(x)
        if rare or not self.sometimes:
            x = torch.utils.checkpoint.checkpoint(self.a, x, use_reentrant=True)
        return self.b(x)


def twice(sometimes):
    torch.manual_seed(11)
    model = Twice(sometimes)
    return make_parts(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@pytest.mark.parametrize("sometimes", [False, True], ids=["in each mini-batch", "in some"])
def test_a_gradient_that_comes_twice_is_whole(monkeypatch, sometimes):
    """The same bits as where every mini-batch leaves its gradients in .grad until it has ended."""
    answers, came_twice = [], _compute.Gradients.came_twice

    def watched(self):
        answers.append(came_twice(self))
        return answers[-1]

    monkeypatch.setattr(_compute.Gradients, "came_twice", watched)
    trainers, _, _ = run_mesh(lambda s: 3, lambda comm: make_trainer(comm, twice(sometimes)))
    assert any(answers) == sometimes, "those of an engine whose first mini-batch did not show it are computed anew"
    assert not trainers[0].gradients._parted, "it came twice"
    monkeypatch.setattr(_compute.Gradients, "begin", lambda self, comm, v, samples: self.zero())
    whole, _, _ = run_mesh(lambda s: 2, lambda comm: make_trainer(comm, twice(sometimes)))
    assert bits(trainers[0]) == bits(whole[0])


def test_gradients_that_are_taken_at_once_have_the_bits_of_those_that_stay(one, monkeypatch):
    taken, take = [], _compute.Gradients.came_twice

    def watched(self):
        taken.append(self._part is not None)
        return take(self)

    monkeypatch.setattr(_compute.Gradients, "came_twice", watched)
    trainers, _, _ = run_mesh(lambda s: 2)
    assert taken.count(False) == 2 and taken.count(True) > 50, "all but the first one of each engine"
    monkeypatch.setattr(_compute.Gradients, "begin", lambda self, comm, v, samples: self.zero())
    whole, _, _ = run_mesh(lambda s: 2)
    assert bits(trainers[0]) == bits(whole[0]) == one[0]


def custom_step(model, data, eva, train_loader, fn_args):
    model.get_optimizer().zero_grad()  # as public samples do
    x, y = data
    out = model(x)
    loss = model.get_loss_function()(out, y)
    loss.backward()
    assert len(train_loader) == 25 and fn_args == "given"
    return eva(out, y), loss


def test_a_custom_step_that_clears_gradients_gives_the_bits_of_the_default_step(one):
    def make(comm):
        return make_trainer(comm, make_parts(fn_step_train=custom_step, fn_args="given"))

    trainers, shared, _ = run_mesh(lambda s: 3, make)
    assert bits(trainers[0]) == one[0]


def updating_step(model, data, eva, train_loader, fn_args):
    x, y = data
    out = model(x)
    loss = model.get_loss_function()(out, y)
    loss.backward()
    model.get_optimizer().step()
    (model(x).sum() * 1000).backward()  # changes nothing any more
    model.get_optimizer().zero_grad()
    return eva(out, y), loss


def test_a_custom_step_that_updates_says_where_its_gradients_are_complete():
    def plain(model, data, eva, train_loader, fn_args):
        out = model(data[0])
        loss = model.get_loss_function()(out, data[1])
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        model(data[0])
        for p, gradient in zip(model.parameters(), gradients):
            p.grad.copy_(gradient)
        return eva(out, data[1]), loss

    results = [bits(run_mesh(lambda s: size, lambda comm: make_trainer(comm, make_parts(fn_step_train=function)))[0][0])
               for size, function in ((1, updating_step), (3, updating_step), (1, plain))]
    assert results[0] == results[1] == results[2]


def scaled_step(model, data, eva, train_loader, fn_args):
    optimizer, scaler = model.get_optimizer(), fn_args["scaler"]
    optimizer.zero_grad()
    out = model(data[0])
    loss = model.get_loss_function()(out, data[1])
    scaler.scale(loss * fn_args["factor"]).backward()
    if fn_args["unscale"]:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return eva(out, data[1]), loss


@pytest.mark.parametrize("fused", [None, True], ids=["as it is", "fused"])
@pytest.mark.parametrize("unscale", [False, True], ids=["whole", "unscaled before"])
def test_a_grad_scaler_works_as_in_a_loop(fused, unscale):
    """What overflowed counts for nothing, and the scale is in no update."""
    def make(comm, scale, factor=1):
        torch.manual_seed(11)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=fused)
        how = {} if scale is None else {"fn_step_train": scaled_step, "fn_args": {
            "scaler": torch.amp.GradScaler("cpu", init_scale=scale), "unscale": unscale, "factor": factor}}
        return make_trainer(comm, make_parts(model, optimizer, **how))

    plain, scaled = (run_mesh(lambda s: 1, lambda comm, scale=scale: make(comm, scale))[0][0] for scale in (None, 2.0 ** 10))
    assert bits(plain) == bits(scaled)
    (trainer,), _, _ = run_mesh(lambda s: 1, lambda comm: make(comm, 2.0 ** 127, 64), until=3)
    assert trainer._computation._args["scaler"].get_scale() < 2.0 ** 127, "some overflowed"
    assert all(torch.isfinite(p).all() for p in trainer.carrier.parameters)
    assert not torch.equal(trainer._model[0].weight, make(ReferenceComm(Shared()), None)._model[0].weight)


def test_a_custom_step_that_steps_a_scheduler_is_refused():
    def stepping(model, data, eva, train_loader, fn_args):
        model.get_optimizer().zero_grad()
        loss = model.get_loss_function()(model(data[0]), data[1])
        loss.backward()
        model.get_optimizer().step()
        fn_args.step()
        return 0.0, loss

    parts = make_parts(fn_step_train=stepping)
    parts["fn_args"] = torch.optim.lr_scheduler.StepLR(parts["optimizer"], 2, gamma=0.5)
    with pytest.raises(RuntimeError, match=r"changed lr of the optimizer from 0.01 to 0.005: .*on_epoch_begin"):
        run_mesh(lambda s: 1, lambda comm: make_trainer(comm, parts))


def test_a_custom_step_may_update_once():
    def twice(model, data, eva, train_loader, fn_args):
        model(data[0]).sum().backward()
        model.get_optimizer().step()
        model.get_optimizer().step()

    with pytest.raises(RuntimeError, match="twice in a mini-batch.*add the losses up"):
        run_mesh(lambda s: 1, lambda comm: make_trainer(comm, make_parts(fn_step_train=twice)))


def test_a_joiner_takes_over_the_state_of_each_of_two_optimizers():
    def make(comm):
        torch.manual_seed(11)
        model = network()
        pair = [torch.optim.Adam(model[0].parameters()), torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)]
        return make_trainer(comm, make_parts(model, pair))

    lonely, joined = run_mesh(lambda s: 1, make)[0], run_mesh(lambda s: 1 if s < 3 else 3, make)[0]
    for trainer in joined:
        assert [p.tolist() for p in trainer._model.parameters()] == [p.tolist() for p in lonely[0]._model.parameters()]
        assert [len(one.state) for one in trainer._given_optimizer] == [2, 2]
        assert trainer.digest() == lonely[0].digest()


def stealing_step(model, data, eva, train_loader, fn_args):
    for p in model.parameters():
        p.grad = None
    x, y = data
    out = model(x)
    loss = model.get_loss_function()(out, y)
    loss.backward()
    return eva(out, y), loss


def test_private_gradients_are_copied_and_counted(one):
    trainers, _, _ = run_mesh(lambda s: 1, lambda comm: make_trainer(comm, make_parts(fn_step_train=stealing_step)))
    assert bits(trainers[0]) == one[0]
    assert trainers[0].gradients.copies > 0


def handmade_step(model, data, eva, train_loader, fn_args):
    x, y = data
    out = model(x)
    loss = model.get_loss_function()(out, y)
    parameters = list(model.parameters())
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters)):
        p.grad = g
    return eva(out, y), loss


def test_gradients_set_by_hand_count_as_touched(one):
    trainers, _, _ = run_mesh(lambda s: 1, lambda comm: make_trainer(comm, make_parts(fn_step_train=handmade_step)))
    assert bits(trainers[0]) == one[0]


def careless_test(model, test_iter, fn_args):
    model.train()
    return sum(model(x).sum().item() for x, _ in test_iter)


def test_a_validation_leaves_buffers_and_modes_as_they_were():
    def make(comm):
        return make_trainer(comm, make_parts(fn_test=careless_test), make_header(test_names=["loss"]))

    results = []
    for size in (1, 3):
        trainers, _, _ = run_mesh(lambda s: size, make, until=9)  # the validation of the second data epoch
        trainer = trainers[-1]
        assert trainer.schedule.at(9).kind == 1
        assert torch.equal(trainer.buffers._flat, trainer.buffers._committed)
        results.append(bits(trainer))
    assert results[0] == results[1]


def fn_test(model, test_iter, fn_args):
    assert not torch.is_grad_enabled() and not model.training
    losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in test_iter]
    assert len(losses) == len(test_iter)
    return sum(losses) / len(losses)


def test_a_custom_validation_gives_its_mean_loss():
    header = make_header(test_names=["loss"])
    results = []
    for size in (1, 3):
        _, shared, _ = run_mesh(lambda s: size, lambda comm: make_trainer(comm, make_parts(fn_test=fn_test), header))
        results.append([row for row in numbers(shared) if row[1] == 1])
    assert repr(results[0]) == repr(results[1]) and results[0]


class Replacing(nn.Module):
    """A module that puts a new tensor in its buffer's place."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 2)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("flag", torch.zeros(3, dtype=torch.bool))

    def forward(self, x):
        if self.training:
            self.count = self.count + 1
        return self.inner(x)


def replacing():
    torch.manual_seed(11)
    model = Replacing()
    return make_parts(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_replaced_buffer_is_committed_from_the_lowest_minibatch():
    for size in (1, 4):
        trainers, _, _ = run_mesh(lambda s: size, lambda comm: make_trainer(comm, replacing()))
        assert trainers[-1]._model.count.item() == 12, "one mini-batch a step"


class ManyKinds(nn.Module):
    """A network whose buffers have many types, and one that counts its forwards in each of them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        for name, kind in (("f16", torch.float16), ("b16", torch.bfloat16), ("f64", torch.float64), ("i8", torch.int8)):
            self.register_buffer(name, torch.zeros(3, dtype=kind))
        self.register_buffer("flags", torch.zeros(5, dtype=torch.bool))
        self.register_buffer("one", torch.zeros((), dtype=torch.complex64))
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("large", torch.zeros(1 << 16))

    def forward(self, x):
        if self.training:
            for buffer in (self.f16, self.b16, self.f64, self.i8, self.one):
                buffer += 1
            self.flags[0] = ~self.flags[0]
        return self.inner(x)


class Saves(Callback):
    """What scripts do with a network in a callback."""

    def __init__(self, folder):
        super().__init__()
        self.folder = str(folder)

    def on_epoch_end(self, epoch, save_model=False):
        if save_model:
            torch.save(self.model.state_dict(), os.path.join(self.folder, "state.pth"))
            torch.save(self.model, os.path.join(self.folder, "model.pth"))
            torch.save(self.model.inner[1].state_dict(), os.path.join(self.folder, "norm.pth"))
            torch.save(copy.deepcopy(self.model).state_dict(), os.path.join(self.folder, "copy.pth"))
            self.model.share_memory()


@pytest.mark.parametrize("engines", [1, 3])
def test_a_network_is_saved_in_a_callback(tmp_path, engines):
    parts = lambda: make_parts(ManyKinds(), callbacks=[Saves(tmp_path)])  # noqa: E731
    trainers, _, _ = run_mesh(lambda s: engines, lambda comm: make_trainer(comm, parts()))
    kept = trainers[0]._model.state_dict()
    for buffer in ("f16", "b16", "f64", "i8"):
        assert kept[buffer].tolist() == [12] * 3, "one mini-batch a step, also after the memory was shared"
    assert kept["one"].item() == 12 and not kept["flags"].any() and kept["inner.1.num_batches_tracked"].item() == 12
    trainers[0]._set_callbacks([Saves(tmp_path)])
    trainers[0]._call("on_epoch_end", 3, True)
    for name in ("state", "model", "copy"):
        found = torch.load(tmp_path / (name + ".pth"), weights_only=name != "model")
        found = found.state_dict() if name == "model" else found
        assert list(found) == list(kept) and all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in kept.items())
    assert os.path.getsize(tmp_path / "state.pth") < (5 << 16), "each buffer once"
    assert os.path.getsize(tmp_path / "norm.pth") < 10000, "a part of a network is no more than that part"


def test_a_metric_replaces_the_accuracy():
    def spread(outputs, targets):
        return outputs.max() - outputs.min()

    header = make_header(metric_names=["loss", "spread"], test_names=["loss", "spread"])
    _, shared, _ = run_mesh(lambda s: 1, lambda comm: make_trainer(comm, make_parts(metrics=[spread]), header), until=1)
    assert numbers(shared)[0][4][0][3][1] > 0


class Turned(nn.Linear):
    """Its weights lay the other way in files of version 1."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *others):
        if metadata.get("version") != 2:
            state[prefix + "weight"] = state[prefix + "weight"].t()
        super()._load_from_state_dict(state, prefix, metadata, *others)

    def get_extra_state(self):
        return torch.nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 1), [3, 2], batch_first=True)

    def set_extra_state(self, state):
        assert len(state) == 4


def test_a_module_finds_the_version_of_its_state_in_the_files():
    model = nn.Sequential(Turned(2, 2))
    weight = model[0].weight.detach().clone()
    model.load_state_dict(_trainer.cpu_state(model.state_dict()))
    assert torch.equal(model[0].weight, weight)


class Schedules(Callback):
    """Steps a scheduler of the script's, or one of its own."""

    def __init__(self, scheduler):
        super().__init__()
        self.scheduler = scheduler

    def on_train_begin(self):
        self.scheduler = self.scheduler or torch.optim.lr_scheduler.StepLR(self.params["optimizer"], 1)

    def on_epoch_end(self, epoch, save_model=False):
        self.scheduler.step()


@pytest.mark.parametrize("whose", ["the script's", "its own"])
def test_a_scheduler_that_a_callback_steps_does_not_warn(recwarn, whose):
    parts = make_parts()
    parts["callbacks"] = [Schedules(whose == "the script's" and torch.optim.lr_scheduler.StepLR(parts["optimizer"], 1))]
    run_mesh(lambda s: 1, lambda comm: make_trainer(comm, parts))
    assert not [str(w.message) for w in recwarn if "optimizer.step()" in str(w.message)]


# ---- state ----

class Decay(Callback):
    """The public kind: multiplies the rate in on_epoch_begin, keeps what it did."""

    def __init__(self):
        super().__init__()
        self.calls, self.saved = [], []

    def on_train_begin(self):
        self.group = self.params["optimizer"].param_groups[0]

    def on_epoch_begin(self, epoch):
        self.calls.append(epoch)
        for group in self.params["optimizer"].param_groups:
            group["lr"] *= 0.5

    def on_epoch_end(self, epoch, save_model=False):
        self.saved.append((epoch, save_model))


def with_decay(comm):
    return make_trainer(comm, make_parts(callbacks=[Decay()]))


def test_a_joiner_takes_over_callbacks_and_rates_but_no_epoch_begin():
    lonely, _, _ = run_mesh(lambda s: 1, with_decay)
    trainers, _, _ = run_mesh(lambda s: 1 if s < 7 else 3, with_decay)
    for trainer in trainers:
        assert bits(trainer) == bits(lonely[0])
        callback = trainer._callbacks[0]
        assert callback.calls == [0, 1, 2] and [e for e, _ in callback.saved] == [0, 1, 2]
        assert callback.model is trainer._model and callback.params["optimizer"] is trainer._optimizer
        assert callback.group is trainer._optimizer.param_groups[0], "references go to the engine's own objects"


BEGUN = []


class Counting(Callback):
    def on_train_begin(self):
        BEGUN.append("train")

    def on_epoch_begin(self, epoch):
        BEGUN.append(epoch)


def test_a_joiner_begins_training_but_not_the_running_data_epoch():
    BEGUN.clear()
    run_mesh(lambda s: 1 if s < 3 else 2, lambda comm: make_trainer(comm, make_parts(callbacks=[Counting()])), until=3)
    assert BEGUN == ["train", 0, "train"]


class Freezing(Callback):
    def on_train_begin(self):
        self.model[1].eval()


def test_a_layer_that_a_callback_froze_stays_frozen_in_joiners_and_after_a_validation():
    trainers, _, _ = run_mesh(lambda s: 1 if s < 3 else 2,
                              lambda comm: make_trainer(comm, make_parts(callbacks=[Freezing()])))
    for trainer in trainers:
        assert not trainer._model[1].training and trainer._model[3].training
        assert trainer._model[1].num_batches_tracked.item() == 0


class Unfreezing(Callback):
    """Frees the first layer after the first data epoch, in one way or another."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def on_epoch_end(self, epoch, save_model=False):
        if epoch == 0:
            for parameter in self.model[0].parameters():
                parameter.requires_grad_(True)
            self.way(self, self.params["optimizer"])


def frozen_parts(way, whole):
    torch.manual_seed(11)
    model = network()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return make_parts(model, torch.optim.NAdam((model if whole else model[4]).parameters(), lr=0.01), callbacks=[Unfreezing(way)])


def test_a_layer_that_a_callback_frees_learns_alike_in_joiners():
    def way(callback, optimizer):
        optimizer.param_groups[0]["lr"] = 0.02

    alone, _, _ = run_mesh(lambda s: 1, lambda comm: make_trainer(comm, frozen_parts(way, True)))
    trainers, _, _ = run_mesh(lambda s: 1 if s < 7 else 3, lambda comm: make_trainer(comm, frozen_parts(way, True)))
    assert [bits(trainer) for trainer in trainers] == [bits(alone[0])] * 3
    assert not torch.equal(trainers[0]._model[0].weight, frozen_parts(way, True)["model"][0].weight)


def add_group(callback, optimizer):
    optimizer.add_param_group({"params": list(callback.model[0].parameters()), "lr": 0.01})


def swap(callback, optimizer):
    optimizer.param_groups[0]["params"].reverse()


def leave_out(callback, optimizer):
    del optimizer.param_groups[0]["params"][0]


def replace(callback, optimizer):
    callback.params["optimizer"] = torch.optim.SGD(callback.model.parameters(), lr=0.1)


@pytest.mark.parametrize("way", [add_group, swap, leave_out, replace])
def test_a_callback_that_changes_which_parameters_the_optimizer_has_is_refused_at_once(way):
    with pytest.raises(RuntimeError) as refused:
        run_mesh(lambda s: 2, lambda comm: make_trainer(comm, frozen_parts(way, False)))
    assert _engine.failure(refused.value) == _comm.FAILED_USER_CODE
    text = _engine.failure_text(refused.value)
    assert text.startswith("RuntimeError: Unfreezing.on_epoch_end() ") and not text.endswith("...")
    assert "from the start" in text and "requires_grad" in text


def test_an_optimizer_that_is_added_to_the_list_is_refused():
    def way(callback, optimizers):
        optimizers.append(torch.optim.SGD(callback.model[0].parameters(), lr=0.1))

    parts = frozen_parts(way, False)
    parts["optimizer"] = [parts["optimizer"]]
    with pytest.raises(RuntimeError, match="from the start"):
        run_mesh(lambda s: 1, lambda comm: make_trainer(comm, parts))


def test_a_step_of_ones_own_that_adds_parameters_is_refused():
    def step(model, data, eva, train_loader, fn_args):
        optimizer = model.get_optimizer()
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": list(model[0].parameters())})
        loss = model.get_loss_function()(model(data[0]), data[1])
        loss.backward()
        return 0.0, loss

    parts = frozen_parts(lambda *both: None, False)
    parts["fn_step_train"] = step
    with pytest.raises(RuntimeError, match=r"fn_step_train\(\) .*from the start"):
        run_mesh(lambda s: 1, lambda comm: make_trainer(comm, parts))


def test_save_model_is_true_on_exactly_one_engine():
    trainers, _, _ = run_mesh(lambda s: 4, with_decay)
    for epoch, saves in ((0, 0), (1, 1), (2, 1)):  # checkpoint_freq 2, and always the last one
        assert sum((epoch, True) in t._callbacks[0].saved for t in trainers) == saves


def test_checkpoints_are_written_when_due(tmp_path):
    run_mesh(lambda s: 2)
    folder = tmp_path / "result" / "model" / "train"
    assert sorted(os.listdir(folder)) == ["model_epoch_2.pth", "model_epoch_2_optimizer_state.pth"]
    state = torch.load(folder / "model_epoch_2.pth", weights_only=True)
    network().load_state_dict(state)


def test_a_snapshot_goes_on_to_the_same_bits(one, tmp_path, monkeypatch):
    monkeypatch.setattr(_trainer, "SNAPSHOT_SECONDS", 0)
    trainers, shared, _ = run_mesh(lambda s: 2)
    snapshots = trainers[0].comm.snapshots
    assert [step for step, _ in snapshots] == [4, 10]
    path = snapshots[-1][1]
    trainer = make_trainer(ReferenceComm(Shared()))
    trainer.begin(fresh=False)
    trainer.load_snapshot(path)
    assert trainer.applied == 10
    while trainer.applied < trainer.schedule.last:
        step_together([trainer])
    assert bits(trainer) == one[0]
    trainer.write_final()
    assert not [n for n in os.listdir(tmp_path / "result" / "checkpoint") if n.endswith(".state")]


def test_a_snapshot_that_ends_early_is_refused_at_every_length(tmp_path):
    trainers, _, _ = run_mesh(lambda s: 1, until=2)
    path = str(tmp_path / "whole")
    _state.write_file(path, *trainers[0].carrier.give(2, []))
    whole = open(path, "rb").read()
    for size in list(range(0, 600, 7)) + [len(whole) - 1]:
        (tmp_path / "part").write_bytes(whole[:size])
        with pytest.raises(ValueError):
            _state.read_file(str(tmp_path / "part"))


def test_the_state_of_another_model_is_refused():
    trainers, _, _ = run_mesh(lambda s: 1, until=1)
    other = make_trainer(ReferenceComm(Shared()), branches())
    with pytest.raises(ValueError, match="shape"):
        other.carrier.take(*trainers[0].carrier.give(1, []))


def test_step_records_come_back_and_every_prefix_is_refused():
    record = _records.Record(9, 0, 1, 2, 3, 4, 5, 6, [(4, 1, 2, 3, (0.5, 0.25)), (4, 7, 8, 9, (1.0, 2.0))])
    data = _records.encode(record)
    back, end = _records.decode(data)
    assert end == len(data) and all(getattr(back, n) == getattr(record, n) for n in _records.Record.__slots__)
    for size in range(len(data)):
        with pytest.raises(ValueError):
            _records.decode(data[:size])


class Scripted(ReferenceComm):
    """Rank of one whose epochs follow a script: what serve() must do at each."""

    def __init__(self, entries, lose_at=()):
        super().__init__()
        self.entries, self.lose_at = list(entries), dict.fromkeys(lose_at)

    def enter(self, timeout_ms=-1):
        return self.entries.pop(0)

    def reduce(self):
        number = self.shared.step.number
        if number in self.lose_at:
            del self.lose_at[number]
            self.shared.step = None
            raise _comm.RankLost()
        super().reduce()


def test_a_lost_rank_repeats_the_step_and_nothing_else(one):
    from reference_comm import Entry

    end = [Entry(event=_comm.WRITE_FINAL), Entry(event=_comm.RELEASED)]
    comm = Scripted([Entry(state=_comm.LOAD), Entry(decided_step=2), Entry(decided_step=5)] + end, lose_at=(3, 6))
    trainer, entry = _trainer.serve(make_trainer(comm), None)
    assert entry.event == _comm.RELEASED
    assert bits(trainer) == one[0] and numbers(comm.shared) == one[1]
    assert json.load(open(os.path.join(os.environ["RESULT_DIR"], "checkpoint", "call-1.json")))["minibatches"] == 25


def test_a_files_step_that_is_repeated_calls_no_callback_twice():
    from reference_comm import Entry

    comm = Scripted([Entry(state=_comm.LOAD), Entry(decided_step=14), Entry(event=_comm.WRITE_FINAL),
                     Entry(event=_comm.RELEASED)], lose_at=(15,))
    trainer, _ = _trainer.serve(with_decay(comm), None)
    assert trainer.schedule.at(15).kind == 2 and trainer.schedule.last == 15
    assert [e for e, _ in trainer._callbacks[0].saved] == [0, 1, 2]


class DecayAtEnd(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        for group in self.params["optimizer"].param_groups:
            group["lr"] *= 0.5


def test_who_joins_while_files_are_written_does_not_end_that_data_epoch_again():
    """The writer is a donor with the state before the step, but its callbacks have seen the data epoch end."""
    def make(comm):
        return make_trainer(comm, make_parts(callbacks=[DecayAtEnd()]))

    lonely, _, _ = run_mesh(lambda s: 1, make)
    shared = Shared()
    writer, joiner = make(ReferenceComm(shared)), make(ReferenceComm(shared))
    writer.begin(fresh=True)
    while writer.schedule.at(writer.applied + 1).kind != _schedule.FILES:
        step_together([writer])
    step = writer.schedule.at(writer.applied + 1)
    writer.compute(step, writer.comm.assign(step)[0])
    shared.step = None  # the epoch is revoked
    joiner.begin(fresh=False)
    writer.give_state()
    joiner.take_state()
    folder = os.path.join(os.environ["RESULT_DIR"], "model", "train")
    shutil.rmtree(folder)
    while writer.applied < writer.schedule.last:
        step_together([joiner, writer])  # the files are the joiner's to write now
        assert os.path.exists(os.path.join(folder, "model_epoch_2.pth"))
    assert bits(joiner) == bits(writer) == bits(lonely[0])


def test_an_epoch_that_does_not_fit_the_state_is_an_error():
    from reference_comm import Entry

    comm = Scripted([Entry(decided_step=4)])
    with pytest.raises(RuntimeError, match="state after step None"):
        _trainer.serve(make_trainer(comm), None)


def test_what_a_killed_engine_was_writing_goes_away(one):
    train, checkpoint = (os.path.join(os.environ["RESULT_DIR"], name) for name in ("model/train", "checkpoint"))
    child = subprocess.Popen(["true"])
    child.wait()
    for path in (train, checkpoint):
        os.makedirs(path)
    gone = [os.path.join(train, "model_epoch_1.pth.%d.tmp" % child.pid), os.path.join(checkpoint, "snapshot-1-3.state.%d.tmp" % child.pid)]
    kept = [os.path.join(train, "model_epoch_1.pth.%d.tmp" % os.getpid()), os.path.join(train, "mine.tmp")]
    for path in gone + kept:
        open(path, "w").close()
    folder = _trainer.temporary_folder(os.path.join(train, "model_epoch_final"))
    assert os.path.basename(folder) == ".model_epoch_final.%d.tmp" % os.getpid()  # hidden: what lies in it is nobody's result
    gone.append(folder.replace(str(os.getpid()), str(child.pid)))
    kept.append(folder)
    for path in gone[-1], folder:
        os.makedirs(os.path.join(path, "variables"))
    _trainer.drop_leftovers()
    assert not any(os.path.exists(path) for path in gone) and all(os.path.exists(path) for path in kept)


def test_a_host_that_takes_no_part_says_so_in_one_line(capfd):
    """The job's log has it, also where the job ends well; what fails has its trace there."""
    for error, want in ((_bundle.Unfit("the driver has torch 1, this host has 2: the job needs hosts with the driver's version"), 1),
                        (ValueError("x"), 2)):
        try:
            raise error
        except (ValueError, _bundle.Unfit) as raised:
            _engine.print_failure(raised)
        lines = capfd.readouterr().err.splitlines()
        assert str(error) in lines[-1] and ("Traceback" in lines[0]) == (want == 2) and len(lines) >= want, lines
        assert want == 2 or lines == ["Engine takes no part on this host: %s" % error]


LAYER = """Exception encountered when calling layer 'bad' (type Bad).

%s

Call arguments received by layer 'bad' (type Bad):
  - x=tf.Tensor(shape=(8, 4), dtype=float32)
"""
GRAPH = """in user code:

    File "/f/fabric.zip/pyedt/_keras.py", line 317, in _train  *
        outputs = self.model(x, training=True)
    File "/v/lib/python3.11/site-packages/keras/src/utils/traceback_utils.py", line 70, in error_handler  **
        raise e.with_traceback(filtered_tb) from None
    File "/r/_submitted_code/bad/main.py", line 20, in call  *
        return rows[x]
    File "/tmp/__autograph_generated_fileudddj9_w.py", line 31, in if_body_1
        raise ag__.converted_call(ag__.ld(KeyError), ('no such row',), None, fscope)

    RuntimeError: Exception encountered when calling layer 'bad' (type Bad).

    KeyError: 'no such row'

    Call arguments received by layer 'bad' (type Bad):
      - training=True
"""


@pytest.mark.parametrize("error, said", [
    (RuntimeError(GRAPH), "KeyError: 'no such row' (main.py, line 20, in call: return rows[x])"),
    (NameError(GRAPH.split("    RuntimeError")[0] + "    NameError: name 'rows' is not defined\n"),
     "NameError: name 'rows' is not defined (main.py, line 20, in call: return rows[x])"),
    (ArithmeticError(LAYER % "no rows today"),
     "ArithmeticError: Exception encountered when calling layer 'bad' (type Bad). no rows today"),
    (ValueError("two\n  lines"), "ValueError: two lines")], ids=["graph", "graph of a function", "layer", "several lines"])
def test_what_an_engine_raises_is_one_line_with_the_cause(error, said):
    """The driver's last words are the end of the job: of several lines only the last one would be there."""
    assert _engine.failure_text(error) == said
