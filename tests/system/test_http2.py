"""HTTP/2 at the address of the API: the same answers as over HTTP/1, and what no honest client sends. Before a backend that lives
in memory (api_fake)."""

import base64
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import struct
import subprocess
import time

import pytest
from h2raw import (CALM, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, PUSH_PROMISE, REFUSED_STREAM, RST_STREAM, SETTINGS,
                   WINDOW_UPDATE, Client, frame)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release"))
BASE = "/platform/rest/deeplearning/v1"
BASIC = ("authorization", "Basic " + base64.b64encode(b"ada:secret").decode())
H2 = ssl.create_default_context()
H2.check_hostname = False
H2.verify_mode = ssl.CERT_NONE
H2.set_alpn_protocols(["h2"])


class Server:
    def __init__(self, folder, tls, **env):
        folder.mkdir()
        command = [str(OUT / "tests" / "system" / "api_fake"), "0", str(folder)] + ([] if tls else ["plain"])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "API_FAKE_MS": "300", **env})
        self.port = int(self.process.stdout.readline().split()[1])
        self.tls = tls

    def client(self, **named):
        return Client(("127.0.0.1", self.port), H2.wrap_socket if self.tls else None, **named)

    def connect(self):
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        return H2.wrap_socket(sock) if self.tls else sock

    def url(self, path):
        return "http%s://127.0.0.1:%d%s" % ("s" if self.tls else "", self.port, path)

    def resident_mib(self):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path("/proc/%d/status" % self.process.pid).read_text()).group(1)) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


@pytest.fixture(scope="module", params=["tls", "plain"])
def server(request, tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("h2") / "data", request.param == "tls")
    yield made
    assert made.stop() == 0  # it ends by itself, whatever the clients left behind


@pytest.fixture
def client(server):
    with server.client() as made:
        yield made


def metric(server, name):
    with server.client() as c:
        c.ask(1, "/v1/metrics", headers=[BASIC])
        return float(re.search(r"^%s (\S+)" % name, c.answer(1)[1].decode(), flags=re.M).group(1))


def curl(server, path, *options, body=None):
    command = ["curl", "-sk", "-u", "ada:secret", "-w", "\n%{http_version} %{http_code}", *options, server.url(path)]
    out = subprocess.run(command, input=body, capture_output=True, timeout=60, check=True).stdout
    text, last = out.rsplit(b"\n", 1)
    return last.decode().split(), text


def test_curl_gets_the_same_over_both(server):
    how = "--http2" if server.tls else "--http2-prior-knowledge"
    for path in (BASE + "/conf", "/healthz", "/v2", "/nope", "/v1/jobs"):
        old, new = curl(server, path, "--http1.1"), curl(server, path, how)
        assert old[0][0] == "1.1" and new[0][0] == "2"
        assert old[0][1] == new[0][1] and (old[1] == new[1] or path == "/v1/jobs"), path
    if not server.tls:  # an offer to upgrade is not taken up
        assert curl(server, "/healthz", "--http2")[0] == ["1.1", "200"]


def test_an_upload_and_its_log(server, tmp_path):
    (tmp_path / "main.py").write_bytes(b"print(1)\n" + b"#" * 3_000_000)
    how = "--http2" if server.tls else "--http2-prior-knowledge"
    (version, status), text = curl(server, BASE + "/execs/?args=--exec-start%20PyTorch%20--model-main%20main.py", how,
                                   "-F", "file=@%s" % (tmp_path / "main.py"))
    assert (version, status) == ("2", "200"), text
    job = json.loads(text)["id"]
    assert curl(server, BASE + "/execs/" + job, how)[0] == ["2", "200"]
    assert curl(server, "/v1/jobs/%s/log?follow=true" % job, how)[0] == ["2", "200"]


