"""What TensorFlow leaves, served without kernel code (_kernel_files):

    a SavedModel     a folder with saved_model.pb    its signature serving_default; a graph, no Python of its maker's runs
    .keras .h5       a whole model of Keras          rebuilt by its configuration; classes of its own come from model_file
    .h5              weights alone                   attributes model_file and model_class of model.json: what makes the model

A Lambda layer holds Python's byte code: like a pickle, it is read only where the host's operator allows it."""

import json
import os
import zipfile

import numpy

from pyedt import _kernel_files
from pyedt._kernel_files import Model, describe, outputs_of
from pyedt._kernel_serve import Unusable

TYPES = {"float16": "FP16", "float32": "FP32", "float64": "FP64", "bool": "BOOL", "string": "BYTES", "int8": "INT8",
         "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32",
         "uint64": "UINT64"}
SAVED = "saved_model.pb"


def tensorflow(path):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow
    except ImportError:
        raise Unusable("%s is a model of TensorFlow, and this host's Python has no tensorflow" % os.path.basename(path)) from None
    return tensorflow


def described(name, spec):
    """Of what has a dtype and a shape, each as TensorFlow writes them."""
    dtype, shape = getattr(spec.dtype, "name", spec.dtype), spec.shape
    rank = getattr(shape, "rank", len(shape))  # None: nothing is known of the shape
    return describe(name, TYPES.get(str(dtype), ""), () if rank is None else [-1 if one is None else int(one) for one in shape])


def can_batch(inputs):
    return bool(inputs) and all(one["shape"] and one["shape"][0] == -1 for one in inputs)


class TensorModel(Model):
    def __init__(self, name, tf, platform):
        super().__init__(name)
        self._tf, self.platform = tf, platform

    def tensors(self, arrays):
        """Texts are Python objects in an array, which become tensors of strings."""
        return {name: self._tf.constant(array.tolist() if array.dtype == object else array) for name, array in arrays.items()}


class SavedModel(TensorModel):
    def __init__(self, name, path):
        tf = tensorflow(path)
        super().__init__(name, tf, "tensorflow_savedmodel")
        self._loaded = tf.saved_model.load(path)  # a signature does not keep its variables alive
        signatures = dict(self._loaded.signatures)
        chosen = "serving_default" if "serving_default" in signatures else next(iter(signatures), None)
        if chosen is None or len(signatures) > 1 and chosen != "serving_default":
            raise Unusable("%s has no signature serving_default; export it with one (model.export, or tf.saved_model.save with "
                           "signatures=)" % os.path.basename(path))
        self._run = signatures[chosen]
        self.inputs = [described(one, spec) for one, spec in self._run.structured_input_signature[1].items()]
        self.outputs = [described(one, spec) for one, spec in self._run.structured_outputs.items()]
        self.batches = can_batch(self.inputs)

    def call(self, arrays):
        return {name: value.numpy() for name, value in self._run(**self.tensors(arrays)).items()}


class KerasModel(TensorModel):
    def __init__(self, name, tf, module):
        super().__init__(name, tf, "keras")
        self._module = module
        inputs = getattr(module, "inputs", None) or []
        names = getattr(module, "input_names", None) or [one.name for one in inputs]
        self.inputs = [described(*pair) for pair in zip(names, inputs)]
        self._outputs = list(getattr(module, "output_names", None) or [])
        self.batches = not self.inputs or can_batch(self.inputs)
        self._run = tf.function(lambda values: module(values, training=False), reduce_retracing=True)

    def call(self, arrays):
        tensors = self.tensors(arrays)
        ordered = [tensors[one["name"]] for one in self.inputs] if self.inputs else list(tensors.values())
        found = self._run(ordered[0] if len(ordered) == 1 else ordered)
        if not isinstance(found, dict):
            several = list(found) if isinstance(found, (list, tuple)) else [found]
            if len(several) == len(self._outputs):
                return {name: value.numpy() for name, value in zip(self._outputs, several)}
        return outputs_of(found, lambda value: value.numpy() if hasattr(value, "numpy") else numpy.asarray(value))


def has_lambda(config):
    if isinstance(config, dict):
        return config.get("class_name") == "Lambda" or any(map(has_lambda, config.values()))
    return isinstance(config, list) and any(map(has_lambda, config))


def config_of(path):
    """What the file says of its model; None where an .h5 has weights alone."""
    if path.lower().endswith(".keras"):
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))
    import h5py

    with h5py.File(path, "r") as file:
        said = file.attrs.get("model_config")
    return None if said is None else json.loads(said)


def load_keras(name, path, root, model):
    tf = tensorflow(path)
    allowed = os.environ.get("SHOAL_KERNEL_ALLOW_PICKLE") == "1"
    attributes = {one["key"]: one["value"] for one in model.get("attributes") or []}
    made = _kernel_files.class_of(root, model) if attributes.get("model_file") else None
    config = config_of(path)
    if config is None:
        if made is None:
            raise Unusable("%s holds weights, not a model: name what makes the model in model.json's attributes, as model_file "
                           "and model_class, or save the model whole (model.save)" % os.path.basename(path))
        module = made()
        module.load_weights(path)
        return KerasModel(name, tf, module)
    if not allowed and has_lambda(config):
        raise Unusable("%s has a Lambda layer, which is Python's byte code and can run anything; this host's operator does not "
                       "allow it. A SavedModel of it (model.export) is served" % os.path.basename(path))
    custom = {} if made is None else {made.__name__: made}
    return KerasModel(name, tf, tf.keras.models.load_model(path, custom_objects=custom, compile=False, safe_mode=not allowed))


def load_saved(name, path, root, model):
    return SavedModel(name, path)
