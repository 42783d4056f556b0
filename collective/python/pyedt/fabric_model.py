"""FabricModel: the class that training scripts build and train (training contract 3). Importing this loads no torch. Once torch is
there, "cuda" is a word for the CPU where there is no GPU: scripts move their model before they make a FabricModel."""

import os
import sys
import warnings

from pyedt import _arguments, _late


def announce():
    """The diagnostic lines that users know, at import."""
    for name in ("DATA_DIR", "RESULT_DIR", "LOG_DIR", "SAVED_MODEL_DIR"):
        if os.environ.get(name):
            print("<> %s %s" % (name, os.environ[name]))
    if not os.environ.get("FABRIC_BACKEND"):
        os.environ["FABRIC_BACKEND"] = backend = _late.backend_here()
        print("Warning: FABRIC_BACKEND is not set, %s was chosen; restart to choose another" % backend)
    print("<> FABRIC_BACKEND %s" % os.environ["FABRIC_BACKEND"], flush=True)


def after_torch():
    from pyedt import _device, _dynamo

    _device.stay_on_cpu()
    _dynamo.wait()


def one_thread():
    """What the script computes itself, and trains where it runs alone, has the bits of engines."""
    from pyedt import _engine

    _engine.set_threads()


announce()
if os.environ["FABRIC_BACKEND"].lower() == "pytorch":
    _late.when_loaded("torch", after_torch)
elif _late.is_keras():
    _late.when_loaded("tensorflow", one_thread)


