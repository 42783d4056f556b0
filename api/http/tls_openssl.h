/* TLS over memory: bytes from the socket go in, bytes for the socket come out; no descriptor is ever touched. */
#ifndef API_TLS_OPENSSL_H
#define API_TLS_OPENSSL_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/buf.h"
#include "shoal/error.h"

struct tls_context;
struct tls_conn;

/* Makes `dir`/tls.key (0600) and `dir`/tls.crt at first start: P-256, self-signed, for localhost, this host's name and
 * `name` (may be NULL). Both files are read as they are afterwards, so an operator may put others there. */
SHOAL_MUST_CHECK enum shoal_err tls_context_create(const char *dir, const char *name, struct tls_context **context,
                                                   struct shoal_msg *msg);
void tls_context_destroy(struct tls_context *context);

struct tls_conn *tls_conn_create(struct tls_context *context); /* NULL: no memory */
void tls_conn_destroy(struct tls_conn *conn);

/* Bytes from the socket. */
SHOAL_MUST_CHECK enum shoal_err tls_conn_feed(struct tls_conn *conn, const void *bytes, size_t len);
/* Plain bytes; *len = 0: none now. *ended: the peer has closed its side. MALFORMED: drop the connection. Moves the
 * handshake on as well: call tls_conn_take afterwards. */
SHOAL_MUST_CHECK enum shoal_err tls_conn_read(struct tls_conn *conn, void *bytes, size_t cap, size_t *len, bool *ended);
SHOAL_MUST_CHECK enum shoal_err tls_conn_write(struct tls_conn *conn, const void *bytes, size_t len);
void tls_conn_close(struct tls_conn *conn); /* writes close_notify */
/* Bytes for the socket, appended to `out`. */
SHOAL_MUST_CHECK enum shoal_err tls_conn_take(struct tls_conn *conn, struct shoal_buf *out);

#endif
