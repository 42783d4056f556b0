/* One guardian, step by step: what it answers, what it hands out, what it waits for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "shoal/raft.h"

#include "shoal/banned.h"

#define MS SHOAL_MS
#define START (10 * SHOAL_S)

struct rig {
    struct shoal_raft *raft;
    uint64_t now;
    struct shoal_raft_mark mark; /* of the newest PERSIST */
    struct shoal_raft_actions out;
};

static struct shoal_raft_id id_of(char name)
{
    struct shoal_raft_id id = { .node = { { 0 } } };

    if (name == '-')
        return id;
    id.node.bytes[0] = (uint8_t)name;
    id.store.bytes[0] = (uint8_t)name;
    return id;
}

static struct shoal_raft_config config_of(const char *voters, const char *learners)
{
    struct shoal_raft_config config = { 0 };

    for (; *voters != '\0'; voters++)
        config.members[config.count++] = (struct shoal_raft_member){ .id = id_of(*voters), .bits = SHOAL_RAFT_VOTER };
    for (; *learners != '\0'; learners++)
        config.members[config.count++] =
            (struct shoal_raft_member){ .id = id_of(*learners), .bits = SHOAL_RAFT_LEARNER };
    return config;
}

static struct shoal_raft_options options_of(char self, const char *voters, const char *learners)
{
    struct shoal_raft_options options = { .self = id_of(self), .config = config_of(voters, learners) };

    shoal_rand_init(&options.chance, 1);
    return options;
}

static struct shoal_entry *entry_at(uint64_t term, uint64_t index)
{
    return shoal_entry_create_at(term, index, SHOAL_ENTRY_USER, shoal_view_text("x"));
}

/* A guardian whose log has the given terms ("112": three entries), one digit each. */
static struct rig *rig_restore(char self, const char *voters, const char *learners, const char *terms,
                               struct shoal_raft_hard_state hard, uint64_t quiet_until)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct shoal_raft_options options = options_of(self, voters, learners);
    struct shoal_entry *entries[64];
    struct shoal_raft_restored restored = { .hard = hard, .entries = entries };

    rig->now = START;
    options.quiet_until_ns = quiet_until;
    for (; terms[restored.count] != '\0'; restored.count++)
        entries[restored.count] = entry_at((uint64_t)(terms[restored.count] - '0'), restored.count + 1);
    assert_int_equal(shoal_raft_restore(&rig->raft, &options, &restored), SHOAL_OK);
    for (size_t i = 0; i < restored.count; i++)
        shoal_entry_unref(entries[i]);
    return rig;
}

static struct rig *rig_create(char self, const char *voters, const char *learners)
{
    return rig_restore(self, voters, learners, "", (struct shoal_raft_hard_state){ .term = 1 }, 0);
}

static void rig_destroy(struct rig *rig)
{
    shoal_raft_destroy(rig->raft);
    free(rig);
}

static enum shoal_err step(struct rig *rig, const struct shoal_raft_event *event)
{
    enum shoal_err err = shoal_raft_step(rig->raft, event, rig->now, &rig->out);

    shoal_raft_check(rig->raft);
    for (uint32_t i = 0; i < rig->out.count; i++) {
        if (rig->out.list[i].kind == SHOAL_RAFT_ACTION_PERSIST)
            rig->mark = rig->out.list[i].u.persist.mark;
    }
    if (rig->out.wants_reserve)
        assert_int_equal(shoal_raft_reserve(rig->raft), SHOAL_OK);
    return err;
}

static void happen(struct rig *rig, struct shoal_raft_event event) { assert_int_equal(step(rig, &event), SHOAL_OK); }

static void stored(struct rig *rig)
{
    happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_STORED, .u.stored = rig->mark });
}

static void timer(struct rig *rig) { happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_TIMER }); }

static enum shoal_err hear(struct rig *rig, struct shoal_raft_message message)
{
    return step(rig, &(struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_MESSAGE, .u.message = &message });
}

static struct shoal_raft_message from_to(enum shoal_raft_message_kind kind, char from, char to, uint64_t term)
{
    struct shoal_raft_message message;

    memset(&message, 0, sizeof(message));
    message.kind = kind;
    message.from = id_of(from);
    message.to = id_of(to);
    message.term = term;
    return message;
}

static struct shoal_raft_message vote_of(enum shoal_raft_message_kind kind, char from, char to, uint64_t for_term,
                                         uint64_t last_index, uint64_t last_term)
{
    struct shoal_raft_message message = from_to(kind, from, to, kind == SHOAL_RAFT_VOTE ? for_term : for_term - 1);

    message.u.vote.for_term = for_term;
    message.u.vote.last_index = last_index;
    message.u.vote.last_term = last_term;
    return message;
}

static struct shoal_raft_message granted_of(enum shoal_raft_message_kind kind, char from, char to, uint64_t for_term,
                                            bool granted)
{
    struct shoal_raft_message message =
        from_to(kind, from, to, kind == SHOAL_RAFT_VOTE_REPLY ? for_term : for_term - 1);

    message.u.vote_reply.for_term = for_term;
    message.u.vote_reply.granted = granted;
    return message;
}

/* An append of entries with the given terms after (prev_index, prev_term). Free with shoal_raft_message_deinit. */
static struct shoal_raft_message append_of(char from, char to, uint64_t term, uint64_t prev_index, uint64_t prev_term,
                                           const char *terms, uint64_t commit)
{
    struct shoal_raft_message message = from_to(SHOAL_RAFT_APPEND, from, to, term);

    message.u.append.prev_index = prev_index;
    message.u.append.prev_term = prev_term;
    message.u.append.commit = commit;
    for (; terms[message.u.append.count] != '\0'; message.u.append.count++)
        message.u.append.entries[message.u.append.count] =
            entry_at((uint64_t)(terms[message.u.append.count] - '0'), prev_index + 1 + message.u.append.count);
    return message;
}

static void hear_append(struct rig *rig, char from, uint64_t term, uint64_t prev_index, uint64_t prev_term,
                        const char *terms, uint64_t commit)
{
    struct shoal_raft_message message = append_of(from, 'a', term, prev_index, prev_term, terms, commit);

    assert_int_equal(hear(rig, message), SHOAL_OK);
    shoal_raft_message_deinit(&message);
}

static void hear_accepted(struct rig *rig, char from, uint64_t term, uint64_t index, uint64_t commit)
{
    struct shoal_raft_message message = from_to(SHOAL_RAFT_APPEND_REPLY, from, 'a', term);

    message.u.append_reply.index = index;
    message.u.append_reply.commit = commit;
    message.u.append_reply.seq = UINT64_MAX;
    assert_int_equal(hear(rig, message), SHOAL_OK);
}

static const struct shoal_raft_action *find(const struct rig *rig, enum shoal_raft_action_kind kind)
{
    for (uint32_t i = 0; i < rig->out.count; i++) {
        if (rig->out.list[i].kind == kind)
            return &rig->out.list[i];
    }
    return NULL;
}

static const struct shoal_raft_message *sent(const struct rig *rig, enum shoal_raft_message_kind kind)
{
    for (uint32_t i = 0; i < rig->out.count; i++) {
        if (rig->out.list[i].kind == SHOAL_RAFT_ACTION_SEND && rig->out.list[i].u.send.kind == kind)
            return &rig->out.list[i].u.send;
    }
    return NULL;
}

static uint32_t count_sent(const struct rig *rig, enum shoal_raft_message_kind kind)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < rig->out.count; i++)
        count += rig->out.list[i].kind == SHOAL_RAFT_ACTION_SEND && rig->out.list[i].u.send.kind == kind;
    return count;
}

static struct shoal_raft_status status(const struct rig *rig)
{
    struct shoal_raft_status now;

    shoal_raft_status(rig->raft, &now);
    return now;
}

static void support(struct rig *rig, char node, uint64_t until)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PEER_SUPPORT };

    event.u.peer_support.node = id_of(node).node;
    event.u.peer_support.until_ns = until;
    happen(rig, event);
}

static void supporting(struct rig *rig, char node, bool on, uint64_t term)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_SUPPORTING };

    event.u.supporting.node = id_of(node).node;
    event.u.supporting.on = on;
    happen(rig, event);
    event.kind = SHOAL_RAFT_EVENT_CLAIM;
    event.u.claim.node = id_of(node).node;
    event.u.claim.term = term;
    if (on)
        happen(rig, event);
}

/* Makes `a` the leader, by the votes of b and c, and stores its first entry. */
static void elect(struct rig *rig)
{
    uint64_t term;

    for (uint32_t i = 0; i < 4 && status(rig).role == SHOAL_RAFT_FOLLOWER; i++) {
        if (shoal_raft_deadline_ns(rig->raft) > rig->now)
            rig->now = shoal_raft_deadline_ns(rig->raft);
        timer(rig);
    }
    term = status(rig).term + 1;
    if (status(rig).role == SHOAL_RAFT_PRECANDIDATE) {
        assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'b', 'a', term, true)), SHOAL_OK);
        (void)hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'c', 'a', term, true));
    }
    assert_int_equal(status(rig).role, SHOAL_RAFT_CANDIDATE);
    stored(rig);
    term = status(rig).term;
    (void)hear(rig, granted_of(SHOAL_RAFT_VOTE_REPLY, 'b', 'a', term, true));
    (void)hear(rig, granted_of(SHOAL_RAFT_VOTE_REPLY, 'c', 'a', term, true));
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER);
}

static struct rig *leader(const char *voters, const char *learners)
{
    struct rig *rig = rig_create('a', voters, learners);

    elect(rig);
    stored(rig);
    support(rig, 'b', UINT64_MAX);
    support(rig, 'c', UINT64_MAX);
    return rig;
}

static void snapshot_ready(struct rig *rig, uint64_t index, enum shoal_err want)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_SNAPSHOT_READY, .u.snapshot_ready.index = index };

    assert_int_equal(step(rig, &event), want);
}

/* A leader whose first entry is committed everywhere. */
static struct rig *settled_leader(const char *voters, const char *learners)
{
    struct rig *rig = leader(voters, learners);
    uint64_t last = status(rig).last;
    uint64_t term = status(rig).term;

    for (uint32_t i = 0; i < 2; i++) {
        for (const char *name = voters; *name != '\0'; name++) {
            if (*name != 'a')
                hear_accepted(rig, *name, term, last, i == 0 ? 0 : last);
        }
        for (const char *name = learners; *name != '\0'; name++)
            hear_accepted(rig, *name, term, last, i == 0 ? 0 : last);
        rig->now += 5 * MS;
        timer(rig);
    }
    return rig;
}

static enum shoal_err propose(struct rig *rig, size_t bytes)
{
    static uint8_t filling[SHOAL_ENTRY_BYTES_MAX];
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PROPOSE };
    const struct shoal_raft_action *reject;

    event.u.propose.ctx = 5;
    event.u.propose.entry = shoal_entry_create(SHOAL_ENTRY_USER, shoal_view_of(filling, bytes));
    happen(rig, event);
    shoal_entry_unref(event.u.propose.entry);
    reject = find(rig, SHOAL_RAFT_ACTION_REJECT);
    return reject == NULL ? SHOAL_OK : reject->u.reject.err;
}

static enum shoal_err change(struct rig *rig, struct shoal_raft_config target)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_CHANGE_CONFIG,
                                      .u.change = { .ctx = 6, .target = &target } };
    const struct shoal_raft_action *reject;

    happen(rig, event);
    reject = find(rig, SHOAL_RAFT_ACTION_REJECT);
    return reject == NULL ? SHOAL_OK : reject->u.reject.err;
}

