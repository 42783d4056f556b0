/* The folders of a job on this host, the environment of its processes (spec/training-contract 2), and their starts.
 *
 *   <data>/jobs/<id>/              runner's socket and log, blobs made into files
 *       call.bundle       a link to the newest call's bundle
 *   <data>/results/<user>/batchworkdir/<id>/   RESULT_DIR, the same on every host of the job
 *       _submitted_code/   checkpoint/   log/app.<task>/   model/
 *
 * RUN waits until the submitted code lies there: fetched by hash from the guardians, checked, unpacked in a thread. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/bundle.h"
#include "shoal/remove_tree.h"
#include "shoal/sched_look.h"

#include "agent_env.h"

#include "shoal/banned.h"

#define WORKER_NICE 5
/* An ended job stays in the table for so long after it was last asked for; while files of it are on their way to other
 * hosts, until copying has not gone on for STUCK_NS. */
#define KEPT_NS (2 * SHOAL_S)
#define STUCK_NS (30 * SHOAL_S)
/* A job whose bundle was asked for will run here: a host that is none of its guardians knows them until then. */
#define COMING_NS (600 * SHOAL_S)

/* One process, once: nothing numbers its logs. */
bool agent_job_is_single(const struct agent_job *job) { return !job->spec.elastic && job->spec.workers_max <= 1; }

/* ---- the table ---- */

struct agent_job *agent_job_find(struct agent *agent, struct shoal_job_id id)
{
    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        if (agent->jobs[i] != NULL && shoal_job_id_equal(agent->jobs[i]->id, id))
            return agent->jobs[i];
    return NULL;
}

bool agent_job_known(struct agent *agent, struct shoal_job_id id)
{
    struct shoal_sched_group_status status;

    return agent_job_find(agent, id) != NULL || shoal_sched_group_find(agent->sched, id, &status) ||
           shoal_sched_parked_find(agent->sched, id);
}

void agent_job_folder(const struct agent *agent, struct shoal_job_id id, char *path, size_t cap)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(id, text);
    (void)snprintf(path, cap, "%.400s/jobs/%s", agent->settings.data, text);
}

/* Its place in the table, without its folder. */
static struct agent_job *job_place(struct agent *agent, struct shoal_job_id id)
{
    struct agent_job *job = agent_job_find(agent, id);

    for (unsigned i = 0; i < AGENT_JOBS_MAX && job == NULL; i++) {
        if (agent->jobs[i] != NULL)
            continue;
        job = agent->jobs[i] = calloc(1, sizeof(*job));
        if (job == NULL)
            return NULL;
        job->used = true;
        job->id = id;
        shoal_job_id_text(id, job->text);
    }
    if (job != NULL)
        job->touched_ns = agent_now_ns();
    return job;
}

void agent_job_guarded(struct agent_job *job, const struct shoal_node_id *nodes, unsigned count)
{
    SHOAL_ASSERT(count <= SHOAL_SCHED_SOURCES_MAX); /* the decoder has looked */
    memcpy(job->guardians, nodes, count * sizeof(job->guardians[0]));
    job->guardian_count = count;
}

struct agent_job *agent_job_need(struct agent *agent, struct shoal_job_id id)
{
    bool known = agent_job_find(agent, id) != NULL;
    struct agent_job *job = job_place(agent, id);
    char path[AGENT_PATH_BYTES + 64];

    if (job == NULL || known)
        return job;
    agent_job_folder(agent, id, path, sizeof(path));
    (void)mkdir(path, 0700);
    return job;
}

static uint32_t fold_spec(struct agent_job *job, struct shoal_view spec)
{
    if (job->spec_bytes.len > 0)
        return 0;
    if (shoal_buf_append(&job->spec_bytes, spec.bytes, spec.len) != SHOAL_OK ||
        shoal_job_spec_decode(shoal_buf_view(&job->spec_bytes), &job->spec) != SHOAL_OK) {
        shoal_buf_deinit(&job->spec_bytes);
        return 1;
    }
    return 0;
}

static void set_result_dir(const struct agent *agent, struct agent_job *job)
{
    const char *user = job->spec.submit_user[0] != '\0' ? job->spec.submit_user : job->spec.creator;

    (void)snprintf(job->result_dir, sizeof(job->result_dir), "%.200s/results/%s/batchworkdir/%s", agent->settings.data,
                   user[0] == '\0' ? "nobody" : user, job->text);
}

/* ---- the submitted code ---- */

