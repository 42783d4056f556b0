/* Leaving and entering epochs (PROTOCOLS 7 and 12; the rules I1 to I3 of shoal/worker.h).
 *
 *   revoke word rises --> every wait leaves --> CLOSED (applied, complete) --> EPOCH with D --> D applied by everyone
 *
 * An epoch is closed under `lock` by whoever sees the revoke first, the caller's thread or the library thread; after
 * that no word of it is written. Partial sums are kept: the next epoch asks only for what is missing. */
#include <stddef.h>
#include <string.h>

#include "comm.h"

#include "shoal/banned.h"

bool epoch_is_revoked(const struct shoal_comm *comm)
{
    return !atomic_load_explicit(&comm->open, memory_order_acquire) || atomic_load(&comm->stop) ||
           atomic_load_explicit(&comm->page->revoked, memory_order_acquire) >= comm->epoch.word;
}

static void report_closed(struct shoal_comm *comm, struct shoal_epoch id)
{
    comm->closed = (struct shoal_worker_closed){ .epoch = id,
                                                 .applied_step = atomic_load(&comm->applied),
                                                 .complete_step = atomic_load(&comm->complete) };
    if (id.e == comm->epoch.id.e && id.k == comm->epoch.id.k)
        comm->closed.broken = fabric_lost(comm);
    agent_tell(comm, FACT_CLOSED);
}

void epoch_close_locked(struct shoal_comm *comm)
{
    if (!atomic_load(&comm->open))
        return;
    atomic_store(&comm->open, false);
    comm->closed_ns = comm_now_ns();
    if (!comm->released) /* all is over then, and nobody counts on me */
        report_closed(comm, comm->epoch.id);
}

void epoch_close(struct shoal_comm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    epoch_close_locked(comm);
    (void)pthread_mutex_unlock(&comm->lock);
}

static int find_member(const struct shoal_worker_epoch *epoch, uint64_t worker_id)
{
    for (uint32_t i = 0; i < epoch->member_count; i++)
        if (epoch->members[i].worker_id == worker_id)
            return (int)i;
    return -1;
}

void epoch_check_locked(struct shoal_comm *comm)
{
    uint64_t revoked = atomic_load(&comm->page->revoked);

    if (atomic_load(&comm->open) && (revoked >= comm->epoch.word || atomic_load(&comm->stop)))
        epoch_close_locked(comm);
    if (!comm->next_valid || revoked < shoal_epoch_word(comm->next->epoch))
        return;
    /* Revoked before I entered: a member that refuses to enter reports, too. */
    comm->next_valid = false;
    comm->seen_epoch = shoal_epoch_word(comm->next->epoch);
    if (find_member(comm->next, comm->hello.worker_id) >= 0)
        report_closed(comm, comm->next->epoch);
}

void epoch_range(const struct shoal_comm *comm, uint64_t step, uint32_t v_count, uint32_t rank, uint32_t *begin,
                 uint32_t *end)
{
    const struct epoch *epoch = &comm->epoch;

    if (step != epoch->decided_step + 1) {
        shoal_balanced_range(v_count, epoch->size, rank, begin, end);
        return;
    }
    *begin = epoch->peers[rank].v_begin < v_count ? epoch->peers[rank].v_begin : v_count;
    *end = epoch->peers[rank].v_end < v_count ? epoch->peers[rank].v_end : v_count;
}

/* The ranges of the first step must give each v to exactly one member. */
static bool ranges_cover(const struct shoal_worker_epoch *next, uint32_t virtual_workers)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < next->member_count; i++) {
        const struct shoal_rank_member *a = &next->members[i];

        if (a->v_begin > a->v_end || a->v_end > virtual_workers)
            return false;
        total += a->v_end - a->v_begin;
        for (uint32_t j = 0; j < i; j++) {
            const struct shoal_rank_member *b = &next->members[j];

            if (a->v_begin < b->v_end && b->v_begin < a->v_end)
                return false;
        }
    }
    return total == virtual_workers;
}

static void place_hosts(struct shoal_comm *comm, const struct shoal_worker_epoch *next)
{
    struct epoch *epoch = &comm->epoch;

    for (uint32_t i = 0; i < epoch->size; i++) {
        struct peer *peer = &epoch->peers[i];
        uint32_t first = 0;

        while (!shoal_node_id_equal(next->members[first].node, next->members[i].node))
            first++;
        if (first == i) {
            peer->host = epoch->hosts;
            epoch->leaders[epoch->hosts++] = i;
        } else {
            peer->host = epoch->peers[first].host;
        }
    }
    epoch->host = epoch->peers[epoch->rank].host;
    for (uint32_t i = 0; i < epoch->size; i++) {
        if (epoch->peers[i].host != epoch->host)
            continue;
        if (i == epoch->rank)
            epoch->local_index = epoch->local_count;
        epoch->local[epoch->local_count++] = i;
    }
}

