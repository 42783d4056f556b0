#include "shoal/store.h"

#include "shoal/rand.h"

#include "node/store/store_index.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lmdb.h>
#include <uv.h>

#include <cmocka.h>

#include "loop_test.h"

#include "shoal/banned.h"

#define GROUPS 4
#define ENTRIES_MAX 6000

/* The model of a group, that each reopening is compared with. */
struct model {
    bool exists;
    uint64_t hard_term, snapshot_index;
    uint8_t vote;
    uint64_t last;
    struct {
        uint64_t term;
        size_t len;
    } entries[ENTRIES_MAX];
};

struct fixture {
    char dir[64], store_dir[80], cache_dir[80];
    uv_loop_t loop;
    uv_timer_t watchdog;
    struct shoal_store *store;
    struct shoal_store_id id;
    struct model want[GROUPS], got[GROUPS];
    size_t map_bytes, prefill_bytes;
    uint64_t done, done_index, done_token, done_term;
    uint64_t read_first, read_last, read_term;
    unsigned fatals, stopped;
    char fatal[400];
    struct shoal_msg msg;
    bool late;
    bool in_child;
};

static struct shoal_job_id group_id(unsigned group)
{
    return (struct shoal_job_id){ { 1, 2, 3, 4, 5, 6, 7, 8, 9, (uint8_t)group } };
}

/* The bytes of an entry follow from its group, index and term. */
static uint8_t byte_of(unsigned group, uint64_t index, uint64_t term, size_t i)
{
    return (uint8_t)(group * 101 + index * 7 + term * 13 + i * 31 + (i >> 8));
}

static bool bytes_match(unsigned group, const struct shoal_store_entry *entry)
{
    for (size_t i = 0; i < entry->bytes.len; i++)
        if (entry->bytes.bytes[i] != byte_of(group, entry->index, entry->term, i))
            return false;
    return entry->kind == (uint8_t)(entry->index % 3);
}

static void on_group(void *arg, struct shoal_job_id id, const struct shoal_store_hard *hard)
{
    struct fixture *f = arg;
    struct model *got = &f->got[id.bytes[9]];

    assert_false(got->exists);
    got->exists = true;
    got->hard_term = hard->term;
    got->vote = hard->vote_node.bytes[0];
    assert_int_equal(hard->vote_store.bytes[1], hard->vote_node.bytes[0]);
    if (hard->config.len > 0)
        assert_memory_equal(hard->config.bytes, "config", 6);
}

static void on_snapshot(void *arg, struct shoal_job_id id, const struct shoal_store_snapshot *snapshot)
{
    struct fixture *f = arg;
    struct model *got = &f->got[id.bytes[9]];

    got->snapshot_index = snapshot->index;
    got->last = snapshot->index;
    for (size_t i = 0; i < snapshot->bytes.len; i++)
        assert_int_equal(snapshot->bytes.bytes[i], byte_of(id.bytes[9], snapshot->index, snapshot->term, i));
}

static void on_entry(void *arg, struct shoal_job_id id, const struct shoal_store_entry *entry)
{
    struct fixture *f = arg;
    struct model *got = &f->got[id.bytes[9]];

    assert_int_equal(entry->index, got->last + 1);
    assert_true(bytes_match(id.bytes[9], entry));
    got->last = entry->index;
    got->entries[entry->index].term = entry->term;
    got->entries[entry->index].len = entry->bytes.len;
}

static void on_fatal(void *arg, const char *text)
{
    struct fixture *f = arg;

    f->fatals++;
    (void)snprintf(f->fatal, sizeof(f->fatal), "%s", text);
}

static enum shoal_err try_open(struct fixture *f)
{
    struct shoal_store_options options = {
        .loop = &f->loop,
        .dir = f->store_dir,
        .store_id = f->id,
        .map_bytes = f->map_bytes,
        .prefill_bytes = f->prefill_bytes,
        .replay = { .arg = f, .on_group = on_group, .on_snapshot = on_snapshot, .on_entry = on_entry },
        .on_fatal = on_fatal,
        .fatal_arg = f,
    };

    memset(f->got, 0, sizeof(f->got));
    return shoal_store_open(&f->store, &options, &f->msg);
}

static void open_store(struct fixture *f)
{
    if (try_open(f) != SHOAL_OK)
        fail_msg("%s", f->msg.text);
}

static void on_stopped(void *arg) { ((struct fixture *)arg)->stopped++; }

static void close_store(struct fixture *f)
{
    f->stopped = 0;
    shoal_store_stop(f->store, on_stopped, f);
    f->store = NULL;
    RUN_UNTIL(f, f->stopped == 1);
}

static void reopen_and_compare(struct fixture *f)
{
    if (f->store != NULL)
        close_store(f);
    open_store(f);
    for (unsigned g = 0; g < GROUPS; g++) {
        const struct model *want = &f->want[g], *got = &f->got[g];

        if (want->exists != got->exists || want->last != got->last || want->hard_term != got->hard_term ||
            want->snapshot_index != got->snapshot_index || want->vote != got->vote)
            fail_msg("group %u: exists %d %d, last %llu %llu, term %llu %llu, snapshot %llu %llu", g, want->exists,
                     got->exists, (unsigned long long)want->last, (unsigned long long)got->last,
                     (unsigned long long)want->hard_term, (unsigned long long)got->hard_term,
                     (unsigned long long)want->snapshot_index, (unsigned long long)got->snapshot_index);
        for (uint64_t i = want->snapshot_index + 1; i <= want->last; i++)
            if (want->entries[i].term != got->entries[i].term || want->entries[i].len != got->entries[i].len)
                fail_msg("group %u entry %llu: term %llu %llu, length %zu %zu", g, (unsigned long long)i,
                         (unsigned long long)want->entries[i].term, (unsigned long long)got->entries[i].term,
                         want->entries[i].len, got->entries[i].len);
    }
}

