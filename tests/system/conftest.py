"""System tests: real agents, runners and workers on loopback, one data folder each."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "docs" / "demo"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from mesh import Mesh  # noqa: E402

collect_ignore = ["scripts"]  # users' scripts, whatever their names

OUT = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release"))


@pytest.fixture
def new_mesh():
    """Makes meshes that end with the test."""
    made = []

    def make(names=("alpha", "beta", "gamma"), **options):
        mesh = Mesh(OUT / "shoal", **options)
        made.append(mesh)
        mesh.grow(names)
        return mesh

    yield make
    for mesh in made:
        for host in mesh.hosts:  # pytest shows it with a failure
            print("---- log of %s\n%s" % (host.name, host.log.read_text()[-4000:]))
        mesh.__exit__(None, None, None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure on the shared mesh shows what its agents have logged last."""
    report = (yield).get_result()
    shared = getattr(item, "funcargs", {}).get("mesh")
    if report.when == "call" and report.failed and shared is not None:
        for host in getattr(shared, "hosts", ()):
            report.sections.append(("log of %s" % host.name, host.log.read_text()[-4000:]))


@pytest.fixture(scope="module")
def mesh():
    """Three hosts that a module's tests share; none of them kills one."""
    with Mesh(OUT / "shoal") as shared:
        shared.grow(("alpha", "beta", "gamma"))
        yield shared


@pytest.fixture
def script(tmp_path):
    """script(text) writes a model directory with that main.py."""

    def write(text, **files):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "main.py").write_text(text)
        for name, content in files.items():
            (folder / name).write_text(content)
        return folder

    return write
