/* This host's workers and the control plane speak to each other through this file.
 *
 *   worker --RECORDS--> ledger, and the core: progress   core --CALL, EPOCH, TRAIN_STATE--> blob made a file --> worker
 *   worker --TRAIN, SNAPSHOT--> file stored as a blob --> core ("blob:<hash>" in place of the path)
 *   ledger --TRAIN_RECORDS--> driver, in order, at most WINDOW unacknowledged; all of them before TRAIN_STATE FINISHED
 */
#include "agent_workers.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"

#include "agent_ledger.h"
#include "agent_words.h"

#include "shoal/banned.h"

#define FILES_WAIT_MS 5000u /* of other hosts, before a script hears that an engine failed */
#define FEED_MS 50
/* A file that does not come (its hosts are away for a moment) is asked for again, a little later each time. */
#define FILE_TRIES_MAX 20
#define FILE_RETRY_MS 250
#define FEED_WINDOW 2048
#define FEED_BYTES (48 * SHOAL_KIB)
#define FINISH_WAIT_NS (5 * SHOAL_S)
#define LEDGER_WAIT_NS (20 * SHOAL_S)

/* A driver that is fed with records. One per agent and call is plenty: drivers are few. */
struct feed {
    struct agent *agent;
    uint64_t worker_id;
    struct shoal_job_id job;
    uint32_t call;
    uint64_t sent;
    uint64_t acked;
    bool finishing;
    uint64_t finish_by_ns;
    uint64_t final_step;
    struct shoal_worker_message *finish;
    uv_timer_t timer;
    struct feed *next;
};

static struct feed *feeds; /* of this process's one agent; owned by its loop */

/* ---- to workers ---- */

struct sending {
    struct agent *agent;
    uint64_t worker_id;
    struct shoal_hash hash;
    unsigned tries;
    struct shoal_worker_message message;
};

static char *file_text(struct shoal_worker_message *message)
{
    if (message->kind == SHOAL_WORKER_CALL)
        return message->call.bundle_path;
    if (message->kind == SHOAL_WORKER_EPOCH)
        return message->epoch.snapshot_path;
    if (message->kind == SHOAL_WORKER_TRAIN_STATE)
        return message->train_state.files_path;
    return NULL;
}

static void feed_note(struct agent *agent, uint64_t worker_id, struct agent_job *job,
                      const struct shoal_worker_message *message);

static void on_materialised(void *arg, enum shoal_err err, const char *path);
static void store_then_tell(struct agent_job *job, struct sending *sending);

static void on_retry(uv_timer_t *timer)
{
    struct sending *sending = timer->data;
    struct agent_job *job = NULL;

    if (agent_run_find(sending->agent, sending->worker_id, &job) == NULL)
        free(sending);
    else if (sending->message.kind == SHOAL_WORKER_TRAIN || sending->message.kind == SHOAL_WORKER_SNAPSHOT)
        store_then_tell(job, sending);
    else
        agent_materialise(sending->agent, job->id, sending->hash, on_materialised, sending);
    uv_close((uv_handle_t *)timer, (uv_close_cb)free);
}

static void retry_later(struct sending *sending)
{
    uv_timer_t *timer = malloc(sizeof(*timer));

    SHOAL_ASSERT(timer != NULL);
    (void)uv_timer_init(&sending->agent->loop, timer);
    timer->data = sending;
    (void)uv_timer_start(timer, on_retry, FILE_RETRY_MS * sending->tries, 0);
}

static void on_materialised(void *arg, enum shoal_err err, const char *path)
{
    struct sending *sending = arg;
    struct agent *agent = sending->agent;
    struct agent_job *job = NULL;

    if (agent->stopping || (err != SHOAL_OK && ++sending->tries == FILE_TRIES_MAX)) {
        free(sending);
        return;
    }
    if (err == SHOAL_OK) {
        if (sending->message.kind == SHOAL_WORKER_CALL && agent_run_find(agent, sending->worker_id, &job) != NULL)
            agent_job_call(agent, job, path);
        (void)snprintf(file_text(&sending->message), SHOAL_PATH_TEXT_BYTES, "%s", path);
        workers_send(agent->workers, sending->worker_id, &sending->message);
        free(sending);
        return;
    }
    agent_log(agent, "worker %llu does not get its file yet: %s", (unsigned long long)sending->worker_id, path);
    retry_later(sending);
}

