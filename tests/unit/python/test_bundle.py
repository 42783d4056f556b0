"""The bundle: what travels, what is refused and with which words."""

import io
import json
import os
import subprocess
import sys

import pytest
import torch
from jobs import make_header, make_parts

from pyedt import _bundle, _comm, _engine

SCRIPT = """
import socket, sys
import torch
from pyedt import _bundle, _comm, _engine
guard = socket.socket()
def inner():
    return guard
def datasets():
    return inner(), None
class Net(torch.nn.Module):
    def forward(self, x):
        return guard
def make():
    h = socket.socket()
    return lambda: h
linear = torch.nn.Linear(1, 1)
linear.log = socket.socket()
for parts in (dict(datasets=inner), dict(datasets=datasets), dict(model=Net()), dict(model=linear), dict(loss=make()),
              dict(callbacks=[1, socket.socket()])):
    try:
        _bundle.dumps(parts)
    except TypeError as error:
        print(str(error).replace("\\n", " "))
"""
CULPRITS = [  # what, words of the message; in the order of the script
    ("a global used by a function", ["global 'guard' used by function inner", "socket.socket"]),
    ("a global used further down", ["global 'guard' used by function inner"]),
    ("a global used by a method", ["global 'guard' used by function Net.forward"]),
    ("an attribute of the model", ["attribute 'log' of model", "socket.socket"]),
    ("a captured variable", ["variable 'h' captured by function"]),
    ("an item of the callbacks", ["item 1 of callbacks", "socket.socket"]),
]


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    script = tmp_path_factory.mktemp("culprits") / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(CULPRITS)
    return dict(zip([what for what, _ in CULPRITS], lines))


@pytest.mark.parametrize("what,words", CULPRITS, ids=[c[0] for c in CULPRITS])
def test_what_cannot_travel_is_named(messages, what, words):
    for word in words:
        assert word in messages[what]


def write(tmp_path, parts, **header):
    path = str(tmp_path / "call.bundle")
    full = dict(make_header(), python=_bundle.python_version(), torch=torch.__version__, backend="pytorch")
    full.update(header)
    _bundle.write(path, full, _bundle.dumps(parts))
    return path


def test_identities_hold_over_the_trip(tmp_path):
    header, parts = _bundle.read(write(tmp_path, make_parts()))
    own = {id(p) for p in parts["model"].parameters()}
    assert all(id(p) in own for g in parts["optimizer"].param_groups for p in g["params"])
    assert header["virtual_workers"] == 8


@pytest.mark.parametrize("name,value", [("python", "3.1"), ("torch", "1.0"), ("backend", "keras")])
def test_another_version_is_refused_before_anything_is_unpickled(tmp_path, name, value):
    path = write(tmp_path, make_parts(), **{name: value})
    with pytest.raises(_bundle.Unfit, match="the driver has %s %s" % (name, value)) as refused:
        _bundle.read(path)
    assert _engine.failure(refused.value) == _comm.FAILED_HOST


def test_what_fails_alike_everywhere_is_the_users(tmp_path):
    for error, failure in ((KeyError("row"), _comm.FAILED_USER_CODE), (_comm.CommError("lost"), _comm.FAILED_WORKER),
                           (MemoryError(), _comm.FAILED_WORKER)):
        assert _engine.failure(error) == failure


def test_every_prefix_of_a_bundle_is_refused(tmp_path):
    path = write(tmp_path, {"model": 1})
    whole = open(path, "rb").read()
    for size in range(len(whole)):
        open(path, "wb").write(whole[:size])
        with pytest.raises(ValueError):
            _bundle.read(path)


def test_the_header_can_be_read_alone(tmp_path):
    with open(write(tmp_path, {"model": 1}), "rb") as source:
        assert _bundle.read_header(source)["batch_size"] == 4
    with pytest.raises(ValueError, match="no FabricModel bundle"):
        _bundle.read_header(io.BytesIO(b"PK\x03\x04 something"))


SENT = """
import sys
sys.path.insert(0, "{folder}")
import torch, helper
from torch import nn
from pyedt import _bundle, _comm, _engine
SCALE = 3.0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(2, 2)
    def forward(self, x):
        return self.w(x) * SCALE
def datasets():
    return helper.rows(), [(torch.zeros(2), SCALE)]
model = Net()
header = dict(python=_bundle.python_version(), torch=torch.__version__, backend="pytorch")
_bundle.write("{path}", header, _bundle.dumps(dict(model=model, optimizer=torch.optim.Adam(model.parameters()), datasets=datasets)))
"""
RECEIVED = """
import sys
sys.path.insert(0, "{folder}")
from pyedt import _bundle, _comm, _engine
_, parts = _bundle.read("{path}")
print(parts["datasets"]()[0], type(parts["model"]).__name__, "helper" in sys.modules)
"""


def test_the_main_scripts_things_go_by_value_and_modules_of_its_directory_by_reference(tmp_path):
    (tmp_path / "helper.py").write_text("def rows():\n    return ['as the engine has it']\n")
    names = dict(folder=str(tmp_path), path=str(tmp_path / "b"))
    subprocess.run([sys.executable, "-c", SENT.format(**names)], check=True)
    (tmp_path / "helper.py").write_text("def rows():\n    return ['changed']\n")
    done = subprocess.run([sys.executable, "-c", RECEIVED.format(**names)], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["['changed']", "Net", "True"]


OWN_MODULES = """
import os, shutil, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "src"))
sys.path.append("late")
import torch
from fabric_model import FabricModel
from helper import Net
from mylib import loss
from pyedt import _driver
def keep(call, seed, path, reports):
    shutil.copy(path, sys.argv[1])
    sys.exit(0)
_driver.train_alone = keep
net = Net(4, 2)
FabricModel(net, lambda: ([(torch.ones(4), torch.tensor(1))], None), loss, torch.optim.SGD(net.parameters(), lr=0.1)).train(1, 8, 2)
"""
READER = """
import json, os, sys
from pyedt import _bundle
for _ in range(2):
    header, parts = _bundle.read(sys.argv[1])
print(json.dumps([type(parts["model"]).__module__, parts["loss"].__module__, [os.path.relpath(path) for path in sys.path if path.startswith(os.getcwd())]]))
"""


def test_an_engine_finds_the_modules_that_the_script_finds_below_its_work_directory(tmp_path):
    work, there = tmp_path / "work", tmp_path / "there"
    for name, text in (("scripts/main.py", OWN_MODULES), ("scripts/helper.py", "from torch import nn\nclass Net(nn.Linear): pass\n"),
                       ("src/mylib/__init__.py", "def loss(output, target): return output.sum()\n"), ("late/json.py", "")):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)

    def python(folder, *arguments):
        environment = dict(os.environ, DLI_WORK_DIR=str(folder), PYTHONPATH=os.pathsep.join([os.environ["PYTHONPATH"], str(folder)]))
        done = subprocess.run([sys.executable, *arguments, str(tmp_path / "call.bundle")], cwd=folder, env=environment,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    reader = tmp_path / "reader.py"  # as an engine it has the folder of no script
    reader.write_text(READER)
    python(work, "scripts/main.py")
    work.rename(there)
    assert json.loads(python(there, str(reader))) == [
        "helper", "mylib", ["src", "scripts", ".", "late"]]
