"""Everything that an agent reads or writes in a job's own folder becomes something else: its host goes on, whoever asks for it,
until the job is in the archive and after that."""

import json
import os
import urllib.error
import urllib.request

import pytest
from helpers import ended, submit
from mesh import TLS, Mesh
from system_conftest import OUT

TURN_MS_MAX = 500  # beside other tests
POOL = 4  # threads of an agent that wait for disks
QUESTIONS = ("", "/metrics", "/ledger", "/log?which=out", "/log?which=outerr", "/files", "/result")


@pytest.fixture(scope="module")
def mesh():
    with Mesh(OUT / "shoal", agent_options=("--archive-after", "1", "--files-max", "4000")) as shared:
        shared.grow(("alpha", "beta", "gamma"))
        yield shared


# Some of these names its agent, or its runner, has already: they are exchanged. A folder is not empty, and a file is a hole: of
# 4 GiB, or less in the result folder, which is copied to other hosts.
TRAPS = """
import os, pathlib, shutil, sys
print("made", flush=True)
socket = pathlib.Path(os.environ["SHOAL_AGENT_SOCKET"])
result, own = pathlib.Path(os.environ["RESULT_DIR"]), socket.parent / "jobs" / os.environ["DLI_EXECID"]
def lay(path, hole_bytes):
    for _ in range(100):
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            if KIND == "pipe":
                return os.mkfifo(path)
            if KIND == "link":
                return path.symlink_to(socket.parent / "mesh.key")
            if KIND == "folder":
                return (path / "below").mkdir(parents=True)
            with open(path, "x") as hole:
                return os.truncate(hole.fileno(), hole_bytes)
        except FileExistsError:  # its runner was faster
            pass
    raise FileExistsError(path)
for name in ("audit", "ledger", "archive", "manifest", "metrics", "service.json", "service.json.next", "runtime.json", "spec",
             "audit.part", "ledger.part", "files", "owed"):
    lay(own / name, 4 << 30)
for path in (result / "log" / ".order", result / "model" / "weights", pathlib.Path(os.environ["LOG_DIR"]) / "stdout.order"):
    lay(path, 16 << 20)
"""


def ask(mesh, host, path):
    """The status; an answer that does not come in time is none."""
    request = urllib.request.Request(host.url + path, headers={"Authorization": "Bearer " + mesh.token(host)})
    try:
        with urllib.request.urlopen(request, timeout=20, context=TLS) as answer:
            while answer.read(1 << 20):
                pass
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def ask_all(mesh, job):
    """More often than there are threads to be used up."""
    for host in mesh.hosts:
        for question in QUESTIONS:
            if question == "/result" or question == "/files":
                assert ask(mesh, host, "/v1/jobs/%s%s" % (job, question)) > 0
                continue
            for _ in range(POOL + 1):
                assert ask(mesh, host, "/v1/jobs/%s%s" % (job, question)) > 0
        assert ask(mesh, host, "/healthz") == 200


def is_archived(mesh, job):
    return any(record["job"] == job and record["final"] for host in mesh.hosts for record in host.get("/v1/debug/archive"))


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "file"])
def test_no_trap_in_a_jobs_own_folder_stops_its_host(mesh, script, kind):
    host = mesh.hosts[0]
    keys = {one: (one.data / "mesh.key").read_bytes() for one in mesh.hosts if (one.data / "mesh.key").exists()}
    job = submit(mesh, host, script("KIND = %r\n%s" % (kind, TRAPS)))
    facts = ended(mesh, job)
    assert facts["state"] in ("FINISHED", "ERROR"), facts
    ask_all(mesh, job)
    mesh.until(lambda: is_archived(mesh, job), 60, "it is in the archive", pause=0.2)
    ask_all(mesh, job)
    assert ended(mesh, submit(mesh, host, script("print('fine')")))["state"] == "FINISHED"
    for one in mesh.hosts:
        assert one.process.poll() is None, one.log.read_text()[-2000:]
        mesh.until(lambda: mesh.knows(one, len(mesh.hosts)), 15, "%s sees every host alive" % one.name)
    assert keys == {one: (one.data / "mesh.key").read_bytes() for one in keys}


LINKS = """
import os
folder = os.environ["RESULT_DIR"] + "/model"
os.makedirs(folder, exist_ok=True)
for i in range(200000):
    os.symlink("nothing", folder + "/%d" % i)
import time; time.sleep(60)
"""


def test_a_job_that_lays_links_without_end_is_ended_and_its_reason_says_why(mesh, script):
    job = ended(mesh, submit(mesh, mesh.hosts[0], script(LINKS)), 60)
    assert job["state"] == "ERROR" and "more than 4000 files and links" in job["detail"] and "files-max" in job["detail"], job
