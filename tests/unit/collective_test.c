/* libshoal in one process: the tree, its partial sums, the codec of the worker's messages, the arena, records, and the
 * step transaction of a communicator of one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "collective/comm/comm.h"
#include "shoal/permute.h"
#include "shoal/rand.h"
#include "shoal/step_record.h"
#include "shoal/worker_wire.h"

#include "shoal/banned.h"

/* ---- the tree ---- */

static float leaf(uint32_t v) { return (float)(v + 1) * 1.1f + 1.0f / (float)(v + 3); }

static float naive(uint32_t begin, uint32_t end)
{
    uint32_t half = 1;

    if (end - begin == 1)
        return leaf(begin);
    while (half * 2 < end - begin)
        half *= 2;
    return naive(begin, begin + half) + naive(begin + half, end);
}

/* Fold [begin, end) in the order of tree_held_missing; the values of the nodes held. */
static void fold_range(struct tree_held *held, float *buffers, uint32_t begin, uint32_t end)
{
    uint32_t v[SHOAL_VIRTUAL_MAX];
    uint32_t count = tree_held_missing(held, begin, end, v, SHOAL_VIRTUAL_MAX);

    for (uint32_t i = 0; i < count; i++) {
        struct tree_add add;

        assert_true(tree_held_add(held, v[i], &add));
        assert_true(add.buffer < held->buffers);
        if (add.store)
            buffers[add.buffer] = leaf(v[i]);
        else
            buffers[add.buffer] += leaf(v[i]);
        for (uint32_t m = 0; m < add.merge_count; m++)
            buffers[add.merges[m].into] += buffers[add.merges[m].from];
    }
}

static float run_program(const struct tree_program *program, const float *inputs)
{
    float t[TREE_DEPTH_MAX + 1];
    float last = 0;

    if (program->count == 0)
        return inputs[program->only];
    for (uint32_t i = 0; i < program->count; i++) {
        const struct tree_op *op = &program->ops[i];
        float left = op->left < 0 ? t[-1 - op->left] : inputs[op->left];
        float right = op->right < 0 ? t[-1 - op->right] : inputs[op->right];

        last = left + right;
        t[-1 - op->into] = last;
    }
    return last;
}

/* Any split of V into consecutive ranges gives the bits of the naive tree. `cuts`: bit i cuts before v = i + 1. */
static void check_split(uint32_t v_count, uint64_t cuts)
{
    struct tree_node nodes[128];
    struct tree_op ops[128];
    struct tree_program program = { .ops = ops, .cap = 128 };
    float inputs[128];
    uint32_t count = 0;
    uint32_t begin = 0;
    float want = naive(0, v_count);
    float got;

    for (uint32_t v = 1; v <= v_count; v++) {
        struct tree_held held;
        float buffers[TREE_NODES_MAX] = { 0 };

        if (v < v_count && !(cuts >> (v - 1) & 1))
            continue;
        tree_held_reset(&held, v_count, tree_buffers(v_count));
        fold_range(&held, buffers, begin, v);
        for (uint32_t i = 0; i < held.count; i++) {
            assert_true(tree_is_node(held.nodes[i], v_count));
            nodes[count] = held.nodes[i];
            inputs[count++] = buffers[held.buffer[i]];
        }
        begin = v;
    }
    assert_true(tree_compile(&program, nodes, count, (struct tree_node){ 0, v_count }));
    assert_true(program.temporaries <= TREE_DEPTH_MAX);
    got = run_program(&program, inputs);
    assert_memory_equal(&got, &want, sizeof(got));
}

static void tree_is_the_same_for_every_split(void **state)
{
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 42);
    for (uint32_t v_count = 1; v_count <= 33; v_count++) {
        if (v_count <= 12)
            for (uint64_t cuts = 0; cuts < 1ull << (v_count - 1); cuts++)
                check_split(v_count, cuts);
        for (unsigned i = 0; i < 200; i++)
            check_split(v_count, shoal_rand_u64(&rand));
    }
}

/* A range that was begun, then moved by a new epoch: what is held is used, the rest is added on either side. */
static void held_sums_survive_a_moved_range(void **state)
{
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 7);
    for (unsigned round = 0; round < 20000; round++) {
        uint32_t v_count = 1 + (uint32_t)shoal_rand_below(&rand, 33);
        struct tree_held held;
        float buffers[TREE_NODES_MAX] = { 0 };
        uint32_t a = 0;
        uint32_t b = 0;

        tree_held_reset(&held, v_count, tree_buffers(v_count));
        for (unsigned epoch = 0; epoch < 4; epoch++) {
            a = (uint32_t)shoal_rand_below(&rand, v_count);
            b = a + (uint32_t)shoal_rand_below(&rand, v_count - a + 1);
            tree_held_keep(&held, a, b);
            if (epoch < 3 && held.count == 0) { /* only a part is computed before the next revoke */
                fold_range(&held, buffers, a, a + (uint32_t)shoal_rand_below(&rand, b - a + 1));
                continue;
            }
            fold_range(&held, buffers, a, b);
        }
        for (uint32_t i = 0; i < held.count; i++) {
            float want = naive(held.nodes[i].begin, held.nodes[i].end);

            assert_memory_equal(&buffers[held.buffer[i]], &want, sizeof(want));
        }
        if (b > a) {
            assert_int_equal(held.nodes[0].begin, a);
            assert_int_equal(held.nodes[held.count - 1].end, b);
        }
    }
}

static void a_leaf_is_never_added_twice(void **state)
{
    struct tree_held held;
    struct tree_add add;

    (void)state;
    tree_held_reset(&held, 8, tree_buffers(8));
    assert_true(tree_held_add(&held, 2, &add));
    assert_false(tree_held_add(&held, 2, &add));
    assert_true(tree_held_add(&held, 3, &add));
    assert_false(tree_held_add(&held, 2, &add));
    assert_false(tree_held_add(&held, 8, &add));
}

static void a_sum_that_ends_with_the_new_range_stays(void **state)
{
    struct tree_held held;
    struct tree_add add;

    (void)state;
    tree_held_reset(&held, 8, tree_buffers(8));
    for (uint32_t v = 2; v < 6; v++)
        assert_true(tree_held_add(&held, v, &add));
    tree_held_keep(&held, 2, 6);
    assert_int_equal(held.count, 2);
    tree_held_keep(&held, 3, 6);
    assert_int_equal(held.count, 1);
    tree_held_keep(&held, 4, 5);
    assert_int_equal(held.count, 0);
}

/* ---- the permutation ---- */

