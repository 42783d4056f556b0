"""Requests to a no-op kernel over its link: kernel_link.py [--count 20000]. Prints a Markdown table; nothing passes or fails.

A core is what the kernel's process took of the processor, its start left out: the machine may be busy with other things."""

import argparse
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "collective" / "python"))
from pyedt import _kernel_link  # noqa: E402

KERNEL = """
from redhareapi import Kernel

class Echo(Kernel):
    def on_task_invoke(self, task):
        while task is not None:
            task.set_output_data(task.get_input_data())
            task = task.next()

Echo().run()
"""


def frame(*fields):
    data = _kernel_link.pack(list(fields))
    return struct.pack("<I", len(data)) + data


def processor_seconds(pid):
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def child_of(pid):
    return int(pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()[0])


class Link:
    def __init__(self, path):
        self.stream, self.frames = socket.socket(socket.AF_UNIX), _kernel_link.Frames()
        self.stream.connect(path)

    def hear(self):
        said = self.frames.next()
        while said is None:
            self.frames.feed(self.stream.recv(1 << 20))
            said = self.frames.next()
        return said


def measure(folder, depth, count, body_bytes):
    """(requests per second of the kernel's processor time, median round trip in microseconds)."""
    path = os.path.join(folder, "kernel.sock")
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "collective" / "python"), SHOAL_KERNEL_SOCKET=path,
                       SHOAL_SERVICE_PROFILE=json.dumps({"batch": depth}))
    host = subprocess.Popen([sys.executable, "-m", "pyedt.kernel_host"], cwd=folder, env=environment)
    while not os.path.exists(path):
        time.sleep(0.01)
    link = Link(path)
    assert link.hear()[0] == "ready"
    kernel = child_of(host.pid)
    requests = [frame("infer", n, {"path": "/v2/models/echo/infer", "method": "POST", "content_type": "application/json",
                                   "deadline_ms": 60000, "model": "echo", "version": "1", "user": "ann"},
                      b'"%s"' % (b"x" * (body_bytes - 2))) for n in range(count)]
    before, waits, begun = processor_seconds(kernel), [], {}
    sent = 0
    for received in range(count):
        while sent < count and sent - received < depth:
            begun[sent] = time.perf_counter()
            link.stream.sendall(requests[sent])
            sent += 1
        said = link.hear()
        waits.append(time.perf_counter() - begun.pop(said[1]))
    spent = processor_seconds(kernel) - before
    link.stream.sendall(frame("stop"))
    host.wait()
    return count / spent, sorted(waits)[count // 2] * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20000)
    options = parser.parse_args()
    print("| no-op kernel, requests under way | body | requests/s a core | round trip p50 |\n|---|---|---|---|")
    for depth, body_bytes in ((1, 1024), (16, 1024), (64, 1024), (1, 65536)):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "kernel.py").write_text(KERNEL)
            pathlib.Path(folder, "model.json").write_text('{"name": "echo", "kernel_path": "kernel.py"}')
            rate, wait = measure(folder, depth, options.count, body_bytes)
        print("| %d | %d bytes | %.0f | %.0f us |" % (depth, body_bytes, rate, wait))


if __name__ == "__main__":
    main()
