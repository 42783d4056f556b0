/* The step of one guardian: events in, actions out. See shoal/raft.h for the picture; each raft_*.c opens with the
 * invariants of its part. A step goes: support checked, event taken, consequences (commit, configuration, transfer,
 * reads), what must be durable handed out, what became durable answered, appends sent, the campaign re-armed.
 *
 * D1. A mark says something about entries only if no truncation was handed out after it; then by (term, index).
 * D2. Marks come in the order of their PERSISTs, so a durable one makes all earlier ones durable.
 * D3. Forgotten <= snapshot <= commit <= last: nothing is forgotten that no snapshot holds, no snapshot holds what is
 *     not committed, and nothing is committed that is not in the log.
 * D4. Durable <= handed out <= last: the disk knows only what it was given, and is given only what is in the log.
 * D5. What a step changes of term, vote, snapshot or log it hands out before it ends, and before it answers.
 * D6. Terms, the commit index, marks and time never fall.
 * D7. A step's actions fit its list: sends stop early (RAFT_SENDS_UNTIL), all else is counted there. */
#include "shoal/raft.h"
#include "raft_state.h"

#include "shoal/banned.h"

static const struct shoal_raft_id nobody;

struct shoal_raft_action *raft_act(struct shoal_raft *raft, enum shoal_raft_action_kind kind)
{
    struct shoal_raft_action *action;

    SHOAL_ASSERT(raft->actions != NULL);                         /* only within a step */
    SHOAL_ASSERT(raft->actions->count < SHOAL_RAFT_ACTIONS_MAX); /* D7 */
    action = &raft->actions->list[raft->actions->count++];
    action->kind = kind;
    return action;
}

bool raft_may_send(struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->actions->count <= SHOAL_RAFT_ACTIONS_MAX); /* D7 */
    if (raft->actions->count < RAFT_SENDS_UNTIL)
        return true;
    raft->more = true;
    return false;
}

struct shoal_raft_message *raft_send(struct shoal_raft *raft, struct shoal_raft_id to,
                                     enum shoal_raft_message_kind kind)
{
    struct shoal_raft_message *message = &raft_act(raft, SHOAL_RAFT_ACTION_SEND)->u.send;

    SHOAL_ASSERT(!shoal_raft_id_equal(to, raft->self)); /* a guardian never talks to itself */
    SHOAL_ASSERT(raft->term > 0);                       /* L2 */
    memset(message, 0, sizeof(*message));
    message->kind = kind;
    message->from = raft->self;
    message->to = to;
    message->term = raft->term;
    return message;
}

void raft_reject(struct shoal_raft *raft, uint64_t ctx, enum shoal_err err)
{
    struct shoal_raft_action *action = raft_act(raft, SHOAL_RAFT_ACTION_REJECT);

    SHOAL_ASSERT(err != SHOAL_OK); /* each request ends once: accepted, or refused with a reason */
    action->u.reject.ctx = ctx;
    action->u.reject.err = err;
}

void raft_role_changed(struct shoal_raft *raft)
{
    struct shoal_raft_action *action;

    if (raft->actions == NULL)
        return;
    SHOAL_ASSERT(raft->role != SHOAL_RAFT_LEADER || shoal_raft_id_equal(raft->leader, raft->self)); /* V7 */
    action = raft_act(raft, SHOAL_RAFT_ACTION_ROLE);
    action->u.role.role = raft->role;
    action->u.role.term = raft->term;
    action->u.role.leader = raft->leader;
}

bool raft_hard_durable(const struct shoal_raft *raft)
{
    SHOAL_ASSERT(raft->durable_seq <= raft->persist_seq); /* D2 */
    SHOAL_ASSERT(raft->hard_seq <= raft->persist_seq);    /* D2 */
    return !raft->hard_dirty && raft->durable_seq >= raft->hard_seq;
}

uint64_t raft_later(const struct shoal_raft *raft, uint64_t ns)
{
    return ns > RAFT_NEVER - 1 - raft->now_ns ? RAFT_NEVER - 1 : raft->now_ns + ns;
}

struct shoal_entry *raft_spare(struct shoal_raft *raft, enum shoal_entry_kind kind)
{
    struct shoal_entry *entry;

    raft->actions->wants_reserve = true;
    if (raft->spares_count == 0)
        return NULL;
    entry = raft->spares[--raft->spares_count];
    SHOAL_ASSERT(entry->refs == 1 && entry->index == 0);     /* L3: nobody else knows it yet */
    SHOAL_ASSERT(entry->cap >= SHOAL_RAFT_CONFIG_BYTES_MAX); /* a configuration fits */
    entry->kind = kind;
    entry->len = 0;
    return entry;
}

