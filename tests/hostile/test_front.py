"""What a stranger may try against the address of the API: hellos, silence, halves of requests, passwords. One host is attacked
all the time; its loop's longest turn under all of it is measured at the end."""

import base64
import concurrent.futures
import http.client
import json
import pathlib
import re
import select
import signal
import socket
import ssl
import time

import h2raw
import pytest
from helpers import ended, hello, log_of, submit
from mesh import PASSWORD, TLS, Mesh
from system_conftest import OUT

TURN_S_MAX = 0.05
SILENT = 1024  # as many as an agent takes at all
HALVES = 1000
HALVES_MIB_MAX = 60


@pytest.fixture(scope="module")
def target():
    """One host that is a mesh of its own."""
    with Mesh(OUT / "shoal") as mesh:
        mesh.grow(("alpha",))
        yield mesh.hosts[0]


def connect(host, encrypted=True):
    raw = socket.create_connection((host.address, host.api_port), timeout=20)
    return TLS.wrap_socket(raw) if encrypted else raw


def ask(host, path="/healthz", **headers):
    """(status, headers, body) of one request on a connection of its own."""
    client = http.client.HTTPSConnection(host.address, host.api_port, timeout=20, context=TLS)
    try:
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        client.close()


def basic(user, password):
    return "Basic " + base64.b64encode(("%s:%s" % (user, password)).encode()).decode()


def metric(host, name):
    status, _, body = ask(host, "/v1/metrics", Authorization="Bearer " + host.mesh.token(host))
    assert status == 200
    return float(re.search(r"^%s(?:\{.*\})? (\S+)" % name, body.decode(), flags=re.M).group(1))


def resident_mib(host):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path("/proc/%d/status" % host.process.pid).read_text()).group(1)) / 1024


def honest(host, count=40):
    """How many of so many requests are answered, one after the other."""
    good = 0
    for _ in range(count):
        try:
            good += ask(host)[0] == 200
        except OSError:
            pass
    return good


def within_the_bound(host):
    """No turn since the agent's start was long. What counts is what the loop's thread has computed in one: on a machine with two
    cores and other tests a turn also waits for its core."""
    longest = metric(host, "shoal_loop_turn_cpu_longest_seconds")
    assert longest < TURN_S_MAX, "a turn of %d ms" % (longest * 1000)


def test_silent_sockets_take_no_place_from_those_that_speak(target):
    silent = []
    try:
        for _ in range(SILENT):
            silent.append(socket.create_connection((target.address, target.api_port), timeout=20))
        assert honest(target) == 40
        assert metric(target, "shoal_http_closed_idle_total") > 0
    finally:
        for sock in silent:
            sock.close()


FORGED = """
import glob, os, struct, time
print("x", flush=True)
os.write(2, b"y\\n")
order = None
while not order:
    order = glob.glob(os.environ["RESULT_DIR"] + "/log/app.*/stdout.order")
COUNT = 400000
open(order[0][:-6], "ab").write(b"o" * COUNT)
open(order[0][:-12] + "stderr", "ab").write(b"e" * COUNT)
with open(order[0], "wb") as file:
    file.write(b"".join(struct.pack("<QQQQ", i | 1 << 63, i - 1, i, i) for i in range(1, COUNT)))
open(os.environ["RESULT_DIR"] + "/ready", "w").close()
time.sleep(300)
"""


def running(target, tmp_path, text):
    (tmp_path / "main.py").write_text(text)
    return submit(target.mesh, target, tmp_path)


def user_asks(target, path, count):
    """So many connections, each of which asks for it at once."""
    words = "GET %s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n" % (path, target.mesh.token(target))
    socks = [connect(target) for _ in range(count)]
    for sock in socks:
        sock.sendall(words.encode())
    return socks


@pytest.mark.alone
def test_a_log_of_short_pieces_makes_no_turn_long(target, tmp_path):
    """A job that prints to both streams by turns, or says that it did, and clients who all read that."""
    token = "Bearer " + target.mesh.token(target)
    job = running(target, tmp_path, FORGED)
    target.mesh.until(lambda: any(file["path"] == "ready" for file in json.loads(ask(target, "/v1/jobs/%s/files" % job, Authorization=token)[2])["files"]),
                      60, "the log is forged")
    socks = user_asks(target, "/v1/jobs/%s/log?which=outerr&cursor=5000" % job, 40)
    try:
        for sock in socks:
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            body = answer.read()
            assert answer.status == 200 and len(body) > 4000 and body.replace(b"oe", b"") in (b"", b"o", b"e", b"eo"), body[:20]
    finally:
        for sock in socks:
            sock.close()
        target.mesh.shoal("job", "stop", job, "--node", target.url)
    within_the_bound(target)


