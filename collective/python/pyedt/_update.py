"""The update of the weights by libshoal (collective_update.h): divided among the workers of a host, or whole in this one.

D1. For the optimizers in RULES, which work element by element, with float32 on CPUs, once every parameter has its state. All
    others, and a step that left a parameter without a gradient, are updated by the optimizer itself, as it is.
D2. Whether an update is made here follows from the optimizer and its state alone, so all engines decide alike. How, by slices
    or whole, changes no bit: an engine that lacks the others' slices, or is alone on its host, makes all of it.
D3. Divided, weights and state lie in the host's arena: one copy for all engines, two by turns. A parameter and a state keep
    their objects; only their memory changes, and only as long as nothing else refers to it. Who holds an alias of weights sees
    them change as ever: from then on this engine keeps its memory, and copies each new state into it.
D4. What a script writes into its weights between updates stays within its engine, and goes into its next update.
D5. A process that the script forks has none of the arena: before a fork weights and state go back to memory of their own."""

import ctypes
import os
import weakref

import numpy as np
import torch

from pyedt import _optimizers

SGD, ADAM, RMSPROP, ADAGRAD = range(4)
MOMENTUM, NESTEROV, MAXIMIZE, WEIGHT_DECAY, DECOUPLED, AMSGRAD, CENTERED = (1 << i for i in range(7))
VECTORS = 4
PART = np.dtype([("begin", "u8"), ("end", "u8"), ("rule", "u4"), ("flags", "u4"), ("numbers", "f4", 8), ("from", "u8", VECTORS),
                 ("into", "u8", VECTORS)])


def common_flags(group):
    return (MAXIMIZE if group.get("maximize") else 0) | (WEIGHT_DECAY if group.get("weight_decay") else 0)


def sgd(group, steps):
    momentum = group["momentum"] != 0
    flags = common_flags(group) | (MOMENTUM if momentum else 0) | (NESTEROV if group["nesterov"] else 0)
    return SGD, flags, [group["lr"], group["momentum"], 1 - group["dampening"], group["weight_decay"]], ["momentum_buffer"] * momentum


def adam(group, steps, decoupled=False):
    beta1, beta2 = group["betas"]
    flags = common_flags(group) | (AMSGRAD if group["amsgrad"] else 0)
    decay = group["weight_decay"]
    if decoupled or group.get("decoupled_weight_decay"):
        flags, decay = flags & ~WEIGHT_DECAY | DECOUPLED * bool(decay), 1 - group["lr"] * decay
    return ADAM, flags, [group["lr"] / (1 - beta1 ** steps), 1 - beta1, beta2, 1 - beta2, (1 - beta2 ** steps) ** 0.5, group["eps"],
                         decay], ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group["amsgrad"])


def adamw(group, steps):
    return adam(group, steps, True)


def rmsprop(group, steps):
    momentum, centered = group["momentum"] > 0, bool(group["centered"])
    flags = common_flags(group) | (MOMENTUM if momentum else 0) | (CENTERED if centered else 0)
    return RMSPROP, flags, [group["lr"], group["alpha"], 1 - group["alpha"], group["eps"], group["momentum"], group["weight_decay"]], (
        ["square_avg"] + ["momentum_buffer"] * momentum + ["grad_avg"] * centered)


def adagrad(group, steps):
    return ADAGRAD, common_flags(group), [group["lr"] / (1 + (steps - 1) * group["lr_decay"]), group["eps"], 0,
                                          group["weight_decay"]], ["sum"]


RULES = {torch.optim.SGD: sgd, torch.optim.Adam: adam, torch.optim.AdamW: adamw, torch.optim.RMSprop: rmsprop,
         torch.optim.Adagrad: adagrad}


def is_plain(optimizer):
    """Whether the rules say what this optimizer does: the class itself, in its plain way, with plain numbers, nothing before
    or after it."""
    return (type(optimizer) in RULES and _optimizers.only_reads_gradients(optimizer) and not optimizer._optimizer_step_post_hooks and
            not _optimizers.global_hooks("post") and all(
                group.get("foreach") is None and group.get("fused") is None and not any(
                    isinstance(value, torch.Tensor) or isinstance(value, (tuple, list)) and any(isinstance(v, torch.Tensor) for v in value)
                    for name, value in group.items() if name != "params") for group in optimizer.param_groups))


