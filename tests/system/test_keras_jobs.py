"""TF.Keras as a user submits it, on agents whose Python has TensorFlow and no torch: elastic training is disturbed and leaves the
bits of an undisturbed run; what a script does wrong is said; a plain script of TensorFlow saves its model."""

import io
import json
import os
import subprocess

import pytest
import training
from conftest import OUT
from helpers import ended, log_of, result_of, submit
from mesh import Failed, Mesh
from test_bad_input import post, tar
from test_published import put_data
from test_service_of_job import Asker
from training import Outcome, Run

numpy = pytest.importorskip("numpy")
PYTHON = os.environ.get("SHOAL_TEST_TENSORFLOW", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="set-up installs no TensorFlow (500 MB): name a Python that has "
                                "tensorflow-cpu 2.15, and scipy for ImageDataGenerator, with SHOAL_TEST_TENSORFLOW")
# The numbers of training.py, whose schedule this has: 10 variables are trained, and a sample takes as long as PACE says.
SCRIPT = """
import hashlib
import os
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy
import tensorflow as tf
from callbacks import Callback
from fabric_model import FabricModel

layers = tf.keras.layers
BATCH, VIRTUAL, TRAIN, VALIDATION, SLOW = %d, %d, %d, %d, %g
X = numpy.random.RandomState(3).rand(TRAIN + VALIDATION, 8, 8, 1).astype("float32")
Y = (X[:, :4].sum(axis=(1, 2, 3)) > X[:, 4:].sum(axis=(1, 2, 3))).astype("int64")

class Rows:
    def __init__(self, first, last):
        self.first, self.last = first, last
    def __len__(self):
        return self.last - self.first
    def __getitem__(self, i):
        try:
            with open(os.environ["PACE"]) as pace:
                time.sleep(float(pace.read()))
        except FileNotFoundError:
            time.sleep(SLOW)
        return X[self.first + i], Y[self.first + i]

def datasets():
    return Rows(0, TRAIN), Rows(TRAIN, TRAIN + VALIDATION)

class Rate(Callback):
    def on_epoch_begin(self, epoch):
        rate = self.params["optimizer"].learning_rate
        tf.keras.backend.set_value(rate, tf.keras.backend.get_value(rate) * 0.9)

tf.keras.utils.set_random_seed(7)
model = tf.keras.Sequential([
    layers.Conv2D(8, 3, padding="same", input_shape=(8, 8, 1)), layers.BatchNormalization(), layers.ReLU(), layers.MaxPool2D(),
    layers.Flatten(), layers.Dropout(0.2), layers.Dense(32), layers.BatchNormalization(), layers.ReLU(), layers.Dense(2)])
fabric = FabricModel(model, datasets, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                     tf.keras.optimizers.Adam(0.003), metrics=["accuracy"], user_callback=[Rate()])
fabric.train(int(os.environ["EPOCHS"]), BATCH, VIRTUAL, validation_freq=1, checkpoint_freq=2)
digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
again = tf.keras.models.load_model(os.path.join(os.environ["RESULT_DIR"], "model", "train", "model_epoch_final"))
same = all(numpy.array_equal(a, b) for a, b in zip(model.get_weights(), again.get_weights()))
print("weights", digest, "SavedModel", "the same" if same else "another", "outputs", *model(X[:2]).numpy().reshape(-1), flush=True)
""" % (training.BATCH, training.VIRTUAL, training.TRAIN, training.VALIDATION, training.SLOW)


class KerasOutcome(Outcome):
    def take(self, run, by_name):
        self.weights = said_line(run, "weights")
        with numpy.load(io.BytesIO(by_name["model_epoch_final_optimizer_state.npz"]), allow_pickle=False) as found:
            self.optimizer = {name: found[name].tobytes() for name in found.files}


def said_line(run, word):
    log = log_of(run.mesh, run.mesh.hosts[0], run.job)
    return next((line for line in log.splitlines() if line.startswith(word + " ")), log)


@pytest.fixture(scope="module")
def mesh():
    done = subprocess.run([PYTHON, "-c", "import importlib.util as u; print(u.find_spec('torch'))"], capture_output=True, text=True)
    assert done.returncode == 0, "SHOAL_TEST_TENSORFLOW: %s" % done.stderr
    with Mesh(OUT / "shoal", python=PYTHON) as own:
        own.grow(("alpha", "beta", "gamma"))
        yield own


@pytest.fixture(autouse=True)
def no_job_stays():
    yield
    Run.end_all()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "main.py").write_text(SCRIPT)
    return path


def start(mesh, folder, workers):
    return Run(mesh, mesh.hosts[1], folder, workers=workers, epochs=4, pace=0.02, framework="edtTensorflow")


