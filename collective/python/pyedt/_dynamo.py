"""torch._dynamo, once somebody compiles. Every optimizer of torch imports it to tell the compiler what to leave alone: more than a
second of a core in each driver and each engine server, most of which compile nothing.

    wait() --> a module that waits in its place --> the real one, in the same object, at the first question but those below

While it waits, disable(f) is f, and graph_break() does nothing: that is what they do where nothing is compiled. What was disabled
meanwhile is disabled anew by the real one."""

import importlib.util
import sys
import threading
import types

NAME = "torch._dynamo"
# What others ask of every module there is.
OF_ALL = frozenset(("__class__", "__dict__", "__spec__", "__name__", "__loader__", "__package__", "__file__", "__cached__", "__doc__"))


class Waiting(types.ModuleType):
    def __getattribute__(self, name):
        if name in ANSWERS and not Load.begun:
            return ANSWERS[name]
        if name not in OF_ALL:
            Load.run(self)
        return types.ModuleType.__getattribute__(self, name)


class Load:
    """Once a process."""

    lock = threading.RLock()
    begun = False
    disabled = []  # functions that torch has asked to disable

    @classmethod
    def run(cls, module):
        with cls.lock:
            if cls.begun:  # by another thread, and it has ended; or by this one, which asks while it loads
                return
            cls.begun = True
            for function in cls.disabled:
                vars(function).pop("__dynamo_disable", None)  # where torch keeps what disable() gave (torch/_compile.py)
            try:
                module.__spec__.loader.exec_module(module)
            except BaseException:
                sys.modules.pop(NAME, None)
                raise
            module.__class__ = types.ModuleType


def disable(fn=None, *others, **named):
    if not isinstance(fn, types.FunctionType):  # torch's own are functions
        module = sys.modules[NAME]
        Load.run(module)
        return module.disable(fn, *others, **named)
    Load.disabled.append(fn)
    return fn


ANSWERS = {"disable": disable, "graph_break": lambda *others, **named: None}


def wait():
    """After `import torch`. Where torch._dynamo is there already, or there is none, nothing changes."""
    spec = None if NAME in sys.modules else importlib.util.find_spec(NAME)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        module.__class__ = Waiting
        sys.modules[NAME] = sys.modules["torch"]._dynamo = module
