"""One mini-batch: forward, loss, metrics, backward, with gradients and buffers in flat memory.

F1. During backward the .grad of parameter i is a view of the work buffer; whoever takes it away costs a copy, which is
    counted, and never a gradient.
F2. A parameter that no mini-batch of the step touched has .grad None during optimizer.step().
F3. Buffers live in one flat tensor; each mini-batch starts from the committed ones."""

import warnings

import numpy as np
import torch


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

    def __init__(self, optimizer, parameters, device):
        self.parameters, self._optimizer, self._device = parameters, optimizer, device
        self.elems = sum(p.numel() for p in parameters)
        self.touched = bytearray(len(parameters))
        self._all_touched = bytes([1] * len(parameters))
        self.copies = 0
        self._hooked = bytearray(len(parameters))
        optimizer.zero_grad = self.zero

    def _hook(self, i):
        touched = self.touched

        def on_accumulated(parameter):
            touched[i] = 1

        return on_accumulated

    def bind(self, work, result, touched):
        """Buffers of libshoal. A parameter on a device has its gradient there, and is copied through the buffer."""
        self._work, self._result, self._result_touched = from_array(work), from_array(result), touched
        on_host = self._device.type == "cpu"
        self._flat = self._work if on_host else torch.zeros(self.elems, device=self._device)
        self._views = flat_views(self._flat, self.parameters)
        # A user's optimizer may scale .grad in place, and the result must stand until the next step is complete.
        self._applied = torch.zeros(self.elems, device=self._device)
        self._applied_views = flat_views(self._applied, self.parameters)

    def zero(self, set_to_none=True):
        """What optimizer.zero_grad() does here: one memset."""
        self._flat.zero_()
        self.touched[:] = bytes(len(self.touched))
        for i, (parameter, view) in enumerate(zip(self.parameters, self._views)):
            parameter.grad = view
            if parameter.requires_grad and not self._hooked[i]:  # the first time, or since a callback set it free
                parameter.register_post_accumulate_grad_hook(self._hook(i))
                self._hooked[i] = 1

    def collect(self):
        """After backward: everything in the work buffer. Returns the touched bits, or None for all."""
        for i, (parameter, view) in enumerate(zip(self.parameters, self._views)):
            grad = parameter.grad
            if grad is view:
                continue
            if grad is None:
                self.touched[i] = 0
                view.zero_()
            elif grad.data_ptr() != view.data_ptr():
                self.touched[i] = 1
                self.copies += 1
                view.copy_(grad.to_dense() if grad.is_sparse else grad)
        if self._flat is not self._work:
            self._work.copy_(self._flat)
        if self.touched == self._all_touched:
            return None
        return np.packbits(np.frombuffer(self.touched, dtype=np.uint8), bitorder="little")

    def step(self):
        """optimizer.step() on the reduced gradient; returns how many parameters it updated."""
        touched = np.unpackbits(self._result_touched, bitorder="little", count=len(self.parameters))
        self._applied.copy_(self._result)
        for parameter, view, used in zip(self.parameters, self._applied_views, touched.tolist()):
            parameter.grad = view if used else None
        self._optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None
        return int(touched.sum())


class Buffers:
    """The buffers of the model (and of a loss that is a module) in one flat tensor of bytes."""

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
        self._views, offset = [], 0
        for tensor in self.tensors:
            size = tensor.numel() * tensor.element_size()
            view = self._flat[offset:offset + size].view(tensor.dtype).view(tensor.shape)
            view.copy_(tensor)
            tensor.data = view  # the same object as before, whoever holds it
            self._views.append(view)
            offset += self._padded(tensor)
        self._committed = self._flat.clone()

    def _padded(self, tensor):
        return -(-tensor.numel() * tensor.element_size() // self.ALIGN) * self.ALIGN

    def bind(self, work, result):
        self._work, self._result = from_array(work), from_array(result)

    def restore(self):
        """The committed buffers, before a mini-batch, also where the last one put another tensor in their place."""
        if self.bytes:
            for tensor, view, (owner, name) in zip(self.tensors, self._views, self._owners):
                if owner.get(name) is not tensor or tensor.data_ptr() != view.data_ptr():
                    tensor.data = view
                    owner[name] = tensor
            self._flat.copy_(self._committed)

    def collect(self):
        """The buffers that a mini-batch left, into the copy slot."""
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
        self._work.copy_(self._flat)

    def apply(self):
        """Commit what the step decided."""
        if self.bytes:
            self._committed.copy_(self._result)
            self.restore()

    def commit(self):
        """The present values are the committed ones: after a state was loaded."""
        self._committed.copy_(self._flat)


def default_accuracy(outputs, targets):
    """Arg-max over dimension 1 against integer targets, or against the arg-max of one-hot targets; 0.0 if they do not
    fit. A fraction."""
    with torch.no_grad():
        if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor) or outputs.dim() < 2:
            return 0.0
        best = outputs.argmax(dim=1)
        if targets.shape == outputs.shape:
            targets = targets.argmax(dim=1)
        if targets.shape != best.shape or not best.numel():
            return 0.0
        return (best == targets).sum().item() / best.numel()


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
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    if isinstance(value, dict):
        return {name: to_device(item, device) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        moved = [to_device(item, device) for item in value]
        return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def split_batch(batch):
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        raise TypeError("a sample of the data set must be a pair (x, y); a batch came out as %s"
                        % (type(batch).__name__ if not isinstance(batch, (list, tuple)) else "%d items" % len(batch)))
    return batch


def call_model(model, inputs):
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)):
        return model(*inputs)
    return model(inputs)


