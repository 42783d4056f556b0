"""What runs the tests loses none of them: each file is in one part of the lanes, and parts of one file are all of it."""

import collections
import importlib.util
import io
import os
import pathlib
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def run():
    spec = importlib.util.spec_from_file_location("tests_run", ROOT / "tests" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(part):
    path, _, without = part
    return [path] if path.is_file() else sorted(set(path.glob("test_*.py")) - set(without))


@pytest.mark.parametrize("kind", ["", "python", "sim", "hostile", "system"])
def test_every_file_is_in_one_part_or_its_parts_are_all_of_it(run, kind):
    folders = {"python": "unit/python", "sim": "sim", "hostile": "hostile", "system": "system"}
    wanted = {path for name, folder in folders.items() if kind in ("", name) for path in (ROOT / "tests" / folder).glob("test_*.py")}
    words = collections.defaultdict(list)
    for part in run.parts_of(kind, ""):
        for path in files_of(part):
            words[path].append(part[1])
    assert set(words) == wanted
    for path, rows in words.items():
        whole = rows == [""] or (len(rows) == 2 and rows[1] == "not (%s)" % rows[0])
        assert whole, "%s runs as %s, which is not all of it, or some of it twice" % (path.name, rows)


def test_what_is_named_to_run_long_is_there(run):
    missing = [name for name, _ in run.PARTS if not (ROOT / "tests" / name).is_file()]
    assert not missing, "PARTS of tests/run.py names %s" % missing


def test_a_part_that_is_cut_short_has_left_its_times(run):
    run.TIMES.append(io.StringIO())
    run.took(run.STARTED, "unit/x", cpu=1.25)
    assert run.TIMES[0].getvalue().split()[-2:] == ["1.2", "unit/x"]


def test_a_program_that_runs_too_long_is_ended_and_says_so(run):
    code, text = run.run_program(["sh", "-c", "echo began; echo why >&2; exec sleep 60"], "unit/x", None, 0.5)
    assert code == 124 and text.startswith("began\nwhy\n") and "ran longer" in text
    code, text = run.run_program(["sh", "-c", "echo out; exit 3"], "unit/x", None, 60)
    assert (code, text) == (3, "out\n")


@pytest.mark.parametrize("idle, at_once", [(0.0, 2), (1.0, 3)])
def test_a_spare_lane_takes_a_part_only_while_cores_are_idle(run, monkeypatch, idle, at_once):
    monkeypatch.setattr(run, "IDLE_SECONDS", 0.01)
    lock, now, most, played, full, asked, looked = threading.Lock(), set(), [0], [], threading.Event(), [], threading.Event()

    def look(self, whole=False):
        asked.append(1)
        if len(asked) == 4:  # it could have begun more by now
            looked.set()
        return idle

    monkeypatch.setattr(run.Cores, "idle", look)

    def play(path, words, env, marks, quiet, without):
        lane = env["SHOAL_LANE"]
        with lock:
            assert lane not in now, "two parts in one lane would take the same ports"
            now.add(lane)
            most[0] = max(most[0], len(now))
            if len(now) == at_once:
                full.set()
        assert full.wait(60) and looked.wait(60), "%d parts run at once" % most[0]
        with lock:
            now.discard(lane)
            played.append(path)
        return [1, 0]

    monkeypatch.setattr(run, "run_pytest", play)
    counts = run.run_lanes([(number, "", ()) for number in range(9)], "", {}, 2, 1)
    assert counts == [[1, 0]] * 9 and sorted(played) == list(range(9)) and most[0] == at_once


def test_the_idle_time_of_the_cores_is_read(run):
    cores = run.Cores()
    assert 0 <= cores.idle() <= os.cpu_count() + 0.5
    assert 0 <= run.idle_seconds()
