"""Runs the tests and ends with one line: N passed, N failed.

    tests/run.py --out build/release [--only unit|unit/NAME|fuzz|fuzz/NAME|python|sim|hostile|system|system/NAME] [--seed N]
                 [--lanes N] [--soak]

Unit programs (cmocka, TAP) and fuzz targets (a few inputs of each) compute: one at a time. The rest mostly waits, so it runs
beside them in three lanes, in up to five while cores are idle (LANES=n: in n), each a pytest of its own:

    computing   unit programs, then fuzz targets
    lane 1      the longest first: parts of the Python units,    what a lane prints comes when its part has ended
    ...         the simulator, files of the system tests, or     (PARTS: a file that would keep a lane busy when the
    lane 3      parts of one; the next as a lane is free          others have ended is more than one)
    then        what is marked `alone`, one after the other: what measures time, and nothing else runs

Where the time went is in test-times.txt beside the binaries: seconds on the clock, and of CPU; without that of runners, engines
and whatever else a test killed with its host, which is most of it in tests that train. How idle the cores were is said at the end.

Seeds: a part of what is random is drawn anew for each commit, from HEAD's id, and printed; SEED=n repeats it. The rest of
what is random has fixed seeds, or is in `make soak`. Every failure is shown with the command that repeats it."""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNIT_SECONDS = 600  # they compute beside the lanes, and others' work on this machine
FUZZ_RUNS = 3000  # inputs of each target: enough to reach every decoder, not to search
FUZZ_SECONDS = 10  # ... on a slow machine
SUITE_SECONDS = 1500  # a part of a lane
COMPUTING = 2  # programs and fuzz targets at a time, whatever the number of cores: more would wait for each other's CPU
LANES = 3  # of what waits for processes, leases and each other, unless --lanes says otherwise
SPARE = 2  # lanes more that take a part when cores have been idle, so many of them for so long
IDLE_CORES, IDLE_SECONDS = 0.5, 8
# What keeps a lane busy for long, the longest first, so that the lanes end together; what is not named comes last. A row may
# be a part of a file, with pytest's -k, where its tests share no mesh (a mesh more is cold: 10 s of a core); whoever adds a test to such
# a file adds it to one of its parts, by its name.
PARTS = (("system/test_kill_matrix.py", ""), ("system/test_power.py", ""), ("system/test_hosts_apart.py", "a_host or a_data_link or a_path"),
         ("system/test_hosts_apart.py", "not (a_host or a_data_link or a_path)"), ("system/test_members.py", ""), ("system/test_same_bits.py", ""),
         ("system/test_recover.py", ""), ("system/test_upgrade.py", ""), ("system/test_bad_input.py", ""), ("system/test_engines.py", ""),
         ("system/test_archive.py", ""), ("system/test_results.py", ""), ("system/test_warm_elastic.py", ""),
         ("system/test_service_of_job.py", ""), ("unit/python/test_engine_server.py", ""), ("system/test_jobs.py", ""),
         ("system/test_array.py", ""), ("system/test_short_jobs.py", ""))


STARTED = time.monotonic()
TIMES = []  # the file that took() writes to, once main() has opened it


def took(began, what, lane="", seconds=None, cpu=0.0):
    """Writes down what took so long, for whoever wants the tests to take less."""
    seconds = time.monotonic() - began if seconds is None else seconds
    for times in TIMES:
        times.write("%8.1f %8.1f %8.1f %4s  %s\n" % (began - STARTED, seconds, cpu, lane, what))
        times.flush()


