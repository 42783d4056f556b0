/* The socket to the agent, and the library thread.
 *
 * I1. What the agent must know is kept as facts, not as a queue: a fact is sent when there is a connection, and every
 *     fact that still holds is sent again after a reconnect. So an agent may restart at any moment, and be away for
 *     long.
 * I2. The library thread never waits for the caller's thread: it takes `lock` for short copies only, and `fabric_lock`
 *     only if it is free. Its heartbeat therefore stands still only when the process is stopped or starved. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"

#include "shoal/worker_wire.h"

#include "shoal/banned.h"

#define BEAT_NS (20 * SHOAL_MS)
#define RETRY_NS (50 * SHOAL_MS)
#define THREAD_TURNS 16

static void disconnect(struct agent_socket *agent)
{
    if (agent->fd >= 0)
        (void)close(agent->fd);
    agent->fd = -1;
    agent->greeted = false;
    agent->retry_ns = comm_now_ns() + RETRY_NS;
}

void agent_close(struct shoal_comm *comm) { disconnect(&comm->agent); }

static void connect_agent(struct agent_socket *agent)
{
    struct sockaddr_un to = { .sun_family = AF_UNIX };
    int bytes = 4 * (int)SHOAL_WORKER_MESSAGE_MAX;

    if (comm_now_ns() < agent->retry_ns)
        return;
    agent->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (agent->fd < 0) {
        disconnect(agent);
        return;
    }
    (void)setsockopt(agent->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    memcpy(to.sun_path, agent->path, sizeof(to.sun_path));
    if (connect(agent->fd, (const struct sockaddr *)&to, sizeof(to)) != 0) {
        agent->retries++;
        disconnect(agent);
        return;
    }
    agent->unsent = agent->known;
}

/* OK: sent. FULL: not now. UNREACHABLE: the connection is gone. */
static enum shoal_err send_message(struct agent_socket *agent)
{
    struct shoal_writer w = shoal_writer_init(agent->bytes, SHOAL_WORKER_MESSAGE_MAX);
    enum shoal_err err = shoal_worker_encode(agent->out, &w);

    SHOAL_ASSERT(err == SHOAL_OK); /* every field was bounded when it was taken */
    if (send(agent->fd, w.bytes, w.len, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
        return SHOAL_OK;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == EINTR)
        return SHOAL_ERR_FULL;
    disconnect(agent);
    return SHOAL_ERR_UNREACHABLE;
}

static enum shoal_err send_hello(struct shoal_comm *comm)
{
    struct shoal_worker_hello *hello = &comm->hello;
    bool open = atomic_load(&comm->open);

    hello->call = comm->planned ? comm->plan.call : 0;
    hello->epoch = open ? comm->epoch.id : comm->closed.epoch;
    hello->closed = !open && shoal_epoch_word(comm->closed.epoch) != 0;
    hello->applied_step = atomic_load(&comm->applied);
    hello->complete_step = atomic_load(&comm->complete);
    comm->agent.out->kind = SHOAL_WORKER_HELLO;
    comm->agent.out->hello = *hello;
    return send_message(&comm->agent);
}

static void fill_fact(struct shoal_comm *comm, uint32_t fact, struct shoal_worker_message *out)
{
    switch ((enum fact)fact) {
    case FACT_READY:
        out->kind = SHOAL_WORKER_READY;
        out->ready = comm->ready;
        return;
    case FACT_CLOSED:
        out->kind = SHOAL_WORKER_CLOSED;
        out->closed = comm->closed;
        return;
    case FACT_DONE:
        out->kind = SHOAL_WORKER_DONE;
        out->done = comm->done;
        return;
    case FACT_FILES:
        out->kind = SHOAL_WORKER_FILES;
        out->acked = comm->files;
        return;
    case FACT_FAILED:
        out->kind = SHOAL_WORKER_FAILED;
        out->failed = *comm->failed;
        return;
    case FACT_SNAPSHOT:
        out->kind = SHOAL_WORKER_SNAPSHOT;
        out->snapshot = *comm->snapshot;
        return;
    case FACT_TRAIN:
        out->kind = SHOAL_WORKER_TRAIN;
        out->train = *comm->train;
        return;
    case FACT_UNHEARD:
        out->kind = SHOAL_WORKER_UNHEARD;
        out->unheard = comm->unheard;
        return;
    case FACT_TRAIN_ACKED:
        out->kind = SHOAL_WORKER_TRAIN_ACKED;
        out->acked = comm->train_acked;
        return;
    }
}

static void send_facts(struct shoal_comm *comm)
{
    static const uint32_t order[] = { FACT_READY, FACT_UNHEARD, FACT_CLOSED, FACT_SNAPSHOT,   FACT_DONE,
                                      FACT_FILES, FACT_FAILED,  FACT_TRAIN,  FACT_TRAIN_ACKED };
    struct agent_socket *agent = &comm->agent;

    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        if (!(agent->unsent & order[i]))
            continue;
        fill_fact(comm, order[i], agent->out);
        if (send_message(agent) != SHOAL_OK)
            return;
        agent->unsent &= ~order[i];
    }
}

