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
 * I4. Who has not said a whole preamble is a stranger, a member on a busy host too: it has SILENT_NS for it and one of
 *     SILENT_MAX places, as many as members, and the oldest of them goes for the next. Of those that are early, HELD_MAX
 *     have a place, and the address that has most of them gives up its oldest. So strangers take no place from members,
 *     whose preamble comes soon after their connection.
 * I5. A connection is sealed if either side wants it. Who wants it shows its token to nobody and hears no open one.
 * I6. A sealed connection is its rank's only when its first record was opened: a handshake can be replayed, it proves
 *     nothing. Until then a rank may have SHAKEN_EACH of them. What a record holds counts when its tag was checked.
 * I7. A path may swallow large packets and say nothing. Where a connection has sent the same again and again, or brings nothing, the next
 *     one to that address sends smaller segments, both ways; once more, and it sends the smallest. It stays so for this
 *     process: the loss is some per cent of the rate. */
#include "tcp_state.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "shoal/wire.h"

#include "shoal/banned.h"

#define REQUESTS_MAX 16384u
#define SEND_BUFFER (1024 * 1024) /* more than an in-house network has under way, less than a core's share of cache */
#define EVENTS_MAX 64
#define ADDRESSES_MAX (SHOAL_TRANSPORT_ADDRESS_MAX / TCP_ENTRY_BYTES)
#define STALLED_RETRANSMITS 3 /* in a row, 1.4 s after the first sending: single losses are repaired before */
#define NARROW_SEGMENT 1024   /* what Linux itself probes such a path with */
#define NARROW_SEGMENT_MIN 512

/* ---- set up ---- */

void tcp_mark_failed(struct transport *t, uint32_t rank, int error)
{
    if (t->failed)
        return;
    t->failed = true;
    t->failed_rank = rank;
    t->failed_errno = error;
}

void tcp_watch(const struct transport *t, int fd, int how, uint32_t events, enum event_of of, uint32_t index)
{
    uint64_t number = of == EVENT_IN ? t->in[index].number & EVENT_NUMBERS : 0;
    struct epoll_event event = { .events = events, .data.u64 = (uint64_t)of << 56 | number << 32 | index };

    (void)epoll_ctl(t->epoll, how, fd, &event);
}

static enum shoal_err listen_at(struct transport *t, struct tcp_address at, struct shoal_msg *msg)
{
    struct sockaddr_storage to;
    socklen_t len = tcp_address_to(&at, &to);
    uint32_t i = t->listener_count;
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&to, len) != 0 || listen(fd, SHOAL_RANKS_MAX) != 0 ||
        getsockname(fd, (struct sockaddr *)&to, &len) != 0) {
        int error = errno;
        char text[INET6_ADDRSTRLEN];

        if (fd >= 0)
            (void)close(fd);
        tcp_ip_text(&at.ip, text);
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE, "cannot listen on %s: %s", text, strerror(error));
    }
    t->listeners[i] = fd;
    (void)tcp_address_of((const struct sockaddr *)&to, &t->listener_at[i]);
    t->listener_count++;
    tcp_watch(t, fd, EPOLL_CTL_ADD, EPOLLIN, EVENT_LISTENER, i);
    return SHOAL_OK;
}

/* Of an interface that is named, its address of IPv4, else the first of IPv6 that leads beyond the link. */
static enum shoal_err listen_on(struct transport *t, const struct ifaddrs *all, const char *name, size_t len,
                                struct shoal_msg *msg)
{
    struct tcp_address six = { 0 };
    bool has_six = false;

    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        struct tcp_address at;
        char text[INET6_ADDRSTRLEN];

