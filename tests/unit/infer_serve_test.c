/* Requests that other nodes pass on to kernels of this host (node/backend/backend_infer_serve.c): the time that they have here, and
 * what becomes of words and answers for which the link's queue has no room (L2). The clock, the link and the kernels are this file's. */
#include "node/backend/backend_infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define ID 7

static const struct shoal_node_id asker = { { 2 } };

static struct {
    struct agent *agent;
    uint64_t now_ns;
    unsigned asked, ended;
    bool no_room;        /* in the link's queue */
    unsigned waits, handed, pieces; /* words that went out */
    struct serve_ask ask;
    uint32_t timeout_ms; /* that the kernel's queue was given */
    enum shoal_err err;
} f;

/* ---- What the file under test asks ---- */

uint64_t agent_now_ns(void) { return f.now_ns; }

bool backend_infer_tell(struct agent *agent, struct shoal_node_id node, enum infer_word word, uint64_t id, struct shoal_view rest)
{
    (void)agent, (void)node, (void)id, (void)rest;
    if (f.no_room)
        return false;
    f.waits += word == WORD_WAITS;
    f.handed += word == WORD_HANDED;
    if (word == WORD_PIECE && f.handed == 0)
        fail_msg("a piece comes before the word that a kernel has the request");
    f.pieces += word == WORD_PIECE;
    return true;
}

bool backend_infer_tell_count(struct agent *agent, struct shoal_node_id node, enum infer_word word, uint64_t id, size_t count)
{
    (void)agent, (void)node, (void)word, (void)id, (void)count;
    return !f.no_room;
}

void backend_infer_out_word(struct agent *agent, enum infer_word word, uint64_t id, struct shoal_node_id from,
                            struct shoal_view rest)
{
    (void)agent, (void)word, (void)id, (void)from, (void)rest;
}

bool backend_kernels_here(struct agent *agent, struct shoal_job_id job, struct shoal_buf *json)
{
    (void)agent, (void)job, (void)json;
    return false;
}

void peer_ask(struct peer_calls *calls, struct shoal_node_id node, enum peer_method method, struct shoal_view args,
              uint64_t timeout_ns, peer_answer_fn *done, void *arg)
{
    (void)calls, (void)node, (void)method, (void)args, (void)timeout_ns, (void)done, (void)arg;
}

void peer_answer(struct peer_question *question, enum shoal_err err, const char *text, struct shoal_view answer)
{
    (void)text, (void)answer;
    if (question == NULL) /* a word: nobody waits for an answer */
        return;
    f.ended++;
    f.err = f.no_room ? SHOAL_ERR_TIMEOUT : err;
}

bool backend_infer_answer(struct agent *agent, struct peer_question *question, enum shoal_err err, const char *text,
                          struct shoal_view answer)
{
    (void)agent;
    if (f.no_room)
        return false;
    peer_answer(question, err, text, answer);
    return true;
}

bool serve_host_infer(struct serve_host *host, const struct serve_ask *ask)
{
    (void)host;
    f.asked++;
    f.timeout_ms = ask->timeout_ms;
    f.ask = *ask;
    *ask->id = 1;
    return true;
}

void serve_host_more(struct serve_host *host, uint64_t id, size_t bytes) { (void)host, (void)id, (void)bytes; }

void serve_host_cancel(struct serve_host *host, uint64_t id) { (void)host, (void)id; }

bool serve_host_take_back(struct serve_host *host, uint64_t id)
{
    (void)host, (void)id;
    return true;
}

/* ---- The tests ---- */

static int begin(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    f.agent = calloc(1, sizeof(*f.agent));
    assert_non_null(f.agent);
    f.now_ns = SHOAL_S;
    return 0;
}

static int end(void **state)
{
    (void)state;
    backend_infer_down(f.agent, asker);
    assert_true(f.agent->served == NULL && f.agent->served_bytes == 0);
    assert_int_equal(f.ended, 1);
    free(f.agent);
    return 0;
}

