/* The mesh's state on every node (PROTOCOLS 4): the newest sealed copy, which logons and reads are served from.
 *
 *   guardian: applied something --> encode, seal (sched_seal.c), keep, publish the version
 *   any node that has it: MESH_GET --> MESH_PART
 *   others:   a newer version heard of --> fetched in parts from who said so --> checked --> kept, published
 *
 * K1. A copy replaces another only with a higher version, or with the same and a later configuration, and only when
 *     sched_seal.c says that it is genuine. The group's lineage (sched_recover.c) is the high half of its versions: what
 *     a recovered group says is newer than all that the group of before can say, and a replica of an earlier lineage goes
 *     when a copy of a later one was taken here.
 * K2. It holds the token key and password hashes: it travels over links, and gossip carries its version alone.
 * K3. What gossip says of a version is a reason to ask who says it, and nothing more: who guards the mesh stands in
 *     copies. A host whose copy was refused is asked again after a pause that grows, and others come first. Each host
 *     says it of itself, in a record that nobody else can replace: guardians each version, others each new line of
 *     guardians. The shared record, for the version before, counts as a word of its author. */
#include "sched_copy.h"
#include "sched_group.h"
#include "sched_node.h"
#include "sched_request.h"
#include "sched_seal.h"
#include "sched_state.h"

#include "shoal/banned.h"

#define PART_BYTES (64 * SHOAL_KIB)
#define GET_RETRY_NS (500 * SHOAL_MS)
#define DENIED_NS (2 * SHOAL_S) /* doubled up to */
#define DENIED_DOUBLED_MAX 7

static const struct shoal_job_id mesh_id = { { 0 } };

/* As the copy says. */
static bool guards(const struct shoal_sched *s)
{
    SHOAL_ASSERT(s->mesh_hint.count <= SHOAL_SCHED_SOURCES_MAX);
    for (unsigned i = 0; i < s->mesh_hint.count; i++)
        if (sched_is_self(s, s->mesh_hint.guardians[i]))
            return true;
    return false;
}

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
    action->u.publish.own = s->mesh_hint.config != s->copy_said_config || guards(s);
    s->copy_said_config = s->mesh_hint.config;
}

void sched_copy_begin(struct shoal_sched *s)
{
    SHOAL_ASSERT(s->copy_old_count <= SCHED_COPIES_MAX);
    while (s->copy_old_count > 0)
        shoal_buf_deinit(&s->copy_old[--s->copy_old_count]);
}

/* Another copy takes its place, in memory of its own. FULL: too many in one step; the next one will do. */
static enum shoal_err put_in_place(struct shoal_sched *s, struct shoal_buf *next)
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