        if (i->ifa_addr == NULL || !tcp_address_of(i->ifa_addr, &at))
            continue;
        at.port = 0;
        tcp_ip_text(&at.ip, text);
        if (strlen(text) == len && memcmp(text, name, len) == 0)
            return listen_at(t, at, msg);
        if (strlen(i->ifa_name) != len || memcmp(i->ifa_name, name, len) != 0)
            continue;
        if (tcp_ip_is4(&at.ip))
            return listen_at(t, at, msg);
        if (!has_six && !IN6_IS_ADDR_LINKLOCAL(&at.ip)) {
            six = at;
            has_six = true;
        }
    }
    if (has_six)
        return listen_at(t, six, msg);
    return shoal_fail(msg, SHOAL_ERR_INVALID,
                      "%.*s is neither an interface with an IP address nor such an address on this host; --host or "
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
        tcp_watch(t, t->timer, EPOLL_CTL_ADD, EPOLLIN, EVENT_TIMER, 0);
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

static enum shoal_err tcp_address(struct transport *t, uint8_t *bytes, size_t cap, size_t *len)
{
    return tcp_addresses_put(t->listener_at, t->listener_count, t->sealed, bytes, cap, len);
}

/* ---- connections that this rank opens ---- */

static unsigned bits_in_common(const struct in6_addr *a, const struct in6_addr *b)
{
    unsigned bits = 0;

    while (bits < 128 && ((a->s6_addr[bits / 8] ^ b->s6_addr[bits / 8]) >> (7 - bits % 8) & 1) == 0)
        bits++;
    return bits;
}

/* A peer may have several addresses; the one in a network of mine counts: compare the leading bytes. */
static struct tcp_address choose_address(const struct transport *t, const struct tcp_address *list, uint32_t count)
{
    uint32_t best = 0;
    unsigned best_bits = 0;

    SHOAL_ASSERT(count > 0);
    for (uint32_t at = 0; at < count; at++) {
        for (uint32_t i = 0; i < t->listener_count; i++) {
            unsigned bits = bits_in_common(&t->listener_at[i].ip, &list[at].ip);

            if (bits > best_bits) {
                best_bits = bits;
                best = at;
            }
        }
    }
    return list[best];
}

/* Inside this machine nothing is congested, and a control that paces (bbr) keeps a quarter of the time from a
 * reduction. On a network it stays what its operator chose. */
static void no_pacing(int fd, const struct in6_addr *to)
{
    static const char every_kernel_has[] = "reno";

    if (tcp_ip_is_loopback(to))
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, every_kernel_has, sizeof(every_kernel_has) - 1);
}

/* I7 */
static struct narrow *narrow_find(struct transport *t, const struct in6_addr *to)
{
    for (uint32_t i = 0; i < t->narrow_count; i++)
        if (tcp_ip_equal(&t->narrow[i].to, to))
            return &t->narrow[i];
    return NULL;
}

static void narrow_connect(struct transport *t, int fd, const struct in6_addr *to)
{
    const struct narrow *narrow = narrow_find(t, to);

    if (narrow != NULL)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &narrow->segment, sizeof(narrow->segment));
}

