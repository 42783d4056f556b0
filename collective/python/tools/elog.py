"""Log lines that notebooks parse (training contract 5.2): appended to `<folder>/stdout`. Neither the order of the fields
nor their punctuation may change, since readers replace ':' by ',' and pick columns."""

import os
import stat
import sys
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


def is_printed_to(path):
    """Whether what this process prints goes to that file, through the pipe of SHOAL_STDOUT: a line of ours goes there, too, since it
    would overtake what is printed, and come between the pieces of a line."""
    pipe, _, printed = os.environ.get("SHOAL_STDOUT", "").partition(":")
    try:
        facts = os.fstat(1)
    except OSError:
        return False
    return stat.S_ISFIFO(facts.st_mode) and str(facts.st_ino) == pipe and os.path.realpath(printed) == os.path.realpath(path)


class ELog:
    def __init__(self, path):
        self._path = path
        self._file = None if is_printed_to(path) else open(path, "a", encoding="utf-8")

    @staticmethod
    def open(subId=None):
        return ELog(os.path.join(log_folder(subId), "stdout"))

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, trace):
        self.close()

    def recordText(self, text):
        line = "[%s] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), text)
        if self._file is None and not is_printed_to(self._path):  # the script has put something else in its place
            self._file = open(self._path, "a", encoding="utf-8")
        if self._file is not None:
            self._file.write(line)
            self._file.flush()
            return
        if sys.stdout is not None:
            sys.stdout.flush()
        rest = line.encode("utf-8", "replace")
        while rest:
            rest = rest[os.write(1, rest):]

    def recordTrain(self, title, iteration, global_steps, loss, accuracy=None, worker=None):
        """`loss` is a number (then `accuracy` follows), or a dict of metrics."""
        head = "%s,\tTimestamp: %d,\tGlobal steps: %d,\tIteration: %d" % (
            title, int(time.time() * 1000), global_steps, iteration)
        self.recordText(head + self._values(loss, accuracy))

    def recordTest(self, title, loss, accuracy=None, worker=None):
        head = "%s,\tTimestamp: %d" % (title, int(time.time() * 1000))
        self.recordText(head + self._values(loss, accuracy))

    def close(self):
        if self._file is not None:
            self._file.close()

    @staticmethod
    def _values(loss, accuracy):
        if isinstance(loss, dict):
            return "".join(",\t%s: %s" % (name, rounded(value)) for name, value in loss.items())
        return ",\tLoss: %s,\tAccuracy: %s" % (rounded(loss), rounded(accuracy))