/* The final files of a call, in a folder of their own: the result folder may hold those of a later call by now. */
struct restoring {
    struct agent *agent;
    struct shoal_job_id job;
    struct sending *sending;
    char *lines;
    char *at;
    char root[AGENT_PATH_BYTES];
    char path[AGENT_PATH_BYTES + 300];
};

static void restore_next(struct restoring *r);

static void restore_end(struct restoring *r, enum shoal_err err, const char *text)
{
    struct agent_job *job = agent_job_find(r->agent, r->job);
    struct sending *sending = r->sending;

    if (err == SHOAL_OK && job != NULL && !r->agent->stopping) {
        (void)snprintf(sending->message.train_state.files_path, SHOAL_PATH_TEXT_BYTES, "%s/model/train", r->root);
        feed_note(r->agent, sending->worker_id, job, &sending->message);
    } else {
        agent_log(r->agent, "the final files of a call did not come: %s", text);
    }
    free(sending);
    free(r->lines);
    free(r);
}

static void on_restored(void *arg, enum shoal_err err, const char *path)
{
    struct restoring *r = arg;

    if (err != SHOAL_OK || (link(path, r->path) != 0 && access(r->path, R_OK) != 0)) {
        restore_end(r, SHOAL_ERR_STORAGE, err != SHOAL_OK ? path : "a file could not be put in place");
        return;
    }
    restore_next(r);
}