static void on_done(void *arg, const struct shoal_store_done *done)
{
    struct fixture *f = arg;

    f->done++;
    assert_true(done->token > f->done_token); /* in the order of the appends */
    f->done_index = done->index;
    f->done_term = done->term;
    f->done_token = done->token;
}

static enum shoal_err append(struct fixture *f, struct shoal_store_batch *batch)
{
    static uint64_t token;

    batch->done = on_done;
    batch->arg = f;
    batch->token = ++token;
    return shoal_store_append(f->store, batch, &f->msg);
}

/* `count` entries of `len` bytes behind the last one, and the model follows. */
static enum shoal_err add(struct fixture *f, unsigned g, uint64_t term, size_t count, size_t len,
                          uint64_t truncate_from)
{
    struct model *want = &f->want[g];
    uint64_t from = truncate_from > 0 && truncate_from <= want->last ? truncate_from : want->last + 1;
    struct shoal_store_entry *entries = calloc(count + 1, sizeof(*entries));
    uint8_t *bytes = malloc(count * len + 1);
    struct shoal_store_batch batch = {
        .group = group_id(g), .truncate_from = truncate_from, .entries = entries, .entries_count = count
    };
    enum shoal_err err;

    assert_non_null(entries);
    assert_non_null(bytes);
    for (size_t i = 0; i < count; i++) {
        entries[i] = (struct shoal_store_entry){ .index = from + i,
                                                 .term = term,
                                                 .kind = (uint8_t)((from + i) % 3),
                                                 .bytes = shoal_view_of(bytes + i * len, len) };
        for (size_t b = 0; b < len; b++)
            bytes[i * len + b] = byte_of(g, from + i, term, b);
    }
    err = append(f, &batch);
    free(bytes);
    if (err == SHOAL_OK) {
        want->exists = true;
        want->last = from - 1 + count;
        for (uint64_t i = from; i < from + count; i++) {
            want->entries[i].term = term;
            want->entries[i].len = len;
        }
    }
    free(entries);
    return err;
}

static void set_hard(struct fixture *f, unsigned g, uint64_t term, uint8_t vote)
{
    struct shoal_store_hard hard = {
        .term = term, .vote_node = { { vote } }, .vote_store = { { 0, vote } }, .config = shoal_view_text("config")
    };
    struct shoal_store_batch batch = { .group = group_id(g), .hard = &hard };

    assert_int_equal(append(f, &batch), SHOAL_OK);
    f->want[g].exists = true;
    f->want[g].hard_term = term;
    f->want[g].vote = vote;
}

static void set_snapshot(struct fixture *f, unsigned g, uint64_t index, uint64_t term, size_t len,
                         uint64_t truncate_from)
{
    uint8_t *bytes = malloc(len + 1);
    struct shoal_store_snapshot snapshot = { .index = index, .term = term, .bytes = shoal_view_of(bytes, len) };
    struct shoal_store_batch batch = { .group = group_id(g), .snapshot = &snapshot, .truncate_from = truncate_from };

    assert_non_null(bytes);
    for (size_t i = 0; i < len; i++)
        bytes[i] = byte_of(g, index, term, i);
    assert_int_equal(append(f, &batch), SHOAL_OK);
    free(bytes);
    f->want[g].exists = true;
    f->want[g].snapshot_index = index;
    if (f->want[g].last < index || truncate_from > 0)
        f->want[g].last = index;
}

static void remove_group(struct fixture *f, unsigned g)
{
    struct shoal_store_batch batch = { .group = group_id(g), .remove = true };

    assert_int_equal(append(f, &batch), SHOAL_OK);
    memset(&f->want[g], 0, sizeof(f->want[g]));
}

static void settle(struct fixture *f) { RUN_UNTIL(f, shoal_store_stats(f->store)->pending == 0); }

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL || uv_loop_init(&f->loop) != 0)
        return -1;
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/shoal-store-XXXXXX");
    if (mkdtemp(f->dir) == NULL)
        return -1;
    (void)snprintf(f->store_dir, sizeof(f->store_dir), "%s/store", f->dir);
    (void)snprintf(f->cache_dir, sizeof(f->cache_dir), "%s/cache", f->dir);
    f->map_bytes = 256 * SHOAL_MIB;
    f->prefill_bytes = SHOAL_MIB;
    f->id.bytes[0] = 9;
    loop_watch(&f->loop, &f->watchdog, &f->late);
    *state = f;
    return 0;
}

static void remove_folder(const char *dir)
{
    static const char *const names[] = { "data.mdb", "lock.mdb" };
    char path[128];

    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    if (f->store != NULL)
        close_store(f);
    uv_close((uv_handle_t *)&f->watchdog, NULL);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    remove_folder(f->store_dir);
    remove_folder(f->cache_dir);
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

/* ---- cases ---- */

static void what_was_appended_is_there_after_a_restart(void **state)
{
    static const size_t lens[] = { 0,
                                   1,
                                   200,
                                   FRAME_ENTRY_MAX,
                                   FRAME_ENTRY_MAX + 1,
                                   FRAME_PART_MAX,
                                   FRAME_PART_MAX + 1,
                                   2 * FRAME_PART_MAX,
                                   50000,
                                   SHOAL_ENTRY_BYTES_MAX };
    struct fixture *f = *state;

    open_store(f);
    set_hard(f, 0, 1, 7);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        assert_int_equal(add(f, 0, 1, 3, lens[i], 0), SHOAL_OK);
        assert_int_equal(add(f, (unsigned)i % GROUPS, 2, 1, lens[i], 0), SHOAL_OK);
    }
    set_hard(f, 0, 3, 8);
    assert_true(shoal_store_oldest_pending_ns(f->store) > 0);
    settle(f);
    assert_int_equal(shoal_store_oldest_pending_ns(f->store), 0);
    assert_int_equal(f->done, 2 * sizeof(lens) / sizeof(lens[0]) + 2);
    assert_int_equal(f->done_term, 3);
    reopen_and_compare(f);
    assert_int_equal(add(f, 0, 4, 1, 10, 0), SHOAL_OK); /* and it goes on */
    reopen_and_compare(f);
}

