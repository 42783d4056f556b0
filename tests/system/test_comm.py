"""libshoal's workers without an agent: comm_harness.c plays the agents of up to four hosts, kills, stops, loses and adds C
workers at named points and at seeded moments, and compares every step, its samples and the final state with those of one
worker alone. Its planted bugs have to be noticed."""

import importlib.util
import os
import subprocess

import pytest
from conftest import OUT

HARNESS, CWORKER = OUT / "tests/system/comm_harness", OUT / "tests/system/cworker"
UCX = next((os.path.join(folder, "lib", "libucp.so.0") for found in [importlib.util.find_spec("libucx")] if found
            for folder in found.submodule_search_locations), None)
SECONDS = 60  # a scenario gives up after 30
LARGEST = "a_hundred_and_twenty_eight"  # workers on three hosts: 5,461 pairs of them are connected, both ways


def scenarios():
    return subprocess.run([HARNESS, "list"], capture_output=True, text=True, check=True).stdout.split()


def transports(scenario):
    """Between hosts, each that is there: our own, and UCX where the environment has it (.ci/setup)."""
    hosts = any(part in ("hosts", "links", "between") for part in scenario.split("_"))
    return ("tcp", "ucx") if hosts and UCX else ("tcp",)


def play(scenario, seed, rounds, transport="tcp", seconds=SECONDS):
    words = [HARNESS, CWORKER, "scenario=" + scenario, "seed=%d" % seed, "rounds=%d" % rounds]
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds * max(1, rounds),
                          env={**os.environ, "SHOAL_TRANSPORT": transport, "SHOAL_UCX": UCX or ""})
    assert done.returncode == 0 and "ok   %s " % scenario in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("scenario,transport", [(name, way) for name in scenarios() if name != LARGEST for way in transports(name)])
def test_the_same_steps_and_state_as_one_worker_alone(scenario, transport):
    play(scenario, 1, 8, transport)


def test_the_largest_communicator_too():
    play(LARGEST, 1, 1, seconds=150)


@pytest.mark.soak
@pytest.mark.parametrize("scenario,transport", [("random", "tcp"), ("random_hosts", "tcp"), ("random_hosts", "ucx")])
def test_three_hundred_seeds(scenario, transport):
    play(scenario, 1000, 300, transport)
