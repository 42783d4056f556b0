/* Ended jobs in the archive, as this host sees them: what belongs to a job is made into blobs and fetched as blobs, and
 * every host knows which jobs there are. Who holds what, and when, is decided in sched/node/sched_archive.c.
 *
 *   leader:  what other guardians have more of logs and ledger --> files here (PEER_ARCHIVE_FILES)
 *            logs, ledger, its audit ---------> blobs --+--> list of lines, a blob too --> ARCHIVE_MADE
 *            result and final files: are blobs ---------+
 *   holder:  the list, then every blob in it, flushed and held --> logs and ledger as files again --> ARCHIVE_FETCHED
 *   any:     records here, and what the others tell (PEER_ARCHIVE_LIST) --> index --> lists, endings, whose job it is
 *
 * agent_archive_lines.c has the form of the list.
 *
 * N1. A blob is fetched from whoever holds it, by hash; a file is made from it whole, or not at all.
 * N2, N3: agent_archive_index.c, which knows the jobs of all hosts.
 * N4. A guardian that was away at the end may lack what the others have: the longest copy of a file is archived, of all
 *     guardians that can be reached.
 * N5. Files of RESULT_DIR are archived as this host has them, up to SHOAL_ARCHIVE_FILES_BYTES_MAX, but for logs of an
 *     array's tasks. What is beyond stays on the hosts where it is, until the job is deleted, and the log says so.
 * N6. A job is made into blobs once at a time, however often it is asked for meanwhile, and MAKINGS_MAX jobs at a time: more
 *     would take each other's room in the blob store, and fail. The others wait in their order. */
#include "agent_archive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"

#include "agent_audit.h"
#include "agent_files.h"
#include "agent_results.h"

#include "shoal/disk.h"

#include "shoal/banned.h"

#define MAKINGS_MAX 4 /* with LISTINGS_MAX of agent_manifest.c, and SHOAL_BLOB_WRITER_CHUNKS each: half of the blob store's queue */

/* ---- making ---- */

/* Paths of the result's manifests, in their order: those files are in the archive already. */
struct known_paths {
    char (*list)[AGENT_RESULT_PATH_BYTES];
    size_t count, cap;
};

struct making {
    struct making *after; /* the next in the agent's list, the oldest first */
    bool runs;            /* else it waits (N6) */
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_hash manifests[2]; /* result, final files of the newest call */
    unsigned manifest;
    char root[AGENT_PATH_BYTES];
    char user[SHOAL_SCHED_BY_BYTES];
    struct archive_lines lines;
    struct archive_seats seats;
    size_t next;
    /* The record as the other guardians have it. */
    struct shoal_node_id nodes[8];
    size_t node_count, node;
    struct archive_lines theirs;
    size_t their;
    uint64_t offset;
    int fd; /* of the piece under way; -1: none */
    struct ledger_progress progress; /* by the audit */
    bool audited;                    /* and it is kept */
    bool records;                    /* it may have a ledger; of a job that trains nothing, what has that name is none */
    struct known_paths known;
    uv_work_t walk;
    struct agent_results results;
};

static void making_free(struct making *m)
{
    if (m->fd >= 0)
        (void)close(m->fd);
    free(m->lines.list);
    free(m->theirs.list);
    free(m->known.list);
    free(m->results.list);
    free(m);
}

static void making_leaves(struct making *m)
{
    struct making **at = &m->agent->makings;

    while (*at != m)
        at = &(*at)->after;
    *at = m->after;
}

static void next_manifest(struct making *m);

/* N6. One that ends at once calls this again, and changes the list: the outermost call goes on, from the list's beginning. */
static void start_makings(struct agent *agent)
{
    struct making *m;

    if (agent->makings_start)
        return;
    agent->makings_start = true;
    do {
        unsigned running = 0;

        for (m = agent->makings; m != NULL && m->runs; m = m->after)
            running++;
        if (m == NULL || running == MAKINGS_MAX)
            break;
        m->runs = true;
        next_manifest(m);
    } while (true);
    agent->makings_start = false;
}

/* This agent stops: nobody asks for them. */
static void drop_waiting(struct agent *agent)
{
    struct making *m, *after;

    for (m = agent->makings; m != NULL; m = after) {
        after = m->after;
        if (m->runs)
            continue;
        making_leaves(m);
        making_free(m);
    }
}

