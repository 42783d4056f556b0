/* Numbers of the agent's I/O on this machine: durable commits, link throughput and round trips, datagrams. They never
 * pass or fail. Usage: io_bench [folder on the disk to measure; default /tmp] */
#include "shoal/datagram.h"
#include "shoal/link.h"
#include "shoal/store.h"

#include <unistd.h>
#include <uv.h>

#include "shoal/banned.h"

#define RUN_NS SHOAL_S

struct bench {
    uv_loop_t loop;
    struct shoal_store *store;
    struct shoal_identity ids[2];
    struct shoal_link *links[2];
    struct shoal_datagram *datagrams[2];
    uint64_t started_ns, done, bytes, worst_ns, next_index;
    unsigned ups, stopped;
    size_t entries;
    bool echo;
};

static void on_stopped(void *arg) { ((struct bench *)arg)->stopped++; }

static bool running(const struct bench *b) { return uv_hrtime() - b->started_ns < RUN_NS; }

static void begin(struct bench *b)
{
    b->started_ns = uv_hrtime();
    b->done = b->bytes = b->worst_ns = 0;
}

/* ---- store: one group, one commit after the other ---- */

static void append(struct bench *b);

static void on_flushed(void *arg, const struct shoal_store_done *done)
{
    struct bench *b = arg;
    uint64_t took = shoal_store_stats(b->store)->flush_last_ns;

    (void)done;
    b->done++;
    b->worst_ns = took > b->worst_ns ? took : b->worst_ns;
    if (running(b))
        append(b);
}

static void append(struct bench *b)
{
    static uint8_t bytes[256];
    static struct shoal_store_entry entries[256];
    static struct shoal_store_snapshot snapshot = { .term = 1 };
    struct shoal_store_batch batch = {
        .group = { { 1 } }, .entries = entries, .entries_count = b->entries, .done = on_flushed, .arg = b
    };

    for (size_t i = 0; i < b->entries; i++)
        entries[i] = (struct shoal_store_entry){ .index = b->next_index + i,
                                                 .term = 1,
                                                 .bytes = shoal_view_of(bytes, sizeof(bytes)) };
    if (b->next_index > snapshot.index + 4096) { /* the steady state: trimmed as it grows */
        snapshot.index = b->next_index - 1;
        batch.snapshot = &snapshot;
    }
    b->next_index += b->entries;
    if (shoal_store_append(b->store, &batch, NULL) != SHOAL_OK)
        abort();
}

static void bench_store(struct bench *b, const char *folder)
{
    static const size_t sizes[] = { 1, 16, 256 };
    char dir[256], path[300];
    struct shoal_store_options options = { .loop = &b->loop, .dir = path, .store_id = { { 1 } } };
    struct shoal_msg msg;

    (void)snprintf(dir, sizeof(dir), "%s/shoal-bench-XXXXXX", folder);
    if (mkdtemp(dir) == NULL)
        abort();
    (void)snprintf(path, sizeof(path), "%s/store", dir);
    if (shoal_store_open(&b->store, &options, &msg) != SHOAL_OK) {
        (void)fprintf(stderr, "%s\n", msg.text);
        exit(1);
    }
    b->next_index = 1;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        b->entries = sizes[i];
        begin(b);
        append(b);
        while (running(b) || shoal_store_stats(b->store)->pending > 0)
            (void)uv_run(&b->loop, UV_RUN_ONCE);
        (void)printf("store: %3zu entries of 256 B a commit: %6llu commits/s, worst flush %.1f ms\n", sizes[i],
                     (unsigned long long)(b->done * SHOAL_S / RUN_NS), (double)b->worst_ns / 1e6);
    }
    shoal_store_stop(b->store, on_stopped, b);
    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
    (void)snprintf(path, sizeof(path), "%s/store/data.mdb", dir);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/store/lock.mdb", dir);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/store", dir);
    (void)rmdir(path);
    (void)rmdir(dir);
}

/* ---- links ---- */

static void on_up(void *arg, const struct shoal_link_peer *peer)
{
    (void)peer;
    ((struct bench *)arg)->ups++;
}

static void on_down(void *arg, struct shoal_node_id node)
{
    (void)arg, (void)node;
    abort();
}

static void on_frame(void *arg, struct shoal_node_id node, enum shoal_lane lane, uint8_t channel,
                     struct shoal_view frame)
{
    struct bench *b = arg;
    bool at_b = shoal_node_id_equal(node, b->ids[0].node);

    b->done += !b->echo || !at_b;
    b->bytes += frame.len;
    if (b->echo && (at_b || running(b)) &&
        shoal_link_send(b->links[at_b ? 1 : 0], b->ids[at_b ? 0 : 1].node, lane, channel, frame) != SHOAL_OK)
        abort();
}

