#!/usr/bin/env python3
"""libshoal's workers on a real card: what tests/system/test_comm_device.py plays on libraries that stand for CUDA and NCCL.
Python's own library alone, so that it runs where the tree was only copied to.

    tests/gpu/native.py [--bin build/release/tests/system] [--lib FOLDER] [--nccl FILE]... [--logs FOLDER] [--seconds 150] [PART...]

    look       the card, the libraries and what they need
    alone      one worker: without NCCL, and with each NCCL that is there
    probe      three short scenarios on an NCCL that lets ranks share a card (2.30.3); NCCL says all that it does
    life       longer ones: communicators are kept, shrunk and grown
    one        an NCCL that allows one rank a card: it refuses, and host memory takes its place
    times      a kill and a join by the clock, over NCCL and through host memory
    shared     over NCCL, every scenario but those of types that a small build lacks
    staged     every scenario without NCCL: through the host's arena

`--nccl` is a libnccl.so.2 to try beside those of this Python's packages. One line a part, ok or FAILED with the reason's last
lines; everything that was said is in LOGS/native.log. What the time does not allow is counted, or named at the end."""

import argparse
import collections
import concurrent.futures
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 45  # of one scenario, which gives up after 30
NOWHERE = "/nowhere/libnccl.so.2"
SHARES = 23003  # the first NCCL that lets ranks share a card
LONG = "elems=3000 v=8 samples=1600 minibatch=4 epochs=2 compute_us=2000"
FEW = ("three_workers", "kill_before_publish", "kill_mid_reduce", "join", "reform")
BEGUN = time.monotonic()


class Run:
    def __init__(self, options):
        self.options, self.log = options, open(os.path.join(options.logs, "native.log"), "w")
        self.harness, self.worker = (os.path.join(options.bin, name) for name in ("comm_harness", "cworker"))
        self.ncclless = self.environment(NOWHERE)
        self.failed, self.left_out, self.until = [], [], BEGUN + options.seconds

    def environment(self, nccl, **more):
        shared = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"} if version(nccl) >= SHARES else {}
        found = {**os.environ, "CWORKER_DEVICE": "1", "SHOAL_NCCL": nccl, "NCCL_DEBUG": "WARN",
                 "NCCL_DEBUG_FILE": self.options.scratch + "/nccl.%p", **shared, **more}
        if self.options.lib:
            found["LD_LIBRARY_PATH"] = self.options.lib + ":" + found.get("LD_LIBRARY_PATH", "")
        return found

    def say(self, line):
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def left(self):
        return self.until - time.monotonic()

    def command(self, words, environment, seconds=SECONDS):
        """The end, or None after `seconds`; and what it said, with where its processes stood if it did not end."""
        done = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                                start_new_session=True)
        try:
            said, _ = done.communicate(timeout=max(1, min(seconds, self.left())))
            rc = done.returncode
        except subprocess.TimeoutExpired:
            where = standing(done.pid)
            os.killpg(done.pid, signal.SIGKILL)
            said, rc = done.communicate()[0] + "did not end in %d s\n%s" % (seconds, where), None
        self.log.write("---- %s: %s\n%s" % (" ".join(map(str, words[1:])), rc, said))
        return rc, said

    def scenario(self, name, environment, *words):
        began = time.monotonic()
        if self.left() < 3:
            return name, None, 0, ""
        rc, said = self.command([self.harness, self.worker, "scenario=" + name, "rounds=1", *words], environment)
        return name, rc == 0 and "ok   %s " % name in said, time.monotonic() - began, said

    def scenarios(self, what, names, environment, *words, lanes=4, want=None):
        """All of them, some at a time. `want`: of the counts of all workers; an error's text, or None."""
        began, counts, bad, took, out = time.monotonic(), collections.Counter(), [], [], 0
        with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
            for name, ok, seconds, said in pool.map(lambda name: self.scenario(name, environment, *words), names):
                counts.update(counted(said))
                took.append((seconds, name))
                out += ok is None
                if ok is False:
                    bad.append("%s: %s" % (name, last_lines(said)))
        wrong = want(counts) if want and not bad and out < len(names) else None
        self.verdict("%s: %d of %d scenarios%s; slowest %.1f s (%s); %s" % (
            what, len(names) - len(bad) - out, len(names), ", %d not run" % out if out else "", *max(took, default=(0, "")), worded(counts)),
            bad + ([wrong] if wrong else []), began)

    def verdict(self, line, bad, began):
        self.say("%-6s %s; %.1f s" % ("FAILED" if bad else "ok", line, time.monotonic() - began))
        for reason in bad[:3]:
            self.say("        " + reason)
        if len(bad) > 3:
            self.say("        and: " + " ".join(reason.split(":")[0] for reason in bad[3:])[:600])
        if bad:
            self.failed.append(line.split(":")[0])

    def names(self):
        return subprocess.run([self.harness, "list"], capture_output=True, text=True, check=True, env=self.ncclless).stdout.split()


