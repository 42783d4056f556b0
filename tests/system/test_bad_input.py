"""What strangers, careless users and hostile scripts may send to a real mesh. Each row ends with a message that names the
cause and the remedy, or with a job that ended alone; after each row every agent lives, every node answers, and where
nothing should change nothing did."""

import contextlib
import http.client
import io
import json
import os
import pathlib
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
import urllib.parse
import zipfile

import pytest
from helpers import ended, log_of, submit
from mesh import Failed, Host, Mesh, job_id

BASE = "/platform/rest/deeplearning/v1"
GOOD_ARGS = "--exec-start PyTorch --model-main main.py"
TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE


# ---- what must stay true after each row ----

def job_list(host):
    return sorted((job["id"], job["state"]) for job in host.get("/v1/jobs?limit=1000")["jobs"])


def all_well(mesh, hosts=None):
    for host in hosts or mesh.hosts:
        assert host.process.poll() is None, "the agent of %s ended: %s" % (host.name, host.log.read_text()[-2000:])
        mesh.until(lambda: mesh.knows(host, len(hosts or mesh.hosts)), 15, "%s sees every host alive" % host.name)
        assert mesh.shoal("node", "list", "--node", host.url).returncode == 0


@pytest.fixture(autouse=True)
def agents_unharmed(mesh):
    pids = [host.process.pid for host in mesh.hosts]
    yield
    all_well(mesh)
    assert [host.process.pid for host in mesh.hosts] == pids


@contextlib.contextmanager
def nothing_changes(mesh):
    before = mesh.until(lambda: same_everywhere(mesh), 15, "every node has the same job list")
    yield
    assert same_everywhere(mesh) == before


def same_everywhere(mesh):
    lists = [job_list(host) for host in mesh.hosts]
    return [lists[0]] if all(one == lists[0] for one in lists) else None


def answer_of(host, method, path, body=b"", headers=(), token=None):
    """(status, text) of one request; a server that answers before it has read all may break off the upload."""
    client = http.client.HTTPSConnection("127.0.0.1", host.api_port, timeout=30, context=TRUSTING)
    try:
        client.putrequest(method, path)
        for name, value in {**({"Authorization": "Bearer " + token} if token else {}),
                            **({"Content-Length": str(len(body))} if body or method == "POST" else {}), **dict(headers)}.items():
            client.putheader(name, value)
        client.endheaders()
        with contextlib.suppress(OSError):
            client.send(body)
        answer = client.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        client.close()


def post(mesh, host, content, args=GOOD_ARGS, filename="model.tar.gz", data=None):
    parts = b""
    for name, file, value in (("file", filename, content), ("data", None, data)):
        if value is not None:
            parts += ('--XX\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n' % (
                name, "" if file is None else '; filename="%s"' % file)).encode() + value + b"\r\n"
    return answer_of(host, "POST", BASE + "/execs?" + urllib.parse.urlencode({"args": args}), parts + b"--XX--\r\n",
                     {"Content-Type": "multipart/form-data; boundary=XX"}, mesh.token(host))


