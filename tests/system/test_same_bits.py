"""The same bits: one seeded job, trained by one worker, by six on three hosts, and by six while workers are killed and
stopped, a host is lost and another joins. Weights, buffers, optimizer state, ledger and per-step losses are equal to the
bit."""

import os
import signal

import pytest
import training
from training import Outcome, Run

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_job_stays():
    yield
    Run.end_all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "main.py").write_text(training.SCRIPT)
    return path


@pytest.fixture(scope="module")
def reference(mesh, folder, tmp_path_factory):
    """One worker, undisturbed."""
    run = Run(mesh, mesh.hosts[0], folder, workers=1)
    run.finish(120)
    outcome = Outcome(run, mesh.hosts[1], tmp_path_factory.mktemp("reference"))
    training.assert_exact(outcome)
    training.assert_training_was_one(run, outcome, run.seen)
    assert len(outcome.shares) == 1
    return outcome


def test_six_workers_on_three_hosts_compute_what_one_computes(mesh, folder, reference, tmp_path):
    run = Run(mesh, mesh.hosts[1], folder)
    founders = run.gather()
    run.step(30)
    for host in mesh.hosts:
        bundle = host.data / "jobs" / run.job / "call.bundle"
        assert bundle.read_bytes()[:8] == b"SHOALCB1", "the engine server looks there for what to preload"
    run.finish()
    outcome = Outcome(run, mesh.hosts[2], tmp_path)
    training.assert_exact(outcome)
    training.assert_training_was_one(run, outcome, founders)
    assert len(outcome.shares) == 6
    assert {host.name for host, _, _ in run.seen.values()} == {host.name for host in mesh.hosts}
    training.assert_same_bits(outcome, reference)


def test_kills_stops_the_loss_of_the_leaders_host_and_a_join_leave_no_trace(new_mesh, folder, reference, tmp_path):
    mesh = new_mesh(agent_options=training.ONE_JOB)
    run = Run(mesh, mesh.hosts[1], folder, pace=0.01)
    run.gather()
    facts = run.step(5)
    victim = next(host for host in mesh.hosts if host.name == facts["leader"])
    others = [host for host in mesh.hosts if host is not victim]
    founders = {worker for host in others for worker in run.on(host)}

    killed = sorted(run.on(others[0]))[0]
    os.kill(run.seen[killed][1], signal.SIGKILL)
    run.lost.add(killed)
    facts = run.step(facts["steps"] + 5)

    stopped = sorted(run.on(others[1]))[0]
    os.kill(run.seen[stopped][1], signal.SIGSTOP)
    run.lost.add(stopped)
    facts = run.step(facts["steps"] + 5, 30)  # whoever stands still is left behind
    mesh.until(lambda: not training.lives(*run.seen[stopped][1:]), 20, "the stopped worker is ended")

    run.lost |= set(run.on(victim))
    mesh.hosts.remove(victim)
    victim.lose()
    run.goes_on()

    fourth = mesh.add("delta", seed=mesh.hosts[0])
    run.joined(fourth)
    run.finish()
    outcome = Outcome(run, fourth, tmp_path)
    training.assert_exact(outcome)
    training.assert_training_was_one(run, outcome, founders - run.lost)
    training.assert_same_bits(outcome, reference)
