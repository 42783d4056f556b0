/* One log of two files: each record of the order begins a piece of one of them.
 *
 *   offset --bisection--> the record whose piece it lies in --one after the other--> piece, piece, ... --> bytes
 *
 * The offset in the whole at which a record's piece begins is the sum of its two lengths (O2), and so rises from record
 * to record: the piece of an offset is found by bisection, however long the log is. From there on the records and both files
 * are read through windows, so that pieces of a byte cost no read each.
 *
 * M1. The job can write to all three files. A record that goes back is followed by nothing; a call looks at PIECES_MAX records
 *     at most, and one that has not moved the offset says that there is no more. */
#include "log_merged.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/error.h"
#include "shoal/log_order.h"

#include "shoal/banned.h"

#define PATH_BYTES 4096
#define BYTES_MAX ((1ull << 39) - 1) /* of one file: both together fit a cursor (backend_logs.c) */
#define PIECES_MAX 16384u                /* of one call: 256 KiB of records */
#define WINDOW_BYTES 16384u
_Static_assert(WINDOW_BYTES % SHOAL_LOG_ORDER_BYTES == 0, "a window holds whole records");

struct window {
    int file; /* -1: none */
    uint64_t at;
    size_t len;
    uint8_t bytes[WINDOW_BYTES];
};

/* What one stream says, up to its end, and then what the other one has until then (O3). */
struct piece {
    uint64_t begins[2]; /* lengths of both files before it */
    uint64_t ends[2];
    unsigned stream;
    bool last; /* nothing follows */
};

struct merged {
    struct window files[2];
    uint64_t lengths[2]; /* as they were before `records` was looked at: those say of all of these bytes where they belong */
    struct window order;
    uint64_t records;
    bool ended;
};

struct out {
    uint8_t *bytes;
    size_t cap, used;
};

static bool record_read(const uint8_t record[SHOAL_LOG_ORDER_BYTES], struct piece *piece)
{
    piece->stream = shoal_log_order_get(record, piece->begins);
    return piece->begins[0] <= BYTES_MAX && piece->begins[1] <= BYTES_MAX;
}

static uint64_t offset_of(const struct piece *piece) { return piece->begins[0] + piece->begins[1]; }

