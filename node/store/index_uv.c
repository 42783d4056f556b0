/* The index of jobs: what is in memory, and when its threads run (shoal/job_index.h). */
#include "index_table.h"

#include <uv.h>

#include "shoal/banned.h"

#define BUCKETS 4096u
#define WRITE_MS 500
#define RETRY_MS_MAX 30000 /* J4 */
/* Values that are handed to the writing thread at once, before its time has come. */
#define WRITE_COUNT 2048u
/* The loop's pool has four threads, which passwords and files need too. */
#define SCANS_AT_ONCE 2u

struct memory {
    struct index_row *buckets[BUCKETS];
    size_t count;
};

struct scan {
    uv_work_t work;
    struct scan *next; /* waits */
    struct shoal_index *index;
    struct shoal_index_scan what;
    struct index_row **newest; /* references */
    size_t count;
    enum shoal_err err;
};

struct shoal_index {
    uv_loop_t *loop;
    struct index_table *table;
    uv_timer_t timer;
    struct memory *newest;
    struct memory *written; /* by the thread, now; else empty */
    bool writing;
    bool starting; /* the loop has not run yet */
    bool broken;   /* J4: not whole */
    unsigned retry_ms; /* J4; 0: the last write was taken */
    void (*tell)(void *arg, const char *text);
    void *tell_arg;
    uv_work_t work;
    struct index_row **batch;
    size_t batch_count;
    enum shoal_err batch_err;
    struct scan *waiting, **waiting_end;
    unsigned scans, scans_running;
    struct shoal_index_stats stats;
    bool stopping;
    void (*stopped)(void *arg);
    void *stopped_arg;
};

/* ---- In memory ---- */

static struct index_row **bucket_of(struct memory *memory, struct shoal_job_id id)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < sizeof(id.bytes); i++)
        hash = (hash ^ id.bytes[i]) * 16777619u;
    return &memory->buckets[hash % BUCKETS];
}

static struct index_row *find(struct memory *memory, struct shoal_job_id id)
{
    struct index_row *row = *bucket_of(memory, id);

    while (row != NULL && !shoal_job_id_equal(row->id, id))
        row = row->next;
    return row;
}

static void unref(struct index_row *row)
{
    SHOAL_ASSERT(row->refs > 0);
    if (--row->refs == 0)
        free(row);
}

static void take_in(struct memory *memory, struct index_row *row)
{
    struct index_row **at = bucket_of(memory, row->id);

    while (*at != NULL && !shoal_job_id_equal((*at)->id, row->id))
        at = &(*at)->next;
    if (*at != NULL) {
        struct index_row *old = *at;

        *at = old->next;
        memory->count--;
        unref(old);
    }
    row->next = *bucket_of(memory, row->id);
    *bucket_of(memory, row->id) = row;
    memory->count++;
}

static void clear(struct memory *memory)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct index_row *row = memory->buckets[i];

        while (row != NULL) {
            struct index_row *next = row->next;

            unref(row);
            row = next;
        }
        memory->buckets[i] = NULL;
    }
    memory->count = 0;
}

/* What could not be written stands behind what was put since. */
static void take_back(struct memory *newest, struct memory *written)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        struct index_row *row = written->buckets[i];

        written->buckets[i] = NULL;
        while (row != NULL) {
            struct index_row *next = row->next;

            if (find(newest, row->id) != NULL)
                unref(row);
            else
                take_in(newest, row);
            row = next;
        }
    }
    written->count = 0;
}

static size_t collect(struct memory *memory, struct memory *before, struct index_row **rows)
{
    size_t count = 0;

    for (size_t i = 0; i < BUCKETS; i++)
        for (struct index_row *row = memory->buckets[i]; row != NULL; row = row->next)
            if (before == NULL || find(before, row->id) == NULL)
                rows[count++] = row;
    return count;
}

static int by_id(const void *a, const void *b)
{
    return shoal_job_id_cmp((*(struct index_row *const *)a)->id, (*(struct index_row *const *)b)->id);
}

/* ---- Writing ---- */

static void write_later(struct shoal_index *index);
static void on_timer(uv_timer_t *timer);
static void stop_if_done(struct shoal_index *index);

static void tell(const struct shoal_index *index, const char *text)
{
    if (index->tell != NULL)
        index->tell(index->tell_arg, text);
}

/* J4. */
static void write_judged(struct shoal_index *index, enum shoal_err err)
{
    if (err == SHOAL_OK) {
        if (index->retry_ms != 0)
            tell(index, index->broken ? "the index of jobs is written again; what it lost is back after the agent's next start"
                                      : "the index of jobs is written again; nothing of it was lost");
        index->retry_ms = 0;
        return;
    }
    index->stats.writes_failed++;
    if (index->retry_ms == 0)
        tell(index, err == SHOAL_ERR_FULL
                        ? "the index of jobs cannot be written: no space left; lists go on from memory, and it is tried again"
                        : "the index of jobs cannot be written; lists go on from memory, and it is tried again");
    index->retry_ms = index->retry_ms == 0 ? WRITE_MS : 2 * index->retry_ms;
    if (index->retry_ms > RETRY_MS_MAX)
        index->retry_ms = RETRY_MS_MAX;
}

