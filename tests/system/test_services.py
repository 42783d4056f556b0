"""Services on real agents: deployed through one node, asked through all, under the death of a host, stopped, started, deleted."""

import concurrent.futures
import json
import pathlib
import shutil
import socket
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
    refused = services.mesh.shoal("service", "deploy", "echo", "--package", services.package, "--node", beta.url, "--", "x", check=False)
    assert refused.returncode != 0 and "exists already" in refused.stderr
    head = services.ask(beta, "echo", b"head", path="/v2/models/%s/versions/1/infer")[1]
    assert b"('model', 'echo')" in head and b"('version', '1')" in head and b"('user', 'admin')" in head
    large = b"y" * (600 << 10)
    assert all(services.ask(host, "echo", large)[1] == large for host in services.mesh.hosts)
    larger = b"z" * (2 << 20)
    assert all(services.ask(host, "echo", larger)[:2] == (200, larger) for host in services.mesh.hosts)
    assert services.ask(beta, "echo", b"", Content_Length=str(65 << 20))[0] == 413
    said = b""
    with TLS.wrap_socket(socket.create_connection((alpha.address, alpha.api_port), 60)) as raw:
        for body, end in ((b"forge", "keep-alive"), (b"honest", "close")):  # on one connection, each byte of which counts
            raw.sendall(("POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: %s\r\n"
                         "Authorization: Bearer %s\r\n\r\n" % (len(body), end, services.mesh.token(alpha))).encode() + body)
            while part := raw.recv(65536):
                said += part
                if end == "keep-alive" and b"\r\n\r\n" in said:
                    break
    assert said.startswith(b"HTTP/1.1 204 ") and b"forged" not in said and said.endswith(b"honest")
    log = services.mesh.shoal("service", "logs", "echo", "--node", gamma.url).stdout
    assert "kernel 0 listens" in log


def pages_touched(host):
    """Pages that the agent's first touch had the system clear for it."""
    return int(pathlib.Path("/proc/%d/stat" % host.process.pid).read_text().rpartition(")")[2].split()[7])


def test_a_body_of_a_mebibyte_is_held_in_memory_that_the_one_before_left(services):
    services.deploy(services.mesh.hosts[0], "echo", 1)
    services.until_ready("echo", 1)
    body = b"m" * (1 << 20)
    for host in services.mesh.hosts:
        for _ in range(4):
            assert services.ask(host, "echo", body)[0] == 200
        before = sum(map(pages_touched, services.mesh.hosts))
        for _ in range(20):
            assert services.ask(host, "echo", body)[0] == 200
        each = (sum(map(pages_touched, services.mesh.hosts)) - before) / 20
        assert each < 128, "%.0f pages a request through %s" % (each, host.name)


WMLA_KERNEL = """
import json

from redhareapi import Kernel


class Doubler(Kernel):
    def on_kernel_start(self, kernel_context):
        print("starts", flush=True)

    def on_task_invoke(self, task_context):
        while task_context is not None:
            task_context.set_output_data(json.dumps(2 * json.loads(task_context.get_input_data())))
            task_context = task_context.next()

    def on_kernel_shutdown(self):
        pass


if __name__ == "__main__":
    Doubler().run()
"""


def test_a_kernel_of_wmla_is_served_by_every_node(services, tmp_path):
    package = tmp_path / "doubler"
    package.mkdir()
    (package / "kernel.py").write_text(WMLA_KERNEL)
    (package / "model.json").write_text('{"name": "doubler", "tag": "", "weight_path": "./", "runtime": "dlipy3", '
                                        '"kernel_path": "kernel.py", "schema_version": "1"}')
    services.mesh.shoal("service", "deploy", "doubler", "--package", package, "--node", services.mesh.hosts[1].url)
    services.until_ready("doubler", 1)
    for i, host in enumerate(services.mesh.hosts):
        assert services.ask(host, "doubler", b"%d" % i, path="/dlim/v1/inference/%s")[:2] == (200, b"%d" % (2 * i))


def test_a_host_dies_under_requests(services):
    """Only what was in flight there is lost; the replica comes back elsewhere."""
    alpha, beta, gamma = services.mesh.hosts
    services.deploy(alpha, "echo", 3, batch=2)
    services.until_ready("echo", 3)
    shown = services.show(alpha, "echo")["hosts"]
    victim = next(host for host in (gamma, beta) if any(place["node"] == host.name for place in shown))
    asked = [host for host in services.mesh.hosts if host is not victim]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        before = [pool.submit(services.ask, asked[i % 2], "echo", b"sleep 0.3") for i in range(16)]
        concurrent.futures.wait(before[:2])
        victim.lose()
        after = [pool.submit(services.ask, asked[i % 2], "echo", b"number %d" % i) for i in range(60)]
    told = [answer.result() for answer in before]
    assert {answer[0] for answer in told} <= {200, 500}, told
    assert sum(answer[0] == 500 for answer in told) <= 8  # no more than were under way at that moment
    for i, answer in enumerate(after):
        status, body, _ = answer.result()
        assert (status, body) == (200, b"number %d" % i) or status == 500, (status, body)
    assert sum(answer.result()[0] == 500 for answer in after) <= 8
    services.until_ready("echo", 3, asked)


