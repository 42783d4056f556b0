"""The engine server: imports the framework once, then forks an engine per slot in milliseconds (PROTOCOLS 13).

    runner --{fork: slot, worker: id, env: ...} and the slot's lock--> engine server --fork--> child --fork--> engine
    runner <--{forked: slot, worker: id, pid: n}----------------------------'      (exits; the runner is subreaper)

Messages are MessagePack after a head of three bytes: "e", the version, and the oldest version that can read it. Whoever
does not know a field passes over it.

S1. The server makes no tensor and no CUDA call; before each fork it has exactly one task and no /dev/nvidia* open.
    Otherwise the engine is started by exec: slower, never wrong. What a call's bundle imports is preloaded (_preload).
S2. An engine is a session of its own and belongs to the runner: it outlives the server, and dies with the runner.
S3. The slot's lock stays open in the engine and in everything it starts.
S4. The server imports at nice 0, and an engine loads at nice 0: a start waits for them. An engine that is ready steps
    back to the priority of a worker."""

import array
import ctypes
import faulthandler
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback

import msgpack

COMMAND_BYTES_MAX = 256 * 1024
KIND, VERSION = ord("e"), 1
PR_SET_PDEATHSIG = 1
OWN_VARIABLES = ("SHOAL_WORKER_ID", "SHOAL_SLOT", "SHOAL_TOKEN")


def forget_worker():
    """The server was started with the first engine's environment. The kernel shows the environment of the exec for every
    process forked from it, so the marks of a worker must be gone before the first fork."""
    if any(name in os.environ for name in OWN_VARIABLES):
        environment = {k: v for k, v in os.environ.items() if k not in OWN_VARIABLES}
        os.execve(sys.executable, [sys.executable, "-m", "pyedt.engine_server"], environment)


def import_framework():
    """With one thread, so that no pool starts. What is there then stays, so the collector need neither look at it while it
    grows nor touch (and so copy) it in engines."""
    gc.disable()
    wanted = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    os.environ.update({name: "1" for name in wanted})
    try:
        load_modules()
    finally:
        for name, value in wanted.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        gc.freeze()
        gc.enable()


def load_modules():
    import cloudpickle  # noqa: F401
    from pyedt import _late

    if _late.is_keras():
        import tensorflow  # noqa: F401
        from pyedt import (_bundle, _chance, _comm, _data, _engine, _keras, _keras_trainer, _loader, _preload,  # noqa: F401
                           _records, _trainer, _travel)
    else:
        import torch
        from pyedt import (_batches, _bundle, _chance, _comm, _compute, _data, _device, _dynamo, _engine, _loader,  # noqa: F401
                           _optimizers, _preload, _records, _state, _trainer, _travel)

        _dynamo.wait()
        torch.set_num_threads(1)


def cannot_fork():
    """Why an engine may not be forked from here, or ''."""
    tasks = os.listdir("/proc/self/task")
    if len(tasks) != 1:
        return "the server has %d threads" % len(tasks)
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            return "the server holds %s" % target
    return ""


def pack(fields):
    return bytes((KIND, VERSION, 1)) + msgpack.packb(dict(sorted(fields.items())), use_bin_type=True,
                                                     unicode_errors="surrogateescape")


def unpack(data):
    """The fields. Environments may hold any bytes; they come and go as the kernel's do."""
    if len(data) < 4 or data[0] != KIND:
        raise ValueError("%d bytes that are no message to an engine server" % len(data))
    if data[2] > VERSION:
        raise ValueError("a message of version %d, which asks for a reader of version %d" % (data[1], data[2]))
    return msgpack.unpackb(data[3:], raw=False, unicode_errors="surrogateescape")


def receive(connection):
    """(command, lock descriptor or None); (None, None) when the runner is gone."""
    data, ancillary, _, _ = connection.recvmsg(COMMAND_BYTES_MAX, socket.CMSG_SPACE(4 * 4))
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[:len(content) - len(content) % 4])
    if not data:
        return None, None
    return unpack(data), descriptors[0] if descriptors else None