static void permutation_is_bijective(void **state)
{
    static const uint64_t sizes[] = { 1, 2, 3, 4, 5, 17, 64, 100, 1000, 4097 };

    (void)state;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            uint8_t seen[4097] = { 0 };

            for (uint64_t i = 0; i < sizes[s]; i++) {
                uint64_t id = shoal_permute(99, epoch, sizes[s], i);

                assert_true(id < sizes[s]);
                assert_false(seen[id]);
                seen[id] = 1;
            }
        }
    }
}

/* ---- the codec ---- */

static void fill_text(struct shoal_rand *rand, char *text, size_t cap)
{
    size_t len = (size_t)shoal_rand_below(rand, cap < 40 ? cap : 40);

    for (size_t i = 0; i < len; i++)
        text[i] = (char)('a' + shoal_rand_below(rand, 26));
    text[len] = '\0';
}

static const uint8_t some_bytes[100] = { 1, 2, 3 };

/* `rank`, the last one of a word, and the last one of all. */
static struct shoal_ranks some_ranks(uint32_t rank)
{
    struct shoal_ranks set = { 0 };

    shoal_ranks_add(&set, rank);
    shoal_ranks_add(&set, 63);
    shoal_ranks_add(&set, SHOAL_RANKS_MAX - 1);
    return set;
}

static void fill_epoch(struct shoal_rand *rand, struct shoal_worker_epoch *epoch)
{
    epoch->epoch = (struct shoal_epoch){ 7, 2 };
    epoch->call = 3;
    epoch->decided_step = shoal_rand_u64(rand);
    epoch->holder = shoal_rand_u64(rand);
    epoch->donor = 11;
    epoch->records_acked = 12;
    fill_text(rand, epoch->snapshot_path, sizeof(epoch->snapshot_path));
    epoch->member_count = (uint32_t)shoal_rand_below(rand, SHOAL_RANKS_MAX + 1);
    for (uint32_t i = 0; i < epoch->member_count; i++) {
        epoch->members[i].worker_id = shoal_rand_u64(rand);
        epoch->members[i].slot = i;
        epoch->members[i].v_begin = i;
        epoch->members[i].v_end = i + 1;
        epoch->members[i].has_state = i % 2 == 0;
        epoch->members[i].address_len = /* beyond 64 members only addresses of this size fit a message */
            (uint16_t)shoal_rand_below(rand, epoch->member_count <= 64 ? SHOAL_TRANSPORT_ADDRESS_MAX + 1 : 380);
        memset(epoch->members[i].address, (int)i, epoch->members[i].address_len);
    }
}

static void fill_message(struct shoal_rand *rand, uint8_t kind, struct shoal_worker_message *m)
{
    memset(m, 0, sizeof(*m));
    m->kind = kind;
    switch ((enum shoal_worker_kind)kind) {
    case SHOAL_WORKER_HELLO:
        m->hello = (struct shoal_worker_hello){ .generation = 1,
                                                .role = SHOAL_ROLE_DRIVER,
                                                .worker_id = 5,
                                                .slot = 3,
                                                .pid = 1234,
                                                .call = 2,
                                                .epoch = { 4, 1 },
                                                .closed = true,
                                                .applied_step = 9,
                                                .complete_step = 10 };
        fill_text(rand, m->hello.numeric_class, sizeof(m->hello.numeric_class));
        return;
    case SHOAL_WORKER_CALL:
        m->call.call = 3;
        m->call.job_seed = shoal_rand_u64(rand);
        fill_text(rand, m->call.bundle_path, sizeof(m->call.bundle_path));
        return;
    case SHOAL_WORKER_READY:
        m->ready = (struct shoal_worker_ready){ .call = 1,
                                                .virtual_workers = 8,
                                                .sum_elems = 100,
                                                .copy_bytes = 20,
                                                .samples = 1000,
                                                .minibatch = 32,
                                                .data_epochs = 2,
                                                .steps_per_epoch = 4,
                                                .metric_count = 2 };
        fill_text(rand, m->ready.metric_names[0], SHOAL_NAME_TEXT_BYTES);
        fill_text(rand, m->ready.metric_names[1], SHOAL_NAME_TEXT_BYTES);
        m->ready.address = shoal_view_of(some_bytes, sizeof(some_bytes));
        return;
    case SHOAL_WORKER_EPOCH: fill_epoch(rand, &m->epoch); return;
    case SHOAL_WORKER_CLOSED: m->closed = (struct shoal_worker_closed){ { 5, 1 }, 17, 18, some_ranks(2) }; return;
    case SHOAL_WORKER_RECORDS:
    case SHOAL_WORKER_TRAIN_RECORDS:
        m->records = (struct shoal_worker_records){ 1, 17, 3, shoal_view_of(some_bytes, sizeof(some_bytes)) };
        return;
    case SHOAL_WORKER_RECORDS_ACKED:
    case SHOAL_WORKER_WRITE_FINAL:
    case SHOAL_WORKER_FILES:
    case SHOAL_WORKER_TRAIN_ACKED: m->acked = (struct shoal_worker_acked){ 2, 100 }; return;
    case SHOAL_WORKER_UNHEARD: m->unheard = (struct shoal_worker_unheard){ { 5, 1 }, some_ranks(3) }; return;
    case SHOAL_WORKER_DONE: m->done = (struct shoal_worker_done){ 2, 100, shoal_rand_u64(rand) }; return;
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP:
        m->stop.reason = SHOAL_STOP_SHRUNK;
        fill_text(rand, m->stop.text, sizeof(m->stop.text));
        return;
    case SHOAL_WORKER_FAILED:
        m->failed.user_code = m->failed.unfit = true;
        fill_text(rand, m->failed.text, sizeof(m->failed.text));
        return;
    case SHOAL_WORKER_SNAPSHOT: fill_text(rand, m->snapshot.path, sizeof(m->snapshot.path)); return;
    case SHOAL_WORKER_TRAIN:
        m->train.engines_max = 6;
        fill_text(rand, m->train.signature, sizeof(m->train.signature));
        return;
    case SHOAL_WORKER_TRAIN_STATE:
        m->train_state.state = SHOAL_TRAIN_FINISHED;
        fill_text(rand, m->train_state.files_path, sizeof(m->train_state.files_path));
        return;
    case SHOAL_WORKER_KIND_COUNT: return;
    }
}

static size_t encode(const struct shoal_worker_message *m, uint8_t *bytes)
{
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_WORKER_MESSAGE_MAX);

    assert_int_equal(shoal_worker_encode(m, &w), SHOAL_OK);
    return w.len;
}

