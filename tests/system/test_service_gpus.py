"""Kernels of services on GPUs: several share a card by the memory that they declare, one has a card for itself, and most have none
to see; with jobs on the same cards. No GPU is needed: a library of ours stands for NVML."""

import io
import json
import tarfile
import urllib.error
import urllib.request

import pytest
from helpers import ended, log_of, submit
from mesh import TLS
from test_gpus import SAYS, gpu_mesh  # noqa: F401 (a fixture)

CARD_MIB = 81559  # as nvml_fake.c says of a card
KERNEL = """
import json, os
from redhareapi import Kernel

os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # as public kernels do (A19)

NAMES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SHOAL_GPU_MEM_MIB", "TASK12N_DEVICE_TYPE")

def env():
    return json.dumps({name: os.environ.get(name) for name in NAMES})

class Says(Kernel):
    def on_kernel_start(self, context):
        print("env", env(), flush=True)

    def on_task_invoke(self, task):
        while task is not None:
            task.set_output_data(env())
            task = task.next()

if __name__ == "__main__":
    Says().run()
"""


class Gpus:
    """What a client of WMLA does, at one host."""

    def __init__(self, mesh, host=None):
        self.mesh, self.host = mesh, host or mesh.hosts[0]

    def call(self, method, path, body=None):
        """(status, JSON)"""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": "Bearer " + self.mesh.token(self.host), "Content-Type": "application/octet-stream"}
        request = urllib.request.Request(self.host.url + "/dlim/v1" + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=TLS) as answer:
                status, said = answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            status, said = refusal.code, refusal.read()
        return status, json.loads(said or b"null")

    def metrics(self):
        request = urllib.request.Request(self.host.url + "/metrics", headers={"Authorization": "Bearer " + self.mesh.token(self.host)})
        return urllib.request.urlopen(request, timeout=20, context=TLS).read().decode()

    def well(self, *words):
        status, said = self.call(*words)
        assert status == 200, said
        return said

    def deploy(self, name, gpu, kernels=1, mem="", pack="", start=True):
        packed = io.BytesIO()
        model = {"name": name, "kernel_path": "k.py", "runtime": "python", "weight_path": "./", "schema_version": "1"}
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path, text in (("model.json", json.dumps(model)), ("k.py", KERNEL), ("README.md", "x")):
                info = tarfile.TarInfo(path)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        self.well("POST", "/deployment/model", packed.getvalue())
        self.profile(name, gpu, kernels, mem, pack)
        if start:
            self.well("PUT", "/model/%s/operation/start" % name)

    def profile(self, name, gpu, kernels=1, mem="", pack=""):
        edit = {"kernel": {"gpu": gpu, "envs": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}, "policy": {"kernel_min": kernels, "kernel_max": kernels},
                "resource_allocation": {"kernel": {"gpu_pack_id": pack, "accelerator_resources": mem}}}
        self.well("PUT", "/model/%s/appprofile" % name, edit)

    def kernels(self, name):
        [instance] = self.well("GET", "/model/%s/instance" % name)["instances"]
        return [kernel for kernel in instance["isd_container"] if kernel["container_status"] in ("IDLE", "RUNNING")]

    def until_ready(self, name, count, seconds=60):
        return self.mesh.until(lambda: len(kernels := self.kernels(name)) == count and kernels, seconds,
                               "%s has %d kernels" % (name, count))

    def cards(self, name, count):
        """Of each kernel its card and what it has of it."""
        return sorted((kernel["gpu"], kernel["gpu_mem"]) for kernel in self.until_ready(name, count))

    def seen(self, name, replica):
        """The environment that this replica's kernel has started with."""
        said = self.mesh.shoal("service", "logs", name, "--replica", str(replica), "--node", self.host.url).stdout
        return json.loads([line for line in said.splitlines() if line.startswith("env ")][-1][4:])

    def waits(self, name, text):
        said = []

        def look():
            shown = self.mesh.cli(self.host, "service", "show", name)
            said.append(shown.get("why"))
            return text in (said[-1] or "") and shown

        try:
            return self.mesh.until(look, 30, "%s waits, and says: %s" % (name, text))
        except Exception as failed:
            raise AssertionError("%s; it said %s" % (failed, said[-1])) from failed

    def stop(self, name):
        self.well("PUT", "/model/%s/operation/stop" % name)
        self.mesh.until(lambda: self.well("GET", "/model/%s/instance" % name)["state"] == "disabled", 60, "%s is stopped" % name)


