"""TMPDIR is a folder of the job's own on each host: what a process that is killed leaves there goes when the job has ended."""

import pathlib
import shutil

import pytest
from conftest import OUT
from helpers import ended, log_of, submit
from mesh import Mesh

LEAVES = """
import os, pathlib, tempfile, time
folder = pathlib.Path(tempfile.gettempdir())
assert str(folder) == os.environ["TMPDIR"]
descriptor, _ = tempfile.mkstemp()
os.write(descriptor, b"x" * 1000)
inner = folder / "inner" / "more"
inner.mkdir(parents=True)
(inner / "file").write_text("left behind")
inner.chmod(0o500)
print(folder, flush=True)
"""
# Deeper than a path may be long, and closed to its owner: an agent that is not root has to open it first.
TRAPS = """
import os
os.chdir(os.environ["TMPDIR"])
os.makedirs("closed/inner")
open("closed/inner/file", "w").close()
os.chmod("closed/inner", 0)
os.chmod("closed", 0o500)
for _ in range(5000):
    os.mkdir("n" * 100)
    os.chdir("n" * 100)
"""
WAITS = "while True:\n    time.sleep(0.1)\n"


@pytest.fixture(scope="module")
def alone():
    with Mesh(OUT / "shoal", slots=1) as mesh:
        mesh.grow(("alpha",))
        yield mesh


def left(folder):
    """What there is of the folder, and of those that have been moved away to be removed."""
    data = pathlib.Path(folder).parents[2]
    return list(pathlib.Path(folder).glob("*")) + list(data.glob("spare/*.tmp"))


def printed(mesh, host, job):
    return log_of(mesh, host, job).strip()


@pytest.mark.parametrize("options", [(), ("--warm",)], ids=["cold", "warm"])
@pytest.mark.parametrize("end", ["of itself", "stopped", "stopped while its agent is down"])
def test_what_a_job_leaves_in_its_temporary_folder_goes_when_it_has_ended(alone, script, end, options):
    mesh, host = alone, alone.hosts[0]
    if options:  # the first one finds no interpreter that waits, and is why there is one for the second
        assert ended(mesh, submit(mesh, host, script("import tempfile\nprint(tempfile.gettempdir())\n"), *options))["state"] == "FINISHED"
    job = submit(mesh, host, script(LEAVES + (WAITS if end != "of itself" else "")), *options)
    folder = mesh.until(lambda: printed(mesh, host, job), 60, "the script has made its files")
    assert job in folder and folder.endswith("/tmp"), folder
    if end == "stopped while its agent is down":
        host.kill()
        host.start()
    if end != "of itself":
        mesh.until(lambda: mesh.shoal("job", "stop", job, "--node", host.url, check=False).returncode == 0, 30, "the job is stopped")
    ended(mesh, job)
    mesh.until(lambda: left(folder) == [], 30, "its temporary files are gone")


def test_however_deep_it_is_it_goes_and_so_does_what_an_earlier_life_of_the_agent_has_left(alone, script):
    mesh, host = alone, alone.hosts[0]
    ended(mesh, submit(mesh, host, script(TRAPS)))
    mesh.until(lambda: list(host.data.glob("spare/*.tmp")) + list(host.data.glob("jobs/*/tmp/*")) == [], 30, "its temporary files are gone")
    for name in ("spare", "gone"):
        (host.data / name / "0.tmp").mkdir(parents=True)  # as if it had been killed meanwhile, twice
        (host.data / name / "0.tmp" / "file").touch()
    host.kill()
    host.start()
    mesh.until(lambda: mesh.knows(host, 1), 30, "its agent is back")
    mesh.until(lambda: not (host.data / "gone").exists() and list(host.data.glob("spare/*.tmp")) == [], 30, "what was left is gone")


CLOSED = """
import os
os.makedirs(os.environ["TMPDIR"] + "/inner")
os.chmod(os.environ["TMPDIR"] + "/inner", 0)
os.chmod(os.environ["TMPDIR"], 0)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv here")
def test_it_goes_from_an_agent_without_capabilities_too(script):
    """As the service is installed: what a folder permits counts for the agent, too."""
    with Mesh(OUT / "shoal", slots=1) as mesh:
        host = mesh.host_class(mesh, "alpha")
        host.within = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        host.prepare()
        mesh.hosts.append(host.start())
        mesh.until(lambda: mesh.knows(host, 1), 30, "it is up")
        job = submit(mesh, host, script(CLOSED))
        assert ended(mesh, job)["state"] == "FINISHED"
        mesh.until(lambda: not (host.data / "jobs" / job / "tmp").exists() and not list(host.data.glob("spare/*.tmp")), 30,
                   "its temporary files are gone")
