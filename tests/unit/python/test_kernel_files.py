"""Models without kernel code of frameworks that set-up does not install: stand-ins of the names that the loaders use, with the calls
and the errors that were seen of ONNX Runtime 1.32, XGBoost 3.2, skops 0.16 and TensorFlow 2.15. What TensorFlow does itself is
tested where SHOAL_TEST_TENSORFLOW names a Python that has it."""

import json
import os
import subprocess
import textwrap

import pytest
from test_kernel_host import host, refusal_of, tensor  # noqa: F401  a fixture

pytest.importorskip("numpy")

ONNX = """
    import numpy

    class Said:
        def __init__(self, name, type, shape):
            self.name, self.type, self.shape = name, type, shape

    class SessionOptions:
        def __init__(self):
            self.said = {}

        def add_session_config_entry(self, name, value):
            self.said[name] = value

    class InferenceSession:
        def __init__(self, path, options, providers):
            assert options.intra_op_num_threads == 3 and options.inter_op_num_threads == 1
            assert options.said == {"session.intra_op.allow_spinning": "0"}
            with open(path) as file:
                self._kind = file.read()
            if self._kind not in ("double", "text"):
                raise RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF")

        def get_inputs(self):
            return [Said("x", "tensor(float)" if self._kind == "double" else "tensor(string)", ["n", 2])]

        get_outputs = get_inputs

        def run(self, names, arrays):
            if self._kind == "double":
                return [arrays["x"] * 2]
            return [numpy.array([str(one) for one in arrays["x"].reshape(-1)], dtype=object).reshape(arrays["x"].shape)]
"""
XGBOOST = """
    class DMatrix:
        def __init__(self, rows):
            self.rows = rows

    class Booster:
        def load_model(self, path):
            with open(path) as file:
                assert file.read() == "trees"

        def num_features(self):
            return 2

        def predict(self, matrix):
            return matrix.rows.sum(axis=1).astype("f4")
"""
SKOPS = """
    class Model:
        n_features_in_ = 2

        def predict(self, rows):
            return rows[:, 0] > 1

    def get_untrusted_types(file):
        with open(file) as text:
            return text.read().split()

    def load(path, trusted):
        assert trusted == get_untrusted_types(path)
        return Model()
"""


def stand_in(folder, **modules):
    """A folder with these modules, for PYTHONPATH: `skops__io` is the module io of the package skops."""
    folder.mkdir()
    for name, text in modules.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def rows_of(one, *rows, datatype="FP32"):
    status, said = one.oip({"inputs": [tensor(rows, datatype=datatype)]})
    assert status == 200, said
    return said["outputs"][0]["data"]


