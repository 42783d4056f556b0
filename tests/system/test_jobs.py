"""Jobs of one process: from any node, to the end, with log and result; an agent that restarts under them."""

import json
import time

import pytest
from helpers import ended, groups, log_of, result_of, submit

HELLO = """
import os, sys
print("hello from", os.path.basename(os.getcwd()), *sys.argv[1:])
print("on the other stream", file=sys.stderr)
os.makedirs(os.path.join(os.environ["RESULT_DIR"], "model", "deep"), exist_ok=True)
with open(os.path.join(os.environ["RESULT_DIR"], "model", "deep", "answer.txt"), "w") as answer:
    answer.write("42")
"""

# Runs until the file named by its argument is there.
WAITER = """
import os, sys, time
print("waiting", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("done", flush=True)
"""


def test_any_node_takes_a_job_and_gives_the_same_answer(mesh, script, tmp_path):
    folder = script(HELLO)
    for through in mesh.hosts:
        job = submit(mesh, through, folder, script=("--epochs", "1"))
        facts = ended(mesh, job)
        assert facts["state"] == "FINISHED", facts["detail"]
        assert facts["exitCode"] == 0
        for host in mesh.hosts:
            seen = mesh.until(lambda: (f := host.get("/v1/jobs/" + job))["hasEnded"] and f, 5, "%s sees the end" % host.name)
            for key in ("id", "state", "creator", "framework", "args", "exitCode", "created"):
                assert seen[key] == facts[key], key
            assert mesh.until(lambda: log_of(mesh, host, job), 5, "the log") == "hello from model --epochs 1\n"
            assert log_of(mesh, host, job, "--which", "err") == "on the other stream\n"
            assert result_of(mesh, host, job, tmp_path)["model/deep/answer.txt"] == b"42"


ENVIRONMENT = """
import json, os
print(json.dumps([dict(os.environ), os.getcwd(), os.getuid(), os.getgid()]))
"""


def test_a_script_finds_the_variables_that_wmla_gives(mesh, script):
    """What the training contract lists in its section 2.2.1 and the execs' in 4.15, for a job of one process without GPUs."""
    job = submit(mesh, mesh.hosts[0], script(ENVIRONMENT), "--env", "MINE=1 2", "--env", "OMP_NUM_THREADS=3")
    assert ended(mesh, job)["state"] == "FINISHED"
    seen, folder, user, group = json.loads(log_of(mesh, mesh.hosts[0], job))
    result, home = seen["RESULT_DIR"], seen["FABRIC_HOME"]
    task = seen["MSD_POD_NAME"]
    assert task.startswith(job)
    want = {
        "DATA_DIR": seen["DLI_DATA_FS"], "LOG_DIR": "%s/log/app.%s" % (result, task), "SAVED_MODEL_DIR": result + "/model",
        "CHECKPOINT_DIR": result + "/checkpoint", "DLI_SHARED_FS": home, "DL_NFS_PATH": home, "DLI_FABRIC_HOME": home,
        "DLI_EXECID": job, "APP_ID": job, "JOB_ID": job, "TASK_JOB_ID": job, "TASK_ID": seen["TASK_ID"], "DLI_WORK_DIR": folder,
        "MODEL_PATH": folder, "PS_PATH": folder, "PWD": folder, "FRAME_WORK": "PyTorch", "DLI_CS_DATASTORE_META": "", "DATA_PATH": "",
        "DLI_LOGGER_LEVEL": "info", "DLI_IS_ELASTIC": "false", "DLI_SUBMIT_USERNAME": "admin", "DLI_RUN_AS_USERNAME": "admin",
        "DLI_RUN_AS_USERID": str(user), "DLI_RUN_AS_GROUPID": str(group), "USER": "admin", "CUDA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "TASK12N_DEVICE_TYPE": "cpu", "WMLA_NWORKER": "1",
        "WMLA_WORKER_NDEVICE": "1", "HOSTNAME": task, "MSD_POD_IP": "127.0.0.1", "MSD_WAIT_AFTER_FINISHED_IN_SEC": "0",
        "PYTHONUNBUFFERED": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "3", "MINE": "1 2"}
    assert {name: seen.get(name) for name in want} == want
    assert result == "%s/%s/batchworkdir/%s" % (seen["DLI_RESULT_FS"], "admin", job)
    assert home + "/native" in seen["LD_LIBRARY_PATH"].split(":") and folder in seen["PYTHONPATH"].split(":")


RECORDS = """
from elog import ELog
with ELog.open() as log:
    for i in range(200):
        print("printed", i, "whole")
        log.recordText("recorded %d whole" % i)
"""


