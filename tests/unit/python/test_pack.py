"""The vectors of tests/unit/pack_vectors.txt, which pack_test.c reads too: Python's msgpack writes the same bytes."""

import os

import msgpack
import pytest

import conftest

VECTORS = os.path.join(conftest.ROOT, "tests", "unit", "pack_vectors.txt")


def hex_bytes(text):
    whole = b""
    for word in text.split():
        byte, _, times = word.partition("*")
        whole += bytes.fromhex(byte) * int(times or 1)
    return whole


def vectors():
    with open(VECTORS, encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split(" | ", 1) for line in lines if not line.startswith("#")]
    return [pytest.param(hex_bytes(row[0]), eval(row[1], {"__builtins__": {"float": float}}), id=row[1][:40]) for row in rows]


@pytest.mark.parametrize("encoded, value", vectors())
def test_the_same_bytes_mean_the_same_value(encoded, value):
    assert msgpack.unpackb(encoded) == value
    assert msgpack.packb(value) == encoded
