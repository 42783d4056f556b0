/* Membership upkeep (PROTOCOLS 3): the leader of a group keeps it at its target, one change at a time.
 *
 *     below the target for grow_ns, a host to be had      --> learner --caught up--> voter; sooner: U6
 *     voter unreachable for replace_ns, left, or removed  --> learner --caught up--> voter in its place, in one change
 *     learner unreachable for replace_ns, left or removed --> dropped
 *
 * U1. A learner becomes a voter only when its log is as good as the leader's, and holds, durably, the configuration
 *     that names it: the change does not lower what survives, and a voter that crashes comes back as one.
 * U2. A voter is dropped only together with its replacement's promotion, or when it votes no more (left, removed, lost
 *     for good, stopped, wiped: then its own node may be the replacement), and the rest has a majority that is heard
 *     without it: else only the dead could commit the change, and the group would stand for ever. Heard is who has
 *     answered this leader, too: one that died just before is silent only some 600 ms later.
 * U3. A group that needs nothing has no deadline here: nodes that come or go, and support's edges, make it look
 *     again.
 * U5. A guardian on a host that is drained is replaced at once, and votes until then; a leader there first hands its
 *     office to another voter. Where nobody can take its place it stays one as long as the others are a majority
 *     without it: they decide as well when it has left, and a group made smaller before could lose another meanwhile
 *     (docs/decisions/0080).
 * U8. An ended job with a guardian on a drained host goes into the archive at once, and keeps its guardians, its leader too, until
 *     then: nobody copies its files to a guardian that comes after its end; the archive does.
 * U4. A group grows by two where two are to be had: of two guardians, either one's loss for good stops the group.
 * U6. A mesh group of one that two hosts could join waits for the others that come in the same second and no longer:
 *     until then the loss of that one host leaves a mesh that can decide nothing (docs/decisions/0030).
 * U7. Suspicion changes nothing: a loop that stood still for a second is no reason to go on with fewer guardians. */
#include "sched_archive.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_state.h"

#include "shoal/banned.h"

#define LOOK_NS (200 * SHOAL_MS) /* while a change or a learner is under way */
#define HAND_OVER_NS (2 * SHOAL_S)
#define FIRST_GROWTH_NS (1 * SHOAL_S)
#define CAUGHT_UP_ENTRIES 8

/* The worse goes first. */
enum loss {
    LOSS_SILENT,  /* it may come back */
    LOSS_DRAINED, /* it votes until it leaves */
    LOSS_GONE,    /* it votes no more: see U2 */
};

struct census {
    struct shoal_raft_progress list[SHOAL_GROUP_NODES_MAX];
    size_t count;
    unsigned voters;
    unsigned heard; /* voters, this node too, that are not silent and have answered this leader */
    unsigned learners;
    unsigned staying;      /* voters that are neither drained nor gone for good */
    bool draining;         /* a voter's host is drained */
    int lost;              /* a voter to replace, or -1 */
    enum loss loss;        /* how it is lost */
    bool lost_heard;       /* it is counted in `heard`: drained, or on its way out */
    bool unanswered;       /* some voter that is not silent has not answered this leader yet */
    uint64_t good_ns;      /* when the first silent one is lost for good, if it stays silent; SCHED_NEVER: none is */
    uint64_t next_loss_ns; /* when the next silent one must be replaced */
    unsigned available;    /* nodes that could be members, members included */
};

/* The node is there with another store: the member that was asked to vote is gone. */
static bool was_wiped(const struct shoal_sched *s, const struct shoal_raft_member *member)
{
    const struct sched_node *node = sched_node_find(s, member->id.node);

    return node != NULL && node->info.state == SHOAL_SCHED_NODE_ALIVE &&
           !shoal_store_id_equal(node->info.store, (struct shoal_store_id){ { 0 } }) &&
           !shoal_store_id_equal(node->info.store, member->id.store);
}

/* U5, U8. */
static bool has_to_leave(const struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id node)
{
    return sched_is_draining(s, node) && !sched_archive_awaits(g);
}