/* As many members as there may be, with addresses of our own transport; one more is refused on both sides. */
static void an_epoch_has_an_upper_limit(void **state)
{
    struct shoal_worker_message *m = calloc(1, sizeof(*m));
    struct shoal_worker_message *back = malloc(sizeof(*back));
    uint8_t *bytes = malloc(SHOAL_WORKER_MESSAGE_MAX);
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_WORKER_MESSAGE_MAX);
    size_t count_at, len;

    (void)state;
    m->kind = SHOAL_WORKER_EPOCH;
    count_at = encode(m, bytes) - 4;
    m->epoch.member_count = SHOAL_RANKS_MAX;
    for (uint32_t i = 0; i < SHOAL_RANKS_MAX; i++) {
        m->epoch.members[i].worker_id = i + 1;
        m->epoch.members[i].address_len = 25; /* four interfaces, and that they are sealed */
    }
    len = encode(m, bytes);
    assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len), back), SHOAL_OK);
    assert_int_equal(back->epoch.member_count, SHOAL_RANKS_MAX);
    assert_int_equal(back->epoch.members[SHOAL_RANKS_MAX - 1].worker_id, SHOAL_RANKS_MAX);
    assert_int_equal(bytes[count_at], SHOAL_RANKS_MAX);
    memmove(bytes + len, bytes + len - 100, 100);
    bytes[count_at]++;
    assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len + 100), back), SHOAL_ERR_MALFORMED);
    m->epoch.member_count++;
    assert_int_equal(shoal_worker_encode(m, &w), SHOAL_ERR_TOO_BIG);
    free(m);
    free(back);
    free(bytes);
}

/* Every message survives; every prefix is refused; nothing is read beyond its end (the copy is exactly as long). */
static void messages_survive_and_prefixes_are_refused(void **state)
{
    struct shoal_worker_message *m = malloc(sizeof(*m));
    struct shoal_worker_message *back = malloc(sizeof(*back));
    uint8_t *bytes = malloc(SHOAL_WORKER_MESSAGE_MAX);
    uint8_t *again = malloc(SHOAL_WORKER_MESSAGE_MAX);
    struct shoal_rand rand;

    (void)state;
    shoal_rand_init(&rand, 3);
    for (uint8_t kind = 0; kind < SHOAL_WORKER_KIND_COUNT; kind++) {
        size_t len;

        fill_message(&rand, kind, m);
        len = encode(m, bytes);
        assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len), back), SHOAL_OK);
        assert_int_equal(encode(back, again), len);
        assert_memory_equal(bytes, again, len);
        for (size_t cut = 0; cut < len; cut += cut < 300 ? 1 : 97) {
            uint8_t *exact = malloc(cut + 1);

            memcpy(exact + 1, bytes, cut);
            assert_int_equal(shoal_worker_decode(shoal_view_of(exact + 1, cut), back), SHOAL_ERR_MALFORMED);
            free(exact);
        }
        bytes[len] = 0;
        assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len + 1), back), SHOAL_ERR_MALFORMED);
        if (kind == SHOAL_WORKER_CLOSED) { /* of version 1: nothing of links */
            bytes[1] = 1;
            assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len), back), SHOAL_ERR_MALFORMED);
            assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len - 8 * SHOAL_RANKS_WORDS - 1), back), SHOAL_OK);
            assert_true(back->closed.complete_step == 18 && !shoal_ranks_any(&back->closed.broken));
            bytes[1] = 2; /* nothing of ranks beyond 63 */
            assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len), back), SHOAL_ERR_MALFORMED);
            assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len - 8 * (SHOAL_RANKS_WORDS - 1) - 1), back), SHOAL_OK);
            assert_true(shoal_ranks_has(&back->closed.broken, 2) && shoal_ranks_has(&back->closed.broken, 63) &&
                        !shoal_ranks_has(&back->closed.broken, SHOAL_RANKS_MAX - 1));
        }
        bytes[1] = SHOAL_WORKER_VERSION + 1; /* a newer writer may have appended a field */
        assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len + 1), back), SHOAL_OK);
        bytes[2] = SHOAL_WORKER_VERSION + 1;
        assert_int_equal(shoal_worker_decode(shoal_view_of(bytes, len), back), SHOAL_ERR_UNSUPPORTED);
    }
    for (unsigned i = 0; i < 20000; i++) { /* garbage: any answer, but no crash */
        size_t len = (size_t)shoal_rand_below(&rand, 200);

        for (size_t b = 0; b < len; b++)
            bytes[b] = (uint8_t)shoal_rand_u64(&rand);
        if (len > 3) {
            bytes[0] = (uint8_t)(bytes[0] % SHOAL_WORKER_KIND_COUNT);
            bytes[1] = bytes[2] = 1;
        }
        (void)!shoal_worker_decode(shoal_view_of(bytes, len), back);
    }
    free(m);
    free(back);
    free(bytes);
    free(again);
}

static void step_records_survive(void **state)
{
    uint8_t bytes[512];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_step_head head = { 5, SHOAL_STEP_TRAIN, 1, 2, 3, 4, 0, 0x1234567890abcdefull, 2, 2 };
    struct shoal_step_tuple tuple = { 32, 1, 2, 3, { 0.5, -1.5 } };
    struct shoal_step_head head_back;
    struct shoal_step_tuple tuple_back;
    struct shoal_reader r;

    (void)state;
    shoal_put_step_head(&w, &head);
    shoal_put_step_tuple(&w, &tuple, 2);
    shoal_put_step_tuple(&w, &tuple, 2);
    assert_int_equal(w.len, record_bytes(2, 2));
    r = shoal_reader_init(shoal_writer_view(&w));
    shoal_get_step_head(&r, &head_back);
    assert_int_equal(head_back.digest, head.digest);
    assert_int_equal(head_back.v_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        shoal_get_step_tuple(&r, &tuple_back, 2);
        assert_true(tuple_back.values[1] < -1.4 && tuple_back.values[1] > -1.6);
    }
    assert_true(shoal_reader_done(&r));
    for (size_t cut = 0; cut < w.len; cut++) {
        r = shoal_reader_init(shoal_view_of(bytes, cut));
        shoal_get_step_head(&r, &head_back);
        shoal_get_step_tuple(&r, &tuple_back, 2);
        shoal_get_step_tuple(&r, &tuple_back, 2);
        assert_false(shoal_reader_done(&r));
    }
}

/* ---- records ---- */