WAITS = 64  # SHOAL_LOG_WAITS_USER_MAX


def test_waits_for_logs_are_bounded_and_end_with_their_clients(target, tmp_path):
    token = "Bearer " + target.mesh.token(target)
    job = running(target, tmp_path, "import time\nprint('hello', flush=True)\ntime.sleep(300)\n")
    target.mesh.until(lambda: b"hello" in ask(target, "/v1/jobs/%s/log" % job, Authorization=token)[2], 60, "it runs")
    socks = user_asks(target, "/v1/jobs/%s/log?cursor=6&wait_ms=30000" % job, WAITS + 6)
    try:
        target.mesh.until(lambda: metric(target, "shoal_http_requests_open") == WAITS + 1, 10, "the others are answered")
        answered = select.select(socks, [], [], 0)[0]
        assert len(answered) == 6
        for sock in answered:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for sock in socks:
            sock.close()
    target.mesh.until(lambda: metric(target, "shoal_http_requests_open") == 1, 5, "nothing waits for clients that are gone")
    target.mesh.shoal("job", "stop", job, "--node", target.url)


STRANGERS = ["127.0.1.%d" % i for i in range(1, 6)]


def test_strangers_of_several_addresses_take_no_place_from_one_that_has_few(target):
    """The honest connection has waited longer than any other when the table is full."""
    honest = http.client.HTTPSConnection(target.address, target.api_port, timeout=20, context=TLS, source_address=("127.0.0.9", 0))
    honest.request("GET", "/healthz")
    honest.getresponse().read()
    before = metric(target, "shoal_http_closed_idle_total")
    socks = []
    try:
        for i in range(SILENT + 100):
            socks.append(socket.create_connection((target.address, target.api_port), 20, source_address=(STRANGERS[i % len(STRANGERS)], 0)))
        newcomer = http.client.HTTPSConnection(target.address, target.api_port, timeout=20, context=TLS, source_address=("127.0.0.10", 0))
        newcomer.request("GET", "/healthz")
        assert newcomer.getresponse().status == 200
        newcomer.close()
        assert metric(target, "shoal_http_closed_idle_total") > before, "the table was full"
        honest.request("GET", "/healthz")
        assert honest.getresponse().status == 200
    finally:
        for sock in socks:
            sock.close()
        honest.close()


HELLOS = {"ffdhe8192": hello(0x0104, b"\x02" * 1024), "X25519": hello(0x001D, b"\x09" + b"\x00" * 31)}


@pytest.mark.alone  # its time is measured
@pytest.mark.parametrize("group", HELLOS)
def test_a_burst_of_hellos_makes_no_turn_long(target, group):
    """All of them lie in the sockets before the agent looks: it is stopped while they are sent, from four addresses."""
    socks = []
    try:
        for number in range(1000):
            socks.append(socket.create_connection((target.address, target.api_port), timeout=20,
                                                  source_address=("127.0.0.%d" % (2 + number % 4), 0)))
        target.mesh.until(lambda: metric(target, "shoal_http_connections_open") > 1000, 20, "every connection is taken")
        target.process.send_signal(signal.SIGSTOP)
        try:
            for sock in socks:
                sock.sendall(HELLOS[group])
        finally:
            target.process.send_signal(signal.SIGCONT)
        assert honest(target) == 40
        kinds = {sock.recv(1) for sock in socks}
        assert kinds == {b"\x15" if group == "ffdhe8192" else b"\x16"}  # an alert, or the server's part of the handshake
    finally:
        for sock in socks:
            sock.close()
    within_the_bound(target)


def http2_ping(c, number):
    c.sock.sendall(h2raw.frame(h2raw.PING, payload=b"x" * 8) * 500)


def http2_reset(c, number):
    for stream in range(2 * number * 100 + 1, 2 * (number + 1) * 100, 2):
        c.sock.sendall(h2raw.frame(h2raw.HEADERS, h2raw.END_HEADERS, stream, c.head("/auth/v1/logon", "POST")) +
                       h2raw.frame(h2raw.RST_STREAM, 0, stream, b"\0\0\0\x08"))


def http2_continuation(c, number):
    c.sock.sendall(h2raw.frame(h2raw.HEADERS, 0, 1, b"") if number == 0 else h2raw.frame(h2raw.CONTINUATION, 0, 1, b""))


