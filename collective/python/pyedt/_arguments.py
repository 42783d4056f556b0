"""The checks of FabricModel() and train(): each wrong argument is a TypeError or ValueError in the driver, before any
engine starts. No torch here."""

import os
import warnings

from pyedt import _late

VIRTUAL_MAX = 4096  # SHOAL_VIRTUAL_MAX of limits.h


def job_limit():
    """The most engines this job may have: workers times devices, 1 outside a job."""
    try:
        return max(1, int(os.environ.get("WMLA_NWORKER", "1")) * int(os.environ.get("WMLA_WORKER_NDEVICE", "1") or 1))
    except ValueError:
        return 1


def whole(name, value, least, optional=False):
    """`value` as an int of at least `least`. Bools are refused, whole numbers of other integer types are taken."""
    if value is None and optional:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError("train(): %s must be an int, got %s" % (name, type(value).__name__))
    number = value.__index__()
    if number < least:
        raise ValueError("train(): %s must be at least %d, got %d" % (name, least, number))
    return number


class TrainArguments:
    """The numbers of one train() call, checked. `virtual_workers` is the sync interval V."""

    def __init__(self, epoch_number, batch_size, engines_number=None, num_dataloader_threads=0, validation_freq=1,
                 checkpoint_freq=1, effective_batch_size=None, hardware_spec=None, worker_num=None,
                 worker_device_num=None, worker_memory=None, driver_memory=None):
        asked = engines_of(hardware_spec, worker_num, worker_device_num)
        if asked is not None and effective_batch_size is None and (engines_number is None or hardware_spec is not None):
            engines_number = asked
        for name, value in (("worker_memory", worker_memory), ("driver_memory", driver_memory)):
            if value is not None:
                warnings.warn("train(): %s=%r has no effect here: `shoal job run` says what a worker gets" % (name, value), stacklevel=3)
        self.epochs = whole("epoch_number", epoch_number, 1)
        self.batch_size = whole("batch_size", batch_size, 1)
        engines = whole("engines_number", engines_number, 1, optional=True)
        self.loader_threads = whole("num_dataloader_threads", num_dataloader_threads or 0, 0)
        self.validation_freq = whole("validation_freq", validation_freq, 0)
        self.checkpoint_freq = whole("checkpoint_freq", checkpoint_freq, 0)
        effective = whole("effective_batch_size", effective_batch_size, 1, optional=True)
        if engines is not None and effective is not None:
            raise ValueError("train(): give engines_number or effective_batch_size, not both: each decides how many "
                             "mini-batches make one weight update")
        self.virtual_workers = self._interval(engines, effective)
        self.effective_batch_size = self.virtual_workers * self.batch_size
        self.engines_max = min(self.virtual_workers, job_limit())
        self.engines_number = engines

    def _interval(self, engines, effective):
        if effective is None:
            count = engines if engines is not None else job_limit()
        else:
            if effective < self.batch_size:
                raise ValueError("train(): effective_batch_size (%d) must be at least batch_size (%d)"
                                 % (effective, self.batch_size))
            count = effective // self.batch_size
            if effective % self.batch_size:
                warnings.warn("effective_batch_size %d is no multiple of batch_size %d: rounded down to %d"
                              % (effective, self.batch_size, count * self.batch_size), stacklevel=4)
        if count > VIRTUAL_MAX:
            raise ValueError("train(): %d mini-batches in one weight update are too many, at most %d: raise batch_size"
                             % (count, VIRTUAL_MAX))
        return count

    def as_dict(self):
        return dict(vars(self))


def may_fuse(given):
    """FabricModel's `fuse`, else the job's SHOAL_FUSE (0 or 1)."""
    if given is None:
        text = os.environ.get("SHOAL_FUSE", "0")
        if text not in ("0", "1"):
            raise ValueError("SHOAL_FUSE is %r: give 1 to compute the mini-batches that an engine holds as one, or 0" % text)
        return text == "1"
    if not isinstance(given, bool):
        raise TypeError("FabricModel: fuse must be True or False, got %s" % type(given).__name__)
    return given


def engines_of(hardware_spec, worker_num, worker_device_num):
    """How many engines a notebook's arguments ask for; None: they do not say. hardware_spec stands above the other two."""
    workers, devices = (whole(name, value, 1, optional=True) for name, value in (
        ("worker_num", worker_num), ("worker_device_num", worker_device_num)))
    asked = None if workers is None and devices is None else (workers or 1) * (devices or 1)
    if hardware_spec is None:
        return asked
    nodes = hardware_spec.get("nodes") if isinstance(hardware_spec, dict) else None
    if not isinstance(nodes, dict):
        raise ValueError("train(): hardware_spec must be {\"nodes\": {\"num_nodes\": N, \"gpu\": {\"num_gpu\": M}}}: no "
                         "specification is known here by its name; leave it out and give engines_number")
    return spec_number(nodes, "num_nodes") * max(1, spec_number(nodes.get("gpu") or {}, "num_gpu"))


def spec_number(spec, name):
    """Numbers in a hardware_spec may be texts."""
    value = spec.get(name, 1)
    try:
        number = int(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else -1
    except ValueError:
        number = -1
    if number < 0 or (number == 0 and name == "num_nodes"):
        raise ValueError("train(): hardware_spec: %s must be a whole number, got %r" % (name, value))
    return number


def check_environment():
    """What this version cannot serve is refused here, with what to do instead."""
    backend = os.environ.get("FABRIC_BACKEND", "")
    if backend and backend.lower() not in ("pytorch", *_late.KERAS):
        raise NotImplementedError("FABRIC_BACKEND is %r: pytorch and keras are known; submit with --framework edtPyTorch or "
                                  "edtTensorflow" % backend)
    if os.environ.get("EXEC_TYPE") == "notebook":
        raise NotImplementedError("FabricModel in a notebook is not supported yet; submit the script with `shoal job run`")