static void records_wait_for_acknowledgement(void **state)
{
    struct records records;
    uint8_t bytes[60000];
    uint64_t step = 0;

    (void)state;
    assert_int_equal(records_init(&records), SHOAL_OK);
    memset(bytes, 7, sizeof(bytes));
    while (records_push(&records, step + 1, bytes, sizeof(bytes)))
        step++;
    assert_true(step == SHOAL_RECORD_QUEUE_BYTES / sizeof(bytes));
    assert_false(records_have_room(&records, sizeof(bytes)));
    for (unsigned turn = 0; turn < 2000; turn++) { /* round the ring several times */
        const struct record_entry *entry;

        records_ack(&records, records.acked + 3);
        assert_null(records_find(&records, records.acked));
        entry = records_find(&records, records.acked + 1);
        assert_non_null(entry);
        assert_int_equal(records.bytes[entry->at],
                         (uint8_t)(entry->step <= SHOAL_RECORD_QUEUE_BYTES / 60000 ? 7 : entry->step));
        for (unsigned i = 0; i < 2; i++) {
            memset(bytes, (int)(step + 1), sizeof(bytes));
            assert_true(records_push(&records, step + 1, bytes, sizeof(bytes)));
            step++;
        }
        if (step - records.acked < 10)
            break;
    }
    records_deinit(&records);
}

/* Filled until there is no room, from every place of the ring: what is not acknowledged stays as it was. */
static void no_record_is_written_over_another(void **state)
{
    struct records records;
    uint8_t bytes[60000];
    uint64_t step = 0;

    (void)state;
    assert_int_equal(records_init(&records), SHOAL_OK);
    for (unsigned turn = 0; turn < 300; turn++) {
        for (;;) {
            memset(bytes, (int)(step + 1), sizeof(bytes));
            if (!records_push(&records, step + 1, bytes, (uint32_t)(20000 + step * 977 % 40000)))
                break;
            step++;
        }
        for (uint64_t i = records.acked + 1; i <= step; i++) {
            const struct record_entry *entry = records_find(&records, i);

            assert_non_null(entry);
            assert_int_equal(records.bytes[entry->at], (uint8_t)i);
            assert_int_equal(records.bytes[entry->at + entry->len - 1], (uint8_t)i);
        }
        records_ack(&records, records.acked + 1 + turn % 7);
    }
    records_deinit(&records);
}

static void records_behind_a_gap_replace_those_before_it(void **state)
{
    struct records records;
    const uint8_t byte = 0;

    (void)state;
    assert_int_equal(records_init(&records), SHOAL_OK);
    for (uint64_t step = 1; step <= 3; step++)
        assert_true(records_push(&records, step, &byte, 1));
    assert_true(records_push(&records, 10, &byte, 1));
    assert_null(records_find(&records, 3));
    assert_non_null(records_find(&records, 10));
    assert_int_equal(records_find(&records, 10)->step, 10);
    records_deinit(&records);
}

/* ---- arena ---- */

static void regions_are_laid_out_alike_and_apart(void **state)
{
    struct shoal_comm_plan plan = {
        .virtual_workers = 8, .sum_elems = 5000, .copy_bytes = 100, .param_count = 9, .metric_count = 2
    };
    struct arena_layout layout;
    struct arena a;
    struct arena b;
    int fd = memfd_create("test", 0);

    (void)state;
    assert_int_equal(arena_layout_init(&layout, &plan, NULL), SHOAL_OK);
    assert_int_equal(layout.partial_count, 4);
    assert_true(layout.vector_bytes >= 20000 && layout.vector_bytes % ARENA_PAGE == 0);
    assert_int_equal(arena_open(&a, fd, 0, NULL), SHOAL_OK);
    assert_int_equal(arena_open(&b, fd, 3, NULL), SHOAL_OK);
    assert_int_equal(arena_use(&a, &layout, NULL), SHOAL_OK);
    assert_int_equal(arena_use(&b, &layout, NULL), SHOAL_OK);
    memset(arena_mine(&a), 1, layout.stride);
    memset(arena_mine(&b), 2, layout.stride);
    assert_int_equal(arena_region(&a, 3)[layout.stride - 1], 2);
    assert_int_equal(arena_region(&b, 0)[0], 1);
    { /* the result map shows slices of both */
        struct arena_part parts[2] = { { 0, ARENA_PAGE, 0, 0 }, { ARENA_PAGE, layout.vector_bytes, 3, 0 } };

        assert_int_equal(arena_compose(&a, parts, 2, NULL), SHOAL_OK);
        assert_int_equal(a.map[ARENA_PAGE - 1], 1);
        assert_int_equal(a.map[ARENA_PAGE], 2);
        (arena_mine(&b) + layout.result_at)[ARENA_PAGE] = 9;
        assert_int_equal(a.map[ARENA_PAGE], 9);
    }
    arena_close(&a);
    arena_close(&b);
    plan.virtual_workers = SHOAL_VIRTUAL_MAX + 1;
    assert_int_equal(arena_layout_init(&layout, &plan, NULL), SHOAL_ERR_TOO_BIG);
    (void)close(fd);
}

/* A view of an update shows what the slices' owners have put there, also where this process wrote to it last time; `blind`: no
 * descriptor is left, so nobody can look which pages were written. */
static void check_view(struct arena *a, struct arena *b, uint64_t turn, bool blind)
{
    const struct arena_layout *layout = &a->layout;
    struct arena_part parts[2] = { { 0, ARENA_PAGE, 0, 0 }, { ARENA_PAGE, layout->vector_bytes, 3, 0 } };
    struct rlimit before, none;

    for (uint32_t vector = 0; vector < 2; vector++) {
        memset(arena_mine(a) + arena_update_at(layout, turn, vector), (int)(turn * 4 + vector), layout->vector_bytes);
        memset(arena_mine(b) + arena_update_at(layout, turn, vector), (int)(turn * 4 + 2 + vector), layout->vector_bytes);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){ 0, before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, blind ? &none : &before), 0);
    assert_int_equal(arena_show_update(a, turn, parts, 2, NULL), SHOAL_OK);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (uint32_t vector = 0; vector < 2; vector++) {
        uint8_t *view = a->views[turn & 1].at + vector * layout->vector_bytes;

        assert_int_equal(view[0], (uint8_t)(turn * 4 + vector));
        assert_int_equal(view[ARENA_PAGE - 1], (uint8_t)(turn * 4 + vector));
        assert_int_equal(view[ARENA_PAGE], (uint8_t)(turn * 4 + 2 + vector));
        assert_int_equal(view[layout->vector_bytes - 1], (uint8_t)(turn * 4 + 2 + vector));
        memset(view, 0xee, layout->vector_bytes); /* its own from now on */
        assert_int_equal((arena_mine(a) + arena_update_at(layout, turn, vector))[0], (uint8_t)(turn * 4 + vector));
    }
}

