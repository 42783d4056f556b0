/* The invariants, checked after every event, in true time.
 *
 * C1. One leader per (group, term), and whoever begins to lead holds every entry that was committed (Raft 5.2, 5.4).
 * C2. An index that was committed keeps its entry on every replica, and no replica's commit goes back.
 * C3. Replicas that have applied the same index have the same digest.
 * C4. An ended job keeps its end; its epochs only rise.
 * C5. A slot has one process; of a job's drivers, and of the attempts of its script, one runs.
 * C8. A task of an array that is DONE or FAILED anywhere stays so everywhere, and runs no more; no two processes of one
 *     task run at one time.
 * C6. At the end, all faults healed: everyone sees everyone, every group has a leader, three guardians (as many as
 *     there are hosts) and equal replicas, every job that was acknowledged has finished, every request of an agent that
 *     lived on was answered once.
 * C7. At the end a job has either its group or its final record with its blobs, on three hosts (as many as there are);
 *     one that was deleted has neither, nor a summary in gossip, and no record is left that is not final.
 * C9. At the end every user of the mesh who was acknowledged is known everywhere.
 * What the disks hold is checked in sim_durable.c, what readers are told in sim_client.c. */
#include "shoal/sched_look.h"
#include "shoal/sched_ticket.h"
#include "shoal/job_facts.h"
#include "sim.h"
#include "sim_service.h"

#include "shoal/banned.h"

#define SUBMIT_ANSWER_NS (32 * SHOAL_S) /* the agent's own bound is 30 s, on its own clock */

static uint64_t lineage_of(uint64_t term) { return term >> 32; }

static struct sim_group *group_of(struct sim *sim, struct shoal_job_id id, uint64_t lineage)
{
    uint64_t key = sim_key_job(id) + lineage * 0x9e3779b97f4a7c15u;
    uint64_t at = sim_map_find(&sim->group_index, key);

    if (at != 0)
        return &sim->groups[at - 1];
    sim->groups = sim_grow(sim->groups, &sim->group_cap, sim->group_count + 1, sizeof(*sim->groups));
    sim->groups[sim->group_count].id = id;
    sim->groups[sim->group_count].lineage = lineage;
    sim_map_put(&sim->group_index, key, sim->group_count + 1);
    return &sim->groups[sim->group_count++];
}

static void group_need(struct sim_group *group, uint64_t index)
{
    size_t cap = group->cap;

    group->committed = sim_grow(group->committed, &cap, index, sizeof(*group->committed));
    cap = group->cap;
    group->digests = sim_grow(group->digests, &cap, index, sizeof(*group->digests));
    group->cap = cap;
}

static struct sim_replica *replica_of(struct sim_host *host, struct shoal_job_id id)
{
    struct sim_replica *replica;

    for (size_t i = 0; i < host->replica_count; i++)
        if (shoal_job_id_equal(host->replicas[i].id, id))
            return &host->replicas[i];
    host->replicas = realloc(host->replicas, (host->replica_count + 1) * sizeof(*host->replicas));
    SHOAL_ASSERT(host->replicas != NULL);
    replica = &host->replicas[host->replica_count++];
    *replica = (struct sim_replica){ .id = id };
    return replica;
}

static const char *name_of(struct shoal_job_id id, char text[SHOAL_JOB_ID_TEXT_BYTES])
{
    shoal_job_id_text(id, text);
    return shoal_job_id_is_mesh(id) ? "the mesh" : text;
}

/* ---- the log ---- */

static void log_drop_from(struct sim_replica *replica, uint64_t index)
{
    if (index <= replica->first)
        replica->count = 0;
    else if (index < replica->first + replica->count)
        replica->count = (size_t)(index - replica->first);
}

static void log_drop_to(struct sim_replica *replica, uint64_t index)
{
    size_t gone = index < replica->first ? 0 : (size_t)(index - replica->first + 1);

    if (gone > replica->count)
        gone = replica->count;
    if (gone == 0)
        return;
    memmove(replica->log, replica->log + gone, (replica->count - gone) * sizeof(*replica->log));
    replica->count -= gone;
    replica->first += gone;
}

