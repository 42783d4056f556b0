"""The example of docs/how-to/c-workers.md, compiled as it says: alone, and as an elastic job one of whose workers is killed, it
leaves the same weights, and the ledger is exact."""

import json
import os
import pathlib
import signal
import subprocess

import pytest
from conftest import OUT
from helpers import ended, log_of, result_of
from mesh import ROOT, Mesh, job_id


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    native = OUT / "fabric/native"
    done = subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include",
                           ROOT / "docs/demo/c_worker/fit.c", native / "libshoal.so", "-o", folder / "fit"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "fit"


@pytest.fixture(scope="module")
def alone(program, tmp_path_factory):
    """The weights that one process leaves."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "libshoal.so.0").symlink_to(pathlib.Path(OUT).resolve() / "fabric/native/libshoal.so")
    environment = {name: value for name, value in os.environ.items() if name not in ("RESULT_DIR", "DLI_IS_DRIVER")}
    subprocess.run([program], cwd=folder, env=dict(environment, LD_LIBRARY_PATH=str(folder)), check=True, timeout=60)
    weights = (folder / "weights").read_bytes()
    assert [round(float.fromhex(line)) for line in weights.decode().split()] == list(range(1, 9))
    return weights


@pytest.fixture(scope="module")
def mesh():
    with Mesh(OUT / "shoal") as own:
        own.grow(("alpha", "beta"))
        yield own


def test_workers_in_c_join_die_and_leave_the_bits_of_one(mesh, program, alone, tmp_path):
    alpha, beta = mesh.hosts
    job = job_id(json.dumps(mesh.cli(beta, "job", "run", "--framework", "shoalC", "--model-main", "fit", "--model-dir", program.parent,
                                     "--workers", "3", "--", "10000")))

    def steps():
        facts = mesh.job(job, *mesh.hosts)
        assert not facts["hasEnded"], facts
        return facts["steps"]

    mesh.until(lambda: steps() >= 20 and sum(page["applied"] > 0 for *_, page in mesh.workers(job).values()) >= 2, 60, "it trains")
    _, pid, *_ = min(mesh.workers(job).items())[1]
    os.kill(pid, signal.SIGKILL)
    assert ended(mesh, job, 120)["state"] == "FINISHED"
    assert result_of(mesh, alpha, job, tmp_path)["model/weights"] == alone
    assert log_of(mesh, alpha, job).splitlines()[-1] == "trained: 384 steps"
    ledger = alpha.get("/v1/jobs/%s/ledger" % job)
    assert ledger["exact"] and ledger["records"] == ledger["records_wanted"] == 384 and len(ledger["shares"]) >= 2, ledger

    def ledgers_open():
        return [fd for host in mesh.hosts for fd in pathlib.Path("/proc/%d/fd" % host.process.pid).iterdir()
                if fd.exists() and os.readlink(fd).endswith("/ledger")]
    mesh.until(lambda: not ledgers_open(), 15, "an ended job's ledger is closed, before the archive too")
    for host in mesh.hosts:
        assert host.get("/v1/jobs/%s/ledger" % job) == ledger
    assert not ledgers_open()
