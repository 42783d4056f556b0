/* Compares what the disks hold with what hosts say that they hold. Each look costs the same, however long the run.
 *
 * D1. Whoever begins to lead a term has the votes of a majority, each flushed (Raft 5.1, 5.2). The first term of a
 *     founding has no votes: its leader is named in the ticket (PROTOCOLS 2.2).
 * D2. What a leader takes for committed is flushed on a majority of the group.
 * D3. A submit that is answered is flushed on a majority of the job's guardians, as whoever is furthest ahead knows them: a
 *     host that stood still may say so when all that it knew of have handed the job on.
 * D4. Two logs that hold an entry of the same index and term hold the same entry there (Raft 5.3).
 * D5. The vote of a term, once flushed, stays; terms do not go back.
 * A host that was destroyed counts as one that holds everything: what it held cannot be looked up any more. While the
 * members change, both old and new ones are in the list, so that a majority of it may be one less; what was committed before
 * the change is asked of those who were members then. */
#include "shoal/sched_look.h"
#include "sim.h"

#include "shoal/banned.h"

static unsigned majority(unsigned voters) { return voters <= 3 ? voters / 2 + 1 : (voters + 1) / 2; }

static const char *name_of(struct shoal_job_id id, char text[SHOAL_JOB_ID_TEXT_BYTES])
{
    shoal_job_id_text(id, text);
    return shoal_job_id_is_mesh(id) ? "the mesh" : text;
}

/* NULL: nothing of it was flushed. */
static const struct sim_disk_group *flushed(const struct sim_host *host, struct shoal_job_id id)
{
    uint64_t at = sim_map_find(&host->disk.group_index, sim_key_job(id));

    return at == 0 || !host->disk.groups[at - 1].used ? NULL : &host->disk.groups[at - 1];
}

static bool voted(const struct sim_host *host, struct shoal_job_id id, uint64_t term, struct shoal_node_id leader)
{
    uint64_t at = sim_map_find(&host->disk.group_index, sim_key_job(id));
    const struct sim_disk_group *g = at == 0 ? NULL : &host->disk.groups[at - 1];

    if (g == NULL)
        return false;
    if (g->left_term > term || (g->left_term == term && shoal_node_id_equal(g->left_vote, leader)))
        return true; /* the group has ended there since, and its vote was on its way */
    return g->used && g->has_hard &&
           (g->hard.term > term || (g->hard.term == term && shoal_node_id_equal(g->hard.vote_node, leader)));
}

static bool holds(const struct sim_disk_group *g, uint64_t index)
{
    uint64_t last;

    if (g == NULL)
        return false;
    last = g->has_snapshot ? g->snapshot.index : 0;
    if (g->entry_count > 0)
        last = g->entries[g->entry_count - 1].index;
    return last >= index;
}

/* D1. */
void sim_check_votes(struct sim_host *host, const struct shoal_sched_group_status *status, uint64_t term)
{
    const struct sim *sim = host->sim;
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    unsigned votes = 0;

    if ((uint32_t)term <= 1 || status->term != term)
        return;
    for (unsigned i = 0; i < status->voters; i++) {
        uint32_t voter = sim_host_find(sim, status->guardians[i]);

        votes +=
            voter == UINT32_MAX || sim->hosts[voter].destroyed || voted(&sim->hosts[voter], status->id, term, host->id);
    }
    if (votes < majority(status->voters))
        sim_fail(host->sim, "%s leads %s in term %llu with %u flushed votes of %u", host->name,
                 name_of(status->id, text), (unsigned long long)term, votes, status->voters);
}

static unsigned holders(const struct sim *sim, const struct shoal_sched_group_status *status, uint64_t index)
{
    unsigned count = 0;

    for (unsigned i = 0; i < status->commit_voters; i++) {
        uint32_t voter = sim_host_find(sim, status->commit_guardians[i]);

        count +=
            voter == UINT32_MAX || sim->hosts[voter].destroyed || holds(flushed(&sim->hosts[voter], status->id), index);
    }
    return count;
}

/* D2. */
void sim_check_flushed(struct sim_host *host, const struct shoal_sched_group_status *status)
{
    unsigned count = holders(host->sim, status, status->commit);
    const struct shoal_job *job = shoal_sched_job(host->sched, status->id);
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (job != NULL && (job->deleted || !shoal_hash_is_zero(job->archived)))
        return; /* members forget such a group while the leader still hears of what they flushed */
    if (count < majority(status->commit_voters))
        sim_fail(host->sim, "%s takes entry %llu of %s for committed, which %u of %u guardians have flushed",
                 host->name, (unsigned long long)status->commit, name_of(status->id, text), count,
                 status->commit_voters);
}

/* The group as whoever has applied most of it knows it. */
static void newest_status(const struct sim *sim, struct shoal_job_id job, struct shoal_sched_group_status *status)
{
    struct shoal_sched_group_status other;

    for (uint32_t i = 0; i < sim->host_count; i++)
        if (sim->hosts[i].sched != NULL && shoal_sched_group_find(sim->hosts[i].sched, job, &other) && other.founded &&
            other.applied > status->applied)
            *status = other;
}

/* D3. */
void sim_check_told(struct sim *sim, uint32_t at, struct shoal_job_id job)
{
    struct shoal_sched_group_status status;
    uint32_t index = sim_job_find(sim, job);
    unsigned count;

    if (!shoal_sched_group_find(sim->hosts[at].sched, job, &status) || !status.founded || status.voters == 0)
        return; /* it was told by another, who has the group */
    if (index != UINT32_MAX && sim->jobs[index].ended)
        return; /* it ran: a host that stood still says so after the others have put the job into the archive */
    newest_status(sim, job, &status);
    count = holders(sim, &status, 2);
    if (count < majority(status.commit_voters))
        sim_fail(sim, "%s says that a job is submitted, which %u of %u guardians have flushed", sim->hosts[at].name,
                 count, status.commit_voters);
}

/* D4. */
void sim_check_entry(struct sim_host *host, struct shoal_job_id id, const struct shoal_sched_entry *entry)
{
    uint64_t key = sim_key_job(id) ^ (entry->index * 0x9e3779b97f4a7c15u + entry->term * 0xbf58476d1ce4e5b9u);
    uint64_t hash = (sim_hash_bytes(entry->bytes) + entry->kind) | 1;
    uint64_t known = sim_map_find(&host->sim->entries, key);
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (id.bytes[0] & 0x80)
        return; /* a node's own notes: no job's id has this bit before the year 2248 */
    if (known == 0)
        sim_map_put(&host->sim->entries, key, hash);
    else if (known != hash)
        sim_fail(host->sim, "%s writes another entry %llu of term %llu of %s than another host did", host->name,
                 (unsigned long long)entry->index, (unsigned long long)entry->term, name_of(id, text));
}

/* D5. */
void sim_check_hard(struct sim_host *host, const struct sim_disk_group *before, const struct sim_disk_group *after)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (!before->has_hard)
        return;
    if (after->hard.term < before->hard.term)
        sim_fail(host->sim, "%s flushes term %llu of %s after term %llu", host->name,
                 (unsigned long long)after->hard.term, name_of(before->id, text),
                 (unsigned long long)before->hard.term);
    if (after->hard.term == before->hard.term && !shoal_node_id_is_zero(before->hard.vote_node) &&
        !shoal_node_id_equal(after->hard.vote_node, before->hard.vote_node))
        sim_fail(host->sim, "%s has voted twice in term %llu of %s", host->name, (unsigned long long)after->hard.term,
                 name_of(before->id, text));
}
