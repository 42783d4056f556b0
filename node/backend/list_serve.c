/* This node answers a question for a list with the rows of the jobs that it has a part in.
 *
 *   question --> scan of the index, in a thread: the rows that match, the first `limit` of them in the list's order
 *            --> here: a group that is loaded answers for itself; what the index says of the others stands
 *
 * V1. The index says where to look, a group what is true now: a leader's row is newer than whatever it has acknowledged.
 * V2. Before that, the control plane's timers are run: no leader answers whose support has ended (PROTOCOLS 5).
 * V3. A scan keeps at most `limit` rows, LIST_ANSWER_BYTES_MAX bytes; where it stopped is told (`upto`, `more`). */
#include "list.h"

#include "shoal/job_index.h"
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"

#include "shoal/banned.h"

/* Names and flags of a row on the wire. */
#define ROW_OVERHEAD_BYTES 96

struct kept {
    struct shoal_list_place place;
    struct shoal_view value; /* owned */
};

struct serving {
    struct agent *agent;
    struct list_query query;
    list_served_fn *done;
    void *arg;
    /* The thread's. */
    struct kept *kept; /* in order */
    size_t count;
    size_t bytes;
    bool more;
    bool no_memory;
};

static void serving_free(struct serving *serving)
{
    for (size_t i = 0; i < serving->count; i++)
        free((void *)(uintptr_t)serving->kept[i].value.bytes);
    free(serving->kept);
    free(serving);
}

/* ---- In the thread ---- */

static void drop_last(struct serving *serving)
{
    struct kept *last = &serving->kept[--serving->count];

    serving->bytes -= last->value.len + ROW_OVERHEAD_BYTES;
    free((void *)(uintptr_t)last->value.bytes);
    serving->more = true;
}

static size_t place_for(const struct serving *serving, const struct shoal_list_place *place)
{
    size_t low = 0;
    size_t high = serving->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (list_place_cmp(&serving->query, &serving->kept[mid].place, place) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* V3. */
static bool is_full(const struct serving *serving)
{
    return serving->count >= serving->query.limit ||
           serving->bytes > LIST_ANSWER_BYTES_MAX - SHOAL_SCHED_ROW_BYTES_MAX - LIST_VALUE_HEAD_BYTES - 1024;
}

static bool keep(struct serving *serving, const struct shoal_list_place *place, struct shoal_view value)
{
    size_t at = place_for(serving, place);
    uint8_t *copy;

    if (is_full(serving) && at == serving->count) {
        serving->more = true;
        return true;
    }
    copy = malloc(value.len);
    if (copy == NULL) {
        serving->no_memory = true;
        return false;
    }
    memcpy(copy, value.bytes, value.len);
    while (is_full(serving))
        drop_last(serving);
    memmove(&serving->kept[at + 1], &serving->kept[at], (serving->count - at) * sizeof(*serving->kept));
    serving->kept[at] = (struct kept){ .place = *place, .value = shoal_view_of(copy, value.len) };
    serving->count++;
    serving->bytes += value.len + ROW_OVERHEAD_BYTES;
    return true;
}

static bool on_row(void *arg, struct shoal_job_id id, struct shoal_view value)
{
    struct serving *serving = arg;
    const struct list_query *query = &serving->query;
    struct shoal_job_facts facts;
    struct shoal_list_place place;
    struct list_row row;

    if (!list_query_takes_id(query, id) || !list_value_decode(value, &row) || row.deleted ||
        shoal_job_facts_decode(row.facts, &facts) != SHOAL_OK || !list_query_takes(query, &facts))
        return true;
    list_place_of(query->sort, &facts, &place);
    if (query->after.is_set && list_place_cmp(query, &place, &query->after) <= 0)
        return true;
    if (!keep(serving, &place, value))
        return false;
    return !(serving->more && query->sort == SHOAL_SORT_CREATED); /* ids come in order: nothing better follows */
}

/* ---- On the loop's thread ---- */

/* False: there is no such job here. */
static bool row_now(struct agent *agent, struct shoal_job_id id, struct shoal_view value,
                    uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX], struct list_row *row)
{
    struct shoal_sched_row live;
    bool loaded = shoal_sched_row_find(agent->sched, id, bytes, &live);

    return list_row_now(id, loaded ? &live : NULL, value, row);
}

/* A job that a scan found may have changed since, or gone. */
static bool row_again(struct serving *serving, size_t i, uint8_t *bytes, struct list_row *row)
{
    return row_now(serving->agent, serving->kept[i].place.id, serving->kept[i].value, bytes, row);
}

static bool row_of_id(struct serving *serving, struct shoal_job_id id, uint8_t *bytes, struct list_row *row)
{
    struct shoal_buf value = { 0 };
    bool there;

    (void)shoal_index_get(serving->agent->index, id, &value);
    there = row_now(serving->agent, id, shoal_buf_view(&value), bytes, row);
    if (there && row->facts.bytes >= value.bytes && row->facts.bytes < value.bytes + value.len) {
        memcpy(bytes, row->facts.bytes, row->facts.len);
        row->facts.bytes = bytes;
    }
    shoal_buf_deinit(&value);
    return there;
}

static void answer(struct serving *serving, enum shoal_err err)
{
    const size_t wanted = serving->query.id_count > 0 ? serving->query.id_count : serving->count;
    struct list_answer made = { .more = serving->more, .broken = !shoal_index_is_whole(serving->agent->index) };
    uint8_t *bytes = malloc((wanted + 1) * SHOAL_SCHED_ROW_BYTES_MAX);
    struct shoal_buf encoded = { 0 };

    made.rows = calloc(wanted + 1, sizeof(*made.rows));
    if (err == SHOAL_OK && (bytes == NULL || made.rows == NULL || serving->no_memory))
        err = SHOAL_ERR_FULL;
    for (size_t i = 0; i < wanted && err == SHOAL_OK; i++) {
        uint8_t *room = bytes + made.count * SHOAL_SCHED_ROW_BYTES_MAX;
        struct list_row *row = &made.rows[made.count];

        made.count += serving->query.id_count > 0 ? row_of_id(serving, serving->query.ids[i], room, row)
                                                  : row_again(serving, i, room, row);
    }
    if (serving->count > 0)
        made.upto = serving->kept[serving->count - 1].place;
    if (err == SHOAL_OK)
        err = list_answer_encode(&made, &encoded);
    serving->done(serving->arg, err, err == SHOAL_OK ? "" : "this node has no memory for a list now",
                  shoal_buf_view(&encoded));
    shoal_buf_deinit(&encoded);
    free(made.rows);
    free(bytes);
    serving_free(serving);
}

static void on_scanned(void *arg, enum shoal_err err)
{
    struct serving *serving = arg;

    if (!serving->agent->stopping)
        agent_event(serving->agent, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_TIMER }); /* V2 */
    answer(serving, err);
}

