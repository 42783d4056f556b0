#include "shoal/datagram.h"

#include <setjmp.h>
#include <stdarg.h>

#include <uv.h>

#include <cmocka.h>

#include "loop_test.h"

#include "shoal/banned.h"

struct end {
    struct shoal_datagram *datagram;
    struct shoal_identity identity;
    unsigned got, stopped, notes;
    struct shoal_node_id from;
    struct shoal_address address;
    char text[SHOAL_DATAGRAM_BYTES_MAX + 1];
    size_t len;
    char note[400];
};

struct fixture {
    uv_loop_t loop;
    uv_timer_t watchdog;
    struct end ends[3];
    bool late;
};

static void on_datagram(void *arg, struct shoal_node_id from, struct shoal_address address, struct shoal_view payload)
{
    struct end *end = arg;

    end->got++;
    end->from = from;
    end->address = address;
    end->len = payload.len;
    memcpy(end->text, payload.bytes, payload.len);
    end->text[payload.len] = '\0';
}

static void on_note(void *arg, const char *text)
{
    struct end *end = arg;

    end->notes++;
    (void)snprintf(end->note, sizeof(end->note), "%s", text);
}

static void on_stopped(void *arg) { ((struct end *)arg)->stopped++; }

static void start(struct fixture *f, unsigned i, unsigned peers_max)
{
    struct end *end = &f->ends[i];
    struct shoal_datagram_options options = {
        .loop = &f->loop,
        .identity = &end->identity,
        .listen = loopback(0),
        .handlers = { .arg = end, .on_datagram = on_datagram, .on_note = on_note },
        .peers_max = peers_max,
    };
    struct shoal_msg msg = { "" };

    if (shoal_datagram_create(&end->datagram, &options, &msg) != SHOAL_OK)
        fail_msg("%s", msg.text);
}

static void stop(struct fixture *f, unsigned i)
{
    struct end *end = &f->ends[i];

    if (end->datagram == NULL)
        return;
    shoal_datagram_stop(end->datagram, on_stopped, end);
    end->datagram = NULL;
    end->stopped = 0;
    RUN_UNTIL(f, end->stopped == 1);
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

        shoal_key_create(&identity->public_key, &identity->secret_key);
        identity->node = shoal_node_id_of(&identity->public_key);
        identity->mesh_secret = secret;
        identity->incarnation = (struct shoal_incarnation){ 1, 1, 0 };
    }
    loop_watch(&f->loop, &f->watchdog, &f->late);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    for (unsigned i = 0; i < 3; i++)
        stop(f, i);
    loop_end(&f->loop);
    free(f);
    return 0;
}

static struct shoal_address at(const struct fixture *f, unsigned i)
{
    return loopback(shoal_datagram_port(f->ends[i].datagram));
}

static enum shoal_err send_text(struct fixture *f, unsigned from, unsigned to, const char *text)
{
    return shoal_datagram_send(f->ends[from].datagram, f->ends[to].identity.node, at(f, to), shoal_view_text(text));
}

static void learn(struct fixture *f, unsigned who, unsigned whom)
{
    assert_int_equal(shoal_datagram_learn(f->ends[who].datagram, &f->ends[whom].identity.public_key), SHOAL_OK);
}

/* A socket of the test's own, between two ends: what a would send to b arrives here. */
struct tap {
    uv_udp_t udp;
    uint8_t space[2048];
    uint8_t kept[16][2048];
    size_t lens[16];
    unsigned count;
    uint16_t port;
    bool closed;
};

static void on_tap_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct tap *tap = handle->data;

    (void)suggested;
    *buf = uv_buf_init((char *)tap->space, sizeof(tap->space));
}

static void on_tap(uv_udp_t *udp, ssize_t got, const uv_buf_t *buf, const struct sockaddr *from, unsigned flags)
{
    struct tap *tap = udp->data;

    (void)flags;
    if (from == NULL || got < 0 || tap->count == 16)
        return;
    memcpy(tap->kept[tap->count], buf->base, (size_t)got);
    tap->lens[tap->count++] = (size_t)got;
}

static void on_tap_close(uv_handle_t *handle) { ((struct tap *)handle->data)->closed = true; }

