"""What a new user meets: hosts that are not set up yet, and the README's words, literally."""

import venv

import training
from conftest import OUT
from mesh import Mesh


def test_a_host_without_torch_gets_no_work(tmp_path):
    """It takes the submit and leads the job; driver and workers are elsewhere."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "main.py").write_text(training.SCRIPT)
    with Mesh(OUT / "shoal") as mesh:
        first = mesh.add("alpha", "--python", bare / "bin" / "python")
        second = mesh.add("beta", seed=first)
        mesh.until(lambda: mesh.knows(first, 1), 30, "a host with slots")
        assert "offers no slots" in first.log.read_text()
        run = training.Run(mesh, first, folder, workers=2, epochs=1)
        run.gather()
        workers = mesh.workers(run.job)
        assert {host for host, _, _, _ in workers.values()} == {second}
        assert not first.runners()
        assert run.finish(60)["state"] == "FINISHED"
    training.Run.started.clear()