void list_serve(struct agent *agent, const struct list_query *query, list_served_fn *done, void *arg)
{
    struct serving *serving = calloc(1, sizeof(*serving));
    struct shoal_index_scan scan = { .descending = query->descending,
                                     .active_only = list_query_is_active(query),
                                     .visit = on_row,
                                     .done = on_scanned,
                                     .arg = serving };
    enum shoal_err err = SHOAL_OK;

    SHOAL_ASSERT(serving != NULL);
    serving->agent = agent;
    serving->query = *query;
    serving->done = done;
    serving->arg = arg;
    if (query->id_count > 0) {
        on_scanned(serving, SHOAL_OK);
        return;
    }
    serving->kept = malloc((query->limit + 1) * sizeof(*serving->kept));
    list_query_range(query, &scan.low, &scan.high);
    err = serving->kept == NULL ? SHOAL_ERR_FULL : shoal_index_scan(agent->index, &scan);
    if (err == SHOAL_OK)
        return;
    done(arg, err, "too many lists at once; try again", (struct shoal_view){ 0 });
    serving_free(serving);
}

/* ---- Questions of others, and what fills the index ---- */

static void on_served(void *arg, enum shoal_err err, const char *text, struct shoal_view answer)
{
    peer_answer(arg, err, text, answer);
}

static void serve_peer(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    static struct list_query query; /* copied before anything else runs */

    (void)from;
    if (list_query_decode(args, &query) == SHOAL_OK)
        list_serve(arg, &query, on_served, question);
    else
        peer_answer(question, SHOAL_ERR_MALFORMED, "the question for a list does not decode", (struct shoal_view){ 0 });
}

void agent_list_create(struct agent *agent) { peer_serve(agent->calls, PEER_JOBS_LIST, serve_peer, agent); }

void agent_list_index(struct agent *agent, const struct shoal_sched_action *action)
{
    bool deleted = action->u.index.what == SHOAL_SCHED_INDEX_DELETED;
    struct shoal_job_facts facts = { .state = SHOAL_JOB_FINISHED };
    struct shoal_buf value = { 0 };

    if (action->u.index.what == SHOAL_SCHED_INDEX_NOTHING) {
        shoal_index_put(agent->index, action->u.index.job, false, (struct shoal_view){ 0 });
        return;
    }
    if (!deleted && shoal_job_facts_decode(action->u.index.row, &facts) != SHOAL_OK)
        return;
    agent_tree_note_hosts(agent, action->u.index.job);
    list_value_encode(deleted, action->u.index.version, action->u.index.row, &value);
    shoal_index_put(agent->index, action->u.index.job, !shoal_job_state_ended((enum shoal_job_state)facts.state),
                    shoal_buf_view(&value));
    shoal_buf_deinit(&value);
}
