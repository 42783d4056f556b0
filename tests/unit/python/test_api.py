"""FabricModel's constructor and train(): what is taken, what is refused and with which words."""

import itertools
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from jobs import Rows, network
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from fabric_model import FabricModel
from pyedt import _arguments, _data, _driver, _late, _onnx


def datasets():
    return Rows(60), Rows(20)


def make(**others):
    torch.manual_seed(5)
    model = others.pop("model", None) or network()
    optimizer = others.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    return FabricModel(model, others.pop("datasets", datasets), others.pop("loss", nn.CrossEntropyLoss()), optimizer,
                       **others)


def test_importing_prints_the_known_lines(tmp_path):
    code = "import fabric_model, callbacks, pyedt.fabric_model, pyedt.callbacks"
    environment = dict(os.environ, DATA_DIR="/d", RESULT_DIR="/r", LOG_DIR="/l", FABRIC_BACKEND="pytorch")
    environment.pop("SAVED_MODEL_DIR", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["<> DATA_DIR /d", "<> RESULT_DIR /r", "<> LOG_DIR /l", "<> FABRIC_BACKEND pytorch"]


def test_a_missing_backend_is_chosen_exported_and_said():
    code = "import torch, fabric_model, os; assert os.environ['FABRIC_BACKEND'] == 'pytorch'"
    environment = {k: v for k, v in os.environ.items() if k != "FABRIC_BACKEND"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "pytorch was chosen; restart to choose another" in done.stdout


def test_where_torch_is_not_installed_the_missing_backend_is_tensorflow(monkeypatch):
    for name in ("torch", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for there, chosen in (("torch", "pytorch"), ("tensorflow", "tensorflow"), ("torch tensorflow", "pytorch"), ("", "pytorch")):
        monkeypatch.setattr(_late.importlib.util, "find_spec", lambda name, here=there: name in here.split() or None)
        assert _late.backend_here() == chosen, there
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert _late.backend_here() == "tensorflow"  # the script has imported it


@pytest.mark.parametrize("first, second", [("fabric_model", "torch"), ("torch", "fabric_model")])
def test_importing_loads_no_torch_and_cuda_stays_here_in_either_order(first, second):
    code = ("import sys\nimport %s\nprint('torch' in sys.modules)\nimport %s\nimport torch\nprint(torch.zeros(1).cuda().device.type,"
            " torch.__spec__.loader is torch.__loader__, type(torch.__loader__).__name__)" % (first, second))
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ, FABRIC_BACKEND="pytorch"), capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("<>")]
    assert done.returncode == 0, done.stderr
    assert lines[0] == str(first == "torch") and lines[-1].split()[1:] == ["True", "SourceFileLoader"], lines
    assert lines[-1].split()[0] == ("cuda" if torch.cuda.is_available() else "cpu"), lines


WRONG = [  # what, arguments of train(), error, part of its text
    ("a float epoch number", dict(epoch_number=1.0), TypeError, "epoch_number must be an int, got float"),
    ("a bool", dict(batch_size=True), TypeError, "batch_size must be an int, got bool"),
    ("a string", dict(engines_number="4"), TypeError, "engines_number must be an int"),
    ("no epochs", dict(epoch_number=0), ValueError, "epoch_number must be at least 1, got 0"),
    ("a negative frequency", dict(checkpoint_freq=-1), ValueError, "checkpoint_freq must be at least 0"),
    ("a negative validation frequency", dict(validation_freq=-2), ValueError, "validation_freq"),
    ("engines and effective batch", dict(engines_number=2, effective_batch_size=8), ValueError, "not both"),
    ("an effective batch below the batch", dict(effective_batch_size=2), ValueError, "must be at least batch_size (4)"),
    ("too many mini-batches in a step", dict(engines_number=5000), ValueError, "at most 4096"),
    ("hardware by its name", dict(hardware_spec={"name": "GPU x 4"}), ValueError, "give engines_number"),
    ("hardware that is no dict", dict(hardware_spec="small"), ValueError, "give engines_number"),
    ("hardware without a number", dict(hardware_spec={"nodes": {"num_nodes": "two"}}), ValueError, "num_nodes must be a whole number"),
    ("hardware of no node", dict(hardware_spec={"nodes": {"num_nodes": 0}}), ValueError, "num_nodes"),
    ("a notebook's workers", dict(worker_num="2"), TypeError, "worker_num must be an int"),
]


@pytest.mark.parametrize("what,arguments,error,text", WRONG, ids=[w[0] for w in WRONG])
def test_wrong_numbers_are_refused_before_anything_starts(what, arguments, error, text):
    numbers = dict(epoch_number=1, batch_size=4)
    numbers.update(arguments)
    with pytest.raises(error) as caught:
        make().train(**numbers)
    assert text in str(caught.value)


INTERVALS = [  # what, arguments, job limit, V, engines
    ("engines as asked, not as given", dict(engines_number=16), 2, 16, 2),
    ("effective batch over batch", dict(effective_batch_size=32), 6, 8, 6),
    ("rounded down", dict(effective_batch_size=33), 6, 8, 6),
    ("nothing said: what the job may have", {}, 6, 6, 6),
    ("None counts as absent", dict(engines_number=None, effective_batch_size=8), 6, 2, 2),
]


@pytest.mark.parametrize("what,arguments,limit,interval,engines", INTERVALS, ids=[i[0] for i in INTERVALS])
def test_the_sync_interval(monkeypatch, what, arguments, limit, interval, engines):
    monkeypatch.setenv("WMLA_NWORKER", str(limit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checked = _arguments.TrainArguments(1, 4, **arguments)
    assert (checked.virtual_workers, checked.engines_max) == (interval, engines)


def test_rounding_the_effective_batch_warns():
    with pytest.warns(UserWarning, match="rounded down to 32"):
        _arguments.TrainArguments(1, 4, effective_batch_size=33)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))


REFUSED = [
    ("Keras objects", dict(keras_custom_objects={"a": 1}), NotImplementedError, "torch.nn.Module"),
    ("a loss that cannot be called", dict(loss=3), TypeError, "loss_function must be callable"),
    ("a data set instead of a function", dict(datasets=(1, 2)), TypeError, "datasets_function must be a function"),
    ("an optimizer of another model", dict(optimizer=torch.optim.SGD(network().parameters(), lr=1)), ValueError,
     "not the model's"),
    ("metrics that cannot be called", dict(metrics=["accuracy"]), TypeError, "metrics must be functions"),
    ("a custom step that is none", dict(fn_step_train=3), TypeError, "fn_step_train must be a function"),
    ("complex numbers", dict(model=Complex()), TypeError, "torch.view_as_real"),
]


@pytest.mark.parametrize("what,arguments,error,text", REFUSED, ids=[r[0] for r in REFUSED])
def test_wrong_objects_are_refused(what, arguments, error, text):
    with pytest.raises(error) as caught:
        make(**arguments)
    assert text in str(caught.value)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_a_parameter_that_an_optimizer_has_twice_is_refused():
    """As of weights that two layers share, where each layer's parameters are listed; torch only warns."""
    model = network()
    optimizer = torch.optim.SGD([*model[0].parameters(), model[0].weight], lr=0.1)
    with pytest.raises(ValueError, match=r"shape \(16, 6\) is 2 times in the optimizer; give it once"):
        make(model=model, optimizer=optimizer)


class Remembering(nn.Linear):
    """Keeps more than tensors."""

    def get_extra_state(self):
        return {"seen": np.float64(3), "by": {1, 2}}

    def set_extra_state(self, state):
        self.taken = state


def test_what_a_module_keeps_beside_tensors_comes_back(alone):
    fabric = make(model=nn.Sequential(Remembering(6, 2)))
    fabric.train(1, 4)
    assert fabric.model[0].taken == {"seen": 3.0, "by": {1, 2}}


@pytest.mark.parametrize("name", ["enable_onnx", "save_to_onnx"])
def test_onnx_is_refused_where_its_package_is_not(monkeypatch, name):
    monkeypatch.setattr(_onnx.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(NotImplementedError, match="the driver's host lacks: `python -m pip install onnx`"):
        make(**{name: True})
    monkeypatch.setattr(_onnx.importlib.util, "find_spec", lambda package: package)
    assert make(**{name: True}).onnx is True and make().onnx is False
    assert _onnx.missing("keras") == ""


def test_a_model_that_is_no_module_is_refused():
    with pytest.raises(TypeError, match="must be a torch.nn.Module"):
        FabricModel(lambda x: x, datasets, nn.CrossEntropyLoss(), None)


def test_a_model_of_the_other_framework_names_the_jobs_framework(monkeypatch):
    keras = type("Model", (), {"__module__": "keras.src.engine.training"})
    with pytest.raises(TypeError, match="submit it with --framework edtTensorflow"):
        make(model=type("Net", (keras,), {})(), optimizer="adam")
    monkeypatch.setenv("FABRIC_BACKEND", "keras")
    with pytest.raises(TypeError, match="submit it with --framework edtPyTorch"):
        make()


def test_keras_3_is_refused_with_what_to_install():
    for version in ("2.15.1", "2.14.0", "2.9.0-rc1"):
        _late.refuse_keras_3(version)
    for version in ("2.16.1", "2.20.0", "3.0.0"):
        with pytest.raises(RuntimeError, match="pip install 'tensorflow-cpu>=2.15,<2.16'"):
            _late.refuse_keras_3(version)


@pytest.mark.parametrize("name,value,text", [("FABRIC_BACKEND", "mxnet", "edtPyTorch"),
                                             ("EXEC_TYPE", "notebook", "notebook")])
def test_what_this_version_does_not_serve_is_refused_with_the_remedy(monkeypatch, name, value, text):
    monkeypatch.setenv(name, value)
    with pytest.raises(NotImplementedError, match=text):
        make()


SPEC = {"nodes": {"cpu": {"units": "2"}, "mem": {"size": "4Gi"}, "gpu": {"num_gpu": "2", "gpu_profile": "slice"}, "num_nodes": "3",
                  "num_drivers": "0", "drivers": {"cpu": {"units": "1"}, "mem": {"size": "4Gi"}}}}


@pytest.mark.parametrize("said,count", [
    (dict(worker_num=3), 3), (dict(worker_num=3, worker_device_num=2), 6), (dict(worker_num=3, engines_number=2), 2),
    (dict(hardware_spec=SPEC), 6), (dict(hardware_spec=SPEC, engines_number=2, worker_num=9), 6),
    (dict(hardware_spec={"nodes": {"num_nodes": 2, "gpu": {"num_gpu": 0}}}), 2),
    (dict(hardware_spec=SPEC, effective_batch_size=64), 8)])
def test_what_notebooks_say_of_their_workers_counts_as_engines_number(said, count):
    assert _arguments.TrainArguments(1, 8, **said).virtual_workers == count


def test_what_notebooks_say_of_memory_has_no_effect_and_is_named():
    with pytest.warns(UserWarning, match="worker_memory='16G' has no effect"):
        assert _arguments.TrainArguments(1, 8, 2, worker_memory="16G").virtual_workers == 2


def test_unknown_keywords_and_scaleup_are_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="unknown arguments: colour"):
        make(colour=1)
    with pytest.warns(UserWarning, match="scaleup_function is ignored"):
        make(scaleup_function=lambda epoch, engines: 1)


def test_g3_keywords_win():
    model = make(driver_logger="old", driver_logger_callback="new", worker_logger="old", worker_logger_callback="new")
    assert model.driver_logger == "new" and model.worker_logger == "new"


class Curve:
    """A driver logger of the newest kind that keeps what it saw."""

    def __init__(self):
        self.rows, self.tests, self.ended = [], [], 0

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.rows.append((iteration, epoch, workers, metrics["loss"], metrics["accuracy"]))

    def log_test_metrics(self, metrics, iteration, epoch):
        self.tests.append((iteration, epoch, metrics["loss"]))

    def on_train_end(self):
        self.ended += 1
        assert os.path.exists(os.path.join(os.environ["RESULT_DIR"], "model", "train", "model_epoch_final.pth"))


def test_training_alone(alone, capsys, tmp_path):
    def run():
        curve = Curve()
        fabric = make(driver_logger=curve)
        before = torch.get_rng_state()
        assert fabric.train(3, 4, 4, validation_freq=1, checkpoint_freq=2) is None
        assert torch.equal(torch.get_rng_state(), before), "the script's own chance goes on"
        return curve, fabric

    curve, fabric = run()
    out = capsys.readouterr().out
    assert [row[0] for row in curve.rows] == list(range(1, 46)) and curve.ended == 1
    assert [t[:2] for t in curve.tests] == [(0, 0), (0, 1), (0, 2)]
    assert curve.tests[-1][2] < curve.tests[0][2]
    assert out.index("--------START TRAINING--------") < out.index("--------END TRAINING: completed 45 iterations --------")
    assert "--------END TRAINING: completed epoch 3 in time " in out and "tag train_loss" not in out
    folder = tmp_path / "result" / "model" / "train"
    assert sorted(os.listdir(folder)) == sorted(
        "model_epoch_%s%s.pth" % (n, k) for n in ("2", "final") for k in ("", "_optimizer_state"))
    saved = torch.load(folder / "model_epoch_final.pth", weights_only=True)
    assert all(torch.equal(saved[k], v) for k, v in fabric.model.state_dict().items()), "the user's model has the weights"
    again, _ = run()
    assert again.rows == curve.rows and again.tests == curve.tests


class Named:
    """A driver logger that keeps what was measured by which name."""

    def __init__(self):
        self.trained, self.tested = [], []

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.trained.append(metrics)

    def log_test_metrics(self, metrics, iteration, epoch):
        self.tested.append(metrics)


def own_step(model, data, eva, train_loader, fn_args):
    output = model(data[0])
    loss = model.get_loss_function()(output, data[1])
    loss.backward()
    return 0.25, loss


def own_test(model, test_iter, fn_args):
    return 0.75, 2.0


def two(outputs, targets):
    return 2.0


def three(outputs, targets):
    return 3.0


def accuracy(outputs, targets):
    return 0.5


STEP = {"accuracy": 0.25}
MEASURED = [
    ("one of the user's", dict(metrics=[two], fn_step_train=own_step), STEP, {"two": 2.0}),
    ("several of the user's", dict(metrics=[two, three], fn_step_train=own_step), STEP, {"two": 2.0, "three": 3.0}),
    ("the user's accuracy", dict(metrics=[accuracy, two], fn_step_train=own_step), STEP, {"accuracy": 0.5, "two": 2.0}),
    ("both functions", dict(metrics=[two], fn_step_train=own_step, fn_test=own_test), STEP, {"accuracy": 0.75, "loss": 2.0}),
    ("a validation of the user's own", dict(metrics=[two, three], fn_test=own_test), {"two": 2.0, "three": 3.0},
     {"accuracy": 0.75, "loss": 2.0}),
]


@pytest.mark.parametrize("what,functions,trained,tested", MEASURED, ids=[m[0] for m in MEASURED])
def test_what_is_measured_has_its_own_name(alone, what, functions, trained, tested):
    logger = Named()
    make(driver_logger=logger, **functions).train(1, 4, 4, validation_freq=1)
    for row, wanted in ((logger.trained[-1], trained), (logger.tested[-1], tested)):
        assert set(row) == {"loss", *wanted} and {name: round(row[name], 6) for name in wanted} == wanted


def test_a_second_call_goes_on_from_the_first(alone):
    fabric = make()
    fabric.train(1, 4, 4)
    first = {k: v.clone() for k, v in fabric.model.state_dict().items()}
    fabric.train(1, 4, 4)
    assert not torch.equal(first["0.weight"], fabric.model.state_dict()["0.weight"])


def test_resuming_from_weights(alone, monkeypatch, tmp_path):
    other = network()
    torch.save(other.state_dict(), tmp_path / "w.pth")
    monkeypatch.setenv("RESUME_WEIGHT_PATH", str(tmp_path / "w.pth"))
    fabric = make()
    from pyedt import _driver

    _driver.restore_weights(fabric)
    assert torch.equal(fabric.model[0].weight, other[0].weight)
    fabric.train(1, 4)
    first = {k: v.clone() for k, v in fabric.model.state_dict().items()}
    assert not torch.equal(first["0.weight"], other[0].weight)
    _driver.restore_weights(fabric)  # as a second call does: it goes on from the first
    assert all(torch.equal(v, first[k]) for k, v in fabric.model.state_dict().items())
    monkeypatch.setenv("RESUME_WEIGHT_PATH", str(tmp_path / "nowhere.pth"))
    with pytest.raises(FileNotFoundError, match="nowhere.pth"):
        fabric.train(1, 4)


BAD_DATA = [
    ("not a pair", lambda: 3, "must return a pair"),
    ("neither numbered nor to iterate", lambda: (object(), None), "nor __iter__"),
    ("nothing", lambda: (Rows(0), None), "is empty"),
    ("an iterable of nothing", lambda: (iter(()), None), "is empty"),
    ("data without an end", lambda: (((torch.zeros(6), 0) for _ in itertools.count()), None), "islice"),
    ("large data to read once", lambda: ((torch.zeros(1 << 20) for _ in itertools.count()), None), "16 MiB"),
    ("whole batches", lambda: (DataLoader(Rows(8), batch_size=None), None), "whole batches|batches of its own"),
    ("weighted samples", lambda: (DataLoader(Rows(8), sampler=WeightedRandomSampler([1.0] * 8, 8)), None),
     "WeightedRandomSampler, but an epoch visits every sample once"),
    ("three items for one place", lambda: ([(torch.zeros(6), 1, 2, 3)] * 8, None), "the network takes 1 of them"),
]


@pytest.mark.parametrize("what,function,text", BAD_DATA, ids=[b[0] for b in BAD_DATA])
def test_bad_data_sets_are_named(alone, monkeypatch, what, function, text):
    monkeypatch.setattr(_data, "ITERABLE_SAMPLES_MAX", 1000)
    monkeypatch.setattr(_data, "ITERABLE_BYTES_MAX", 16 << 20)
    with pytest.raises((TypeError, ValueError), match=text):
        make(datasets=function).train(1, 4)


def test_the_users_exception_comes_through(alone):
    def broken(outputs, targets):
        raise ArithmeticError("no such loss")

    with pytest.raises(ArithmeticError, match="no such loss"):
        make(loss=broken).train(1, 4)


def bytes_read():
    with open("/proc/self/io", encoding="ascii") as counts:
        return int(counts.readline().split()[1])  # rchar


def test_whether_the_files_of_a_large_model_have_come_is_seen_without_reading_all_of_them(tmp_path):
    """A script waited for 5.6 GB of comparisons after the training of 124 million parameters with AdamW."""
    one, other, whole = tmp_path / "one", tmp_path / "other", 512 << 20
    for path in one, other:
        with open(path, "wb") as out:
            out.truncate(whole)
    before = bytes_read()
    assert _driver.same_file(one, other)
    assert bytes_read() - before < 40 << 20
    for begin, count in (0, 4000000), (whole - 2000000, 2000000), (whole // 2 - 4500000, 9000000):  # another training of the same model
        with open(other, "r+b") as out:
            out.seek(begin)
            out.write(b"x" * count)
        assert not _driver.same_file(one, other), begin
        with open(other, "r+b") as out:
            out.truncate(0)
            out.truncate(whole)
        assert _driver.same_file(one, other)
    os.truncate(other, whole - 1)
    assert not _driver.same_file(one, other) and not _driver.same_file(one, tmp_path / "none")


def test_small_files_are_compared_whole(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for size in 0, 1, 1000, 3 << 20:
        one.write_bytes(bytes(size))
        other.write_bytes(bytes(size))
        assert _driver.same_file(one, other)
        if size:
            with open(other, "r+b") as out:
                out.seek(size // 3)
                out.write(b"x")
            assert not _driver.same_file(one, other)
