/* The core's dealings with the store: PERSISTs, snapshots of machines, installs to followers, and the restore at
 * start.
 *
 * T1. A snapshot is of the applied index, with the configuration as of it; the raft forgets entries only after STORED.
 * T2. While a follower is being given a snapshot, that one stays; a newer one is taken beside it, for the store alone. */
#include "sched_store.h"
#include "sched_group.h"
#include "sched_index.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_request.h"
#include "sched_state.h"

#include "shoal/banned.h"

#define LIFE_SHIFT 32
#define SNAPSHOT_MARK ((uint64_t)1 << 31) /* in a mark's low half: an own snapshot, not a PERSIST of the raft */
#define HARD_BYTES 16
#define WITNESS_BYTES (SHOAL_RAFT_CONFIG_BYTES_MAX + 256)

/* ---- PERSIST ---- */

static struct shoal_view hard_config(struct shoal_sched *s, const struct shoal_raft_hard_state *hard)
{
    uint8_t *bytes = sched_pool(s, HARD_BYTES, 0);
    struct shoal_writer w = shoal_writer_init(bytes, HARD_BYTES);

    SHOAL_ASSERT(bytes != NULL);
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    shoal_put_u8(&w, SCHED_HARD_FORMAT);
    shoal_put_u64(&w, hard->commit);
    return shoal_writer_view(&w);
}

/* The entries stay referenced until the next step: the raft may drop them before the shell has written them. */
static void put_entries(struct shoal_sched *s, struct sched_group *g, uint64_t first, uint64_t last,
                        struct shoal_sched_action *to)
{
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(s->held_count == s->actions->entry_count);
    to->u.persist.entries = &s->actions->entries[s->actions->entry_count];
    for (uint64_t i = first; i <= last; i++) {
        struct shoal_entry *entry = shoal_raft_entry(g->raft, i);
        struct shoal_sched_entry *out = &s->actions->entries[s->actions->entry_count];

        SHOAL_ASSERT(entry != NULL);
        SHOAL_ASSERT(s->actions->entry_count < SHOAL_SCHED_ENTRIES_MAX);
        s->held[s->held_count++] = shoal_entry_ref(entry);
        *out = (struct shoal_sched_entry){
            .index = entry->index,
            .term = entry->term,
            .kind = (uint8_t)entry->kind,
            .bytes = shoal_entry_view(entry),
        };
        s->actions->entry_count++;
        to->u.persist.entry_count++;
    }
}

static void restore_machine(struct shoal_sched *s, struct sched_group *g, struct shoal_view bytes, uint64_t index,
                            uint64_t term);

void sched_persist(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_action *action)
{
    struct shoal_sched_action *to = sched_act(s, SHOAL_SCHED_PERSIST);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(action->kind == SHOAL_RAFT_ACTION_PERSIST);
    to->u.persist.group = g->id;
    to->u.persist.mark = (struct shoal_sched_mark){
        .seq = g->life << LIFE_SHIFT | action->u.persist.mark.seq,
        .index = action->u.persist.mark.index,
        .term = action->u.persist.mark.term,
    };
    if (action->u.persist.has_snapshot) {
        to->u.persist.has_snapshot = true;
        to->u.persist.snapshot.index = action->u.persist.snapshot.index;
        to->u.persist.snapshot.term = action->u.persist.snapshot.term;
        to->u.persist.snapshot.bytes = shoal_buf_view(&g->part); /* stays until the next snapshot's first piece */
        to->u.persist.truncate_from = action->u.persist.snapshot.index + 1;
        restore_machine(s, g, shoal_buf_view(&g->part), action->u.persist.snapshot.index,
                        action->u.persist.snapshot.term);
    }
    if (action->u.persist.truncate_from != 0)
        to->u.persist.truncate_from = action->u.persist.truncate_from;
    put_entries(s, g, action->u.persist.first, action->u.persist.last, to);
    if (action->u.persist.has_hard) {
        to->u.persist.has_hard = true;
        to->u.persist.hard.term = action->u.persist.hard.term;
        to->u.persist.hard.vote_node = action->u.persist.hard.vote.node;
        to->u.persist.hard.vote_store = action->u.persist.hard.vote.store;
        to->u.persist.hard.config = hard_config(s, &action->u.persist.hard);
    }
    if (g->found_seq == 0)
        g->found_seq = action->u.persist.mark.seq; /* the first one carries the founding record */
}

