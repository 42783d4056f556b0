"""One small seeded elastic job, what it leaves behind, and who worked on it.

The job trains a little network with BatchNorm and dropout on handwritten digits: 19 train steps and a validation per data
epoch. Each sample takes as long as the file PACE says, so that a test has time to disturb it however slow the machine is."""

import collections
import fcntl
import io
import os
import pathlib
import pickle
import signal
import sys
import tempfile

import pytest
from helpers import result_of, submit

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "collective" / "python"))

from mesh import Failed, Mesh, descendants  # noqa: E402
from pyedt import _records, _schedule  # noqa: E402

torch = pytest.importorskip("torch")
BATCH, VIRTUAL, TRAIN, VALIDATION = 8, 8, 1200, 160
SLOW = 0.05  # seconds a sample while a test waits for hosts or workers to come: an engine may take long to start
SCRIPT = """
import importlib.util
import os
import sys
import time
import numpy
import torch
from callbacks import Callback
from fabric_model import FabricModel
from torch import nn

EPOCHS = int(os.environ["EPOCHS"])
BATCH, VIRTUAL, TRAIN, VALIDATION, SLOW = %d, %d, %d, %d, %g

class Digits(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, i):
        try:
            with open(os.environ["PACE"]) as pace:
                time.sleep(float(pace.read()))
        except FileNotFoundError:
            time.sleep(SLOW)
        return self.images[i], self.labels[i]

def datasets():
    # The file of sklearn.datasets.load_digits: importing sklearn costs each host of each job more than a second.
    folder = importlib.util.find_spec("sklearn").submodule_search_locations[0]
    table = numpy.loadtxt(os.path.join(folder, "datasets", "data", "digits.csv.gz"), delimiter=",")
    images = torch.tensor(table[:, :-1].reshape(-1, 1, 8, 8), dtype=torch.float32) / 16
    labels = torch.tensor(table[:, -1], dtype=torch.int64)
    return Digits(images[:TRAIN], labels[:TRAIN]), Digits(images[TRAIN:TRAIN + VALIDATION], labels[TRAIN:TRAIN + VALIDATION])

def die_once(where):
    # The first engine that comes to the place DIE_AT ends there, as if its process were killed.
    path = os.environ.get("DIE_ONCE")
    if path and os.environ.get("DIE_AT") == where:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), 9)

class Counter(Callback):
    def on_epoch_end(self, epoch, save_model=False):
        if epoch >= 1:
            die_once("on_epoch_end of the files" if save_model else "on_epoch_end")

def main():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Dropout(0.2), nn.Linear(128, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=[Counter()])
    fabric.train(EPOCHS, BATCH, VIRTUAL, validation_freq=1, checkpoint_freq=2)

if __name__ == "__main__":
    main()
""" % (BATCH, VIRTUAL, TRAIN, VALIDATION, SLOW)
START_SECONDS = 180  # at most, until engines have imported their framework and take part: on a busy machine a minute is too little
PARAMETERS = 10  # tensors that the optimizer updates at each step
# Of agents whose hosts see one elastic job: an interpreter with the framework loaded would be made for the next one, 2 s of a core each.
ONE_JOB = ("--warm-memory", "0")


