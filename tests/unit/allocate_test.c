/* Allocation: a table of views, and thousands of random small ones against brute force. */
#include "shoal/allocate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "shoal/job_facts.h"
#include "shoal/rand.h"

#define SLOTS 24
#define JOBS 20
#define HOSTS 5

struct scene {
    struct shoal_allocate_host hosts[HOSTS];
    int32_t slots[SLOTS];
    struct shoal_allocate_job jobs[JOBS];
    struct shoal_allocate_input view;
    struct shoal_allocate_grant grants[JOBS];
    int32_t after[SLOTS];
    struct shoal_allocate_out out;
};

static struct shoal_allocate *work;

static void wire(struct scene *s)
{
    s->view.hosts = s->hosts;
    s->view.slots = s->slots;
    s->view.jobs = s->jobs;
    s->out.grants = s->grants;
    s->out.slots = s->after;
}

static void add_host(struct scene *s, uint8_t name, uint8_t device, uint32_t slots)
{
    struct shoal_allocate_host *host = &s->hosts[s->view.host_count++];

    *host = (struct shoal_allocate_host){
        .id = { { name } }, .device = device, .usable = true, .first_slot = s->view.slot_count, .slot_count = slots
    };
    for (uint32_t i = 0; i < slots; i++)
        s->slots[s->view.slot_count++] = SHOAL_ALLOCATE_FREE;
}

