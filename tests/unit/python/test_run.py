"""What runs the tests loses none of them: each file is in one part of the lanes, and parts of one file are all of it."""

import collections
import importlib.util
import io
import pathlib

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
