"""The acceptance scenarios of WMLA's inference contract (its section 10), as far as other files do not have them: A8 and A9 are in
test_dlim_notebooks.py, A5 in test_dlim.py, A17 in test_edimodels.py, A21 in unit/python/test_kernel_host.py, A23 in test_services.py and test_service_bad_input.py, A24 in
test_services.py. The clients are WMLA's own from the package index and what users wrote around them; the kernels have the
shapes of the published ones."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import threading
import time

import pytest
from mesh import PASSWORD
from test_dlim import Dlim, archive

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WMLA = ROOT / ".venv" / "wmla"

KERNEL = """
import json, os, sys, time
from redhareapi import Kernel

class Of(Kernel):
    def on_kernel_start(self, kernel_context):
        self.description = json.loads(kernel_context.get_model_description())
        START

    def on_task_invoke(self, task_context):
        BODY

    def on_kernel_shutdown(self):
        STOP

if __name__ == "__main__":
    Of().run()
"""
PING_PONG = """
        while task_context is not None:
            task_context.set_output_data(task_context.get_input_data())
            task_context = task_context.next()
"""


def package(name, body=PING_PONG, start="pass", stop="pass", kernel="kernel.py", **keys):
    model = {"name": name, "tag": "t", "weight_path": "./", "runtime": "dlipy3", "kernel_path": kernel, "schema_version": "1", **keys}
    text = KERNEL.replace("        BODY", body.strip("\n")).replace("START", start).replace("STOP", stop)
    files = {"kernel.py": None, kernel: text}
    return archive(model, top=name + "/", **files)


class Models(Dlim):
    def serve(self, name, *words, policy=None, start=True, **keys):
        self.well(self.alpha, "POST", "/deployment/model", package(name, *words, **keys), Content_Type="application/octet-stream")
        if policy:
            self.well(self.beta, "PUT", "/model/%s/appprofile" % name, {"policy": policy})
        if start:
            self.well(self.gamma, "PUT", "/model/%s/operation/start" % name)

    def infer(self, host, name, body, **headers):
        """(status, JSON or text)"""
        return self(host, "POST", "/dlim/v1/inference/" + name, body, **headers)[:2]

    def kernels(self, name, host=None):
        """As that host knows them, else as beta does."""
        instances = self.state(host or self.beta, name).get("instances", [])
        return [one for instance in instances for one in instance["isd_container"]]

    def end(self, name):
        self.well(self.alpha, "PUT", "/model/%s/operation/stop" % name)
        self.mesh.until(lambda: self.state(self.beta, name)["state"] == "disabled", 90, "%s is disabled" % name)
        self.well(self.gamma, "DELETE", "/model/" + name)


@pytest.fixture(scope="module")
def models(mesh):
    return Models(mesh)


@pytest.fixture
def serve(models):
    """models.serve() whose model ends with the test."""
    names = []

    def make(name, *words, **options):
        names.append(name)
        models.serve(name, *words, **options)

    yield make
    for name in names:
        models.end(name)


# ---- WMLA's SDK, as it is installed from the index -------------------------------------------------------------------

BY_SDK = """
import json, sys, time
from ibm_cloud_sdk_core import ApiException
from ibm_wmla.edi_authentication import ElasticDistributedInferenceAuthenticator
from ibm_wmla.wmla_api_edi_v2 import ElasticDistributedInferenceV2

url, password, package, login = sys.argv[1:]

def connect(**who):
    service = ElasticDistributedInferenceV2(authenticator=ElasticDistributedInferenceAuthenticator(url=url, **who))
    service.configure_service("inference")
    service.set_service_url(url)
    return service

def refused(call, *words):
    try:
        call(*words)
    except ApiException as error:
        return [error.code, error.message]
    return None

def until(call, seconds=120):
    end = time.monotonic() + seconds
    while not call() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(call())

out = {}
api = connect(username="admin", password=password)
out["empty"] = all(api.get_models().get_result() == [] for _ in range(60))
out["by login"] = connect(user_access_token=login).get_models().get_result()
out["wrong"] = refused(connect(username="admin", password="no").get_models)[0]
with open(package, "rb") as body:
    out["deployed"] = api.deploy_model(body=body).get_result()["name"]