static void add_job(struct scene *s, uint32_t priority, uint64_t ticket, bool elastic, uint32_t min, uint32_t max)
{
    uint32_t i = s->view.job_count++;

    s->jobs[i] = (struct shoal_allocate_job){ .id = { { 0, (uint8_t)i } },
                                              .priority = priority,
                                              .ticket_ms = ticket,
                                              .min = min,
                                              .max = max,
                                              .elastic = elastic };
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

struct row {
    const char *name;
    uint32_t hosts[3]; /* slots of each */
    struct {
        uint32_t priority, elastic, min, max, held;
    } jobs[5]; /* max 0 ends the list; tickets in order */
    uint32_t want[5];
    enum shoal_allocate_why why[5];
};

#define G SHOAL_ALLOCATE_GIVEN
#define S SHOAL_ALLOCATE_SHARED
static const struct row rows[] = {
    { "one elastic job takes its maximum", { 4 }, { { 0, 1, 1, 3, 0 } }, { 3 }, { G } },
    { "two elastic jobs of 4 on four slots settle at 2 and 2",
      { 4 },
      { { 0, 1, 1, 4, 4 }, { 0, 1, 1, 4, 0 } },
      { 2, 2 },
      { S, S } },
    { "of three slots the earlier ticket gets two",
      { 3 },
      { { 0, 1, 1, 4, 0 }, { 0, 1, 1, 4, 0 } },
      { 2, 1 },
      { S, S } },
    { "a small maximum leaves its rest to the other",
      { 6 },
      { { 0, 1, 1, 2, 0 }, { 0, 1, 1, 9, 0 } },
      { 2, 4 },
      { G, S } },
    { "a gang takes elastic surplus back", { 4 }, { { 0, 1, 1, 4, 4 }, { 0, 0, 3, 3, 0 } }, { 1, 3 }, { S, G } },
    { "a running gang is never taken from",
      { 4 },
      { { 0, 0, 3, 3, 3 }, { 9, 0, 2, 2, 0 } },
      { 3, 0 },
      { G, SHOAL_ALLOCATE_HEAD } },
    { "a running minimum stands against a higher priority",
      { 2 },
      { { 0, 1, 2, 2, 2 }, { 9, 0, 2, 2, 0 } },
      { 2, 0 },
      { G, SHOAL_ALLOCATE_HEAD } },
    { "a higher priority goes first",
      { 4 },
      { { 0, 0, 3, 3, 0 }, { 5, 0, 3, 3, 0 } },
      { 0, 3 },
      { SHOAL_ALLOCATE_HEAD, G } },
    { "the head holds what there is; a later gang waits behind it",
      { 4 },
      { { 0, 0, 2, 2, 2 }, { 0, 0, 3, 3, 0 }, { 0, 0, 1, 1, 0 } },
      { 2, 0, 0 },
      { G, SHOAL_ALLOCATE_HEAD, SHOAL_ALLOCATE_BEHIND } },
    { "what is held for the head is lent to elastic surplus",
      { 4 },
      { { 0, 0, 1, 1, 1 }, { 0, 0, 4, 4, 0 }, { 0, 1, 1, 4, 1 } },
      { 1, 0, 3 },
      { G, SHOAL_ALLOCATE_HEAD, S } },
    { "one that asks for more than the mesh has holds nothing",
      { 4 },
      { { 0, 0, 9, 9, 0 }, { 0, 0, 4, 4, 0 } },
      { 0, 4 },
      { SHOAL_ALLOCATE_TOO_LARGE, G } },
    { "priority decides over the surplus too", { 6 }, { { 0, 1, 1, 6, 0 }, { 5, 1, 1, 4, 0 } }, { 2, 4 }, { S, G } },
    { "all slots taken by minima",
      { 2 },
      { { 0, 0, 2, 2, 2 }, { 0, 1, 1, 4, 0 }, { 0, 1, 1, 4, 0 } },
      { 2, 0, 0 },
      { G, SHOAL_ALLOCATE_HEAD, SHOAL_ALLOCATE_FULL } },
};

#define E 1 /* elastic */
#define V 2 /* a service */
static const struct row service_rows[] = {
    { "a service takes what an elastic job has above its minimum",
      { 6 },
      { { 0, E, 1, 6, 6 }, { 0, V, 1, 3, 0 } },
      { 3, 3 },
      { S, G } },
    { "... and all of that", { 6 }, { { 0, E, 2, 6, 6 }, { 0, V, 1, 9, 1 } }, { 2, 4 }, { S, SHOAL_ALLOCATE_FULL } },
    { "a higher priority of the job changes nothing",
      { 6 },
      { { 9, E, 1, 6, 6 }, { 0, V, 1, 4, 0 } },
      { 2, 4 },
      { S, G } },
    { "a minimum is never touched",
      { 4 },
      { { 0, E, 2, 4, 2 }, { 0, E, 2, 4, 2 }, { 0, V, 1, 3, 0 } },
      { 2, 2, 0 },
      { S, S, SHOAL_ALLOCATE_FULL } },
    { "the job has it back when the load is gone",
      { 6 },
      { { 0, E, 1, 6, 3 }, { 0, V, 1, 1, 1 } },
      { 5, 1 },
      { S, G } },
    { "two services share what there is",
      { 5 },
      { { 0, E, 1, 5, 5 }, { 0, V, 1, 9, 0 }, { 0, V, 1, 9, 0 } },
      { 1, 2, 2 },
      { S, SHOAL_ALLOCATE_FULL, SHOAL_ALLOCATE_FULL } },
    { "a service that asks for little leaves the rest to the other",
      { 6 },
      { { 0, E, 1, 6, 6 }, { 0, V, 1, 1, 0 }, { 0, V, 1, 9, 0 } },
      { 1, 1, 4 },
      { S, G, SHOAL_ALLOCATE_FULL } },
    { "from zero: the first replica comes before a gang that waits",
      { 4 },
      { { 0, E, 1, 4, 4 }, { 9, 0, 4, 4, 0 }, { 0, V, 1, 1, 0 } },
      { 3, 0, 1 },
      { S, SHOAL_ALLOCATE_HEAD, G } },
    { "replicas above the minimum make room for a gang that fits",
      { 6 },
      { { 0, V, 2, 6, 6 }, { 0, 0, 3, 3, 0 } },
      { 3, 3 },
      { SHOAL_ALLOCATE_FULL, G } },
    { "... and those of the minimum for none",
      { 6 },
      { { 0, V, 4, 6, 6 }, { 0, 0, 3, 3, 0 } },
      { 6, 0 },
      { G, SHOAL_ALLOCATE_HEAD } },
    { "a service makes room for another one's minimum",
      { 6 },
      { { 0, V, 1, 6, 6 }, { 0, V, 2, 2, 0 } },
      { 4, 2 },
      { SHOAL_ALLOCATE_FULL, G } },
    { "... as far as its own goes",
      { 4 },
      { { 0, V, 3, 4, 4 }, { 0, V, 3, 3, 0 } },
      { 3, 1 },
      { SHOAL_ALLOCATE_FULL, SHOAL_ALLOCATE_FULL } },
    { "less than its minimum is better than nothing",
      { 4 },
      { { 0, 0, 2, 2, 2 }, { 0, V, 3, 3, 0 } },
      { 2, 2 },
      { G, SHOAL_ALLOCATE_FULL } },
};

static void check_rows(const struct row *table, size_t count)
{
    for (size_t r = 0; r < count; r++) {
        struct scene s = { .view = { .host_count = 0 } };
        uint32_t at = 0;

        wire(&s);
        for (unsigned h = 0; h < 3 && table[r].hosts[h] > 0; h++)
            add_host(&s, (uint8_t)(h + 1), SHOAL_JOB_DEVICE_CPU, table[r].hosts[h]);
        for (unsigned j = 0; j < 5 && table[r].jobs[j].max > 0; j++) {
            add_job(&s, table[r].jobs[j].priority, j, table[r].jobs[j].elastic != 0, table[r].jobs[j].min,
                    table[r].jobs[j].max);
            s.jobs[j].service = table[r].jobs[j].elastic == V;
            for (uint32_t i = 0; i < table[r].jobs[j].held; i++)
                s.slots[at++] = (int32_t)j;
        }
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        for (uint32_t j = 0; j < s.view.job_count; j++) {
            char text[300] = "";

            shoal_allocate_explain(&s.view, &s.out, j, text, sizeof(text));
            if (s.grants[j].count != table[r].want[j] || s.grants[j].why != table[r].why[j] || text[0] == '\0')
                fail_msg("%s: job %u: want %u (why %d) got %u (why %d: %s)", table[r].name, j, table[r].want[j],
                         (int)table[r].why[j], s.grants[j].count, (int)s.grants[j].why, text);
        }
    }
}

static const struct {
    const char *name;
    uint32_t serves[3]; /* of three hosts with two slots each */
    const char *framework;
    uint32_t want; /* slots of an elastic job of at most 6; none of them where the framework is not */
    const char *why;
    bool service;
} framework_rows[] = {
    { "hosts that do not tell take all", { 0, 0, 0 }, "edtTensorflow", 6, "given 6 of 6 slots", false },
    { "TensorFlow goes where it is", { 1, 2, 3 }, "edtTensorflow", 4, "slots of hosts with TensorFlow", false },
    { "torch goes where it is", { 2, 2, 1 }, "edtPyTorch", 2, "slots of hosts with torch", false },
    { "where all hosts have it, it is not talked of", { 3, 3, 1 }, "PyTorch", 6, "given 6 of 6 slots", false },
    { "what needs neither goes anywhere", { 1, 2, 1 }, "", 6, "given 6 of 6 slots", false },
    { "a service goes anywhere", { 2, 2, 2 }, "PyTorch", 6, "given 6 of 6 slots", true },
    { "nobody has it",
      { 1, 1, 1 },
      "tensorflow",
      0,
      "needs 1 slot of hosts with TensorFlow, but the whole mesh has 0: install it in the Python of a host",
      false },
};

static void test_a_job_goes_where_its_framework_is(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof(framework_rows) / sizeof(framework_rows[0]); r++) {
        struct scene s = { .view = { .host_count = 0 } };
        char text[300];

        wire(&s);
        for (unsigned h = 0; h < 3; h++) {
            add_host(&s, (uint8_t)(h + 1), SHOAL_JOB_DEVICE_CPU, 2);
            s.hosts[h].serves = framework_rows[r].serves[h];
        }
        add_job(&s, 0, 0, true, 1, 6);
        s.jobs[0].needs = shoal_framework_needs(framework_rows[r].framework, framework_rows[r].service);
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        shoal_allocate_explain(&s.view, &s.out, 0, text, sizeof(text));
        if (s.grants[0].count != framework_rows[r].want || strstr(text, framework_rows[r].why) == NULL)
            fail_msg("%s: %u slots, \"%s\"", framework_rows[r].name, s.grants[0].count, text);
        for (uint32_t i = 0; i < s.view.slot_count; i++)
            if (s.after[i] == 0 && !shoal_host_serves(s.hosts[i / 2].serves, s.jobs[0].needs))
                fail_msg("%s: slot %u of a host without it", framework_rows[r].name, i);
    }
}