struct unpacking {
    uv_work_t work;
    struct agent *agent;
    struct agent_job *job; /* NULL: it is gone, and nobody waits for its files */
    char bundle[AGENT_PATH_BYTES];
    char target[AGENT_PATH_BYTES + 32];
    bool at_work;                                             /* the thread may write below the target */
    char folder[AGENT_PATH_BYTES], results[AGENT_PATH_BYTES]; /* its job was deleted: they go after that; "": it was not */
    enum shoal_err err;
    struct shoal_msg msg;
    struct shoal_bundle_info info;
    uint32_t whole; /* as in agent_job; before: of the last time */
};

static __thread uint32_t whole_files;

static int count_whole(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)path;
    (void)place;
    whole_files += kind == FTW_F && facts->st_mtime == SHOAL_BUNDLE_MTIME_S;
    return 0;
}

/* Files as they were unpacked: whoever writes to one changes its time. */
static uint32_t files_whole(const char *folder)
{
    whole_files = 0;
    (void)nftw(folder, count_whole, 16, FTW_PHYS | FTW_MOUNT);
    return whole_files;
}

static void unpack(uv_work_t *work)
{
    struct unpacking *u = work->data;
    int fd;

    if (u->whole > 0 && files_whole(u->target) == u->whole)
        return;
    fd = shoal_open_regular(u->bundle, O_RDONLY);
    if (fd < 0) {
        u->err = shoal_fail(&u->msg, SHOAL_ERR_STORAGE, "%s: %s", u->bundle, strerror(errno));
        return;
    }
    (void)shoal_remove_tree(u->target); /* what is left is unpacked over */
    agent_folders_make(u->target);
    u->err = shoal_bundle_unpack(fd, u->target, &u->info, &u->msg);
    u->whole = files_whole(u->target);
    (void)close(fd);
}

static bool is_file(const char *path)
{
    struct stat facts;

    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
}

/* The places of the main file and of the work directory (execs-api 4.8, 4.5 --model-main). */
static bool find_main(struct agent_job *job, const char *code)
{
    const char *main_file = job->spec.main_file;
    const char *slash = strrchr(main_file, '/');
    const char *base = slash == NULL ? main_file : slash + 1;
    const char *dir = job->spec.model_dir;
    struct stat facts;
    const char *names[2] = { main_file, base };

    (void)snprintf(job->work_dir, sizeof(job->work_dir), "%.250s", code);
    if (dir[0] != '\0') {
        (void)snprintf(job->work_dir, sizeof(job->work_dir), "%.250s/%.250s", code, dir);
        if (stat(job->work_dir, &facts) != 0 || !S_ISDIR(facts.st_mode))
            (void)snprintf(job->work_dir, sizeof(job->work_dir), "%.250s", code);
    }
    if (main_file[0] == '\0')
        return job->spec.user_cmd;
    if (main_file[0] == '/' && is_file(main_file)) {
        (void)snprintf(job->main_path, sizeof(job->main_path), "%.500s", main_file);
        return true;
    }
    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(job->main_path, sizeof(job->main_path), "%.250s/%.250s", job->work_dir, names[i]);
        if (is_file(job->main_path))
            return true;
        (void)snprintf(job->main_path, sizeof(job->main_path), "%.250s/%.250s", code, names[i]);
        if (is_file(job->main_path))
            return true;
    }
    return false;
}

static void start_waiting(struct agent *agent, struct shoal_job_id id);

static void files_done(struct agent *agent, struct agent_job *job, enum shoal_err err, const char *text)
{
    const struct shoal_job_id id = job->id;

    job->files = err == SHOAL_OK ? AGENT_FILES_READY : AGENT_FILES_FAILED;
    job->failed_for_all = (err == SHOAL_ERR_NOT_FOUND && job->spec.main_file[0] != '/') || err == SHOAL_ERR_MALFORMED ||
                          err == SHOAL_ERR_INVALID;
    if (err != SHOAL_OK)
        (void)snprintf(job->failure, sizeof(job->failure), "%s", text);
    else if (agent->boot_is_new)
        agent_tree_scan(agent, job); /* what was there before its processes: T4 */
    start_waiting(agent, id);
}

static void unpacking_end(struct unpacking *u, enum shoal_err err, const char *text)
{
    struct agent_job *job = u->job;

    if (job != NULL)
        job->unpacking = NULL;
    if (job != NULL && !u->agent->stopping)
        files_done(u->agent, job, err, text);
    if (u->folder[0] != '\0')
        agent_folders_remove(u->agent, u->folder, u->results);
    free(u);
}