@pytest.mark.parametrize("method, path, body, code", [("HEAD", "/nope", None, None), ("POST", "/grpc.health.v1.Health/Check", b"", "3")])
def test_a_call_of_grpc_that_ends_at_once_harms_nobody(tmp_path, method, path, body, code):
    """A HEAD, and a call without its message: the request ends with its answer. What was freed is filled with other bytes, so that a
    use of it shows."""
    server = Server(tmp_path / "data", tls=False, MALLOC_PERTURB_="165")
    try:
        with server.client() as client:
            for stream in range(1, 41, 2):
                client.ask(stream, path, method, [("content-type", "application/grpc")], body=body)
                headers, _, trailers = client.answer(stream)
                assert headers[":status"] == "200" and {**headers, **trailers}.get("grpc-status") == code
            client.ask(41)
            assert client.status(41) == 200
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_a_client_whose_events_are_too_much_loses_its_connection_alone(tmp_path, version):
    """The write that gives its connection up ends its request, which is not touched after that: what was freed is filled as above."""
    server = Server(tmp_path / "data", tls=False, MALLOC_PERTURB_="165")
    try:
        command = ["curl", "-s", version, "-u", "ada:secret", "-H", "Accept: text/event-stream", "-d", "{}", "-o", "/dev/null",
                   server.url("/v2/models/pour/infer")]
        assert subprocess.run(command, timeout=60).returncode != 0
        with server.client() as client:
            client.ask(1)
            assert client.status(1) == 200
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("newer, first, second", [("done", b"\xf3\x03", b"\xc8\x01"), ("full", b"\xc8\x01", b"\xf7\x03")])
def test_a_newer_request_of_a_stream_ends_the_older_ones_once_a_model_has_answered_it(client, newer, first, second):
    """The older one is 499 then; where the newer one is refused (503), the older one's answer is still wanted."""
    def message(name, data):
        proto = b"\x0a\x01" + name + b"\x12" + bytes([len(data)]) + data
        return b"\0" + struct.pack(">I", len(proto)) + proto

    client.ask(1, "/dlim.v1.StreamInference/Infer", "POST", [("content-type", "application/grpc"), ("model-name", "echo"), BASIC],
               body=message(b"a", b"wait") + message(b"b", newer.encode()))
    _, body, trailers = client.answer(1)
    assert trailers["grpc-status"] == "0"
    assert b"\x0a\x01a\x18" + first in body and b"\x0a\x01b\x18" + second in body, body


