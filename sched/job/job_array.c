/* The tasks of an array in a job's replicated state: what entries change, and what can be asked. Rules T1 to T5:
 * shoal/array.h. */
#include "shoal/job_entry.h"
#include "job_array.h"

#include <stdlib.h>

#include "shoal/banned.h"

#define BIT(state) (1u << (state))

/* Bit N set: may become state N. */
static const unsigned task_moves[SHOAL_TASK_STATE_COUNT] = {
    [SHOAL_TASK_PENDING] = BIT(SHOAL_TASK_RUNNING) | BIT(SHOAL_TASK_STOPPED),
    [SHOAL_TASK_RUNNING] =
        BIT(SHOAL_TASK_PENDING) | BIT(SHOAL_TASK_DONE) | BIT(SHOAL_TASK_FAILED) | BIT(SHOAL_TASK_STOPPED),
    [SHOAL_TASK_DONE] = 0, /* T2 */
    [SHOAL_TASK_FAILED] = 0,
    [SHOAL_TASK_STOPPED] = 0,
};

static void move_task(struct shoal_tasks *tasks, uint32_t position, uint8_t state)
{
    struct shoal_task *task = &tasks->tasks[position];

    SHOAL_ASSERT((task_moves[task->state] & BIT(state)) != 0); /* T2 */
    SHOAL_ASSERT(tasks->counts[task->state] > 0);
    SHOAL_ASSERT(position < tasks->array.task_count);
    SHOAL_ASSERT(state < SHOAL_TASK_STATE_COUNT);
    tasks->counts[task->state]--;
    tasks->counts[state]++;
    task->state = state;
    if (state == SHOAL_TASK_PENDING && position < tasks->pending_from)
        tasks->pending_from = position;
    while (tasks->pending_from < tasks->array.task_count &&
           tasks->tasks[tasks->pending_from].state != SHOAL_TASK_PENDING)
        tasks->pending_from++;
}

enum shoal_err job_tasks_create(struct shoal_tasks **out, const char *text)
{
    struct shoal_array array;
    struct shoal_tasks *tasks;

    SHOAL_ASSERT(text[0] != '\0');
    if (shoal_array_parse(text, &array, NULL) != SHOAL_OK)
        return SHOAL_ERR_MALFORMED;
    tasks = calloc(1, sizeof(*tasks) + array.task_count * sizeof(tasks->tasks[0]));
    if (tasks == NULL)
        return SHOAL_ERR_FULL;
    tasks->array = array;
    tasks->counts[SHOAL_TASK_PENDING] = array.task_count;
    for (uint32_t i = 0; i < array.task_count; i++)
        tasks->tasks[i] = (struct shoal_task){ .exit_code = -1, .host = SHOAL_ARRAY_HOST_NONE };
    *out = tasks;
    return SHOAL_OK;
}

/* ---- Apply ------------------------------------------------------------------------------------------------------- */

static uint32_t after_ms(const struct shoal_job *job, uint64_t wall_ms)
{
    uint64_t after = wall_ms > job->create_ms ? wall_ms - job->create_ms : 0;

    SHOAL_ASSERT(job->tasks != NULL);
    return after < UINT32_MAX ? (uint32_t)after : UINT32_MAX;
}

static uint8_t host_of(struct shoal_tasks *tasks, struct shoal_node_id node)
{
    SHOAL_ASSERT(tasks->host_count <= SHOAL_ARRAY_HOSTS_MAX);
    for (uint32_t i = 0; i < tasks->host_count; i++)
        if (shoal_node_id_equal(tasks->hosts[i], node))
            return (uint8_t)i;
    if (tasks->host_count == SHOAL_ARRAY_HOSTS_MAX)
        return SHOAL_ARRAY_HOST_NONE;
    tasks->hosts[tasks->host_count] = node;
    return (uint8_t)tasks->host_count++;
}