class Run:
    """A job under way: who works on it, as far as anyone looked."""

    started = []

    def __init__(self, mesh, host, folder, workers=6, epochs=6, pace=0.004, env=(), framework="edtPyTorch"):
        self.mesh, self.epochs, self.wanted, self.usual = mesh, epochs, workers, pace
        self.schedule = _schedule.Schedule(TRAIN, VALIDATION, BATCH, VIRTUAL, epochs, 1, 2)
        self.pace(SLOW)
        environment = {"EPOCHS": epochs, "PACE": self.pace_path(), "OMP_NUM_THREADS": 1, **dict(env)}
        options = [word for name, value in environment.items() for word in ("--env", "%s=%s" % (name, value))]
        self.submitter = host
        self.job = submit(mesh, host, folder, "--workers", workers, *options, framework=framework)
        Run.started.append(self)
        self.seen = {}  # worker -> (host, pid, start time)
        self.last = {}  # worker -> its control page's words when last seen
        self.lost = set()  # workers that a test took away
        self.missed = {}  # worker -> updates before it came: their result was in the state that it took
        self.facts = None

    def look(self):
        """What the job is doing now. A worker that is another process than before is a failure at once."""
        facts = self.mesh.job(self.job)
        for worker, (host, pid, start, words) in self.mesh.workers(self.job).items():
            known = self.seen.setdefault(worker, (host, pid, start))
            assert known == (host, pid, start), "worker %d was restarted: %s, then %s" % (worker, known, (host, pid, start))
            assert words["updates"] % PARAMETERS == 0 and words["updates"] <= PARAMETERS * words["applied"], words
            self.last[worker] = words
        if facts is not None:
            self.facts = facts
            if facts["hasEnded"] and facts["state"] != "FINISHED":
                raise Failed("%s ended as %s: %s" % (self.job, facts["state"], facts["detail"]))
        return facts

    def until(self, condition, seconds, what):
        """The facts once condition(facts) holds of the running job."""
        def there():
            facts = self.look()
            if facts and facts["hasEnded"]:
                raise Failed("%s ended before: %s" % (self.job, what))
            return facts and condition(facts) and facts
        return self.told(lambda: self.mesh.until(there, seconds, what, pause=0.1))

    def told(self, wait):
        """wait(), and if it fails, all that is known of the job."""
        try:
            return wait()
        except Failed as error:
            why = [host.name + ": " + self.mesh.shoal("why", self.job, "--node", host.url, check=False).stdout
                   for host in self.mesh.hosts]
            logs = ["log of %s:\n%s" % (host.name, host.log.read_text()[-3000:]) for host in self.mesh.hosts]
            raise Failed("%s\nthe job: %s\nits workers: %s\n%s" % (
                error, self.facts, self.last, "\n".join(why + logs))) from None

    def step(self, number, seconds=60, workers=None):
        """The facts once that step is committed, with that many workers in the epoch if it is said."""
        def there(facts):
            return facts["steps"] >= number and (
                workers is None or (facts["workers"] == workers and self.members() == workers))
        return self.until(there, seconds, "step %d%s" % (number, " with %d workers" % workers if workers else ""))

    def goes_on(self):
        """Steps after a strike: evidence is enough, no lease of 15 s is waited for."""
        return self.step(self.facts["steps"] + 5, 12)

    def members(self):
        """Workers alive that have applied something."""
        return sum(words[3]["applied"] > 0 for words in self.mesh.workers(self.job).values())

    def on(self, host):
        """{worker: its control page's words} on that host."""
        return {worker: words for worker, (_, _, _, words) in self.mesh.workers(self.job, [host]).items()}

    @classmethod
    def end_all(cls):
        """After a test: a job that a failed test left must not hold the slots of the next one."""
        for run in cls.started:
            for host in run.mesh.hosts:
                if host.process.poll() is not None and host.data.exists():
                    host.start()
            facts = run.mesh.job(run.job) if run.facts is None or not run.facts["hasEnded"] else run.facts
            host = next((host for host in run.mesh.hosts if host.process.poll() is None), None)
            if host is not None and facts is not None and not facts["hasEnded"]:
                run.mesh.shoal("job", "stop", run.job, "--node", host.url, check=False)
                run.mesh.until(lambda: (f := run.mesh.job(run.job)) is None or f["hasEnded"], 60, "the end of a failed test's job")
        cls.started.clear()

    def pace_path(self):
        return self.mesh.folder / "pace"

    def pace(self, seconds):
        """How long a sample takes from now on."""
        write_whole(self.pace_path(), seconds)

    def gather(self):
        """Until every worker is in one epoch; they are slow until then. Who they are."""
        self.step(1, START_SECONDS, workers=self.wanted)
        # On a busy machine one comes when the others have taken a step: it has the state of then, and fewer updates.
        words = self.mesh.until(self.standing, 60, "every worker between two steps", pause=0.05)
        for worker, (applied, updates) in words.items():
            self.missed[worker] = self.schedule.train_steps_until(applied) - updates // PARAMETERS
        assert min(self.missed.values()) == 0, "nobody was there from the first step on: %s" % words
        self.pace(self.usual)
        return set(self.seen)

    def standing(self):
        """{worker: (applied, updates)}, when two looks in a row see the same: the words of a page are not written at once."""
        looks = [{worker: (words["applied"], words["updates"]) for worker, (_, _, _, words) in self.mesh.workers(self.job).items()}
                 for _ in range(2)]
        return looks[0] if looks[0] == looks[1] and len(looks[0]) == self.wanted else None

    def joined(self, host):
        """Until workers of this host have a share; the others are slow until then."""
        self.pace(SLOW)
        self.until(lambda facts: any(words["minibatches"] > 10 for words in self.on(host).values()), START_SECONDS,
                   host.name + " takes part")
        self.pace(self.usual)

    def finish(self, seconds=60):
        """To the end, as fast as it goes."""
        self.pace(0)
        return self.told(lambda: self.mesh.until(lambda: (f := self.look()) and f["hasEnded"] and f, seconds,
                                                 "the end of %s" % self.job, pause=0.1))

    def host(self, name):
        return next(host for host in self.mesh.hosts if host.name == name)

    def kill(self, worker, number=signal.SIGKILL):
        """One worker; SIGSTOP ends it, too, for it is left behind."""
        self.look()
        self.lost.add(worker)
        os.kill(self.seen[worker][1], number)

    def lose(self, host):
        """The whole host, its folder too."""
        self.look()
        self.lost |= {worker for worker, (place, _, _) in self.seen.items() if place is host}
        self.mesh.hosts.remove(host)
        host.lose()

    def until_struck(self, paths, pace):
        """Until every fault has struck, at that pace; the last one may do so at the very end."""
        self.pace(pace)
        self.mesh.until(lambda: (self.look() or True) and all(path.exists() for path in paths), 120, "every fault strikes", pause=0.1)

    def driver(self):
        """(host, pid) of the process that runs the script, or None."""
        for host in self.mesh.hosts:
            for runner in host.runners():
                for pid in descendants(runner)[1:]:
                    try:
                        environment = pathlib.Path("/proc/%d/environ" % pid).read_bytes().split(b"\0")
                    except OSError:
                        continue
                    if b"DLI_IS_DRIVER=true" in environment and b"SHOAL_JOB_ID=" + self.job.encode() in environment:
                        return host, pid
        return None

    def engine_logs(self):
        """{worker: text} of the engines whose log is on a host that still has its folder."""
        found = {}
        for host in self.mesh.hosts:
            for path in host.data.glob("**/%s/**/stdout" % self.job):
                found["%s %s" % (host.name, path.parent.name)] = path.read_text(errors="replace")
        return found


