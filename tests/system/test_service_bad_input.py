"""Services and what is wrong with them: kernels, packages, profiles and requests (the inference contract, 2.8, 2.10, 4.2 and 5.3; what
a package must hold is test_dlim.py's). Each is told cause and remedy and costs itself alone: the service beside them answers
through every node before and after."""

import concurrent.futures
import json
import pathlib
import socket
import time

import pytest
from mesh import TLS
from test_bad_input import answer_of
from test_service_kernels import ask

KERNEL = """
import json, os, sys, time
from redhareapi import Kernel

BODY

class Odd(Kernel):
    def on_kernel_start(self, kernel_context):
        START

    def on_task_invoke(self, task_context):
        while task_context is not None:
            self.answer(task_context, *task_context.get_input_data().partition(" ")[::2])
            task_context = task_context.next()

    def answer(self, task, word, rest):
        if word == "raise":
            raise ValueError("no good")
        elif word == "nothing":
            return
        elif word == "number":
            task.set_output_data(7)
        elif word == "twice":
            task.set_output_data("first")
            task.set_output_data("second")
        elif word == "print":
            for _ in range(2000):
                print("x" * 99, end="")
            os.write(1, b"\\xff\\x00\\x01" * 9000)
            os.write(2, b"\\x81\\xa4done")
        elif word == "fork":
            if os.fork() == 0:
                task.set_output_data("of the child")
                os.execvp("sleep", ["sleep", rest])
        elif word == "wait":
            while not os.path.exists(rest):
                time.sleep(0.02)
        elif word == "grow":
            held = []
            for _ in range(60):
                held.append(b"x" * (16 << 20))
                time.sleep(0.01)
            time.sleep(600)
        task.set_output_data(word)

if __name__ == "__main__":
    Odd().run()
"""


class Services:
    def __init__(self, mesh, folder):
        self.mesh, self.folder, self.replicas = mesh, folder, 0
        self.deploy("good")
        self.until_ready("good")

    def put(self, name, profile, node=0, query=""):
        """(status, JSON or text) of an edit."""
        host = self.mesh.hosts[node]
        status, text = answer_of(host, "PUT", "/v1/services/%s/profile%s" % (name, query), json.dumps(profile).encode(),
                                 token=self.mesh.token(host))
        return status, json.loads(text) if status == 200 else text

    def deploy(self, name, body="", start="pass", **profile):
        folder = self.folder / name
        folder.mkdir()
        (folder / "kernel.py").write_text(KERNEL.replace("BODY", body).replace("START", start))
        (folder / "model.json").write_text('{"kernel_path": "kernel.py"}')
        self.mesh.cli(self.mesh.hosts[0], "service", "deploy", name, "--package", folder, "--replicas", 0)
        policy = dict({"kernel_min": 1, "kernel_max": 1}, **profile.pop("policy", {}))
        status, said = self.put(name, dict(profile, policy=policy))
        assert status == 200, said
        self.mesh.cli(self.mesh.hosts[0], "service", "start", name)

    def show(self, name, node=1):
        return self.mesh.cli(self.mesh.hosts[node], "service", "show", name)

    def until_ready(self, name):
        for node in range(3):
            self.mesh.until(lambda: self.show(name, node)["ready"] == 1, 120, "%s is ready by the word of node %d" % (name, node))

    def delete(self, name):
        job = self.show(name)["job"]
        self.mesh.cli(self.mesh.hosts[2], "service", "delete", name)
        self.mesh.until(lambda: not self.mesh.workers(job), 60, "no process of %s is left" % name)

    def ask(self, name, body, node=0):
        return ask(self.mesh, self.mesh.hosts[node], name, body)

    def open(self, host):
        return TLS.wrap_socket(socket.create_connection((host.address, host.api_port), 60))

    def others_answer(self):
        for node in range(3):
            assert self.ask("good", b"fine", node) == (200, b"fine")


@pytest.fixture(scope="module")
def served(mesh, tmp_path_factory):
    return Services(mesh, tmp_path_factory.mktemp("packages"))


@pytest.fixture(autouse=True)
def nobody_else_is_harmed(served):
    pids = [host.process.pid for host in served.mesh.hosts]
    yield
    served.others_answer()
    assert [host.process.pid for host in served.mesh.hosts] == pids and all(host.process.poll() is None for host in served.mesh.hosts)