@pytest.fixture
def gpus(gpu_mesh):  # noqa: F811
    return lambda cards: Gpus(gpu_mesh(cards, slots=None))


def test_kernels_share_a_card_by_the_memory_that_they_declare(gpus):
    g = gpus("whole whole whole")
    g.deploy("big", "shared", kernels=3, mem="gpu_mem=30000", pack="p")  # two fit one card
    big = g.cards("big", 3)
    assert [mib for _, mib in big] == [30000] * 3
    cards = [card for card, _ in big]
    assert len(set(cards)) == 2
    [(full, _)] = [(card, 2) for card in set(cards) if cards.count(card) == 2]
    [(half, _)] = [(card, 1) for card in set(cards) if cards.count(card) == 1]
    seen = [g.seen("big", replica) for replica in range(3)]
    assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in seen) == sorted(cards)
    assert all(one["NVIDIA_VISIBLE_DEVICES"] == one["CUDA_VISIBLE_DEVICES"] and one["SHOAL_GPU_MEM_MIB"] == "30000" for one in seen)
    # Another model of the pack: its kernel takes what is left, before a card of its own.
    g.deploy("wide", "shared", mem="gpu_mem=%d" % (CARD_MIB - 30000), pack="p")
    assert g.cards("wide", 1) == [(half, CARD_MIB - 30000)]
    # What is left of the two cards is too little, so it begins the third one.
    g.deploy("more", "shared", mem="gpu_mem=%d" % (CARD_MIB - 60000 + 1), pack="p")
    [(third, _)] = g.cards("more", 1)
    assert third not in (full, half)
    # Another pack finds no card: it waits, and says why.
    g.deploy("other", "shared", mem="gpu_mem=1000")
    shown = g.waits("other", "1000 MiB of a GPU: no card has so much left")
    assert shown["ready"] == 0
    g.stop("more")
    assert g.cards("other", 1) == [(third, 1000)]
    metrics = g.metrics()
    assert 'shoal_gpu_memory_bytes{gpu="%s"} %d' % (full, CARD_MIB << 20) in metrics
    assert 'shoal_gpu_memory_leased_bytes{gpu="%s"} %d' % (full, 60000 << 20) in metrics
    assert 'shoal_gpu_memory_leased_bytes{gpu="%s"} %d' % (half, CARD_MIB << 20) in metrics
    said = g.mesh.shoal("service", "show", "wide", "--node", g.host.url).stdout
    assert "%s (NVIDIA Pretence 80GB), %d of %d MiB" % (half, CARD_MIB - 30000, CARD_MIB) in said


def test_the_modes_say_what_a_kernel_sees(gpus):
    g = gpus("whole whole")
    g.deploy("whole", "exclusive", kernels=2)
    assert g.cards("whole", 2) == [("GPU-00000", CARD_MIB), ("GPU-00001", CARD_MIB)]
    assert {g.seen("whole", replica)["CUDA_VISIBLE_DEVICES"] for replica in (0, 1)} == {"GPU-00000", "GPU-00001"}
    g.deploy("small", "shared", mem="gpu_mem=1")
    g.waits("small", "1 MiB of a GPU: no card has so much left")  # both cards are whole kernels'
    g.profile("whole", "exclusive", kernels=1)
    [(left, _)] = g.cards("whole", 1)
    [(shared, _)] = g.cards("small", 1)
    assert {left, shared} == {"GPU-00000", "GPU-00001"}
    g.stop("whole")
    g.deploy("plain", "no")
    g.until_ready("plain", 1)
    assert "gpu" not in g.kernels("plain")[0]
    assert g.well("POST", "/inference/plain", b"{}") == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "",
                                                         "SHOAL_GPU_MEM_MIB": None, "TASK12N_DEVICE_TYPE": "cpu"}


