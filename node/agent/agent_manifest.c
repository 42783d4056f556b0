/* The manifest of RESULT_DIR/model, what a training call leaves: a blob of lines, by path,
 *
 *   <64 hex of the file's blob> <size> <mtime> <x or -> <path relative to RESULT_DIR>\n
 *
 * It is made when the ledger has settled; every file in it is a blob on two hosts before. A thread looks for the files: the
 * folder is the job's, which may have laid a million links there.
 *
 * M1. One is made once at a time, however often it is asked for meanwhile (the leader asks every 2 s, and a large file takes
 *     longer), and LISTINGS_MAX at a time: more would take each other's room in the blob store, and fail. */
#include "agent.h"

#include "agent_ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"

#include "shoal/banned.h"

#define MANIFEST_FILES_MAX 4096
#define LEDGER_WAIT_NS (20 * SHOAL_S)
#define YIELD_LOOKS 64u /* as tree_walk.c */
#define LISTINGS_MAX 4

struct listed {
    char path[256];
    uint64_t bytes;
    uint64_t mtime_s;
    bool executable;
    struct shoal_hash hash;
};

struct listing {
    struct listing *after; /* the next in the agent's list, the oldest first */
    bool settled;          /* the ledger is (M1: it waits for others) */
    bool runs;
    uv_work_t work;
    struct agent *agent;
    struct shoal_job_id job;
    uint32_t call;
    char root[AGENT_PATH_BYTES];
    struct listed *files;
    size_t count;
    size_t next;
    uint64_t looks, looks_max; /* names, whatever has them */
    bool cut;                  /* there are more files, or names */
};

/* False: enough was looked at. */
static bool goes_on(struct listing *l)
{
    if (++l->looks % YIELD_LOOKS == 0)
        (void)sched_yield();
    l->cut = l->cut || l->looks > l->looks_max || l->count == MANIFEST_FILES_MAX;
    return !l->cut;
}

static void list_folder(struct listing *l, const char *relative, unsigned depth)
{
    int fd = shoal_open_below(l->root, relative, O_RDONLY | O_DIRECTORY);
    const struct dirent *entry;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (dir == NULL && fd >= 0)
        (void)close(fd);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        struct listed *file = &l->files[l->count];
        struct stat facts;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (!goes_on(l))
            break;
        if (strchr(entry->d_name, '\n') != NULL ||
            (size_t)snprintf(file->path, sizeof(file->path), "%s/%s", relative, entry->d_name) >= sizeof(file->path) ||
            fstatat(dirfd(dir), entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISDIR(facts.st_mode) && depth < 16) {
            char below[256];

            memcpy(below, file->path, sizeof(below));
            list_folder(l, below, depth + 1);
        } else if (S_ISREG(facts.st_mode)) {
            file->bytes = (uint64_t)facts.st_size;
            file->mtime_s = (uint64_t)facts.st_mtime;
            file->executable = (facts.st_mode & 0111) != 0;
            l->count++;
        }
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->path, ((const struct listed *)b)->path);
}

static void listing_free(struct listing *l)
{
    struct listing **at = &l->agent->listings;

    while (*at != l)
        at = &(*at)->after;
    *at = l->after;
    free(l->files);
    free(l);
}

static void start_listings(struct agent *agent);

static void listing_end(struct listing *l, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MANIFEST };
    struct agent *agent = l->agent;

    event.u.manifest.job = l->job;
    event.u.manifest.call = l->call;
    event.u.manifest.ok = err == SHOAL_OK;
    event.u.manifest.hash = hash;
    (void)snprintf(event.u.manifest.text, sizeof(event.u.manifest.text), "%.199s", text);
    listing_free(l);
    agent_host_event(agent, &event);
    start_listings(agent);
}

static void on_list_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    listing_end(arg, err == SHOAL_ERR_UNREACHABLE ? SHOAL_OK : err, text, hash);
}

static void store_list(struct listing *l)
{
    char folder[AGENT_PATH_BYTES], path[AGENT_PATH_BYTES + 16];
    FILE *file = NULL;
    int fd;

    agent_job_folder(l->agent, l->job, folder, sizeof(folder));
    (void)snprintf(path, sizeof(path), "%s/manifest", folder);
    agent_folders_clear(l->agent, path);
    fd = shoal_open_below(folder, "manifest", O_WRONLY | O_CREAT | O_TRUNC);
    if (fd >= 0)
        file = fdopen(fd, "w");
    if (file == NULL) {
        listing_end(l, SHOAL_ERR_STORAGE, strerror(errno), (struct shoal_hash){ { 0 } });
        return;
    }
    for (size_t i = 0; i < l->count; i++) {
        char hex[SHOAL_HASH_TEXT_BYTES];

        shoal_hex_text(l->files[i].hash.bytes, 32, hex);
        (void)fprintf(file, "%s %llu %llu %c %s\n", hex, (unsigned long long)l->files[i].bytes,
                      (unsigned long long)l->files[i].mtime_s, l->files[i].executable ? 'x' : '-', l->files[i].path);
    }
    if (fclose(file) != 0) {
        listing_end(l, SHOAL_ERR_STORAGE, strerror(errno), (struct shoal_hash){ { 0 } });
        return;
    }
    agent_store_below(l->agent, l->job, folder, "manifest", on_list_stored, l);
}

