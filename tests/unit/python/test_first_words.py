"""What a newcomer types first: half a command, `--help` in every place, no token. Each answer says what to do, once."""

import http.server
import json
import os
import pathlib
import socket
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"


@pytest.fixture
def shoal(tmp_path):
    def run(*words, env=None):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        env = {**kept, "HOME": str(tmp_path), **(env or {})}
        return subprocess.run([str(SHOAL), *words], capture_output=True, text=True, timeout=20, env=env)

    return run


@pytest.mark.parametrize("words,remedy", [
    ("node remove", "`shoal node list`"), ("service show", "`shoal service list`"), ("service scale", "`shoal service list`"),
    ("service deploy", "`shoal help service deploy`"), ("job show", "`shoal job list`"), ("why", "`shoal job list`"),
])
def test_a_missing_word_is_looked_up_where_it_is_shown(shoal, words, remedy):
    done = shoal(*words.split())
    assert done.returncode == 2 and remedy in done.stderr, done.stderr


@pytest.mark.parametrize("words,name", [
    ("job wait ", "ID"), ("job show ", "ID"), ("why ", "ID"), ("service show ", "NAME"), ("service scale  2", "NAME"),
    ("service scale x ", "N"), ("node remove ", "NODE"), ("job get x ", "PATH"), ("job files ", "ID"),
])
def test_an_empty_word_is_none(shoal, words, name):
    """An unset "$job" asks for nothing: to wait for that would have no end."""
    done = shoal(*words.split(" "))
    assert done.returncode == 2 and done.stdout == "", done
    assert ": %s is empty" % name in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_what_a_service_is_sent_is_shown(shoal):
    for said in (shoal("service", "test", "digits").stderr, shoal("help", "service", "test").stdout):
        assert '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}' in " ".join(said.split()), said


def test_a_file_to_write_is_named_once(shoal):
    done = shoal("job", "get", "41z", "model/a.pth", "-", "--to", "b.pth")
    assert done.returncode == 2 and "FILE or --to, not both" in done.stderr, done


@pytest.mark.parametrize("target", ["..", "../..", "."])
def test_a_link_to_a_folder_that_it_lies_in_is_named(shoal, tmp_path, target):
    """What it leads to would be packed within itself."""
    folder = tmp_path / "m"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "loop").symlink_to(target)
    (folder / "main.py").write_text("")
    said = shoal("job", "run", "--framework", "PyTorch", "--model-main", "main.py", "--model-dir", str(folder)).stderr
    above = target == "../.."  # the folder above has m, which is the first that is come to again
    assert ("m/sub/loop/m: " if above else "m/sub/loop: ") in said and "leads back to a folder that it lies in" in said, said


@pytest.mark.parametrize("group", ["job", "node", "service", "mesh"])
def test_a_group_has_help_of_its_own_however_it_is_asked(shoal, group):
    asked = [shoal("help", group), shoal(group, "--help"), shoal(group, "-h")]
    assert [done.returncode for done in asked] == [0, 0, 0], asked
    assert asked[0].stdout == asked[1].stdout == asked[2].stdout and asked[0].stdout.startswith("  shoal %s " % group)


@pytest.mark.parametrize("words", ["why x", "job show x", "top", "service list"])
def test_who_has_no_token_is_told_so_once(shoal, words):
    done = shoal(*words.split())
    assert done.returncode == 4 and done.stderr.count("shoal logon USER") == 1, done.stderr


NONE = b'{"jobs":[],"complete":true}'


