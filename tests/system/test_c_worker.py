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


SOURCE = ROOT / "docs/demo/c_worker/fit.c"
WIDE = 96  # more workers than 64, on two hosts; a mini-batch each


def compiled(source, folder):
    done = subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include",
                           source, OUT / "fabric/native/libshoal.so", "-o", folder / "fit"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "fit"


def weights_of_one(program, folder):
    """The weights that one process leaves."""
    (folder / "libshoal.so.0").symlink_to(pathlib.Path(OUT).resolve() / "fabric/native/libshoal.so")
    environment = {name: value for name, value in os.environ.items() if name not in ("RESULT_DIR", "DLI_IS_DRIVER")}
    subprocess.run([program], cwd=folder, env=dict(environment, LD_LIBRARY_PATH=str(folder)), check=True, timeout=60)
    return (folder / "weights").read_bytes()


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(SOURCE, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(program, tmp_path_factory):
    weights = weights_of_one(program, tmp_path_factory.mktemp("alone"))
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


def test_a_job_of_more_than_64_workers_loses_one_and_leaves_the_bits_of_one(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (tmp_path / "fit.c").write_text(SOURCE.read_text().replace("INTERVAL = 8, EPOCHS = 12", "INTERVAL = %d, EPOCHS = 6" % WIDE))
    want = weights_of_one(compiled(tmp_path / "fit.c", model), tmp_path)
    with Mesh(OUT / "shoal", slots=64) as mesh:
        alpha, beta = mesh.grow(("alpha", "beta"))
        job = job_id(json.dumps(mesh.cli(beta, "job", "run", "--framework", "shoalC", "--model-main", "fit", "--model-dir", model,
                                         "--workers", str(WIDE), "--", "100000")))

        def training():
            assert not mesh.job(job, *mesh.hosts)["hasEnded"]
            return [pid for _, pid, _, page in mesh.workers(job).values() if page["applied"] > 0]
        mesh.until(lambda: len(training()) == WIDE, 60, "all of them train")
        os.kill(training()[-1], signal.SIGKILL)
        assert ended(mesh, job, 120)["state"] == "FINISHED"
        assert result_of(mesh, alpha, job, tmp_path)["model/weights"] == want
        ledger = alpha.get("/v1/jobs/%s/ledger" % job)
        assert ledger["exact"] and ledger["records"] == ledger["records_wanted"] == 18, ledger
        assert len(ledger["shares"]) > 64, ledger
