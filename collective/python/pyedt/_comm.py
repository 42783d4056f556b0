"""libshoal through ctypes: the calls of include/shoal/collective.h, one method each. Every call drops the interpreter
lock. RANK_LOST becomes RankLost (enter the next epoch), everything else that fails becomes CommError."""

import ctypes
import importlib.util
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_uint8, c_uint32, c_uint64, c_void_p

import numpy as np

ENGINE, DRIVER = 0, 1
TIMEOUT, CALL, ENTERED, WRITE_FINAL, RELEASED, STOPPED, TRAIN_STATE, TRAIN_RECORDS = range(8)
KEEP, LOAD, TAKE = range(3)
(LOADING, READY, ENTERING, COMPUTING, REDUCING, APPLYING, VALIDATING, CALLBACK, DONE) = range(9)
WAITING, RUNNING, FINISHED, FAILED = range(4)
FAILED_WORKER, FAILED_USER_CODE, FAILED_HOST = range(3)  # enum shoal_comm_failure

PARTS_MAX = 128  # SHOAL_RANKS_MAX
ERR_NOT_FOUND, ERR_RANK_LOST = 5, 13


class CommError(RuntimeError):
    """A call of libshoal failed; the text says why."""


class RankLost(Exception):
    """The epoch is revoked: enter the next one."""


class CallEvent(ctypes.Structure):
    _fields_ = [("event", c_uint32), ("call", c_uint32), ("job_seed", c_uint64), ("reason", c_uint32),
                ("bundle_path", c_char * 1024), ("text", c_char * 256)]


class Plan(ctypes.Structure):
    _fields_ = [("call", c_uint32), ("virtual_workers", c_uint32), ("sum_elems", c_uint64), ("copy_bytes", c_uint64),
                ("samples", c_uint64), ("minibatch", c_uint32), ("data_epochs", c_uint32), ("steps_per_epoch", c_uint64),
                ("param_count", c_uint32), ("metric_count", c_uint32), ("metric_names", POINTER(c_char_p)),
                ("scratch_bytes", c_uint64), ("update_vectors", c_uint32)]


class Entry(ctypes.Structure):
    _fields_ = [("event", c_uint32), ("reason", c_uint32), ("e", c_uint32), ("k", c_uint32), ("rank", c_uint32),
                ("size", c_uint32), ("decided_step", c_uint64), ("apply_result", c_uint32), ("state", c_uint32),
                ("give", c_uint32), ("joiners", c_uint32), ("donor", c_uint64), ("records_acked", c_uint64),
                ("call", c_uint32), ("hosts", c_uint32), ("snapshot_path", c_char * 1024), ("text", c_char * 256)]


class StepHead(ctypes.Structure):
    _fields_ = [("step", c_uint64), ("kind", c_uint32), ("data_epoch", c_uint32), ("step_in_epoch", c_uint32),
                ("v_count", c_uint32)]


class Minibatch(ctypes.Structure):
    _fields_ = [("v", c_uint32), ("samples", c_uint32), ("id_low", c_uint64), ("id_high", c_uint64),
                ("values", POINTER(c_double)), ("touched", POINTER(c_uint8))]


class Op(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("type", c_uint32), ("reduction", c_uint32), ("root", c_uint32), ("memory", c_uint32),
                ("any_order", c_uint32), ("stream", c_void_p), ("input", c_void_p), ("output", c_void_p), ("elems", c_uint64), ("dim_count", c_uint32),
                ("pad", c_uint32), ("dims", c_uint64 * 8)]


class ResultPart(ctypes.Structure):
    _fields_ = [("begin", c_uint64), ("elems", c_uint64), ("values", c_void_p)]


class DriverEvent(ctypes.Structure):
    _fields_ = [("event", c_uint32), ("call", c_uint32), ("state", c_uint32), ("engines", c_uint32),
                ("acked_step", c_uint64), ("final_step", c_uint64), ("first_step", c_uint64), ("record_count", c_uint32),
                ("reason", c_uint32), ("records_len", c_uint64), ("records", POINTER(c_uint8)),
                ("files_path", c_char * 1024), ("text", c_char * 4096)]


