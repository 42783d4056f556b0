"""Step records: the twin of include/shoal/step_record.h (little-endian, no padding)."""

import math
import struct

from pyedt import _schedule

HEAD = struct.Struct("<QBIIIIIQIB")
TUPLE = struct.Struct("<IQQQ")


class Record:
    """One committed step. `parts` holds per virtual worker (samples, id_low, id_high, worker_id, values)."""

    __slots__ = ("step", "kind", "call", "epoch", "index", "e", "k", "digest", "parts")

    def __init__(self, step, kind, call, epoch, index, e, k, digest, parts):
        self.step, self.kind, self.call, self.epoch, self.index = step, kind, call, epoch, index
        self.e, self.k, self.digest, self.parts = e, k, digest, parts


def encode(record):
    values = len(record.parts[0][4]) if record.parts else 0
    out = [HEAD.pack(record.step, record.kind, record.call, record.epoch, record.index, record.e, record.k, record.digest,
                     len(record.parts), values)]
    for samples, low, high, worker, numbers in record.parts:
        out.append(TUPLE.pack(samples, low, high, worker))
        out.append(struct.pack("<%dd" % values, *numbers))
    return b"".join(out)


def decode(data, offset=0):
    """The record at `offset`, and the offset after it. ValueError if the bytes end early or are out of range."""
    try:
        step, kind, call, epoch, index, e, k, digest, count, values = HEAD.unpack_from(data, offset)
        if kind > _schedule.FILES or count > 4096 or values > 16:
            raise ValueError("a step record of kind %d with %d parts of %d values" % (kind, count, values))
        offset += HEAD.size
        parts = []
        numbers = struct.Struct("<%dd" % values)
        for _ in range(count):
            samples, low, high, worker = TUPLE.unpack_from(data, offset)
            offset += TUPLE.size
            parts.append((samples, low, high, worker, numbers.unpack_from(data, offset)))
            offset += numbers.size
    except struct.error as error:
        raise ValueError("a step record ends early: %s" % error) from None
    return Record(step, kind, call, epoch, index, e, k, digest, parts), offset


def decode_all(data):
    offset = 0
    while offset < len(data):
        record, offset = decode(data, offset)
        yield record


def tree_sum(numbers):
    """The canonical left-balanced binary tree over 0..n-1: the left half is the largest power of two below n."""
    if len(numbers) == 1:
        return numbers[0]
    left = 1 << ((len(numbers) - 1).bit_length() - 1)
    return tree_sum(numbers[:left]) + tree_sum(numbers[left:])


def mean_values(record, weights=None):
    """The means of a record's values, weighted by samples (or by `weights`), added in the canonical tree."""
    weights = weights or [part[0] for part in record.parts]
    total = sum(weights)
    if not total:
        return [math.nan] * len(record.parts[0][4])
    columns = zip(*(part[4] for part in record.parts))
    return [tree_sum([w * x for w, x in zip(weights, column)]) / total for column in columns]
