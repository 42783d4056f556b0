/* TCP between hosts: sealed (seal.h), or in the open on interfaces that the operator trusts.
 *
 *   rank a --connection--> rank b     carries what a sends to b; b has one of its own for the other way
 *   in the open: magic, epoch, rank of the sender, its token      then messages: tag, length, bytes
 *   sealed:      magic, epoch, rank of the sender, handshake      back comes the handshake's answer; then the same
 *                                                                 messages, cut into records
 *
 * I1. Nothing is read from a connection beyond its preamble before the preamble's epoch is mine and its token is the
 *     one that the EPOCH lists for that rank. One that comes for an epoch I have not entered yet waits, unread.
 * I2. Bytes go straight from the socket into the memory of the receive that was posted for their tag; what nobody has
 *     asked for yet is put aside, up to a bound, and then left in the socket.
 * I3. Only the named interfaces are bound.
 * I4. Who has not said a whole preamble is a stranger: it has SILENT_NS for it and one of SILENT_MAX places, and the oldest
 *     of them goes for the next. Of those that are early, HELD_MAX have a place, and the address that has most of them
 *     gives up its oldest. So strangers take no place from members, whose preamble comes with their connection.
 * I5. A connection is sealed if either side wants it. Who wants it shows its token to nobody and hears no open one.
 * I6. A sealed connection is its rank's only when its first record was opened: a handshake can be replayed, it proves
 *     nothing. Until then a rank may have SHAKEN_EACH of them. What a record holds counts when its tag was checked.
 * I7. A path may swallow large packets and say nothing. Where a connection has sent the same again and again, or brings nothing, the next
 *     one to that address sends smaller segments, both ways; once more, and it sends the smallest. It stays so for this
 *     process: the loss is some per cent of the rate. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "shoal/limits.h"
#include "shoal/wire.h"
#include "seal.h"
#include "transport.h"

#include "shoal/banned.h"

#define REQUESTS_MAX 16384u
#define LISTENERS_MAX 4u
/* One of each member, and of strangers what may be (I4); one more place is always free for the next that comes. */
#define SILENT_MAX 32u
#define SILENT_NS SHOAL_S
#define HELD_MAX (2u * SHOAL_RANKS_MAX)
#define SHAKEN_EACH 2u
#define INBOUND_MAX ((1u + SHAKEN_EACH) * SHOAL_RANKS_MAX + HELD_MAX + SILENT_MAX + 1u)
#define ASIDE_BYTES_MAX (256ull * SHOAL_MIB)
#define SPARES_MAX 8u /* memory of messages put aside that is kept: fresh pages cost more than the copy */
#define SPARE_BYTES (512u * SHOAL_KIB) /* the size of each, and the most that it holds */
#define SEND_BUFFER (1024 * 1024) /* more than an in-house network has under way, less than a core's share of cache */
#define READ_BUDGET (1024u * SHOAL_KIB) /* of one connection in one turn */
#define EVENTS_MAX 64
#define ACCEPTS_MAX 64u /* of one listener in one turn */
#define PREAMBLE_MAGIC 0x31706374616f6873ull
#define PREAMBLE_BYTES 36u
#define SEALED_MAGIC 0x3273706374616f68ull
#define SEALED_BASE_BYTES 20u /* of the preamble: what both sides know of the connection */
#define SEALED_PREAMBLE_BYTES (SEALED_BASE_BYTES + SEAL_SHAKE_BYTES)
#define WIRE_BYTES (2u * SEAL_RECORD_MAX) /* read from a sealed connection at a time */
#define HEADER_BYTES 16u
#define ADDRESS_BYTES 6u
#define ADDRESS_SEALED 1u /* a byte before the addresses: I hear sealed connections only */
#define RANK_UNKNOWN UINT32_MAX
#define STALLED_RETRANSMITS 3 /* in a row, 1.4 s after the first sending: single losses are repaired before */
#define NARROW_MAX SHOAL_RANKS_MAX
#define NARROW_SEGMENT 1024 /* what Linux itself probes such a path with */
#define NARROW_SEGMENT_MIN 512

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
    struct in_addr to;
    bool stalled; /* counted */
    bool connected;
    bool blocked; /* waits for EPOLLOUT */
    uint32_t preamble_at;
    uint32_t preamble_len;
    uint8_t preamble[SEALED_PREAMBLE_BYTES];
    struct transport_request *first;
    struct transport_request *last;
    struct seal *seal; /* NULL: in the open */
    bool shaken;       /* the answer was right */
    uint32_t answer_at;
    uint8_t answer[SEAL_SHAKE_BYTES];
    uint8_t *record; /* SEAL_RECORD_MAX bytes, of which those from `record_at` to `record_len` are to be written */
    size_t record_at;
    size_t record_len;
    struct transport_request *inside; /* they end with this record */
};

