/* The mesh group's members (PROTOCOLS 3 and 4): hosts that are removed, and the group recovered when its majority is
 * lost for good. */
#include "sched/node/sched_wire.h"
#include "shoal/job.h"
#include "shoal/raft_message.h"
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

/* U6: the founder is lost a moment after the others have come. */
static void test_the_founder_of_a_young_mesh_is_lost(void **state)
{
    struct net *net = net_create(4, 4, false);

    (void)state;
    net->nodes[0].member = true;
    found(net);
    for (unsigned i = 0; i < 4; i++)
        net_join(net, i);
    await_voters(net, mesh_id, 3, 3);
    net_crash(net, 0);
    net_run(net, 5 * NET_S);
    must_add(net, 1, 1);
    must_add(net, 3, 2);
    net_destroy(net);
}

/* U4, U6: with one other host at hand it waits for a third, as it did. */
static void test_a_mesh_of_two_is_in_no_hurry(void **state)
{
    struct net *net = net_create(5, 3, false);

    (void)state;
    net->nodes[0].member = true;
    found(net);
    net_join(net, 0);
    net_join(net, 1);
    net_run(net, 8 * NET_S);
    assert_int_equal(voters(net, mesh_id), 1);
    net_join(net, 2);
    await_voters(net, mesh_id, 3, 2);
    net_destroy(net);
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

/* U5: a leader on a drained host hands its office over though nobody can take its place as a guardian. */
static void test_a_drained_leader_hands_over(void **state)
{
    struct net *net = net_create(330, 3, true);
    struct net_reply *reply = net_wait(net, net_submit(net, 0, 1, (struct shoal_view){ 0 }), 2 * NET_S);
    unsigned leader;

    (void)state;
    assert_int_equal(reply->err, SHOAL_OK);
    net_run(net, 15 * NET_S);
    leader = net_leader(net, reply->job);
    assert_true(leader < net->count);
    drain(net, leader, true);
    net_run(net, 15 * NET_S);
    assert_true(net_leader(net, reply->job) < net->count);
    assert_int_not_equal(net_leader(net, reply->job), leader);
    net_destroy(net);
}

static bool is_empty(struct net *net, unsigned at)
{
    char text[160];

    return shoal_sched_is_empty(net->nodes[at].sched, text, sizeof(text));
}

static void await_empty(struct net *net, unsigned at, uint64_t within_s)
{
    char text[160];

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
        assert_int_equal(voters(net, mesh_id), 5); /* nobody could take its place there, and four decide without it */
        must_add(net, victim, 1);
        net_crash(net, victim); /* it may go: no election, no answer that does not come */
        must_add(net, (victim + 1) % 5, 2);
        for (unsigned i = 0; i < 8; i++)
            assert_true(net_leader(net, jobs[i]) < NET_NODES_MAX);
        net_destroy(net);
    }
}

/* Without a spare it stays a guardian while the others decide without it; then its groups shrink, to one guardian at last;
 * another loss would not leave a majority: it stays. */
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
    assert_int_equal(voters(net, job), 3);
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

/* U5: who has just died is still taken for one that decides. What the drained host holds is the second copy then. */
static void test_a_drain_just_after_a_loss(void **state)
{
    struct net *net = mesh_of(62, 3, 3);
    struct shoal_job_id job = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S)->job;
    unsigned leader = net_leader(net, job);

    (void)state;
    assert_true(leader < 3);
    net_run(net, 2 * NET_S);
    net_crash(net, (leader + 1) % 3);
    drain(net, (leader + 2) % 3, true);
    net_run(net, 4 * NET_S);
    net_crash(net, leader);
    net_start(net, leader);
    net_run(net, 10 * NET_S);
    assert_true(net_leader(net, job) < 3);
    assert_true(net_leader(net, mesh_id) < 3);
    net_destroy(net);
}

/* T5 and C5: a host that was no guardian for a while guards alone and starts again. It may vote for itself at once, but not
 * before it knows with what term it left. */