static void store_next(struct listing *l);

static void on_file_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct listing *l = arg;

    if (err != SHOAL_OK && err != SHOAL_ERR_UNREACHABLE) {
        listing_end(l, err, text, hash);
        return;
    }
    l->files[l->next++].hash = hash;
    store_next(l);
}

static void store_next(struct listing *l)
{
    if (l->next == l->count)
        store_list(l);
    else
        agent_store_below(l->agent, l->job, l->root, l->files[l->next].path, on_file_stored, l);
}

/* This agent stops: nobody asks for them. */
static void drop_waiting(struct agent *agent)
{
    struct listing *l, *after;

    for (l = agent->listings; l != NULL; l = after) {
        after = l->after;
        if (l->settled && !l->runs)
            listing_free(l);
    }
}

/* On a thread. */
static void list_run(uv_work_t *work)
{
    struct listing *l = work->data;

    list_folder(l, "model", 0);
    qsort(l->files, l->count, sizeof(*l->files), by_path);
}

static void list_ended(uv_work_t *work, int status)
{
    struct listing *l = work->data;
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (status != 0 || l->agent->stopping) {
        drop_waiting(l->agent);
        listing_free(l);
        return;
    }
    shoal_job_id_text(l->job, text);
    if (l->cut)
        agent_log(l->agent, "%s: there is more in its model folder than the %zu files that its result keeps", text, l->count);
    if (l->count == 0 && l->call == 0) /* no file of a result: nothing is kept, and no hash names it */
        listing_end(l, SHOAL_OK, "", (struct shoal_hash){ { 0 } });
    else
        store_next(l);
}

static void manifest_begin(struct listing *l)
{
    struct agent *agent = l->agent;
    struct agent_job *here = agent_job_find(agent, l->job);

    l->runs = true;
    l->looks_max = 2ull * agent->settings.files_max; /* files and folders, as many as a job may have */
    l->work.data = l;
    l->files = calloc(MANIFEST_FILES_MAX, sizeof(*l->files));
    SHOAL_ASSERT(l->files != NULL);
    if (here != NULL && here->result_dir[0] != '\0')
        memcpy(l->root, here->result_dir, sizeof(l->root));
    else
        agent_find_result_dir(agent, l->job, l->root); /* what was pushed here: the host that ran it may be lost */
    if (l->root[0] != '\0')
        (void)uv_queue_work(&agent->loop, &l->work, list_run, list_ended);
    else if (l->call != 0)
        listing_end(l, SHOAL_ERR_NOT_FOUND, "this host has no files of the job", (struct shoal_hash){ { 0 } });
    else
        listing_end(l, SHOAL_OK, "", (struct shoal_hash){ { 0 } });
}

/* M1. One that ends at once calls this again, and changes the list: the outermost call goes on, from the list's beginning. */
static void start_listings(struct agent *agent)
{
    struct listing *l, *first;

    if (agent->listings_start)
        return;
    agent->listings_start = true;
    do {
        unsigned running = 0;

        first = NULL;
        for (l = agent->listings; l != NULL; l = l->after) {
            running += l->runs ? 1 : 0;
            if (first == NULL && l->settled && !l->runs)
                first = l;
        }
        if (running >= LISTINGS_MAX)
            first = NULL;
        if (first != NULL)
            manifest_begin(first);
    } while (first != NULL);
    agent->listings_start = false;
}

static void on_ledger_settled(void *arg, bool held)
{
    struct listing *l = arg;
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (!held) {
        shoal_job_id_text(l->job, text);
        agent_log(l->agent, "%s: no majority of its guardians has the whole ledger; it ends without", text);
    }
    l->settled = true;
    start_listings(l->agent);
}

/* The job ends after it: so the ledger is whole on a majority first, or the log says that it is not. */
void agent_manifest(struct agent *agent, struct shoal_job_id job, uint32_t generation, uint32_t call)
{
    struct agent_job *here = agent_job_find(agent, job);
    struct listing **end = &agent->listings;
    struct listing *l;

    (void)generation;
    for (; *end != NULL; end = &(*end)->after)
        if (shoal_job_id_equal((*end)->job, job) && (*end)->call == call)
            return; /* M1: the answer is on its way */
    l = calloc(1, sizeof(*l));
    SHOAL_ASSERT(l != NULL);
    l->agent = agent;
    l->job = job;
    l->call = call;
    *end = l;
    if (here != NULL && here->ledger != NULL) {
        agent_ledger_settle(agent, here, 0, 0, LEDGER_WAIT_NS, on_ledger_settled, l);
        return;
    }
    l->settled = true;
    start_listings(agent);
}
