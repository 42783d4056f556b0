"""Values as bytes that cannot run code: what engines tell each other of their optimizers and callbacks.

    None, bool, float, str, bytes, int     as MessagePack has them
    everything else                        [kind, ...]: containers, tensors, arrays, objects, and names of what both sides have

P1. Reading imports nothing and calls nothing of what the bytes name. An object's class is one that the receiver's own objects
    have, or that stands beside it in the same module; it is made without its constructor, and its attributes are put into it.
P2. What cannot be said so (open files, locks, functions) stays as the receiver's own object at the same place has it.
P3. What is there twice is there once again after reading: containers and objects are numbered, and a text that could be a
    name in a program is the one that programs share. So what an engine that was given a state writes (pickles refer back to
    what was there before) has the bits of what its giver would have written."""

import collections
import re
import sys

import msgpack
import numpy

from pyedt import _late

torch = _late.framework()

DEPTH_MAX = 200
DIGITS_MAX = 4000  # of an integer; Python itself reads no more
ARRAY_TYPE = re.compile(r"[<>|=][biufc?SU][0-9]{1,4}")  # numbers and texts
CLASSES_MAX = 10000  # objects that are looked at for their classes
CONTAINERS = {"l": list, "u": tuple, "e": set, "f": frozenset, "q": collections.deque}
MAPS = {"m": dict, "w": collections.OrderedDict, "k": collections.Counter}
KINDS = {made: kind for kind, made in [*CONTAINERS.items(), *MAPS.items()]}


class Cannot(TypeError):
    """This value cannot be said in plain bytes."""


def dtype_of(name):
    dtype = getattr(torch, name) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError("no type of a tensor: %r" % (name,))
    return dtype


class Writer:
    """`name_of(value)`: what both sides have, by its name, or None. `add(tensor)`: its number among those that travel beside."""

    def __init__(self, name_of, add):
        self._name_of, self._add, self._seen, self._kept = name_of, add, {}, []

    def dump(self, value):
        return msgpack.packb(self._say(value, "state", 0), use_bin_type=True)

    def _say(self, value, where, depth):
        if value is None or type(value) in (bool, float, str, bytes):
            return value
        if type(value) is int:
            if value.bit_length() > 3 * DIGITS_MAX:
                raise Cannot("%s is a number of more than %d digits" % (where, DIGITS_MAX))
            return value if -1 << 63 <= value < 1 << 63 else ["i", str(value)]
        name = self._name_of(value)
        if name is not None:
            return ["o", name]
        if id(value) in self._seen:
            return ["r", self._seen[id(value)]]
        if depth > DEPTH_MAX:
            raise Cannot("%s is nested too deeply" % where)
        return self._leaf(value) or self._inner(value, where, depth + 1)

    def _number(self, value):
        self._seen[id(value)] = len(self._kept)
        self._kept.append(value)  # its id is its own while this writer lives
        return len(self._kept) - 1

    def _leaf(self, value):
        if torch and isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout != torch.strided:
                return None
            number = self._number(value)
            return ["t", number, self._add(value), str(value.device), value.requires_grad, type(value) is torch.nn.Parameter]
        if torch and type(value) is torch.Size:
            return ["z", list(value)]
        if torch and type(value) is torch.dtype:
            return ["d", str(value).split(".")[-1]]
        if torch and type(value) is torch.device:
            return ["v", str(value)]
        if type(value) is complex:
            return ["x", value.real, value.imag]
        if type(value) is bytearray:
            return ["b", bytes(value)]
        if isinstance(value, numpy.generic) or type(value) is numpy.ndarray:
            if not ARRAY_TYPE.fullmatch(value.dtype.str):
                return None
            return ["n" if type(value) is numpy.ndarray else "s", value.dtype.str, list(value.shape), value.tobytes()]
        return None

    def _inner(self, value, where, depth):
        kind = KINDS.get(type(value))
        if kind in CONTAINERS:
            number = self._number(value)
            return [kind, number, [self._say(one, where, depth) for one in value]]
        if kind in MAPS:
            number = self._number(value)
            return [kind, number, [[self._say(key, where, depth), self._say(one, "%s[%r]" % (where, key), depth)]
                                   for key, one in value.items()]]
        try:
            object.__new__(type(value))  # as the receiver makes it: not what is made of anything but attributes
            attributes = value.__dict__
        except (TypeError, AttributeError):
            raise Cannot("%s is a %s, which cannot travel to another engine" % (where, type(value).__name__)) from None
        if type(attributes) is not dict:
            raise Cannot("%s is a %s, which cannot travel to another engine" % (where, type(value).__name__))
        return self._object(value, where, depth)

    def _object(self, value, where, depth):
        attributes, left_out = {}, []
        number = self._number(value)
        for name, one in value.__dict__.items():
            mark = len(self._kept)
            try:
                attributes[name] = self._say(one, "%s.%s" % (where, name), depth)
            except Cannot:
                left_out.append(name)
                for forgotten in self._kept[mark:]:
                    del self._seen[id(forgotten)]
                self._kept[mark:] = [None] * (len(self._kept) - mark)  # the numbers go on
        return ["c", number, type(value).__module__, type(value).__qualname__, attributes, left_out]


