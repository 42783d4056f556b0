"""Power cuts: what was acknowledged is there afterwards, whole, and training ends with the bits of a calm run."""

import re
import time

import pytest
import training
from helpers import submit
from power import PowerMesh
from training import ONE_JOB, Outcome, Run

from conftest import OUT

CHECKPOINTS = """
import os
import time

where = os.environ["CHECKPOINT_DIR"]
for number in range(0 if os.path.exists(os.path.join(where, "done")) else 39):
    path = os.path.join(where, "state-%d" % number)
    with open(path + ".new", "wb") as file:
        file.write(b"%d." % number * 5000)
    os.rename(path + ".new", path)
if not os.path.exists(os.path.join(where, "done")):
    with open(os.path.join(where, "done"), "w") as file:
        file.write("done")
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
"""

WAITS = """
import os
import time

open(os.environ["BEGAN"], "w").close()
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
"""

EVERY_HOST = pytest.mark.parametrize("strike", [
    pytest.param(lambda mesh: mesh.cut_power(), id="a power cut"),
    pytest.param(lambda mesh: mesh.kill_all(), id="a kill of every process"),
])


@pytest.fixture
def power_mesh():
    made = []

    def make(names=("alpha", "beta", "gamma"), **options):
        mesh = PowerMesh(OUT / "shoal", **options)
        made.append(mesh)
        mesh.grow(names)
        return mesh

    yield make
    Run.end_all()
    for mesh in made:
        for host in mesh.hosts:
            print("---- log of %s\n%s" % (host.name, host.log.read_text()[-4000:]))
        mesh.__exit__(None, None, None)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "main.py").write_text(training.SCRIPT)
    return path


def states(host, job):
    """{name: bytes} of a job's checkpoints on a host."""
    found = {}
    for path in host.data.glob("results/*/batchworkdir/%s/checkpoint/*" % job):
        try:
            found[path.name] = path.read_bytes()
        except FileNotFoundError:
            pass  # it has got its name meanwhile
    return found


@EVERY_HOST
def test_all_hosts_fall_at_once_and_no_checkpoint_is_lost(power_mesh, script, tmp_path, strike):
    mesh = power_mesh()
    go = tmp_path / "go"
    job = submit(mesh, mesh.hosts[0], script(CHECKPOINTS), "--env", "GO=%s" % go)
    wanted = {"state-%d" % number: b"%d." % number * 5000 for number in range(39)}
    wanted["done"] = b"done"
    mesh.until(lambda: all(states(host, job) == wanted for host in mesh.hosts), 150, "every host has every checkpoint")
    strike(mesh)
    mesh.until(lambda: mesh.job(job) and all(mesh.knows(host, 3) for host in mesh.hosts), 60, "the hosts are back")
    mesh.until(lambda: all(states(host, job) == wanted for host in mesh.hosts), 90, "every host has every checkpoint again")
    go.touch()
    facts = mesh.until(lambda: (f := mesh.job(job)) and f["hasEnded"] and f, 90, "the job's end")
    assert facts["state"] == "FINISHED", facts["detail"]
    for host in mesh.hosts:
        assert states(host, job) == wanted, host.name


@EVERY_HOST
def test_training_goes_on_after_all_hosts_fell_at_once(power_mesh, folder, tmp_path, strike):
    mesh = power_mesh(agent_options=ONE_JOB)
    run = Run(mesh, mesh.hosts[1], folder, workers=4, epochs=2, pace=0.006)
    run.gather()
    run.step(22)
    strike(mesh)
    mesh.until(lambda: all(mesh.knows(host, 3) for host in mesh.hosts), 60, "the hosts are back")
    run.seen.clear()
    run.finish(300)
    outcome = Outcome(run, mesh.hosts[-1], tmp_path)
    training.assert_exact(outcome)
    training.assert_same_bits(outcome, training.calm(run.epochs))
    for host in mesh.hosts:
        assert training.parse_ledger((host.data / "jobs" / run.job / "ledger").read_bytes())


def test_a_ledger_that_lacks_records_is_never_called_exact(power_mesh, folder, tmp_path):
    mesh = power_mesh(agent_options=ONE_JOB)
    run = Run(mesh, mesh.hosts[0], folder, workers=2, epochs=1)
    run.finish(240)
    paths = [host.data / "jobs" / run.job / "ledger" for host in mesh.hosts]

    def ledgers():
        try:
            return [host.get("/v1/jobs/%s/ledger" % run.job) for host in mesh.hosts]
        except OSError:
            return None  # a host that has just started does not know the job yet
    mesh.until(lambda: all(path.exists() and path.read_bytes() == paths[0].read_bytes() for path in paths), 20, "all have it")
    whole = ledgers()[0]
    assert whole["exact"] and whole["records"] == whole["records_wanted"] == run.schedule.last
    for cut in (paths[:1], paths):
        for host in mesh.hosts:
            host.kill()
        for path in cut:
            path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
        for host in mesh.hosts:
            host.start()
        mesh.until(lambda: all(mesh.knows(host, 3) for host in mesh.hosts), 60, "the hosts are back")
        found = mesh.until(ledgers, 30, "every host answers")
        if cut is paths:
            assert all(not ledger["exact"] and ledger["records"] < ledger["records_wanted"] for ledger in found), found
            assert all("records of" in ledger["errors"][-1] for ledger in found), found
        else:  # one that is short asks another
            assert all(ledger["exact"] for ledger in found), found


@EVERY_HOST
def test_a_script_runs_again_after_all_hosts_fell_at_once(power_mesh, script, tmp_path, strike):
    mesh = power_mesh()
    go, began = tmp_path / "go", tmp_path / "began"
    job = submit(mesh, mesh.hosts[0], script(WAITS), "--env", "GO=%s" % go, "--env", "BEGAN=%s" % began)
    mesh.until(began.exists, 60, "the script runs")
    strike(mesh)
    go.touch()
    facts = mesh.until(lambda: (f := mesh.job(job)) and f["hasEnded"] and f, 120, "the job's end")
    assert facts["state"] == "FINISHED", facts["detail"]


@pytest.mark.alone  # it measures how late a loop is
def test_a_disk_that_answers_nothing_holds_up_no_loop(power_mesh, script, tmp_path):
    mesh = power_mesh()
    go, host = tmp_path / "go", mesh.hosts[1]
    job = submit(mesh, mesh.hosts[0], script(CHECKPOINTS), "--env", "GO=%s" % go)
    mesh.until(lambda: any(states(other, job) for other in mesh.hosts), 60, "checkpoints come")
    before = len(host.log.read_text())
    host.stalled.touch()
    until = time.monotonic() + 4
    mesh.until(lambda: time.monotonic() > until, 10, "the disk answers nothing for a while")
    host.stalled.unlink()
    go.touch()
    facts = mesh.until(lambda: (f := mesh.job(job)) and f["hasEnded"] and f, 90, "the job's end")
    assert facts["state"] == "FINISHED", facts["detail"]
    late = [int(ms) for ms in re.findall(r"the loop was (\d+) ms late", host.log.read_text()[before:])]
    assert max(late, default=0) < 1000, late
