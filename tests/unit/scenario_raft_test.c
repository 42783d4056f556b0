/* Runs tests/scenario/raft_*.txt: a script, a line of dashes, and the trace it must produce. Guardians of one group
 * with their support cores, on the box of raft_mesh.h. To see the trace of a script: SHOAL_SCENARIO_PRINT=1 and this
 * test.
 *
 *   group abc among abcde [7]   voters, all nodes, the seed; all start now
 *   settled a             time goes on quietly until a leads and the group sleeps; the clock then reads 0
 *   cut a b, cut a > b    no messages between them, or from a to b only; heal: all links are well again
 *   crash a [2]           the process ends; the first 2 (0) of its unfinished writes are on disk; restart a
 *   pause a, resume a     the process sleeps
 *   disk a 50ms           its writes take up to that long; disk a hangs: they do not finish, until disk a flows
 *   lose 20               percent of all messages
 *   propose a text [9]    so many times; read a; change a abd [c]: voters, learners; transfer a b; snapshot a
 *   status                one line for each node, with the messages of the group that it sent since the last status
 *   run 800ms, run 5s     time goes on */
#include "scenario_script.h"

#include "raft_mesh.h"

#include "shoal/banned.h"

struct scenario {
    struct mesh *mesh;
    struct script script;
    uint64_t zero;
    bool quiet;
    uint64_t sent[MESH_NODES_MAX];
};

static struct scenario scenario;

__attribute__((format(printf, 2, 3))) static void say(uint32_t node, const char *format, ...)
{
    char name[2] = { (char)('a' + (int)node), '\0' };
    va_list args;

    if (scenario.quiet)
        return;
    va_start(args, format);
    script_say(&scenario.script, (scenario.mesh->now - scenario.zero) / SHOAL_MS, name, format, args);
    va_end(args);
}

static void say_role(uint32_t node, const struct shoal_raft_action *action)
{
    unsigned long long term = (unsigned long long)action->u.role.term;

    switch (action->u.role.role) {
    case SHOAL_RAFT_FOLLOWER:
        if (shoal_raft_id_is_zero(action->u.role.leader))
            say(node, "knows no leader (term %llu)", term);
        else
            say(node, "follows %c (term %llu)", action->u.role.leader.node.bytes[0], term);
        break;
    case SHOAL_RAFT_PRECANDIDATE: say(node, "would lead (term %llu)", term); break;
    case SHOAL_RAFT_CANDIDATE: say(node, "asks for votes (term %llu)", term); break;
    case SHOAL_RAFT_LEADER: say(node, "leads (term %llu)", term); break;
    }
}

/* The names of the members that have `bit`. */
static void names_with(const struct shoal_raft_config *config, uint8_t bit, char *names)
{
    for (uint32_t i = 0; i < config->count; i++) {
        if (config->members[i].bits & bit)
            *names++ = (char)config->members[i].id.node.bytes[0];
    }
    *names = '\0';
}

static void say_config(const struct mesh *mesh, uint32_t node)
{
    const struct shoal_raft_config *config = shoal_raft_config(mesh->nodes[node].raft);
    char voters[SHOAL_GROUP_NODES_MAX + 1], old[SHOAL_GROUP_NODES_MAX + 1], learners[SHOAL_GROUP_NODES_MAX + 1];

    names_with(config, SHOAL_RAFT_VOTER, voters);
    names_with(config, SHOAL_RAFT_VOTER_OLD, old);
    names_with(config, SHOAL_RAFT_LEARNER, learners);
    say(node, "configuration %s%s%s%s%s", voters, config->joint ? " and " : "", old,
        learners[0] == '\0' ? "" : ", learners ", learners);
}

static void on_action(void *arg, const struct mesh *mesh, uint32_t node, const struct shoal_raft_action *action)
{
    (void)arg;
    switch (action->kind) {
    case SHOAL_RAFT_ACTION_ROLE: say_role(node, action); break;
    case SHOAL_RAFT_ACTION_CONFIG: say_config(mesh, node); break;
    case SHOAL_RAFT_ACTION_COMMIT: say(node, "commits %llu", (unsigned long long)action->u.commit.index); break;
    case SHOAL_RAFT_ACTION_READ_READY:
        say(node, "serves a read at %llu", (unsigned long long)action->u.read_ready.index);
        break;
    case SHOAL_RAFT_ACTION_REJECT: say(node, "refuses: %s", shoal_err_name(action->u.reject.err)); break;
    case SHOAL_RAFT_ACTION_REMOVED: say(node, "is told that it is no member"); break;
    case SHOAL_RAFT_ACTION_PERSIST:
        if (action->u.persist.has_snapshot)
            say(node, "installs snapshot %llu", (unsigned long long)action->u.persist.snapshot.index);
        if (action->u.persist.truncate_from != 0)
            say(node, "drops its log from %llu", (unsigned long long)action->u.persist.truncate_from);
        break;
    case SHOAL_RAFT_ACTION_SEND:
    case SHOAL_RAFT_ACTION_NEED_SNAPSHOT:
    case SHOAL_RAFT_ACTION_SNAPSHOT_PART: break;
    }
}

/* ---- Commands ---- */

static uint32_t node_named(const char *name)
{
    uint32_t node = name == NULL ? UINT32_MAX : (uint32_t)(name[0] - 'a');

    if (scenario.mesh == NULL || node >= scenario.mesh->count)
        fail_msg("%s: there is no node %s", scenario.script.path, name == NULL ? "named" : name);
    return node;
}

static void do_group(char **words, int count)
{
    scenario.mesh = mesh_create(count > 4 ? strtoull(words[4], NULL, 10) : 1, (uint32_t)strlen(words[3]), words[1]);
    scenario.mesh->trace = on_action;
    scenario.zero = scenario.mesh->now;
}

