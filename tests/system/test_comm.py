"""libshoal's workers without an agent: comm_harness.c plays the agents of up to four hosts, kills, stops, loses and adds C
workers at named points and at seeded moments, and compares every step, its samples and the final state with those of one
worker alone. Its planted bugs have to be noticed."""

import subprocess

import pytest
from conftest import OUT

HARNESS, CWORKER = OUT / "tests/system/comm_harness", OUT / "tests/system/cworker"
SECONDS = 60  # a scenario gives up after 30


def scenarios():
    return subprocess.run([HARNESS, "list"], capture_output=True, text=True, check=True).stdout.split()


def play(scenario, seed, rounds):
    words = [HARNESS, CWORKER, "scenario=" + scenario, "seed=%d" % seed, "rounds=%d" % rounds]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS * max(1, rounds))
    assert done.returncode == 0 and "ok   %s " % scenario in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", scenarios())
def test_the_same_steps_and_state_as_one_worker_alone(scenario):
    play(scenario, seed=1, rounds=8)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", ["random", "random_hosts"])
def test_three_hundred_seeds(scenario):
    play(scenario, seed=1000, rounds=300)
