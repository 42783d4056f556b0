"""WMLA's older addresses of models, /edimodels: the same services as /dlim/v1 shows, by hand through every node and by WMLA's own
client as a user installs it (the inference contract, section 3, and scenario A17)."""

import base64
import json
import pathlib
import subprocess
import urllib.error
import urllib.request

import pytest
from helpers import ended, submit
from mesh import PASSWORD, TLS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / ".venv" / "wmla" / "bin" / "python"
EDI = "/platform/rest/deeplearning/v1/edimodels"
KEYS = {"schema_version", "name", "tag", "weight_path", "model_path", "creator", "runtime", "kernel_path", "mk_resource_req", "mk_umask",
        "attributes", "mk_environments", "service_uri", "size", "mk_instance_min", "mk_instance_max", "create_time", "last_update_time",
        "state"}
SCRIPT = """
import json
import os

os.makedirs(os.path.join(os.environ["RESULT_DIR"], "model"), exist_ok=True)
with open(os.path.join(os.environ["RESULT_DIR"], "model", "labels.json"), "w") as file:
    json.dump(["cat", "dog"], file)
"""
KERNEL = """
import json
import os

import redhareapiversion
from redhareapi import Kernel


class Classifier(Kernel):
    def on_kernel_start(self, kernel_context):
        model = json.loads(kernel_context.get_model_description())
        with open(os.path.join(model["model_path"], model["weight_path"])) as file:
            self.labels = json.load(file)
        self.attributes = {one["key"]: one["value"] for one in model["attributes"]}

    def on_task_invoke(self, task_context):
        while task_context is not None:
            asked = json.loads(task_context.get_input_data())
            if asked["action_type"] == "raise":
                raise ValueError("no such action")
            if asked["action_type"] == "Classification":
                found = [{"sampleId": one["key"], "label": label, "prob": 0.5} for label in self.labels for one in asked["data_value"]]
                answer = json.dumps({"type": "classification", "result": found})
            else:
                answer = "%s %s" % (self.attributes["threshold"], os.environ["COLOUR"])
            task_context.set_output_data(answer)
            task_context = task_context.next()


if __name__ == "__main__":
    Classifier().run()
"""


