/* The result folder of a job looks the same on every host of it (PROTOCOLS 8): there is no shared file system.
 *
 *   host that writes --PEER_PUSH_FILE, piece by piece--> guardians and the other hosts of the job
 *
 * Each host with a worker looks at its folder four times a second. What it finds changed, and did not itself receive,
 * is flushed and pushed (agent_tree_push.c): files below log/ by what was appended, every other file whole, under a temporary
 * name until its last piece came and hash and length hold. A small file appears elsewhere within 2 s, whole; the last writer of a path wins. The
 * files of the bundle are on every host already and are pushed only when they change. Disks are waited for on the file
 * thread (agent_files.c), where tree_disk.c says which content of a path this host has.
 *
 * T1. A received file is known by its size and time, so it is never pushed back.
 * T2. Nothing outside the result folder is read or written: paths are relative, without "..", and no link is
 *     followed.
 * T3. A job of one process that has printed nothing has no logs to push: who looks for them finds none, which says the
 *     same. Once it prints, all of them are pushed.
 * T4. What was there before this agent is offered, not forced: a log only where it is longer, a file as the content that was
 *     noted of it, and as nothing certain if the host has started anew since and the note does not hold.
 * T5. No turn of the loop looks at more than LOOP_LOOKS names, or takes over more than MERGE_ENTRIES of a look: a folder that
 *     has more is walked on a thread of its own (agent_files.c), and rests ten times as long as that took.
 * T6. A file that a job removed here, or gave another name, goes away on the other hosts too: seen in one look and not in a
 *     later one that saw everything, logs left out. A folder without the logs that it had is lost, and tells of no removal.
 * T7. A job whose folder holds more files and links, folders or bytes than this host allows is ended here, and the reason says so.
 * T8. The order of two logs goes before them, and was looked at after them (W1 of tree_walk.c): another host may lack what was
 *     printed last, and never shows what it has in another order.
 * T9. Files below more than TREE_WALK_DEPTH_MAX folders, or with paths that are too long, are copied to no host. They count as the
 *     others do (T7), and the other hosts are told that they lack them. */
#include "agent_tree.h"

#include <sys/stat.h>

#include "shoal/banned.h"

#define ENTRIES_FIRST 16
/* Closed jobs are looked for in each so many scans. */
#define SWEEP_SCANS 4
#define SCAN_MS 250
#define LOOP_LOOKS 256u
#define MERGE_ENTRIES 1024u
#define REST_TIMES 10u
#define SCAN_SOME_MS 50
#define OVER_BYTES sizeof(((struct agent_job *)0)->over)

static void on_merge(uv_timer_t *timer);

/* ---- looking ---- */

static size_t place_of(const struct tree *tree, const char *path)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a; a job that makes its paths collide slows down its own folder */
    size_t at;

    for (const char *c = path; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 1099511628211u;
    at = (size_t)(hash ^ hash >> 32) & (tree->place_cap - 1);
    while (tree->places[at] != 0 && strcmp(tree->entries[tree->places[at] - 1].path, path) != 0)
        at = (at + 1) & (tree->place_cap - 1);
    return at;
}

static struct entry *entry_find(struct tree *tree, const char *path)
{
    uint32_t place = tree->place_cap == 0 ? 0 : tree->places[place_of(tree, path)];

    return place == 0 ? NULL : &tree->entries[place - 1];
}

static void places_make(struct tree *tree, size_t cap)
{
    free(tree->places);
    tree->places = calloc(cap, sizeof(*tree->places));
    SHOAL_ASSERT(tree->places != NULL);
    tree->place_cap = cap;
    for (size_t i = 0; i < tree->count; i++)
        tree->places[place_of(tree, tree->entries[i].path)] = (uint32_t)i + 1;
}

/* As many as a job may have, and as many again that are gone. */
static size_t entries_max(const struct tree *tree)
{
    return 2 * ((size_t)tree->agent->settings.files_max + tree->job->code_files) + ENTRIES_FIRST;
}

static struct entry *entry_need(struct tree *tree, const char *path)
{
    struct entry *entry = entry_find(tree, path);