static void build_epoch(struct shoal_comm *comm, const struct shoal_worker_epoch *next, uint32_t rank)
{
    struct epoch *epoch = &comm->epoch;

    memset(epoch, 0, sizeof(*epoch));
    epoch->id = next->epoch;
    epoch->word = shoal_epoch_word(next->epoch);
    epoch->rank = rank;
    epoch->size = next->member_count;
    epoch->decided_step = next->decided_step;
    epoch->source = next->holder == 0 ? -1 : find_member(next, next->holder);
    epoch->donor = next->donor == 0 ? -1 : find_member(next, next->donor);
    for (uint32_t i = 0; i < epoch->size; i++) {
        const struct shoal_rank_member *from = &next->members[i];
        struct peer *peer = &epoch->peers[i];

        peer->worker_id = from->worker_id;
        peer->node = from->node;
        peer->slot = from->slot;
        peer->v_begin = from->v_begin;
        peer->v_end = from->v_end;
        peer->has_state = from->has_state;
        memcpy(peer->token, from->token, sizeof(peer->token));
        peer->address_len = from->address_len;
        memcpy(peer->address, from->address, from->address_len);
        if (!from->has_state && epoch->donor >= 0)
            epoch->joiners++;
    }
    place_hosts(comm, next);
}

static enum shoal_err map_peers(struct shoal_comm *comm)
{
    struct epoch *epoch = &comm->epoch;

    for (uint32_t i = 0; i < epoch->local_count; i++) {
        struct peer *peer = &epoch->peers[epoch->local[i]];

        peer->words = comm->arena.words[peer->slot];
        peer->region = arena_region(&comm->arena, peer->slot);
        if (peer->region == NULL)
            return comm_fail(comm, SHOAL_ERR_FULL, "cannot map the arena region of worker %llu",
                             (unsigned long long)peer->worker_id);
    }
    return SHOAL_OK;
}

/* From here on others may read my words in this epoch. Under lock. */
static void reset_words(struct shoal_comm *comm)
{
    struct arena_words *words = arena_my_words(&comm->arena);

    words->worker_id = comm->hello.worker_id;
    words->stride = comm->arena.layout.stride;
    atomic_store(&words->contributed, 0);
    atomic_store(&words->reduced, 0);
    atomic_store(&words->completed, 0);
    atomic_store(&words->world_in, 0);
    atomic_store(&words->world_completed, 0);
    atomic_store(&words->op, 0);
    atomic_store(&words->world_op, 0);
    atomic_store(&words->state_given, 0);
    atomic_store(&words->state_taken, 0);
    atomic_store(&words->early, 0);
    atomic_store(&words->early_void, 0);
    atomic_store(&words->updated, 0);
    atomic_store(&words->epoch, comm->epoch.word);
    comm->op = comm->op_number = 0;
    memset(words->said, 0, sizeof(words->said));
    comm->state_sequence = 0;
    comm->chunk_valid = false;
}

/* Take `next` as my epoch. NOT_FOUND: I am not in it. STALE: it is revoked already. */
static enum shoal_err adopt(struct shoal_comm *comm)
{
    struct shoal_worker_epoch *next = comm->next;
    enum shoal_err err = SHOAL_OK;
    int rank;

