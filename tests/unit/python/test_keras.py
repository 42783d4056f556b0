"""TF.Keras: the same bits for any number of engines, the final files, and the published sample's shape. Runs where TensorFlow 2.15
is: in this interpreter, or in the one that SHOAL_TEST_TENSORFLOW names (set-up installs none: it is 500 MB)."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = os.environ.get("SHOAL_TEST_TENSORFLOW", sys.executable)
KINDS = ("published", "sequence", "functional", "own_class", "drawing")
SECONDS = 1200  # each kind traces a graph for each of ten engines


def has_tensorflow():
    ask = "import importlib.util as u; print(all(u.find_spec(m) for m in ('tensorflow', 'scipy', 'cloudpickle', 'msgpack')))"
    return subprocess.run([PYTHON, "-c", ask], capture_output=True, text=True).stdout.strip() == "True"


needs_tensorflow = pytest.mark.skipif(not has_tensorflow(), reason="%s has no tensorflow 2.15 (with scipy, cloudpickle and msgpack); "
                                      "name one that has with SHOAL_TEST_TENSORFLOW" % PYTHON)


@pytest.fixture(scope="module", params=KINDS)
def outcome(request, tmp_path_factory):
    environment = dict(os.environ, FABRIC_BACKEND="keras", TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")
    done = subprocess.run([PYTHON, str(HERE / "keras_engines.py"), request.param], env=environment, capture_output=True, text=True,
                          timeout=SECONDS, cwd=tmp_path_factory.mktemp("keras"))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])[request.param]


@needs_tensorflow
def test_a_keras_model_has_the_same_bits_for_any_number_of_engines(outcome):
    assert outcome["three"] == outcome["one"] and outcome["come and go"] == outcome["one"]


@needs_tensorflow
def test_the_files_are_keras_own_and_come_back_into_the_scripts_model(outcome):
    assert outcome["driver's model"] == "the same"
    assert set(outcome["files"]) == {
        "model_epoch_%s%s" % (epoch, end) for epoch in (1, 2, "final") for end in (".h5", "_optimizer_state.npz")} | {
        "model_epoch_final"}
