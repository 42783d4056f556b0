/* Seals: a majority of the mesh group says of a copy that it is what they have applied (PROTOCOLS 4).
 *
 *   guardian: applied something --> its copy, sealed by itself --SEAL--> the other guardians
 *             seals of a majority, itself among them           --> kept, published, given away with the seals
 *   others:   a copy --> sealed by a majority of those it names, and tied to the copy that is held here? --> taken
 *
 * L1. A guardian seals what it has applied itself, and nothing else: a version that its group has not reached gets no seal
 *     of a majority, so versions rise as the log does.
 * L2. A copy that names other guardians is tied to the one before by the seals of half of the guardians before, at least:
 *     a majority of the new ones has so many of the old ones when one comes or goes.
 * L3. A copy that is not tied (this node was away while several guardians changed, or the group was recovered, which
 *     nobody of the old group seals) is taken only while this node hears no majority of the guardians that it knows, or
 *     when most of the other live hosts say, each in its own record, that they hold that line of guardians. One host that
 *     lies convinces nobody who hears the others.
 * L4. With its seal a guardian says whether the rules bind: every live host follows them, for an hour, or since this mesh
 *     was founded. From then on what the version before sends (copies with one signature, requests without a token) is
 *     refused. Until then a mesh of two versions works as the older one does. */
#include "sched_seal.h"
#include "sched_copy.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_state.h"

#include "shoal/banned.h"

#define SEAL_RETRY_NS (500 * SHOAL_MS)
#define BIND_AFTER_NS (3600 * SHOAL_S)
#define SETTLED_NS (3 * SHOAL_S) /* gossip has told who is there by then */

static const struct shoal_job_id mesh_id = { { 0 } };

/* ---- One seal ---- */

static size_t statement(const struct mesh_copy *copy, struct shoal_hash hash, bool binds,
                        uint8_t bytes[MESH_STATEMENT_BYTES_MAX])
{
    struct shoal_writer w = shoal_writer_init(bytes, MESH_STATEMENT_BYTES_MAX);
    bool fits = sched_mesh_statement_encode(copy, hash, binds, &w);

    SHOAL_ASSERT(fits);
    return w.len;
}

static bool seal_is_genuine(const struct shoal_sched *s, const struct mesh_copy *copy, struct shoal_hash hash,
                            const struct mesh_seal *seal)
{
    uint8_t bytes[MESH_STATEMENT_BYTES_MAX];
    size_t len = statement(copy, hash, seal->binds, bytes);

    SHOAL_ASSERT(len > 0);
    return s->options.env.verify(s->options.env.arg, seal->key, shoal_view_of(bytes, len), seal->signature);
}

static struct shoal_node_id sealer(const struct shoal_sched *s, const struct mesh_seal *seal)
{
    return s->options.env.node_of_key(s->options.env.arg, seal->key);
}

static bool names(const struct shoal_node_id *nodes, unsigned count, struct shoal_node_id node)
{
    SHOAL_ASSERT(count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < count; i++)
        if (shoal_node_id_equal(nodes[i], node))
            return true;
    return false;
}

bool sched_seal_binds(const struct mesh_copy *copy)
{
    unsigned binding = 0;

    SHOAL_ASSERT(copy->seal_count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < copy->seal_count; i++)
        binding += copy->seals[i].binds ? 1 : 0;
    return 2 * binding > copy->count;
}

/* ---- May it be taken? ---- */

static bool hears(const struct shoal_sched *s, struct shoal_node_id id)
{
    const struct sched_node *node = sched_node_find(s, id);

    return sched_is_self(s, id) || (node != NULL && !sched_node_is_gone(s, node));
}

/* L3: of the guardians that the copy held here names. */
static bool hears_majority(const struct shoal_sched *s)
{
    unsigned heard = 0;

    SHOAL_ASSERT(s->mesh_hint.count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < s->mesh_hint.count; i++)
        heard += hears(s, s->mesh_hint.guardians[i]) ? 1 : 0;
    return 2 * heard > s->mesh_hint.count;
}

/* L3: a line is a lineage, and of one lineage the newer configuration. */
static bool most_others_hold(const struct shoal_sched *s, uint64_t config)
{
    size_t live = 0, hold = 0;

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[i];

        if (sched_is_self(s, node->info.id) || sched_node_is_gone(s, node))
            continue;
        live++;
        hold += node->info.mesh_config >= config ? 1 : 0;
    }
    return 2 * hold > live;
}

