/* See serve_host.h for the picture and the rules. */
#include "serve_host.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "serve_rate.h"

#include "shoal/banned.h"

#define REPLICAS_MAX 64
#define SERVICES_MAX SERVE_FACTS_MAX
#define SWEEP_MS 50
#define PATH_BYTES 108
/* Requests that go to a kernel in one write. */
#define WRITE_MAX 64
/* Of the 30 s that a leader gives a replica to end: what is left is for the kernel's own shutdown. */
#define DRAIN_NS (20 * SHOAL_S)

enum request_state { REQUEST_WAITING, REQUEST_IN_KERNEL, REQUEST_OVER };

struct request {
    struct request *next; /* of its service's queue, or of its replica's requests */
    struct request *next_out; /* of those that are to be written (H5) */
    uint64_t id;
    uint64_t deadline_ns; /* UINT64_MAX: none */
    uint64_t came_ns, handed_ns;
    const bool *gone;     /* its asker gives it up; NULL: never */
    enum request_state state;
    bool unread;   /* answered while its kernel had not read it */
    unsigned refs; /* the list that it is in, and its writing until that is done */
    void (*handed)(void *arg);
    void (*piece)(void *arg, struct shoal_view piece);
    int64_t window; /* bytes of pieces that may come; below 0 after the piece that went beyond */
    size_t passed;  /* that were passed on since the kernel was told */
    serve_done_fn *done;
    void *arg;
    struct shoal_buf body;
    size_t head_len;
    uint8_t head[]; /* what comes before the body in its frame */
};

struct kernel_link;

struct replica {
    bool used;
    bool ready;
    uint64_t drained_ns; /* H4: no request waits for it longer; 0: it is not being stopped */
    uint64_t grace_ns;
    struct shoal_job_id job;
    uint64_t worker_id;
    uint32_t index;
    uint32_t limit_s; /* of one request; 0: nothing says */
    char path[PATH_BYTES];
    struct kernel_link *link; /* NULL: not connected */
    struct request *requests; /* in the kernel, those that are over too (H2) */
    uint32_t running;
    uint32_t batch;
    uint64_t finished, failed;
    struct serve_rate rate;
    char version[KERNEL_NAME_BYTES], platform[KERNEL_NAME_BYTES];
    struct shoal_buf inputs, outputs;
};

/* One connection; freed when its handle is closed. */
struct kernel_link {
    uv_pipe_t pipe;
    struct serve_host *host;
    struct replica *replica; /* NULL: given up */
    struct shoal_buf in;
    uint64_t unread_bytes; /* of requests that wait in the socket though they are answered */
    struct request *out, **out_last; /* H5 */
    struct kernel_link *next_out;    /* of the host's that have some */
    bool has_out;                    /* it is among them */
};

struct service {
    bool used;
    struct shoal_job_id job;
    char name[SERVE_NAME_BYTES];
    uint32_t version;
    uint64_t ended_ns; /* H6: no kernel's process is here, since then; 0: there is one */
    struct request *waiting; /* by deadline */
    uint32_t waiting_count;
    uint64_t waiting_bytes;
    struct serve_counts counts;
};

struct serve_host {
    struct serve_host_options options;
    uv_timer_t sweep;
    bool sweeping;
    uv_prepare_t turn_end;
    struct kernel_link *outs; /* H5 */
    uint64_t next_id;
    uint64_t dropped; /* answers that nobody waited for any more */
    struct replica replicas[REPLICAS_MAX];
    struct service services[SERVICES_MAX];
};

static const struct serve_answer *const no_answer = NULL;

static void sweep_start(struct serve_host *host);

struct serve_host *serve_host_create(const struct serve_host_options *options)
{
    struct serve_host *host = calloc(1, sizeof(*host));

    SHOAL_ASSERT(host != NULL);
    host->options = *options;
    (void)uv_timer_init(options->loop, &host->sweep);
    host->sweep.data = host;
    (void)uv_prepare_init(options->loop, &host->turn_end);
    host->turn_end.data = host;
    return host;
}

/* ---- requests ---- */

static void request_unref(struct request *request)
{
    SHOAL_ASSERT(request->refs > 0);
    if (--request->refs > 0)
        return;
    shoal_buf_deinit(&request->body);
    free(request);
}

/* H1. The request itself stays while a list or a write has it. */
static void request_end(struct request *request, enum shoal_err err, const char *text,
                        const struct serve_answer *answer)
{
    serve_done_fn *done = request->done;

    SHOAL_ASSERT(request->state != REQUEST_OVER); /* H1 */
    request->state = REQUEST_OVER;
    done(request->arg, err, text, answer);
}

