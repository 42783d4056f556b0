"""The emetrics and elog helpers, as scripts and notebooks use them."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
from elog import ELog
from emetrics import EMetrics


def test_a_line_of_metrics(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("TRAINING_ID", "t-1")
    with EMetrics.open() as out:
        out.record(EMetrics.TRAIN_GROUP, 3, {"loss": 0.5, "count": 2, "name": "x", "np": np.float32(0.25), "yes": True})
    line = json.loads((tmp_path / "a" / "b" / "evaluation-metrics.txt").read_text())
    assert line["grouplabel"] == "train" and line["meta"]["training_id"] == "t-1" and line["meta"]["rindex"] == 1
    assert "subid" not in line["meta"] and isinstance(line["meta"]["time"], int)
    assert line["values"] == {"loss": {"type": 3, "value": "0.5"}, "count": {"type": 2, "value": "2"},
                              "name": {"value": "x"}, "np": {"value": "0.25"}, "yes": {"type": 2, "value": "True"}}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{10}", line["etimes"]["time_stamp"]["value"])


def test_an_experiments_history(tmp_path, monkeypatch):
    monkeypatch.delenv("LOG_DIR", raising=False)
    monkeypatch.setenv("JOB_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("RESULT_DIR", str(tmp_path))
    with EMetrics.open("0") as out:
        out.record("train", 1, {"loss": 1.0})
        out.record("test", 1, {"loss": 0.5})
        out.record("test", 2, {"loss": np.float64(0.25)})
    assert json.loads((tmp_path / "val_dict_list.json").read_text()) == [{"steps": 1, "loss": 0.5},
                                                                        {"steps": 2, "loss": 0.25}]
    assert (tmp_path / "logs" / "0" / "evaluation-metrics.txt").exists()


STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
GRAMMAR = [
    (lambda log: log.recordText("hello"), STAMP + "hello"),
    (lambda log: log.recordTrain("Train", 3, 30, 0.123456, 0.5, 1),
     STAMP + r"Train,\tTimestamp: \d+,\tGlobal steps: 30,\tIteration: 3,\tLoss: 0.12346,\tAccuracy: 0.5"),
    (lambda log: log.recordTrain("Train", 3, 30, {"loss": 0.25, "f1": 1}),
     STAMP + r"Train,\tTimestamp: \d+,\tGlobal steps: 30,\tIteration: 3,\tloss: 0.25,\tf1: 1.0"),
    (lambda log: log.recordTest("Test", 0.5, 0.75, 1), STAMP + r"Test,\tTimestamp: \d+,\tLoss: 0.5,\tAccuracy: 0.75"),
    (lambda log: log.recordTest("Test", {"loss": 0.5}), STAMP + r"Test,\tTimestamp: \d+,\tloss: 0.5"),
]


def test_the_grammar_of_elog_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_DIR", str(tmp_path))
    with ELog.open() as log:
        for call, _ in GRAMMAR:
            call(log)
    lines = (tmp_path / "stdout").read_text().splitlines()
    assert len(lines) == len(GRAMMAR)
    for line, (_, pattern) in zip(lines, GRAMMAR):
        assert re.fullmatch(pattern, line), line


def test_the_columns_notebooks_pick(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_DIR", str(tmp_path))
    with ELog.open() as log:
        log.recordTrain("Train", 3, 30, 0.5, 0.75, 1)
    columns = (tmp_path / "stdout").read_text().replace(":", ",").split(",")
    assert [columns[i].strip() for i in (6, 8, 10, 12)] == ["30", "3", "0.5", "0.75"]


PRINTS = """
import os, subprocess, sys
from elog import ELog
log = ELog.open()
for i in range(50):
    print("before", i, "of the line")
    log.recordText("line %d" % i)
captured = subprocess.run([sys.executable, "-c", "from elog import ELog; ELog.open().recordText('of a child that is listened to')"], stdout=subprocess.PIPE)
assert captured.stdout == b""
subprocess.run([sys.executable, "-c", "from elog import ELog; ELog.open().recordText('of a child')"])
log.recordText("x" * 100000)
log.close()
"""


def run_printing(folder, named):
    """What came through the pipe of a script's stdout; `named`: the file that it is said to become."""
    out, into = os.pipe()
    environment = dict(os.environ, LOG_DIR=str(folder), SHOAL_STDOUT="%d:%s" % (os.fstat(into).st_ino, named), PYTHONUNBUFFERED="1",
                       PYTHONPATH=str(pathlib.Path(sys.modules["elog"].__file__).parent))
    with subprocess.Popen([sys.executable, "-c", PRINTS], stdout=into, env=environment) as script:
        os.close(into)
        with os.fdopen(out, encoding="utf-8") as source:
            printed = source.read().splitlines()
    assert script.returncode == 0
    return printed


def test_elog_writes_between_what_the_script_prints(tmp_path):
    lines = run_printing(tmp_path, tmp_path / "stdout")
    assert len(lines) == 102
    for i in range(50):
        assert lines[2 * i] == "before %d of the line" % i and re.fullmatch(STAMP + "line %d" % i, lines[2 * i + 1])
    assert lines[100].endswith("] of a child") and lines[101].endswith("] " + "x" * 100000)
    assert [line.split("] ")[1] for line in (tmp_path / "stdout").read_text().splitlines()] == ["of a child that is listened to"]


def test_elog_writes_to_its_file_where_prints_go_elsewhere(tmp_path):
    assert run_printing(tmp_path, tmp_path / "driver.stdout") == ["before %d of the line" % i for i in range(50)]
    assert len((tmp_path / "stdout").read_text().splitlines()) == 53
