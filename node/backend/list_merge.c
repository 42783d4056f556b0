#include "shoal/job_facts.h"
#include "list_merge.h"

#include "shoal/banned.h"

static size_t place_for(const struct list_merge *m, const struct shoal_list_place *place)
{
    size_t low = 0;
    size_t high = m->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (list_place_cmp(&m->query, &m->rows[mid].place, place) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct merged *find_job(struct list_merge *m, struct shoal_job_id id, const struct shoal_list_place *place)
{
    size_t at = place_for(m, place);

    if (at < m->count && shoal_job_id_equal(m->rows[at].place.id, id))
        return &m->rows[at];
    /* In another place: nodes may differ in what the list is sorted by, and a deletion does not say it. */
    for (size_t i = 0; m->query.sort != SHOAL_SORT_CREATED && i < m->count; i++)
        if (shoal_job_id_equal(m->rows[i].place.id, id))
            return &m->rows[i];
    return NULL;
}

static void take_out(struct list_merge *m, size_t at)
{
    free(m->rows[at].facts);
    m->count--;
    memmove(&m->rows[at], &m->rows[at + 1], (m->count - at) * sizeof(*m->rows));
}

static bool put_in(struct list_merge *m, const struct merged *row)
{
    size_t at = place_for(m, &row->place);

    if (m->count == m->cap) {
        size_t cap = m->cap == 0 ? 64 : 2 * m->cap;
        struct merged *grown = realloc(m->rows, cap * sizeof(*grown));

        if (grown == NULL)
            return false;
        m->rows = grown;
        m->cap = cap;
    }
    memmove(&m->rows[at + 1], &m->rows[at], (m->count - at) * sizeof(*m->rows));
    m->rows[at] = *row;
    m->count++;
    return true;
}

/* The list ends at this place: what follows is not known of all nodes, or has no room: K4. */
static void cut_at(struct list_merge *m, const struct shoal_list_place *place)
{
    if (m->cut && list_place_cmp(&m->query, &m->upto, place) <= 0)
        return;
    m->cut = true;
    m->upto = *place;
}

/* K5. A deletion without facts has no place: it stays, for what others say of the job. */
static void drop_behind(struct list_merge *m)
{
    for (size_t i = m->cut ? m->count : 0; i > 0; i--)
        if (m->rows[i - 1].facts != NULL && list_place_cmp(&m->query, &m->rows[i - 1].place, &m->upto) > 0)
            take_out(m, i - 1);
}

/* The answer's bytes go; the arguments lie behind the facts. */
static void args_keep(struct shoal_job_facts *facts)
{
    size_t len = facts->args.len <= SHOAL_SCHED_ROW_ARGS_MAX ? facts->args.len : 0;
    uint8_t *room = (uint8_t *)(facts + 1);

    if (len > 0)
        memcpy(room, facts->args.bytes, len);
    facts->args = shoal_view_of(room, len);
    facts->data_json = facts->document = (struct shoal_view){ 0 };
}

/* K1. False: no memory. */
static bool merge(struct list_merge *m, const struct list_row *row)
{
    struct merged now = { .version = row->version,
                          .seen = 1,
                          .leads = row->leads,
                          .tail = row->tail,
                          .deleted = row->deleted,
                          .place = { .is_set = true, .id = row->id } };
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts) + SHOAL_SCHED_ROW_ARGS_MAX);
    bool decoded;
    struct merged *old;

    if (facts == NULL)
        return false;
    decoded = row->facts.len > 0 && shoal_job_facts_decode(row->facts, facts) == SHOAL_OK;
    args_keep(facts);
    if (decoded)
        list_place_of(m->query.sort, facts, &now.place);
    else
        now.deleted = true; /* of a version that this node cannot read, or of a deleted job */
    old = find_job(m, row->id, &now.place);
    if (old != NULL) {
        now.seen += old->seen;
        now.leads = now.leads || old->leads;
        now.tail = now.tail || old->tail;
        now.deleted = now.deleted || old->deleted;
    }
    if (old != NULL && (!decoded || shoal_sched_version_cmp(old->version, row->version) >= 0)) {
        old->seen = now.seen;
        old->leads = now.leads;
        old->tail = now.tail;
        old->deleted = now.deleted;
        free(facts);
        return true;
    }
    if (old != NULL)
        take_out(m, (size_t)(old - m->rows));
    now.facts = decoded ? facts : NULL;
    if (!decoded)
        free(facts);
    if (!decoded && !m->by_id)
        return true;
    return put_in(m, &now);
}