static enum shoal_err transfer(struct rig *rig, char to)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_TRANSFER };
    const struct shoal_raft_action *reject;

    event.u.transfer.to = id_of(to).node;
    happen(rig, event);
    reject = find(rig, SHOAL_RAFT_ACTION_REJECT);
    return reject == NULL ? SHOAL_OK : reject->u.reject.err;
}

static void read_index(struct rig *rig, uint64_t ctx)
{
    happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_READ, .u.read.ctx = ctx });
}

/* ---- Votes ---- */

static void votes_go_to_those_who_may_have_them(void **state)
{
    static const struct {
        const char *name;
        const char *log;
        char voted;     /* in term 5 */
        bool supported; /* it supports a leader b of term 5 */
        bool quiet;     /* it has just started */
        bool transfer;
        uint64_t for_term;
        uint64_t last_index;
        uint64_t last_term;
        bool want;
    } cases[] = {
        { "an equal log is new enough", "112", '-', false, false, false, 6, 3, 2, true },
        { "a longer log of the same term is newer", "112", '-', false, false, false, 6, 4, 2, true },
        { "a shorter log of the same term is older", "112", '-', false, false, false, 6, 2, 2, false },
        { "a shorter log of a higher term is newer", "112", '-', false, false, false, 6, 1, 3, true },
        { "a longer log of a lower term is older", "112", '-', false, false, false, 6, 9, 1, false },
        { "the term's vote is given to b, and b asks again", "112", 'b', false, false, false, 5, 3, 2, true },
        { "the term's vote is given to another", "112", 'c', false, false, false, 5, 3, 2, false },
        { "an older term gets none", "112", '-', false, false, false, 4, 3, 2, false },
        { "support for the leader stands against it", "112", '-', true, false, false, 6, 3, 2, false },
        { "an election that the leader wants stands above its support", "112", '-', true, false, true, 6, 3, 2, true },
        { "who has just started has forgotten what it promised", "112", '-', false, true, false, 6, 3, 2, false },
        { "nor may the leader's wish change that", "112", '-', false, true, true, 6, 3, 2, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_raft_hard_state hard = { .term = 5, .vote = id_of(cases[i].voted) };
        struct rig *rig = rig_restore('a', "abc", "", cases[i].log, hard, cases[i].quiet ? START + 600 * MS : 0);
        struct shoal_raft_message vote =
            vote_of(SHOAL_RAFT_VOTE, 'b', 'a', cases[i].for_term, cases[i].last_index, cases[i].last_term);
        const struct shoal_raft_message *reply;

        if (cases[i].supported)
            supporting(rig, 'c', true, 5);
        vote.u.vote.transfer = cases[i].transfer;
        assert_int_equal(hear(rig, vote), SHOAL_OK);
        reply = sent(rig, SHOAL_RAFT_VOTE_REPLY);
        if (reply == NULL) {
            assert_non_null(find(rig, SHOAL_RAFT_ACTION_PERSIST));
            stored(rig);
            reply = sent(rig, SHOAL_RAFT_VOTE_REPLY);
        }
        if (reply == NULL || reply->u.vote_reply.granted != cases[i].want)
            fail_msg("FAIL unit/raft: %s", cases[i].name);
        rig_destroy(rig);
    }
}

static void a_member_anew_votes_as_if_it_had_its_log(void **state)
{
    static const struct {
        const char *name;
        const char *log;
        struct shoal_raft_floor floor;
        uint64_t for_term;
        uint64_t last_index;
        uint64_t last_term;
        bool want;
    } cases[] = {
        { "a log like the forgotten one is new enough", "1", { 5, 2, 3 }, 6, 3, 2, true },
        { "one that is older than the forgotten one is not", "1", { 5, 2, 3 }, 6, 2, 2, false },
        { "nor one that is older than its own", "112", { 5, 1, 2 }, 6, 2, 2, false },
        { "it may have voted in the forgotten term", "1", { 6, 2, 3 }, 6, 3, 2, false },
        { "but not in the next one", "1", { 6, 2, 3 }, 7, 3, 2, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_raft_hard_state hard = { .term = 5 };
        struct rig *rig = rig_restore('a', "abc", "", cases[i].log, hard, 0);
        const struct shoal_raft_message *reply;

        shoal_raft_set_floor(rig->raft, cases[i].floor);
        assert_int_equal(
            hear(rig, vote_of(SHOAL_RAFT_VOTE, 'b', 'a', cases[i].for_term, cases[i].last_index, cases[i].last_term)),
            SHOAL_OK);
        stored(rig);
        reply = sent(rig, SHOAL_RAFT_VOTE_REPLY);
        if ((reply != NULL && reply->u.vote_reply.granted) != cases[i].want)
            fail_msg("FAIL unit/raft: %s", cases[i].name);
        rig_destroy(rig);
    }
}

static void who_lacks_what_it_forgot_does_not_campaign(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct rig *rig = rig_restore('a', "abc", "", i == 0 ? "11" : "112",
                                      (struct shoal_raft_hard_state){ .term = 5, .vote = id_of('-') }, 0);

        shoal_raft_set_floor(rig->raft, (struct shoal_raft_floor){ .term = 5, .last_term = 2, .last_index = 3 });
        rig->now += 10 * SHOAL_S;
        happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_TIMER });
        assert_int_equal(count_sent(rig, SHOAL_RAFT_PREVOTE), i == 0 ? 0 : 2);
        rig_destroy(rig);
    }
}

static void a_vote_is_told_only_when_it_is_durable(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    const struct shoal_raft_action *persist;

    (void)state;
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_VOTE, 'b', 'a', 2, 0, 0)), SHOAL_OK);
    assert_null(sent(rig, SHOAL_RAFT_VOTE_REPLY));
    persist = find(rig, SHOAL_RAFT_ACTION_PERSIST);
    assert_true(persist->u.persist.has_hard);
    assert_int_equal(persist->u.persist.hard.term, 2);
    assert_true(shoal_raft_id_equal(persist->u.persist.hard.vote, id_of('b')));
    /* Asked again before the disk is done: still no answer. */
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_VOTE, 'b', 'a', 2, 0, 0)), SHOAL_OK);
    assert_null(sent(rig, SHOAL_RAFT_VOTE_REPLY));
    stored(rig);
    assert_true(sent(rig, SHOAL_RAFT_VOTE_REPLY)->u.vote_reply.granted);
    rig_destroy(rig);
}

static void a_vote_of_an_overtaken_term_is_never_told(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_mark first;

    (void)state;
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_VOTE, 'b', 'a', 2, 0, 0)), SHOAL_OK);
    first = rig->mark;
    hear_append(rig, 'c', 3, 0, 0, "", 0);
    happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_STORED, .u.stored = first });
    assert_null(sent(rig, SHOAL_RAFT_VOTE_REPLY));
    stored(rig);
    assert_null(sent(rig, SHOAL_RAFT_VOTE_REPLY));
    rig_destroy(rig);
}

static void a_candidate_asks_only_when_its_own_vote_is_durable(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    for (uint32_t i = 0; i < 3 && status(rig).role == SHOAL_RAFT_FOLLOWER; i++) {
        rig->now += 200 * MS;
        timer(rig);
    }
    assert_int_equal(count_sent(rig, SHOAL_RAFT_PREVOTE), 2);
    assert_null(find(rig, SHOAL_RAFT_ACTION_PERSIST)); /* a pre-vote changes nothing */
    assert_int_equal(status(rig).term, 1);
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'b', 'a', 2, true)), SHOAL_OK);
    assert_int_equal(status(rig).term, 2);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_VOTE), 0);
    /* A vote that comes before the own one is durable makes no leader. */
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_VOTE_REPLY, 'b', 'a', 2, true)), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_CANDIDATE);
    stored(rig);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_VOTE), 2);
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_VOTE_REPLY, 'c', 'a', 2, true)), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER);
    rig_destroy(rig);
}

/* Until it asks for votes in the next term. Returns how long it has waited for those of the last one. */
static uint64_t next_election(struct rig *rig)
{
    uint64_t asked = rig->now;
    uint64_t term = status(rig).term + 1;

    for (uint32_t i = 0; i < 1000 && status(rig).role != SHOAL_RAFT_PRECANDIDATE; i++) {
        rig->now += 10 * MS;
        timer(rig);
    }
    assert_int_equal(status(rig).role, SHOAL_RAFT_PRECANDIDATE);
    asked = rig->now - asked;
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'b', 'a', term, true)), SHOAL_OK);
    stored(rig);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_VOTE), 2);
    return asked;
}

/* V8: b's disk needs 2 s for a vote, and c is away. */
static void a_candidate_waits_longer_each_time(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    uint64_t waited[6];

    (void)state;
    for (uint32_t i = 0; i < 6; i++)
        waited[i] = next_election(rig);
    assert_in_range(waited[1], 300 * MS, 470 * MS);
    assert_true(waited[5] >= 2400 * MS);
    rig->now += 2000 * MS;
    timer(rig);
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_VOTE_REPLY, 'b', 'a', status(rig).term, true)), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER);
    rig_destroy(rig);
}

/* V8. */
static void whose_vote_is_not_durable_yet_starts_no_election(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_VOTE, 'b', 'a', 2, 0, 0)), SHOAL_OK);
    for (uint32_t i = 0; i < 300; i++) {
        rig->now += 10 * MS;
        timer(rig);
        assert_int_equal(count_sent(rig, SHOAL_RAFT_PREVOTE), 0);
    }
    stored(rig);
    assert_true(sent(rig, SHOAL_RAFT_VOTE_REPLY)->u.vote_reply.granted);
    for (uint32_t i = 0; i < 100 && status(rig).role == SHOAL_RAFT_FOLLOWER; i++) {
        rig->now += 10 * MS;
        timer(rig);
    }
    assert_int_equal(status(rig).role, SHOAL_RAFT_PRECANDIDATE); /* b was not heard of again */
    rig_destroy(rig);
}

static void a_vote_counts_once_however_often_it_comes(void **state)
{
    struct rig *rig = rig_create('a', "abcde", "");

    (void)state;
    for (uint32_t i = 0; i < 3 && status(rig).role == SHOAL_RAFT_FOLLOWER; i++) {
        rig->now += 200 * MS;
        timer(rig);
    }
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'b', 'a', 2, true)), SHOAL_OK);
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'b', 'a', 2, true)), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_PRECANDIDATE);
    /* Nor does that of a stranger, or of a voter's wiped store. */
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'z', 'a', 2, true)), SHOAL_OK);
    struct shoal_raft_message wiped = granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'c', 'a', 2, true);
    wiped.from.store.bytes[5] = 1;
    assert_int_equal(hear(rig, wiped), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_PRECANDIDATE);
    assert_int_equal(hear(rig, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'c', 'a', 2, true)), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_CANDIDATE);
    rig_destroy(rig);
}

static void a_pre_candidate_adopts_a_higher_term(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_message reply = granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'b', 'a', 2, false);

    (void)state;
    for (uint32_t i = 0; i < 3 && status(rig).role == SHOAL_RAFT_FOLLOWER; i++) {
        rig->now += 200 * MS;
        timer(rig);
    }
    reply.term = 9;
    assert_int_equal(hear(rig, reply), SHOAL_OK);
    assert_int_equal(status(rig).term, 9);
    assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER);
    assert_true(shoal_raft_deadline_ns(rig->raft) <= rig->now + 200 * MS); /* and tries again soon */
    rig_destroy(rig);
}

