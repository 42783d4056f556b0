/* The result folder of a job looks the same on every host of it (PROTOCOLS 8): there is no shared file system.
 *
 *   host that writes --PEER_PUSH_FILE, piece by piece--> guardians and the other hosts of the job
 *
 * Each host with a worker looks at its folder four times a second. What it finds changed, and did not itself receive,
 * is flushed and pushed: files below log/ by what was appended, every other file whole, under a temporary name until its
 * last piece came and hash and length hold. A file appears elsewhere within 2 s, whole; the last writer of a path wins. The
 * files of the bundle are on every host already and are pushed only when they change. Disks are waited for on the file
 * thread (agent_files.c), where tree_disk.c says which content of a path this host has.
 *
 * T1. A received file is known by its size and time, so it is never pushed back.
 * T2. Nothing outside the result folder is read or written: paths are relative, without "..", and no link is
 *     followed.
 * T3. A job of one process that has printed nothing has no logs to push: who looks for them finds none, which says the
 *     same. Once it prints, all of them are pushed.
 * T4. What was there before this agent is offered, not forced: a log only where it is longer, a file as the content that was
 *     noted of it, and as nothing certain if the host has started anew since and the note does not hold. */
#include "agent.h"

#include "agent_files.h"
#include "node/blob/tree_disk.h"

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

struct entry {
    char *path; /* relative to the result folder */
    uint64_t bytes;
    uint64_t mtime_ns;
    uint32_t mode;
    bool foreign; /* received, and not changed here since */
    bool log;
    bool found;        /* it was there before this agent, and has not changed since (T4) */
    bool fresh;        /* its content was made here, in this agent's time */
    uint32_t version;  /* counted up when it changes here */
    uint32_t prepared; /* version that is flushed, and of which `content` is */
    uint64_t above;    /* a change made here must have a higher number */
    struct tree_version content;
    uint32_t sent[TARGETS_MAX];      /* version that target i has whole */
    uint64_t offset[TARGETS_MAX];    /* bytes of it that target i has */
    uint32_t under_way[TARGETS_MAX]; /* version of which pieces are being sent */
};

struct target {
    struct shoal_node_id node;
    bool asking;
    bool answered; /* it knows of versions */
    bool previous; /* it does not */
    size_t entry;  /* of the piece under way */
    uint32_t version;
    uint64_t piece_end;
    struct tree *tree;
};