static void write_done(struct shoal_index *index)
{
    free(index->batch);
    index->batch = NULL;
    index->stats.writes++;
    write_judged(index, index->batch_err);
    if (index->batch_err != SHOAL_OK)
        take_back(index->newest, index->written);
    clear(index->written);
    index->writing = false;
    if (index->newest->count > 0)
        write_later(index);
}

static void write_work(uv_work_t *work)
{
    struct shoal_index *index = work->data;

    qsort(index->batch, index->batch_count, sizeof(struct index_row *), by_id);
    index->batch_err = index_table_write(index->table, index->batch, index->batch_count);
}

static void on_written(uv_work_t *work, int status)
{
    struct shoal_index *index = work->data;

    (void)status;
    write_done(index);
    stop_if_done(index);
}

/* True: there is a batch to write. */
static bool make_batch(struct shoal_index *index)
{
    struct memory *newest = index->newest;

    SHOAL_ASSERT(!index->writing && index->written->count == 0);
    index->batch = malloc((newest->count + 1) * sizeof(struct index_row *));
    if (index->batch == NULL)
        return false; /* tried again by the timer */
    index->batch_count = collect(newest, NULL, index->batch);
    index->newest = index->written;
    index->written = newest;
    index->writing = true;
    return true;
}

static void write_now(struct shoal_index *index)
{
    (void)uv_timer_stop(&index->timer);
    if (index->writing || index->newest->count == 0)
        return;
    if (!make_batch(index)) {
        (void)uv_timer_start(&index->timer, on_timer, WRITE_MS, 0);
        return;
    }
    index->work.data = index;
    (void)uv_queue_work(index->loop, &index->work, write_work, on_written);
}

static void on_timer(uv_timer_t *timer)
{
    struct shoal_index *index = timer->data;

    index->starting = false;
    write_now(index);
}

static void write_later(struct shoal_index *index)
{
    if (index->stopping)
        return;
    if (index->newest->count >= WRITE_COUNT && index->retry_ms == 0)
        write_now(index);
    else if (!index->writing && !uv_is_active((uv_handle_t *)&index->timer))
        (void)uv_timer_start(&index->timer, on_timer, index->retry_ms != 0 ? index->retry_ms : WRITE_MS, 0);
}

/* Before the loop runs, no thread's end is heard of: this one writes. */
static void write_here(struct shoal_index *index)
{
    size_t count = index->newest->count;
    struct index_row **rows = index->retry_ms != 0 ? NULL : malloc((count + 1) * sizeof(struct index_row *));
    enum shoal_err err;

    if (rows == NULL)
        return; /* the timer's */
    (void)collect(index->newest, NULL, rows);
    qsort(rows, count, sizeof(struct index_row *), by_id);
    err = index_table_write(index->table, rows, count);
    free(rows);
    write_judged(index, err);
    if (err == SHOAL_OK)
        clear(index->newest);
}

void shoal_index_put(struct shoal_index *index, struct shoal_job_id id, bool active, struct shoal_view value)
{
    struct index_row *row;

    if (index->newest->count + index->written->count >= SHOAL_INDEX_UNWRITTEN_MAX && index->retry_ms != 0 &&
        find(index->newest, id) == NULL) {
        index->broken = true; /* J4 */
        return;
    }
    row = malloc(sizeof(*row) + value.len);
    SHOAL_ASSERT(row != NULL && value.len <= UINT32_MAX);
    *row = (struct index_row){ .id = id, .refs = 1, .active = active, .len = (uint32_t)value.len };
    if (value.len > 0)
        memcpy(row->bytes, value.bytes, value.len);
    take_in(index->newest, row);
    index->stats.puts++;
    if (!index->starting)
        write_later(index);
    else if (index->newest->count >= WRITE_COUNT)
        write_here(index);
}

bool shoal_index_get(struct shoal_index *index, struct shoal_job_id id, struct shoal_buf *value)
{
    struct index_row *row = find(index->newest, id);

    if (row == NULL)
        row = find(index->written, id);
    if (row != NULL)
        return row->len > 0 && shoal_buf_append(value, row->bytes, row->len) == SHOAL_OK;
    return index_table_get(index->table, id, value) == SHOAL_OK;
}

bool shoal_index_is_whole(const struct shoal_index *index) { return !index->broken; }

void shoal_index_stats(const struct shoal_index *index, struct shoal_index_stats *stats)
{
    *stats = index->stats;
    stats->newest = index->newest->count + index->written->count;
}

/* ---- Scanning ---- */