static void a_learner_that_is_asked_votes(void **state)
{
    struct rig *rig = rig_create('d', "abc", "d");

    (void)state;
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_VOTE, 'b', 'd', 2, 0, 0)), SHOAL_OK);
    stored(rig);
    assert_true(sent(rig, SHOAL_RAFT_VOTE_REPLY)->u.vote_reply.granted); /* it may be a voter without knowing */
    assert_int_equal(shoal_raft_deadline_ns(rig->raft), UINT64_MAX);     /* but never campaigns */
    rig_destroy(rig);
}

static void a_supported_leader_is_not_deposed_by_a_candidate(void **state)
{
    struct rig *rig = settled_leader("abc", "");
    struct shoal_raft_message vote = vote_of(SHOAL_RAFT_VOTE, 'b', 'a', 9, 9, 9);

    (void)state;
    rig->now += 2 * SHOAL_S;
    assert_int_equal(hear(rig, vote), SHOAL_OK);
    assert_false(sent(rig, SHOAL_RAFT_VOTE_REPLY)->u.vote_reply.granted);
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER);
    support(rig, 'b', 0);
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER); /* c is enough */
    support(rig, 'c', 0);
    assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER);
    rig_destroy(rig);
}

/* V9. A host that is no member says that it leads, or answers in a higher term: nothing of it moves a group that has a leader. */
static void a_stranger_moves_nothing_of_a_group_that_has_a_leader(void **state)
{
    static const enum shoal_raft_message_kind kinds[] = { SHOAL_RAFT_APPEND,         SHOAL_RAFT_APPEND_REPLY,
                                                          SHOAL_RAFT_PREVOTE_REPLY,  SHOAL_RAFT_VOTE_REPLY,
                                                          SHOAL_RAFT_READ,           SHOAL_RAFT_READ_REPLY,
                                                          SHOAL_RAFT_INSTALL,        SHOAL_RAFT_INSTALL_REPLY,
                                                          SHOAL_RAFT_TIMEOUT_NOW,    SHOAL_RAFT_GONE };
    struct shoal_raft_message heir = vote_of(SHOAL_RAFT_VOTE, 'z', 'a', 9, 9, 9);
    struct shoal_raft_event claim = { .kind = SHOAL_RAFT_EVENT_CLAIM, .u.claim = { id_of('z').node, 9 } };

    (void)state;
    heir.u.vote.transfer = true;
    for (unsigned leads = 0; leads < 2; leads++) {
        struct rig *rig = leads ? settled_leader("abc", "") : rig_create('a', "abc", "");
        struct shoal_raft_status before;

        if (!leads) {
            hear_append(rig, 'b', 4, 0, 0, "4", 1);
            supporting(rig, 'b', true, 4);
            stored(rig);
        }
        before = status(rig);
        for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            assert_int_equal(hear(rig, from_to(kinds[i], 'z', 'a', 9)), SHOAL_OK);
            assert_null(find(rig, SHOAL_RAFT_ACTION_REMOVED));
        }
        assert_int_equal(hear(rig, heir), SHOAL_OK);
        happen(rig, claim);
        assert_int_equal(status(rig).term, before.term);
        assert_int_equal(status(rig).role, before.role);
        assert_true(shoal_raft_id_equal(status(rig).leader, before.leader));
        assert_int_equal(status(rig).dropped_foreign, before.dropped_foreign + sizeof(kinds) / sizeof(kinds[0]));
        assert_true(shoal_raft_is_stranger(rig->raft, id_of('z'), rig->now));
        assert_false(shoal_raft_is_stranger(rig->raft, id_of('b'), rig->now));
        rig_destroy(rig);
    }
}

/* It may have come into office by a configuration that has not come here yet. */
static void a_leader_that_is_not_known_yet_is_heard_once_the_old_one_is_given_up(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    hear_append(rig, 'b', 4, 0, 0, "4", 1);
    supporting(rig, 'b', true, 4);
    hear_append(rig, 'z', 5, 1, 4, "5", 1);
    assert_int_equal(status(rig).term, 4);
    supporting(rig, 'b', false, 4);
    hear_append(rig, 'z', 5, 1, 4, "5", 1);
    assert_int_equal(status(rig).term, 5);
    assert_true(shoal_raft_id_equal(status(rig).leader, id_of('z')));
    assert_int_equal(status(rig).last, 2);
    hear_append(rig, 'z', 5, 2, 5, "5", 2); /* the leader that is followed is no stranger, though no member by this log */
    assert_int_equal(status(rig).last, 3);
    rig_destroy(rig);
}

/* ---- Support ---- */

static void leadership_ends_with_support_before_the_next_action(void **state)
{
    struct rig *rig = settled_leader("abc", "");

    (void)state;
    rig->now += SHOAL_S;
    support(rig, 'b', rig->now + 600 * MS);
    support(rig, 'c', rig->now + 300 * MS);
    assert_true(shoal_raft_leads_supported(rig->raft, rig->now + 599 * MS));
    assert_false(shoal_raft_leads_supported(rig->raft, rig->now + 600 * MS));
    rig->now += 599 * MS;
    assert_int_equal(propose(rig, 1), SHOAL_OK);
    rig->now += MS;
    assert_int_equal(propose(rig, 1), SHOAL_ERR_NOT_LEADER);
    assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_APPEND), 0);
    rig_destroy(rig);
}

static void an_awake_leader_wakes_for_the_end_of_its_support(void **state)
{
    struct rig *rig = settled_leader("abc", "");

    (void)state;
    rig->now += SHOAL_S;
    assert_int_equal(propose(rig, 1), SHOAL_OK);
    support(rig, 'b', rig->now + 7 * MS);
    support(rig, 'c', rig->now + 7 * MS);
    assert_true(shoal_raft_deadline_ns(rig->raft) <= rig->now + 7 * MS);
    shoal_raft_extend_support(rig->raft, id_of('c').node, rig->now + 20 * MS);
    rig->now += 8 * MS;
    timer(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER);
    rig_destroy(rig);
}

static void a_follower_waits_while_it_supports_the_leader_that_claims(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_event unclaimed = { .kind = SHOAL_RAFT_EVENT_UNCLAIMED };

    (void)state;
    supporting(rig, 'b', true, 4);
    assert_int_equal(status(rig).term, 4);
    assert_true(shoal_raft_id_equal(status(rig).leader, id_of('b')));
    assert_int_equal(shoal_raft_deadline_ns(rig->raft), UINT64_MAX);
    unclaimed.u.claim.node = id_of('b').node;
    unclaimed.u.claim.term = 3; /* news of an older claim */
    happen(rig, unclaimed);
    assert_int_equal(shoal_raft_deadline_ns(rig->raft), UINT64_MAX);
    unclaimed.u.claim.term = 4;
    happen(rig, unclaimed);
    assert_true(shoal_raft_deadline_ns(rig->raft) <= rig->now + 150 * MS);
    /* A late append of the leader that has stepped down holds it for one support duration, not for ever. */
    hear_append(rig, 'b', 4, 0, 0, "", 0);
    assert_true(shoal_raft_deadline_ns(rig->raft) >= rig->now + 600 * MS);
    assert_true(shoal_raft_deadline_ns(rig->raft) <= rig->now + 750 * MS);
    rig_destroy(rig);
}

static void the_end_of_support_lets_a_follower_campaign_at_once(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    hear_append(rig, 'b', 4, 0, 0, "", 0);
    supporting(rig, 'b', true, 4);
    assert_int_equal(shoal_raft_deadline_ns(rig->raft), UINT64_MAX);
    rig->now += 10 * SHOAL_S;
    supporting(rig, 'b', false, 0);
    assert_true(shoal_raft_deadline_ns(rig->raft) <= rig->now + 150 * MS);
    rig->now += 150 * MS;
    timer(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_PRECANDIDATE);
    rig_destroy(rig);
}

static void a_node_that_started_just_now_does_not_campaign(void **state)
{
    struct rig *rig = rig_restore('a', "abc", "", "12", (struct shoal_raft_hard_state){ .term = 3 }, START + 600 * MS);

    (void)state;
    timer(rig);
    assert_true(shoal_raft_deadline_ns(rig->raft) >= START + 600 * MS);
    rig->now = START + 599 * MS;
    timer(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER);
    rig->now = START + 800 * MS;
    timer(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_PRECANDIDATE);
    rig_destroy(rig);
}

static void a_retry_waits_longer_each_time(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    uint64_t waits[8];

    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        rig->now = shoal_raft_deadline_ns(rig->raft) > rig->now ? shoal_raft_deadline_ns(rig->raft) : rig->now;
        timer(rig);
        waits[i] = shoal_raft_deadline_ns(rig->raft) - rig->now;
    }
    assert_true(waits[7] >= 16 * 150 * MS && waits[7] <= 17 * 150 * MS);
    /* Someone can be heard again: no time to lose. */
    support(rig, 'b', UINT64_MAX);
    rig->now = shoal_raft_deadline_ns(rig->raft);
    timer(rig);
    assert_true(shoal_raft_deadline_ns(rig->raft) - rig->now <= 300 * MS);
    rig_destroy(rig);
}

/* ---- Replication ---- */

static void a_term_begins_with_an_entry_of_its_own(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    elect(rig);
    assert_int_equal(status(rig).last, 1);
    assert_int_equal(shoal_raft_entry(rig->raft, 1)->kind, SHOAL_ENTRY_NOOP);
    assert_int_equal(shoal_raft_entry(rig->raft, 1)->term, 2);
    /* b has it, but this node's own disk has not: no majority. */
    hear_accepted(rig, 'b', 2, 1, 0);
    assert_int_equal(status(rig).commit, 0);
    stored(rig);
    assert_int_equal(status(rig).commit, 1);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_COMMIT)->u.commit.index, 1);
    rig_destroy(rig);
}

/* Figure 8 of the paper: an entry of term 2 on a majority may still be overwritten. */
static void an_old_entry_is_committed_only_through_a_new_one(void **state)
{
    struct rig *rig = rig_restore('a', "abc", "", "12", (struct shoal_raft_hard_state){ .term = 3 }, 0);

    (void)state;
    elect(rig); /* term 4, entry 3 */
    stored(rig);
    hear_accepted(rig, 'b', 4, 2, 0);
    hear_accepted(rig, 'c', 4, 2, 0);
    assert_int_equal(status(rig).commit, 0); /* on all three, and yet */
    hear_accepted(rig, 'b', 4, 3, 0);
    assert_int_equal(status(rig).commit, 3);
    rig_destroy(rig);
}

static void an_acknowledgement_waits_for_the_disk(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_mark first;

    (void)state;
    hear_append(rig, 'b', 2, 0, 0, "22", 0);
    assert_null(sent(rig, SHOAL_RAFT_APPEND_REPLY));
    first = rig->mark;
    hear_append(rig, 'b', 2, 2, 2, "2", 0);
    assert_null(sent(rig, SHOAL_RAFT_APPEND_REPLY));
    happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_STORED, .u.stored = first });
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.index, 2);
    stored(rig);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.index, 3);
    hear_append(rig, 'b', 2, 2, 2, "2", 3); /* repeated: nothing to write, answered at once */
    assert_null(find(rig, SHOAL_RAFT_ACTION_PERSIST));
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.index, 3);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.commit, 3);
    rig_destroy(rig);
}

