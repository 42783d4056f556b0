"""WMLA's inference API on real agents: models are deployed, started, asked, edited and removed through any node, by hand and by
`dlim` as scripts call it (the inference contract, sections 1, 2, 4, 5 and 9)."""

import base64
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request

import pytest
from mesh import PASSWORD, TLS

KERNEL = """
from redhareapi import Kernel

class Echo(Kernel):
    def on_task_invoke(self, task_context):
        while task_context is not None:
            task_context.set_output_data(task_context.get_input_data())
            task_context = task_context.next()

if __name__ == "__main__":
    Echo().run()
"""
MODEL = {"name": "echo-a", "tag": "t", "weight_path": "./", "runtime": "dlipy3", "kernel_path": "kernel.py", "schema_version": "1",
         "framework": "none", "mk_environments": [{"name": "COLOUR", "value": "blue"}]}


def archive(model=MODEL, top="echo-a/", mode="w:gz", **files):
    """The package as an archive; a file that is None is left out."""
    files = {"kernel.py": KERNEL, "README.md": "An echo.", "model.json": json.dumps(model), **files}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, text in files.items():
            if text is not None:
                entry = tarfile.TarInfo(top + name)
                entry.size = len(text.encode())
                tar.addfile(entry, io.BytesIO(text.encode()))
    return out.getvalue()


class Dlim:
    """/dlim/v1 of a mesh, as a client without a library asks it."""

    def __init__(self, mesh):
        self.mesh = mesh
        self.alpha, self.beta, self.gamma = mesh.hosts

    def __call__(self, host, method, path, body=None, **headers):
        """(status, JSON or text, headers)"""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if not headers.pop("bare", False) and not {"Authorization", "X-Auth-Token", "X-User-Token"} & set(headers):
            headers["Authorization"] = "Bearer " + self.mesh.token(host)
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        request = urllib.request.Request(host.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=TLS) as answer:
                status, text, head = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as refusal:
            status, text, head = refusal.code, refusal.read(), refusal.headers
        is_json = (head["Content-Type"] or "").startswith("application/json")
        return status, json.loads(text) if is_json else text.decode(), head

    def well(self, host, method, path, body=None, **headers):
        status, answer, _ = self(host, method, "/dlim/v1" + path, body, **headers)
        assert status == 200, (status, answer)
        return answer

    def state(self, host, name):
        return self.well(host, "GET", "/model/%s/instance" % name)

    def until_idle(self, host, name, seconds=90):
        def idle():
            instances = self.state(host, name).get("instances", [])
            return instances and any(one["container_status"] == "IDLE" for one in instances[0]["isd_container"])
        self.mesh.until(idle, seconds, "a kernel of %s is idle by the word of %s" % (name, host.name))


@pytest.fixture
def dlim(new_mesh):
    return Dlim(new_mesh())


