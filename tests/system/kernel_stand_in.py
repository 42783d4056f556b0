"""A kernel of a few lines, for tests of the agent's side: it answers what it is asked, in the frames of
node/serve/kernel_wire.h. The body says what it does: "sleep 2", "die", "where", "which", "fail", "nonsense", "forge",
"big N"; anything else comes back."""

import os
import socket
import struct
import sys
import threading

import msgpack

VERSION = open("which", "rb").read() if os.path.exists("which") else b""
BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 4


class Kernel:
    def __init__(self, connection):
        self.connection, self.lock = connection, threading.Lock()

    def send(self, *message):
        frame = msgpack.packb(list(message), use_bin_type=True)
        with self.lock:
            self.connection.sendall(struct.pack("<I", len(frame)) + frame)

    def answer(self, number, head, body):
        word, _, rest = body.decode("latin-1").partition(" ")
        if word == "sleep":
            threading.Event().wait(float(rest))  # it computes
        elif word == "die":
            os._exit(3)
        elif word == "where":
            body = os.environ["MSD_POD_NAME"].encode()
        elif word == "which":
            body = VERSION
        elif word == "fail":
            self.send("done", number, 500, {}, b"it fails")
            return
        elif word == "nonsense":
            self.send("done", number + 1000, 200, {}, b"")
            return
        elif word == "forge":  # the bytes after an answer that has no body are the next answer's
            self.send("done", number, 204, {}, b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
            return
        elif word == "big":
            body = b"x" * int(rest)
        elif word == "head":
            body = repr(sorted(head.items())).encode()
        self.send("done", number, 200, {"content_type": head.get("content_type", "")}, body)

    def serve(self):
        self.send("ready", {"name": os.environ["SHOAL_SERVICE"], "version": "1", "inputs": [], "outputs": [], "batch": BATCH,
                            "platform": "stand-in"})
        stream = self.connection.makefile("rb")
        while len(length := stream.read(4)) == 4:
            kind, *rest = msgpack.unpackb(stream.read(struct.unpack("<I", length)[0]), raw=False)
            if kind == "infer":
                threading.Thread(target=self.answer, args=rest, daemon=True).start()


def main():
    path = os.environ["SHOAL_KERNEL_SOCKET"]
    if os.path.exists(path):
        os.unlink(path)
    if os.path.exists("broken"):
        sys.exit("the model is broken")
    print("kernel", os.environ["SHOAL_ARRAY_TASK_ID"], "listens", flush=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    while True:
        Kernel(listener.accept()[0]).serve()


main()
