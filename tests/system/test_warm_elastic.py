"""Drivers and engine servers forked from an interpreter that has the framework loaded (docs/decisions/0028): what they see and
compute is what fresh ones would, each user has one of its own, and none is missed where it cannot serve."""

import contextlib
import io
import json
import os
import pathlib
import re
import signal

import pytest
from helpers import ended, log_of, result_of, submit
from test_warm import FACTS, log, servers

torch = pytest.importorskip("torch")
LOADED = "an interpreter with the framework loaded waits"
# What is compared is what a script sees once it has imported what an engine server imports; the search for packages' metadata, which
# those imports begin, has a zip open until its cache is cleared.
SEEN = FACTS.replace("begun = sorted(sys.modules)", "warm = 'torch' in sys.modules\nimport numpy, random, torch, torch._dynamo.config, gc, importlib.metadata\nimportlib.metadata.FastPath.__new__.cache_clear()\ngc.collect()\nbegun = []") + """
print(json.dumps({"warm": warm, "threads": torch.get_num_threads()}))
print(json.dumps({"numpy": numpy.random.rand(), "random": random.random(), "seed": torch.initial_seed(), "torch": torch.rand(1).item()}))
shown = dict(pair.split("=", 1) for pair in open("/proc/self/environ").read().split(chr(0)) if "=" in pair)
print(json.dumps([name for name in ("SHOAL_WORKER_ID", "SHOAL_JOB_ID", "SHOAL_AGENT_SOCKET", "RESULT_DIR", "HOME") if shown.get(name) != os.environ[name]]))
"""
TRAIN = """
import sys
print("warm" if "torch" in sys.modules else "cold", flush=True)
import numpy
import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

def datasets():
    x = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x + 0.1 * torch.randn(256, 16)), TensorDataset(x[:1], x[:1])

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 16))
fabric = FabricModel(model, datasets, nn.MSELoss(), torch.optim.Adam(model.parameters(), lr=0.01))
fabric.train(2, 8, 4, validation_freq=1, checkpoint_freq=2)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    def write(text, **files):
        folder = tmp_path_factory.mktemp("model") / "model"
        folder.mkdir()
        for name, content in dict(files, main=text).items():
            (folder / (name + ".py")).write_text(content)
        return folder

    return write


def elastic(mesh, host, folder, *options):
    return submit(mesh, host, folder, "--workers", 2, *options, framework="edtPyTorch")


def framework_servers(host):
    """{pid: user} of those that are ready or on their way."""
    found = {}
    for pid, (_, user) in servers(host).items():
        with contextlib.suppress(OSError):  # it has ended since
            if b"SHOAL_WARM_PATH=" in pathlib.Path("/proc/%d/environ" % pid).read_bytes():
                found[pid] = user
    return found


def await_loaded(mesh, host, count=1):
    mesh.until(lambda: host.log.read_text().count(LOADED) >= count, 90, "an interpreter has loaded the framework")


def fine(mesh, job):
    facts = ended(mesh, job, 180)
    assert facts["state"] == "FINISHED" and facts["exitCode"] == 0, facts
    return job


@pytest.fixture(scope="module")
def host():
    from conftest import OUT, Mesh

    with Mesh(OUT / "shoal", slots=4) as mesh:
        mesh.grow(("alpha",))
        yield mesh, mesh.hosts[0]


@pytest.fixture(scope="module")
def cold(host, folders):
    """{name: (folder, its job from before there was an interpreter that waits)}; there is one now."""
    mesh, alpha = host
    made = {name: folders(text) for name, text in (("facts", SEEN), ("train", TRAIN))}
    jobs = {name: (folder, elastic(mesh, alpha, folder)) for name, folder in made.items()}
    for _, job in jobs.values():
        fine(mesh, job)
    await_loaded(mesh, alpha)
    return jobs


def printed(mesh, host, job):
    return log(host, job, "out").replace(job, "JOB")


def seen(mesh, host, job):
    """(facts, warm and seeds, draws, variables that the kernel shows otherwise)"""
    text = re.sub(r"task0-[a-z0-9]{5}", "TASK", printed(mesh, host, job))
    facts, rest = text[:text.index("\n}\n") + 2], text[text.index("\n}\n") + 2:].split("\n")
    return [json.loads(part) for part in (facts, *filter(None, rest))]


def test_a_warm_driver_sees_what_a_cold_one_does(host, cold):
    mesh, alpha = host
    folder, job = cold["facts"]
    first = seen(mesh, alpha, job)
    warm = [seen(mesh, alpha, fine(mesh, elastic(mesh, alpha, folder))) for _ in range(2)]
    assert not first[1].pop("warm") and all(one[1].pop("warm") for one in warm), "the first is cold, the others are warm"
    unlike = {key: (first[0][key], warm[0][0][key]) for key in first[0] if first[0][key] != warm[0][0][key]}
    assert not unlike, "cold, warm: %s" % unlike
    assert first[1] == warm[0][1] == warm[1][1]
    draws = [one[2] for one in (first, *warm)]
    assert all(len({one[name] for one in draws}) == 3 for name in draws[0]), draws
    assert [one[3] for one in (first, *warm)] == [[]] * 3, "the kernel shows a process's own environment"


def test_the_bits_are_those_of_a_cold_job(host, cold, tmp_path):
    mesh, alpha = host
    folder, job = cold["train"]
    again = fine(mesh, elastic(mesh, alpha, folder))
    assert [printed(mesh, alpha, one).split("\n")[0] for one in (job, again)] == ["cold", "warm"]
    weights = []
    for one in (job, again):
        files = result_of(mesh, alpha, one, tmp_path)
        (name,) = [name for name in files if name.endswith("model_epoch_final.pth")]
        weights.append(torch.load(io.BytesIO(files[name]), weights_only=True))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("name", ["numpy", "typing_extensions", "queue"])
def test_a_script_with_a_module_of_a_loaded_name_starts_cold(host, cold, folders, name):
    mesh, alpha = host
    folder = folders("import sys\nprint('torch' in sys.modules)\nimport %s\nprint(%s.MINE)\n" % (name, name), **{name: "MINE = 1\n"})
    job = fine(mesh, elastic(mesh, alpha, folder))
    assert printed(mesh, alpha, job) == "False\n1\n"
    assert "starts cold: " in log(alpha, job, "launcher") and name + ".py would be imported in place" in log(alpha, job, "launcher")


@pytest.mark.parametrize("option", ["OMP_NUM_THREADS=2", "TORCH_SHOW_CPP_STACKTRACES=1", "PYTHONPATH=/nowhere"])
def test_what_a_framework_reads_when_it_is_loaded_keeps_jobs_apart(host, cold, folders, option):
    mesh, alpha = host
    folder = folders("import sys\nprint('torch' in sys.modules)\n")
    assert printed(mesh, alpha, fine(mesh, elastic(mesh, alpha, folder, "--env", "MINE=1"))) == "True\n"
    assert printed(mesh, alpha, fine(mesh, elastic(mesh, alpha, folder, "--env", option))) == "False\n"


def test_a_server_that_dies_or_hangs_costs_no_job(host, cold, folders):
    mesh, alpha = host
    folder = folders("import sys\nprint('torch' in sys.modules)\n")

    def run():
        job = fine(mesh, elastic(mesh, alpha, folder))
        return printed(mesh, alpha, job), "starts cold" in log(alpha, job, "launcher")

    for pid in framework_servers(alpha):
        os.kill(pid, signal.SIGKILL)
    mesh.until(lambda: not framework_servers(alpha), 30, "they have ended")
    assert run()[0] == "False\n", "there was none to ask, or it was asked and had ended"
    mesh.until(lambda: run() == ("True\n", False), 180, "another one was made")
    for pid in framework_servers(alpha):
        os.kill(pid, signal.SIGSTOP)
    assert run() == ("False\n", True), "it was asked where it hung"


def test_what_they_hold_is_bounded(folders):
    from conftest import OUT, Mesh

    with Mesh(OUT / "shoal", slots=2, agent_options=("--warm-memory", "1")) as mesh:
        (alpha,) = mesh.grow(("alpha",))
        fine(mesh, elastic(mesh, alpha, folders("pass\n")))
        mesh.until(lambda: "MiB of 1 that they may (warm-memory): one ends" in alpha.log.read_text(), 180, "more than it may hold")
        mesh.until(lambda: not framework_servers(alpha), 30, "it has ended")
