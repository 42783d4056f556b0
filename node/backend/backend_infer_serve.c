/* Requests that other nodes pass on to kernels of this host. See backend_infer.h for the words.
 *
 *     OPEN, BODY... --> gathered --> serve_host --> PIECE... --> the end: PART... and the answer
 *
 * S1. The bodies that are gathered here have at most SHOAL_INFER_HELD_BYTES_MAX together: beyond that a request is answered FULL,
 *     and is tried elsewhere.
 * S2. Words follow each other in order: nothing of an answer overtakes a piece that still has no room. */
#include "backend_infer.h"

#include "shoal/banned.h"

#define SERVED_MAX 2048
#define NO_MEMORY_TEXT "the kernel's host has no memory for the answer"
#define LATE_TEXT "the request's body did not come in time"

struct run_texts {
    char path[1024], method[16], type[KERNEL_TYPE_BYTES], model[KERNEL_NAME_BYTES], version[KERNEL_NAME_BYTES],
        user[SHOAL_USER_BYTES_MAX];
};

struct served {
    struct served *next;
    struct agent *agent;
    struct peer_question *question;
    struct shoal_node_id from;
    uint64_t id;        /* the asker's */
    uint64_t kernel_id; /* serve_host's; 0: it is not there, or has ended */
    bool pieces;        /* L3: the asker takes words */
    enum infer_word owed; /* WAITS or HANDED, that found no room; RUN: neither */
    struct serve_ask ask;
    struct run_texts texts;
    uint64_t deadline_ns; /* of its answer, and so of its body */
    size_t body_bytes;    /* that it is to have; 0 when it is handed over */
    struct shoal_buf body;
    size_t took;          /* bytes of it of which the asker does not know yet */
    struct shoal_buf out; /* pieces that found no room: u32 length, bytes */
    size_t out_at;
    bool over; /* the rest is how it ended */
    enum shoal_err err;
    char text[300];
    uint32_t status, header_len;
    char type[KERNEL_TYPE_BYTES];
    struct shoal_buf answer;
    size_t answer_at, answer_passed;
};

static void served_free(struct served *s)
{
    struct served **at = &s->agent->served;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->agent->served_bytes -= s->body_bytes;
    shoal_buf_deinit(&s->body);
    shoal_buf_deinit(&s->out);
    shoal_buf_deinit(&s->answer);
    free(s);
}

static struct served *served_find(struct agent *agent, uint64_t id, struct shoal_node_id from)
{
    struct served *s = agent->served;

    while (s != NULL && (s->id != id || !shoal_node_id_equal(s->from, from)))
        s = s->next;
    return s;
}

static bool say_owed(struct served *s)
{
    if (s->owed != WORD_RUN && backend_infer_tell(s->agent, s->from, s->owed, s->id, (struct shoal_view){ 0 }))
        s->owed = WORD_RUN;
    return s->owed == WORD_RUN;
}

static void notice(struct served *s, enum infer_word word)
{
    s->owed = word;
    (void)say_owed(s);
}

static void on_handed(void *arg) { notice(arg, WORD_HANDED); }

/* ---- the way back ---- */

static bool send_pieces(struct served *s)
{
    while (s->out_at < s->out.len) {
        uint32_t len;

        memcpy(&len, s->out.bytes + s->out_at, sizeof(len));
        if (!backend_infer_tell(s->agent, s->from, WORD_PIECE, s->id,
                                shoal_view_of(s->out.bytes + s->out_at + sizeof(len), len)))
            return false;
        s->out_at += sizeof(len) + len;
    }
    s->out.len = s->out_at = 0;
    return true;
}

/* False: there is no room, or as much is on its way as may. */
static bool send_parts(struct served *s)
{
    while (s->answer.len - s->answer_at > INFER_CHUNK_BYTES) {
        if (s->answer_at - s->answer_passed >= INFER_ON_WAY_BYTES ||
            !backend_infer_tell(s->agent, s->from, WORD_PART, s->id,
                                shoal_view_of(s->answer.bytes + s->answer_at, INFER_CHUNK_BYTES)))
            return false;
        s->answer_at += INFER_CHUNK_BYTES;
    }
    return true;
}