static void restore_next(struct restoring *r)
{
    struct shoal_hash hash;

    while (r->at != NULL && *r->at != '\0') {
        char *line = r->at;
        char *end = strchr(line, '\n');
        char name[256];
        char hex[SHOAL_HASH_TEXT_BYTES];

        if (end == NULL)
            break;
        *end = '\0';
        r->at = end + 1;
        if (sscanf(line, "%64s %*u %*u %*c %255[^\n]", hex, name) != 2 || !shoal_hex_parse(hex, hash.bytes, 32))
            continue;
        (void)snprintf(r->path, sizeof(r->path), "%s/%s", r->root, name);
        if (access(r->path, R_OK) == 0)
            continue;
        for (char *slash = strchr(r->path + strlen(r->root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            (void)mkdir(r->path, 0700);
            *slash = '/';
        }
        agent_materialise(r->agent, r->job, hash, on_restored, r);
        return;
    }
    restore_end(r, SHOAL_OK, "");
}

static void on_manifest(void *arg, enum shoal_err err, const char *text, struct shoal_view bytes)
{
    struct restoring *r = arg;

    if (err != SHOAL_OK) {
        restore_end(r, err, text);
        return;
    }
    r->lines = malloc(bytes.len + 1);
    SHOAL_ASSERT(r->lines != NULL);
    memcpy(r->lines, bytes.bytes, bytes.len);
    r->lines[bytes.len] = '\0';
    r->at = r->lines;
    restore_next(r);
}

static void restore_files(struct agent *agent, struct agent_job *job, struct sending *sending,
                          struct shoal_hash manifest)
{
    struct restoring *r = calloc(1, sizeof(*r));

    SHOAL_ASSERT(r != NULL);
    r->agent = agent;
    r->job = job->id;
    r->sending = sending;
    agent_job_folder(agent, job->id, r->root, sizeof(r->root) - 40);
    memcpy(r->root + strlen(r->root), "/files-", 8);
    shoal_hex_text(manifest.bytes, 8, r->root + strlen(r->root));
    (void)mkdir(r->root, 0700);
    agent_read_blob(agent, job->id, manifest, 4 * SHOAL_MIB, on_manifest, r);
}

/* The files that engines wrote before one of them failed are here when the script hears of it. */
static void on_files_here(void *arg, bool all)
{
    struct sending *sending = arg;
    struct agent_job *job = NULL;

    (void)all; /* the script hears of it in any case */
    if (!sending->agent->stopping && agent_run_find(sending->agent, sending->worker_id, &job) != NULL)
        feed_note(sending->agent, sending->worker_id, job, &sending->message);
    free(sending);
}

/* What is written here from now on is of this call, or a later one (N2 of tree_disk.c): told to a worker, or by one that an
 * agent found at its start. */
static void note_call(struct agent *agent, uint64_t worker_id, const struct shoal_worker_message *message)
{
    struct agent_job *job = NULL;
    uint32_t call = 0;

    if (message->kind == SHOAL_WORKER_CALL)
        call = message->call.call;
    else if (message->kind == SHOAL_WORKER_TRAIN_STATE)
        call = message->train_state.call;
    else if (message->kind == SHOAL_WORKER_HELLO)
        call = message->hello.call;

    if (call > 0 && agent_run_find(agent, worker_id, &job) != NULL && call > job->call)
        job->call = call;
}

void agent_worker_send(struct agent *agent, const struct shoal_host_order *order)
{
    const struct shoal_worker_message *message = order->u.send.message;
    const uint64_t worker_id = order->u.send.worker_id;
    struct sending *sending = malloc(sizeof(*sending));
    struct agent_job *job = NULL;
    struct shoal_hash hash;
    char *text;

    if (sending == NULL)
        return;
    *sending = (struct sending){ .agent = agent, .worker_id = worker_id };
    memcpy(&sending->message, message, order->u.send.message_bytes);
    text = file_text(&sending->message);
    note_call(agent, worker_id, message);
    if (message->kind == SHOAL_WORKER_TRAIN_STATE && message->train_state.state == SHOAL_TRAIN_FAILED &&
        agent_run_find(agent, worker_id, &job) != NULL) {
        agent_tree_await(agent, job->id, false, FILES_WAIT_MS, on_files_here, sending);
        return;
    }
    if (agent_run_find(agent, worker_id, &job) == NULL || text == NULL || strncmp(text, "blob:", 5) != 0 ||
        !shoal_hex_parse(text + 5, hash.bytes, sizeof(hash.bytes))) {
        if (job != NULL && message->kind == SHOAL_WORKER_TRAIN_STATE)
            feed_note(agent, worker_id, job, message);
        else
            workers_send(agent->workers, worker_id, message);
        free(sending);
        return;
    }
    sending->hash = hash;
    if (message->kind == SHOAL_WORKER_TRAIN_STATE)
        restore_files(agent, job, sending, hash);
    else
        agent_materialise(agent, job->id, hash, on_materialised, sending);
}

/* ---- records for a driver ---- */

static void on_feed_closed(uv_handle_t *handle)
{
    struct feed *feed = handle->data;

    free(feed->finish);
    free(feed);
}

static void feed_end(struct feed *feed)
{
    struct feed **at = &feeds;

    while (*at != feed)
        at = &(*at)->next;
    *at = feed->next;
    uv_close((uv_handle_t *)&feed->timer, on_feed_closed);
}

static void on_feed(uv_timer_t *timer)
{
    struct feed *feed = timer->data;
    struct agent *agent = feed->agent;
    struct agent_job *job = agent_job_find(agent, feed->job);
    static uint8_t bytes[FEED_BYTES];
    static struct shoal_worker_message message;

    if (job == NULL || agent_run_find(agent, feed->worker_id, &job) == NULL) {
        feed_end(feed);
        return;
    }
    while (feed->sent < feed->acked + FEED_WINDOW) {
        uint64_t first;
        uint32_t count;
        size_t len = agent_ledger_read(agent, job, feed->call, feed->sent, bytes, sizeof(bytes), &first, &count);

        if (count == 0)
            break;
        message = (struct shoal_worker_message){ .kind = SHOAL_WORKER_TRAIN_RECORDS };
        message.records = (struct shoal_worker_records){
            .call = feed->call, .first_step = first, .count = count, .records = shoal_view_of(bytes, len)
        };
        workers_send(agent->workers, feed->worker_id, &message);
        feed->sent += count;
    }
    if (feed->finishing && (feed->sent >= feed->final_step || agent_now_ns() > feed->finish_by_ns)) {
        workers_send(agent->workers, feed->worker_id, feed->finish);
        feed_end(feed);
    }
}

/* TRAIN_STATE passes through here: it begins a feed, and FINISHED waits for its last record. */
static void feed_note(struct agent *agent, uint64_t worker_id, struct agent_job *job,
                      const struct shoal_worker_message *message)
{
    const struct shoal_worker_train_state *state = &message->train_state;
    struct feed *feed = feeds;

    while (feed != NULL && !(feed->worker_id == worker_id && feed->call == state->call))
        feed = feed->next;
    if (feed == NULL) {
        feed = calloc(1, sizeof(*feed));
        SHOAL_ASSERT(feed != NULL);
        feed->agent = agent;
        feed->worker_id = worker_id;
        feed->job = job->id;
        feed->call = state->call;
        feed->sent = state->acked_step;
        feed->acked = state->acked_step;
        (void)uv_timer_init(&agent->loop, &feed->timer);
        feed->timer.data = feed;
        (void)uv_timer_start(&feed->timer, on_feed, 0, FEED_MS);
        feed->next = feeds;
        feeds = feed;
    }
    if (state->state != SHOAL_TRAIN_FINISHED) {
        workers_send(agent->workers, worker_id, message);
        return;
    }
    if (feed->finishing)
        return;
    feed->finishing = true;
    feed->final_step = state->final_step;
    feed->finish_by_ns = agent_now_ns() + FINISH_WAIT_NS;
    feed->finish = malloc(sizeof(*feed->finish));
    SHOAL_ASSERT(feed->finish != NULL);
    *feed->finish = *message;
}

static void feed_acked(uint64_t worker_id, const struct shoal_worker_acked *acked)
{
    for (struct feed *feed = feeds; feed != NULL; feed = feed->next)
        if (feed->worker_id == worker_id && feed->call == acked->call && acked->step > feed->acked)
            feed->acked = acked->step;
}

/* A driver that connects anew has forgotten what was on its way. */
static void feed_restart(uint64_t worker_id)
{
    for (struct feed *feed = feeds; feed != NULL; feed = feed->next)
        if (feed->worker_id == worker_id)
            feed->sent = feed->acked;
}

/* ---- from workers ---- */

static void tell_core(struct agent *agent, uint64_t worker_id, const struct shoal_worker_message *message)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MESSAGE };

    event.u.worker.worker_id = worker_id;
    event.u.worker.message = message;
    agent_host_event(agent, &event);
}

