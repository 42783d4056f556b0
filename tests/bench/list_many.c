/* Lists of many jobs, as one node reads them: list_many JOBS. It fills an index directly and then asks as a list does, page
 * by page. Printed: name value unit, a line each.
 *
 * What is left out: the other nodes (they do the same at the same time), merging, JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "shoal/job_facts.h"
#include "node/backend/list.h"

#include "tests/unit/no_env.h"

#include "shoal/banned.h"

struct bench {
    struct agent agent;
    uv_check_t check;
    uv_prepare_t prepare;
    uint64_t turn_ns, longest_ns;
    struct list_query query;
    struct list_answer last;
    uint8_t *bytes;
    bool over;
    uint64_t rows;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

static void on_check(uv_check_t *check)
{
    struct bench *b = check->data;

    b->turn_ns = now_ns();
}

static void on_prepare(uv_prepare_t *prepare)
{
    struct bench *b = prepare->data;
    uint64_t took = b->turn_ns == 0 ? 0 : now_ns() - b->turn_ns;

    b->longest_ns = took > b->longest_ns ? took : b->longest_ns;
}

static uint64_t resident_kib(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file != NULL && fscanf(file, "%*u %lu", &pages) != 1)
        pages = 0;
    if (file != NULL)
        (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
}

static void put(struct bench *b, uint64_t i)
{
    static uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX];
    struct shoal_job_facts facts = { .state = i % 100 == 0 ? SHOAL_JOB_PENDING_CRD_SCHEDULER : SHOAL_JOB_FINISHED,
                                     .create_ms = 1900000000000ull + i,
                                     .workers_min = 1,
                                     .workers_max = 1 + (uint32_t)(i % 64) };
    struct shoal_sched_version version = { 1, 2, i };
    struct shoal_buf value = { 0 };
    size_t len = 0;

    for (unsigned k = 0; k < 5; k++)
        facts.id.bytes[k] = (uint8_t)(facts.create_ms >> (36 - 8 * k));
    facts.id.bytes[5] = (uint8_t)((facts.create_ms & 15) << 4);
    (void)snprintf(facts.creator, sizeof(facts.creator), "user%u", (unsigned)(i % 7));
    (void)snprintf(facts.framework, sizeof(facts.framework), "PyTorch");
    (void)snprintf(facts.app_name, sizeof(facts.app_name), "job number %" PRIu64, i * 7919 % 1000003);
    (void)snprintf(facts.reason, sizeof(facts.reason), "the script ended with 0");
    SHOAL_ASSERT(shoal_job_facts_encode(&facts, bytes, sizeof(bytes), &len) == SHOAL_OK);
    list_value_encode(false, version, shoal_view_of(bytes, len), &value);
    shoal_index_put(b->agent.index, facts.id, facts.state != SHOAL_JOB_FINISHED, shoal_buf_view(&value));
    shoal_buf_deinit(&value);
}

static void on_answer(void *arg, enum shoal_err err, const char *text, struct shoal_view answer)
{
    struct bench *b = arg;

    (void)text;
    SHOAL_ASSERT(err == SHOAL_OK);
    free(b->last.rows);
    free(b->bytes);
    b->bytes = malloc(answer.len);
    SHOAL_ASSERT(b->bytes != NULL);
    memcpy(b->bytes, answer.bytes, answer.len);
    SHOAL_ASSERT(list_answer_decode(shoal_view_of(b->bytes, answer.len), &b->last) == SHOAL_OK);
    b->rows += b->last.count;
    b->over = true;
}

/* Seconds until the answer. */
static double page(struct bench *b)
{
    uint64_t start = now_ns();

    b->over = false;
    list_serve(&b->agent, &b->query, on_answer, b);
    while (!b->over)
        (void)uv_run(&b->agent.loop, UV_RUN_ONCE);
    return (double)(now_ns() - start) / 1e9;
}

/* All pages: the first one's time, the sum, how many rows. */
static void list(struct bench *b, const char *name, unsigned pages_max)
{
    double first = 0;
    double sum = 0;
    unsigned pages = 0;

    b->rows = 0;
    b->query.after.is_set = false;
    do {
        double took = page(b);

        first = pages == 0 ? took : first;
        sum += took;
        b->query.after = b->last.upto;
    } while (b->last.more && ++pages < pages_max);
    (void)printf("%s_first_ms %.2f ms\n%s_sum_ms %.1f ms\n%s_rows %" PRIu64 " rows\n", name, first * 1e3, name,
                 sum * 1e3, name, b->rows);
}

static void start(struct bench *b, const char *dir)
{
    struct shoal_sched_options options = { .self = { { 1 } }, .env = { .hash = no_hash } };
    struct shoal_msg msg = { "" };

    (void)uv_loop_init(&b->agent.loop);
    b->agent.stopping = true; /* no timers of the control plane */
    SHOAL_ASSERT(shoal_sched_create(&b->agent.sched, &options) == SHOAL_OK);
    SHOAL_ASSERT(shoal_index_open(&b->agent.index, &b->agent.loop, dir, &msg) == SHOAL_OK);
    (void)uv_check_init(&b->agent.loop, &b->check);
    (void)uv_prepare_init(&b->agent.loop, &b->prepare);
    b->check.data = b->prepare.data = b;
}

int main(int argc, char **argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    uint64_t jobs = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    uint64_t began, before;

    SHOAL_ASSERT(b != NULL && argc > 1);
    start(b, argv[1]);
    before = resident_kib();
    began = now_ns();
    for (uint64_t i = 0; i < jobs; i++)
        put(b, i);
    (void)printf("fill_us %.2f us\n", (double)(now_ns() - began) / 1e3 / (double)jobs);
    for (unsigned i = 0; i < 3; i++)
        (void)uv_run(&b->agent.loop, UV_RUN_ONCE);
    (void)uv_check_start(&b->check, on_check);
    (void)uv_prepare_start(&b->prepare, on_prepare);
    b->query = (struct list_query){ .limit = SHOAL_LIST_ROWS_MAX, .descending = true };
    list(b, "all", UINT32_MAX);
    b->query = (struct list_query){ .limit = 100, .descending = true, .states = 1u << SHOAL_JOB_PENDING_CRD_SCHEDULER };
    list(b, "active", 1);
    b->query = (struct list_query){ .limit = 100, .descending = true, .creator = "nobody" };
    list(b, "nothing", 1);
    b->query = (struct list_query){ .limit = 100, .sort = SHOAL_SORT_NAME };
    list(b, "by_name", 1);
    (void)printf("longest_turn_ms %.2f ms\nrss_growth_kib %" PRIu64 " KiB\n", (double)b->longest_ns / 1e6,
                 resident_kib() > before ? resident_kib() - before : 0);
    (void)fflush(stdout);
    _exit(0);
}
