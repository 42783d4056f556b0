"""What the engine server imports for a call before it forks engines, so that each of them need not (PROTOCOLS 13).

    driver: names in the pickle --> bundle's header --> server     before the first fork
    engine: what loading has imported ----------------> server     for the engines that come later

P1. Only modules of the interpreter's own environment (standard library, site-packages). A module of the user's may make
    tensors or draw numbers when it is imported: each engine imports it itself, under the job's seed.
P2. An import that starts a thread, opens a GPU or draws a number would make engines differ from those that imported for
    themselves. Then the server starts afresh, and preloads nothing any more.
P3. Only where a slot has one thread: numeric libraries size their pools when they are loaded, and the server loads with
    one."""

import gc
import importlib
import itertools
import json
import os
import pickletools
import random
import socket
import sys
import sysconfig
import time

CALL_POLL_SECONDS = 0.02
OPS_MAX = 1 << 20  # of a pickle: what it imports is named early, numbers in lists come without end
NAMES_MAX = 1024
CALL_SECONDS = 5  # the first engines are asked for while the driver still imports: so long its call is waited for
REPORT_BYTES_MAX = 128 * 1024  # one datagram
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def roots():
    paths = sysconfig.get_paths()
    return tuple({os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def shared(names):
    """Those that are loaded here from the interpreter's own environment (P1), in the order given."""
    below, found = roots(), []
    for name in names:
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if isinstance(origin, str) and origin.startswith(below) and not name.startswith(("pyedt", "__m")):
            found.append(name)
    return found[:NAMES_MAX]


def named_in(pickled):
    """Modules that loading the pickle will import: the strings in it that are names of loaded modules. One that is a
    name by accident costs its import, which has happened in this process too."""
    texts = (argument for _, argument, _ in itertools.islice(pickletools.genops(pickled), OPS_MAX)
             if isinstance(argument, str))
    return shared(dict.fromkeys(text for text in texts if text in sys.modules))


class Report:
    """An engine's end: says once what was imported since it was made."""

    def __init__(self, connection):
        self._connection, self._before = connection, set(sys.modules)

    def send(self):
        connection, self._connection = self._connection, None
        if connection is None:
            return
        names = shared([name for name in list(sys.modules) if name not in self._before])
        text = json.dumps(names).encode()
        try:
            if names and len(text) <= REPORT_BYTES_MAX:
                connection.send(text, socket.MSG_DONTWAIT)
        except OSError:
            pass  # the server is gone or busy: the next engine says it again
        connection.close()


def numbers_drawn():
    """The state of the generators that imports may draw from; torch's own is looked at in a child (untouched())."""
    import numpy as np
    from pyedt import _late

    torch = _late.framework()
    kind, keys, place = np.random.get_state()[:3]
    return random.getstate(), kind, keys.tobytes(), place, torch and torch.initial_seed()


def untouched():
    """Whether nobody drew from torch's generator since it was seeded. Asked in a child: the answer makes tensors."""
    from pyedt import _late

    if _late.is_keras():
        return True  # it draws when it runs, and it does not before an engine
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            import torch

            theirs, fresh = torch.default_generator, torch.Generator()
            fresh.manual_seed(theirs.initial_seed())
            status = 0 if torch.equal(theirs.get_state(), fresh.get_state()) else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


class Preloader:
    """The server's end."""

    def __init__(self, cannot_fork):
        self._cannot_fork = cannot_fork
        self.reports, self._engines_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._bundle = os.environ.get("SHOAL_CALL_BUNDLE", "")  # a link to the newest call's
        self._seen = None
        self._waited = False
        self.off = bool(os.environ.get("SHOAL_SERVER_PLAIN")) or any(
            os.environ.get(name) != "1" for name in THREAD_VARIABLES)

    def report(self):
        """In an engine just forked."""
        self.reports.close()
        return Report(self._engines_end)

    def on_report(self):
        """What is wrong now, or ''."""
        return self._load(json.loads(self.reports.recv(REPORT_BYTES_MAX + 1)))

    def wait_call(self):
        """Once, before the first fork: engines forked ahead of the call would each import what it names."""
        end = time.monotonic() + CALL_SECONDS
        while self._bundle and not self.off and not self._waited:
            self._waited = os.path.exists(self._bundle) or time.monotonic() > end
            time.sleep(0 if self._waited else CALL_POLL_SECONDS)

    def on_fork(self):
        """Before a fork: a call that has come since the last one. What is wrong now, or ''."""
        try:
            target = os.readlink(self._bundle)
            if self.off or target == self._seen:
                return ""
            self._seen = target
            from pyedt import _bundle

            with open(self._bundle, "rb") as source:
                names = _bundle.read_header(source, self._bundle).get("modules", [])
        except (OSError, ValueError):  # none yet, or damaged: an engine will say so
            return ""
        return self._load(names)

    def _load(self, names):
        names = [name for name in names if name not in sys.modules]
        if self.off or not names:
            return ""
        before, started = numbers_drawn(), time.monotonic()
        gc.disable()
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException:  # SystemExit, too: engines meet it where it counts
                break
            if not shared([name]):
                return "module %s is not of the environment here" % name
        gc.freeze()
        gc.enable()
        print("Engine server has preloaded %d modules of the call in %.1f s" % (len(names), time.monotonic() - started),
              flush=True)
        if self._cannot_fork():
            return self._cannot_fork()
        return "" if numbers_drawn() == before and untouched() else "an import has drawn random numbers"
