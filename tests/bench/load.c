/* A load of HTTP requests over kept connections, one thread, one request a connection at a time: the next one when the
 * answer is there, or, with rate=, at its own time whatever the answers do (then times count from when it was due, so a
 * server that stands still is seen). Prints one line of `name value` pairs, times in microseconds.
 *
 *   load PORT [PORT ...] path=/v2/models/echo/infer [clients=1] [seconds=3] [warm=200] [rate=1000] [ramp=1] [tls=1]
 *        [token=FILE] [body=FILE] [type=application/json]              (all on 127.0.0.1)
 *
 * warm: requests of each client that do not count. ramp: the rate rises from 0 to `rate`. A connection that breaks is counted,
 * with its request, and made again to the next port. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shoal/banned.h"

#define CLIENTS_MAX 1024
#define PORTS_MAX 16
#define SAMPLES_MAX (4u << 20)
#define BODY_MAX (8u << 20)
#define ANSWER_MAX (9u << 20)
#define NS 1000000000u

struct client {
    int fd;
    unsigned port;
    SSL *tls;
    bool busy;
    uint64_t begun_ns, count;
    char *answer;
    size_t answer_len, answer_cap;
};

struct load {
    unsigned ports[PORTS_MAX], port_count, clients;
    uint64_t seconds, warm, rate;
    bool ramp, tls, begun;
    const char *path, *type, *token_file, *body_file;
    char *request;
    size_t request_len;
    SSL_CTX *context;
    int epoll;
    struct client client[CLIENTS_MAX];
    uint64_t begin_ns, end_ns, due, late;
    uint32_t *samples; /* in units of 100 ns */
    size_t sample_count;
    uint64_t refused, broken;
    char refusal[200];
};

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    (void)fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- a connection ---- */

static bool dial(struct load *load, struct client *c)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)load->ports[c->port]) };
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
    int one = 1;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    c->answer_len = 0;
    c->busy = false;
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&at, sizeof(at)) != 0)
        return false;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (load->tls) {
        c->tls = SSL_new(load->context);
        if (c->tls == NULL || SSL_set_fd(c->tls, c->fd) != 1 || SSL_connect(c->tls) != 1)
            return false;
    }
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) != 0)
        return false;
    return epoll_ctl(load->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0;
}

static void hang_up(struct client *c)
{
    SSL_free(c->tls);
    c->tls = NULL;
    if (c->fd >= 0)
        (void)close(c->fd);
    c->fd = -1;
}

/* To the next port that takes it. */
static void dial_again(struct load *load, struct client *c)
{
    hang_up(c);
    for (unsigned i = 0; i < load->port_count; i++) {
        c->port = (c->port + 1) % load->port_count;
        if (dial(load, c))
            return;
        hang_up(c);
    }
    die("no port takes a connection");
}

static ssize_t read_some(struct client *c, char *to, size_t cap)
{
    size_t got = 0;

    if (c->tls == NULL)
        return read(c->fd, to, cap);
    if (SSL_read_ex(c->tls, to, cap, &got) == 1)
        return (ssize_t)got;
    errno = SSL_get_error(c->tls, 0) == SSL_ERROR_WANT_READ ? EAGAIN : ECONNRESET;
    return -1;
}

/* A request fits the socket's buffer or waits for it: what is measured is the other side. */
static bool write_all(struct client *c, const char *bytes, size_t len)
{
    while (len > 0) {
        size_t put = 0;
        ssize_t n = c->tls == NULL ? write(c->fd, bytes, len) :
                    SSL_write_ex(c->tls, bytes, len, &put) == 1 ? (ssize_t)put : -1;

        if (n < 0 && c->tls == NULL && errno != EAGAIN)
            return false;
        if (n < 0 && c->tls != NULL && SSL_get_error(c->tls, 0) != SSL_ERROR_WANT_WRITE)
            return false;
        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
        }
    }
    return true;
}

/* ---- requests ---- */

static void broke(struct load *load, struct client *c)
{
    load->broken++;
    dial_again(load, c);
}

static void ask(struct load *load, struct client *c, uint64_t since_ns)
{
    c->busy = true;
    c->begun_ns = since_ns;
    c->answer_len = 0;
    if (!write_all(c, load->request, load->request_len))
        broke(load, c);
}

static void count(struct load *load, struct client *c, int status)
{
    uint64_t now = now_ns();

    c->busy = false;
    c->count++;
    if (!load->begun || now > load->end_ns + 10ull * NS)
        return;
    if (status == 200 && load->sample_count < SAMPLES_MAX)
        load->samples[load->sample_count++] = (uint32_t)((now - c->begun_ns) / 100);
    if (status != 200 && load->refused++ == 0)
        (void)snprintf(load->refusal, sizeof(load->refusal), "%d %.150s", status, strstr(c->answer, "\r\n\r\n") + 4);
}

