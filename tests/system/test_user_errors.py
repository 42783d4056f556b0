"""What a user is told of trainings that go wrong: the cause, in the answer to `shoal why`, and where to look further."""

import pytest
from conftest import OUT
from helpers import ended, log_of, submit
from mesh import Mesh

TRAIN = """
import os, signal, sys
import numpy, torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 2), 0

    def forward(self, x):
        self.calls += 1
        if sys_argv[1:] == ["dies"] and self.calls > 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        if sys_argv[1:] == ["greedy"] and self.calls > 3:
            numpy.ones(1 << 50)
        if sys_argv[1:] == ["large"] and self.calls > 3:
            torch.ones(1 << 50)
        if sys_argv[1:] == ["raises"]:
            raise KeyError("no such layer")
        return self.linear(x)

def datasets():
    chance = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(128, 4, generator=chance), torch.arange(128) % 2)
    return data, data

sys_argv = sys.argv
torch.manual_seed(1)
net = Net()
rate = 1e38 if sys.argv[1:] == ["diverges"] else 0.01
FabricModel(net, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=rate)).train(2, 16, 2, validation_freq=1)
"""
STEPS = 8
LATE = """
import torch
from callbacks import Callback
from fabric_model import FabricModel

def is_first():
    try:
        open("MARK", "x").close()
    except FileExistsError:
        return False
    return True

class Trips(Callback):
    def on_batch_end(self, batch, logs=None):
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == 50 and is_first():
            raise RuntimeError("CUDA error: device-side assert triggered\\nCompile with TORCH_USE_CUDA_DSA")

data = [(torch.ones(4), 1)] * 128
model = torch.nn.Linear(4, 2)
FabricModel(model, lambda: (data, None), torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1),
            user_callback=Trips()).train(20, 8, 4)
"""


def why(host, job):
    return host.get("/v1/jobs/%s/why" % job)["why"]


@pytest.fixture(scope="module")
def mesh():
    """Their own: the last test ends its agents."""
    with Mesh(OUT / "shoal") as own:
        own.grow(("alpha", "beta", "gamma"))
        yield own


@pytest.fixture(scope="module")
def jobs(mesh, tmp_path_factory):
    """{what it does: its id}; all run at once, since most of their time is the start of Python."""
    folder = tmp_path_factory.mktemp("model")

    def start(text, *options, framework="edtPyTorch", script=()):
        (folder / "main.py").write_text(text)
        return submit(mesh, mesh.hosts[0], folder, *options, framework=framework, script=script)

    return {"plain": start(TRAIN, framework="PyTorch"), "dies": start(TRAIN, "--workers", "1", script=("dies",)),
            "raises": start(TRAIN, "--workers", "2", script=("raises",)),
            "diverges": start(TRAIN, "--workers", "2", script=("diverges",)), "well": start(TRAIN, "--workers", "1"),
            "late": start(LATE.replace("MARK", str(folder / "one-has-failed")), "--workers", "4"), "greedy": start(TRAIN, "--workers", "2", script=("greedy",)),
            "large": start(TRAIN, "--workers", "2", script=("large",)),
            "trips": start("def area(box):\n    return box['width'] * 2\n\narea({})", framework="PyTorch"),
            "killed": start("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", framework="PyTorch")}


def test_fabric_model_in_a_plain_job_names_the_framework(mesh, jobs):
    facts = ended(mesh, jobs["plain"], 120)
    assert facts["state"] == "ERROR" and "--framework edtPyTorch" in facts["detail"] and "engine" not in facts["detail"]


def test_a_plain_script_ends_with_its_error_and_the_users_line(mesh, jobs):
    facts = ended(mesh, jobs["trips"], 120)
    assert facts["detail"] == "the script ended with exit status 1: KeyError: 'width' (main.py, line 2, in area: return box['width'] * 2)"
    said = mesh.shoal("job", "ledger", jobs["trips"], "--node", mesh.hosts[1].url).stdout
    assert said == "%s has no ledger: train() of fabric_model has trained nothing in it\n" % jobs["trips"]


