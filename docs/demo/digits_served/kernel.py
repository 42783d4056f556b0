"""A kernel for the digits: 64 pixels as JSON in, the ten logits out. As WMLA's kernels are written; main.py is the training script."""

import importlib.util
import json
import os
import sys

import redhareapiversion  # noqa: F401
import torch
from redhareapi import Kernel


class Digits(Kernel):
    def on_kernel_start(self, kernel_context):
        folder = json.loads(kernel_context.get_model_description())["model_path"]
        sys.modules.setdefault("fabric_model", type(sys)("fabric_model"))  # the script trains with it, and is only read here
        sys.modules["fabric_model"].FabricModel = None
        spec = importlib.util.spec_from_file_location("digits", os.path.join(folder, "main.py"))
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        torch.set_num_threads(1)
        self.model = script.network()
        self.model.load_state_dict(torch.load(os.path.join(folder, "digits.pth"), map_location="cpu", weights_only=True))
        self.model.eval()

    def on_task_invoke(self, task_context):
        tasks = []
        while task_context is not None:
            tasks.append(task_context)
            task_context = task_context.next()
        images = torch.tensor([json.loads(task.get_input_data()) for task in tasks]).reshape(-1, 1, 8, 8)
        with torch.no_grad():
            for task, logits in zip(tasks, self.model(images).tolist()):
                task.set_output_data(json.dumps(logits))


if __name__ == "__main__":
    Digits().run()
