/* All-reduce of float32 by two (or more) workers: in one host from the arena (zero-copy) and from private memory
 * (staged), and between two simulated hosts over UCX on loopback. Prints medians in microseconds of the slowest rank,
 * and checks every result against a plain loop.
 *
 *   allreduce [workers=2] [iterations=30] [kib=1024,16384] [hosts=2 (that alone)]
 *
 * One process forks the workers and plays the agent: it answers READY with one EPOCH. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shoal/collective.h"
#include "shoal/worker_wire.h"

#include "shoal/banned.h"

#define WORKERS_MAX 16
#define ITERATIONS_MAX 1000

struct shared {
    uint64_t times[WORKERS_MAX][ITERATIONS_MAX];
    uint32_t wrong;
    _Atomic uint32_t finished;
};

struct bench {
    uint32_t workers;
    uint32_t hosts;
    uint32_t iterations;
    uint64_t bytes;
    bool arena;
    struct shared *shared;
};

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(enum shoal_err err, struct shoal_comm *comm, const char *what)
{
    if (err == SHOAL_OK)
        return;
    (void)fprintf(stderr, "%s: %s\n", what, comm == NULL ? "" : shoal_comm_error(comm));
    _exit(1);
}

static void work(const struct bench *bench)
{
    struct shoal_comm_plan plan = { .call = 1,
                                    .virtual_workers = bench->workers,
                                    .samples = 1,
                                    .minibatch = 1,
                                    .data_epochs = 1,
                                    .steps_per_epoch = 1,
                                    .scratch_bytes = bench->bytes + 4096 };
    uint64_t elems = bench->bytes / 4;
    struct shoal_comm_entry entry;
    struct shoal_comm_call call;
    struct shoal_comm *comm = NULL;
    char error[400];
    float *values;

    if (shoal_comm_open(&comm, SHOAL_ROLE_ENGINE, "bench", error) != SHOAL_OK) {
        (void)fprintf(stderr, "%s\n", error);
        _exit(1);
    }
    must(shoal_comm_wait_call(comm, 10000, &call), comm, "call");
    must(shoal_comm_ready(comm, &plan), comm, "ready");
    must(shoal_comm_enter(comm, 10000, &entry), comm, "enter");
    values = bench->arena ? shoal_comm_scratch(comm, NULL) : malloc(bench->bytes);
    if (values == NULL || entry.event != SHOAL_EVENT_ENTERED)
        _exit(1);
    for (uint32_t i = 0; i < bench->iterations; i++) {
        uint64_t begin;

        for (uint64_t e = 0; e < elems; e++)
            values[e] = (float)(entry.rank + 1) * (float)(e % 1024);
        must(shoal_comm_barrier(comm), comm, "barrier");
        must(shoal_comm_barrier(comm), comm, "barrier"); /* who slept in the first one is awake in the second */
        begin = now_ns();
        must(shoal_comm_all_reduce(comm, values, elems, SHOAL_FLOAT32), comm, "all_reduce");
        bench->shared->times[entry.rank][i] = now_ns() - begin;
        for (uint64_t e = 0; e < elems; e += 997) {
            float want = (float)(entry.size * (entry.size + 1) / 2) * (float)(e % 1024);

            if (values[e] < want || values[e] > want)
                bench->shared->wrong = 1;
        }
        must(shoal_comm_barrier(comm), comm, "barrier");
    }
    atomic_fetch_add(&bench->shared->finished, 1);
    while (atomic_load(&bench->shared->finished) < bench->workers) /* who closes first may cut off its last message */
        (void)usleep(1000);
    shoal_comm_close(comm);
    _exit(0);
}

struct agent {
    struct shoal_worker_message in;
    struct shoal_worker_message out;
    uint8_t bytes[SHOAL_WORKER_MESSAGE_MAX];
    int conns[WORKERS_MAX];
    struct shoal_rank_member members[WORKERS_MAX];
};

static void tell(struct agent *agent, int conn)
{
    struct shoal_writer w = shoal_writer_init(agent->bytes, SHOAL_WORKER_MESSAGE_MAX);

    if (shoal_worker_encode(&agent->out, &w) == SHOAL_OK)
        (void)send(conn, w.bytes, w.len, MSG_NOSIGNAL);
}

static bool hear(struct agent *agent, int conn, uint8_t kind)
{
    for (;;) {
        ssize_t len = recv(conn, agent->bytes, SHOAL_WORKER_MESSAGE_MAX, 0);

        if (len <= 0 || shoal_worker_decode(shoal_view_of(agent->bytes, (size_t)len), &agent->in) != SHOAL_OK)
            return false;
        if (agent->in.kind == kind)
            return true;
    }
}

/* Every worker says HELLO, gets a CALL, says READY; then all get the one EPOCH. */
static void serve(struct agent *agent, const struct bench *bench, int listener)
{
    for (uint32_t i = 0; i < bench->workers; i++) {
        int conn = accept(listener, NULL, NULL);
        uint32_t rank;

        if (!hear(agent, conn, SHOAL_WORKER_HELLO))
            exit(1);
        rank = (uint32_t)agent->in.hello.worker_id - 1;
        agent->conns[rank] = conn;
        memset(&agent->out, 0, sizeof(agent->out));
        agent->out.kind = SHOAL_WORKER_CALL;
        agent->out.call.call = 1;
        tell(agent, conn);
    }
    for (uint32_t rank = 0; rank < bench->workers; rank++) {
        struct shoal_rank_member *m = &agent->members[rank];

        if (!hear(agent, agent->conns[rank], SHOAL_WORKER_READY))
            exit(1);
        *m = (struct shoal_rank_member){ .worker_id = rank + 1, .v_begin = rank, .v_end = rank + 1 };
        m->slot = rank;
        memset(m->node.bytes, (int)(rank * bench->hosts / bench->workers + 1), 16);
        m->address_len = (uint16_t)agent->in.ready.address.len;
        memcpy(m->address, agent->in.ready.address.bytes, m->address_len);
    }
    memset(&agent->out, 0, sizeof(agent->out));
    agent->out.kind = SHOAL_WORKER_EPOCH;
    agent->out.epoch.epoch.e = 1;
    agent->out.epoch.call = 1;
    agent->out.epoch.member_count = bench->workers;
    memcpy(agent->out.epoch.members, agent->members, sizeof(agent->members));
    for (uint32_t rank = 0; rank < bench->workers; rank++)
        tell(agent, agent->conns[rank]);
}