static void test_who_came_back_and_guards_alone_starts_again(void **state)
{
    struct net *net = mesh_of(61, 2, 2);

    (void)state;
    drain(net, 1, true);
    await_empty(net, 1, 60);
    drain(net, 1, false);
    await_voters(net, mesh_id, 2, 60);
    drain(net, 0, true);
    await_empty(net, 0, 90);
    assert_true(guards(net, 1, mesh_id));
    must_add(net, 0, 1);
    net_crash(net, 1);
    net_start(net, 1);
    net_run(net, 4 * NET_S);
    assert_int_equal(voters(net, mesh_id), 1);
    must_add(net, 0, 2);
    assert_true(knows(net, 1, 1));
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

/* ---- who lies ---- */

#define ALL_GUARD 255u

struct forged {
    const char *name;
    uint64_t version; /* 0: the next one */
    uint8_t guards;   /* who guards by it, bit by node; ALL_GUARD: those who do */
    uint8_t seals;    /* whose seals it has; 0: one signature, as the version before made it */
    bool twice;       /* each seal stands there twice */
    bool spoilt;      /* the state is not what was sealed */
    bool wanted;      /* it is genuine */
};

static size_t forge(struct net *net, unsigned liar, const struct forged *row, struct mesh_copy *copy, uint8_t *bytes,
                    size_t cap)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);
    size_t signed_len;

    assert_int_equal(sched_mesh_copy_decode(shoal_buf_view(&net->nodes[0].mesh_copy), copy, &signed_len), SHOAL_OK);
    copy->version = row->version > 0 ? row->version : copy->version + 1;
    if (copy->version >> 32 != copy->config >> 32)
        copy->config = (copy->version >> 32) << 32 | (copy->config & UINT32_MAX);
    if (row->guards != ALL_GUARD) {
        copy->count = 0;
        copy->config++;
        for (unsigned i = 0; i < net->count; i++)
            if (row->guards & 1u << i)
                copy->guardians[copy->count++] = net->nodes[i].id;
    }
    copy->seal_count = 0;
    for (unsigned i = 0; i < net->count; i++)
        for (unsigned again = 0; (row->seals & 1u << i) && again < (row->twice ? 2u : 1u); again++) {
            uint8_t said[MESH_STATEMENT_BYTES_MAX];
            struct shoal_writer statement = shoal_writer_init(said, sizeof(said));
            struct mesh_seal *seal = &copy->seals[copy->seal_count++];

            seal->binds = true;
            memcpy(seal->key, net->nodes[i].key, sizeof(seal->key));
            assert_true(sched_mesh_statement_encode(copy, net_hash(NULL, copy->state), true, &statement));
            net_signature(net->nodes[i].key, shoal_writer_view(&statement), seal->signature);
        }
    if (row->spoilt) { /* another password of the administrator */
        static uint8_t state[64 * 1024];
        uint8_t *at = memmem(memcpy(state, copy->state.bytes, copy->state.len), copy->state.len, "argon2id$x", 10);

        assert_non_null(at);
        at[9] = 'y';
        copy->state.bytes = state;
    }
    if (copy->seal_count > 0) {
        assert_true(sched_mesh_copy_encode(copy, &w));
        return w.len;
    }
    assert_true(sched_mesh_copy_encode_body(copy, &w));
    net_signature(net->nodes[liar].key, shoal_writer_view(&w), copy->signature);
    shoal_put_raw(&w, net->nodes[liar].key, SHOAL_SCHED_KEY_BYTES);
    shoal_put_raw(&w, copy->signature, sizeof(copy->signature));
    return w.len;
}

/* As gossip and the link bring it. */
static void offer(struct net *net, unsigned victim, unsigned liar, const struct mesh_copy *copy,
                  struct shoal_view bytes)
{
    static uint8_t said[128 * 1024];
    struct shoal_writer w = shoal_writer_init(said, sizeof(said));
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_MESH_HEARD };
    struct mesh_hint hint = { .version = copy->version, .config = copy->config, .count = copy->count };
    struct frame part = { .kind = FRAME_MESH_PART };

    memcpy(hint.guardians, copy->guardians, sizeof(hint.guardians));
    assert_true(sched_mesh_hint_encode(&hint, &w));
    event.u.mesh_heard.author = net->nodes[liar].id;
    event.u.mesh_heard.payload = shoal_writer_view(&w);
    net_step(net, victim, &event);
    w = shoal_writer_init(said, sizeof(said));
    part.u.mesh_part.version = copy->version;
    part.u.mesh_part.total = bytes.len;
    part.u.mesh_part.bytes = bytes;
    assert_true(sched_frame_encode(&part, &w));
    event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_FRAME };
    event.u.frame.from = net->nodes[liar].id;
    event.u.frame.bytes = shoal_writer_view(&w);
    net_step(net, victim, &event);
}

