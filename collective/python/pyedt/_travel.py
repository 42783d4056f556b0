"""How the script's objects become bytes, and what becomes of its paths on another host.

    driver: Pickler --> pickle, roots() --> header       engine: moved(pickle, roots of the driver, its own)

T1. What cloudpickle sends by value brings the globals that it names. Two kinds escape it, and are added here: names in the
    body of a class that a function defines, and names in texts where the function evaluates texts.
T2. A lock is a new lock in each engine, and a TensorBoard writer a new writer to the same folder: neither can be shared.
T3. A text that is a path below one of the driver's roots is below the engine's own root there.
T4. Code keeps the name of its file: what an engine raises names the script's line.
T5. A module whose tensors are parametrized (weight_norm, spectral_norm, orthogonal of torch.nn.utils.parametrizations) has a class
    that torch makes for it alone and refuses to pickle: it travels as its own class and what it holds, and becomes parametrized
    again there.
T6. What register_hook() of a parameter was given travels with it: torch's own pickles leave it out without a word."""

import io
import opcode
import os
import pathlib
import pickletools
import re
import struct
import sys
import threading
import types

import cloudpickle

from pyedt import _keras_travel

ROOTS = ("DLI_WORK_DIR", "DATA_DIR", "RESULT_DIR", "LOG_DIR", "CHECKPOINT_DIR", "SAVED_MODEL_DIR", "DLI_DATA_FS",
         "DLI_RESULT_FS", "FABRIC_HOME", "HOME")
EVALUATES = {"eval", "exec", "globals", "getattr"}
TEXT_CHARACTERS = 1000  # of a text that is looked through for names
LOCKS = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}
LOAD_NAME = opcode.opmap["LOAD_NAME"]
STRINGS = {"SHORT_BINUNICODE": 2, "BINUNICODE": 5, "BINUNICODE8": 9}  # name of the code: bytes before the text
FRAME_BYTES = 9


class Refused(TypeError):
    """Something that must not travel; the text says why and what to write instead."""


def escaped_names(code, nested=False):
    """Names that code finds among the globals, but not by the instructions that cloudpickle looks at (T1)."""
    found = set()
    if nested:  # the body of a class
        words = code.co_code
        found |= {code.co_names[words[i + 1]] for i in range(0, len(words), 2)
                  if words[i] == LOAD_NAME and words[i + 1] < len(code.co_names)}
        found |= set(code.co_names) if len(code.co_names) > 255 else set()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= escaped_names(constant, True)
        elif isinstance(constant, str) and len(constant) <= TEXT_CHARACTERS and EVALUATES & set(code.co_names):
            found |= set(re.findall(r"[^\W\d]\w*", constant))
    return found


class Pickler(cloudpickle.Pickler):
    """`optimizers`: those that were given to FabricModel; any other one that the functions use is refused. None: all are
    taken."""

    def __init__(self, file, optimizers):
        super().__init__(file, protocol=5)
        self._optimizers = None if optimizers is None else {id(optimizer) for optimizer in optimizers}

    def reducer_override(self, obj):
        if type(obj) in LOCKS:
            return LOCKS[type(obj)], ()
        if isinstance(obj, pathlib.PurePath):
            return type(obj), (str(obj),)  # its parts alone would be no path (T3)
        if type(obj).__name__ == "SummaryWriter" and type(obj).__module__.startswith(("torch.", "tensorboard")):
            return type(obj), (str(obj.log_dir),)
        if isinstance(obj, types.CodeType):
            return with_file(obj, self.dispatch_table[types.CodeType](obj))
        made = _keras_travel.reduce(obj)
        if made is not None:
            return made
        refuse_optimizer(obj, self._optimizers)
        refuse_compiled(obj)
        made = parametrized_as_parts(obj) or tensor_with_hooks(obj)
        if made is not None:
            return made
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            add_globals(obj, reduced)
        return reduced


def with_file(code, reduced):
    """T4: versions of cloudpickle from 3.1.2 leave the file out."""
    made, arguments = reduced
    return made, tuple(str(code.co_filename) if one == "<dynamic-code>" else one for one in arguments)


