"""Log lines that notebooks parse (training contract 5.2): appended to `<folder>/stdout`. Neither the order of the fields
nor their punctuation may change, since readers replace ':' by ',' and pick columns."""

import os
import time


def log_folder(sub_id=None):
    """The folder of log files: LOG_DIR, else JOB_STATE_DIR/logs, else /tmp; below it one folder per experiment."""
    if os.environ.get("LOG_DIR"):
        folder = os.environ["LOG_DIR"]
    elif os.environ.get("JOB_STATE_DIR"):
        folder = os.path.join(os.environ["JOB_STATE_DIR"], "logs")
    else:
        folder = "/tmp"
    if sub_id is not None:
        folder = os.path.join(folder, str(sub_id))
    os.makedirs(folder, exist_ok=True)
    return folder


def rounded(value):
    return round(float(value), 5)


class ELog:
    def __init__(self, path):
        self._file = open(path, "a", encoding="utf-8")

    @staticmethod
    def open(subId=None):
        return ELog(os.path.join(log_folder(subId), "stdout"))

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, trace):
        self.close()

    def recordText(self, text):
        self._file.write("[%s] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text))
        self._file.flush()

    def recordTrain(self, title, iteration, global_steps, loss, accuracy=None, worker=None):
        """`loss` is a number (then `accuracy` follows), or a dict of metrics."""
        head = "%s,\tTimestamp: %d,\tGlobal steps: %d,\tIteration: %d" % (
            title, int(time.time() * 1000), global_steps, iteration)
        self.recordText(head + self._values(loss, accuracy))

    def recordTest(self, title, loss, accuracy=None, worker=None):
        head = "%s,\tTimestamp: %d" % (title, int(time.time() * 1000))
        self.recordText(head + self._values(loss, accuracy))

    def close(self):
        if not self._file.closed:
            self._file.close()

    @staticmethod
    def _values(loss, accuracy):
        if isinstance(loss, dict):
            return "".join(",\t%s: %s" % (name, rounded(value)) for name, value in loss.items())
        return ",\tLoss: %s,\tAccuracy: %s" % (rounded(loss), rounded(accuracy))
