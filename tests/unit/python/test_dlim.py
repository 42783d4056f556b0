"""`dlim`, letter by letter, against a server that answers as WMLA's (the inference contract, sections 2 and 9)."""

import base64
import http.server
import io
import json
import os
import pathlib
import ssl
import subprocess
import tarfile
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"
WAIT_S = 60

MODEL = {"name": "echo-a", "uid": "0f6f1d3e-0000-4000-8000-00000000beef", "tag": "", "size": 254351, "weight_path": "./",
         "model_path": "/opt/wml-edi/repo/echo-a/echo-a-20300102-030405", "create_time": 1893553445,
         "last_updated_time": 1893553445, "started_at": 0, "creator": "ann", "runtime": "python", "kernel_path": "kernel.py",
         "service_uri": "", "attributes": [], "mk_environments": [], "schema_version": "1"}
KERNEL = {"container_uid": "edi-echo-a-5f7d9c-x2x4z-task12n-q7w8e", "container_host": "node-3", "container_status": "IDLE",
          "total_task": 7, "running_task": 0, "finished_task": 7, "failed_task": 0}
INSTANCE = {"instances": [{"isd_uid": "5d0a2c1e-0000-4000-8000-000000000001", "pj_jobid": "edi-echo-a-5f7d9c-x2x4z",
                           "gpu_mode": "shared", "gpu_packid": "", "client_number": 3, "pending_tasks": 12,
                           "request_per_sec": 41.5, "data_size_per_sec": 9730.25, "isd_container": [KERNEL]}],
            "name": "echo-a", "state": "enabled"}
RUNTIME = {"type": "dlipy3", "launcher": "x.sh", "description": "Deep learning", "schema_version": "1"}
MISSING = "Model <%s> doesn't exist."


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, body, kind="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, body, self.headers))
        if self.path == "/icp4d-api/v1/authorize":
            return self._answer(200, {"token": "platform"} if json.loads(body)["api_key"] == "key" else {"no": 1})
        path = self.path[len("/dlim/v1"):] if self.path.startswith("/dlim/v1/") else ""
        said = self.headers.get("Authorization", "")
        if path == "/auth/token":
            if said != "Basic " + base64.b64encode(b"ann:secret").decode():
                return self._answer(401, {"error": "The user name or password is wrong."})
            return self._answer(200, {"user_token": "u.aaaa", "service_token": "s.cccc", "access_token": "u.aaaa"})
        if said not in ("Bearer u.aaaa", "Bearer platform"):
            return self._answer(401, {"error": "No valid token."})
        if path == "/auth/token/inference":
            return self._answer(200, {"service_token": "s.key"})
        return self._models(path, body) if path.startswith(("/model", "/deployment/model")) else self._runtimes(path)

    def _models(self, path, body):
        models = self.server.models
        words = path.strip("/").split("/")
        if words[1:2] == ["busy"]:
            return self._answer(503, "Inference service for model <busy> is currently unavailable.", "text/plain")
        if words[1:2] == ["odd"]:
            return self._answer(200, "<html>", "text/html")
        if words[0] == "deployment":
            model = dict(MODEL, name=names_in(body)[1])
            models[model["name"]] = model
            return self._answer(200, model)
        if len(words) == 1:
            return self._answer(200, [models[name] for name in sorted(models)])
        name = words[1]
        if name not in models:
            return self._answer(404, {"error": MISSING % name})
        if len(words) == 2 and self.command == "DELETE":
            if models[name]["service_uri"]:
                return self._answer(409, {"error": "The model cannot be removed if it's started."})
            return self._answer(200, {}) if models.pop(name) else None
        if words[2:] == ["instance"]:
            stopped = {"name": name, "state": "disabled"}
            return self._answer(200, INSTANCE if models[name]["service_uri"] else stopped)
        if words[2:3] == ["operation"]:
            models[name]["service_uri"] = "https://node-3:9243/dlim/v1/inference/" + name if words[3] == "start" else ""
            return self._answer(200, {})
        if words[2:] == ["appprofile"]:
            return self._answer(200, {} if self.command == "PUT" else {"name": name, "replica": 2, "policy": {
                "kernel_min": 0, "stream_discard_slow_tasks": True}, "kernel": {"gpu": "no"}})
        return self._answer(200, models[name])

    def _runtimes(self, path):
        words = path.strip("/").split("/")
        if words[:2] != ["deployment", "runtime"]:
            return self._answer(404, "no such address", "text/plain")
        if len(words) > 2 and words[2] != "dlipy3":
            return self._answer(400, {"errors": [{"message": "Runtime <%s> does not exists." % words[2]}]})
        if self.command != "GET":
            return self._answer(200, {"status": "OK"})
        return self._answer(200, RUNTIME if len(words) > 2 else {"runtimes": [RUNTIME], "schema_version": "1"})

    do_GET = do_PUT = do_POST = do_DELETE = _serve


