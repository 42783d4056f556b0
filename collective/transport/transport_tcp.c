/* Plain TCP between hosts on trusted interfaces. The default: UCX 1.13's tcp transport aborts the process now and then
 * when many connections close at once (an assertion in its event handling), which is what every change of epoch does.
 *
 *   rank a --connection--> rank b     carries what a sends to b; b has one of its own for the other way
 *   preamble: magic, epoch, rank of the sender, its token         then messages: tag, length, bytes
 *
 * I1. Nothing is read from a connection beyond its preamble before the preamble's epoch is mine and its token is the
 *     one that the EPOCH lists for that rank. One that comes for an epoch I have not entered yet waits, unread.
 * I2. Bytes go straight from the socket into the memory of the receive that was posted for their tag; what nobody has
 *     asked for yet is put aside, up to a bound, and then left in the socket.
 * I3. Only the named interfaces are bound. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shoal/limits.h"
#include "shoal/wire.h"
#include "transport.h"

#include "shoal/banned.h"

#define REQUESTS_MAX 16384u
#define LISTENERS_MAX 4u
#define INBOUND_MAX (4u * SHOAL_RANKS_MAX)
#define ASIDE_BYTES_MAX (256ull * SHOAL_MIB)
#define SPARES_MAX 8u /* memory of messages put aside that is kept: fresh pages cost more than the copy */
#define SPARE_BYTES (512u * SHOAL_KIB) /* the size of each, and the most that it holds */
#define SEND_BUFFER (1024 * 1024) /* more than an in-house network has under way, less than a core's share of cache */
#define READ_BUDGET (1024u * SHOAL_KIB) /* of one connection in one turn */
#define EVENTS_MAX 64
#define PREAMBLE_MAGIC 0x31706374616f6873ull
#define PREAMBLE_BYTES 36u
#define HEADER_BYTES 16u
#define ADDRESS_BYTES 6u
#define RANK_UNKNOWN UINT32_MAX

struct transport_request {
    struct transport_request *next; /* in a send queue, the posted list or the free list */
    uint64_t tag;
    uint8_t *into;       /* receive */
    const uint8_t *from; /* send */
    size_t len;
    size_t at; /* of header and bytes, sent so far */
    uint8_t header[HEADER_BYTES];
    bool done;
    bool failed;
};

/* A message that came before anyone asked for it. */
struct aside {
    struct aside *next;
    uint64_t tag;
    size_t len;
    uint8_t bytes[];
};

struct outbound {
    int fd; /* -1: none */
    bool connected;
    bool blocked; /* waits for EPOLLOUT */
    uint32_t preamble_at;
    uint8_t preamble[PREAMBLE_BYTES];
    struct transport_request *first;
    struct transport_request *last;
};

enum inbound_state { INBOUND_PREAMBLE, INBOUND_HELD, INBOUND_OPEN };

struct inbound {
    int fd; /* -1: none */
    enum inbound_state state;
    uint64_t epoch;
    uint32_t rank;
    uint8_t token[16];
    uint8_t head[PREAMBLE_BYTES]; /* preamble, then header of the message being read */
    uint32_t head_at;
    struct transport_request *request; /* where its bytes go */
    struct aside *aside;               /* or there */
    size_t at;
    bool paused; /* the header is read, but there is no place for the bytes */
};

struct transport {
    int epoll;
    int listeners[LISTENERS_MAX];
    struct in_addr listener_addr[LISTENERS_MAX];
    uint16_t listener_port[LISTENERS_MAX];
    uint32_t listener_count;
    bool entered;
    uint64_t epoch; /* that I am in, if `entered` */
    bool expected[SHOAL_RANKS_MAX];
    uint8_t tokens[SHOAL_RANKS_MAX][16];
    struct outbound out[SHOAL_RANKS_MAX];
    struct inbound in[INBOUND_MAX];
    struct transport_request *posted; /* receives without bytes yet, the oldest first */
    struct transport_request **posted_end;
    struct aside *asides;
    uint64_t aside_bytes;
    struct aside *spares;
    uint32_t spare_count;
    struct transport_request *requests;
    struct transport_request *free_requests;
    bool failed;
    uint32_t failed_rank;
    int failed_errno; /* 0: closed by the peer */
    uint64_t denied;  /* connections with a wrong preamble */
    bool fixed_send_buffer;
};

