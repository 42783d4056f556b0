/* The cost of what sleeps in the control plane: asleep PARKED COLD. A core alone is restored from that many parked
 * pending jobs and cold records of ended ones, as an agent is at its start, and runs for a virtual minute. Printed: name
 * value, on one line. What is left out: the store's index (200 bytes and the mark), and what lists are read from. */
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shoal/sched_look.h"
#include "sched/node/sched_wire.h"

#include "shoal/banned.h"

static struct shoal_hash toy_hash(void *arg, struct shoal_view bytes)
{
    struct shoal_hash hash = { { 0 } };
    uint64_t h = 14695981039346656037ull;

    (void)arg;
    for (size_t i = 0; i < bytes.len; i++)
        h = (h ^ bytes.bytes[i]) * 1099511628211ull;
    memcpy(hash.bytes, &h, sizeof(h));
    return hash;
}

static void toy_sign(void *arg, struct shoal_view bytes, uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    (void)arg, (void)bytes;
    memset(signature, 0, SHOAL_SCHED_SIGNATURE_BYTES);
}

static bool toy_verify(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                       const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    (void)arg, (void)key, (void)bytes, (void)signature;
    return true;
}

static struct shoal_node_id toy_node(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES])
{
    struct shoal_node_id node = { { 0 } };

    (void)arg;
    memcpy(node.bytes, key, sizeof(node.bytes));
    return node;
}

struct bench {
    struct shoal_sched *sched;
    struct shoal_sched_actions *actions;
    uint64_t now_ns, steps;
};

static void step(struct bench *bench, const struct shoal_sched_event *event)
{
    if (shoal_sched_step(bench->sched, event, bench->now_ns, bench->actions) != SHOAL_OK)
        abort();
    bench->steps++;
}

static struct shoal_job_id id_of(uint64_t number, bool cold)
{
    struct shoal_job_id id = { { 0 } };

    for (unsigned i = 0; i < 5; i++)
        id.bytes[1 + i] = (uint8_t)((number + 1) >> (32 - 8 * i));
    id.bytes[9] = cold ? 1 : 0;
    return cold ? shoal_sched_archive_place(id) : id;
}

static void restore(struct bench *bench, struct shoal_job_id id, struct shoal_view config)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_RESTORE };

    event.u.restore.group = id;
    event.u.restore.has_hard = true;
    event.u.restore.hard.term = 1;
    event.u.restore.hard.config = config;
    step(bench, &event);
}

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void fill(struct bench *bench, uint64_t parked, uint64_t cold)
{
    struct park_mark mark = { .commit = 2, .target = 3, .guardian_count = 3 };
    struct cold_mark record = { .spec_mark = 1 };
    uint8_t bytes[SHOAL_SCHED_CONFIG_BYTES_MAX];
    struct shoal_writer w;

    mark.owner.bytes[0] = 2; /* another node: nothing is loaded */
    for (unsigned i = 0; i < 3; i++)
        mark.guardians[i].bytes[0] = (uint8_t)(i + 1);
    for (uint64_t i = 0; i < parked; i++) {
        mark.ticket_ms = i;
        w = shoal_writer_init(bytes, sizeof(bytes));
        if (!sched_park_mark_encode(&mark, &w))
            abort();
        restore(bench, id_of(i, false), shoal_writer_view(&w));
    }
    for (uint64_t i = 0; i < cold; i++) {
        w = shoal_writer_init(bytes, sizeof(bytes));
        if (!sched_cold_mark_encode(&record, &w))
            abort();
        restore(bench, id_of(i, true), shoal_writer_view(&w));
    }
}

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

int main(int argc, char **argv)
{
    struct shoal_sched_options options = {
        .env = { .hash = toy_hash, .sign = toy_sign, .verify = toy_verify, .node_of_key = toy_node },
        .start_ns = SHOAL_S,
        .archive_warm_max = 1,
    };
    struct bench bench = { .now_ns = SHOAL_S, .actions = malloc(sizeof(*bench.actions)) };
    uint64_t parked = argc > 1 ? strtoull(argv[1], NULL, 10) : 100000;
    uint64_t cold = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;
    struct shoal_sched_stats stats;
    size_t before, between;
    double began;

    options.self.bytes[0] = 1;
    shoal_rand_init(&options.chance, 1);
    if (bench.actions == NULL || shoal_sched_create(&bench.sched, &options) != SHOAL_OK)
        return 1;
    before = heap_bytes();
    began = cpu_seconds();
    fill(&bench, parked, 0);
    between = heap_bytes();
    fill(&bench, 0, cold);
    step(&bench, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_RESTORED });
    (void)printf("fill_s %.2f row_bytes %.0f record_bytes %.0f ", cpu_seconds() - began,
                 parked == 0 ? 0 : (double)(between - before) / (double)parked,
                 cold == 0 ? 0 : (double)(heap_bytes() - between) / (double)cold);
    began = cpu_seconds();
    for (uint64_t end_ns = bench.now_ns + 60 * SHOAL_S; bench.now_ns < end_ns;) {
        uint64_t next_ns = shoal_sched_deadline_ns(bench.sched);

        bench.now_ns = next_ns > bench.now_ns ? next_ns : bench.now_ns;
        if (bench.now_ns < end_ns)
            step(&bench, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_TIMER });
    }
    shoal_sched_stats(bench.sched, &stats);
    (void)printf("minute_s %.2f parked %" PRIu64 " records %zu loads %" PRIu64 "\n", cpu_seconds() - began,
                 stats.parked, shoal_sched_archive_count(bench.sched), stats.loads);
    shoal_sched_destroy(bench.sched);
    free(bench.actions);
    return 0;
}
