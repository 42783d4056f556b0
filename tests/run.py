"""Runs the tests and ends with one line: N passed, N failed.

    tests/run.py --out build/release [--only unit|unit/NAME|fuzz|fuzz/NAME|python|sim|hostile|system|system/NAME] [--seed N] [--soak]

Unit programs (cmocka, TAP) and fuzz targets (a few inputs of each) compute: two at a time. The rest mostly waits, so it runs in
three lanes, each a pytest of its own:

    lane 1   the longest first: parts of the Python units,    what a lane prints comes when its part has ended
    lane 2   the simulator, files of the system tests, or     (PARTS: a file that would keep a lane busy when the
    lane 3   parts of one; the next as a lane is free          others have ended is more than one)
    then     what is marked `alone`, one after the other: what measures time, and nothing else runs

Where the time went is in test-times.txt beside the binaries.

Seeds: a part of what is random is drawn anew for each commit, from HEAD's id, and printed; SEED=n repeats it. The rest of
what is random has fixed seeds, or is in `make soak`. Every failure is shown with the command that repeats it."""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNIT_SECONDS = 180
FUZZ_RUNS = 3000  # inputs of each target: enough to reach every decoder, not to search
FUZZ_SECONDS = 10  # ... on a slow machine
SUITE_SECONDS = 1500
COMPUTING = 2  # programs and fuzz targets at a time, whatever the number of cores: more would wait for each other's CPU
LANES = 3  # of what waits for processes, leases and each other
# What keeps a lane busy for long, the longest first, so that the lanes end together; what is not named comes last. A row may
# be a part of a file, with pytest's -k; whoever adds a test to such a file adds it to one of its parts, by its name.
PARTS = (("system/test_kill_matrix.py", "point or callback"), ("system/test_kill_matrix.py", "not (point or callback)"),
         ("system/test_same_bits.py", ""), ("system/test_hosts_apart.py", ""), ("system/test_recover.py", ""),
         ("system/test_upgrade.py", ""), ("system/test_bad_input.py", ""), ("system/test_engines.py", ""),
         ("system/test_archive.py", ""), ("system/test_results.py", ""), ("unit/python/test_engine_server.py", ""), ("system/test_jobs.py", ""),
         ("system/test_array.py", ""), ("system/test_short_jobs.py", ""))


STARTED = time.monotonic()
TIMES = []  # (seconds since the start, seconds it took, lane, what)


def took(began, what, lane="", seconds=None):
    """Notes what took so long; main() writes it down."""
    TIMES.append((began - STARTED, time.monotonic() - began if seconds is None else seconds, lane, what))


def run_unit(program, env):
    """(passed, failed, text) of one cmocka program."""
    began = time.monotonic()
    try:
        done = subprocess.run([str(program)], env=env, cwd=ROOT, capture_output=True, text=True, errors="replace",
                              timeout=UNIT_SECONDS)
        text = done.stdout + done.stderr
        code = done.returncode
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace") + "\nran longer than %d s" % UNIT_SECONDS
        code = 124
    took(began, "unit/" + program.name)
    passed = sum(line.startswith("ok ") and "# SKIP" not in line for line in text.splitlines())
    failed = sum(line.startswith("not ok ") for line in text.splitlines())
    if code != 0 and failed == 0:
        failed = 1
    return passed, failed, text


def run_units(out, only, env):
    programs = sorted((out / "tests" / "unit").glob("*_test"))
    if only:
        programs = [p for p in programs if p.name.startswith(only)]
    totals = [0, 0]
    with concurrent.futures.ThreadPoolExecutor(max_workers=COMPUTING) as pool:
        for program, (passed, failed, text) in zip(programs, pool.map(lambda p: run_unit(p, env), programs)):
            print("%-44s %d passed%s" % ("unit/" + program.name, passed, ", %d FAILED" % failed if failed else ""), flush=True)
            if failed:
                print("\n".join(text.splitlines()[-60:]))
                print("again: make test T=unit/%s" % program.name)
            totals[0] += passed
            totals[1] += failed
    return totals