static void unpacked(uv_work_t *work, int status)
{
    struct unpacking *u = work->data;
    struct agent_job *job = u->job;

    (void)status;
    if (job != NULL && u->err == SHOAL_OK && !find_main(job, u->target))
        u->err = shoal_fail(&u->msg, SHOAL_ERR_NOT_FOUND, "the main file %s is not among the submitted files",
                            job->spec.main_file);
    if (job != NULL && u->info.entries > 0)
        job->code_files = u->info.entries;
    if (job != NULL)
        job->code_whole = u->whole;
    unpacking_end(u, u->err, u->msg.text);
}

static void on_bundle(void *arg, enum shoal_err err, const char *path_or_text)
{
    struct unpacking *u = arg;

    if (err != SHOAL_OK || u->agent->stopping || u->job == NULL) {
        unpacking_end(u, err, path_or_text);
        return;
    }
    (void)snprintf(u->bundle, sizeof(u->bundle), "%s", path_or_text);
    u->at_work = true;
    (void)uv_queue_work(&u->agent->loop, &u->work, unpack, unpacked);
}

static void fetch_files(struct agent *agent, struct agent_job *job)
{
    char code[AGENT_PATH_BYTES + 32];
    struct unpacking *u;

    if (job->files != AGENT_FILES_NONE)
        return;
    (void)snprintf(code, sizeof(code), "%s/_submitted_code", job->result_dir);
    agent_folders_code(job, code);
    job->files = AGENT_FILES_FETCHING;
    if (shoal_hash_is_zero(job->spec.bundle_hash) || job->spec.bundle_bytes == 0) {
        bool found = find_main(job, code);

        files_done(agent, job, found ? SHOAL_OK : SHOAL_ERR_NOT_FOUND,
                   "no files were submitted, so there is nothing to start");
        return;
    }
    u = calloc(1, sizeof(*u));
    SHOAL_ASSERT(u != NULL);
    u->work.data = u;
    u->agent = agent;
    u->job = job;
    u->whole = job->code_whole;
    job->unpacking = u;
    (void)snprintf(u->target, sizeof(u->target), "%s", code);
    agent_materialise(agent, job->id, job->spec.bundle_hash, on_bundle, u);
}

void agent_job_open(struct agent *agent, struct shoal_job_id id, uint32_t generation, struct shoal_view spec)
{
    struct agent_job *job = job_place(agent, id);

    if (job == NULL || fold_spec(job, spec) != 0) {
        agent_log(agent, "a job cannot be opened here: no room, or its specification does not decode");
        return;
    }
    job->generation = generation;
    job->opened = true;
    set_result_dir(agent, job);
    agent_folders_open(agent, job);
    fetch_files(agent, job);
}

static bool spec_read(const struct agent *agent, struct shoal_job_id id, struct shoal_buf *spec)
{
    char folder[AGENT_PATH_BYTES];
    struct stat facts;
    bool whole;
    int fd;

    agent_job_folder(agent, id, folder, sizeof(folder));
    fd = shoal_open_below(folder, "spec", O_RDONLY);
    if (fd < 0)
        return false;
    whole = fstat(fd, &facts) == 0 && facts.st_size <= SHOAL_JOB_SPEC_BYTES_MAX &&
            shoal_buf_reserve(spec, (size_t)facts.st_size + 1) == SHOAL_OK &&
            pread(fd, spec->bytes, (size_t)facts.st_size, 0) == (ssize_t)facts.st_size;
    (void)close(fd);
    if (whole)
        spec->len = (size_t)facts.st_size;
    return whole;
}

/* After this agent's restart: the runner lives, so the folders are there; the specification was kept beside them. */
void agent_job_reopen(struct agent *agent, struct agent_job *job, uint32_t generation)
{
    char code[AGENT_PATH_BYTES + 32];
    struct shoal_buf spec = { 0 };

    if (spec_read(agent, job->id, &spec) && fold_spec(job, shoal_buf_view(&spec)) == 0) {
        job->generation = generation;
        job->opened = job->reopened = true;
        set_result_dir(agent, job);
        (void)snprintf(code, sizeof(code), "%s/_submitted_code", job->result_dir);
        job->files = find_main(job, code) ? AGENT_FILES_READY : AGENT_FILES_NONE;
        job->code_files = SHOAL_BUNDLE_ENTRIES_MAX; /* how many there were is not known any more */
    }
    shoal_buf_deinit(&spec);
}

