/* The store under power cuts. The test stands between LMDB and the kernel: it records every write and flush of the data
 * file, and every acknowledgement. Then it cuts the power at each event: what was flushed is kept, of what was not any
 * sectors of 512 bytes may have reached the disk. From each such image the store must open, and hold all that had been
 * acknowledged. SEED=n chooses other sectors and another load; CUTS=n cuts so often. */
#include "shoal/rand.h"
#include "shoal/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <uv.h>

#include <cmocka.h>

#include "shoal/banned.h"

#define GROUPS 3
#define SECTOR 512
#define EVENTS_MAX 60000
#define IMAGE_MAX (16 * SHOAL_MIB)

#define EXPORTED __attribute__((visibility("default")))

enum event_kind { EVENT_WRITE, EVENT_FLUSH, EVENT_ACK };

struct event {
    enum event_kind kind;
    bool durable; /* a write through a descriptor that flushes it */
    uint64_t offset;
    size_t len;
    uint8_t *bytes;
    unsigned group;
    uint64_t index, term, snapshot; /* ACK: the group is at least so far */
    bool removed;
};

static struct {
    pthread_mutex_t mutex;
    bool on;
    ino_t file;
    struct event events[EVENTS_MAX];
    size_t count;
    uint64_t offset; /* of the last seek */
} recorder = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static bool is_recorded(int fd)
{
    struct stat st;

    return recorder.on && fstat(fd, &st) == 0 && st.st_ino == recorder.file;
}

static void record(struct event event)
{
    (void)pthread_mutex_lock(&recorder.mutex);
    SHOAL_ASSERT(recorder.count < EVENTS_MAX);
    recorder.events[recorder.count++] = event;
    (void)pthread_mutex_unlock(&recorder.mutex);
}

static void record_write(int fd, const void *bytes, size_t len, uint64_t offset)
{
    struct event event = { .kind = EVENT_WRITE, .offset = offset, .len = len, .bytes = malloc(len) };

    SHOAL_ASSERT(event.bytes != NULL);
    memcpy(event.bytes, bytes, len);
    event.durable = (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
    record(event);
}

/* These take the place of the C library's, for LMDB too. */
EXPORTED ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t offset);
EXPORTED ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t offset)
{
    if (is_recorded(fd))
        record_write(fd, bytes, len, (uint64_t)offset);
    return syscall(SYS_pwrite64, fd, bytes, len, offset);
}

EXPORTED ssize_t pwrite(int fd, const void *bytes, size_t len, off_t offset)
{
    return pwrite64(fd, bytes, len, offset);
}

EXPORTED off64_t lseek64(int fd, off64_t offset, int whence)
{
    if (is_recorded(fd))
        recorder.offset = (uint64_t)offset;
    return syscall(SYS_lseek, fd, offset, whence);
}

EXPORTED off_t lseek(int fd, off_t offset, int whence) { return lseek64(fd, offset, whence); }

EXPORTED ssize_t writev(int fd, const struct iovec *parts, int count)
{
    bool recorded = is_recorded(fd);

    for (int i = 0; recorded && i < count; i++) {
        record_write(fd, parts[i].iov_base, parts[i].iov_len, recorder.offset);
        recorder.offset += parts[i].iov_len;
    }
    return syscall(SYS_writev, fd, parts, count);
}

EXPORTED int fdatasync(int fd)
{
    int rc = (int)syscall(SYS_fdatasync, fd);

    if (is_recorded(fd))
        record((struct event){ .kind = EVENT_FLUSH });
    return rc;
}

/* ---- the load ---- */

struct mark {
    unsigned group;
    uint64_t index, term, snapshot;
    bool removed;
};

struct fixture {
    char dir[64], store_dir[80], image_dir[80];
    uv_loop_t loop;
    struct shoal_store *store;
    struct shoal_rand chance;
    uint64_t last[GROUPS], snapshot[GROUPS], term[GROUPS];
    struct shoal_msg msg;
    unsigned stopped;
    /* The content of an image. */
    bool exists[GROUPS];
    uint64_t got_first[GROUPS], got_last[GROUPS], got_snapshot[GROUPS], got_term[GROUPS], got_entry_term[GROUPS];
    const char *broken;
};

