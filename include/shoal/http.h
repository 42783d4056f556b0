/* The HTTP server of an agent: it runs inside the agent's libuv loop. HTTP/1.1, and HTTP/2 where the client chooses it by
 * ALPN or, without TLS, begins with its preface. */
#ifndef SHOAL_HTTP_H
#define SHOAL_HTTP_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/backend.h"
#include "shoal/error.h"

struct uv_loop_s;
struct shoal_http;

#define SHOAL_TLS_NAMES_MAX 3
#define SHOAL_TLS_SEED_BYTES 64
#define SHOAL_FINGERPRINT_TEXT_BYTES 72 /* "sha256:", 64 hex digits, NUL */

/* The names that a node's certificate speaks for. */
struct shoal_tls_names {
    const char *mesh;                       /* NULL: there is no mesh, and so no CA: the certificate is self-signed */
    uint8_t seed[SHOAL_TLS_SEED_BYTES];     /* of the CA's key: derived from the mesh secret */
    const char *names[SHOAL_TLS_NAMES_MAX]; /* names and addresses of this node, besides localhost; NULL: none */
};

/* Makes the folder `dir` and in it ca.crt, by which a client knows every node of the mesh, where they are missing or are another
 * mesh's. With `dir` NULL it makes no file. The `fingerprint` of the CA's key is the same on every node. STORAGE: it cannot be written. */
SHOAL_MUST_CHECK enum shoal_err shoal_tls_ca_ready(const char *dir, const struct shoal_tls_names *names,
                                                   char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES],
                                                   struct shoal_msg *msg);

struct shoal_http_options {
    const char *host; /* address to bind: "127.0.0.1", "0.0.0.0", "::1" */
    uint16_t port;    /* 0: any free one; ask shoal_http_port() */
    bool plain;       /* no TLS: only where the operator says so */
    const char
        *tls_dir; /* folder of tls.crt, tls.key and ca.crt, made at first start (0700, key 0600); with TLS only */
    struct shoal_tls_names tls; /* used during the call */
    const char
        *spool_dir; /* folder for uploads under way; must exist; files in it have no name and vanish by themselves */
    uint32_t connections_max; /* 0: SHOAL_HTTP_CONNECTIONS_MAX */
    uint32_t token_life_s;    /* 0: 12 hours */
    uint32_t write_ms;        /* a client that takes no byte of what is sent for so long is given up; 0: a minute */
    bool exact_states;        /* execs-api 5.2: show exact states on exec objects */
    const char *scrape_token; /* opens /metrics alone, as a bearer token; NULL or "": none */
};

struct shoal_http_stats {
    uint64_t connections_accepted;
    uint64_t connections_refused; /* above the cap, and none waited for its client */
    uint64_t requests;
    uint64_t refused_malformed; /* broken by the strictness rules */
    uint64_t refused_auth;
    uint64_t refused_busy; /* requests above what is allowed at once */
    uint64_t gave_way;     /* their bodies were still to come, and another user needed the room */
    uint64_t closed_slow;
    uint64_t closed_idle; /* gave way to a newer connection */
    uint64_t tls_failed;
    uint64_t closed_full; /* held most of what clients did not take, when that was too much */
    uint64_t h2_accepted; /* connections that speak HTTP/2 */
    uint64_t h2_calmed;   /* of them, closed because they asked for too much work or memory */
    uint32_t connections_open;
    uint32_t uploads_open;
};

/* Starts listening. `options` and `backend` are copied; the texts inside options too, backend->ctx must outlive the
 * server. INVALID: address in use or not ours; STORAGE: folders. */
SHOAL_MUST_CHECK enum shoal_err shoal_http_start(struct uv_loop_s *loop, const struct shoal_http_options *options,
                                                 const struct shoal_backend *backend, struct shoal_http **http,
                                                 struct shoal_msg *msg);

/* Closes listener and connections; `stopped` runs once, when all requests in hand have ended, and *http is then freed.
 * Backend calls under way must still end (each exactly once). */
void shoal_http_stop(struct shoal_http *http, void (*stopped)(void *arg), void *arg);

uint16_t shoal_http_port(const struct shoal_http *http);
void shoal_http_stats(const struct shoal_http *http, struct shoal_http_stats *stats);

#endif