static void made(struct making *m, enum shoal_err err, const char *text, struct shoal_hash list)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_ARCHIVE_MADE };
    struct agent *agent = m->agent;

    event.u.archive.job = m->job;
    event.u.archive.ok = err == SHOAL_OK;
    event.u.archive.list = list;
    (void)snprintf(event.u.archive.text, sizeof(event.u.archive.text), "%.199s", text);
    if (err == SHOAL_OK && m->progress.step > 0) {
        event.u.archive.has_progress = true;
        event.u.archive.steps = m->progress.train_steps;
        event.u.archive.data_epoch = m->progress.data_epoch;
        event.u.archive.has_metrics =
            ledger_progress_micro(&m->progress, &event.u.archive.loss_micro, &event.u.archive.metric_micro);
    }
    if (err != SHOAL_OK)
        agent_log(agent, "an ended job waits for the archive: %s", text);
    making_leaves(m);
    making_free(m);
    agent_event(agent, &event);
    if (agent->stopping)
        drop_waiting(agent);
    else
        start_makings(agent);
}

static void on_list_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    made(arg, err == SHOAL_ERR_UNREACHABLE ? SHOAL_OK : err, text, hash); /* the holders fetch it */
}

static void store_list(struct making *m)
{
    char folder[AGENT_PATH_BYTES], path[AGENT_PATH_BYTES + 16];
    FILE *file = NULL;
    bool good;
    int fd;

    if (m->lines.count == 0) {
        made(m, SHOAL_OK, "", (struct shoal_hash){ { 0 } });
        return;
    }
    agent_job_folder(m->agent, m->job, folder, sizeof(folder));
    (void)mkdir(folder, 0700);
    (void)snprintf(path, sizeof(path), "%s/archive", folder);
    agent_folders_clear(m->agent, path);
    fd = shoal_open_below(folder, "archive", O_WRONLY | O_CREAT | O_TRUNC);
    if (fd >= 0)
        file = fdopen(fd, "w");
    if (file == NULL) {
        made(m, SHOAL_ERR_STORAGE, strerror(errno), (struct shoal_hash){ { 0 } });
        return;
    }
    for (size_t i = 0; i < m->lines.count; i++) {
        char line[ARCHIVE_PATH_BYTES + 160];

        if (archive_line_text(&m->lines.list[i], line, sizeof(line)))
            (void)fputs(line, file);
    }
    good = ferror(file) == 0;
    if (fclose(file) != 0 || !good)
        made(m, SHOAL_ERR_STORAGE, "the list of its blobs cannot be written", (struct shoal_hash){ { 0 } });
    else
        agent_store_below(m->agent, m->job, folder, "archive", on_list_stored, m);
}

static void store_next(struct making *m);

static void on_file_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    struct making *m = arg;

    if (err != SHOAL_OK && err != SHOAL_ERR_UNREACHABLE) {
        made(m, err, text, hash);
        return;
    }
    m->lines.list[m->next++].hash = hash;
    store_next(m);
}

static void on_blob_here(void *arg, enum shoal_err err, const char *text)
{
    struct making *m = arg;

    if (err != SHOAL_OK) {
        made(m, err, text, (struct shoal_hash){ { 0 } });
        return;
    }
    m->next++;
    store_next(m);
}

/* A file becomes a blob; a blob of the result is fetched if this guardian lacks it. */
static void store_next(struct making *m)
{
    char path[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 16];
    struct shoal_node_id nodes[8];
    size_t guardians;
    size_t count;

    if (m->agent->stopping) {
        made(m, SHOAL_ERR_UNREACHABLE, "this agent stops", (struct shoal_hash){ { 0 } });
        return;
    }
    while (m->next < m->lines.count && m->lines.list[m->next].what == 'r' &&
           shoal_blobs_holds(m->agent->blobs, m->job, m->lines.list[m->next].hash))
        m->next++;
    if (m->next == m->lines.count) {
        store_list(m);
        return;
    }
    if (m->lines.list[m->next].what == 'r') {
        count = agent_job_nodes(m->agent, m->job, nodes, 8, &guardians);
        agent_fetch_blob(m->agent, m->job, m->lines.list[m->next].hash, nodes, count < 8 ? count : 8, on_blob_here, m);
        return;
    }
    if (m->lines.list[m->next].what != 'g' && m->lines.list[m->next].what != 'a') { /* of the result folder */
        agent_store_below(m->agent, m->job, m->root, m->lines.list[m->next].path, on_file_stored, m);
        return;
    }
    archive_line_path(m->agent, m->job, m->root, &m->lines.list[m->next], path, sizeof(path));
    agent_store_file(m->agent, m->job, path, on_file_stored, m);
}

