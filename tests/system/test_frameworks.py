"""Hosts with torch alone beside hosts with TensorFlow alone: a job goes where its framework is, its driver too, and what has no
such host waits and is told why. A package that is only a name stands for TensorFlow: scripts here import nothing of it."""

import subprocess
import sys

import pytest
from conftest import OUT
from helpers import SLOW_TRAINING, ended, log_of, submit
from mesh import Mesh

SCRIPT = """
import sys
print("runs in", sys.prefix)
"""
TRAIN = """
import sys
import torch
from fabric_model import FabricModel

print("driver in", sys.prefix)
torch.manual_seed(1)
net = torch.nn.Linear(4, 2)
FabricModel(net, lambda: ([(torch.ones(4), 1)] * 64, None), torch.nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), 0.1)).train(1, 8, 4)
print("done")
"""


def python_with(folder, *packages):
    """An environment that finds packages of these names."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for package in packages:
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("__version__ = '0'\n")
    return folder / "bin/python"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """Of two hosts with torch, which jobs see at their own Python, and one with TensorFlow; that one takes the submits."""
    tensorflow = python_with(tmp_path_factory.mktemp("tensorflow") / "env", "numpy", "tensorflow")
    with Mesh(OUT / "shoal", python=tensorflow) as own:
        own.add("flow")
        own.python = Mesh(OUT / "shoal").python
        own.grow(("alpha", "beta"))
        own.until(lambda: all(node["frameworks"] for node in own.hosts[0].get("/v1/nodes")), 30, "hosts tell what they have")
        yield own


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "main.py").write_text(SCRIPT)
    return tmp_path


def test_every_host_says_what_it_has(mesh):
    for host in mesh.hosts:
        assert {node["name"]: node["frameworks"] for node in host.get("/v1/nodes")} == {
            "flow": ["tensorflow"], "alpha": ["torch"], "beta": ["torch"]}
        table = mesh.shoal("node", "list", "--node", host.url).stdout.splitlines()
        assert table[0].endswith("FRAMEWORKS") and sum(line.endswith(" tensorflow") for line in table) == 1


def test_each_goes_where_its_framework_is(mesh, folder):
    """Four at once, so that the two slots of a host that will not do are asked for, too."""
    jobs = [(name, submit(mesh, mesh.hosts[0], folder, framework=framework))
            for name, framework in (("env", "tensorflow"), ("torch", "PyTorch")) for _ in range(4)]
    for name, job in jobs:
        assert ended(mesh, job)["state"] == "FINISHED"
        inside = log_of(mesh, mesh.hosts[1], job).split("runs in ", 1)[1]
        assert (inside.strip() == sys.prefix) == (name == "torch"), (name, inside)


def test_an_elastic_job_has_engines_and_driver_where_torch_is(mesh, tmp_path):
    """It is submitted through the host without torch, which may lead it."""
    (tmp_path / "main.py").write_text(TRAIN)
    job = submit(mesh, mesh.hosts[0], tmp_path, "--workers", "6", framework="edtPyTorch")
    seen = {}
    facts = mesh.until(lambda: (seen.update(mesh.workers(job)) or (now := mesh.job(job, *mesh.hosts))) and now["hasEnded"] and now, 120,
                       "the end of %s" % job)
    assert facts["state"] == "FINISHED", facts
    assert log_of(mesh, mesh.hosts[0], job).splitlines()[-1] == "done"
    assert {host.name for host, *_ in seen.values()} <= {"alpha", "beta"}


def test_what_has_too_few_such_hosts_waits_and_says_what_would_help(mesh, tmp_path):
    (tmp_path / "main.py").write_text(TRAIN)
    alpha, beta = mesh.hosts[1], mesh.hosts[2]
    for host in (alpha, beta):
        mesh.shoal("node", "drain", host.name, "--node", host.url)
    try:
        job = submit(mesh, mesh.hosts[0], tmp_path, framework="edtPyTorch")
        for host in mesh.hosts:
            mesh.until(lambda: "needs 1 slot of hosts with torch, but the whole mesh has 0" in str(host.get("/v1/jobs/%s/why" % job)["why"]), 30,
                       "%s says why" % host.name)
        mesh.shoal("job", "delete", job, "--node", mesh.hosts[0].url)
    finally:
        for host in (alpha, beta):
            mesh.shoal("node", "undrain", host.name, "--node", host.url)


OTHER_PYTHON = """
from importlib import _bootstrap_external

loaders = _bootstrap_external._LoaderBasics  # of files, and of the archive that has the package
load = loaders.exec_module

def exec_module(self, module):
    load(self, module)
    if module.__name__ == "pyedt._bundle":
        module.python_version = lambda: "9.9"

loaders.exec_module = exec_module
"""


def python_that_says_9_9(folder):
    """An environment with all packages of this one, in which engines take their Python for another version."""
    python = python_with(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "all.pth").write_text("".join(path + "\n" for path in sys.path if path.endswith("-packages")))
    (site / "sitecustomize.py").write_text(OTHER_PYTHON)
    return python


def test_a_job_goes_on_without_a_host_of_another_python(tmp_path):
    """The host comes while the job trains, and says so; on a host that has to wait for it, its word is heard as well."""
    other, folder = python_that_says_9_9(tmp_path / "other"), tmp_path / "model"
    folder.mkdir()
    (folder / "main.py").write_text(SLOW_TRAINING % 6)
    with Mesh(OUT / "shoal") as mesh:
        mesh.grow(("alpha", "beta"))
        job = submit(mesh, mesh.hosts[0], folder, "--workers", "6", framework="edtPyTorch")
        mesh.until(lambda: (now := mesh.job(job, *mesh.hosts))["workers"] == 4 and now["steps"] > 0, 60, "steps of four engines")
        mesh.add("gamma", "--python", other, seed=mesh.hosts[0])
        reason = "host gamma takes no part: the driver has python %d.%d, this host has 9.9" % sys.version_info[:2]
        for host in mesh.hosts:
            mesh.until(lambda: reason in str(host.get("/v1/jobs/%s/why" % job)["why"]), 60, "%s says why" % host.name)
        before = mesh.job(job, *mesh.hosts)
        after = mesh.until(lambda: (now := mesh.job(job, *mesh.hosts))["steps"] > before["steps"] + 3 and now, 60, "steps after it")
        assert after["state"] == "RUNNING" and after["epoch"] == before["epoch"]
        assert after["pending"].startswith(reason), after
        assert sum(host.name == "gamma" for host, *_ in mesh.workers(job).values()) == 0
        mesh.shoal("job", "stop", job, "--node", mesh.hosts[0].url)
