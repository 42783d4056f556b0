"""The tutorial's blocks, run as they stand in docs/tutorial/README.md, by a shell with a network of its own: its ports are
free there. `make test` leaves out the lost host, which other tests lose often enough, and trains for a tenth of the time."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release"))
PAGE = (ROOT / "docs" / "tutorial" / "README.md").read_text()
ALONE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]  # what it leaves behind ends with it


def blocks(text):
    return re.findall(r"^```sh\n(.*?)^```$", text, flags=re.S | re.M)


def run(text, home, seconds):
    """What it printed."""
    script = "\n".join(["set -e", "ip link set lo up", *blocks(text)])
    env = {"HOME": home, "PATH": "%s:%s:/usr/sbin:/usr/bin:/sbin:/bin" % (OUT, pathlib.Path(sys.executable).parent), "LANG": "C.UTF-8"}
    process = subprocess.Popen([*ALONE, "bash", "-c", script], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[0] + "\n(ran longer than %d s)" % seconds
    logs = "\n".join("---- %s\n%s" % (log, log.read_text()[-2000:]) for log in pathlib.Path(home).glob("shoal-tutorial/*.log"))
    assert process.returncode == 0, said[-4000:] + logs
    return said


@pytest.fixture
def home():
    if os.geteuid() != 0 or subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True).returncode != 0:
        pytest.skip("needs root, unshare and ip, for a network of its own")
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp") as folder:  # a data folder's path is short
        yield folder


def checked(said):
    assert "hello from shoal-" in said and "model/three.pt" in said
    assert re.search(r"^exact +yes: every sample", said, flags=re.M) and "4.weight (2, 64)" in said
    assert len(re.findall(r"^\w+ +alive +127\.0\.0\.1", said, flags=re.M)) >= 3


def test_the_tutorial_but_for_the_lost_host(home):
    shorter = PAGE.replace("EPOCHS, BATCH, ENGINES = 150, 32, 8", "EPOCHS, BATCH, ENGINES = 10, 32, 8")
    assert shorter != PAGE
    before, _, rest = shorter.partition("## 4. ")
    checked(run(before + "## 5. " + rest.partition("## 5. ")[2], home, 150))


@pytest.mark.soak
def test_the_tutorial(home):
    said = run(PAGE, home, 500)
    checked(said)
    assert re.search(r"^workers +4$", said, flags=re.M)  # of six: two went with their host
    assert re.search(r" dead +127\.0\.0\.1", said) and "Re-attached" in said


def test_every_block_is_run():
    """A fence that is opened otherwise would be left out silently."""
    fences = re.findall(r"^```(\w*)$", PAGE, flags=re.M)
    assert fences[0::2] == ["sh"] * len(blocks(PAGE)) and set(fences[1::2]) == {""}