/* A request of one second, with the first two bytes of four; its answer may come in pieces. */
static void open_half(void)
{
    static char question;
    uint8_t bytes[200];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_u8(&w, WORD_OPEN);
    shoal_put_u64(&w, ID);
    shoal_put_u32(&w, 4);
    shoal_put_u8(&w, 1);
    shoal_put_job_id(&w, (struct shoal_job_id){ { 9 } });
    shoal_put_u32(&w, 1000);
    shoal_put_u32(&w, 0);
    for (unsigned i = 0; i < 6; i++) /* path, method, type, model, version, user */
        shoal_put_text(&w, "x");
    shoal_put_raw(&w, "ab", 2);
    assert_false(w.failed);
    backend_serve_infer(f.agent, asker, shoal_writer_view(&w), (struct peer_question *)(void *)&question);
}

static void send_rest(void)
{
    uint8_t bytes[20];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_u8(&w, WORD_BODY);
    shoal_put_u64(&w, ID);
    shoal_put_raw(&w, "cd", 2);
    backend_serve_infer(f.agent, asker, shoal_writer_view(&w), NULL);
}

static void a_body_that_comes_slowly_takes_of_the_requests_time(void **state)
{
    (void)state;
    open_half();
    f.now_ns += 600 * SHOAL_MS;
    send_rest();
    assert_int_equal(f.asked, 1);
    assert_int_equal(f.timeout_ms, 400);
}

static void a_body_whose_end_comes_too_late_goes_to_no_kernel(void **state)
{
    (void)state;
    open_half();
    f.now_ns += SHOAL_S;
    send_rest();
    assert_int_equal(f.asked, 0);
    assert_int_equal(f.err, SHOAL_ERR_TIMEOUT);
}

static void go_on(void)
{
    f.no_room = false;
    backend_infer_serve_again(f.agent);
}

static void an_answer_that_finds_no_room_goes_out_when_there_is_some(void **state)
{
    const struct serve_answer answer = { .status = 200, .content_type = "text/plain", .body = shoal_view_of("42", 2) };

    (void)state;
    open_half();
    send_rest();
    f.no_room = true;
    f.ask.done(f.ask.arg, SHOAL_OK, "", &answer);
    assert_int_equal(f.ended, 0);
    backend_infer_serve_again(f.agent);
    assert_int_equal(f.ended, 0);
    go_on();
    assert_int_equal(f.ended, 1);
    assert_int_equal(f.err, SHOAL_OK);
    assert_null(f.agent->served);
}

static void an_end_without_an_answer_waits_for_room_too(void **state)
{
    (void)state;
    f.no_room = true;
    open_half();
    f.now_ns += SHOAL_S;
    backend_infer_serve_look(f.agent);
    assert_int_equal(f.ended, 0);
    assert_int_equal(f.agent->served_bytes, 0);
    send_rest(); /* it is over */
    assert_int_equal(f.asked, 0);
    go_on();
    assert_int_equal(f.ended, 1);
    assert_int_equal(f.err, SHOAL_ERR_TIMEOUT);
}

static void its_asker_hears_where_a_request_is_when_there_is_room(void **state)
{
    (void)state;
    f.no_room = true;
    open_half();
    send_rest();
    go_on();
    assert_int_equal(f.waits, 1);
    f.no_room = true;
    f.ask.handed(f.ask.arg);
    f.ask.piece(f.ask.arg, shoal_view_of("4", 1));
    go_on();
    f.ask.piece(f.ask.arg, shoal_view_of("2", 1));
    assert_int_equal(f.waits, 1);
    assert_int_equal(f.handed, 1);
    assert_int_equal(f.pieces, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_answer_that_finds_no_room_goes_out_when_there_is_some, begin, end),
        cmocka_unit_test_setup_teardown(an_end_without_an_answer_waits_for_room_too, begin, end),
        cmocka_unit_test_setup_teardown(its_asker_hears_where_a_request_is_when_there_is_room, begin, end),
        cmocka_unit_test_setup_teardown(a_body_that_comes_slowly_takes_of_the_requests_time, begin, end),
        cmocka_unit_test_setup_teardown(a_body_whose_end_comes_too_late_goes_to_no_kernel, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
