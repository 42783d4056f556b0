"""What a job leaves in its result folder: every file, in any state of the job, from any node, after its host is gone and in
the archive; no temporary names."""

import concurrent.futures
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import urllib.error
import urllib.request
import zipfile

import pytest
from conftest import OUT
from helpers import SLOW_TRAINING, ended, groups, submit
from mesh import TLS, Host, Mesh
from test_archive import holders

WRITER = """
import os, sys, time
result = os.environ["RESULT_DIR"]
for path, text in (("plots/loss curve.svg", "<svg/>"), ("checkpoints/7.pt", "weights" * 40000), ("model/final", "model"),
                   ("half.tmp", "no"), ("deep/er/half.part", "no"), (".hidden", "no"), ("broken\\nname", "no"),
                   ("naïve ☂.txt", "yes"), ("empty", "")):
    path = os.path.join(result, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as out:
        out.write(text)
os.symlink("/etc/passwd", os.path.join(result, "outside"))
os.mkfifo(os.path.join(result, "pipe"))
with open("beside.csv", "w") as out:  # the working directory lies in the folder, too
    out.write("1,2")
with open("config.txt", "a") as out:
    out.write("changed")
print("written", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
os.chmod(os.path.join(result, "plots/loss curve.svg"), 0o755)
time.sleep(600)
"""
CODE = "_submitted_code/model/"
LEFT = {"plots/loss curve.svg": b"<svg/>", "checkpoints/7.pt": b"weights" * 40000, "model/final": b"model",
        "naïve ☂.txt": b"yes", "empty": b"", CODE + "beside.csv": b"1,2", CODE + "config.txt": b"as sent, changed"}


def fetch(mesh, host, path, **headers):
    request = urllib.request.Request(host.url + path, headers={"Authorization": "Bearer " + mesh.token(host), **headers})
    with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
        return answer.status, dict(answer.headers), answer.read()


def listed(mesh, host, job):
    """{path: bytes} without its logs. None: nobody answers for the job in this moment, as between its group and the archive."""
    try:
        files = host.get("/v1/jobs/%s/files" % job)["files"]
    except OSError:
        return None
    assert len({file["path"] for file in files}) == len(files)
    return {file["path"]: file["bytes"] for file in files if not file["path"].startswith("log/")}


def on_disk(host, job):
    return {str(path.relative_to(root)) for root in host.data.glob("results/*/batchworkdir/" + job)
            for path in root.rglob("*") if path.is_file() and "log" not in path.parts}


def assert_files(mesh, hosts, job, folder):
    sizes = {path: len(content) for path, content in LEFT.items()}
    for host in hosts:
        assert mesh.job(job, host)["workDir"].endswith("/%s/_submitted_code/model" % job)  # wherever it runs, or ran
        mesh.until(lambda: listed(mesh, host, job) == sizes, 60, "%s lists the files" % host.name, pause=0.2)
        executable = lambda: [file["path"] for file in host.get("/v1/jobs/%s/files" % job)["files"] if file["executable"]]  # noqa: E731
        mesh.until(lambda: executable() == ["plots/loss curve.svg"], 60, "%s has the mode" % host.name, pause=0.2)
        answer = host.get("/v1/jobs/%s/files" % job)
        logs = [file["path"] for file in answer["files"] if file["path"].startswith("log/")]
        assert any(path.endswith("/stdout") for path in logs) and not any(".tmp" in path for path in logs)
        for path, content in LEFT.items():
            mesh.shoal("job", "get", job, path, "-O", folder / "one", "--node", host.url)
            assert (folder / "one").read_bytes() == content, path
        mesh.shoal("job", "result", job, folder / "all.zip", "--node", host.url)
        with zipfile.ZipFile(folder / "all.zip") as archive:
            assert archive.testzip() is None
            names = archive.namelist()
            assert {name: archive.read(name) for name in names if not name.startswith("log/")} == LEFT
            assert sorted(names) == sorted([*LEFT, *logs])
        mesh.shoal("job", "result", job, folder / "model.zip", "--model", "--node", host.url)
        with zipfile.ZipFile(folder / "model.zip") as archive:
            assert archive.namelist() == ["model/final"]


