/* The host's side of a link to a kernel, with a kernel that this test plays: it answers what it has not read, closes its link, and
 * gives a large answer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "node/serve/serve_host.h"
#include "shoal/pack.h"

#include "shoal/banned.h"

#define WAIT_NS (20 * SHOAL_S)
#define WORKER 7
#define BODY_BYTES (8 * SHOAL_MIB)

struct world {
    struct world *before;
    uv_loop_t loop;
    struct serve_host *host;
    struct shoal_job_id job;
    char folder[64], path[80];
    int listener, fd;  /* the kernel's */
    int other, knocks; /* another listener, and who has connected to it */
    bool broken;
    char why[KERNEL_TEXT_BYTES];
    unsigned answered, ended, drained;
    size_t pieces;
    enum shoal_err err;
    bool asks_again; /* as soon as one that waited is handed to the kernel */
    uint32_t timeout_ms;
    size_t answer_bytes;
    uint64_t id;
    uint64_t cancels; /* as soon as another one has ended; 0: none */
};

static void on_changed(void *arg) { (void)arg; }

static void on_broken(void *arg, uint64_t worker_id, const char *text)
{
    struct world *w = arg;

    assert_int_equal(worker_id, WORKER);
    w->broken = true;
    (void)snprintf(w->why, sizeof(w->why), "%s", text);
}

static void on_done(void *arg, enum shoal_err err, const char *text, const struct serve_answer *answer)
{
    struct world *w = arg;

    (void)text;
    w->ended++;
    w->err = err;
    w->answered += err == SHOAL_OK;
    w->answer_bytes = answer == NULL ? 0 : answer->body.len;
    if (w->cancels != 0)
        serve_host_cancel(w->host, w->cancels);
}

static void on_drained(void *arg, uint64_t worker_id, uint64_t grace_ns)
{
    (void)worker_id, (void)grace_ns;
    ((struct world *)arg)->drained++;
}

static uint32_t ready(const struct world *w)
{
    struct serve_facts facts[SERVE_FACTS_MAX];

    return serve_host_facts(w->host, facts, SERVE_FACTS_MAX) == 0 ? 0 : facts[0].ready;
}

/* The loop goes on until `is` holds; false: it never did. */
static bool until(struct world *w, bool (*is)(const struct world *w))
{
    uint64_t end = uv_hrtime() + WAIT_NS;

    while (!is(w) && uv_hrtime() < end)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    return is(w);
}

