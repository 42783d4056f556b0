"""One engine's part in the steps of a train() call.

    compute(step, v)   one mini-batch: gradient, buffers and values into the buffers, published
    apply(step)        after everyone has the result: optimizer, buffers, then loggers and callbacks

T1. What a step does is a function of (job seed, step, v) and of the state after the step before: neither the number of
    engines nor who computed what leaves a trace.
T2. apply() leaves the state "after the step": with the callbacks of a data epoch's end, and of the next one's begin.
T3. Callbacks and loggers run only for committed steps, once in each engine; on_epoch_end(save_model=True) runs in the
    engine that writes the files. It runs before that step is committed: a state that is given meanwhile says that its callbacks
    have had it, and who takes it does not call them again."""

import collections
import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
import time

from pyedt import _comm, _late, _loader, _onnx, _order, _records, _schedule
from pyedt._loggers import Method, WorkerReports

torch = _late.framework()
if torch:
    from pyedt import _batches, _chance, _compute, _fuse, _optimizers, _state

SNAPSHOT_SECONDS = 60
SNAPSHOTS_KEPT = 2


def engine_device():
    """The device of this engine's slot, or the CPU. On a GPU, algorithms that give the same bits each time: where there is
    none, torch says so in the log."""
    if torch is None:
        return None  # TensorFlow places by itself
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):  # started by no agent, or without a GPU
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    if not torch.cuda.is_available():
        say_unused_gpu(os.environ["CUDA_VISIBLE_DEVICES"])
        return torch.device("cpu")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a write of all memory that is taken, and no bit more certain
    return torch.device("cuda", 0)


_unused = []


def say_unused_gpu(name):
    """Once: a slot's GPU stays idle, which nobody would look for."""
    if name not in _unused:
        _unused.append(name)
        print("Warning: this slot has the GPU %s, and torch %s finds none (%s): this engine computes on the CPU; install a torch for "
              "CUDA on this host, or submit with --device cpu" % (name, torch.__version__, "built without CUDA"
                                                                  if torch.version.cuda is None else "the driver does not answer"), flush=True)


def result_dir():
    return os.environ.get("RESULT_DIR") or os.path.join(os.getcwd(), "result")


