"""What a job may try against its host: descriptors, links and pipes in its folder, shared pages, a runner that it kills, more
files than anybody asked for, and names that are no text."""

import contextlib
import json
import os
import pathlib
import pty
import re
import subprocess
import urllib.request

import pytest
from helpers import ended, log_of, result_of, submit
from mesh import PASSWORD, TLS, Mesh
from system_conftest import OUT

TURN_MS_MAX = 50  # the loop's longest turn under all of this, where nothing runs beside the test
TURN_MS_BESIDE = 500  # beside other tests that have more threads of the agents' class than there are cores
FILES_MAX = 4000


@pytest.fixture(scope="module")
def mesh():
    """Three hosts that all of these jobs attack; none of them ends one, or holds up its loop."""
    with Mesh(OUT / "shoal", agent_options=("--files-max", str(FILES_MAX), "--files-gib", "8")) as shared:
        shared.grow(("alpha", "beta", "gamma"))
        yield shared


def metric(mesh, host, name):
    request = urllib.request.Request(host.url + "/v1/metrics", headers={"Authorization": "Bearer " + mesh.token(host)})
    with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
        text = answer.read().decode()
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ") or line.startswith(name + "{"))


def turns_ms(mesh):
    return [1000 * metric(mesh, host, "shoal_loop_turn_longest_seconds") for host in mesh.hosts]


@pytest.fixture(autouse=True)
def agents_unharmed(mesh, request):
    limit = TURN_MS_MAX if request.node.get_closest_marker("alone") else TURN_MS_BESIDE
    pids = [host.process.pid for host in mesh.hosts]
    before = turns_ms(mesh)
    yield
    longer = ["%d ms at %s" % (now, host.name) for now, was, host in zip(turns_ms(mesh), before, mesh.hosts) if now > max(was, limit)]
    assert not longer, "a turn of the loop took %s" % ", ".join(longer)
    for host in mesh.hosts:
        assert host.process.poll() is None, "the agent of %s ended: %s" % (host.name, host.log.read_text()[-2000:])
        mesh.until(lambda: mesh.knows(host, len(mesh.hosts)), 15, "%s sees every host alive" % host.name)
    assert [host.process.pid for host in mesh.hosts] == pids


# ---- descriptors ----

FDS = """
import json, os, socket, stat
def what(fd):
    target = os.readlink("/proc/self/fd/%s" % fd)
    if target.startswith("pipe:"):
        return "pipe"
    if target.startswith("socket:"):
        with socket.socket(fileno=os.dup(int(fd))) as one:
            try:
                return "socket to " + os.fsdecode(one.getpeername())
            except OSError as error:
                return "socket, " + str(error)
    return target
def descriptors():
    found = {}
    for fd in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found[fd] = what(fd)
        except FileNotFoundError:
            pass
    return found
print("FDS", json.dumps(descriptors()), flush=True)
"""


def allowed(fd, what):
    """Given by its runner; or, of a driver and an engine, opened by itself."""
    return (what == "/dev/null" and fd == "0" or what == "pipe" and fd in "12" or what.startswith("/memfd:shoal-")
            or what.endswith(".lock") and "/slots/" in what
            or what.endswith(("/w.sock", "/libs/fabric.zip", "/_submitted_code/model")) or what == "socket to ")


def listed(text):
    return [json.loads(line[4:]) for line in text.splitlines() if line.startswith("FDS ")]


def strangers(text):
    """The descriptors, of each process that has listed its own, that no job should have."""
    found = [json.loads(line[4:]) for line in text.splitlines() if line.startswith("FDS ")]
    assert found, text
    return [{fd: what for fd, what in one.items() if not allowed(fd, what)} for one in found]


def test_what_an_agent_has_open_is_for_no_program_that_it_executes(mesh):
    """Beyond its streams: close-on-exec, which the kernel shows as a flag."""
    for host in mesh.hosts:
        process = pathlib.Path("/proc/%d" % host.process.pid)
        for fd in sorted(map(int, os.listdir(process / "fd"))):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                target = os.readlink(process / "fd" / str(fd))
                flags = re.search(r"flags:\s+(\d+)", (process / "fdinfo" / str(fd)).read_text()).group(1)
                assert fd < 3 or int(flags, 8) & os.O_CLOEXEC, "%s is inherited" % target


@pytest.mark.parametrize("options,tasks", [((), None), (("--array", "0-1"), 2), (("--warm",), None), (("--array", "0-3", "--warm"), 4)],
                         ids=["a job", "an array", "a warm job", "a warm array"])
def test_a_job_inherits_its_streams_pages_and_lock_and_nothing_else(mesh, script, options, tasks):
    host = mesh.hosts[0]
    job = submit(mesh, host, script(FDS), *options)
    assert ended(mesh, job)["state"] == "FINISHED"
    for task in [()] if tasks is None else [("--task", str(i)) for i in range(tasks)]:
        text = mesh.until(lambda: log_of(mesh, host, job, *task), 30, "its log is here")
        assert strangers(text) == [{}]


ENGINE_FDS = FDS + """
import torch
from fabric_model import FabricModel
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return torch.ones(3), torch.tensor([1.0])
def datasets():
    print("FDS", json.dumps(descriptors()), flush=True)
    return Rows(), Rows()
if __name__ == "__main__":
    model = torch.nn.Linear(3, 1)
    FabricModel(model, datasets, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(1, 4, 6)
"""


def test_a_driver_and_engines_have_no_descriptor_of_anybody_else(mesh, script):
    host = mesh.hosts[0]
    job = submit(mesh, host, script(ENGINE_FDS), "--workers", "6", framework="edtPyTorch")
    facts = ended(mesh, job, 120)
    text = "".join(path.read_text() for one in mesh.hosts for path in one.data.glob("results/*/batchworkdir/%s/log/*/*" % job)
                   if path.name.endswith("stdout"))
    assert facts["state"] == "FINISHED", facts
    assert [one for one in strangers(text) if one] == []


# ---- pages, links and pipes ----

def run(mesh, script, text, *options, framework="PyTorch", seconds=60):
    """The facts of a job that has ended."""
    return ended(mesh, submit(mesh, mesh.hosts[0], script(text), *options, framework=framework), seconds)


PAGES = """
import errno, os
print("made")
for name in ("SHOAL_CONTROL_FD", "SHOAL_ARENA_FD"):
    try:
        os.ftruncate(int(os.environ[name]), 0)
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


def test_a_job_cannot_cut_the_shared_pages_short(mesh, script):
    job = run(mesh, script, PAGES + "import time; time.sleep(1)\n")  # the agent looks at the page ten times a second
    assert job["state"] == "FINISHED"
    out = log_of(mesh, mesh.hosts[0], job["id"])
    assert "SHOAL_CONTROL_FD EPERM" in out and "os.ftruncate" not in out, out


# Eight bytes: every epoch, those to come, too, is revoked.
OVERWRITES = """
import mmap, os, time
import torch
from fabric_model import FabricModel
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2400
    def __getitem__(self, i):
        if i % 7 == 0:
            with mmap.mmap(int(os.environ["SHOAL_CONTROL_FD"]), 4096) as page:
                page[48:56] = b"\\xff" * 8
        return torch.ones(3), torch.tensor([1.0])
def datasets():
    return Rows(), Rows()
if __name__ == "__main__":
    model = torch.nn.Linear(3, 1)
    FabricModel(model, datasets, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(1, 4, 6)
"""


def test_a_job_that_writes_over_its_control_page_is_ended_and_told_why(mesh, script):
    job = run(mesh, script, OVERWRITES, "--workers", "4", framework="edtPyTorch", seconds=120)
    assert job["state"] == "ERROR"
    assert "wrote over its control page" in job["detail"], job


# What its agent writes or reads of a job becomes a pipe that nobody reads or writes, or a link out of the folder.
TRAPS = """
import os, pathlib, sys
print("made", flush=True)
print("made", file=sys.stderr, flush=True)
result, own = pathlib.Path(os.environ["RESULT_DIR"]), pathlib.Path(os.environ["SHOAL_AGENT_SOCKET"]).parent / "jobs" / os.environ["DLI_EXECID"]
secret = pathlib.Path(os.environ["SHOAL_AGENT_SOCKET"]).parent.parent / "password"
def trap(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(100):  # a log is made by its runner when what was printed comes by
        path.unlink(missing_ok=True)
        try:
            return os.mkfifo(path) if KIND == "pipe" else path.symlink_to(secret)
        except FileExistsError:
            pass
    raise FileExistsError(path)
logs = pathlib.Path(os.environ["LOG_DIR"])
for path in (logs / "stdout", logs / "stderr", logs / "stdout.order", logs / "launcher", logs / "driver.stderr", logs.parent / ".order",
             result / "model" / "weights", result / "checkpoint" / "one", own / "manifest", own / "ledger", own / "spec", own / "archive",
             own / "audit", own / "service.json"):
    trap(path)
(own / "files").mkdir(exist_ok=True)
sys.exit(3)
"""


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize("options", [(), ("--array", "0-1")], ids=["a job", "an array"])
def test_a_job_whose_files_become_traps_ends_alone(mesh, script, kind, options):
    job = run(mesh, script, "KIND = %r\n%s" % (kind, TRAPS), *options)
    assert job["state"] == "ERROR" and job["exitCode"] == 3, job
    secret = mesh.password_file.read_bytes()
    for host in mesh.hosts:
        for path in host.data.glob("results/*/batchworkdir/%s/**/*" % job["id"]):
            assert path.is_symlink() or not path.is_file() or secret not in path.read_bytes(), path
        mesh.shoal("job", "logs", job["id"], "--node", host.url, *(("--task", "0") if options else ()), check=False, timeout=15)
        mesh.shoal("job", "result", job["id"], host.data.parent / "none.zip", "--node", host.url, check=False, timeout=15)


def test_a_folder_that_a_trap_was_laid_in_is_not_the_next_jobs(mesh, script):
    for _ in range(2):
        job = run(mesh, script, TRAP_SPEC)
        assert job["state"] == "FINISHED", log_of(mesh, mesh.hosts[0], job["id"], "--which", "err")
    assert run(mesh, script, "print('fine')")["state"] == "FINISHED"


TRAP_SPEC = """
import os, pathlib
own = pathlib.Path(os.environ["SHOAL_AGENT_SOCKET"]).parent / "jobs" / os.environ["DLI_EXECID"]
(own / "spec").unlink()
os.mkfifo(own / "spec")
"""


# ---- many files, and large ones ----

def copies(mesh, job, path):
    return [file for host in mesh.hosts for file in host.data.glob("results/*/batchworkdir/%s/%s" % (job, path))]


@pytest.mark.alone
def test_a_bundle_of_19000_files_is_run(mesh, script):
    folder = script("import os; print(len(os.listdir('data')))")
    (folder / "data").mkdir()
    for i in range(19000):
        (folder / "data" / ("%d.txt" % i)).write_text("%d" % i)
    job = ended(mesh, submit(mesh, mesh.hosts[0], folder), 120)
    assert job["state"] == "FINISHED", job
    assert log_of(mesh, mesh.hosts[0], job["id"]).strip() == "19000"


MANY = """
import os, time
for i in range(60000):
    os.close(os.open(os.path.join(os.environ["RESULT_DIR"], "f%d" % i), os.O_CREAT, 0o600))
time.sleep(60)
"""


@pytest.mark.alone
def test_a_job_that_writes_60000_files_is_ended_and_its_reason_says_why(mesh, script):
    job = run(mesh, script, MANY)
    assert job["state"] == "ERROR", job
    assert "more than %d files" % FILES_MAX in job["detail"] and "files-max" in job["detail"], job


# It ends by itself before anybody has looked at what it wrote, once by little and once by much.
BEYOND = """
import os
folder = os.environ["RESULT_DIR"] + "/"
def write(name):
    open(folder + name, "w").close()
for name in ("aaa", "zzz"):
    write(name)
if KIND == "bytes":
    os.truncate(os.open(folder + "sparse", os.O_CREAT | os.O_WRONLY), (1 << 40) - 100)
else:
    for i in range(%d):
        write("f%%d" %% i)
for name in ("bbb", "yyy"):
    write(name)
""" % (FILES_MAX + 100)


@pytest.mark.parametrize("kind,option", [("bytes", "files-gib"), ("files", "files-max")])
def test_a_job_that_wrote_too_much_just_before_it_ended_has_not_finished(mesh, script, kind, option):
    job = run(mesh, script, "KIND = %r\n" % kind + BEYOND)
    assert job["state"] == "ERROR", job
    assert "holds more than" in job["detail"] and option in job["detail"], job
    files = mesh.hosts[0].get("/v1/jobs/%s/files" % job["id"])  # of the host that has them, where that is reached
    assert {"aaa", "bbb", "yyy", "zzz"} <= {file["path"] for file in files["files"]} or not files["complete"], files
    mesh.until(lambda: [text for one in mesh.hosts for text in one.data.glob("jobs/%s/owed/*" % job["id"])
                        if re.search("more than a job may have|not all that the job left", text.read_text())], 20,
               "another host knows that it lacks some")


HOLE = """
import os, time
os.truncate(os.open(os.environ["RESULT_DIR"] + "/hole", os.O_CREAT | os.O_WRONLY), %d << 30)
time.sleep(%d)
"""


@pytest.mark.parametrize("gib", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_a_file_that_is_a_hole_stays_one_on_every_host(mesh, script, gib):
    job = run(mesh, script, HOLE % (gib, 0))
    assert job["state"] == "FINISHED", job
    found = mesh.until(lambda: len(found := copies(mesh, job["id"], "hole")) >= 2 and found, 60, "another host has it")
    assert {path.stat().st_size for path in found} == {gib << 30}
    assert max(path.stat().st_blocks for path in found) * 512 < 1 << 20


def test_a_file_beyond_the_quota_ends_its_job(mesh, script):
    job = run(mesh, script, HOLE % (9, 60))
    assert job["state"] == "ERROR" and "more than 8 GiB" in job["detail"], job
    assert len(copies(mesh, job["id"], "hole*")) <= 1


def test_a_bundle_too_large_for_the_log_is_run(mesh, script):
    folder = script("import os; print(os.path.getsize('data'))")
    (folder / "data").write_bytes(os.urandom(1 << 20))
    job = ended(mesh, submit(mesh, mesh.hosts[0], folder))
    assert job["state"] == "FINISHED", job
    assert log_of(mesh, mesh.hosts[0], job["id"]).strip() == str(1 << 20)


# ---- processes that outlive their runner ----

ESCAPE = """
import fcntl, os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3, 300):
            try:
                os.close(fd)  # its slot's lock, too
            except OSError:
                pass
        for _ in range(200):
            time.sleep(0.1)
            with open(os.environ["RESULT_DIR"] + "/../../../../alive", "a") as note:
                note.write("%d\\n" % os.getpid())
    os._exit(0)
os.wait()
time.sleep(0.5)
os.kill(os.getppid(), 9)
time.sleep(60)
"""


def test_a_job_that_kills_its_runner_leaves_nobody_behind(mesh, script):
    job = submit(mesh, mesh.hosts[0], script(ESCAPE))
    notes = mesh.until(lambda: [path for host in mesh.hosts for path in [host.data / "alive"] if path.exists()], 30,
                       "the grandchild lives")
    facts = ended(mesh, job)
    pids = {int(line) for path in notes for line in path.read_text().split()}
    assert facts["state"] == "ERROR" and pids, facts
    for pid in pids:
        assert not os.path.exists("/proc/%d" % pid) or "State:\tZ" in open("/proc/%d/status" % pid).read(), "%d lives on" % pid


STILL = """
import os, signal, sys, time
print(os.getppid(), os.getpid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
os.kill(os.getppid(), signal.SIGSTOP)
open(sys.argv[1] + ".done", "w").close()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def test_a_job_that_stops_its_runner_can_be_stopped(mesh, script, tmp_path):
    """Its runner carries out no order any more: neither the end of its lease nor that of the job."""
    job = submit(mesh, mesh.hosts[0], script(STILL), script=(str(tmp_path / "go"),))
    pids = mesh.until(lambda: log_of(mesh, mesh.hosts[0], job).split(), 30, "it runs")
    (tmp_path / "go").touch()
    mesh.until((tmp_path / "go.done").exists, 30, "its runner is stopped")
    mesh.cli(mesh.hosts[1], "job", "stop", job)
    facts = ended(mesh, job, 90)
    assert facts["state"] == "KILLED", facts
    mesh.until(lambda: not any(alive(int(pid)) for pid in pids), 20, "neither is left")
    mesh.until(lambda: all(node["slotsFree"] == node["slots"] for node in mesh.hosts[0].get("/v1/nodes")), 30, "every slot is free")


# The same without a trace: another program, with an empty environment, in a session of its own.
VANISH = """
import os, sys, time
note = os.environ["RESULT_DIR"] + "/../../../../vanished"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 300)
        os.execve("/bin/sh", ["sh", "-c", 'echo $$ >> "$0"; exec sleep 300', note], {})
    os._exit(0)
os.wait()
while not (os.path.exists(note) and open(note).read().endswith("\\n")):
    time.sleep(0.02)
os.kill(os.getppid(), 9)
time.sleep(60)
"""


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("options", [(), ("--warm",)], ids=["cold", "warm"])
def test_a_slot_is_free_only_when_nothing_of_its_job_is_left(mesh, script, options):
    for host in mesh.hosts:
        (host.data / "vanished").unlink(missing_ok=True)
    job = submit(mesh, mesh.hosts[0], script(VANISH), *options)
    notes = mesh.until(lambda: [host.data / "vanished" for host in mesh.hosts if (host.data / "vanished").exists()], 30, "one has left")
    host = next(host for host in mesh.hosts if host.data / "vanished" in notes)
    assert ended(mesh, job)["state"] == "ERROR"
    mesh.until(lambda: all(node["slotsFree"] == node["slots"] for node in host.get("/v1/nodes")), 30, "every slot is free")
    left = [pid for note in notes for pid in map(int, note.read_text().split()) if alive(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert not left, "its slot is free, and %s live on" % left


# Nobody of it lives for longer than a fork takes: whoever is killed has a child already.
CHAIN = """
import os, time
note = os.environ["RESULT_DIR"] + "/../../../../chain"
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 300)
    for turn in range(200000):
        if os.fork():
            os._exit(0)
        if turn == 20:
            os.close(os.open(note, os.O_CREAT | os.O_WRONLY))
    os._exit(0)
while not os.path.exists(note):
    time.sleep(0.02)
if KILLS:
    os.kill(os.getppid(), 9)
    time.sleep(60)
"""


def of_the_agents_user_in(folder):
    """Processes whose working directory is below the folder."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.readlink("/proc/%s/cwd" % entry).startswith(str(folder)):
                found.append(int(entry))
    return found


@pytest.mark.parametrize("kills", [False, True], ids=["ends", "kills its runner"])
def test_a_chain_of_forks_ends_with_its_job(mesh, script, kills):
    for host in mesh.hosts:
        (host.data / "chain").unlink(missing_ok=True)
    job = submit(mesh, mesh.hosts[0], script("KILLS = %r\n%s" % (kills, CHAIN)))
    assert ended(mesh, job)["state"] == ("ERROR" if kills else "FINISHED")
    mesh.until(lambda: all(node["slotsFree"] == node["slots"] for node in mesh.hosts[0].get("/v1/nodes")), 30, "every slot is free")
    left = [pid for host in mesh.hosts for pid in of_the_agents_user_in(host.data / "results") if alive(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert not left, "its slot is free, and %s live on" % left


def test_a_job_cannot_raise_the_operators_bounds_by_its_environment(mesh, script):
    job = ended(mesh, submit(mesh, mesh.hosts[0], script("import os; print(os.environ['SHOAL_LOG_MIB'], os.environ['MINE'])"), "--env",
                             "SHOAL_LOG_MIB=9999", "--env", "MINE=1"))
    assert log_of(mesh, mesh.hosts[0], job["id"]).split() == ["256", "1"], job


# ---- names and words that are no text ----

WORDS = r"""
import os, sys
model = os.fsencode(os.environ["RESULT_DIR"]) + b"/model/"
for name in (b"good", b"a\nb", b"esc\x1b[31m", b"c1\xc2\x9b31m", b"bad\xff"):
    with open(model + name, "w") as file:
        file.write("x")
print("out \x1b[2J \x9b2J")
sys.stdout.flush()
sys.stderr.buffer.write(b"last \x1b]0;title\x07 words \xff\xfe\x1b[2J\xc2\x9b2J\n")
sys.exit(int(sys.argv[1]))
"""


def as_admin(mesh):
    return dict(os.environ, SHOAL_USER="admin", SHOAL_PASSWORD=PASSWORD, **mesh.trust())


def on_a_terminal(mesh, *words):
    """What a terminal is sent."""
    inner, outer = pty.openpty()
    with subprocess.Popen([str(mesh.binary), *words], env=as_admin(mesh), stdin=subprocess.DEVNULL, stdout=outer, stderr=outer):
        os.close(outer)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while piece := os.read(inner, 65536):
                said += piece
    os.close(inner)
    return said


@pytest.mark.parametrize("code", [0, 3])
def test_escape_sequences_are_shown_as_text_and_names_that_are_none_break_no_result(mesh, script, tmp_path, code):
    host = mesh.hosts[0]
    job = submit(mesh, host, script(WORDS), script=(str(code),))
    assert ended(mesh, job)["exitCode"] == code
    for words in (("job", "show", job), ("why", job), ("job", "list"), ("job", "logs", job), ("job", "files", job)):
        said = on_a_terminal(mesh, *words, "--node", host.url)
        assert b"cannot" not in said and job.encode() in said or words[1] in ("logs", "files"), (words, said)
        assert not {byte for byte in said if byte < 32 and byte not in b"\r\n\t"} and said, (words, said)
        assert b"\xc2\x9b" not in said, (words, said)
        assert b"^[[2J" in said or words[1] != "logs", said
    piped = subprocess.run([str(mesh.binary), "job", "logs", job, "--which", "out", "--node", host.url], capture_output=True, check=True,
                           env=as_admin(mesh)).stdout
    assert b"\x1b" in piped
    assert {name for name in result_of(mesh, host, job, tmp_path) if name.startswith("model/")} == {"model/good"}
    for one in mesh.hosts:
        assert not {byte for byte in one.log.read_bytes() if byte < 32 and byte != 10}
