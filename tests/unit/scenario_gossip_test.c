/* Runs tests/scenario/gossip_*.txt: a script, a line of dashes, and the trace it must produce. Several gossip cores on
 * the tiny network of gossip_net.h. To see the trace of a script: SHOAL_SCENARIO_PRINT=1 and run this test.
 *
 *   mesh a b c [1]        start these nodes, joined and in step; the clock then reads 0; [1]: the seed
 *   node d / join d a     one more node; it joins through a
 *   cut a b, cut a > b    no datagrams between them, or from a to b only; heal [a b]
 *   cut a b | c d         every link between the two sides
 *   crash b / restart b   the process ends; it starts again, with the next incarnation and nothing but its key
 *   clone b as x via a    b's data folder starts elsewhere, with the next incarnation, and joins through a
 *   usurp b by x          b's process ends and x, a stranger, listens at its address
 *   pause b / resume b    the process sleeps
 *   lose 30               percent of all datagrams
 *   leave b, refuse a b   b says goodbye; a sees b's port refused
 *   publish a load 1 text a publishes this as its load, version 1 (also: summary, facts; "delete" for a tombstone)
 *   show members notes records   what the trace holds (default: members notes)
 *   run 800ms, run 5s     time goes on */
#include "gossip_net.h"

#include "scenario_script.h"

struct scenario {
    struct net net;
    struct script script;
    uint64_t zero_ns;
    bool members, notes, records, quiet;
};

static struct scenario scenario;

__attribute__((format(printf, 2, 3))) static void say(struct net_node *node, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    script_say(&scenario.script, (scenario.net.now_ns - scenario.zero_ns) / SHOAL_MS, node->name, format, args);
    va_end(args);
}

static const char *because(struct net *net, const struct shoal_swim_action *action, char *text, size_t cap)
{
    switch (action->member.why) {
    case SHOAL_SWIM_WHY_SILENT: return "silent";
    case SHOAL_SWIM_WHY_TIMEOUT: return "time is up";
    case SHOAL_SWIM_WHY_REFUSED: return "refused";
    case SHOAL_SWIM_WHY_EXPIRED: return "grace is over";
    case SHOAL_SWIM_WHY_TOLD: (void)snprintf(text, cap, "told by %s", net_name_of(net, action->member.by)); return text;
    default: return "its word";
    }
}

static void say_member(struct net *net, struct net_node *node, const struct shoal_swim_action *action)
{
    const struct shoal_member *m = &action->member.member;
    enum shoal_member_state old = action->member.old;
    const char *name = net_name_of(net, m->id);
    char by[48], life[48];

    (void)snprintf(life, sizeof(life), "life %u.%u, refutation %u", m->incarnation.host_epoch, m->incarnation.agent,
                   m->incarnation.refutation);
    switch (m->state) {
    case SHOAL_MEMBER_NONE: say(node, "%s is forgotten", name); break;
    case SHOAL_MEMBER_ALIVE:
        say(node, "%s %s: %s", name,
            old == SHOAL_MEMBER_NONE    ? "is new"
            : old == SHOAL_MEMBER_ALIVE ? "is anew"
                                        : "is back",
            life);
        break;
    case SHOAL_MEMBER_SUSPECT: say(node, "%s is suspect: %s", name, because(net, action, by, sizeof(by))); break;
    case SHOAL_MEMBER_DEAD:
        say(node, "%s is dead: %s%s", name, because(net, action, by, sizeof(by)), m->agent_gone ? " (agent gone)" : "");
        break;
    case SHOAL_MEMBER_LEFT:
        say(node, action->member.why == SHOAL_SWIM_WHY_EXPELLED ? "%s was removed" : "%s has left", name);
        break;
    case SHOAL_MEMBER_STATES: break;
    }
}

