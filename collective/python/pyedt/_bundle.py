"""Everything train() ships to the engines, in one file:

    "SHOALCB1"  u32 header bytes  header (JSON)  u64 pickle bytes  pickle

Little-endian. One cloudpickle dump of model, optimizer, loss, datasets function, metrics, callbacks and functions together,
so that identities hold: the optimizer's parameters are the model's. What the script's main module defines goes by value,
modules of the working directory go by reference, and engines look for them where the script does: `folders` of the header."""

import builtins
import hashlib
import inspect
import json
import os
import struct
import sys
import types

MAGIC = b"SHOALCB1"
PARTS = ("model", "optimizer", "loss", "datasets", "metrics", "callbacks", "worker_logger", "fn_step_train", "fn_test",
         "fn_args", "collate")


class Unfit(RuntimeError):
    """No engine of the job can run on this host, and on others it may: the text says why."""


def python_version():
    return "%d.%d" % sys.version_info[:2]


def dumps(parts):
    """One pickle of `parts`. TypeError naming the global and who uses it, if something cannot be pickled."""
    from pyedt import _late, _travel

    optimizers = None
    if not _late.is_keras():
        from pyedt import _optimizers

        optimizers = _optimizers.as_list(parts.get("optimizer"))
    try:
        return _travel.dumps(parts, optimizers)
    except _travel.Refused:
        raise
    except Exception as error:
        raise TypeError(explain(parts, error)) from error


def explain(parts, error):
    for name in PARTS:
        found = find_culprit(parts.get(name), name, set(), 0)
        if found:
            return found
    return "the model and its functions cannot be sent to the engines: %s" % error


def pickles(value):
    from pyedt import _travel

    try:
        _travel.dumps(value, None)
    except Exception as error:  # whatever a __reduce__ raises
        return error
    return None


def find_culprit(value, where, seen, depth):
    """A sentence about the innermost thing below `value` that cannot be pickled, or None."""
    if id(value) in seen or depth > 12:
        return None
    seen.add(id(value))
    error = pickles(value)
    if error is None:
        return None
    for inner_where, inner, remedy in members(value, where):
        found = find_culprit(inner, inner_where, seen, depth + 1)
        if found is None and pickles(inner) is not None and id(inner) not in seen:
            found = None
        if found:
            return found
        if pickles(inner) is not None:
            return "cannot send %s to the engines: %s (%s). %s" % (
                inner_where, describe(inner), pickles(inner), remedy)
    if depth == 0:
        return "cannot send %s to the engines: %s (%s). Give an object that can be pickled" % (
            where, describe(value), error)
    return None


def describe(value):
    return "an object of type %s.%s" % (type(value).__module__, type(value).__qualname__)


MAKE_INSIDE = "Make it inside the function, or in a module of the working directory"


def members(value, where):
    """(name, value, remedy) of what a pickle of `value` reaches."""
    if isinstance(value, types.MethodType):
        yield from members(value.__func__, where)
        yield "the object of method %s" % value.__name__, value.__self__, MAKE_INSIDE
    elif isinstance(value, types.FunctionType):
        label = "function %s" % value.__qualname__
        for name in global_names(value.__code__):
            if name in value.__globals__ and not hasattr(builtins, name):
                yield "global '%s' used by %s" % (name, label), value.__globals__[name], MAKE_INSIDE
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            yield "variable '%s' captured by %s" % (name, label), cell.cell_contents, MAKE_INSIDE
        for default in value.__defaults__ or ():
            yield "a default argument of %s" % label, default, MAKE_INSIDE
    elif inspect.isclass(value):
        for name, attribute in vars(value).items():
            function = getattr(attribute, "__func__", attribute)
            if isinstance(function, types.FunctionType):
                yield "method %s of class %s" % (name, value.__qualname__), function, MAKE_INSIDE
            elif not name.startswith("__"):
                yield "attribute '%s' of class %s" % (name, value.__qualname__), attribute, MAKE_INSIDE
    elif isinstance(value, dict):
        for key, item in value.items():
            yield "item %r of %s" % (key, where), item, MAKE_INSIDE
    elif isinstance(value, (list, tuple, set, frozenset)):
        for i, item in enumerate(value):
            yield "item %d of %s" % (i, where), item, MAKE_INSIDE
    else:
        yield "class %s" % type(value).__qualname__, type(value), MAKE_INSIDE
        for name, item in getattr(value, "__dict__", {}).items():
            yield "attribute '%s' of %s" % (name, where), item, "Make it in __setstate__, or leave it out of __getstate__"


