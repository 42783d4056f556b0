"""A process that has the framework loaded, as a host's warm interpreter has (node/runner/warm.h), and forks the engine servers and
drivers of engine_mesh.py: to import it costs each of them more than a second of a core.

    Forks.start() --program, folder, environment, descriptors--> this file as a program --fork, fork--> the program, a child of
    whoever is the subreaper: the test's process"""

import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types

FDS_MAX = 8
ABOVE = 500  # descriptors on their way to their numbers


class Forked:
    """What Popen knows of a process, as far as engine_mesh.py asks."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self, how=os.WNOHANG):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, seconds=None):
        if self.returncode is None and seconds is not None:
            with os.fdopen(os.pidfd_open(self.pid)) as process:
                if not select.select([process], [], [], seconds)[0]:
                    raise subprocess.TimeoutExpired("a forked program", seconds)
        return self.poll(0)

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Forks:
    def __init__(self, environment):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        self.socket.settimeout(120)

    def start(self, program, folder, environment, descriptors):
        """`program`: the path of a script, or the name of a module; `descriptors`: {number there: number here}."""
        order = {"program": str(program), "folder": str(folder), "environment": environment, "numbers": list(descriptors)}
        socket.send_fds(self.socket, [json.dumps(order).encode()], list(descriptors.values()))
        return Forked(int(self.socket.recv(100)))

    def close(self):
        self.socket.close()
        self.process.wait(20)


# ---- in the other process ----

def take_descriptors(fds, numbers):
    held = [fcntl.fcntl(fd, fcntl.F_DUPFD, ABOVE) for fd in fds]
    os.closerange(3, ABOVE)
    for fd, number in zip(held, numbers):
        os.dup2(fd, number, inheritable=True)
        os.close(fd)


def become(order, fds, others):
    """As `python program` would come up there; `others`: what is on the path behind PYTHONPATH."""
    take_descriptors(fds, order["numbers"])
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.path[:] = [order["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(":")), *others]
    sys.argv[:] = [order["program"]]


def serve(connection, others):
    """Returns the program that this process is to be; None: nobody asks for one any more."""
    while True:
        data, fds, _, _ = socket.recv_fds(connection, 65536, FDS_MAX)
        if not data:
            return None
        order = json.loads(data)
        heard, said = os.pipe()
        middle = os.fork()
        if middle == 0:
            pid = os.fork()
            if pid == 0:
                connection.detach()  # else it would close what gets its number
                become(order, fds, others)
                return order["program"]
            os.write(said, b"%d" % pid)
            os._exit(0)
        os.waitpid(middle, 0)  # from here on it is the subreaper's child
        connection.send(os.read(heard, 100))
        for fd in (*fds, heard, said):
            os.close(fd)


def run(program):
    if not program.endswith(".py"):
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = program
    with open(program) as file:
        exec(compile(file.read(), program, "exec"), main.__dict__)


if __name__ == "__main__":
    site = [path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(":")]
    sys.path[:] = sys.path[1:]
    from pyedt import engine_server

    engine_server.import_framework()
    gc.enable()
    wanted = serve(socket.socket(fileno=int(sys.argv[1])), site)
    if wanted is not None:
        run(wanted)
