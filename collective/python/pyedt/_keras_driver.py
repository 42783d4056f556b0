"""What train() of TF.Keras does in the process that runs the script: names, sizes, files."""

import json
import os
import random

import numpy as np
import tensorflow as tf

from pyedt import _bundle, _engine, _keras, _keras_travel, _late, _travel

METRICS_MAX = 15


def seed():
    """tf.random.set_seed's where the script has called it; else drawn, so that random.seed() counts."""
    given = tf.__internal__.eager_context.global_seed() if hasattr(tf.__internal__, "eager_context") and hasattr(
        tf.__internal__.eager_context, "global_seed") else global_seed()
    return (given if given is not None else random.getrandbits(64)) & 0xFFFFFFFFFFFFFFFF


def global_seed():
    from tensorflow.python.eager import context

    return context.global_seed()


def check_model(model, loss, optimizer):
    _late.refuse_keras_3(tf.__version__)
    if not isinstance(model, tf.keras.Model):
        raise TypeError("FabricModel: model must be a tf.keras.Model, got %s" % type(model).__name__)
    if type(model).train_step is not tf.keras.Model.train_step and not is_keras_class(type(model).train_step):
        raise TypeError("FabricModel: %s has a train_step() of its own, and an update here is of many mini-batches on many engines; "
                        "write what is special into the loss or into a layer's add_loss()" % type(model).__name__)
    kinds = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer)
    if isinstance(optimizer, str):
        tf.keras.optimizers.get(optimizer)
    elif not isinstance(optimizer, kinds):
        raise TypeError("FabricModel: optimizer must be a tf.keras.optimizers.Optimizer or its name, got %s"
                        % type(optimizer).__name__)
    elif isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        raise TypeError("FabricModel: a LossScaleOptimizer is not supported: gradients are added in float32 here; give the "
                        "optimizer within it")
    if isinstance(loss, str):
        tf.keras.losses.get(loss)
    elif not callable(loss):
        raise TypeError("FabricModel: loss_function must be a function, a tf.keras.losses.Loss or its name, got %s"
                        % type(loss).__name__)


def is_keras_class(function):
    return _keras_travel.is_keras(getattr(function, "__module__", ""))


def metric_name(metric):
    if isinstance(metric, str):
        return {"acc": "accuracy"}.get(metric, metric)
    name = getattr(metric, "name", None) or getattr(metric, "__name__", None)
    return name if isinstance(name, str) else type(metric).__name__.lower()


def metrics_of(fabric):
    """What Keras is to measure: accuracy by default, as Keras chooses it for the loss."""
    if fabric.metrics:
        return list(fabric.metrics)
    return [] if isinstance(getattr(fabric.model, "outputs", None), list) and len(fabric.model.outputs) > 1 else ["accuracy"]


def parts(fabric):
    optimizer = fabric.optimizer
    return {"model": fabric.model, "optimizer": tf.keras.optimizers.get(optimizer) if isinstance(optimizer, str) else optimizer,
            "loss": fabric.loss_function, "datasets": fabric.datasets_function, "metrics": metrics_of(fabric),
            "callbacks": fabric.user_callback, "worker_logger": fabric.worker_logger, "fn_args": fabric.fn_args,
            "collate": fabric.fn_batch_collate}


def dumps(fabric, made):
    _keras_travel.custom_objects = dict(fabric.keras_custom_objects or {})
    try:
        return _bundle.dumps(made)
    finally:
        _keras_travel.custom_objects = {}


def header(fabric):
    names = ["loss"] + [metric_name(metric) for metric in metrics_of(fabric)]
    if len(names) > METRICS_MAX + 1:
        raise ValueError("FabricModel: %d metrics are too many, at most %d" % (len(names) - 1, METRICS_MAX))
    optimizer = fabric.optimizer
    return {"python": _bundle.python_version(), "tensorflow": tf.__version__, "backend": "keras",
            "numeric_class": _engine.numeric_class(), "metric_names": names, "test_names": names,
            "optimizer": optimizer if isinstance(optimizer, str) else type(optimizer).__name__,
            "parameters": int(fabric.model.count_params()) if fabric.model.built else 0,
            "shapes": shapes_digest(fabric.model), "roots": _travel.roots()}


def shapes_digest(model):
    import hashlib

    digest = hashlib.blake2b(digest_size=8)
    for variable in model.weights if model.built else ():
        digest.update(("%s %s\n" % (tuple(variable.shape), variable.dtype.name)).encode())
    return digest.hexdigest()


def load(fabric, stem):
    """Weights, and the optimizer's state where it lies beside them, into the script's own objects."""
    model, state = fabric.model, {}
    if os.path.exists(stem + "_optimizer_state.npz"):
        with np.load(stem + "_optimizer_state.npz", allow_pickle=False) as found:
            state = {name: found[name] for name in found.files}
    if not model.built and "shape" in state:
        shape = json.loads(str(state["shape"]))
        if shape is not None:
            model.build(tuple(shape) if isinstance(shape, list) else shape)
    model.load_weights(stem + ".h5")
    values = [state["value_%d" % i] for i in range(len(state)) if "value_%d" % i in state]
    if values and not isinstance(fabric.optimizer, str):
        fabric.optimizer._shoal_values = values
        _keras.build_optimizer(fabric.optimizer, model.trainable_variables)
        _keras.set_rate(fabric.optimizer, float(state["rate"]))


class KeptChance:
    """Training seeds NumPy and random; the script goes on with its own."""

    def __enter__(self):
        self._states = np.random.get_state(), random.getstate(), global_seed()

    def __exit__(self, exc_type, exc, trace):
        np.random.set_state(self._states[0])
        random.setstate(self._states[1])
        tf.random.set_seed(self._states[2] if self._states[2] is not None else random.SystemRandom().getrandbits(31))
