/* Durable submits over kept HTTPS connections: as many clients as asked for, spread over the nodes, each with one
 * submit under way at a time. Every bundle is another one (a number stands in it), and every job stays pending, since
 * it asks for a device that no node has. Prints one line: submits, seconds, rate, p50, p99 and worst in milliseconds,
 * refusals.
 *
 *   submit TOKEN_FILE clients=8 seconds=3 warm=8 PORT [PORT ...]      (all on 127.0.0.1)
 *
 * count=N run=PROGRAM: N submits in all and no warm ones, of jobs that run PROGRAM on any slot; what a node refuses
 * with 503 is sent again after 10 ms. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shoal/banned.h"

#define CLIENTS_MAX 64
#define PORTS_MAX 16
#define SAMPLES_MAX (1u << 20)
#define TOKEN_MAX 1024
#define ANSWER_MAX 65536

struct bench {
    char token[TOKEN_MAX];
    uint16_t ports[PORTS_MAX];
    unsigned port_count;
    unsigned clients;
    unsigned warm; /* submits of each client that do not count */
    uint64_t seconds;
    uint64_t count;      /* of all clients, instead of seconds */
    const char *program; /* what the jobs run, instead of a script that waits for a device */
    uint64_t salt; /* no two runs submit the same */
    uint64_t end_ns;
    SSL_CTX *tls;
    pthread_barrier_t ready;
    pthread_mutex_t lock;
    uint64_t *samples;
    size_t sample_count;
    size_t refused;
    char refusal[200];
};

struct client {
    struct bench *bench;
    unsigned number;
    uint64_t next;
    SSL *tls;
    char request[4096];
    char answer[ANSWER_MAX];
};

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    (void)fprintf(stderr, "submit: %s: %s\n", what, strerror(errno));
    ERR_print_errors_fp(stderr);
    exit(1);
}

static void connect_client(struct client *client)
{
    const struct bench *bench = client->bench;
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons(bench->ports[client->number % bench->port_count]) };
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof(at)) != 0)
        die("connect");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    client->tls = SSL_new(bench->tls);
    if (client->tls == NULL || SSL_set_fd(client->tls, fd) != 1 || SSL_connect(client->tls) != 1)
        die("TLS");
}

static int make_run(struct client *client)
{
    char body[1024];
    int body_len = snprintf(body, sizeof(body),
                            "--shoal\r\nContent-Disposition: form-data; name=\"data\"\r\n\r\n"
                            "{\"args\": \"--exec-start PyTorch --user-cmd -- %.500s\"}\r\n--shoal--\r\n",
                            client->bench->program);

    return snprintf(client->request, sizeof(client->request),
                    "POST /platform/rest/deeplearning/v1/execs HTTP/1.1\r\nHost: localhost\r\n"
                    "Authorization: Bearer %s\r\nContent-Type: multipart/form-data; boundary=shoal\r\n"
                    "Content-Length: %d\r\n\r\n%s",
                    client->bench->token, body_len, body);
}

static int make_request(struct client *client)
{
    const struct bench *bench = client->bench;
    char script[128];
    char body[1024];
    int script_len = snprintf(script, sizeof(script), "print('%016" PRIx64 " %u %" PRIu64 "')\n", bench->salt,
                              client->number, client->next++);
    int body_len = snprintf(body, sizeof(body),
                            "--shoal\r\nContent-Disposition: form-data; name=\"file\"; filename=\"main.py\"\r\n"
                            "Content-Type: application/octet-stream\r\n\r\n%.*s\r\n--shoal--\r\n",
                            script_len, script);

    return snprintf(
        client->request, sizeof(client->request),
        "POST /platform/rest/deeplearning/v1/execs?args=--exec-start%%20PyTorch%%20--workerDeviceType%%20gpu%%20"
        "--model-main%%20main.py HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
        "Content-Type: multipart/form-data; boundary=shoal\r\nContent-Length: %d\r\n\r\n%s",
        bench->token, body_len, body);
}

/* The status of one answer whose body is Content-Length long. */
static int read_answer(struct client *client)
{
    size_t len = 0;

    for (;;) {
        int got = SSL_read(client->tls, client->answer + len, (int)(ANSWER_MAX - 1 - len));
        const char *end;
        const char *length;

        if (got <= 0)
            die("the node closed the connection");
        len += (size_t)got;
        client->answer[len] = '\0';
        end = strstr(client->answer, "\r\n\r\n");
        length = strcasestr(client->answer, "content-length:");
        if (end == NULL)
            continue;
        if (length == NULL || length > end)
            die("an answer without a length");
        if (len >= (size_t)(end + 4 - client->answer) + strtoull(length + 15, NULL, 10))
            return atoi(client->answer + 9);
    }
}

static void count(struct bench *bench, const struct client *client, int status, uint64_t took)
{
    (void)pthread_mutex_lock(&bench->lock);
    if (status == 200 && bench->sample_count < SAMPLES_MAX)
        bench->samples[bench->sample_count++] = took;
    if (status != 200 && bench->refused++ == 0) {
        const char *text = strstr(client->answer, "\r\n\r\n");

        (void)snprintf(bench->refusal, sizeof(bench->refusal), "%d %.150s", status, text == NULL ? "" : text + 4);
    }
    (void)pthread_mutex_unlock(&bench->lock);
}