static void many_batches_share_a_flush(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(add(f, i % GROUPS, 1, 1, 100, 0), SHOAL_OK);
    settle(f);
    assert_int_equal(f->done, 1000);
    assert_true(shoal_store_stats(f->store)->commits < 200);
    assert_true(shoal_store_stats(f->store)->commits >= 2); /* 512 frames at most in one */
    reopen_and_compare(f);
}

static void a_truncated_suffix_is_gone_and_rewritten(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    assert_int_equal(add(f, 0, 1, 10, 100, 0), SHOAL_OK);
    assert_int_equal(add(f, 0, 1, 1, 30000, 0), SHOAL_OK);
    assert_int_equal(add(f, 0, 2, 2, 100, 5), SHOAL_OK); /* inside the first frame */
    reopen_and_compare(f);
    assert_int_equal(add(f, 0, 3, 1, 20000, 7), SHOAL_OK);
    assert_int_equal(add(f, 0, 4, 1, 40000, 7), SHOAL_OK);
    assert_int_equal(add(f, 0, 5, 0, 0, 7), SHOAL_OK);
    reopen_and_compare(f);
    assert_int_equal(add(f, 0, 6, 5, 1800, 1), SHOAL_OK);
    reopen_and_compare(f);
    assert_int_equal(f->got[0].last, 5);
}

static void a_snapshot_takes_the_place_of_a_prefix(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    assert_int_equal(add(f, 0, 1, 20, 100, 0), SHOAL_OK);
    set_snapshot(f, 0, 15, 1, 10000, 0); /* inside a frame */
    reopen_and_compare(f);
    assert_int_equal(f->got[0].snapshot_index, 15);
    assert_int_equal(add(f, 0, 2, 3, 100, 0), SHOAL_OK);
    set_snapshot(f, 0, 23, 2, 0, 0);
    reopen_and_compare(f);
    set_snapshot(f, 0, 1000, 3, 3 * SHOAL_STORE_VALUE_MAX, 1); /* installed from a leader far ahead */
    assert_int_equal(add(f, 0, 3, 3, 100, 0), SHOAL_OK);
    reopen_and_compare(f);
    assert_int_equal(f->got[0].last, 1003);
}

/* A witness of a founding keeps its configuration before any entry; a recovered group begins behind its old log. */
static void a_snapshot_may_come_before_and_behind_all_entries(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    set_snapshot(f, 0, 0, 0, 200, 0);
    set_hard(f, 0, 2, 1);
    reopen_and_compare(f);
    assert_int_equal(add(f, 0, 2, 3, 100, 0), SHOAL_OK);
    reopen_and_compare(f);
    assert_int_equal(f->got[0].last, 3);
    assert_int_equal(add(f, 1, 1, 20, 100, 0), SHOAL_OK);
    set_snapshot(f, 1, 21, 9, 300, 22);
    reopen_and_compare(f);
    assert_int_equal(f->got[1].snapshot_index, 21);
    assert_int_equal(add(f, 1, 10, 2, 100, 0), SHOAL_OK);
    reopen_and_compare(f);
    assert_int_equal(f->got[1].last, 23);
}

static void the_newest_durable_snapshot_is_read(void **state)
{
    struct fixture *f = *state;
    struct shoal_buf buf = { 0 };
    uint64_t index, term;

    open_store(f);
    assert_int_equal(shoal_store_read_snapshot(f->store, group_id(0), &index, &term, &buf), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(add(f, 0, 1, 20, 100, 0), SHOAL_OK);
    set_snapshot(f, 0, 10, 1, 100000, 0);
    settle(f);
    set_snapshot(f, 0, 20, 2, 50, 0);
    settle(f);
    assert_int_equal(shoal_store_read_snapshot(f->store, group_id(0), &index, &term, &buf), SHOAL_OK);
    assert_int_equal(index, 20);
    assert_int_equal(term, 2);
    assert_int_equal(buf.len, 50);
    shoal_buf_deinit(&buf);
}

static void a_removed_group_is_gone_and_may_come_again(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    for (unsigned g = 0; g < GROUPS; g++) {
        set_hard(f, g, 1, 1);
        assert_int_equal(add(f, g, 1, 20, 1000, 0), SHOAL_OK);
        set_snapshot(f, g, 5, 1, 5000, 0);
    }
    remove_group(f, 1);
    remove_group(f, 2);
    set_hard(f, 2, 9, 4);
    assert_int_equal(add(f, 2, 9, 2, 10, 0), SHOAL_OK);
    reopen_and_compare(f);
    assert_false(f->got[1].exists);
    remove_group(f, 0);
    remove_group(f, 1); /* of nothing */
    remove_group(f, 2);
    remove_group(f, 3);
    reopen_and_compare(f);
    assert_int_equal(shoal_store_stats(f->store)->groups, 0);
}

static void count_entry(void *arg, struct shoal_job_id id, const struct shoal_store_entry *entry)
{
    struct fixture *f = arg;

    if (f->read_first == 0)
        f->read_first = entry->index;
    f->read_last = entry->index;
    f->read_term = entry->term;
    assert_true(bytes_match(id.bytes[9], entry));
}

static void a_range_is_read_back_within_its_bounds(void **state)
{
    static const struct {
        const char *name;
        uint64_t from, to;
        size_t bytes_max;
        enum shoal_err want;
        uint64_t first, last;
    } cases[] = {
        { "all of it", 6, 100, SIZE_MAX, SHOAL_OK, 6, 31 },
        { "one entry", 12, 13, SIZE_MAX, SHOAL_OK, 12, 12 },
        { "a long entry", 21, 22, SIZE_MAX, SHOAL_OK, 21, 21 },
        { "across frames and a long entry", 15, 25, SIZE_MAX, SHOAL_OK, 15, 24 },
        { "as much as was asked for", 6, 100, 350, SHOAL_OK, 6, 8 },
        { "one entry at least", 21, 100, 10, SHOAL_OK, 21, 21 },
        { "below the snapshot", 5, 10, SIZE_MAX, SHOAL_ERR_NOT_FOUND, 0, 0 },
        { "above the log", 32, 40, SIZE_MAX, SHOAL_ERR_NOT_FOUND, 0, 0 },
    };
    struct fixture *f = *state;
    size_t unflushed = 1;

    open_store(f);
    assert_int_equal(add(f, 0, 1, 20, 100, 0), SHOAL_OK);
    assert_int_equal(shoal_store_read(f->store, group_id(0), 1, 9, 1, count_entry, f, &unflushed), SHOAL_OK);
    assert_int_equal(unflushed, 0);
    assert_int_equal(add(f, 0, 1, 1, 9000, 0), SHOAL_OK);
    assert_int_equal(add(f, 0, 1, 10, 300, 0), SHOAL_OK);
    set_snapshot(f, 0, 5, 1, 10, 0);
    settle(f);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = 0;

        f->read_first = 0;
        f->read_last = 0;
        assert_int_equal(shoal_store_read(f->store, group_id(0), cases[i].from, cases[i].to, cases[i].bytes_max,
                                          count_entry, f, &count),
                         cases[i].want);
        if (f->read_first != cases[i].first || f->read_last != cases[i].last ||
            count != (cases[i].first == 0 ? 0 : cases[i].last + 1 - cases[i].first))
            fail_msg("%s: %llu to %llu, %zu", cases[i].name, (unsigned long long)f->read_first,
                     (unsigned long long)f->read_last, count);
    }
    assert_int_equal(shoal_store_read(f->store, group_id(3), 1, 2, 1, count_entry, f, &(size_t){ 0 }),
                     SHOAL_ERR_NOT_FOUND);
}

