/* The words of many nodes of the same jobs become one list (node/backend/list_merge.h): the newest row counts, a deletion
 * counts more, and what no leader has said is doubted. Each case has answers of up to three nodes, in every order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/job_facts.h"
#include "node/backend/list_merge.h"

#include "shoal/banned.h"

#define NODES 3

/* One node's word of the job. */
struct said {
    bool says;
    uint64_t config, term, applied;
    bool leads, tail, deleted, bare; /* bare: without facts */
    enum shoal_job_state state;
};

#define SAYS .says = true, .config = 1, .term = 1
#define RUNS .state = SHOAL_JOB_RUNNING
#define ENDED .state = SHOAL_JOB_FINISHED

struct merge_case {
    const char *name;
    struct said said[NODES];
    uint32_t states; /* that are asked for; 0: all */
    bool by_id;
    enum shoal_job_sort sort;
    bool doubted, listed;
    uint64_t applied; /* of the row that counts */
    unsigned unsettled;
};

static const struct merge_case cases[] = {
    { "K1: the row that has applied more counts",
      { { SAYS, .applied = 5, RUNS }, { SAYS, .applied = 9, RUNS } },
      .listed = true,
      .applied = 9 },
    { "K1: a higher term counts more than more entries",
      { { SAYS, .applied = 9, RUNS }, { .says = true, .config = 1, .term = 2, .applied = 3, RUNS } },
      .listed = true,
      .applied = 3 },
    { "K1: a newer configuration counts more than a higher term",
      { { .says = true, .config = 1, .term = 7, .applied = 9, RUNS },
        { .says = true, .config = 2, .term = 1, .applied = 1, RUNS } },
      .listed = true,
      .applied = 1 },
    { "K1: a deletion counts more than a newer row, and a leader's",
      { { SAYS, .applied = 5, .deleted = true, RUNS }, { SAYS, .applied = 9, .leads = true, RUNS } },
      .listed = false },
    { "K1: so does one without facts, by id",
      { { SAYS, .deleted = true, .bare = true }, { SAYS, .applied = 9, RUNS } },
      .by_id = true },
    { "K1: and where the list is sorted by what the deletion does not say",
      { { SAYS, .deleted = true, .bare = true }, { SAYS, .applied = 9, RUNS } },
      .by_id = true,
      .sort = SHOAL_SORT_NAME },
    { "K1: nodes differ in what the list is sorted by: one row",
      { { SAYS, .applied = 5, RUNS }, { SAYS, .applied = 9, ENDED } },
      .sort = SHOAL_SORT_STATE,
      .listed = true,
      .applied = 9 },
    { "K2: the leader's row needs no other",
      { { SAYS, .applied = 5, .leads = true, RUNS } },
      .listed = true,
      .applied = 5 },
    { "K2: a row of one node that does not lead is doubted",
      { { SAYS, .applied = 5, ENDED } },
      .doubted = true,
      .listed = true,
      .applied = 5 },
    { "K2: entries that are not applied are doubted, whoever else has the job",
      { { SAYS, .applied = 5, .tail = true, ENDED }, { SAYS, .applied = 5, ENDED }, { SAYS, .applied = 5, ENDED } },
      .doubted = true,
      .listed = true,
      .applied = 5,
      .unsettled = 1 },
    { "K2: a leader among them settles it",
      { { SAYS, .applied = 5, .tail = true, RUNS }, { SAYS, .applied = 6, .leads = true, RUNS } },
      .listed = true,
      .applied = 6 },
    { "K2: asked for by state, a running job may have a newer row of another state",
      { { SAYS, .applied = 5, RUNS }, { SAYS, .applied = 5, RUNS } },
      .states = 1u << SHOAL_JOB_RUNNING,
      .doubted = true,
      .listed = true,
      .applied = 5 },
    { "K2: one that has ended stays so",
      { { SAYS, .applied = 5, ENDED }, { SAYS, .applied = 5, ENDED } },
      .states = 1u << SHOAL_JOB_FINISHED,
      .listed = true,
      .applied = 5 },
    { "K2: asked for by its id, one row is enough",
      { { SAYS, .applied = 5, ENDED } },
      .by_id = true,
      .listed = true,
      .applied = 5 },
    { "K2: but not if entries are not applied",
      { { SAYS, .applied = 5, .tail = true, ENDED } },
      .by_id = true,
      .doubted = true,
      .listed = true,
      .applied = 5,
      .unsettled = 1 },
    { "the newest row no longer matches: not listed",
      { { SAYS, .applied = 5, RUNS }, { SAYS, .applied = 9, .leads = true, ENDED } },
      .states = 1u << SHOAL_JOB_RUNNING },
};