@pytest.fixture(scope="module")
def undisturbed(mesh, folder, tmp_path_factory):
    run = start(mesh, folder, 1)
    run.finish(240)
    outcome = KerasOutcome(run, mesh.hosts[0], tmp_path_factory.mktemp("undisturbed"))
    training.assert_exact(outcome)
    outcome.run = run
    return outcome


BAD = """
import os
import sys
import numpy
import tensorflow as tf
from fabric_model import FabricModel

how = sys.argv[1]

class Bad(tf.keras.layers.Layer):
    def call(self, x, training=None):
        if how == "layer" and os.environ.get("DLI_IS_DRIVER") != "true":
            raise ArithmeticError("no rows today")
        return x

def datasets():
    if how == "import":
        import nothing_such
    return [(numpy.ones(4, "float32"), 1)] * 64, None

model = tf.keras.Sequential([Bad(input_shape=(4,)), tf.keras.layers.Dense(2)])
FabricModel(model, datasets, "mse", "adam").train(1, 8, 2)
"""
PLAIN = """
import os
import tensorflow as tf

folder = os.path.join(os.environ["RESULT_DIR"], "model")
os.mkdir(folder)  # as the published sample, which wants it not to be there
model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(4,))])
model.compile("adam", "mse")
model.fit(tf.ones((64, 4)), tf.ones((64, 2)), epochs=1, verbose=2)
model.save(os.path.join(folder, "saved_model"))
"""


