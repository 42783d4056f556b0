"""Samples by number, and the numbers of those that the dataset really handed out.

    Loader --(seed, ids)--> child, child, ...     with num_dataloader_threads, forked before the library thread starts
           <--(ids handed out, batch)--

The ids are recorded where the dataset hands a sample out, never copied from the plan: what the ledger counts is what the
model saw."""

import ctypes
import io
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback

from pyedt import _late

torch = _late.framework()
OUTSTANDING_MAX = 4  # requests to one child: enough to prefetch a step, few enough for its pipe


class Handout:
    """A dataset that remembers which of its samples it handed out, and knows what makes a batch of them."""

    def __init__(self, dataset, collate):
        self.dataset, self.collate = dataset, collate
        self.handed = []
        self._many = getattr(dataset, "__getitems__", None)

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        sample = self.dataset[index]
        self.handed.append(index)
        return sample

    def get_many(self, ids):
        if not callable(self._many):
            return [self[index] for index in ids]
        samples = self._many(ids)
        if len(samples) != len(ids):
            raise RuntimeError("__getitems__ of %s gave %d samples for %d numbers"
                               % (type(self.dataset).__name__, len(samples), len(ids)))
        self.handed.extend(ids)
        return samples


def fetch(handout, ids):
    """(batch, ids handed out) of one mini-batch."""
    handout.handed = []
    samples = handout.get_many(ids)
    try:
        return handout.collate(samples), handout.handed
    except Exception as error:
        if torch is None or handout.collate is not torch.utils.data.default_collate:
            raise  # a function of the script's, whose line says where
        raise TypeError(no_batch(samples, ids, error)) from error


def no_batch(samples, ids, error):
    """Why torch's own collate function has made none of these samples: the two that differ, or the first."""
    from pyedt import _batches

    kinds = [_batches.shown(sample) for sample in samples]
    other = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    said = "sample %d of the data set is %s" % (ids[0], kinds[0])
    said += "" if other is None else ", sample %d is %s" % (ids[other], kinds[other])
    return "these samples make no batch: %s. Make them alike, or give a fn_batch_collate: %s" % (said, error)


class DataSetFailed(RuntimeError):
    """What a loader process raised there: `said`, as an engine says its failures, and the whole trace."""

    def __init__(self, said, trace):
        super().__init__(said, trace)
        self.said, self.trace = said, trace

    def __str__(self):
        return "the data set failed in a loader process:\n" + self.trace


class LoaderLost(RuntimeError):
    """A loader child died: this worker cannot go on, another can."""


class Loader:
    """Mini-batches of the two datasets: 0 training, 1 validation. `seed(number)` seeds all that they may draw from."""

    def __init__(self, datasets, collate, seed, children=0):
        default = torch.utils.data.default_collate if torch else None  # of TF.Keras, each data set has its own
        self._handouts = [None if data is None else Handout(data.samples, collate or data.collate or default)
                          for data in datasets]
        self._seed = seed
        self._children = [Child(self._handouts, seed) for _ in range(children)]
        self._asked = {}  # key -> child
        self._answers = {}  # key -> (batch, ids)

    def request(self, which, key, seed, ids):
        """Have a mini-batch fetched in the background, if there is a child with room for it."""
        if not self._children or (which, key) in self._asked or (which, key) in self._answers:
            return
        child = min(self._children, key=lambda c: c.outstanding)
        if child.outstanding < OUTSTANDING_MAX:
            child.send((which, key), seed, ids)
            self._asked[(which, key)] = child

    def get(self, which, key, seed, ids):
        """(batch, ids handed out); the caller has seeded nothing yet."""
        if not self._children:
            self._seed(seed)
            return fetch(self._handouts[which], ids)
        while True:
            self.request(which, key, seed, ids)
            if (which, key) in self._answers:
                return self._answers.pop((which, key))
            self._pump()

    def forget(self, keep):
        """Drop what was fetched for steps that are over: `keep` tells by key."""
        for name in [name for name in self._answers if not keep(name[1])]:
            del self._answers[name]

    def _pump(self):
        poll = select.poll()
        for child in self._children:
            poll.register(child.socket, select.POLLIN | (select.POLLOUT if child.unsent else 0))
        for fd, _ in poll.poll(1000):
            child = next(c for c in self._children if c.socket.fileno() == fd)
            for key, answer in child.pump():
                self._asked.pop(key, None)
                if isinstance(answer, DataSetFailed):
                    raise answer
                self._answers[key] = answer

    def close(self):
        for child in self._children:
            child.close()
        self._children = []