/* What a job that finds nothing is told: what is known of the cause, and what helps. */
static const struct {
    const char *name;
    uint32_t hosts[2]; /* slots of each */
    uint32_t slotless; /* hosts beside them */
    bool drained;
    uint8_t device;
    uint32_t min;
    const char *why;
} nothing_rows[] = {
    { "no Python has a framework", { 0 }, 2, false, SHOAL_JOB_DEVICE_AUTO, 1, "no host of the mesh has a slot: no host's Python has torch or TensorFlow" },
    { "what to do then", { 0 }, 1, false, SHOAL_JOB_DEVICE_AUTO, 2, "`shoal doctor` on a host" },
    { "no host at all", { 0 }, 0, false, SHOAL_JOB_DEVICE_AUTO, 1, "no host of the mesh has a slot: add hosts" },
    { "all are drained", { 2, 1 }, 1, true, SHOAL_JOB_DEVICE_AUTO, 1, "no host of the mesh takes new work" },
    { "no card", { 2 }, 0, false, SHOAL_JOB_DEVICE_GPU, 1, "needs 1 GPU slot, but the whole mesh has 0: add hosts that have some" },
    { "the least is too much", { 2 }, 1, false, SHOAL_JOB_DEVICE_AUTO, 3, "needs 3 slots, but the whole mesh has 2: ask for fewer workers or add hosts" },
};

static void test_a_job_that_finds_nothing_is_told_why(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof(nothing_rows) / sizeof(nothing_rows[0]); r++) {
        struct scene s = { .view = { .slotless = nothing_rows[r].slotless } };
        char text[SHOAL_JOB_REASON_BYTES];

        wire(&s);
        for (unsigned h = 0; h < 2 && nothing_rows[r].hosts[h] > 0; h++) {
            add_host(&s, (uint8_t)(h + 1), SHOAL_JOB_DEVICE_CPU, nothing_rows[r].hosts[h]);
            s.hosts[h].usable = !nothing_rows[r].drained;
        }
        add_job(&s, 0, 0, false, nothing_rows[r].min, nothing_rows[r].min);
        s.jobs[0].device = nothing_rows[r].device;
        s.jobs[0].needs = SHOAL_SERVES_TORCH;
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        shoal_allocate_explain(&s.view, &s.out, 0, text, sizeof(text));
        if (strstr(text, nothing_rows[r].why) == NULL ||
            (nothing_rows[r].min == 1 && strstr(text, "fewer workers") != NULL) || strlen(text) + 1 == sizeof(text))
            fail_msg("%s: \"%s\"", nothing_rows[r].name, text);
    }
}

static void test_table(void **state)
{
    (void)state;
    check_rows(rows, sizeof(rows) / sizeof(rows[0]));
}

static void test_services(void **state)
{
    (void)state;
    check_rows(service_rows, sizeof(service_rows) / sizeof(service_rows[0]));
}

/* ---- Cards that services share ---- */

static void add_share(struct scene *s, uint8_t name, uint8_t part, uint32_t room, uint64_t pack, uint32_t slots)
{
    struct shoal_allocate_host *host = &s->hosts[s->view.host_count];

    add_host(s, name, SHOAL_ALLOCATE_SHARE, slots);
    host->part = part;
    host->room_mib = room;
    host->pack = pack;
}

static void add_sharer(struct scene *s, uint32_t mib, uint64_t pack)
{
    struct shoal_allocate_job *job = &s->jobs[s->view.job_count];

    add_job(s, 0, s->view.job_count, true, 1, 1);
    job->service = true;
    job->device = SHOAL_ALLOCATE_SHARE;
    job->gpu_mib = mib;
    job->pack = pack;
}

static void test_a_service_fills_the_card_of_its_pack_before_another(void **state)
{
    static struct scene s;
    char why[SHOAL_JOB_REASON_BYTES];

    (void)state;
    memset(&s, 0, sizeof(s));
    wire(&s);
    add_host(&s, 9, SHOAL_JOB_DEVICE_GPU, 2); /* slots 0, 1: whole cards */
    s.hosts[0].room_mib = 100;
    add_share(&s, 9, 1, 30, 7, 2); /* 2, 3 */
    add_share(&s, 9, 2, 60, 8, 2); /* 4, 5 */
    add_sharer(&s, 30, 7);
    add_sharer(&s, 31, 7);  /* too large for what is left of its pack's card */
    add_sharer(&s, 60, 8);
    add_sharer(&s, 101, 7); /* too large for any */
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
    assert_int_equal(s.after[2], 0);
    assert_true(s.after[0] == 1 || s.after[1] == 1);
    assert_int_equal(s.after[4], 2);
    assert_int_equal(s.grants[3].count, 0);
    shoal_allocate_explain(&s.view, &s.out, 3, why, sizeof(why));
    assert_non_null(strstr(why, "needs 101 MiB of a GPU, and the largest of the mesh has 100 MiB"));
    add_job(&s, 0, 9, true, 1, 1);
    s.jobs[4].device = SHOAL_JOB_DEVICE_GPU; /* a job takes what is whole */
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
    assert_int_equal(s.grants[4].count, 1);
    assert_true(s.after[0] + s.after[1] == 1 + 4);
}

