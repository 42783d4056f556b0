/* Records of a file, read and not mapped: its job may cut it short at any time, and to touch a mapped page beyond the end
 * would end this agent.
 *
 * L1. What cannot be read is not taken for torn: only bytes that were read, and are no whole record, are cut off. */
#include "ledger_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define MARK_BYTES (256 * SHOAL_KIB)
#define RESTS_NS (12 * SHOAL_S)
#define WINDOW_BYTES (LEDGER_RECORD_BYTES_MAX + 4)

struct window {
    int fd;
    uint8_t *bytes; /* WINDOW_BYTES */
    uint64_t at;    /* where they begin in the file */
    size_t len;
    int error; /* an errno: they could not be read */
};

static const uint8_t *window_get(struct window *w, uint64_t at, size_t need)
{
    if (at >= w->at && at + need <= w->at + w->len)
        return w->bytes + (at - w->at);
    if (need > WINDOW_BYTES)
        return NULL;
    w->at = at;
    w->len = 0;
    while (w->len < need) {
        ssize_t got = pread(w->fd, w->bytes + w->len, WINDOW_BYTES - w->len, (off_t)(at + w->len));

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            w->error = errno;
        if (got <= 0)
            return NULL;
        w->len += (size_t)got;
    }
    return w->bytes;
}

/* The record at `at` of the first `end` bytes: its length, with its head and tuples; they live until the next call. 0: none
 * is whole there, or `error` says why it cannot be read. */
static uint32_t window_record(struct window *w, uint64_t at, uint64_t end, struct shoal_step_head *head,
                              struct shoal_reader *tuples)
{
    const uint8_t *bytes = at + 4 <= end ? window_get(w, at, 4) : NULL;
    struct shoal_reader r;
    uint32_t len;

    if (bytes == NULL)
        return 0;
    r = shoal_reader_init(shoal_view_of(bytes, 4));
    len = shoal_get_u32(&r);
    if (len == 0 || len > LEDGER_RECORD_BYTES_MAX || at + 4 + len > end)
        return 0;
    bytes = window_get(w, at, 4 + (size_t)len);
    return bytes != NULL && shoal_step_record_len(shoal_view_of(bytes + 4, len), head, tuples) == len ? len : 0;
}

/* `end`: the file's length. */
static enum shoal_err window_open(struct window *w, int fd, uint64_t *end, struct shoal_msg *msg)
{
    struct stat facts;

    *w = (struct window){ .fd = fd };
    if (fstat(fd, &facts) != 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "the ledger cannot be read: %s", strerror(errno));
    *end = (uint64_t)facts.st_size;
    w->bytes = malloc(WINDOW_BYTES);
    return w->bytes == NULL ? shoal_fail(msg, SHOAL_ERR_FULL, "no memory to read the ledger") : SHOAL_OK;
}

/* L1 */
static enum shoal_err window_close(struct window *w, uint64_t at, struct shoal_msg *msg)
{
    free(w->bytes);
    if (w->error == 0)
        return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_STORAGE, "the ledger cannot be read at byte %llu: %s; look at the disk",
                      (unsigned long long)at, strerror(w->error));
}

void ledger_file_deinit(struct ledger_file *file)
{
    free(file->marks);
    file->marks = NULL;
    file->mark_count = file->mark_cap = 0;
}

/* Of the end as it is now. Without memory the walk to what follows is longer. */
static void note_mark(struct ledger_file *file)
{
    uint64_t last = file->mark_count == 0 ? 0 : file->marks[file->mark_count - 1].bytes;

    if (file->bytes - last < MARK_BYTES)
        return;
    if (file->mark_count == file->mark_cap) {
        size_t cap = file->mark_cap == 0 ? 16 : 2 * file->mark_cap;
        struct ledger_mark *grown = realloc(file->marks, cap * sizeof(*grown));

        if (grown == NULL)
            return;
        file->marks = grown;
        file->mark_cap = cap;
    }
    file->marks[file->mark_count++] = (struct ledger_mark){ file->bytes, file->call, file->step };
}

void ledger_file_back(struct ledger_file *file, const struct ledger_mark *end)
{
    SHOAL_ASSERT(end->bytes <= file->bytes);
    file->bytes = end->bytes;
    file->call = end->call;
    file->step = end->step;
    while (file->mark_count > 0 && file->marks[file->mark_count - 1].bytes > end->bytes)
        file->mark_count--;
}

bool ledger_file_takes(const struct ledger_file *file, const struct shoal_step_head *head)
{
    if (head->call == file->call)
        return head->step == file->step + 1;
    return head->call > file->call && head->step == 1;
}

void ledger_progress_note(struct ledger_progress *p, const struct shoal_step_head *head, struct shoal_reader r)
{
    double loss = 0;
    double metric = 0;
    uint64_t samples = 0;

    for (uint32_t v = 0; v < head->v_count; v++) {
        struct shoal_step_tuple tuple;

        shoal_get_step_tuple(&r, &tuple, head->value_count);
        loss += head->value_count > 0 ? tuple.values[0] * tuple.samples : 0;
        metric += head->value_count > 1 ? tuple.values[1] * tuple.samples : 0;
        samples += tuple.samples;
    }
    p->step = head->step;
    p->call = head->call;
    if (head->kind == SHOAL_STEP_TRAIN && samples > 0) {
        p->train_steps++;
        p->data_epoch = head->data_epoch;
        p->loss = loss / (double)samples;
        p->metric = metric / (double)samples;
        p->has_metrics = true;
    } else if (head->kind == SHOAL_STEP_VALIDATE && samples > 0) {
        p->val_loss = loss / (double)samples;
        p->val_metric = metric / (double)samples;
    }
}