static struct service *service_find(struct serve_host *host, struct shoal_job_id job)
{
    for (unsigned i = 0; i < SERVICES_MAX; i++)
        if (host->services[i].used && shoal_job_id_equal(host->services[i].job, job))
            return &host->services[i];
    return NULL;
}

static struct replica *replica_find(struct serve_host *host, uint64_t worker_id)
{
    for (unsigned i = 0; i < REPLICAS_MAX; i++)
        if (host->replicas[i].used && host->replicas[i].worker_id == worker_id)
            return &host->replicas[i];
    return NULL;
}

static bool takes(const struct replica *replica, struct shoal_job_id job)
{
    return replica->used && replica->ready && replica->drained_ns == 0 && shoal_job_id_equal(replica->job, job);
}

/* The one with the least in hand of those that have room. */
static struct replica *replica_free(struct serve_host *host, struct shoal_job_id job)
{
    struct replica *best = NULL;

    for (unsigned i = 0; i < REPLICAS_MAX; i++) {
        struct replica *r = &host->replicas[i];

        if (takes(r, job) && r->running < r->batch && (best == NULL || r->running < best->running))
            best = r;
    }
    return best;
}

static bool any_ready(const struct serve_host *host, struct shoal_job_id job)
{
    for (unsigned i = 0; i < REPLICAS_MAX; i++)
        if (takes(&host->replicas[i], job))
            return true;
    return false;
}

/* ---- writing to a kernel ---- */

struct infer_write {
    uv_write_t write;
    unsigned count;
    struct request *requests[WRITE_MAX];
};

static uint64_t request_bytes(const struct request *request) { return sizeof(*request) + request->body.len; }

static void on_written(uv_write_t *write, int status)
{
    struct infer_write *w = write->data;
    struct kernel_link *link = write->handle->data;

    (void)status; /* a link that broke is seen by its reader */
    for (unsigned i = 0; i < w->count; i++) {
        if (w->requests[i]->unread)
            link->unread_bytes -= request_bytes(w->requests[i]);
        request_unref(w->requests[i]);
    }
    free(w);
}

/* A kernel that answers without reading, which it can since ids follow each other, leaves what it was sent with us. False: it has
 * left more than it may. */
static bool note_unread(struct kernel_link *link, struct request *request)
{
    if (request->refs == 1) /* the list's alone: it is in the socket */
        return true;
    request->unread = true;
    link->unread_bytes += request_bytes(request);
    return link->unread_bytes <= SHOAL_KERNEL_UNREAD_BYTES_MAX;
}

/* The first of those that are to be written. */
static void write_some(struct kernel_link *link)
{
    struct infer_write *w = malloc(sizeof(*w));
    uv_buf_t bufs[2 * WRITE_MAX];
    unsigned count = 0;

    SHOAL_ASSERT(w != NULL);
    w->write.data = w;
    for (w->count = 0; link->out != NULL && w->count < WRITE_MAX; link->out = link->out->next_out) {
        struct request *request = link->out;

        w->requests[w->count++] = request;
        bufs[count++] = uv_buf_init((char *)request->head, (unsigned)request->head_len);
        if (request->body.len > 0)
            bufs[count++] = uv_buf_init((char *)request->body.bytes, (unsigned)request->body.len);
    }
    if (uv_write(&w->write, (uv_stream_t *)&link->pipe, bufs, count, on_written) == 0)
        return;
    while (w->count > 0)
        request_unref(w->requests[--w->count]);
    free(w);
}

static void write_out(struct kernel_link *link)
{
    while (link->out != NULL)
        write_some(link);
    link->out_last = &link->out; /* more may come in this turn */
}

static void on_turn_end(uv_prepare_t *turn_end)
{
    struct serve_host *host = turn_end->data;

    while (host->outs != NULL) {
        struct kernel_link *link = host->outs;

        host->outs = link->next_out;
        link->has_out = false;
        write_out(link);
    }
    (void)uv_prepare_stop(turn_end);
}

/* H5. */
static void link_write(struct kernel_link *link, struct request *request)
{
    struct serve_host *host = link->host;

    request->refs++;
    request->next_out = NULL;
    if (!link->has_out) {
        link->has_out = true;
        link->out_last = &link->out;
        link->next_out = host->outs;
        host->outs = link;
        (void)uv_prepare_start(&host->turn_end, on_turn_end);
    }
    *link->out_last = request;
    link->out_last = &request->next_out;
}