enum shoal_err shoal_raft_reserve(struct shoal_raft *raft)
{
    uint32_t cap = raft->log.cap == 0 ? SHOAL_RAFT_LOG_ENTRIES_MIN : raft->log.cap;

    SHOAL_ASSERT(raft->actions == NULL); /* never within a step, which allocates nothing */
    while (raft->log.count >= cap / 2 && cap < SHOAL_RAFT_LOG_ENTRIES_MAX)
        cap *= 2;
    if (cap > raft->log.cap && raft_log_grow(&raft->log, cap) != SHOAL_OK)
        return SHOAL_ERR_FULL;
    while (raft->spares_count < RAFT_SPARES) {
        static const uint8_t zeroes[SHOAL_RAFT_CONFIG_BYTES_MAX];
        struct shoal_entry *spare = shoal_entry_create(SHOAL_ENTRY_NOOP, shoal_view_of(zeroes, sizeof(zeroes)));

        if (spare == NULL)
            return SHOAL_ERR_FULL;
        spare->len = 0;
        raft->spares[raft->spares_count++] = spare;
    }
    return SHOAL_OK;
}

/* A deadline must exist before the first event, whose end may draw a later one. */
static void first_deadline(struct shoal_raft *raft, const struct shoal_raft_options *options)
{
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_FOLLOWER); /* V7: every life begins as a follower */
    SHOAL_ASSERT(raft->jitter_ns > 0);
    if (raft_lone_voter(raft))
        raft->campaign_at_ns = 0;
    else if (options->campaign_from_ns > raft->quiet_until_ns)
        raft->campaign_at_ns = options->campaign_from_ns;
    else
        raft->campaign_at_ns = raft->quiet_until_ns + shoal_rand_below(&raft->chance, raft->jitter_ns);
}

enum shoal_err shoal_raft_create(struct shoal_raft **raft, const struct shoal_raft_options *options)
{
    struct shoal_raft_snapshot base = { .config = options->config };
    struct shoal_raft *made;

    if (!shoal_raft_config_valid(&options->config) || options->config.joint || shoal_raft_id_is_zero(options->self))
        return SHOAL_ERR_INVALID;
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return SHOAL_ERR_FULL;
    made->self = options->self;
    made->chance = options->chance;
    made->support_ns = options->support_ns == 0 ? 600 * SHOAL_MS : options->support_ns;
    made->jitter_ns = options->jitter_ns == 0 ? 150 * SHOAL_MS : options->jitter_ns;
    made->retransmit_ns = options->retransmit_ns == 0 ? 100 * SHOAL_MS : options->retransmit_ns;
    made->quiet_until_ns = options->quiet_until_ns;
    made->term = 1; /* the founder's; elections begin with 2 */
    made->campaign_at_ns = RAFT_NEVER;
    made->commit_push_at_ns = RAFT_NEVER;
    made->backoff = 1;
    made->log.base = base;
    if (shoal_raft_reserve(made) != SHOAL_OK) {
        shoal_raft_destroy(made);
        return SHOAL_ERR_FULL;
    }
    raft_config_set(made, &options->config, 0);
    first_deadline(made, options);
    *raft = made;
    return SHOAL_OK;
}

void shoal_raft_set_floor(struct shoal_raft *raft, struct shoal_raft_floor floor)
{
    SHOAL_ASSERT(raft->role == SHOAL_RAFT_FOLLOWER && raft->persist_seq == 0); /* before the first event */
    raft->floor = floor;
    if (floor.term < raft->term || (floor.term == raft->term && !shoal_raft_id_is_zero(raft->vote)))
        return;
    raft->term = floor.term;
    raft->vote = raft->self; /* whom it voted for is forgotten: for nobody else in this term */
    raft->hard_dirty = true;
}

struct shoal_raft_floor shoal_raft_floor(const struct shoal_raft *raft)
{
    struct shoal_raft_floor floor = raft->floor;

    floor.term = raft->term;
    if (!raft_below_floor(raft)) {
        floor.last_index = raft_log_last(&raft->log);
        floor.last_term = raft_log_term(&raft->log, floor.last_index);
    }
    SHOAL_ASSERT(floor.term >= raft->floor.term);           /* V6: a floor never sinks */
    SHOAL_ASSERT(floor.last_term >= raft->floor.last_term); /* V6 */
    return floor;
}

/* The entries behind a snapshot belong to it only if the log agreed at the snapshot's index: a crash between an
 * installed, or taken, snapshot and the truncation of the log before it leaves entries of another history behind. */
