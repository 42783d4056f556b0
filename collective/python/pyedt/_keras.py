"""TF.Keras in an engine (TensorFlow 2.15, Keras 2): what _compute.py, _data.py and _state.py are for torch.

K1. An engine computes with one thread an operation, and dropout layers draw from generators that each mini-batch sets anew: so
    a mini-batch depends on nothing but itself and the state before its step.
K2. The gradient of a mini-batch is one flat float32 vector, and what the optimizer gets is the canonical mean over all of them.
K3. Variables that are not trained (BatchNorm's) start each mini-batch from the committed ones."""

import json
import os
import random
import struct

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from pyedt import _chance, _order, _plain

MAGIC = b"SHOALSK1"
DRAWING = {"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal",
           "RandomShuffle", "Multinomial", "RandomGamma", "RandomPoissonV2"}  # operations that count by themselves


def set_threads(threads):
    """Before TensorFlow starts its own; false: it has."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        return False
    return True


def seed_weights(job_seed):
    """A model without weights yet gets the same ones in each engine."""
    tf.keras.utils.set_random_seed(job_seed & 0x7FFFFFFF)


# ---- data ----

class Whole(list):
    """Some samples that came as one batch: as long as they are many."""

    def __init__(self, batch, rows):
        super().__init__([None] * rows)
        self.batch = batch


def collate(samples):
    """A batch of samples: stacked arrays, by name for dicts."""
    if isinstance(samples, Whole):
        return samples.batch
    return tf.nest.map_structure(lambda *values: np.stack([np.asarray(value) for value in values]), *samples)


def rows_of(batch):
    return len(tf.nest.flatten(batch)[0])


class IteratorRows:
    """What ImageDataGenerator.flow() and its like return: samples by number, made into a batch by themselves."""

    blocks = False

    def __init__(self, given):
        self._given, self._rows = given, int(given.n)

    def __len__(self):
        return self._rows

    def __getitems__(self, ids):
        return Whole(self._given._get_batches_of_transformed_samples(np.array(ids)), len(ids))


class SequenceRows:
    """A tf.keras.utils.Sequence: whole batches by number. Mini-batches are neighbours of it (BlockOrder)."""

    blocks = True

    def __init__(self, given, name):
        self._given, self._name, count = given, name, len(given)
        self._size = rows_of(given[0])
        self._rows = self._size * (count - 1) + rows_of(given[count - 1]) if count > 1 else self._size

    def __len__(self):
        return self._rows

    def _batch(self, number):
        batch = self._given[number]
        wanted = min(self._size, self._rows - number * self._size)
        if rows_of(batch) != wanted:
            raise ValueError("batch %d of the %s data (%s) has %d samples, and not %d as before; all batches but the last must "
                             "have as many" % (number, self._name, type(self._given).__name__, rows_of(batch), wanted))
        return batch

    def __getitems__(self, ids):
        parts, at = [], 0
        while at < len(ids):
            number, offset = divmod(ids[at], self._size)
            end = at
            while end < len(ids) and ids[end] == ids[at] + end - at and ids[end] // self._size == number:
                end += 1
            parts.append(tf.nest.map_structure(lambda a, o=offset, n=end - at: np.asarray(a)[o:o + n], self._batch(number)))
            at = end
        return Whole(parts[0] if len(parts) == 1 else
                     tf.nest.map_structure(lambda *values: np.concatenate(values), *parts), len(ids))


class BlockOrder(_order.Order):
    """Full mini-batches in a new order in each data epoch, what is left over last."""

    def minibatch(self, data_epoch, m):
        full = self.n // self.b
        end = min(self.n, (m + 1) * self.b)
        begin = m * self.b
        if m < full:
            with np.errstate(over="ignore"):
                begin = int(_order.permute(self.job_seed, data_epoch, full, np.array([m]))[0]) * self.b
            end = begin + self.b
        ids = list(range(begin, end))
        return ids + [self.n - 1] if m == self.count - 1 and self.n % self.b == 1 and m < full else ids


def take(given, name, seed):
    """A data set of what the script gave: (samples, collate), None for nothing."""
    from pyedt import _data

    if given is None:
        return None
    if isinstance(given, tf.data.Dataset):
        layer = given
        while layer is not None and "Batch" not in type(layer).__name__:
            layer = getattr(layer, "_input_dataset", None)
        if layer is not None and "Unbatch" not in type(layer).__name__:
            given = given.unbatch()
        seed()
        given = _data.read_all((tf.nest.map_structure(lambda t: t.numpy(), one) for one in given), name)
    elif hasattr(given, "_get_batches_of_transformed_samples") and hasattr(given, "n"):
        given = IteratorRows(given)
    elif isinstance(given, tf.keras.utils.Sequence):
        seed()
        given = SequenceRows(given, name)
    elif not _data.has_numbers(given):
        if not hasattr(given, "__iter__"):
            raise TypeError("the %s data set (%s) has neither __len__ and __getitem__ nor __iter__; give a "
                            "tf.keras.utils.Sequence, or an object with both" % (name, type(given).__name__))
        seed()
        given = _data.read_all(given, name)
    return _data.DataSet(given, collate) if len(given) else None


# ---- chance ----

class Chance(_chance.Chance):
    """TensorFlow's generators too: the global one, and those of the model's layers (K1)."""

    def __init__(self, roots, model):
        super().__init__(roots)
        self._process = os.getpid()
        layers = [getattr(layer, "_random_generator", None) for layer in model._flatten_layers()]
        self._generators = [one._generator for one in layers if getattr(one, "_generator", None) is not None]
        self._eager = self._fresh = None
        self._draws = False  # something here draws from the global generator

    def seed(self, seed):
        super().seed(seed)
        if os.getpid() != self._process:  # a loader child must not touch TensorFlow
            return
        self._seed_eager(seed & 0x7FFFFFFF)
        for place, generator in enumerate(self._generators):
            generator.reset_from_seed(_order.mix64(seed + place + 1) >> 1)


    def _seed_eager(self, seed):
        """tf.random.set_seed() forgets all kernels too, since a kernel that draws counts by itself: 50 ms for a graph to be made
        anew. That is done from the second seed on after which something has drawn; the first time its kernels are new."""
        here = context.context()
        self._draws = self._draws or (self._eager is not None and self._eager.getstate() != self._fresh)
        if self._draws:
            tf.random.set_seed(seed)
            return
        here._seed, here._rng = seed, random.Random(seed)
        self._eager, self._fresh = here._rng, here._rng.getstate()


# ---- gradients and buffers ----

class Gradients:
    def __init__(self, model, optimizer):
        self.parameters, self._optimizer = list(model.trainable_variables), optimizer
        self.sizes = [int(np.prod(v.shape)) for v in self.parameters]
        self.elems = sum(self.sizes)
        self._missing = None
        self._apply_all = tf.function(self._apply)

    def bind(self, work, result, touched):
        self._work, self._result, self._touched = work, result, touched

    def take(self, flat, missing):
        """The flat gradient of a mini-batch; `missing`: the places of variables without one."""
        if self.elems:
            self._work[:] = flat.numpy()
        self._missing = missing

    def collect(self):
        if not self._missing:
            return None
        bits = np.ones(len(self.parameters), dtype=np.uint8)
        bits[self._missing] = 0
        return np.packbits(bits, bitorder="little")

    def _apply(self, flat):
        self._apply_some(flat, range(len(self.parameters)))

    def _apply_some(self, flat, places):
        pieces = tf.split(flat, self.sizes) if self.sizes else []
        self._optimizer.apply_gradients([(tf.cast(tf.reshape(pieces[i], self.parameters[i].shape), self.parameters[i].dtype),
                                          self.parameters[i]) for i in places])

    def step(self, comm):
        touched = np.unpackbits(self._touched, bitorder="little", count=len(self.parameters))
        flat = tf.constant(self._result)
        if touched.all():
            self._apply_all(flat)
        elif touched.any():
            self._apply_some(flat, np.flatnonzero(touched).tolist())
        return int(touched.sum())


class Buffers:
    """K3, in one flat array of bytes."""

    def __init__(self, variables):
        self.tensors = list(variables)
        self.bytes = sum(v.numpy().nbytes for v in self.tensors)
        self.commit()

    def bind(self, work, result):
        self._work, self._result = work, result

    def commit(self):
        """Held as tensors: TensorFlow updates a variable that shares an array's memory in that memory."""
        self._committed = [tf.identity(v) for v in self.tensors]

    def restore(self):
        for variable, value in zip(self.tensors, self._committed):
            variable.assign(value)

    def collect(self):
        if self.bytes:
            self._work[:] = np.frombuffer(b"".join(v.numpy().tobytes() for v in self.tensors), dtype=np.uint8)

    def apply(self):
        offset = 0
        for i, value in enumerate(self._committed):
            kind = np.dtype(value.dtype.as_numpy_dtype)
            size = int(np.prod(value.shape)) * kind.itemsize
            part = self._result[offset:offset + size].tobytes()
            self._committed[i] = tf.constant(np.frombuffer(part, dtype=kind).reshape(value.shape))
            offset += size
        self.restore()