static const struct shoal_job_id job = { { 7 } };

static struct shoal_job_facts facts_of(struct shoal_job_id id, enum shoal_job_state state, uint64_t applied)
{
    /* `create_ms` tells afterwards which row it was. */
    struct shoal_job_facts facts = { .id = id, .state = (uint8_t)state, .create_ms = applied };

    (void)snprintf(facts.app_name, sizeof(facts.app_name), "train");
    return facts;
}

static void encode_rows(struct list_answer *answer, struct shoal_buf *bytes)
{
    assert_int_equal(list_answer_encode(answer, bytes), SHOAL_OK);
}

static bool give(struct list_merge *m, const struct said *said)
{
    static uint8_t room[SHOAL_SCHED_ROW_BYTES_MAX];
    struct shoal_job_facts facts = facts_of(job, said->state, said->applied);
    struct list_row row = { .id = job,
                            .version = { said->config, said->term, said->applied },
                            .leads = said->leads,
                            .tail = said->tail,
                            .deleted = said->deleted };
    struct list_answer answer = { .count = said->says ? 1 : 0, .rows = &row };
    struct shoal_buf bytes = { 0 };
    size_t len = 0;
    bool whole;

    assert_int_equal(shoal_job_facts_encode(&facts, room, sizeof(room), &len), SHOAL_OK);
    if (!said->bare)
        row.facts = shoal_view_of(room, len);
    encode_rows(&answer, &bytes);
    whole = list_merge_answer(m, shoal_buf_view(&bytes));
    shoal_buf_deinit(&bytes);
    return whole;
}

static void check(const struct merge_case *c, const unsigned order[NODES])
{
    static struct list_merge m;
    struct shoal_job_facts *page[5] = { NULL };
    struct shoal_list_place end;
    size_t count = 0;
    uint32_t doubts;

    m = (struct list_merge){ .by_id = c->by_id };
    m.query.limit = 4;
    m.query.states = c->states;
    m.query.sort = c->sort;
    for (unsigned i = 0; i < NODES; i++)
        assert_true(give(&m, &c->said[order[i]]));
    doubts = list_merge_doubt(&m);
    if (doubts != (c->doubted ? 1 : 0) || list_merge_unsettled(&m) != c->unsettled)
        fail_msg("%s (order %u%u%u): %u doubts, %u unsettled", c->name, order[0], order[1], order[2], doubts,
                 list_merge_unsettled(&m));
    list_merge_take(&m, page, &count, 4, &end);
    if (count != (c->listed ? 1 : 0) || (c->listed && page[0]->create_ms != c->applied))
        fail_msg("%s (order %u%u%u): %zu rows, the first of entry %u", c->name, order[0], order[1], order[2], count,
                 count == 0 ? 0 : (unsigned)page[0]->create_ms);
    for (size_t i = 0; i < count; i++)
        free(page[i]);
    list_merge_deinit(&m);
}

static void test_what_nodes_say_of_one_job(void **state)
{
    static const unsigned orders[][NODES] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                              { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t o = 0; o < sizeof(orders) / sizeof(orders[0]); o++)
            check(&cases[i], orders[o]);
}

