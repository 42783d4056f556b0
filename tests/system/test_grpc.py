"""gRPC at every node, with grpcio as its client: the Open Inference Protocol whole, dlim.v1's stream, and what is no call of gRPC.
What it answers is what REST answers."""

import json
import os
import pathlib
import ssl
import time
import urllib.error
import urllib.request

import grpc
import numpy
import oip_messages as pb
import pytest
import torch
from h2raw import DATA, END_HEADERS, END_STREAM, HEADERS, Client, frame
from mesh import TLS, Mesh

OUT = pathlib.Path(os.environ.get("SHOAL_OUT", pathlib.Path(__file__).resolve().parents[2] / "build" / "release"))

SERVICE = "/inference.GRPCInferenceService/"
H2 = ssl.create_default_context()
H2.check_hostname = False
H2.verify_mode = ssl.CERT_NONE
H2.set_alpn_protocols(["h2"])

KERNEL = """
import time
from redhareapi import Kernel

class Echo(Kernel):
    def on_task_invoke(self, task_context):
        while task_context is not None:
            asked = task_context.get_input_data()
            if asked.startswith("sleep "):
                time.sleep(float(asked[6:]))
            if asked == "raise":
                raise ValueError("no good")
            task_context.set_output_data(task_context.get_session_id() if asked == "session" else asked)
            task_context = task_context.next()

if __name__ == "__main__":
    Echo().run()
"""


class Channel:
    def __init__(self, host, ca):
        names = (("grpc.ssl_target_name_override", "localhost"), ("grpc.max_receive_message_length", -1))
        self.channel = grpc.secure_channel("%s:%d" % (host.address, host.api_port), grpc.ssl_channel_credentials(ca), names)
        self.meta = (("authorization", "Bearer " + host.mesh.token(host)),)

    def call(self, method, request, answer, meta=None, timeout=60, service=SERVICE):
        ask = self.channel.unary_unary(service + method, lambda m: m.SerializeToString(), answer.FromString)
        return ask(request, metadata=self.meta if meta is None else meta, timeout=timeout)

    def stream(self, path, requests, answer, meta=(), timeout=60):
        ask = self.channel.stream_stream(path, lambda m: m.SerializeToString(), answer.FromString)
        return ask(iter(requests), metadata=self.meta + tuple(meta), timeout=timeout)


