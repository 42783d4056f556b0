"""Which step of a train() call is what: a pure function of the numbers, so that every engine agrees without a word.

A data epoch e is T train steps of V mini-batches (the last may have fewer), then one VALIDATE step if (e+1) is a multiple
of validation_freq, then one FILES step if (e+1) is a multiple of checkpoint_freq or e is the last."""

import bisect

from pyedt._order import minibatch_count

TRAIN, VALIDATE, FILES = 0, 1, 2


class Step:
    """One step: `number` counts from 1 over all kinds, `index` from 0 within its data epoch. `parts` is the number of
    virtual workers that take part."""

    __slots__ = ("number", "kind", "epoch", "index", "parts", "checkpoint", "ends_epoch")

    def __init__(self, number, kind, epoch, index, parts, checkpoint, ends_epoch):
        self.number, self.kind, self.epoch, self.index = number, kind, epoch, index
        self.parts, self.checkpoint, self.ends_epoch = parts, checkpoint, ends_epoch


class Schedule:
    def __init__(self, samples, validation_samples, batch_size, virtual_workers, epochs, validation_freq, checkpoint_freq):
        self.samples, self.batch_size, self.virtual_workers, self.epochs = samples, batch_size, virtual_workers, epochs
        self.minibatches = minibatch_count(samples, batch_size)
        self.train_steps = -(-self.minibatches // virtual_workers)
        self.validation_batches = -(-validation_samples // batch_size)
        self._validation_freq = validation_freq if validation_samples else 0
        self._checkpoint_freq = checkpoint_freq
        self._ends = []  # number of the last step of each data epoch
        end = 0
        for epoch in range(epochs):
            end += self.train_steps + self.validates(epoch) + self.has_files(epoch)
            self._ends.append(end)

    def validates(self, epoch):
        return self._validation_freq > 0 and (epoch + 1) % self._validation_freq == 0

    def checkpoints(self, epoch):
        return self._checkpoint_freq > 0 and (epoch + 1) % self._checkpoint_freq == 0

    def has_files(self, epoch):
        return self.checkpoints(epoch) or epoch == self.epochs - 1

    @property
    def last(self):
        return self._ends[-1]

    def at(self, number):
        """Step `number`, 1..last."""
        epoch = bisect.bisect_left(self._ends, number)
        index = number - (self._ends[epoch - 1] if epoch else 0) - 1
        ends = number == self._ends[epoch]
        if index < self.train_steps:
            parts = min(self.virtual_workers, self.minibatches - index * self.virtual_workers)
            return Step(number, TRAIN, epoch, index, parts, False, ends)
        if index == self.train_steps and self.validates(epoch):
            return Step(number, VALIDATE, epoch, index, min(self.virtual_workers, self.validation_batches), False, ends)
        return Step(number, FILES, epoch, index, 1, self.checkpoints(epoch), ends)

    def train_steps_until(self, number):
        """How many of the steps 1..number are train steps: the optimizer's steps."""
        if number <= 0:
            return 0
        epoch = bisect.bisect_left(self._ends, number)
        if epoch >= self.epochs:
            return self.epochs * self.train_steps
        before = self._ends[epoch - 1] if epoch else 0
        return epoch * self.train_steps + min(number - before, self.train_steps)

    def validation_part(self, v, parts):
        """The validation mini-batches of part v: contiguous, the first ones have one more."""
        share, more = divmod(self.validation_batches, parts)
        begin = v * share + min(v, more)
        return range(begin, begin + share + (v < more))