static uint8_t state_after(const struct shoal_task_end *end, const struct shoal_job *job)
{
    bool over = shoal_job_state_ended((enum shoal_job_state)job->state) || job->stop;

    SHOAL_ASSERT(end->outcome < SHOAL_TASK_OUTCOME_COUNT);
    switch ((enum shoal_task_outcome)end->outcome) {
    case SHOAL_TASK_ENDED:
        if (shoal_job_spec_serves(&job->spec)) /* T5 */
            return over ? SHOAL_TASK_STOPPED : SHOAL_TASK_PENDING;
        return end->exit_code == 0 ? SHOAL_TASK_DONE : SHOAL_TASK_FAILED;
    case SHOAL_TASK_AGAIN:
    case SHOAL_TASK_UNSTARTED: return over ? SHOAL_TASK_STOPPED : SHOAL_TASK_PENDING;
    case SHOAL_TASK_ABANDONED:
        if (shoal_job_spec_serves(&job->spec)) /* T5 */
            return over ? SHOAL_TASK_STOPPED : SHOAL_TASK_PENDING;
        return over ? SHOAL_TASK_STOPPED : SHOAL_TASK_FAILED;
    case SHOAL_TASK_OUTCOME_COUNT: break;
    }
    return SHOAL_TASK_STOPPED;
}

static void end_task(struct shoal_job *job, const struct shoal_task_end *end, uint64_t wall_ms)
{
    const struct shoal_placement *place = shoal_job_find_worker(job, end->worker_id);
    uint32_t position = shoal_array_position(&job->tasks->array, place->rank);
    struct shoal_task *task = &job->tasks->tasks[position];

    SHOAL_ASSERT(task->state == SHOAL_TASK_RUNNING); /* T1 */
    SHOAL_ASSERT(job->tasks != NULL);
    if (end->outcome == SHOAL_TASK_UNSTARTED)
        task->attempts--;
    task->exit_code = end->outcome == SHOAL_TASK_ENDED ? end->exit_code : -1;
    task->end_ms = after_ms(job, wall_ms);
    move_task(job->tasks, position, state_after(end, job));
    job_drop_worker(job, end->worker_id);
}

static void begin_task(struct shoal_job *job, const struct shoal_placement *place, uint64_t wall_ms)
{
    uint32_t position = shoal_array_position(&job->tasks->array, place->rank);
    struct shoal_task *task = &job->tasks->tasks[position];

    SHOAL_ASSERT(job->placement_count < job->placement_cap); /* J4 */
    SHOAL_ASSERT(place->role == SHOAL_JOB_TASK);             /* T1 */
    move_task(job->tasks, position, SHOAL_TASK_RUNNING);
    task->start_ms = after_ms(job, wall_ms);
    task->end_ms = 0;
    task->attempts = (uint8_t)(task->attempts < UINT8_MAX ? task->attempts + 1 : UINT8_MAX);
    task->host = host_of(job->tasks, place->node);
    if (position >= job->tasks->touched)
        job->tasks->touched = position + 1;
    job->placements[job->placement_count++] = *place;
}

static bool ends_valid(const struct shoal_job *job, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->u.tasks.end_count <= SHOAL_TASK_ENDS_MAX);
    for (uint32_t i = 0; i < entry->u.tasks.end_count; i++) {
        if (shoal_job_find_worker(job, entry->u.tasks.ends[i].worker_id) == NULL)
            return false;
        for (uint32_t j = 0; j < i; j++)
            if (entry->u.tasks.ends[j].worker_id == entry->u.tasks.ends[i].worker_id)
                return false;
    }
    return true;
}

