/* A job whose majority of guardians is gone for good (PROTOCOLS 3): what is left of it is told, and, when confirmed,
 * founds the next recovery generation.
 *
 *   any node                          a holder of a replica                         the other members
 *     | RECOVER --forwarded to------->  | REPLICA_ASK ------------------------------> |
 *     |   a node that answered WHO      | <--------------- REPLICA(term, last, store) | 2 s, or until all have answered
 *     |                                 | a majority holds it: refused; a better replica: asked there
 *     | <------ what may be missing --- | not confirmed
 *     | <------ founded --------------- | confirmed: every entry held here is applied, RECOVER after them; a snapshot
 *     |                                 | of that, alone in its configuration, in one flush; then guardians are added
 *
 * C1. A lineage is a recovery generation and who founded it; it is the high half of every term of its group, so that
 *     all terms of a later lineage are above all of an earlier one, in votes, claims, summaries and on hosts.
 * C2. Messages of an earlier lineage change nothing here, and are answered: its replica is superseded, and goes, also
 *     if it leads. A message from a leader of a later lineage makes ours go; the leader then sends its state.
 * C3. The new lineage is durable as a whole or not at all: snapshot, empty log and term in one batch. What is asked of
 *     the new leader is answered once it leads, so after that flush.
 * C5. The mesh group is recovered in the same way; where no guardian of it is left, the next generation is founded from
 *     the newest copy that is known here, since every node has one. Its replicas of before go when they hear of it, also
 *     by gossip (K1 of sched_copy.c).
 * C4. Only nodes that gossip knows to be gone count as lost, or such as answer that they hold no replica any more. */
#include "shoal/sched_ticket.h"
#include "shoal/job_entry.h"
#include "sched_found.h"
#include "sched_copy.h"
#include "sched_group.h"
#include "sched_lead.h"
#include "sched_node.h"
#include "sched_park.h"
#include "sched_request.h"
#include "sched_state.h"
#include "sched_store.h"

#include "shoal/banned.h"

#define SURVEY_NS (2 * SHOAL_S)
#define ASK_NS (300 * SHOAL_MS)

static const struct shoal_view nothing;

/* ---- What a node says of its replica ----------------------------------------------------------------------------- */

void sched_on_replica_ask(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    const struct sched_group *g = sched_group_find(s, frame->u.replica.job);
    struct frame answer = { .kind = FRAME_REPLICA };
    struct shoal_raft_status status;

    SHOAL_ASSERT(frame->kind == FRAME_REPLICA_ASK);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!s->restored || (g == NULL && sched_park_wake(s, frame->u.replica.job)))
        return; /* it is asked again */
    answer.u.replica.id = frame->u.replica.id;
    answer.u.replica.job = frame->u.replica.job;
    answer.u.replica.store = s->store;
    if (g != NULL && (g->record_known || g->mesh_is) && !g->stopped) {
        shoal_raft_status(g->raft, &status);
        answer.u.replica.holds = true;
        answer.u.replica.term = status.term;
        answer.u.replica.last_index = status.last;
        answer.u.replica.last_term = shoal_raft_term_at(g->raft, status.last);
    }
    sched_send(s, from, &answer);
}

/* ---- The survey -------------------------------------------------------------------------------------------------- */

static struct sched_survey *survey_of(struct shoal_sched *s, uint64_t request)
{
    SHOAL_ASSERT(request != 0);
    for (size_t i = 0; i < SCHED_SURVEYS_MAX; i++) {
        if (s->surveys[i].used && s->surveys[i].request == request)
            return &s->surveys[i];
    }
    return NULL;
}

static struct sched_survey *survey_take(struct shoal_sched *s, uint64_t request)
{
    SHOAL_ASSERT(request != 0);
    for (size_t i = 0; i < SCHED_SURVEYS_MAX; i++) {
        if (s->surveys[i].used && sched_request_get(s, s->surveys[i].request) != NULL)
            continue;
        s->surveys[i] = (struct sched_survey){ .used = true, .request = request, .end_ns = s->now + SURVEY_NS };
        return &s->surveys[i];
    }
    return NULL;
}