/* L2, L3. */
static bool is_tied(const struct shoal_sched *s, const struct mesh_copy *copy)
{
    unsigned old = 0;

    SHOAL_ASSERT(copy->seal_count <= SHOAL_SCHED_SOURCES_MAX);
    if (s->copy.len == 0 || (!s->copy_sealed && sched_lineage(copy->version) == sched_lineage(s->copy_version)))
        return true; /* the first one, or the first with seals */
    for (unsigned i = 0; i < copy->seal_count; i++)
        old += names(s->mesh_hint.guardians, s->mesh_hint.count, sealer(s, &copy->seals[i])) ? 1 : 0;
    if (sched_lineage(copy->version) == sched_lineage(s->copy_version) && 2 * old >= s->mesh_hint.count)
        return true;
    if (s->now < s->options.start_ns + SETTLED_NS)
        return false;
    return !hears_majority(s) || most_others_hold(s, copy->config);
}

enum shoal_err sched_seal_check(struct shoal_sched *s, struct mesh_copy *copy)
{
    struct shoal_hash hash = sched_hash(s, copy->state);
    struct shoal_node_id counted[SHOAL_SCHED_SOURCES_MAX];
    unsigned valid = 0;

    SHOAL_ASSERT(copy->seal_count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < copy->seal_count; i++) {
        struct shoal_node_id node = sealer(s, &copy->seals[i]);

        if (!names(copy->guardians, copy->count, node) || names(counted, valid, node) ||
            !seal_is_genuine(s, copy, hash, &copy->seals[i]))
            continue;
        counted[valid] = node;
        copy->seals[valid++] = copy->seals[i];
    }
    copy->seal_count = (uint8_t)valid;
    if (2 * valid <= copy->count || !is_tied(s, copy))
        return SHOAL_ERR_DENIED;
    return SHOAL_OK;
}

/* ---- Sealing, as a guardian ---- */

/* L4: every live host says that it follows the rules, and for how long it has been so. */
static bool should_bind(const struct shoal_sched *s, const struct mesh_copy *copy)
{
    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    if (s->copy_bound || (s->copy.len == 0 && copy->count == 1))
        return true; /* of this mesh, or founded just now */
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[i];

        if (!sched_is_self(s, node->info.id) && !sched_node_is_gone(s, node) && node->info.rules == 0)
            return false;
    }
    return s->now >= s->rules_lacked_ns + BIND_AFTER_NS;
}

/* Those that could seal at all. */
static unsigned followers(const struct shoal_sched *s, const struct mesh_copy *copy)
{
    unsigned count = 0;

    SHOAL_ASSERT(copy->count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < copy->count; i++)
        count += shoal_sched_follows_rules(s, copy->guardians[i]) ? 1 : 0;
    return count;
}

static void say_seal(struct shoal_sched *s, struct shoal_node_id to, bool wanted)
{
    struct frame frame = { .kind = FRAME_SEAL };

    SHOAL_ASSERT(s->sealing.copy.version > 0);
    frame.u.seal.version = s->sealing.copy.version;
    frame.u.seal.config = s->sealing.copy.config;
    frame.u.seal.wanted = wanted;
    frame.u.seal.seal = s->sealing.own;
    sched_send(s, to, &frame);
}

static const struct sched_seal_heard *heard_of(const struct sched_sealing *sealing, struct shoal_node_id node)
{
    for (uint32_t i = 0; i < sealing->heard_count; i++)
        if (shoal_node_id_equal(sealing->heard[i].node, node) && sealing->heard[i].version == sealing->copy.version &&
            sealing->heard[i].config == sealing->copy.config)
            return &sealing->heard[i];
    return NULL;
}

/* The seals that are there by now make a copy, or it waits. */
static void try_finish(struct shoal_sched *s)
{
    struct sched_sealing *sealing = &s->sealing;
    struct mesh_copy copy = sealing->copy;

    SHOAL_ASSERT(copy.version > 0);
    copy.state = shoal_buf_view(&sealing->state);
    copy.seal_count = 0;
    for (unsigned i = 0; i < copy.count; i++) {
        const struct sched_seal_heard *heard = heard_of(sealing, copy.guardians[i]);

        if (sched_is_self(s, copy.guardians[i]))
            copy.seals[copy.seal_count++] = sealing->own;
        else if (heard != NULL)
            copy.seals[copy.seal_count++] = heard->seal;
    }
    if (2 * copy.seal_count <= copy.count)
        return;
    /* The founder of a lineage knows that it is one: its group is its own word. */
    if (sched_seal_check(s, &copy) != SHOAL_OK &&
        (2 * copy.seal_count <= copy.count || sched_lineage(copy.version) == sched_lineage(s->copy_version)))
        return;
    if (sched_copy_replace(s, &copy) != SHOAL_OK)
        return; /* no memory: once more when it is due */
    sealing->retry_ns = SCHED_NEVER;
}