def test_every_file_in_any_state_from_any_node(new_mesh, script, tmp_path):
    mesh = new_mesh(("alpha", "beta", "gamma", "delta"), slots=1, agent_options=("--archive-after", "6"))
    go = tmp_path / "go"
    job = submit(mesh, mesh.hosts[3], script(WRITER, **{"config.txt": "as sent, "}), script=(str(go),))
    plots = lambda host: [path.stat().st_mode & 0o700 for path in host.data.glob("results/*/batchworkdir/%s/plots/*.svg" % job)]  # noqa: E731
    mesh.until(lambda: sum(plots(host) == [0o600] for host in mesh.hosts) >= 3, 60, "three hosts have it", pause=0.1)
    go.touch()  # chmod changes neither size nor time
    mesh.until(lambda: sum(plots(host) == [0o700] for host in mesh.hosts) >= 3, 60, "... with its new mode", pause=0.1)
    assert_files(mesh, mesh.hosts, job, tmp_path)  # it runs

    # Stopped: its host is lost, too, before the archive.
    ran = next(host for host in mesh.hosts if host.name == mesh.job(job)["leader"])
    where = [host for host in mesh.hosts if list(host.data.glob("jobs/%s/runner.sock" % job))]
    assert mesh.shoal("job", "stop", job, "--node", ran.url).returncode == 0
    assert ended(mesh, job)["state"] == "KILLED"
    assert_files(mesh, mesh.hosts[:2], job, tmp_path)
    mesh.until(lambda: sum(set(LEFT) <= on_disk(host, job) for host in mesh.hosts) >= 3, 30, "three hosts have all of it")
    mesh.until(lambda: sum(groups(host).get("mesh", {}).get("voters", 0) >= 3 for host in mesh.hosts) >= 3, 30, "the founder's loss leaves a mesh group")
    for host in where:
        mesh.hosts.remove(host)
        host.lose()
    mesh.until(lambda: len(holders(mesh, job)) == 3, 90, "it is in the archive", pause=0.3)
    assert_files(mesh, mesh.hosts, job, tmp_path)
    for host in mesh.hosts:  # and lies there as files again, none of them outside
        assert set(LEFT) <= on_disk(host, job)


class SlowHost(Host):
    """What others push into its logs takes a while to be there."""

    def __init__(self, owner, name):
        super().__init__(owner, name)
        self.within = ["env", "LD_PRELOAD=%s" % owner.shim, *owner.slow]


class SlowMesh(Mesh):
    host_class = SlowHost
    slow = ()


class SlowFilesMesh(SlowMesh):
    """A piece of 256 KiB of a file takes half a second."""
    slow = ("SLOW_PATH=.part", "SLOW_MS=500")


@contextlib.contextmanager
def slow(kind, tmp_path):
    source = pathlib.Path(__file__).with_name("preload") / "slow_logs.c"
    shim = tmp_path / "slow_logs.so"
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", str(shim), str(source)], check=True)
    with kind(OUT / "shoal", slots=1) as made:
        made.shim = shim
        made.grow(("alpha", "beta", "gamma"))
        yield made


@pytest.fixture
def slow_mesh(tmp_path):
    with slow(SlowMesh, tmp_path) as made:
        yield made


@pytest.fixture
def slow_files_mesh(tmp_path):
    with slow(SlowFilesMesh, tmp_path) as made:
        yield made


def test_a_log_asked_for_at_the_end_is_whole_everywhere(slow_mesh, script, tmp_path):
    mesh, go = slow_mesh, tmp_path / "go"
    job = submit(mesh, mesh.hosts[0], script("""
import os, sys, time
print("first", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("last")
"""), script=(str(go),))
    ran = mesh.until(lambda: [host for host in mesh.hosts if list(host.data.glob("jobs/%s/runner.sock" % job))], 30, "it runs")
    for host in mesh.hosts:
        mesh.until(lambda host=host: b"first" in fetch(mesh, host, "/v1/jobs/%s/log?which=out" % job)[2], 30, "its first line", pause=0.1)
    go.touch()
    for host in mesh.hosts:
        if host not in ran:
            mesh.until(lambda host=host: host.get("/v1/jobs/" + job)["hasEnded"], 60, "its end", pause=0.001)
            assert mesh.shoal("job", "logs", job, "--which", "out", "--node", host.url).stdout == "first\nlast\n", host.name
            break  # the other one is asked too late to tell