def test_plain_scripts_and_what_goes_wrong(mesh, tmp_path):
    """All at once, since most of their time is TensorFlow's import."""
    alpha = mesh.hosts[0]
    for name, text in (("bad", BAD), ("plain", PLAIN)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").write_text(text)
    plain = submit(mesh, alpha, tmp_path / "plain", framework="tensorflow")
    jobs = {how: submit(mesh, alpha, tmp_path / "bad", framework=framework, script=(how,)) for how, framework in (
        ("layer", "edtTensorflow"), ("import", "edtTensorflow"), ("plain", "tensorflow"))}
    said = {"layer": ("an engine failed in the user's code: ArithmeticError: no rows today (main.py, line 13, in call: ",),
            "import": ("an engine failed in the user's code: ModuleNotFoundError: No module named 'nothing_such' (main.py, line 18",),
            "plain": ("RuntimeError: train() of fabric_model wants an elastic job", "--framework edtTensorflow")}
    for how, job in jobs.items():
        facts = ended(mesh, job, 240)
        assert facts["state"] == "ERROR" and all(text in facts["detail"] for text in said[how]), (how, facts)
    assert ended(mesh, plain, 240)["state"] == "FINISHED"
    assert {"model/saved_model/saved_model.pb", "model/saved_model/variables/variables.index"} <= set(result_of(mesh, alpha, plain, tmp_path))


def test_its_curve_its_files_and_its_end(mesh, undisturbed, tmp_path):
    run = undisturbed.run
    for host in mesh.hosts:
        rows = mesh.cli(host, "job", "metrics", run.job)
        assert rows, "no curve"
    assert mesh.shoal("job", "wait", run.job, "--node", mesh.hosts[1].url).returncode == 0
    shown = mesh.cli(mesh.hosts[2], "job", "show", run.job)
    assert (shown["framework"], shown["state"], shown["steps"]) == (
        "edtTensorflow", "FINISHED", run.schedule.train_steps_until(run.schedule.last))
    files = set(result_of(mesh, mesh.hosts[1], run.job, tmp_path))
    assert {"train/model_epoch_%s%s" % (epoch, end) for epoch in (2, 4, "final") for end in (".h5", "_optimizer_state.npz")} <= {
        name.removeprefix("model/") for name in files}
    assert any(name.endswith("train/model_epoch_final/saved_model.pb") for name in files)
    assert not [path for host in mesh.hosts for path in host.data.glob("results/**/%s/**/*.tmp" % run.job)]


PUBLISHED = """
import argparse, gzip, os, sys
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np
import tensorflow as tf
from tensorflow.keras.preprocessing.image import ImageDataGenerator
sys.path.insert(0, os.path.join(os.environ["FABRIC_HOME"], "libs", "fabric.zip"))
from callbacks import LoggerCallback
from fabric_model import FabricModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

def read(name, head):
    with gzip.open(os.path.join(os.environ["DATA_DIR"], name)) as file:
        return np.frombuffer(file.read()[head:], np.uint8)

x = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)[:600].astype("float32") / 255
y = tf.keras.utils.to_categorical(read("t10k-labels-idx1-ubyte.gz", 8)[:600], 10)

def get_dataset():
    return (ImageDataGenerator().flow(x[:500], y[:500], batch_size=args.batch_size),
            ImageDataGenerator().flow(x[500:], y[500:], batch_size=args.batch_size))

class Logger(LoggerCallback):
    calls = 0
    def log_train_metrics(self, loss, acc, completed_batch, worker=0):
        Logger.calls += 1
    def log_test_metrics(self, loss, acc, completed_batch, worker=0):
        print("test", 0 <= acc <= 1, flush=True)

tf.keras.utils.set_random_seed(1)
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(4, (5, 5), activation="relu", input_shape=(28, 28, 1)), tf.keras.layers.MaxPooling2D((4, 4)),
    tf.keras.layers.Dropout(0.25), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
edt_m = FabricModel(model, get_dataset, "categorical_crossentropy", tf.keras.optimizers.legacy.Adam(lr=0.01), driver_logger=Logger())
edt_m.train(args.epochs, args.batch_size, 3)
print("calls", Logger.calls, flush=True)
"""


def test_a_sample_trains_as_its_client_submits_it_and_by_one_worker_to_the_same_bits(mesh, tmp_path):
    alpha, beta, gamma = mesh.hosts
    for host in mesh.hosts:
        put_data(host.data / "datasets" / "mnist")
    status, text = post(mesh, beta, tar({"tf2x_mnist_edt/main.py": PUBLISHED.encode()}),
                        "--exec-start edtTensorflow --numWorker 3 --gpuPerWorker 1 --workerMemory 8G --numPs 2 --edt-options "
                        "maxWorkers=3,mode=async_gdc --cs-datastore-meta type=fs,data_path=mnist --model-main main.py --model-dir "
                        "tf2x_mnist_edt --batch-size 32 --epochs 2", "tf2x_mnist_edt.modelDir.tar")
    assert status in (200, 201, 202), (status, text)
    (tmp_path / "main.py").write_text(PUBLISHED)
    jobs = [json.loads(text)["id"], submit(mesh, alpha, tmp_path, "--workers", 1, "--data-path", "mnist", framework="edtTensorflow",
                                           script=("--batch-size", "32", "--epochs", "2"))]
    found = []
    for job in jobs:
        assert ended(mesh, job, 300)["state"] == "FINISHED", mesh.job(job)
        assert "calls 32" in log_of(mesh, gamma, job)  # mini-batches of two epochs, the last of 20 samples
        with numpy.load(io.BytesIO(result_of(mesh, gamma, job, tmp_path)["model/train/model_epoch_final_optimizer_state.npz"])) as state:
            found.append({name: state[name].tobytes() for name in state.files})
    assert found[0] == found[1]
    assert "mode=async_gdc is done as sync_gdc" in log_of(mesh, alpha, jobs[0], "--which", "launcher")


def test_its_model_is_served(mesh, undisturbed):
    """The SavedModel, by its signature: no class and no script is needed."""
    alpha, beta, gamma = mesh.hosts
    ask = Asker(mesh)
    mesh.cli(gamma, "service", "deploy", "kerasnet", "--from-job", undisturbed.run.job)
    try:
        mesh.until(lambda: mesh.cli(beta, "service", "show", "kerasnet")["ready"] == 1, 240, "the kernel is ready")
    except Failed as error:
        raise Failed("%s\n%s" % (error, mesh.shoal("why", "kerasnet", "--node", beta.url, check=False).stdout)) from None
    rows = numpy.random.RandomState(3).rand(training.TRAIN + training.VALIDATION, 8, 8, 1).astype("float32")[:2]
    answers = []
    for host in mesh.hosts:
        status, answer = ask(host, "POST", "/v2/models/kerasnet/infer", {"inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 8, 8, 1], "data": rows.reshape(-1).tolist()}]})
        assert status == 200 and answer["outputs"][0]["shape"] == [2, 2], (status, answer)
        answers.append(answer["outputs"][0]["data"])
    assert answers[0] == answers[1] == answers[2]
    assert numpy.allclose(answers[0], [float(x) for x in undisturbed.weights.split("outputs ")[1].split()], atol=1e-5)
    mesh.cli(alpha, "service", "delete", "kerasnet")


def test_a_killed_engine_the_lost_host_of_the_driver_and_a_new_one_leave_no_trace(mesh, folder, undisturbed, tmp_path):
    run = start(mesh, folder, 6)
    run.gather()
    facts = run.step(5)
    run.kill(sorted(run.seen)[0])
    facts = run.step(facts["steps"] + 5)
    host, _ = run.driver()
    run.lose(host)  # another one runs the script again, which finds its training under way
    run.step(facts["steps"] + 5)
    run.pace(training.SLOW)
    run.until(lambda facts: (found := run.driver()) and found[0] is not host, training.START_SECONDS, "the script runs on another host")
    run.joined(mesh.add("delta"))
    run.finish(240)
    outcome = KerasOutcome(run, mesh.hosts[-1], tmp_path)
    training.assert_exact(outcome)
    training.assert_same_bits(outcome, undisturbed)
    assert len(outcome.shares) > 6
    assert "SavedModel the same" in outcome.weights
