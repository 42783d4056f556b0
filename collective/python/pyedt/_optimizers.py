"""The optimizers of a training: one, or several in a list.

O1. The script's own objects stay what they are for the script. Within a step of the script's own (fn_step_train) their
    step() only marks where their gradients are complete: the update follows when the mini-batches of all engines are in.
O2. What comes after such a mark changes nothing of those gradients: neither a zero_grad() nor another backward().
O3. The update itself is torch's fused kernel where there is one for the CPU: it reads and writes each value once, where the plain
    one makes a pass over all of them for each operation. It rounds otherwise, so it is part of an engine's numeric class, and
    what decides for it is the same in all engines: the optimizer and its state, and which parameters have a gradient.
O4. Most updates are none of these: libshoal makes them (_update.py). What is left is the first one, which makes the state, one
    that leaves out a parameter, and optimizers that libshoal has no rule for.
O5. Which parameters an optimizer has, and in which order, stays while it trains: sums, slices and the states of joiners are laid
    out for them. Which of them have a gradient, and the numbers of the groups, may change at any step."""

import collections
import inspect
import operator
import sys

import torch


# Whose step() for tensors on a CPU, one at a time, leaves .grad as it was.
READERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


def only_reads_gradients(optimizer):
    """Whether step() surely changes no gradient of a parameter on the CPU: the class itself, in its plain way, with nothing of
    the script's before it."""
    return (type(optimizer) in READERS and not optimizer._optimizer_step_pre_hooks and not global_hooks("pre") and not any(
        group.get("foreach") or group.get("fused") or group.get("capturable") or group.get("differentiable") or
        isinstance(group.get("weight_decay"), torch.Tensor) for group in optimizer.param_groups))


FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
FUSED_ON_DEVICE = FUSED[:3]


def may_fuse(optimizer):
    """Whether the fused kernel takes all of this update. One that the script chose, or chose against, stays as it is."""
    if type(optimizer) not in FUSED or not only_reads_gradients(optimizer):
        return False
    for group in optimizer.param_groups:
        if group.get("foreach") is not None or group.get("fused") is not None or isinstance(group["lr"], torch.Tensor):
            return False
        if type(optimizer) not in FUSED_ON_DEVICE and any(p.device.type != "cpu" for p in group["params"]):
            return False
        grads = [p.grad for p in group["params"]]
        if any(g is None or g.is_sparse or g.dtype != torch.float32 or not p.is_contiguous() for g, p in zip(grads, group["params"])):
            return False
        known = [optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in group["params"]]
        if any(known) and not all(known):  # a parameter that had no gradient yet
            return False
    return True


def update(optimizer):
    """The optimizer's own step (O3)."""
    if not may_fuse(optimizer):
        return type(optimizer).step(optimizer)
    for group in optimizer.param_groups:
        group["fused"] = True
        for parameter in group["params"]:  # the kernel counts where it computes; a step that was not fused has begun elsewhere
            state = optimizer.state.get(parameter)
            if state and isinstance(state.get("step"), torch.Tensor) and state["step"].device != parameter.device:
                state["step"] = state["step"].to(parameter.device)
    try:
        return type(optimizer).step(optimizer)
    finally:
        for group in optimizer.param_groups:
            group["fused"] = None


def global_hooks(which):
    """The hooks "pre" or "post" step() of every optimizer."""
    return getattr(sys.modules[torch.optim.Optimizer.__module__], "_global_optimizer_%s_hooks" % which, None) or ()


def as_list(given):
    return list(given) if isinstance(given, (list, tuple)) else [given]


