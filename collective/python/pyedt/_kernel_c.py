"""Kernels in C: a shared library with include/shoal/kernel.h, loaded into the kernel's process (kernel_host). The server, and so
batches, deadlines, pieces and the watcher, are those of kernels in Python; while the library computes, the interpreter is free."""

import ctypes
import json
import os

from redhareapi import Kernel
from pyedt import _kernel_serve
from pyedt._kernel_serve import Unusable

ABI = 1
ERROR_BYTES = 1024


class Host(ctypes.Structure):
    pass


class Task(ctypes.Structure):
    _fields_ = [("host", ctypes.POINTER(Host)), ("body", ctypes.c_void_p), ("body_bytes", ctypes.c_size_t),
                ("header_bytes", ctypes.c_uint32), ("deadline_ms", ctypes.c_uint32), ("id", ctypes.c_char_p),
                ("path", ctypes.c_char_p), ("content_type", ctypes.c_char_p)]


class Start(ctypes.Structure):
    _fields_ = [("host", ctypes.POINTER(Host)), ("name", ctypes.c_char_p), ("description", ctypes.c_char_p),
                ("model_path", ctypes.c_char_p), ("batch_max", ctypes.c_uint32)]


TASK = ctypes.POINTER(Task)
ANSWER = ctypes.CFUNCTYPE(ctypes.c_int, TASK, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
PART = ctypes.CFUNCTYPE(ctypes.c_int, TASK, ctypes.c_void_p, ctypes.c_size_t)
WANTED = ctypes.CFUNCTYPE(ctypes.c_int, TASK)
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)
START = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Start), ctypes.c_void_p, ctypes.c_size_t)
RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, TASK, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Host._fields_ = [("answer", ANSWER), ("part", PART), ("is_wanted", WANTED), ("log", LOG)]


class Exported(ctypes.Structure):
    _fields_ = [("abi", ctypes.c_uint32), ("start", START), ("run", RUN), ("stop", STOP)]


def text(value):
    return str(value or "").replace("\0", " ").encode("utf-8", "replace")


def exported(path):
    """The library's shoal_kernel."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise Unusable("the kernel cannot be loaded: %s" % error) from None
    try:
        kernel = Exported.in_dll(library, "shoal_kernel")
    except ValueError:
        raise Unusable("%s exports no shoal_kernel (include/shoal/kernel.h)" % os.path.basename(path)) from None
    if kernel.abi != ABI:
        raise Unusable("%s was built for version %d of include/shoal/kernel.h; this host has version %d"
                       % (os.path.basename(path), kernel.abi, ABI))
    if not kernel.run:
        raise Unusable("%s: shoal_kernel has no run" % os.path.basename(path))
    return library, kernel


class CKernel:
    def __init__(self, server, path):
        self._server, self._state = server, ctypes.c_void_p()
        self._library, self._kernel = exported(path)
        self._tasks = {}  # address of a Task -> its request, while `run` has it
        self._host = Host(ANSWER(self._answer), PART(self._part), WANTED(self._is_wanted), LOG(self._log))

    # ---- what the host does for the kernel; nothing may be raised into C ----

    def _answer(self, task, status, content_type, body, count):
        request = self._tasks.get(ctypes.addressof(task.contents))
        if request is None:
            return -1
        data = ctypes.string_at(body, count) if count else b""
        kind = content_type.decode("utf-8", "replace") if content_type else _kernel_serve.content_type_of(data)
        if not 200 <= status <= 599:
            return 0 if request.refuse(500, "the kernel answered with status %d, which is none from 200 to 599" % status) else -1
        return 0 if request.answer(status, {"content_type": kind}, data) else -1

    def _part(self, task, body, count):
        request = self._tasks.get(ctypes.addressof(task.contents))
        if request is None or not 0 < count <= _kernel_serve.PART_BYTES_MAX:
            return -1
        return 0 if self._server.send_part(request, ctypes.string_at(body, count)) else -1

    def _is_wanted(self, task):
        request = self._tasks.get(ctypes.addressof(task.contents))
        return int(request is not None and not (request.cancelled or request.connection.lost))

    @staticmethod
    def _log(level, said):
        Kernel.log(min(max(level, -1), 2), (said or b"").decode("utf-8", "replace"))

    # ---- what the server calls ----

    def start(self):
        if not self._kernel.start:
            return
        server = self._server
        self._said = (text(server.name), text(json.dumps(server.description)), text(server.description["model_path"]))
        start = Start(ctypes.pointer(self._host), *self._said, server.batch)
        error = ctypes.create_string_buffer(ERROR_BYTES)
        status = self._kernel.start(ctypes.byref(self._state), ctypes.byref(start), ctypes.addressof(error), ERROR_BYTES)
        if status != 0:
            raise Unusable(self._why(error, "start", status))

    @staticmethod
    def _why(error, what, status):
        said = error.raw.split(b"\0")[0].decode("utf-8", "replace")
        return " ".join(said.split()) or "%s of the kernel's library returned %d" % (what, status)

    def invoke(self, batch):
        tasks, error = (Task * len(batch))(), ctypes.create_string_buffer(ERROR_BYTES)
        for task, request in zip(tasks, batch):
            request.reached = True
            header, left = request.meta.get("header_len"), request.left_ms()
            task.host, task.body_bytes = ctypes.pointer(self._host), len(request.body)
            task.body = ctypes.cast(ctypes.c_char_p(request.body), ctypes.c_void_p)  # the request's own, which stays
            task.header_bytes = header if type(header) is int and 0 <= header <= len(request.body) else 0
            task.deadline_ms = min(left, 0xffffffff)
            task.id = text("%s-%d" % (self._server.name, request.serial))
            task.path, task.content_type = text(request.meta.get("path")), text(request.meta.get("content_type"))
            self._tasks[ctypes.addressof(task)] = request
        try:
            status = self._kernel.run(self._state, tasks, len(batch), ctypes.addressof(error), ERROR_BYTES)
        finally:
            self._tasks.clear()
        if status != 0 or error.raw[0]:
            why = self._why(error, "run", status)
            self._log(2, why.encode())
            for request in batch:
                request.refuse(500, why)

    def stop(self):
        if self._kernel.stop:
            self._kernel.stop(self._state)


def serve(server, path):
    made = []

    def load():
        made.append(CKernel(server, path))
        made[0].start()

    server.start(load)
    server.run(server.ready_as("shoal_c"), made[0].invoke)
    made[0].stop()
