"""Collectives outside of steps, on NumPy arrays and torch tensors (include/shoal/collective_op.h has the rules).

    group = Group(comm)                             of a communicator that has entered an epoch
    group.all_reduce(gradient, "mean")              in place; out= for another array
    handle = group.all_reduce(gradient, wait=False); ...; handle.wait()

Shapes travel with the call: members that disagree in operation, type or shape all get CommError, which names both and the
rank. An array has to be contiguous, and a tensor to be on the CPU, or on the device that was opened."""

import ctypes

from pyedt import _comm

TYPES = {"float32": 0, "float64": 1, "int32": 2, "int64": 3, "float16": 4, "bfloat16": 5}
REDUCTIONS = {"sum": 0, "min": 1, "max": 2, "mean": 3}
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, BARRIER = range(1, 6)
HOST, DEVICE = 0, 1


def described(values):
    """(address, type, shape, memory) of an array or a tensor."""
    name = str(values.dtype).rsplit(".", 1)[-1]
    if name not in TYPES:
        raise _comm.CommError("a collective of %s: only %s" % (values.dtype, ", ".join(TYPES)))
    if hasattr(values, "data_ptr"):
        if not values.is_contiguous():
            raise _comm.CommError("a collective needs a contiguous tensor: tensor.contiguous() makes one")
        return values.data_ptr(), TYPES[name], tuple(values.shape), DEVICE if values.device.type == "cuda" else HOST
    if not values.flags.c_contiguous:
        raise _comm.CommError("a collective needs a contiguous array: numpy.ascontiguousarray makes one")
    return values.ctypes.data, TYPES[name], values.shape, HOST


class Handle:
    """A collective under way; it keeps its arrays alive."""

    def __init__(self, comm, number, held):
        self._comm, self._number, self._held = comm, number, held

    def test(self):
        """True: it is over."""
        if self._number is not None and self._comm.op_test(self._number):
            self._number = self._held = None
        return self._number is None

    def wait(self):
        if self._number is not None:
            number, self._number = self._number, None
            self._comm.op_wait(number)
            self._held = None


class Group:
    def __init__(self, comm):
        self._comm = comm

    def _call(self, kind, given, out, wait, reduction="sum", root=0, any_order=False, share=None):
        """`share`: the array whose elements are counted, where `given` or `out` holds one for each member."""
        if reduction not in REDUCTIONS:
            raise _comm.CommError("a collective by %r: only %s" % (reduction, ", ".join(REDUCTIONS)))
        source, kind_of, shape, memory = described(given)
        target, out_type, _, out_memory = described(out)
        if (kind_of, memory) != (out_type, out_memory):
            raise _comm.CommError("a collective from %s into %s: both have one type, in one kind of memory"
                                  % (given.dtype, out.dtype))
        if share is not None:
            shape = described(share)[2]
        elems = 1
        for length in shape:
            elems *= length
        op = _comm.Op(kind=kind, type=kind_of, reduction=REDUCTIONS[reduction], root=root, memory=memory,
                      any_order=int(any_order), input=source, output=target, elems=elems)
        if 0 < len(shape) <= 8:
            op.dim_count, op.dims = len(shape), (ctypes.c_uint64 * 8)(*shape)
        if wait:
            self._comm.op_run(op)
            return None
        return Handle(self._comm, self._comm.op_start(op), (given, out))

    def _lengths(self, whole, share, what):
        size = self._comm.size()
        if len(described(whole)[2]) == 0 or whole.shape[0] != size or tuple(whole.shape[1:]) != tuple(share.shape):
            raise _comm.CommError("%s among %d members: the large array has the shape %s, not %s"
                                  % (what, size, tuple(whole.shape), (size, *share.shape)))

    def all_reduce(self, values, reduction="sum", out=None, wait=True, any_order=False):
        out = values if out is None else out
        if tuple(values.shape) != tuple(out.shape):
            raise _comm.CommError("all_reduce from the shape %s into %s" % (tuple(values.shape), tuple(out.shape)))
        return self._call(ALL_REDUCE, values, out, wait, reduction, any_order=any_order)

    def reduce_scatter(self, values, out, reduction="sum", wait=True, any_order=False):
        """`values`: [members, ...], `out`: [...], what is mine of the result."""
        self._lengths(values, out, "reduce_scatter")
        return self._call(REDUCE_SCATTER, values, out, wait, reduction, any_order=any_order, share=out)

    def all_gather(self, values, out, wait=True, any_order=False):
        """`out`: [members, ...], by rank."""
        self._lengths(out, values, "all_gather")
        return self._call(ALL_GATHER, values, out, wait, any_order=any_order)

    def broadcast(self, values, root=0, wait=True, any_order=False):
        return self._call(BROADCAST, values, values, wait, root=root, any_order=any_order)

    def barrier(self, wait=True):
        op = _comm.Op(kind=BARRIER)
        if wait:
            self._comm.op_run(op)
            return None
        return Handle(self._comm, self._comm.op_start(op), ())
