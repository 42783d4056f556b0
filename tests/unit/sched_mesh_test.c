/* The mesh group's members (PROTOCOLS 3 and 4): hosts that are removed, and the group recovered when its majority is
 * lost for good. */
#include "shoal/sched_look.h"
#include "sched_net.h"

#include "shoal/banned.h"

static const struct shoal_job_id mesh_id;
static const struct shoal_view no_ticket;

static void found(struct net *net)
{
    struct shoal_mesh_command command = { .kind = SHOAL_MESH_INIT, .now_s = 100 };

    (void)snprintf(command.name, sizeof(command.name), "home");
    (void)snprintf(command.user.name, sizeof(command.user.name), "admin");
    (void)snprintf(command.user.password, sizeof(command.user.password), "$argon2id$x");
    command.user.admin = true;
    assert_int_equal(net_wait(net, net_mesh(net, 0, SHOAL_SCHED_MESH_INIT, &command), NET_S)->err, SHOAL_OK);
}

static struct net_reply *add_user(struct net *net, unsigned at, unsigned number)
{
    struct shoal_mesh_command command = { .kind = SHOAL_MESH_ADD_USER, .now_s = 100 };

    (void)snprintf(command.user.name, sizeof(command.user.name), "user%u", number);
    (void)snprintf(command.user.password, sizeof(command.user.password), "$argon2id$%u", number);
    return net_wait(net, net_mesh(net, at, SHOAL_SCHED_MESH_CHANGE, &command), 6 * NET_S);
}

static void must_add(struct net *net, unsigned at, unsigned number)
{
    struct net_reply *reply = add_user(net, at, number);

    if (reply->err != SHOAL_OK)
        fail_msg("a user, asked of node %u: %s: %s", at, shoal_err_name(reply->err), reply->text);
}

static bool knows(struct net *net, unsigned at, unsigned number)
{
    char name[16];

    (void)snprintf(name, sizeof(name), "user%u", number);
    return shoal_mesh_user_find(shoal_sched_mesh(net->nodes[at].sched), name) != NULL;
}

static unsigned voters(struct net *net, struct shoal_job_id group)
{
    struct shoal_sched_group_status status;
    unsigned leader = net_leader(net, group);

    if (leader == NET_NODES_MAX || !shoal_sched_group_find(net->nodes[leader].sched, group, &status))
        return 0;
    return status.voters;
}

static bool guards(struct net *net, unsigned at, struct shoal_job_id group)
{
    struct shoal_sched_group_status status;

    return net->nodes[at].up && shoal_sched_group_find(net->nodes[at].sched, group, &status);
}

static void await_voters(struct net *net, struct shoal_job_id group, unsigned count, uint64_t within_s)
{
    for (uint64_t i = 0; i < 10 * within_s && voters(net, group) != count; i++)
        net_run(net, 100 * NET_MS);
    if (voters(net, group) != count)
        fail_msg("%u voters, not %u, after %llu s", voters(net, group), count, (unsigned long long)within_s);
}

static struct net *mesh_of(uint64_t seed, unsigned count, unsigned members)
{
    struct net *net = net_create(seed, count, false);

    net->nodes[0].member = true;
    found(net);
    for (unsigned i = 0; i < members; i++)
        net_join(net, i);
    await_voters(net, mesh_id, members >= 5 ? 5 : members >= 3 ? 3 : members, 60);
    net_run(net, 2 * NET_S);
    return net;
}

static struct net_reply *recover(struct net *net, unsigned at, bool confirmed, struct shoal_sched_recovery *told)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_RECOVER, .of_mesh = true, .confirmed = confirmed };
    struct net_reply *reply = net_wait(net, net_request(net, at, &request), 12 * NET_S);

    if (reply->err == SHOAL_OK)
        assert_int_equal(shoal_sched_recovery_decode(shoal_buf_view(&reply->bytes), told), SHOAL_OK);
    return reply;
}

static void must_recover(struct net *net, unsigned at, struct shoal_sched_recovery *told)
{
    struct net_reply *reply = recover(net, at, true, told);

    if (reply->err != SHOAL_OK)
        fail_msg("recovery at node %u: %s: %s", at, shoal_err_name(reply->err), reply->text);
    assert_true(told->done);
    assert_int_equal(told->generation, 2);
}

