"""A model that was trained on the mesh is served by it, and a host dies while it is asked.

Three agents on loopback stand for three hosts. A short elastic job trains the digits model, one verb deploys it, and requests go
through all three hosts; in their midst one of the hosts that serve it is killed. At the end: throughput, p50 and p99, what was
lost (only what was in flight on that host), the replicas over time, and each answer beside the model's own."""

import argparse
import concurrent.futures
import http.client
import importlib.util
import json
import pathlib
import shutil
import ssl
import statistics
import sys
import threading
import time
import urllib.parse
import zipfile

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from demo import HERE, Screen  # noqa: E402
from mesh import Failed, Mesh, job_id  # noqa: E402

CLIENTS, PATIENCE_S = 12, 600
TOLERANCE = 1e-4  # logits of a batch of other size: sums in another order


def train(mesh, screen, epochs):
    """(the final weights, the folder of the script)"""
    folder = mesh.folder / "digits"
    shutil.copytree(HERE / "digits", folder)
    script = folder / "main.py"
    script.write_text(script.read_text().replace("EPOCHS, BATCH, ENGINES = 100,", "EPOCHS, BATCH, ENGINES = %d," % epochs))
    answer = mesh.cli(mesh.hosts[1], "job", "run", "--framework", "edtPyTorch", "--model-main", "main.py", "--model-dir", folder,
                      "--workers", "3")
    job = job_id(str(answer))
    screen.say("trains the digits as job %s, %d epochs" % (job, epochs))
    facts = mesh.until(lambda: (f := mesh.job(job, *mesh.hosts)) and f["hasEnded"] and f, PATIENCE_S, "the training ends", 0.5)
    if facts["state"] != "FINISHED":
        raise Failed("the training ended as %s: %s" % (facts["state"], facts["detail"]))
    archive = mesh.folder / "result.zip"
    mesh.shoal("job", "result", job, archive, "--node", mesh.hosts[2].url)
    with zipfile.ZipFile(archive) as content:
        final = next(name for name in content.namelist() if name.endswith("model_epoch_final.pth"))
        content.extract(final, mesh.folder)
    return mesh.folder / final, script


