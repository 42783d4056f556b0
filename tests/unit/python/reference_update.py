"""The rules of collective_update.h in NumPy, operation by operation: the oracle for libshoal's, to the bit."""

import ctypes

import numpy as np

from pyedt import _update


def at(address, elems):
    return np.frombuffer((ctypes.c_uint8 * (4 * elems)).from_address(address), dtype=np.float32) if elems else np.zeros(0, np.float32)


def sgd(part, has, c, g, p, a=None):
    if has(_update.MOMENTUM):
        a = a * c[1] + g * c[2]
        g = g + a * c[1] if has(_update.NESTEROV) else a
    return [p - g * c[0], a]


def adam(part, has, c, g, p, a, b, most=None):
    a = a + (g - a) * c[1]
    b = b * c[2] + g * g * c[3]
    most = np.maximum(b, most) if has(_update.AMSGRAD) else b
    p = p * c[6] if has(_update.DECOUPLED) else p
    return [p - a / (np.sqrt(most) / c[4] + c[5]) * c[0], a, b, most]


def rmsprop(part, has, c, g, p, a, *more):
    a = a * c[1] + g * g * c[2]
    root, more = a, list(more)
    if has(_update.CENTERED):
        more[-1] = more[-1] + (g - more[-1]) * c[2]
        root = a - more[-1] * more[-1]
    g = g / (np.sqrt(root) + c[3])
    if has(_update.MOMENTUM):
        g = more[0] = more[0] * c[4] + g
    return [p - g * c[0], a, *more]


def adagrad(part, has, c, g, p, a):
    a = a + g * g
    return [p - g / (np.sqrt(a) + c[1]) * c[0], a]


DECAY = (3, 6, 5, 3)


def run(result, parts, count):
    """`parts`: the address of so many struct shoal_update_part; `result`: the gradient."""
    rows = np.frombuffer((ctypes.c_uint8 * (count * _update.PART.itemsize)).from_address(parts), dtype=_update.PART)
    for part in rows:
        begin, end, c = int(part["begin"]), int(part["end"]), part["numbers"]
        vectors = [at(int(address), end - begin).copy() for address in part["from"] if address]
        if not vectors:
            continue
        g = result[begin:end]
        has = lambda flag, flags=int(part["flags"]): bool(flags & flag)  # noqa: E731
        if has(_update.MAXIMIZE):
            g = -g
        if has(_update.WEIGHT_DECAY):
            g = g + vectors[0] * c[DECAY[part["rule"]]]
        new = (sgd, adam, rmsprop, adagrad)[part["rule"]](part, has, c, g, *vectors)
        for address, values in zip(part["into"], new[:len(vectors)]):
            at(int(address), end - begin)[:] = values