    fabric_leave(comm);
    (void)pthread_mutex_lock(&comm->fabric_lock);
    (void)pthread_mutex_lock(&comm->lock);
    epoch_check_locked(comm);
    if (!comm->next_valid) {
        err = SHOAL_ERR_STALE;
        goto unlock;
    }
    comm->next_valid = false;
    comm->seen_epoch = shoal_epoch_word(next->epoch);
    rank = find_member(next, comm->hello.worker_id);
    if (rank < 0) {
        comm->epoch.size = 0;
        err = SHOAL_ERR_NOT_FOUND;
        goto unlock;
    }
    build_epoch(comm, next, (uint32_t)rank);
    comm->agent.known &= ~(uint32_t)FACT_UNHEARD;
    for (uint32_t i = 0; i < SHOAL_RANKS_WORDS; i++)
        atomic_store(&comm->lost_links.words[i], 0);
    comm->agent.unsent &= comm->agent.known;
    records_ack(&comm->records, next->records_acked);
    comm->records.sent = comm->records.acked;
    atomic_store(&comm->words->epoch_word, comm->epoch.word);
    atomic_store(&comm->open, true);
    if (!ranges_cover(next, comm->plan.virtual_workers))
        err = comm_fail(comm, SHOAL_ERR_INVALID, "epoch %u.%u does not give each of %u mini-batches to one member",
                        next->epoch.e, next->epoch.k, comm->plan.virtual_workers);
    else if (next->donor != 0 && comm->epoch.donor < 0)
        err =
            comm_fail(comm, SHOAL_ERR_INVALID, "epoch %u.%u names a donor outside of it", next->epoch.e, next->epoch.k);
    else
        err = map_peers(comm);
    if (err == SHOAL_OK)
        reset_words(comm);
unlock:
    (void)pthread_mutex_unlock(&comm->lock);
    (void)pthread_mutex_unlock(&comm->fabric_lock);
    if (err == SHOAL_OK) {
        wait_set_spin(comm);
        fault_point(&comm->fault, FAULT_ENTERING, comm->epoch.decided_step);
        err = fabric_enter(comm);
    }
    return err;
}

/* The source is on this host: show its slices, copy its commit block. It keeps both until I have contributed the next
 * step (I3 of arena.h), whether it has entered this epoch yet or not. */
static enum shoal_err fetch_local(struct shoal_comm *comm)
{
    const struct peer *source = &comm->epoch.peers[comm->epoch.source];
    struct arena *arena = &comm->arena;
    enum shoal_err err = SHOAL_OK;

    if (source->words->committed_step != comm->epoch.decided_step)
        return comm_fail(comm, SHOAL_ERR_INVALID, "worker %llu holds the result of step %llu, not of %llu",
                         (unsigned long long)source->worker_id, (unsigned long long)source->words->committed_step,
                         (unsigned long long)comm->epoch.decided_step);
    memcpy(arena_mine(arena) + arena->layout.commit_at, source->region + arena->layout.commit_at,
           arena->layout.block_bytes);
    if (arena->layout.vector_bytes > 0) {
        struct arena_part parts[SHOAL_RANKS_MAX];
        uint32_t count = arena_said_map(arena, source->slot, parts);

        err = arena_compose(arena, parts, count, &comm->msg);
    }
    return err;
}

static enum shoal_err fetch(struct shoal_comm *comm)
{
    uint64_t decided = comm->epoch.decided_step;
    enum shoal_err err;

    fault_point(&comm->fault, FAULT_FETCHING, decided);
    if (comm->epoch.source < 0)
        return comm_fail(comm, SHOAL_ERR_INVALID,
                         "step %llu is decided, I lack its result, and nobody is named who has it",
                         (unsigned long long)decided);
    err = comm->epoch.peers[comm->epoch.source].region != NULL ? fetch_local(comm) : fabric_fetch(comm);
    if (err != SHOAL_OK)
        return err;
    arena_my_words(&comm->arena)->committed_step = decided;
    (void)pthread_mutex_lock(&comm->lock);
    epoch_check_locked(comm);
    if (atomic_load(&comm->open))
        atomic_store(&comm->complete, decided); /* revoked meanwhile: what I copied may be newer */
    else
        err = SHOAL_ERR_RANK_LOST;
    (void)pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->words->complete_step, atomic_load(&comm->complete));
    return err;
}

static void restart_at(struct shoal_comm *comm, uint64_t step)
{
    (void)pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->applied, step);
    atomic_store(&comm->complete, step);
    (void)pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->words->applied_step, step);
    atomic_store(&comm->words->complete_step, step);
    step_reset(comm);
}

/* I3 of shoal/worker.h: what this member must do to have applied D. */
static enum shoal_err settle_state(struct shoal_comm *comm, struct shoal_comm_entry *entry)
{
    const struct epoch *epoch = &comm->epoch;
    uint64_t decided = epoch->decided_step;
    uint64_t applied = atomic_load(&comm->applied);
    enum shoal_err err;

    bool has_state = epoch->peers[epoch->rank].has_state && !comm->fresh;

