"""The link between an agent and a kernel: frames on a stream socket, and MessagePack without a library.

    frame    u32 length of the rest, little-endian; then one MessagePack array [kind, ...]
    agent    ["infer", id, {path, method, content_type, deadline_ms, ...}, body]  ["more", id, bytes]  ["cancel", id]  ["stop"]
    kernel   ["ready", {...}]  ["done", id, status, {content_type, ...}, body]  ["part", id, body]  ["failed", text]

L1. Each "infer" is answered by exactly one "done", a cancelled one too.
L3. Where an "infer" has a "window", parts may come before: so many bytes, and the part that goes beyond, until "more" adds some.
L2. Only the process that accepted a connection writes to it: a child that a kernel forked does not.
The encoding has what frames need: None, bool, int, float, str, bytes, list, dict. It runs wherever a user's Python does."""

import os
import select
import socket
import struct
import threading

BODY_BYTES_MAX = 64 << 20
FRAME_BYTES_MAX = BODY_BYTES_MAX + (64 << 10)
DEPTH_MAX = 16
READ_BYTES = 256 << 10
COPIED_BYTES = 64 << 10  # a shorter frame is copied whole before it is read, which is faster


class Malformed(ValueError):
    """These bytes are no frame."""


def _head(value, fix, fix_max, kinds):
    """The head of a text, a list or a map: `kinds` are (largest length, code, format)."""
    if value <= fix_max:
        return bytes((fix | value,))
    for largest, code, form in kinds:
        if value <= largest:
            return bytes((code,)) + struct.pack(form, value)
    raise ValueError("%d is too long for a frame" % value)


_TEXT = ((0xff, 0xd9, ">B"), (0xffff, 0xda, ">H"), (0xffffffff, 0xdb, ">I"))
_BYTES = ((0xff, 0xc4, ">B"), (0xffff, 0xc5, ">H"), (0xffffffff, 0xc6, ">I"))
_LIST = ((0xffff, 0xdc, ">H"), (0xffffffff, 0xdd, ">I"))
_MAP = ((0xffff, 0xde, ">H"), (0xffffffff, 0xdf, ">I"))
_UNSIGNED = ((0xff, 0xcc, ">B"), (0xffff, 0xcd, ">H"), (0xffffffff, 0xce, ">I"), (0xffffffffffffffff, 0xcf, ">Q"))


def pack_bytes_head(count):
    return _head(count, 0, -1, _BYTES)


def pack_int(value):
    if value >= 0:
        return _head(value, 0, 0x7f, _UNSIGNED)
    if value >= -32:
        return struct.pack(">b", value)
    return b"\xd3" + struct.pack(">q", value)