static struct net_reply *removal(struct net *net, unsigned at, unsigned node, enum shoal_mesh_command_kind kind)
{
    struct shoal_mesh_command command = { .kind = kind, .now_s = 100, .node = net->nodes[node].id };

    return net_wait(net, net_mesh(net, at, SHOAL_SCHED_MESH_CHANGE, &command), 6 * NET_S);
}

/* All agree, and nobody that was left behind says anything else. */
static void must_agree(struct net *net, unsigned number)
{
    struct shoal_sched_group_status status;
    uint64_t term = 0;

    for (unsigned i = 0; i < net->count; i++) {
        if (!net->nodes[i].up || !net->nodes[i].member)
            continue;
        if (!knows(net, i, number))
            fail_msg("node %u does not know user%u", i, number);
        if (!shoal_sched_group_find(net->nodes[i].sched, mesh_id, &status))
            continue;
        if (term != 0 && status.term >> 32 != term >> 32)
            fail_msg("node %u guards another line of the mesh group", i);
        term = status.term;
    }
}

/* ---- removal ---- */

static void test_who_is_removed_is_replaced_at_once(void **state)
{
    struct net *net = mesh_of(1, 5, 5);
    struct shoal_job_id job;
    unsigned victim = 4;

    (void)state;
    job = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S)->job;
    net_run(net, NET_S);
    while (!guards(net, victim, job))
        victim--;
    net_crash(net, victim);
    net_run(net, 4 * NET_S);
    assert_int_equal(removal(net, (victim + 1) % 5, victim, SHOAL_MESH_EVICT)->err, SHOAL_OK);
    await_voters(net, job, 3, 10);
    net_run(net, 10 * NET_S); /* not the 60 s of one that may come back */
    for (unsigned i = 0; i < 5; i++) {
        struct shoal_sched_group_status status;

        if (i == victim || !shoal_sched_group_find(net->nodes[i].sched, job, &status))
            continue;
        for (unsigned v = 0; v < status.voters; v++)
            assert_false(shoal_node_id_equal(status.guardians[v], net->nodes[victim].id));
    }
    assert_int_equal(voters(net, job), 3);
    net_destroy(net);
}

/* It starts again with all that it held: nobody listens, and it comes to lead or guard nothing that others count. */
static void test_who_was_removed_is_not_heard(void **state)
{
    struct net *net = mesh_of(2, 4, 4);
    struct shoal_sched_stats stats;
    unsigned number = 0;
    unsigned victim = net_leader(net, mesh_id);
    struct shoal_job_id job;

    (void)state;
    do /* one that it does not guard */
        job = net_wait(net, net_submit(net, (victim + 1) % 4, ++number, no_ticket), 2 * NET_S)->job;
    while (guards(net, victim, job));
    net_crash(net, victim);
    net_run(net, 4 * NET_S);
    assert_int_equal(removal(net, (victim + 1) % 4, victim, SHOAL_MESH_EVICT)->err, SHOAL_OK);
    net_run(net, 5 * NET_S);
    net_start(net, victim);
    net_run(net, 20 * NET_S);
    shoal_sched_stats(net->nodes[(victim + 1) % 4].sched, &stats);
    assert_true(stats.removed_refused > 0);
    must_add(net, (victim + 1) % 4, 7);
    net_run(net, 10 * NET_S);
    assert_false(knows(net, victim, 7));
    assert_int_not_equal(net_wait(net, net_ask(net, victim, SHOAL_SCHED_GET, job, true), 6 * NET_S)->err, SHOAL_OK);
    assert_int_equal(voters(net, mesh_id), 3);
    assert_int_equal(removal(net, (victim + 1) % 4, victim, SHOAL_MESH_READMIT)->err, SHOAL_OK);
    net_run(net, 20 * NET_S);
    assert_true(knows(net, victim, 7)); /* readmitted, it is a member as any other */
    net_destroy(net);
}

/* Three hosts, a job on all: one is removed, and the groups go on as two. */
static void test_without_a_spare_groups_shrink(void **state)
{
    struct net *net = mesh_of(3, 3, 3);
    struct shoal_job_id job = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S)->job;

    (void)state;
    net_crash(net, 2);
    net_run(net, 4 * NET_S);
    assert_int_equal(removal(net, 0, 2, SHOAL_MESH_EVICT)->err, SHOAL_OK);
    await_voters(net, job, 2, 5);
    await_voters(net, mesh_id, 2, 5);
    net_destroy(net);
}