static void what_is_on_disk_is_acknowledged_only_in_a_durable_term(void **state)
{
    struct rig *rig = rig_restore('a', "abc", "", "22", (struct shoal_raft_hard_state){ .term = 2 }, 0);

    (void)state;
    hear_append(rig, 'b', 3, 2, 2, "", 0);
    assert_null(sent(rig, SHOAL_RAFT_APPEND_REPLY)); /* a crash would forget term 3, and obey an older leader again */
    stored(rig);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.index, 2);
    rig_destroy(rig);
}

/* The mark of a write that was overwritten meanwhile acknowledges nothing, even where (term, index) fit again. */
static void an_old_completion_acknowledges_nothing(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_mark first;
    struct shoal_raft_mark second;

    (void)state;
    hear_append(rig, 'b', 2, 0, 0, "22", 0);
    first = rig->mark; /* entries 1 and 2 of term 2 */
    hear_append(rig, 'c', 3, 0, 0, "33", 0);
    second = rig->mark;
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_PERSIST)->u.persist.truncate_from, 1);
    hear_append(rig, 'b', 4, 0, 0, "22", 0); /* the same (2, term 2) again */
    happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_STORED, .u.stored = first });
    assert_null(sent(rig, SHOAL_RAFT_APPEND_REPLY));
    assert_int_equal(status(rig).durable, 0);
    happen(rig, (struct shoal_raft_event){ .kind = SHOAL_RAFT_EVENT_STORED, .u.stored = second });
    assert_null(sent(rig, SHOAL_RAFT_APPEND_REPLY));
    stored(rig);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.index, 2);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->term, 4);
    rig_destroy(rig);
}

/* Carries messages between two guardians until neither has more to say. */
static void converse(struct rig *a, struct rig *b)
{
    struct shoal_raft_message queue[64];
    uint32_t head = 0;
    uint32_t tail = 0;

    for (uint32_t turn = 0; turn < 60; turn++) {
        for (uint32_t side = 0; side < 2; side++) {
            struct rig *rig = side == 0 ? a : b;

            for (uint32_t i = 0; i < rig->out.count; i++) {
                if (rig->out.list[i].kind == SHOAL_RAFT_ACTION_SEND && tail < 64 &&
                    (rig->out.list[i].u.send.to.node.bytes[0] == 'a' ||
                     rig->out.list[i].u.send.to.node.bytes[0] == 'b'))
                    shoal_raft_message_copy(&rig->out.list[i].u.send, &queue[tail++]);
            }
            rig->out.count = 0;
        }
        if (head == tail)
            return;
        struct rig *to = queue[head].to.node.bytes[0] == 'a' ? a : b;
        assert_int_equal(hear(to, queue[head]), SHOAL_OK);
        shoal_raft_message_deinit(&queue[head++]);
        if (find(to, SHOAL_RAFT_ACTION_PERSIST) != NULL) {
            /* The messages of this step go first: what the completion adds comes behind them. */
            for (uint32_t i = 0; i < to->out.count; i++) {
                if (to->out.list[i].kind == SHOAL_RAFT_ACTION_SEND && to->out.list[i].u.send.to.node.bytes[0] != 'c')
                    shoal_raft_message_copy(&to->out.list[i].u.send, &queue[tail++]);
            }
            stored(to);
        }
    }
    fail_msg("FAIL unit/raft: the conversation does not end");
}

/* Figure 7 of the paper: six followers whose logs went astray, each brought in line by the leader of term 8. */
static void a_leader_brings_every_log_in_line(void **state)
{
    static const struct {
        const char *name;
        const char *log;
    } cases[] = {
        { "(a) an entry short", "111445566" },
        { "(b) much too short", "1114" },
        { "(c) one entry too many", "11144556666" },
        { "(d) entries of a later term", "111445566677" },
        { "(e) another history of term 4", "1114444" },
        { "(f) a history of its own", "11122233333" },
        { "an empty one", "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *a = rig_restore('a', "abc", "", "1114455666", (struct shoal_raft_hard_state){ .term = 7 }, 0);
        struct rig *b = rig_restore('b', "abc", "", cases[i].log, (struct shoal_raft_hard_state){ .term = 7 }, 0);

        a->now = START + 200 * MS;
        timer(a);
        a->now = START + 400 * MS;
        timer(a);
        assert_int_equal(hear(a, granted_of(SHOAL_RAFT_PREVOTE_REPLY, 'c', 'a', 8, true)), SHOAL_OK);
        stored(a);
        assert_int_equal(hear(a, granted_of(SHOAL_RAFT_VOTE_REPLY, 'c', 'a', 8, true)), SHOAL_OK);
        assert_int_equal(status(a).role, SHOAL_RAFT_LEADER);
        converse(a, b);
        stored(a);
        converse(a, b);
        for (uint64_t at = 1; at <= 11; at++) {
            if (shoal_raft_term_at(a->raft, at) != shoal_raft_term_at(b->raft, at))
                fail_msg("FAIL unit/raft: %s: entry %u differs", cases[i].name, (unsigned)at);
        }
        assert_int_equal(status(b).last, 11);
        assert_int_equal(status(a).commit, 11);
        rig_destroy(a);
        rig_destroy(b);
    }
}

static void a_committed_entry_is_not_looked_at_again(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    hear_append(rig, 'b', 2, 0, 0, "22", 2);
    stored(rig);
    hear_append(rig, 'b', 2, 0, 0, "2", 0); /* an old, repeated append */
    assert_int_equal(status(rig).last, 2);
    assert_int_equal(status(rig).commit, 2);
    rig_destroy(rig);
}

static void commit_knowledge_ends_where_the_logs_are_known_equal(void **state)
{
    struct rig *rig = rig_restore('a', "abc", "", "222", (struct shoal_raft_hard_state){ .term = 3 }, 0);

    (void)state;
    hear_append(rig, 'b', 4, 1, 2, "", 3); /* says nothing about entries 2 and 3 here */
    assert_int_equal(status(rig).commit, 1);
    hear_append(rig, 'b', 4, 2, 2, "4", 3);
    assert_int_equal(status(rig).commit, 3);
    assert_int_equal(shoal_raft_term_at(rig->raft, 3), 4);
    rig_destroy(rig);
}

static void a_group_that_agrees_falls_asleep(void **state)
{
    struct rig *rig = leader("abc", "");

    (void)state;
    hear_accepted(rig, 'b', 2, 1, 0);
    hear_accepted(rig, 'c', 2, 1, 0);
    assert_false(status(rig).asleep);
    assert_true(shoal_raft_deadline_ns(rig->raft) <= rig->now + 2 * MS); /* the last commit index is to be told */
    rig->now += 2 * MS;
    timer(rig);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_APPEND), 2);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND)->u.append.commit, 1);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND)->u.append.count, 0);
    hear_accepted(rig, 'b', 2, 1, 1);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_APPEND), 0);
    assert_true(shoal_raft_deadline_ns(rig->raft) < UINT64_MAX);
    hear_accepted(rig, 'c', 2, 1, 1);
    assert_true(status(rig).asleep);
    rig->now += 2 * SHOAL_S;
    timer(rig);
    assert_int_equal(rig->out.count, 0);
    assert_int_equal(shoal_raft_deadline_ns(rig->raft), UINT64_MAX);
    /* A follower that comes back is asked once what it knows: it may have forgotten. */
    support(rig, 'b', 0);
    support(rig, 'b', UINT64_MAX);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_APPEND), 1);
    rig_destroy(rig);
}

static void a_reply_of_a_former_life_says_nothing(void **state)
{
    struct rig *rig = settled_leader("abc", "");
    struct shoal_raft_message reply = from_to(SHOAL_RAFT_APPEND_REPLY, 'c', 'a', 2);

    (void)state;
    assert_true(status(rig).asleep);
    support(rig, 'c', 0);
    support(rig, 'c', UINT64_MAX); /* c restarted, and has forgotten the commit index */
    reply.u.append_reply.index = 1;
    reply.u.append_reply.commit = 1;
    reply.u.append_reply.seq = sent(rig, SHOAL_RAFT_APPEND)->u.append.seq - 1;
    assert_int_equal(hear(rig, reply), SHOAL_OK); /* said before that */
    assert_false(status(rig).asleep);
    reply.u.append_reply.seq++;
    assert_int_equal(hear(rig, reply), SHOAL_OK);
    assert_true(status(rig).asleep);
    rig_destroy(rig);
}

static void silence_is_answered_by_asking_again_ever_more_slowly(void **state)
{
    struct rig *rig = leader("abc", "");
    uint64_t last = rig->now;
    uint64_t gap = 0;

    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        rig->now = shoal_raft_deadline_ns(rig->raft);
        timer(rig);
        if (count_sent(rig, SHOAL_RAFT_APPEND) == 0)
            continue;
        assert_true(rig->now - last >= gap);
        gap = rig->now - last;
        last = rig->now;
    }
    assert_int_equal(gap, 1600 * MS);
    rig_destroy(rig);
}

static void appends_are_pipelined_up_to_a_window(void **state)
{
    struct rig *rig = settled_leader("abc", "");
    uint32_t to_b = 0;

    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(propose(rig, 10), SHOAL_OK);
        to_b += count_sent(rig, SHOAL_RAFT_APPEND);
    }
    assert_int_equal(to_b, 2 * SHOAL_RAFT_INFLIGHT_MAX);
    hear_accepted(rig, 'b', 2, 5, 1);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_APPEND), 1); /* all that waited, in one */
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND)->u.append.count, 40 - SHOAL_RAFT_INFLIGHT_MAX);
    rig_destroy(rig);
}

static void the_window_is_bounded_in_bytes_too(void **state)
{
    struct rig *rig = settled_leader("abc", "");
    uint32_t sends = 0;

    (void)state;
    for (uint32_t i = 0; i < 14; i++) {
        assert_int_equal(propose(rig, SHOAL_ENTRY_BYTES_MAX), SHOAL_OK);
        sends += count_sent(rig, SHOAL_RAFT_APPEND);
    }
    assert_int_equal(sends, 2 * (SHOAL_RAFT_INFLIGHT_BYTES_MAX / SHOAL_ENTRY_BYTES_MAX));
    rig_destroy(rig);
}

static void too_much_uncommitted_is_refused_until_it_commits(void **state)
{
    struct rig *rig = settled_leader("abc", "");
    uint32_t fits = SHOAL_RAFT_UNCOMMITTED_BYTES_MAX / SHOAL_ENTRY_BYTES_MAX;

    (void)state;
    for (uint32_t i = 0; i < fits; i++)
        assert_int_equal(propose(rig, SHOAL_ENTRY_BYTES_MAX), SHOAL_OK);
    assert_int_equal(propose(rig, 1), SHOAL_ERR_FULL);
    assert_int_equal(status(rig).proposals_refused, 1);
    stored(rig);
    hear_accepted(rig, 'b', 2, 1 + fits, 1);
    assert_int_equal(propose(rig, 1), SHOAL_OK);
    rig_destroy(rig);
}

static void the_log_grows_only_when_the_owner_says_so(void **state)
{
    struct rig *rig = settled_leader("abc", "");
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PROPOSE };
    uint32_t accepted = 0;

    (void)state;
    event.u.propose.ctx = 1;
    for (uint32_t i = 0; i < 40; i++) {
        event.u.propose.entry = shoal_entry_create(SHOAL_ENTRY_USER, shoal_view_text("x"));
        assert_int_equal(shoal_raft_step(rig->raft, &event, rig->now, &rig->out), SHOAL_OK);
        shoal_entry_unref(event.u.propose.entry);
        if (find(rig, SHOAL_RAFT_ACTION_REJECT) == NULL)
            accepted++;
    }
    assert_int_equal(accepted, SHOAL_RAFT_LOG_ENTRIES_MIN - 1);
    assert_true(rig->out.wants_reserve);
    assert_int_equal(shoal_raft_reserve(rig->raft), SHOAL_OK);
    assert_int_equal(propose(rig, 1), SHOAL_OK);
    rig_destroy(rig);
}

