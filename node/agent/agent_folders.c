/* The folders of a job on this host, and where those of a silent job go.
 *
 *     job that runs here: jobs/<id>, results/<user>/batchworkdir/<id> and what is in it
 *          |                                         ^
 *          | ended, its runner is gone, empty        | the next job of one process: two renames
 *          v                                         |
 *     spare/<n>.job, spare/<n>.result ---------------'
 *
 * A file system that looks for a free inode takes far longer over it than over a rename, and most short jobs write
 * nothing: so a job leaves its folders to the next one. Making nine of them anew was more than half of what a job that
 * does nothing cost an agent.
 *
 * F1. Only folders without a file in them are left to another job, once nobody of the first job is there: its runner has
 *     ended, and so has all that it started (R2 of runner.c). They are as this agent makes them, in mode and attributes, too:
 *     a job may change what is its own, and spoils nothing for the next one.
 * F2. What is in spare/ is of this agent's life alone: at its start all of it goes to gone/, which is removed beside the loop.
 * F3. jobs/<id>/tmp is the job's TMPDIR. What a killed process has left there goes, through spare/, once nobody of the job
 *     is on this host: in /tmp it would stay. Where a socket's name would not fit behind its path any more, /tmp it is.
 * F4. One folder is removed at a time: many jobs with many files may be deleted at once, and what jobs start with, lists and
 *     ledgers need the pool's threads, too. */
#include "agent.h"

#include "agent_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/remove_tree.h"

#include "shoal/banned.h"

/* Python and torch put so much behind TMPDIR for a socket, "/torch-shm-dir-XXXXXX/manager.sock" and the like, in the 108 bytes
 * of sockaddr_un. */
#define TEMPORARY_BYTES_MAX (108 - 36)
#define GONE_MAX 64u       /* starts of an agent that was killed each time before all of that was removed */
#define BUNDLE_FILES_MAX 64 /* a bundle, and one that was being written, of each call */

/* Most of the way is there already, so it is made from its end. */
void agent_folders_make(const char *path)
{
    char part[AGENT_PATH_BYTES + 64];

    if (mkdir(path, 0700) == 0 || errno != ENOENT)
        return;
    for (size_t i = 1; i < sizeof(part) && path[i - 1] != '\0'; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        (void)mkdir(part, 0700);
    }
}

static bool has_model(const struct agent_job *job)
{
    return strncasecmp(job->spec.framework, "tensorflow", 10) != 0 &&
           strncasecmp(job->spec.framework, "disttensorflow", 14) != 0;
}

static void spare_path(const struct agent *agent, unsigned at, const char *end, char *path, size_t cap)
{
    (void)snprintf(path, cap, "%.400s/spare/%u.%s", agent->settings.data, at, end);
}

/* ---- taken ---- */

/* The folder above may be missing, for the first job of a user. */
static bool move_to(const char *from, const char *to)
{
    char above[AGENT_PATH_BYTES + 64];
    const char *slash = strrchr(to, '/');

    if (rename(from, to) == 0)
        return true;
    if (errno != ENOENT || slash == NULL || (size_t)(slash - to) >= sizeof(above))
        return false;
    memcpy(above, to, (size_t)(slash - to));
    above[slash - to] = '\0';
    agent_folders_make(above);
    return rename(from, to) == 0;
}

/* A rename replaces an empty folder, and fails on any other: so a folder that is there already stays as it is. */
static void take_spare(struct agent *agent, struct agent_job *job)
{
    struct agent_spares *spares = &agent->spares;
    char from[AGENT_PATH_BYTES + 64];
    char to[AGENT_PATH_BYTES + 64];

    if (spares->count == 0 || !agent_job_is_single(job) || !has_model(job))
        return;
    spare_path(agent, spares->count - 1, "result", from, sizeof(from));
    if (!move_to(from, job->result_dir))
        return;
    spares->count--;
    memcpy(job->spare_log, spares->logs[spares->count], sizeof(job->spare_log));
    spare_path(agent, spares->count, "job", from, sizeof(from));
    agent_job_folder(agent, job->id, to, sizeof(to));
    (void)rename(from, to);
}

/* Written over the one of the job before, and cut to its length then: a file that is cut to nothing first has its blocks
 * written out when it is closed. */