#define LINES_MAX 20u
#define LINES_NS (10 * SHOAL_S)

/* What a worker says, and how often, is its job's to choose: so it may fill so many lines of the log at a time. */
static bool may_log(struct agent *agent, const struct agent_job *job, struct agent_run *run)
{
    const uint64_t now_ns = uv_now(&agent->loop) * SHOAL_MS;

    if (run->lines == 0 || now_ns >= run->lines_ns + LINES_NS) {
        run->lines = 0;
        run->lines_ns = now_ns;
    }
    if (++run->lines == LINES_MAX)
        agent_log(agent, "%s: worker %llu says too much; for %u s it is not logged", job->text, (unsigned long long)run->worker_id,
                  (unsigned)(LINES_NS / SHOAL_S));
    if (run->lines > LINES_MAX)
        run->lines = LINES_MAX;
    return run->lines < LINES_MAX;
}

/* A file that is named, but cannot be kept: a call ends, and its train() says why; a snapshot is left out. */
static void not_stored(struct sending *sending, const char *text)
{
    uint32_t call = sending->message.train.call;
    struct shoal_worker_train_state *state = &sending->message.train_state;
    struct agent_job *job = NULL;
    struct agent_run *run = agent_run_find(sending->agent, sending->worker_id, &job);

    if (run == NULL || may_log(sending->agent, job, run))
        agent_log(sending->agent, "a file of worker %llu is not kept: %s", (unsigned long long)sending->worker_id, text);
    if (sending->message.kind != SHOAL_WORKER_TRAIN)
        return;
    memset(&sending->message, 0, sizeof(sending->message));
    sending->message.kind = SHOAL_WORKER_TRAIN_STATE;
    state->call = call;
    state->state = SHOAL_TRAIN_FAILED;
    (void)snprintf(state->text, sizeof(state->text), "its bundle cannot be kept on this host: %s", text);
    workers_send(sending->agent->workers, sending->worker_id, &sending->message);
}

/* A snapshot is what a job starts again from: the records before it would be missing for ever. */
static void on_snapshot_settled(void *arg, bool held)
{
    struct sending *sending = arg;

    if (held && !sending->agent->stopping)
        tell_core(sending->agent, sending->worker_id, &sending->message);
    else if (!sending->agent->stopping)
        not_stored(sending, "no majority of the job's guardians has the records before it");
    free(sending);
}