static void add_file(struct making *m, char what, const char *relative)
{
    char path[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 16];
    struct archive_line line = { .what = what };
    struct archive_line *added;
    struct stat facts;

    (void)snprintf(line.path, sizeof(line.path), "%s", relative);
    archive_line_path(m->agent, m->job, m->root, &line, path, sizeof(path));
    if (lstat(path, &facts) != 0 || !S_ISREG(facts.st_mode))
        return;
    line.bytes = (uint64_t)facts.st_size;
    added = archive_lines_add(&m->lines);
    if (added != NULL)
        *added = line;
}

static void list_log(struct making *m, const char *name)
{
    DIR *dir = archive_open_log(m->root, name);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char below[ARCHIVE_PATH_BYTES];

        if (entry->d_name[0] != '.' && strchr(entry->d_name, '\n') == NULL &&
            (size_t)snprintf(below, sizeof(below), "log/%s/%s", name, entry->d_name) < sizeof(below))
            add_file(m, 'l', below);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

/* On a thread: a job may leave any number of files beside its logs. */
static void list_files(struct making *m)
{
    char(*names)[96] = calloc(ARCHIVE_TASKS_MAX, sizeof(*names));
    size_t count = names == NULL ? 0 : agent_log_tasks(m->root, names, ARCHIVE_TASKS_MAX);

    for (size_t i = 0; i < count; i++)
        list_log(m, names[i]);
    free(names);
    if (m->audited)
        add_file(m, 'a', "audit");
    if (m->records)
        add_file(m, 'g', "ledger");
}

/* ---- other files of the result folder (N5) ---- */

static int by_path(const void *a, const void *b) { return strcmp(a, b); }

static void know_path(struct making *m, const char *line)
{
    struct known_paths *known = &m->known;
    int at = 0;

    if (sscanf(line, "%*64s %*u %*u %*c%n", &at) != 0 || at == 0 || line[at] != ' ' ||
        strlen(line + at + 1) >= sizeof(known->list[0]))
        return;
    if (known->count == known->cap) {
        size_t cap = known->cap == 0 ? 16 : 2 * known->cap;
        void *grown = realloc(known->list, cap * sizeof(known->list[0]));

        if (grown == NULL)
            return; /* the file is in the archive twice */
        known->list = grown;
        known->cap = cap;
    }
    memcpy(known->list[known->count++], line + at + 1, strlen(line + at + 1) + 1);
}

static void add_results(struct making *m)
{
    size_t left_out = m->results.left_out;
    uint64_t bytes = 0;
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (m->known.count > 1)
        qsort(m->known.list, m->known.count, sizeof(m->known.list[0]), by_path);
    for (size_t i = 0; i < m->results.count; i++) {
        const struct agent_result *result = &m->results.list[i];
        struct archive_line *line = NULL;

        if (strncmp(result->path, "log/", 4) == 0 ||
            (m->known.count > 0 &&
             bsearch(result->path, m->known.list, m->known.count, sizeof(m->known.list[0]), by_path) != NULL))
            continue;
        if (result->bytes <= SHOAL_ARCHIVE_FILES_BYTES_MAX - bytes)
            line = archive_lines_add(&m->lines);
        if (line == NULL) {
            left_out++;
            continue;
        }
        bytes += result->bytes;
        line->what = 'f';
        line->bytes = result->bytes;
        line->mtime_s = result->mtime_s;
        line->executable = result->executable;
        memcpy(line->path, result->path, sizeof(result->path));
    }
    shoal_job_id_text(m->job, text);
    if (left_out > 0)
        agent_log(m->agent, "%s: %zu files of its result folder do not go into the archive: they stay where they are",
                  text, left_out);
}

static void walk_run(uv_work_t *work)
{
    struct making *m = work->data;

    list_files(m);
    agent_results_walk(m->root, &m->results);
}

static void walk_ended(uv_work_t *work, int status)
{
    struct making *m = work->data;

    (void)status;
    add_results(m);
    store_next(m);
}

static void list_all(struct making *m)
{
    m->walk.data = m;
    (void)uv_queue_work(&m->agent->loop, &m->walk, walk_run, walk_ended);
}

/* ---- its audit ---- */

struct keeping {
    struct agent_file_job file;
    struct making *m;
    char path[AGENT_PATH_BYTES + 16];
    struct shoal_buf json;
    enum shoal_err err;
    struct shoal_msg msg;
};

static void keep_run(struct agent_file_job *file)
{
    struct keeping *k = (struct keeping *)(void *)file;

    k->err = shoal_disk_replace(k->path, shoal_buf_view(&k->json), 0600, &k->msg);
}

static void kept(struct agent_file_job *file)
{
    struct keeping *k = (struct keeping *)(void *)file;
    struct making *m = k->m;

    m->audited = k->err == SHOAL_OK;
    if (m->audited)
        list_all(m);
    else
        made(m, k->err, k->msg.text, (struct shoal_hash){ { 0 } });
    shoal_buf_deinit(&k->json);
    free(k);
}

static void on_audited(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct agent_audited *audited)
{
    struct making *m = arg;
    const struct archive_line line = { .what = 'a' };
    struct keeping *k = err == SHOAL_OK ? calloc(1, sizeof(*k)) : NULL;
    char folder[AGENT_PATH_BYTES];

    if (err != SHOAL_OK) {
        made(m, err, msg->text, (struct shoal_hash){ { 0 } });
        return;
    }
    m->progress = audited->progress;
    agent_job_folder(m->agent, m->job, folder, sizeof(folder));
    (void)mkdir(folder, 0700); /* it is there, as a rule */
    if (k != NULL && shoal_buf_append(&k->json, audited->json.bytes, audited->json.len) == SHOAL_OK) {
        k->m = m;
        k->file = (struct agent_file_job){ .bytes = k->json.len, .run = keep_run, .done = kept };
        archive_line_path(m->agent, m->job, m->root, &line, k->path, sizeof(k->path));
        agent_folders_clear(m->agent, k->path);
        if (agent_file_submit(m->agent, &k->file) == SHOAL_OK)
            return;
    }
    if (k != NULL)
        shoal_buf_deinit(&k->json);
    free(k);
    made(m, SHOAL_ERR_FULL, "too much waits for the disk", (struct shoal_hash){ { 0 } });
}

/* The auditor reads the job's replica too, which is about to go: its answer is kept, not only the ledger. Of a job that
 * has trained nothing it would say the same each time, so such a job has none, and often no file in the archive at all. */
static void make_audit(struct making *m)
{
    const struct shoal_job *replica = shoal_sched_job(m->agent->sched, m->job);

    if (replica == NULL || replica->calls == NULL)
        list_all(m);
    else
        agent_audit(m->agent, m->job, on_audited, m);
}

/* ---- what other guardians have (N4) ---- */

static void pull_node(struct making *m);
static void pull_file(struct making *m);

static void pull_path(const struct making *m, char *path, size_t cap)
{
    struct archive_line line = { .what = strcmp(m->theirs.list[m->their].path, "ledger") == 0 ? 'g' : 'l' };

    memcpy(line.path, m->theirs.list[m->their].path, sizeof(line.path));
    archive_line_path(m->agent, m->job, m->root, &line, path, cap);
}

static void pull_ask(struct making *m, const char *path, peer_answer_fn *done)
{
    uint8_t args[512];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));

    shoal_put_job_id(&w, m->job);
    shoal_put_text(&w, m->user);
    shoal_put_text(&w, path);
    shoal_put_u64(&w, m->offset);
    peer_ask(m->agent->calls, m->nodes[m->node], PEER_ARCHIVE_FILES, shoal_writer_view(&w), ARCHIVE_ASK_TIMEOUT_NS,
             done, m);
}