/* Rank 0 ships what the others only keep. */
static void send_records(struct shoal_comm *comm)
{
    struct records *records = &comm->records;
    struct shoal_worker_message *out = comm->agent.out;

    if (comm->epoch.size == 0 || comm->epoch.rank != 0 || !comm->planned)
        return;
    if (records->sent < records->acked)
        records->sent = records->acked;
    for (unsigned batch = 0; batch < 8; batch++) {
        const struct record_entry *first = records_find(records, records->sent + 1);
        const struct record_entry *entry = first;
        uint32_t len = 0;
        uint32_t count = 0;

        /* entries that follow each other in memory go together */
        while (entry != NULL && entry->at == first->at + len && len + entry->len <= SHOAL_WORKER_MESSAGE_MAX - 64) {
            len += entry->len;
            count++;
            entry = records_find(records, records->sent + 1 + count);
        }
        if (count == 0)
            return;
        out->kind = SHOAL_WORKER_RECORDS;
        out->records = (struct shoal_worker_records){ .call = comm->plan.call,
                                                      .first_step = records->sent + 1,
                                                      .count = count,
                                                      .records = shoal_view_of(records->bytes + first->at, len) };
        if (send_message(&comm->agent) != SHOAL_OK)
            return;
        records->sent += count;
    }
}

static void on_epoch(struct shoal_comm *comm, const struct shoal_worker_epoch *epoch)
{
    uint64_t word = shoal_epoch_word(epoch->epoch);

    if (!comm->planned || epoch->call != comm->plan.call || word <= comm->seen_epoch ||
        (comm->next_valid && word <= shoal_epoch_word(comm->next->epoch)))
        return; /* older than what I know, or of another call */
    shoal_worker_epoch_copy(comm->next, epoch);
    comm->next_valid = true;
    if (atomic_load(&comm->open))
        epoch_close_locked(comm); /* a newer epoch ends mine, whether the revoke was seen or not */
}

static void on_driver_event(struct shoal_comm *comm, const struct shoal_worker_message *in)
{
    *comm->driver_event = *in;
    if (in->kind == SHOAL_WORKER_TRAIN_RECORDS) {
        memcpy(comm->driver_bytes, in->records.records.bytes, in->records.records.len);
        comm->driver_event->records.records.bytes = comm->driver_bytes;
    }
    comm->driver_event_valid = true;
}

static void on_message(struct shoal_comm *comm, const struct shoal_worker_message *in)
{
    switch ((enum shoal_worker_kind)in->kind) {
    case SHOAL_WORKER_CALL:
        if (!comm->planned || in->call.call > comm->plan.call) {
            comm->call = in->call;
            comm->call_valid = true;
        }
        return;
    case SHOAL_WORKER_EPOCH: on_epoch(comm, &in->epoch); return;
    case SHOAL_WORKER_RECORDS_ACKED:
        if (comm->planned && in->acked.call == comm->plan.call)
            records_ack(&comm->records, in->acked.step);
        return;
    case SHOAL_WORKER_WRITE_FINAL:
        if (comm->planned && in->acked.call == comm->plan.call && comm->finished)
            comm->write_final = true;
        return;
    case SHOAL_WORKER_RELEASE:
    case SHOAL_WORKER_STOP:
        comm->stop_message = in->stop;
        comm->released = in->kind == SHOAL_WORKER_RELEASE;
        atomic_store(&comm->stop, true);
        return;
    case SHOAL_WORKER_TRAIN_STATE:
    case SHOAL_WORKER_TRAIN_RECORDS: on_driver_event(comm, in); return;
    case SHOAL_WORKER_HELLO:
    case SHOAL_WORKER_READY:
    case SHOAL_WORKER_CLOSED:
    case SHOAL_WORKER_RECORDS:
    case SHOAL_WORKER_DONE:
    case SHOAL_WORKER_FILES:
    case SHOAL_WORKER_FAILED:
    case SHOAL_WORKER_SNAPSHOT:
    case SHOAL_WORKER_TRAIN:
    case SHOAL_WORKER_TRAIN_ACKED:
    case SHOAL_WORKER_UNHEARD:
    case SHOAL_WORKER_KIND_COUNT: comm->agent.malformed++; return; /* not for a worker */
    }
}

