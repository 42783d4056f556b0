#include "shoal/hash.h"
#include "shoal/link.h"
#include "shoal/rand.h"

#include "node/agent/agent.h"
#include "node/link/link_conn_uv.h"
#include "node/link/peer_call.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>

#include <uv.h>

#include <cmocka.h>

#include "loop_test.h"

#include "shoal/banned.h"

/* Two or three agents in one loop. A case runs the loop until its condition holds, or the watchdog fails it. */

struct seen {
    uint8_t channel;
    enum shoal_lane lane;
    struct shoal_node_id from;
    size_t len;
    uint32_t first; /* the first bytes of the frame */
    bool intact;
};

struct end {
    struct shoal_link *link;
    struct shoal_identity identity;
    struct fixture *fixture;
    unsigned ups, downs, failures, frames, writables, stopped, probes;
    struct shoal_link_failure failure;
    struct shoal_link_probe probe;
    char text[400];
    char note[400];
    struct shoal_link_peer peer;
    struct seen last;
    uint32_t in_order[SHOAL_LANES];
    bool echo;
    bool stop_on_frame;
    bool intrudes;
    bool mute; /* what comes is not looked at */
    struct peer_calls *calls; /* NULL: frames are this file's own */
    uv_loop_t *loop; /* NULL: the fixture's; another one can be frozen */
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t watchdog;
    struct end ends[3];
    bool late;
    bool quick;      /* short handshakes for all */
    bool quick_idle; /* and short silences */
    bool slow_dials; /* the first one is slow to dial again */
    bool impatient;  /* the second one has all the time of the world, the first one has not */
    uv_loop_t second;
    struct agent *agent; /* NULL: a case of links alone */
    struct peer_calls *calls[3]; /* that a case made */
};

/* A BULK connection of another session, before the right one: of a link that was there before, it may come late. */
static void intrude(struct end *end, const struct shoal_link_peer *peer)
{
    struct conn *conn = conn_create(end->link, true);

    assert_non_null(conn);
    conn->lane = SHOAL_LANE_BULK;
    conn->address = peer->address;
    conn->expected = peer->node;
    conn->session = 4711;
    assert_int_equal(conn_dial(conn), SHOAL_OK);
}

static void on_up(void *arg, const struct shoal_link_peer *peer)
{
    struct end *end = arg;

    end->ups++;
    if (end->intrudes)
        intrude(end, peer);
    end->peer = *peer;
}

static void on_down(void *arg, struct shoal_node_id node)
{
    struct end *end = arg;

    (void)node;
    end->downs++;
}

static void on_stopped(void *arg) { ((struct end *)arg)->stopped++; }

static void on_frame(void *arg, struct shoal_node_id node, enum shoal_lane lane, uint8_t channel,
                     struct shoal_view frame)
{
    struct end *end = arg;
    bool intact = true;

    if (end->calls != NULL) {
        peer_calls_frame(end->calls, node, frame);
        return;
    }
    if (end->mute)
        return;
    for (size_t i = 4; i < frame.len && intact; i++)
        intact = frame.bytes[i] == (uint8_t)(i * 7 + frame.len);
    end->frames++;
    end->last = (struct seen){ .channel = channel, .lane = lane, .from = node, .len = frame.len, .intact = intact };
    if (frame.len >= 4) {
        memcpy(&end->last.first, frame.bytes, 4);
        assert_int_equal(end->last.first, end->in_order[lane]++);
    }
    if (end->echo)
        assert_int_equal(shoal_link_send(end->link, node, lane, channel, frame), SHOAL_OK);
    if (end->stop_on_frame) {
        struct shoal_link *link = end->link;

        end->link = NULL;
        shoal_link_stop(link, on_stopped, end);
    }
}

static void on_writable(void *arg, struct shoal_node_id node, enum shoal_lane lane)
{
    (void)node, (void)lane;
    ((struct end *)arg)->writables++;
}

static void on_failure(void *arg, const struct shoal_link_failure *failure)
{
    struct end *end = arg;

    end->failures++;
    end->failure = *failure;
    (void)snprintf(end->text, sizeof(end->text), "%s", failure->text);
}

static void on_probed(void *arg, const struct shoal_link_probe *probe)
{
    struct end *end = arg;

    end->probes++;
    end->probe = *probe;
    (void)snprintf(end->text, sizeof(end->text), "%s", probe->text);
}

static void on_note(void *arg, const char *text)
{
    struct end *end = arg;

    (void)snprintf(end->note, sizeof(end->note), "%s", text);
}