def test_a_model_from_deployment_to_removal(dlim):
    alpha, beta, gamma = dlim.alpha, dlim.beta, dlim.gamma
    assert dlim.well(alpha, "GET", "/model") == []
    model = dlim.well(alpha, "POST", "/deployment/model", archive(), Content_Type="application/octet-stream")
    assert list(model)[:4] == ["name", "uid", "tag", "size"] and model["name"] == "echo-a" and model["started_at"] == 0
    assert model["creator"] == "admin" and model["service_uri"] == "" and model["framework"] == "none"
    assert model["size"] == len(KERNEL) + len("An echo.") + len(json.dumps(MODEL))
    assert re.fullmatch(r"\$\{REDHARE_TOP\}/repo/echo-a/echo-a-\d{8}-\d{6}", model["model_path"])
    for host in dlim.mesh.hosts:
        assert dlim.well(host, "GET", "/model") == [model]
        assert dlim.well(host, "GET", "/model/echo-a") == model
        assert dlim.state(host, "echo-a") == {"name": "echo-a", "state": "disabled"}
        assert dlim(host, "POST", "/dlim/v1/inference/echo-a", b"x")[:2] == (
            503, "Inference service for model <echo-a> is currently unavailable.")
    assert dlim.well(gamma, "GET", "/model/echo-a/readme") == {"readme": "An echo."}
    assert dlim.well(gamma, "PUT", "/model/echo-a/readme", {"readme": "New."}) == {}
    assert dlim.well(alpha, "GET", "/model/echo-a/readme") == {"readme": "New."}
    assert dlim.well(alpha, "GET", "/model/echo-a/streaming") == {"streaming_service_uri": ""}
    assert dlim.well(alpha, "GET", "/modelextension") == {"model_list": [dlim.well(beta, "GET", "/model/echo-a")], "extension_list": []}
    assert dlim.well(beta, "PUT", "/model/echo-a/operation/start") == {}
    assert dlim.state(gamma, "echo-a")["state"] == "enabled"  # at once, without a kernel
    assert dlim(alpha, "DELETE", "/dlim/v1/model/echo-a")[:2] == (409, {"error": "The model cannot be removed if it's started."})
    # A request waits for the first kernel, on every node.
    assert dlim(gamma, "POST", "/dlim/v1/inference/echo-a", b'{"a": 1}')[:2] == (200, {"a": 1})
    assert dlim(alpha, "POST", "/dlim/v1//inference/echo-a", b"plain")[:2] == (200, "plain")
    dlim.until_idle(beta, "echo-a")
    [instance] = dlim.state(beta, "echo-a")["instances"]
    assert instance["gpu_mode"] == "no" and instance["isd_container"][0]["finished_task"] >= 2
    uri = dlim.well(beta, "GET", "/model/echo-a")["service_uri"]
    assert uri == beta.url + "/dlim/v1/inference/echo-a"
    assert dlim.well(beta, "GET", "/model/echo-a")["stream_uri"] == beta.url.partition("://")[2]
    assert dlim.well(beta, "GET", "/model/echo-a/streaming") == {"streaming_service_uri": beta.url.partition("://")[2]}
    assert dlim.well(alpha, "PUT", "/model/echo-a/operation/start") == {}  # again: nothing changes
    assert dlim.well(gamma, "PUT", "/model/echo-a/operation/stop") == {}
    # What one host has said of its end every host knows: it is what the group has committed.
    dlim.mesh.until(lambda: dlim.state(alpha, "echo-a")["state"] == "disabled", 90, "it is disabled")
    assert dlim.state(gamma, "echo-a")["state"] == "disabled"
    assert dlim.well(beta, "DELETE", "/model/echo-a") == {}
    for host in dlim.mesh.hosts:
        assert dlim.well(host, "GET", "/model") == []
        assert dlim(host, "GET", "/dlim/v1/model/echo-a")[:2] == (404, {"error": "Model <echo-a> doesn't exist."})


def test_the_next_package_keeps_what_was_written_of_the_model(dlim):
    boundary = "simple"
    part = ("--%s\r\nContent-Disposition: form-data; name=\"userfile\"\r\nContent-Type: application/octet-stream\r\n\r\n" % boundary).encode()
    body = part + archive(top="", mode="w") + ("\r\n--%s--\r\n" % boundary).encode()
    first = dlim.well(dlim.beta, "POST", "/deployment/model", body, Content_Type="multipart/form-data; boundary=" + boundary)
    assert dlim.well(dlim.alpha, "PUT", "/model/echo-a/appprofile", {"policy": {"kernel_max": 2, "own": [1]}}) == {}
    assert dlim(dlim.alpha, "POST", "/dlim/v1/deployment/model", archive())[:2] == (409, {"error": "Model <echo-a> already exists."})
    dlim.well(dlim.alpha, "PUT", "/model/echo-a/operation/start")
    assert dlim(dlim.gamma, "POST", "/dlim/v1/inference/echo-a", b"1")[:2] == (200, 1)
    second = dlim.well(dlim.gamma, "POST", "/deployment/model/echo-a", archive(dict(MODEL, tag="second"), **{
        "kernel.py": KERNEL.replace("task_context.get_input_data()", '"second"')}))
    assert second["uid"] == first["uid"] and second["tag"] == "second" and second["create_time"] == first["create_time"]
    profile = dlim.well(dlim.beta, "GET", "/model/echo-a/appprofile")
    assert profile["policy"]["kernel_max"] == 2 and profile["policy"]["own"] == [1]

    def answers():
        status, answer, _ = dlim(dlim.beta, "POST", "/dlim/v1/inference/echo-a", b"1")
        assert status == 200 and answer in (1, "second"), (status, answer)  # deploying interrupts nothing
        return answer == "second"
    dlim.mesh.until(answers, 90, "the second package answers")
    assert dlim(dlim.alpha, "POST", "/dlim/v1/deployment/model/other", archive())[0] == 400
    assert dlim(dlim.alpha, "POST", "/dlim/v1/deployment/model/other", archive(dict(MODEL, name="other")))[:2] == (
        404, {"error": "Model <other> doesn't exist."})