/* ---- Snapshots of our own ---- */

static enum shoal_err machine_encode(struct shoal_sched *s, const struct sched_group *g, struct shoal_buf *bytes)
{
    size_t len;
    enum shoal_err err;

    SHOAL_ASSERT(g->mesh_is == (g->mesh != NULL));
    if (g->mesh_is)
        return shoal_mesh_encode(g->mesh, bytes);
    if (g->job == NULL)
        return SHOAL_OK;
    err = shoal_job_snapshot_encode(g->job, s->scratch.bytes, s->scratch.cap, &len);
    if (err != SHOAL_OK)
        return err;
    return shoal_buf_append(bytes, s->scratch.bytes, len);
}

/* The group's state at its applied index, head and machine. */
static enum shoal_err snapshot_encode(struct shoal_sched *s, const struct sched_group *g, struct shoal_buf *out,
                                      struct shoal_raft_snapshot *at)
{
    uint8_t config_bytes[SHOAL_RAFT_CONFIG_BYTES_MAX];
    struct group_head head = { .config_index = g->config_index, .target = g->target, .refused = g->refused };
    struct shoal_buf machine = { 0 };
    struct shoal_writer w;
    bool fits;
    enum shoal_err err;

    SHOAL_ASSERT(out->len == 0 || out->bytes != NULL);
    at->index = g->applied;
    at->term = g->applied_term;
    err = shoal_raft_config_at(g->raft, g->applied, &at->config);
    if (err == SHOAL_OK)
        err = machine_encode(s, g, &machine);
    if (err == SHOAL_OK)
        err = shoal_buf_reserve(out, machine.len + SHOAL_RAFT_CONFIG_BYTES_MAX + 256);
    if (err == SHOAL_OK) {
        head.config = shoal_view_of(config_bytes, shoal_raft_config_encode(&at->config, config_bytes));
        head.spec_hash = g->spec_hash;
        head.bundle_hash = g->bundle_hash;
        head.machine = shoal_buf_view(&machine);
        w = shoal_writer_init(out->bytes, out->cap);
        fits = sched_head_encode(&head, &w);
        SHOAL_ASSERT(fits); /* the buffer was taken for it */
        out->len = w.len;
    }
    shoal_buf_deinit(&machine);
    return err;
}

static void save(struct shoal_sched *s, struct sched_group *g, struct shoal_view bytes,
                 const struct shoal_raft_snapshot *at)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_PERSIST);

    SHOAL_ASSERT(s->actions != NULL);      /* within a step */
    SHOAL_ASSERT(at->index == g->applied); /* T1 */
    SHOAL_ASSERT(!g->snapshot_saving);     /* T1: one at a time */
    action->u.persist.group = g->id;
    action->u.persist.mark.seq = g->life << LIFE_SHIFT | SNAPSHOT_MARK;
    action->u.persist.mark.index = at->index;
    action->u.persist.mark.term = at->term;
    action->u.persist.has_snapshot = true;
    action->u.persist.snapshot.index = at->index;
    action->u.persist.snapshot.term = at->term;
    action->u.persist.snapshot.bytes = bytes;
    g->snapshot_saving = true;
    g->snapshot_index = at->index;
    g->log_bytes = 0;
    s->stats.snapshots++;
}

bool sched_snapshot_witness(struct shoal_sched *s, struct sched_group *g)
{
    uint8_t config[SHOAL_RAFT_CONFIG_BYTES_MAX];
    struct group_head head = { .target = g->target };
    uint8_t *bytes = sched_pool(s, WITNESS_BYTES, 0);
    struct shoal_writer w = shoal_writer_init(bytes, WITNESS_BYTES);
    struct shoal_sched_action *action;

    SHOAL_ASSERT(g->applied == 0); /* W2: with an empty log */
    head.config = shoal_view_of(config, shoal_raft_config_encode(shoal_raft_config(g->raft), config));
    if (bytes == NULL || !sched_head_encode(&head, &w))
        return false;
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = g->id;
    action->u.persist.has_snapshot = true; /* of index 0 */
    action->u.persist.snapshot.bytes = shoal_writer_view(&w);
    return true;
}