def code_of(call, *args, **named):
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **named)
    return caught.value.code(), caught.value.details()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Three hosts, a model by its file and a kernel."""
    folder = tmp_path_factory.mktemp("models")
    with Mesh(OUT / "shoal") as mesh:
        mesh.grow(("alpha", "beta", "gamma"))
        torch.manual_seed(7)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
        for name, file, content in (("net", "net.pt", None), ("echo", "kernel.py", KERNEL)):
            (folder / name).mkdir()
            if content is None:
                torch.jit.script(net).save(str(folder / name / file))
            else:
                (folder / name / file).write_text(content)
                (folder / name / "model.json").write_text('{"name": "echo", "kernel_path": "kernel.py"}')
            mesh.cli(mesh.hosts[0], "service", "deploy", name, "--package", folder / name, "--replicas", 1)
        for name in ("net", "echo"):
            for host in mesh.hosts:
                mesh.until(lambda: mesh.cli(host, "service", "show", name)["ready"] == 1, 120, "%s is ready by %s" % (name, host.name))
        mesh.net = net
        mesh.channels = [Channel(host, pathlib.Path(mesh.ca).read_bytes()) for host in mesh.hosts]
        yield mesh
        for channel in mesh.channels:
            channel.channel.close()


def rest(host, path, body=None):
    request = urllib.request.Request(host.url + path, data=body, headers={"Authorization": "Bearer " + host.mesh.token(host)})
    with urllib.request.urlopen(request, timeout=60, context=TLS) as answer:
        return json.loads(answer.read())


ROWS = numpy.array([[1, 2, 3], [0.5, -1, 4]], dtype="<f4")


def typed(model="net", id="7"):
    request = pb.ModelInferRequest(model_name=model, id=id)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[2, 3])
    tensor.contents.fp32_contents.extend(ROWS.reshape(-1).tolist())
    return request


def raw(model="net"):
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[ROWS.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[2, 3])
    return request


def test_what_it_says_of_server_and_models_is_what_rest_says(served):
    for host, c in zip(served.hosts, served.channels):
        assert c.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
        assert c.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
        server, said = c.call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse), rest(host, "/v2")
        assert (server.name, server.version, list(server.extensions)) == (said["name"], said["version"], said["extensions"])
        model, said = c.call("ModelMetadata", pb.ModelMetadataRequest(name="net"), pb.ModelMetadataResponse), rest(host, "/v2/models/net")
        assert (model.name, list(model.versions), model.platform) == (said["name"], said["versions"], said["platform"])
        for ours, its in ((model.inputs, said["inputs"]), (model.outputs, said["outputs"])):
            assert [(t.name, t.datatype, list(t.shape)) for t in ours] == [(t["name"], t["datatype"], t["shape"]) for t in its]
        assert c.call("ModelReady", pb.ModelReadyRequest(name="net", version="1"), pb.ModelReadyResponse).ready
        assert code_of(c.call, "ModelReady", pb.ModelReadyRequest(name="gone"), pb.ModelReadyResponse) == (
            grpc.StatusCode.NOT_FOUND, "Model <gone> doesn't exist.")
        assert code_of(c.call, "ModelMetadata", pb.ModelMetadataRequest(name="net", version="9"), pb.ModelMetadataResponse) == (
            grpc.StatusCode.NOT_FOUND, "Model <net> has version 1, not 9.")
        index = c.call("RepositoryIndex", pb.RepositoryIndexRequest(), pb.RepositoryIndexResponse)
        assert [{"name": m.name, "version": m.version, "state": m.state, "reason": m.reason} for m in index.models] == rest(
            host, "/v2/repository/index", b"{}")
        health = c.call("Check", pb.HealthCheckRequest(), pb.HealthCheckResponse, meta=(), service="/grpc.health.v1.Health/")
        assert health.status == 1


def test_a_model_answers_through_every_node_as_over_rest(served):
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": ROWS.reshape(-1).tolist()}]}
    want = rest(served.hosts[0], "/v2/models/net/infer", json.dumps(body).encode())["outputs"][0]
    for c in served.channels:
        got = c.call("ModelInfer", typed(), pb.ModelInferResponse)
        assert (got.model_name, got.id, len(got.raw_output_contents)) == ("net", "7", 0)
        out = got.outputs[0]
        assert (out.name, out.datatype, list(out.shape)) == (want["name"], want["datatype"], want["shape"])
        assert numpy.array_equal(numpy.float32(list(out.contents.fp32_contents)), numpy.float32(want["data"]))
        got = c.call("ModelInfer", raw(), pb.ModelInferResponse)
        assert numpy.array_equal(numpy.frombuffer(got.raw_output_contents[0], "<f4"), numpy.float32(want["data"]))
        assert not got.outputs[0].HasField("contents")


def test_a_call_names_the_version_that_it_wants(served, tmp_path):
    """Of two that are kept; without a number it is the current one's, whichever host is asked."""
    alpha, beta, _ = served.hosts
    for number, words in ((1, ("--replicas", 1)), (2, ("--canary", 0))):
        folder = tmp_path / ("v%d" % number) / "pair"
        folder.mkdir(parents=True)
        net = torch.nn.Linear(3, 2).eval()
        with torch.no_grad():
            net.weight.fill_(0.0)
            net.bias.fill_(float(number))
        torch.jit.script(net).save(str(folder / "net.pt"))
        served.cli(alpha, "service", "deploy", "pair", "--package", folder, *words)
        served.until(lambda: number in [one["version"] for one in served.cli(beta, "service", "show", "pair")["versions"] if one["ready"] == 1],
                     120, "version %d is ready" % number)
    for c in served.channels:
        for version, want in (("", 1.0), ("1", 1.0), ("2", 2.0)):
            asked = typed("pair")
            asked.model_version = version
            got = c.call("ModelInfer", asked, pb.ModelInferResponse)
            assert set(got.outputs[0].contents.fp32_contents) == {want}, (version, got)
        asked.model_version = "3"
        assert code_of(c.call, "ModelInfer", asked, pb.ModelInferResponse) == (
            grpc.StatusCode.NOT_FOUND, "Model <pair> has versions 1 and 2, not 3.")
    served.cli(beta, "service", "delete", "pair")


def test_refusals_name_cause_and_code(served):
    c = served.channels[1]

    def infer(request, **named):
        return code_of(c.call, "ModelInfer", request, pb.ModelInferResponse, **named)

    codes = grpc.StatusCode
    assert infer(typed("gone")) == (codes.NOT_FOUND, "Model <gone> doesn't exist.")
    assert infer(pb.ModelInferRequest()) == (codes.INVALID_ARGUMENT, "model_name is missing")
    wrong = typed()
    wrong.inputs[0].datatype = "INT8"
    assert infer(wrong) == (codes.INVALID_ARGUMENT, "input x: contents are not of its datatype")
    wrong = typed()
    del wrong.inputs[0].contents.fp32_contents[0]
    code, text = infer(wrong)
    assert code == codes.INVALID_ARGUMENT and "input x" in text
    wrong = raw()
    wrong.raw_input_contents.append(b"")
    assert infer(wrong) == (codes.INVALID_ARGUMENT, "2 raw_input_contents for 1 inputs")
    big = pb.ModelInferRequest(model_name="net")
    big.inputs.add(name="x", datatype="INT8", shape=[1]).contents.int_contents.append(128)
    assert infer(big) == (codes.INVALID_ARGUMENT, "input x: contents have a value beyond its datatype")
    assert infer(typed(), meta=())[0] == codes.UNAUTHENTICATED
    assert infer(typed(), meta=(("authorization", "Bearer x.y"),))[0] == codes.UNAUTHENTICATED
    assert code_of(c.call, "Nope", typed(), pb.ModelInferResponse)[0] == codes.UNIMPLEMENTED
    code, text = infer(typed("echo"))  # a kernel that speaks another protocol: it gives back what it was sent
    assert code == codes.INTERNAL and "dlim.v1.StreamInference" in text


