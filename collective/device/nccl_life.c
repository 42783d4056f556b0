/* The life of a communicator of NCCL (device.h).
 *
 *   none --make--> whole --revoke--> revoked --shrink--> whole
 *                  whole --shrink, grow--> whole               any --abort--> none
 *
 * All calls are of the non-blocking kind: each may say "in progress", and is asked about until it is over. Who is asked, and
 * when the new communicator is known, differs (NCCL 2.28 to 2.30, init.cc):
 *
 *   make, grow   it is known at once, and is asked itself
 *   shrink       the parent is asked; the new one is written when it is ready, by a thread of NCCL
 *   operations   launched by a thread of NCCL, perhaps: the stream shows them only after "in progress" is over
 *
 * What is in progress is let go of first, since it uses the other one until its thread is joined. */
#include "device.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shoal/banned.h"

/* After so many communicators that were given up, this process does without NCCL. */
#define FAILS_MAX 3u
#define LOOK_NS 50000
#define YIELDS 200u

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

/* Tests shorten the limits. */
static uint64_t limit_ns(uint64_t usual_ns)
{
    const char *text = getenv("SHOAL_NCCL_LIMIT_MS");
    uint64_t ms = text == NULL ? 0 : strtoull(text, NULL, 10);

    return ms == 0 ? usual_ns : ms * SHOAL_MS;
}

static void rest(unsigned turn)
{
    if (turn < YIELDS)
        (void)sched_yield();
    else
        (void)nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
}

static enum shoal_err fail(const struct device *device, const char *call, nccl_result result, struct shoal_msg *msg)
{
    const char *text = device->nccl.table.error_text(result);

    return shoal_fail(msg, SHOAL_ERR_DEVICE, "%s on device %d (%s): %s (%d)%s", call, device->ordinal, device->name,
                      text == NULL ? "an unknown error" : text, result,
                      result == NCCL_INVALID_USAGE
                          ? "; several ranks on one card need NCCL 2.30.3 or later and NCCL_MULTI_RANK_GPU_ENABLE=1"
                          : "");
}

/* ---- abort ---- */

/* It may wait for ever (a proxy thread that hangs): so it runs beside us, for so long and no longer. */
struct aborting {
    pthread_mutex_t lock;
    pthread_cond_t over;
    const struct device *device;
    nccl_comm comm;
    bool done;
    bool left; /* nobody waits any more: the thread frees this */
    nccl_result (*call)(nccl_comm comm);
    void *context;
    cuda_result (*use)(void *context);
};

static void aborting_free(struct aborting *a)
{
    (void)pthread_mutex_destroy(&a->lock);
    (void)pthread_cond_destroy(&a->over);
    free(a);
}

static void *abort_thread(void *arg)
{
    struct aborting *a = arg;
    bool left;

    (void)a->use(a->context);
    (void)a->call(a->comm); /* whatever it says, we have let go */
    (void)pthread_mutex_lock(&a->lock);
    a->done = true;
    left = a->left;
    (void)pthread_cond_signal(&a->over);
    (void)pthread_mutex_unlock(&a->lock);
    if (left)
        aborting_free(a);
    return NULL;
}

static bool wait_aborted(struct aborting *a)
{
    uint64_t until_ns = limit_ns(SHOAL_NCCL_END_NS);
    struct timespec until;
    bool done;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until_ns += (uint64_t)until.tv_sec * SHOAL_S + (uint64_t)until.tv_nsec;
    until = (struct timespec){ .tv_sec = (time_t)(until_ns / SHOAL_S), .tv_nsec = (long)(until_ns % SHOAL_S) };
    (void)pthread_mutex_lock(&a->lock);
    while (!a->done && pthread_cond_timedwait(&a->over, &a->lock, &until) == 0)
        ;
    done = a->done;
    a->left = !done;
    (void)pthread_mutex_unlock(&a->lock);
    if (done)
        aborting_free(a);
    return done;
}

static enum shoal_err abort_comm(struct device *device, nccl_comm comm, struct shoal_msg *msg)
{
    struct aborting *a = calloc(1, sizeof(*a));
    pthread_condattr_t monotonic;
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    int rc;

