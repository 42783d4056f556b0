"""A warm interpreter: it comes up as `python main.py` would, waits, and what is forked from it becomes main.py (node/runner/warm.h).

The server is this file up to `load()`, which returns only in the process of a script. What is imported here is there in every
fresh interpreter, too, so that a script finds the modules that it would find, and can have ones of its own of any name. With
SHOAL_WARM_PATH the server imports what an engine server would before it waits: then a script finds that loaded, too, and one that
has a module of its own of such a name starts afresh."""

import _imp
import _signal
import builtins
import posix
import sys
from _frozen_importlib import ModuleSpec

SOCKET_FD, LOG_FD, FDS_MAX = 3, 4, 4096
COLD = "starts cold, though warm was asked for" if "SHOAL_WARM_PATH" not in sys.modules["os"].environ else "starts cold"


def entries(text):
    """As the interpreter splits PYTHONPATH."""
    return text.split(":") if text else []


def load(folder):
    """Serves. In a process that is to be a script: returns (argv, environment), as bytes."""
    spec = ModuleSpec("_shoal_warm", None, origin=folder + "/libshoal-warm.so")
    try:
        _imp.create_dynamic(spec)
    except ImportError:
        if not hasattr(sys, "_shoal_argv"):
            raise
    argv, env = sys._shoal_argv, sys._shoal_env
    del sys._shoal_argv, sys._shoal_env
    return argv.split(b"\0")[:-1], env.split(b"\0")[:-1]


def start_cold(argv, pairs, reason):
    """A fresh interpreter would not be as this one: it is started."""
    variables = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
    try:
        with open(variables[b"LOG_DIR"] + b"/launcher", "a") as launcher:
            launcher.write("%s: %s\n" % (COLD, reason))
    except (KeyError, OSError):
        pass
    posix.execve(argv[0], argv, variables)


def shadowing(folders, names):
    """A file in `folders` that a fresh interpreter would import in place of one that is loaded here, or ''."""
    for folder in folders:
        try:
            found = posix.listdir(folder)
        except OSError:
            continue
        for name in found:
            if name.partition(".")[0] in names and name != "__pycache__":
                return folder + "/" + name
    return ""


def imported_from(folders, names):
    """A module in `folders`, where it would be found first, whose name is that of one that is loaded here, or ''."""
    suffixes = (".py", ".pyc", *_imp.extension_suffixes())
    is_file = sys.modules["os"].path.isfile
    for folder in folders:
        try:
            found = posix.listdir(folder)
        except OSError:
            continue
        for name in found:
            path = folder + "/" + name
            if name.partition(".")[0] in names and (name.endswith(suffixes) or is_file(path + "/__init__.py")):
                return path
    return ""


def close_files():
    """A descriptor that is closed under its owner would become another's: what is still open is no server's."""
    import gc

    gc.unfreeze()
    folders = getattr(sys.modules.get("importlib.metadata"), "FastPath", None)
    if hasattr(getattr(folders, "__new__", None), "cache_clear"):
        folders.__new__.cache_clear()  # it has the library's zip open
    gc.collect()
    gc.freeze()
    mine = (0, 1, 2, SOCKET_FD)
    for fd in posix.listdir("/proc/self/fd"):
        try:
            target = posix.readlink("/proc/self/fd/" + fd) if int(fd) not in mine else "/proc/"
        except OSError:
            continue  # it was the list's own
        if not target.startswith("/proc/"):
            raise SystemExit("warm python: what was imported holds %s open, so it cannot wait" % target)


def load_framework(path, rest):
    """As an engine server does (W5). Returns the names that a script's own modules may not have, and the variables that were set
    by what was imported: whoever is forked has them, as if it had imported the same."""
    sys.path[:] = path + rest
    import time

    environment = sys.modules["os"].environb
    before, started = dict(environment), time.monotonic()
    from pyedt import engine_server

    engine_server.import_framework()
    close_files()
    posix.write(2, b"warm python: has loaded the framework in %.1f s\n" % (time.monotonic() - started))
    added = {name: value for name, value in environment.items() if before.get(name) != value}
    for name in added:  # W1 compares this environment with that of a start
        del environment[name]
    environment.update({name: before[name] for name in added if name in before})
    return {name.partition(".")[0] for name in sys.modules} - {"__main__", "__mp_main__"}, added