/* As RUN_UNTIL, with the second loop, which may be frozen. */
static void run_both(struct fixture *f, bool frozen)
{
    (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    if (!frozen)
        (void)uv_run(&f->second, UV_RUN_NOWAIT);
    if (f->late)
        fail_msg("it never came");
}

static void start(struct fixture *f, unsigned i, uint16_t port)
{
    struct end *end = &f->ends[i];
    struct shoal_link_options options = {
        .loop = end->loop != NULL ? end->loop : &f->loop,
        .identity = &end->identity,
        .listen = loopback(port),
        .handlers = { .arg = end,
                      .on_up = on_up,
                      .on_down = on_down,
                      .on_frame = on_frame,
                      .on_writable = on_writable,
                      .on_failure = on_failure,
                      .on_probed = on_probed,
                      .on_note = on_note },
        .redial_min_ns = 10 * SHOAL_MS,
        .redial_max_ns = 40 * SHOAL_MS,
    };
    struct shoal_msg msg = { "" };

    if (i == 2 || f->quick) {
        options.handshake_timeout_ns = 60 * SHOAL_MS;
        options.idle_ping_ns = f->quick_idle ? 100 * SHOAL_MS : 0;
        options.idle_dead_ns = f->quick_idle ? 600 * SHOAL_MS : 0;
    }
    if (f->slow_dials && i == 0)
        options.redial_min_ns = options.redial_max_ns = 60 * SHOAL_S;
    if (f->impatient) {
        options.idle_ping_ns = i == 0 ? 500 * SHOAL_MS : 100 * SHOAL_MS;
        options.idle_dead_ns = i == 0 ? 1500 * SHOAL_MS : 60 * SHOAL_S;
    }
    if (shoal_link_create(&end->link, &options, &msg) != SHOAL_OK)
        fail_msg("%s", msg.text);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct shoal_secret secret;

    if (f == NULL || shoal_crypto_init(NULL) != SHOAL_OK || uv_loop_init(&f->loop) != 0)
        return -1;
    secret = shoal_secret_random();
    for (unsigned i = 0; i < 3; i++) {
        struct shoal_identity *identity = &f->ends[i].identity;
        uint8_t seed[32] = { 0 };

        /* The seeds give a < b < c by node id: the tests of simultaneous dials lean on that. */
        do {
            seed[0]++;
            shoal_key_of_seed(seed, &identity->public_key, &identity->secret_key);
            identity->node = shoal_node_id_of(&identity->public_key);
        } while (identity->node.bytes[0] / 86 != i);
        identity->mesh_secret = secret;
        identity->incarnation = (struct shoal_incarnation){ 1, 7 + i, 0 };
        identity->store.bytes[0] = (uint8_t)i;
        f->ends[i].fixture = f;
    }
    loop_watch(&f->loop, &f->watchdog, &f->late);
    *state = f;
    return 0;
}

static void stop(struct fixture *f, unsigned i)
{
    struct end *end = &f->ends[i];

    if (end->link == NULL)
        return;
    shoal_link_stop(end->link, on_stopped, end);
    end->link = NULL;
    end->stopped = 0;
    RUN_UNTIL(f, end->stopped == 1);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < 3; i++)
        stop(f, i);
    loop_end(&f->loop);
    for (unsigned i = 0; i < 3; i++)
        free(f->calls[i]);
    if (f->agent != NULL) {
        shoal_sched_destroy(f->agent->sched);
        free(f->agent->calls);
        free(f->agent);
    }
    free(f);
    return 0;
}

static struct shoal_node_id node(const struct fixture *f, unsigned i) { return f->ends[i].identity.node; }

static enum shoal_err want(struct fixture *f, unsigned from, unsigned to)
{
    return shoal_link_want(f->ends[from].link, node(f, to), loopback(shoal_link_port(f->ends[to].link)));
}

/* In two parts, of which the first one has `cut` bytes. */
static enum shoal_err send_cut(struct fixture *f, unsigned from, unsigned to, enum shoal_lane lane, uint32_t number,
                               size_t len, size_t cut)
{
    uint8_t *bytes = malloc(len + 4);
    enum shoal_err err;

    assert_non_null(bytes);
    for (size_t i = 4; i < len; i++)
        bytes[i] = (uint8_t)(i * 7 + len);
    memcpy(bytes, &number, 4);
    err = cut == 0 ? shoal_link_send(f->ends[from].link, node(f, to), lane, (uint8_t)(number & 0xff),
                                     shoal_view_of(bytes, len)) :
                     shoal_link_send_two(f->ends[from].link, node(f, to), lane, (uint8_t)(number & 0xff),
                                         shoal_view_of(bytes, cut), shoal_view_of(bytes + cut, len - cut));
    free(bytes);
    return err;
}

static enum shoal_err send_frame(struct fixture *f, unsigned from, unsigned to, enum shoal_lane lane, uint32_t number,
                                 size_t len)
{
    return send_cut(f, from, to, lane, number, len, 0);
}

static void link_two(struct fixture *f)
{
    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(want(f, 0, 1), SHOAL_OK);
    RUN_UNTIL(f, f->ends[0].ups == 1 && f->ends[1].ups == 1);
}

static void a_wanted_link_comes_up_and_says_who_is_there(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];

    link_two(f);
    assert_true(shoal_node_id_equal(a->peer.node, node(f, 1)) && shoal_node_id_equal(b->peer.node, node(f, 0)));
    assert_true(shoal_store_id_equal(a->peer.store, b->identity.store));
    assert_int_equal(a->peer.incarnation.agent, 8);
    assert_int_equal(b->peer.incarnation.agent, 7);
    assert_int_equal(b->peer.listen_port, shoal_link_port(a->link));
    assert_memory_equal(&b->peer.key, &a->identity.public_key, 32);
    assert_true(a->peer.dialled && !b->peer.dialled);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, 0, 100), SHOAL_OK);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, 0, 100), SHOAL_OK); /* BULK is not open yet */
    assert_int_equal(send_frame(f, 1, 0, SHOAL_LANE_BULK, 0, 100), SHOAL_OK);
    RUN_UNTIL(f, b->frames == 2 && a->frames == 1);
    assert_true(b->last.intact && a->last.intact);
    assert_int_equal(a->downs + b->downs + a->failures + b->failures, 0);
}

