#include "tls_openssl.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

/* At once through the library: what its buffers have grown to they keep as long as the connection lives. */
#define PIECE_BYTES 65536

struct tls_context {
    SSL_CTX *ctx;
};

struct tls_conn {
    SSL *ssl;
    BIO *in;  /* owned by ssl */
    BIO *out; /* owned by ssl */
};

static enum shoal_err openssl_fail(struct shoal_msg *msg, enum shoal_err err, const char *what)
{
    char text[200];

    ERR_error_string_n(ERR_get_error(), text, sizeof(text));
    ERR_clear_error();
    return shoal_fail(msg, err, "TLS: %s: %s", what, text);
}

/* HTTP/2 where the client offers it, else HTTP/1.1. */
static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                           unsigned in_len, void *arg)
{
    static const char *const ours[] = { "h2", "http/1.1" };

    (void)ssl;
    (void)arg;
    for (unsigned i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        for (unsigned at = 0; at < in_len && in[at] < in_len - at; at += 1u + in[at]) {
            if (in[at] == strlen(ours[i]) && memcmp(in + at + 1, ours[i], in[at]) == 0) {
                *out = in + at + 1;
                *out_len = in[at];
                return SSL_TLSEXT_ERR_OK;
            }
        }
    }
    return SSL_TLSEXT_ERR_NOACK;
}

/* Key exchanges and suites that cost the loop little. OpenSSL's own list has ffdhe8192: a stranger's bare hello made the
 * loop compute for a tenth of a second. */
#define TLS_GROUPS "X25519:P-256"
#define TLS_12_SUITES "ECDHE+CHACHA20:ECDHE+AESGCM"
#define TLS_13_SUITES "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

/* OpenSSL without memory for a moment calls a good file wrong, too. */
#define UNREADABLE(what) what " (out of memory? start again; else remove tls.crt and tls.key for new ones)"

static enum shoal_err load_files(SSL_CTX *ctx, const char *dir, struct shoal_msg *msg)
{
    char crt[1024];
    char key[1024];

    (void)snprintf(crt, sizeof(crt), "%s/tls.crt", dir);
    (void)snprintf(key, sizeof(key), "%s/tls.key", dir);
    if (SSL_CTX_use_certificate_chain_file(ctx, crt) != 1)
        return openssl_fail(msg, SHOAL_ERR_INVALID, UNREADABLE("tls.crt cannot be read"));
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        return openssl_fail(msg, SHOAL_ERR_INVALID, UNREADABLE("tls.key cannot be read or does not fit tls.crt"));
    return SHOAL_OK;
}

enum shoal_err tls_context_create(const char *dir, const struct shoal_tls_names *names, struct tls_context **context,
                                  struct shoal_msg *msg)
{
    struct tls_context *made = calloc(1, sizeof(*made));
    enum shoal_err err;

