/* Messages on connections of transport_tcp.c: what is queued is written, in the open or in records; what comes goes to the receive
 * that was posted for its tag, or is put aside (I2, I6). */
#include "tcp_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shoal/wire.h"

#include "shoal/banned.h"

#define ASIDE_BYTES_MAX (256ull * SHOAL_MIB)
#define SPARES_MAX 8u /* memory of messages put aside that is kept: fresh pages cost more than the copy */
#define SPARE_BYTES (512u * SHOAL_KIB)  /* the size of each, and the most that it holds */
#define READ_BUDGET (1024u * SHOAL_KIB) /* of one connection in one turn */
#define RANK_UNKNOWN UINT32_MAX

/* ---- sending ---- */

static struct transport_request *take_request(struct transport *t)
{
    struct transport_request *request = t->free_requests;

    if (request == NULL)
        return NULL;
    t->free_requests = request->next;
    *request = (struct transport_request){ 0 };
    return request;
}

static void free_request(struct transport *t, struct transport_request *request)
{
    request->next = t->free_requests;
    t->free_requests = request;
}

/* The part of the request that comes next, header or bytes; `len` of it. */
static const uint8_t *rest_of(const struct transport_request *request, size_t *len)
{
    if (request->at < HEADER_BYTES) {
        *len = HEADER_BYTES - request->at;
        return request->header + request->at;
    }
    *len = HEADER_BYTES + request->len - request->at;
    return request->from + (request->at - HEADER_BYTES);
}

/* Fill a record with what is queued. */
static bool seal_queue(struct outbound *out)
{
    struct transport_request **end = &out->inside;
    enum shoal_err err = seal_begin(out->seal, out->record);

    while (err == SHOAL_OK && out->first != NULL && seal_room(out->seal) > 0) {
        struct transport_request *request = out->first;
        size_t len;
        const uint8_t *bytes = rest_of(request, &len);

        len = len < seal_room(out->seal) ? len : seal_room(out->seal);
        err = seal_add(out->seal, bytes, len);
        request->at += len;
        if (request->at < HEADER_BYTES + request->len)
            continue;
        out->first = request->next;
        request->next = NULL;
        *end = request;
        end = &request->next;
    }
    out->record_at = 0;
    return err == SHOAL_OK && seal_end(out->seal, &out->record_len) == SHOAL_OK;
}

static int sealed_part(struct transport *t, uint32_t rank, struct iovec *part)
{
    struct outbound *out = &t->out[rank];

    if (!out->shaken || (out->record_at == out->record_len && out->first == NULL))
        return 0;
    if (out->record_at == out->record_len && !seal_queue(out)) {
        tcp_mark_failed(t, rank, ENOMEM);
        return 0;
    }
    *part = (struct iovec){ out->record + out->record_at, out->record_len - out->record_at };
    return 1;
}

/* The bytes to be written next, in at most two parts; 0: nothing for now. */
static int next_parts(struct transport *t, uint32_t rank, struct iovec parts[2])
{
    struct outbound *out = &t->out[rank];
    struct transport_request *request = out->first;
    int count = 0;
    size_t body;

    if (out->preamble_at < out->preamble_len) {
        parts[0] = (struct iovec){ out->preamble + out->preamble_at, out->preamble_len - out->preamble_at };
        return 1;
    }
    if (out->seal != NULL)
        return sealed_part(t, rank, parts);
    if (request == NULL)
        return 0;
    body = request->at < HEADER_BYTES ? 0 : request->at - HEADER_BYTES;
    if (request->at < HEADER_BYTES)
        parts[count++] = (struct iovec){ request->header + request->at, HEADER_BYTES - request->at };
    if (request->len > body) /* written only from */
        parts[count++] = (struct iovec){ (void *)(uintptr_t)(request->from + body), request->len - body };
    return count;
}

static void on_written(struct outbound *out, size_t len)
{
    struct transport_request *request = out->first;

    if (out->preamble_at < out->preamble_len) {
        out->preamble_at += (uint32_t)len;
        return;
    }
    if (out->seal == NULL) {
        request->at += len;
        if (request->at == HEADER_BYTES + request->len) {
            out->first = request->next;
            request->done = true;
        }
        return;
    }
    out->record_at += len;
    while (out->record_at == out->record_len && out->inside != NULL) { /* the kernel has all of them */
        request = out->inside;
        out->inside = request->next;
        request->done = true;
    }
}

