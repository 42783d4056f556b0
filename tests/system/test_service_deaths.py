"""A host dies in the middle of a change of a service's versions: at each point the service goes on with what is old or new, and the
verb, said again through another host, ends as if nothing had been (decisions 0058, 0047)."""

import json
import signal

import pytest
from test_service_versions import versions, which
from test_services import Services


class Deaths(Services):
    """Version 1 of a service, "one", on a mesh whose host gamma has no kernels and dies at the point that its test names."""

    def __init__(self, mesh, folder):
        super().__init__(mesh, folder)
        self.alpha, self.beta, self.gamma = mesh.hosts
        self.folder = folder
        (self.package / "model.json").write_text('{"name": "echo"}')

    def begin(self, point, replicas=1, **policy):
        self.gamma.kill()
        self.gamma.within = ["env", "SHOAL_FAULT_AGENT=%s:%s" % (point, self.folder / "died")]
        self.gamma.start()
        self.mesh.until(lambda: self.mesh.knows(self.gamma, 3) and self.mesh.knows(self.alpha, 3), 60, "gamma is back")
        self.mesh.shoal("node", "drain", "gamma", "--node", self.alpha.url)  # no kernel goes there
        for host in (self.alpha, self.beta):
            self.mesh.until(lambda: any(one["name"] == "gamma" and one["state"] == "drained" for one in host.get("/v1/nodes")), 30, "gamma is drained")
        (self.package / "which").write_text("one")
        self.deploy(self.alpha, "echo", replicas)
        self.until_ready("echo", replicas)
        if policy:
            assert self.ask(self.beta, "echo", json.dumps({"policy": policy}).encode(), path="/dlim/v1/model/%s/appprofile", method="PUT")[0] == 200
        (self.package / "which").write_text("two")
        return self.show(self.alpha, "echo")["job"]

    def say(self, host, *words, check=True):
        return self.mesh.shoal("service", *map(str, words), "--node", host.url, check=check)

    def deploy_canary(self, host, part, check=True):
        return self.mesh.shoal("service", "deploy", "echo", "--package", self.package, "--canary", str(part), "--node", host.url,
                               "--", self.mesh.python, "kernel.py", "4", check=check)

    def dies(self, call, *words):
        """The host that was asked is gone before it has answered."""
        said = call(self.gamma, *words, check=False)
        assert said.returncode != 0, said
        assert self.gamma.process.wait(30) == -signal.SIGKILL
        return said

    def goes_on(self, *answers):
        for host in (self.alpha, self.beta):
            assert set(which(self, host, 6)) <= set(answers)

    def current(self, host=None):
        return self.show(host or self.alpha, "echo")["version"]


@pytest.fixture
def deaths(new_mesh, tmp_path):
    return Deaths(new_mesh(), tmp_path)


@pytest.mark.parametrize("point", ["deploy-founded", "deploy-named", "deploy-put-back", "canary-half"])
def test_a_canarys_deployment_said_again(deaths, point):
    first = deaths.begin(point)
    deaths.dies(deaths.deploy_canary, 50)
    deaths.goes_on("one")
    deaths.deploy_canary(deaths.alpha, 50)
    deaths.mesh.until(lambda: set(which(deaths, deaths.beta, 4)) == {"one", "two"}, 60, "the canary gets its part")
    newest = max(versions(deaths, deaths.alpha))
    told = versions(deaths, deaths.beta)
    assert deaths.show(deaths.alpha, "echo")["job"] == first and deaths.current(deaths.beta) == 1
    assert sorted(told) == [1, newest] and told[newest]["role"] == "canary" and told[newest]["weight"] == 50
    deaths.say(deaths.beta, "promote", "echo")
    deaths.mesh.until(lambda: set(which(deaths, deaths.alpha, 4)) == {"two"}, 60, "promoted")


