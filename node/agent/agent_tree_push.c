/* What a job has left in its result folder here, on its way to the other hosts that are to have it (agent_tree.c).
 *
 *   due --prepare: flushed, hashed, noted; once for all hosts--> prepared --read, push, a piece at a time to each host--> sent
 *
 * Q1. To each host logs go first, then small files, then long ones, piece by piece: what is small waits for one piece at most.
 * Q2. Of a job one small and one long file are prepared at a time, the long one in slices (F3 of agent_files.c).
 * Q3. A long file that its job is still writing is not prepared before it has been left alone for STILL_NS.
 * Q4. A host to which something is due for longer than LATE_NS is told so, and once more when it has all: it says that files are
 *     missing as long as this one has not brought them, whatever becomes of it. */
#include "agent_tree.h"

#include "agent_results.h"
#include "node/blob/tree_owed.h"

#include "shoal/banned.h"

#define PIECE_BYTES (256 * SHOAL_KIB)
#define PUSH_TIMEOUT_NS (10 * SHOAL_S)
/* Whoever takes a file hashes it before it answers: a slow disk reads so much in a second. */
#define HASHED_A_SECOND (16 * SHOAL_MIB)
#define STILL_NS (500 * SHOAL_MS)
#define LATE_NS SHOAL_S
/* After an error of the disk. */
#define REST_NS (250 * SHOAL_MS)
/* Tries of a host that end with an error one after the other: what comes after them is no progress. */
#define FAILURES_MAX 10u

/* A piece, read on the file thread. */
struct reading {
    struct agent_file_job file;
    struct target *target;
    struct tree_place place;
    uint64_t offset, file_bytes;
    uint64_t next; /* where the piece after this one begins */
    size_t len;
    bool log, gone;
    enum shoal_err err;
    uint8_t bytes[];
};

struct preparing {
    struct agent_file_job file;
    struct tree *tree;
    size_t entry;
    uint32_t version;
    bool gone, fresh;
    struct tree_place place;
    struct tree_change change;
    struct tree_work work;
    struct tree_version content;
    enum shoal_err err;
};

static bool is_long(const struct entry *entry) { return entry->bytes > TREE_SLICE_BYTES; }

static void due_again(struct target *target)
{
    target->dirty_logs = target->files[0].dirty = target->files[1].dirty = true;
}

void agent_tree_touch(struct tree *tree)
{
    for (size_t at = 0; at < tree->target_count; at++)
        due_again(&tree->targets[at]);
}

/* A piece that was due to a host that keeps the job's files no more is not due to the one in its place. */
static void target_begin(struct tree *tree, size_t at, struct shoal_node_id node)
{
    tree->targets[at] = (struct target){ .node = node, .tree = tree, .named = true };
    tree->targets[at].owed = tree->job->reopened ? TREE_DEBT_UNKNOWN : TREE_DEBT_NONE;
    tree->targets[at].telling = TREE_DEBT_UNKNOWN;
    due_again(&tree->targets[at]);
    for (size_t i = 0; i < tree->count; i++) {
        tree->entries[i].sent[at] = 0;
        tree->entries[i].offset[at] = 0;
        tree->entries[i].under_way[at] = 0;
    }
}

static void target_need(struct tree *tree, struct shoal_node_id node)
{
    size_t spare = tree->target_count;

    for (size_t at = 0; at < tree->target_count; at++) {
        if (shoal_node_id_equal(tree->targets[at].node, node)) {
            tree->targets[at].named = true;
            return;
        }
        if (!tree->targets[at].named && !tree->targets[at].asking && tree->targets[at].telling == TREE_DEBT_UNKNOWN)
            spare = at;
    }
    if (tree->target_count < TREE_TARGETS_MAX)
        spare = tree->target_count++;
    if (spare < TREE_TARGETS_MAX)
        target_begin(tree, spare, node);
}

void agent_tree_targets(struct tree *tree)
{
    struct shoal_node_id nodes[16];
    size_t guardians;
    size_t count = agent_job_nodes(tree->agent, tree->job->id, nodes, 16, &guardians);

    for (size_t at = 0; at < tree->target_count && count > 0; at++) /* none: not known in this moment */
        tree->targets[at].named = false;
    for (size_t i = 0; i < count && i < 16; i++)
        target_need(tree, nodes[i]);
}

/* Another host has a content that is not older: then that is the path's. The number of one of the version before says nothing of
 * its time: then what was made here just now is. */