/* ---- set up ---- */

static void mark_failed(struct transport *t, uint32_t rank, int error)
{
    if (t->failed)
        return;
    t->failed = true;
    t->failed_rank = rank;
    t->failed_errno = error;
}

/* An event names its owner in its 64 bits: kind and index. */
enum event_of { EVENT_LISTENER, EVENT_OUT, EVENT_IN };

static void watch(const struct transport *t, int fd, int how, uint32_t events, enum event_of of, uint32_t index)
{
    struct epoll_event event = { .events = events, .data.u64 = (uint64_t)of << 32 | index };

    (void)epoll_ctl(t->epoll, how, fd, &event);
}

static enum shoal_err listen_at(struct transport *t, struct in_addr addr, struct shoal_msg *msg)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = addr };
    socklen_t len = sizeof(at);
    uint32_t i = t->listener_count;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, SHOAL_RANKS_MAX) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        int error = errno;

        if (fd >= 0)
            (void)close(fd);
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "cannot listen on %s: %s", inet_ntoa(addr), strerror(error));
    }
    t->listeners[i] = fd;
    t->listener_addr[i] = addr;
    t->listener_port[i] = ntohs(at.sin_port);
    t->listener_count++;
    watch(t, fd, EPOLL_CTL_ADD, EPOLLIN, EVENT_LISTENER, i);
    return SHOAL_OK;
}

static enum shoal_err listen_on(struct transport *t, const struct ifaddrs *all, const char *name, size_t len,
                                struct shoal_msg *msg)
{
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || strlen(i->ifa_name) != len ||
            memcmp(i->ifa_name, name, len) != 0)
            continue;
        return listen_at(t, ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr, msg);
    }
    return shoal_fail(msg, SHOAL_ERR_INVALID, "fabric.trusted names %.*s, which has no IPv4 address on this host",
                      (int)len, name);
}

static enum shoal_err listen_all(struct transport *t, const char *devices, struct shoal_msg *msg)
{
    struct ifaddrs *all = NULL;
    enum shoal_err err = SHOAL_OK;

    if (getifaddrs(&all) != 0)
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "cannot list the interfaces: %s", strerror(errno));
    for (const char *at = devices; *at != '\0' && err == SHOAL_OK;) {
        size_t len = strcspn(at, ",");

        if (t->listener_count == LISTENERS_MAX)
            err =
                shoal_fail(msg, SHOAL_ERR_TOO_BIG, "fabric.trusted=%s: at most %u interfaces", devices, LISTENERS_MAX);
        else
            err = listen_on(t, all, at, len, msg);
        at += len + (at[len] == ',');
    }
    freeifaddrs(all);
    if (err == SHOAL_OK && t->listener_count == 0)
        err = shoal_fail(msg, SHOAL_ERR_INVALID, "fabric.trusted names no interface");
    return err;
}

/* Left to itself the kernel lets megabytes wait in a socket, which are out of the cache when they are read. A fixed
 * size ends its own tuning, so only where it grants all of it (net.core.wmem_max). */
static bool grants_send_buffer(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int bytes = SEND_BUFFER;
    socklen_t len = sizeof(bytes);
    bool granted;

    if (fd < 0)
        return false;
    granted = setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, len) == 0 &&
              getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &len) == 0 &&
              bytes >= 2 * SEND_BUFFER; /* it counts its own needs, too, and says twice of what was asked for */
    (void)close(fd);
    return granted;
}

static void tcp_destroy(struct transport *t);

static enum shoal_err tcp_create(struct transport **out, const char *devices, struct shoal_msg *msg)
{
    struct transport *t = calloc(1, sizeof(*t));
    enum shoal_err err;

