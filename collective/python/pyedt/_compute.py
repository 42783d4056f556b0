"""One mini-batch: forward, loss, metrics, backward, with gradients and buffers in flat memory.

F1. During backward the .grad of parameter i is a view of the work buffer; whoever takes it away costs a copy, which is
    counted, and never a gradient. Within the step of our own, where nobody looks at .grad in between, each gradient goes
    into the sums as soon as backward has it (F5).
F2. A parameter that no mini-batch of the step touched has .grad None during optimizer.step().
F3. Buffers live in one flat tensor; each mini-batch starts from the committed ones.
F5. Only if each parameter gets its gradient once a mini-batch, which the first one of an engine shows. Where one comes
    again later, the mini-batch is computed anew in the first way, which stays.
F4. Gradients are added in float32. A parameter of another type has a .grad of that type, copied there and back.
F6. On a device, an engine that is alone in its epoch adds the gradients up there (_sums.py): none passes through the host. What
    it has of a step is void once the step is assigned anew.
F7. With others, what an engine adds of a step there are the nodes of the tree that it has whole, and those go to libshoal's memory
    (_stage.py): of a single mini-batch while backward runs, if each parameter has its gradient at once (F5)."""

import copy
import itertools
import types

import numpy as np
import torch

from pyedt import _batches, _fuse, _optimizers, _stage, _sums, _update


def on_host(device):
    """Whether gradients lie where libshoal adds them up."""
    return device.type == "cpu"


def flat_views(flat, tensors):
    """Views of `flat`, shaped as the tensors, one after the other."""
    views, offset = [], 0
    for tensor in tensors:
        views.append(flat[offset:offset + tensor.numel()].view(tensor.shape))
        offset += tensor.numel()
    return views


def from_array(array):
    """A tensor of a slot's memory."""
    if array.size == 0:
        return torch.zeros(0, dtype=torch.float32 if array.dtype == np.float32 else torch.uint8)
    return torch.from_numpy(array)


