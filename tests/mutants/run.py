"""Plants the faults of mutants.txt, one at a time, in a copy of the tree, and says what finds each of them.

    tests/mutants/run.py [--only NAME,...] [--seeds N] [--units] [--seconds S]

The simulator and the cores alone are built for each (one file is compiled anew). A fault is found when a script of tests/sim,
a seed of the swarm or of its parts, or (with --units, and only where the simulator found nothing) a unit program fails that
does not fail on the tree as it is. What the tree itself fails is left out first. Ends with one line: N of M found, and with
exit 1 when one is alive that mutants.txt does not mark (~) as alive."""

import argparse
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutants"
FOLDERS = ("gossip", "sched", "sim", "include", "tests/sim", "tests/unit", "tests/scenario", "api", "node", "collective", "packaging")
PARTS = ("swarm", "raft", "leases", "churn", "power")
UNITS = ("raft_test", "raft_random_test", "scenario_raft_test", "swim_test", "scenario_gossip_test", "support_test", "slots_test",
         "lead_test", "epoch_next_test", "sched_test", "sched_found_test", "sched_archive_test", "sched_recover_test",
         "sched_keep_test", "sched_random_test")


def read_mutants():
    """[(name, what, file, [(old lines, new lines)])]"""
    found, block = [], []
    lines = [l for l in (ROOT / "tests/mutants/mutants.txt").read_text().splitlines() if not l.startswith("#")]
    for line in lines + [""]:
        if line:
            block.append(line)
            continue
        if not block:
            continue
        name, _, what = block[0].partition(": ")  # ~name: known to be alive
        pairs = []
        for text in block[2:]:
            if text[0] == "-" and (not pairs or pairs[-1][1]):
                pairs.append(([], []))
            pairs[-1][text[0] == "+"].append(text[1:])
        found.append((name, what, block[1], pairs))
        block = []
    return found


def planted(text, pairs, name):
    for old, new in pairs:
        lines = text.split("\n")
        want = [line.strip() for line in old]
        places = [i for i in range(len(lines) - len(want) + 1)
                  if [line.strip() for line in lines[i:i + len(want)]] == want]
        if len(places) != 1:
            raise SystemExit("%s: its lines stand %d times in the file: %s" % (name, len(places), old))
        lines[places[0]:places[0] + len(want)] = new
        text = "\n".join(lines)
    return text


def build(targets):
    done = subprocess.run(["make", "-s", "-j2", *targets], cwd=COPY, capture_output=True, text=True, errors="replace")
    return done.returncode == 0, done.stderr


def fails(command, seconds):
    """"" or what it said. The bound is on CPU time, since other work on the machine proves nothing."""
    bound = lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    done = subprocess.run(command, cwd=COPY, capture_output=True, text=True, errors="replace", preexec_fn=bound)
    if done.returncode == 0:
        return ""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return "no end within %d s of CPU" % seconds
    lines = (done.stdout + done.stderr).splitlines()
    said = [line for line in lines if line.startswith(("FAIL ", "not ok")) or "broken" in line or "ssert" in line]
    return (said or ["exit %d" % done.returncode])[0][:150]


def simulator_runs(seeds):
    """(name, command) in the order in which they are tried: scripts, then seeds."""
    binary = str(COPY / "build/release/sim_alone")
    for script in sorted((COPY / "tests/sim").glob("*.sim")):
        if script.name != "large.sim":
            yield script.name, [binary, str(script)]
    for seed in range(1, seeds + 1):
        for part in PARTS:
            yield "%s --seed %d" % (part, seed), [binary, "run", part, "--seed", str(seed), "--off", "long"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--seconds", type=int, default=600, help="of CPU, for each")
    arguments.add_argument("--units", action="store_true")
    options = arguments.parse_args()
    COPY.mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        subprocess.run(["rsync", "-a", "--delete", "--exclude=*.o", str(ROOT / folder) + "/", str(COPY / folder) + "/"],
                       check=True) if shutil.which("rsync") else copy_changed(ROOT / folder, COPY / folder)
    shutil.copy2(ROOT / "Makefile", COPY / "Makefile")
    targets = ["build/release/sim_alone"]
    ok, said = build(targets)
    if not ok:
        raise SystemExit("the tree itself does not build: " + said[-500:])
    clean = [(name, command) for name, command in simulator_runs(options.seeds) if not fails(command, 60)]
    print("%d runs of the simulator pass on the tree as it is" % len(clean), flush=True)
    score, lost = [0, 0], 0
    for name, what, file, pairs in read_mutants():
        known_alive, name = name.startswith("~"), name.lstrip("~")
        if options.only and name not in options.only.split(","):
            continue
        score[1] += 1
        found = try_one(name, file, pairs, clean, options)
        score[0] += found is not None
        lost += found is None and not known_alive
        print("%-30s %s" % (name, found or "ALIVE: " + what), flush=True)
    print("%d of %d found" % tuple(score))
    return 1 if lost else 0


def try_one(name, file, pairs, clean, options):
    """What found it and after how long; None: nothing."""
    source = COPY / file
    sound = source.read_text()
    began = time.monotonic()
    used = os.times().children_user
    try:
        source.write_text(planted(sound, pairs, name))
        ok, said = build(["build/release/sim_alone"])
        if not ok:
            raise SystemExit("%s does not build: %s" % (name, said[-500:]))
        for run, command in clean:
            said = fails(command, 60)
            if said:
                return "%s after %.0f s of CPU (%.0f s): %s" % (run, os.times().children_user - used,
                                                               time.monotonic() - began, said)
            if os.times().children_user - used > options.seconds:
                break
        for unit in UNITS if options.units else ():
            binary = "build/release/tests/unit/" + unit
            if build([binary])[0] and (said := fails([str(COPY / binary)], 120)):
                return "unit/%s after %.0f s of CPU: %s" % (unit, os.times().children_user - used, said)
    finally:
        source.write_text(sound)
    return None


def copy_changed(here, there):
    """As rsync: what is the same keeps its time, so that make builds only what changed."""
    for path in here.rglob("*"):
        to = there / path.relative_to(here)
        if path.is_file() and path.suffix != ".o" and (not to.exists() or to.read_bytes() != path.read_bytes()):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)


if __name__ == "__main__":
    sys.exit(main())