/* More sizes than are told apart: the smallest have what they need, the others wait and say so. */
static void test_parts_beyond_the_bound_wait(void **state)
{
    static struct scene s;
    uint32_t given = 0;

    (void)state;
    memset(&s, 0, sizeof(s));
    wire(&s);
    add_host(&s, 9, SHOAL_JOB_DEVICE_GPU, SLOTS < 20 ? SLOTS : 20);
    s.hosts[0].room_mib = 1000;
    for (uint32_t i = 0; i < (JOBS < 20 ? JOBS : 20); i++)
        add_sharer(&s, 900 - 10 * i, 7);
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
    for (uint32_t i = 0; i < s.view.job_count; i++)
        given += s.grants[i].count;
    assert_int_equal(given, s.view.job_count < SHOAL_ALLOCATE_PARTS_MAX ? s.view.job_count : SHOAL_ALLOCATE_PARTS_MAX);
}

/* ---- Hosts that will not do for one job ---- */

static const struct shoal_node_id names[HOSTS] = { { { 1 } }, { { 8 } }, { { 15 } }, { { 22 } }, { { 29 } } }; /* as random_scene() has them */

static void test_a_host_that_will_not_do_goes_to_others(void **state)
{
    static struct scene s;
    char text[256];

    (void)state;
    memset(&s, 0, sizeof(s));
    wire(&s);
    for (uint32_t h = 0; h < 3; h++)
        add_host(&s, names[h].bytes[0], SHOAL_JOB_DEVICE_CPU, 2);
    add_job(&s, 1, 1, true, 1, 6);
    add_job(&s, 0, 2, true, 1, 6);
    s.jobs[0].unfit = &names[1];
    s.jobs[0].unfit_count = 1;
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
    assert_int_equal(s.grants[0].count, 4);
    assert_int_equal(s.grants[1].count, 2);
    assert_int_equal(s.after[2], 1);
    assert_int_equal(s.after[3], 1);
    s.jobs[0].min = 5;
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
    assert_int_equal(s.grants[0].why, SHOAL_ALLOCATE_TOO_LARGE);
    shoal_allocate_explain(&s.view, &s.out, 0, text, sizeof(text));
    assert_non_null(strstr(text, "needs 5 slots, but the hosts that can run it have 4"));
}

/* ---- What stays on a host that is drained ---- */

static void test_what_stays_on_a_draining_host_takes_nothing_elsewhere(void **state)
{
    static struct scene s;

    (void)state;
    memset(&s, 0, sizeof(s));
    wire(&s);
    for (uint32_t h = 0; h < 3; h++)
        add_host(&s, names[h].bytes[0], SHOAL_JOB_DEVICE_CPU, 4);
    s.hosts[0].usable = false;
    s.hosts[0].draining = true;
    add_job(&s, 0, 1, true, 2, 2); /* an array: a task there, and one elsewhere */
    s.jobs[0].stays = true;
    add_job(&s, 0, 2, false, 2, 2); /* scripts that are all there */
    s.jobs[1].stays = true;
    add_job(&s, 0, 3, true, 1, 9); /* an elastic job with an engine there, which is to move */
    add_job(&s, 0, 4, false, 1, 1); /* a script that waits */
    s.jobs[3].stays = true;
    s.slots[0] = 0;
    s.slots[1] = s.slots[2] = 1;
    s.slots[3] = 2;
    s.slots[4] = 0;
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
    assert_int_equal(s.grants[0].count, 1);
    assert_int_equal(s.grants[1].count, 0);
    assert_int_equal(s.grants[1].why, SHOAL_ALLOCATE_GIVEN);
    assert_int_equal(s.grants[2].count, 6);
    assert_int_equal(s.grants[3].count, 1);
    assert_int_equal(s.after[4], 0);
}

/* ---- Replicas on many hosts ---- */

struct spread_row {
    const char *name;
    uint32_t hosts[4];   /* slots of each */
    uint32_t serves[4];
    uint32_t held[4];    /* by the service */
    uint32_t taken[4];   /* by others */
    uint32_t wanted;
    uint32_t want[4];    /* slots on each; of hosts that are alike the most first */
};

static const struct spread_row spread_rows[] = {
    { "two replicas go to two hosts", { 4, 4, 4, 4 }, { 0 }, { 0 }, { 0 }, 2, { 1, 1, 0, 0 } },
    { "four go to four", { 4, 4, 4, 4 }, { 0 }, { 0 }, { 0 }, 4, { 1, 1, 1, 1 } },
    { "a death takes two of six at most", { 4, 4, 4, 4 }, { 0 }, { 0 }, { 0 }, 6, { 2, 2, 1, 1 } },
    { "more slots draw no more of them", { 2, 2, 2, 8 }, { 0 }, { 0 }, { 0 }, 4, { 1, 1, 1, 1 } },
    { "the second goes where the first is not", { 4, 2, 0, 0 }, { 0 }, { 1 }, { 0, 1 }, 2, { 1, 1, 0, 0 } },
    { "two where no other host has room", { 4, 2, 0, 0 }, { 0 }, { 0 }, { 0, 2 }, 2, { 2, 0, 0, 0 } },
    { "what is held stays", { 4, 4, 0, 0 }, { 0 }, { 2 }, { 0 }, 2, { 2, 0, 0, 0 } },
    { "where most are, one goes first", { 4, 4, 4, 0 }, { 0 }, { 3, 2, 1 }, { 0 }, 3, { 1, 1, 1, 0 } },
    { "hosts with other frameworks count as well", { 4, 4, 0, 0 }, { SHOAL_SERVES_TORCH, SHOAL_SERVES_ALL }, { 0 }, { 0 }, 2, { 1, 1, 0, 0 } },
};

static int falling(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;

    return *x < *y ? 1 : -(*x > *y);
}

