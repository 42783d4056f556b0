/* The disk of a host: batches are flushed in order, later; what was not flushed when the agent or the host ends is
 * lost, but for some of the oldest batches, which had reached the disk although nobody had been told. Where disks reorder
 * (`reorder-disk`), any batches may have, in the order of their group; a batch is whole or not there (shoal/store.h): how
 * LMDB's pages may be torn is tested with them (tests/unit/store_powercut_test.c). */
#include "shoal/sched_look.h"
#include "sim.h"

#include "shoal/banned.h"

static void group_clear(struct sim_disk_group *g)
{
    for (size_t i = 0; i < g->entry_count; i++)
        free((void *)(uintptr_t)g->entries[i].bytes.bytes);
    free(g->entries);
    free((void *)(uintptr_t)g->snapshot.bytes.bytes);
    memset(g, 0, sizeof(*g));
}

static struct sim_disk_group *group_find(struct sim_disk *disk, struct shoal_job_id id)
{
    uint64_t at = sim_map_find(&disk->group_index, sim_key_job(id));

    if (at == 0) {
        disk->groups = sim_grow(disk->groups, &disk->cap, disk->count + 1, sizeof(*disk->groups));
        at = ++disk->count;
        sim_map_put(&disk->group_index, sim_key_job(id), at);
    }
    disk->groups[at - 1].id = id;
    disk->groups[at - 1].used = true;
    return &disk->groups[at - 1];
}

uint64_t sim_disk_parked_at(const struct sim_host *host, struct shoal_job_id group)
{
    uint64_t at = sim_map_find(&host->disk.group_index, sim_key_job(group));
    const struct sim_disk_group *g = at == 0 ? NULL : &host->disk.groups[at - 1];

    if (g == NULL || !g->has_hard || !g->has_snapshot ||
        !shoal_sched_is_parked(shoal_view_of(g->hard_config, g->hard.config.len)))
        return 0;
    return g->entry_count == 0 ? g->snapshot.index : 0;
}

static void entry_add(struct sim_disk_group *g, struct shoal_sched_entry entry)
{
    g->entries = sim_grow(g->entries, &g->entry_cap, g->entry_count + 1, sizeof(*g->entries));
    entry.bytes = sim_copy(entry.bytes);
    g->entries[g->entry_count++] = entry;
}

static void entries_drop(struct sim_disk_group *g, size_t from, size_t count)
{
    if (count == 0)
        return;
    for (size_t i = from; i < from + count; i++)
        free((void *)(uintptr_t)g->entries[i].bytes.bytes);
    memmove(&g->entries[from], &g->entries[from + count], (g->entry_count - from - count) * sizeof(g->entries[0]));
    g->entry_count -= count;
}

/* Durable from now on: snapshot, truncate, entries, hard. */
static void apply(struct sim_host *host, const struct sim_write *write)
{
    struct sim_disk_group *g = group_find(&host->disk, write->add.id);
    const struct sim_disk_group *add = &write->add;
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    size_t keep = 0;

    if (write->remove) {
        struct sim_disk_group left = { .left_term = g->hard.term, .left_vote = g->hard.vote_node };

        group_clear(g);
        *g = left;
        return;
    }
    if (add->has_snapshot) {
        while (keep < g->entry_count && g->entries[keep].index <= add->snapshot.index)
            keep++;
        entries_drop(g, 0, keep);
        free((void *)(uintptr_t)g->snapshot.bytes.bytes);
        g->snapshot = add->snapshot;
        g->snapshot.bytes = sim_copy(add->snapshot.bytes);
        g->has_snapshot = true;
    }
    if (write->truncate_from != 0) {
        for (keep = 0; keep < g->entry_count && g->entries[keep].index < write->truncate_from;)
            keep++;
        entries_drop(g, keep, g->entry_count - keep);
    }
    for (size_t i = 0; i < add->entry_count; i++) {
        uint64_t last = g->entry_count > 0 ? g->entries[g->entry_count - 1].index
                        : g->has_snapshot  ? g->snapshot.index
                                           : 0;

        if (add->entries[i].index != last + 1) {
            shoal_job_id_text(add->id, text);
            sim_fail(host->sim, "%s stores entry %llu of %s behind entry %llu", host->name,
                     (unsigned long long)add->entries[i].index, text, (unsigned long long)last);
            return;
        }
        entry_add(g, add->entries[i]);
    }
    if (add->has_hard) {
        sim_check_hard(host, g, add);
        g->has_hard = true;
        g->hard = add->hard;
        memcpy(g->hard_config, add->hard_config, sizeof(g->hard_config));
    }
}