SIGNATURES = {
    "shoal_comm_open": (c_int, [POINTER(c_void_p), c_uint32, c_char_p, c_char_p]),
    "shoal_comm_open_solo": (c_int, [POINTER(c_void_p), c_char_p]),
    "shoal_comm_close": (None, [c_void_p]),
    "shoal_comm_error": (c_char_p, [c_void_p]),
    "shoal_comm_is_solo": (c_int, [c_void_p]),
    "shoal_comm_wait_call": (c_int, [c_void_p, c_int, POINTER(CallEvent)]),
    "shoal_comm_ready": (c_int, [c_void_p, POINTER(Plan)]),
    "shoal_comm_work": (c_void_p, [c_void_p]),
    "shoal_comm_result": (c_void_p, [c_void_p]),
    "shoal_comm_result_parts": (c_int, [c_void_p, POINTER(ResultPart), c_uint32, POINTER(c_uint32)]),
    "shoal_device_open": (c_int, [c_void_p, c_int]),
    "shoal_device_pin": (c_int, [c_void_p, c_void_p, c_uint64]),
    "shoal_device_unpin": (c_int, [c_void_p, c_void_p]),
    "shoal_comm_copy_work": (c_void_p, [c_void_p]),
    "shoal_comm_copy_result": (c_void_p, [c_void_p]),
    "shoal_comm_touched": (c_void_p, [c_void_p]),
    "shoal_comm_enter": (c_int, [c_void_p, c_int, POINTER(Entry)]),
    "shoal_comm_state_give": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64]),
    "shoal_comm_state_end": (c_int, [c_void_p]),
    "shoal_comm_state_size": (c_int, [c_void_p, POINTER(c_uint32), POINTER(c_uint64)]),
    "shoal_comm_state_take": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64]),
    "shoal_comm_done": (c_int, [c_void_p, c_uint64, c_uint64]),
    "shoal_comm_files_written": (c_int, [c_void_p, c_uint64]),
    "shoal_comm_failed": (c_int, [c_void_p, c_int, c_char_p]),
    "shoal_comm_snapshot": (c_int, [c_void_p, c_uint64, c_char_p]),
    "shoal_comm_set_activity": (None, [c_void_p, c_uint32]),
    "shoal_comm_rank": (c_uint32, [c_void_p]),
    "shoal_comm_size": (c_uint32, [c_void_p]),
    "shoal_comm_worker_id": (c_uint64, [c_void_p]),
    "shoal_digest": (c_uint64, [c_void_p, c_uint64, c_uint64]),
    "shoal_step_assign": (c_int, [c_void_p, POINTER(StepHead), POINTER(c_uint32), c_uint32, POINTER(c_uint32)]),
    "shoal_step_part": (c_int, [c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, c_void_p]),
    "shoal_step_publish": (c_int, [c_void_p, POINTER(Minibatch)]),
    "shoal_step_place": (c_int, [c_void_p, c_uint32, c_uint32, POINTER(c_void_p)]),
    "shoal_step_keep": (c_int, [c_void_p]),
    "shoal_step_fuse": (c_int, [c_void_p, c_uint32, c_uint32, c_uint32]),
    "shoal_step_update": (c_int, [c_void_p, c_uint64, c_void_p, c_uint32]),
    "shoal_step_updated": (c_int, [c_void_p, POINTER(c_void_p)]),
    "shoal_update_run": (c_int, [c_void_p, c_void_p, c_uint32]),
    "shoal_update_keep": (c_int, [c_void_p, c_void_p]),
    "shoal_step_reduce": (c_int, [c_void_p]),
    "shoal_step_complete": (c_int, [c_void_p]),
    "shoal_step_apply_allowed": (c_int, [c_void_p]),
    "shoal_step_record": (c_int, [c_void_p, POINTER(POINTER(c_uint8)), POINTER(c_uint64)]),
    "shoal_op_run": (c_int, [c_void_p, POINTER(Op)]),
    "shoal_op_start": (c_int, [c_void_p, POINTER(Op), POINTER(c_uint64)]),
    "shoal_op_test": (c_int, [c_void_p, c_uint64, POINTER(c_uint32)]),
    "shoal_op_wait": (c_int, [c_void_p, c_uint64]),
    "shoal_driver_train": (c_int, [c_void_p, c_uint32, c_uint64, c_uint32, c_char_p, c_char_p]),
    "shoal_driver_wait": (c_int, [c_void_p, c_int, POINTER(DriverEvent)]),
    "shoal_driver_ack": (c_int, [c_void_p, c_uint32, c_uint64]),
    "shoal_sample_sums": (None, [c_uint64, c_void_p, c_uint64, POINTER(c_uint64)]),
}


