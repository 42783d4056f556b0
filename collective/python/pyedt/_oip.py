"""The Open Inference Protocol, version 2: bodies of requests to arrays, arrays to bodies of answers. JSON, and its extension for
binary tensors, where the JSON's length is in the header Inference-Header-Content-Length (`header_len` on the link) and raw
tensors follow it.

Whatever is wrong with a request is a Wrong, which names the input and says what was expected."""

import json

import numpy

TYPES = {"BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
         "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
NAMES = {numpy.dtype(code): name for name, code in TYPES.items()}
TENSORS_MAX, DIMENSIONS_MAX = 256, 16
JSON_TYPE, BINARY_TYPE = "application/json", "application/octet-stream"


class Wrong(ValueError):
    """The request is not what the protocol or the model wants."""


class Request:
    """`inputs`: name -> array, in the request's order. `rows`: the first dimension that all inputs have, or None."""

    def __init__(self, said, inputs):
        self.id = said.get("id")
        self.inputs = inputs
        parameters = _object(said, "parameters")
        self._binary = parameters.get("binary_data_output") is True
        self.wanted = None
        if said.get("outputs"):
            self.wanted = {}
            for one in _objects(said, "outputs"):
                binary = _object(one, "parameters").get("binary_data", self._binary)
                self.wanted[_name(one, "outputs")] = binary is True
        firsts = {array.shape[0] if array.ndim else None for array in inputs.values()}
        self.rows = firsts.pop() if len(firsts) == 1 else None

    def shape_of_batch(self):
        """What two requests must have in common for one call of the model."""
        return tuple((name, array.dtype.str, array.shape[1:]) for name, array in self.inputs.items())

    def is_binary(self, name):
        return self.wanted[name] if self.wanted is not None else self._binary


def _object(said, key):
    value = said.get(key, {})
    if not isinstance(value, dict):
        raise Wrong("%s is no object" % key)
    return value


def _objects(said, key):
    value = said.get(key)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Wrong("%s is missing or no list of objects" % key)
    if len(value) > TENSORS_MAX:
        raise Wrong("%s has %d entries; at most %d are taken" % (key, len(value), TENSORS_MAX))
    return value


def _name(said, where):
    name = said.get("name")
    if not isinstance(name, str) or not name:
        raise Wrong("an entry of %s has no name" % where)
    return name


def _shape_of(said, name):
    shape = said.get("shape")
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX or not all(
            type(one) is int and 0 <= one < 1 << 40 for one in shape):
        raise Wrong("input %s: shape is missing or no list of dimensions" % name)
    return shape


def _elements(shape):
    count = 1
    for one in shape:
        count *= one
    return count


def _texts_of_bytes(raw, count, name):
    """BYTES: each element is its length, 32 bits, and its bytes."""
    found, at = [], 0
    while at < len(raw) and len(found) <= count:
        length = int.from_bytes(raw[at:at + 4], "little")
        if at + 4 + length > len(raw):
            raise Wrong("input %s: its binary data is cut short" % name)
        found.append(bytes(raw[at + 4:at + 4 + length]))
        at += 4 + length
    return found


def _from_json(data, datatype, name):
    flat = data
    while isinstance(flat, list) and flat and isinstance(flat[0], list):
        if not all(isinstance(one, list) for one in flat):
            raise Wrong("input %s: data mixes lists and values" % name)
        flat = [value for one in flat for value in one]
    if not isinstance(flat, list):
        raise Wrong("input %s: data is missing or no list" % name)
    if datatype == "BYTES":
        if not all(isinstance(one, str) for one in flat):
            raise Wrong("input %s: data of BYTES are texts" % name)
        return _texts([one.encode("utf-8", "surrogatepass") for one in flat])
    kinds = bool if datatype == "BOOL" else (int, float) if datatype.startswith("FP") else int
    if not all(isinstance(one, kinds) and (datatype == "BOOL" or type(one) is not bool) for one in flat):
        raise Wrong("input %s: data has a value that is no %s" % (name, datatype))
    try:
        return numpy.array(flat, dtype=TYPES[datatype])
    except (OverflowError, ValueError):
        raise Wrong("input %s: data has a value beyond %s" % (name, datatype)) from None


def _texts(values):
    made = numpy.empty(len(values), dtype=object)
    made[:] = values
    return made


def _array_of(said, raw):
    """(name, array, how many bytes of `raw` it took)."""
    name, datatype = _name(said, "inputs"), said.get("datatype")
    shape = _shape_of(said, name)
    count = _elements(shape)
    if datatype not in TYPES and datatype != "BYTES":
        raise Wrong("input %s: datatype %s is not one of %s, BYTES" % (name, str(datatype)[:40], ", ".join(TYPES)))
    size = _object(said, "parameters").get("binary_data_size")
    taken = 0
    if size is not None:
        if type(size) is not int or not 0 <= size <= len(raw):
            raise Wrong("input %s: binary_data_size is %s, and %d bytes are there" % (name, str(size)[:40], len(raw)))
        taken = size
        if datatype == "BYTES":
            array = _texts(_texts_of_bytes(raw[:size], count, name))
        elif size != count * numpy.dtype(TYPES[datatype]).itemsize:
            raise Wrong("input %s: %d bytes are not %s of shape %s" % (name, size, datatype, shape))
        else:
            array = numpy.frombuffer(raw[:size], dtype=TYPES[datatype])
    else:
        array = _from_json(said.get("data"), datatype, name)
    if array.size != count:
        raise Wrong("input %s: data has %d elements; shape %s has %d" % (name, array.size, shape, count))
    return name, array.reshape(shape), taken


def read(body, json_bytes=None):
    """The request in a body."""
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise Wrong("Inference-Header-Content-Length is %d; the body has %d bytes" % (json_bytes, len(body)))
    text, raw = (body, b"") if json_bytes is None else (body[:json_bytes], memoryview(body)[json_bytes:])
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong("the body is no JSON: %s" % error) from None
    if not isinstance(said, dict):
        raise Wrong("the body is no JSON object")
    inputs = {}
    for one in _objects(said, "inputs"):
        name, array, taken = _array_of(one, raw)
        if name in inputs:
            raise Wrong("input %s is there twice" % name)
        inputs[name] = array
        raw = raw[taken:]
    if len(raw):
        raise Wrong("%d bytes follow the last tensor" % len(raw))
    if not inputs:
        raise Wrong("inputs is empty")
    return Request(said, inputs)


def _datatype_of(array):
    if array.dtype == object or array.dtype.kind in "SU":
        return "BYTES"
    name = NAMES.get(array.dtype.newbyteorder("<"))
    if name is None:
        raise ValueError("the model's output has type %s, which the protocol does not know" % array.dtype)
    return name


def _as_bytes(value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def _raw_of(array, datatype):
    if datatype != "BYTES":
        return numpy.ascontiguousarray(array, dtype=TYPES[datatype]).tobytes()
    return b"".join(len(one).to_bytes(4, "little") + one for one in map(_as_bytes, array.reshape(-1).tolist()))


def _numbers_of(array, name):
    if array.dtype.kind == "f" and not numpy.isfinite(array).all():
        raise ValueError("output %s has NaN or Infinity, for which JSON has no number: ask for it as binary data "
                         "(its parameter binary_data: true)" % name)
    return array.reshape(-1).tolist()


def write(request, model, version, outputs):
    """(headers, body) of the answer. `outputs`: name -> array."""
    said, raws = {"model_name": model, "model_version": version, "outputs": []}, []
    if request.id is not None:
        said["id"] = request.id
    names = list(outputs) if request.wanted is None else list(request.wanted)
    for name in names:
        if name not in outputs:
            raise Wrong("the model has no output %s; it has %s" % (name, ", ".join(outputs)))
        array = numpy.asarray(outputs[name])
        datatype = _datatype_of(array)
        one = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if request.is_binary(name):
            raws.append(_raw_of(array, datatype))
            one["parameters"] = {"binary_data_size": len(raws[-1])}
        elif datatype == "BYTES":
            one["data"] = [_as_bytes(value).decode("utf-8", "replace") for value in array.reshape(-1).tolist()]
        else:
            one["data"] = _numbers_of(array, name)
        said["outputs"].append(one)
    text = json.dumps(said, separators=(",", ":"), allow_nan=False).encode()
    if not raws:
        return {"content_type": JSON_TYPE}, text
    return {"content_type": BINARY_TYPE, "header_len": len(text)}, b"".join([text] + raws)


def error(text):
    """(headers, body) of a refusal."""
    return {"content_type": JSON_TYPE}, json.dumps({"error": text}).encode()