static void fill(struct bench *b)
{
    static uint8_t bytes[SHOAL_MIB];

    while (running(b) && shoal_link_send(b->links[0], b->ids[1].node, SHOAL_LANE_BULK, 1,
                                         shoal_view_of(bytes, sizeof(bytes))) == SHOAL_OK) {
    }
}

static void on_writable(void *arg, struct shoal_node_id node, enum shoal_lane lane)
{
    (void)node, (void)lane;
    fill(arg);
}

static struct shoal_address loopback(uint16_t port)
{
    struct shoal_address address;

    if (shoal_address_parse("127.0.0.1:0", 0, &address, NULL) != SHOAL_OK)
        abort();
    address.port = port;
    return address;
}

static void bench_link(struct bench *b)
{
    struct shoal_link_options options = {
        .loop = &b->loop,
        .listen = loopback(0),
        .handlers = { .arg = b, .on_up = on_up, .on_down = on_down, .on_frame = on_frame, .on_writable = on_writable }
    };

    for (unsigned i = 0; i < 2; i++) {
        options.identity = &b->ids[i];
        if (shoal_link_create(&b->links[i], &options, NULL) != SHOAL_OK)
            abort();
    }
    if (shoal_link_want(b->links[0], b->ids[1].node, loopback(shoal_link_port(b->links[1]))) != SHOAL_OK)
        abort();
    while (b->ups < 2)
        (void)uv_run(&b->loop, UV_RUN_ONCE);
    begin(b);
    fill(b);
    while (running(b))
        (void)uv_run(&b->loop, UV_RUN_ONCE);
    (void)printf("link: %llu MiB/s of bulk, both ends in one thread\n", (unsigned long long)(b->bytes / SHOAL_MIB));
    for (uint64_t seen = UINT64_MAX; seen != b->bytes;) {
        seen = b->bytes;
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
    }
    b->echo = true;
    begin(b);
    if (shoal_link_send(b->links[0], b->ids[1].node, SHOAL_LANE_CONTROL, 1, shoal_view_text("ping")) != SHOAL_OK)
        abort();
    while (running(b))
        (void)uv_run(&b->loop, UV_RUN_ONCE);
    (void)printf("link: %.1f us a round trip of control\n",
                 (double)RUN_NS / 1e3 / (double)(b->done == 0 ? 1 : b->done));
    shoal_link_stop(b->links[0], NULL, NULL);
    shoal_link_stop(b->links[1], NULL, NULL);
    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
}

/* ---- datagrams ---- */

static void on_datagram(void *arg, struct shoal_node_id from, struct shoal_address address, struct shoal_view payload)
{
    struct bench *b = arg;

    (void)from, (void)address, (void)payload;
    b->done++;
}

static void bench_datagram(struct bench *b)
{
    static uint8_t bytes[100];
    struct shoal_datagram_options options = { .loop = &b->loop,
                                              .listen = loopback(0),
                                              .handlers = { .arg = b, .on_datagram = on_datagram } };

    for (unsigned i = 0; i < 2; i++) {
        options.identity = &b->ids[i];
        if (shoal_datagram_create(&b->datagrams[i], &options, NULL) != SHOAL_OK ||
            shoal_datagram_learn(b->datagrams[i], &b->ids[1 - i].public_key) != SHOAL_OK)
            abort();
    }
    begin(b);
    while (running(b)) {
        for (unsigned i = 0; i < 16; i++)
            if (shoal_datagram_send(b->datagrams[0], b->ids[1].node, loopback(shoal_datagram_port(b->datagrams[1])),
                                    shoal_view_of(bytes, sizeof(bytes))) != SHOAL_OK)
                break;
        (void)uv_run(&b->loop, UV_RUN_NOWAIT);
    }
    (void)printf("datagram: %llu of 100 B sealed, sent and opened in a second\n", (unsigned long long)b->done);
    shoal_datagram_stop(b->datagrams[0], NULL, NULL);
    shoal_datagram_stop(b->datagrams[1], NULL, NULL);
    (void)uv_run(&b->loop, UV_RUN_DEFAULT);
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct shoal_secret secret;

    if (shoal_crypto_init(NULL) != SHOAL_OK || uv_loop_init(&b.loop) != 0)
        return 1;
    secret = shoal_secret_random();
    for (unsigned i = 0; i < 2; i++) {
        shoal_key_create(&b.ids[i].public_key, &b.ids[i].secret_key);
        b.ids[i].node = shoal_node_id_of(&b.ids[i].public_key);
        b.ids[i].mesh_secret = secret;
        b.ids[i].incarnation = (struct shoal_incarnation){ 1, 1, 0 };
    }
    bench_store(&b, argc > 1 ? argv[1] : "/tmp");
    bench_link(&b);
    bench_datagram(&b);
    return uv_loop_close(&b.loop) == 0 ? 0 : 1;
}