def pack(value):
    """The value as MessagePack."""
    if value is None:
        return b"\xc0"
    if value is True or value is False:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return pack_int(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        text = value.encode("utf-8", "replace")
        return _head(len(text), 0xa0, 31, _TEXT) + text
    if isinstance(value, (bytes, bytearray, memoryview)):
        return pack_bytes_head(len(value)) + bytes(value)
    if isinstance(value, (list, tuple)):
        return _head(len(value), 0x90, 15, _LIST) + b"".join([pack(one) for one in value])
    if isinstance(value, dict):
        return _head(len(value), 0x80, 15, _MAP) + b"".join([pack(key) + pack(one) for key, one in value.items()])
    raise TypeError("a frame cannot hold a %s" % type(value).__name__)


# After its first byte, a number: (format, bytes).
_NUMBERS = {0xca: (">f", 4), 0xcb: (">d", 8), 0xcc: (">B", 1), 0xcd: (">H", 2), 0xce: (">I", 4), 0xcf: (">Q", 8),
            0xd0: (">b", 1), 0xd1: (">h", 2), 0xd2: (">i", 4), 0xd3: (">q", 8)}
# ... a length: (format, bytes, what follows).
_LENGTHS = {0xc4: (">B", 1, "b"), 0xc5: (">H", 2, "b"), 0xc6: (">I", 4, "b"), 0xd9: (">B", 1, "s"), 0xda: (">H", 2, "s"),
            0xdb: (">I", 4, "s"), 0xdc: (">H", 2, "l"), 0xdd: (">I", 4, "l"), 0xde: (">H", 2, "m"), 0xdf: (">I", 4, "m")}
_PLAIN = {0xc0: None, 0xc2: False, 0xc3: True}


def _read(data, at, depth):
    """(value, where the next one begins)."""
    code = data[at]
    at += 1
    if code < 0x80:
        return code, at
    if code >= 0xe0:
        return code - 0x100, at
    if 0xa0 <= code < 0xc0:
        return _read_span(data, at, code & 31, "s")
    if code < 0xa0:
        return _read_items(data, at, code & 15, "m" if code < 0x90 else "l", depth)
    if code in _PLAIN:
        return _PLAIN[code], at
    if code in _NUMBERS:
        form, size = _NUMBERS[code]
        return struct.unpack_from(form, data, at)[0], at + size
    if code not in _LENGTHS:
        raise Malformed("a value of kind 0x%02x" % code)
    form, size, what = _LENGTHS[code]
    count = struct.unpack_from(form, data, at)[0]
    return (_read_span if what in "bs" else _read_items)(data, at + size, count, what, *(() if what in "bs" else (depth,)))


def _read_span(data, at, count, what):
    end = at + count
    if end > len(data):
        raise Malformed("a value beyond the end")
    span = bytes(data[at:end])
    return (span if what == "b" else span.decode("utf-8", "replace")), end


def _read_items(data, at, count, what, depth):
    if depth >= DEPTH_MAX:
        raise Malformed("nested too deeply")
    if count > len(data) - at:
        raise Malformed("more items than bytes")
    if what == "l":
        items = []
        for _ in range(count):
            value, at = _read(data, at, depth + 1)
            items.append(value)
        return items, at
    pairs = {}
    for _ in range(count):
        key, at = _read(data, at, depth + 1)
        if not isinstance(key, (str, int, bytes)):
            raise Malformed("a key that is no text")
        pairs[key], at = _read(data, at, depth + 1)
    return pairs, at


def unpack(data):
    """The one value in `data`; Malformed where it is none."""
    try:
        value, at = _read(data, 0, 0)
    except (IndexError, struct.error):
        raise Malformed("cut short") from None
    if at != len(data):
        raise Malformed("%d bytes after the end" % (len(data) - at))
    return value


INFER = b"\x94\xa5infer"
FIELDS_BYTES_MAX = 4096  # as many as an agent sends


class Frames:
    """Bytes in, whole frames out."""

    def __init__(self):
        self._held, self._at = bytearray(), 0
        self._fields_bytes, self._fields = None, None

    def feed(self, data):
        self._held += data

    def missing(self):
        """How many bytes the frame that has begun still wants, at least."""
        have = len(self._held) - self._at
        if have < 4:
            return 4 - have
        return max(1, struct.unpack_from("<I", self._held, self._at)[0] + 4 - have)

    def next(self):
        """The next frame as an array, or None where it is not there yet."""
        have = len(self._held) - self._at
        if have < 4:
            return self._forget()
        length = struct.unpack_from("<I", self._held, self._at)[0]
        if length > FRAME_BYTES_MAX:
            raise Malformed("a frame of %d bytes; at most %d are taken" % (length, FRAME_BYTES_MAX))
        if have < 4 + length:
            return self._forget()
        begin = self._at + 4
        self._at = begin + length
        span = memoryview(self._held)[begin:self._at]
        data = bytes(span) if length < COPIED_BYTES else span
        frame = self._infer(data) if data[:len(INFER)] == INFER else unpack(data)
        if not isinstance(frame, list) or not frame or not isinstance(frame[0], str):
            raise Malformed("a frame that is no array with a kind")
        return frame

    def _infer(self, data):
        """A request. Its fields are most often those of the one before, byte for byte, and to read them is what costs most."""
        try:
            number, at = _read(data, len(INFER), 1)
            end = at + len(self._fields_bytes or b"")
            if self._fields_bytes is None or data[at:end] != self._fields_bytes:
                fields, end = _read(data, at, 1)
                self._fields_bytes = None
                if type(fields) is not dict or end - at > FIELDS_BYTES_MAX or any(type(one) in (list, dict) for one in fields.values()):
                    return unpack(data)
                self._fields_bytes, self._fields = bytes(data[at:end]), fields
            body, end = _read(data, end, 1)
        except (IndexError, struct.error):
            raise Malformed("cut short") from None
        if end != len(data):
            raise Malformed("%d bytes after the end" % (len(data) - end))
        return ["infer", number, dict(self._fields), body]

    def _forget(self):
        """Drops what was read, when nothing is left or much has gathered."""
        if self._at == len(self._held) or self._at > READ_BYTES:
            del self._held[:self._at]
            self._at = 0
        return None


_HEADERS_MAX = 64
_headers = {}  # those of answers as MessagePack: most answers have the same


def pack_headers(headers):
    key = tuple(headers.items())
    if any(type(value) not in (str, int) for value in headers.values()):
        return pack(headers)
    found = _headers.get(key)
    if found is None:
        if len(_headers) >= _HEADERS_MAX:
            _headers.clear()
        found = _headers[key] = pack(headers)
    return found


def readable(stream, wait_s, woken=None):
    """Whether there is something to take within so long; `woken`: a descriptor that ends the waiting, too."""
    poll = select.poll()  # of any descriptor: a kernel may have thousands of files open
    for one in (stream, woken):
        if one is not None:
            poll.register(one, select.POLLIN)
    return any(descriptor != woken for descriptor, _ in poll.poll(wait_s * 1000))


class Connection:
    """One agent's connection. Any thread may send; one reads."""

    def __init__(self, stream):
        self._stream, self._frames, self._lock, self._pid = stream, Frames(), threading.Lock(), os.getpid()
        self.lost = False

    def fileno(self):
        return self._stream.fileno()

    def close(self):
        self.lost = True
        self._stream.close()

    def send(self, head, body=b""):
        """`head`: all of the frame but the bytes of its body. False: the agent is not there any more."""
        if self.lost or os.getpid() != self._pid:  # L2
            return False
        head = struct.pack("<I", len(head) + len(body)) + head
        try:
            with self._lock:
                if len(body) < COPIED_BYTES:
                    self._stream.sendall(head + body)
                else:
                    self._stream.sendall(head)
                    self._stream.sendall(body)
        except OSError:
            self.lost = True
            return False
        return True

    def send_frame(self, *fields):
        return self.send(pack(list(fields)))

    def send_done(self, number, status, headers, body):
        return self.send(b"\x95\xa4done" + pack_int(number) + pack_int(status) + pack_headers(headers) + pack_bytes_head(len(body)),
                         body)

    def receive(self):
        """Takes what is there. False: the agent has closed."""
        if self.lost:
            return False
        size = max(READ_BYTES, min(self._frames.missing(), 4 << 20))
        try:
            data = self._stream.recv(size, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            data = b""
        if not data:
            self.lost = True
            return False
        self._frames.feed(data)
        return True

    def next(self):
        return self._frames.next()


def listen(path):
    """A listening socket, which appears at `path` only when it listens. The path may be longer than an address is."""
    folder, name = os.path.split(os.path.abspath(path))
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        begun = "%s.%d" % (name, os.getpid())
        before = os.umask(0o177)
        try:
            listener.bind("/proc/self/fd/%d/%s" % (inside, begun))
        finally:
            os.umask(before)
        listener.listen(16)
        os.rename(begun, name, src_dir_fd=inside, dst_dir_fd=inside)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(inside)
    return listener