/* The time at which this member must be given up; SCHED_NEVER: it is well. */
static uint64_t loss_ns(const struct shoal_sched *s, const struct sched_group *g,
                        const struct shoal_raft_member *member)
{
    uint64_t since;

    SHOAL_ASSERT(s->options.replace_ns > 0);
    if (sched_is_self(s, member->id.node))
        return SCHED_NEVER;
    if (has_to_leave(s, g, member->id.node) || sched_gone_for_good(s, member->id.node) ||
        sched_is_broken(g, member->id.node))
        return 0;
    if (was_wiped(s, member))
        return sched_node_find(s, member->id.node)->since_ns + s->options.replace_ns;
    since = sched_silent_since(s, member->id.node);
    return since == 0 ? SCHED_NEVER : since + s->options.replace_ns;
}

static bool is_heard(const struct shoal_sched *s, const struct sched_group *g, const struct shoal_raft_member *member)
{
    return sched_is_self(s, member->id.node) || (sched_silent_since(s, member->id.node) == 0 && !was_wiped(s, member) &&
                                                 !sched_is_broken(g, member->id.node));
}

/* It has taken an entry of this leader, or a place to go on from. */
static bool has_answered(const struct shoal_sched *s, const struct shoal_raft_progress *voter)
{
    SHOAL_ASSERT(voter->member.bits & SHOAL_RAFT_VOTER);
    return sched_is_self(s, voter->member.id.node) || voter->match > 0;
}

static enum loss loss_of(const struct shoal_sched *s, const struct sched_group *g,
                         const struct shoal_raft_member *member)
{
    if (sched_is_self(s, member->id.node))
        return LOSS_SILENT;
    if (sched_gone_for_good(s, member->id.node) || sched_is_broken(g, member->id.node) || was_wiped(s, member))
        return LOSS_GONE;
    return has_to_leave(s, g, member->id.node) ? LOSS_DRAINED : LOSS_SILENT;
}

/* Notes the loss of member `i`, unless one as bad is noted. */
static void take_loss(const struct shoal_sched *s, const struct sched_group *g, struct census *c, int i,
                      uint64_t loss_ns)
{
    const struct shoal_raft_member *member = &c->list[i].member;
    uint64_t silent_ns = sched_is_self(s, member->id.node) ? 0 : sched_silent_since(s, member->id.node);
    enum loss loss = loss_of(s, g, member);

    if (sched_is_draining(s, member->id.node))
        c->draining = true;
    else if (loss == LOSS_SILENT)
        c->staying++;
    if (loss != LOSS_GONE && silent_ns != 0)
        c->good_ns = sched_sooner(c->good_ns, silent_ns + s->options.lost_ns);
    if (s->now < loss_ns || (c->lost >= 0 && c->loss >= loss))
        return;
    c->lost = i;
    c->loss = loss;
    c->lost_heard = is_heard(s, g, member) && has_answered(s, &c->list[i]);
}

static bool in_census(const struct census *c, struct shoal_node_id node)
{
    SHOAL_ASSERT(c->count <= SHOAL_GROUP_NODES_MAX);
    for (size_t i = 0; i < c->count; i++) {
        if (shoal_node_id_equal(c->list[i].member.id.node, node))
            return true;
    }
    return false;
}

/* No spare, but it counts where it is: this node until it has handed its office over (U5), and a member that is suspected,
 * for the seconds until it is heard or dead (U7). */
static bool is_kept(const struct shoal_sched *s, const struct census *c, const struct sched_node *node)
{
    SHOAL_ASSERT(node->info.state <= SHOAL_SCHED_NODE_FORGOTTEN);
    if (node->info.draining)
        return sched_is_self(s, node->info.id);
    return node->info.state == SHOAL_SCHED_NODE_SUSPECT && !sched_is_removed(s, node->info.id) &&
           in_census(c, node->info.id);
}

/* Its version reads the entries of a job of so many workers, too. */
static bool may_join(const struct shoal_sched *s, const struct sched_group *g, const struct sched_node *node)
{
    SHOAL_ASSERT(g->leads); /* U3: only a leader keeps */
    return sched_node_available(s, node) && (g->job == NULL || sched_node_takes(s, node, g->job->spec.workers_max));
}