static void frames_of_every_size_arrive_whole_and_in_order(void **state)
{
    static const size_t sizes[] = {
        4, 5, 1000, 65516, 65517, 65518, 65519, 131034, 131035, 262144, SHOAL_FRAME_BYTES_MAX
    };
    struct fixture *f = *state;
    struct end *b = &f->ends[1];
    uint32_t number = 0;

    link_two(f);
    for (unsigned lane = 0; lane < SHOAL_LANES; lane++, number = 0) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            unsigned frames = b->frames;

            assert_int_equal(send_frame(f, 0, 1, (enum shoal_lane)lane, number, sizes[i]), SHOAL_OK);
            RUN_UNTIL(f, b->frames == frames + 1);
            if (b->last.len != sizes[i] || !b->last.intact || b->last.channel != number || b->last.lane != lane)
                fail_msg("a frame of %zu bytes came as %zu, intact %d", sizes[i], b->last.len, b->last.intact);
            number++;
        }
    }
    assert_int_equal(shoal_link_send(f->ends[0].link, node(f, 1), SHOAL_LANE_BULK, 9, shoal_view_of("", 0)), SHOAL_OK);
    RUN_UNTIL(f, b->last.channel == 9 && b->last.len == 0);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, 0, SHOAL_FRAME_BYTES_MAX + 1), SHOAL_ERR_TOO_BIG);
    assert_int_equal(send_frame(f, 0, 2, SHOAL_LANE_BULK, 0, 10), SHOAL_ERR_UNREACHABLE);
}

/* Sizes around that of a record: where the first part ends is not seen at the other side. */
static void a_frame_in_two_parts_arrives_as_one(void **state)
{
    static const size_t sizes[] = { 600, 65516, 65517, 65518, 65519, 131034, 131035, SHOAL_FRAME_BYTES_MAX };
    static const size_t cuts[] = { 4, 19, SHOAL_LINK_START_MAX };
    struct fixture *f = *state;
    struct end *b = &f->ends[1];
    uint32_t number = 0;

    link_two(f);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (size_t j = 0; j < sizeof(cuts) / sizeof(cuts[0]); j++) {
            unsigned frames = b->frames;

            /* The first ones while BULK is not open yet. */
            assert_int_equal(send_cut(f, 0, 1, SHOAL_LANE_BULK, number, sizes[i], cuts[j]), SHOAL_OK);
            RUN_UNTIL(f, b->frames == frames + 1);
            if (b->last.len != sizes[i] || !b->last.intact || b->last.channel != number)
                fail_msg("%zu bytes cut at %zu came as %zu, intact %d", sizes[i], cuts[j], b->last.len, b->last.intact);
            number++;
        }
    }
    assert_int_equal(send_cut(f, 0, 1, SHOAL_LANE_BULK, number, 4, 4), SHOAL_OK); /* the rest may be empty */
    RUN_UNTIL(f, b->last.len == 4 && b->last.intact);
    assert_int_equal(send_cut(f, 0, 1, SHOAL_LANE_BULK, 0, 2000, SHOAL_LINK_START_MAX + 1), SHOAL_ERR_TOO_BIG);
    assert_int_equal(send_cut(f, 0, 1, SHOAL_LANE_BULK, 0, SHOAL_FRAME_BYTES_MAX + 1, 19), SHOAL_ERR_TOO_BIG);
}

static void a_full_lane_pushes_back_and_the_other_one_goes_on(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];
    uint32_t number = 0;

    link_two(f);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, number++, 100), SHOAL_OK);
    RUN_UNTIL(f, b->frames == 1);
    while (send_frame(f, 0, 1, SHOAL_LANE_BULK, number, 200000) == SHOAL_OK)
        number++;
    assert_true((uint64_t)number * 200000 <= SHOAL_LINK_BULK_QUEUE_MAX + 65536 * 16);
    assert_int_equal(shoal_link_stats(a->link)->send_full, 1);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, 0, 100), SHOAL_OK);
    RUN_UNTIL(f, a->writables == 1);
    RUN_UNTIL(f, b->frames == number + 1);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, number, 200000), SHOAL_OK);
    RUN_UNTIL(f, b->in_order[SHOAL_LANE_BULK] == number + 1);
}

static void simultaneous_dials_end_in_one_link(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];

    start(f, 0, 0);
    start(f, 1, 0);
    for (unsigned round = 1; round <= 10; round++) {
        assert_int_equal(want(f, 0, 1), SHOAL_OK);
        assert_int_equal(want(f, 1, 0), SHOAL_OK);
        RUN_UNTIL(f, a->ups == round && b->ups == round);
        assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, b->in_order[1], 10), SHOAL_OK);
        assert_int_equal(send_frame(f, 1, 0, SHOAL_LANE_BULK, a->in_order[1], 10), SHOAL_OK);
        RUN_UNTIL(f, a->frames == round && b->frames == round);
        assert_int_equal(a->downs, round - 1);
        assert_int_equal(b->downs, round - 1);
        assert_true(a->peer.dialled != b->peer.dialled);
        /* Two dials of control and one of bulk: nobody has to dial twice. */
        assert_true(shoal_link_stats(a->link)->dials + shoal_link_stats(b->link)->dials <= 3 * round);
        shoal_link_unwant(a->link, node(f, 1));
        shoal_link_unwant(b->link, node(f, 0));
        shoal_link_close(a->link, node(f, 1));
        RUN_UNTIL(f, a->downs == round && b->downs == round);
    }
    assert_int_equal(a->failures + b->failures, 0);
}

static enum shoal_err probe(struct fixture *f, unsigned from, struct shoal_address address)
{
    struct end *end = &f->ends[from];
    unsigned before = end->probes;

    assert_int_equal(shoal_link_probe(end->link, address), SHOAL_OK);
    RUN_UNTIL(f, end->probes == before + 1);
    return end->probe.err;
}

