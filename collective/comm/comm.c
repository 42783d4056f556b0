#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"

#include "collective/device/device.h"

#include "shoal/banned.h"

static bool env_number(const char *name, uint64_t max, uint64_t *value)
{
    const char *text = getenv(name);
    char *end;

    if (text == NULL || *text < '0' || *text > '9')
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *value <= max;
}

static enum shoal_err bad_env(struct shoal_msg *msg, const char *name)
{
    const char *text = getenv(name);

    return shoal_fail(msg, SHOAL_ERR_INVALID, "%s=%s: not set as the runner sets it", name,
                      text == NULL ? "(none)" : text);
}

static enum shoal_err read_identity(struct shoal_comm *comm, struct shoal_msg *msg)
{
    const char *job = getenv(SHOAL_ENV_JOB);
    const char *node = getenv(SHOAL_ENV_NODE);
    const char *token = getenv(SHOAL_ENV_TOKEN);
    const char *path = getenv(SHOAL_ENV_SOCKET);
    uint64_t generation;
    uint64_t worker = 0;
    uint64_t slot = 0;

    if (job == NULL || !shoal_job_id_parse(job, &comm->hello.job))
        return bad_env(msg, SHOAL_ENV_JOB);
    if (!env_number(SHOAL_ENV_GENERATION, UINT32_MAX, &generation))
        return bad_env(msg, SHOAL_ENV_GENERATION);
    if (path == NULL || strlen(path) >= sizeof(comm->agent.path))
        return bad_env(msg, SHOAL_ENV_SOCKET);
    if (!env_number(SHOAL_ENV_WORKER, UINT64_MAX, &worker) && comm->role == SHOAL_ROLE_ENGINE)
        return bad_env(msg, SHOAL_ENV_WORKER);
    if (!env_number(SHOAL_ENV_SLOT, SHOAL_SLOTS_MAX - 1, &slot) && comm->role == SHOAL_ROLE_ENGINE)
        return bad_env(msg, SHOAL_ENV_SLOT);
    if ((node == NULL || !shoal_hex_parse(node, comm->node.bytes, 16)) && comm->role == SHOAL_ROLE_ENGINE)
        return bad_env(msg, SHOAL_ENV_NODE);
    if (token != NULL && !shoal_hex_parse(token, comm->hello.token, 16))
        return bad_env(msg, SHOAL_ENV_TOKEN);
    memcpy(comm->agent.path, path, strlen(path) + 1);
    comm->hello.generation = (uint32_t)generation;
    comm->hello.worker_id = worker;
    comm->hello.slot = (uint32_t)slot;
    comm->slot = (uint32_t)slot;
    return SHOAL_OK;
}

static enum shoal_err map_page(struct shoal_comm *comm, struct shoal_msg *msg)
{
    uint64_t fd;
    struct stat st;
    void *map;

    if (!env_number(SHOAL_ENV_CONTROL_FD, INT32_MAX, &fd) || fstat((int)fd, &st) != 0 ||
        (uint64_t)st.st_size < sizeof(struct shoal_control_page))
        return bad_env(msg, SHOAL_ENV_CONTROL_FD);
    map = mmap(NULL, sizeof(struct shoal_control_page), PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    if (map == MAP_FAILED)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot map the control page: %s", strerror(errno));
    (void)madvise(map, sizeof(struct shoal_control_page), MADV_DONTFORK);
    comm->page = map;
    if (comm->page->magic != SHOAL_CONTROL_MAGIC || comm->page->oldest > SHOAL_WORKER_VERSION)
        return shoal_fail(msg, SHOAL_ERR_UNSUPPORTED, "the control page is of version %u, this libshoal reads %u",
                          comm->page->version, SHOAL_WORKER_VERSION);
    comm->words = &comm->page->slots[comm->slot];
    return SHOAL_OK;
}

static enum shoal_err open_engine(struct shoal_comm *comm, struct shoal_msg *msg)
{
    enum shoal_err err = map_page(comm, msg);
    uint64_t fd;

