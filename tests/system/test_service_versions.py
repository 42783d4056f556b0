"""Versions of a service on real agents: pinned by number, a part of the requests for a canary, promoted, taken back, broken."""

import concurrent.futures
import json
import threading

import pytest
from test_services import Services


@pytest.fixture
def services(new_mesh, tmp_path):
    return Services(new_mesh(), tmp_path)


def versions(services, host, name="echo"):
    return {one["version"]: one for one in services.show(host, name)["versions"]}


def deploy_two(services, broken=False):
    """Version 2 has taken over from version 1; each says by "which" what it is."""
    alpha, beta, gamma = services.mesh.hosts
    (services.package / "model.json").write_text('{"name": "echo"}')
    (services.package / "which").write_text("one")
    services.deploy(alpha, "echo", 1)
    services.until_ready("echo", 1)
    profile = {"policy": {"kernel_min": 1, "kernel_max": 2, "schedule_interval": 1, "kernel_delay_release_time": 2}}
    assert services.ask(beta, "echo", json.dumps(profile).encode(), path="/dlim/v1/model/%s/appprofile", method="PUT")[0] == 200
    (services.package / "which").write_text("two")
    if broken:
        (services.package / "broken").write_text("")
    services.mesh.cli(beta, "service", "deploy", "echo", "--package", services.package, "--update", "--", services.mesh.python,
                      "kernel.py", 4)
    services.mesh.until(lambda: services.show(gamma, "echo")["version"] == 2, 60, "version 2 is there")


def which(services, host, count, path="/v2/models/%s/infer"):
    answers = [services.ask(host, "echo", b"which", path=path)[:2] for _ in range(count)]
    assert {status for status, _ in answers} == {200}, answers
    return [body.decode() for _, body in answers]


def weigh(services, host, version, weight):
    services.mesh.cli(host, "service", "canary", "echo", "--version", version, "--weight", weight)
    for one in services.mesh.hosts:
        services.mesh.until(lambda: versions(services, one)[version]["weight"] == weight and versions(services, one)[version]["role"] == "canary",
                            60, "%s gives version %d its part" % (one.name, version))


def test_a_client_pins_a_version_by_its_number(services):
    alpha, beta, gamma = services.mesh.hosts
    deploy_two(services)
    services.mesh.until(lambda: which(services, alpha, 1) == ["two"], 60, "version 2 has taken over")
    services.mesh.until(lambda: versions(services, gamma)[1]["replicas"] == 0 == versions(services, gamma)[1]["ready"], 60, "version 1 has no kernels")
    assert which(services, gamma, 1, "/v2/models/%s/versions/1/infer") == ["one"]  # which has woken it
    assert which(services, alpha, 1, "/v2/models/%s/versions/2/infer") == ["two"] == which(services, beta, 1)
    services.mesh.until(lambda: versions(services, beta)[1]["replicas"] == 0, 60, "nobody asks for version 1 any more")
    for unknown in ("3", "0", "01", "-1", "one", "99999999999"):
        status, body, _ = services.ask(beta, "echo", b"which", path="/v2/models/%s/versions/" + unknown + "/infer")
        assert status == 404 and b"Model <echo> has versions 2 and 1, not " + unknown.encode() in body, body
    told = json.loads(services.ask(gamma, "echo", None, path="/v2/models/%s/versions/1", method="GET")[1])
    assert told["versions"] == ["1", "2"]
    assert services.ask(gamma, "echo", None, path="/v2/models/%s/versions/3", method="GET")[0] == 404
    services.mesh.cli(alpha, "service", "rollback", "echo")  # numbers stay
    services.mesh.until(lambda: services.show(gamma, "echo")["version"] == 1 and which(services, gamma, 1) == ["one"], 60, "back")
    assert which(services, beta, 1, "/v2/models/%s/versions/2/infer") == ["two"]