static void count_members(const struct shoal_sched *s, const struct sched_group *g, struct census *c)
{
    SHOAL_ASSERT(g->leads); /* U3: only a leader keeps */
    *c = (struct census){ .lost = -1, .good_ns = SCHED_NEVER, .next_loss_ns = SCHED_NEVER };
    c->count = shoal_raft_progress(g->raft, c->list, SHOAL_GROUP_NODES_MAX);
    for (size_t i = 0; i < c->count; i++) {
        const struct shoal_raft_member *member = &c->list[i].member;
        uint64_t loss = loss_ns(s, g, member);

        if (member->bits & SHOAL_RAFT_LEARNER) {
            c->learners++;
        } else {
            c->voters++;
            if (is_heard(s, g, member) && has_answered(s, &c->list[i]))
                c->heard++;
            else
                c->unanswered = c->unanswered || is_heard(s, g, member);
            take_loss(s, g, c, (int)i, loss);
        }
        if (loss < c->next_loss_ns && s->now < loss)
            c->next_loss_ns = loss;
    }
    for (size_t i = 0; i < s->node_count; i++)
        c->available += may_join(s, g, &s->nodes[i]) || is_kept(s, c, &s->nodes[i]) ? 1 : 0;
}

static bool domain_used(const struct shoal_sched *s, const struct census *c, const struct sched_node *node)
{
    SHOAL_ASSERT(c->lost < (int)c->count);
    for (size_t i = 0; i < c->count; i++) {
        const struct sched_node *other = sched_node_find(s, c->list[i].member.id.node);

        if ((int)i != c->lost && other != NULL && sched_node_domain(node)[0] != '\0' &&
            strcmp(sched_node_domain(other), sched_node_domain(node)) == 0)
            return true;
    }
    return false;
}

/* The nearest by rendezvous that is no member, in a domain of its own if there is one. */
static const struct sched_node *pick(const struct shoal_sched *s, const struct sched_group *g, const struct census *c)
{
    const struct sched_node *best = NULL;
    uint64_t best_score = 0;
    bool best_alone = false;

    SHOAL_ASSERT(c->count <= SHOAL_GROUP_NODES_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[i];
        uint64_t score;
        bool alone;

        if (!may_join(s, g, node) || in_census(c, node->info.id))
            continue;
        score = sched_score(s, g->id, node->info.id);
        alone = !domain_used(s, c, node);
        if (best == NULL || (alone && !best_alone) || (alone == best_alone && score > best_score)) {
            best = node;
            best_score = score;
            best_alone = alone;
        }
    }
    return best;
}

static void change(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_config *target)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_CHANGE_CONFIG };
    enum shoal_err err;

    SHOAL_ASSERT(g->leads && !g->stopped);
    SHOAL_ASSERT(target->count > 0); /* U2 */
    event.u.change.ctx = SCHED_CTX_KEEP;
    event.u.change.target = target;
    err = sched_group_step(s, g, &event);
    SHOAL_ASSERT(err == SHOAL_OK);
    s->stats.config_changes++;
    g->keep_ns = s->now + LOOK_NS;
}

/* The members as they are, without `without` (or -1). */
static void config_of(const struct census *c, int without, struct shoal_raft_config *config)
{
    SHOAL_ASSERT(without < (int)c->count);
    *config = (struct shoal_raft_config){ 0 };
    for (size_t i = 0; i < c->count; i++) {
        if ((int)i != without)
            config->members[config->count++] = c->list[i].member;
    }
}

/* How many voters this group should have now. */
static unsigned wanted(const struct sched_group *g, const struct census *c)
{
    unsigned want = g->target;

    SHOAL_ASSERT(g->target > 0);
    if (want > c->available)
        want = c->available;
    if (want > 3 && want < 5)
        want = 3; /* four survive no more than three do */
    return want;
}

/* False: there is nobody to be had. */
static bool add_learner(struct shoal_sched *s, struct sched_group *g, const struct census *c)
{
    const struct sched_node *node = pick(s, g, c);
    struct shoal_raft_config config;

    if (node == NULL || c->count >= SHOAL_GROUP_NODES_MAX - 2)
        return false;
    config_of(c, -1, &config);
    config.members[config.count++] = (struct shoal_raft_member){
        .id = { .node = node->info.id, .store = node->info.store },
        .bits = SHOAL_RAFT_LEARNER,
    };
    SHOAL_ASSERT(config.count <= SHOAL_GROUP_NODES_MAX - 2); /* U4: two more find room in the change that promotes it */
    change(s, g, &config);
    return true;
}