static bool add_valid(const struct shoal_job *job, const struct shoal_job_entry *entry, uint32_t at)
{
    const struct shoal_placement *place = &entry->u.tasks.add[at];
    uint32_t position = shoal_array_position(&job->tasks->array, place->rank);

    SHOAL_ASSERT(at < entry->u.tasks.add_count);
    if (place->role != SHOAL_JOB_TASK || position == SHOAL_ARRAY_NONE ||
        job->tasks->tasks[position].state != SHOAL_TASK_PENDING || shoal_job_find_worker(job, place->worker_id) != NULL)
        return false;
    for (uint32_t i = 0; i < at; i++)
        if (entry->u.tasks.add[i].worker_id == place->worker_id || entry->u.tasks.add[i].rank == place->rank)
            return false;
    return true;
}

/* The placements that would stand stay within the array's limit (T3) and the job's table. */
static bool counts_valid(const struct shoal_job *job, const struct shoal_job_entry *entry)
{
    uint32_t stand = job->placement_count - entry->u.tasks.end_count + entry->u.tasks.add_count;
    uint32_t limit = job->tasks->array.at_once_max;

    SHOAL_ASSERT(entry->u.tasks.end_count <= job->placement_count); /* ends_valid(): each ends one that stands */
    if (entry->u.tasks.add_count == 0)
        return true;
    if (shoal_job_spec_serves(&job->spec) && stand > job->tasks->replicas) /* T5 */
        return false;
    return !shoal_job_state_ended((enum shoal_job_state)job->state) && !job->stop && !job->result_wanted &&
           stand <= job->placement_cap && (limit == 0 || stand <= limit);
}

static unsigned follow_state(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    unsigned changed = 0;

    SHOAL_ASSERT(job->tasks != NULL);
    if (shoal_job_state_ended((enum shoal_job_state)job->state))
        return 0;
    if (entry->u.tasks.add_count > 0 && job->state < SHOAL_JOB_LAUNCHING)
        changed |= job_move_state(job, SHOAL_JOB_LAUNCHING, entry->wall_ms);
    if (job->state == SHOAL_JOB_RECOVERING || (entry->u.tasks.end_count > 0 && job->state == SHOAL_JOB_LAUNCHING))
        changed |= job_move_state(job, SHOAL_JOB_RUNNING, entry->wall_ms);
    return changed;
}

unsigned job_apply_tasks(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_TASKS); /* J1 */
    if (job->tasks == NULL || entry->u.tasks.end_count + entry->u.tasks.add_count == 0 || !ends_valid(job, entry) ||
        !counts_valid(job, entry))
        return SHOAL_JOB_CHANGED_REFUSED;
    for (uint32_t i = 0; i < entry->u.tasks.add_count; i++)
        if (!add_valid(job, entry, i))
            return SHOAL_JOB_CHANGED_REFUSED;
    for (uint32_t i = 0; i < entry->u.tasks.end_count; i++)
        end_task(job, &entry->u.tasks.ends[i], entry->wall_ms);
    for (uint32_t i = 0; i < entry->u.tasks.add_count; i++)
        begin_task(job, &entry->u.tasks.add[i], entry->wall_ms);
    SHOAL_ASSERT(job->placement_count == job->tasks->counts[SHOAL_TASK_RUNNING]); /* T1 */
    job->workers_made += entry->u.tasks.add_count;
    if (entry->u.tasks.add_count > 0)
        job->unsettled = false;
    return follow_state(job, entry) | SHOAL_JOB_CHANGED_PLACES;
}

void job_tasks_stop(struct shoal_job *job)
{
    struct shoal_tasks *tasks = job->tasks;

    SHOAL_ASSERT(shoal_job_state_ended((enum shoal_job_state)job->state)); /* T4 */
    SHOAL_ASSERT(job->tasks->pending_from <= job->tasks->array.task_count);
    while (tasks->pending_from < tasks->array.task_count)
        move_task(tasks, tasks->pending_from, SHOAL_TASK_STOPPED);
    SHOAL_ASSERT(tasks->counts[SHOAL_TASK_PENDING] == 0);
}