static void pull_next_node(struct making *m)
{
    if (m->fd >= 0)
        (void)close(m->fd);
    m->fd = -1;
    m->node++;
    pull_node(m);
}

/* A file that is here whole, on its way to its name (shoal/disk.h, D1 and D2). */
struct pulled {
    struct agent_file_job file;
    struct making *m;
    char path[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 16];
    char part[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 24];
    char folder[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 16];
    int fd;
    bool named, flushed;
};

static void pulled_run(struct agent_file_job *file)
{
    struct pulled *p = (struct pulled *)(void *)file;

    p->flushed = p->named ? shoal_disk_flush_folder(p->folder) : fdatasync(p->fd) == 0;
}

/* What other hosts brought here meanwhile was acknowledged, and the file that it went to may be the longer one by now. A
 * ledger is opened anew, and its folder flushed with the first record that is added (agent_ledger.c). */
static bool pulled_name(struct pulled *p)
{
    struct making *m = p->m;
    struct agent_job *job = agent_job_find(m->agent, m->job);
    struct stat facts;

    if (lstat(p->path, &facts) == 0 && (uint64_t)facts.st_size >= m->offset)
        return false;
    if (job != NULL && strcmp(m->theirs.list[m->their].path, "ledger") == 0)
        agent_ledger_close(job);
    return rename(p->part, p->path) == 0; /* if not: as if that guardian had not had it */
}

