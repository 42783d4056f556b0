/* libFuzzer: what other nodes may send to one node's control plane. The input is a row of pieces; each begins with a
 * byte that says what it is: a frame, a support datagram, a job summary, a mesh hint, a kept copy, a request, what the
 * store holds of the archive or of the ids that are gone, or a pause in which writes become durable and blobs arrive.
 * Whatever comes, no assertion may fail, nothing may leak, and no frame decodes past its end.
 *
 * Frames come from an authenticated member: it may lie, but it is known.
 *
 * A node's tables are 20 MB, so one node takes many inputs, one after the other: they are as one long input, in which a piece
 * PIECE_LONG stands between two. When one of them breaks the node, this row is written to sched-row in the folder of the
 * program: `fuzz_sched sched-row` does it again. */
#include "sched/node/sched_wire.h"
#include "shoal/job.h"
#include "shoal/mesh.h"

#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MARKS_MAX 64
#define PIECES_MAX 64 /* of one input */
#define NODE_INPUTS 256
#define ROW_BYTES (4u * 1024 * 1024)
#define PIECE_LONG 255 /* long after, every request has had its answer */

struct fuzz {
    uint8_t *row; /* what this node was given */
    size_t row_len;
    unsigned inputs;
    struct shoal_sched *sched;
    struct shoal_sched_actions *actions;
    uint64_t now;
    struct {
        struct shoal_job_id group;
        struct shoal_sched_mark mark;
    } marks[MARKS_MAX];
    unsigned mark_count;
    struct shoal_sched_event blobs[MARKS_MAX]; /* asked for, on their way */
    unsigned blob_count;
    uint64_t request;
    unsigned open; /* requests without a reply */
};

static struct shoal_hash fuzz_hash(void *arg, struct shoal_view bytes)
{
    struct shoal_hash hash;
    uint64_t h = bytes.len;

    (void)arg;
    for (size_t i = 0; i < bytes.len; i++)
        h = (h ^ bytes.bytes[i]) * 0x100000001b3u;
    for (unsigned i = 0; i < 32; i++)
        hash.bytes[i] = (uint8_t)(h >> (i % 8 * 8));
    return hash;
}

static void fuzz_sign(void *arg, struct shoal_view bytes, uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    (void)arg;
    (void)bytes;
    memset(signature, 1, SHOAL_SCHED_SIGNATURE_BYTES);
}

static bool fuzz_verify(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                        const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    (void)arg;
    (void)key;
    (void)bytes;
    return signature[0] != 0;
}

/* The key's first byte names the node, so that the fuzzer can write tickets of known issuers. */
static struct shoal_node_id fuzz_node(uint8_t name)
{
    struct shoal_node_id id;

    memset(id.bytes, name, sizeof(id.bytes));
    return id;
}

static struct shoal_node_id fuzz_node_of_key(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES])
{
    (void)arg;
    return fuzz_node(key[0]);
}

static void event_of_blobs(struct shoal_sched_event *event, const struct shoal_sched_action *action)
{
    *event =
        (struct shoal_sched_event){ .kind = action->kind == SHOAL_SCHED_ARCHIVE_MAKE ? SHOAL_SCHED_ARCHIVE_MADE
                                                                                     : SHOAL_SCHED_ARCHIVE_FETCHED };
    event->u.archive.job = action->u.archive.job;
    event->u.archive.list = action->u.archive.list;
    event->u.archive.ok = action->u.archive.job.bytes[9] % 4 != 0;
}

static void fuzz_step(struct fuzz *fuzz, struct shoal_sched_event *event)
{
    event->wall_ms = 1000 + fuzz->now / SHOAL_MS;
    (void)!shoal_sched_step(fuzz->sched, event, fuzz->now, fuzz->actions);
    for (uint32_t i = 0; i < fuzz->actions->count; i++) {
        const struct shoal_sched_action *action = &fuzz->actions->list[i];
        struct frame frame;

        switch ((int)action->kind) {
        case SHOAL_SCHED_LOAD: break;
        case SHOAL_SCHED_PERSIST:
            if (action->u.persist.mark.seq != 0 && fuzz->mark_count < MARKS_MAX) {
                fuzz->marks[fuzz->mark_count].group = action->u.persist.group;
                fuzz->marks[fuzz->mark_count++].mark = action->u.persist.mark;
            }
            break;
        case SHOAL_SCHED_SEND: /* what we say, we must be able to read */
            if (sched_frame_decode(action->u.send.bytes, &frame) != SHOAL_OK)
                abort();
            break;
        case SHOAL_SCHED_REPLY:
            if (fuzz->open == 0)
                abort();
            fuzz->open--;
            break;
        case SHOAL_SCHED_ARCHIVE_MAKE:
        case SHOAL_SCHED_ARCHIVE_FETCH:
            if (fuzz->blob_count == MARKS_MAX)
                break;
            event_of_blobs(&fuzz->blobs[fuzz->blob_count++], action);
            break;
        default: break;
        }
    }
}