def become_engine(command, lock, direct, preloader, changed):
    """In the new process: session, logs, directory, environment, then the engine. Never returns."""
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the parent is the runner by now
        replace_streams(command["stdout"], command["stderr"])
        os.environ.clear()
        os.environ.update(command["env"])
        os.environ.update(changed)
        os.chdir(command["cwd"])
        os.environ["PWD"] = command["cwd"]
        if lock is not None:
            os.set_inheritable(lock, True)
        nice = command.get("nice", 5)
        from pyedt import _engine

        if not direct:
            _engine.step_back(nice)
            os.execve(sys.executable, [sys.executable, "-m", "pyedt._engine"], dict(os.environ))
        report = preloader.report()
        _engine.when_ready(lambda: (_engine.step_back(nice), report.send()))
        status = _engine.main()
    except BaseException:  # nothing of the server may run in an engine
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def replace_streams(stdout, stderr):
    for path, target in ((stdout, 1), (stderr, 2)):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, target)
        os.close(fd)
    sys.stdout.reconfigure(line_buffering=True)  # logs are followed live
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def fork_engine(command, lock, connection, preloader, changed):
    """Fork twice, so that the engine's parent is gone and it falls to the runner. Returns the engine's pid. The engine
    waits until its pid is known to the runner: an exit before that would be nobody's."""
    reason = cannot_fork()
    if reason:
        print("engine server: %s, so the engine is started afresh" % reason, file=sys.stderr, flush=True)
    sys.stdout.flush()
    pid_out, pid_in = os.pipe()
    go_out, go_in = os.pipe()
    child = os.fork()
    if child == 0:
        engine = os.fork()
        if engine:
            os.write(pid_in, b"%d" % engine)
            os._exit(0)
        connection.close()
        for fd in (pid_out, pid_in, go_in):
            os.close(fd)
        os.read(go_out, 1)
        os.close(go_out)
        become_engine(command, lock, not reason, preloader, changed)
    os.close(pid_in)
    os.close(go_out)
    text = os.read(pid_out, 32)
    os.close(pid_out)
    os.waitpid(child, 0)
    if not text:
        os.close(go_in)
        raise OSError("the second fork failed; raise the process limit")
    return int(text), go_in


def start_afresh(connection, reason):
    """As after a start by the runner, but for the preloading. Commands that came wait in the socket."""
    print("engine server: %s, so it starts afresh and leaves imports to the engines" % reason, file=sys.stderr, flush=True)
    connection.set_inheritable(True)
    os.environ["SHOAL_SERVER_PLAIN"] = "1"
    os.execve(sys.executable, [sys.executable, "-m", "pyedt.engine_server"], dict(os.environ))


def wait_command(connection, preloader):
    """Until a command is there; meanwhile, what engines report is imported for those that come later."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(preloader.reports, select.POLLIN)
    trouble = preloader.on_fork()
    while not trouble:
        readable = [fd for fd, _ in poll.poll()]
        if preloader.reports.fileno() in readable:
            trouble = preloader.on_report()
        elif connection.fileno() in readable:
            preloader.wait_call()
            trouble = preloader.on_fork()
            break
    if trouble:
        start_afresh(connection, trouble)


def serve(connection, environment):
    """`environment`: before anything was imported. What imports add to it, engines have, too."""
    from pyedt import _preload

    preloader = _preload.Preloader(cannot_fork)
    while True:
        wait_command(connection, preloader)
        command, lock = receive(connection)
        if command is None:
            return
        answer, go = {"worker": command.get("worker", 0)}, None
        changed = {name: value for name, value in os.environ.items() if environment.get(name) != value}
        try:
            pid, go = fork_engine(command, lock, connection, preloader, changed)
            answer.update(forked=command["fork"], pid=pid)
        except Exception as error:
            answer["error"] = "%s: %s" % (type(error).__name__, error)
        finally:
            if lock is not None:
                os.close(lock)  # the engine's copy is the lock
        connection.send(pack(answer))
        if go is not None:
            os.close(go)


def main():
    forget_worker()
    connection = socket.socket(fileno=int(os.environ["SHOAL_SERVER_FD"]))
    connection.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)  # for its engines: who looks for one that hangs need not tell them apart
    environment = dict(os.environ)
    started = time.monotonic()
    try:
        import_framework()
        print("Engine server has loaded the framework in %.1f s" % (time.monotonic() - started), flush=True)
    except Exception as error:  # each engine meets it, and ends with its text, which reaches the user
        print("Engine server has no framework (%s: %s)" % (type(error).__name__, error), flush=True)
        os.environ["SHOAL_SERVER_PLAIN"] = "1"
    serve(connection, environment)


if __name__ == "__main__":
    main()