@pytest.mark.parametrize("version", ["--http1.1", "--http2-prior-knowledge"])
def test_a_slow_client_gets_all_of_a_large_answer(tmp_path, version):
    """It takes some bytes all the time, and the whole answer takes much longer than a client may take nothing."""
    server = Server(tmp_path / "data", tls=False, API_FAKE_WRITE_MS="3000")
    body = os.urandom(1 << 20) * 24
    (tmp_path / "body").write_bytes(body)
    try:
        command = ["curl", "-sS", "-u", "ada:secret", version, "--data-binary", "@%s" % (tmp_path / "body"), server.url("/v2/models/echo/infer")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
            got = b""
            while piece := client.stdout.read(1 << 16):
                got += piece
                if len(got) < 16 << 20:
                    time.sleep(0.02)
        assert client.returncode == 0 and got == body, len(got)
    finally:
        assert server.stop() == 0


def test_requests_at_once_on_one_connection(client):
    for stream in range(1, 199, 2):
        client.ask(stream, "/healthz" if stream % 4 == 1 else "/nope")
    seen = {}
    while len(seen) < 99:
        kind, flags, stream, payload = client.read()
        if kind == HEADERS:
            seen[stream] = dict(client._decoder.decode(payload))[":status"]
    assert seen == {stream: "200" if stream % 4 == 1 else "404" for stream in range(1, 199, 2)}


def test_head_is_get_without_the_content(client):
    for stream, path in ((1, "/healthz"), (5, "/v2"), (9, "/nope")):
        client.ask(stream, path, headers=[BASIC])
        got = [client.answer(stream)]
        client.ask(stream + 2, path, "HEAD", headers=[BASIC])
        got.append(client.answer(stream + 2))
        assert got[0][0] == got[1][0] and got[0][1] and not got[1][1], got


STRICT = {
    "no authority": (-1, dict(authority=None)),
    "an authority with a slash": (-1, dict(authority="a/b")),
    "a Host that differs": (400, dict(headers=[("host", "b")])),
    "a Host alone": (200, dict(authority=None, headers=[("host", "b")])),
    "a fragment": (400, dict(path="/healthz#x")),
    "a blank in the path": (-1, dict(path="/hea lthz")),
    "an odd Expect": (417, dict(headers=[("expect", "magic")])),
    "a line break in a value": (400, dict(headers=[("x", "a\nb")])),
    "a NUL in a value": (400, dict(headers=[("x", "a\0b")])),
    "Connection": (-1, dict(headers=[("connection", "close")])),
    "Transfer-Encoding": (-1, dict(headers=[("transfer-encoding", "chunked")])),
    "101 headers": (431, dict(headers=[("x%d" % i, "a") for i in range(101)])),
    "a large head": (431, dict(headers=[("x", "a" * 40000)])),
    "another method": (405, dict(method="FROB")),
    "two who ask": (400, dict(headers=[BASIC, ("authorization", "Bearer x")])),
    "two types": (400, dict(headers=[("content-type", "a/b"), ("content-type", "a/c")])),
    "a compressed body": (415, dict(path="/auth/v1/logon", method="POST", headers=[("content-encoding", "gzip")], body=b"abc")),
    "no credentials": (401, dict(path=BASE + "/conf")),
    "a large body of a stranger": (413, dict(path="/auth/v1/logon", method="POST", body=b"x" * 5000)),
    "a length that is another": (-1, dict(path="/auth/v1/logon", method="POST", headers=[("content-length", "9")], body=b"abc")),
}


@pytest.mark.parametrize("name", STRICT)
def test_as_strict_as_http1(server, name):
    """Below 0: the stream is reset (by the library, where the request is no HTTP)."""
    want, named = STRICT[name]
    with server.client() as c:
        if name == "a large head":
            head = c.head(headers=named["headers"])
            pieces = [head[at:at + 16384] for at in range(0, len(head), 16384)]
            c.send(HEADERS, END_STREAM | (END_HEADERS if len(pieces) == 1 else 0), 1, pieces[0])
            for piece in pieces[1:]:
                c.send(CONTINUATION, END_HEADERS if piece is pieces[-1] else 0, 1, piece)
        else:
            c.ask(1, **named)
        got = c.status(1)
        assert got == want or (want < 0 and got in (-1, 400)), got
        c.ask(3)
        assert c.status(3) == 200  # the connection is as it was


WRONG = {
    "no preface": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a preface and a half": PREFACE + PREFACE,
    "no SETTINGS first": PREFACE + frame(PING, payload=b"x" * 8),
    "a frame too large": PREFACE + frame(SETTINGS) + b"\x00\xff\xff" + frame(DATA)[3:],
    "DATA on stream 0": PREFACE + frame(SETTINGS) + frame(DATA, 0, 0, b"x"),
    "DATA on an idle stream": PREFACE + frame(SETTINGS) + frame(DATA, 0, 5, b"x"),
    "an even stream": PREFACE + frame(SETTINGS) + frame(HEADERS, END_HEADERS | END_STREAM, 2, b"\x82\x87\x84"),
    "a head that does not decode": PREFACE + frame(SETTINGS) + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
    "a lone CONTINUATION": PREFACE + frame(SETTINGS) + frame(CONTINUATION, END_HEADERS, 1, b"\x82"),
    "a window of nothing": PREFACE + frame(SETTINGS) + frame(WINDOW_UPDATE, payload=b"\0\0\0\0"),
    "a PING of seven bytes": PREFACE + frame(SETTINGS) + frame(PING, payload=b"x" * 7),
    "PRIORITY on itself": PREFACE + frame(SETTINGS) + frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 1)) + frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2\x82"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_http2_ends_the_connection(server, name):
    if name == "no preface" and not server.tls:
        pytest.skip("that is HTTP/1 here")
    with server.connect() as sock:
        sock.sendall(WRONG[name])
        while sock.recv(1 << 16):
            pass  # until it is closed
    with server.client() as c:
        c.ask(1)
        assert c.status(1) == 200


