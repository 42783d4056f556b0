"""Everything random that a mini-batch may draw from: torch, NumPy and random as they are imported, and generators that the
script has made for itself.

C1. Each mini-batch seeds all of them, so that what it draws depends on who it is, not on what this engine did before. A
    generator of the script's is seeded from the mini-batch and from the state that it had when it was found, so that the
    script's own seed still counts."""

import random
import types
import zlib

import numpy as np
from pyedt import _late
from pyedt._order import mix64

torch = _late.framework()

LOOKED_AT_MAX = 100000  # objects
ITEMS_MAX = 1000  # of one container: more of them are samples
MAKERS = ((torch.Generator,) if torch else ()) + (np.random.Generator, np.random.RandomState, random.Random)
PLAIN = ((torch.Tensor,) if torch else ()) + (str, bytes, int, float, bool, type(None), np.ndarray, types.ModuleType, types.BuiltinFunctionType)


def seed_all(seed):
    """torch, NumPy and random, as every mini-batch does before it is fetched and again before its forward."""
    if torch:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would format a stack trace for a CUDA that is not up
    if torch and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def state_sum(generator):
    """A number of the state that a generator is in."""
    if torch and isinstance(generator, torch.Generator):
        return zlib.crc32(generator.get_state().numpy().tobytes())
    if isinstance(generator, np.random.Generator):
        return zlib.crc32(repr(generator.bit_generator.state).encode())
    if isinstance(generator, np.random.RandomState):
        return zlib.crc32(repr([part.tolist() if isinstance(part, np.ndarray) else part
                                for part in generator.get_state()]).encode())
    return zlib.crc32(repr(generator.getstate()).encode())


def reseed(generator, seed):
    if torch and isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    else:
        generator.seed(seed)


def names_of(code):
    """Names of globals that a function or anything nested in it may use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_of(constant)
    return names


def cell_of(cell):
    try:
        return [cell.cell_contents]
    except ValueError:  # empty yet
        return []


def reached(value):
    """What a value holds, as far as a script's own code may draw from it."""
    if isinstance(value, dict):
        return list(value.values())[:ITEMS_MAX]
    if isinstance(value, (list, tuple)):
        return list(value)[:ITEMS_MAX]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        used = [value.__globals__[name] for name in sorted(names_of(value.__code__)) if name in value.__globals__]
        return used + [one for cell in value.__closure__ or () for one in cell_of(cell)] + list(value.__defaults__ or ())
    if isinstance(value, type):
        return [getattr(one, "__func__", one) for one in vars(value).values()] + list(value.__bases__)
    slots = [getattr(value, name) for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
             if isinstance(name, str) and hasattr(value, name)] if hasattr(type(value), "__slots__") else []
    inner = getattr(value, "__dict__", {})
    partial = [value.func, value.args, value.keywords] if type(value).__name__ == "partial" else []
    return [type(value), *slots, *partial, *(list(inner.values()) if isinstance(inner, dict) else [])]


def is_libraries(value):
    """Whether a class or function is of the framework: there is nothing of the script's behind it."""
    module = getattr(value, "__module__", "") or ""
    return isinstance(value, (type, types.FunctionType)) and module.split(".")[0] in (
        "torch", "tensorflow", "keras", "numpy", "builtins", "random", "pyedt", "typing", "collections", "functools", "callbacks")


def find(roots):
    """Generators that the roots reach, in an order that every engine has."""
    found, seen, waiting = [], set(), list(reversed(roots))
    while waiting and len(seen) < LOOKED_AT_MAX:
        value = waiting.pop()
        if isinstance(value, PLAIN) or id(value) in seen or is_libraries(value):
            continue
        seen.add(id(value))
        if isinstance(value, MAKERS):
            if not any(value is shared for shared in (torch and torch.default_generator, random._inst, np.random.mtrand._rand)):
                found.append(value)
            continue
        waiting.extend(reversed(reached(value)))
    return found


_first = {}  # id -> (generator, its state when this process first found it): a user's module outlives a call


class Chance:
    """All generators of one engine. It is copied into loader children by their fork."""

    def __init__(self, roots=()):
        self._own = [_first.setdefault(id(one), (one, state_sum(one))) for one in find(list(roots))]
        if self._own:
            print("%d random generators of the script are seeded for each mini-batch" % len(self._own), flush=True)

    def seed(self, seed):
        seed_all(seed)
        for place, (generator, before) in enumerate(self._own):
            reseed(generator, mix64(mix64(seed ^ before) + place))
