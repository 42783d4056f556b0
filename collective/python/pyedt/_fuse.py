"""Mini-batches that an engine holds, computed as one: `fuse` (decision 0040).

U1. Only whole nodes of the tree are fused (collective/memory/tree.h), so that the sums go where they always go.
U2. Only where it is the same gradient but for rounding: the loss is a mean over samples. The first batch that is fused shows
    it, by the losses of its parts; where it is not so, or where batches cannot be joined, each is computed by itself."""

import torch


def nodes(begin, end, count):
    """The maximal nodes of the tree over `count` leaves within [begin, end), ascending."""
    found = []
    while begin < end:
        span = 1
        while begin % (2 * span) == 0 and min(begin + 2 * span, count) <= end and begin + span < count:
            span *= 2
        found.append((begin, min(begin + span, count)))
        begin = found[-1][1]
    return found


def groups(mine, count):
    """The mini-batches that assign() named, as lists that may be fused, in an order that it allows: upwards first, then down."""
    turn = next((i for i in range(1, len(mine)) if mine[i] != mine[i - 1] + 1), len(mine))
    up, down = list(mine[:turn]), list(mine[turn:])
    found = nodes(up[0], up[-1] + 1, count) if up else []
    found += reversed(nodes(down[-1], down[0] + 1, count)) if down else []
    return [list(range(begin, end)) for begin, end in found]


class CannotJoin(Exception):
    pass


def joined(batches):
    """Some batches as one: tensors one after the other, in tuples, lists and dicts too."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 0 or any(b.shape[1:] != first.shape[1:] or b.dtype != first.dtype for b in batches):
            raise CannotJoin("their shapes differ")
        return torch.cat(batches)
    if isinstance(first, dict):
        return {name: joined([b[name] for b in batches]) for name in first}
    if isinstance(first, (list, tuple)) and len({len(b) for b in batches}) == 1:
        parts = [joined(list(items)) for items in zip(*batches)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise CannotJoin("a batch has a %s" % type(first).__name__)


def is_mean(batches, outputs, targets, whole, counts):
    """Whether the loss of the whole is the mean of those of its parts (U2)."""
    tensors = [t for t in (outputs, *targets) if isinstance(t, torch.Tensor) and t.dim() and len(t) == sum(counts)]
    if len(tensors) != 1 + len(targets) or not torch.isfinite(whole):
        return False
    with torch.no_grad():
        parts, at = 0.0, 0
        for count in counts:
            cut = [t.detach()[at:at + count] for t in (outputs, *targets)]
            parts += count * float(batches.loss(cut[0], tuple(cut[1:])))
            at += count
    mean = parts / sum(counts)
    return abs(mean - float(whole)) <= 1e-3 * max(abs(mean), 1e-3)