void agent_job_closed(struct agent *agent, struct shoal_job_id id)
{
    struct agent_job *job = agent_job_find(agent, id);

    workers_close(agent->workers, id);
    if (job == NULL)
        return;
    if (job->opened && job->spec.array[0] != '\0')
        agent_tree_scan(agent, job); /* what the last tasks wrote */
    job->opened = false;
    job->touched_ns = agent_now_ns();
    memset(job->runs, 0, sizeof(job->runs));
}

/* Its runner has ended as it was told to, with all that it had started. */
void agent_job_left(struct agent *agent, struct shoal_job_id id)
{
    struct agent_job *job = agent_job_find(agent, id);

    if (job != NULL && job->opened)
        return; /* it runs here again */
    if (job != NULL)
        agent_folders_leave(agent, job);
    agent_folders_drop_temporary(agent, id);
}

static void job_free(struct agent *agent, struct agent_job *job)
{
    agent_ledger_close(job);
    agent_tree_stop(job);
    if (job->unpacking != NULL)
        job->unpacking->job = NULL;
    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        if (agent->jobs[i] == job)
            agent->jobs[i] = NULL;
    shoal_buf_deinit(&job->spec_bytes);
    free(job);
}

unsigned agent_jobs_count(const struct agent *agent)
{
    unsigned count = 0;

    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        count += agent->jobs[i] != NULL;
    return count;
}

/* What some host lacks is not copied any more. Those that were told so keep saying it (agent_tree_push.c). */
static void say_given_up(const struct agent *agent, const struct agent_job *job)
{
    const char *path;
    size_t count = agent_tree_left(job, &path);

    if (count > 0)
        agent_log(agent, "%s: %zu files of it are not on all hosts that are to have them, %.200s among them: copying has not gone "
                  "on for %u s and is given up", job->text, count, path, (unsigned)(STUCK_NS / SHOAL_S));
}

/* Nothing more comes into its ledger; what is asked of it is read from the file. */
static bool is_over(const struct agent *agent, const struct agent_job *job)
{
    const struct shoal_job *replica = shoal_sched_job(agent->sched, job->id);

    return replica == NULL || shoal_job_state_ended(replica->state);
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* A job of which nothing runs here and nothing is under way costs no memory: what is asked of it is read from disk. A job
 * with a ledger stays until it has ended and all guardians have the ledger, whose end is in memory. */
void agent_jobs_sweep(struct agent *agent)
{
    uint64_t now = agent_now_ns();

    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++) {
        struct agent_job *job = agent->jobs[i];
        uint64_t until_ns;

        if (job == NULL || job->opened || job->files == AGENT_FILES_FETCHING)
            continue;
        if (job->guardian_count > 0 && job->spec_bytes.len == 0 && shoal_sched_job(agent->sched, job->id) == NULL)
            until_ns = job->touched_ns + COMING_NS;
        else if (agent_tree_quiet(job))
            until_ns = job->touched_ns + KEPT_NS;
        else
            until_ns = later(job->touched_ns, agent_tree_progress_ns(job)) + STUCK_NS;
        if (now < until_ns || (job->ledger != NULL && !(is_over(agent, job) && agent_ledger_is_idle(job))))
            continue;
        say_given_up(agent, job);
        job_free(agent, job);
    }
}

/* The user is not known any more, so the folder of that name is looked for below every user's. */
void agent_find_result_dir(const struct agent *agent, struct shoal_job_id id, char path[AGENT_PATH_BYTES])
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    char users[AGENT_PATH_BYTES];
    const struct dirent *entry;
    DIR *dir;

    shoal_job_id_text(id, text);
    (void)snprintf(users, sizeof(users), "%.400s/results", agent->settings.data);
    dir = opendir(users);
    path[0] = '\0';
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, AGENT_PATH_BYTES, "%.200s/%.200s/batchworkdir/%s", users, entry->d_name, text);
        if (access(path, F_OK) == 0)
            break;
        path[0] = '\0';
    }
    if (dir != NULL)
        (void)closedir(dir);
}

/* Its group has ended. Results stay where they are; the rest goes, unless this host is to keep it. */
void agent_job_archived(struct agent *agent, struct shoal_job_id id, bool keep)
{
    struct agent_job *job = agent_job_find(agent, id);
    char folder[AGENT_PATH_BYTES];

    agent_job_closed(agent, id);
    agent_serve_forget(agent, id);
    if (job != NULL)
        job_free(agent, job);
    if (keep) {
        agent_folders_drop_temporary(agent, id);
        return;
    }
    agent_job_folder(agent, id, folder, sizeof(folder));
    agent_bundle_let_go(agent, id);
    agent_folders_remove(agent, folder, "");
}