    entry->state = SHOAL_STATE_KEEP;
    if (entry->snapshot_path[0] != '\0' || (!has_state && epoch->donor < 0)) {
        entry->state = SHOAL_STATE_LOAD;
        comm->stateless = false;
        comm->fresh = false;
        restart_at(comm, decided);
        return SHOAL_OK;
    }
    if (!has_state || comm->stateless) {
        if (epoch->donor < 0 || epoch->donor == (int)epoch->rank)
            return comm_fail(comm, SHOAL_ERR_INVALID, "epoch %u.%u has no donor for me", epoch->id.e, epoch->id.k);
        entry->state = SHOAL_STATE_TAKE;
        comm->stateless = true;
        comm->fresh = false;
        restart_at(comm, 0);
        return SHOAL_OK;
    }
    if (applied == decided)
        return SHOAL_OK;
    if (applied + 1 != decided)
        return comm_fail(comm, SHOAL_ERR_INVALID, "epoch %u.%u decides step %llu, but I have applied step %llu",
                         epoch->id.e, epoch->id.k, (unsigned long long)decided, (unsigned long long)applied);
    if (atomic_load(&comm->complete) != decided) {
        err = fetch(comm);
        if (err != SHOAL_OK)
            return err;
    }
    step_adopt(comm, decided);
    entry->apply_result = 1;
    return SHOAL_OK;
}

static void describe(const struct shoal_comm *comm, struct shoal_comm_entry *entry)
{
    const struct epoch *epoch = &comm->epoch;

    entry->event = SHOAL_EVENT_ENTERED;
    entry->e = epoch->id.e;
    entry->k = epoch->id.k;
    entry->rank = epoch->rank;
    entry->size = epoch->size;
    entry->decided_step = epoch->decided_step;
    entry->joiners = epoch->joiners;
    entry->donor = epoch->donor < 0 ? 0 : epoch->peers[epoch->donor].worker_id;
    entry->give = epoch->joiners > 0 && epoch->donor == (int)epoch->rank ? 1 : 0;
    entry->records_acked = comm->records.acked;
    entry->call = comm->plan.call;
    entry->hosts = epoch->hosts;
}

/* An event other than an epoch. Under lock. */
static bool other_event(struct shoal_comm *comm, struct shoal_comm_entry *entry)
{
    if (atomic_load(&comm->stop)) {
        entry->event = comm->released ? SHOAL_EVENT_RELEASED : SHOAL_EVENT_STOPPED;
        entry->reason = comm->stop_message.reason;
        memcpy(entry->text, comm->stop_message.text, sizeof(entry->text));
        return true;
    }
    if (comm->write_final) {
        comm->write_final = false;
        entry->event = SHOAL_EVENT_WRITE_FINAL;
        return true;
    }
    if (comm->call_valid) {
        entry->event = SHOAL_EVENT_CALL;
        return true;
    }
    return false;
}

static enum shoal_err enter_next(struct shoal_comm *comm, struct shoal_comm_entry *entry)
{
    enum shoal_err err;

    memcpy(entry->snapshot_path, comm->next->snapshot_path, sizeof(entry->snapshot_path));
    atomic_store(&comm->words->activity, SHOAL_ACTIVITY_ENTERING);
    err = adopt(comm);
    if (err == SHOAL_OK)
        err = settle_state(comm, entry);
    if (err == SHOAL_OK)
        describe(comm, entry);
    return err;
}

enum shoal_err shoal_comm_enter(struct shoal_comm *comm, int timeout_ms, struct shoal_comm_entry *entry)
{
    uint64_t deadline_ns = comm_deadline_ns(timeout_ms);
    enum shoal_err err = SHOAL_OK;

    memset(entry, 0, sizeof(*entry));
    if (!comm->planned)
        return comm_fail(comm, SHOAL_ERR_INVALID, "enter before ready");
    (void)pthread_mutex_lock(&comm->lock);
    if (!comm->finished)
        epoch_close_locked(comm); /* the caller leaves it */
    comm->main_waits = true;
    (void)pthread_mutex_unlock(&comm->lock);
    op_drain(comm);
    for (;;) {
        bool next;
        bool other;

        (void)pthread_mutex_lock(&comm->lock);
        other = other_event(comm, entry);
        next = comm->next_valid;
        (void)pthread_mutex_unlock(&comm->lock);
        if (other)
            break;
        if (next) {
            err = enter_next(comm, entry);
            if (err != SHOAL_ERR_STALE && err != SHOAL_ERR_NOT_FOUND && err != SHOAL_ERR_RANK_LOST)
                break;
            err = SHOAL_OK;
            memset(entry, 0, sizeof(*entry));
            continue;
        }
        if (comm_now_ns() >= deadline_ns)
            break; /* TIMEOUT */
        agent_wait(comm, deadline_ns);
        fabric_try_turn(comm);
    }
    (void)pthread_mutex_lock(&comm->lock);
    comm->main_waits = false;
    (void)pthread_mutex_unlock(&comm->lock);
    if (err != SHOAL_OK)
        epoch_close(comm);
    return err;
}
