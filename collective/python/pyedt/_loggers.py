"""Loggers of all generations (training contract 3.6). The calling convention is told from the callback's own signature,
never from the constructor keyword it came by."""

import inspect
import math
import os
import sys
import time
from collections import deque

from pyedt import _records, _schedule

REPORTS_MAX = 1000  # waiting for a slow logger; then the oldest neighbours of one epoch are merged


class Method:
    """A method of a user's object, found once, called with as many arguments as it accepts. A missing one does nothing."""

    def __init__(self, target, name):
        self.function = getattr(target, name, None) if target is not None else None
        self.names, self.variable = [], True
        if callable(self.function):
            try:
                parameters = list(inspect.signature(self.function).parameters.values())
            except (TypeError, ValueError):
                parameters = []
            positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            self.names = [p.name for p in parameters if p.kind in positional]
            self.variable = not parameters or any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in parameters)
            if not parameters:
                self.variable = False
        else:
            self.function = None

    def __bool__(self):
        return self.function is not None

    def __call__(self, *arguments):
        if self.function is None:
            return None
        if not self.variable:
            arguments = arguments[:len(self.names)]
        return self.function(*arguments)


def takes_scalars(method):
    """G1: `(loss, acc, completed_batch, worker)`. G2 and G3: `(metrics, iteration, epoch, workers)`."""
    names = [name.lower() for name in method.names]
    return bool(names) and (names[0] == "loss" or (len(names) > 1 and names[1].startswith("acc")))


class Report:
    """What one call of a logger is about."""

    __slots__ = ("train", "metrics", "iteration", "completed", "epoch", "workers", "worker")

    def __init__(self, train, metrics, iteration, completed, epoch, workers, worker):
        self.train, self.metrics, self.iteration, self.completed = train, metrics, iteration, completed
        self.epoch, self.workers, self.worker = epoch, workers, worker


class Logger:
    """A user's logger behind one interface."""

    def __init__(self, target):
        self.target = target
        self._begin, self._end = Method(target, "on_train_begin"), Method(target, "on_train_end")
        self._train, self._test = Method(target, "log_train_metrics"), Method(target, "log_test_metrics")
        self._train_scalars, self._test_scalars = takes_scalars(self._train), takes_scalars(self._test)

    def begin(self):
        self._begin()

    def end(self):
        self._end()

    def report(self, report):
        metrics = report.metrics
        method, scalars = (self._train, self._train_scalars) if report.train else (self._test, self._test_scalars)
        if not method:
            return
        if scalars:
            method(metrics.get("loss", 0.0), metrics.get("accuracy", 0.0), report.completed, report.worker)
        elif report.train:
            method(metrics, report.iteration, report.epoch, report.workers)
        else:
            method(metrics, report.iteration, report.epoch)


class DefaultDriverLogger:
    """Writes the averages of each train step and each validation to evaluation-metrics.txt."""

    def __init__(self):
        self._out = None

    def on_train_begin(self):
        try:
            from emetrics import EMetrics
        except ImportError:  # outside a job the tools directory is not on the path
            print("emetrics is not on PYTHONPATH: no evaluation-metrics.txt is written", file=sys.stderr)
            return
        if not os.environ.get("LOG_DIR"):
            return  # alone, outside a job: nobody reads them
        self._out = EMetrics.open(os.environ.get("SUBID") or None)

    def on_train_end(self):
        if self._out is not None:
            self._out.close()

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        if self._out is not None:
            self._out.record("train", iteration, metrics)

    def log_test_metrics(self, metrics, iteration, epoch):
        if self._out is not None:
            self._out.record("test", epoch + 1, metrics)


class DefaultWorkerLogger:
    """Monitor lines on the engine's standard output (training contract 5.5): points of curves by all engines' count of mini-batches,
    their times by this one's own."""

    def __init__(self, iterations):
        self._iterations, self._own = iterations, 0

    def on_train_begin(self):
        print("Total iterations: %d" % self._iterations)

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        now = int(time.time() * 1000)
        self._own += 1
        lines = ["Timestamp %d, Iteration %d" % (now, self._own), "batches :%d %.6f" % (iteration, metrics["loss"])]
        for name in ("accuracy", "loss"):
            if name in metrics:
                lines.append("Iteration %d: tag train_%s, simple_value %.6f" % (iteration, name, metrics[name]))
        sys.stdout.write("\n".join(lines) + "\n")

    def log_test_metrics(self, metrics, iteration, epoch):
        for name in ("accuracy", "loss"):
            if name in metrics:
                sys.stdout.write("Iteration %d: tag test_%s, simple_value %.6f\n" % (iteration, name, metrics[name]))


def named(names, values):
    """Values that were not computed are NaN by convention of the record; they have no name then."""
    return {name: value for name, value in zip(names, values) if not (math.isnan(value) and name != "loss")}


