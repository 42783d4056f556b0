#include "list_query.h"

#include <inttypes.h>
#include <stdio.h>

#include "shoal/pack.h"
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"

#include "shoal/banned.h"

#define ACTIVE_STATES ((1u << SHOAL_JOB_FINISHED) - 1)
#define ALL_STATES ((1u << SHOAL_JOB_STATE_COUNT) - 1)
#define TIME_BITS 44 /* of an id, at its front: milliseconds */

/* ---- The question ---- */

static uint32_t states_of(const struct shoal_job_filter *filter)
{
    uint32_t states = filter->active_only ? ACTIVE_STATES : 0;
    uint32_t named = 0;

    for (size_t i = 0; i < filter->state_count; i++)
        for (unsigned s = 0; s < SHOAL_JOB_STATE_COUNT; s++)
            if (strcmp(filter->states[i], shoal_job_state_name((enum shoal_job_state)s)) == 0)
                named |= 1u << s;
    if (filter->state_count == 0)
        return states;
    named &= filter->active_only ? ACTIVE_STATES : ALL_STATES;
    return named == 0 ? 1u << SHOAL_JOB_STATE_COUNT : named; /* of no state: no job */
}

void list_query_of(const struct shoal_job_filter *filter, struct list_query *query)
{
    memset(query, 0, sizeof(*query));
    (void)snprintf(query->creator, sizeof(query->creator), "%s", filter->creator == NULL ? "" : filter->creator);
    (void)snprintf(query->name, sizeof(query->name), "%s", filter->name == NULL ? "" : filter->name);
    query->states = states_of(filter);
    query->since_ms = filter->since_ms;
    query->until_ms = filter->until_ms;
    query->sort = filter->sort;
    query->descending = filter->descending;
    query->limit = filter->limit == 0 || filter->limit > SHOAL_LIST_ROWS_MAX ? SHOAL_LIST_ROWS_MAX : filter->limit;
    query->after = filter->after;
}

enum shoal_err list_query_encode(const struct list_query *query, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, cap);

    shoal_pack_begin_map(&w);
    if (query->after.is_set) {
        shoal_pack_put_name(&w, "after");
        shoal_pack_put_bin(&w, shoal_view_of(query->after.id.bytes, sizeof(query->after.id.bytes)));
        shoal_pack_put_name(&w, "after_key");
        shoal_pack_put_text(&w, query->after.key);
    }
    shoal_pack_put_name(&w, "creator");
    shoal_pack_put_text(&w, query->creator);
    shoal_pack_put_name(&w, "descending");
    shoal_pack_put_bool(&w, query->descending);
    shoal_pack_put_name(&w, "ending");
    shoal_pack_put_text(&w, query->ending);
    shoal_pack_put_name(&w, "ids");
    shoal_pack_put_bin(&w, shoal_view_of(query->ids, query->id_count * sizeof(query->ids[0])));
    shoal_pack_put_name(&w, "limit");
    shoal_pack_put_u64(&w, query->limit);
    shoal_pack_put_name(&w, "name");
    shoal_pack_put_text(&w, query->name);
    shoal_pack_put_name(&w, "since");
    shoal_pack_put_u64(&w, query->since_ms);
    shoal_pack_put_name(&w, "sort");
    shoal_pack_put_u64(&w, query->sort);
    shoal_pack_put_name(&w, "states");
    shoal_pack_put_u64(&w, query->states);
    shoal_pack_put_name(&w, "until");
    shoal_pack_put_u64(&w, query->until_ms);
    shoal_pack_end_map(&w);
    *len = w.len;
    return w.failed ? SHOAL_ERR_TOO_BIG : SHOAL_OK;
}

static struct shoal_job_id get_id(struct shoal_pack_reader *r)
{
    struct shoal_job_id id = { { 0 } };
    struct shoal_view bytes = shoal_pack_get_bin(r, sizeof(id.bytes));

    if (bytes.len != sizeof(id.bytes))
        r->failed = true;
    else
        memcpy(id.bytes, bytes.bytes, sizeof(id.bytes));
    return id;
}

static void get_ids(struct shoal_pack_reader *r, struct list_query *query)
{
    struct shoal_view bytes = shoal_pack_get_bin(r, sizeof(query->ids));

    query->id_count = (uint32_t)(bytes.len / sizeof(query->ids[0]));
    if (bytes.len % sizeof(query->ids[0]) != 0)
        r->failed = true;
    else if (bytes.len > 0)
        memcpy(query->ids, bytes.bytes, bytes.len);
}