static void tell_stored(struct sending *sending)
{
    struct agent_job *job = NULL;

    if (sending->message.kind == SHOAL_WORKER_SNAPSHOT &&
        agent_run_find(sending->agent, sending->worker_id, &job) != NULL) {
        agent_ledger_settle(sending->agent, job, sending->message.snapshot.call, sending->message.snapshot.step,
                            LEDGER_WAIT_NS, on_snapshot_settled, sending);
        return;
    }
    tell_core(sending->agent, sending->worker_id, &sending->message);
    free(sending);
}

static void on_file_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct sending *sending = arg;
    struct agent *agent = sending->agent;
    char *path = sending->message.kind == SHOAL_WORKER_TRAIN ? sending->message.train.bundle_path
                                                             : sending->message.snapshot.path;

    if (err == SHOAL_ERR_FULL && !agent->stopping && ++sending->tries < FILE_TRIES_MAX) {
        retry_later(sending); /* the store is busy */
        return;
    }
    /* UNREACHABLE: kept here alone; a mesh of one host, or the others are away. The leader's entry is what counts. */
    if (err == SHOAL_OK || err == SHOAL_ERR_UNREACHABLE) {
        memcpy(path, "blob:", 6);
        shoal_hex_text(hash.bytes, sizeof(hash.bytes), path + 5);
        tell_stored(sending);
        return;
    }
    if (!agent->stopping)
        not_stored(sending, text);
    free(sending);
}

static void store_then_tell(struct agent_job *job, struct sending *sending)
{
    const char *path = sending->message.kind == SHOAL_WORKER_TRAIN ? sending->message.train.bundle_path
                                                                   : sending->message.snapshot.path;
    char text[SHOAL_PATH_TEXT_BYTES + 60];

    if (path[0] == '/') {
        agent_store_file(sending->agent, job->id, path, on_file_stored, sending);
        return;
    }
    (void)snprintf(text, sizeof(text), "\"%s\" is not an absolute path", path);
    on_file_stored(sending, SHOAL_ERR_INVALID, text, (struct shoal_hash){ { 0 } });
}

/* In constant time: who guesses learns nothing from how long it takes. */
static bool knows(void *arg, struct shoal_job_id id, const struct shoal_worker_hello *hello)
{
    struct agent_job *job = NULL;
    const struct agent_run *run = agent_run_find(arg, hello->worker_id, &job);

    return run != NULL && shoal_job_id_equal(job->id, id) &&
           shoal_secret_equal(hello->token, run->token, sizeof(run->token));
}

/* Bit r of the number is rank r. */
static void log_unheard(struct agent *agent, const struct agent_job *job, uint64_t worker_id,
                        const struct shoal_worker_unheard *unheard)
{
    char text[2 + 16 * SHOAL_RANKS_WORDS + 1];
    uint32_t words = shoal_ranks_words(&unheard->ranks);
    int len = snprintf(text, sizeof(text), "%#llx", (unsigned long long)unheard->ranks.words[words - 1]);

    for (uint32_t i = words - 1; i > 0; i--)
        len += snprintf(text + len, sizeof(text) - (size_t)len, "%016llx", (unsigned long long)unheard->ranks.words[i - 1]);
    agent_log(agent, "%s: worker %llu, epoch %u.%u: ranks %s on other hosts are silent", job->text,
              (unsigned long long)worker_id, unheard->epoch.e, unheard->epoch.k, text);
}

