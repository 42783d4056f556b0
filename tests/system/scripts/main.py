"""Runs the scripts of this folder one after the other, each as the main program, in one job: one start for all of them. What
each has trained, or how it has failed, is in kinds.json."""
import hashlib
import json
import os
import pathlib
import runpy
import sys
import time
import traceback

import torch


def digest(model):
    """Every bit of what a script has trained."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


here = pathlib.Path(__file__).resolve().parent
names = sys.argv[1:] or sorted(path.stem for path in here.glob("*.py") if path.stem not in ("main", "edtcallback"))
outcomes = {}
for name in names:
    print("---- %s" % name, flush=True)
    started = time.monotonic()
    sys.argv[:] = [str(here / (name + ".py"))]  # of its own: parsers of scripts are strict
    try:
        outcomes[name] = digest(runpy.run_path(str(here / (name + ".py")), run_name="__main__")["model"])
    except BaseException as error:
        traceback.print_exc()
        outcomes[name] = "failed: %s: %s" % (type(error).__name__, str(error)[:1000])
    print("---- %s: %s, %.1f s" % (name, outcomes[name], time.monotonic() - started), flush=True)
folder = pathlib.Path(os.environ.get("RESULT_DIR", "result")) / "model"
folder.mkdir(parents=True, exist_ok=True)
(folder / "kinds.json").write_text(json.dumps(outcomes, indent=1))
