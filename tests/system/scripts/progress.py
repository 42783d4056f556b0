"""Prints as people do: progress bars that go back to the line's start, letters of many alphabets, colours, bytes, long lines, logging."""
import logging
import sys

import torch
from callbacks import Callback
from fabric_model import FabricModel
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-8s %(name)s: %(message)s", stream=sys.stdout)
logger = logging.getLogger("trenér")
print("\u2500" * 40, "\u8bad\u7ec3 \u0437\u0430\u043f\u0443\u0449\u0435\u043d\u043e \U0001f680", flush=True)


class Bar(Callback):
    def on_batch_end(self, batch, logs=None):
        done = (batch + 1) % 11
        sys.stderr.write("\r\x1b[32mEpoch: %3d%%|%s%s| loss=%.3f\x1b[0m" % (done * 10, "\u2588" * done, " " * (10 - done), (logs or {}).get("loss", 0)))
        sys.stderr.flush()

    def on_epoch_end(self, epoch, save_model=False):
        logger.info("\u00e9poque %d termin\u00e9e \u2714", epoch)
        print("x" * 20000)
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.buffer.write(b"\xff\xfe no text at all \x00\n")


def datasets():
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(x, (x.sum(dim=1) > 0).long()), None


torch.manual_seed(5)
model = nn.Linear(6, 2)
FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), user_callback=[Bar()]).train(2, 4, 3)
print("\u7ed3\u675f", flush=True)
