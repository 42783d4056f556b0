"""docs/openapi.json: it is well-formed, it names every error text and every parameter of the routes. That it has the
server's addresses is api_routes_test.c's, that answers have its shapes tests/system/test_openapi.py's."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOC = json.loads((ROOT / "docs" / "openapi.json").read_text())


def operations():
    for path, methods in DOC["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def resolve(node):
    while "$ref" in node:
        part = DOC
        for key in node["$ref"].lstrip("#/").split("/"):
            part = part[key]
        node = part
    return node


def walk(node):
    if isinstance(node, dict):
        yield node
    for below in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(below)


def test_every_reference_leads_somewhere_and_every_part_is_used():
    used = {node["$ref"] for node in walk(DOC) if "$ref" in node}
    for reference in used:
        assert resolve({"$ref": reference})
    made = {"#/components/%s/%s" % (kind, name) for kind in ("schemas", "responses") for name in DOC["components"][kind]}
    assert used == made


def test_parameters_of_the_path_are_its_braces():
    ids = []
    for path, method, operation in operations():
        named = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"]
        assert named == re.findall(r"\{(\w+)\}", path), path
        assert all(p.get("required") for p in operation.get("parameters", ()) if p["in"] == "path")
        assert "default" in operation["responses"] and any(code.startswith(("2", "4")) for code in operation["responses"])
        assert all(resolve(answer)["description"] for answer in operation["responses"].values())
        ids.append(operation["operationId"])
    assert len(ids) == len(set(ids))


def test_query_parameters_are_those_that_the_routes_read():
    read = set()
    for source in (ROOT / "api").rglob("*.c"):
        text = source.read_text()
        read |= set(re.findall(r'http_query\((?:s->)?request, "(\w+)"\)', text)) | set(re.findall(r'(?:read|routes)_(?:number|flag|time)\(request, "(\w+)"', text))
    said = {p["name"] for _, _, operation in operations() for p in operation.get("parameters", ()) if p["in"] == "query"}
    assert read | {"args"} == said


def plain(text):
    """A format with every conversion as %s or %d."""
    text = re.sub(r'%" PRI\w+( ")?', "%d", text)
    return re.sub(r"%[.0-9*]*s", "%s", text.replace('\\"', '"')).replace("%%", "%")


def test_every_error_text_of_the_routes_is_in_the_file():
    said = " ".join(resolve(answer)["description"] for _, _, o in operations() for answer in o["responses"].values())
    for name in ("rest/routes_execs.c", "rest/routes_native.c", "rest/routes_nodes.c", "rest/job_list.c", "rest/result_zip.c", "http/auth_sodium.c", "rest/submit_uv.c", "http/http_request.c"):
        text = re.sub(r'"\s*\n\s*"', "", (ROOT / "api" / name).read_text())
        for format in re.findall(r'http_respond_error\(\s*[a-z>-]+,\s*\d+,\s*"((?:[^"\\]|\\.|" PRI\w+ ")*)"', text):
            if format in ("%s", "out of memory; try again later") or format.startswith(("this node has", "all places for uploads are taken", "%u requests of ", "no thread is free", "too many logons", "log on with the header")):
                continue  # what the common answers say: 503, 401
            assert plain(format).split("; it is")[0] in said, format
