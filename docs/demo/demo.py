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
import time
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from mesh import Failed, Mesh, job_id  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
KILL_AT_STEP = 150
STEPS_OF_THE_NEW_HOST = 100
SECONDS_MAX = 170


class Screen:
    """Draws on a terminal, prints lines elsewhere."""

    def __init__(self):
        self.terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.began = time.monotonic()
        self.drawn = 0
        self.last_line = 0.0

    def say(self, text):
        self.clear()
        print("%6.1f s  %s" % (time.monotonic() - self.began, text), flush=True)

    def clear(self):
        if self.drawn:
            sys.stdout.write("\x1b[%dA\x1b[J" % self.drawn)
            self.drawn = 0

    def progress(self, job, nodes, workers):
        line = ("%(state)s  epoch %(epoch)s  ranks %(workers)d  step %(steps)d  data epoch %(dataEpoch)d  "
                "%(stepsPerSecond).1f steps/s" % job)
        if "loss" in job:
            line += "  loss %.4f  accuracy %.3f" % (job["loss"], job["accuracy"])
        if not self.terminal:
            if time.monotonic() - self.last_line > 3:
                self.last_line = time.monotonic()
                self.say(line)
            return
        self.clear()
        lines = [line]
        for node in nodes:
            here = [w for w in workers.values() if w[0].name == node["name"]]
            role = " ".join(word for word, name in (("leads", job["leader"]), ("driver", job["driver"])) if name == node["name"])
            lines.append("  %-8s %-8s slots %d/%d  %-14s %s" % (node["name"], node["state"], node["slots"] - node["slotsFree"],
                         node["slots"], role, " ".join("#%d:%d" % (w[3]["slot"], w[3]["minibatches"]) for w in here)))
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        self.drawn = len(lines)


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


def look(mesh, job, hosts, screen):
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
    screen.progress(facts, nodes, workers)
    if facts["hasEnded"] and facts["state"] != "FINISHED":
        raise Failed("the job ended as %s: %s" % (facts["state"], facts["detail"]))
    return facts, workers


def wait_for_step(mesh, job, hosts, step, screen, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen = look(mesh, job, hosts, screen)
        if seen and (seen[0]["steps"] >= step or seen[0]["hasEnded"]):
            return seen
        time.sleep(0.25)
    raise Failed("no step %d within %g s" % (step, seconds))


def lose_the_leader(mesh, job, screen):
    before, workers = wait_for_step(mesh, job, mesh.hosts, KILL_AT_STEP, screen, 90)
    if before["leader"] != before["driver"]:
        screen.say("the leader is on %s, the driver on %s: the leader's host is lost" % (before["leader"], before["driver"]))
    victim = next(host for host in mesh.hosts if host.name == before["leader"])
    rest = [host for host in mesh.hosts if host is not victim]
    survivors = {w: v[:3] for w, v in workers.items() if v[0] is not victim}
    screen.say("step %d: kills %s, which leads the job%s, with its %d workers, and deletes its folder" %
               (before["steps"], victim.name, " and runs its driver" if before["driver"] == victim.name else "",
                len(workers) - len(survivors)))
    began = time.monotonic()
    victim.lose()
    elected = mesh.until(lambda: (f := mesh.job(job, *rest)) and f["leader"] not in ("", victim.name) and f["term"] > before["term"] and f,
                         20, "a new leader")
    screen.say("%s leads in term %d, %.2f s after the kill" % (elected["leader"], elected["term"], time.monotonic() - began))
    known = elected["steps"]
    stepped = mesh.until(lambda: (f := mesh.job(job, *rest)) and f["steps"] > max(known, before["steps"]) and f, 30, "the next step")
    screen.say("step %d, epoch %s, %d ranks: training goes on %.2f s after the kill" %
               (stepped["steps"], stepped["epoch"], stepped["workers"], time.monotonic() - began))
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
        end = time.monotonic() + SECONDS_MAX
        while True:
            seen = look(mesh, job, mesh.hosts, screen)
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
                               (fourth.name, time.monotonic() - began))
                mine = mine >= STEPS_OF_THE_NEW_HOST
                if mine and not reached:
                    reached = True
                    screen.say("%s has committed %d mini-batches and more" % (fourth.name, STEPS_OF_THE_NEW_HOST))
            if time.monotonic() > end:
                raise Failed("the job did not end in time")
            time.sleep(0.25)
        screen.say("FINISHED after %d steps" % facts["steps"])
        finish(mesh, job, fourth, survivors, unchanged, reached, places, screen)
        if options.keep:
            screen.say("the mesh stays up: SHOAL_USER=admin SHOAL_PASSWORD='%s' %s top --node %s" %
                       ("swim together", mesh.binary, fourth.url))


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
        screen.say("FAILED: %s" % error)
        return 1
    screen.say("the mesh lost a host, gained one, and the training never noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