static void write_free(struct sim_write *write)
{
    group_clear(&write->add);
    free(write);
}

/* One flush for all that waits (the store's writer commits what all groups have given it in one transaction). */
static void flush_begin(struct sim_host *host)
{
    struct sim_disk *disk = &host->disk;
    uint64_t now_ns = host->sim->now_ns;
    uint64_t done_ns = now_ns > disk->stall_ns ? now_ns : disk->stall_ns;

    if (disk->flushing > 0 || disk->waiting == 0)
        return;
    disk->flushing = disk->waiting;
    disk->waiting = 0;
    done_ns += sim_about(&disk->chance, disk->flush_ns) * (disk->slow_ns > now_ns ? disk->slow_times : 1);
    (void)sim_push(host->sim, SIM_WRITTEN, host->index, done_ns - now_ns);
}

static void append(struct sim_host *host, struct sim_write *write)
{
    struct sim_disk *disk = &host->disk;

    write->begun_ns = host->sim->now_ns;
    if (disk->last == NULL)
        disk->first = write;
    else
        disk->last->next = write;
    disk->last = write;
    disk->waiting++;
    flush_begin(host);
}

void sim_persist(struct sim_host *host, const struct shoal_sched_action *action)
{
    struct sim_write *write = sim_alloc(sizeof(*write));
    struct sim_disk_group *add = &write->add;

    add->id = action->u.persist.group;
    write->mark = action->u.persist.mark;
    write->truncate_from = action->u.persist.truncate_from;
    if (action->u.persist.has_snapshot) {
        add->has_snapshot = true;
        add->snapshot = action->u.persist.snapshot;
        add->snapshot.bytes = sim_copy(action->u.persist.snapshot.bytes);
    }
    for (size_t i = 0; i < action->u.persist.entry_count; i++)
        entry_add(add, action->u.persist.entries[i]);
    if (action->u.persist.has_hard) {
        SHOAL_ASSERT(action->u.persist.hard.config.len <= SHOAL_SCHED_CONFIG_BYTES_MAX);
        add->has_hard = true;
        add->hard = action->u.persist.hard;
        if (add->hard.config.len > 0)
            memcpy(add->hard_config, add->hard.config.bytes, add->hard.config.len);
        add->hard.config.bytes = NULL;
    }
    append(host, write);
}

void sim_remove_group(struct sim_host *host, struct shoal_job_id group)
{
    struct sim_write *write = sim_alloc(sizeof(*write));

    write->add.id = group;
    write->remove = true;
    append(host, write);
}

static struct sim_write *take(struct sim_disk *disk)
{
    struct sim_write *write = disk->first;

    if (write == NULL)
        return NULL;
    disk->first = write->next;
    if (disk->first == NULL)
        disk->last = NULL;
    return write;
}

static void disk_full(struct sim_host *host)
{
    struct sim_write *write;

    sim_trace(host->sim, "%s: the disk is full", host->name);
    while ((write = take(&host->disk)) != NULL)
        write_free(write);
    sim_agent_kill(host); /* as the store's rule is: nothing is told after a flush that failed */
}

/* The flush has ended; events of an earlier life do not come here. */
void sim_written(struct sim_host *host)
{
    struct sim_disk *disk = &host->disk;
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_STORED };
    struct sim_write *flushed = disk->first, *write = flushed;

    if (disk->full_ns > host->sim->now_ns) {
        disk_full(host);
        return;
    }
    for (uint32_t i = 0; i < disk->flushing; i++, write = write->next)
        apply(host, write); /* all of them are there before anybody is told of one */
    for (uint32_t count = disk->flushing; count > 0; count--) {
        write = take(disk);
        event.u.stored.group = write->add.id;
        event.u.stored.mark = write->mark;
        if (write->mark.seq != 0)
            sim_sched_step(host, &event);
        write_free(write);
    }
    disk->flushing = 0;
    flush_begin(host);
}

