"""A warm interpreter: it comes up as `python main.py` would, waits, and what is forked from it becomes main.py (node/runner/warm.h).

The server is this file up to `load()`, which returns only in the process of a script. What is imported here is there in every
fresh interpreter, too, so that a script finds the modules that it would find, and can have ones of its own of any name."""

import _imp
import _signal
import builtins
import posix
import sys
from _frozen_importlib import ModuleSpec

LOG_FD = 4


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
            launcher.write("starts cold, though warm was asked for: %s\n" % reason)
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


def set_environment(pairs):
    os = sys.modules["os"]
    variables = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
    for name in list(os.environb):
        del os.environb[name]
    for name, value in variables.items():
        os.environb[name] = value
    posix.environ.clear()
    posix.environ.update(variables)


def set_path(python_path, rest, main):
    """As site and the interpreter make it: absolute, each folder once, and the script's own folder first."""
    path = sys.modules["os"].path
    found, known = [], set()
    for entry in python_path + rest:
        entry = path.abspath(entry)
        if entry not in known:
            known.add(entry)
            found.append(entry)
    if not getattr(sys.flags, "safe_path", False):
        found.insert(0, path.dirname(path.realpath(main)))
    sys.path[:] = found


def set_main(argv):
    fresh = type(sys)("__main__")
    fresh.__annotations__ = {}
    fresh.__builtins__ = builtins
    sys.modules["__main__"] = fresh
    sys.argv[:] = argv[1:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = argv


def main():
    folder = sys.path[0] if not getattr(sys.flags, "safe_path", False) else sys.argv[0].rpartition("/")[0]
    rest = [entry for entry in sys.path if entry != folder]
    sys.path_importer_cache.pop(folder, None)
    for stream in 1, 2:  # they were pipes while sys.stdout was made, as those of a script will be
        posix.dup2(LOG_FD, stream)
    posix.close(LOG_FD)
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)  # a runner's processes ignore it
    names = {name.partition(".")[0] for name in sys.modules} | {"sitecustomize", "usercustomize"}
    posix.putenv("SHOAL_WARM_WATCH", ":".join([sys.executable, *rest]))
    argv, pairs = load(folder)
    decode = sys.modules["os"].fsdecode
    words = [decode(word) for word in argv]
    python_path = []
    for pair in pairs:
        if pair.startswith(b"PYTHONPATH="):
            python_path = entries(decode(pair[11:]))
    found = shadowing(python_path, names)
    if found:
        start_cold(argv, pairs, "%s would be imported while the interpreter starts" % found)
    set_environment(pairs)
    set_path(python_path, rest, words[1])
    set_main(words)


main()
raise SystemError("the script begins where this exception arrives")
