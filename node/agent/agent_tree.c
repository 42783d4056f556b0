/* The result folder of a job looks the same on every host of it (PROTOCOLS 8): there is no shared file system.
 *
 *   host that writes --PEER_PUSH_FILE, piece by piece--> guardians and the other hosts of the job
 *
 * Each host with a worker looks at its folder four times a second. What it finds changed, and did not itself receive,
 * is pushed: files below log/ by what was appended, every other file whole, under a temporary name until its last piece
 * came. A file appears elsewhere within 2 s, whole; the last writer of a path wins. The files of the bundle are on
 * every host already and are pushed only when they change.
 *
 * T1. A received file is known by its size and time, so it is never pushed back.
 * T2. Nothing outside the result folder is read or written: paths are relative, without "..", and no link is
 *     followed.
 * T3. A job of one process that has printed nothing has no logs to push: who looks for them finds none, which says the
 *     same. Once it prints, all of them are pushed. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define ENTRIES_MAX 8192
#define ENTRIES_FIRST 16
/* Closed jobs are looked for in each so many scans. */
#define SWEEP_SCANS 4
#define DEPTH_MAX 16
#define TARGETS_MAX 8
#define PIECE_BYTES (256 * SHOAL_KIB)
#define SCAN_MS 250
#define SCAN_SOME_MS 50
#define PUSH_TIMEOUT_NS (10 * SHOAL_S)
#define PATH_MAX_BYTES 400

struct entry {
    char *path; /* relative to the result folder */
    uint64_t bytes;
    uint64_t mtime_ns;
    uint32_t mode;
    bool foreign; /* received, and not changed here since */
    bool log;
    bool seen;                       /* in this scan */
    uint32_t version;                /* counted up when it changes here */
    uint32_t sent[TARGETS_MAX];      /* version that target i has whole */
    uint64_t offset[TARGETS_MAX];    /* bytes of it that target i has */
    uint32_t under_way[TARGETS_MAX]; /* version of which pieces are being sent */
};

struct target {
    struct shoal_node_id node;
    bool asking;
    size_t entry; /* of the piece under way */
    uint32_t version;
    uint64_t piece_end;
    struct tree *tree;
};

struct tree {
    struct agent *agent;
    struct agent_job *job;
    struct entry *entries; /* grows */
    size_t count, cap;
    struct target targets[TARGETS_MAX];
    size_t target_count;
    unsigned open_asks;
    uint64_t scanned_ns;
    bool baseline; /* the bundle's files have been noted */
    bool closing;
};

static void push_all(struct tree *tree);

/* ---- looking ---- */

static struct entry *entry_find(struct tree *tree, const char *path)
{
    for (size_t i = 0; i < tree->count; i++)
        if (strcmp(tree->entries[i].path, path) == 0)
            return &tree->entries[i];
    return NULL;
}

static struct entry *entry_need(struct tree *tree, const char *path)
{
    struct entry *entry = entry_find(tree, path);

    if (entry != NULL || tree->count == ENTRIES_MAX)
        return entry;
    if (tree->count == tree->cap) {
        tree->cap = tree->cap == 0 ? ENTRIES_FIRST : 2 * tree->cap;
        tree->entries = realloc(tree->entries, tree->cap * sizeof(*tree->entries));
        SHOAL_ASSERT(tree->entries != NULL);
    }
    entry = &tree->entries[tree->count];
    *entry = (struct entry){ .path = strdup(path), .log = strncmp(path, "log/", 4) == 0 };
    SHOAL_ASSERT(entry->path != NULL);
    tree->count++;
    return entry;
}

static uint64_t mtime_of(const struct stat *facts)
{
    return (uint64_t)facts->st_mtim.tv_sec * SHOAL_S + (uint64_t)facts->st_mtim.tv_nsec;
}

static void look_at(struct tree *tree, const char *path, const struct stat *facts)
{
    struct entry *entry = entry_find(tree, path);
    bool fresh = entry == NULL;

    entry = entry_need(tree, path);
    if (entry == NULL || (!fresh && entry->bytes == (uint64_t)facts->st_size && entry->mtime_ns == mtime_of(facts)))
        return;
    entry->bytes = (uint64_t)facts->st_size;
    entry->mtime_ns = mtime_of(facts);
    entry->mode = facts->st_mode & 0777;
    entry->foreign = fresh && !tree->baseline && strncmp(path, "_submitted_code/", 16) == 0;
    entry->version++;
}

static bool is_ours(const char *name)
{
    size_t len = strlen(name);

    return len > 5 && strcmp(name + len - 5, ".part") == 0;
}

