"""Array jobs: one specification, many tasks; a host that dies under them, a task that fails, a stop, bad ranges."""

import pathlib
import shutil
import subprocess
import urllib.error

import pytest
from helpers import ended, log_of

PYTHON_LESS = ("--framework", "PyTorch", "--command")

# Prints its index, says where it stands, and may fail. A shell alone: an array has many tasks.
TASK = """echo "task $SHOAL_ARRAY_TASK_ID of $SHOAL_ARRAY_TASK_COUNT"
[ "$SHOAL_ARRAY_TASK_ID" = "$SLURM_ARRAY_TASK_ID" ] || exit 99
[ "$SHOAL_ARRAY_TASK_MIN" -le "$SHOAL_ARRAY_TASK_ID" ] && [ "$SHOAL_ARRAY_TASK_ID" -le "$SHOAL_ARRAY_TASK_MAX" ] || exit 98
"""


def run_array(mesh, host, ranges, text, *options):
    return mesh.cli(host, "job", "run", *PYTHON_LESS, "--array", ranges, *options, "--", "/bin/sh", "-c", text)["id"]


def tasks_of(host, job, query=""):
    """All pages of the table."""
    rows, after = [], ""
    while True:
        page = host.get("/v1/jobs/%s/tasks?limit=25%s%s" % (job, query, after))
        rows += page["tasks"]
        if "next" not in page:
            return rows
        after = "&after=%d" % page["next"]


def refused(mesh, host, *words):
    """What the command line says of a request that is refused."""
    end = words.index("--") if "--" in words else len(words)
    done = mesh.shoal(*words[:end], "--node", host.url, *words[end:], check=False)
    assert done.returncode != 0, done.stdout
    assert done.returncode == 2 or "--array" not in words, (done.returncode, done.stderr)
    return done.stderr


def refused_get(host, path):
    with pytest.raises(urllib.error.HTTPError) as refusal:
        host.get(path)
    return refusal.value.read().decode()


def test_each_task_has_its_index_log_and_exit_code(mesh):
    through, other = mesh.hosts[0], mesh.hosts[2]
    job = run_array(mesh, through, "10-49:3", TASK)
    facts = ended(mesh, job)
    assert facts["state"] == "FINISHED", facts["detail"]
    assert facts["exitCode"] == 0
    assert facts["array"] == {"tasks": 14, "done": 14, "failed": 0, "running": 0}
    rows = tasks_of(other, job)
    assert [row["index"] for row in rows] == list(range(10, 50, 3))
    assert {row["state"] for row in rows} == {"DONE"} and {row["exitCode"] for row in rows} == {0}
    assert {row["attempts"] for row in rows} == {1}
    assert {row["node"] for row in rows} <= {host.name for host in mesh.hosts}
    for index in (10, 49):
        mesh.until(lambda: log_of(mesh, other, job, "--task", index) == "task %d of 14\n" % index, 10,
                   "the log of task %d" % index)
    listed = mesh.shoal("job", "list", "--node", other.url).stdout
    mesh.until(lambda: "ARRAY 14/14 done" in mesh.shoal("job", "list", "--node", other.url).stdout, 5,
               "the list says how many are done: %s" % listed)


def test_a_task_that_fails_does_not_stop_the_others(mesh):
    host = mesh.hosts[1]
    job = run_array(mesh, host, "0-19%3", TASK + '[ "$SHOAL_ARRAY_TASK_ID" != 7 ] || { echo no such luck >&2; exit 5; }')
    facts = ended(mesh, job)
    assert facts["state"] == "ERROR" and facts["exitCode"] == 5
    assert "1 of 20 tasks failed; the first of them is task 7, with exit status 5" in facts["detail"]
    assert facts["array"] == {"tasks": 20, "done": 19, "failed": 1, "running": 0}
    failed = tasks_of(host, job, "&state=failed")
    assert [(row["index"], row["exitCode"], row["attempts"]) for row in failed] == [(7, 5, 1)]
    assert "7 FAILED" in mesh.shoal("job", "tasks", job, "--failed", "--node", host.url).stdout
    mesh.until(lambda: log_of(mesh, host, job, "--task", 7, "--which", "err") == "no such luck\n", 10, "its stderr")


def test_a_stop_ends_all_tasks_and_a_deletion_leaves_nothing(mesh):
    host = mesh.hosts[0]
    job = run_array(mesh, host, "0-99", "while :; do sleep 1; done")
    mesh.until(lambda: host.get("/v1/jobs/" + job)["array"]["running"] > 0, 30, "some run")
    mesh.shoal("job", "stop", job, "--node", mesh.hosts[2].url)
    assert ended(mesh, job, 45)["state"] == "KILLED"
    mesh.until(lambda: {row["state"] for row in tasks_of(host, job)} == {"STOPPED"}, 10, "no task is left")
    free = lambda: all(n["slotsFree"] == n["slots"] for n in host.get("/v1/nodes"))  # noqa: E731
    mesh.until(free, 10, "its slots are free again")
    mesh.shoal("job", "delete", job, "--node", host.url)
    mesh.until(lambda: "no such job" in (said := refused(mesh, host, "job", "tasks", job)) or "deleted" in said, 15,
               "it is unknown")