static void a_view_shows_what_was_put_there_last(void **state)
{
    struct shoal_comm_plan plan = { .virtual_workers = 2, .sum_elems = 5000, .param_count = 1, .update_vectors = 2 };
    struct arena_layout layout;
    struct arena a, b;
    int fd = memfd_create("test", 0);

    (void)state;
    assert_int_equal(arena_layout_init(&layout, &plan, NULL), SHOAL_OK);
    assert_int_equal(arena_open(&a, fd, 0, NULL), SHOAL_OK);
    assert_int_equal(arena_open(&b, fd, 3, NULL), SHOAL_OK);
    assert_int_equal(arena_use(&a, &layout, NULL), SHOAL_OK);
    assert_int_equal(arena_use(&b, &layout, NULL), SHOAL_OK);
    assert_non_null(arena_region(&a, 3));
    for (uint64_t turn = 1; turn <= 12; turn++)
        check_view(&a, &b, turn, turn > 6);
    arena_close(&a);
    arena_close(&b);
    (void)close(fd);
}

/* Each member of the largest communicator has a slice, and the map of them is read by others of its host. */
static void the_largest_map_is_read_by_others(void **state)
{
    struct shoal_comm_plan plan = { .virtual_workers = 8, .sum_elems = (SHOAL_RANKS_MAX + 3) * ARENA_PAGE / sizeof(float) };
    static struct arena_part parts[SHOAL_RANKS_MAX], said[SHOAL_RANKS_MAX];
    struct arena_layout layout;
    struct arena a, b;
    int fd = memfd_create("test", 0);

    (void)state;
    assert_int_equal(arena_layout_init(&layout, &plan, NULL), SHOAL_OK);
    assert_int_equal(arena_open(&a, fd, SHOAL_SLOTS_MAX - 1, NULL), SHOAL_OK);
    assert_int_equal(arena_open(&b, fd, SHOAL_SLOTS_MAX - 2, NULL), SHOAL_OK);
    assert_int_equal(arena_use(&a, &layout, NULL), SHOAL_OK);
    assert_int_equal(arena_use(&b, &layout, NULL), SHOAL_OK);
    for (uint32_t i = 0; i < SHOAL_RANKS_MAX; i++)
        parts[i] = (struct arena_part){ i * ARENA_PAGE, (i + 1) * ARENA_PAGE, SHOAL_SLOTS_MAX - 1 - i % 2, 0 };
    assert_int_equal(arena_compose(&a, parts, SHOAL_RANKS_MAX, NULL), SHOAL_OK);
    for (uint32_t i = 0; i < SHOAL_RANKS_MAX; i++)
        parts[i].slot = SHOAL_SLOTS_MAX - 2 + i % 2;
    assert_int_equal(arena_compose(&b, parts, SHOAL_RANKS_MAX, NULL), SHOAL_OK); /* pages of different slots lie apart */
    assert_int_equal(arena_said_map(&a, SHOAL_SLOTS_MAX - 2, said), SHOAL_RANKS_MAX);
    assert_memory_equal(said, parts, sizeof(said));
    assert_int_equal(arena_said_map(&b, SHOAL_SLOTS_MAX - 1, said), SHOAL_RANKS_MAX);
    for (uint32_t i = 0; i < SHOAL_RANKS_MAX; i++)
        assert_true(said[i].begin == i * ARENA_PAGE && said[i].slot == SHOAL_SLOTS_MAX - 1 - i % 2);
    arena_close(&a);
    arena_close(&b);
    (void)close(fd);
}

/* ---- numbers ---- */

static void digests_add_up_over_slices(void **state)
{
    uint8_t bytes[5 * 4096 + 100];
    struct shoal_rand rand;
    uint64_t whole;

    (void)state;
    shoal_rand_init(&rand, 1);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)shoal_rand_u64(&rand);
    whole = shoal_digest(bytes, sizeof(bytes), 0);
    assert_true(whole == shoal_digest(bytes, 8192, 0) + shoal_digest(bytes + 8192, sizeof(bytes) - 8192, 8192));
    bytes[4100] ^= 1;
    assert_true(whole != shoal_digest(bytes, sizeof(bytes), 0));
    bytes[4100] ^= 1;
    memcpy(bytes, bytes + 4096, 4096); /* the same block elsewhere counts differently */
    assert_true(whole != shoal_digest(bytes, sizeof(bytes), 0));
}

/* ---- the transaction, alone ---- */

#define ELEMS 5000u
#define VS 5u

/* The gradient of `m` in three pieces, the last one first, from memory of the caller's own; what was begun before and
 * forgotten leaves nothing. */
static void give_parts(struct shoal_comm *comm, const struct shoal_minibatch *m, const float *gradient)
{
    for (uint32_t e = 0; e < ELEMS; e++)
        shoal_comm_work(comm)[e] = NAN; /* is not read */
    assert_int_equal(shoal_step_part(comm, m->v, m->samples + 1, 7, 90, gradient), SHOAL_OK);
    assert_int_equal(shoal_step_publish(comm, m), SHOAL_ERR_INVALID); /* of another number of samples */
    assert_int_equal(shoal_step_part(comm, 0, 0, 0, 0, NULL), SHOAL_OK);
    assert_int_equal(shoal_step_part(comm, VS, 1, 0, 10, gradient), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_step_part(comm, m->v, m->samples, 4000, ELEMS - 4000, gradient + 4000), SHOAL_OK);
    assert_int_equal(shoal_step_part(comm, m->v, m->samples, ELEMS - 5, 6, gradient), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_step_part(comm, m->v, m->samples, 1, 3999, NULL), SHOAL_OK); /* zeroes */
    assert_int_equal(shoal_step_part(comm, m->v, m->samples, 0, 1, gradient), SHOAL_OK);
}