static void scan_folder(struct tree *tree, const char *relative, unsigned depth)
{
    char path[AGENT_PATH_BYTES + PATH_MAX_BYTES];
    const struct dirent *item;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "%s/%s", tree->job->result_dir, relative);
    dir = opendir(path);
    while (dir != NULL && (item = readdir(dir)) != NULL) {
        char below[PATH_MAX_BYTES];
        struct stat facts;

        if (item->d_name[0] == '.' || is_ours(item->d_name) || strcmp(item->d_name, "__pycache__") == 0 ||
            (size_t)snprintf(below, sizeof(below), "%s%s%s", relative, relative[0] == '\0' ? "" : "/", item->d_name) >=
                sizeof(below))
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", tree->job->result_dir, below);
        if (lstat(path, &facts) != 0)
            continue;
        if (S_ISDIR(facts.st_mode) && depth < DEPTH_MAX)
            scan_folder(tree, below, depth + 1);
        else if (S_ISREG(facts.st_mode))
            look_at(tree, below, &facts);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

/* ---- pushing ---- */

static void targets_update(struct tree *tree)
{
    struct shoal_node_id nodes[16];
    size_t guardians;
    size_t count = agent_job_nodes(tree->agent, tree->job->id, nodes, 16, &guardians);

    for (size_t i = 0; i < count && i < 16; i++) {
        size_t at = 0;

        while (at < tree->target_count && !shoal_node_id_equal(tree->targets[at].node, nodes[i]))
            at++;
        if (at == tree->target_count && at < TARGETS_MAX) {
            tree->targets[at] = (struct target){ .node = nodes[i], .tree = tree };
            tree->target_count++;
        }
    }
}

static void tree_free(struct tree *tree)
{
    for (size_t i = 0; i < tree->count; i++)
        free(tree->entries[i].path);
    free(tree->entries);
    free(tree);
}

static void on_pushed(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct target *target = arg;
    struct tree *tree = target->tree;
    size_t at = (size_t)(target - tree->targets);
    struct entry *entry = &tree->entries[target->entry];

    (void)msg;
    (void)answer;
    target->asking = false;
    if (--tree->open_asks == 0 && tree->closing) {
        tree_free(tree);
        return;
    }
    if (tree->closing)
        return;
    if (err != SHOAL_OK) {
        entry->under_way[at] = 0; /* from its start, in a later scan */
        return;
    }
    entry->offset[at] = target->piece_end;
    push_all(tree);
}

/* u8 log, u8 last, job id, text user, text path, u32 mode, u64 mtime, u64 offset, bytes */
static bool push_piece(struct tree *tree, size_t at, struct entry *entry)
{
    static uint8_t args[PIECE_BYTES + 2048];
    struct target *target = &tree->targets[at];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    const char *user = tree->job->spec.submit_user[0] != '\0' ? tree->job->spec.submit_user : tree->job->spec.creator;
    char path[AGENT_PATH_BYTES + PATH_MAX_BYTES];
    uint64_t left;
    size_t len;
    uint8_t *space;
    int fd;

    if (entry->under_way[at] != entry->version) {
        entry->under_way[at] = entry->version;
        if (!entry->log || entry->offset[at] > entry->bytes)
            entry->offset[at] = 0;
    }
    left = entry->bytes - entry->offset[at];
    len = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
    shoal_put_bool(&w, entry->log);
    shoal_put_bool(&w, len == left);
    shoal_put_job_id(&w, tree->job->id);
    shoal_put_text(&w, user);
    shoal_put_text(&w, entry->path);
    shoal_put_u32(&w, entry->mode);
    shoal_put_u64(&w, entry->mtime_ns);
    shoal_put_u64(&w, entry->offset[at]);
    space = shoal_put_space(&w, len);
    (void)snprintf(path, sizeof(path), "%s/%s", tree->job->result_dir, entry->path);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || space == NULL || pread(fd, space, len, (off_t)entry->offset[at]) != (ssize_t)len) {
        if (fd >= 0)
            (void)close(fd);
        entry->sent[at] = entry->version; /* gone or changed meanwhile: the next scan sees it as it is */
        return false;
    }
    (void)close(fd);
    target->asking = true;
    target->entry = (size_t)(entry - tree->entries);
    target->version = entry->version;
    target->piece_end = entry->offset[at] + len;
    if (len == left)
        entry->sent[at] = entry->version;
    tree->open_asks++;
    peer_ask(tree->agent->calls, target->node, PEER_PUSH_FILE, shoal_writer_view(&w), PUSH_TIMEOUT_NS, on_pushed,
             target);
    return true;
}