def test_a_canary_gets_its_part_and_is_promoted_under_requests(services):
    alpha, beta, gamma = services.mesh.hosts
    deploy_two(services)
    services.mesh.cli(alpha, "service", "rollback", "echo")
    services.mesh.until(lambda: services.show(gamma, "echo")["version"] == 1 and which(services, gamma, 1) == ["one"], 60, "back")
    services.mesh.until(lambda: versions(services, beta)[2]["replicas"] == 0, 60, "version 2 has no kernels any more")
    weigh(services, beta, 2, 25)
    services.mesh.until(lambda: "two" in which(services, alpha, 4), 60, "the canary answers")
    assert 18 <= which(services, alpha, 80).count("two") <= 22
    assert set(which(services, alpha, 8, "/v2/models/%s/versions/1/infer")) == {"one"}
    assert services.ask(alpha, "echo", b"fail", path="/v2/models/%s/versions/2/infer")[:2] == (500, b"it fails")
    services.mesh.until(lambda: versions(services, gamma)[2]["failed"] == 1 and versions(services, gamma)[2]["answered"] >= 18, 20,
                        "what the canary did is told")
    assert versions(services, gamma)[1]["failed"] == 0
    metrics = [services.ask(host, "", None, path="/metrics", method="GET")[1].decode() for host in services.mesh.hosts]
    assert any('shoal_service_requests_total{service="echo",version="2",end="failed"} 1' in text for text in metrics)
    for verb, why in ((("--version", 1, "--weight", 5), "is the current one"), (("--version", 7, "--weight", 5), "has versions 1 and 2, not 7"),
                      (("--version", 2, "--weight", 101), "100"), (("--version", 2), "--weight"), (("--off", "--weight", 1), "--off")):
        refused = services.mesh.shoal("service", "canary", "echo", *map(str, verb), "--node", gamma.url, check=False)
        assert refused.returncode != 0 and why in refused.stderr, refused.stderr
    # An edit while it runs changes nothing of it.
    profile = {"policy": {"kernel_max": 3}}
    assert services.ask(gamma, "echo", json.dumps(profile).encode(), path="/dlim/v1/model/%s/appprofile", method="PUT")[0] == 200
    weigh(services, alpha, 2, 0)
    assert set(which(services, gamma, 20)) == {"one"}
    weigh(services, alpha, 2, 100)
    services.mesh.until(lambda: set(which(services, gamma, 5)) == {"two"}, 30, "all of them")
    weigh(services, alpha, 2, 50)
    # Forth and back, and no request fails.
    over, wrong = threading.Event(), []

    def flood(host):
        while not over.is_set():
            status, body, _ = services.ask(host, "echo", b"which")
            if status != 200 or body not in (b"one", b"two"):
                wrong.append((status, body))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for i in range(6):
            pool.submit(flood, services.mesh.hosts[i % 3])
        try:
            services.mesh.cli(gamma, "service", "promote", "echo")
            services.mesh.until(lambda: services.show(alpha, "echo")["version"] == 2 and versions(services, alpha)[1]["ready"] == 0, 90, "promoted")
            services.mesh.cli(gamma, "service", "rollback", "echo")
            services.mesh.until(lambda: services.show(alpha, "echo")["version"] == 1 and versions(services, alpha)[2]["ready"] == 0, 90, "taken back")
        finally:
            over.set()
    assert wrong == []
    services.mesh.until(lambda: versions(services, beta)[2]["role"] == "before", 20, "the name has changed since, and no canary counts")
    assert versions(services, beta)[2]["weight"] == 0
    refused = services.mesh.shoal("service", "promote", "echo", "--node", gamma.url, check=False)
    assert refused.returncode != 0 and "has no canary" in refused.stderr
    # Stopped and started with it, its end, and the service's.
    weigh(services, alpha, 2, 50)
    services.mesh.until(lambda: versions(services, beta)[2]["ready"] == 1, 60, "the canary is back")
    services.mesh.cli(beta, "service", "stop", "echo")
    services.mesh.until(lambda: {one["ready"] for one in versions(services, gamma).values()} == {0}, 60, "both have ended")
    services.mesh.cli(beta, "service", "start", "echo")
    services.mesh.until(lambda: all(one["ready"] > 0 for one in versions(services, gamma).values()), 60, "both are back")
    services.mesh.cli(beta, "service", "canary", "echo", "--off")
    services.mesh.until(lambda: versions(services, gamma)[2]["replicas"] == 0 == versions(services, gamma)[2]["ready"], 60, "the canary has ended")
    assert set(which(services, gamma, 10)) == {"one"}
    weigh(services, alpha, 2, 50)
    jobs = [one["job"] for one in versions(services, alpha).values()]
    services.mesh.cli(gamma, "service", "delete", "echo")
    services.mesh.until(lambda: not any(services.mesh.workers(job) for job in jobs), 60, "no kernel is left of either")


