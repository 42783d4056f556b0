/* Lets peers in at transport_tcp.c's listeners: accepts, gives a bounded place, asks for the preamble (I1, I4, I5, I6). */
#include "tcp_state.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "shoal/wire.h"

#include "shoal/banned.h"

#define ACCEPTS_MAX 64u /* of one listener in one turn */
#define PREAMBLE_BYTES 36u

/* I4: among those in `state`, of `from` unless it is NULL. */
static struct inbound *oldest_in(struct transport *t, enum inbound_state state, const struct in6_addr *from,
                                 uint32_t *count)
{
    struct inbound *oldest = NULL;

    *count = 0;
    for (uint32_t i = 0; i < INBOUND_MAX; i++) {
        struct inbound *in = &t->in[i];

        if (in->fd < 0 || in->state != state || (from != NULL && !tcp_ip_equal(&in->from, from)))
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
        tcp_close_in(t, victim);
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
        tcp_close_in(t, oldest);
    }
}

static void deny(struct transport *t, struct inbound *in)
{
    t->denied++;
    tcp_close_in(t, in);
}

static bool has_open(const struct transport *t, uint32_t rank)
{
    for (uint32_t i = 0; i < INBOUND_MAX; i++)
        if (t->in[i].fd >= 0 && t->in[i].state == INBOUND_OPEN && t->in[i].rank == rank)
            return true;
    return false;
}

/* The seal of one connection. Both sides know by whom it was opened, to whom and for which epoch. */
enum shoal_err tcp_make_seal(struct seal **seal, bool opens, uint64_t epoch, uint32_t from, uint32_t to,
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
           tcp_make_seal(&in->seal, false, in->epoch, in->rank, t->my_rank, t->tokens[in->rank], t->my_token) ==
               SHOAL_OK &&
           seal_shake_read(in->seal, shoal_view_of(in->hello, sizeof(in->hello)), answer, 0, &len) == SHOAL_OK &&
           seal_shake_write(in->seal, shoal_view_of(NULL, 0), answer, sizeof(answer), &len) == SHOAL_OK &&
           send(in->fd, answer, len, MSG_NOSIGNAL) == (ssize_t)len;
}

void tcp_admit(struct transport *t, struct inbound *in)
{
    uint32_t index = (uint32_t)(in - t->in);
    bool known;

    if (!t->entered || in->epoch != t->epoch) { /* of an epoch that I have not entered; watch only whether it ends */
        in->state = INBOUND_HELD;
        tcp_watch(t, in->fd, EPOLL_CTL_MOD, EPOLLRDHUP, EVENT_IN, index);
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
    tcp_watch(t, in->fd, EPOLL_CTL_MOD, EPOLLIN | EPOLLRDHUP, EVENT_IN, index);
    if (in->wants_seal)
        thin_shaken(t, in->rank);
}

/* Its first record makes it its rank's connection (I6). */
void tcp_prove(struct transport *t, struct inbound *in)
{
    (void)tcp_read_head(t, in, HEADER_BYTES);
    if (in->fd < 0 || in->head_at == 0)
        return;
    if (has_open(t, in->rank))
        deny(t, in);
    else
        in->state = INBOUND_OPEN;
}

/* The first PREAMBLE_BYTES tell which form it has. */
void tcp_read_preamble(struct transport *t, struct inbound *in)
{
    struct shoal_reader r = shoal_reader_init(shoal_view_of(in->head, sizeof(in->head)));
    uint64_t magic;

    if (in->head_at < PREAMBLE_BYTES && !tcp_read_head(t, in, PREAMBLE_BYTES))
        return;
    magic = shoal_get_u64(&r);
    in->wants_seal = magic == SEALED_MAGIC;
    if (magic != PREAMBLE_MAGIC && magic != SEALED_MAGIC) {
        deny(t, in);
        return;
    }
    if (in->wants_seal && in->head_at < SEALED_PREAMBLE_BYTES && !tcp_read_head(t, in, SEALED_PREAMBLE_BYTES))
        return;
    in->epoch = shoal_get_u64(&r);
    in->rank = shoal_get_u32(&r);
    if (in->wants_seal)
        shoal_get_raw(&r, in->hello, sizeof(in->hello));
    else
        shoal_get_raw(&r, in->token, sizeof(in->token));
    tcp_admit(t, in);
}

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
void tcp_on_timer(struct transport *t)
{
    uint64_t now = now_ns();
    struct inbound *oldest;
    uint32_t count;

    for (;;) {
        oldest = oldest_in(t, INBOUND_PREAMBLE, NULL, &count);
        if (oldest == NULL || now < oldest->since_ns + SILENT_NS)
            break;
        t->denied++;
        tcp_close_in(t, oldest);
    }
    timer_arm(t, oldest == NULL ? 0 : oldest->since_ns + SILENT_NS);
}

static void accept_one(struct transport *t, int fd, struct in6_addr from)
{
    struct inbound *oldest;
    uint32_t i = 0, count;
    int yes = 1;

    oldest = oldest_in(t, INBOUND_PREAMBLE, NULL, &count);
    if (count == SILENT_MAX) {
        t->denied++;
        tcp_close_in(t, oldest);
    }
    while (i < INBOUND_MAX && t->in[i].fd >= 0)
        i++;
    SHOAL_ASSERT(i < INBOUND_MAX); /* I4: each state has its own bound */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    t->in[i] = (struct inbound){ .fd = fd, .from = from, .number = ++t->accepted, .since_ns = now_ns() };
    tcp_watch(t, fd, EPOLL_CTL_ADD, EPOLLIN | EPOLLRDHUP, EVENT_IN, i);
    if (!t->timer_runs)
        timer_arm(t, t->in[i].since_ns + SILENT_NS);
    tcp_read_in(t, &t->in[i]); /* a member's preamble is there already */
}

void tcp_accept_in(struct transport *t, uint32_t listener)
{
    for (uint32_t i = 0; i < ACCEPTS_MAX && !t->failed; i++) {
        struct sockaddr_storage from = { 0 };
        struct tcp_address address = { 0 };
        socklen_t len = sizeof(from);
        int fd = accept4(t->listeners[listener], (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd < 0)
            return;
        (void)tcp_address_of((const struct sockaddr *)&from, &address);
        accept_one(t, fd, address.ip);
    }
}