/* False: there is no room. */
static bool answer_with(const struct served *s, const struct serve_answer *answer)
{
    size_t cap = answer->body.len + 256;
    uint8_t *bytes = malloc(cap);
    struct shoal_writer w = shoal_writer_init(bytes, bytes == NULL ? 0 : cap);
    bool sent;

    shoal_put_u32(&w, answer->status);
    shoal_put_u32(&w, answer->header_len);
    shoal_put_text(&w, answer->content_type);
    shoal_put_raw(&w, answer->body.bytes, answer->body.len);
    if (w.failed) /* not FULL, which would send the request to another kernel (I1) */
        sent = backend_infer_answer(s->agent, s->question, SHOAL_ERR_STORAGE, NO_MEMORY_TEXT, (struct shoal_view){ 0 });
    else
        sent = backend_infer_answer(s->agent, s->question, SHOAL_OK, "", shoal_writer_view(&w));
    free(bytes);
    return sent;
}

/* S2. It may free `s`. */
static void go_on(struct served *s)
{
    struct serve_answer rest = { s->status, s->header_len, s->type, { 0 } };
    bool sent;

    if (!say_owed(s) || !send_pieces(s) || !s->over)
        return;
    if (s->err != SHOAL_OK) {
        sent = backend_infer_answer(s->agent, s->question, s->err, s->text, (struct shoal_view){ 0 });
    } else {
        if (s->pieces && !send_parts(s))
            return;
        rest.body = shoal_view_of(s->answer.bytes + s->answer_at, s->answer.len - s->answer_at);
        sent = answer_with(s, &rest);
    }
    if (sent)
        served_free(s);
}

static void keep_end(struct served *s, enum shoal_err err, const char *text, const struct serve_answer *answer)
{
    s->over = true;
    s->err = err;
    (void)snprintf(s->text, sizeof(s->text), "%s", text);
    if (answer == NULL)
        return;
    s->status = answer->status;
    s->header_len = answer->header_len;
    (void)snprintf(s->type, sizeof(s->type), "%s", answer->content_type);
    if (shoal_buf_append(&s->answer, answer->body.bytes, answer->body.len) != SHOAL_OK) {
        s->err = SHOAL_ERR_STORAGE;
        (void)snprintf(s->text, sizeof(s->text), NO_MEMORY_TEXT);
    }
}

/* No kernel has it. It may free `s`. */
static void end_failed(struct served *s, enum shoal_err err, const char *text)
{
    s->kernel_id = 0;
    s->agent->served_bytes -= s->body_bytes;
    s->body_bytes = 0;
    shoal_buf_deinit(&s->body);
    s->out.len = s->out_at = 0;
    s->owed = WORD_RUN;
    keep_end(s, err, text, NULL);
    go_on(s);
}

static void on_served_piece(void *arg, struct shoal_view piece)
{
    struct served *s = arg;
    uint32_t len = (uint32_t)piece.len;

    if (s->out.len == 0 && say_owed(s) && backend_infer_tell(s->agent, s->from, WORD_PIECE, s->id, piece))
        return;
    if (shoal_buf_append(&s->out, &len, sizeof(len)) == SHOAL_OK &&
        shoal_buf_append(&s->out, piece.bytes, piece.len) == SHOAL_OK)
        return;
    serve_host_cancel(s->agent->serve, s->kernel_id);
    end_failed(s, SHOAL_ERR_STORAGE, NO_MEMORY_TEXT);
}

static void on_served(void *arg, enum shoal_err err, const char *text, const struct serve_answer *answer)
{
    struct served *s = arg;
    bool small = answer == NULL || answer->body.len <= (s->pieces ? INFER_CHUNK_BYTES : INFER_WHOLE_BYTES_MAX);

    s->kernel_id = 0;
    if (!small && !s->pieces) {
        end_failed(s, SHOAL_ERR_TOO_BIG,
                   "the answer is larger than what goes to a node of an older version; ask the replica's own host");
    } else if (small && s->out.len == 0 && answer != NULL && say_owed(s) && answer_with(s, answer)) {
        served_free(s);
    } else {
        keep_end(s, err, text, answer);
        go_on(s);
    }
}

/* ---- the way here ---- */

