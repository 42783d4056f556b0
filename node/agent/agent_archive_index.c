/* The archived jobs of the mesh, as this host knows them: its own records, and what the others tell of theirs.
 *
 * N2. A host's mark counts what its part of the archive has gained and what it heard was deleted; it is told by gossip,
 *     and who sees another one asks for what is new since. So an index is a few seconds old, and after a start complete
 *     as soon as every host has been asked; a job of 3 holders is listed while one of them answers.
 * N3. The index keeps SHOAL_ARCHIVE_LISTED_MAX jobs, the newest. What it does not keep answers to its full id. */
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"
#include "agent_archive.h"

#include "shoal/banned.h"

#define TELL_MS 300 /* after a change: the others that come with it are told together */

struct indexed {
    struct shoal_job_summary summary;
    struct shoal_node_id source;
};

struct known_part {
    struct shoal_node_id node;
    uint64_t known, heard; /* marks */
    bool asking;
    struct agent *agent;
};

struct archive_index {
    struct indexed **list; /* in order of ids */
    size_t count, cap;
    struct known_part **parts;
    size_t part_count;
    uint64_t told;    /* our own mark, as of the last look */
    uv_timer_t timer; /* tells the others */
};

uint64_t agent_archive_mark(const struct agent *agent)
{
    return (uint64_t)(agent->identity.incarnation.agent & UINT32_MAX) << 32 |
           (uint32_t)shoal_sched_archive_version(agent->sched);
}

