"""Hosts that are removed from the mesh, and the mesh group recovered: PROTOCOLS 3 and 4, with real agents."""

import shutil
import subprocess

import pytest
import training
from helpers import submit
from training import ONE_JOB, Outcome, Run

WAITS = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"


def state_of(mesh, name, asked):
    return {node["name"]: node["state"] for node in asked.get("/v1/nodes")}.get(name)


def guardians(mesh, group):
    """Names of the hosts that hold a replica of it, by their own word."""
    return {host.name for host in mesh.hosts if group in {g["group"] for g in host.get("/v1/debug/groups")}}


def refused(mesh, asked, *words):
    done = mesh.shoal(*words, "--node", asked.url, check=False)
    assert done.returncode != 0, done
    return done.returncode, done.stderr


def test_a_dead_host_is_removed_and_comes_back_to_a_refusal(new_mesh, script, tmp_path):
    mesh = new_mesh(("alpha", "beta", "gamma", "delta"), slots=1)
    release = tmp_path / "release"
    job = submit(mesh, mesh.hosts[0], script(WAITS), script=(str(release),))
    mesh.until(lambda: mesh.job(job)["state"] == "RUNNING", 30, "it runs")
    held = guardians(mesh, job)
    victim = next(host for host in mesh.hosts if host.name in held and host.name != mesh.job(job)["driver"]
                  and host is not mesh.hosts[0] and not host.runners())
    asked = mesh.hosts[0]
    code, text = refused(mesh, asked, "node", "remove", victim.name)
    assert code == 7 and "%s is alive" % victim.name in text and "--force" in text
    victim.kill()
    mesh.hosts.remove(victim)
    mesh.until(lambda: state_of(mesh, victim.name, asked) == "dead", 20, "gossip knows")
    said = mesh.shoal("node", "remove", victim.name, "--node", asked.url).stdout
    assert "%s is removed" % victim.name in said
    mesh.until(lambda: len(guardians(mesh, job)) == 3, 20, "the job has three guardians again")
    for host in mesh.hosts:
        mesh.until(lambda: state_of(mesh, victim.name, host) == "removed", 10, "%s knows" % host.name)
    code, text = refused(mesh, asked, "node", "remove", victim.name)
    assert code == 7 and "was removed already" in text
    victim.start()
    mesh.until(lambda: "it was removed from the mesh" in victim.log.read_text(), 20, "it is told why")
    assert "shoal node readmit" in victim.log.read_text()
    assert state_of(mesh, victim.name, asked) == "removed"
    row = next(line for line in mesh.shoal("node", "list", "--node", asked.url).stdout.splitlines() if line.startswith(victim.name))
    assert row.split()[3:7] == ["-"] * 4, "what it had counts no more: %s" % row
    release.touch()
    mesh.until(lambda: mesh.job(job)["state"] == "FINISHED", 60, "the job ends")
    mesh.shoal("node", "readmit", victim.name, "--node", asked.url)
    if victim.process.poll() is not None:
        victim.start()
    mesh.hosts.append(victim)
    mesh.until(lambda: mesh.knows(victim, 4), 30, "it is a member again")


def test_bad_words_about_hosts(new_mesh):
    mesh = new_mesh(("alpha", "beta"), slots=1)
    mesh.add("gamma", "--name", "beta")
    alpha = mesh.hosts[0]
    mesh.until(lambda: [node["name"] for node in alpha.get("/v1/nodes")].count("beta") == 2, 20, "two of one name")
    rows = (
        (("node", "remove", "omega"), 3, "no node \"omega\""),
        (("node", "remove", "beta"), 2, "names 2 nodes"),
        (("node", "remove", "alpha"), 7, "is the node that you ask"),
        (("node", "remove"), 2, ""),
        (("node", "readmit", "alpha"), 7, "was not removed"),
        (("mesh", "recover"), 7, "the mesh group is not lost"),
        (("mesh", "recover", "--yes"), 2, "--key FILE"),
        (("mesh", "recover", "--yes", "--key", "/nonexistent"), 2, "cannot be read"),
    )
    before = [(node["id"], node["state"]) for node in alpha.get("/v1/nodes")]
    for words, code, text in rows:
        got, said = refused(mesh, alpha, *words)
        assert got == code and text in said, (words, got, said)
    assert [(node["id"], node["state"]) for node in alpha.get("/v1/nodes")] == before


def test_a_copied_folder_is_refused_while_the_original_runs(new_mesh):
    mesh = new_mesh(("alpha", "beta"), slots=1)
    alpha, beta = mesh.hosts
    pid = beta.process.pid
    copy = mesh.host_class(mesh, "copy")
    subprocess.run(["cp", "-a", beta.data, copy.data], check=True)
    copy.start()
    assert copy.process.wait(timeout=30) == 1, copy.log.read_text()
    said = copy.log.read_text()
    assert "is a copy" in said and "%s:%d" % (beta.address, beta.port) in said and "shoal join" in said, said
    assert beta.process.poll() is None and beta.process.pid == pid and mesh.knows(alpha, 2) and mesh.knows(beta, 2)
    # A folder that was moved to another address, its agent stopped before, goes on.
    beta.kill()
    shutil.rmtree(copy.data)
    beta.data.rename(copy.data)
    mesh.hosts.append(copy.start())
    mesh.until(lambda: mesh.knows(copy, 2) and mesh.knows(alpha, 2), 30, "it is back")