/* All of a lineage that a recovery has founded here: what the log before held is dropped with the same write. */
void sched_snapshot_found(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_raft_hard_state hard = { .term = g->applied_term, .commit = g->applied };
    struct shoal_sched_action *action;

    SHOAL_ASSERT(g->applied > 0);
    if (snapshot_encode(s, g, &g->snap, &g->snap_at) != SHOAL_OK) {
        action = sched_act(s, SHOAL_SCHED_FATAL); /* from disk nothing has happened yet */
        (void)snprintf(action->u.fatal.text, sizeof(action->u.fatal.text),
                       "no memory for the state of a recovered job; start again, and ask for the recovery once more");
        return;
    }
    g->snap_used_ns = s->now;
    g->snapshot_index = g->applied;
    g->log_bytes = 0;
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = g->id;
    action->u.persist.has_snapshot = true;
    action->u.persist.snapshot.index = g->snap_at.index;
    action->u.persist.snapshot.term = g->snap_at.term;
    action->u.persist.snapshot.bytes = shoal_buf_view(&g->snap);
    action->u.persist.truncate_from = g->applied + 1;
    action->u.persist.has_hard = true;
    action->u.persist.hard.term = hard.term;
    action->u.persist.hard.config = hard_config(s, &hard);
    s->stats.snapshots++;
}

/* T2: when the kept one is in use, the new one goes to the store through the pool, and is not kept. */
void sched_snapshot_take(struct shoal_sched *s, struct sched_group *g)
{
    bool in_use = g->snap.bytes != NULL && s->now < g->snap_used_ns + SHOAL_S;
    struct shoal_buf aside = { 0 };
    struct shoal_raft_snapshot at;
    struct shoal_view bytes;

    SHOAL_ASSERT(g->snapshot_index <= g->applied); /* T1 */
    if (g->snapshot_saving || g->applied <= g->snapshot_index || !g->founded ||
        s->actions->count + 8 > SHOAL_SCHED_ACTIONS_MAX)
        return;
    if (snapshot_encode(s, g, &aside, &at) != SHOAL_OK) {
        shoal_buf_deinit(&aside);
        return; /* no memory: tried again with the next entry */
    }
    if (in_use) {
        bytes = sched_pool_copy(s, shoal_buf_view(&aside));
        shoal_buf_deinit(&aside);
        if (bytes.len == 0)
            return;
    } else {
        shoal_buf_deinit(&g->snap);
        g->snap = aside;
        g->snap_at = at;
        g->snap_used_ns = s->now;
        bytes = shoal_buf_view(&g->snap);
    }
    save(s, g, bytes, &at);
}

bool sched_store_park(struct shoal_sched *s, struct sched_group *g, const struct park_mark *mark, uint64_t seq)
{
    uint8_t *bytes = sched_pool(s, SHOAL_SCHED_CONFIG_BYTES_MAX, 0);
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_SCHED_CONFIG_BYTES_MAX);
    struct shoal_buf aside = { 0 };
    struct shoal_raft_status status;
    struct shoal_raft_snapshot at;
    struct shoal_view snapshot;
    struct shoal_sched_action *action;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(g->lead == NULL);    /* Q1 */
    if (bytes == NULL || !sched_park_mark_encode(mark, &w) || snapshot_encode(s, g, &aside, &at) != SHOAL_OK) {
        shoal_buf_deinit(&aside);
        return false;
    }
    snapshot = sched_pool_copy(s, shoal_buf_view(&aside));
    shoal_buf_deinit(&aside);
    if (snapshot.len == 0)
        return false;
    shoal_raft_status(g->raft, &status);
    SHOAL_ASSERT(at.index == status.last && status.commit == status.last); /* Q1 of sched_park.c */
    action = sched_act(s, SHOAL_SCHED_PERSIST);
    action->u.persist.group = g->id;
    action->u.persist.mark = (struct shoal_sched_mark){ .seq = seq, .index = at.index, .term = at.term };
    action->u.persist.has_snapshot = true;
    action->u.persist.snapshot.index = at.index;
    action->u.persist.snapshot.term = at.term;
    action->u.persist.snapshot.bytes = snapshot;
    action->u.persist.has_hard = true;
    action->u.persist.hard.term = status.term;
    action->u.persist.hard.vote_node = status.vote.node;
    action->u.persist.hard.vote_store = status.vote.store;
    action->u.persist.hard.config = shoal_writer_view(&w);
    return true;
}