/* By who is a member, and what that node has said: a node with another store is not the member. */
static bool holds(const struct sched_survey *survey, unsigned i)
{
    SHOAL_ASSERT(i < survey->count);
    return survey->list[i].answered && survey->list[i].holds;
}

/* C4. */
static bool may_be_there(const struct shoal_sched *s, const struct sched_survey *survey, unsigned i)
{
    const struct sched_node *node = sched_node_find(s, survey->list[i].member.id.node);

    SHOAL_ASSERT(i < survey->count);
    if (survey->list[i].answered || node == NULL || sched_is_removed(s, node->info.id))
        return false;
    return node->info.state == SHOAL_SCHED_NODE_ALIVE || node->info.state == SHOAL_SCHED_NODE_SUSPECT;
}

static void ask_members(struct shoal_sched *s, struct sched_request *r, struct sched_survey *survey)
{
    struct frame frame = { .kind = FRAME_REPLICA_ASK };

    SHOAL_ASSERT(survey->used && survey->count <= SHOAL_GROUP_NODES_MAX);
    SHOAL_ASSERT(r->kind == SHOAL_SCHED_RECOVER);
    frame.u.replica.id = r->serial;
    frame.u.replica.job = r->job;
    for (unsigned i = 0; i < survey->count; i++) {
        if (!survey->list[i].answered)
            sched_send(s, survey->list[i].member.id.node, &frame);
    }
    sched_request_move(r, REQUEST_SURVEY);
    r->retry_ns = s->now + ASK_NS < survey->end_ns ? s->now + ASK_NS : survey->end_ns;
    if (r->retry_ns < s->requests_ns)
        s->requests_ns = r->retry_ns;
}

/* Voters that hold a replica make a majority (of both sets, while the configuration is joint). */
static bool quorum_lives(const struct sched_survey *survey)
{
    unsigned all[2] = { 0, 0 }, live[2] = { 0, 0 };

    SHOAL_ASSERT(survey->count <= SHOAL_GROUP_NODES_MAX);
    for (unsigned i = 0; i < survey->count; i++) {
        const unsigned bits[2] = { SHOAL_RAFT_VOTER, SHOAL_RAFT_VOTER_OLD };

        for (unsigned b = 0; b < 2; b++) {
            all[b] += survey->list[i].member.bits & bits[b] ? 1 : 0;
            live[b] += survey->list[i].member.bits & bits[b] && holds(survey, i) ? 1 : 0;
        }
    }
    return 2 * live[0] > all[0] && (all[1] == 0 || 2 * live[1] > all[1]);
}

static int log_cmp(const struct sched_replica *a, const struct sched_replica *b)
{
    SHOAL_ASSERT(a->answered && b->answered);
    if (sched_lineage(a->term) != sched_lineage(b->term))
        return sched_lineage(a->term) < sched_lineage(b->term) ? -1 : 1;
    if (a->last_term != b->last_term)
        return a->last_term < b->last_term ? -1 : 1;
    if (a->last_index != b->last_index)
        return a->last_index < b->last_index ? -1 : 1;
    return 0;
}

/* The replica that has most; of equal ones the one of the lowest id, so that all who ask choose the same. */
static unsigned best_replica(const struct sched_survey *survey)
{
    unsigned best = survey->self;

    SHOAL_ASSERT(survey->self < survey->count);
    for (unsigned i = 0; i < survey->count; i++) {
        int order = holds(survey, i) ? log_cmp(&survey->list[i], &survey->list[best]) : -1;

        if (order > 0 ||
            (order == 0 && shoal_node_id_cmp(survey->list[i].member.id.node, survey->list[best].member.id.node) < 0))
            best = i;
    }
    return best;
}

static void refuse_unsure(struct shoal_sched *s, struct sched_request *r, const struct sched_survey *survey)
{
    char names[160] = "";

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_RECOVER);
    for (unsigned i = 0; i < survey->count; i++) {
        if (may_be_there(s, survey, i))
            sched_add_name(names, sizeof(names), survey->list[i].member.id.node);
    }
    sched_request_end(s, r, SHOAL_ERR_UNREACHABLE, nothing,
                      "a guardian is there by gossip, but has not answered (%s); nothing was done. Try again; if it is "
                      "gone for good, stop its agent or wait until it counts as dead",
                      names);
}