IDLE = "pass"
PRINTER = """
import os, sys
print("line of", sys.argv[1])
print("complaint of", sys.argv[1], file=sys.stderr)
open(os.path.join(os.environ["RESULT_DIR"], "left"), "w").write(sys.argv[1])
"""


def test_parts_of_a_file_and_what_is_not_there(mesh, script, tmp_path):
    host = mesh.hosts[1]
    job = submit(mesh, mesh.hosts[0], script("""
import os
os.makedirs(os.path.join(os.environ["RESULT_DIR"], "a"))
open(os.path.join(os.environ["RESULT_DIR"], "a", "ten"), "w").write("0123456789")
"""))
    ended(mesh, job)
    path = "/v1/jobs/%s/files/a/ten" % job
    mesh.until(lambda: "a/ten" in listed(mesh, host, job), 5, "the file")
    status, headers, body = fetch(mesh, host, path)
    assert (status, body, headers["Content-Length"], headers["Accept-Ranges"]) == (200, b"0123456789", "10", "bytes")
    for wanted, part, shown in (("bytes=0-0", b"0", "0-0"), ("bytes=4-", b"456789", "4-9"), ("bytes=-3", b"789", "7-9"),
                                ("bytes=8-99", b"89", "8-9")):
        status, headers, body = fetch(mesh, host, path, Range=wanted)
        assert (status, body, headers["Content-Range"]) == (206, part, "bytes %s/10" % shown), wanted
    for wanted in ("bytes=5-4", "bytes=0-1,3-4", "lines=1-2", "bytes=x", "bytes=-"):  # as if it were not there
        assert fetch(mesh, host, path, Range=wanted)[::2] == (200, b"0123456789"), wanted
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(mesh, host, path, Range="bytes=10-")
    assert refused.value.code == 416 and refused.value.headers["Content-Range"] == "bytes */10"

    for wrong in ("a", "a/", "a/eleven", "../ten", "a/../a/ten", "%2e%2e/x", "/etc/passwd"):
        done = mesh.shoal("job", "get", job, wrong, "-O", tmp_path / "none", "--node", host.url, check=False)
        assert done.returncode in (2, 3) and done.stderr.startswith("shoal: ") and not list(tmp_path.glob("none*")), wrong
    assert mesh.shoal("job", "get", job, "a/ten", "-O", "-", "--node", host.url).stdout == "0123456789"
    shown = mesh.shoal("job", "files", job, "--node", host.url).stdout
    assert "          10  20" in shown and shown.rstrip().splitlines()[0].endswith("  a/ten")
    assert json.loads(mesh.shoal("job", "files", job, "--node", host.url, "-o", "json").stdout)["complete"] is True

    done = mesh.shoal("job", "result", job, tmp_path / "m.zip", "--model", "--node", host.url, check=False)
    assert done.returncode == 3 and 'nothing is below "model"' in done.stderr and not list(tmp_path.glob("m.zip*"))
    silent = submit(mesh, mesh.hosts[0], script(IDLE))
    ended(mesh, silent)
    files = listed(mesh, host, silent)
    assert files == {}
    with zipfile.ZipFile(io.BytesIO(fetch(mesh, host, "/platform/rest/deeplearning/v1/execs/%s/result" % silent)[2])) as archive:
        assert archive.namelist() == []  # WMLA's clients take an empty zip