/* As `shoal doctor` asks, beside an agent of the same folder, and an agent whose folder may be a copy. */
static void a_probe_says_who_is_there_and_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1], *c = &f->ends[2];
    struct shoal_address gone;

    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(want(f, 0, 1), SHOAL_OK);
    RUN_UNTIL(f, a->ups == 1 && b->ups == 1);
    assert_int_equal(probe(f, 0, loopback(shoal_link_port(b->link))), SHOAL_OK);
    assert_true(shoal_node_id_equal(a->probe.node, node(f, 1)));
    c->identity = a->identity; /* beside the agent of its folder */
    start(f, 2, 0);
    assert_int_equal(probe(f, 2, loopback(shoal_link_port(b->link))), SHOAL_OK);
    assert_int_equal(probe(f, 2, loopback(shoal_link_port(a->link))), SHOAL_ERR_EXISTS);
    assert_true(shoal_node_id_equal(c->probe.node, node(f, 0)));
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, 0, 100), SHOAL_OK);
    RUN_UNTIL(f, b->frames == 1);
    assert_int_equal(a->ups + b->ups + c->ups, 2);
    assert_int_equal(a->downs + b->downs + a->failures + b->failures, 0);
    gone = loopback(shoal_link_port(c->link));
    stop(f, 2);
    assert_int_equal(probe(f, 0, gone), SHOAL_ERR_UNREACHABLE);
    c->identity.mesh_secret.bytes[0] ^= 1;
    start(f, 2, 0);
    assert_int_equal(probe(f, 2, loopback(shoal_link_port(b->link))), SHOAL_ERR_DENIED);
    assert_non_null(strstr(c->text, "another mesh secret"));
    assert_int_equal(a->downs + b->downs, 0);
}

/* The kernel refuses to dial the first one at once, in the turn in which the others are dialled. */
static void a_probe_has_its_time_whatever_becomes_of_another(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];
    struct shoal_address nowhere;

    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(shoal_address_parse("224.0.0.1:7", 0, &nowhere, NULL), SHOAL_OK);
    assert_int_equal(shoal_link_probe(a->link, nowhere), SHOAL_OK);
    assert_int_equal(shoal_link_probe(a->link, loopback(shoal_link_port(f->ends[1].link))), SHOAL_OK);
    RUN_UNTIL(f, a->probes == 2);
    if (a->probe.err != SHOAL_OK || !shoal_node_id_equal(a->probe.node, node(f, 1)))
        fail_msg("who answers is not found: %s", a->text);
}

static void a_stranger_is_refused_and_told_why(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];

    b->identity.mesh_secret.bytes[0] ^= 1;
    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(want(f, 0, 1), SHOAL_OK);
    RUN_UNTIL(f, a->failures >= 1);
    assert_int_equal(a->failure.err, SHOAL_ERR_DENIED);
    assert_non_null(strstr(a->text, "mesh secret"));
    assert_non_null(strstr(b->note, "mesh secret"));
    assert_int_equal(a->ups + b->ups, 0);
    assert_true(shoal_link_stats(b->link)->drop_refused >= 1);
}

static void another_node_at_the_address_is_not_taken_for_the_wanted_one(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];

    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(shoal_link_want(a->link, node(f, 2), loopback(shoal_link_port(f->ends[1].link))), SHOAL_OK);
    RUN_UNTIL(f, a->failures >= 1);
    assert_int_equal(a->failure.err, SHOAL_ERR_DENIED);
    assert_true(shoal_node_id_equal(a->failure.node, node(f, 2)));
    assert_int_equal(a->ups + f->ends[1].ups, 0);
}

static void a_dead_agent_is_told_from_a_dead_host_and_dialled_until_it_is_back(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];
    uint16_t port;

    link_two(f);
    port = shoal_link_port(b->link);
    stop(f, 1);
    RUN_UNTIL(f, a->downs == 1 && a->failures >= 2);
    assert_true(a->failure.refused);
    assert_int_equal(a->failure.err, SHOAL_ERR_UNREACHABLE);
    b->identity.incarnation.agent = 9;
    start(f, 1, port);
    RUN_UNTIL(f, a->ups == 2 && b->ups == 2);
    assert_int_equal(a->peer.incarnation.agent, 9);
    assert_int_equal(send_frame(f, 1, 0, SHOAL_LANE_CONTROL, 0, 50), SHOAL_OK);
    RUN_UNTIL(f, a->frames == 1);
}

static void nobody_dials_what_is_not_wanted_any_more(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];

    link_two(f);
    shoal_link_unwant(a->link, node(f, 1));
    stop(f, 1);
    RUN_UNTIL(f, a->downs == 1);
    assert_int_equal(shoal_link_stats(a->link)->peers_up, 0);
    assert_null(shoal_link_find(a->link, node(f, 1)));
    assert_int_equal(shoal_link_stats(a->link)->dials, 2);
}

/* A raw TCP client that sends given bytes. */
struct raw {
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    uv_buf_t buf;
    char space[512];
    bool closed, shut;
};

static void on_raw_close(uv_handle_t *handle) { ((struct raw *)handle->data)->closed = true; }

static void on_raw_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct raw *raw = handle->data;

    (void)suggested;
    *buf = uv_buf_init(raw->space, sizeof(raw->space));
}

static void on_raw_read(uv_stream_t *stream, ssize_t got, const uv_buf_t *buf)
{
    struct raw *raw = stream->data;

    (void)buf;
    if (got < 0)
        raw->shut = true;
}

static void on_raw_connect(uv_connect_t *connect, int status)
{
    struct raw *raw = connect->data;

    assert_int_equal(status, 0);
    (void)uv_read_start((uv_stream_t *)&raw->tcp, on_raw_alloc, on_raw_read);
    if (raw->buf.len > 0)
        (void)uv_write(&raw->write, (uv_stream_t *)&raw->tcp, &raw->buf, 1, NULL);
}