static bool fits_micro(double value) { return isfinite(value) && fabs(value * 1e6) < 0x1p63; }

bool ledger_progress_micro(const struct ledger_progress *progress, int64_t *loss, int64_t *metric)
{
    if (!progress->has_metrics || !fits_micro(progress->loss) || !fits_micro(progress->metric))
        return false;
    *loss = (int64_t)(progress->loss * 1e6);
    *metric = (int64_t)(progress->metric * 1e6);
    return true;
}

static void note_rate(struct ledger_file *file)
{
    struct ledger_progress *p = &file->progress;
    uint64_t now = agent_now_ns();

    if (file->rate_from_ns != 0 && now - file->rate_from_ns <= 2 * SHOAL_S)
        return;
    if (file->rate_from_ns != 0 && p->train_steps > file->rate_from_step)
        p->rate_milli =
            (uint32_t)((p->train_steps - file->rate_from_step) * 1000 * SHOAL_S / (now - file->rate_from_ns));
    file->rate_from_ns = now;
    file->rate_from_step = p->train_steps;
}

bool ledger_file_rests(const struct ledger_file *file, uint64_t now_ns)
{
    const uint64_t usual_ns = file->progress.rate_milli == 0 ? 0 : 1000 * SHOAL_S / file->progress.rate_milli;

    return now_ns - file->rate_from_ns > (3 * usual_ns > RESTS_NS ? 3 * usual_ns : RESTS_NS);
}

enum shoal_err ledger_file_scan(struct ledger_file *file, struct shoal_msg *msg)
{
    struct shoal_step_head head;
    struct shoal_reader tuples;
    struct window w;
    uint64_t end;
    uint32_t len;
    enum shoal_err err = window_open(&w, file->fd, &end, msg);

    if (err != SHOAL_OK)
        return err;
    while ((len = window_record(&w, file->bytes, end, &head, &tuples)) > 0 && ledger_file_takes(file, &head)) {
        file->call = head.call;
        file->step = head.step;
        ledger_progress_note(&file->progress, &head, tuples);
        file->bytes += 4 + len;
        note_mark(file);
    }
    return window_close(&w, file->bytes, msg);
}

bool ledger_file_cut(const struct ledger_file *file)
{
    struct stat facts;

    return fstat(file->fd, &facts) == 0 &&
           ((uint64_t)facts.st_size <= file->bytes || ftruncate(file->fd, (off_t)file->bytes) == 0);
}

enum shoal_err ledger_file_append(struct ledger_file *file, struct shoal_view record,
                                  const struct shoal_step_head *head, struct shoal_reader tuples)
{
    uint8_t length[4];
    struct shoal_writer w = shoal_writer_init(length, sizeof(length));

    SHOAL_ASSERT(ledger_file_takes(file, head));
    shoal_put_u32(&w, (uint32_t)record.len);
    if (pwrite(file->fd, length, 4, (off_t)file->bytes) != 4 ||
        pwrite(file->fd, record.bytes, record.len, (off_t)(file->bytes + 4)) != (ssize_t)record.len)
        return SHOAL_ERR_STORAGE;
    file->bytes += 4 + record.len;
    file->call = head->call;
    file->step = head->step;
    ledger_progress_note(&file->progress, head, tuples);
    note_rate(file);
    note_mark(file);
    return SHOAL_OK;
}

uint32_t ledger_file_length(const struct ledger_file *file, uint64_t at)
{
    uint8_t length[4];
    struct shoal_reader r;

    if (pread(file->fd, length, sizeof(length), (off_t)at) != (ssize_t)sizeof(length))
        return 0;
    r = shoal_reader_init(shoal_view_of(length, sizeof(length)));
    return shoal_get_u32(&r);
}

/* (call, step) a is at or before b. */
static bool until(uint32_t a_call, uint64_t a_step, uint32_t b_call, uint64_t b_step)
{
    return a_call < b_call || (a_call == b_call && a_step <= b_step);
}

/* The last mark that is not behind (call, step). */
static uint64_t walk_from(const struct ledger_file *file, uint32_t call, uint64_t step)
{
    size_t low = 0, high = file->mark_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (until(file->marks[middle].call, file->marks[middle].step, call, step))
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? 0 : file->marks[low - 1].bytes;
}

uint64_t ledger_file_after(const struct ledger_file *file, uint32_t call, uint64_t step)
{
    uint8_t head_bytes[4 + SHOAL_STEP_RECORD_HEAD_BYTES];
    uint64_t at = walk_from(file, call, step);

    while (at < file->bytes &&
           pread(file->fd, head_bytes, sizeof(head_bytes), (off_t)at) == (ssize_t)sizeof(head_bytes)) {
        struct shoal_reader r = shoal_reader_init(shoal_view_of(head_bytes, sizeof(head_bytes)));
        uint32_t len = shoal_get_u32(&r);
        struct shoal_step_head head;

        shoal_get_step_head(&r, &head);
        if (!until(head.call, head.step, call, step))
            break;
        at += 4 + len;
    }
    return at;
}

enum shoal_err ledger_file_each(int fd, ledger_each_fn *each, void *arg, struct shoal_msg *msg)
{
    struct shoal_step_head head;
    struct shoal_reader tuples;
    struct window w;
    uint64_t at = 0;
    uint64_t end;
    uint32_t len;
    enum shoal_err err = window_open(&w, fd, &end, msg);

    if (err != SHOAL_OK)
        return err;
    while ((len = window_record(&w, at, end, &head, &tuples)) > 0) {
        each(arg, &head, tuples);
        at += 4 + len;
    }
    return window_close(&w, at, msg);
}