class Edi:
    def __init__(self, mesh):
        self.mesh = mesh

    def __call__(self, host, method, path="", body=None, authorization=None, base=EDI):
        """(status, JSON or text)"""
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        headers = {"Content-Type": "application/json", "Authorization": authorization or "Bearer " + self.mesh.token(host)}
        request = urllib.request.Request(host.url + base + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=90, context=TLS) as answer:
                status, text, kind = answer.status, answer.read().decode(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as refusal:
            status, text, kind = refusal.code, refusal.read().decode(), refusal.headers["Content-Type"]
        return status, json.loads(text) if kind.startswith("application/json") else text

    def well(self, *words, **options):
        status, answer = self(*words, **options)
        assert status == 200, (words, status, answer)
        return answer

    def remove(self, host, name):
        assert self.well(host, "PUT", "/%s/operation/stop" % name) == {}
        self.mesh.until(lambda: self(host, "DELETE", "/" + name)[0] == 200, 60, "%s is removed" % name, pause=0.2)


@pytest.fixture(scope="module")
def job(mesh, tmp_path_factory):
    """It has left labels, and was submitted with a kernel that reads them."""
    folder = tmp_path_factory.mktemp("labels")
    (folder / "main.py").write_text(SCRIPT)
    (folder / "kernel.py").write_text(KERNEL)
    made = submit(mesh, mesh.hosts[0], folder)
    assert ended(mesh, made, 120)["state"] == "FINISHED", mesh.job(made)
    return made


@pytest.fixture
def edi(mesh):
    return Edi(mesh)


def param(job, **changes):
    return {"name": "pets", "edi_py": "kernel.py", "modelPath": job, "weightPath": "labels.json", "runtime": "dlipy3",
            "attribute": "threshold=0.5\na=b=c", "mcenv": "COLOUR=blue,SIZE=1", "type": "vision", **changes}


def asking(action="Classification", **changes):
    return {"action_type": action, "data_type": "image:jpeg_uri",
            "data_value": [{"key": "1", "value": "a.jpg"}, {"key": "2", "value": "b.jpg"}], **changes}


def test_a_trained_model_is_published_edited_asked_and_removed(mesh, job, edi):
    alpha, beta, gamma = mesh.hosts
    basic = "Basic " + base64.b64encode(b"admin:" + PASSWORD.encode()).decode()
    assert edi.well(alpha, "GET", authorization=basic) == []
    status, model = edi(beta, "POST", "/new", param(job), authorization=basic)
    assert status == 201 and set(model) == KEYS, (status, model)
    assert (model["name"], model["kernel_path"], model["weight_path"], model["tag"]) == ("pets", "kernel.py", "model/labels.json", "vision")
    assert {"key": "threshold", "value": "0.5"} in model["attributes"] and {"key": "a", "value": "b=c"} in model["attributes"]
    assert model["mk_environments"] == [{"name": "COLOUR", "value": "blue"}, {"name": "SIZE", "value": "1"}]
    assert (model["state"], model["service_uri"], model["mk_instance_min"], model["mk_umask"]) == ("disabled", "", 1, "022")
    for host in mesh.hosts:
        assert edi.well(host, "GET") == [model] and edi.well(host, "GET", "/pets") == model
        assert edi.well(host, "GET", "/pets/instance") == {
            "name": "pets", "state": "disabled", "instance": {"name": "pets", "state": "disabled", "instances": []}}
    assert [one["name"] for one in edi.well(gamma, "GET", base="/dlim/v1/model")] == ["pets"]  # one store, two views
    assert edi.well(alpha, "GET", "/pets/streaming") == "" and job[-6:] in edi.well(alpha, "GET", "/pets/readme")["readme"]
    assert edi(alpha, "POST", "/new", param(job))[0] == 409
    status, other = edi(gamma, "POST", "/" + job, param("ignored", name="pets2", edi_py="/x/batchworkdir/%s/kernel.py" % job))
    assert status == 201 and other["name"] == "pets2" and [one["name"] for one in edi.well(beta, "GET")] == ["pets", "pets2"]
    assert edi.well(beta, "DELETE", "/pets2") == {} and edi(alpha, "GET", "/pets2")[0] == 404
    # The profile, in the API's own spelling.
    assert edi.well(alpha, "PUT", "/pets/appprofile", {"name": "pets", "policy": {"schedule_intervel": 7}}) == {}
    profile = edi.well(beta, "GET", "/pets/appprofile")
    assert profile["policy"]["schedule_intervel"] == profile["policy"]["schedule_interval"] == 7
    assert profile["update_time"] == profile["last_update_time"] and profile["envs"] == profile["kernel"]["envs"]
    profile["policy"]["schedule_intervel"], profile["envs"] = 9, [{"name": "A", "value": "1"}]
    assert edi.well(gamma, "PUT", "/pets/appprofile", profile) == {}
    profile = edi.well(alpha, "GET", "/pets/appprofile")
    assert profile["policy"]["schedule_interval"] == 9 and profile["kernel"]["envs"] == [{"name": "A", "value": "1"}]
    # The model object mirrors the profile.
    assert edi.well(beta, "PUT", "/pets", dict(edi.well(alpha, "GET", "/pets"), tag="new", mk_instance_max=3, mk_umask="")) == {}
    model = edi.well(gamma, "GET", "/pets")
    assert (model["tag"], model["mk_instance_max"], model["mk_umask"]) == ("new", 3, "022")
    assert edi.well(alpha, "GET", "/pets/appprofile")["policy"]["kernel_max"] == 3
    # Asked.
    assert edi(alpha, "POST", "/pets/inference", asking()) == (
        503, "Error 503: Inference service for model <pets> is currently unavailable.\n")
    assert edi.well(beta, "PUT", "/pets/operation/start") == {} and edi.well(gamma, "GET", "/pets")["state"] == "enabled"
    for host in mesh.hosts:
        answer = edi.well(host, "POST", "/pets/inference", asking())
        labels = [{"label": "cat", "prob": 0.5}, {"label": "dog", "prob": 0.5}]
        assert answer == {"modelName": "pets", "reslove": True, "other": "", "results": [{
            "type": "classification", "classificationResults": [
                {"sampleId": "1", "inputPath": "a.jpg", "isImage": True, "results": labels},
                {"sampleId": "2", "inputPath": "b.jpg", "isImage": True, "results": labels}]}]}
        assert edi.well(host, "POST", "/pets/inference", asking("Object Detection")) == {
            "modelName": "pets", "reslove": False, "other": "0.5 blue", "results": []}
    large = "x" * (2 << 20)  # an image may be larger than other JSON
    assert edi.well(gamma, "POST", "/pets/inference", asking(data_value=[{"key": "1", "value": large}]))["reslove"] is True
    status, text = edi(alpha, "POST", "/pets/inference", asking("raise"))
    assert status == 500 and "no such action" in text
    mesh.until(lambda: edi.well(gamma, "GET", "/pets/instance")["instance"]["instances"][0]["isd_container"], 60, "gamma hears of a kernel")
    instance = edi.well(gamma, "GET", "/pets/instance")
    assert instance["state"] == instance["instance"]["state"] == "enabled"
    isd = instance["instance"]["instances"][0]
    assert {"isd_uid", "client_number", "pending_number", "request_per_sec", "data_size_per_sec", "isd_container"} == set(isd)
    assert {"container_uid", "container_host", "container_status", "total_task", "running_task", "finish_task", "failed_task"} == set(
        isd["isd_container"][0])

    def is_told_how_much_is_asked():  # by any host, of the last ten seconds
        for host in mesh.hosts * 3:
            edi.well(host, "POST", "/pets/inference", asking())
        told = edi.well(gamma, "GET", "/pets/instance")["instance"]["instances"][0]
        same = alpha.get("/dlim/v1/model/pets/instance")["instances"][0]
        assert type(told["request_per_sec"]) is int and type(same["request_per_sec"]) is float
        return min(told["request_per_sec"], told["data_size_per_sec"], same["request_per_sec"], same["data_size_per_sec"] / 100) > 0.5

    mesh.until(is_told_how_much_is_asked, 60, "the rates are told")
    assert edi.well(alpha, "GET", "/pets/streaming") == alpha.url.partition("//")[2]
    assert edi(gamma, "DELETE", "/pets") == (409, "Error 409: The model cannot be removed if it's started.\n")
    edi.remove(beta, "pets")
    assert edi.well(gamma, "GET") == []


def test_bad_input_is_refused_and_changes_nothing(mesh, job, edi):
    alpha, beta, gamma = mesh.hosts
    assert edi(alpha, "POST", "/new", param(job, name="kept"))[0] == 201
    before = edi.well(beta, "GET", "/kept"), edi.well(beta, "GET", "/kept/appprofile")
    assert edi(alpha, "GET", authorization="Basic " + base64.b64encode(b"admin:wrong").decode())[0] == 401
    for wrong, status, text in (
            (b"{", 400, "JSON"), (b"", 400, "JSON"), (b"[]", 400, "must be a JSON object"), (param(job, edi_py=""), 400, "edi_py"),
            (param(job, modelPath="/data/models/pets"), 400, "neither a job nor its RESULT_DIR"), (param("zzzzzzzz"), 404, "zzzzzzzz"),
            (param(job, edi_py="gone.py"), 400, "Kernel file gone.py does not exist."), (param(job, name="a b"), 400, "name"),
            (param(job, attribute="nothing"), 400, "attribute"), (param(job, mcenv="=1"), 400, "is not key=value"),
            (param(job, type=1), 400, "type: not a text"), (param(job, name="kept"), 409, "already exists")):
        said = edi(gamma, "POST", "/new", wrong)
        assert said[0] == status and text in said[1] and said[1].startswith("Error %d: " % status), (wrong, said)
    for key in ("name", "edi_py", "modelPath", "weightPath", "runtime"):
        whole = param(job)
        del whole[key]
        assert edi(beta, "POST", "/" + job, whole) == (400, "Error 400: %s: it must be said, as a text\n" % key)
    for method, path, body, status, text in (
            ("PUT", "/kept", {"tag": "x"}, 400, "name: it must be said"), ("PUT", "/kept", {"name": "kept", "tag": 1}, 400, "tag"),
            ("PUT", "/kept", {"name": "kept", "tag": "x", "mk_instance_min": -1}, 400, "policy.kernel_min"),
            ("PUT", "/kept", {"name": "kept", "tag": "x", "mk_umask": "9"}, 400, "kernel.umask"),
            ("PUT", "/kept", {"name": "kept", "attributes": [{"key": "a"}]}, 400, "attributes"),
            ("PUT", "/kept/appprofile", {"policy": {}}, 400, "name: it must be said"),
            ("PUT", "/kept/appprofile", {"name": "other"}, 400, "name"),
            ("PUT", "/kept/appprofile", {"name": "kept", "policy": {"schedule_intervel": 0}}, 400, "schedule_interval"),
            ("PUT", "/kept/appprofile", {"name": "kept", "envs": [1]}, 400, "kernel.envs"),
            ("POST", "/kept/inference", {}, 400, "action_type"), ("POST", "/kept/inference", asking(data_type=""), 400, "data_type"),
            ("POST", "/kept/inference", asking(data_value={}), 400, "data_value"),
            ("POST", "/kept/inference", asking(attributes=[1]), 400, "attributes"), ("POST", "/kept/inference", b"no", 400, "JSON")):
        said = edi(alpha, method, path, body)
        assert said[0] == status and text in said[1] and said[1].startswith("Error %d: " % status), (path, body, said)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/appprofile"), ("GET", "/instance"), ("GET", "/readme"),
                         ("GET", "/streaming"), ("PUT", "/operation/start"), ("PUT", "/operation/stop")):
        assert edi(gamma, method, "/none" + path) == (404, "Error 404: Model <none> doesn't exist.\n"), (method, path)
    assert edi(gamma, "POST", "/none/inference", asking())[0] == edi(gamma, "PUT", "/none", {"name": "none"})[0] == 404
    assert edi(gamma, "POST", "/kept/readme", b"")[0] == 405
    assert (edi.well(beta, "GET", "/kept"), edi.well(beta, "GET", "/kept/appprofile")) == before
    assert [one["name"] for one in edi.well(alpha, "GET")] == ["kept"]
    edi.remove(alpha, "kept")


