/* Ended jobs in the archive, as this host sees them: what belongs to a job is made into blobs and fetched as blobs, and
 * every host knows which jobs there are. Who holds what, and when, is decided in sched/node/sched_archive.c.
 *
 *   leader:  what other guardians have more of logs and ledger --> files here (PEER_ARCHIVE_FILES)
 *            logs, ledger, its audit ---------> blobs --+--> list of lines, a blob too --> ARCHIVE_MADE
 *            result and final files: are blobs ---------+
 *   holder:  the list, then every blob in it, flushed and held --> logs and ledger as files again --> ARCHIVE_FETCHED
 *   any:     records here, and what the others tell (PEER_ARCHIVE_LIST) --> index --> lists, endings, whose job it is
 *
 * A line: "<64 hex of the blob> <what> <size> <path>\n"; what: l a file below log/, g the ledger, a its audit,
 * r the result's manifest or one of its files. Logs come in the order in which they are read.
 *
 * N1. A blob is fetched from whoever holds it, by hash; a file is made from it whole, or not at all.
 * N2. A host's mark counts what its part of the archive has gained and what it heard was deleted; it is told by gossip,
 *     and who sees another one asks for what is new since. So an index is a few seconds old, and after a start complete
 *     as soon as every host has been asked; a job of 3 holders is listed while one of them answers.
 * N3. The index keeps SHOAL_ARCHIVE_LISTED_MAX jobs, the newest. What it does not keep answers to its full id.
 * N4. A guardian that was away at the end may lack what the others have: the longest copy of a file is archived, of all
 *     guardians that can be reached.
 * N5. Only log, ledger and result are archived. Whatever else lies in RESULT_DIR stays on the hosts where it is, until
 *     the job is deleted. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/control_record.h"

#include "agent_ledger.h"

#include "shoal/banned.h"

#define LIST_BYTES_MAX (4 * SHOAL_MIB)
#define LINES_MAX 8192
#define TASKS_MAX 256
#define PATH_BYTES 300
#define TELL_MS 300 /* after a change: the others that come with it are told together */
#define ASK_TIMEOUT_NS (5 * SHOAL_S)
#define ANSWER_BYTES_MAX (512 * SHOAL_KIB)

struct line {
    struct shoal_hash hash;
    char what;
    uint64_t bytes;
    char path[PATH_BYTES];
};

/* Of the wire: nothing of it is trusted. */
static bool is_log_path(const char *path)
{
    if (strncmp(path, "log/", 4) != 0)
        return false;
    for (const char *part = path; part != NULL; part = strchr(part, '/')) {
        part += *part == '/' ? 1 : 0;
        if (*part == '.' || *part == '/' || *part == '\0')
            return false;
    }
    return true;
}

static bool line_parse(const char *text, struct line *line)
{
    char hex[SHOAL_HASH_TEXT_BYTES];
    unsigned long long bytes;

    if (sscanf(text, "%64s %c %llu %299[^\n]", hex, &line->what, &bytes, line->path) != 4 ||
        !shoal_hex_parse(hex, line->hash.bytes, 32))
        return false;
    line->bytes = bytes;
    if (line->what == 'l')
        return is_log_path(line->path);
    return line->what == 'g' || line->what == 'a' || line->what == 'r';
}

void agent_archive_folder(const struct agent *agent, const char *user, struct shoal_job_id id, char *path, size_t cap)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(id, text);
    (void)snprintf(path, cap, "%.200s/results/%.63s/batchworkdir/%s", agent->settings.data,
                   user[0] == '\0' || user[0] == '.' || strchr(user, '/') != NULL ? "nobody" : user, text);
}

static void make_parents(char *path, size_t from)
{
    for (size_t i = from; path[i] != '\0'; i++) {
        if (path[i] != '/')
            continue;
        path[i] = '\0';
        (void)mkdir(path, 0700);
        path[i] = '/';
    }
}

/* ---- lists ---- */

struct lines {
    struct line *list;
    size_t count, cap;
};

static struct line *lines_add(struct lines *lines)
{
    if (lines->count == LINES_MAX)
        return NULL;
    if (lines->count == lines->cap) {
        size_t cap = lines->cap == 0 ? 16 : 2 * lines->cap;
        struct line *grown = realloc(lines->list, cap * sizeof(*grown));

        if (grown == NULL)
            return NULL;
        lines->list = grown;
        lines->cap = cap;
    }
    lines->list[lines->count] = (struct line){ .what = 'r' };
    return &lines->list[lines->count++];
}