static bool log_goes_on(const struct shoal_raft *raft, const struct shoal_raft_restored *restored)
{
    for (size_t i = 0; i < restored->count; i++) {
        if (restored->entries[i]->index == raft->log.base.index)
            return restored->entries[i]->term == raft->log.base.term;
    }
    return restored->count == 0 || restored->entries[0]->index == raft->log.base.index + 1;
}

static enum shoal_err restore_entry(struct shoal_raft *raft, struct shoal_entry *entry)
{
    struct shoal_raft_config config;

    if ((unsigned)entry->kind >= SHOAL_ENTRY_KINDS || entry->term == 0)
        return SHOAL_ERR_INVALID;
    if (entry->index != raft_log_last(&raft->log) + 1 || entry->term > raft->term ||
        entry->term < raft_log_term(&raft->log, raft_log_last(&raft->log)))
        return SHOAL_ERR_INVALID;
    if (entry->kind == SHOAL_ENTRY_CONFIG && shoal_raft_config_decode(shoal_entry_view(entry), &config) != SHOAL_OK)
        return SHOAL_ERR_INVALID;
    if (raft_log_full(&raft->log) && (shoal_raft_reserve(raft) != SHOAL_OK || raft_log_full(&raft->log)))
        return SHOAL_ERR_FULL;
    raft_log_take(&raft->log, shoal_entry_ref(entry));
    if (entry->kind == SHOAL_ENTRY_CONFIG)
        raft_config_set(raft, &config, entry->index);
    return SHOAL_OK;
}

static enum shoal_err restore_log(struct shoal_raft *raft, const struct shoal_raft_restored *restored)
{
    if (!log_goes_on(raft, restored))
        return SHOAL_OK;
    for (size_t i = 0; i < restored->count; i++) {
        enum shoal_err err;

        if (restored->entries[i]->index <= raft->log.base.index)
            continue;
        err = restore_entry(raft, restored->entries[i]);
        if (err != SHOAL_OK)
            return err;
    }
    return shoal_raft_reserve(raft);
}

enum shoal_err shoal_raft_restore(struct shoal_raft **raft, const struct shoal_raft_options *options,
                                  const struct shoal_raft_restored *restored)
{
    struct shoal_raft *made;
    enum shoal_err err = shoal_raft_create(&made, options);

    if (err != SHOAL_OK)
        return err;
    if (restored->hard.term > RAFT_TERM_MAX) {
        shoal_raft_destroy(made);
        return SHOAL_ERR_INVALID;
    }
    if (restored->hard.term > made->term)
        made->term = restored->hard.term;
    made->vote = restored->hard.vote;
    if (restored->has_snapshot) {
        if (!shoal_raft_config_valid(&restored->snapshot.config) || restored->snapshot.term > made->term ||
            (restored->snapshot.index == 0) != (restored->snapshot.term == 0)) {
            shoal_raft_destroy(made);
            return SHOAL_ERR_INVALID;
        }
        raft_log_reset(&made->log, &restored->snapshot);
        raft_config_set(made, &restored->snapshot.config, restored->snapshot.index);
        made->snapshot_index = restored->snapshot.index;
        made->commit = restored->snapshot.index;
    }
    err = restore_log(made, restored);
    if (err != SHOAL_OK) {
        shoal_raft_destroy(made);
        return err;
    }
    made->durable = raft_log_last(&made->log);
    made->handed = made->durable;
    if (restored->hard.commit > made->commit)
        made->commit = restored->hard.commit < made->durable ? restored->hard.commit : made->durable;
    made->hinted_commit = made->commit;
    made->matched = made->commit;
    first_deadline(made, options);
    raft_check_order(made);
    *raft = made;
    return SHOAL_OK;
}

void shoal_raft_destroy(struct shoal_raft *raft)
{
    if (raft == NULL)
        return;
    SHOAL_ASSERT(raft->actions == NULL); /* never within a step */
    raft_log_deinit(&raft->log);
    while (raft->spares_count > 0)
        shoal_entry_unref(raft->spares[--raft->spares_count]);
    free(raft);
}

/* ---- The step ---- */