static void scan_work(uv_work_t *work)
{
    struct scan *scan = work->data;

    qsort(scan->newest, scan->count, sizeof(struct index_row *), by_id);
    scan->err = index_table_walk(scan->index->table, &scan->what, scan->newest, scan->count);
}

static void scan_end(struct scan *scan, enum shoal_err err)
{
    struct shoal_index *index = scan->index;
    struct shoal_index_scan what = scan->what;

    for (size_t i = 0; i < scan->count; i++)
        unref(scan->newest[i]);
    free(scan->newest);
    free(scan);
    index->scans--;
    what.done(what.arg, err);
}

static void scan_next(struct shoal_index *index);

static void on_scanned(uv_work_t *work, int status)
{
    struct scan *scan = work->data;
    struct shoal_index *index = scan->index;

    (void)status;
    index->scans_running--;
    scan_end(scan, index->stopping ? SHOAL_ERR_UNREACHABLE : scan->err);
    scan_next(index);
    stop_if_done(index);
}

/* The rows that are in memory now belong to the scan: J1. */
static bool scan_begin(struct shoal_index *index, struct scan *scan)
{
    size_t room = index->newest->count + index->written->count;

    scan->newest = malloc((room + 1) * sizeof(struct index_row *));
    if (scan->newest == NULL)
        return false;
    scan->count = collect(index->newest, NULL, scan->newest);
    scan->count += collect(index->written, index->newest, scan->newest + scan->count);
    for (size_t i = 0; i < scan->count; i++)
        scan->newest[i]->refs++;
    return true;
}

static void scan_next(struct shoal_index *index)
{
    while (index->waiting != NULL && (index->scans_running < SCANS_AT_ONCE || index->stopping)) {
        struct scan *scan = index->waiting;

        index->waiting = scan->next;
        if (index->waiting == NULL)
            index->waiting_end = &index->waiting;
        if (index->stopping || !scan_begin(index, scan)) {
            scan_end(scan, index->stopping ? SHOAL_ERR_UNREACHABLE : SHOAL_ERR_FULL);
            continue;
        }
        index->scans_running++;
        scan->work.data = scan;
        (void)uv_queue_work(index->loop, &scan->work, scan_work, on_scanned);
    }
}

enum shoal_err shoal_index_scan(struct shoal_index *index, const struct shoal_index_scan *what)
{
    struct scan *scan = index->scans == SHOAL_INDEX_SCANS_MAX || index->stopping ? NULL : calloc(1, sizeof(*scan));

    if (scan == NULL) {
        index->stats.scans_refused++;
        return SHOAL_ERR_FULL;
    }
    scan->index = index;
    scan->what = *what;
    index->scans++;
    index->stats.scans++;
    *index->waiting_end = scan;
    index->waiting_end = &scan->next;
    scan_next(index);
    return SHOAL_OK;
}

/* ---- Life ---- */

enum shoal_err shoal_index_open(struct shoal_index **index, struct uv_loop_s *loop, const char *dir,
                                struct shoal_msg *msg)
{
    struct shoal_index *made = calloc(1, sizeof(*made));
    enum shoal_err err = SHOAL_ERR_FULL;

    if (made != NULL) {
        made->newest = calloc(1, sizeof(*made->newest));
        made->written = calloc(1, sizeof(*made->written));
    }
    if (made != NULL && made->newest != NULL && made->written != NULL)
        err = index_table_open(&made->table, dir, msg);
    else
        (void)shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the index of jobs");
    if (err != SHOAL_OK) {
        if (made != NULL) {
            free(made->newest);
            free(made->written);
        }
        free(made);
        return err;
    }
    made->loop = loop;
    made->waiting_end = &made->waiting;
    (void)uv_timer_init(loop, &made->timer);
    made->timer.data = made;
    made->starting = true;
    (void)uv_timer_start(&made->timer, on_timer, WRITE_MS, 0);
    *index = made;
    return SHOAL_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct shoal_index *index = handle->data;
    void (*stopped)(void *arg) = index->stopped;
    void *arg = index->stopped_arg;

    clear(index->newest);
    index_table_close(index->table);
    free(index->newest);
    free(index->written);
    free(index);
    if (stopped != NULL)
        stopped(arg);
}

static void stop_if_done(struct shoal_index *index)
{
    if (index->stopping && !index->writing && index->scans == 0 && !uv_is_closing((uv_handle_t *)&index->timer))
        uv_close((uv_handle_t *)&index->timer, on_closed);
}

void shoal_index_tell(struct shoal_index *index, void (*told)(void *arg, const char *text), void *arg)
{
    index->tell = told;
    index->tell_arg = arg;
}

void shoal_index_stop(struct shoal_index *index, void (*stopped)(void *arg), void *arg)
{
    index->stopping = true;
    index->stopped = stopped;
    index->stopped_arg = arg;
    (void)uv_timer_stop(&index->timer);
    scan_next(index);
    stop_if_done(index);
}