static struct tap *tap_start(struct fixture *f)
{
    struct tap *tap = calloc(1, sizeof(*tap));
    struct sockaddr_storage where;
    struct shoal_address address;
    int len = sizeof(where);

    assert_non_null(tap);
    (void)uv_udp_init(&f->loop, &tap->udp);
    tap->udp.data = tap;
    shoal_address_to_sockaddr(loopback(0), &where);
    assert_int_equal(uv_udp_bind(&tap->udp, (const struct sockaddr *)&where, 0), 0);
    assert_int_equal(uv_udp_recv_start(&tap->udp, on_tap_alloc, on_tap), 0);
    assert_int_equal(uv_udp_getsockname(&tap->udp, (struct sockaddr *)&where, &len), 0);
    assert_int_equal(shoal_address_of_sockaddr((struct sockaddr *)&where, &address), SHOAL_OK);
    tap->port = address.port;
    return tap;
}

static void tap_stop(struct fixture *f, struct tap *tap)
{
    uv_close((uv_handle_t *)&tap->udp, on_tap_close);
    RUN_UNTIL(f, tap->closed);
    free(tap);
}

static void tapped(struct fixture *f, struct tap *tap, unsigned from, unsigned to, const char *text)
{
    unsigned count = tap->count;

    assert_int_equal(shoal_datagram_send(f->ends[from].datagram, f->ends[to].identity.node, loopback(tap->port),
                                         shoal_view_text(text)),
                     SHOAL_OK);
    RUN_UNTIL(f, tap->count == count + 1);
}

static void hand(struct fixture *f, unsigned to, const struct tap *tap, unsigned i)
{
    shoal_datagram_receive(f->ends[to].datagram, loopback(9), shoal_view_of(tap->kept[i], tap->lens[i]));
}

static void a_datagram_arrives_and_proves_its_sender(void **state)
{
    struct fixture *f = *state;
    struct end *b = &f->ends[1];

    start(f, 0, 0);
    start(f, 1, 0);
    learn(f, 0, 1);
    assert_int_equal(send_text(f, 0, 1, "hello"), SHOAL_OK); /* b has never heard of a */
    RUN_UNTIL(f, b->got == 1);
    assert_string_equal(b->text, "hello");
    assert_true(shoal_node_id_equal(b->from, f->ends[0].identity.node));
    assert_true(shoal_address_equal(b->address, at(f, 0)));
    assert_int_equal(send_text(f, 1, 0, "back"), SHOAL_OK); /* and has learnt a's key by it */
    RUN_UNTIL(f, f->ends[0].got == 1);
    assert_int_equal(shoal_datagram_stats(f->ends[0].datagram)->keys_derived, 1);
    assert_int_equal(shoal_datagram_stats(b->datagram)->keys_derived, 1);
}

static void the_largest_payload_fits_and_one_byte_more_does_not(void **state)
{
    struct fixture *f = *state;
    char big[SHOAL_DATAGRAM_PAYLOAD_MAX + 2];

    memset(big, 'x', sizeof(big));
    start(f, 0, 0);
    start(f, 1, 0);
    learn(f, 0, 1);
    big[SHOAL_DATAGRAM_PAYLOAD_MAX] = '\0';
    assert_int_equal(send_text(f, 0, 1, big), SHOAL_OK);
    RUN_UNTIL(f, f->ends[1].got == 1);
    assert_int_equal(f->ends[1].len, SHOAL_DATAGRAM_PAYLOAD_MAX);
    assert_int_equal(shoal_datagram_stats(f->ends[1].datagram)->bytes_in, SHOAL_DATAGRAM_BYTES_MAX);
    big[SHOAL_DATAGRAM_PAYLOAD_MAX] = 'x';
    big[SHOAL_DATAGRAM_PAYLOAD_MAX + 1] = '\0';
    assert_int_equal(send_text(f, 0, 1, big), SHOAL_ERR_TOO_BIG);
}

static void a_missing_key_is_asked_for(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];

    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(send_text(f, 0, 1, "one"), SHOAL_ERR_NOT_FOUND);
    assert_int_equal(send_text(f, 0, 1, "one"), SHOAL_ERR_NOT_FOUND);
    RUN_UNTIL(f, shoal_datagram_knows(a->datagram, f->ends[1].identity.node));
    assert_int_equal(shoal_datagram_stats(a->datagram)->keys_asked, 1);
    assert_int_equal(send_text(f, 0, 1, "two"), SHOAL_OK);
    RUN_UNTIL(f, f->ends[1].got == 1);
    assert_string_equal(f->ends[1].text, "two");
}