def reference(script, weights):
    """(images, what the model itself answers)"""
    sys.modules.setdefault("fabric_model", type(sys)("fabric_model"))
    sys.modules["fabric_model"].FabricModel = None
    spec = importlib.util.spec_from_file_location("digits", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.network()
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model.eval()
    images = module.digits()[0]
    with torch.no_grad():
        return images.reshape(len(images), -1).tolist(), model(images).tolist()


class Client:
    """One connection after the other to one host, from one thread."""

    def __init__(self, host, token):
        self.host, self.token, self.connection = host, token, None

    def ask(self, image):
        """(status, logits or text, seconds); status 0: the connection broke."""
        began = time.monotonic()
        try:
            if self.connection is None:
                address = urllib.parse.urlsplit(self.host.url).netloc
                context = ssl._create_unverified_context()  # the demo's own hosts, on loopback
                self.connection = http.client.HTTPSConnection(address, timeout=120, context=context)
            self.connection.request("POST", "/dlim/v1/inference/digits", json.dumps(image), {"Authorization": "Bearer " + self.token})
            answer = self.connection.getresponse()
            status, body = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection = None
            return 0, str(error), time.monotonic() - began
        return status, json.loads(body) if status == 200 else body.decode(), time.monotonic() - began


class Load:
    """All requests, by CLIENTS threads."""

    def __init__(self, mesh, images, count):
        self.token = mesh.token(mesh.hosts[0])
        self.mesh, self.images, self.count = mesh, images, count
        self.answers, self.lock, self.next, self.dead = [], threading.Lock(), 0, None

    def take(self):
        with self.lock:
            self.next += 1
            return self.next - 1 if self.next <= self.count else None

    def client(self, number):
        clients = [Client(host, self.token) for host in self.mesh.hosts]
        while (i := self.take()) is not None:
            alive = [client for client in clients if client.host is not self.dead]
            client = alive[(number + i) % len(alive)]
            status, answer, seconds = client.ask(self.images[i % len(self.images)])
            with self.lock:
                self.answers.append((i, status, answer, seconds, client.host))


def replicas(mesh, hosts):
    for host in hosts:
        try:
            shown = mesh.cli(host, "service", "show", "digits")
            return shown["ready"], {place["node"]: place["ready"] for place in shown["hosts"]}
        except (OSError, Failed):
            continue
    return 0, {}


def strike(mesh, load, screen):
    """One host that serves the model is lost when a third of the requests is answered."""
    mesh.until(lambda: len(load.answers) >= load.count // 3, PATIENCE_S, "a third of the requests", 0.02)
    there = replicas(mesh, mesh.hosts)[1]
    victim = next(host for host in reversed(mesh.hosts) if host.name in there)
    in_flight = len(load.answers)
    load.dead = victim  # nobody begins to ask it any more: what is lost was in flight there
    victim.lose()
    screen.say("after %d answers: kills %s, with %d of the kernels, and deletes its folder" % (in_flight, victim.name, there[victim.name]), "bad")
    return victim


def judge(load, wanted, seconds, victim, screen):
    good = [answer for answer in load.answers if answer[1] == 200]
    lost = [answer for answer in load.answers if answer[1] != 200]
    times = sorted(answer[3] for answer in good)
    screen.say("%d requests in %.1f s: %.0f a second; p50 %.1f ms, p99 %.1f ms" %
               (load.count, seconds, load.count / seconds, 1000 * statistics.median(times), 1000 * times[int(len(times) * 0.99)]), "strong")
    screen.say("%d were lost: %s" % (len(lost), ", ".join("%s %s" % (status or "connection", text[:60]) for _, status, text, _, _ in lost[:3])
                                     or "none"), "event" if lost else "good")
    if len(load.answers) != load.count or len(lost) > 2 * CLIENTS:
        raise Failed("more was lost than can have been in flight on %s: %d" % (victim.name, len(lost)))
    worst = max(max(abs(a - b) for a, b in zip(answer, wanted[i % len(wanted)])) for i, _, answer, _, _ in good)
    screen.say("each answer is the model's own: the largest difference of a logit is %.2g" % worst, "good" if worst <= TOLERANCE else "bad")
    if worst > TOLERANCE:
        raise Failed("answers differ from the model's by %g" % worst)


def run(options, screen):
    with Mesh(options.binary, keep=options.keep) as mesh:
        screen.say("starts three agents below %s, 2 CPU slots each" % mesh.folder)
        mesh.grow(["alpha", "beta", "gamma"])
        weights, script = train(mesh, screen, options.epochs)
        package = mesh.folder / "served"
        shutil.copytree(HERE / "digits_served", package)
        shutil.copy(weights, package / "digits.pth")
        shutil.copy(script, package / "main.py")
        images, wanted = reference(script, weights)
        mesh.cli(mesh.hosts[0], "service", "deploy", "digits", "--package", package, "--replicas", "3")
        mesh.until(lambda: replicas(mesh, mesh.hosts)[0] == 3, PATIENCE_S, "three kernels are ready", 0.2)
        screen.say("deployed with one verb through alpha; kernels: %s" % replicas(mesh, mesh.hosts)[1])
        load, began = Load(mesh, images, options.requests), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            threads = [pool.submit(load.client, number) for number in range(CLIENTS)]
            victim = strike(mesh, load, screen)
            for thread in threads:
                thread.result()
        seconds = time.monotonic() - began
        rest = [host for host in mesh.hosts if host is not victim]
        screen.say("kernels now: %s" % replicas(mesh, rest)[1])
        judge(load, wanted, seconds, victim, screen)
        mesh.until(lambda: replicas(mesh, rest)[0] == 3, PATIENCE_S, "three kernels are ready again", 0.2)
        screen.say("three kernels again: %s" % replicas(mesh, rest)[1], "good")
        mesh.hosts.remove(victim)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--binary", default=None)
    arguments.add_argument("--requests", type=int, default=3000)
    arguments.add_argument("--epochs", type=int, default=10)
    arguments.add_argument("--keep", action="store_true", help="leave the mesh up")
    screen = Screen()
    try:
        run(arguments.parse_args(), screen)
    except Failed as error:
        screen.say("FAILED: %s" % error, "bad")
        return 1
    screen.say("the model was trained and is served; a host died, and its answers never changed", "good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
