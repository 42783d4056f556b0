/* Certificates of a mesh (decision 0020).
 *
 *   mesh secret --derive--> key of the CA: the same on every host      ca.crt: what a client trusts
 *                             |
 *                             '--signs--> certificate of each node    tls.crt (and the CA's behind it), tls.key
 *
 * A1. The key of the CA is in no file: whoever has the mesh secret, every member host, has it; nobody else does.
 * A2. ca.crt differs between hosts in serial number and signature only. Its fingerprint is that of its key: one for the mesh.
 * A3. A certificate that we did not make stays: an operator's own. One of ours that no longer fits is made anew. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tls_openssl.h"

#include "shoal/crypto.h"

#include "shoal/banned.h"

#define CERT_DAYS 3650
#define CA_DAYS 7300
#define RENEW_DAYS 365
#define CA_UNIT "mesh CA"

static enum shoal_err cert_fail(struct shoal_msg *msg, const char *what)
{
    char text[200];

    ERR_error_string_n(ERR_get_error(), text, sizeof(text));
    ERR_clear_error();
    return shoal_fail(msg, SHOAL_ERR_STORAGE, "TLS: %s: %s", what, text);
}

/* ---- keys ---- */

/* A private number of P-256 from 64 uniform bytes: modulo (order - 1), plus 1 (FIPS 186-5, A.2.1), and its point. */
static bool numbers_of_seed(const uint8_t seed[SHOAL_TLS_SEED_BYTES], BIGNUM *number, uint8_t point[65])
{
    EC_GROUP *group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    EC_POINT *at = group == NULL ? NULL : EC_POINT_new(group);
    BN_CTX *ctx = BN_CTX_new();
    BIGNUM *below = BN_new();
    bool ok = at != NULL && ctx != NULL && below != NULL && BN_copy(below, EC_GROUP_get0_order(group)) != NULL &&
              BN_sub_word(below, 1) == 1 && BN_bin2bn(seed, SHOAL_TLS_SEED_BYTES, number) != NULL &&
              BN_mod(number, number, below, ctx) == 1 && BN_add_word(number, 1) == 1;

    if (ok) {
        BN_set_flags(number, BN_FLG_CONSTTIME);
        ok = EC_POINT_mul(group, at, number, NULL, NULL, ctx) == 1 &&
             EC_POINT_point2oct(group, at, POINT_CONVERSION_UNCOMPRESSED, point, 65, ctx) == 65;
    }
    BN_free(below);
    BN_CTX_free(ctx);
    EC_POINT_free(at);
    EC_GROUP_free(group);
    return ok;
}

static EVP_PKEY *key_of_seed(const uint8_t seed[SHOAL_TLS_SEED_BYTES])
{
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    OSSL_PARAM *params = NULL;
    BIGNUM *number = BN_secure_new();
    uint8_t point[65];

    if (ctx != NULL && build != NULL && number != NULL && numbers_of_seed(seed, number, point) &&
        OSSL_PARAM_BLD_push_utf8_string(build, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) == 1 &&
        OSSL_PARAM_BLD_push_octet_string(build, OSSL_PKEY_PARAM_PUB_KEY, point, sizeof(point)) == 1 &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_PRIV_KEY, number) == 1 &&
        (params = OSSL_PARAM_BLD_to_param(build)) != NULL && EVP_PKEY_fromdata_init(ctx) == 1 &&
        EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_KEYPAIR, params) != 1)
        key = NULL;
    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(build);
    BN_clear_free(number);
    EVP_PKEY_CTX_free(ctx);
    return key;
}

/* ---- certificates ---- */

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509_EXTENSION *extension;
    bool ok;

    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    if (extension == NULL)
        return false;
    ok = X509_add_ext(cert, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return ok;
}

static bool add_name(X509 *cert, const char *field, const char *value)
{
    return X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), field, MBSTRING_ASC, (const unsigned char *)value,
                                      (int)strnlen(value, 63), -1, 0) == 1;
}

/* The fields that every certificate of ours has. */
static bool begin_cert(X509 *cert, EVP_PKEY *key, long days, const char *unit, const char *name)
{
    unsigned char serial[16];
    BIGNUM *number;
    bool ok;

    shoal_random(serial, sizeof(serial));
    serial[0] &= 0x7f;
    number = BN_bin2bn(serial, sizeof(serial), NULL);
    ok = number != NULL && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert)) != NULL;
    BN_free(number);
    return ok && X509_set_version(cert, 2) == 1 && X509_gmtime_adj(X509_getm_notBefore(cert), -86400) != NULL &&
           X509_gmtime_adj(X509_getm_notAfter(cert), 86400L * days) != NULL && X509_set_pubkey(cert, key) == 1 &&
           add_name(cert, "O", "Shoal") && (unit == NULL || add_name(cert, "OU", unit)) && add_name(cert, "CN", name);
}