static bool get_run(struct shoal_reader *r, struct serve_ask *ask, struct run_texts *t)
{
    ask->job = shoal_get_job_id(r);
    ask->timeout_ms = shoal_get_u32(r);
    ask->head.header_len = shoal_get_u32(r);
    shoal_get_text(r, t->path, sizeof(t->path));
    shoal_get_text(r, t->method, sizeof(t->method));
    shoal_get_text(r, t->type, sizeof(t->type));
    shoal_get_text(r, t->model, sizeof(t->model));
    shoal_get_text(r, t->version, sizeof(t->version));
    shoal_get_text(r, t->user, sizeof(t->user));
    ask->body = shoal_view_of(r->bytes + r->at, shoal_reader_left(r));
    ask->head.path = t->path;
    ask->head.method = t->method;
    ask->head.content_type = t->type;
    ask->head.model = t->model;
    ask->head.version = t->version;
    ask->head.user = t->user;
    return !r->failed && ask->timeout_ms > 0 && ask->timeout_ms <= SHOAL_INFER_TIMEOUT_MS_MAX;
}

/* Its body is whole; what it took to come is of the request's time. */
static void hand_over(struct served *s)
{
    uint64_t now = agent_now_ns();

    if (now >= s->deadline_ns) {
        end_failed(s, SHOAL_ERR_TIMEOUT, LATE_TEXT);
        return;
    }
    s->agent->served_bytes -= s->body_bytes;
    s->body_bytes = 0;
    s->ask.timeout_ms = (uint32_t)((s->deadline_ns - now - 1) / SHOAL_MS) + 1;
    s->ask.body = (struct shoal_view){ 0 };
    s->ask.take = &s->body;
    s->ask.id = &s->kernel_id;
    if (serve_host_infer(s->agent->serve, &s->ask)) /* else it may be freed already */
        notice(s, WORD_WAITS);
}

static struct served *served_create(struct agent *agent, uint64_t id, struct shoal_node_id from,
                                    struct peer_question *question)
{
    struct served *s = calloc(1, sizeof(*s));
    unsigned count = 0;

    for (const struct served *other = agent->served; other != NULL; other = other->next)
        count++;
    if (s == NULL || count >= SERVED_MAX) {
        free(s);
        return NULL;
    }
    *s = (struct served){ .next = agent->served, .agent = agent, .question = question, .from = from, .id = id };
    s->ask = (struct serve_ask){ .handed = on_handed, .done = on_served, .arg = s };
    agent->served = s;
    return s;
}

static void take_request(struct agent *agent, struct shoal_reader *r, bool open, struct served *s)
{
    size_t whole = open ? shoal_get_u32(r) : 0;

    s->pieces = open;
    if (open && shoal_get_u8(r) != 0)
        s->ask.piece = on_served_piece;
    if (!get_run(r, &s->ask, &s->texts)) {
        end_failed(s, SHOAL_ERR_MALFORMED, "the request does not decode");
        return;
    }
    if (!open)
        whole = s->ask.body.len;
    if (whole > SHOAL_INFER_BODY_BYTES_MAX || s->ask.body.len > whole || s->ask.head.header_len > whole) {
        end_failed(s, SHOAL_ERR_MALFORMED, "the request's body is not as long as it says");
        return;
    }
    if (agent->served_bytes + whole > SHOAL_INFER_HELD_BYTES_MAX || shoal_buf_reserve(&s->body, whole) != SHOAL_OK ||
        shoal_buf_append(&s->body, s->ask.body.bytes, s->ask.body.len) != SHOAL_OK) { /* S1 */
        end_failed(s, SHOAL_ERR_FULL, "the kernel's host holds as many request bodies as it may");
        return;
    }
    s->body_bytes = whole;
    agent->served_bytes += whole;
    s->deadline_ns = agent_now_ns() + s->ask.timeout_ms * SHOAL_MS;
    if (s->body.len == whole)
        hand_over(s);
}

static void say_took(struct served *s)
{
    if (s->took > 0 && backend_infer_tell_count(s->agent, s->from, WORD_TOOK, s->id, s->took))
        s->took = 0;
}

static void take_body(struct served *s, struct shoal_view bytes)
{
    if (s->over)
        return; /* its end has no room yet */
    if (s->body_bytes == 0 || bytes.len > s->body_bytes - s->body.len) {
        if (s->kernel_id != 0)
            serve_host_cancel(s->agent->serve, s->kernel_id);
        end_failed(s, SHOAL_ERR_MALFORMED, "the request's body is longer than it says");
        return;
    }
    if (shoal_buf_append(&s->body, bytes.bytes, bytes.len) != SHOAL_OK) {
        end_failed(s, SHOAL_ERR_FULL, "the kernel's host has no memory for the request");
        return;
    }
    s->took += bytes.len;
    say_took(s);
    if (s->body.len == s->body_bytes)
        hand_over(s);
}

