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


def backend_here():
    """FABRIC_BACKEND where nobody has said it: what the script has imported already, else what can be imported."""
    if "torch" in sys.modules or "tensorflow" in sys.modules:
        return "pytorch" if "torch" in sys.modules else "tensorflow"
    return "pytorch" if importlib.util.find_spec("torch") or not importlib.util.find_spec("tensorflow") else "tensorflow"


def elastic_name():
    """The elastic framework of this backend, as jobs are submitted."""
    return "edtTensorflow" if is_keras() else "edtPyTorch"


def is_of(value, *packages):
    """Whether an object's class, or one that it derives from, is of one of these packages; none of them is imported."""
    return any((kind.__module__ or "").split(".")[0] in packages for kind in type(value).__mro__)


def refuse_keras_3(version):
    """TensorFlow's version as it names itself: from 2.16 on tf.keras has models and optimizers of other classes."""
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= (2, 16):
        raise RuntimeError("FabricModel: TensorFlow %s has Keras 3, and models of Keras 2 are trained here: "
                           "pip install 'tensorflow-cpu>=2.15,<2.16' on all hosts" % version)


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