    if (made == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "TLS: out of memory");
    made->ctx = SSL_CTX_new(TLS_server_method());
    if (made->ctx == NULL || SSL_CTX_set_min_proto_version(made->ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set1_groups_list(made->ctx, TLS_GROUPS) != 1 ||
        SSL_CTX_set_cipher_list(made->ctx, TLS_12_SUITES) != 1 ||
        SSL_CTX_set_ciphersuites(made->ctx, TLS_13_SUITES) != 1) {
        tls_context_destroy(made);
        return openssl_fail(msg, SHOAL_ERR_STORAGE, "no context");
    }
    /* Tickets and renegotiation are state that a client could make us keep; sessions are short and on kept connections.
     */
    (void)SSL_CTX_set_options(made->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                             SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
    (void)SSL_CTX_set_session_cache_mode(made->ctx, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(made->ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_AUTO_RETRY);
    (void)SSL_CTX_set_num_tickets(made->ctx, 0);
    SSL_CTX_set_alpn_select_cb(made->ctx, select_protocol, NULL);
    err = tls_cert_ready(dir, names, msg);
    if (err == SHOAL_OK)
        err = load_files(made->ctx, dir, msg);
    if (err != SHOAL_OK) {
        tls_context_destroy(made);
        return err;
    }
    *context = made;
    return SHOAL_OK;
}

void tls_context_destroy(struct tls_context *context)
{
    if (context == NULL)
        return;
    SSL_CTX_free(context->ctx);
    free(context);
}

struct tls_conn *tls_conn_create(struct tls_context *context)
{
    struct tls_conn *conn = calloc(1, sizeof(*conn));

    if (conn == NULL)
        return NULL;
    conn->ssl = SSL_new(context->ctx);
    conn->in = BIO_new(BIO_s_mem());
    conn->out = BIO_new(BIO_s_mem());
    if (conn->ssl == NULL || conn->in == NULL || conn->out == NULL) {
        BIO_free(conn->in);
        BIO_free(conn->out);
        SSL_free(conn->ssl);
        free(conn);
        return NULL;
    }
    SSL_set_bio(conn->ssl, conn->in, conn->out);
    SSL_set_accept_state(conn->ssl);
    return conn;
}

void tls_conn_destroy(struct tls_conn *conn)
{
    if (conn == NULL)
        return;
    SSL_free(conn->ssl);
    free(conn);
}

enum shoal_err tls_conn_feed(struct tls_conn *conn, const void *bytes, size_t len)
{
    SHOAL_ASSERT(len <= SHOAL_MIB);
    return BIO_write(conn->in, bytes, (int)len) == (int)len ? SHOAL_OK : SHOAL_ERR_FULL;
}

enum shoal_err tls_conn_read(struct tls_conn *conn, void *bytes, size_t cap, size_t *len, bool *ended)
{
    int got;
    int why;

    SHOAL_ASSERT(cap <= SHOAL_MIB);
    ERR_clear_error();
    got = SSL_read(conn->ssl, bytes, (int)cap);
    *len = 0;
    *ended = false;
    if (got > 0) {
        *len = (size_t)got;
        return SHOAL_OK;
    }
    why = SSL_get_error(conn->ssl, got);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return SHOAL_OK;
    if (why == SSL_ERROR_ZERO_RETURN) {
        *ended = true;
        return SHOAL_OK;
    }
    ERR_clear_error();
    return SHOAL_ERR_MALFORMED;
}

bool tls_conn_is_ready(const struct tls_conn *conn) { return SSL_is_init_finished(conn->ssl) == 1; }

bool tls_conn_is_h2(const struct tls_conn *conn)
{
    const unsigned char *name = NULL;
    unsigned len = 0;

    SSL_get0_alpn_selected(conn->ssl, &name, &len);
    return len == 2 && memcmp(name, "h2", 2) == 0;
}

bool tls_conn_has_output(const struct tls_conn *conn) { return BIO_ctrl_pending(conn->out) > 0; }

void tls_conn_close(struct tls_conn *conn)
{
    ERR_clear_error();
    if (SSL_is_init_finished(conn->ssl))
        (void)SSL_shutdown(conn->ssl);
    ERR_clear_error();
}

enum shoal_err tls_conn_take(struct tls_conn *conn, struct shoal_buf *out)
{
    size_t pending = BIO_ctrl_pending(conn->out);
    enum shoal_err err;

    if (pending == 0)
        return SHOAL_OK;
    err = shoal_buf_reserve(out, pending);
    if (err != SHOAL_OK)
        return err;
    if (BIO_read(conn->out, out->bytes + out->len, (int)pending) != (int)pending)
        return SHOAL_ERR_FULL;
    out->len += pending;
    return SHOAL_OK;
}

enum shoal_err tls_conn_write(struct tls_conn *conn, const void *bytes, size_t len, struct shoal_buf *out)
{
    const uint8_t *at = bytes;

    ERR_clear_error();
    while (len > 0) {
        int put = SSL_write(conn->ssl, at, len > PIECE_BYTES ? PIECE_BYTES : (int)len);
        enum shoal_err err = put <= 0 ? SHOAL_ERR_MALFORMED : tls_conn_take(conn, out);

        if (err != SHOAL_OK) {
            ERR_clear_error();
            return err;
        }
        at += put;
        len -= (size_t)put;
    }
    return SHOAL_OK;
}