@pytest.mark.parametrize("flood", [http2_ping, http2_reset, http2_continuation])
def test_floods_of_http2_end_their_connections_alone(target, flood):
    """A stranger's, on eight connections, while honest clients ask."""
    encrypt = ssl.create_default_context()
    encrypt.check_hostname, encrypt.verify_mode = False, ssl.CERT_NONE
    encrypt.set_alpn_protocols(["h2"])

    def attack(_):
        with h2raw.Client((target.address, target.api_port), encrypt.wrap_socket) as c:
            try:
                for number in range(1000):
                    flood(c, number)
            except OSError:
                pass  # it was ended
            return c.end()

    before = metric(target, "shoal_http2_calmed_total")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        attacks = [pool.submit(attack, n) for n in range(8)]
        assert honest(target) == 40
        codes = {one.result() for one in attacks}
    assert codes <= {h2raw.CALM, None}
    assert metric(target, "shoal_http2_calmed_total") == before + 8


HALF = {
    "a head": b"GET /auth/v1/logon HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 30000,
    "a body": b"POST /auth/v1/logon HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n" + b" " * 4095,
}


@pytest.mark.parametrize("half", HALF)
def test_half_sent_logons_hold_little(target, half):
    def send(_):
        sock = connect(target)
        sock.sendall(HALF[half])
        return sock

    before = resident_mib(target)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        halves = list(pool.map(send, range(HALVES)))
    try:
        assert honest(target) == 40
        held = resident_mib(target) - before
        assert held < HALVES_MIB_MAX, "%d half-sent logons hold %d MiB" % (HALVES, held)
    finally:
        for sock in halves:
            sock.close()


def test_a_large_body_of_a_stranger_is_refused_at_its_head(target):
    with connect(target) as sock:
        sock.sendall(b"POST /auth/v1/logon HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("method, path", [
    ("POST", "/dlim/v1/inference/%s"), ("POST", "/v2/models/%s/infer"), ("GET", "/v1/services/%s"), ("DELETE", "/v1/services/%s"),
    ("POST", "/v1/services/%s/scale?replicas=1"), ("POST", "/v1/services/x/scale?replicas=%s"), ("GET", "/v1/jobs/%s"),
    ("GET", "/v1/jobs?state=%s"), ("GET", "/v1/jobs/%s/files/x")])
def test_what_was_asked_comes_back_as_text(target, method, path):
    """Escape sequences in an address are no words of the node's to the terminal of whoever asks."""
    client = http.client.HTTPSConnection(target.address, target.api_port, timeout=20, context=TLS)
    client.request(method, path % "a%1b%5b2J%c2%9b2J%7f%9b2J%e2%80%ae%e2%81%a6", b"", {"Authorization": "Bearer " + target.mesh.token(target)})
    answer = client.getresponse()
    said = answer.read().decode()
    client.close()
    assert answer.status in (400, 404) and said
    assert said.strip("\n").isprintable(), said


def threads_of(host):
    """{thread id: (name, CPU ticks, nice, scheduling class)} of the agent."""
    found = {}
    for task in pathlib.Path("/proc/%d/task" % host.process.pid).iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        fields = rest.split()  # from field 3 on
        found[int(task.name)] = (name, int(fields[11]) + int(fields[12]), int(fields[16]), int(fields[38]))
    return found


@pytest.mark.alone
def test_password_checks_take_no_time_from_jobs(target):
    """24 clients that log on without end: few checks at a time, on nice threads of the ordinary class; who has a token is answered."""
    token = "Bearer " + target.mesh.token(target)
    answers, stop = [], []

    def log_on(number):
        while not stop:
            answers.append(ask(target, "/auth/v1/logon", Authorization=basic("admin", "wrong %d" % number))[:2])

    before, began, resident = threads_of(target), time.monotonic(), resident_mib(target)  # the tests before have left some
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        clients = [pool.submit(log_on, number) for number in range(24)]
        try:
            served = [ask(target, "/v1/nodes", Authorization=token)[0] for _ in range(40)]
            peak = resident_mib(target)
        finally:
            stop.append(True)
        for client in clients:
            client.result()
    took = time.monotonic() - began
    assert served == [200] * 40
    statuses = [status for status, _ in answers]
    assert set(statuses) == {401, 503}, statuses
    assert all(headers["Retry-After"] == "1" for status, headers in answers if status == 503)
    assert peak - resident < 180, "%d MiB, %d before passwords are checked" % (peak, resident)
    used = {}
    for thread, (name, ticks, nice, policy) in threads_of(target).items():
        ticks -= before.get(thread, (name, 0))[1]
        if name == "passwords":
            assert (nice, policy) == (10, 0)
            used["passwords"] = used.get("passwords", 0) + ticks
        else:
            used["others"] = used.get("others", 0) + ticks
    assert used["passwords"] > 0
    assert ask(target, "/auth/v1/logon", Authorization=basic("admin", PASSWORD))[0] == 200
    within_the_bound(target)