static void whoever_is_at_an_address_can_be_written_to(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];
    struct shoal_node_id nobody = { { 0 } };

    start(f, 0, 0);
    start(f, 1, 0);
    assert_int_equal(shoal_datagram_send(a->datagram, nobody, at(f, 1), shoal_view_text("join")), SHOAL_ERR_NOT_FOUND);
    RUN_UNTIL(f, shoal_datagram_knows(a->datagram, f->ends[1].identity.node));
    assert_int_equal(shoal_datagram_send(a->datagram, nobody, at(f, 1), shoal_view_text("join")), SHOAL_OK);
    RUN_UNTIL(f, f->ends[1].got == 1);
}

static void a_replay_is_dropped_and_disorder_is_not(void **state)
{
    struct fixture *f = *state;
    struct end *b = &f->ends[1];
    const struct shoal_datagram_stats *stats;
    struct tap *tap;

    start(f, 0, 0);
    start(f, 1, 0);
    tap = tap_start(f);
    learn(f, 0, 1);
    stats = shoal_datagram_stats(b->datagram);
    for (unsigned i = 0; i < 4; i++)
        tapped(f, tap, 0, 1, i == 0 ? "0" : i == 1 ? "1" : i == 2 ? "2" : "3");
    hand(f, 1, tap, 2);
    hand(f, 1, tap, 0);
    hand(f, 1, tap, 3);
    hand(f, 1, tap, 1);
    assert_int_equal(b->got, 4);
    for (unsigned i = 0; i < 4; i++)
        hand(f, 1, tap, i);
    assert_int_equal(b->got, 4);
    assert_int_equal(stats->drop_replayed, 4);
    tap_stop(f, tap);
}

static void what_is_older_than_the_window_is_dropped(void **state)
{
    struct fixture *f = *state;
    struct end *b = &f->ends[1];
    struct tap *tap;

    start(f, 0, 0);
    start(f, 1, 0);
    tap = tap_start(f);
    learn(f, 0, 1);
    tapped(f, tap, 0, 1, "early");  /* sequence 1 */
    tapped(f, tap, 0, 1, "second"); /* sequence 2 */
    for (unsigned i = 0; i < 1023; i++)
        (void)send_text(f, 0, 1, "fill"); /* to b itself; the last one has sequence 1,025 */
    tap->count = 2;
    tapped(f, tap, 0, 1, "late"); /* sequence 1,026 */
    b->got = 0;
    hand(f, 1, tap, 2);
    assert_int_equal(b->got, 1);
    hand(f, 1, tap, 0); /* 1,025 before: outside */
    assert_int_equal(b->got, 1);
    hand(f, 1, tap, 1); /* 1,024 before: outside */
    assert_int_equal(b->got, 1);
    assert_int_equal(shoal_datagram_stats(b->datagram)->drop_replayed, 2);
    tapped(f, tap, 0, 1, "jumped over"); /* in the place of one that was seen a window before */
    tapped(f, tap, 0, 1, "the next");
    b->got = 0;
    hand(f, 1, tap, 4);
    hand(f, 1, tap, 3);
    assert_int_equal(b->got, 2);
    tap_stop(f, tap);
}