void sched_seal_due(struct shoal_sched *s)
{
    struct sched_sealing *sealing = &s->sealing;
    const struct mesh_copy *copy = &sealing->copy;

    SHOAL_ASSERT(s->now >= sealing->retry_ns);
    sealing->retry_ns = SCHED_NEVER;
    if (copy->version == 0 || s->copy_old_count == SCHED_COPIES_MAX)
        return;
    sealing->retry_ns = s->now + SEAL_RETRY_NS;
    if (!s->copy_bound && 2 * followers(s, copy) <= copy->count) {
        if (sched_copy_make_old(s, sealing) == SHOAL_OK) /* L4 */
            sealing->retry_ns = SCHED_NEVER;
        return;
    }
    for (unsigned i = 0; i < copy->count; i++)
        if (!sched_is_self(s, copy->guardians[i]) && shoal_sched_follows_rules(s, copy->guardians[i]))
            say_seal(s, copy->guardians[i], heard_of(sealing, copy->guardians[i]) == NULL);
    try_finish(s);
}

void sched_seal_begin(struct shoal_sched *s, const struct sched_group *g)
{
    struct sched_sealing *sealing = &s->sealing;
    struct mesh_copy copy = { .version = sched_mesh_version(g), .config = sched_group_config_version(g) };
    uint8_t bytes[MESH_STATEMENT_BYTES_MAX];
    size_t len;

    SHOAL_ASSERT(g->mesh_is && copy.version > 0); /* L1 */
    if (copy.version == sealing->copy.version && copy.config == sealing->copy.config)
        return;
    if (!sched_copy_state(g, &sealing->state))
        return; /* the next entry tries again */
    copy.count = (uint8_t)sched_group_guardians(g, copy.guardians, SHOAL_SCHED_SOURCES_MAX);
    sealing->copy = copy;
    sealing->hash = sched_hash(s, shoal_buf_view(&sealing->state));
    sealing->own.binds = should_bind(s, &copy);
    memcpy(sealing->own.key, s->options.public_key, sizeof(sealing->own.key));
    len = statement(&copy, sealing->hash, sealing->own.binds, bytes);
    s->options.env.sign(s->options.env.arg, shoal_view_of(bytes, len), sealing->own.signature);
    sealing->retry_ns = s->now;
    sched_seal_due(s);
}

static void hear(struct sched_sealing *sealing, struct shoal_node_id from, const struct frame *frame)
{
    struct sched_seal_heard *place = NULL;

    SHOAL_ASSERT(sealing->heard_count <= SCHED_SEALS_HEARD_MAX);
    for (uint32_t i = 0; i < sealing->heard_count && place == NULL; i++)
        if (shoal_node_id_equal(sealing->heard[i].node, from))
            place = &sealing->heard[i];
    if (place == NULL && sealing->heard_count < SCHED_SEALS_HEARD_MAX)
        place = &sealing->heard[sealing->heard_count++];
    if (place == NULL) { /* full: of one that is no guardian any more, most likely */
        memmove(&sealing->heard[0], &sealing->heard[1], (SCHED_SEALS_HEARD_MAX - 1) * sizeof(sealing->heard[0]));
        place = &sealing->heard[SCHED_SEALS_HEARD_MAX - 1];
    }
    *place = (struct sched_seal_heard){ from, frame->u.seal.version, frame->u.seal.config, frame->u.seal.seal };
}

/* Of a guardian, or of one that the group here takes for its member: of others nothing is kept. */
void sched_on_seal(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    const struct sched_group *g = sched_group_find(s, mesh_id);
    const struct mesh_copy *copy = &s->sealing.copy;

    SHOAL_ASSERT(frame->kind == FRAME_SEAL);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (g == NULL || g->stopped || shoal_raft_config_find(shoal_raft_config(g->raft), from) == NULL ||
        !shoal_node_id_equal(sealer(s, &frame->u.seal.seal), from))
        return;
    hear(&s->sealing, from, frame);
    if (copy->version == 0)
        return;
    if (frame->u.seal.wanted && shoal_sched_follows_rules(s, from))
        say_seal(s, from, false);
    if (s->sealing.retry_ns != SCHED_NEVER && frame->u.seal.version == copy->version &&
        frame->u.seal.config == copy->config && s->copy_old_count < SCHED_COPIES_MAX)
        try_finish(s);
}