/* T3 */
static bool is_silent(const struct tree *tree)
{
    for (size_t i = 0; i < tree->count; i++)
        if (tree->entries[i].log && tree->entries[i].bytes > 0)
            return false;
    return agent_job_is_single(tree->job);
}

static bool is_due(const struct entry *entry, size_t target)
{
    return !entry->foreign && (entry->sent[target] != entry->version || entry->under_way[target] == 0);
}

static void push_all(struct tree *tree)
{
    bool silent = is_silent(tree);

    for (size_t at = 0; at < tree->target_count; at++) {
        struct target *target = &tree->targets[at];

        if (target->asking || !shoal_link_is_up(tree->agent->link, target->node))
            continue;
        for (size_t i = 0; i < tree->count; i++) {
            struct entry *entry = &tree->entries[i];

            if (!is_due(entry, at) || (silent && entry->log))
                continue;
            if (push_piece(tree, at, entry))
                break;
        }
    }
}

void agent_tree_scan(struct agent *agent, struct agent_job *job)
{
    struct tree *tree = job->tree;

    if (job->result_dir[0] == '\0' || job->files == AGENT_FILES_FETCHING || job->files == AGENT_FILES_NONE)
        return;
    if (tree == NULL) {
        tree = calloc(1, sizeof(*tree));
        SHOAL_ASSERT(tree != NULL);
        tree->agent = agent;
        tree->job = job;
        job->tree = tree;
    }
    scan_folder(tree, "", 0);
    tree->baseline = true;
    tree->scanned_ns = agent_now_ns();
    targets_update(tree);
    push_all(tree);
}

bool agent_tree_quiet(const struct agent_job *job)
{
    const struct tree *tree = job->tree;
    bool silent = tree == NULL || is_silent(tree);

    for (size_t at = 0; tree != NULL && at < tree->target_count; at++)
        for (size_t i = 0; i < tree->count; i++)
            if (tree->targets[at].asking || (is_due(&tree->entries[i], at) && !(silent && tree->entries[i].log)))
                return false;
    return true;
}

void agent_tree_scan_some(struct agent *agent, struct agent_job *job)
{
    if (job->tree == NULL || agent_now_ns() >= job->tree->scanned_ns + SCAN_SOME_MS * SHOAL_MS)
        agent_tree_scan(agent, job);
}

void agent_tree_stop(struct agent_job *job)
{
    struct tree *tree = job->tree;

    job->tree = NULL;
    if (tree == NULL)
        return;
    tree->closing = true;
    if (tree->open_asks == 0)
        tree_free(tree);
}

static void on_scan(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    bool closed_too = ++agent->tree_scans % SWEEP_SCANS == 0; /* what a host was not reached with is sent again */

    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        if (agent->jobs[i] != NULL && (agent->jobs[i]->opened || (closed_too && agent->jobs[i]->tree != NULL &&
                                                                  !agent_tree_quiet(agent->jobs[i]))))
            agent_tree_scan(agent, agent->jobs[i]);
    if (closed_too)
        agent_jobs_sweep(agent);
}

/* ---- receiving ---- */

static bool safe_path(const char *path)
{
    const char *part = path;

    if (path[0] == '\0' || path[0] == '/')
        return false;
    for (;;) {
        const char *end = strchr(part, '/');
        size_t len = end == NULL ? strlen(part) : (size_t)(end - part);

        if (len == 0 || part[0] == '.')
            return false;
        if (end == NULL)
            return true;
        part = end + 1;
    }
}

static bool safe_user(const char *user) { return user[0] != '\0' && user[0] != '.' && strchr(user, '/') == NULL; }

/* Opens the file's folder below `root` without following a link, making folders on the way. */
static int open_folder(const char *root, const char *path, const char **name)
{
    char part[PATH_MAX_BYTES];
    int dir = open(root, O_DIRECTORY | O_PATH | O_CLOEXEC);

    while (dir >= 0) {
        const char *slash = strchr(path, '/');
        int next;

        if (slash == NULL) {
            *name = path;
            return dir;
        }
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        next = openat(dir, part, O_DIRECTORY | O_PATH | O_CLOEXEC | O_NOFOLLOW);
        if (next < 0 && errno == ENOENT && mkdirat(dir, part, 0700) == 0)
            next = openat(dir, part, O_DIRECTORY | O_PATH | O_CLOEXEC | O_NOFOLLOW);
        (void)close(dir);
        dir = next;
        path = slash + 1;
    }
    return -1;
}