static void spec_keep(const struct agent *agent, const struct agent_job *job)
{
    char folder[AGENT_PATH_BYTES], path[AGENT_PATH_BYTES + 8];
    struct stat facts;
    size_t len = job->spec_bytes.len;
    int fd;

    agent_job_folder(agent, job->id, folder, sizeof(folder));
    fd = shoal_open_below(folder, "spec", O_WRONLY | O_CREAT);
    if (fd < 0)
        return; /* only a restart of this agent misses it */
    (void)snprintf(path, sizeof(path), "%s/spec", folder);
    if (pwrite(fd, job->spec_bytes.bytes, len, 0) != (ssize_t)len || fstat(fd, &facts) != 0 ||
        ((size_t)facts.st_size != len && ftruncate(fd, (off_t)len) != 0))
        (void)unlink(path);
    (void)close(fd);
}

void agent_folders_open(struct agent *agent, struct agent_job *job)
{
    static const char *const folders[] = { "checkpoint", "log", "model" };
    char path[AGENT_PATH_BYTES + 64];

    take_spare(agent, job);
    for (unsigned i = 0; i < (has_model(job) ? 3 : 2) && job->spare_log[0] == '\0'; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", job->result_dir, folders[i]);
        agent_folders_make(path);
    }
    agent_job_folder(agent, job->id, path, sizeof(path));
    (void)mkdir(path, 0700);
    memcpy(path + strlen(path), "/tmp", 5);
    (void)mkdir(path, 0700);
    spec_keep(agent, job);
}

void agent_folders_code(struct agent_job *job, const char *path)
{
    if (job->spare_log[0] == '\0')
        agent_folders_make(path);
}

void agent_folders_log(struct agent_job *job, const char *path)
{
    char old[AGENT_PATH_BYTES + 160];

    (void)snprintf(old, sizeof(old), "%s/log/%s", job->result_dir, job->spare_log);
    if (job->spare_log[0] == '\0' || rename(old, path) != 0)
        agent_folders_make(path);
    job->spare_log[0] = '\0';
}

/* ---- left ---- */

/* Nothing but the system's own labels. An access list, for one, may forbid what the mode allows. */
static bool has_no_attributes(int fd)
{
    char names[256];
    ssize_t len = flistxattr(fd, names, sizeof(names));

    if (len < 0)
        return errno == ENOTSUP;
    for (const char *name = names; name < names + len; name += strlen(name) + 1)
        if (strncmp(name, "security.", 9) != 0)
            return false;
    return true;
}

/* A folder, no link to one, that is as agent_folders_make() makes it. */
static DIR *open_as_made(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat facts;
    DIR *dir = NULL;

    if (fd >= 0 && fstat(fd, &facts) == 0 && (facts.st_mode & 0777) == 0700 && has_no_attributes(fd))
        dir = fdopendir(fd);
    if (dir == NULL && fd >= 0)
        (void)close(fd);
    return dir;
}

/* A file that the next job's agent or runner can write, and no link to another; or none. */
static bool is_file_as_made(const char *folder, const char *name)
{
    char path[AGENT_PATH_BYTES + 200];
    struct stat facts;

    (void)snprintf(path, sizeof(path), "%.511s/%.180s", folder, name);
    if (lstat(path, &facts) != 0)
        return errno == ENOENT;
    return S_ISREG(facts.st_mode) && (facts.st_mode & 0777) == 0600 && facts.st_nlink == 1;
}