    if (err != SHOAL_OK)
        return err;
    if (!env_number(SHOAL_ENV_ARENA_FD, INT32_MAX, &fd))
        return bad_env(msg, SHOAL_ENV_ARENA_FD);
    atomic_store(&comm->words->pid, (int32_t)getpid());
    return arena_open(&comm->arena, (int)fd, comm->slot, msg);
}

static enum shoal_err private_page(struct shoal_comm *comm, struct shoal_msg *msg)
{
    void *map =
        mmap(NULL, sizeof(struct shoal_control_page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a control page");
    comm->page = map;
    comm->words = &comm->page->slots[0];
    return SHOAL_OK;
}

static enum shoal_err open_solo(struct shoal_comm *comm, struct shoal_msg *msg)
{
    enum shoal_err err = private_page(comm, msg);
    int fd;

    if (err != SHOAL_OK)
        return err;
    comm->solo = true;
    comm->hello.worker_id = 1;
    fd = memfd_create("shoal-solo", MFD_CLOEXEC);
    if (fd < 0)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory file: %s", strerror(errno));
    comm->own_fd = fd;
    return arena_open(&comm->arena, fd, 0, msg);
}

static enum shoal_err take_memory(struct shoal_comm *comm, struct shoal_msg *msg)
{
    comm->agent.in = malloc(sizeof(*comm->agent.in));
    comm->agent.out = malloc(sizeof(*comm->agent.out));
    comm->agent.bytes = malloc(SHOAL_WORKER_MESSAGE_MAX);
    comm->next = calloc(1, sizeof(*comm->next));
    comm->failed = calloc(1, sizeof(*comm->failed));
    comm->snapshot = calloc(1, sizeof(*comm->snapshot));
    comm->train = calloc(1, sizeof(*comm->train));
    comm->driver_event = malloc(sizeof(*comm->driver_event));
    comm->driver_bytes = malloc(SHOAL_WORKER_MESSAGE_MAX);
    if (comm->agent.in == NULL || comm->agent.out == NULL || comm->agent.bytes == NULL || comm->next == NULL ||
        comm->failed == NULL || comm->snapshot == NULL || comm->train == NULL || comm->driver_event == NULL ||
        comm->driver_bytes == NULL || records_init(&comm->records) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a communicator");
    return SHOAL_OK;
}

static enum shoal_err comm_create(struct shoal_comm **out, uint32_t role, bool solo, const char *numeric_class,
                                  struct shoal_msg *msg)
{
    struct shoal_comm *comm = calloc(1, sizeof(*comm));
    pthread_mutexattr_t recursive;
    enum shoal_err err;

    if (comm == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for a communicator");
    comm->role = role;
    comm->agent.fd = comm->own_fd = comm->arena.fd = -1;
    comm->hello.role = (uint8_t)role;
    comm->hello.pid = (int32_t)getpid();
    comm->kernels = kernels_get();
    (void)pthread_mutex_init(&comm->lock, NULL);
    (void)pthread_mutexattr_init(&recursive);
    (void)pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    (void)pthread_mutex_init(&comm->fabric_lock, &recursive);
    (void)pthread_mutexattr_destroy(&recursive);
    err = take_memory(comm, msg);
    if (err == SHOAL_OK)
        err = fault_init(&comm->fault, getenv("SHOAL_FAULT"), msg);
    if (err == SHOAL_OK && numeric_class != NULL && strlen(numeric_class) >= sizeof(comm->hello.numeric_class))
        err = shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the numeric class is longer than %zu bytes",
                         sizeof(comm->hello.numeric_class) - 1);
    if (err == SHOAL_OK && numeric_class != NULL)
        memcpy(comm->hello.numeric_class, numeric_class, strlen(numeric_class) + 1);
    if (err == SHOAL_OK && !solo)
        err = read_identity(comm, msg);
    if (err == SHOAL_OK)
        err = solo                        ? open_solo(comm, msg)
              : role == SHOAL_ROLE_ENGINE ? open_engine(comm, msg)
                                          : private_page(comm, msg);
    if (err != SHOAL_OK) {
        shoal_comm_close(comm);
        return err;
    }
    wait_set_spin(comm);
    (void)pthread_mutex_lock(&comm->lock);
    agent_turn(comm, 1);
    (void)pthread_mutex_unlock(&comm->lock);
    *out = comm;
    return SHOAL_OK;
}

static enum shoal_err finish_open(enum shoal_err err, const struct shoal_msg *msg, char *error)
{
    if (err != SHOAL_OK && error != NULL)
        memcpy(error, msg->text, sizeof(msg->text));
    return err;
}

enum shoal_err shoal_comm_open(struct shoal_comm **comm, uint32_t role, const char *numeric_class, char *error)
{
    struct shoal_msg msg = { { 0 } };

    if (role >= SHOAL_ROLE_COUNT)
        return finish_open(shoal_fail(&msg, SHOAL_ERR_INVALID, "role %u is none", role), &msg, error);
    return finish_open(comm_create(comm, role, getenv(SHOAL_ENV_SOCKET) == NULL, numeric_class, &msg), &msg, error);
}

enum shoal_err shoal_comm_open_solo(struct shoal_comm **comm, char *error)
{
    struct shoal_msg msg = { { 0 } };

    return finish_open(comm_create(comm, SHOAL_ROLE_ENGINE, true, NULL, &msg), &msg, error);
}

void shoal_comm_close(struct shoal_comm *comm)
{
    if (comm == NULL)
        return;
    epoch_close(comm);
    op_queue_destroy(comm);
    device_destroy(comm->device);
    agent_stop_thread(comm);
    fabric_destroy(comm);
    agent_close(comm);
    exchange_destroy(comm);
    arena_close(&comm->arena);
    if (comm->own_fd >= 0)
        (void)close(comm->own_fd);
    if (comm->page != NULL)
        (void)munmap(comm->page, sizeof(*comm->page));
    records_deinit(&comm->records);
    free(comm->agent.in);
    free(comm->agent.out);
    free(comm->agent.bytes);
    free(comm->next);
    free(comm->failed);
    free(comm->snapshot);
    free(comm->train);
    free(comm->driver_event);
    free(comm->driver_bytes);
    free(comm->copy_result);
    free(comm->touched);
    free(comm->update.parts);
    (void)pthread_mutex_destroy(&comm->fabric_lock);
    (void)pthread_mutex_destroy(&comm->lock);
    free(comm);
}

const char *shoal_comm_error(const struct shoal_comm *comm) { return comm->msg.text; }
int shoal_comm_is_solo(const struct shoal_comm *comm) { return comm->solo ? 1 : 0; }

enum shoal_err shoal_comm_wait_call(struct shoal_comm *comm, int timeout_ms, struct shoal_comm_call *call)
{
    uint64_t deadline_ns = comm_deadline_ns(timeout_ms);

    memset(call, 0, sizeof(*call));
    (void)pthread_mutex_lock(&comm->lock);
    comm->main_waits = true;
    if (comm->solo)
        solo_call(comm);
    while (!comm->call_valid && !atomic_load(&comm->stop) && comm_now_ns() < deadline_ns) {
        (void)pthread_mutex_unlock(&comm->lock);
        agent_wait(comm, deadline_ns);
        (void)pthread_mutex_lock(&comm->lock);
    }
    comm->main_waits = false;
    if (atomic_load(&comm->stop)) {
        call->event = comm->released ? SHOAL_EVENT_RELEASED : SHOAL_EVENT_STOPPED;
        call->reason = comm->stop_message.reason;
        memcpy(call->text, comm->stop_message.text, sizeof(call->text));
    } else if (comm->call_valid) {
        comm->call_valid = false;
        call->event = SHOAL_EVENT_CALL;
        call->call = comm->call.call;
        call->job_seed = comm->call.job_seed;
        memcpy(call->bundle_path, comm->call.bundle_path, sizeof(call->bundle_path));
    }
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}

static enum shoal_err check_plan(struct shoal_comm *comm, const struct shoal_comm_plan *plan)
{
    if (plan->metric_count > SHOAL_METRICS_MAX)
        return comm_fail(comm, SHOAL_ERR_TOO_BIG, "%u values per mini-batch: at most %u", plan->metric_count,
                         SHOAL_METRICS_MAX);
    for (uint32_t i = 0; i < plan->metric_count; i++)
        if (plan->metric_names == NULL || plan->metric_names[i] == NULL ||
            strlen(plan->metric_names[i]) >= SHOAL_NAME_TEXT_BYTES)
            return comm_fail(comm, SHOAL_ERR_INVALID, "metric %u needs a name below %u bytes", i,
                             SHOAL_NAME_TEXT_BYTES);
    if (plan->virtual_workers == 0 || plan->virtual_workers > SHOAL_VIRTUAL_MAX)
        return comm_fail(comm, SHOAL_ERR_TOO_BIG, "%u mini-batches a step: the sync interval must be 1 to %u",
                         plan->virtual_workers, SHOAL_VIRTUAL_MAX);
    if (record_bytes(plan->virtual_workers, plan->metric_count) > SHOAL_WORKER_MESSAGE_MAX - 64)
        return comm_fail(comm, SHOAL_ERR_TOO_BIG,
                         "the record of a step of %u mini-batches with %u values each is larger than a message of %u "
                         "bytes; lower the sync interval or the number of metrics",
                         plan->virtual_workers, plan->metric_count, SHOAL_WORKER_MESSAGE_MAX);
    return SHOAL_OK;
}

static void fill_ready(struct shoal_comm *comm, const struct shoal_comm_plan *plan)
{
    struct shoal_worker_ready *ready = &comm->ready;

    *ready = (struct shoal_worker_ready){
        .call = plan->call,
        .virtual_workers = plan->virtual_workers,
        .sum_elems = plan->sum_elems,
        .copy_bytes = plan->copy_bytes,
        .samples = plan->samples,
        .minibatch = plan->minibatch,
        .data_epochs = plan->data_epochs,
        .steps_per_epoch = plan->steps_per_epoch,
        .metric_count = (uint8_t)plan->metric_count,
    };
    for (uint32_t i = 0; i < plan->metric_count; i++)
        memcpy(ready->metric_names[i], plan->metric_names[i], strlen(plan->metric_names[i]) + 1);
    ready->address = shoal_view_of(comm->address, comm->address_len);
}

static enum shoal_err lay_out(struct shoal_comm *comm, const struct shoal_comm_plan *plan)
{
    struct arena_layout layout;
    enum shoal_err err = arena_layout_init(&layout, plan, &comm->msg);

    if (err == SHOAL_OK && comm->device != NULL)
        device_unpin_all(comm->device);
    if (err == SHOAL_OK)
        err = arena_use(&comm->arena, &layout, &comm->msg);
    if (err != SHOAL_OK)
        return err;
    free(comm->copy_result);
    free(comm->touched);
    comm->copy_result = calloc(1, layout.copy_bytes + 1);
    comm->touched = calloc(1, layout.touched_bytes + 1u);
    if (comm->copy_result == NULL || comm->touched == NULL)
        return comm_fail(comm, SHOAL_ERR_FULL, "no memory for %llu bytes of buffers",
                         (unsigned long long)layout.copy_bytes);
    return exchange_create(comm);
}

enum shoal_err shoal_comm_ready(struct shoal_comm *comm, const struct shoal_comm_plan *plan)
{
    enum shoal_err err = check_plan(comm, plan);

    if (err != SHOAL_OK)
        return err;
    fault_point(&comm->fault, FAULT_BEFORE_READY, plan->call);
    epoch_close(comm);
    op_drain(comm);
    fabric_leave(comm);
    err = lay_out(comm, plan);
    if (err == SHOAL_OK && !comm->solo)
        err = fabric_create(comm);
    if (err == SHOAL_OK)
        err = agent_start_thread(comm);
    if (err != SHOAL_OK)
        return err;
    (void)pthread_mutex_lock(&comm->lock);
    comm->plan = *plan;
    comm->plan.metric_names = NULL; /* the caller's memory */
    comm->planned = true;
    comm->finished = comm->write_final = comm->stateless = comm->next_valid = false;
    comm->fresh = true;
    comm->agent.known &= ~(uint32_t)(FACT_CLOSED | FACT_DONE | FACT_FILES | FACT_SNAPSHOT);
    comm->agent.unsent &= comm->agent.known;
    atomic_store(&comm->applied, 0);
    atomic_store(&comm->complete, 0);
    comm->epoch.size = 0;
    comm->update.count = 0;
    comm->update.shown = 0;
    atomic_store(&arena_my_words(&comm->arena)->update_begun, 0);
    records_clear(&comm->records, 0);
    fill_ready(comm, plan);
    step_reset(comm);
    atomic_store(&comm->words->applied_step, 0);
    atomic_store(&comm->words->complete_step, 0);
    atomic_store(&comm->words->activity, SHOAL_ACTIVITY_READY);
    agent_tell(comm, FACT_READY);
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}

static void *slot_at(struct shoal_comm *comm, uint64_t at)
{
    return comm->planned ? (void *)(arena_mine(&comm->arena) + at) : NULL;
}

float *shoal_comm_work(struct shoal_comm *comm) { return slot_at(comm, comm->arena.layout.work_at); }
float *shoal_comm_result(struct shoal_comm *comm) { return (float *)(void *)comm->arena.map; }

enum shoal_err shoal_comm_result_parts(struct shoal_comm *comm, struct shoal_result_part *parts, uint32_t cap, uint32_t *count)
{
    struct arena *arena = &comm->arena;

    *count = 0;
    if (!comm->planned || cap < arena->map_count)
        return comm_fail(comm, SHOAL_ERR_INVALID, "room for %u of %u parts of the result", cap, arena->map_count);
    for (uint32_t i = 0; i < arena->map_count; i++) {
        const struct arena_part *part = &arena->map_parts[i];
        uint64_t begin = part->begin / sizeof(float);
        uint64_t end = part->end / sizeof(float);
        uint8_t *region = arena_region(arena, part->slot);

        if (region == NULL)
            return comm_fail(comm, SHOAL_ERR_FULL, "cannot map the arena region of slot %u", part->slot);
        end = end < arena->layout.sum_elems ? end : arena->layout.sum_elems; /* a part ends with a page */
        if (begin < end)
            parts[(*count)++] = (struct shoal_result_part){
                begin, end - begin, (float *)(void *)(region + arena->layout.result_at + part->begin)
            };
    }
    return SHOAL_OK;
}

uint8_t *shoal_comm_copy_work(struct shoal_comm *comm) { return slot_at(comm, comm->arena.layout.copy_work_at); }
uint8_t *shoal_comm_copy_result(struct shoal_comm *comm) { return comm->copy_result; }
uint8_t *shoal_comm_touched(struct shoal_comm *comm) { return comm->touched; }

void *shoal_comm_scratch(struct shoal_comm *comm, uint64_t *bytes)
{
    if (bytes != NULL)
        *bytes = comm->arena.layout.scratch_bytes;
    return slot_at(comm, comm->arena.layout.scratch_at);
}

enum shoal_err shoal_comm_done(struct shoal_comm *comm, uint64_t final_step, uint64_t state_digest)
{
    fault_point(&comm->fault, FAULT_DONE, final_step);
    if (!comm->planned || atomic_load(&comm->applied) != final_step)
        return comm_fail(comm, SHOAL_ERR_INVALID, "done with step %llu, but step %llu is applied",
                         (unsigned long long)final_step, (unsigned long long)atomic_load(&comm->applied));
    atomic_store(&comm->words->activity, SHOAL_ACTIVITY_DONE);
    (void)pthread_mutex_lock(&comm->lock);
    comm->finished = true;
    comm->done =
        (struct shoal_worker_done){ .call = comm->plan.call, .final_step = final_step, .state_digest = state_digest };
    agent_tell(comm, FACT_DONE);
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}

enum shoal_err shoal_comm_files_written(struct shoal_comm *comm, uint64_t final_step)
{
    fault_point(&comm->fault, FAULT_BEFORE_FILES, final_step);
    (void)pthread_mutex_lock(&comm->lock);
    comm->files = (struct shoal_worker_acked){ .call = comm->plan.call, .step = final_step };
    agent_tell(comm, FACT_FILES);
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}

enum shoal_err shoal_comm_failed(struct shoal_comm *comm, int failure, const char *text)
{
    size_t len = strlen(text);

    if (len >= sizeof(comm->failed->text))
        len = sizeof(comm->failed->text) - 1; /* the cause comes first */
    (void)pthread_mutex_lock(&comm->lock);
    comm->failed->call = comm->planned ? comm->plan.call : comm->call.call;
    comm->failed->user_code = failure == SHOAL_COMM_FAILED_USER_CODE;
    comm->failed->unfit = failure == SHOAL_COMM_FAILED_HOST;
    memcpy(comm->failed->text, text, len);
    comm->failed->text[len] = '\0';
    agent_tell(comm, FACT_FAILED);
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}

enum shoal_err shoal_comm_snapshot(struct shoal_comm *comm, uint64_t step, const char *path)
{
    if (strlen(path) >= sizeof(comm->snapshot->path))
        return comm_fail(comm, SHOAL_ERR_TOO_BIG, "the path of a snapshot is longer than %zu bytes",
                         sizeof(comm->snapshot->path) - 1);
    (void)pthread_mutex_lock(&comm->lock);
    comm->snapshot->call = comm->plan.call;
    comm->snapshot->step = step;
    memcpy(comm->snapshot->path, path, strlen(path) + 1);
    agent_tell(comm, FACT_SNAPSHOT);
    (void)pthread_mutex_unlock(&comm->lock);
    return SHOAL_OK;
}

void shoal_comm_set_activity(struct shoal_comm *comm, uint32_t activity)
{
    if (activity < SHOAL_ACTIVITY_COUNT)
        atomic_store(&comm->words->activity, activity);
}

int shoal_comm_revoked(struct shoal_comm *comm) { return epoch_is_revoked(comm) ? 1 : 0; }
uint32_t shoal_comm_rank(const struct shoal_comm *comm) { return comm->epoch.rank; }
uint32_t shoal_comm_size(const struct shoal_comm *comm) { return comm->epoch.size; }
uint64_t shoal_comm_worker_id(const struct shoal_comm *comm) { return comm->hello.worker_id; }
uint64_t shoal_comm_applied_step(const struct shoal_comm *comm) { return atomic_load(&comm->applied); }