enum shoal_err list_query_decode(struct shoal_view bytes, struct list_query *query)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(bytes);
    struct shoal_pack_map map = shoal_pack_get_map(&r);

    memset(query, 0, sizeof(*query));
    while (shoal_pack_next_field(&r, &map)) {
        if (shoal_pack_named(&map, "after")) {
            query->after.id = get_id(&r);
            query->after.is_set = true;
        } else if (shoal_pack_named(&map, "after_key")) {
            shoal_pack_get_text(&r, query->after.key, sizeof(query->after.key));
        } else if (shoal_pack_named(&map, "creator")) {
            shoal_pack_get_text(&r, query->creator, sizeof(query->creator));
        } else if (shoal_pack_named(&map, "descending")) {
            query->descending = shoal_pack_get_bool(&r);
        } else if (shoal_pack_named(&map, "ending")) {
            shoal_pack_get_text(&r, query->ending, sizeof(query->ending));
        } else if (shoal_pack_named(&map, "ids")) {
            get_ids(&r, query);
        } else if (shoal_pack_named(&map, "limit")) {
            query->limit = (uint32_t)shoal_pack_get_u64(&r, SHOAL_LIST_ROWS_MAX);
        } else if (shoal_pack_named(&map, "name")) {
            shoal_pack_get_text(&r, query->name, sizeof(query->name));
        } else if (shoal_pack_named(&map, "since")) {
            query->since_ms = shoal_pack_get_u64(&r, UINT64_MAX);
        } else if (shoal_pack_named(&map, "sort")) {
            query->sort = (enum shoal_job_sort)shoal_pack_get_u64(&r, SHOAL_JOB_SORTS - 1);
        } else if (shoal_pack_named(&map, "states")) {
            query->states = (uint32_t)shoal_pack_get_u64(&r, UINT32_MAX);
        } else if (shoal_pack_named(&map, "until")) {
            query->until_ms = shoal_pack_get_u64(&r, UINT64_MAX);
        } else {
            shoal_pack_skip(&r);
        }
    }
    return shoal_pack_reader_done(&r) && (query->limit > 0 || query->id_count > 0) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

bool list_query_is_active(const struct list_query *query)
{
    return query->states != 0 && (query->states & ~ACTIVE_STATES) == 0;
}

bool list_query_is_mutable(const struct list_query *query)
{
    return query->states != 0 || query->sort == SHOAL_SORT_STATE;
}

/* The first id of a millisecond. */
static struct shoal_job_id first_id(uint64_t ms)
{
    struct shoal_job_id id = { { 0 } };

    for (unsigned i = 0; i < 5; i++)
        id.bytes[i] = (uint8_t)(ms >> (36 - 8 * i));
    id.bytes[5] = (uint8_t)((ms & 15) << 4);
    return id;
}

void list_query_range(const struct list_query *query, struct shoal_job_id *low, struct shoal_job_id *high)
{
    const uint64_t ms_max = (1ull << TIME_BITS) - 1;

    *low = first_id(query->since_ms > ms_max ? ms_max : query->since_ms);
    memset(high->bytes, 0xff, sizeof(high->bytes));
    if (query->until_ms != 0)
        *high = first_id(query->until_ms > ms_max ? ms_max : query->until_ms);
    if (!query->after.is_set || query->sort != SHOAL_SORT_CREATED)
        return;
    if (query->descending && shoal_job_id_cmp(query->after.id, *high) < 0)
        *high = query->after.id;
    if (!query->descending && shoal_job_id_cmp(query->after.id, *low) > 0)
        *low = query->after.id;
}

bool list_query_takes_id(const struct list_query *query, struct shoal_job_id id)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    size_t len = strlen(query->ending);

    if (len == 0)
        return true;
    shoal_job_id_text(id, text);
    return strcmp(text + strlen(text) - len, query->ending) == 0;
}

bool list_query_takes(const struct list_query *query, const struct shoal_job_facts *facts)
{
    if (facts->deleted || (query->states != 0 && (query->states >> facts->state & 1u) == 0))
        return false;
    if (query->creator[0] != '\0' && strcmp(query->creator, facts->creator) != 0)
        return false;
    if (query->name[0] != '\0' && strstr(facts->app_name, query->name) == NULL)
        return false;
    if (facts->create_ms < query->since_ms || (query->until_ms != 0 && facts->create_ms >= query->until_ms))
        return false;
    return list_query_takes_id(query, facts->id);
}

