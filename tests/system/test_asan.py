"""Agents built with the address and undefined-behaviour sanitizers (make FLAVOUR=asan all) run jobs, die, come back, stop
and delete; none of them reports anything. Their workers are Python, which loads the release library."""

import pathlib

import pytest
from conftest import ROOT
from helpers import ended, log_of, submit
from mesh import Mesh
from training import SCRIPT, Run

ASAN = ROOT / "build" / "asan" / "shoal"
FABRIC = ROOT / "build" / "release" / "fabric"
REPORT = ("AddressSanitizer", "runtime error:", "LeakSanitizer")


@pytest.fixture
def asan_mesh(monkeypatch):
    if not ASAN.exists():
        pytest.skip("no %s: make FLAVOUR=asan all" % ASAN)
    # An agent ends by _exit or by a signal: what it still holds is no leak. The unit tests count leaks.
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
    monkeypatch.setenv("UBSAN_OPTIONS", "print_stacktrace=1")
    with Mesh(ASAN, agent_options=("--libs", FABRIC)) as mesh:
        mesh.grow(("alpha", "beta", "gamma"))
        yield mesh


def reports(mesh):
    """Every file below the mesh's folder that holds a sanitizer's words: agents' logs, runners' and workers'."""
    found = []
    for path in pathlib.Path(mesh.folder).rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20 and path.suffix in (".log", ".err", ".out", ""):
            text = path.read_bytes().decode(errors="replace")
            found += ["%s: %s" % (path, line) for line in text.splitlines() if any(word in line for word in REPORT)]
    return found


def test_agents_under_sanitizers_report_nothing(asan_mesh, script):
    mesh = asan_mesh
    plain = submit(mesh, mesh.hosts[1], script("print('clean water')"))
    facts = ended(mesh, plain, 60)
    assert facts["state"] == "FINISHED", facts["detail"]
    mesh.until(lambda: log_of(mesh, mesh.hosts[2], plain) == "clean water\n", 10, "its log")

    pytest.importorskip("torch")
    run = Run(mesh, mesh.hosts[0], script(SCRIPT), workers=4, epochs=2, pace=0.004)
    mesh.until(lambda: (mesh.job(run.job) or {}).get("steps", 0) > 2, 90, "the elastic job trains")
    mesh.hosts[2].kill()
    mesh.hosts[2].start()
    mesh.until(lambda: mesh.knows(mesh.hosts[2], 3), 30, "the killed agent is back")
    run.pace(0)
    facts = ended(mesh, run.job, 120)
    assert facts["state"] == "FINISHED", facts["detail"]

    waiting = submit(mesh, mesh.hosts[2], script("import time\nwhile True: time.sleep(1)"))
    mesh.until(lambda: (mesh.job(waiting) or {}).get("state") == "RUNNING", 30, "it runs")
    mesh.shoal("job", "stop", waiting, "--node", mesh.hosts[0].url)
    assert ended(mesh, waiting, 60)["state"] == "KILLED"
    for job in (plain, run.job, waiting):
        mesh.shoal("job", "delete", job, "--node", mesh.hosts[1].url)
    for host in mesh.hosts:
        host.process.terminate()
    for host in mesh.hosts:
        assert host.process.wait(30) == 0, host.log.read_text()[-3000:]
    assert not reports(mesh)