/* On the file thread: prepare what is not prepared yet, then read a piece. */
struct reading {
    struct agent_file_job file;
    struct target *target;
    struct tree_place place;
    struct shoal_node_id self;
    uint64_t offset;
    size_t len;
    bool prepare, doubted, fresh;
    uint64_t above;
    struct tree_version content;
    enum shoal_err err;
    uint8_t bytes[];
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
    entry->found = !tree->baseline;
    entry->fresh = false;
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
    char path[AGENT_PATH_BYTES + TREE_PATH_BYTES];
    const struct dirent *item;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "%s/%s", tree->job->result_dir, relative);
    dir = opendir(path);
    while (dir != NULL && (item = readdir(dir)) != NULL) {
        char below[TREE_PATH_BYTES];
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

/* Another host has a content that is not older: then that is the path's, unless this one was made here just now. */
static void on_kept(struct entry *entry, const struct tree_version *theirs)
{
    if (tree_version_cmp(theirs, &entry->content) <= 0)
        return;
    if (entry->fresh) {
        entry->above = theirs->number;
        entry->version++;
    } else {
        entry->foreign = true;
    }
}

static void on_pushed(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct target *target = arg;
    struct tree *tree = target->tree;
    size_t at = (size_t)(target - tree->targets);
    struct entry *entry = &tree->entries[target->entry];
    struct shoal_reader r = shoal_reader_init(answer);
    struct tree_version theirs = { .number = 0 };

    (void)msg;
    target->asking = false;
    if (--tree->open_asks == 0 && tree->closing) {
        tree_free(tree);
        return;
    }
    if (tree->closing)
        return;
    if (err == SHOAL_ERR_MALFORMED && !target->answered)
        target->previous = true; /* an agent of the version before: it takes files without their versions */
    if (err != SHOAL_OK) {
        entry->under_way[at] = 0; /* from its start, in a later scan */
        return;
    }
    target->answered = true;
    if (answer.len > 0 && shoal_get_bool(&r)) {
        theirs.number = shoal_get_u64(&r);
        shoal_get_raw(&r, theirs.author.bytes, sizeof(theirs.author.bytes));
        entry->sent[at] = entry->under_way[at];
        if (!r.failed && entry->under_way[at] == entry->version)
            on_kept(entry, &theirs);
    } else {
        entry->offset[at] = target->piece_end;
    }
    push_all(tree);
}

static const char *user_of(const struct agent_job *job)
{
    return job->spec.submit_user[0] != '\0' ? job->spec.submit_user : job->spec.creator;
}

/* u8 log, and 2 if what is in brackets follows, u8 last, job id, text user, text path, u32 mode, u64 mtime, [u64 number,
 * author, u64 length, hash,] u64 offset, bytes. An agent of the version before calls a 2 malformed. */
static void send_piece(struct tree *tree, struct target *target, struct entry *entry, const struct reading *reading)
{
    static uint8_t args[PIECE_BYTES + 2048];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    size_t at = (size_t)(target - tree->targets);
    bool last = reading->offset + reading->len == entry->bytes;

    shoal_put_u8(&w, (uint8_t)(entry->log | (target->previous ? 0 : TREE_VERSIONED)));
    shoal_put_bool(&w, last);
    shoal_put_job_id(&w, tree->job->id);
    shoal_put_text(&w, user_of(tree->job));
    shoal_put_text(&w, entry->path);
    shoal_put_u32(&w, entry->mode);
    shoal_put_u64(&w, entry->mtime_ns);
    if (!target->previous) {
        shoal_put_u64(&w, entry->log ? !entry->found : entry->content.number);
        shoal_put_raw(&w, entry->content.author.bytes, sizeof(entry->content.author.bytes));
        shoal_put_u64(&w, entry->content.bytes);
        shoal_put_hash(&w, entry->content.hash);
    }
    shoal_put_u64(&w, reading->offset);
    shoal_put_raw(&w, reading->bytes, reading->len);
    SHOAL_ASSERT(!w.failed); /* a piece, a path and a user are bounded */
    target->piece_end = reading->offset + reading->len;
    if (last)
        entry->sent[at] = entry->version;
    tree->open_asks++;
    peer_ask(tree->agent->calls, target->node, PEER_PUSH_FILE, shoal_writer_view(&w), PUSH_TIMEOUT_NS, on_pushed,
             target);
}

static void read_piece(struct agent_file_job *file)
{
    struct reading *reading = (struct reading *)(void *)file;

    if (reading->prepare)
        reading->err = tree_prepare(&reading->place, reading->self, reading->doubted, reading->above, &reading->content,
                                    &reading->fresh);
    if (reading->err == SHOAL_OK &&
        tree_read(&reading->place, reading->offset, reading->bytes, reading->len) != (ssize_t)reading->len)
        reading->err = SHOAL_ERR_NOT_FOUND;
}

static void on_read(struct agent_file_job *file)
{
    struct reading *reading = (struct reading *)(void *)file;
    struct target *target = reading->target;
    struct tree *tree = target->tree;
    size_t at = (size_t)(target - tree->targets);
    struct entry *entry = &tree->entries[target->entry];

    target->asking = false;
    if (--tree->open_asks == 0 && tree->closing) {
        tree_free(tree);
    } else if (!tree->closing) {
        if (reading->err == SHOAL_ERR_NOT_FOUND || entry->version != target->version) {
            if (entry->version == target->version) /* gone, or changed in this moment: the next scan sees it as it is */
                entry->sent[at] = entry->version;
            push_all(tree);
        } else if (reading->err != SHOAL_OK) {
            entry->under_way[at] = 0; /* the disk refuses: a later scan tries again */
        } else {
            if (reading->prepare) {
                entry->prepared = entry->version;
                entry->content = reading->content;
                entry->fresh = reading->fresh;
            }
            target->asking = true;
            send_piece(tree, target, entry, reading);
        }
    }
    free(reading);
}

/* False: nothing of it is on its way. */
static bool push_piece(struct tree *tree, size_t at, struct entry *entry)
{
    struct target *target = &tree->targets[at];
    struct reading *reading;
    uint64_t left;
    size_t len;

    if (entry->under_way[at] != entry->version) {
        entry->under_way[at] = entry->version;
        if (!entry->log || entry->offset[at] > entry->bytes)
            entry->offset[at] = 0;
    }
    left = entry->bytes - entry->offset[at];
    len = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
    reading = calloc(1, sizeof(*reading) + len);
    SHOAL_ASSERT(reading != NULL);
    reading->target = target;
    reading->self = tree->agent->identity.node;
    reading->offset = entry->offset[at];
    reading->len = len;
    reading->prepare = !entry->log && entry->prepared != entry->version;
    reading->doubted = entry->found && tree->agent->boot_is_new;
    reading->above = entry->above;
    (void)snprintf(reading->place.root, sizeof(reading->place.root), "%s", tree->job->result_dir);
    agent_tree_notes(tree->agent, tree->job->id, reading->place.notes);
    memcpy(reading->place.path, entry->path, strlen(entry->path) + 1);
    reading->file.bytes = len;
    reading->file.run = read_piece;
    reading->file.done = on_read;
    if (agent_file_submit(tree->agent, &reading->file) != SHOAL_OK) {
        free(reading);
        entry->under_way[at] = 0; /* the disk is behind: a later scan tries again */
        return true;
    }
    target->asking = true;
    target->entry = (size_t)(entry - tree->entries);
    target->version = entry->version;
    tree->open_asks++;
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

void agent_tree_notes(const struct agent *agent, struct shoal_job_id id, char notes[TREE_ROOT_BYTES])
{
    size_t len;

    agent_job_folder(agent, id, notes, TREE_ROOT_BYTES - 8);
    len = strlen(notes);
    memcpy(notes + len, "/files", 7);
}

void agent_tree_received(struct agent *agent, struct shoal_job_id id, const char *path, const struct stat *facts)
{
    struct agent_job *job = agent_job_find(agent, id); /* its tree, if something of it runs here */
    struct entry *entry = job == NULL || job->tree == NULL ? NULL : entry_need(job->tree, path);

    if (entry == NULL)
        return;
    entry->foreign = true; /* T1 */
    entry->fresh = false;
    entry->bytes = (uint64_t)facts->st_size;
    entry->mtime_ns = mtime_of(facts);
}

void agent_tree_create(struct agent *agent)
{
    agent_tree_take_create(agent);
    (void)uv_timer_init(&agent->loop, &agent->tree_timer);
    agent->tree_timer.data = agent;
    (void)uv_timer_start(&agent->tree_timer, on_scan, SCAN_MS, SCAN_MS);
}