/* Of four hosts the first three guard the mesh. */
static const struct forged forgeries[] = {
    { "a version far ahead, with one signature", .version = 1ull << 60, .guards = ALL_GUARD },
    { "the next version, with one signature", .guards = ALL_GUARD },
    { "one who does not guard the mesh seals it", .guards = ALL_GUARD, .seals = 8 },
    { "one guardian of three seals it", .guards = ALL_GUARD, .seals = 1 },
    { "one guardian of three and two other hosts seal it", .guards = ALL_GUARD, .seals = 25 },
    { "one guardian of three seals it twice", .guards = ALL_GUARD, .seals = 1, .twice = true },
    { "a host names itself the only guardian", .guards = 8, .seals = 8 },
    { "a guardian names itself the only one", .guards = 1, .seals = 1 },
    { "a guardian names itself and another host", .guards = 9, .seals = 9 },
    { "a guardian says that the group was recovered", .version = 0x10000ull << 32 | 9, .guards = 1, .seals = 1 },
    { "a host says that the group was recovered", .version = 1ull << 60, .guards = 8, .seals = 8 },
    { "what two guardians sealed is another state", .guards = ALL_GUARD, .seals = 3, .spoilt = true },
    { "two guardians of three seal it", .guards = ALL_GUARD, .seals = 3, .wanted = true },
    { "two guardians of three name others", .guards = 11, .seals = 3, .wanted = true },
};

static void test_a_copy_is_believed_of_a_majority_alone(void **state)
{
    static uint8_t bytes[64 * 1024];

    (void)state;
    for (size_t i = 0; i < sizeof(forgeries) / sizeof(forgeries[0]); i++) {
        const struct forged *row = &forgeries[i];
        unsigned liar = row->seals != 0 && !(row->seals & 8) ? 0 : 3;
        struct net *net = mesh_of(70, 5, 4);
        struct shoal_sched_stats stats;
        struct mesh_copy copy;
        uint64_t version;
        size_t len;

        net_join(net, 4);
        net_run(net, 2 * NET_S); /* before five hosts make five guardians */
        must_add(net, 2, 1);
        net_run(net, 2 * NET_S);
        assert_int_equal(voters(net, mesh_id), 3);
        for (unsigned g = 0; g < 3; g++)
            assert_true(guards(net, g, mesh_id));
        version = shoal_sched_mesh_version(net->nodes[4].sched);
        len = forge(net, liar, row, &copy, bytes, sizeof(bytes));
        offer(net, 4, liar, &copy, shoal_view_of(bytes, len));
        if ((shoal_sched_mesh_version(net->nodes[4].sched) != version) != row->wanted)
            fail_msg("%s: version %llx became %llx", row->name, (unsigned long long)version,
                     (unsigned long long)shoal_sched_mesh_version(net->nodes[4].sched));
        shoal_sched_stats(net->nodes[4].sched, &stats);
        assert_int_equal(stats.copies_refused, row->wanted ? 0 : 1);
        must_add(net, 2, 2); /* what the liar has said holds up nobody */
        net_run(net, 2 * NET_S);
        if (!row->wanted && !knows(net, 4, 2))
            fail_msg("%s: the next version is not taken any more", row->name);
        net_destroy(net);
    }
}

/* It is a fellow guardian, and says that a later configuration has left out the other; that the group has ended; that it
 * leads one of a later lineage. */
