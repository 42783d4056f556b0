#include "tls_openssl.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define CERT_DAYS 3650

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

static bool add_extension(X509 *cert, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509_EXTENSION *extension;
    bool ok;

    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, cert, cert, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    if (extension == NULL)
        return false;
    ok = X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return ok;
}

static bool is_address(const char *name)
{
    return strspn(name, "0123456789.") == strlen(name) || strchr(name, ':') != NULL;
}

static bool name_is_plain(const char *name)
{
    return name != NULL && name[0] != '\0' && strlen(name) < 200 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:") == strlen(name);
}

static bool fill_cert(X509 *cert, EVP_PKEY *key, const char *name)
{
    char host[256] = "localhost";
    char alt[800];
    unsigned char serial[16];
    BIGNUM *number;
    X509_NAME *subject = X509_get_subject_name(cert);
    bool ok;

    (void)gethostname(host, sizeof(host) - 1);
    if (!name_is_plain(host))
        (void)snprintf(host, sizeof(host), "localhost");
    (void)snprintf(alt, sizeof(alt), "DNS:localhost,IP:127.0.0.1,IP:::1,DNS:%.200s%s%.200s", host,
                   !name_is_plain(name) ? ""
                   : is_address(name)   ? ",IP:"
                                        : ",DNS:",
                   name_is_plain(name) ? name : "");
    if (getentropy(serial, sizeof(serial)) != 0)
        return false;
    serial[0] &= 0x7f;
    number = BN_bin2bn(serial, sizeof(serial), NULL);
    ok = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) != NULL;
    BN_free(number);
    return ok && X509_set_version(cert, 2) == 1 && X509_gmtime_adj(X509_getm_notBefore(cert), -86400) != NULL &&
           X509_gmtime_adj(X509_getm_notAfter(cert), 86400L * CERT_DAYS) != NULL && X509_set_pubkey(cert, key) == 1 &&
           X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *)"Shoal", -1, -1, 0) == 1 &&
           X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)host, (int)strnlen(host, 63),
                                      -1, 0) == 1 &&
           X509_set_issuer_name(cert, subject) == 1 &&
           add_extension(cert, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(cert, NID_key_usage, "critical,digitalSignature") &&
           add_extension(cert, NID_ext_key_usage, "serverAuth") && add_extension(cert, NID_subject_alt_name, alt) &&
           X509_sign(cert, key, EVP_sha256()) > 0;
}

/* Writes a PEM file under a temporary name, then gives it its own: a file there is always whole. */
static enum shoal_err write_pem(const char *dir, const char *file, EVP_PKEY *key, X509 *cert, struct shoal_msg *msg)
{
    char path[1024];
    char temporary[1040];
    FILE *stream;
    int fd;
    bool ok;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    (void)snprintf(temporary, sizeof(temporary), "%s.new", path);
    (void)unlink(temporary);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, key != NULL ? 0600 : 0644);
    if (fd < 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot be made: %s", temporary, strerror(errno));
    stream = fdopen(fd, "w");
    if (stream == NULL) {
        (void)close(fd);
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: %s", temporary, strerror(errno));
    }
    ok = (key != NULL ? PEM_write_PKCS8PrivateKey(stream, key, NULL, NULL, 0, NULL, NULL)
                      : PEM_write_X509(stream, cert)) == 1;
    ok = fflush(stream) == 0 && fsync(fd) == 0 && ok;
    ok = fclose(stream) == 0 && ok;
    if (!ok || rename(temporary, path) != 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot be written: %s", path, strerror(errno));
    return SHOAL_OK;
}

static enum shoal_err make_cert(const char *dir, const char *name, struct shoal_msg *msg)
{
    enum shoal_err err = SHOAL_ERR_STORAGE;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();

    if (key == NULL || cert == NULL || !fill_cert(cert, key, name)) {
        err = openssl_fail(msg, SHOAL_ERR_STORAGE, "cannot make a certificate");
        goto out;
    }
    err = write_pem(dir, "tls.key", key, NULL, msg);
    if (err == SHOAL_OK)
        err = write_pem(dir, "tls.crt", NULL, cert, msg);
out:
    X509_free(cert);
    EVP_PKEY_free(key);
    return err;
}

static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                           unsigned in_len, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";

    (void)ssl;
    (void)arg;
    for (unsigned at = 0; at < in_len && in[at] < in_len - at; at += 1u + in[at]) {
        if (in[at] == ours[0] && memcmp(in + at + 1, ours + 1, ours[0]) == 0) {
            *out = in + at + 1;
            *out_len = in[at];
            return SSL_TLSEXT_ERR_OK;
        }
    }
    return SSL_TLSEXT_ERR_NOACK;
}

/* Key exchanges and suites that cost the loop little. OpenSSL's own list has ffdhe8192: a stranger's bare hello made the
 * loop compute for a tenth of a second. */
#define TLS_GROUPS "X25519:P-256"
#define TLS_12_SUITES "ECDHE+CHACHA20:ECDHE+AESGCM"
#define TLS_13_SUITES "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"

static enum shoal_err load_files(SSL_CTX *ctx, const char *dir, const char *name, struct shoal_msg *msg)
{
    char crt[1024];
    char key[1024];

    (void)snprintf(crt, sizeof(crt), "%s/tls.crt", dir);
    (void)snprintf(key, sizeof(key), "%s/tls.key", dir);
    if (access(crt, F_OK) != 0 || access(key, F_OK) != 0) {
        enum shoal_err err;

        if (mkdir(dir, 0700) != 0 && errno != EEXIST)
            return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot be made: %s", dir, strerror(errno));
        err = make_cert(dir, name, msg);
        if (err != SHOAL_OK)
            return err;
    }
    if (SSL_CTX_use_certificate_chain_file(ctx, crt) != 1)
        return openssl_fail(msg, SHOAL_ERR_INVALID, "tls.crt cannot be read; remove tls.crt and tls.key for new ones");
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(ctx) != 1)
        return openssl_fail(msg, SHOAL_ERR_INVALID,
                            "tls.key cannot be read or does not fit tls.crt; remove both for new ones");
    return SHOAL_OK;
}

enum shoal_err tls_context_create(const char *dir, const char *name, struct tls_context **context,
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
    err = load_files(made->ctx, dir, name, msg);
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

enum shoal_err tls_conn_write(struct tls_conn *conn, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;

    ERR_clear_error();
    while (len > 0) {
        int piece = len > SHOAL_MIB ? (int)SHOAL_MIB : (int)len;
        int put = SSL_write(conn->ssl, at, piece);

        if (put <= 0) {
            ERR_clear_error();
            return SHOAL_ERR_MALFORMED;
        }
        at += put;
        len -= (size_t)put;
    }
    return SHOAL_OK;
}

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