static enum shoal_err lines_read(struct lines *lines, struct shoal_view bytes)
{
    char text[PATH_BYTES + 128];
    size_t at = 0;

    while (at < bytes.len) {
        const uint8_t *end = memchr(bytes.bytes + at, '\n', bytes.len - at);
        size_t len = end == NULL ? bytes.len - at : (size_t)(end - (bytes.bytes + at));
        struct line *line = lines_add(lines);

        if (line == NULL || len >= sizeof(text))
            return SHOAL_ERR_TOO_BIG;
        memcpy(text, bytes.bytes + at, len);
        text[len] = '\0';
        if (!line_parse(text, line))
            return SHOAL_ERR_MALFORMED;
        at += len + 1;
    }
    return SHOAL_OK;
}

static bool lines_have(const struct lines *lines, struct shoal_hash hash)
{
    for (size_t i = 0; i < lines->count; i++)
        if (lines->list[i].what == 'r' && shoal_hash_equal(lines->list[i].hash, hash))
            return true;
    return false;
}

size_t agent_archive_lines(struct shoal_view list)
{
    struct lines lines = { 0 };
    enum shoal_err err = lines_read(&lines, list);
    size_t count = err == SHOAL_OK ? lines.count : 0;

    free(lines.list);
    return count;
}

/* ---- making ---- */

struct making {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_hash manifests[2]; /* result, final files of the newest call */
    unsigned manifest;
    char root[AGENT_PATH_BYTES];
    char user[SHOAL_SCHED_BY_BYTES];
    struct lines lines;
    size_t next;
    /* What the other guardians have. */
    struct shoal_node_id nodes[8];
    size_t node_count, node;
    struct lines theirs;
    size_t their;
    uint64_t offset;
    int fd; /* of the piece under way; -1: none */
};

static void made(struct making *m, enum shoal_err err, const char *text, struct shoal_hash list)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_ARCHIVE_MADE };
    struct agent_job *job = agent_job_need(m->agent, m->job);
    struct ledger_progress progress;

    event.u.archive.job = m->job;
    event.u.archive.ok = err == SHOAL_OK;
    event.u.archive.list = list;
    (void)snprintf(event.u.archive.text, sizeof(event.u.archive.text), "%.199s", text);
    if (err == SHOAL_OK && job != NULL && agent_ledger_progress(m->agent, job, &progress) && progress.step > 0) {
        event.u.archive.has_progress = true;
        event.u.archive.steps = progress.train_steps;
        event.u.archive.data_epoch = progress.data_epoch;
        event.u.archive.has_metrics = progress.has_metrics;
        event.u.archive.loss_micro = (int64_t)(progress.loss * 1e6);
        event.u.archive.metric_micro = (int64_t)(progress.metric * 1e6);
    }
    if (err != SHOAL_OK)
        agent_log(m->agent, "an ended job waits for the archive: %s", text);
    agent_event(m->agent, &event);
    if (m->fd >= 0)
        (void)close(m->fd);
    free(m->lines.list);
    free(m->theirs.list);
    free(m);
}

static void on_list_stored(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash)
{
    made(arg, err == SHOAL_ERR_UNREACHABLE ? SHOAL_OK : err, text, hash); /* the holders fetch it */
}