/* Of a link that is given up: what is written to it nobody reads. */
static void drop_out(struct kernel_link *link)
{
    struct kernel_link **at = &link->host->outs;

    if (!link->has_out)
        return;
    while (*at != link)
        at = &(*at)->next_out;
    *at = link->next_out;
    while (link->out != NULL) {
        struct request *request = link->out;

        link->out = request->next_out;
        request_unref(request);
    }
}

struct word_write {
    uv_write_t write;
    uint8_t bytes[KERNEL_WORD_BYTES];
};

static void on_word_written(uv_write_t *write, int status)
{
    (void)status; /* as above */
    free(write->data);
}

/* `more` 0: it is cancelled. */
static void say_of(struct replica *replica, uint64_t id, uint32_t more)
{
    struct word_write *w = calloc(1, sizeof(*w));
    uv_buf_t buf;
    size_t len;

    SHOAL_ASSERT(w != NULL);
    SHOAL_ASSERT(replica->link != NULL); /* it has the request */
    write_out(replica->link); /* H5: this is about a request that may be among those */
    w->write.data = w;
    len = more > 0 ? kernel_more(id, more, w->bytes) : kernel_cancel(id, w->bytes);
    buf = uv_buf_init((char *)w->bytes, (unsigned)len);
    if (uv_write(&w->write, (uv_stream_t *)&replica->link->pipe, &buf, 1, on_word_written) != 0)
        free(w);
}

static void hand(struct replica *replica, struct request *request)
{
    request->state = REQUEST_IN_KERNEL;
    request->handed_ns = uv_hrtime();
    request->next = replica->requests;
    replica->requests = request;
    replica->running++;
    SHOAL_ASSERT(replica->running <= replica->batch); /* H2 */
    link_write(replica->link, request);
}

static void dispatch(struct serve_host *host, struct service *service)
{
    struct replica *replica;

    while (service->waiting != NULL && (replica = replica_free(host, service->job)) != NULL) {
        struct request *request = service->waiting;

        service->waiting = request->next;
        service->waiting_count--;
        service->waiting_bytes -= request->body.len;
        hand(replica, request);
        if (request->handed != NULL)
            request->handed(request->arg);
    }
}

/* ---- replicas ---- */

static void on_closed(uv_handle_t *handle)
{
    struct kernel_link *link = handle->data;

    shoal_buf_deinit(&link->in);
    free(link);
}

/* Nobody here is ready for this service any more: who waits is told, and may be served elsewhere. */
static void refuse_waiting(struct serve_host *host, struct shoal_job_id job)
{
    struct service *service = service_find(host, job);

    while (service != NULL && service->waiting != NULL && !any_ready(host, job)) {
        struct request *request = service->waiting;

        service->waiting = request->next;
        service->waiting_count--;
        service->waiting_bytes -= request->body.len;
        request_end(request, SHOAL_ERR_STALE, "no replica is ready on this host any more", no_answer);
        request_unref(request);
    }
}

static void count_failed(struct serve_host *host, struct shoal_job_id job)
{
    struct service *service = service_find(host, job);

    if (service != NULL)
        service->counts.failed++;
}

/* What the kernel has is lost (H1); the replica stays known, and may be connected again. Each `done` may cancel others of its
 * requests: those are found until their own end. */
static void replica_disconnect(struct serve_host *host, struct replica *replica, const char *why)
{
    bool was_ready = replica->ready;

    if (replica->link != NULL) {
        replica->link->replica = NULL;
        drop_out(replica->link);
        uv_close((uv_handle_t *)&replica->link->pipe, on_closed);
    }
    replica->link = NULL;
    replica->ready = false;
    replica->running = 0;
    while (replica->requests != NULL) {
        struct request *request = replica->requests;

        replica->requests = request->next;
        if (request->state != REQUEST_OVER) {
            replica->failed++;
            count_failed(host, replica->job);
            request_end(request, SHOAL_ERR_RANK_LOST, why, no_answer);
        }
        request_unref(request);
    }
    refuse_waiting(host, replica->job);
    if (was_ready)
        host->options.changed(host->options.arg);
    sweep_start(host); /* it may be connected again */
}

static void replica_broken(struct serve_host *host, struct replica *replica, const char *text)
{
    uint64_t worker_id = replica->worker_id;

    replica_disconnect(host, replica, text);
    host->options.broken(host->options.arg, worker_id, text);
}

static void keep_value(struct shoal_buf *buf, struct shoal_view value)
{
    buf->len = 0;
    if (shoal_buf_append(buf, value.bytes, value.len) != SHOAL_OK)
        buf->len = 0; /* only what is shown of the model's tensors */
}