class Gradients:
    """The gradients of the optimizer's parameters in the work buffer, and the map of those that were touched."""

    def __init__(self, optimizer, parameters, device, all_parameters=()):
        self.parameters, self._optimizer, self._device = parameters, optimizer, device
        trained = {id(p) for p in parameters}
        self._others = [p for p in all_parameters if id(p) not in trained]  # no optimizer has them, and backward does all the same
        self.elems = sum(p.numel() for p in parameters)
        self.touched = bytearray(len(parameters))
        self._all_touched = bytes([1] * len(parameters))
        self.copies = 0
        self._hooked = bytearray(len(parameters))
        self._marked = {}  # parameter -> (touched, its gradient) at the step() of its optimizer, in fn_step_train
        self._marks = None  # optimizers that were stepped in this mini-batch; None: not within fn_step_train
        self._twice = False  # F7: one came twice, so none goes while backward runs
        self._calls = bytearray(len(parameters))  # of each hook, in this mini-batch, at most 2
        self._learned = self._given = False  # F5
        self._part = None  # what takes a gradient in this mini-batch; None: it stays in .grad
        self._parted = on_host(device) and all(p.dtype == torch.float32 for p in parameters)
        self._offsets = [0, *itertools.accumulate(p.numel() for p in parameters)][:-1]
        self.update = _update.Update(optimizer, parameters, device)
        self._made = None  # while step() only follows what the update has made: the communicator
        self._on_host = on_host(device)
        self._sums = None  # F6, of the step that is assigned; F7, of a node
        self._kept = False  # F6
        self._stage = None  # F7
        self._forget = None  # F7: what takes back the place of the mini-batch that is sent
        self._sending = 0  # F7: the samples of the mini-batch whose gradients go while backward runs; 0: none do
        self._stolen = False  # the gradients of this mini-batch are those that backward made
        self._leaf = None  # they, until they are added
        index = {id(p): i for i, p in enumerate(parameters)}
        owned = optimizer.optimizers if isinstance(optimizer, _optimizers.Several) else [optimizer]
        for one in owned:
            places = [index[id(p)] for group in one.param_groups for p in group["params"]]
            one.zero_grad = self.zero if len(owned) == 1 else self._zero_some(places)
            one.step = types.MethodType(self._stepper(places), one)
            one._step_supports_amp_scaling = True  # a GradScaler calls step() for a gradient that overflowed, too, and says so
        self._sparse = {i for one in owned if isinstance(one, torch.optim.SparseAdam)
                        for i in (index[id(p)] for group in one.param_groups for p in group["params"])}

    def _zero_some(self, places):
        def zero_grad(set_to_none=True):
            for i in places:
                self._views[i].zero_()
                self.parameters[i].grad = self._views[i]
                self.touched[i] = 0
        return zero_grad

    def _stepper(self, places):
        """step() of an optimizer: the real one, but within a step of the script's own (O1)."""
        def step(optimizer, closure=None):
            optimizer._opt_called = True  # with the mark below: what a scheduler asks before it warns that its step() is out of order
            if self._made is not None:
                return self.update.run(self._made)
            if self._marks is None:
                return _optimizers.update(optimizer)
            if id(optimizer) in self._marks:
                raise RuntimeError("fn_step_train calls step() of one optimizer twice in a mini-batch, but there is one update "
                                   "for the mini-batches of all engines; add the losses up, and call it once")
            value = None
            if closure is not None:
                with torch.enable_grad():
                    value = closure()
            self._marks.add(id(optimizer))
            self._mark(optimizer, places)
            return value
        step._wrapped_by_lr_sched = True
        return step

    def _mark(self, optimizer, places):
        """The gradients of a mini-batch, where step() is called; without a GradScaler's scale, and none if it found one that overflowed."""
        scale, overflow = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        whole = overflow is None or not bool(overflow)
        for i in places:
            grad = self.parameters[i].grad
            touched = whole and grad is not None and (grad is not self._views[i] or bool(self.touched[i]))
            if not touched:
                self._marked[i] = (False, None)
            elif scale is None:
                self._marked[i] = (True, grad.detach().clone())
            else:
                self._marked[i] = (True, grad.detach() * scale.double().reciprocal().float())

    def own_step(self, function, *arguments):
        """fn_step_train, and what its step() calls have marked (O2)."""
        self._marks = set()
        self._marked.clear()
        self.drop_others()
        before = [_optimizers.numbers_of(group) for group in self._optimizer.param_groups]
        try:
            answer = function(*arguments)
        finally:
            if self._marks:
                for i, parameter in enumerate(self.parameters):
                    self.touched[i], parameter.grad = self._marked.get(i, (False, None))
            self._marks = None
        _optimizers.check_numbers(before, self._optimizer.param_groups)
        return answer

    def _hook(self, i):
        touched, calls = self.touched, self._calls
        offset = self._offsets[i]

        def on_accumulated(parameter):
            touched[i] = 1
            calls[i] += calls[i] < 2
            if self._sending:
                self._send(i)
                return
            if self._part is None:
                return
            grad, parameter.grad = parameter.grad, None
            if calls[i] == 1 and grad.numel():
                grad = (grad.to_dense() if grad.is_sparse else grad).contiguous()
                self._part(offset, grad.numel(), grad.data_ptr())

        return on_accumulated

    def bind(self, work, result, touched):
        """Buffers of libshoal. A parameter on a device has its gradient there, and is copied through the buffer."""
        self._work, self._result, self._result_touched = from_array(work), from_array(result), touched
        self._flat = self._work if self._on_host else torch.zeros(self.elems, device=self._device)
        self._places = flat_views(self._flat, self.parameters)
        self._views = [own_type(place, p) for place, p in zip(self._places, self.parameters)]
        self._result_views = self._views_of(self._result) if self._on_host else None
        self._applied = self._applied_views = None

    def _views_of(self, flat):
        """(place, .grad) of each parameter, in flat memory."""
        return [(place, own_type(place, p)) for place, p in zip(flat_views(flat, self.parameters), self.parameters)]

    def _way(self, comm):
        """F7: to libshoal's memory and back."""
        if self._stage is None:
            self._stage = _stage.Stage(self._device, self.elems, comm)
        return self._stage

    def _to_apply(self, comm):
        """The reduced gradient as step() may have it. The result must stand until the next step is complete: an optimizer
        that may scale .grad in place gets a copy."""
        if self._result_views is not None and _optimizers.only_reads_gradients(self._optimizer):
            return self._result_views
        if self._applied is None:
            self._applied = torch.zeros(self.elems, device=self._device)
            self._applied_views = self._views_of(self._applied)
        if self._on_host:
            self._applied.copy_(self._result)
        else:
            self._way(comm).fetch(self._applied)
        return self._applied_views

    def zero(self, set_to_none=True):
        """What optimizer.zero_grad() does here: one memset."""
        self._stolen = False
        self._flat.zero_()
        for view, place in zip(self._views, self._places):
            if view is not place:
                view.zero_()
        self.touched[:] = self._calls[:] = bytes(len(self.touched))
        for i, (parameter, view) in enumerate(zip(self.parameters, self._views)):
            parameter.grad = view
            if parameter.requires_grad and not self._hooked[i]:  # the first time, or since a callback set it free
                parameter.register_post_accumulate_grad_hook(self._hook(i))
                self._hooked[i] = 1

    def drop_others(self):
        """Before a mini-batch: else they would add up over all that this engine computes, and a norm over model.parameters() would
        have them."""
        for parameter in self._others:
            parameter.grad = None

    def assigned(self, comm, parts, mine):
        """After assign of a train step (F6)."""
        self._sums = self._leaf = None
        self._sending, self._kept = 0, not self._on_host and comm.size() == 1 and len(mine) == parts
        if self._stage is not None and not mine:
            self._stage.settle()  # nothing of mine is told of before the others may write
        if self._kept:
            comm.keep()
            self._sums = _sums.Sums(parts)

    def are_kept(self):
        return self._kept

    def are_staged(self):
        return not self._on_host and not self._kept

    def begin_node(self, comm, parts, first):
        """F7: what is added next is the node that begins there."""
        self._sums = _sums.Sums(parts, first)
        self._way(comm)

    def begin_sending(self, comm, v, samples):
        """F7: the one mini-batch of a node, if it may be."""
        if self._twice or not all(p.layout == torch.strided for p in self.parameters):
            return
        self._stage.begin(comm.place(v, samples))
        self._sending, self._forget = samples, lambda: comm.part(0, 0, 0, 0, None)

    def end_node(self, comm, v, samples):
        """After the last mini-batch of a node, and its fuse(): all of it into its place."""
        part = lambda offset, elems, address: comm.part(v, samples, offset, elems, address)  # noqa: E731
        if self._sending:
            self._sending = 0
            self._stage.finish(part)
        else:
            self._stage.begin(comm.place(v, samples))
            grads = self._sums.weighted()
            for i in reversed(range(len(grads))):
                self._stage.send(self._offsets[i], grads[i] if grads[i] is not None else self.parameters[i].numel())
            self._stage.finish(part)
        self._sums = None

    def _send(self, i):
        """Backward has the gradient of a parameter."""
        if self._calls[i] == 1:
            self._stage.send(self._offsets[i], self._stage.weighted(self.parameters[i].grad, self._sending))

    def _sent_all(self):
        """After a backward whose gradients went; false: it must be computed anew, since one came twice."""
        self._twice = max(self._calls, default=0) > 1
        if self._twice:
            self._sending = 0
            self._stage.finish(None)
            self._forget()
            return False
        for i in range(len(self.parameters)):
            if not self._calls[i]:
                self._stage.send(self._offsets[i], self.parameters[i].numel())
        for parameter in self.parameters:
            parameter.grad = None
        return True

    def begin(self, comm, v, samples):
        """Before a mini-batch of the step of our own (F5)."""
        self._stolen = self._sums is not None
        self.drop_others()
        if self._stolen:
            self.touched[:] = self._calls[:] = bytes(len(self.touched))
            if self._sending:
                self._stage.finish(None)  # of a backward that failed
            for i, parameter in enumerate(self.parameters):
                parameter.grad = None
                if self._sending and parameter.requires_grad and not self._hooked[i]:
                    parameter.register_post_accumulate_grad_hook(self._hook(i))
                    self._hooked[i] = 1
            return
        if not self._parted or not self._learned:
            self.zero()
            return
        self._part = lambda offset, elems, address: comm.part(v, samples, offset, elems, address)
        self.touched[:] = self._calls[:] = bytes(len(self.touched))
        for i, parameter in enumerate(self.parameters):
            parameter.grad = None
            if parameter.requires_grad and not self._hooked[i]:
                parameter.register_post_accumulate_grad_hook(self._hook(i))
                self._hooked[i] = 1

    def unbind(self):
        """Before the buffers go away."""
        if self._stage is not None:
            self._stage.close()
            self._stage = None
        for parameter in self.parameters:
            parameter.grad = None

    def cancel(self):
        """After begin(): there is no backward."""
        part, self._part = self._part, None
        if part is not None:
            part(0, 0, None)

    def came_twice(self):
        """After backward: whether the mini-batch must be computed anew, the first way."""
        if self._stolen:
            return bool(self._sending) and not self._sent_all()
        part, self._part = self._part, None
        self._parted = self._parted and max(self._calls, default=0) < 2
        self._learned = True
        if part is None:
            return False
        if not self._parted:
            part(0, 0, None)
            return True
        for i, parameter in enumerate(self.parameters):
            if not self.touched[i] and parameter.numel():
                part(self._offsets[i], parameter.numel(), None)
        self._given = True
        return False

    def collect(self):
        """After backward: everything in the work buffer. Returns the touched bits, or None for all."""
        if self._sending:
            self._stolen = False
            return self._touched_bits()
        if self._sums is not None:
            self._collect_leaf()
            return self._touched_bits()
        if self._given:
            self._given = False
            return self._touched_bits()
        for i, (parameter, view, place) in enumerate(zip(self.parameters, self._views, self._places)):
            grad = parameter.grad
            if grad is view and view is place:
                continue
            if grad is None:
                self.touched[i] = 0
                place.zero_()
            elif grad is view:
                place.copy_(grad)
            elif grad.is_sparse or grad.data_ptr() != place.data_ptr():
                self.touched[i] = 1
                self.copies += 1
                place.copy_(grad.to_dense() if grad.is_sparse else grad)
        if self._flat is not self._work:
            self._work.copy_(self._flat)
        return self._touched_bits()

    def _collect_leaf(self):
        self._leaf = []
        for i, (parameter, view) in enumerate(zip(self.parameters, self._views)):
            grad = parameter.grad
            self.touched[i] = grad is not None and (grad is not view or bool(self.touched[i]))
            if not self.touched[i]:
                self._leaf.append(None)
                continue
            grad = grad.detach().to_dense() if grad.is_sparse else grad.detach()
            own = self._stolen and grad.dtype == torch.float32
            self._leaf.append(grad if own else grad.to(torch.float32, copy=True))
            parameter.grad = None
        self._stolen = False

    def add(self, v, count, samples):
        """After collect(): into the sums (F6, F7)."""
        if self._sums is not None and not self._sending:
            leaf, self._leaf = self._leaf, None
            self._sums.add(v, count, samples, leaf)

    def _touched_bits(self):
        if self.touched == self._all_touched:
            return None
        return np.packbits(np.frombuffer(self.touched, dtype=np.uint8), bitorder="little")

    def step(self, comm):
        """optimizer.step() on the reduced gradient; returns how many parameters it updated."""
        touched = np.unpackbits(self._result_touched, bitorder="little", count=len(self.parameters))
        if self._kept:
            return self._step_kept(touched.tolist())
        if touched.all() and self.update.prepare():
            self._step_made(comm)
            return len(self.parameters)
        self.update.own(comm)
        for i, (parameter, (place, view), used) in enumerate(zip(self.parameters, self._to_apply(comm), touched.tolist())):
            if view is not place:
                view.copy_(place)
            parameter.grad = (view.to_sparse(1) if i in self._sparse else view) if used else None
        self._optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return int(touched.sum())

    def _step_kept(self, touched):
        sums, self._sums, self._kept = self._sums.result(), None, False
        for i, (parameter, grad, used) in enumerate(zip(self.parameters, sums, touched)):
            if used and i in self._sparse:
                grad = grad.to_sparse(1)
            parameter.grad = grad.to(parameter.dtype) if used else None
        self._optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return sum(touched)

    def _step_made(self, comm):
        """By libshoal: step() is called all the same, for what a scheduler has put around it."""
        for parameter in self.parameters:
            parameter.grad = None
        self._made = comm
        try:
            self._optimizer.step()
        finally:
            self._made = None