def run_fuzz(name, env):
    """A few inputs of each libFuzzer target, the same each time; `make fuzz` searches."""
    sources = sorted((ROOT / "tests" / "fuzz").glob("fuzz_*.c"))
    programs = [ROOT / "build" / "fuzz" / source.stem for source in sources if name in source.stem]
    if not shutil.which("clang-14"):
        print("SKIP fuzz: no clang-14, which builds the %d targets; .ci/setup --develop installs it" % len(programs))
        return [0, 0]
    def play(program):
        began = time.monotonic()
        command = [str(program), "-runs=%d" % FUZZ_RUNS, "-seed=1", "-max_total_time=%d" % FUZZ_SECONDS, "-max_len=2048",
                   "-rss_limit_mb=2048", "-close_fd_mask=1", "-artifact_prefix=%s-" % program]
        seeds = ROOT / "tests" / "fuzz" / "corpus" / program.name[5:]
        found = tempfile.TemporaryDirectory()  # the first folder is written to
        command += [found.name, str(seeds)] if seeds.is_dir() else []
        try:
            done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, errors="replace",
                                  timeout=UNIT_SECONDS)
            return done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            return 124, "ran longer than %d s" % UNIT_SECONDS
        finally:
            found.cleanup()
            took(began, "fuzz/" + program.name[5:])

    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=COMPUTING) as pool:
        for program, (code, text) in zip(programs, pool.map(play, programs)):
            passed, failed = passed + (code == 0), failed + (code != 0)
            if code != 0:
                print("\n".join(text.splitlines()[-60:]))
                print("FAIL fuzz/%s; again: make test T=fuzz/%s" % (program.name, program.name[5:]))
    print("%-44s %d passed%s" % ("fuzz", passed, ", %d FAILED" % failed if failed else ""), flush=True)
    return [passed, failed]


def run_pytest(path, only, env, marks, quiet=False, without=()):
    """[passed, failed] of a folder or a file. `quiet`: what it prints comes as a whole, at its end."""
    report = tempfile.NamedTemporaryFile(suffix=".xml", delete=False)
    report.close()
    command = [sys.executable, "-m", "pytest", "-q", "-x" if os.environ.get("FIRST") else "-q", "--tb=short", "-p", "no:cacheprovider",
               "--junitxml", report.name, "-m", marks, str(path), *("--ignore=%s" % one for one in without)]
    if only:
        command += ["-k", only]
    began = time.monotonic()
    name = "%s%s%s" % (path.relative_to(ROOT), ", " + only if only else "", ", alone" if marks.startswith("alone") else "")
    lane = env.get("SHOAL_LANE", "")[:1]
    try:
        done = subprocess.run(command, env=env, cwd=ROOT, timeout=SUITE_SECONDS, stdout=subprocess.PIPE if quiet else None,
                              stderr=subprocess.STDOUT if quiet else None, text=True, errors="replace")
        suite = xml.parse(report.name).getroot().find("testsuite")
        total, bad = int(suite.get("tests")), int(suite.get("failures")) + int(suite.get("errors"))
        skipped, text = int(suite.get("skipped")), done.stdout or ""
        for case in suite.iter("testcase"):
            took(began, "  %s::%s" % (case.get("classname"), case.get("name")), lane, float(case.get("time")))
        if bad == 0 and done.returncode not in (0, 5):  # 5: no test is so named and so marked
            total, bad = total + 1, 1
    except (subprocess.TimeoutExpired, xml.ParseError) as late:
        said = getattr(late, "stdout", None) or b""
        total, bad, skipped, text = 1, 1, 0, "%s\nFAIL %s: %s\n" % (said.decode(errors="replace"), path, late)
    os.unlink(report.name)
    if total:
        took(began, name, lane)
        print("%s%-44s %d passed%s%s" % (
            text if bad or not quiet else "", name, total - bad - skipped, ", %d FAILED" % bad if bad else "",
            ", %d skipped" % skipped if skipped else ""), flush=True)
    return [total - bad - skipped, bad]