static void a_follower_with_a_full_log_takes_what_fits(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_message message = append_of('b', 'a', 2, 0, 0, "222222222222222222222222", 0);
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_MESSAGE, .u.message = &message };

    (void)state;
    assert_int_equal(shoal_raft_step(rig->raft, &event, rig->now, &rig->out), SHOAL_OK);
    assert_int_equal(status(rig).last, SHOAL_RAFT_LOG_ENTRIES_MIN);
    assert_true(rig->out.wants_reserve);
    assert_int_equal(shoal_raft_reserve(rig->raft), SHOAL_OK);
    assert_int_equal(hear(rig, message), SHOAL_OK);
    assert_int_equal(status(rig).last, 24);
    shoal_raft_message_deinit(&message);
    rig_destroy(rig);
}

static void an_entry_is_refused_when_it_cannot_be_taken(void **state)
{
    struct rig *follower = rig_create('a', "abc", "");
    struct rig *rig = settled_leader("abc", "");
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_PROPOSE };

    (void)state;
    assert_int_equal(propose(follower, 1), SHOAL_ERR_NOT_LEADER);
    event.u.propose.entry = shoal_entry_create(SHOAL_ENTRY_CONFIG, shoal_view_text("x"));
    happen(rig, event);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_REJECT)->u.reject.err, SHOAL_ERR_INVALID);
    shoal_entry_unref(event.u.propose.entry);
    assert_null(shoal_entry_create(SHOAL_ENTRY_USER, shoal_view_of(rig, SHOAL_ENTRY_BYTES_MAX + 1)));
    rig_destroy(follower);
    rig_destroy(rig);
}

static void messages_that_make_no_sense_are_dropped_and_counted(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_message message;

    (void)state;
    hear_append(rig, 'b', 3, 0, 0, "23", 0);
    message = append_of('c', 'a', 3, 2, 3, "", 0);
    assert_int_equal(hear(rig, message), SHOAL_ERR_MALFORMED); /* a second leader of term 3 */
    message = append_of('b', 'a', 3, 2, 3, "4", 0);
    assert_int_equal(hear(rig, message), SHOAL_ERR_MALFORMED); /* an entry of a term to come */
    shoal_raft_message_deinit(&message);
    message = append_of('b', 'a', 3, 2, 3, "2", 0);
    assert_int_equal(hear(rig, message), SHOAL_ERR_MALFORMED); /* terms that fall */
    shoal_raft_message_deinit(&message);
    message = append_of('b', 'a', 3, 2, 3, "3", 0);
    message.u.append.entries[0]->index = 9;
    assert_int_equal(hear(rig, message), SHOAL_ERR_MALFORMED); /* a gap */
    message.u.append.entries[0]->index = 3;
    message.u.append.entries[0]->kind = SHOAL_ENTRY_CONFIG;
    assert_int_equal(hear(rig, message), SHOAL_ERR_MALFORMED); /* a configuration that does not decode */
    shoal_raft_message_deinit(&message);
    assert_int_equal(hear(rig, from_to(SHOAL_RAFT_READ, 'a', 'a', 3)), SHOAL_ERR_MALFORMED); /* from itself */
    assert_int_equal(hear(rig, from_to(SHOAL_RAFT_READ, 'b', 'a', 0)), SHOAL_ERR_MALFORMED); /* of no term */
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_VOTE, 'c', 'a', UINT64_MAX, 9, 9)),
                     SHOAL_ERR_MALFORMED);  /* of the last */
    supporting(rig, 'c', true, UINT64_MAX); /* the host's claim of it is no news either */
    assert_int_equal(status(rig).dropped_malformed, 8);
    assert_int_equal(hear(rig, from_to(SHOAL_RAFT_READ, 'b', 'c', 9)), SHOAL_OK); /* for another store */
    assert_int_equal(status(rig).dropped_foreign, 1);
    assert_int_equal(status(rig).term, 3);
    assert_int_equal(status(rig).last, 2);
    rig_destroy(rig);
}

/* Logs agree up to the commit index. A member that leads and says otherwise lies, or its disk does. */
static void a_leader_that_contradicts_what_is_committed_is_not_followed(void **state)
{
    static const struct {
        const char *name;
        uint64_t prev_index;
        uint64_t prev_term;
        const char *terms;
        enum shoal_err want;
    } cases[] = {
        { "the same log goes on", 2, 3, "3", SHOAL_OK },
        { "what is committed comes once more", 0, 0, "233", SHOAL_OK },
        { "another term at the commit index", 2, 1, "1", SHOAL_ERR_MALFORMED },
        { "another entry at the commit index", 1, 2, "22", SHOAL_ERR_MALFORMED },
        { "another entry before it", 0, 0, "133", SHOAL_ERR_MALFORMED },
        { "another history whole", 0, 0, "111", SHOAL_ERR_MALFORMED },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = rig_create('a', "abc", "");
        struct shoal_raft_message message =
            append_of('b', 'a', 3, cases[i].prev_index, cases[i].prev_term, cases[i].terms, 0);

        hear_append(rig, 'b', 3, 0, 0, "23", 2);
        assert_int_equal(status(rig).commit, 2);
        if (hear(rig, message) != cases[i].want)
            fail_msg("%s", cases[i].name);
        assert_int_equal(status(rig).last, cases[i].want == SHOAL_OK ? 3 : 2);
        assert_int_equal(shoal_raft_term_at(rig->raft, 2), 3);
        shoal_raft_message_deinit(&message);
        rig_destroy(rig);
    }
}

static void a_leader_of_an_older_term_is_told(void **state)
{
    struct rig *rig = rig_restore('a', "abc", "", "1", (struct shoal_raft_hard_state){ .term = 7 }, 0);

    (void)state;
    hear_append(rig, 'b', 6, 1, 1, "6", 1);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND_REPLY)->term, 7);
    assert_true(sent(rig, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.rejected);
    assert_int_equal(status(rig).last, 1);
    rig_destroy(rig);
}

/* ---- Reads ---- */

static void reads_wait_for_a_quorum_round_and_share_it(void **state)
{
    struct rig *rig = settled_leader("abc", "");
    struct shoal_raft_message reply = from_to(SHOAL_RAFT_READ_REPLY, 'b', 'a', 2);

    (void)state;
    read_index(rig, 71);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_READ), 2);
    assert_null(find(rig, SHOAL_RAFT_ACTION_READ_READY));
    assert_false(status(rig).asleep);
    read_index(rig, 72);
    read_index(rig, 73);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_READ), 0); /* the next round is theirs */
    reply.u.read.seq = 1;
    assert_int_equal(hear(rig, reply), SHOAL_OK);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_READ_READY)->u.read_ready.ctx, 71);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_READ_READY)->u.read_ready.index, 1);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_READ), 2);
    assert_int_equal(hear(rig, reply), SHOAL_OK); /* repeated: says nothing about the second round */
    assert_null(find(rig, SHOAL_RAFT_ACTION_READ_READY));
    reply.u.read.seq = 2;
    assert_int_equal(hear(rig, reply), SHOAL_OK);
    assert_int_equal(rig->out.count, 2);
    assert_int_equal(shoal_raft_deadline_ns(rig->raft),
                     rig->now <= START + SHOAL_S ? shoal_raft_deadline_ns(rig->raft) : 0);
    rig_destroy(rig);
}

static void a_read_waits_for_the_first_commit_of_the_term(void **state)
{
    struct rig *rig = leader("abc", "");
    struct shoal_raft_message reply = from_to(SHOAL_RAFT_READ_REPLY, 'c', 'a', 2);

    (void)state;
    read_index(rig, 9);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_READ), 0);
    hear_accepted(rig, 'b', 2, 1, 0);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_READ), 2);
    rig->now += 100 * MS;
    timer(rig); /* lost: asked again */
    assert_int_equal(count_sent(rig, SHOAL_RAFT_READ), 2);
    reply.u.read.seq = 1;
    assert_int_equal(hear(rig, reply), SHOAL_OK);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_READ_READY)->u.read_ready.index, 1);
    rig_destroy(rig);
}

static void reads_are_refused_where_they_cannot_be_served(void **state)
{
    struct rig *follower = rig_create('a', "abc", "");
    struct rig *rig = settled_leader("abc", "");

    (void)state;
    read_index(follower, 1);
    assert_int_equal(find(follower, SHOAL_RAFT_ACTION_REJECT)->u.reject.err, SHOAL_ERR_NOT_LEADER);
    for (uint64_t i = 0; i < SHOAL_RAFT_READS_MAX; i++)
        read_index(rig, i);
    read_index(rig, 99);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_REJECT)->u.reject.err, SHOAL_ERR_FULL);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_REJECT)->u.reject.ctx, 99);
    /* The leadership goes: every read is answered. */
    hear_append(rig, 'b', 3, 1, 2, "", 1);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_REJECT)->u.reject.err, SHOAL_ERR_STALE);
    uint32_t rejects = 0;
    for (uint32_t i = 0; i < rig->out.count; i++)
        rejects += rig->out.list[i].kind == SHOAL_RAFT_ACTION_REJECT;
    assert_int_equal(rejects, SHOAL_RAFT_READS_MAX);
    rig_destroy(follower);
    rig_destroy(rig);
}

/* ---- Membership and transfer ---- */

static void changes_are_refused_when_they_cannot_be_made(void **state)
{
    struct rig *rig = leader("abc", "d");
    struct rig *follower = rig_create('a', "abc", "");
    struct shoal_raft_config joint = config_of("abc", "");

    (void)state;
    joint.joint = true;
    assert_int_equal(change(follower, config_of("abc", "d")), SHOAL_ERR_NOT_LEADER);
    assert_int_equal(change(rig, config_of("abc", "")), SHOAL_ERR_FULL); /* nothing of this term is committed (C3) */
    hear_accepted(rig, 'b', 2, 1, 0);
    assert_int_equal(change(rig, config_of("", "abc")), SHOAL_ERR_INVALID); /* nobody votes */
    assert_int_equal(change(rig, config_of("abb", "")), SHOAL_ERR_INVALID); /* twice */
    assert_int_equal(change(rig, joint), SHOAL_ERR_INVALID);
    assert_int_equal(change(rig, config_of("abce", "")), SHOAL_ERR_INVALID); /* e is no learner yet */
    assert_int_equal(change(rig, config_of("abc", "")), SHOAL_OK);           /* no voter changes: one entry */
    assert_false(status(rig).joint);
    assert_int_equal(change(rig, config_of("abc", "d")), SHOAL_ERR_FULL); /* one change in flight */
    rig_destroy(rig);
    rig_destroy(follower);
}

static void a_learner_far_behind_does_not_become_a_voter(void **state)
{
    struct rig *rig = settled_leader("abc", "d");

    (void)state;
    for (uint32_t i = 0; i < 70; i++)
        assert_int_equal(propose(rig, 1), SHOAL_OK);
    assert_int_equal(change(rig, config_of("abcd", "")), SHOAL_ERR_UNREACHABLE);
    hear_accepted(rig, 'd', 2, 60, 1);
    assert_int_equal(change(rig, config_of("abcd", "")), SHOAL_OK);
    rig_destroy(rig);
}

