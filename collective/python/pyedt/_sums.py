"""The sum of a step's gradients where they are, on a device: made by a lone engine, of all its mini-batches.

S1. Added are the numbers that libshoal adds, in its order (collective/memory/tree.h): each gradient times its samples, by the
    tree of the step, divided by all samples; and as there, no sum is a negative zero. So the bits are those of several engines.
S2. While all mini-batches have one number of samples, a power of two, neither that factor nor dividing by it changes a bit, and
    both are left out."""

import torch


def is_power(number):
    return number > 0 and number & (number - 1) == 0


def is_node(begin, end, parts):
    span = 1
    while span < end - begin:
        span *= 2
    return begin % span == 0 and (end == begin + span or end == parts)


def middle(begin, end):
    half = 1
    while half * 2 < end - begin:
        half *= 2
    return begin + half


def apart(grads):
    """The gradients, each in memory of its own: autograd may give one to several parameters."""
    known, made = set(), []
    for grad in grads:
        address = grad.data_ptr() if grad is not None and grad.numel() else 0
        made.append(grad.clone() if address in known else grad)
        if address:
            known.add(address)
    return made


class Sums:
    """`parts` mini-batches, or those of a node from `first` on, of which each comes once, v ascending. A gradient is a list of float32 tensors, or None where a
    parameter has none; it is ours from then on."""

    def __init__(self, parts, first=0):
        self._first = first
        self._parts, self._nodes = parts, []  # (begin, end, gradient), ascending
        self._samples = 0
        self._unit = None  # S2: the samples of each so far; 0: the sums are weighted

    def add(self, v, count, samples, grads):
        """The mean gradient of `count` mini-batches from v on, over all their samples."""
        grads = apart(grads)
        there = [grad for grad in grads if grad is not None]
        plain = count == 1 and is_power(samples)
        if self._unit is None:
            self._unit = samples if plain else 0
        elif self._unit and (not plain or samples != self._unit):
            self._weigh()
        with torch.no_grad():
            if there and not self._unit:
                torch._foreach_mul_(there, float(samples))
            if there and v == self._first:
                torch._foreach_add_(there, 0.0)
            self._samples += samples
            self._nodes.append((v, v + count, grads))
            while len(self._nodes) > 1 and self._are_children():
                self._merge()

    def _weigh(self):
        there = [grad for _, _, grads in self._nodes for grad in grads if grad is not None]
        with torch.no_grad():
            if there:
                torch._foreach_mul_(there, float(self._unit))
        self._unit = 0

    def _are_children(self):
        (begin, half, _), (_, end, _) = self._nodes[-2:]
        return is_node(begin, end, self._parts) and middle(begin, end) == half

    def _merge(self):
        (begin, _, left), (_, end, right) = self._nodes[-2:]
        both = [(mine, theirs) for mine, theirs in zip(left, right) if mine is not None and theirs is not None]
        if both:
            torch._foreach_add_([mine for mine, _ in both], [theirs for _, theirs in both])
        made = [theirs + 0.0 if mine is None and theirs is not None else mine for mine, theirs in zip(left, right)]
        self._nodes[-2:] = [(begin, end, made)]

    def weighted(self):
        """The sum itself, of all that was added, which is one node of the tree; once."""
        if self._unit:
            self._weigh()
        (_, _, grads), = self._nodes
        self._nodes = []
        return grads

    def result(self):
        """The mean over all samples; once."""
        (begin, end, grads), = self._nodes
        if (begin, end) != (0, self._parts):
            raise RuntimeError("the sum of mini-batches %d to %d is not that of the step's %d" % (begin, end, self._parts))
        divisor = self._parts if self._unit else self._samples
        there = [grad for grad in grads if grad is not None]
        with torch.no_grad():
            if there and is_power(divisor):
                if divisor > 1:
                    torch._foreach_mul_(there, 1.0 / divisor)
            elif there:  # a number from the host would be multiplied by its reciprocal, which rounds twice
                number = torch.tensor(float(divisor), device=there[0].device)
                for grad in there:
                    torch.div(grad, number, out=grad)
        self._nodes = []
        return grads
