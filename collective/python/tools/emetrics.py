"""Metric lines for monitors and hyperparameter search (training contract 5.1): one JSON object per line in
`<folder>/evaluation-metrics.txt`."""

import json
import os
import time


def metrics_folder(sub_id=None):
    """The folder of metric files: LOG_DIR, else JOB_STATE_DIR/logs, else /tmp; below it one folder per experiment."""
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


def encode_value(value):
    """Integers and floats carry a type number; everything else, NumPy scalars too, is plain text."""
    if isinstance(value, int):
        return {"type": 2, "value": str(value)}
    if isinstance(value, float):
        return {"type": 3, "value": str(value)}
    return {"value": str(value)}


class EMetrics:
    TEST_GROUP = "test"
    TRAIN_GROUP = "train"

    def __init__(self, subId, path):
        self._sub_id = None if subId is None else str(subId)
        self._file = open(path, "a", encoding="utf-8")
        self._history = []

    @staticmethod
    def open(subId=None):
        return EMetrics(subId, os.path.join(metrics_folder(subId), "evaluation-metrics.txt"))

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc, trace):
        self.close()

    def record(self, group, iteration, values):
        now = time.time()
        # The fraction field of this stamp holds whole epoch seconds: readers use meta.time.
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now)) + ".%d" % int(now)
        meta = {"training_id": os.environ.get("TRAINING_ID", ""), "time": int(now * 1000), "rindex": 1}
        if self._sub_id is not None:
            meta["subid"] = self._sub_id
        line = {
            "meta": meta,
            "grouplabel": group,
            "etimes": {"iteration": encode_value(iteration), "time_stamp": encode_value(stamp)},
            "values": {name: encode_value(value) for name, value in values.items()},
        }
        if group == EMetrics.TEST_GROUP:
            self._history.append({"steps": iteration, **values})
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self):
        if self._file.closed:
            return
        self._file.close()
        if self._sub_id:
            folder = os.environ.get("RESULT_DIR") or "/tmp"
            with open(os.path.join(folder, "val_dict_list.json"), "w", encoding="utf-8") as out:
                json.dump(self._history, out, default=float)