def names_in(archive):
    """(the names of its files, the name in its model.json)."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = [one.name for one in tar if one.isfile()]
        model = next(name for name in names if name.endswith("/model.json"))
        return sorted(names), json.load(tar.extractfile(model))["name"]


class Dlim:
    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.url = "http://127.0.0.1:%d" % server.server_address[1]
        self.environment = dict(os.environ, HOME=str(folder / "home"), TZ="UTC", LC_ALL="C")
        (folder / "dlim").symlink_to(SHOAL)

    def __call__(self, *words, typed="", binary=None):
        """(exit code, stdout, stderr)"""
        done = subprocess.run([binary or str(self.folder / "dlim"), *words], input=typed, capture_output=True, text=True,
                              env=self.environment, cwd=self.folder, timeout=WAIT_S, check=False)
        return done.returncode, done.stdout, done.stderr

    def well(self, *words, typed=""):
        code, out, err = self(*words, typed=typed)
        assert (code, err) == (0, ""), (out, err)
        return out


@pytest.fixture
def dlim(tmp_path):
    if not SHOAL.exists():
        pytest.skip("nothing is built in %s" % SHOAL.parent)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.models, server.asked = {"echo-a": dict(MODEL), "b": dict(MODEL, name="b", service_uri="https://x/b")}, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    (tmp_path / "home").mkdir()
    made = Dlim(tmp_path, server)
    made.well("config", "-c", made.url + "/dlim/v1/")
    assert made.well("config", "-t", "-u", "ann", "-x", "secret") == "u.aaaa\n"
    yield made
    server.shutdown()
    server.server_close()


def package(dlim, name="echo-a", **files):
    folder = dlim.folder / "pack"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps({"name": name, "kernel_path": "kernel.py"}))
    for file in ("kernel.py", ".hidden", "sub/a b", "README.md"):
        (folder / file).write_text(file)
    return "pack"


def test_config_stores_and_prints_tokens(dlim):
    kept = dlim.folder / "home" / ".dlim" / "config"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert dlim.well("config", "-s") == "s.cccc\n"
    assert dlim.well("config", "-s", "-u", "ann", "-x", "secret") == "s.cccc\n"
    assert dlim.well("config", "-t", "-u", "ann", "-k", "key") == "platform\n"
    assert dlim.well("config", "-s") == "s.key\n"
    assert dlim("config", "-t", "-u", "ann", "-x", "wrong") == (1, "", "The user name or password is wrong.\n")
    assert dlim("config", "-t", "-u", "ann")[:2] == (1, "")
    kept.unlink()
    code, out, err = dlim("config", "-s")
    assert (code, out) == (1, "") and err.startswith("No token is stored")
    code, out, err = dlim("model", "list")
    assert (code, out) == (1, "") and err.startswith("No server is configured")


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/dlim/v1", "{}/dlim/v1/"])
def test_server_and_token_may_be_given_with_each_call_wherever_it_likes(dlim, form):
    (dlim.folder / "home" / ".dlim" / "config").unlink()
    url = form.format(dlim.url)
    for words in (["model", "list", "--rest-server", url, "--jwt-token", "u.aaaa"],
                  ["--rest-server=" + url, "model", "--jwt-token=u.aaaa", "list"]):
        assert dlim.well(*words).splitlines()[0] == "NAME    REST URI"
    assert dlim("model", "list", "--rest-server", url, "--jwt-token", "no") == (1, "", "No valid token.\n")


def test_list_and_view_are_the_transcripts(dlim):
    assert dlim.well("model", "list") == "NAME    REST URI\nb       https://x/b\necho-a  -\n"
    assert dlim.well("model", "view", "echo-a") == (
        "Name:\t\techo-a\nTag:\t\t-\nModel path:\t/opt/wml-edi/repo/echo-a/echo-a-20300102-030405\nSize:\t\t248.39KB\n"
        "Weight path:\t./\nRuntime:\tpython\nKernel path:\tkernel.py\nCreator:\tann\n"
        "Create time:\tWed Jan  2 03:04:05 UTC 2030\nUpdate time:\tWed Jan  2 03:04:05 UTC 2030\nREST URI:\t-\n"
        "Attributes:\tNo attribute defined\nEnvironments:\tNo environment variable defined\nSchema version:\t1\n")
    dlim.server.models["echo-a"].update(attributes=[{"key": "a", "value": "1"}], mk_environments=[{"name": "E", "value": "2"}])
    out = dlim.well("model", "view", "echo-a")
    assert "Attributes:\ta=1\nEnvironments:\tE=2\n" in out
    assert dlim("model", "view", "busy") == (1, "", "Inference service for model <busy> is currently unavailable.\n")
    assert dlim("model", "view", "odd") == (1, "", "The server's answer is no JSON: is it an inference server?\n")
    assert dlim("model", "view", "no/such") == (1, "", "Model <no%2Fsuch> doesn't exist.\n")


def test_view_with_services_and_kernels_is_the_transcript(dlim):
    assert dlim.well("model", "view", "echo-a", "-s") == "Name:             echo-a\nState:            Stopped\n"
    dlim.server.models["echo-a"]["service_uri"] = "x"
    services = (
        "Name:             echo-a\nState:            Started\nServing replica:  1\n" + "=" * 60 + "\n"
        "Serving service ID:   5d0a2c1e-0000-4000-8000-000000000001\nService JobID:        edi-echo-a-5f7d9c-x2x4z\n"
        "GPU Mode:             shared\nServed clients:       3\nPending requests:     12\nRequests per second:  41.50\n"
        "Data per second:      9730.25\nKernel started:       1\n")
    kernels = (
        "-" * 60 + "\nKernel ID:            edi-echo-a-5f7d9c-x2x4z-task12n-q7w8e\nHost:                 node-3\n"
        "Status:               IDLE\nTotal tasks:          7\nRunning tasks:        0\nFinished tasks:       7\n"
        "Failed tasks:         0\n")
    assert dlim.well("model", "view", "echo-a", "-s") == services
    assert dlim.well("model", "view", "-a", "-s", "echo-a") == services + kernels
    status = [line for line in (services + kernels).splitlines() if line.startswith("Status")]
    assert status[0].split(":")[1].strip() == "IDLE"


def test_start_stop_and_undeploy_say_their_lines_and_ask(dlim):
    assert dlim.well("model", "start", "echo-a", "-f") == \
        'Starting model "echo-a", run "dlim model view echo-a -s" to ensure startup.\n'
    assert dlim("model", "undeploy", "echo-a", "-f") == (1, "", "The model cannot be removed if it's started.\n")
    code, out, err = dlim("model", "stop", "echo-a")
    assert (code, err) == (1, "") and out.endswith("(y|n):") and dlim.server.models["echo-a"]["service_uri"]
    assert dlim.well("model", "stop", "-f", "echo-a") == \
        'Stopping model "echo-a", run "dlim model view echo-a -s" to ensure stop.\n'
    assert dlim("model", "undeploy", "echo-a", typed="n\n")[0] == 1 and "echo-a" in dlim.server.models
    assert dlim.well("model", "undeploy", "echo-a", typed="y\n").endswith(
        'Undeployed model "echo-a", run "dlim model list" to ensure deletion.\n')
    assert dlim("model", "start", "echo-a") == (1, "", "Model <echo-a> doesn't exist.\n")


def test_deploy_sends_one_archive_and_names_each_file(dlim):
    folder = package(dlim, "new-one")
    wanted = "Uploading...\n" + "".join("<pack/%s> uploaded to server.\n" % name for name in (
        ".hidden", "README.md", "kernel.py", "model.json", "sub/a b")) + \
        "Registering...\nModel <new-one> is deployed successfully\n"
    assert dlim.well("model", "deploy", "-p", folder) == wanted
    method, path, body, headers = dlim.server.asked[-1]
    assert (method, path, headers["Content-Type"]) == ("POST", "/dlim/v1/deployment/model", "application/octet-stream")
    assert names_in(body)[0] == sorted("pack/" + name for name in (".hidden", "README.md", "kernel.py", "model.json", "sub/a b"))
    question = "Model <new-one> already exists on inference service, do you want to update it? (y|n):"
    assert dlim("model", "deploy", "-p", folder) == (1, question + "EOF\n", "")
    assert dlim("model", "deploy", "-p", folder, typed="n\n") == (1, question, "")
    assert dlim.well("model", "deploy", "-p", folder, typed="y\n") == question + wanted
    assert dlim.well("model", "deploy", "-f", "-p", folder + "/") == wanted
    assert dlim.server.asked[-1][1] == "/dlim/v1/deployment/model/new-one"
    code, out, err = dlim("model", "deploy", "-p", "nowhere")
    assert (code, out) == (1, "") and "nowhere/model.json" in err


def test_profiles_are_shown_and_sent(dlim):
    assert json.loads(dlim.well("model", "viewprofile", "echo-a", "-j"))["replica"] == 2
    lines = dlim.well("model", "viewprofile", "echo-a").splitlines()
    assert {"Name:\techo-a", "Replica:\t2", "Kernel Min:\t0", "Stream discard slow tasks:\ttrue", "GPU:\tno"} <= set(lines)
    (dlim.folder / "profile").write_text('{"replica": 3}')
    assert dlim.well("model", "updateprofile", "echo-a", "-f", "profile") == "Model is updated successfully\n"
    method, path, body, headers = dlim.server.asked[-1]
    assert (method, path, body) == ("PUT", "/dlim/v1/model/echo-a/appprofile", b'{"replica": 3}')
    assert headers["Content-Type"] == "application/json"
    (dlim.folder / "profile").write_text("{")
    code, out, err = dlim("model", "updateprofile", "-f", "profile", "echo-a")
    assert (code, out) == (1, "") and err.startswith("profile: ")
    assert dlim("model", "updateprofile", "echo-a")[2] == "-f FILE is missing; see dlim --help\n"


def test_runtimes(dlim):
    assert dlim.well("runtime", "list") == "NAME    DESCRIPTION\ndlipy3  Deep learning\n"
    assert json.loads(dlim.well("runtime", "view", "dlipy3"))["type"] == "dlipy3"
    assert dlim("runtime", "view", "none") == (1, "", "Runtime <none> does not exists.\n")
    (dlim.folder / "runtime").write_text(json.dumps(RUNTIME))
    assert dlim.well("runtime", "create", "-f", "runtime") == "Runtime <dlipy3> is created successfully\n"
    assert dlim.well("runtime", "update", "dlipy3", "-f", "runtime") == "Runtime is updated successfully\n"
    assert dlim.well("runtime", "delete", "dlipy3", "-f") == "Runtime <dlipy3> is deleted successfully\n"


@pytest.mark.parametrize("words", [["model"], ["model", "sing"], ["model", "view"], ["model", "view", "a", "b"], ["-q", "model", "list"],
                                   ["model", "list", "--rest-server"], [], ["config"]])
def test_what_is_no_command_fails_with_a_message_and_nothing_on_stdout(dlim, words):
    code, out, err = dlim(*words)
    assert (code, out) == (1, "") and "dlim" in err
    assert "dlim model deploy" in dlim.well("--help") and dlim.well("--version").startswith("dlim (shoal ")


def test_it_is_a_verb_of_shoal_too_and_a_server_that_is_not_there_is_told(dlim):
    assert dlim("dlim", "model", "list", binary=str(SHOAL))[:2] == (0, dlim.well("model", "list"))
    code, out, err = dlim("model", "list", "--rest-server", "http://127.0.0.1:1")
    assert (code, out) == (1, "") and "127.0.0.1:1" in err


def test_a_certificate_that_nobody_vouches_for_does_not_stop_it(dlim):
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "crt", "-days", "2",
                           "-subj", "/CN=elsewhere"], cwd=dlim.folder, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("no openssl that makes a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(dlim.folder / "crt", dlim.folder / "key")
    dlim.server.socket = context.wrap_socket(dlim.server.socket, server_side=True)
    assert dlim.well("model", "list", "--rest-server", "127.0.0.1:%d" % dlim.server.server_address[1]).startswith("NAME")
