"""Scripts forked from a warm interpreter: what they see, print and leave is what a fresh interpreter would have given."""

import json
import os
import pathlib
import re
import signal
import urllib.error
import urllib.request

import pytest
from helpers import ended, log_of, submit
from mesh import TLS

# Prints what a script can see of its interpreter and process. What belongs to one run is left out, and signal 33: the C
# library has a handler of its own for it in a process that had threads.
FACTS = """
import sys
begun = sorted(sys.modules)
import json, os, resource, signal, stat, threading, __main__
def shown(value):
    return repr(value).split(" at 0x")[0]
own = {"SHOAL_WORKER_ID", "SHOAL_SLOT", "SHOAL_TOKEN", "SHOAL_STDOUT", "TASK_ID"}
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
facts = {
    "modules": begun, "argv": sys.argv, "orig": sys.orig_argv[1:], "path": sys.path, "flags": str(sys.flags), "executable": sys.executable,
    "prefix": [sys.prefix, sys.base_prefix], "env": {k: v for k, v in os.environ.items() if k not in own}, "order": [k for k in os.environ if k not in own],
    "bytes": sorted(k.decode() for k in os.environb), "cwd": os.getcwd(), "main": {k: shown(v) for k, v in vars(__main__).items()
        if k.startswith("__")}, "globals": sorted(globals()), "file": __file__, "name": __name__, "depth": sys._getframe().f_back is None,
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__], "last": [n for n in dir(sys) if n.startswith(("last_", "_shoal"))],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.seekable(), s.isatty(), s.fileno(), shown(s.buffer)]
        for s in (sys.stdin, sys.stdout, sys.stderr)], "signals": {str(s): shown(signal.getsignal(s)) for s in sorted(signal.valid_signals())},
    "masks": [hex(int(status[k], 16) & ~(1 << 32)) for k in ("SigBlk", "SigIgn", "SigCgt")], "comm": status["Name"].strip(),
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()], "parent": open("/proc/%d/comm" % os.getppid()).read(),
    "fds": {fd: stat.S_IFMT(os.stat(int(fd)).st_mode) for fd in sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd/" + fd)},
    "inheritable": [os.get_inheritable(int(fd)) for fd in sorted(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd/" + fd)],
    "cmdline": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)), "nice": os.nice(0), "umask": os.umask(0), "threads": threading.active_count(),
    "main thread": threading.current_thread() is threading.main_thread(), "ident": threading.get_native_id() == os.getpid(),
    "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")], "recursion": sys.getrecursionlimit(),
    "time": os.times().user < 5,
}
print(json.dumps(facts, indent=1))
"""

