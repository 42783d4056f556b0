"""Some time after its end a job leaves gossip and Raft for the archive, and its user does not notice."""

import shutil

import pytest
import training
from helpers import ended, groups, log_of, result_of, submit
from pyedt import _records
from training import Run

SCRIPT = """
import os, sys
print("the only line of", os.environ["DLI_EXECID"])
print("a complaint", file=sys.stderr)
os.makedirs(os.path.join(os.environ["RESULT_DIR"], "model", "deep"), exist_ok=True)
with open(os.path.join(os.environ["RESULT_DIR"], "model", "deep", "weights"), "wb") as out:
    out.write(bytes(range(256)) * 5000)
"""
EXECS = "/platform/rest/deeplearning/v1/execs"
OF_A_HOST = ("workDir", "resultDir", "joinPauseUs", "stepsPerSecond", "loss", "accuracy")  # and what is rounded


@pytest.fixture(autouse=True)
def no_job_stays():
    yield
    Run.end_all()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "elastic"
    path.mkdir()
    (path / "main.py").write_text(training.SCRIPT)
    return path


def holders(mesh, job):
    """The hosts that hold the job's final record."""
    found = []
    for host in mesh.hosts:
        try:
            found += [host for record in host.get("/v1/debug/archive") if record["job"] == job and record["final"]]
        except OSError:
            pass
    return found


def is_archived(mesh, job):
    return len(holders(mesh, job)) == 3 and not any(job in groups(host) for host in mesh.hosts)


def listed(host):
    return {facts["id"]: facts["state"] for facts in host.get("/v1/jobs?limit=1000")["jobs"]}


def answers(mesh, host, job, folder):
    """What a user asks about a job, as one host answers it."""
    facts = mesh.cli(host, "job", "show", job)
    exec_facts = host.get(EXECS + "/" + job)
    # Who leads a job that has ended may change until it is in the archive, where a host stands still for a second.
    return {"show": {name: value for name, value in facts.items() if name not in (*OF_A_HOST, "leader", "term")},
            "by its ending": mesh.cli(host, "job", "show", job[-9:])["id"],
            "exec": {name: exec_facts[name] for name in ("id", "state", "creator", "args", "createTime") if name in exec_facts},
            "out": log_of(mesh, host, job), "err": log_of(mesh, host, job, "--which", "err"),
            "result": result_of(mesh, host, job, folder),
            "ledger": host.get("/v1/jobs/%s/ledger" % job), "metrics": host.get("/v1/jobs/%s/metrics" % job),
            "curve": mesh.shoal("job", "metrics", job, "--csv", "--node", host.url).stdout,
            "why": mesh.shoal("why", job, "--node", host.url).stdout}


def assert_answers(mesh, jobs, before, folder):
    for host in mesh.hosts:
        mesh.until(lambda: all(listed(host).get(job) == "FINISHED" for job in jobs), 20, "%s lists them" % host.name, pause=0.2)
        assert sorted(facts["id"] for facts in host.get(EXECS) if facts["id"] in jobs) == sorted(jobs)
        for job in jobs:
            now = answers(mesh, host, job, folder)
            for question in before[job]:
                assert now[question] == before[job][question], (host.name, question)


