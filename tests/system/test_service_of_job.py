"""From training to serving: what a job has trained is served by one verb, through any node, as a new version while requests flow,
and back."""

import json
import urllib.error
import urllib.request

import pytest
from helpers import ended, submit
from mesh import TLS

SCRIPT = """
import json
import os
import sys

os.makedirs(os.path.join(os.environ["RESULT_DIR"], "model"), exist_ok=True)
with open(os.path.join(os.environ["RESULT_DIR"], "model", "weights.npz"), "w") as file:
    json.dump({"bias": int(sys.argv[1])}, file)
"""
KERNEL = """
import json
import os

import redhareapiversion
from redhareapi import Kernel

import shape


class Sum(Kernel):
    def on_kernel_start(self, kernel_context):
        model = json.loads(kernel_context.get_model_description())
        with open(os.path.join(model["model_path"], model["weight_path"] or "model/weights.npz")) as file:
            self.bias = json.load(file)["bias"]

    def on_task_invoke(self, task_context):
        while task_context is not None:
            asked = json.loads(task_context.get_input_data())
            task_context.set_output_data(json.dumps([sum(asked) + self.bias, shape.OUT, os.environ.get("COLOUR")]))
            task_context = task_context.next()


if __name__ == "__main__":
    Sum().run()
"""
TRAINED = """
import sys

import torch
from fabric_model import FabricModel
from torch import nn
from torch.utils.data import TensorDataset

from shape import OUT


def datasets():
    data = torch.arange(64, dtype=torch.float32).reshape(16, 4)
    return TensorDataset(data, torch.zeros(16, OUT)), TensorDataset(data, torch.zeros(16, OUT))


if __name__ == "__main__":
    model = nn.Linear(4, OUT)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(float(sys.argv[sys.argv.index("--bias") + 1]))
    fabric = FabricModel(model, datasets, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.0))
    fabric.train(1, 8, 1)
"""


class Asker:
    def __init__(self, mesh):
        self.mesh = mesh

    def __call__(self, host, method, path, body=None):
        """(status, JSON or text)"""
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        request = urllib.request.Request(host.url + path, data=data, method=method,
                                         headers={"Authorization": "Bearer " + self.mesh.token(host)})
        try:
            with urllib.request.urlopen(request, timeout=90, context=TLS) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            status, text = refusal.code, refusal.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text


@pytest.fixture(scope="module")
def jobs(mesh, tmp_path_factory):
    """Two jobs of one script, which leave a model with a bias of 1 and of 2."""
    folder = tmp_path_factory.mktemp("sum")
    for name, text in (("main.py", SCRIPT), ("shape.py", "OUT = 2\n"), ("kernel.py", KERNEL)):
        (folder / name).write_text(text)
    made = [submit(mesh, host, folder, "--name", "sum one", script=(str(bias),)) for host, bias in zip(mesh.hosts, (1, 2))]
    for job in made:
        assert ended(mesh, job, 120)["state"] == "FINISHED", mesh.job(job)
    return made


@pytest.fixture
def ask(mesh):
    return Asker(mesh)


def ready(mesh, host, name, count):
    mesh.until(lambda: mesh.cli(host, "service", "show", name)["ready"] == count, 180, "%s has %d ready kernels" % (name, count))