    if (a == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory to abort a communicator");
    (void)pthread_mutex_init(&a->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&a->over, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    a->device = device;
    a->comm = comm;
    a->call = device->nccl.table.abort;
    a->context = device->context;
    a->use = device->cuda.context_use;
    (void)pthread_attr_init(&detached);
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, &detached, abort_thread, a);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&detached);
    if (rc != 0) {
        aborting_free(a);
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot start a thread to abort a communicator: %s", strerror(rc));
    }
    if (wait_aborted(a))
        return SHOAL_OK;
    device->nccl.there = false;
    device->nccl.left = true;
    return shoal_fail(msg, SHOAL_ERR_DEVICE, "ncclCommAbort on device %d (%s) did not end in %llu ms", device->ordinal,
                      device->name, (unsigned long long)(limit_ns(SHOAL_NCCL_END_NS) / SHOAL_MS));
}

static enum shoal_err let_go(struct device *device, nccl_comm *held, struct shoal_msg *msg)
{
    nccl_comm comm = *held;

    *held = NULL;
    return comm == NULL ? SHOAL_OK : abort_comm(device, comm, msg);
}

enum shoal_err nccl_life_abort(struct device *device, struct shoal_msg *msg)
{
    struct nccl_life *life = &device->nccl;

    life->name = 0;
    life->size = 0;
    life->revoked = false;
    life->id_given = false;
    return let_go(device, &life->comm, msg);
}

/* One more that did not come to be, or broke. */
static enum shoal_err give_up(struct device *device, enum shoal_err err)
{
    struct shoal_msg ignored;

    if (err != SHOAL_ERR_STALE) {
        device->counts.given_up++;
        if (++device->nccl.fails >= FAILS_MAX)
            device->nccl.there = false;
    }
    if (nccl_life_abort(device, &ignored) != SHOAL_OK)
        return SHOAL_ERR_DEVICE;
    return err;
}

/* ---- making ---- */

/* Until the communicator says that what it was asked for is over. */
static enum shoal_err settle(struct device *device, nccl_comm comm, const char *call, uint64_t usual_ns,
                             const struct nccl_stop *stop, struct shoal_msg *msg)
{
    uint64_t limit = limit_ns(usual_ns);
    uint64_t until = now_ns() + limit;
    nccl_result state = NCCL_IN_PROGRESS;

    for (unsigned turn = 0;; turn++) {
        nccl_result asked = device->nccl.table.async_error(comm, &state);

        if (asked != NCCL_OK || (state != NCCL_OK && state != NCCL_IN_PROGRESS))
            return fail(device, call, asked != NCCL_OK ? asked : state, msg);
        if (state == NCCL_OK)
            return SHOAL_OK;
        if (stop != NULL && stop->stop(stop->arg))
            return shoal_fail(msg, SHOAL_ERR_STALE, "%s: the epoch is over", call);
        if (now_ns() > until)
            return shoal_fail(msg, SHOAL_ERR_TIMEOUT, "%s on device %d (%s) did not end in %llu ms", call,
                              device->ordinal, device->name, (unsigned long long)(limit / SHOAL_MS));
        rest(turn);
    }
}

/* `life->made` takes the place of what is held, when `asked`, one of the two, says that it is ready. */
static enum shoal_err replace(struct device *device, const nccl_comm *asked, const char *call, nccl_result result,
                              const struct nccl_stop *stop, struct shoal_msg *msg)
{
    struct nccl_life *life = &device->nccl;
    struct shoal_msg ignored;
    enum shoal_err err = SHOAL_OK;

    if ((result != NCCL_OK && result != NCCL_IN_PROGRESS) || *asked == NULL)
        err = fail(device, call, result, msg);
    else
        err = settle(device, *asked, call, SHOAL_NCCL_MAKE_NS, stop, msg);
    if (err == SHOAL_OK && life->made == NULL)
        err = shoal_fail(msg, SHOAL_ERR_DEVICE, "%s on device %d gave no communicator", call, device->ordinal);
    if (err != SHOAL_OK && asked == &life->made && let_go(device, &life->made, &ignored) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_DEVICE, "%s", ignored.text); /* it may use the parent still */
    if (nccl_life_abort(device, &ignored) != SHOAL_OK) /* the parent (I2) */
        return shoal_fail(msg, SHOAL_ERR_DEVICE, "%s", ignored.text);
    life->comm = life->made;
    life->made = NULL;
    return err == SHOAL_OK ? SHOAL_OK : give_up(device, err);
}

