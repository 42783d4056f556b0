"""Python engines over the real libshoal: the same bits with one worker and with six, under kills, stops and joins, inside
a host and between hosts, and the driver beside them."""

import os
import pathlib
import signal
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "collective" / "python")]

import engine_mesh  # noqa: E402
from pyedt import _order, _records  # noqa: E402

torch = pytest.importorskip("torch")

SCRIPT = """
import os
import time
import torch
from torch import nn
from fabric_model import FabricModel
from callbacks import Callback

class Rows(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(3)
        self.x, self.n = torch.randn(n, 20, generator=g), n
        self.y = (self.x.sum(dim=1) > 0).long()
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        time.sleep(DELAY)
        return self.x[i] + 0.1 * torch.randn(20), self.y[i]

DELAY = {delay}

class Decay(Callback):
    def on_epoch_begin(self, epoch):
        for group in self.params["optimizer"].param_groups:
            group["lr"] *= 0.9
        for parameter in self.model.parameters():  # what a script writes into weights stays within its engine
            parameter.data.clamp_(-0.3, 0.3)
    def on_epoch_end(self, epoch, save_model=False):
        if save_model and epoch == 7 and {die} and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), 9)
        print("epoch", epoch, "ends, save", save_model, flush=True)

class Curve:
    def log_train_metrics(self, metrics, iteration, epoch, workers):
        print("T", iteration, epoch, "%.9f" % metrics["loss"], flush=True)
    def log_test_metrics(self, metrics, iteration, epoch):
        print("V", epoch, "%.9f" % metrics["loss"], flush=True)

def datasets():
    {inside}
    return Rows(201), Rows(50)

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(20, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 2))
{before}
fabric = FabricModel(model, datasets, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.01),
                     driver_logger=Curve(), user_callback=[Decay()])
fabric.train({epochs}, 4, 8, {loaders}, validation_freq=2, checkpoint_freq=3)
"""
EPOCHS, STEPS = 8, 8 * 7 + 4 + 3  # train, validation, files: of the epochs 3, 6 and 8


def script(delay=0.0005, inside="pass", before="", loaders=0, epochs=EPOCHS, die=False):
    return SCRIPT.format(delay=delay, inside=inside, before=before, loaders=loaders, epochs=epochs, die=die)


@pytest.fixture
def mesh(tmp_path):
    if not engine_mesh.library().exists():
        pytest.skip("no %s: make first" % engine_mesh.library())
    meshes = []

    def make(hosts=1, **others):
        folder = tmp_path / ("mesh-%d" % len(meshes))
        folder.mkdir()
        meshes.append(engine_mesh.EngineMesh(folder, hosts, **others))
        return meshes[-1]

    yield make
    for one in meshes:
        one.close()


def run(mesh, engines, text=None, events=(), hosts=None, faults=()):
    """Train with the given number of engines; `events`: (step, function) called when the step is recorded. The result:
    weights, optimizer state, rows of records."""
    mesh.wanted = engines
    mesh.start_driver(text or script())
    for i in range(engines):
        mesh.start_engine((hosts or [0] * engines)[i], fault=(list(faults) + [None] * engines)[i])
    waiting = list(events)

    def over():
        mesh.feed_driver()
        while waiting and len(mesh.records) >= waiting[0][0]:
            waiting.pop(0)[1](mesh)
        failed = [e.failed for e in mesh.engines if e.failed]
        assert not failed, failed[0][1]
        return mesh.driver_process.poll() is not None

    mesh.until(over)
    assert mesh.driver_process.returncode == 0, mesh.driver_log()
    assert not waiting
    return outcome(mesh)


def outcome(mesh):
    folder = mesh.result / "model" / "train"
    files = {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}
    rows = []
    for step in sorted(mesh.records):
        record, _ = _records.decode(mesh.records[step])
        rows.append((record.step, record.kind, record.epoch, record.index, record.digest,
                     [(p[0], p[1], p[2], p[4]) for p in record.parts]))
    return files, rows


def curve(mesh):
    return [line for line in mesh.driver_log().splitlines() if line[:2] in ("T ", "V ")]