static void set_number(const char *name, uint64_t value)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    (void)setenv(name, text, 1);
}

static void start_worker(const struct bench *bench, uint32_t rank, const int *pages, const int *arenas)
{
    uint32_t host = rank * bench->hosts / bench->workers;
    char hex[33];
    uint8_t node[16];

    memset(node, (int)host + 1, 16);
    shoal_hex_text(node, 16, hex);
    (void)setenv(SHOAL_ENV_NODE, hex, 1);
    (void)setenv(SHOAL_ENV_JOB, "shoal-0000000000000001", 1);
    (void)setenv(SHOAL_ENV_FABRIC, "lo", 1);
    set_number(SHOAL_ENV_GENERATION, 1);
    set_number(SHOAL_ENV_WORKER, rank + 1);
    set_number(SHOAL_ENV_SLOT, rank);
    set_number(SHOAL_ENV_CONTROL_FD, (uint64_t)pages[host]);
    set_number(SHOAL_ENV_ARENA_FD, (uint64_t)arenas[host]);
    if (fork() == 0)
        work(bench);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void report(const struct bench *bench)
{
    uint64_t slowest[ITERATIONS_MAX];

    for (uint32_t i = 0; i < bench->iterations; i++) {
        slowest[i] = 0;
        for (uint32_t rank = 0; rank < bench->workers; rank++)
            if (bench->shared->times[rank][i] > slowest[i])
                slowest[i] = bench->shared->times[rank][i];
    }
    qsort(slowest, bench->iterations, sizeof(slowest[0]), by_value);
    (void)printf("%u workers %-7s %6" PRIu64 " KiB  median %9.1f us  best %9.1f us%s\n", bench->workers,
                 bench->hosts > 1 ? "2 hosts"
                 : bench->arena   ? "arena"
                                  : "private",
                 bench->bytes / 1024, (double)slowest[bench->iterations / 2] / 1e3, (double)slowest[0] / 1e3,
                 bench->shared->wrong ? "  WRONG" : "");
    (void)fflush(stdout);
}

static void run(struct bench *bench)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    int pages[2];
    int arenas[2];
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)snprintf(at.sun_path, sizeof(at.sun_path), "/tmp/shoal-bench-%d", (int)getpid());
    (void)unlink(at.sun_path);
    if (agent == NULL || bind(listener, (const struct sockaddr *)&at, sizeof(at)) != 0 || listen(listener, 16) != 0)
        exit(1);
    (void)setenv(SHOAL_ENV_SOCKET, at.sun_path, 1);
    for (uint32_t host = 0; host < 2; host++) {
        struct shoal_control_page *page;

        pages[host] = memfd_create("page", 0);
        arenas[host] = memfd_create("arena", 0);
        if (ftruncate(pages[host], sizeof(*page)) != 0)
            exit(1);
        page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, pages[host], 0);
        page->magic = SHOAL_CONTROL_MAGIC;
        page->version = page->oldest = SHOAL_WORKER_VERSION;
    }
    memset(bench->shared, 0, sizeof(*bench->shared));
    for (uint32_t rank = 0; rank < bench->workers; rank++)
        start_worker(bench, rank, pages, arenas);
    serve(agent, bench, listener);
    for (uint32_t rank = 0; rank < bench->workers; rank++) {
        int status;

        (void)wait(&status);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            bench->shared->wrong = 1;
    }
    report(bench);
    for (uint32_t i = 0; i < 2; i++) {
        (void)close(pages[i]);
        (void)close(arenas[i]);
    }
    for (uint32_t i = 0; i < bench->workers; i++)
        (void)close(agent->conns[i]);
    (void)close(listener);
    (void)unlink(at.sun_path);
    free(agent);
}

int main(int argc, char **argv)
{
    struct bench bench = { .workers = 2, .iterations = 30 };
    const char *sizes = "1024,16384";
    bool between_only = false;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "workers=", 8) == 0)
            bench.workers = (uint32_t)strtoul(argv[i] + 8, NULL, 10);
        else if (strncmp(argv[i], "iterations=", 11) == 0)
            bench.iterations = (uint32_t)strtoul(argv[i] + 11, NULL, 10);
        else if (strcmp(argv[i], "hosts=2") == 0)
            between_only = true;
        else if (strncmp(argv[i], "kib=", 4) == 0)
            sizes = argv[i] + 4;
    }
    if (bench.workers < 1 || bench.workers > WORKERS_MAX || bench.iterations < 1 || bench.iterations > ITERATIONS_MAX)
        return 2;
    bench.shared = mmap(NULL, sizeof(*bench.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (const char *at = sizes; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        bench.bytes = strtoull(at, NULL, 10) * 1024;
        bench.hosts = 1;
        bench.arena = true;
        if (!between_only)
            run(&bench);
        bench.arena = false;
        if (!between_only)
            run(&bench);
        bench.hosts = 2;
        bench.arena = true;
        if (bench.workers > 1)
            run(&bench);
    }
    return 0;
}