def test_profiles(dlim):
    dlim.well(dlim.alpha, "POST", "/deployment/model", archive())
    profile = dlim.well(dlim.beta, "GET", "/model/echo-a/appprofile")
    assert profile["schema_version"] == "1.2" and profile["replica"] == 1 and profile["name"] == "echo-a"
    assert profile["policy"] == {"name": "capacity", "schedule_interval": 3, "kernel_min": 1, "kernel_max": 100,
                                 "kernel_delay_release_time": 60, "task_execution_timeout": 60, "task_batch_size": 1,
                                 "task_pipe_size": 1, "task_parallel_size": 1, "stream_number_per_group": 0,
                                 "stream_discard_slow_tasks": True}
    assert profile["kernel"]["envs"] == [{"name": "DLIM_MK_LOG_LEVEL", "value": "INFO"}]
    assert re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ 123]\d \d\d:\d\d:\d\d \d{4} GMT", profile["last_update_time"])
    profile["policy"]["kernel_min"] = 0
    profile["resource_allocation"]["kernel"]["consumer"] = "own"  # an unknown key is kept
    profile["resource_allocation"]["kernel"]["namespace"] = "read only"
    assert dlim.well(dlim.gamma, "PUT", "/model/echo-a/appprofile", profile) == {}
    after = dlim.well(dlim.alpha, "GET", "/model/echo-a/appprofile")
    assert after["policy"]["kernel_min"] == 0 and after["resource_allocation"]["kernel"]["consumer"] == "own"
    assert after["resource_allocation"]["kernel"]["namespace"] == ""
    for wrong, named in (({"policy": {"kernel_min": -1}}, "policy.kernel_min"), ({"policy": {"kernel_max": 0, "kernel_min": 1}}, "kernel_max"),
                         ({"policy": {"task_batch_size": "4"}}, "task_batch_size"), ({"policy": {"task_execution_timeout": 0}}, "timeout"),
                         ({"replica": 0}, "replica"), ({"kernel": {"gpu": "some"}}, "kernel.gpu"), ({"kernel": {"umask": "9"}}, "umask"),
                         ({"resource_allocation": {"kernel": {"resources": "ncpus=4,ncpus_limit=1"}}}, "ncpus_limit"),
                         ({"name": "other"}, "name"), ({"kernel": {"envs": [{"name": 1}]}}, "envs"), ({"policy": 3}, "policy"),
                         ({"policy": {"kernel_min": 65}}, "kernel_min"), ([1], "object"), (b"{", "JSON")):
        status, answer, _ = dlim(dlim.beta, "PUT", "/dlim/v1/model/echo-a/appprofile", wrong)
        assert status == 400 and named in answer["error"], (wrong, status, answer)
    assert dlim.well(dlim.alpha, "GET", "/model/echo-a/appprofile") == after  # nothing changed
    assert dlim.well(dlim.beta, "PUT", "/model/echo-a", dict(dlim.well(dlim.beta, "GET", "/model/echo-a"), tag="new", uid="x")) == {}
    model = dlim.well(dlim.gamma, "GET", "/model/echo-a")
    assert model["tag"] == "new" and model["uid"] != "x"
    assert dlim(dlim.gamma, "PUT", "/dlim/v1/model/echo-a", {"attributes": [{"key": 1}]})[0] == 400
    assert dlim(dlim.gamma, "PUT", "/dlim/v1/model/echo-a/readme", {"readme": 1})[0] == 400
    assert dlim(dlim.gamma, "PUT", "/dlim/v1/model/echo-a/readme", {"readme": "x" * 9000})[0] == 400


def test_packages_that_are_none(dlim):
    cases = ((b"", "The package is not a tar archive."), (b"no archive at all", "The package is not a tar archive."),
             (archive(**{"model.json": None}), "model.json is missing in the package."),
             (archive(**{"model.json": "[]"}), "model.json is invalid: "), (archive(**{"model.json": "{"}), "model.json is invalid: "),
             (archive({k: v for k, v in MODEL.items() if k != "runtime"}), "model.json is invalid: runtime"),
             (archive(dict(MODEL, name="a b")), "model.json is invalid: name"),
             (archive(dict(MODEL, kernel_path="gone.py")), "Kernel file gone.py does not exist."),
             (archive(**{"README.md": None}), "README.md is missing in the package."))
    for body, text in cases:
        status, answer, _ = dlim(dlim.alpha, "POST", "/dlim/v1/deployment/model", body, Content_Type="application/octet-stream")
        assert status == 400 and answer["error"].startswith(text), (text, status, answer)
    assert dlim.well(dlim.alpha, "GET", "/model") == []
    status, answer, headers = dlim(dlim.alpha, "DELETE", "/dlim/v1/model")
    assert status == 405 and headers["Allow"] == "GET, HEAD" and "error" in answer
    assert dlim(dlim.alpha, "PUT", "/dlim/v1/model/none/operation/start")[:2] == (404, {"error": "Model <none> doesn't exist."})
    assert dlim(dlim.alpha, "GET", "/dlim/v1/deployment/runtime/none")[:2] == (400, {"error": "Runtime <none> does not exists."})
    assert dlim(dlim.alpha, "DELETE", "/dlim/v1/deployment/runtime/python")[0] == 403
    names = [one["type"] for one in dlim.well(dlim.beta, "GET", "/deployment/runtime")["runtimes"]]
    assert names == sorted(names) and "dlipy3" in names