static void refuse_well(struct shoal_sched *s, struct sched_request *r, const struct sched_survey *survey)
{
    bool mesh = shoal_job_id_is_mesh(r->job);
    char names[160] = "";
    unsigned live = 0;

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_RECOVER);
    for (unsigned i = 0; i < survey->count; i++) {
        if (!holds(survey, i))
            continue;
        live++;
        sched_add_name(names, sizeof(names), survey->list[i].member.id.node);
    }
    sched_request_end(s, r, SHOAL_ERR_EXISTS, nothing,
                      "%s is not lost: %u of its %u guardians hold their replicas (%s) and can elect a leader; "
                      "nothing was done%s",
                      mesh ? "the mesh group" : "the job", live, survey->count, names,
                      mesh ? "" : ". If it does not get on, shoal why tells the reason");
}

/* ---- The next generation ----------------------------------------------------------------------------------------- */

/* A raft that begins with the snapshot at `index` of the new lineage, this node its only member. */
static enum shoal_err new_raft(struct shoal_sched *s, uint64_t index, uint64_t term, struct shoal_raft **raft)
{
    struct shoal_raft_restored restored = { .has_snapshot = true };
    struct shoal_raft_options options;

    SHOAL_ASSERT(term > 0 && index > 0); /* C1 */
    sched_raft_options(s, &options);
    options.config.count = 1;
    options.config.members[0] = (struct shoal_raft_member){ .id = options.self, .bits = SHOAL_RAFT_VOTER };
    restored.hard.term = term;
    restored.hard.commit = index;
    restored.snapshot.index = index;
    restored.snapshot.term = term;
    restored.snapshot.config = options.config;
    return shoal_raft_restore(raft, &options, &restored);
}

static void forget_old_raft(struct shoal_sched *s, struct sched_group *g)
{
    SHOAL_ASSERT(g->raft != NULL);
    sched_lead_end(g);
    g->leads = false;
    g->keep_ns = SCHED_NEVER;
    sched_group_untell(s, g);
    shoal_raft_destroy(g->raft);
    shoal_buf_deinit(&g->snap);
    shoal_buf_deinit(&g->part);
    g->life = ++s->lives;
    g->snapshot_saving = false;
    g->need_count = 0;
    g->read_serial = 0;
    g->reads_waiting = false;
    g->digest_index = 0;
    g->complete_ns = SCHED_NEVER;
    g->orphan_ns = SCHED_NEVER;
    g->found_durable = true;
    g->founded = true;
    g->leader = (struct shoal_node_id){ { 0 } };
}

/* The group's machine is as of `index`, its first raft or its old one is gone. C3. */
static void begin_lineage(struct shoal_sched *s, struct sched_group *g, struct shoal_raft *raft, uint64_t index,
                          uint64_t term)
{
    SHOAL_ASSERT(sched_lineage(term) > 0 && index > 0); /* C1 */
    g->raft = raft;
    g->applied = index;
    g->applied_term = term;
    g->config_index = index;
    g->term = term;
    g->hurry = true;
    g->role_changed = true;
    sched_snapshot_found(s, g);
    sched_group_told(s, g);
    sched_requests_restart(s, g);
    sched_group_dirty(s, g);
    sched_group_rearm(s, g);
}

/* The recovery generation of a lineage, and the lineage of one that this node founds. */
static uint32_t generation_of(uint64_t lineage) { return (uint32_t)(lineage >> 16) + 1; }

static uint64_t lineage_of(const struct shoal_sched *s, uint32_t generation)
{
    return (uint64_t)(generation - 1) << 16 | (uint64_t)s->self.bytes[0] << 8 | s->self.bytes[1];
}

static uint32_t group_generation(const struct sched_group *g)
{
    return g->mesh_is ? generation_of(sched_group_lineage(g)) : g->job->generation;
}