    if (entry != NULL || tree->count >= entries_max(tree))
        return entry;
    if (tree->count == tree->cap) {
        tree->cap = tree->cap == 0 ? ENTRIES_FIRST : 2 * tree->cap;
        tree->entries = realloc(tree->entries, tree->cap * sizeof(*tree->entries));
        SHOAL_ASSERT(tree->entries != NULL);
    }
    entry = &tree->entries[tree->count];
    *entry = (struct entry){ .path = strdup(path), .log = strncmp(path, "log/", 4) == 0 };
    SHOAL_ASSERT(entry->path != NULL);
    entry->order = entry->log && tree_walk_is_order(path);
    tree->count++;
    if (2 * tree->count > tree->place_cap)
        places_make(tree, tree->place_cap == 0 ? 4 * ENTRIES_FIRST : 2 * tree->place_cap);
    else
        tree->places[place_of(tree, path)] = (uint32_t)tree->count;
    return entry;
}

/* Files that are gone make room, once there are many of them and no piece of one is on its way. */
static void entries_prune(struct tree *tree)
{
    size_t kept = 0;

    if (tree->count < entries_max(tree) / 2 || tree->open_asks > 0)
        return;
    for (size_t i = 0; i < tree->count; i++) {
        if (tree->entries[i].seen >= tree->looks)
            tree->entries[kept++] = tree->entries[i];
        else
            free(tree->entries[i].path);
    }
    tree->count = kept;
    tree->gone = 0;
    for (size_t i = 0; i < kept; i++)
        tree->gone += tree->entries[i].gone;
    places_make(tree, tree->place_cap);
    for (size_t at = 0; at < tree->target_count; at++)
        tree->targets[at].files[0].cursor = tree->targets[at].files[1].cursor = 0;
}

static void set_gone(struct tree *tree, struct entry *entry, bool gone)
{
    tree->gone += (size_t)gone - (size_t)entry->gone;
    entry->gone = gone;
}

/* T6. What nobody can have heard of is not told. */
static void tell_gone(struct tree *tree, struct entry *entry)
{
    bool told = entry->foreign || entry->found || entry->prepared != 0;

    for (size_t at = 0; at < tree->target_count; at++)
        told = told || entry->under_way[at] != 0;
    set_gone(tree, entry, true);
    entry->foreign = !told;
    entry->fresh = false;
    entry->bytes = entry->mtime_ns = 0;
    entry->version++;
    if (told)
        agent_tree_touch(tree);
}

static void look_for_gone(struct tree *tree)
{
    bool had_logs = false, has_logs = false;

    for (size_t i = 0; i < tree->count; i++) {
        had_logs = had_logs || tree->entries[i].log;
        has_logs = has_logs || (tree->entries[i].log && tree->entries[i].seen >= tree->looks);
    }
    for (size_t i = 0; i < tree->count && has_logs == had_logs; i++)
        if (tree->entries[i].seen < tree->looks && !tree->entries[i].gone && !tree->entries[i].log)
            tell_gone(tree, &tree->entries[i]);
}

static uint64_t mtime_of(const struct stat *facts)
{
    return (uint64_t)facts->st_mtim.tv_sec * SHOAL_S + (uint64_t)facts->st_mtim.tv_nsec;
}

/* chmod changes neither size nor time. What was received has the mode that its own host gave it. */
static void look_at_mode(struct tree *tree, struct entry *entry, uint32_t mode)
{
    if (entry->mode == mode || entry->log)
        return;
    entry->mode = mode;
    if (entry->foreign)
        return;
    entry->version++; /* sent again: whoever has the content takes its mode alone */
    agent_tree_touch(tree);
}

