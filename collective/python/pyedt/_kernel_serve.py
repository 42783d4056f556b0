"""What runs in the kernel's own process: requests come in, batches go to the model, answers go out.

    agent --infer--> queue --up to `batch` that wait now--> invoke(tasks) --set_output--> done --> agent

K1. All calls into user code happen on the main thread, where the frames are read, too: a batch is what has arrived meanwhile.
K2. A task is answered once. What a batch reached and left unanswered is answered with 500; what it never reached goes back to
    the head of the queue.
K3. An exception costs its own batch. SystemExit ends the process.
K4. The process that watches (kernel_host) reads `Shared`: which phase this one is in, and since when a batch runs.
K5. What a kernel forks holds no end of the link.
K6. A part of an answer waits until the client has taken most of those before it. Whoever waits reads frames meanwhile, one
    thread at a time: the word that lets it go on comes by the same link.
K7. A signal that comes just before a system call does not interrupt it, and Python's handler runs only after it: where the
    kernel waits, a pipe wakes it, and where the user's code has that pipe's place, it looks once a second."""

import collections
import contextlib
import json
import mmap
import os
import signal
import struct
import sys
import threading
import time
import traceback

from pyedt import _kernel_link

LAUNCHED, CALLED, READY, STOPPING = range(4)
SHARED_BYTES = 4096
REASON_AT, REASON_BYTES_MAX = 32, 2000  # before it: phase, since, length of the reason
PART_BYTES_MAX = 256 << 10  # one part is one message, and goes from host to host in one frame
LOOK_S = 0.05  # how long one look waits for a word of the agent
SIGNAL_S = 1.0  # K7
QUEUE_MAX = 4096  # beyond it the agent has to wait; it hands over no more than a batch
TEXT_PLAIN = "text/plain; charset=utf-8"

served = None  # the Server of this process: redhareapi's Kernel.run() asks for it


def now_ns():
    return int(time.monotonic() * 1e9)


class Shared:
    """A page that the kernel writes and its watcher reads: the phase, since when it (or, once ready, a batch) lasts, 0 while
    nothing runs; and why it failed."""

    def __init__(self, descriptor):
        self._page = mmap.mmap(descriptor, SHARED_BYTES)
        self._phase = LAUNCHED

    def set_phase(self, phase):
        struct.pack_into("<QQ", self._page, 0, phase, 0 if phase == READY else now_ns())

    def state(self):
        """A kernel may have written anything there: what is no phase leaves the last one that was."""
        phase, since_ns = struct.unpack_from("<QQ", self._page, 0)
        if phase <= STOPPING:
            self._phase = phase
        return self._phase, since_ns

    def set_busy(self, busy):
        struct.pack_into("<Q", self._page, 8, now_ns() if busy else 0)

    def set_reason(self, text):
        data = text.encode("utf-8", "replace")[:REASON_BYTES_MAX]
        self._page[REASON_AT:REASON_AT + len(data)] = data
        struct.pack_into("<Q", self._page, 16, len(data))

    def reason(self):
        length = min(struct.unpack_from("<Q", self._page, 16)[0], REASON_BYTES_MAX)
        return self._page[REASON_AT:REASON_AT + length].decode("utf-8", "replace")


class Unusable(Exception):
    """What the package holds cannot be served; the text is for its owner."""


def last_line(error):
    """What Python prints last of an exception, as one line."""
    if isinstance(error, Unusable):
        return str(error)
    lines = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


