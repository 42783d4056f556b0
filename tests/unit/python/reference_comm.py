"""A communicator in plain Python, the oracle of these tests: ranks of one process that share leaves, driven in lock step.
It adds in the canonical tree, as libshoal does; nothing of it is in the product."""

import ctypes

import numpy as np

import reference_update
from pyedt import _comm, _order, _records


class Entry:
    def __init__(self, **fields):
        self.event, self.state, self.decided_step, self.apply_result = _comm.ENTERED, _comm.KEEP, 0, 0
        self.give, self.rank, self.size, self.snapshot_path, self.text = 0, 0, 1, b"", b""
        self.__dict__.update(fields)


class Shared:
    """What the ranks of one step have in common."""

    def __init__(self):
        self.step = None
        self.parts, self.leaves, self.copy, self.touched = {}, {}, None, None
        self.donor_tensors = []
        self.records = []
        self.result = None


class ReferenceComm:
    def __init__(self, shared=None, rank=0, size=1, ranges=None):
        self.shared, self._rank, self._size = shared or Shared(), rank, size
        self._ranges = ranges  # step, parts -> list of v for this rank
        self._script = None
        self._events = self.kept = self.placed = 0
        self._placed = None
        self.last = None

    def close(self):
        pass

    def ready(self, metric_names, **sizes):
        self.sizes = sizes
        self._work = np.full(sizes["sum_elems"], np.nan, np.float32)
        self._result = np.zeros(sizes["sum_elems"], np.float32)
        self._copy_work = np.zeros(sizes["copy_bytes"], np.uint8)
        self._copy_result = np.zeros(sizes["copy_bytes"], np.uint8)
        self._touched = np.zeros((sizes["param_count"] + 7) // 8, np.uint8)

    def work(self):
        return self._work

    def result(self):
        return self._result

    def result_parts(self):
        """As of two workers."""
        half, address = len(self._result) // 2, self._result.ctypes.data
        return [part for part in ((0, half, address), (half, len(self._result) - half, address + 4 * half)) if part[1]]

    def copy_work(self):
        return self._copy_work

    def copy_result(self):
        return self._copy_result

    def touched(self):
        return self._touched

    def enter(self, timeout_ms=-1):
        """Alone: in, then the final files, then out."""
        self._events += 1
        if self._events == 1:
            return Entry(state=_comm.LOAD)
        return Entry(event=_comm.WRITE_FINAL if self._events == 2 else _comm.RELEASED)

    def done(self, final_step, digest):
        self.digest_done = digest

    def files_written(self, final_step):
        pass

    def set_activity(self, activity):
        pass

    def snapshot(self, step, path):
        self.snapshots = getattr(self, "snapshots", []) + [(step, path)]

    def rank(self):
        return self._rank

    def worker_id(self):
        return 100 + self._rank

    def digest(self, address, length, position):
        import ctypes
        import zlib

        return zlib.crc32(ctypes.string_at(address, length), position & 0xFFFFFFFF)

    def sample_sums(self, job_seed, ids):
        return _order.sample_sum(job_seed, ids)

    def state_give(self, tensor, content, length):
        import ctypes

        data = bytes(content) if not isinstance(content, int) else ctypes.string_at(content, length)
        self.shared.donor_tensors.append((tensor, data))

    def state_end(self):
        self.shared.donor_tensors.append(None)

    def state_size(self):
        head = self.shared.donor_tensors[0]
        if head is None:
            self.shared.donor_tensors.pop(0)
            return None
        return head[0], len(head[1])

    def state_take(self, tensor, address, length):
        import ctypes

        number, data = self.shared.donor_tensors.pop(0)
        assert number == tensor and len(data) == length
        where = address if isinstance(address, int) else ctypes.addressof(address)
        ctypes.memmove(where, data, length)

    # ---- steps ----

    def part(self, v, samples, offset, elems, address):
        if self._placed is not None:
            assert not elems or address == self._placed.ctypes.data + 4 * offset
            if elems:
                self._work[offset:offset + elems] = self._placed[offset:offset + elems]
            else:
                self._placed = None
            return
        if address is None or not elems:
            self._work[offset:offset + elems] = 0
            return
        grad = np.frombuffer(ctypes.string_at(address, 4 * elems), dtype=np.float32)
        self._work[offset:offset + elems] = grad + np.float32(0)

    def update(self, turn, parts, count):
        pass

    def updated(self):
        return None  # each rank makes its own

    def update_run(self, parts, count):
        reference_update.run(self._result, parts, count)

    def place(self, v, samples):
        """What is put there is weighted already."""
        self._placed = np.full_like(self._work, np.nan)
        self.placed += 1
        return self._placed.ctypes.data

    def size(self):
        return self._size

    def keep(self):
        """Gradients and buffers of this step stay with their rank: nothing of them is to be found here."""
        assert self._size == 1 and not self.shared.leaves
        self.kept += 1
        self._kept = True

    def fuse(self, v, count, samples):
        self._fused = (v, count, samples)

    def assign(self, step):
        shared = self.shared
        self._fused, self._kept, self._placed = (0, 0, 0), False, None
        if shared.step is None or shared.step.number != step.number:
            shared.step, shared.parts, shared.leaves, shared.copy, shared.result = step, {}, {}, None, None
            shared.touched = np.zeros_like(self._touched)
        if self._ranges is not None:
            return self._ranges(step)
        share, more = divmod(step.parts, self._size)
        begin = self._rank * share + min(self._rank, more)
        return list(range(begin, begin + share + (self._rank < more)))

    def publish(self, v, samples, id_low, id_high, values, touched=None):
        shared = self.shared
        assert v not in shared.parts
        shared.parts[v] = (samples, id_low, id_high, self.worker_id(), tuple(values))
        if shared.step.kind == 0 and self._kept:
            shared.touched |= 0xFF if touched is None else touched
        elif shared.step.kind == 0:
            first, count, total = self._fused
            if first < v < first + count:
                shared.touched |= 0xFF if touched is None else touched
                shared.leaves[v] = np.zeros_like(self._work)  # its gradient is in the first one's
                return
            weight = 1 if self._placed is not None else total if v == first and count > 1 else samples
            shared.leaves[v] = np.float32(0) + self._work * np.float32(weight)
            self._placed = None
            shared.touched |= 0xFF if touched is None else touched
            if v == 0:
                shared.copy = self._copy_work.copy()
        self._work[:] = np.nan

    def reduce(self):
        shared, step = self.shared, self.shared.step
        assert len(shared.parts) == step.parts, "every rank publishes before the first reduces"
        if shared.result is None:
            parts = [shared.parts[v] for v in range(step.parts)]
            shared.record = _records.encode(_records.Record(step.number, step.kind, self.sizes["call"], step.epoch,
                                                            step.index, 1, 0, 0, parts))
            shared.records.append(shared.record)
            shared.result = np.zeros(0)
            if step.kind == 0 and not self._kept:
                total = np.float32(sum(part[0] for part in parts))
                shared.result = _records.tree_sum([shared.leaves[v] for v in range(step.parts)]) / total
        if step.kind == 0:
            self._result[:] = np.nan if self._kept else shared.result
            self._copy_result[:] = 255 if self._kept else shared.copy
            self._touched[:] = shared.touched

    def complete(self):
        pass

    def apply_allowed(self):
        self._record = self.shared.record

    def record(self):
        return self._record
