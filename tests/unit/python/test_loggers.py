"""Which generation a logger is of, and what it is told."""

import json
import math
import re

import pytest

from pyedt import _loggers, _records


class Seen:
    def __init__(self):
        self.train, self.test = [], []


class G1(Seen):
    def log_train_metrics(self, loss, acc, completed_batch, worker):
        self.train.append((loss, acc, completed_batch, worker))

    def log_test_metrics(self, loss, acc, completed_batch, worker):
        self.test.append((loss, acc, completed_batch, worker))


class G1Accuracy(Seen):
    def log_train_metrics(self, x, accuracy, completed_batch, worker=0):
        self.train.append((x, accuracy, completed_batch, worker))


class G2(Seen):
    def log_train_metrics(self, metrics, completed_batch, epoch, worker):
        self.train.append((metrics, completed_batch, epoch, worker))

    def log_test_metrics(self, metrics, completed_batch, epoch):
        self.test.append((metrics, completed_batch, epoch))


class Three(Seen):
    def log_train_metrics(self, metrics, iteration, epoch):
        self.train.append((metrics, iteration, epoch))


class Star(Seen):
    def log_train_metrics(self, *arguments):
        self.train.append(arguments)

    def log_test_metrics(self, **named):
        self.test.append(named)


class Silent(Seen):
    pass


MEANS = {"loss": 0.5, "accuracy": 0.75}
TABLE = [  # generation, logger, train call, test call
    ("G1: scalars, the count within the epoch, the engine's index", G1, (0.5, 0.75, 3, 1), (0.5, 0.75, 0, 0)),
    ("G1 told by the second name", G1Accuracy, (0.5, 0.75, 3, 1), None),
    ("G2 and G3: dict, total, epoch, engines", G2, (MEANS, 13, 2, 6), (MEANS, 0, 2)),
    ("three parameters get three", Three, (MEANS, 13, 2), None),
    ("stars: G3, positional", Star, (MEANS, 13, 2, 6), {}),
    ("a logger without methods", Silent, None, None),
]


@pytest.mark.parametrize("what,kind,train,test", TABLE, ids=[t[0] for t in TABLE])
def test_calling_conventions(what, kind, train, test):
    target = kind()
    logger = _loggers.Logger(target)
    logger.begin()
    logger.report(_loggers.Report(True, MEANS, 13, 3, 2, 6, 1))
    logger.report(_loggers.Report(False, MEANS, 0, 0, 2, 6, 0))
    logger.end()
    assert target.train == ([train] if train is not None else [])
    assert target.test == ([test] if test is not None else [])


def record(step, epoch, index, parts, kind=0):
    return _records.Record(step, kind, 1, epoch, index, 1, 0, 0, parts)


def driver(logger, minibatches=None, **others):
    return _loggers.DriverReports(logger, ["loss", "accuracy"], ["loss", "accuracy"], 4, 2, minibatches, **others)


def test_driver_reports_are_running_averages_over_the_epoch():
    target = G2()
    reports = driver(target)
    reports.add(record(1, 0, 0, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 1.0))]))
    reports.add(record(2, 0, 1, [(2, 0, 0, 9, (2.0, 0.5))]))
    reports.add(record(3, 0, 2, [(10, 0, 0, 9, (0.25, 1.0)), (10, 0, 0, 8, (0.75, 0.5))], kind=1))
    reports.add(record(4, 1, 0, [(4, 0, 0, 8, (7.0, 0.0))]))
    reports.deliver()
    assert target.train == [({"loss": 1.0, "accuracy": 0.0}, 1, 0, 2), ({"loss": 2.0, "accuracy": 0.5}, 2, 0, 2),
                            ({"loss": 2.0, "accuracy": 0.5}, 3, 0, 1), ({"loss": 7.0, "accuracy": 0.0}, 4, 1, 1)]
    assert target.test == [({"loss": 0.5, "accuracy": 0.75}, 0, 0)]
    assert reports.iterations == 4


