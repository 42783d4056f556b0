/* The mesh's state on every node (PROTOCOLS 4): the newest signed copy, which logons and reads are served from.
 *
 *   guardian: applied something --> encode, sign, keep, publish the version
 *   any node that has it: MESH_GET --> MESH_PART
 *   others:   a newer version heard of --> fetched in parts from who said so --> verified --> kept, published
 *
 * K1. A copy replaces another only with a higher version, and only with the signature of a node known here.
 *     The group's lineage (sched_recover.c) is the high half of its versions: what a recovered group says is newer than
 *     all that the group of before can say, and a replica of an earlier lineage goes when it hears of a later one.
 * K2. It holds the token key and password hashes: it travels over links, and gossip carries its version alone. */
#include "sched_copy.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_request.h"
#include "sched_state.h"

#include "shoal/banned.h"

#define PART_BYTES (64 * SHOAL_KIB)
#define GET_RETRY_NS (500 * SHOAL_MS)

static const struct shoal_job_id mesh_id = { { 0 } };

static void publish(struct shoal_sched *s)
{
    uint8_t *bytes = sched_pool(s, 128, 0);
    struct shoal_writer w = shoal_writer_init(bytes, 128);
    struct shoal_sched_action *action;
    bool fits;

    SHOAL_ASSERT(bytes != NULL);
    SHOAL_ASSERT(s->actions != NULL);  /* within a step */
    SHOAL_ASSERT(s->copy_version > 0); /* K1 */
    s->mesh_hint.version = s->copy_version;
    fits = sched_mesh_hint_encode(&s->mesh_hint, &w);
    SHOAL_ASSERT(fits);
    action = sched_act(s, SHOAL_SCHED_PUBLISH_MESH);
    action->u.publish.version = s->copy_version;
    action->u.publish.config = s->mesh_hint.config;
    action->u.publish.payload = shoal_writer_view(&w);
}

void sched_copy_begin(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->copy_old_count <= SCHED_COPIES_MAX);
    while (s->copy_old_count > 0)
        shoal_buf_deinit(&s->copy_old[--s->copy_old_count]);
}

/* Another copy takes its place, in memory of its own. FULL: too many in one step; the next one will do. */
static enum shoal_err copy_replace(struct shoal_sched *s, struct shoal_buf *next)
{
    SHOAL_ASSERT(next->len > 0);
    if (s->copy_old_count == SCHED_COPIES_MAX)
        return SHOAL_ERR_FULL;
    s->copy_old[s->copy_old_count++] = s->copy;
    s->copy = *next;
    *next = (struct shoal_buf){ 0 };
    return SHOAL_OK;
}

static void keep(struct shoal_sched *s)
{
    struct shoal_sched_action *action = sched_act(s, SHOAL_SCHED_KEEP_MESH);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    SHOAL_ASSERT(s->copy.len > 0);
    action->u.publish.version = s->copy_version;
    action->u.publish.payload = shoal_buf_view(&s->copy);
}

/* Guardians change without any command: the newest configuration heard of tells where changes go to. */
static void learn_guardians(struct shoal_sched *s, uint64_t config, uint8_t count,
                            const struct shoal_node_id *guardians)
{
    SHOAL_ASSERT(count <= SHOAL_SCHED_SOURCES_MAX);
    if (count == 0 || (s->mesh_hint.count > 0 && config <= s->mesh_hint.config))
        return;
    s->mesh_hint.config = config;
    s->mesh_hint.count = count;
    memcpy(s->mesh_hint.guardians, guardians, count * sizeof(guardians[0]));
}

/* Another one: other nodes are removed from the mesh than before. */
static uint64_t removed_mark(const struct shoal_mesh *mesh)
{
    uint64_t mark = 1469598103934665603ull; /* FNV-1a */

    for (size_t i = 0; i < shoal_mesh_eviction_count(mesh); i++) {
        struct shoal_node_id id = shoal_mesh_eviction_at(mesh, i);

        for (unsigned b = 0; b < sizeof(id.bytes); b++)
            mark = (mark ^ id.bytes[b]) * 1099511628211ull;
    }
    return mark;
}

static enum shoal_err decode_state(struct shoal_sched *s, struct shoal_view state)
{
    enum shoal_err err;
    uint64_t before;

    if (s->mesh == NULL)
        s->mesh = shoal_mesh_create();
    if (s->mesh == NULL)
        return SHOAL_ERR_FULL;
    before = removed_mark(s->mesh);
    err = shoal_mesh_decode(s->mesh, state);
    if (err == SHOAL_OK && removed_mark(s->mesh) != before)
        sched_nodes_changed(s);
    return err;
}