enum shoal_err nccl_life_make(struct device *device, const struct nccl_id *id, uint32_t size, uint32_t rank,
                              const struct nccl_stop *stop, struct shoal_msg *msg)
{
    struct nccl_config config = NCCL_CONFIG;
    struct nccl_life *life = &device->nccl;
    enum shoal_err err = nccl_life_abort(device, msg);
    nccl_result result;

    if (err != SHOAL_OK)
        return err;
    result = life->table.make(&life->made, (int)size, *id, (int)rank, &config);
    err = replace(device, &life->made, "ncclCommInitRankConfig", result, stop, msg);
    device->counts.made += err == SHOAL_OK;
    return err;
}

enum shoal_err nccl_life_shrink(struct device *device, int *excluded, uint32_t count, const struct nccl_stop *stop,
                                struct shoal_msg *msg)
{
    struct nccl_config config = NCCL_CONFIG;
    struct nccl_life *life = &device->nccl;
    nccl_result result = life->table.shrink(life->comm, excluded, (int)count, &life->made, &config, NCCL_SHRINK_ABORT);
    enum shoal_err err = replace(device, &life->comm, "ncclCommShrink", result, stop, msg);

    device->counts.shrunk += err == SHOAL_OK;
    return err;
}

enum shoal_err nccl_life_grow(struct device *device, const struct nccl_id *id, uint32_t size, uint32_t rank,
                              const struct nccl_stop *stop, struct shoal_msg *msg)
{
    struct nccl_config config = NCCL_CONFIG;
    struct nccl_life *life = &device->nccl;
    int mine = life->comm == NULL ? (int)rank : -1;
    nccl_result result = life->table.grow(life->comm, (int)size, id, mine, &life->made, &config);
    enum shoal_err err = replace(device, &life->made, "ncclCommGrow", result, stop, msg);

    device->counts.grown += err == SHOAL_OK;
    return err;
}

/* ---- running ---- */

/* The epoch ended under an operation. Revoked, a communicator can be shrunk. One that is still being connected is not revoked:
 * NCCL 2.30 ends the job of the connecting, and asks about it again later. */
static enum shoal_err revoke_comm(struct device *device, bool connecting, struct shoal_msg *msg)
{
    struct nccl_life *life = &device->nccl;
    struct shoal_msg why;
    nccl_result result;

    if (life->table.revoke == NULL || connecting)
        return nccl_life_abort(device, msg);
    result = life->table.revoke(life->comm, 0);
    if ((result != NCCL_OK && result != NCCL_IN_PROGRESS) ||
        settle(device, life->comm, "ncclCommRevoke", SHOAL_NCCL_END_NS, NULL, &why) != SHOAL_OK)
        return nccl_life_abort(device, msg);
    life->revoked = true;
    return SHOAL_OK;
}

enum shoal_err nccl_life_finish(struct device *device, const char *call, nccl_result result, const struct nccl_stop *stop,
                                struct shoal_msg *msg)
{
    struct nccl_life *life = &device->nccl;
    enum shoal_err err = SHOAL_OK;
    nccl_result state = NCCL_OK;

    if (result != NCCL_OK && result != NCCL_IN_PROGRESS)
        return give_up(device, fail(device, call, result, msg));
    for (unsigned turn = 0; err == SHOAL_OK; turn++) {
        nccl_result asked = life->table.async_error(life->comm, &state); /* before the stream: what is in progress */
        cuda_result stream = device->cuda.stream_query(device->stream);  /* may not be on it yet */

        if (asked != NCCL_OK || (state != NCCL_OK && state != NCCL_IN_PROGRESS))
            return give_up(device, fail(device, call, asked != NCCL_OK ? asked : state, msg));
        if (stream != CUDA_OK && stream != CUDA_NOT_READY)
            return give_up(device, device_fail(device, call, stream, msg));
        if (stream == CUDA_OK && state == NCCL_OK) {
            device->counts.operations++;
            return SHOAL_OK;
        }
        if (stop->stop(stop->arg))
            err = shoal_fail(msg, SHOAL_ERR_STALE, "%s: the epoch is over", call);
        rest(turn);
    }
    return revoke_comm(device, state == NCCL_IN_PROGRESS, msg) == SHOAL_OK ? err : SHOAL_ERR_DEVICE;
}