BY_CLIENT = """
import json
import sys
import time

from ibm_cloud_sdk_core import ApiException
from ibm_cloud_sdk_core.authenticators import BasicAuthenticator
from ibm_wmla.wmla_api_v1 import Attr, DeepLearningImpactV1, Envs, IaSInstanceParam, IaSModelDescription, IaSTestResultParam, Policy

url, password, job = sys.argv[1:]
api = DeepLearningImpactV1(authenticator=BasicAuthenticator("admin", password))
api.set_service_url(url)
api.set_disable_ssl_verification(True)


def refused(call, *words):
    try:
        call(*words)
    except ApiException as refusal:
        return refusal.code
    return 200


out = {"first": api.get_edi_models().get_result()}
out["made"] = api.publish_edi_model(job, "kernel.py", "pets", "./", "labels.json", "dlipy3", attribute="threshold=1",
                                    mcenv="COLOUR=red").get_status_code()
out["new"] = api.new_edi_model("kernel.py", "more", job, "labels.json", "dlipy3").get_status_code()
out["names"] = [IaSModelDescription.from_dict(one).name for one in api.get_edi_models().get_result()]
api.update_edi_model("pets", "pets", tag="t", attributes=[Attr("threshold", "2")], mk_environments=[Envs("COLOUR", "green")],
                     mk_instance_max=2)
model = IaSModelDescription.from_dict(api.get_edi_model("pets").get_result())
out["model"] = [model.tag, model.mk_instance_max, model.attributes[0].value, model.state]
policy = Policy.from_dict(api.get_edi_model_porfile("pets").get_result()["policy"])
policy.schedule_intervel = 5
api.update_edi_model_porfile("pets", "pets", policy=policy, replica=1)
out["interval"] = api.get_edi_model_porfile("pets").get_result()["policy"]["schedule_intervel"]
out["readme"] = api.get_edi_model_readme("pets").get_result()["readme"]
out["streaming"] = api.get_edi_model_streaming("pets").get_result()
out["missing"] = [refused(api.get_edi_model, "none"), refused(api.delete_edi_model, "none")]
out["start"] = api.start_edi_model("pets").get_status_code()
answer = api.do_edi_inference("pets", "Classification", "image:raw_data", [Attr("s", "bytes")], user="admin").get_result()
solved = IaSTestResultParam.from_dict(answer)
out["solved"] = [solved.reslove, [one.label for one in solved.results[0].classification_results[0].results]]
out["other"] = api.do_edi_inference("pets", "Object Detection", "image:raw_data", [Attr("s", "bytes")]).get_result()["other"]
out["instance"] = IaSInstanceParam.from_dict(api.get_edi_model_instance("pets").get_result()).state
out["in use"] = refused(api.delete_edi_model, "pets")
api.stop_edi_model("pets")
until = time.monotonic() + 90
while refused(api.delete_edi_model, "pets") == 409 and time.monotonic() < until:
    time.sleep(0.2)
api.delete_edi_model("more")
out["last"] = api.get_edi_models().get_result()
print(json.dumps(out))
"""


@pytest.mark.skipif(not (ROOT / ".venv" / "wmla" / "installed").exists(), reason="ibm-wmla is not installed: .ci/setup")
def test_wmlas_own_client(mesh, job):
    host = mesh.hosts[1]
    done = subprocess.run([CLIENT, "-W", "ignore", "-c", BY_CLIENT, host.url, PASSWORD, job], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    out = json.loads(done.stdout.splitlines()[-1])
    assert job[-6:] in out.pop("readme")
    assert out == {"first": [], "made": 201, "new": 201, "names": ["more", "pets"], "model": ["t", 2, "2", "disabled"], "interval": 5,
                   "streaming": "", "missing": [404, 404], "start": 200, "solved": [True, ["cat", "dog"]], "other": "2 green",
                   "instance": "enabled", "in use": 409, "last": []}
