"""Services on a real card: models whose weights lie on it, asked through REST, the Open Inference Protocol and gRPC on a mesh of
one agent or three, beside torch itself. With the interpreter that has torch, after a build, without pytest; on a machine without
a card the same with --device cpu, where a library of ours (nvml_fake.c) stands for NVML.

    serving.py [--device cuda|cpu] [--agents 1|3] [--seconds N] [--only NAME,NAME] [--out FOLDER]

One line a check, then the figures; the logs go to FOLDER (default: $OUT, else a folder in /tmp). The exit status is the number
of checks that failed."""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import numpy
import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
for place in ("docs/demo", "tests/system"):
    sys.path.insert(0, str(ROOT / place))

from helpers import log_of, submit  # noqa: E402
from mesh import TLS, Failed, Host, Mesh  # noqa: E402

RELEASE = pathlib.Path(os.environ.get("SHOAL_OUT") or ROOT / "build/release")
LOG_BYTES = 1 << 20  # of each log that is kept
PART_MIB = 6000      # of a card, each of two services
BATCHES = (1, 32, 256)
WIDTH = 1024

KERNEL = """
import json, os, time
import torch
from redhareapi import Kernel

class Net(Kernel):
    def on_kernel_start(self, context):
        self.place = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        root = json.loads(context.get_model_description())["model_path"]
        self.net = torch.jit.load(os.path.join(root, "net.pt"), map_location=self.place).eval()
        print("kernel of", self.place, flush=True)

    def on_task_invoke(self, task):
        while task is not None:
            asked = json.loads(task.get_input_data())
            if asked == "env":
                card = torch.cuda.is_available()
                said = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "devices": torch.cuda.device_count(),
                        "place": str(next(self.net.parameters()).device), "mib": os.environ.get("SHOAL_GPU_MEM_MIB"),
                        "name": torch.cuda.get_device_name(0) if card else "", "pid": os.getpid(),
                        "held": torch.cuda.memory_allocated(0) if card else 0}
            else:
                with torch.inference_mode():
                    said = self.net(torch.tensor(asked, dtype=torch.float32, device=self.place)).cpu().tolist()
            task.set_output_data(json.dumps(said))
            task = task.next()

if __name__ == "__main__":
    Net().run()
"""

SAYS = """
import os, torch
seen = torch.cuda.is_available()
print("JOB", os.environ["CUDA_VISIBLE_DEVICES"], float(torch.ones(4, device="cuda" if seen else "cpu").sum()), flush=True)
"""


class CardHost(Host):
    def __init__(self, mesh, name):
        super().__init__(mesh, name)
        if mesh.nvml is not None:
            paths = os.pathsep.join(filter(None, (str(mesh.nvml), os.environ.get("LD_LIBRARY_PATH"))))
            self.within = ["env", "LD_LIBRARY_PATH=" + paths, "NVML_FAKE=whole"]

    def lends(self):  # the first one has the card; three agents on one machine would lend it three times
        return () if not self.mesh.hosts or self is self.mesh.hosts[0] else ("--inventory", "cpu:1")


class CardMesh(Mesh):
    host_class, nvml = CardHost, None


def fake_nvml(folder):
    source = ROOT / "tests/system/preload/nvml_fake.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(source)], check=True)
    return folder


def lay_out_fabric():
    """What `make` lays out beside the program; on a machine that has only the programs, from the tree."""
    if not (RELEASE / "fabric/build.version").exists():
        subprocess.run([sys.executable, str(ROOT / "collective/python/build_fabric.py"), str(RELEASE / "fabric"),
                        str(RELEASE / "libshoal.so"), str(RELEASE / "libshoal-warm.so")], check=True, timeout=60)


class Client:
    """One connection that stays."""

    def __init__(self, host):
        self.host = host
        self.connection = http.client.HTTPSConnection(host.address, host.api_port, timeout=30, context=TLS)

    def call(self, method, path, body=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, {"Authorization": "Bearer " + self.host.mesh.token(self.host), **headers})
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def well(self, *words, **headers):
        status, body, said = self.call(*words, **headers)
        if status != 200:
            raise Failed("%s %s: %d %s" % (words[0], words[1], status, body[:300]))
        return body, said

    def v2_binary(self, name, rows):
        """Rows in, rows out, as raw tensors of the Open Inference Protocol."""
        head = json.dumps({"inputs": [{"name": "x", "shape": list(rows.shape), "datatype": "FP32",
                                       "parameters": {"binary_data_size": rows.nbytes}}],
                           "parameters": {"binary_data_output": True}}).encode()
        body, said = self.well("POST", "/v2/models/%s/infer" % name, head + rows.tobytes(),
                               Inference_Header_Content_Length=str(len(head)), Content_Type="application/octet-stream")
        cut = int(said["Inference-Header-Content-Length"])
        return numpy.frombuffer(body[cut:], "<f4").reshape(json.loads(body[:cut])["outputs"][0]["shape"])