static void on_kept(struct tree *tree, struct entry *entry, const struct tree_version *theirs)
{
    if (tree_version_cmp(theirs, &entry->content) <= 0)
        return;
    if (entry->fresh && theirs->number < TREE_TIMED) {
        entry->above = theirs->number;
        entry->version++;
        agent_tree_touch(tree);
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
        agent_tree_free(tree);
        return;
    }
    if (tree->closing)
        return;
    if (err == SHOAL_ERR_MALFORMED && target->gone) {
        target->deaf = true; /* an agent of a version before: it hears of no removals */
        agent_tree_push(tree);
        return;
    }
    if (err == SHOAL_ERR_MALFORMED && target->chunks) {
        target->plain = true; /* an agent of a version before: it takes long files without their versions */
        entry->under_way[at] = 0;
        agent_tree_push(tree);
        return;
    }
    if (err == SHOAL_ERR_MALFORMED && !target->answered)
        target->previous = true; /* an agent of the version before: it takes files without their versions */
    if (err != SHOAL_OK) {
        entry->under_way[at] = 0; /* from its start, in a later scan */
        due_again(target);
        target->failures += target->failures < FAILURES_MAX;
        return;
    }
    target->answered = true;
    if (entry->sent[at] == entry->under_way[at])
        target->failures = 0;
    if (target->failures < FAILURES_MAX)
        tree->progress_ns = agent_now_ns();
    if (answer.len > 0 && shoal_get_bool(&r)) {
        theirs.number = shoal_get_u64(&r);
        shoal_get_raw(&r, theirs.author.bytes, sizeof(theirs.author.bytes));
        entry->sent[at] = entry->under_way[at];
        if (!r.failed && entry->under_way[at] == entry->version)
            on_kept(tree, entry, &theirs);
    } else {
        entry->offset[at] = target->piece_next;
    }
    agent_tree_push(tree);
}

static const char *user_of(const struct agent_job *job)
{
    return job->spec.submit_user[0] != '\0' ? job->spec.submit_user : job->spec.creator;
}

/* u8 log, and 2 if what is in brackets follows, and 4 if the content is none any more, u8 last, job id, text user, text path, u32 mode, u64 mtime, [u64 number,
 * author, u64 length, hash,] u64 offset, bytes; and 32 if the hash is that of chunks. An agent of the version before calls a 2
 * malformed, one of a later version a 32. */
static void send_piece(struct tree *tree, struct target *target, struct entry *entry, const struct reading *reading)
{
    static uint8_t args[PIECE_BYTES + 2048];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    size_t at = (size_t)(target - tree->targets);
    bool last = reading->offset + reading->len == entry->bytes;
    bool chunks = !entry->log && entry->content.bytes > TREE_WHOLE_BYTES;
    bool versioned = !target->previous && !(chunks && target->plain);

    target->chunks = chunks && versioned;
    shoal_put_u8(&w, (uint8_t)(entry->log | (versioned ? TREE_VERSIONED : 0) | (entry->gone ? TREE_GONE : 0) |
                               (target->chunks ? TREE_CHUNKS : 0)));
    shoal_put_bool(&w, last);
    shoal_put_job_id(&w, tree->job->id);
    shoal_put_text(&w, user_of(tree->job));
    shoal_put_text(&w, entry->path);
    shoal_put_u32(&w, entry->mode);
    shoal_put_u64(&w, entry->mtime_ns);
    if (versioned) {
        shoal_put_u64(&w, entry->log ? !entry->found : entry->content.number);
        shoal_put_raw(&w, entry->content.author.bytes, sizeof(entry->content.author.bytes));
        shoal_put_u64(&w, entry->content.bytes);
        shoal_put_hash(&w, entry->content.hash);
    }
    shoal_put_u64(&w, reading->offset);
    shoal_put_raw(&w, reading->bytes, reading->len);
    SHOAL_ASSERT(!w.failed); /* a piece, a path and a user are bounded */
    target->piece_next = reading->next;
    target->gone = entry->gone;
    if (last)
        entry->sent[at] = entry->version;
    tree->open_asks++;
    peer_ask(tree->agent->calls, target->node, PEER_PUSH_FILE, shoal_writer_view(&w),
             PUSH_TIMEOUT_NS + (entry->log ? 0 : entry->content.bytes / HASHED_A_SECOND * SHOAL_S), on_pushed, target);
}

