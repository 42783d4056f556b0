/* A question: u8 0, u64 id (0: it is only told), u8 method, args. An answer: u8 1, u64 id, u8 error, text, bytes.
 *
 * Who is asked may answer after the asker was started again, over its new link: so the ids of an agent begin by chance. */
#include "peer_call.h"

#include <uv.h>

#include "shoal/banned.h"

/* Open questions of this node; what is beyond is answered FULL at once. */
#define OPEN_MAX 512
#define SWEEP_MS 250
#define HEAD_BYTES 10 /* of a question */

struct open_call {
    uint64_t id; /* 0: free */
    struct shoal_node_id node;
    uint64_t deadline_ns;
    peer_answer_fn *done;
    void *arg;
};

struct peer_calls {
    struct shoal_link *link;
    uv_timer_t sweep;
    uint64_t next_id;
    unsigned open_count;
    struct open_call open[OPEN_MAX];
    peer_serve_fn *serve[PEER_METHOD_COUNT];
    void *serve_arg[PEER_METHOD_COUNT];
};

struct peer_question {
    struct peer_calls *calls;
    struct shoal_node_id from;
    uint64_t id;
};

static void call_end(struct peer_calls *calls, struct open_call *call, enum shoal_err err, const char *text,
                     struct shoal_view answer)
{
    struct open_call ended = *call;
    struct shoal_msg msg = { "" };

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    *call = (struct open_call){ 0 };
    if (--calls->open_count == 0)
        (void)uv_timer_stop(&calls->sweep);
    ended.done(ended.arg, err, &msg, answer);
}

static void on_sweep(uv_timer_t *timer)
{
    struct peer_calls *calls = timer->data;
    uint64_t now = uv_hrtime();

    for (unsigned i = 0; i < OPEN_MAX; i++)
        if (calls->open[i].id != 0 && calls->open[i].deadline_ns <= now)
            call_end(calls, &calls->open[i], SHOAL_ERR_TIMEOUT, "the other node did not answer in time",
                     (struct shoal_view){ 0 });
}

struct peer_calls *peer_calls_create(struct uv_loop_s *loop, struct shoal_link *link)
{
    struct peer_calls *calls = calloc(1, sizeof(*calls));

    SHOAL_ASSERT(calls != NULL);
    calls->link = link;
    shoal_random(&calls->next_id, sizeof(calls->next_id));
    calls->next_id = (calls->next_id >> 1) + 1; /* never 0, and never will be */
    (void)uv_timer_init(loop, &calls->sweep);
    calls->sweep.data = calls;
    return calls;
}

void peer_serve(struct peer_calls *calls, enum peer_method method, peer_serve_fn *serve, void *arg)
{
    calls->serve[method] = serve;
    calls->serve_arg[method] = arg;
}

static enum shoal_err send_frame(struct peer_calls *calls, struct shoal_node_id to, const struct shoal_writer *w,
                                 struct shoal_view rest)
{
    if (w->failed)
        return SHOAL_ERR_TOO_BIG;
    return shoal_link_send_two(calls->link, to, SHOAL_LANE_BULK, PEER_CHANNEL_CALL, shoal_writer_view(w), rest);
}

void peer_ask(struct peer_calls *calls, struct shoal_node_id node, enum peer_method method, struct shoal_view args,
              uint64_t timeout_ns, peer_answer_fn *done, void *arg)
{
    uint8_t head[HEAD_BYTES];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));
    struct open_call *call = NULL;
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_ERR_FULL;

    for (unsigned i = 0; i < OPEN_MAX && call == NULL; i++)
        if (calls->open[i].id == 0)
            call = &calls->open[i];
    if (call != NULL) {
        shoal_put_u8(&w, 0);
        shoal_put_u64(&w, calls->next_id);
        shoal_put_u8(&w, (uint8_t)method);
        err = send_frame(calls, node, &w, args);
    }
    if (err != SHOAL_OK) {
        (void)shoal_fail(&msg, err, "no link to the other node, or its queue is full: %s", shoal_err_name(err));
        done(arg, err, &msg, (struct shoal_view){ 0 });
        return;
    }
    *call = (struct open_call){
        .id = calls->next_id++, .node = node, .deadline_ns = uv_hrtime() + timeout_ns, .done = done, .arg = arg
    };
    if (calls->open_count++ == 0)
        (void)uv_timer_start(&calls->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
}