def references(tensor):
    """How many tensors share its memory, and some constant."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


ALONE = references(torch.zeros(1))


class View:
    """Memory of the arena as the tensors of each vector."""

    def __init__(self, addresses, parameters):
        elems = sum(p.numel() for p in parameters)
        self.address, self._bases, self.tensors = addresses[0], [], []
        for address in addresses:
            base = torch.from_numpy(np.frombuffer((ctypes.c_uint8 * (4 * elems)).from_address(address), dtype=np.float32))
            pieces, offset = [], 0
            for parameter in parameters:
                pieces.append(base[offset:offset + parameter.numel()].view(parameter.shape))
                offset += parameter.numel()
            self._bases.append(base)
            self.tensors.append(pieces)
        self._alone = [references(base) for base in self._bases]

    def has_alias(self):
        """While parameters and state lie here: whether something else does."""
        own = [len(self.tensors[0])] + [0] * len(self._bases)
        return any(references(base) != alone + n for base, alone, n in zip(self._bases, self._alone, own))


living = weakref.WeakSet()


def before_fork():
    """D5."""
    for update in list(living):
        update.own(update.comm)


os.register_at_fork(before=before_fork)


class Update:
    """The updates of one optimizer. `comm` is libshoal's."""

    comm = None  # that the view is of

    def __init__(self, optimizer, parameters, device):
        living.add(self)
        self._optimizer, self._parameters, self._device = optimizer, parameters, device
        self._view = None  # where weights and state lie; None: in memory of their own
        self._views = {}
        self._stays = False  # D3: something refers to that memory
        self._parts, self._tensors, self._names, self._steps = None, None, None, None
        self._layouts = {}  # by the addresses of all tensors
        self._offered = None  # the addresses that an update was offered with
        self.divided = self.whole = 0  # updates
        self.vectors = self._count()

    def _count(self):
        """Vectors that an update of this optimizer has; 0: it is none of ours."""
        parameters = self._parameters
        if self._device.type != "cpu" or not is_plain(self._optimizer) or not parameters or not all(
                p.dtype == torch.float32 and p.is_contiguous() and p.device.type == "cpu" for p in parameters):
            return 0
        return 1 + max(len(RULES[type(self._optimizer)](group, 1)[3]) for group in self._optimizer.param_groups)

    # ---- what is to be done ----

    def prepare(self):
        """Whether the next update is made here (D2): its parts are ready then."""
        if not self.vectors or not is_plain(self._optimizer):
            return False
        rule, state, rows, tensors, steps = RULES[type(self._optimizer)], self._optimizer.state, [], [], []
        for group in self._optimizer.param_groups:
            known, names = {}, rule(group, 1)[3]
            if len(names) >= self.vectors or rows and names != self._names:
                return False
            self._names = names
            for parameter in group["params"]:
                own = state.get(parameter) or {}
                if any(own.get(name) is None for name in names):
                    return False
                count = own.get("step")
                at = 1 + int(count.item() if isinstance(count, torch.Tensor) else count or 0)
                if isinstance(count, torch.Tensor):
                    steps.append(count)
                if at not in known:
                    known[at] = rule(group, at)[:3]
                rows.append(known[at])
                tensors.append([parameter, *(own[name] for name in names)])
        self._steps = steps
        if not self._lay_out(tensors):
            return False
        self._fill(rows)
        return True

    def _lay_out(self, tensors):
        """The parts for tensors that lie there; false: they are not as an update needs them."""
        self._key = tuple(t.data_ptr() for row in tensors for t in row)
        known = self._layouts.get(self._key)
        if known is None or any(t is not s for row, old in zip(tensors, known[1]) for t, s in zip(row, old)):
            if len(self._layouts) > 1:  # one for each view
                self._layouts.clear()
            parts, at = np.zeros(len(tensors), dtype=PART), 0
            for i, row in enumerate(tensors):
                first = row[0]
                if any(t.dtype != torch.float32 or t.shape != first.shape or t.layout != torch.strided or not t.is_contiguous()
                       for t in row):
                    return False
                parts["begin"][i], parts["end"][i] = at, at + first.numel()
                parts["from"][i, :len(row)] = [t.data_ptr() for t in row]
                at += first.numel()
            # the memory must not go while libshoal has its address, even if a forward gives a weight other memory
            known = self._layouts[self._key] = parts, tensors, [t.untyped_storage() for row in tensors for t in row]
        self._parts, self._tensors = known[:2]
        return True

    def _fill(self, rows):
        begin = 0
        while begin < len(rows):  # runs of parameters with the same numbers
            end = begin + 1
            while end < len(rows) and rows[end] is rows[begin]:
                end += 1
            rule, flags, numbers = rows[begin]
            self._parts["rule"][begin:end], self._parts["flags"][begin:end] = rule, flags
            self._parts["numbers"][begin:end, :len(numbers)] = numbers
            begin = end

    def offer(self, comm, turn):
        """Before the gradients of a step: so that its sums are updated at once."""
        self._offered = None
        if self.prepare():
            self._offered = self._key
            comm.update(turn, self._parts.ctypes.data, len(self._parts))

    # ---- doing it ----

    def run(self, comm):
        """After everyone has the result of a step, and prepare() has said that its update is made here."""
        now = comm.updated() if self._offered == self._key else None  # else a forward has given a weight other memory
        if now is not None:
            self.divided += 1
            view = self._view_at(now[:1 + len(self._names)])
            self._move(comm, view.tensors, view)
        else:
            self.whole += 1
            self._run_whole(comm)
        if self._steps:
            torch._foreach_add_(self._steps, 1)

    def _run_whole(self, comm):
        self._parts["into"] = self._parts["from"]
        into = None
        if self._view is not None:
            into = [[torch.empty(t.shape) for t in row] for row in self._tensors]
            for i, row in enumerate(into):
                self._parts["into"][i, :len(row)] = [t.data_ptr() for t in row]
        comm.update_run(self._parts.ctypes.data, len(self._parts))
        if into is not None:
            self._move(comm, [[row[k] for row in into] for k in range(len(into[0]))], None)

    def _view_at(self, addresses):
        view = self._views.get(addresses[0])
        if view is None or len(view.tensors) != len(addresses):
            view = self._views[addresses[0]] = View(addresses, self._parameters)
        return view

    def _has_alias(self):
        if self._view is not None:
            return self._view.has_alias()
        return any(references(t) != ALONE for row in self._tensors for t in row)

    def _stay(self, comm):
        """Where weights and state lie now, they stay (D3)."""
        self._stays = True
        if self._view is not None:
            comm.update_keep(self._view.address)
            self._views.pop(self._view.address)
            self._view = None

    def _move(self, comm, vectors, view):
        """Weights and state are those of `vectors` from now on, which lie in `view` if that is one."""
        if not self._stays and self._has_alias():
            self._stay(comm)
        if self._stays:
            with torch.no_grad():
                for k, new in enumerate(vectors):
                    torch._foreach_copy_([row[k].detach() for row in self._tensors], new)
            return
        if self._view is None:
            self._layouts.clear()  # they hold what is left behind
        for parameter, new in zip(self._parameters, vectors[0]):
            parameter.data = new
        for name, values in zip(self._names, vectors[1:]):
            for parameter, new in zip(self._parameters, values):
                self._optimizer.state[parameter][name] = new
        self._view, self.comm = view, comm

    def own(self, comm):
        """Weights and state in memory of this engine alone, since what lies in the arena is about to go, or to be written."""
        if self._view is None:
            return
        if self._view.has_alias():
            self._stay(comm)
            return
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()
            state = self._optimizer.state.get(parameter, {})
            for name in self._names:
                if state.get(name) is not None:
                    state[name] = state[name].clone()
        self._view = None
        self._layouts.clear()
