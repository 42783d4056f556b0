"""A8 and A9 of the inference contract: `dlim` in the cells of a notebook, and under functions that compare its lines literally.
What is expected is what was recorded of the original; only ids, hosts and tokens are the mesh's own."""

import json
import os
import pty
import re
import subprocess
import threading
import time
import urllib.request

import pytest
from mesh import TLS
from test_gpus import gpu_mesh  # noqa: F401 (a fixture)

NAME = "ping-pong-test"
README = "# Description\nTakes input and returns in response.\n"
KERNEL = """#!/usr/bin/env python
import json
import traceback

import redhareapiversion
from redhareapi import Kernel

class Match(Kernel):
    def on_kernel_start(self, kernel_context):
        pass

    def on_task_invoke(self, task_context):
        try:
            while task_context != None:
                Kernel.log_debug(f"Task ID: {task_context.get_id()}")
                said = json.loads(task_context.get_input_data())
                task_context.set_output_data(json.dumps(said))
                task_context = task_context.next()
        except Exception as wrong:
            traceback.print_exc()
            Kernel.log_error(f"Failed due to {wrong}")

    def on_kernel_shutdown(self):
        pass

if __name__ == "__main__":
    kernel = Match()
    kernel.run()
"""
MODEL = {"name": NAME, "kernel_path": "kernel.py", "readme": "README.md", "tag": "test", "weight_path": "./", "runtime": "dlipy3",
         "framework": "PyTorch", "schema_version": "1"}
DEPLOYED = ["Uploading...",
            "<DIR/.ipynb_checkpoints/README-checkpoint.md> uploaded to server.",
            "<DIR/.ipynb_checkpoints/kernel-checkpoint.py> uploaded to server.",
            "<DIR/.ipynb_checkpoints/model-checkpoint.json> uploaded to server.",
            "<DIR/README.md> uploaded to server.",
            "<DIR/kernel.py> uploaded to server.",
            "<DIR/model.json> uploaded to server.",
            "<DIR/update_model.json> uploaded to server.",
            "Registering...",
            "Model <ping-pong-test> is deployed successfully"]