static void log_add(struct sim_replica *replica, const struct shoal_sched_entry *entry)
{
    if (replica->count == 0)
        replica->first = entry->index;
    log_drop_from(replica, entry->index);
    if (replica->first + replica->count != entry->index)
        return; /* the disk says so when it is asked to write it */
    replica->log = sim_grow(replica->log, &replica->cap, replica->count + 1, sizeof(*replica->log));
    replica->log[replica->count++] =
        (struct sim_log_mark){ .term = entry->term, .hash = sim_hash_bytes(entry->bytes) + entry->kind };
}

void sim_check_persist(struct sim_host *host, const struct shoal_sched_action *action)
{
    struct sim_replica *replica = replica_of(host, action->u.persist.group);

    if (action->u.persist.has_snapshot)
        log_drop_to(replica, action->u.persist.snapshot.index);
    if (action->u.persist.truncate_from != 0) {
        if (replica->used && action->u.persist.truncate_from <= replica->commit)
            sim_fail(host->sim, "%s drops entries from %llu on, but %llu are committed", host->name,
                     (unsigned long long)action->u.persist.truncate_from, (unsigned long long)replica->commit);
        log_drop_from(replica, action->u.persist.truncate_from);
    }
    for (size_t i = 0; i < action->u.persist.entry_count; i++) {
        sim_check_entry(host, action->u.persist.group, &action->u.persist.entries[i]);
        log_add(replica, &action->u.persist.entries[i]);
    }
}

void sim_check_restored(struct sim_host *host, const struct sim_disk_group *group)
{
    struct sim_replica *replica = replica_of(host, group->id);

    replica->count = 0;
    for (size_t i = 0; i < group->entry_count; i++)
        log_add(replica, &group->entries[i]);
}

static void replica_forget(struct sim_replica *replica)
{
    replica->used = false;
    replica->commit = replica->applied = replica->term = replica->epoch = 0;
    replica->count = 0;
}

/* The agent ends: what it believed is gone. */
void sim_check_forget(struct sim_host *host)
{
    for (size_t i = 0; i < host->replica_count; i++)
        replica_forget(&host->replicas[i]);
}

/* Not a guardian any more; it may become one again, from nothing. */
void sim_check_removed(struct sim_host *host, struct shoal_job_id group) { replica_forget(replica_of(host, group)); }

/* ---- leaders ---- */

void sim_check_led(struct sim_host *host, struct shoal_job_id id, uint64_t term)
{
    struct sim_group *group = group_of(host->sim, id, lineage_of(term));
    struct shoal_sched_group_status status;
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    bool newest = true; /* late votes may still elect somebody in a term that a newer one has overtaken */

    for (size_t i = 0; i < group->term_count; i++)
        newest = newest && group->terms[i].term <= term;
    if (newest && shoal_sched_group_find(host->sched, id, &status) && status.last < group->commit)
        sim_fail(host->sim, "%s leads %s in term %llu with %llu entries, but %llu were committed", host->name,
                 name_of(id, text), (unsigned long long)term, (unsigned long long)status.last,
                 (unsigned long long)group->commit);
    if (shoal_sched_group_find(host->sched, id, &status))
        sim_check_votes(host, &status, term);
    for (size_t i = group->term_count; i > 0; i--) {
        if (group->terms[i - 1].term != term)
            continue;
        if (group->terms[i - 1].host != host->index)
            sim_fail(host->sim, "h%u and %s both lead %s in term %llu", group->terms[i - 1].host + 1, host->name,
                     name_of(id, text), (unsigned long long)term);
        return;
    }
    group->terms = sim_grow(group->terms, &group->term_cap, group->term_count + 1, sizeof(*group->terms));
    group->terms[group->term_count++] = (struct sim_term){ .term = term, .host = host->index };
}

/* ---- after every step of a host ---- */