/* A connection that has nothing to write waits for its end, and for the handshake's answer. */
uint32_t tcp_quiet_events(const struct outbound *out)
{
    return EPOLLRDHUP | (out->seal != NULL && !out->shaken ? (uint32_t)EPOLLIN : 0);
}

/* Write until the socket is full or the queue is empty. */
void tcp_flush_out(struct transport *t, uint32_t rank)
{
    struct outbound *out = &t->out[rank];
    struct iovec parts[2];
    int count;

    while (out->connected && (count = next_parts(t, rank, parts)) > 0) {
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = (size_t)count };
        ssize_t wrote = sendmsg(out->fd, &message, MSG_NOSIGNAL); /* a peer that is gone is an error, no end of this process */

        if (wrote < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!out->blocked)
                tcp_watch(t, out->fd, EPOLL_CTL_MOD, EPOLLOUT | tcp_quiet_events(out), EVENT_OUT, rank);
            out->blocked = true;
            return;
        }
        if (wrote < 0) {
            tcp_mark_failed(t, rank, errno);
            return;
        }
        on_written(out, (size_t)wrote);
    }
    if (out->connected && out->blocked) {
        tcp_watch(t, out->fd, EPOLL_CTL_MOD, tcp_quiet_events(out), EVENT_OUT, rank);
        out->blocked = false;
    }
}

struct transport_request *tcp_send(struct transport *t, uint32_t peer, uint64_t tag, const void *bytes, size_t len)
{
    struct outbound *out = &t->out[peer];
    struct transport_request *request = out->fd < 0 || t->failed ? NULL : take_request(t);
    struct shoal_writer w;

    if (request == NULL)
        return NULL;
    request->tag = tag;
    request->from = bytes;
    request->len = len;
    w = shoal_writer_init(request->header, HEADER_BYTES);
    shoal_put_u64(&w, tag);
    shoal_put_u64(&w, len);
    if (out->first == NULL)
        out->first = request;
    else
        out->last->next = request;
    out->last = request;
    if (!out->blocked)
        tcp_flush_out(t, peer);
    return request;
}

/* ---- receiving ---- */

static bool is_spare_size(size_t len) { return len > SPARE_BYTES / 4 && len <= SPARE_BYTES; }

static struct aside *take_aside(struct transport *t, uint64_t tag, size_t len)
{
    struct aside *aside = is_spare_size(len) ? t->spares : NULL;

    if (aside != NULL) {
        t->spares = aside->next;
        t->spare_count--;
    } else {
        aside = malloc(sizeof(*aside) + (is_spare_size(len) ? SPARE_BYTES : len));
    }
    if (aside == NULL)
        return NULL;
    *aside = (struct aside){ .tag = tag, .len = len };
    t->aside_bytes += len;
    return aside;
}

void tcp_free_aside(struct transport *t, struct aside *aside)
{
    t->aside_bytes -= aside->len;
    if (!is_spare_size(aside->len) || t->spare_count == SPARES_MAX) {
        free(aside);
        return;
    }
    aside->next = t->spares;
    t->spares = aside;
    t->spare_count++;
}

void tcp_close_in(struct transport *t, struct inbound *in)
{
    if (in->fd < 0)
        return;
    (void)close(in->fd);
    if (in->request != NULL)
        in->request->failed = in->request->done = true;
    if (in->aside != NULL)
        tcp_free_aside(t, in->aside);
    if (in->behind)
        t->behind_count--;
    seal_destroy(in->seal);
    free(in->wire);
    *in = (struct inbound){ .fd = -1 };
}

static struct transport_request *take_posted(struct transport *t, uint64_t tag)
{
    for (struct transport_request **at = &t->posted; *at != NULL; at = &(*at)->next) {
        struct transport_request *request = *at;

        if (request->tag == tag) {
            *at = request->next;
            if (*at == NULL)
                t->posted_end = at;
            request->next = NULL;
            return request;
        }
    }
    return NULL;
}

