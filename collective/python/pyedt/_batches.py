"""What of a batch the network gets, and what the loss.

    a pair (x, y)       model(x), model(*x) or model(**x)       loss(outputs, y)
    more than two       the network takes as many as it can name, the loss the others: loss(outputs, y, weight)
    all for the network where it must have all, and the loss can do with the outputs: loss(outputs)
    a dict              the network gets the entries that its forward() names, the loss the one named labels, label,
                        targets, target or y; where there is none of these, the whole dict
    one tensor          it is its own target"""

import inspect

import torch

TARGETS = ("labels", "label", "targets", "target", "y")
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Shape:
    """How a callable takes its arguments: names, how many it must have, how many it may have, whether any name."""

    def __init__(self, function):
        function = function.forward if isinstance(function, torch.nn.Module) else function
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
            self.names, self.least, self.most, self.any_name = [], 0, 1 << 16, False
            return
        places = [p for p in parameters if p.kind in POSITIONAL]
        self.names = [p.name for p in parameters if p.kind in POSITIONAL or p.kind == inspect.Parameter.KEYWORD_ONLY]
        self.least = sum(p.default is inspect.Parameter.empty for p in places)
        more = any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in parameters)
        self.most = 1 << 16 if more else len(places)
        self.any_name = any(p.kind == inspect.Parameter.VAR_KEYWORD for p in parameters)


class Batches:
    """Calls of one network, its loss and its metrics."""

    def __init__(self, model, loss, metrics):
        self._model, self._loss, self._metrics = model, loss, metrics
        self._takes = Shape(unwrapped(model))
        self._loss_takes, self._metrics_take = Shape(loss), [Shape(metric) for metric in metrics]

    def forward(self, batch):
        """(outputs, targets): all that the loss gets after the outputs."""
        if isinstance(batch, dict):
            return self._forward_dict(batch)
        if isinstance(batch, torch.Tensor):
            return self._model(batch), (batch,)
        self._check(batch)
        if len(batch) == 1:
            return self._model(batch[0]), (batch[0],)
        if self._is_pair(batch):
            return call_model(self._model, batch[0]), (batch[1],)
        count = self._inputs_of(len(batch))
        return self._model(*batch[:count]), tuple(batch[count:])

    def inputs(self, batch):
        """(positional, named) inputs of the network."""
        if isinstance(batch, dict):
            target, named = self._named(batch)
            return ((), named) if named else (({name: value for name, value in batch.items() if name != target},), {})
        if isinstance(batch, torch.Tensor):
            return (batch,), {}
        self._check(batch)
        if self._is_pair(batch):
            x = batch[0]
            return ((), x) if isinstance(x, dict) else (tuple(x), {}) if isinstance(x, (list, tuple)) else ((x,), {})
        return tuple(batch[:self._inputs_of(len(batch)) if len(batch) > 1 else 1]), {}

    @staticmethod
    def _check(batch):
        if not isinstance(batch, (list, tuple)) or not len(batch):
            raise TypeError("a sample must be a pair (x, y), a longer tuple, a dict or a tensor; a batch came out as %s"
                            % type(batch).__name__)

    def _takes_all(self, items):
        return self._takes.least == items and self._loss_takes.least <= 1

    def _is_pair(self, batch):
        return len(batch) == 2 and not (isinstance(batch[0], torch.Tensor) and self._takes_all(2))

    def _inputs_of(self, items):
        if self._takes_all(items):
            return items
        least, most = max(self._takes.least, 1), min(self._takes.most, items - 1)
        for count in range(least, most + 1):
            if items - count <= self._loss_takes.most - 1:
                return count
        raise TypeError("a batch has %d items: the network takes %s of them, and the loss %s after the outputs; write a "
                        "fn_batch_collate that returns (inputs, targets), or take more in forward()"
                        % (items, numbers(self._takes.least, self._takes.most), numbers(1, self._loss_takes.most - 1)))

    def _forward_dict(self, batch):
        target, named = self._named(batch)
        if named:
            outputs = self._model(**named)
        else:
            outputs = self._model({name: value for name, value in batch.items() if name != target})
        return outputs, (batch if target is None else batch[target],)

    def _named(self, batch):
        target = next((name for name in TARGETS if name in batch), None)
        return target, {name: value for name, value in batch.items()
                        if name in self._takes.names or (self._takes.any_name and name != target)}

    def loss(self, outputs, targets):
        value = self._loss(outputs, *targets)
        if not is_number(value):
            raise TypeError("the loss function must return one number; it returned %s%s"
                            % (shown(value), ": reduction='none'? Its mean() is a loss" if isinstance(value, torch.Tensor) else ""))
        return value

    def loss_to_train(self, outputs, targets):
        """One that has a backward()."""
        value = self.loss(outputs, targets)
        if not hasattr(value, "backward"):
            raise TypeError("the loss function must return a tensor, not %s: without .item() or float()" % shown(value))
        if isinstance(value, torch.Tensor) and not value.requires_grad:
            raise TypeError("the loss depends on no parameter that is trained: by .detach(), .data, no_grad() or numpy in the loss or "
                            "in forward(), or because every parameter has requires_grad=False")
        return value

    def measure(self, outputs, targets):
        """The value of each metric: one that takes two arguments gets the first target."""
        values = []
        for metric, shape in zip(self._metrics, self._metrics_take):
            value = metric(outputs, *(targets if shape.most > len(targets) else targets[:1]))
            if not is_number(value):
                raise TypeError("the metric %s must return one number; it returned %s. Give a function for each number"
                                % (getattr(metric, "__name__", type(metric).__name__), shown(value)))
            values.append(value)
        return values


def is_number(value):
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    if value is None or isinstance(value, (str, bytes)):
        return False
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def shown(value, depth=2):
    """What a value is, in a few words: sizes and types, no numbers."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return "%s %s" % (type(value).__name__, list(value.shape))
    if isinstance(value, dict) and depth:
        return "{%s}" % listed("%r: %s" % (name, shown(value[name], depth - 1)) for name in list(value)[:9])
    if isinstance(value, (list, tuple)) and depth:
        return "%s of %d (%s)" % (type(value).__name__, len(value), listed(shown(one, depth - 1) for one in value[:9]))
    return "None" if value is None else type(value).__name__


def listed(texts):
    texts = list(texts)
    return ", ".join(texts[:8] + ["..."] * (len(texts) > 8))


def numbers(least, most):
    return "at least %d" % least if most >= 1 << 15 else str(least) if least >= most else "%d to %d" % (least, most)


def unwrapped(model):
    """The network itself, without what spreads it over devices."""
    spreads = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, spreads) else model


def call_model(model, inputs):
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, (list, tuple)):
        return model(*inputs)
    return model(inputs)