static void raw_start(struct fixture *f, struct raw *raw, uint16_t port, const char *bytes, size_t len)
{
    struct sockaddr_storage to;

    memset(raw, 0, sizeof(*raw));
    shoal_address_to_sockaddr(loopback(port), &to);
    (void)uv_tcp_init(&f->loop, &raw->tcp);
    raw->tcp.data = raw;
    raw->connect.data = raw;
    memcpy(raw->space, bytes, len);
    raw->buf = uv_buf_init(raw->space, (unsigned)len);
    assert_int_equal(uv_tcp_connect(&raw->connect, &raw->tcp, (const struct sockaddr *)&to, on_raw_connect), 0);
}

static void raw_stop(struct fixture *f, struct raw *raw)
{
    uv_close((uv_handle_t *)&raw->tcp, on_raw_close);
    RUN_UNTIL(f, raw->closed);
}

static void on_raw_client(uv_stream_t *server, int status)
{
    (void)server; /* nobody accepts it: the kernel has, and whoever dialled waits */
    (void)status;
}

static void an_address_that_says_nothing_is_given_up_in_time(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];
    struct raw mute = { 0 };
    struct sockaddr_storage at;
    int len = sizeof(at);

    f->quick = true;
    start(f, 0, 0);
    shoal_address_to_sockaddr(loopback(0), &at);
    assert_int_equal(uv_tcp_init(&f->loop, &mute.tcp), 0);
    mute.tcp.data = &mute;
    assert_int_equal(uv_tcp_bind(&mute.tcp, (const struct sockaddr *)&at, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&mute.tcp, 8, on_raw_client), 0);
    assert_int_equal(uv_tcp_getsockname(&mute.tcp, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(shoal_link_want(a->link, node(f, 1),
                                     loopback(ntohs(((const struct sockaddr_in6 *)(const void *)&at)->sin6_port))),
                     SHOAL_OK);
    RUN_UNTIL(f, a->failures >= 1);
    assert_int_equal(a->failure.err, SHOAL_ERR_TIMEOUT);
    assert_false(a->failure.refused);
    assert_non_null(strstr(a->text, "firewall"));
    raw_stop(f, &mute);
}

static void garbage_is_dropped_and_counted(void **state)
{
    static const struct {
        const char *name;
        const char *bytes;
        size_t len;
        bool malformed, truncated;
    } cases[] = {
        { "another protocol", "GET / HTTP/1.1\r\n\r\n", 18, true, false },
        { "a version too new", "L\x09\x09", 3, true, false },
        { "a first message too short", "L\x02\x02\x05\x00hello", 10, true, false },
        { "a first message too long", "L\x02\x02\xff\xff", 5, true, false },
        { "a first message of zeroes",
          "L\x02\x02\x30\x00\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
          "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
          53, true, false },
        { "a stream cut short", "L\x02\x02\x30", 4, false, true },
    };
    struct fixture *f = *state;
    struct end *c = &f->ends[2];

    start(f, 2, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct shoal_link_stats *stats = shoal_link_stats(c->link);
        uint64_t malformed = stats->drop_malformed, truncated = stats->drop_truncated;
        struct raw raw;

        raw_start(f, &raw, shoal_link_port(c->link), cases[i].bytes, cases[i].len);
        if (cases[i].truncated)
            RUN_UNTIL(f, stats->bytes_in >= 4 && stats->handshakes_open == 1 && raw.write.handle != NULL);
        else
            RUN_UNTIL(f, raw.shut);
        raw_stop(f, &raw);
        RUN_UNTIL(f, stats->handshakes_open == 0);
        if (stats->drop_malformed - malformed != cases[i].malformed ||
            stats->drop_truncated - truncated != cases[i].truncated)
            fail_msg("%s: malformed +%llu, truncated +%llu", cases[i].name,
                     (unsigned long long)(stats->drop_malformed - malformed),
                     (unsigned long long)(stats->drop_truncated - truncated));
    }
}

static void expect_refused_version(struct fixture *f, const char *head, const char *want)
{
    struct end *c = &f->ends[2];
    struct raw raw;

    start(f, 2, 0);
    raw_start(f, &raw, shoal_link_port(c->link), head, 3);
    RUN_UNTIL(f, raw.shut);
    raw_stop(f, &raw);
    assert_int_equal(shoal_link_stats(c->link)->drop_malformed, 1);
    assert_non_null(strstr(c->note, want));
    assert_non_null(strstr(c->note, "upgrade the older"));
}

static void an_older_version_is_refused_by_name(void **state)
{
    expect_refused_version(*state, "L\x01\x01", "speaks version 1 of the link");
}

static void a_newer_version_is_refused_by_name(void **state)
{
    expect_refused_version(*state, "L\x09\x03", "speaks version 9 of the link, readable from version 3 on");
}

static void a_silent_client_is_closed_and_a_crowd_loses_its_oldest(void **state)
{
    struct fixture *f = *state;
    struct end *c = &f->ends[2];
    struct raw *raws = calloc(SHOAL_LINK_HANDSHAKES_MAX + 3, sizeof(*raws));
    const struct shoal_link_stats *stats;

    assert_non_null(raws);
    start(f, 2, 0);
    stats = shoal_link_stats(c->link);
    raw_start(f, &raws[0], shoal_link_port(c->link), "", 0);
    RUN_UNTIL(f, raws[0].shut); /* its handshake timed out */
    assert_int_equal(stats->drop_crowded, 0);
    raw_stop(f, &raws[0]);
    for (unsigned i = 0; i < SHOAL_LINK_HANDSHAKES_MAX + 3; i++)
        raw_start(f, &raws[i], shoal_link_port(c->link), "", 0);
    RUN_UNTIL(f, stats->drop_crowded >= 3);
    for (unsigned i = 0; i < SHOAL_LINK_HANDSHAKES_MAX + 3; i++)
        RUN_UNTIL(f, raws[i].shut);
    for (unsigned i = 0; i < SHOAL_LINK_HANDSHAKES_MAX + 3; i++)
        raw_stop(f, &raws[i]);
    free(raws);
}

static void the_owner_may_stop_from_inside_a_callback(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];

    link_two(f);
    b->stop_on_frame = true;
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, 0, 100), SHOAL_OK);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, 1, 100), SHOAL_OK);
    RUN_UNTIL(f, b->stopped == 1 && a->downs == 1);
    assert_int_equal(b->frames, 1);
}

