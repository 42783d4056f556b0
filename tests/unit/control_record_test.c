/* The control plane's records in gossip: there and back, every prefix, and what each becomes as an event. */
#include "shoal/control_record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shoal/pack.h"
#include "shoal/slots.h"

static const struct shoal_facts_record facts_said = {
    .cpus = 48, .serves = 3, .job_workers = 128, .simulated = true, .domain = "rack 7", .numeric_class = "avx2", .api_url = "https://10.0.0.2:9243"
};

static size_t facts_bytes(uint8_t *bytes, size_t cap)
{
    size_t len = 0;

    assert_int_equal(shoal_facts_record_encode(&facts_said, bytes, cap, &len), SHOAL_OK);
    return len;
}

/* Copied to the end of a block of its own, so that a sanitizer sees a read behind it. */
static enum shoal_err decode_prefix(bool load, const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len == 0 ? 1 : len);
    struct shoal_facts_record facts;
    struct shoal_load_record record;
    enum shoal_err err;

    assert_non_null(copy);
    memcpy(copy, bytes, len);
    err = load ? shoal_load_record_decode(shoal_view_of(copy, len), &record)
               : shoal_facts_record_decode(shoal_view_of(copy, len), &facts);
    free(copy);
    return err;
}

static void facts_come_back(void **state)
{
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len = facts_bytes(bytes, sizeof(bytes)), out;
    struct shoal_facts_record facts;

    (void)state;
    assert_int_equal(shoal_facts_record_decode(shoal_view_of(bytes, len), &facts), SHOAL_OK);
    assert_memory_equal(&facts, &facts_said, sizeof(facts));
    for (size_t n = 0; n < len; n++)
        assert_int_equal(decode_prefix(false, bytes, n), SHOAL_ERR_MALFORMED);
    bytes[len] = 7;
    assert_int_equal(decode_prefix(false, bytes, len + 1), SHOAL_ERR_MALFORMED);
    assert_int_equal(shoal_facts_record_encode(&facts_said, bytes, len - 1, &out), SHOAL_ERR_TOO_BIG);
}