def atomic_save(value, path):
    """torch.save under a temporary name, flushed, renamed: a file is whole or not there."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    with open(temporary, "wb") as out:
        torch.save(value, out)
        out.flush()
        os.fsync(out.fileno())
    os.rename(temporary, path)


def temporary_folder(path):
    """Where a folder is made until it is whole. Its name is hidden: else what lies in it would be taken for results, and sent to
    other hosts."""
    return os.path.join(os.path.dirname(path), ".%s.%d.tmp" % (os.path.basename(path), os.getpid()))


TEMPORARY = re.compile(r"\.(\d+)\.tmp$")


def drop_leftovers():
    """What an engine was writing when it was killed: no result, but its bytes would stay."""
    for name in ("model/train", "checkpoint"):
        folder = os.path.join(result_dir(), name)
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            found = TEMPORARY.search(entry)
            if found is None or os.path.exists("/proc/" + found.group(1)):
                continue
            path = os.path.join(folder, entry)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


class Trainer:
    _strict = None  # about kernels of a device
    _keeps = False  # gradients on a device may stay there
    _update = None  # of the weights by libshoal; a framework that updates by itself has none
    _members = None  # the optimizer's parameters; Keras's has those of the model

    def __init__(self, comm, call, header, parts, job_seed, datasets, device, quiet=False):
        self.comm, self.call, self.header, self.job_seed = comm, call, header, job_seed
        train_set, validation_set = (data and data.samples for data in datasets)
        self._validation_set = validation_set
        self.schedule = _schedule.Schedule(
            len(train_set), len(validation_set) if validation_set is not None else 0, header["batch_size"],
            header["virtual_workers"], header["epochs"], header["validation_freq"], header["checkpoint_freq"])
        if header.get("onnx"):
            _onnx.check(header["backend"], "an engine's host")
        self._make(parts, datasets, device)
        self._set_callbacks(list(parts.get("callbacks") or ()))
        self._reports = WorkerReports(parts.get("worker_logger"), header["metric_names"], header["test_names"],
                                      self.schedule, quiet)
        self.on_committed = None  # called with each record, in the order of steps: the loggers of a script that runs alone
        self.applied = None  # the step whose state this engine has; None: no state yet
        self.updates = self.applied_steps = 0  # of the optimizer, in this engine
        self._fuse = bool(header.get("fuse"))
        if self._fuse:
            print("fuse: the mini-batches of a step that an engine holds are computed as one; the bits of the result depend on how "
                  "many engines there are", flush=True)
        self._begun = False
        self._files_step = None  # the FILES step this engine has written
        self._ended_step = None  # the step with which the callbacks, as they are now, have seen a data epoch end (T3)
        self._snapshot_time = time.monotonic()

    def _make(self, parts, datasets, device):
        """What belongs to one framework: model, gradients, buffers, state, data."""
        header = self.header
        train_set, validation_set = (data and data.samples for data in datasets)
        self._model, self._loss = parts["model"], parts["loss"]
        self._given_optimizer, self._optimizer = parts["optimizer"], _optimizers.joined(parts["optimizer"])
        self._members = _optimizers.Members(parts["optimizer"])
        self._chance = _chance.Chance([*datasets, *(value for name, value in sorted(parts.items()) if name != "worker_logger")])
        modules = [m for m in (self._model, parts["loss"]) if isinstance(m, torch.nn.Module)]
        self._loader = _loader.Loader(datasets, parts.get("collate"), self._chance.seed, header["loader_threads"])
        _compute.move(modules, device)  # after the loaders were forked: what a device has of this process is not theirs
        self._strict = None if _compute.on_host(device) else _compute.Strict()
        self._order = _order.Order(self.job_seed, len(train_set), header["batch_size"])
        self.buffers = _compute.Buffers(modules, device)
        parameters = _compute.optimizer_parameters(self._optimizer)
        self.gradients = _compute.Gradients(self._optimizer, parameters, device, [p for m in modules for p in m.parameters()])
        self._update, self._keeps = self.gradients.update, True
        self.carrier = _state.Carrier(self._model, parts["loss"], self._optimizer, self.buffers)
        self._computation = _compute.Computation(parts, header, self.gradients, device, train_set, validation_set,
                                                 self.schedule.minibatches)

    # ---- buffers ----

    def sizes(self):
        return dict(call=self.call, virtual_workers=self.header["virtual_workers"], sum_elems=self.gradients.elems,
                    copy_bytes=self.buffers.bytes, samples=self.schedule.samples, minibatch=self.header["batch_size"],
                    data_epochs=self.schedule.epochs, steps_per_epoch=self.schedule.train_steps,
                    param_count=len(self.gradients.parameters), update_vectors=self._update.vectors if self._update else 0)

    def bind(self):
        """After ready: gradients and buffers go to libshoal's buffers."""
        comm = self.comm
        self.gradients.bind(comm.work(), comm.result(), comm.touched())
        self.buffers.bind(comm.copy_work(), comm.copy_result())

    def unbind(self):
        """Before the buffers go away."""
        self.keep_alone()
        self.gradients.unbind()
        self._loader.close()

    # ---- beginning ----

    def begin(self, fresh):
        """on_train_begin, once; `fresh`: from the bundle, so the first data epoch begins too."""
        if not self._begun:
            self._begun = True
            drop_leftovers()
            self._training_mode()
            self._seed(0, 0, 0xFFFF)
            self._reports.logger.begin()
            self._call("on_train_begin")
        if fresh:
            self.applied = 0
            self._seed(0, 0, 0xFFFE)
            self._call("on_epoch_begin", 0)

    def _training_mode(self):
        self._model.train()

    def end(self):
        self._call("on_train_end")
        self._reports.logger.end()

    def give_state(self):
        comm = self.comm
        first, tensors = self.carrier.give(self.applied, self._callbacks, self._ended_step)
        comm.state_give(0, first, len(first))
        for i, tensor in enumerate(tensors):
            comm.state_give(i + 1, *self.carrier.memory(tensor))
        comm.state_end()

    def take_state(self):
        """RankLost if the donor is gone in between: nothing is changed then."""
        self.keep_alone()
        comm, first, tensors, step = self.comm, None, [], None
        while True:
            size = comm.state_size()
            if size is None:
                break
            number, length = size
            if number == 0:
                first = bytearray(length)
                comm.state_take(0, (_comm.c_uint8 * length).from_buffer(first), length)
                step, tensors = self.carrier.empty(first)
                continue
            if number > len(tensors) or length != self.carrier.memory(tensors[number - 1])[1]:
                raise RuntimeError("the donor's state is damaged: tensor %d has %d bytes" % (number, length))
            comm.state_take(number, self.carrier.memory(tensors[number - 1])[0], length)
        if first is None:
            raise RuntimeError("the donor gave no state")
        self._take(first, tensors, step)

    def load_snapshot(self, path):
        first, tensors = self.carrier.read_file(path)
        self._take(first, tensors, self.carrier.empty(first)[0])

    def _take(self, first, tensors, step):
        self._set_callbacks(self.carrier.take(first, tensors, self._callbacks))
        self.applied, self._ended_step = step, self.carrier.ended(first)

    def keep_alone(self):
        """The state in memory of this engine alone."""
        if self._update is not None:
            self._update.own(self.comm)

    def update_text(self):
        """How many updates were made by slices, for the log."""
        divided = self._update.divided if self._update is not None else 0
        return ", %d of them with this host's other workers" % divided if divided else ""

    # ---- one step ----

    def offer_update(self, step):
        """What the update of this step does, before its gradients come."""
        if step.kind == _schedule.TRAIN and self._update is not None:
            self._update.offer(self.comm, self.schedule.train_steps_until(step.number))

    def begin_step(self, step, mine):
        """After assign: where the gradients of these mini-batches go, and what the update does."""
        if step.kind == _schedule.TRAIN and self._keeps:
            self.gradients.assigned(self.comm, step.parts, mine)
        self.offer_update(step)

    def compute(self, step, v):
        if step.kind == _schedule.TRAIN:
            self._compute_train(step, v)
        elif step.kind == _schedule.VALIDATE:
            self._compute_validation(step, v)
        else:
            self._write_files(step)

    def prefetch(self, step, parts):
        """Have the mini-batches of this step and of the next one fetched by the loader children."""
        if not self.header["loader_threads"]:
            return
        self._loader.forget(lambda key: key[0] >= step.number)
        upcoming = [step] + ([self.schedule.at(step.number + 1)] if step.number < self.schedule.last else [])
        for later in [s for s in upcoming if s.kind == _schedule.TRAIN]:
            for v in [v for v in parts if v < later.parts]:
                self._loader.request(0, (later.number, v), self._step_seed(later.epoch, later.number, v),
                                     self._ids(later, v))

    def _ids(self, step, v):
        return self._order.minibatch(step.epoch, step.index * self.schedule.virtual_workers + v)

    def _compute_train(self, step, v):
        seed = self._step_seed(step.epoch, step.number, v)
        batch, handed = self._loader.get(0, (step.number, v), seed, self._ids(step, v))
        values = self._train_on(batch, seed, v, len(handed))
        if self._computation.own and self.gradients.came_twice():
            values = self._train_on(batch, seed, v, len(handed))
        touched = self._collect(v, 1, len(handed))
        low, high = self.comm.sample_sums(self.job_seed, handed)
        self.comm.publish(v, len(handed), low, high, values, touched)

    def _collect(self, v, count, samples):
        """What a backward has left, on its way into the sums. The touched bits."""
        touched = self.gradients.collect()
        if self._keeps:
            self.gradients.add(v, count, samples)
        if v == 0:
            self._collect_buffers()
        return touched

    def _collect_buffers(self):
        if self._keeps and self.gradients.are_kept():
            self.buffers.collect(kept=True)
        else:
            self.buffers.collect()

    def _apply_buffers(self, kept):
        if kept:
            self.buffers.apply(kept=True)
        else:
            self.buffers.apply()

    # ---- several mini-batches as one ----

    def groups(self, step, mine):
        """Lists of mini-batches to be computed as one, where that was asked for and may be; or whose gradients are added up on a
        device before they go to the others'."""
        if self._stages(step):
            return _fuse.groups(mine, step.parts)
        if not self._fuse or step.kind != _schedule.TRAIN or not self._computation.own or self._computation.fused is False:
            return [[v] for v in mine]
        return _fuse.groups(mine, step.parts)

    def _stages(self, step):
        return self._keeps and step.kind == _schedule.TRAIN and self.gradients.are_staged() and not self._fuse

    def _compute_node(self, step, group):
        """Mini-batches that are a node of the step's tree: what goes to libshoal is their sum."""
        tuples, total = [], 0
        self.gradients.begin_node(self.comm, step.parts, group[0])
        for v in group:
            seed = self._step_seed(step.epoch, step.number, v)
            batch, handed = self._loader.get(0, (step.number, v), seed, self._ids(step, v))
            if len(group) == 1 and self._computation.own:
                self.gradients.begin_sending(self.comm, v, len(handed))
            values = self._train_on(batch, seed, v, len(handed))
            if self._computation.own and self.gradients.came_twice():
                values = self._train_on(batch, seed, v, len(handed))
            tuples.append((v, handed, values, self._collect(v, 1, len(handed))))
            total += len(handed)
        if len(group) > 1:
            self.comm.fuse(group[0], len(group), total)
        self.gradients.end_node(self.comm, group[0], total)
        for v, handed, values, touched in reversed(tuples):
            low, high = self.comm.sample_sums(self.job_seed, handed)
            self.comm.publish(v, len(handed), low, high, values, touched)

    def compute_group(self, step, group):
        if self._stages(step):
            self._compute_node(step, group)
            return
        if len(group) == 1 or not self._compute_fused(step, group):
            for v in group:
                self.compute(step, v)

    def _compute_fused(self, step, group):
        v, parts = group[0], []
        for one in group:
            seed = self._step_seed(step.epoch, step.number, one)
            parts.append(self._loader.get(0, (step.number, one), seed, self._ids(step, one)))
        counts = [len(handed) for _, handed in parts]
        seed = self._step_seed(step.epoch, step.number, v)
        values = self._train_fused([batch for batch, _ in parts], counts, seed, v)
        if values is None:
            return False
        touched = self._collect(v, len(counts), sum(counts))
        for one, (_, handed) in reversed(list(zip(group, parts))):
            low, high = self.comm.sample_sums(self.job_seed, handed)
            self.comm.publish(one, len(handed), low, high, values, touched)
        return True

    def _train_fused(self, batches, counts, seed, v):
        try:
            batch = _fuse.joined(batches)
        except _fuse.CannotJoin as why:
            self._computation.fused = False
            print("fuse: mini-batches are computed one by one, since they cannot be joined: %s" % why, flush=True)
            return None
        self.comm.fuse(v, len(counts), sum(counts))
        values = self._train_on(batch, seed, v, sum(counts), counts)
        if values is not None and self.gradients.came_twice():
            values = self._train_on(batch, seed, v, sum(counts), counts)
        if values is None:
            self.gradients.cancel()
            self.comm.fuse(v, 1, counts[0])
            print("fuse: mini-batches are computed one by one, since the loss is no mean over samples", flush=True)
        return values

    def _train_on(self, batch, seed, v, samples, counts=None):
        if self._strict is not None:
            return self._strict.run(self._train_once, batch, seed, v, samples, counts)
        return self._train_once(batch, seed, v, samples, counts)

    def _train_once(self, batch, seed, v, samples, counts):
        self.buffers.restore()
        if self._computation.own:
            self.gradients.begin(self.comm, v, samples)
        else:
            self.gradients.zero()
        self._chance.seed(seed)
        return self._computation.train(batch) if counts is None else self._computation.train_fused(batch, counts)

    def _compute_validation(self, step, v):
        size, total = self.schedule.batch_size, len(self._validation_set)
        batches = self.schedule.validation_part(v, step.parts)
        counts = [min(size, total - m * size) for m in batches]
        handed = []

        def fetcher(m, count):
            def fetch():
                seed = self._step_seed(step.epoch, step.number, m)
                batch, ids = self._loader.get(1, (step.number, m), seed, list(range(m * size, m * size + count)))
                handed.extend(ids)
                self._chance.seed(seed)
                return batch
            return fetch

        self.buffers.restore()
        with self._evaluating():
            values = self._computation.validate([fetcher(m, n) for m, n in zip(batches, counts)], counts)
        self.buffers.restore()
        low, high = self.comm.sample_sums(self.job_seed, handed)
        self.comm.publish(v, sum(counts), low, high, values)

    @contextlib.contextmanager
    def _evaluating(self):
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        with torch.no_grad():
            yield
        for module, mode in modes:
            module.training = mode

    def apply(self, step):
        record = _records.decode(self.comm.record())[0]
        if step.kind == _schedule.TRAIN:
            self._seed(step.epoch, step.number, 0xFFFD)
            kept = self._keeps and self.gradients.are_kept()
            self._check_members("fn_step_train()")
            updated = self.gradients.step(self.comm)
            self.updates += updated
            if self._reports.printing:
                print("Weight update %d: %d parameters, %d bytes of gradients, interval %d, factor %.9f" % (
                    self.schedule.train_steps_until(step.number), updated, 4 * self.gradients.elems, step.parts,
                    1 / sum(part[0] for part in record.parts)))
            self.applied_steps += 1
            self._apply_buffers(kept)
        self._report(step, record)
        if step.ends_epoch:
            self._end_epoch(step)
        self.applied = step.number
        if step.ends_epoch:
            self._snapshot(step)

    def _report(self, step, record):
        self._reports.add(record, self.comm.worker_id())
        if self.on_committed is not None:
            self.on_committed(record)
        if step.kind != _schedule.TRAIN or not self._batch_hooks:
            return
        first = step.index * self.schedule.virtual_workers
        names = self.header["metric_names"][:self.header.get("trained")]
        for v, part in enumerate(record.parts):
            self._call("on_batch_begin", first + v)
            self._call("on_batch_end", first + v, dict(zip(names, part[4])))

    def _end_epoch(self, step):
        self._call_epoch_end(step, False)
        if step.epoch + 1 < self.schedule.epochs:
            self._seed(step.epoch + 1, step.number, 0xFFFE)
            self._call("on_epoch_begin", step.epoch + 1)

    def _call_epoch_end(self, step, save_model):
        self._seed(step.epoch, step.number, 0xFFFF)
        if step.number != self._ended_step:
            self._ended_step = step.number
            self._call("on_epoch_end", step.epoch, save_model)

    # ---- files ----

    def _write_files(self, step):
        """The owner of v = 0: the checkpoint, then the callbacks' own files. Not repeated if it is asked again."""
        if self._files_step != step.number:
            self.comm.set_activity(_comm.CALLBACK)
            if step.checkpoint:
                self._save("model_epoch_%d" % (step.epoch + 1))
            self._files_step = step.number
            self._call_epoch_end(step, True)
        self.comm.publish(0, 1, 0, 0, [0.0] * len(self.header["metric_names"]))

    def write_final(self):
        drop_leftovers()
        self._save("model_epoch_final")
        if self.header.get("onnx"):
            self._save_onnx(os.path.join(result_dir(), "model", "train", _onnx.NAME))
        for path in self._snapshots():
            os.unlink(path)

    def _save(self, name):
        folder = os.path.join(result_dir(), "model", "train")
        os.makedirs(folder, exist_ok=True)
        atomic_save(cpu_state(_batches.unwrapped(self._model).state_dict()), os.path.join(folder, name + ".pth"))
        atomic_save(cpu_state(self._optimizer.state_dict()), os.path.join(folder, name + "_optimizer_state.pth"))
        if is_trained(self._loss):
            atomic_save(cpu_state(self._loss.state_dict()), os.path.join(folder, name + "_loss.pth"))

    def try_onnx(self):
        """Whether the network can be written so at all."""
        if self.header.get("onnx"):
            folder = tempfile.mkdtemp(prefix="shoal-onnx-")
            try:
                self._save_onnx(os.path.join(folder, _onnx.NAME))
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _save_onnx(self, path):
        which, number = (1, 0) if self._validation_set is not None and len(self._validation_set) else (0, 0)
        batch, _ = self._loader.get(which, ("onnx", 0), self._step_seed(0, 0, 0xFFFB), [number])
        network = _batches.unwrapped(self._model)
        self.buffers.restore()
        with torch.no_grad():
            _onnx.write(path, network, batch, _batches.Batches(network, self._loss, ()).inputs)

    def _snapshot(self, step):
        if step.number == self.schedule.last or time.monotonic() - self._snapshot_time < SNAPSHOT_SECONDS:
            return
        self._snapshot_time = time.monotonic()
        if self.comm.rank() != 0:
            return
        folder = os.path.join(result_dir(), "checkpoint")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "snapshot-%d-%012d.state" % (self.call, step.number))
        self.carrier.write_file(path, *self.carrier.give(step.number, self._callbacks, self._ended_step))
        self.comm.snapshot(step.number, path)
        for old in self._snapshots()[:-SNAPSHOTS_KEPT]:
            os.unlink(old)

    def _snapshots(self):
        folder = os.path.join(result_dir(), "checkpoint")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return [os.path.join(folder, n) for n in names if n.startswith("snapshot-%d-" % self.call)
                and n.endswith(".state")]

    def write_numbers(self):
        """What a later life of the driver needs to number iterations."""
        folder = os.path.join(result_dir(), "checkpoint")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, "call-%d.json" % self.call)
        with open("%s.%d.tmp" % (path, os.getpid()), "w", encoding="utf-8") as out:
            json.dump({"samples": self.schedule.samples, "minibatches": self.schedule.minibatches}, out)
        os.rename(out.name, path)

    # ---- the rest ----

    def digest(self):
        return self.carrier.digest(self.comm.digest)

    def _step_seed(self, epoch, number, v):
        return _order.step_seed(self.job_seed, epoch, number, v)

    def _seed(self, epoch, number, place):
        self._chance.seed(self._step_seed(epoch, number, place))

    def _set_callbacks(self, callbacks):
        header = self.header
        params = {"epochs": header["epochs"], "optimizer": self._given_optimizer, "batch_size": header["batch_size"],
                  "engines_number": header["engines_number"], "effective_batch_size": header["effective_batch_size"],
                  "steps_per_epoch": self.schedule.train_steps, "validation_freq": header["validation_freq"],
                  "checkpoint_freq": header["checkpoint_freq"]}
        for callback in callbacks:
            callback.params, callback.model = dict(params), self._model
        self._callbacks = callbacks
        self._methods = {name: [(callback, Method(callback, name)) for callback in callbacks] for name in (
            "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_batch_begin", "on_batch_end")}
        self._batch_hooks = any(overrides(callback, name) for callback in callbacks
                                for name in ("on_batch_begin", "on_batch_end"))

    def _call(self, name, *arguments):
        for callback, method in self._methods[name]:
            method(*arguments)
            if method:
                self._check_members("%s.%s()" % (type(callback).__name__, name), getattr(callback, "params", None))

    def _check_members(self, who, params=None):
        if self._members is not None:
            self._members.check(who, params)