ROWS_MAX = 256  # SHOAL_MESH_USER_REVOCATIONS_MAX: tokens of a user that have a row each


def test_a_user_who_logs_off_without_end_can_log_off_still(target):
    """Beyond ROWS_MAX a logoff ends what the user had got before, and takes no row of the others."""
    client = http.client.HTTPSConnection(target.address, target.api_port, timeout=20, context=TLS)

    def call(method, path, authorization):
        client.request(method, path, headers={"Authorization": authorization, "Content-Length": "0"})
        answer = client.getresponse()
        return answer.status, answer.read()

    def log_on():
        status, body = call("GET", "/auth/v1/logon", basic("admin", PASSWORD))
        assert status == 200, body
        return "Bearer " + json.loads(body)["accessToken"]

    kept = log_on()
    try:
        for _ in range(ROWS_MAX):
            token = log_on()
            assert call("POST", "/auth/v1/logoff", token)[0] == 200
        assert call("GET", "/v1/jobs", kept)[0] == 200, "no other token has ended"
        token = log_on()
        assert call("POST", "/auth/v1/logoff", token)[0] == 200
        assert [call("GET", "/v1/jobs", one)[0] for one in (token, kept)] == [401, 401]
        assert call("GET", "/v1/jobs", log_on())[0] == 200, "the user is in again at once"
    finally:
        client.close()
        target.mesh._token = None  # it has ended with the others


# The last one: the allocator keeps what it has had.
LONG_LIST = """
import os
folder = os.environ["RESULT_DIR"] + "/model/" + "\u00e9" * 60
os.makedirs(folder)
for i in range(8000):
    os.close(os.open("%s/%s%05d" % (folder, '"' * 100, i), os.O_CREAT | os.O_WRONLY, 0o600))
"""
DEAF = 200
HELD_MIB_MAX = 420  # SHOAL_HTTP_HELD_BYTES_MAX, and what an answer takes while it is made


@pytest.mark.alone
def test_answers_that_nobody_takes_are_bounded(target, tmp_path):
    """Over HTTP/1: 600 MiB of lists are asked for from four addresses, and not read."""
    token = "Bearer " + target.mesh.token(target)
    job = running(target, tmp_path, LONG_LIST)
    target.mesh.until(lambda: target.mesh.job(job, target)["hasEnded"], 60, "the files are there")
    length = len(ask(target, "/v1/jobs/%s/files" % job, Authorization=token)[2])
    assert length * DEAF > 1.3 * HELD_MIB_MAX * 2**20
    before, peak, socks = resident_mib(target), 0, []
    words = "GET /v1/jobs/%s/files HTTP/1.1\r\nHost: a\r\nAuthorization: %s\r\n\r\n" % (job, token)
    try:
        for number in range(DEAF):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            raw.bind(("127.0.0.%d" % (20 + number % 4), 0))
            raw.connect((target.address, target.api_port))
            socks.append(TLS.wrap_socket(raw))
            socks[-1].sendall(words.encode())
            peak = max(peak, resident_mib(target))
        target.mesh.until(lambda: metric(target, "shoal_http_requests_open") == 1, 60, "all are answered")
        peak = max(peak, resident_mib(target))
        assert metric(target, "shoal_http_closed_full_total") > 0
        assert peak - before < HELD_MIB_MAX, "%d MiB are held for clients who do not read" % (peak - before)
    finally:
        for sock in socks:
            sock.close()
    within_the_bound(target)


def test_idle_connections_leave_an_agent_of_few_descriptors_what_its_jobs_need(tmp_path):
    """As many files as a login may open, and fewer: strangers' connections take no more than half."""
    with Mesh(OUT / "shoal") as mesh:
        host = mesh.host_class(mesh, "alpha")
        host.prepare()
        host.within = ["prlimit", "--nofile=1000:1024"]
        mesh.hosts.append(host)
        host.start()
        mesh.until(lambda: mesh.knows(host, 1), 20, "it is up")
        assert "warning: 1024 files may be open at once" in host.log.read_text()
        socks = []
        try:
            for number in range(1100):
                socks.append(socket.create_connection((host.address, host.api_port), timeout=20,
                                                      source_address=("127.0.0.%d" % (2 + number % 5), 0)))
            mesh.until(lambda: metric(host, "shoal_http_connections_open") > 500, 20, "the half of them is taken")
            assert metric(host, "shoal_http_connections_open") <= 512
            (tmp_path / "main.py").write_text("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))\n")
            job = submit(mesh, host, tmp_path)
            facts = ended(mesh, job, 20)
            assert facts["state"] == "FINISHED", facts["detail"]
            assert log_of(mesh, host, job) == "(1000, 1024)\n"
        finally:
            for sock in socks:
                sock.close()