static void test_replicas_are_spread(void **state)
{
    static struct scene s;

    (void)state;
    for (size_t r = 0; r < sizeof(spread_rows) / sizeof(spread_rows[0]); r++) {
        const struct spread_row *row = &spread_rows[r];
        uint32_t got[4] = { 0 };

        memset(&s, 0, sizeof(s));
        wire(&s);
        add_job(&s, 0, 1, true, 1, row->wanted);
        s.jobs[0].service = true;
        for (uint32_t h = 0; h < 4 && row->hosts[h] > 0; h++) {
            add_host(&s, (uint8_t)(h + 1), SHOAL_JOB_DEVICE_CPU, row->hosts[h]);
            s.hosts[h].serves = row->serves[h];
            for (uint32_t i = 0; i < row->held[h] + row->taken[h]; i++)
                s.slots[s.hosts[h].first_slot + i] = i < row->held[h] ? 0 : SHOAL_ALLOCATE_OTHER;
        }
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        for (uint32_t h = 0; h < s.view.host_count; h++)
            for (uint32_t i = 0; i < s.hosts[h].slot_count; i++)
                got[h] += s.after[s.hosts[h].first_slot + i] == 0;
        qsort(got, 4, sizeof(got[0]), falling);
        for (uint32_t h = 0; h < 4; h++)
            if (got[h] != row->want[h])
                fail_msg("%s: it has %u, %u, %u, %u", row->name, got[0], got[1], got[2], got[3]);
    }
}

/* ---- Random views ---- */

static void random_scene(struct scene *s, struct shoal_rand *rand, uint32_t hosts, uint32_t jobs, uint32_t slots_each,
                         bool services)
{
    memset(s, 0, sizeof(*s));
    wire(s);
    for (uint32_t h = 0; h < hosts; h++) {
        add_host(s, (uint8_t)(h * 7 + 1), shoal_rand_below(rand, 3) == 0 ? SHOAL_JOB_DEVICE_GPU : SHOAL_JOB_DEVICE_CPU,
                 (uint32_t)shoal_rand_below(rand, slots_each) + 1);
        s->hosts[h].class_hash = (uint32_t)shoal_rand_below(rand, 3);
        s->hosts[h].serves = (uint32_t)shoal_rand_below(rand, SHOAL_SERVES_ALL + 1);
        s->hosts[h].usable = shoal_rand_below(rand, 8) != 0;
        if (s->hosts[h].device == SHOAL_JOB_DEVICE_GPU)
            s->hosts[h].room_mib = (uint32_t)shoal_rand_below(rand, 8);
        if (s->hosts[h].device == SHOAL_JOB_DEVICE_GPU && shoal_rand_below(rand, 2) == 0) {
            s->hosts[h].device = SHOAL_ALLOCATE_SHARE;
            s->hosts[h].pack = 1 + shoal_rand_below(rand, 2);
        }
    }
    for (uint32_t j = 0; j < jobs; j++) {
        uint32_t min = (uint32_t)shoal_rand_below(rand, 4) + 1;

        add_job(s, (uint32_t)shoal_rand_below(rand, 2), shoal_rand_below(rand, 3), shoal_rand_below(rand, 2) == 0, min,
                min + (uint32_t)shoal_rand_below(rand, 4));
        s->jobs[j].service = services && s->jobs[j].elastic && shoal_rand_below(rand, 2) == 0;
        if (!s->jobs[j].elastic)
            s->jobs[j].max = s->jobs[j].min;
        if (shoal_rand_below(rand, 8) == 0)
            s->jobs[j].min = s->jobs[j].max = 0;
        s->jobs[j].device = (uint8_t)shoal_rand_below(rand, 3);
        s->jobs[j].class_hash = (uint32_t)shoal_rand_below(rand, 3);
        s->jobs[j].needs = (uint32_t)shoal_rand_below(rand, 3);
        if (shoal_rand_below(rand, 3) == 0) {
            s->jobs[j].device = SHOAL_ALLOCATE_SHARE;
            s->jobs[j].gpu_mib = 1 + (uint32_t)shoal_rand_below(rand, 7);
            s->jobs[j].pack = 1 + shoal_rand_below(rand, 2);
        }
    }
    for (uint32_t i = 0; i < s->view.slot_count; i++)
        if (shoal_rand_below(rand, 2) == 0)
            s->slots[i] = (int32_t)shoal_rand_below(rand, jobs + 1) - 1;
        else if (shoal_rand_below(rand, 10) == 0)
            s->slots[i] = SHOAL_ALLOCATE_OTHER;
    for (uint32_t j = 0; j < jobs; j++) {
        if (shoal_rand_below(rand, 3) != 0)
            continue;
        s->jobs[j].unfit = &names[shoal_rand_below(rand, HOSTS - 1)];
        s->jobs[j].unfit_count = 1 + (uint32_t)shoal_rand_below(rand, 2);
    }
}

static uint32_t host_of(const struct scene *s, uint32_t slot)
{
    for (uint32_t h = 0; h < s->view.host_count; h++)
        if (slot >= s->hosts[h].first_slot && slot < s->hosts[h].first_slot + s->hosts[h].slot_count)
            return h;
    fail();
    return 0;
}

static bool takes_device(const struct shoal_allocate_job *j, const struct shoal_allocate_host *host)
{
    bool shared = host->device == SHOAL_ALLOCATE_SHARE;

    if (j->device == SHOAL_ALLOCATE_SHARE)
        return host->room_mib >= j->gpu_mib && (shared ? host->pack == j->pack : host->device == SHOAL_JOB_DEVICE_GPU);
    return !shared && (j->device == SHOAL_JOB_DEVICE_AUTO || j->device == host->device);
}

static bool is_unfit(const struct shoal_allocate_job *j, const struct shoal_allocate_host *host)
{
    for (uint32_t i = 0; i < j->unfit_count; i++)
        if (shoal_node_id_equal(j->unfit[i], host->id))
            return true;
    return false;
}

static bool fits(const struct scene *s, uint32_t job, uint32_t slot)
{
    const struct shoal_allocate_host *host = &s->hosts[host_of(s, slot)];
    const struct shoal_allocate_job *j = &s->jobs[job];

    return host->usable && s->slots[slot] != SHOAL_ALLOCATE_OTHER &&
           takes_device(j, host) &&
           (j->class_hash == 0 || host->class_hash == 0 || j->class_hash == host->class_hash) &&
           (host->serves == 0 || (host->serves & j->needs) == j->needs) && !is_unfit(j, host);
}