static void drop(struct served *s)
{
    if (s->kernel_id != 0)
        serve_host_cancel(s->agent->serve, s->kernel_id);
    end_failed(s, SHOAL_ERR_STALE, "the request was taken back");
}

/* I7: its asker knows of a free kernel elsewhere. */
static void give_back(struct served *s)
{
    if (s->kernel_id == 0 || !serve_host_take_back(s->agent->serve, s->kernel_id))
        return;
    end_failed(s, SHOAL_ERR_STALE, "the request was given back");
}

static void take_more(struct served *s, struct shoal_view rest)
{
    struct shoal_reader r = shoal_reader_init(rest);
    size_t bytes = shoal_get_u32(&r);

    if (r.failed)
        return;
    if (s->kernel_id != 0) {
        serve_host_more(s->agent->serve, s->kernel_id, bytes);
        return;
    }
    s->answer_passed += bytes < s->answer_at - s->answer_passed ? bytes : s->answer_at - s->answer_passed;
    go_on(s);
}

static void answer_look(struct agent *agent, struct shoal_job_id job, struct peer_question *question)
{
    struct shoal_buf rows = { 0 };
    bool fine = backend_kernels_here(agent, job, &rows);

    peer_answer(question, fine ? SHOAL_OK : SHOAL_ERR_FULL, "", shoal_buf_view(&rows));
    shoal_buf_deinit(&rows);
}

static void take_word(struct agent *agent, enum infer_word word, uint64_t id, struct shoal_node_id from,
                      struct shoal_view rest)
{
    struct served *s = served_find(agent, id, from);

    if (word != WORD_BODY && word != WORD_MORE && word != WORD_CANCEL && word != WORD_BACK) {
        backend_infer_out_word(agent, word, id, from, rest);
        return;
    }
    if (s == NULL)
        return; /* it has ended */
    if (word == WORD_BODY)
        take_body(s, rest);
    else if (word == WORD_MORE)
        take_more(s, rest);
    else if (word == WORD_BACK)
        give_back(s);
    else
        drop(s);
}

void backend_serve_infer(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    uint8_t word = shoal_get_enum(&r, WORD_COUNT);
    uint64_t id = shoal_get_u64(&r);
    struct served *s;

    if (r.failed) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "the request does not decode", (struct shoal_view){ 0 });
        return;
    }
    if (word == WORD_LOOK) {
        answer_look(agent, shoal_get_job_id(&r), question);
        return;
    }
    if (word != WORD_RUN && word != WORD_OPEN) {
        peer_answer(question, SHOAL_OK, "", (struct shoal_view){ 0 });
        take_word(agent, word, id, from, shoal_view_of(r.bytes + r.at, shoal_reader_left(&r)));
        return;
    }
    s = served_create(agent, id, from, question);
    if (s == NULL)
        peer_answer(question, SHOAL_ERR_FULL, "the kernel's host has as many requests of others as it may",
                    (struct shoal_view){ 0 });
    else
        take_request(agent, &r, word == WORD_OPEN, s);
}

void backend_infer_serve_again(struct agent *agent)
{
    struct served *next;

    for (struct served *s = agent->served; s != NULL; s = next) {
        next = s->next;
        say_took(s);
        go_on(s);
    }
}

/* Bodies that do not come. */
void backend_infer_serve_look(struct agent *agent)
{
    uint64_t now = agent_now_ns();
    struct served *next;

    for (struct served *s = agent->served; s != NULL; s = next) {
        next = s->next;
        if (s->body_bytes > 0 && s->deadline_ns <= now)
            end_failed(s, SHOAL_ERR_TIMEOUT, LATE_TEXT);
    }
}

void backend_infer_down(struct agent *agent, struct shoal_node_id node)
{
    struct served *next;

    for (struct served *s = agent->served; s != NULL; s = next) {
        next = s->next;
        if (shoal_node_id_equal(s->from, node))
            drop(s);
    }
}
