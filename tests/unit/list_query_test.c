/* The questions and answers of lists (node/backend/list_query.h), and the tokens of their pages (api/rest/job_list.h): what is
 * written is read, every prefix and every damage is refused, and the order is total. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/rest/job_list.h"
#include "node/backend/list_query.h"
#include "shoal/pack.h"
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"

#include "shoal/banned.h"

static struct shoal_job_facts facts_of(unsigned i)
{
    static const uint8_t states[] = { SHOAL_JOB_RUNNING, SHOAL_JOB_FINISHED, SHOAL_JOB_KILLED };
    struct shoal_job_facts facts = { .state = states[i % 3], .create_ms = 1000 + i, .workers_max = 1 + i % 5 };

    facts.id.bytes[4] = (uint8_t)((1000 + i) >> 4);
    facts.id.bytes[3] = (uint8_t)((1000 + i) >> 12);
    facts.id.bytes[5] = (uint8_t)(((1000 + i) & 15) << 4);
    (void)snprintf(facts.creator, sizeof(facts.creator), "%s", i % 2 == 0 ? "ann" : "bob");
    (void)snprintf(facts.app_name, sizeof(facts.app_name), "job %u", i % 4);
    (void)snprintf(facts.framework, sizeof(facts.framework), "PyTorch");
    return facts;
}

static void test_a_question_is_read_as_it_was_written(void **state)
{
    static uint8_t bytes[LIST_QUERY_BYTES_MAX];
    static struct list_query query, again;
    size_t len;

    (void)state;
    query = (struct list_query){ .creator = "ann",
                                 .name = "train",
                                 .ending = "41z",
                                 .states = 5,
                                 .since_ms = 7,
                                 .until_ms = UINT64_MAX,
                                 .sort = SHOAL_SORT_WORKERS,
                                 .descending = true,
                                 .limit = SHOAL_LIST_ROWS_MAX,
                                 .after = { .is_set = true, .key = "0000000007", .id = { { 1, 2, 3 } } },
                                 .id_count = SHOAL_LIST_ROWS_MAX };
    for (unsigned i = 0; i < SHOAL_LIST_ROWS_MAX; i++)
        query.ids[i].bytes[9] = (uint8_t)i;
    assert_int_equal(list_query_encode(&query, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(list_query_decode(shoal_view_of(bytes, len), &again), SHOAL_OK);
    assert_memory_equal(&query, &again, sizeof(query));
    for (size_t cut = 0; cut < len; cut += cut < 200 ? 1 : 97)
        assert_int_equal(list_query_decode(shoal_view_of(bytes, cut), &again), SHOAL_ERR_MALFORMED);
}

static void test_a_newer_question_is_read_without_what_is_new(void **state)
{
    uint8_t bytes[256];
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));
    static struct list_query query;

    (void)state;
    shoal_pack_begin_map(&w);
    shoal_pack_put_name(&w, "colour");
    shoal_pack_put_text(&w, "red");
    shoal_pack_put_name(&w, "creator");
    shoal_pack_put_text(&w, "ann");
    shoal_pack_put_name(&w, "limit");
    shoal_pack_put_u64(&w, 3);
    shoal_pack_end_map(&w);
    assert_int_equal(list_query_decode(shoal_pack_writer_view(&w), &query), SHOAL_OK);
    assert_string_equal(query.creator, "ann");
    assert_int_equal(query.limit, 3);
    for (unsigned i = 0; i < 300; i++) { /* a row too many, a state that is none: nothing of it is believed */
        bytes[i % w.len] ^= (uint8_t)(1u << i % 8);
        shoal_ignore(list_query_decode(shoal_pack_writer_view(&w), &query));
        assert_true(query.limit <= SHOAL_LIST_ROWS_MAX && query.id_count <= SHOAL_LIST_ROWS_MAX);
        bytes[i % w.len] ^= (uint8_t)(1u << i % 8);
    }
}

static void test_an_answer_is_read_as_it_was_written(void **state)
{
    struct list_row rows[3] = { { .id = { { 1 } }, .version = { 1, 2, 3 }, .leads = true },
                                { .id = { { 2 } }, .version = { UINT64_MAX, 5, 6 }, .tail = true },
                                { .id = { { 3 } }, .deleted = true } };
    struct list_answer answer = {
        .more = true, .upto = { .is_set = true, .key = "k", .id = { { 3 } } }, .count = 3, .rows = rows
    };
    struct list_answer again;
    struct shoal_buf bytes = { 0 };

    (void)state;
    rows[0].facts = shoal_view_text("facts");
    assert_int_equal(list_answer_encode(&answer, &bytes), SHOAL_OK);
    assert_int_equal(list_answer_decode(shoal_buf_view(&bytes), &again), SHOAL_OK);
    assert_int_equal(again.count, 3);
    assert_true(again.more && !again.broken && again.rows[0].leads && again.rows[1].tail && again.rows[2].deleted);
    assert_true(again.rows[1].version.config == UINT64_MAX && again.rows[0].version.applied == 3);
    assert_true(shoal_view_equal(again.rows[0].facts, shoal_view_text("facts")));
    assert_string_equal(again.upto.key, "k");
    free(again.rows);
    for (size_t cut = 0; cut < bytes.len; cut++)
        assert_int_equal(list_answer_decode(shoal_view_of(bytes.bytes, cut), &again), SHOAL_ERR_MALFORMED);
    shoal_buf_deinit(&bytes);
}

