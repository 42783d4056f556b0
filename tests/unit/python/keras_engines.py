"""Engines of TF.Keras in one process, in lock step over the reference communicator (test_keras.py runs this where TensorFlow is):
prints {kind of script: {mesh: digest}}."""

import hashlib
import json
import os
import sys
import tempfile

import numpy as np
import tensorflow as tf

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "..", "collective", "python")]
import fabric_model  # noqa: E402,F401
from pyedt import _bundle, _driver, _engine, _keras_driver, _schedule  # noqa: E402
from pyedt._arguments import TrainArguments  # noqa: E402
from pyedt.callbacks import Callback  # noqa: E402
from pyedt.fabric_model import FabricModel  # noqa: E402
from reference_comm import ReferenceComm, Shared  # noqa: E402

MESHES = {"one": lambda s: 1, "three": lambda s: 3, "come and go": lambda s: 1 + s * 7 % 4}
X = np.random.RandomState(3).rand(42, 8, 8, 1).astype("float32")
Y = (X.sum(axis=(1, 2, 3)) > 32).astype("int64")
HOT = np.eye(2, dtype="float32")[Y]
layers = tf.keras.layers


class Rate(Callback):
    """Cumulative, as IBM's: one that joins late must not begin anew."""

    def on_epoch_begin(self, epoch):
        rate = self.params["optimizer"].learning_rate
        tf.keras.backend.set_value(rate, tf.keras.backend.get_value(rate) * 0.5)


class Doubled(layers.Layer):
    def call(self, inputs):
        return 2 * inputs


class Drawing(layers.Layer):
    """Draws by an operation that counts by itself."""

    def call(self, inputs, training=None):
        return inputs + tf.random.normal(tf.shape(inputs), stddev=0.1) if training else inputs


class Own(tf.keras.Model):
    def __init__(self, units):
        super().__init__()
        self.inner, self.outer = layers.Dense(units, activation="relu"), layers.Dense(2)
        self.flat = layers.Flatten()

    def call(self, inputs, training=None):
        return self.outer(self.inner(self.flat(inputs)))


class Noisy(tf.keras.utils.Sequence):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return X[rows] + np.random.rand(*X[rows].shape) * 0.1, Y[rows]


class Rows:
    """Samples by number."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index] + np.random.rand() * 0.1, Y[index]


def flow():
    made = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True)
    return made.flow(X, HOT, batch_size=4), tf.keras.preprocessing.image.ImageDataGenerator().flow(X[:10], HOT[:10], batch_size=4)


def sample_network(*more, activation="softmax"):
    return tf.keras.Sequential([layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 1)), layers.BatchNormalization(),
                                layers.Dropout(0.25), *more, layers.Flatten(), layers.Dense(2, activation=activation)])


def published():
    return FabricModel(sample_network(), flow, loss_function="categorical_crossentropy",
                       optimizer=tf.keras.optimizers.legacy.Adam(lr=0.01), user_callback=[Rate()])


def sequence():
    return FabricModel(sample_network(Doubled(), activation=None), lambda: (Noisy(), None),
                       tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                       tf.keras.optimizers.SGD(0.05, momentum=0.9), metrics=["accuracy", tf.keras.metrics.SparseCategoricalCrossentropy(
                           name="entropy", from_logits=True)], user_callback=[Rate()])


def functional():
    inputs = tf.keras.Input((8, 8, 1))
    inner = layers.Dense(8, kernel_regularizer="l2", activation="tanh")(layers.Flatten()(inputs))
    frozen = layers.Dense(8, trainable=False)(inner)
    network = tf.keras.Model(inputs, layers.Dense(1, activation="sigmoid")(frozen))
    return FabricModel(network, lambda: (Rows(), Rows()), lambda y, out: tf.reduce_mean(
        (tf.cast(tf.reshape(y, [-1, 1]), tf.float32) - out) ** 2, axis=-1), "adam", metrics=["accuracy"])


def own_class():
    return FabricModel(Own(6), lambda: (tf.data.Dataset.from_tensor_slices((X, Y)).batch(5), None),
                       tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), tf.keras.optimizers.RMSprop(
                           tf.keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)))


def drawing():
    return FabricModel(sample_network(Drawing()), lambda: (Rows(), None), "sparse_categorical_crossentropy", "sgd")


def step_together(trainers):
    step = trainers[0].schedule.at(trainers[0].applied + 1)
    for rank, trainer in enumerate(trainers):
        trainer.comm._rank, trainer.comm._size = rank, len(trainers)
        for v in trainer.comm.assign(step):
            trainer.compute(step, v)
    for trainer in trainers:
        trainer.comm.reduce()
    for trainer in trainers:
        trainer.comm.apply_allowed()
        trainer.apply(step)
    assert step.kind <= _schedule.FILES


def run_mesh(path, seed, sizes):
    shared, trainers = Shared(), []

    def joiner():
        trainer = _engine.make_trainer(ReferenceComm(shared), 1, seed, path, quiet=True)
        trainer.comm.ready(trainer.header["metric_names"], **trainer.sizes())
        trainer.bind()
        trainer.begin(fresh=not trainers)
        if trainers:
            trainers[-1].give_state()
            trainer.take_state()
        return trainer

    while not trainers or trainers[0].applied < trainers[0].schedule.last:
        wanted = sizes((trainers[0].applied if trainers else 0) + 1)
        del trainers[:max(0, len(trainers) - wanted)]
        while len(trainers) < wanted:
            trainers.append(joiner())
        step_together(trainers)
    assert len({trainer.digest() for trainer in trainers}) == 1, "two engines have different states"
    trainers[0].write_final()
    return trainers[0], shared


def values(shared):
    from pyedt import _records

    return [(p[0], p[1], p[2], p[4]) for data in shared.records for p in _records.decode(data)[0].parts]


def outcome(make):
    tf.keras.utils.set_random_seed(5)
    fabric, seed = make(), _keras_driver.seed()
    arguments = TrainArguments(2, 4, 5, 0, 1, 1)
    header = _driver.make_header(fabric, arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "call.bundle")
        _bundle.write(path, header, _keras_driver.dumps(fabric, _keras_driver.parts(fabric)))
        found = {}
        for name, sizes in MESHES.items():
            os.environ["RESULT_DIR"] = os.path.join(folder, name)
            trainer, shared = run_mesh(path, seed, sizes)
            digest = hashlib.blake2b(digest_size=8)
            for array in trainer.carrier._arrays():
                digest.update(array.tobytes())
            digest.update(repr(values(shared)).encode())
            found[name] = digest.hexdigest()
        _keras_driver.load(fabric, os.path.join(os.environ["RESULT_DIR"], "model", "train", "model_epoch_final"))
        same = all(np.array_equal(a, b) for a, b in zip(fabric.model.get_weights(), trainer._model.get_weights()))
        found["driver's model"] = "the same" if same else "another"
        files = os.listdir(os.path.join(os.environ["RESULT_DIR"], "model", "train"))
        found["files"] = sorted(files)
    return found


KINDS = {one.__name__: one for one in (published, sequence, functional, own_class, drawing)}
if __name__ == "__main__":
    print(json.dumps({name: outcome(KINDS[name]) for name in sys.argv[1:] or KINDS}))
