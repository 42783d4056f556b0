#include "agent_out.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define FLUSH_MS 1000u
#define LOOK_MS 2u
#define LOST_BYTES 100u /* kept free for the line that says how many were lost */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uint8_t *bytes; /* a ring; what the thread writes stays in it until it is written */
    size_t first;
    atomic_size_t count; /* read without the lock by flush() */
    uint64_t lost;
    int fd;
} out = { .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };

/* There is room. */
static void put(const char *text, size_t len)
{
    size_t at = (out.first + out.count) % SHOAL_LOG_WAITS_BYTES;
    size_t before_end = SHOAL_LOG_WAITS_BYTES - at;
    size_t head = len < before_end ? len : before_end;

    SHOAL_ASSERT(out.count + len <= SHOAL_LOG_WAITS_BYTES);
    memcpy(out.bytes + at, text, head);
    memcpy(out.bytes, text + head, len - head);
    out.count += len;
}

static void say_lost(void)
{
    char line[LOST_BYTES];
    int len = snprintf(line, sizeof(line), "%llu lines were lost: nobody read the log\n", (unsigned long long)out.lost);

    if (out.lost == 0 || SHOAL_LOG_WAITS_BYTES - out.count < (size_t)len)
        return;
    out.lost = 0;
    put(line, (size_t)len);
}

/* All of it counts as written: who prints has no use for an error. */
static ssize_t on_print(void *cookie, const char *text, size_t len)
{
    (void)cookie;
    (void)pthread_mutex_lock(&out.lock);
    if (out.lost == 0 && out.count + len + LOST_BYTES <= SHOAL_LOG_WAITS_BYTES)
        put(text, len);
    else
        out.lost++;
    (void)pthread_cond_signal(&out.wake);
    (void)pthread_mutex_unlock(&out.lock);
    return (ssize_t)len;
}

/* Some of it, waiting as long as that takes. What nobody can take any more is dropped. */
static size_t write_some(const uint8_t *bytes, size_t len)
{
    for (;;) {
        struct pollfd room = { .fd = out.fd, .events = POLLOUT };
        ssize_t wrote = write(out.fd, bytes, len);

        if (wrote > 0)
            return (size_t)wrote;
        if (wrote < 0 && errno == EAGAIN) /* whoever shares the descriptor has made it so */
            (void)poll(&room, 1, -1);
        else if (wrote == 0 || errno != EINTR)
            return len;
    }
}

static void *write_all(void *arg)
{
    (void)arg;
    (void)pthread_mutex_lock(&out.lock);
    for (;;) {
        size_t len, first = out.first;

        while (out.count == 0)
            (void)pthread_cond_wait(&out.wake, &out.lock);
        len = out.count < SHOAL_LOG_WAITS_BYTES - first ? out.count : SHOAL_LOG_WAITS_BYTES - first;
        (void)pthread_mutex_unlock(&out.lock);
        len = write_some(out.bytes + first, len);
        (void)pthread_mutex_lock(&out.lock);
        out.first = (first + len) % SHOAL_LOG_WAITS_BYTES;
        out.count -= len;
        say_lost();
    }
    return NULL;
}

/* The writer's own call may be what aborts: it is waited for all the same, and no longer. */
void agent_out_flush(void)
{
    const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000L };

    for (unsigned waited_ms = 0; out.count > 0 && waited_ms < FLUSH_MS; waited_ms += LOOK_MS)
        (void)nanosleep(&pause, NULL);
}

static void on_abort(int number)
{
    (void)signal(number, SIG_DFL);
    agent_out_flush();
}

enum shoal_err agent_out_start(int fd, struct shoal_msg *msg)
{
    static const cookie_io_functions_t calls = { .write = on_print };
    FILE *stream = NULL;
    pthread_t thread;
    sigset_t all, old;
    int code;

    SHOAL_ASSERT(out.bytes == NULL); /* once */
    out.fd = fd;
    out.bytes = malloc(SHOAL_LOG_WAITS_BYTES);
    if (out.bytes != NULL)
        stream = fopencookie(NULL, "w", calls);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    code = stream == NULL ? ENOMEM : pthread_create(&thread, NULL, write_all, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code != 0) {
        if (stream != NULL)
            (void)fclose(stream);
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory, or no thread, for the log");
    }
    (void)pthread_detach(thread);
    (void)setvbuf(stream, NULL, _IONBF, 0);
    stderr = stream;
    (void)signal(SIGABRT, on_abort);
    return SHOAL_OK;
}
