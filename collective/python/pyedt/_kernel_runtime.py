"""What a kernel is started with: the runtime that its model names.

The runtimes that every node has are this host's own Python. One that an administrator made is a JSON object beside the
service's document, written there by the agent: an interpreter, a shell command before it, an environment. Where the model
names one that is not there, its kernel does not start."""

import json
import os
import platform
import shutil

from pyedt._kernel_serve import Unusable

OURS = ("", "cpp", "python")
# A command that ends the shell itself has failed, too: only the kernel's own start is no such end.
SCRIPT = 'trap "exit 126" EXIT; eval "$1" || exit; trap - EXIT; shift; exec "$@"'
PRE_EXEC_FAILED = 126


def expand(text, env):
    """The two names of WMLA's own folders, wherever a profile or a runtime has them."""
    for name in ("REDHARE_TOP", "REDHARE_VERSION"):
        text = text.replace("${%s}" % name, env.get(name, ""))
    return text


class Runtime:
    """`name` as the model says it; what is empty is as on every node."""

    def __init__(self, name, said):
        self.name = name
        self.envs = [pair for pair in said.get("envs") or [] if isinstance(pair, dict)]
        self._said = said

    def _text(self, key, env):
        value = self._said.get(key)
        return expand(value, env) if isinstance(value, str) else ""

    def prefix(self, env):
        """The folder of its environment, or ''."""
        home, name = self._text("conda_home", env), self._text("conda_env_name", env)
        if not home:
            return ""
        return home if name in ("", "base") else os.path.join(home, "envs", name)

    def enter(self, env):
        """Changes `env` to what its processes see, before the package's and the profile's own variables."""
        prefix = self.prefix(env)
        if prefix:
            env["PATH"] = os.pathsep.join(filter(None, (os.path.join(prefix, "bin"), env.get("PATH"))))
            env.update(CONDA_PREFIX=prefix, CONDA_DEFAULT_ENV=os.path.basename(prefix))

    def command(self, python, words, env):
        """The words that start `python words`, or what the runtime has in its place."""
        machines = [one.strip() for one in self._text("machine_type", env).split(",") if one.strip()]
        if machines and platform.machine() not in machines:
            raise Unusable("Runtime %s is for %s, and this host is %s" % (self.name, ", ".join(machines), platform.machine()))
        prefix = self.prefix(env)
        if prefix:
            python = os.path.join(prefix, "bin", "python")
            if not os.access(python, os.X_OK):
                raise Unusable("Runtime %s: this host has no %s; install it, or change conda_home and conda_env_name"
                               % (self.name, python))
        before = self._text("pre_exec", env)
        if not before.strip():
            return [python] + words
        return [shutil.which("bash") or "/bin/sh", "-c", SCRIPT, "pre_exec", before, python] + words


def find(name, document):
    """The runtime of that name; `document` is the path of the service's document, or None."""
    if name in OURS or name.startswith("dlipy"):
        return Runtime(name, {})
    path = os.path.join(os.path.dirname(document or "") or ".", "runtime.json")
    try:
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
    except (OSError, ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or said.get("type") != name:
        raise Unusable("Runtime <%s> does not exists." % name)
    return Runtime(name, said)