@pytest.mark.parametrize("how", ["cold", "warm"])
def test_lines_of_elog_stand_between_those_that_the_script_prints(mesh, script, how):
    host = mesh.hosts[0]
    job = submit(mesh, host, script(RECORDS), *(["--warm"] if how == "warm" else []))
    assert ended(mesh, job)["state"] == "FINISHED"
    lines = log_of(mesh, host, job).splitlines()
    assert [line.split("] ")[-1] for line in lines] == [
        "%s %d whole" % (word, i) for i in range(200) for word in ("printed", "recorded")]


# What is on its way in two pipes at once has no order any more: each line is in its file before the next one.
SPEAKING = """
import os
import sys
import time
for i in range(20):
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        print(name, i, file=stream)
        while True:
            path = os.path.join(os.environ["LOG_DIR"], "std" + name)
            if os.path.exists(path) and open(path).read().endswith("%s %d\\n" % (name, i)):
                break
            time.sleep(0.01)
"""


def test_both_streams_are_followed_in_their_order(mesh, script, tmp_path):
    lines = ["%s %d" % (stream, i) for i in range(20) for stream in ("out", "err")]
    run = ("job", "run", "--framework", "PyTorch", "--model-main", "main.py", "--model-dir", script(SPEAKING))
    followed = mesh.shoal(*run, "--follow", "--node", mesh.hosts[0].url).stdout.splitlines()
    assert followed[1:] == lines
    for host in mesh.hosts:
        def shown(*options):
            return mesh.shoal("job", "logs", followed[0], "--node", host.url, *options).stdout.splitlines()
        mesh.until(lambda: shown() == lines, 5, "%s has the log" % host.name)
        assert shown("--tail", "3") == shown("--tail", "3", "-f") == lines[-3:]
        assert shown("--tail", "0") == []
        assert shown("--rank", "0") == lines
        assert shown("--rank", "all") == ["rank 0 | " + line for line in lines]
        assert [json.loads(line)["line"] for line in shown("--output", "json")] == lines
        assert shown("--which", "out") == lines[::2]


FAILING = """
import torch
from fabric_model import FabricModel

class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return self.broken(i)
    def broken(self, i):
        raise RuntimeError("my own data error")

def datasets():
    return Digits(), Digits()

model = torch.nn.Linear(4, 2)
FabricModel(model, datasets, torch.nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)).train(1, 8, 2)
"""


def test_what_an_engine_raised_is_said_at_the_users_own_line(mesh, script):
    pytest.importorskip("torch")
    job = submit(mesh, mesh.hosts[0], script(FAILING), "--workers", "2", framework="edtPyTorch")
    facts = ended(mesh, job, seconds=180)
    said = 'RuntimeError: my own data error (main.py, line 11, in broken: raise RuntimeError("my own data error"))'
    assert facts["state"] == "ERROR" and facts["detail"].endswith(said), facts["detail"]
    for host in mesh.hosts:
        assert mesh.until(lambda: log_of(mesh, host, job, "-f", "--which", "outerr"), 10, "its log").rstrip().endswith(
            '/main.py", line 11, in broken\n    raise RuntimeError("my own data error")\nRuntimeError: my own data error')
        assert said in "".join(host.get("/v1/jobs/%s/why" % job)["why"])


def test_a_list_is_the_same_on_every_node_and_an_ending_names_a_job(mesh, script):
    job = submit(mesh, mesh.hosts[0], script(HELLO))
    ended(mesh, job)
    for host in mesh.hosts:
        mesh.until(lambda: any(j["id"] == job and j["state"] == "FINISHED" for j in host.get("/v1/jobs")["jobs"]), 5,
                   "%s lists it" % host.name)
        assert mesh.cli(host, "job", "show", job[-8:])["id"] == job


@pytest.mark.parametrize("text,detail", [
    ("raise ValueError('no such luck')", "no such luck"),
    ("import sys; sys.exit(3)", "3"),
    ("import os; os.kill(os.getpid(), 9)", "9"),
])
def test_a_script_that_fails_ends_as_error_and_says_why(mesh, script, text, detail):
    facts = ended(mesh, submit(mesh, mesh.hosts[1], script(text)))
    assert facts["state"] == "ERROR"
    assert detail in facts["detail"], facts["detail"]