static void old_entries_are_trimmed_and_a_pinning_group_is_moved(void **state)
{
    struct fixture *f = *state;
    const struct shoal_store_stats *stats;

    open_store(f);
    /* Group 3 writes little, early, and keeps it: it pins the log. */
    set_hard(f, 3, 1, 1);
    assert_int_equal(add(f, 3, 1, 3, 100, 0), SHOAL_OK);
    assert_int_equal(add(f, 3, 1, 1, 10000, 0), SHOAL_OK);
    assert_int_equal(add(f, 3, 1, 10, 100, 0), SHOAL_OK);
    set_snapshot(f, 3, 1, 1, 10, 0);                    /* its first span begins inside a frame */
    assert_int_equal(add(f, 3, 2, 0, 0, 12), SHOAL_OK); /* and its last one ends inside one */
    for (unsigned round = 0; round < 40; round++) {
        for (unsigned g = 0; g < 2; g++)
            for (unsigned i = 0; i < 60; i++)
                assert_int_equal(add(f, g, 1, 1, 500, 0), SHOAL_OK);
        set_snapshot(f, 0, f->want[0].last, 1, 100, 0);
        set_snapshot(f, 1, f->want[1].last - 7, 1, 100, 0);
        settle(f);
        if (round % 13 == 5)
            reopen_and_compare(f);
    }
    settle(f);
    stats = shoal_store_stats(f->store);
    assert_true(stats->frames_copied > 0);
    assert_true(stats->frames_trimmed > 1000);
    assert_true(stats->used_bytes < 8 * SHOAL_MIB);
    assert_int_equal(stats->entries, 7 + 10);
    reopen_and_compare(f);
    assert_int_equal(add(f, 3, 3, 2, 100, 5), SHOAL_OK); /* what was moved can be truncated */
    reopen_and_compare(f);
}

/* While the cleaner copies the pinning group's entries, that group writes its log anew: what was copied is not its log. */
static void what_is_rewritten_while_it_is_moved_is_the_new_one(void **state)
{
    struct fixture *f = *state;
    unsigned moved = 0;

    open_store(f);
    for (unsigned round = 0; round < 40; round++) {
        uint64_t copied = shoal_store_stats(f->store)->frames_copied;
        size_t count = 0;

        assert_int_equal(add(f, 3, 2 * round + 1, 13, 100, 1), SHOAL_OK);
        for (unsigned i = 0; i < 1200; i++)
            assert_int_equal(add(f, 0, 1, 1, 500, 0), SHOAL_OK);
        set_snapshot(f, 0, f->want[0].last, 1, 100, 0);
        RUN_UNTIL(f, shoal_store_stats(f->store)->pending == 0 || shoal_store_stats(f->store)->frames_copied > copied);
        moved += shoal_store_stats(f->store)->frames_copied > copied;
        assert_int_equal(add(f, 3, 2 * round + 2, 13, 100, 1), SHOAL_OK); /* the copies are with the disk now */
        settle(f);
        f->read_first = 0;
        f->read_term = 0;
        assert_int_equal(shoal_store_read(f->store, group_id(3), 1, 14, SIZE_MAX, count_entry, f, &count), SHOAL_OK);
        assert_int_equal(count, 13);
        assert_int_equal(f->read_term, 2 * round + 2);
        remove_group(f, 0);
    }
    assert_true(moved > 2);
    reopen_and_compare(f);
}

static void no_snapshot_stays_behind_the_newest(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    for (unsigned i = 1; i <= 60; i++) {
        set_snapshot(f, 0, i, 1, 900000, 0);
        settle(f);
    }
    assert_true(shoal_store_stats(f->store)->used_bytes < 8 * SHOAL_MIB);
    reopen_and_compare(f);
}

