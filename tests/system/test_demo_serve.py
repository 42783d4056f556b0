"""`make demo-serve`, a short form of it: it checks itself, each answer and what was lost."""

import pathlib
import subprocess
import sys

from conftest import OUT

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_a_trained_model_is_served_while_a_host_dies():
    done = subprocess.run([sys.executable, ROOT / "docs" / "demo" / "serve.py", "--binary", OUT / "shoal", "--requests", "300", "--epochs", "1"],
                          capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each answer is the model's own" in done.stdout and "three kernels again" in done.stdout