static void fuzz_blobs(struct fuzz *fuzz)
{
    while (fuzz->blob_count > 0) {
        struct shoal_sched_event event = fuzz->blobs[--fuzz->blob_count];

        fuzz_step(fuzz, &event);
    }
}

static void fuzz_flush(struct fuzz *fuzz)
{
    unsigned count = fuzz->mark_count;
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_STORED };

    for (unsigned i = 0; i < count; i++) {
        event.u.stored.group = fuzz->marks[i].group;
        event.u.stored.mark = fuzz->marks[i].mark;
        fuzz_step(fuzz, &event);
    }
    memmove(fuzz->marks, &fuzz->marks[count], (fuzz->mark_count - count) * sizeof(fuzz->marks[0]));
    fuzz->mark_count -= count;
}

static void fuzz_create(struct fuzz *fuzz)
{
    struct shoal_sched_options options = {
        .self = fuzz_node(1),
        .store = { { 1 } },
        .incarnation = { .host_epoch = 1, .agent = 1 },
        .public_key = { 1 },
        .env = { .hash = fuzz_hash, .sign = fuzz_sign, .verify = fuzz_verify, .node_of_key = fuzz_node_of_key },
        .start_ns = SHOAL_S,
        .slots = 2,
    };
    struct shoal_mesh_command init = { .kind = SHOAL_MESH_INIT, .name = "m" };
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_RESTORED };
    uint8_t command[SHOAL_MESH_COMMAND_BYTES_MAX];
    size_t len;

    shoal_rand_init(&options.chance, 1);
    fuzz->now = SHOAL_S;
    if (shoal_sched_create(&fuzz->sched, &options) != SHOAL_OK)
        abort();
    fuzz_step(fuzz, &event);
    for (uint8_t i = 1; i <= 4; i++) {
        event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_NODE };
        event.u.node.id = fuzz_node(i);
        event.u.node.store.bytes[0] = i;
        event.u.node.slots = 2;
        event.u.node.slots_free = 3;
        fuzz_step(fuzz, &event);
    }
    (void)snprintf(init.user.name, sizeof(init.user.name), "a");
    (void)snprintf(init.user.password, sizeof(init.user.password), "p");
    init.user.admin = true;
    if (shoal_mesh_command_encode(&init, command, sizeof(command), &len) != SHOAL_OK)
        abort();
    event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_REQUEST };
    event.u.request.id = ++fuzz->request;
    event.u.request.kind = SHOAL_SCHED_MESH_INIT;
    event.u.request.command = shoal_view_of(command, len);
    fuzz->open++;
    fuzz_step(fuzz, &event);
    fuzz_flush(fuzz);
}

static void fuzz_request(struct fuzz *fuzz, struct shoal_view piece)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_REQUEST };
    struct shoal_sched_request *r = &event.u.request;

    if (piece.len < 12)
        return;
    r->id = ++fuzz->request;
    r->kind = (enum shoal_sched_request_kind)(piece.bytes[0] % SHOAL_SCHED_REQUEST_KINDS);
    memcpy(r->job.bytes, piece.bytes + 1, sizeof(r->job.bytes));
    r->linearizable = piece.bytes[11] & 1;
    r->spec = r->ticket = r->command = shoal_view_of(piece.bytes + 12, piece.len - 12);
    if (piece.bytes[11] & 2)
        r->ticket.len = 0;
    fuzz->open++;
    fuzz_step(fuzz, &event);
}

static void fuzz_long_after(struct fuzz *fuzz)
{
    struct shoal_sched_event timer = { .kind = SHOAL_SCHED_TIMER };

    for (unsigned i = 0; i < (fuzz->open == 0 ? 3 : 40); i++) {
        fuzz_flush(fuzz);
        fuzz_blobs(fuzz);
        fuzz->now += SHOAL_S;
        fuzz_step(fuzz, &timer);
    }
    if (fuzz->open != 0)
        abort();
}