static bool on_message(void *arg, struct shoal_job_id id, uint64_t worker_id,
                       const struct shoal_worker_message *message)
{
    struct agent *agent = arg;
    struct agent_job *job = NULL;
    struct agent_run *run = agent_run_find(agent, worker_id, &job);

    if (run == NULL || !shoal_job_id_equal(job->id, id))
        return false; /* its runner is not found yet, or it is not one of ours, and ends with its runner */
    note_call(agent, worker_id, message);
    switch (message->kind) {
    case SHOAL_WORKER_RECORDS: agent_ledger_records(agent, job, worker_id, &message->records); break;
    case SHOAL_WORKER_TRAIN:
    case SHOAL_WORKER_SNAPSHOT: {
        struct sending *sending = malloc(sizeof(*sending));

        SHOAL_ASSERT(sending != NULL);
        *sending = (struct sending){ .agent = agent, .worker_id = worker_id, .message = *message };
        store_then_tell(job, sending);
        return true;
    }
    case SHOAL_WORKER_TRAIN_ACKED: feed_acked(worker_id, &message->acked); break;
    case SHOAL_WORKER_HELLO: feed_restart(worker_id); break;
    case SHOAL_WORKER_UNHEARD:
        if (may_log(agent, job, run))
            log_unheard(agent, job, worker_id, &message->unheard);
        break;
    case SHOAL_WORKER_CLOSED:
        if (may_log(agent, job, run))
            agent_log(agent, "%s: worker %llu left epoch %u.%u, step %llu applied, %llu complete", job->text,
                      (unsigned long long)worker_id, message->closed.epoch.e, message->closed.epoch.k,
                      (unsigned long long)message->closed.applied_step, (unsigned long long)message->closed.complete_step);
        break;
    default: break;
    }
    tell_core(agent, worker_id, message);
    return true;
}

static void on_started(void *arg, uint64_t worker_id, int32_t pid)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STARTED };

    event.u.started.worker_id = worker_id;
    event.u.started.pid = pid;
    agent_host_event(arg, &event);
}

/* The last words that the process wrote to its stderr, for people. */
static void last_words(const struct agent_job *job, const struct agent_run *run, char *text, size_t cap)
{
    char path[AGENT_LOG_BYTES];
    static char tail[AGENT_WORDS_TAIL_BYTES];
    struct stat facts;
    ssize_t len = -1;
    int fd;

    text[0] = '\0';
    agent_run_log(run, "stderr", path, sizeof(path));
    fd = shoal_open_below(job->result_dir, path, O_RDONLY);
    if (fd >= 0 && fstat(fd, &facts) == 0)
        len = pread(fd, tail, sizeof(tail) - 1,
                    facts.st_size < (off_t)sizeof(tail) ? 0 : facts.st_size - (off_t)sizeof(tail) + 1);
    if (fd >= 0)
        (void)close(fd);
    for (ssize_t i = 0; i < len; i++) /* a log may hold anything */
        if (tail[i] == '\0')
            tail[i] = ' ';
    tail[len < 0 ? 0 : len] = '\0';
    agent_words(tail, text, cap);
}

/* A task that has printed nothing leaves no file: an array has many. */
static void drop_empty_logs(const struct agent_job *job, const struct agent_run *run)
{
    static const char *const ends[] = { "stdout", "stderr" };
    int folder = shoal_open_below(job->result_dir, "log/tasks", O_RDONLY | O_DIRECTORY);
    char path[AGENT_LOG_BYTES];
    struct stat facts;

    for (unsigned i = 0; i < 2 && folder >= 0; i++) {
        const char *name;

        agent_run_log(run, ends[i], path, sizeof(path));
        name = strrchr(path, '/') + 1;
        if (fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(facts.st_mode) && facts.st_size == 0)
            (void)unlinkat(folder, name, 0);
    }
    if (folder >= 0)
        (void)close(folder);
}

/* An engine says so as if the user's code had failed in it: another one would find the same folder. A script's or a driver's
 * end says so, in on_exited(). */
void agent_job_over(struct agent *agent, struct agent_job *job, const char *text)
{
    static struct shoal_worker_message message;
    const struct shoal_job_id id = job->id;

    if (job->over[0] != '\0')
        return;
    (void)snprintf(job->over, sizeof(job->over), "%s", text);
    agent_log(agent, "%s is ended here: %s", job->text, text);
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX && job != NULL; i++) {
        struct agent_run run = job->runs[i];

        if (!run.used || !run.started)
            continue;
        if (run.role == SHOAL_JOB_ENGINE) {
            message = (struct shoal_worker_message){ .kind = SHOAL_WORKER_FAILED };
            message.failed.user_code = true;
            (void)snprintf(message.failed.text, sizeof(message.failed.text), "%s", text);
            tell_core(agent, run.worker_id, &message);
        }
        workers_kill(agent->workers, run.worker_id, 0);
        job = agent_job_find(agent, id); /* its leader may have ended it at once */
    }
}

