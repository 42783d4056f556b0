/* A request for a model at another host, as the node that was asked sees it. See backend_infer.h. */
#include "shoal/route.h"

#include "backend_infer.h"

#include "shoal/banned.h"

/* The host's own clock ends a request; this one only when nothing is heard of it any more. */
#define MARGIN_NS (5 * SHOAL_S)
#define MORE_BYTES_MIN (SHOAL_INFER_WINDOW_BYTES / 4)

static void on_timer(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    agent->infer_stuck = false;
    backend_infer_out_again(agent);
    backend_infer_serve_again(agent);
    if (!agent->infer_stuck)
        (void)uv_timer_stop(timer);
}

/* L2. */
static void stuck(struct agent *agent)
{
    agent->infer_stuck = true;
    if (agent->infer_timer.data == NULL) {
        (void)uv_timer_init(&agent->loop, &agent->infer_timer);
        agent->infer_timer.data = agent;
    }
    if (!uv_is_active((uv_handle_t *)&agent->infer_timer))
        (void)uv_timer_start(&agent->infer_timer, on_timer, INFER_AGAIN_MS, INFER_AGAIN_MS);
}

bool backend_infer_tell(struct agent *agent, struct shoal_node_id node, enum infer_word word, uint64_t id,
                        struct shoal_view rest)
{
    uint8_t head[16];
    struct shoal_writer w = shoal_writer_init(head, sizeof(head));
    enum shoal_err err;

    shoal_put_u8(&w, (uint8_t)word);
    shoal_put_u64(&w, id);
    err = peer_tell(agent->calls, node, PEER_INFER, shoal_writer_view(&w), rest);
    if (err == SHOAL_ERR_FULL)
        stuck(agent);
    return err == SHOAL_OK;
}

bool backend_infer_tell_count(struct agent *agent, struct shoal_node_id node, enum infer_word word, uint64_t id,
                              size_t count)
{
    uint8_t bytes[8];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_u32(&w, (uint32_t)count);
    return backend_infer_tell(agent, node, word, id, shoal_writer_view(&w));
}

bool backend_infer_answer(struct agent *agent, struct peer_question *question, enum shoal_err err, const char *text,
                          struct shoal_view answer)
{
    if (peer_answer_try(question, err, text, answer))
        return true;
    stuck(agent);
    return false;
}

static void out_remove(const struct infer_call *call)
{
    struct infer_call **at = &call->agent->infers;

    while (*at != NULL && *at != call)
        at = &(*at)->next;
    if (*at != NULL)
        *at = call->next;
}

static struct shoal_node_id host_of(const struct infer_call *call) { return call->tried[call->tries - 1]; }

static bool is_out(const struct infer_call *call)
{
    const struct infer_call *at = call->agent->infers;

    while (at != NULL && at != call)
        at = at->next;
    return at != NULL;
}

/* ---- the answer ---- */

static void answer_forget(struct infer_call *call)
{
    call->agent->infer_answer_bytes -= call->answer.len;
    shoal_buf_deinit(&call->answer);
}

/* The whole answer: the parts that came before, and the rest. */
static bool answer_body(struct infer_call *call, struct shoal_view rest, struct shoal_view *body)
{
    *body = rest;
    if (call->answer.len == 0)
        return true;
    if (call->answer.len + rest.len > SHOAL_INFER_BODY_BYTES_MAX ||
        shoal_buf_append(&call->answer, rest.bytes, rest.len) != SHOAL_OK)
        return false;
    call->agent->infer_answer_bytes += rest.len;
    *body = shoal_buf_view(&call->answer);
    return true;
}

static void end_answered(struct infer_call *call, struct shoal_view answer)
{
    struct shoal_reader r = shoal_reader_init(answer);
    struct shoal_inferred inferred = { 0 };
    char type[KERNEL_TYPE_BYTES];
    bool fine;

    inferred.status = shoal_get_u32(&r);
    inferred.header_len = shoal_get_u32(&r);
    shoal_get_text(&r, type, sizeof(type));
    inferred.content_type = type;
    fine = !r.failed && answer_body(call, shoal_view_of(r.bytes + r.at, shoal_reader_left(&r)), &inferred.body);
    if (!fine || inferred.status < 200 || inferred.status > 599 || inferred.header_len > inferred.body.len ||
        strpbrk(type, "\r\n") != NULL)
        backend_infer_end(call, SHOAL_ERR_MALFORMED, "the other host's answer does not decode", NULL);
    else
        backend_infer_end(call, SHOAL_OK, "", &inferred);
}

