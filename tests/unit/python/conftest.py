"""The Python packages from the source tree; a result directory per test; one thread, so that sums are those of engines."""

import os
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = os.path.join(ROOT, "collective", "python")
for path in (HERE, os.path.join(PACKAGES, "tools"), PACKAGES):
    if path not in sys.path:
        sys.path.insert(0, path)
os.environ.setdefault("FABRIC_BACKEND", "pytorch")
os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: fixtures of a module run before those of a test
os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGES, os.path.join(PACKAGES, "tools")])


@pytest.fixture(autouse=True)
def clean_job(tmp_path, monkeypatch):
    import torch

    for name in ("LOG_DIR", "SUBID", "RESUME_WEIGHT_PATH", "SHOAL_AGENT_SOCKET", "WMLA_NWORKER", "WMLA_WORKER_NDEVICE",
                 "EXEC_TYPE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FABRIC_BACKEND", "pytorch")
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "result"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)


@pytest.fixture
def alone(monkeypatch):
    """train() outside a job, on the reference communicator."""
    import reference_comm
    from pyedt import _comm

    class Solo(reference_comm.ReferenceComm):
        def __init__(self, *arguments, solo=False):
            assert solo
            super().__init__()

    monkeypatch.setattr(_comm, "Communicator", Solo)
