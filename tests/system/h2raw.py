"""Frames of HTTP/2 by hand, for what no client sends."""

import socket
import struct

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CALM, PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 11, 1, 7, 8


def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class Client:
    """One connection. `encrypt`: what makes TLS of a socket, with ALPN "h2"."""

    def __init__(self, address, encrypt=None, settings=b"", source=None):
        raw = socket.create_connection(address, timeout=20, source_address=source)
        self.sock = encrypt(raw) if encrypt else raw
        self._encoder, self._decoder, self._got = hpack.Encoder(), hpack.Decoder(), b""
        self.sock.sendall(PREFACE + frame(SETTINGS, payload=settings))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, *args, **named):
        self.sock.sendall(frame(*args, **named))

    def head(self, path="/healthz", method="GET", headers=(), authority="a", scheme="https"):
        lines = [(":method", method), (":scheme", scheme), (":path", path)] + ([(":authority", authority)] if authority else [])
        return self._encoder.encode(lines + list(headers))

    def ask(self, stream, path="/healthz", method="GET", headers=(), body=None, **named):
        self.send(HEADERS, END_HEADERS | (END_STREAM if body is None else 0), stream, self.head(path, method, headers, **named))
        if body is not None:
            self.send(DATA, END_STREAM, stream, body)

    def _take(self, count):
        while len(self._got) < count:
            more = self.sock.recv(1 << 16)
            if not more:
                raise EOFError
            self._got += more
        taken, self._got = self._got[:count], self._got[count:]
        return taken

    def read(self):
        """(kind, flags, stream, payload) of the next frame; EOFError: the server has closed."""
        head = self._take(9)
        length = int.from_bytes(head[:3], "big")
        return head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, self._take(length)

    def answer(self, stream):
        """(headers, body, trailers) of a stream's answer, or the code of its reset. Gives the windows back."""
        headers, body, trailers = None, b"", {}
        while True:
            kind, flags, its, payload = self.read()
            if kind == HEADERS:
                lines = dict(self._decoder.decode(payload))
                if its == stream and headers is None and lines.get(":status") != "100":
                    headers = lines
                elif its == stream:
                    trailers = lines
            elif kind == DATA:
                if its == stream:
                    body += payload
                if payload:
                    for one in (0, its):
                        self.send(WINDOW_UPDATE, 0, one, struct.pack(">I", len(payload)))
            elif kind == RST_STREAM and its == stream:
                return int.from_bytes(payload, "big")
            elif kind == GOAWAY:
                raise EOFError("goaway %d" % int.from_bytes(payload[4:8], "big"))
            if its == stream and kind in (HEADERS, DATA) and flags & END_STREAM:
                return headers, body, trailers

    def status(self, stream):
        got = self.answer(stream)
        return int(got[0][":status"]) if isinstance(got, tuple) else -got

    def end(self):
        """The code of the GOAWAY that ends the connection; None: it ended without."""
        code = None
        try:
            while True:
                kind, _, _, payload = self.read()
                if kind == GOAWAY:
                    code = int.from_bytes(payload[4:8], "big")
        except (EOFError, OSError):
            return code
