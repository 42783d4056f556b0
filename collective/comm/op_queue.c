/* Handles of collectives, and the thread that carries them out in their order (O4 of collective_op.h).
 *
 *   start: FREE -> QUEUED      thread: QUEUED -> RUNNING -> OVER      test, wait: OVER -> FREE, of the next generation
 *
 * I1. At most one thread is within a collective: the caller's own ones wait until nothing is queued or running. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "op.h"

#include "shoal/banned.h"

enum op_state { OP_FREE, OP_QUEUED, OP_RUNNING, OP_OVER };

struct op_slot {
    enum op_state state;
    uint32_t generation;
    struct shoal_op op;
    enum shoal_err err;
    struct shoal_msg msg;
};

struct op_queue {
    pthread_mutex_t lock;
    pthread_cond_t work; /* something is queued, or stop */
    pthread_cond_t over; /* something ended */
    pthread_t thread;
    bool thread_runs;
    bool stop;
    uint32_t order[SHOAL_OPS_MAX]; /* ring of slots */
    uint32_t first;
    uint32_t count; /* queued and running */
    struct op_slot slots[SHOAL_OPS_MAX];
};

static struct op_slot *next_queued(struct op_queue *queue)
{
    struct op_slot *slot = &queue->slots[queue->order[queue->first]];

    SHOAL_ASSERT(queue->count > 0 && slot->state == OP_QUEUED); /* I1 */
    return slot;
}

static void *queue_thread(void *arg)
{
    struct shoal_comm *comm = arg;
    struct op_queue *queue = comm->op_queue;

    (void)pthread_mutex_lock(&queue->lock);
    for (;;) {
        struct op_slot *slot;
        enum shoal_err err;

        while (queue->count == 0 && !queue->stop)
            (void)pthread_cond_wait(&queue->work, &queue->lock);
        if (queue->count == 0)
            break;
        slot = next_queued(queue);
        slot->state = OP_RUNNING;
        (void)pthread_mutex_unlock(&queue->lock);
        err = op_execute(comm, &slot->op);
        (void)pthread_mutex_lock(&queue->lock);
        slot->err = err;
        if (err != SHOAL_OK)
            slot->msg = comm->msg;
        slot->state = OP_OVER;
        queue->first = (queue->first + 1) % SHOAL_OPS_MAX;
        queue->count--;
        (void)pthread_cond_broadcast(&queue->over);
    }
    (void)pthread_mutex_unlock(&queue->lock);
    return NULL;
}

static enum shoal_err queue_create(struct shoal_comm *comm)
{
    struct op_queue *queue = calloc(1, sizeof(*queue));
    sigset_t all;
    sigset_t before;
    int rc;

    if (queue == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for a queue of collectives");
    (void)pthread_mutex_init(&queue->lock, NULL);
    (void)pthread_cond_init(&queue->work, NULL);
    (void)pthread_cond_init(&queue->over, NULL);
    comm->op_queue = queue;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's handlers run in the caller's threads */
    rc = pthread_create(&queue->thread, NULL, queue_thread, comm);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    queue->thread_runs = rc == 0;
    if (rc == 0)
        return SHOAL_OK;
    op_queue_destroy(comm);
    return comm_fail(comm, SHOAL_ERR_FULL, "cannot start a thread for collectives: %s", strerror(rc));
}

void op_queue_destroy(struct shoal_comm *comm)
{
    struct op_queue *queue = comm->op_queue;

    if (queue == NULL)
        return;
    (void)pthread_mutex_lock(&queue->lock);
    queue->stop = true;
    (void)pthread_cond_signal(&queue->work);
    (void)pthread_mutex_unlock(&queue->lock);
    if (queue->thread_runs)
        (void)pthread_join(queue->thread, NULL);
    (void)pthread_cond_destroy(&queue->over);
    (void)pthread_cond_destroy(&queue->work);
    (void)pthread_mutex_destroy(&queue->lock);
    free(queue);
    comm->op_queue = NULL;
}

void op_drain(struct shoal_comm *comm)
{
    struct op_queue *queue = comm->op_queue;

    if (queue == NULL)
        return;
    (void)pthread_mutex_lock(&queue->lock);
    while (queue->count > 0)
        (void)pthread_cond_wait(&queue->over, &queue->lock);
    (void)pthread_mutex_unlock(&queue->lock);
}

enum shoal_err shoal_op_run(struct shoal_comm *comm, const struct shoal_op *op)
{
    enum shoal_err err;

