/* A request for a model that goes to another host (node/backend/backend_infer_out.c): what is said where it cannot be sent. The link
 * and the hosts are this file's. */
#include "node/backend/backend_infer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct shoal_node_id host = { { 2 } };

static struct {
    struct agent *agent;
    struct shoal_user user;
    struct infer_call call;
    enum shoal_err asked; /* what comes of a question at once; OK: nothing yet */
    peer_answer_fn *done;
    bool no_room; /* for a word */
    unsigned next, cancels;
} f;

/* ---- What the file under test asks ---- */

void peer_ask(struct peer_calls *calls, struct shoal_node_id node, enum peer_method method, struct shoal_view args,
              uint64_t timeout_ns, peer_answer_fn *done, void *arg)
{
    const struct shoal_msg msg = { "" };

    (void)calls, (void)node, (void)method, (void)args, (void)timeout_ns;
    f.done = done;
    if (f.asked != SHOAL_OK)
        done(arg, f.asked, &msg, (struct shoal_view){ 0 });
}

enum shoal_err peer_tell(struct peer_calls *calls, struct shoal_node_id node, enum peer_method method,
                         struct shoal_view start, struct shoal_view rest)
{
    (void)calls, (void)node, (void)method, (void)rest;
    f.cancels += start.bytes[0] == WORD_CANCEL && !f.no_room;
    return f.no_room ? SHOAL_ERR_FULL : SHOAL_OK;
}

bool peer_answer_try(struct peer_question *question, enum shoal_err err, const char *text, struct shoal_view answer)
{
    (void)question, (void)err, (void)text, (void)answer;
    return true;
}

void backend_infer_next(struct infer_call *call)
{
    (void)call;
    f.next++;
}

void backend_infer_elsewhere(struct infer_call *call, bool full) { (void)call, (void)full; }
void backend_infer_moved(struct infer_call *call) { (void)call; }
void backend_infer_serve_again(struct agent *agent) { (void)agent; }

bool backend_infer_may_move(struct infer_call *call)
{
    (void)call;
    return false;
}

void backend_infer_end(struct infer_call *call, enum shoal_err err, const char *text, const struct shoal_inferred *inferred)
{
    (void)call, (void)err, (void)text, (void)inferred;
}

struct infer_call *backend_infer_find(const struct agent *agent, uint64_t number)
{
    (void)agent, (void)number;
    return &f.call;
}

/* ---- The tests ---- */

static int begin(void **state)
{
    (void)state;
    memset(&f, 0, sizeof(f));
    f.agent = calloc(1, sizeof(*f.agent));
    assert_non_null(f.agent);
    assert_int_equal(uv_loop_init(&f.agent->loop), 0);
    f.call = (struct infer_call){ .agent = f.agent, .pieces = true, .tried = { host }, .tries = 1 };
    f.call.infer = (struct shoal_infer){
        .caller = &f.user, .model = "echo", .version = "", .method = "", .path = "", .content_type = ""
    };
    return 0;
}

static int end(void **state)
{
    (void)state;
    if (f.agent->infer_timer.data != NULL)
        uv_close((uv_handle_t *)&f.agent->infer_timer, NULL);
    (void)uv_run(&f.agent->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f.agent->loop), 0);
    free(f.agent);
    return 0;
}

static void a_way_that_is_full_is_no_host_that_is_full(void **state)
{
    (void)state;
    f.asked = SHOAL_ERR_FULL;
    backend_infer_out(&f.call, host, 1000);
    assert_int_equal(f.next, 1);
    assert_true(f.call.crowded && !f.call.full);
    assert_null(f.agent->infers);
}

static void a_link_that_broke_is_not_full(void **state)
{
    (void)state;
    f.asked = SHOAL_ERR_UNREACHABLE;
    backend_infer_out(&f.call, host, 1000);
    assert_int_equal(f.next, 1);
    assert_false(f.call.crowded || f.call.full);
}

/* L2. */
static void a_host_hears_of_a_cancelled_request_when_there_is_room(void **state)
{
    (void)state;
    backend_infer_out(&f.call, host, 1000);
    f.no_room = f.call.gone = true;
    backend_infer_out_cancel(&f.call);
    backend_infer_out_again(f.agent);
    assert_int_equal(f.cancels, 0);
    f.no_room = false;
    backend_infer_out_again(f.agent);
    backend_infer_out_again(f.agent);
    assert_int_equal(f.cancels, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_way_that_is_full_is_no_host_that_is_full, begin, end),
        cmocka_unit_test_setup_teardown(a_link_that_broke_is_not_full, begin, end),
        cmocka_unit_test_setup_teardown(a_host_hears_of_a_cancelled_request_when_there_is_room, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
