"""A node that lies: each field of each answer is of a wrong type once, and cursors stand still. No verb crashes, none goes on for ever."""

import collections.abc
import copy
import http.server
import json
import os
import pathlib
import subprocess
import termios
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"
WRONG = (None, 1, "x", [], {})

NODE = {"name": "a", "state": "alive", "address": "x", "id": "abc", "slots": 4, "slotsFree": 1, "load": 0.5, "jobsLed": 1, "frameworks": ["P"]}
JOB = {"id": "shoal-1", "state": "RUNNING", "name": "n", "creator": "u", "created": "2031", "args": "_QUOTE_a_QUOTE_", "workers": 1, "workersMax": 2,
       "hasEnded": True, "exitCode": 0, "steps": 3, "stepsPerSecond": 1.5, "loss": 0.5, "accuracy": 0.5, "epoch": 1, "joinPauseUs": 5,
       "elastic": True, "pending": "", "detail": "d", "transport": "tcp", "leader": "a", "framework": "P", "array": {"tasks": 3, "done": 1}}
ENDED = {"id": "shoal-1", "name": "n", "state": "FINISHED", "detail": "d", "exitCode": 0, "hasEnded": True}
POINT = {"step": 2, "dataEpoch": 0, "call": 1, "values": [0.5], "min": [0.4], "max": [0.6]}
CALL = {"call": 1, "names": ["loss"]}
METRICS = {"steps": 3, "stride": 2, "whole": True, "calls": [CALL], "points": [dict(POINT, step=1), POINT], "validations": [POINT]}
SERVICE = {"name": "s", "state": "READY", "ready": 1, "replicas": 1, "version": 2, "creator": "u", "job": "shoal-1", "why": "w",
           "versions": [{"version": 2, "role": "current", "weight": 90, "ready": 1, "replicas": 1, "open": 0, "answered": 1, "failed": 0},
                        {"version": 1, "role": "canary", "weight": 10}],
           "hosts": [{"node": "a", "ready": 1, "open": 0}]}
LEDGER = {"job": "shoal-1", "exact": True, "data_epochs": 1, "data_epochs_wanted": 1, "samples_per_epoch": 4, "steps": 1, "validations": 0,
          "samples": 4, "records": 1, "records_wanted": 1, "errors": ["e"], "shares": [{"worker": 1, "minibatches": 1, "samples": 4}]}
EDIT = {"changes": [{"path": "p", "from": 1, "to": 2}], "notes": [], "text": "changed"}
KERNEL = {"container_uid": "k", "container_host": "a", "container_status": "IDLE", "total_task": 1, "running_task": 0, "finished_task": 1,
          "failed_task": 0, "gpu": "0", "gpu_name": "g", "gpu_mem": 1, "gpu_mem_total": 2}
INSTANCE = {"name": "s", "state": "enabled", "instances": [{"isd_uid": "i", "pj_jobid": "j", "gpu_mode": "", "client_number": 1, "pending_tasks": 0,
                                                            "request_per_sec": 1.5, "data_size_per_sec": 2.5, "isd_container": [KERNEL]}]}
MODEL = {"name": "s", "tag": "", "size": 5, "weight_path": "./", "model_path": "/m", "create_time": 1, "last_updated_time": 1, "creator": "u",
         "runtime": "python", "kernel_path": "k.py", "service_uri": "", "attributes": [{"key": "k", "value": "v"}],
         "mk_environments": [{"name": "N", "value": "v"}], "schema_version": "1"}
PROFILE = {"name": "s", "replica": 1, "policy": {"kernel_min": 1}, "kernel": {"gpu": "no"}, "resource_allocation": {"kernel": {"namespace": "n"}}}
TEXT = {"text": "done"}