/* A whole message; the loop takes what the socket cannot. */
static void say(struct world *w, const uint8_t *bytes, size_t len)
{
    uint8_t head[4] = { (uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16), (uint8_t)(len >> 24) };
    uint64_t end = uv_hrtime() + WAIT_NS;

    assert_int_equal(send(w->fd, head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
    for (size_t at = 0; at < len && uv_hrtime() < end;) {
        ssize_t sent = send(w->fd, bytes + at, len - at, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno != EAGAIN)
            return; /* it was ended */
        at += sent < 0 ? 0 : (size_t)sent;
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    }
}

static void say_ready_for(struct world *w, uint32_t batch)
{
    uint8_t bytes[64];
    struct shoal_pack_writer p = shoal_pack_writer_init(bytes, sizeof(bytes));

    shoal_pack_put_array(&p, 2);
    shoal_pack_put_text(&p, "ready");
    shoal_pack_begin_map(&p);
    shoal_pack_put_name(&p, "batch");
    shoal_pack_put_u64(&p, batch);
    shoal_pack_end_map(&p);
    assert_false(p.failed);
    say(w, bytes, p.len);
}

static void say_ready(struct world *w) { say_ready_for(w, 4); }

static void say_done(struct world *w, uint64_t id, size_t body_bytes)
{
    size_t cap = body_bytes + 64;
    uint8_t *bytes = calloc(1, cap);
    struct shoal_pack_writer p = shoal_pack_writer_init(bytes, cap);

    assert_non_null(bytes);
    shoal_pack_put_array(&p, 5);
    shoal_pack_put_text(&p, "done");
    shoal_pack_put_u64(&p, id);
    shoal_pack_put_u64(&p, 200);
    shoal_pack_begin_map(&p);
    shoal_pack_end_map(&p);
    assert_false(p.failed);
    bytes[p.len] = 0xc6; /* a body, with its length in four bytes */
    for (unsigned i = 0; i < 4; i++)
        bytes[p.len + 1 + i] = (uint8_t)(body_bytes >> (24 - 8 * i));
    say(w, bytes, p.len + 5 + body_bytes);
    free(bytes);
}

static void accept_link(struct world *w)
{
    uint64_t end = uv_hrtime() + WAIT_NS;

    w->fd = -1;
    while (w->fd < 0 && uv_hrtime() < end) {
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
        w->fd = accept(w->listener, NULL, NULL);
    }
}

static bool is_ready(const struct world *w) { return ready(w) == 1; }
static bool is_gone(const struct world *w) { return ready(w) == 0; }

static void start(struct world *w, struct shoal_job_id job, uint64_t worker_id, const char *path)
{
    char name[16];

    (void)snprintf(name, sizeof(name), "s%u", job.bytes[0]);
    serve_host_start(w->host, &(struct serve_start){
                                  .job = job, .service = name, .version = 1, .worker_id = worker_id, .path = path });
}

static struct world *worlds; /* of the tests that have ended */

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct sockaddr_un name = { .sun_family = AF_UNIX };

    assert_non_null(w);
    (void)snprintf(w->folder, sizeof(w->folder), "/tmp/shoal-serve-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    (void)snprintf(w->path, sizeof(w->path), "%s/k.sock", w->folder);
    memcpy(name.sun_path, w->path, sizeof(w->path));
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(w->listener, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(w->listener, 4), 0);
    assert_int_equal(uv_loop_init(&w->loop), 0);
    w->job.bytes[0] = 9;
    w->host = serve_host_create(
        &(struct serve_host_options){
            .loop = &w->loop, .arg = w, .changed = on_changed, .broken = on_broken, .drained = on_drained });
    start(w, w->job, WORKER, w->path);
    accept_link(w);
    assert_true(w->fd >= 0);
    say_ready(w);
    assert_true(until(w, is_ready));
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    serve_host_end(w->host, WORKER);
    for (unsigned i = 0; i < 10; i++)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    (void)close(w->fd);
    (void)close(w->listener);
    (void)unlink(w->path);
    (void)rmdir(w->folder);
    w->before = worlds; /* loop and host live as long as an agent does, which has no end of theirs */
    worlds = w;
    return 0;
}

static void ask(struct world *w, struct shoal_view body);

static void on_handed(void *arg)
{
    struct world *w = arg;

    if (w->asks_again) {
        w->asks_again = false;
        ask(w, shoal_view_text("again"));
    }
}

static void on_piece(void *arg, struct shoal_view piece) { ((struct world *)arg)->pieces += piece.len; }

static void ask_for_pieces(struct world *w)
{
    struct serve_ask ask = { .job = w->job,
                             .head = { .path = "/x", .method = "POST", .content_type = "", .model = "m" },
                             .id = &w->id,
                             .piece = on_piece,
                             .done = on_done,
                             .arg = w };

    (void)serve_host_infer(w->host, &ask);
}

static void ask(struct world *w, struct shoal_view body)
{
    struct serve_ask ask = { .job = w->job,
                             .head = { .path = "/x", .method = "POST", .content_type = "", .model = "m" },
                             .body = body,
                             .timeout_ms = w->timeout_ms,
                             .id = &w->id,
                             .handed = on_handed,
                             .done = on_done,
                             .arg = w };

    (void)serve_host_infer(w->host, &ask);
}

/* Ids follow each other: who asks and serves can answer what it never reads. What waits in the socket is bounded. */
static void test_a_kernel_that_answers_without_reading_is_ended(void **state)
{
    struct world *w = *state;
    uint8_t *body = calloc(1, BODY_BYTES);
    unsigned asked = 0;

    assert_non_null(body);
    while (!w->broken && asked < 3 * SHOAL_KERNEL_UNREAD_BYTES_MAX / BODY_BYTES) {
        ask(w, shoal_view_of(body, BODY_BYTES));
        asked++;
        say_done(w, w->id, 0);
        for (unsigned i = 0; i < 4; i++)
            (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    }
    free(body);
    assert_true(w->broken);
    assert_non_null(strstr(w->why, "has not read"));
    assert_true(asked <= SHOAL_KERNEL_UNREAD_BYTES_MAX / BODY_BYTES + 2);
}

static void count_timer(uv_handle_t *handle, void *arg)
{
    unsigned *count = arg;

    *count += uv_handle_get_type(handle) == UV_TIMER && uv_is_active(handle) != 0;
}

static bool looks_for_nothing(const struct world *w)
{
    unsigned count = 0;

    uv_walk((uv_loop_t *)(uintptr_t)&w->loop, count_timer, &count); /* it wants it writable; nothing is written */
    return count == 0;
}

/* Nothing is asked of it meanwhile: it is the host that looks for it. */
static void test_a_kernel_that_closes_its_link_is_connected_again(void **state)
{
    struct world *w = *state;

    assert_true(until(w, looks_for_nothing));
    (void)close(w->fd);
    assert_true(until(w, is_gone));
    accept_link(w);
    assert_true(w->fd >= 0);
    say_ready(w);
    assert_true(until(w, is_ready));
    assert_false(w->broken);
}

static bool has_answer(const struct world *w) { return w->answered > 0; }

static size_t taken(void)
{
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
}

static void test_the_room_for_a_large_answer_is_given_back(void **state)
{
    struct world *w = *state;
    size_t before = taken();

    ask(w, (struct shoal_view){ 0 });
    say_done(w, w->id, BODY_BYTES);
    assert_true(until(w, has_answer));
    assert_int_equal(w->answer_bytes, BODY_BYTES);
    assert_true(taken() < before + 2 * SHOAL_KERNEL_LINK_KEPT_BYTES);
}

/* The kinds and ids of the messages that are in the kernel's socket: "infer 1 infer 2 cancel 1 ". */
static void hear(struct world *w, char *said, size_t cap)
{
    uint8_t bytes[4096];
    ssize_t got = recv(w->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    size_t at = 0, len = 0;

    said[0] = '\0';
    while (got > 0 && kernel_frame(shoal_view_of(bytes + at, (size_t)got - at), &len) == SHOAL_OK && len > 0) {
        struct shoal_pack_reader r = shoal_pack_reader_init(shoal_view_of(bytes + at + 4, len - 4));
        uint32_t count = shoal_pack_get_array(&r, 8);
        struct shoal_view kind = shoal_pack_get_str(&r, 16);
        size_t end = strlen(said);

        assert_true(count > 1);
        (void)snprintf(said + end, cap - end, "%.*s %u ", (int)kind.len, (const char *)kind.bytes,
                       (unsigned)shoal_pack_get_u64(&r, UINT32_MAX));
        at += len;
    }
}

/* H5: what is handed in one turn goes in order, and what is said of a request comes behind it. */
static void test_a_turn_is_one_write_in_order(void **state)
{
    struct world *w = *state;
    char said[200];

    ask(w, shoal_view_text("one"));
    ask(w, shoal_view_text("two"));
    hear(w, said, sizeof(said));
    assert_string_equal(said, "");
    (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    hear(w, said, sizeof(said));
    assert_string_equal(said, "infer 1 infer 2 ");
    ask(w, shoal_view_text("three"));
    serve_host_cancel(w->host, w->id);
    ask(w, shoal_view_text("four"));
    (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    hear(w, said, sizeof(said));
    assert_string_equal(said, "infer 3 cancel 3 infer 4 ");
}

static void turns(struct world *w, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
}

/* Its asker is gone: the answer is the kernel's to give, and nobody's to have (H2). */
static void test_an_answer_to_what_was_cancelled_is_dropped(void **state)
{
    struct world *w = *state;

    ask(w, shoal_view_text("one"));
    turns(w, 2);
    serve_host_cancel(w->host, w->id);
    say_done(w, w->id, 10);
    ask(w, shoal_view_text("two"));
    say_done(w, w->id, 10);
    assert_true(until(w, has_answer));
    assert_int_equal(w->ended, 1);
    assert_false(w->broken);
}

/* H4. */
/* As a client's connection does that is closed while another client is answered. */
static void test_what_is_cancelled_while_its_kernel_ends_is_not_told(void **state)
{
    struct world *w = *state;

    ask(w, shoal_view_text("first"));
    w->cancels = w->id;
    ask(w, shoal_view_text("second")); /* the newest is told first */
    serve_host_end(w->host, WORKER);
    assert_int_equal(w->ended, 1);
    assert_int_equal(w->err, SHOAL_ERR_RANK_LOST);
}

static void test_a_replica_that_is_stopped_is_handed_nothing_more(void **state)
{
    struct world *w = *state;
    uint64_t first;
    char said[200];

    ask(w, shoal_view_text("one"));
    first = w->id;
    turns(w, 2);
    assert_true(serve_host_drain(w->host, WORKER, SHOAL_S)); /* it has one in hand */
    ask(w, shoal_view_text("two"));
    assert_int_equal(w->ended, 1);
    assert_int_equal(w->err, SHOAL_ERR_STALE);
    turns(w, 2);
    hear(w, said, sizeof(said));
    assert_string_equal(said, "infer 1 ");
    say_done(w, first, 10);
    assert_true(until(w, has_answer));
    assert_int_equal(w->drained, 1);
}

static void say_part(struct world *w, uint64_t id, size_t bytes)
{
    uint8_t *text = calloc(1, bytes + 64);
    struct shoal_pack_writer p = shoal_pack_writer_init(text, bytes + 64);

    assert_non_null(text);
    shoal_pack_put_array(&p, 3);
    shoal_pack_put_text(&p, "part");
    shoal_pack_put_u64(&p, id);
    assert_false(p.failed);
    text[p.len] = 0xc6;
    for (unsigned i = 0; i < 4; i++)
        text[p.len + 1 + i] = (uint8_t)(bytes >> (24 - 8 * i));
    say(w, text, p.len + 5 + bytes);
    free(text);
}

static bool is_broken(const struct world *w) { return w->broken; }
static bool has_a_window(const struct world *w) { return w->pieces >= SHOAL_INFER_WINDOW_BYTES; }

/* H3. A window, and the piece that goes beyond; no more before it is told that some was passed on. */
static void test_a_kernel_that_sends_beyond_its_window_is_ended(void **state)
{
    struct world *w = *state;

    ask_for_pieces(w);
    turns(w, 2);
    for (unsigned i = 0; i < 2; i++)
        say_part(w, w->id, SHOAL_INFER_WINDOW_BYTES / 2);
    assert_true(until(w, has_a_window));
    serve_host_more(w->host, w->id, SHOAL_INFER_WINDOW_BYTES);
    for (unsigned i = 0; i < 2; i++)
        say_part(w, w->id, SHOAL_INFER_WINDOW_BYTES / 2);
    turns(w, 4);
    assert_false(w->broken);
    assert_int_equal(w->pieces, 2 * SHOAL_INFER_WINDOW_BYTES);
    say_part(w, w->id, 1);
    assert_true(until(w, is_broken));
    assert_non_null(strstr(w->why, "beyond what it was told"));
    assert_int_equal(w->pieces, 2 * SHOAL_INFER_WINDOW_BYTES);
}

/* Of those that wait the one whose time ends first is handed first; who comes later does not overtake them. */
static void test_whose_time_ends_first_is_handed_first(void **state)
{
    static const uint32_t timeouts_ms[] = { 60000, 0, 30000, 60000 };
    struct world *w = *state;
    char said[200];

    for (unsigned i = 0; i < 4; i++)
        ask(w, shoal_view_text("fills the kernel"));
    for (unsigned i = 0; i < 4; i++) {
        w->timeout_ms = timeouts_ms[i];
        ask(w, shoal_view_text("waits"));
    }
    turns(w, 2);
    hear(w, said, sizeof(said));
    assert_string_equal(said, "infer 1 infer 2 infer 3 infer 4 ");
    w->asks_again = true; /* 9, when there is room for two, and three wait still */
    say_ready_for(w, 6);
    turns(w, 4);
    hear(w, said, sizeof(said));
    assert_string_equal(said, "infer 7 infer 5 ");
    say_ready_for(w, 20);
    turns(w, 4);
    hear(w, said, sizeof(said));
    assert_string_equal(said, "infer 8 infer 9 infer 6 "); /* 6 has all the time of the world */
}

/* Each is cancelled while it waits: the next has the room that it took. */
static void test_the_room_of_what_is_cancelled_is_given_back(void **state)
{
    struct world *w = *state;
    uint8_t *body = calloc(1, BODY_BYTES);

    assert_non_null(body);
    for (unsigned i = 0; i < 4; i++)
        ask(w, shoal_view_text("fills the kernel"));
    for (unsigned i = 0; i < SHOAL_SERVICE_QUEUE_BYTES_MAX / BODY_BYTES + 2; i++) {
        ask(w, shoal_view_of(body, BODY_BYTES));
        serve_host_cancel(w->host, w->id);
    }
    assert_int_equal(w->ended, 0);
    assert_int_equal(serve_host_counts(w->host, w->job)->refused, 0);
    free(body);
}

static bool was_tried(const struct world *w)
{
    struct world *mine = (struct world *)(uintptr_t)w;

    if (mine->knocks < 0)
        mine->knocks = accept(w->other, NULL, NULL);
    return w->knocks >= 0;
}

/* Whoever listens under a kernel's name is another user: nothing is said to it. */
static void test_a_socket_of_another_user_is_left_alone(void **state)
{
    struct world *w = *state;
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    char path[80];
    uint8_t byte;

    if (geteuid() != 0)
        skip(); /* only root can be another user, too */
    (void)snprintf(path, sizeof(path), "%s/o.sock", w->folder);
    memcpy(name.sun_path, path, sizeof(path));
    w->other = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(w->other, (const struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(seteuid(65534), 0);
    assert_int_equal(listen(w->other, 4), 0);
    assert_int_equal(seteuid(0), 0);
    start(w, w->job, WORKER + 1, path);
    w->knocks = -1;
    assert_true(until(w, was_tried));
    assert_int_equal(recv(w->knocks, &byte, 1, MSG_DONTWAIT), 0); /* it was closed at once */
    serve_host_end(w->host, WORKER + 1);
    (void)close(w->knocks);
    (void)close(w->other);
}

static void ask_and_end(uv_check_t *check)
{
    struct world *w = check->data;

    ask(w, shoal_view_text("one"));
    serve_host_end(w->host, WORKER);
    (void)uv_check_stop(check);
}

/* Its process ends in the turn that has handed it a request, and the link is freed at the end of that turn: what uses it
 * then is seen by a sanitizer. */
static void test_what_was_to_be_written_to_a_kernel_that_ends_is_told(void **state)
{
    struct world *w = *state;
    uv_check_t check = { .data = w };

    (void)uv_check_init(&w->loop, &check);
    (void)uv_check_start(&check, ask_and_end);
    for (unsigned i = 0; i < 4; i++)
        (void)uv_run(&w->loop, UV_RUN_NOWAIT);
    assert_int_equal(w->ended, 1);
    assert_int_equal(w->answered, 0);
    uv_close((uv_handle_t *)&check, NULL);
    (void)uv_run(&w->loop, UV_RUN_NOWAIT);
}

static bool lost_one(const struct world *w) { return w->err == SHOAL_ERR_RANK_LOST; }

/* A counter does not begin again where a kernel's process does, and what took the process with it failed. */
static void test_what_was_counted_outlives_the_kernels_process(void **state)
{
    struct world *w = *state;
    const struct serve_counts *counts;

    ask(w, shoal_view_text("one"));
    say_done(w, w->id, 0);
    assert_true(until(w, has_answer));
    ask(w, shoal_view_text("which ends it"));
    turns(w, 4); /* the kernel has it */
    (void)close(w->fd);
    assert_true(until(w, lost_one));
    serve_host_end(w->host, WORKER);
    counts = serve_host_counts(w->host, w->job);
    assert_non_null(counts);
    assert_int_equal(counts->answered, 1);
    assert_int_equal(counts->failed, 1);
    assert_int_equal(ready(w), 0);

    start(w, w->job, WORKER, w->path);
    counts = serve_host_counts(w->host, w->job);
    assert_int_equal(counts->answered + counts->failed, 2);
    serve_host_forget(w->host, w->job);
    assert_non_null(serve_host_counts(w->host, w->job)); /* a kernel's process is here */
    serve_host_end(w->host, WORKER);
    serve_host_forget(w->host, w->job);
    assert_null(serve_host_counts(w->host, w->job));
}

static size_t counted(const struct world *w)
{
    struct serve_counted one;
    size_t count = 0;

    while (serve_host_counted(w->host, count, &one))
        count++;
    return count;
}

/* What is kept of services that are over is bounded, and never takes the place of one that runs. */
static void test_what_ended_longest_ago_gives_way(void **state)
{
    struct world *w = *state;
    struct shoal_job_id job = { { 0 } };

    for (unsigned i = 0; i < SERVE_FACTS_MAX + 8; i++) {
        job.bytes[0] = (uint8_t)(20 + i);
        start(w, job, WORKER + 1, "/nowhere/k.sock");
        serve_host_end(w->host, WORKER + 1);
    }
    assert_int_equal(counted(w), SERVE_FACTS_MAX);
    assert_non_null(serve_host_counts(w->host, w->job));
    assert_non_null(serve_host_counts(w->host, job));
    job.bytes[0] = 20;
    assert_null(serve_host_counts(w->host, job));

    job.bytes[0] = 20 + SERVE_FACTS_MAX;
    job.bytes[1] = 1; /* another job of this name and version */
    start(w, job, WORKER + 1, "/nowhere/k.sock");
    assert_non_null(serve_host_counts(w->host, job));
    job.bytes[1] = 0;
    assert_null(serve_host_counts(w->host, job));
    serve_host_end(w->host, WORKER + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_kernel_that_answers_without_reading_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_kernel_that_closes_its_link_is_connected_again, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_room_for_a_large_answer_is_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_turn_is_one_write_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_was_to_be_written_to_a_kernel_that_ends_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_answer_to_what_was_cancelled_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_cancelled_while_its_kernel_ends_is_not_told, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_replica_that_is_stopped_is_handed_nothing_more, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_kernel_that_sends_beyond_its_window_is_ended, setup, teardown),
        cmocka_unit_test_setup_teardown(test_whose_time_ends_first_is_handed_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_room_of_what_is_cancelled_is_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_socket_of_another_user_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_was_counted_outlives_the_kernels_process, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_ended_longest_ago_gives_way, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