def test_jobs_and_kernels_do_not_have_more_of_a_card_than_there_is(gpus, script, tmp_path):
    g = gpus("whole")
    go = tmp_path / "go"
    job = submit(g.mesh, g.host, script(SAYS), "--device", "gpu", script=(str(go),))
    g.mesh.until(lambda: log_of(g.mesh, g.host, job), 60, "the job runs")
    g.deploy("late", "shared", mem="gpu_mem=1000")
    g.waits("late", "1000 MiB of a GPU: no card has so much left")
    go.touch()
    assert ended(g.mesh, job)["state"] == "FINISHED"
    assert g.cards("late", 1) == [("GPU-00000", 1000)]
    go.unlink()
    job = submit(g.mesh, g.host, script(SAYS), "--device", "gpu", script=(str(go),))
    g.mesh.until(lambda: "GPU slot" in g.mesh.shoal("why", job, "--node", g.host.url).stdout, 60, "it says what it waits for")
    assert log_of(g.mesh, g.host, job) == ""
    g.deploy("later", "shared", mem="gpu_mem=%d" % (CARD_MIB - 1000), pack="edi-late")  # the rest of it, to the last MiB
    assert g.cards("later", 1) == [("GPU-00000", CARD_MIB - 1000)]
    assert log_of(g.mesh, g.host, job) == ""
    g.stop("late")
    g.stop("later")
    go.touch()
    assert ended(g.mesh, job)["state"] == "FINISHED"
    assert log_of(g.mesh, g.host, job) == "device GPU-00000 gpu\n"


def test_what_is_leased_of_a_card_outlives_the_agent(gpus):
    g = gpus("whole")
    g.deploy("kept", "shared", mem="gpu_mem=10000", pack="p")
    g.cards("kept", 1)
    g.host.kill()
    g.host.start()
    g.mesh.until(lambda: g.mesh.knows(g.host, 1), 30, "the agent is back")
    g.deploy("next", "shared", mem="gpu_mem=%d" % (CARD_MIB - 10000 + 1), pack="p")
    g.waits("next", "no card has so much left")  # and nobody is asked to make room for it on its own card
    g.deploy("fits", "shared", mem="gpu_mem=%d" % (CARD_MIB - 10000), pack="p")
    assert g.cards("fits", 1) == [("GPU-00000", CARD_MIB - 10000)]
    assert g.cards("kept", 1) == [("GPU-00000", 10000)]


def test_eight_kernels_are_the_most_of_a_card(gpus):
    g = gpus("whole")
    g.deploy("many", "shared", kernels=8, mem="gpu_mem=10")
    assert g.cards("many", 8) == [("GPU-00000", 10)] * 8
    g.deploy("ninth", "shared", mem="gpu_mem=10", pack="edi-many")
    g.waits("ninth", "no card has so much left")
    edit = {"policy": {"kernel_min": 9, "kernel_max": 9}}
    status, said = g.call("PUT", "/model/many/appprofile", edit)
    assert status == 400 and "the mesh has 8 slots" in said["error"]


def test_without_such_a_card_a_service_says_what_it_waits_for(gpus):
    g = gpus("no driver")
    g.deploy("shares", "shared")
    g.waits("shares", "needs 4096 MiB of a GPU, and no host of the mesh has one that can be shared")
    g.deploy("alone", "exclusive")
    g.waits("alone", "GPU slot, but the whole mesh has 0")
    g.profile("alone", "no")  # what is edited counts for the next kernel
    g.until_ready("alone", 1)


def test_a_card_that_is_too_small_and_one_that_does_not_tell(gpus):
    g = gpus("whole:8000 whole:9000")
    g.deploy("large", "shared", mem="gpu_mem=9001")
    g.waits("large", "the largest of the mesh has")
    status, said = g.call("PUT", "/model/large/appprofile",
                          {"resource_allocation": {"kernel": {"accelerator_resources": "gpu_mem=lots"}}})
    assert status == 400 and "gpu_mem must be a whole number of MiB" in said["error"]


def test_a_card_whose_memory_is_not_told_is_leased_whole_only(gpus):
    g = gpus("whole:0")
    g.deploy("shares", "shared")
    g.waits("shares", "no host of the mesh has one that can be shared")
    g.deploy("alone", "exclusive")
    g.until_ready("alone", 1)
    assert 'shoal_gpu_memory_bytes{' not in g.metrics()