static void the_joint_phase_needs_both_majorities_and_ends_after_its_commit(void **state)
{
    struct rig *rig = settled_leader("abc", "de");

    (void)state;
    assert_int_equal(change(rig, config_of("ade", "")), SHOAL_OK); /* entry 2 */
    assert_true(status(rig).joint);
    stored(rig);
    hear_accepted(rig, 'd', 2, 2, 1);
    hear_accepted(rig, 'e', 2, 2, 1);
    assert_int_equal(status(rig).commit, 1); /* a d e is a majority of the new, not of the old */
    assert_int_equal(status(rig).last, 2);
    hear_accepted(rig, 'b', 2, 2, 1);
    assert_int_equal(status(rig).commit, 2);
    assert_int_equal(status(rig).last, 3); /* the entry that leaves the joint phase */
    assert_false(status(rig).joint);
    assert_int_equal(shoal_raft_config(rig->raft)->count, 3);
    assert_false(status(rig).config_committed);
    stored(rig);
    hear_accepted(rig, 'd', 2, 3, 2);
    assert_true(status(rig).config_committed);
    rig_destroy(rig);
}

static void a_leader_that_is_removed_hands_over(void **state)
{
    struct rig *rig = settled_leader("abc", "");

    (void)state;
    assert_int_equal(change(rig, config_of("bc", "")), SHOAL_OK);
    stored(rig);
    hear_accepted(rig, 'b', 2, 2, 1);
    hear_accepted(rig, 'c', 2, 2, 1);
    stored(rig);
    assert_int_equal(status(rig).last, 3);
    hear_accepted(rig, 'b', 2, 3, 2);
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER); /* its own copy does not count any more */
    hear_accepted(rig, 'c', 2, 3, 2);
    assert_int_equal(status(rig).commit, 3);
    assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER);
    assert_non_null(sent(rig, SHOAL_RAFT_TIMEOUT_NOW));
    assert_int_equal(shoal_raft_deadline_ns(rig->raft), UINT64_MAX);
    rig_destroy(rig);
}

static void a_configuration_is_rolled_back_with_its_entry(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_message message = append_of('b', 'a', 2, 0, 0, "22", 0);
    struct shoal_raft_config config = config_of("abc", "d");
    uint8_t bytes[SHOAL_RAFT_CONFIG_BYTES_MAX];

    (void)state;
    shoal_entry_unref(message.u.append.entries[1]);
    message.u.append.entries[1] =
        shoal_entry_create_at(2, 2, SHOAL_ENTRY_CONFIG, shoal_view_of(bytes, shoal_raft_config_encode(&config, bytes)));
    assert_int_equal(hear(rig, message), SHOAL_OK);
    shoal_raft_message_deinit(&message);
    assert_int_equal(shoal_raft_config(rig->raft)->count, 4); /* in force before it is committed */
    assert_non_null(find(rig, SHOAL_RAFT_ACTION_CONFIG));
    hear_append(rig, 'c', 3, 1, 2, "3", 0);
    assert_int_equal(shoal_raft_config(rig->raft)->count, 3);
    rig_destroy(rig);
}

/* S6: b leads, takes itself out, and is not heard again; its claim stands where it was told last. */
static void a_leader_that_took_itself_out_is_not_waited_for(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_message message = append_of('b', 'a', 2, 0, 0, "22", 0);
    struct shoal_raft_config config = config_of("ac", "");
    uint8_t bytes[SHOAL_RAFT_CONFIG_BYTES_MAX];

    (void)state;
    supporting(rig, 'b', true, 2);
    shoal_entry_unref(message.u.append.entries[1]);
    message.u.append.entries[1] =
        shoal_entry_create_at(2, 2, SHOAL_ENTRY_CONFIG, shoal_view_of(bytes, shoal_raft_config_encode(&config, bytes)));
    assert_int_equal(hear(rig, message), SHOAL_OK);
    shoal_raft_message_deinit(&message);
    stored(rig);
    timer(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER); /* it was heard just now */
    assert_true(shoal_raft_deadline_ns(rig->raft) < rig->now + 2 * SHOAL_S);
    rig->now = shoal_raft_deadline_ns(rig->raft);
    timer(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_PRECANDIDATE);
    rig_destroy(rig);
}

static void a_configuration_is_rolled_back_to_what_the_snapshot_holds(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_message message = append_of('b', 'a', 2, 2, 2, "2", 2);
    struct shoal_raft_config config = config_of("abc", "d");
    uint8_t bytes[SHOAL_RAFT_CONFIG_BYTES_MAX];

    (void)state;
    hear_append(rig, 'b', 2, 0, 0, "22", 2);
    shoal_entry_unref(message.u.append.entries[0]);
    message.u.append.entries[0] =
        shoal_entry_create_at(2, 3, SHOAL_ENTRY_CONFIG, shoal_view_of(bytes, shoal_raft_config_encode(&config, bytes)));
    assert_int_equal(hear(rig, message), SHOAL_OK);
    shoal_raft_message_deinit(&message);
    snapshot_ready(rig, 2, SHOAL_OK); /* entry 3 is in force, and behind it nothing is held but the snapshot */
    assert_int_equal(shoal_raft_config_at(rig->raft, 2, &config), SHOAL_OK);
    assert_int_equal(config.count, 3);
    assert_int_equal(shoal_raft_config_at(rig->raft, 3, &config), SHOAL_ERR_INVALID); /* not committed */
    hear_append(rig, 'c', 3, 2, 2, "3", 2);
    assert_int_equal(shoal_raft_config(rig->raft)->count, 3);
    rig_destroy(rig);
}

static void one_who_is_no_member_any_more_is_told(void **state)
{
    struct rig *rig = settled_leader("abc", "");

    (void)state;
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_PREVOTE, 'z', 'a', 9, 0, 0)), SHOAL_OK);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_GONE), 1);
    assert_int_equal(status(rig).term, 2);
    rig_destroy(rig);
    rig = rig_create('a', "abc", "");
    assert_int_equal(hear(rig, from_to(SHOAL_RAFT_GONE, 'b', 'a', 5)), SHOAL_OK);
    assert_non_null(find(rig, SHOAL_RAFT_ACTION_REMOVED));
    assert_int_equal(hear(rig, from_to(SHOAL_RAFT_GONE, 'b', 'a', 5)), SHOAL_OK);
    assert_null(find(rig, SHOAL_RAFT_ACTION_REMOVED)); /* once is enough */
    rig_destroy(rig);
}

/* C1: a change that is not committed may be taken back; who would be sent away by it is a member until then. */
static void nobody_is_sent_away_by_what_is_not_committed(void **state)
{
    struct rig *rig = settled_leader("abc", "");

    (void)state;
    assert_int_equal(change(rig, config_of("ab", "")), SHOAL_OK);
    stored(rig);
    hear_accepted(rig, 'b', 2, 2, 1); /* both majorities: the joint phase is left with entry 3 */
    assert_int_equal(status(rig).last, 3);
    assert_false(status(rig).config_committed);
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_PREVOTE, 'c', 'a', 9, 0, 0)), SHOAL_OK);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_GONE), 0);
    stored(rig);
    hear_accepted(rig, 'b', 2, 3, 2);
    assert_true(status(rig).config_committed);
    assert_int_equal(hear(rig, vote_of(SHOAL_RAFT_PREVOTE, 'c', 'a', 9, 0, 0)), SHOAL_OK);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_GONE), 1);
    rig_destroy(rig);
}

static void leadership_is_handed_to_one_who_has_the_whole_log(void **state)
{
    struct rig *rig = settled_leader("abc", "d");

    (void)state;
    assert_int_equal(transfer(rig, 'a'), SHOAL_ERR_INVALID);
    assert_int_equal(transfer(rig, 'd'), SHOAL_ERR_INVALID); /* a learner */
    assert_int_equal(transfer(rig, 'z'), SHOAL_ERR_INVALID);
    assert_int_equal(propose(rig, 1), SHOAL_OK);
    assert_int_equal(transfer(rig, 'b'), SHOAL_OK);
    assert_null(sent(rig, SHOAL_RAFT_TIMEOUT_NOW));
    assert_int_equal(transfer(rig, 'c'), SHOAL_ERR_FULL);
    assert_int_equal(propose(rig, 1), SHOAL_ERR_FULL);
    assert_int_equal(change(rig, config_of("abc", "")), SHOAL_ERR_FULL);
    hear_accepted(rig, 'b', 2, 2, 1);
    assert_non_null(sent(rig, SHOAL_RAFT_TIMEOUT_NOW));
    rig->now += 600 * MS; /* b did not take it */
    timer(rig);
    assert_int_equal(propose(rig, 1), SHOAL_OK);
    rig_destroy(rig);
}

static void the_heir_campaigns_at_once_against_standing_support(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    hear_append(rig, 'b', 2, 0, 0, "2", 1);
    supporting(rig, 'b', true, 2);
    assert_int_equal(hear(rig, from_to(SHOAL_RAFT_TIMEOUT_NOW, 'b', 'a', 2)), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_CANDIDATE);
    stored(rig);
    assert_int_equal(count_sent(rig, SHOAL_RAFT_VOTE), 2);
    assert_true(sent(rig, SHOAL_RAFT_VOTE)->u.vote.transfer);
    rig_destroy(rig);
}

/* ---- Snapshots ---- */

static struct shoal_raft_message install_of(char from, uint64_t term, uint64_t index, uint64_t index_term,
                                            uint64_t offset, uint64_t total, size_t len)
{
    static const uint8_t bytes[64];
    struct shoal_raft_message message = from_to(SHOAL_RAFT_INSTALL, from, 'a', term);

    message.u.install.snapshot.index = index;
    message.u.install.snapshot.term = index_term;
    message.u.install.snapshot.config = config_of("abcd", "");
    message.u.install.offset = offset;
    message.u.install.total = total;
    message.u.install.bytes = shoal_view_of(bytes, len);
    return message;
}

static void a_snapshot_comes_in_pieces_and_replaces_the_log(void **state)
{
    struct rig *rig = rig_restore('a', "abc", "", "11", (struct shoal_raft_hard_state){ .term = 3 }, 0);

    (void)state;
    assert_int_equal(hear(rig, install_of('b', 3, 9, 3, 10, 20, 10)), SHOAL_OK); /* not the first piece */
    assert_int_equal(sent(rig, SHOAL_RAFT_INSTALL_REPLY)->u.install_reply.offset, 0);
    assert_int_equal(hear(rig, install_of('b', 3, 9, 3, 0, 20, 10)), SHOAL_OK);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_SNAPSHOT_PART)->u.part.offset, 0);
    assert_int_equal(sent(rig, SHOAL_RAFT_INSTALL_REPLY)->u.install_reply.offset, 10);
    assert_int_equal(status(rig).last, 2);
    assert_int_equal(hear(rig, install_of('b', 3, 9, 3, 10, 20, 10)), SHOAL_OK);
    assert_true(find(rig, SHOAL_RAFT_ACTION_PERSIST)->u.persist.has_snapshot);
    assert_null(sent(rig, SHOAL_RAFT_INSTALL_REPLY)); /* not before it is durable */
    assert_int_equal(status(rig).first, 10);
    assert_int_equal(status(rig).commit, 9);
    assert_int_equal(shoal_raft_config(rig->raft)->count, 4);
    stored(rig);
    assert_int_equal(sent(rig, SHOAL_RAFT_INSTALL_REPLY)->u.install_reply.match, 9);
    hear_append(rig, 'b', 3, 9, 3, "3", 10);
    assert_int_equal(status(rig).commit, 10);
    rig_destroy(rig);
}