static struct shoal_job_id group_id(unsigned group) { return (struct shoal_job_id){ { [9] = (uint8_t)group } }; }

static uint8_t byte_of(unsigned group, uint64_t index, uint64_t term, size_t i)
{
    return (uint8_t)(group * 101 + index * 7 + term * 13 + i * 31);
}

static void on_done(void *arg, const struct shoal_store_done *done)
{
    struct mark *mark = arg;

    (void)done;
    record((struct event){ .kind = EVENT_ACK,
                           .group = mark->group,
                           .index = mark->index,
                           .term = mark->term,
                           .snapshot = mark->snapshot,
                           .removed = mark->removed });
    free(mark);
}

/* Every batch carries its term in the hard state too: after a cut, log and hard state must be of one batch. */
static void load_step(struct fixture *f)
{
    struct shoal_rand *chance = &f->chance;
    unsigned g = (unsigned)shoal_rand_below(chance, GROUPS);
    uint64_t choice = shoal_rand_below(chance, 12), live = f->last[g] - f->snapshot[g];
    size_t count = 1 + shoal_rand_below(chance, 3), len = shoal_rand_below(chance, 8) == 0 ? 5000 : 150;
    uint64_t from = f->last[g] + 1;
    struct shoal_store_hard hard = { .term = ++f->term[g] };
    struct shoal_store_snapshot snapshot = { 0 };
    struct shoal_store_entry entries[3];
    uint8_t bytes[3 * 5000], state[3000];
    struct shoal_store_batch batch = { .group = group_id(g), .hard = &hard, .done = on_done };
    struct mark *mark = malloc(sizeof(*mark));

    assert_non_null(mark);
    if (choice == 0 && live > 0) { /* a snapshot, and nothing else */
        snapshot = (struct shoal_store_snapshot){ .index = f->snapshot[g] + 1 + shoal_rand_below(chance, live),
                                                  .term = f->term[g],
                                                  .bytes = shoal_view_of(state, sizeof(state)) };
        for (size_t i = 0; i < sizeof(state); i++)
            state[i] = byte_of(g, snapshot.index, snapshot.term, i);
        batch.snapshot = &snapshot;
        f->snapshot[g] = snapshot.index;
        count = 0;
    } else if (choice == 1 && live > 0) {
        from = f->snapshot[g] + 1 + shoal_rand_below(chance, live);
        batch.truncate_from = from;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t b = 0; b < len; b++)
            bytes[i * len + b] = byte_of(g, from + i, f->term[g], b);
        entries[i] = (struct shoal_store_entry){ .index = from + i,
                                                 .term = f->term[g],
                                                 .bytes = shoal_view_of(bytes + i * len, len) };
    }
    batch.entries = entries;
    batch.entries_count = count;
    f->last[g] = from + count - 1;
    *mark = (struct mark){ .group = g, .index = f->last[g], .term = f->term[g], .snapshot = f->snapshot[g] };
    batch.arg = mark;
    if (shoal_store_append(f->store, &batch, &f->msg) != SHOAL_OK)
        fail_msg("%s", f->msg.text);
}

static void on_stopped(void *arg) { ((struct fixture *)arg)->stopped++; }

static void close_store(struct fixture *f)
{
    f->stopped = 0;
    shoal_store_stop(f->store, on_stopped, f);
    while (f->stopped == 0)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
}

/* ---- the images ---- */

static void on_group(void *arg, struct shoal_job_id id, const struct shoal_store_hard *hard)
{
    struct fixture *f = arg;

    f->exists[id.bytes[9]] = true;
    f->got_term[id.bytes[9]] = hard->term;
}

