/* Files of a host, below the order of the agent's own commits (shoal/disk.h): written beside, flushed, renamed, the folder
 * flushed, each step at its time.
 *
 *     write ---- flush ---- rename ---- flush of the folder ---- told
 *       |          |          |            |                       |
 *     the name stays old ...   either one   the new one            must be the new one
 *
 * P1. A power cut leaves what was flushed. Of the rest a beginning survives, in the order of the calls; where disks tear
 *     (`torn`), of the first write that does not, a part of its sectors; where they reorder (`reorder-disk`), any calls, and of
 *     each write any sectors.
 * P2. The end of an agent alone loses nothing that was carried out; what was not begun stays undone.
 * P3. Under its name a file is whole (D1 of shoal/disk.h), and what somebody was told of is there (D2).
 * Chance is a stream of its own. */
#include "shoal/disk.h"
#include "sim.h"

#include "shoal/banned.h"

#define SECTORS_MAX 16u
#define STEPS_MAX (sizeof(((struct sim_file *)0)->steps) / sizeof(struct sim_file_step))

static uint64_t place_of(enum sim_file_kind kind, uint64_t key)
{
    uint64_t words[2] = { (uint64_t)kind, key };

    return words[1] * 0x9e3779b97f4a7c15u + words[0];
}

static void file_free(struct sim_file *file)
{
    free((void *)(uintptr_t)file->bytes.bytes);
    free(file);
}

struct ordering {
    struct sim_file *file;
    uint64_t at_ns, step_ns;
};

/* Stands for the calls of node/store/disk.c. */
static bool note_step(void *arg, enum shoal_disk_step step)
{
    struct ordering *o = arg;

    SHOAL_ASSERT(o->file->count < STEPS_MAX);
    o->at_ns += step == SHOAL_DISK_RENAME ? 0 : o->step_ns;
    o->file->steps[o->file->count++] = (struct sim_file_step){ .step = (uint8_t)step, .done_ns = o->at_ns };
    return true;
}

#define NEVER UINT64_MAX

/* The time at which the step is done, the first one from number `from` on. NEVER: it is not in the order. */
static uint64_t step_ns(const struct sim_file *file, enum shoal_disk_step step, uint32_t from)
{
    for (uint32_t i = from; i < file->count; i++)
        if (file->steps[i].step == step)
            return file->steps[i].done_ns;
    return NEVER;
}

static uint64_t flushed_ns(const struct sim_file *file) { return step_ns(file, SHOAL_DISK_FLUSH, 0); }

static uint64_t named_ns(const struct sim_file *file) { return step_ns(file, SHOAL_DISK_RENAME, 0); }

/* The time at which the folder was flushed behind the rename. */
static uint64_t folder_ns(const struct sim_file *file)
{
    uint32_t at = 0;

    while (at < file->count && file->steps[at].step != SHOAL_DISK_RENAME)
        at++;
    return step_ns(file, SHOAL_DISK_FLUSH_FOLDER, at);
}

/* Its name outlives a power cut, and so does what is in it. */
static bool is_durable(const struct sim_file *file, uint64_t now_ns)
{
    return named_ns(file) <= now_ns && flushed_ns(file) <= now_ns && folder_ns(file) <= now_ns;
}

static void keep_flushed(struct sim_host *host, const struct sim_file *file)
{
    if (file->kind == SIM_FILE_MESH)
        sim_keep(&host->disk.mesh_flushed, file->bytes);
}

/* Those that nothing can happen to any more are looked after no longer. */
static void files_settle(struct sim_host *host)
{
    struct sim_file **at = &host->disk.files;

    while (*at != NULL) {
        struct sim_file *file = *at;

        if (!is_durable(file, host->sim->now_ns)) {
            at = &file->next;
            continue;
        }
        keep_flushed(host, file);
        *at = file->next;
        file_free(file);
    }
}

static struct sim_file *file_add(struct sim_host *host, enum sim_file_kind kind, uint64_t key, uint64_t take_ns)
{
    struct sim_file *file = sim_alloc(sizeof(*file)), **at = &host->disk.files;
    struct ordering o = { .file = file, .at_ns = host->sim->now_ns + take_ns / 4, .step_ns = take_ns / 4 };
    enum shoal_disk_step failed;

    file->kind = kind;
    file->key = key;
    file->sectors = 1 + (uint32_t)shoal_rand_below(&host->disk.file_chance, SECTORS_MAX);
    failed = shoal_disk_order(note_step, &o);
    SHOAL_ASSERT(failed == SHOAL_DISK_DONE);
    while (*at != NULL)
        at = &(*at)->next;
    *at = file;
    return file;
}

static struct sim_file *file_find(const struct sim_host *host, enum sim_file_kind kind, uint64_t key)
{
    struct sim_file *file = host->disk.files;

    while (file != NULL && (file->kind != kind || file->key != key))
        file = file->next;
    return file;
}

