"""RESULT_DIR is the same folder on every host of a job: what a script removes or renames there goes away everywhere."""

import pytest
from conftest import OUT
from helpers import ended, submit
from mesh import Mesh

SCRIPT = """
import os, time

os.chdir(os.environ["RESULT_DIR"])
os.makedirs("model/steps", exist_ok=True)

def write(name, text):
    with open(name, "w") as file:
        file.write(text)

def until(number):
    while not os.path.exists(os.environ["GO"] + str(number)):
        time.sleep(0.02)

write(os.environ["GO"] + "where", os.getcwd())
write("model/last.new", "1" * 600000)
write("model/steps/one", "one")
write("model/kept", "kept")
until(1)
os.rename("model/last.new", "model/last")
os.remove("model/steps/one")
until(2)
write("model/steps/one", "two")
until(3)
for number in range(40):
    write("model/steps/%d" % number, str(number))
    time.sleep(0.02)
    os.remove("model/steps/%d" % number)
os.remove("model/steps/one")
"""


@pytest.fixture
def mesh():
    with Mesh(OUT / "shoal", slots=1) as three:
        three.grow(("alpha", "beta", "gamma"))
        yield three


def files(host, job):
    """{path: content} of what lies below model/ on a host."""
    found = {}
    for root in host.data.glob("results/*/batchworkdir/%s/model" % job):
        for path in root.rglob("*"):
            try:
                if path.is_file() and path.suffix != ".part":
                    found[str(path.relative_to(root))] = path.read_text()
            except FileNotFoundError:
                pass  # it goes away in this moment
    return found


def test_what_a_script_removes_or_renames_goes_away_on_every_host(mesh, script, tmp_path):
    go = tmp_path / "go"
    job = submit(mesh, mesh.hosts[0], script(SCRIPT), "--env", "GO=%s" % go)

    def everywhere(wanted, hosts=mesh.hosts):
        mesh.until(lambda: all(files(host, job) == wanted for host in hosts), 60, "%s on every host" % sorted(wanted))

    everywhere({"last.new": "1" * 600000, "steps/one": "one", "kept": "kept"})
    runs = next(host for host in mesh.hosts if (tmp_path / "gowhere").read_text().startswith(str(host.data)))
    others = [host for host in mesh.hosts if host is not runs]
    others[0].kill()  # it hears of it when it is back
    (tmp_path / "go1").touch()
    everywhere({"last": "1" * 600000, "kept": "kept"}, [runs, others[1]])
    assert "last.new" in files(others[0], job)
    others[0].start()
    everywhere({"last": "1" * 600000, "kept": "kept"})
    (tmp_path / "go2").touch()
    everywhere({"last": "1" * 600000, "kept": "kept", "steps/one": "two"})
    (tmp_path / "go3").touch()
    assert ended(mesh, job)["state"] == "FINISHED"
    everywhere({"last": "1" * 600000, "kept": "kept"})