static void test_a_guardians_word_ends_no_replica_of_the_mesh(void **state)
{
    static const uint64_t words[] = { UINT32_MAX, 0x10000ull << 32 | 5, UINT64_MAX, 0 };
    struct net *net = mesh_of(80, 3, 3);
    unsigned leader = net_leader(net, mesh_id), victim = (leader + 1) % 3, liar = (leader + 2) % 3;
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };
    struct shoal_raft_message append = { .kind = SHOAL_RAFT_APPEND, .term = 0x10000ull << 32 | 7 };
    struct frame gone = { .kind = FRAME_GONE };
    uint8_t bytes[1024];
    struct shoal_writer w;
    size_t len;

    (void)state;
    event.u.frame.from = net->nodes[liar].id;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        w = shoal_writer_init(bytes, sizeof(bytes));
        gone.u.who.id = words[i];
        assert_true(sched_frame_encode(&gone, &w));
        event.u.frame.bytes = shoal_writer_view(&w);
        net_step(net, victim, &event);
        assert_true(guards(net, victim, mesh_id));
    }
    append.from = (struct shoal_raft_id){ .node = net->nodes[liar].id, .store = net->nodes[liar].store };
    append.to = (struct shoal_raft_id){ .node = net->nodes[victim].id, .store = net->nodes[victim].store };
    w = shoal_writer_init(bytes, sizeof(bytes));
    shoal_put_u8(&w, FRAME_RAFT);
    shoal_put_u8(&w, SCHED_WIRE_VERSION);
    shoal_put_u8(&w, SCHED_WIRE_VERSION);
    shoal_put_job_id(&w, mesh_id);
    assert_int_equal(shoal_raft_message_encode(&append, bytes + w.len, sizeof(bytes) - w.len, &len), SHOAL_OK);
    w.len += len;
    event.u.frame.bytes = shoal_writer_view(&w);
    net_step(net, victim, &event);
    net_run(net, 100 * NET_MS);
    assert_true(guards(net, victim, mesh_id));
    must_add(net, victim, 1);
    net_destroy(net);
}

/* ---- whose word it is ---- */

struct passed_on {
    const char *name;
    enum shoal_sched_request_kind kind;
    enum shoal_mesh_command_kind command; /* of a MESH_CHANGE */
    const char *token;                    /* of the user; "": none */
    bool permitted;
};

/* Of a mesh whose rules bind, and a job of ann's. */
static const struct passed_on words[] = {
    { "a user is added without a token", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_ADD_USER, "", false },
    { "with a token of nobody's", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_ADD_USER, "!forged", false },
    { "by a user", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_ADD_USER, "ann", false },
    { "by an administrator", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_ADD_USER, "admin", true },
    { "a host is removed by a user", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_EVICT, "ann", false },
    { "the key is changed by a user", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_ROTATE_KEY, "ann", false },
    { "a user changes the administrator's password", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_SET_PASSWORD, "ann", false },
    { "a user logs off", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_REVOKE, "ann", true },
    { "a job is stopped without a token", SHOAL_SCHED_STOP, 0, "", false },
    { "by another user", SHOAL_SCHED_STOP, 0, "bob", false },
    { "by its user", SHOAL_SCHED_STOP, 0, "ann", true },
    { "by an administrator", SHOAL_SCHED_STOP, 0, "admin", true },
    { "a job is deleted without a token", SHOAL_SCHED_DELETE, 0, "", false },
    { "by another user", SHOAL_SCHED_DELETE, 0, "bob", false },
    { "by its user", SHOAL_SCHED_DELETE, 0, "ann", true },
    { "a recovery by its user", SHOAL_SCHED_RECOVER, 0, "ann", false },
    { "a look at it, which is nobody's word", SHOAL_SCHED_WHY, 0, "", true },
    { "a read of the mesh that names a job: refused before anybody asks who may", SHOAL_SCHED_MESH_READ, 0, "", true },
};

/* A member of the mesh sends `leader` a frame that no API has seen. */
static void pass_on(struct net *net, unsigned leader, unsigned from, const struct passed_on *word,
                    struct shoal_job_id job)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };
    struct shoal_mesh_command command = { .kind = word->command, .now_s = 200, .node = net->nodes[4].id };
    struct frame frame = { .kind = FRAME_REQUEST };
    uint8_t bytes[4096], order[SHOAL_MESH_COMMAND_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    size_t len = 0;

    (void)snprintf(command.user.name, sizeof(command.user.name),
                   word->command == SHOAL_MESH_SET_PASSWORD ? "admin" : "mallory");
    (void)snprintf(command.user.password, sizeof(command.user.password), "$argon2id$z");
    memcpy(command.revocation.token, "the token's id..", sizeof(command.revocation.token));
    command.revocation.exp_s = 100000;
    frame.u.request.id = 7;
    frame.u.request.kind = (uint8_t)word->kind;
    frame.u.request.deadline_ms = 2000;
    (void)snprintf(frame.u.request.by, sizeof(frame.u.request.by), "admin");
    frame.u.request.token = shoal_view_text(word->token);
    if (word->kind == SHOAL_SCHED_MESH_CHANGE) {
        assert_int_equal(shoal_mesh_command_encode(&command, order, sizeof(order), &len), SHOAL_OK);
        frame.u.request.command = shoal_view_of(order, len);
    } else {
        frame.u.request.job = job;
    }
    assert_true(sched_frame_encode(&frame, &w));
    event.u.frame.from = net->nodes[from].id;
    event.u.frame.bytes = shoal_writer_view(&w);
    net_step(net, leader, &event);
}