enum inbound_state { INBOUND_PREAMBLE, INBOUND_HELD, INBOUND_SHAKEN, INBOUND_OPEN };

struct inbound {
    int fd; /* -1: none */
    enum inbound_state state;
    struct in_addr from;
    uint64_t number; /* of its accept: the lowest is the oldest */
    uint64_t since_ns;
    uint64_t epoch;
    uint32_t rank;
    uint8_t token[16];
    bool wants_seal;
    uint8_t hello[SEAL_SHAKE_BYTES];
    uint8_t head[SEALED_PREAMBLE_BYTES]; /* preamble, then header of the message being read */
    uint32_t head_at;
    struct transport_request *request; /* where its bytes go */
    struct aside *aside;               /* or there */
    size_t at;
    bool paused; /* the header is read, but there is no place for the bytes */
    bool behind; /* it goes on with bytes that were read from the socket before it was paused */
    struct seal *seal;
    uint8_t *wire; /* WIRE_BYTES: from `wire_from` to `wire_to` records, from `plain_from` to `plain_to` opened */
    size_t wire_from, wire_to, plain_from, plain_to;
};

/* An address whose path swallows large packets (I7). */
struct narrow {
    struct in_addr to;
    int segment;
};

struct transport {
    int epoll;
    int timer; /* readable when a preamble is overdue */
    bool timer_runs;
    uint64_t accepted;
    int listeners[LISTENERS_MAX];
    struct in_addr listener_addr[LISTENERS_MAX];
    uint16_t listener_port[LISTENERS_MAX];
    uint32_t listener_count;
    bool sealed; /* I want it so */
    uint32_t behind_count;
    uint32_t my_rank;
    uint8_t my_token[16];
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
    struct narrow narrow[NARROW_MAX];
    uint32_t narrow_count;
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

/* An event names its owner in its 64 bits: kind, index and, since a place is taken again within a turn, which accept. */
#define EVENT_NUMBERS 0xffffffu
enum event_of { EVENT_LISTENER, EVENT_OUT, EVENT_IN, EVENT_TIMER };

static void watch(const struct transport *t, int fd, int how, uint32_t events, enum event_of of, uint32_t index)
{
    uint64_t number = of == EVENT_IN ? t->in[index].number & EVENT_NUMBERS : 0;
    struct epoll_event event = { .events = events, .data.u64 = (uint64_t)of << 56 | number << 32 | index };

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
        struct in_addr at;
        const char *text;

        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET)
            continue;
        at = ((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr;
        text = inet_ntoa(at);
        if ((strlen(i->ifa_name) == len && memcmp(i->ifa_name, name, len) == 0) ||
            (strlen(text) == len && memcmp(text, name, len) == 0))
            return listen_at(t, at, msg);
    }
    return shoal_fail(msg, SHOAL_ERR_INVALID,
                      "%.*s is neither an interface with an IPv4 address nor such an address on this host; --host or "
                      "--fabric-trusted of its agent names it",
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
            err = shoal_fail(msg, SHOAL_ERR_TOO_BIG, "--fabric-trusted %s: at most %u interfaces", devices,
                             LISTENERS_MAX);
        else
            err = listen_on(t, all, at, len, msg);
        at += len + (at[len] == ',');
    }
    freeifaddrs(all);
    if (err == SHOAL_OK && t->listener_count == 0)
        err = shoal_fail(msg, SHOAL_ERR_INVALID, "--fabric-trusted names no interface");
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

static enum shoal_err tcp_create(struct transport **out, const char *devices, bool sealed, struct shoal_msg *msg)
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
    t->sealed = sealed;
    t->fixed_send_buffer = grants_send_buffer();
    t->requests = calloc(REQUESTS_MAX, sizeof(*t->requests));
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (t->requests == NULL || t->epoll < 0 || t->timer < 0) {
        err = shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a fabric");
    } else {
        watch(t, t->timer, EPOLL_CTL_ADD, EPOLLIN, EVENT_TIMER, 0);
        err = listen_all(t, devices, msg);
    }
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

/* IPv4 address and port of each interface, in network order; before them a byte if I hear sealed connections only. */
static enum shoal_err tcp_address(struct transport *t, uint8_t *bytes, size_t cap, size_t *len)
{
    size_t first = t->sealed ? 1 : 0;

    if (cap < first + t->listener_count * ADDRESS_BYTES)
        return SHOAL_ERR_TOO_BIG;
    if (t->sealed)
        *bytes++ = ADDRESS_SEALED;
    for (uint32_t i = 0; i < t->listener_count; i++) {
        uint16_t port = htons(t->listener_port[i]);

        memcpy(bytes + i * ADDRESS_BYTES, &t->listener_addr[i], 4);
        memcpy(bytes + i * ADDRESS_BYTES + 4, &port, 2);
    }
    *len = first + t->listener_count * ADDRESS_BYTES;
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

/* What of the request comes next, header or bytes; `len` of it. */
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
        mark_failed(t, rank, ENOMEM);
        return 0;
    }
    *part = (struct iovec){ out->record + out->record_at, out->record_len - out->record_at };
    return 1;
}

/* What is to be written next, in at most two parts; 0: nothing for now. */
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

/* Of a connection that has nothing to write: its end, and the answer that it waits for. */
static uint32_t quiet_events(const struct outbound *out)
{
    return EPOLLRDHUP | (out->seal != NULL && !out->shaken ? (uint32_t)EPOLLIN : 0);
}

/* Write until the socket is full or the queue is empty. */
static void flush_out(struct transport *t, uint32_t rank)
{
    struct outbound *out = &t->out[rank];
    struct iovec parts[2];
    int count;

    while (out->connected && (count = next_parts(t, rank, parts)) > 0) {
        ssize_t wrote = writev(out->fd, parts, count);

        if (wrote < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (!out->blocked)
                watch(t, out->fd, EPOLL_CTL_MOD, EPOLLOUT | quiet_events(out), EVENT_OUT, rank);
            out->blocked = true;
            return;
        }
        if (wrote < 0) {
            mark_failed(t, rank, errno);
            return;
        }
        on_written(out, (size_t)wrote);
    }
    if (out->connected && out->blocked) {
        watch(t, out->fd, EPOLL_CTL_MOD, quiet_events(out), EVENT_OUT, rank);
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
        mark_failed(t, in->rank, got == 0 ? 0 : errno);
        close_in(t, in);
        return false;
    }
    in->at += (size_t)got;
    *budget -= (size_t)got < *budget ? (size_t)got : *budget;
    if (in->at == len)
        message_over(t, in);
    return *budget > 0 || has_opened(in);
}

/* Up to `want` bytes of preamble or header; false: not complete yet, or gone. */
static bool read_head(struct transport *t, struct inbound *in, uint32_t want)
{
    ssize_t got = read_from(in, in->head + in->head_at, want - in->head_at);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (got <= 0) {
        t->denied += in->state == INBOUND_SHAKEN && got < 0 ? 1 : 0;
        if (in->state == INBOUND_OPEN)
            mark_failed(t, in->rank, got == 0 ? 0 : errno);
        close_in(t, in);
        return false;
    }
    in->head_at += (uint32_t)got;
    return in->head_at == want;
}

/* I4: among those in `state`, of `from` unless it is NULL. */
static struct inbound *oldest_in(struct transport *t, enum inbound_state state, const struct in_addr *from,
                                 uint32_t *count)
{
    struct inbound *oldest = NULL;

    *count = 0;
    for (uint32_t i = 0; i < INBOUND_MAX; i++) {
        struct inbound *in = &t->in[i];

        if (in->fd < 0 || in->state != state || (from != NULL && in->from.s_addr != from->s_addr))
            continue;
        ++*count;
        if (oldest == NULL || in->number < oldest->number)
            oldest = in;
    }
    return oldest;
}

/* I4: an early one more than there are places for. */
static void thin_held(struct transport *t)
{
    struct inbound *victim = NULL;
    uint32_t most = 0;
    uint32_t count;

    (void)oldest_in(t, INBOUND_HELD, NULL, &count);
    for (uint32_t i = 0; count > HELD_MAX && i < INBOUND_MAX; i++) {
        struct inbound *oldest;
        uint32_t of_it;

        if (t->in[i].fd < 0 || t->in[i].state != INBOUND_HELD)
            continue;
        oldest = oldest_in(t, INBOUND_HELD, &t->in[i].from, &of_it);
        if (of_it > most) {
            most = of_it;
            victim = oldest;
        }
    }
    if (victim != NULL) {
        t->denied++;
        close_in(t, victim);
    }
}

/* I6: one more of this rank than may be, the oldest. */
static void thin_shaken(struct transport *t, uint32_t rank)
{
    struct inbound *oldest = NULL;
    uint32_t count = 0;

    for (uint32_t i = 0; i < INBOUND_MAX; i++) {
        struct inbound *in = &t->in[i];

        if (in->fd < 0 || in->state != INBOUND_SHAKEN || in->rank != rank)
            continue;
        count++;
        if (oldest == NULL || in->number < oldest->number)
            oldest = in;
    }
    if (count > SHAKEN_EACH) {
        t->denied++;
        close_in(t, oldest);
    }
}

static void deny(struct transport *t, struct inbound *in)
{
    t->denied++;
    close_in(t, in);
}

static bool has_open(const struct transport *t, uint32_t rank)
{
    for (uint32_t i = 0; i < INBOUND_MAX; i++)
        if (t->in[i].fd >= 0 && t->in[i].state == INBOUND_OPEN && t->in[i].rank == rank)
            return true;
    return false;
}

/* The seal of one connection. Both sides know by whom it was opened, to whom and for which epoch. */
static enum shoal_err make_seal(struct seal **seal, bool opens, uint64_t epoch, uint32_t from, uint32_t to,
                                const uint8_t *from_token, const uint8_t *to_token)
{
    uint8_t prologue[24];
    struct shoal_writer w = shoal_writer_init(prologue, sizeof(prologue));
    struct seal_options options = { .opens = opens };
    enum shoal_err err = seal_key(from_token, to_token, options.psk);

    shoal_put_u64(&w, SEALED_MAGIC);
    shoal_put_u64(&w, epoch);
    shoal_put_u32(&w, from);
    shoal_put_u32(&w, to);
    options.prologue = shoal_writer_view(&w);
    return err == SHOAL_OK ? seal_create(seal, &options) : err;
}

/* The handshake was made with the right key: answer it. A fresh socket has room for the answer. */
static bool answer_shake(struct transport *t, struct inbound *in)
{
    uint8_t answer[SEAL_SHAKE_BYTES];
    size_t len;

    in->wire = malloc(WIRE_BYTES);
    return in->wire != NULL &&
           make_seal(&in->seal, false, in->epoch, in->rank, t->my_rank, t->tokens[in->rank], t->my_token) == SHOAL_OK &&
           seal_shake_read(in->seal, shoal_view_of(in->hello, sizeof(in->hello)), answer, 0, &len) == SHOAL_OK &&
           seal_shake_write(in->seal, shoal_view_of(NULL, 0), answer, sizeof(answer), &len) == SHOAL_OK &&
           send(in->fd, answer, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static void admit(struct transport *t, struct inbound *in)
{
    uint32_t index = (uint32_t)(in - t->in);
    bool known;

    if (!t->entered || in->epoch != t->epoch) { /* of an epoch that I have not entered; watch only whether it ends */
        in->state = INBOUND_HELD;
        watch(t, in->fd, EPOLL_CTL_MOD, EPOLLRDHUP, EVENT_IN, index);
        thin_held(t);
        return;
    }
    known = in->rank < SHOAL_RANKS_MAX && t->expected[in->rank] && !has_open(t, in->rank);
    if (known && in->wants_seal)
        known = answer_shake(t, in);
    else if (known)
        known = !t->sealed && memcmp(in->token, t->tokens[in->rank], 16) == 0; /* I5 */
    if (!known) {
        deny(t, in);
        return;
    }
    in->state = in->wants_seal ? INBOUND_SHAKEN : INBOUND_OPEN;
    in->head_at = 0;
    watch(t, in->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLRDHUP, EVENT_IN, index);
    if (in->wants_seal)
        thin_shaken(t, in->rank);
}

/* Its first record makes it its rank's connection (I6). */
static void prove(struct transport *t, struct inbound *in)
{
    (void)read_head(t, in, HEADER_BYTES);
    if (in->fd < 0 || in->head_at == 0)
        return;
    if (has_open(t, in->rank))
        deny(t, in);
    else
        in->state = INBOUND_OPEN;
}

/* The first PREAMBLE_BYTES tell which form it has. */
static void read_preamble(struct transport *t, struct inbound *in)
{
    struct shoal_reader r = shoal_reader_init(shoal_view_of(in->head, sizeof(in->head)));
    uint64_t magic;

    if (in->head_at < PREAMBLE_BYTES && !read_head(t, in, PREAMBLE_BYTES))
        return;
    magic = shoal_get_u64(&r);
    in->wants_seal = magic == SEALED_MAGIC;
    if (magic != PREAMBLE_MAGIC && magic != SEALED_MAGIC) {
        deny(t, in);
        return;
    }
    if (in->wants_seal && in->head_at < SEALED_PREAMBLE_BYTES && !read_head(t, in, SEALED_PREAMBLE_BYTES))
        return;
    in->epoch = shoal_get_u64(&r);
    in->rank = shoal_get_u32(&r);
    if (in->wants_seal)
        shoal_get_raw(&r, in->hello, sizeof(in->hello));
    else
        shoal_get_raw(&r, in->token, sizeof(in->token));
    admit(t, in);
}

static void read_in(struct transport *t, struct inbound *in)
{
    size_t budget = READ_BUDGET;

    if (in->state == INBOUND_PREAMBLE)
        read_preamble(t, in);
    if (in->fd >= 0 && in->state == INBOUND_SHAKEN)
        prove(t, in);
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
        if (in->seal != NULL && !in->behind) {
            in->behind = true;
            t->behind_count++;
        }
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

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

static void timer_arm(struct transport *t, uint64_t at_ns)
{
    struct itimerspec when = { .it_value = { .tv_sec = (time_t)(at_ns / SHOAL_S),
                                             .tv_nsec = (long)(at_ns % SHOAL_S) } };

    t->timer_runs = at_ns != 0;
    (void)timerfd_settime(t->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* I4: whose time is over goes; the timer waits for the next. */
static void on_timer(struct transport *t)
{
    uint64_t now = now_ns();
    struct inbound *oldest;
    uint32_t count;

    for (;;) {
        oldest = oldest_in(t, INBOUND_PREAMBLE, NULL, &count);
        if (oldest == NULL || now < oldest->since_ns + SILENT_NS)
            break;
        t->denied++;
        close_in(t, oldest);
    }
    timer_arm(t, oldest == NULL ? 0 : oldest->since_ns + SILENT_NS);
}

static void accept_one(struct transport *t, int fd, struct in_addr from)
{
    struct inbound *oldest;
    uint32_t i = 0, count;
    int yes = 1;

    oldest = oldest_in(t, INBOUND_PREAMBLE, NULL, &count);
    if (count == SILENT_MAX) {
        t->denied++;
        close_in(t, oldest);
    }
    while (i < INBOUND_MAX && t->in[i].fd >= 0)
        i++;
    SHOAL_ASSERT(i < INBOUND_MAX); /* I4: each state has its own bound */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    t->in[i] = (struct inbound){ .fd = fd, .from = from, .number = ++t->accepted, .since_ns = now_ns() };
    watch(t, fd, EPOLL_CTL_ADD, EPOLLIN | EPOLLRDHUP, EVENT_IN, i);
    if (!t->timer_runs)
        timer_arm(t, t->in[i].since_ns + SILENT_NS);
    read_in(t, &t->in[i]); /* a member's preamble is there already */
}

static void accept_in(struct transport *t, uint32_t listener)
{
    for (uint32_t i = 0; i < ACCEPTS_MAX && !t->failed; i++) {
        struct sockaddr_in from = { .sin_family = AF_INET };
        socklen_t len = sizeof(from);
        int fd = accept4(t->listeners[listener], (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0)
            return;
        accept_one(t, fd, from.sin_addr);
    }
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

/* I7 */
static struct narrow *narrow_find(struct transport *t, struct in_addr to)
{
    for (uint32_t i = 0; i < t->narrow_count; i++)
        if (t->narrow[i].to.s_addr == to.s_addr)
            return &t->narrow[i];
    return NULL;
}

static void narrow_connect(struct transport *t, int fd, struct in_addr to)
{
    const struct narrow *narrow = narrow_find(t, to);

    if (narrow != NULL)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &narrow->segment, sizeof(narrow->segment));
}

/* Once for each connection. Inside this machine no path swallows anything. */
static void narrow_next(struct transport *t, struct outbound *out)
{
    struct narrow *narrow = narrow_find(t, out->to);

    if (out->stalled || ntohl(out->to.s_addr) >> 24 == 127)
        return;
    out->stalled = true;
    if (narrow != NULL)
        narrow->segment = NARROW_SEGMENT_MIN;
    else if (t->narrow_count < NARROW_MAX)
        t->narrow[t->narrow_count++] = (struct narrow){ .to = out->to, .segment = NARROW_SEGMENT };
}

static void tcp_look(struct transport *t, uint32_t rank, bool silent)
{
    struct outbound *out = &t->out[rank];
    struct tcp_info info;
    socklen_t len = sizeof(info);

    if (out->fd < 0 || !out->connected)
        return;
    if (silent || (getsockopt(out->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_unacked > 0 &&
                   info.tcpi_retransmits >= STALLED_RETRANSMITS))
        narrow_next(t, out);
}

/* What the connection says first: magic, epoch, my rank, then a handshake or my token. */
static enum shoal_err make_preamble(struct outbound *out, const struct transport_peer *peer, bool sealed)
{
    struct shoal_writer w = shoal_writer_init(out->preamble, sizeof(out->preamble));
    enum shoal_err err = SHOAL_OK;
    uint8_t hello[SEAL_SHAKE_BYTES];
    size_t len;

    shoal_put_u64(&w, sealed ? SEALED_MAGIC : PREAMBLE_MAGIC);
    shoal_put_u64(&w, peer->epoch);
    shoal_put_u32(&w, peer->my_rank);
    if (sealed) {
        out->record = malloc(SEAL_RECORD_MAX);
        err = out->record == NULL
                  ? SHOAL_ERR_FULL
                  : make_seal(&out->seal, true, peer->epoch, peer->my_rank, peer->rank, peer->my_token, peer->token);
        if (err == SHOAL_OK)
            err = seal_shake_write(out->seal, shoal_view_of(NULL, 0), hello, sizeof(hello), &len);
        shoal_put_raw(&w, hello, sizeof(hello));
    } else {
        shoal_put_raw(&w, peer->my_token, 16);
    }
    SHOAL_ASSERT(!w.failed);
    out->preamble_len = (uint32_t)w.len;
    return err;
}

static void close_out(struct outbound *out)
{
    if (out->fd >= 0)
        (void)close(out->fd);
    seal_destroy(out->seal);
    free(out->record);
    *out = (struct outbound){ .fd = -1 };
}

static enum shoal_err tcp_connect(struct transport *t, const struct transport_peer *peer)
{
    struct outbound *out = &t->out[peer->rank];
    struct sockaddr_in to = { .sin_family = AF_INET };
    size_t first = peer->address_len % ADDRESS_BYTES; /* a byte that says ADDRESS_SEALED */
    const uint8_t *address;
    int yes = 1;
    int buffer = SEND_BUFFER;

    SHOAL_ASSERT(peer->rank < SHOAL_RANKS_MAX && out->fd < 0);
    if (peer->address_len < ADDRESS_BYTES || first > 1 || (first == 1 && peer->address[0] != ADDRESS_SEALED))
        return SHOAL_ERR_UNREACHABLE;
    address = choose_address(t, peer->address + first, peer->address_len - first);
    t->epoch = peer->epoch;
    t->entered = true;
    t->expected[peer->rank] = true;
    memcpy(t->tokens[peer->rank], peer->token, 16);
    memcpy(t->my_token, peer->my_token, 16);
    t->my_rank = peer->my_rank;
    memcpy(&to.sin_addr, address, 4);
    memcpy(&to.sin_port, address + 4, 2);
    *out = (struct outbound){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) };
    if (out->fd < 0)
        return SHOAL_ERR_FULL;
    out->to = to.sin_addr;
    (void)setsockopt(out->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    narrow_connect(t, out->fd, to.sin_addr);
    no_pacing(out->fd, &to);
    if (t->fixed_send_buffer)
        (void)setsockopt(out->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    if (make_preamble(out, peer, t->sealed || first == 1) != SHOAL_OK) { /* I5 */
        close_out(out);
        return SHOAL_ERR_FULL;
    }
    if (connect(out->fd, (const struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS) {
        close_out(out);
        return SHOAL_ERR_UNREACHABLE;
    }
    out->blocked = true;
    watch(t, out->fd, EPOLL_CTL_ADD, EPOLLOUT | quiet_events(out), EVENT_OUT, peer->rank);
    for (uint32_t i = 0; i < INBOUND_MAX; i++) /* it may have come before me */
        if (t->in[i].fd >= 0 && t->in[i].state == INBOUND_HELD && t->in[i].epoch == t->epoch &&
            t->in[i].rank == peer->rank)
            admit(t, &t->in[i]);
    return SHOAL_OK;
}

/* The handshake's answer: who answers has the token that the EPOCH lists. */
static void read_answer(struct transport *t, uint32_t rank)
{
    struct outbound *out = &t->out[rank];
    ssize_t got = read(out->fd, out->answer + out->answer_at, sizeof(out->answer) - out->answer_at);
    uint8_t none[1];
    size_t len;

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        mark_failed(t, rank, got == 0 ? 0 : errno);
        return;
    }
    out->answer_at += (uint32_t)got;
    if (out->answer_at < sizeof(out->answer))
        return;
    if (seal_shake_read(out->seal, shoal_view_of(out->answer, sizeof(out->answer)), none, 0, &len) != SHOAL_OK) {
        mark_failed(t, rank, EBADMSG);
        return;
    }
    out->shaken = true;
    out->blocked = true; /* so it finds out what there is to write by now */
    watch(t, out->fd, EPOLL_CTL_MOD, EPOLLOUT | quiet_events(out), EVENT_OUT, rank);
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
    if (events & EPOLLIN && out->seal != NULL && !out->shaken)
        read_answer(t, rank);
    if (!t->failed)
        flush_out(t, rank);
}

static void on_in(struct transport *t, uint32_t index, uint64_t number, uint32_t events)
{
    struct inbound *in = &t->in[index];

    if (in->fd < 0 || (in->number & EVENT_NUMBERS) != number)
        return;
    if (events & EPOLLIN || in->state == INBOUND_PREAMBLE) {
        read_in(t, in); /* what came before the end is read first */
        return;
    }
    if (in->state == INBOUND_OPEN)
        mark_failed(t, in->rank, 0);
    close_in(t, in);
}

/* Those that were paused with bytes in hand: the kernel does not know of them. */
static void read_behind(struct transport *t)
{
    for (uint32_t i = 0; i < INBOUND_MAX && !t->failed; i++) {
        if (!t->in[i].behind)
            continue;
        t->in[i].behind = false;
        t->behind_count--;
        read_in(t, &t->in[i]);
    }
}

static unsigned tcp_progress(struct transport *t)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(t->epoll, events, EVENTS_MAX, 0);

    for (int i = 0; i < count && !t->failed; i++) {
        uint32_t index = (uint32_t)events[i].data.u64;

        switch ((enum event_of)(events[i].data.u64 >> 56)) {
        case EVENT_LISTENER: accept_in(t, index); break;
        case EVENT_OUT: on_out(t, index, events[i].events); break;
        case EVENT_IN: on_in(t, index, events[i].data.u64 >> 32 & EVENT_NUMBERS, events[i].events); break;
        case EVENT_TIMER: on_timer(t); break;
        }
    }
    if (t->behind_count > 0)
        read_behind(t);
    return count < 0 ? 0 : (unsigned)count;
}

static int tcp_wait_fd(struct transport *t) { return t->epoll; }

static bool tcp_arm(struct transport *t)
{
    return t->behind_count == 0; /* an epoll descriptor is readable while an event is unhandled */
}

static bool tcp_failed(const struct transport *t, struct shoal_msg *msg)
{
    if (t->failed)
        (void)shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "connection with rank %d: %s", (int)t->failed_rank,
                         t->failed_errno == 0         ? "closed by the peer"
                         : t->failed_errno == EBADMSG ? "what came was not sealed with its key"
                                                      : strerror(t->failed_errno));
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
        close_out(&t->out[rank]);
        t->expected[rank] = false;
    }
    for (uint32_t i = 0; i < INBOUND_MAX; i++)
        if (t->in[i].fd >= 0 && (t->in[i].state >= INBOUND_SHAKEN || t->in[i].epoch == (stale_tag & stale_mask)))
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
    if (t->timer >= 0)
        (void)close(t->timer);
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
    .look = tcp_look,
    .reset = tcp_reset,
};