/* Jobs first to last by id; one node leads them all. */
static void give_many(struct list_merge *m, unsigned first, unsigned last, bool more)
{
    static uint8_t room[64][SHOAL_SCHED_ROW_BYTES_MAX];
    struct list_row rows[64];
    struct list_answer answer = { .more = more, .rows = rows };
    struct shoal_buf bytes = { 0 };

    for (unsigned i = first; i <= last; i++) {
        struct shoal_job_id id = { { (uint8_t)i } };
        struct shoal_job_facts facts = facts_of(id, SHOAL_JOB_RUNNING, i);
        size_t len = 0;

        assert_int_equal(shoal_job_facts_encode(&facts, room[answer.count], sizeof(room[0]), &len), SHOAL_OK);
        rows[answer.count] = (struct list_row){ .id = id, .leads = true, .version = { 1, 1, i } };
        rows[answer.count].facts = shoal_view_of(room[answer.count], len);
        answer.upto = (struct shoal_list_place){ .is_set = true, .id = id };
        answer.count++;
    }
    encode_rows(&answer, &bytes);
    assert_true(list_merge_answer(m, shoal_buf_view(&bytes)));
    shoal_buf_deinit(&bytes);
}

static void test_a_list_ends_where_one_answer_ends(void **state)
{
    static struct list_merge m;
    struct shoal_job_facts *page[32];
    struct shoal_list_place end;
    size_t count = 0;

    (void)state;
    m.query.limit = 20;
    give_many(&m, 1, 9, false);
    give_many(&m, 2, 5, true); /* this node may have others behind 5 */
    give_many(&m, 6, 8, false);
    assert_true(m.cut);
    list_merge_take(&m, page, &count, m.query.limit, &end);
    assert_int_equal(count, 5);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(page[i]->id.bytes[0], i + 1);
        free(page[i]);
    }
    assert_int_equal(end.id.bytes[0], 5);
    list_merge_deinit(&m);
}

/* K4. */
static void test_a_list_holds_twice_what_is_asked_for(void **state)
{
    static struct list_merge m;

    (void)state;
    m.query.limit = 4;
    give_many(&m, 1, 8, false);
    assert_int_equal(m.count, 8);
    assert_false(m.cut);
    give_many(&m, 9, 9, false);
    assert_int_equal(m.count, 4);
    assert_true(m.cut && m.upto.id.bytes[0] == 4);
    list_merge_deinit(&m);
}

static void test_what_is_doubted_leaves_the_list_until_it_is_answered(void **state)
{
    static struct list_merge m;

    (void)state;
    m.query.limit = 4;
    assert_true(give(&m, &(struct said){ SAYS, .applied = 5, ENDED }));
    give_many(&m, 1, 3, false);
    assert_int_equal(list_merge_doubt(&m), 1);
    assert_true(shoal_job_id_equal(m.doubts.ids[0], job));
    list_merge_forget(&m);
    assert_int_equal(m.count, 3);
    m.by_id = true;
    assert_true(give(&m, &(struct said){ SAYS, .applied = 6, .leads = true, ENDED }));
    assert_int_equal(list_merge_doubt(&m), 0);
    assert_int_equal(m.count, 4);
    list_merge_deinit(&m);
}

static void test_a_broken_answer_is_told(void **state)
{
    static struct list_merge m;
    struct list_answer answer = { .broken = true };
    struct shoal_buf bytes = { 0 };

    (void)state;
    m.query.limit = 4;
    encode_rows(&answer, &bytes);
    assert_false(list_merge_answer(&m, shoal_buf_view(&bytes)));
    assert_false(list_merge_answer(&m, shoal_view_of(bytes.bytes, bytes.len - 1)));
    shoal_buf_deinit(&bytes);
    list_merge_deinit(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_nodes_say_of_one_job),
        cmocka_unit_test(test_a_list_ends_where_one_answer_ends),
        cmocka_unit_test(test_a_list_holds_twice_what_is_asked_for),
        cmocka_unit_test(test_what_is_doubted_leaves_the_list_until_it_is_answered),
        cmocka_unit_test(test_a_broken_answer_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
