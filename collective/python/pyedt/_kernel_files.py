"""Models without a line of kernel code: the package holds a model's file, and its kind says what loads it.

    TorchScript        .pt .pth .ts    an archive with code/
    torch.export       .pt2            an archive with a program
    state of a model   .pt .pth        with attributes model_file and model_class of model.json: the class, called without
                                       arguments, takes the state; or with model_script, a training script: what it gives to
                                       FabricModel takes it
    ONNX               .onnx           where onnxruntime is installed
    TensorFlow, Keras  .keras .h5      and a SavedModel's folder; where tensorflow is installed (_kernel_keras)
    XGBoost            .json .ubj      where xgboost is installed
    scikit-learn       .skops          where skops is installed
                       .joblib .pkl    only where the operator allows pickles of strangers

Requests are of the Open Inference Protocol. Those that wait at the same time and agree in all but the first dimension are one
call of the model, where that dimension is free; a call that fails is made again one by one, so that each request has its own
answer."""

import importlib.util
import json
import os
import runpy
import sys
import traceback
import zipfile

import numpy

from pyedt import _kernel_serve, _oip
from pyedt._kernel_serve import Unusable

ARRAY_TYPES = {name: numpy.dtype(code) for name, code in _oip.TYPES.items()}


def describe(name, datatype, shape):
    return {"name": name, "datatype": datatype, "shape": list(shape)}


class Model:
    """`inputs`, `outputs`: what is known of them; a dimension of -1 is free. `call(arrays)`: name -> array, both ways."""

    platform, inputs, outputs, batches = "", (), (), True

    def __init__(self, name):
        self.name = name

    def call(self, arrays):
        raise NotImplementedError

    # ---- what the server calls ----

    def invoke(self, batch):
        """Each task of the batch is answered."""
        groups = {}
        for place, task in enumerate(batch):
            task.reached = True
            try:
                json_bytes = task.meta.get("header_len") or 0
                request = _oip.read(task.body, json_bytes if type(json_bytes) is int and json_bytes > 0 else None)
                request.inputs = self.matched(request.inputs)
            except _oip.Wrong as error:
                task.answer(400, *_oip.error(str(error)))
                continue
            except Exception as error:  # what the reader did not foresee costs this request alone
                task.answer(400, *_oip.error("the request cannot be read: %s" % _kernel_serve.last_line(error)))
                continue
            joins = self.batches and request.rows is not None
            groups.setdefault(request.shape_of_batch() if joins else place, []).append((task, request))
        for members in groups.values():
            self._call_group(members)

    def _call_group(self, members):
        if len(members) == 1:
            self._answer(members[0], None)
            return
        try:
            joined = {name: numpy.concatenate([request.inputs[name] for _, request in members])
                      for name in members[0][1].inputs}
            outputs = self.call(joined)
            rows = sum(request.rows for _, request in members)
            if not all(array.ndim and array.shape[0] == rows for array in map(numpy.asarray, outputs.values())):
                raise ValueError("an output does not have a row for each row of the inputs")
        except Exception:  # one of them may be at fault
            for member in members:
                self._answer(member, None)
            return
        at = 0
        for member in members:
            rows = member[1].rows
            self._answer(member, {name: array[at:at + rows] for name, array in outputs.items()})
            at += rows

    def _answer(self, member, outputs):
        task, request = member
        try:
            if outputs is None:
                outputs = self.call(request.inputs)
            task.answer(200, *_oip.write(request, self.name, str(task.meta.get("version") or "1"), outputs))
        except _oip.Wrong as error:
            task.answer(400, *_oip.error(str(error)))
        except Exception as error:
            traceback.print_exc()
            task.answer(500, *_oip.error(_kernel_serve.last_line(error)))

    def matched(self, arrays):
        """The inputs by the model's names and types; a model of one input takes it under any name."""
        if not self.inputs:
            return arrays
        if len(self.inputs) == 1 and len(arrays) == 1:
            return {self.inputs[0]["name"]: self._fitting(self.inputs[0], next(iter(arrays.values())))}
        names = [one["name"] for one in self.inputs]
        if set(names) != set(arrays):
            raise _oip.Wrong("the model's inputs are %s; the request has %s" % (", ".join(names), ", ".join(arrays)))
        return {one["name"]: self._fitting(one, arrays[one["name"]]) for one in self.inputs}

    @staticmethod
    def _fitting(wanted, array):
        shape, name = wanted["shape"], wanted["name"]
        if shape and (len(shape) != array.ndim or any(-1 != want != have for want, have in zip(shape, array.shape))):
            raise _oip.Wrong("input %s has shape %s; the model wants %s" % (name, list(array.shape), shape))
        dtype = ARRAY_TYPES.get(wanted["datatype"])
        if dtype is None or dtype == array.dtype:
            return array
        if dtype.kind == "f" and array.dtype.kind == "f":
            return array.astype(dtype)
        raise _oip.Wrong("input %s is %s; the model wants %s" % (name, _oip.NAMES.get(array.dtype, "BYTES"), wanted["datatype"]))


