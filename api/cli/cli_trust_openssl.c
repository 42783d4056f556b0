/* Certificates as the command line reads them: whose they are, and the fingerprint that people compare. */
#include "cli_internal.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "shoal/ids.h"

#include "shoal/banned.h"

static bool name_part_is(X509_NAME *name, int nid, const char *wanted)
{
    char text[128] = "";

    return X509_NAME_get_text_by_NID(name, nid, text, sizeof(text)) > 0 && strcmp(text, wanted) == 0;
}

/* The certificate of a mesh's CA (decision 0020): it vouches for that mesh's nodes and for nobody else. */
static bool is_mesh_ca(X509 *cert)
{
    X509_NAME *name = X509_get_subject_name(cert);
    EVP_PKEY *key = X509_get0_pubkey(cert);

    return X509_check_ca(cert) == 1 && name_part_is(name, NID_organizationName, "Shoal") &&
           name_part_is(name, NID_organizationalUnitName, "mesh CA") && key != NULL && X509_verify(cert, key) == 1;
}

static bool describe(X509 *cert, struct cli_trust *trust)
{
    uint8_t digest[32];
    unsigned char *der = NULL;
    char *bytes = NULL;
    BIO *out = BIO_new(BIO_s_mem());
    int der_len = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(cert), &der);
    long len = out != NULL && PEM_write_bio_X509(out, cert) == 1 ? BIO_get_mem_data(out, &bytes) : 0;
    bool ok = der_len > 0 && EVP_Digest(der, (size_t)der_len, digest, NULL, EVP_sha256(), NULL) == 1 && len > 0 &&
              (size_t)len < sizeof(trust->pem);

    if (ok) {
        memcpy(trust->pem, bytes, (size_t)len);
        trust->pem[len] = '\0';
        memcpy(trust->fingerprint, "sha256:", 7);
        shoal_hex_text(digest, sizeof(digest), trust->fingerprint + 7);
        trust->is_mesh = is_mesh_ca(cert);
        (void)X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, trust->name, sizeof(trust->name));
        for (char *at = trust->name; *at != '\0'; at++)
            if (*at < 0x20 || *at > 0x7e)
                *at = '?';
    }
    BIO_free(out);
    OPENSSL_free(der);
    return ok;
}

bool cli_trust_read(const char *pem, size_t len, struct cli_trust *trust)
{
    BIO *in = len > INT32_MAX ? NULL : BIO_new_mem_buf(pem, (int)len);
    X509 *first = in == NULL ? NULL : PEM_read_bio_X509(in, NULL, NULL, NULL);
    X509 *last = NULL;
    X509 *next;
    bool ok;

    *trust = (struct cli_trust){ .count = first != NULL };
    while (first != NULL && trust->count < CLI_CHAIN_MAX && (next = PEM_read_bio_X509(in, NULL, NULL, NULL)) != NULL) {
        X509_free(last);
        last = next;
        trust->count++;
    }
    ok = first != NULL && describe(last != NULL && is_mesh_ca(last) ? last : first, trust);
    X509_free(last);
    X509_free(first);
    BIO_free(in);
    ERR_clear_error();
    return ok;
}