profile = api.get_model_profile("ping").get_result()
out["policy"] = profile["policy"]
profile["kernel"]["gpu"] = "exclusive"
profile["resource_allocation"]["kernel"]["resources"] = "ncpus=0.5,mem=512"
out["edited"] = api.update_model_profile("ping", mode_profile=profile).get_result()
after = api.get_model_profile("ping").get_result()
out["after"] = [after["kernel"]["gpu"], after["resource_allocation"]["kernel"]["resources"]]
after["kernel"]["gpu"] = "no"
api.update_model_profile("ping", mode_profile=after)
out["state"] = [api.get_model_instance("ping").get_result()["state"]]
out["start"] = api.start_model_inference("ping").get_result()
out["state"].append(api.get_model_instance("ping").get_result()["state"])
out["answer"] = api.run_inference("ping", {"a": [1, 2.5, "b"]}).get_result()
out["stop"] = api.stop_model_inference("ping").get_result()
until(lambda: api.get_model_instance("ping").get_result()["state"] == "disabled")
out["state"].append(api.get_model_instance("ping").get_result()["state"])
out["delete"] = api.delete_model("ping").get_result()
runtimes = [one["type"] for one in api.get_runtimes().get_result()["runtimes"]]
out["runtimes"] = runtimes
mine = api.get_runtime_details("dlipy3").get_result()
mine["type"] = "of-sdk"
out["made"] = [api.new_runtime(mine).get_result(), api.update_runtime("of-sdk", mine).get_result(), api.delete_runtime("of-sdk").get_result()]
out["gone"] = refused(api.get_runtime_details, "of-sdk")
print(json.dumps(out))
"""


@pytest.mark.skipif(not (WMLA / "installed").exists(), reason="ibm-wmla is not installed: .ci/setup")
def test_a1_to_a5_with_the_sdk(models, tmp_path):
    """It asks for a token before every call, and verifies that address with the CA of its environment alone."""
    (tmp_path / "ping.tar").write_bytes(package("ping"))
    host = models.beta
    environment = dict(os.environ, REQUESTS_CA_BUNDLE=str(host.data / "tls" / "ca.crt"), SSL_CERT_FILE=str(host.data / "tls" / "ca.crt"))
    done = subprocess.run([WMLA / "bin" / "python", "-c", BY_SDK, host.url, PASSWORD, tmp_path / "ping.tar", models.mesh.token(host)],
                          capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    out = json.loads(done.stdout.splitlines()[-1])
    policy = out.pop("policy")
    assert policy["kernel_min"] == 1 and policy["kernel_max"] == 100 and policy["task_execution_timeout"] == 60
    assert out == {"empty": True, "by login": [], "wrong": 401, "deployed": "ping", "edited": {}, "start": {}, "stop": {}, "delete": {},
                   "after": ["exclusive", "ncpus=0.5,mem=512"], "state": ["disabled", "enabled", "disabled"],
                   "answer": {"a": [1, 2.5, "b"]}, "runtimes": ["cpp", "dlipy3", "dlipy3-cpu", "python"], "made": [{"status": "OK"}] * 3,
                   "gone": [400, "Runtime <of-sdk> does not exists."]}


# ---- curl and requests -----------------------------------------------------------------------------------------------


def curl(host, *words):
    done = subprocess.run(["curl", "-s", "--cacert", host.data / "tls" / "ca.crt", *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a6_a7_a10_a15_curl_as_the_readmes_have_it(models, serve, tmp_path):
    alpha, beta, gamma = models.alpha, models.beta, models.gamma
    serve("ping", start=False)
    uid, path = [models.well(alpha, "GET", "/model/ping")[key] for key in ("uid", "model_path")]
    # A7: the package again, in a form, as the file of either name; it takes a second, which is in the path's name.
    (tmp_path / "ping.tar.gz").write_bytes(package("ping", tag="next"))
    token = json.loads(curl(beta, "-X", "POST", "-u", "admin:" + PASSWORD, beta.url + "/dlim/v1/auth/token"))
    for name in ("file", "userfile"):
        said = json.loads(curl(gamma, "-H", "X-Auth-Token: " + token["user_token"], "-F", "%s=@%s" % (name, tmp_path / "ping.tar.gz"),
                               gamma.url + "/dlim/v1/deployment/model/ping"))
        assert said["uid"] == uid and said["tag"] == "next", said
    assert models.well(beta, "GET", "/model/ping")["model_path"] != path
    models.well(alpha, "PUT", "/model/ping/operation/start")
    models.until_idle(alpha, "ping")
    # A6: every header; a body that curl calls a form.
    body = json.dumps({"data": "x" * 70, "n": [1, 2]})
    for host in models.mesh.hosts:
        for header in ("X-Auth-Token: " + token["service_token"], "X-User-Token: " + token["service_token"],
                       "Authorization: Bearer " + token["user_token"], "Authorization: Bearer " + token["service_token"]):
            assert json.loads(curl(host, "-H", header, "-d", body, host.url + "/dlim/v1/inference/ping")) == json.loads(body)
    # A10, A15: the command line from the mesh itself, and its token between back-ticks.
    program = tmp_path / "dlim"
    program.write_bytes(subprocess.run(["curl", "-s", "--cacert", beta.data / "tls" / "ca.crt", beta.url + "/dlim/v1/download/dlim"],
                                       capture_output=True, timeout=60, check=True).stdout)
    program.chmod(0o755)
    script = """set -e