def test_the_last_node_is_not_removed(new_mesh):
    mesh = new_mesh(("alpha",), slots=1)
    code, text = refused(mesh, mesh.hosts[0], "node", "remove", "alpha")
    assert code == 7 and "last node" in text


@pytest.mark.parametrize("lost", (0, 1))
def test_one_of_two_is_lost_for_good_and_the_mesh_group_is_recovered(new_mesh, lost, tmp_path):
    mesh = new_mesh(("alpha", "beta"), slots=1)
    gone, left = mesh.hosts[lost], mesh.hosts[1 - lost]
    key = tmp_path / "mesh.key"
    shutil.copy(mesh.key, key)
    other = tmp_path / "other.key"
    other.write_text(key.read_text().split(":")[0] + ":" + "0" * len(key.read_text().strip().split(":")[-1]) + "\n")

    mesh.until(lambda: all(host.get("/v1/debug/groups") for host in mesh.hosts), 40, "both guard the mesh group")
    mesh.until(lambda: {g["voters"] for g in left.get("/v1/debug/groups")} == {2}, 20, "both vote")
    gone.kill()
    mesh.hosts.remove(gone)
    mesh.until(lambda: state_of(mesh, gone.name, left) == "dead", 20, "gossip knows")
    code, text = refused(mesh, left, "node", "remove", gone.name)
    assert code == 5 and "shoal mesh recover" in text
    done = mesh.shoal("status", "--node", left.url, check=False)
    assert (done.returncode, done.stdout.splitlines()[0].split(None, 1)) == (5, ["status", "cut off"]), done
    said = mesh.until(lambda: mesh.shoal("mesh", "recover", "--node", left.url, check=False).stdout, 20, "it is told")
    assert "1 of 2 guardians of the mesh group are lost: %s" % gone.name in said and "Nothing was changed" in said
    code, text = refused(mesh, left, "mesh", "recover", "--yes", "--key", str(other))
    assert "key" in text
    said = mesh.shoal("mesh", "recover", "--yes", "--key", key, "--node", left.url).stdout
    assert "generation 2" in said
    # The group orders things again; and the removal that found no majority may have been in the log that was left.
    done = mesh.shoal("node", "remove", gone.name, "--node", left.url, check=False)
    assert done.returncode == 0 or "was removed already" in done.stderr, done
    gone.start()
    mesh.until(lambda: "it was removed from the mesh" in gone.log.read_text(), 20, "it is told why")
    gone.kill()


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "train"
    path.mkdir()
    (path / "main.py").write_text(training.SCRIPT)
    yield path
    Run.end_all()


@pytest.mark.parametrize("leads", (False, True))
def test_a_host_is_drained_under_training_and_leaves(new_mesh, folder, tmp_path, leads):
    mesh = new_mesh(agent_options=ONE_JOB)
    run = Run(mesh, mesh.hosts[1], folder, workers=4, epochs=4, pace=0.03)
    run.until(lambda now: run.members() == 4, 60, "four train")
    facts = run.step(12)
    victim = next(host for host in mesh.hosts if (host.name == facts["leader"]) == leads and (leads or run.on(host)))
    asked = next(host for host in mesh.hosts if host is not victim)
    code, text = refused(mesh, asked, "node", "leave", victim.name)
    assert code == 7 and "cannot leave yet" in text and "drain it first" in text
    assert "is drained" in mesh.shoal("node", "drain", victim.name, "--node", asked.url).stdout
    mesh.until(lambda: state_of(mesh, victim.name, asked) in ("draining", "drained"), 30, "the one asked has heard of it")
    code, text = refused(mesh, asked, "node", "drain", victim.name)
    assert code == 7 and "already" in text
    run.until(lambda now: not run.on(victim), 60, "no engine is left there")
    facts = run.step(run.facts["steps"] + 3)
    mesh.until(lambda: state_of(mesh, victim.name, asked) == "drained", 60, "nothing is left there")
    assert "leaves" in mesh.shoal("node", "leave", victim.name, "--node", asked.url).stdout
    assert victim.process.wait(20) == 0
    mesh.until(lambda: state_of(mesh, victim.name, asked) == "left", 20, "the others know")
    mesh.hosts.remove(victim)
    if run.submitter is victim:
        run.submitter = asked
    run.finish(180)
    outcome = Outcome(run, asked, tmp_path)
    training.assert_exact(outcome)
    training.assert_same_bits(outcome, training.calm(4))
    mesh.hosts.append(victim.start())  # its own word ended with its leave
    mesh.until(lambda: mesh.knows(victim, 3) and state_of(mesh, victim.name, asked) == "alive", 30, "it is back")