def classes_in(values):
    """(module, qualified name) -> class, of everything that the values reach."""
    found, seen, waiting = {}, set(), list(values)
    while waiting and len(seen) < CLASSES_MAX:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (str, bytes)) or torch and isinstance(value, torch.Tensor):
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting.extend(value)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            found[type(value).__module__, type(value).__qualname__] = type(value)
            waiting.extend(value.__dict__.values())
    return found


def neighbours(classes):
    """Those that stand beside them, in the globals of their functions and of the same module."""
    found = dict(classes)
    for (module, _), made in classes.items():
        for one in vars(made).values():
            for other in list(getattr(one, "__globals__", {}).values()):
                if isinstance(other, type) and other.__module__ == module:
                    found.setdefault((module, other.__qualname__), other)
    return found


class Reader:
    """`named(name)`: the receiver's own. `tensors`: those that came beside. `own`: what the receiver has where the value goes."""

    def __init__(self, named, tensors, own):
        self._named, self._tensors, self._own, self._made = named, tensors, own, {}
        self._classes = neighbours(classes_in([own]))

    def load(self, data):
        try:
            said = msgpack.unpackb(bytes(data), raw=False, strict_map_key=True, use_list=True)
            return self._hear(said, self._own, 0)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, msgpack.UnpackException) as error:
            raise ValueError("the state of another engine does not read: %s" % error) from error

    def _hear(self, said, own, depth):
        if not isinstance(said, list):
            if isinstance(said, dict):
                raise ValueError("a map without a kind")
            return sys.intern(said) if type(said) is str and said.isidentifier() else said
        if depth > DEPTH_MAX + 2:
            raise ValueError("it is nested too deeply")
        kind, rest = said[0], said[1:]
        if kind in CONTAINERS or kind in MAPS:
            return self._container(kind, rest, own, depth + 1)
        if kind == "c":
            return self._object(rest, own, depth + 1)
        if kind == "r":
            return self._made[rest[0]]
        if kind == "o":
            return self._named(rest[0])
        if kind == "t":
            return self._tensor(*rest)
        return self._leaf(kind, rest)

    def _tensor(self, number, index, device, grad, parameter):
        if torch is None or type(index) is not int or not 0 <= index < len(self._tensors):
            raise ValueError("tensor %r is not there" % (index,))
        tensor = self._tensors[index].to(torch.device(device))
        made = torch.nn.Parameter(tensor, requires_grad=bool(grad)) if parameter else tensor.requires_grad_(bool(grad))
        self._made[number] = made
        return made

    @staticmethod
    def _leaf(kind, rest):
        if kind == "i":
            if type(rest[0]) is not str or len(rest[0]) > DIGITS_MAX:
                raise ValueError("no number")
            return int(rest[0])
        if torch is None and kind in ("z", "d", "v"):
            raise ValueError("a value of torch, and this engine has none")
        if kind == "z":
            return torch.Size(rest[0])
        if kind == "d":
            return dtype_of(rest[0])
        if kind == "v":
            return torch.device(rest[0])
        if kind == "x":
            return complex(rest[0], rest[1])
        if kind == "b":
            return bytearray(rest[0])
        if kind in ("n", "s"):
            if not ARRAY_TYPE.fullmatch(rest[0]):
                raise ValueError("no type of an array: %r" % (rest[0],))
            array = numpy.frombuffer(rest[2], dtype=numpy.dtype(rest[0])).reshape(rest[1]).copy()
            return array if kind == "n" else array[()]
        raise ValueError("no kind of a value: %r" % (kind,))

    def _container(self, kind, rest, own, depth):
        number, items = rest
        if kind in MAPS:
            made = self._made[number] = MAPS[kind]()
            for key, one in items:
                key = self._hear(key, None, depth)
                made[key] = self._hear(one, own.get(key) if isinstance(own, dict) else None, depth)
            return made
        theirs = own if isinstance(own, (list, tuple)) and len(own) == len(items) else [None] * len(items)
        if kind == "l":
            made = self._made[number] = []
            made.extend(self._hear(one, mine, depth) for one, mine in zip(items, theirs))
            return made
        made = self._made[number] = CONTAINERS[kind](self._hear(one, mine, depth) for one, mine in zip(items, theirs))
        return made

    def _object(self, rest, own, depth):
        number, module, name, attributes, left_out = rest
        made = self._classes.get((module, name))
        if made is None:
            raise ValueError("it has an object of class %s.%s, which this engine's own callbacks do not know" % (module, name))
        value = own if type(own) is made else object.__new__(made)
        self._made[number] = value
        before = dict(value.__dict__)
        after = {key: before[key] for key in left_out if key in before}  # P2
        for key, one in attributes.items():
            after[sys.intern(key)] = self._hear(one, before.get(key), depth)
        value.__dict__.clear()
        value.__dict__.update(after)
        return value
