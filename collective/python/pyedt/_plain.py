"""Values as bytes that cannot run code: what engines tell each other of their optimizers and callbacks.

    None, bool, float, str, bytes, int     as MessagePack has them
    everything else                        [kind, ...]: containers, tensors, arrays, objects, and names of what both sides have

P1. Reading imports nothing and calls nothing of what the bytes name. An object's class is one that the receiver's own objects
    have, or that stands beside it: in the same module, or in another one of the job's folder that its functions name. It is made
    without its constructor, and its attributes are put into it.
    A member of an enumeration is the receiver's own member of that name.
P2. What cannot be said so (open files, locks, functions) stays as the receiver's own object at the same place has it. What the
    receiver has at two places goes on as one object at the first of them.
P3. What is there twice is there once again after reading: containers and objects are numbered, and a text that could be a
    name in a program is the one that programs share. So what an engine that was given a state writes (pickles refer back to
    what was there before) has the bits of what its giver would have written."""

import collections
import contextlib
import enum
import functools
import os
import re
import sys
import types

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
FACTORIES = {made.__name__: made for made in (int, float, bool, complex, str, bytes, list, tuple, dict, set, frozenset,
                                              collections.Counter, collections.OrderedDict, collections.deque)}


class Cannot(TypeError):
    """This value cannot be said in plain bytes."""


def dtype_of(name):
    dtype = getattr(torch, name) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError("no type of a tensor: %r" % (name,))
    return dtype


def slots_of(made):
    """{name: descriptor} of what objects of a class written in Python have beside a __dict__, or in its place."""
    return {name: one for kind in reversed(made.__mro__) if "__slots__" in vars(kind)
            for name, one in vars(kind).items() if isinstance(one, types.MemberDescriptorType)}


def slot_values(value):
    found = {}
    for name, descriptor in slots_of(type(value)).items():
        with contextlib.suppress(AttributeError):  # it has no value
            found[name] = descriptor.__get__(value)
    return found


def attributes_of(value):
    """All that an object has; TypeError if it may be made of more than that."""
    object.__new__(type(value))  # as the receiver makes it
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is not dict and not (attributes is None and slots_of(type(value))):
        raise TypeError
    return {**(attributes or {}), **slot_values(value)}


def is_named_tuple(made):
    return any(tuple in kind.__bases__ and "_fields" in vars(kind) for kind in made.__mro__)


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
        if isinstance(value, enum.Enum) and type(value).__members__.get(value._name_) is value:
            return ["y", type(value).__module__, type(value).__qualname__, value._name_]
        if isinstance(value, numpy.generic) or type(value) is numpy.ndarray:
            if not ARRAY_TYPE.fullmatch(value.dtype.str):
                return None
            return ["n" if type(value) is numpy.ndarray else "s", value.dtype.str, list(value.shape), value.tobytes()]
        return None

    def _inner(self, value, where, depth):
        kind = KINDS.get(type(value))
        if kind in CONTAINERS:
            number = self._number(value)
            bound = [value.maxlen] if kind == "q" and value.maxlen is not None else []
            return [kind, number, [self._say(one, where, depth) for one in value], *bound]
        if kind in MAPS:
            return [kind, self._number(value), self._pairs(value, where, depth)]
        if type(value) is collections.defaultdict:
            factory = next((name for name, made in FACTORIES.items() if made is value.default_factory), None)
            wants = factory if factory or value.default_factory is None else True  # the receiver's own
            return ["h", self._number(value), wants, self._pairs(value, where, depth)]
        if is_named_tuple(type(value)) and not getattr(value, "__dict__", None):
            number = self._number(value)
            return ["a", number, type(value).__module__, type(value).__qualname__, [self._say(one, where, depth) for one in value]]
        if isinstance(value, enum.Enum):
            raise Cannot("%s is several members of an enumeration at once, which cannot travel to another engine" % where)
        try:
            attributes = attributes_of(value)
        except (TypeError, AttributeError):
            raise Cannot("%s is a %s, which cannot travel to another engine" % (where, type(value).__name__)) from None
        return self._object(value, attributes, where, depth)

    def _pairs(self, value, where, depth):
        return [[self._say(key, where, depth), self._say(one, "%s[%r]" % (where, key), depth)] for key, one in value.items()]

    def _object(self, value, all_of_it, where, depth):
        attributes, left_out = {}, []
        number = self._number(value)
        for name, one in all_of_it.items():
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
        made, number = type(value), id(value)
        if number in seen or torch and isinstance(value, torch.Tensor):
            continue
        seen.add(number)
        if isinstance(value, (enum.Enum, *MAPS.values(), *CONTAINERS.values())) and made not in KINDS:
            found[made.__module__, made.__qualname__] = made
        if isinstance(value, (str, bytes, enum.Enum)):
            continue
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting.extend(value)
        elif not isinstance(value, type) and (hasattr(value, "__dict__") or slots_of(made)):
            found[made.__module__, made.__qualname__] = made
            waiting.extend(getattr(value, "__dict__", {}).values())
            waiting.extend(slot_values(value).values())
    return found


