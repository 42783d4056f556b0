#!/usr/bin/env python3
"""Figures of the card itself and of what libshoal does with it, without torch: CUDA's driver through ctypes, and this build's programs.
Python's own library alone, so that it runs where the tree was only copied to.

    tests/gpu/card.py [--bin build/release/tests] [--nccl FILE] [--mib 512] [--cycles 100] [--seconds 120] [--out FOLDER] [PART...]

    copies    between the card and memory that processes share: registered as the arena is, against the best plain copy (dp.B1)
    shared    memory of one process that another reads, whose owner ends, or is killed while it is read (decision 0072)
    life      100 lives of a communicator of one rank: made, run, revoked, refused, ended (dp.B6)
    victim    SIGKILL of a worker that holds much memory of the card and of the host, to the survivors' next step (dp.B5)

One line a part, with the card's name in the first; the exit status is the number of parts that failed. Figures are told, not judged."""

import argparse
import ctypes
import mmap
import os
import pathlib
import re
import subprocess
import sys
import time
import traceback
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p

LAZY_PEERS = 1


class Handle(ctypes.Structure):
    _fields_ = [("bytes", c_char * 64)]

    def text(self):
        return bytes(ctypes.string_at(byref(self), 64)).hex()

    @classmethod
    def of(cls, text):
        return cls.from_buffer_copy(bytes.fromhex(text))


class CudaError(RuntimeError):
    pass


class Cuda:
    """The driver's calls by name; each that fails says so."""

    def __init__(self):
        self._library = ctypes.CDLL(os.environ.get("SHOAL_CUDA") or "libcuda.so.1")
        self._library.cuIpcOpenMemHandle_v2.argtypes = [c_void_p, Handle, ctypes.c_uint]
        self.cuInit(0)
        device, context = c_int(), c_void_p()
        self.cuDeviceGet(byref(device), 0)
        name = ctypes.create_string_buffer(100)
        self.cuDeviceGetName(name, 100, device)
        self.name = name.value.decode()
        self.cuDevicePrimaryCtxRetain(byref(context), device)
        self.cuCtxSetCurrent(context)

    def ask(self, call, *arguments):
        return getattr(self._library, call)(*arguments)

    def __getattr__(self, call):
        def run(*arguments):
            code = self.ask(call, *arguments)
            if code:
                name = ctypes.c_char_p()
                self.ask("cuGetErrorName", code, byref(name))
                raise CudaError("%s: %s (%d)" % (call, (name.value or b"an unknown error").decode(), code))
        return run

    def memory(self, size):
        address = c_uint64()
        self.cuMemAlloc_v2(byref(address), c_size_t(size))
        return address

    def stream(self):
        stream = c_void_p()
        self.cuStreamCreate(byref(stream), 1)
        return stream

    def free(self):
        free, total = c_size_t(), c_size_t()
        self.cuMemGetInfo_v2(byref(free), byref(total))
        return free.value


def gigabytes(size, seconds):
    return size / seconds / 1e9


# ---- copies ----


class Shared:
    """Memory as the arena's: a file without a name, which several processes map."""

    def __init__(self, size):
        self._fd = os.memfd_create("card")
        os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)
        self._held = c_char.from_buffer(self._map)
        self.address = c_void_p(ctypes.addressof(self._held))
        ctypes.memset(self.address, 1, size)