def test_a_jobs_model_is_served_as_the_next_version_and_back(mesh, jobs, ask, tmp_path):
    alpha, beta, gamma = mesh.hosts
    mesh.cli(beta, "job", "deploy", jobs[0][-6:], "--kernel", "kernel.py")
    ready(mesh, gamma, "sumone", 1)

    def sums():
        told = [ask(host, "POST", "/dlim/v1/inference/sumone", [1, 1]) for host in mesh.hosts]
        assert all(one in ((200, [3, 2, None]), (200, [4, 2, None])) for one in told), told  # deploying interrupts nothing
        return [answer[0] for _, answer in told]

    assert sums() == [3, 3, 3]
    refused = mesh.shoal("job", "deploy", jobs[1], "--name", "sumone", "--kernel", "kernel.py", "--node", gamma.url, check=False)
    assert refused.returncode == 7 and "exists already" in refused.stderr and "--update" in refused.stderr
    first = mesh.cli(alpha, "service", "show", "sumone")["job"]
    second = mesh.cli(gamma, "service", "deploy", "sumone", "--from-job", jobs[1], "--kernel", "kernel.py", "--update")["job"]
    assert first != second
    mesh.until(lambda: sums() == [4, 4, 4], 180, "the second job's model answers everywhere")
    mesh.cli(beta, "service", "rollback", "sumone")
    mesh.until(lambda: sums() == [3, 3, 3], 180, "the first one answers again")
    assert mesh.cli(alpha, "service", "show", "sumone")["job"] == first
    (tmp_path / "ask.json").write_text("[5]")
    said = mesh.shoal("service", "test", "sumone", "--input", tmp_path / "ask.json", "--node", gamma.url)
    assert json.loads(said.stdout) == [6, 2, None]
    edited = mesh.cli(gamma, "service", "edit", "sumone", "--set", "policy.kernel_max=2", "--set", "kernel.umask=027", "--dry-run")
    wanted = [{"path": "policy.kernel_max", "from": 1, "to": 2}, {"path": "kernel.umask", "from": "022", "to": "027"}]
    assert edited["dryRun"] and sorted(map(str, edited["changes"])) == sorted(map(str, wanted))
    assert mesh.cli(beta, "service", "edit", "sumone")["policy"]["kernel_max"] == 1  # a dry run changes nothing
    assert "policy.kernel_max: 1 -> 2" in mesh.shoal("service", "edit", "sumone", "--set", "policy.kernel_max=2", "--node", beta.url).stdout
    assert mesh.cli(alpha, "service", "edit", "sumone")["policy"]["kernel_max"] == 2
    for wrong, text in (("policy.kernel_min=3", "kernel_max"), ("policy.kernel_max=x", "policy.kernel_max"), ("kernel.umask=9", "kernel.umask")):
        refused = mesh.shoal("service", "edit", "sumone", "--set", wrong, "--dry-run", "--node", gamma.url, check=False)
        assert refused.returncode == 2 and text in refused.stderr, (wrong, refused)
    for more in ((), ("--dry-run",)):
        refused = mesh.shoal("service", "edit", "sumone", "--set", "policy.kernal_max=4", *more, "--node", gamma.url, check=False)
        assert refused.returncode == 2 and "policy.kernal_max: Shoal knows no such field" in refused.stderr
    assert "kernal_max" not in mesh.cli(beta, "service", "edit", "sumone")["policy"]
    (tmp_path / "more.json").write_text('{"policy": {"kernel_min": 40, "kernel_max": 60}}')
    refused = mesh.shoal("service", "edit", "sumone", "--file", tmp_path / "more.json", "--node", gamma.url, check=False)
    assert refused.returncode == 2 and "the mesh has 6 slots" in refused.stderr
    mesh.cli(gamma, "job", "deploy", jobs[1], "--name", "sumone", "--kernel", "kernel.py", "--canary", 100)
    mesh.until(lambda: sums() == [4, 4, 4], 180, "the second job's model has all requests, as a canary")
    assert mesh.cli(alpha, "service", "show", "sumone")["job"] == first
    mesh.cli(alpha, "service", "delete", "sumone")


def test_wmlas_address_deploys_a_kernel_with_the_weights(mesh, jobs, ask):
    alpha, beta, gamma = mesh.hosts
    path = "/platform/rest/deeplearning/v1/execs/%s/deploy" % jobs[0]
    wish = {"name": "summed", "runtime": "dlipy3", "kernel": "kernel.py", "weight": "weights.npz", "tag": "t",
            "attributes": {"a": "1"}, "environments": {"COLOUR": "blue"}}
    for wrong, text in ((dict(wish, kernel="gone.py"), "Kernel file gone.py does not exist."), ({"name": "summed"}, "must be said"),
                        (b"{", "JSON"), (dict(wish, name="a b"), "name"), (dict(wish, attributes=[1]), "attributes"),
                        (dict(wish, weight=1), "weight")):
        status, answer = ask(gamma, "POST", path, wrong)
        assert status == 400 and text in answer, (wrong, status, answer)
    assert ask(gamma, "GET", "/dlim/v1/model/summed")[0] == 404  # nothing was made
    status, model = ask(gamma, "POST", path, wish)
    assert status == 200 and (model["name"], model["tag"], model["kernel_path"]) == ("summed", "t", "kernel.py"), (status, model)
    assert model["weight_path"] == "model/weights.npz" and {"key": "a", "value": "1"} in model["attributes"]
    assert ask(alpha, "POST", path, wish)[0] == 409
    assert ask(beta, "PUT", "/dlim/v1/model/summed/operation/start") == (200, {})
    assert ask(alpha, "POST", "/dlim/v1/inference/summed", [1]) == (200, [2, 2, "blue"])
    mesh.cli(gamma, "service", "delete", "summed")