static size_t index_place(const struct archive_index *index, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = index->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(index->list[mid]->summary.id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void index_remove_at(struct archive_index *index, size_t at)
{
    free(index->list[at]);
    index->count--;
    memmove(&index->list[at], &index->list[at + 1], (index->count - at) * sizeof(index->list[0]));
}

static void index_remove(struct archive_index *index, struct shoal_job_id id)
{
    size_t at = index_place(index, id);

    if (at < index->count && shoal_job_id_equal(index->list[at]->summary.id, id))
        index_remove_at(index, at);
}

static void index_add(struct archive_index *index, const struct shoal_job_summary *summary, struct shoal_node_id source)
{
    size_t at = index_place(index, summary->id);
    struct indexed *item;

    if (at < index->count && shoal_job_id_equal(index->list[at]->summary.id, summary->id)) {
        index->list[at]->summary = *summary;
        index->list[at]->source = source;
        return;
    }
    if (index->count == SHOAL_ARCHIVE_LISTED_MAX) { /* N3 */
        if (at == 0)
            return;
        index_remove_at(index, 0);
        at--;
    }
    if (index->count == index->cap) {
        size_t cap = index->cap == 0 ? 64 : 2 * index->cap;
        struct indexed **grown = realloc(index->list, cap * sizeof(struct indexed *));

        if (grown == NULL)
            return; /* it answers to its full id */
        index->list = grown;
        index->cap = cap;
    }
    item = malloc(sizeof(*item));
    if (item == NULL)
        return;
    *item = (struct indexed){ .summary = *summary, .source = source };
    memmove(&index->list[at + 1], &index->list[at], (index->count - at) * sizeof(index->list[0]));
    index->list[at] = item;
    index->count++;
}

static void take_bytes(void *arg, struct shoal_job_id group, const struct shoal_store_snapshot *snapshot)
{
    struct shoal_buf *bytes = arg;

    (void)group;
    if (shoal_buf_append(bytes, snapshot->bytes.bytes, snapshot->bytes.len) != SHOAL_OK)
        bytes->len = 0;
}

bool agent_archived(struct agent *agent, struct shoal_job_id id, struct shoal_sched_archived *here)
{
    static struct shoal_buf bytes;
    const struct shoal_store_replay each = { .arg = &bytes, .on_snapshot = take_bytes };

    if (!shoal_sched_archive_find(agent->sched, id, here))
        return false;
    if (!here->cold)
        return true;
    bytes.len = 0;
    return shoal_store_load(agent->store, shoal_sched_archive_place(id), &each) == SHOAL_OK &&
           shoal_sched_archive_read(shoal_buf_view(&bytes), here);
}

const struct shoal_job_summary *agent_archive_find(struct agent *agent, struct shoal_job_id id,
                                                   struct shoal_node_id *source)
{
    const struct archive_index *index = agent->archive;
    static struct shoal_job_summary summary;
    struct shoal_sched_archived here;
    size_t at;

    if (index == NULL)
        return NULL;
    at = index_place(index, id);
    if (at < index->count && shoal_job_id_equal(index->list[at]->summary.id, id)) {
        *source = index->list[at]->source;
        return &index->list[at]->summary;
    }
    if (!agent_archived(agent, id, &here) || shoal_job_summary_decode(here.summary, &summary) != SHOAL_OK)
        return NULL;
    *source = agent->identity.node;
    return &summary;
}

static void on_tell(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    if (!agent->stopping && agent->membership != NULL)
        agent_publish_load(agent);
}

/* Our own part: what came and what was deleted since the last look. */
void agent_archive_changed(struct agent *agent)
{
    struct archive_index *index = agent->archive;
    uint64_t version = shoal_sched_archive_version(agent->sched);
    static struct shoal_job_summary summary;
    struct shoal_sched_archived here;
    const void *cursor = NULL;
    struct shoal_job_id id;
    uint64_t since;

    if (index == NULL || version == index->told)
        return;
    while (shoal_sched_archive_newest(agent->sched, &cursor, &here) && here.since > index->told)
        if (shoal_job_summary_decode(here.summary, &summary) == SHOAL_OK)
            index_add(index, &summary, agent->identity.node);
    for (size_t i = 0; shoal_sched_deleted_at(agent->sched, i, &id, &since); i++)
        if (since > index->told)
            index_remove(index, id);
    index->told = version;
    if (!uv_is_active((uv_handle_t *)&index->timer))
        (void)uv_timer_start(&index->timer, on_tell, TELL_MS, 0);
}

/* ---- the others' parts ---- */

static struct known_part *part_of(struct agent *agent, struct shoal_node_id node)
{
    struct archive_index *index = agent->archive;
    struct known_part **grown;
    struct known_part *part;

    for (size_t i = 0; i < index->part_count; i++)
        if (shoal_node_id_equal(index->parts[i]->node, node))
            return index->parts[i];
    part = index->part_count < SHOAL_MEMBERS_MAX ? calloc(1, sizeof(*part)) : NULL;
    grown = part == NULL ? NULL : realloc(index->parts, (index->part_count + 1) * sizeof(struct known_part *));
    if (grown == NULL) {
        free(part);
        return NULL;
    }
    index->parts = grown;
    index->parts[index->part_count++] = part;
    *part = (struct known_part){ .node = node, .agent = agent };
    return part;
}

static void ask_part(struct known_part *part);

static bool take_part(struct known_part *part, struct shoal_view answer)
{
    struct archive_index *index = part->agent->archive;
    struct shoal_reader r = shoal_reader_init(answer);
    uint64_t mark = shoal_get_u64(&r);
    uint32_t count = shoal_get_u32(&r);
    static struct shoal_job_summary summary;

    for (uint32_t i = 0; i < count && !r.failed; i++) {
        struct shoal_view bytes = shoal_get_bytes(&r, SHOAL_SCHED_SUMMARY_BYTES_MAX);

        if (!r.failed && shoal_job_summary_decode(bytes, &summary) == SHOAL_OK)
            index_add(index, &summary, part->node);
    }
    count = shoal_get_u32(&r);
    for (uint32_t i = 0; i < count && !r.failed; i++) {
        struct shoal_job_id id = shoal_get_job_id(&r);

        if (!r.failed)
            index_remove(index, id);
    }
    if (!shoal_reader_done(&r) || mark == part->known)
        return false;
    part->known = mark;
    return true;
}

bool agent_archive_told(struct agent *agent, struct shoal_node_id node, struct shoal_view answer)
{
    struct known_part *part = part_of(agent, node);

    return part != NULL && take_part(part, answer);
}

static void on_part(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct known_part *part = arg;

    (void)msg;
    part->asking = false;
    if (err == SHOAL_OK && !part->agent->stopping && agent_archive_told(part->agent, part->node, answer) &&
        part->known != part->heard)
        ask_part(part); /* it has more; what fails is asked again when the node is heard of again */
}

static void ask_part(struct known_part *part)
{
    uint8_t args[8];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));

    if (part->asking || !shoal_link_is_up(part->agent->link, part->node))
        return;
    shoal_put_u64(&w, part->known);
    part->asking = true;
    peer_ask(part->agent->calls, part->node, PEER_ARCHIVE_LIST, shoal_writer_view(&w), ARCHIVE_ASK_TIMEOUT_NS, on_part,
             part);
}