def parametrized_as_parts(obj):
    """T5: how a module with parametrized tensors is made again, or None if `obj` is no such module."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(obj, torch.nn.Module) or not torch.nn.utils.parametrize.is_parametrized(obj):
        return None
    own = type(obj).__bases__[0]
    state = own.__getstate__(obj) if hasattr(own, "__getstate__") else dict(vars(obj))  # object has one from Python 3.11 on
    return parametrized_again, (own, list(obj.parametrizations)), state


def parametrized_again(own, names):
    """As torch.nn.utils.parametrize makes it, without what it holds, which pickle puts in."""
    from torch.nn.utils import parametrize

    module = own.__new__(own)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def tensor_with_hooks(obj):
    """T6: how a tensor is made again whose gradient passes through functions of the script's, or None if there are none."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(obj, torch.Tensor) or not obj.is_leaf:
        return None
    if getattr(obj, "_post_accumulate_grad_hooks", None):
        raise Refused("FabricModel: a parameter of shape %s has a hook of register_post_accumulate_grad_hook(), and the gradient is whole "
                      "only when the mini-batches of all engines are in; change that of one mini-batch with register_hook()" % (tuple(obj.shape),))
    if not obj._backward_hooks:
        return None
    return (*obj.__reduce_ex__(5)[:2], list(obj._backward_hooks.values()), None, None, hook_again)


def hook_again(tensor, hooks):
    wants = tensor.requires_grad
    tensor.requires_grad_(True)  # else none may be registered
    for hook in hooks:
        tensor.register_hook(hook)
    tensor.requires_grad_(wants)


def refuse_compiled(obj):
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        name = getattr(obj, "original_name", None) or getattr(obj, "name", "a module")
        raise Refused("FabricModel: %s was made by torch.jit, and cannot be sent to the engines; give what it was made from, and "
                      "make it of that one after train()" % name)


def refuse_optimizer(obj, known):
    torch = sys.modules.get("torch")
    if known is None or torch is None or not isinstance(obj, torch.optim.Optimizer) or id(obj) in known:
        return
    names = [name for name, value in vars(sys.modules["__main__"]).items() if value is obj]
    raise Refused("FabricModel: a function or a callback uses another optimizer%s (%s), which each engine would step for "
                  "itself; give all of them: optimizer=[first, second]"
                  % (", '%s'" % names[0] if names else "", type(obj).__name__))


def add_globals(function, reduced):
    """T1: into the state that cloudpickle has made of a function."""
    state = reduced[2]
    if not isinstance(state, tuple) or len(state) != 2 or "__globals__" not in state[1]:
        return
    for name in sorted(escaped_names(function.__code__)):
        if name in function.__globals__ and name not in state[1]["__globals__"]:
            state[1]["__globals__"][name] = function.__globals__[name]


def dumps(value, optimizers):
    out = io.BytesIO()
    Pickler(out, optimizers).dump(value)
    return out.getvalue()


# ---- paths ----

def roots():
    """{variable: folder} of this process."""
    found = {name: os.environ.get(name, "").rstrip("/") for name in ROOTS}
    found["cwd"] = os.getcwd().rstrip("/")
    return {name: path for name, path in found.items() if path.startswith("/") and path.count("/") > 1}


def moved(pickled, theirs):
    """The pickle with the paths of this host (T3); the same bytes where hosts have the same folders."""
    own = roots()
    pairs = {path: own[name] for name, path in theirs.items() if name in own}
    pairs = sorted(((path, here) for path, here in pairs.items() if path.encode() in pickled), key=lambda p: -len(p[0]))
    if all(path == here for path, here in pairs):
        return pickled

    def change(text):
        for path, here in pairs:
            if text == path or text.startswith(path + "/"):
                return here + text[len(path):]
        return text

    return with_texts(pickled, change)


def with_texts(pickled, change):
    """The pickle with change(text) for each text in it. Frames go: their lengths would be others."""
    out, kept = [], 0
    for code, text, at in pickletools.genops(pickled):
        if code.name == "FRAME":
            out.append(pickled[kept:at])
            kept = at + FRAME_BYTES
        elif code.name in STRINGS and (new := change(text)) != text:
            out.append(pickled[kept:at])
            data = new.encode("utf-8", "surrogatepass")
            out.append(b"X" + struct.pack("<I", len(data)) + data)
            kept = at + STRINGS[code.name] + len(text.encode("utf-8", "surrogatepass"))
    out.append(pickled[kept:])
    return b"".join(out)