def test_a_canary_that_does_not_start_costs_no_request(services):
    alpha, beta, gamma = services.mesh.hosts
    deploy_two(services, broken=True)
    services.mesh.cli(alpha, "service", "rollback", "echo")
    services.mesh.until(lambda: services.show(gamma, "echo")["version"] == 1 and which(services, gamma, 1) == ["one"], 60, "back")
    weigh(services, beta, 2, 50)
    for host in services.mesh.hosts:
        assert set(which(services, host, 20)) == {"one"}
    assert versions(services, beta)[2]["ready"] == 0


def is_current(services, version):
    """Of every host: nothing else has answered."""
    return all(services.show(host, "echo")["version"] == version for host in services.mesh.hosts)


def test_a_new_version_begins_as_the_canary(services):
    alpha, beta, gamma = services.mesh.hosts
    (services.package / "model.json").write_text('{"name": "echo"}')
    (services.package / "which").write_text("two")

    def deploy(host, *words, check=True, python=services.mesh.python):
        return services.mesh.shoal("service", "deploy", "echo", "--package", services.package, *map(str, words), "--node", host.url,
                                   "--", python, "kernel.py", "4", check=check)

    refused = deploy(beta, "--canary", 20, check=False)
    assert refused.returncode == 3 and "no service echo" in refused.stderr and "without a canary first" in refused.stderr, refused
    assert services.mesh.cli(gamma, "service", "list")["services"] == []
    (services.package / "which").write_text("one")
    services.deploy(alpha, "echo", 1)
    services.until_ready("echo", 1)
    first = services.show(alpha, "echo")["job"]
    (services.package / "which").write_text("two")
    for words, why in ((("--canary", 101), "100"), (("--canary", "x"), "x"), (("--canary", 5, "--update"), "one of them")):
        refused = deploy(beta, *words, check=False)
        assert refused.returncode == 2 and why in refused.stderr, refused
    for query, why in (("canary=101", b"0 to 100"), ("canary=-1", b"0 to 100"), ("canary=", b"0 to 100"), ("canary=5&update=true", b"say one of them")):
        status, body, _ = services.ask(gamma, "echo", b"", path="/v1/services/%s?" + query)
        assert status == 400 and why in body, body
    over, wrong = threading.Event(), []

    def flood(host):
        while not over.is_set():
            status, body, _ = services.ask(host, "echo", b"which")
            if (status, body) != (200, b"one"):
                wrong.append((status, body))
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for host in services.mesh.hosts:
            pool.submit(flood, host)
        try:
            deploy(beta, "--canary", 0)  # made, and answers only who names it
            for host in services.mesh.hosts:
                services.mesh.until(lambda: versions(services, host).get(2, {}).get("role") == "canary" and versions(services, host)[2]["ready"] == 1, 60,
                                    "%s sees the canary" % host.name)
            assert which(services, gamma, 3, "/v2/models/%s/versions/2/infer") == ["two"] * 3
        finally:
            over.set()
    assert wrong == []
    assert is_current(services, 1) and services.show(beta, "echo")["job"] == first and versions(services, alpha)[1]["weight"] == 100
    # Another one takes the canary's place, and gets a part.
    (services.package / "which").write_text("three")
    deploy(gamma, "--canary", 25)
    services.mesh.until(lambda: "three" in which(services, alpha, 4), 60, "the new canary answers")
    told = which(services, alpha, 80)
    assert 18 <= told.count("three") <= 22 and told.count("one") == 80 - told.count("three")
    assert is_current(services, 1) and services.show(beta, "echo")["job"] == first
    newest = max(versions(services, beta))
    assert sorted(versions(services, beta)) == [1, newest] and versions(services, beta)[newest]["weight"] == 25
    listed = services.mesh.shoal("service", "list", "--node", beta.url).stdout.splitlines()
    assert listed[0].split()[4] == "VERSIONS" and " 2, 25 % " in listed[1], listed
    services.mesh.cli(beta, "service", "promote", "echo")
    services.mesh.until(lambda: set(which(services, gamma, 5)) == {"three"}, 60, "promoted")
    services.mesh.cli(beta, "service", "stop", "echo")
    refused = deploy(alpha, "--canary", 5, check=False)
    assert refused.returncode != 0 and "is stopped; start it first" in refused.stderr
    assert len(versions(services, alpha)) == 2


