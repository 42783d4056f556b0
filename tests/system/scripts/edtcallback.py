"""A user's own logger, of the shape that the elastic samples of WMLA 2.x bring along beside their script (and no script itself)."""
import os
import time

from callbacks import LoggerCallback
from emetrics import EMetrics


class EDTLoggerCallback(LoggerCallback):
    def __init__(self):
        self.gs = 0
        self.begun = time.time()

    def log_train_metrics(self, loss, acc, completed_batch, worker=0):
        acc = acc / 100.0
        self.gs += 1
        with EMetrics.open() as em:
            em.record(EMetrics.TRAIN_GROUP, completed_batch, {"loss": loss, "accuracy": acc})

    def log_test_metrics(self, loss, acc, completed_batch, worker=0):
        with EMetrics.open() as em:
            em.record(EMetrics.TEST_GROUP, completed_batch, {"loss": loss, "accuracy": acc})

    def on_train_end(self):
        with open(os.path.join(os.environ.get("LOG_DIR", "."), "seen"), "w") as out:
            out.write("%d" % self.gs)