/* A group that was parked and is awake: a crash from now on must find it so. */
static void unpark(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    const struct shoal_raft_hard_state hard = { .commit = sched_hard_commit(event->u.restore.hard.config) };
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_PERSIST);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(event->kind == SHOAL_SCHED_RESTORE);
    action->u.persist.group = event->u.restore.group;
    action->u.persist.has_hard = true;
    action->u.persist.hard = event->u.restore.hard;
    action->u.persist.hard.config = hard_config(s, &hard);
}

bool sched_snapshot_stored(struct shoal_sched *s, struct sched_group *g, struct shoal_sched_mark mark)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_SNAPSHOT_READY };

    if (!(mark.seq & SNAPSHOT_MARK))
        return false;
    g->snapshot_saving = false;
    event.u.snapshot_ready.index = mark.index;
    /* INVALID: a newer one was installed meanwhile, nothing is left to forget. */
    if (sched_group_step(s, g, &event) != SHOAL_OK)
        g->snapshot_index = g->snapshot_index > mark.index ? g->snapshot_index : mark.index;
    return true;
}

/* ---- To followers ---- */

static void give(struct shoal_sched *s, struct sched_group *g, const struct sched_need *need)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_SNAPSHOT_CHUNK };
    uint64_t offset = need->offset;
    size_t len;

    SHOAL_ASSERT(g->raft != NULL);
    if (g->snap.bytes != NULL && (need->index == 0 || need->index != g->snap_at.index) &&
        s->now >= g->snap_used_ns + SHOAL_S)
        shoal_buf_deinit(&g->snap); /* nobody is in the middle of it: a newer one */
    if (g->snap.bytes == NULL && snapshot_encode(s, g, &g->snap, &g->snap_at) != SHOAL_OK) {
        shoal_buf_deinit(&g->snap);
        return;
    }
    if (need->index != g->snap_at.index || offset > g->snap.len)
        offset = 0;
    len = g->snap.len - offset;
    if (len > SHOAL_RAFT_CHUNK_BYTES_MAX)
        len = SHOAL_RAFT_CHUNK_BYTES_MAX;
    event.u.chunk.peer = need->peer;
    event.u.chunk.snapshot = g->snap_at;
    event.u.chunk.offset = offset;
    event.u.chunk.total = g->snap.len;
    event.u.chunk.bytes = shoal_view_of(g->snap.bytes + offset, len);
    g->snap_used_ns = s->now;
    if (offset == 0)
        s->stats.snapshots_sent++;
    /* INVALID: the kept one is older than what the log still holds; the next need makes a new one. */
    if (sched_group_step(s, g, &event) != SHOAL_OK)
        shoal_buf_deinit(&g->snap);
}

void sched_snapshot_give(struct shoal_sched *s, struct sched_group *g)
{
    struct sched_need needs[SCHED_NEEDS_MAX];
    unsigned count = g->need_count;

    SHOAL_ASSERT(g->need_count <= SCHED_NEEDS_MAX);
    memcpy(needs, g->needs, sizeof(needs));
    g->need_count = 0;
    for (unsigned i = 0; i < count; i++)
        give(s, g, &needs[i]);
}

/* ---- From a leader ---- */

void sched_snapshot_part(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_action *action)
{
    SHOAL_ASSERT(action->kind == SHOAL_RAFT_ACTION_SNAPSHOT_PART);
    if (action->u.part.offset == 0) {
        shoal_buf_deinit(&g->part);
        g->part_index = action->u.part.snapshot.index;
    }
    if (g->part_index != action->u.part.snapshot.index || g->part.len != action->u.part.offset ||
        shoal_buf_append(&g->part, action->u.part.bytes.bytes, action->u.part.bytes.len) != SHOAL_OK) {
        /* Without memory for it this replica cannot go on; it says so instead of holding half a state. */
        sched_group_stop(s, g, "a snapshot from its leader did not fit");
        s->stats.groups_refused_full++;
    }
}