/* V1. */
static void test_a_loaded_group_speaks_for_its_job_and_not_the_index(void **state)
{
    const struct shoal_sched_row live = { .version = { 1, 2, 9 }, .leads = true, .facts = shoal_view_text("now") };
    const struct shoal_job_id id = { { 4 } };
    struct shoal_buf value = { 0 };
    struct list_row row;

    (void)state;
    list_value_encode(true, (struct shoal_sched_version){ 1, 2, 3 }, shoal_view_text("then"), &value);
    assert_true(list_row_now(id, &live, shoal_buf_view(&value), &row));
    assert_true(row.leads && !row.deleted && row.version.applied == 9 && shoal_job_id_equal(row.id, id));
    assert_true(shoal_view_equal(row.facts, shoal_view_text("now")));
    assert_true(list_row_now(id, NULL, shoal_buf_view(&value), &row)); /* parked, or archived */
    assert_true(!row.leads && row.deleted && row.version.applied == 3 && shoal_job_id_equal(row.id, id));
    assert_true(shoal_view_equal(row.facts, shoal_view_text("then")));
    assert_false(list_row_now(id, NULL, (struct shoal_view){ 0 }, &row));
    assert_false(list_row_now(id, NULL, shoal_view_of(value.bytes, 5), &row));
    shoal_buf_deinit(&value);
}

static void test_the_order_is_total_and_its_reverse_is_the_reverse(void **state)
{
    (void)state;
    for (unsigned sort = 0; sort < SHOAL_JOB_SORTS; sort++) {
        static struct list_query query;
        struct shoal_list_place places[12];

        query.sort = (enum shoal_job_sort)sort;
        for (unsigned i = 0; i < 12; i++) {
            struct shoal_job_facts facts = facts_of(i);

            list_place_of(query.sort, &facts, &places[i]);
        }
        for (unsigned a = 0; a < 12; a++)
            for (unsigned b = 0; b < 12; b++) {
                int order;

                query.descending = false;
                order = list_place_cmp(&query, &places[a], &places[b]);
                assert_int_equal(order == 0, a == b);
                query.descending = true;
                assert_int_equal(list_place_cmp(&query, &places[a], &places[b]) > 0, order < 0);
            }
    }
}

static void test_the_range_of_ids_holds_what_the_times_say(void **state)
{
    static struct list_query query;
    struct shoal_job_id low, high;

    (void)state;
    query = (struct list_query){ .since_ms = 1003, .until_ms = 1007, .limit = 10 };
    list_query_range(&query, &low, &high);
    for (unsigned i = 0; i < 12; i++) {
        struct shoal_job_facts facts = facts_of(i);
        bool wanted = i >= 3 && i < 7;

        assert_int_equal(list_query_takes(&query, &facts), wanted);
        assert_true(!wanted || (shoal_job_id_cmp(facts.id, low) >= 0 && shoal_job_id_cmp(facts.id, high) <= 0));
    }
}

static void test_a_deleted_job_is_in_no_list(void **state)
{
    static struct list_query query;
    struct shoal_job_facts facts = facts_of(0);

    (void)state;
    assert_true(list_query_takes(&query, &facts));
    facts.deleted = true;
    assert_false(list_query_takes(&query, &facts));
}

/* ---- tokens ---- */

static void test_a_token_is_good_for_its_list_and_its_time(void **state)
{
    struct shoal_token_keys keys = { .count = 2, .keys = { { 1, 2, 3 }, { 9 } } };
    struct shoal_token_keys older = { .count = 1, .keys = { { 9 } } };
    struct shoal_list_place place = { .is_set = true, .key = "RUNNING", .id = { { 4, 5, 6 } } };
    struct shoal_view filter = shoal_view_text("ann|all");
    struct shoal_list_place again;
    char text[JOB_LIST_TOKEN_TEXT_BYTES];
    struct shoal_msg msg = { "" };

    (void)state;
    page_token_make(&keys, 5000, filter, &place, text);
    assert_int_equal(page_token_read(text, &keys, 5000 + JOB_LIST_TOKEN_S, filter, &again, &msg), SHOAL_OK);
    assert_memory_equal(&place, &again, sizeof(place));
    assert_int_equal(page_token_read(text, &keys, 5001 + JOB_LIST_TOKEN_S, filter, &again, &msg), SHOAL_ERR_INVALID);
    assert_non_null(strstr(msg.text, "older than 60 minutes"));
    assert_int_equal(page_token_read(text, &keys, 5000, shoal_view_text("bob|all"), &again, &msg), SHOAL_ERR_INVALID);
    assert_non_null(strstr(msg.text, "another list"));
    assert_int_equal(page_token_read(text, &older, 5000, filter, &again, &msg), SHOAL_ERR_INVALID);
    page_token_make(&older, 5000, filter, &place, text); /* signed by the key before the newest */
    assert_int_equal(page_token_read(text, &keys, 5000, filter, &again, &msg), SHOAL_OK);
    for (size_t i = 0; text[i] != '\0'; i++) {
        char old = text[i];

        text[i] = old == 'A' ? 'B' : 'A';
        assert_int_equal(page_token_read(text, &keys, 5000, filter, &again, &msg), SHOAL_ERR_INVALID);
        text[i] = '\0';
        assert_int_equal(page_token_read(text, &keys, 5000, filter, &again, &msg), SHOAL_ERR_INVALID);
        text[i] = old;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_question_is_read_as_it_was_written),
        cmocka_unit_test(test_a_newer_question_is_read_without_what_is_new),
        cmocka_unit_test(test_an_answer_is_read_as_it_was_written),
        cmocka_unit_test(test_a_loaded_group_speaks_for_its_job_and_not_the_index),
        cmocka_unit_test(test_the_order_is_total_and_its_reverse_is_the_reverse),
        cmocka_unit_test(test_the_range_of_ids_holds_what_the_times_say),
        cmocka_unit_test(test_a_deleted_job_is_in_no_list),
        cmocka_unit_test(test_a_token_is_good_for_its_list_and_its_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
