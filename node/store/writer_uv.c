/* A queue into a thread, and a queue back (writer_uv.h).
 *
 * I1. `waiting` and `finished` belong to the mutex; a job is in one of them, in the thread's hands, or in nobody's.
 * I2. Jobs finish in the order of their pushes, since one thread does them in order. */
#include "writer_uv.h"

#include <uv.h>

#include "shoal/banned.h"

struct list {
    struct writer_job *first;
    struct writer_job **end;
};

struct writer {
    uv_thread_t thread;
    uv_mutex_t mutex;
    uv_cond_t wake;
    uv_async_t async;
    writer_run_fn *run;
    void *arg;
    struct list waiting, finished;
    bool stopping; /* no push comes any more */
    bool exited;   /* the thread is past its last job */
    bool joined;
    void (*stopped)(void *arg);
    void *stopped_arg;
};

static void list_init(struct list *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static struct writer_job *list_take(struct list *list)
{
    struct writer_job *first = list->first;

    list_init(list);
    return first;
}

static void list_append(struct list *list, struct writer_job *first, struct writer_job *behind)
{
    while (first != behind) {
        struct writer_job *next = first->next;

        first->next = NULL;
        *list->end = first;
        list->end = &first->next;
        first = next;
    }
}

/* Whatever the thread left comes before what was pushed meanwhile. `end` is where the last of it ends. */
static void list_prepend(struct list *list, struct writer_job *first, struct writer_job **end)
{
    if (first == NULL)
        return;
    *end = list->first;
    if (list->first == NULL)
        list->end = end;
    list->first = first;
}

static void thread_main(void *arg)
{
    struct writer *writer = arg;

    uv_mutex_lock(&writer->mutex);
    while (true) {
        struct list taken;
        struct writer_job *left;

        while (writer->waiting.first == NULL && !writer->stopping)
            uv_cond_wait(&writer->wake, &writer->mutex);
        taken = writer->waiting;
        list_init(&writer->waiting);
        if (taken.first == NULL)
            break;
        uv_mutex_unlock(&writer->mutex);
        left = writer->run(writer->arg, taken.first);
        SHOAL_ASSERT(left != taken.first);
        uv_mutex_lock(&writer->mutex);
        list_append(&writer->finished, taken.first, left);
        list_prepend(&writer->waiting, left, taken.end);
        (void)uv_async_send(&writer->async);
    }
    writer->exited = true;
    (void)uv_async_send(&writer->async);
    uv_mutex_unlock(&writer->mutex);
}

static void on_close(uv_handle_t *handle)
{
    struct writer *writer = handle->data;
    void (*stopped)(void *arg) = writer->stopped;
    void *arg = writer->stopped_arg;

    uv_cond_destroy(&writer->wake);
    uv_mutex_destroy(&writer->mutex);
    free(writer);
    if (stopped != NULL)
        stopped(arg);
}

static void on_async(uv_async_t *async)
{
    struct writer *writer = async->data;
    struct writer_job *job;
    bool exited;
    int rc;

    uv_mutex_lock(&writer->mutex);
    job = list_take(&writer->finished);
    exited = writer->exited;
    uv_mutex_unlock(&writer->mutex);
    while (job != NULL) {
        struct writer_job *next = job->next;

        job->done(job);
        job = next;
    }
    if (!exited || writer->joined)
        return;
    writer->joined = true;
    rc = uv_thread_join(&writer->thread);
    SHOAL_ASSERT(rc == 0); /* it was started, and nobody else joins it */
    uv_close((uv_handle_t *)async, on_close);
}

enum shoal_err writer_create(struct writer **writer, struct uv_loop_s *loop, writer_run_fn *run, void *arg)
{
    struct writer *made = calloc(1, sizeof(*made));

    if (made == NULL)
        return SHOAL_ERR_FULL;
    made->run = run;
    made->arg = arg;
    made->async.data = made;
    list_init(&made->waiting);
    list_init(&made->finished);
    if (uv_mutex_init(&made->mutex) != 0)
        goto free_writer;
    if (uv_cond_init(&made->wake) != 0)
        goto destroy_mutex;
    if (uv_async_init(loop, &made->async, on_async) != 0)
        goto destroy_cond;
    if (uv_thread_create(&made->thread, thread_main, made) != 0) {
        uv_close((uv_handle_t *)&made->async, on_close);
        return SHOAL_ERR_FULL;
    }
    *writer = made;
    return SHOAL_OK;
destroy_cond:
    uv_cond_destroy(&made->wake);
destroy_mutex:
    uv_mutex_destroy(&made->mutex);
free_writer:
    free(made);
    return SHOAL_ERR_FULL;
}

void writer_push(struct writer *writer, struct writer_job *job)
{
    job->next = NULL;
    uv_mutex_lock(&writer->mutex);
    SHOAL_ASSERT(!writer->stopping);
    *writer->waiting.end = job;
    writer->waiting.end = &job->next;
    uv_cond_signal(&writer->wake);
    uv_mutex_unlock(&writer->mutex);
}

void writer_stop(struct writer *writer, void (*stopped)(void *arg), void *arg)
{
    writer->stopped = stopped;
    writer->stopped_arg = arg;
    uv_mutex_lock(&writer->mutex);
    SHOAL_ASSERT(!writer->stopping);
    writer->stopping = true;
    uv_cond_signal(&writer->wake);
    uv_mutex_unlock(&writer->mutex);
}