uint64_t sched_mesh_version(const struct sched_group *g)
{
    SHOAL_ASSERT(g->mesh_is);
    return sched_group_lineage(g) << SCHED_LINEAGE_SHIFT | (uint32_t)shoal_mesh_version(g->mesh); /* K1 */
}

/* This node guards the mesh and has applied something, or its guardians changed. */
void sched_copy_make(struct shoal_sched *s)
{
    struct sched_group *g = sched_group_find(s, mesh_id);
    struct mesh_copy copy = { 0 };
    struct shoal_buf state = { 0 }, next = { 0 };
    struct shoal_writer w;
    bool fits;

    SHOAL_ASSERT(s->copy_dirty && s->copy_old_count < SCHED_COPIES_MAX);
    s->copy_dirty = false;
    if (g == NULL || g->stopped || shoal_mesh_version(g->mesh) == 0 || sched_mesh_version(g) < s->copy_version)
        return;
    copy.version = sched_mesh_version(g);
    copy.config = sched_group_config_version(g);
    copy.count = (uint8_t)sched_group_guardians(g, copy.guardians, SHOAL_SCHED_SOURCES_MAX);
    if (shoal_mesh_encode(g->mesh, &state) == SHOAL_OK && decode_state(s, shoal_buf_view(&state)) == SHOAL_OK &&
        shoal_buf_reserve(&next, state.len + 512) == SHOAL_OK) {
        copy.state = shoal_buf_view(&state);
        w = shoal_writer_init(next.bytes, next.cap);
        fits = sched_mesh_copy_encode_body(&copy, &w);
        SHOAL_ASSERT(fits);
        s->options.env.sign(s->options.env.arg, shoal_writer_view(&w), copy.signature);
        shoal_put_raw(&w, s->options.public_key, SHOAL_SCHED_KEY_BYTES);
        shoal_put_raw(&w, copy.signature, SHOAL_SCHED_SIGNATURE_BYTES);
        SHOAL_ASSERT(!w.failed);
        next.len = w.len;
        fits = copy_replace(s, &next) == SHOAL_OK;
        SHOAL_ASSERT(fits);
        s->copy_version = copy.version;
        learn_guardians(s, copy.config, copy.count, copy.guardians);
        keep(s);
        publish(s);
        sched_requests_copy(s);
    }
    shoal_buf_deinit(&state);
    shoal_buf_deinit(&next);
}

static bool copy_is_genuine(const struct shoal_sched *s, const struct mesh_copy *copy, struct shoal_view signed_bytes)
{
    const struct shoal_sched_env *env = &s->options.env;
    struct shoal_node_id signer = env->node_of_key(env->arg, copy->key);

    SHOAL_ASSERT(signed_bytes.len > 0);
    if (!sched_is_self(s, signer) && sched_node_find(s, signer) == NULL)
        return false;
    return env->verify(env->arg, copy->key, signed_bytes, copy->signature);
}

enum shoal_err sched_copy_take(struct shoal_sched *s, struct shoal_view bytes, bool trusted)
{
    struct mesh_copy copy;
    struct shoal_buf next = { 0 };
    size_t signed_len;
    enum shoal_err err = sched_mesh_copy_decode(bytes, &copy, &signed_len);

    SHOAL_ASSERT(bytes.len == 0 || bytes.bytes != NULL);
    if (err != SHOAL_OK)
        return err;
    if (copy.version <= s->copy_version)
        return SHOAL_ERR_STALE;
    /* K1; the own file is trusted: at start no node is known yet, and it was verified when it came. */
    if (!trusted && !copy_is_genuine(s, &copy, shoal_view_of(bytes.bytes, signed_len)))
        return SHOAL_ERR_DENIED;
    err = decode_state(s, copy.state);
    if (err != SHOAL_OK)
        return err;
    err = shoal_buf_append(&next, bytes.bytes, bytes.len);
    if (err == SHOAL_OK)
        err = copy_replace(s, &next);
    shoal_buf_deinit(&next);
    if (err != SHOAL_OK)
        return err;
    s->copy_version = copy.version;
    learn_guardians(s, copy.config, copy.count, copy.guardians);
    if (!trusted)
        keep(s);
    publish(s);
    sched_requests_copy(s);
    return SHOAL_OK;
}

/* ---- Fetching ---- */