static void test_what_a_host_passes_on_needs_the_users_token(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const struct passed_on *word = &words[i];
        bool of_mesh = word->kind == SHOAL_SCHED_MESH_CHANGE;
        struct net *net = mesh_of(100, 5, 5);
        struct shoal_job_id job = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S)->job;
        struct shoal_sched_stats stats;
        uint64_t version;
        unsigned leader;

        net_run(net, 2 * NET_S);
        leader = net_leader(net, of_mesh ? mesh_id : job);
        version = shoal_sched_mesh_version(net->nodes[leader].sched);
        net->nodes[(leader + 1) % 5].previous = word->token[0] == '\0'; /* to say so is no way around it */
        net_tell_all(net, (leader + 1) % 5, SHOAL_SCHED_NODE_ALIVE);
        pass_on(net, leader, (leader + 1) % 5, word, job);
        net_run(net, 5 * NET_S);
        shoal_sched_stats(net->nodes[leader].sched, &stats);
        if ((stats.requests_denied == 0) != word->permitted)
            fail_msg("row %zu, %s: %s", i, word->name, word->permitted ? "denied" : "permitted");
        if (of_mesh)
            assert_int_equal(shoal_sched_mesh_version(net->nodes[leader].sched) != version, word->permitted);
        if (word->kind == SHOAL_SCHED_STOP)
            assert_int_equal(shoal_sched_job(net->nodes[leader].sched, job)->stop, word->permitted);
        net_destroy(net);
    }
}

/* Each time for a while, in which nobody else comes to lead; long before the deadline there is a way again. */
static void test_a_question_that_is_lost_is_asked_again(void **state)
{
    (void)state;
    for (unsigned of_mesh = 0; of_mesh < 2; of_mesh++) {
        struct net *net = mesh_of(131, 3, 3);
        struct shoal_job_id job = net_wait(net, net_submit(net, 0, 1, no_ticket), 2 * NET_S)->job;
        struct shoal_sched_request request = { .kind = of_mesh ? SHOAL_SCHED_MESH_READ : SHOAL_SCHED_GET,
                                               .job = of_mesh ? mesh_id : job,
                                               .linearizable = true,
                                               .deadline_ms = 5000 };
        unsigned leader;
        uint64_t id;

        net_run(net, 2 * NET_S);
        leader = net_leader(net, request.job);
        net->deaf = 1u << leader;
        id = net_request(net, (leader + 1) % 3, &request);
        net_run(net, 3500 * NET_MS);
        assert_int_equal(net_reply_find(net, id)->count, 0);
        net->deaf = 0;
        assert_int_equal(net_wait(net, id, 2 * NET_S)->err, SHOAL_OK);
        net_destroy(net);
    }
}

/* As the version before kept it: with the signature of one. */
/* The loop of node 1 stands still for a moment `at_ms` after three have joined, and gossip takes it for `state`. */
static struct net *mesh_with_a_silent_one(unsigned at_ms, enum shoal_sched_node_state state)
{
    struct net *net = net_create(7, 3, false);

    net->nodes[0].member = true;
    found(net);
    for (unsigned i = 0; i < 3; i++)
        net_join(net, i);
    (void)net_submit(net, 0, 1, no_ticket); /* a group of them all: their hosts hear one another whatever the mesh group does */
    net_run(net, at_ms * NET_MS);
    net->late_ns[1] = net->now + 1100 * NET_MS;
    net_run(net, 700 * NET_MS);
    net_tell_node(net, 0, 1, state);
    net_run(net, 410 * NET_MS);
    net_tell_node(net, 0, 1, SHOAL_SCHED_NODE_ALIVE);
    net_run(net, 200 * NET_MS);
    return net;
}

/* A host falls silent while the mesh group grows to it, and is given up: its replica hears of no leader, and does not know
 * that it was left behind. What is asked there is asked of the others. */
