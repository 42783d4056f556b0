"""Whole meshes on virtual time: every script twice to the same trace, and meshes with faults by chance."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"
SEED = int(os.environ.get("SEED", "1"), 0)
DRAW = int(os.environ.get("SHOAL_DRAW", "1"), 0)  # another one for each commit: tests/run.py


def sim(*arguments, seconds=120):
    return subprocess.run([str(SHOAL), "sim", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True,
                          timeout=seconds)


@pytest.mark.parametrize("script", sorted(path.name for path in HERE.glob("*.sim")))
def test_script_twice_to_the_same_trace(script):
    done = sim(HERE / script, "--twice")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_another_compiler_gives_the_same_traces():
    """Two draws of chance in one expression, or what else C leaves open, would be another mesh: gcc -O2 and clang -O0."""
    clang = "build/debug-clang-14/sim_alone"
    if subprocess.run(["make", "-q", "FLAVOUR=debug", "CC=clang-14", clang], cwd=ROOT, capture_output=True).returncode != 0:
        pytest.skip("no %s of this tree: make test builds it where there is a clang-14" % clang)
    seeds = ["random", "--seed", "1", "--count", "12"]
    other = subprocess.run([str(ROOT / clang), *seeds], cwd=ROOT, capture_output=True, text=True, timeout=300)
    traces = [re.findall(r"seed (\d+): .* trace ([0-9a-f]{16})", text) for text in (sim(*seeds).stdout, other.stdout)]
    assert len(traces[0]) == 12 and traces[0] == traces[1], "again: %s random --seed N" % clang


@pytest.mark.parametrize("first", [SEED, DRAW, DRAW + 10])
def test_faults_by_chance(first):
    print("again: make test T=sim/faults_by_chance SEED=%d" % first)
    done = sim("random", "--seed", first, "--count", 10, "--twice")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert len(re.findall(r"^seed \d+: ok", done.stdout, re.M)) == 10


@pytest.mark.parametrize("seed", [
    pytest.param(2346, id="a leaver alone has completed the last step"),
    pytest.param(1257, id="an agent's last reports are not in its store when it starts again"),
    pytest.param(21802, id="a member that never entered an epoch from a snapshot is taken for one that has its state"),
    pytest.param(11060, id="a renewal comes before the clock tells an agent that stood still that its runner has frozen"),
    pytest.param(35170, id="a worker says HELLO before its agent, started anew, has found its runner"),
    pytest.param(10589, id="the driver's host is cut off while the call finishes"),
])
def test_a_seed_that_once_failed(seed):
    done = sim("random", "--seed", seed)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.soak
def test_many_faults_by_chance():
    done = sim("random", "--seed", SEED + 1000, "--count", 2000, seconds=1200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.soak
def test_another_compiler_without_optimisation_gives_the_same_trace():
    """What a core decides depends on no order that C leaves open, on no padding and on no address."""
    if not shutil.which("clang-14"):
        pytest.skip("no clang-14; .ci/setup --develop installs it")
    other = "build/debug-clang-14/shoal"
    subprocess.run(["make", "-s", "-j2", "FLAVOUR=debug", "CC=clang-14", other], cwd=ROOT, check=True, timeout=600)
    arguments = ["sim", "random", "--seed", str(SEED), "--count", "10"]
    traces = [re.findall(r"trace ([0-9a-f]{16})", subprocess.run([str(binary), *arguments], cwd=ROOT, capture_output=True,
                                                                 text=True, timeout=300).stdout)
              for binary in (SHOAL, ROOT / other)]
    assert len(traces[0]) == 10 and traces[0] == traces[1]


def test_another_seed_gives_another_trace():
    traces = {re.search(r"trace ([0-9a-f]{16})", sim("random", "--seed", seed).stdout).group(1) for seed in (1, 2, 3)}
    assert len(traces) == 3


def test_a_failure_says_how_to_see_it_again(tmp_path):
    script = tmp_path / "too_soon.sim"
    script.write_text("hosts 3\nsubmit from 1 workers 2 steps 1000\nat 1s expect finished\n")
    done = sim(script, "--seed", 5)
    assert done.returncode == 1
    assert "FAIL at 1.000 s" in done.stdout
    assert "again: shoal sim %s --seed 5 --trace" % script in done.stdout


@pytest.mark.parametrize("text, error", [
    ("hosts 1000000\n", ":1: 1000000 is not a number up to 10000"),
    ("hosts 3\nat 5s kill 4\n", ":2: there is no host 4: the mesh begins with 3, and no line starts it"),
    ("hosts 3\nat 5s cut 1 9\n", ":2: there is no host 9"),
    ("hosts 3\nat 5s partition 1 2 | 3 4\nat 6s heal\n", ":2: there is no host 4"),
    ("hosts 3\nat 5s kill 1\nat 4s start 1\n", ":3: 4s is before the time of the line before"),
    ("hosts 3\nat 5 kill 1\n", ":2: 5 is not a time"),
    ("hosts 3\nat 5s explode 1\n", ":2: explode is not understood"),
    ("hosts 3\nat 5s kill\n", ":2: a word is missing"),
    ("hosts 3\nat 5s start worker 1\n", ":2: a worker can be killed or stopped"),
    ("hosts 3\nat 5s cut data 1\n", ":2: a word is missing"),
    ("submit from 1 workers 9 steps 1\n", ":1: workers: 1 to 6"),
])
def test_a_wrong_script_is_refused(tmp_path, text, error):
    script = tmp_path / "wrong.sim"
    script.write_text(text)
    done = sim(script)
    assert done.returncode == 2
    assert error in done.stderr


def test_usage():
    assert sim().returncode == 2
    assert sim("random", "--count", "0").returncode == 2
