"""A service's worker: `python -m pyedt.kernel_host`, in the folder of the model's package.

    agent --starts--> this process, the watcher --starts--> the kernel: user code, and the link (_kernel_serve)
      |                  | listens on SHOAL_KERNEL_SOCKET         | inherits the listening socket, accepts when it is ready
      '------------------'----------- connects -------------------'

The kernel is an interpreter of its own in which the user's file is the main program; a kernel in C is loaded into it (_kernel_c);
where the package has no kernel file, the model's file says what loads it (_kernel_files).

H1. The watcher ends when the kernel has: with 0 if that was told to stop, else with 1 and a last line that says why.
H2. Who fails before he is ready is told to the agent as ["failed", text]: the last line of the user's own exception, if any.
H3. A time-out ends the kernel: from launch to run() `connection_timeout`, for on_kernel_start `kernel_start_timeout` (none),
    for one batch ten times `task_execution_timeout` and at least half an hour, for its end 30 s.
H4. More memory than the profile's `mem_limit` ends the kernel (_kernel_memory)."""

import sys

if __name__ == "__main__" and sys.path and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the package's folder: a file of it may have the name of a module that is imported here

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import tempfile
import time
import uuid

from pyedt import _kernel_link, _kernel_memory, _kernel_runtime, _kernel_serve
from pyedt._kernel_serve import Unusable

CONNECT_S, STOP_S, TELL_S, HANG_S_MIN = 90.0, 30.0, 5.0, 1800.0
VERSION = "2.3.7"
WORK = "${REDHARE_TOP}/work"  # a profile's working_directory that nobody has changed
# What neither package nor profile may change; so is REDHARE_*. Of the last two: where an agent has said which card it is.
KEPT = ("TASK_JOB_ID", "MSD_POD_NAME")
CARDS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


# ---- what the package and the profile say ----------------------------------------------------------------------------


def read_model(folder):
    """(the package's root, what model.json says; {} where there is none)."""
    root = folder
    if not os.path.isfile(os.path.join(root, "model.json")):
        inner = [name for name in sorted(os.listdir(root)) if os.path.isfile(os.path.join(root, name, "model.json"))]
        root = os.path.join(root, inner[0]) if len(inner) == 1 else root
    path = os.path.join(root, "model.json")
    if not os.path.isfile(path):
        return root, {}
    try:
        with open(path, encoding="utf-8-sig") as file:
            model = json.load(file)
    except (ValueError, RecursionError) as error:
        raise Unusable("model.json is invalid: %s" % error) from None
    if not isinstance(model, dict):
        raise Unusable("model.json is invalid: it is no object")
    for key in ("name", "kernel_path", "weight_path", "runtime", "tag"):
        if not isinstance(model.get(key, ""), str):
            raise Unusable("model.json is invalid: %s" % key)
    for key, first in (("attributes", "key"), ("mk_environments", "name")):
        pairs = model.get(key) or []
        if not isinstance(pairs, list) or not all(isinstance(one, dict) and isinstance(one.get(first), str)
                                                  and isinstance(one.get("value"), str) for one in pairs):
            raise Unusable("model.json is invalid: %s" % key)
        model[key] = pairs
    return root, model


def kernel_file(root, model):
    """Its path, or None where the package brings no code."""
    name = model.get("kernel_path") or ""
    if not name:
        return None
    path = os.path.normpath(os.path.join(root, name))
    if os.path.isabs(name) or not path.startswith(os.path.normpath(root) + os.sep) or not os.path.isfile(path):
        raise Unusable("Kernel file %s does not exist." % name)
    return path


def json_object(text, what):
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Unusable("%s is invalid: %s" % (what, error)) from None
    if not isinstance(value, dict):
        raise Unusable("%s is invalid: it is no object" % what)
    return value


def profile_number(profile, names, default):
    """The first of `names` ("policy.task_batch_size") that the profile has."""
    for name in names:
        value = profile
        for key in name.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Unusable("the profile's %s is no number" % name)
        return value
    return default


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:  # the kernel's real-time ones have no names
        return "SIGRT"