static void store_list(struct making *m)
{
    char path[AGENT_PATH_BYTES + 64];
    bool good;
    FILE *file;

    if (m->lines.count == 0) {
        made(m, SHOAL_OK, "", (struct shoal_hash){ { 0 } });
        return;
    }
    agent_job_folder(m->agent, m->job, path, AGENT_PATH_BYTES);
    (void)mkdir(path, 0700);
    memcpy(path + strlen(path), "/archive", 9);
    file = fopen(path, "we");
    if (file == NULL) {
        made(m, SHOAL_ERR_STORAGE, strerror(errno), (struct shoal_hash){ { 0 } });
        return;
    }
    for (size_t i = 0; i < m->lines.count; i++) {
        const struct line *line = &m->lines.list[i];
        char hex[SHOAL_HASH_TEXT_BYTES];

        shoal_hex_text(line->hash.bytes, 32, hex);
        (void)fprintf(file, "%s %c %llu %s\n", hex, line->what, (unsigned long long)line->bytes, line->path);
    }
    good = ferror(file) == 0;
    if (fclose(file) != 0 || !good)
        made(m, SHOAL_ERR_STORAGE, "the list of its blobs cannot be written", (struct shoal_hash){ { 0 } });
    else
        agent_store_file(m->agent, m->job, path, on_list_stored, m);
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

static void line_path(const struct agent *agent, struct shoal_job_id job, const char *root, const struct line *line,
                      char *path, size_t cap)
{
    if (line->what == 'g' || line->what == 'a') {
        agent_job_folder(agent, job, path, cap - 16);
        memcpy(path + strlen(path), line->what == 'g' ? "/ledger" : "/audit", line->what == 'g' ? 8 : 7);
    } else {
        (void)snprintf(path, cap, "%s/%s", root, line->path);
    }
}

/* A file becomes a blob; a blob of the result is fetched if this guardian lacks it. */
static void store_next(struct making *m)
{
    char path[AGENT_PATH_BYTES + PATH_BYTES + 16];
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
    line_path(m->agent, m->job, m->root, &m->lines.list[m->next], path, sizeof(path));
    agent_store_file(m->agent, m->job, path, on_file_stored, m);
}

static void add_file(struct making *m, char what, const char *relative)
{
    char path[AGENT_PATH_BYTES + PATH_BYTES + 16];
    struct line line = { .what = what };
    struct line *added;
    struct stat facts;

    (void)snprintf(line.path, sizeof(line.path), "%s", relative);
    line_path(m->agent, m->job, m->root, &line, path, sizeof(path));
    if (lstat(path, &facts) != 0 || !S_ISREG(facts.st_mode))
        return;
    line.bytes = (uint64_t)facts.st_size;
    added = lines_add(&m->lines);
    if (added != NULL)
        *added = line;
}

/* The auditor reads the job's replica too, which is about to go: its answer is kept, not only the ledger. */
static void keep_audit(struct making *m)
{
    struct agent_job *job = agent_job_need(m->agent, m->job);
    const struct line line = { .what = 'a' };
    char path[AGENT_PATH_BYTES + 16];
    struct shoal_buf json = { 0 };
    struct shoal_msg msg;

    line_path(m->agent, m->job, m->root, &line, path, sizeof(path));
    if (job != NULL && agent_ledger_audit(m->agent, job, &json) == SHOAL_OK &&
        shoal_file_replace(path, shoal_buf_view(&json), 0600, &msg) == SHOAL_OK)
        add_file(m, 'a', "audit");
    shoal_buf_deinit(&json);
}

static void list_files(struct making *m)
{
    static char names[TASKS_MAX][96];
    size_t count = agent_log_tasks(m->root, names, TASKS_MAX);

    for (size_t i = 0; i < count; i++) {
        char path[AGENT_PATH_BYTES + PATH_BYTES];
        const struct dirent *entry;
        DIR *dir;

        (void)snprintf(path, sizeof(path), "%.500s/log/%.95s", m->root, names[i]);
        dir = opendir(path);
        while (dir != NULL && (entry = readdir(dir)) != NULL) {
            char below[PATH_BYTES];

            if (entry->d_name[0] != '.' && strchr(entry->d_name, '\n') == NULL &&
                (size_t)snprintf(below, sizeof(below), "log/%s/%s", names[i], entry->d_name) < sizeof(below))
                add_file(m, 'l', below);
        }
        if (dir != NULL)
            (void)closedir(dir);
    }
    keep_audit(m);
    add_file(m, 'g', "ledger");
}

/* ---- what other guardians have (N4) ---- */

static void pull_node(struct making *m);
static void pull_file(struct making *m);

static void pull_path(const struct making *m, char *path, size_t cap)
{
    struct line line = { .what = strcmp(m->theirs.list[m->their].path, "ledger") == 0 ? 'g' : 'l' };

    memcpy(line.path, m->theirs.list[m->their].path, sizeof(line.path));
    line_path(m->agent, m->job, m->root, &line, path, cap);
}

static void pull_ask(struct making *m, const char *path, peer_answer_fn *done)
{
    uint8_t args[512];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));

    shoal_put_job_id(&w, m->job);
    shoal_put_text(&w, m->user);
    shoal_put_text(&w, path);
    shoal_put_u64(&w, m->offset);
    peer_ask(m->agent->calls, m->nodes[m->node], PEER_ARCHIVE_FILES, shoal_writer_view(&w), ASK_TIMEOUT_NS, done, m);
}

