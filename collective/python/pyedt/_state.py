"""Everything a joiner needs after step D, as a list of tensors: the first describes the others.

    tensor 0: "SHOALST2"  u32 JSON bytes  JSON {step, ended, tensors: [[dtype, shape], ...], parameters}  plain values (_plain.py)
    then the raw bytes of each tensor: parameters, buffers, and every tensor that the plain values mention

These hold optimizer state, parameter groups, callbacks and module modes, and reading them runs no code: they come over the
network. What the receiver has itself (its model, its optimizer, their modules, parameters and buffers) is named by a token, so
that a callback keeps its own engine's objects. A snapshot file is the same, one after the other, each with its u64 size before
it. The version before wrote a pickle, "SHOALST1", which is not read."""

import json
import os
import struct

import torch

from pyedt import _plain

MAGIC = b"SHOALST2"


def dtype_name(dtype):
    return str(dtype).split(".")[-1]


def plain(tensor):
    return tensor.detach().cpu().contiguous()


class Tokens:
    """Names of the objects that every engine has."""

    def __init__(self, model, loss, optimizer, parameters, buffers):
        self.by_name = {"model": model, "loss": loss, "optimizer": optimizer}
        for root, module in (("model", model), ("loss", loss)):
            if isinstance(module, torch.nn.Module):
                for name, inner in module.named_modules():
                    self.by_name["%s/%s" % (root, name)] = inner
        for i, parameter in enumerate(parameters):
            self.by_name["parameter/%d" % i] = parameter
        for i, buffer in enumerate(buffers):
            self.by_name["buffer/%d" % i] = buffer
        for i, group in enumerate(optimizer.param_groups):
            self.by_name["group/%d" % i] = group
        for i, one in enumerate(getattr(optimizer, "optimizers", ())):
            self.by_name["optimizer/%d" % i] = one
        self.by_id = {id(value): name for name, value in self.by_name.items()}