./dlim config -c %s/dlim/v1/ >/dev/null
./dlim config -t -u admin -x "$PASSWORD" >/dev/null
curl -s --cacert %s -H "Authorization: Bearer `./dlim config -s`" -d '{"from": "script"}' %s/dlim/v1/inference/ping
""" % (beta.url, beta.data / "tls" / "ca.crt", beta.url)
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=90,
                          env=dict(os.environ, HOME=str(tmp_path), PASSWORD=PASSWORD, SHOAL_CA=str(beta.data / "tls" / "ca.crt")))
    assert (done.returncode, done.stdout) == (0, '{"from": "script"}'), done.stderr


def test_a11_a22_from_no_kernel_to_three_and_back(models, serve):
    """A hundred posts at once; kernels come with them, and go."""
    body = """
        while task_context is not None:
            time.sleep(0.1)
            task_context.set_output_data(json.dumps([os.environ["MSD_POD_NAME"], os.environ["REDHARE_MODEL_PATH"] == self.description["model_path"],
                                                     task_context.get_input_data()]))
            task_context = task_context.next()
"""
    serve("cifar", body, policy={"kernel_min": 0, "kernel_max": 3, "schedule_interval": 1, "kernel_delay_release_time": 2})
    assert models.kernels("cifar") == []
    status, (pod, same, said) = models.infer(models.gamma, "cifar", b"first")
    assert status == 200 and same and said == "first" and pod
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda i: models.infer(models.mesh.hosts[i % 3], "cifar", b"%d" % i), range(100)))
    assert [(status, said) for status, (_, _, said) in answers] == [(200, str(i)) for i in range(100)]
    pods = {pod for _, (pod, _, _) in answers}

    def three():
        with concurrent.futures.ThreadPoolExecutor(30) as more:
            pods.update(said[0] for _, said in more.map(lambda i: models.infer(models.mesh.hosts[i % 3], "cifar", b"more"), range(60)))
        return len(pods) == 3

    models.mesh.until(three, 120, "three kernels have answered")
    models.mesh.until(lambda: models.kernels("cifar") == [], 60, "no kernel is left")


COLLECT = """
        tasks = []
        while task_context is not None:
            tasks.append((task_context, task_context.get_input_data()))
            task_context = task_context.next()
        time.sleep(0.02)
        for task, said in tasks:
            task.set_output_data("%s of %d" % (said, len(tasks)))
"""
FIRST_ONLY = """
        time.sleep(0.005)
        task_context.set_output_data(task_context.get_input_data() + " alone")