TELLER = """
import json, os, sys
from redhareapi import Kernel

class Teller(Kernel):
    def on_task_invoke(self, task_context):
        while task_context is not None:
            task_context.set_output_data(json.dumps({name: os.environ.get(name) for name in
                                                     ("COLOUR", "SHAPE", "BEFORE", "WHICH", "CONDA_DEFAULT_ENV", "WHERE")}))
            task_context = task_context.next()

if __name__ == "__main__":
    Teller().run()
"""


def test_runtimes_that_an_administrator_makes(dlim, tmp_path):
    """A5, and what the mesh does with one: its interpreter, what runs before it, and its variables below the model's."""
    alpha, beta, gamma = dlim.alpha, dlim.beta, dlim.gamma
    interpreter = tmp_path / "conda/envs/mine/bin/python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text("#!/bin/sh\nWHICH=mine exec %s \"$@\"\n" % sys.executable)
    interpreter.chmod(0o755)
    address = "/dlim/v1/deployment/runtime"
    unknown = (400, {"error": "Runtime <mine> does not exists."})
    for method in ("GET", "PUT", "DELETE"):
        body = {"launcher": "l"} if method == "PUT" else None
        assert dlim(beta, method, address + "/mine", body)[:2] == unknown
    # A model of it may be deployed, and is not started.
    model = dict(MODEL, name="teller", runtime="mine", mk_environments=[{"name": "COLOUR", "value": "blue"}])
    dlim.well(alpha, "POST", "/deployment/model", archive(model, **{"kernel.py": TELLER}), Content_Type="application/octet-stream")
    assert dlim(gamma, "PUT", "/dlim/v1/model/teller/operation/start")[:2] == unknown
    assert dlim.state(alpha, "teller")["state"] == "disabled"
    mine = dict(dlim.well(alpha, "GET", "/deployment/runtime/dlipy3"), type="mine", conda_home=str(tmp_path / "conda"),
                conda_env_name="mine", pre_exec="export BEFORE='a b'", epoch_created=5, future={"kept": [1]},
                envs=[{"name": "COLOUR", "value": "red"}, {"name": "SHAPE", "value": "round"},
                      {"name": "WHERE", "value": "${REDHARE_TOP}/x"}])
    assert dlim.well(alpha, "POST", "/deployment/runtime", mine) == {"status": "OK"}
    for host in dlim.mesh.hosts:
        kept = dlim.well(host, "GET", "/deployment/runtime/mine")
        assert {k: v for k, v in kept.items() if k != "epoch_updated"} == dict(
            {k: v for k, v in mine.items() if k != "epoch_updated"}, epoch_created=kept["epoch_updated"])
        names = [one["type"] for one in dlim.well(host, "GET", "/deployment/runtime")["runtimes"]]
        assert names == ["cpp", "dlipy3", "dlipy3-cpu", "mine", "python"]
    for name in ("mine", "Mine", "python"):
        assert dlim(beta, "POST", address, dict(mine, type=name))[:2] == (409, {"error": "Runtime <%s> already exists." % name})
    assert dlim.well(gamma, "PUT", "/model/teller/operation/start") == {}
    status, said, _ = dlim(beta, "POST", "/dlim/v1/inference/teller", b"{}")
    assert (status, said) == (200, {"COLOUR": "blue", "SHAPE": "round", "BEFORE": "a b", "WHICH": "mine", "CONDA_DEFAULT_ENV": "mine",
                                    "WHERE": "/opt/wml-edi/x"})
    assert dlim(alpha, "DELETE", address + "/mine")[:2] == (409, {"error": "Runtime <mine> is used by model <teller>."})
    dlim.well(alpha, "PUT", "/model/teller/operation/stop")
    dlim.mesh.until(lambda: dlim.state(alpha, "teller")["state"] == "disabled", 90, "it is disabled")
    # What is changed the next kernel has; what cannot start says why on every node.
    assert dlim.well(beta, "PUT", "/deployment/runtime/mine", {"pre_exec": "exit 3", "type": "other"}) == {"status": "OK"}
    assert dlim.well(alpha, "GET", "/deployment/runtime/mine")["pre_exec"] == "exit 3"
    dlim.well(alpha, "PUT", "/model/teller/operation/start")
    dlim.mesh.until(lambda: "pre_exec of runtime mine failed" in gamma.get("/v1/services/teller")["why"], 60, "why says it")
    dlim.well(alpha, "PUT", "/model/teller/operation/stop")
    dlim.mesh.until(lambda: dlim.state(alpha, "teller")["state"] == "disabled", 90, "it is disabled again")
    dlim.well(alpha, "DELETE", "/model/teller")
    assert dlim.well(gamma, "DELETE", "/deployment/runtime/mine") == {"status": "OK"}
    assert dlim(alpha, "GET", address + "/mine")[:2] == unknown


