"""How objects of TF.Keras become bytes: a model as its configuration and its weights, rebuilt in each engine; optimizers and
metrics as theirs. Classes of the script's own go along by value."""

import sys
import types

custom_objects = {}  # what the script gave as keras_custom_objects, while its bundle is made


def reduce(value):
    """What reducer_override returns for an object of Keras; None for all others."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not hasattr(tf, "keras"):
        return None
    keras = tf.keras
    if isinstance(value, keras.Model):
        return reduce_model(value)
    if isinstance(value, (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)):
        return rebuild_optimizer, (type(value), value.get_config(), values_of(value))
    if isinstance(value, keras.metrics.Metric):
        return rebuild, (type(value), value.get_config(), own_parts([value]))
    return None


def values_of(optimizer):
    from pyedt import _keras

    return [v.numpy() for v in _keras.optimizer_values(optimizer)]


def is_keras(module):
    return (module or "").split(".")[0] in ("keras", "tensorflow")


def own_parts(objects):
    """{name: class or function} of what is not Keras's own: a configuration has only names of them."""
    found = {}
    for one in objects:
        if not is_keras(type(one).__module__):
            found[type(one).__name__] = type(one)
        for part in vars(one).values():
            if isinstance(part, types.FunctionType) and not is_keras(part.__module__):
                found[part.__name__] = part
    return found


def reduce_model(model):
    own = dict(own_parts(model._flatten_layers()), **custom_objects)
    try:
        config = model.get_config()
    except NotImplementedError:
        raise TypeError("the model is of class %s, whose constructor takes what Keras cannot write down; give the class a "
                        "get_config(), or build it with tf.keras.Sequential or the functional API" % type(model).__name__) from None
    shape = getattr(model, "_build_input_shape", None)
    weights = model.get_weights() if model.built else None
    trainable = [layer.trainable for layer in model._flatten_layers(include_self=False)]
    return rebuild_model, (type(model), config, own, shape, weights, trainable)


def rebuild(made, config, own):
    import tensorflow as tf

    with tf.keras.utils.custom_object_scope(own):
        return made.from_config(config)


def rebuild_model(made, config, own, shape, weights, trainable):
    import tensorflow as tf

    tf.keras.backend.experimental.enable_tf_random_generator()  # K1
    try:
        tf.keras.config.enable_unsafe_deserialization()  # Lambda layers: the script's own, from its own driver
    except AttributeError:
        pass
    model = rebuild(made, config, own)
    if not model.built and shape is not None and weights is not None:
        try:
            model.build(shape)
        except (ValueError, TypeError, NotImplementedError):
            pass  # it is built on the first batch
    if weights is not None and model.built and len(model.weights) == len(weights):
        model.set_weights(weights)
    else:
        model._shoal_weights = weights
    layers = list(model._flatten_layers(include_self=False))
    for layer, flag in zip(layers, trainable if len(layers) == len(trainable) else []):
        layer.trainable = flag
    return model


def rebuild_optimizer(made, config, values):
    optimizer = made.from_config(config)
    optimizer._shoal_values = values
    return optimizer