static void do_settled(const char *name)
{
    struct mesh *mesh = scenario.mesh;
    uint32_t wanted = node_named(name);
    struct shoal_raft_status status;

    scenario.quiet = true;
    mesh_run(mesh, 2 * SHOAL_S);
    if (mesh_leader(mesh) != wanted)
        assert_true(mesh_transfer(mesh, mesh_leader(mesh), wanted));
    mesh_run(mesh, 2 * SHOAL_S);
    assert_int_equal(mesh_leader(mesh), wanted);
    shoal_raft_status(mesh->nodes[wanted].raft, &status);
    assert_true(status.asleep);
    for (uint32_t i = 0; i < mesh->count; i++)
        scenario.sent[i] = mesh->nodes[i].raft_sent;
    scenario.quiet = false;
    scenario.zero = mesh->now;
}

static void do_cut(char **words)
{
    bool one_way = strcmp(words[2], ">") == 0;
    uint32_t from = node_named(words[1]);
    uint32_t to = node_named(words[one_way ? 3 : 2]);

    scenario.mesh->cut[from][to] = true;
    if (!one_way)
        scenario.mesh->cut[to][from] = true;
}

static void do_disk(char **words)
{
    struct mesh_node *node = &scenario.mesh->nodes[node_named(words[1])];

    if (strcmp(words[2], "hangs") == 0) {
        node->write_ns = UINT64_MAX;
        for (uint32_t w = 0; w < node->writes_count; w++)
            node->writes[w].at = UINT64_MAX;
        return;
    }
    node->write_ns = strcmp(words[2], "flows") == 0 ? 2 * SHOAL_MS : script_time(words[2]);
    for (uint32_t w = 0; w < node->writes_count; w++) {
        if (node->writes[w].at == UINT64_MAX)
            node->writes[w].at = scenario.mesh->now + 1;
    }
}

static void do_status(void)
{
    for (uint32_t i = 0; i < scenario.mesh->count; i++) {
        struct mesh_node *node = &scenario.mesh->nodes[i];
        struct shoal_raft_status status;

        if (!node->up) {
            say(i, "is down");
            continue;
        }
        shoal_raft_status(node->raft, &status);
        say(i, "%s, term %llu, commit %llu, log %llu..%llu%s, sent %llu",
            status.role == SHOAL_RAFT_LEADER     ? "leader"
            : status.role == SHOAL_RAFT_FOLLOWER ? "follower"
                                                 : "candidate",
            (unsigned long long)status.term, (unsigned long long)status.commit, (unsigned long long)status.first,
            (unsigned long long)status.last, status.asleep ? ", asleep" : "",
            (unsigned long long)(node->raft_sent - scenario.sent[i]));
        scenario.sent[i] = node->raft_sent;
    }
}

static void do_propose(char **words, int count)
{
    uint64_t times = count > 3 ? strtoull(words[3], NULL, 10) : 1;

    for (uint64_t n = 0; n < times; n++)
        (void)mesh_propose(scenario.mesh, node_named(words[1]), words[2]);
}

static void do_one(const char *verb, char **words, int count, int line)
{
    struct mesh *mesh = scenario.mesh;
    uint32_t node = node_named(words[1]);

    if (strcmp(verb, "crash") == 0)
        mesh_crash(mesh, node, count > 2 ? (uint32_t)strtoul(words[2], NULL, 10) : 0);
    else if (strcmp(verb, "restart") == 0)
        mesh_start(mesh, node);
    else if (strcmp(verb, "pause") == 0 || strcmp(verb, "resume") == 0)
        mesh->nodes[node].paused = strcmp(verb, "pause") == 0;
    else if (strcmp(verb, "disk") == 0)
        do_disk(words);
    else if (strcmp(verb, "propose") == 0)
        do_propose(words, count);
    else if (strcmp(verb, "read") == 0)
        (void)mesh_read(mesh, node);
    else if (strcmp(verb, "change") == 0)
        (void)mesh_change(mesh, node, words[2], count > 3 ? words[3] : "");
    else if (strcmp(verb, "transfer") == 0)
        (void)mesh_transfer(mesh, node, node_named(words[2]));
    else if (strcmp(verb, "snapshot") == 0)
        mesh_snapshot(mesh, node);
    else
        fail_msg("%s:%d: no such command: %s", scenario.script.path, line, verb);
}

static void command(char **words, int count, int line)
{
    const char *verb = words[0];

    if (strcmp(verb, "group") == 0)
        do_group(words, count);
    else if (strcmp(verb, "settled") == 0)
        do_settled(words[1]);
    else if (strcmp(verb, "cut") == 0)
        do_cut(words);
    else if (strcmp(verb, "heal") == 0)
        memset(scenario.mesh->cut, 0, sizeof(scenario.mesh->cut));
    else if (strcmp(verb, "lose") == 0)
        scenario.mesh->loss_percent = (uint32_t)strtoul(words[1], NULL, 10);
    else if (strcmp(verb, "status") == 0)
        do_status();
    else if (strcmp(verb, "run") == 0)
        mesh_run(scenario.mesh, script_time(words[1]));
    else
        do_one(verb, words, count, line);
    if (scenario.mesh->broken[0] != '\0')
        fail_msg("FAIL %s:%d %s", scenario.script.path, line, scenario.mesh->broken);
}

/* ---- Running ---- */

static void run_scenario(const char *path)
{
    memset(&scenario, 0, sizeof(scenario));
    script_run(&scenario.script, path, command, "scenario_raft");
    mesh_destroy(scenario.mesh);
}

static void every_scenario_gives_its_trace(void **state)
{
    (void)state;
    script_each("tests/scenario/raft_*.txt", 6, run_scenario);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_scenario_gives_its_trace) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