class Limits:
    """What the profile allows, in seconds; None: no limit."""

    def __init__(self, profile):
        self.batch = int(profile_number(profile, ("policy.task_batch_size", "task_batch_size", "batch"), 1))
        if not 1 <= self.batch <= 65536:
            raise Unusable("the profile's task_batch_size is %d; it lies from 1 to 65536" % self.batch)
        task_s = profile_number(profile, ("policy.task_execution_timeout", "task_execution_timeout", "timeout"), 60)
        hang_s = profile_number(profile, ("kernel.hang_timeout", "hang_timeout"),
                                max(10 * task_s, HANG_S_MIN) if task_s > 0 else -1)
        connect_s = profile_number(profile, ("kernel.connection_timeout", "connection_timeout"), CONNECT_S)
        start_s = profile_number(profile, ("kernel.kernel_start_timeout", "kernel_start_timeout"), -1)
        self.memory = _kernel_memory.limit_of(profile)  # in bytes
        self._of = {_kernel_serve.LAUNCHED: connect_s, _kernel_serve.CALLED: start_s, _kernel_serve.READY: hang_s,
                    _kernel_serve.STOPPING: STOP_S}

    def of(self, phase):
        limit = self._of[phase]
        return limit if limit > 0 else None

    def shortest(self):
        return min(limit for limit in self._of.values() if limit > 0)


def of_kernel(profile, key, default):
    kernel = profile.get("kernel")
    value = kernel.get(key) if isinstance(kernel, dict) else None
    return value if isinstance(value, str) and value else default


def enter_folder(profile, env):
    """The profile's umask and working_directory. The default folder belongs to an installation of WMLA's: where there is none, a
    kernel begins in its package."""
    try:
        os.umask(int(of_kernel(profile, "umask", "022"), 8))
    except ValueError:
        raise Unusable("the profile's kernel.umask is no octal number") from None
    said = of_kernel(profile, "working_directory", WORK)
    folder = _kernel_runtime.expand(said, env)
    if said == WORK and not os.access(folder, os.W_OK | os.X_OK):
        return
    try:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        raise Unusable("the profile's kernel.working_directory %s cannot be used: %s" % (folder, error.strerror)) from None


def environment_of(root, model, profile, given, runtime=None):
    """What the kernel's process sees (spec 6.2): of the runtime's, the model's and the profile's own variables a later one wins."""
    env = dict(given)
    job = env.setdefault("TASK_JOB_ID", "edi-%s" % model["name"])
    env.setdefault("MSD_POD_NAME", "%s-task12n-%s" % (job, uuid.uuid4().hex[:5]))
    env.setdefault("REDHARE_TOP", "/opt/wml-edi")
    env.setdefault("REDHARE_VERSION", VERSION)
    if not env.get("HOME") or env["HOME"] == "/":
        env["HOME"] = os.getcwd()
    env.setdefault("NVIDIA_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES", ""))
    libraries = os.pathsep.join(filter(None, (root, env.get("LD_LIBRARY_PATH"))))
    env.update(REDHARE_MODEL_NAME=model["name"], REDHARE_MODEL_PATH=root, PWD=os.getcwd(), HOSTNAME=env["MSD_POD_NAME"],
               REDHARE_MODEL_CREATOR=str(model.get("creator") or env.get("REDHARE_MODEL_CREATOR", "")),
               LD_LIBRARY_PATH=libraries, REDHARE_LD_LIBRARY_PATH=libraries, PYTHONUNBUFFERED="1")
    if runtime is not None:
        runtime.enter(env)
    kernel = profile.get("kernel")
    pairs = list(runtime.envs if runtime is not None else []) + list(model.get("mk_environments") or [])
    pairs += list((kernel.get("envs") or []) if isinstance(kernel, dict) else [])
    for pair in pairs:
        name, value = pair.get("name"), pair.get("value")
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name or "\0" in name + value:
            raise Unusable("an environment variable %r is no name and text" % (name,))
        if not name.startswith(("REDHARE_", "SHOAL_")) and name not in KEPT and not (name in CARDS and CARDS[0] in given):
            env[name] = _kernel_runtime.expand(value, env)
    return env


# ---- the watcher -----------------------------------------------------------------------------------------------------


