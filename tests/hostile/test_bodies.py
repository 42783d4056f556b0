"""Bodies that cost more than they weigh: JSON of very many values, from many clients whose last bytes come at once; numbers of gRPC one
by one; results of a kernel that are to be grouped. No turn of the loop is long, and who asks honestly is answered."""

import concurrent.futures
import json
import struct

import grpc
import pytest
from mesh import Mesh
from system_conftest import OUT
from test_all_at_once import ask, metric
from test_front import connect

TURN_S_MAX = 0.05
CLIENTS = 24
KERNEL = '''
import json, os, socket, struct
import msgpack

path = os.environ["SHOAL_KERNEL_SOCKET"]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(1)
link = listener.accept()[0]

def say(*message):
    packed = msgpack.packb(list(message), use_bin_type=True)
    link.sendall(struct.pack("<I", len(packed)) + packed)

say("ready", {"batch": 8})
stream = link.makefile("rb")
while len(length := stream.read(4)) == 4:
    kind, number, head, body = msgpack.unpackb(stream.read(struct.unpack("<I", length)[0]), raw=False)
    if "/edimodels/" in head["path"]:
        found = [{"sampleId": "%04d" % (i // 2), "label": "l", "prob": 0.5} for i in range(1024)]
        say("done", number, 200, {}, json.dumps({"type": "classification", "result": found}).encode())
    elif b"numbers" in body[:200]:
        said = json.dumps({"model_name": "m", "outputs": [{"name": "y", "datatype": "INT8", "shape": [4 << 20], "parameters": {"binary_data_size": 4 << 20}}]}).encode()
        say("done", number, 200, {"header_len": len(said)}, said + b"\\xff" * (4 << 20))
    else:
        say("done", number, 200, {}, body)
'''


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "kernel.py").write_text(KERNEL)
    with Mesh(OUT / "shoal") as shared:
        host = shared.grow(("alpha",))[0]
        shared.cli(host, "service", "deploy", "m", "--package", folder, "--", shared.python, "kernel.py")
        shared.until(lambda: shared.cli(host, "service", "show", "m")["ready"] == 1, 60, "it is ready")
        yield shared


@pytest.fixture(autouse=True)
def no_turn_is_long(mesh):
    host = mesh.hosts[0]
    yield
    longest = metric(mesh, host, "shoal_loop_turn_cpu_longest_seconds")
    print("the longest turn computed for %.1f ms" % (1000 * longest))
    assert longest < TURN_S_MAX, "a turn computed for %.0f ms" % (1000 * longest)
    assert host.process.poll() is None, host.log.read_text()[-2000:]


JSON = {"objects": b"[" + b"{}," * 340000 + b"{}]", "arrays": b"[" + b"[]," * 340000 + b"[]]", "keys": b"{%s}" % b",".join(
    b'"%d":1' % i for i in range(90000)), "numbers": b"[" + b"1," * 120000 + b"1]", "texts": b'["' + b'","' * 100000 + b'"]'}


@pytest.mark.alone
@pytest.mark.parametrize("kind", JSON)
def test_json_of_many_values_from_many_clients_at_once(mesh, kind):
    """All but the last byte of each body is there before any last byte comes."""
    host = mesh.hosts[0]
    head = ("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
            "Content-Length: %d\r\nConnection: close\r\n\r\n" % (mesh.token(host), len(JSON[kind]))).encode()
    socks = [connect(host) for _ in range(CLIENTS)]
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda sock: sock.sendall(head + JSON[kind][:-1]), socks))
        assert ask(mesh, host, "GET", "/v1/nodes")[0] == 200
        for sock in socks:
            sock.sendall(JSON[kind][-1:])
        assert ask(mesh, host, "GET", "/v1/nodes")[0] == 200
        for sock in socks:
            said = b""
            while part := sock.recv(65536):
                said += part
            large = kind not in ("numbers", "texts")
            assert said.startswith(b"HTTP/1.1 413 " if large else b"HTTP/1.1 400 ") and (b"too many values" if large else b"model: say") in said, said
    finally:
        for sock in socks:
            sock.close()


def varint(value):
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def infer(contents, name=b"x"):
    """A ModelInferRequest of one INT64 tensor with those contents."""
    return field(1, b"m") + field(5, field(1, name) + field(2, b"INT64") + field(3, b"\x01") + field(5, contents))


LIES = {
    "packed": infer(field(3, b"\x01" * (24 << 20))),  # eight bytes of each become
    "one by one": infer(b"\x18\x01" * (8 << 20)),
    "fields that nobody knows": infer(field(3, b"\x01")) + b"\x78\x01" * (8 << 20),
    "empty texts": field(1, b"m") + field(5, field(1, b"x") + field(2, b"BYTES") + field(3, b"\x01") + field(5, b"\x42\x00" * (8 << 20))),
}


@pytest.mark.alone
def test_numbers_of_grpc_are_bounded_in_and_out(mesh):
    host = mesh.hosts[0]
    channel = grpc.secure_channel("%s:%d" % (host.address, host.api_port), grpc.ssl_channel_credentials(mesh.ca.read_bytes()),
                                  (("grpc.ssl_target_name_override", "localhost"), ("grpc.max_receive_message_length", -1)))
    call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    meta = (("authorization", "Bearer " + mesh.token(host)),)
    try:
        for name, lie in LIES.items():
            with pytest.raises(grpc.RpcError) as caught:
                call(lie, metadata=meta, timeout=60)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "raw_input_contents" in caught.value.details(), (name, caught.value)
        with pytest.raises(grpc.RpcError) as caught:  # a kernel's answer, typed
            call(infer(field(3, b"\x01"), b"numbers"), metadata=meta, timeout=60)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "raw_input_contents" in caught.value.details(), caught.value
        streams = {"/inference.GRPCInferenceService/ModelStreamInfer": (LIES["packed"], b"raw_input_contents"),
                   "/dlim.v1.StreamInference/Infer": (b"\x78\x01" * (8 << 20), b"no InferRequest")}
        for path, (lie, said) in streams.items():  # messages of a stream are no whole bodies
            assert said in next(channel.stream_stream(path)(iter([lie]), metadata=meta + (("model-name", "m"),), timeout=60)), path
        raw = field(1, b"m") + field(5, field(1, b"numbers") + field(2, b"INT64") + field(3, b"\x01")) + field(7, struct.pack("<q", 1))
        assert b"\xff" * 1000 in call(raw, metadata=meta, timeout=60)
    finally:
        channel.close()


@pytest.mark.alone
def test_results_of_edimodels_are_grouped_in_little_time(mesh):
    host = mesh.hosts[0]
    pairs = [{"key": "%04d" % (i % 256 + 256), "value": "v%d" % i} for i in range(11000)]
    body = json.dumps({"action_type": "c", "data_type": "image_uri", "data_value": pairs}, separators=(",", ":")).encode()
    status, answer = ask(mesh, host, "POST", "/platform/rest/deeplearning/v1/edimodels/m/inference", body, Content_Type="application/json")
    assert status == 200, answer
    results = json.loads(answer)["results"][0]["classificationResults"]
    assert [one["sampleId"] for one in results] == ["%04d" % i for i in range(512)] and all(len(one["results"]) == 2 for one in results)
    assert results[255]["inputPath"] == "" and results[256]["inputPath"] == "v0" and results[511]["inputPath"] == "v255"