class FabricModel:
    """A network and everything needed to train it on however many engines there are. Keeps the user's own objects."""

    def __init__(self, model, datasets_function, loss_function, optimizer, metrics=None, driver_logger=None,
                 worker_logger=None, user_callback=None, enable_onnx=False, fn_step_train=None, fn_test=None, fn_args=None,
                 scaleup_function=None, driver_logger_callback=None, worker_logger_callback=None, save_to_onnx=False,
                 keras_custom_objects=None, fn_batch_collate=None, fuse=None, **unknown):
        _arguments.check_environment()
        self.onnx = bool(enable_onnx or save_to_onnx)
        if self.onnx:
            from pyedt import _onnx

            _onnx.check("keras" if _late.is_keras() else "pytorch", "the driver's host")
        self.keras_custom_objects = keras_custom_objects
        if _late.is_keras():
            refuse(fn_step_train is not None, "fn_step_train with TF.Keras", "write what is special into the loss")
            refuse(fn_test is not None, "fn_test with TF.Keras", "give metrics=[...]")
        else:
            refuse(keras_custom_objects, "keras_custom_objects with PyTorch", "give a torch.nn.Module")
        if unknown:
            warnings.warn("FabricModel ignores unknown arguments: %s" % ", ".join(sorted(unknown)), stacklevel=2)
        if scaleup_function is not None:
            warnings.warn("scaleup_function is ignored: the mesh decides how many engines run", stacklevel=2)
        check_objects(model, datasets_function, loss_function, optimizer)
        self.model, self.optimizer = model, optimizer
        self.datasets_function, self.loss_function = datasets_function, loss_function
        self.metrics = check_list(metrics, "metrics", need_call=not _late.is_keras())
        self.driver_logger = driver_logger_callback if driver_logger_callback is not None else driver_logger
        self.worker_logger = worker_logger_callback if worker_logger_callback is not None else worker_logger
        self.user_callback = check_list(user_callback, "user_callback")
        self.fn_step_train, self.fn_test, self.fn_args = fn_step_train, fn_test, fn_args
        self.fn_batch_collate = fn_batch_collate
        self._trained = False
        self.fuse = _arguments.may_fuse(fuse)
        if self.fuse and _late.is_keras():
            warnings.warn("fuse is ignored: TF.Keras computes mini-batches one by one", stacklevel=2)
        for name in ("fn_step_train", "fn_test", "fn_batch_collate"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError("FabricModel: %s must be a function, got %s" % (name, type(getattr(self, name)).__name__))

    def train(self, epoch_number, batch_size, engines_number=None, num_dataloader_threads=0, validation_freq=1,
              checkpoint_freq=1, effective_batch_size=None, hardware_spec=None, worker_num=None, worker_device_num=None,
              worker_memory=None, driver_memory=None):
        """Train, and load the final weights into the model and the optimizer. Returns None; raises if training fails."""
        arguments = _arguments.TrainArguments(
            epoch_number, batch_size, engines_number, num_dataloader_threads, validation_freq, checkpoint_freq,
            effective_batch_size, hardware_spec, worker_num, worker_device_num, worker_memory, driver_memory)
        from pyedt import _driver

        _driver.train(self, arguments)
        self._trained = True

    def download(self, out_dir="/tmp"):
        """What training has left in RESULT_DIR/model, as out_dir/JOB.zip; returns its path."""
        if not self._trained:
            raise RuntimeError("FabricModel: download() comes after train(): there is no result yet")
        from pyedt import _driver

        path = _driver.download(out_dir)
        print("Save model:  %s" % path, flush=True)
        return path


def refuse(given, what, remedy):
    if given:
        raise NotImplementedError("FabricModel: %s is not supported yet; %s" % (what, remedy))


def check_list(value, name, need_call=False):
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        value = [value]
    for item in value:
        if need_call and not callable(item):
            raise TypeError("FabricModel: %s must be functions, got %s" % (name, type(item).__name__))
    return list(value)


def check_objects(model, datasets_function, loss_function, optimizer):
    if not callable(datasets_function):
        raise TypeError("FabricModel: datasets_function must be a function without arguments, got %s"
                        % type(datasets_function).__name__)
    check_framework(model)
    if _late.is_keras():
        from pyedt import _keras_driver

        _keras_driver.check_model(model, loss_function, optimizer)
        return
    import torch

    from pyedt import _optimizers

    if not isinstance(model, torch.nn.Module):
        raise TypeError("FabricModel: model must be a torch.nn.Module, got %s" % type(model).__name__)
    if not callable(loss_function):
        raise TypeError("FabricModel: loss_function must be callable, got %s" % type(loss_function).__name__)
    modules = [m for m in (model, loss_function) if isinstance(m, torch.nn.Module)]
    refuse_lazy(modules)
    own = {id(p) for module in modules for p in module.parameters()}
    for p in (p for one in _optimizers.check(optimizer) for group in one.param_groups for p in group["params"]):
        if id(p) not in own:
            raise ValueError("FabricModel: the optimizer holds a parameter of shape %s that is not the model's; build it "
                             "on model.parameters()" % (tuple(p.shape),))
        if not p.dtype.is_floating_point:
            raise TypeError("FabricModel: a parameter of shape %s is of type %s: real numbers are trained; write a complex one "
                            "as two of them (torch.view_as_real)" % (tuple(p.shape), p.dtype))
    for p in model.parameters():
        if p.device.type != "cpu":
            raise ValueError("FabricModel: the model must be on the CPU, a parameter is on %s; leave model.to(...) out, "
                             "the engines move it" % p.device)


def check_framework(model):
    """A model of the other framework, whose own is perhaps not even installed."""
    if _late.is_keras() and _late.is_of(model, "torch"):
        raise TypeError("FabricModel: the model is torch's, and this job is of TensorFlow (FABRIC_BACKEND %s); submit it with "
                        "--framework edtPyTorch" % os.environ["FABRIC_BACKEND"])
    if not _late.is_keras() and _late.is_of(model, "keras", "tensorflow"):
        raise TypeError("FabricModel: the model is TensorFlow's, and this job is of PyTorch (FABRIC_BACKEND %s); submit it with "
                        "--framework edtTensorflow" % os.environ["FABRIC_BACKEND"])


def refuse_lazy(modules):
    """A lazy module knows its shapes after its first batch, and the engines need them before."""
    from torch.nn.parameter import is_lazy

    for module in (inner for root in modules for inner in root.modules()):
        if any(is_lazy(tensor) for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]):
            raise ValueError("FabricModel: the shapes of %s are not known yet; call it once before FabricModel: "
                             "model(one_batch_of_inputs)" % type(module).__name__)
