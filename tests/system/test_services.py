"""Services on real agents: deployed through one node, asked through all, under the death of a host, stopped, started, deleted."""

import pathlib
import shutil
import urllib.error
import urllib.request

import pytest
from mesh import TLS

STAND_IN = pathlib.Path(__file__).with_name("kernel_stand_in.py")


class Services:
    """What a client does, through any host of a mesh."""

    def __init__(self, mesh, folder):
        self.mesh, self.package = mesh, folder / "package"
        self.package.mkdir()
        shutil.copy(STAND_IN, self.package / "kernel.py")

    def ask(self, host, name, body, path="/v2/models/%s/infer", method="POST", timeout=60, **headers):
        """(status, body, headers)"""
        headers["Authorization"] = "Bearer " + self.mesh.token(host)
        request = urllib.request.Request(host.url + (path % name if "%" in path else path), data=body, method=method,
                                         headers={name.replace("_", "-"): text for name, text in headers.items()})
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=TLS) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read(), refusal.headers

    def deploy(self, host, name, replicas, batch=4):
        return self.mesh.cli(host, "service", "deploy", name, "--package", self.package, "--replicas", replicas, "--",
                             self.mesh.python, "kernel.py", batch)

    def show(self, host, name):
        return self.mesh.cli(host, "service", "show", name)

    def until_ready(self, name, ready, hosts=None, seconds=60):
        for host in hosts or self.mesh.hosts:
            self.mesh.until(lambda: self.show(host, name)["ready"] == ready, seconds,
                            "%s has %d ready replicas by the word of %s" % (name, ready, host.name))


@pytest.fixture
def services(new_mesh, tmp_path):
    return Services(new_mesh(), tmp_path)


def test_any_node_deploys_and_answers(services):
    alpha, beta, gamma = services.mesh.hosts
    assert services.ask(beta, "echo", b"hello")[0] == 404
    services.deploy(alpha, "echo", 2)
    services.until_ready("echo", 2)
    for host in services.mesh.hosts:
        status, body, headers = services.ask(host, "echo", b'{"a": 1}', Content_Type="application/json")
        assert (status, body, headers["Content-Type"]) == (200, b'{"a": 1}', "application/json")
    assert services.ask(gamma, "echo", b"a=b&c=d", path="/dlim/v1/inference/%s")[:2] == (200, b"a=b&c=d")
    assert services.ask(gamma, "nobody", b"", path="/dlim/v1/inference/%s")[:2] == (404, b"Model <nobody> doesn't exist.")
    refused = services.mesh.shoal("service", "deploy", "echo", "--package", services.package, "--node", beta.url, check=False)
    assert refused.returncode != 0 and "exists already" in refused.stderr
    head = services.ask(beta, "echo", b"head", path="/v2/models/%s/versions/7/infer")[1]
    assert b"('model', 'echo')" in head and b"('version', '7')" in head and b"('user', 'admin')" in head
    large = b"y" * (600 << 10)
    assert all(services.ask(host, "echo", large)[1] == large for host in services.mesh.hosts)
    assert services.ask(beta, "echo", b"", Content_Length=str(65 << 20))[0] == 413
    log = services.mesh.shoal("service", "logs", "echo", "--node", gamma.url).stdout
    assert "kernel 0 listens" in log
