"""Kills at named points and at random moments, of every role, under one elastic job: no step is missing or repeated, no
survivor is restarted, no checkpoint is read, and the final bits are those of an undisturbed run."""

import importlib.util
import os
import random
import re
import signal
import statistics
import time

import pytest
import training
from training import Outcome, Run

SEED = int(os.environ.get("SHOAL_DRAW", "1"), 0)  # another one for each commit, or SEED: tests/run.py


@pytest.fixture(autouse=True)
def no_job_stays():
    yield
    Run.end_all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "main.py").write_text(training.SCRIPT)
    return path


def check(run, tmp_path, founders=()):
    run.finish(90)
    outcome = Outcome(run, run.mesh.hosts[-1], tmp_path)
    training.assert_exact(outcome)
    training.assert_training_was_one(run, outcome, founders)
    training.assert_same_bits(outcome, training.calm(run.epochs))


@pytest.mark.parametrize("rules", [
    pytest.param("before_publish:20", id="one dies before it publishes a mini-batch"),
    pytest.param("mid_reduce:25", id="one dies in the middle of a reduction between hosts"),
    pytest.param("after_complete:30", id="one dies after it has declared a step complete"),
    pytest.param("before_apply:30", id="one dies when everybody has the result and before it applies it"),
    pytest.param("before_publish:10 join_copy:*", id="one dies, and its successor while it copies the state"),
    pytest.param("before_publish:10 give_copy:*", id="one dies, and the donor while its successor copies the state"),
    pytest.param("before_publish:20 entering:*", id="one dies, and another while it enters the next epoch"),
    pytest.param("before_files:*", id="the writer dies between the final file and its manifest"),
    pytest.param("mid_reduce:25 tcp", id="one dies in the middle of a reduction over TCP"),
    pytest.param("after_complete:30 tcp", id="one dies after it has declared a step complete over TCP"),
    pytest.param("before_apply:30 tcp", id="one dies before it applies a step, over TCP"),
])
def test_a_worker_killed_at_a_point_leaves_no_trace(mesh, folder, tmp_path, rules):
    """Between hosts data goes over UCX where set-up could install it, but where a rule says TCP."""
    ucx = importlib.util.find_spec("libucx") and not rules.endswith(" tcp")
    env = {"SHOAL_TRANSPORT": "ucx" if ucx else "tcp"}
    rules = rules.removesuffix(" tcp")
    once = [tmp_path / ("once-%d" % i) for i in range(len(rules.split()))]
    if rules.endswith("entering:*"):
        once[1].touch()  # nobody dies in the first epoch
    fault = ",".join("%s:kill:%s" % (rule, path) for rule, path in zip(rules.split(), once))
    copies = rules.endswith("copy:*")  # successors take their time to come: the others must not end before
    run = Run(mesh, mesh.hosts[1], folder, epochs=6 if copies else 3, pace=training.SLOW if copies else 0.004,
              env={"SHOAL_FAULT": fault, **env}.items())
    run.gather()
    if rules.endswith("entering:*"):
        once[1].unlink()
    run.until_struck(once, training.SLOW if copies else 0)
    check(run, tmp_path)


@pytest.mark.parametrize("where", ["on_epoch_end", "on_epoch_end of the files"])
def test_a_worker_killed_in_a_callback_leaves_no_trace(mesh, folder, tmp_path, where):
    once = tmp_path / "once"
    run = Run(mesh, mesh.hosts[2], folder, epochs=3, env={"DIE_AT": where, "DIE_ONCE": once}.items())
    run.gather()
    run.until_struck([once], 0)
    check(run, tmp_path)


def kill_worker(run, facts):
    worker = sorted(run.seen)[0]
    run.kill(worker)


def kill_driver(run, facts):
    os.kill(run.driver()[1], signal.SIGKILL)


def kill_leader_agent(run, facts):
    run.host(facts["leader"]).kill()


def kill_follower_agent(run, facts):
    next(host for host in run.mesh.hosts if host.name != facts["leader"]).kill()


def lose_submitter(run, facts):
    run.lose(run.submitter)


def lose_leader(run, facts):
    run.lose(run.host(facts["leader"]))


@pytest.mark.parametrize("strike", [
    pytest.param(kill_worker, id="a worker only"),
    pytest.param(kill_driver, id="the driver only"),
])
def test_a_killed_process_leaves_no_trace(mesh, folder, tmp_path, strike):
    run = Run(mesh, mesh.hosts[1], folder, pace=0.006)
    founders = run.gather()
    facts = run.step(20)
    strike(run, facts)
    run.step(facts["steps"] + 15)
    check(run, tmp_path, founders - run.lost)


def test_a_host_that_holds_all_members_goes_on_by_itself(new_mesh, folder, tmp_path):
    mesh = new_mesh(("alpha",), agent_options=training.ONE_JOB)
    run = Run(mesh, mesh.hosts[0], folder, workers=2, pace=0.006)
    founders = run.gather()
    facts = run.step(10)
    run.kill(sorted(run.seen)[0])
    run.step(facts["steps"] + 20, workers=2)
    check(run, tmp_path, founders - run.lost)
    # the epoch between the death and the successor's entry was the host's own
    assert re.search(r"left epoch \d+\.1,", mesh.hosts[0].log.read_text())


