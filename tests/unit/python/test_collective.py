"""pyedt._collective: collectives on arrays and tensors, in a communicator of one. Several members: tests/system/ops_check.h."""

import os
import pathlib

import numpy as np
import pytest
import torch
from conftest import ROOT
from pyedt import _collective, _comm

LIBRARY = pathlib.Path(os.environ.get("SHOAL_OUT", pathlib.Path(ROOT) / "build" / "release")) / "libshoal.so"


@pytest.fixture
def group(monkeypatch):
    if not LIBRARY.exists():
        pytest.skip("nothing is built in %s" % LIBRARY.parent)
    monkeypatch.setenv("SHOAL_LIBRARY", str(LIBRARY))
    comm = _comm.Communicator(solo=True)
    comm.ready(("loss",), call=1, virtual_workers=1, sum_elems=4, samples=1, minibatch=1, data_epochs=1, steps_per_epoch=1)
    comm.enter(0)
    yield _collective.Group(comm)
    comm.close()


@pytest.mark.parametrize("kind", sorted(_collective.TYPES))
@pytest.mark.parametrize("reduction", sorted(_collective.REDUCTIONS))
def test_tensors_of_each_type(group, kind, reduction):
    given = torch.arange(-6, 6).reshape(3, 4).to(getattr(torch, kind))
    out = torch.zeros_like(given)
    group.all_reduce(given, reduction, out=out)
    assert torch.equal(out, given)
    group.reduce_scatter(given.reshape(1, 3, 4), out.zero_(), reduction)
    assert torch.equal(out, given)


def test_arrays_and_handles(group):
    given, out = np.arange(10.0), np.zeros((1, 10))
    handles = [group.all_reduce(given, "max", wait=False), group.all_gather(given, out, wait=False), group.broadcast(given, wait=False),
               group.barrier(wait=False)]
    handles[0].wait()
    handles[0].wait()  # it is over
    for handle in handles[1:]:
        while not handle.test():
            pass
    assert (out[0] == np.arange(10.0)).all() and handles[1].test()


@pytest.mark.parametrize("call,words", [
    (lambda g: g.all_reduce(np.zeros(3, np.uint8)), "uint8"),
    (lambda g: g.all_reduce(np.zeros(3), "product"), "'product'"),
    (lambda g: g.all_reduce(np.zeros((4, 4)).T[1:]), "ascontiguousarray"),
    (lambda g: g.all_reduce(torch.zeros(4, 4).t()[1:]), "contiguous()"),
    (lambda g: g.all_reduce(np.zeros(3), out=np.zeros(4)), r"\(3,\) into \(4,\)"),
    (lambda g: g.all_reduce(np.zeros(3), out=np.zeros(3, np.float32)), "float64 into float32"),
    (lambda g: g.all_gather(np.zeros(3), np.zeros((2, 3))), "1 members"),
    (lambda g: g.broadcast(np.zeros(3), root=5), "rank 5 of 1"),
])
def test_bad_calls_name_the_cause(group, call, words):
    with pytest.raises(_comm.CommError, match=words.replace("()", r"\(\)")):
        call(group)
    group.barrier()
