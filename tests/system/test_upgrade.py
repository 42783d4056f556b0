"""Agents of the previous version and of this one share a mesh, and are exchanged one by one, there and back, under load.

`tests/system/previous` names the commit of the previous version. It is built once, without optimizing since it only has to
speak, into build/previous; without that commit in the clone the tests are skipped."""

import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
import training
from conftest import OUT, ROOT
from helpers import ended, submit
from mesh import Failed, Mesh, job_id
from training import Run

PREVIOUS = pathlib.Path(__file__).with_name("previous")
WARN = "WARN=-std=c11 -D_GNU_SOURCE -w"  # what a later compiler, or this flavour, finds in it is mended here, and not there
ATTEMPTS_MAX = 3  # of a plain script: one that an agent leaves alone for longer than a lease is started again
SCRIPT = """
import fcntl, os
mark = open(os.path.join(os.environ["MARKS"], os.environ["DLI_EXECID"]), "a")
fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails, and so does the job, while another run of it lives
mark.write("ran\\n")
"""
PACE = 0.25  # seconds a sample: the elastic job outlasts six exchanges, and takes a step every few seconds
JOBS_AT_ONCE = 2  # of the stream: the slots that the elastic job leaves


def git(*words):
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True)


@pytest.fixture(scope="module")
def previous():
    """The binary of the previous version, its fabric home beside it."""
    commit = PREVIOUS.read_text().split()[0]
    if shutil.which("git") is None or git("cat-file", "-e", commit + "^{commit}").returncode != 0:
        pytest.skip("commit %s, which tests/system/previous names, is not in this clone: git fetch --unshallow" % commit)
    folder = ROOT / "build" / "previous" / commit
    binary = folder / "build" / "debug" / "shoal"
    if not (folder / "built").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", str(folder)], input=git("archive", commit).stdout, check=True)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        made = subprocess.run(["make", "-s", "-C", str(folder), "-j2", "FLAVOUR=debug", WARN, "all"], capture_output=True, text=True)
        assert made.returncode == 0, "commit %s does not build:\n%s" % (commit, made.stderr[-3000:])
        (folder / "built").touch()
    return binary


@pytest.fixture(autouse=True)
def no_job_stays():
    yield
    Run.end_all()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "elastic"
    path.mkdir()
    (path / "main.py").write_text(training.SCRIPT)
    return path


class Stream:
    """Short jobs, each submitted at another host, until told to stop. An answer is an acknowledgement; a submit that gets
    none, as of an agent that is being exchanged, is tried at the next host."""

    def __init__(self, mesh, model, marks):
        self.mesh, self.model, self.marks, self.hosts = mesh, model, marks, list(mesh.hosts)
        self.acknowledged, self.trouble, self.said, self.waiting = [], [], [], {}
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(JOBS_AT_ONCE)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        try:
            while not self.over.is_set():
                number += 1
                job = self.submit(number)
                self.acknowledged.append(job)
                self.waiting[job] = time.monotonic()
                self.mesh.until(lambda: (facts := self.mesh.job(job)) and facts["hasEnded"], 90, "the end of %s" % job, pause=0.1)
                del self.waiting[job]
        except Exception as error:  # shown by end()
            self.trouble.append(error)

    def submit(self, number):
        for turn in range(100):
            host = self.hosts[(number + turn) % len(self.hosts)]
            done = self.mesh.shoal("job", "run", "--framework", "PyTorch", "--model-main", "main.py", "--model-dir", self.model,
                                   "--env", "MARKS=%s" % self.marks, "--node", host.url, "--output", "json", check=False)
            if done.returncode == 0:
                return job_id(done.stdout)
            self.said.append("%.1f %s: %s" % (time.monotonic(), host.name, done.stderr.strip()))
            self.over.wait(0.2)
        raise Failed("no host takes a job")

    def more(self, count):
        """Until that many more are acknowledged."""
        goal = len(self.acknowledged) + count
        try:
            self.mesh.until(lambda: len(self.acknowledged) >= goal or self.trouble, 90, "%d more jobs" % count, pause=0.1)
            assert not self.trouble, self.trouble
        except (Failed, AssertionError) as error:
            raise Failed("%s\n%s" % (error, self.told())) from None

    def told(self):
        """What keeps the stream waiting, as each host sees it."""
        lines = ["now %.1f, submits that failed: %s" % (time.monotonic(), "; ".join(self.said[-6:]))]
        for job, since in list(self.waiting.items()):
            lines.append("%s waits since %.1f: %s" % (job, since, self.mesh.job(job)))
            lines += [host.name + ": " + self.mesh.shoal("why", job, "--node", host.url, check=False).stdout for host in self.hosts]
        for host in self.hosts:
            for what in ("leases", "groups"):
                try:
                    lines.append("%s, %s: %s" % (host.name, what, host.get("/v1/debug/" + what)))
                except OSError as error:
                    lines.append("%s, %s: %s" % (host.name, what, error))
        lines += ["%s, its log's end:\n%s" % (host.name, host.log.read_text(errors="replace")[-1500:]) for host in self.hosts]
        return "\n".join(lines)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(120)
        assert not self.trouble, "%s\n%s" % (self.trouble, self.told())
        return self.acknowledged