def tar(files, mode="w:gz", **fields):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for field, value in fields.items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def zipped(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


# ---- who asks ----

def test_a_host_with_another_mesh_secret_never_appears_and_its_log_says_why(mesh):
    with nothing_changes(mesh), Mesh(mesh.binary) as other:
        folder = pathlib.Path(other.folder) / "other"
        other.shoal("init", "--data", folder, "--mesh-name", "demo", "--admin-user", "admin",
                    "--admin-password-file", other.password_file)
        stranger = Host(other, "stranger")
        other.hosts.append(stranger)
        other.shoal("join", "127.0.0.1:%d" % mesh.hosts[0].port, "--data", stranger.data, "--secret-file",
                    folder / "mesh.key")
        stranger.start()
        for log, remedy in ((stranger.log, "mesh.key of the same mesh"), (mesh.hosts[0].log, "join it again with this mesh's key")):
            line = other.until(lambda: next((one for one in log.read_text().splitlines() if "mesh secret" in one), None),
                               15, "%s says why" % log.name)
            assert remedy in line, line
        for host in mesh.hosts:
            assert "stranger" not in [node["name"] for node in host.get("/v1/nodes")]


@pytest.mark.parametrize("words,code,wanted", [
    pytest.param(("SHOAL_PASSWORD", "sink alone"), 4, ("password",), id="a wrong password"),
    pytest.param(("SHOAL_USER", "nobody"), 4, ("password",), id="an unknown user, told like a wrong password"),
    pytest.param(("SHOAL_PASSWORD", "x" * 5000), 2, ("not Basic",), id="a password of 5000 bytes"),
])
def test_a_logon_is_refused(mesh, tmp_path, words, code, wanted):
    env = dict(os.environ, SHOAL_USER="admin", SHOAL_PASSWORD="swim together", **mesh.trust())
    env[words[0]] = words[1]
    done = subprocess.run([str(mesh.binary), "logon", env["SHOAL_USER"], "--node", mesh.hosts[1].url, "--token-file",
                           str(tmp_path / "token")], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    for word in wanted:
        assert word in done.stderr
    assert not (tmp_path / "token").exists()


def test_a_submit_without_a_token_says_so_and_sends_nothing(mesh, tmp_path):
    (tmp_path / "main.py").write_text("print(1)\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    env.update(mesh.trust())
    done = subprocess.run([str(mesh.binary), "job", "run", "--framework", "PyTorch", "--model-main", "main.py", "--model-dir",
                           str(tmp_path), "--node", mesh.hosts[0].url], env=dict(env, HOME=str(tmp_path / "none")),
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert "log on first" in done.stderr and "may exist" not in done.stderr, done.stderr


def submit_to(mesh, tmp_path, url):
    (tmp_path / "main.py").write_text("print(1)\n")
    return subprocess.run([str(mesh.binary), "job", "run", "--framework", "PyTorch", "--model-main", "main.py", "--model-dir",
                           str(tmp_path), "--node", url, "--token-file", str(mesh.folder / "token")],
                          env=dict(os.environ, **mesh.trust()), capture_output=True, text=True, timeout=60)


def test_a_submit_to_nobody_says_why_and_that_nothing_was_sent(mesh, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        done = submit_to(mesh, tmp_path, "https://127.0.0.1:%d" % taken.getsockname()[1])
    assert done.returncode == 5
    assert "connect" in done.stderr and "is its agent running?" in done.stderr and "may exist" not in done.stderr, done.stderr


def test_a_submit_without_an_answer_says_why_and_that_the_job_may_exist(mesh, tmp_path):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(30)

        def hang_up():
            with server.accept()[0] as connection:
                connection.recv(100)

        thread = threading.Thread(target=hang_up)
        thread.start()
        done = submit_to(mesh, tmp_path, "http://127.0.0.1:%d" % server.getsockname()[1])
        thread.join()
    assert done.returncode == 5
    assert "127.0.0.1" in done.stderr and "may exist" in done.stderr and "--ticket" in done.stderr, done.stderr


def forged(token):
    """The same token with its expiry, or whatever lies in its middle, changed."""
    middle = len(token) // 2
    return token[:middle] + ("A" if token[middle] != "A" else "B") + token[middle + 1:]


@pytest.mark.parametrize("change", [
    pytest.param(lambda token: "garbage", id="a token of garbage"),
    pytest.param(lambda token: token[:-4], id="a token cut short"),
    pytest.param(forged, id="a token with one letter changed"),
    pytest.param(lambda token: "A" * 7000, id="a token of 7000 letters"),
    pytest.param(lambda token: "", id="an empty token"),
])
def test_a_bad_token_is_refused_on_every_node(mesh, change):
    bad = change(mesh.token(mesh.hosts[0]))
    for host in mesh.hosts:
        status, text = answer_of(host, "GET", "/v1/jobs", headers={"Authorization": "Bearer " + bad})
        assert status == 401, text
        assert "log on" in text, text


def test_a_token_that_was_logged_off_ends_on_every_node(mesh, tmp_path):
    mesh.shoal("logon", "admin", "--node", mesh.hosts[0].url, "--token-file", tmp_path / "token")
    token = (tmp_path / "token").read_text().strip()
    assert answer_of(mesh.hosts[2], "GET", "/v1/jobs", token=token)[0] == 200
    assert answer_of(mesh.hosts[1], "POST", "/auth/v1/logoff", token=token)[0] < 300
    for host in mesh.hosts:
        mesh.until(lambda: answer_of(host, "GET", "/v1/jobs", token=token)[0] == 401, 10, "%s refuses it" % host.name)


# ---- what they send ----

WHOLE = tar({"main.py": os.urandom(60000)})


@pytest.mark.parametrize("content,args,wanted", [
    pytest.param(b"this is no archive at all, but filename says so", GOOD_ARGS, ("archive",), id="not an archive"),
    pytest.param(b"", GOOD_ARGS, ("empty",), id="0 bytes"),
    pytest.param(WHOLE[:len(WHOLE) // 2], GOOD_ARGS, ("truncated", "whole", "cut short"), id="a truncated tar in gzip"),
    pytest.param(zipped({"main.py": b"x" * 5000})[:900], GOOD_ARGS, ("truncated", "whole", "archive"), id="a truncated zip"),
    pytest.param(tar({"../evil.py": b"", "main.py": b""}), GOOD_ARGS, ("../evil.py",), id="a name that climbs out"),
    pytest.param(tar({"a/../../evil": b"", "main.py": b""}), GOOD_ARGS, ("a/../../evil",), id="a name that climbs out later"),
    pytest.param(tar({"/etc/evil": b"", "main.py": b""}), GOOD_ARGS, ("/etc/evil",), id="an absolute name"),
    pytest.param(zipped({"../../evil.py": b"", "main.py": b""}), GOOD_ARGS, ("evil.py",), id="a zip whose name climbs out"),
    pytest.param(tar({"main.py": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd"), GOOD_ARGS, ("empty",),
                 id="a link to somewhere else"),
    pytest.param(tar({"main.py": b"", "tty": b""}, type=tarfile.CHRTYPE), GOOD_ARGS, (), id="a device"),
    pytest.param(tar({"other.py": b"print(1)"}), GOOD_ARGS, ("main.py",), id="no main"),
    pytest.param(tar({"main.py": b""}), "--exec-start PyTorch", ("--model-main",), id="no --model-main"),
    pytest.param(tar({"main.py": b""}), "--exec-start FishFlow --model-main main.py", ("FishFlow", "frameworks"),
                 id="an unknown framework"),
    pytest.param(tar({"main.py": b""}), "--model-main main.py", ("--exec-start",), id="no framework"),
    pytest.param(tar({"main.py": b""}), GOOD_ARGS + " --numWorker zwei", ("numWorker", "zwei"), id="a number that is none"),
    pytest.param(tar({"main.py": b""}), GOOD_ARGS + " --numWorker 99999999999999999999", ("numWorker",), id="a huge number"),
    pytest.param(tar({"main.py": b""}), GOOD_ARGS + " " + "x" * 20000, (), id="args of 20 kB"),
    pytest.param(tar({"main.py": b""}), GOOD_ARGS + " y" * 501, ("501 arguments",), id="501 arguments"),
    pytest.param(tar({"main.py": b""}), GOOD_ARGS + "".join(" --msd-env E%d=1" % i for i in range(385)), ("385 variables",),
                 id="385 variables"),
    pytest.param(tar({"main.py": b""}), GOOD_ARGS + " --msd-env " + "N" * 256 + "=1", ("256 bytes",), id="a variable's name of 256 bytes"),
])
def test_a_submit_is_refused_and_leaves_nothing(mesh, content, args, wanted):
    with nothing_changes(mesh):
        status, text = post(mesh, mesh.hosts[1], content, args)
        assert 400 <= status < 500, (status, text)
        assert text.startswith("Error ") and (";" in text or " is not " in text), "no cause and remedy: " + text
        assert not wanted or any(word in text for word in wanted), text


def test_as_many_arguments_and_variables_as_are_taken_arrive_whole(mesh, script):
    host = mesh.hosts[0]
    folder = script("import os, sys\nprint(len(sys.argv), sum(name.startswith('E_') for name in os.environ), len(os.environ['LONG']))\n")
    with tarfile.open(fileobj=(content := io.BytesIO()), mode="w:gz") as archive:
        archive.add(folder / "main.py", "main.py")
    args = GOOD_ARGS + "".join(" --msd-env E_%d=1" % i for i in range(383)) + " --msd-env LONG=" + "x" * 5000 + " y" * 500
    status, text = post(mesh, host, content.getvalue(), args)
    assert status < 300, text
    job = job_id(text)
    assert ended(mesh, job)["state"] == "FINISHED"
    assert log_of(mesh, host, job).split() == ["501", "383", "5000"]


@pytest.mark.parametrize("data", [
    pytest.param(b"{", id="JSON that breaks off"),
    pytest.param(b"[" * 100000, id="JSON nested 100000 deep"),
    pytest.param(b'{"args": "' + b"x" * 3000000 + b'"}', id="JSON of 3 MB"),
    pytest.param(b'[1, 2]', id="a list for an object"),
    pytest.param(b'{"args": "\xff\xfe"}', id="JSON that is not UTF-8"),
])
def test_bad_json_is_refused_and_leaves_nothing(mesh, data):
    with nothing_changes(mesh):
        status, text = post(mesh, mesh.hosts[2], tar({"main.py": b"print(1)"}), data=data)
        assert 400 <= status < 500, (status, text)
        assert text.startswith("Error ") and "data" in text or "JSON" in text, text


@pytest.mark.parametrize("option", ["--msd-pack-id sardines", "--msd-podaffinity-rule required", "--msd-task0-node-selector a=b"])
def test_an_option_that_comes_later_is_named_and_refused(mesh, option):
    with nothing_changes(mesh):
        status, text = post(mesh, mesh.hosts[0], tar({"main.py": b"print(1)"}), GOOD_ARGS + " " + option)
        assert status == 400, text
        assert "not supported yet" in text and option.split()[0] in text, text


@pytest.mark.parametrize("headers,status", [
    pytest.param({"X-Long": "a" * 70000}, (431,), id="one header of 70 kB"),
    pytest.param({"X-%d" % i: "a" for i in range(2000)}, (431,), id="2000 headers"),
    pytest.param({"Content-Length": "99999999999999999999999"}, (400, 413), id="a length beyond any number"),
    pytest.param({"Content-Length": "-5"}, (400,), id="a negative length"),
    pytest.param({"Transfer-Encoding": "chunked", "Content-Length": "5"}, (400,), id="two lengths"),
])
def test_bad_heads_are_refused(mesh, headers, status):
    got, text = answer_of(mesh.hosts[0], "GET", "/v1/jobs", headers=headers, token=mesh.token(mesh.hosts[0]))
    assert got in status, text


@pytest.mark.parametrize("verb", ["show", "stop", "delete", "logs", "result"])
@pytest.mark.parametrize("name", [
    pytest.param("shoal-zzzzzzzzzzzzzzzz", id="an id that nobody has"),
    pytest.param("../../etc", id="a path"),
    pytest.param("%00", id="a zero byte"),
    pytest.param("x" * 3000, id="3000 letters"),
])
def test_an_unknown_id_is_not_found(mesh, verb, name, tmp_path):
    words = ["job", verb, name] + ([tmp_path / "x.zip"] if verb == "result" else [])
    with nothing_changes(mesh):
        done = mesh.shoal(*words, "--node", mesh.hosts[2].url, check=False)
        assert done.returncode in (2, 3), done.stderr
        assert done.stderr.strip()


NAMES = ["%ff", "a%0ab", "%1b[2J", "a%00b", "..%2f..", "a%22b", "%20", "%", "x" * 400, "x" * 7000, "a/" * 500 + "b"]
PLACES = [("GET", "/v1/jobs/%s"), ("POST", "/v1/jobs/%s/stop"), ("GET", "/v1/jobs?filter=%s"), ("GET", "/v1/debug/%s"), ("POST", "/v1/nodes/%s/drain"),
          ("POST", "/v1/nodes/%s/readmit"), ("GET", "/platform/rest/deeplearning/v1/execs/%s"), ("GET", "/v1/jobs/shoal-zzzzzzzzzzzzzzzz/files/%s"),
          ("GET", "/v1/jobs/shoal-zzzzzzzzzzzzzzzz/log?which=%s"), ("GET", "/v1/jobs/shoal-zzzzzzzzzzzzzzzz/tasks?state=%s")]


def test_a_name_that_cannot_be_is_the_askers_mistake_wherever_it_stands(mesh):
    host = mesh.hosts[1]
    token = mesh.token(host)
    with nothing_changes(mesh):
        for method, place in PLACES:
            for name in NAMES:
                status, text = answer_of(host, method, place % name, token=token)
                assert 400 <= status < 500 or (status, "filter" in place) == (200, True), (method, place % name, status, text)


def test_a_job_that_was_just_deleted_is_not_there_at_any_node(mesh, script):
    folder = script("print('x')")
    for round_number in range(4):  # asked at the node that leads it, too, and while its group is being taken down
        job = submit(mesh, mesh.hosts[round_number % 3], folder)
        ended(mesh, job)
        mesh.shoal("job", "delete", job, "--node", mesh.hosts[(round_number + 1) % 3].url)
        answers = [answer_of(host, "GET", "/v1/jobs/" + job, token=mesh.token(host)) for _ in range(3) for host in mesh.hosts]
        assert {status for status, _ in answers} == {404}, answers


def test_an_ending_of_two_jobs_changes_neither(mesh, script):
    folder = script("print('x')")
    jobs, endings = [], {}
    while not any(len(same) > 1 for same in endings.values()):  # at most 37, by the pigeons
        jobs.append(submit(mesh, mesh.hosts[len(jobs) % 3], folder, "--device", "gpu"))
        endings.setdefault(jobs[-1][-1], []).append(jobs[-1])
        if len(jobs) > 37:
            break
    ending = next(end for end, same in endings.items() if len(same) > 1)
    mesh.until(lambda: same_everywhere(mesh), 15, "every node lists them all")
    with nothing_changes(mesh):
        for verb in ("stop", "delete", "show"):
            done = mesh.shoal("job", verb, ending, "--node", mesh.hosts[0].url, check=False)
            assert done.returncode not in (0, 5), done.stdout
            assert "ending" in done.stderr or "more than one" in done.stderr or "ambiguous" in done.stderr, done.stderr
    for job in jobs:
        mesh.shoal("job", "delete", job, "--node", mesh.hosts[0].url)


# ---- what their scripts do ----

FLOOD = """
import os, sys, time
line = ("the sea is full of words " * 40 + "\\n").encode()
end = time.monotonic() + float(sys.argv[1])
written = 0
while time.monotonic() < end:
    written += os.write(1, line)
print("wrote", written, flush=True)
"""


def test_a_script_that_floods_its_log_stays_bounded_and_alone(mesh, script):
    flood = submit(mesh, mesh.hosts[0], script(FLOOD), script=("3",))
    small = submit(mesh, mesh.hosts[1], script("print('small voice')"))
    assert ended(mesh, small, 30)["state"] == "FINISHED"
    assert mesh.until(lambda: log_of(mesh, mesh.hosts[2], small), 5, "its log") == "small voice\n"
    facts = ended(mesh, flood, 60)
    assert facts["state"] == "FINISHED", facts["detail"]
    token = mesh.token(mesh.hosts[0])
    status, text = answer_of(mesh.hosts[2], "GET", "/v1/jobs/%s/log?which=out&cursor=0" % flood, token=token)
    assert status == 200 and "the sea is full of words" in text
    assert len(text) <= 16 << 20, "a piece of log has a bound"
    mesh.shoal("job", "delete", flood, "--node", mesh.hosts[0].url)
    for host in mesh.hosts:
        mesh.until(lambda: not list(host.data.glob("results/*/batchworkdir/" + flood)), 20, "its files are gone")


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("text,state,wanted", [
    pytest.param("raise ValueError('no such luck')", "ERROR", "no such luck", id="a script that raises"),
    pytest.param("import os; os._exit(0)", "FINISHED", "", id="a script that leaves early with 0"),
    pytest.param("import os; os._exit(17)", "ERROR", "17", id="a script that leaves early with 17"),
    pytest.param("def f(:", "ERROR", "SyntaxError", id="a script that is not Python"),
    pytest.param("import no_such_module", "ERROR", "no_such_module", id="a script that imports what is not there"),
    pytest.param("import os; os.close(1); os.close(2); raise OSError('mute')", "ERROR", "1", id="a script that closes its streams"),
    pytest.param("def f(): f()\nf()", "ERROR", "RecursionError", id="a script without end to its stack"),
    pytest.param("import sys; print('\\x00\\xff\\u2603' * 3); sys.stdout.buffer.write(bytes(range(256)))\nraise SystemExit(b'\\xff')",
                 "ERROR", "", id="a script that writes what is no text"),
])
def test_a_script_that_fails_ends_alone_and_says_why(mesh, script, text, state, wanted):
    job = submit(mesh, mesh.hosts[0], script(text))
    facts = ended(mesh, job)
    assert facts["state"] == state, facts
    assert wanted in facts["detail"], facts["detail"]
    json.dumps(facts).encode()  # whatever it wrote, the answer is text
    log_of(mesh, mesh.hosts[1], job)


def test_a_script_that_forks_and_forgets_leaves_nobody_behind(mesh, script):
    forks = """
import os, time
for i in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            if i % 2:
                os.execve("/bin/sleep", ["sleep", "98765"], {})
            time.sleep(98765)
        os._exit(0)
print("gone")
"""
    before = {pid for host in mesh.hosts for pid in host.everything()}
    facts = ended(mesh, submit(mesh, mesh.hosts[0], script(forks)))
    assert facts["state"] == "FINISHED", facts["detail"]
    mesh.until(lambda: not {pid for host in mesh.hosts for pid in host.everything() if alive(pid)
                            and pid not in before and b"runner" not in command(pid)}, 10, "none of its processes lives")
    mesh.until(lambda: all(n["slotsFree"] == n["slots"] for n in mesh.hosts[0].get("/v1/nodes")), 15, "its slot is free")
    assert not [pid for pid in sleepers()], "a sleep 98765 of the script lives"


def command(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read()
    except OSError:
        return b"runner"


def sleepers():
    for entry in os.listdir("/proc"):
        if entry.isdigit() and command(int(entry)) == b"sleep\x0098765\x00":
            yield int(entry)


# ---- elastic scripts ----

ELASTIC = """
import torch
from fabric_model import FabricModel
from torch import nn
%s
def main():
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(1, 4, 2)

if __name__ == "__main__":
    main()
"""
UNPICKLED = """
import socket
the_socket = socket.socket()
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return torch.ones(4), i % 2, the_socket
def datasets():
    return Data(), Data()
"""
RAISES = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        raise KeyError("sample %d is rotten" % i)
def datasets():
    return Data(), Data()
"""


def everything_said(mesh, job):
    facts = mesh.job(job)
    return facts["detail"] + "".join(log_of(mesh, mesh.hosts[0], job, "--which", which) for which in ("outerr", "driver"))


def test_an_elastic_script_with_what_cannot_be_pickled_is_told_what_and_where(mesh, script):
    pytest.importorskip("torch")
    job = submit(mesh, mesh.hosts[0], script(ELASTIC % UNPICKLED), "--workers", 2, framework="edtPyTorch")
    facts = ended(mesh, job, 90)
    assert facts["state"] == "ERROR", facts
    said = everything_said(mesh, job)
    assert "TypeError" in facts["detail"] and "the_socket" in facts["detail"], facts["detail"]
    assert "__getitem__" in said or "datasets" in said, said


def test_an_engine_whose_dataset_raises_ends_the_job_with_its_words(mesh, script):
    pytest.importorskip("torch")
    job = submit(mesh, mesh.hosts[1], script(ELASTIC % RAISES), "--workers", 2, framework="edtPyTorch")
    facts = ended(mesh, job, 90)
    assert facts["state"] == "ERROR", facts
    assert "is rotten" in facts["detail"], facts["detail"]


UNKEPT = """
import os
from pyedt import _bundle
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return torch.ones(4), i %% 2
def datasets():
    return Data(), Data()
_bundle.write = lambda path, header, pickled: %s
"""


@pytest.mark.parametrize("write,cause", [
    pytest.param("None", "No such file or directory", id="a file that is not there"),
    pytest.param("os.mkfifo(path)", "not a regular file", id="a pipe that nobody writes to"),
])
def test_a_bundle_that_cannot_be_kept_ends_train_with_the_cause(mesh, script, write, cause):
    pytest.importorskip("torch")
    job = submit(mesh, mesh.hosts[2], script(ELASTIC % (UNKEPT % write)), "--workers", 2, framework="edtPyTorch")
    facts = ended(mesh, job, 90)
    assert facts["state"] == "ERROR", facts
    assert "cannot be kept on this host" in facts["detail"] and cause in facts["detail"], facts["detail"]


# ---- a full disk ----

@pytest.fixture
def small_disk(tmp_path):
    """An ext4 of 96 MiB. Its folder's name is short: the agents' sockets lie below it."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    image, folder = tmp_path / "image", pathlib.Path(tempfile.mkdtemp(prefix="shoal-disk-"))
    with open(image, "wb") as file:
        file.truncate(96 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as refused:
        pytest.skip("no loop mount here: %s" % getattr(refused, "stderr", refused))
    yield folder
    subprocess.run(["umount", "-l", str(folder)])
    folder.rmdir()


def fill(folder):
    """Takes all room on the disk with one file; deleting it makes room again."""
    path = folder / "filling"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    if file.write(b"x" * size) < size:
                        break
    return path


def test_a_full_disk_on_one_host_is_said_and_loses_nothing(new_mesh, small_disk, script):
    mesh = new_mesh(("alpha", "beta"))
    full = Host(mesh, "gamma")
    full.data = small_disk / "gamma"
    mesh.hosts.append(full)
    full.prepare(mesh.hosts[0])
    full.start()
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 3), 30, "%s knows 3 hosts" % host.name)
    folder = script("print('x')", **{"ballast.bin": "x"})
    (folder / "ballast.bin").write_bytes(os.urandom(300000))
    kept = [submit(mesh, mesh.hosts[i % 3], folder, "--device", "gpu") for i in range(6)]
    filling = fill(small_disk)
    accepted, refusals = [], []
    for i in range(6):
        for host in mesh.hosts:
            try:
                accepted.append(submit(mesh, host, folder, "--device", "gpu"))
            except Failed as why:
                refusals.append((host.name, str(why)))
    others = mesh.hosts[:2]
    assert not [why for why in refusals if why[0] != "gamma"], "the other hosts go on: %s" % refusals
    for _, why in refusals:
        assert "space" in why or "room" in why or "unreachable" in why, why
    print("the full host's agent %s; %d accepted, %d refused there" % (
        "lives" if full.process.poll() is None else "ended", len(accepted), len(refusals)))
    if full.process.poll() is not None:
        assert "space" in full.log.read_text(), "its last words say why: %s" % full.log.read_text()[-1000:]
    filling.unlink()
    if full.process.poll() is not None:
        full.start()
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 3), 30, "%s knows 3 hosts again" % host.name)
        mesh.until(lambda: not {*kept, *accepted} - {job for job, _ in job_list(host)}, 15, "%s lists what was acknowledged"
                   % host.name)
    assert ended(mesh, submit(mesh, full, script("print('room again')")), 30)["state"] == "FINISHED"
    assert all(host.process.poll() is None for host in others)


def test_a_full_store_refuses_jobs_and_lets_those_that_run_end(new_mesh, script, tmp_path):
    mesh = new_mesh(("alone",), slots=1, agent_options=("--store-map", 16))
    host = mesh.hosts[0]
    release = tmp_path / "release"
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
    running = submit(mesh, host, script(waits), script=(str(release),))
    mesh.until(lambda: mesh.job(running)["state"] == "RUNNING", 30, "it runs")
    folder = script("print('never run')", **{"ballast.bin": os.urandom(30000).hex()})
    made = []

    def refused():
        done = mesh.shoal("job", "run", "--framework", "PyTorch", "--model-main", "main.py", "--model-dir", folder,
                          "--node", host.url, "--output", "json", check=False)
        if done.returncode == 0:
            made.append(job_id(done.stdout))
        return done.returncode != 0 and done

    done = mesh.until(refused, 120, "a submit is refused", pause=0)
    assert "% full" in done.stderr and "delete finished jobs" in done.stderr and "--store-map" in done.stderr, done.stderr
    assert len(made) > 10
    release.touch()
    assert ended(mesh, running)["state"] == "FINISHED"  # there was room for its end
    for job in made:
        mesh.shoal("job", "delete", job, "--node", host.url)
    mesh.until(lambda: not refused(), 60, "jobs are taken again", pause=0.5)
    assert host.process.poll() is None