void list_place_of(enum shoal_job_sort sort, const struct shoal_job_facts *facts, struct shoal_list_place *place)
{
    *place = (struct shoal_list_place){ .is_set = true, .id = facts->id };
    switch (sort) {
    case SHOAL_SORT_CREATED: break; /* the id says it */
    case SHOAL_SORT_STATE:
        (void)snprintf(place->key, sizeof(place->key), "%s", shoal_job_state_name((enum shoal_job_state)facts->state));
        break;
    case SHOAL_SORT_NAME:
        (void)snprintf(place->key, sizeof(place->key), "%.*s", (int)sizeof(place->key) - 1, facts->app_name);
        break;
    case SHOAL_SORT_USER: (void)snprintf(place->key, sizeof(place->key), "%s", facts->creator); break;
    case SHOAL_SORT_FRAMEWORK: (void)snprintf(place->key, sizeof(place->key), "%s", facts->framework); break;
    case SHOAL_SORT_WORKERS: (void)snprintf(place->key, sizeof(place->key), "%010" PRIu32, facts->workers_max); break;
    case SHOAL_JOB_SORTS: SHOAL_ASSERT(false);
    }
}

int list_place_cmp(const struct list_query *query, const struct shoal_list_place *a, const struct shoal_list_place *b)
{
    int order = strcmp(a->key, b->key);

    if (order == 0)
        order = shoal_job_id_cmp(a->id, b->id);
    return query->descending ? -order : order;
}

/* ---- Values of the index ---- */

void list_value_encode(bool deleted, struct shoal_sched_version version, struct shoal_view facts,
                       struct shoal_buf *value)
{
    uint8_t head[LIST_VALUE_HEAD_BYTES];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));

    shoal_put_u8(&w, 1);
    shoal_put_bool(&w, deleted);
    shoal_put_u64(&w, version.config);
    shoal_put_u64(&w, version.term);
    shoal_put_u64(&w, version.applied);
    SHOAL_ASSERT(!w.failed && w.len == sizeof(head));
    value->len = 0;
    if (shoal_buf_append(value, head, sizeof(head)) != SHOAL_OK ||
        shoal_buf_append(value, facts.bytes, facts.len) != SHOAL_OK)
        value->len = 0;
}

bool list_value_decode(struct shoal_view value, struct list_row *row)
{
    struct shoal_reader r = shoal_reader_init(value);
    uint8_t version = shoal_get_u8(&r);

    *row = (struct list_row){ .deleted = shoal_get_bool(&r) };
    row->version.config = shoal_get_u64(&r);
    row->version.term = shoal_get_u64(&r);
    row->version.applied = shoal_get_u64(&r);
    if (r.failed || version != 1)
        return false;
    row->facts = shoal_view_of(value.bytes + r.at, value.len - r.at);
    return true;
}

bool list_row_now(struct shoal_job_id id, const struct shoal_sched_row *live, struct shoal_view value,
                  struct list_row *row)
{
    if (live != NULL) {
        *row = (struct list_row){ .version = live->version,
                                  .leads = live->leads,
                                  .tail = live->tail,
                                  .deleted = live->deleted,
                                  .facts = live->facts };
    } else if (value.len == 0 || !list_value_decode(value, row)) {
        return false;
    }
    row->id = id;
    return true;
}

/* ---- The answer ---- */

static void put_row(struct shoal_pack_writer *w, const struct list_row *row)
{
    shoal_pack_begin_map(w);
    shoal_pack_put_name(w, "applied");
    shoal_pack_put_u64(w, row->version.applied);
    shoal_pack_put_name(w, "config");
    shoal_pack_put_u64(w, row->version.config);
    shoal_pack_put_name(w, "deleted");
    shoal_pack_put_bool(w, row->deleted);
    shoal_pack_put_name(w, "facts");
    shoal_pack_put_bin(w, row->facts);
    shoal_pack_put_name(w, "id");
    shoal_pack_put_bin(w, shoal_view_of(row->id.bytes, sizeof(row->id.bytes)));
    shoal_pack_put_name(w, "leads");
    shoal_pack_put_bool(w, row->leads);
    shoal_pack_put_name(w, "tail");
    shoal_pack_put_bool(w, row->tail);
    shoal_pack_put_name(w, "term");
    shoal_pack_put_u64(w, row->version.term);
    shoal_pack_end_map(w);
}