static X509 *make_ca(const struct shoal_tls_names *names, EVP_PKEY *key)
{
    X509 *cert = X509_new();

    if (cert != NULL && begin_cert(cert, key, CA_DAYS, CA_UNIT, names->mesh) &&
        X509_set_issuer_name(cert, X509_get_subject_name(cert)) == 1 &&
        add_extension(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
        add_extension(cert, cert, NID_key_usage, "critical,keyCertSign") &&
        add_extension(cert, cert, NID_subject_key_identifier, "hash") && X509_sign(cert, key, EVP_sha256()) > 0)
        return cert;
    X509_free(cert);
    return NULL;
}

static bool is_address(const char *name)
{
    return strspn(name, "0123456789.") == strlen(name) || strchr(name, ':') != NULL;
}

/* Whether a certificate can say it: a host's name or address, but not "any address". */
static bool name_is_plain(const char *name)
{
    return name != NULL && name[0] != '\0' && strlen(name) < 200 && strcmp(name, "0.0.0.0") != 0 &&
           strcmp(name, "::") != 0 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:") == strlen(name);
}

static void own_name(char *host, size_t cap)
{
    if (gethostname(host, cap - 1) != 0 || !name_is_plain(host))
        (void)snprintf(host, cap, "localhost");
}

static X509 *make_leaf(const struct shoal_tls_names *names, EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key)
{
    X509 *cert = X509_new();
    char host[256] = "";
    char alt[1200];

    own_name(host, sizeof(host));
    (void)snprintf(alt, sizeof(alt), "DNS:localhost,IP:127.0.0.1,IP:::1,DNS:%.200s", host);
    for (unsigned i = 0; i < SHOAL_TLS_NAMES_MAX; i++) {
        size_t len = strlen(alt);

        if (name_is_plain(names->names[i]))
            (void)snprintf(alt + len, sizeof(alt) - len, ",%s:%.200s", is_address(names->names[i]) ? "IP" : "DNS",
                           names->names[i]);
    }
    if (issuer == NULL)
        issuer = cert;
    if (cert != NULL && begin_cert(cert, key, CERT_DAYS, NULL, host) &&
        X509_set_issuer_name(cert, X509_get_subject_name(issuer)) == 1 &&
        add_extension(cert, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
        add_extension(cert, issuer, NID_key_usage, "critical,digitalSignature") &&
        add_extension(cert, issuer, NID_ext_key_usage, "serverAuth") &&
        add_extension(cert, issuer, NID_subject_alt_name, alt) &&
        (issuer == cert || add_extension(cert, issuer, NID_authority_key_identifier, "keyid")) &&
        X509_sign(cert, issuer_key, EVP_sha256()) > 0)
        return cert;
    X509_free(cert);
    return NULL;
}

/* ---- files ---- */

/* The text of one file: a key, or a certificate and perhaps its issuer's behind it. */
struct pem {
    EVP_PKEY *key;
    X509 *cert;
    X509 *issuer;
};

static bool put_pem(FILE *stream, const struct pem *pem)
{
    if (pem->key != NULL)
        return PEM_write_PKCS8PrivateKey(stream, pem->key, NULL, NULL, 0, NULL, NULL) == 1;
    return PEM_write_X509(stream, pem->cert) == 1 && (pem->issuer == NULL || PEM_write_X509(stream, pem->issuer) == 1);
}

/* Writes a PEM file under a temporary name, then gives it its own: a file there is always whole. */
static enum shoal_err write_pem(const char *dir, const char *file, const struct pem *pem, struct shoal_msg *msg)
{
    char path[1024];
    char temporary[1040];
    FILE *stream;
    int fd;
    bool ok;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot be made: %s", dir, strerror(errno));
    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    (void)snprintf(temporary, sizeof(temporary), "%s.new", path);
    (void)unlink(temporary);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, pem->key != NULL ? 0600 : 0644);
    if (fd < 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot be made: %s", temporary, strerror(errno));
    stream = fdopen(fd, "w");
    if (stream == NULL) {
        (void)close(fd);
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: %s", temporary, strerror(errno));
    }
    ok = put_pem(stream, pem);
    ok = fflush(stream) == 0 && fsync(fd) == 0 && ok;
    ok = fclose(stream) == 0 && ok;
    if (!ok || rename(temporary, path) != 0)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: cannot be written: %s", path, strerror(errno));
    return SHOAL_OK;
}

static X509 *read_cert(const char *dir, const char *file)
{
    char path[1024];
    FILE *stream;
    X509 *cert;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    stream = fopen(path, "re");
    if (stream == NULL)
        return NULL;
    cert = PEM_read_X509(stream, NULL, NULL, NULL);
    (void)fclose(stream);
    ERR_clear_error();
    return cert;
}

static bool key_fits(const char *dir, X509 *cert)
{
    char path[1024];
    FILE *stream;
    EVP_PKEY *key;
    bool ok;

    (void)snprintf(path, sizeof(path), "%s/tls.key", dir);
    stream = fopen(path, "re");
    if (stream == NULL)
        return false;
    key = PEM_read_PrivateKey(stream, NULL, NULL, NULL);
    (void)fclose(stream);
    ok = key != NULL && X509_check_private_key(cert, key) == 1;
    EVP_PKEY_free(key);
    ERR_clear_error();
    return ok;
}

/* Not either where it begins in the future: it was made while this host's clock was ahead. */
static bool is_current(X509 *cert)
{
    time_t now = time(NULL);
    time_t then = now + 86400L * RENEW_DAYS;

    return X509_cmp_time(X509_get0_notBefore(cert), &now) < 0 && X509_cmp_time(X509_get0_notAfter(cert), &then) > 0;
}

static bool issuer_is(X509 *cert, const char *field_value, int nid)
{
    char text[128] = "";

    return X509_NAME_get_text_by_NID(X509_get_issuer_name(cert), nid, text, sizeof(text)) > 0 &&
           strcmp(text, field_value) == 0;
}

static bool says_names(X509 *cert, const struct shoal_tls_names *names)
{
    for (unsigned i = 0; i < SHOAL_TLS_NAMES_MAX; i++) {
        const char *name = names->names[i];

        if (!name_is_plain(name))
            continue;
        if ((is_address(name) ? X509_check_ip_asc(cert, name, 0) : X509_check_host(cert, name, 0, 0, NULL)) != 1)
            return false;
    }
    return true;
}

/* A3. */
static bool leaf_stays(const char *dir, const struct shoal_tls_names *names, EVP_PKEY *ca_key)
{
    X509 *cert = read_cert(dir, "tls.crt");
    char path[1024];
    bool stays;

    (void)snprintf(path, sizeof(path), "%s/tls.crt", dir);
    if (cert == NULL)
        return access(path, F_OK) == 0; /* what cannot be read is said when it is loaded */
    stays = !issuer_is(cert, "Shoal", NID_organizationName) ||
            (is_current(cert) && says_names(cert, names) && key_fits(dir, cert) &&
             (ca_key == NULL || X509_verify(cert, ca_key) == 1));
    X509_free(cert);
    ERR_clear_error();
    return stays;
}

/* ---- the contract ---- */

static bool fingerprint_of(X509 *cert, char text[SHOAL_FINGERPRINT_TEXT_BYTES])
{
    uint8_t digest[32];
    unsigned char *der = NULL;
    int len = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(cert), &der);
    bool ok = len > 0 && EVP_Digest(der, (size_t)len, digest, NULL, EVP_sha256(), NULL) == 1;

    OPENSSL_free(der);
    if (!ok)
        return false;
    memcpy(text, "sha256:", 7);
    shoal_hex_text(digest, sizeof(digest), text + 7);
    return true;
}

static enum shoal_err ready_ca(const char *dir, const struct shoal_tls_names *names, EVP_PKEY *key, X509 **cert,
                               struct shoal_msg *msg)
{
    X509 *there = dir == NULL ? NULL : read_cert(dir, "ca.crt");
    enum shoal_err err = SHOAL_OK;

    if (there == NULL || X509_verify(there, key) != 1 || !is_current(there)) {
        X509_free(there);
        there = make_ca(names, key);
        if (there == NULL)
            err = cert_fail(msg, "cannot make the mesh's certificate");
        else if (dir != NULL)
            err = write_pem(dir, "ca.crt", &(struct pem){ .cert = there }, msg);
    }
    if (err != SHOAL_OK)
        X509_free(there);
    else
        *cert = there;
    return err;
}

enum shoal_err shoal_tls_ca_ready(const char *dir, const struct shoal_tls_names *names,
                                  char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES], struct shoal_msg *msg)
{
    EVP_PKEY *key = key_of_seed(names->seed);
    X509 *cert = NULL;
    enum shoal_err err =
        key == NULL ? cert_fail(msg, "cannot make the mesh's key") : ready_ca(dir, names, key, &cert, msg);

    if (err == SHOAL_OK && !fingerprint_of(cert, fingerprint))
        err = cert_fail(msg, "no fingerprint");
    X509_free(cert);
    EVP_PKEY_free(key);
    return err;
}