# name: (main.py, words for it, the exit code, files beside it)
SCRIPTS = {
    "facts": (FACTS, (), 0, {}),
    "both streams": ("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdout.write('no end of line')\n", (), 0, {}),
    "exit 3": ("import sys\nprint('x')\nsys.exit(3)\n", (), 3, {}),
    "exit with a text": ("import sys\nsys.exit('why not')\n", (), 1, {}),
    "exit None": ("raise SystemExit\n", (), 0, {}),
    "os._exit": ("import os\nprint('x')\nos._exit(7)\n", (), 7, {}),
    "killed": ("import os\nprint('x')\nos.kill(os.getpid(), 9)\n", (), -9, {}),
    "aborted": ("import os\nos.abort()\n", (), -6, {}),
    "interrupted": ("raise KeyboardInterrupt\n", (), -2, {}),
    "an exception": ("def f(n):\n    return 1 / n\n\n\ndef g():\n    try:\n        f(0)\n    except ZeroDivisionError as e:\n"
                     "        raise ValueError('märz') from e\n\n\ng()\n", (), 1, {}),
    "a syntax error": ("print('never')\nif:\n", (), 1, {}),
    "its own stack": ("import inspect, traceback\ndef f():\n    traceback.print_stack()\n    print(len(inspect.stack()))\nf()\n", (), 0, {}),
    "words": ("import sys\nprint(sys.argv[1:])\n", ("--epochs", "1 2", "ä€", "", "*", "'q'"), 0, {}),
    "atexit": ("import atexit, threading, time\natexit.register(print, 'last')\n"
               "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('first')\n", (), 0, {}),
    "processes by fork": ("import multiprocessing as m\ndef f(n):\n    return n * n\nif __name__ == '__main__':\n"
                          "    with m.get_context('fork').Pool(2) as p:\n        print(p.map(f, range(5)))\n", (), 0, {}),
    "processes by spawn": ("import multiprocessing as m\ndef f(n):\n    return n * n\nif __name__ == '__main__':\n"
                           "    with m.get_context('spawn').Pool(1) as p:\n        print(p.map(f, range(5)))\nelse:\n    print(__name__)\n", (), 0, {}),
    "a program": ("import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.path)'], capture_output=True,"
                  " text=True).stdout)\nprint(subprocess.run('echo $RESULT_DIR $MSD_POD_NAME', shell=True, capture_output=True).stdout)\n", (), 0, {}),
    "much output": ("import sys\nfor i in range(20000):\n    print(i, 'x' * 50)\nprint('y' * 300000, file=sys.stderr)\n", (), 0, {}),
    "the end of stdin": ("import sys\nprint(repr(sys.stdin.read()))\ntry:\n    input()\nexcept EOFError as e:\n    print(e)\n", (), 0, {}),
    "a sibling": ("import beside\nfrom beside import Thing\nprint(beside.__name__, beside.__file__, Thing())\n", (), 0,
                  {"beside.py": "class Thing:\n    def __repr__(self):\n        return 'thing of ' + __name__\n"}),
    "a sibling with a name of the library": ("import json, random\nprint(json.MINE, random.__file__)\n", (), 0, {"json.py": "MINE = 1\n"}),
    "a sibling that a start imports": ("import os\nprint(os.environ['SITE'])\n", (), 0, {"sitecustomize.py": "import os\nos.environ['SITE'] = 'mine'\n"}),
    "pickles of main": ("import pickle\ndef f():\n    return 5\nclass C:\n    pass\nprint(pickle.dumps(f), pickle.loads(pickle.dumps(f))(),"
                        " type(pickle.loads(pickle.dumps(C()))) is C)\n", (), 0, {}),
    "a future import": ("from __future__ import annotations\ndef f(x: nothing):\n    pass\nprint(f.__annotations__)\n", (), 0, {}),
    "handlers": ("import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: print('term'))\nos.kill(os.getpid(), 15)\nprint('on')\n", (), 0, {}),
    "chance": ("import random, os, uuid\nprint(len({random.random(), random.random()}), len(os.urandom(4)), len(str(uuid.uuid4())))\n", (), 0, {}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    def write(name, text, files):
        folder = tmp_path_factory.mktemp(re.sub(r"\W", "_", name)) / "model"
        folder.mkdir()
        (folder / "main.py").write_text(text)
        for file, content in files.items():
            (folder / file).write_text(content)
        return folder

    return write


@pytest.fixture(scope="module")
def host():
    from conftest import OUT, Mesh

    with Mesh(OUT / "shoal", slots=4) as mesh:
        mesh.grow(("alpha",))
        yield mesh, mesh.hosts[0]


def servers(host):
    """{pid: the user's folder that it was started for} of this host's warm interpreters."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            pairs = dict(p.split(b"=", 1) for p in (entry / "environ").read_bytes().split(b"\0") if b"=" in p)
            comm = (entry / "comm").read_text()
        except (OSError, ValueError):
            continue
        if len(words) > 1 and words[1].endswith(b"/native/warm.py") and pairs.get(b"HOME", b"").startswith(os.fsencode(str(host.data)) + b"/"):
            found[int(entry.name)] = (comm.strip(), pairs[b"USER"].decode())
    return found


def log(host, job, which):
    request = urllib.request.Request("%s/v1/jobs/%s/log?which=%s" % (host.url, job, which), headers={"Authorization": "Bearer " + host.mesh.token(host)})
    try:
        with urllib.request.urlopen(request, timeout=20, context=TLS) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        return ""  # nothing was printed


def outcome(mesh, host, job):
    """(exit code, what it printed on both streams, the launcher's lines), with what belongs to one run made alike."""
    code = ended(mesh, job)["exitCode"]

    def clean(text):
        text = re.sub(r"task(0|12n)-[a-z0-9]{5}", "TASK", text.replace(job, "JOB"))
        return re.sub(r"0x[0-9a-f]{6,}", "0x", text)

    return code, clean(log(host, job, "out")), clean(log(host, job, "err")), log(host, job, "launcher")


@pytest.fixture(scope="module")
def started(host, folders):
    """{name: (the job of a fresh interpreter, the warm one)}, all at once."""
    mesh, alpha = host
    made = {name: folders(name, text, files) for name, (text, _, _, files) in SCRIPTS.items()}
    return {name: [submit(mesh, alpha, made[name], *options, script=SCRIPTS[name][1]) for options in ((), ("--warm",))] for name in SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_warm_script_is_as_a_cold_one(host, started, name):
    mesh, alpha = host
    code = SCRIPTS[name][2]
    cold, warm = (outcome(mesh, alpha, job) for job in started[name])
    if name == "facts":
        cold_facts, warm_facts = json.loads(cold[1]), json.loads(warm[1])
        unlike = {key: (cold_facts[key], warm_facts[key]) for key in cold_facts if cold_facts[key] != warm_facts[key]}
        assert not unlike, "cold, warm: %s" % unlike
    assert warm[0] == cold[0], (warm, cold)
    assert warm[1] == cold[1]
    assert warm[2] == cold[2]
    assert len(cold[1]) + len(cold[2]) > 0 or code < 0 or name == "exit None", "it has shown something"
    assert ("starts cold" in warm[3]) == (name == "a sibling that a start imports"), warm[3]
    assert servers(alpha), "an interpreter waits"


WHOSE = "import os, time\nprint(open('/proc/%d/environ' % os.getpid()).read().count('SHOAL_WARM_FD'))\n"


def run_warm(mesh, host, folder, *options):
    """("warm" or "cold", the launcher's lines): whose environment the kernel shows says which interpreter it is."""
    code, out, err, launcher = outcome(mesh, host, submit(mesh, host, folder, "--warm", *options))
    assert code == 0, err
    return {"1\n": "warm", "0\n": "cold"}[out], launcher


def test_a_server_that_was_killed_or_hangs_costs_no_run(host, folders):
    mesh, alpha = host
    folder = folders("whose", WHOSE, {})
    assert run_warm(mesh, alpha, folder)[0] == "warm"
    for pid in servers(alpha):
        os.kill(pid, signal.SIGKILL)
    assert run_warm(mesh, alpha, folder)[0] == "warm", "another one was started"
    for pid in servers(alpha):
        os.kill(pid, signal.SIGSTOP)
    how, launcher = run_warm(mesh, alpha, folder)
    assert how == "cold" and launcher.count("starts cold, though warm was asked for") == 1, launcher
    assert run_warm(mesh, alpha, folder)[0] == "warm", "the one that hung is gone"


def test_a_server_that_dies_under_a_script_takes_nothing_with_it(host, folders, tmp_path):
    mesh, alpha = host
    go = tmp_path / "go"
    folder = folders("waits", "import os, sys, time\nprint('begun', flush=True)\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.02)\n"
                     "sys.exit(5)\n", {})
    job = submit(mesh, alpha, folder, "--warm", script=(go,))
    mesh.until(lambda: log(alpha, job, "out"), 30, "the script runs")
    for pid in servers(alpha):
        os.kill(pid, signal.SIGKILL)
    go.write_text("")
    assert ended(mesh, job)["exitCode"] == 5


def test_each_user_and_environment_has_a_server_and_there_are_few(host, folders):
    mesh, alpha = host
    folder = folders("whose", WHOSE, {})
    for number in range(6):
        assert run_warm(mesh, alpha, folder, "--env", "PYTHONHASHSEED=%d" % number)[0] == "warm"
        mesh.until(lambda: len(servers(alpha)) <= 4, 30, "the one that was not used for the longest time has ended")
    assert run_warm(mesh, alpha, folder, "--env", "USER=somebody")[0] == "warm"
    assert "somebody" in {user for _, user in servers(alpha).values()}
    assert run_warm(mesh, alpha, folder, "--env", "PYTHONVERBOSE=")[0] == "warm"


def test_tasks_of_an_array_start_warm(host, folders):
    mesh, alpha = host
    folder = folders("tasks", WHOSE + "print(os.environ['SHOAL_ARRAY_TASK_ID'])\n", {})
    job = submit(mesh, alpha, folder, "--warm", "--array", "0-5")
    assert ended(mesh, job)["exitCode"] == 0
    for task in range(6):
        assert log_of(mesh, alpha, job, "--task", str(task)) == "1\n%d\n" % task  # 1: the environment is a warm one's


def test_what_is_no_plain_script_is_refused(host, script):
    mesh, alpha = host
    text = mesh.shoal("job", "run", "--framework", "PyTorch", "--warm", "--command", "--node", alpha.url, "--", "/bin/true", check=False)
    assert text.returncode != 0 and "only plain Python scripts start warm" in text.stderr, text


def test_a_server_that_stands_still_ends_with_its_agent(host, folders):
    """The last test: the agent is killed, and started again."""
    mesh, alpha = host
    assert run_warm(mesh, alpha, folders("whose", WHOSE, {}))[0] == "warm"
    stopped = servers(alpha)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    alpha.process.kill()
    alpha.process.wait()
    try:
        mesh.until(lambda: not set(stopped) & set(servers(alpha)), 30, "none of %s is left" % stopped)
    finally:
        for pid in set(stopped) & set(servers(alpha)):
            os.kill(pid, signal.SIGKILL)
        alpha.start()