EXECS = "/platform/rest/deeplearning/v1/execs"
VERBS = {  # the words, and what the node says at an address, "METHOD " before it where that is no GET
    "node list": {"/v1/nodes": [NODE]},
    "node drain a": {"POST /v1/nodes/a/drain": TEXT},
    "mesh recover": {"POST /v1/mesh/recover": TEXT},
    "frameworks": {EXECS + "/frameworks": [{"name": "P", "appName": "p", "desc": ["d"]}]},
    "status": {"/platform/rest/deeplearning/v1/status": {"status": "ok", "mesh": {"name": "m"}, "nodes": [1]}},
    "top": {"/v1/top": {"mesh": "m", "node": "a", "membersAlive": 1, "membersKnown": 2, "meshWritable": True, "more": True, "nodes": [NODE], "jobs": [JOB]}},
    "logon u": {"/auth/v1/logon": {"accessToken": "t", "username": "u"}},
    "job list": {"/v1/jobs": {"jobs": [JOB, dict(JOB, service="s")], "missing": ["b"], "complete": True, "unsettled": 0, "next": ""}},
    "job list --output json": {"/v1/jobs": {"jobs": [JOB], "missing": ["b"], "complete": True, "unsettled": 0, "next": ""}},
    "job show 1": {"/v1/jobs/1": JOB},
    "why 1": {"/v1/jobs/1/why": {"id": "shoal-1", "why": "w", "hosts": [{"node": "a", "why": "w"}], "more": [1, 2, 3, {"a": 1}]}},
    "job tasks 1": {"/v1/jobs/1/tasks": {"tasks": [{"index": 1, "state": "failed", "exitCode": 1, "attempts": 2, "node": "a", "started": "s", "ended": "e"}],
                                         "next": None}},
    "job logs 1 --task 3": {"/v1/jobs/1/log": b"", "/v1/jobs/1": {"array": {}}, "/v1/jobs/1/tasks": {"tasks": [{"index": 3}]}},
    "job logs 1 --rank 5": {"/v1/jobs/1/log": b"", "/v1/jobs/1": {"workersMax": 2}},
    "job metrics 1": {"/v1/jobs/1/metrics": METRICS},
    "job metrics 1 --plot": {"/v1/jobs/1/metrics": METRICS},
    "job files 1": {"/v1/jobs/1/files": {"files": [{"path": "p", "bytes": 1, "modified": "m"}], "missing": "m"}},
    "job ledger 1": {"/v1/jobs/1/ledger": LEDGER},
    "job wait 1 --timeout 1": {"/v1/jobs/1": ENDED},
    "job stop 1": {"/v1/jobs/1": ENDED},
    "job recover 1": {"POST /v1/jobs/1/recover": TEXT},
    "job deploy 1": {"/v1/jobs/1": ENDED, "POST /v1/services/n": {"job": "shoal-1"}},
    "job run --framework P --command --ticket -- true": {"POST /v1/tickets": {"ticket": "t"}, "POST " + EXECS: {"id": "shoal-1"}},
    "service list": {"/v1/services": {"services": [SERVICE]}},
    "service show s": {"/v1/services/s": SERVICE, "/dlim/v1/model/s/instance": INSTANCE},
    "service logs s": {"/v1/services/s": SERVICE, "/v1/jobs/shoal-1/log": b""},
    "service start s": {"POST /v1/services/s/start": TEXT},
    "service rollback s": {"/v1/services/s": SERVICE, "POST /v1/services/s/rollback": TEXT},
    "service edit s --set a=1": {"PUT /v1/services/s/profile": EDIT},
    "service edit s --file /dev/null": {"PUT /v1/services/s/profile": dict(EDIT, notes=["n"])},
    "dlim model list": {"/dlim/v1/model": {"models": [MODEL]}},
    "dlim model view s": {"/dlim/v1/model/s": MODEL},
    "dlim model view s -s -a": {"/dlim/v1/model/s": MODEL, "/dlim/v1/model/s/instance": INSTANCE},
    "dlim model viewprofile s": {"/dlim/v1/model/s/appprofile": PROFILE},
    "dlim runtime list": {"/dlim/v1/deployment/runtime": {"runtimes": [{"type": "t", "description": "d"}]}},
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = ("" if self.command == "GET" else self.command + " ") + self.path.partition("?")[0]
        said = self.server.says.get(address)
        said = next(said) if isinstance(said, collections.abc.Iterator) else said
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.server.asked.add(address)
        self.send_response(200 if address in self.server.says else 404)
        self.send_header("Content-Length", str(len(body)))
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = answer


@pytest.fixture
def node(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.says, server.headers, server.asked = {}, {"Shoal-Log-Ended": "true"}, set()
    server.url = "http://127.0.0.1:%d" % server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def ask(words, limit_s=20, stdout=subprocess.PIPE):
        env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        to = ["--rest-server", server.url, "--jwt-token", "t"] if words.startswith("dlim") else ["--node", server.url, "--user", "u", "--password", "p"]
        words = words.split()
        end = words.index("--") if "--" in words else len(words)
        return subprocess.run([str(SHOAL), *words[:end], *to, *words[end:]], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                              timeout=limit_s, env=dict(env, HOME=str(tmp_path)))

    server.ask = ask
    yield server
    server.shutdown()
    server.server_close()


def places(value, path=()):
    """The path of each value within, and of the whole."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def with_wrong(value, path, wrong):
    if not path:
        return wrong
    made = copy.copy(value)
    made[path[0]] = with_wrong(value[path[0]], path[1:], wrong)
    return made


def lies(answer):
    """The answer with each of its values once of each wrong type. What is wrong within a list stands there behind all that is right, so that one
    answer holds all of it."""
    full = answer
    for path in places(answer):
        at = next((i for i, key in enumerate(path) if isinstance(key, int)), None)
        for wrong in WRONG:
            if at is None:
                yield with_wrong(answer, path, wrong)
            else:
                rows = full
                for key in path[:at]:
                    rows = rows[key]
                full = with_wrong(full, path[:at], [*rows, with_wrong(rows[path[at]], path[at + 1:], wrong)])
    yield full


@pytest.mark.parametrize("words", VERBS)
def test_no_verb_crashes_on_a_wrong_type(node, words):
    right = VERBS[words]
    node.says = right
    done = node.ask(words)
    assert done.returncode in (0, 3) and node.asked >= right.keys(), (node.asked, done)
    for address, answer in right.items():
        for lie in [] if isinstance(answer, bytes) else lies(answer):
            if answer is ENDED and not (isinstance(lie, dict) and lie.get("hasEnded") is True):
                continue  # who waits for the end waits on
            node.says = dict(right, **{address: lie})
            done = node.ask(words)
            assert 0 <= done.returncode < 128, (lie, done)


@pytest.mark.parametrize("words", ["job logs 1", "job logs 1 -f", "job logs 1 --rank 2", "job logs 1 --output json"])
@pytest.mark.parametrize("headers,said", [
    ({}, "without a cursor"), ({"Shoal-Log-Next": ""}, "without a cursor"), ({"Shoal-Log-Next": "x"}, "without a cursor"),
    ({"Shoal-Log-Next": "0"}, "with a cursor that stands still"), ({"Shoal-Log-Next": "5"}, "with a cursor that stands still"),
])
def test_a_log_whose_cursor_leads_nowhere_ends(node, words, headers, said):
    """A node's fault, or a proxy's that drops headers. What came is shown; none of it comes for ever."""
    node.says, node.headers = {"/v1/jobs/1/log": b"piece\n"}, headers
    done = node.ask(words)
    assert done.returncode == 1 and done.stdout.count(b"piece") == 1 + (headers.get("Shoal-Log-Next") == "5") and done.stderr.count(b"\n") == 1, done
    assert ("%s answers %s" % (node.url, said)).encode() in done.stderr, done


@pytest.mark.parametrize("words,address,answer,times", [
    ("job list", "/v1/jobs", {"jobs": [JOB], "complete": True, "next": "token"}, 2),
    ("job tasks 1", "/v1/jobs/1/tasks", {"tasks": [{"index": 7, "state": "failed"}], "next": 7}, 2),
    ("job tasks 1", "/v1/jobs/1/tasks", {"tasks": [{"index": 7, "state": "failed"}], "next": -1}, 1),
])
def test_a_page_that_leads_to_itself_ends_the_list(node, words, address, answer, times):
    node.says = {address: answer}
    done = node.ask(words)
    assert done.returncode == 1 and done.stdout.count(b"\n") == 1 + times, done
    assert node.url.encode() in done.stderr and b"--node" in done.stderr, done


@pytest.mark.parametrize("value,row", [("-inf", -2), ("inf", 1), ("nan", 1), (-1.7e308, -2)])
def test_a_validation_that_is_no_finite_number_stands_at_an_edge_of_the_plot(node, value, row):
    """Its row is reckoned, and must lie within the canvas."""
    node.says = {"/v1/jobs/1/metrics": dict(METRICS, points=[dict(POINT, values=[1.7e308])], validations=[dict(POINT, values=[value])])}
    done = node.ask("job metrics 1 --plot")
    assert done.returncode == 0 and b"o" in done.stdout.splitlines()[row], done.stdout.decode()


def test_tasks_come_in_the_order_of_their_ranges(node):
    """Of 7,3,5 the page behind 7 begins with 3: an index need not rise."""
    pages = [{"tasks": [{"index": 7}], "next": 7}, {"tasks": [{"index": 3}], "next": 3}, {"tasks": [{"index": 5}]}]
    node.says = {"/v1/jobs/1/tasks": iter(pages)}
    done = node.ask("job tasks 1 --quiet")
    assert (done.returncode, [int(line.split()[0]) for line in done.stdout.splitlines()]) == (0, [7, 3, 5]), done


HOSTILE = b"\x1b]0;title\x07a\xc3\xbc\x9b2J\xe2\x80\xaeb\n\x00"
AS_IN_LOGS = "^[]0;title^Ga\u00fcM-^[2J\\u202eb\n^@".encode()
FETCHED = {"job get 1 p -": "/v1/jobs/1/files/p", "job get 1 p --to -": "/v1/jobs/1/files/p", "job metrics 1 --csv": "/v1/jobs/1/metrics",
           "job logs 1": "/v1/jobs/1/log", "service test s --input /dev/null": "POST /dlim/v1/inference/s"}


@pytest.fixture
def terminal():
    """Its two ends, the program's second; ends of lines stay as they are."""
    ours, its = os.openpty()
    modes = termios.tcgetattr(its)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(its, termios.TCSANOW, modes)
    yield ours, its
    os.close(ours)
    os.close(its)


@pytest.mark.parametrize("words", FETCHED)
def test_what_is_fetched_gives_a_terminal_no_orders(node, terminal, words):
    node.says = {FETCHED[words]: HOSTILE}
    done = node.ask(words, stdout=terminal[1])
    assert done.returncode == 0 and os.read(terminal[0], 4096).rstrip(b"\n") == AS_IN_LOGS, done


@pytest.mark.parametrize("words", FETCHED)
def test_what_is_fetched_goes_into_a_pipe_byte_for_byte(node, words):
    node.says = {FETCHED[words]: HOSTILE}
    done = node.ask(words)
    assert done.returncode == 0 and done.stdout.rstrip(b"\n") == HOSTILE, done


def test_a_zip_is_nothing_for_a_terminal(node, terminal):
    node.says = {"/v1/jobs/1/result": b"PK"}
    done = node.ask("job result 1 -", stdout=terminal[1])
    assert done.returncode == 2 and b"name a file" in done.stderr and not node.asked, done
    assert node.ask("job result 1 -").stdout == b"PK"