    op_drain(comm);
    err = op_await_stream(comm, op, &comm->msg);
    return err == SHOAL_OK ? op_execute(comm, op) : err;
}

enum shoal_err shoal_op_start(struct shoal_comm *comm, const struct shoal_op *op, uint64_t *handle)
{
    struct op_queue *queue;
    struct shoal_msg msg;
    enum shoal_err err = comm->op_queue == NULL ? queue_create(comm) : SHOAL_OK;
    uint32_t i = 0;

    if (err != SHOAL_OK)
        return err;
    err = op_await_stream(comm, op, &msg);
    if (err != SHOAL_OK) {
        op_drain(comm);
        return comm_fail(comm, err, "%s", msg.text);
    }
    queue = comm->op_queue;
    (void)pthread_mutex_lock(&queue->lock);
    while (i < SHOAL_OPS_MAX && queue->slots[i].state != OP_FREE)
        i++;
    if (i == SHOAL_OPS_MAX) {
        (void)pthread_mutex_unlock(&queue->lock);
        op_drain(comm); /* the text is the thread's, until it rests */
        return comm_fail(comm, SHOAL_ERR_FULL, "%u collectives were started and not waited for: wait for one first",
                         SHOAL_OPS_MAX);
    }
    queue->slots[i].op = *op;
    queue->slots[i].state = OP_QUEUED;
    queue->order[(queue->first + queue->count++) % SHOAL_OPS_MAX] = i;
    *handle = (uint64_t)queue->slots[i].generation << 32 | (i + 1);
    (void)pthread_cond_signal(&queue->work);
    (void)pthread_mutex_unlock(&queue->lock);
    return SHOAL_OK;
}

/* The slot of a handle that was not waited for yet, or NULL. Under lock. */
static struct op_slot *slot_find(struct op_queue *queue, uint64_t handle)
{
    uint32_t i = (uint32_t)handle;

    if (i == 0 || i > SHOAL_OPS_MAX || queue->slots[i - 1].state == OP_FREE ||
        queue->slots[i - 1].generation != (uint32_t)(handle >> 32))
        return NULL;
    return &queue->slots[i - 1];
}

static enum shoal_err no_such(struct shoal_comm *comm)
{
    op_drain(comm);
    return comm_fail(comm, SHOAL_ERR_INVALID, "no such handle of a collective, or it was waited for already");
}

/* Give the slot back. Under lock, which is released. */
static enum shoal_err slot_end(struct shoal_comm *comm, struct op_slot *slot)
{
    struct op_queue *queue = comm->op_queue;
    enum shoal_err err = slot->err;
    struct shoal_msg msg = slot->msg;

    SHOAL_ASSERT(slot->state == OP_OVER);
    slot->generation++;
    slot->state = OP_FREE;
    (void)pthread_mutex_unlock(&queue->lock);
    if (err == SHOAL_OK)
        return SHOAL_OK;
    op_drain(comm); /* those behind it fail, too, or end soon; then the text is mine */
    comm->msg = msg;
    return err;
}

enum shoal_err shoal_op_test(struct shoal_comm *comm, uint64_t handle, uint32_t *over)
{
    struct op_queue *queue = comm->op_queue;
    struct op_slot *slot;

    *over = 1;
    if (queue == NULL)
        return no_such(comm);
    (void)pthread_mutex_lock(&queue->lock);
    slot = slot_find(queue, handle);
    if (slot != NULL && slot->state == OP_OVER)
        return slot_end(comm, slot);
    (void)pthread_mutex_unlock(&queue->lock);
    if (slot == NULL)
        return no_such(comm);
    *over = 0;
    return SHOAL_OK;
}

enum shoal_err shoal_op_wait(struct shoal_comm *comm, uint64_t handle)
{
    struct op_queue *queue = comm->op_queue;
    struct op_slot *slot;

    if (queue == NULL)
        return no_such(comm);
    (void)pthread_mutex_lock(&queue->lock);
    slot = slot_find(queue, handle);
    while (slot != NULL && slot->state != OP_OVER)
        (void)pthread_cond_wait(&queue->over, &queue->lock);
    if (slot != NULL)
        return slot_end(comm, slot);
    (void)pthread_mutex_unlock(&queue->lock);
    return no_such(comm);
}