static void read_piece(struct agent_file_job *file)
{
    struct reading *reading = (struct reading *)(void *)file;

    if (!reading->gone &&
        tree_read(&reading->place, reading->offset, reading->bytes, reading->len) != (ssize_t)reading->len)
        reading->err = SHOAL_ERR_NOT_FOUND;
    reading->next = reading->offset + reading->len;
    if (!reading->log && !reading->gone && reading->err == SHOAL_OK)
        reading->next = tree_next(&reading->place, reading->next, reading->file_bytes, PIECE_BYTES);
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
        agent_tree_free(tree);
    } else if (!tree->closing) {
        if (reading->err == SHOAL_ERR_NOT_FOUND || entry->version != target->version) {
            if (entry->version == target->version) /* gone, or changed in this moment: the next scan sees it as it is */
                entry->sent[at] = entry->version;
            agent_tree_push(tree);
        } else {
            target->asking = true;
            send_piece(tree, target, entry, reading);
        }
    }
    free(reading);
}

static void place_of(const struct tree *tree, const struct entry *entry, struct tree_place *place)
{
    (void)snprintf(place->root, sizeof(place->root), "%s", tree->job->result_dir);
    agent_tree_notes(tree->agent, tree->job->id, place->notes);
    memcpy(place->path, entry->path, strlen(entry->path) + 1);
}

static void push_piece(struct tree *tree, size_t at, struct entry *entry)
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
    reading->offset = entry->offset[at];
    reading->file_bytes = entry->bytes;
    reading->log = entry->log;
    reading->gone = entry->gone;
    reading->len = len;
    place_of(tree, entry, &reading->place);
    reading->file.bytes = len;
    reading->file.bulk = !entry->log && is_long(entry);
    reading->file.run = read_piece;
    reading->file.done = on_read;
    if (agent_tree_submit(tree->agent, &reading->file) != SHOAL_OK) {
        free(reading);
        entry->under_way[at] = 0; /* the disk is behind: a later scan tries again */
        return;
    }
    target->asking = true;
    target->entry = (size_t)(entry - tree->entries);
    target->version = entry->version;
    tree->open_asks++;
}

/* ---- preparing ---- */

static void prepare(struct agent_file_job *file)
{
    struct preparing *p = (struct preparing *)(void *)file;

    if (p->gone)
        p->err = tree_forget(&p->place, &p->change, &p->content, &p->fresh);
    else
        p->err = tree_prepare(&p->place, &p->change, &p->work, &p->content, &p->fresh);
}

/* It is gone, or changed in this moment: the next look sees it as it is. */
static void skip(struct tree *tree, struct entry *entry)
{
    for (size_t at = 0; at < tree->target_count; at++)
        entry->sent[at] = entry->under_way[at] = entry->version;
}

/* The disk refuses, or it changes while it is read: others first, and this one later. */
static void put_off(struct tree *tree, size_t index, bool is_of_long)
{
    tree->prepare_rests_ns[is_of_long] = agent_now_ns() + REST_NS;
    for (size_t at = 0; at < tree->target_count; at++) {
        if (tree->targets[at].files[is_of_long].cursor == index)
            tree->targets[at].files[is_of_long].cursor++;
        due_again(&tree->targets[at]);
    }
}

static void on_prepared(struct agent_file_job *file)
{
    struct preparing *p = (struct preparing *)(void *)file;
    struct tree *tree = p->tree;
    struct entry *entry = &tree->entries[p->entry];
    bool is_current = entry->version == p->version && !tree->closing;

    if (is_current && p->err == SHOAL_OK) {
        tree->progress_ns = agent_now_ns();
        if (p->work.more) {
            agent_tree_again(file);
            return;
        }
        entry->prepared = entry->version;
        entry->content = p->content;
        entry->fresh = entry->fresh || p->fresh;
    } else if (is_current && p->err == SHOAL_ERR_NOT_FOUND) {
        skip(tree, entry);
    } else if (is_current) {
        put_off(tree, p->entry, file->bulk);
    }
    tree->preparing[file->bulk] = false;
    free(p);
    if (--tree->open_asks == 0 && tree->closing)
        agent_tree_free(tree);
    else if (!tree->closing)
        agent_tree_push(tree);
}

/* Q2, Q3. FULL, and no memory: a later scan tries again. */
static void prepare_start(struct tree *tree, const struct entry *entry)
{
    const bool bulk = is_long(entry);
    uint64_t now = agent_now_ns();
    struct preparing *p;

    if (tree->preparing[bulk] || now < tree->prepare_rests_ns[bulk] ||
        (bulk && tree->job->opened && now < entry->changed_ns + STILL_NS))
        return;
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return;
    p->tree = tree;
    p->entry = (size_t)(entry - tree->entries);
    p->version = entry->version;
    p->gone = entry->gone;
    p->change = (struct tree_change){ .self = { .node = tree->agent->identity.node, .call = tree->job->call },
                                      .doubted = entry->found && tree->agent->boot_is_new,
                                      .above = entry->above };
    place_of(tree, entry, &p->place);
    p->file = (struct agent_file_job){ .bytes = sizeof(*p), .bulk = bulk, .run = prepare, .done = on_prepared };
    if (agent_tree_submit(tree->agent, &p->file) != SHOAL_OK) {
        free(p);
        return;
    }
    tree->preparing[bulk] = true;
    tree->open_asks++;
}