def last_lines(said):
    return "\n          ".join(line[:220] for line in said.strip().splitlines()[-4:])


def counted(said):
    found = collections.Counter()
    for name, number in re.findall(r"(\w+) (\d+)", " ".join(re.findall(r"device: (.*)", said))):
        found[name] += int(number)
    return found


def worded(counts):
    return " ".join("%s %d" % pair for pair in counts.items()) or "no counts"


def version(path):
    """2.30.7 is 23007; 0: no library, or it cannot be loaded here. In a process of its own, since it stays loaded."""
    if not os.path.exists(path):
        return 0
    code = "import ctypes, sys; n = ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(n)); print(n.value)"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


def standing(leader):
    """Of each process of the group: its threads, and the calls in which they wait."""
    lines = []
    for task in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*"):
        try:
            if os.getpgid(int(task.parent.parent.name)) == leader:
                lines.append("%s %s %s %s" % (task.parent.parent.name, *((task / name).read_text().strip() for name in ("comm", "wchan", "syscall"))))
        except OSError:
            pass
    return "\n".join(lines[:60]) + "\n"


# ---- the parts ----


def look(run):
    began = time.monotonic()
    for words in (["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_mode,mig.mode.current", "--format=csv,noheader"],
                  ["ldd", run.worker]):
        try:
            rc, said = run.command(words, run.ncclless, 20)
        except OSError as error:
            rc, said = 1, str(error)
        lost = [line.strip() for line in said.splitlines() if "not found" in line]
        run.verdict("look: %s: %s" % (words[0], said.strip().splitlines()[-1:] if words[0] != "ldd" else "%d libraries" % said.count("=>")),
                    lost or ([last_lines(said)] if rc != 0 else []), began)
    for path in run.options.nccl:
        run.verdict("look: NCCL %d: %s" % (version(path), path), [] if version(path) else ["cannot be loaded"], began)


def alone(run):
    for name, environment, field in [("no NCCL", run.ncclless, "staged")] + [
            ("NCCL %d" % version(path), run.environment(path), "operations") for path in run.options.nccl if version(path)]:
        began = time.monotonic()
        rc, said = run.command([run.worker], environment)
        run.verdict("alone: %s; %s" % (name, worded(counted(said))),
                    [] if rc == 0 and counted(said)[field] > 0 else [last_lines(said)], began)
    began = time.monotonic()
    rc, said = run.command([run.worker], {**run.ncclless, "CUDA_VISIBLE_DEVICES": ""})
    run.verdict("alone: no device: %s" % " ".join(said.split())[-110:], [] if rc != 0 and ("device 0" in said or "cuInit" in said) else [last_lines(said)],
                began)


def staged(run):
    def want(counts):
        return None if counts["staged"] > 0 and counts["operations"] == 0 else "no operation was staged, or one was not"

    names = run.names()
    run.scenarios("staged", [name for name in names if name != "ops_out_of_order"], run.ncclless, lanes=5, want=want)