STARTING = 'Starting model "ping-pong-test", run "dlim model view ping-pong-test -s" to ensure startup.'
STOPPING = 'Stopping model "ping-pong-test", run "dlim model view ping-pong-test -s" to ensure stop.'
VIEWED = ["Name:             ping-pong-test",
          "State:            Started",
          "Serving replica:  1",
          "============================================================",
          "Serving service ID:   UUID",
          "Service JobID:        ID",
          "GPU Mode:             exclusive",
          "Served clients:       0",
          "Pending requests:     0",
          "Requests per second:  0.00",
          "Data per second:      0.00",
          "Kernel started:       1"]
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class Cells:
    """Shell lines as a notebook runs them: in a terminal, both streams as one."""

    def __init__(self, mesh, folder):
        self.mesh, host = mesh, mesh.hosts[-1]
        (folder / "userfs").mkdir()
        (folder / "userfs" / "dlim").symlink_to(mesh.binary)
        self.dir = folder / "submissions" / NAME
        self.environment = dict(os.environ, HOME=str(folder), PATH="%s:%s" % (os.environ["PATH"], folder / "userfs"), DEPLOY_NAME=NAME,
                                REST_SERVER=host.url + "/dlim/v1/", USER_ACCESS_TOKEN=mesh.token(host), DIR_DEPLOY_SUBMISSION=str(self.dir))

    def write(self, **model):
        for path, text in (("kernel.py", KERNEL), ("README.md", README), ("model.json", json.dumps(dict(MODEL, **model)))):
            stem, suffix = path.split(".")
            copy = self.dir / ".ipynb_checkpoints" / ("%s-checkpoint.%s" % (stem, suffix))
            copy.parent.mkdir(parents=True, exist_ok=True)
            for place in (self.dir / path, copy):
                place.write_text(text)

    def __call__(self, line):
        """What the cell shows, in lines; `dlim` in it goes to this mesh."""
        master, slave = pty.openpty()
        said = []

        def read():
            try:
                while piece := os.read(master, 65536):
                    said.append(piece)
            except OSError:  # the other end is closed
                pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            subprocess.run(["/bin/sh", "-c", line + " --rest-server $REST_SERVER --jwt-token $USER_ACCESS_TOKEN" if ">" not in line else line],
                           stdin=slave, stdout=slave, stderr=slave, env=self.environment, timeout=60, check=False)
        finally:
            os.close(slave)
            reader.join()
            os.close(master)
        return b"".join(said).decode().replace("\r\n", "\n").replace(str(self.dir), "DIR").splitlines()

    def infer(self, host, body):
        request = urllib.request.Request("%s/dlim/v1/inference/%s" % (host.url, NAME), data=json.dumps(body).encode(), headers={
            "Authorization": "Bearer " + self.environment["USER_ACCESS_TOKEN"], "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60, context=TLS) as answer:
            return answer.status, answer.read().decode()


@pytest.fixture
def cells(gpu_mesh, tmp_path):  # noqa: F811
    mesh = gpu_mesh("whole", slots=None)
    mesh.grow(("beta", "gamma"))
    return Cells(mesh, tmp_path)


def test_a8_the_interactive_notebook(cells):
    cells.write()
    (cells.dir / "update_model.json").write_text("{}")  # of an earlier run
    assert cells("dlim model list") == ["NAME  REST URI"]
    assert cells("dlim model deploy -p $DIR_DEPLOY_SUBMISSION") == DEPLOYED
    assert cells("dlim model stop $DEPLOY_NAME -f") == [STOPPING]  # it has not been started yet
    assert cells("dlim model viewprofile $DEPLOY_NAME -j --rest-server $REST_SERVER --jwt-token $USER_ACCESS_TOKEN "
                 "> $DIR_DEPLOY_SUBMISSION/update_model.json") == []
    profile = json.loads((cells.dir / "update_model.json").read_text())
    profile["kernel"]["gpu"] = "exclusive"
    (cells.dir / "update_model.json").write_text(json.dumps(profile))
    assert cells("dlim model updateprofile $DEPLOY_NAME -f $DIR_DEPLOY_SUBMISSION/update_model.json") == ["Model is updated successfully"]
    assert cells("dlim model start $DEPLOY_NAME") == [STARTING]
    view = "dlim model view $DEPLOY_NAME -s"
    cells.mesh.until(lambda: cells(view)[-1] == VIEWED[-1], 90, "its kernel is started")
    seen = cells(view)
    assert len(seen) == len(VIEWED), seen
    assert UUID.search(seen[4])
    seen[4], seen[5] = UUID.sub("UUID", seen[4]), re.sub(r"[a-z0-9-]+$", "ID", seen[5])
    assert seen == VIEWED
    addresses = {line.split()[1] for line in cells("dlim model list")[1:]}
    assert addresses == {cells.mesh.hosts[-1].url + "/dlim/v1/inference/" + NAME}
    for host in cells.mesh.hosts:
        assert cells.infer(host, {"data": "123"}) == (200, '{"data": "123"}')
    for _ in range(3):  # the refusal is not luck: its kernel is gone by then
        began = int(time.time())
        assert cells("dlim model stop $DEPLOY_NAME -f") == [STOPPING]
        assert cells("dlim model undeploy $DEPLOY_NAME -f") == ["The model cannot be removed if it's started."]
        cells.mesh.until(lambda: cells.mesh.cli(cells.mesh.hosts[0], "service", "show", NAME)["ready"] == 0, 40, "its kernel has ended")
        seen = cells(view)
        assert time.time() >= began + 2 or seen[1] == VIEWED[1], seen
        cells.mesh.until(lambda: cells(view)[1] == "State:            Stopped", 40, "it has stopped")
        assert cells("dlim model start $DEPLOY_NAME") == [STARTING]
        cells.mesh.until(lambda: cells(view)[-1] == VIEWED[-1], 90, "its kernel is started again")
    assert cells("dlim model stop $DEPLOY_NAME -f") == [STOPPING]
    cells.mesh.until(lambda: cells(view)[1] == "State:            Stopped", 40, "it has stopped")
    assert cells("dlim model undeploy $DEPLOY_NAME -f") == [
        'Undeployed model "ping-pong-test", run "dlim model list" to ensure deletion.']
    assert cells("dlim model list") == ["NAME  REST URI"]


class Pipeline:
    """Functions that people have around dlim: a shell's lines, both streams as one, compared literally."""

    def __init__(self, environment):
        self.environment, self.tries = environment, 0

    def lines(self, line):
        done = subprocess.run(line, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment,
                              timeout=60, check=False)
        return done.stdout.splitlines() if done.returncode == 0 else ("Failed: exit status %d\n%s" % (done.returncode, done.stdout)).splitlines()

    def until_said(self, line, want, at=0, tries=3):
        """The helper's retry; how many tries it took is counted."""
        for _ in range(tries):
            self.tries += 1
            said = self.lines(line)
            if said[at] == want:
                break
        return said

    def status(self, name):
        """The value of the first line that begins with "Status"."""
        said = self.lines("dlim model view %s -s -a --rest-server $REST_SERVER --jwt-token $USER_ACCESS_TOKEN" % name)
        return next((line.split(":")[1].strip() for line in said if line.startswith("Status")), None)


def test_a9_the_pipelines_functions(mesh, tmp_path):
    cells = Cells(mesh, tmp_path)
    cells.write(mk_environments=[{"name": "WML_SPACE_ID", "value": "s-1"}], model_path="")
    pipeline = Pipeline(cells.environment)
    auth = "--rest-server %s --jwt-token $USER_ACCESS_TOKEN" % cells.environment["REST_SERVER"]
    deployed = pipeline.until_said("dlim model deploy -p %s %s" % (cells.dir, auth), "Model <%s> is deployed successfully" % NAME, at=-1)
    assert pipeline.tries == 1 and [line.replace(str(cells.dir), "DIR") for line in deployed] == [
        line for line in DEPLOYED if "update_model" not in line]
    update = cells.dir / "update_model.json"
    assert pipeline.lines("dlim model viewprofile %s -j %s > %s" % (NAME, auth, update)) == []
    profile = json.loads(update.read_text())
    profile["policy"].update(kernel_min=1, kernel_max=3, kernel_delay_release_time=60, task_execution_timeout=60)
    profile["resource_allocation"]["kernel"]["resources"] = "ncpus=8,ncpus_limit=8,mem=1000,mem_limit=1000"
    update.write_text(json.dumps(profile))
    pipeline.until_said("dlim model updateprofile %s -f %s %s" % (NAME, update, auth), "Model is updated successfully")
    assert pipeline.tries == 2
    assert pipeline.status(NAME) is None  # not started, so no line begins so
    pipeline.until_said("dlim model start %s %s" % (NAME, auth), STARTING)
    assert pipeline.tries == 3
    mesh.until(lambda: pipeline.status(NAME) == "IDLE", 90, "the pipeline sees IDLE")
    for host in mesh.hosts:
        assert cells.infer(host, {"a": [1, "é"]}) == (200, '{"a": [1, "\\u00e9"]}')
    # What fails has its message on the first line behind the helper's own.
    assert pipeline.lines("dlim model view none %s" % auth)[1:] == ["Model <none> doesn't exist."]
    assert pipeline.lines("dlim model undeploy %s %s -f" % (NAME, auth))[1:] == ["The model cannot be removed if it's started."]
    # A second run of the pipeline is asked a question, reads the end of its input, and says so last.
    again = pipeline.lines("dlim model deploy -p %s %s </dev/null" % (cells.dir, auth))
    assert again[1:] == ["Model <%s> already exists on inference service, do you want to update it? (y|n):EOF" % NAME]
    assert pipeline.lines("dlim model deploy -p %s %s -f" % (cells.dir, auth))[-1] == DEPLOYED[-1]
    pipeline.until_said("dlim model stop %s %s -f" % (NAME, auth), STOPPING)
    assert pipeline.tries == 4
    mesh.until(lambda: "State:            Stopped" in pipeline.lines("dlim model view %s -s %s" % (NAME, auth)), 40, "it has stopped")
    assert pipeline.lines("dlim model undeploy %s %s -f" % (NAME, auth)) == [
        'Undeployed model "%s", run "dlim model list" to ensure deletion.' % NAME]