def overrides(callback, name):
    """Whether a callback does something there: the base class's own methods do nothing."""
    from pyedt.callbacks import Callback

    return getattr(type(callback), name, None) is not getattr(Callback, name) and hasattr(callback, name)


def is_trained(loss):
    """Whether a loss has parameters, and so a file of its own."""
    return isinstance(loss, torch.nn.Module) and any(True for _ in loss.parameters())


def cpu_state(value):
    """A state dict on the CPU, detached from the live tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        made = {key: cpu_state(item) for key, item in value.items()}
        if hasattr(value, "_metadata"):  # by it a module knows of which version its entries are
            made = collections.OrderedDict(made)
            made._metadata = value._metadata
        return made
    if isinstance(value, (list, tuple)):
        items = [cpu_state(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def train_steps(trainer):
    """Run from the step after the applied one to the last. RankLost comes through: enter the next epoch, then again."""
    comm, schedule = trainer.comm, trainer.schedule
    while trainer.applied < schedule.last:
        step = schedule.at(trainer.applied + 1)
        mine = comm.assign(step)
        trainer.begin_step(step, mine)
        trainer.prefetch(step, mine)
        comm.set_activity(_comm.VALIDATING if step.kind == _schedule.VALIDATE else _comm.COMPUTING)
        for group in trainer.groups(step, mine):
            trainer.compute_group(step, group)
        comm.set_activity(_comm.REDUCING)
        comm.reduce()
        comm.complete()
        comm.apply_allowed()
        comm.set_activity(_comm.APPLYING)
        trainer.apply(step)


def serve(trainer, reload):
    """From the first epoch to the release. `reload()` makes a new trainer from the bundle, for a start from a snapshot
    or from nothing in an engine that has gone further. Returns (trainer, last event)."""
    comm = trainer.comm
    entry = comm.enter()
    while True:
        if entry.event == _comm.WRITE_FINAL:
            comm.set_activity(_comm.CALLBACK)
            trainer.write_final()
            comm.files_written(trainer.schedule.last)
        elif entry.event != _comm.ENTERED:
            return trainer, entry
        else:
            try:
                trainer = take_over(trainer, entry, reload)
                train_steps(trainer)
                trainer.keep_alone()
                comm.set_activity(_comm.DONE)
                comm.done(trainer.schedule.last, trainer.digest())
            except _comm.RankLost:
                pass
        sys.stdout.flush()
        entry = comm.enter()


def take_over(trainer, entry, reload):
    """Bring the state to the decided step of the epoch just entered; give it to joiners."""
    comm = trainer.comm
    comm.set_activity(_comm.ENTERING)
    if entry.state == _comm.LOAD:
        if trainer.applied is not None:
            trainer = reload(trainer)
        trainer.begin(fresh=not entry.snapshot_path)
        if entry.snapshot_path:
            trainer.load_snapshot(os.fsdecode(entry.snapshot_path))
        if entry.rank == 0:
            trainer.write_numbers()
            trainer.try_onnx()
    elif entry.state == _comm.TAKE:
        trainer.begin(fresh=False)
        trainer.take_state()
    elif entry.apply_result:
        trainer.apply(trainer.schedule.at(entry.decided_step))
    if trainer.applied != entry.decided_step:
        raise RuntimeError("this engine has the state after step %s, the epoch begins after step %d"
                           % (trainer.applied, entry.decided_step))
    if entry.give:
        trainer.give_state()
    return trainer