/* ---- what is next ---- */

/* T3 */
static bool is_silent(const struct tree *tree) { return !tree->spoke && agent_job_is_single(tree->job); }

static bool is_due(const struct entry *entry, size_t target)
{
    return !entry->foreign && (entry->sent[target] != entry->version || entry->under_way[target] == 0);
}

/* Of a look that is being taken over some logs are newer than others. */
static bool is_amid_look(const struct tree *tree)
{
    return tree->looking != NULL && tree->looking->merged > 0 && tree->looking->merged < tree->looking->walk.count;
}

/* What is printed is small and asked for: it waits for no other file (T8). NULL: nothing. */
static struct entry *due_log(struct tree *tree, size_t at)
{
    struct target *target = &tree->targets[at];
    struct entry *due = NULL;

    if (is_amid_look(tree))
        return NULL;
    for (size_t i = 0; target->dirty_logs && !is_silent(tree) && i < tree->count; i++) {
        struct entry *entry = &tree->entries[i];

        if (entry->log && is_due(entry, at) && (due == NULL || (entry->order && !due->order)))
            due = entry;
    }
    target->dirty_logs = due != NULL;
    return due;
}

/* NULL: nothing. What was found last is where the next search begins, so that many files cost no more each than few. */
static struct entry *due_file(struct tree *tree, size_t at, bool of_long)
{
    struct target *target = &tree->targets[at];
    struct due *due = &target->files[of_long];

    for (size_t n = 0; due->dirty && n < tree->count; n++) {
        size_t i = due->cursor < tree->count ? due->cursor : 0;
        struct entry *entry = &tree->entries[i];

        if (is_due(entry, at) && !entry->log && is_long(entry) == of_long &&
            !(entry->gone && (target->deaf || target->previous)))
            return entry;
        due->cursor = i + 1;
    }
    due->dirty = false;
    return NULL;
}

static struct entry *due_next(struct tree *tree, size_t at)
{
    struct entry *entry = due_log(tree, at);

    for (unsigned of_long = 0; of_long < 2 && entry == NULL; of_long++)
        entry = due_file(tree, at, of_long);
    return entry;
}

/* ---- what is owed ---- */

static void on_told(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct target *target = arg;
    struct tree *tree = target->tree;

    (void)msg;
    (void)answer;
    if (err == SHOAL_OK || (err == SHOAL_ERR_NOT_FOUND && target->telling == TREE_DEBT_NONE))
        target->owed = target->telling;
    target->mute = target->mute || err == SHOAL_ERR_MALFORMED;
    target->telling = TREE_DEBT_UNKNOWN;
    if (--tree->open_asks == 0 && tree->closing)
        agent_tree_free(tree);
}

/* At most so many bytes of a path, and only of one that can be shown. */
#define SHOWN_BYTES 120

static void debt_line(const struct tree *tree, const struct entry *entry, enum tree_debt debt, char line[TREE_OWED_BYTES])
{
    const char *name = tree->agent->settings.name;

    line[0] = '\0';
    if (debt == TREE_DEBT_OUTSIDE)
        (void)snprintf(line, TREE_OWED_BYTES,
                       "%llu files on %.60s are copied to no other host: they lie below more than %u folders, or their paths "
                       "have %u bytes or more",
                       (unsigned long long)tree->outside, name, TREE_WALK_DEPTH_MAX, TREE_PATH_BYTES);
    else if (debt == TREE_DEBT_SHUT)
        (void)snprintf(line, TREE_OWED_BYTES, "what lies in folders on %.60s that nobody may read is copied to no other host", name);
    else if (debt == TREE_DEBT_OVER)
        (void)snprintf(line, TREE_OWED_BYTES,
                       "there are files on %.60s that were copied to no other host: its result folder holds more than a job may have", name);
    else if (debt == TREE_DEBT_LATE && entry != NULL && strlen(entry->path) < SHOWN_BYTES &&
             agent_result_is_shown(entry->path))
        (void)snprintf(line, TREE_OWED_BYTES, "not all that the job left on %.60s has been copied, %s among it", name,
                       entry->path);
    else if (debt == TREE_DEBT_LATE)
        (void)snprintf(line, TREE_OWED_BYTES, "not all that the job left on %.60s has been copied", name);
}