static void fuzz_piece(struct fuzz *fuzz, uint8_t what, struct shoal_view piece)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_TIMER };

    if (what == PIECE_LONG) {
        fuzz_long_after(fuzz);
        return;
    }
    switch (what % 9) {
    case 0:
    case 1:
        event.kind = SHOAL_SCHED_FRAME;
        event.u.frame.from = fuzz_node((uint8_t)(2 + what / 8 % 3));
        event.u.frame.bytes = piece;
        break;
    case 2:
        event.kind = SHOAL_SCHED_DATAGRAM;
        event.u.frame.from = fuzz_node((uint8_t)(2 + what / 8 % 3));
        event.u.frame.bytes = piece;
        break;
    case 3:
        event.kind = SHOAL_SCHED_SUMMARY;
        memcpy(event.u.summary.job.bytes, piece.bytes, piece.len < 10 ? piece.len : 10);
        event.u.summary.payload = piece;
        break;
    case 4:
        event.kind = SHOAL_SCHED_MESH_HEARD;
        event.u.mesh_heard.author = fuzz_node(2);
        event.u.mesh_heard.payload = piece;
        break;
    case 5:
        event.kind = SHOAL_SCHED_MESH_COPY;
        event.u.mesh_copy.bytes = piece;
        break;
    case 6: fuzz_request(fuzz, piece); return;
    case 7:
        event.kind = SHOAL_SCHED_RESTORE;
        memset(event.u.restore.group.bytes, 255, sizeof(event.u.restore.group.bytes));
        if (what / 9 % 2 == 0 && piece.len >= 8 + 3 + 10) { /* a kept record: its job's id, in its own place */
            memcpy(event.u.restore.group.bytes, piece.bytes + 8 + 3, 10);
            event.u.restore.group.bytes[0] |= 0x80;
        }
        event.u.restore.has_snapshot = true;
        event.u.restore.snapshot.index = 1;
        event.u.restore.snapshot.bytes = piece;
        break;
    default:
        fuzz_flush(fuzz);
        fuzz->now += (uint64_t)(1 + what / 9) * 50 * SHOAL_MS;
        fuzz_blobs(fuzz);
        break;
    }
    fuzz_step(fuzz, &event);
}

/* ---- a node and its inputs ---- */

static struct fuzz the_fuzz; /* one node at a time */

static void row_write(void)
{
    char path[1024];
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 32);
    FILE *file;

    path[len < 0 ? 0 : len] = '\0';
    if (strrchr(path, '/') == NULL)
        return;
    memcpy(strrchr(path, '/'), "/sched-row", 11);
    file = fopen(path, "wb");
    if (file == NULL)
        return;
    (void)fwrite(the_fuzz.row, 1, the_fuzz.row_len, file);
    (void)fclose(file);
    (void)fprintf(stderr, "the %u inputs of this node, as one: %s\n", the_fuzz.inputs, path);
}

static struct sigaction usual_abort;

static void on_abort(int number)
{
    row_write();
    (void)sigaction(number, &usual_abort, NULL);
    (void)raise(number);
}

/* The fuzzer has set its own handlers before the first input, and writes that input alone. */
static void watch_ends(void)
{
    (void)sigaction(SIGABRT, &(struct sigaction){ .sa_handler = on_abort }, &usual_abort);
    __sanitizer_set_death_callback(row_write);
}

/* Whether something leaks is looked at once for a node: it is alive between two inputs. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static char leaks[] = "-detect_leaks=0";
    char **more = calloc((size_t)*argc + 2, sizeof(*more));

    the_fuzz.row = malloc(ROW_BYTES);
    if (more == NULL || the_fuzz.row == NULL)
        abort();
    memcpy(more, *argv, (size_t)*argc * sizeof(*more));
    more[(*argc)++] = leaks;
    *argv = more;
    return 0;
}

static void row_add(struct fuzz *fuzz, const uint8_t *bytes, size_t len)
{
    if (len > 0)
        memcpy(fuzz->row + fuzz->row_len, bytes, len);
    fuzz->row_len += len;
}

static void fuzz_pieces(struct fuzz *fuzz, const uint8_t *bytes, size_t len, unsigned pieces_max)
{
    size_t at = 0;

    for (unsigned pieces = 0; pieces < pieces_max && at + 3 <= len; pieces++) {
        size_t size = (size_t)bytes[at + 1] | (size_t)bytes[at + 2] << 8;
        uint8_t head[3] = { bytes[at], 0, 0 };

        at += 3;
        size = size > len - at ? len - at : size;
        head[1] = (uint8_t)size;
        head[2] = (uint8_t)(size >> 8);
        row_add(fuzz, head, sizeof(head));
        row_add(fuzz, bytes + at, size);
        fuzz_piece(fuzz, head[0], shoal_view_of(bytes + at, size));
        at += size;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct shoal_sched_actions actions;
    static const uint8_t end[3] = { PIECE_LONG, 0, 0 };
    struct fuzz *fuzz = &the_fuzz;
    bool is_row = len > 0 && bytes[0] == PIECE_LONG;

    if (usual_abort.sa_handler == NULL)
        watch_ends();
    if (fuzz->sched == NULL) {
        *fuzz = (struct fuzz){ .actions = &actions, .row = fuzz->row };
        fuzz_create(fuzz);
        row_add(fuzz, end, sizeof(end));
        fuzz_long_after(fuzz);
    }
    fuzz->inputs++;
    fuzz_pieces(fuzz, bytes, len < ROW_BYTES / 2 ? len : ROW_BYTES / 2, is_row ? UINT32_MAX : PIECES_MAX);
    row_add(fuzz, end, sizeof(end));
    fuzz_long_after(fuzz);
    if (fuzz->inputs < NODE_INPUTS && fuzz->row_len + 3 * 65536 < ROW_BYTES)
        return 0;
    shoal_sched_destroy(fuzz->sched);
    fuzz->sched = NULL;
    if (__lsan_do_recoverable_leak_check() != 0)
        abort();
    return 0;
}
