"""Plants the faults of mutants.txt, one at a time, in a copy of the tree, and says what finds each of them.

    tests/mutants/run.py [--only NAME,...] [--seeds N] [--units] [--near] [--seconds S] [--part I/N]

One file is compiled anew for each. A fault is found when a unit program (with --units), a script of tests/sim or a seed of the
swarm or of its parts fails that does not fail on the tree as it is: what the tree itself fails is left out first. A fault of
collective/ is looked for by the scenarios of comm_harness in place of the simulator's, once as it is and once on what stands for
a GPU. The units next to the fault come first, the others last. --part I/N plants each N-th only, in a copy of its own, so that N may run beside each other. Ends with one line:
N of M found, and with exit 1 when one is alive that mutants.txt does not mark (~) as alive."""

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
FOLDERS = ("gossip", "sched", "sim", "include", "tests/sim", "tests/unit", "tests/scenario", "tests/system", "tests/fake", "api", "node", "collective",
           "packaging")
HARNESS = ("system/comm_harness", "system/cworker", "fake/libgpu_fake.so")
APART = ("collective/", "api/", "node/blob/", "node/link/", "node/runner/", "node/serve/")  # nothing of it is in the simulator
PARTS = ("swarm", "raft", "leases", "churn", "power")
UNITS = ("raft", "raft_wire", "scenario_raft", "scenario_gossip", "swim", "swim_queue", "swim_steady", "gossip_pool", "records", "support", "slots",
         "lead", "lead_array", "lead_class", "lead_leave", "lead_gang", "epoch_next", "link_breaks", "allocate", "array", "mesh", "job", "pack", "host_wire", "list_merge",
         "list_query", "sched", "sched_wire", "sched_index", "sched_steady", "sched_keep", "sched_recover", "sched_mesh",
         "sched_found", "sched_park", "sched_archive", "sched_archive_told", "sched_summary", "sched_random", "raft_random", "datagram", "control_record", "seal",
         "noise", "collective", "update", "reduce", "op", "transport", "fabric_address", "tree_walk", "tree_disk", "blob", "store", "store_powercut", "results",
         "log_merged", "link", "workers", "runner", "spawn", "route", "autoscale", "service_doc", "serve_rate", "serve_host", "kernel_wire", "package_check",
         "slots_cards")

# Those that look at a folder's rules themselves are built, and run, first.
NEAR = {"collective/transport/": ("transport", "seal"), "collective/comm/op": ("op", "collective"), "collective/": ("collective", "update", "reduce", "op"),
        "node/store/": ("store", "store_powercut"), "node/blob/tree_": ("tree_walk", "tree_disk", "blob"), "node/blob/": ("blob",),
        "node/link/datagram": ("datagram", "link"), "node/link/": ("link", "noise", "datagram"),
        "node/runner/": ("runner", "spawn", "workers"), "node/serve/": ("serve_rate", "serve_host", "kernel_wire"),
        "api/rest/service_": ("service_doc",), "api/rest/package_": ("package_check",),
        "gossip/": ("swim", "swim_queue", "records", "scenario_gossip", "swim_steady"),
        "sched/raft/support": ("support", "sched"),
        "sched/raft/": ("raft", "raft_wire", "scenario_raft", "raft_random"),
        "sched/host/": ("slots", "slots_cards", "sched", "lead"), "sched/share/": ("allocate",),
        "sched/lead/": ("lead_gang", "lead_leave", "lead_class", "lead", "lead_array", "epoch_next", "link_breaks", "slots"),
        "sched/job/route": ("route",), "sched/job/autoscale": ("autoscale",),
        "sched/job/": ("mesh", "job", "array"),
        "sched/node/sched_found": ("sched_found", "sched"), "sched/node/sched_settle": ("sched_found", "sched"),
        "sched/node/sched_keep": ("sched_keep", "sched_mesh", "sched_archive", "sched"), "sched/node/sched_recover": ("sched_recover", "sched"),
        "sched/node/sched_archive": ("sched_archive_told", "sched_archive", "sched_index"),
        "sched/node/sched_summary": ("sched_summary", "sched", "sched_archive"),
        "sched/node/sched_copy": ("sched_mesh", "sched_recover"), "sched/node/sched_seal": ("sched_mesh", "sched_recover")}


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


def planted(text, pairs):
    for old, new in pairs:
        lines = text.split("\n")
        want = [line.strip() for line in old]
        places = [i for i in range(len(lines) - len(want) + 1)
                  if [line.strip() for line in lines[i:i + len(want)]] == want]
        if len(places) != 1:
            raise LookupError("its lines stand %d times in the file: %s" % (len(places), old))
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
    said = [line for line in lines if line.startswith(("FAIL ", "not ok", "[  FAILED  ]")) or "broken invariant" in line]
    return (said or ["exit %d" % done.returncode])[0][:150]


def unit_programs(units=UNITS):
    """Of this tree: a name may be gone."""
    return ["build/release/tests/unit/%s_test" % unit for unit in units if (COPY / ("tests/unit/%s_test.c" % unit)).exists()]


def nearest(file):
    return next((units for folder, units in NEAR.items() if file.startswith(folder)), ())


def unit_runs():
    for program in unit_programs():
        yield "unit/" + program.rsplit("/", 1)[1], [str(COPY / program)]


def script_runs():
    """The scripts that the simulator plays without Python: (name, command)."""
    for script in sorted((COPY / "tests/sim").glob("*.sim")):
        if script.name != "large.sim":
            yield script.name, [str(COPY / "build/release/sim_alone"), str(script)]