def own_type(place, parameter):
    """The place itself for a parameter of float32, else a tensor of the parameter's type beside it (F4)."""
    return place if parameter.dtype == torch.float32 else torch.zeros_like(place, dtype=parameter.dtype)


def own_storage(flat):
    """A tensor of the same memory that is saved, copied and shared as one by itself, not as a part of what it lies in."""
    return torch.from_dlpack(flat) if flat.numel() else flat.clone()


class Buffers:
    """The buffers of the model (and of a loss that is a module) in one flat tensor of bytes. Each is a storage of its own there:
    torch saves no storage that holds several types, and a part of a network must not be saved with all of it."""

    ALIGN = 16

    def __init__(self, modules, device):
        self.tensors, self._owners = [], []
        known = set()
        for module in modules:
            for inner in module.modules():
                for name, buffer in inner._buffers.items():
                    if buffer is not None and id(buffer) not in known:
                        known.add(id(buffer))
                        self.tensors.append(buffer)
                        self._owners.append((inner._buffers, name))
        self._device = device
        self.bytes = sum(self._padded(t) for t in self.tensors)
        self._flat = torch.zeros(self.bytes, dtype=torch.uint8, device=device)
        self._places, self._views, offset = [], [], 0
        for tensor in self.tensors:
            size = tensor.numel() * tensor.element_size()
            self._places.append(self._flat[offset:offset + size])
            self._views.append(self._places[-1].view(tensor.dtype).view(tensor.shape))
            self._views[-1].copy_(tensor)
            self._put(len(self._places) - 1)
            offset += self._padded(tensor)
        self._committed = self._flat.clone()
        self._kept = None

    def _padded(self, tensor):
        return -(-tensor.numel() * tensor.element_size() // self.ALIGN) * self.ALIGN

    def _put(self, i):
        """A buffer into its place: the same object as before, whoever holds it."""
        tensor = self.tensors[i]
        tensor.data = own_storage(self._places[i]).view(tensor.dtype).view(self._views[i].shape)

    def bind(self, work, result):
        self._work, self._result = from_array(work), from_array(result)

    def restore(self):
        """The committed buffers, before a mini-batch, also where the last one put another tensor in their place."""
        if self.bytes:
            for i, (tensor, view, (owner, name)) in enumerate(zip(self.tensors, self._views, self._owners)):
                if owner.get(name) is not tensor or tensor.data_ptr() != view.data_ptr():
                    self._put(i)
                    owner[name] = tensor
            self._flat.copy_(self._committed)

    def collect(self, kept=False):
        """The buffers that a mini-batch left, into the copy slot; or kept where they are (F6)."""
        if not self.bytes:
            return
        for tensor, view, (owner, name) in zip(self.tensors, self._views, self._owners):
            now = owner.get(name)
            if now is tensor and tensor.data_ptr() == view.data_ptr():
                continue
            if now is None or now.shape != view.shape:
                raise RuntimeError("buffer %r changed its shape during a step; keep what changes shape out of buffers"
                                   % name)
            view.copy_(now)
        self._kept = self._flat.clone() if kept else None
        if not kept:
            self._work.copy_(self._flat)

    def apply(self, kept=False):
        """Commit what the step decided."""
        if self.bytes:
            self._committed.copy_(self._kept if kept else self._result)
            self.restore()

    def commit(self):
        """The present values are the committed ones: after a state was loaded."""
        self._committed.copy_(self._flat)


def correct(outputs, targets):
    """(how many, of how many): arg-max over dimension 1 against integer targets, or against the arg-max of one-hot targets. None: they
    do not fit."""
    with torch.no_grad():
        if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor) or outputs.dim() < 2:
            return None
        if targets.shape not in (outputs.shape, outputs.shape[:1] + outputs.shape[2:]) or not outputs.numel():
            return None  # before the pass over all outputs, which are many where each token has a word of its own
        best = outputs.argmax(dim=1)
        if targets.shape == outputs.shape:
            targets = targets.argmax(dim=1)
        return (best == targets).sum(), best.numel()


