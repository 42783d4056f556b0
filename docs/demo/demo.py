"""A mesh that trains, loses a host, gains another, and never notices.

Three agents on loopback stand for three hosts. An elastic job trains a small network on handwritten digits with six
workers. At step 150 the host that leads the job and runs its driver is killed, workers and disk included; a fourth host
joins. At the end: the ledger, the pids that never changed, and the accuracy of the model on digits it never saw."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import time
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from mesh import Failed, Mesh, job_id  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
KILL_AT_STEP = 150
STEPS_OF_THE_NEW_HOST = 100
STILL_SECONDS = 120  # nothing at all has changed for so long: it is given up. While steps go on it takes what it takes
COLOURS = {"good": "32", "bad": "31;1", "event": "33;1", "dim": "2", "strong": "1"}


class Screen:
    """Draws on a terminal, prints lines elsewhere; no wider than the terminal, in colour unless NO_COLOR asks for none."""

    def __init__(self):
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.coloured = self.terminal and not os.environ.get("NO_COLOR")
        self.began = time.monotonic()
        self.drawn = 0
        self.last_line = 0.0

    def columns(self):
        return max(40, shutil.get_terminal_size((80, 24)).columns) if self.terminal else 80

    def paint(self, text, colour):
        return "\x1b[%sm%s\x1b[0m" % (COLOURS[colour], text) if self.coloured and colour else text

    def say(self, text, colour=None):
        self.clear()
        lines = textwrap.wrap(text, self.columns() - 10, break_long_words=False) or [""]
        print(self.paint("%6.1f s  " % (time.monotonic() - self.began), "dim") + self.paint(lines[0], colour))
        for line in lines[1:]:
            print(" " * 10 + self.paint(line, colour))
        sys.stdout.flush()

    def clear(self):
        if self.drawn:
            sys.stdout.write("\x1b[%dA\x1b[J" % self.drawn)
            self.drawn = 0

    def progress(self, job, nodes, workers, waits):
        line = "%s  epoch %s  ranks %d  " % (job["state"], job["epoch"], job["workers"])
        if job["steps"] == 0:
            line = "%s  starts: %s" % (job["state"], waits)
        else:
            line += "step %d  %.1f/s" % (job["steps"], job["stepsPerSecond"])
        if "loss" in job:
            line += "  loss %.4f  accuracy %.3f" % (job["loss"], job["accuracy"])
        if not self.terminal:
            if time.monotonic() - self.last_line > 3:
                self.last_line = time.monotonic()
                self.say(line)
            return
        lines = [(line, "strong")]
        for node in nodes:
            here = [w for w in workers.values() if w[0].name == node["name"]]
            role = " ".join(word for word, name in (("leads", job["leader"]), ("driver", job["driver"])) if name == node["name"])
            lines.append(("  %-8s %-8s slots %d/%d  %-13s %s" % (
                node["name"], node["state"], node["slots"] - node["slotsFree"], node["slots"], role,
                " ".join("#%d:%d" % (w[3]["slot"], w[3]["minibatches"]) for w in here)),
                "good" if node["state"] == "alive" else "bad"))
        self.clear()
        for text, colour in lines:  # cut, not wrapped: each is one line to go up again
            sys.stdout.write(self.paint(text[:self.columns() - 1], colour) + "\n")
        sys.stdout.flush()
        self.drawn = len(lines)


class Patience:
    """Ends when nothing has changed for a long time, however slowly the rest goes."""

    def __init__(self):
        self.seen, self.since = None, time.monotonic()

    def look(self, what, now):
        if now != self.seen:
            self.seen, self.since = now, time.monotonic()
        if time.monotonic() - self.since > STILL_SECONDS:
            raise Failed("%s: nothing has changed for %d s: %s" % (what, STILL_SECONDS, now))


def waits_for(job, facts, workers, hosts):
    """What a job without a step is doing."""
    placed = 0
    for host in hosts:
        try:
            placed += sum(lease["job"] == job and lease["slot"] >= 0 for lease in host.get("/v1/debug/leases"))
        except OSError:
            pass
    loading = sum(w[3]["activity"] == 0 for w in workers.values())
    if not placed:
        return facts["pending"] or "waits for slots"
    if len(workers) < placed:
        return "%d of %d processes are up; they import libraries" % (len(workers), placed)
    if loading:
        return "%d of %d processes load the bundle and the data" % (loading, placed)
    return "%d processes are ready and form the first epoch" % placed


def submit(mesh, host, screen):
    """The submitted directory is gone as soon as the answer is there."""
    copy = mesh.folder / "digits"
    shutil.copytree(HERE / "digits", copy)
    answer = mesh.cli(host, "job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--model-dir", copy,
                      "--workers", "6")
    shutil.rmtree(copy)
    job = job_id(str(answer))
    screen.say("submitted %s through %s; the submitted directory is deleted" % (job, host.name))
    return job


def look(mesh, job, hosts, screen, patience):
    facts = mesh.job(job, *hosts)
    if facts is None:
        return None
    for host in hosts:
        try:
            nodes = host.get("/v1/nodes")
            break
        except OSError:
            nodes = []
    workers = mesh.workers(job, hosts)
    waits = waits_for(job, facts, workers, hosts) if facts["steps"] == 0 else ""
    screen.progress(facts, nodes, workers, waits)
    patience.look("the job", (facts["state"], facts["steps"], facts["epoch"], facts["detail"], waits,
                              sorted((w, v[3]["activity"], v[3]["minibatches"]) for w, v in workers.items())))
    if facts["hasEnded"] and facts["state"] != "FINISHED":
        raise Failed("the job ended as %s: %s" % (facts["state"], facts["detail"]))
    return facts, workers


def wait_for_step(mesh, job, hosts, step, screen):
    patience = Patience()
    while True:
        seen = look(mesh, job, hosts, screen, patience)
        patience.look("the job", patience.seen if seen else "no host shows it")
        if seen and (seen[0]["steps"] >= step or seen[0]["hasEnded"]):
            return seen
        time.sleep(0.25)


def lose_the_leader(mesh, job, screen):
    before, workers = wait_for_step(mesh, job, mesh.hosts, KILL_AT_STEP, screen)
    if before["leader"] != before["driver"]:
        screen.say("the leader is on %s, the driver on %s: the leader's host is lost" % (before["leader"], before["driver"]))
    victim = next(host for host in mesh.hosts if host.name == before["leader"])
    rest = [host for host in mesh.hosts if host is not victim]
    survivors = {w: v[:3] for w, v in workers.items() if v[0] is not victim}
    screen.say("step %d: kills %s, which leads the job%s, with its %d workers, and deletes its folder" %
               (before["steps"], victim.name, " and runs its driver" if before["driver"] == victim.name else "",
                len(workers) - len(survivors)), "bad")
    began = time.monotonic()
    victim.lose()
    elected = mesh.until(lambda: (f := mesh.job(job, *rest)) and f["leader"] not in ("", victim.name) and f["term"] > before["term"] and f,
                         20, "a new leader")
    screen.say("%s leads in term %d, %.2f s after the kill" % (elected["leader"], elected["term"], time.monotonic() - began), "event")
    known = elected["steps"]
    stepped = mesh.until(lambda: (f := mesh.job(job, *rest)) and f["steps"] > max(known, before["steps"]) and f, 30, "the next step")
    screen.say("step %d, epoch %s, %d ranks: training goes on %.2f s after the kill" %
               (stepped["steps"], stepped["epoch"], stepped["workers"], time.monotonic() - began), "good")
    mesh.hosts.remove(victim)
    return survivors, {w: v[0].name for w, v in workers.items()}


def check_result(mesh, job, host, screen):
    archive = mesh.folder / "result.zip"
    mesh.shoal("job", "result", job, archive, "--node", host.url)
    with zipfile.ZipFile(archive) as content:
        names = content.namelist()
        final = next((n for n in names if n.endswith("model_epoch_final.pth")), None)
        if final is None:
            raise Failed("the archive holds no model_epoch_final.pth, only %s" % names)
        content.extract(final, mesh.folder)
    screen.say("fetched the result from %s: %d files" % (host.name, len(names)))
    done = subprocess.run([mesh.python, str(HERE / "evaluate.py"), str(mesh.folder / final)], capture_output=True, text=True)
    screen.say("in a fresh process: " + (done.stdout.strip() or done.stderr.strip()))
    accuracy = float(done.stdout.rsplit(None, 1)[1]) if done.returncode == 0 else 0.0
    if accuracy < 0.95:
        raise Failed("accuracy %.4f is below 0.95" % accuracy)


def check_ledger(mesh, job, host, places, screen):
    ledger = mesh.cli(host, "job", "ledger", job)
    screen.say("ledger: %d steps, %d of %d data epochs complete, every sample of every data epoch exactly once: %s" %
               (ledger["steps"], ledger["data_epochs"], ledger["data_epochs_wanted"], "yes" if ledger["exact"] else "NO"))
    for line in ledger["errors"]:
        screen.say("  " + line)
    total = sum(share["samples"] for share in ledger["shares"])
    for share in ledger["shares"]:
        screen.say("  worker %-20d on %-6s %6.1f %% of the samples" %
                   (share["worker"], places.get(share["worker"], "?"), 100.0 * share["samples"] / total))
    if not ledger["exact"] or ledger["data_epochs"] != ledger["data_epochs_wanted"]:
        raise Failed("the ledger is not exact")


def run(options, screen):
    with Mesh(options.binary, keep=options.keep) as mesh:
        screen.say("starts three agents below %s, 2 CPU slots each" % mesh.folder)
        mesh.grow(["alpha", "beta", "gamma"])
        for node in mesh.hosts[1].get("/v1/nodes"):
            screen.say("  %-8s %-6s %s, %d slots" % (node["name"], node["state"], node["address"], node["slots"]))
        job = submit(mesh, mesh.hosts[1], screen)
        survivors, places = lose_the_leader(mesh, job, screen)
        fourth = mesh.add("delta", seed=mesh.hosts[0])
        began = time.monotonic()
        screen.say("starts a fourth host, delta")
        first = reached = False
        unchanged = {}
        patience = Patience()
        while True:
            seen = look(mesh, job, mesh.hosts, screen, patience)
            patience.look("the job", patience.seen if seen else "no host shows it")
            if seen:
                facts, workers = seen
                places.update({w: v[0].name for w, v in workers.items()})
                if facts["hasEnded"]:
                    break
                unchanged.update({w: v[:3] for w, v in workers.items() if w in survivors})
                mine = sum(v[3]["minibatches"] for v in workers.values() if v[0] is fourth)
                if mine and not first:
                    first = True
                    screen.say("%s has committed its first mini-batches, %.1f s after its agent's start" %
                               (fourth.name, time.monotonic() - began), "good")
                mine = mine >= STEPS_OF_THE_NEW_HOST
                if mine and not reached:
                    reached = True
                    screen.say("%s has committed %d mini-batches and more" % (fourth.name, STEPS_OF_THE_NEW_HOST))
            time.sleep(0.25)
        screen.say("FINISHED after %d steps" % facts["steps"])
        finish(mesh, job, fourth, survivors, unchanged, reached, places, screen)
        if options.keep:
            screen.say("the mesh stays up: SHOAL_CA=%s SHOAL_USER=admin SHOAL_PASSWORD='%s' %s top --node %s" %
                       (mesh.ca, "swim together", mesh.binary, fourth.url))


def finish(mesh, job, host, survivors, unchanged, reached, places, screen):
    log = mesh.shoal("job", "logs", job, "--node", host.url).stdout
    screen.say("fetched the log from %s, which never saw the submit: %d lines, the last: %s" %
               (host.name, len(log.splitlines()), (log.splitlines() or [""])[-1][:100]))
    check_result(mesh, job, host, screen)
    check_ledger(mesh, job, host, places, screen)
    for worker, (place, pid, start) in sorted(survivors.items()):
        screen.say("survivor %d on %s: pid %d, started at %d, unchanged: %s" %
                   (worker, place.name, pid, start, "yes" if unchanged.get(worker) == (place, pid, start) else "NO"))
    if unchanged != survivors:
        raise Failed("a survivor was restarted")
    if not reached:
        raise Failed("the fourth host did not commit %d mini-batches" % STEPS_OF_THE_NEW_HOST)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--binary", default=None)
    arguments.add_argument("--keep", action="store_true", help="leave the mesh up")
    screen = Screen()
    try:
        run(arguments.parse_args(), screen)
    except Failed as error:
        screen.say("FAILED: %s" % error, "bad")
        return 1
    screen.say("the mesh lost a host, gained one, and the training never noticed", "good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
