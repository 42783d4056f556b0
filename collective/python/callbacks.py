"""The name scripts import: `from callbacks import Callback, LoggerCallback`."""

from pyedt.callbacks import Callback, LoggerCallback

__all__ = ["Callback", "LoggerCallback"]
