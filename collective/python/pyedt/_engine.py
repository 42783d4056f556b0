"""An engine: one slot of an elastic job, from its connection to the agent to its end.

    fork by the engine server (or exec: python -m pyedt._engine)
      open -> wait_call -> load the bundle, the data sets, fork the loaders -> ready -> serve (_trainer) -> exit 0

The library thread and UCX start with ready, so everything that forks comes before it."""

import faulthandler
import fcntl
import os
import platform
import re
import signal
import sys
import time
import traceback

from pyedt import _comm, _late

serves = False  # this process is an engine
TEXT_CHARACTERS = 280  # of a failure: the group's log keeps 300 bytes of it


def set_threads():
    """The slot's share of the CPUs; the same in every engine, since sums depend on it."""
    threads = thread_count()
    if _late.is_keras():
        from pyedt import _keras

        _keras.set_threads(threads)
        return threads
    import torch

    torch.set_num_threads(threads)
    return threads


def thread_count():
    try:
        return max(1, int(os.environ.get("OMP_NUM_THREADS", "1")))
    except ValueError:
        return 1


def device_class(device):
    """Two models of cards, or two CUDA libraries, round differently."""
    if device is None:
        return "cpu"
    import torch

    return "cuda-%s %s" % (torch.version.cuda, torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


def instruction_set():
    """The widest vectors of this processor, as torch names them."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as source:
        flags = next((line for line in source if line.startswith("flags")), "").split()
    return "AVX512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "DEFAULT"


def numeric_class(device="cpu"):
    """Engines of one class compute the same bits: instruction set, framework build, threads, device, and how an update of the
    weights is rounded and where its result lies (_update.py), which the version before did otherwise."""
    if _late.is_keras():
        import tensorflow

        return "%s %s tensorflow-%s python-%d.%d threads-%d %s" % (
            platform.machine(), instruction_set(), tensorflow.__version__, *sys.version_info[:2], thread_count(), device)
    import torch

    return "%s %s torch-%s python-%d.%d threads-%d by-slice %s" % (
        platform.machine(), torch.backends.cpu.get_cpu_capability(), torch.__version__, *sys.version_info[:2],
        thread_count(), device)


def step_back(nice):
    """To the priority of a worker, with the loader children and threads that are there already."""
    if nice > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PGRP, 0, nice)


_when_ready = None


def when_ready(function):
    """To be called once, when the first call is loaded."""
    global _when_ready
    _when_ready = function


def loaded():
    global _when_ready
    function, _when_ready = _when_ready, None
    if function is not None:
        function()


class SharedDirectoryLock:
    """Held while the datasets function runs: it may download into the working directory, and engines share that. The
    lock is on the directory itself, so it leaves no file."""

    def __enter__(self):
        self._fd = os.open(os.getcwd(), os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, exc_type, exc, trace):
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # what that function has forked, as a Manager's process, has the descriptor still
        os.close(self._fd)


def make_trainer(comm, call, job_seed, path, quiet=False):
    """Load the bundle and the data sets. Everything random in it is seeded, so that engines agree."""
    from pyedt import _bundle, _chance, _data, _trainer

    made = _trainer.Trainer
    if _late.is_keras():
        from pyedt import _keras, _keras_trainer

        made = _keras_trainer.Trainer
        _keras.seed_weights(job_seed)
    else:
        from pyedt import _device

        _device.stay_on_cpu()
    _chance.seed_all(job_seed)
    header, parts = _bundle.read(path)
    _chance.seed_all(job_seed)
    with SharedDirectoryLock():
        datasets = _data.make(parts["datasets"], lambda: _chance.seed_all(job_seed))
    return made(comm, call, header, parts, job_seed, datasets, _trainer.engine_device(), quiet)


def run_call(comm, call, job_seed, path):
    """One train() call in this engine; returns the event that ended it."""
    from pyedt import _trainer

    def connect(trainer):
        trainer.bind()
        return trainer

    def reload(old):
        old.unbind()
        return connect(make_trainer(comm, call, job_seed, path))

    comm.set_activity(_comm.LOADING)
    started = time.monotonic()
    trainer = make_trainer(comm, call, job_seed, path)
    comm.ready(trainer.header["metric_names"], **trainer.sizes())
    connect(trainer)
    loaded()
    print("Engine is ready for call %d: it has loaded for %.2f s" % (call, time.monotonic() - started), flush=True)
    comm.set_activity(_comm.READY)
    trainer, entry = _trainer.serve(trainer, reload)
    trainer.end()
    print("Engine leaves call %d: %d parameter updates in %d applied steps%s"
          % (call, trainer.updates, trainer.applied_steps, trainer.update_text()), flush=True)
    trainer.unbind()
    return entry


def failure(error):
    """Which other worker would fail alike: none, one on this host, each one."""
    from pyedt._bundle import Unfit
    from pyedt._loader import LoaderLost

    if isinstance(error, Unfit):
        return _comm.FAILED_HOST
    return _comm.FAILED_WORKER if isinstance(error, (_comm.CommError, LoaderLost, MemoryError)) else _comm.FAILED_USER_CODE


def is_users(path):
    """Whether a frame of that file is the user's: neither ours nor of an installed package."""
    return not path.startswith("<") and not any(part in path for part in ("/pyedt/", "/site-packages/", "/dist-packages/", "/__autograph_generated_file",
                                                                          os.path.dirname(os.__file__) + "/"))


def graphs_cause(text):
    """(cause, place) of what TensorFlow raises where it makes a graph of the user's code or calls a layer: its text is a trace of
    its own, with the cause within. None: another text."""
    if "in user code:" not in text and "Exception encountered when calling layer" not in text:
        return None
    causes = [line for line in re.findall(r"^ *([\w.]*(?:Error|Exception|Warning|Interrupt|Iteration|Exit): .+)$", text, re.M)
              if "Exception encountered when calling layer" not in line and not line.endswith(": in user code:")]
    places = [(file, line, name, code) for file, line, name, code in
              re.findall(r'^ *File "([^"\n]+)", line (\d+), in (\S+).*\n *(.+)$', text, re.M) if is_users(file)]
    return (causes or [text.split("Call arguments received")[0]])[-1], places


def cut(text, characters):
    """Where it does not fit, its whole words, and a sign that there were more."""
    if len(text) <= characters:
        return text
    words = text[:characters - 4].rpartition(" ")[0]
    return words + " ..." if len(words) > characters / 2 else text[:characters]


def failure_text(error):
    """One line, the cause first, then the innermost line of the user's: what `shoal why` shows. The whole trace is in the
    engine's stderr."""
    from pyedt._bundle import Unfit
    from pyedt._loader import DataSetFailed

    if isinstance(error, DataSetFailed):
        return error.said
    if isinstance(error, Unfit):
        return cut(str(error), TEXT_CHARACTERS)  # it is about the host, and no line of the user's is the cause
    last = traceback.format_exception_only(type(error), error)[-1].strip()
    places = [(frame.filename, frame.lineno, frame.name, frame.line or "")
              for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    found = graphs_cause(last)
    if found:
        last, places = found[0], found[1] or places
    last = " ".join(last.split())  # an end that has several lines would be taken for its last one
    if not places:
        return cut(last, TEXT_CHARACTERS)
    file, line, name, code = places[-1]
    place = " (%s, line %s, in %s: %s)" % (os.path.basename(file), line, name, code.strip()[:100])
    return cut(last, TEXT_CHARACTERS - len(place)) + place


def print_failure(error):
    """The whole trace. A host that takes no part is no failure of the job, whose log has this: a line says it."""
    from pyedt._bundle import Unfit

    if isinstance(error, Unfit):
        print("Engine takes no part on this host: %s" % error, file=sys.stderr, flush=True)
        return
    traceback.print_exception(type(error), error, error.__traceback__)
    sys.stderr.flush()


def main():
    """Serve the calls of one job in this process. The exit status."""
    from pyedt import _engine, _trainer  # _engine: this module, also where it runs as __main__
    if not os.environ.get("SHOAL_AGENT_SOCKET"):
        print("an engine is started by Shoal's agent; a script that runs alone needs none", file=sys.stderr)
        return 2
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    faulthandler.enable()  # a fatal signal in native code leaves the place in the log
    faulthandler.register(signal.SIGUSR1)  # and so does this one, of an engine that hangs
    set_threads()
    _engine.serves = True
    comm = _comm.Communicator(_comm.ENGINE, numeric_class(device_class(_trainer.engine_device())))
    try:
        return serve_calls(comm)
    except BaseException as error:  # sys.exit() in a user's function is a failure, too, and KeyboardInterrupt: no terminal is there
        print_failure(error)
        comm.failed(failure(error), failure_text(error))
        return 1
    finally:
        sys.stdout.flush()
        comm.close()


def serve_calls(comm):
    event = comm.wait_call()
    while event.event not in (_comm.RELEASED, _comm.STOPPED):
        if event.event == _comm.CALL:
            event = run_call(comm, event.call, event.job_seed, os.fsdecode(event.bundle_path))
        if event.event not in (_comm.RELEASED, _comm.STOPPED):
            event = comm.wait_call()
    if event.event == _comm.STOPPED:
        print("Engine stops: %s" % _comm.event_text(event.text), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