def library_path():
    """$FABRIC_HOME/native/libshoal.so, or beside the zip this module was loaded from: zips hold no libraries."""
    homes = [os.environ[name] for name in ("FABRIC_HOME", "DLI_FABRIC_HOME") if os.environ.get(name)]
    homes.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    paths = [os.environ["SHOAL_LIBRARY"]] if os.environ.get("SHOAL_LIBRARY") else []
    paths += [os.path.join(home, "native", "libshoal.so") for home in homes]
    for path in paths:
        if os.path.exists(path):
            return path
    raise CommError("libshoal.so is not at %s; set FABRIC_HOME to the fabric directory of the Shoal installation"
                    % " or ".join(paths))


def point_at_ucx():
    """The UCX of this interpreter's environment, where there is one (the package libucx-cu13), for libshoal to load; else it
    takes the system's. What the user has set stays."""
    if os.environ.get("SHOAL_UCX"):
        return
    found = importlib.util.find_spec("libucx")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = os.path.join(folder, "lib", "libucp.so.0")
        if os.path.exists(path):
            os.environ["SHOAL_UCX"] = path


_loaded = None


def library():
    global _loaded
    if _loaded is None:
        loaded = ctypes.CDLL(library_path())
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        _loaded = loaded
    return _loaded


class Communicator:
    """One worker's (or the driver's) connection. `solo`: a communicator of one, whatever the environment says."""

    def __init__(self, role=ENGINE, numeric_class="", solo=False):
        self._lib = library()
        self._comm = c_void_p()
        error = ctypes.create_string_buffer(512)
        if solo:
            code = self._lib.shoal_comm_open_solo(byref(self._comm), error)
        else:
            point_at_ucx()
            code = self._lib.shoal_comm_open(byref(self._comm), role, numeric_class.encode()[:159], error)
        if code != 0:
            self._comm = c_void_p()
            raise CommError("cannot reach the agent: %s" % error.value.decode("utf-8", "replace"))
        self._plan = None
        self.device = None  # that libshoal has open
        self._step, self._assigned = StepHead(), None
        self._minibatch, self._values = Minibatch(), None

    def close(self):
        if self._comm:
            self._lib.shoal_comm_close(self._comm)
            self._comm = c_void_p()

    def _check(self, code, what):
        if code == 0:
            return
        if code == ERR_RANK_LOST:
            raise RankLost()
        text = self._lib.shoal_comm_error(self._comm) or b""
        raise CommError("%s: %s" % (what, text.decode("utf-8", "replace") or "error %d" % code))

    # ---- lifecycle ----

    def wait_call(self, timeout_ms=-1):
        event = CallEvent()
        self._check(self._lib.shoal_comm_wait_call(self._comm, timeout_ms, byref(event)), "waiting for a call")
        return event

    def ready(self, metric_names, **sizes):
        """Lay out the buffers: `sum_elems`, `copy_bytes`, ... as in shoal_comm_plan."""
        names = (c_char_p * len(metric_names))(*[name.encode()[:63] for name in metric_names])
        plan = Plan(metric_count=len(metric_names), metric_names=names, **sizes)
        self._check(self._lib.shoal_comm_ready(self._comm, byref(plan)), "making ready")
        self._plan = plan
        self._assigned = (c_uint32 * plan.virtual_workers)()
        self._values = (c_double * plan.metric_count)()
        self._minibatch.values = self._values

    def work(self):
        return self._array(self._lib.shoal_comm_work, self._plan.sum_elems, np.float32)

    def result(self):
        return self._array(self._lib.shoal_comm_result, self._plan.sum_elems, np.float32)

    def result_parts(self):
        """[(first element, elements, address)]: the result where it stays until the next ready."""
        parts, count = (ResultPart * PARTS_MAX)(), c_uint32()
        self._check(self._lib.shoal_comm_result_parts(self._comm, parts, PARTS_MAX, byref(count)), "asking for the result")
        return [(part.begin, part.elems, part.values) for part in parts[:count.value]]

    def copy_work(self):
        return self._array(self._lib.shoal_comm_copy_work, self._plan.copy_bytes, np.uint8)

    def copy_result(self):
        return self._array(self._lib.shoal_comm_copy_result, self._plan.copy_bytes, np.uint8)

    def touched(self):
        return self._array(self._lib.shoal_comm_touched, (self._plan.param_count + 7) // 8, np.uint8)

    def _array(self, function, count, dtype):
        """The slot as an array of its memory; an empty one of its own if it has no element."""
        if count == 0:
            return np.zeros(0, dtype)
        memory = (c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(function(self._comm))
        return np.frombuffer(memory, dtype=dtype)

    def enter(self, timeout_ms=-1):
        entry = Entry()
        self._check(self._lib.shoal_comm_enter(self._comm, timeout_ms, byref(entry)), "entering an epoch")
        return entry

    def state_give(self, tensor, address, length):
        self._check(self._lib.shoal_comm_state_give(self._comm, tensor, address, length), "giving the state")

    def state_end(self):
        self._check(self._lib.shoal_comm_state_end(self._comm), "giving the state")

    def state_size(self):
        """(tensor, bytes) of the donor's next tensor, or None after its last."""
        tensor, length = c_uint32(), c_uint64()
        code = self._lib.shoal_comm_state_size(self._comm, byref(tensor), byref(length))
        if code == ERR_NOT_FOUND:
            return None
        self._check(code, "taking the state")
        return tensor.value, length.value

    def state_take(self, tensor, address, length):
        self._check(self._lib.shoal_comm_state_take(self._comm, tensor, address, length), "taking the state")

    def done(self, final_step, digest):
        self._check(self._lib.shoal_comm_done(self._comm, final_step, digest), "ending")

    def files_written(self, final_step):
        self._check(self._lib.shoal_comm_files_written(self._comm, final_step), "reporting the files")

    def failed(self, failure, text):
        self._lib.shoal_comm_failed(self._comm, failure, text.encode("utf-8", "replace")[:4000])

    def snapshot(self, step, path):
        self._check(self._lib.shoal_comm_snapshot(self._comm, step, os.fsencode(path)), "reporting a snapshot")

    def set_activity(self, activity):
        self._lib.shoal_comm_set_activity(self._comm, activity)

    def rank(self):
        return self._lib.shoal_comm_rank(self._comm)

    def size(self):
        return self._lib.shoal_comm_size(self._comm)

    def worker_id(self):
        return self._lib.shoal_comm_worker_id(self._comm)

    def digest(self, address, length, position):
        return self._lib.shoal_digest(address, length, position)

    # ---- the step transaction ----

    def assign(self, step):
        head = self._step
        head.step, head.kind, head.data_epoch = step.number, step.kind, step.epoch
        head.step_in_epoch, head.v_count = step.index, step.parts
        count = c_uint32()
        self._check(self._lib.shoal_step_assign(self._comm, byref(head), self._assigned, len(self._assigned),
                                                byref(count)), "assigning step %d" % step.number)
        return self._assigned[:count.value]

    def publish(self, v, samples, id_low, id_high, values, touched=None):
        """`touched`: a uint8 array of bits, or None for every parameter."""
        minibatch = self._minibatch
        minibatch.v, minibatch.samples, minibatch.id_low, minibatch.id_high = v, samples, id_low, id_high
        self._values[:] = values
        minibatch.touched = None if touched is None else touched.ctypes.data_as(POINTER(c_uint8))
        self._check(self._lib.shoal_step_publish(self._comm, byref(minibatch)), "publishing mini-batch %d" % v)

    def part(self, v, samples, offset, elems, address):
        """Part of the gradient of v, which lies at `address`; None: zeroes. No elements: forget the parts."""
        code = self._lib.shoal_step_part(self._comm, v, samples, offset, elems, address)
        if code:
            self._check(code, "giving a part of mini-batch %d" % v)

    def place(self, v, samples):
        """The address where the caller puts the weighted gradient of v, before part() tells of its pieces."""
        into = c_void_p()
        self._check(self._lib.shoal_step_place(self._comm, v, samples, byref(into)), "asking for the place of mini-batch %d" % v)
        return into.value

    def keep(self):
        """The gradients of the assigned step stay with the caller, who is alone in the epoch."""
        self._check(self._lib.shoal_step_keep(self._comm), "keeping the gradients of a step")

    def fuse(self, v, count, samples):
        """What comes next is the gradient of so many mini-batches from v on, computed as one; all are published, v last."""
        self._check(self._lib.shoal_step_fuse(self._comm, v, count, samples), "fusing %d mini-batches from %d on" % (count, v))

    def update(self, turn, parts, count):
        """What the update of the assigned step does: `parts` is the address of so many struct shoal_update_part."""
        self._check(self._lib.shoal_step_update(self._comm, turn, parts, count), "giving the update")

    def updated(self):
        """Addresses of the applied step's new weights and state, or None."""
        now = (c_void_p * 4)()
        code = self._lib.shoal_step_updated(self._comm, now)
        if code == ERR_NOT_FOUND:
            return None
        self._check(code, "asking for the update")
        return [address for address in now if address]

    def update_run(self, parts, count):
        self._check(self._lib.shoal_update_run(self._comm, parts, count), "updating")

    def update_keep(self, address):
        self._check(self._lib.shoal_update_keep(self._comm, address), "keeping weights where they are")

    def reduce(self):
        self._check(self._lib.shoal_step_reduce(self._comm), "reducing")

    def complete(self):
        self._check(self._lib.shoal_step_complete(self._comm), "completing")

    def apply_allowed(self):
        self._check(self._lib.shoal_step_apply_allowed(self._comm), "waiting to apply")

    def record(self):
        """The bytes of the committed step's record."""
        data, length = POINTER(c_uint8)(), c_uint64()
        self._check(self._lib.shoal_step_record(self._comm, byref(data), byref(length)), "reading the record")
        return ctypes.string_at(data, length.value)

    def sample_sums(self, job_seed, ids):
        sums = (c_uint64 * 2)()
        array = np.array(ids, dtype=np.uint64)
        self._lib.shoal_sample_sums(job_seed, array.ctypes.data, len(array), sums)
        return sums[0], sums[1]

    # ---- collectives outside of steps: _collective.py makes the Op of tensors and arrays ----

    def op_run(self, op):
        self._check(self._lib.shoal_op_run(self._comm, byref(op)), "a collective")

    def op_start(self, op):
        handle = c_uint64()
        self._check(self._lib.shoal_op_start(self._comm, byref(op), byref(handle)), "starting a collective")
        return handle.value

    def op_test(self, handle):
        """True: it is over, well; the handle is void then, as after an exception."""
        over = c_uint32()
        self._check(self._lib.shoal_op_test(self._comm, handle, byref(over)), "a collective")
        return over.value != 0

    def op_wait(self, handle):
        self._check(self._lib.shoal_op_wait(self._comm, handle), "a collective")

    # ---- a device ----

    def device_open(self, ordinal):
        """Once; whether it is open."""
        if self.device is None:
            self._check(self._lib.shoal_device_open(self._comm, ordinal), "opening a device")
            self.device = ordinal

    def pin(self, address, length):
        self._check(self._lib.shoal_device_pin(self._comm, address, length), "pinning memory")

    def unpin(self, address):
        self._check(self._lib.shoal_device_unpin(self._comm, address), "letting go of pinned memory")

    # ---- the driver ----

    def driver_train(self, call, job_seed, engines_max, path, signature):
        self._check(self._lib.shoal_driver_train(self._comm, call, job_seed, engines_max, os.fsencode(path),
                                                 signature.encode()), "handing over train()")

    def driver_wait(self, timeout_ms):
        event = DriverEvent()
        self._check(self._lib.shoal_driver_wait(self._comm, timeout_ms, byref(event)), "waiting for the job")
        return event

    def driver_ack(self, call, step):
        self._check(self._lib.shoal_driver_ack(self._comm, call, step), "acknowledging records")


def event_text(field):
    return field.decode("utf-8", "replace")