/* Whether the write had reached the disk: in order, or, where disks reorder, in the order of each group. `lost`: the groups
 * that a write of has not. */
static bool write_reached(struct sim_host *host, const struct sim_write *write, struct sim_map *lost, bool *reached)
{
    struct sim_disk *disk = &host->disk;
    uint64_t key = sim_key_job(write->add.id);

    if (!host->sim->options.reorder_disk)
        return *reached = *reached && shoal_rand_below(&disk->chance, 2) == 0;
    if (sim_map_find(lost, key) == 0 && shoal_rand_below(&disk->file_chance, 2) == 0)
        return true;
    sim_map_put(lost, key, 1);
    return false;
}

void sim_disk_crash(struct sim_host *host)
{
    struct sim_disk *disk = &host->disk;
    struct sim_map lost = { 0 };
    struct sim_write *write;
    bool reached = true;

    while ((write = take(disk)) != NULL) {
        if (write_reached(host, write, &lost, &reached))
            apply(host, write);
        write_free(write);
    }
    disk->flushing = disk->waiting = 0;
    sim_map_deinit(&lost);
}

uint64_t sim_disk_flush_age(const struct sim_host *host)
{
    return host->disk.first == NULL ? 0 : host->sim->now_ns - host->disk.first->begun_ns;
}

void sim_keep(struct shoal_buf *to, struct shoal_view bytes)
{
    enum shoal_err err;

    to->len = 0;
    err = shoal_buf_append(to, bytes.bytes, bytes.len);
    SHOAL_ASSERT(err == SHOAL_OK);
}

static void restore(struct sim_host *host, const struct sim_disk_group *g)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_RESTORE };

    event.u.restore.group = g->id;
    event.u.restore.has_hard = g->has_hard;
    event.u.restore.hard = g->hard;
    event.u.restore.hard.config = shoal_view_of(g->hard_config, g->hard.config.len);
    event.u.restore.has_snapshot = g->has_snapshot;
    event.u.restore.snapshot = g->snapshot;
    event.u.restore.entries = g->entries;
    event.u.restore.entry_count = g->entry_count;
    sim_sched_step(host, &event);
}

void sim_disk_load(struct sim_host *host, struct shoal_job_id group) { restore(host, group_find(&host->disk, group)); }

void sim_disk_restore(struct sim_host *host)
{
    struct sim_disk *disk = &host->disk;
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_MESH_COPY };

    event.u.mesh_copy.bytes = shoal_buf_view(&disk->mesh_copy);
    if (disk->mesh_copy.len > 0)
        sim_sched_step(host, &event);
    event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_SLOTS_COPY };
    event.u.mesh_copy.bytes = shoal_buf_view(&disk->slots_copy);
    if (disk->slots_copy.len > 0)
        sim_sched_step(host, &event);
    for (size_t i = 0; i < disk->count; i++) {
        const struct sim_disk_group *g = &disk->groups[i];

        if (!g->used)
            continue;
        sim_check_restored(host, g);
        restore(host, g);
    }
    event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_RESTORED };
    sim_sched_step(host, &event);
}

void sim_disk_destroy(struct sim_host *host)
{
    for (size_t i = 0; i < host->disk.count; i++)
        group_clear(&host->disk.groups[i]);
    host->disk.count = 0;
    sim_map_deinit(&host->disk.group_index);
    sim_files_deinit(host);
    host->disk.peer_count = 0;
    shoal_buf_deinit(&host->disk.slots_copy);
}

void sim_disk_deinit(struct sim_host *host)
{
    struct sim_write *write;

    while ((write = take(&host->disk)) != NULL)
        write_free(write);
    for (size_t i = 0; i < host->disk.count; i++)
        group_clear(&host->disk.groups[i]);
    free(host->disk.groups);
    sim_map_deinit(&host->disk.group_index);
    sim_files_deinit(host);
    shoal_buf_deinit(&host->disk.slots_copy);
}