static void on_ready(struct serve_host *host, struct replica *replica, const struct kernel_message *m)
{
    struct service *service = service_find(host, replica->job);

    replica->batch = m->batch > replica->running ? m->batch : replica->running; /* H2: if it says so again */
    replica->ready = true;
    memcpy(replica->version, m->version, sizeof(replica->version));
    memcpy(replica->platform, m->platform, sizeof(replica->platform));
    keep_value(&replica->inputs, m->inputs);
    keep_value(&replica->outputs, m->outputs);
    host->options.changed(host->options.arg);
    if (service != NULL)
        dispatch(host, service);
}

/* H4. Told once; a stop that is repeated finds nothing in hand. */
static void say_drained(struct serve_host *host, struct replica *replica)
{
    uint64_t grace_ns = replica->grace_ns;

    if (replica->drained_ns == 0 || grace_ns == 0)
        return;
    replica->grace_ns = 0;
    host->options.drained(host->options.arg, replica->worker_id, grace_ns);
}

static void count_answer(struct serve_counts *counts, const struct request *request, const struct kernel_message *m)
{
    uint64_t now_ns = uv_hrtime();
    unsigned i = 0;

    shoal_histogram_add(&counts->queue, request->handed_ns - request->came_ns);
    shoal_histogram_add(&counts->kernel, now_ns - request->handed_ns);
    shoal_histogram_add(&counts->total, now_ns - request->came_ns);
    while (i < SERVE_BATCH_BOUNDS && m->batch > serve_batch_bounds[i])
        i++;
    counts->batches[i]++;
    counts->batch_sum += m->batch > 1 ? m->batch : 1;
    counts->answered += m->status < 500;
    counts->failed += m->status >= 500;
}

/* False: it answers what it was not asked, or does not read what it is asked. */
static bool on_done(struct serve_host *host, struct replica *replica, const struct kernel_message *m)
{
    struct request **at = &replica->requests;
    struct serve_answer answer = { m->status, m->header_len, m->content_type, m->body };
    struct service *service = service_find(host, replica->job);
    struct request *request;

    while (*at != NULL && (*at)->id != m->id)
        at = &(*at)->next;
    request = *at;
    if (request == NULL)
        return false;
    if (!note_unread(replica->link, request))
        return false;
    *at = request->next;
    replica->running--;
    if (m->status < 500)
        replica->finished++;
    else
        replica->failed++;
    serve_rate_add(&replica->rate, uv_hrtime(), request->body.len + m->body.len);
    if (service != NULL && request->state != REQUEST_OVER) /* else its end was counted */
        count_answer(&service->counts, request, m);
    if (service != NULL)
        dispatch(host, service); /* first: the kernel is not to wait for a client */
    if (request->state == REQUEST_OVER)
        host->dropped++;
    else
        request_end(request, SHOAL_OK, "", &answer);
    request_unref(request);
    if (replica->requests == NULL)
        say_drained(host, replica);
    return true;
}

/* NULL: it has none of this id. */
static struct request *request_in(const struct replica *replica, uint64_t id)
{
    struct request *request = replica->requests;

    while (request != NULL && request->id != id)
        request = request->next;
    return request;
}

/* False: H3. A part of what ended meanwhile, or of what is wanted whole, is dropped: the kernel may not know. */
static bool on_part(struct serve_host *host, struct replica *replica, const struct kernel_message *m)
{
    struct request *request = request_in(replica, m->id);

    if (request == NULL || request->state == REQUEST_OVER || request->piece == NULL || m->body.len == 0) {
        host->dropped++;
        return true;
    }
    if (request->window <= 0 || m->body.len > SHOAL_INFER_PIECE_BYTES_MAX)
        return false;
    request->window -= (int64_t)m->body.len;
    request->piece(request->arg, m->body);
    return true;
}

/* False: the link is gone. */
static bool on_message(struct serve_host *host, struct replica *replica, struct shoal_view frame)
{
    struct kernel_message message, *m = &message;
    bool fine = kernel_decode(frame, m) == SHOAL_OK;
    char text[KERNEL_TEXT_BYTES] = "the kernel said something that is no message of a kernel";

    if (fine && m->kind == KERNEL_READY) {
        on_ready(host, replica, m);
    } else if (fine && m->kind == KERNEL_DONE) {
        fine = on_done(host, replica, m);
        if (!fine)
            (void)snprintf(text, sizeof(text), "the kernel answered a request that it does not have, or has not read");
    } else if (fine && m->kind == KERNEL_PART) {
        fine = on_part(host, replica, m);
        if (!fine)
            (void)snprintf(text, sizeof(text),
                           "the kernel sent parts of an answer beyond what it was told that it may");
    } else if (fine && m->kind == KERNEL_FAILED) {
        memcpy(text, m->text, sizeof(text));
        fine = false;
    }
    if (!fine)
        replica_broken(host, replica, text);
    return fine;
}