def check(given):
    """TypeError or ValueError for what cannot be trained; the driver asks, before an engine starts."""
    optimizers, owner = as_list(given), {}
    if not optimizers:
        raise TypeError("FabricModel: optimizer must be a torch.optim.Optimizer, got an empty list")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError("FabricModel: optimizer must be a torch.optim.Optimizer, got %s" % type(optimizer).__name__)
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty or isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError("FabricModel: %s needs a closure: it computes the loss several times in one update, and an update "
                            "here is of many mini-batches on many engines; choose an optimizer that takes one gradient, "
                            "as SGD or Adam" % type(optimizer).__name__)
        for parameter, count in collections.Counter(p for group in optimizer.param_groups for p in group["params"]).items():
            if count > 1:
                raise ValueError("FabricModel: a parameter of shape %s is %d times in the optimizer; give it once, as "
                                 "dict.fromkeys(parameters) does" % (tuple(parameter.shape), count))
            if owner.setdefault(id(parameter), optimizer) is not optimizer:
                raise ValueError("FabricModel: a parameter of shape %s is in two optimizers; give each parameter to one of "
                                 "them" % (tuple(parameter.shape),))
    return optimizers


class SeveralStates:
    """The states of all optimizers as one map from parameters."""

    def __init__(self, owners):
        self._owners = owners

    def get(self, parameter, default=None):
        return self._owners[parameter].state.get(parameter, default) if parameter in self._owners else default

    def __getitem__(self, parameter):
        return self._owners[parameter].state[parameter]

    def __setitem__(self, parameter, state):
        self._owners[parameter].state[parameter] = state

    def clear(self):
        for optimizer in set(self._owners.values()):
            optimizer.state.clear()


class Several:
    """Several optimizers as one: their groups one after the other, one step of all of them."""

    def __init__(self, optimizers):
        self.optimizers = list(optimizers)
        owners = {p: o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        self.state = SeveralStates(owners)

    @property
    def param_groups(self):
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self):
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states):
        if not isinstance(states, list) or len(states) != len(self.optimizers):
            raise ValueError("the file has the state of %s, the script has %d optimizers"
                             % ("one optimizer" if not isinstance(states, list) else "%d" % len(states), len(self.optimizers)))
        for optimizer, state in zip(self.optimizers, states):
            optimizer.load_state_dict(state)


def joined(given):
    """One thing to step and to save: an optimizer as it is, a list as Several."""
    return Several(given) if isinstance(given, (list, tuple)) else given


class Members:
    """What the optimizers of a training had at its start (O5). `given`: what the script made, one or a list."""

    def __init__(self, given):
        self._given, self._optimizers = given, as_list(given)
        self._groups = [(one, [list(group["params"]) for group in one.param_groups]) for one in self._optimizers]

    def check(self, who, params=None):
        """RuntimeError if `who`, which was called last, has changed it; `params`: of a callback."""
        for one, groups in self._groups:
            now = one.param_groups
            if len(now) != len(groups) or not all(is_same(was, group["params"]) for was, group in zip(groups, now)):
                raise RuntimeError(
                    "%s changed which parameters the optimizer has, and those are fixed while it trains (no add_param_group()): "
                    "give it all of them from the start, and switch with requires_grad_() or lr" % who)
        other = params.get("optimizer", self._given) if isinstance(params, dict) else self._given
        if other is not self._given or not is_same(self._optimizers, as_list(other)):
            raise RuntimeError("%s put another optimizer into params, and a training keeps those that it has from the start: change "
                               "their param_groups, or requires_grad_() of parameters" % who)


def numbers_of(group):
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in group.items() if name != "params"}


def check_numbers(before, groups):
    """RuntimeError if fn_step_train has changed one: each engine calls it as often as it has mini-batches, so their optimizers would
    part."""
    for was, now in zip(before, map(numbers_of, groups)):
        for name, value in was.items():
            both = isinstance(value, torch.Tensor) and isinstance(now.get(name), torch.Tensor)
            if not (torch.equal(value, now[name]) if both else value == now.get(name)):
                raise RuntimeError(
                    "fn_step_train() changed %s of the optimizer from %s to %s: each engine calls it for its own mini-batches, so their "
                    "optimizers would part. Step a scheduler, or set %s, in a callback, which all engines call alike: on_epoch_begin(), or "
                    "on_batch_end()" % (name, value, now.get(name), name))


def is_same(these, those):
    """Whether two lists hold the same objects."""
    return len(these) == len(those) and all(map(operator.is_, these, those))