# ---- kernels ----

def children_of_test(seconds):
    """Whether a `sleep SECONDS` runs."""
    words = b"sleep\0%s\0" % seconds.encode()
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == words:
                return True
        except OSError:
            pass
    return False


def test_what_a_kernel_does_wrong_costs_its_own_request(served):
    served.deploy("odd")
    served.until_ready("odd")
    name = "%d.4711" % (100000 + time.time_ns() % 100000)  # no other sleep of this host is so long
    for node, (body, status, text) in enumerate([
            ("raise", 500, "ValueError: no good"), ("nothing", 500, "the kernel returned without an answer to this request"),
            ("number", 500, "set_output_data takes str or bytes, not int"), ("twice", 200, "first"), ("print", 200, "print"),
            ("fork " + name, 200, "fork"), ("fine", 200, "fine")]):
        got, said = served.ask("odd", body.encode(), node % 3)
        assert (got, text in said.decode()) == (status, True), (body, got, said)
    served.mesh.until(lambda: children_of_test(name), 30, "what the kernel forked runs")
    served.delete("odd")
    served.mesh.until(lambda: not children_of_test(name), 60, "what the kernel forked is gone with it")


def test_a_kernel_that_grows_without_end_is_told_its_limit_and_comes_again(served):
    served.deploy("grows", resource_allocation={"kernel": {"resources": "mem=1,mem_limit=300"}})
    served.until_ready("grows")
    status, said = served.ask("grows", b"grow", 1)
    assert status == 500 and b"ended while it had the request" in said, (status, said)
    served.mesh.until(lambda: served.ask("grows", b"back", 2) == (200, b"back"), 60, "it answers again")
    log = served.mesh.shoal("service", "logs", "grows", "--node", served.mesh.hosts[1].url).stdout
    assert "mem_limit of the profile's resources allows 300" in log
    served.delete("grows")


def test_a_start_that_would_start_nothing_is_refused_with_what_to_do(served, tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL.replace("BODY", "").replace("START", "pass"))
    (tmp_path / "model.json").write_text('{"kernel_path": "kernel.py"}')
    served.mesh.cli(served.mesh.hosts[0], "service", "deploy", "idle", "--package", tmp_path, "--replicas", 0)
    done = served.mesh.shoal("service", "start", "idle", "--node", served.mesh.hosts[1].url, check=False)
    assert done.returncode == 7 and "shoal service scale idle N" in done.stderr, (done.returncode, done.stderr)
    served.mesh.cli(served.mesh.hosts[1], "service", "delete", "idle")


def test_a_kernel_that_raises_at_import_is_told_by_every_node(served):
    served.deploy("raises", body="import no_such_module")
    for node in range(3):
        served.mesh.until(lambda: "No module named 'no_such_module'" in served.show("raises", node)["why"], 60, "node %d says why" % node)
        status, said = served.ask("raises", b"x", node)
        assert status == 503 and b"currently unavailable" in said, (status, said)
    served.delete("raises")


def test_a_request_of_a_kernel_that_hangs_at_its_start_ends_when_its_time_is_over(served):
    served.deploy("hangs", start="time.sleep(100000)", policy={"task_execution_timeout": 1})
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for status, said in pool.map(lambda node: served.ask("hangs", b"x", node), range(3)):
            assert status == 504 and b"before a kernel was free; policy.task_execution_timeout" in said, (status, said)
    assert served.show("hangs")["state"] == "starting"
    served.delete("hangs")


def test_a_request_ends_when_the_profiles_time_is_over_and_the_kernel_goes_on(served, tmp_path):
    served.deploy("slow", policy={"task_execution_timeout": 1})
    served.until_ready("slow")
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:  # one in the kernel, two in its queue
        asked = list(pool.map(lambda node: served.ask("slow", b"wait %s" % str(tmp_path / "go").encode(), node), range(3)))
    assert time.monotonic() - began < 30  # of the 60 s that a request has unless the profile says otherwise
    for status, said in asked:
        assert status == 504 and b"policy.task_execution_timeout of the model's profile" in said, (status, said)
    host = served.mesh.hosts[0]
    status, said = answer_of(host, "POST", "/dlim/v1/inference/slow", b"x", token=served.mesh.token(host))
    assert status == 504 and said.startswith("its time was over"), said  # WMLA's address: text
    (tmp_path / "go").touch()
    served.mesh.until(lambda: served.ask("slow", b"next", 1) == (200, b"next"), 60, "the kernel, which was never ended, answers the next")
    served.delete("slow")