static void pulled_done(struct agent_file_job *file)
{
    struct pulled *p = (struct pulled *)(void *)file;
    struct making *m = p->m;

    if (!p->named) {
        p->named = p->flushed && pulled_name(p);
        if (p->named && agent_file_submit(m->agent, &p->file) == SHOAL_OK)
            return;
        if (!p->named)
            (void)unlink(p->part);
    }
    free(p);
    (void)close(m->fd);
    m->fd = -1;
    m->their++;
    if (m->agent->stopping)
        pull_next_node(m);
    else
        pull_file(m);
}

static void on_piece(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct making *m = arg;
    struct pulled *p;

    (void)msg;
    if (err != SHOAL_OK || m->agent->stopping || (answer.len == 0 && m->offset < m->theirs.list[m->their].bytes) ||
        pwrite(m->fd, answer.bytes, answer.len, (off_t)m->offset) != (ssize_t)answer.len) {
        pull_next_node(m);
        return;
    }
    m->offset += answer.len;
    if (m->offset < m->theirs.list[m->their].bytes) {
        pull_ask(m, m->theirs.list[m->their].path, on_piece);
        return;
    }
    p = calloc(1, sizeof(*p));
    if (p != NULL) {
        p->file = (struct agent_file_job){ .run = pulled_run, .done = pulled_done };
        p->m = m;
        p->fd = m->fd;
        pull_path(m, p->path, sizeof(p->path));
        (void)snprintf(p->part, sizeof(p->part), "%s.part", p->path);
        (void)snprintf(p->folder, sizeof(p->folder), "%s", p->path);
        *strrchr(p->folder, '/') = '\0';
        if (agent_file_submit(m->agent, &p->file) == SHOAL_OK)
            return;
        free(p);
    }
    pull_next_node(m); /* too much waits for the disk: it is archived as it is here */
}

/* The next file of which this guardian has more than we do. */
static void pull_file(struct making *m)
{
    char path[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 16];
    char part[AGENT_PATH_BYTES + ARCHIVE_PATH_BYTES + 24];
    struct stat facts;

    for (; m->their < m->theirs.count; m->their++) {
        if (!m->records && strcmp(m->theirs.list[m->their].path, "ledger") == 0)
            continue;
        pull_path(m, path, sizeof(path));
        if (lstat(path, &facts) != 0 || (uint64_t)facts.st_size < m->theirs.list[m->their].bytes)
            break;
    }
    if (m->their == m->theirs.count) {
        pull_next_node(m);
        return;
    }
    archive_make_parents(path, strlen(m->agent->settings.data) + 1);
    (void)snprintf(part, sizeof(part), "%s.part", path);
    m->offset = 0;
    m->fd = shoal_open_regular(part, O_WRONLY | O_CREAT | O_TRUNC);
    if (m->fd < 0)
        pull_next_node(m);
    else
        pull_ask(m, m->theirs.list[m->their].path, on_piece);
}

