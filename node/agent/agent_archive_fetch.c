/* A holder of an ended job: the list of its blobs, then every blob in it, flushed and held; then logs, ledger and other
 * files are files again, where a guardian has them (N1 in agent_archive.c). */
#include "agent_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"

#include "agent_ledger.h"

#include "shoal/banned.h"

struct taking {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_hash list;
    struct shoal_node_id sources[SHOAL_SCHED_SOURCES_MAX];
    size_t source_count;
    char root[AGENT_PATH_BYTES];
    char path[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 16]; /* of the file that is made */
    char made[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 16]; /* until it is flushed */
    int fd;
    uv_fs_t sync;
    struct archive_lines lines;
    size_t next;
};

static void taken(struct taking *t, enum shoal_err err, const char *text)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_ARCHIVE_FETCHED };

    event.u.archive.job = t->job;
    event.u.archive.list = t->list;
    event.u.archive.ok = err == SHOAL_OK;
    (void)snprintf(event.u.archive.text, sizeof(event.u.archive.text), "%.199s", text);
    if (err != SHOAL_OK && t->agent->settings.verbose)
        agent_log(t->agent, "an archived job is not here yet: %s", text);
    agent_event(t->agent, &event);
    free(t->lines.list);
    free(t);
}

static void make_next(struct taking *t);

/* Time and mode, by which it is known again. */
static void dress(const struct taking *t)
{
    const struct archive_line *line = &t->lines.list[t->next];
    const struct timespec times[2] = { { .tv_sec = (time_t)line->mtime_s }, { .tv_sec = (time_t)line->mtime_s } };

    (void)chmod(t->made, line->executable ? 0700 : 0600); /* if not, it is made again at the next start */
    (void)utimensat(AT_FDCWD, t->made, times, 0);
}

/* It has the length, and of another file than a log the time too: a checkpoint that is written again is as long. */
static bool is_here(const struct taking *t, const struct archive_line *line)
{
    struct stat facts;

    return line->what == 'r' || (lstat(t->path, &facts) == 0 && S_ISREG(facts.st_mode) && (uint64_t)facts.st_size == line->bytes &&
                                 (line->what != 'f' || (uint64_t)facts.st_mtime == line->mtime_s));
}

static void on_synced(uv_fs_t *request)
{
    struct taking *t = request->data;
    bool flushed = request->result == 0;

    uv_fs_req_cleanup(request);
    (void)close(t->fd);
    if (flushed && t->lines.list[t->next].what == 'f')
        dress(t);
    agent_folders_clear(t->agent, t->path);
    if (!flushed || rename(t->made, t->path) != 0) {
        taken(t, SHOAL_ERR_STORAGE, "a file of the archive cannot be written here");
        return;
    }
    t->next++;
    make_next(t);
}

static void on_file(void *arg, enum shoal_err err, const char *path_or_text)
{
    struct taking *t = arg;

    if (err != SHOAL_OK) {
        taken(t, err, path_or_text);
        return;
    }
    (void)snprintf(t->made, sizeof(t->made), "%s", path_or_text);
    t->fd = shoal_open_regular(t->made, O_RDONLY);
    t->sync.data = t;
    if (t->fd >= 0 && uv_fs_fsync(&t->agent->loop, &t->sync, t->fd, on_synced) == 0) /* it may be large */
        return;
    if (t->fd >= 0)
        (void)close(t->fd);
    taken(t, SHOAL_ERR_STORAGE, "a file of the archive cannot be flushed here");
}

static void keep_order(const struct taking *t)
{
    int fd = shoal_open_below(t->root, "log/.order", O_WRONLY | O_CREAT | O_TRUNC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    const char *last = "";
    size_t last_len = 0;

    if (file == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return; /* the logs of several tasks come by name */
    }
    for (size_t i = 0; i < t->lines.count; i++) {
        const char *name = t->lines.list[i].path + 4;
        size_t len = strcspn(name, "/");

        if (t->lines.list[i].what != 'l' || (len == last_len && strncmp(name, last, len) == 0))
            continue;
        (void)fprintf(file, "%.*s\n", (int)len, name);
        last = name;
        last_len = len;
    }
    (void)fclose(file);
}

/* Files lie where a guardian has them, so that they are read in the same way. */
static void make_next(struct taking *t)
{
    struct agent_job *job = agent_job_find(t->agent, t->job);

    while (t->next < t->lines.count) {
        const struct archive_line *line = &t->lines.list[t->next];

        archive_line_path(t->agent, t->job, t->root, line, t->path, sizeof(t->path));
        if (!is_here(t, line))
            break;
        t->next++;
    }
    if (t->next == t->lines.count) {
        keep_order(t);
        taken(t, SHOAL_OK, "");
        return;
    }
    if (t->lines.list[t->next].what == 'g' && job != NULL)
        agent_ledger_close(job);
    archive_make_parents(t->path, strlen(t->agent->settings.data) + 1);
    agent_materialise(t->agent, t->job, t->lines.list[t->next].hash, on_file, t);
}

static void fetch_next(struct taking *t);

static void on_blob(void *arg, enum shoal_err err, const char *text)
{
    struct taking *t = arg;

    if (err != SHOAL_OK) {
        taken(t, err, text);
        return;
    }
    t->next++;
    fetch_next(t);
}

static void fetch_next(struct taking *t)
{
    while (t->next < t->lines.count && shoal_blobs_holds(t->agent->blobs, t->job, t->lines.list[t->next].hash))
        t->next++;
    if (t->agent->stopping) {
        taken(t, SHOAL_ERR_UNREACHABLE, "this agent stops");
    } else if (t->next == t->lines.count) {
        t->next = 0;
        make_next(t);
    } else {
        agent_fetch_blob(t->agent, t->job, t->lines.list[t->next].hash, t->sources, t->source_count, on_blob, t);
    }
}

static void on_list_read(void *arg, enum shoal_err err, const char *text, struct shoal_view bytes)
{
    struct taking *t = arg;

    if (err == SHOAL_OK) {
        err = archive_lines_read(&t->lines, bytes);
        text = "the list of an archived job's blobs does not decode";
    }
    if (err != SHOAL_OK)
        taken(t, err, text);
    else
        fetch_next(t);
}

static void on_list(void *arg, enum shoal_err err, const char *text)
{
    struct taking *t = arg;

    if (err != SHOAL_OK)
        taken(t, err, text);
    else
        agent_read_blob(t->agent, t->job, t->list, ARCHIVE_LIST_BYTES_MAX, on_list_read, t);
}

void agent_archive_fetch(struct agent *agent, const struct shoal_sched_action *action)
{
    struct taking *t = calloc(1, sizeof(*t));

    SHOAL_ASSERT(t != NULL);
    t->agent = agent;
    t->job = action->u.archive.job;
    t->list = action->u.archive.list;
    for (unsigned i = 0; i < action->u.archive.source_count; i++)
        t->sources[t->source_count++] = action->u.archive.sources[i];
    agent_archive_folder(agent, action->u.archive.user, t->job, t->root, sizeof(t->root));
    agent_fetch_blob(agent, t->job, t->list, t->sources, t->source_count, on_list, t);
}
