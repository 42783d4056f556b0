"""Many short jobs: each ends exactly once, with its own exit code and log, whatever is killed meanwhile."""

import http.client
import json
import os
import pathlib
import random
import re
import signal
import time

import pytest
from helpers import log_of, submit
from mesh import TLS, job_id

SEED = int(os.environ.get("SHOAL_DRAW", "1"), 0)  # another one for each commit, or SEED: tests/run.py
JOBS = 1000
TURN_S = 0.4  # 20 ms is the goal and the bench's; here other tests share the cores

# One line for each time that it runs: `sh run.sh N` leaves COUNTS/N, prints, and ends with N modulo 3.
RUN = """
echo ran >> %s/$1
echo out $1
exit $(($1 %% 3))
"""


class Submits:
    """Jobs of one program, over one kept connection."""

    def __init__(self, mesh, host):
        self.token = mesh.token(host)
        self.connection = http.client.HTTPSConnection(host.address, host.api_port, context=TLS, timeout=30)

    def submit(self, *words):
        return self.submit_args("--exec-start PyTorch --user-cmd -- " + " ".join(map(str, words)))

    def submit_args(self, args):
        form = json.dumps({"args": args})
        body = '--shoal\r\nContent-Disposition: form-data; name="data"\r\n\r\n%s\r\n--shoal--\r\n' % form
        self.connection.request("POST", "/platform/rest/deeplearning/v1/execs", body, {
            "Authorization": "Bearer " + self.token, "Content-Type": "multipart/form-data; boundary=shoal"})
        answer = self.connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        return job_id(text)


    def metric(self, name):
        self.connection.request("GET", "/v1/metrics", headers={"Authorization": "Bearer " + self.token})
        text = self.connection.getresponse().read().decode()
        return float(re.search(r"^%s (\S+)" % name, text, re.M).group(1))


@pytest.fixture
def counted(tmp_path):
    """(the script, how often each number ran)"""
    counts = tmp_path / "counts"
    counts.mkdir()
    run = tmp_path / "run.sh"
    run.write_text(RUN % counts)
    return run, lambda: {int(path.name): path.read_text().count("ran") for path in counts.iterdir()}


def shown(mesh, job):
    facts = mesh.job(job)
    return facts if facts and facts["hasEnded"] else None