/* The status of a whole answer; 0: more is to come; -1: it has no length. */
static int status_of(const struct client *c)
{
    const char *end = strstr(c->answer, "\r\n\r\n");
    const char *length;

    if (end == NULL)
        return 0;
    length = strcasestr(c->answer, "transfer-encoding: chunked");
    if (length != NULL && length < end)
        return strstr(end, "\r\n0\r\n\r\n") == NULL ? 0 : atoi(c->answer + 9);
    length = strcasestr(c->answer, "content-length:");
    if (length == NULL || length > end)
        return -1;
    if (c->answer_len < (size_t)(end + 4 - c->answer) + strtoull(length + 15, NULL, 10))
        return 0;
    return atoi(c->answer + 9);
}

static void hear(struct load *load, struct client *c)
{
    for (;;) {
        ssize_t got;
        int status;

        if (c->answer_cap - c->answer_len < 2) {
            c->answer_cap = c->answer_cap == 0 ? 16384 : c->answer_cap * 2;
            c->answer = c->answer_cap > ANSWER_MAX * 2 ? NULL : realloc(c->answer, c->answer_cap);
            if (c->answer == NULL)
                die("an answer's memory");
        }
        got = read_some(c, c->answer + c->answer_len, c->answer_cap - 1 - c->answer_len);
        if (got < 0 && errno == EAGAIN)
            return;
        if (got <= 0) {
            broke(load, c);
            return;
        }
        c->answer_len += (size_t)got;
        c->answer[c->answer_len] = '\0';
        status = status_of(c);
        if (status < 0)
            die("an answer without a length");
        if (status > 0) {
            count(load, c, status);
            return;
        }
    }
}

/* With a rate: how many are due by now. */
static uint64_t due_by(const struct load *load, uint64_t now)
{
    double t = (double)(now - load->begin_ns) / NS, all = (double)load->seconds;

    if (now >= load->end_ns)
        t = all;
    return (uint64_t)((double)load->rate * (load->ramp ? t * t / (2 * all) : t));
}

static uint64_t due_at(const struct load *load, uint64_t number)
{
    double all = (double)load->seconds, n = (double)number / (double)load->rate;
    double low = 0, high = all;

    if (!load->ramp)
        return load->begin_ns + (uint64_t)(n * NS);
    for (unsigned i = 0; i < 50; i++) {
        double t = (low + high) / 2;

        if (t * t / (2 * all) < n)
            low = t;
        else
            high = t;
    }
    return load->begin_ns + (uint64_t)(high * NS);
}

static void ask_what_is_due(struct load *load, uint64_t now)
{
    uint64_t due = due_by(load, now);

    for (unsigned i = 0; i < load->clients && load->due < due; i++)
        if (!load->client[i].busy) {
            load->due++;
            ask(load, &load->client[i], due_at(load, load->due));
        }
}

static bool any_busy(const struct load *load)
{
    for (unsigned i = 0; i < load->clients; i++)
        if (load->client[i].busy)
            return true;
    return false;
}

static void turn(struct load *load, bool more)
{
    struct epoll_event events[64];
    int found = epoll_wait(load->epoll, events, 64, load->rate > 0 && load->begun ? 1 : 100);

    for (int i = 0; i < found; i++) {
        struct client *c = events[i].data.ptr;

        if (!c->busy) { /* it was closed while it waited: no request of it */
            char byte;

            if (read_some(c, &byte, 1) == 0)
                dial_again(load, c);
            continue;
        }
        hear(load, c);
    }
    if (load->rate > 0 && load->begun) {
        ask_what_is_due(load, now_ns());
        return;
    }
    for (unsigned i = 0; i < load->clients && more; i++)
        if (!load->client[i].busy && (load->begun || load->client[i].count < load->warm))
            ask(load, &load->client[i], now_ns());
}

static void run(struct load *load)
{
    bool warm = load->warm > 0;

    while (warm || any_busy(load)) {
        warm = false;
        for (unsigned i = 0; i < load->clients; i++)
            warm = warm || load->client[i].count < load->warm;
        turn(load, warm);
    }
    load->begin_ns = now_ns();
    load->end_ns = load->begin_ns + load->seconds * NS;
    load->begun = true;
    load->broken = 0;
    while (now_ns() < load->end_ns)
        turn(load, true);
    load->late = load->rate > 0 ? due_by(load, load->end_ns) - load->due : 0;
    load->rate = 0;
    for (uint64_t until = now_ns() + 5ull * NS; any_busy(load) && now_ns() < until;)
        turn(load, false);
}