void agent_job_deleted(struct agent *agent, struct shoal_job_id id)
{
    struct agent_job *job = agent_job_find(agent, id);
    struct unpacking *unpacking = job == NULL ? NULL : job->unpacking;
    char folder[AGENT_PATH_BYTES], results[AGENT_PATH_BYTES] = "";

    agent_job_closed(agent, id);
    agent_serve_forget(agent, id);
    agent_job_folder(agent, id, folder, sizeof(folder));
    if (job != NULL) {
        memcpy(results, job->result_dir, sizeof(results));
        job_free(agent, job);
    }
    if (results[0] == '\0')
        agent_find_result_dir(agent, id, results);
    agent_bundle_let_go(agent, id);
    agent_tree_deleted(agent, id);
    if (unpacking == NULL || !unpacking->at_work) {
        agent_folders_remove(agent, folder, results);
        return;
    }
    memcpy(unpacking->folder, folder, sizeof(folder)); /* not before the thread has made its last file */
    memcpy(unpacking->results, results, sizeof(results));
}

/* ---- start ---- */

/* Its slot ends as that of one that ran: it is free once the kernel says so, which nobody looks at for a process that never was.
 * `status`: SHOAL_STATUS_UNSTARTED, or an exit status if no other host would do better. */
static void not_started(struct agent *agent, uint64_t worker_id, uint32_t slot, int32_t status, const char *text)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_EXITED };

    event.u.exited.worker_id = worker_id;
    event.u.exited.status = status;
    (void)snprintf(event.u.exited.text, sizeof(event.u.exited.text), "%.199s", text);
    agent_log(agent, "worker %llu is not started: %.199s", (unsigned long long)worker_id, text);
    agent_host_event(agent, &event);
    workers_slot_left(agent->workers, slot);
}

/* The same of one that has its place among the job's runs, and may be kept for the agent's next life. */
static void run_refused(struct agent *agent, struct agent_run *run, int32_t status, const char *text)
{
    const uint64_t worker_id = run->worker_id;

    run->used = false;
    not_started(agent, worker_id, run->slot, status, text);
    agent_run_forget_later(agent, worker_id);
}

/* False: it cannot be written. */
static bool launcher_put(const struct agent_job *job, const char *path, const char *before, const char *text)
{
    int fd = shoal_open_below(job->result_dir, path, O_WRONLY | O_APPEND | O_CREAT);

    if (fd < 0)
        return false;
    (void)dprintf(fd, "%s%s\n", before, text);
    (void)close(fd);
    return true;
}

void agent_run_launcher(const struct agent_job *job, const struct agent_run *run, const char *text)
{
    char path[AGENT_LOG_BYTES];

    if (agent_job_is_single(job) || run->role == SHOAL_JOB_TASK) /* the table of an array's tasks says so */
        return;
    (void)snprintf(path, sizeof(path), "log/app.%s/launcher", run->task);
    (void)launcher_put(job, path, "", text);
}

/* Says once a job which of its options have no effect: where its driver or first worker starts; of an array on each host. */
static void launcher_notes(struct agent_job *job, const struct agent_run *run)
{
    const bool first =
        run->role == SHOAL_JOB_DRIVER || run->role == SHOAL_JOB_TASK || (!job->spec.elastic && run->index == 0);
    const char *text = NULL;
    char path[AGENT_LOG_BYTES];

    if (!first || job->notes_said)
        return;
    job->notes_said = true;
    if (run->role == SHOAL_JOB_TASK)
        agent_run_log(run, "launcher", path, sizeof(path));
    else
        (void)snprintf(path, sizeof(path), "log/app.%s/launcher", run->task);
    while ((text = shoal_job_texts_next(&job->spec.notes, text)) != NULL)
        (void)launcher_put(job, path, "", text);
}

/* Once a job and host: the line is for whoever wonders why it was no faster. */
void agent_job_cold(void *arg, struct shoal_job_id id, const char *why)
{
    struct agent *agent = arg;
    struct agent_job *job = agent_job_find(agent, id);
    char path[AGENT_LOG_BYTES];
    bool said = false;

    if (job == NULL || job->cold_said)
        return;
    job->cold_said = true;
    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX && !said; i++) {
        if (!job->runs[i].used)
            continue;
        agent_run_log(&job->runs[i], "launcher", path, sizeof(path));
        said = launcher_put(job, path, "starts cold, though warm was asked for: ", why);
    }
}

