"""Scripts for GPU hosts on hosts without one: what says "cuda" goes to the slot's device, with one line in the log.

    model.cuda(), tensor.cuda(), x.to("cuda:1"), torch.zeros(2, device="cuda"), torch.load(path, map_location="cuda")

Only where torch sees no GPU: there all of these would raise. Where it sees one, nothing is changed."""

import functools

import torch

SCRIPTED = ("tensor", "as_tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange",
            "linspace", "eye", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")
OTHERS = ("load", "set_default_device")
IDLE = ("set_device", "synchronize", "init")  # of torch.cuda: nothing to do without one

_moved = []


def is_cuda(value):
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def note(what):
    if not _moved:
        _moved.append(what)
        print("%s: there is no GPU here, so what goes to \"cuda\" stays on the CPU" % what, flush=True)


def here(value, what):
    if not is_cuda(value):
        return value
    note(what)
    return torch.device("cpu")


def stays(what):
    """A cuda() that gives the object back."""
    def cuda(self, *arguments, **named):
        note(what)
        return self
    return cuda


def moves(function, what):
    """The function, with "cuda" replaced wherever it stands among the arguments."""
    @functools.wraps(function)
    def call(*arguments, **named):
        if any(is_cuda(one) for one in arguments) or any(is_cuda(one) for one in named.values()):
            arguments = [here(one, what) for one in arguments]
            named = {name: here(one, what) for name, one in named.items()}
        return function(*arguments, **named)
    call._shoal_moves = True
    return call


def move_factory(name):
    """TorchScript and pickles know the function by its name, and go on doing so."""
    moved = moves(getattr(torch, name), "torch.%s()" % name)
    moved.__module__, moved.__qualname__ = "torch", name
    setattr(torch, name, moved)
    builtins = torch.jit._builtins
    if getattr(builtins, "_builtin_table", None) is not None and name in SCRIPTED:
        builtins._register_builtin(moved, "aten::" + name)


def stay_on_cpu():
    """In the script's process and in engines, once; nothing where torch sees a GPU."""
    if getattr(torch.nn.Module.to, "_shoal_moves", False) or torch.cuda.is_available():
        return
    torch.nn.Module.cuda, torch.Tensor.cuda = stays("model.cuda()"), stays("tensor.cuda()")
    torch.nn.Module.to = moves(torch.nn.Module.to, "model.to()")
    torch.Tensor.to = moves(torch.Tensor.to, "tensor.to()")
    torch.Tensor.pin_memory = stays("tensor.pin_memory()")
    for name in SCRIPTED + OTHERS:
        move_factory(name)
    for name in IDLE:
        setattr(torch.cuda, name, lambda *arguments, **named: None)