/* In every other step the gradients come in parts. */
static void one_step(struct shoal_comm *comm, uint64_t step, float *want)
{
    static float gradient[ELEMS];
    struct shoal_step s = {
        .step = step, .kind = SHOAL_STEP_TRAIN, .step_in_epoch = (uint32_t)step - 1, .v_count = VS
    };
    uint32_t v[VS];
    uint32_t count;
    float leaves[VS];
    uint32_t total = 0;

    assert_int_equal(shoal_step_assign(comm, &s, v, VS, &count), SHOAL_OK);
    assert_int_equal(count, VS);
    for (uint32_t i = 0; i < count; i++) {
        double loss = v[i];
        struct shoal_minibatch m = { .v = v[i], .samples = v[i] + 1, .id_low = step, .id_high = v[i], .values = &loss };

        for (uint32_t e = 0; e < ELEMS; e++)
            gradient[e] = 1.0f / (float)(v[i] + e + step);
        memcpy(shoal_comm_work(comm), gradient, sizeof(gradient));
        if (step % 2 == 0)
            give_parts(comm, &m, gradient);
        leaves[v[i]] = 1.0f / (float)(v[i] + step) * (float)(v[i] + 1); /* of element 0 */
        total += v[i] + 1;
        if (v[i] == 0)
            memset(shoal_comm_copy_work(comm), (int)step, 16);
        assert_int_equal(shoal_step_publish(comm, &m), SHOAL_OK);
        assert_int_equal(shoal_step_publish(comm, &m), SHOAL_ERR_INVALID);
    }
    assert_int_equal(shoal_step_complete(comm), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_step_reduce(comm), SHOAL_OK);
    assert_int_equal(shoal_step_complete(comm), SHOAL_OK);
    assert_int_equal(shoal_step_apply_allowed(comm), SHOAL_OK);
    for (uint32_t e = 1; e < 4000 && step % 2 == 0; e++)
        assert_true(shoal_comm_result(comm)[e] == 0.0f);
    assert_true(shoal_comm_result(comm)[ELEMS - 1] > 0.0f);
    *want = (((leaves[0] + leaves[1]) + (leaves[2] + leaves[3])) + leaves[4]) / (float)total;
}

static void publish_tuple(struct shoal_comm *comm, uint32_t v, uint32_t samples)
{
    double loss = v;
    struct shoal_minibatch m = { .v = v, .samples = samples, .values = &loss };

    assert_int_equal(shoal_step_publish(comm, &m), SHOAL_OK);
}

/* 0 to 3 as one, of 1 + 2 + 3 + 4 samples, then 4 by itself; whole or in parts. */
static void one_fused_step(struct shoal_comm *comm, uint64_t number, bool in_parts)
{
    struct shoal_step step = { .step = number, .kind = SHOAL_STEP_TRAIN, .v_count = VS };
    static float gradient[ELEMS];
    uint32_t v[VS];
    uint32_t count;

    assert_int_equal(shoal_step_assign(comm, &step, v, VS, &count), SHOAL_OK);
    assert_int_equal(shoal_step_fuse(comm, 1, 2, 5), SHOAL_ERR_INVALID); /* no node of the tree */
    assert_int_equal(shoal_step_fuse(comm, 0, 8, 15), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_step_fuse(comm, 0, 4, 10), SHOAL_OK);
    publish_tuple(comm, 3, 4);
    assert_int_equal(shoal_step_assign(comm, &step, v, VS, &count), SHOAL_OK); /* an epoch later: nothing is held */
    assert_int_equal(count, VS);
    assert_int_equal(shoal_step_fuse(comm, 0, 4, 10), SHOAL_OK);
    for (uint32_t e = 0; e < ELEMS; e++)
        gradient[e] = 2;
    memcpy(shoal_comm_work(comm), gradient, sizeof(gradient));
    if (in_parts) {
        assert_int_equal(shoal_step_part(comm, 0, 1, 100, ELEMS - 100, gradient), SHOAL_ERR_INVALID); /* of 10 samples */
        assert_int_equal(shoal_step_part(comm, 0, 10, 100, ELEMS - 100, gradient), SHOAL_OK);
        assert_int_equal(shoal_step_part(comm, 0, 10, 0, 100, gradient), SHOAL_OK);
    }
    for (uint32_t i = 4; i-- > 0;)
        publish_tuple(comm, i, i + 1);
    for (uint32_t e = 0; e < ELEMS; e++)
        shoal_comm_work(comm)[e] = 8;
    publish_tuple(comm, 4, 5);
    assert_int_equal(shoal_step_reduce(comm), SHOAL_OK);
    assert_int_equal(shoal_step_complete(comm), SHOAL_OK);
    assert_int_equal(shoal_step_apply_allowed(comm), SHOAL_OK);
    for (uint32_t e = 0; e < ELEMS; e++)
        assert_true(shoal_comm_result(comm)[e] == 4.0f); /* (2 * 10 + 8 * 5) / 15 */
}

static void mini_batches_are_computed_as_one(void **state)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .call = 1, .virtual_workers = VS, .sum_elems = ELEMS, .samples = 100, .minibatch = 4,
                                    .data_epochs = 1, .steps_per_epoch = 4, .param_count = 9, .metric_count = 1,
                                    .metric_names = names };
    struct shoal_comm *comm;
    struct shoal_comm_call call;
    struct shoal_comm_entry entry;
    char error[400];
    double mean;

    (void)state;
    assert_int_equal(shoal_comm_open_solo(&comm, error), SHOAL_OK);
    assert_int_equal(shoal_comm_wait_call(comm, 0, &call), SHOAL_OK);
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_OK);
    assert_int_equal(shoal_comm_enter(comm, 1000, &entry), SHOAL_OK);
    for (uint64_t step = 1; step <= 4; step++) {
        one_fused_step(comm, step, step % 2 == 0);
        assert_int_equal(shoal_step_mean(comm, 0, &mean), SHOAL_OK);
        assert_true(mean > 2.6 && mean < 2.7); /* each has its own values */
    }
    shoal_comm_close(comm);
}