/* Each attempt writes a file of its own: what the one before wrote may still be on its way from another host. */
void agent_task_log(uint32_t index, uint32_t attempt, const char *end, char *path, size_t cap)
{
    char again[16] = "";

    if (attempt > 1)
        (void)snprintf(again, sizeof(again), ".%u", attempt);
    (void)snprintf(path, cap, "log/tasks/%u%s.%s", index, again, end);
}

void agent_run_log(const struct agent_run *run, const char *end, char *path, size_t cap)
{
    if (run->role == SHOAL_JOB_TASK)
        agent_task_log(run->index, run->attempt, end, path, cap);
    else /* what a driver prints goes to a log of its own: $LOG_DIR/stdout of an elastic one holds the helper's lines */
        (void)snprintf(path, cap, "log/app.%s/%s%s", run->task, run->role == SHOAL_JOB_DRIVER ? "driver." : "", end);
}

void agent_run_start_text(const struct agent_run *run, const char *host, char *text, size_t cap)
{
    if (run->slot == SHOAL_SLOT_NONE)
        (void)snprintf(text, cap, "starts worker %llu, the driver, on %s", (unsigned long long)run->worker_id, host);
    else
        (void)snprintf(text, cap, "starts worker %llu on slot %u of %s", (unsigned long long)run->worker_id, run->slot, host);
}

/* One that crashes is ordered to end at once, so that nobody waits for what is left of it. */
bool agent_run_ended_as_ordered(const struct agent_run *run, int32_t status, bool signalled)
{
    return run->ordered && signalled && (status == SIGKILL || status == SIGTERM);
}

void agent_run_end_text(const struct agent_run *run, int32_t status, bool signalled, const char *why, char *text, size_t cap)
{
    char place[32] = ", the driver,";

    if (run->slot != SHOAL_SLOT_NONE)
        (void)snprintf(place, sizeof(place), " of slot %u", run->slot);
    if (agent_run_ended_as_ordered(run, status, signalled))
        (void)snprintf(text, cap, "worker %llu%s ended, as it was ordered to", (unsigned long long)run->worker_id, place);
    else if (status == SHOAL_STATUS_UNSTARTED && !signalled)
        (void)snprintf(text, cap, "worker %llu%s could not be started: %s", (unsigned long long)run->worker_id, place, why);
    else
        (void)snprintf(text, cap, "worker %llu%s ended: %s %d%s%s", (unsigned long long)run->worker_id, place,
                       signalled ? "signal" : "status", status, why[0] == '\0' ? "" : ": ", why);
}

static void start_run(struct agent *agent, struct agent_job *job, struct agent_run *run)
{
    struct agent_start_text *t = calloc(1, sizeof(*t));
    char path[AGENT_PATH_BYTES + AGENT_LOG_BYTES];
    char below[AGENT_LOG_BYTES];
    char log_dir[AGENT_PATH_BYTES + 128];
    char line[256];
    char exposed[AGENT_ENV_EXPOSED_BYTES];
    struct shoal_msg msg;

    SHOAL_ASSERT(t != NULL);
    job->over[0] = '\0';
    if (run->role == SHOAL_JOB_TASK)
        (void)snprintf(log_dir, sizeof(log_dir), "%s/log/tasks", job->result_dir);
    else
        (void)snprintf(log_dir, sizeof(log_dir), "%s/log/app.%s", job->result_dir, run->task);
    agent_folders_log(job, log_dir);
    t->start.worker_id = run->worker_id;
    t->start.slot = run->slot;
    t->start.nice = run->role == SHOAL_JOB_ENGINE ? WORKER_NICE : 0;
    t->start.freeze_at_ns = run->deadline_ns - SHOAL_LEASE_FROZEN_BEFORE_NS;
    t->start.kill_at_ns = run->deadline_ns + SHOAL_LEASE_KILLED_AFTER_NS;
    t->start.cwd = agent_start_keep(t, job->work_dir);
    t->start.user = job->spec.creator;
    agent_run_log(run, "stdout", below, sizeof(below));
    (void)snprintf(path, sizeof(path), "%s/%s", job->result_dir, below);
    t->start.stdout_path = agent_start_keep(t, path);
    agent_run_log(run, "stderr", below, sizeof(below));
    (void)snprintf(path, sizeof(path), "%s/%s", job->result_dir, below);
    t->start.stderr_path = agent_start_keep(t, path);
    t->start.lock_path = "";
    if (run->slot != SHOAL_SLOT_NONE) {
        (void)snprintf(path, sizeof(path), "%s/slots/%u.lock", agent->settings.data, run->slot);
        t->start.lock_path = agent_start_keep(t, path);
    }
    t->start.cgroup = "";
    agent_env_fill(agent, job, run, log_dir, t);
    run->started = true;
    agent_run_start_text(run, agent->settings.name, line, sizeof(line));
    agent_run_launcher(job, run, line);
    agent_env_exposed(t, exposed, sizeof(exposed));
    agent_run_launcher(job, run, exposed);
    launcher_notes(job, run);
    if (t->full) /* a submit to an older agent takes more than can be started */
        run_refused(agent, run, 1, "its arguments and environment are more than fits; put them into a file");
    else if (workers_start(agent->workers, job->id, job->generation, &t->start, &msg) != SHOAL_OK)
        run_refused(agent, run, SHOAL_STATUS_UNSTARTED, msg.text);
    else
        agent_serve_started(agent, job, run);
    free(t);
}

