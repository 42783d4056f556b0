"""The HTTP server and the command line, before a backend that lives in memory (api_fake): every request shape of
execs-api 4.2 that is offered, framing, refusals, streams, clients that break off, and exit codes."""

import base64
import concurrent.futures
import http.client
import io
import json
import os
import pathlib
import random
import resource
import re
import signal
import socket
import ssl
import subprocess
import tarfile
import time
import zipfile

import pytest
from helpers import hello

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release"))
BASE = "/platform/rest/deeplearning/v1"
BASIC = "Basic " + base64.b64encode(b"ada:secret").decode()
TYPE = "multipart/form-data; boundary=XX"
ARGS = "?args=--exec-start%20edtPyTorch%20--model-main%20main.py%20--model-dir%20md"
STATUS = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"]["schemas"]["Status"]
TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname = False
TRUSTING.verify_mode = ssl.CERT_NONE


class Server:
    def __init__(self, folder, tls, job_ms=300):
        command = [str(OUT / "tests" / "system" / "api_fake"), "0", str(folder)] + ([] if tls else ["plain"])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "API_FAKE_MS": str(job_ms)})
        self.port = int(self.process.stdout.readline().split()[1])
        self.tls = tls

    def url(self):
        return "http%s://127.0.0.1:%d" % ("s" if self.tls else "", self.port)

    def connect(self):
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return TRUSTING.wrap_socket(raw) if self.tls else raw

    def send(self, data, piece=0):
        """The whole answer to `data`, sent in pieces of `piece` bytes."""
        answer = b""
        with self.connect() as sock:
            try:
                for at in range(0, len(data), piece or len(data)):
                    sock.sendall(data[at : at + (piece or len(data))])
            except OSError:
                pass  # answered before the end
            while True:
                try:
                    got = sock.recv(1 << 16)
                except OSError:
                    break
                if not got:
                    break
                answer += got
        return answer

    def client(self):
        if self.tls:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=TRUSTING)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def get(self, path, **headers):
        client = self.client()
        client.request("GET", path, headers={"Authorization": BASIC, **headers})
        answer = client.getresponse()
        return answer, answer.read()

    def post(self, parts, query=ARGS, piece=0, chunked=False, headers="Content-Type: %s\r\n" % TYPE, body=None):
        body = multipart(parts) if body is None else body
        if chunked:
            body = b"".join(b"%x\r\n%s\r\n" % (len(body[i : i + 999]), body[i : i + 999]) for i in range(0, len(body), 999))
            return self.send(request("POST", BASE + "/execs/" + query, headers + "Transfer-Encoding: chunked\r\n",
                                     body + b"0\r\n\r\n"), piece)
        length = "Content-Length: %d\r\n" % len(body)
        return self.send(request("POST", BASE + "/execs/" + query, headers + length, body), piece)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


def request(method, path, headers="", body=b"", close=True):
    return ("%s %s HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\n%s%s\r\n" % (
        method, path, BASIC, headers, "Connection: close\r\n" if close else "")).encode() + body


def multipart(parts):
    out = b""
    for name, filename, content in parts:
        out += ('--XX\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n' % (
            name, "" if filename is None else '; filename="%s"' % filename)).encode() + content + b"\r\n"
    return out + b"--XX--\r\n"