static void on_remote(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct infer_call *call = arg;
    bool elsewhere = shoal_route_elsewhere(err, call->waits);
    bool moved = call->back && err == SHOAL_ERR_STALE && !call->gone;

    out_remove(call);
    if (call->locked) { /* it was not even sent */
        call->again = true;
        call->unsent = err;
        return;
    }
    if (moved) {
        backend_infer_moved(call);
    } else if (call->gone || elsewhere) { /* I1 */
        answer_forget(call);
        backend_infer_elsewhere(call, err == SHOAL_ERR_FULL);
    } else if (err == SHOAL_ERR_UNREACHABLE) {
        backend_infer_end(call, SHOAL_ERR_RANK_LOST, "its host was lost while it was computed; send it again", NULL);
    } else if (err != SHOAL_OK) {
        backend_infer_end(call, err, msg->text, NULL);
    } else {
        end_answered(call, answer);
    }
}

/* ---- sending ---- */

static void put_head(struct shoal_writer *w, const struct infer_call *call, uint32_t timeout_ms)
{
    const struct shoal_infer *i = &call->infer;

    shoal_put_job_id(w, call->job);
    shoal_put_u32(w, timeout_ms);
    shoal_put_u32(w, i->header_len);
    shoal_put_text(w, i->path);
    shoal_put_text(w, i->method);
    shoal_put_text(w, i->content_type);
    shoal_put_text(w, i->model);
    shoal_put_text(w, i->version);
    shoal_put_text(w, i->caller->name);
}

/* As much of the body as may be on its way. */
static void send_body(struct infer_call *call)
{
    const struct shoal_view body = call->infer.body;

    while (call->body_sent < body.len && call->body_sent - call->body_took < INFER_ON_WAY_BYTES) {
        size_t left = body.len - call->body_sent;
        size_t len = left < INFER_CHUNK_BYTES ? left : INFER_CHUNK_BYTES;

        if (!backend_infer_tell(call->agent, host_of(call), WORD_BODY, call->id,
                                shoal_view_of(body.bytes + call->body_sent, len)))
            return;
        call->body_sent += len;
    }
}

static void begin(struct infer_call *call)
{
    size_t len = call->infer.body.len;

    call->again = false;
    call->back = call->cancels = false;
    call->locked = true;
    call->body_sent = call->body_took = call->pieces && len > INFER_CHUNK_BYTES ? INFER_CHUNK_BYTES : len;
    call->waits = call->body_sent < len; /* no kernel can have it yet */
    call->window = call->pieces && call->infer.piece != NULL ? (int64_t)SHOAL_INFER_WINDOW_BYTES : 0;
    call->passed = 0;
    call->next = call->agent->infers;
    call->agent->infers = call;
}

static void unsendable(struct infer_call *call, bool memory)
{
    out_remove(call);
    call->locked = false;
    if (memory)
        backend_infer_end(call, SHOAL_ERR_FULL, "this node has no memory for the request; send it again in a second", NULL);
    else
        backend_infer_end(call, SHOAL_ERR_TOO_BIG, "the request's address or content type is too long", NULL);
}

void backend_infer_out(struct infer_call *call, struct shoal_node_id node, uint32_t timeout_ms)
{
    size_t cap = INFER_WHOLE_BYTES_MAX + KERNEL_HEAD_BYTES_MAX;
    uint8_t *bytes = malloc(cap);
    struct shoal_writer w = shoal_writer_init(bytes, bytes == NULL ? 0 : cap);

    begin(call);
    shoal_put_u8(&w, call->pieces ? WORD_OPEN : WORD_RUN);
    shoal_put_u64(&w, call->id);
    if (call->pieces) {
        shoal_put_u32(&w, (uint32_t)call->infer.body.len);
        shoal_put_u8(&w, call->window > 0);
    }
    put_head(&w, call, timeout_ms);
    shoal_put_raw(&w, call->infer.body.bytes, call->body_sent);
    if (w.failed) {
        free(bytes);
        unsendable(call, bytes == NULL);
        return;
    }
    peer_ask(call->agent->calls, node, PEER_INFER, shoal_writer_view(&w), timeout_ms * SHOAL_MS + MARGIN_NS, on_remote,
             call);
    call->locked = false;
    free(bytes);
    if (call->again) {
        call->crowded = call->crowded || call->unsent == SHOAL_ERR_FULL;
        backend_infer_next(call);
    } else {
        send_body(call);
    }
}