def global_names(code):
    """Names of globals that a function or anything nested in it uses, in order."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += global_names(constant)
    return list(dict.fromkeys(names))


def shapes_digest(model):
    """Names, shapes and types of parameters and buffers: a rerun of the script must give the same."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        digest.update(("%s %s %s\n" % (name, tuple(tensor.shape), tensor.dtype)).encode())
    return digest.hexdigest()


def signature(header):
    """The text that a rerun of the script must repeat; short, and readable in an error that shows both."""
    keys = ("epochs", "batch_size", "virtual_workers", "validation_freq", "checkpoint_freq", "optimizer", "parameters",
            "shapes")
    return " ".join("%s=%s" % (key, header[key]) for key in keys)[:1023]


def folders():
    """Where this script finds modules below the job's work directory, relative to it: [what stands before all other folders of
    sys.path, the rest]. The script's own folder and what it has put into sys.path are among them. None outside a job."""
    if "DLI_WORK_DIR" not in os.environ:
        return [[], []]
    root = os.path.realpath(os.environ["DLI_WORK_DIR"])
    found, others = [[], []], False
    for entry in [one for one in sys.path if isinstance(one, str)]:
        path = os.path.relpath(os.path.realpath(entry), root)
        if path.split(os.sep)[0] == os.pardir:
            others = True
        elif path not in found[0] + found[1]:
            found[others].append(path)
    return found


def add_folders(first, rest):
    """What folders() found in the driver, to this process's path. Calling it again changes nothing."""
    root = os.environ.get("DLI_WORK_DIR") or os.getcwd()
    first, rest = ([os.path.normpath(os.path.join(root, path)) for path in paths] for paths in (first, rest))
    sys.path[:] = first + [entry for entry in sys.path if entry not in first]
    sys.path += [path for path in rest if path not in sys.path]


def write(path, header, pickled):
    """Write to a temporary name, flush, rename: a bundle is whole or not there."""
    text = json.dumps(header, sort_keys=True).encode()
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "wb") as out:
        out.write(MAGIC + struct.pack("<I", len(text)) + text + struct.pack("<Q", len(pickled)))
        out.write(pickled)
        out.flush()
        os.fsync(out.fileno())
    os.rename(temporary, path)


def read_header(source, path="the bundle"):
    if source.read(len(MAGIC)) != MAGIC:
        raise ValueError("%s is no FabricModel bundle" % path)
    size = source.read(4)
    if len(size) < 4:
        raise ValueError("%s ends early" % path)
    text = source.read(struct.unpack("<I", size)[0])
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("%s: the header is damaged" % path) from None


def check_header(header):
    """A function pickled by another Python crashes instead of raising, so the versions are compared first."""
    from pyedt import _late

    if _late.is_keras():
        import tensorflow

        framework, backend = ("tensorflow", tensorflow.__version__), "keras"
    else:
        import torch

        framework, backend = ("torch", torch.__version__), "pytorch"
    for name, here in (("python", python_version()), framework, ("backend", backend)):
        if header.get(name) != here:
            raise Unfit("the driver has %s %s, this host has %s: the job needs hosts with the driver's version"
                        % (name, header.get(name), here))


def read(path):
    """(header, parts) of a bundle file. ValueError if it is damaged, Unfit if made by other versions."""
    import cloudpickle
    from pyedt import _travel

    with open(path, "rb") as source:
        header = read_header(source, path)
        check_header(header)
        size = source.read(8)
        pickled = source.read() if len(size) == 8 else b""
    if len(size) < 8 or len(pickled) != struct.unpack("<Q", size)[0]:
        raise ValueError("%s ends early" % path)
    add_folders(*header.get("folders", ((), ())))  # none in what an older version has written
    return header, cloudpickle.loads(_travel.moved(pickled, header.get("roots", {})))