enum shoal_err list_answer_encode(const struct list_answer *answer, struct shoal_buf *bytes)
{
    enum shoal_err err = shoal_buf_reserve(bytes, LIST_ANSWER_BYTES_MAX);
    struct shoal_pack_writer w;

    if (err != SHOAL_OK)
        return err;
    w = shoal_pack_writer_init(bytes->bytes, LIST_ANSWER_BYTES_MAX);
    shoal_pack_begin_map(&w);
    shoal_pack_put_name(&w, "broken");
    shoal_pack_put_bool(&w, answer->broken);
    shoal_pack_put_name(&w, "more");
    shoal_pack_put_bool(&w, answer->more);
    shoal_pack_put_name(&w, "rows");
    shoal_pack_put_array(&w, answer->count);
    for (uint32_t i = 0; i < answer->count; i++)
        put_row(&w, &answer->rows[i]);
    shoal_pack_put_name(&w, "upto");
    shoal_pack_put_bin(&w, shoal_view_of(answer->upto.id.bytes, sizeof(answer->upto.id.bytes)));
    shoal_pack_put_name(&w, "upto_key");
    shoal_pack_put_text(&w, answer->upto.key);
    shoal_pack_end_map(&w);
    bytes->len = w.failed ? 0 : w.len;
    return w.failed ? SHOAL_ERR_TOO_BIG : SHOAL_OK;
}

static void get_row(struct shoal_pack_reader *r, struct list_row *row)
{
    struct shoal_pack_map map = shoal_pack_get_map(r);

    *row = (struct list_row){ .leads = false };
    while (shoal_pack_next_field(r, &map)) {
        if (shoal_pack_named(&map, "applied"))
            row->version.applied = shoal_pack_get_u64(r, UINT64_MAX);
        else if (shoal_pack_named(&map, "config"))
            row->version.config = shoal_pack_get_u64(r, UINT64_MAX);
        else if (shoal_pack_named(&map, "deleted"))
            row->deleted = shoal_pack_get_bool(r);
        else if (shoal_pack_named(&map, "facts"))
            row->facts = shoal_pack_get_bin(r, SHOAL_SCHED_ROW_BYTES_MAX);
        else if (shoal_pack_named(&map, "id"))
            row->id = get_id(r);
        else if (shoal_pack_named(&map, "leads"))
            row->leads = shoal_pack_get_bool(r);
        else if (shoal_pack_named(&map, "tail"))
            row->tail = shoal_pack_get_bool(r);
        else if (shoal_pack_named(&map, "term"))
            row->version.term = shoal_pack_get_u64(r, UINT64_MAX);
        else
            shoal_pack_skip(r);
    }
}

static void get_rows(struct shoal_pack_reader *r, struct list_answer *answer)
{
    uint32_t count = shoal_pack_get_array(r, SHOAL_LIST_ROWS_MAX);

    free(answer->rows);
    answer->count = 0;
    answer->rows = calloc(count + 1, sizeof(*answer->rows));
    if (answer->rows == NULL)
        r->failed = true;
    for (uint32_t i = 0; i < count && !r->failed; i++)
        get_row(r, &answer->rows[answer->count++]);
}

enum shoal_err list_answer_decode(struct shoal_view bytes, struct list_answer *answer)
{
    struct shoal_pack_reader r = shoal_pack_reader_init(bytes);
    struct shoal_pack_map map = shoal_pack_get_map(&r);

    *answer = (struct list_answer){ .more = false };
    while (shoal_pack_next_field(&r, &map)) {
        if (shoal_pack_named(&map, "broken"))
            answer->broken = shoal_pack_get_bool(&r);
        else if (shoal_pack_named(&map, "more"))
            answer->more = shoal_pack_get_bool(&r);
        else if (shoal_pack_named(&map, "rows"))
            get_rows(&r, answer);
        else if (shoal_pack_named(&map, "upto"))
            answer->upto.id = get_id(&r);
        else if (shoal_pack_named(&map, "upto_key"))
            shoal_pack_get_text(&r, answer->upto.key, sizeof(answer->upto.key));
        else
            shoal_pack_skip(&r);
    }
    answer->upto.is_set = true;
    if (shoal_pack_reader_done(&r))
        return SHOAL_OK;
    free(answer->rows);
    *answer = (struct list_answer){ .more = false };
    return SHOAL_ERR_MALFORMED;
}