class Carrier:
    """Gives and takes the state of one engine's objects."""

    def __init__(self, model, loss, optimizer, buffers):
        self._modules = [m for m in (model, loss) if isinstance(m, torch.nn.Module)]
        self.parameters = list(dict.fromkeys(
            [p for module in self._modules for p in module.parameters()]
            + [p for group in optimizer.param_groups for p in group["params"]]))
        self._buffers, self._optimizer = buffers, optimizer
        self._tokens = Tokens(model, loss, optimizer, self.parameters, buffers.tensors)

    def give(self, step, callbacks, ended=None):
        """(first tensor's bytes, list of tensors) of the state after `step`; `ended`: T3 of _trainer.py."""
        tensors = [plain(t) for t in self.parameters + self._buffers.tensors]

        def add(tensor):
            tensors.append(plain(tensor))
            return len(tensors) - 1

        rest = _plain.Writer(lambda value: self._tokens.by_id.get(id(value)), add).dump({
            "optimizer": [dict(self._optimizer.state.get(p, {})) for p in self.parameters],
            "groups": [{k: v for k, v in group.items() if k != "params"} for group in self._optimizer.param_groups],
            "callbacks": callbacks,
            "modes": [m.training for module in self._modules for m in module.modules()],
            "requires_grad": [p.requires_grad for p in self.parameters],
        })
        text = json.dumps({"step": step, "ended": ended, "parameters": len(self.parameters),
                           "tensors": [[dtype_name(t.dtype), list(t.shape)] for t in tensors]}).encode()
        return MAGIC + struct.pack("<I", len(text)) + text + rest, tensors

    @staticmethod
    def ended(first):
        return describe(first).get("ended")  # none in what an older version has given

    @staticmethod
    def memory(tensor):
        """(address, bytes)."""
        return tensor.data_ptr(), tensor.numel() * tensor.element_size()

    @staticmethod
    def write_file(path, first, tensors):
        write_file(path, first, tensors)

    @staticmethod
    def read_file(path):
        return read_file(path)

    @staticmethod
    def empty(first):
        """(step, tensors to fill) as the first tensor describes them."""
        description = describe(first)
        return description["step"], [torch.empty(shape, dtype=_plain.dtype_of(dtype))
                                     for dtype, shape in description["tensors"]]

    def take(self, first, tensors, callbacks=()):
        """Make the described state this engine's own; returns its callbacks, made of the ones that it has."""
        description = describe(first)
        own = self.parameters + self._buffers.tensors
        if description["parameters"] != len(self.parameters) or len(tensors) < len(own):
            raise ValueError("the state has %d parameters, this engine's model %d"
                             % (description["parameters"], len(self.parameters)))
        with torch.no_grad():
            for mine, theirs in zip(own, tensors):
                if mine.shape != theirs.shape:
                    raise ValueError("a tensor of the state has shape %s, this engine's %s"
                                     % (tuple(theirs.shape), tuple(mine.shape)))
                mine.copy_(theirs)
        size = struct.unpack_from("<I", first, len(MAGIC))[0]
        rest = _plain.Reader(self._tokens.by_name.__getitem__, tensors,
                             {"callbacks": list(callbacks)}).load(first[len(MAGIC) + 4 + size:])
        self._optimizer.state.clear()
        for parameter, state in zip(self.parameters, rest["optimizer"]):
            if state:
                self._optimizer.state[parameter] = state
        for group, values in zip(self._optimizer.param_groups, rest["groups"]):
            group.update(values)
        for module, mode in zip([m for root in self._modules for m in root.modules()], rest["modes"]):
            module.training = mode
        for parameter, wants in zip(self.parameters, rest["requires_grad"]):
            parameter.requires_grad_(wants)
        self._buffers.commit()
        return rest["callbacks"]

    def digest(self, add):
        """The sum of `add(address, bytes, position)` over parameters, buffers and the optimizer's tensors: equal in
        every engine that is equal to the bit."""
        total, position = 0, 0
        for tensor in [plain(t) for t in self.parameters + self._buffers.tensors] + self._optimizer_tensors():
            size = tensor.numel() * tensor.element_size()
            if size:
                total += add(tensor.data_ptr(), size, position)
            position += size
        return total & 0xFFFFFFFFFFFFFFFF

    def _optimizer_tensors(self):
        tensors = []
        for parameter in self.parameters:
            for _, value in sorted(self._optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
                if isinstance(value, torch.Tensor):
                    tensors.append(plain(value))
                elif isinstance(value, (int, float)):
                    tensors.append(torch.tensor(value, dtype=torch.float64))
        return tensors


def describe(first):
    if first[:len(MAGIC)] != MAGIC or len(first) < len(MAGIC) + 4:
        raise ValueError("no state of an engine: it begins with %r" % bytes(first[:8]))
    size = struct.unpack_from("<I", first, len(MAGIC))[0]
    return json.loads(bytes(first[len(MAGIC) + 4:len(MAGIC) + 4 + size]))


def tensor_bytes(tensor):
    """The memory of a plain tensor, without a copy."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else memoryview(b"")


def write_file(path, first, tensors):
    """A snapshot: whole or not there."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "wb") as out:
        for part in [first] + [tensor_bytes(t) for t in tensors]:
            out.write(struct.pack("<Q", len(part)))
            out.write(part)
        out.flush()
        os.fsync(out.fileno())
    os.rename(temporary, path)


def read_file(path):
    """(first, tensors) of a snapshot. ValueError if it ends early."""
    with open(path, "rb") as source:
        first = read_part(source, path)
        _, tensors = Carrier.empty(first)
        for tensor in tensors:
            part = read_part(source, path)
            if len(part) != tensor.numel() * tensor.element_size():
                raise ValueError("%s: a tensor has %d bytes, not %d" % (path, len(part),
                                                                        tensor.numel() * tensor.element_size()))
            if part:
                tensor.reshape(-1).view(torch.uint8).numpy()[:] = memoryview(part)
    return first, tensors


def read_part(source, path):
    head = source.read(8)
    size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    part = source.read(size) if len(head) == 8 and size <= os.fstat(source.fileno()).st_size else b""
    if len(head) < 8 or len(part) < size:
        raise ValueError("%s: the snapshot ends early" % path)
    return part