void job_tasks_recover(struct shoal_job *job)
{
    SHOAL_ASSERT(job->tasks->counts[SHOAL_TASK_RUNNING] == job->placement_count); /* T1 */
    for (uint32_t i = 0; i < job->placement_count; i++)
        move_task(job->tasks, shoal_array_position(&job->tasks->array, job->placements[i].rank), SHOAL_TASK_PENDING);
    job->placement_count = 0;
    SHOAL_ASSERT(job->tasks->counts[SHOAL_TASK_RUNNING] == 0); /* T1 */
}

unsigned job_apply_scale(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_SCALE); /* J1 */
    if (!shoal_job_spec_serves(&job->spec) || entry->u.scale.replicas > SHOAL_SERVICE_REPLICAS_MAX || job->stop ||
        shoal_job_state_ended((enum shoal_job_state)job->state))
        return SHOAL_JOB_CHANGED_REFUSED;
    SHOAL_ASSERT(job->tasks != NULL); /* T5: a service is an array */
    job->tasks->replicas = entry->u.scale.replicas;
    return SHOAL_JOB_CHANGED_FLAGS;
}

enum shoal_err job_document_create(struct shoal_job *job)
{
    SHOAL_ASSERT(job->document == NULL && shoal_job_spec_serves(&job->spec));
    if (job->spec.profile.len > SHOAL_SERVICE_DOCUMENT_BYTES_MAX)
        return SHOAL_ERR_MALFORMED;
    job->document = malloc(SHOAL_SERVICE_DOCUMENT_BYTES_MAX);
    if (job->document == NULL)
        return SHOAL_ERR_FULL;
    if (job->spec.profile.len > 0)
        memcpy(job->document, job->spec.profile.bytes, job->spec.profile.len);
    job->document_len = (uint32_t)job->spec.profile.len;
    return SHOAL_OK;
}

/* The revision says which document it was made from: of two editors at one time, one looks again (T6). */
unsigned job_apply_edit(struct shoal_job *job, const struct shoal_job_entry *entry)
{
    struct shoal_view document = entry->u.edit.document;
    uint8_t replicas = entry->u.edit.replicas;

    SHOAL_ASSERT(entry->kind == SHOAL_JOB_ENTRY_EDIT); /* J1 */
    if (job->document == NULL || entry->u.edit.revision != job->revision || job->stop ||
        (replicas != SHOAL_REPLICAS_KEEP && replicas > SHOAL_SERVICE_REPLICAS_MAX) ||
        shoal_job_state_ended((enum shoal_job_state)job->state))
        return SHOAL_JOB_CHANGED_REFUSED;
    SHOAL_ASSERT(document.len <= SHOAL_SERVICE_DOCUMENT_BYTES_MAX); /* decoded within its bound */
    memcpy(job->document, document.bytes, document.len);
    job->document_len = (uint32_t)document.len;
    job->revision++;
    if (replicas != SHOAL_REPLICAS_KEEP)
        job->tasks->replicas = replicas;
    return SHOAL_JOB_CHANGED_FLAGS;
}

uint64_t job_tasks_word(const struct shoal_job *job)
{
    const struct shoal_tasks *tasks = job->tasks;

    SHOAL_ASSERT(job->tasks != NULL);
    return (uint64_t)tasks->counts[SHOAL_TASK_DONE] << 42 ^ (uint64_t)tasks->counts[SHOAL_TASK_FAILED] << 21 ^
           tasks->counts[SHOAL_TASK_PENDING] ^ (uint64_t)tasks->replicas << 56;
}

/* ---- Looking ----------------------------------------------------------------------------------------------------- */

uint32_t shoal_job_tasks_pending(const struct shoal_job *job, uint32_t *positions, uint32_t cap)
{
    const struct shoal_tasks *tasks = job->tasks;
    uint32_t count = 0;

    SHOAL_ASSERT(job->tasks != NULL);
    for (uint32_t i = tasks->pending_from; i < tasks->array.task_count && count < cap; i++)
        if (tasks->tasks[i].state == SHOAL_TASK_PENDING)
            positions[count++] = i;
    return count;
}