class Node(threading.Thread):
    """A node of a kind: `answers` every request that there are no jobs, `closes` each connection as it comes, `drops` each after its request,
    `breaks` each within the answer; `deaf` takes none."""

    def __init__(self, kind):
        super().__init__(daemon=True)
        self.kind, self.requests, self.socket = kind, [], socket.create_server(("127.0.0.1", 0))
        self.at = "127.0.0.1:%d" % self.socket.getsockname()[1]
        if kind != "deaf":
            self.start()

    def run(self):
        while True:
            try:
                conn, _ = self.socket.accept()
            except OSError:
                return
            with conn:
                if self.kind != "closes":
                    self.answer(conn)

    def answer(self, conn):
        head = b""
        while b"\r\n\r\n" not in head and (more := conn.recv(65536)):
            head += more
        self.requests.append(head)
        if self.kind == "answers":
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(NONE), NONE))
        elif self.kind == "breaks":
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n[")


def test_a_libcurl_that_lacks_a_function_is_refused_each_time(shoal, tmp_path):
    (tmp_path / "empty.c").touch()
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-o", str(tmp_path / "libcurl.so.4"), str(tmp_path / "empty.c")], check=True)
    done = shoal("why", "x", env={"LD_LIBRARY_PATH": str(tmp_path)})  # it asks twice
    assert done.returncode == 1 and "install the package libcurl4" in done.stderr, done


@pytest.fixture
def node():
    made = []

    def make(kind):
        made.append(Node(kind))
        return made[-1]

    yield make
    for one in made:
        one.socket.close()


AS = ("--user", "u", "--password", "p", "--insecure")


@pytest.mark.parametrize("kind,scheme", [
    ("deaf", "https://"), ("closes", "https://"), ("closes", "http://"), ("drops", "http://"), ("breaks", "http://"),
])
def test_the_next_node_is_asked_where_one_does_not_answer(shoal, node, kind, scheme):
    """Nothing has reached the one, or the question was a GET. A deaf one is given up when no connection comes about in time."""
    bad, good = node(kind), node("answers")
    done = shoal("job", "list", "--output", "json", "--node", "%s%s,http://%s" % (scheme, bad.at, good.at), *AS)
    assert done.returncode == 0 and '"jobs":[]' in done.stdout and done.stderr == "", done


def test_an_order_that_may_have_arrived_goes_to_no_other_node(shoal, node):
    bad, good = node("drops"), node("answers")
    done = shoal("job", "stop", "shoal-38h09hnk0tmdndh5", "--node", "http://%s,http://%s" % (bad.at, good.at), *AS)
    assert done.returncode == 5 and bad.at in done.stderr and done.stderr.count("\n") == 1, done
    assert sum(head.startswith(b"POST") for head in bad.requests) == 1
    assert not any(head.startswith(b"POST") for head in good.requests)


def test_the_last_of_several_says_why_none_has_answered(shoal, node):
    first, last = node("closes"), node("deaf")
    done = shoal("job", "list", "--node", "https://%s,https://%s" % (first.at, last.at), "--timeout", "1", *AS)
    assert done.returncode == 5 and last.at in done.stderr and done.stderr.count("\n") == 1, done


def test_a_fault_of_this_side_is_told_once_and_asks_no_other_node(shoal, node):
    good = node("answers")
    told = {"--password-file": (2, ("--user", "u", "--password-file", "/none", "--insecure")), "gopher": (2, AS)}
    for text, (code, options) in told.items():
        first = "gopher://127.0.0.1" if text == "gopher" else "http://" + good.at
        done = shoal("job", "list", "--node", "%s,http://%s" % (first, good.at), *options)
        assert done.returncode == code and text in done.stderr and done.stderr.count("\n") == 1, done
    assert good.requests == []
    done = shoal("why", "x", "--node", "gopher://127.0.0.1", *AS)
    assert done.returncode == 2 and "gopher" in done.stderr and done.stderr.count("\n") == 1, done


class Waiting(http.server.BaseHTTPRequestHandler):
    """A node on which a job waits: its log is empty until it was asked for it four times, and then it has ended."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        log = "/log?" in self.path
        Waiting.asked += log
        ended = Waiting.asked > 4
        body = (b"done\n" if ended else b"") if log else json.dumps({
            "id": "shoal-1", "state": "FINISHED" if ended else "PENDING_CRD_SCHEDULER", "hasEnded": ended,
            "detail": "" if ended else "needs 3 slots"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        if log:
            self.send_header("Shoal-Log-Next", "5" if ended else "0")
            self.send_header("Shoal-Log-Ended", "true" if ended else "false")
        self.end_headers()
        self.wfile.write(body)


def test_whoever_follows_a_job_that_waits_is_told_why_once(shoal, tmp_path):
    (tmp_path / "token").write_text("t")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Waiting) as node:
        threading.Thread(target=node.serve_forever, daemon=True).start()
        done = shoal("job", "logs", "-f", "shoal-1", "--token-file", str(tmp_path / "token"), "--node", "http://127.0.0.1:%d" % node.server_port)
        node.shutdown()
    assert (done.returncode, done.stdout) == (0, "done\n"), done
    assert done.stderr == "shoal-1 PENDING_CRD_SCHEDULER: needs 3 slots\n"