def test_runtimes_that_are_none_change_nothing(dlim):
    address = "/dlim/v1/deployment/runtime"
    good = {"type": "bad", "launcher": "l"}
    for body, says in ((b"{", "JSON"), ([], "the body must be a JSON object"), ({}, "type: "), ({"type": "bad"}, "launcher: "),
                       (dict(good, type="a b"), "type: "), (dict(good, type="x" * 40), "type: "), (dict(good, pre_exec=5), "pre_exec"),
                       (dict(good, envs={"A": "b"}), "envs: "), (dict(good, envs=[{"name": "A", "value": 5}]), "envs: "),
                       (dict(good, attributes=[{"name": "A"}]), "attributes: "), (dict(good, description="x" * 1000), "bytes of JSON")):
        status, answer, _ = dlim(dlim.alpha, "POST", address, body)
        assert status == 400 and says in answer["error"], (body, status, answer)
    assert dlim(dlim.beta, "PUT", address + "/python", good)[0] == 403
    assert [one["type"] for one in dlim.well(dlim.gamma, "GET", "/deployment/runtime")["runtimes"]] == ["cpp", "dlipy3", "dlipy3-cpu", "python"]



def test_tokens_and_origins(dlim):
    alpha, beta = dlim.alpha, dlim.beta
    status, answer, headers = dlim(alpha, "GET", "/dlim/v1/model", bare=True)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer") and "error" in answer
    assert dlim(alpha, "GET", "/dlim/v1/model", Authorization="Bearer ")[0] == 401
    assert dlim(alpha, "POST", "/dlim/v1/auth/token", bare=True)[0] == 401
    wrong = base64.b64encode(b"admin:None").decode()
    status, answer, _ = dlim(alpha, "POST", "/dlim/v1/auth/token", Authorization="Basic " + wrong)
    assert status == 401 and "error" in answer
    assert dlim(alpha, "POST", "/dlim/v1/auth/token", {"method": "password", "userpasswd": wrong}, bare=True)[0] == 401
    right = base64.b64encode(b"admin:" + PASSWORD.encode() + b"\n").decode()  # as `echo user:password | base64` gives it
    for tokens in (dlim.well(beta, "POST", "/auth/token", Authorization="Basic " + base64.b64encode(b"admin:" + PASSWORD.encode()).decode(),
                             Content_Type="application/json"),
                   dlim.well(alpha, "POST", "/auth/token", {"method": "password", "userpasswd": right}, bare=True)):
        assert tokens["access_token"] == tokens["user_token"]
        assert dlim(beta, "GET", "/dlim/v1/model", X_Auth_Token=tokens["user_token"])[0] == 200
    token = dlim.mesh.token(alpha)
    for name in ("X-Auth-Token", "X-User-Token"):
        assert dlim(beta, "GET", "/dlim/v1/model", **{name: token})[0] == 200
        assert dlim(beta, "GET", "/dlim/v1/model", **{name: "none"})[0] == 401
    assert dlim(beta, "GET", "/dlim/v1/model", X_Auth_Token="none", X_User_Token=token)[0] == 200  # the first valid one
    service = dlim.well(beta, "POST", "/auth/token/inference")["service_token"]
    assert dlim(alpha, "GET", "/dlim/v1/model", X_Auth_Token=service)[0] == 200
    status, answer, _ = dlim(alpha, "POST", "/dlim/v1/deployment/model", archive(), X_Auth_Token=service)
    assert status == 403 and "service token" in answer["error"]
    status, _, headers = dlim(alpha, "OPTIONS", "/dlim/v1/inference/x", Origin="null", bare=True)
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "null" and "X-Auth-Token" in headers["Access-Control-Allow-Headers"]
    assert dlim(alpha, "GET", "/dlim/v1/model", Origin="https://page")[2]["Access-Control-Allow-Origin"] == "https://page"
    assert dlim(alpha, "OPTIONS", "/v1/jobs", Origin="null")[0] == 405  # no page of another host asks this