uint32_t shoal_job_tasks_room(const struct shoal_job *job)
{
    uint32_t limit = SHOAL_PLACE_TASKS_MAX;

    SHOAL_ASSERT(job->tasks != NULL);
    if (job->tasks->array.at_once_max != 0 && job->tasks->array.at_once_max < limit)
        limit = job->tasks->array.at_once_max;
    if (shoal_job_spec_serves(&job->spec) && job->tasks->replicas < limit)
        limit = job->tasks->replicas; /* T5 */
    return limit > job->placement_count ? limit - job->placement_count : 0;
}

int32_t shoal_job_tasks_exit(const struct shoal_job *job, uint32_t *position)
{
    const struct shoal_tasks *tasks = job->tasks;

    SHOAL_ASSERT(job->tasks != NULL);
    *position = SHOAL_ARRAY_NONE;
    if (tasks->counts[SHOAL_TASK_DONE] == tasks->array.task_count)
        return 0;
    for (uint32_t i = 0; i < tasks->array.task_count; i++) {
        if (tasks->tasks[i].state == SHOAL_TASK_DONE)
            continue;
        *position = i;
        return tasks->tasks[i].exit_code;
    }
    return 0;
}

static void fill_row(const struct shoal_job *job, uint32_t position, struct shoal_task_row *row)
{
    const struct shoal_task *task = &job->tasks->tasks[position];

    SHOAL_ASSERT(position < job->tasks->array.task_count);
    memset(row, 0, sizeof(*row));
    row->index = shoal_array_index(&job->tasks->array, position);
    row->state = task->state;
    row->attempts = task->attempts;
    row->exit_code = task->exit_code;
    if (task->host != SHOAL_ARRAY_HOST_NONE)
        row->node = job->tasks->hosts[task->host];
    if (task->attempts > 0)
        row->start_ms = job->create_ms + task->start_ms;
    if (task->attempts > 0 && task->state >= SHOAL_TASK_DONE)
        row->end_ms = job->create_ms + task->end_ms;
}

enum shoal_err shoal_job_tasks_page(const struct shoal_job *job, const struct shoal_tasks_ask *ask,
                                    struct shoal_tasks_page *page, struct shoal_msg *msg)
{
    uint32_t from = 0, last = SHOAL_ARRAY_NONE;

    SHOAL_ASSERT(page != NULL);
    if (job->tasks == NULL)
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "this job is no array: it has no tasks");
    if (ask->limit == 0 || ask->limit > SHOAL_TASKS_PAGE_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%u tasks a page are not offered: 1 to %d", ask->limit,
                          SHOAL_TASKS_PAGE_MAX);
    if (ask->after_index != SHOAL_ARRAY_NONE) {
        from = shoal_array_position(&job->tasks->array, ask->after_index);
        if (from == SHOAL_ARRAY_NONE)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "after: the array %s has no task %u", job->spec.array,
                              ask->after_index);
        from++;
    }
    page->next = SHOAL_ARRAY_NONE;
    page->row_count = 0;
    for (uint32_t i = from; i < job->tasks->array.task_count; i++) {
        if (ask->states != 0 && (ask->states & BIT(job->tasks->tasks[i].state)) == 0)
            continue;
        if (page->row_count == ask->limit) {
            page->next = shoal_array_index(&job->tasks->array, last);
            break;
        }
        fill_row(job, i, &page->rows[page->row_count++]);
        last = i;
    }
    return SHOAL_OK;
}

/* ---- Snapshots --------------------------------------------------------------------------------------------------- */

