/* The fields of the TCP transport, and what its files share. Picture and rules: transport_tcp.c. */
#ifndef COLLECTIVE_TCP_STATE_H
#define COLLECTIVE_TCP_STATE_H

#include "seal.h"
#include "shoal/limits.h"
#include "tcp_address.h"
#include "transport.h"

#define LISTENERS_MAX 4u
/* One of each member, and of strangers what may be (I4); one more place is always free for the next that comes. */
#define SILENT_MAX SHOAL_RANKS_MAX /* members on a busy host connect all at once, and say their preambles later */
#define SILENT_NS SHOAL_S
#define HELD_MAX (2u * SHOAL_RANKS_MAX)
#define SHAKEN_EACH 2u
#define INBOUND_MAX ((1u + SHAKEN_EACH) * SHOAL_RANKS_MAX + HELD_MAX + SILENT_MAX + 1u)
#define PREAMBLE_MAGIC 0x31706374616f6873ull
#define SEALED_MAGIC 0x3273706374616f68ull
#define SEALED_BASE_BYTES 20u /* of the preamble: what both sides know of the connection */
#define SEALED_PREAMBLE_BYTES (SEALED_BASE_BYTES + SEAL_SHAKE_BYTES)
#define WIRE_BYTES (2u * SEAL_RECORD_MAX) /* read from a sealed connection at a time */
#define HEADER_BYTES 16u
#define NARROW_MAX SHOAL_RANKS_MAX

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

/* The connection that this rank opens to another. */
struct outbound {
    int fd; /* -1: none */
    struct in6_addr to;
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

/* A connection that another side has opened. */
struct inbound {
    int fd; /* -1: none */
    enum inbound_state state;
    struct in6_addr from;
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
    struct in6_addr to;
    int segment;
};

struct transport {
    int epoll;
    int timer; /* readable when a preamble is overdue */
    bool timer_runs;
    uint64_t accepted;
    int listeners[LISTENERS_MAX];
    struct tcp_address listener_at[LISTENERS_MAX];
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

/* An event names its owner in its 64 bits: kind, index and, since a place is taken again within a turn, which accept. */
#define EVENT_NUMBERS 0xffffffu
enum event_of { EVENT_LISTENER, EVENT_OUT, EVENT_IN, EVENT_TIMER };

/* transport_tcp.c */
void tcp_mark_failed(struct transport *t, uint32_t rank, int error);
void tcp_watch(const struct transport *t, int fd, int how, uint32_t events, enum event_of of, uint32_t index);

/* tcp_message.c */
/* The events that a connection waits for while it has nothing to write. */
uint32_t tcp_quiet_events(const struct outbound *out);
void tcp_flush_out(struct transport *t, uint32_t rank); /* until the socket is full or the queue is empty */
struct transport_request *tcp_send(struct transport *t, uint32_t peer, uint64_t tag, const void *bytes, size_t len);
void tcp_free_aside(struct transport *t, struct aside *aside);
void tcp_close_in(struct transport *t, struct inbound *in);
/* Up to `want` bytes of preamble or header. False: not complete yet, or the connection is gone. */
bool tcp_read_head(struct transport *t, struct inbound *in, uint32_t want);
void tcp_read_in(struct transport *t, struct inbound *in); /* what came, in whatever state the connection is */
struct transport_request *tcp_recv(struct transport *t, uint64_t tag, void *bytes, size_t len);
enum transport_state tcp_test(struct transport *t, struct transport_request *request);

/* tcp_door.c */
/* The seal of one connection: both sides know by whom it was opened, to whom and for which epoch. */
SHOAL_MUST_CHECK enum shoal_err tcp_make_seal(struct seal **seal, bool opens, uint64_t epoch, uint32_t from,
                                              uint32_t to, const uint8_t *from_token, const uint8_t *to_token);
void tcp_read_preamble(struct transport *t, struct inbound *in);
void tcp_admit(struct transport *t,
               struct inbound *in); /* its preamble is whole: a member's is taken, an early one waits */
void tcp_prove(struct transport *t, struct inbound *in); /* I6: its first record makes it its rank's connection */
void tcp_on_timer(struct transport *t);
void tcp_accept_in(struct transport *t, uint32_t listener);

#endif