static void receive(struct shoal_comm *comm, uint32_t turns)
{
    struct agent_socket *agent = &comm->agent;

    for (uint32_t i = 0; i < turns && agent->fd >= 0 && !comm->driver_event_valid; i++) {
        ssize_t len = recv(agent->fd, agent->bytes, SHOAL_WORKER_MESSAGE_MAX, MSG_DONTWAIT | MSG_TRUNC);

        if (len < 0 && shoal_worker_recv_later(errno))
            return;
        if (len <= 0) {
            disconnect(agent);
            return;
        }
        if (len > (ssize_t)SHOAL_WORKER_MESSAGE_MAX ||
            shoal_worker_decode(shoal_view_of(agent->bytes, (size_t)len), agent->in) != SHOAL_OK)
            agent->malformed++;
        else
            on_message(comm, agent->in);
    }
}

void agent_turn(struct shoal_comm *comm, uint32_t turns)
{
    struct agent_socket *agent = &comm->agent;

    if (comm->solo) {
        solo_turn(comm);
        return;
    }
    if (agent->fd < 0)
        connect_agent(agent);
    if (agent->fd >= 0 && !agent->greeted) {
        agent->greeted = send_hello(comm) == SHOAL_OK;
        comm->records.sent = comm->records.acked; /* what was under way is lost, perhaps */
    }
    if (agent->fd >= 0 && agent->greeted && agent->unsent != 0)
        send_facts(comm);
    if (agent->fd >= 0 && agent->greeted)
        send_records(comm);
    receive(comm, turns);
}

void agent_tell(struct shoal_comm *comm, uint32_t fact)
{
    comm->agent.known |= fact;
    comm->agent.unsent |= fact;
    agent_turn(comm, 0);
}

void agent_wait(struct shoal_comm *comm, uint64_t deadline_ns)
{
    uint64_t now = comm_now_ns();
    uint64_t until = deadline_ns < now + BEAT_NS ? deadline_ns : now + BEAT_NS;
    struct pollfd p = { .events = POLLIN };

    (void)pthread_mutex_lock(&comm->lock);
    p.fd = comm->agent.fd;
    (void)pthread_mutex_unlock(&comm->lock);
    if (until > now && !comm->solo)
        (void)ppoll(&p, 1, &(struct timespec){ .tv_nsec = (long)(until - now) }, NULL);
    (void)pthread_mutex_lock(&comm->lock);
    agent_turn(comm, THREAD_TURNS);
    epoch_check_locked(comm);
    (void)pthread_mutex_unlock(&comm->lock);
}

/* Held by the thread while the process lives: the kernel marks it, and wakes the agent, before it tears memory down. */
static void hold_robust_futex(struct shoal_comm *comm)
{
    static struct robust_list node; /* one process, one library thread that holds it */
    static struct robust_list_head head;

    node.next = &head.list;
    head.list.next = &node;
    head.futex_offset = (long)((intptr_t)&comm->words->robust - (intptr_t)&node);
    head.list_op_pending = NULL;
    atomic_store(&comm->words->robust, (uint32_t)syscall(SYS_gettid));
    (void)syscall(SYS_set_robust_list, &head, sizeof(head));
}

static void *library_thread(void *arg)
{
    struct shoal_comm *comm = arg;

    hold_robust_futex(comm);
    while (!atomic_load(&comm->thread_stop)) {
        uint32_t seen = atomic_load(&comm->page->revoke_futex);

        atomic_fetch_add(&comm->words->heartbeat, 1);
        (void)pthread_mutex_lock(&comm->lock);
        agent_turn(comm, comm->main_waits ? 0 : THREAD_TURNS);
        epoch_check_locked(comm);
        (void)pthread_mutex_unlock(&comm->lock);
        if (!atomic_load(&comm->main_turns)) /* else an event taken here would not wake the caller */
            fabric_try_turn(comm);
        (void)syscall(SYS_futex, &comm->page->revoke_futex, FUTEX_WAIT, seen,
                      &(struct timespec){ .tv_nsec = (long)BEAT_NS }, NULL, 0);
    }
    atomic_store(&comm->words->robust, 0);
    (void)syscall(SYS_set_robust_list, NULL, sizeof(struct robust_list_head));
    return NULL;
}

enum shoal_err agent_start_thread(struct shoal_comm *comm)
{
    sigset_t all;
    sigset_t before;
    int rc;

    if (comm->thread_runs || comm->solo || comm->role != SHOAL_ROLE_ENGINE)
        return SHOAL_OK;
    atomic_store(&comm->thread_stop, false);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's handlers run in the caller's threads */
    rc = pthread_create(&comm->thread, NULL, library_thread, comm);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return comm_fail(comm, SHOAL_ERR_FULL, "cannot start the library thread: %s", strerror(rc));
    comm->thread_runs = true;
    return SHOAL_OK;
}

void agent_stop_thread(struct shoal_comm *comm)
{
    if (!comm->thread_runs)
        return;
    atomic_store(&comm->thread_stop, true);
    (void)pthread_join(comm->thread, NULL);
    comm->thread_runs = false;
}