def test_a_stream_of_the_protocol(served):
    requests = [typed(id=str(n)) for n in range(40)] + [typed("gone", id="x"), typed("\u00e9" * 120, id="y")]
    got = list(served.channels[2].stream(SERVICE + "ModelStreamInfer", requests, pb.ModelStreamInferResponse))
    assert sorted(one.infer_response.id for one in got) == sorted([str(n) for n in range(40)] + ["x", "y"])
    assert {one.infer_response.id: one.error_message for one in got if one.error_message} == {
        "x": "Model <gone> doesn't exist.", "y": "model_name is too long"}
    assert len({bytes(one.infer_response.outputs[0].SerializeToString()) for one in got if not one.error_message}) == 1


def dlim(c, requests, **named):
    return c.stream("/dlim.v1.StreamInference/Infer", requests, pb.InferResponse, meta=(("model-name", "echo"),), **named)


def test_a_stream_of_dlim(served):
    for c in served.channels:
        got = list(dlim(c, [pb.InferRequest(id=str(n), data=b"frame %d" % n) for n in range(60)]))
        assert sorted(int(one.id) for one in got) == list(range(60)) and all(one.final for one in got)
        for one in got:  # each is answered once; one that a newer one overtook is told so
            assert (one.status, one.data) == (200, b"frame %s" % one.id.encode()) or one.status == 499
    session = {one.data for one in dlim(served.channels[0], [pb.InferRequest(id="a", data=b"session")])}
    other = {one.data for one in dlim(served.channels[0], [pb.InferRequest(id="a", data=b"session")])}
    assert len(session | other) == 2
    failed = list(dlim(served.channels[1], [pb.InferRequest(id="a", data=b"raise")]))
    assert failed[0].status == 500 and "ValueError: no good" in failed[0].message
    with pytest.raises(grpc.RpcError) as caught:
        list(served.channels[0].stream("/dlim.v1.StreamInference/Infer", [], pb.InferResponse))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "model-name" in caught.value.details()


def test_a_deadline_ends_a_call_and_frees_its_place(served):
    c = served.channels[0]
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        list(dlim(c, [pb.InferRequest(id="a", data=b"sleep 3")], timeout=1))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - began < 20
    assert [one.data for one in dlim(c, [pb.InferRequest(id="b", data=b"again")])] == [b"again"]


def test_a_stream_that_is_cancelled_leaves_the_queue(served):
    """On the host of the replica. Its tasks would sleep for a minute together; what comes behind them does not wait for that."""
    there = served.cli(served.hosts[0], "service", "show", "echo")["hosts"][0]["node"]
    c = served.channels[[host.name for host in served.hosts].index(there)]
    call = dlim(c, [pb.InferRequest(id="first", data=b"x")] + [pb.InferRequest(id=str(n), data=b"sleep 4") for n in range(15)])
    assert next(call).id == "first"
    call.cancel()
    began = time.monotonic()
    assert [one.data for one in dlim(c, [pb.InferRequest(id="b", data=b"next")])] == [b"next"]
    assert time.monotonic() - began < 45


def grpc_head(c, host, path):
    return c.head(path, "POST", [("content-type", "application/grpc"), ("te", "trailers"),
                                 ("authorization", "Bearer " + host.mesh.token(host))])


BODIES = {
    "a compressed message": (b"\x01\0\0\0\x01x", "12"),
    "a message that is too large": (b"\0\xff\xff\xff\xff", "8"),
    "half a message": (b"\0\0\0\0\x05ab", "3"),
    "two messages": (b"\0\0\0\0\0" * 2, "3"),
    "no message": (b"", "3"),
    "a message that does not decode": (b"\0\0\0\0\x02\x0a\x7f", "3"),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_no_message_ends_the_call_alone(served, name):
    host, (body, want) = served.hosts[0], BODIES[name]
    with Client((host.address, host.api_port), H2.wrap_socket) as c:
        c.sock.sendall(frame(HEADERS, END_HEADERS, 1, grpc_head(c, host, SERVICE + "ModelReady")) + frame(DATA, END_STREAM, 1, body))
        headers, _, trailers = c.answer(1)
        assert headers[":status"] == "200" and {**headers, **trailers}["grpc-status"] == want
        c.ask(3)
        assert c.status(3) == 200


def test_a_call_over_http1_is_told_what_is_missing(served):
    host = served.hosts[0]
    request = urllib.request.Request(host.url + SERVICE + "ServerLive", data=b"\0\0\0\0\0", headers={
        "Authorization": "Bearer " + host.mesh.token(host), "Content-Type": "application/grpc"})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60, context=TLS)
    assert caught.value.code == 415 and b"HTTP/2" in caught.value.read()