def test_lists_say_what_show_says_and_what_has_no_effect_is_said(mesh, script):
    folder = script("import sys; sys.exit(int(sys.argv[1]))")
    jobs = [submit(mesh, host, folder, "--memory", "4G", "--option", "--cs-url-meta http://nowhere/x", "--option",
                   "--conda-home /opt/conda", "--option", "--msd-image-name i:1", script=(str(i),)) for i, host in enumerate(mesh.hosts)]
    for i, job in enumerate(jobs):
        assert ended(mesh, job)["exitCode"] == i
    for host in mesh.hosts:
        shown = {job: host.get("/v1/jobs/" + job) for job in jobs}

        def listed_rows():
            rows = {row["id"]: row for row in host.get("/v1/jobs")["jobs"] if row["id"] in jobs}
            return all(row["hasEnded"] for row in rows.values()) and rows
        rows = mesh.until(listed_rows, 5, "the list of %s" % host.name)
        assert rows == shown
        assert all(row["args"].endswith("-- %d" % i) or row["args"].rstrip().endswith("-- %d" % i) for i, row in
                   enumerate(rows[job] for job in jobs))
        for job in jobs:
            said = mesh.until(lambda: mesh.shoal("job", "logs", job, "--which", "launcher", "--node", host.url).stdout, 10, "its notes")
            assert sorted(said.splitlines()) == sorted([
                "--workerMemory 4G is not enforced here: a worker may use more", "--cs-url-meta http://nowhere/x has no effect here",
                "--conda-home /opt/conda has no effect here", "--msd-image-name i:1 has no effect here"])
        assert host.get("/v1/jobs/%s/why" % jobs[0])["why"] == ["FINISHED."]
        for wrong in (("--sort", "x"), ("--state", "x"), ("--since", "x")):
            done = mesh.shoal("job", "list", *wrong, "--node", host.url, check=False)
            assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("shoal: "), wrong
        stopped = mesh.shoal("job", "stop", jobs[1], "--node", host.url)
        assert "had ended: ERROR" in stopped.stderr


LARGE = """
import os
with open(os.path.join(os.environ["RESULT_DIR"], "model.bin"), "wb") as out:
    for _ in range(%d):
        out.write(os.urandom(1 << 20))
print("last words")
"""


@pytest.mark.parametrize("hosts", [3, 5])
def test_results_and_log_are_whole_on_every_host_as_soon_as_the_job_has_ended(new_mesh, script, hosts):
    """The model is still on its way to the others then; the log does not wait for it. Of five hosts, two keep nothing of the job."""
    mesh = new_mesh(("alpha", "beta", "gamma", "delta", "epsilon")[:hosts], slots=1)
    job = submit(mesh, mesh.hosts[0], script(LARGE % 200))
    assert ended(mesh, job)["state"] == "FINISHED"

    def shown(host):
        listed = {file["path"]: file["bytes"] for file in host.get("/v1/jobs/%s/files" % job)["files"]}
        return listed.get("model.bin"), mesh.shoal("job", "logs", job, "--node", host.url).stdout

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert list(pool.map(shown, mesh.hosts)) == [(200 << 20, "last words\n")] * hosts


def owed(host, job):
    return list(host.data.glob("jobs/%s/owed/*" % job))


def all_files(host, job):
    answer = host.get("/v1/jobs/%s/files" % job)
    return answer["complete"], {file["path"]: file["bytes"] for file in answer["files"]}.get("model.bin"), answer.get("missing", "")


def test_a_list_says_what_a_lost_host_has_not_brought(slow_files_mesh, script):
    mesh = slow_files_mesh
    job = submit(mesh, mesh.hosts[0], script(LARGE % 10))
    assert ended(mesh, job)["state"] == "FINISHED"
    ran = next(host for host in mesh.hosts if "model.bin" in on_disk(host, job))
    others = [host for host in mesh.hosts if host is not ran]
    mesh.until(lambda: all(owed(host, job) for host in others), 15, "they know what they lack")
    assert all_files(ran, job) == (True, 10 << 20, "")
    mesh.hosts.remove(ran)
    ran.lose()
    for host in others:
        complete, size, missing = mesh.until(lambda host=host: all_files(host, job), 30, "a list of %s" % host.name)
        assert not complete and ran.name in missing and "model.bin" in missing, missing
        assert size in (None, 0)  # it may have been copied when it had just been opened


def test_copying_goes_on_as_long_as_it_advances(slow_files_mesh, script):
    """Longer than the table of jobs keeps one that has ended, and nobody asks for it."""
    mesh = slow_files_mesh
    job = submit(mesh, mesh.hosts[0], script(LARGE % 25))
    assert ended(mesh, job)["state"] == "FINISHED"
    mesh.until(lambda: all("model.bin" in on_disk(host, job) for host in mesh.hosts), 120, "it is everywhere", pause=1)
    mesh.until(lambda: not any(owed(host, job) for host in mesh.hosts), 45, "nobody lacks anything")  # a lost answer costs 10 s
    for host in mesh.hosts:
        assert all_files(host, job) == (True, 25 << 20, "")


