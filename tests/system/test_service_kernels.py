"""Real kernels behind services: WMLA's Python contract, and a model by its file, from a package to an answer through any node."""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import threading
import urllib.error
import urllib.request

import pytest
import torch
from conftest import ROOT
from mesh import TLS

PING_PONG = """
import os
import redhareapiversion
from redhareapi import Kernel

class Echo(Kernel):
    def on_kernel_start(self, kernel_context):
        print("starts", os.environ["MSD_POD_NAME"])
        self.description = kernel_context.get_model_description()

    def on_task_invoke(self, task_context):
        while task_context is not None:
            asked = task_context.get_input_data()
            if asked == "raise":
                raise ValueError("no good")
            if asked == "die":
                os._exit(3)
            if asked == "self":
                asked = os.environ["MSD_POD_NAME"] + " " + self.description
            task_context.set_output_data(asked)
            task_context = task_context.next()

if __name__ == "__main__":
    Echo().run()
"""


def ask(mesh, host, name, body):
    """(status, body) of one request."""
    request = urllib.request.Request("%s/v2/models/%s/infer" % (host.url, name), data=body, method="POST",
                                     headers={"Authorization": "Bearer " + mesh.token(host), "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60, context=TLS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


def get(mesh, host, path, body=None):
    """(status, JSON)"""
    request = urllib.request.Request(host.url + path, data=body, headers={"Authorization": "Bearer " + mesh.token(host)})
    try:
        with urllib.request.urlopen(request, timeout=60, context=TLS) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.loads(refusal.read())


def deploy(mesh, name, package, replicas=1):
    mesh.cli(mesh.hosts[0], "service", "deploy", name, "--package", package, "--replicas", replicas)


def until_ready(mesh, name):
    for host in mesh.hosts:
        mesh.until(lambda: mesh.cli(host, "service", "show", name)["ready"] == 1, 120, "%s is ready by the word of %s" % (name, host.name))


@pytest.fixture
def package(tmp_path):
    def make(**files):
        folder = tmp_path / "package"
        folder.mkdir()
        for file, content in files.items():
            (folder / file.replace("_", ".")).write_bytes(content)
        return folder

    return make


def test_a_wmla_kernel_answers_through_every_node_and_comes_again_when_it_dies(new_mesh, package):
    mesh = new_mesh()
    deploy(mesh, "echo", package(kernel_py=PING_PONG.encode(), model_json=b'{"name": "echo", "kernel_path": "kernel.py"}'))
    until_ready(mesh, "echo")
    assert [ask(mesh, host, "echo", b'{"a": 1}') for host in mesh.hosts] == [(200, b'{"a": 1}')] * 3
    status, body = ask(mesh, mesh.hosts[1], "echo", b"raise")
    assert status == 500 and b"ValueError: no good" in body
    name, description = ask(mesh, mesh.hosts[1], "echo", b"self")[1].decode().split(" ", 1)
    assert ask(mesh, mesh.hosts[2], "echo", b"die")[0] >= 500
    until_ready(mesh, "echo")
    mesh.until(lambda: ask(mesh, mesh.hosts[0], "echo", b"x") == (200, b"x"), 60, "the kernel answers again")
    # A name is of one start, and the one that the model's instance shows.
    again = ask(mesh, mesh.hosts[1], "echo", b"self")[1].decode().split(" ", 1)[0]
    kernel, = get(mesh, mesh.hosts[0], "/dlim/v1/model/echo/instance")[1]["instances"][0]["isd_container"]
    assert name != again == kernel["container_uid"] and all(one.rpartition("-")[0].endswith("-task12n-0") for one in (name, again))
    model, told = get(mesh, mesh.hosts[0], "/dlim/v1/model/echo")[1], json.loads(description)
    own = {"model_path", "service_uri", "stream_uri"}  # the folder of the kernel's host, and addresses of it
    assert {key: told[key] for key in model.keys() - own} == {key: model[key] for key in model.keys() - own}
    assert os.path.isabs(told["model_path"]) and told["service_uri"] in [host.url + "/dlim/v1/inference/echo" for host in mesh.hosts]
    assert told["stream_uri"] in [host.url.partition("://")[2] for host in mesh.hosts]


def test_a_kernel_in_c_answers_through_every_node_and_comes_again_when_it_dies(new_mesh, package, tmp_path):
    """The guide's example, built as it says, which dies of a body of five bytes."""
    mesh = new_mesh()
    page = (ROOT / "docs/how-to/kernels.md").read_text()
    text = re.search(r"^```c\n(.*?)^```$", page, re.M | re.S).group(1)
    dies = text.replace("        if (upper == NULL)\n", "        if (tasks[i].body_bytes == 5)\n            abort();\n        if (upper == NULL)\n")
    assert dies != text
    made = package(kernel_c=dies.encode())
    build = re.search(r"^```sh\n(mkdir -p upper .*?)\nshoal service deploy upper --package upper\n```$", page, re.M | re.S).group(1)
    subprocess.run(["sh", "-ec", build.replace("-I include", "-I %s/include" % ROOT)], cwd=made, check=True)
    deploy(mesh, "upper", made / "upper")
    until_ready(mesh, "upper")
    assert [ask(mesh, host, "upper", b"to be or not") for host in mesh.hosts] == [(200, b"TO BE OR NOT")] * 3
    assert ask(mesh, mesh.hosts[1], "upper", b"abort")[0] >= 500
    mesh.until(lambda: ask(mesh, mesh.hosts[0], "upper", b"x") == (200, b"X"), 60, "the kernel answers again")


def test_what_names_neither_a_kernel_nor_a_model_is_refused_and_what_cannot_be_loaded_is_told(new_mesh, tmp_path):
    """Also: what set-up installs beside TorchScript, torch.export and scikit-learn, on an agent whose operator allows pickles."""
    os.environ["SHOAL_KERNEL_ALLOW_PICKLE"] = "1"
    try:
        mesh = new_mesh()
    finally:
        del os.environ["SHOAL_KERNEL_ALLOW_PICKLE"]
    folders = {}

    def folder(name, **files):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        for file, content in files.items():
            (folders[name] / file.replace("_", ".")).write_bytes(content)
        return folders[name]

    net = torch.nn.Linear(3, 2).eval()
    torch.export.save(torch.export.export(net, (torch.zeros(2, 3),), dynamic_shapes=({0: torch.export.Dim("rows")},)),
                      str(folder("exported") / "m.pt2"))
    linear, joblib = pytest.importorskip("sklearn.linear_model"), pytest.importorskip("joblib")
    trees = linear.LogisticRegression().fit([[0.0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0]], [0, 0, 1, 1])
    joblib.dump(trees, folder("sklearn") / "m.joblib")
    folder("wrong", kernel_py=b"from redhareapi import Kernel\nclass Mine(Kernel):\n    pass\nMy().run()\n",
           model_json=b'{"name": "wrong", "kernel_path": "kernel.py"}')
    for name in ("exported", "sklearn", "wrong"):
        deploy(mesh, name, folders[name])
    for name, text in (("notes", "no file of a model at its top: name a Python file as kernel_path"), ("two", "2 models (a.onnx, b.pt)")):
        files = {"notes_txt": b"n"} if name == "notes" else {"a_onnx": b"m", "b_pt": b"m"}
        done = mesh.shoal("service", "deploy", name, "--package", folder(name, **files), "--node", mesh.hosts[1].url, check=False)
        assert done.returncode == 2 and text in done.stderr, done
    rows = [[1.0, 2.0, 3.0], [3.0, 0.0, 0.0]]
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": rows[0] + rows[1]}]}
    for name, wanted in (("exported", net(torch.tensor(rows)).reshape(-1).tolist()), ("sklearn", trees.predict(rows).tolist())):
        until_ready(mesh, name)
        for host in mesh.hosts:
            status, body = ask(mesh, host, name, json.dumps(request).encode())
            assert status == 200 and json.loads(body)["outputs"][0]["data"] == pytest.approx(wanted, rel=1e-5), body
    for host in mesh.hosts:  # one that is ended because its kernel gave up is no victim of a signal
        said = mesh.until(lambda: [t for t in mesh.shoal("why", "wrong", "--node", host.url).stdout.splitlines() if "NameError" in t],
                          60, "%s says why" % host.name)
        assert "name 'My' is not defined" in said[0] and "signal" not in said[0]
    assert sorted(one["name"] for one in mesh.cli(mesh.hosts[2], "service", "list")["services"]) == ["exported", "sklearn", "wrong"]


def test_a_model_by_its_file_answers_as_it_does_itself(new_mesh, package, tmp_path):
    mesh = new_mesh()
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    torch.jit.script(net).save(str(tmp_path / "net"))
    deploy(mesh, "net", package(net_pt=(tmp_path / "net").read_bytes()))
    until_ready(mesh, "net")
    rows = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]])
    request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": rows.reshape(-1).tolist()}]}
    for host in mesh.hosts:
        status, body = ask(mesh, host, "net", json.dumps(request).encode())
        assert status == 200, body
        found = json.loads(body)["outputs"][0]
        assert found["shape"] == [2, 2]
        assert found["data"] == pytest.approx(net(rows).reshape(-1).tolist(), rel=1e-5)
    assert ask(mesh, mesh.hosts[1], "net", b"{}")[0] == 400
    for stream in (False, True):  # its refusal has the form that OpenAI's clients read
        status, said = get(mesh, mesh.hosts[1], "/v1/chat/completions", json.dumps({"model": "net", "stream": stream}).encode())
        assert (status, said["error"]["type"]) == (400, "invalid_request_error") and "inputs is missing" in said["error"]["message"]
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run([mesh.binary, "logon", "admin", "--yes", "--password-file", mesh.password_file, "--node", mesh.hosts[1].url],
                   env=env, capture_output=True, check=True, timeout=60)
    block = re.search(r"^```sh\n(# What `shoal logon` has kept.*?)^```$", (ROOT / "docs/how-to/kernels.md").read_text(), re.M | re.S).group(1)
    block = block.replace("NODE:9243", mesh.hosts[2].url.partition("://")[2]).replace("/digits/", "/net/")
    said = subprocess.run(["sh", "-ec", block], env=env, capture_output=True, text=True, timeout=60)
    assert json.loads(said.stdout)["outputs"][0]["shape"] == [1, 2], said
    deploy(mesh, "none", tmp_path / "package", 0)
    for host in mesh.hosts:  # and what the protocol says of it, the same on each
        model = get(mesh, host, "/v2/models/net")
        assert model[0] == 200 and model[1]["name"] == "net" and model[1]["versions"] == ["1"] and "torch" in model[1]["platform"]
        assert isinstance(model[1]["inputs"], list) and isinstance(model[1]["outputs"], list)
        assert get(mesh, host, "/v2/models/net/versions/1") == model
        assert get(mesh, host, "/v2/models/net/ready") == get(mesh, host, "/v2/models/net/versions/1/ready") == (200, {"ready": True})
        assert get(mesh, host, "/v2/models/none/ready") == (503, {"ready": False})
        assert get(mesh, host, "/v2/models/gone/ready") == get(mesh, host, "/v2/models/gone") == (404, {"error": "Model <gone> doesn't exist."})
        assert get(mesh, host, "/v2/models/net/versions/9") == (404, {"error": "Model <net> has version 1, not 9."})
        index = get(mesh, host, "/v2/repository/index", b"{}")[1]
        assert [(one["name"], one["version"], one["state"]) for one in index] == [("net", "1", "READY"), ("none", "1", "UNAVAILABLE")]
        assert [one["name"] for one in get(mesh, host, "/v2/repository/index", b'{"ready": true}')[1]] == ["net"]
        assert get(mesh, host, "/v2/health/live") == (200, {"live": True}) and get(mesh, host, "/v2")[1]["name"] == "shoal"


