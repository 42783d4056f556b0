"""What user callbacks derive from. Duck typing is enough: a missing method is not called, and a method is called with as
many arguments as it accepts."""


class Callback:
    """Shipped to every engine and run there. `model` is the engine's network, `params` holds `epochs`, `optimizer` and
    the numbers of train(). Class attributes, because some subclasses forget super().__init__()."""

    params = None
    model = None

    def __init__(self):
        self.params = {}
        self.model = None

    def on_train_begin(self):
        """This engine starts, or joins."""

    def on_train_end(self):
        """This engine finishes, or leaves."""

    def on_epoch_begin(self, epoch):
        """Before the first mini-batch of data epoch `epoch` (from 0)."""

    def on_epoch_end(self, epoch, save_model=False):
        """After the last step, validation and checkpoint of the epoch; `save_model` is true on exactly one engine, when
        the library itself saves."""

    def on_batch_begin(self, batch):
        """Called with on_batch_end, once its mini-batch is committed."""

    def on_batch_end(self, batch, logs=None):
        """Mini-batch `batch` of this data epoch, of any engine, is committed."""


class LoggerCallback:
    """Called in the driver (driver logger) or in an engine (worker logger)."""

    def on_train_begin(self):
        """Training starts."""

    def on_train_end(self):
        """Training has ended; the final files are there."""

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        """Running averages over the epoch (driver), or the values of one mini-batch (worker)."""

    def log_test_metrics(self, metrics, iteration, epoch):
        """The result of one validation."""
