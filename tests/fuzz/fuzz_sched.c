/* libFuzzer: what other nodes may send to one node's control plane. The input is a row of pieces; each begins with a
 * byte that says what it is: a frame, a support datagram, a job summary, a mesh hint, a kept copy, a request, what the
 * store holds of the archive or of the ids that are gone, or a pause in which writes become durable and blobs arrive.
 * Whatever comes, no assertion may fail, nothing may leak, and no frame decodes past its end.
 *
 * Frames come from an authenticated member: it may lie, but it is known. */
#include "sched/node/sched_wire.h"
#include "shoal/job.h"
#include "shoal/mesh.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define MARKS_MAX 64

struct fuzz {
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

static void fuzz_piece(struct fuzz *fuzz, uint8_t what, struct shoal_view piece)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_TIMER };

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
        if (what / 9 % 2 == 0 && piece.len >= 18) { /* a kept record: its job's id, in its own place */
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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct shoal_sched_actions actions;
    struct fuzz fuzz = { .actions = &actions };
    struct shoal_sched_event timer = { .kind = SHOAL_SCHED_TIMER };
    size_t at = 0;

    fuzz_create(&fuzz);
    for (unsigned pieces = 0; pieces < 64 && at + 3 <= len; pieces++) {
        uint8_t what = bytes[at];
        size_t size = (size_t)bytes[at + 1] | (size_t)bytes[at + 2] << 8;

        at += 3;
        if (size > len - at)
            size = len - at;
        fuzz_piece(&fuzz, what, shoal_view_of(bytes + at, size));
        at += size;
    }
    /* Long after, every request has had its answer. */
    for (unsigned i = 0; i < 40; i++) {
        fuzz_flush(&fuzz);
        fuzz_blobs(&fuzz);
        fuzz.now += SHOAL_S;
        fuzz_step(&fuzz, &timer);
    }
    if (fuzz.open != 0)
        abort();
    shoal_sched_destroy(fuzz.sched);
    return 0;
}
