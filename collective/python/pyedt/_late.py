"""Which framework a job has, and what is to be done when it has been imported, without importing it: `import fabric_model` loads
none (PROTOCOLS 13), and a script may import its own before or after it."""

import importlib
import importlib.abc
import importlib.util
import os
import sys

KERAS = ("tensorflow", "keras")  # values of FABRIC_BACKEND


def is_keras():
    return os.environ.get("FABRIC_BACKEND", "").lower() in KERAS


def framework():
    """torch; None in a job of TF.Keras, whose hosts need none."""
    return None if is_keras() else importlib.import_module("torch")


class AfterLoad(importlib.abc.Loader):
    """The module's own loader, and then a function, once."""

    def __init__(self, loader, then):
        self._loader, self._then = loader, then

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()


class Watch(importlib.abc.MetaPathFinder):
    """Stands first on sys.meta_path until the module is looked for, then leaves."""

    def __init__(self, name, then):
        self._name, self._then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = AfterLoad(spec.loader, self._then)
        return spec


def when_loaded(name, then):
    """Calls `then` now where the module is there, else when it has been imported."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, Watch(name, then))