LONG = PING_PONG.replace("            task_context.set", """            if asked.startswith("/"):
                open(asked + ".in", "w").close()
            while asked.startswith("/") and not os.path.exists(asked):
                time.sleep(0.02)
            task_context.set""").replace("import os\n", "import os, time\n", 1)


def test_a_request_waits_behind_no_long_one_while_another_kernel_is_free(new_mesh, package, tmp_path):
    """Two hosts have a kernel each; who is asked does not know yet what another node has just sent to one of them."""
    mesh = new_mesh(slots=1)
    deploy(mesh, "echo", package(kernel_py=LONG.encode(), model_json=b'{"name": "echo", "kernel_path": "kernel.py"}'), replicas=2)
    for host in mesh.hosts:
        mesh.until(lambda: mesh.cli(host, "service", "show", "echo")["ready"] == 2, 120, "both are ready by the word of " + host.name)
    hosts = mesh.hosts
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for turn in range(12):
            go = tmp_path / str(turn)
            late = threading.Timer(10, go.touch)  # else the one would wait for the other for ever
            late.start()
            long = pool.submit(ask, mesh, hosts[turn % 3], "echo", str(go).encode())
            mesh.until(pathlib.Path(str(go) + ".in").exists, 30, "a kernel has it", pause=0.001)
            assert ask(mesh, hosts[(turn + 1) % 3], "echo", b"short") == (200, b"short")
            assert not go.exists(), "in turn %d it waited for the long one" % turn
            late.cancel()
            go.touch()
            assert long.result(60)[0] == 200