/* Its leader may hear that one cannot start, and end the job before this returns. */
static void start_waiting(struct agent *agent, struct shoal_job_id id)
{
    struct agent_job *job = agent_job_find(agent, id);

    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX && job != NULL && !job->document_asked; i++) {
        struct agent_run *run = &job->runs[i];

        if (!run->used || run->started)
            continue;
        if (job->files == AGENT_FILES_READY) {
            start_run(agent, job, run);
        } else if (job->files == AGENT_FILES_FAILED) {
            run_refused(agent, run, job->failed_for_all ? 1 : SHOAL_STATUS_UNSTARTED, job->failure);
        }
        job = agent_job_find(agent, id);
    }
}

struct agent_run *agent_run_find(struct agent *agent, uint64_t worker_id, struct agent_job **job)
{
    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        for (unsigned j = 0; agent->jobs[i] != NULL && j < SHOAL_RUNNER_WORKERS_MAX; j++)
            if (agent->jobs[i]->runs[j].used && agent->jobs[i]->runs[j].worker_id == worker_id) {
                *job = agent->jobs[i];
                return &agent->jobs[i]->runs[j];
            }
    return NULL;
}

/* This must be known of a worker again after this agent's restart. */
static void run_keep(struct agent *agent, const struct agent_job *job, const struct agent_run *run)
{
    uint8_t bytes[512];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    shoal_put_job_id(&w, job->id);
    shoal_put_u32(&w, run->slot);
    shoal_put_u8(&w, run->role);
    shoal_put_raw(&w, run->token, sizeof(run->token));
    shoal_put_u64(&w, run->lease_generation);
    shoal_put_u64(&w, run->deadline_ns);
    shoal_put_u32(&w, run->attempt);
    shoal_put_text(&w, run->task);
    shoal_put_u32(&w, run->index);
    if (!w.failed)
        shoal_ignore(shoal_cache_put(agent->cache, SHOAL_CACHE_OTHER, shoal_view_of(&run->worker_id, 8),
                                     shoal_writer_view(&w))); /* rebuildable: without it the worker is started anew */
}

bool agent_run_restore(struct agent *agent, struct agent_job *job, uint64_t worker_id, struct agent_run *run)
{
    struct shoal_buf kept = { 0 };
    struct shoal_reader r;
    struct shoal_job_id id;

    if (shoal_cache_get(agent->cache, SHOAL_CACHE_OTHER, shoal_view_of(&worker_id, 8), &kept) != SHOAL_OK)
        return false;
    r = shoal_reader_init(shoal_buf_view(&kept));
    *run = (struct agent_run){ .used = true, .started = true, .worker_id = worker_id };
    id = shoal_get_job_id(&r);
    run->slot = shoal_get_u32(&r);
    run->role = shoal_get_u8(&r);
    shoal_get_raw(&r, run->token, sizeof(run->token));
    run->lease_generation = shoal_get_u64(&r);
    run->deadline_ns = shoal_get_u64(&r);
    run->attempt = shoal_get_u32(&r);
    shoal_get_text(&r, run->task, sizeof(run->task));
    run->index = shoal_reader_left(&r) > 0 ? shoal_get_u32(&r) : 0; /* an older agent kept none */
    if (!shoal_reader_done(&r) || !shoal_job_id_equal(id, job->id))
        run->used = false;
    shoal_buf_deinit(&kept);
    return run->used;
}

static void run_forget(struct agent *agent, uint64_t worker_id)
{
    shoal_ignore(shoal_cache_remove(agent->cache, SHOAL_CACHE_OTHER, shoal_view_of(&worker_id, 8)));
}