static void on_theirs(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct making *m = arg;
    size_t before = m->theirs.count;
    bool more = false;

    (void)msg;
    if (err == SHOAL_OK)
        m->offset += archive_get_files(answer, &m->theirs, &more);
    if (more && m->theirs.count > before && !m->agent->stopping) {
        pull_ask(m, "", on_theirs);
        return;
    }
    m->their = 0;
    pull_file(m);
}

static void pull_node(struct making *m)
{
    while (m->node < m->node_count && !shoal_link_is_up(m->agent->link, m->nodes[m->node]))
        m->node++;
    if (m->node < m->node_count && !m->agent->stopping) {
        m->offset = 0; /* of files in the list */
        m->theirs.count = 0;
        pull_ask(m, "", on_theirs);
        return;
    }
    make_audit(m);
}

static void pull_all(struct making *m)
{
    size_t count = agent_job_nodes(m->agent, m->job, m->nodes, 8, &m->node_count);

    if (m->node_count > count)
        m->node_count = count;
    m->node = 0;
    pull_node(m);
}

/* What this host has, for another: on a thread, as above. */
struct telling {
    uv_work_t work;
    struct agent *agent;
    struct peer_question *question;
    char root[AGENT_PATH_BYTES], folder[AGENT_PATH_BYTES];
    uint64_t skip;
    struct shoal_writer w;
    uint8_t bytes[ARCHIVE_ANSWER_BYTES_MAX];
};

static void tell_run(uv_work_t *work)
{
    struct telling *t = work->data;

    archive_put_files(&t->w, t->root, t->folder, t->skip);
}

static void tell_ended(uv_work_t *work, int status)
{
    struct telling *t = work->data;

    (void)status;
    if (!t->agent->stopping)
        peer_answer(t->question, t->w.failed ? SHOAL_ERR_TOO_BIG : SHOAL_OK, "", shoal_writer_view(&t->w));
    free(t);
}

static void tell_files(struct agent *agent, const char *root, const char *folder, uint64_t skip, struct peer_question *question)
{
    struct telling *t = malloc(sizeof(*t));

    if (t == NULL) {
        peer_answer(question, SHOAL_ERR_FULL, "no memory for a list of files", (struct shoal_view){ 0 });
        return;
    }
    t->work.data = t;
    t->agent = agent;
    t->question = question;
    t->skip = skip;
    (void)snprintf(t->root, sizeof(t->root), "%s", root);
    (void)snprintf(t->folder, sizeof(t->folder), "%s", folder);
    t->w = shoal_writer_init(t->bytes, sizeof(t->bytes));
    (void)uv_queue_work(&agent->loop, &t->work, tell_run, tell_ended);
}

static void serve_files(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    char user[SHOAL_SCHED_BY_BYTES], relative[ARCHIVE_PATH_BYTES];
    char root[AGENT_PATH_BYTES], folder[AGENT_PATH_BYTES];
    static uint8_t bytes[ARCHIVE_ANSWER_BYTES_MAX];
    uint64_t offset;
    ssize_t n;
    int fd;

    (void)from;
    shoal_get_text(&r, user, sizeof(user));
    shoal_get_text(&r, relative, sizeof(relative));
    offset = shoal_get_u64(&r);
    if (!shoal_reader_done(&r) || offset > INT64_MAX ||
        (relative[0] != '\0' && !archive_is_log(relative) && strcmp(relative, "ledger") != 0)) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "not a file of an ended job", (struct shoal_view){ 0 });
        return;
    }
    agent_archive_folder(agent, user, id, root, sizeof(root));
    agent_job_folder(agent, id, folder, sizeof(folder));
    if (relative[0] == '\0') {
        tell_files(agent, root, folder, offset, question);
        return;
    }
    fd = shoal_open_below(strcmp(relative, "ledger") == 0 ? folder : root, relative, O_RDONLY);
    n = fd < 0 ? -1 : pread(fd, bytes, sizeof(bytes), (off_t)offset);
    if (fd >= 0)
        (void)close(fd);
    peer_answer(question, n < 0 ? SHOAL_ERR_NOT_FOUND : SHOAL_OK, n < 0 ? "there is no such file here" : "",
                shoal_view_of(bytes, n < 0 ? 0 : (size_t)n));
}

/* ---- the result's blobs, then all of it ---- */