static void hand_out(struct shoal_raft *raft)
{
    uint64_t last = raft_log_last(&raft->log);
    bool hint = raft->commit - raft->hinted_commit >= RAFT_HINT_ENTRIES && raft->handed < last;
    struct shoal_raft_action *action;

    if (!raft->hard_dirty && !raft->snapshot_dirty && raft->truncate_from == 0 && raft->handed >= last)
        return;
    action = raft_act(raft, SHOAL_RAFT_ACTION_PERSIST);
    memset(&action->u.persist, 0, sizeof(action->u.persist));
    SHOAL_ASSERT(raft->handed <= last); /* D4 */
    raft->persist_seq++;
    action->u.persist.mark = (struct shoal_raft_mark){ .seq = raft->persist_seq, .index = last };
    action->u.persist.mark.term = raft_log_term(&raft->log, last);
    if (raft->hard_dirty || hint) {
        action->u.persist.has_hard = true;
        action->u.persist.hard.term = raft->term;
        action->u.persist.hard.vote = raft->vote;
        action->u.persist.hard.commit = raft->commit;
        SHOAL_ASSERT(raft->hinted_commit <= raft->commit); /* D6 */
        raft->hinted_commit = raft->commit;
    }
    if (raft->hard_dirty)
        raft->hard_seq = raft->persist_seq;
    if (raft->truncate_from != 0 || raft->snapshot_dirty)
        raft->truncate_seq = raft->persist_seq;
    if (raft->snapshot_dirty) {
        action->u.persist.has_snapshot = true;
        action->u.persist.snapshot = raft->log.base;
    }
    action->u.persist.truncate_from = raft->truncate_from;
    action->u.persist.first = raft->handed + 1;
    action->u.persist.last = last;
    raft->handed = last;
    raft->hard_dirty = false;
    raft->snapshot_dirty = false;
    raft->truncate_from = 0;
}

static enum shoal_err on_stored(struct shoal_raft *raft, struct shoal_raft_mark mark)
{
    if (mark.seq == 0 || mark.seq > raft->persist_seq)
        return SHOAL_ERR_INVALID;
    if (mark.seq <= raft->durable_seq)
        return SHOAL_OK;                                   /* D2: said already */
    SHOAL_ASSERT(raft->truncate_seq <= raft->persist_seq); /* D1 */
    raft->durable_seq = mark.seq;
    if (mark.seq < raft->truncate_seq)
        return SHOAL_OK;                      /* D1: those entries may have been overwritten since */
    SHOAL_ASSERT(mark.index <= raft->handed); /* D4 */
    SHOAL_ASSERT(mark.index < raft->log.base.index || raft_log_term(&raft->log, mark.index) == mark.term); /* D1 */
    if (mark.index > raft->durable)
        raft->durable = mark.index;
    return SHOAL_OK;
}

static bool from_leader(enum shoal_raft_message_kind kind)
{
    return kind == SHOAL_RAFT_APPEND || kind == SHOAL_RAFT_INSTALL || kind == SHOAL_RAFT_READ ||
           kind == SHOAL_RAFT_TIMEOUT_NOW;
}

/* Brings the term up to the message's. False: from an older term, and answered so that its leader learns of ours. */
static enum shoal_err meet_term(struct shoal_raft *raft, const struct shoal_raft_message *message, bool *stale)
{
    bool leads = from_leader(message->kind);

    *stale = message->term < raft->term;
    if (*stale) {
        if (leads && message->kind != SHOAL_RAFT_TIMEOUT_NOW)
            raft_send(raft, message->from, SHOAL_RAFT_APPEND_REPLY)->u.append_reply.rejected = true;
        return SHOAL_OK;
    }
    if (message->term > raft->term) {
        raft_become_follower(raft, message->term, leads ? message->from : nobody);
        return SHOAL_OK;
    }
    if (!leads)
        return SHOAL_OK;
    if (raft->role == SHOAL_RAFT_LEADER)
        return SHOAL_ERR_MALFORMED; /* a term has one leader */
    if (!shoal_raft_id_is_zero(raft->leader) && !shoal_raft_id_equal(raft->leader, message->from))
        return SHOAL_ERR_MALFORMED;
    if (raft->role != SHOAL_RAFT_FOLLOWER || shoal_raft_id_is_zero(raft->leader))
        raft_become_follower(raft, raft->term, message->from);
    SHOAL_ASSERT(shoal_raft_id_equal(raft->leader, message->from)); /* V7: a term has one leader */
    return SHOAL_OK;
}

/* A leader whose configuration is committed knows this node as no member: campaigning would help nobody. */
static void on_gone(struct shoal_raft *raft)
{
    if (raft->role == SHOAL_RAFT_LEADER)
        return;
    SHOAL_ASSERT(raft->transfer_until_ns == 0 && raft->reads_count == 0); /* V7: only a leader has these */
    if (!raft->removed_told)
        (void)raft_act(raft, SHOAL_RAFT_ACTION_REMOVED);
    raft->removed_told = true;
    if (raft->role != SHOAL_RAFT_FOLLOWER)
        raft_become_follower(raft, raft->term, nobody);
}

