"""Wall clocks that jump while jobs run: leases, epochs, elections and deadlines are of time that only goes forward, so nothing
of them changes. A shim moves what an agent, its runners and workers see as the time of day."""

import os
import pathlib
import struct
import subprocess
import time
import urllib.error

import pytest
import training
from conftest import OUT
from helpers import ended, groups, submit
from mesh import Host, Mesh
from training import Run

DAY = 86400
JUMPS = (("alpha", 400 * DAY), ("beta", -400 * DAY), ("gamma", 3600), ("alpha", 0), ("beta", 0), ("gamma", 0))


class MovedHost(Host):
    """A host with a wall clock of its own."""

    def __init__(self, owner, name):
        super().__init__(owner, name)
        self.wall = owner.folder / (name + ".wall")
        self.jump(0)
        self.within = ["env", "LD_PRELOAD=%s" % owner.shim, "SHOAL_WALL_FILE=%s" % self.wall]

    def jump(self, seconds):
        with open(self.wall, "r+b" if self.wall.exists() else "wb") as page:
            page.write(struct.pack("<q", seconds))


class MovedMesh(Mesh):
    host_class = MovedHost


@pytest.fixture
def moved_mesh(tmp_path):
    source = pathlib.Path(__file__).with_name("preload") / "wall_clock.c"
    shim = tmp_path / "wall_clock.so"
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", str(shim), str(source)], check=True)
    with MovedMesh(OUT / "shoal") as made:
        made.shim = shim
        made.grow(("alpha", "beta", "gamma"))
        yield made
    Run.end_all()


def terms(mesh, job):
    """The term of the job's group on each host: an election raises it."""
    return {host.name: groups(host)[job]["term"] for host in mesh.hosts}


def refuses(host):
    try:
        host.get("/v1/nodes")
    except urllib.error.HTTPError as error:
        return error.code == 401
    return False


def test_wall_clocks_that_jump_change_nothing_that_runs(moved_mesh, script):
    mesh = moved_mesh
    run = Run(mesh, mesh.hosts[0], script(training.SCRIPT), workers=3, epochs=4, pace=0.02)
    founders = run.gather()
    run.step(3)
    before, epochs = terms(mesh, run.job), {worker: (words["epoch"], words["k"]) for worker, words in run.last.items()}
    for name, seconds in JUMPS:
        run.host(name).jump(seconds)
        if seconds == 400 * DAY:  # what is of the time of day does notice: a token has an end
            mesh.until(lambda: refuses(run.host(name)), 10, "%s takes no token of last year" % name)
        told = time.monotonic()
        facts = run.step(run.facts["steps"] + 2, 30)
        assert facts["state"] == "RUNNING", facts
        assert time.monotonic() - told < 10, "two steps took %.1f s after the clock of %s jumped" % (time.monotonic() - told, name)
    run.look()
    assert {worker: (words["epoch"], words["k"]) for worker, words in run.last.items()} == epochs, "an epoch has ended"
    assert set(run.seen) == founders, "a worker has come"
    assert terms(mesh, run.job) == before, "another leader"
    assert run.finish(90)["state"] == "FINISHED"
    assert mesh.hosts[0].get("/v1/jobs/%s/ledger" % run.job)["exact"] is True
    for host in mesh.hosts:
        assert ended(mesh, submit(mesh, host, script("print('still here')")))["state"] == "FINISHED"
