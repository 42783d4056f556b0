"""One engine's part in the steps of a train() call of TF.Keras: _trainer.Trainer with Keras's model, optimizer and files."""

import contextlib
import io
import json
import os
import shutil

import numpy as np

from pyedt import _keras, _loader, _onnx, _order, _trainer


class Trainer(_trainer.Trainer):
    def _make(self, parts, datasets, device):
        header = self.header
        self._model, self._loss = parts["model"], parts["loss"]
        self._given_optimizer = self._optimizer = parts["optimizer"]
        self._loader = _loader.Loader(datasets, parts.get("collate"), lambda seed: self._chance.seed(seed),
                                      header["loader_threads"])
        train_set = datasets[0].samples
        collate = parts.get("collate") or datasets[0].collate
        _keras.build(self._model, self._optimizer, self._loss, list(parts.get("metrics") or ()),
                     collate(_loader.Handout(train_set, collate).get_many(list(range(min(len(train_set), header["batch_size"]))))))
        self._chance = _keras.Chance([*datasets, *(value for name, value in sorted(parts.items()) if name in (
            "collate", "callbacks", "datasets"))], self._model)
        order = _keras.BlockOrder if getattr(train_set, "blocks", False) else _order.Order
        self._order = order(self.job_seed, len(train_set), header["batch_size"])
        self.buffers = _keras.Buffers(self._model.non_trainable_variables)
        self.gradients = _keras.Gradients(self._model, self._optimizer)
        self.carrier = _keras.Carrier(self._model, self._optimizer, self.buffers)
        self._computation = _keras.Computation(self._model, self.gradients, header)

    def _training_mode(self):
        pass

    @contextlib.contextmanager
    def _evaluating(self):
        yield

    def unbind(self):
        self._loader.close()

    def _compute_train(self, step, v):
        seed = self._step_seed(step.epoch, step.number, v)
        batch, handed = self._loader.get(0, (step.number, v), seed, self._ids(step, v))
        self._computation.prepare(batch)
        self.buffers.restore()
        self._chance.seed(seed)
        values = self._computation.train(batch)
        touched = self.gradients.collect()
        if v == 0:
            self.buffers.collect()
        low, high = self.comm.sample_sums(self.job_seed, handed)
        self.comm.publish(v, len(handed), low, high, values, touched)

    # ---- files ----

    def _save(self, name):
        folder = os.path.join(_trainer.result_dir(), "model", "train")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, name + ".h5")
        temporary = "%s.%d.tmp" % (path, os.getpid())
        try:
            self._model.save(temporary, save_format="h5")
        except NotImplementedError:  # a model that is a class of the script's: its weights
            self._model.save_weights(temporary, save_format="h5")
        os.rename(temporary, path)
        self._save_optimizer(os.path.join(folder, name + "_optimizer_state.npz"))
        if name.endswith("_final"):
            self._save_directory(os.path.join(folder, name))

    def _save_onnx(self, path):
        _onnx.write_keras(path, self._model)

    def _save_optimizer(self, path):
        out = io.BytesIO()
        shape = getattr(self._model, "_build_input_shape", None)
        np.savez(out, shape=np.array(json.dumps(shape, default=lambda value: list(value))),
                 rate=np.array(_keras.rate_of(self._optimizer) or 0.0),
                 **{"value_%d" % i: v.numpy() for i, v in enumerate(_keras.optimizer_values(self._optimizer))})
        temporary = "%s.%d.tmp" % (path, os.getpid())
        with open(temporary, "wb") as target:
            target.write(out.getbuffer())
            target.flush()
            os.fsync(target.fileno())
        os.rename(temporary, path)

    def _save_directory(self, path):
        """As a SavedModel."""
        temporary = _trainer.temporary_folder(path)
        self._model.save(temporary, save_format="tf")
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