@pytest.mark.parametrize("verb, answer", [(("start",), "one"), (("rollback",), "one"), (("scale", 1), "one"), (("edit", "--set", "policy.kernel_max=2"), "one")])
def test_another_verb_after_half_of_a_canarys_deployment(deaths, verb, answer):
    """Between the two changes of the name it stands for a version that nobody wants to be the current one."""
    first = deaths.begin("deploy-named")
    deaths.dies(deaths.deploy_canary, 50)
    deaths.say(deaths.alpha, verb[0], "echo", *verb[1:])
    for host in (deaths.alpha, deaths.beta):
        deaths.mesh.until(lambda: deaths.show(host, "echo")["job"] == first, 30, "%s shows version 1" % host.name)
    deaths.goes_on(answer)
    assert deaths.show(deaths.beta, "echo")["ready"] == 1


def test_a_current_version_that_sleeps_is_woken_beside_half_of_a_canarys_deployment(deaths):
    deaths.begin("deploy-named", kernel_min=0, kernel_max=2, schedule_interval=1, kernel_delay_release_time=2)
    deaths.mesh.until(lambda: deaths.show(deaths.beta, "echo")["ready"] == 0, 60, "version 1 sleeps")
    deaths.dies(deaths.deploy_canary, 50)
    deaths.goes_on("one")


def test_a_canary_that_got_kernels_and_no_requests_is_ended(deaths):
    deaths.begin("canary-half")
    deaths.dies(deaths.deploy_canary, 50)
    deaths.mesh.until(lambda: any(one["ready"] == 1 for number, one in versions(deaths, deaths.alpha).items() if number != 1), 60, "it has a kernel")
    deaths.say(deaths.beta, "canary", "echo", "--off")
    deaths.mesh.until(lambda: all(one["ready"] == 0 for number, one in versions(deaths, deaths.alpha).items() if number != 1), 60, "it has none")
    deaths.goes_on("one")
    refused = deaths.say(deaths.beta, "canary", "echo", "--off", check=False)
    assert refused.returncode != 0 and "has no canary" in refused.stderr


def test_a_promotion_said_again(deaths):
    deaths.begin("back-named", replicas=2)
    deaths.deploy_canary(deaths.alpha, 50)
    deaths.mesh.until(lambda: set(which(deaths, deaths.beta, 4)) == {"one", "two"}, 60, "the canary gets its part")
    deaths.dies(deaths.say, "promote", "echo")
    deaths.goes_on("one", "two")
    for _ in range(2):
        said = deaths.say(deaths.beta, "promote", "echo")
        assert "is its current version now" in said.stdout, said
    deaths.mesh.until(lambda: set(which(deaths, deaths.alpha, 4)) == {"two"} and deaths.show(deaths.beta, "echo")["ready"] == 2, 60, "promoted, whole")
    deaths.say(deaths.alpha, "rollback", "echo")
    refused = deaths.say(deaths.beta, "promote", "echo", check=False)
    assert refused.returncode != 0 and "has no canary" in refused.stderr


def test_a_roll_back_to_a_version_said_again(deaths):
    deaths.begin("back-named", replicas=2)
    deaths.mesh.cli(deaths.beta, "service", "deploy", "echo", "--package", deaths.package, "--update", "--", deaths.mesh.python, "kernel.py", 4)
    for host in deaths.mesh.hosts:  # version 1 has no kernel any more
        deaths.mesh.until(lambda: which(deaths, host, 1) == ["two"] and versions(deaths, host)[1]["replicas"] == 0, 60, "%s: version 2 has taken over" % host.name)
    said = deaths.dies(deaths.say, "rollback", "echo")
    assert "--to 1" in said.stderr, said  # what may be said again, whether it was done or not
    deaths.goes_on("one", "two")
    for _ in range(2):
        deaths.say(deaths.alpha, "rollback", "echo", "--to", 1)
        deaths.mesh.until(lambda: set(which(deaths, deaths.beta, 4)) == {"one"} and deaths.show(deaths.alpha, "echo")["ready"] == 2, 60, "back, whole")
        assert deaths.current(deaths.alpha) == deaths.current(deaths.beta) == 1
    for to, why in ((7, "has versions 1 and 2, not 7"), ("x", "is not a number")):
        refused = deaths.say(deaths.beta, "rollback", "echo", "--to", to, check=False)
        assert refused.returncode != 0 and why in refused.stderr, refused
    deaths.say(deaths.alpha, "rollback", "echo", "--to", 2)
    deaths.mesh.until(lambda: set(which(deaths, deaths.beta, 4)) == {"two"}, 60, "version 2 again")