static void look_at(struct tree *tree, const char *path, const struct tree_found *found)
{
    struct entry *entry = entry_find(tree, path);
    bool fresh = entry == NULL;

    entry = entry_need(tree, path);
    if (entry == NULL)
        return;
    entry->seen = tree->looks;
    if (!fresh && !entry->gone && entry->bytes == found->bytes && entry->mtime_ns == found->mtime_ns) {
        look_at_mode(tree, entry, found->mode);
        return;
    }
    set_gone(tree, entry, false);
    entry->bytes = found->bytes;
    entry->mtime_ns = found->mtime_ns;
    entry->mode = found->mode;
    entry->found = !tree->baseline;
    entry->fresh = false;
    entry->changed_ns = tree->scanned_ns;
    entry->foreign = fresh && !tree->baseline && strncmp(path, "_submitted_code/", 16) == 0;
    entry->version++;
    tree->spoke = tree->spoke || (entry->log && entry->bytes > 0);
    agent_tree_touch(tree);
}

static void walk_begin(const struct tree *tree, struct tree_walk *walk, uint64_t looks_max)
{
    *walk = (struct tree_walk){ .looks_max = looks_max,
                                .files_max = tree->agent->settings.files_max,
                                .bytes_max = tree->agent->settings.files_gib * 1024 * SHOAL_MIB,
                                .code_files = tree->job->code_files };
}

/* T7. Why its job is ended; "": it is not. */
static void over_text(const struct agent *agent, const struct tree_walk *walk, char text[OVER_BYTES])
{
    if (walk->end != TREE_WALK_OVER)
        text[0] = '\0';
    else if (walk->too_deep)
        (void)snprintf(text, OVER_BYTES,
                       "its result folder on %s has a file below more than %u folders; lay fewer into each other",
                       agent->settings.name, TREE_WALK_COUNTED_MAX);
    else if (walk->bytes > walk->bytes_max)
        (void)snprintf(text, OVER_BYTES,
                       "its result folder holds more than %llu GiB on %s; write less, or raise files-gib there",
                       (unsigned long long)agent->settings.files_gib, agent->settings.name);
    else
        (void)snprintf(text, OVER_BYTES, "its result folder holds more than %llu %s on %s; make fewer, or raise files-max there",
                       (unsigned long long)walk->files_max, walk->too_wide ? "folders" : "files and links", agent->settings.name);
}

static void look_ended(struct tree *tree, const struct tree_walk *walk);
static struct tree_after *after_take(struct tree *tree);
static void after_tell(struct tree_after *due); /* the last that is done with a tree in a turn */

/* On the file thread. */
static void look_walk(struct agent_file_job *file)
{
    struct looking *looking = (struct looking *)(void *)file;
    uint64_t began = agent_now_ns();

    tree_walk(looking->root, &looking->walk);
    looking->took_ns = agent_now_ns() - began;
}

static void looking_free(struct looking *looking)
{
    looking->tree->looking = NULL;
    tree_walk_deinit(&looking->walk);
    free(looking);
}


static void look_walked(struct agent_file_job *file)
{
    struct looking *looking = (struct looking *)(void *)file;
    struct tree *tree = looking->tree;

    looking->walked = true;
    if (--tree->open_asks == 0 && tree->closing)
        agent_tree_free(tree);
    else if (!tree->closing)
        (void)uv_timer_start(&tree->agent->merge_timer, on_merge, 0, 0);
}

/* FULL, and no memory: a later scan tries again. */
static void look_on_thread(struct tree *tree)
{
    struct looking *looking = calloc(1, sizeof(*looking));

    if (looking == NULL)
        return;
    looking->tree = tree;
    memcpy(looking->root, tree->job->result_dir, sizeof(looking->root));
    walk_begin(tree, &looking->walk, UINT64_MAX);
    looking->file.bulk = true;
    looking->file.run = look_walk;
    looking->file.done = look_walked;
    if (agent_tree_submit(tree->agent, &looking->file) != SHOAL_OK) {
        free(looking);
        return;
    }
    tree->looking = looking;
    tree->open_asks++;
}