DEEP = """
import os
os.makedirs(os.path.join(os.environ["RESULT_DIR"], *["d"] * 20))
open(os.path.join(os.environ["RESULT_DIR"], *["d"] * 20, "deepest"), "w").close()
"""


def test_what_lies_too_deep_is_said_to_be_missing(mesh, script):
    job = submit(mesh, mesh.hosts[0], script(DEEP))
    assert ended(mesh, job)["state"] == "FINISHED"
    ran = next(host for host in mesh.hosts if any(path.endswith("/deepest") for path in on_disk(host, job)))
    for host in mesh.hosts:
        answer = mesh.until(lambda host=host: (said := host.get("/v1/jobs/%s/files" % job)) and not said["complete"] and said, 15, host.name)
        assert "16 folders" in answer["missing"], answer
    mesh.until(lambda: "copied to no other host" in ran.log.read_text(), 10, "its log says so")


HUGE = """
import os
with open(os.path.join(os.environ["RESULT_DIR"], "huge"), "wb") as out:
    out.truncate(200 << 30)
    os.pwrite(out.fileno(), b"in the middle", 77 << 30)
"""


def test_a_huge_file_of_one_job_holds_up_nothing(new_mesh, script):
    """Its holes are neither read nor hashed nor sent: read and hashed, it would take minutes on each host."""
    mesh = new_mesh(slots=1)
    huge = submit(mesh, mesh.hosts[0], script(HUGE))
    small = submit(mesh, mesh.hosts[1], script(PRINTER), script=("1",))
    for job, path in ((small, "left"), (huge, "huge")):
        assert ended(mesh, job)["state"] == "FINISHED"
        mesh.until(lambda job=job, path=path: all(path in on_disk(host, job) for host in mesh.hosts), 40, "%s is on every host" % path)
    for host in mesh.hosts:
        answer = host.get("/v1/jobs/%s/files" % huge)
        assert (answer["complete"], [file["bytes"] for file in answer["files"] if file["path"] == "huge"]) == (True, [200 << 30])
        path = "/v1/jobs/%s/files/huge" % huge
        assert fetch(mesh, host, path, Range="bytes=%d-%d" % (77 << 30, (77 << 30) + 13))[2] == b"in the middle\0"


def test_what_an_ended_job_left_outlives_all_agents(new_mesh, script):
    mesh = new_mesh(slots=1)
    folder = script(PRINTER)
    jobs = [submit(mesh, host, folder, script=(str(i),)) for i, host in enumerate(mesh.hosts[:2])]
    for job in jobs:
        assert ended(mesh, job)["state"] == "FINISHED"

    def shown(host, job):
        """Its logs, and its files with their times."""
        logs = [mesh.shoal("job", "logs", job, "--node", host.url, *options).stdout
                for options in ((), ("--which", "out"), ("--which", "err"))]
        return logs, host.get("/v1/jobs/%s/files" % job)

    before = {job: mesh.until(lambda: all(logs[1] and logs[2] for logs, _ in [shown(host, job) for host in mesh.hosts]) and
                              shown(mesh.hosts[0], job), 15, "its logs", pause=0.3) for job in jobs}
    assert before[jobs[1]][0][1] == "line of 1\n" and "complaint of 1" in before[jobs[1]][0][2]
    for host in mesh.hosts:
        host.kill()
    for host in mesh.hosts:
        host.start()
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 3), 30, "%s knows the others" % host.name)
        for job in jobs:
            assert shown(host, job) == before[job], (host.name, job)