def check_ledger(rows):
    for epoch in range(EPOCHS):
        parts = [p for row in rows if row[1] == 0 and row[2] == epoch for p in row[5]]
        assert sum(p[0] for p in parts) == 201
        assert (sum(p[1] for p in parts) % 2**64, sum(p[2] for p in parts) % 2**64) == _order.sample_sum(5, list(range(201)))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same script outside of any mesh."""
    import subprocess

    if not engine_mesh.library().exists():
        pytest.skip("no %s: make first" % engine_mesh.library())
    folder = tmp_path_factory.mktemp("alone")
    lone = engine_mesh.EngineMesh(folder)
    environment = {k: v for k, v in lone.environment.items() if k != "SHOAL_AGENT_SOCKET"}
    (lone.work / "main.py").write_text(script())
    done = subprocess.run([sys.executable, "main.py"], cwd=lone.work, env=environment, capture_output=True, text=True)
    lone.close()
    assert done.returncode == 0, done.stderr
    folder = lone.result / "model" / "train"
    return ({name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))},
            [line for line in done.stdout.splitlines() if line[:2] in ("T ", "V ")])


def check_same(mesh, result, alone):
    files, rows = result
    assert sorted(files) == sorted(alone[0])
    for name in files:
        assert files[name] == alone[0][name], "%s differs from the run of one engine" % name
    assert [row[0] for row in rows] == list(range(1, STEPS + 1))
    check_ledger(rows)
    assert curve(mesh) == alone[1]
    digests = {e.digest for e in mesh.engines if e.digest is not None}
    assert len(digests) == 1
    for engine in mesh.engines:
        if not engine.dead or engine.status == 0:
            assert "parameter updates in" in engine.log() or not engine.done


@pytest.mark.parametrize("engines", [1, 3])
def test_the_bits_of_a_run_alone(mesh, alone, engines):
    one = mesh()
    check_same(one, run(one, engines), alone)
    for engine in one.engines:  # the first update makes the optimizer's state
        assert ("%d of them with this host's other workers" % (8 * 7 - 1) in engine.log()) == (engines > 1)


def test_two_hosts(mesh, alone):
    two = mesh(hosts=2)
    check_same(two, run(two, 4, hosts=[0, 0, 1, 1]), alone)


def test_kills_and_joins(mesh, alone):
    many = mesh()
    events = [(5, lambda m: m.engines[0].kill()), (9, lambda m: m.start_engine()), (20, lambda m: m.engines[1].kill()),
              (21, lambda m: m.engines[2].kill()), (30, lambda m: (m.start_engine(), m.start_engine())),
              (40, lambda m: m.engines[-1].kill())]
    result = run(many, 4, script(delay=0.002), events)
    files, rows = result
    assert [e[1] for e in many.epochs] == sorted(e[1] for e in many.epochs)
    assert len(many.epochs) >= 6
    slow = {k: v for k, v in files.items()}
    check_same(many, (slow, rows), alone)
    survivors = [e for e in many.engines if e.status != -signal.SIGKILL]
    assert survivors and all(e.words()[3] > 0 for e in survivors)


def test_death_at_every_named_point(mesh, alone):
    """Each engine dies at a point of its own; others join and die as joiners, as donors, in on_epoch_end, before the final
    files."""
    many = mesh()
    many.kill_final_writers = 1
    faults = ["before_publish:5:kill", "after_publish:9:kill", "mid_reduce:13:kill", "after_complete:17:kill",
              "before_apply:21:kill"]
    events = [(23, lambda m: m.start_engine(fault="join_copy:*:kill")),
              (27, lambda m: m.start_engine(fault="give_copy:*:kill")),
              (35, lambda m: (m.start_engine(), m.start_engine())), (45, lambda m: m.start_engine())]
    check_same(many, run(many, 6, script(delay=0.006, die=True), events, faults=faults), alone)
    killed = [e.worker_id - 1001 for e in many.engines if e.status == -signal.SIGKILL]
    assert set(killed) >= {0, 1, 2, 3, 4, 6, 7} and len(killed) == 9, (killed, many.epochs)
    assert (many.work / "died").exists()


def test_a_host_is_lost_and_another_joins(mesh, alone):
    two = mesh(hosts=3)

    def lose(m):
        for engine in m.engines:
            if engine.host is m.hosts[0]:
                engine.kill()

    events = [(10, lose), (25, lambda m: m.start_engine(2))]
    check_same(two, run(two, 4, script(delay=0.002), events, hosts=[0, 0, 1, 1]), alone)


def test_loader_children_change_no_bit(mesh, alone):
    one = mesh()
    check_same(one, run(one, 2, script(loaders=2)), alone)


def test_the_users_exception_ends_the_job_with_its_trace(mesh):
    one = mesh()
    one.start_driver(script(inside="raise ArithmeticError('no rows today')"))
    one.start_engine()
    one.until(lambda: one.engines[0].failed and one.engines[0].dead)
    user_code, text = one.engines[0].failed
    assert user_code and text.startswith("ArithmeticError: no rows today") and "in datasets" in text
    assert one.engines[0].status == 1
    one.tell_driver(engine_mesh.FAILED_STATE, text)
    one.until(lambda: one.driver_process.poll() is not None)
    assert one.driver_process.returncode != 0 and "training failed: ArithmeticError: no rows today" in one.driver_log()


def test_a_driver_that_is_killed_goes_on_where_it_was(mesh, alone):
    one = mesh()
    text = script(delay=0.008)

    def again(m):
        m.driver_process.kill()
        m.driver_process.wait()
        m.start_driver(text)

    files, rows = run(one, 2, text, [(10, again)])
    seen = [line.split()[:3] for line in curve(one)]
    wanted = [line.split()[:3] for line in alone[1]]
    assert "Re-attached to call 1 after step" in one.driver_log()
    # The dead driver may have told its logger of steps that it had not acknowledged yet: none is missing.
    assert [row for row in wanted if row not in seen] == []
    assert {name: files[name] for name in files} == alone[0]


def test_a_call_within_an_engine_is_refused(mesh):
    one = mesh()
    one.start_driver(script(inside="fabric.train(1, 1)"))
    one.start_engine()
    one.until(lambda: one.engines[0].failed or one.driver_process.poll() is not None)
    text = one.engines[0].failed[1] if one.engines[0].failed else one.driver_log()
    assert "NameError" in text or "cannot send" in text or "called in an engine" in text