class Task:
    """One request. `reached`: user code has seen it."""

    __slots__ = ("number", "meta", "body", "connection", "serial", "deadline", "reached", "answered", "place", "open", "credit",
                 "cancelled", "together")

    def __init__(self, number, meta, body, connection, serial=0):
        self.number, self.meta, self.body, self.connection, self.serial = number, meta, body, connection, serial
        left = meta.get("deadline_ms") or 0
        self.deadline = time.monotonic() + left / 1000 if left > 0 else None
        self.reached = self.answered = self.open = False
        self.place, self.together = 0, 1  # how many are computed with it
        window = meta.get("window")
        self.credit = window if type(window) is int and window > 0 else None  # None: the answer is wanted whole
        self.cancelled = False

    def answer(self, status, headers, body):
        """False: it had been answered, or its batch is over (K2)."""
        if self.answered or not self.open:
            return False
        if len(body) > _kernel_link.BODY_BYTES_MAX:
            status, headers = 500, {"content_type": TEXT_PLAIN}
            body = b"the answer has %d bytes; at most %d are passed on" % (len(body), _kernel_link.BODY_BYTES_MAX)
        self.answered = True
        if self.together > 1:
            headers = dict(headers, batch=self.together)
        self.connection.send_done(self.number, status, headers, body)
        return True

    def refuse(self, status, text):
        return self.answer(status, {"content_type": TEXT_PLAIN}, text.encode("utf-8", "replace"))

    def streams(self):
        """Parts are wanted, and somebody waits for them."""
        return self.credit is not None and self.open and not (self.answered or self.cancelled or self.connection.lost)

    def late(self):
        return self.deadline is not None and self.deadline <= time.monotonic()

    def left_ms(self):
        """Until its deadline, at least 1; 0: it has none."""
        return 0 if self.deadline is None else max(1, int((self.deadline - time.monotonic()) * 1000))

    def part(self, data):
        """Whether it has been sent. There must be credit (K6)."""
        if len(data) > PART_BYTES_MAX:
            raise ValueError("a part of an answer has %d bytes; at most %d are passed on in one" % (len(data), PART_BYTES_MAX))
        if not self.streams() or not data:
            return False
        self.credit -= len(data)
        return self.connection.send_frame("part", self.number, data)