static void check_commit(struct sim_host *host, struct sim_replica *replica, uint64_t commit)
{
    struct sim_group *group = group_of(host->sim, replica->id, lineage_of(replica->term));
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    group_need(group, commit);
    for (uint64_t index = replica->commit + 1; index <= commit; index++) {
        struct sim_log_mark *known = &group->committed[index - 1];
        const struct sim_log_mark *mine;

        if (index < replica->first || index >= replica->first + replica->count)
            continue; /* came in a snapshot */
        mine = &replica->log[index - replica->first];
        if (known->term == 0)
            *known = *mine;
        else if (known->term != mine->term || known->hash != mine->hash)
            sim_fail(host->sim, "%s commits another entry %llu of %s (term %llu) than was committed (term %llu)",
                     host->name, (unsigned long long)index, name_of(replica->id, text), (unsigned long long)mine->term,
                     (unsigned long long)known->term);
    }
    replica->commit = commit;
    if (commit > group->commit)
        group->commit = commit;
}

/* C8. */
static void check_tasks(struct sim_host *host, struct sim_job *job, const struct shoal_job *replicated)
{
    for (uint32_t i = 0; replicated->tasks != NULL && i < job->tasks; i++) {
        uint8_t state = replicated->tasks->tasks[i].state;

        if (state != SHOAL_TASK_DONE && state != SHOAL_TASK_FAILED)
            continue;
        if (job->task_states[i] != 0 && job->task_states[i] != state)
            sim_fail(host->sim, "task %u is %s on %s, and was %s", i,
                     shoal_task_state_name((enum shoal_task_state)state), host->name,
                     shoal_task_state_name((enum shoal_task_state)job->task_states[i]));
        job->task_states[i] = state;
    }
}

static void check_job(struct sim_host *host, struct sim_replica *replica, const struct shoal_job *replicated)
{
    struct sim *sim = host->sim;
    uint32_t index = sim_job_find(sim, replica->id);
    struct sim_job *job = index == UINT32_MAX ? NULL : &sim->jobs[index];
    uint64_t epoch = replicated->epoch == NULL ? 0 : shoal_epoch_word(replicated->epoch->epoch);
    const char *state = shoal_job_state_name((enum shoal_job_state)replicated->state);

    if (epoch < replica->epoch)
        sim_fail(sim, "%s: the epoch goes back", host->name);
    if (epoch > replica->epoch)
        sim->epochs++;
    replica->epoch = epoch;
    if (job == NULL)
        return;
    if (replicated->generation > job->generation) { /* an end that only the lost guardians knew is lost */
        job->generation = replicated->generation;
        if (job->tasks > 0)
            memset(job->task_states, 0, job->tasks);
        job->ended = job->ended && shoal_job_state_ended((enum shoal_job_state)replicated->state);
    }
    if (replicated->generation < job->generation)
        return;
    check_tasks(host, job, replicated);
    if (job->service && replicated->tasks != NULL && sim_service_runs(replicated) &&
        (replicated->tasks->replicas < job->kernels_min || replicated->tasks->replicas > job->kernels_max))
        sim_fail(sim, "service %u has %u replicas on %s, and %u to %u are allowed", index + 1,
                 replicated->tasks->replicas, host->name, job->kernels_min, job->kernels_max); /* V1 */
    if (shoal_job_state_ended((enum shoal_job_state)replicated->state)) {
        if (!job->ended) {
            sim_trace(sim, "job %u has ended: %s %s", index + 1, state, replicated->reason);
            job->ended = true;
            job->ended_state = replicated->state;
            job->ended_index = replicated->applied;
        } else if (job->ended_state != replicated->state) {
            sim_fail(sim, "job %u ended as %s, and on %s as %s", index + 1,
                     shoal_job_state_name((enum shoal_job_state)job->ended_state), host->name, state);
        }
    } else if (job->ended && replicated->applied >= job->ended_index) {
        sim_fail(sim, "job %u had ended at %llu, but is %s at %llu on %s", index + 1,
                 (unsigned long long)job->ended_index, state, (unsigned long long)replicated->applied, host->name);
    }
}

static void check_applied(struct sim_host *host, struct sim_replica *replica, uint64_t applied, uint64_t digest)
{
    struct sim_group *group = group_of(host->sim, replica->id, lineage_of(replica->term));
    const struct shoal_job *job = shoal_sched_job(host->sched, replica->id);
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    replica->applied = applied;
    if (applied == 0)
        return;
    group_need(group, applied);
    if (group->digests[applied - 1] == 0)
        group->digests[applied - 1] = digest;
    else if (group->digests[applied - 1] != digest)
        sim_fail(host->sim, "%s has another state of %s at index %llu than a replica had", host->name,
                 name_of(replica->id, text), (unsigned long long)applied);
    if (job != NULL)
        check_job(host, replica, job);
}