static void a_restarted_sender_is_believed_and_its_past_is_not(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0], *b = &f->ends[1];
    struct tap *tap;

    start(f, 0, 0);
    start(f, 1, 0);
    tap = tap_start(f);
    learn(f, 0, 1);
    tapped(f, tap, 0, 1, "old");
    tapped(f, tap, 0, 1, "old too");
    hand(f, 1, tap, 1);
    stop(f, 0);
    a->identity.incarnation.agent = 2;
    start(f, 0, 0);
    learn(f, 0, 1);
    tapped(f, tap, 0, 1, "new");
    hand(f, 1, tap, 2);
    assert_int_equal(b->got, 2);
    assert_string_equal(b->text, "new");
    hand(f, 1, tap, 0);
    assert_int_equal(b->got, 2);
    assert_int_equal(shoal_datagram_stats(b->datagram)->drop_stale, 1);
    /* The same start with another salt: a folder that was rolled back, or copied. */
    stop(f, 0);
    start(f, 0, 0);
    learn(f, 0, 1);
    tapped(f, tap, 0, 1, "twin");
    hand(f, 1, tap, 3);
    assert_int_equal(b->got, 2);
    assert_int_equal(shoal_datagram_stats(b->datagram)->drop_stale, 2);
    assert_int_equal(b->notes, 1);
    assert_non_null(strstr(b->note, "put back from a backup"));
    hand(f, 1, tap, 0); /* an earlier life's: somebody replays it, and the node has nothing to do with it */
    assert_int_equal(b->notes, 1);
    tap_stop(f, tap);
}

static void another_mesh_is_not_heard_and_the_log_says_why(void **state)
{
    struct fixture *f = *state;
    struct end *b = &f->ends[1];

    f->ends[0].identity.mesh_secret.bytes[31] ^= 1;
    start(f, 0, 0);
    start(f, 1, 0);
    learn(f, 0, 1);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(send_text(f, 0, 1, "hello"), SHOAL_OK);
    RUN_UNTIL(f, shoal_datagram_stats(b->datagram)->drop_unopened == 3);
    assert_int_equal(b->got, 0);
    assert_int_equal(b->notes, 1);
    assert_non_null(strstr(b->note, "mesh secret"));
    assert_int_equal(shoal_datagram_stats(b->datagram)->keys_asked, 0);
    assert_false(shoal_datagram_knows(b->datagram, f->ends[0].identity.node));
    assert_int_equal(send_text(f, 1, 0, "hello"), SHOAL_ERR_NOT_FOUND);
    RUN_UNTIL(f, shoal_datagram_stats(f->ends[0].datagram)->drop_unopened == 1);
}

static void every_prefix_and_every_flipped_bit_is_dropped(void **state)
{
    struct fixture *f = *state;
    struct end *b = &f->ends[1];
    struct tap *tap;
    size_t whole;

    start(f, 0, 0);
    start(f, 1, 0);
    tap = tap_start(f);
    learn(f, 0, 1);
    learn(f, 1, 0);
    tapped(f, tap, 0, 1, "payload");
    whole = tap->lens[0];
    for (size_t n = 0; n < whole + 8 * whole; n++) {
        size_t len = n < whole ? n : whole;
        uint8_t *exact = malloc(len + 1);

        assert_non_null(exact);
        memcpy(exact, tap->kept[0], len);
        if (n >= whole)
            exact[(n - whole) / 8] ^= (uint8_t)(1u << (n - whole) % 8);
        shoal_datagram_receive(b->datagram, loopback(9), shoal_view_of(exact, len));
        free(exact);
        /* The version may rise while `oldest` stays readable; but it is sealed. */
        if (b->got != 0)
            fail_msg("case %zu of %zu was taken", n, 9 * whole);
    }
    hand(f, 1, tap, 0);
    assert_int_equal(b->got, 1);
    shoal_datagram_receive(b->datagram, loopback(9), shoal_view_of(tap->kept[0], SHOAL_DATAGRAM_BYTES_MAX + 1));
    assert_int_equal(b->got, 1);
    tap_stop(f, tap);
}

static void what_was_sent_to_another_node_does_not_open(void **state)
{
    struct fixture *f = *state;
    struct tap *tap;

    for (unsigned i = 0; i < 3; i++)
        start(f, i, 0);
    tap = tap_start(f);
    learn(f, 0, 1);
    tapped(f, tap, 0, 1, "for b");
    hand(f, 2, tap, 0);
    assert_int_equal(f->ends[2].got, 0);
    assert_int_equal(shoal_datagram_stats(f->ends[2].datagram)->drop_unopened, 1);
    hand(f, 0, tap, 0); /* reflected to its sender */
    assert_int_equal(f->ends[0].got, 0);
    tap_stop(f, tap);
}