void sim_file_put(struct sim_host *host, enum sim_file_kind kind, uint64_t key, uint64_t take_ns, bool told)
{
    struct sim_file *file;
    uint64_t end_ns = host->sim->now_ns + take_ns;

    files_settle(host);
    file = file_find(host, kind, key);
    if (file == NULL && sim_file_here(host, kind, key))
        return; /* long here */
    if (file == NULL)
        file = file_add(host, kind, key, take_ns);
    else if (folder_ns(file) == NEVER &&
             file->count < STEPS_MAX) /* an agent that ended left it: is_whole() of blob_disk.c */
        file->steps[file->count++] = (struct sim_file_step){ SHOAL_DISK_FLUSH_FOLDER, end_ns - take_ns / 4 };
    if (told && (file->held_ns == 0 || end_ns < file->held_ns))
        file->held_ns = end_ns;
    sim_map_put(&host->disk.here, place_of(kind, key), 1);
}

void sim_file_mesh(struct sim_host *host, struct shoal_view bytes)
{
    files_settle(host);
    file_add(host, SIM_FILE_MESH, 0, host->disk.flush_ns)->bytes = sim_copy(bytes);
    sim_keep(&host->disk.mesh_copy, bytes);
}

static void forget(struct sim_host *host, enum sim_file_kind kind, uint64_t key)
{
    sim_map_remove(&host->disk.here, place_of(kind, key));
}

void sim_file_remove(struct sim_host *host, enum sim_file_kind kind, uint64_t key)
{
    struct sim_file **at = &host->disk.files;

    while (*at != NULL) {
        struct sim_file *file = *at;

        if (file->kind != kind || file->key != key) {
            at = &file->next;
            continue;
        }
        *at = file->next;
        file_free(file);
    }
    forget(host, kind, key);
}

bool sim_file_here(const struct sim_host *host, enum sim_file_kind kind, uint64_t key)
{
    return sim_map_find(&host->disk.here, place_of(kind, key)) != 0;
}

/* ---- the cut ---- */

struct cut {
    struct sim_host *host;
    bool reached; /* all calls so far */
};

/* Whether a call that was carried out and not flushed has reached the disk. */
static bool reaches(struct cut *cut)
{
    bool heads = shoal_rand_below(&cut->host->disk.file_chance, 2) == 0;

    if (cut->host->sim->options.reorder_disk)
        return heads;
    return cut->reached = cut->reached && heads;
}

/* How many of the sectors have, of a write that was not flushed. */
static uint32_t sectors_reach(struct cut *cut, const struct sim_file *file)
{
    const struct sim_options *o = &cut->host->sim->options;
    bool before = cut->reached, whole = reaches(cut);

    if (whole)
        return file->sectors;
    if (o->torn && (before || o->reorder_disk))
        return (uint32_t)shoal_rand_below(&cut->host->disk.file_chance, file->sectors);
    return 0;
}

/* P1. True: the new file has the name. */
static bool survives(struct cut *cut, const struct sim_file *file)
{
    struct sim_host *host = cut->host;
    uint64_t now_ns = host->sim->now_ns;
    uint32_t sectors = flushed_ns(file) <= now_ns ? file->sectors : sectors_reach(cut, file);
    bool named = named_ns(file) <= now_ns && (folder_ns(file) <= now_ns || reaches(cut));

    if (named && sectors < file->sectors)
        sim_fail(host->sim, "%s: after the power cut a file has its name and %u of %u sectors", host->name, sectors,
                 file->sectors);
    if (!named && file->held_ns != 0 && file->held_ns <= now_ns)
        sim_fail(host->sim, "%s: after the power cut a file is gone that was said to be held", host->name);
    return named;
}

/* P2. What its agent had not carried out stays undone. True: it has the name. */
static bool stays(struct sim_host *host, struct sim_file *file)
{
    while (file->count > 0 && file->steps[file->count - 1].done_ns > host->sim->now_ns)
        file->count--;
    if (file->held_ns > host->sim->now_ns)
        file->held_ns = 0; /* the answer dies with the agent */
    return named_ns(file) <= host->sim->now_ns;
}

void sim_files_end(struct sim_host *host, bool powered)
{
    struct cut cut = { .host = host, .reached = true };
    struct sim_file *kept = NULL, **last = &kept, *file;

    files_settle(host);
    sim_keep(&host->disk.mesh_copy, shoal_buf_view(&host->disk.mesh_flushed));
    while ((file = host->disk.files) != NULL) {
        bool named = powered ? stays(host, file) : survives(&cut, file);

        host->disk.files = file->next;
        file->next = NULL;
        if (named && file->kind == SIM_FILE_MESH)
            sim_keep(&host->disk.mesh_copy, file->bytes);
        if (!named)
            forget(host, file->kind, file->key);
        if (named && powered) {
            *last = file;
            last = &file->next;
            continue;
        }
        if (named)
            keep_flushed(host, file);
        file_free(file);
    }
    host->disk.files = kept;
}

void sim_files_deinit(struct sim_host *host)
{
    struct sim_file *file;

    while ((file = host->disk.files) != NULL) {
        host->disk.files = file->next;
        file_free(file);
    }
    sim_map_deinit(&host->disk.here);
    shoal_buf_deinit(&host->disk.mesh_copy);
    shoal_buf_deinit(&host->disk.mesh_flushed);
}