static void a_communicator_of_one_trains(void **state)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .call = 1,
                                    .virtual_workers = VS,
                                    .sum_elems = ELEMS,
                                    .copy_bytes = 16,
                                    .samples = 100,
                                    .minibatch = 4,
                                    .data_epochs = 1,
                                    .steps_per_epoch = 4,
                                    .param_count = 9,
                                    .metric_count = 1,
                                    .metric_names = names };
    struct shoal_comm *comm;
    struct shoal_comm_call call;
    struct shoal_comm_entry entry;
    char error[400];

    (void)state;
    assert_int_equal(shoal_comm_open_solo(&comm, error), SHOAL_OK);
    for (uint32_t round = 1; round <= 2; round++) { /* two train() calls */
        assert_int_equal(shoal_comm_wait_call(comm, 0, &call), SHOAL_OK);
        assert_int_equal(call.event, SHOAL_EVENT_CALL);
        assert_int_equal(call.call, round);
        plan.call = round;
        assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_OK);
        assert_int_equal(shoal_comm_enter(comm, 1000, &entry), SHOAL_OK);
        assert_int_equal(entry.event, SHOAL_EVENT_ENTERED);
        assert_int_equal(entry.size, 1);
        assert_int_equal(entry.state, SHOAL_STATE_LOAD);
        for (uint64_t step = 1; step <= 10; step++) {
            const uint8_t *record;
            uint64_t len;
            double mean;
            float want;

            one_step(comm, step, &want);
            assert_memory_equal(&shoal_comm_result(comm)[0], &want, sizeof(want));
            assert_int_equal(shoal_comm_copy_result(comm)[15], step);
            assert_int_equal(shoal_comm_touched(comm)[1], 0xff);
            assert_int_equal(shoal_step_record(comm, &record, &len), SHOAL_OK);
            assert_int_equal(len, record_bytes(VS, 1));
            assert_int_equal(shoal_step_mean(comm, 0, &mean), SHOAL_OK);
            assert_true(mean > 2.6 && mean < 2.7); /* (0*1 + 1*2 + 2*3 + 3*4 + 4*5) / 15 */
        }
        assert_int_equal(shoal_comm_done(comm, 9, 0), SHOAL_ERR_INVALID);
        assert_int_equal(shoal_comm_done(comm, 10, 77), SHOAL_OK);
        assert_int_equal(shoal_comm_enter(comm, 1000, &entry), SHOAL_OK);
        assert_int_equal(entry.event, SHOAL_EVENT_WRITE_FINAL);
        assert_int_equal(shoal_comm_files_written(comm, 10), SHOAL_OK);
        assert_int_equal(shoal_comm_enter(comm, 1000, &entry), SHOAL_OK);
        assert_int_equal(entry.event, SHOAL_EVENT_RELEASED);
    }
    shoal_comm_close(comm);
}

/* Half of the mini-batches come weighted from the caller, in the place where their sum lies; those of a node as one. */
static void sums_may_be_put_in_their_place(void **state)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .call = 1, .virtual_workers = VS, .sum_elems = ELEMS, .samples = 100, .minibatch = 4,
                                    .data_epochs = 1, .steps_per_epoch = 3, .param_count = 9, .metric_count = 1,
                                    .metric_names = names };
    struct shoal_step s = { .step = 1, .kind = SHOAL_STEP_TRAIN, .v_count = VS };
    static float gradient[ELEMS];
    struct shoal_comm_entry entry;
    struct shoal_comm *comm;
    uint32_t v[VS];
    uint32_t count;
    float *into = NULL;

    (void)state;
    assert_int_equal(shoal_comm_open_solo(&comm, NULL), SHOAL_OK);
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_OK);
    assert_int_equal(shoal_comm_enter(comm, 1000, &entry), SHOAL_OK);
    for (uint64_t step = 1; step <= 2; step++) {
        s.step = step;
        s.step_in_epoch = (uint32_t)step - 1;
        assert_int_equal(shoal_step_assign(comm, &s, v, VS, &count), SHOAL_OK);
        assert_int_equal(shoal_step_place(comm, VS, 1, &into), SHOAL_ERR_INVALID);
        if (step == 1) { /* 0 to 3 as one: 1 * 2 + 2 * 2 + 3 * 2 + 4 * 2 */
            assert_int_equal(shoal_step_fuse(comm, 0, 4, 10), SHOAL_OK);
            assert_int_equal(shoal_step_place(comm, 0, 10, &into), SHOAL_OK);
            assert_int_equal(shoal_step_place(comm, 0, 10, &into), SHOAL_ERR_INVALID);
            for (uint32_t e = 0; e < ELEMS; e++)
                into[e] = 20;
            assert_int_equal(shoal_step_part(comm, 0, 10, 100, ELEMS - 100, into + 100), SHOAL_OK);
            assert_int_equal(shoal_step_part(comm, 0, 10, 0, 100, into), SHOAL_OK);
            for (uint32_t i = 4; i-- > 0;)
                publish_tuple(comm, i, i + 1);
        } else { /* each by itself; what was put and forgotten leaves nothing */
            for (uint32_t e = 0; e < ELEMS; e++)
                gradient[e] = 2;
            for (uint32_t i = 0; i < 4; i++) {
                assert_int_equal(shoal_step_place(comm, i, i + 1, &into), SHOAL_OK);
                into[7] = NAN;
                assert_int_equal(shoal_step_part(comm, 0, 0, 0, 0, NULL), SHOAL_OK);
                assert_int_equal(shoal_step_place(comm, i, i + 1, &into), SHOAL_OK);
                for (uint32_t e = 0; e < 100; e++)
                    into[e] = 2 * (float)(i + 1);
                assert_int_equal(shoal_step_part(comm, i, i + 1, 0, 100, into), SHOAL_OK);
                assert_int_equal(shoal_step_part(comm, i, i + 1, 100, ELEMS - 100, gradient + 100), SHOAL_OK);
                publish_tuple(comm, i, i + 1);
            }
        }
        for (uint32_t e = 0; e < ELEMS; e++)
            shoal_comm_work(comm)[e] = 8;
        publish_tuple(comm, 4, 5);
        assert_int_equal(shoal_step_reduce(comm), SHOAL_OK);
        assert_int_equal(shoal_step_complete(comm), SHOAL_OK);
        assert_int_equal(shoal_step_apply_allowed(comm), SHOAL_OK);
        for (uint32_t e = 0; e < ELEMS; e++)
            assert_true(shoal_comm_result(comm)[e] == 4.0f); /* (2 * 10 + 8 * 5) / 15 */
    }
    shoal_comm_close(comm);
}