static void pull_next_node(struct making *m)
{
    if (m->fd >= 0)
        (void)close(m->fd);
    m->fd = -1;
    m->node++;
    pull_node(m);
}

static void on_piece(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct making *m = arg;
    char path[AGENT_PATH_BYTES + PATH_BYTES + 16];
    char part[AGENT_PATH_BYTES + PATH_BYTES + 24];
    struct agent_job *job = agent_job_find(m->agent, m->job);

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
    pull_path(m, path, sizeof(path));
    (void)snprintf(part, sizeof(part), "%s.part", path);
    if (job != NULL && strcmp(m->theirs.list[m->their].path, "ledger") == 0)
        agent_ledger_close(job);
    (void)rename(part, path); /* if not: as if that guardian had not had it */
    (void)close(m->fd);
    m->fd = -1;
    m->their++;
    pull_file(m);
}

/* The next file of which this guardian has more than we do. */
static void pull_file(struct making *m)
{
    char path[AGENT_PATH_BYTES + PATH_BYTES + 16];
    char part[AGENT_PATH_BYTES + PATH_BYTES + 24];
    struct stat facts;

    for (; m->their < m->theirs.count; m->their++) {
        pull_path(m, path, sizeof(path));
        if (lstat(path, &facts) != 0 || (uint64_t)facts.st_size < m->theirs.list[m->their].bytes)
            break;
    }
    if (m->their == m->theirs.count) {
        pull_next_node(m);
        return;
    }
    make_parents(path, strlen(m->agent->settings.data) + 1);
    (void)snprintf(part, sizeof(part), "%s.part", path);
    m->offset = 0;
    m->fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (m->fd < 0)
        pull_next_node(m);
    else
        pull_ask(m, m->theirs.list[m->their].path, on_piece);
}

static void on_theirs(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct making *m = arg;
    struct shoal_reader r = shoal_reader_init(answer);
    uint32_t count = shoal_get_u32(&r);

    (void)msg;
    m->theirs.count = 0;
    m->their = 0;
    for (uint32_t i = 0; err == SHOAL_OK && i < count && !r.failed; i++) {
        struct line *line = lines_add(&m->theirs);

        if (line == NULL)
            break;
        shoal_get_text(&r, line->path, sizeof(line->path));
        line->bytes = shoal_get_u64(&r);
        if (r.failed || (!is_log_path(line->path) && strcmp(line->path, "ledger") != 0))
            m->theirs.count--;
    }
    pull_file(m);
}

static void pull_node(struct making *m)
{
    while (m->node < m->node_count && !shoal_link_is_up(m->agent->link, m->nodes[m->node]))
        m->node++;
    if (m->node < m->node_count && !m->agent->stopping) {
        m->offset = 0;
        pull_ask(m, "", on_theirs);
        return;
    }
    list_files(m);
    store_next(m);
}

static void pull_all(struct making *m)
{
    size_t count = agent_job_nodes(m->agent, m->job, m->nodes, 8, &m->node_count);

    if (m->node_count > count)
        m->node_count = count;
    m->node = 0;
    pull_node(m);
}

static void put_files(struct shoal_writer *w, const char *root, const char *folder)
{
    static char names[TASKS_MAX][96];
    size_t count = agent_log_tasks(root, names, TASKS_MAX);
    char path[AGENT_PATH_BYTES + PATH_BYTES + 16];
    size_t at = w->len;
    struct stat facts;
    uint32_t put = 0;

    shoal_put_u32(w, 0);
    (void)snprintf(path, sizeof(path), "%s/ledger", folder);
    if (lstat(path, &facts) == 0 && S_ISREG(facts.st_mode)) {
        shoal_put_text(w, "ledger");
        shoal_put_u64(w, (uint64_t)facts.st_size);
        put++;
    }
    for (size_t i = 0; i < count; i++) {
        const struct dirent *entry;
        DIR *dir;

        (void)snprintf(path, sizeof(path), "%.500s/log/%.95s", root, names[i]);
        dir = opendir(path);
        while (dir != NULL && (entry = readdir(dir)) != NULL && w->len + PATH_BYTES + 16 < w->cap) {
            char below[PATH_BYTES];

            if ((size_t)snprintf(below, sizeof(below), "log/%s/%s", names[i], entry->d_name) >= sizeof(below) ||
                !is_log_path(below))
                continue;
            (void)snprintf(path, sizeof(path), "%.500s/%s", root, below);
            if (lstat(path, &facts) != 0 || !S_ISREG(facts.st_mode))
                continue;
            shoal_put_text(w, below);
            shoal_put_u64(w, (uint64_t)facts.st_size);
            put++;
        }
        if (dir != NULL)
            (void)closedir(dir);
    }
    memcpy(w->bytes + at, &put, sizeof(put));
}

