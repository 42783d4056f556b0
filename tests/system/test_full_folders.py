"""A disk of its own for one part of a host's data folder, which is full: jobs go to other hosts, nobody waits for ever, and the
host takes work again when there is room. `make test T=system/full_folders`"""

import contextlib
import os
import subprocess

import pytest
from helpers import ended, submit
from mesh import Failed, Host

SCRIPT = """
import os
print("x" * 100000)
with open(os.environ["RESULT_DIR"] + "/model/weights", "wb") as file:
    file.write(os.urandom(300000))
"""


@pytest.fixture
def mounted():
    """mounted(folder, mib): a tmpfs, with what the folder had in it."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    made = []

    def mount(folder, mib):
        folder.mkdir(exist_ok=True)
        before = [(path, path.read_bytes()) for path in folder.iterdir() if path.is_file()]
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%dm,mode=0700" % mib, "none", str(folder)], capture_output=True)
        if done.returncode != 0:
            pytest.skip("no mount here: %s" % done.stderr)
        made.append(folder)
        for path, content in before:
            path.write_bytes(content)

    yield mount
    for folder in made:
        subprocess.run(["umount", "-l", str(folder)])


def fill(folder):
    path = folder / "filling"
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return path


@pytest.mark.parametrize("part, mib", [("results", 8), ("blobs", 2), ("jobs", 2)] +  # 11 results of 300 kB lie there at the end
                         [pytest.param(part, mib, marks=pytest.mark.soak) for part, mib in (("spare", 2), ("store", 24), ("index", 8), ("cache", 8))])
def test_one_folder_is_full(new_mesh, mounted, script, part, mib):
    mesh = new_mesh(("alpha",))
    full = Host(mesh, "beta")
    full.prepare(mesh.hosts[0])
    mounted(full.data / part, mib)
    mesh.hosts.append(full)
    full.start()
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 2), 30, "%s knows 2 hosts" % host.name)
    folder = script(SCRIPT)
    filling = fill(full.data / part)
    taken, refused = [], []
    for _ in range(4):
        for host in mesh.hosts:
            try:
                taken.append(submit(mesh, host, folder))
            except Failed as why:
                refused.append(str(why))
    assert all("space" in why or "full" in why or "unreachable" in why for why in refused), refused
    assert len(taken) >= 4, "the other host takes them: %s" % refused
    for job in taken:
        facts = ended(mesh, job, hosts=mesh.hosts[:1])
        assert facts["state"] == "FINISHED" or "space" in facts["detail"] or "full" in facts["detail"], facts
    filling.unlink()
    if full.process.poll() is not None:
        assert "space" in full.log.read_text(), full.log.read_text()[-1000:]
        full.start()
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 2), 30, "%s knows 2 hosts again" % host.name)
    assert [ended(mesh, submit(mesh, full, folder))["state"] for _ in range(3)] == ["FINISHED"] * 3
    for host in mesh.hosts:  # a worker that could not be started has not kept its slot
        mesh.until(lambda: all(node["slotsFree"] == node["slots"] for node in host.get("/v1/nodes")), 10,
                   "all slots are free: %s" % host.get("/v1/nodes"))
