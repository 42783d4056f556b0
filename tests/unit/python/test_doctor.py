"""`shoal doctor`: what it says of a good folder, and the memory that the limits imply."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHOAL = pathlib.Path(os.environ.get("SHOAL_OUT", ROOT / "build" / "release")) / "shoal"


def doctor(folder):
    return subprocess.run([str(SHOAL), "doctor", "--data", str(folder)], capture_output=True, text=True, timeout=60)


def test_the_tables_add_up(tmp_path):
    subprocess.run([str(SHOAL), "init", "--data", str(tmp_path / "data")], check=True, capture_output=True, timeout=60)
    done = doctor(tmp_path / "data")
    assert done.returncode == 0, done.stdout + done.stderr
    total = int(re.search(r"^ok +memory: at most (\d+) MiB", done.stdout, re.M).group(1))
    rows = re.findall(r"^ +(\S.*?) +(\d+) x +(\d+) B +(\d+) KiB$", done.stdout, re.M)
    assert len(rows) >= 25
    assert sum(int(count) * int(each) for _, count, each, _ in rows) // (1 << 20) == total
    for what, count, each, kib in rows:
        assert int(count) * int(each) // 1024 == int(kib), what
    named = {what.split(":")[0] for what, _, _, _ in rows}
    assert named >= {"gossip", "raft", "support", "sched", "lead", "slots", "links", "store", "blobs", "api"}


def test_a_folder_that_is_none(tmp_path):
    done = doctor(tmp_path / "none")
    assert done.returncode != 0 and done.stdout.startswith("bad ")