    if (t == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a fabric");
    for (uint32_t i = 0; i < SHOAL_RANKS_MAX; i++)
        t->out[i].fd = -1;
    for (uint32_t i = 0; i < INBOUND_MAX; i++)
        t->in[i].fd = -1;
    t->posted_end = &t->posted;
    t->fixed_send_buffer = grants_send_buffer();
    t->requests = calloc(REQUESTS_MAX, sizeof(*t->requests));
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (t->requests == NULL || t->epoll < 0)
        err = shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a fabric");
    else
        err = listen_all(t, devices, msg);
    if (err != SHOAL_OK) {
        tcp_destroy(t);
        return err;
    }
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        t->requests[i].next = t->free_requests;
        t->free_requests = &t->requests[i];
    }
    *out = t;
    return SHOAL_OK;
}

/* IPv4 address and port of each interface, in network order. */
static enum shoal_err tcp_address(struct transport *t, uint8_t *bytes, size_t cap, size_t *len)
{
    if (cap < t->listener_count * ADDRESS_BYTES)
        return SHOAL_ERR_TOO_BIG;
    for (uint32_t i = 0; i < t->listener_count; i++) {
        uint16_t port = htons(t->listener_port[i]);

        memcpy(bytes + i * ADDRESS_BYTES, &t->listener_addr[i], 4);
        memcpy(bytes + i * ADDRESS_BYTES + 4, &port, 2);
    }
    *len = t->listener_count * ADDRESS_BYTES;
    return SHOAL_OK;
}

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

/* Write until the socket is full or the queue is empty. */
static void flush_out(struct transport *t, uint32_t rank)
{
    struct outbound *out = &t->out[rank];

    while (out->connected && (out->preamble_at < PREAMBLE_BYTES || out->first != NULL)) {
        struct transport_request *request = out->first;
        struct iovec parts[2];
        int count = 0;
        ssize_t wrote;

        if (out->preamble_at < PREAMBLE_BYTES) {
            parts[count++] = (struct iovec){ out->preamble + out->preamble_at, PREAMBLE_BYTES - out->preamble_at };
        } else {
            size_t body = request->at < HEADER_BYTES ? 0 : request->at - HEADER_BYTES;

            if (request->at < HEADER_BYTES)
                parts[count++] = (struct iovec){ request->header + request->at, HEADER_BYTES - request->at };
            if (request->len > body) /* written only from */
                parts[count++] = (struct iovec){ (void *)(uintptr_t)(request->from + body), request->len - body };
        }
        wrote = writev(out->fd, parts, count);
        if (wrote < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!out->blocked)
                watch(t, out->fd, EPOLL_CTL_MOD, EPOLLOUT | EPOLLRDHUP, EVENT_OUT, rank);
            out->blocked = true;
            return;
        }
        if (wrote < 0) {
            mark_failed(t, rank, errno);
            return;
        }
        if (out->preamble_at < PREAMBLE_BYTES) {
            out->preamble_at += (uint32_t)wrote;
            continue;
        }
        request->at += (size_t)wrote;
        if (request->at == HEADER_BYTES + request->len) {
            out->first = request->next;
            request->done = true;
        }
    }
    if (out->connected && out->blocked) {
        watch(t, out->fd, EPOLL_CTL_MOD, EPOLLRDHUP, EVENT_OUT, rank);
        out->blocked = false;
    }
}

static struct transport_request *tcp_send(struct transport *t, uint32_t peer, uint64_t tag, const void *bytes,
                                          size_t len)
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
        flush_out(t, peer);
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

static void free_aside(struct transport *t, struct aside *aside)
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

static void close_in(struct transport *t, struct inbound *in)
{
    if (in->fd < 0)
        return;
    (void)close(in->fd);
    if (in->request != NULL)
        in->request->failed = in->request->done = true;
    if (in->aside != NULL)
        free_aside(t, in->aside);
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
        mark_failed(t, in->rank, EPROTO);
        return false;
    }
    request = take_posted(t, tag);
    if (request != NULL && request->len != len) {
        request->failed = request->done = true;
        mark_failed(t, in->rank, EMSGSIZE);
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
    free_aside(t, aside);
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

/* Bytes of the current message; false: no more for now. */
static bool read_bytes(struct transport *t, struct inbound *in, size_t *budget)
{
    size_t len = in->request != NULL ? in->request->len : in->aside->len;
    uint8_t *into = in->request != NULL ? in->request->into : in->aside->bytes;
    ssize_t got;

    if (in->at == len) {
        message_over(t, in);
        return true;
    }
    got = read(in->fd, into + in->at, len - in->at);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        mark_failed(t, in->rank, got == 0 ? 0 : errno);
        close_in(t, in);
        return false;
    }
    in->at += (size_t)got;
    *budget -= (size_t)got < *budget ? (size_t)got : *budget;
    if (in->at == len)
        message_over(t, in);
    return *budget > 0;
}