/* The answer to a request of `len` bytes, sent again while the node says: later. */
static int ask(struct client *client, int len)
{
    for (unsigned i = 0;; i++) {
        const struct timespec pause = { .tv_nsec = 10000000 };
        int status;

        if (SSL_write(client->tls, client->request, len) != len)
            die("write");
        status = read_answer(client);
        if (status != 503 || client->bench->count == 0 || i == 2000)
            return status;
        (void)nanosleep(&pause, NULL);
    }
}

/* This client's share of `count` submits. */
static void run_counted(struct client *client)
{
    struct bench *bench = client->bench;

    (void)pthread_barrier_wait(&bench->ready);
    (void)pthread_barrier_wait(&bench->ready);
    for (uint64_t i = client->number; i < bench->count; i += bench->clients) {
        int len = make_run(client);
        uint64_t begin = now_ns();
        int status = ask(client, len);

        count(bench, client, status, now_ns() - begin);
    }
}

static void *run_client(void *arg)
{
    struct client *client = arg;
    struct bench *bench = client->bench;

    connect_client(client);
    if (bench->count > 0) {
        run_counted(client);
        return NULL;
    }
    for (unsigned i = 0;; i++) {
        int len = make_request(client);
        uint64_t begin;
        int status;

        if (i == bench->warm) {
            (void)pthread_barrier_wait(&bench->ready); /* main sets the end */
            (void)pthread_barrier_wait(&bench->ready);
        }
        begin = now_ns();
        if (i >= bench->warm && begin >= bench->end_ns)
            return NULL;
        status = ask(client, len);
        if (i >= bench->warm)
            count(bench, client, status, now_ns() - begin);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void read_options(struct bench *bench, int argc, char **argv)
{
    FILE *file = argc > 1 ? fopen(argv[1], "r") : NULL;

    if (file == NULL || fscanf(file, "%1023s", bench->token) != 1)
        die("the token file");
    (void)fclose(file);
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "clients=", 8) == 0)
            bench->clients = (unsigned)strtoul(argv[i] + 8, NULL, 10);
        else if (strncmp(argv[i], "seconds=", 8) == 0)
            bench->seconds = strtoull(argv[i] + 8, NULL, 10);
        else if (strncmp(argv[i], "warm=", 5) == 0)
            bench->warm = (unsigned)strtoul(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "count=", 6) == 0)
            bench->count = strtoull(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "run=", 4) == 0)
            bench->program = argv[i] + 4;
        else if (bench->port_count < PORTS_MAX)
            bench->ports[bench->port_count++] = (uint16_t)strtoul(argv[i], NULL, 10);
    }
    if (bench->port_count == 0 || bench->clients < 1 || bench->clients > CLIENTS_MAX ||
        (bench->count > 0) != (bench->program != NULL))
        die("submit TOKEN_FILE [clients=8] [seconds=3] [warm=8] [count=N run=PROGRAM] PORT ...");
}

int main(int argc, char **argv)
{
    static struct bench bench = { .clients = 8, .seconds = 3, .warm = 8 };
    pthread_t threads[CLIENTS_MAX];
    uint64_t begin;
    double took;

    read_options(&bench, argc, argv);
    bench.samples = calloc(SAMPLES_MAX, sizeof(*bench.samples));
    bench.tls = SSL_CTX_new(TLS_client_method()); /* loopback, a certificate of the node's own making: not verified */
    if (bench.samples == NULL || bench.tls == NULL ||
        getrandom(&bench.salt, sizeof(bench.salt), 0) != sizeof(bench.salt))
        die("start");
    (void)pthread_mutex_init(&bench.lock, NULL);
    (void)pthread_barrier_init(&bench.ready, NULL, bench.clients + 1);
    for (unsigned i = 0; i < bench.clients; i++) {
        struct client *client = calloc(1, sizeof(*client));

        if (client == NULL)
            die("memory");
        client->bench = &bench;
        client->number = i;
        if (pthread_create(&threads[i], NULL, run_client, client) != 0)
            die("thread");
    }
    (void)pthread_barrier_wait(&bench.ready);
    begin = now_ns();
    bench.end_ns = begin + bench.seconds * 1000000000u;
    (void)pthread_barrier_wait(&bench.ready);
    for (unsigned i = 0; i < bench.clients; i++)
        (void)pthread_join(threads[i], NULL);
    took = (double)(now_ns() - begin) / 1e9;
    qsort(bench.samples, bench.sample_count, sizeof(*bench.samples), by_value);
    if (bench.sample_count == 0)
        bench.samples[bench.sample_count++] = 0;
    (void)printf("submits %zu seconds %.3f rate %.1f p50 %.3f p99 %.3f worst %.3f refused %zu %s\n", bench.sample_count,
                 took, (double)bench.sample_count / took, (double)bench.samples[bench.sample_count / 2] / 1e6,
                 (double)bench.samples[bench.sample_count * 99 / 100] / 1e6,
                 (double)bench.samples[bench.sample_count - 1] / 1e6, bench.refused, bench.refusal);
    return 0;
}