struct ending {
    struct agent *agent;
    uint64_t worker_id;
    int32_t status;
    bool signalled;
    char text[200];
};

static void end_tell(void *arg)
{
    struct ending *ending = arg;
    struct agent *agent = ending->agent;
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_EXITED };
    struct agent_job *job = NULL;
    struct agent_run *run = agent_run_find(agent, ending->worker_id, &job);
    char line[320];

    if (run != NULL && job->over[0] != '\0' && run->role != SHOAL_JOB_ENGINE && (ending->signalled || ending->status == 0)) {
        memcpy(ending->text, job->over, sizeof(ending->text));
        ending->signalled = false; /* by us, and for good: a driver that was killed by anybody else gets a successor */
        ending->status = 1;
    }
    event.u.exited.worker_id = ending->worker_id;
    event.u.exited.status = ending->status;
    event.u.exited.signalled = ending->signalled;
    if (ending->text[0] != '\0')
        (void)snprintf(event.u.exited.text, sizeof(event.u.exited.text), "%.199s", ending->text);
    else if (run != NULL && (ending->status != 0 || ending->signalled))
        last_words(job, run, event.u.exited.text, sizeof(event.u.exited.text));
    if (run != NULL) {
        agent_run_end_text(run, ending->status, ending->signalled, event.u.exited.text, line, sizeof(line));
        agent_log(agent, "%s: %s", job->text, line);
        if (ending->status != 0 && !agent_run_ended_as_ordered(run, ending->status, ending->signalled))
            agent_run_launcher(job, run, line);
        run->used = false;
    }
    agent_serve_ended(agent, ending->worker_id);
    if (!agent->stopping)
        agent_host_event(agent, &event);
    agent_run_forget_later(agent, ending->worker_id);
    free(ending);
}

/* What it wrote last is on its way before anybody hears of its end; and one that ends well is told to have when all that it wrote
 * was looked at, and is not too much. */
static void on_exited(void *arg, uint64_t worker_id, int32_t status, bool signalled, const char *text)
{
    struct agent *agent = arg;
    struct ending *ending = calloc(1, sizeof(*ending));
    struct agent_job *job = NULL;
    struct agent_run *run = agent_run_find(agent, worker_id, &job);

    SHOAL_ASSERT(ending != NULL);
    *ending = (struct ending){ .agent = agent, .worker_id = worker_id, .status = status, .signalled = signalled };
    (void)snprintf(ending->text, sizeof(ending->text), "%.199s", text);
    if (run != NULL && run->role == SHOAL_JOB_DRIVER)
        agent_folders_drop_bundle(agent, job);
    if (run != NULL && run->role == SHOAL_JOB_TASK) {
        drop_empty_logs(job, run);
        agent_tree_scan_some(agent, job);
    } else if (run != NULL && run->role != SHOAL_JOB_ENGINE && status == 0 && !signalled) {
        agent_tree_scan_then(agent, job, end_tell, ending);
        return;
    } else if (run != NULL)
        agent_tree_scan(agent, job);
    end_tell(ending);
}

static void on_slot_idle(void *arg, uint32_t slot)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_SLOT_IDLE };

    event.u.idle.slot = slot;
    agent_host_event(arg, &event);
}

static void on_stuck(void *arg, uint64_t worker_id)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STUCK };

    agent_log(arg, "worker %llu stands still: its library thread has not moved for 1 s", (unsigned long long)worker_id);
    event.u.worker.worker_id = worker_id;
    agent_host_event(arg, &event);
}

static void on_dying(void *arg, uint64_t worker_id)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_DYING };

    event.u.worker.worker_id = worker_id;
    agent_host_event(arg, &event);
}

static void on_stepped(void *arg, uint64_t worker_id, uint64_t epoch_word, uint64_t step)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STEPPED };

    event.u.stepped.worker_id = worker_id;
    event.u.stepped.epoch_word = epoch_word;
    event.u.stepped.step = step;
    agent_host_event(arg, &event);
}

static void on_page(void *arg, struct shoal_job_id id)
{
    struct agent_job *job = agent_job_find(arg, id);

    if (job != NULL)
        agent_job_over(arg, job, "a process of the job wrote over its control page on this host, which holds what its workers go by");
}

