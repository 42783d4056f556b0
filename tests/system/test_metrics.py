"""/metrics, read as strictly as OpenMetrics and the older text format are written down; and who may read it."""

import re
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest
from helpers import ended, submit
from mesh import TLS
from test_service_kernels import ask

TOKEN = "a scraper's word, long enough"
SAMPLE = re.compile(r'(shoal_[a-z0-9_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def scrape(host, token, path="/metrics", **headers):
    request = urllib.request.Request(host.url + path, headers={"Authorization": "Bearer " + token, **headers})
    with urllib.request.urlopen(request, timeout=10, context=TLS) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def families(text, older):
    """{family: (type, [(sample's name, {label: value}, number)])}; every rule of the format holds."""
    found, name = {}, None
    lines = text.split("\n")
    assert lines.pop() == "" and (older or lines.pop() == "# EOF")
    for line in lines:
        head = re.fullmatch(r"# (TYPE|HELP) (\S+) (.+)", line)
        if head and head.group(1) == "TYPE":
            name = head.group(2)
            assert name not in found, "%s has two places" % name
            found[name] = [head.group(3), None, []]
        elif head:
            assert head.group(2) == name and found[name][1] is None and not found[name][2]
            found[name][1] = head.group(3)
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            labels = dict(re.findall(r'([a-z_]+)="([^"]*)"', sample.group(2) or ""))
            found[name][2].append((sample.group(1), labels, float(sample.group(3))))
    for name, (kind, text, samples) in found.items():
        assert not re.search("_(ns|us|ms|min|kb|mib|gib)(_|$)", name), "%s: a base unit, as promtool wants it" % name
        assert text and kind in ("counter", "gauge", "histogram"), name
        ends = {"counter": {"" if older else "_total"}, "gauge": {""}, "histogram": {"_bucket", "_sum", "_count"}}[kind]
        assert {sample[0] for sample in samples} <= {name + end for end in ends}, (name, kind)
        assert (kind == "counter") == (name + ("" if older else "_total")).endswith("_total") or kind != "counter"
        assert len({(sample, tuple(labels.items())) for sample, labels, _ in samples}) == len(samples), "a sample twice"
        if kind == "histogram":
            for one in {labels.get("service") for _, labels, _ in samples}:
                own = [sample for sample in samples if sample[1].get("service") == one]
                counts = [number for sample, _, number in own if sample.endswith("_bucket")]
                bounds = [float(labels["le"]) for _, labels, _ in own if "le" in labels]
                assert counts == sorted(counts) and bounds == sorted(bounds) and bounds[-1] == float("inf")
                assert own[-1] == (name + "_count", {} if one is None else {"service": one, "version": "1"}, counts[-1]) and own[-2][2] >= 0
    return {name: (kind, samples) for name, (kind, _, samples) in found.items()}


def test_metrics_are_as_scrapers_want_them(new_mesh, script, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    mesh = new_mesh(("alpha",), slots=2, agent_options=("--metrics-token-file", tmp_path / "token"))
    host, go = mesh.hosts[0], tmp_path / "go"
    job = submit(mesh, host, script("import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"), script=(str(go),))
    mesh.until(lambda: host.get("/v1/jobs/" + job)["state"] == "RUNNING", 30, "it runs")

    def busy():
        kind, text = scrape(host, TOKEN)
        assert kind.startswith("application/openmetrics-text")
        found = families(text, False)
        return [labels["job"] for _, labels, number in found["shoal_slot_busy"][1] if number == 1] == [job] and found
    found = mesh.until(busy, 10, "its slot")
    assert {labels["slot"] for _, labels, _ in found["shoal_slot_busy"][1]} == {"0", "1"}
    assert [(labels, number) for _, labels, number in found["shoal_job_workers"][1]] == [({"job": job}, 1)]
    assert found["shoal_http_requests"][0] == "counter" and found["shoal_members_live"][1][0][2] == 1
    assert found["shoal_loop_turn_seconds"][1][-1][2] > 10 and found["shoal_http_request_seconds"][1][-1][2] > 3
    kind, text = scrape(host, TOKEN, Accept="text/plain")
    assert kind.startswith("text/plain; version=0.0.4")
    older = families(text, True)
    assert older["shoal_http_requests_total"][0] == "counter"
    assert {name[:-6] if name.endswith("_total") else name for name in older} == set(found)
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stdout + done.stderr, done

    # The token opens this and nothing else; users may read it, too; nobody else.
    assert scrape(host, TOKEN, "/v1/metrics")[0] and scrape(host, mesh.token(host))[0]
    for token, path in ((TOKEN, "/v1/jobs"), (TOKEN, "/v1/debug/links"), (TOKEN[:-1], "/metrics"), (TOKEN + "x", "/metrics"), ("", "/metrics")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(host, token, path)
        assert refused.value.code == 401, (token, path)
    go.touch()
    assert ended(mesh, job)["state"] == "FINISHED"
    mesh.until(lambda: all(number == 0 and labels["job"] == "" for _, labels, number in
                           families(scrape(host, TOKEN)[1], False)["shoal_slot_busy"][1]), 10, "no slot is busy")
    assert not any("shoal_job_workers{" in line for line in scrape(host, TOKEN)[1].split("\n"))


def test_services_count_their_requests_where_their_kernels_are(new_mesh, tmp_path):
    mesh = new_mesh(("alpha",))
    host, package = mesh.hosts[0], tmp_path / "package"
    package.mkdir()
    (package / "kernel.py").write_text(
        "import os\nfrom redhareapi import Kernel\nclass Echo(Kernel):\n    def on_task_invoke(self, task):\n        while task is not None:\n"
        "            if task.get_input_data() == 'die': os._exit(1)\n"
        "            assert task.get_input_data() != 'no'\n            task.set_output_data('x')\n            task = task.next()\n"
        "Echo().run()\n")
    (package / "model.json").write_text('{"name": "echo", "kernel_path": "kernel.py"}')
    mesh.cli(host, "service", "deploy", "echo", "--package", package, "--replicas", 1)
    mesh.until(lambda: mesh.cli(host, "service", "show", "echo")["ready"] == 1, 120, "it is ready")
    assert [ask(mesh, host, "echo", body)[0] for body in (b"yes", b"yes", b"no", b"yes")] == [200, 200, 500, 200]
    kind, text = scrape(host, mesh.token(host))
    found = families(text, False)
    for name in ("queue_seconds", "kernel_seconds", "seconds", "batch_requests"):
        kind, samples = found["shoal_service_" + name]
        assert kind == "histogram" and samples[-1] == ("shoal_service_%s_count" % name, {"service": "echo", "version": "1"}, 4), samples
    ends = {labels["end"]: number for _, labels, number in found["shoal_service_requests"][1]}
    assert ends == {"answered": 3, "failed": 1, "refused": 0}
    total, parts = (sum(number for sample, _, number in found["shoal_service_" + name][1] if sample.endswith("_sum"))
                    for name in ("seconds", "queue_seconds")), found["shoal_service_kernel_seconds"][1][-2][2]
    whole, queued = total
    assert 0 < parts <= whole and abs(whole - queued - parts) < 1e-6
    families(scrape(host, mesh.token(host), Accept="text/plain")[1], True)

    # What ends the kernel's process fails, and the next kernel counts on: "counter" is what the metric is called.
    assert ask(mesh, host, "echo", b"die")[0] >= 500
    counted = lambda: {labels["end"]: number for _, labels, number in  # noqa: E731
                       families(scrape(host, mesh.token(host))[1], False)["shoal_service_requests"][1]}
    shown = lambda: [mesh.cli(host, "service", "show", "echo")["versions"][0][end] for end in ("answered", "failed")]  # noqa: E731
    mesh.until(lambda: shown() == [3, 2], 20, "what failed is told while no kernel is ready, too")
    mesh.until(lambda: ask(mesh, host, "echo", b"yes")[0] == 200, 60, "the next kernel answers")
    ends = counted()
    assert ends["answered"] == 4 and ends["failed"] >= 2, ends
    mesh.until(lambda: shown() == [4, ends["failed"]], 20, "the next kernel's answers are added")


def test_a_token_that_is_no_secret_is_refused(new_mesh, tmp_path):
    mesh = new_mesh(("alpha",))
    mesh.hosts[0].kill()
    for text in ("", "short\n", "x" * 200):
        (tmp_path / "token").write_text(text)
        done = mesh.shoal("agent", "--data", mesh.hosts[0].data, "--metrics-token-file", tmp_path / "token", check=False)
        said = done.stderr + done.stdout
        assert done.returncode != 0 and "a token has 16 to 127" in said and "short" not in said and "xxx" not in said, said