/* Up to `want` bytes of preamble or header; false: not complete yet, or gone. */
static bool read_head(struct transport *t, struct inbound *in, uint32_t want)
{
    ssize_t got = read(in->fd, in->head + in->head_at, want - in->head_at);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        if (in->state == INBOUND_OPEN)
            mark_failed(t, in->rank, got == 0 ? 0 : errno);
        close_in(t, in);
        return false;
    }
    in->head_at += (uint32_t)got;
    return in->head_at == want;
}

static void admit(struct transport *t, struct inbound *in)
{
    uint32_t index = (uint32_t)(in - t->in);
    bool known = in->rank < SHOAL_RANKS_MAX && t->expected[in->rank];

    if (!t->entered || in->epoch != t->epoch) { /* of an epoch that I have not entered; watch only whether it ends */
        in->state = INBOUND_HELD;
        watch(t, in->fd, EPOLL_CTL_MOD, EPOLLRDHUP, EVENT_IN, index);
        return;
    }
    for (uint32_t i = 0; known && i < INBOUND_MAX; i++)
        known = i == index || t->in[i].fd < 0 || t->in[i].state != INBOUND_OPEN || t->in[i].rank != in->rank;
    if (!known || memcmp(in->token, t->tokens[in->rank], 16) != 0) {
        t->denied++;
        close_in(t, in);
        return;
    }
    in->state = INBOUND_OPEN;
    in->head_at = 0;
    watch(t, in->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLRDHUP, EVENT_IN, index);
}

static void on_preamble(struct transport *t, struct inbound *in)
{
    struct shoal_reader r = shoal_reader_init(shoal_view_of(in->head, PREAMBLE_BYTES));

    if (shoal_get_u64(&r) != PREAMBLE_MAGIC) {
        t->denied++;
        close_in(t, in);
        return;
    }
    in->epoch = shoal_get_u64(&r);
    in->rank = shoal_get_u32(&r);
    shoal_get_raw(&r, in->token, 16);
    admit(t, in);
}

