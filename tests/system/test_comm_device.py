"""libshoal's workers on a GPU that is none: tests/fake/gpu_fake.c stands for CUDA's driver and NCCL, loaded through the very
tables. Each step begins with a sum over NCCL, and gradients pass through device memory; the scenarios, and what they compare,
are those of test_comm.py."""

import os
import re
import subprocess
import sys

import pytest
from conftest import OUT, ROOT
from test_comm import CWORKER, HARNESS, LARGEST, SECONDS, scenarios

NEW, OLD = OUT / "tests/fake/libgpu_fake.so", OUT / "tests/fake/libgpu_fake_old.so"
APART = "ops_out_of_order"  # its calls are those of a worker without a device


def environment(library=NEW, **more):
    return {**os.environ, "CWORKER_DEVICE": "1", "SHOAL_CUDA": str(library), "SHOAL_NCCL": str(library), **more}


def play(scenario, rounds=1, seed=1, **named):
    """The counts of all workers that came to their end, added up, and everything they said."""
    words = [HARNESS, CWORKER, "scenario=" + scenario, "seed=%d" % seed, "rounds=%d" % rounds]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS * rounds, env=environment(**named))
    assert done.returncode == 0 and "ok   %s " % scenario in done.stdout, done.stdout + done.stderr
    counts = {}
    for name, number in re.findall(r"(\w+) (\d+)", " ".join(re.findall(r"device: (.*)", done.stderr))):
        counts[name] = counts.get(name, 0) + int(number)
    return counts, done.stderr


def alone(**named):
    done = subprocess.run([CWORKER], capture_output=True, text=True, timeout=SECONDS, env=environment(**named))
    return done.returncode, done.stderr


@pytest.mark.parametrize("scenario,how", [("ops_one_host", "operations"), ("ops_two_hosts", "staged"), ("random", "operations")])
def test_the_same_steps_and_state_as_one_worker_alone_in_host_memory(scenario, how):
    assert play(scenario)[0][how] > 0


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [name for name in scenarios() if name not in (APART, LARGEST)])
def test_every_scenario(scenario):
    play(scenario, rounds=4)


@pytest.mark.parametrize("scenario,what", [("kill_before_publish", "shrunk"), ("join", "grown"), ("reform", "kept")])
def test_a_communicator_is_taken_along(scenario, what):
    """Not in each run: where the epoch ends in the midst of a sum, or the newcomer is late, it is made anew."""
    assert any(play(scenario, seed=seed)[0][what] > 0 for seed in range(1, 21))


def test_what_an_epochs_end_interrupts_is_given_up_by_nobody():
    """A communicator that was revoked is not taken along: in some of these epochs a sum was under way."""
    assert all(play("reform", seed=seed)[0]["given_up"] == 0 for seed in range(1, 9))


def test_all_ranks_go_through_host_memory_where_one_cannot_make_its_communicator():
    counts, _ = play("three_workers", GPU_FAKE_RANK="1")
    assert counts["operations"] == 0 and (counts["made"], counts["given_up"]) == (2, 1) and counts["staged"] > 0, counts


def test_an_nccl_of_one_rank_a_card_is_done_without():
    counts, said = play("three_workers", NCCL_MULTI_RANK_GPU_ENABLE="0")
    assert counts["operations"] == 0 and counts["given_up"] == 3 and counts["staged"] > 0
    assert "invalid usage (5); several ranks on one card need NCCL 2.30.3 or later and NCCL_MULTI_RANK_GPU_ENABLE=1" in said, said


def test_an_older_nccl_makes_communicators_anew():
    counts, _ = play("kill_before_publish", library=OLD)
    assert counts["shrunk"] == 0 and counts["made"] > 2 and counts["staged"] == 0


@pytest.mark.parametrize("scenario,fault,words", [
    ("kill_mid_reduce", {"GPU_FAKE_HANG": "ncclCommInitRankConfig", "SHOAL_NCCL_LIMIT_MS": "100"},
     r"ncclCommInitRankConfig on device 0 \(Pretence GPU\) did not end in 100 ms"),
    ("kill_before_publish", {"GPU_FAKE_FAIL": "ncclCommShrink:1:2"},
     r"ncclCommShrink on device 0 \(Pretence GPU\): unhandled system error \(2\)"),
    ("three_workers", {"GPU_FAKE_FAIL": "ncclAllReduce:5:2"},
     r"ncclAllReduce on device 0 \(Pretence GPU\): unhandled system error \(2\)"),
])
def test_what_nccl_fails_in_goes_through_host_memory(scenario, fault, words):
    counts, said = play(scenario, **fault)
    assert re.search("shoal: collectives of device memory go through host memory: " + words, said), said
    assert counts["given_up"] > 0