def harness_runs():
    """What tests/system/test_comm.py and test_comm_device.py play: (name, command)."""
    harness, worker, gpu = (str(COPY / "build/release/tests" / name) for name in HARNESS)
    scenarios = subprocess.run([harness, "list"], capture_output=True, text=True, check=True).stdout.split()
    device = ["CWORKER_DEVICE=2", "SHOAL_CUDA=" + gpu, "SHOAL_NCCL=" + gpu]
    broken = ["CWORKER_DEVICE=1", *device[1:], "GPU_FAKE_RANK=1"]
    play = lambda scenario, words, seed, rounds: ["env", "SHOAL_TRANSPORT=tcp", *words, harness, worker, "scenario=" + scenario, "seed=%d" % seed,
                                                  "rounds=%d" % rounds]
    for scenario in scenarios:
        yield scenario, play(scenario, [], 1, 8)
        if scenario != "ops_out_of_order":  # its calls are those of a worker without one
            yield scenario + " on a device", play(scenario, device, 1, 1)
    for seed in range(2, 9):
        yield "reform on a device, seed %d" % seed, play("reform", device, seed, 1)
    yield "three_workers, one with a broken device", play("three_workers", broken, 1, 1)


def seed_runs(seeds):
    for seed in range(1, seeds + 1):
        for part in PARTS:
            yield "%s --seed %d" % (part, seed), [str(COPY / "build/release/sim_alone"), "run", part, "--seed", str(seed), "--off", "long"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", default="")
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--seconds", type=int, default=600, help="of CPU, for each")
    arguments.add_argument("--units", action="store_true")
    arguments.add_argument("--part", default="0/1")
    arguments.add_argument("--near", action="store_true", help="only the units next to a fault, and the scripts")
    options = arguments.parse_args()
    part, parts = map(int, options.part.split("/"))
    global COPY
    COPY = COPY / str(part)
    COPY.mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        subprocess.run(["rsync", "-a", "--delete", "--exclude=*.o", str(ROOT / folder) + "/", str(COPY / folder) + "/"],
                       check=True) if shutil.which("rsync") else copy_changed(ROOT / folder, COPY / folder)
    shutil.copy2(ROOT / "Makefile", COPY / "Makefile")
    if not (COPY / ".venv").exists():  # the Makefile's Python; it is set up once
        (COPY / ".venv").symlink_to(ROOT / ".venv")
    chosen = [one for i, one in enumerate(read_mutants())
              if (not options.only or one[0].lstrip("~") in options.only.split(",")) and i % parts == part]
    comm = any(file.startswith("collective/") for _, _, file, _ in chosen)
    cores = not all(file.startswith(APART) for _, _, file, _ in chosen)
    ok, said = build([*(["build/release/sim_alone"] if cores else ()), *(unit_programs() if options.units else ()),
                      *(["build/release/tests/" + name for name in HARNESS] if comm else ())])
    if not ok:
        raise SystemExit("the tree itself does not build: " + said[-500:])
    sound = lambda runs: [(name, command) for name, command in runs if not fails(command, 60)]
    near = set().union(*(unit_programs(nearest(file)) for _, _, file, _ in chosen))
    units = [one for one in unit_runs() if options.units and (not options.near or str(pathlib.Path(one[1][0]).relative_to(COPY)) in near)]
    clean = (sound(script_runs() if cores else ()), sound(units), sound(() if options.near or not cores else seed_runs(options.seeds)),
             sound(harness_runs() if comm else ()))
    print("%d scripts, %d units, %d seeds and %d scenarios of workers pass on the tree as it is" % tuple(map(len, clean)), flush=True)
    score, lost = [0, 0], 0
    for name, what, file, pairs in chosen:
        known_alive, name = name.startswith("~"), name.lstrip("~")
        score[1] += 1
        found = try_one(name, file, pairs, clean, options)
        bad = found is not None and found.startswith("NOT")  # the tree has moved on below it
        score[0] += found is not None and not bad
        lost += bad or (found is None and not known_alive)
        print("%-30s %s" % (name, found or "ALIVE: " + what), flush=True)
    print("%d of %d found" % tuple(score))
    return 1 if lost else 0


def try_one(name, file, pairs, clean, options):
    """What found it and after how long; None: nothing."""
    scripts, units, seeds, harness = clean
    source = COPY / file
    sound = source.read_text()
    near = set(unit_programs(nearest(file)))
    by_near = [(run, command) for run, command in units if str(pathlib.Path(command[0]).relative_to(COPY)) in near]
    by_rest = [one for one in units if one not in by_near]
    rest = [program for program in unit_programs() if program not in near]
    began, used = time.monotonic(), os.times().children_user
    try:
        source.write_text(planted(sound, pairs))
        played = ((scripts, ["build/release/sim_alone"]), (seeds, []))
        if file.startswith("collective/"):
            played = ((harness, ["build/release/tests/" + name for name in HARNESS]), ((), []))
        elif file.startswith(APART):
            played = (((), []), ((), []))
        for runs, targets in ((by_near, sorted(near)), *played, (by_rest, rest))[:2 if options.near else 4]:
            ok, said = build(targets) if runs and targets else (True, "")
            if not ok:
                return "NOT PLANTED: does not build: " + said[-500:]
            for run, command in runs:
                said = fails(command, 60)
                if said:
                    return "%s after %.0f s of CPU (%.0f s): %s" % (run, os.times().children_user - used,
                                                                   time.monotonic() - began, said)
                if os.times().children_user - used > options.seconds:
                    return None
    except LookupError as text:
        return "NOT PLANTED: %s" % text
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