static void what_waits_for_the_disk_is_bounded(void **state)
{
    struct fixture *f = *state;
    enum shoal_err err = SHOAL_OK;
    size_t taken = 0;

    open_store(f);
    while (err == SHOAL_OK && taken < 2 * SHOAL_STORE_PENDING_BYTES_MAX) { /* the loop hears of no end meanwhile */
        err = add(f, 0, 1, 100, 9000, 0);
        taken += err == SHOAL_OK ? 900000 : 0;
    }
    assert_int_equal(err, SHOAL_ERR_FULL);
    assert_non_null(strstr(f->msg.text, "wait for the disk"));
    assert_true(taken > SHOAL_STORE_PENDING_BYTES_MAX / 2);
    settle(f);
    assert_int_equal(add(f, 0, 1, 1, 100, 0), SHOAL_OK);
    reopen_and_compare(f);
}

static void a_hard_row_that_has_changed_is_refused(void **state)
{
    struct group row = { .id = group_id(1), .term = 7, .snapshot = { .index = 3, .term = 2, .generation = 1 } }, back;
    uint8_t bytes[HARD_ROW_MAX];
    size_t len;

    (void)state;
    assert_int_equal(store_group_set_config(&row, shoal_view_text("config")), SHOAL_OK);
    len = store_hard_encode(&row, bytes);
    assert_int_equal(store_hard_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
    for (size_t bit = 0; bit < 8 * len; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_not_equal(store_hard_decode(shoal_view_of(bytes, len), &back), SHOAL_OK);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(row.config);
}

static void a_log_with_a_hole_is_not_whole(void **state)
{
    static const struct {
        uint64_t snapshot, first, second;
        bool whole;
    } rows[] = { { 0, 1, 3, true }, { 0, 1, 4, false }, { 2, 3, 5, true }, { 2, 4, 6, false }, { 2, 1, 3, true }, { 4, 1, 6, false } };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct store_index index = { 0 };
        struct group *group;

        assert_int_equal(store_index_make(&index, group_id(1), &group), SHOAL_OK);
        assert_int_equal(store_group_reserve(group, 2), SHOAL_OK);
        group->snapshot.index = rows[i].snapshot;
        store_group_append(&index, group, (struct span){ .first = rows[i].first, .seq = 1, .count = 2, .frames = 1 });
        store_group_append(&index, group, (struct span){ .first = rows[i].second, .seq = 2, .count = 2, .frames = 1 });
        assert_true(store_group_settle(&index, group) == rows[i].whole);
        store_index_deinit(&index);
    }
}

static void a_full_map_is_refused_and_can_be_emptied(void **state)
{
    struct fixture *f = *state;
    enum shoal_err err = SHOAL_OK;

    f->map_bytes = 4 * SHOAL_MIB;
    open_store(f);
    for (unsigned i = 0; i < 5000 && err == SHOAL_OK; i++) {
        err = add(f, i % 2, 1, 1, 1800, 0);
        if (i % 50 == 0)
            settle(f);
    }
    assert_int_equal(err, SHOAL_ERR_FULL);
    assert_non_null(strstr(f->msg.text, "--store-map"));
    assert_int_equal(shoal_store_stats(f->store)->refused_full, 1);
    settle(f);
    set_snapshot(f, 0, f->want[0].last, 1, 100, 0);
    remove_group(f, 1);
    settle(f);
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(add(f, 0, 2, 1, 1800, 0), SHOAL_OK);
    settle(f);
    assert_int_equal(f->fatals, 0);
    reopen_and_compare(f);
}

static void what_is_too_big_is_refused(void **state)
{
    struct fixture *f = *state;
    uint8_t *big = calloc(1, SHOAL_SNAPSHOT_BYTES_MAX + 1u);
    struct shoal_store_snapshot snapshot = { .index = 1,
                                             .term = 1,
                                             .bytes = shoal_view_of(big, SHOAL_SNAPSHOT_BYTES_MAX + 1u) };
    struct shoal_store_hard hard = { .term = 1, .config = shoal_view_of(big, SHOAL_STORE_CONFIG_MAX + 1) };
    struct shoal_store_batch batch = { .group = group_id(0), .snapshot = &snapshot };

    assert_non_null(big);
    open_store(f);
    assert_int_equal(add(f, 0, 1, 1, SHOAL_ENTRY_BYTES_MAX + 1, 0), SHOAL_ERR_TOO_BIG);
    assert_int_equal(append(f, &batch), SHOAL_ERR_TOO_BIG);
    batch = (struct shoal_store_batch){ .group = group_id(0), .hard = &hard };
    assert_int_equal(append(f, &batch), SHOAL_ERR_TOO_BIG);
    free(big);
    reopen_and_compare(f);
}

static void the_file_is_zero_filled_beforehand(void **state)
{
    struct fixture *f = *state;
    char path[128];
    struct stat st;

    f->prefill_bytes = 3 * SHOAL_MIB;
    open_store(f);
    (void)snprintf(path, sizeof(path), "%s/data.mdb", f->store_dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3 * SHOAL_MIB);
    assert_true((uint64_t)st.st_blocks * 512 >= 3 * SHOAL_MIB);
    assert_int_equal(add(f, 0, 1, 100, 1000, 0), SHOAL_OK);
    settle(f);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3 * SHOAL_MIB);
    reopen_and_compare(f);
}

static void the_store_of_another_folder_is_refused(void **state)
{
    struct fixture *f = *state;

    open_store(f);
    close_store(f);
    f->id.bytes[0] ^= 1;
    assert_int_equal(try_open(f), SHOAL_ERR_MALFORMED);
    assert_non_null(strstr(f->msg.text, "another data folder"));
}

