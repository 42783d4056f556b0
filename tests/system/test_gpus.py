"""GPUs of a host, as NVML lists them: each is a slot, and a process that is granted a slot sees that one device and no other.
No GPU is needed: a library of ours stands for NVML."""

import json
import os
import pathlib
import subprocess

import pytest
from conftest import OUT
from helpers import ended, log_of, submit
from mesh import Host, Mesh

SAYS = """
import os, sys, time
print("device", os.environ["CUDA_VISIBLE_DEVICES"], os.environ["TASK12N_DEVICE_TYPE"], flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


class GpuHost(Host):
    def __init__(self, owner, name):
        super().__init__(owner, name)
        self.within = ["env", "LD_LIBRARY_PATH=%s" % owner.library, "NVML_FAKE=%s" % owner.cards]

    def lends(self):
        return ("--slots", str(self.mesh.slots)) if self.mesh.slots else ()


class GpuMesh(Mesh):
    host_class = GpuHost


@pytest.fixture
def gpu_mesh(tmp_path):
    source = pathlib.Path(__file__).with_name("preload") / "nvml_fake.c"
    folder = tmp_path / "nvml"
    folder.mkdir()
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(source)],
                   check=True)
    made = []

    def make(cards, **options):
        mesh = GpuMesh(OUT / "shoal", **options)
        made.append(mesh)
        mesh.__enter__()
        mesh.library, mesh.cards = folder, cards
        mesh.grow(("alpha",))
        return mesh

    yield make
    for mesh in made:
        mesh.__exit__(None, None, None)


def slots_of(mesh):
    return mesh.cli(mesh.hosts[0], "node", "list")["nodes"][0]


def test_each_process_sees_its_own_gpu(gpu_mesh, script, tmp_path):
    mesh = gpu_mesh("whole mig:2 broken whole mig:0", slots=None)
    host, go = mesh.hosts[0], tmp_path / "go"
    want = {"GPU-00000", "MIG-1-0", "MIG-1-1", "GPU-00003"}
    jobs = [submit(mesh, host, script(SAYS), script=(str(go),)) for _ in want]
    seen = [mesh.until(lambda job=job: log_of(mesh, host, job).split(), 60, "what it sees") for job in jobs]
    assert {words[1] for words in seen} == want  # all at one time: none is given twice
    assert {words[2] for words in seen} == {"gpu"}
    later = submit(mesh, host, script(SAYS), script=(str(go),))
    assert "slot" in mesh.shoal("why", later, "--node", host.url).stdout
    go.touch()
    for job in (*jobs, later):
        assert ended(mesh, job)["state"] == "FINISHED"


def test_more_slots_than_cards_share_them(gpu_mesh, script, tmp_path):
    mesh = gpu_mesh("whole whole", slots=4)
    host, go = mesh.hosts[0], tmp_path / "go"
    jobs = [submit(mesh, host, script(SAYS), script=(str(go),)) for _ in range(4)]
    seen = [mesh.until(lambda job=job: log_of(mesh, host, job).split(), 60, "what it sees")[1] for job in jobs]
    go.touch()
    assert sorted(seen) == ["GPU-00000", "GPU-00000", "GPU-00001", "GPU-00001"]


def test_a_host_whose_driver_does_not_answer_lends_processors(gpu_mesh, script):
    mesh = gpu_mesh("no driver", slots=1)
    host = mesh.hosts[0]
    job = submit(mesh, host, script(SAYS))
    ended(mesh, job)
    assert log_of(mesh, host, job) == "device  cpu\n"


def test_doctor_names_the_cards(gpu_mesh):
    mesh = gpu_mesh("whole mig:1", slots=None)
    host = mesh.hosts[0]
    said = subprocess.run([*host.within, str(OUT / "shoal"), "doctor", "--data", str(host.data), "--output", "json"],
                          capture_output=True, text=True).stdout
    rows = [row["text"] for row in json.loads(said)["checks"] if row["check"] == "GPU"]
    assert rows == ["slot 0: NVIDIA Pretence 80GB, GPU-00000", "slot 1: NVIDIA Pretence 80GB, MIG-1-0",
                    "services may share each card, by the memory that their kernels declare: 8 at one time"]


CUDA = """
import torch
from fabric_model import FabricModel

device = torch.device("cuda")
model = torch.nn.Linear(4, 2).to(device)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return torch.ones(4), i % 2

def step(model, data, eva, loader, args):
    x, y = data[0].cuda(), data[1].to("cuda:0")
    model.get_optimizer().zero_grad()
    loss = model.get_loss_function()(model(x), y)
    loss.backward()
    return 0.0, loss

FabricModel(model, lambda: (Rows(), None), torch.nn.CrossEntropyLoss().cuda(), torch.optim.SGD(model.parameters(), lr=0.1),
            fn_step_train=step).train(1, 4, 2)
"""


def test_an_engine_whose_torch_has_no_cuda_says_that_its_gpu_is_idle(gpu_mesh, script):
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    mesh = gpu_mesh("whole whole", slots=None)
    host = mesh.hosts[0]
    job = submit(mesh, host, script(CUDA), "--workers", 2, framework="edtPyTorch")
    facts = ended(mesh, job, 180)
    assert facts["state"] == "FINISHED", facts
    said = "".join(path.read_text(errors="replace") for path in host.data.glob("**/%s/**/stdout" % job))
    lines = [line for line in said.splitlines() if line.startswith("Warning: this slot has the GPU")]
    assert len(lines) == 2 and {line.split()[6].rstrip(",") for line in lines} == {"GPU-00000", "GPU-00001"}, said
    assert all("built without CUDA" in line and "--device cpu" in line for line in lines)
    assert said.count("there is no GPU here, so what goes to \"cuda\" stays on the CPU") == 2  # of each engine