@pytest.mark.parametrize("strike", [
    pytest.param(lose_submitter, id="the host that took the submit"),
    pytest.param(lose_leader, id="the host that leads the job"),
])
def test_a_lost_host_leaves_no_trace(new_mesh, folder, tmp_path, strike):
    """Training goes on within 12 s, from evidence, before any lease is over."""
    mesh = new_mesh(agent_options=training.ONE_JOB)
    run = Run(mesh, mesh.hosts[1], folder, pace=0.012)
    founders = run.gather()
    facts = run.step(20)
    strike(run, facts)
    run.goes_on()
    check(run, tmp_path, founders - run.lost)


@pytest.mark.parametrize("strike", [
    pytest.param(kill_leader_agent, id="the leader's agent only"),
    pytest.param(kill_follower_agent, id="a follower's agent only"),
])
def test_an_agent_down_for_5_s_changes_no_epoch_and_no_worker(mesh, folder, tmp_path, strike):
    run = Run(mesh, mesh.hosts[1], folder, pace=0.012)
    founders = run.gather()
    facts = run.step(10)
    before = {worker: (words["epoch"], words["k"]) for worker, words in run.last.items()}
    strike(run, facts)
    down = next(host for host in mesh.hosts if host.process.poll() is not None)
    began = time.monotonic()
    until = began + 5
    now = run.until(lambda now: time.monotonic() > until, 10, "5 s pass")
    down.start()
    assert now["steps"] > facts["steps"], "training did not wait for the agent"
    mesh.until(lambda: mesh.knows(down, 3), 20, "the agent is back")
    facts = run.step(run.facts["steps"] + 10)
    assert set(run.on(down)), "the agent has found its workers again"
    assert {worker: (words["epoch"], words["k"]) for worker, words in run.last.items()} == before
    assert set(run.seen) == founders
    check(run, tmp_path, founders)


class Steps:
    """The workers' own count of steps over the next seconds, and when each step was first seen."""

    def __init__(self, run, seconds):
        self.seen, host = [], run.submitter
        began = time.monotonic()

        def look():
            at = time.monotonic()
            applied = max((words["applied"] for words in run.on(host).values()), default=0)
            if not self.seen or applied > self.seen[-1][1]:
                self.seen.append((at, applied))
            return at - began > seconds

        run.mesh.until(look, seconds + 5, "%d s of training" % seconds, pause=0.02)
        self.rate = (self.seen[-1][1] - self.seen[0][1]) / (time.monotonic() - began)

    def duration(self):
        """Median seconds of a step, each looked at with its four neighbours: a halt of the whole machine is a few of them."""
        spans = [(late[0] - early[0]) / (late[1] - early[1]) for early, late in zip(self.seen, self.seen[5:])]
        return statistics.median(spans) if spans else float("inf")


@pytest.mark.alone
def test_a_driver_that_stands_still_for_10_s_slows_nobody_down(mesh, folder, tmp_path):
    # Slow mini-batches: a step takes as long as the workers sleep, whatever else runs on these cores.
    run = Run(mesh, mesh.hosts[1], folder, epochs=6, pace=0.025)
    founders = run.gather()
    run.step(5)
    before = Steps(run, 5)
    pid = run.driver()[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        during = Steps(run, 10)
    finally:
        os.kill(pid, signal.SIGCONT)
    after = Steps(run, 5)
    run.look()
    assert run.driver()[1] == pid
    # Other programs share this machine's cores: the slower neighbour in time is what 10 s without a driver must match.
    normal = max(before.duration(), after.duration())
    assert during.duration() <= normal / 0.9, "a step took %.3f s before, %.3f s during, %.3f s after" % (
        before.duration(), during.duration(), after.duration())
    assert during.rate >= 0.5 / normal, "%.2f steps/s over the whole time, of %.2f" % (during.rate, 1 / normal)
    check(run, tmp_path, founders)


def strike_at_random(run, chance):
    """One kill of a random role; what comes back must do so by itself, but for an agent, which is started again."""
    role = chance.choice(["worker", "worker", "driver", "agent", "stopped worker"])
    alive = run.mesh.workers(run.job)
    if role == "driver" and run.driver():
        os.kill(run.driver()[1], signal.SIGKILL)
    elif role == "agent":
        host = chance.choice(run.mesh.hosts)
        host.kill()
        host.start()
        run.mesh.until(lambda: run.mesh.knows(host, 3), 20, "%s is back" % host.name)
    elif len(alive) > 1:
        worker = chance.choice(sorted(alive))
        run.kill(worker, signal.SIGSTOP if role == "stopped worker" else signal.SIGKILL)
    return role


@pytest.mark.parametrize("strikes,epochs", [
    pytest.param(4, 8, id="four strikes"),
    pytest.param(40, 60, id="forty strikes", marks=pytest.mark.soak),
])
def test_random_strikes_leave_no_trace(mesh, folder, tmp_path, strikes, epochs):
    print("again: make test T=system/random_strikes SEED=%d" % SEED)
    chance = random.Random(SEED)
    run = Run(mesh, mesh.hosts[chance.randrange(3)], folder, epochs=epochs, pace=0.01)
    run.gather()
    for i in range(strikes):
        facts = run.step(run.facts["steps"] + 1 + chance.randrange(6), 90)
        pause = time.monotonic() + chance.random() * 0.1
        run.mesh.until(lambda: time.monotonic() > pause, 1, "a moment", pause=0.001)
        print("strike %d after step %d: %s" % (i + 1, facts["steps"], strike_at_random(run, chance)), flush=True)
    check(run, tmp_path)
