/* The driver's side: it hands a call over and watches; training does not wait for it. */
#include <string.h>

#include "comm.h"

#include "shoal/banned.h"

enum shoal_err shoal_driver_train(struct shoal_comm *comm, uint32_t call, uint64_t job_seed, uint32_t engines_max,
                                  const char *bundle_path, const char *signature)
{
    struct shoal_worker_train *train = comm->train;

    if (comm->role != SHOAL_ROLE_DRIVER || comm->solo)
        return comm_fail(comm, SHOAL_ERR_INVALID, "train() is handed over by a driver of a job only");
    if (strlen(bundle_path) >= sizeof(train->bundle_path) || strlen(signature) >= sizeof(train->signature))
        return comm_fail(comm, SHOAL_ERR_TOO_BIG, "the path of the bundle or its signature is longer than %zu bytes",
                         sizeof(train->signature) - 1);
    (void)pthread_mutex_lock(&comm->lock);
    train->call = call;
    train->job_seed = job_seed;
    train->engines_max = engines_max;
    memcpy(train->bundle_path, bundle_path, strlen(bundle_path) + 1);
    memcpy(train->signature, signature, strlen(signature) + 1);
    comm->agent.known &= ~(uint32_t)FACT_TRAIN_ACKED;
    agent_tell(comm, FACT_TRAIN);
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}

static void take_event(struct shoal_comm *comm, struct shoal_driver_event *event)
{
    const struct shoal_worker_message *m = comm->driver_event;

    comm->driver_event_valid = false;
    if (m->kind == SHOAL_WORKER_TRAIN_STATE) {
        event->event = SHOAL_EVENT_TRAIN_STATE;
        event->call = m->train_state.call;
        event->state = m->train_state.state;
        event->engines = m->train_state.engines;
        event->acked_step = m->train_state.acked_step;
        event->final_step = m->train_state.final_step;
        memcpy(event->files_path, m->train_state.files_path, sizeof(event->files_path));
        memcpy(event->text, m->train_state.text, sizeof(event->text));
        return;
    }
    event->event = SHOAL_EVENT_TRAIN_RECORDS;
    event->call = m->records.call;
    event->first_step = m->records.first_step;
    event->record_count = m->records.count;
    event->records = m->records.records.bytes;
    event->records_len = m->records.records.len;
}

enum shoal_err shoal_driver_wait(struct shoal_comm *comm, int timeout_ms, struct shoal_driver_event *event)
{
    uint64_t deadline_ns = comm_deadline_ns(timeout_ms);

    memset(event, 0, sizeof(*event));
    if (comm->role != SHOAL_ROLE_DRIVER)
        return comm_fail(comm, SHOAL_ERR_INVALID, "only a driver waits for a call");
    for (;;) {
        (void)pthread_mutex_lock(&comm->lock);
        if (comm->driver_event_valid) {
            take_event(comm, event);
        } else if (atomic_load(&comm->stop)) {
            event->event = comm->released ? SHOAL_EVENT_RELEASED : SHOAL_EVENT_STOPPED;
            event->reason = comm->stop_message.reason;
            memcpy(event->text, comm->stop_message.text, sizeof(comm->stop_message.text));
        }
        (void)pthread_mutex_unlock(&comm->lock);
        if (event->event != SHOAL_EVENT_TIMEOUT || comm_now_ns() >= deadline_ns)
            return SHOAL_OK;
        agent_wait(comm, deadline_ns);
    }
}

enum shoal_err shoal_driver_ack(struct shoal_comm *comm, uint32_t call, uint64_t step)
{
    (void)pthread_mutex_lock(&comm->lock);
    comm->train_acked = (struct shoal_worker_acked){ .call = call, .step = step };
    agent_tell(comm, FACT_TRAIN_ACKED);
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}