static enum shoal_err take_message(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    SHOAL_ASSERT(message->term <= raft->term || !from_leader(message->kind)); /* meet_term came before */
    switch (message->kind) {
    case SHOAL_RAFT_PREVOTE: raft_on_prevote(raft, message); break;
    case SHOAL_RAFT_PREVOTE_REPLY: raft_on_prevote_reply(raft, message); break;
    case SHOAL_RAFT_VOTE: raft_on_vote(raft, message); break;
    case SHOAL_RAFT_VOTE_REPLY: raft_on_vote_reply(raft, message); break;
    case SHOAL_RAFT_APPEND: return raft_on_append(raft, message);
    case SHOAL_RAFT_APPEND_REPLY: raft_on_append_reply(raft, message); break;
    case SHOAL_RAFT_READ: raft_on_read_round(raft, message); break;
    case SHOAL_RAFT_READ_REPLY: raft_on_read_reply(raft, message); break;
    case SHOAL_RAFT_INSTALL: return raft_on_install(raft, message);
    case SHOAL_RAFT_INSTALL_REPLY: raft_on_install_reply(raft, message); break;
    case SHOAL_RAFT_TIMEOUT_NOW: raft_on_timeout_now(raft, message); break;
    case SHOAL_RAFT_GONE: on_gone(raft); break;
    }
    return SHOAL_OK;
}

static enum shoal_err on_message(struct shoal_raft *raft, const struct shoal_raft_message *message)
{
    bool asks = message->kind == SHOAL_RAFT_PREVOTE || message->kind == SHOAL_RAFT_VOTE;
    enum shoal_err err = SHOAL_OK;
    bool stale = false;

    if (!shoal_raft_id_equal(message->to, raft->self) || (!asks && raft_is_stranger(raft, message->from))) { /* V9 */
        raft->counters.dropped_foreign++;
        return SHOAL_OK;
    }
    if (shoal_raft_id_is_zero(message->from) || shoal_raft_id_equal(message->from, raft->self) ||
        !raft_term_valid(message->term))
        err = SHOAL_ERR_MALFORMED;
    else if (message->kind == SHOAL_RAFT_VOTE_REPLY && message->term > raft->term)
        raft_become_follower(raft, message->term, nobody);
    else if (message->kind != SHOAL_RAFT_PREVOTE && message->kind != SHOAL_RAFT_PREVOTE_REPLY &&
             message->kind != SHOAL_RAFT_VOTE && message->kind != SHOAL_RAFT_VOTE_REPLY)
        err = meet_term(raft, message, &stale);
    if (err == SHOAL_OK && !stale)
        err = take_message(raft, message);
    if (err != SHOAL_OK)
        raft->counters.dropped_malformed++;
    return err;
}

static void on_timer(struct shoal_raft *raft)
{
    if (raft->role != SHOAL_RAFT_LEADER && raft->campaign_at_ns != RAFT_NEVER && raft->now_ns >= raft->campaign_at_ns &&
        raft_may_campaign(raft) && !raft_blocked(raft))
        raft_campaign(raft, false);
}

static enum shoal_err take_event(struct shoal_raft *raft, const struct shoal_raft_event *event)
{
    switch (event->kind) {
    case SHOAL_RAFT_EVENT_MESSAGE: return on_message(raft, event->u.message);
    case SHOAL_RAFT_EVENT_TIMER: on_timer(raft); break;
    case SHOAL_RAFT_EVENT_STORED: return on_stored(raft, event->u.stored);
    case SHOAL_RAFT_EVENT_PROPOSE: raft_on_propose(raft, event->u.propose.ctx, event->u.propose.entry); break;
    case SHOAL_RAFT_EVENT_READ: raft_on_read(raft, event->u.read.ctx); break;
    case SHOAL_RAFT_EVENT_CHANGE_CONFIG: raft_on_change(raft, event->u.change.ctx, event->u.change.target); break;
    case SHOAL_RAFT_EVENT_TRANSFER: raft_on_transfer(raft, event->u.transfer.ctx, event->u.transfer.to); break;
    case SHOAL_RAFT_EVENT_SNAPSHOT_READY: return raft_on_snapshot_ready(raft, event->u.snapshot_ready.index);
    case SHOAL_RAFT_EVENT_SNAPSHOT_CHUNK: return raft_on_chunk(raft, event);
    case SHOAL_RAFT_EVENT_PEER_SUPPORT:
        raft_on_peer_support(raft, event->u.peer_support.node, event->u.peer_support.until_ns);
        break;
    case SHOAL_RAFT_EVENT_SUPPORTING: raft_on_supporting(raft, event->u.supporting.node, event->u.supporting.on); break;
    case SHOAL_RAFT_EVENT_CLAIM: raft_on_claim(raft, event->u.claim.node, event->u.claim.term); break;
    case SHOAL_RAFT_EVENT_UNCLAIMED: raft_on_unclaimed(raft, event->u.claim.node, event->u.claim.term); break;
    case SHOAL_RAFT_EVENT_STOP_LEADING:
        if (raft->role == SHOAL_RAFT_LEADER)
            raft_become_follower(raft, raft->term, nobody);
        break;
    }
    return SHOAL_OK;
}

