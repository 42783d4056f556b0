"""A queue that is far longer than what an agent keeps in memory: every job is taken, found, and there after a restart."""

import threading

from test_short_jobs import Submits

JOBS = 3000
FIRST = 1200
# Of one agent, for each pending job of which it is a guardian: a row, the bundle's name, what lists show. 2,700 were measured.
BYTES_A_JOB = 3500


class Pending(Submits):
    """Jobs that stay pending: no host has the device that they ask for."""

    ARGS = "--exec-start PyTorch --workerDeviceType gpu --user-cmd -- /bin/echo %d"

    def take(self, number):
        return self.submit_args(self.ARGS % number)

    def metric(self, name):
        self.connection.request("GET", "/v1/metrics", headers={"Authorization": "Bearer " + self.token})
        text = self.connection.getresponse().read().decode()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))


def resident(host):
    """Bytes of its own: the store's file, which it maps, is the kernel's to keep or to drop."""
    with open("/proc/%d/statm" % host.process.pid) as pages:
        _, whole, of_files, *_ = map(int, pages.read().split())
    return (whole - of_files) * 4096


def fill(mesh, count):
    """`count` jobs by six clients; their ids."""
    jobs, failures = [], []

    def client(number):
        try:
            mine = Pending(mesh, mesh.hosts[number % 3])
            jobs.extend([mine.take(i) for i in range(count // 6)])
        except Exception as error:  # noqa: BLE001: told by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return jobs


def at_rest(mesh, clients, count):
    """Every job is a group or parked at each of three guardians, and most are parked."""
    for client in clients:
        known = lambda: client.metric("shoal_groups") + client.metric("shoal_groups_parked")  # noqa: B023, E731
        mesh.until(lambda: client.metric("shoal_groups") < 1400 and known() == count + 1, 60, "most jobs are parked")  # noqa: B023


def test_a_long_queue_is_taken_found_and_there_after_a_restart(new_mesh):
    mesh = new_mesh(slots=1)
    clients = [Pending(mesh, host) for host in mesh.hosts]
    jobs = fill(mesh, FIRST)
    before = [resident(host) for host in mesh.hosts]
    jobs += fill(mesh, JOBS - FIRST)
    assert len(set(jobs)) == JOBS
    at_rest(mesh, clients, JOBS)
    for host, size in zip(mesh.hosts, before):
        assert resident(host) - size < BYTES_A_JOB * (JOBS - FIRST), "%s: %d bytes for %d jobs" % (
            host.name, resident(host) - size, JOBS - FIRST)
    for number in range(0, JOBS, 149):
        facts = mesh.hosts[number % 3].get("/v1/jobs/" + jobs[number])
        assert facts["id"] == jobs[number] and not facts["hasEnded"]
    for host in mesh.hosts:
        host.kill()
    for host in mesh.hosts:
        host.start()
    for host in mesh.hosts:
        mesh.until(lambda: mesh.knows(host, 3), 30, "%s is back" % host.name)  # noqa: B023
    at_rest(mesh, [Pending(mesh, host) for host in mesh.hosts], JOBS)
    for number in range(0, JOBS, 149):
        facts = mesh.until(lambda: mesh.job(jobs[number]), 30, "job %d is found again" % number)  # noqa: B023
        assert facts["id"] == jobs[number] and not facts["hasEnded"]
    mesh.cli(mesh.hosts[1], "job", "stop", jobs[-1])
    mesh.until(lambda: mesh.job(jobs[-1])["state"] == "KILLED", 30, "one at the end of the queue is stopped")
