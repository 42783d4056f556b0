#!/usr/bin/env python3
"""All checks and figures of a card, on the machine that this stands on: make gpu.

    tests/gpu/run.py [--seconds 900] [--out FOLDER] [--nccl FILE] [PART...]       card native training serving samples

One line a check, as each program prints it, the card's name first; what they say besides goes to FOLDER (default: $OUT, else a new one in
/tmp). On a machine without a card it says so, and its exit status is 2; else it is 1 if a check failed."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PARTS = {  # share of the time
    "card": 0.14, "native": 0.22, "training": 0.24, "serving": 0.12, "samples": 0.28}


def card():
    """Its name; empty: none, or no driver."""
    code = ("import ctypes, os, sys; c = ctypes.CDLL(os.environ.get('SHOAL_CUDA') or 'libcuda.so.1'); d = ctypes.c_int(); n = ctypes.create_string_buffer(99); "
            "sys.exit(c.cuInit(0) or c.cuDeviceGet(ctypes.byref(d), 0) or c.cuDeviceGetName(n, 99, d) or print(n.value.decode()))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "", done.stderr.strip().splitlines()[-1:] or ["cuInit: exit status %d" % done.returncode]


def command(part, words, out, seconds):
    own = {"card": ["--seconds", str(seconds), *(["--nccl", words.nccl] if words.nccl else [])],
           "native": ["--seconds", str(seconds), "--logs", str(out), *(["--nccl", words.nccl] if words.nccl else [])]}
    return [sys.executable, str(HERE / (part + ".py")), *own.get(part, ["--seconds", str(seconds), "--device", "cuda", "--out", str(out)])]


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seconds", type=float, default=900)
    words.add_argument("--out", default=os.environ.get("OUT"))
    words.add_argument("--nccl", default="")
    words.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []])
    words = words.parse_args()
    name, why = card()
    if not name:
        print("no card here, so nothing was checked: %s" % why[0])
        sys.exit(2)
    out = pathlib.Path(words.out or tempfile.mkdtemp(prefix="shoal-gpu-"))
    parts = words.parts or list(PARTS)
    whole, end, failed = sum(PARTS[part] for part in parts), time.monotonic() + words.seconds, []
    print("---- %s; what the programs say is in %s" % (name, out), flush=True)
    for part in parts:
        (out / part).mkdir(parents=True, exist_ok=True)
        seconds = max(20.0, min(words.seconds * PARTS[part] / whole, end - time.monotonic()))
        print("---- %s" % part, flush=True)
        try:
            rc = subprocess.run(command(part, words, out / part, seconds), timeout=seconds + 60, check=False).returncode
        except subprocess.TimeoutExpired:
            print("%s did not end" % part)
            rc = 1
        failed += [part] if rc else []
    print("---- %s: %s" % (name, "failed: " + " ".join(failed) if failed else "all parts are well"))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