def test_one_byte_at_a_time(server):
    with server.client() as c:
        for byte in frame(HEADERS, END_HEADERS | END_STREAM, 1, c.head()):
            c.sock.sendall(bytes([byte]))
        assert c.status(1) == 200
    if not server.tls:
        with server.connect() as sock:
            for byte in PREFACE + frame(SETTINGS):
                sock.sendall(bytes([byte]))
            assert sock.recv(9)[3] == SETTINGS


def flood(server, name, piece, count, first=b""):
    """Sends `piece(n)` until the server has had enough; the code that it ends with."""
    before = metric(server, "shoal_http2_calmed_total")
    with server.client() as c:
        try:
            c.sock.sendall(first)
            for number in range(count):
                c.sock.sendall(piece(number, c))
        except OSError:
            pass
        code = c.end()
    assert code in (CALM, None), name
    assert metric(server, "shoal_http2_calmed_total") == before + 1, name
    with server.client() as c:
        c.ask(1)
        assert c.status(1) == 200


def reset(number, c):
    stream = 2 * number + 1
    return frame(HEADERS, END_HEADERS, stream, c.head("/auth/v1/logon", "POST")) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))


FLOODS = {
    "PING": lambda n, c: frame(PING, payload=b"x" * 8) * 100,
    "SETTINGS": lambda n, c: frame(SETTINGS, payload=struct.pack(">HI", 1, n % 2 * 4096)) * 100,
    "PRIORITY": lambda n, c: frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 1)) * 100,
    "WINDOW_UPDATE": lambda n, c: frame(WINDOW_UPDATE, payload=b"\0\0\0\1") * 100,
    "unknown frames": lambda n, c: frame(0xBE, 0, 0, b"") * 100,
    "rapid reset": reset,
    "empty DATA": lambda n, c: frame(DATA, 0, 1) * 100,
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_end_the_connection(server, name):
    with server.client() as c:
        head = frame(HEADERS, END_HEADERS, 1, c.head("/auth/v1/logon", "POST"))
    flood(server, name, FLOODS[name], 1000, head if name == "empty DATA" else b"")


def test_a_head_without_end(server):
    flood(server, "CONTINUATION", lambda n, c: frame(CONTINUATION, 0, 1, b""), 100, frame(HEADERS, END_STREAM, 1, b"\x82"))
    big = frame(HEADERS, END_STREAM, 1, b"\x82") + frame(CONTINUATION, 0, 1, b"\x40\x01a\x7f\x81\x7f" + b"a" * 16000)
    flood(server, "CONTINUATION of much", lambda n, c: frame(CONTINUATION, 0, 1, b"a" * 16000), 100, big)


def test_a_small_head_that_decodes_to_a_large_one(server):
    """A value of 4 KB enters the table once, and is named 10,000 times."""
    before = metric(server, "shoal_http2_calmed_total")
    with server.client() as c:
        value = b"a" * 3900
        head = c.head() + b"\x40\x01x" + b"\x7f" + bytes([0xBD, 0x1D]) + value + b"\xbe" * 10000
        assert (len(value) - 127) & 0x7F | 0x80 == 0xBD and (len(value) - 127) >> 7 == 0x1D
        c.send(HEADERS, END_HEADERS | END_STREAM, 1, head)
        assert c.end() in (CALM, None)
    assert metric(server, "shoal_http2_calmed_total") == before + 1


def test_a_client_that_does_not_read_holds_little(server):
    """Its windows are closed: the answers wait, then its requests are refused."""
    before = server.resident_mib()
    with server.client(settings=struct.pack(">HI", 4, 0)) as c:
        for stream in range(1, 4001, 2):
            c.send(HEADERS, END_HEADERS | END_STREAM, stream, c.head("/v1/metrics", headers=[BASIC]))
        refused = 0
        while refused == 0:
            kind, _, _, payload = c.read()
            refused += kind == RST_STREAM and payload == struct.pack(">I", 7)
        assert server.resident_mib() - before < 24
    assert metric(server, "shoal_http_connections_open") <= 2