@pytest.mark.parametrize("fault,words", [
    ({"GPU_FAKE_FAIL": "cuInit:1:100"}, "cuInit: CUDA_ERROR_NO_DEVICE"),
    ({"GPU_FAKE_FAIL": "cuMemAlloc_v2:1:2"}, "cuMemAlloc on device 0 (Pretence GPU): CUDA_ERROR_OUT_OF_MEMORY (2); use a smaller batch"),
    ({"GPU_FAKE_FAIL": "cuMemcpyDtoHAsync_v2:3:700"}, "cuMemcpyDtoHAsync on device 0 (Pretence GPU): CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
    ({"GPU_FAKE_FAIL": "cuStreamSynchronize:9:700"}, "cuStreamSynchronize on device 0 (Pretence GPU)"),
    ({"GPU_FAKE_DEVICES": "0"}, "device 0: this process sees 0"),
    ({"SHOAL_CUDA": "/nowhere/libcuda.so.1"}, "/nowhere/libcuda.so.1: cannot open"),
])
def test_what_cuda_fails_in_names_call_and_device(fault, words):
    status, said = alone(**fault)
    assert status != 0 and words in said, said


def test_without_nccl_sums_go_through_host_memory():
    status, said = alone(SHOAL_NCCL="/nowhere/libnccl.so.2")
    assert status == 0 and "operations 0 " in said and "staged 34" in said, said


def test_an_abort_that_does_not_end_is_left_alone():
    status, said = alone(GPU_FAKE_HANG="ncclCommAbort", SHOAL_NCCL_LIMIT_MS="100")
    assert status == 0, said


def test_the_script_for_a_card_runs_here(tmp_path):
    """tests/gpu/native.py, in the parts that need no card."""
    words = [sys.executable, ROOT / "tests/gpu/native.py", "--bin", HARNESS.parent, "--nccl", NEW, "--logs", tmp_path, "alone", "probe", "one"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "SHOAL_CUDA": str(NEW)})
    assert done.returncode == 0 and "native: 0 parts failed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("\nok ") >= 4 and "not run: none" in done.stdout, done.stdout


@pytest.mark.parametrize("scenario", ["three_workers", "reform", "two_joins_and_a_kill", "kill_mid_reduce", "kill_before_apply", "fetch_on_a_host", "random"])
def test_slices_of_the_result_go_to_the_device_from_pinned_memory(scenario):
    """What the worker applies is what it finds on the device. The driver that is none ends a process that pins memory twice, or unmaps
    what is pinned."""
    counts, _ = play(scenario)
    assert counts["pins"] > 2 and counts["pins_refused"] == 0


def test_memory_that_the_driver_does_not_pin_is_copied_all_the_same():
    counts, said = play("reform", GPU_FAKE_FAIL="cuMemHostRegister_v2:2:2")
    assert counts["pins_refused"] > 0, said
    assert "cworker: pin: cuMemHostRegister on device 0 (Pretence GPU): CUDA_ERROR_OUT_OF_MEMORY (2)" in said, said


def test_the_figures_of_a_card_are_taken_here(tmp_path):
    """tests/gpu/card.py, on a card that is none: every part."""
    words = [sys.executable, ROOT / "tests/gpu/card.py", "--bin", OUT / "tests", "--nccl", NEW, "--mib", "2", "--cycles", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * SECONDS, env={**os.environ, "SHOAL_CUDA": str(NEW)})
    assert done.returncode == 0 and re.findall(r"^(\w+) +ok ", done.stdout, re.M) == ["copies", "shared", "life", "victim"], done.stdout + done.stderr
    assert "card: Pretence GPU" in done.stdout


@pytest.mark.parametrize("script,words", [("card.py", "no card here: "), ("run.py", "no card here, so nothing was checked: ")])
def test_the_figures_of_a_card_say_that_there_is_none(script, words):
    done = subprocess.run([sys.executable, ROOT / "tests/gpu" / script], capture_output=True, text=True, timeout=SECONDS,
                          env={**os.environ, "SHOAL_CUDA": "/nowhere/libcuda.so.1"})
    assert done.returncode == 2 and done.stdout.startswith(words) and "/nowhere/libcuda.so.1" in done.stdout, done.stdout + done.stderr