class Server:
    def __init__(self, listener, shared, batch, name):
        self._listener, self._shared, self.batch, self.name = listener, shared, batch, name
        self._queue, self._stopping, self._woken = collections.deque(), False, None
        self._said, self._connection, self._serial = set(), None, 0
        self._reading, self._running, self._answering = threading.Lock(), [], {}
        self.description = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self):
        """In a process that the kernel forked: K5."""
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def ready_as(self, platform, inputs=(), outputs=()):
        """What the agent hears when the model is ready."""
        return {"name": self.description.get("name", ""), "version": str(self.description.get("version") or "1"),
                "inputs": list(inputs), "outputs": list(outputs), "batch": self.batch, "platform": platform}

    def say_once(self, text):
        if text not in self._said:
            self._said.add(text)
            print("kernel: " + text, file=sys.stderr, flush=True)

    # ---- life ----

    def start(self, load):
        """Runs what makes the model ready. A failure ends the process, and its last line is what the agent hears."""
        self._shared.set_phase(CALLED)
        try:
            load()
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error):
        if not self._shared.reason():
            self._shared.set_reason(last_line(error))

    def run(self, ready, invoke):
        """Serves one agent after the other until it is told to stop. `ready`: what is said of the model."""
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)
            self._watch_signals()
        self._shared.set_phase(READY)
        while self._wait(self._listener):
            self._connection = _kernel_link.Connection(self._listener.accept()[0])
            self._serve(self._connection, ready, invoke)
        self._shared.set_phase(STOPPING)

    def _watch_signals(self):
        """K7."""
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        if before >= 0:
            signal.set_wakeup_fd(before)

    def _on_term(self, *_):
        self._stopping = True

    def _wait(self, source):
        """Until there is something to take from it. False: the kernel is to stop."""
        while not self._stopping:
            if _kernel_link.readable(source, SIGNAL_S, self._woken):
                return True
            if self._woken is not None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
        return False

    def _serve(self, connection, ready, invoke):
        try:
            connection.send_frame("ready", ready)
            while not self._stopping and self._take(connection):
                batch = self._next_batch(self.batch)
                if batch:
                    self._invoke(batch, invoke)
        except _kernel_link.Malformed as error:
            print("kernel: the agent's bytes are no frames (%s): the link is closed" % error, file=sys.stderr, flush=True)
        for task in self._queue:
            task.open = True
            task.refuse(503, "the kernel stops")
        self._queue.clear()
        connection.close()

    # ---- requests ----

    def _take(self, connection):
        """Reads what has come; waits where nothing is to be done. False: the agent is gone."""
        if len(self._queue) < QUEUE_MAX or connection.lost:  # a cancel may be among what has come
            with self._reading:  # a thread of an answer that is over may still look
                if not self._queue and not connection.lost and not self._wait(connection):
                    return True
                if not connection.receive():
                    return False
                frame = connection.next()
                while frame is not None:
                    self._hear(frame, connection)
                    frame = connection.next()
        return True

    def _hear(self, frame, connection):
        kind = frame[0]
        if kind == "infer" and len(frame) == 4:
            _, number, meta, body = frame
            if type(number) is not int or number < 0 or type(meta) is not dict or type(body) is not bytes:
                raise _kernel_link.Malformed("an infer of other fields")
            if type(meta.get("deadline_ms", 0)) not in (int, float, type(None)):
                raise _kernel_link.Malformed("a deadline that is no number")
            self._serial += 1
            self._queue.append(Task(number, meta, body, connection, self._serial))
        elif kind == "cancel" and len(frame) >= 2:
            self._cancel(frame[1])
        elif kind == "more" and len(frame) == 3 and type(frame[2]) is int:
            task = self._answering.get(frame[1])
            if task is not None and task.credit is not None:
                task.credit += frame[2]
        elif kind == "stop":
            self._stopping = True
        # a newer agent's other frames are passed over

    def _cancel(self, number):
        for task in self._queue:
            if task.number == number:
                self._queue.remove(task)
                task.open = True
                task.refuse(499, "cancelled")
                return
        if number in self._answering:
            self._answering[number].cancelled = True

    # ---- answers in parts ----

    def look(self, wait_s):
        """Reads what has come, for at most so long (0: at once). For whoever answers in parts; False: the agent is gone."""
        connection = self._connection
        with self._reading:
            alive = (wait_s > 0 and not connection.lost and not _kernel_link.readable(connection, wait_s)) or connection.receive()
            frame = connection.next() if alive else None
            while frame is not None:
                self._hear(frame, connection)
                frame = connection.next()
        return alive

    def send_part(self, task, data):
        """K6. Whether it was sent: not where the answer is wanted whole, nor to a client that is gone."""
        while task.streams() and task.credit <= 0 and not task.late():
            self.look(LOOK_S)
        return not task.late() and task.part(data)

    def join(self):
        """What has come while a batch runs, as far as there is room in it."""
        room = self.batch - sum(not task.answered for task in self._running)
        joined = self._next_batch(room) if room > 0 else []
        self._begin(joined)
        return joined

    # ---- batches ----

    def _begin(self, batch):
        for task in batch:
            task.place = len(self._running)
            self._running.append(task)
            self._answering[task.number] = task

    def _next_batch(self, room):
        """Up to `room` of what waits, in order; without those whose time is over."""
        batch = []
        while self._queue and len(batch) < room and not self._stopping:
            task = self._queue.popleft()
            task.open = True
            if task.late():
                task.refuse(504, "the deadline passed while the request waited for the kernel")
            else:
                batch.append(task)
        return batch

    def _invoke(self, batch, invoke):
        self._running = running = []
        self._begin(batch)
        for task in batch:
            task.together = len(batch)
        batch[0].reached = True
        reason = None
        self.busy()
        try:
            invoke(batch)
        except Exception as error:  # K3
            traceback.print_exc()
            sys.stderr.flush()
            reason = last_line(error)
        self._shared.set_busy(False)
        again = []
        for task in running:
            self._answering.pop(task.number, None)
            if not task.answered and not task.reached:
                again.append(task)
            elif not task.answered:
                task.refuse(500, reason or "the kernel returned without an answer to this request")
            task.open = False
        if again:
            self.say_once("a batch was left with %d of %d requests unread: they are given again" % (len(again), len(running)))
            self._queue.extendleft(reversed(again))

    def busy(self):
        """Something of a batch begins now: what runs too long from here on hangs (K4)."""
        self._shared.set_busy(True)


def content_type_of(data):
    """As spec 2.8 has it: JSON where the text is JSON (NaN and Infinity as Python writes them), else plain text."""
    try:
        json.loads(data if isinstance(data, str) else data.decode("utf-8"))
        return "application/json"
    except (ValueError, RecursionError):
        return TEXT_PLAIN

