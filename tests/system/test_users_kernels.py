"""Kernels as users write them who know WMLA's documents alone, through each interface that fits, on each node: the same request has
the same answer."""

import http.client
import json
import pathlib

import numpy
import oip_messages as pb
import pytest
from conftest import OUT
from mesh import TLS, Mesh
from test_dlim_notebooks import Cells
from test_grpc import Channel

HEAD = """
import json, os, sys, time
import numpy as np
from redhareapi import Kernel
"""
MATRIX = HEAD + """
class Matrix(Kernel):
    "A batch is one product."
    def on_kernel_start(self, kernel_context):
        self.weights = np.arange(6, dtype=np.float64).reshape(3, 2)

    def on_task_invoke(self, task_context):
        tasks, rows = [], []
        while task_context is not None:
            asked = json.loads(task_context.get_input_data())
            time.sleep(asked.get("seconds", 0))
            tasks.append(task_context)
            rows.append(asked["row"])
            task_context = task_context.next()
        for task, answer in zip(tasks, np.array(rows) @ self.weights):
            task.set_output_data(json.dumps({"answer": answer.tolist()}))

if __name__ == "__main__":
    Matrix().run()
"""
COUNTER = HEAD + """
class Counter(Kernel):
    def on_kernel_start(self, kernel_context):
        model = json.loads(kernel_context.get_model_description())
        self.step = int({one["key"]: one["value"] for one in model["attributes"]}["step"])
        self.unit = os.environ["UNIT"]
        self.end = os.path.join(os.environ["SEEN"], "ended")
        self.count = 0

    def on_task_invoke(self, task_context):
        while task_context is not None:
            if task_context.get_input_data() == "add":
                self.count += self.step
            task_context.set_output_data("%d %s" % (self.count, self.unit))
            task_context = task_context.next()

    def on_kernel_shutdown(self):
        with open(self.end, "w") as file:
            file.write(str(self.count))

if __name__ == "__main__":
    Counter().run()
"""
STORY = HEAD + """
class Story(Kernel):
    def on_task_invoke(self, task_context):
        asked = json.loads(task_context.get_input_data())
        words = asked["messages"][-1]["content"].upper().split()
        head = {"id": "s", "created": 1, "model": asked["model"]}
        if not asked.get("stream"):
            task_context.set_output_data(json.dumps(dict(head, object="chat.completion", choices=[{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": " ".join(words)}}])))
            return
        for word in words:
            yield dict(head, object="chat.completion.chunk", choices=[{"index": 0, "delta": {"content": word}, "finish_reason": None}])

if __name__ == "__main__":
    Story().run()
"""
PIXELS = HEAD + """
class Pixels(Kernel):
    "The brightest row of an image is its class. The body is JSON, and behind it what the JSON says is binary."
    def on_task_invoke(self, task_context):
        while task_context is not None:
            body = task_context.get_input_data_extend()
            said, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
            tensor = said["inputs"][0]
            if "data" in tensor:
                image = np.array(tensor["data"], np.float32)
            else:
                image = np.frombuffer(body[len(body) - tensor["parameters"]["binary_data_size"]:], "<f4")
            image = image.reshape(tensor["shape"])
            task_context.set_output_data(json.dumps({"model_name": "pixels", "outputs": [{"name": "class", "datatype": "INT64", "shape": [1],
                                                     "data": [int(image.sum(axis=-1).argmax())]}]}))
            task_context = task_context.next()

if __name__ == "__main__":
    Pixels().run()
"""
MOODY = HEAD + """
class Moody(Kernel):
    def on_task_invoke(self, task_context):
        while task_context is not None:
            asked = task_context.get_input_data()
            Kernel.log_error("asked " + asked)
            if asked == "raise":
                raise ValueError("cannot do that")
            if asked == "forget":
                return
            task_context.set_output_data(json.dumps({"error": 422, "text": asked}) if asked == "code" else asked)
            task_context = task_context.next()

if __name__ == "__main__":
    Moody().run()
"""
KERNELS = {"matrix": MATRIX, "counter": COUNTER, "story": STORY, "pixels": PIXELS, "moody": MOODY}
IMAGE = numpy.zeros((4, 3), "<f4")
IMAGE[2] = 0.5


def ask(host, path, body, method="POST", **headers):
    """(status, body)"""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPSConnection(host.address, host.api_port, timeout=60, context=TLS)
    connection.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body),
                       dict(headers, Authorization="Bearer " + host.mesh.token(host)))
    answer = connection.getresponse()
    said = answer.status, answer.read()
    connection.close()
    return said


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("users")
    with Mesh(OUT / "shoal") as mesh:
        mesh.grow(("alpha", "beta", "gamma"))
        mesh.seen = folder
        cells = Cells(mesh, folder)
        for i, (name, text) in enumerate(KERNELS.items()):
            package = folder / name
            package.mkdir()
            (package / "kernel.py").write_text(text)
            (package / "README.md").write_text("Of a user.")
            (package / "model.json").write_text(json.dumps({
                "name": name, "tag": "v1", "weight_path": "./", "runtime": "dlipy3", "kernel_path": "kernel.py", "schema_version": "1",
                "attributes": [{"key": "step", "value": "5"}],
                "mk_environments": [{"name": "UNIT", "value": "sheep"}, {"name": "SEEN", "value": str(folder)}]}))
            assert cells("dlim model deploy -p %s" % package)[-1] == "Model <%s> is deployed successfully" % name
            policy = {"kernel_min": 1, "kernel_max": 1, "task_batch_size": 8, "task_execution_timeout": 3 if name == "matrix" else 60}
            assert ask(mesh.hosts[i % 3], "/dlim/v1/model/%s/appprofile" % name, {"policy": policy}, "PUT")[0] == 200
            assert cells("dlim model start " + name)[0].startswith("Starting model")
        for name in KERNELS:
            for host in mesh.hosts:
                mesh.until(lambda: mesh.cli(host, "service", "show", name)["ready"] == 1, 120, "%s is ready by %s" % (name, host.name))
        mesh.channels = [Channel(host, pathlib.Path(mesh.ca).read_bytes()) for host in mesh.hosts]
        yield mesh
        for channel in mesh.channels:
            channel.channel.close()