def default_accuracy(outputs, targets):
    """A fraction; 0.0 if they do not fit."""
    found = correct(outputs, targets)
    return found[0].item() / found[1] if found else 0.0


def metric_name(metric):
    return getattr(metric, "__name__", type(metric).__name__.lower())


def metric_names(metrics):
    """Names of a record's values: the loss, then accuracy or one per metric; equal ones are numbered."""
    names = ["loss"]
    for metric in metrics or ():
        name = metric_name(metric)[:60]
        same = sum(n == name or n.rsplit("_", 1)[0] == name for n in names)
        names.append("%s_%d" % (name, same + 1) if name in names else name)
    return names if metrics else ["loss", "accuracy"]


def to_device(value, device):
    """From pinned memory: a copy from other memory would first wait for all that the device has to do."""
    if isinstance(value, torch.Tensor):
        if value.device == device:
            return value
        if device.type == "cuda" and value.device.type == "cpu" and value.layout == torch.strided:
            return value.pin_memory().to(device, non_blocking=True)
        return value.to(device)
    if isinstance(value, dict):
        return {name: to_device(item, device) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        moved = [to_device(item, device) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def number(value):
    """A float of a number or of a tensor of one element."""
    return value.detach().item() if isinstance(value, torch.Tensor) else float(value)


class StepModel:
    """What fn_step_train and fn_test get as `model`: callable, forwards attributes, knows the optimizer and the loss.
    What gives the network back, as train() and eval(), gives this back."""

    RETURNING = ("train", "eval", "to", "cuda", "cpu", "float", "requires_grad_", "apply")

    def __init__(self, model, optimizer, loss, gradients):
        self.__dict__.update(_model=model, _optimizer=optimizer, _loss=loss, _gradients=gradients)

    def __call__(self, *arguments, **named):
        return self._model(*arguments, **named)

    @property
    def __class__(self):  # isinstance(model, torch.nn.Module) is asked by helpers of scripts
        return type(self._model)

    def __deepcopy__(self, memo):
        return copy.deepcopy(self._model, memo)

    def __getattr__(self, name):
        if name == "_model":
            raise AttributeError(name)
        value = getattr(self._model, name)
        return self._then_self(value) if name in self.RETURNING and isinstance(value, types.MethodType) else value

    def __setattr__(self, name, value):
        setattr(self._model, name, value)

    def _then_self(self, method):
        def call(*arguments, **named):
            answer = method(*arguments, **named)
            return self if answer is self._model else answer
        return call

    def __getitem__(self, index):
        return self._model[index]

    def __len__(self):
        return len(self._model)

    def __iter__(self):
        return iter(self._model)

    def __bool__(self):
        return True

    def zero_grad(self, set_to_none=True):
        self._gradients.zero()
        self._gradients.drop_others()

    def get_optimizer(self):
        return self._optimizer

    def get_loss_function(self):
        return self._loss


class LoaderView:
    """The `train_loader` of fn_step_train: what may be asked about the batches."""

    def __init__(self, dataset, batch_size, count):
        self.dataset, self.batch_size, self._count = dataset, batch_size, count

    def __len__(self):
        return self._count


class BatchIterator:
    """The `test_iter` of fn_test: some mini-batches of the validation set, fetched as they are asked for."""

    def __init__(self, dataset, batch_size, fetches):
        self.dataset, self.batch_size, self._fetches = dataset, batch_size, fetches

    def __len__(self):
        return len(self._fetches)

    def __iter__(self):
        for fetch in self._fetches:
            yield fetch()


class Strict:
    """Forward and backward on a device by kernels that give the same bits each time, or not at all: where torch may only warn, its
    attention takes others. What has no such kernel is computed with a warning, from then on."""

    def __init__(self):
        self._relaxed = False

    def run(self, function, *arguments):
        if self._relaxed:
            return function(*arguments)
        was = torch._C._get_deterministic_algorithms(), torch._C._get_deterministic_algorithms_warn_only()
        torch._C._set_deterministic_algorithms(True, warn_only=False)
        try:
            return function(*arguments)
        except RuntimeError as error:
            if "torch.use_deterministic_algorithms" not in str(error):
                raise
            self._relaxed = True
            print("Warning: the bits of the result depend on chance: %s" % str(error).split(". ")[0], flush=True)
        finally:
            torch._C._set_deterministic_algorithms(was[0], warn_only=was[1])
        return function(*arguments)


class Ahead:
    """Loss and accuracy of a mini-batch on their way to the host while the device computes its backward: who waited for that would
    leave the device idle until the next step begins. The values are those of loss.item() and default_accuracy()."""

    def __init__(self, device):
        is_card = device.type == "cuda"
        self._values = torch.zeros(2, dtype=torch.float64, pin_memory=is_card)
        self._event = torch.cuda.Event(blocking=False) if is_card else None
        self._of = 0

    def send(self, loss, outputs, targets):
        found = correct(outputs, targets)
        with torch.no_grad():
            both = [loss.detach().reshape(()).double(), found[0].double() if found else loss.new_zeros((), dtype=torch.float64)]
            self._values.copy_(torch.stack(both), non_blocking=True)
        self._of = found[1] if found else 1
        if self._event is not None:
            self._event.record()

    def read(self):
        if self._event is not None:
            self._event.synchronize()
        loss, right = self._values.tolist()
        return [loss, right / self._of]


class Computation:
    """The user's functions, called the way training contract 3.4 says. Values come back as a list of floats."""

    def __init__(self, parts, header, gradients, device, train_set, validation_set, minibatches):
        self.model, self._metrics = parts["model"], parts.get("metrics") or ()
        self._batches = _batches.Batches(self.model, parts["loss"], self._metrics)
        self.own = parts.get("fn_step_train") is None  # the step is ours
        self.fused = None  # whether mini-batches may be computed as one; None: not known yet
        self._step_train, self._test = parts.get("fn_step_train"), parts.get("fn_test")
        self._args = parts.get("fn_args")
        self._device, self._gradients = device, gradients
        self._value_count = len(header["metric_names"])
        self._test_places = header.get("test_places", range(self._value_count))  # of a validation's values, among all
        self._view = LoaderView(train_set, header["batch_size"], minibatches)
        self._validation_set, self._batch_size = validation_set, header["batch_size"]
        self._step_model = StepModel(self.model, parts["optimizer"], parts["loss"], gradients)
        self._ahead = None if on_host(device) else Ahead(device)

    def train(self, batch):
        if self._step_train is not None:
            answer = self._gradients.own_step(self._step_train, self._step_model, batch, default_accuracy, self._view,
                                              self._args)
            if not isinstance(answer, (tuple, list)) or len(answer) != 2:
                raise TypeError("fn_step_train must return (accuracy, loss), got %r" % (answer,))
            return self._fill([number(answer[1]), number(answer[0])])
        outputs, targets = self._batches.forward(to_device(batch, self._device))
        loss = self._batches.loss_to_train(outputs, targets)
        if self._ahead is not None and not self._metrics and isinstance(loss, torch.Tensor):
            self._ahead.send(loss, outputs, targets[0] if targets else None)
            loss.backward()
            return self._fill(self._ahead.read())
        loss.backward()
        return self._fill([loss.item()] + self._measure(outputs, targets))

    def train_fused(self, batch, counts):
        """The same of several mini-batches as one; None if it must not be: nothing has been computed then."""
        outputs, targets = self._batches.forward(to_device(batch, self._device))
        loss = self._batches.loss_to_train(outputs, targets)
        if self.fused is None:
            self.fused = isinstance(loss, torch.Tensor) and _fuse.is_mean(self._batches, outputs, targets, loss.detach(), counts)
        if not self.fused:
            return None
        loss.backward()
        return self._fill([loss.item()] + self._measure(outputs, targets))

    def validate(self, fetches, samples):
        """One part of the validation set: `fetches` give its mini-batches, `samples` their sizes."""
        if self._test is not None:
            answer = self._test(self._step_model, BatchIterator(self._validation_set, self._batch_size, fetches), self._args)
            if isinstance(answer, (tuple, list)):
                return self._fill_tested([number(answer[1]), number(answer[0])])
            return self._fill_tested([number(answer)])
        sums = np.zeros(self._value_count)
        for fetch, count in zip(fetches, samples):
            outputs, targets = self._batches.forward(to_device(fetch(), self._device))
            values = [number(self._batches.loss(outputs, targets))] + self._measure(outputs, targets)
            sums += count * np.array(self._fill_tested(values))
        return (sums / sum(samples)).tolist()

    def _measure(self, outputs, targets):
        if not self._metrics:
            return [default_accuracy(outputs, targets[0] if targets else None)]
        with torch.no_grad():
            detached = outputs.detach() if isinstance(outputs, torch.Tensor) else outputs
            return [number(value) for value in self._batches.measure(detached, targets)]

    def _fill(self, values):
        return values[:self._value_count] + [float("nan")] * (self._value_count - len(values))

    def _fill_tested(self, values):
        filled = self._fill([])
        for place, value in zip(self._test_places, values):
            filled[place] = value
        return filled


def optimizer_parameters(optimizer):
    """The parameters of all groups, in order."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    others = sorted({str(p.dtype) for p in parameters if p.dtype != torch.float32})
    if others:
        print("Gradients of parameters of type %s are added over the mini-batches in float32" % ", ".join(others), flush=True)
    return parameters


def move(modules, device):
    if device.type != "cpu":
        for module in modules:
            module.to(device)