class Checks:
    def __init__(self, mesh, device, seconds):
        self.mesh, self.device, self.host = mesh, device, mesh.hosts[0]
        self.place = torch.device("cuda:0" if device == "cuda" else "cpu")
        self.end = time.monotonic() + seconds
        self.figures, self.net = [], None
        self.client = Client(self.host)
        self.ask = Client(mesh.hosts[-1])  # with three agents: one that has no card

    def until(self, condition, wanted, what):
        return self.mesh.until(condition, max(2.0, min(wanted, self.end - time.monotonic())), what)

    def rows(self, count, seed=3):
        return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).numpy()

    def direct(self, rows):
        with torch.inference_mode():
            return self.net(torch.from_numpy(numpy.array(rows)).to(self.place)).cpu().numpy()

    def deploy(self, name, gpu, mem="", pack="", kernel=False):
        folder = self.mesh.folder / name
        folder.mkdir()
        torch.manual_seed(5)
        net = torch.nn.Sequential(*(part for _ in range(4) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())),
                                  torch.nn.Linear(WIDTH, 10)).eval()
        torch.jit.script(net).save(str(folder / "net.pt"))
        if kernel:
            (folder / "kernel.py").write_text(KERNEL)
            (folder / "model.json").write_text(json.dumps({"name": name, "kernel_path": "kernel.py", "runtime": "python",
                                                           "weight_path": "./", "schema_version": "1"}))
            (folder / "README.md").write_text("x")
        self.mesh.cli(self.host, "service", "deploy", name, "--package", folder, "--replicas", 0, timeout=30)
        self.profile(name, gpu, mem, pack)

    def edit(self, name, gpu, mem="", pack=""):
        """Its profile, and its kernel anew: what is edited counts for the next one."""
        self.client.well("PUT", "/dlim/v1/model/%s/operation/stop" % name)
        self.until(lambda: self.instance(name)["state"] == "disabled", 20, "%s is stopped" % name)
        self.profile(name, gpu, mem, pack)

    def profile(self, name, gpu, mem, pack):
        edit = {"kernel": {"gpu": gpu}, "policy": {"kernel_min": 1, "kernel_max": 1, "task_batch_size": 1},
                "resource_allocation": {"kernel": {"accelerator_resources": mem, "gpu_pack_id": pack}}}
        self.client.well("PUT", "/dlim/v1/model/%s/appprofile" % name, json.dumps(edit).encode())
        self.client.well("PUT", "/dlim/v1/model/%s/operation/start" % name)

    def instance(self, name):
        return json.loads(self.client.well("GET", "/dlim/v1/model/%s/instance" % name)[0])

    def kernel(self, name, seconds=40):
        def look():
            instances = self.instance(name).get("instances") or [{"isd_container": []}]
            found = [one for one in instances[0]["isd_container"] if one["container_status"] in ("IDLE", "RUNNING")]
            return found and found[0]

        return self.until(look, seconds, "a kernel of %s is ready" % name)

    def env(self, name):
        return json.loads(self.ask.well("POST", "/dlim/v1/inference/" + name, b'"env"')[0])

    # ---- the checks, in this order; each stands on those before ----

    def check_packed(self):
        """Two services lie on one card, each with what it declared of it."""
        for name, kernel in (("file", False), ("kernel", True)):
            self.deploy(name, "shared", "gpu_mem=%d" % PART_MIB, "p", kernel)
        kernels = [self.kernel(name) for name in ("file", "kernel")]
        self.net = torch.jit.load(str(self.mesh.folder / "file/net.pt"), map_location=self.place).eval()
        cards = {one["gpu"] for one in kernels}
        assert len(cards) == 1 and all(one["gpu_mem"] == PART_MIB for one in kernels), kernels
        shown = self.mesh.shoal("service", "show", "kernel", "--node", self.host.url).stdout
        assert "%d of %d MiB" % (PART_MIB, kernels[0]["gpu_mem_total"]) in shown, shown
        return "%s, %s: %d and %d of %d MiB" % (kernels[0]["gpu"], kernels[0]["gpu_name"], PART_MIB, PART_MIB,
                                                kernels[0]["gpu_mem_total"])

    def check_sees(self):
        """A kernel sees that card alone, as cuda:0, and its weights lie there."""
        said = self.env("kernel")
        assert said["visible"] == self.kernel("kernel")["gpu"] and said["mib"] == str(PART_MIB), said
        if self.device == "cuda":
            assert said["devices"] == 1 and said["place"] == "cuda:0" and said["held"] > 4 * WIDTH * WIDTH * 4, said
            listed = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"],
                                    capture_output=True, text=True, timeout=20).stdout
            return "%s, %d bytes of it; nvidia-smi: %s" % (said["name"], said["held"], "; ".join(listed.split("\n")[:4]))
        return "CUDA_VISIBLE_DEVICES=%s, on the %s" % (said["visible"], said["place"])

    def check_same_bits(self):
        """/dlim/v1, V2 as JSON and as raw tensors: what torch itself gives, to the bit."""
        for count in (1, 7, 64):
            rows = self.rows(count)
            want = self.direct(rows)
            said = json.loads(self.ask.well("POST", "/dlim/v1/inference/kernel", json.dumps(rows.tolist()).encode())[0])
            assert numpy.array_equal(numpy.array(said, "<f4"), want), "/dlim/v1 of %d rows" % count
            asked = {"inputs": [{"name": "x", "shape": list(rows.shape), "datatype": "FP32", "data": rows.reshape(-1).tolist()}]}
            said = json.loads(self.ask.well("POST", "/v2/models/file/infer", json.dumps(asked).encode())[0])["outputs"][0]
            assert numpy.array_equal(numpy.array(said["data"], "<f4").reshape(said["shape"]), want), "V2, %d rows" % count
            assert numpy.array_equal(self.ask.v2_binary("file", rows), want), "V2 binary, %d rows" % count
        return "1, 7 and 64 rows of %d" % WIDTH

    def check_grpc(self):
        """gRPC, where this Python has grpcio."""
        try:
            import grpc
            import oip_messages as pb
        except ImportError as error:
            return "left out: %s" % error
        rows = self.rows(16)
        request = pb.ModelInferRequest(model_name="file", raw_input_contents=[rows.tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=list(rows.shape))
        host = self.ask.host
        names = (("grpc.ssl_target_name_override", "localhost"),)
        with grpc.secure_channel("%s:%d" % (host.address, host.api_port),
                                 grpc.ssl_channel_credentials(pathlib.Path(self.mesh.ca).read_bytes()), names) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", lambda m: m.SerializeToString(),
                                       pb.ModelInferResponse.FromString)
            said = call(request, metadata=(("authorization", "Bearer " + self.mesh.token(host)),), timeout=20)
        got = numpy.frombuffer(said.raw_output_contents[0], "<f4").reshape(rows.shape[0], -1)
        assert numpy.array_equal(got, self.direct(rows))
        return "16 rows"

    def check_figures(self):
        """Not a check that fails by a number: p50, p99 and rows per second, beside torch in this process."""
        clients = [Client(self.ask.host) for _ in range(4)]
        for count in BATCHES:
            rows = self.rows(count)
            self.timed("torch in process", count, lambda: self.direct(rows), 1.0)
            self.timed("V2 binary", count, lambda: self.ask.v2_binary("file", rows), 1.5)
            if count <= 32:
                body = json.dumps(rows.tolist()).encode()
                self.timed("/dlim/v1 JSON", count, lambda: self.ask.well("POST", "/dlim/v1/inference/kernel", body), 1.5)
            with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
                begin, end = time.monotonic(), time.monotonic() + 1.5
                done = sum(pool.map(lambda client: self.many(client, rows, end), clients))
            self.figures.append(("V2 binary, 4 clients", count, None, None, done * count / (time.monotonic() - begin)))
        return "%d rows below" % len(self.figures)

    def many(self, client, rows, end):
        done = 0
        while time.monotonic() < end:
            client.v2_binary("file", rows)
            done += 1
        return done

    def timed(self, what, count, call, seconds):
        for _ in range(5):
            call()
        spent, end = [], time.monotonic() + seconds
        while time.monotonic() < end and len(spent) < 2000:
            begin = time.perf_counter()
            call()
            spent.append(time.perf_counter() - begin)
        spent.sort()
        self.figures.append((what, count, statistics.median(spent), spent[int(len(spent) * 0.99)], count * len(spent) / sum(spent)))

    def check_too_much(self):
        """What is left of the card is not enough: the service waits, and says so."""
        total = self.kernel("file")["gpu_mem_total"]
        self.deploy("third", "shared", "gpu_mem=%d" % (total - 2 * PART_MIB + 1), "p")
        said = [""]

        def look():
            said.append(self.mesh.cli(self.host, "service", "show", "third").get("why") or "")
            return "no card has so much left" in said[-1]

        try:
            self.until(look, 15, "third says why it waits")
        except Failed as failed:
            raise Failed("%s; it says: %s" % (failed, said[-1])) from None
        self.edit("third", "shared", "gpu_mem=%d" % (total - 2 * PART_MIB), "p")
        assert self.kernel("third")["gpu"] == self.kernel("file")["gpu"]
        self.client.well("PUT", "/dlim/v1/model/third/operation/stop")
        return "%d MiB wait, %d have a place" % (total - 2 * PART_MIB + 1, total - 2 * PART_MIB)

    def check_job_waits(self):
        """A job that wants a GPU waits while services share the only one, and runs when they have stopped."""
        folder = self.mesh.folder / "job"
        folder.mkdir()
        (folder / "main.py").write_text(SAYS)
        job = submit(self.mesh, self.host, folder, "--device", "gpu")
        self.until(lambda: "GPU" in self.mesh.shoal("why", job, "--node", self.host.url).stdout, 10, "the job says what it waits for")
        for name in ("file", "kernel"):
            assert log_of(self.mesh, self.host, job) == ""
            self.client.well("PUT", "/dlim/v1/model/%s/operation/stop" % name)
        said = self.until(lambda: log_of(self.mesh, self.host, job), 30, "the job runs").split()
        assert said[0] == "JOB" and said[2] == "4.0", said
        return "ran on %s" % said[1]

    def check_exclusive(self):
        """A kernel of mode exclusive has the whole card; one of mode no sees none."""
        self.edit("kernel", "exclusive")
        kernel = self.kernel("kernel")
        assert kernel["gpu_mem"] == kernel["gpu_mem_total"], kernel
        assert self.env("kernel")["mib"] is None
        self.edit("kernel", "no")
        assert "gpu" not in self.kernel("kernel")
        said = self.env("kernel")
        assert said["visible"] == "" and said["devices"] == 0 and said["place"] == "cpu", said
        return "%d MiB, then none" % kernel["gpu_mem"]


