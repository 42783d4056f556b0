#include "passwords_uv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define PASSWORDS_THREADS 2
#define PASSWORDS_NICE 10
#define STACK_BYTES ((size_t)256 * SHOAL_KIB)
_Static_assert(SHOAL_LOGONS_MAX * sizeof(void *) <= 4096,
               "a pipe holds the pointers of all checks: no write to it waits");

struct check {
    char password[SHOAL_PASSWORD_BYTES_MAX + 1];
    char hash[SHOAL_PASSWORD_HASH_BYTES];
    bool good;
    passwords_fn *done;
    void *arg;
};

struct passwords {
    uv_poll_t poll;
    int ask[2];  /* the loop writes, threads read */
    int tell[2]; /* threads write, the loop reads */
};

/* A pointer is written whole, or not at all. */
static bool take(int fd, struct check **check)
{
    ssize_t got;

    do {
        got = read(fd, check, sizeof(*check)); /* NOLINT(bugprone-sizeof-expression): the pointer itself is sent */
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof(*check);
}

static void give(int fd, struct check *check)
{
    ssize_t put;

    do {
        put = write(fd, &check, sizeof(check)); /* NOLINT(bugprone-sizeof-expression): the pointer itself is sent */
    } while (put < 0 && errno == EINTR);
    SHOAL_ASSERT(put == (ssize_t)sizeof(check)); /* P2: see the assertion above */
}

static void *check_run(void *arg)
{
    struct passwords *passwords = arg;
    struct check *check;

    (void)setpriority(PRIO_PROCESS, 0, PASSWORDS_NICE); /* P1: of this thread alone */
    while (take(passwords->ask[0], &check)) {
        check->good = shoal_password_verify(shoal_view_text(check->password), check->hash);
        shoal_wipe(check->password, sizeof(check->password));
        give(passwords->tell[1], check);
    }
    return NULL;
}

static void on_told(uv_poll_t *poll, int status, int events)
{
    struct passwords *passwords = poll->data;
    struct check *check;

    (void)status;
    (void)events;
    for (unsigned i = 0; i < SHOAL_LOGONS_MAX && take(passwords->tell[0], &check); i++) {
        passwords_fn *done = check->done;
        void *done_arg = check->arg;
        bool good = check->good;

        free(check);
        done(done_arg, good);
    }
}

static bool start_threads(struct passwords *passwords)
{
    struct sched_param param = { .sched_priority = 0 };
    pthread_attr_t attr;
    pthread_t thread;
    unsigned started = 0;

    if (pthread_attr_init(&attr) != 0)
        return false;
    (void)pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
    (void)pthread_attr_setschedpolicy(&attr, SCHED_OTHER);
    (void)pthread_attr_setschedparam(&attr, &param);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (unsigned i = 0; i < PASSWORDS_THREADS; i++) {
        if (pthread_create(&thread, &attr, check_run, passwords) != 0)
            continue;
        (void)pthread_setname_np(thread, "passwords");
        started++;
    }
    (void)pthread_attr_destroy(&attr);
    return started > 0;
}

static struct passwords *passwords_create(uv_loop_t *loop)
{
    struct passwords *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return NULL;
    if (pipe2(made->ask, O_CLOEXEC) != 0)
        goto free_made;
    if (pipe2(made->tell, O_CLOEXEC) != 0)
        goto close_ask;
    if (fcntl(made->tell[0], F_SETFL, O_NONBLOCK) != 0 || uv_poll_init(loop, &made->poll, made->tell[0]) != 0)
        goto close_tell;
    made->poll.data = made;
    /* Once a thread has started, the pipes are its own: nothing is taken back from here on. */
    if (uv_poll_start(&made->poll, UV_READABLE, on_told) != 0 || !start_threads(made))
        (void)uv_poll_stop(&made->poll);
    else
        return made;
    uv_close((uv_handle_t *)&made->poll, NULL);
    (void)close(made->ask[0]);
    (void)close(made->ask[1]);
    (void)close(made->tell[1]);
    return NULL; /* the handle, and so its end of the pipe, is the loop's until it has closed */
close_tell:
    (void)close(made->tell[0]);
    (void)close(made->tell[1]);
close_ask:
    (void)close(made->ask[0]);
    (void)close(made->ask[1]);
free_made:
    free(made);
    return NULL;
}

enum shoal_err passwords_check(struct passwords **passwords, uv_loop_t *loop, const char *password, const char *hash,
                               passwords_fn *done, void *arg)
{
    struct check *check;

    SHOAL_ASSERT(strlen(password) <= SHOAL_PASSWORD_BYTES_MAX && strlen(hash) < SHOAL_PASSWORD_HASH_BYTES);
    if (*passwords == NULL)
        *passwords = passwords_create(loop);
    if (*passwords == NULL || (check = calloc(1, sizeof(*check))) == NULL)
        return SHOAL_ERR_FULL;
    check->done = done;
    check->arg = arg;
    memcpy(check->password, password, strlen(password) + 1);
    memcpy(check->hash, hash, strlen(hash) + 1);
    give((*passwords)->ask[1], check);
    return SHOAL_OK;
}