/* U4: so many learners are to become voters in one change. */
static unsigned step_wanted(const struct sched_group *g, const struct census *c)
{
    unsigned want = wanted(g, c);

    return c->lost < 0 && c->voters % 2 == 1 && want >= c->voters + 2 ? 2 : 1;
}

/* U1. */
static bool is_ready(const struct shoal_sched *s, const struct sched_group *g,
                     const struct shoal_raft_progress *learner)
{
    return sched_silent_since(s, learner->member.id.node) == 0 && !learner->needs_snapshot &&
           learner->match >= g->config_index && learner->match + CAUGHT_UP_ENTRIES >= shoal_raft_commit(g->raft);
}

/* The first learner that is unreachable itself, or not needed any more (whose place it was to take is back); or -1. */
static int useless_learner(const struct shoal_sched *s, const struct sched_group *g, const struct census *c)
{
    SHOAL_ASSERT(c->count <= SHOAL_GROUP_NODES_MAX);
    for (size_t i = 0; i < c->count; i++) {
        const struct shoal_raft_member *member = &c->list[i].member;

        if (member->bits & SHOAL_RAFT_LEARNER &&
            (s->now >= loss_ns(s, g, member) || (c->lost < 0 && c->voters >= wanted(g, c))))
            return (int)i;
    }
    return -1;
}

/* Learners become voters, in the place of a lost one if there is one. */
static void tend_learners(struct shoal_sched *s, struct sched_group *g, const struct census *c)
{
    int useless = useless_learner(s, g, c);
    struct shoal_raft_config config;
    unsigned ready = 0;

    g->keep_ns = s->now + LOOK_NS;
    if (useless >= 0) {
        config_of(c, useless, &config);
        change(s, g, &config);
        return;
    }
    if (c->learners < step_wanted(g, c) && add_learner(s, g, c))
        return;
    for (size_t i = 0; i < c->count; i++)
        ready += c->list[i].member.bits & SHOAL_RAFT_LEARNER && is_ready(s, g, &c->list[i]) ? 1 : 0;
    if (ready < step_wanted(g, c))
        return;
    config_of(c, c->lost, &config);
    for (size_t i = 0; i < c->count; i++)
        for (unsigned m = 0; m < config.count && c->list[i].member.bits & SHOAL_RAFT_LEARNER; m++)
            if (shoal_raft_id_equal(config.members[m].id, c->list[i].member.id) && is_ready(s, g, &c->list[i]))
                config.members[m].bits = SHOAL_RAFT_VOTER;
    change(s, g, &config);
}

/* More voters than the target: a host came back while its place was being taken. The furthest one goes. */
static void drop_one(struct shoal_sched *s, struct sched_group *g, const struct census *c)
{
    struct shoal_raft_config config;
    uint64_t least = UINT64_MAX;
    int furthest = -1;

    SHOAL_ASSERT(c->voters > 1); /* U2 */
    for (size_t i = 0; i < c->count; i++) {
        uint64_t score = sched_score(s, g->id, c->list[i].member.id.node);

        if (!sched_is_self(s, c->list[i].member.id.node) && score < least) {
            least = score;
            furthest = (int)i;
        }
    }
    config_of(c, furthest, &config);
    change(s, g, &config);
}

/* U5. True: one is to be had, and was asked to take over. */
static bool hand_over(struct shoal_sched *s, struct sched_group *g, const struct census *c)
{
    struct shoal_raft_event event = { .kind = SHOAL_RAFT_EVENT_TRANSFER };
    enum shoal_err err;

    g->hurry = true; /* of one guardian: to have another */
    for (size_t i = 0; i < c->count; i++) {
        const struct shoal_raft_progress *one = &c->list[i];

        if (!(one->member.bits & SHOAL_RAFT_VOTER) || sched_is_self(s, one->member.id.node) ||
            sched_is_draining(s, one->member.id.node) || !is_heard(s, g, &one->member) || one->needs_snapshot ||
            one->match + CAUGHT_UP_ENTRIES < shoal_raft_commit(g->raft))
            continue;
        event.u.transfer.ctx = SCHED_CTX_KEEP;
        event.u.transfer.to = one->member.id.node;
        g->keep_ns = s->now + HAND_OVER_NS;
        err = sched_group_step(s, g, &event);
        SHOAL_ASSERT(err == SHOAL_OK);
        return true;
    }
    return false;
}

