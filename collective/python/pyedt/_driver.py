"""train() in the process that runs the user's script.

    in a mesh     bundle --> agent --> engines          step records --> loggers, in order, acknowledged
                  final files --> the user's model
    alone         one engine in this process, a communicator of one, the same bits

D1. Training never waits for the driver: records wait in the agent, reports are bounded and merged.
D2. Calls are numbered. A driver that reruns the script finds what became of call k, and goes on from there: running,
    it goes on with the loggers after the last acknowledged step; finished, it loads the weights and returns."""

import filecmp
import os
import random
import shutil
import sys
import tempfile
import time
import weakref

import numpy as np
from pyedt import _bundle, _comm, _engine, _late, _preload, _records, _trainer, _travel
from pyedt._loggers import DriverReports

torch = _late.framework()
if torch:
    from pyedt import _batches, _compute, _optimizers
else:
    from pyedt import _keras_driver

WAIT_MS = 200
DELIVER_SECONDS = 0.05  # a slow logger is left after this long, to take in what has come
CALLS_MAX = 16  # SHOAL_CALLS_MAX of job.h: calls of train() in one job
RECORDS_SECONDS = 30  # after FINISHED: how long the last records may still be on their way
RESULT_SECONDS = 5
LOOKS, LOOK_BYTES = 64, 256 * 1024  # of a large file, from its begin to its end

_calls = 0
_resumed = weakref.WeakKeyDictionary()  # model -> the RESUME_WEIGHT_PATH that it began with: a later call goes on from the one before


class TrainingFailed(RuntimeError):
    """What train() raises when its engines failed. Its text begins as RAISED of sched/lead/lead_call.c does: not caught, it is
    the cause of the job's end."""


def in_mesh():
    return bool(os.environ.get("SHOAL_AGENT_SOCKET"))


def train(fabric, arguments):
    global _calls
    if in_mesh() and os.environ.get("DLI_IS_DRIVER") != "true":
        if not _engine.serves:
            raise RuntimeError("train() of fabric_model wants an elastic job, and this one is not: submit it with "
                               "--framework %s" % _late.elastic_name())
        raise RuntimeError("train() was called in an engine: only the script's own process may call it; keep the call out "
                           "of functions that engines run")
    if in_mesh() and _calls >= CALLS_MAX:
        raise RuntimeError("train() was called %d times in this job, and there may be no more; give it more epochs, or submit "
                           "the rest as another job" % _calls)
    restore_weights(fabric)
    header = make_header(fabric, arguments)
    if torch:
        seed = torch.initial_seed() & 0xFFFFFFFFFFFFFFFF
        pickled = _bundle.dumps(make_parts(fabric))
    else:
        seed = _keras_driver.seed()
        pickled = _keras_driver.dumps(fabric, _keras_driver.parts(fabric))
    header["modules"], header["folders"] = _preload.named_in(pickled), _bundle.folders()
    _calls += 1  # what was refused until here is no call
    reports = DriverReports(fabric.driver_logger, header["metric_names"], header["test_names"], header["batch_size"],
                            header["virtual_workers"], None, test_by_batches=fabric.fn_test is not None)
    print("--------START TRAINING--------", flush=True)
    started = time.monotonic()
    folder = bundle_folder()
    try:
        path = os.path.join(folder, "call-%d.bundle" % _calls)
        _bundle.write(path, header, pickled)
        del pickled
        reports.logger.begin()
        if in_mesh():
            training = MeshTraining(_calls, header, seed, path, reports)
            files = training.run()
            if not training.resumed:  # else the files of a later call may be there by now
                await_results(os.path.dirname(files))
        else:
            files = train_alone(_calls, seed, path, reports)
        load_final(fabric, files)
        reports.logger.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("--------END TRAINING: completed %d iterations --------" % reports.iterations)
    print("--------END TRAINING: completed epoch %d in time %.3f --------"
          % (header["epochs"], time.monotonic() - started), flush=True)


def bundle_folder():
    """Where the bundle lies until training has ended. In a job it is of the job's own folder on this host: the agent removes
    it when the script's process has ended, however that came."""
    job = os.path.dirname(os.environ.get("SHOAL_CALL_BUNDLE", ""))
    if not in_mesh() or not os.path.isdir(job):
        return tempfile.mkdtemp(prefix="shoal-driver-")
    folder = os.path.join(job, "driver")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def make_parts(fabric):
    return {"model": fabric.model, "optimizer": fabric.optimizer, "loss": fabric.loss_function,
            "datasets": fabric.datasets_function, "metrics": fabric.metrics, "callbacks": fabric.user_callback,
            "worker_logger": fabric.worker_logger, "fn_step_train": fabric.fn_step_train, "fn_test": fabric.fn_test,
            "fn_args": fabric.fn_args, "collate": fabric.fn_batch_collate}


