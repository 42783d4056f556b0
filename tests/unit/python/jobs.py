"""Small jobs, and engines of one process driven in lock step over the reference communicator."""

import numpy as np
import torch
from reference_comm import ReferenceComm, Shared
from torch import nn

from pyedt import _schedule, _trainer
from pyedt._data import DataSet


class Rows(torch.utils.data.Dataset):
    """`n` rows with noise drawn at each access, as augmentation does."""

    def __init__(self, n, noise=0.1):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(n, 6, generator=generator)
        self.y = (self.x.sum(dim=1) > 0).long()
        self.noise = noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.randn(6) * self.noise + float(np.random.rand()) * 0.01
        return self.x[index] + noise, self.y[index]


def network():
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))


def make_parts(model=None, optimizer=None, **others):
    torch.manual_seed(11)
    model = model or network()
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)
    parts = {"model": model, "optimizer": optimizer, "loss": nn.CrossEntropyLoss(), "metrics": [], "callbacks": []}
    parts.update(others)
    return parts


def make_header(**others):
    header = {"batch_size": 4, "virtual_workers": 8, "epochs": 3, "validation_freq": 2, "checkpoint_freq": 2,
              "loader_threads": 0, "engines_number": 8, "effective_batch_size": 32,
              "metric_names": ["loss", "accuracy"], "test_names": ["loss", "accuracy"]}
    header.update(others)
    return header


def make_trainer(comm, parts=None, header=None, n=101, validation=23, seed=77):
    header = header or make_header()
    trainer = _trainer.Trainer(comm, 1, header, parts or make_parts(), seed,
                               (DataSet(Rows(n)), DataSet(Rows(validation)) if validation else None), torch.device("cpu"))
    comm.ready(header["metric_names"], **trainer.sizes())
    trainer.bind()
    return trainer


def step_together(trainers, ranges=None):
    """One step of all trainers. `ranges(step)`: the list of v of each, else balanced."""
    step = trainers[0].schedule.at(trainers[0].applied + 1)
    for rank, trainer in enumerate(trainers):
        comm = trainer.comm
        comm._rank, comm._size = rank, len(trainers)
        comm._ranges = None if ranges is None else (lambda s, r=rank: ranges(s)[r])
        mine = comm.assign(step)
        trainer.begin_step(step, mine)
        for group in trainer.groups(step, mine):
            trainer.compute_group(step, group)
    for trainer in trainers:
        trainer.comm.reduce()
    for trainer in trainers:
        trainer.comm.apply_allowed()
        trainer.apply(step)
    return step


def run_mesh(sizes, make=make_trainer, until=None):
    """A job whose number of engines before step s is sizes(s): grown by joiners that take the state, shrunk by leavers.
    Returns (trainers, shared, every trainer that ever was)."""
    shared = Shared()
    trainers, everyone = [], []
    while not trainers or trainers[0].applied < min(until or 10**9, trainers[0].schedule.last):
        wanted = sizes((trainers[0].applied if trainers else 0) + 1)
        while len(trainers) > wanted:
            trainers.pop(0)  # the first one, which others took their state from
        while len(trainers) < wanted:
            joiner = make(ReferenceComm(shared))
            everyone.append(joiner)
            if not trainers:
                joiner.begin(fresh=True)
            else:
                joiner.begin(fresh=False)
                trainers[-1].give_state()
                joiner.take_state()
            trainers.append(joiner)
        step_together(trainers)
    return trainers, shared, everyone


def raw(tensor):
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


def bits(trainer):
    """Everything that must be equal: parameters, buffers, optimizer state, groups."""
    out = [raw(p) for p in trainer.carrier.parameters]
    out += [b.numpy().tobytes() for b in trainer.buffers.tensors]
    optimizer = trainer._optimizer
    for p in trainer.carrier.parameters:
        for key, value in sorted(optimizer.state[p].items()):
            out.append((key, raw(value) if isinstance(value, torch.Tensor) else value))
    out.append([{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups])
    return out


def numbers(shared):
    """The records without who computed what."""
    from pyedt import _records

    rows = []
    for data in shared.records:
        record = _records.decode(data)[0]
        rows.append((record.step, record.kind, record.epoch, record.index,
                     [(p[0], p[1], p[2], p[4]) for p in record.parts]))
    return rows


TRAIN = _schedule.TRAIN