/* The gradients of step 2 stay with the caller: work and result buffer are as they were, and a repeated step lacks all. */
static void gradients_may_be_kept(void **state)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .call = 1, .virtual_workers = VS, .sum_elems = ELEMS, .samples = 100, .minibatch = 4,
                                    .data_epochs = 1, .steps_per_epoch = 3, .param_count = 9, .copy_bytes = 16,
                                    .metric_count = 1, .metric_names = names };
    struct shoal_step s = { .step = 2, .kind = SHOAL_STEP_TRAIN, .step_in_epoch = 1, .v_count = VS };
    double value = 2;
    struct shoal_minibatch m = { .samples = 1, .id_low = 1, .values = &value };
    struct shoal_committed committed;
    struct shoal_comm_entry entry;
    struct shoal_comm *comm;
    uint32_t v[VS];
    uint32_t count;
    float want;
    float before;

    (void)state;
    assert_int_equal(shoal_comm_open_solo(&comm, NULL), SHOAL_OK);
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_OK);
    assert_int_equal(shoal_step_keep(comm), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_comm_enter(comm, 1000, &entry), SHOAL_OK);
    one_step(comm, 1, &want);
    before = shoal_comm_result(comm)[0];
    assert_int_equal(shoal_step_assign(comm, &s, v, VS, &count), SHOAL_OK);
    m.v = v[0];
    assert_int_equal(shoal_step_publish(comm, &m), SHOAL_OK);
    assert_int_equal(shoal_step_keep(comm), SHOAL_ERR_INVALID); /* a sum is held */
    s.kind = SHOAL_STEP_VALIDATE;
    assert_int_equal(shoal_step_assign(comm, &s, v, VS, &count), SHOAL_OK);
    assert_int_equal(shoal_step_keep(comm), SHOAL_ERR_INVALID);
    s.kind = SHOAL_STEP_TRAIN;
    for (int round = 0; round < 2; round++) { /* the second one as after a revoke */
        assert_int_equal(shoal_step_assign(comm, &s, v, VS, &count), SHOAL_OK);
        assert_int_equal(count, VS);
        assert_int_equal(shoal_step_keep(comm), SHOAL_OK);
        assert_int_equal(shoal_step_part(comm, v[0], 1, 0, 1, &before), SHOAL_ERR_INVALID);
        for (uint32_t i = 0; i < (round == 0 ? VS - 1 : VS); i++) {
            m.v = v[i];
            assert_int_equal(shoal_step_publish(comm, &m), SHOAL_OK);
        }
    }
    assert_int_equal(shoal_step_reduce(comm), SHOAL_OK);
    assert_int_equal(shoal_step_complete(comm), SHOAL_OK);
    assert_int_equal(shoal_step_apply_allowed(comm), SHOAL_OK);
    assert_memory_equal(&shoal_comm_result(comm)[0], &before, sizeof(before));
    assert_int_equal(shoal_step_committed(comm, &committed), SHOAL_OK);
    assert_int_equal(committed.step, 2);
    assert_int_equal(committed.samples, VS);
    assert_int_equal(committed.digest, 0);
    one_step(comm, 3, &want);
    assert_memory_equal(&shoal_comm_result(comm)[0], &want, sizeof(want));
    shoal_comm_close(comm);
}

static void refusals_change_nothing(void **state)
{
    static const char *const names[] = { "loss" };
    struct shoal_comm_plan plan = { .call = 1,
                                    .virtual_workers = 4,
                                    .sum_elems = 8,
                                    .samples = 10,
                                    .minibatch = 1,
                                    .data_epochs = 1,
                                    .steps_per_epoch = 3,
                                    .metric_count = 1,
                                    .metric_names = names };
    struct shoal_step s = { .step = 1, .kind = SHOAL_STEP_TRAIN, .v_count = 4 };
    struct shoal_comm_entry entry;
    struct shoal_comm *comm;
    uint32_t v[4];
    uint32_t count;

    (void)state;
    assert_int_equal(shoal_comm_open_solo(&comm, NULL), SHOAL_OK);
    assert_int_equal(shoal_comm_enter(comm, 0, &entry), SHOAL_ERR_INVALID);
    plan.virtual_workers = SHOAL_VIRTUAL_MAX + 1;
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_ERR_TOO_BIG);
    plan.virtual_workers = SHOAL_VIRTUAL_MAX; /* the record would not fit a message */
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_ERR_TOO_BIG);
    plan.virtual_workers = 4;
    assert_int_equal(shoal_comm_ready(comm, &plan), SHOAL_OK);
    assert_int_equal(shoal_step_assign(comm, &s, v, 4, &count), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_comm_enter(comm, 0, &entry), SHOAL_OK);
    s.step = 2;
    assert_int_equal(shoal_step_assign(comm, &s, v, 4, &count), SHOAL_ERR_INVALID);
    s.step = 1;
    assert_int_equal(shoal_step_assign(comm, &s, v, 3, &count), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_step_assign(comm, &s, v, 4, &count), SHOAL_OK);
    assert_int_equal(shoal_step_reduce(comm), SHOAL_ERR_INVALID);
    assert_int_equal(shoal_comm_state_end(comm), SHOAL_ERR_INVALID);
    assert_true(strlen(shoal_comm_error(comm)) > 0);
    shoal_comm_close(comm);
}

static void faults_are_parsed(void **state)
{
    static const struct {
        const char *text;
        int want;
    } rows[] = {
        { NULL, SHOAL_OK },
        { "", SHOAL_OK },
        { "before_publish:3:kill", SHOAL_OK },
        { "mid_reduce:*:stop,done:9:exit", SHOAL_OK },
        { "after_complete:4:break,mid_reduce:1:pause", SHOAL_OK },
        { "nowhere:1:kill", SHOAL_ERR_INVALID },
        { "done:x:kill", SHOAL_ERR_INVALID },
        { "done:1", SHOAL_ERR_INVALID },
        { "done:1:melt", SHOAL_ERR_INVALID },
        { "done:1:kill:/tmp/once,join_copy:*:exit", SHOAL_OK },
        { "done:1:kill:", SHOAL_ERR_INVALID },
    };
    struct fault fault;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(fault_init(&fault, rows[i].text, NULL), rows[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_is_the_same_for_every_split),
        cmocka_unit_test(held_sums_survive_a_moved_range),
        cmocka_unit_test(a_leaf_is_never_added_twice),
        cmocka_unit_test(a_sum_that_ends_with_the_new_range_stays),
        cmocka_unit_test(permutation_is_bijective),
        cmocka_unit_test(messages_survive_and_prefixes_are_refused),
        cmocka_unit_test(an_epoch_has_an_upper_limit),
        cmocka_unit_test(step_records_survive),
        cmocka_unit_test(records_wait_for_acknowledgement),
        cmocka_unit_test(no_record_is_written_over_another),
        cmocka_unit_test(records_behind_a_gap_replace_those_before_it),
        cmocka_unit_test(regions_are_laid_out_alike_and_apart),
        cmocka_unit_test(a_view_shows_what_was_put_there_last),
        cmocka_unit_test(the_largest_map_is_read_by_others),
        cmocka_unit_test(digests_add_up_over_slices),
        cmocka_unit_test(a_communicator_of_one_trains),
        cmocka_unit_test(mini_batches_are_computed_as_one),
        cmocka_unit_test(sums_may_be_put_in_their_place),
        cmocka_unit_test(gradients_may_be_kept),
        cmocka_unit_test(refusals_change_nothing),
        cmocka_unit_test(faults_are_parsed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
