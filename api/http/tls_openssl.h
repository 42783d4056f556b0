/* TLS over memory: bytes from the socket go in, bytes for the socket come out; no descriptor is ever touched. */
#ifndef API_TLS_OPENSSL_H
#define API_TLS_OPENSSL_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/http.h"

struct tls_context;
struct tls_conn;

/* tls_cert_openssl.c: makes `dir`/tls.key (0600) and `dir`/tls.crt where there are none, or ours that no longer fit: P-256,
 * signed by the mesh's CA (self-signed without one), for localhost, this host's name and `names`. An operator may put
 * others there. */
SHOAL_MUST_CHECK enum shoal_err tls_cert_ready(const char *dir, const struct shoal_tls_names *names,
                                               struct shoal_msg *msg);
SHOAL_MUST_CHECK enum shoal_err tls_context_create(const char *dir, const struct shoal_tls_names *names,
                                                   struct tls_context **context, struct shoal_msg *msg);
void tls_context_destroy(struct tls_context *context);

struct tls_conn *tls_conn_create(struct tls_context *context); /* NULL: no memory */
void tls_conn_destroy(struct tls_conn *conn);

/* Bytes from the socket. */
SHOAL_MUST_CHECK enum shoal_err tls_conn_feed(struct tls_conn *conn, const void *bytes, size_t len);
/* Plain bytes; *len = 0: none now. *ended: the peer has closed its side. MALFORMED: drop the connection. Moves the
 * handshake on as well: call tls_conn_take afterwards. */
SHOAL_MUST_CHECK enum shoal_err tls_conn_read(struct tls_conn *conn, void *bytes, size_t cap, size_t *len, bool *ended);
/* Plain bytes to what goes into the socket, appended to `out`. */
SHOAL_MUST_CHECK enum shoal_err tls_conn_write(struct tls_conn *conn, const void *bytes, size_t len,
                                               struct shoal_buf *out);
/* The handshake is over: what comes now costs a cipher, not a key exchange and a signature. */
bool tls_conn_is_ready(const struct tls_conn *conn);
/* The client chose HTTP/2 (ALPN). */
bool tls_conn_is_h2(const struct tls_conn *conn);
void tls_conn_close(struct tls_conn *conn); /* writes close_notify */
bool tls_conn_has_output(const struct tls_conn *conn);
/* The same of what the library itself has to say. */
SHOAL_MUST_CHECK enum shoal_err tls_conn_take(struct tls_conn *conn, struct shoal_buf *out);

#endif