@functools.lru_cache(4096)
def lies_in(path, folder):
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))


def is_jobs_own(name):
    """Whether a module lies in the job's folder."""
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    return isinstance(origin, str) and lies_in(origin, os.environ.get("DLI_WORK_DIR") or os.getcwd())


def globals_of(made):
    """Of the functions of a class: each dict once, mostly one."""
    functions = [getattr(one, "fget", None) or getattr(one, "__func__", one) for one in vars(made).values()]
    return {id(names): names for names in (getattr(one, "__globals__", None) for one in functions) if type(names) is dict}


def neighbours(classes):
    """Those that stand beside them, in the globals of their functions: of the same module, or of one in the job's folder."""
    found, waiting, seen = dict(classes), list(classes.values()), {}
    while waiting and len(found) < CLASSES_MAX:
        made = waiting.pop()
        for number, names in globals_of(made).items():
            if number in seen:
                continue
            seen[number] = names
            own = [one for one in list(names.values()) if isinstance(one, types.ModuleType) and is_jobs_own(one.__name__)]
            for other in [*list(names.values()), *(one for module in own for one in list(vars(module).values()))]:
                if isinstance(other, type) and (other.__module__ == made.__module__ or is_jobs_own(other.__module__)):
                    if found.setdefault((other.__module__, other.__qualname__), other) is other:
                        waiting.append(other)
    return found


class Reader:
    """`named(name)`: the receiver's own. `tensors`: those that came beside. `own`: what the receiver has where the value goes."""

    def __init__(self, named, tensors, own):
        self._named, self._tensors, self._own, self._made = named, tensors, own, {}
        self._used = set()  # ids of own objects that have their new attributes
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
        if kind in ("h", "a", "y"):
            return self._special(kind, rest, own, depth + 1)
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
        number, items, *bound = rest
        if kind in MAPS:
            made = self._made[number] = MAPS[kind]()
            return self._pairs(made, items, own, depth)
        theirs = own if isinstance(own, (list, tuple)) and len(own) == len(items) else [None] * len(items)
        if kind == "l":
            made = self._made[number] = []
            made.extend(self._hear(one, mine, depth) for one, mine in zip(items, theirs))
            return made
        made = self._made[number] = CONTAINERS[kind]((self._hear(one, mine, depth) for one, mine in zip(items, theirs)), *bound)
        return made

    def _pairs(self, made, items, own, depth):
        for key, one in items:
            key = self._hear(key, None, depth)
            made[key] = self._hear(one, own.get(key) if isinstance(own, dict) else None, depth)
        return made

    def _class(self, module, name):
        made = self._classes.get((module, name))
        if made is None:
            raise ValueError("it has an object of class %s.%s, which this engine's own callbacks do not know" % (module, name))
        return made

    def _special(self, kind, rest, own, depth):
        if kind == "h":
            number, factory, items = rest
            theirs = own.default_factory if factory is True and type(own) is collections.defaultdict else None
            made = self._made[number] = collections.defaultdict(FACTORIES[factory] if isinstance(factory, str) else theirs)
            return self._pairs(made, items, own, depth)
        if kind == "y":
            module, name, member = rest
            made = self._class(module, name)
            if not issubclass(made, enum.Enum):
                raise ValueError("%s is no enumeration" % name)
            return made.__members__[member]
        number, module, name, items = rest
        made = self._class(module, name)
        if not is_named_tuple(made) or len(items) != len(made._fields):
            raise ValueError("%s is no tuple of %d" % (name, len(items)))
        theirs = own if type(own) is made else [None] * len(items)
        value = self._made[number] = tuple.__new__(made, [self._hear(one, mine, depth) for one, mine in zip(items, theirs)])
        return value

    def _object(self, rest, own, depth):
        number, module, name, attributes, left_out = rest
        made = self._class(module, name)
        if issubclass(made, (enum.Enum, tuple)):
            raise ValueError("%s is no class of plain objects" % name)
        mine = type(own) is made
        value = own if mine and id(own) not in self._used else object.__new__(made)
        self._used.add(id(value))
        self._made[number] = value
        before, slots = attributes_of(own if mine else value), slots_of(made)
        after = {key: before[key] for key in left_out if key in before}  # P2
        for key, one in attributes.items():
            after[sys.intern(key)] = self._hear(one, before.get(key), depth)
        for key, descriptor in slots.items():
            with contextlib.suppress(AttributeError):  # it has no value
                descriptor.__delete__(value)
            if key in after:
                descriptor.__set__(value, after.pop(key))
        if hasattr(value, "__dict__"):
            value.__dict__.clear()
            value.__dict__.update(after)
        return value
