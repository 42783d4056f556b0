"""The final model as ONNX: FabricModel(save_to_onnx=True), or enable_onnx.

N1. Looked for before anything starts: the driver and each engine refuse a Python that lacks the packages, with what to install.
N2. The input is the first sample of the validation set, or of the training set; the first dimension of inputs and outputs is free.
N3. It is written once before the first step, and thrown away: a network that cannot be written so is refused then, and not
    after hours of training."""

import copy
import importlib.util
import inspect
import os
import warnings

NAME = "model_epoch_final.onnx"


def missing(backend):
    """What this Python lacks to write ONNX, as words for pip; "" if nothing."""
    wanted = ("onnx",) if backend == "pytorch" else ("tf2onnx", "onnx")
    return " ".join(name for name in wanted if importlib.util.find_spec(name) is None)


def check(backend, who):
    words = missing(backend)
    if words:
        raise NotImplementedError("FabricModel: save_to_onnx needs what the Python of %s lacks: `python -m pip install %s` on each host, or "
                                  "leave save_to_onnx (enable_onnx) out" % (who, words))


def write(path, model, batch, inputs_of):
    """`batch`: one mini-batch on the CPU. `inputs_of(batch)`: (positional inputs, named inputs) of the network."""
    import torch

    network = copy.deepcopy(model).cpu().eval()
    arguments, named = inputs_of(batch)
    names = ["input"] if len(arguments) == 1 and not named else ["input_%d" % i for i in range(len(arguments))] + list(named)
    with torch.no_grad():
        outputs = network(*arguments, **named)
    results = ["output"] if isinstance(outputs, torch.Tensor) else ["output_%d" % i for i in range(len(outputs))]
    export = {"input_names": names, "output_names": results,
              "dynamic_axes": {name: {0: "batch"} for name in [*names, *results]}}
    if "dynamo" in inspect.signature(torch.onnx.export).parameters:
        export["dynamo"] = False  # the other way needs onnxscript, and refuses more networks
    given = (*arguments, named) if named or isinstance(arguments[-1], dict) else tuple(arguments)  # a dict at the end is of names
    temporary = "%s.%d.tmp" % (path, os.getpid())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (DeprecationWarning, UserWarning))
            torch.onnx.export(network, given, temporary, **export)
    except Exception as error:
        raise RuntimeError("save_to_onnx: this network cannot be written as ONNX; leave it out, and export model_epoch_final.pth with a script "
                           "of your own: %s" % " ".join(str(error).split())[:300]) from error
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    os.rename(temporary, path)


def write_keras(path, model):
    import tensorflow as tf
    import tf2onnx

    if not getattr(model, "inputs", None):
        raise RuntimeError("save_to_onnx: %s is a class whose inputs Keras does not know; make it of tf.keras.Input (functional), or "
                           "leave save_to_onnx out" % type(model).__name__)
    shapes = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name=tensor.name.split(":")[0]) for tensor in model.inputs]
    temporary = "%s.%d.tmp" % (path, os.getpid())
    tf2onnx.convert.from_keras(model, input_signature=shapes, output_path=temporary)
    os.rename(temporary, path)