static void test_a_host_that_was_left_behind_asks_the_others(void **state)
{
    unsigned left_behind = 0;

    (void)state;
    for (unsigned at_ms = 0; at_ms < 1500; at_ms += 5) {
        struct net *net = mesh_with_a_silent_one(at_ms, SHOAL_SCHED_NODE_DEAD);
        struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_READ, .deadline_ms = 5000 };
        struct shoal_sched_group_status status;
        struct net_reply *reply;

        if (shoal_sched_group_find(net->nodes[1].sched, mesh_id, &status) && shoal_node_id_is_zero(status.leader))
            left_behind++;
        reply = net_wait(net, net_request(net, 1, &request), 6 * NET_S);
        if (reply->err != SHOAL_OK)
            fail_msg("silent at %u ms: %s: %s", at_ms, shoal_err_name(reply->err), reply->text);
        net_destroy(net);
    }
    assert_true(left_behind > 0); /* else this has not been seen */
}

/* U4: who is suspected for a moment is no reason to do with fewer guardians for long. */
static void test_a_suspected_host_is_waited_for(void **state)
{
    (void)state;
    for (unsigned at_ms = 0; at_ms < 1500; at_ms += 5) {
        struct net *net = mesh_with_a_silent_one(at_ms, SHOAL_SCHED_NODE_SUSPECT);

        net_run(net, 2 * NET_S);
        if (voters(net, mesh_id) != 3)
            fail_msg("silent at %u ms: %u voters", at_ms, voters(net, mesh_id));
        net_destroy(net);
    }
}

static void keep_as_before(struct net *net, unsigned at)
{
    static uint8_t bytes[64 * 1024];
    struct forged row = { .guards = ALL_GUARD };
    struct mesh_copy copy;
    size_t signed_len;

    assert_int_equal(sched_mesh_copy_decode(shoal_buf_view(&net->nodes[at].mesh_copy), &copy, &signed_len), SHOAL_OK);
    row.version = copy.version;
    signed_len = forge(net, at, &row, &copy, bytes, sizeof(bytes));
    net_keep(&net->nodes[at].mesh_copy, shoal_view_of(bytes, signed_len));
}

static bool takes_one_signature(struct net *net, unsigned victim, unsigned liar)
{
    static uint8_t bytes[64 * 1024];
    const struct forged row = { .guards = ALL_GUARD };
    uint64_t version = shoal_sched_mesh_version(net->nodes[victim].sched);
    struct mesh_copy copy;
    size_t len = forge(net, liar, &row, &copy, bytes, sizeof(bytes));

    offer(net, victim, liar, &copy, shoal_view_of(bytes, len));
    return shoal_sched_mesh_version(net->nodes[victim].sched) != version;
}

static bool permits_without_a_token(struct net *net, unsigned from)
{
    static const struct passed_on logoff = { "", SHOAL_SCHED_MESH_CHANGE, SHOAL_MESH_REVOKE, "", true };
    struct shoal_sched_stats before, after;
    unsigned leader = net_leader(net, mesh_id);

    if (leader == from)
        leader = 0;
    shoal_sched_stats(net->nodes[leader].sched, &before);
    pass_on(net, leader, from, &logoff, mesh_id);
    shoal_sched_stats(net->nodes[leader].sched, &after);
    return after.requests_denied == before.requests_denied;
}

/* L4. Hosts that come from the version before take what it sends, for an hour after the last of it was seen. */
static void test_the_rules_bind_when_all_follow_them(void **state)
{
    (void)state;
    for (unsigned old = 0; old < 3; old++) { /* how many hosts are of the version before, the last ones */
        struct net *net = mesh_of(90, 4, 4);
        bool bound = false;

        net_run(net, 2 * NET_S);
        for (unsigned i = 0; i < 4; i++)
            net_crash(net, i);
        for (unsigned i = 0; i < 4; i++) {
            keep_as_before(net, i);
            net->nodes[i].previous = i >= 4 - old;
            net_start(net, i);
        }
        net_run(net, 10 * NET_S);
        must_add(net, 1, 1);
        net_run(net, 2 * NET_S);
        for (unsigned i = 0; i < 4; i++)
            assert_true(knows(net, i, 1));
        assert_true(takes_one_signature(net, 3, 0));
        assert_int_equal(permits_without_a_token(net, 3), old > 0); /* of one that is of the version before */
        net_run(net, 3700 * NET_S);
        must_add(net, 1, 2);
        must_add(net, 1, 3);
        net_run(net, 2 * NET_S);
        for (unsigned i = 0; i < 4; i++)
            assert_true(knows(net, i, 3));
        bound = !takes_one_signature(net, 3, 0);
        assert_int_equal(permits_without_a_token(net, 3), old > 0);
        if (bound != (old == 0))
            fail_msg("%u hosts of the version before: %s", old, bound ? "bound" : "not bound");
        net_destroy(net);
    }
}