def renew_chance():
    """What modules drew from the system when they were loaded is drawn anew; `random` does so itself at a fork."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = posix.urandom(32)


def set_environment(pairs, added):
    os = sys.modules["os"]
    variables = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
    variables.update({name: value for name, value in added.items() if name not in variables})
    for name in list(os.environb):
        del os.environb[name]
    for name, value in variables.items():
        os.environb[name] = value
    posix.environ.clear()
    posix.environ.update(variables)
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # found anew: TMPDIR is the job's own


def set_path(python_path, rest, own):
    """As site and the interpreter make it: absolute, each folder once, and the script's own folder first."""
    path = sys.modules["os"].path
    found, known = [], set()
    for entry in python_path + rest:
        entry = path.abspath(entry)
        if entry not in known:
            known.add(entry)
            found.append(entry)
    if not getattr(sys.flags, "safe_path", False):
        found.insert(0, own)
    sys.path[:] = found


def set_main(argv, words):
    fresh = type(sys)("__main__")
    fresh.__annotations__ = {}
    fresh.__builtins__ = builtins
    sys.modules["__main__"] = fresh
    sys.argv[:] = words
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv


def watched(path, rest):
    """What would make the next server another one: the program, and every folder that was searched, or would be were it there."""
    user = getattr(sys.modules.get("site"), "USER_SITE", None)
    return [sys.executable, *rest, *path, *([user] if user and user not in rest else [])]


def become(argv, pairs, loaded):
    """The rest of what a fresh interpreter would have done; `loaded`: (folder of this file, path, rest, names, framework's names, its variables)."""
    folder, path, rest, names, framework, added = loaded
    os = sys.modules["os"]
    words = [os.fsdecode(word) for word in argv]
    python_path = []
    for pair in pairs:
        if pair.startswith(b"PYTHONPATH="):
            python_path = entries(os.fsdecode(pair[11:]))
    module = words[1] == "-m"
    here = posix.getcwd()
    own = here if module else os.path.dirname(os.path.realpath(words[1]))
    found = shadowing(python_path, names)
    if found:
        start_cold(argv, pairs, "%s would be imported while the interpreter starts" % found)
    if framework:
        if [entry for entry in python_path if entry != here] != path:
            start_cold(argv, pairs, "PYTHONPATH is another one than that of the interpreter that waits")
        found = imported_from({own, here}, framework)
        if found:
            start_cold(argv, pairs, "%s would be imported in place of a module that is loaded in the interpreter that waits" % found)
        renew_chance()
    set_environment(pairs, added)
    set_path(python_path, rest, own)
    set_main(words, [folder + "/warm_engine.py"] if module else words[1:])


def main():
    folder = sys.path[0] if not getattr(sys.flags, "safe_path", False) else sys.argv[0].rpartition("/")[0]
    rest = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    for stream in 1, 2:  # they were pipes while sys.stdout was made, as those of a script will be
        posix.dup2(LOG_FD, stream)
    posix.closerange(LOG_FD, FDS_MAX)  # its own log, and what it has inherited
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)  # a runner's processes ignore it
    names = {name.partition(".")[0] for name in sys.modules} | {"sitecustomize", "usercustomize"}
    environment = sys.modules["os"].environ
    path, framework = entries(environment.get("SHOAL_WARM_PATH", "")), set()
    added = {}
    if "SHOAL_WARM_PATH" in environment:
        framework, added = load_framework(path, rest)
        posix.putenv("SHOAL_WARM_ENGINE", folder + "/warm_engine.py")
    posix.putenv("SHOAL_WARM_WATCH", ":".join(watched(path, rest)))
    argv, pairs = load(folder)
    become(argv, pairs, (folder, path, rest, names, framework, added))


main()
raise SystemError("the script begins where this exception arrives")