static void begin(struct shoal_raft *raft, uint64_t now_ns, struct shoal_raft_actions *actions)
{
    SHOAL_ASSERT(raft->actions == NULL); /* steps do not nest */
    raft_check_order(raft);
    actions->count = 0;
    actions->wants_reserve = false;
    actions->wants_snapshot = false;
    raft->actions = actions;
    raft->more = false;
    if (now_ns > raft->now_ns)
        raft->now_ns = now_ns;
}

void raft_check_order(const struct shoal_raft *raft)
{
    uint64_t last = raft_log_last(&raft->log);

    SHOAL_ASSERT(raft->log.base.index <= raft->snapshot_index);  /* D3 */
    SHOAL_ASSERT(raft->snapshot_index <= raft->commit);          /* D3 */
    SHOAL_ASSERT(raft->commit <= last);                          /* D3 */
    SHOAL_ASSERT(raft->handed <= last);                          /* D4 */
    SHOAL_ASSERT(raft->durable <= raft->handed);                 /* D4 */
    SHOAL_ASSERT(raft->matched <= last);                         /* R1 */
    SHOAL_ASSERT(raft_log_term(&raft->log, last) <= raft->term); /* D6: no entry is of a term to come */
    SHOAL_ASSERT(raft->config_index <= last);                    /* C1 */
}

/* Each role has what it may have, at the end of a step (V7). */
static void check_role(const struct shoal_raft *raft)
{
    bool self = shoal_raft_id_equal(raft->vote, raft->self);

    SHOAL_ASSERT(raft->reads_count <= SHOAL_RAFT_READS_MAX);
    switch (raft->role) {
    case SHOAL_RAFT_FOLLOWER:
        SHOAL_ASSERT(!shoal_raft_id_equal(raft->leader, raft->self));
        SHOAL_ASSERT(raft->reads_count == 0 && raft->transfer_until_ns == 0);
        return;
    case SHOAL_RAFT_PRECANDIDATE: SHOAL_ASSERT(shoal_raft_id_is_zero(raft->leader)); return;
    case SHOAL_RAFT_CANDIDATE:
        SHOAL_ASSERT(self); /* V1 */
        SHOAL_ASSERT(shoal_raft_id_is_zero(raft->leader));
        SHOAL_ASSERT(!raft->votes_asked || raft_hard_durable(raft)); /* V2 */
        return;
    case SHOAL_RAFT_LEADER:
        SHOAL_ASSERT(self); /* V1 */
        SHOAL_ASSERT(raft_log_term(&raft->log, raft_log_last(&raft->log)) ==
                     raft->term); /* R2: its own entry is there */
        SHOAL_ASSERT(raft->campaign_at_ns == RAFT_NEVER);
        return;
    }
}

static void finish(struct shoal_raft *raft)
{
    raft_check_support(raft);
    raft_ask_votes(raft);
    raft_commit_advance(raft);
    raft_config_advance(raft);
    raft_transfer_advance(raft);
    raft_reads_advance(raft);
    hand_out(raft);
    raft_answer_vote(raft);
    raft_acknowledge(raft);
    raft_answer_install(raft);
    raft_flush(raft);
    raft_rearm(raft);
    SHOAL_ASSERT(!raft->hard_dirty && !raft->snapshot_dirty && raft->truncate_from == 0); /* D5 */
    SHOAL_ASSERT(raft->handed == raft_log_last(&raft->log));                              /* D5 */
    raft_check_order(raft);
    check_role(raft);
    if (raft->log.count >= raft->log.cap / 2 && raft->log.cap < SHOAL_RAFT_LOG_ENTRIES_MAX)
        raft->actions->wants_reserve = true;
    raft->actions->wants_snapshot =
        raft->commit > raft->snapshot_index &&
        (raft->commit - raft->snapshot_index >= RAFT_SNAPSHOT_ENTRIES || raft->log.bytes >= RAFT_SNAPSHOT_BYTES);
    raft->actions = NULL;
}

enum shoal_err shoal_raft_step(struct shoal_raft *raft, const struct shoal_raft_event *event, uint64_t now_ns,
                               struct shoal_raft_actions *actions)
{
    enum shoal_err err;
    uint64_t term = raft->term;
    uint64_t commit = raft->commit;