def make_header(fabric, arguments):
    """What is known without unpickling anything."""
    if torch is None:
        return dict(_keras_driver.header(fabric), **arguments.as_dict(), onnx=fabric.onnx)
    trained = _compute.metric_names(None if fabric.fn_step_train is not None else fabric.metrics)
    tested = _compute.metric_names(None if fabric.fn_test is not None else fabric.metrics)
    names = trained + [name for name in tested if name not in trained]  # what one kind of step does not measure is NaN there
    if len(names) > 16:
        raise ValueError("FabricModel: %d metrics are too many, at most 15, of which one is the accuracy that a function of your own "
                         "returns" % (len(names) - 1))
    header = {"python": _bundle.python_version(), "torch": torch.__version__, "backend": "pytorch",
              "numeric_class": _engine.numeric_class(), "metric_names": names, "test_names": names,
              "trained": len(trained), "test_places": [names.index(name) for name in tested],
              "optimizer": "+".join(type(one).__name__ for one in _optimizers.as_list(fabric.optimizer)),
              "parameters": sum(p.numel() for p in fabric.model.parameters()),
              "shapes": _bundle.shapes_digest(fabric.model), "roots": _travel.roots()}
    header.update(arguments.as_dict())
    header["fuse"], header["onnx"] = fabric.fuse, fabric.onnx
    return header


def restore_weights(fabric):
    """RESUME_WEIGHT_PATH: initial weights, and the optimizer's state if it lies beside them."""
    path = given = os.environ.get("RESUME_WEIGHT_PATH")
    if not path or path == "null" or _resumed.get(fabric.model) == given:
        return
    if os.path.isdir(path):
        path = os.path.join(path, "model_epoch_final.pth" if torch else "model_epoch_final.h5")
    if not os.path.exists(path):
        raise FileNotFoundError("RESUME_WEIGHT_PATH: %s does not exist" % path)
    if torch is None:
        _keras_driver.load(fabric, path[:-len(".h5")] if path.endswith(".h5") else path)
    else:
        load_state(fabric, path[:-len(".pth")] if path.endswith(".pth") else path, path, weights_only=True)
    _resumed[fabric.model] = given


def load_state(fabric, stem, weights, weights_only):
    """What the files beside the weights have of the optimizer and the loss, too."""
    _batches.unwrapped(fabric.model).load_state_dict(torch.load(weights, map_location="cpu", weights_only=weights_only))
    for target, path in ((_optimizers.joined(fabric.optimizer), stem + "_optimizer_state.pth"),
                         (fabric.loss_function if _trainer.is_trained(fabric.loss_function) else None, stem + "_loss.pth")):
        if os.path.exists(path) and target is not None:
            target.load_state_dict(torch.load(path, map_location="cpu", weights_only=weights_only))


def await_results(written):
    """What the engines wrote below RESULT_DIR/model, of which `written` is a copy, is on its way to this host: the script may
    open it right after train()."""
    kept = os.path.join(_trainer.result_dir(), "model")
    left = [os.path.relpath(os.path.join(folder, name), written) for folder, _, names in os.walk(written) for name in names]
    until = time.monotonic() + RESULT_SECONDS
    while left := [name for name in left if not same_file(os.path.join(written, name), os.path.join(kept, name))]:
        if time.monotonic() > until:
            return  # it comes later
        time.sleep(0.02)


def download(out_dir):
    """A zip of RESULT_DIR/model as `shoal job result` gives it, named by the job; whole or not there."""
    os.makedirs(out_dir, exist_ok=True)
    path = os.path.join(out_dir, "%s.zip" % (os.environ.get("APP_ID") or os.environ.get("DLI_EXECID") or "model"))
    root = _trainer.result_dir()
    with tempfile.TemporaryDirectory(prefix=".shoal-", dir=out_dir) as folder:
        made = shutil.make_archive(os.path.join(folder, "model"), "zip", root, "model")
        os.replace(made, path)
    return path