def test_a_stop_ends_the_job_and_what_it_forked(mesh, script, tmp_path):
    forks = "import os, time\nos.write(1, b'%d\\n' % (os.fork() or os.getpid()))\nwhile True: time.sleep(1)"
    job = submit(mesh, mesh.hosts[0], script(forks))
    mesh.until(lambda: len(log_of(mesh, mesh.hosts[2], job).split()) == 2, 20, "both processes have written")
    pids = [int(word) for word in log_of(mesh, mesh.hosts[2], job).split()]
    mesh.shoal("job", "stop", job, "--node", mesh.hosts[2].url)
    assert ended(mesh, job, 45)["state"] == "KILLED"
    mesh.until(lambda: not any(alive(pid) for pid in pids), 10, "no process of it is left")
    free = lambda: all(n["slotsFree"] == n["slots"] for n in mesh.hosts[0].get("/v1/nodes"))  # noqa: E731
    mesh.until(free, 10, "its slot is free again")


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_deleted_job_is_unknown_everywhere_and_leaves_no_files(mesh, script):
    job = submit(mesh, mesh.hosts[0], script(HELLO))
    ended(mesh, job)
    mesh.shoal("job", "delete", job, "--node", mesh.hosts[1].url)
    for host in mesh.hosts:
        mesh.until(lambda: mesh.shoal("job", "show", job, "--node", host.url, check=False).returncode == 3, 10,
                   "%s no longer knows it" % host.name)
        mesh.until(lambda: not list(host.data.glob("results/*/batchworkdir/" + job)), 10, "its files are gone")


def test_an_agent_may_be_killed_and_restarted_under_a_job(new_mesh, script, tmp_path):
    mesh = new_mesh()
    go = tmp_path / "go"
    job = submit(mesh, mesh.hosts[0], script(WAITER), script=(str(go),))
    busy = mesh.until(lambda: next((h for h in mesh.hosts if h.runners()), None), 20, "a runner")
    mesh.until(lambda: "waiting" in log_of(mesh, mesh.hosts[0], job), 20, "the script runs")
    before = busy.everything()[1:]
    busy.kill()
    others = [host for host in mesh.hosts if host is not busy]
    busy.start()
    mesh.until(lambda: mesh.knows(busy, 3), 20, "the agent is back")
    assert [pid for pid in busy.everything() if pid != busy.process.pid] == before
    go.write_text("")
    facts = ended(mesh, job, hosts=others)
    assert facts["state"] == "FINISHED", facts["detail"]


def test_thirty_jobs_spread_over_many_guardian_sets_and_a_death_touches_only_its_own(new_mesh, script):
    mesh = new_mesh(("a", "b", "c", "d", "e"), slots=1)
    folder = script("print('x')")
    jobs = []
    for i in range(30):
        jobs.append(submit(mesh, mesh.hosts[i % 5], folder, "--device", "gpu"))  # no such slot: they stay pending
    held = {}
    for host in mesh.hosts:
        for group, status in groups(host).items():
            held.setdefault(group, {})[host.name] = status
    sets = {tuple(sorted(next(iter(held[job].values()))["guardians"])) for job in jobs}
    assert len(sets) >= 6, sets
    victim = mesh.hosts[4]
    before = {job: max(status["term"] for status in held[job].values()) for job in jobs}
    led = {job for job in jobs if any(s["leads"] for n, s in held[job].items() if n == victim.name)}
    led_by = {job: host for job in jobs for host in mesh.hosts if held[job].get(host.name, {}).get("leads")}
    victim.kill()
    rest = mesh.hosts[:4]
    for job in led:
        mesh.until(lambda: (f := mesh.job(job, *rest)) and f["leader"] not in ("", victim.name), 10, "%s has a new leader" % job)
    for host in rest:
        for group, status in groups(host).items():
            stood_still = group in led_by and "the loop was" in led_by[group].log.read_text()  # its office may be another's
            if group in before and group not in led and not stood_still:
                assert status["term"] == before[group], "%s was not led by the dead one, yet its term changed" % group


FLOOD = """
import sys
for i in range(40):
    print("x" * 99999)
print("the script went on", file=sys.stderr)
"""


def test_a_log_that_floods_is_cut_and_can_be_read_everywhere(new_mesh, script):
    mesh = new_mesh(("alpha", "beta"), agent_options=("--log-max", "1"))
    job = submit(mesh, mesh.hosts[0], script(FLOOD))
    facts = ended(mesh, job)
    assert facts["state"] == "FINISHED", facts["detail"]
    for host in mesh.hosts:
        text = mesh.until(lambda: (t := log_of(mesh, host, job)) and t.endswith("\n") and t, 10, "the log")
        last = text.splitlines()[-1]
        assert last.startswith("shoal: the log is cut here: the logs of this job have reached 1 MiB on this host."), last
        assert "raise log-max in agent.conf" in last and len(text) < (1 << 20) + 400
        assert log_of(mesh, host, job, "--which", "err").startswith("shoal: the log is cut here")