/* The header is complete: find a place for the bytes. False: none for now. */
static bool place_message(struct transport *t, struct inbound *in)
{
    struct shoal_reader r = shoal_reader_init(shoal_view_of(in->head, HEADER_BYTES));
    uint64_t tag = shoal_get_u64(&r);
    uint64_t len = shoal_get_u64(&r);
    struct transport_request *request;

    in->at = 0;
    if ((tag & TRANSPORT_EPOCH_MASK) != t->epoch || len > 1ull << 40) {
        tcp_mark_failed(t, in->rank, EPROTO);
        return false;
    }
    request = take_posted(t, tag);
    if (request != NULL && request->len != len) {
        request->failed = request->done = true;
        tcp_mark_failed(t, in->rank, EMSGSIZE);
        return false;
    }
    if (request != NULL) {
        in->request = request;
        return true;
    }
    if (t->aside_bytes + len > ASIDE_BYTES_MAX)
        return false;
    in->aside = take_aside(t, tag, len);
    return in->aside != NULL;
}

/* A receive was posted while the bytes were put aside. */
static void hand_over(struct transport *t, struct transport_request *request, struct aside *aside)
{
    request->failed = request->len != aside->len;
    if (!request->failed && aside->len > 0)
        memcpy(request->into, aside->bytes, aside->len);
    request->done = true;
    tcp_free_aside(t, aside);
}

static void message_over(struct transport *t, struct inbound *in)
{
    if (in->request != NULL) {
        in->request->done = true;
    } else {
        struct transport_request *request = take_posted(t, in->aside->tag);

        if (request != NULL) {
            hand_over(t, request, in->aside);
        } else {
            in->aside->next = t->asides;
            t->asides = in->aside;
        }
    }
    in->request = NULL;
    in->aside = NULL;
    in->head_at = 0;
    in->at = 0;
}

/* How long the record at the front of `wire` is, with its length; 0: it has not come whole. */
static size_t whole_record(const struct inbound *in)
{
    size_t have = in->wire_to - in->wire_from;
    const uint8_t *at = in->wire + in->wire_from;
    size_t len = have < SEAL_LENGTH_BYTES ? 0 : SEAL_LENGTH_BYTES + at[0] + 256u * at[1];

    return len <= have ? len : 0;
}

static bool has_opened(const struct inbound *in)
{
    return in->seal != NULL && (in->plain_from < in->plain_to || whole_record(in) > 0);
}

/* Open the record of `len` bytes at the front, straight to where it goes if all of it does. Like read(). */
static ssize_t open_front(struct inbound *in, size_t len, uint8_t *into, size_t want)
{
    uint8_t *cipher = in->wire + in->wire_from + SEAL_LENGTH_BYTES;
    size_t cipher_len = len - SEAL_LENGTH_BYTES;
    size_t plain = cipher_len < SEAL_TAG_BYTES ? 0 : cipher_len - SEAL_TAG_BYTES;
    bool straight = plain <= want;

    if (seal_open(in->seal, cipher, cipher_len, straight ? into : cipher) != SHOAL_OK) { /* I6 */
        errno = EBADMSG;
        return -1;
    }
    in->plain_from = (size_t)(cipher - in->wire);
    in->plain_to = in->plain_from + (straight ? 0 : plain);
    in->wire_from += len;
    return straight ? (ssize_t)plain : 0;
}

/* Like read(), from records. */
static ssize_t read_sealed(struct inbound *in, uint8_t *into, size_t want)
{
    for (size_t turn = 0; turn < WIRE_BYTES; turn++) {
        size_t len = in->plain_to - in->plain_from;
        ssize_t got;

        if (len > 0) {
            len = len < want ? len : want;
            memcpy(into, in->wire + in->plain_from, len);
            in->plain_from += len;
            return (ssize_t)len;
        }
        len = whole_record(in);
        if (len > 0) {
            got = open_front(in, len, into, want);
            if (got != 0)
                return got;
            continue;
        }
        memmove(in->wire, in->wire + in->wire_from, in->wire_to - in->wire_from);
        in->wire_to -= in->wire_from;
        in->wire_from = in->plain_from = in->plain_to = 0;
        got = read(in->fd, in->wire + in->wire_to, WIRE_BYTES - in->wire_to);
        if (got <= 0)
            return got;
        in->wire_to += (size_t)got;
    }
    errno = EAGAIN;
    return -1;
}