/* One turn's part of a look (T5). False: it is not here yet. */
static bool merge_some(struct tree *tree)
{
    struct looking *looking = tree->looking;
    const struct tree_walk *walk = &looking->walk;
    struct tree_after *due;
    char over[OVER_BYTES];

    if (looking->merged == 0)
        tree->looks++;
    for (unsigned i = 0; i < MERGE_ENTRIES && looking->merged < walk->count; i++, looking->merged++)
        look_at(tree, tree_walk_path(walk, looking->merged), &walk->found[looking->merged]);
    if (looking->merged < walk->count)
        return false;
    tree->large = walk->looks > LOOP_LOOKS / 2;
    tree->rests_until_ns = agent_now_ns() + REST_TIMES * looking->took_ns;
    look_ended(tree, walk);
    over_text(tree->agent, walk, over);
    looking_free(looking);
    due = after_take(tree);
    if (over[0] != '\0')
        agent_job_over(tree->agent, tree->job, over); /* the job may go with it, and its tree */
    after_tell(due);
    return true;
}

static void on_merge(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    bool more = false;

    for (unsigned i = 0; i < AGENT_JOBS_MAX && !more; i++) {
        struct tree *tree = agent->jobs[i] == NULL ? NULL : agent->jobs[i]->tree;

        if (tree != NULL && tree->looking != NULL && tree->looking->walked) {
            (void)merge_some(tree);
            more = true; /* of this one, or of another: in the next turn */
        }
    }
    if (more) /* not 0: it would run in this turn again (libuv 1.44) */
        (void)uv_timer_start(timer, on_merge, 1, 0);
}

void agent_tree_free(struct tree *tree)
{
    if (tree->looking != NULL)
        looking_free(tree->looking);
    for (size_t i = 0; i < tree->count; i++)
        free(tree->entries[i].path);
    free(tree->entries);
    free(tree->places);
    free(tree);
}

/* T9 */
static void say_outside(struct tree *tree, uint64_t outside)
{
    if (outside > 0 && tree->outside == 0)
        agent_log(tree->agent,
                  "%s: %llu files of it are copied to no other host: they lie below more than %u folders, or their paths have %u "
                  "bytes or more", tree->job->text, (unsigned long long)outside, TREE_WALK_DEPTH_MAX, TREE_PATH_BYTES);
    tree->outside = outside;
}

/* Out of the tree, which may go: those for whom the look that has ended was the last to wait for. */
static struct tree_after *after_take(struct tree *tree)
{
    struct tree_after **at = &tree->after;
    struct tree_after *due = NULL;

    while (*at != NULL) {
        struct tree_after *one = *at;

        if (one->look > tree->begun || tree->looking != NULL) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = due;
        due = one;
    }
    return due;
}

static void after_tell(struct tree_after *due)
{
    while (due != NULL) {
        struct tree_after *one = due;

        due = one->next;
        one->fn(one->arg);
        free(one);
    }
}

/* All that is there has been looked at. */
static void look_ended(struct tree *tree, const struct tree_walk *walk)
{
    tree->over = walk->end == TREE_WALK_OVER;
    tree->shut = walk->shut;
    if (walk->end == TREE_WALK_WHOLE) {
        tree->baseline = true;
        say_outside(tree, walk->outside);
        if (!walk->blind && walk->count < tree->count - tree->gone)
            look_for_gone(tree);
        entries_prune(tree);
    }
    agent_tree_targets(tree);
    agent_tree_push(tree);
    agent_tree_owe(tree);
}

/* A folder of a few files is looked at here and now; one of many on the thread. */
static void look(struct tree *tree)
{
    struct tree_walk walk;
    struct tree_after *due;
    char over[OVER_BYTES] = "";

    tree->scanned_ns = agent_now_ns();
    tree->again = false;
    tree->begun++;
    if (tree->large) {
        look_on_thread(tree);
        after_tell(after_take(tree)); /* if it cannot be made */
        return;
    }
    walk_begin(tree, &walk, LOOP_LOOKS);
    tree_walk(tree->job->result_dir, &walk);
    tree->large = walk.end == TREE_WALK_CUT;
    if (tree->large) {
        look_on_thread(tree);
    } else {
        tree->looks++;
        for (size_t i = 0; i < walk.count; i++)
            look_at(tree, tree_walk_path(&walk, i), &walk.found[i]);
        look_ended(tree, &walk);
        over_text(tree->agent, &walk, over);
    }
    tree_walk_deinit(&walk);
    due = after_take(tree);
    if (over[0] != '\0')
        agent_job_over(tree->agent, tree->job, over); /* as in merge_some() */
    after_tell(due);
}