def parts_of(kind, name):
    """[(path, pytest's -k, files left out)] of what runs in lanes, the longest first; of one kind only, or of all."""
    kinds = {"python": ROOT / "tests/unit/python", "sim": ROOT / "tests/sim", "hostile": ROOT / "tests/hostile",
             "system": ROOT / "tests/system"}
    found, rest = [], []
    for here, folder in kinds.items():
        if kind not in ("", here):
            continue
        files = sorted(folder.glob("test_*.py"))
        named = [path for path in files if name and path.stem.startswith(("test_" + name, name))]
        if name and not named:  # a test's name
            rest.append((folder, name, ()))
            continue
        first = [(ROOT / "tests" / part, words) for part, words in PARTS if ROOT / "tests" / part in (named or files)]
        found += [(path, words, ()) for path, words in first]
        taken = {path for path, _ in first}
        if here in ("system", "hostile") or named:
            rest += [(path, "", ()) for path in (named or files) if path not in taken]
        else:
            rest.append((folder, "", tuple(taken)))
    order = {(ROOT / "tests" / part, words): i for i, (part, words) in enumerate(PARTS)}
    return sorted(found, key=lambda part: order[part[:2]]) + rest


def run_lanes(kind, name, env, soak):
    """All parts in lanes, then what is marked `alone`."""
    soaking = "" if soak else " and not soak"
    parts = parts_of(kind, name)
    lanes = queue.SimpleQueue()
    for lane in range(LANES):
        lanes.put(lane)

    def play(part):
        path, words, without = part
        lane = lanes.get()  # its meshes take ports of their own: free_ports()
        try:
            return run_pytest(path, words, dict(env, SHOAL_LANE="%d/%d" % (lane, LANES)), "not alone" + soaking, True, without)
        finally:
            lanes.put(lane)

    with concurrent.futures.ThreadPoolExecutor(max_workers=LANES) as pool:
        counts = list(pool.map(play, parts))
    alone = {path: words if path.is_dir() else "" for path, words, _ in parts if not {"system", "hostile"}.isdisjoint(path.parts)}
    if not name:
        alone = {folder: "" for folder in (ROOT / "tests/system", ROOT / "tests/hostile") if any(folder in path.parents for path in alone)}
    counts += [run_pytest(path, words, env, "alone" + soaking, True) for path, words in alone.items()]
    return [sum(passed for passed, _ in counts), sum(failed for _, failed in counts)]


def seed_of_head():
    """Another number for each commit, the same on every machine."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        return int(done.stdout[:7], 16) + 1
    except (OSError, subprocess.CalledProcessError):
        return 1  # an unpacked archive


def write_times(path):
    """Where the time went, for whoever wants the tests to take less."""
    rows = ["%8.1f %8.1f %2s  %s" % row for row in TIMES]
    path.write_text("   start     took lane  what\n" + "\n".join(rows) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", required=True)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--seed", default="")
    arguments.add_argument("--soak", action="store_true")
    options = arguments.parse_args()
    kind, _, name = options.only.partition("/")
    out = (ROOT / options.out).resolve()
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", SHOAL_OUT=str(out), PYTHONDONTWRITEBYTECODE="1")
    if options.seed:
        env["SEED"] = options.seed
    env["SHOAL_DRAW"] = options.seed or str(seed_of_head())
    if options.soak:
        env["SHOAL_SOAK"] = "1"
    if kind in ("", "unit", "sim", "hostile", "system"):
        print("random ones of this commit: seed %s; again: make test%s SEED=%s" % (
            env["SHOAL_DRAW"], " T=" + options.only if options.only else "", env["SHOAL_DRAW"]), flush=True)
    totals = [0, 0]
    for here, run in (("unit", lambda: run_units(out, name if kind == "unit" else "", env)),
                      ("fuzz", lambda: run_fuzz(name, env)),
                      (kind if kind in ("python", "sim", "hostile", "system") else "lanes", lambda: run_lanes(kind, name, env, options.soak))):
        if kind in ("", here):
            passed, failed = run()
            totals[0] += passed
            totals[1] += failed
    write_times(out / "test-times.txt")
    print("%d passed, %d failed" % tuple(totals))
    return 1 if totals[1] or not totals[0] else 0


if __name__ == "__main__":
    sys.exit(main())