/* False: no memory, and nothing has changed but that entries held here are taken as committed. */
static bool found_generation(struct shoal_sched *s, struct sched_group *g)
{
    uint32_t generation = group_generation(g) + 1;
    uint64_t term = lineage_of(s, generation) << SCHED_LINEAGE_SHIFT | 1;
    uint64_t index = g->applied + 1;
    struct shoal_raft *raft;
    uint8_t entry[128];
    size_t len = shoal_job_entry_recover(entry, sizeof(entry), generation, s->wall_ms);

    SHOAL_ASSERT(sched_lineage(term) >
                 sched_group_lineage(g)); /* C1: terms of the old lineage end below the new one's */
    if (new_raft(s, index, term, &raft) != SHOAL_OK)
        return false;
    if (!g->mesh_is)
        g->changed |= shoal_job_apply(g->job, index, shoal_view_of(entry, len), s->job_scratch);
    forget_old_raft(s, g);
    begin_lineage(s, g, raft, index, term);
    return true;
}

/* ---- The request ------------------------------------------------------------------------------------------------- */

static void fill_report(const struct shoal_sched *s, const struct sched_group *g, const struct sched_survey *survey,
                        struct shoal_sched_recovery *report)
{
    const struct sched_replica *own = &survey->list[survey->self];

    SHOAL_ASSERT(survey->self < survey->count);
    *report = (struct shoal_sched_recovery){
        .node = s->self,
        .generation = group_generation(g),
        .term = own->last_term,
        .index = own->last_index,
        .commit = shoal_raft_commit(g->raft),
    };
    for (unsigned i = 0; i < survey->count; i++) {
        if (survey->list[i].member.bits & SHOAL_RAFT_LEARNER)
            continue;
        report->guardian_count++;
        if (!holds(survey, i))
            report->lost[report->lost_count++] = survey->list[i].member.id.node;
    }
}

/* Every entry that is here may have been acknowledged: all of them count. False: the founding record is not among
 * them. */
static bool take_all_entries(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_raft_status status;

    SHOAL_ASSERT(!g->stopped);
    shoal_raft_status(g->raft, &status);
    sched_group_apply(s, g, status.last);
    return (g->mesh_is || g->job != NULL) && !g->refused && !g->stopped && g->applied == status.last;
}

static void keep_report(struct sched_request *r, const struct shoal_sched_recovery *report)
{
    uint8_t bytes[SHOAL_SCHED_RECOVERY_BYTES_MAX];
    size_t len = shoal_sched_recovery_encode(report, bytes);

    SHOAL_ASSERT(report->generation > 0);
    r->command.len = 0;
    if (shoal_buf_append(&r->command, bytes, len) != SHOAL_OK)
        r->command.len = 0; /* the text alone must do */
}

static void act(struct shoal_sched *s, struct sched_request *r, struct sched_group *g,
                const struct sched_survey *survey)
{
    bool confirmed = r->command.len > 0 && r->command.bytes[0] != 0;
    struct shoal_sched_recovery report = { 0 };

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_RECOVER);
    SHOAL_ASSERT(survey->self < survey->count);
    if (!confirmed && g->job == NULL && !g->mesh_is) {
        sched_request_end(
            s, r, SHOAL_ERR_UNREACHABLE, nothing,
            "this replica holds the founding record only; submit the job again with its ticket, or confirm "
            "the recovery");
        return;
    }
    if (confirmed && (!take_all_entries(s, g) || group_generation(g) == UINT16_MAX)) {
        sched_request_end(s, r, SHOAL_ERR_STORAGE, nothing, "the replica on this node cannot be taken over%s",
                          g->mesh_is ? "" : "; delete the job and submit it again");
        return;
    }
    fill_report(s, g, survey, &report);
    if (!confirmed) {
        keep_report(r, &report);
        sched_request_end(s, r, SHOAL_OK, shoal_buf_view(&r->command), "%s", "");
        return;
    }
    if (!found_generation(s, g)) {
        sched_request_end(s, r, SHOAL_ERR_FULL, nothing, "no memory for the recovery on this node; try again");
        return;
    }
    report.done = true;
    report.generation = group_generation(g);
    keep_report(r, &report);
    r->recovered = true;
    sched_request_retry(s, r, SCHED_RETRY_NS / 4);
}