def assert_metrics(host, job):
    """Every committed step with its loss and metrics, as the ledger's records have them; thinned, no peak is lost."""
    data, offset, steps, validations = (host.data / "jobs" / job / "ledger").read_bytes(), 0, [], []
    while offset < len(data):
        record, end = _records.decode(data, offset + 4)
        offset = end
        samples = sum(part[0] for part in record.parts)
        means = [sum(part[0] * value for part, value in zip(record.parts, values)) / samples
                 for values in zip(*(part[4] for part in record.parts))]
        if record.kind == 0:
            steps.append(means)
        elif record.kind == 1:
            validations.append((len(steps), means))
    curve = host.get("/v1/jobs/%s/metrics" % job)
    assert curve["whole"] is True and curve["steps"] == len(steps) > 15 and curve["stride"] == 1
    assert [point["step"] for point in curve["points"]] == list(range(1, len(steps) + 1))
    for point, means in zip(curve["points"], steps):
        assert point["values"] == pytest.approx(means, rel=1e-8) and "min" not in point
    assert [point["step"] for point in curve["validations"]] == [step for step, _ in validations] and validations
    for point, (_, means) in zip(curve["validations"], validations):
        assert point["values"] == pytest.approx(means, rel=1e-8)
    assert curve["calls"] == [{"call": 1, "names": ["loss", "accuracy"]}]
    thinned = host.get("/v1/jobs/%s/metrics?points=4" % job)
    stride = thinned["stride"]
    assert len(thinned["points"]) <= 4 and stride == -(-len(steps) // 4)
    for i, point in enumerate(thinned["points"]):
        part = steps[i * stride:(i + 1) * stride]
        assert point["step"] == i * stride + len(part) and point["values"] == pytest.approx(part[-1], rel=1e-8)
        assert point["min"] == pytest.approx([min(values) for values in zip(*part)], rel=1e-8)
        assert point["max"] == pytest.approx([max(values) for values in zip(*part)], rel=1e-8)
    part = host.get("/v1/jobs/%s/metrics?from=3&to=5&points=4" % job)
    assert part["points"] == curve["points"][2:5] and part["steps"] == 3


def test_nobody_notices(new_mesh, script, folder, tmp_path):
    mesh = new_mesh(("alpha", "beta", "gamma", "delta"), slots=1, agent_options=("--archive-after", "12", *training.ONE_JOB))
    run = Run(mesh, mesh.hosts[1], folder, workers=2, epochs=1)
    run.finish(120)
    jobs = [run.job, submit(mesh, mesh.hosts[0], script(SCRIPT))]
    assert ended(mesh, jobs[1])["state"] == "FINISHED"
    mesh.until(lambda: log_of(mesh, mesh.hosts[2], jobs[1]), 5, "the log")
    # As the leader says it: a node that has no ledger of the job counts validations as steps.
    leaders = {job: next(host for host in mesh.hosts if host.name == mesh.job(job)["leader"]) for job in jobs}
    before = {job: answers(mesh, leaders[job], job, tmp_path) for job in jobs}
    assert "the only line of" in before[jobs[1]]["out"] and "a complaint" in before[jobs[1]]["err"]
    assert len(before[jobs[1]]["result"]["model/deep/weights"]) == 1280000 and before[jobs[0]]["ledger"]["exact"] is True
    assert all(any(job in groups(host) for host in mesh.hosts) for job in jobs)  # not yet
    assert_metrics(leaders[run.job], run.job)
    assert before[jobs[1]]["metrics"]["points"] == []

    mesh.until(lambda: all(is_archived(mesh, job) for job in jobs), 60, "both are in the archive", pause=0.3)
    # The mesh's own group may have grown meanwhile: only those of the jobs count.
    mesh.until(lambda: not any(job in groups(host) for host in mesh.hosts for job in jobs), 10, "no guardian holds a group of them")
    assert_answers(mesh, jobs, before, tmp_path)

    # A holder is gone with its disk: the host that held nothing takes its place.
    lost = next(host for host in holders(mesh, jobs[0]) if host is not mesh.hosts[0])
    mesh.hosts.remove(lost)
    lost.lose()
    mesh.until(lambda: all(len(holders(mesh, job)) == 3 for job in jobs), 60, "both are on three hosts again", pause=0.3)
    assert_answers(mesh, jobs, before, tmp_path)

    # An agent restarts: it knows what it holds, and what the others hold.
    mesh.hosts[0].kill()
    mesh.hosts[0].start()
    mesh.until(lambda: mesh.knows(mesh.hosts[0], 3), 30, "it is back")
    assert_answers(mesh, jobs, before, tmp_path)

    # Deleted while a holder is away: it forgets the job as well. A majority of the mesh group decides that (A10), and the lost
    # host may be one of its three for a minute yet.
    away = next((host for host in mesh.hosts[1:] if "mesh" not in groups(host)), mesh.hosts[2])
    asked = next(host for host in mesh.hosts[1:] if host is not away)
    away.kill()
    mesh.until(lambda: mesh.shoal("job", "delete", jobs[1], "--node", asked.url, check=False).returncode == 0, 30,
               "it is deleted", pause=0.3)
    away.start()
    mesh.until(lambda: mesh.knows(away, 3) and not holders(mesh, jobs[1]), 60, "nobody holds it", pause=0.3)
    for host in mesh.hosts:
        mesh.until(lambda: jobs[1] not in listed(host), 20, "%s lists it no more" % host.name, pause=0.2)
        assert mesh.shoal("job", "show", jobs[1], "--node", host.url, check=False).returncode == 3
        mesh.until(lambda: not list(host.data.glob("results/*/batchworkdir/" + jobs[1])) and
                   not (host.data / "jobs" / jobs[1]).exists() and not (host.data / "blobs/held" / jobs[1]).exists(), 10,
                   "nothing of it lies on %s" % host.name, pause=0.2)
    assert_answers(mesh, jobs[:1], before, tmp_path)


def test_a_job_that_left_nothing_has_no_file_in_the_archive(new_mesh, script):
    mesh = new_mesh(slots=1, agent_options=("--archive-after", "2"))
    job = submit(mesh, mesh.hosts[0], script("pass"))
    assert ended(mesh, job)["state"] == "FINISHED"
    mesh.until(lambda: is_archived(mesh, job), 60, "it is in the archive", pause=0.3)
    for host in mesh.hosts:
        assert not (host.data / "jobs" / job / "audit").exists() and not (host.data / "jobs" / job / "archive").exists()
        assert log_of(mesh, host, job) == ""
        ledger = host.get("/v1/jobs/%s/ledger" % job)
        assert ledger["exact"] is True and ledger["steps"] == 0 and ledger["job"] == job


def test_a_leader_that_lacks_the_log_archives_what_the_others_have(new_mesh, script):
    mesh = new_mesh(slots=1, agent_options=("--archive-after", "4"))
    job = submit(mesh, mesh.hosts[0], script(SCRIPT))
    facts = ended(mesh, job)
    logs = "results/*/batchworkdir/%s/log" % job
    mesh.until(lambda: all(any(path.stat().st_size for path in host.data.glob(logs + "/*/stdout")) for host in mesh.hosts), 5,
               "every guardian has the log")
    leader = next(host for host in mesh.hosts if host.name == facts["leader"])
    for path in leader.data.glob(logs):  # as if it had been away at the end
        shutil.rmtree(path)
    mesh.until(lambda: is_archived(mesh, job), 60, "it is in the archive", pause=0.3)
    for host in mesh.hosts:
        assert log_of(mesh, host, job) == "the only line of %s\n" % job