/* Is it a folder as this agent makes it, with nothing in it but what has one of these names? */
static bool holds_only(const char *path, const char *const *names, unsigned count)
{
    const struct dirent *entry;
    DIR *dir = open_as_made(path);
    bool only = dir != NULL;

    while (only && (entry = readdir(dir)) != NULL) {
        bool known = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;

        for (unsigned i = 0; i < count && !known; i++)
            known = strcmp(entry->d_name, names[i]) == 0;
        only = known;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return only;
}

static bool is_empty_below(const char *result_dir, const char *name)
{
    char path[AGENT_PATH_BYTES + 200];

    (void)snprintf(path, sizeof(path), "%.511s/%.180s", result_dir, name);
    return holds_only(path, NULL, 0);
}

/* F1. `log`: the folder of its one process below log/. */
static bool is_silent(const struct agent *agent, const struct agent_job *job, const char *log)
{
    static const char *const result[] = { "_submitted_code", "checkpoint", "log", "model" };
    static const char *const kept[] = { "alive", "runner.sock", "spec", "tmp" };
    char path[AGENT_PATH_BYTES + 200];

    agent_job_folder(agent, job->id, path, sizeof(path));
    if (!holds_only(path, kept, 4) || !is_empty_below(path, "tmp") || !is_file_as_made(path, "alive") ||
        !is_file_as_made(path, "spec") || !holds_only(job->result_dir, result, 4))
        return false;
    for (unsigned i = 0; i < 4; i++)
        if (i != 2 && !is_empty_below(job->result_dir, result[i]))
            return false;
    (void)snprintf(path, sizeof(path), "%s/log", job->result_dir);
    if (!holds_only(path, &log, 1))
        return false;
    (void)snprintf(path, sizeof(path), "log/%.99s", log);
    return is_empty_below(job->result_dir, path);
}

void agent_folders_leave(struct agent *agent, struct agent_job *job)
{
    struct agent_spares *spares = &agent->spares;
    char log[AGENT_SPARE_LOG_BYTES];
    char from[AGENT_PATH_BYTES + 64];
    char to[AGENT_PATH_BYTES + 64];

    if (spares->count == SHOAL_SPARE_FOLDERS_MAX || job->result_dir[0] == '\0' || job->last_task[0] == '\0' ||
        job->ledger != NULL || job->files == AGENT_FILES_FETCHING || !agent_job_is_single(job) || !has_model(job))
        return;
    (void)snprintf(log, sizeof(log), "app.%.90s", job->last_task);
    if (!is_silent(agent, job, log))
        return;
    spare_path(agent, spares->count, "result", to, sizeof(to));
    if (rename(job->result_dir, to) != 0)
        return;
    agent_job_folder(agent, job->id, from, sizeof(from));
    spare_path(agent, spares->count, "job", to, sizeof(to));
    (void)rename(from, to);
    memcpy(spares->logs[spares->count++], log, sizeof(log));
    agent_tree_stop(job);
    job->result_dir[0] = '\0';
    job->files = AGENT_FILES_NONE;
}

/* A driver leaves there what it hands to its agent; one that was killed has not removed it. Files alone, and not many: the folder
 * is the script's to write into, too, and the loop waits. */
void agent_folders_drop_bundle(const struct agent *agent, const struct agent_job *job)
{
    char path[AGENT_PATH_BYTES + 32];
    const struct dirent *entry;
    int fd;
    DIR *dir;

    agent_job_folder(agent, job->id, path, AGENT_PATH_BYTES);
    memcpy(path + strlen(path), "/driver", 8);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return; /* it has removed the folder itself, or has called no train() */
    }
    for (unsigned i = 0; i < BUNDLE_FILES_MAX && (entry = readdir(dir)) != NULL; i++)
        (void)unlinkat(fd, entry->d_name, 0); /* no folder, so neither "." nor ".." */
    (void)closedir(dir);
    (void)rmdir(path);
}

/* ---- what is deleted ---- */

struct removal {
    struct agent_file_job file; /* behind the pieces that came before: none of them makes a folder anew */
    uv_work_t work;
    struct removal *next; /* waits */
    char paths[2][AGENT_PATH_BYTES]; /* "": none */
    int errors[2];                   /* why something of it is left */
};

/* F4 */
static struct {
    struct removal *first, *last; /* of those that wait */
    bool runs;
} removals; /* of this process's one agent; owned by its loop */

static void remove_work(uv_work_t *work)
{
    struct removal *removal = work->data;

    for (unsigned i = 0; i < 2; i++)
        if (removal->paths[i][0] != '\0' && !shoal_remove_tree(removal->paths[i]))
            removal->errors[i] = errno;
}

static void remove_next(void);

static void removed(uv_work_t *work, int status)
{
    struct removal *removal = work->data;

    (void)status;
    removals.runs = false;
    remove_next();
    for (unsigned i = 0; i < 2; i++)
        if (removal->errors[i] != 0)
            agent_log(removal->file.agent, "%s: something of it cannot be removed: %s; remove it by hand",
                      removal->paths[i], strerror(removal->errors[i]));
    free(removal);
}

static void nothing(struct agent_file_job *file) { (void)file; }

static void remove_next(void)
{
    struct removal *removal = removals.first;

    if (removal == NULL || removals.runs)
        return;
    removals.first = removal->next;
    removals.runs = uv_queue_work(&removal->file.agent->loop, &removal->work, remove_work, removed) == 0;
    SHOAL_ASSERT(removals.runs); /* it refuses nothing but a missing function */
}