static void on_snapshot(void *arg, struct shoal_job_id id, const struct shoal_store_snapshot *snapshot)
{
    struct fixture *f = arg;
    unsigned g = id.bytes[9];

    f->got_snapshot[g] = f->got_last[g] = snapshot->index;
    for (size_t i = 0; i < snapshot->bytes.len; i++)
        if (snapshot->bytes.bytes[i] != byte_of(g, snapshot->index, snapshot->term, i))
            f->broken = "a snapshot's bytes";
}

static void on_entry(void *arg, struct shoal_job_id id, const struct shoal_store_entry *entry)
{
    struct fixture *f = arg;
    unsigned g = id.bytes[9];

    if (entry->index != f->got_last[g] + 1)
        f->broken = "an entry is missing";
    f->got_last[g] = entry->index;
    f->got_entry_term[g] = entry->term;
    for (size_t i = 0; i < entry->bytes.len; i++)
        if (entry->bytes.bytes[i] != byte_of(g, entry->index, entry->term, i))
            f->broken = "an entry's bytes";
}

static void open_store(struct fixture *f, const char *dir)
{
    struct shoal_store_options options = { .loop = &f->loop,
                                           .dir = dir,
                                           .map_bytes = 64 * SHOAL_MIB,
                                           .prefill_bytes = SHOAL_MIB,
                                           .replay = { .arg = f, .on_group = on_group, .on_snapshot = on_snapshot, .on_entry = on_entry } };

    memset(f->exists, 0, sizeof(f->exists));
    memset(f->got_last, 0, sizeof(f->got_last));
    memset(f->got_snapshot, 0, sizeof(f->got_snapshot));
    memset(f->got_term, 0, sizeof(f->got_term));
    memset(f->got_entry_term, 0, sizeof(f->got_entry_term));
    f->broken = NULL;
    if (shoal_store_open(&f->store, &options, &f->msg) != SHOAL_OK)
        f->broken = f->msg.text;
}

static void apply(uint8_t *image, const struct event *event, struct shoal_rand *chance, uint64_t odds)
{
    for (size_t at = 0; at < event->len; at += SECTOR) {
        size_t len = event->len - at < SECTOR ? event->len - at : SECTOR;

        if (odds == 0 || shoal_rand_below(chance, 4) < odds)
            memcpy(image + event->offset + at, event->bytes + at, len);
    }
}

static void write_image(struct fixture *f, const uint8_t *image, size_t len)
{
    char path[128];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/data.mdb", f->image_dir);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    for (size_t at = 0; at < len;) {
        ssize_t wrote = write(fd, image + at, len - at);

        assert_true(wrote > 0);
        at += (size_t)wrote;
    }
    (void)close(fd);
}

static size_t read_file(const char *dir, uint8_t *image)
{
    char path[128];
    size_t len = 0;
    ssize_t got;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/data.mdb", dir);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    while ((got = read(fd, image + len, IMAGE_MAX - len)) > 0)
        len += (size_t)got;
    (void)close(fd);
    return len;
}

/* The power goes before event `cut`: `stable` holds what was flushed, events from `pending` on may or may not be
 * there. */
static void cut_power(struct fixture *f, const uint8_t *stable, uint8_t *image, size_t len, size_t pending, size_t cut,
                      const struct event *acked)
{
    uint64_t odds = 1 + shoal_rand_below(&f->chance, 4); /* of 4: each sector arrived; 4: all did */

    memcpy(image, stable, len);
    for (size_t i = pending; i < cut; i++)
        if (recorder.events[i].kind == EVENT_WRITE)
            apply(image, &recorder.events[i], &f->chance, odds);
    write_image(f, image, len);
    open_store(f, f->image_dir);
    if (f->broken != NULL)
        fail_msg("cut before event %zu of %zu: %s", cut, recorder.count, f->broken);
    for (unsigned g = 0; g < GROUPS; g++) {
        if (acked[g].term == 0)
            continue;
        /* Later batches may be there too, whole; the hard state names the batch, the log must be of the same. */
        if (!f->exists[g] || f->got_term[g] < acked[g].term || f->got_snapshot[g] < acked[g].snapshot)
            fail_msg("cut before event %zu of %zu: group %u has term %llu, %llu was acknowledged", cut, recorder.count,
                     g, (unsigned long long)f->got_term[g], (unsigned long long)acked[g].term);
        if (f->got_term[g] == acked[g].term && f->got_last[g] != acked[g].index)
            fail_msg("cut before event %zu of %zu: group %u ends at %llu, %llu was acknowledged", cut, recorder.count,
                     g, (unsigned long long)f->got_last[g], (unsigned long long)acked[g].index);
        if (f->got_entry_term[g] > f->got_term[g])
            fail_msg("cut before event %zu of %zu: group %u has entries of a batch whose hard state is lost", cut,
                     recorder.count, g);
    }
    close_store(f);
}