static uint32_t held_by(const struct scene *s, uint32_t job)
{
    uint32_t held = 0;

    for (uint32_t i = 0; i < s->view.slot_count; i++)
        held += s->slots[i] == (int32_t)job && fits(s, job, i);
    return held;
}

/* Kuhn's matching of single units to single slots. A gang that is in keeps the slots it was given (slots of a pool are
 * alike): nothing later moves it. */
static bool try_unit(const struct scene *s, const uint8_t *unit_job, int32_t *slot_unit, uint32_t unit, uint32_t *seen,
                     const bool *pinned)
{
    for (uint32_t i = 0; i < s->view.slot_count; i++) {
        if (pinned[i] || (*seen >> i & 1) || !fits(s, unit_job[unit], i))
            continue;
        *seen |= 1u << i;
        if (slot_unit[i] < 0 || try_unit(s, unit_job, slot_unit, (uint32_t)slot_unit[i], seen, pinned)) {
            slot_unit[i] = (int32_t)unit;
            return true;
        }
    }
    return false;
}

static bool feasible(const struct scene *s, const uint32_t *counts, const bool *gangs_in)
{
    uint8_t unit_job[128];
    int32_t slot_unit[SLOTS];
    bool pinned[SLOTS] = { false };
    uint32_t units = 0;

    for (uint32_t j = 0; j < s->view.job_count; j++) {
        bool gang = !s->jobs[j].elastic && gangs_in[j];

        for (uint32_t i = 0; gang && i < s->view.slot_count; i++)
            pinned[i] = pinned[i] || (s->after[i] == (int32_t)j && fits(s, j, i));
        for (uint32_t n = 0; !gang && n < counts[j]; n++)
            unit_job[units++] = (uint8_t)j;
    }
    for (uint32_t i = 0; i < s->view.slot_count; i++)
        slot_unit[i] = -1;
    for (uint32_t u = 0; u < units; u++) {
        uint32_t seen = 0;

        if (!try_unit(s, unit_job, slot_unit, u, &seen, pinned))
            return false;
    }
    return true;
}

static int before(const struct scene *s, uint32_t a, uint32_t b)
{
    if (s->jobs[a].priority != s->jobs[b].priority)
        return s->jobs[a].priority > s->jobs[b].priority;
    if (s->jobs[a].ticket_ms != s->jobs[b].ticket_ms)
        return s->jobs[a].ticket_ms < s->jobs[b].ticket_ms;
    return memcmp(s->jobs[a].id.bytes, s->jobs[b].id.bytes, 10) < 0;
}