static void on_manifest(void *arg, enum shoal_err err, const char *text, struct shoal_view bytes)
{
    struct making *m = arg;
    char line_text[AGENT_RESULT_PATH_BYTES + 160];
    size_t at = 0;

    if (err != SHOAL_OK) {
        made(m, err, text, (struct shoal_hash){ { 0 } });
        return;
    }
    while (at + 64 < bytes.len) { /* each line begins with the file's hash */
        const uint8_t *end = memchr(bytes.bytes + at, '\n', bytes.len - at);
        char hex[SHOAL_HASH_TEXT_BYTES] = "";
        struct shoal_hash hash = { { 0 } };

        if (end != NULL && (size_t)(end - (bytes.bytes + at)) < sizeof(line_text)) {
            memcpy(line_text, bytes.bytes + at, (size_t)(end - (bytes.bytes + at)));
            line_text[end - (bytes.bytes + at)] = '\0';
            know_path(m, line_text);
        }
        memcpy(hex, bytes.bytes + at, 64);
        if (shoal_hex_parse(hex, hash.bytes, 32) && !archive_lines_have(&m->lines, &m->seats, hash)) {
            struct archive_line *line = archive_lines_add(&m->lines);

            if (line == NULL) {
                made(m, SHOAL_ERR_TOO_BIG, "it has more files than an archive lists", (struct shoal_hash){ { 0 } });
                return;
            }
            line->hash = hash;
            (void)snprintf(line->path, sizeof(line->path), "result");
        }
        if (end == NULL)
            break;
        at = (size_t)(end - bytes.bytes) + 1;
    }
    m->manifest++;
    next_manifest(m);
}

/* The submitted files go with a result: a model is served from both (api/rest/submit_job_uv.c). */
static void keep_bundle(struct making *m)
{
    const struct shoal_job *replica = shoal_sched_job(m->agent->sched, m->job);
    struct archive_line *line;

    if (replica == NULL || m->lines.count == 0 || shoal_hash_is_zero(replica->spec.bundle_hash) ||
        archive_lines_have(&m->lines, &m->seats, replica->spec.bundle_hash))
        return;
    line = archive_lines_add(&m->lines);
    if (line == NULL)
        return; /* the result alone is kept */
    line->hash = replica->spec.bundle_hash;
    (void)snprintf(line->path, sizeof(line->path), "bundle");
}

static void next_manifest(struct making *m)
{
    struct archive_line *line;

    while (m->manifest < 2 &&
           (shoal_hash_is_zero(m->manifests[m->manifest]) || archive_lines_have(&m->lines, &m->seats, m->manifests[m->manifest])))
        m->manifest++;
    if (m->manifest == 2) {
        keep_bundle(m);
        pull_all(m);
        return;
    }
    line = archive_lines_add(&m->lines);
    if (line == NULL) {
        made(m, SHOAL_ERR_FULL, "no memory for the list of its blobs", (struct shoal_hash){ { 0 } });
        return;
    }
    line->hash = m->manifests[m->manifest];
    (void)snprintf(line->path, sizeof(line->path), "manifest");
    agent_read_blob(m->agent, m->job, line->hash, ARCHIVE_LIST_BYTES_MAX, on_manifest, m);
}

void agent_archive_make(struct agent *agent, const struct shoal_sched_action *action)
{
    const struct shoal_job *replica = shoal_sched_job(agent->sched, action->u.archive.job);
    struct making **end = &agent->makings;
    struct making *m;

    for (; *end != NULL; end = &(*end)->after)
        if (shoal_job_id_equal((*end)->job, action->u.archive.job))
            return; /* N6: the answer is on its way */
    m = calloc(1, sizeof(*m));
    SHOAL_ASSERT(m != NULL);
    m->records = replica == NULL || replica->calls != NULL;
    m->agent = agent;
    m->job = action->u.archive.job;
    m->manifests[0] = action->u.archive.result;
    m->manifests[1] = action->u.archive.files;
    m->fd = -1;
    memcpy(m->user, action->u.archive.user, sizeof(m->user));
    agent_archive_folder(agent, action->u.archive.user, m->job, m->root, sizeof(m->root));
    *end = m;
    start_makings(agent);
}

void agent_archive_create(struct agent *agent)
{
    archive_index_create(agent);
    peer_serve(agent->calls, PEER_ARCHIVE_FILES, serve_files, agent);
}