void agent_run_forget_later(struct agent *agent, uint64_t worker_id)
{
    if (agent->ended_run_count == AGENT_ENDED_RUNS_MAX) {
        run_forget(agent, worker_id);
        return;
    }
    agent->ended_runs[agent->ended_run_count++] = worker_id;
    agent->ended_run_total++;
}

void agent_runs_kept(struct agent *agent, uint64_t total)
{
    uint64_t after = agent->ended_run_total - total; /* those that ended since */
    unsigned kept = after >= agent->ended_run_count ? 0 : agent->ended_run_count - (unsigned)after;

    SHOAL_ASSERT(total <= agent->ended_run_total);
    for (unsigned i = 0; i < kept; i++)
        run_forget(agent, agent->ended_runs[i]);
    agent->ended_run_count -= kept;
    memmove(agent->ended_runs, agent->ended_runs + kept, agent->ended_run_count * sizeof(agent->ended_runs[0]));
}

static unsigned runs_used(const struct agent_job *job)
{
    unsigned count = 0;

    for (unsigned i = 0; i < SHOAL_RUNNER_WORKERS_MAX; i++)
        count += job->runs[i].used;
    return count;
}

void agent_job_run(struct agent *agent, const struct shoal_host_order *order)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    const struct shoal_placement *place = &order->u.run.placement;
    struct agent_job *job = agent_job_need(agent, order->u.run.job);
    struct agent_run *run = NULL;
    uint8_t chance[5];

    for (unsigned i = 0; job != NULL && i < SHOAL_RUNNER_WORKERS_MAX; i++) {
        if (job->runs[i].used && job->runs[i].worker_id == place->worker_id)
            return; /* asked for again */
        if (!job->runs[i].used && run == NULL)
            run = &job->runs[i];
    }
    /* Its processes may have died with the agent before, and the core knows that the job was opened. */
    if (run != NULL && job->spec_bytes.len == 0)
        agent_job_reopen(agent, job, order->u.run.generation);
    if (run == NULL || job->spec_bytes.len == 0) {
        not_started(agent, place->worker_id, place->slot, SHOAL_STATUS_UNSTARTED, "this host does not know the job's specification");
        return;
    }
    *run = (struct agent_run){ .used = true,
                               .worker_id = place->worker_id,
                               .slot = place->slot,
                               .role = place->role,
                               .lease_generation = place->lease_generation,
                               .deadline_ns = order->u.run.deadline_ns,
                               .attempt = place->attempt,
                               .index = place->rank };
    memcpy(run->token, place->token, sizeof(run->token));
    shoal_random(chance, sizeof(chance));
    for (unsigned i = 0; i < sizeof(chance); i++)
        chance[i] = (uint8_t)letters[chance[i] % 36];
    (void)snprintf(run->task, sizeof(run->task), "%s-%s-%.5s", job->text,
                   run->role == SHOAL_JOB_DRIVER ? "task0" : "task12n", (const char *)chance);
    /* What a kernel names after itself, no later one of its place finds: the name is of one start. */
    if (run->role == SHOAL_JOB_TASK && shoal_job_spec_serves(&job->spec))
        (void)snprintf(run->task, sizeof(run->task), "%s-task12n-%u-%.5s", job->text, run->index, (const char *)chance);
    else if (run->role == SHOAL_JOB_TASK)
        (void)snprintf(run->task, sizeof(run->task), "%s-%u", job->text, run->index);
    memcpy(job->last_task, run->task, sizeof(job->last_task));
    run_keep(agent, job, run);
    if (job->files == AGENT_FILES_FAILED)
        job->files = AGENT_FILES_NONE; /* another try, maybe from other sources */
    else if (job->files == AGENT_FILES_READY && shoal_job_spec_serves(&job->spec) && runs_used(job) == 1)
        job->files = AGENT_FILES_NONE; /* a kernel that was here may have changed its package's files, or wiped them */
    if (shoal_job_spec_serves(&job->spec))
        agent_serve_ask(agent, job);
    fetch_files(agent, job);
    if (job->files != AGENT_FILES_FETCHING)
        start_waiting(agent, job->id);
}

void agent_job_asked(struct agent *agent, struct agent_job *job)
{
    if (job->files != AGENT_FILES_FETCHING && job->files != AGENT_FILES_NONE)
        start_waiting(agent, job->id);
}

void agent_jobs_create(struct agent *agent)
{
    static const char *const folders[] = { "jobs", "slots", "results", "datasets", "home", "userbase", "spool" };
    char path[AGENT_PATH_BYTES + 32];

    for (unsigned i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", agent->settings.data, folders[i]);
        (void)mkdir(path, 0700);
    }
    agent_folders_create(agent);
}