enum shoal_err tls_cert_ready(const char *dir, const struct shoal_tls_names *names, struct shoal_msg *msg)
{
    EVP_PKEY *ca_key = names->mesh == NULL ? NULL : key_of_seed(names->seed);
    X509 *ca = NULL;
    EVP_PKEY *key = NULL;
    X509 *cert = NULL;
    enum shoal_err err = SHOAL_OK;

    if (names->mesh != NULL && ca_key == NULL)
        err = cert_fail(msg, "cannot make the mesh's key");
    else if (names->mesh != NULL)
        err = ready_ca(dir, names, ca_key, &ca, msg);
    if (err != SHOAL_OK || leaf_stays(dir, names, ca_key))
        goto out;
    key = EVP_EC_gen("P-256");
    if (key != NULL)
        cert = make_leaf(names, key, ca, ca == NULL ? key : ca_key);
    if (cert == NULL) {
        err = cert_fail(msg, "cannot make a certificate");
        goto out;
    }
    err = write_pem(dir, "tls.key", &(struct pem){ .key = key }, msg);
    if (err == SHOAL_OK)
        err = write_pem(dir, "tls.crt", &(struct pem){ .cert = cert, .issuer = ca }, msg);
out:
    X509_free(cert);
    EVP_PKEY_free(key);
    X509_free(ca);
    EVP_PKEY_free(ca_key);
    return err;
}