"""


@pytest.mark.parametrize("name, body", [("vgg", COLLECT), ("liif", FIRST_ONLY)])
def test_a13_a14_each_caller_gets_its_own_answer(models, serve, name, body):
    serve(name, body, policy={"task_batch_size": 8, "kernel_max": 1})
    models.until_idle(models.alpha, name)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda i: models.infer(models.mesh.hosts[i % 3], name, b"c%d" % i), range(128)))
    assert [status for status, _ in answers] == [200] * 128
    assert [text.split()[0] for _, text in answers] == ["c%d" % i for i in range(128)]
    if name == "vgg":
        assert max(int(text.split()[2]) for _, text in answers) > 1


def test_a12_a20_weights_by_the_models_path_and_a_kernel_that_wipes_its_folder(models, serve):
    """`model_path` of model.json is the server's to say; what a kernel does to its folder, the next one does not see."""
    start = 'self.weights = open(os.path.join(self.description["model_path"], self.description["weight_path"], "README.md")).read()'
    stop = 'import shutil; shutil.rmtree(self.description["model_path"])'
    body = """
        while task_context is not None:
            task_context.set_output_data(self.weights)
            task_context = task_context.next()
"""
    serve("wiper", body, start, stop, model_path="./")
    for _ in range(3):
        assert models.infer(models.alpha, "wiper", b"x") == (200, "An echo."), models.alpha.get("/v1/services/wiper")
        models.well(models.beta, "PUT", "/model/wiper/operation/stop")
        models.mesh.until(lambda: models.state(models.beta, "wiper")["state"] == "disabled", 90, "it is disabled")
        models.well(models.beta, "PUT", "/model/wiper/operation/start")


def test_a16_the_page_in_a_browser(models, serve):
    """From a file, so of origin `null`: what a browser asks first, the token by a body, and 200 frames in turn."""
    serve("frames")
    alpha = models.alpha
    for path in ("/dlim/v1/auth/token", "/dlim/v1/inference/frames"):
        status, text, headers = models(alpha, "OPTIONS", path, None, bare=True, Origin="null",
                                       **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-user-token"})
        assert status == 204 and headers["Access-Control-Allow-Origin"] == "null" and "Origin" in headers["Vary"]
        assert "X-User-Token" in headers["Access-Control-Allow-Headers"] and "Access-Control-Allow-Credentials" not in headers
    import base64
    pair = base64.b64encode(b"admin:%s\n" % PASSWORD.encode()).decode()
    status, said, headers = models(alpha, "POST", "/dlim/v1/auth/token", {"method": "password", "userpasswd": pair}, bare=True, Origin="null")
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "null"
    for i in range(200):
        body = json.dumps({"data": "data:image/jpeg;base64," + "A" * 4000, "frame": i}).encode()
        status, answer, headers = models(alpha, "POST", "/dlim/v1/inference/frames", body, Origin="null", X_User_Token=said["user_token"])
        assert status == 200 and answer["frame"] == i and headers["Access-Control-Allow-Origin"] == "null"


def test_a18_a_request_over_its_time_goes_on_in_the_kernel(models, serve, tmp_path):
    """A file name with a hyphen; 504 in time while the result still comes; another kernel answers meanwhile."""
    go, done = tmp_path / "go", tmp_path / "done"
    body = """
        while task_context is not None:
            said = json.loads(task_context.get_input_data())
            while said.get("wait") and not os.path.exists(said["wait"]):
                time.sleep(0.02)
            if said.get("result"):
                open(said["result"], "w").close()
            task_context.set_output_data(json.dumps({"there": os.path.exists(said["look"])}))
            task_context = task_context.next()
"""
    serve("liif-async", body, kernel="kernel-async.py", policy={"kernel_min": 2, "kernel_max": 2, "task_execution_timeout": 2})
    models.mesh.until(lambda: [one["container_status"] for one in models.kernels("liif-async")] == ["IDLE"] * 2, 120, "two kernels wait")
    said = []
    long = threading.Thread(target=lambda: said.append(models.infer(
        models.alpha, "liif-async", {"wait": str(go), "result": str(done), "look": str(done)})))
    began = time.monotonic()
    long.start()
    models.mesh.until(lambda: any(one["container_status"] == "RUNNING" for one in models.kernels("liif-async", models.gamma)), 30,
                      "gamma, which is asked next, knows that it runs")
    assert models.infer(models.gamma, "liif-async", {"look": str(done)}) == (200, {"there": False})
    long.join(60)
    assert said[0][0] == 504 and time.monotonic() - began < 30
    go.touch()
    models.mesh.until(done.exists, 60, "the result lies there")
    assert models.infer(models.gamma, "liif-async", {"look": str(done)}) == (200, {"there": True})