def test_what_was_written_last_stays_where_a_host_is_late_with_what_it_wrote_before(new_mesh, script):
    """Two hosts write one file. The agent of the one that wrote first stands still meanwhile, and tells of it afterwards."""
    pytest.importorskip("torch")
    mesh = new_mesh(slots=1)
    job = submit(mesh, mesh.hosts[0], script(SLOW_TRAINING % 2), "--workers", 2, framework="edtPyTorch")

    def on_two():
        at = {worker[0].name: worker[0] for worker in mesh.workers(job).values() if worker[3]["applied"] > 0}
        return len(at) == 2 and list(at.values())

    trains = mesh.until(on_two, 60, "engines on two hosts")

    def path(host, name):
        folder = next(host.data.glob("results/*/batchworkdir/%s" % job)) / "model"
        folder.mkdir(exist_ok=True)
        return folder / name

    def text(host, name):
        return path(host, name).read_text() if path(host, name).exists() else None

    for number, (first, last) in enumerate((trains, trains[::-1])):
        name, sign = "both-%d" % number, "sign-%d" % number
        third = next(host for host in mesh.hosts if host not in trains)
        os.kill(first.process.pid, signal.SIGSTOP)
        path(first, name).write_text("first")
        path(last, name).write_text("last")
        while path(last, name).stat().st_ctime_ns // 10**6 <= path(first, name).stat().st_ctime_ns // 10**6:
            path(last, name).write_text("last")
        mesh.until(lambda: text(third, name) == "last", 60, "the third host has it")
        path(first, sign).write_text(sign)
        os.kill(first.process.pid, signal.SIGCONT)
        for host in mesh.hosts:
            mesh.until(lambda: text(host, sign) == sign, 60, "what %s wrote is on %s" % (first.name, host.name))
            mesh.until(lambda: text(host, name) == "last", 20, "%s has what was written last" % host.name)


TWO_CALLS = """
import os
import time
import torch
from fabric_model import FabricModel

MARKS = os.environ["MARKS"]

def mark(what):
    open(os.path.join(MARKS, what + os.environ["RESULT_DIR"].replace("/", "+")), "w").close()

if os.environ.get("DLI_IS_DRIVER"):
    mark("driver")

class Rows(torch.utils.data.Dataset):
    call = 1
    def __len__(self):
        return 400
    def __getitem__(self, i):
        if self.call == 2:
            mark("second")
        if not os.path.exists(os.path.join(MARKS, "over-%d" % self.call)):
            time.sleep(0.05)
        return torch.zeros(2), 0

model = torch.nn.Linear(2, 2)
fabric = FabricModel(model, lambda: (Rows(), None), torch.nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()))
fabric.train(1, 4, 2)
Rows.call = 2
fabric.train(9, 4, 2)
"""


def test_an_agent_that_was_restarted_knows_which_call_its_workers_are_in(new_mesh, script, tmp_path):
    """A host wrote a file in a call before, stands still, and tells of it after a host that wrote it later, and was restarted."""
    pytest.importorskip("torch")
    mesh = new_mesh(slots=1)
    marks = tmp_path / "marks"
    marks.mkdir()
    job = submit(mesh, mesh.hosts[0], script(TWO_CALLS), "--workers", 2, "--env", "MARKS=%s" % marks, framework="edtPyTorch")

    def on_two():
        at = {worker[0].name: worker[0] for worker in mesh.workers(job).values() if worker[3]["applied"] > 0}
        return len(at) == 2 and list(at.values())

    def path(host):
        folder = next(host.data.glob("results/*/batchworkdir/%s" % job))
        return folder / "both"

    def text(host):
        return path(host).read_text() if path(host).exists() else None

    def marked(what):
        names = [mark.name for mark in marks.glob(what + "+*")]
        return [host for host in mesh.hosts if any(str(host.data).replace("/", "+") in name for name in names)]

    early = next(host for host in mesh.until(on_two, 60, "engines on two hosts") if host not in marked("driver"))
    os.kill(early.process.pid, signal.SIGSTOP)
    path(early).write_text("early")
    (marks / "over-1").touch()

    third, late = mesh.until(lambda: len(marked("second")) == 2 and sorted(marked("second"), key=lambda host: host not in marked("driver")),
                             90, "two engines in the second call")  # who has the driver is told the call in any case
    late.kill()
    late.start()
    mesh.until(lambda: mesh.knows(late, 2), 30, "%s knows the third host" % late.name)
    mesh.until(lambda: mesh.workers(job, [late]), 30, "its worker is found")
    path(late).write_text("late")
    mesh.until(lambda: text(third) == "late", 60, "the third host has it")
    os.kill(early.process.pid, signal.SIGCONT)
    for host in mesh.hosts:
        mesh.until(lambda: text(host) == "late", 30, "%s has what was written last" % host.name)
