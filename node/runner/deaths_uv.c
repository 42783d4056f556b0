/* One thread sleeps on all words at once (deaths_uv.h).
 *
 * I1. A word is touched under the mutex only, so that none is after deaths_forget(). While the thread sleeps the kernel
 *     holds it by the page, not by the address; between both it may find the address gone, and looks again.
 * I2. The kernel wakes for a word only if its waiters' bit is set: the thread sets it before it sleeps. */
#include "deaths_uv.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

/* One sleep of the kernel takes FUTEX_WAITV_MAX, less the word that wakes the thread by itself. */
#define WATCHED_MAX 127
_Static_assert(WATCHED_MAX >= SHOAL_SLOTS_MAX, "every slot has a place");
/* A library thread takes its word some time after its process has started; nothing tells when. */
#define NOT_HELD_NS (50 * SHOAL_MS)
#define IDLE_NS (SHOAL_S - 1)

struct watched {
    uint64_t worker_id;
    _Atomic uint32_t *word;
    bool dead; /* seen; told or about to be */
    bool told;
};

struct deaths {
    uv_thread_t thread;
    uv_mutex_t mutex;
    uv_async_t async;
    void (*on_death)(void *arg, uint64_t worker_id);
    void *arg;
    _Atomic uint32_t kick; /* changed: look again */
    bool stopping;
    unsigned count;
    struct watched watched[WATCHED_MAX];
    void (*stopped)(void *arg);
    void *stopped_arg;
};

static void kick(struct deaths *deaths)
{
    atomic_fetch_add(&deaths->kick, 1);
    (void)syscall(SYS_futex, &deaths->kick, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Fills in the words to sleep on; `timeout_ns` is lowered while a word is not held. True: somebody has died. */
static bool look(struct deaths *deaths, struct futex_waitv *waits, unsigned *count, uint64_t *timeout_ns)
{
    bool died = false;

    for (unsigned i = 0; i < deaths->count; i++) {
        struct watched *w = &deaths->watched[i];
        uint32_t word = atomic_load(w->word);

        if (w->dead)
            continue;
        while ((word & FUTEX_TID_MASK) != 0 && (word & (FUTEX_WAITERS | FUTEX_OWNER_DIED)) == 0 &&
               !atomic_compare_exchange_weak(w->word, &word, word | FUTEX_WAITERS))
            continue; /* ends: the owner writes it twice in its life */
        if (word & FUTEX_OWNER_DIED) {
            w->dead = died = true;
        } else if ((word & FUTEX_TID_MASK) == 0) {
            *timeout_ns = NOT_HELD_NS;
        } else {
            waits[(*count)++] = (struct futex_waitv){ .val = word | FUTEX_WAITERS,
                                                      .flags = FUTEX_32,
                                                      .uaddr = (uint64_t)(uintptr_t)w->word };
        }
    }
    return died;
}

static void thread_main(void *arg)
{
    struct deaths *deaths = arg;
    struct futex_waitv waits[WATCHED_MAX + 1];

    while (true) {
        uint64_t timeout_ns = IDLE_NS;
        unsigned count = 1;
        struct timespec until;
        bool stopping;

        uv_mutex_lock(&deaths->mutex);
        waits[0] = (struct futex_waitv){ .val = atomic_load(&deaths->kick),
                                         .flags = FUTEX_32 | FUTEX_PRIVATE_FLAG,
                                         .uaddr = (uint64_t)(uintptr_t)&deaths->kick };
        stopping = deaths->stopping;
        if (!stopping && look(deaths, waits, &count, &timeout_ns))
            (void)uv_async_send(&deaths->async);
        uv_mutex_unlock(&deaths->mutex);
        if (stopping)
            return;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)timeout_ns;
        if (until.tv_nsec >= (long)SHOAL_S) {
            until.tv_sec++;
            until.tv_nsec -= (long)SHOAL_S;
        }
        if (syscall(SYS_futex_waitv, waits, count, 0u, &until, CLOCK_MONOTONIC) < 0 && errno == ENOSYS)
            (void)nanosleep(&(struct timespec){ .tv_nsec = 5 * (long)SHOAL_MS }, NULL); /* before Linux 5.16 */
    }
}

static void on_async(uv_async_t *async)
{
    struct deaths *deaths = async->data;

    for (unsigned i = 0;;) {
        uint64_t worker_id = 0;

        uv_mutex_lock(&deaths->mutex);
        while (i < deaths->count && (!deaths->watched[i].dead || deaths->watched[i].told))
            i++;
        if (i < deaths->count) {
            deaths->watched[i].told = true;
            worker_id = deaths->watched[i].worker_id;
        }
        uv_mutex_unlock(&deaths->mutex);
        if (worker_id == 0)
            return;
        deaths->on_death(deaths->arg, worker_id); /* may forget it, or others */
        i = 0;
    }
}

static void on_close(uv_handle_t *handle)
{
    struct deaths *deaths = handle->data;
    void (*stopped)(void *arg) = deaths->stopped;
    void *arg = deaths->stopped_arg;

    uv_mutex_destroy(&deaths->mutex);
    free(deaths);
    if (stopped != NULL)
        stopped(arg);
}

enum shoal_err deaths_create(struct deaths **deaths, struct uv_loop_s *loop,
                             void (*on_death)(void *arg, uint64_t worker_id), void *arg)
{
    struct deaths *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return SHOAL_ERR_FULL;
    made->on_death = on_death;
    made->arg = arg;
    made->async.data = made;
    if (uv_mutex_init(&made->mutex) != 0)
        goto free_deaths;
    if (uv_async_init(loop, &made->async, on_async) != 0)
        goto destroy_mutex;
    if (uv_thread_create(&made->thread, thread_main, made) != 0) {
        uv_close((uv_handle_t *)&made->async, on_close);
        return SHOAL_ERR_FULL;
    }
    *deaths = made;
    return SHOAL_OK;
destroy_mutex:
    uv_mutex_destroy(&made->mutex);
free_deaths:
    free(made);
    return SHOAL_ERR_FULL;
}

bool deaths_watch(struct deaths *deaths, uint64_t worker_id, _Atomic uint32_t *word)
{
    bool room;

    uv_mutex_lock(&deaths->mutex);
    room = deaths->count < WATCHED_MAX;
    if (room)
        deaths->watched[deaths->count++] = (struct watched){ .worker_id = worker_id, .word = word };
    uv_mutex_unlock(&deaths->mutex);
    kick(deaths);
    return room;
}

void deaths_forget(struct deaths *deaths, uint64_t worker_id)
{
    uv_mutex_lock(&deaths->mutex);
    for (unsigned i = 0; i < deaths->count; i++)
        if (deaths->watched[i].worker_id == worker_id)
            deaths->watched[i] = deaths->watched[--deaths->count];
    uv_mutex_unlock(&deaths->mutex);
    kick(deaths);
}

void deaths_stop(struct deaths *deaths, void (*stopped)(void *arg), void *arg)
{
    int failed;

    deaths->stopped = stopped;
    deaths->stopped_arg = arg;
    uv_mutex_lock(&deaths->mutex);
    deaths->stopping = true;
    deaths->count = 0;
    uv_mutex_unlock(&deaths->mutex);
    kick(deaths);
    failed = uv_thread_join(&deaths->thread);
    SHOAL_ASSERT(failed == 0); /* it sleeps on the word just kicked */
    uv_close((uv_handle_t *)&deaths->async, on_close);
}
