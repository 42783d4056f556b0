/* One log of two files: each record of the order begins a piece of one of them.
 *
 * The offset in the whole at which a record's piece begins is the sum of its two lengths (O2), and so rises from record
 * to record: the piece of an offset is found by bisection, however long the log is. */
#include "log_merged.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/error.h"
#include "shoal/log_order.h"

#include "shoal/banned.h"

#define PATH_BYTES 4096
#define BYTES_MAX (1ull << 40)
#define PIECES_MAX 4096u /* of one call: a file of the job's own making may hold as many records as it likes */

struct piece {
    uint64_t begins[2]; /* lengths of both files before it */
    uint64_t bytes;     /* UINT64_MAX: the last one has no end yet */
    unsigned stream;
};

struct merged {
    int files[2];        /* -1: none */
    uint64_t lengths[2]; /* as they were before `records` was looked at: those say of all of these bytes where they belong */
    int order;
    uint64_t records;
};

static bool record_at(const struct merged *merged, uint64_t index, struct piece *piece)
{
    uint8_t record[SHOAL_LOG_ORDER_BYTES];

    if (pread(merged->order, record, sizeof(record), (off_t)(index * sizeof(record))) != (ssize_t)sizeof(record))
        return false;
    piece->stream = shoal_log_order_get(record, piece->begins);
    return piece->begins[0] <= BYTES_MAX && piece->begins[1] <= BYTES_MAX; /* the job can write there, too */
}

/* The piece in which the offset lies. Piece 0 comes before the first record. */
static struct piece piece_of(const struct merged *merged, uint64_t offset)
{
    struct piece found = { .stream = 0 }, next;
    uint64_t low = 0, high = merged->records; /* records before `low` begin at or before the offset */

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (record_at(merged, middle, &next) && next.begins[0] + next.begins[1] <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low > 0 && !record_at(merged, low - 1, &found))
        found = (struct piece){ .stream = 0 };
    if (found.begins[0] + found.begins[1] > offset) /* it was changed between two looks */
        found = (struct piece){ .stream = 0 };
    found.bytes = UINT64_MAX;
    if (low < merged->records && record_at(merged, low, &next) &&
        next.begins[found.stream] >= found.begins[found.stream])
        found.bytes = next.begins[found.stream] - found.begins[found.stream];
    return found;
}

static size_t read_at(const struct merged *merged, unsigned stream, uint64_t offset, uint8_t *bytes, uint64_t cap)
{
    uint64_t left = merged->lengths[stream] > offset ? merged->lengths[stream] - offset : 0;
    uint64_t want = left < cap ? left : cap;
    ssize_t n = want == 0 ? 0 : pread(merged->files[stream], bytes, (size_t)want, (off_t)offset);

    return n > 0 ? (size_t)n : 0;
}

static uint64_t length_of(int file)
{
    struct stat facts;

    return file >= 0 && fstat(file, &facts) == 0 ? (uint64_t)facts.st_size : 0;
}

/* After the last record, when all has been said: what is left of the stream that spoke, then of the other one. */
static size_t read_rest(const struct merged *merged, const struct piece *piece, uint64_t offset, uint8_t *bytes,
                        size_t cap)
{
    unsigned other = 1 - piece->stream;
    uint64_t length = merged->lengths[piece->stream];
    uint64_t own = length > piece->begins[piece->stream] ? length - piece->begins[piece->stream] : 0;
    uint64_t into = offset - piece->begins[0] - piece->begins[1];

    if (into < own)
        return read_at(merged, piece->stream, piece->begins[piece->stream] + into, bytes, cap);
    return read_at(merged, other, piece->begins[other] + into - own, bytes, cap);
}

static size_t read_piece(const struct merged *merged, bool ended, uint64_t *offset, uint8_t *bytes, size_t cap)
{
    struct piece piece = piece_of(merged, *offset);
    uint64_t into = *offset - piece.begins[0] - piece.begins[1];
    uint64_t left;
    size_t n;

    if (piece.bytes == UINT64_MAX && ended) {
        n = read_rest(merged, &piece, *offset, bytes, cap);
    } else {
        left = piece.bytes - into;
        n = read_at(merged, piece.stream, piece.begins[piece.stream] + into, bytes, left < cap ? left : cap);
    }
    *offset += n;
    if (n == 0 && ended && piece.bytes != UINT64_MAX && piece.bytes > into)
        *offset += piece.bytes - into; /* lost with the host that had it: what follows is still to be read */
    return n;
}

size_t log_merged_read(const char *root, const char *out_path, const char *err_path, bool ended, uint64_t *offset,
                       uint8_t *bytes, size_t cap, bool *more)
{
    struct merged merged = { .files = { shoal_open_below(root, out_path, O_RDONLY),
                                        shoal_open_below(root, err_path, O_RDONLY) } };
    char path[PATH_BYTES];
    size_t used = 0;

    for (unsigned i = 0; i < 2; i++)
        merged.lengths[i] = length_of(merged.files[i]);
    (void)snprintf(path, sizeof(path), "%s" SHOAL_LOG_ORDER_END, out_path);
    merged.order = shoal_open_below(root, path, O_RDONLY);
    merged.records = length_of(merged.order) / SHOAL_LOG_ORDER_BYTES;
    *more = true;
    for (unsigned turn = 0; turn < PIECES_MAX && used < cap && *more; turn++) {
        uint64_t before = *offset;

        used += read_piece(&merged, ended, offset, bytes + used, cap - used);
        *more = *offset != before;
    }
    for (unsigned i = 0; i < 2; i++)
        if (merged.files[i] >= 0)
            (void)close(merged.files[i]);
    if (merged.order >= 0)
        (void)close(merged.order);
    SHOAL_ASSERT(used <= cap);
    return used;
}