static void serve_files(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct shoal_job_id id = shoal_get_job_id(&r);
    char user[SHOAL_SCHED_BY_BYTES], relative[PATH_BYTES];
    char root[AGENT_PATH_BYTES], folder[AGENT_PATH_BYTES], path[AGENT_PATH_BYTES + PATH_BYTES + 16];
    static uint8_t bytes[ANSWER_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    uint64_t offset;
    ssize_t n;
    int fd;

    (void)from;
    shoal_get_text(&r, user, sizeof(user));
    shoal_get_text(&r, relative, sizeof(relative));
    offset = shoal_get_u64(&r);
    if (!shoal_reader_done(&r) || offset > INT64_MAX ||
        (relative[0] != '\0' && !is_log_path(relative) && strcmp(relative, "ledger") != 0)) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "not a file of an ended job", (struct shoal_view){ 0 });
        return;
    }
    agent_archive_folder(agent, user, id, root, sizeof(root));
    agent_job_folder(agent, id, folder, sizeof(folder));
    if (relative[0] == '\0') {
        put_files(&w, root, folder);
        peer_answer(question, w.failed ? SHOAL_ERR_TOO_BIG : SHOAL_OK, "", shoal_writer_view(&w));
        return;
    }
    (void)snprintf(path, sizeof(path), "%s/%s", strcmp(relative, "ledger") == 0 ? folder : root, relative);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    n = fd < 0 ? -1 : pread(fd, bytes, sizeof(bytes), (off_t)offset);
    if (fd >= 0)
        (void)close(fd);
    peer_answer(question, n < 0 ? SHOAL_ERR_NOT_FOUND : SHOAL_OK, n < 0 ? "there is no such file here" : "",
                shoal_view_of(bytes, n < 0 ? 0 : (size_t)n));
}

/* ---- the result's blobs, then all of it ---- */

static void next_manifest(struct making *m);

