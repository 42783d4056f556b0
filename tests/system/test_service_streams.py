"""Answers in pieces, from a kernel through any node to the client; clients that do not read, and clients that go; bodies that are
larger than a frame of the agents' links; OpenAI's addresses."""

import hashlib
import http.client
import json
import os

import pytest
from mesh import TLS, Mesh
from conftest import OUT

KERNEL = '''
import hashlib
import json
import os
from redhareapi import Kernel

NAME = os.environ["MSD_POD_NAME"]

class Teller(Kernel):
    def on_task_invoke(self, task):
        asked = task.get_input_data()
        if task.get_path().startswith("/v1/"):
            yield from self.chat(task, json.loads(asked))
        elif asked.startswith("say "):
            for word in asked.split()[1:]:
                yield word
        elif asked == "lines":
            yield "one\\ntwo"
            return "end"
        elif asked == "fail":
            yield "one"
            raise ValueError("no good")
        elif asked.startswith("forever "):
            name = asked.split()[1]
            sent = 0
            try:
                while True:
                    yield "x" * 1000
                    sent += 1000
            finally:
                open(name, "w").write(str(sent))
        elif asked.startswith("large "):
            task.set_output_data("z" * int(asked.split()[1]))
        else:
            task.set_output_data(hashlib.sha256(task.get_input_data_extend()).hexdigest())

    def chat(self, task, body):
        if task.get_path() == "/v1/embeddings":
            task.set_output_data(json.dumps({"object": "list", "model": body["model"], "data": [
                {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}))
            return
        if "messages" not in body:
            raise ValueError("no messages")
        words = body["messages"][-1]["content"].split()
        head = {"id": "chat-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            task.set_output_data(json.dumps(dict(head, object="chat.completion", choices=[{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": " ".join(words)}}],
                usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})))
            return
        for word in words:
            yield dict(head, object="chat.completion.chunk", choices=[{"index": 0, "delta": {"content": word}, "finish_reason": None}])
        yield dict(head, object="chat.completion.chunk", choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])

if __name__ == "__main__":
    Teller().run()
'''
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    package = tmp_path_factory.mktemp("package")
    (package / "kernel.py").write_text(KERNEL)
    (package / "model.json").write_text('{"name": "teller", "kernel_path": "kernel.py", "weight_path": "./", "runtime": "python"}')
    with Mesh(OUT / "shoal") as shared:
        shared.grow(("alpha", "beta", "gamma"))
        shared.shoal("service", "deploy", "teller", "--package", package, "--replicas", "0", "--node", shared.hosts[0].url)
        profile = {"policy": {"kernel_min": 1, "kernel_max": 1, "task_batch_size": 8}}  # so many streams at one time
        for path, body in (("appprofile", profile), ("operation/start", None)):
            assert send(shared, shared.hosts[0], body, "/dlim/v1/model/teller/" + path, "PUT").read() == b"{}"
        for host in shared.hosts:
            shared.until(lambda: shared.cli(host, "service", "show", "teller")["ready"] == 1, 120, "the kernel is ready")
        yield shared


def places(mesh):
    """(a host that has the kernel, one that has it not)"""
    there = {place["node"] for place in mesh.cli(mesh.hosts[0], "service", "show", "teller")["hosts"]}
    return [next(host for host in mesh.hosts if (host.name in there) == has) for has in (True, False)]


def send(mesh, host, body, path="/v2/models/teller/infer", method="POST", **headers):
    """The answer, of which only the head was read."""
    link = http.client.HTTPSConnection(host.address, host.api_port, timeout=120, context=TLS)
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    link.request(method, path, body, dict({"Authorization": "Bearer " + mesh.token(host)}, **headers))
    answer = link.getresponse()
    answer.link = link
    return answer


def events(answer):
    return [event for event in answer.read().decode().split("\n\n") if event]


def test_pieces_come_as_events_through_every_node(mesh):
    for host in mesh.hosts:
        answer = send(mesh, host, b"say to be or not", **EVENTS)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
        assert events(answer) == ["data: to", "data: be", "data: or", "data: not"]
        assert events(send(mesh, host, b"lines", **EVENTS)) == ["data: one\ndata: two", "data: end"]
        said = events(send(mesh, host, b"fail", **EVENTS))
        assert said[0] == "data: one" and said[1].startswith("event: error\ndata: ") and "ValueError: no good" in said[1]
        assert send(mesh, host, b"say to be").read() == b"tobe"  # who wants it whole gets it whole
        answer = send(mesh, host, b"large 10", **EVENTS)
        assert answer.read() == b"data: zzzzzzzzzz\n\n" or answer.headers["Content-Type"].startswith("text/plain")