/* A question of number 0: an older node answers it, and that is dropped here. */
enum shoal_err peer_tell(struct peer_calls *calls, struct shoal_node_id node, enum peer_method method,
                         struct shoal_view start, struct shoal_view rest)
{
    uint8_t head[HEAD_BYTES + PEER_TELL_START_MAX];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));

    shoal_put_u8(&w, 0);
    shoal_put_u64(&w, 0);
    shoal_put_u8(&w, (uint8_t)method);
    shoal_put_raw(&w, start.bytes, start.len);
    return send_frame(calls, node, &w, rest);
}

static enum shoal_err send_answer(const struct peer_question *question, enum shoal_err err, const char *text,
                                  struct shoal_view answer)
{
    uint8_t head[SHOAL_LINK_START_MAX];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));

    if (question->id == 0)
        return SHOAL_OK; /* it was only told */
    shoal_put_u8(&w, 1);
    shoal_put_u64(&w, question->id);
    shoal_put_u8(&w, (uint8_t)err);
    shoal_put_text(&w, text);
    return send_frame(question->calls, question->from, &w, answer);
}

void peer_answer(struct peer_question *question, enum shoal_err err, const char *text, struct shoal_view answer)
{
    if (send_answer(question, err, text, answer) == SHOAL_ERR_FULL && answer.len > 0) /* a word may fit where it does not */
        (void)send_answer(question, SHOAL_ERR_TIMEOUT, "the answer did not fit the link's queue; ask again",
                          (struct shoal_view){ 0 }); /* lost, too: the asker's deadline ends the call */
    free(question);
}

bool peer_answer_try(struct peer_question *question, enum shoal_err err, const char *text, struct shoal_view answer)
{
    if (send_answer(question, err, text, answer) == SHOAL_ERR_FULL)
        return false;
    free(question);
    return true;
}

static void on_question(struct peer_calls *calls, struct shoal_node_id from, struct shoal_reader *r)
{
    uint64_t id = shoal_get_u64(r);
    unsigned method = shoal_get_enum(r, PEER_METHOD_COUNT);
    struct peer_question *question;

    if (r->failed)
        return;
    question = malloc(sizeof(*question));
    if (question == NULL)
        return;
    *question = (struct peer_question){ .calls = calls, .from = from, .id = id };
    if (calls->serve[method] == NULL) {
        peer_answer(question, SHOAL_ERR_UNSUPPORTED, "this node does not serve that", (struct shoal_view){ 0 });
        return;
    }
    calls->serve[method](calls->serve_arg[method], from, shoal_view_of(r->bytes + r->at, r->len - r->at), question);
    /* Whoever serves the question ends it by peer_answer(), which frees it; that call goes through a pointer. */
    /* cppcheck-suppress memleak */
}

static void on_answer(struct peer_calls *calls, struct shoal_node_id from, struct shoal_reader *r)
{
    uint64_t id = shoal_get_u64(r);
    enum shoal_err err = (enum shoal_err)shoal_get_enum(r, SHOAL_ERRS);
    char text[400];

    shoal_get_text(r, text, sizeof(text));
    if (r->failed || id == 0)
        return;
    for (unsigned i = 0; i < OPEN_MAX; i++)
        if (calls->open[i].id == id && shoal_node_id_equal(calls->open[i].node, from)) {
            call_end(calls, &calls->open[i], err, text, shoal_view_of(r->bytes + r->at, r->len - r->at));
            return;
        }
}

void peer_calls_frame(struct peer_calls *calls, struct shoal_node_id from, struct shoal_view frame)
{
    struct shoal_reader r = shoal_reader_init(frame);
    uint8_t answer = shoal_get_enum(&r, 2);

    if (r.failed)
        return;
    if (answer == 0)
        on_question(calls, from, &r);
    else
        on_answer(calls, from, &r);
}

void peer_calls_down(struct peer_calls *calls, struct shoal_node_id node)
{
    for (unsigned i = 0; i < OPEN_MAX; i++)
        if (calls->open[i].id != 0 && shoal_node_id_equal(calls->open[i].node, node))
            call_end(calls, &calls->open[i], SHOAL_ERR_UNREACHABLE, "the link to the other node broke",
                     (struct shoal_view){ 0 });
}