    begin(raft, now_ns, actions);
    /* S1, except for the news that may save the leadership. */
    if (event->kind != SHOAL_RAFT_EVENT_PEER_SUPPORT)
        raft_check_support(raft);
    err = take_event(raft, event);
    finish(raft);
    SHOAL_ASSERT(raft->term >= term);     /* D6 */
    SHOAL_ASSERT(raft->commit >= commit); /* D6 */
    return err;
}

enum shoal_err shoal_raft_found(struct shoal_raft *raft, struct shoal_entry *const *entries, size_t count,
                                struct shoal_node_id issuer, bool leads, uint64_t now_ns,
                                struct shoal_raft_actions *actions)
{
    const struct shoal_raft_member *founder = shoal_raft_config_find(&raft->config, issuer);
    struct shoal_raft_config config;
    enum shoal_err err;

    if (raft->term != 1 || raft_log_last(&raft->log) != 0 || raft->log.base.index != 0 || count == 0 ||
        count >= raft->log.cap || !shoal_raft_id_is_zero(raft->vote) || founder == NULL ||
        !(founder->bits & SHOAL_RAFT_VOTER) || (leads && !shoal_raft_id_equal(founder->id, raft->self)))
        return SHOAL_ERR_INVALID;
    for (size_t i = 0; i < count; i++) {
        if (entries[i]->index != i + 1 || entries[i]->term != 1)
            return SHOAL_ERR_INVALID;
        if (entries[i]->kind == SHOAL_ENTRY_CONFIG &&
            shoal_raft_config_decode(shoal_entry_view(entries[i]), &config) != SHOAL_OK)
            return SHOAL_ERR_INVALID;
    }
    begin(raft, now_ns, actions);
    raft_vote_cast(raft, founder->id);
    raft->leader = founder->id;
    raft_contact(raft);
    for (size_t i = 0; i < count; i++) {
        raft_log_take(&raft->log, shoal_entry_ref(entries[i]));
        if (entries[i]->kind != SHOAL_ENTRY_CONFIG)
            continue;
        err = shoal_raft_config_decode(shoal_entry_view(entries[i]), &config);
        SHOAL_ASSERT(err == SHOAL_OK); /* checked above */
        raft_config_set(raft, &config, i + 1);
    }
    raft->term_start = 1;
    if (leads) {
        raft_lead(raft);
        /* The guardians get the record from the founding message; only if one stays silent is it appended. */
        for (uint32_t i = 0; i < raft->config.count; i++) {
            if (shoal_raft_id_equal(raft->peers[i].member.id, raft->self))
                continue; /* a leader waits for no answer of its own */
            raft->peers[i].waiting = true;
            raft->peers[i].retransmit_at_ns = raft_later(raft, raft->retransmit_ns);
        }
    } else if (!shoal_raft_id_equal(raft->leader, raft->self)) {
        raft->matched = count;
        raft->ack_owed = true;
        raft->ack_index = count;
    } else {
        raft->leader = nobody; /* the issuer in another incarnation: the group elects */
    }
    raft_role_changed(raft);
    finish(raft);
    return SHOAL_OK;
}

uint64_t shoal_raft_deadline_ns(const struct shoal_raft *raft)
{
    uint64_t deadline_ns = RAFT_NEVER;
    uint64_t supported;

    SHOAL_ASSERT(raft->actions == NULL); /* asked between steps */
    if (raft->more)
        return raft->now_ns;
    if (raft->role != SHOAL_RAFT_LEADER)
        return raft->campaign_at_ns;
    for (uint32_t i = 0; i < raft->config.count; i++) {
        if (raft->peers[i].retransmit_at_ns < deadline_ns)
            deadline_ns = raft->peers[i].retransmit_at_ns;
    }
    if (raft->commit_push_at_ns < deadline_ns)
        deadline_ns = raft->commit_push_at_ns;
    if (raft->read_round && raft->read_retransmit_at_ns < deadline_ns)
        deadline_ns = raft->read_retransmit_at_ns;
    if (raft->transfer_until_ns != 0 && raft->transfer_until_ns < deadline_ns)
        deadline_ns = raft->transfer_until_ns;
    supported = raft_quorum_supported_until(raft);
    if (supported < raft->grace_until_ns)
        supported = raft->grace_until_ns;
    /* Asleep, the loss of support comes as an event, and any event checks first (S1). */
    if (supported < deadline_ns && (!raft_asleep(raft) || supported == raft->grace_until_ns))
        deadline_ns = supported;
    return deadline_ns;
}

/* ---- Looking inside ---- */