def timed(cuda, streams, work, rounds):
    """Seconds of a round, the best of them: what others do on the bus only makes one longer."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        for stream in streams:
            cuda.cuStreamSynchronize(stream)
        times.append(time.perf_counter() - began)
    return min(times)


def copies(cuda, words):
    size, chunk = words.mib << 20, min(words.mib << 20, 8 << 20)
    up, down = cuda.stream(), cuda.stream()
    device, other = cuda.memory(size), cuda.memory(size)
    pageable, arena = Shared(size), Shared(size)
    kinds = {"pageable": pageable.address, "plain pinned": c_void_p(), "registered": arena.address}
    cuda.cuMemAllocHost_v2(byref(kinds["plain pinned"]), c_size_t(size))
    began = time.perf_counter()
    cuda.cuMemHostRegister_v2(kinds["registered"], c_size_t(size), 0)
    registering = time.perf_counter() - began
    ctypes.memset(kinds["plain pinned"], 1, size)
    rows = {}

    def out(memory, at, length, stream):
        cuda.cuMemcpyDtoHAsync_v2(c_void_p(memory.value + at), c_uint64(device.value + at), c_size_t(length), stream)

    def into(memory, at, length, stream):
        cuda.cuMemcpyHtoDAsync_v2(c_uint64(other.value + at), c_void_p(memory.value + at), c_size_t(length), stream)

    def both(memory, length):
        half = size // 2
        for at in range(0, half, length):
            out(memory, at, length, down)
            into(memory, half + at, length, up)

    for name, memory in kinds.items():
        rounds = 2 if name == "pageable" else 5
        rows[name] = [gigabytes(size, timed(cuda, (up, down), lambda: work(memory), rounds)) for work in (
            lambda memory: out(memory, 0, size, down), lambda memory: into(memory, 0, size, up),
            lambda memory: [out(memory, at, chunk, down) for at in range(0, size, chunk)],
            lambda memory: both(memory, min(chunk, size // 2)))]
    for name, (there, back, chunks, two) in rows.items():
        print("    %-13s out %5.1f GB/s, in %5.1f, out in pieces of %d MiB %5.1f, both at once %5.1f" % (
            name, there, back, chunk >> 20, chunks, two))
    began = time.perf_counter()
    cuda.cuMemHostUnregister(kinds["registered"])
    mine, best = rows["registered"], rows["plain pinned"]
    return "registered against plain: out %.0f %%, in %.0f %%, both %.0f %% (of out and in added up: %.0f %%); registering %.0f ms/GB, letting go %.0f" % (
        *(100 * mine[i] / best[i] for i in (0, 1, 3)), 100 * mine[3] / (best[0] + best[1]), 1e12 * registering / size,
        1e12 * (time.perf_counter() - began) / size)


# ---- shared ----


def exporter(cuda, size):
    """A process of its own: memory full of one number, its handle told; ends with its stdin."""
    memory = cuda.memory(size)
    host = ctypes.create_string_buffer(b"\x5a" * size, size)
    stream = cuda.stream()
    cuda.cuMemcpyHtoDAsync_v2(memory, host, c_size_t(size), stream)
    cuda.cuStreamSynchronize(stream)
    handle = Handle()
    cuda.cuIpcGetMemHandle(byref(handle), memory)
    print(handle.text(), flush=True)
    sys.stdin.read()
    cuda.cuMemFree_v2(memory)


class Reader:
    def __init__(self, cuda, size):
        self.cuda, self.size = cuda, size
        self.stream, self.own = cuda.stream(), cuda.memory(size)
        self.host = ctypes.create_string_buffer(size)
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "exporter", str(size)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.address = c_uint64()
        began = time.perf_counter()
        self.handle = Handle.of(self.process.stdout.readline().strip())
        self.waited = time.perf_counter() - began
        began = time.perf_counter()
        cuda.cuIpcOpenMemHandle_v2(byref(self.address), self.handle, LAZY_PEERS)
        self.opening = time.perf_counter() - began

    def copy(self, times):
        for _ in range(times):
            self.cuda.cuMemcpyDtoDAsync_v2(self.own, self.address, c_size_t(self.size), self.stream)

    def wait(self):
        self.cuda.cuStreamSynchronize(self.stream)

    def right(self):
        """Read once more, and looked at."""
        self.copy(1)
        self.cuda.cuMemcpyDtoHAsync_v2(self.host, self.own, c_size_t(self.size), self.stream)
        self.wait()
        return self.host.raw.count(b"\x5a") == self.size

    def end(self):
        self.process.kill()
        self.process.wait()
        self.cuda.cuIpcCloseMemHandle(self.address)
        self.cuda.cuMemFree_v2(self.own)


def shared(cuda, words):
    size, before, seen = min(words.mib, 256) << 20, cuda.free(), []
    reader = Reader(cuda, size)
    seen.append("opened in %.1f ms" % (1e3 * reader.opening))
    if not reader.right():
        raise CudaError("what another process exported reads wrong")
    began = time.perf_counter()
    reader.copy(20)
    reader.wait()
    took = (time.perf_counter() - began) / 20
    seen.append("read and written at %.0f GB/s" % gigabytes(2 * size, took))
    often = max(1, min(4000, int(0.3 / took)))
    # killed while it is read
    reader.copy(often)
    reader.process.kill()
    began = time.perf_counter()
    reader.wait()
    reader.process.wait()
    seen.append("owner killed while it was read: reading went on %.0f ms" % (1e3 * (time.perf_counter() - began)))
    seen.append("after it %s" % ("right" if reader.right() else "WRONG"))
    # its memory is not given to others while we hold it
    hold = [cuda.memory(size) for _ in range(4)]
    for memory in hold:
        cuda.cuMemsetD8Async(memory, 0x33, c_size_t(size), reader.stream)
    seen.append("after others took memory %s" % ("right" if reader.right() else "WRONG"))
    code = cuda.ask("cuIpcOpenMemHandle_v2", byref(c_uint64()), reader.handle, LAZY_PEERS)
    seen.append("opening a dead owner's: %d" % code)
    for memory in hold:
        cuda.cuMemFree_v2(memory)
    reader.end()
    # let go of by its living owner
    reader = Reader(cuda, size)
    reader.copy(often)
    reader.process.stdin.close()
    reader.process.wait()
    seen.append("owner freed it and ended: %s" % ("right" if reader.right() else "WRONG"))
    reader.end()
    seen.append("%.1f MiB of the card not given back" % ((before - cuda.free()) / (1 << 20)))
    if "WRONG" in " ".join(seen):
        raise CudaError("; ".join(seen))
    return "; ".join(seen)


# ---- with this build's programs ----


def life(cuda, words):
    environment = {**os.environ, **({"SHOAL_NCCL": words.nccl} if words.nccl else {})}
    done = subprocess.run([words.bin / "bench/gpu_life", str(words.cycles)], capture_output=True, text=True, env=environment,
                          timeout=max(5, words.end - time.monotonic()))
    line = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode != 0:
        raise RuntimeError("exit status %d: %s %s" % (done.returncode, line, done.stderr[-600:]))
    return line


def victim(cuda, words):
    """Three workers; each holds as much, so that whichever is struck does."""
    device = min(40960, (cuda.free() >> 20) // 3 - 3072)
    device = max(device, 16)
    host = 8192 if device > 4096 else 16
    rows = []
    for device_mib, host_mib in ((0, 0), (device, host)):
        options = "elems=262144 v=6 samples=600 minibatch=2 epochs=1 compute_us=500 ballast=%d device_ballast=%d" % (host_mib, device_mib)
        done = subprocess.run([words.bin / "system/comm_harness", words.bin / "system/cworker", "scenario=time_kill_ballast", "rounds=%d" % words.rounds,
                               "options=" + options], capture_output=True, text=True, timeout=max(5, words.end - time.monotonic()),
                              env={**os.environ, "CWORKER_DEVICE": "1", "SHOAL_NCCL": "/nowhere/libnccl.so.2"})
        figures = re.findall(r"  (.*: [\d.]+ ms)", done.stdout + done.stderr)
        print("    %d MiB of the card, %d MiB of the host: %s" % (device_mib, host_mib, "; ".join(figures) or (done.stdout + done.stderr)[-800:]))
        if done.returncode != 0 or not figures:
            raise RuntimeError((done.stdout + done.stderr)[-800:])
        rows.append(figures[0].rsplit(": ")[-1])
    return "SIGKILL to the last survivor's next step, each of 3 with %d MiB of the card and %d of the host: %s; without: %s" % (device, host, rows[1], rows[0])


PARTS = {"copies": copies, "shared": shared, "life": life, "victim": victim}


def main():
    if sys.argv[1:2] == ["exporter"]:
        exporter(Cuda(), int(sys.argv[2]))
        return
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--bin", default="build/release/tests", type=lambda text: pathlib.Path(text).resolve())
    words.add_argument("--nccl", default="")
    words.add_argument("--mib", default=512, type=int)
    words.add_argument("--cycles", default=100, type=int)
    words.add_argument("--rounds", default=1, type=int)
    words.add_argument("--seconds", default=120, type=float)
    words.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []])
    words = words.parse_args()
    words.end = time.monotonic() + words.seconds
    try:
        cuda = Cuda()
    except (OSError, CudaError) as error:
        print("no card here: %s" % error)
        sys.exit(2)
    print("card: %s, %.1f GiB free" % (cuda.name, cuda.free() / (1 << 30)), flush=True)
    table, failed = [], 0
    for name in words.parts or PARTS:
        began = time.monotonic()
        try:
            if words.end - began < 3:
                raise RuntimeError("not run: the time is over")
            text, ok = PARTS[name](cuda, words), True
        except Exception as error:  # one part's failure is not the next one's
            traceback.print_exc(file=sys.stdout)
            text, ok = "%s: %s" % (type(error).__name__, error), False
        failed += not ok
        table.append("%-8s %-6s %5.1f s  %s" % (name, "ok" if ok else "FAILED", time.monotonic() - began, " ".join(text.split())))
        print(table[-1], flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