def archive(files, mode="w:gz"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


GOOD = archive({"md/main.py": b"print(1)"})
BARE = archive({"main.py": b"print(1)"}, "w")


@pytest.fixture(params=["tls", "plain"])
def server(request, tmp_path):
    made = Server(tmp_path, request.param == "tls")
    yield made
    # It must end by itself, whatever the clients left behind.
    assert made.stop() == 0


@pytest.mark.parametrize("kind", ["text/plain", TYPE])
def test_the_body_of_a_refused_request_is_no_request(server, kind):
    """Its first bytes are refused while the rest of it is there already: what follows on the connection is the next request."""
    hidden = (b"--XX\r\nno head\r\n\r\n" if kind == TYPE else b"") + request("GET", BASE + "/conf", close=False)
    first = request("POST", BASE + "/execs/" + ARGS, "Content-Type: %s\r\nContent-Length: %d\r\n" % (kind, len(hidden)), hidden, False)
    answers = server.send(first + request("GET", "/healthz"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"400" if kind == TYPE else b"415", b"200"], answers
    assert answers.endswith(b"ok\n") and b"MSD_ENABLED" not in answers


def test_hyper_parameter_search_is_said_to_be_missing(server):
    for method, path in (("GET", ""), ("DELETE", "/"), ("PUT", "/ada-hpo-1"), ("PUT", "/ada-hpo-1/restart"), ("GET", "/algorithm/Random")):
        answer = server.send(request(method, BASE + "/hypersearch" + path, "Content-Length: 0\r\n" if method == "PUT" else ""))
        assert b"501 Not Implemented" in answer and b"not supported yet: hyper-parameter search" in answer, answer
    body = multipart([("data", None, b"{}"), ("file", "a.modelDir.tar", os.urandom(3 << 20))])
    answer = server.send(request("POST", BASE + "/hypersearch", "Content-Type: %s\r\nContent-Length: %d\r\n" % (TYPE, len(body)), body[:100000]))
    assert b"501 Not Implemented" in answer, answer


def test_framing(server):
    conf = BASE + "/conf"
    assert b"MSD_ENABLED" in server.send(request("GET", conf), 1)
    assert server.send(request("GET", conf, close=False) * 5 + request("GET", conf)).count(b"MSD_ENABLED") == 6
    assert b"MSD_ENABLED" in server.send(request("GET", "/nope", close=False) + request("GET", conf))
    body = "Content-Length: 5\r\n"
    assert b"MSD_ENABLED" in server.send(request("GET", conf, body, b"hello", close=False) + request("GET", conf))
    refused = server.send(request("PUT", BASE + "/execs"))
    assert b" 405 " in refused and b"\r\nAllow: GET, HEAD, POST, DELETE\r\n" in refused
    refused = server.send(request("HEAD", "/v1/tickets"))
    assert b" 405 " in refused and b"\r\nAllow: POST\r\n" in refused and refused.endswith(b"\r\n\r\n")  # without a body
    refused = server.send(request("FROB", BASE + "/conf"))  # a method that no list of methods has
    assert b" 405 " in refused and b"\r\nAllow: GET, HEAD\r\n" in refused
    assert b" 404 " in server.send(request("FROB", "/nope"))
    assert b"415" in server.send(request("POST", BASE + "/execs", "Content-Encoding: gzip\r\nContent-Length: 3\r\n", b"abc"))
    assert b"400 Bad" in server.send(b"GET / HTTP/1.1\nHost: a\n\n")
    assert b"400 Bad" in server.send(
        request("POST", BASE + "/execs", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"))
    assert b"431" in server.send(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40000)
    for answer in (server.send(request("GET", BASE + "/execs//")), server.send(request("GET", "/"))):
        assert b" 30" not in answer.split(b"\r\n")[0]


def test_other_protocol(server):
    if not server.tls:
        with pytest.raises(ssl.SSLError):
            TRUSTING.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=10))


@pytest.mark.parametrize("method, status", [("get", 405), ("Get", 405), ("FROB", 405), ("g(t", 400), ("\x16\x03\x01", 400), ("\xff", 400)])
def test_what_is_no_method_is_said_to_be_none(server, method, status):
    """In the protocol that was spoken."""
    answer = server.send(method.encode("latin-1") + b" /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert (b"use http://" in answer) == (method[0] == "\x16" and not server.tls), answer
    assert status != 405 or b"Allow: GET" in answer


@pytest.mark.parametrize("method", [b"GET", b"get"])
def test_plain_http_at_a_port_of_tls_is_told_so(server, method):
    if not server.tls:
        pytest.skip("it is plain HTTP that is spoken here")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"use https://" in sock.recv(1000)


@pytest.mark.parametrize("group, share, kind", [
    (0x0104, b"", 0x15), (0x0104, b"\x02" * 1024, 0x15), (0x0100, b"\x02" * 256, 0x15), (0x001D, b"\x09" + b"\x00" * 31, 0x16)],
    ids=["ffdhe8192", "ffdhe8192 with its share", "ffdhe2048", "X25519 is taken"])
def test_a_stranger_chooses_no_costly_key_exchange(tmp_path, group, share, kind):
    """ffdhe8192 costs the loop a tenth of a second for each hello, before anybody has logged on. 0x15: an alert."""
    server = Server(tmp_path, True)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(hello(group, share))
        assert sock.recv(1)[0] == kind
    assert server.stop() == 0


SHAPES = {
    "1 directory": lambda s: s.post([("file", "x.modelDir.tar", GOOD)]),
    "1 chunked": lambda s: s.post([("file", "x.modelDir.tar", GOOD)], chunked=True),
    "1 in small pieces": lambda s: s.post([("file", "x.modelDir.tar", GOOD)], piece=37),
    "2 single file": lambda s: s.post([("file", "main.py", b"x=1")], "?args=--exec-start%20PyTorch%20--model-main%20main.py"),
    "4 no body": lambda s: s.send(request("POST", BASE + "/execs/?args=--exec-start%20PyTorch%20--user-cmd%20--%20ls",
                                          "Content-Length: 0\r\n")),
    "5 form": lambda s: s.post(None, "?args=--exec-start%20PyTorch%20--user-cmd%20--%20ls",
                               headers="Content-Type: application/x-www-form-urlencoded\r\n", body=b"data=%7B%7D&a=b"),
    "7 SDK": lambda s: s.post([("file", None, GOOD)],
                              "?sigName=&args=--exec-start+edtPyTorch+--model-main+main.py+--model-dir+md"),
    "8 part named as the file": lambda s: s.post([("main.py", None, b"x=1")], "?args=--exec-start+PyTorch+--model-main+main.py"),
    "9 data": lambda s: s.post([("data", None, b"{'args':'--exec-start PyTorch --model-main main.py',}"),
                                ("file", "a.modelDir.tar", BARE)], ""),
    "10 data twice": lambda s: s.post([("data", None, b""),
                                       ("data", "data", b'{"args":"--exec-start PyTorch --model-main main.py"}'),
                                       ("main.py", None, b"x=1")], ""),
}


def test_only_an_administrator_recovers_a_job(server):
    answer = SHAPES["1 directory"](server)
    job = re.search(rb"shoal-[0-9a-z]{16}", answer).group(0).decode()
    path = "/v1/jobs/%s/recover" % job

    def post(path, user):
        client = server.client()
        client.request("POST", path, headers={"Authorization": "Basic " + base64.b64encode(user).decode(), "Content-Length": "0"})
        answer = client.getresponse()
        return answer.status, answer.read().decode()

    status, text = post(path + "?confirm=true", b"ada:secret")
    assert status == 403 and "only an administrator" in text
    status, text = post(path, b"admin:secret")
    told = json.loads(text)
    assert status == 200 and told["recovered"] is False and told["lost"] == ["b", "c"] and told["index"] == 57
    assert "--yes" in told["text"] and "missing" in told["text"]
    status, text = post(path + "?confirm=true", b"admin:secret")
    assert status == 200 and json.loads(text)["recovered"] is True and json.loads(text)["generation"] == 2
    assert post(path + "?confirm=maybe", b"admin:secret")[0] == 400
    assert post("/v1/jobs/shoal-0000000000000001/recover", b"admin:secret")[0] == 404


def test_only_an_administrator_changes_which_hosts_there_are(server):
    def post(path, user, key=None):
        client = server.client()
        headers = {"Authorization": "Basic " + base64.b64encode(user).decode(), "Content-Length": "0"}
        client.request("POST", path, headers={**headers, **({"Shoal-Mesh-Key": key} if key else {})})
        answer = client.getresponse()
        return answer.status, answer.read().decode()

    for path in ("/v1/nodes/b/remove", "/v1/nodes/b/readmit", "/v1/nodes/b/drain", "/v1/nodes/b/undrain", "/v1/nodes/b/leave", "/v1/mesh/recover", "/v1/mesh/recover?confirm=true"):
        status, text = post(path, b"ada:secret")
        assert status == 403 and "only an administrator" in text, path
    assert post("/v1/nodes/b/remove", b"admin:secret") == (200, '{"text":"done"}')
    assert post("/v1/nodes/c/remove", b"admin:secret")[0] == 409
    assert post("/v1/nodes/c/remove?force=true", b"admin:secret")[0] == 200
    assert post("/v1/nodes/c/remove?force=yes", b"admin:secret")[0] == 400
    assert post("/v1/nodes/omega/remove", b"admin:secret")[0] == 404
    status, text = post("/v1/mesh/recover", b"admin:secret")
    assert status == 200 and json.loads(text)["recovered"] is False and "--key" in json.loads(text)["text"]
    assert post("/v1/mesh/recover?confirm=true", b"admin:secret")[0] == 403
    status, text = post("/v1/mesh/recover?confirm=true", b"admin:secret", "demo:key")
    assert status == 200 and json.loads(text)["recovered"] is True


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(server, shape):
    assert b'"id":"shoal-' in SHAPES[shape](server)


# execs-api 4.8: files in the archive, args, the work directory below _submitted_code.
WORK_DIRS = [
    (["md/main.py"], "--model-main main.py --model-dir md", "md"),
    (["md/src/main.py"], "--model-main src/main.py --model-dir md", "md"),
    (["main.py", "x.txt"], "--model-main main.py --model-dir md", "md"),
    (["src/main.py", "x.txt"], "--model-main src/main.py --model-dir md", "md/src"),
    (["main.py", "x.txt"], "--model-main main.py", ""),
    (["md/main.py"], "--model-main main.py", "md"),
    (["md/main.py", "._md"], "--model-main ./main.py --model-dir md", "md"),
    (["md/main.py"], "--model-main /home/ada/md/main.py --model-dir md", "md"),
    (["md/run.sh"], "--user-cmd --model-dir md -- sh run.sh", "md"),
    (["run.sh", "x.txt"], "--user-cmd -- sh run.sh", ""),
]


@pytest.mark.parametrize("files,args,want", WORK_DIRS)
def test_work_dirs(server, files, args, want):
    query = "?args=--exec-start%20PyTorch%20" + args.replace(" ", "%20")
    answer = server.post([("file", "x.modelDir.tar", archive({name: b"1" for name in files}))], query)
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["workDir"] == "/_submitted_code/" + want


def test_a_parameter_that_cannot_be_decoded_is_named(server):
    for method, query, status, key in [
            ("GET", "limit=%zz", 400, b"limit"), ("GET", "limit=1%", 400, b"limit"), ("GET", "state=%f", 400, b"state"),
            ("GET", "state=%00", 400, b"state"), ("GET", "x=1&user=a%2&limit=1", 400, b"user"), ("DELETE", "state=%zz", 400, b"state"),
            ("GET", "limit=%31", 200, b""), ("GET", "limit=1&args=a=b%zz", 200, b""), ("GET", "100%", 200, b"")]:
        for path in (BASE + "/execs", "/v1/jobs"):
            if (method, path) == ("DELETE", "/v1/jobs"):
                continue
            client = server.client()
            client.request(method, path + "?" + query, headers={"Authorization": BASIC})
            answer = client.getresponse()
            text = answer.read()
            assert answer.status == status and (status == 200 or text.startswith(b"Error 400: " + key + b": a broken %-escape")), (path, query, text)


REFUSALS = {
    "tar in bzip2": (lambda s: s.post([("file", "x.tar.bz2", archive({"md/main.py": b"1"}, "w:bz2"))]),
                     b'"x.tar.bz2" is bzip2; send a tar, a tar packed with gzip, or a zip'),
    "tar in xz, without a name": (lambda s: s.post([("file", None, archive({"md/main.py": b"1"}, "w:xz"))]), b"upload: it is xz; send a tar, a tar packed with gzip, a zip, or one file"),
    "main is missing": (lambda s: s.post([("file", "x.tar", archive({"md/other.py": b"1"}))]), b"is not in the upload"),
    "unknown framework": (lambda s: s.post([("file", "x.tar", GOOD)], "?args=--exec-start%20foo"), b"unknown framework foo; there are "),
    "unsupported option": (lambda s: s.post([("file", "x.tar", GOOD)], ARGS + "%20--consumer%20/a"), b"not supported yet: --consumer"),
    "no args": (lambda s: s.post([("file", "x.tar", GOOD)], ""), b"no args"),
    "0 bytes": (lambda s: s.post([("file", "x.tar", b"")]), b"is empty"),
    "not an archive": (lambda s: s.post([("file", "x.tar", b"hello")]), b"is not an archive"),
    "a path out": (lambda s: s.post([("file", "x.tar", archive({"../main.py": b"1"}))]), b'".." in its path'),
    "a cut archive": (lambda s: s.post([("file", "x.tar", GOOD[:-20])]), b"cut short"),
    "a cut body": (lambda s: s.post(None, body=multipart([("file", "x.tar", GOOD)])[:-8]), b"closing boundary"),
    "another type": (lambda s: s.post(None, headers="Content-Type: application/json\r\n", body=b"{}"), b"Error 415"),
    "two files": (lambda s: s.post([("file", "x.tar", GOOD), ("file", "y.tar", GOOD)]), b"more than one file"),
    "data that is no JSON": (lambda s: s.post([("data", None, b"{oops"), ("file", "x.tar", GOOD)]), b"not valid JSON"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(server, case):
    act, want = REFUSALS[case]
    answer = act(server)
    assert want in answer and b"\r\n\r\nError 4" in answer
    assert server.get(BASE + "/execs")[1] == b"[]"  # and nothing was made


def test_credentials(server):
    client = server.client()
    client.request("GET", "/auth/v1/logon", headers={"Authorization": BASIC})
    token = json.loads(client.getresponse().read())["accessToken"]
    bearer = {"Authorization": "Bearer " + token}
    for headers in (bearer, {"X-Auth-Token": token}, {"authorization": "bearer " + token + "tail"}, {"Authorization": BASIC}):
        client.request("GET", BASE + "/conf", headers=headers)
        answer = client.getresponse()
        assert answer.status == 200 and answer.read()
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer " + token[:-1]},
                    {"Authorization": "Basic " + base64.b64encode(b"ada:wrong").decode()}):
        client.request("GET", BASE + "/conf", headers=headers)
        answer = client.getresponse()
        assert answer.status == 401 and answer.getheader("WWW-Authenticate").startswith("Basic") and answer.read()
    client.request("POST", "/auth/v1/logoff", headers=bearer)
    assert client.getresponse().read()
    client.request("GET", BASE + "/conf", headers=bearer)
    assert client.getresponse().status == 401


PAGES = {  # what a browser says of the page that asks, and whether it is of another site
    "no browser": ({}, False),
    "a page of this address": ({"Origin": "https://127.0.0.1:{port}"}, False),
    "a page of another port": ({"Origin": "https://127.0.0.1:1"}, True),
    "a page of a longer address": ({"Origin": "https://127.0.0.1:{port}.example"}, True),
    "a page of another host": ({"Origin": "https://page.example"}, True),
    "a file": ({"Origin": "null"}, True),
    "an empty origin": ({"Origin": ""}, True),
    "a link of another site, without Origin": ({"Sec-Fetch-Site": "cross-site"}, True),
    "a neighbour": ({"Sec-Fetch-Site": "same-site", "Origin": "https://other.example"}, True),
    "a page behind a proxy that renames the host": ({"Sec-Fetch-Site": "same-origin", "Origin": "https://front.example"}, False),
    "what the user typed": ({"Sec-Fetch-Site": "none"}, False),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_another_site_changes_nothing_by_what_its_browser_remembers(server, page):
    headers, foreign = PAGES[page]
    headers = {name: value.replace("{port}", str(server.port)) for name, value in headers.items()}
    client = server.client()
    token = asks(server, "ada", "GET", "/auth/v1/logon")["accessToken"]
    for method, path in (("DELETE", BASE + "/execs/none"), ("POST", "/v1/tickets"), ("PUT", "/dlim/v1/model/none/operation/start"),
                         ("POST", "/v2/models/none/infer"), ("GET", BASE + "/conf"), ("POST", "/dlim/v1/auth/token")):
        for name, value in (("Authorization", BASIC), ("Authorization", "Bearer " + token), ("X-Auth-Token", token)):
            client.request(method, path, headers={**headers, name: value})
            answer = client.getresponse()
            text = answer.read()
            refused = foreign and method != "GET" and value == BASIC
            assert (answer.status == 403 and b"another site" in text) == refused, (method, path, value, answer.status, text)
            assert answer.getheader("Access-Control-Allow-Credentials") is None


def test_head_is_get_without_the_content(server):
    job = submit(server)
    wait_end(server, job)
    client = server.client()
    for path in ("/healthz", "/nope", BASE + "/conf", "/v1/jobs/zzzzz", "/v1/jobs/%s/log" % job, BASE + "/execs/%s/log" % job,
                 BASE + "/execs/%s/result" % job, "/v1/jobs/%s/files/log/app.task/stdout" % job, "/v1/services/echo"):
        said = []
        for method in ("GET", "HEAD", "HEAD"):
            client.request(method, path, headers={"Authorization": BASIC})  # all on one connection
            answer = client.getresponse()
            said.append((answer.status, sorted(answer.getheaders()), len(answer.read())))
        assert said[0][:2] == said[1][:2] == said[2][:2] and said[1][2] == 0, (path, said)
    client.request("HEAD", BASE + "/conf")
    assert client.getresponse().status == 401


def test_a_file_that_is_not_there_is_404_unless_it_may_come(server):
    """A name that no list can show hides no file of another name: to ask again would not help."""
    for name, status in ("plain", 404), ("unlisted", 404), ("away", 503):
        job = submit(server, args=ARGS + "%20--appName%20" + name)
        wait_end(server, job)
        answer, text = server.get("/v1/jobs/%s/files/nope" % job)
        assert answer.status == status and b'no file "nope"' in text, (name, answer.status, text)
        assert (b"a file is not in this list" in text) == (name != "plain"), text


def test_the_longest_list_of_files_is_made_in_many_turns(server):
    """Each turn makes a bounded part of it, and what others ask comes between."""
    job = submit(server, args=ARGS + "%20--appName%20many")
    wait_end(server, job)

    def turns():
        return int(re.search(rb"^shoal_fake_turns (\d+)", server.get("/v1/metrics")[1], flags=re.M).group(1))

    began = turns()
    without = turns() - began
    began = turns()
    answer, text = server.get("/v1/jobs/%s/files" % job)
    assert turns() - began >= without + 11
    listed = json.loads(text)
    assert answer.status == 200 and listed["complete"]
    assert [(file["path"], file["bytes"]) for file in listed["files"]] == [("model/%05d" % i, i) for i in range(8000)]


def test_early_answer_reaches_a_client_that_still_sends(server):
    head = ("POST %s/execs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nContent-Type: %s\r\n"
            "Content-Length: 3000000\r\n\r\n" % (BASE, TYPE)).encode()
    assert b"401 Unauthorized" in server.send(head + b"z" * 3000000)


def test_continue(server):
    body = multipart([("file", "x.tar", GOOD)])
    with server.connect() as sock:
        sock.sendall(request("POST", BASE + "/execs" + ARGS, "Content-Type: %s\r\nExpect: 100-continue\r\nContent-Length: %d\r\n" % (
            TYPE, len(body))))
        assert sock.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        sock.sendall(body)
        answer = b""
        while b'"id":"shoal-' not in answer:
            got = sock.recv(4000)
            assert got, answer
            answer += got


def submit(server, content=b"print(1)", more="", args=ARGS):
    client = server.client()
    client.request("POST", BASE + "/execs/" + args + more, multipart([("file", "x.tar", archive({"md/main.py": content}))]),
                   {"Authorization": BASIC, "Content-Type": TYPE})
    answer = client.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    return json.loads(text)["id"]


def wait_end(server, job):
    for _ in range(200):
        if json.loads(server.get(BASE + "/execs/" + job)[1])["state"] == "FINISHED":
            return
        time.sleep(0.05)  # polling another process, not the clock, decides
    raise AssertionError("the job does not end")


def check_engines(server, engines, jobs):
    """What dlicmd does with these objects (execs-api 6.4 and 9): it adds, divides and takes apart; any other type ends it."""
    for row in reversed(engines):
        assert all(type(row[key]) is str for key in ("id", "consumer", "submit_user", "tag", "name", "type", "state"))
        assert row["tag"] == row["consumer"] + "/" + row["submit_user"]
        for key in ("submit_time", "start_time", "end_time"):
            assert type(row.get(key, 0)) is int and (row.get(key, 0) == 0 or abs(time.time() - row[key]) < 1000), key
        for key in [key for key in row if key.endswith("_resreq")]:
            items = dict(item.split("=") for item in row[key].split(","))
            assert items.keys() == {"ngpus", "mem", "ncpus"} and all(float(value) * row["task12n_num"] >= 0 for value in items.values())
        assert type(row["task12n_num"]) is int and len(row["task12n"]) <= row["task12n_num"]
        assert type(row["priority"]) is int and row["is_packing"] is False and row["pack_id"] == ""
        assert ("task0_resreq" in row) == (row["type"] == "ELASTIC")

    def ids(path):
        return [row.get("id", row.get("applicationid")) for row in json.loads(server.get(BASE + path)[1])]
    assert ids("/scheduler/engine/applications?sort=submit_time") == jobs[::-1]
    assert ids("/scheduler/engine/applications?sort=-submit_time&start=1&length=5") == jobs[1:]
    assert ids("/scheduler/engine/applications?sort=-submit_time&start=0&length=1") == jobs[:1]
    assert ids("/scheduler/engine/applications?state=FINISHED,KILLED,ERROR") == jobs[1:]
    assert ids("/scheduler/applications?start=1&length=1&sort=submittedtime&order=desc") == jobs[1:]
    assert ids("/scheduler/applications?state=FINISHED") == jobs[1:]
    for wrong in ("start=x", "length=-1", "start=1e3"):
        assert server.get(BASE + "/scheduler/engine/applications?" + wrong)[0].status == 400, wrong
        assert server.get(BASE + "/scheduler/applications?" + wrong)[0].status == 400, wrong


def test_applications_are_found_by_what_is_asked_of_them(server):
    """execs-api 6.2: what can match nothing gives an empty list, and no error."""
    first, second = (submit(server, more="%20--appName%20" + name) for name in ("swim", "swimming"))
    instance, = json.loads(server.get(BASE + "/scheduler/instances")[1])
    assert instance.keys() == {"uuid", "name", "version", "masterUrl", "executionUser", "state", "historyServerUrl"}
    assert instance["state"] == "STARTED" and instance["uuid"] == json.loads(server.get(BASE + "/execs/" + first)[1])["sigId"]
    assert all(type(value) is str for value in instance.values())
    for query, found in (("search=swimm", [second]), ("search=swim", [first, second]), ("search=" + first[-9:], [first]), ("search=uu", []),
                         ("search=swim&start=1", [second]), ("search=swim&sort=-submit_time&length=1", [second]), ("search=swim&length=0", []),
                         ("applicationname=swim", [first]), ("applicationname=swim&search=mming", []), ("driverid=driver-1", []),
                         ("sigId=" + instance["uuid"], [first, second]), ("sigId=other", []), ("state=NO_STATE", []), ("state=RECOVERING", []),
                         ("sort=unheard-of&order=desc", [second, first]), ("search=&applicationname=&state=", [first, second]),
                         ("applicationid=%s&applicationname=swim" % first, [first]), ("applicationid=%s&search=mming" % first, [])):
        answer, text = server.get(BASE + "/scheduler/applications?" + query)
        assert (answer.status, [row["applicationid"] for row in json.loads(text)]) == (200, found), query


def test_an_engine_job_says_what_it_asked_for_and_uses(server):
    """execs-api 6.4: dlicmd multiplies the first by the workers, and adds the second up."""
    for words, gpus, mib in (("--workerDeviceType%20gpu%20--workerMemory%203G", 1, 3072), ("--workerDeviceType%20cpu", 0, 4096)):
        job = submit(server, more="%20--numWorker%202%20" + words)
        row, = json.loads(server.get(BASE + "/scheduler/engine/applications/" + job)[1])
        assert row["task12n_resreq"] == "ngpus=%d,mem=%d,ncpus=1" % (gpus, mib) and row["task0_resreq"] == "ngpus=0,mem=0,ncpus=0"
        workers = len(row["task12n"])
        assert (row["used_gpu"], row["used_mem"], row["used_cpu"]) == (gpus * workers, mib * workers, workers)


def test_an_application_says_of_how_many_workers_there_are_logs(server):
    for name, logs in (("one", 1), ("elastic", 3)):
        job = submit(server, more="%20--appName%20" + name)
        wait_end(server, job)
        row, = json.loads(server.get(BASE + "/scheduler/applications?applicationid=" + job)[1])
        assert row["applicationid"] == job and row["task12n"] == [{"id": i + 1} for i in range(logs)]
    assert server.get(BASE + "/scheduler/applications?applicationid=shoal-0000000000000000")[1] == b"[]"


def test_kubernetes_has_an_empty_list_and_no_object(server):
    path = BASE + "/scheduler/kubernetesobjects?type=paralleljob"
    assert json.loads(server.get(path)[1]) == {"items": []}
    answer, text = server.get(path + "&name=shoal-0000000000000000")
    assert answer.status == 404 and b"items" not in text


def test_log_and_result(server):
    content = random.Random(1).randbytes(3000000)
    job = submit(server, content)
    assert server.get(BASE + "/execs/%s/result" % job)[0].status == 400  # not ended yet
    wait_end(server, job)
    as_json, text = server.get(BASE + "/execs/%s/log" % job)
    plain, raw = server.get(BASE + "/execs/%s/log?logType=outlog" % job, Accept="text/plain")
    assert as_json.getheader("Content-Type") == "application/json" and plain.getheader("Content-Type").startswith("text/plain")
    assert json.loads(text) == raw.decode() and raw.count(b"\n") == 4
    assert server.get(BASE + "/scheduler/applications/%s/driver/logs/stdout?lastlines=2" % job)[1].count(b"\n") == 2
    answer, body = server.get(BASE + "/execs/%s/result" % job)
    fields = answer.getheader("Content-Disposition").split(";")
    assert fields[1] == "filename=dlpd-model-%s-result.zip" % job and int(fields[2].split("=")[1]) == len(body)
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        assert packed.testzip() is None and packed.namelist() == ["model/bundle"] and content in packed.read("model/bundle")
    newest = submit(server)
    engines = json.loads(server.get(BASE + "/scheduler/engine/applications?start=0&length=9&sort=-submit_time")[1])
    assert [row["id"] for row in engines] == [newest, job] and engines[1]["tag"] == "/default/ada"
    assert [row["state"] for row in json.loads(server.get(BASE + "/scheduler/engine/applications/" + job)[1])] == ["FINISHED"]
    assert server.get(BASE + "/scheduler/engine/applications?state=KILLED")[1] == b"[]"
    check_engines(server, engines, [newest, job])
    everything = zipfile.ZipFile(io.BytesIO(server.get("/v1/jobs/%s/result" % job)[1]))
    assert everything.namelist() == ["model/bundle", "log/app.task/stdout"]


@pytest.mark.parametrize("name,complete", [("dots", "true"), ("outside", "false")])
def test_two_dots_in_a_name_are_part_of_it_and_what_lies_outside_is_told_as_missing(server, name, complete):
    job = submit(server, more="%20--appName%20" + name)
    wait_end(server, job)
    answer, body = server.get("/v1/jobs/%s/result" % job)
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        assert packed.namelist() == ["model/bundle", "log/app.task/stdout", "log/loss..csv"]
    assert answer.getheader("Shoal-Complete") == complete


@pytest.mark.parametrize("vast", ["vast", "vast-code"])
def test_a_package_of_a_job_that_is_too_large_is_refused_before_it_is_copied(server, vast):
    job = submit(server, more="%20--appName%20" + vast)
    wait_end(server, job)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    assert "larger than the 2 GiB" in asks(server, "ada", "POST", "/v1/services/echo?from_job=" + job, status=413)


def test_clients_that_break_off(server):
    rand = random.Random(2)
    for _ in range(40):
        data = request("POST", BASE + "/execs" + ARGS, "Content-Type: %s\r\nContent-Length: 300400\r\n" % TYPE,
                       multipart([("file", "x.tar", rand.randbytes(300000))]))
        with server.connect() as sock:
            sock.sendall(data[: rand.randrange(len(data))])
    for _ in range(20):
        with server.connect() as sock:
            sock.sendall(request("GET", BASE + "/execs"))
    job = submit(server, rand.randbytes(2000000))
    wait_end(server, job)
    for _ in range(5):
        with server.connect() as sock:
            sock.sendall(request("GET", BASE + "/execs/%s/result" % job))
            sock.recv(10000)
    for _ in range(200):
        if b"shoal_http_uploads_open 0\n" in server.get("/metrics")[1]:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("uploads stay open")
    # One who reads nothing, and one who sends half: the stop at the end must not wait for them.
    server.idle = [server.connect(), server.connect()]
    server.idle[0].sendall(request("GET", BASE + "/execs/%s/result" % job))
    server.idle[1].sendall(request("POST", BASE + "/execs" + ARGS, "Content-Type: %s\r\nContent-Length: 9999\r\n" % TYPE, b"--XX"))


def test_a_user_does_not_take_all_room_for_bodies_of_models(tmp_path):
    """Bodies that are whole but for some bytes: a quarter of the room is left to who holds less than that."""
    server = Server(tmp_path, False)
    ask = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    eve = b"Basic " + base64.b64encode(b"eve:secret")
    answers = []
    try:
        for _ in range(9):
            sock = server.connect()
            try:
                sock.sendall(ask % (eve, 64 << 20) + bytes(63 << 20))
            except OSError:
                pass
            answers.append(sock)
        refused = [sock.recv(100) for sock in answers[6:]]
        assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in refused), refused
        body = os.urandom(1 << 20)
        assert server.send(ask % (BASIC.encode(), len(body)) + body).endswith(body)
    finally:
        for sock in answers:
            sock.close()
        assert server.stop() == 0


ODD_ASKS = {
    "a length with a plus": (b"Inference-Header-Content-Length: +13\r\n", 400),
    "a length with a blank": (b"Inference-Header-Content-Length: 1 3\r\n", 400),
    "a length beyond the body": (b"Inference-Header-Content-Length: 16\r\n", 400),
    "a length beyond all numbers": (b"Inference-Header-Content-Length: 18446744073709551629\r\n", 400),
    "a length that ends within the JSON": (b"Inference-Header-Content-Length: 12\r\n", 400),
    "a length that ends behind it": (b"Inference-Header-Content-Length: 14\r\n", 400),
    "a type that is no text": (b"Content-Type: a/\xff\r\n", 400),
    "a type of other letters": (b"Content-Type: a/\xc3\xa4\r\n", 200),
    "all as it should be": (b"Inference-Header-Content-Length: 13\r\n", 200),
    "no JSON": (b"Inference-Header-Content-Length: 0\r\n", 200),
}


@pytest.mark.parametrize("name", ODD_ASKS)
def test_what_a_kernel_could_not_read_is_refused_before_it(server, name):
    lines, status = ODD_ASKS[name]
    answer = server.send(request("POST", "/v2/models/echo/infer", "Content-Length: 15\r\n", b"", True)[:-2] + lines + b"\r\n" + b'{"a":{"b":1}}xy')
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer


def test_an_address_of_a_model_that_is_no_text_reaches_no_kernel(server):
    for path in (b"/v2/models/echo/versions/%ff/infer", b"/v2/models/echo/versions/\xff/infer"):
        answer = server.send(request("POST", "/v2", "Content-Length: 2\r\n", b"{}").replace(b"/v2", path, 1))
        assert answer.startswith(b"HTTP/1.1 400 "), answer


def test_many_at_once(server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda i: submit(server, random.Random(i).randbytes([10, 90000, 400000][i % 3])), range(60)))
    assert len(set(jobs)) == 60
    assert len(json.loads(server.get(BASE + "/execs?limit=50&sort_by=id:desc")[1])) == 50


CURVE_CSV = """step,call,data_epoch,kind,loss,"a ""b"", c"
1,1,0,train,0.5,0.25
2,1,0,train,,0.5
2,1,0,validation,0.75,
"""


def check_metrics(run, job):
    """The loss curve: values that are no number, names that need quotes, thinned or not, drawn in any width."""
    csv = run("job", "metrics", job, "--csv")[0]
    assert csv == CURVE_CSV, csv  # text mode reads its line ends as ours
    assert [line.split() for line in run("job", "metrics", job, "-q", "--names", "loss")[0].splitlines()] == [
        ["1", "0", "train", "0.5"], ["2", "0", "train", "-"], ["2", "0", "validation", "0.75"]]
    assert json.loads(run("job", "metrics", job, "-o", "json")[0])["calls"][0]["names"] == ["loss", 'a "b", c']
    for width in (30, 79, 200, 5000):
        drawn = run("job", "metrics", job, "--plot", COLUMNS=str(width), LC_ALL="C.UTF-8")[0].splitlines()
        assert max(map(len, drawn)) <= min(width, 410) and drawn[0].startswith("loss: last nan, least 0.5 at s")
        assert (width == 30 or drawn[0].endswith("validation (o) 0.75")) and sum("o" in line for line in drawn[1:14]) == 1
        assert any("\u2800" < letter <= "\u28ff" for letter in "".join(drawn))
        assert "\033" not in "".join(drawn)  # no terminal, no colour
        plain = run("job", "metrics", job, "--plot", COLUMNS=str(width), LC_ALL="C")[0]
        assert plain.isascii() and "*" in plain
    assert "names none" in run("job", "metrics", job, "--names", "x", code=2)[1]
    assert "one of --plot" in run("job", "metrics", job, "--plot", "--csv", code=2)[1]
    assert "beyond --to" in run("job", "metrics", job, "--from", "9", "--to", "3", code=2)[1]


def asks(server, user, method, path, body=None, status=200):
    client = server.client()
    client.request(method, path, headers={"Authorization": "Basic " + base64.b64encode(user.encode() + b":secret").decode()},
                   body=None if body is None else json.dumps(body))
    answer = client.getresponse()
    said = answer.read()
    assert answer.status == status, (user, method, path, answer.status, said)
    return json.loads(said) if status == 200 else said.decode()


EDI = "/platform/rest/deeplearning/v1/edimodels"
PLACES = ("/v1/services/echo/profile", "/dlim/v1/model", "/dlim/v1/model/echo", "/dlim/v1/model/echo/appprofile", EDI, EDI + "/echo",
          EDI + "/echo/appprofile")


def test_values_of_a_models_environment_are_its_owners(server):
    """Another user sees which names there are."""
    try:
        asks(server, "ada", "PUT", "/v1/services/echo/profile", {"kernel": {"envs": [{"name": "BUCKET_KEY", "value": "tide-pool"}]}})
        asks(server, "ada", "PUT", "/dlim/v1/model/echo", {"mk_environments": [{"name": "BUCKET_USER", "value": "tide-pool"}]})
        for path in PLACES:
            for user in ("ada", "admin"):
                assert "tide-pool" in json.dumps(asks(server, user, "GET", path)), (user, path)
            seen = json.dumps(asks(server, "eve", "GET", path))
            assert "tide-pool" not in seen and "(hidden)" in seen and "BUCKET_" in seen, (path, seen)
        # What a dry run would change says what there is.
        change = {"kernel": {"envs": []}, "policy": {"kernel_max": 2}}
        assert "tide-pool" in json.dumps(asks(server, "ada", "PUT", "/v1/services/echo/profile?dry_run=true", change))
        assert "belongs to ada" in asks(server, "eve", "PUT", "/v1/services/echo/profile?dry_run=true", change, status=403)
    finally:
        asks(server, "ada", "PUT", "/v1/services/echo/profile", {"kernel": {"envs": []}})
        asks(server, "ada", "PUT", "/dlim/v1/model/echo", {"mk_environments": []})


def test_another_users_canary_is_refused_as_forbidden(server):
    assert "belongs to ada" in asks(server, "eve", "POST", "/v1/services/echo/canary?version=2&weight=5", status=403)
    assert "has version 1, not 2" in asks(server, "ada", "POST", "/v1/services/echo/canary?version=2&weight=5", status=404)


@pytest.mark.parametrize("method, path, key", [("POST", "/v1/services/echo/rollback", "to"), ("GET", "/v1/jobs/x/tasks", "limit"),
                                               ("GET", "/v1/jobs/x/metrics", "from"), ("GET", "/v1/jobs/x/metrics", "points")])
def test_what_counts_from_1_on_is_not_0(server, method, path, key):
    """0 is what the program itself means by "not given"; a roll-back to version 0 would be one to the version before."""
    for given in ("0", "-1", "", "1e3", "18446744073709551616"):
        said = asks(server, "ada", method, "%s?%s=%s" % (path, key, given), status=400)
        assert re.search(r'%s: "%s" is not a number from 1 to \d+' % (key, re.escape(given)), said), said


def test_command_line(server, tmp_path):
    shoal = OUT / "shoal"
    if not shoal.exists():
        pytest.skip("no shoal binary")
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "SHOAL_NODE": server.url()}
    model = tmp_path / "md"
    model.mkdir()
    (model / "main.py").write_text("print(1)\n")

    def run(*words, code=0, **extra):
        done = subprocess.run([str(shoal), *words], env={**env, **extra}, capture_output=True, text=True, errors="replace", timeout=60)
        assert done.returncode == code, (words, done)
        return done.stdout, done.stderr

    run("job", "list", code=4)
    if server.tls:
        assert "nobody has said" in run("logon", "ada", code=4, SHOAL_PASSWORD="secret")[1]
    assert "wrong user or password" in run("logon", "ada", "--yes", code=4, SHOAL_PASSWORD="no")[1]
    run("logon", "ada", SHOAL_PASSWORD="secret")
    assert oct((tmp_path / ".config/shoal/token").stat().st_mode)[-3:] == "600"
    submitted = ("job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--model-dir", str(model), "--workers", "6")
    job = run(*submitted, "--", "--epochs", "3")[0].strip()
    assert json.loads(run("job", "show", job[-5:], "-o", "json")[0])["args"].endswith("-- --epochs 3 ")
    assert run("job", "logs", "-f", job)[0].count("\n") == 4
    run("job", "wait", job)
    run("job", "run", *submitted[2:], "--ticket", "--wait", "--env", "A=b c")
    run("job", "result", job, str(tmp_path / "r.zip"))
    assert zipfile.ZipFile(tmp_path / "r.zip").namelist() == ["model/bundle", "log/app.task/stdout"]
    run("job", "result", job, str(tmp_path / "r.zip"), "--model")
    assert zipfile.ZipFile(tmp_path / "r.zip").namelist() == ["model/bundle"]
    assert "not both" in run("job", "result", job, "--model", "--all", code=2)[1]
    assert run("job", "get", job, "log/app.task/stdout", "-O", "-")[0] == "hello"
    assert run("job", "get", job, "log/app.task/stdout", "-")[0] == "hello"
    check_metrics(run, job)
    for words in (("node", "list"), ("top",), ("why", job), ("job", "ledger", job), ("frameworks",), ("status",), ("job", "list")):
        assert run(*words)[0]
        json.loads(run(*words, "--output", "json")[0])
    ledger = run("job", "ledger", job)[0]
    assert "exact            yes: every sample" in ledger and re.search(r"^1 +12 +100$", ledger, re.M) and "{" not in ledger, ledger
    assert "does not exist" in run("job", "show", "zzzzz", code=3)[1]
    run("job", "delete", job)
    run("job", "show", job, code=3)
    assert "is its agent running?" in run("job", "list", code=5, SHOAL_NODE="https://127.0.0.1:1")[1]
    assert run("node", "list", SHOAL_NODE="https://127.0.0.1:1," + server.url())[0]
    assert 'did you mean "shoal job list"' in run("job", "lst", code=2)[1]
    assert "did you mean --framework" in run("job", "run", "--framwork", "x", code=2)[1]
    assert "is not in" in run(*submitted[:5], "nope.py", *submitted[6:], code=2)[1]
    assert "unknown framework" in run("job", "run", "--framework", "x", *submitted[4:], code=2)[1]
    for words in (("job", "list", "--state", "NONE"), ("job", "list", "--since", "whenever"), ("job", "logs", job, "--which", "none"),
                  ("service", "scale", "echo", "1e3"), ("service", "deploy", "a/b", "--package", str(model))):
        run(*words, code=2)
    assert json.loads(run("job", "wait", submit(server, b"x"), "-o", "json")[0])["hasEnded"] is True
    ended = submit(server, b"y")
    run("job", "wait", ended)
    assert "had ended: FINISHED" in run("job", "stop", ended)[1]
    assert json.loads(run("-o", "json", "job", "stop", ended)[0]) == {"stopped": False, "state": "FINISHED"}
    assert "say so with --yes" in run("job", "delete", "--all", code=2)[1]
    run("job", "show", ended)
    run("job", "delete", "--all", "--yes")
    run("job", "show", ended, code=3)
    run("logoff")
    run("job", "list", code=4)


@pytest.mark.parametrize("members, code, first, detail", [
    ("3 0 1", 0, "ok", None),
    ("1 0 1", 0, "ok", None),
    ("4 1 1", 0, "ok", None),
    ("1 2 1", 5, "cut off", "2 other hosts"),
    ("1 1 0", 5, "cut off", "1 other host,"),
    ("2 3 0", 5, "no majority", "2 of 5 hosts"),
])
def test_a_node_that_is_not_well_says_so_first(tmp_path, monkeypatch, members, code, first, detail):
    monkeypatch.setenv("API_FAKE_MEMBERS", members)
    server = Server(tmp_path, False)
    env = {"HOME": str(tmp_path), "SHOAL_NODE": server.url(), "SHOAL_USER": "ada", "SHOAL_PASSWORD": "secret"}
    for words in (["status"], ["status", "-o", "json"]):
        done = subprocess.run([str(OUT / "shoal"), *words], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done
        if len(words) > 1:
            said = json.loads(done.stdout)
            assert said["status"] == first and (detail or "") in said.get("detail", ""), done
            assert set(said) <= set(STATUS["properties"]) and set(said) >= set(STATUS["required"])
            continue
        lines = [line.split(None, 1) for line in done.stdout.splitlines()]
        assert lines[0] == ["status", first], done
        assert (lines[1][0] == "detail" and detail in lines[1][1]) if detail else lines[1][0] == "version", done
    assert server.stop() == 0


@pytest.mark.parametrize("words, code, said", [
    (["--version"], 0, "shoal "),
    (["-V"], 0, "shoal "),
    (["-o", "json", "--version"], 0, '{"version":"'),
    (["--output", "json", "version"], 0, '{"version":"'),
    (["--output=json", "job", "lst"], 2, '{"error":"no command \\"job lst\\"; did you mean'),
    (["-q"], 2, "Commands:"),
    (["-x"], 2, "-x is no option of every command"),
    (["--nod", "x", "job", "list"], 2, "did you mean --node?"),
    (["job", "list", "-x"], 2, "`shoal help job list` lists them"),
    (["job", "cancel", "41z"], 2, 'did you mean "shoal job stop"?'),
    (["job", "ls"], 2, 'did you mean "shoal job list"?'),
    (["job"], 2, "shoal job wants a verb: run, list, show"),
    (["job", "frobnicate"], 2, "shoal job takes run, list, show"),
    (["nodes"], 2, 'did you mean "shoal node list"?'),
    (["frobnicate"], 2, "`shoal help` lists them"),
    (["job", "run", "--workers", "abc", "--framework", "x", "--model-main", "y"], 2, '--workers: "abc" is not a number'),
    (["job", "run", "--workers", "0", "--framework", "x", "--model-main", "y"], 2, '--workers: "0" is not a number'),
    (["job", "run", "--device", "tpu", "--framework", "x", "--model-main", "y"], 2, '--device: "tpu" is not cpu or gpu'),
    (["job", "run", "--env", "A", "--framework", "x", "--model-main", "y"], 2, '--env: "A" is not NAME=VALUE'),
    (["job", "run", "--priority", "-1", "--framework", "x", "--model-main", "y"], 2, "--priority: "),
    (["job", "run", "--framework", "x", "main.py"], 2, "usage: shoal job run [--OPTION...] [-- WORD...]"),
    (["job", "run", "--framework", "x", "--model-main", "y", "--model-dir", __file__], 2, "is a file, and a directory is wanted"),
    (["node", "list", "--node", "https://127.0.0.2", "-u", "a", "--password", "b", "--insecure"], 5, "--node https://HOST:9243"),
    (["node", "list", "--node", "https://[::1]", "-u", "a", "--password", "b", "--insecure"], 5, "--node https://HOST:9243"),
])
def test_words_that_people_type(tmp_path, words, code, said):
    """What is wrong is said by the name that was typed, with the next thing to type, and nothing is asked of a node."""
    done = subprocess.run([str(OUT / "shoal"), *words], env={"HOME": str(tmp_path), "SHOAL_NODE": "https://127.0.0.1:1"},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    assert said in (done.stdout if code == 0 else done.stderr), done


def test_a_worker_that_the_job_has_not_is_named(tmp_path):
    server = Server(tmp_path, False, job_ms=600_000)
    env = {"HOME": str(tmp_path), "SHOAL_NODE": server.url(), "SHOAL_USER": "ada", "SHOAL_PASSWORD": "secret"}
    (tmp_path / "main.py").write_text("print(1)\n")

    def run(*words, code=0):
        done = subprocess.run([str(OUT / "shoal"), *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, (words, done)
        return done.stdout + done.stderr

    job = run("job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--name", "pending", "--workers", "2",
              "--env", "A=b c", "--", "it's here", "x")
    job = re.search(r"shoal-\w{16}", job).group(0)
    for words in (("--rank", "1"), ("--task", "2"), ("--task", "0"), ("--rank", "all"), ()):
        assert run("job", "logs", job, *words) == "", words
    assert "at most 2 workers, of ranks from 0 on" in run("job", "logs", job, "--rank", "2", code=3)
    assert "at most 2 workers, and task 0" in run("job", "logs", job, "--task", "99", code=3)
    assert run("job", "show", "zz", code=3).startswith("shoal: job ")
    shown = run("job", "show", job)
    assert "_QUOTE_" not in shown and "--msd-env 'A=b c'" in shown and "-- 'it'\\''s here' x" in shown, shown
    assert server.stop() == 0


def test_what_a_node_refuses_is_said_by_the_name_that_was_typed(server, tmp_path):
    env = {"HOME": str(tmp_path), "SHOAL_NODE": server.url(), "SHOAL_USER": "ada", "SHOAL_PASSWORD": "secret",
           "SHOAL_CA": str(tmp_path / "tls.crt") if server.tls else ""}
    (tmp_path / "main.py").write_text("print(1)\n")
    words = ["job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--workers", "4000000"]
    done = subprocess.run([str(OUT / "shoal"), *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr[:16]) == (2, "shoal: --workers"), done


def test_words_of_a_job_make_no_lines_and_give_no_orders(server, tmp_path):
    env = {"HOME": str(tmp_path), "SHOAL_NODE": server.url(), "SHOAL_USER": "ada", "SHOAL_PASSWORD": "secret", "SHOAL_INSECURE": "1"}
    words = "--exec-start PyTorch --model-main main.py _QUOTE_a\nstate FINISHED\x9b2J\u202ecba\x1b]0;x_QUOTE_ "
    answer = server.post([("data", None, json.dumps({"args": words}).encode()), ("file", "x.tar", GOOD)], "")
    job = json.loads(answer.split(b"\r\n\r\n", 1)[1])["id"]

    def run(*more):
        return subprocess.run([str(OUT / "shoal"), *more], env=env, capture_output=True, text=True, timeout=60)

    lines = run("job", "show", job).stdout.splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith("args ")][0]
    assert lines[at + 1] == " " * 17 + "state FINISHED\\x9b2J\\u202ecba\\x1b]0;x' "
    assert len([line for line in lines if line.startswith("state ")]) == 1
    shown = run("job", "show", job, "-o", "json").stdout
    assert json.loads(shown)["args"] == words and shown.isascii()
    assert run("job", "list", "--name", "a\nb\u202e").stdout.count("\n") == 1
    said = run("job", "list", "--state", "\x9b2J\u202e").stderr
    assert said.startswith("shoal: ") and said.count("\n") == 1 and said[:-1].isprintable(), said


def test_bytes_from_standard_input_reach_a_model_whole(server, tmp_path):
    env = {"HOME": str(tmp_path), "SHOAL_NODE": server.url(), "SHOAL_USER": "ada", "SHOAL_PASSWORD": "secret", "SHOAL_INSECURE": "1"}
    for body in (b"no NUL\n", b"a NUL\0 and more\n"):
        done = subprocess.run([str(OUT / "shoal"), "service", "test", "echo", "--input", "-"], env=env, input=body,
                              capture_output=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, body), done


def test_output_that_cannot_be_written_fails(server, tmp_path):
    env = {"HOME": str(tmp_path), "SHOAL_NODE": server.url(), "SHOAL_USER": "ada", "SHOAL_PASSWORD": "secret",
           "SHOAL_CA": str(tmp_path / "tls.crt") if server.tls else ""}
    with open("/dev/full", "w") as full:
        for words in (["version"], ["node", "list"], ["job", "list"], ["frameworks"], ["top"]):
            done = subprocess.run([str(OUT / "shoal"), *words], env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            assert (done.returncode, "cannot be written" in done.stderr) == (1, True), (words, done)


def test_whoever_stops_waiting_hears_that_the_job_runs_on(tmp_path):
    server = Server(tmp_path, True, job_ms=600_000)
    env = {"HOME": str(tmp_path), "SHOAL_NODE": server.url(), "SHOAL_USER": "ada", "SHOAL_PASSWORD": "secret",
           "SHOAL_CA": str(tmp_path / "tls.crt") if server.tls else ""}
    (tmp_path / "main.py").write_text("print(1)\n")
    words = ["job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--name", "pending", "--wait"]
    with subprocess.Popen([str(OUT / "shoal"), *words], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as waiting:
        job = waiting.stdout.readline().strip()
        assert "submitted" in waiting.stderr.readline()
        waiting.stderr.readline()  # its state: it waits now
        waiting.send_signal(signal.SIGINT)
        assert "%s runs on; stop it with `shoal job stop %s`" % (job, job) in waiting.stderr.read()
    assert waiting.returncode == 130
    assert server.stop() == 0