void sim_check_host(struct sim_host *host)
{
    struct shoal_sched_group_status status;

    for (size_t i = 0; shoal_sched_group_at(host->sched, i, &status); i++) {
        struct sim_replica *replica = replica_of(host, status.id);
        uint64_t applied, digest;
        char text[SHOAL_JOB_ID_TEXT_BYTES];

        if (replica->used && lineage_of(status.term) != lineage_of(replica->term)) {
            if (status.term < replica->term)
                sim_fail(host->sim, "%s: %s goes back to a recovery generation of before", host->name,
                         name_of(status.id, text));
            replica_forget(replica); /* begun anew, from the state of its founder */
        }
        if (replica->used && (status.commit < replica->commit || status.term < replica->term))
            sim_fail(host->sim, "%s: %s goes back from term %llu commit %llu to term %llu commit %llu", host->name,
                     name_of(status.id, text), (unsigned long long)replica->term, (unsigned long long)replica->commit,
                     (unsigned long long)status.term, (unsigned long long)status.commit);
        replica->used = true;
        replica->term = status.term;
        if (status.leads && status.commit > replica->commit)
            sim_check_flushed(host, &status);
        if (status.commit > replica->commit)
            check_commit(host, replica, status.commit);
        if (shoal_sched_group_digest(host->sched, status.id, &applied, &digest) && applied != replica->applied)
            check_applied(host, replica, applied, digest);
    }
}

/* ---- workers ---- */

/* It runs: no other driver of the job may, and no other attempt. */
void sim_check_alone(struct sim_host *host, const struct sim_worker *runs)
{
    struct sim *sim = host->sim;

    if (runs->role == SHOAL_JOB_ENGINE)
        return;
    for (uint32_t h = 0; h < sim->host_count; h++)
        for (const struct sim_worker *other = sim->hosts[h].workers; other != NULL; other = other->next) {
            if (other == runs || other->job != runs->job || other->role != runs->role || other->frozen ||
                other->dying || (runs->role == SHOAL_JOB_TASK && other->task != runs->task))
                continue;
            if (runs->role == SHOAL_JOB_DRIVER || runs->role == SHOAL_JOB_TASK || other->attempt != runs->attempt ||
                other->generation != runs->generation)
                sim_fail(sim, "worker %llx runs on %s while worker %llx of attempt %u runs on h%u",
                         (unsigned long long)runs->id, host->name, (unsigned long long)other->id, other->attempt,
                         h + 1);
        }
}

void sim_check_run(struct sim_host *host, const struct sim_worker *fresh)
{
    if (fresh->slot != UINT32_MAX)
        for (const struct sim_worker *other = host->workers; other != NULL; other = other->next)
            if (other->slot == fresh->slot)
                sim_fail(host->sim, "slot %u of %s has two workers, %llx and %llx", fresh->slot, host->name,
                         (unsigned long long)other->id, (unsigned long long)fresh->id);
    if (sim_worker_find(host->sim, fresh->id) != NULL)
        sim_fail(host->sim, "worker %llx runs twice", (unsigned long long)fresh->id);
    if (fresh->role == SHOAL_JOB_TASK && host->sim->jobs[fresh->job].task_states[fresh->task] != 0 &&
        fresh->generation == host->sim->jobs[fresh->job].generation)
        sim_fail(host->sim, "task %u runs on %s, but its result is committed", fresh->task, host->name);
    sim_check_alone(host, fresh);
}

/* ---- questions of scripts ---- */

uint32_t sim_leader(struct sim *sim, struct shoal_job_id group)
{
    struct shoal_sched_group_status status;
    uint32_t leader = UINT32_MAX;
    uint64_t term = 0;

    for (uint32_t i = 0; i < sim->host_count; i++)
        if (sim->hosts[i].agent && shoal_sched_group_find(sim->hosts[i].sched, group, &status) && status.leads &&
            status.term >= term) {
            leader = i;
            term = status.term;
        }
    return leader;
}

