"""Which sample is where, and which step is what: against the C header, and by their own rules."""

import ctypes
import random
import subprocess

import numpy as np
import pytest
from conftest import ROOT

from pyedt import _order, _schedule

SOURCE = """
#include "shoal/permute.h"
uint64_t permute(uint64_t s, uint32_t e, uint64_t n, uint64_t p) { return shoal_permute(s, e, n, p); }
void sum(uint64_t s, const uint64_t *ids, uint64_t n, uint64_t *out) {
    struct shoal_sample_sum t = { 0, 0 };
    for (uint64_t i = 0; i < n; i++) shoal_sample_sum_add(&t, s, ids[i]);
    out[0] = t.low; out[1] = t.high; }
uint64_t count(uint64_t n, uint64_t b) { return shoal_minibatch_count(n, b); }
uint64_t len(uint64_t n, uint64_t b, uint64_t m) { return shoal_minibatch_len(n, b, m); }
"""


@pytest.fixture(scope="module")
def c(tmp_path_factory):
    folder = tmp_path_factory.mktemp("permute")
    (folder / "p.c").write_text(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-I%s/include" % ROOT, str(folder / "p.c"), "-o",
                    str(folder / "p.so")], check=True)
    library = ctypes.CDLL(str(folder / "p.so"))
    for name in ("permute", "count", "len"):
        getattr(library, name).restype = ctypes.c_uint64
    library.permute.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64]
    library.count.argtypes = [ctypes.c_uint64] * 2
    library.len.argtypes = [ctypes.c_uint64] * 3
    library.sum.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    library.sum.restype = None
    return library


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 101, 1437, 4097])
@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_the_permutation_is_that_of_the_c_header(c, n, seed):
    for epoch in (0, 1, 99):
        with np.errstate(over="ignore"):
            ours = _order.permute(seed, epoch, n, np.arange(n, dtype=np.uint64)).tolist()
        assert ours == [c.permute(seed, epoch, n, p) for p in range(n)]
        assert sorted(ours) == list(range(n))


def test_the_permutation_of_a_large_set_is_that_of_the_c_header(c):
    n, chance = 10**12 + 7, random.Random(5)
    positions = [chance.randrange(n) for _ in range(200)]
    with np.errstate(over="ignore"):
        ours = _order.permute(12345, 3, n, np.array(positions, dtype=np.uint64)).tolist()
    assert ours == [c.permute(12345, 3, n, p) for p in positions]


def test_sample_sums_are_those_of_the_c_header_and_know_no_order(c):
    chance = random.Random(6)
    for _ in range(20):
        ids = [chance.randrange(2**40) for _ in range(chance.randrange(0, 40))]
        array, out = np.array(ids, dtype=np.uint64), np.zeros(2, dtype=np.uint64)
        c.sum(99, array.ctypes.data, len(ids), out.ctypes.data)
        assert _order.sample_sum(99, ids) == tuple(out.tolist())
        assert _order.sample_sum(99, ids[::-1]) == tuple(out.tolist())


@pytest.mark.parametrize("n", list(range(1, 40)) + [1437])
@pytest.mark.parametrize("b", [1, 2, 4, 16, 64])
def test_minibatches_cover_a_data_epoch_once_with_the_tail_rule_of_the_c_header(c, n, b):
    count = _order.minibatch_count(n, b)
    lengths = [_order.minibatch_len(n, b, m) for m in range(count)]
    assert count == c.count(n, b) and lengths == [c.len(n, b, m) for m in range(count)]
    assert sum(lengths) == n
    assert b == 1 or n == 1 or min(lengths) > 1
    order = _order.Order(5, n, b)
    assert sorted(i for m in range(count) for i in order.minibatch(2, m)) == list(range(n))


def test_an_order_in_chunks_is_the_whole_one(monkeypatch):
    whole = _order.Order(5, 1437, 16)
    monkeypatch.setattr(_order, "CHUNK", 100)
    chunked = _order.Order(5, 1437, 16)
    for m in (0, 6, 7, 40, 89):
        assert chunked.minibatch(1, m) == whole.minibatch(1, m)


SCHEDULES = [  # samples, validation, b, V, epochs, validation_freq, checkpoint_freq -> kinds of all steps
    ("validation and files each epoch", (10, 4, 2, 4, 2, 1, 1), "TTVFTTVF"),
    ("validation of each second epoch, files at the end only", (10, 4, 2, 4, 3, 2, 0), "TTTTVTTF"),
    ("frequency beyond the end: no validation out of turn", (8, 4, 2, 4, 2, 10, 0), "TTF"),
    ("no validation set", (8, 0, 2, 4, 2, 1, 2), "TTF"),
    ("more virtual workers than mini-batches", (5, 3, 2, 16, 1, 0, 0), "TF"),
]


@pytest.mark.parametrize("name,numbers,kinds", SCHEDULES, ids=[s[0] for s in SCHEDULES])
def test_schedule(name, numbers, kinds):
    schedule = _schedule.Schedule(*numbers)
    steps = [schedule.at(i) for i in range(1, schedule.last + 1)]
    assert "".join("TVF"[s.kind] for s in steps) == kinds
    for epoch in range(numbers[4]):
        of_epoch = [s for s in steps if s.epoch == epoch]
        assert [s.index for s in of_epoch] == list(range(len(of_epoch)))
        assert [s.ends_epoch for s in of_epoch] == [False] * (len(of_epoch) - 1) + [True]
        assert sum(s.parts for s in of_epoch if s.kind == 0) == schedule.minibatches
    for s in steps:
        if s.kind == 1:
            parts = [m for v in range(s.parts) for m in schedule.validation_part(v, s.parts)]
            assert parts == list(range(schedule.validation_batches))