class Outcome:
    """What must not depend on who computed it: final tensors, and each step's losses and samples."""

    def __init__(self, run, host, folder):
        # Another host has told the end; this one may hear of it later, and has till then what a running job has written.
        run.mesh.until(lambda: (facts := run.mesh.job(run.job, host)) and facts["hasEnded"], 20, "%s knows the end" % host.name)
        files = result_of(run.mesh, host, run.job, folder)
        by_name = {name.rsplit("/", 1)[-1]: data for name, data in files.items()}
        self.files = sorted(by_name)
        self.take(run, by_name)
        self.epochs, self.last = run.epochs, run.schedule.last
        self.ledger = run.mesh.cli(host, "job", "ledger", run.job)
        self.records = records(run)
        self.steps = [comparable(record) for record in self.records]
        self.shares = {share["worker"]: share["samples"] for share in self.ledger["shares"]}

    def take(self, run, by_name):
        """The final tensors."""
        self.weights = torch.load(io.BytesIO(by_name["model_epoch_final.pth"]), weights_only=True)
        self.optimizer = torch.load(io.BytesIO(by_name["model_epoch_final_optimizer_state.pth"]), weights_only=True)


_calm = tempfile.TemporaryDirectory(prefix="shoal-calm-")


def calm(epochs):
    """What is left by a run of the script with so many data epochs that nobody disturbs, as Outcome has it: two workers on a host of
    their own. The tests that run at the same time, and later ones, share it (tests/run.py): the bits do not depend on who asks."""
    folder = pathlib.Path(os.environ.get("SHOAL_SHARED") or _calm.name)
    with open(folder / ("calm-%d.lock" % epochs), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / ("calm-%d" % epochs)
        if not path.exists():
            outcome = _run_calm(epochs)
            assert_exact(outcome)
            outcome.run = None
            path.with_suffix(".new").write_bytes(pickle.dumps(outcome))
            path.with_suffix(".new").rename(path)
        return pickle.loads(path.read_bytes())


def _run_calm(epochs):
    binary = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"
    with tempfile.TemporaryDirectory(prefix="shoal-calm-") as folder, Mesh(binary, agent_options=ONE_JOB) as mesh:
        (pathlib.Path(folder) / "main.py").write_text(SCRIPT)
        host, = mesh.grow(("calm",))
        run = Run(mesh, host, folder, workers=2, epochs=epochs)
        try:
            run.finish(START_SECONDS)
            return Outcome(run, host, pathlib.Path(folder))
        finally:
            Run.started.remove(run)


def records(run):
    """Of the fullest ledger file among the hosts that are left; the others must be beginnings of it."""
    files = []
    for host in run.mesh.hosts:
        path = host.data / "jobs" / run.job / "ledger"
        if path.exists():
            files.append(parse_ledger(path.read_bytes()))
    assert files, "no host keeps a ledger of %s" % run.job
    longest = max(files, key=len)
    for other in files:
        assert [comparable(r) for r in other] == [comparable(r) for r in longest[:len(other)]], "two ledgers differ"
    return longest


def parse_ledger(data):
    """u32 length, then the record of step_record.h, again and again."""
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at:at + 4], "little")
        record, end = _records.decode(data[at + 4:at + 4 + length])
        assert end == length and length > 0
        found.append(record)
        at += 4 + length
    return found