static const struct shoal_job *newest(struct sim *sim, uint32_t index)
{
    const struct shoal_job *best = NULL;

    for (uint32_t i = 0; i < sim->host_count && sim->jobs[index].known; i++) {
        const struct shoal_job *job =
            sim->hosts[i].agent ? shoal_sched_job(sim->hosts[i].sched, sim->jobs[index].id) : NULL;

        if (job != NULL && (best == NULL || job->applied > best->applied))
            best = job;
    }
    return best;
}

/* The state that the job's archive record tells; false: there is no record. */
static bool archived_state(struct sim *sim, uint32_t index, uint8_t *state)
{
    struct shoal_sched_archived archived;
    struct shoal_job_facts facts;

    for (uint32_t i = 0; i < sim->host_count && sim->jobs[index].known; i++) {
        if (!sim->hosts[i].agent || !shoal_sched_archive_find(sim->hosts[i].sched, sim->jobs[index].id, &archived) ||
            shoal_job_facts_decode(archived.facts, &facts) != SHOAL_OK)
            continue;
        *state = facts.state;
        return true;
    }
    return false;
}

/* C7, of a job that has no group any more. */
bool sim_job_archived(struct sim *sim, uint32_t index, char *why, size_t cap)
{
    struct shoal_sched_group_status status;
    uint32_t finals = 0, up = 0;

    for (uint32_t i = 0; i < sim->host_count; i++) {
        struct shoal_sched_archived archived;

        if (!sim->hosts[i].agent)
            continue;
        up++;
        if (shoal_sched_group_find(sim->hosts[i].sched, sim->jobs[index].id, &status)) {
            (void)snprintf(why, cap, "h%u still has the group of job %u", i + 1, index + 1);
            return false;
        }
        if (!shoal_sched_archive_find(sim->hosts[i].sched, sim->jobs[index].id, &archived))
            continue;
        if (!archived.final || !sim_blobs_are_here(&sim->hosts[i], index)) {
            (void)snprintf(why, cap, "h%u has a record of job %u that is %s", i + 1, index + 1,
                           archived.final ? "without its blobs" : "not final");
            return false;
        }
        finals++;
    }
    (void)snprintf(why, cap, "%u hosts have the record of job %u, and %u are up", finals, index + 1, up);
    return finals == (up < SHOAL_ARCHIVE_COPIES ? up : SHOAL_ARCHIVE_COPIES);
}

/* C7: a summary that nobody will ever take back. */
static bool in_gossip(struct sim *sim, uint32_t index, char *why, size_t cap)
{
    struct shoal_record_key key = { { 0 } };
    struct shoal_record record;

    memcpy(key.bytes, sim->jobs[index].id.bytes, sizeof(sim->jobs[index].id.bytes));
    for (uint32_t i = 0; i < sim->host_count; i++)
        if (sim->hosts[i].agent &&
            shoal_records_find(sim->hosts[i].swim, SHOAL_RECORD_JOB_SUMMARY, sim->hosts[i].id, key, &record) &&
            !record.tombstone) {
            (void)snprintf(why, cap, "h%u hears of job %u in gossip, which was deleted", i + 1, index + 1);
            return true;
        }
    return false;
}

/* C7. */
static bool nothing_left(struct sim *sim, uint32_t index, char *why, size_t cap)
{
    struct shoal_sched_archived archived;

    for (uint32_t i = 0; i < sim->host_count; i++)
        if (sim->hosts[i].agent && (shoal_sched_archive_find(sim->hosts[i].sched, sim->jobs[index].id, &archived) ||
                                    shoal_sched_job(sim->hosts[i].sched, sim->jobs[index].id) != NULL)) {
            (void)snprintf(why, cap, "h%u has something of job %u, which was deleted", i + 1, index + 1);
            return false;
        }
    return !in_gossip(sim, index, why, cap);
}

bool sim_job_state(struct sim *sim, uint32_t index, uint8_t *state)
{
    const struct shoal_job *job = newest(sim, index);

    if (job != NULL)
        *state = job->state;
    return job != NULL || archived_state(sim, index, state);
}