/* How many records begin at or before the offset. */
static uint64_t find_record(const struct merged *merged, uint64_t offset)
{
    uint64_t low = 0, high = merged->records;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        uint8_t record[SHOAL_LOG_ORDER_BYTES];
        struct piece piece;

        if (pread(merged->order.file, record, sizeof(record), (off_t)(middle * sizeof(record))) ==
                (ssize_t)sizeof(record) &&
            record_read(record, &piece) && offset_of(&piece) <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The bytes at `offset`, at most `want`, and how many there are. */
static const uint8_t *look(struct window *window, uint64_t offset, size_t want, size_t *len)
{
    if (offset < window->at || offset - window->at >= window->len) {
        ssize_t n = pread(window->file, window->bytes, sizeof(window->bytes), (off_t)offset);

        window->at = offset;
        window->len = n > 0 ? (size_t)n : 0;
    }
    *len = window->len - (size_t)(offset - window->at);
    *len = *len < want ? *len : want;
    return window->bytes + (offset - window->at);
}

static bool record_at(struct merged *merged, uint64_t index, struct piece *piece)
{
    size_t len;
    const uint8_t *record = look(&merged->order, index * SHOAL_LOG_ORDER_BYTES, SHOAL_LOG_ORDER_BYTES, &len);

    return len == SHOAL_LOG_ORDER_BYTES && record_read(record, piece);
}

/* The piece that record `number` begins, from 1 on; piece 0 comes before the first record. */
static bool piece_at(struct merged *merged, uint64_t number, struct piece *piece)
{
    struct piece next;

    *piece = (struct piece){ .stream = 0 };
    if (number > 0 && !record_at(merged, number - 1, piece))
        return false;
    piece->last = number >= merged->records || !record_at(merged, number, &next) ||
                  next.begins[0] < piece->begins[0] || next.begins[1] < piece->begins[1]; /* M1 */
    for (unsigned i = 0; i < 2; i++) {
        piece->ends[i] = piece->last ? piece->begins[i] : next.begins[i];
        if (piece->last && (merged->ended || i == piece->stream) && merged->lengths[i] > piece->begins[i])
            piece->ends[i] = merged->lengths[i];
    }
    return true;
}

static size_t read_file(struct merged *merged, unsigned stream, uint64_t offset, uint64_t want, struct out *out)
{
    uint64_t left = merged->lengths[stream] > offset ? merged->lengths[stream] - offset : 0;
    size_t room = out->cap - out->used, len;
    const uint8_t *bytes;
    ssize_t n;

    want = want < left ? want : left;
    want = want < room ? want : room;
    if (want == 0)
        return 0;
    if (want >= WINDOW_BYTES) {
        n = pread(merged->files[stream].file, out->bytes + out->used, (size_t)want, (off_t)offset);
        len = n > 0 ? (size_t)n : 0;
    } else {
        bytes = look(&merged->files[stream], offset, (size_t)want, &len);
        memcpy(out->bytes + out->used, bytes, len);
    }
    out->used += len;
    return len;
}

/* What is left of the piece, or of what there is room for. False: what follows is not to be read now. */
static bool read_piece(struct merged *merged, const struct piece *piece, uint64_t *offset, struct out *out)
{
    for (unsigned part = 0; part < 2; part++) {
        unsigned stream = part == 0 ? piece->stream : 1 - piece->stream;
        uint64_t before = part == 0 ? 0 : piece->ends[1 - stream] - piece->begins[1 - stream];
        uint64_t bytes = piece->ends[stream] - piece->begins[stream];

        while (*offset - offset_of(piece) < before + bytes) {
            uint64_t into = *offset - offset_of(piece) - before;
            size_t n = read_file(merged, stream, piece->begins[stream] + into, bytes - into, out);

            *offset += n;
            if (out->used == out->cap || (n == 0 && !merged->ended))
                return false;
            if (n == 0) /* lost with the host that had it: what follows is still to be read */
                *offset += bytes - into;
        }
    }
    return !piece->last;
}

static uint64_t length_of(int file)
{
    struct stat facts;

    return file >= 0 && fstat(file, &facts) == 0 ? (uint64_t)facts.st_size : 0;
}

static void open_all(struct merged *merged, const char *root, const char *out_path, const char *err_path)
{
    char path[PATH_BYTES];

    (void)snprintf(path, sizeof(path), "%s" SHOAL_LOG_ORDER_END, out_path);
    for (unsigned i = 0; i < 2; i++) {
        merged->files[i].file = shoal_open_below(root, i == 0 ? out_path : err_path, O_RDONLY);
        merged->files[i].len = 0;
        merged->lengths[i] = length_of(merged->files[i].file);
    }
    merged->order.file = shoal_open_below(root, path, O_RDONLY);
    merged->order.len = 0;
    merged->records = length_of(merged->order.file) / SHOAL_LOG_ORDER_BYTES;
}

static void close_all(const struct merged *merged)
{
    for (unsigned i = 0; i < 2; i++)
        if (merged->files[i].file >= 0)
            (void)close(merged->files[i].file);
    if (merged->order.file >= 0)
        (void)close(merged->order.file);
}

size_t log_merged_read(const char *root, const char *out_path, const char *err_path, bool ended, uint64_t *offset,
                       uint8_t *bytes, size_t cap, bool *more)
{
    static struct merged merged;
    struct out out = { .bytes = bytes, .cap = cap };
    uint64_t begin = *offset, number;
    struct piece piece;
    unsigned turn = 0;

    open_all(&merged, root, out_path, err_path);
    merged.ended = ended;
    number = find_record(&merged, begin);
    while (turn < PIECES_MAX && piece_at(&merged, number, &piece) && offset_of(&piece) <= *offset &&
           read_piece(&merged, &piece, offset, &out)) {
        turn++;
        number++;
    }
    close_all(&merged);
    SHOAL_ASSERT(out.used <= cap);
    *more = *offset != begin && (out.used == cap || turn == PIECES_MAX);
    return out.used;
}