/* ---- drain ---- */

static void drain(struct net *net, unsigned at, bool on)
{
    net->nodes[at].draining = on;
    net_tell_all(net, at, SHOAL_SCHED_NODE_ALIVE);
}

static bool is_empty(struct net *net, unsigned at)
{
    char text[100];

    return shoal_sched_is_empty(net->nodes[at].sched, text, sizeof(text));
}

static void await_empty(struct net *net, unsigned at, uint64_t within_s)
{
    char text[100];

    for (uint64_t i = 0; i < 10 * within_s && !is_empty(net, at); i++)
        net_run(net, 100 * NET_MS);
    if (!shoal_sched_is_empty(net->nodes[at].sched, text, sizeof(text)))
        fail_msg("node %u, after %llu s: %s", at, (unsigned long long)within_s, text);
}

/* Whoever is drained, leaders too: every group has as many guardians as before, elsewhere, and one that leads hands its
 * office over before it goes: nobody has to notice its absence. */
static void test_a_drained_host_guards_nothing(void **state)
{
    (void)state;
    for (unsigned victim = 0; victim < 5; victim++) {
        struct net *net = mesh_of(50 + victim, 5, 5);
        struct shoal_job_id jobs[8];

        for (unsigned i = 0; i < 8; i++)
            jobs[i] = net_wait(net, net_submit(net, i % 5, 1 + i, no_ticket), 2 * NET_S)->job;
        net_run(net, 2 * NET_S);
        drain(net, victim, true);
        await_empty(net, victim, 60);
        for (unsigned i = 0; i < 8; i++) {
            assert_int_equal(voters(net, jobs[i]), 3);
            assert_false(guards(net, victim, jobs[i]));
        }
        assert_int_equal(voters(net, mesh_id), 4); /* of five hosts four are left: as many as could be kept */
        must_add(net, victim, 1);
        net_crash(net, victim); /* it may go: no election, no answer that does not come */
        must_add(net, (victim + 1) % 5, 2);
        for (unsigned i = 0; i < 8; i++)
            assert_true(net_leader(net, jobs[i]) < NET_NODES_MAX);
        net_destroy(net);
    }
}

/* Without a spare its groups shrink, to one guardian at last; another loss would not leave a majority: it stays. */
static void test_a_drain_without_a_spare(void **state)
{
    struct net *net = mesh_of(60, 3, 3);
    struct shoal_job_id job = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S)->job;

    (void)state;
    net_run(net, 2 * NET_S);
    net_crash(net, 2);
    net_run(net, 4 * NET_S);
    drain(net, 1, true);
    net_run(net, 30 * NET_S);
    assert_int_equal(voters(net, job), 3); /* of three one is lost and may come back: the drained one still votes */
    assert_true(guards(net, 1, job));
    net_start(net, 2);
    await_empty(net, 1, 60);
    assert_int_equal(voters(net, job), 2);
    drain(net, 1, false);
    await_voters(net, job, 3, 60);
    drain(net, 0, true);
    drain(net, 1, true);
    await_empty(net, 0, 90);
    await_empty(net, 1, 90);
    assert_int_equal(voters(net, job), 1);
    assert_int_equal(voters(net, mesh_id), 1);
    net_destroy(net);
}

/* ---- recovery ---- */

static void test_one_of_two(void **state)
{
    struct shoal_sched_recovery told;

    (void)state;
    for (unsigned lost = 0; lost < 2; lost++) {
        struct net *net = mesh_of(10 + lost, 2, 2);
        unsigned left = 1 - lost;

        must_add(net, 0, 1);
        net_run(net, NET_S);
        net_crash(net, lost);
        net_run(net, 4 * NET_S);
        assert_int_not_equal(add_user(net, left, 2)->err, SHOAL_OK);
        assert_int_equal(recover(net, left, false, &told)->err, SHOAL_OK);
        assert_false(told.done);
        assert_int_equal(told.guardian_count, 2);
        assert_int_equal(told.lost_count, 1);
        assert_int_not_equal(add_user(net, left, 3)->err, SHOAL_OK); /* told only */
        must_recover(net, left, &told);
        must_add(net, left, 4);
        assert_true(knows(net, left, 1));
        net_start(net, lost); /* what it holds is void */
        await_voters(net, mesh_id, 2, 60);
        net_run(net, 2 * NET_S);
        must_add(net, lost, 5);
        net_run(net, 2 * NET_S);
        must_agree(net, 5);
        net_destroy(net);
    }
}