/* Rules 1 and 2 by matching of units: which jobs have their minimum. */
static void admitted_by_hand(const struct scene *s, bool *in)
{
    uint32_t order[JOBS], counts[JOBS] = { 0 }, n = s->view.job_count, head = UINT32_MAX, held = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;

        for (; at > 0 && before(s, i, order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = i;
        in[i] = s->jobs[i].max > 0 && held_by(s, i) >= s->jobs[i].min;
        if (in[i])
            counts[i] = s->jobs[i].elastic ? s->jobs[i].min : held_by(s, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = order[i], mesh = 0, got = 0;

        for (uint32_t k = 0; k < s->view.slot_count; k++)
            mesh += fits(s, j, k);
        if (in[j] || s->jobs[j].max == 0 || mesh < s->jobs[j].min)
            continue;
        if (head != UINT32_MAX)
            counts[head] = held;
        while (got < s->jobs[j].min && (counts[j] = got + 1, feasible(s, counts, in)))
            got++;
        in[j] = got == s->jobs[j].min;
        counts[j] = in[j] ? got : 0;
        if (!in[j] && head == UINT32_MAX) {
            head = j;
            held = got;
            counts[j] = got;
        }
    }
}

/* Every vector of counts: is there one that is better for the lowest, priority by priority? */
static bool better(const struct scene *s, const uint32_t *a, const uint32_t *b)
{
    for (uint32_t priority = 2; priority > 0; priority--) {
        for (uint32_t level = 1; level < 12; level++) {
            uint32_t na = 0, nb = 0;

            for (uint32_t j = 0; j < s->view.job_count; j++) {
                if (s->jobs[j].priority != priority - 1)
                    continue;
                na += a[j] >= level;
                nb += b[j] >= level;
            }
            if (na != nb)
                return na > nb;
        }
    }
    return false;
}

static bool any_better(const struct scene *s, const bool *in, uint32_t *counts, uint32_t j, const uint32_t *got)
{
    if (j == s->view.job_count)
        return better(s, counts, got) && feasible(s, counts, in);
    if (!in[j] || !s->jobs[j].elastic) {
        counts[j] = got[j];
        return any_better(s, in, counts, j + 1, got);
    }
    for (counts[j] = s->jobs[j].min; counts[j] <= s->jobs[j].max; counts[j]++)
        if (any_better(s, in, counts, j + 1, got))
            return true;
    return false;
}

static void check_places(const struct scene *s, uint64_t seed)
{
    uint32_t counts[JOBS] = { 0 };

    for (uint32_t i = 0; i < s->view.slot_count; i++) {
        if (s->slots[i] == SHOAL_ALLOCATE_OTHER || !s->hosts[host_of(s, i)].usable) {
            if (s->after[i] != s->slots[i])
                fail_msg("seed %llu: slot %u is not ours to give", (unsigned long long)seed, i);
            continue;
        }
        if (s->after[i] < 0)
            continue;
        if (!fits(s, (uint32_t)s->after[i], i))
            fail_msg("seed %llu: slot %u does not fit job %d", (unsigned long long)seed, i, s->after[i]);
        counts[s->after[i]]++;
    }
    for (uint32_t j = 0; j < s->view.job_count; j++)
        if (counts[j] != s->grants[j].count)
            fail_msg("seed %llu: job %u has count %u but %u places", (unsigned long long)seed, j, s->grants[j].count,
                     counts[j]);
}

static void test_brute_force(void **state)
{
    static struct scene s;

    (void)state;
    for (uint64_t seed = 1; seed <= 6000; seed++) {
        struct shoal_rand rand;
        bool in[JOBS];
        uint32_t counts[JOBS], got[JOBS];

        shoal_rand_init(&rand, seed);
        random_scene(&s, &rand, (uint32_t)shoal_rand_below(&rand, 4) + 1, (uint32_t)shoal_rand_below(&rand, 4) + 1, 4,
                     false);
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        check_places(&s, seed);
        admitted_by_hand(&s, in);
        for (uint32_t j = 0; j < s.view.job_count; j++) {
            got[j] = s.grants[j].count;
            if (in[j] != (got[j] > 0))
                fail_msg("seed %llu: job %u: by hand %s, got %u", (unsigned long long)seed, j, in[j] ? "in" : "out",
                         got[j]);
            if (in[j] && s.jobs[j].elastic && (got[j] < s.jobs[j].min || got[j] > s.jobs[j].max))
                fail_msg("seed %llu: job %u: %u is out of bounds", (unsigned long long)seed, j, got[j]);
        }
        if (!feasible(&s, got, in))
            fail_msg("seed %llu: the counts do not fit", (unsigned long long)seed);
        if (any_better(&s, in, counts, 0, got))
            fail_msg("seed %llu: there is a fairer vector", (unsigned long long)seed);
    }
}

/* A replica that is new is not beside others while a host like that one, with fewer of them, has a slot that nobody takes. */
static void check_spread(const struct scene *s, uint32_t j, uint64_t seed)
{
    uint32_t on[HOSTS] = { 0 };

    for (uint32_t i = 0; i < s->view.slot_count; i++)
        on[host_of(s, i)] += s->after[i] == (int32_t)j;
    for (uint32_t i = 0; i < s->view.slot_count; i++) {
        const uint32_t h = host_of(s, i);

        if (s->after[i] != (int32_t)j || s->slots[i] == (int32_t)j)
            continue;
        for (uint32_t k = 0; k < s->view.slot_count; k++) {
            const uint32_t q = host_of(s, k);

            if (s->after[k] == SHOAL_ALLOCATE_FREE && s->slots[k] == SHOAL_ALLOCATE_FREE && fits(s, j, k) &&
                s->hosts[q].device == s->hosts[h].device && on[q] + 1 < on[h])
                fail_msg("seed %llu: service %u has %u on host %u and %u on host %u", (unsigned long long)seed, j, on[h], h,
                         on[q], q);
        }
    }
}

/* Slots that a service may want beyond its own, elastic jobs have only as far as nothing can be moved to give it to the
 * service; and whoever trains keeps its minimum. */
static void test_services_first(void **state)
{
    static struct scene s;

    (void)state;
    for (uint64_t seed = 1; seed <= 6000; seed++) {
        struct shoal_rand rand;
        uint32_t counts[JOBS];
        bool in[JOBS];

        shoal_rand_init(&rand, seed * 7 + 3);
        random_scene(&s, &rand, (uint32_t)shoal_rand_below(&rand, 4) + 1, (uint32_t)shoal_rand_below(&rand, 4) + 1, 4,
                     true);
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        check_places(&s, seed);
        for (uint32_t j = 0; j < s.view.job_count; j++) {
            counts[j] = s.grants[j].count;
            in[j] = counts[j] > 0;
            if (s.jobs[j].service && s.jobs[j].device != SHOAL_ALLOCATE_SHARE)
                check_spread(&s, j, seed);
            if (!s.jobs[j].service && s.jobs[j].max > 0 && held_by(&s, j) >= s.jobs[j].min && counts[j] < s.jobs[j].min)
                fail_msg("seed %llu: job %u lost its minimum", (unsigned long long)seed, j);
        }
        for (uint32_t j = 0; j < s.view.job_count; j++) {
            for (uint32_t k = 0; s.jobs[j].service && counts[j] < s.jobs[j].max && k < s.view.job_count; k++) {
                if (s.jobs[k].service || !s.jobs[k].elastic || counts[k] <= s.jobs[k].min)
                    continue;
                counts[k]--;
                counts[j]++;
                if (feasible(&s, counts, in))
                    fail_msg("seed %llu: job %u has what service %u wants", (unsigned long long)seed, k, j);
                counts[k]++;
                counts[j]--;
            }
        }
    }
}

static void test_fixpoint(void **state)
{
    static struct scene s, t;

    (void)state;
    for (uint64_t seed = 1; seed <= 20000; seed++) {
        struct shoal_rand rand;

        shoal_rand_init(&rand, seed * 3 + 1);
        random_scene(&s, &rand, 5, 8, 4, seed % 2 == 0);
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        t = s;
        wire(&t);
        memcpy(t.slots, s.after, sizeof(t.slots));
        assert_int_equal(shoal_allocate(work, &t.view, &t.out), SHOAL_OK);
        if (memcmp(t.after, s.after, s.view.slot_count * sizeof(s.after[0])) != 0)
            fail_msg("seed %llu: the second time differs", (unsigned long long)seed);
    }
}

/* A1. Hosts and jobs in another order, slots with their hosts. */
static void test_order(void **state)
{
    static struct scene s, t;

    (void)state;
    for (uint64_t seed = 1; seed <= 5000; seed++) {
        struct shoal_rand rand;
        uint32_t job_at[JOBS], host_at[HOSTS];

        shoal_rand_init(&rand, seed * 5 + 2);
        random_scene(&s, &rand, 5, JOBS, 4, seed % 2 == 0);
        memset(&t, 0, sizeof(t));
        wire(&t);
        for (uint32_t i = 0; i < JOBS; i++)
            job_at[i] = i;
        for (uint32_t i = JOBS; i > 1; i--) {
            uint32_t k = (uint32_t)shoal_rand_below(&rand, i), kept = job_at[k];

            job_at[k] = job_at[i - 1];
            job_at[i - 1] = kept;
        }
        for (uint32_t i = 0; i < HOSTS; i++)
            host_at[i] = (i + (uint32_t)seed) % HOSTS;
        t.view = (struct shoal_allocate_input){ .job_count = JOBS, .host_count = HOSTS };
        wire(&t);
        for (uint32_t i = 0; i < JOBS; i++)
            t.jobs[job_at[i]] = s.jobs[i];
        for (uint32_t i = 0; i < HOSTS; i++) {
            const struct shoal_allocate_host *from = &s.hosts[host_at[i]];

            t.hosts[i] = *from;
            t.hosts[i].first_slot = t.view.slot_count;
            for (uint32_t k = 0; k < from->slot_count; k++) {
                int32_t holder = s.slots[from->first_slot + k];

                t.slots[t.view.slot_count++] = holder < 0 ? holder : (int32_t)job_at[holder];
            }
        }
        assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
        assert_int_equal(shoal_allocate(work, &t.view, &t.out), SHOAL_OK);
        for (uint32_t i = 0; i < HOSTS; i++) {
            for (uint32_t k = 0; k < t.hosts[i].slot_count; k++) {
                int32_t a = s.after[s.hosts[host_at[i]].first_slot + k], b = t.after[t.hosts[i].first_slot + k];

                if ((a < 0 ? a : (int32_t)job_at[a]) != b)
                    fail_msg("seed %llu: another order, another answer", (unsigned long long)seed);
            }
        }
    }
}

static void test_refusals(void **state)
{
    struct scene s = { .view = { .host_count = 0 } };

    (void)state;
    wire(&s);
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK); /* nothing at all is a view too */
    add_host(&s, 1, SHOAL_JOB_DEVICE_CPU, 2);
    add_job(&s, 0, 0, false, 1, 1);
    s.slots[0] = 1; /* no such job */
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_ERR_INVALID);
    s.slots[0] = SHOAL_ALLOCATE_FREE;
    s.hosts[0].slot_count = 3;
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_ERR_INVALID);
    s.hosts[0].slot_count = 2;
    s.jobs[0].min = 2; /* above its maximum */
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_ERR_INVALID);
    s.jobs[0].min = 1;
    s.jobs[1] = s.jobs[0];
    s.view.job_count = 2;
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_ERR_INVALID);
    s.view.job_count = 1;
    s.hosts[1] = s.hosts[0];
    s.hosts[1].first_slot = 2;
    s.hosts[1].slot_count = 0;
    s.view.host_count = 2;
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_ERR_INVALID);
    s.view.host_count = 1;
    assert_int_equal(shoal_allocate(work, &s.view, &s.out), SHOAL_OK);
}

