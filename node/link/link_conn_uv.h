/* One TCP connection of a link: the stream, its handshake, its frames. link_conn_uv.c does the bytes, link_uv.c decides
 * which connections live. */
#ifndef NODE_LINK_CONN_UV_H
#define NODE_LINK_CONN_UV_H

#include "shoal/link.h"
#include "shoal/noise.h"
#include "shoal/rand.h"

#include "link_wire.h"

#include <uv.h>

enum conn_state {
    CONN_QUEUED,  /* dials at the next tick */
    CONN_CONNECT, /* TCP */
    CONN_SHAKE,   /* handshake; `shaken` messages done */
    CONN_OPEN,    /* welcomed */
    CONN_CLOSED,  /* freed by the close callback; nothing may touch it */
};

struct conn {
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    struct shoal_link *link;
    struct conn *next, **at; /* all connections of the link */
    struct peer *peer;       /* whose lane, or whose dial, this is; NULL: neither yet */
    enum conn_state state;
    enum shoal_lane lane;
    bool dialled;
    bool probe;   /* it ends before it is open: the BULK lane of a session that does not exist is refused, and harms nothing */
    bool preamble_read;
    bool ending; /* a refusal is on its way out; nothing is read any more */
    unsigned shaken;
    struct shoal_noise *noise;
    struct link_hello hello;       /* the peer's, as far as it is known */
    struct shoal_node_id node;     /* the peer's, proven */
    struct shoal_node_id expected; /* zero: any */
    struct shoal_address address;
    uint64_t session;
    uint64_t started_ns, opened_ns, heard_ns, pinged_ns;
    uint64_t looked_ns;     /* whether what was written arrives */
    bool unsure;            /* something was written since it was last known to have arrived */
    bool narrow;            /* dialled: small segments, either way */
    struct shoal_buf in;    /* received, not yet whole messages */
    struct shoal_buf frame; /* pieces of a frame, channel first */
    bool in_frame;
    struct shoal_buf out;     /* sealed, not yet handed to libuv */
    struct shoal_buf writing; /* with libuv */
    bool is_writing;
    bool was_full;
    bool is_due; /* in its link's list of what is written before the loop waits again */
    struct conn *next_due;
};

struct shoal_link {
    uv_loop_t *loop;
    uv_tcp_t server;
    uv_timer_t timer;
    uv_prepare_t writer; /* writes what the turn has sealed; stands still while nothing is due */
    struct conn *due;
    struct shoal_link_options options;
    struct shoal_identity identity;
    uint8_t static_secret[32];
    uint8_t psk[32];
    struct shoal_rand chance;
    struct conn *conns;
    struct peer **buckets;
    unsigned peers_count, probes_count, handles_open;
    uint16_t port;
    uint64_t period_ns;
    uint64_t noted_ns;
    uint64_t ticked_ns; /* 0: the timer stood still, or was late */
    bool stopping;
    bool in_tick;
    void (*stopped)(void *arg);
    void *stopped_arg;
    struct shoal_link_stats stats;
    uint8_t plain[SHOAL_NOISE_MESSAGE_MAX];
};

/* ---- link_conn_uv.c ---- */

/* A connection of the link, not started. NULL: no memory. */
struct conn *conn_create(struct shoal_link *link, bool dialled);
/* Start a dial, or take what the server accepted. On error the connection is still the caller's to close. */
SHOAL_MUST_CHECK enum shoal_err conn_dial(struct conn *conn);
SHOAL_MUST_CHECK enum shoal_err conn_accept(struct conn *conn, uv_stream_t *server);
/* The responder's word on a hello. After a refusal the connection closes by itself. */
void conn_welcome(struct conn *conn);
void conn_refuse(struct conn *conn, enum link_refusal why);
/* Closes without a callback to link_uv.c. */
void conn_close(struct conn *conn);
/* A frame of two parts; the first one has SHOAL_LINK_START_MAX bytes at most. */
SHOAL_MUST_CHECK enum shoal_err conn_send(struct conn *conn, uint8_t channel, struct shoal_view start,
                                          struct shoal_view rest);
void conn_ping(struct conn *conn);
/* Our bytes are sent again and again and do not arrive, though the peer is heard: its path swallows large packets. */
bool conn_is_stalled(struct conn *conn, uint64_t now_ns);
/* What this side sends on it goes in segments as small as a narrow dial asks for. */
bool conn_is_narrow(const struct conn *conn);
uint64_t conn_now_ns(void);

/* ---- link_uv.c, called by link_conn_uv.c; each may close the connection ---- */

/* The dialler knows who answers. */
void link_on_key(struct conn *conn);
/* The responder knows who asks, and for what. */
void link_on_hello(struct conn *conn);
/* The dialler was welcomed. */
void link_on_open(struct conn *conn);
void link_on_refused(struct conn *conn, enum link_refusal why);
void link_on_frame(struct conn *conn, uint8_t channel, struct shoal_view frame);
void link_on_writable(struct conn *conn);
/* The connection failed; link_uv.c closes it. `refused`: nothing listens there. */
void link_on_broken(struct conn *conn, enum shoal_err err, bool refused, const char *text);
void link_on_closed(struct shoal_link *link);

#endif