def number(value):
    """A float of a number or of a tensor of one element."""
    return value.detach().item() if isinstance(value, torch.Tensor) else float(value)


class StepModel:
    """What fn_step_train gets as `model`: callable, forwards attributes, knows the optimizer and the loss."""

    def __init__(self, model, optimizer, loss, gradients):
        self.__dict__.update(_model=model, _optimizer=StepOptimizer(optimizer), _loss=loss, _gradients=gradients)

    def __call__(self, *arguments, **named):
        return self._model(*arguments, **named)

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __setattr__(self, name, value):
        setattr(self._model, name, value)

    def zero_grad(self, set_to_none=True):
        self._gradients.zero()

    def get_optimizer(self):
        return self._optimizer

    def get_loss_function(self):
        return self._loss


class StepOptimizer:
    """The engine's optimizer as fn_step_train sees it: everything but step(), which is the library's."""

    def __init__(self, optimizer):
        self.__dict__["_optimizer"] = optimizer

    def __getattr__(self, name):
        return getattr(self._optimizer, name)

    def __setattr__(self, name, value):
        setattr(self._optimizer, name, value)

    def step(self, closure=None):
        raise RuntimeError("fn_step_train must not call optimizer.step(): the update follows when the mini-batches of all "
                           "engines are in; leave the call out")


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


class Computation:
    """The user's functions, called the way training contract 3.4 says. Values come back as a list of floats."""

    def __init__(self, parts, header, gradients, device, train_set, validation_set, minibatches):
        self.model, self._loss, self._metrics = parts["model"], parts["loss"], parts.get("metrics") or ()
        self._step_train, self._test = parts.get("fn_step_train"), parts.get("fn_test")
        self._args = parts.get("fn_args")
        self._device, self._gradients = device, gradients
        self._value_count = len(header["metric_names"])
        self._view = LoaderView(train_set, header["batch_size"], minibatches)
        self._validation_set, self._batch_size = validation_set, header["batch_size"]
        self._step_model = StepModel(self.model, parts["optimizer"], self._loss, gradients)

    def train(self, batch):
        if self._step_train is not None:
            answer = self._step_train(self._step_model, batch, default_accuracy, self._view, self._args)
            if not isinstance(answer, (tuple, list)) or len(answer) != 2:
                raise TypeError("fn_step_train must return (accuracy, loss), got %r" % (answer,))
            return self._fill([number(answer[1]), number(answer[0])])
        inputs, targets = split_batch(to_device(batch, self._device))
        outputs = call_model(self.model, inputs)
        loss = self._loss(outputs, targets)
        loss.backward()
        return self._fill([loss.item()] + self._measure(outputs, targets))

    def validate(self, fetches, samples):
        """One part of the validation set: `fetches` give its mini-batches, `samples` their sizes."""
        if self._test is not None:
            answer = self._test(self.model, BatchIterator(self._validation_set, self._batch_size, fetches), self._args)
            if isinstance(answer, (tuple, list)):
                return self._fill([number(answer[1]), number(answer[0])])
            return self._fill([number(answer)])
        sums = np.zeros(self._value_count)
        for fetch, count in zip(fetches, samples):
            inputs, targets = split_batch(to_device(fetch(), self._device))
            outputs = call_model(self.model, inputs)
            values = [number(self._loss(outputs, targets))] + self._measure(outputs, targets)
            sums += count * np.array(self._fill(values))
        return (sums / sum(samples)).tolist()

    def _measure(self, outputs, targets):
        if not self._metrics:
            return [default_accuracy(outputs, targets)]
        with torch.no_grad():
            detached = outputs.detach() if isinstance(outputs, torch.Tensor) else outputs
            return [number(metric(detached, targets)) for metric in self._metrics]

    def _fill(self, values):
        return values[:self._value_count] + [float("nan")] * (self._value_count - len(values))


def optimizer_parameters(optimizer):
    """The parameters of all groups, in order."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        if p.dtype != torch.float32:
            raise TypeError("a parameter of shape %s is of type %s: only float32 is trained yet; call model.float()"
                            % (tuple(p.shape), p.dtype))
    return parameters


def move(modules, device):
    if device.type != "cpu":
        for module in modules:
            module.to(device)


def warn_once(text):
    warnings.warn(text, stacklevel=2)