/* K2. */
static bool is_in_doubt(const struct list_merge *m, const struct merged *row)
{
    bool ended = row->facts != NULL && shoal_job_state_ended((enum shoal_job_state)row->facts->state);

    if (row->deleted || row->leads)
        return false;
    if (row->tail)
        return true;
    if (m->by_id)
        return false; /* everybody was asked for it by its id */
    return row->seen < 2 || (!ended && list_query_is_mutable(&m->query));
}

/* ---- What list_ask.c calls ---- */

void list_merge_deinit(struct list_merge *m)
{
    while (m->count > 0)
        take_out(m, m->count - 1);
    free(m->rows);
    *m = (struct list_merge){ .count = 0 };
}

bool list_merge_answer(struct list_merge *m, struct shoal_view bytes)
{
    struct list_answer answer;
    bool whole;

    if (list_answer_decode(bytes, &answer) != SHOAL_OK)
        return false;
    whole = !answer.broken;
    for (uint32_t i = 0; i < answer.count; i++)
        whole = merge(m, &answer.rows[i]) && whole;
    if (!m->by_id && answer.more)
        cut_at(m, &answer.upto);
    if (!m->by_id && m->count > 2 * (size_t)m->query.limit) { /* K4 */
        struct shoal_list_place last = m->rows[m->query.limit - 1].place;

        cut_at(m, &last);
    }
    drop_behind(m);
    free(answer.rows);
    return whole;
}

uint32_t list_merge_doubt(struct list_merge *m)
{
    m->doubts = (struct list_query){ .limit = m->query.limit, .sort = m->query.sort };
    for (size_t i = m->count; i > 0; i--) {
        const struct merged *row = &m->rows[i - 1];

        if (!is_in_doubt(m, row) || m->doubts.id_count == SHOAL_LIST_ROWS_MAX)
            continue;
        m->doubts.ids[m->doubts.id_count++] = row->place.id;
    }
    return m->doubts.id_count;
}

void list_merge_forget(struct list_merge *m)
{
    for (uint32_t d = 0; d < m->doubts.id_count; d++)
        for (size_t i = m->count; i > 0; i--)
            if (shoal_job_id_equal(m->rows[i - 1].place.id, m->doubts.ids[d])) {
                take_out(m, i - 1);
                break;
            }
}

unsigned list_merge_unsettled(const struct list_merge *m)
{
    unsigned unsettled = 0;

    for (size_t i = 0; i < m->count; i++)
        unsettled += m->rows[i].tail && !m->rows[i].leads && !m->rows[i].deleted ? 1 : 0;
    return unsettled;
}

void list_merge_take(struct list_merge *m, struct shoal_job_facts **page, size_t *count, size_t max,
                     struct shoal_list_place *end)
{
    SHOAL_ASSERT(*count <= max);
    for (size_t i = 0; i < m->count && *count < max; i++) {
        struct merged *row = &m->rows[i];

        if (row->facts == NULL) /* it was deleted, and nobody knows what it was sorted by */
            continue;
        *end = row->place;
        if (row->deleted || !list_query_takes(&m->query, row->facts))
            continue;
        page[(*count)++] = row->facts;
        row->facts = NULL;
    }
    if (*count < max && m->cut)
        *end = m->upto;
    while (m->count > 0)
        take_out(m, m->count - 1);
}