def shared_page():
    """A file without a name, of one page."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("shoal-kernel")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _kernel_serve.SHARED_BYTES)
    return descriptor


class Watcher:
    def __init__(self, listener):
        self._listener, self._child, self._stop_at, self._killed = listener, None, None, ""
        self._runtime = ""
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number, _):
        if number != signal.SIGCHLD and self._stop_at is None:
            self._stop_at = time.monotonic() + STOP_S
            if self._child is not None:
                self._child.send_signal(signal.SIGTERM)

    def launch(self, env, runtime):
        words = runtime.command(sys.executable, ["-m", "pyedt.kernel_host", "--kernel"], env)
        self._runtime = runtime.name
        descriptor = shared_page()
        self.shared = _kernel_serve.Shared(descriptor)
        self.shared.set_phase(_kernel_serve.LAUNCHED)
        for passed in (descriptor, self._listener.fileno()):
            os.set_inheritable(passed, True)
        env = dict(env, SHOAL_KERNEL_SHARED=str(descriptor), SHOAL_KERNEL_LISTENER=str(self._listener.fileno()))
        # What this process inherited (the slot's lock) the kernel has, too.
        self._child = subprocess.Popen(words, env=env, close_fds=False, stdin=subprocess.DEVNULL)
        os.close(descriptor)
        if self._stop_at is not None:
            self._child.send_signal(signal.SIGTERM)

    def wait(self, limits):
        """Until the kernel has ended: '' where it was told to, else why it did."""
        while self._child.poll() is None:
            left = self._left(limits)
            if left <= 0:
                self._child.kill()
                self._child.wait()
                break
            if limits.memory is not None:
                left = min(left, _kernel_memory.LOOK_S)
                used = _kernel_memory.used_by(self._child.pid, limits.memory)
                if used > limits.memory:
                    self._killed = "it used %d MB of memory; mem_limit of the profile's resources allows %d" % (
                        used >> 20, limits.memory >> 20)
                    self._child.kill()
                    self._child.wait()
                    break
            select.select([self._woken], [], [], left)
            try:
                os.read(self._woken, 4096)
            except BlockingIOError:
                pass
        return self._why(self._child.returncode)

    def _left(self, limits):
        """Seconds until there is something to look at; 0: the kernel's time is over, and it is said why."""
        now, (phase, since_ns) = time.monotonic(), self.shared.state()
        left, why = limits.shortest(), ""
        if self._stop_at is not None and self._stop_at - now < left:
            left, why = self._stop_at - now, "it did not end within %g s of being told to" % STOP_S
        limit = limits.of(phase)
        if left > 0 and limit is not None and since_ns > 0 and since_ns / 1e9 + limit - now < left:
            left = since_ns / 1e9 + limit - now
            why = {
                _kernel_serve.LAUNCHED: "it did not call run() within %g s (connection_timeout)" % limit,
                _kernel_serve.CALLED: "on_kernel_start did not return within %g s (kernel_start_timeout)" % limit,
                _kernel_serve.READY: "a batch ran longer than %g s: it hangs" % limit,
                _kernel_serve.STOPPING: "on_kernel_shutdown did not return within %g s" % limit}[phase]
        if left > 0:
            return max(left, 0.001)
        self._killed = why
        return left

    def _why(self, status):
        phase, reason = self.shared.state()[0], self.shared.reason()
        if self._killed and status == -signal.SIGKILL:
            return self._killed
        if status == 0 and phase == _kernel_serve.STOPPING or self._stop_at is not None:
            return ""
        if reason:
            return reason
        if status < 0:
            return "the kernel's process ended by signal %d (%s)" % (-status, signal_name(-status))
        if status == _kernel_runtime.PRE_EXEC_FAILED and phase == _kernel_serve.LAUNCHED:
            return "pre_exec of runtime %s failed" % self._runtime
        return "the kernel's process ended with code %d%s" % (
            status, " before run() was called" if phase == _kernel_serve.LAUNCHED else "")

    def is_ready(self):
        return self.shared.state()[0] >= _kernel_serve.READY


def tell(listener, text):
    """H2: the first agent that is there, or comes within a short time, hears why."""
    until = time.monotonic() + TELL_S
    while True:
        left = until - time.monotonic()
        if left <= 0:
            return
        listener.settimeout(left)
        try:
            stream = listener.accept()[0]
        except (socket.timeout, OSError):
            return
        stream.settimeout(left)
        connection = _kernel_link.Connection(stream)
        told = connection.send_frame("failed", text)
        connection.close()
        if told:
            return


def read_document(path):
    """What the service's group says of model and profile; {} where no agent wrote it down."""
    if not path or not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json_object(file.read(), "the service's document")