static void a_snapshot_is_never_installed_over_a_newer_log(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    hear_append(rig, 'b', 3, 0, 0, "3333", 3);
    stored(rig);
    /* Overtaken: the first piece was here, then the entries came by append. */
    assert_int_equal(hear(rig, install_of('b', 3, 2, 3, 0, 10, 10)), SHOAL_OK);
    assert_null(find(rig, SHOAL_RAFT_ACTION_SNAPSHOT_PART));
    assert_int_equal(sent(rig, SHOAL_RAFT_INSTALL_REPLY)->u.install_reply.match, 2);
    assert_int_equal(status(rig).last, 4);
    assert_int_equal(status(rig).commit, 3);
    /* Above the commit index, and the log has it: only the commit index moves. */
    assert_int_equal(hear(rig, install_of('b', 3, 4, 3, 0, 10, 10)), SHOAL_OK);
    assert_null(find(rig, SHOAL_RAFT_ACTION_SNAPSHOT_PART));
    assert_int_equal(status(rig).commit, 4);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_COMMIT)->u.commit.index, 4);
    rig_destroy(rig);
}

static void a_snapshot_that_makes_no_sense_is_refused(void **state)
{
    static const struct {
        const char *name;
        uint64_t index, term, offset, total;
        size_t len;
    } cases[] = {
        { "of no index", 0, 2, 0, 10, 10 },       { "of a term to come", 9, 4, 0, 10, 10 },
        { "of no term", 9, 0, 0, 10, 10 },        { "longer than it says", 9, 2, 0, 5, 10 },
        { "beyond its end", 9, 2, 11, 10, 0 },    { "an empty piece", 9, 2, 0, 10, 0 },
        { "too large", 9, 2, 0, UINT64_MAX, 10 },
    };
    struct rig *rig = rig_create('a', "abc", "");

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (hear(rig, install_of('b', 3, cases[i].index, cases[i].term, cases[i].offset, cases[i].total,
                                 cases[i].len)) != SHOAL_ERR_MALFORMED)
            fail_msg("FAIL unit/raft: a snapshot %s is taken", cases[i].name);
    }
    rig_destroy(rig);
}

static void a_follower_that_needs_what_is_forgotten_gets_the_snapshot(void **state)
{
    static const uint8_t bytes[40];
    struct rig *rig = settled_leader("abc", "");
    struct shoal_raft_event chunk = { .kind = SHOAL_RAFT_EVENT_SNAPSHOT_CHUNK };
    struct shoal_raft_message reply = from_to(SHOAL_RAFT_APPEND_REPLY, 'c', 'a', 2);
    struct shoal_raft_message installed = from_to(SHOAL_RAFT_INSTALL_REPLY, 'c', 'a', 2);

    (void)state;
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(propose(rig, 1), SHOAL_OK);
    stored(rig);
    hear_accepted(rig, 'b', 2, 11, 11);
    support(rig, 'c', 0); /* c is away: nothing is kept for it */
    snapshot_ready(rig, 12, SHOAL_ERR_INVALID);
    snapshot_ready(rig, 11, SHOAL_OK);
    snapshot_ready(rig, 10, SHOAL_ERR_INVALID);
    assert_int_equal(status(rig).first, 12);
    /* c comes back, wiped of all but its name: it says so. */
    rig->now += 200 * MS;
    timer(rig);
    reply.u.append_reply.rejected = true;
    reply.u.append_reply.index = 1;
    reply.u.append_reply.seq = UINT64_MAX;
    assert_int_equal(hear(rig, reply), SHOAL_OK);
    support(rig, 'c', UINT64_MAX);
    for (uint32_t i = 0; i < 20 && find(rig, SHOAL_RAFT_ACTION_NEED_SNAPSHOT) == NULL; i++) {
        rig->now += 200 * MS;
        timer(rig);
    }
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_NEED_SNAPSHOT)->u.need_snapshot.offset, 0);
    chunk.u.chunk.peer = id_of('c');
    chunk.u.chunk.snapshot = (struct shoal_raft_snapshot){ .index = 11, .term = 2, .config = config_of("abc", "") };
    chunk.u.chunk.total = 80;
    chunk.u.chunk.bytes = shoal_view_of(bytes, 40);
    happen(rig, chunk);
    assert_int_equal(sent(rig, SHOAL_RAFT_INSTALL)->u.install.offset, 0);
    installed.u.install_reply.index = 11;
    installed.u.install_reply.offset = 40;
    assert_int_equal(hear(rig, installed), SHOAL_OK);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_NEED_SNAPSHOT)->u.need_snapshot.offset, 40);
    assert_int_equal(hear(rig, installed), SHOAL_OK); /* repeated: asks for nothing */
    assert_null(find(rig, SHOAL_RAFT_ACTION_NEED_SNAPSHOT));
    chunk.u.chunk.offset = 40;
    happen(rig, chunk);
    assert_int_equal(sent(rig, SHOAL_RAFT_INSTALL)->u.install.offset, 40);
    installed.u.install_reply.offset = 80;
    installed.u.install_reply.match = 11;
    assert_int_equal(hear(rig, installed), SHOAL_OK);
    happen(rig, chunk); /* too late: not needed */
    assert_null(sent(rig, SHOAL_RAFT_INSTALL));
    assert_int_equal(propose(rig, 1), SHOAL_OK);
    assert_int_equal(sent(rig, SHOAL_RAFT_APPEND)->u.append.prev_index, 11);
    rig_destroy(rig);
}

static void a_follower_that_is_nearly_there_is_spared_the_snapshot(void **state)
{
    static const struct {
        const char *name;
        uint32_t entries;
        uint64_t match; /* of c */
        bool supported;
        uint64_t want_first;
    } cases[] = {
        { "it is up to date", 10, 11, true, 12 },
        { "it lacks a few", 10, 5, true, 6 },
        { "it lacks a few, and is away", 10, 5, false, 12 },
        { "it lacks as many as are kept", 261, 6, true, 7 },
        { "it lacks more than are kept", 262, 6, true, 264 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = settled_leader("abc", "");
        uint64_t last = cases[i].entries + 1;

        for (uint32_t n = 0; n < cases[i].entries; n++)
            assert_int_equal(propose(rig, 1), SHOAL_OK);
        stored(rig);
        hear_accepted(rig, 'b', 2, last, last);
        hear_accepted(rig, 'c', 2, cases[i].match, cases[i].match);
        if (!cases[i].supported)
            support(rig, 'c', 0);
        snapshot_ready(rig, last, SHOAL_OK);
        if (status(rig).first != cases[i].want_first)
            fail_msg("%s: the log begins at %llu", cases[i].name, (unsigned long long)status(rig).first);
        rig_destroy(rig);
    }
}

/* Nobody gets there by elections, but a member may say so: what would end a lineage, or is beyond all, is refused, and no
 * election follows the last that could be. */
static void no_election_leaves_its_lineage(void **state)
{
    static const uint64_t lineages[] = { 0, 7, UINT32_MAX / 2 };
    static const uint32_t lies[] = { UINT32_MAX, 0 };

    (void)state;
    for (size_t i = 0; i < sizeof(lineages) / sizeof(lineages[0]); i++) {
        struct rig *rig = rig_create('a', "abc", "");
        uint64_t last = lineages[i] << 32 | (UINT32_MAX - 1);

        for (size_t j = 0; j < 2; j++) {
            assert_int_equal(hear(rig, from_to(SHOAL_RAFT_READ, 'b', 'a', lineages[i] << 32 | lies[j])),
                             SHOAL_ERR_MALFORMED);
            supporting(rig, 'b', true, lineages[i] << 32 | lies[j]);
            supporting(rig, 'b', false, 0);
        }
        assert_int_equal(status(rig).term, 1);
        assert_int_equal(hear(rig, from_to(SHOAL_RAFT_READ, 'b', 'a', last)), SHOAL_OK);
        for (uint32_t j = 0; j < 20; j++) {
            rig->now += SHOAL_S;
            timer(rig);
            assert_true(shoal_raft_deadline_ns(rig->raft) > rig->now);
        }
        assert_int_equal(status(rig).term, last);
        assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER);
        rig_destroy(rig);
    }
}

static void a_long_log_asks_for_a_snapshot(void **state)
{
    struct rig *rig = settled_leader("a", "");

    (void)state;
    for (uint32_t i = 0; i < 1024 + 1 && !rig->out.wants_snapshot; i++) {
        assert_int_equal(propose(rig, 1), SHOAL_OK);
        stored(rig);
    }
    assert_true(rig->out.wants_snapshot);
    snapshot_ready(rig, status(rig).commit, SHOAL_OK);
    assert_false(rig->out.wants_snapshot);
    rig_destroy(rig);
}

/* ---- Birth ---- */