/* Numbers, which never pass or fail: 10,000 slots and 1,000 jobs. */
static void test_large(void **state)
{
    enum { H = 1250, J = 1000, N = H * 8 };
    struct shoal_allocate_host *hosts = calloc(H, sizeof(*hosts));
    struct shoal_allocate_job *jobs = calloc(J, sizeof(*jobs));
    struct shoal_allocate_grant *grants = calloc(J, sizeof(*grants));
    int32_t *slots = calloc(N, sizeof(*slots)), *after = calloc(N, sizeof(*after));
    struct shoal_allocate_input view = { hosts, H, slots, N, jobs, J, 0 };
    struct shoal_allocate_out out = { .grants = grants, .slots = after };
    struct shoal_allocate *large;
    struct timespec a, b;

    (void)state;
    assert_int_equal(shoal_allocate_create(&large, H, N, J), SHOAL_OK);
    for (uint32_t i = 0; i < H; i++) {
        hosts[i] = (struct shoal_allocate_host){
            .device = SHOAL_JOB_DEVICE_GPU, .usable = true, .first_slot = i * 8, .slot_count = 8
        };
        memcpy(hosts[i].id.bytes, &i, sizeof(i));
    }
    for (uint32_t i = 0; i < J; i++) {
        jobs[i] = (struct shoal_allocate_job){ .ticket_ms = i, .min = 1 + i % 4, .max = 16, .elastic = i % 4 != 0 };
        memcpy(jobs[i].id.bytes, &i, sizeof(i));
        if (!jobs[i].elastic)
            jobs[i].max = jobs[i].min;
    }
    for (unsigned pass = 0; pass < 3; pass++) {
        if (pass < 2)
            for (uint32_t i = 0; i < N; i++)
                slots[i] = pass == 0    ? SHOAL_ALLOCATE_FREE
                           : i % 3 == 0 ? (int32_t)(i * 7919u % J)
                                        : SHOAL_ALLOCATE_FREE;
        else
            memcpy(slots, after, N * sizeof(*slots));
        clock_gettime(CLOCK_MONOTONIC, &a);
        assert_int_equal(shoal_allocate(large, &view, &out), SHOAL_OK);
        clock_gettime(CLOCK_MONOTONIC, &b);
        print_message("allocate: 10,000 slots, 1,000 jobs, %s: %.2f ms\n",
                      pass == 0   ? "empty mesh"
                      : pass == 1 ? "scattered"
                                  : "settled",
                      (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
    }
    shoal_allocate_destroy(large);
    free(hosts);
    free(jobs);
    free(grants);
    free(slots);
    free(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_service_fills_the_card_of_its_pack_before_another),
        cmocka_unit_test(test_parts_beyond_the_bound_wait),
        cmocka_unit_test(test_a_host_that_will_not_do_goes_to_others),
        cmocka_unit_test(test_what_stays_on_a_draining_host_takes_nothing_elsewhere),
        cmocka_unit_test(test_replicas_are_spread),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_a_job_that_finds_nothing_is_told_why),       cmocka_unit_test(test_a_job_goes_where_its_framework_is),
        cmocka_unit_test(test_services),    cmocka_unit_test(test_services_first),
        cmocka_unit_test(test_brute_force), cmocka_unit_test(test_fixpoint), cmocka_unit_test(test_order),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_large),
    };
    int failed;

    if (shoal_allocate_create(&work, HOSTS, SLOTS, JOBS) != SHOAL_OK)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    shoal_allocate_destroy(work);
    return failed;
}