def check(mesh, jobs, ran):
    """Every job has ended once, as its number says; its log is readable at every node; no slot is held."""
    for number, job in enumerate(jobs):
        facts = mesh.until(lambda: shown(mesh, job), 120, "job %d (%s) ends" % (number, job))
        assert facts["exitCode"] == number % 3, (number, facts)
        assert facts["state"] == ("FINISHED" if number % 3 == 0 else "ERROR"), (number, facts)
    assert ran() == {number: 1 for number in range(len(jobs))}
    for number in range(0, len(jobs), max(19, len(jobs) // 10)):
        for host in mesh.hosts:
            assert mesh.until(lambda: log_of(mesh, host, jobs[number]), 10, "the log at " + host.name) == "out %d\n" % number
    free = lambda: all(n["slotsFree"] == n["slots"] for n in mesh.hosts[0].get("/v1/nodes"))  # noqa: E731
    mesh.until(free, 30, "every slot is free")
    mesh.until(lambda: not any(host.runners() for host in mesh.hosts), 30, "no runner is left")


def helper_of(host):
    for entry in pathlib.Path("/proc/%d/task/%d/children" % (host.process.pid, host.process.pid)).read_text().split():
        if pathlib.Path("/proc/%s/cmdline" % entry).read_bytes().split(b"\0")[1:2] == [b"spawn-helper"]:
            return int(entry)
    return None


def test_a_thousand_short_jobs_end_exactly_once_each_and_no_turn_is_long(new_mesh, counted):
    run, ran = counted
    mesh = new_mesh(slots=4)
    clients = [Submits(mesh, host) for host in mesh.hosts]
    jobs = [clients[number % 3].submit("/bin/sh", run, number) for number in range(JOBS)]
    check(mesh, jobs, ran)
    longest = [Submits(mesh, host).metric("shoal_loop_turn_longest_seconds") for host in mesh.hosts]
    assert all(0 < turn < TURN_S for turn in longest), "the longest turns of the agents' loops: %s s" % longest
    silent = clients[0].submit("/bin/true")
    mesh.until(lambda: shown(mesh, silent), 30, "the silent one ends")
    for host in mesh.hosts:  # its empty logs are on one host alone
        assert log_of(mesh, host, silent) == ""


def held(host):
    """(descriptors, KiB of its own memory) of the agent."""
    status = pathlib.Path("/proc/%d/status" % host.process.pid).read_text()
    return len(os.listdir("/proc/%d/fd" % host.process.pid)), int(re.search(r"RssAnon:\s+(\d+)", status).group(1))


@pytest.mark.soak
def test_an_agent_that_is_up_for_long_holds_no_more_than_its_records(new_mesh):
    """Of five thousand jobs, which go into the archive; the first thousand fill the tables that have a size."""
    mesh = new_mesh(slots=4, agent_options=("--archive-after", "2"))
    clients = [Submits(mesh, host) for host in mesh.hosts]
    began = {}
    for thousand in range(5):
        for number in range(1000):
            clients[number % 3].submit("/bin/true")
        mesh.until(lambda: all(client.metric("shoal_archive_records") >= 1000 * (thousand + 1) for client in clients), 600,  # noqa: B023
                   "every job is in the archive", pause=0.5)
        mesh.until(lambda: all(client.metric("shoal_groups") == 1 for client in clients), 120, "every group has ended", pause=0.5)
        began = began or {host: held(host) for host in mesh.hosts}
    for host, (descriptors, kib) in began.items():
        now = held(host)
        print("%s: %d descriptors, then %d; %d KiB, then %d" % (host.name, descriptors, now[0], kib, now[1]))
        assert now[0] <= descriptors + 4
        assert now[1] - kib <= 4000 * 5, "%.1f KiB a job" % ((now[1] - kib) / 4000)


@pytest.mark.parametrize("victim", ["helper", "agent"])
def test_short_jobs_end_exactly_once_when_the_helper_or_the_agent_is_killed(new_mesh, counted, victim):
    run, ran = counted
    mesh = new_mesh(slots=2)
    clients = [Submits(mesh, host) for host in mesh.hosts[:2]]
    struck = mesh.hosts[2]
    jobs = []
    for number in range(60):
        jobs.append(clients[number % 2].submit("/bin/sh", run, number))
        if number % 20 != 10:
            continue
        mesh.until(lambda: len(ran()) > number // 2, 60, "some have run")
        if victim == "helper":
            pid = helper_of(struck)  # after a kill there is none until the next job comes
            assert pid or number > 10
            if pid:
                os.kill(pid, signal.SIGKILL)
        else:
            struck.kill()
            struck.start()
    check(mesh, jobs, ran)


def test_a_job_runs_once_though_its_leader_speaks_before_its_runner(new_mesh, tmp_path):
    """The agent is killed before its table was written, and leads the job itself: it knows of the worker by its log at once, and
    by the runner a little later."""
    mesh = new_mesh(("alpha",), slots=1)
    host = mesh.hosts[0]
    run = tmp_path / "run.sh"
    run.write_text("echo ran >> %s/ran\nwhile [ ! -e %s/go ]; do sleep 0.05; done\n" % (tmp_path, tmp_path))
    job = Submits(mesh, host).submit("/bin/sh", run)
    mesh.until((tmp_path / "ran").exists, 60, "it runs")
    runner, = host.runners()
    host.kill()
    (host.data / "slots.copy").unlink(missing_ok=True)
    os.kill(runner, signal.SIGSTOP)
    led = host.log.read_text().count("leads " + job)
    host.start()
    mesh.until(lambda: host.log.read_text().count("leads " + job) > led, 60, "it leads the job", pause=0.01)
    mesh.until(lambda: host.get("/v1/jobs/" + job), 60, "it has heard of the job", pause=0.01)
    os.kill(runner, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert mesh.until(lambda: shown(mesh, job), 60, "it ends")["state"] == "FINISHED"
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_folders_that_a_silent_job_leaves_are_the_next_ones_and_are_as_new(new_mesh, tmp_path):
    """On one host, so that the next job is on the same; what any of them has written stays its own."""
    mesh = new_mesh(("alpha",), slots=1)
    host = mesh.hosts[0]
    client = Submits(mesh, host)
    spare, results = host.data / "spare", host.data / "results"
    look = tmp_path / "look.sh"
    look.write_text('cd "$RESULT_DIR" && (find . | sort && ls -di "$PWD" && ls -d "$LOG_DIR" "$CHECKPOINT_DIR" "$SAVED_MODEL_DIR") '
                    '> %s/seen && echo mine > checkpoint/mine' % tmp_path)

    def ran(*words):
        job = client.submit(*words)
        mesh.until(lambda: shown(mesh, job), 30, "it ends")
        return job

    silent = ran("/bin/true")
    mesh.until(lambda: (spare / "0.result").exists(), 10, "its folders are left to another")
    node = (spare / "0.result").stat().st_ino
    assert not list(results.rglob(silent)) and not (host.data / "jobs" / silent).exists()
    assert log_of(mesh, host, silent) == ""
    looking = ran("/bin/sh", look)
    words = (tmp_path / "seen").read_text().split()
    assert words[:6] == [".", "./_submitted_code", "./checkpoint", "./log", words[4], "./model"], words
    assert re.fullmatch(r"\./log/app\.%s-task12n-\w{5}" % looking, words[4]), words
    assert int(words[6]) == node  # it is the same folder
    assert not list(spare.iterdir())
    again = ran("/bin/true")  # folders that hold a file stay where they are, so these are new
    mesh.until(lambda: (spare / "0.result").exists(), 10, "its folders are left to another")
    assert not list(results.rglob(again))
    assert (next(results.rglob(looking)) / "checkpoint" / "mine").read_text() == "mine\n"
    host.kill()
    host.start()
    mesh.until(lambda: mesh.knows(host, 1), 30, "it is back")
    assert not list(spare.iterdir())  # F2


def test_short_jobs_end_exactly_once_when_agents_stand_still_at_random(new_mesh, counted):
    """SIGSTOP, and SIGCONT within the lease of a worker, at random moments of a burst; one agent at a time."""
    print("again: make test T=system/stand_still SEED=%d" % SEED)
    run, ran = counted
    chance = random.Random(SEED)
    mesh = new_mesh(slots=2)
    clients = [Submits(mesh, host) for host in mesh.hosts]
    stopped, until, jobs = None, 0.0, []
    for number in range(120):
        if stopped is None and chance.random() < 0.1:
            stopped, until = chance.randrange(3), time.monotonic() + chance.random() * 1.5
            print("agent %d stands still for %.2f s before job %d" % (stopped, until - time.monotonic(), number))
            mesh.hosts[stopped].process.send_signal(signal.SIGSTOP)
        others = [client for i, client in enumerate(clients) if i != stopped]
        jobs.append(others[number % len(others)].submit("/bin/sh", run, number))
        if stopped is not None and (time.monotonic() >= until or chance.random() < 0.1):
            mesh.hosts[stopped].process.send_signal(signal.SIGCONT)
            stopped = None
    if stopped is not None:
        mesh.hosts[stopped].process.send_signal(signal.SIGCONT)
    check(mesh, jobs, ran)


def test_what_is_asked_of_a_job_that_left_nothing_is_answered_alike_at_every_node(new_mesh, script):
    """No logs, no result, no steps: on two of three hosts nothing of it lies on disk, and soon on none in memory."""
    mesh = new_mesh(slots=1)
    clients = [Submits(mesh, host) for host in mesh.hosts]
    job = clients[0].submit("/bin/true")
    mesh.until(lambda: shown(mesh, job), 30, "it ends")
    for forgotten in (False, True):
        if forgotten:
            mesh.until(lambda: not any(client.metric("shoal_jobs_here") for client in clients), 30, "no agent remembers it")
        for host in mesh.hosts:
            mesh.until(lambda: host.get("/v1/jobs/" + job)["hasEnded"], 10, "%s sees the end" % host.name)
            assert log_of(mesh, host, job) == "" and log_of(mesh, host, job, "--which", "err") == ""
            assert host.get("/v1/jobs/%s/ledger" % job)["exact"] is True
    printing = submit(mesh, mesh.hosts[1], script("print('words')"))  # it has files, which a host fetches
    mesh.until(lambda: shown(mesh, printing), 30, "the other one ends")
    mesh.until(lambda: not any(client.metric("shoal_jobs_here") for client in clients), 30, "no agent remembers that one")
    for host in mesh.hosts:  # from disk
        assert log_of(mesh, host, printing) == "words\n"