static void a_founding_is_acknowledged_to_the_issuer_who_leads_term_1(void **state)
{
    struct rig *issuer = rig_create('a', "abc", "");
    struct rig *guardian = rig_create('a', "abc", ""); /* plays b's part towards c */
    struct shoal_entry *entries[2] = { entry_at(1, 1), entry_at(1, 2) };
    const struct shoal_raft_action *persist;

    (void)state;
    assert_int_equal(shoal_raft_found(issuer->raft, entries, 2, id_of('a').node, true, issuer->now, &issuer->out),
                     SHOAL_OK);
    persist = find(issuer, SHOAL_RAFT_ACTION_PERSIST);
    assert_int_equal(persist->u.persist.hard.term, 1);
    assert_int_equal(persist->u.persist.last, 2);
    issuer->mark = persist->u.persist.mark;
    assert_int_equal(status(issuer).role, SHOAL_RAFT_LEADER);
    stored(issuer);
    assert_int_equal(status(issuer).commit, 0);
    hear_accepted(issuer, 'c', 1, 2, 0);
    assert_int_equal(status(issuer).commit, 2);
    rig_destroy(issuer);

    assert_int_equal(
        shoal_raft_found(guardian->raft, entries, 2, id_of('c').node, false, guardian->now, &guardian->out), SHOAL_OK);
    assert_null(sent(guardian, SHOAL_RAFT_APPEND_REPLY));
    persist = find(guardian, SHOAL_RAFT_ACTION_PERSIST);
    assert_true(shoal_raft_id_equal(persist->u.persist.hard.vote, id_of('c')));
    guardian->mark = persist->u.persist.mark;
    stored(guardian);
    assert_int_equal(sent(guardian, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.index, 2);
    assert_int_equal(sent(guardian, SHOAL_RAFT_APPEND_REPLY)->to.node.bytes[0], 'c');
    rig_destroy(guardian);
    shoal_entry_unref(entries[0]);
    shoal_entry_unref(entries[1]);
}

static void the_issuer_in_another_incarnation_does_not_lead(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_entry *entries[1] = { entry_at(1, 1) };

    (void)state;
    assert_int_equal(shoal_raft_found(rig->raft, entries, 1, id_of('a').node, false, rig->now, &rig->out), SHOAL_OK);
    assert_int_equal(status(rig).role, SHOAL_RAFT_FOLLOWER);
    rig->mark = find(rig, SHOAL_RAFT_ACTION_PERSIST)->u.persist.mark;
    stored(rig);
    elect(rig);
    assert_int_equal(status(rig).term, 2);
    rig_destroy(rig);
    shoal_entry_unref(entries[0]);
}

static void a_founding_that_does_not_fit_is_refused(void **state)
{
    struct rig *rig = rig_restore('a', "abc", "", "1", (struct shoal_raft_hard_state){ .term = 1 }, 0);
    struct rig *fresh = rig_create('a', "abc", "d");
    struct shoal_entry *entries[1] = { entry_at(1, 1) };
    struct shoal_entry *later[1] = { entry_at(2, 1) };

    (void)state;
    assert_int_equal(shoal_raft_found(rig->raft, entries, 1, id_of('a').node, true, START, &rig->out),
                     SHOAL_ERR_INVALID);
    assert_int_equal(shoal_raft_found(fresh->raft, later, 1, id_of('a').node, true, START, &rig->out),
                     SHOAL_ERR_INVALID);
    assert_int_equal(shoal_raft_found(fresh->raft, entries, 0, id_of('a').node, true, START, &rig->out),
                     SHOAL_ERR_INVALID);
    assert_int_equal(shoal_raft_found(fresh->raft, entries, 1, id_of('z').node, false, START, &rig->out),
                     SHOAL_ERR_INVALID);
    assert_int_equal(shoal_raft_found(fresh->raft, entries, 1, id_of('d').node, false, START, &rig->out),
                     SHOAL_ERR_INVALID);
    assert_int_equal(shoal_raft_found(fresh->raft, entries, 1, id_of('b').node, true, START, &rig->out),
                     SHOAL_ERR_INVALID);
    shoal_entry_unref(entries[0]);
    shoal_entry_unref(later[0]);
    rig_destroy(rig);
    rig_destroy(fresh);
}

static void a_lone_voter_leads_at_once(void **state)
{
    struct rig *rig =
        rig_restore('a', "a", "", "12", (struct shoal_raft_hard_state){ .term = 2, .commit = 9 }, START + 600 * MS);

    (void)state;
    assert_int_equal(status(rig).commit, 2); /* the hint does not reach beyond the log */
    timer(rig);
    timer(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_CANDIDATE);
    stored(rig);
    assert_int_equal(status(rig).role, SHOAL_RAFT_LEADER);
    assert_int_equal(status(rig).commit, 2);
    stored(rig);
    assert_int_equal(status(rig).commit, 3);
    read_index(rig, 5);
    assert_int_equal(find(rig, SHOAL_RAFT_ACTION_READ_READY)->u.read_ready.index, 3);
    rig->now += SHOAL_S;
    timer(rig);
    assert_int_equal(shoal_raft_deadline_ns(rig->raft), UINT64_MAX);
    rig_destroy(rig);
}

static void a_broken_store_is_refused(void **state)
{
    struct shoal_raft_options options = options_of('a', "abc", "");
    struct shoal_entry *gap[2] = { entry_at(1, 1), entry_at(1, 3) };
    struct shoal_entry *falling[2] = { entry_at(2, 1), entry_at(1, 2) };
    struct shoal_entry *later[1] = { entry_at(9, 1) };
    struct shoal_raft_restored restored = { .hard = { .term = 3 }, .entries = gap, .count = 2 };
    struct shoal_raft *raft;

    (void)state;
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID);
    restored.entries = falling;
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID);
    restored.entries = later;
    restored.count = 1;
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID);
    later[0]->term = 2;
    later[0]->kind = SHOAL_ENTRY_CONFIG;
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID);
    later[0]->kind = (enum shoal_entry_kind)SHOAL_ENTRY_KINDS;
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID);
    restored = (struct shoal_raft_restored){ .hard = { .term = 3 }, .has_snapshot = true };
    restored.snapshot = (struct shoal_raft_snapshot){ .term = 1, .config = config_of("abc", "") };
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID); /* a term of no entry */
    restored.snapshot.index = 4;
    restored.snapshot.term = 4;
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID); /* of a term to come */
    restored.snapshot.term = 3;
    restored.snapshot.config.count = 0;
    assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_ERR_INVALID); /* with nobody in it */
    options.config.count = 0;
    assert_int_equal(shoal_raft_create(&raft, &options), SHOAL_ERR_INVALID);
    for (uint32_t i = 0; i < 2; i++) {
        shoal_entry_unref(gap[i]);
        shoal_entry_unref(falling[i]);
    }
    shoal_entry_unref(later[0]);
}

/* A crash between a snapshot and the truncation before it leaves entries of another history behind. */
static void a_log_that_disagrees_with_the_snapshot_is_dropped(void **state)
{
    static const struct {
        const char *name;
        uint64_t first;
        const char *terms;
        uint64_t want_last;
    } cases[] = {
        { "it goes on from the snapshot", 4, "233", 6 },
        { "it begins right behind", 5, "33", 6 },
        { "it holds another entry there", 3, "1111", 4 },
        { "it begins too late", 6, "3", 4 },
        { "it ends before", 1, "111", 4 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_raft_options options = options_of('a', "abc", "");
        struct shoal_entry *entries[8];
        struct shoal_raft_restored restored = { .hard = { .term = 3 }, .entries = entries, .has_snapshot = true };
        struct shoal_raft_status now;
        struct shoal_raft *raft;

        restored.snapshot = (struct shoal_raft_snapshot){ .index = 4, .term = 2, .config = config_of("abc", "") };
        for (; cases[i].terms[restored.count] != '\0'; restored.count++)
            entries[restored.count] =
                entry_at((uint64_t)(cases[i].terms[restored.count] - '0'), cases[i].first + restored.count);
        assert_int_equal(shoal_raft_restore(&raft, &options, &restored), SHOAL_OK);
        shoal_raft_status(raft, &now);
        if (now.last != cases[i].want_last || now.commit != 4)
            fail_msg("FAIL unit/raft: %s: the log ends at %u", cases[i].name, (unsigned)now.last);
        shoal_raft_destroy(raft);
        for (size_t e = 0; e < restored.count; e++)
            shoal_entry_unref(entries[e]);
    }
}

static void a_completion_that_was_never_asked_for_is_refused(void **state)
{
    struct rig *rig = rig_create('a', "abc", "");
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_STORED, .u.stored = { .seq = 7 } };

    (void)state;
    assert_int_equal(step(rig, &event), SHOAL_ERR_INVALID);
    rig_destroy(rig);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(votes_go_to_those_who_may_have_them),
    cmocka_unit_test(a_member_anew_votes_as_if_it_had_its_log),
    cmocka_unit_test(who_lacks_what_it_forgot_does_not_campaign),
    cmocka_unit_test(a_vote_is_told_only_when_it_is_durable),
    cmocka_unit_test(a_vote_of_an_overtaken_term_is_never_told),
    cmocka_unit_test(a_candidate_asks_only_when_its_own_vote_is_durable),
    cmocka_unit_test(a_candidate_waits_longer_each_time),
    cmocka_unit_test(whose_vote_is_not_durable_yet_starts_no_election),
    cmocka_unit_test(a_vote_counts_once_however_often_it_comes),
    cmocka_unit_test(a_pre_candidate_adopts_a_higher_term),
    cmocka_unit_test(a_learner_that_is_asked_votes),
    cmocka_unit_test(a_supported_leader_is_not_deposed_by_a_candidate),
    cmocka_unit_test(a_stranger_moves_nothing_of_a_group_that_has_a_leader),
    cmocka_unit_test(a_leader_that_is_not_known_yet_is_heard_once_the_old_one_is_given_up),
    cmocka_unit_test(leadership_ends_with_support_before_the_next_action),
    cmocka_unit_test(an_awake_leader_wakes_for_the_end_of_its_support),
    cmocka_unit_test(a_follower_waits_while_it_supports_the_leader_that_claims),
    cmocka_unit_test(the_end_of_support_lets_a_follower_campaign_at_once),
    cmocka_unit_test(a_node_that_started_just_now_does_not_campaign),
    cmocka_unit_test(a_retry_waits_longer_each_time),
    cmocka_unit_test(a_term_begins_with_an_entry_of_its_own),
    cmocka_unit_test(an_old_entry_is_committed_only_through_a_new_one),
    cmocka_unit_test(an_acknowledgement_waits_for_the_disk),
    cmocka_unit_test(what_is_on_disk_is_acknowledged_only_in_a_durable_term),
    cmocka_unit_test(an_old_completion_acknowledges_nothing),
    cmocka_unit_test(a_leader_brings_every_log_in_line),
    cmocka_unit_test(a_committed_entry_is_not_looked_at_again),
    cmocka_unit_test(commit_knowledge_ends_where_the_logs_are_known_equal),
    cmocka_unit_test(a_group_that_agrees_falls_asleep),
    cmocka_unit_test(a_reply_of_a_former_life_says_nothing),
    cmocka_unit_test(silence_is_answered_by_asking_again_ever_more_slowly),
    cmocka_unit_test(appends_are_pipelined_up_to_a_window),
    cmocka_unit_test(the_window_is_bounded_in_bytes_too),
    cmocka_unit_test(too_much_uncommitted_is_refused_until_it_commits),
    cmocka_unit_test(the_log_grows_only_when_the_owner_says_so),
    cmocka_unit_test(a_follower_with_a_full_log_takes_what_fits),
    cmocka_unit_test(an_entry_is_refused_when_it_cannot_be_taken),
    cmocka_unit_test(messages_that_make_no_sense_are_dropped_and_counted),
    cmocka_unit_test(a_leader_that_contradicts_what_is_committed_is_not_followed),
    cmocka_unit_test(a_leader_of_an_older_term_is_told),
    cmocka_unit_test(reads_wait_for_a_quorum_round_and_share_it),
    cmocka_unit_test(a_read_waits_for_the_first_commit_of_the_term),
    cmocka_unit_test(reads_are_refused_where_they_cannot_be_served),
    cmocka_unit_test(changes_are_refused_when_they_cannot_be_made),
    cmocka_unit_test(a_learner_far_behind_does_not_become_a_voter),
    cmocka_unit_test(the_joint_phase_needs_both_majorities_and_ends_after_its_commit),
    cmocka_unit_test(a_leader_that_is_removed_hands_over),
    cmocka_unit_test(a_configuration_is_rolled_back_with_its_entry),
    cmocka_unit_test(a_leader_that_took_itself_out_is_not_waited_for),
    cmocka_unit_test(a_configuration_is_rolled_back_to_what_the_snapshot_holds),
    cmocka_unit_test(one_who_is_no_member_any_more_is_told),
    cmocka_unit_test(nobody_is_sent_away_by_what_is_not_committed),
    cmocka_unit_test(leadership_is_handed_to_one_who_has_the_whole_log),
    cmocka_unit_test(the_heir_campaigns_at_once_against_standing_support),
    cmocka_unit_test(a_snapshot_comes_in_pieces_and_replaces_the_log),
    cmocka_unit_test(a_snapshot_is_never_installed_over_a_newer_log),
    cmocka_unit_test(a_snapshot_that_makes_no_sense_is_refused),
    cmocka_unit_test(a_follower_that_needs_what_is_forgotten_gets_the_snapshot),
    cmocka_unit_test(a_follower_that_is_nearly_there_is_spared_the_snapshot),
    cmocka_unit_test(no_election_leaves_its_lineage),
    cmocka_unit_test(a_long_log_asks_for_a_snapshot),
    cmocka_unit_test(a_founding_is_acknowledged_to_the_issuer_who_leads_term_1),
    cmocka_unit_test(the_issuer_in_another_incarnation_does_not_lead),
    cmocka_unit_test(a_founding_that_does_not_fit_is_refused),
    cmocka_unit_test(a_lone_voter_leads_at_once),
    cmocka_unit_test(a_broken_store_is_refused),
    cmocka_unit_test(a_log_that_disagrees_with_the_snapshot_is_dropped),
    cmocka_unit_test(a_completion_that_was_never_asked_for_is_refused),
};

int main(void) { return cmocka_run_group_tests(tests, NULL, NULL); }