def test_onnx(host, tmp_path):  # noqa: F811
    path = stand_in(tmp_path / "fakes", onnxruntime=ONNX)
    slot = {"PYTHONPATH": path, "OMP_NUM_THREADS": "3"}
    one = host({"m.onnx": "double"}, **slot)
    assert one.ready()["platform"] == "onnxruntime_onnx" and rows_of(one, [1.0, 2.0], [3.0, 4.0]) == [2, 4, 6, 8]
    one = host({"m.onnx": "text"}, **slot)
    one.ready()
    status, said = one.oip({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "\u00e4"]}]})
    assert status == 200 and said["outputs"][0]["data"] == ["a", "\u00e4"]
    raw = b"".join(len(one).to_bytes(4, "little") + one for one in (b"a", b"\xff"))
    head = json.dumps({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": len(raw)}}]})
    status, _, body = one.answer(9, head.encode() + raw, header_len=len(head))
    assert status == 400 and b"no UTF-8" in body
    assert "INVALID_PROTOBUF" in refusal_of(host({"m.onnx": "garbage"}, **slot))


def test_xgboost(host, tmp_path):  # noqa: F811
    path = stand_in(tmp_path / "fakes", xgboost=XGBOOST)
    for name in ("m.json", "m.ubj"):
        one = host({name: "trees"}, PYTHONPATH=path)
        assert one.ready()["platform"] == "xgboost" and rows_of(one, [1.0, 2.0], [3.0, 4.0]) == [3, 7]


def test_skops(host, tmp_path):  # noqa: F811
    path = stand_in(tmp_path / "fakes", skops__io=SKOPS, skops____init__="")
    one = host({"m.skops": ""}, PYTHONPATH=path)
    assert one.ready()["platform"] == "sklearn" and rows_of(one, [1.0, 2.0], [3.0, 4.0]) == [False, True]
    assert "types that skops does not trust (os.system)" in refusal_of(host({"m.skops": "os.system"}, PYTHONPATH=path))
    one = host({"m.skops": "os.system"}, PYTHONPATH=path, SHOAL_KERNEL_ALLOW_PICKLE="1")
    assert one.ready()["platform"] == "sklearn"


@pytest.mark.parametrize("name, module", [("m.onnx", "onnxruntime"), ("m.ubj", "xgboost"), ("m.skops", "skops"),
                                          ("m.keras", "tensorflow"), ("m/saved_model.pb", "tensorflow")])
def test_a_host_without_the_framework_says_so(host, tmp_path, name, module):  # noqa: F811
    gone = "raise ImportError('gone')"
    one = host({name: "x"}, PYTHONPATH=stand_in(tmp_path / "fakes", **{module: gone}))
    assert "this host's Python has no %s" % module in refusal_of(one)


# ---- TensorFlow itself -----------------------------------------------------------------------------------------------

TENSORFLOW = os.environ.get("SHOAL_TEST_TENSORFLOW", "")
MAKE = """
import json, sys
import numpy as np
import tensorflow as tf
K = tf.keras
folder = sys.argv[1]
net = K.Sequential([K.layers.Input((3,)), K.layers.Dropout(0.5), K.layers.Dense(2, activation="tanh")])
net.save(folder + "/whole.keras")
net.save(folder + "/whole.h5")
net.save(folder + "/saved", save_format="tf")
net.export(folder + "/exported")
net.save_weights(folder + "/weights.h5")
strange = K.Sequential([K.layers.Input((3,)), K.layers.Lambda(lambda x: x * 2)])
strange.save(folder + "/strange.h5")
strange.save(folder + "/strange.keras")
print(json.dumps(net(np.array([[1, 2, 3], [4, 5, 6]], "f4")).numpy().reshape(-1).tolist()))
"""
NET = "import tensorflow as tf\nK = tf.keras\ndef make():\n    return K.Sequential([K.layers.Input((3,)), K.layers.Dropout(0.5), " \
      "K.layers.Dense(2, activation='tanh')])\n"


@pytest.mark.skipif(not TENSORFLOW, reason="set-up installs no TensorFlow (500 MB): name a Python that has tensorflow-cpu 2.15 with "
                                           "SHOAL_TEST_TENSORFLOW")
def test_what_tensorflow_leaves(host, tmp_path, monkeypatch):  # noqa: F811
    made = tmp_path / "made"
    made.mkdir()
    said = subprocess.run([TENSORFLOW, "-c", MAKE, str(made)], capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
    assert said.returncode == 0, said.stderr
    wanted = json.loads(said.stdout.splitlines()[-1])
    monkeypatch.setattr("sys.executable", TENSORFLOW)

    def files(folder, top=""):
        return {top + str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    weights = {"m.h5": (made / "weights.h5").read_bytes(), "net.py": NET}
    named = json.dumps({"name": "w", "weight_path": "m.h5", "attributes": [{"key": "model_file", "value": "net.py"},
                                                                           {"key": "model_class", "value": "make"}]})
    for package, platform in ((files(made / "exported"), "tensorflow_savedmodel"), (files(made / "saved", "m/"), "tensorflow_savedmodel"),
                              ({"m.keras": (made / "whole.keras").read_bytes()}, "keras"),
                              ({"m.h5": (made / "whole.h5").read_bytes()}, "keras"), (dict(weights, **{"model.json": named}), "keras")):
        one = host(package, CUDA_VISIBLE_DEVICES="")
        ready = one.ready()
        assert ready["platform"] == platform and [(i["datatype"], i["shape"]) for i in ready["inputs"]] == [("FP32", [-1, 3])]
        assert rows_of(one, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(wanted, rel=1e-5)
    assert "holds weights, not a model" in refusal_of(host(weights, CUDA_VISIBLE_DEVICES=""))
    for name in ("strange.h5", "strange.keras"):
        assert "Lambda layer" in refusal_of(host({name: (made / name).read_bytes()}, CUDA_VISIBLE_DEVICES=""))