def same_file(one, other):
    """Whether both hold the same, as far as it takes to know that a file has come: a large one is looked at in places. What
    torch.save writes ends with the checksums of all its tensors."""
    try:
        size = os.path.getsize(one)
        if size != os.path.getsize(other):
            return False
        if size <= LOOKS * LOOK_BYTES:
            return filecmp.cmp(one, other, shallow=False)
        with open(one, "rb", buffering=0) as first, open(other, "rb", buffering=0) as second:
            places = [i * (size - LOOK_BYTES) // (LOOKS - 1) for i in range(LOOKS)]
            return all(os.pread(first.fileno(), LOOK_BYTES, at) == os.pread(second.fileno(), LOOK_BYTES, at) for at in places)
    except OSError:
        return False


def load_final(fabric, folder):
    """The final weights into the user's own model and optimizer."""
    stem = os.path.join(folder, "model_epoch_final")
    if torch is None:
        _keras_driver.load(fabric, stem)
        return
    # An optimizer, or a module's extra state, may keep what only itself can name; the file is of this very job.
    load_state(fabric, stem, stem + ".pth", weights_only=False)


class MeshTraining:
    """One call from the driver's side: hand over, follow, acknowledge."""

    def __init__(self, call, header, seed, path, reports):
        self._call, self._header, self._seed, self._path, self._reports = call, header, seed, path, reports
        self._comm = driver_connection()
        self._seen = self._acked = 0
        self.resumed = False  # an earlier life of this driver began it
        self._engines = None
        self._finished = None  # (final step, directory), once the agent says so

    def run(self):
        """The directory of the final files. RuntimeError if training failed or was stopped."""
        comm = self._comm
        comm.driver_train(self._call, self._seed, self._header["engines_max"], self._path,
                          _bundle.signature(self._header))
        deadline = None
        while True:
            self._take_in(comm.driver_wait(0 if self._reports.waiting() else WAIT_MS))
            self._deliver()
            if self._finished is None:
                continue
            final, folder = self._finished
            if self._seen >= final and not self._reports.waiting():
                return folder
            deadline = deadline or time.monotonic() + RECORDS_SECONDS
            if time.monotonic() > deadline and not self._reports.waiting():
                print("Warning: the loggers saw the steps up to %d of %d" % (self._seen, final), file=sys.stderr)
                return folder

    def _take_in(self, event):
        if event.event in (_comm.TRAIN_RECORDS, _comm.TRAIN_STATE) and event.call != self._call:
            return  # the end of the call before is said more than once
        if event.event == _comm.TRAIN_RECORDS:
            for record in _records.decode_all(_comm.ctypes.string_at(event.records, event.records_len)):
                if record.step > self._seen:
                    self._seen = record.step
                    self._reports.add(record)
        elif event.event == _comm.TRAIN_STATE:
            self._on_state(event)
        elif event.event in (_comm.STOPPED, _comm.RELEASED):
            raise RuntimeError("training was stopped: %s" % (_comm.event_text(event.text) or "the job has ended"))

    def _on_state(self, event):
        if event.acked_step > self._acked:  # an earlier life of this driver has reported up to there
            self._seen = max(self._seen, event.acked_step)
            self.resumed = True
            self._acked = event.acked_step
            self._reports.minibatches = read_minibatches(self._call)
            print("Re-attached to call %d after step %d" % (self._call, event.acked_step), flush=True)
        if event.state == _comm.FAILED:
            raise TrainingFailed("training failed: %s" % _comm.event_text(event.text))
        if event.state == _comm.FINISHED:
            self._finished = (event.final_step, os.fsdecode(event.files_path))
        elif event.engines not in (0, self._engines) and event.state == _comm.RUNNING:
            self._engines = event.engines
            print("Engines now: %d" % event.engines, flush=True)

    def _deliver(self):
        until = time.monotonic() + DELIVER_SECONDS
        while self._reports.deliver(1) and time.monotonic() < until:
            pass
        done = self._reports.delivered_until(self._seen)
        if done > self._acked:
            self._acked = done
            self._comm.driver_ack(self._call, done)


_connection = None


def driver_connection():
    """One connection for all calls of this process."""
    global _connection
    if _connection is None:
        _connection = _comm.Communicator(_comm.DRIVER, _engine.numeric_class())
    return _connection


def read_minibatches(call):
    """Mini-batches of a data epoch, as the engines wrote them down; None if the file has not come."""
    import json

    try:
        with open(os.path.join(_trainer.result_dir(), "checkpoint", "call-%d.json" % call), encoding="utf-8") as source:
            return json.load(source)["minibatches"]
    except (OSError, ValueError, KeyError):
        return None


class KeptChance:
    """Training seeds torch, NumPy and random; the script goes on with its own, as it would beside a mesh."""

    def __enter__(self):
        self._states = torch.get_rng_state(), np.random.get_state(), random.getstate(), torch.get_num_threads()
        torch.set_num_threads(_engine.thread_count())

    def __exit__(self, exc_type, exc, trace):
        torch.set_rng_state(self._states[0])
        np.random.set_state(self._states[1])
        random.setstate(self._states[2])
        torch.set_num_threads(self._states[3])


def train_alone(call, seed, path, reports):
    """Train with one engine in this process; the directory of the final files."""
    with KeptChance() if torch else _keras_driver.KeptChance():
        comm = _comm.Communicator(solo=True)
        try:
            trainer = _engine.make_trainer(comm, call, seed, path, quiet=True)
            trainer.on_committed = lambda record: (reports.add(record), reports.deliver())
            comm.ready(trainer.header["metric_names"], **trainer.sizes())
            trainer.bind()
            _trainer.serve(trainer, None)
            trainer.end()
            trainer.unbind()
        finally:
            comm.close()
    return os.path.join(_trainer.result_dir(), "model", "train")