/* Not on the files' threads: a large folder holds up no piece of another job. */
static void remove_begin(struct agent_file_job *file)
{
    struct removal *removal = (struct removal *)(void *)file;

    if (removals.first == NULL)
        removals.first = removal;
    else
        removals.last->next = removal;
    removals.last = removal;
    remove_next();
}

static struct removal *removal_of(struct agent *agent, const char *folder, const char *other)
{
    struct removal *removal = calloc(1, sizeof(*removal));

    SHOAL_ASSERT(removal != NULL);
    removal->file.agent = agent;
    removal->file.run = nothing;
    removal->file.done = remove_begin;
    removal->work.data = removal;
    (void)snprintf(removal->paths[0], sizeof(removal->paths[0]), "%s", folder);
    (void)snprintf(removal->paths[1], sizeof(removal->paths[1]), "%s", other);
    return removal;
}

void agent_folders_remove(struct agent *agent, const char *folder, const char *other)
{
    struct removal *removal = removal_of(agent, folder, other);

    if (agent_tree_submit(agent, &removal->file) == SHOAL_OK)
        return;
    removal->file.agent = agent;
    remove_begin(&removal->file); /* the disk is behind */
}

/* ---- temporary files (F3) ---- */

void agent_folders_temporary(const struct agent *agent, struct shoal_job_id id, char path[AGENT_PATH_BYTES])
{
    agent_job_folder(agent, id, path, AGENT_PATH_BYTES - 8);
    memcpy(path + strlen(path), "/tmp", 5);
    if (strlen(path) > TEMPORARY_BYTES_MAX)
        memcpy(path, "/tmp", 5);
}

/* A folder that its owner may not write moves to no other one. */
static bool unlock(const char *path)
{
    int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    char link[40];
    bool unlocked;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    unlocked = fd >= 0 && chmod(link, 0700) == 0;
    if (fd >= 0)
        (void)close(fd);
    return unlocked;
}

static void move_away(struct agent *agent, const char *from)
{
    char to[AGENT_PATH_BYTES];

    (void)snprintf(to, sizeof(to), "%.400s/spare/%u.tmp", agent->settings.data, agent->spares.temporaries++);
    if (rename(from, to) == 0 || (errno == EACCES && unlock(from) && rename(from, to) == 0))
        agent_folders_remove(agent, to, "");
    else
        agent_log(agent, "%s: cannot be moved away to be removed: %s", from, strerror(errno));
}

/* Renamed at once: the next process of the job makes a new one. */
void agent_folders_drop_temporary(struct agent *agent, struct shoal_job_id id)
{
    char from[AGENT_PATH_BYTES];

    agent_job_folder(agent, id, from, sizeof(from) - 8);
    memcpy(from + strlen(from), "/tmp", 5);
    if (rmdir(from) == 0 || errno == ENOENT)
        return;
    move_away(agent, from);
}

/* What is no regular file: a job has laid it where a file of its agent belongs. */
void agent_folders_clear(struct agent *agent, const char *path)
{
    struct stat facts;

    if (lstat(path, &facts) == 0 && !S_ISREG(facts.st_mode) && unlink(path) != 0 && rmdir(path) != 0)
        move_away(agent, path);
}

/* F2. Moved away first: jobs may have left millions of files, and nobody waits for their removal. */
void agent_folders_create(struct agent *agent)
{
    char path[AGENT_PATH_BYTES];
    char gone[AGENT_PATH_BYTES];
    size_t len;
    bool moved = false;

    (void)snprintf(path, sizeof(path), "%.400s/spare", agent->settings.data);
    (void)snprintf(gone, sizeof(gone), "%.400s/gone", agent->settings.data);
    len = strlen(gone);
    (void)mkdir(gone, 0700); /* one may be there, of an agent that was killed while it removed it */
    for (unsigned i = 0; i < GONE_MAX && !moved; i++) {
        (void)snprintf(gone + len, sizeof(gone) - len, "/%u", i);
        moved = rename(path, gone) == 0 || errno == ENOENT;
    }
    if (!moved)
        (void)shoal_remove_tree(path);
    (void)mkdir(path, 0700);
    gone[len] = '\0';
    remove_begin(&removal_of(agent, gone, "")->file);
}