/* How long the group may be below its target before it grows (U6). */
static uint64_t patience_ns(const struct shoal_sched *s, const struct sched_group *g, const struct census *c)
{
    SHOAL_ASSERT(c->voters < wanted(g, c));
    if (g->hurry)
        return 0;
    return g->mesh_is && c->voters == 1 && step_wanted(g, c) == 2 ? sched_sooner(FIRST_GROWTH_NS, s->options.grow_ns)
                                                                  : s->options.grow_ns;
}

/* Nobody can take the lost one's place. U2, U5. */
static void shrink(struct shoal_sched *s, struct sched_group *g, const struct census *c)
{
    struct shoal_raft_config config;
    bool stays = c->loss == LOSS_SILENT || (c->loss == LOSS_DRAINED && c->lost_heard && 2 * c->staying > c->voters);

    SHOAL_ASSERT(c->lost >= 0);
    if (!stays && c->voters > 1 && 2 * c->heard > c->voters && 2 * (c->heard - (c->lost_heard ? 1 : 0)) > c->voters - 1) {
        config_of(c, c->lost, &config);
        change(s, g, &config);
        return;
    }
    if (c->good_ns != SCHED_NEVER && c->good_ns > s->now)
        g->keep_ns = sched_sooner(g->keep_ns, c->good_ns);
    if (!stays && c->unanswered)
        g->keep_ns = s->now + LOOK_NS;
}

bool sched_keep_spares(const struct shoal_sched *s, const struct shoal_node_id *voters, unsigned count)
{
    unsigned staying = 0;

    SHOAL_ASSERT(count <= SHOAL_GROUP_NODES_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        bool votes = false;

        for (unsigned v = 0; v < count; v++)
            votes = votes || shoal_node_id_equal(voters[v], s->nodes[i].info.id);
        if (!votes && sched_node_available(s, &s->nodes[i]))
            return false;
        staying += votes && sched_node_available(s, &s->nodes[i]) ? 1 : 0;
    }
    return 2 * staying > count;
}

void sched_keep(struct shoal_sched *s, struct sched_group *g)
{
    struct shoal_raft_status status;
    struct census c;

    SHOAL_ASSERT(g->raft != NULL);
    shoal_raft_status(g->raft, &status);
    if (!g->leads || g->stopped) {
        g->keep_ns = SCHED_NEVER;
        return;
    }
    if (g->applied_term != g->term || !status.config_committed) {
        g->keep_ns = s->now + LOOK_NS;
        return;
    }
    count_members(s, g, &c);
    if (c.draining && sched_archive_awaits(g))
        sched_archive_hurry(s, g);
    if (has_to_leave(s, g, s->self) && hand_over(s, g, &c))
        return;
    g->keep_ns = SCHED_NEVER - 1; /* looked: nothing by the clock alone */
    if (c.learners > 0) {
        tend_learners(s, g, &c);
        return;
    }
    if (c.lost >= 0) {
        if (!add_learner(s, g, &c))
            shrink(s, g, &c);
        return;
    }
    if (c.voters > g->target) {
        drop_one(s, g, &c);
        return;
    }
    if (c.voters < wanted(g, &c)) {
        if (g->below_since_ns == 0)
            g->below_since_ns = s->now;
        if (s->now >= g->below_since_ns + patience_ns(s, g, &c))
            (void)add_learner(s, g, &c);
        else
            g->keep_ns = g->below_since_ns + patience_ns(s, g, &c);
    } else {
        g->below_since_ns = 0;
        g->hurry = g->hurry && c.voters < g->target; /* on a mesh of one: until others join */
    }
    g->keep_ns = sched_sooner(g->keep_ns, c.next_loss_ns);
}

void sched_keep_all(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->group_count <= s->groups_max);
    for (size_t i = 0; i < s->group_count; i++) {
        if (!s->groups[i]->leads)
            continue;
        s->groups[i]->keep_ns = s->now;
        sched_group_dirty(s, s->groups[i]);
    }
}