static void ask_part(struct shoal_sched *s)
{
    struct frame frame = { .kind = FRAME_MESH_GET };

    SHOAL_ASSERT(!shoal_node_id_is_zero(s->getting.from));
    frame.u.mesh_get.version = s->getting.version;
    frame.u.mesh_get.offset = s->getting.version == 0 ? 0 : s->getting.bytes.len;
    s->getting.retry_ns = s->now + GET_RETRY_NS;
    if (!sched_is_self(s, s->getting.from))
        sched_send(s, s->getting.from, &frame);
}

void sched_copy_due(struct shoal_sched *s)
{
    const struct sched_node *node = sched_node_find(s, s->getting.from);
    struct shoal_node_id from = { { 0 } };

    SHOAL_ASSERT(s->now >= s->getting.retry_ns);
    if (s->getting.heard <= s->copy_version) {
        s->getting.retry_ns = SCHED_NEVER;
        shoal_buf_deinit(&s->getting.bytes);
        return;
    }
    if (node == NULL || node->info.state != SHOAL_SCHED_NODE_ALIVE)
        from = sched_any_alive(s); /* every node that has it gives it */
    if (!shoal_node_id_is_zero(from))
        s->getting.from = from;
    s->getting.version = 0; /* from the start: what came so far may be of a version that is gone */
    ask_part(s);
}

/* K1: the group that this node guards was recovered by others, who took it for lost. */
static void drop_old_lineage(struct shoal_sched *s, uint64_t lineage)
{
    struct sched_group *g = sched_group_find(s, mesh_id);
    struct shoal_raft_status status;

    if (g == NULL || g->doomed_ns != SCHED_NEVER || lineage <= sched_group_lineage(g))
        return;
    shoal_raft_status(g->raft, &status);
    if (status.last > 0) /* else a joiner of that lineage, that has got nothing yet */
        sched_group_doom(s, g, 0, false);
}

void sched_on_mesh_heard(struct shoal_sched *s, struct shoal_node_id author, struct shoal_view payload)
{
    struct mesh_hint hint;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (sched_is_self(s, author) || sched_mesh_hint_decode(payload, &hint) != SHOAL_OK)
        return;
    learn_guardians(s, hint.config, hint.count, hint.guardians);
    drop_old_lineage(s, sched_lineage(hint.config));
    if (hint.version <= s->copy_version || hint.version <= s->getting.heard)
        return;
    s->getting.heard = hint.version;
    s->getting.from = author;
    if (s->getting.retry_ns == SCHED_NEVER)
        s->getting.retry_ns = s->now;
}

void sched_on_mesh_get(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct frame part = { .kind = FRAME_MESH_PART };
    uint64_t offset = frame->u.mesh_get.version == s->copy_version ? frame->u.mesh_get.offset : 0;

    SHOAL_ASSERT(frame->kind == FRAME_MESH_GET);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (s->copy.len == 0 || sched_is_removed(s, from))
        return;
    if (offset > s->copy.len)
        offset = 0;
    part.u.mesh_part.version = s->copy_version;
    part.u.mesh_part.offset = offset;
    part.u.mesh_part.total = s->copy.len;
    part.u.mesh_part.bytes =
        shoal_view_of(s->copy.bytes + offset, s->copy.len - offset < PART_BYTES ? s->copy.len - offset : PART_BYTES);
    sched_send(s, from, &part);
}

void sched_on_mesh_part(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_view bytes = frame->u.mesh_part.bytes;
    enum shoal_err err;

    SHOAL_ASSERT(frame->kind == FRAME_MESH_PART);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!shoal_node_id_equal(from, s->getting.from) || frame->u.mesh_part.version <= s->copy_version ||
        frame->u.mesh_part.total > SHOAL_MESH_COPY_BYTES_MAX + 512)
        return;
    if (frame->u.mesh_part.offset == 0) {
        s->getting.version = frame->u.mesh_part.version;
        s->getting.bytes.len = 0;
    }
    if (s->getting.version != frame->u.mesh_part.version || s->getting.bytes.len != frame->u.mesh_part.offset ||
        shoal_buf_append(&s->getting.bytes, bytes.bytes, bytes.len) != SHOAL_OK)
        return;
    if (s->getting.bytes.len < frame->u.mesh_part.total) {
        ask_part(s);
        return;
    }
    err = sched_copy_take(s, shoal_buf_view(&s->getting.bytes), false);
    s->getting.version = 0;
    /* Not taken: asked for again later, maybe of another node (its signer may be unknown here still). */
    s->getting.retry_ns = err == SHOAL_OK && s->getting.heard <= s->copy_version ? SCHED_NEVER : s->now + GET_RETRY_NS;
    if (err == SHOAL_OK && s->getting.heard <= s->copy_version)
        shoal_buf_deinit(&s->getting.bytes);
}
