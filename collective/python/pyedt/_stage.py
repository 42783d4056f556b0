"""Gradients on their way from a device into libshoal's memory, where several engines' are added up, and the result's way back.

    backward --each parameter's gradient, weighted--> copy on a stream of its own --> place in the arena --> libshoal adds
    optimizer <-- copy on the device's own stream <-- slices of the result, each where its worker has written it

G1. What arrives are the numbers that libshoal would have made of the gradients: times their samples, never a negative zero; of
    several mini-batches their sum by the tree (_sums.py).
G2. The memory that the device writes to and reads is pinned, by libshoal (shoal_device_pin): a place once, a slice of the result for
    as long as it is one. Where the driver refuses, copies are only slower.
G3. Nobody writes to a slice before all have told of the next step's gradients (I2 of collective.h), and none is told of before the
    copy of the last result is over."""

import ctypes

import numpy as np
import torch

from pyedt import _comm


def at(address, elems):
    """A tensor of memory that lives as long as the communicator."""
    return torch.from_numpy(np.frombuffer((ctypes.c_uint8 * (4 * elems)).from_address(address), dtype=np.float32))


def has_driver(device):
    return device.type == "cuda"


class Stage:
    def __init__(self, device, elems, comm):
        self._elems, self._card, self._comm = elems, device.type == "cuda", comm
        self._pinned, self._refused = set(), not has_driver(device)  # addresses; refused: no more are tried
        self._slices = {}  # (address, elements) -> the memory of a slice of the result as a tensor
        self._fetched = None  # when the copy of the last result is over
        if not self._refused:
            self._try(comm.device_open, device.index or 0)
        self._stream = torch.cuda.Stream(device) if self._card else None
        self._zero = torch.zeros((), device=device)
        self._places = {}  # address -> its memory as a tensor
        self._sent, self._flat, self._address = [], None, 0

    def begin(self, address):
        """The place of the vector that comes next."""
        if address not in self._places:
            self._places[address] = at(address, self._elems)
            self._pin(address, self._elems)
        self._address, self._flat, self._sent = address, self._places[address], []

    def _try(self, call, *arguments):
        """Whether libshoal could; it says once why not."""
        try:
            call(*arguments)
        except _comm.CommError as why:
            self._refused = True
            print("gradients go through memory that the driver did not pin: %s; the limit of locked memory (ulimit -l) may be low" % why, flush=True)
            return False
        return True

    def _pin(self, address, elems):
        if elems and not self._refused and self._try(self._comm.pin, address, 4 * elems):
            self._pinned.add(address)

    def _let_go(self, address):
        if address in self._pinned:
            self._pinned.remove(address)
            self._comm.unpin(address)

    def fetch(self, into):
        """Begin to copy the result of a step into a vector of the device; what is asked of the device next finds it there."""
        parts = self._comm.result_parts()
        now = {(address, elems) for _, elems, address in parts}
        gone = [key for key in self._slices if key not in now]
        if gone:
            self.settle()
        for key in gone:
            self._let_go(key[0])
            del self._slices[key]
        for begin, elems, address in parts:
            if (address, elems) not in self._slices:
                self._slices[address, elems] = at(address, elems)
                self._pin(address, elems)
            into[begin:begin + elems].copy_(self._slices[address, elems], non_blocking=True)
        if self._card:
            self._fetched = torch.cuda.Event()
            self._fetched.record()

    def settle(self):
        """Wait for the copy of the last result (G3)."""
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            fetched.synchronize()

    def weighted(self, grad, samples):
        grad = grad.detach()
        grad = (grad.to_dense() if grad.is_sparse else grad).to(torch.float32)
        return torch.add(self._zero, grad, alpha=float(samples))

    def send(self, offset, value):
        """Begin to copy; None: zeroes are there, without a device."""
        if isinstance(value, int):
            self._flat[offset:offset + value].zero_()
            self._sent.append((offset, value, None, None))
            return
        place = self._flat[offset:offset + value.numel()].view(value.shape)
        if not self._card:
            place.copy_(value)
            self._sent.append((offset, value.numel(), None, None))
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            place.copy_(value.contiguous(), non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        value.record_stream(self._stream)
        self._sent.append((offset, value.numel(), done, value))

    def finish(self, part):
        """Tell libshoal of each piece when it is there: part(offset, elements, address)."""
        self.settle()
        sent, self._sent = self._sent, []
        for offset, elems, done, _ in sent:
            if done is not None:
                done.synchronize()
            if elems and part is not None:
                part(offset, elems, self._address + 4 * offset)

    def close(self):
        """Before the communicator's memory goes."""
        self.finish(None)
        for address in list(self._pinned):
            self._let_go(address)
        self._places.clear()
        self._slices.clear()
        self._flat = None