static void an_answer_that_nobody_asked_for_teaches_nothing(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];
    struct tap *tap;

    for (unsigned i = 0; i < 3; i++)
        start(f, i, 0);
    tap = tap_start(f);
    /* c asks the tap; its question, handed to b as if from the tap, makes b answer there. */
    assert_int_equal(
        shoal_datagram_send(f->ends[2].datagram, a->identity.node, loopback(tap->port), shoal_view_text("x")),
        SHOAL_ERR_NOT_FOUND);
    RUN_UNTIL(f, tap->count == 1);
    shoal_datagram_receive(f->ends[1].datagram, loopback(tap->port), shoal_view_of(tap->kept[0], tap->lens[0]));
    RUN_UNTIL(f, tap->count == 2);
    hand(f, 0, tap, 1);
    assert_false(shoal_datagram_knows(a->datagram, f->ends[1].identity.node));
    assert_int_equal(shoal_datagram_stats(a->datagram)->drop_replayed, 1);
    tap_stop(f, tap);
}

static void the_least_used_key_is_forgotten_first(void **state)
{
    struct fixture *f = *state;
    struct end *a = &f->ends[0];

    for (unsigned i = 0; i < 3; i++)
        start(f, i, i == 0 ? 1 : 0);
    learn(f, 0, 1);
    learn(f, 0, 2);
    assert_false(shoal_datagram_knows(a->datagram, f->ends[1].identity.node));
    assert_true(shoal_datagram_knows(a->datagram, f->ends[2].identity.node));
    assert_int_equal(shoal_datagram_stats(a->datagram)->keys_forgotten, 1);
}

static void a_flood_of_strangers_is_cut_off(void **state)
{
    struct fixture *f = *state;
    struct end *b = &f->ends[1];
    uint8_t bytes[100] = { 'D', 1, 1, 0 };

    start(f, 1, 0);
    for (unsigned i = 0; i < SHOAL_DATAGRAM_UNKNOWN_PER_S + 100; i++) {
        bytes[4] = (uint8_t)i;
        bytes[5] = (uint8_t)(i >> 8);
        shoal_datagram_receive(b->datagram, loopback(9), shoal_view_of(bytes, sizeof(bytes)));
    }
    assert_true(shoal_datagram_stats(b->datagram)->drop_busy > 0);
    assert_int_equal(b->notes, 1);
}

static void an_address_that_cannot_be_had_says_what_to_do(void **state)
{
    struct fixture *f = *state;
    struct end *end = &f->ends[1];
    struct shoal_datagram_options options = {
        .loop = &f->loop, .identity = &end->identity, .handlers = { .arg = end }, .peers_max = 8
    };
    struct shoal_msg msg = { "" };

    start(f, 0, 8);
    options.listen = loopback(shoal_datagram_port(f->ends[0].datagram));
    assert_int_equal(shoal_datagram_create(&end->datagram, &options, &msg), SHOAL_ERR_UNREACHABLE);
    assert_non_null(strstr(msg.text, "another process has the port"));
    options.listen.ip[15] = 1; /* 203.0.113.1: of no interface, RFC 5737 */
    options.listen.ip[12] = 203;
    options.listen.ip[13] = 0;
    options.listen.ip[14] = 113;
    assert_int_equal(shoal_datagram_create(&end->datagram, &options, &msg), SHOAL_ERR_UNREACHABLE);
    assert_non_null(strstr(msg.text, "no interface of this host has that address"));
    assert_null(end->datagram);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_datagram_arrives_and_proves_its_sender),
        CASE(the_largest_payload_fits_and_one_byte_more_does_not),
        CASE(a_missing_key_is_asked_for),
        CASE(whoever_is_at_an_address_can_be_written_to),
        CASE(a_replay_is_dropped_and_disorder_is_not),
        CASE(what_is_older_than_the_window_is_dropped),
        CASE(a_restarted_sender_is_believed_and_its_past_is_not),
        CASE(another_mesh_is_not_heard_and_the_log_says_why),
        CASE(every_prefix_and_every_flipped_bit_is_dropped),
        CASE(what_was_sent_to_another_node_does_not_open),
        CASE(an_answer_that_nobody_asked_for_teaches_nothing),
        CASE(the_least_used_key_is_forgotten_first),
        CASE(a_flood_of_strangers_is_cut_off),
        CASE(an_address_that_cannot_be_had_says_what_to_do),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