static void judge(struct shoal_sched *s, struct sched_request *r, struct sched_survey *survey)
{
    struct sched_group *g = sched_group_find(s, r->job);
    unsigned best = best_replica(survey);
    struct shoal_node_id there = survey->list[best].member.id.node;
    bool unsure = false;

    SHOAL_ASSERT(survey->used);
    survey->used = false;
    if (g == NULL || g->stopped) {
        sched_request_retry(s, r, 0);
        return;
    }
    for (unsigned i = 0; i < survey->count; i++)
        unsure = unsure || may_be_there(s, survey, i);
    if (best != survey->self && sched_lineage(survey->list[best].term) > sched_lineage(survey->list[survey->self].term))
        sched_request_pass(s, r, there); /* recovered already, and we were left behind */
    else if (quorum_lives(survey))
        refuse_well(s, r, survey);
    else if (unsure)
        refuse_unsure(s, r, survey);
    else if (best != survey->self)
        sched_request_pass(s, r, there);
    else
        act(s, r, g, survey);
}

static bool all_answered(const struct sched_survey *survey)
{
    SHOAL_ASSERT(survey->count <= SHOAL_GROUP_NODES_MAX);
    for (unsigned i = 0; i < survey->count; i++) {
        if (!survey->list[i].answered)
            return false;
    }
    return true;
}

static void begin(struct shoal_sched *s, struct sched_request *r, const struct sched_group *g)
{
    const struct shoal_raft_config *config = shoal_raft_config(g->raft);
    struct sched_survey *survey = survey_take(s, r->serial);
    struct shoal_raft_status status;

    SHOAL_ASSERT(r->kind == SHOAL_SCHED_RECOVER);
    if (survey == NULL) {
        sched_request_end(s, r, SHOAL_ERR_FULL, nothing,
                          "%u recoveries are under way on this node; try again in a second", SCHED_SURVEYS_MAX);
        return;
    }
    shoal_raft_status(g->raft, &status);
    for (unsigned i = 0; i < config->count; i++) {
        struct sched_replica *one = &survey->list[survey->count];

        one->member = config->members[i];
        if (sched_is_self(s, one->member.id.node)) {
            survey->self = survey->count;
            one->answered = true;
            one->holds = true;
            one->term = status.term;
            one->last_index = status.last;
            one->last_term = shoal_raft_term_at(g->raft, status.last);
        }
        survey->count++;
    }
    if (all_answered(survey))
        judge(s, r, survey);
    else
        ask_members(s, r, survey);
}

/* The replica is here. */
void sched_recover(struct shoal_sched *s, struct sched_request *r, struct sched_group *g)
{
    SHOAL_ASSERT(r->kind == SHOAL_SCHED_RECOVER);
    if (!r->recovered) {
        begin(s, r, g);
        return;
    }
    if (g->leads && g->applied_term == g->term) { /* C3 */
        s->copy_dirty = s->copy_dirty || g->mesh_is;
        sched_request_end(s, r, SHOAL_OK, shoal_buf_view(&r->command), "%s", "");
    } else {
        sched_request_retry(s, r, SCHED_RETRY_NS / 4);
    }
}

/* ---- The mesh group, from a copy (C5) ---------------------------------------------------------------------------- */

/* C4: of the guardians that the newest copy names. */
static bool guardian_may_be_there(const struct shoal_sched *s)
{
    for (unsigned i = 0; i < s->mesh_hint.count; i++) {
        const struct sched_node *node = sched_node_find(s, s->mesh_hint.guardians[i]);

        if (node != NULL && !sched_is_self(s, node->info.id) && !sched_node_is_gone(s, node))
            return true;
    }
    return false;
}