/* Once for each connection. Inside this machine no path swallows anything. */
static void narrow_next(struct transport *t, struct outbound *out)
{
    struct narrow *narrow = narrow_find(t, &out->to);

    if (out->stalled || tcp_ip_is_loopback(&out->to))
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

/* The first bytes of a connection: magic, epoch, my rank, then a handshake or my token. */
static enum shoal_err make_preamble(struct outbound *out, const struct transport_peer *peer, bool sealed)
{
    struct shoal_writer w = shoal_writer_init(out->preamble, sizeof(out->preamble));
    enum shoal_err err = SHOAL_OK;
    uint8_t hello[SEAL_SHAKE_BYTES] = { 0 };
    size_t len;

    shoal_put_u64(&w, sealed ? SEALED_MAGIC : PREAMBLE_MAGIC);
    shoal_put_u64(&w, peer->epoch);
    shoal_put_u32(&w, peer->my_rank);
    if (sealed) {
        out->record = malloc(SEAL_RECORD_MAX);
        err = out->record == NULL ? SHOAL_ERR_FULL
                                  : tcp_make_seal(&out->seal, true, peer->epoch, peer->my_rank, peer->rank,
                                                  peer->my_token, peer->token);
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
    struct tcp_address list[ADDRESSES_MAX], address;
    struct sockaddr_storage to;
    bool sealed = false;
    uint32_t count = tcp_addresses_get(peer->address, peer->address_len, list, ADDRESSES_MAX, &sealed);
    socklen_t len;
    int yes = 1;
    int buffer = SEND_BUFFER;

    SHOAL_ASSERT(peer->rank < SHOAL_RANKS_MAX && out->fd < 0);
    if (count == 0)
        return SHOAL_ERR_UNREACHABLE;
    address = choose_address(t, list, count);
    len = tcp_address_to(&address, &to);
    t->epoch = peer->epoch;
    t->entered = true;
    t->expected[peer->rank] = true;
    memcpy(t->tokens[peer->rank], peer->token, 16);
    memcpy(t->my_token, peer->my_token, 16);
    t->my_rank = peer->my_rank;
    *out = (struct outbound){ .fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0) };
    if (out->fd < 0)
        return SHOAL_ERR_FULL;
    out->to = address.ip;
    (void)setsockopt(out->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    narrow_connect(t, out->fd, &address.ip);
    no_pacing(out->fd, &address.ip);
    if (t->fixed_send_buffer)
        (void)setsockopt(out->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    if (make_preamble(out, peer, t->sealed || sealed) != SHOAL_OK) { /* I5 */
        close_out(out);
        return SHOAL_ERR_FULL;
    }
    if (connect(out->fd, (const struct sockaddr *)&to, len) != 0 && errno != EINPROGRESS) {
        close_out(out);
        return SHOAL_ERR_UNREACHABLE;
    }
    out->blocked = true;
    tcp_watch(t, out->fd, EPOLL_CTL_ADD, EPOLLOUT | tcp_quiet_events(out), EVENT_OUT, peer->rank);
    for (uint32_t i = 0; i < INBOUND_MAX; i++) /* it may have come before me */
        if (t->in[i].fd >= 0 && t->in[i].state == INBOUND_HELD && t->in[i].epoch == t->epoch &&
            t->in[i].rank == peer->rank)
            tcp_admit(t, &t->in[i]);
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
        tcp_mark_failed(t, rank, got == 0 ? 0 : errno);
        return;
    }
    out->answer_at += (uint32_t)got;
    if (out->answer_at < sizeof(out->answer))
        return;
    if (seal_shake_read(out->seal, shoal_view_of(out->answer, sizeof(out->answer)), none, 0, &len) != SHOAL_OK) {
        tcp_mark_failed(t, rank, EBADMSG);
        return;
    }
    out->shaken = true;
    out->blocked = true; /* so it finds out what there is to write by now */
    tcp_watch(t, out->fd, EPOLL_CTL_MOD, EPOLLOUT | tcp_quiet_events(out), EVENT_OUT, rank);
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
        tcp_mark_failed(t, rank, error);
        return;
    }
    out->connected = true;
    if (events & EPOLLIN && out->seal != NULL && !out->shaken)
        read_answer(t, rank);
    if (!t->failed)
        tcp_flush_out(t, rank);
}

static void on_in(struct transport *t, uint32_t index, uint64_t number, uint32_t events)
{
    struct inbound *in = &t->in[index];

    if (in->fd < 0 || (in->number & EVENT_NUMBERS) != number)
        return;
    if (events & EPOLLIN || in->state == INBOUND_PREAMBLE) {
        tcp_read_in(t, in); /* what came before the end is read first */
        return;
    }
    if (in->state == INBOUND_OPEN)
        tcp_mark_failed(t, in->rank, 0);
    tcp_close_in(t, in);
}

/* Connections that were paused with bytes in hand are read again: the kernel tells of none. */
static void read_behind(struct transport *t)
{
    for (uint32_t i = 0; i < INBOUND_MAX && !t->failed; i++) {
        if (!t->in[i].behind)
            continue;
        t->in[i].behind = false;
        t->behind_count--;
        tcp_read_in(t, &t->in[i]);
    }
}

static unsigned tcp_progress(struct transport *t)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(t->epoll, events, EVENTS_MAX, 0);

    for (int i = 0; i < count && !t->failed; i++) {
        uint32_t index = (uint32_t)events[i].data.u64;

        switch ((enum event_of)(events[i].data.u64 >> 56)) {
        case EVENT_LISTENER: tcp_accept_in(t, index); break;
        case EVENT_OUT: on_out(t, index, events[i].events); break;
        case EVENT_IN: on_in(t, index, events[i].data.u64 >> 32 & EVENT_NUMBERS, events[i].events); break;
        case EVENT_TIMER: tcp_on_timer(t); break;
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

static struct shoal_ranks tcp_lost(const struct transport *t)
{
    struct shoal_ranks lost = { 0 };

    if (t->failed && t->failed_rank < SHOAL_RANKS_MAX)
        shoal_ranks_add(&lost, t->failed_rank);
    return lost;
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
            tcp_close_in(t, &t->in[i]);
    while (t->asides != NULL) {
        struct aside *aside = t->asides;

        t->asides = aside->next;
        tcp_free_aside(t, aside);
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
        tcp_close_in(t, &t->in[i]);
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