def test_stop_start_scale_delete(services):
    alpha, beta, gamma = services.mesh.hosts
    job = services.deploy(beta, "echo", 1)["job"]
    services.until_ready("echo", 1)
    services.mesh.cli(alpha, "service", "scale", "echo", 3)
    services.until_ready("echo", 3)
    for host in services.mesh.hosts:  # who deletes jobs deletes no service: its name would stand for nothing
        for verb in ("stop", "delete"):
            assert "SERVICE 3 running" in services.mesh.shoal("job", "list", "--node", host.url).stdout
            refused = services.mesh.shoal("job", verb, job, "--node", host.url, check=False)
            assert refused.returncode == 7 and "shoal service %s echo" % verb in refused.stderr, refused
        services.mesh.shoal("job", "delete", "--all", "--yes", "--node", host.url)
        assert services.ask(host, "echo", b"here")[:2] == (200, b"here")
    services.mesh.cli(gamma, "service", "stop", "echo")
    services.until_ready("echo", 0)
    status, body, headers = services.ask(alpha, "echo", b"", path="/dlim/v1/inference/%s")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert body == b"Inference service for model <echo> is currently unavailable."
    services.mesh.cli(alpha, "service", "start", "echo")
    services.until_ready("echo", 3)  # as it was before
    assert services.ask(gamma, "echo", b"again")[:2] == (200, b"again")
    services.mesh.cli(gamma, "service", "delete", "echo")
    services.mesh.until(lambda: services.ask(alpha, "echo", b"")[0] == 404, 30, "alpha hears that it is deleted")
    services.mesh.until(lambda: services.mesh.cli(beta, "service", "list") == {"services": []}, 30, "beta hears it, too")
    services.mesh.until(lambda: not any(job in str(host.get("/v1/debug/groups")) for host in services.mesh.hosts), 60,
                        "the job of the deleted service is gone")


def test_kernels_that_fail(services):
    """Each costs its own requests, and is started again."""
    alpha, beta, gamma = services.mesh.hosts
    services.deploy(alpha, "echo", 1, batch=2)
    services.until_ready("echo", 1)
    for word in (b"die", b"nonsense"):
        status, body, _ = services.ask(beta, "echo", word)
        assert status == 500, body
        for host in services.mesh.hosts:
            services.mesh.until(lambda: services.ask(host, "echo", b"back")[0] == 200, 60, "%s reaches a kernel" % host.name)
    (services.package / "broken").touch()
    services.deploy(alpha, "broken", 1)
    services.mesh.until(lambda: "the model is broken" in services.show(beta, "broken")["why"], 60, "the reason is told")
    assert services.ask(gamma, "broken", b"")[0] == 503


def test_a_new_version_takes_over_and_goes_back_while_requests_flow(services):
    """No request fails: the version before answers until the other one's kernels are ready."""
    alpha, beta, gamma = services.mesh.hosts
    (services.package / "model.json").write_text('{"name": "echo"}')
    services.deploy(alpha, "echo", 2)
    services.until_ready("echo", 2)
    kernel = services.package / "kernel.py"
    kernel.write_text(kernel.read_text().replace("# an answer as it is", ""))
    refused = services.mesh.shoal("service", "rollback", "echo", "--node", beta.url, check=False)
    assert refused.returncode != 0 and "no version before" in refused.stderr
    first = services.show(alpha, "echo")["job"]

    def until_ready_and_asked(job):
        def ready():
            for host in services.mesh.hosts:
                assert services.ask(host, "echo", b"flows")[:2] == (200, b"flows")
            shown = services.show(gamma, "echo")
            return shown["job"] == job and shown["ready"] == 2
        services.mesh.until(ready, 90, "two kernels of %s answer" % job)

    second = services.mesh.cli(beta, "service", "deploy", "echo", "--package", services.package, "--update", "--",
                               services.mesh.python, "kernel.py", 4)["job"]
    assert second != first
    until_ready_and_asked(second)
    services.mesh.until(lambda: not services.mesh.workers(first), 60, "the version before has no kernels any more")
    services.mesh.cli(gamma, "service", "rollback", "echo")
    until_ready_and_asked(first)
    services.mesh.until(lambda: not services.mesh.workers(second), 60, "the newer one has none any more")


def test_kernels_come_with_load_and_go_without_it(services):
    """From none: the first request waits for its kernel; more load, more kernels; then none again."""
    alpha, beta, gamma = services.mesh.hosts
    services.deploy(alpha, "echo", 0, batch=1)
    profile = {"policy": {"kernel_min": 0, "kernel_max": 3, "schedule_interval": 1, "kernel_delay_release_time": 2}}
    for path, body in (("/dlim/v1/model/%s/appprofile", json.dumps(profile).encode()), ("/dlim/v1/model/%s/operation/start", None)):
        assert services.ask(beta, "echo", body, path=path, method="PUT")[0] == 200
    assert services.show(gamma, "echo")["replicas"] == 0
    assert services.ask(gamma, "echo", b"first")[:2] == (200, b"first")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(services.ask, services.mesh.hosts[i % 3], "echo", b"sleep 0.5") for i in range(120)]
        services.mesh.until(lambda: services.show(alpha, "echo")["ready"] == 3 or all(one.done() for one in asked), 120, "three kernels")
        assert services.show(alpha, "echo")["replicas"] == 3
        assert {one.result()[0] for one in asked} == {200}
    services.until_ready("echo", 0)
    assert services.show(beta, "echo")["replicas"] == 0


def test_a_drained_hosts_replicas_move(services):
    """As far as others have slots: then the host is drained, and may leave."""
    alpha, beta, gamma = services.mesh.hosts
    services.deploy(alpha, "echo", 3)
    services.until_ready("echo", 3)
    services.mesh.shoal("node", "drain", "gamma", "--node", alpha.url)
    services.mesh.until(lambda: any(one["name"] == "gamma" and one["state"] == "drained" for one in beta.get("/v1/nodes")), 60,
                        "gamma is drained")
    services.until_ready("echo", 3)
    assert services.ask(beta, "echo", b"hello")[:2] == (200, b"hello")