static enum shoal_err found_from_copy(struct shoal_sched *s, const struct mesh_copy *copy, uint32_t generation)
{
    uint64_t term = lineage_of(s, generation) << SCHED_LINEAGE_SHIFT | 1;
    uint64_t index = (copy->version & UINT32_MAX) + 1;
    struct sched_group *g;
    struct shoal_raft *raft = NULL;
    enum shoal_err err = sched_group_admit(s, (struct shoal_job_id){ { 0 } }, &g);

    if (err != SHOAL_OK)
        return err;
    SHOAL_ASSERT(g->mesh_is); /* C5 */
    err = shoal_mesh_decode(g->mesh, copy->state);
    if (err == SHOAL_OK)
        err = new_raft(s, index, term, &raft);
    if (err != SHOAL_OK) {
        sched_group_remove(s, g);
        return err;
    }
    g->record_known = true;
    g->founded = true;
    g->found_durable = true;
    begin_lineage(s, g, raft, index, term);
    return SHOAL_OK;
}

bool sched_recover_from_copy(struct shoal_sched *s, struct sched_request *r)
{
    bool confirmed = r->command.len > 0 && r->command.bytes[0] != 0;
    struct shoal_sched_recovery report = { .node = s->self, .guardian_count = s->mesh_hint.count };
    struct mesh_copy copy;
    size_t signed_len;

    SHOAL_ASSERT(sched_group_find(s, r->job) == NULL && shoal_job_id_is_mesh(r->job)); /* C5 */
    if (guardian_may_be_there(s))
        return false;
    if (sched_copy_is_behind(s) || sched_mesh_copy_decode(shoal_buf_view(&s->copy), &copy, &signed_len) != SHOAL_OK) {
        sched_request_end(s, r, SHOAL_ERR_UNREACHABLE, nothing,
                          "this node has not got the newest copy of the mesh; ask another survivor, or try again");
        return true;
    }
    report.generation = generation_of(sched_lineage(copy.version));
    report.index = report.commit = copy.version & UINT32_MAX;
    report.lost_count = s->mesh_hint.count;
    memcpy(report.lost, s->mesh_hint.guardians, s->mesh_hint.count * sizeof(report.lost[0]));
    keep_report(r, &report);
    if (!confirmed) {
        sched_request_end(s, r, SHOAL_OK, shoal_buf_view(&r->command), "%s", "");
        return true;
    }
    if (report.generation == UINT16_MAX || found_from_copy(s, &copy, report.generation + 1) != SHOAL_OK) {
        sched_request_end(s, r, SHOAL_ERR_FULL, nothing, "no memory for the recovery on this node; try again");
        return true;
    }
    report.done = true;
    report.generation++;
    keep_report(r, &report);
    r->recovered = true;
    sched_request_retry(s, r, SCHED_RETRY_NS / 4);
    return true;
}

void sched_recover_due(struct shoal_sched *s, struct sched_request *r)
{
    struct sched_survey *survey = survey_of(s, r->serial);

    SHOAL_ASSERT(r->state == REQUEST_SURVEY);
    if (survey == NULL)
        sched_request_retry(s, r, 0);
    else if (s->now >= survey->end_ns || all_answered(survey))
        judge(s, r, survey);
    else
        ask_members(s, r, survey);
}

void sched_on_replica(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_request *r = sched_request_get(s, frame->u.replica.id);
    struct sched_survey *survey = r == NULL ? NULL : survey_of(s, r->serial);

    SHOAL_ASSERT(frame->kind == FRAME_REPLICA);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (survey == NULL || r->state != REQUEST_SURVEY || !shoal_job_id_equal(r->job, frame->u.replica.job))
        return;
    for (unsigned i = 0; i < survey->count; i++) {
        struct sched_replica *one = &survey->list[i];

        if (!shoal_node_id_equal(one->member.id.node, from) || one->answered)
            continue;
        one->answered = true;
        one->holds = frame->u.replica.holds && shoal_store_id_equal(one->member.id.store, frame->u.replica.store);
        one->term = frame->u.replica.term;
        one->last_index = frame->u.replica.last_index;
        one->last_term = frame->u.replica.last_term;
    }
    if (all_answered(survey)) {
        r->retry_ns = s->now;
        s->requests_ns = s->now;
    }
}