static void many_small_frames_go_both_ways(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];

    link_two(f);
    b->echo = true;
    for (uint32_t i = 0; i < 2000; i++)
        assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, i, 64), SHOAL_OK);
    RUN_UNTIL(f, a->frames == 2000);
    assert_int_equal(a->in_order[SHOAL_LANE_CONTROL], 2000);
}

static void the_frames_of_one_turn_share_a_write(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];
    uint64_t writes;

    link_two(f);
    writes = shoal_link_stats(a->link)->writes;
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, i, 64), SHOAL_OK);
    assert_int_equal(shoal_link_stats(a->link)->writes, writes); /* nothing yet: the turn is not over */
    RUN_UNTIL(f, b->frames == 50);
    assert_in_range(shoal_link_stats(a->link)->writes - writes, 1, 2);
}

/* Bytes that were sent just before a close are on their way. */
static void a_frame_before_a_close_arrives(void **state)
{
    struct fixture *f = *state;
    struct end *b = &f->ends[1];

    link_two(f);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, 0, 64), SHOAL_OK);
    shoal_link_close(f->ends[0].link, node(f, 1));
    RUN_UNTIL(f, b->frames == 1);
}

static void nobody_is_believed_with_another_nodes_key(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];

    a->identity.public_key = f->ends[2].identity.public_key;
    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(want(f, 0, 1), SHOAL_OK); /* in its hello */
    RUN_UNTIL(f, a->failures >= 1);
    assert_true(shoal_link_stats(b->link)->drop_refused >= 1);
    shoal_link_unwant(a->link, node(f, 1));
    assert_int_equal(shoal_link_want(b->link, node(f, 2), loopback(shoal_link_port(a->link))),
                     SHOAL_OK); /* in its answer */
    RUN_UNTIL(f, b->failures >= 1);
    assert_int_equal(b->failure.err, SHOAL_ERR_DENIED);
    assert_int_equal(a->ups + b->ups, 0);
}

static void start_frozen_pair(struct fixture *f)
{
    f->quick = true;
    assert_int_equal(uv_loop_init(&f->second), 0);
    f->ends[1].loop = &f->second;
    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(want(f, 0, 1), SHOAL_OK);
    while (f->ends[0].ups == 0 || f->ends[1].ups == 0)
        run_both(f, false);
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, 0, 50), SHOAL_OK);
    while (f->ends[1].frames == 0)
        run_both(f, false); /* now the second lane is open too */
}

static void end_second(struct fixture *f)
{
    struct end *b = &f->ends[1];

    shoal_link_stop(b->link, on_stopped, b);
    b->link = NULL;
    (void)uv_run(&f->second, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->second), 0);
    b->loop = NULL;
}

static void an_idle_link_stays_and_a_silent_one_goes_down(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];
    uint64_t until;

    f->quick_idle = true;
    start_frozen_pair(f);
    for (until = uv_hrtime() + 300 * SHOAL_MS; uv_hrtime() < until;)
        run_both(f, false); /* only pings */
    assert_int_equal(a->downs + b->downs, 0);
    while (a->downs == 0)
        run_both(f, true);
    while (a->ups < 2 || b->ups < 2) /* thawed, it is linked again */
        run_both(f, false);
    assert_int_equal(send_frame(f, 1, 0, SHOAL_LANE_CONTROL, 0, 50), SHOAL_OK);
    while (a->frames == 0)
        run_both(f, false);
    end_second(f);
}

/* The other side's words wait in the sockets while this loop stands still: its silence is this one's own. */
static void a_loop_that_stood_still_takes_nobody_for_dead(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];

    uint64_t until;

    f->impatient = true;
    start_frozen_pair(f);
    for (until = uv_hrtime() + 2 * SHOAL_S; uv_hrtime() < until;)
        (void)uv_run(&f->second, UV_RUN_NOWAIT); /* which pings */
    for (until = uv_hrtime() + 50 * SHOAL_MS; uv_hrtime() < until;)
        run_both(f, false);
    assert_int_equal(a->downs + b->downs, 0);
    end_second(f);
}

/* Who saw that nothing arrives any more asks for small segments; the other, which saw nothing of it, is the first to dial. */
static void the_one_who_saw_a_path_swallow_packets_dials(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];
    unsigned narrow = 0;

    f->slow_dials = true;
    f->impatient = true;
    start_frozen_pair(f);
    assert_int_equal(want(f, 1, 0), SHOAL_OK);
    while (a->downs == 0)
        run_both(f, true);
    while (a->ups < 2 || b->ups < 2)
        run_both(f, false);
    assert_true(a->peer.dialled && !b->peer.dialled);
    for (const struct conn *conn = b->link->conns; conn != NULL; conn = conn->next)
        narrow += conn->state == CONN_OPEN && conn_is_narrow(conn);
    assert_true(narrow > 0);
    end_second(f);
}