def exchange(mesh, host, binary):
    """As an operator does it: stop the agent, start the other version on its folder, wait until it knows the mesh."""
    host.kill(signal.SIGTERM)
    mesh.binary = binary
    host.start()
    mesh.until(lambda: mesh.knows(host, len(mesh.hosts)), 30, "%s is back with %s" % (host.name, binary))


def test_agents_are_exchanged_under_load(previous, folder, script, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    with Mesh(previous, slots=2) as mesh:
        mesh.grow(("alpha", "beta", "gamma"))
        run = Run(mesh, mesh.hosts[0], folder, workers=3, epochs=2)
        run.step(1, 120, workers=3)
        run.pace(PACE)
        stream = Stream(mesh, script(SCRIPT), marks)
        try:
            for binary in (OUT / "shoal", previous):
                for host in mesh.hosts:
                    exchange(mesh, host, binary)
                    stream.more(1)
                    run.step(run.look()["steps"] + 1, 60)  # and no worker is another process than before
            jobs = stream.end()
        finally:
            stream.over.set()
        for job in jobs:
            facts = mesh.until(lambda: mesh.job(job), 10, "somebody knows %s" % job)
            assert facts["state"] == "FINISHED", facts
            runs = len((marks / job).read_text().splitlines())
            assert 1 <= runs <= ATTEMPTS_MAX, "%s ran %d times" % (job, runs)
        run.finish(180)
        assert mesh.hosts[0].get("/v1/jobs/%s/ledger" % run.job)["exact"] is True, "no sample is skipped or seen twice"


def test_a_job_of_more_than_64_workers_waits_for_the_last_exchange(previous, tmp_path):
    """Decision 0078: whoever guards or runs it would refuse its entries and epochs."""
    (tmp_path / "fit").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "fit").chmod(0o755)
    with Mesh(previous, slots=2) as mesh:
        alpha, beta = mesh.grow(("alpha", "beta"))
        exchange(mesh, alpha, OUT / "shoal")

        def submit_of(workers):
            return mesh.shoal("job", "run", "--framework", "shoalC", "--model-main", "fit", "--model-dir", tmp_path, "--workers",
                              str(workers), "--node", alpha.url, "--output", "json", check=False)
        refused = submit_of(65)
        assert refused.returncode != 0 and "host beta runs an agent of a version that takes at most 64" in refused.stderr, refused
        assert submit_of(64).returncode == 0
        exchange(mesh, beta, OUT / "shoal")
        mesh.until(lambda: submit_of(65).returncode == 0, 20, "all hosts take it", pause=0.2)


def test_an_agent_of_another_wire_version_is_refused_by_name(mesh, script):
    """A version is the second byte of what an agent says first (link_wire.h); the third asks for a newer reader."""
    host = mesh.hosts[0]
    with socket.create_connection((host.address, host.port), timeout=20) as stream:
        stream.sendall(b"L\x7f\x7e" + bytes(64))
        while stream.recv(4096):  # the agent closes it
            pass
    mesh.until(lambda: "speaks version 127 of the link, readable from version 126 on" in host.log.read_text(), 10, "a line in the log")
    assert ended(mesh, submit(mesh, host, script("print(1)")))["state"] == "FINISHED", "the mesh goes on"