static void no_power_cut_loses_what_was_acknowledged(void **state)
{
    struct fixture *f = *state;
    uint8_t *stable = calloc(1, IMAGE_MAX), *image = calloc(1, IMAGE_MAX);
    struct event acked[GROUPS] = { { 0 } };
    const char *cuts_text = getenv("CUTS");
    uint64_t cuts = cuts_text != NULL ? strtoull(cuts_text, NULL, 0) : 150, acks = 0;
    size_t len, pending = 0;
    struct stat st;
    char path[128];

    assert_true(stable != NULL && image != NULL);
    open_store(f, f->store_dir);
    assert_null(f->broken);
    (void)snprintf(path, sizeof(path), "%s/data.mdb", f->store_dir);
    assert_int_equal(stat(path, &st), 0);
    (void)read_file(f->store_dir, stable);
    recorder.file = st.st_ino;
    recorder.on = true;
    for (unsigned i = 0; i < 1200; i++) {
        load_step(f);
        while (shoal_store_stats(f->store)->pending > shoal_rand_below(&f->chance, 12))
            (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    while (shoal_store_stats(f->store)->pending > 0)
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    recorder.on = false;
    close_store(f);
    len = read_file(f->store_dir, image);
    for (size_t i = 0; i <= recorder.count; i++) {
        if (i == recorder.count || shoal_rand_below(&f->chance, recorder.count) < cuts)
            cut_power(f, stable, image, len, pending, i, acked);
        if (i == recorder.count)
            break;
        if (recorder.events[i].kind == EVENT_ACK) {
            acked[recorder.events[i].group] = recorder.events[i];
            acks++;
        } else if (recorder.events[i].kind == EVENT_WRITE && recorder.events[i].durable) {
            apply(stable, &recorder.events[i], &f->chance, 0);
        } else if (recorder.events[i].kind == EVENT_FLUSH) {
            for (; pending < i; pending++)
                if (recorder.events[pending].kind == EVENT_WRITE)
                    apply(stable, &recorder.events[pending], &f->chance, 0);
        }
    }
    print_message("%zu events, %llu acknowledgements, about %llu cuts\n", recorder.count, (unsigned long long)acks,
                  (unsigned long long)cuts);
    assert_int_equal(acks, 1200);
    for (size_t i = 0; i < recorder.count; i++)
        free(recorder.events[i].bytes);
    free(stable);
    free(image);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    const char *given = getenv("SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : 1;

    if (f == NULL || uv_loop_init(&f->loop) != 0)
        return -1;
    print_message("seed %llu\n", (unsigned long long)seed);
    shoal_rand_init(&f->chance, seed);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-cut-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    (void)snprintf(f->store_dir, sizeof(f->store_dir), "%s/store", f->dir);
    (void)snprintf(f->image_dir, sizeof(f->image_dir), "%s/image", f->dir);
    *state = f;
    return mkdir(f->image_dir, 0700);
}

static int teardown(void **state)
{
    static const char *const names[] = { "store/data.mdb", "store/lock.mdb", "store", "image/data.mdb",
                                         "image/lock.mdb", "image",          "." };
    struct fixture *f = *state;
    char path[128];

    (void)uv_loop_close(&f->loop);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", f->dir, names[i]);
        if (unlink(path) != 0)
            (void)rmdir(path);
    }
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_power_cut_loses_what_was_acknowledged, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