def one(run):
    """Refused by all ranks, again and again until the process does without; the log says why."""
    def want(counts):
        return None if counts["given_up"] > 0 and counts["staged"] > 0 and counts["operations"] == 0 else "it was not refused"

    for path in run.options.nccl:
        if 0 < version(path):
            run.scenarios("one rank a card, NCCL %d" % version(path), FEW, run.environment(path, NCCL_MULTI_RANK_GPU_ENABLE="0"), lanes=2, want=want)


def sharing(run):
    return [path for path in run.options.nccl if version(path) >= SHARES][-1:]


def over_nccl(counts):
    if counts["operations"] == 0:
        return "nothing went over NCCL"
    return "communicators were given up" if counts["given_up"] > 0 else None


def probe(run):
    for path in sharing(run):
        run.scenarios("probe, NCCL %d" % version(path), FEW[:3], run.environment(path, NCCL_DEBUG="INFO"), lanes=1, want=over_nccl)


def shared(run):
    run.until -= max(0, run.left()) * 0.4  # for what comes after it
    for path in sharing(run):
        names = [name for name in run.names() if not name.startswith(("ops_", "bug_")) and "host" not in name and "link" not in name]
        run.scenarios("shared, NCCL %d" % version(path), names, run.environment(path), lanes=2, want=over_nccl)


def life(run):
    for path in sharing(run):
        for name, field in (("kill_before_publish", "shrunk"), ("join", "grown"), ("reform", "kept"), ("two_joins_and_a_kill", "grown"), ("random", "made")):
            run.scenarios("life, NCCL %d, %s" % (version(path), name), [name], run.environment(path), "options=" + LONG, "seed=3", lanes=1,
                          want=lambda counts, field=field: None if counts[field] > 0 else "none was " + field)


def times(run):
    for path in sharing(run) + [NOWHERE]:
        for name in ("time_kill_small", "time_join"):
            began = time.monotonic()
            _, ok, _, said = run.scenario(name, run.environment(path), "options=elems=262144 v=6 samples=1800 minibatch=2 epochs=1 compute_us=500")
            figure = re.findall(r"  (.*: [\d.]+ ms)", said)
            run.verdict("times: %s: %s: %s" % ("host memory" if path == NOWHERE else "NCCL %d" % version(path), name, (figure or ["no figure"])[0]), [] if ok and figure else [last_lines(said)],
                        began)


PARTS = {part.__name__: part for part in (look, alone, probe, life, one, times, shared, staged)}


def libraries():
    found = [str(path) for folder in sys.path if folder for path in pathlib.Path(folder).glob("nvidia/*/lib/libnccl.so.2")]
    return list(dict.fromkeys(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/tests/system")
    parser.add_argument("--lib", default="")
    parser.add_argument("--nccl", action="append", default=[])
    parser.add_argument("--logs", default=tempfile.gettempdir())
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []])
    options = parser.parse_args()
    options.bin, options.lib = os.path.abspath(options.bin), options.lib and os.path.abspath(options.lib)
    options.nccl = libraries() + [os.path.abspath(path) for path in options.nccl]
    with tempfile.TemporaryDirectory() as options.scratch:
        run = Run(options)
        for name in options.parts or PARTS:
            run.until = BEGUN + options.seconds
            if run.left() < 5:
                run.left_out.append(name)
                continue
            try:
                PARTS[name](run)
            except Exception as error:  # noqa: BLE001
                run.verdict("%s: %r" % (name, error), ["the part itself failed"], time.monotonic())
        for path in sorted(pathlib.Path(options.scratch).iterdir()):
            run.log.write("---- %s\n%s" % (path.name, path.read_text(errors="replace")[-6000:]))
    run.say("native: %d parts failed%s; not run: %s; %.0f s" % (
        len(run.failed), " (%s)" % "; ".join(run.failed) if run.failed else "", " ".join(run.left_out) or "none", time.monotonic() - BEGUN))
    sys.exit(1 if run.failed else 0)


if __name__ == "__main__":
    main()