/* Tasks that were never placed are all alike: only their number is said, by what the specification says. */
void job_put_tasks(struct shoal_writer *w, const struct shoal_tasks *tasks)
{
    SHOAL_ASSERT(tasks->host_count <= SHOAL_ARRAY_HOSTS_MAX); /* what is written can be read */
    SHOAL_ASSERT(tasks->touched <= tasks->array.task_count);  /* what is written can be read */
    shoal_put_u32(w, tasks->host_count);
    for (uint32_t i = 0; i < tasks->host_count; i++)
        shoal_put_node_id(w, tasks->hosts[i]);
    shoal_put_u32(w, tasks->touched);
    for (uint32_t i = 0; i < tasks->touched; i++) {
        const struct shoal_task *task = &tasks->tasks[i];

        shoal_put_u8(w, task->state);
        shoal_put_u8(w, task->attempts);
        shoal_put_u8(w, task->host);
        shoal_put_u16(w, (uint16_t)task->exit_code);
        shoal_put_u32(w, task->start_ms);
        shoal_put_u32(w, task->end_ms);
    }
    shoal_put_bool(w, tasks->counts[SHOAL_TASK_PENDING] == 0 && tasks->touched < tasks->array.task_count);
}

static void get_task(struct shoal_reader *r, struct shoal_tasks *tasks, struct shoal_task *task)
{
    SHOAL_ASSERT(tasks->host_count <= SHOAL_ARRAY_HOSTS_MAX); /* job_get_tasks() has looked */
    task->state = shoal_get_enum(r, SHOAL_TASK_STATE_COUNT);
    task->attempts = shoal_get_u8(r);
    task->host = shoal_get_u8(r);
    task->exit_code = (int16_t)shoal_get_u16(r);
    task->start_ms = shoal_get_u32(r);
    task->end_ms = shoal_get_u32(r);
    if (task->host != SHOAL_ARRAY_HOST_NONE && task->host >= tasks->host_count)
        r->failed = true;
    if (r->failed)
        *task = (struct shoal_task){ .exit_code = -1, .host = SHOAL_ARRAY_HOST_NONE };
}

void job_get_tasks(struct shoal_reader *r, struct shoal_tasks *tasks)
{
    bool stopped;

    SHOAL_ASSERT(tasks->touched == 0); /* read into a fresh table */
    tasks->host_count = shoal_get_u32(r);
    if (tasks->host_count > SHOAL_ARRAY_HOSTS_MAX)
        r->failed = true;
    for (uint32_t i = 0; !r->failed && i < tasks->host_count; i++)
        tasks->hosts[i] = shoal_get_node_id(r);
    tasks->touched = shoal_get_u32(r);
    if (tasks->touched > tasks->array.task_count)
        r->failed = true;
    for (uint32_t i = 0; !r->failed && i < tasks->touched; i++)
        get_task(r, tasks, &tasks->tasks[i]);
    stopped = shoal_get_bool(r);
    if (r->failed)
        return;
    memset(tasks->counts, 0, sizeof(tasks->counts));
    tasks->pending_from = tasks->array.task_count;
    for (uint32_t i = tasks->array.task_count; i > 0; i--) {
        struct shoal_task *task = &tasks->tasks[i - 1];

        if (i > tasks->touched && stopped)
            task->state = SHOAL_TASK_STOPPED;
        tasks->counts[task->state]++;
        if (task->state == SHOAL_TASK_PENDING)
            tasks->pending_from = i - 1;
    }
}

bool job_tasks_valid(const struct shoal_job *job)
{
    const struct shoal_tasks *tasks = job->tasks;

    SHOAL_ASSERT(job->placement_count <= job->placement_cap); /* J4 */
    for (uint32_t i = 0; i < job->placement_count; i++) {
        uint32_t position = shoal_array_position(&tasks->array, job->placements[i].rank);

        if (job->placements[i].role != SHOAL_JOB_TASK || position == SHOAL_ARRAY_NONE ||
            tasks->tasks[position].state != SHOAL_TASK_RUNNING)
            return false;
        for (uint32_t j = 0; j < i; j++)
            if (job->placements[j].rank == job->placements[i].rank ||
                job->placements[j].worker_id == job->placements[i].worker_id)
                return false;
    }
    return tasks->counts[SHOAL_TASK_RUNNING] == job->placement_count;
}