void agent_archive_heard(struct agent *agent, struct shoal_node_id node, uint64_t mark)
{
    struct known_part *part;

    if (agent->archive == NULL || mark == 0 || shoal_node_id_equal(node, agent->identity.node))
        return;
    part = part_of(agent, node);
    if (part == NULL)
        return;
    part->heard = mark;
    if (part->known != mark)
        ask_part(part);
}

/* Gives the news since `from`, oldest first, as much as fits; the version up to which it goes. Of the records in memory:
 * what is older is found by its full id alone. */
static uint64_t put_changes(const struct agent *agent, uint64_t from, struct shoal_writer *w)
{
    const void **changes = calloc(SHOAL_ARCHIVE_LISTED_MAX, sizeof(*changes));
    uint64_t upto = shoal_sched_archive_version(agent->sched);
    struct shoal_sched_archived here;
    struct shoal_job_id id;
    const void *cursor = NULL;
    size_t used = 0;
    size_t at = w->len;
    uint32_t put = 0;
    uint64_t since;

    SHOAL_ASSERT(changes != NULL);
    shoal_put_u32(w, 0);
    while (used < SHOAL_ARCHIVE_LISTED_MAX) {
        changes[used] = cursor; /* from which it is the next */
        if (!shoal_sched_archive_newest(agent->sched, &cursor, &here) || here.since <= from)
            break;
        used++;
    }
    for (size_t i = used; i > 0; i--) {
        cursor = changes[i - 1];
        if (!shoal_sched_archive_newest(agent->sched, &cursor, &here))
            break;
        if (w->len + SHOAL_SCHED_SUMMARY_BYTES_MAX + 8 > ARCHIVE_ANSWER_BYTES_MAX) {
            upto = here.since - 1;
            break;
        }
        shoal_put_bytes(w, here.summary);
        put++;
    }
    free(changes);
    memcpy(w->bytes + at, &put, sizeof(put));
    at = w->len;
    put = 0;
    shoal_put_u32(w, 0);
    for (size_t i = 0; shoal_sched_deleted_at(agent->sched, i, &id, &since); i++)
        if (since > from && since <= upto) {
            shoal_put_job_id(w, id);
            put++;
        }
    memcpy(w->bytes + at, &put, sizeof(put));
    return upto;
}

static void serve_part(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    uint64_t mark = shoal_get_u64(&r);
    uint64_t ours = agent_archive_mark(agent);
    static uint8_t bytes[ARCHIVE_ANSWER_BYTES_MAX + SHOAL_SCHED_GONE_MAX * 10 + 64];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    uint64_t upto;

    (void)from;
    if (!shoal_reader_done(&r)) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "", (struct shoal_view){ 0 });
        return;
    }
    shoal_put_u64(&w, 0);
    upto = put_changes(agent, mark >> 32 == ours >> 32 ? (uint32_t)mark : 0, &w); /* of an earlier life: all of it */
    {
        struct shoal_writer head = shoal_writer_init(bytes, 8);

        shoal_put_u64(&head, (ours >> 32) << 32 | (uint32_t)upto);
    }
    peer_answer(question, w.failed ? SHOAL_ERR_TOO_BIG : SHOAL_OK, "", shoal_writer_view(&w));
}

void archive_index_create(struct agent *agent)
{
    agent->archive = calloc(1, sizeof(*agent->archive));
    SHOAL_ASSERT(agent->archive != NULL);
    (void)uv_timer_init(&agent->loop, &agent->archive->timer);
    agent->archive->timer.data = agent;
    peer_serve(agent->calls, PEER_ARCHIVE_LIST, serve_part, agent);
}