def everywhere(mesh, path, body, **headers):
    """The one answer of all nodes."""
    answers = [ask(host, path, body, **headers) for host in mesh.hosts]
    assert answers == answers[:1] * 3
    return answers[0]


def test_a_batch_in_numpy_and_a_request_over_its_time(served, tmp_path):
    body = {"row": [1, 2, 3]}
    want = b'{"answer": [16.0, 22.0]}'
    for path in ("/dlim/v1/inference/matrix", "/v2/models/matrix/infer", "/v2/models/matrix/versions/1/infer"):
        assert everywhere(served, path, body) == (200, want)
    (tmp_path / "input.json").write_text(json.dumps(body))
    for host in served.hosts:
        said = served.shoal("service", "test", "matrix", "--input", tmp_path / "input.json", "--node", host.url)
        assert said.stdout.encode() == want + b"\n"
        status, answer = ask(host, "/platform/rest/deeplearning/v1/edimodels/matrix/inference", {
            "action_type": "Classification", "data_type": "image:raw_data", "data_value": [], "row": [1, 2, 3]})
        assert status == 200 and json.loads(answer)["other"].encode() == want, answer
    assert ask(served.hosts[0], "/dlim/v1/inference/matrix", {"row": [0, 0, 0], "seconds": 5})[0] == 504
    served.until(lambda: ask(served.hosts[2], "/dlim/v1/inference/matrix", body) == (200, want), 60, "it goes on")


def test_state_hooks_and_what_model_json_says(served):
    path = "/dlim/v1/inference/counter"
    assert [ask(host, path, b"add") for host in served.hosts] == [(200, b"5 sheep"), (200, b"10 sheep"), (200, b"15 sheep")]
    assert everywhere(served, path, b"look") == everywhere(served, "/v2/models/counter/infer", b"look") == (200, b"15 sheep")
    assert ask(served.hosts[1], "/dlim/v1/model/counter/operation/stop", None, "PUT") == (200, b"{}")
    served.until(lambda: (served.seen / "ended").exists() and (served.seen / "ended").read_text() == "15", 60, "its shutdown was called")


def test_text_in_pieces_for_openais_clients(served):
    body = {"model": "story", "messages": [{"role": "user", "content": "once upon a time"}]}
    status, said = everywhere(served, "/v1/chat/completions", body)
    assert status == 200 and json.loads(said)["choices"][0]["message"]["content"] == "ONCE UPON A TIME"
    status, said = everywhere(served, "/v1/chat/completions", dict(body, stream=True))
    events = [line[6:] for line in said.decode().splitlines() if line.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]"
    assert [json.loads(one)["choices"][0]["delta"]["content"] for one in events[:-1]] == ["ONCE", "UPON", "A", "TIME"]


def test_images_as_json_as_binary_tensors_and_over_grpc(served):
    tensor = {"name": "x", "datatype": "FP32", "shape": [4, 3]}
    as_json = everywhere(served, "/v2/models/pixels/infer", {"inputs": [dict(tensor, data=IMAGE.reshape(-1).tolist())]})
    head = json.dumps({"inputs": [dict(tensor, parameters={"binary_data_size": IMAGE.nbytes})]}).encode()
    assert everywhere(served, "/v2/models/pixels/infer", head + IMAGE.tobytes(), Content_Type="application/octet-stream",
                      Inference_Header_Content_Length=str(len(head))) == as_json
    assert as_json[0] == 200 and json.loads(as_json[1])["outputs"][0]["data"] == [2]
    raw = pb.ModelInferRequest(model_name="pixels", raw_input_contents=[IMAGE.tobytes()])
    raw.inputs.add(name="x", datatype="FP32", shape=[4, 3])
    typed = pb.ModelInferRequest(model_name="pixels")
    typed.inputs.add(name="x", datatype="FP32", shape=[4, 3]).contents.fp32_contents.extend(IMAGE.reshape(-1).tolist())
    for channel in served.channels:
        for request in (raw, typed):
            said = channel.call("ModelInfer", request, pb.ModelInferResponse)
            [output] = said.outputs
            values = list(output.contents.int64_contents) or numpy.frombuffer(said.raw_output_contents[0], "<i8").tolist()
            assert (output.name, list(output.shape), values) == ("class", [1], [2])


def test_errors_of_a_kernel_are_its_callers_and_its_log(served):
    for path in ("/dlim/v1/inference/moody", "/v2/models/moody/infer"):
        status, said = everywhere(served, path, b"raise")
        assert status == 500 and b"ValueError: cannot do that" in said
        assert everywhere(served, path, b"forget")[0] == 500
        assert everywhere(served, path, b"code") == (200, b'{"error": 422, "text": "code"}')
        assert everywhere(served, path, b"well") == (200, b"well")
    for host in served.hosts:
        served.until(lambda: all(line in served.shoal("service", "logs", "moody", "--node", host.url).stdout
                                 for line in ("E asked raise", "ValueError: cannot do that")), 20, "%s has its log" % host.name)
