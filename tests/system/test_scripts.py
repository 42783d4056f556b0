"""Scripts as users write them (scripts/): each trains to the same bits with one worker and with three on two hosts, or is
refused with what to write instead. A job runs half of them, one train() after the other: a job has 16 calls at most."""

import json
import pathlib

import pytest
from conftest import OUT
from helpers import ended, log_of, result_of, submit
from mesh import Mesh

pytest.importorskip("torch")
SCRIPTS = pathlib.Path(__file__).resolve().parent / "scripts"
KINDS = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "main")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """{workers: {script: digest of what it trained, or how it failed}}."""
    found = {}
    with Mesh(OUT / "shoal") as mesh:
        hosts = mesh.grow(("alpha", "beta"))

        def start(workers, host, half):
            found.setdefault(workers, {})
            return workers, host, submit(mesh, host, SCRIPTS, "--workers", workers, framework="edtPyTorch", script=KINDS[half::2])

        def collect(workers, host, job):
            facts = ended(mesh, job, 240)
            log = log_of(mesh, host, job) + log_of(mesh, host, job, "--which", "err")
            assert facts["state"] == "FINISHED", "%s\n%s" % (facts["detail"], log[-4000:])
            files = result_of(mesh, host, job, tmp_path_factory.mktemp("result"))
            found[workers].update(json.loads(files["model/kinds.json"]))
            print(log[-20000:])

        collect(*start(3, hosts[0], 0))
        collect(*start(3, hosts[1], 1))
        for job in [start(1, host, half) for half, host in enumerate(hosts)]:
            collect(*job)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_trains_to_the_same_bits_with_one_worker_and_with_three(outcomes, kind):
    assert not outcomes[1][kind].startswith("failed"), outcomes[1][kind]
    assert outcomes[3][kind] == outcomes[1][kind]