CHECKS = ("packed", "sees", "same_bits", "grpc", "figures", "too_much", "job_waits", "exclusive")


def run_checks(checks, names):
    rows = []
    for name in names:
        begin = time.monotonic()
        try:
            if begin > checks.end:
                raise Failed("no time left")
            ok, text = True, getattr(checks, "check_" + name)()
        except Exception as error:
            ok, text = False, "%s: %s" % (type(error).__name__, str(error).replace("\n", " ")[:500])
            traceback.print_exc()
        rows.append((name, ok, text))
        print("%-10s %-6s %5.1f s  %s" % (name, "ok" if ok else "FAILED", time.monotonic() - begin, text), flush=True)
    return rows


def keep_logs(mesh, out):
    for host in mesh.hosts:
        logs = [host.log, *(path for path in host.data.rglob("*") if path.is_file() and path.suffix in (".out", ".err", ".log"))]
        with open(out / (host.name + ".logs"), "wb") as kept:
            for path in logs:
                try:
                    text = path.read_bytes()[-LOG_BYTES:]
                except OSError:
                    continue
                kept.write(b"==== %s\n%s\n" % (str(path).encode(), text))


def main():
    words = argparse.ArgumentParser()
    words.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    words.add_argument("--agents", type=int, default=1, choices=(1, 3))
    words.add_argument("--seconds", type=float, default=100)
    words.add_argument("--only", default=",".join(CHECKS))
    words.add_argument("--out", default=os.environ.get("OUT"))
    words = words.parse_args()
    out = pathlib.Path(words.out or tempfile.mkdtemp(prefix="shoal-serving-"))
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # as kernels have it
    lay_out_fabric()
    mesh = CardMesh(RELEASE / "shoal", slots=1, python=sys.executable)
    with mesh:
        mesh.nvml = None if words.device == "cuda" else fake_nvml(mesh.folder)
        try:
            mesh.grow(("alpha", "beta", "gamma")[:words.agents])
            checks = Checks(mesh, words.device, words.seconds)
            rows = run_checks(checks, words.only.split(","))
        finally:
            keep_logs(mesh, out)
    print("---- serving on %s with %s, torch %s, %d agents; logs in %s" % (
        torch.cuda.get_device_name(0) if words.device == "cuda" else "cpu", sys.executable, torch.__version__, words.agents, out))
    for what, count, p50, p99, rate in checks.figures:
        times = "p50 %8.3f ms  p99 %8.3f ms" % (p50 * 1e3, p99 * 1e3) if p50 is not None else " " * 34
        print("%-22s batch %4d  %s  %10.0f rows/s" % (what, count, times, rate))
    for name, ok, text in rows:
        print("%-10s %-6s %s" % (name, "ok" if ok else "FAILED", text))
    with open(out / "serving.txt", "w") as table:
        for row in (*checks.figures, *rows):
            print(*row, sep="\t", file=table)
    sys.exit(sum(not ok for _, ok, _ in rows))


if __name__ == "__main__":
    main()
