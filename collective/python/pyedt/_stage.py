"""Gradients on their way from a device into libshoal's memory, where several engines' are added up.

    backward --each parameter's gradient, weighted--> copy on a stream of its own --> place in the arena --> libshoal adds

G1. What arrives are the numbers that libshoal would have made of the gradients: times their samples, never a negative zero; of
    several mini-batches their sum by the tree (_sums.py).
G2. The memory that the device writes to is pinned, once; where the driver refuses, copies are only slower."""

import ctypes

import numpy as np
import torch


def at(address, elems):
    """A tensor of memory that lives as long as the communicator."""
    return torch.from_numpy(np.frombuffer((ctypes.c_uint8 * (4 * elems)).from_address(address), dtype=np.float32))


class Stage:
    def __init__(self, device, elems):
        self._elems, self._card = elems, device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._card else None
        self._zero = torch.zeros((), device=device)
        self._places = {}  # address -> its memory as a tensor
        self._sent, self._flat, self._address = [], None, 0

    def begin(self, address):
        """The place of the vector that comes next."""
        if address not in self._places:
            self._places[address] = at(address, self._elems)
            if self._card:
                self._pin(address)
        self._address, self._flat, self._sent = address, self._places[address], []

    def _pin(self, address):
        runtime = torch.cuda.cudart()
        if self._elems == 0 or runtime.cudaHostRegister(address, 4 * self._elems, 0) == runtime.cudaError.success:
            return
        print("gradients go into memory that the driver did not pin: the limit of locked memory (ulimit -l) may be low", flush=True)
        try:  # the runtime tells of an error once more, to whoever asks next
            torch.zeros(1, device=self._zero.device)
            torch.cuda.synchronize()
        except RuntimeError:
            pass

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
        sent, self._sent = self._sent, []
        for offset, elems, done, _ in sent:
            if done is not None:
                done.synchronize()
            if elems and part is not None:
                part(offset, elems, self._address + 4 * offset)

    def close(self):
        """Before the communicator's memory goes."""
        self.finish(None)
        for address in self._places if self._card else ():
            torch.cuda.cudart().cudaHostUnregister(address)
        self._places.clear()
        self._flat = None