/* Q4 */
static void owe_one(struct tree *tree, size_t at)
{
    struct target *target = &tree->targets[at];
    const struct entry *entry = due_next(tree, at);
    uint8_t args[TREE_OWED_BYTES + 64];
    struct shoal_writer w = shoal_writer_init(args, sizeof(args));
    enum tree_debt debt = tree->outside > 0 ? TREE_DEBT_OUTSIDE : TREE_DEBT_NONE;
    char line[TREE_OWED_BYTES];

    if (tree->shut)
        debt = TREE_DEBT_SHUT;
    if (tree->over)
        debt = TREE_DEBT_OVER;
    if (entry == NULL && !target->asking)
        target->due_ns = 0;
    else if (target->due_ns == 0)
        target->due_ns = agent_now_ns();
    if (target->due_ns != 0 && (target->owed == TREE_DEBT_LATE || agent_now_ns() >= target->due_ns + LATE_NS))
        debt = TREE_DEBT_LATE;
    if (debt == target->owed || target->telling != TREE_DEBT_UNKNOWN || target->mute || !target->named ||
        !shoal_link_is_up(tree->agent->link, target->node))
        return;
    debt_line(tree, entry, debt, line);
    shoal_put_u8(&w, TREE_OWED);
    shoal_put_job_id(&w, tree->job->id);
    shoal_put_text(&w, line);
    SHOAL_ASSERT(!w.failed); /* a line is bounded */
    target->telling = debt;
    tree->open_asks++;
    peer_ask(tree->agent->calls, target->node, PEER_PUSH_FILE, shoal_writer_view(&w), PUSH_TIMEOUT_NS, on_told, target);
}

void agent_tree_owe(struct tree *tree)
{
    for (size_t at = 0; at < tree->target_count; at++)
        owe_one(tree, at);
}

/* It thinks that it lacks what it has. */
static bool is_to_be_told(const struct target *target)
{
    return !target->mute && (target->owed == TREE_DEBT_LATE || target->telling == TREE_DEBT_LATE);
}

/* Q1 */
static void push_to(struct tree *tree, size_t at)
{
    struct entry *entry = due_log(tree, at);

    if (entry != NULL) {
        push_piece(tree, at, entry);
        return;
    }
    for (unsigned of_long = 0; of_long < 2; of_long++) {
        entry = due_file(tree, at, of_long);
        if (entry != NULL && entry->prepared == entry->version) {
            push_piece(tree, at, entry);
            return;
        }
        if (entry != NULL)
            prepare_start(tree, entry);
    }
    if (tree->targets[at].owed == TREE_DEBT_LATE)
        owe_one(tree, at); /* that it has all, if it has */
}

void agent_tree_push(struct tree *tree)
{
    for (size_t at = 0; at < tree->target_count; at++) {
        const struct target *target = &tree->targets[at];

        if (target->named && !target->asking && shoal_link_is_up(tree->agent->link, target->node))
            push_to(tree, at);
    }
}

bool agent_tree_quiet(const struct agent_job *job)
{
    struct tree *tree = job->tree;

    if (tree != NULL && (tree->looking != NULL || tree->again))
        return false;
    for (size_t at = 0; tree != NULL && at < tree->target_count; at++)
        if (tree->targets[at].asking ||
            (tree->targets[at].named && (due_next(tree, at) != NULL || is_to_be_told(&tree->targets[at]))))
            return false;
    return true;
}

bool agent_tree_sent(const struct agent_job *job, struct shoal_node_id node, bool logs)
{
    struct tree *tree = job->tree;

    if (tree == NULL)
        return true;
    if (tree->looking != NULL || tree->again)
        return false;
    for (size_t at = 0; at < tree->target_count; at++) {
        const struct target *target = &tree->targets[at];

        if (!shoal_node_id_equal(target->node, node))
            continue;
        if (!target->named)
            return true;
        if (logs)
            return !(target->asking && tree->entries[target->entry].log) && due_log(tree, at) == NULL;
        return !target->asking && due_next(tree, at) == NULL && !is_to_be_told(target);
    }
    return false; /* it will be one with the next look */
}


uint64_t agent_tree_progress_ns(const struct agent_job *job) { return job->tree == NULL ? 0 : job->tree->progress_ns; }

size_t agent_tree_left(const struct agent_job *job, const char **path)
{
    const struct tree *tree = job->tree;
    size_t count = 0;

    *path = "";
    for (size_t i = 0; tree != NULL && i < tree->count; i++) {
        bool due = false;

        for (size_t at = 0; at < tree->target_count; at++)
            due = due || (tree->targets[at].named && is_due(&tree->entries[i], at));
        if (due && count++ == 0)
            *path = tree->entries[i].path;
    }
    return count;
}