/* ---- words ---- */

static void say_more(struct infer_call *call)
{
    if (call->passed < MORE_BYTES_MIN ||
        !backend_infer_tell_count(call->agent, host_of(call), WORD_MORE, call->id, call->passed))
        return;
    call->window += (int64_t)call->passed;
    call->passed = 0;
}

void backend_infer_out_more(struct infer_call *call, size_t bytes)
{
    if (!is_out(call) || call->infer.piece == NULL || !call->pieces)
        return;
    call->passed += bytes;
    say_more(call);
}

void backend_infer_out_cancel(struct infer_call *call)
{
    if (is_out(call) && call->pieces)
        call->cancels = !backend_infer_tell(call->agent, host_of(call), WORD_CANCEL, call->id, (struct shoal_view){ 0 });
}

void backend_infer_out_back(struct infer_call *call)
{
    if (!call->waits || call->back || call->gone || !is_out(call) || !call->pieces ||
        call->body_took < call->infer.body.len || !backend_infer_may_move(call))
        return;
    call->back = backend_infer_tell(call->agent, host_of(call), WORD_BACK, call->id, (struct shoal_view){ 0 });
    call->moves += call->back;
}

/* Its client hears why at once; the question to its host ends it. */
static void give_up(struct infer_call *call, enum shoal_err err, const char *text)
{
    struct shoal_msg msg;

    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    call->gone = true;
    backend_infer_out_cancel(call);
    call->done(call->arg, err, &msg, NULL);
}

static void on_piece(struct infer_call *call, struct shoal_view piece)
{
    if (call->infer.piece == NULL || call->window <= 0 || piece.len == 0 || piece.len > SHOAL_INFER_PIECE_BYTES_MAX) {
        give_up(call, SHOAL_ERR_MALFORMED, "the other host sends more of the answer than it may");
        return;
    }
    call->window -= (int64_t)piece.len;
    call->infer.piece(call->arg, piece);
}

static void on_part(struct infer_call *call, struct shoal_view part)
{
    struct agent *agent = call->agent;

    if (call->answer.len + part.len > SHOAL_INFER_BODY_BYTES_MAX ||
        agent->infer_answer_bytes + part.len > SHOAL_INFER_HELD_BYTES_MAX ||
        shoal_buf_append(&call->answer, part.bytes, part.len) != SHOAL_OK) {
        give_up(call, SHOAL_ERR_FULL, "this node holds as many answers as it may; send it again in a second");
        return;
    }
    agent->infer_answer_bytes += part.len;
    call->passed += part.len;
    say_more(call);
}

void backend_infer_out_word(struct agent *agent, enum infer_word word, uint64_t id, struct shoal_node_id from,
                            struct shoal_view rest)
{
    struct infer_call *call = backend_infer_find(agent, id);
    struct shoal_reader r = shoal_reader_init(rest);

    if (call == NULL || !is_out(call) || !shoal_node_id_equal(host_of(call), from))
        return;
    if (word == WORD_WAITS || word == WORD_HANDED) {
        call->waits = word == WORD_WAITS;
        call->back = false; /* a kernel has it: it was too late */
        backend_infer_out_back(call);
    } else if (word == WORD_PIECE) {
        on_piece(call, rest);
    } else if (word == WORD_PART) {
        on_part(call, rest);
    } else if (word == WORD_TOOK) {
        size_t took = shoal_get_u32(&r);

        if (!r.failed && took <= call->body_sent - call->body_took)
            call->body_took += took;
        send_body(call);
        /* The last bytes are there: a kernel may have it from now on, unless its host says that it waits. */
        if (call->body_took == call->infer.body.len)
            call->waits = false;
    }
}

void backend_infer_out_again(struct agent *agent)
{
    for (struct infer_call *call = agent->infers; call != NULL; call = call->next) {
        if (call->cancels)
            backend_infer_out_cancel(call);
        if (call->gone || !call->pieces)
            continue;
        send_body(call);
        say_more(call);
    }
}