# ---- what is too large, by its head alone ----

LARGE = 3 << 30


@pytest.mark.parametrize("path, type_", [
    ("/dlim/v1/deployment/model", "application/octet-stream"), ("/dlim/v1/deployment/model", "multipart/form-data; boundary=XX"),
    ("/dlim/v1/deployment/model/good", "application/octet-stream"), ("/v1/services/large", "multipart/form-data; boundary=XX"),
    ("/v1/services/large?from_job=x", "application/json"),
    ("/platform/rest/deeplearning/v1/execs/x/deploy", "application/json")])
def test_a_package_of_3_gb_is_refused_before_its_body_is_taken(served, path, type_):
    host = served.mesh.hosts[0]
    with served.open(host) as raw:
        raw.sendall(("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n"
                     "Expect: 100-continue\r\n\r\n" % (path, served.mesh.token(host), type_, LARGE)).encode())
        said = b""
        while b"larger than" not in said and (part := raw.recv(65536)):
            said += part
    assert said.startswith(b"HTTP/1.1 413 "), said
    remedy = b"larger than 1048576 bytes" if type_ == "application/json" else b"larger than 2048 MiB; leave out what the model does not need"
    assert remedy in said, said
    assert (b'{"error":' in said) == path.startswith("/dlim/")
    assert [one["name"] for one in served.mesh.cli(host, "service", "list")["services"]] == ["good"]
    assert served.show("good")["version"] == 1


@pytest.mark.parametrize("path, type_, text", [
    ("/v2/models/good/infer", "application/json", '{"error":"the request body is larger than the 64 MiB that a model takes; send less at once"}'),
    ("/dlim/v1/inference/good", "text/plain", "the request body is larger than the 64 MiB that a model takes; send less at once"),
    ("/v1/completions", "application/json", "the request is larger than the 1 MiB that this address reads; shorten it")])
def test_a_body_over_the_limit_is_refused_in_the_words_of_its_address(served, path, type_, text):
    host = served.mesh.hosts[1]
    status, said = answer_of(host, "POST", path, headers={"Content-Length": str(LARGE)}, token=served.mesh.token(host))
    assert status == 413 and text in said, (status, said)
    if type_ == "application/json":
        assert "error" in json.loads(said)


# ---- profiles ----

@pytest.mark.parametrize("profile, says", [
    ({"policy": {"kernel_min": 20, "kernel_max": 30}}, "20 kernels are to run at any time, and the mesh has 6 slots; ask for fewer"),
    ({"replica": 7, "policy": {"kernel_min": 1, "kernel_max": 2}}, "7 kernels are to run at any time, and the mesh has 6 slots"),
    ({"policy": {"kernel_min": 3, "kernel_max": 2}}, "policy.kernel_max is not valid: it must be -1 or at least policy.kernel_min"),
    ({"policy": {"task_batch_size": 0}}, "policy.task_batch_size is not valid"),
    ({"policy": {"task_execution_timeout": "soon"}}, "policy.task_execution_timeout is not valid"),
    ({"replica": 1 << 40}, "replica is not valid"),
    ({"resource_allocation": {"kernel": {"resources": "mem=2048,mem_limit=1024"}}}, "mem_limit must not be below"),
    ({"resource_allocation": {"kernel": {"resources": "mem=lots"}}}, "its values must be numbers"),
    ({"kernel": "none"}, "kernel is not valid: it must be an object"),
])
def test_a_profile_that_contradicts_itself_or_asks_for_too_much_changes_nothing(served, profile, says):
    host = served.mesh.hosts[2]
    before = host.get("/v1/services/good/profile")
    for query in ("?dry_run=true", ""):
        status, said = served.put("good", profile, 1, query)
        assert status == 400 and says in said, (status, said)
    assert host.get("/v1/services/good/profile") == before
