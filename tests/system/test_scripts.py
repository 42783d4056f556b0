"""Scripts as users write them (scripts/): each trains to the same bits with one worker and with three on two hosts, or is
refused with what to write instead. A job runs a third of them, one train() after the other: a job has 16 calls at most."""

import json
import os
import pathlib
import signal
import types

import pytest
import training
from conftest import OUT
from helpers import SLOW_TRAINING, ended, log_of, result_of, submit
from mesh import Mesh

pytest.importorskip("torch")
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
KINDS = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in ("main", "edtcallback"))

PARTS = 3


@pytest.fixture(scope="module")
def pair():
    """Two hosts with two slots each; what the driver's host calls its folders, the other one does not."""
    with Mesh(OUT / "shoal") as mesh:
        mesh.grow(("alpha", "beta"))
        yield mesh


@pytest.fixture(scope="module")
def outcomes(pair, tmp_path_factory):
    """{workers: {script: digest of what it trained, or how it failed}}."""
    found = {1: {}, 3: {}}

    def start(workers, part):
        host = pair.hosts[part % 2]
        return workers, host, submit(pair, host, SCRIPTS, "--workers", workers, framework="edtPyTorch", script=KINDS[part::PARTS])

    def collect(workers, host, job):
        facts = ended(pair, job, 240)
        log = log_of(pair, host, job) + log_of(pair, host, job, "--which", "err")
        assert facts["state"] == "FINISHED", "%s\n%s" % (facts["detail"], log[-4000:])
        assert "Re-attached" not in log, "what the loggers have seen of one call was said of the next one"
        files = result_of(pair, host, job, tmp_path_factory.mktemp("result"))
        found[workers].update(json.loads(files["model/kinds.json"]))
        print(log[-20000:])

    for part in range(PARTS):
        collect(*start(3, part))
    for job in [start(1, part) for part in range(PARTS)]:
        collect(*job)
    return found


def test_a_killed_driver_leaves_no_bundle_behind(pair, tmp_path):
    (tmp_path / "main.py").write_text(SLOW_TRAINING % 1)
    job = submit(pair, pair.hosts[0], tmp_path, "--workers", 1, framework="edtPyTorch")

    def driver():
        host, pid = training.Run.driver(types.SimpleNamespace(mesh=pair, job=job)) or (None, None)
        bundle = host and host.data / "jobs" / job / "driver"
        return bundle and bundle.exists() and (bundle, pid)

    bundle, pid = pair.until(driver, 120, "a driver with its bundle", pause=0.2)
    os.kill(pid, signal.SIGKILL)
    pair.shoal("job", "stop", job, "--node", pair.hosts[1].url)
    assert ended(pair, job, 120)["state"] == "KILLED"
    pair.until(lambda: not bundle.exists(), 60, "no bundle of an ended job")


RAISES = """
import os
import torch
from callbacks import Callback
from fabric_model import FabricModel

def here():
    return [ord(c) for c in os.environ["RESULT_DIR"]]  # no text: a text that names a folder is changed on its way

class Writes(Callback):
    def __init__(self):
        super().__init__()
        self.home = here()
    def on_epoch_end(self, epoch, save_model=False):
        if here() == self.home:
            return
        folder = os.path.join(os.environ["RESULT_DIR"], "model")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "written"), "wb") as out:
            out.write(os.urandom(1 << 20) * 24)
        raise ValueError("enough")

def rows():
    return torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)), None

model = torch.nn.Linear(2, 2)
fabric = FabricModel(model, rows, torch.nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()), user_callback=Writes())
try:
    fabric.train(2, 2, 4)
    raise SystemExit("it was to be stopped")
except RuntimeError as error:
    assert "enough" in str(error), error
assert os.path.getsize(os.path.join(os.environ["RESULT_DIR"], "model", "written")) == 24 << 20
"""


def test_what_an_engine_wrote_before_it_failed_is_there_when_train_raises(pair, tmp_path):
    """The engine that writes and fails is never on the host of the script."""
    (tmp_path / "main.py").write_text(RAISES)
    job = submit(pair, pair.hosts[0], tmp_path, "--workers", 3, framework="edtPyTorch")
    facts = ended(pair, job, 120)
    assert facts["state"] == "FINISHED", "%s\n%s" % (facts["detail"], log_of(pair, pair.hosts[0], job, "--which", "err")[-3000:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_trains_to_the_same_bits_with_one_worker_and_with_three(outcomes, kind):
    assert not outcomes[1][kind].startswith("failed"), outcomes[1][kind]
    assert outcomes[3][kind] == outcomes[1][kind]


OWN_MODULES = """
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
import torch
from fabric_model import FabricModel
from beside import Net
from below import loss
from users import ROWS

net = Net(4, 2)
FabricModel(net, lambda: ([(torch.ones(4), 1)] * ROWS, None), loss, torch.optim.SGD(net.parameters(), lr=0.1)).train(1, 8, 2)
"""


def test_engines_find_the_modules_that_the_script_finds(pair, tmp_path):
    """Beside it in its own folder, by what it puts into sys.path, and by --env PYTHONPATH, which takes nothing of Shoal's away."""
    for name, text in (("scripts/main.py", OWN_MODULES), ("scripts/beside.py", "from torch import nn\nclass Net(nn.Linear): pass\n"),
                       ("src/below.py", "from torch import nn\ndef loss(output, target): return nn.functional.cross_entropy(output, target)\n"),
                       ("lib/users.py", "ROWS = 64\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    job = submit(pair, pair.hosts[0], tmp_path, "--model-main", "scripts/main.py", "--workers", 3, "--env", "PYTHONPATH=lib",
                 framework="edtPyTorch")
    facts = ended(pair, job, 120)
    assert facts["state"] == "FINISHED", facts["detail"]
