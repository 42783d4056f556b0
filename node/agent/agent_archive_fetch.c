/* A holder of an ended job: the list of its blobs, then every blob in it, flushed and held; then logs and ledger are files
 * again, where a guardian has them (N1 in agent_archive.c). */
#include "agent_archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

static void on_synced(uv_fs_t *request)
{
    struct taking *t = request->data;
    bool flushed = request->result == 0;

    uv_fs_req_cleanup(request);
    (void)close(t->fd);
    if (!flushed || rename(t->made, t->path) != 0) {
        taken(t, SHOAL_ERR_STORAGE, "a log or ledger of the archive cannot be written here");
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
    t->fd = open(t->made, O_RDONLY | O_CLOEXEC);
    t->sync.data = t;
    if (t->fd >= 0 && uv_fs_fsync(&t->agent->loop, &t->sync, t->fd, on_synced) == 0) /* it may be large */
        return;
    if (t->fd >= 0)
        (void)close(t->fd);
    taken(t, SHOAL_ERR_STORAGE, "a log or ledger of the archive cannot be flushed here");
}

static void keep_order(const struct taking *t)
{
    char path[AGENT_PATH_BYTES + 32];
    const char *last = "";
    size_t last_len = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/log/.order", t->root);
    file = fopen(path, "we");
    if (file == NULL)
        return; /* the logs of several tasks come by name */
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

/* Logs and the ledger lie where a guardian has them, so that they are read in the same way. */
static void make_next(struct taking *t)
{
    struct agent_job *job = agent_job_find(t->agent, t->job);
    struct stat facts;

    while (t->next < t->lines.count) {
        const struct archive_line *line = &t->lines.list[t->next];

        archive_line_path(t->agent, t->job, t->root, line, t->path, sizeof(t->path));
        if (line->what != 'r' && (stat(t->path, &facts) != 0 || (uint64_t)facts.st_size != line->bytes))
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