static void on_manifest(void *arg, enum shoal_err err, const char *text, struct shoal_view bytes)
{
    struct making *m = arg;
    size_t at = 0;

    if (err != SHOAL_OK) {
        made(m, err, text, (struct shoal_hash){ { 0 } });
        return;
    }
    while (at + 64 < bytes.len) { /* each line begins with the file's hash */
        const uint8_t *end = memchr(bytes.bytes + at, '\n', bytes.len - at);
        char hex[SHOAL_HASH_TEXT_BYTES] = "";
        struct shoal_hash hash = { { 0 } };

        memcpy(hex, bytes.bytes + at, 64);
        if (shoal_hex_parse(hex, hash.bytes, 32) && !lines_have(&m->lines, hash)) {
            struct line *line = lines_add(&m->lines);

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

static void next_manifest(struct making *m)
{
    struct line *line;

    while (m->manifest < 2 &&
           (shoal_hash_is_zero(m->manifests[m->manifest]) || lines_have(&m->lines, m->manifests[m->manifest])))
        m->manifest++;
    if (m->manifest == 2) {
        pull_all(m);
        return;
    }
    line = lines_add(&m->lines);
    if (line == NULL) {
        made(m, SHOAL_ERR_FULL, "no memory for the list of its blobs", (struct shoal_hash){ { 0 } });
        return;
    }
    line->hash = m->manifests[m->manifest];
    (void)snprintf(line->path, sizeof(line->path), "manifest");
    agent_read_blob(m->agent, m->job, line->hash, LIST_BYTES_MAX, on_manifest, m);
}

void agent_archive_make(struct agent *agent, const struct shoal_sched_action *action)
{
    struct making *m = calloc(1, sizeof(*m));

    SHOAL_ASSERT(m != NULL);
    m->agent = agent;
    m->job = action->u.archive.job;
    m->manifests[0] = action->u.archive.result;
    m->manifests[1] = action->u.archive.files;
    m->fd = -1;
    memcpy(m->user, action->u.archive.user, sizeof(m->user));
    agent_archive_folder(agent, action->u.archive.user, m->job, m->root, sizeof(m->root));
    next_manifest(m);
}

/* ---- fetching ---- */

struct taking {
    struct agent *agent;
    struct shoal_job_id job;
    struct shoal_hash list;
    struct shoal_node_id sources[SHOAL_SCHED_SOURCES_MAX];
    size_t source_count;
    char root[AGENT_PATH_BYTES];
    char path[AGENT_PATH_BYTES + PATH_BYTES + 16]; /* of the file that is made */
    char made[AGENT_PATH_BYTES + PATH_BYTES + 16]; /* until it is flushed */
    int fd;
    uv_fs_t sync;
    struct lines lines;
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
        const struct line *line = &t->lines.list[t->next];

        line_path(t->agent, t->job, t->root, line, t->path, sizeof(t->path));
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
    make_parents(t->path, strlen(t->agent->settings.data) + 1);
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
        err = lines_read(&t->lines, bytes);
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
        agent_read_blob(t->agent, t->job, t->list, LIST_BYTES_MAX, on_list_read, t);
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

/* ---- the index of all archived jobs ---- */

struct indexed {
    struct shoal_job_summary summary;
    struct shoal_node_id source;
};

struct known_part {
    struct shoal_node_id node;
    uint64_t known, heard; /* marks */
    bool asking;
    struct agent *agent;
};

struct archive_index {
    struct indexed **list; /* in order of ids */
    size_t count, cap;
    struct known_part **parts;
    size_t part_count;
    uint64_t told;    /* our own mark, as of the last look */
    uv_timer_t timer; /* tells the others */
};

uint64_t agent_archive_mark(const struct agent *agent)
{
    return (uint64_t)(agent->identity.incarnation.agent & UINT32_MAX) << 32 |
           (uint32_t)shoal_sched_archive_version(agent->sched);
}

static size_t index_place(const struct archive_index *index, struct shoal_job_id id)
{
    size_t low = 0;
    size_t high = index->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (shoal_job_id_cmp(index->list[mid]->summary.id, id) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void index_remove_at(struct archive_index *index, size_t at)
{
    free(index->list[at]);
    index->count--;
    memmove(&index->list[at], &index->list[at + 1], (index->count - at) * sizeof(index->list[0]));
}

static void index_remove(struct archive_index *index, struct shoal_job_id id)
{
    size_t at = index_place(index, id);

    if (at < index->count && shoal_job_id_equal(index->list[at]->summary.id, id))
        index_remove_at(index, at);
}

static void index_add(struct archive_index *index, const struct shoal_job_summary *summary, struct shoal_node_id source)
{
    size_t at = index_place(index, summary->id);
    struct indexed *item;

    if (at < index->count && shoal_job_id_equal(index->list[at]->summary.id, summary->id)) {
        index->list[at]->summary = *summary;
        index->list[at]->source = source;
        return;
    }
    if (index->count == SHOAL_ARCHIVE_LISTED_MAX) { /* N3 */
        if (at == 0)
            return;
        index_remove_at(index, 0);
        at--;
    }
    if (index->count == index->cap) {
        size_t cap = index->cap == 0 ? 64 : 2 * index->cap;
        struct indexed **grown = realloc(index->list, cap * sizeof(struct indexed *));

        if (grown == NULL)
            return; /* it answers to its full id */
        index->list = grown;
        index->cap = cap;
    }
    item = malloc(sizeof(*item));
    if (item == NULL)
        return;
    *item = (struct indexed){ .summary = *summary, .source = source };
    memmove(&index->list[at + 1], &index->list[at], (index->count - at) * sizeof(index->list[0]));
    index->list[at] = item;
    index->count++;
}

const struct shoal_job_summary *agent_archive_next(const struct agent *agent, size_t *cursor)
{
    const struct archive_index *index = agent->archive;

    if (index == NULL || *cursor >= index->count)
        return NULL;
    return &index->list[index->count - ++*cursor]->summary;
}

static void take_bytes(void *arg, struct shoal_job_id group, const struct shoal_store_snapshot *snapshot)
{
    struct shoal_buf *bytes = arg;

    (void)group;
    if (shoal_buf_append(bytes, snapshot->bytes.bytes, snapshot->bytes.len) != SHOAL_OK)
        bytes->len = 0;
}

bool agent_archived(struct agent *agent, struct shoal_job_id id, struct shoal_sched_archived *here)
{
    static struct shoal_buf bytes;
    const struct shoal_store_replay each = { .arg = &bytes, .on_snapshot = take_bytes };

    if (!shoal_sched_archive_find(agent->sched, id, here))
        return false;
    if (!here->cold)
        return true;
    bytes.len = 0;
    return shoal_store_load(agent->store, shoal_sched_archive_place(id), &each) == SHOAL_OK &&
           shoal_sched_archive_read(shoal_buf_view(&bytes), here);
}

const struct shoal_job_summary *agent_archive_find(struct agent *agent, struct shoal_job_id id,
                                                   struct shoal_node_id *source)
{
    const struct archive_index *index = agent->archive;
    static struct shoal_job_summary summary;
    struct shoal_sched_archived here;
    size_t at;

    if (index == NULL)
        return NULL;
    at = index_place(index, id);
    if (at < index->count && shoal_job_id_equal(index->list[at]->summary.id, id)) {
        *source = index->list[at]->source;
        return &index->list[at]->summary;
    }
    if (!agent_archived(agent, id, &here) || shoal_job_summary_decode(here.summary, &summary) != SHOAL_OK)
        return NULL;
    *source = agent->identity.node;
    return &summary;
}

static void on_tell(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    if (!agent->stopping && agent->membership != NULL)
        agent_publish_load(agent);
}

/* Our own part: what came and what was deleted since the last look. */
void agent_archive_changed(struct agent *agent)
{
    struct archive_index *index = agent->archive;
    uint64_t version = shoal_sched_archive_version(agent->sched);
    static struct shoal_job_summary summary;
    struct shoal_sched_archived here;
    const void *cursor = NULL;
    struct shoal_job_id id;
    uint64_t since;

    if (index == NULL || version == index->told)
        return;
    while (shoal_sched_archive_newest(agent->sched, &cursor, &here) && here.since > index->told)
        if (shoal_job_summary_decode(here.summary, &summary) == SHOAL_OK)
            index_add(index, &summary, agent->identity.node);
    for (size_t i = 0; shoal_sched_deleted_at(agent->sched, i, &id, &since); i++)
        if (since > index->told)
            index_remove(index, id);
    index->told = version;
    if (!uv_is_active((uv_handle_t *)&index->timer))
        (void)uv_timer_start(&index->timer, on_tell, TELL_MS, 0);
}

/* ---- the others' parts ---- */

static struct known_part *part_of(struct agent *agent, struct shoal_node_id node)
{
    struct archive_index *index = agent->archive;
    struct known_part **grown;
    struct known_part *part;

    for (size_t i = 0; i < index->part_count; i++)
        if (shoal_node_id_equal(index->parts[i]->node, node))
            return index->parts[i];
    part = index->part_count < SHOAL_MEMBERS_MAX ? calloc(1, sizeof(*part)) : NULL;
    grown = part == NULL ? NULL : realloc(index->parts, (index->part_count + 1) * sizeof(struct known_part *));
    if (grown == NULL) {
        free(part);
        return NULL;
    }
    index->parts = grown;
    index->parts[index->part_count++] = part;
    *part = (struct known_part){ .node = node, .agent = agent };
    return part;
}

static void ask_part(struct known_part *part);

static bool take_part(struct known_part *part, struct shoal_view answer)
{
    struct archive_index *index = part->agent->archive;
    struct shoal_reader r = shoal_reader_init(answer);
    uint64_t mark = shoal_get_u64(&r);
    uint32_t count = shoal_get_u32(&r);
    static struct shoal_job_summary summary;

    for (uint32_t i = 0; i < count && !r.failed; i++) {
        struct shoal_view bytes = shoal_get_bytes(&r, SHOAL_SCHED_SUMMARY_BYTES_MAX);

        if (!r.failed && shoal_job_summary_decode(bytes, &summary) == SHOAL_OK)
            index_add(index, &summary, part->node);
    }
    count = shoal_get_u32(&r);
    for (uint32_t i = 0; i < count && !r.failed; i++) {
        struct shoal_job_id id = shoal_get_job_id(&r);

        if (!r.failed)
            index_remove(index, id);
    }
    if (!shoal_reader_done(&r) || mark == part->known)
        return false;
    part->known = mark;
    return true;
}

bool agent_archive_told(struct agent *agent, struct shoal_node_id node, struct shoal_view answer)
{
    struct known_part *part = part_of(agent, node);

    return part != NULL && take_part(part, answer);
}

static void on_part(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct known_part *part = arg;

    (void)msg;
    part->asking = false;
    if (err == SHOAL_OK && !part->agent->stopping && agent_archive_told(part->agent, part->node, answer) &&
        part->known != part->heard)
        ask_part(part); /* it has more; what fails is asked again when the node is heard of again */
}

static void ask_part(struct known_part *part)
{
    uint8_t args[8];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));

    if (part->asking || !shoal_link_is_up(part->agent->link, part->node))
        return;
    shoal_put_u64(&w, part->known);
    part->asking = true;
    peer_ask(part->agent->calls, part->node, PEER_ARCHIVE_LIST, shoal_writer_view(&w), ASK_TIMEOUT_NS, on_part, part);
}

void agent_archive_heard(struct agent *agent, struct shoal_node_id node, uint64_t mark)
{
    struct known_part *part;

    if (agent->archive == NULL || mark == 0 || shoal_node_id_equal(node, agent->identity.node))
        return;
    part = part_of(agent, node);
    if (part == NULL)
        return;
    part->heard = mark;
    if (part->known != mark)
        ask_part(part);
}

/* What is new since `from`, oldest first, as much as fits; the version up to which it goes. Of the records in memory:
 * what is older is found by its full id alone. */
static uint64_t put_changes(const struct agent *agent, uint64_t from, struct shoal_writer *w)
{
    const void **changes = calloc(SHOAL_ARCHIVE_LISTED_MAX, sizeof(*changes));
    uint64_t upto = shoal_sched_archive_version(agent->sched);
    struct shoal_sched_archived here;
    struct shoal_job_id id;
    const void *cursor = NULL;
    size_t used = 0;
    size_t at = w->len;
    uint32_t put = 0;
    uint64_t since;

    SHOAL_ASSERT(changes != NULL);
    shoal_put_u32(w, 0);
    while (used < SHOAL_ARCHIVE_LISTED_MAX) {
        changes[used] = cursor; /* from which it is the next */
        if (!shoal_sched_archive_newest(agent->sched, &cursor, &here) || here.since <= from)
            break;
        used++;
    }
    for (size_t i = used; i > 0; i--) {
        cursor = changes[i - 1];
        if (!shoal_sched_archive_newest(agent->sched, &cursor, &here))
            break;
        if (w->len + SHOAL_SCHED_SUMMARY_BYTES_MAX + 8 > ANSWER_BYTES_MAX) {
            upto = here.since - 1;
            break;
        }
        shoal_put_bytes(w, here.summary);
        put++;
    }
    free(changes);
    memcpy(w->bytes + at, &put, sizeof(put));
    at = w->len;
    put = 0;
    shoal_put_u32(w, 0);
    for (size_t i = 0; shoal_sched_deleted_at(agent->sched, i, &id, &since); i++)
        if (since > from && since <= upto) {
            shoal_put_job_id(w, id);
            put++;
        }
    memcpy(w->bytes + at, &put, sizeof(put));
    return upto;
}

static void serve_part(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    uint64_t mark = shoal_get_u64(&r);
    uint64_t ours = agent_archive_mark(agent);
    static uint8_t bytes[ANSWER_BYTES_MAX + SHOAL_SCHED_GONE_MAX * 10 + 64];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    uint64_t upto;

    (void)from;
    if (!shoal_reader_done(&r)) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "", (struct shoal_view){ 0 });
        return;
    }
    shoal_put_u64(&w, 0);
    upto = put_changes(agent, mark >> 32 == ours >> 32 ? (uint32_t)mark : 0, &w); /* of an earlier life: all of it */
    {
        struct shoal_writer head = shoal_writer_init(bytes, 8);

        shoal_put_u64(&head, (ours >> 32) << 32 | (uint32_t)upto);
    }
    peer_answer(question, w.failed ? SHOAL_ERR_TOO_BIG : SHOAL_OK, "", shoal_writer_view(&w));
}

void agent_archive_create(struct agent *agent)
{
    agent->archive = calloc(1, sizeof(*agent->archive));
    SHOAL_ASSERT(agent->archive != NULL);
    (void)uv_timer_init(&agent->loop, &agent->archive->timer);
    agent->archive->timer.data = agent;
    peer_serve(agent->calls, PEER_ARCHIVE_FILES, serve_files, agent);
    peer_serve(agent->calls, PEER_ARCHIVE_LIST, serve_part, agent);
}