static void load_comes_back(void **state)
{
    struct shoal_load_record said = { .load_milli = 1500, .archive = 77, .count = SHOAL_LOAD_JOBS_MAX }, heard;
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len;

    (void)state;
    for (uint8_t i = 0; i < said.count; i++) {
        said.jobs[i].job.bytes[0] = i;
        said.jobs[i].pause_us = 1000u + i;
    }
    assert_int_equal(shoal_load_record_encode(&said, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_int_equal(shoal_load_record_decode(shoal_view_of(bytes, len), &heard), SHOAL_OK);
    assert_memory_equal(&heard, &said, sizeof(heard));
    for (size_t n = 0; n < len; n++)
        assert_int_equal(decode_prefix(true, bytes, n), SHOAL_ERR_MALFORMED);
    memset(bytes, 0, sizeof(bytes));
    memcpy(bytes, "l\x02\x02\x81\xa9pauses_us\xdc\0\x22", 17); /* seventeen jobs, more than a record holds */
    for (unsigned i = 0; i < 17; i++)
        memcpy(bytes + 17 + 13 * i, "\xc4\x0a##########\0", 13);
    assert_int_equal(decode_prefix(true, bytes, 17 + 13 * 17), SHOAL_ERR_MALFORMED);
    bytes[16] = 0x20; /* sixteen are taken */
    assert_int_equal(decode_prefix(true, bytes, 17 + 13 * 16), SHOAL_OK);
    bytes[16] = 0x1f; /* a job without its pause */
    assert_int_equal(decode_prefix(true, bytes, 17 + 13 * 16 - 1), SHOAL_ERR_MALFORMED);
}

static void serving_comes_back(void **state)
{
    struct shoal_serving_record said = { .count = SHOAL_SERVING_MAX, .pieces = true }, heard;
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len, without;

    (void)state;
    for (uint8_t i = 0; i < said.count; i++)
        said.services[i] = (struct shoal_serving){ .job = { { i } }, .ready = 1, .room = 4, .open = i };
    assert_int_equal(shoal_serving_record_encode(&said, bytes, sizeof(bytes), &without), SHOAL_OK);
    assert_int_equal(shoal_serving_record_decode(shoal_view_of(bytes, without), &heard), SHOAL_OK);
    assert_memory_equal(&heard, &said, sizeof(heard));
    said.services[0].limit_s = 60; /* the others do not say: an older agent's word, or none */
    said.services[SHOAL_SERVING_MAX - 1].limit_s = SHOAL_INFER_TIMEOUT_MS_MAX / 1000;
    said.services[1].answered = UINT64_MAX;
    said.services[2].failed = 7;
    assert_int_equal(shoal_serving_record_encode(&said, bytes, sizeof(bytes), &len), SHOAL_OK);
    assert_true(len > without);
    assert_int_equal(shoal_serving_record_decode(shoal_view_of(bytes, len), &heard), SHOAL_OK);
    assert_memory_equal(&heard, &said, sizeof(heard));
    for (size_t n = 0; n < len; n++)
        assert_int_equal(shoal_serving_record_decode(shoal_view_of(bytes, n), &heard), SHOAL_ERR_MALFORMED);
}

/* A later version says more: what we know of it is heard. Its author says that we cannot read it: then nothing is. */
static void later_versions_are_heard(void **state)
{
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    struct shoal_pack_writer w = shoal_pack_writer_init(bytes, sizeof(bytes));
    struct shoal_facts_record facts;
    struct shoal_slots_record slots;

    (void)state;
    shoal_pack_put_head(&w, (struct shoal_pack_head){ SHOAL_PACK_KIND_FACTS, 9, 2 });
    shoal_pack_begin_map(&w);
    shoal_pack_put_name(&w, "cpus");
    shoal_pack_put_u64(&w, 8);
    shoal_pack_put_name(&w, "gpus");
    shoal_pack_put_array(&w, 1);
    shoal_pack_put_text(&w, "H200");
    shoal_pack_end_map(&w);
    assert_int_equal(shoal_facts_record_decode(shoal_pack_writer_view(&w), &facts), SHOAL_OK);
    assert_true(facts.cpus == 8 && facts.domain[0] == '\0');
    bytes[2] = 9;
    assert_int_equal(shoal_facts_record_decode(shoal_pack_writer_view(&w), &facts), SHOAL_ERR_UNSUPPORTED);
    bytes[0] = SHOAL_PACK_KIND_SLOTS;
    assert_int_equal(shoal_slots_record_decode(shoal_pack_writer_view(&w), &slots), SHOAL_ERR_UNSUPPORTED);
    bytes[2] = 2;
    assert_int_equal(shoal_slots_record_decode(shoal_pack_writer_view(&w), &slots), SHOAL_OK);
    assert_true(slots.slots == 0 && slots.free == 0);
}

static void a_member_becomes_a_node(void **state)
{
    static const struct {
        enum shoal_member_state member;
        enum shoal_sched_node_state node;
    } states[] = { { SHOAL_MEMBER_ALIVE, SHOAL_SCHED_NODE_ALIVE },
                   { SHOAL_MEMBER_SUSPECT, SHOAL_SCHED_NODE_SUSPECT },
                   { SHOAL_MEMBER_LEFT, SHOAL_SCHED_NODE_LEFT },
                   { SHOAL_MEMBER_DEAD, SHOAL_SCHED_NODE_DEAD } };
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    struct shoal_record record = { .kind = SHOAL_RECORD_NODE_FACTS };
    struct shoal_member member = { .id = { { 1 } }, .store = { { 2 } }, .incarnation = { 3, 4, 0 } };
    struct shoal_sched_event event;

    (void)state;
    record.payload = shoal_view_of(bytes, facts_bytes(bytes, sizeof(bytes)));
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        member.state = states[i].member;
        shoal_control_node(&member, NULL, &record, &event);
        assert_int_equal(event.kind, SHOAL_SCHED_NODE);
        assert_int_equal(event.u.node.state, states[i].node);
    }
    assert_memory_equal(&event.u.node.id, &member.id, sizeof(member.id));
    assert_memory_equal(&event.u.node.store, &member.store, sizeof(member.store));
    assert_int_equal(event.u.node.incarnation.agent, 4);
    assert_int_equal(event.u.node.cpus, 48);
    assert_string_equal(event.u.node.domain, "rack 7");
    assert_string_equal(event.u.node.numeric_class, "avx2");
}

/* A record cut short says nothing, where once its first fields were believed. */
static void half_a_record_says_nothing(void **state)
{
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    struct shoal_record record = { .kind = SHOAL_RECORD_NODE_FACTS };
    struct shoal_member member = { .state = SHOAL_MEMBER_ALIVE };
    struct shoal_sched_event event;

    (void)state;
    record.payload = shoal_view_of(bytes, facts_bytes(bytes, sizeof(bytes)) - 3);
    shoal_control_node(&member, NULL, &record, &event);
    assert_int_equal(event.u.node.cpus, 0);
    assert_string_equal(event.u.node.domain, "");
    record.payload.len += 3;
    record.tombstone = true;
    shoal_control_node(&member, NULL, &record, &event);
    assert_int_equal(event.u.node.cpus, 0);
}

static void actions_become_records(void **state)
{
    struct shoal_sched_action action = { .kind = SHOAL_SCHED_PUBLISH_SUMMARY };
    struct shoal_record record;
    struct shoal_sched_event event;

    (void)state;
    action.u.summary.job = (struct shoal_job_id){ { 9, 8 } };
    action.u.summary.version = (struct shoal_sched_version){ .config = 1, .term = 2, .applied = 3 };
    action.u.summary.payload = shoal_view_text("summary");
    shoal_control_publish(&action, &record);
    assert_int_equal(record.kind, SHOAL_RECORD_JOB_SUMMARY);
    assert_int_equal(record.version.word[0] * 100 + record.version.word[1] * 10 + record.version.word[2], 123);
    assert_true(shoal_control_heard(&record, &event));
    assert_int_equal(event.kind, SHOAL_SCHED_SUMMARY);
    assert_memory_equal(&event.u.summary.job, &action.u.summary.job, sizeof(event.u.summary.job));
    assert_int_equal(event.u.summary.payload.len, 7);
    record.tombstone = true;
    assert_true(shoal_control_heard(&record, &event));
    assert_int_equal(event.u.summary.payload.len, 0);
    assert_false(event.u.summary.archived);
    action.u.summary.tombstone = action.u.summary.archived = true;
    action.u.summary.payload.len = 0;
    shoal_control_publish(&action, &record);
    assert_true(record.tombstone && shoal_control_heard(&record, &event));
    assert_true(event.u.summary.archived);

    action = (struct shoal_sched_action){ .kind = SHOAL_SCHED_PUBLISH_MESH };
    action.u.publish.version = 12;
    action.u.publish.config = 13;
    action.u.publish.payload = shoal_view_text("mesh");
    shoal_control_publish(&action, &record);
    assert_int_equal(record.kind, SHOAL_RECORD_MESH_STATE);
    assert_int_equal(record.version.word[0], 12);
    assert_int_equal(record.version.word[1], 13); /* other guardians of the same version are news */
    record.author = (struct shoal_node_id){ { 5 } };
    assert_true(shoal_control_heard(&record, &event));
    assert_int_equal(event.kind, SHOAL_SCHED_MESH_HEARD);
    assert_int_equal(event.u.mesh_heard.author.bytes[0], 5);

    action.kind = SHOAL_SCHED_PUBLISH_SLOTS; /* its version is gossip's to give */
    shoal_control_publish(&action, &record);
    assert_int_equal(record.kind, SHOAL_RECORD_NODE_SLOTS);
    assert_int_equal(record.version.word[0], 0);
    assert_true(shoal_control_tells_node(record.kind));
    assert_false(shoal_control_heard(&record, &event));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_come_back),
        cmocka_unit_test(load_comes_back),
        cmocka_unit_test(serving_comes_back),
        cmocka_unit_test(later_versions_are_heard),
        cmocka_unit_test(a_member_becomes_a_node),
        cmocka_unit_test(half_a_record_says_nothing),
        cmocka_unit_test(actions_become_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
