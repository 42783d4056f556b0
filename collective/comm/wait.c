/* Waiting for other workers: a bounded spin, then yields, then sleep. The spin is short where workers share a core:
 * pure spinning then waits in quanta of the scheduler (reference/data-plane 1.2), pure sleeping costs 0.1 ms a wake. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "collective/memory/cpu.h"
#include "comm.h"

#include "shoal/banned.h"

#define YIELDS 8
#define SPINS_ROOMY 400 /* about 20 us: where others use the cores, too, two workers may share one */
#define SPINS_FABRIC 50 /* turns of progress(), each some microseconds; then the kernel wakes us when bytes arrive */
#define SLEEP_MS 10

uint64_t comm_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

uint64_t comm_deadline_ns(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX : comm_now_ns() + (uint64_t)timeout_ms * (uint64_t)SHOAL_MS;
}

void wait_set_spin(struct shoal_comm *comm)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    comm->cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    comm->spin_max = comm->epoch.hosts > 1 ? SPINS_FABRIC : SPINS_ROOMY;
    if (comm->epoch.local_count > comm->cores)
        comm->spin_max = 0;
}

/* Sleep until the bell or the control page changes. Without futex_waitv (before Linux 5.16) the sleep is short. */
static void sleep_on_bell(struct shoal_comm *comm, wait_fn *ready, uint64_t arg)
{
    struct arena_head *head = comm->arena.head;
    uint32_t bell;
    uint32_t page;

    atomic_fetch_add(&head->waiters, 1);
    bell = atomic_load(&head->bell);
    page = atomic_load(&comm->page->revoke_futex);
    if (!ready(comm, arg) && !epoch_is_revoked(comm)) {
        struct futex_waitv waits[2] = {
            { .val = bell, .uaddr = (uint64_t)(uintptr_t)&head->bell, .flags = FUTEX_32 },
            { .val = page, .uaddr = (uint64_t)(uintptr_t)&comm->page->revoke_futex, .flags = FUTEX_32 },
        };
        uint64_t until = comm_now_ns() + SLEEP_MS * SHOAL_MS;
        struct timespec end = { .tv_sec = (time_t)(until / SHOAL_S), .tv_nsec = (long)(until % SHOAL_S) };

        if (syscall(SYS_futex_waitv, waits, 2u, 0u, &end, CLOCK_MONOTONIC) < 0 && errno == ENOSYS)
            (void)nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
    atomic_fetch_sub(&head->waiters, 1);
}

static enum shoal_err wait_turns(struct shoal_comm *comm, wait_fn *ready, uint64_t arg)
{
    bool fabric = comm->epoch.hosts > 1;

    for (uint64_t turn = 0;; turn++) {
        if (epoch_is_revoked(comm) || (fabric && turn % 8 == 0 && !fabric_turn(comm)) || fabric_is_broken(comm)) {
            epoch_close(comm);
            return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
        }
        if (ready(comm, arg))
            return SHOAL_OK;
        if (fabric && atomic_exchange(&comm->fabric_moved, false))
            turn = 0; /* what came may have to be answered before anything else comes */
        if (turn < comm->spin_max)
            cpu_pause();
        else if (turn < comm->spin_max + YIELDS)
            (void)sched_yield();
        else if (fabric)
            fabric_sleep(comm, comm->epoch.local_count > 1 ? 1 : SLEEP_MS);
        else
            sleep_on_bell(comm, ready, arg);
    }
}

enum shoal_err comm_wait(struct shoal_comm *comm, wait_fn *ready, uint64_t arg)
{
    bool before = atomic_exchange(&comm->main_turns, true);
    enum shoal_err err = wait_turns(comm, ready, arg);

    atomic_store(&comm->main_turns, before);
    return err;
}

static void ring(struct shoal_comm *comm)
{
    struct arena_head *head = comm->arena.head;

    atomic_fetch_add(&head->bell, 1);
    if (atomic_load(&head->waiters) > 0)
        (void)syscall(SYS_futex, &head->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

enum shoal_err comm_say(struct shoal_comm *comm, _Atomic uint64_t *word, uint64_t value, wait_fn *over)
{
    bool said;

    (void)pthread_mutex_lock(&comm->lock);
    epoch_check_locked(comm);
    said = atomic_load(&comm->open);
    if (said)
        atomic_store(word, value);
    (void)pthread_mutex_unlock(&comm->lock);
    if (!said)
        return comm_fail(comm, SHOAL_ERR_RANK_LOST, "epoch %u.%u is revoked", comm->epoch.id.e, comm->epoch.id.k);
    /* A worker that sees the phase complete wakes the others: of two that finish it at once, at least one does. */
    if (over == NULL || over(comm, value))
        ring(comm);
    return SHOAL_OK;
}