def test_a_client_that_goes_stops_its_kernel_and_one_that_does_not_read_holds_it_up(mesh, tmp_path):
    for number, host in enumerate(places(mesh)):
        stopped = tmp_path / ("stopped%d" % number)
        answer = send(mesh, host, b"forever %s" % str(stopped).encode(), **EVENTS)
        assert answer.read(6) == b"data: "
        assert events(send(mesh, host, b"say a b", **EVENTS)) == ["data: a", "data: b"]  # others are answered meanwhile
        answer.link.close()
        answer.close()
        mesh.until(stopped.exists, 60, "the kernel of a client that has gone stops")
        mesh.until(lambda: stopped.read_text(), 60, "it says how much it has sent")
        assert int(stopped.read_text()) < 64 << 20  # what buffers hold, not what a free kernel sends in that time


def test_bodies_larger_than_a_frame_go_through_every_node(mesh):
    body = os.urandom(5 << 20)
    for host in mesh.hosts:
        assert send(mesh, host, body).read().decode() == hashlib.sha256(body).hexdigest()
        answer = send(mesh, host, b"large %d" % (5 << 20)).read()
        assert len(answer) == 5 << 20 and set(answer) == {ord("z")}


def test_openai(mesh):
    for host in mesh.hosts:
        models = json.loads(send(mesh, host, None, "/v1/models", "GET").read())
        assert models["object"] == "list" and [one["id"] for one in models["data"]] == ["teller"]
        assert models["data"][0]["object"] == "model" and models["data"][0]["owned_by"] == "admin"
        assert json.loads(send(mesh, host, None, "/v1/models/teller", "GET").read())["id"] == "teller"
        asked = {"model": "teller", "messages": [{"role": "user", "content": "to be"}]}
        answer = json.loads(send(mesh, host, asked, "/v1/chat/completions").read())
        assert answer["choices"][0]["message"]["content"] == "to be"
        answer = send(mesh, host, dict(asked, stream=True), "/v1/chat/completions")
        assert answer.headers["Content-Type"] == "text/event-stream"
        said = events(answer)
        assert said[-1] == "data: [DONE]"
        chunks = [json.loads(event[len("data: "):]) for event in said[:-1]]
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "tobe"
        answer = json.loads(send(mesh, host, {"model": "teller", "input": "x"}, "/v1/embeddings").read())
        assert answer["data"][0]["embedding"] == [0.5, 1.0]


@pytest.mark.parametrize("path, body, status, type_", [
    ("/v1/chat/completions", b"{", 400, "invalid_request_error"), ("/v1/chat/completions", b"{}", 400, "invalid_request_error"),
    ("/v1/completions", b"[]", 400, "invalid_request_error"), ("/v1/embeddings", b'{"model": 7}', 400, "invalid_request_error"),
    ("/v1/chat/completions", b'{"model": "nobody"}', 404, "not_found_error"),
    ("/v1/chat/completions", b'{"model": "../x"}', 404, "not_found_error"),
    ("/v1/chat/completions", b'{"model": "teller"}', 500, "server_error"),
    ("/v1/completions", b'{"model": "teller", "stream": true}', 500, "server_error"),
    ("/v1/completions", b" " * ((1 << 20) + 1), 413, "invalid_request_error")])
def test_openai_errors(mesh, path, body, status, type_):
    answer = send(mesh, mesh.hosts[1], body, path)
    said = json.loads(answer.read())["error"]
    assert (answer.status, said["type"]) == (status, type_) and said["message"] and set(said) == {"message", "type", "param", "code"}


def test_openai_errors_of_the_server_itself(mesh):
    answer = send(mesh, mesh.hosts[0], b"{}", "/v1/chat/completions", Authorization="Bearer nobody")
    assert answer.status == 401 and json.loads(answer.read())["error"]["code"] == "invalid_api_key"
    answer = send(mesh, mesh.hosts[0], None, "/v1/models/nobody", "GET")
    assert answer.status == 404 and json.loads(answer.read())["error"]["code"] == "model_not_found"
    answer = send(mesh, mesh.hosts[0], None, "/v1/chat/completions", "GET")
    assert answer.status == 405 and json.loads(answer.read())["error"]["type"] == "invalid_request_error"


def test_openais_own_client(mesh):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    host = places(mesh)[1]
    client = openai.OpenAI(base_url=host.url + "/v1", api_key=mesh.token(host), http_client=openai.DefaultHttpxClient(verify=False))
    asked = [{"role": "user", "content": "to be"}]
    assert client.models.list().data[0].id == "teller"
    assert client.chat.completions.create(model="teller", messages=asked).choices[0].message.content == "to be"
    chunks = client.chat.completions.create(model="teller", messages=asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "tobe"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=asked)