/* A young mesh: a host is there before its facts are. */
static void test_who_has_not_told_of_itself_is_not_taken_for_one_of_the_version_before(void **state)
{
    struct net *net = mesh_of(91, 3, 3);

    (void)state;
    net_run(net, 2 * NET_S);
    assert_true(shoal_sched_all_follow_rules(net->nodes[0].sched));
    net->nodes[1].untold = true;
    net_tell_node(net, 0, 1, SHOAL_SCHED_NODE_ALIVE);
    assert_true(shoal_sched_all_follow_rules(net->nodes[0].sched));
    net->nodes[1].untold = false;
    net->nodes[1].previous = true;
    net_tell_node(net, 0, 1, SHOAL_SCHED_NODE_ALIVE);
    assert_false(shoal_sched_all_follow_rules(net->nodes[0].sched));
    net_destroy(net);
}

/* Decision 0078. */
static void test_a_host_of_the_version_before_takes_no_wide_job(void **state)
{
    struct net *net = mesh_of(92, 3, 3);
    struct shoal_node_id node = { { 0 } };

    (void)state;
    net_run(net, 2 * NET_S);
    assert_false(shoal_sched_refuses_workers(net->nodes[0].sched, SHOAL_JOB_WORKERS_MAX, &node));
    net->nodes[1].untold = true;
    net_tell_node(net, 0, 1, SHOAL_SCHED_NODE_ALIVE);
    assert_false(shoal_sched_refuses_workers(net->nodes[0].sched, SHOAL_JOB_WORKERS_MAX, &node));
    net->nodes[1].untold = false;
    net->nodes[1].previous = true;
    net_tell_node(net, 0, 1, SHOAL_SCHED_NODE_ALIVE);
    assert_false(shoal_sched_refuses_workers(net->nodes[0].sched, SHOAL_JOB_WORKERS_PLAIN, &node));
    assert_true(shoal_sched_refuses_workers(net->nodes[0].sched, SHOAL_JOB_WORKERS_PLAIN + 1, &node));
    assert_true(shoal_node_id_equal(node, net->nodes[1].id));
    net_tell_node(net, 0, 1, SHOAL_SCHED_NODE_DEAD);
    assert_false(shoal_sched_refuses_workers(net->nodes[0].sched, SHOAL_JOB_WORKERS_MAX, &node)); /* it is away */
    net_destroy(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_drained_leader_hands_over),
        cmocka_unit_test(test_who_has_not_told_of_itself_is_not_taken_for_one_of_the_version_before),
        cmocka_unit_test(test_a_host_of_the_version_before_takes_no_wide_job),
        cmocka_unit_test(test_the_founder_of_a_young_mesh_is_lost),
        cmocka_unit_test(test_a_mesh_of_two_is_in_no_hurry),
        cmocka_unit_test(test_who_is_removed_is_replaced_at_once),
        cmocka_unit_test(test_who_was_removed_is_not_heard),
        cmocka_unit_test(test_without_a_spare_groups_shrink),
        cmocka_unit_test(test_a_drained_host_guards_nothing),
        cmocka_unit_test(test_a_drain_without_a_spare),
        cmocka_unit_test(test_a_drain_just_after_a_loss),
        cmocka_unit_test(test_who_came_back_and_guards_alone_starts_again),
        cmocka_unit_test(test_one_of_two),
        cmocka_unit_test(test_three_of_five_are_lost_and_three_join),
        cmocka_unit_test(test_from_a_copy),
        cmocka_unit_test(test_a_copy_is_believed_of_a_majority_alone),
        cmocka_unit_test(test_a_guardians_word_ends_no_replica_of_the_mesh),
        cmocka_unit_test(test_what_a_host_passes_on_needs_the_users_token),
        cmocka_unit_test(test_a_question_that_is_lost_is_asked_again),
        cmocka_unit_test(test_a_host_that_was_left_behind_asks_the_others),
        cmocka_unit_test(test_a_suspected_host_is_waited_for),
        cmocka_unit_test(test_the_rules_bind_when_all_follow_them),
        cmocka_unit_test(test_it_is_refused_while_a_majority_may_live),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