uint32_t sim_job_engines(struct sim *sim, uint32_t index)
{
    const struct shoal_job *job = newest(sim, index);

    return job == NULL || job->epoch == NULL ? 0 : job->epoch->member_count;
}

/* ---- the end ---- */

/* It stands where the leader does: in memory, or parked with a snapshot of all that the leader has applied (a leader whose
 * turn came while it asked the others to park stays, and they come back when it has something to say). */
static bool keeps_up(const struct sim_host *host, const struct shoal_sched_group_status *leads)
{
    struct shoal_sched_group_status status;

    if (leads->commit != leads->last)
        return false;
    if (shoal_sched_group_find(host->sched, leads->id, &status))
        return status.applied == leads->applied && !status.stopped;
    return shoal_sched_parked_find(host->sched, leads->id) && sim_disk_parked_at(host, leads->id) == leads->applied;
}

static bool replicas_equal(struct sim *sim, struct shoal_job_id id, char *why, size_t cap)
{
    struct shoal_sched_group_status leads;
    uint32_t leader = sim_leader(sim, id);
    uint32_t live = 0, up = 0;
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (leader == UINT32_MAX) {
        (void)snprintf(why, cap, "%s has no leader", name_of(id, text));
        return false;
    }
    (void)shoal_sched_group_find(sim->hosts[leader].sched, id, &leads);
    for (unsigned i = 0; i < leads.voters; i++) {
        uint32_t host = sim_host_find(sim, leads.guardians[i]);

        if (host != UINT32_MAX && sim->hosts[host].destroyed)
            continue; /* replaced, if there is anyone: see below */
        live++;
        if (host == UINT32_MAX || !keeps_up(&sim->hosts[host], &leads)) {
            (void)snprintf(why, cap, "%s: guardian %u is not where leader h%u is", name_of(id, text), host + 1,
                           leader + 1);
            return false;
        }
    }
    for (uint32_t i = 0; i < sim->host_count; i++)
        up += sim->hosts[i].agent;
    (void)snprintf(why, cap, "%s has %u of 3 guardians, and %u hosts are up", name_of(id, text), live, up);
    return live >= 3 || live >= up;
}

static uint32_t slots_up(const struct sim *sim)
{
    uint32_t slots = 0;

    for (uint32_t i = 0; i < sim->host_count; i++)
        slots += sim->hosts[i].agent ? sim->hosts[i].slots : 0;
    return slots;
}

/* Decision 0011, and `why` of a script: what lost its host is begun anew, SHOAL_ATTEMPTS_MAX times in all; then it has
 * failed, and says so. Here scripts and tasks end with 0, so nothing else may have failed. NULL: it is in the archive,
 * which keeps no tasks. */
static bool lost_too_often(const struct shoal_job *job)
{
    if (job == NULL)
        return true;
    if (strstr(job->reason, "the last one allowed") == NULL)
        return false;
    for (uint32_t i = 0; job->tasks != NULL && i < job->tasks->array.task_count; i++)
        if (job->tasks->tasks[i].state == SHOAL_TASK_FAILED && job->tasks->tasks[i].attempts < SHOAL_ATTEMPTS_MAX)
            return false;
    return true;
}

static bool job_is_done(struct sim *sim, uint32_t index, char *why, size_t cap)
{
    const struct sim_job *job = &sim->jobs[index];
    uint8_t state = 0;

    if (job->deleted)
        return nothing_left(sim, index, why, cap);
    if (!job->acknowledged || job->delete_asked)
        return true;
    if (!sim_job_state(sim, index, &state)) {
        (void)snprintf(why, cap, "job %u was acknowledged, but nobody has it", index + 1);
        return false;
    }
    (void)snprintf(why, cap, "job %u is %s, %llu steps of %llu", index + 1,
                   shoal_job_state_name((enum shoal_job_state)state), (unsigned long long)job->steps_done,
                   (unsigned long long)job->steps);
    if (state == SHOAL_JOB_ERROR && job->script && lost_too_often(newest(sim, index)))
        return true;
    if ((state == SHOAL_JOB_PENDING_CRD_SCHEDULER || state == SHOAL_JOB_RECOVERING) && job->script && job->tasks == 0 &&
        job->workers_min > slots_up(sim))
        return true; /* the hosts that it would fit on were lost: it waits for others, before or after its beginning */
    if (state != SHOAL_JOB_FINISHED && !(job->stop_asked && state == SHOAL_JOB_KILLED))
        return false;
    return sim->options.archive_ns == 0 || sim_job_archived(sim, index, why, cap);
}