static void read_in(struct transport *t, struct inbound *in)
{
    size_t budget = READ_BUDGET;

    if (in->state == INBOUND_PREAMBLE && read_head(t, in, PREAMBLE_BYTES))
        on_preamble(t, in);
    while (in->fd >= 0 && in->state == INBOUND_OPEN && !in->paused && !t->failed) {
        if (in->request == NULL && in->aside == NULL) {
            if (in->head_at < HEADER_BYTES && !read_head(t, in, HEADER_BYTES))
                return;
            if (!place_message(t, in)) {
                in->paused = !t->failed; /* a receive that is posted later wakes it */
                if (in->paused)
                    watch(t, in->fd, EPOLL_CTL_MOD, EPOLLRDHUP, EVENT_IN, (uint32_t)(in - t->in));
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
        watch(t, in->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLRDHUP, EVENT_IN, i);
    }
}

static struct transport_request *tcp_recv(struct transport *t, uint64_t tag, void *bytes, size_t len)
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

static enum transport_state tcp_test(struct transport *t, struct transport_request *request)
{
    bool failed = request->failed;

    if (!request->done)
        return TRANSPORT_PENDING;
    free_request(t, request);
    if (failed)
        mark_failed(t, RANK_UNKNOWN, EMSGSIZE);
    return failed ? TRANSPORT_FAILED : TRANSPORT_DONE;
}

/* ---- connections ---- */

static void accept_in(struct transport *t, uint32_t listener)
{
    for (uint32_t i = 0; i < INBOUND_MAX; i++) {
        int yes = 1;
        int fd;

        if (t->in[i].fd >= 0)
            continue;
        fd = accept4(t->listeners[listener], NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
        t->in[i] = (struct inbound){ .fd = fd };
        watch(t, fd, EPOLL_CTL_ADD, EPOLLIN | EPOLLRDHUP, EVENT_IN, i);
    }
    /* Full: the rest waits in the kernel's queue; strangers that say nothing are closed with the next epoch. */
}

/* A peer may have several addresses; the one in a network of mine counts: compare the leading bytes. */
static const uint8_t *choose_address(const struct transport *t, const uint8_t *addresses, size_t len)
{
    const uint8_t *best = addresses;
    unsigned best_bits = 0;

    for (size_t at = 0; at + ADDRESS_BYTES <= len; at += ADDRESS_BYTES) {
        for (uint32_t i = 0; i < t->listener_count; i++) {
            unsigned bits = 0;
            uint32_t mine = ntohl(t->listener_addr[i].s_addr);
            uint32_t theirs;

            memcpy(&theirs, addresses + at, 4);
            theirs = ntohl(theirs);
            while (bits < 32 && ((mine ^ theirs) >> (31 - bits) & 1) == 0)
                bits++;
            if (bits > best_bits) {
                best_bits = bits;
                best = addresses + at;
            }
        }
    }
    return best;
}

/* Inside this machine nothing is congested, and a control that paces (bbr) keeps a quarter of the time from a
 * reduction. On a network it stays what its operator chose. */
static void no_pacing(int fd, const struct sockaddr_in *to)
{
    static const char every_kernel_has[] = "reno";

    if (ntohl(to->sin_addr.s_addr) >> 24 == 127)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, every_kernel_has, sizeof(every_kernel_has) - 1);
}

static enum shoal_err tcp_connect(struct transport *t, const struct transport_peer *peer)
{
    struct outbound *out = &t->out[peer->rank];
    struct sockaddr_in to = { .sin_family = AF_INET };
    struct shoal_writer w;
    int yes = 1;
    int buffer = SEND_BUFFER;

    SHOAL_ASSERT(peer->rank < SHOAL_RANKS_MAX && out->fd < 0);
    if (peer->address_len < ADDRESS_BYTES || peer->address_len % ADDRESS_BYTES != 0)
        return SHOAL_ERR_UNREACHABLE;
    t->epoch = peer->epoch;
    t->entered = true;
    t->expected[peer->rank] = true;
    memcpy(t->tokens[peer->rank], peer->token, 16);
    memcpy(&to.sin_addr, choose_address(t, peer->address, peer->address_len), 4);
    memcpy(&to.sin_port, choose_address(t, peer->address, peer->address_len) + 4, 2);
    *out = (struct outbound){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) };
    if (out->fd < 0)
        return SHOAL_ERR_FULL;
    (void)setsockopt(out->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    no_pacing(out->fd, &to);
    if (t->fixed_send_buffer)
        (void)setsockopt(out->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    w = shoal_writer_init(out->preamble, PREAMBLE_BYTES);
    shoal_put_u64(&w, PREAMBLE_MAGIC);
    shoal_put_u64(&w, peer->epoch);
    shoal_put_u32(&w, peer->my_rank);
    shoal_put_raw(&w, peer->my_token, 16);
    SHOAL_ASSERT(!w.failed);
    if (connect(out->fd, (const struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS) {
        (void)close(out->fd);
        out->fd = -1;
        return SHOAL_ERR_UNREACHABLE;
    }
    out->blocked = true;
    watch(t, out->fd, EPOLL_CTL_ADD, EPOLLOUT | EPOLLRDHUP, EVENT_OUT, peer->rank);
    for (uint32_t i = 0; i < INBOUND_MAX; i++) /* it may have come before me */
        if (t->in[i].fd >= 0 && t->in[i].state == INBOUND_HELD && t->in[i].epoch == t->epoch &&
            t->in[i].rank == peer->rank)
            admit(t, &t->in[i]);
    return SHOAL_OK;
}

static void on_out(struct transport *t, uint32_t rank, uint32_t events)
{
    struct outbound *out = &t->out[rank];

    if (out->fd < 0)
        return;
    if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
        int error = 0;
        socklen_t len = sizeof(error);

        (void)getsockopt(out->fd, SOL_SOCKET, SO_ERROR, &error, &len);
        mark_failed(t, rank, error);
        return;
    }
    out->connected = true;
    flush_out(t, rank);
}

static void on_in(struct transport *t, uint32_t index, uint32_t events)
{
    struct inbound *in = &t->in[index];

    if (in->fd < 0)
        return;
    if (events & EPOLLIN || in->state == INBOUND_PREAMBLE) {
        read_in(t, in); /* what came before the end is read first */
        return;
    }
    if (in->state == INBOUND_OPEN)
        mark_failed(t, in->rank, 0);
    close_in(t, in);
}

static unsigned tcp_progress(struct transport *t)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(t->epoll, events, EVENTS_MAX, 0);

    for (int i = 0; i < count && !t->failed; i++) {
        uint32_t index = (uint32_t)events[i].data.u64;

        switch ((enum event_of)(events[i].data.u64 >> 32)) {
        case EVENT_LISTENER: accept_in(t, index); break;
        case EVENT_OUT: on_out(t, index, events[i].events); break;
        case EVENT_IN: on_in(t, index, events[i].events); break;
        }
    }
    return count < 0 ? 0 : (unsigned)count;
}

static int tcp_wait_fd(struct transport *t) { return t->epoll; }

static bool tcp_arm(struct transport *t)
{
    (void)t;
    return true; /* an epoll descriptor is readable while an event is unhandled */
}

static bool tcp_failed(const struct transport *t, struct shoal_msg *msg)
{
    if (t->failed)
        (void)shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "connection with rank %d: %s", (int)t->failed_rank,
                         t->failed_errno == 0 ? "closed by the peer" : strerror(t->failed_errno));
    return t->failed;
}

static uint64_t tcp_lost(const struct transport *t)
{
    return t->failed && t->failed_rank < SHOAL_RANKS_MAX ? 1ull << t->failed_rank : 0;
}

static bool tcp_connected(const struct transport *t, uint32_t rank) { return t->out[rank].connected; }

static void tcp_reset(struct transport *t, uint64_t stale_tag, uint64_t stale_mask)
{
    for (uint32_t rank = 0; rank < SHOAL_RANKS_MAX; rank++) {
        if (t->out[rank].fd >= 0)
            (void)close(t->out[rank].fd);
        t->out[rank] = (struct outbound){ .fd = -1 };
        t->expected[rank] = false;
    }
    for (uint32_t i = 0; i < INBOUND_MAX; i++)
        if (t->in[i].fd >= 0 && (t->in[i].state == INBOUND_OPEN || t->in[i].epoch == (stale_tag & stale_mask)))
            close_in(t, &t->in[i]);
    while (t->asides != NULL) {
        struct aside *aside = t->asides;

        t->asides = aside->next;
        free_aside(t, aside);
    }
    t->posted = NULL;
    t->posted_end = &t->posted;
    t->free_requests = NULL;
    for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
        t->requests[i].next = t->free_requests;
        t->free_requests = &t->requests[i];
    }
    t->entered = false;
    t->failed = false;
}

static void tcp_destroy(struct transport *t)
{
    if (t->requests != NULL)
        tcp_reset(t, 0, 0);
    for (uint32_t i = 0; i < INBOUND_MAX; i++)
        close_in(t, &t->in[i]);
    for (uint32_t i = 0; i < t->listener_count; i++)
        (void)close(t->listeners[i]);
    if (t->epoll >= 0)
        (void)close(t->epoll);
    while (t->spares != NULL) {
        struct aside *spare = t->spares;

        t->spares = spare->next;
        free(spare);
    }
    free(t->requests);
    free(t);
}

const struct transport_ops transport_tcp = {
    .name = "tcp",
    .create = tcp_create,
    .destroy = tcp_destroy,
    .address = tcp_address,
    .connect = tcp_connect,
    .send = tcp_send,
    .recv = tcp_recv,
    .test = tcp_test,
    .progress = tcp_progress,
    .wait_fd = tcp_wait_fd,
    .arm = tcp_arm,
    .failed = tcp_failed,
    .lost = tcp_lost,
    .connected = tcp_connected,
    .reset = tcp_reset,
};