def outputs_of(result, to_array):
    """name -> array, of what a model returned: one value, several, or a mapping."""
    if isinstance(result, dict):
        return {str(name): to_array(value) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        return {"output_%d" % place: to_array(value) for place, value in enumerate(result)}
    return {"output_0": to_array(result)}


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def torch_place():
    """Where a model of PyTorch computes: on the card that the kernel's slot has, if there is one. Of a card that others share
    torch takes no more than was declared."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    place, mib = torch.device("cuda:0"), int(os.environ.get("SHOAL_GPU_MEM_MIB") or 0)
    if mib > 0:
        torch.cuda.set_per_process_memory_fraction(min(1.0, (mib << 20) / torch.cuda.get_device_properties(place).total_memory), place)
    return place


class TorchModel(Model):
    def __init__(self, name, module, platform, inputs=(), batches=True):
        super().__init__(name)
        import torch

        self._place = torch_place()
        if self._place.type != "cpu" and hasattr(module, "to"):
            module = module.to(self._place)
        self._torch, self._module, self.platform, self.batches = torch, module, platform, batches
        self.inputs = list(inputs)
        floats = [one.dtype for one in self._state_of(module) if one.is_floating_point()]
        self._float = floats[0] if floats else None
        self.outputs = []

    @staticmethod
    def _state_of(module):
        try:
            return list(module.parameters()) + list(module.buffers())
        except AttributeError:
            return []

    def call(self, arrays):
        tensors = []
        for name, array in arrays.items():
            if array.dtype == object:
                raise _oip.Wrong("input %s is BYTES, which no tensor holds" % name)
            tensor = self._torch.from_numpy(numpy.array(array))  # a tensor of its own memory, which a model may change
            if self._float is not None and tensor.is_floating_point():
                tensor = tensor.to(self._float)
            tensors.append(tensor.to(self._place))
        with self._torch.inference_mode():
            return outputs_of(self._module(*tensors), self._to_array)

    def _to_array(self, value):
        if not isinstance(value, self._torch.Tensor):
            return numpy.asarray(value)
        value = value.detach().cpu()
        return (value.float() if value.dtype == self._torch.bfloat16 else value).numpy()


def type_name(dtype):
    return {"torch.float32": "FP32", "torch.float64": "FP64", "torch.float16": "FP16", "torch.int64": "INT64",
            "torch.int32": "INT32", "torch.int16": "INT16", "torch.int8": "INT8", "torch.uint8": "UINT8",
            "torch.bool": "BOOL"}.get(str(dtype), "")


def load_script(name, path):
    import torch

    module = torch.jit.load(path, map_location="cpu").eval()
    graph_inputs = [one.debugName() for one in list(module.forward.graph.inputs())[1:]]
    return TorchModel(name, module, "pytorch_torchscript", [describe(one.split(".")[0], "", ()) for one in graph_inputs])


def load_exported(name, path):
    import torch

    program = torch.export.load(path)
    users = set(program.graph_signature.user_inputs)
    inputs = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in users and hasattr(node.meta.get("val"), "shape"):
            shape = [one if type(one) is int else -1 for one in node.meta["val"].shape]
            inputs.append(describe(node.name, type_name(node.meta["val"].dtype), shape))
    free = bool(inputs) and all(one["shape"] and one["shape"][0] == -1 for one in inputs)
    if torch_place().type != "cpu":  # tensors that the program makes have the device of its export
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, torch_place())
    return TorchModel(name, program.module(), "pytorch_export", inputs, free)


def class_of(root, model):
    """The class that takes a state: attributes model_file (a Python file of the package) and model_class."""
    attributes = {one["key"]: one["value"] for one in model.get("attributes") or []}
    file, made = attributes.get("model_file"), attributes.get("model_class")
    if not file or not made:
        raise Unusable("the file holds a state, not a model: name the class that takes it in model.json's attributes, as "
                       "model_file and model_class, or save the model by torch.jit.script or torch.export")
    path = os.path.normpath(os.path.join(root, file))
    if not path.startswith(os.path.normpath(root) + os.sep) or not os.path.isfile(path):
        raise Unusable("model_file %s does not exist" % file)
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location("shoal_model_code", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, made):
        raise Unusable("model_file %s has no class %s" % (file, made))
    return getattr(module, made)


class Found(BaseException):
    """A script has come to its FabricModel."""


def model_of_script(root, attributes):
    """The model that a training script gives to FabricModel: the script is run as it was trained, up to there."""
    from pyedt import fabric_model

    path = os.path.normpath(os.path.join(root, attributes["model_script"]))
    if not path.startswith(os.path.normpath(root) + os.sep) or not os.path.isfile(path):
        raise Unusable("model_script %s does not exist" % attributes["model_script"])

    class Seen(fabric_model.FabricModel):
        def __init__(self, model, *others, **named):
            raise Found(model)

    words = json.loads(attributes.get("model_argv") or "[]")
    kept, real = (sys.argv, os.getcwd(), list(sys.path)), fabric_model.FabricModel
    sys.argv = [path, *words]
    sys.path.insert(0, os.path.dirname(path))
    os.chdir(os.path.dirname(path))
    fabric_model.FabricModel = Seen
    sys.modules.pop("fabric_model", None)  # it is imported anew, with the name that stands for Seen now
    try:
        runpy.run_path(path, run_name="__main__")
    except Found as found:
        return found.args[0]
    except SystemExit as error:
        raise Unusable("%s ended before it made a FabricModel (%s)" % (attributes["model_script"], error)) from None
    finally:
        fabric_model.FabricModel = real
        sys.argv = kept[0]
        os.chdir(kept[1])
        sys.path[:] = kept[2]
    raise Unusable("%s made no FabricModel" % attributes["model_script"])


def load_state(name, path, root, model):
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if os.environ.get("SHOAL_KERNEL_ALLOW_PICKLE") != "1":
            raise Unusable("%s is a pickle that holds more than tensors (%s); this host does not unpickle what others made"
                           % (os.path.basename(path), _kernel_serve.last_line(error)[:300])) from error
        state = torch.load(path, map_location="cpu", weights_only=False)
    if isinstance(state, torch.nn.Module):
        return TorchModel(name, state.eval(), "pytorch")
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    attributes = {one["key"]: one["value"] for one in model.get("attributes") or []}
    module = model_of_script(root, attributes) if attributes.get("model_script") else class_of(root, model)()
    if not isinstance(module, torch.nn.Module):
        raise Unusable("what takes the state is no torch.nn.Module but %s" % type(module).__name__)
    module.load_state_dict(state)
    return TorchModel(name, module.eval(), "pytorch")


def load_torch(name, path, root, model):
    if not zipfile.is_zipfile(path):
        return load_state(name, path, root, model)
    with zipfile.ZipFile(path) as archive:
        inside = [one.split("/", 1)[-1] for one in archive.namelist()]
    if any(one.startswith("code/") for one in inside) and "constants.pkl" in inside:
        return load_script(name, path)
    if any(one.startswith(("serialized_exported_program", "models/", "archive_format")) for one in inside):
        return load_exported(name, path)
    return load_state(name, path, root, model)


# ---- others ----------------------------------------------------------------------------------------------------------


def threads_of_slot():
    """How many threads a slot has for its arithmetic: as OMP_NUM_THREADS, which torch follows by itself, says."""
    try:
        return max(1, int(os.environ.get("OMP_NUM_THREADS", "1")))
    except ValueError:
        return 1


class OnnxModel(Model):
    platform = "onnxruntime_onnx"

    def __init__(self, name, path):
        super().__init__(name)
        try:
            import onnxruntime
        except ImportError:
            raise Unusable("%s is an ONNX model, and this host's Python has no onnxruntime" % os.path.basename(path)) from None
        options = onnxruntime.SessionOptions()
        # Else it takes every core for itself, and its threads spin there between requests, beside other slots' work.
        options.intra_op_num_threads = threads_of_slot()
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = [self._describe(one) for one in self._session.get_inputs()]
        self.outputs = [self._describe(one) for one in self._session.get_outputs()]
        self.batches = all(one["shape"] and one["shape"][0] == -1 for one in self.inputs)

    @staticmethod
    def _describe(said):
        kinds = {"tensor(float)": "FP32", "tensor(double)": "FP64", "tensor(float16)": "FP16", "tensor(bool)": "BOOL",
                 "tensor(string)": "BYTES"}
        kinds.update(("tensor(%s)" % name.lower(), name) for name in _oip.TYPES if "INT" in name)
        return describe(said.name, kinds.get(said.type, ""), [one if type(one) is int else -1 for one in said.shape or ()])

    def call(self, arrays):
        arrays = {name: self._texts(name, array) if array.dtype == object else array for name, array in arrays.items()}
        return dict(zip((one["name"] for one in self.outputs), self._session.run(None, arrays)))

    @staticmethod
    def _texts(name, array):
        """Its texts are str, and bytes would be written as Python does."""
        made = numpy.empty(array.shape, dtype=object)
        try:
            made.reshape(-1)[:] = [one.decode() for one in array.reshape(-1)]
        except UnicodeDecodeError:
            raise _oip.Wrong("input %s has a text that is no UTF-8, which ONNX wants" % name) from None
        return made


class XgboostModel(Model):
    platform = "xgboost"

    def __init__(self, name, path):
        super().__init__(name)
        try:
            import xgboost
        except ImportError:
            raise Unusable("%s is an XGBoost model, and this host's Python has no xgboost" % os.path.basename(path)) from None
        self._xgboost, self._booster = xgboost, xgboost.Booster()
        self._booster.load_model(path)
        self.inputs = [describe("input_0", "", (-1, self._booster.num_features()))]
        self.outputs = []

    def call(self, arrays):
        return {"output_0": self._booster.predict(self._xgboost.DMatrix(next(iter(arrays.values()))))}


class SklearnModel(Model):
    platform = "sklearn"

    def __init__(self, name, path):
        super().__init__(name)
        self._model = (self._of_skops if path.lower().endswith(".skops") else self._of_pickle)(path)
        wanted = getattr(self._model, "n_features_in_", None)
        self.inputs = [describe("input_0", "", (-1, wanted) if wanted else ())]
        self.outputs = []

    @staticmethod
    def _of_pickle(path):
        if os.environ.get("SHOAL_KERNEL_ALLOW_PICKLE") != "1":
            raise Unusable("%s is a pickle, which can run any code; this host's operator does not allow them. A .skops file "
                           "(skops.io.dump) needs no leave" % os.path.basename(path))
        try:
            import joblib
        except ImportError:
            raise Unusable("%s is a model of scikit-learn, and this host's Python has no joblib" % os.path.basename(path)) from None
        return joblib.load(path)

    @staticmethod
    def _of_skops(path):
        try:
            import skops.io
        except ImportError:
            raise Unusable("%s is a model of scikit-learn, and this host's Python has no skops" % os.path.basename(path)) from None
        strange = sorted(skops.io.get_untrusted_types(file=path))
        if strange and os.environ.get("SHOAL_KERNEL_ALLOW_PICKLE") != "1":
            raise Unusable("%s holds types that skops does not trust (%s); this host's operator does not allow them"
                           % (os.path.basename(path), ", ".join(strange[:8])))
        return skops.io.load(path, trusted=strange)

    def call(self, arrays):
        array = next(iter(arrays.values()))
        found = {"output_0": numpy.asarray(self._model.predict(array))}
        if hasattr(self._model, "predict_proba"):
            found["probabilities"] = numpy.asarray(self._model.predict_proba(array))
        return found


def load_tensorflow(kind):
    def load_one(name, path, root, model):
        from pyedt import _kernel_keras  # it uses this file

        return getattr(_kernel_keras, kind)(name, path, root, model)

    return load_one


# What package_check.c knows, too.
LOADERS = {
    ".onnx": lambda name, path, root, model: OnnxModel(name, path),
    ".ubj": lambda name, path, root, model: XgboostModel(name, path),
    ".xgb": lambda name, path, root, model: XgboostModel(name, path),
    ".json": lambda name, path, root, model: XgboostModel(name, path),
    ".joblib": lambda name, path, root, model: SklearnModel(name, path),
    ".pkl": lambda name, path, root, model: SklearnModel(name, path),
    ".pickle": lambda name, path, root, model: SklearnModel(name, path),
    ".skops": lambda name, path, root, model: SklearnModel(name, path),
    ".pt": load_torch, ".pth": load_torch, ".ts": load_torch, ".pt2": load_torch,
    ".keras": load_tensorflow("load_keras"), ".h5": load_tensorflow("load_keras"), ".hdf5": load_tensorflow("load_keras"),
}


def is_saved_model(path):
    return os.path.isfile(os.path.join(path, "saved_model.pb"))


def model_file(root, model):
    """The one that weight_path names; else the only one at the package's top whose kind is known. JSON is a model only where
    nothing else is: it may be a sample. A SavedModel is its folder, which may be the package itself."""
    named = model.get("weight_path") or ""
    path = os.path.normpath(os.path.join(root, named))
    inside = path == os.path.normpath(root) or path.startswith(os.path.normpath(root) + os.sep)
    if named and inside and (os.path.isfile(path) or is_saved_model(path)):
        return path
    if is_saved_model(root):
        return root
    found = sorted(one for one in os.listdir(root) if not one.startswith(".") and one != "model.json" and (
        os.path.isfile(os.path.join(root, one)) and os.path.splitext(one)[1].lower() in LOADERS
        or is_saved_model(os.path.join(root, one))))
    found = [one for one in found if not one.lower().endswith(".json")] or found
    if len(found) != 1:
        raise Unusable("the package has no kernel_path, and %s; name one in model.json's weight_path" % (
            "no file of a model (%s, or a SavedModel's folder)" % " ".join(sorted(LOADERS)) if not found
            else "more than one file of a model: %s" % ", ".join(found[:8])))
    return os.path.join(root, found[0])


def load(root, model):
    path = model_file(root, model)
    if is_saved_model(path):
        return load_tensorflow("load_saved")(model["name"], path, root, model)
    loader = LOADERS.get(os.path.splitext(path)[1].lower())
    if loader is None:
        raise Unusable("%s is of no kind that is known here: %s" % (os.path.basename(path), " ".join(sorted(LOADERS))))
    return loader(model["name"], path, root, model)