/* A child appends, and says after each completion how far it got; it is killed in the midst of it. */
static void append_forever(struct fixture *f, int pipe_end)
{
    uint64_t told = 0, ahead = 0;

    open_store(f);
    for (unsigned g = 0; g < GROUPS; g++) {
        f->want[g].last = f->got[g].last;
        ahead = f->want[g].last > ahead ? f->want[g].last : ahead;
    }
    for (unsigned g = 0; g < GROUPS; g++) /* the kill before fell between the groups: side by side again */
        while (f->want[g].last < ahead)
            if (add(f, g, 1, 1, g == 2 ? 5000 : 200, 0) != SHOAL_OK)
                _exit(3);
    while (f->want[0].last < ENTRIES_MAX - 10) {
        for (unsigned g = 0; g < GROUPS; g++)
            if (add(f, g, 1, 1, g == 2 ? 5000 : 200, 0) != SHOAL_OK)
                _exit(3);
        f->done_index = told;
        RUN_UNTIL(f, shoal_store_stats(f->store)->pending < GROUPS * 3);
        if (f->done_index > 3 && f->done_index - 3 > told) {
            told = f->done_index - 3; /* every group's entry of that index is durable */
            if (write(pipe_end, &told, sizeof(told)) != sizeof(told))
                _exit(4);
        }
    }
    _exit(5);
}

static void a_killed_agent_has_what_it_acknowledged(void **state)
{
    struct fixture *f = *state;
    uint64_t acknowledged = 0;

    for (unsigned round = 1; round <= 5; round++) {
        int ends[2], status;
        pid_t child;

        assert_int_equal(pipe(ends), 0);
        child = fork();
        if (child == 0) {
            (void)close(ends[0]);
            assert_int_equal(uv_loop_fork(&f->loop), 0);
            append_forever(f, ends[1]);
        }
        (void)close(ends[1]);
        for (uint64_t told = 0; acknowledged < round * 40;) {
            assert_int_equal(read(ends[0], &told, sizeof(told)), sizeof(told));
            acknowledged = told;
        }
        assert_int_equal(kill(child, SIGKILL), 0);
        for (uint64_t told; read(ends[0], &told, sizeof(told)) == sizeof(told);)
            acknowledged = told;
        (void)close(ends[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        open_store(f); /* each entry's content is checked by on_entry */
        for (unsigned g = 0; g < GROUPS; g++)
            if (f->got[g].last < acknowledged)
                fail_msg("round %u: group %u has %llu of %llu acknowledged entries", round, g,
                         (unsigned long long)f->got[g].last, (unsigned long long)acknowledged);
        close_store(f);
    }
}

/* The child's disk takes no more: the first failed flush is reported once, and nothing is acknowledged any more. */
static void fill_the_disk(struct fixture *f, int pipe_end)
{
    struct rlimit limit = { .rlim_cur = 2 * SHOAL_MIB, .rlim_max = 2 * SHOAL_MIB };
    uint64_t done;
    uint8_t verdict = 1;

    f->prefill_bytes = SHOAL_MIB;
    open_store(f);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    for (unsigned i = 0; i < 2000 && f->fatals == 0; i++) {
        if (add(f, 0, 1, 1, 1800, 0) != SHOAL_OK)
            break;
        RUN_UNTIL(f, shoal_store_stats(f->store)->pending < 4);
    }
    done = f->done_index;
    settle(f);
    if (f->fatals != 1)
        verdict = 2;
    else if (add(f, 0, 1, 1, 10, 0) != SHOAL_ERR_STALE)
        verdict = 3;
    else if (f->done_index != done)
        verdict = 4;
    if (write(pipe_end, &done, sizeof(done)) != sizeof(done))
        _exit(4);
    _exit(verdict - 1);
}

static void a_failed_flush_stops_everything_and_loses_nothing(void **state)
{
    struct fixture *f = *state;
    uint64_t done = 0;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        assert_int_equal(uv_loop_fork(&f->loop), 0);
        fill_the_disk(f, ends[1]);
    }
    (void)close(ends[1]);
    assert_int_equal(read(ends[0], &done, sizeof(done)), sizeof(done));
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(done > 100);
    open_store(f);
    assert_true(f->got[0].last >= done);
}

/* Change one byte of one frame, through LMDB itself. */
static void damage_in(struct fixture *f, const char *table, size_t at, uint8_t flip, bool cut)
{
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi log;
    MDB_cursor *cursor;
    MDB_val key, value;
    uint8_t copy[SHOAL_STORE_VALUE_MAX];

    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, 4), 0);
    assert_int_equal(mdb_env_set_mapsize(env, f->map_bytes), 0);
    assert_int_equal(mdb_env_open(env, f->store_dir, MDB_NOSYNC, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, table, 0, &log), 0);
    assert_int_equal(mdb_cursor_open(txn, log, &cursor), 0);
    assert_int_equal(mdb_cursor_get(cursor, &key, &value, MDB_FIRST), 0);
    memcpy(copy, value.mv_data, value.mv_size);
    copy[at % value.mv_size] ^= flip;
    value.mv_data = copy;
    value.mv_size -= cut;
    assert_int_equal(mdb_cursor_put(cursor, &key, &value, MDB_CURRENT), 0);
    mdb_cursor_close(cursor);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
}

static void damage(struct fixture *f, size_t at, bool cut) { damage_in(f, "log", at, 1, cut); }

/* Another program's version stands in the second byte of the store's name, the oldest that can read it in the third. */
static void a_store_of_another_version_is_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t flip;
        const char *want;
    } cases[] = { { 1, 0x2 ^ 0x1, "a store of version 1" }, { 2, 0x2 ^ 0x9, "reads 2 to 2" } };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_store(f);
        close_store(f);
        damage_in(f, "meta", cases[i].at, cases[i].flip, false);
        assert_int_equal(try_open(f), SHOAL_ERR_UNSUPPORTED);
        assert_non_null(strstr(f->msg.text, cases[i].want));
        remove_folder(f->store_dir);
    }
}