static void take_frames(struct kernel_link *link)
{
    size_t at = 0, len = 0;
    enum shoal_err err = SHOAL_OK;

    while (err == SHOAL_OK && link->replica != NULL) {
        err = kernel_frame(shoal_view_of(link->in.bytes + at, link->in.len - at), &len);
        if (err != SHOAL_OK)
            replica_broken(link->host, link->replica, "the kernel sent a message that is too large, or none");
        if (err != SHOAL_OK || len == 0)
            break;
        if (!on_message(link->host, link->replica, shoal_view_of(link->in.bytes + at + 4, len - 4)))
            break;
        at += len;
    }
    if (at > 0 && at < link->in.len)
        memmove(link->in.bytes, link->in.bytes + at, link->in.len - at);
    link->in.len -= at;
    if (link->in.len == 0 && link->in.cap > SHOAL_KERNEL_LINK_KEPT_BYTES)
        shoal_buf_deinit(&link->in);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct kernel_link *link = handle->data;
    bool room = shoal_buf_reserve(&link->in, suggested) == SHOAL_OK;

    *buf = room ? uv_buf_init((char *)link->in.bytes + link->in.len, (unsigned)(link->in.cap - link->in.len))
                : uv_buf_init(NULL, 0);
}

static void on_read(uv_stream_t *stream, ssize_t len, const uv_buf_t *buf)
{
    struct kernel_link *link = stream->data;

    (void)buf;
    if (len < 0 && link->replica != NULL)
        replica_disconnect(link->host, link->replica, "the kernel's process ended while it had the request");
    if (len <= 0 || link->replica == NULL)
        return;
    link->in.len += (size_t)len;
    take_frames(link);
}

/* ---- connecting ---- */

/* The kernel makes the socket when it has come up: until then there is none, or nobody listens. It lies in a folder that
 * only this host's user can write to, and whoever answers must be this user. */
static int connect_to(const char *path)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    struct ucred who = { 0 };
    socklen_t len = sizeof(who);
    struct stat facts;
    int fd;

    if (lstat(path, &facts) != 0 || !S_ISSOCK(facts.st_mode))
        return -1;
    memcpy(name.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)&name, sizeof(name)) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != getuid()) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static void replica_connect(struct serve_host *host, struct replica *replica)
{
    int fd = connect_to(replica->path);
    struct kernel_link *link;

    if (fd < 0)
        return;
    link = calloc(1, sizeof(*link));
    SHOAL_ASSERT(link != NULL);
    link->host = host;
    link->replica = replica;
    (void)uv_pipe_init(host->options.loop, &link->pipe, 0);
    link->pipe.data = link;
    replica->link = link;
    if (uv_pipe_open(&link->pipe, fd) != 0) {
        (void)close(fd);
        replica_disconnect(host, replica, "");
        return;
    }
    if (uv_read_start((uv_stream_t *)&link->pipe, on_alloc, on_read) != 0)
        replica_disconnect(host, replica, "");
}

/* ---- time ---- */

static bool is_given_up(const struct request *request) { return request->gone != NULL && *request->gone; }

static void end_late(struct service *service, uint64_t now)
{
    struct request **at = &service->waiting;

    while (*at != NULL) {
        struct request *request = *at;

        if (request->deadline_ns > now && !is_given_up(request)) {
            at = &request->next;
            continue;
        }
        *at = request->next;
        service->waiting_count--;
        service->waiting_bytes -= request->body.len;
        service->counts.failed++;
        request_end(request, SHOAL_ERR_TIMEOUT, "its time was over before a kernel was free" SERVE_LIMIT_TEXT,
                    no_answer);
        request_unref(request);
        at = &service->waiting; /* its `done` may have changed the list */
    }
}