def test_what_cannot_be_served_is_refused(mesh, jobs, script):
    alpha, beta, _ = mesh.hosts

    def refused(*words):
        done = mesh.shoal("service", "deploy", "none", *words, "--node", beta.url, check=False)
        assert done.returncode != 0
        return done.returncode, done.stderr

    # The state of Keras's optimizer is no model.
    empty = submit(mesh, alpha, script("import os\nos.chdir(os.environ['RESULT_DIR'])\n"
                                       "open('model_epoch_final_optimizer_state.npz', 'w').write('x')"))
    ended(mesh, empty)
    assert "has left no file of a model" in refused("--from-job", empty)[1]
    assert refused("--from-job", "0000000000000000")[0] == 3
    assert "has left no file" in refused("--from-job", jobs[0], "--weight", "gone.pth")[1]
    assert "FILE:CLASS" in refused("--from-job", jobs[0], "--class", "Linear")[1]
    assert refused("--from-job", jobs[0], "--package", ".")[0] == 2
    assert refused("--kernel", "kernel.py", "--package", ".")[0] == 2
    runs = submit(mesh, alpha, script("import time\nwhile True: time.sleep(0.1)"))
    assert "has not ended" in refused("--from-job", runs)[1]
    mesh.cli(alpha, "job", "stop", runs)
    assert mesh.cli(beta, "service", "list") == {"services": []}


KERAS = """
import os
train = os.path.join(os.environ["RESULT_DIR"], "model", "train")
os.makedirs(os.path.join(train, "model_epoch_final", "variables"))
for name in ("1.h5", "1_optimizer_state.npz", "final.h5", "final_optimizer_state.npz", "final/saved_model.pb",
             "final/variables/variables.index"):
    open(os.path.join(train, "model_epoch_" + name), "w").write("x")
"""


def test_a_saved_model_is_served_with_its_whole_folder(mesh, ask, script):
    """What TF.Keras leaves, in its shape alone: test_keras_jobs serves a real one."""
    alpha, beta, _ = mesh.hosts
    job = submit(mesh, alpha, script(KERAS))
    assert ended(mesh, job)["state"] == "FINISHED"
    for words, weight in (((), "model/train/model_epoch_final"), (("--weight", "model_epoch_final/"), "model/train/model_epoch_final"),
                          (("--weight", "model_epoch_1.h5"), "model/train/model_epoch_1.h5")):
        mesh.cli(beta, "service", "deploy", "kerasnet", "--from-job", job, *words)
        status, model = ask(alpha, "GET", "/dlim/v1/model/kerasnet")
        assert status == 200 and model["weight_path"] == weight, (words, model)
        # This host has no TensorFlow, or finds that no model is in it: its kernel found the files that the package names.
        said = "model_epoch_" + weight.rpartition("_")[2]
        mesh.until(lambda: said in mesh.shoal("why", "kerasnet", "--node", beta.url, check=False).stdout, 60, "the kernel names " + said)
        mesh.cli(alpha, "service", "delete", "kerasnet")


def test_what_was_trained_elastically_needs_no_kernel(mesh, ask, tmp_path):
    """Its script is run up to FabricModel, in the kernel, with the words that it was trained with."""
    alpha, beta, gamma = mesh.hosts
    for name, text in (("main.py", TRAINED), ("shape.py", "OUT = 2\n")):
        (tmp_path / name).write_text(text)
    job = submit(mesh, alpha, tmp_path, framework="edtPyTorch", script=("--bias", "1"))
    assert ended(mesh, job, 300)["state"] == "FINISHED", mesh.job(job)
    mesh.cli(gamma, "service", "deploy", "linear", "--from-job", job)
    ready(mesh, beta, "linear", 1)
    rows = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 1.0, 1.0, 1.0]}]}
    for host in mesh.hosts:
        status, answer = ask(host, "POST", "/v2/models/linear/infer", rows)
        assert status == 200 and answer["outputs"][0]["data"] == [5.0, 5.0], (status, answer)
    mesh.cli(beta, "service", "delete", "linear")