struct piece {
    bool log, last;
    uint32_t mode;
    uint64_t mtime_ns, offset;
    char user[SHOAL_JOB_TEXT_BYTES];
    char path[PATH_MAX_BYTES];
    struct shoal_view bytes;
};

static enum shoal_err write_piece(const char *root, const struct piece *piece, struct stat *facts)
{
    char part[PATH_MAX_BYTES + 8];
    const char *name;
    int dir = open_folder(root, piece->path, &name);
    enum shoal_err err = SHOAL_OK;
    int fd;

    if (dir < 0)
        return SHOAL_ERR_STORAGE;
    (void)snprintf(part, sizeof(part), "%s%s", name, piece->log ? "" : ".part");
    fd =
        openat(dir, part, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (piece->log || piece->offset > 0 ? 0 : O_TRUNC),
               piece->mode & 0700);
    if (fd < 0 || pwrite(fd, piece->bytes.bytes, piece->bytes.len, (off_t)piece->offset) != (ssize_t)piece->bytes.len) {
        err = SHOAL_ERR_STORAGE;
    } else if (piece->last) {
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
                                     { .tv_sec = (time_t)(piece->mtime_ns / SHOAL_S),
                                       .tv_nsec = (long)(piece->mtime_ns % SHOAL_S) } };

        if (!piece->log)
            (void)futimens(fd, times);
        if (!piece->log && renameat(dir, part, dir, name) != 0)
            err = SHOAL_ERR_STORAGE;
    }
    if (fd >= 0 && fstat(fd, facts) != 0)
        err = SHOAL_ERR_STORAGE;
    if (fd >= 0)
        (void)close(fd);
    (void)close(dir);
    return err;
}

/* The folder below which the files of a job are, made where it is not there yet. */
static void result_root(const struct agent *agent, const char *user, const char *job, char *root, size_t cap)
{
    size_t user_end, work_end;

    (void)snprintf(root, cap, "%s/results/%.60s", agent->settings.data, user);
    user_end = strlen(root);
    (void)snprintf(root + user_end, cap - user_end, "/batchworkdir");
    work_end = strlen(root);
    (void)snprintf(root + work_end, cap - work_end, "/%s", job);
    if (mkdir(root, 0700) == 0 || errno != ENOENT)
        return;
    root[user_end] = '\0';
    (void)mkdir(root, 0700);
    root[user_end] = '/';
    root[work_end] = '\0';
    (void)mkdir(root, 0700);
    root[work_end] = '/';
    (void)mkdir(root, 0700);
}

static void serve_push(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct agent *agent = arg;
    struct shoal_reader r = shoal_reader_init(args);
    struct piece piece = { .log = shoal_get_bool(&r), .last = shoal_get_bool(&r) };
    struct shoal_job_id id = shoal_get_job_id(&r);
    struct agent_job *job;
    struct stat facts;
    char root[AGENT_PATH_BYTES + 200];
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    enum shoal_err err;

    (void)from;
    shoal_get_text(&r, piece.user, sizeof(piece.user));
    shoal_get_text(&r, piece.path, sizeof(piece.path));
    piece.mode = shoal_get_u32(&r);
    piece.mtime_ns = shoal_get_u64(&r);
    piece.offset = shoal_get_u64(&r);
    if (r.failed || !safe_path(piece.path) || !safe_user(piece.user)) {
        peer_answer(question, SHOAL_ERR_MALFORMED, "not a file of a result folder", (struct shoal_view){ 0 });
        return;
    }
    piece.bytes = shoal_view_of(r.bytes + r.at, r.len - r.at);
    shoal_job_id_text(id, text);
    result_root(agent, piece.user, text, root, sizeof(root));
    err = write_piece(root, &piece, &facts);
    job = agent_job_find(agent, id); /* its tree, if something of it runs here */
    if (err == SHOAL_OK && job != NULL && job->tree != NULL && (piece.last || piece.log)) {
        struct entry *entry = entry_need(job->tree, piece.path);

        if (entry != NULL) { /* T1 */
            entry->foreign = true;
            entry->bytes = (uint64_t)facts.st_size;
            entry->mtime_ns = mtime_of(&facts);
        }
    }
    peer_answer(question, err, err == SHOAL_OK ? "" : "the file could not be written here", (struct shoal_view){ 0 });
}

void agent_tree_create(struct agent *agent)
{
    peer_serve(agent->calls, PEER_PUSH_FILE, serve_push, agent);
    (void)uv_timer_init(&agent->loop, &agent->tree_timer);
    agent->tree_timer.data = agent;
    (void)uv_timer_start(&agent->tree_timer, on_scan, SCAN_MS, SCAN_MS);
}