def comparable(record):
    """All of a step but who computed it in which epoch of the communicator."""
    return (record.step, record.kind, record.call, record.epoch, record.index, record.digest,
            tuple((samples, low, high, values) for samples, low, high, _, values in record.parts))


def difference(mine, theirs, path=""):
    """Where two nested values differ in a bit; None if nowhere."""
    if isinstance(mine, torch.Tensor):
        same = isinstance(theirs, torch.Tensor) and mine.dtype == theirs.dtype and torch.equal(mine, theirs)
        return None if same else path
    if isinstance(mine, dict):
        if not isinstance(theirs, dict) or list(mine) != list(theirs):
            return path + " (keys)"
        return next((d for key in mine if (d := difference(mine[key], theirs[key], "%s/%s" % (path, key)))), None)
    if isinstance(mine, (list, tuple)):
        if len(mine) != len(theirs):
            return path + " (length)"
        return next((d for i in range(len(mine)) if (d := difference(mine[i], theirs[i], "%s/%d" % (path, i)))), None)
    return None if mine == theirs else path


def assert_same_bits(outcome, reference):
    for i, (mine, theirs) in enumerate(zip(outcome.steps, reference.steps)):
        assert mine == theirs, "step %d differs from the undisturbed run's" % (i + 1)
    assert len(outcome.steps) == len(reference.steps)
    assert difference(outcome.weights, reference.weights) is None, "weights and buffers"
    assert difference(outcome.optimizer, reference.optimizer) is None, "optimizer state"


def assert_exact(outcome):
    """Every sample of every data epoch exactly once, no step missing or repeated."""
    assert outcome.ledger["exact"] is True, outcome.ledger["errors"]
    assert outcome.ledger["data_epochs"] == outcome.ledger["data_epochs_wanted"] == outcome.epochs
    assert [record.step for record in outcome.records] == list(range(1, outcome.last + 1))
    assert sum(sum(part[0] for part in r.parts) for r in outcome.records if r.kind == _schedule.TRAIN) == outcome.epochs * TRAIN


def assert_training_was_one(run, outcome, founders=()):
    """Distinct processes, each with a share, each with as many updates as it applied steps; no state from a file."""
    assert len({(pid, start) for _, pid, start in run.seen.values()}) == len(run.seen), "two ranks share a process"
    for worker in founders:
        words = run.last[worker]
        updates = run.schedule.train_steps_until(words["applied"]) - run.missed.get(worker, 0)
        assert words["updates"] == PARAMETERS * updates, \
            "worker %d: %s, %d before it came, so it repeated or left out an update" % (worker, words, run.missed.get(worker, 0))
    workers = {part[3] for record in outcome.records for part in record.parts}
    trained = collections.Counter()  # whoever came for the last validation alone has no share
    for record in outcome.records:
        for part in record.parts if record.kind == _schedule.TRAIN else ():
            trained[part[3]] += part[0]
    assert collections.Counter(outcome.shares) == trained
    applied = {worker for worker, words in run.last.items() if words["applied"] > 0}
    assert applied <= workers | run.lost, "workers %s were in an epoch and committed nothing" % (applied - workers)
    for name, log in run.engine_logs().items():
        if "Engine leaves call" in log:
            line = log.rpartition("Engine leaves call")[2]
            updates, applied = int(line.split()[1]), int(line.split()[5])
            assert updates == PARAMETERS * applied, "%s: %s" % (name, line)
    for host in run.mesh.hosts:
        assert not list(host.data.glob("**/snapshot-*.state")), "a snapshot was written, so one may have been read"


def write_whole(path, value):
    """Whoever reads it sees the old value or the new one."""
    new = path.with_suffix(".new")
    new.write_text("%s\n" % value)
    new.rename(path)


def state(pid, start):
    """The letter that the kernel has for that very process; Z, too, if it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return "Z"
    return fields[0] if int(fields[19]) == start else "Z"


def lives(pid, start):
    return state(pid, start) != "Z"
