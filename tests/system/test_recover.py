"""A majority of a job's guardians is gone for good: `shoal job recover`."""

import json

import pytest
import training
from helpers import ended, submit
from training import ONE_JOB, Outcome, Run


@pytest.fixture(autouse=True)
def no_job_stays():
    yield
    Run.end_all()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    (path / "main.py").write_text(training.SCRIPT)
    return path


def recover(mesh, host, job, *options):
    """The answer once the losses are known; (exit code, what was said) of the last refusal before it."""
    refused = []

    def asked():
        done = mesh.shoal("job", "recover", job, *options, "--node", host.url, "--output", "json", check=False)
        if done.returncode == 0:
            return json.loads(done.stdout)
        refused.append((done.returncode, done.stderr))
        return None

    return mesh.until(asked, 30, "%s is recovered" % job, pause=0.3), refused


def lose_but_one(mesh, run, facts):
    """Two of three guardians, the leader first, their folders too; the host that is left."""
    leader = run.host(facts["leader"])
    left = next(host for host in mesh.hosts if host is not leader and host is not run.submitter)
    for host in [leader, *[host for host in mesh.hosts if host not in (leader, left)]]:
        run.lose(host)
    return left


def test_an_elastic_job_goes_on_from_the_replica_that_is_left(new_mesh, folder, tmp_path):
    mesh = new_mesh(agent_options=ONE_JOB)
    run = Run(mesh, mesh.hosts[1], folder, epochs=4, pace=0.03)
    run.gather()
    facts = run.step(12)
    done = mesh.shoal("job", "recover", run.job, "--yes", "--node", mesh.hosts[0].url, check=False)
    assert done.returncode == 7 and "3 of its 3 guardians" in done.stderr, done  # nothing is lost
    left = lose_but_one(mesh, run, facts)
    told, refused = recover(mesh, left, run.job)
    assert told["recovered"] is False and told["generation"] == 1 and told["node"] == left.name
    assert told["guardians"] == 3 and len(told["lost"]) == 2 and "missing" in told["text"]
    assert all(code == 5 and "has not answered" in text for code, text in refused), refused
    before = mesh.shoal("job", "recover", run.job, "--node", left.url).stdout
    assert "shoal job recover %s --yes" % run.job in before
    told, _ = recover(mesh, left, run.job, "--yes")
    assert told["recovered"] is True and told["generation"] == 2
    fresh = [mesh.add(name, seed=left) for name in ("delta", "epsilon")]  # they come later, and become its guardians
    run.until(lambda now: now["generation"] == 2 and now["steps"] > facts["steps"] + 3, 60, "steps of generation 2")
    run.finish(120)
    for host in fresh:
        mesh.until(lambda: run.job in {group["group"] for group in host.get("/v1/debug/groups")}, 30,
                   "%s guards it" % host.name)
    outcome = Outcome(run, left, tmp_path)
    training.assert_exact(outcome)
    training.assert_same_bits(outcome, training.calm(4))
    assert mesh.shoal("job", "recover", run.job, "--node", left.url, check=False).returncode == 7


def test_a_script_starts_its_next_attempt(new_mesh, script, tmp_path):
    mesh = new_mesh(slots=1)
    release = tmp_path / "release"
    text = ("import os, sys, time\n"
            "open('%s.%d' % (sys.argv[1], os.getpid()), 'w').close()\n"
            "while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n")
    job = submit(mesh, mesh.hosts[0], script(text), script=(str(release),))
    mesh.until(lambda: len(list(tmp_path.glob("release.*"))) == 1, 30, "the first attempt runs")
    facts = mesh.job(job)
    left = next(host for host in mesh.hosts if host.name != facts["leader"])
    for host in [host for host in mesh.hosts if host is not left]:
        mesh.hosts.remove(host)
        host.lose()
    told, _ = recover(mesh, left, job, "--yes")
    assert told["generation"] == 2
    mesh.until(lambda: len(list(tmp_path.glob("release.*"))) == 2, 60, "the second attempt runs")
    release.touch()
    assert ended(mesh, job)["state"] == "FINISHED"