# ---- the model ----

def optimizer_values(optimizer):
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def build_optimizer(optimizer, variables):
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)
    waiting = getattr(optimizer, "_shoal_values", None)
    if waiting:
        for variable, value in zip(optimizer_values(optimizer), waiting):
            variable.assign(value)


def rate_of(optimizer):
    """The learning rate where it is a number, as callbacks change it; None: a schedule."""
    try:
        return float(tf.keras.backend.get_value(optimizer.learning_rate))
    except (TypeError, ValueError, AttributeError):
        return None


def set_rate(optimizer, rate):
    if rate is not None and rate_of(optimizer) is not None:
        tf.keras.backend.set_value(optimizer.learning_rate, rate)


def build(model, optimizer, loss, metrics, batch):
    """The shapes of everything, from a batch of the training data; the weights are not changed by it."""
    x, y, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    outputs = model(tensors(x), training=False)
    waiting = getattr(model, "_shoal_weights", None)
    if waiting:
        model.set_weights(waiting)
    model.compiled_loss.build(outputs)
    if metrics:
        model.compiled_metrics.build(outputs, tensors(y))
    build_optimizer(optimizer, model.trainable_variables)


def tensors(value):
    return value if value is None else tf.nest.map_structure(tf.convert_to_tensor, value)


class Computation:
    own = True
    fused = False  # each mini-batch by itself

    def __init__(self, model, gradients, header):
        self.model, self._gradients = model, gradients
        self._count = len(header["metric_names"])
        self._missing = []
        # One graph for each shape, made of nothing else: a graph of several would depend on what this engine has seen before.
        self._train_graph, self._test_graph = tf.function(self._train), tf.function(self._test)
        self._looked = False

    def _measure(self, y, outputs, weights):
        container = self.model.compiled_metrics
        container.reset_state()
        container.update_state(y, outputs, weights)
        return [tf.cast(one.result(), tf.float64) for one in container.metrics]

    def _train(self, x, y, weights):
        with tf.GradientTape() as tape:
            outputs = self.model(x, training=True)
            loss = self.model.compute_loss(x, y, outputs, weights)
        found = tape.gradient(loss, self._gradients.parameters)
        self._missing = [i for i, gradient in enumerate(found) if gradient is None]
        flat = [tf.reshape(tf.cast(tf.convert_to_tensor(g), tf.float32), [-1]) if g is not None else tf.zeros([size])
                for g, size in zip(found, self._gradients.sizes)]
        flat = tf.concat(flat, 0) if flat else tf.zeros([0])
        return flat, [tf.cast(loss, tf.float64)] + self._measure(y, outputs, weights)

    def _test(self, x, y, weights):
        outputs = self.model(x, training=False)
        loss = self.model.compute_loss(x, y, outputs, weights)
        return [tf.cast(loss, tf.float64)] + self._measure(y, outputs, weights)

    def _look(self, arguments):
        """Whether the model draws by operations that count by themselves: a graph of them depends on what was before."""
        self._looked = True
        graph = self._train_graph.get_concrete_function(*arguments).graph
        kinds = {node.op for node in graph.as_graph_def().node}
        kinds |= {node.op for function in graph.as_graph_def().library.function for node in function.node_def}
        if kinds & DRAWING:
            print("The model draws by %s: it is computed without a graph, so that each mini-batch draws the same on any engine"
                  % ", ".join(sorted(kinds & DRAWING)), flush=True)
            self._train_graph, self._test_graph = self._train, self._test

    def prepare(self, batch):
        """Traces the graph, before a mini-batch is seeded."""
        if not self._looked:
            self._look([tensors(part) for part in tf.keras.utils.unpack_x_y_sample_weight(batch)])

    def train(self, batch):
        x, y, weights = (tensors(part) for part in tf.keras.utils.unpack_x_y_sample_weight(batch))
        flat, values = self._train_graph(x, y, weights)
        self._gradients.take(flat, self._missing)
        return self._fill([float(value) for value in values])

    def validate(self, fetches, samples):
        sums = np.zeros(self._count)
        for fetch, count in zip(fetches, samples):
            x, y, weights = (tensors(part) for part in tf.keras.utils.unpack_x_y_sample_weight(fetch()))
            sums += count * np.array(self._fill([float(value) for value in self._test_graph(x, y, weights)]))
        return (sums / sum(samples)).tolist()

    def _fill(self, values):
        return values[:self._count] + [float("nan")] * (self._count - len(values))


