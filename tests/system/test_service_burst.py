"""A service and an elastic job on one mesh: a burst takes slots from the job, which has them back when the load goes, and neither
loses anything by it: no step, no sample, no request (decision 0033)."""

import concurrent.futures
import json
import threading

import pytest
from test_services import Services
from training import Outcome, Run, SCRIPT, assert_exact

PACE = 0.1  # seconds a sample: the job outlasts the test, and a step still takes less than a few seconds


class Clients:
    """So many ask one after the other, through each host in turn, until told to stop; every answer is kept."""

    def __init__(self, services, name, body):
        self.services, self.name, self.body, self.told, self.leave = services, name, body, [], []
        self.pool = concurrent.futures.ThreadPoolExecutor(16)

    def ask(self, host, leave):
        while not leave.is_set():
            self.told.append(self.services.ask(host, self.name, self.body)[:2])

    def __call__(self, count):
        """From now on that many."""
        while len(self.leave) > count:
            self.leave.pop().set()
        while len(self.leave) < count:
            self.leave.append(threading.Event())
            hosts = self.services.mesh.hosts
            self.pool.submit(self.ask, hosts[len(self.leave) % len(hosts)], self.leave[-1])

    def end(self):
        self(0)
        self.pool.shutdown()


@pytest.fixture
def services(new_mesh, tmp_path):
    return Services(new_mesh(), tmp_path)


@pytest.fixture(autouse=True)
def no_job_is_left():
    yield
    Run.end_all()


def scales(services, host, name, least, most):
    profile = {"policy": {"kernel_min": least, "kernel_max": most, "schedule_interval": 1, "kernel_delay_release_time": 2}}
    for path, body in (("/dlim/v1/model/%s/appprofile", json.dumps(profile).encode()), ("/dlim/v1/model/%s/operation/start", None)):
        assert services.ask(host, name, body, path=path, method="PUT")[0] == 200


def test_a_burst_borrows_slots_of_training(services, script, tmp_path):
    alpha, beta, gamma = services.mesh.hosts
    for name, replicas in (("steady", 1), ("zero", 0)):
        services.deploy(alpha, name, replicas, batch=1)
        scales(services, beta, name, replicas, 4)
    services.until_ready("steady", 1)
    run = Run(services.mesh, beta, script(SCRIPT), workers=6, epochs=8, pace=PACE)
    run.until(lambda facts: run.members() == 5, 180, "the job trains on all slots but one")
    run.pace(PACE)

    # From none, while every slot is taken: the request is held until its kernel is there.
    assert services.ask(gamma, "zero", b"first")[:2] == (200, b"first")
    run.until(lambda facts: run.members() == 5 and services.show(alpha, "zero")["ready"] == 0, 90, "the job has that slot back")

    # A burst, then one client alone: replicas go while there are requests, and none is lost.
    clients = Clients(services, "steady", b"sleep 0.3")
    try:
        clients(8)
        run.until(lambda facts: services.show(alpha, "steady")["ready"] == 4 and run.members() == 2, 90, "four slots serve, two train")
        clients(1)
        run.until(lambda facts: services.show(alpha, "steady")["ready"] == 1 and run.members() == 5, 90, "the job has its slots back")
    finally:
        clients.end()
    assert set(clients.told) == {(200, b"sleep 0.3")}

    # More than there is: the job keeps its minimum, and it is said who holds the slot.
    services.mesh.cli(gamma, "service", "scale", "steady", 6)
    run.until(lambda facts: services.show(alpha, "steady")["ready"] == 5 and run.members() == 1, 90, "all but one serve")
    assert services.show(alpha, "steady")["why"].startswith("given 5 of 6 slots; held by %s (1)" % run.job)
    services.mesh.cli(gamma, "service", "scale", "steady", 1)
    run.until(lambda facts: run.members() == 5, 90, "the job has its slots back")
    assert run.finish(120)["state"] == "FINISHED"
    assert_exact(Outcome(run, alpha, tmp_path))