static void say_note(struct net *net, struct net_node *node, const struct shoal_swim_action *action)
{
    const char *name = net_name_of(net, action->note.id), *by = net_name_of(net, action->note.by);

    switch (action->note.what) {
    case SHOAL_SWIM_NOTE_NO_ACK: say(node, "ping %s: no ack, asking %s", name, by); break;
    case SHOAL_SWIM_NOTE_THROUGH: say(node, "%s is alive (through %s)", name, by); break;
    case SHOAL_SWIM_NOTE_REFUTE: {
        struct shoal_member self;

        shoal_swim_self(node->swim, &self);
        say(node, "refutes %s: refutation %u", by, self.incarnation.refutation);
        break;
    }
    case SHOAL_SWIM_NOTE_WRONG: say(node, "ping %s: %s answers there", name, by); break;
    case SHOAL_SWIM_NOTE_CONFIRMED: say(node, "%s suspects %s too", by, name); break;
    case SHOAL_SWIM_NOTE_SYNCED: say(node, "in step with %s", name); break;
    case SHOAL_SWIM_NOTE_LATE: say(node, "was late"); break;
    case SHOAL_SWIM_NOTE_LEAVE_SENT: say(node, "has said goodbye"); break;
    case SHOAL_SWIM_WHY_CARD:
    case SHOAL_SWIM_WHY_SILENT:
    case SHOAL_SWIM_WHY_TOLD:
    case SHOAL_SWIM_WHY_TIMEOUT:
    case SHOAL_SWIM_WHY_REFUSED:
    case SHOAL_SWIM_WHY_EXPELLED:
    case SHOAL_SWIM_WHY_EXPIRED: say(node, "note %d", (int)action->note.what); break;
    }
}

static void on_action(struct net *net, struct net_node *node, const struct shoal_swim_action *action)
{
    struct scenario *s = &scenario;

    if (s->quiet)
        return;
    if (action->kind == SHOAL_SWIM_MEMBER && s->members)
        say_member(net, node, action);
    if (action->kind == SHOAL_SWIM_NOTE && s->notes)
        say_note(net, node, action);
    if (action->kind == SHOAL_SWIM_CLONED)
        say(node, "this data folder lives elsewhere: life %u.%u", action->cloned.incarnation.host_epoch,
            action->cloned.incarnation.agent);
    if (action->kind == SHOAL_SWIM_RECORD && s->records)
        say(node, "%s's record %d, version %llu: %.*s", net_name_of(net, action->record.author),
            (int)action->record.kind, (unsigned long long)action->record.version.word[2],
            action->record.tombstone ? 7 : (int)action->record.payload.len,
            action->record.tombstone ? "deleted" : (const char *)action->record.payload.bytes);
}

/* ---- commands ------------------------------------------------------------------------------------------------- */

static struct net_node *node_named(const char *name)
{
    struct net_node *node = name == NULL ? NULL : net_find(&scenario.net, name);

    if (node == NULL)
        fail_msg("%s: there is no node %s", scenario.script.path, name == NULL ? "named" : name);
    return node;
}

static void set_cut(const char *from, const char *to, bool cut)
{
    struct net *net = &scenario.net;

    net->cut[node_named(from) - net->nodes][node_named(to) - net->nodes] = cut;
}

static void do_mesh(char **words, int count)
{
    struct net *net = &scenario.net;

    scenario.quiet = true;
    for (int i = 1; i < count; i++) {
        struct net_node *node = net_add(net, words[i]);

        net_start(node);
        if (i > 1)
            net_join(node, node_named(words[1]));
    }
    net_run(net, 20 * SHOAL_S);
    scenario.quiet = false;
    scenario.zero_ns = net->now_ns;
}

static void do_cut(char **words, int count, bool cut)
{
    int bar = 0;

    for (int i = 1; i < count; i++)
        if (strcmp(words[i], "|") == 0)
            bar = i;
    if (count == 1) {
        memset(scenario.net.cut, 0, sizeof(scenario.net.cut));
    } else if (bar > 0) {
        for (int i = 1; i < bar; i++)
            for (int j = bar + 1; j < count; j++) {
                set_cut(words[i], words[j], cut);
                set_cut(words[j], words[i], cut);
            }
    } else if (strcmp(words[2], ">") == 0) {
        set_cut(words[1], words[3], cut);
    } else {
        set_cut(words[1], words[2], cut);
        set_cut(words[2], words[1], cut);
    }
}

static void do_crash(struct net_node *node)
{
    shoal_swim_destroy(node->swim);
    node->swim = NULL;
    node->up = false;
}

static void do_restart(struct net_node *node)
{
    node->options.agent++;
    net_start(node);
    net_join(node, &scenario.net.nodes[node == &scenario.net.nodes[0] ? 1 : 0]);
}

static void do_takes(struct net_node *node, const char *name)
{
    struct net_node *taker = net_add(&scenario.net, name);

    do_crash(node);
    taker->options.address = node->options.address;
    node->options.address.port = 1;
    net_start(taker);
}

static void do_clone(struct net_node *node, const char *name, const struct net_node *seed)
{
    struct net_node *copy = net_add(&scenario.net, name);
    struct shoal_address address = copy->options.address;

    copy->options = node->options;
    copy->options.env.arg = copy;
    copy->options.address = address;
    copy->options.agent++;
    net_start(copy);
    net_join(copy, seed);
}