class Command:
    """`dlim` as scripts run it."""

    def __init__(self, mesh, folder):
        self.folder, self.binary = folder, folder / "dlim"
        self.binary.symlink_to(mesh.binary)
        self.environment = dict(os.environ, HOME=str(folder), TZ="UTC", LC_ALL="C")
        self.words = ["--rest-server", mesh.hosts[1].url, "--jwt-token", mesh.token(mesh.hosts[1])]

    def __call__(self, *words, typed=""):
        done = subprocess.run([self.binary, *words, *self.words], input=typed, capture_output=True, text=True, env=self.environment,
                              cwd=self.folder, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr


def test_the_command_line_as_scripts_call_it(dlim, tmp_path):
    run = Command(dlim.mesh, tmp_path)
    package = tmp_path / "echo"
    package.mkdir()
    for name, text in (("kernel.py", KERNEL), ("README.md", "An echo."), ("model.json", json.dumps(MODEL))):
        (package / name).write_text(text)
    assert run("model", "deploy", "-p", "echo") == (0, "Uploading...\n<echo/README.md> uploaded to server.\n"
                                                    "<echo/kernel.py> uploaded to server.\n<echo/model.json> uploaded to server.\n"
                                                    "Registering...\nModel <echo-a> is deployed successfully\n", "")
    code, out, _ = run("model", "deploy", "-p", "echo")
    assert code == 1 and out.startswith("Model <echo-a> already exists on inference service, do you want to update it? (y|n):")
    assert run("model", "deploy", "-p", "echo", "-f")[0] == 0
    assert run("model", "list") == (0, "NAME    REST URI\necho-a  -\n", "")
    assert run("model", "start", "echo-a")[1] == 'Starting model "echo-a", run "dlim model view echo-a -s" to ensure startup.\n'
    dlim.mesh.until(lambda: "\nStatus:               IDLE\n" in run("model", "view", "echo-a", "-s", "-a")[1], 90, "dlim sees an idle kernel")
    assert "State:            Started\n" in run("model", "view", "echo-a", "-s")[1]
    code, out, _ = run("model", "viewprofile", "echo-a", "-j")
    profile = json.loads(out)
    profile["policy"]["kernel_max"] = 3
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    assert run("model", "updateprofile", "echo-a", "-f", "profile.json") == (0, "Model is updated successfully\n", "")
    assert run("model", "undeploy", "echo-a", "-f") == (1, "", "The model cannot be removed if it's started.\n")
    assert run("model", "stop", "echo-a", "-f")[1] == 'Stopping model "echo-a", run "dlim model view echo-a -s" to ensure stop.\n'
    dlim.mesh.until(lambda: "Stopped" in run("model", "view", "echo-a", "-s")[1], 40, "dlim sees that it is stopped")
    assert run("model", "undeploy", "echo-a", "-f")[1] == 'Undeployed model "echo-a", run "dlim model list" to ensure deletion.\n'
    assert run("model", "view", "echo-a") == (1, "", "Model <echo-a> doesn't exist.\n")
    assert run("runtime", "list")[1].splitlines()[0].split() == ["NAME", "DESCRIPTION"]
    (tmp_path / "runtime.json").write_text(json.dumps({"type": "own", "launcher": "l", "description": "ours"}))
    assert run("runtime", "create", "-f", "runtime.json") == (0, "Runtime <own> is created successfully\n", "")
    assert ["own", "ours"] in [line.split() for line in run("runtime", "list")[1].splitlines()]
    assert run("runtime", "update", "own", "-f", "runtime.json") == (0, "Runtime is updated successfully\n", "")
    assert run("runtime", "delete", "own", "-f") == (0, "Runtime <own> is deleted successfully\n", "")
    assert run("runtime", "view", "own") == (1, "", "Runtime <own> does not exists.\n")