static void test_three_of_five_are_lost_and_three_join(void **state)
{
    struct shoal_sched_recovery told;

    (void)state;
    for (uint64_t seed = 20; seed < 26; seed++) {
        struct net *net = mesh_of(seed, 8, 5);

        must_add(net, 3, 1);
        for (unsigned i = 0; i < 3; i++)
            net_crash(net, i);
        for (unsigned i = 5; i < 8; i++)
            net_join(net, i);
        net_run(net, 90 * NET_S); /* nobody can replace them */
        assert_int_equal(net_leader(net, mesh_id), NET_NODES_MAX);
        must_recover(net, seed % 2 == 0 ? 6 : 4, &told); /* any node may be asked */
        assert_int_equal(told.lost_count, 3);
        await_voters(net, mesh_id, 5, 60);
        must_add(net, 7, 2);
        for (unsigned i = 0; i < 3; i++) /* a majority of the old group, and they see each other first */
            net_start(net, i);
        net_run(net, 30 * NET_S);
        must_add(net, 0, 3);
        net_run(net, 2 * NET_S);
        must_agree(net, 3);
        must_agree(net, 2);
        net_destroy(net);
    }
}

/* No guardian is left: every node has the newest copy, and one of them founds the group anew from it. The new group
 * needs none of the old one's hosts: when these are back, all at once, only gossip tells them. */
static void test_from_a_copy(void **state)
{
    struct net *net = mesh_of(30, 8, 3);
    struct shoal_sched_recovery told;

    (void)state;
    for (unsigned i = 3; i < 8; i++)
        net_join(net, i);
    net_run(net, NET_S); /* before the group grows to five */
    must_add(net, 4, 1);
    net_run(net, 2 * NET_S);
    for (unsigned i = 0; i < 3; i++)
        net_crash(net, i);
    net_run(net, 4 * NET_S);
    assert_int_equal(recover(net, 5, false, &told)->err, SHOAL_OK);
    assert_int_equal(told.lost_count, 3);
    assert_false(told.done);
    must_recover(net, 5, &told);
    await_voters(net, mesh_id, 5, 60);
    assert_true(knows(net, 5, 1));
    must_add(net, 3, 2);
    for (unsigned i = 0; i < 3; i++)
        net_start(net, i);
    net_run(net, 10 * NET_S);
    for (unsigned i = 0; i < 3; i++)
        assert_false(guards(net, i, mesh_id));
    must_add(net, 1, 3);
    net_run(net, 2 * NET_S);
    must_agree(net, 3);
    net_destroy(net);
}

static void test_it_is_refused_while_a_majority_may_live(void **state)
{
    struct net *net = mesh_of(40, 4, 3);
    struct shoal_sched_recovery told;

    (void)state;
    net_join(net, 3);
    net_run(net, 5 * NET_S);
    assert_int_equal(recover(net, 0, true, &told)->err, SHOAL_ERR_EXISTS);
    assert_int_equal(recover(net, 3, true, &told)->err, SHOAL_ERR_EXISTS);
    net_crash(net, 1);
    net_crash(net, 2);
    assert_int_equal(recover(net, 0, true, &told)->err, SHOAL_ERR_UNREACHABLE); /* gossip does not know it yet */
    net_run(net, 5 * NET_S);
    must_recover(net, 0, &told);
    assert_int_equal(recover(net, 0, true, &told)->err, SHOAL_ERR_EXISTS); /* twice: nothing is lost any more */
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_is_removed_is_replaced_at_once),
        cmocka_unit_test(test_who_was_removed_is_not_heard),
        cmocka_unit_test(test_without_a_spare_groups_shrink),
        cmocka_unit_test(test_a_drained_host_guards_nothing),
        cmocka_unit_test(test_a_drain_without_a_spare),
        cmocka_unit_test(test_one_of_two),
        cmocka_unit_test(test_three_of_five_are_lost_and_three_join),
        cmocka_unit_test(test_from_a_copy),
        cmocka_unit_test(test_it_is_refused_while_a_majority_may_live),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
