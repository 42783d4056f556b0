"""Accuracy of a trained digits model on the held-out digits, in a process that has trained nothing.

    python docs/demo/evaluate.py model_epoch_final.pth"""

import importlib.util
import os
import sys

import torch


def digits_script():
    """The demo's script as a module; its `from fabric_model import FabricModel` needs no Shoal here."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.modules.setdefault("fabric_model", type(sys)("fabric_model"))
    sys.modules["fabric_model"].FabricModel = None
    spec = importlib.util.spec_from_file_location("digits", os.path.join(here, "digits", "main.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: evaluate.py model_epoch_final.pth")
    script = digits_script()
    model = script.network()
    model.load_state_dict(torch.load(sys.argv[1], map_location="cpu", weights_only=True))
    model.eval()
    images, labels, held_out = script.digits()
    with torch.no_grad():
        right = (model(images[held_out]).argmax(dim=1) == labels[held_out]).sum().item()
    count = int(held_out.sum())
    print("%d of %d held-out digits right, accuracy %.4f" % (right, count, right / count))


if __name__ == "__main__":
    main()