static void restore_machine(struct shoal_sched *s, struct sched_group *g, struct shoal_view bytes, uint64_t index,
                            uint64_t term)
{
    struct group_head head;
    struct shoal_job *job = NULL;
    enum shoal_err err = sched_head_decode(bytes, &head);

    SHOAL_ASSERT(g->mesh_is == (g->mesh != NULL));
    if (err == SHOAL_OK && g->mesh_is)
        err = shoal_mesh_decode(g->mesh, head.machine);
    else if (err == SHOAL_OK && head.machine.len > 0)
        err = shoal_job_restore(&job, head.machine);
    if (err != SHOAL_OK) {
        s->stats.digest_mismatches++;
        sched_group_stop(s, g, "a snapshot, of its leader or of its store, does not decode");
        return;
    }
    if (!g->mesh_is) {
        shoal_job_destroy(g->job);
        g->job = job;
    } else {
        s->copy_dirty = true;
    }
    g->spec_hash = head.spec_hash;
    g->bundle_hash = head.bundle_hash;
    g->target = head.target;
    g->refused = head.refused;
    g->record_known = true;
    g->founded = true;
    g->found_durable = true;
    g->config_index = head.config_index;
    g->applied = index;
    g->applied_term = term;
    g->snapshot_index = index;
    g->log_bytes = 0;
    sched_index_dirty(s, g);
    g->complete_ns = SCHED_NEVER;
    if (g->job != NULL)
        sched_bundle_want(s, g);
}

/* ---- Restore at start ---- */

static enum shoal_err restored_config(const struct shoal_sched_event *event, struct shoal_raft_restored *restored,
                                      struct shoal_raft_config *founding)
{
    struct group_head head;
    enum shoal_err err;

    SHOAL_ASSERT(event->kind == SHOAL_SCHED_RESTORE);
    if (event->u.restore.has_snapshot) {
        err = sched_head_decode(event->u.restore.snapshot.bytes, &head);
        if (err == SHOAL_OK)
            err = shoal_raft_config_decode(head.config, founding);
        restored->has_snapshot = true;
        restored->snapshot.index = event->u.restore.snapshot.index;
        restored->snapshot.term = event->u.restore.snapshot.term;
        restored->snapshot.config = *founding;
        founding->joint = false;
        return err;
    }
    if (event->u.restore.entry_count > 0 && event->u.restore.entries[0].index == 1 &&
        event->u.restore.entries[0].kind == SHOAL_ENTRY_CONFIG)
        return shoal_raft_config_decode(event->u.restore.entries[0].bytes, founding);
    return SHOAL_ERR_NOT_FOUND; /* a joiner that had got nothing yet: nothing is lost with it */
}

/* Bits of a joint configuration are only valid in one: options take the plain voters. */
static void plain_config(struct shoal_raft_config *config)
{
    SHOAL_ASSERT(config->count <= SHOAL_GROUP_NODES_MAX);
    for (unsigned i = 0; i < config->count; i++)
        config->members[i].bits = config->members[i].bits & SHOAL_RAFT_LEARNER ? SHOAL_RAFT_LEARNER : SHOAL_RAFT_VOTER;
    config->joint = false;
}

static enum shoal_err make_entries(const struct shoal_sched_event *event, struct shoal_entry **entries)
{
    SHOAL_ASSERT(event->u.restore.entry_count == 0 || event->u.restore.entries != NULL);
    for (size_t i = 0; i < event->u.restore.entry_count; i++) {
        const struct shoal_sched_entry *from = &event->u.restore.entries[i];

        if (from->kind >= SHOAL_ENTRY_KINDS)
            return SHOAL_ERR_MALFORMED;
        entries[i] = shoal_entry_create_at(from->term, from->index, (enum shoal_entry_kind)from->kind, from->bytes);
        if (entries[i] == NULL)
            return SHOAL_ERR_FULL;
    }
    return SHOAL_OK;
}

static void apply_restored(struct shoal_sched *s, struct sched_group *g)
{
    const struct shoal_raft_event nothing = { .kind = SHOAL_RAFT_EVENT_TIMER };
    struct shoal_raft_actions *actions = &s->raft_actions;
    uint64_t commit = shoal_raft_commit(g->raft);

    SHOAL_ASSERT(g->raft != NULL);
    (void)nothing;
    if (commit <= g->applied)
        return;
    /* As if the raft had just said so. */
    actions->count = 1;
    actions->wants_reserve = false;
    actions->wants_snapshot = false;
    actions->list[0].kind = SHOAL_RAFT_ACTION_COMMIT;
    actions->list[0].u.commit.index = commit;
    sched_carry_out(s, g);
}

static enum shoal_err restore_group(struct shoal_sched *s, const struct shoal_sched_event *event, struct sched_group *g,
                                    struct shoal_entry **entries)
{
    struct shoal_raft_restored restored = { 0 };
    struct shoal_raft_options options;
    enum shoal_err err;