class DriverReports:
    """Turns committed step records into logger calls: once per mini-batch for a user's logger, once per step for the
    default one, with running averages over the data epoch. Bounded: when REPORTS_MAX wait, neighbours of one epoch are
    merged, which loses no number, since the averages are cumulative."""

    def __init__(self, logger, train_names, test_names, batch_size, virtual_workers, minibatches, test_by_batches=False):
        self.logger = Logger(logger or DefaultDriverLogger())
        self._per_step = logger is None
        self._train_names, self._test_names = train_names, test_names
        self._batch_size, self._virtual_workers, self.minibatches = batch_size, virtual_workers, minibatches
        self._test_by_batches = test_by_batches
        self._waiting = deque()
        self._workers = []  # worker ids in order of appearance: G1's `worker`
        self._epoch = None
        self._sums, self._weight = None, 0
        self.iterations = 0
        self.merged = 0
        self._warned = False

    def add(self, record):
        if record.kind == _schedule.TRAIN:
            self._add_train(record)
        elif record.kind == _schedule.VALIDATE:
            self._add_test(record)

    def deliver(self, limit=None):
        """Call the logger for what waits, at most `limit` reports. True while more wait."""
        while self._waiting and (limit is None or limit > 0):
            self.logger.report(self._waiting.popleft()[0])
            if limit is not None:
                limit -= 1
        return bool(self._waiting)

    def waiting(self):
        return len(self._waiting)

    def delivered_until(self, fallback):
        """The step up to which every report has been delivered: `fallback` if nothing waits."""
        return self._waiting[0][1] - 1 if self._waiting else fallback

    def _add_train(self, record):
        if record.epoch != self._epoch:
            self._epoch, self._weight = record.epoch, 0
            self._sums = [0.0] * len(self._train_names)
        first = record.index * self._virtual_workers
        before = (record.epoch * self.minibatches if self.minibatches is not None else self.iterations - first) + first
        workers = len({part[3] for part in record.parts})
        for v, (samples, _, _, worker, values) in enumerate(record.parts):
            if worker not in self._workers:
                self._workers.append(worker)
            self._weight += samples
            self._sums = [s + samples * x for s, x in zip(self._sums, values)]
            if values and not math.isfinite(values[0]) and not self._warned:
                self._warned = True
                print("fabric_model: the loss of step %d is %s, in data epoch %d; training goes on, but what it makes from "
                      "here on is of no use: a smaller learning rate may help" % (record.step, values[0], record.epoch),
                      file=sys.stderr, flush=True)
            self.iterations = before + v + 1
            if not self._per_step or v + 1 == len(record.parts):
                means = named(self._train_names, [s / max(self._weight, 1) for s in self._sums])
                self._put(Report(True, means, self.iterations, first + v + 1, record.epoch, workers,
                                 self._workers.index(worker)), record.step)

    def _add_test(self, record):
        weights = [-(-part[0] // self._batch_size) for part in record.parts] if self._test_by_batches else None
        means = named(self._test_names, _records.mean_values(record, weights))
        self._put(Report(False, means, 0, 0, record.epoch, len({part[3] for part in record.parts}), 0), record.step)

    def _put(self, report, step):
        if len(self._waiting) >= REPORTS_MAX:
            last = self._waiting[-1][0]
            if last.train and report.train and last.epoch == report.epoch:
                self._waiting.pop()
                self.merged += 1
            elif not self._merge_oldest():
                self._waiting.popleft()
                self.merged += 1
        self._waiting.append((report, step))

    def _merge_oldest(self):
        for i in range(len(self._waiting) - 1):
            a, b = self._waiting[i][0], self._waiting[i + 1][0]
            if a.train and b.train and a.epoch == b.epoch:
                del self._waiting[i]
                self.merged += 1
                return True
        return False


class WorkerReports:
    """The worker logger's calls in one engine: once per own mini-batch, after its commit. A user's logger counts this
    engine's iterations, the monitor lines of the default one count all engines'."""

    def __init__(self, logger, train_names, test_names, schedule, quiet=False):
        """`quiet`: no lines by default, for a script that runs alone at a user's terminal."""
        self.printing = logger is None and not quiet
        if self.printing:
            logger = DefaultWorkerLogger(schedule.minibatches * schedule.epochs)
        self.logger = Logger(logger)
        self._global = self.printing
        self._train_names, self._test_names, self._schedule = train_names, test_names, schedule
        self._train_count = self._test_count = 0

    def add(self, record, worker_id):
        if record.kind == _schedule.FILES:
            return
        train = record.kind == _schedule.TRAIN
        names = self._train_names if train else self._test_names
        ids = sorted({part[3] for part in record.parts})
        for v, part in enumerate(record.parts):
            if part[3] == worker_id:
                count = self._count(record, v, train)
                self.logger.report(Report(train, named(names, part[4]), count, count, record.epoch, len(ids),
                                          ids.index(worker_id)))

    def _count(self, record, v, train):
        if train:
            self._train_count += 1
        else:
            self._test_count += 1
        if self._global:
            done = min(record.index, self._schedule.train_steps) * self._schedule.virtual_workers
            return record.epoch * self._schedule.minibatches + (done + v + 1 if train else self._schedule.minibatches)
        return self._train_count if train else self._test_count