static void what_waits_for_the_second_lane_is_bounded(void **state)
{
    struct fixture *f = *state;
    size_t taken = 0;
    enum shoal_err err = SHOAL_OK;
    uint32_t number = 0;

    link_two(f);
    while (err == SHOAL_OK && taken < 2 * SHOAL_LINK_BULK_QUEUE_MAX) { /* not open yet: no turn was made */
        err = send_frame(f, 0, 1, SHOAL_LANE_BULK, number, 100000);
        number += err == SHOAL_OK;
        taken += err == SHOAL_OK ? 100000 : 0;
    }
    assert_int_equal(err, SHOAL_ERR_FULL);
    assert_true(taken <= SHOAL_LINK_BULK_QUEUE_MAX / 2);
    RUN_UNTIL(f, f->ends[1].frames == number && f->ends[0].writables > 0);
}

static void a_second_lane_of_another_session_is_refused(void **state)
{
    struct fixture *f = *state;

    f->ends[0].intrudes = true;
    link_two(f);
    f->ends[0].intrudes = false;
    assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_BULK, 0, 50), SHOAL_OK);
    RUN_UNTIL(f, f->ends[1].frames == 1 && f->ends[0].failures == 1);
    assert_int_equal(f->ends[0].failure.err, SHOAL_ERR_STALE);
    assert_int_equal(f->ends[0].downs + f->ends[1].downs, 0);
}

static struct conn *control_of(const struct end *end)
{
    struct conn *conn = end->link->conns;

    while (conn != NULL && (conn->state != CONN_OPEN || conn->lane != SHOAL_LANE_CONTROL))
        conn = conn->next;
    assert_non_null(conn);
    return conn;
}

/* What waits for it on the way is an answer as well: one that says no more is not added for each question. */
static void the_pings_of_one_that_reads_nothing_pile_nothing_up(void **state)
{
    struct fixture *f = *state;
    struct conn *ours, *theirs;
    uint64_t heard;
    uint32_t sent = 0;
    size_t waits;

    start_frozen_pair(f);
    ours = control_of(&f->ends[0]);
    theirs = control_of(&f->ends[1]);
    while (!ours->is_writing) {
        assert_int_equal(send_frame(f, 0, 1, SHOAL_LANE_CONTROL, sent++, 100000), SHOAL_OK);
        run_both(f, true);
    }
    waits = ours->out.len;
    heard = ours->link->stats.bytes_in;
    for (unsigned i = 0; i < 1000; i++)
        conn_ping(theirs);
    while (ours->link->stats.bytes_in < heard + 10000)
        run_both(f, true);
    assert_int_equal(ours->out.len, waits);
    end_second(f);
}