/* K1. */
static bool is_newer(const struct shoal_sched *s, uint64_t version, uint64_t config)
{
    return version > s->copy_version || (version == s->copy_version && config > s->mesh_hint.config);
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

/* The bytes in `next` are what `copy` was decoded from, or is encoded as; they are moved from there. */
static enum shoal_err take(struct shoal_sched *s, const struct mesh_copy *copy, struct shoal_buf *next, bool is_kept)
{
    enum shoal_err err = decode_state(s, copy->state);

    if (err == SHOAL_OK)
        err = put_in_place(s, next);
    if (err != SHOAL_OK)
        return err;
    if (copy->version >= s->sealing.copy.version)
        s->sealing.retry_ns = SCHED_NEVER;
    s->copy_version = copy->version;
    s->copy_sealed = copy->seal_count > 0;
    s->copy_bound = s->copy_bound || sched_seal_binds(copy);
    s->mesh_hint.config = copy->config;
    s->mesh_hint.count = copy->count;
    memcpy(s->mesh_hint.guardians, copy->guardians, copy->count * sizeof(copy->guardians[0]));
    if (!is_kept)
        keep(s);
    publish(s);
    sched_requests_copy(s);
    drop_old_lineage(s, sched_lineage(copy->version));
    return SHOAL_OK;
}

enum shoal_err sched_copy_replace(struct shoal_sched *s, const struct mesh_copy *copy)
{
    struct shoal_buf next = { 0 };
    struct shoal_writer w;
    enum shoal_err err = shoal_buf_reserve(&next, copy->state.len + MESH_COPY_REST_MAX);
    bool fits;

    SHOAL_ASSERT(copy->seal_count > 0);
    if (err == SHOAL_OK) {
        w = shoal_writer_init(next.bytes, next.cap);
        fits = sched_mesh_copy_encode(copy, &w);
        SHOAL_ASSERT(fits);
        next.len = w.len;
        err = take(s, copy, &next, false);
    }
    shoal_buf_deinit(&next);
    return err;
}

/* As the version before makes and reads it: with one signature, of this node. */
static enum shoal_err encode_old(struct shoal_sched *s, struct mesh_copy *copy, struct shoal_buf *bytes)
{
    enum shoal_err err = shoal_buf_reserve(bytes, copy->state.len + MESH_COPY_REST_MAX);
    struct shoal_writer w;
    bool fits;

    SHOAL_ASSERT(bytes->len == 0);
    if (err != SHOAL_OK)
        return err;
    w = shoal_writer_init(bytes->bytes, bytes->cap);
    fits = sched_mesh_copy_encode_body(copy, &w);
    SHOAL_ASSERT(fits);
    s->options.env.sign(s->options.env.arg, shoal_writer_view(&w), copy->signature);
    shoal_put_raw(&w, s->options.public_key, SHOAL_SCHED_KEY_BYTES);
    shoal_put_raw(&w, copy->signature, SHOAL_SCHED_SIGNATURE_BYTES);
    SHOAL_ASSERT(!w.failed);
    bytes->len = w.len;
    return SHOAL_OK;
}

enum shoal_err sched_copy_make_old(struct shoal_sched *s, const struct sched_sealing *sealing)
{
    struct mesh_copy copy = sealing->copy;
    struct shoal_buf next = { 0 };
    enum shoal_err err;

    SHOAL_ASSERT(!s->copy_bound); /* L4 */
    copy.state = shoal_buf_view(&sealing->state);
    copy.seal_count = 0;
    err = encode_old(s, &copy, &next);
    if (err == SHOAL_OK)
        err = take(s, &copy, &next, false);
    shoal_buf_deinit(&next);
    return err;
}

bool sched_copy_state(const struct sched_group *g, struct shoal_buf *state)
{
    struct shoal_buf next = { 0 };

    SHOAL_ASSERT(g->mesh_is);
    if (shoal_mesh_encode(g->mesh, &next) != SHOAL_OK) {
        shoal_buf_deinit(&next);
        return false;
    }
    shoal_buf_deinit(state);
    *state = next;
    return true;
}

/* This node guards the mesh and has applied something, or its guardians changed. While that change is under way, the
 * replicas do not name the same guardians: its end comes back here. */
void sched_copy_make(struct shoal_sched *s)
{
    struct sched_group *g = sched_group_find(s, mesh_id);
    struct shoal_raft_status status;
    uint64_t version;

    SHOAL_ASSERT(s->copy_old_count < SCHED_COPIES_MAX);
    if (!s->copy_dirty) {
        sched_seal_due(s);
        return;
    }
    s->copy_dirty = false;
    if (g == NULL || g->stopped || shoal_mesh_version(g->mesh) == 0)
        return;
    shoal_raft_status(g->raft, &status);
    version = sched_mesh_version(g);
    if (!status.config_committed || g->applied < status.commit || g->config_index == 0)
        return;
    if (is_newer(s, version, sched_group_config_version(g)) || (version == s->copy_version && !s->copy_sealed))
        sched_seal_begin(s, g);
}

/* Of the version before (L4): any node that is known here may have signed it. */
static bool old_is_genuine(const struct shoal_sched *s, const struct mesh_copy *copy, struct shoal_view signed_bytes)
{
    const struct shoal_sched_env *env = &s->options.env;
    struct shoal_node_id signer = env->node_of_key(env->arg, copy->key);

    SHOAL_ASSERT(signed_bytes.len > 0);
    if (s->copy_bound || (!sched_is_self(s, signer) && sched_node_find(s, signer) == NULL))
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
    if (!is_newer(s, copy.version, copy.config))
        return SHOAL_ERR_STALE;
    /* K1; the own file is trusted: at start no node is known yet, and it was checked when it came. */
    if (!trusted && copy.seal_count > 0)
        err = sched_seal_check(s, &copy);
    else if (!trusted && !old_is_genuine(s, &copy, shoal_view_of(bytes.bytes, signed_len)))
        err = SHOAL_ERR_DENIED;
    if (err == SHOAL_OK)
        err = shoal_buf_append(&next, bytes.bytes, bytes.len);
    if (err == SHOAL_OK) {
        copy.state.bytes = next.bytes + (copy.state.bytes - bytes.bytes); /* what is kept is what was checked */
        err = take(s, &copy, &next, trusted);
    }
    shoal_buf_deinit(&next);
    return err;
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

/* K3. */
static bool may_have_newer(const struct shoal_sched *s, const struct sched_node *node)
{
    return !sched_is_self(s, node->info.id) && !sched_node_is_gone(s, node) &&
           is_newer(s, node->info.mesh_version, node->info.mesh_config) && s->now >= node->mesh_ask_ns;
}

/* The next of them after the one that was asked last; NULL: nobody. */
static const struct sched_node *next_source(struct shoal_sched *s)
{
    size_t first = s->node_count == 0 ? 0 : ++s->getting.turn % s->node_count;

    SHOAL_ASSERT(s->node_count <= SHOAL_MEMBERS_MAX);
    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[(first + i) % s->node_count];

        if (may_have_newer(s, node))
            return node;
    }
    return NULL;
}

/* The time at which somebody who is left alone for now may be asked; SCHED_NEVER: nobody. */
static uint64_t next_asking(const struct shoal_sched *s)
{
    uint64_t at = SCHED_NEVER;

    for (size_t i = 0; i < s->node_count; i++) {
        const struct sched_node *node = &s->nodes[i];

        if (is_newer(s, node->info.mesh_version, node->info.mesh_config) && node->mesh_ask_ns > s->now &&
            node->mesh_ask_ns < at)
            at = node->mesh_ask_ns;
    }
    return at;
}

void sched_copy_due(struct shoal_sched *s)
{
    const struct sched_node *node = next_source(s);

    SHOAL_ASSERT(s->now >= s->getting.retry_ns);
    s->getting.version = 0; /* from the start: what came so far may be of a version that is gone */
    if (node == NULL) {
        s->getting.retry_ns = next_asking(s);
        shoal_buf_deinit(&s->getting.bytes);
        return;
    }
    s->getting.from = node->info.id;
    ask_part(s);
}

bool sched_copy_is_behind(const struct shoal_sched *s)
{
    for (size_t i = 0; i < s->node_count; i++)
        if (may_have_newer(s, &s->nodes[i]))
            return true;
    return false;
}

void sched_copy_look(struct shoal_sched *s, const struct sched_node *node)
{
    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (s->getting.version == 0 && may_have_newer(s, node) && s->getting.retry_ns > s->now)
        s->getting.retry_ns = s->now;
}

void sched_copy_heard(struct shoal_sched *s, struct shoal_node_id author, uint64_t version, uint64_t config)
{
    struct sched_node *node = sched_node_expect(s, author);

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (node == NULL || sched_is_removed(s, author))
        return;
    if (version > node->info.mesh_version || (version == node->info.mesh_version && config > node->info.mesh_config)) {
        node->info.mesh_version = version;
        node->info.mesh_config = config > 0 ? config : node->info.mesh_config;
    }
    sched_copy_look(s, node);
}

void sched_on_mesh_heard(struct shoal_sched *s, struct shoal_node_id author, struct shoal_view payload)
{
    struct mesh_hint hint;

    SHOAL_ASSERT(s->actions != NULL); /* within a step */
    if (!sched_is_self(s, author) && sched_mesh_hint_decode(payload, &hint) == SHOAL_OK)
        sched_copy_heard(s, author, hint.version, hint.config);
}

/* The copy as `from` can read it. Empty: no memory; it asks again. */
static struct shoal_view copy_for(struct shoal_sched *s, struct shoal_node_id from)
{
    const struct sched_node *node = sched_node_find(s, from);
    struct mesh_copy copy;
    size_t signed_len;

    if (!s->copy_sealed || node == NULL || node->info.rules > 0)
        return shoal_buf_view(&s->copy);
    if (s->copy_plain_version != s->copy_version || s->copy_plain_config != s->mesh_hint.config) {
        shoal_buf_deinit(&s->copy_plain);
        if (sched_mesh_copy_decode(shoal_buf_view(&s->copy), &copy, &signed_len) != SHOAL_OK ||
            encode_old(s, &copy, &s->copy_plain) != SHOAL_OK)
            return (struct shoal_view){ 0 };
        s->copy_plain_version = s->copy_version;
        s->copy_plain_config = s->mesh_hint.config;
    }
    return shoal_buf_view(&s->copy_plain);
}

void sched_on_mesh_get(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct frame part = { .kind = FRAME_MESH_PART };
    uint64_t offset = frame->u.mesh_get.version == s->copy_version ? frame->u.mesh_get.offset : 0;
    struct shoal_view copy;

    SHOAL_ASSERT(frame->kind == FRAME_MESH_GET);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (s->copy.len == 0 || sched_is_removed(s, from))
        return;
    copy = copy_for(s, from);
    if (copy.len == 0)
        return;
    if (offset > copy.len)
        offset = 0;
    part.u.mesh_part.version = s->copy_version;
    part.u.mesh_part.offset = offset;
    part.u.mesh_part.total = copy.len;
    part.u.mesh_part.bytes =
        shoal_view_of(copy.bytes + offset, copy.len - offset < PART_BYTES ? copy.len - offset : PART_BYTES);
    sched_send(s, from, &part);
}

/* K3. */
static void refuse(struct shoal_sched *s, struct sched_node *node)
{
    unsigned doubled = node->mesh_denials < DENIED_DOUBLED_MAX ? node->mesh_denials : DENIED_DOUBLED_MAX;
    struct shoal_sched_action *action;
    char name[16] = "";

    s->stats.copies_refused++;
    node->mesh_ask_ns = s->now + (DENIED_NS << doubled);
    node->mesh_denials = node->mesh_denials < UINT8_MAX ? (uint8_t)(node->mesh_denials + 1) : node->mesh_denials;
    if (node->mesh_denials != 3) /* by then gossip has told of all hosts, and the others have sealed what is true */
        return;
    sched_add_name(name, sizeof(name), node->info.id);
    action = sched_act(s, SHOAL_SCHED_SAY);
    (void)snprintf(
        action->u.fatal.text, sizeof(action->u.fatal.text),
        "refused version %llu of the mesh, which %s gave: it is not sealed by a majority of the mesh group that "
        "this host knows; if the group was recovered while this host was away, bring the other hosts back "
        "first, else shoal node remove %s",
        (unsigned long long)node->info.mesh_version, name, name);
}

static void on_whole(struct shoal_sched *s, struct shoal_node_id from)
{
    enum shoal_err err = sched_copy_take(s, shoal_buf_view(&s->getting.bytes), false);
    struct sched_node *node = sched_node_find(s, from);

    s->getting.version = 0;
    shoal_buf_deinit(&s->getting.bytes);
    if (node != NULL && err != SHOAL_ERR_FULL && is_newer(s, node->info.mesh_version, node->info.mesh_config))
        refuse(s, node);
    else if (node != NULL && err == SHOAL_OK)
        node->mesh_denials = 0;
    s->getting.retry_ns = s->now; /* somebody else may have a newer one */
}

void sched_on_mesh_part(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame)
{
    struct shoal_view bytes = frame->u.mesh_part.bytes;

    SHOAL_ASSERT(frame->kind == FRAME_MESH_PART);
    SHOAL_ASSERT(!sched_is_self(s, from)); /* on_frame() has looked */
    if (!shoal_node_id_equal(from, s->getting.from) || frame->u.mesh_part.version < s->copy_version ||
        frame->u.mesh_part.total > SHOAL_MESH_COPY_BYTES_MAX + MESH_COPY_REST_MAX)
        return;
    if (frame->u.mesh_part.offset == 0) {
        s->getting.version = frame->u.mesh_part.version;
        s->getting.bytes.len = 0;
    }
    if (s->getting.version != frame->u.mesh_part.version || s->getting.bytes.len != frame->u.mesh_part.offset ||
        shoal_buf_append(&s->getting.bytes, bytes.bytes, bytes.len) != SHOAL_OK)
        return;
    if (s->getting.bytes.len < frame->u.mesh_part.total)
        ask_part(s);
    else
        on_whole(s, from);
}
