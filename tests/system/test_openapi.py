"""Answers have the shapes of docs/openapi.json: no field more, no field less, and the codes and kinds of content that it
names. Once before api_fake, a backend in memory, and once before an agent."""

import http.client
import json
import re

import pytest
from helpers import ended, submit
from test_http_api import BASIC, GOOD, ROOT, TRUSTING, TYPE, Server, multipart

DOC = json.loads((ROOT / "docs" / "openapi.json").read_text())
KINDS = {"string": str, "integer": int, "boolean": bool, "number": (int, float), "array": list, "object": dict}


def resolve(node):
    while "$ref" in node:
        part = DOC
        for key in node["$ref"].lstrip("#/").split("/"):
            part = part[key]
        node = part
    return node


def check(value, schema, where):
    schema = resolve(schema)
    kind = schema.get("type")
    if value is None and schema.get("nullable"):
        return
    if kind:
        assert isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)), (where, value, kind)
    if "enum" in schema:
        assert value in schema["enum"], (where, value)
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), (where, value)
    if kind == "integer":
        assert value >= schema.get("minimum", value) and value <= schema.get("maximum", value), (where, value)
    if kind == "object" and "properties" in schema:
        assert not [name for name in schema["required"] if name not in value], (where, "has not", schema["required"], value)
        for name, below in value.items():
            if name in schema["properties"]:
                check(below, schema["properties"][name], where + "." + name)
            else:
                assert schema.get("additionalProperties", True), (where, "has", name)
    if kind == "array":
        for below in value:
            check(below, schema["items"], where + "[]")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("fake"), True)
    yield made
    made.stop()


def ask(server, method, path, body=None, kind=None, authorization=BASIC):
    client = server.client()
    client.request(method, path, body=body, headers={"Authorization": authorization, **({"Content-Type": kind} if kind else {})})
    answer = client.getresponse()
    return answer, answer.read()


@pytest.fixture(scope="module")
def job(server):
    answer, body = ask(server, "POST", "/v1/jobs?args=--exec-start%20PyTorch%20--model-main%20main.py%20--model-dir%20md",
                       multipart([("file", "md.tar.gz", GOOD)]), TYPE)
    assert answer.status == 200, body
    for name, header in DOC["paths"]["/v1/jobs"]["post"]["responses"]["200"]["headers"].items():
        assert answer.headers[name] or name == "Shoal-Survives"
    check(json.loads(body), {"$ref": "#/components/schemas/Exec"}, "POST /v1/jobs")
    return json.loads(body)["id"]


OPERATIONS = [(path, method) for path in DOC["paths"] for method in DOC["paths"][path]
              if method != "delete" and not path.endswith(("/stop", "/logoff")) and "requestBody" not in DOC["paths"][path][method]]


def check_operation(server, job, path, method, authorization=BASIC, what="groups"):
    values = {"id": job, "task": "1", "kind": "stdout", "what": what, "node": "nowhere", "path": "model/bundle", "name": "echo", "model": "echo",
              "version": "1", "runtime": "dlipy3", "file": "dlim", "search": "algorithm"}
    answer, body = ask(server, method.upper(), re.sub(r"\{(\w+)\}", lambda m: values[m.group(1)], path), authorization=authorization)
    said = DOC["paths"][path][method]["responses"]
    assert str(answer.status) in said, (answer.status, body)
    content = resolve(said[str(answer.status)]).get("content", {})
    kind = (answer.headers["Content-Type"] or "").split(";")[0]
    assert kind in content, (kind, body[:200])
    if answer.status >= 400 and kind == "text/plain":
        assert re.fullmatch(rb"Error %d: .+\n" % answer.status, body)
    elif kind == "application/json":
        check(json.loads(body), content[kind]["schema"], path)
    elif kind == "application/openmetrics-text":
        assert body.endswith(b"\n# EOF\n") and body.count(b"# EOF") == 1
    for name in resolve(said[str(answer.status)]).get("headers", {}):
        assert answer.headers[name], name
    return answer.status


@pytest.mark.parametrize("path,method", OPERATIONS)
def test_an_answer_has_its_shape(server, job, path, method):
    check_operation(server, job, path, method)


class Agent:
    def __init__(self, host):
        self.host = host

    def client(self):
        return http.client.HTTPSConnection(self.host.address, self.host.api_port, timeout=30, context=TRUSTING)


def test_the_answers_of_an_agent_have_their_shapes_too(new_mesh, script):
    mesh = new_mesh(("alpha",))
    host = mesh.hosts[0]
    job = submit(mesh, host, script("print('hello', flush=True)\nimport os, sys\nwhile not os.path.exists(sys.argv[1]): pass"),
                 script=(str(mesh.folder / "go"),))
    mesh.until(lambda: (mesh.job(job) or {}).get("state") == "RUNNING", 30, "it runs")
    bearer = "Bearer " + mesh.token(host)
    for path, method in OPERATIONS:
        if not path.endswith("/logon"):
            check_operation(Agent(host), job, path, method, bearer)
    for what in ("leases", "links", "epochs"):
        assert check_operation(Agent(host), job, "/v1/debug/{what}", "get", bearer, what) == 200
    (mesh.folder / "go").touch()
    assert ended(mesh, job)["state"] == "FINISHED"
    for path in ("/v1/jobs/{id}", "/v1/jobs/{id}/result"):
        assert check_operation(Agent(host), job, path, "get", bearer) == 200


@pytest.mark.parametrize("path,method", [(p, m) for p in DOC["paths"] for m in DOC["paths"][p] if "{id}" in p])
def test_no_such_job_is_answered_as_said(server, path, method):
    values = {"id": "zzzzz", "task": "1", "kind": "stdout", "path": "model/bundle", "name": "echo", "model": "echo",
              "version": "1", "runtime": "dlipy3", "file": "dlim", "search": "algorithm"}
    answer, body = ask(server, method.upper(), re.sub(r"\{(\w+)\}", lambda m: values[m.group(1)], path))
    assert str(answer.status) in DOC["paths"][path][method]["responses"], (answer.status, body)