static void a_damaged_frame_is_refused_with_a_remedy(void **state)
{
    static const struct {
        size_t at;
        bool cut;
    } cases[] = { { 0, false }, { 3, false }, { 8, false }, { 40, false }, { 60, true } };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        f->done_token = 0;
        open_store(f);
        assert_int_equal(add(f, 0, 1, 3, 100, 0), SHOAL_OK);
        close_store(f);
        damage(f, cases[i].at, cases[i].cut);
        assert_int_equal(try_open(f), SHOAL_ERR_MALFORMED);
        assert_non_null(strstr(f->msg.text, "join with a new data folder"));
        remove_folder(f->store_dir);
        memset(f->want, 0, sizeof(f->want));
    }
}

static void every_prefix_and_flipped_bit_of_a_frame_is_refused(void **state)
{
    struct shoal_store_entry entries[2] = { { 1, 1, 0, shoal_view_text("one") }, { 2, 1, 0, shoal_view_text("two") } };
    uint8_t big[5000] = { 1 };
    struct shoal_store_entry long_entry = { 1, 1, 0, shoal_view_of(big, sizeof(big)) };
    uint8_t bytes[SHOAL_STORE_VALUE_MAX];
    size_t taken;

    (void)state;
    for (unsigned what = 0; what < FRAME_WHATS; what++) {
        size_t whole = what == FRAME_ENTRIES ? store_frame_encode_entries(group_id(1), false, entries, 2, 5, bytes, &taken)
                       : what == FRAME_PART
                           ? store_frame_encode_part(group_id(1), true, &long_entry, FRAME_PART_MAX, 5, bytes)
                           : store_frame_encode_mark((enum frame_what)what, group_id(1), 3, 5, bytes);
        struct frame frame;

        assert_int_equal(store_frame_decode(5, shoal_view_of(bytes, whole), &frame), SHOAL_OK);
        assert_int_equal(frame.what, what);
        assert_int_equal(store_frame_decode(6, shoal_view_of(bytes, whole), &frame), SHOAL_ERR_MALFORMED); /* another place */
        for (size_t n = 0; n < whole + whole * 8; n++) {
            size_t len = n < whole ? n : whole;
            uint8_t *exact = malloc(len + 1);

            assert_non_null(exact);
            memcpy(exact, bytes, len);
            if (n >= whole)
                exact[(n - whole) / 8] ^= (uint8_t)(1u << (n - whole) % 8);
            if (store_frame_decode(5, shoal_view_of(exact, len), &frame) != SHOAL_ERR_MALFORMED)
                fail_msg("kind %u, case %zu of %zu was decoded", what, n, whole * 9);
            free(exact);
        }
    }
}

/* A seeded life of four groups against the model, with a restart now and then. Group 2 does little, and so pins the
 * log: the cleaner has work. */
static void random_step(struct fixture *f, struct shoal_rand *chance)
{
    unsigned g = shoal_rand_below(chance, 60) == 0 ? 2 : (unsigned)(shoal_rand_below(chance, 3) * 3 / 2);
    struct model *want = &f->want[g];
    uint64_t live = want->last - want->snapshot_index, term = want->hard_term + 1;
    size_t count = 1 + shoal_rand_below(chance, 6), len = shoal_rand_below(chance, 400);
    uint64_t index = live == 0 ? 0 : want->snapshot_index + 1 + shoal_rand_below(chance, live);

    if (shoal_rand_below(chance, 20) == 0)
        len = shoal_rand_below(chance, 30000);
    switch (shoal_rand_below(chance, 16)) {
    case 0: set_hard(f, g, term, (uint8_t)term); break;
    case 1:
        if (index != 0)
            set_snapshot(f, g, g == 2 ? index : want->last, term, shoal_rand_below(chance, 5000), 0);
        break;
    case 2:
        if (index != 0)
            assert_int_equal(add(f, g, term, count, len, index), SHOAL_OK);
        break;
    case 3:
        if (shoal_rand_below(chance, 20) == 0 && g != 2)
            remove_group(f, g);
        break;
    case 4:
        if (shoal_rand_below(chance, 10) == 0 && want->last < ENTRIES_MAX / 2)
            set_snapshot(f, g, want->last + 10, term, 100, 1);
        break;
    default:
        if (want->last + count < ENTRIES_MAX - 20)
            assert_int_equal(add(f, g, term, count, g == 3 ? len : len / 8, 0), SHOAL_OK);
        break;
    }
}

