/* Certificates of a mesh and time (tls_cert_openssl.c): the clock of this program is its own. */
#include "api/http/tls_openssl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/http.h"

#define DAY 86400
#define NOW (20000 * (time_t)DAY)

static time_t clock_s = NOW;

/* OpenSSL's and ours. */
__attribute__((visibility("default"))) time_t time(time_t *at);
time_t time(time_t *at)
{
    if (at != NULL)
        *at = clock_s;
    return clock_s;
}

static char folder[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/shoal-cert-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    static const char *const names[] = { "ca.crt", "tls.crt", "tls.key" };
    char path[96];

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

static size_t content_of(const char *name, char *text, size_t cap)
{
    char path[96];
    ssize_t len;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    len = read(fd, text, cap);
    (void)close(fd);
    assert_true(len > 0);
    return (size_t)len;
}

static bool same_after(const struct shoal_tls_names *names, time_t made, time_t looked, const char *file)
{
    char before[8192], after[8192];
    struct shoal_msg msg;
    size_t len;

    (void)teardown(NULL);
    assert_int_equal(setup(NULL), 0);
    clock_s = made;
    assert_int_equal(tls_cert_ready(folder, names, &msg), SHOAL_OK);
    len = content_of(file, before, sizeof(before));
    clock_s = looked;
    assert_int_equal(tls_cert_ready(folder, names, &msg), SHOAL_OK);
    return content_of(file, after, sizeof(after)) == len && memcmp(before, after, len) == 0;
}

static void test_certificates_stay_while_they_hold_and_are_made_anew_where_they_do_not(void **state)
{
    static const struct {
        const char *name;
        time_t made, looked;
        bool leaf, ca; /* stays */
    } rows[] = {
        { "made a moment ago", NOW, NOW + 1, true, true },
        { "made while the clock was half a day ahead", NOW + DAY / 2, NOW, true, true },
        { "made while the clock was ten years ahead", NOW + 3650 * (time_t)DAY, NOW, false, false },
        { "made when the clock began anew", 0, NOW, false, false },
        { "within its last year", NOW, NOW + 3300 * (time_t)DAY, false, true },
    };
    const struct shoal_tls_names names = { .mesh = "lab", .seed = { 7 }, .names = { "alpha", "10.0.0.1", NULL } };

    (void)state;
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (same_after(&names, rows[i].made, rows[i].looked, "tls.crt") != rows[i].leaf)
            fail_msg("%s: the node's certificate %s", rows[i].name, rows[i].leaf ? "was made anew" : "stays");
        if (same_after(&names, rows[i].made, rows[i].looked, "ca.crt") != rows[i].ca)
            fail_msg("%s: the CA's certificate %s", rows[i].name, rows[i].ca ? "was made anew" : "stays");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_certificates_stay_while_they_hold_and_are_made_anew_where_they_do_not, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