SHARE = 1024  # SHOAL_HTTP_SHARE_REQUESTS_MAX: of the requests in hand, for one address and for one user


def hold(server, *sources):
    """As many requests as a share has, whose bodies do not end, on connections from these addresses in turn."""
    clients = []
    for number in range(SHARE):
        if number % 100 == 0:
            clients.append(server.client(source=(sources[len(clients) % len(sources)], 0)))
        clients[-1].send(HEADERS, END_HEADERS, 2 * (number % 100) + 1, clients[-1].head("/v1/services/echo/scale?replicas=1", "POST", [BASIC]))
    for client in clients:  # answered after all that came before it
        client.send(PING, payload=b"x" * 8)
        while client.read()[0] != PING:
            pass
    return clients


def until_status(server, source, wanted):
    end = time.monotonic() + 10
    status = None
    while status != wanted and time.monotonic() < end:
        with server.client(source=(source, 0)) as client:
            client.ask(1, "/v1/jobs", headers=[BASIC])
            status = client.status(1)
    assert status == wanted


def test_an_address_has_a_share_of_the_requests_in_hand(server):
    clients = hold(server, "127.0.0.5")
    try:
        with server.client(source=("127.0.0.5", 0)) as one, server.client(source=("127.0.0.6", 0)) as other:
            one.ask(1)
            other.ask(1)
            assert (one.status(1), other.status(1)) == (-REFUSED_STREAM, 200)
    finally:
        for client in clients:
            client.sock.close()
    until_status(server, "127.0.0.5", 200)  # what is given up counts no more


def test_a_user_has_a_share_of_the_requests_in_hand(server):
    """From whatever addresses."""
    clients = hold(server, "127.0.0.5", "127.0.0.6")
    try:
        with server.client(source=("127.0.0.7", 0)) as client:
            client.ask(1, "/v1/jobs", headers=[BASIC])
            headers, body, _ = client.answer(1)
            assert headers[":status"] == "503" and b"of this user" in body
            client.ask(3, "/v1/jobs", headers=[("authorization", "Basic " + base64.b64encode(b"eve:secret").decode())])
            assert client.status(3) == 200
    finally:
        for client in clients:
            client.sock.close()
    until_status(server, "127.0.0.7", 200)


EVE, ADMIN = (("authorization", "Basic " + base64.b64encode(user + b":secret").decode()) for user in (b"eve", b"admin"))
SUBMIT = BASE + "/execs/?args=--exec-start%20PyTorch%20--model-main%20main.py"
MULTIPART = ("content-type", "multipart/form-data; boundary=XX")
PART = b'--XX\r\nContent-Disposition: form-data; name="file"; filename="main.py"\r\n\r\nprint(1)'


def test_a_user_does_not_take_all_places_of_uploads(server):
    """Sixteen of the eighty are for users who have few; beyond that the slowest of who has most gives way, of that user's connection too."""
    with server.client(source=("127.0.0.5", 0)) as eve, server.client(source=("127.0.0.6", 0)) as ada, server.client(source=("127.0.0.7", 0)) as admin:
        for number in range(65):
            stream = 2 * number + 1
            eve.send(HEADERS, END_HEADERS, stream, eve.head(SUBMIT, "POST", [EVE, MULTIPART]))
            eve.send(DATA, 0, stream, PART + (b"#" * 1000 if number != 40 else b""))
        headers, body, _ = eve.answer(129)
        assert headers[":status"] == "503" and b"64 uploads in hand" in body
        for stream in range(1, 33, 2):
            ada.send(HEADERS, END_HEADERS, stream, ada.head(SUBMIT, "POST", [BASIC, MULTIPART]))
            ada.send(DATA, 0, stream, PART)
        ada.ask(33)
        assert ada.status(33) == 200  # what came before was taken
        admin.ask(1, SUBMIT, "POST", [ADMIN, MULTIPART], body=PART + b"\r\n--XX--\r\n")
        assert admin.status(1) == 200
        headers, body, _ = eve.answer(81)
        assert headers[":status"] == "503" and b"gave way to another user's" in body
        for client, stream in ((eve, 1), (ada, 1)):
            client.send(DATA, END_STREAM, stream, b"\r\n--XX--\r\n")
            assert client.status(stream) == 200
    until_metric(server, "shoal_http_uploads_open", 0)