@pytest.mark.parametrize("ranges,said", [
    ("0-9999999", "10000000 tasks are too many: a job has at most 100000"),
    ("9-0", "9-0 is reversed"),
    ("0-9,5", "index 5 is named twice"),
    ("0-9%0", "%0 lets no task run"),
    ("some", "a number is missing"),
    (",".join(map(str, range(0, 200, 2))), "--array: longer than 255 bytes"),
])
def test_a_bad_range_makes_no_job(mesh, ranges, said):
    host = mesh.hosts[0]
    before = len(host.get("/v1/jobs")["jobs"])
    assert said in refused(mesh, host, "job", "run", *PYTHON_LESS, "--array", ranges, "--", "/bin/true")
    assert len(host.get("/v1/jobs")["jobs"]) == before


def test_what_an_array_does_not_have_is_said(mesh, script):
    host = mesh.hosts[0]
    job = run_array(mesh, host, "0-3", "exit 0")
    ended(mesh, job)
    assert "has no task 17" in refused_get(host, "/v1/jobs/%s/tasks?after=17" % job)
    assert "is not a number from 1 to 500" in refused_get(host, "/v1/jobs/%s/tasks?limit=501" % job)
    assert "is not pending, running" in refused_get(host, "/v1/jobs/%s/tasks?state=lost" % job)
    assert "each of the 4 tasks of this array has its own log" in refused_get(host, "/v1/jobs/%s/log" % job)
    plain = mesh.cli(host, "job", "run", *PYTHON_LESS, "--", "/bin/true")["id"]
    ended(mesh, plain)
    assert "is no array" in refused_get(host, "/v1/jobs/%s/tasks" % plain)
    elastic = ("--framework", "edtPyTorch", "--model-main", "main.py", "--model-dir", script("pass"))
    assert "one worker each" in refused(mesh, host, "job", "run", *elastic, "--array", "0-3")


def test_a_host_that_dies_loses_no_task(new_mesh):
    mesh = new_mesh()
    job = run_array(mesh, mesh.hosts[0], "1-60", TASK + "sleep 0.3")
    mesh.until(lambda: mesh.hosts[0].get("/v1/jobs/" + job)["array"]["done"] >= 12, 60, "a fifth is done")
    mesh.hosts[2].lose()
    left = mesh.hosts[:2]
    facts = ended(mesh, job, 120, hosts=left)
    assert facts["state"] == "FINISHED", facts["detail"]
    assert facts["array"] == {"tasks": 60, "done": 60, "failed": 0, "running": 0}
    rows = tasks_of(left[1], job)
    assert [row["index"] for row in rows] == list(range(1, 61))
    assert {(row["state"], row["exitCode"]) for row in rows} == {("DONE", 0)}
    again = [row for row in rows if row["attempts"] > 1]
    assert len(again) <= mesh.slots and all(row["node"] != "gamma" for row in again)
    for row in rows:
        if row["node"] != "gamma":
            want = "task %d of 60\n" % row["index"]  # after what was heard of an attempt on the lost host
            mesh.until(lambda: (log := log_of(mesh, left[0], job, "--task", row["index"])) and log.replace(want, "") == ""
                       and (row["attempts"] > 1 or log == want), 10, "the log of %s" % row)


@pytest.fixture
def host_without_processes(new_mesh, tmp_path):
    """A fourth host, whose spawn helper can fork nothing. It is the agent's own program: the small one beside it takes no preload."""
    source, made = pathlib.Path(__file__).with_name("preload") / "no_fork.c", tmp_path / "no_fork.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", made, source, "-ldl"], check=True)
    mesh = new_mesh()
    poor = mesh.host_class(mesh, "poor")
    poor.prepare(mesh.hosts[0])
    poor.within = ["env", "LD_PRELOAD=%s" % made]
    mesh.hosts.append(poor)
    program, mesh.binary = mesh.binary, shutil.copy(mesh.binary, tmp_path)
    poor.start()
    mesh.binary = program
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 4), 30, "%s knows 4 hosts" % host.name)
    return mesh, poor


def test_a_host_that_starts_nothing_costs_no_attempt(host_without_processes):
    mesh, poor = host_without_processes
    job = run_array(mesh, mesh.hosts[0], "0-19", "sleep 1")
    scripts = [mesh.cli(mesh.hosts[0], "job", "run", *PYTHON_LESS, "--", "/bin/sh", "-c", "sleep 1")["id"] for _ in range(6)]
    refusal = "no process for the runner of %s: Resource temporarily unavailable; raise the limit of processes"
    mesh.until(lambda: refusal % job in mesh.job(job, *mesh.hosts)["detail"], 10, "why that host takes no part")
    facts = ended(mesh, job)
    assert facts["state"] == "FINISHED", facts["detail"]
    rows = tasks_of(mesh.hosts[1], job)
    assert {row["attempts"] for row in rows} == {1} and poor.name not in {row["node"] for row in rows}
    for script in scripts:
        facts = ended(mesh, script)
        assert facts["state"] == "FINISHED", facts["detail"]
    assert "no process for the runner of" in poor.log.read_text()