/* The kernel keeps it: users submit long work, and fetch what it made from elsewhere. One that gives pieces stops. */
static void end_late_in_kernel(struct serve_host *host, struct replica *replica, uint64_t now)
{
    bool again = true;

    while (again) {
        again = false;
        for (struct request *r = replica->requests; r != NULL && !again; r = r->next)
            if (r->state != REQUEST_OVER && (r->deadline_ns <= now || is_given_up(r))) {
                if (r->piece != NULL && replica->link != NULL)
                    say_of(replica, r->id, 0);
                count_failed(host, replica->job);
                request_end(r, SHOAL_ERR_TIMEOUT, "the kernel did not answer in time" SERVE_LIMIT_TEXT, no_answer);
                again = true; /* its `done` may have changed the list */
            }
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct serve_host *host = timer->data;
    uint64_t now = uv_hrtime();
    bool needed = false;

    for (unsigned i = 0; i < SERVICES_MAX; i++) {
        if (host->services[i].used)
            end_late(&host->services[i], now);
        needed = needed || host->services[i].waiting != NULL;
    }
    for (unsigned i = 0; i < REPLICAS_MAX; i++) {
        struct replica *replica = &host->replicas[i];

        if (!replica->used)
            continue;
        if (replica->link == NULL)
            replica_connect(host, replica);
        end_late_in_kernel(host, replica, now);
        if (replica->drained_ns != 0 && now >= replica->drained_ns)
            say_drained(host, replica);
        needed = needed || replica->link == NULL || replica->requests != NULL;
    }
    if (!needed) {
        host->sweeping = false;
        (void)uv_timer_stop(&host->sweep);
    }
}

static void sweep_start(struct serve_host *host)
{
    if (host->sweeping)
        return;
    host->sweeping = true;
    (void)uv_timer_start(&host->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
}

/* ---- the host's interface ---- */

/* H6. A place that is free, or else the one whose last kernel ended longest ago; NULL: all have kernels. */
static struct service *service_room(struct serve_host *host)
{
    struct service *oldest = NULL;

    for (unsigned i = 0; i < SERVICES_MAX; i++) {
        struct service *s = &host->services[i];

        if (!s->used)
            return s;
        if (s->ended_ns != 0 && (oldest == NULL || s->ended_ns < oldest->ended_ns))
            oldest = s;
    }
    return oldest;
}

/* Another job with the name and version of this one, which a delete and a deploy make: what is over gives way. */
static void drop_namesake(struct serve_host *host, const struct serve_start *start)
{
    for (unsigned i = 0; i < SERVICES_MAX; i++) {
        struct service *s = &host->services[i];

        if (s->used && s->ended_ns != 0 && s->version == start->version && strcmp(s->name, start->service) == 0)
            s->used = false;
    }
}

static bool service_need(struct serve_host *host, const struct serve_start *start)
{
    struct service *service = service_find(host, start->job);

    if (service != NULL) {
        service->ended_ns = 0;
        return true;
    }
    drop_namesake(host, start);
    service = service_room(host);
    if (service == NULL)
        return false;
    SHOAL_ASSERT(!service->used || service->waiting == NULL); /* serve_host_end() has refused who waited */
    *service = (struct service){ .used = true, .job = start->job, .version = start->version };
    (void)snprintf(service->name, sizeof(service->name), "%s", start->service);
    return true;
}

void serve_host_start(struct serve_host *host, const struct serve_start *start)
{
    uint64_t worker_id = start->worker_id;
    struct replica *replica = replica_find(host, worker_id);

    for (unsigned i = 0; i < REPLICAS_MAX && replica == NULL; i++)
        if (!host->replicas[i].used)
            replica = &host->replicas[i];
    if (replica == NULL || replica->used)
        return; /* known already; a host has no more slots than places */
    if (strlen(start->path) >= PATH_BYTES) {
        host->options.broken(host->options.arg, worker_id,
                             "the data folder's name is too long for the kernel's socket; give --data a shorter one");
        return;
    }
    if (!service_need(host, start))
        return; /* as above */
    *replica = (struct replica){ .used = true,
                                 .job = start->job,
                                 .worker_id = worker_id,
                                 .index = start->index,
                                 .batch = 1,
                                 .limit_s = start->limit_s };
    (void)snprintf(replica->path, sizeof(replica->path), "%s", start->path);
    sweep_start(host);
}

bool serve_host_drain(struct serve_host *host, uint64_t worker_id, uint64_t grace_ns)
{
    struct replica *replica = replica_find(host, worker_id);

    SHOAL_ASSERT(grace_ns > 0);
    if (replica == NULL)
        return false;
    if (replica->drained_ns == 0) {
        replica->drained_ns = uv_hrtime() + DRAIN_NS;
        replica->grace_ns = grace_ns;
        refuse_waiting(host, replica->job);
        host->options.changed(host->options.arg);
    }
    if (replica->requests != NULL && replica->grace_ns != 0)
        return true;
    replica->grace_ns = 0;
    return false;
}

static bool any_replica(const struct serve_host *host, struct shoal_job_id job)
{
    for (unsigned i = 0; i < REPLICAS_MAX; i++)
        if (host->replicas[i].used && shoal_job_id_equal(host->replicas[i].job, job))
            return true;
    return false;
}

void serve_host_end(struct serve_host *host, uint64_t worker_id)
{
    struct replica *replica = replica_find(host, worker_id);
    struct service *service;

    if (replica == NULL)
        return;
    (void)unlink(replica->path);
    replica_disconnect(host, replica, "the kernel's process ended while it had the request");
    shoal_buf_deinit(&replica->inputs);
    shoal_buf_deinit(&replica->outputs);
    replica->used = false;
    service = service_find(host, replica->job);
    if (!any_replica(host, replica->job) && service != NULL) {
        SHOAL_ASSERT(service->waiting == NULL); /* replica_disconnect() has refused who waited */
        service->ended_ns = uv_hrtime();
    }
}

void serve_host_forget(struct serve_host *host, struct shoal_job_id job)
{
    struct service *service = service_find(host, job);

    if (service != NULL && service->ended_ns != 0)
        service->used = false;
}

static void queue(struct service *service, struct request *request)
{
    struct request **at = &service->waiting;

    while (*at != NULL && (*at)->deadline_ns <= request->deadline_ns)
        at = &(*at)->next;
    request->next = *at;
    *at = request;
    service->waiting_count++;
    service->waiting_bytes += request->body.len;
}

static struct request *request_create(struct serve_host *host, const struct serve_ask *ask)
{
    struct kernel_ask head = ask->head;
    uint8_t bytes[KERNEL_HEAD_BYTES_MAX];
    struct request *request;
    size_t len;

    head.id = ++host->next_id;
    head.deadline_ms = ask->timeout_ms;
    head.window = ask->piece == NULL ? 0 : (uint32_t)SHOAL_INFER_WINDOW_BYTES;
    if (kernel_infer_head(&head, ask->take == NULL ? ask->body.len : ask->take->len, bytes, &len) != SHOAL_OK ||
        (request = malloc(sizeof(*request) + len)) == NULL)
        return NULL;
    *request = (struct request){ .id = head.id,
                                 .came_ns = uv_hrtime(),
                                 .gone = ask->gone,
                                 .refs = 1,
                                 .handed = ask->handed,
                                 .piece = ask->piece,
                                 .window = head.window,
                                 .done = ask->done,
                                 .arg = ask->arg,
                                 .head_len = len };
    request->deadline_ns = ask->timeout_ms == 0 ? UINT64_MAX : request->came_ns + ask->timeout_ms * SHOAL_MS;
    memcpy(request->head, bytes, len);
    if (ask->take != NULL) {
        request->body = *ask->take;
        *ask->take = (struct shoal_buf){ 0 };
        return request;
    }
    if (ask->body.len == 0 || shoal_buf_append(&request->body, ask->body.bytes, ask->body.len) == SHOAL_OK)
        return request;
    free(request);
    return NULL;
}

bool serve_host_infer(struct serve_host *host, const struct serve_ask *ask)
{
    struct service *service = service_find(host, ask->job);
    struct request *request;
    struct replica *replica;

    if (service == NULL || !any_ready(host, ask->job)) {
        ask->done(ask->arg, SHOAL_ERR_STALE, "no replica is ready on this host", no_answer);
        return false;
    }
    if (service->waiting_count >= SHOAL_SERVICE_QUEUE_MAX ||
        service->waiting_bytes + (ask->take == NULL ? ask->body.len : ask->take->len) > SHOAL_SERVICE_QUEUE_BYTES_MAX) {
        service->counts.refused++;
        ask->done(ask->arg, SHOAL_ERR_FULL, "too many requests wait for this model here; send it again in a second",
                  no_answer);
        return false;
    }
    request = request_create(host, ask);
    if (request == NULL) {
        ask->done(ask->arg, SHOAL_ERR_TOO_BIG, "the request's address or content type is too long, or memory is short",
                  no_answer);
        return false;
    }
    if (ask->id != NULL)
        *ask->id = request->id;
    sweep_start(host);
    replica = service->waiting == NULL ? replica_free(host, ask->job) : NULL;
    if (replica != NULL) {
        hand(replica, request);
        return false;
    }
    queue(service, request);
    return true;
}

/* The replica that has it, or NULL: it waits, or is not known. */
static struct replica *replica_of(struct serve_host *host, uint64_t id, struct request **request)
{
    for (unsigned i = 0; i < REPLICAS_MAX; i++) {
        *request = host->replicas[i].used ? request_in(&host->replicas[i], id) : NULL;
        if (*request != NULL)
            return &host->replicas[i];
    }
    return NULL;
}

void serve_host_more(struct serve_host *host, uint64_t id, size_t bytes)
{
    struct request *request;
    struct replica *replica = replica_of(host, id, &request);

    if (replica == NULL || replica->link == NULL || request->state == REQUEST_OVER || request->piece == NULL)
        return;
    request->passed += bytes < SHOAL_INFER_BODY_BYTES_MAX ? bytes : 0;
    if (request->passed < SHOAL_INFER_WINDOW_BYTES / 2)
        return;
    request->window += (int64_t)request->passed;
    say_of(replica, id, (uint32_t)request->passed);
    request->passed = 0;
}

static bool cancel_waiting(struct service *service, uint64_t id)
{
    struct request **at = &service->waiting;
    struct request *request;

    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    request = *at;
    if (request == NULL)
        return false;
    *at = request->next;
    service->waiting_count--;
    service->waiting_bytes -= request->body.len;
    request->state = REQUEST_OVER;
    request_unref(request);
    return true;
}

bool serve_host_take_back(struct serve_host *host, uint64_t id)
{
    for (unsigned i = 0; i < SERVICES_MAX; i++)
        if (host->services[i].used && cancel_waiting(&host->services[i], id))
            return true;
    return false;
}

void serve_host_cancel(struct serve_host *host, uint64_t id)
{
    struct request *request;
    struct replica *replica = replica_of(host, id, &request);

    if (replica == NULL) {
        (void)serve_host_take_back(host, id);
    } else if (request->state != REQUEST_OVER) {
        request->state = REQUEST_OVER; /* the kernel's answer is dropped (H2) */
        if (replica->link != NULL)
            say_of(replica, id, 0);
    }
}

static uint32_t requests_of(const struct replica *replica)
{
    uint32_t count = 0;

    for (const struct request *r = replica->requests; r != NULL; r = r->next)
        count++;
    return count;
}

size_t serve_host_facts(const struct serve_host *host, struct serve_facts *facts, size_t cap)
{
    size_t count = 0;

    for (unsigned s = 0; s < SERVICES_MAX && count < cap; s++) {
        struct serve_facts *f = &facts[count];

        if (!host->services[s].used || host->services[s].ended_ns != 0)
            continue;
        *f = (struct serve_facts){ .job = host->services[s].job,
                                   .waiting = host->services[s].waiting_count,
                                   .open = host->services[s].waiting_count };
        for (unsigned i = 0; i < REPLICAS_MAX; i++) {
            const struct replica *r = &host->replicas[i];

            if (!r->used || !shoal_job_id_equal(r->job, f->job))
                continue;
            if (!takes(r, f->job)) {
                f->open += requests_of(r); /* H4 */
                continue;
            }
            f->ready++;
            f->limit_s = r->limit_s > f->limit_s ? r->limit_s : f->limit_s;
            f->room += r->batch;
            f->open += requests_of(r);
        }
        count++;
    }
    return count;
}

bool serve_host_counted(const struct serve_host *host, size_t place, struct serve_counted *counted)
{
    size_t at = 0;

    for (unsigned i = 0; i < SERVICES_MAX; i++) {
        const struct service *s = &host->services[i];

        if (!s->used || at++ != place)
            continue;
        *counted = (struct serve_counted){
            .job = s->job, .version = s->version, .running = s->ended_ns == 0, .counts = &s->counts
        };
        memcpy(counted->service, s->name, sizeof(counted->service));
        return true;
    }
    return false;
}

const struct serve_counts *serve_host_counts(const struct serve_host *host, struct shoal_job_id job)
{
    for (unsigned i = 0; i < SERVICES_MAX; i++)
        if (host->services[i].used && shoal_job_id_equal(host->services[i].job, job))
            return &host->services[i].counts;
    return NULL;
}

bool serve_host_replica(const struct serve_host *host, size_t place, struct serve_replica *replica)
{
    size_t at = 0;

    for (unsigned i = 0; i < REPLICAS_MAX; i++) {
        const struct replica *r = &host->replicas[i];

        if (!r->used || at++ != place)
            continue;
        *replica = (struct serve_replica){ .job = r->job,
                                           .worker_id = r->worker_id,
                                           .index = r->index,
                                           .ready = r->ready,
                                           .batch = r->batch,
                                           .running = r->running,
                                           .finished = r->finished,
                                           .failed = r->failed,
                                           .version = r->version,
                                           .platform = r->platform,
                                           .inputs = shoal_buf_view(&r->inputs),
                                           .outputs = shoal_buf_view(&r->outputs) };
        serve_rate_read(&r->rate, uv_hrtime(), &replica->milli_requests_per_s, &replica->bytes_per_s);
        return true;
    }
    return false;
}