class Child:
    """The parent's end of one forked loader. Neither side waits for the other while it has something to read."""

    def __init__(self, handouts, seed):
        self.socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.socket.close()
            child_main(theirs, handouts, seed)
        theirs.close()
        self.socket.setblocking(False)
        self.unsent, self._received = b"", bytearray()
        self.outstanding = 0

    def send(self, key, seed, ids):
        body = pickle.dumps((key, seed, ids))
        self.unsent += struct.pack("<Q", len(body)) + body
        self.outstanding += 1
        self._write()

    def pump(self):
        """Move bytes both ways; yields (key, answer) for what is complete."""
        self._write()
        try:
            data = self.socket.recv(1 << 20)
            if not data:
                raise self._lost()
            self._received += data
        except BlockingIOError:
            pass
        except OSError:
            raise self._lost() from None
        while len(self._received) >= 8:
            size = struct.unpack_from("<Q", self._received)[0]
            if len(self._received) < 8 + size:
                break
            key, answer = pickle.loads(bytes(self._received[8:8 + size]))
            del self._received[:8 + size]
            self.outstanding -= 1
            yield key, answer

    def _write(self):
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent):]
        except BlockingIOError:
            pass
        except OSError:
            raise self._lost() from None

    def _lost(self):
        return LoaderLost("a data loader process (pid %d) died; its memory may have run out" % self.pid)

    def close(self):
        self.socket.close()
        try:
            os.kill(self.pid, signal.SIGKILL)  # it owns nothing, and younger children keep its input open
            os.waitpid(self.pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass  # reaped already


def child_main(connection, handouts, reseed):
    """Serve until the parent is gone. Never returns."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the engine
        if torch:
            torch.set_num_threads(1)
        stream = connection.makefile("rwb")
        while True:
            head = stream.read(8)
            if len(head) < 8:
                break
            key, seed, ids = pickle.loads(stream.read(struct.unpack("<Q", head)[0]))
            body = answer_request(handouts[key[0]], key, seed, ids, reseed)
            stream.write(struct.pack("<Q", len(body)))
            stream.write(body)
            stream.flush()
    except BaseException:  # whatever it is, it must not run the parent's code
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(0)


class Packer(pickle.Pickler):
    """A tensor that is a small part of something larger travels without the rest: a pickle would have all of what a row lies in."""

    def reducer_override(self, obj):
        if torch is None or type(obj) is not torch.Tensor or obj.layout != torch.strided or obj.requires_grad or \
                obj.untyped_storage().nbytes() <= 2 * obj.numel() * obj.element_size():
            return NotImplemented
        alone = obj.clone()
        return alone.__reduce_ex__(5) if alone.stride() == obj.stride() else NotImplemented  # other strides may round otherwise


def packed(value):
    out = io.BytesIO()
    Packer(out, protocol=5).dump(value)
    return out.getbuffer()


def answer_request(handout, key, seed, ids, reseed):
    """The bytes of (key, what came of it)."""
    try:
        reseed(seed)
        return packed((key, fetch(handout, ids)))  # what cannot travel is told, not lost
    except BaseException as error:  # sys.exit(), too, as in the engine itself
        from pyedt import _engine

        return packed((key, DataSetFailed(_engine.failure_text(error), traceback.format_exc())))