def until_metric(server, name, wanted):
    end = time.monotonic() + 10
    while metric(server, name) != wanted:
        assert time.monotonic() < end, name


def test_bodies_of_strangers_at_once_are_few(client):
    for stream in (1, 3, 5):
        client.send(HEADERS, END_HEADERS, stream, client.head("/auth/v1/logon", "POST", [("content-length", "3")]))
    assert client.status(5) == 503
    client.send(DATA, END_STREAM, 1, b"abc")
    assert client.status(1) in (400, 401)


def test_a_body_that_nobody_takes_is_thrown_away(client):
    """Answered before its end, and no reset follows while the rest still comes, also when that is more than the windows hold."""
    client.send(HEADERS, END_HEADERS, 1, client.head("/nope", "POST"))
    assert client.status(1) == 404
    window = 128 << 10  # the stream's; the connection's is larger
    for piece in [b"x" * 16384] * 64:
        while window < len(piece):
            kind, _, stream, payload = client.read()
            assert kind in (SETTINGS, WINDOW_UPDATE)
            window += struct.unpack(">I", payload)[0] if kind == WINDOW_UPDATE and stream == 1 else 0
        client.send(DATA, 0, 1, piece)
        window -= len(piece)
    client.send(DATA, END_STREAM, 1, b"x")
    client.ask(3)
    while True:
        kind, _, stream, _ = client.read()
        assert kind != RST_STREAM
        if kind == HEADERS and stream == 3:
            return


def test_a_body_that_does_not_end_is_not_wanted_any_more(client):
    client.send(HEADERS, END_HEADERS, 1, client.head("/nope", "POST"))
    assert client.status(1) == 404
    frames = iter(client.read, None)
    assert next(f for f in frames if f[0] == RST_STREAM) == (RST_STREAM, 0, 1, b"\0\0\0\0")
    client.send(DATA, 0, 1, b"x" * 1000)
    client.ask(3)
    assert client.status(3) == 200


EARLY = {
    "/nope": "404",
    "/healthz": "405",
    "/v1/tickets": "401",
    BASE + "/execs": "401",
    "/auth/v1/logon": "413",
}


@pytest.mark.parametrize("size", [0, 200_000, 3_000_000])
@pytest.mark.parametrize("how", ["--http1.1", "--http2"])
def test_curl_shows_an_error_that_came_before_its_body_was_read(server, tmp_path, how, size):
    (tmp_path / "body").write_bytes(b"x" * size)
    how = "--http2-prior-knowledge" if how == "--http2" and not server.tls else how
    for path, status in EARLY.items():
        for body in (["--data-binary", "@body"], ["-F", "file=@body"], ["-X", "POST", "-T", "-"]):
            with open(tmp_path / "body", "rb") as stdin:
                said = subprocess.run(["curl", "-sSk", how, "-w", "%{http_code}", *body, server.url(path)], cwd=tmp_path, timeout=60,
                                      stdin=stdin, capture_output=True, text=True)
            want = "401" if path == "/auth/v1/logon" and size == 0 else status
            assert said.stdout.startswith("Error %s: " % want) and said.stdout.endswith(want), (path, body, said)


def test_many_clients_at_once(server):
    def work(number):
        with server.client() as c:
            for stream in range(1, 101, 2):
                c.ask(stream, "/v2", headers=[BASIC])
                assert c.status(stream) == 200
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(16))) == 120


def test_goaway_when_it_stops(tmp_path):
    server = Server(tmp_path / "data", True)
    with server.client() as c:
        c.ask(1)
        assert c.status(1) == 200
        server.process.send_signal(signal.SIGTERM)
        assert c.end() == 0
    assert server.process.wait(timeout=20) == 0
    assert GOAWAY == 7