static void on_stands(void *arg, uint64_t worker_id, uint64_t epoch_word, uint8_t activity)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_STANDS };

    event.u.stands.worker_id = worker_id;
    event.u.stands.epoch_word = epoch_word;
    event.u.stands.activity = activity;
    agent_host_event(arg, &event);
}

static void on_runner(void *arg, struct shoal_job_id id, uint32_t generation, const struct workers_alive *alive,
                      size_t count)
{
    struct agent *agent = arg;
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_RUNNER };
    struct shoal_host_live found[SHOAL_RUNNER_WORKERS_MAX];
    struct agent_job *job = agent_job_need(agent, id);
    size_t used = 0;

    if (job == NULL)
        return;
    if (job->opened) { /* our own new runner */
        for (size_t i = 0; i < count; i++)
            if (alive[i].pid > 0)
                on_started(agent, alive[i].worker_id, alive[i].pid);
        return;
    }
    agent_job_reopen(agent, job, generation);
    for (size_t i = 0; i < count; i++) {
        struct agent_run *run = &job->runs[i];

        if (!agent_run_restore(agent, job, alive[i].worker_id, run)) {
            if (alive[i].pid != WORKERS_ENDED)
                workers_kill(agent->workers, alive[i].worker_id, 0); /* nobody knows its lease any more */
            continue;
        }
        found[used] = (struct shoal_host_live){ .worker_id = alive[i].worker_id,
                                                .slot = alive[i].slot,
                                                .pid = alive[i].pid,
                                                .frozen = alive[i].frozen,
                                                .role = run->role,
                                                .lease_generation = run->lease_generation,
                                                .deadline_ns = alive[i].freeze_at_ns + SHOAL_LEASE_FROZEN_BEFORE_NS };
        if (alive[i].pid == WORKERS_ENDED) /* nothing of it is to be frozen */
            found[used].deadline_ns = agent_now_ns() + SHOAL_LEASE_NS;
        memcpy(found[used].token, run->token, sizeof(run->token));
        used++;
        if (alive[i].pid != WORKERS_ENDED)
            agent_serve_started(agent, job, run);
    }
    agent_log(agent, "%s: found its runner again, %zu workers live", job->text, used);
    event.u.runner.job = id;
    event.u.runner.generation = generation;
    event.u.runner.workers = found;
    event.u.runner.worker_count = used;
    agent_host_event(agent, &event);
}

static void on_left(void *arg, struct shoal_job_id job) { agent_job_left(arg, job); }

static void on_reattached(void *arg)
{
    agent_host_event(arg, &(struct shoal_host_event){ .kind = SHOAL_HOST_ON_REATTACHED });
}

void agent_workers_reattach(struct agent *agent) { workers_reattach(agent->workers, on_reattached, agent); }

enum shoal_err agent_workers_create(struct agent *agent, struct shoal_msg *msg)
{
    char jobs[AGENT_PATH_BYTES + 16];
    char slots[AGENT_PATH_BYTES + 16];
    char path[AGENT_PATH_BYTES + 16];
    char native[AGENT_PATH_BYTES + 16];
    struct workers_options options = { .loop = &agent->loop,
                                       .jobs_dir = jobs,
                                       .slots_dir = slots,
                                       .socket_path = path,
                                       .native_dir = native,
                                       .warm_memory_bytes = agent->settings.warm_memory_bytes,
                                       .slots = agent_slots_all(&agent->settings),
                                       .arg = agent,
                                       .on_started = on_started,
                                       .on_exited = on_exited,
                                       .on_runner = on_runner,
                                       .on_left = on_left,
                                       .knows = knows,
                                       .on_message = on_message,
                                       .on_cold = agent_job_cold,
                                       .on_slot_idle = on_slot_idle,
                                       .on_stuck = on_stuck,
                                       .on_dying = on_dying,
                                       .on_stepped = on_stepped,
                                       .on_stands = on_stands,
                                       .on_page = on_page };

    (void)snprintf(jobs, sizeof(jobs), "%s/jobs", agent->settings.data);
    (void)snprintf(slots, sizeof(slots), "%s/slots", agent->settings.data);
    (void)snprintf(path, sizeof(path), "%s/w.sock", agent->settings.data);
    (void)snprintf(native, sizeof(native), "%s/native", agent->settings.fabric_home);
    return workers_create(&agent->workers, &options, msg);
}
