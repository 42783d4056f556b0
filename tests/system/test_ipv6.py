"""A mesh whose hosts have addresses of IPv6 alone: links, gossip, the API and what it says of itself, and training."""

import json
import socket

import pytest
from conftest import OUT
from helpers import ended, log_of, submit
from mesh import Host, Mesh

try:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
except OSError as error:
    pytest.skip("this host has no ::1: %s" % error, allow_module_level=True)

SUMS = """
import torch
from fabric_model import FabricModel

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((2,), float(i)), i % 2

model = torch.nn.Linear(2, 2)
FabricModel(model, lambda: (Rows(), None), torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.01)).train(2, 8, 2)
print("trained", flush=True)
"""


class Host6(Host):
    def __init__(self, owner, name):
        super().__init__(owner, name)
        self.address = "::1"

    @property
    def url(self):
        return "https://[::1]:%d" % self.api_port

    def prepare(self, seed=None):
        if seed is None:
            super().prepare()
        else:
            self.mesh.shoal("join", "[::1]:%d" % seed.port, "--data", self.data, "--secret-file", self.mesh.key)


class Mesh6(Mesh):
    host_class = Host6


@pytest.fixture(scope="module")
def mesh():
    with Mesh6(OUT / "shoal", slots=1) as pair:
        pair.grow(("alpha", "beta"))
        yield pair


def test_what_a_node_says_of_its_api_is_an_address_that_answers(mesh):
    alpha, beta = mesh.hosts
    assert {node["name"]: node["api"] for node in mesh.cli(alpha, "node", "list")} == {h.name: h.url for h in mesh.hosts}
    assert alpha.get("/platform/rest/deeplearning/v1/conf")["CwS_REST_URL"] == alpha.url
    assert "API on %s," % beta.url in beta.log.read_text()


def test_a_job_trains_on_both_hosts(mesh, tmp_path):
    (tmp_path / "main.py").write_text(SUMS)
    job = submit(mesh, mesh.hosts[1], tmp_path, "--workers", 2, framework="edtPyTorch")
    facts = ended(mesh, job, 120)
    assert facts["state"] == "FINISHED", json.dumps(facts)
    assert "trained" in log_of(mesh, mesh.hosts[0], job)