# ---- state ----

class Carrier:
    """Gives and takes the state of one engine's objects; _state.Carrier's twin, of arrays."""

    def __init__(self, model, optimizer, buffers):
        self._model, self._optimizer, self._buffers = model, optimizer, buffers
        self.parameters = list(model.trainable_variables)
        self._names = {"model": model, "optimizer": optimizer}
        self._names.update(("layer/%d" % i, layer) for i, layer in enumerate(model._flatten_layers(include_self=False)))
        self._by_id = {id(value): name for name, value in self._names.items()}

    def _variables(self):
        return self.parameters + self._buffers.tensors + optimizer_values(self._optimizer)

    def _arrays(self):
        return [np.array(v.numpy(), order="C") for v in self._variables()]

    def _name_of(self, value):
        name = self._by_id.get(id(value))
        if name is None and type(value).__module__.split(".")[0] in ("tensorflow", "keras"):
            raise _plain.Cannot("an object of TensorFlow stays with its engine")
        return name

    @staticmethod
    def memory(array):
        return array.ctypes.data, array.nbytes

    def give(self, step, callbacks, ended=None):
        arrays = self._arrays()
        rest = _plain.Writer(self._name_of, self._no_tensor).dump({"callbacks": callbacks, "rate": rate_of(self._optimizer)})
        text = json.dumps({"step": step, "ended": ended, "tensors": [[a.dtype.str, list(a.shape)] for a in arrays]}).encode()
        return MAGIC + struct.pack("<I", len(text)) + text + rest, arrays

    @staticmethod
    def _no_tensor(value):
        raise _plain.Cannot("a tensor of torch")

    @staticmethod
    def describe(first):
        if bytes(first[:len(MAGIC)]) != MAGIC or len(first) < len(MAGIC) + 4:
            raise ValueError("no state of an engine of TF.Keras: it begins with %r" % bytes(first[:8]))
        size = struct.unpack_from("<I", first, len(MAGIC))[0]
        return json.loads(bytes(first[len(MAGIC) + 4:len(MAGIC) + 4 + size])), bytes(first[len(MAGIC) + 4 + size:])

    def ended(self, first):
        return self.describe(first)[0].get("ended")

    def empty(self, first):
        said, _ = self.describe(first)
        own = [[a.dtype.str, list(a.shape)] for a in self._arrays()]
        if said["tensors"] != own:
            raise ValueError("the state has %d variables of other shapes than this engine's %d"
                             % (len(said["tensors"]), len(own)))
        return said["step"], [np.empty(shape, dtype=np.dtype(dtype)) for dtype, shape in own]

    def take(self, first, arrays, callbacks=()):
        _, rest = self.describe(first)
        for variable, value in zip(self._variables(), arrays):
            variable.assign(value)
        said = _plain.Reader(self._names.__getitem__, [], {"callbacks": list(callbacks)}).load(rest)
        set_rate(self._optimizer, said["rate"])
        self._buffers.commit()
        return said["callbacks"]

    def digest(self, add):
        total, position = 0, 0
        for array in self._arrays():
            if array.nbytes:
                total += add(array.ctypes.data, array.nbytes, position)
            position += array.nbytes
        return total & 0xFFFFFFFFFFFFFFFF

    @staticmethod
    def write_file(path, first, arrays):
        temporary = "%s.%d.tmp" % (path, os.getpid())
        with open(temporary, "wb") as out:
            for part in [first] + [memoryview(a).cast("B") if a.nbytes else b"" for a in arrays]:
                out.write(struct.pack("<Q", len(part)))
                out.write(part)
            out.flush()
            os.fsync(out.fileno())
        os.rename(temporary, path)

    def read_file(self, path):
        with open(path, "rb") as source:
            first = _state_part(source, path)
            _, arrays = self.empty(first)
            for array in arrays:
                part = _state_part(source, path)
                if len(part) != array.nbytes:
                    raise ValueError("%s: a variable has %d bytes, not %d" % (path, len(part), array.nbytes))
                if part:
                    array.reshape(-1).view(np.uint8)[:] = np.frombuffer(part, dtype=np.uint8)
        return first, arrays


def _state_part(source, path):
    head = source.read(8)
    size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    part = source.read(size) if len(head) == 8 and size <= os.fstat(source.fileno()).st_size else b""
    if len(head) < 8 or len(part) < size:
        raise ValueError("%s: the snapshot ends early" % path)
    return part