def test_g1_counts_restart_each_epoch_and_name_the_engine():
    target = G1()
    reports = driver(target)
    reports.add(record(1, 0, 0, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 1.0))]))
    reports.add(record(2, 1, 0, [(4, 0, 0, 8, (1.0, 0.0))]))
    reports.deliver()
    assert [(c, w) for _, _, c, w in target.train] == [(1, 0), (2, 1), (1, 1)]


def test_a_reattached_driver_numbers_iterations_from_the_epochs_length():
    target = G2()
    reports = driver(target, minibatches=10)
    reports.add(record(42, 5, 3, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 1.0))]))
    reports.deliver()
    assert [row[1] for row in target.train] == [57, 58]


def test_a_custom_validation_is_weighted_by_batches():
    target = G2()
    reports = driver(target, test_by_batches=True)
    reports.add(record(3, 0, 2, [(8, 0, 0, 9, (1.0, math.nan)), (1, 0, 0, 8, (4.0, math.nan))], kind=1))
    reports.deliver()
    assert target.test == [({"loss": 2.0}, 0, 0)]


def test_a_slow_logger_is_merged_not_waited_for():
    target = G2()
    reports = driver(target, minibatches=5000)
    for step in range(4000):
        reports.add(record(step + 1, step // 2500, step % 2500, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 1.0))]))
        if step == 100:
            reports.add(record(step + 1, 0, step, [(4, 0, 0, 9, (5.0, 0.0))], kind=1))
    assert reports.waiting() <= _loggers.REPORTS_MAX and reports.merged > 6000
    reports.deliver()
    assert len(target.test) == 1, "validations are kept"
    assert target.train[-1][1] == 5000 + 3000 and target.train[-1][0]["loss"] == 2.0
    iterations = [row[1] for row in target.train]
    assert iterations == sorted(iterations)


def test_steps_are_acknowledged_only_when_their_last_report_was_delivered():
    reports = driver(G2())
    reports.add(record(7, 0, 0, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 1.0))]))
    assert reports.delivered_until(7) == 6
    reports.deliver(1)
    assert reports.delivered_until(7) == 6
    reports.deliver(1)
    assert reports.delivered_until(7) == 7


def test_the_default_driver_logger_writes_once_per_step(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "log"))
    reports = driver(None)
    reports.logger.begin()
    reports.add(record(1, 0, 0, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 1.0))]))
    reports.add(record(2, 0, 1, [(4, 0, 0, 9, (0.5, 1.0))], kind=1))
    reports.deliver()
    reports.logger.end()
    lines = [json.loads(line) for line in open(tmp_path / "log" / "evaluation-metrics.txt")]
    assert [line["grouplabel"] for line in lines] == ["train", "test"]
    assert lines[0]["values"]["loss"] == {"type": 3, "value": "2.0"}
    assert lines[0]["etimes"]["iteration"] == {"type": 2, "value": "2"}


def test_the_default_worker_logger_prints_lines_monitors_know(capsys):
    from pyedt._schedule import Schedule

    reports = _loggers.WorkerReports(None, ["loss", "accuracy"], ["loss", "accuracy"], Schedule(40, 8, 4, 2, 2, 1, 1))
    reports.add(record(8, 1, 1, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 0.5))]), 8)
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Timestamp \d{13}, Iteration 1", lines[0])  # this engine's own count; the tags have that of all
    assert lines[1:] == ["batches :14 3.000000", "Iteration 14: tag train_accuracy, simple_value 0.500000",
                         "Iteration 14: tag train_loss, simple_value 3.000000"]


def test_a_users_worker_logger_sees_its_own_minibatches():
    from pyedt._schedule import Schedule

    target = G1()
    reports = _loggers.WorkerReports(target, ["loss", "accuracy"], ["loss", "accuracy"], Schedule(40, 8, 4, 2, 2, 1, 1))
    for index in range(2):
        reports.add(record(index + 1, 0, index, [(4, 0, 0, 9, (1.0, 0.0)), (4, 0, 0, 8, (3.0, 0.5))]), 9)
    assert target.train == [(1.0, 0.0, 1, 1), (1.0, 0.0, 2, 1)]