static ssize_t read_from(struct inbound *in, uint8_t *into, size_t want)
{
    return in->seal != NULL ? read_sealed(in, into, want) : read(in->fd, into, want);
}

/* Bytes of the current message; false: no more for now. What was opened is not left behind: no event tells of it. */
static bool read_bytes(struct transport *t, struct inbound *in, size_t *budget)
{
    size_t len = in->request != NULL ? in->request->len : in->aside->len;
    uint8_t *into = in->request != NULL ? in->request->into : in->aside->bytes;
    ssize_t got;

    if (in->at == len) {
        message_over(t, in);
        return true;
    }
    got = read_from(in, into + in->at, len - in->at);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        tcp_mark_failed(t, in->rank, got == 0 ? 0 : errno);
        tcp_close_in(t, in);
        return false;
    }
    in->at += (size_t)got;
    *budget -= (size_t)got < *budget ? (size_t)got : *budget;
    if (in->at == len)
        message_over(t, in);
    return *budget > 0 || has_opened(in);
}

/* Up to `want` bytes of preamble or header; false: not complete yet, or gone. */
bool tcp_read_head(struct transport *t, struct inbound *in, uint32_t want)
{
    ssize_t got = read_from(in, in->head + in->head_at, want - in->head_at);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        t->denied += in->state == INBOUND_SHAKEN && got < 0 ? 1 : 0;
        if (in->state == INBOUND_OPEN)
            tcp_mark_failed(t, in->rank, got == 0 ? 0 : errno);
        tcp_close_in(t, in);
        return false;
    }
    in->head_at += (uint32_t)got;
    return in->head_at == want;
}

void tcp_read_in(struct transport *t, struct inbound *in)
{
    size_t budget = READ_BUDGET;

    if (in->state == INBOUND_PREAMBLE)
        tcp_read_preamble(t, in);
    if (in->fd >= 0 && in->state == INBOUND_SHAKEN)
        tcp_prove(t, in);
    while (in->fd >= 0 && in->state == INBOUND_OPEN && !in->paused && !t->failed) {
        if (in->request == NULL && in->aside == NULL) {
            while (in->head_at < HEADER_BYTES && !tcp_read_head(t, in, HEADER_BYTES))
                if (in->fd < 0 || !has_opened(in)) /* else the rest of it is in the next record, of which no event tells */
                    return;
            if (!place_message(t, in)) {
                in->paused = !t->failed; /* a receive that is posted later wakes it */
                if (in->paused)
                    tcp_watch(t, in->fd, EPOLL_CTL_MOD, EPOLLRDHUP, EVENT_IN, (uint32_t)(in - t->in));
                return;
            }
        }
        if (!read_bytes(t, in, &budget))
            return;
    }
}

static void resume_paused(struct transport *t)
{
    for (uint32_t i = 0; i < INBOUND_MAX; i++) {
        struct inbound *in = &t->in[i];

        if (in->fd < 0 || !in->paused || !place_message(t, in))
            continue;
        in->paused = false;
        if (in->seal != NULL && !in->behind) {
            in->behind = true;
            t->behind_count++;
        }
        tcp_watch(t, in->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLRDHUP, EVENT_IN, i);
    }
}

struct transport_request *tcp_recv(struct transport *t, uint64_t tag, void *bytes, size_t len)
{
    struct transport_request *request = t->failed ? NULL : take_request(t);

    if (request == NULL)
        return NULL;
    request->tag = tag;
    request->into = bytes;
    request->len = len;
    for (struct aside **at = &t->asides; *at != NULL; at = &(*at)->next) {
        struct aside *aside = *at;

        if (aside->tag != tag)
            continue;
        *at = aside->next;
        hand_over(t, request, aside);
        resume_paused(t);
        return request;
    }
    *t->posted_end = request;
    t->posted_end = &request->next;
    resume_paused(t);
    return request;
}

enum transport_state tcp_test(struct transport *t, struct transport_request *request)
{
    bool failed = request->failed;

    if (!request->done)
        return TRANSPORT_PENDING;
    free_request(t, request);
    if (failed)
        tcp_mark_failed(t, RANK_UNKNOWN, EMSGSIZE);
    return failed ? TRANSPORT_FAILED : TRANSPORT_DONE;
}