def test_a_canary_does_not_stand_in_for_a_current_version_that_sleeps(services):
    """Its part is its part: where the current version has no kernels, its requests wait for one."""
    alpha, beta, gamma = services.mesh.hosts
    (services.package / "model.json").write_text('{"name": "echo"}')
    (services.package / "which").write_text("one")
    services.deploy(alpha, "echo", 1)
    services.until_ready("echo", 1)
    profile = {"policy": {"kernel_min": 0, "kernel_max": 2, "schedule_interval": 1, "kernel_delay_release_time": 2}}
    assert services.ask(beta, "echo", json.dumps(profile).encode(), path="/dlim/v1/model/%s/appprofile", method="PUT")[0] == 200
    (services.package / "which").write_text("two")
    services.mesh.cli(beta, "service", "deploy", "echo", "--package", services.package, "--canary", 0, "--", services.mesh.python, "kernel.py", 4)

    def asleep_beside_the_canary(host):
        seen = versions(services, host)
        return 2 in seen and seen[2]["role"] == "canary" and seen[2]["ready"] == 1 and seen[1]["ready"] == 0

    for host in services.mesh.hosts:
        services.mesh.until(lambda: asleep_beside_the_canary(host), 60, "%s sees version 1 asleep beside the canary" % host.name)
    assert which(services, gamma, 3) == ["one"] * 3


def test_a_pin_of_a_version_whose_kernel_does_not_start_is_told_so(services):
    """Once its kernel has ended some times, and not only when the request's time of 600 s is over."""
    alpha, beta, gamma = services.mesh.hosts
    (services.package / "model.json").write_text('{"name": "echo"}')
    (services.package / "which").write_text("one")
    services.deploy(alpha, "echo", 1)
    services.until_ready("echo", 1)
    profile = {"policy": {"task_execution_timeout": 600}}
    assert services.ask(beta, "echo", json.dumps(profile).encode(), path="/dlim/v1/model/%s/appprofile", method="PUT")[0] == 200
    (services.package / "broken").write_text("")
    services.mesh.cli(beta, "service", "deploy", "echo", "--package", services.package, "--canary", 0, "--", services.mesh.python, "kernel.py", 4)
    status, body, _ = services.ask(gamma, "echo", b"which", path="/v2/models/%s/versions/2/infer", timeout=120)
    assert status == 503 and b"Inference service for model <echo> is currently unavailable." in body, (status, body)
    for host in services.mesh.hosts:
        assert set(which(services, host, 3)) == {"one"}