def what_is_served(environ):
    """(root, model, profile, limits) of the package in this folder."""
    path = environ.get("SHOAL_SERVICE_DOCUMENT")
    document = read_document(path)
    profile = dict(document.get("profile") or {}, **json_object(environ.get("SHOAL_SERVICE_PROFILE"), "the profile"))
    root, model = read_model(environ.get("SHOAL_KERNEL_PACKAGE") or os.getcwd())
    model.update(document.get("model") or {})
    if path:  # as the API shows it: with creator, times and address
        model.update(read_document(os.path.join(os.path.dirname(path), "model.json")))
    model.update(json_object(environ.get("SHOAL_MODEL_DESCRIPTION"), "the model's description"))
    model["name"] = environ.get("SHOAL_SERVICE") or model.get("name") or "model"
    model["model_path"] = root
    for key in ("attributes", "mk_environments"):
        model[key] = model.get(key) or []
    return root, model, profile, Limits(profile)


def watch():
    path = os.environ.get("SHOAL_KERNEL_SOCKET")
    if not path:
        sys.exit("kernel: SHOAL_KERNEL_SOCKET is not set: an agent starts this (shoal service deploy)")
    listener = _kernel_link.listen(path)
    why = ""
    ready = False
    try:
        root, model, profile, limits = what_is_served(os.environ)
        kernel_file(root, model)
        watcher = Watcher(listener)
        runtime = _kernel_runtime.find(model.get("runtime") or "", os.environ.get("SHOAL_SERVICE_DOCUMENT"))
        env = environment_of(root, model, profile, os.environ, runtime)
        env["SHOAL_KERNEL_PACKAGE"] = os.getcwd()
        enter_folder(profile, env)
        watcher.launch(dict(env, PWD=os.getcwd()), runtime)
        why = watcher.wait(limits)
        ready = watcher.is_ready()
    except Unusable as error:
        why = str(error)
    if why:
        print("kernel: " + why, file=sys.stderr, flush=True)
        if not ready:
            tell(listener, why)
        sys.exit(1)


# ---- the kernel ------------------------------------------------------------------------------------------------------


def die_with_parent():
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        pass  # the runner kills what is left behind


def make_server():
    descriptor, listening = int(os.environ.pop("SHOAL_KERNEL_SHARED")), int(os.environ.pop("SHOAL_KERNEL_LISTENER"))
    shared = _kernel_serve.Shared(descriptor)
    os.close(descriptor)
    listener = socket.socket(fileno=listening)
    os.set_inheritable(listening, False)
    root, model, profile, limits = what_is_served(os.environ)
    server = _kernel_serve.Server(listener, shared, limits.batch, os.environ["MSD_POD_NAME"])
    server.description = model
    os.environ.pop("SHOAL_KERNEL_PACKAGE", None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    sys.path.append(root)  # only now: it may hold files that have the names of Python's own
    return server, root, model


class CardsKept(type(os.environ)):
    """Kernels of WMLA name the card 0 themselves; theirs is not the host's first one. What names cards by numbers changes nothing."""

    def __setitem__(self, name, value):
        if name not in CARDS or name not in self or not str(value).replace(",", "").strip().isdigit():
            super().__setitem__(name, value)


def run_user_file(server, path):
    """The user's file as the main program."""
    os.environ.__class__ = CardsKept
    import redhareapi  # noqa: F401  the package may bring a stand-in of this name, for laptops

    sys.path.insert(0, os.path.dirname(path))
    sys.argv[:] = [path]
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        server.fail(error)
        raise


def become_kernel():
    die_with_parent()
    server, root, model = make_server()
    _kernel_serve.served = server
    path = kernel_file(root, model)
    if path is not None and not path.endswith(".so"):
        run_user_file(server, path)
        return
    made = []
    try:
        if path is not None:
            from pyedt import _kernel_c

            _kernel_c.serve(server, path)
            return
        from pyedt import _kernel_files

        server.start(lambda: made.append(_kernel_files.load(root, model)))
    except Unusable:
        sys.exit(1)  # the watcher says it
    server.run(server.ready_as(made[0].platform, made[0].inputs, made[0].outputs), made[0].invoke)


if __name__ == "__main__":
    if sys.argv[1:] == ["--kernel"]:
        become_kernel()
    else:
        watch()