/* PROTOCOLS 2.3: a founding without a majority is settled by an election, and until then each try is answered 503 with
 * the ticket. Where most guardians that a ticket names are lost for good nobody can be elected: its client asks for ever,
 * and what is promised is an answer to each try, within SUBMIT_ANSWER_NS. */
static bool never_settled(struct sim *sim, const struct sim_request *request)
{
    struct shoal_sched_ticket ticket;
    unsigned lost = 0;

    if (request->kind != SHOAL_SCHED_SUBMIT || request->job == UINT32_MAX ||
        sim->now_ns > request->asked_ns + SUBMIT_ANSWER_NS ||
        shoal_sched_ticket_decode(shoal_buf_view(&sim->jobs[request->job].ticket), &ticket) != SHOAL_OK)
        return false;
    for (unsigned i = 0; i < ticket.guardian_count; i++) {
        uint32_t host = sim_host_find(sim, ticket.guardians[i].node);

        lost += host != UINT32_MAX && sim->hosts[host].destroyed;
    }
    return 2 * (ticket.guardian_count - lost) <= ticket.guardian_count;
}

static bool answered(struct sim *sim, char *why, size_t cap)
{
    for (uint64_t id = 1; id <= sim->request_count; id++) {
        const struct sim_request *request = &sim->requests[id];

        if (!request->answered && sim->hosts[request->host].life == request->life && !never_settled(sim, request)) {
            (void)snprintf(why, cap, "request %llu at h%u waits for its answer", (unsigned long long)id,
                           request->host + 1);
            return false;
        }
    }
    return true;
}

/* C9: no user of the mesh who was acknowledged is lost. */
static bool knows_users(struct sim *sim, uint32_t at, char *why, size_t cap)
{
    const struct shoal_mesh *mesh = shoal_sched_mesh(sim->hosts[at].sched);
    size_t count = mesh == NULL ? 0 : shoal_mesh_user_count(mesh);

    (void)snprintf(why, cap, "h%u knows %zu users, and %u were acknowledged", at + 1, count, sim->users_told + 1);
    return count >= sim->users_told + 1;
}

bool sim_converged(struct sim *sim, char *why, size_t cap)
{
    struct shoal_sched_group_status status;
    uint32_t up = 0;

    for (uint32_t i = 0; i < sim->host_count; i++)
        up += sim->hosts[i].agent;
    for (uint32_t i = 0; i < sim->host_count; i++)
        if (sim->hosts[i].agent && shoal_swim_live_count(sim->hosts[i].swim) != up) {
            (void)snprintf(why, cap, "h%u sees %u of %u hosts", i + 1, shoal_swim_live_count(sim->hosts[i].swim), up);
            return false;
        }
    for (uint32_t i = 0; i < sim->host_count; i++)
        if (sim->hosts[i].agent && !knows_users(sim, i, why, cap))
            return false;
    if (!sim_services_done(sim, why, cap))
        return false;
    for (uint32_t i = 0; i < sim->job_count; i++)
        if (!job_is_done(sim, i, why, cap))
            return false;
    for (uint32_t i = 0; i < sim->host_count; i++)
        for (size_t g = 0; sim->hosts[i].agent && shoal_sched_group_at(sim->hosts[i].sched, g, &status); g++)
            if (status.founded && !replicas_equal(sim, status.id, why, cap))
                return false;
    return answered(sim, why, cap);
}

void sim_check_deinit(struct sim *sim)
{
    for (size_t i = 0; i < sim->group_count; i++) {
        free(sim->groups[i].terms);
        free(sim->groups[i].committed);
        free(sim->groups[i].digests);
    }
    free(sim->groups);
    sim_map_deinit(&sim->group_index);
    sim_map_deinit(&sim->entries);
}