def run_program(command, what, env, seconds):
    """(exit code, what it printed, what it complained of behind that) of a program that computes; 124: it ran longer."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        program = subprocess.Popen(command, env=env, cwd=ROOT, stdout=out, stderr=err)
        late = threading.Event()
        timer = threading.Timer(seconds, lambda: (late.set(), program.kill()))
        timer.start()
        _, status, used = os.wait4(program.pid, 0)
        timer.cancel()
        program.returncode = os.waitstatus_to_exitcode(status)
        took(began, what, cpu=used.ru_utime + used.ru_stime)
        out.seek(0)
        err.seek(0)
        text = out.read() + err.read()
    return (124, text + "\nran longer than %g s" % seconds) if late.is_set() else (program.returncode, text)


def run_unit(program, env):
    """(passed, failed, text) of one cmocka program."""
    code, text = run_program([str(program)], "unit/" + program.name, env, UNIT_SECONDS)
    passed = sum(line.startswith("ok ") and "# SKIP" not in line for line in text.splitlines())
    failed = sum(line.startswith("not ok ") and "# SKIP" not in line for line in text.splitlines())
    if code != 0 and failed == 0:
        failed = 1
    return passed, failed, text


def run_units(out, only, env, at_once):
    programs = sorted((out / "tests" / "unit").glob("*_test"))
    if only:
        programs = [p for p in programs if p.name.startswith(only)]
    totals = [0, 0]
    with concurrent.futures.ThreadPoolExecutor(max_workers=at_once) as pool:
        for program, (passed, failed, text) in zip(programs, pool.map(lambda p: run_unit(p, env), programs)):
            more = "\n%s\nagain: make test T=unit/%s" % ("\n".join(text.splitlines()[-60:]), program.name) if failed else ""
            print("%-44s %d passed%s%s" % ("unit/" + program.name, passed, ", %d FAILED" % failed if failed else "", more), flush=True)
            totals[0] += passed
            totals[1] += failed
    return totals


def run_fuzz(name, env, at_once):
    """A few inputs of each libFuzzer target, the same each time; `make fuzz` searches."""
    sources = sorted((ROOT / "tests" / "fuzz").glob("fuzz_*.c"))
    programs = [ROOT / "build" / "fuzz" / source.stem for source in sources if name in source.stem]
    if not shutil.which("clang-14"):
        print("SKIP fuzz: no clang-14, which builds the %d targets; .ci/setup --develop installs it" % len(programs))
        return [0, 0]
    def play(program):
        command = [str(program), "-runs=%d" % FUZZ_RUNS, "-seed=1", "-max_total_time=%d" % FUZZ_SECONDS, "-max_len=2048",
                   "-rss_limit_mb=2048", "-close_fd_mask=1", "-artifact_prefix=%s-" % program]
        seeds = ROOT / "tests" / "fuzz" / "corpus" / program.name[5:]
        with tempfile.TemporaryDirectory() as found:  # the first folder is written to
            return run_program(command + [found] + ([str(seeds)] if seeds.is_dir() else []), "fuzz/" + program.name[5:], env, UNIT_SECONDS)

    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=at_once) as pool:
        for program, (code, text) in zip(programs, pool.map(play, programs)):
            passed, failed = passed + (code == 0), failed + (code != 0)
            if code != 0:
                print("%s\nFAIL fuzz/%s; again: make test T=fuzz/%s" % ("\n".join(text.splitlines()[-60:]), program.name, program.name[5:]))
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
            used = [float(one.get("value")) for one in case.iter("property") if one.get("name") == "cpu"]
            took(began, "  %s::%s" % (case.get("classname"), case.get("name")), lane, float(case.get("time")), sum(used))
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


def idle_seconds():
    """Of all cores together, since the machine started."""
    with open("/proc/stat") as stat:
        return sum(map(int, stat.readline().split()[4:6])) / os.sysconf("SC_CLK_TCK")


class Cores:
    """How many of them were idle since the last question, and since the first."""

    def __init__(self):
        self.first = self.last = (time.monotonic(), idle_seconds())

    def idle(self, whole=False):
        before, self.last = self.first if whole else self.last, (time.monotonic(), idle_seconds())
        return (self.last[1] - before[1]) / max(self.last[0] - before[0], 0.001)


def run_lanes(parts, soaking, env, count, spare):
    """All parts in so many lanes, and in a spare one whenever cores have been idle for a while: what runs then waits."""
    free, waiting, running, counts, cores = list(range(count + spare)), collections.deque(parts), {}, [], Cores()

    def play(part, lane):  # its meshes take ports of their own: free_ports()
        path, words, without = part
        return run_pytest(path, words, dict(env, SHOAL_LANE="%d/%d" % (lane, count + spare)), "not alone" + soaking, True, without)

    with concurrent.futures.ThreadPoolExecutor(max_workers=count + spare) as pool:
        looked = time.monotonic()
        while waiting or running:
            is_idle = False
            if time.monotonic() - looked >= IDLE_SECONDS:
                is_idle, looked = cores.idle() >= IDLE_CORES, time.monotonic()
            while waiting and free and (len(running) < count or is_idle):
                is_idle = is_idle and len(running) < count  # one more; then it is looked at again
                lane = free.pop(0)
                running[pool.submit(play, waiting.popleft(), lane)] = lane
            ended, _ = concurrent.futures.wait(running, IDLE_SECONDS, concurrent.futures.FIRST_COMPLETED)
            for one in ended:
                free.append(running.pop(one))
                counts.append(one.result())
    if parts:
        took(STARTED, "all lanes: %.2f of %d cores were idle" % (cores.idle(whole=True), os.cpu_count()))
    return counts


def run_alone(parts, name, soaking, env):
    """What is marked `alone` in them."""
    alone = {path: words if path.is_dir() else "" for path, words, _ in parts if not {"system", "hostile"}.isdisjoint(path.parts)}
    if not name:
        alone = {folder: "" for folder in (ROOT / "tests/system", ROOT / "tests/hostile") if any(folder in path.parents for path in alone)}
    return [run_pytest(path, words, env, "alone" + soaking, True) for path, words in alone.items()]


def run_kinds(kind, name, out, env, soak, lanes, spare):
    """[(passed, failed)] of what is asked for."""
    soaking = "" if soak else " and not soak"
    in_lanes = kind in ("", "python", "sim", "hostile", "system")
    parts = parts_of(kind, name) if in_lanes else []
    at_once = COMPUTING if kind else 1  # beside the lanes one is enough

    def compute():
        counts = [run_units(out, name if kind == "unit" else "", env, at_once)] if kind in ("", "unit") else []
        return counts + ([run_fuzz(name, env, at_once)] if kind in ("", "fuzz") else [])

    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        computed = pool.submit(compute)
        counts = run_lanes(parts, soaking, env, lanes, spare)
        counts += computed.result()
    return counts + run_alone(parts, name, soaking, env)


def seed_of_head():
    """Another number for each commit, the same on every machine."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        return int(done.stdout[:7], 16) + 1
    except (OSError, subprocess.CalledProcessError):
        return 1  # an unpacked archive


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", required=True)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--seed", default="")
    arguments.add_argument("--lanes", type=int, default=0)
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
    TIMES.append((out / "test-times.txt").open("w"))
    TIMES[0].write("   start     took      cpu lane  what\n")
    lanes, spare = (options.lanes, 0) if options.lanes else (LANES, SPARE)
    with tempfile.TemporaryDirectory(prefix="shoal-shared-") as shared:
        env["SHOAL_SHARED"] = shared  # what tests of several lanes want and compute once (training.py)
        counts = run_kinds(kind, name, out, env, options.soak, lanes, spare)
    totals = [sum(passed for passed, _ in counts), sum(failed for _, failed in counts)]
    print("%d passed, %d failed" % tuple(totals))
    return 1 if totals[1] or not totals[0] else 0


if __name__ == "__main__":
    sys.exit(main())
