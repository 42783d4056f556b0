"""What a deployed kernel may try against its host: frames without end, frames that never end, answers that nobody asked for,
and names that are none. Another service of the host is answered all the time, and no turn of its loop is long."""

import pathlib

import pytest
from mesh import Mesh
from system_conftest import OUT
from test_all_at_once import ask, metric

STAND_IN = pathlib.Path(__file__).parent.parent / "system/kernel_stand_in.py"
TURN_S_MAX = 0.05

HOSTILE = '''
import os, socket, struct, sys
import msgpack

def frame(*message):
    packed = msgpack.packb(list(message), use_bin_type=True)
    return struct.pack("<I", len(packed)) + packed

READY = frame("ready", {"name": "\\x1b[2J\\r\\nX: y", "version": "v" * 5000, "platform": "p", "inputs": [[["x"]]] * 9, "outputs": [], "batch": 2})
WAYS = {
    "ready again and again": lambda: READY * 2000,
    "parts of nothing": lambda: frame("part", 1, b"") * 20000,
    "an answer of nothing": lambda: frame("done", 77, 200, {}, b""),
    "a frame that never ends": lambda: struct.pack("<I", 60 << 20) + b"x" * (1 << 20),
    "a frame above the bound": lambda: struct.pack("<I", 0xffffffff),
    "an empty frame": lambda: struct.pack("<I", 0),
    "lists in lists": lambda: struct.pack("<I", 100000) + b"\\x91" * 100000,
    "a map that lies": lambda: struct.pack("<I", 12) + b"\\x92\\xa5ready\\xdf\\xff\\xff\\xff\\xff",
    "noise": lambda: os.urandom(1 << 16),
}
way, path = sys.argv[1].replace("_", " "), os.environ["SHOAL_KERNEL_SOCKET"]
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(1)
while True:
    link = listener.accept()[0]
    try:
        link.sendall(READY)
        if way == "comes and goes":
            link.close()
            open(sys.argv[2], "w").close()
            continue
        data = WAYS[way]()
        for turn in range(2000):
            link.sendall(data)
            open(sys.argv[2], "w").close()
        link.recv(1)
    except OSError:
        open(sys.argv[2], "w").close()
'''


@pytest.fixture(scope="module")
def mesh():
    with Mesh(OUT / "shoal", slots=4) as shared:
        shared.grow(("alpha",))
        yield shared


def infer(mesh, name, body, **headers):
    """(status, body) of a request for a model."""
    return ask(mesh, mesh.hosts[0], "POST", "/v2/models/%s/infer" % name, body, **headers)


WAYS = ["ready again and again", "parts of nothing", "an answer of nothing", "a frame that never ends", "a frame above the bound",
        "an empty frame", "lists in lists", "a map that lies", "noise", "comes and goes"]


@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_kernel_holds_up_nobody(mesh, tmp_path, way):
    host = mesh.hosts[0]
    for name, text in (("good", STAND_IN.read_text()), ("bad", HOSTILE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.py").write_text(text)
    services = mesh.cli(host, "service", "list")["services"]
    if not services:
        mesh.cli(host, "service", "deploy", "good", "--package", tmp_path / "good", "--", mesh.python, "kernel.py", "4")
        mesh.until(lambda: mesh.cli(host, "service", "show", "good")["ready"] == 1, 60, "the good one is ready")
    mesh.cli(host, "service", "deploy", "bad", "--package", tmp_path / "bad", "--", mesh.python, "kernel.py", way.replace(" ", "_"),
             tmp_path / "attacks")
    pid = host.process.pid
    mesh.until((tmp_path / "attacks").exists, 60, "the bad one attacks")
    for number in range(40):
        assert infer(mesh, "good", b"%d" % number) == (200, b"%d" % number)
    shown = mesh.shoal("service", "show", "bad", "--node", host.url).stdout
    assert not {char for char in shown if ord(char) < 32 and char not in "\n\t"}
    mesh.cli(host, "service", "delete", "bad")
    mesh.until(lambda: infer(mesh, "bad", b"")[0] == 404, 60, "the bad one is gone")
    longest = metric(mesh, host, "shoal_loop_turn_cpu_longest_seconds")
    print("%s: the longest turn computed for %.1f ms" % (way, 1000 * longest))
    assert longest < TURN_S_MAX, "a turn computed for %.0f ms" % (1000 * longest)
    assert host.process.poll() is None and host.process.pid == pid, host.log.read_text()[-2000:]