static void a_restarted_peer_takes_the_place_of_its_old_link(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *c = &f->ends[2];

    start_frozen_pair(f);
    c->identity = f->ends[1].identity; /* the same node, started again, while its old sockets still stand */
    c->identity.incarnation.agent = 99;
    start(f, 2, 0);
    shoal_link_unwant(a->link, node(f, 1));
    assert_int_equal(want(f, 2, 0), SHOAL_OK);
    while (a->ups < 2 || c->ups == 0)
        run_both(f, true);
    assert_int_equal(a->downs, 1);
    assert_int_equal(a->peer.incarnation.agent, 99);
    assert_int_equal(shoal_link_stats(a->link)->peers_up, 1);
    end_second(f);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

static void count_open(uv_handle_t *handle, void *arg)
{
    (void)handle;
    ++*(unsigned *)arg;
}

/* A stop may come before anything was dialled, within a handshake, while frames wait, and after: by chance, and 1,000
 * times. Each time both links say once that they have stopped, and nothing of theirs is left in the loop. */
static void a_stop_at_any_point_leaves_nothing_open(void **state)
{
    struct fixture *f = *state;
    struct shoal_rand chance;

    shoal_rand_init(&chance, 29);
    for (unsigned n = 0; n < 1000; n++) {
        uint64_t turns = shoal_rand_below(&chance, 40);
        unsigned first = (unsigned)shoal_rand_below(&chance, 2), open = 0, sent = 0;

        loop_watch_again(&f->watchdog);
        for (unsigned i = 0; i < 2; i++) {
            memset(f->ends[i].in_order, 0, sizeof(f->ends[i].in_order));
            f->ends[i].ups = f->ends[i].stopped = 0;
            start(f, i, 0);
        }
        assert_int_equal(want(f, 0, 1), SHOAL_OK);
        for (uint64_t t = 0; t < turns; t++) {
            if (f->ends[0].ups > 0 && send_frame(f, 0, 1, SHOAL_LANE_BULK, sent, 2000) == SHOAL_OK)
                sent++;
            (void)uv_run(&f->loop, UV_RUN_NOWAIT);
        }
        for (unsigned i = 0; i < 2; i++) {
            struct end *end = &f->ends[(first + i) % 2];

            shoal_link_stop(end->link, on_stopped, end);
            end->link = NULL;
        }
        RUN_UNTIL(f, f->ends[0].stopped == 1 && f->ends[1].stopped == 1);
        uv_walk(&f->loop, count_open, &open);
        if (open != 1) /* the watchdog */
            fail_msg("stop %u, after %llu turns: %u handles are left", n, (unsigned long long)turns, open - 1);
    }
}

static void on_answer(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    (void)msg;
    (void)answer;
    *(enum shoal_err *)arg = err;
}

static void on_all(void *arg, bool all)
{
    static const char *const said[] = { "some are late", "all are here" };

    *(const char **)arg = said[all ? 1 : 0];
}

static struct shoal_hash hash_of(void *arg, struct shoal_view bytes)
{
    (void)arg;
    return shoal_hash_of(bytes);
}

static bool verify_none(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                        const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    (void)arg, (void)key, (void)bytes, (void)signature;
    return false;
}

/* agent_tree_wait.c: files of a host that was not asked may be missing, and who is away has nothing more to say. */
static void files_of_a_host_that_could_not_be_asked_are_late(void **state)
{
    static enum shoal_err last;
    const struct shoal_job_id job = { { 1 } };
    struct fixture *f = *state;
    struct shoal_sched_options options = { .self = node(f, 0), .incarnation = { 1, 1, 0 }, .groups_max = 1,
                                           .env = { .hash = hash_of, .verify = verify_none } };
    const char *said = "";

    f->agent = calloc(1, sizeof(*f->agent));
    assert_non_null(f->agent);
    f->ends[1].mute = true;
    link_two(f);
    shoal_rand_init(&options.chance, 1);
    assert_int_equal(shoal_sched_create(&f->agent->sched, &options), SHOAL_OK);
    f->agent->identity = f->ends[0].identity;
    f->agent->calls = peer_calls_create(&f->loop, f->ends[0].link);
    f->agent->ran[0].job = job;
    f->agent->ran[0].hosts[0] = node(f, 2);
    f->agent->ran[0].host_count = 1;
    agent_tree_await(f->agent, job, false, 1000, on_all, &said);
    assert_string_equal(said, "all are here");
    f->agent->ran[0].hosts[0] = node(f, 1);
    for (last = SHOAL_OK; last == SHOAL_OK;)
        peer_ask(f->agent->calls, node(f, 1), PEER_PUSH_FILE, shoal_view_text("x"), 60 * SHOAL_S, on_answer, &last);
    assert_int_equal(last, SHOAL_ERR_FULL);
    agent_tree_await(f->agent, job, false, 1000, on_all, &said);
    assert_string_equal(said, "some are late");
}

struct questions {
    struct peer_question *list[2];
    unsigned count;
};

static void keep_question(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct questions *kept = arg;

    (void)from;
    (void)args;
    assert_true(kept->count < 2);
    kept->list[kept->count++] = question;
}

/* An agent asks, and is started again; then comes the answer. It is none to what the next life has asked meanwhile. */
static void an_answer_to_an_earlier_life_ends_no_question_of_this_one(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];
    enum shoal_err first = SHOAL_ERRS, second = SHOAL_ERRS;
    struct questions kept = { .count = 0 };

    link_two(f);
    b->calls = f->calls[0] = peer_calls_create(&f->loop, b->link);
    peer_serve(b->calls, PEER_HOLD, keep_question, &kept);
    a->calls = f->calls[1] = peer_calls_create(&f->loop, a->link);
    peer_ask(a->calls, node(f, 1), PEER_HOLD, shoal_view_text("x"), 60 * SHOAL_S, on_answer, &first);
    RUN_UNTIL(f, kept.count == 1);
    stop(f, 0);
    start(f, 0, 0);
    a->calls = f->calls[2] = peer_calls_create(&f->loop, a->link);
    assert_int_equal(want(f, 0, 1), SHOAL_OK);
    RUN_UNTIL(f, a->ups == 2 && b->ups == 2);
    peer_ask(a->calls, node(f, 1), PEER_HOLD, shoal_view_text("y"), 60 * SHOAL_S, on_answer, &second);
    RUN_UNTIL(f, kept.count == 2);
    peer_answer(kept.list[0], SHOAL_OK, "", (struct shoal_view){ 0 });
    peer_answer(kept.list[1], SHOAL_ERR_FULL, "", (struct shoal_view){ 0 });
    RUN_UNTIL(f, second != SHOAL_ERRS);
    assert_int_equal(second, SHOAL_ERR_FULL);
    assert_int_equal(first, SHOAL_ERRS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_stop_at_any_point_leaves_nothing_open),
        CASE(a_wanted_link_comes_up_and_says_who_is_there),
        CASE(frames_of_every_size_arrive_whole_and_in_order),
        CASE(a_frame_in_two_parts_arrives_as_one),
        CASE(a_full_lane_pushes_back_and_the_other_one_goes_on),
        CASE(simultaneous_dials_end_in_one_link),
        CASE(the_one_who_saw_a_path_swallow_packets_dials),
        CASE(what_waits_for_the_second_lane_is_bounded),
        CASE(a_second_lane_of_another_session_is_refused),
        CASE(a_loop_that_stood_still_takes_nobody_for_dead),
        CASE(a_probe_says_who_is_there_and_changes_nothing),
        CASE(a_probe_has_its_time_whatever_becomes_of_another),
        CASE(a_stranger_is_refused_and_told_why),
        CASE(another_node_at_the_address_is_not_taken_for_the_wanted_one),
        CASE(a_dead_agent_is_told_from_a_dead_host_and_dialled_until_it_is_back),
        CASE(nobody_dials_what_is_not_wanted_any_more),
        CASE(an_address_that_says_nothing_is_given_up_in_time),
        CASE(garbage_is_dropped_and_counted),
        CASE(an_older_version_is_refused_by_name),
        CASE(a_newer_version_is_refused_by_name),
        CASE(a_silent_client_is_closed_and_a_crowd_loses_its_oldest),
        CASE(the_owner_may_stop_from_inside_a_callback),
        CASE(many_small_frames_go_both_ways),
        CASE(the_frames_of_one_turn_share_a_write),
        CASE(a_frame_before_a_close_arrives),
        CASE(nobody_is_believed_with_another_nodes_key),
        CASE(an_idle_link_stays_and_a_silent_one_goes_down),
        CASE(the_pings_of_one_that_reads_nothing_pile_nothing_up),
        CASE(a_restarted_peer_takes_the_place_of_its_old_link),
        CASE(files_of_a_host_that_could_not_be_asked_are_late),
        CASE(an_answer_to_an_earlier_life_ends_no_question_of_this_one),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* as the agent does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