def test_stopped_is_said_when_it_has_ended(mesh, tmp_path):
    (tmp_path / "main.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)")
    job = submit(mesh, mesh.hosts[0], tmp_path)
    mesh.until(lambda: log_of(mesh, mesh.hosts[0], job), 60, "it runs", pause=0.2)
    said = mesh.shoal("job", "stop", job, "--node", mesh.hosts[1].url)
    assert said.stderr.splitlines()[-1] == "stopped" and mesh.job(job, *mesh.hosts)["state"] == "KILLED"


def test_a_script_that_is_killed_says_what_that_may_mean(mesh, jobs):
    facts = ended(mesh, jobs["killed"], 120)
    assert facts["exitCode"] == 137
    assert facts["detail"] == "the script was ended by signal 9 (SIGKILL: the host may be out of memory)"


def test_what_an_engine_raises_is_the_jobs_end_if_the_script_does_not_catch_it(mesh, jobs):
    facts = ended(mesh, jobs["raises"], 180)
    assert facts["state"] == "ERROR" and facts["exitCode"] == 1
    assert facts["detail"].startswith("an engine failed in the user's code: KeyError: 'no such layer' (main.py, line 22, in forward")


def test_one_engine_of_four_that_fails_late_ends_the_job_with_its_line(mesh, jobs):
    facts = ended(mesh, jobs["late"], 240)
    assert facts["state"] == "ERROR"
    assert facts["detail"].startswith("an engine failed in the user's code: RuntimeError: CUDA error: device-side assert triggered Compile "
                                      "with TORCH_USE_CUDA_DSA (main.py, line 17, in on_batch_end"), facts


def test_a_lack_of_memory_is_named_with_the_line(mesh, jobs):
    facts = ended(mesh, jobs["large"], 240)
    assert facts["state"] == "ERROR" and "allocate" in facts["detail"] and "(main.py, line 20, in forward" in facts["detail"], facts
    facts = ended(mesh, jobs["greedy"], 240)
    assert facts["state"] == "ERROR" and "Unable to allocate" in facts["detail"] and "(main.py, line 18, in forward" in facts["detail"], facts


def test_engines_that_crash_leave_signal_and_place(mesh, jobs):
    facts = ended(mesh, jobs["dies"], 180)
    assert facts["state"] == "ERROR" and "the last one was ended by signal 11 (SIGSEGV" in facts["detail"]
    for host in mesh.hosts:
        mesh.until(lambda: "main.py\", line 16 in forward" in log_of(mesh, host, jobs["dies"], "--which", "err"), 30,
                   "%s has the place" % host.name, pause=0.2)


def test_a_loss_that_is_no_number_is_said(mesh, jobs):
    job = jobs["diverges"]
    assert ended(mesh, job, 120)["state"] == "FINISHED"
    for host in mesh.hosts:
        mesh.until(lambda: any("no finite number" in line for line in why(host, job)), 30, "%s says it" % host.name, pause=0.2)
        said = mesh.until(lambda: log_of(mesh, host, job, "--which", "err"), 30, "the driver's errors", pause=0.2)
        assert said.count("the loss of step ") == 1 and ", in data epoch 0; training goes on" in said


def test_an_ended_trainings_numbers_outlive_all_agents(mesh, jobs):
    job = jobs["well"]
    assert ended(mesh, job, 120)["state"] == "FINISHED"

    def shown(host):
        return {name: host.get("/v1/jobs/" + job).get(name) for name in ("steps", "dataEpoch", "loss", "accuracy")}

    def again(host):
        try:
            return shown(host)
        except OSError:  # its group has no leader yet
            return None

    def is_told():
        told = [shown(host) for host in mesh.hosts]
        return told[0]["steps"] == STEPS and told.count(told[0]) == len(told) and told[0]
    before = mesh.until(is_told, 30, "all say the same", pause=0.2)
    assert before["loss"] > 0
    for host in mesh.hosts:
        host.kill()
    for host in mesh.hosts:
        host.start()
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 3), 30, "%s knows the others" % host.name)
        mesh.until(lambda: again(host) == before, 30, "%s says the same" % host.name, pause=0.2)
        assert [row["steps"] for row in host.get("/v1/jobs")["jobs"] if row["id"] == job] == [STEPS]