    SHOAL_ASSERT(g->raft == NULL); /* once */
    sched_raft_options(s, &options);
    err = restored_config(event, &restored, &options.config);
    if (err == SHOAL_OK)
        err = make_entries(event, entries);
    if (err != SHOAL_OK)
        return err;
    plain_config(&options.config);
    if (event->u.restore.has_hard) {
        restored.hard.term = event->u.restore.hard.term;
        restored.hard.vote.node = event->u.restore.hard.vote_node;
        restored.hard.vote.store = event->u.restore.hard.vote_store;
        restored.hard.commit = sched_hard_commit(event->u.restore.hard.config);
    }
    options.campaign_from_ns = sched_park_campaign(s, g->id);
    restored.entries = entries;
    restored.count = event->u.restore.entry_count;
    err = shoal_raft_restore(&g->raft, &options, &restored);
    if (err != SHOAL_OK)
        return err;
    g->found_durable = true;
    if (event->u.restore.has_snapshot && event->u.restore.snapshot.index > 0) /* 0: of a witness */
        restore_machine(s, g, event->u.restore.snapshot.bytes, event->u.restore.snapshot.index,
                        event->u.restore.snapshot.term);
    apply_restored(s, g);
    return SHOAL_OK;
}

/* A holder of a founding record that nobody has committed yet: it knows the body, for retries and for completing. */
static void know_record(struct shoal_sched *s, struct sched_group *g)
{
    struct founding_record record;
    struct shoal_view bytes = sched_group_record(g);

    SHOAL_ASSERT(g->raft != NULL);
    if (g->mesh_is || g->record_known || bytes.len == 0 || sched_record_decode(bytes, &record) != SHOAL_OK)
        return;
    g->record_known = true;
    g->spec_hash = record.ticket.spec_hash;
    g->bundle_hash = record.bundle_hash;
    g->target = record.ticket.target;
    g->complete_ns = s->now + SHOAL_S;
    sched_bundle_want(s, g);
}

enum shoal_err sched_on_restore(struct shoal_sched *s, const struct shoal_sched_event *event)
{
    struct shoal_job_id id = event->u.restore.group;
    size_t count = event->u.restore.entry_count;
    struct shoal_entry **entries;
    struct shoal_job_id kept;
    enum parked_how how;
    struct sched_group *g;
    enum shoal_err err;

    SHOAL_ASSERT(event->kind == SHOAL_SCHED_RESTORE);
    if (sched_gone_restore(s, event))
        return SHOAL_OK;
    if (sched_archive_is_kept(id, &kept)) {
        sched_archive_restore(s, event, kept);
        return SHOAL_OK;
    }
    how = sched_park_restore(s, event);
    if (how == PARKED_STAYS)
        return SHOAL_OK;
    err = sched_group_admit(s, id, &g);
    if (err != SHOAL_OK) {
        if (how == PARKED_COMES)
            sched_park_fails(s, id);
        return how == PARKED_COMES ? SHOAL_OK : err;
    }
    entries = calloc(count + 1, sizeof(*entries));
    err = entries == NULL ? SHOAL_ERR_FULL : restore_group(s, event, g, entries);
    for (size_t i = 0; entries != NULL && i < count; i++)
        shoal_entry_unref(entries[i]);
    free(entries);
    if (err != SHOAL_OK) {
        sched_group_remove(s, g);
        if (how == PARKED_COMES) {
            sched_park_fails(s, id);
            return err;
        }
        if (err != SHOAL_ERR_NOT_FOUND)
            return err;
        sched_act(s, SHOAL_SCHED_REMOVE_GROUP)->u.group.group = id;
        return SHOAL_OK;
    }
    know_record(s, g);
    sched_index_dirty(s, g);
    g->role_changed = true;
    sched_group_told(s, g);
    sched_group_dirty(s, g);
    sched_group_rearm(s, g);
    if (how == PARKED_COMES) {
        sched_gone_set_floor(s, g);
        unpark(s, event);
        sched_park_came(s, g);
        sched_requests_led(s, id, (struct shoal_node_id){ { 0 } });
    }
    return SHOAL_OK;
}

void sched_on_restored(struct shoal_sched *s)
{
    s->restored = true;
    sched_index_restored(s);
    for (size_t i = 0; i < s->group_count; i++)
        sched_gone_set_floor(s, s->groups[i]);
    if (s->mesh == NULL || s->copy_version > 0)
        s->copy_dirty = s->copy_dirty || sched_group_find(s, (struct shoal_job_id){ { 0 } }) != NULL;
}
