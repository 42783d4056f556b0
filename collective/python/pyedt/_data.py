"""The data sets of an engine, from whatever the script's function returns.

    map-style data set        as it is
    DataLoader                its data set and its collate_fn; batch size and order are those of train()
    anything else to iterate  read once, to its end, under the job's seed: samples by number from memory"""

import gc

from pyedt import _late

torch = _late.framework()
ITERABLE_SAMPLES_MAX = 1 << 20  # of data that can only be read from the beginning: who gives more may have no end
ITERABLE_BYTES_MAX = 4 << 30  # of its tensors and arrays, in each engine
ORDERS = (torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler, torch.utils.data.DistributedSampler) if torch else ()
SHAPES = "datasets_function must return a pair (train, validation)"


class DataSet:
    """One of the two: samples by number, and what makes a batch of them (None: the default)."""

    def __init__(self, samples, collate=None):
        self.samples, self.collate = samples, collate


def take(given, name, seed):
    """A DataSet of what the script gave, None for nothing. `seed()` is called before a sample is read."""
    if _late.is_keras():
        from pyedt import _keras

        return _keras.take(given, name, seed)
    if given is None:
        return None
    collate = None
    if isinstance(given, torch.utils.data.DataLoader):
        check_loader(given, name)
        print("The %s data: a DataLoader's data set and collate_fn are used; batch size and order are those of train()"
              % name, flush=True)
        given, collate = given.dataset, given.collate_fn
    if isinstance(given, torch.utils.data.IterableDataset) or not has_numbers(given):
        if not hasattr(given, "__iter__"):
            raise TypeError("the %s data set (%s) has neither __len__ and __getitem__ nor __iter__; give a "
                            "torch.utils.data.Dataset" % (name, type(given).__name__))
        seed()
        given = read_all(given, name)
    return DataSet(given, collate) if len(given) else None


def has_numbers(given):
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def check_loader(loader, name):
    if loader.batch_size is None and not isinstance(loader.dataset, torch.utils.data.IterableDataset) \
            or type(loader.batch_sampler) not in (torch.utils.data.BatchSampler, type(None)):
        raise TypeError("the %s DataLoader makes batches of its own (batch_sampler, or batch_size=None); give its data set, "
                        "and a fn_batch_collate where samples need one" % name)
    sampler = loader.sampler
    if loader.batch_size is None:
        raise TypeError("the %s DataLoader has batch_size=None, so its data set gives whole batches; give single samples"
                        % name)
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return
    if type(sampler) not in ORDERS or getattr(sampler, "replacement", False) or \
            getattr(sampler, "_num_samples", None) not in (None, len(loader.dataset)):
        raise TypeError("the %s DataLoader has a %s, but an epoch visits every sample once; write the weights into the loss, "
                        "or a Subset or ConcatDataset of what is to come more rarely or more often"
                        % (name, type(sampler).__name__))


def size_of(sample, depth=0):
    if hasattr(sample, "nbytes"):
        return int(sample.nbytes)
    if isinstance(sample, dict):
        sample = list(sample.values())
    if isinstance(sample, (list, tuple)) and depth < 4:
        return sum(size_of(one, depth + 1) for one in sample)
    return len(sample) if isinstance(sample, (str, bytes)) else 0


def read_all(iterable, name):
    samples, size = [], 0
    gc.disable()  # it would look at all of them again and again, while nothing of them can go
    try:
        for sample in iterable:
            samples.append(sample)
            size += size_of(sample)
            if len(samples) > ITERABLE_SAMPLES_MAX or size > ITERABLE_BYTES_MAX:
                raise ValueError("the %s data (%s) does not end within %d samples and %d MiB, which is what each engine reads "
                                 "of data without __getitem__; give a map-style data set, or an end with itertools.islice"
                                 % (name, type(iterable).__name__, ITERABLE_SAMPLES_MAX, ITERABLE_BYTES_MAX >> 20))
    finally:
        gc.enable()
    print("The %s data: %d samples were read from %s; each epoch uses these" % (name, len(samples),
                                                                              type(iterable).__name__), flush=True)
    return samples


def make(function, seed):
    """(train, validation or None) as DataSets, with what is wrong about them said."""
    pair = function()
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError("%s, got %s" % (SHAPES, type(pair).__name__))
    train, validation = (take(given, name, seed) for given, name in zip(pair, ("train", "validation")))
    if pair[0] is None:
        raise TypeError("%s, and the first is None" % SHAPES)
    if train is None:
        raise ValueError("the training data set is empty")
    return train, validation