static void do_publish(char **words, int count)
{
    struct net_node *node = node_named(words[1]);
    struct shoal_record record = { .kind = SHOAL_RECORD_NODE_LOAD };
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_PUBLISH, .record = &record };
    char text[SHOAL_RECORD_PAYLOAD_MAX] = "";

    if (strcmp(words[2], "summary") == 0)
        record.kind = SHOAL_RECORD_JOB_SUMMARY;
    else if (strcmp(words[2], "facts") == 0)
        record.kind = SHOAL_RECORD_NODE_FACTS;
    record.version.word[2] = (uint64_t)strtoull(words[3], NULL, 10);
    record.tombstone = strcmp(words[4], "delete") == 0;
    for (int i = 4; i < count && !record.tombstone; i++) {
        size_t len = strlen(text);

        (void)snprintf(text + len, sizeof(text) - len, "%s%s", i > 4 ? " " : "", words[i]);
    }
    record.payload = shoal_view_text(text);
    assert_int_equal(net_step(node, &event), SHOAL_OK);
}

static void do_show(char **words, int count)
{
    scenario.members = scenario.notes = scenario.records = false;
    for (int i = 1; i < count; i++) {
        scenario.members |= strcmp(words[i], "members") == 0;
        scenario.notes |= strcmp(words[i], "notes") == 0;
        scenario.records |= strcmp(words[i], "records") == 0;
    }
}

static void do_event(struct net_node *node, enum shoal_swim_event_kind kind, const struct net_node *peer)
{
    struct shoal_swim_event event = { .kind = kind };

    if (peer != NULL)
        event.peer = peer->options.id;
    assert_int_equal(net_step(node, &event), SHOAL_OK);
}

static void command(char **words, int count, int line)
{
    const char *verb = words[0];

    if (strcmp(verb, "mesh") == 0) {
        do_mesh(words, count);
    } else if (strcmp(verb, "node") == 0) {
        net_start(net_add(&scenario.net, words[1]));
    } else if (strcmp(verb, "join") == 0) {
        net_join(node_named(words[1]), node_named(words[2]));
    } else if (strcmp(verb, "cut") == 0 || strcmp(verb, "heal") == 0) {
        do_cut(words, count, strcmp(verb, "cut") == 0);
    } else if (strcmp(verb, "crash") == 0) {
        do_crash(node_named(words[1]));
    } else if (strcmp(verb, "restart") == 0) {
        do_restart(node_named(words[1]));
    } else if (strcmp(verb, "clone") == 0) {
        do_clone(node_named(words[1]), words[3], node_named(words[5]));
    } else if (strcmp(verb, "usurp") == 0) {
        do_takes(node_named(words[1]), words[3]);
    } else if (strcmp(verb, "pause") == 0 || strcmp(verb, "resume") == 0) {
        node_named(words[1])->paused = strcmp(verb, "pause") == 0;
    } else if (strcmp(verb, "lose") == 0) {
        scenario.net.loss_percent = (unsigned)strtoul(words[1], NULL, 10);
    } else if (strcmp(verb, "leave") == 0) {
        do_event(node_named(words[1]), SHOAL_SWIM_LEAVE, NULL);
    } else if (strcmp(verb, "expel") == 0) {
        net_expel(node_named(words[1]), node_named(words[2]));
    } else if (strcmp(verb, "refuse") == 0) {
        do_event(node_named(words[1]), SHOAL_SWIM_REFUSED, node_named(words[2]));
    } else if (strcmp(verb, "publish") == 0) {
        do_publish(words, count);
    } else if (strcmp(verb, "show") == 0) {
        do_show(words, count);
    } else if (strcmp(verb, "run") == 0) {
        net_run(&scenario.net, script_time(words[1]));
    } else {
        fail_msg("%s:%d: no such command: %s", scenario.script.path, line, verb);
    }
}

/* ---- running -------------------------------------------------------------------------------------------------- */

static void run_scenario(const char *path)
{
    memset(&scenario, 0, sizeof(scenario));
    scenario.members = scenario.notes = true;
    net_init(&scenario.net, 1);
    scenario.net.on_action = on_action;
    scenario.zero_ns = scenario.net.now_ns;
    script_run(&scenario.script, path, command, "scenario_gossip");
    net_deinit(&scenario.net);
}

static void every_gossip_scenario_produces_its_trace(void **state)
{
    (void)state;
    script_each("tests/scenario/gossip_*.txt", 6, run_scenario);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gossip_scenario_produces_its_trace),
    };

    return cmocka_run_group_tests_name("scenario_gossip", tests, NULL, NULL);
}