/* ---- options ---- */

static char *read_file(const char *path, size_t cap, size_t *len)
{
    FILE *file = fopen(path, "rb");
    char *bytes = calloc(1, cap + 1);

    if (file == NULL || bytes == NULL)
        die(path);
    *len = fread(bytes, 1, cap, file);
    (void)fclose(file);
    return bytes;
}

static void make_request(struct load *load)
{
    size_t body_len = 0, token_len = 0, cap;
    char *body = load->body_file == NULL ? NULL : read_file(load->body_file, BODY_MAX, &body_len);
    char *token = load->token_file == NULL ? NULL : read_file(load->token_file, 4096, &token_len);
    int head;

    if (token != NULL)
        token[strcspn(token, "\r\n")] = '\0';
    cap = body_len + token_len + 1024;
    load->request = calloc(1, cap);
    if (load->request == NULL)
        die("memory");
    head = snprintf(load->request, cap, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n%s%s%sContent-Length: %zu\r\n\r\n",
                    load->path, load->type, token == NULL ? "" : "Authorization: Bearer ", token == NULL ? "" : token,
                    token == NULL ? "" : "\r\n", body_len);
    if (body_len > 0)
        memcpy(load->request + head, body, body_len);
    load->request_len = (size_t)head + body_len;
    free(body);
    free(token);
}

static bool option(const char *word, const char *name, const char **value)
{
    size_t len = strlen(name);

    if (strncmp(word, name, len) != 0 || word[len] != '=')
        return false;
    *value = word + len + 1;
    return true;
}

static void read_options(struct load *load, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *v = NULL;

        if (option(argv[i], "clients", &v))
            load->clients = (unsigned)strtoul(v, NULL, 10);
        else if (option(argv[i], "seconds", &v))
            load->seconds = strtoull(v, NULL, 10);
        else if (option(argv[i], "warm", &v))
            load->warm = strtoull(v, NULL, 10);
        else if (option(argv[i], "rate", &v))
            load->rate = strtoull(v, NULL, 10);
        else if (option(argv[i], "ramp", &v))
            load->ramp = v[0] == '1';
        else if (option(argv[i], "tls", &v))
            load->tls = v[0] == '1';
        else if (!option(argv[i], "path", &load->path) && !option(argv[i], "type", &load->type) &&
                 !option(argv[i], "token", &load->token_file) && !option(argv[i], "body", &load->body_file) &&
                 load->port_count < PORTS_MAX)
            load->ports[load->port_count++] = (unsigned)strtoul(argv[i], NULL, 10);
    }
    if (load->port_count == 0 || load->clients < 1 || load->clients > CLIENTS_MAX || load->seconds == 0)
        die("load PORT ... path=/ clients=1 seconds=3");
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static double at_share(const struct load *load, unsigned per_mille)
{
    return load->sample_count == 0 ? 0 : (double)load->samples[(load->sample_count - 1) * per_mille / 1000] / 10;
}

int main(int argc, char **argv)
{
    static struct load load = { .clients = 1, .seconds = 3, .warm = 200, .path = "/", .type = "application/json" };
    struct rusage used;
    double took;

    read_options(&load, argc, argv);
    make_request(&load);
    load.samples = calloc(SAMPLES_MAX, sizeof(*load.samples));
    load.context = SSL_CTX_new(TLS_client_method()); /* loopback, a certificate of the node's own making: not verified */
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (load.samples == NULL || load.context == NULL || load.epoll < 0)
        die("start");
    for (unsigned i = 0; i < load.clients; i++) {
        load.client[i].port = i % load.port_count;
        if (!dial(&load, &load.client[i]))
            die("connect");
    }
    run(&load);
    took = (double)(now_ns() - load.begin_ns) / NS;
    qsort(load.samples, load.sample_count, sizeof(*load.samples), by_value);
    (void)getrusage(RUSAGE_SELF, &used);
    (void)printf("requests %zu seconds %.3f rate %.1f p50 %.1f p95 %.1f p99 %.1f worst %.1f refused %" PRIu64 " broken %" PRIu64
                 " late %" PRIu64 " cpu %.3f %s\n",
                 load.sample_count, took, (double)load.sample_count / took, at_share(&load, 500), at_share(&load, 950),
                 at_share(&load, 990), at_share(&load, 1000), load.refused, load.broken, load.late,
                 (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6,
                 load.refusal);
    return 0;
}