static void random_lives_agree_with_the_model(void **state)
{
    struct fixture *f = *state;
    const char *given = getenv("SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : 1;
    struct shoal_rand chance;
    uint64_t copied = 0, trimmed = 0;

    print_message("seed %llu\n", (unsigned long long)seed);
    shoal_rand_init(&chance, seed);
    open_store(f);
    for (unsigned round = 0; round < 60; round++) {
        for (unsigned i = 0; i < 150; i++)
            random_step(f, &chance);
        if (shoal_rand_below(&chance, 2) == 0)
            settle(f);
        if (shoal_rand_below(&chance, 4) != 0)
            continue;
        settle(f);
        copied += shoal_store_stats(f->store)->frames_copied;
        trimmed += shoal_store_stats(f->store)->frames_trimmed;
        reopen_and_compare(f);
    }
    reopen_and_compare(f);
    print_message("%llu frames copied, %llu trimmed\n", (unsigned long long)copied, (unsigned long long)trimmed);
    assert_true(trimmed > 0 && copied > 0);
}

/* ---- the cache ---- */

static bool each(void *arg, struct shoal_view key, struct shoal_view value)
{
    char *text = arg;

    assert_int_equal(value.len, 1);
    memcpy(text + strlen(text), key.bytes, key.len);
    return strlen(text) < 3;
}

static void the_cache_puts_gets_removes_and_iterates(void **state)
{
    struct fixture *f = *state;
    struct shoal_cache *cache;
    struct shoal_buf buf = { 0 };
    char text[16] = "";
    uint8_t big[SHOAL_CACHE_VALUE_MAX + 1] = { 0 };

    assert_int_equal(shoal_cache_open(&cache, f->cache_dir, "boot-a", 0, &f->msg), SHOAL_OK);
    for (const char *k = "dbac"; *k != '\0'; k++)
        assert_int_equal(shoal_cache_put(cache, SHOAL_CACHE_SLOTS, shoal_view_of(k, 1), shoal_view_of(k, 1)), SHOAL_OK);
    assert_int_equal(shoal_cache_get(cache, SHOAL_CACHE_SLOTS, shoal_view_text("b"), &buf), SHOAL_OK);
    assert_int_equal(buf.len, 1);
    assert_int_equal(shoal_cache_get(cache, SHOAL_CACHE_GOSSIP, shoal_view_text("b"), &buf), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(shoal_cache_remove(cache, SHOAL_CACHE_SLOTS, shoal_view_text("b")), SHOAL_OK);
    assert_int_equal(shoal_cache_remove(cache, SHOAL_CACHE_SLOTS, shoal_view_text("b")), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(shoal_cache_each(cache, SHOAL_CACHE_SLOTS, each, text), SHOAL_OK);
    assert_string_equal(text, "acd");
    assert_int_equal(shoal_cache_put(cache, SHOAL_CACHE_SLOTS, shoal_view_text(""), shoal_view_text("x")),
                     SHOAL_ERR_INVALID);
    assert_int_equal(shoal_cache_put(cache, SHOAL_CACHE_SLOTS, shoal_view_of(big, 65), shoal_view_text("x")),
                     SHOAL_ERR_TOO_BIG);
    assert_int_equal(shoal_cache_put(cache, SHOAL_CACHE_SLOTS, shoal_view_text("x"), shoal_view_of(big, sizeof(big))),
                     SHOAL_ERR_TOO_BIG);
    shoal_buf_deinit(&buf);
    shoal_cache_close(cache);
}

static void the_cache_survives_the_agent_and_not_a_reboot(void **state)
{
    struct fixture *f = *state;
    struct shoal_cache *cache;
    struct shoal_buf buf = { 0 };
    char path[128];
    int fd;

    assert_int_equal(shoal_cache_open(&cache, f->cache_dir, "boot-a", 0, &f->msg), SHOAL_OK);
    assert_int_equal(shoal_cache_put(cache, SHOAL_CACHE_OTHER, shoal_view_text("k"), shoal_view_text("v")), SHOAL_OK);
    shoal_cache_close(cache);
    assert_int_equal(shoal_cache_open(&cache, f->cache_dir, "boot-a", 0, &f->msg), SHOAL_OK);
    assert_int_equal(shoal_cache_get(cache, SHOAL_CACHE_OTHER, shoal_view_text("k"), &buf), SHOAL_OK);
    shoal_cache_close(cache);
    f->msg.text[0] = '\0';
    assert_int_equal(shoal_cache_open(&cache, f->cache_dir, "boot-b", 0, &f->msg), SHOAL_OK);
    assert_non_null(strstr(f->msg.text, "starts empty"));
    assert_int_equal(shoal_cache_get(cache, SHOAL_CACHE_OTHER, shoal_view_text("k"), &buf), SHOAL_ERR_NOT_FOUND);
    shoal_cache_close(cache);
    (void)snprintf(path, sizeof(path), "%s/data.mdb", f->cache_dir);
    fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, "garbage", 7), 7);
    (void)close(fd);
    assert_int_equal(shoal_cache_open(&cache, f->cache_dir, "boot-b", 0, &f->msg), SHOAL_OK);
    shoal_cache_close(cache);
    shoal_buf_deinit(&buf);
}

static void a_full_cache_refuses(void **state)
{
    struct fixture *f = *state;
    struct shoal_cache *cache;
    uint8_t value[SHOAL_CACHE_VALUE_MAX] = { 0 };
    enum shoal_err err = SHOAL_OK;

    assert_int_equal(shoal_cache_open(&cache, f->cache_dir, "boot-a", SHOAL_MIB, &f->msg), SHOAL_OK);
    for (uint16_t i = 0; i < 1000 && err == SHOAL_OK; i++)
        err = shoal_cache_put(cache, SHOAL_CACHE_OTHER, shoal_view_of(&i, sizeof(i)),
                              shoal_view_of(value, sizeof(value)));
    assert_int_equal(err, SHOAL_ERR_FULL);
    shoal_cache_close(cache);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_was_appended_is_there_after_a_restart),
        CASE(many_batches_share_a_flush),
        CASE(a_truncated_suffix_is_gone_and_rewritten),
        CASE(a_snapshot_takes_the_place_of_a_prefix),
        CASE(a_snapshot_may_come_before_and_behind_all_entries),
        CASE(the_newest_durable_snapshot_is_read),
        CASE(a_removed_group_is_gone_and_may_come_again),
        CASE(a_range_is_read_back_within_its_bounds),
        CASE(old_entries_are_trimmed_and_a_pinning_group_is_moved),
        CASE(what_is_rewritten_while_it_is_moved_is_the_new_one),
        CASE(no_snapshot_stays_behind_the_newest),
        CASE(what_waits_for_the_disk_is_bounded),
        cmocka_unit_test(a_hard_row_that_has_changed_is_refused),
        cmocka_unit_test(a_log_with_a_hole_is_not_whole),
        CASE(a_full_map_is_refused_and_can_be_emptied),
        CASE(random_lives_agree_with_the_model),
        CASE(what_is_too_big_is_refused),
        CASE(the_file_is_zero_filled_beforehand),
        CASE(the_store_of_another_folder_is_refused),
        CASE(a_store_of_another_version_is_refused),
        CASE(a_killed_agent_has_what_it_acknowledged),
        CASE(a_failed_flush_stops_everything_and_loses_nothing),
        CASE(a_damaged_frame_is_refused_with_a_remedy),
        cmocka_unit_test(every_prefix_and_flipped_bit_of_a_frame_is_refused),
        CASE(the_cache_puts_gets_removes_and_iterates),
        CASE(the_cache_survives_the_agent_and_not_a_reboot),
        CASE(a_full_cache_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