void shoal_raft_status(const struct shoal_raft *raft, struct shoal_raft_status *status)
{
    SHOAL_ASSERT(raft->commit <= raft_log_last(&raft->log)); /* D3 */
    *status = raft->counters;
    status->role = raft->role;
    status->term = raft->term;
    status->leader = raft->leader;
    status->vote = raft->vote;
    status->commit = raft->commit;
    status->durable = raft->durable;
    status->first = raft->log.base.index + 1;
    status->last = raft_log_last(&raft->log);
    status->snapshot_index = raft->snapshot_index;
    status->log_bytes = raft->log.bytes;
    status->log_cap = raft->log.cap;
    status->joint = raft->config.joint;
    status->config_committed = !raft->config.joint && raft->config_index <= raft->commit;
    status->transferring = raft->role == SHOAL_RAFT_LEADER && raft->transfer_until_ns != 0;
    status->asleep = raft_asleep(raft);
    status->supported_until_ns = raft->role == SHOAL_RAFT_LEADER ? raft_quorum_supported_until(raft) : 0;
}

const struct shoal_raft_config *shoal_raft_config(const struct shoal_raft *raft) { return &raft->config; }

size_t shoal_raft_progress(const struct shoal_raft *raft, struct shoal_raft_progress *list, size_t cap)
{
    size_t count = 0;

    if (raft->role != SHOAL_RAFT_LEADER)
        return 0;
    for (uint32_t i = 0; i < raft->config.count && count < cap; i++) {
        const struct raft_peer *peer = &raft->peers[i];
        bool self = shoal_raft_id_equal(peer->member.id, raft->self);

        list[count++] = (struct shoal_raft_progress){
            .member = peer->member,
            .match = self ? raft->durable : peer->match,
            .commit_known = self ? raft->commit : peer->commit_known,
            .needs_snapshot = peer->flow == RAFT_TRANSFER,
            .supported_until_ns = self ? RAFT_NEVER : raft_supported_until(raft, peer->member.id.node),
        };
    }
    return count;
}

struct shoal_entry *shoal_raft_entry(const struct shoal_raft *raft, uint64_t index)
{
    return raft_log_find(&raft->log, index);
}

uint64_t shoal_raft_term_at(const struct shoal_raft *raft, uint64_t index) { return raft_log_term(&raft->log, index); }

void shoal_raft_memory(struct shoal_memory *memory)
{
    SHOAL_ASSERT(RAFT_SNAPSHOT_ENTRIES <
                 SHOAL_RAFT_LOG_ENTRIES_MAX); /* a snapshot is asked for before a ring is full */
    shoal_memory_add(memory, "raft: groups, with what they write themselves", SHOAL_GROUPS_MAX,
                     sizeof(struct shoal_raft) +
                         RAFT_SPARES * (sizeof(struct shoal_entry) + SHOAL_RAFT_CONFIG_BYTES_MAX));
    shoal_memory_add(memory, "raft: places for entries in the rings",
                     (uint64_t)SHOAL_GROUPS_MAX * SHOAL_RAFT_LOG_ENTRIES_MAX, sizeof(struct shoal_entry *));
    shoal_memory_add(memory, "raft: entries since the last snapshot, and those not committed", SHOAL_GROUPS_MAX,
                     RAFT_SNAPSHOT_BYTES + SHOAL_RAFT_UNCOMMITTED_BYTES_MAX);
}

void shoal_raft_check(const struct shoal_raft *raft)
{
    uint64_t at = 0;
    struct shoal_raft_config config;

    raft_check_order(raft);
    raft_log_check(&raft->log);
    SHOAL_ASSERT(shoal_raft_config_valid(&raft->config));
    raft_config_as_of(raft, raft_log_last(&raft->log), &config, &at);
    SHOAL_ASSERT(raft->config_index == at || raft->config_index <= raft->log.base.index); /* C1 */
    for (uint32_t i = 0; i < raft->config.count; i++) {
        SHOAL_ASSERT(shoal_raft_id_equal(raft->peers[i].member.id, raft->config.members[i].id)); /* C1 */
        if (raft->role == SHOAL_RAFT_LEADER)
            raft_peer_check(raft, &raft->peers[i]);
    }
    if (raft->role == SHOAL_RAFT_LEADER) {
        uint64_t last = raft_log_last(&raft->log);

        SHOAL_ASSERT(raft->uncommitted_bytes == raft_log_span_bytes(&raft->log, raft->commit + 1, last)); /* R8 */
    }
}

uint64_t shoal_raft_commit(const struct shoal_raft *raft) { return raft->commit; }
uint64_t shoal_raft_term(const struct shoal_raft *raft) { return raft->term; }
bool shoal_raft_is_leader(const struct shoal_raft *raft) { return raft->role == SHOAL_RAFT_LEADER; }
