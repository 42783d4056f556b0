"""Lists tell the truth: what a client was answered by any node is in what it lists next at any other; what may be missing
is said; pages hold every job once. `make test T=system/lists`"""

import concurrent.futures
import http.client
import json
import signal
import ssl
import urllib.parse

import msgpack
import pytest
from helpers import ended, submit

TRUSTING = ssl.create_default_context()
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE
NOWHERE = "--exec-start PyTorch --user-cmd --workerDeviceType gpu --appName %s -- true"  # no host here has a GPU: it waits


def first_list(mesh, host):
    """The first that it gives after its start."""
    def ask():
        try:
            return Client(mesh, host).get(limit=1000)
        except OSError:
            return None
    return mesh.until(ask, 20, "%s answers" % host.name)


class Client:
    """One connection to one node, with a token."""

    def __init__(self, mesh, host):
        self.host, self.token = host, mesh.token(host)
        self.connection = http.client.HTTPSConnection(host.address, host.api_port, timeout=30, context=TRUSTING)

    def ask(self, method, path, **query):
        query = {key.rstrip("_"): value for key, value in query.items()}
        self.connection.request(method, path + ("?" + urllib.parse.urlencode(query) if query else ""), body=b"" if method == "POST" else None,
                                headers={"Authorization": "Bearer " + self.token, "Accept": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def get(self, path="/v1/jobs", **query):
        status, _, body = self.ask("GET", path, **query)
        assert status == 200, body
        return json.loads(body)

    def submit(self, name="waits"):
        status, _, body = self.ask("POST", "/v1/jobs", args=NOWHERE % name)
        assert status == 200, body
        return json.loads(body)["id"]

    def states(self, **query):
        """Of all pages."""
        jobs, page = {}, None
        while page is None or page["next"]:
            page = self.get(limit=1000, **query, **({"page": page["next"]} if page else {}))
            jobs.update({job["id"]: job["state"] for job in page["jobs"]})
        assert page["complete"], page
        return jobs


@pytest.fixture(scope="module")
def clients(mesh):
    return [Client(mesh, host) for host in mesh.hosts]


def test_a_submit_is_in_the_next_list_of_every_other_node(mesh, clients):
    for i in range(200):
        job = clients[i % 3].submit()
        page = clients[(i + 1 + i // 3 % 2) % 3].get(limit=3)
        assert job in [row["id"] for row in page["jobs"]], i
        assert page["complete"] and not page["missing"]
    everywhere = [client.states() for client in clients]
    assert everywhere[0] == everywhere[1] == everywhere[2] and len(everywhere[0]) >= 200


def test_a_node_that_guards_nothing_of_it_lists_it_at_once(new_mesh):
    mesh = new_mesh(("alpha", "beta", "gamma", "delta", "epsilon"), slots=1)
    clients = [Client(mesh, host) for host in mesh.hosts]
    strangers = 0
    for i in range(25):
        job = clients[0].submit()
        lists = [client.get(limit=5)["jobs"] for client in clients]
        strangers += sum(job not in [group["group"] for group in client.host.get("/v1/debug/groups")] for client in clients)
        assert all(job in [row["id"] for row in rows] for rows in lists), i
        assert clients[1 + i % 4].ask("DELETE", "/v1/jobs/" + job)[0] == 204
        assert all(job not in [row["id"] for row in client.get(limit=5)["jobs"]] for client in clients), i
    assert strangers >= 25


def test_a_deletion_is_in_the_next_list_of_every_other_node(clients):
    for i in range(30):
        job = clients[i % 3].submit()
        assert clients[(i + 1) % 3].ask("DELETE", "/v1/jobs/" + job)[0] == 204
        assert job not in [row["id"] for row in clients[(i + 2) % 3].get(limit=10)["jobs"]], i


def test_an_end_that_one_node_told_is_no_news_to_the_others(mesh, clients, script):
    folder = script("pass")
    for i in range(10):
        job = submit(mesh, mesh.hosts[i % 3], folder)
        assert mesh.shoal("job", "wait", job, "--node", mesh.hosts[(i + 1) % 3].url).returncode == 0
        for client in clients:
            assert {row["id"]: row["state"] for row in client.get(limit=5)["jobs"]}[job] == "FINISHED", i
            assert job not in client.states(active="true")
            assert job not in client.states(state="RUNNING")


def test_a_stop_that_one_node_told_is_no_news_to_the_others(mesh, clients):
    for i in range(20):
        job = clients[i % 3].submit()
        assert clients[i % 3].ask("POST", "/v1/jobs/%s/stop" % job)[0] == 204
        mesh.until(lambda: clients[(i + 1) % 3].get("/v1/jobs/" + job)["state"] == "KILLED", 20, "it is stopped", pause=0)
        for client in clients:
            assert {row["id"]: row["state"] for row in client.get(limit=5)["jobs"]}[job] == "KILLED", i
            assert job not in client.states(active="true")


def test_pages_hold_every_job_once_and_in_order(clients):
    made = sorted(clients[i % 3].submit("page-%d" % (i % 4)) for i in range(45))
    for sort, key in (("created", "id"), ("-created", "id"), ("name", "name"), ("-name", "name"), ("state", "state"),
                      ("workers", "workersMax"), ("user", "creator"), ("framework", "framework")):
        rows, page, limit = [], None, 7
        while page is None or page["next"]:  # each page at another node
            page = clients[len(rows) % 3].get(name="page-", sort=sort, limit=limit, **({"page": page["next"]} if page else {}))
            assert len(page["jobs"]) == limit or not page["next"]
            rows += page["jobs"]
        assert sorted(row["id"] for row in rows) == sorted(made), sort
        order = [(row[key], row["id"]) for row in rows]
        assert order == sorted(order, reverse=sort.startswith("-")), sort
    for job in made[::5]:  # deleted jobs fall out of every order, whatever their neighbours
        assert clients[0].ask("DELETE", "/v1/jobs/" + job)[0] == 204
    left = [job for job in made if job not in made[::5]]
    for sort in ("name", "-name", "-state", "created"):
        assert sorted(clients[2].states(name="page-", sort=sort)) == left, sort
    made = left
    assert len(clients[1].states(name="page-3")) == len([job for i, job in enumerate(made) if clients[1].get("/v1/jobs/" + job)["name"] == "page-3"])
    assert not clients[1].states(name="page-3", state="RUNNING,FINISHED") and clients[1].states(name="page-3", active="true")
    middle = clients[0].get("/v1/jobs/" + made[20])["createdMs"]
    early, late = clients[2].states(name="page-", until=middle), clients[2].states(name="page-", since=middle)
    assert made[0] in early and made[-1] in late and made[20] in late and {**early, **late}.keys() == set(made)
    assert not early.keys() & late.keys()


BAD = [("limit", "0"), ("limit", "-1"), ("limit", "1001"), ("limit", "99999999999999999999"), ("limit", "x"), ("limit", ""),
       ("sort", "colour"), ("sort", "-"), ("state", "HAPPY"), ("state", "RUNNING,HAPPY"), ("active", "maybe"),
       ("since", "yesterday"), ("until", "2031-13-41"), ("page", "x"), ("page", "AAAA"), ("page", "A" * 180), ("name", "n" * 200)]


@pytest.mark.parametrize("key,value", BAD)
def test_a_bad_list_is_refused_with_its_reason(clients, key, value):
    status, _, body = clients[0].ask("GET", "/v1/jobs", **{key: value})
    if (key, value) == ("page", ""):
        return
    assert status == 400 and body.startswith(b"Error 400: " + key.encode()), body


def test_a_page_token_is_of_one_list_and_unforged(clients):
    for i in range(4):
        clients[i % 3].submit("token")
    token = clients[0].get(limit=2, name="token")["next"]
    assert clients[1].get(limit=2, name="token", page=token)["jobs"]
    for query in ({"name": "other"}, {"name": "token", "sort": "created"}, {"name": "token", "active": "true"}, {}):
        status, _, body = clients[1].ask("GET", "/v1/jobs", page=token, **query)
        assert status == 400 and b"another list" in body, body
    for at in range(0, len(token), 7):
        forged = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1:]
        assert clients[2].ask("GET", "/v1/jobs", name="token", page=forged)[0] == 400


def test_wmla_lists_have_their_shapes_and_the_hints_in_headers(clients):
    jobs = sorted(clients[i % 3].submit("wmla") for i in range(3))
    status, headers, body = clients[0].ask("GET", "/platform/rest/deeplearning/v1/execs", limit=3, sort_by="createTime:desc")
    assert status == 200 and [row["id"] for row in json.loads(body)] == jobs[::-1]
    assert headers["Shoal-Complete"] == "true" and "Shoal-Missing" not in headers
    status, _, body = clients[1].ask("GET", "/platform/rest/deeplearning/v1/scheduler/engine/applications", start=1, length=2,
                                     sort="-submit_time", state="NEW,UNKNOWN,SUBMITTED,PENDING_CRD_SCHEDULER,PENDING_JOB_SCHEDULER")
    assert status == 200 and [row["id"] for row in json.loads(body)] == jobs[1::-1]


def test_every_v1_address_answers_msgpack_too(mesh, clients):
    job = clients[0].submit("packed")
    for path in ("/v1/jobs", "/v1/jobs/" + job, "/v1/top", "/v1/nodes", "/v1/jobs/%s/why" % job, "/v1/debug/links"):
        answers = {}
        for kind in ("application/json", "application/msgpack"):
            clients[0].connection.request("GET", path, headers={"Authorization": "Bearer " + clients[0].token, "Accept": kind})
            answer = clients[0].connection.getresponse()
            assert answer.status == 200 and answer.headers["Content-Type"].split(";")[0] == kind
            answers[kind] = answer.read()
        packed, plain = msgpack.unpackb(answers["application/msgpack"]), json.loads(answers["application/json"])
        assert packed.keys() == plain.keys() if isinstance(plain, dict) else len(packed) == len(plain), path
        if path == "/v1/jobs/" + job:
            assert packed["id"] == job and packed["workersMax"] == plain["workersMax"] and packed["elastic"] is False
    clients[0].connection.request("GET", "/v1/jobs/shoal-0000000000000001", headers={"Authorization": "Bearer " + clients[0].token,
                                                                                  "Accept": "application/msgpack"})
    answer = clients[0].connection.getresponse()
    assert answer.status == 404 and answer.read().startswith(b"Error 404: ")  # errors stay a line of text
    status, headers, _ = clients[0].ask("GET", "/platform/rest/deeplearning/v1/execs", limit=1)
    assert headers["Content-Type"] == "application/json"


def test_the_command_line_lists_pages_and_streams_all(mesh, clients):
    made = sorted(clients[i % 3].submit("cli") for i in range(9))  # of one millisecond, by their ids
    some = mesh.cli(mesh.hosts[0], "job", "list", "--name", "cli", "--limit", "4")
    assert [job["id"] for job in some["jobs"]] == made[:4:-1] and some["next"] and some["complete"] is True
    rest = mesh.cli(mesh.hosts[1], "job", "list", "--name", "cli", "--page", some["next"])
    assert [job["id"] for job in rest["jobs"]] == made[4::-1] and rest["next"] == ""
    whole = mesh.cli(mesh.hosts[2], "job", "list")
    assert [job["id"] for job in whole["jobs"]] == sorted(clients[0].states(), reverse=True)
    text = mesh.shoal("job", "list", "--name", "cli", "--limit", "4", "--sort", "created", "--since", "1h", "--node", mesh.hosts[0].url)
    assert [line.split()[0] for line in text.stdout.splitlines()] == ["ID", *made[:4]] and "more: --page " in text.stderr
    bad = mesh.shoal("job", "list", "--sort", "colour", "--node", mesh.hosts[0].url, check=False)
    assert bad.returncode == 2 and "sort" in bad.stderr and bad.stdout == ""


def test_all_jobs_of_a_user_are_deleted_page_by_page(mesh, clients):
    assert len(clients[0].states()) > 200  # more than one page of the deletion
    assert mesh.shoal("job", "delete", "--all", "--yes", "--node", mesh.hosts[1].url, timeout=120).returncode == 0
    assert not clients[2].states()


def test_a_list_while_nodes_die_says_what_may_be_missing(new_mesh, script):
    mesh = new_mesh(("alpha", "beta", "gamma"))
    clients = [Client(mesh, host) for host in mesh.hosts]
    jobs = [clients[i % 3].submit() for i in range(12)]
    mesh.hosts[2].kill()
    page = clients[0].get()  # at once: it may not have been noticed yet
    assert {row["id"] for row in page["jobs"]} == set(jobs) and page["complete"] and page["missing"] == ["gamma"]
    more = [clients[i % 2].submit() for i in range(4)]
    assert clients[1].states().keys() == {*jobs, *more}
    killed = jobs[0]
    assert clients[0].ask("POST", "/v1/jobs/%s/stop" % killed)[0] == 204
    mesh.until(lambda: clients[0].get("/v1/jobs/" + killed)["state"] == "KILLED", 20, "it is stopped")
    mesh.hosts[2].start()  # its replica knows nothing of that: it must not say so
    page = first_list(mesh, mesh.hosts[2])
    late = Client(mesh, mesh.hosts[2])
    seen = {row["id"]: row["state"] for row in page["jobs"]}
    assert not page["complete"] or (seen.keys() == {*jobs, *more} and seen[killed] == "KILLED"), page
    mesh.until(lambda: late.get()["complete"], 10, "gamma knows the others")
    assert late.states() == clients[0].states()
    mesh.hosts[1].kill()
    mesh.hosts[2].kill()
    page = clients[0].get()
    assert not page["complete"] and sorted(page["missing"]) == ["beta", "gamma"]
    said = mesh.shoal("job", "list", "--node", mesh.hosts[0].url).stderr
    assert "no answer from" in said and "may be missing" in said


def test_a_leader_that_dies_right_after_its_word(new_mesh, script):
    """What a leader acknowledged last is on another guardian, maybe not applied there: no list shows what was before it."""
    mesh = new_mesh(("alpha", "beta", "gamma"))
    for i in range(2):
        victim = mesh.hosts[i]  # it takes the submits, so it leads them
        clients = [Client(mesh, host) for host in mesh.hosts]
        jobs = [clients[i].submit() for _ in range(6)]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert all(s[0] == 204 for s in pool.map(lambda job: Client(mesh, victim).ask("POST", "/v1/jobs/%s/stop" % job), jobs))
        mesh.until(lambda: all(clients[i].get("/v1/jobs/" + job)["state"] == "KILLED" for job in jobs), 20, "they are stopped", pause=0)
        victim.kill(signal.SIGKILL)
        page = clients[(i + 1) % 3].get(limit=50)
        seen = {row["id"]: row["state"] for row in page["jobs"]}
        assert page["missing"] == [victim.name]
        assert all(seen[job] == "KILLED" for job in jobs) or not page["complete"], (page["unsettled"], seen)
        victim.start()
        mesh.until(lambda: first_list(mesh, victim)["complete"], 15, "it is back")
