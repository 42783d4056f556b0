"""Hosts that are started again find their mesh, whoever founded it and whoever they once joined through."""


def test_two_hosts_find_each_other_when_the_one_that_both_joined_through_is_lost(new_mesh):
    mesh = new_mesh()
    founder, *others = mesh.hosts
    mesh.hosts.remove(founder)
    founder.lose()
    for host in others:
        host.kill()
    for host in others:
        host.start()
    mesh.until(lambda: all(mesh.knows(host, 2) for host in others), 20, "both know each other")


def test_a_founder_that_was_never_told_to_join_finds_the_others(new_mesh):
    mesh = new_mesh()
    for host in mesh.hosts:
        host.kill()
    mesh.hosts[0].start()  # alone: nobody is there who would look for it
    assert (mesh.hosts[0].data / "peers").read_text().count("\n") == 2
    mesh.hosts[1].start()
    mesh.until(lambda: mesh.knows(mesh.hosts[0], 2), 20, "the founder knows another")
