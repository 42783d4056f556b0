"""Runs the tests and ends with one line: N passed, N failed.

    tests/run.py --out build/release [--only unit|unit/NAME|fuzz|fuzz/NAME|python|sim|system|system/NAME] [--seed N] [--soak]

Unit programs (cmocka, TAP) run two at a time; then a few inputs of each fuzz target; then the Python unit tests, the
simulator's and the system tests, each by pytest. Every failure is shown with the command that repeats it."""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNIT_SECONDS = 180
FUZZ_RUNS = 3000  # inputs of each target: enough to reach every decoder, not to search
FUZZ_SECONDS = 10  # ... on a slow machine
SUITE_SECONDS = 1500


def run_unit(program, env):
    """(passed, failed, text) of one cmocka program."""
    try:
        done = subprocess.run([str(program)], env=env, cwd=ROOT, capture_output=True, text=True, errors="replace",
                              timeout=UNIT_SECONDS)
        text = done.stdout + done.stderr
        code = done.returncode
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace") + "\nran longer than %d s" % UNIT_SECONDS
        code = 124
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
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
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
    passed = failed = 0
    for program in programs:
        command = [str(program), "-runs=%d" % FUZZ_RUNS, "-seed=1", "-max_total_time=%d" % FUZZ_SECONDS, "-max_len=2048",
                   "-rss_limit_mb=2048", "-close_fd_mask=1", "-artifact_prefix=%s-" % program]
        try:
            done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, errors="replace",
                                  timeout=UNIT_SECONDS)
            code, text = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            code, text = 124, "ran longer than %d s" % UNIT_SECONDS
        passed, failed = passed + (code == 0), failed + (code != 0)
        if code != 0:
            print("\n".join(text.splitlines()[-60:]))
            print("FAIL fuzz/%s; again: make test T=fuzz/%s" % (program.name, program.name[5:]))
    print("%-44s %d passed%s" % ("fuzz", passed, ", %d FAILED" % failed if failed else ""), flush=True)
    return [passed, failed]


def run_pytest(folder, only, env, soak):
    if not folder.is_dir() or not list(folder.glob("test_*.py")):
        return [0, 0]
    report = tempfile.NamedTemporaryFile(suffix=".xml", delete=False)
    report.close()
    command = [sys.executable, "-m", "pytest", "-q", "-x" if os.environ.get("FIRST") else "-q", "--tb=short", "-p", "no:cacheprovider",
               "--junitxml", report.name, str(folder)]
    if only:
        command += ["-k", only]
    if not soak:
        command += ["-m", "not soak"]
    try:
        subprocess.run(command, env=env, cwd=ROOT, timeout=SUITE_SECONDS)
        suite = xml.parse(report.name).getroot().find("testsuite")
        total, bad = int(suite.get("tests")), int(suite.get("failures")) + int(suite.get("errors"))
        skipped = int(suite.get("skipped"))
    except (subprocess.TimeoutExpired, xml.ParseError) as late:
        print("FAIL %s: %s" % (folder, late))
        total, bad, skipped = 1, 1, 0
    os.unlink(report.name)
    print("%-44s %d passed%s%s" % (folder.relative_to(ROOT), total - bad - skipped, ", %d FAILED" % bad if bad else "",
                                   ", %d skipped" % skipped if skipped else ""), flush=True)
    return [total - bad - skipped, bad]


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
    totals = [0, 0]
    for here, run in (("unit", lambda: run_units(out, name if kind == "unit" else "", env)),
                      ("fuzz", lambda: run_fuzz(name, env)),
                      ("python", lambda: run_pytest(ROOT / "tests" / "unit" / "python", name, env, options.soak)),
                      ("sim", lambda: run_pytest(ROOT / "tests" / "sim", name, env, options.soak)),
                      ("system", lambda: run_pytest(ROOT / "tests" / "system", name, env, options.soak))):
        if kind in ("", here):
            passed, failed = run()
            totals[0] += passed
            totals[1] += failed
    print("%d passed, %d failed" % tuple(totals))
    return 1 if totals[1] or not totals[0] else 0


if __name__ == "__main__":
    sys.exit(main())