static struct tree *tree_need(struct agent *agent, struct agent_job *job)
{
    struct tree *tree = job->tree;

    if (job->result_dir[0] == '\0' || job->files == AGENT_FILES_FETCHING || job->files == AGENT_FILES_NONE)
        return NULL;
    if (tree == NULL) {
        tree = calloc(1, sizeof(*tree));
        SHOAL_ASSERT(tree != NULL);
        tree->agent = agent;
        tree->job = job;
        job->tree = tree;
    }
    return tree;
}

void agent_tree_scan(struct agent *agent, struct agent_job *job)
{
    struct tree *tree = tree_need(agent, job);

    if (tree != NULL && tree->looking != NULL)
        tree->again = true;
    else if (tree != NULL)
        look(tree);
}

void agent_tree_scan_then(struct agent *agent, struct agent_job *job, void (*fn)(void *arg), void *arg)
{
    struct tree *tree = tree_need(agent, job);
    struct tree_after *after = tree == NULL ? NULL : malloc(sizeof(*after));

    if (after == NULL) {
        fn(arg);
        return;
    }
    *after = (struct tree_after){ .next = tree->after, .look = tree->begun + 1, .fn = fn, .arg = arg };
    tree->after = after;
    agent_tree_scan(agent, job);
}

/* Four times a second. */
static void scan_now_and_then(struct agent *agent, struct agent_job *job)
{
    struct tree *tree = tree_need(agent, job);

    if (tree == NULL || tree->looking != NULL)
        return;
    if (tree->again || agent_now_ns() >= tree->rests_until_ns) {
        look(tree);
    } else { /* what could not be pushed is tried again */
        agent_tree_targets(tree);
        agent_tree_push(tree);
        agent_tree_owe(tree);
    }
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
    while (tree->after != NULL) {
        struct tree_after *one = tree->after;

        tree->after = one->next;
        one->fn(one->arg);
        free(one);
    }
    tree->closing = true;
    if (tree->open_asks == 0)
        agent_tree_free(tree);
}

static void on_scan(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    bool closed_too = ++agent->tree_scans % SWEEP_SCANS == 0; /* what a host was not reached with is sent again */

    for (unsigned i = 0; i < AGENT_JOBS_MAX; i++)
        if (agent->jobs[i] != NULL && (agent->jobs[i]->opened || (closed_too && agent->jobs[i]->tree != NULL &&
                                                                  !agent_tree_quiet(agent->jobs[i]))))
            scan_now_and_then(agent, agent->jobs[i]);
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
    set_gone(job->tree, entry, false);
    entry->foreign = true;              /* T1 */
    entry->seen = job->tree->looks + 1; /* a look that is under way may not have come by */
    entry->fresh = false;
    entry->bytes = (uint64_t)facts->st_size;
    entry->mtime_ns = mtime_of(facts);
    entry->mode = facts->st_mode & 0777;
}

void agent_tree_removed(struct agent *agent, struct shoal_job_id id, const char *path)
{
    struct agent_job *job = agent_job_find(agent, id);
    struct entry *entry = job == NULL || job->tree == NULL ? NULL : entry_find(job->tree, path);

    if (entry == NULL)
        return;
    set_gone(job->tree, entry, true);
    entry->foreign = true; /* whoever removed it tells all hosts */
    entry->fresh = false;
}

void agent_tree_create(struct agent *agent)
{
    agent_tree_take_create(agent);
    (void)uv_timer_init(&agent->loop, &agent->tree_timer);
    agent->tree_timer.data = agent;
    (void)uv_timer_init(&agent->loop, &agent->merge_timer);
    agent->merge_timer.data = agent;
    (void)uv_timer_start(&agent->tree_timer, on_scan, SCAN_MS, SCAN_MS);
}
