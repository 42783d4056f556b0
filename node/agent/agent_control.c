/* The shell of the control plane's core (sched.h): translate, step, carry out. It decides nothing.
 *
 * Steps do not nest. Actions are carried out in array order; an event that one of them raises at once (a blob that is
 * already here, a worker that could not start) waits in `deferred` until the step is over, by value and without views.
 * Records go to gossip in the loop's next turn, since its step may be what stepped us. */
#include "agent.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "shoal/control_record.h"
#include "shoal/disk.h"
#include "shoal/hash.h"
#include "shoal/sched_look.h"
#include "shoal/text.h"

#include "agent_files.h"
#include "agent_settings.h"
#include "agent_workers.h"

#include "shoal/banned.h"

#define DEFERRED_TURNS_MAX 4096
#define LOADS_TURN_MAX 32u

struct agent_publish {
    struct agent_publish *next;
    struct shoal_record record;
    uint8_t payload[SHOAL_RECORD_PAYLOAD_MAX];
};

uint64_t agent_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * SHOAL_S + (uint64_t)now.tv_nsec;
}

uint64_t agent_wall_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / SHOAL_MS;
}

void agent_log(const struct agent *agent, const char *format, ...)
{
    char text[1024];
    char clock_text[32];
    struct timespec now;
    struct tm parts;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    shoal_text_plain(text, '?'); /* a job's last words, say: one line of text, and no orders to a terminal */
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &parts);
    (void)strftime(clock_text, sizeof(clock_text), "%Y-%m-%dT%H:%M:%S", &parts);
    (void)fprintf(stderr, "%s.%03ldZ %s: %s\n", clock_text, now.tv_nsec / 1000000, agent->settings.name, text);
}

/* ---- records ---- */

static void on_publish(uv_timer_t *timer)
{
    struct agent *agent = timer->data;

    if (agent->mesh_news && agent->membership != NULL) {
        agent->mesh_news = false;
        agent_removed_look(agent);
    }
    while (agent->publishes != NULL && !agent->stopping) {
        struct agent_publish *publish = agent->publishes;
        enum shoal_err err;

        agent->publishes = publish->next;
        publish->record.payload.bytes = publish->payload;
        err = membership_publish(agent->membership, &publish->record);
        if (err != SHOAL_OK && err != SHOAL_ERR_STALE)
            agent_log(agent, "a record of kind %d was not published: %s", (int)publish->record.kind,
                      shoal_err_name(err));
        if (shoal_control_tells_node(publish->record.kind)) {
            struct shoal_member self; /* what we say of ourselves does not come back as news */

            shoal_swim_self(membership_swim(agent->membership), &self);
            agent_node_event(agent, &self);
        }
        free(publish);
    }
}

void agent_publish(struct agent *agent, const struct shoal_record *record)
{
    struct agent_publish *item;
    struct agent_publish **at = &agent->publishes;

    if (record->payload.len > SHOAL_RECORD_PAYLOAD_MAX)
        return;
    while (*at != NULL &&
           ((*at)->record.kind != record->kind || memcmp(&(*at)->record.key, &record->key, sizeof(record->key)) != 0))
        at = &(*at)->next;
    item = *at; /* a newer one of the same takes the place */
    if (item == NULL)
        item = calloc(1, sizeof(*item));
    if (item == NULL)
        return;
    item->record = *record;
    if (record->payload.len > 0)
        memcpy(item->payload, record->payload.bytes, record->payload.len);
    *at = item;
    (void)uv_timer_start(&agent->publish_timer, on_publish, 0, 0);
}

/* A record of this node's own, of which there is one. */
static void publish_own(struct agent *agent, enum shoal_record_kind kind, const uint8_t *bytes, size_t len)
{
    agent_publish(agent, &(struct shoal_record){ .kind = kind, .payload = shoal_view_of(bytes, len) });
}

void agent_publish_facts(struct agent *agent)
{
    const struct agent_settings *settings = &agent->settings;
    struct shoal_facts_record facts = { .rules = SHOAL_SCHED_RULES,
                                        .serves = settings->serves,
                                        .job_workers = SHOAL_JOB_WORKERS_MAX,
                                        .mesh_version = agent->mesh_version,
                                        .mesh_config = agent->mesh_config,
                                        .cpus = (uint32_t)uv_available_parallelism(),
                                        .simulated = settings->simulated,
                                        .draining = agent->draining,
                                        .drained = agent->drained };
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len;

    (void)snprintf(facts.domain, sizeof(facts.domain), "%s", settings->domain);
    (void)snprintf(facts.numeric_class, sizeof(facts.numeric_class), "%s", settings->numeric_class);
    agent_api_url(settings, agent->http == NULL ? settings->api_port : shoal_http_port(agent->http), facts.api_url);
    if (shoal_facts_record_encode(&facts, bytes, sizeof(bytes), &len) == SHOAL_OK)
        publish_own(agent, SHOAL_RECORD_NODE_FACTS, bytes, len);
}

void agent_publish_load(struct agent *agent)
{
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    struct shoal_load_record record = { 0 };
    double load[3] = { 0, 0, 0 };
    size_t len;

    uv_loadavg(load);
    record.load_milli = (uint32_t)(load[0] * 1000);
    record.archive = agent_archive_mark(agent);
    for (unsigned i = 0; i < AGENT_JOBS_MAX && record.count < SHOAL_LOAD_JOBS_MAX; i++) {
        const struct agent_job *job = agent->jobs[i];
        const struct shoal_control_page *page =
            job == NULL || !job->opened ? NULL : workers_page(agent->workers, job->id);
        uint64_t pause_us = 0;

        for (unsigned slot = 0; page != NULL && slot < SHOAL_SLOTS_MAX; slot++)
            if (page->slots[slot].worker_id != 0 && page->slots[slot].join_pause_ns / 1000 > pause_us)
                pause_us = page->slots[slot].join_pause_ns / 1000;
        if (pause_us == 0)
            continue;
        record.jobs[record.count].job = job->id;
        record.jobs[record.count++].pause_us = pause_us > UINT32_MAX ? UINT32_MAX : (uint32_t)pause_us;
    }
    if (shoal_load_record_encode(&record, bytes, sizeof(bytes), &len) == SHOAL_OK)
        publish_own(agent, SHOAL_RECORD_NODE_LOAD, bytes, len);
}

/* The newest record of this node's own kind; NULL: none. */
static const struct shoal_record *find_own(struct agent *agent, enum shoal_record_kind kind, struct shoal_node_id node,
                                           struct shoal_record *record)
{
    return shoal_records_find(membership_swim(agent->membership), kind, node, (struct shoal_record_key){ { 0 } },
                              record)
               ? record
               : NULL;
}

/* False: nothing heard of this node. `pause_us` is raised to the pause of `job` there. */
bool agent_load_of(struct agent *agent, struct shoal_node_id node, struct shoal_job_id job, uint32_t *load_milli,
                   uint32_t *pause_us)
{
    struct shoal_record record;
    struct shoal_load_record load;

    if (find_own(agent, SHOAL_RECORD_NODE_LOAD, node, &record) == NULL || record.tombstone ||
        shoal_load_record_decode(record.payload, &load) != SHOAL_OK)
        return false;
    *load_milli = load.load_milli;
    for (unsigned i = 0; i < load.count; i++)
        if (shoal_job_id_equal(load.jobs[i].job, job) && load.jobs[i].pause_us > *pause_us)
            *pause_us = load.jobs[i].pause_us;
    return true;
}

void agent_node_event(struct agent *agent, const struct shoal_member *member)
{
    struct shoal_sched_event event;
    struct shoal_record slots, facts;

    if (agent->membership == NULL)
        return;
    shoal_control_node(member, find_own(agent, SHOAL_RECORD_NODE_SLOTS, member->id, &slots),
                       find_own(agent, SHOAL_RECORD_NODE_FACTS, member->id, &facts), &event);
    agent_event(agent, &event);
}

void agent_on_record(struct agent *agent, const struct shoal_record *record)
{
    struct shoal_sched_event event;
    struct shoal_load_record load;
    struct shoal_member member;

    if (shoal_control_tells_node(record->kind)) {
        if (shoal_swim_member_find(membership_swim(agent->membership), record->author, &member))
            agent_node_event(agent, &member);
    } else if (shoal_control_heard(record, &event)) {
        agent_event(agent, &event);
    } else if (record->kind == SHOAL_RECORD_NODE_LOAD && shoal_load_record_decode(record->payload, &load) == SHOAL_OK) {
        agent_archive_heard(agent, record->author, load.archive);
    }
}

/* ---- requests ---- */

/* An event within a step waits until its end, and then its maker's stack is gone. */
static uint8_t *keep_views(struct shoal_sched_request *request)
{
    uint8_t *kept = malloc(request->token.len + request->command.len + 1);

    SHOAL_ASSERT(kept != NULL);
    if (request->token.len > 0)
        memcpy(kept, request->token.bytes, request->token.len);
    if (request->command.len > 0)
        memcpy(kept + request->token.len, request->command.bytes, request->command.len);
    request->token.bytes = kept;
    request->command.bytes = kept + request->token.len;
    return kept;
}

void agent_request(struct agent *agent, struct shoal_sched_request *request, agent_reply_fn *done, void *arg)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_REQUEST };
    struct agent_request *slot = NULL;

    for (unsigned i = 0; i < AGENT_REQUESTS_MAX && slot == NULL; i++)
        if (agent->requests[i].id == 0)
            slot = &agent->requests[i];
    if (slot == NULL || agent->stopping) {
        struct shoal_sched_action full = { .kind = SHOAL_SCHED_REPLY };

        (void)snprintf(full.u.reply.text, sizeof(full.u.reply.text), "too many requests at once; try again");
        done(arg, SHOAL_ERR_FULL, &full);
        return;
    }
    *slot = (struct agent_request){ .id = ++agent->next_request, .done = done, .arg = arg };
    request->id = slot->id;
    if (agent->stepping)
        slot->kept = keep_views(request);
    event.u.request = *request;
    agent_event(agent, &event);
}

static void on_reply(struct agent *agent, const struct shoal_sched_action *action)
{
    for (unsigned i = 0; i < AGENT_REQUESTS_MAX; i++) {
        struct agent_request request = agent->requests[i];

        if (request.id != action->u.reply.request)
            continue;
        agent->requests[i] = (struct agent_request){ 0 };
        request.done(request.arg, action->u.reply.err, action);
        free(request.kept);
        return;
    }
}

/* ---- storage ---- */

static void on_stored(void *arg, const struct shoal_store_done *done)
{
    struct agent *agent = arg;
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_STORED };

    if (done->token == 0)
        return;
    event.u.stored.group = done->group;
    event.u.stored.mark = (struct shoal_sched_mark){ .seq = done->token, .index = done->index, .term = done->term };
    agent_event(agent, &event);
}

/* The marks' (index, term) come back as the core gave them, whatever part of the batch the store names. */
struct stored_arg {
    struct agent *agent;
    struct shoal_sched_mark mark;
};

static void on_stored_mark(void *arg, const struct shoal_store_done *done)
{
    struct stored_arg stored = *(struct stored_arg *)arg;
    struct shoal_store_done named = *done;

    free(arg);
    named.index = stored.mark.index;
    named.term = stored.mark.term;
    named.token = stored.mark.seq;
    if (!stored.agent->stopping)
        on_stored(stored.agent, &named);
}

static void persist(struct agent *agent, const struct shoal_sched_action *action)
{
    static struct shoal_store_entry entries[SHOAL_SCHED_ENTRIES_MAX];
    struct shoal_store_batch batch = { .group = action->u.persist.group,
                                       .truncate_from = action->u.persist.truncate_from,
                                       .entries = entries,
                                       .entries_count = action->u.persist.entry_count };
    struct shoal_store_snapshot snapshot = { .index = action->u.persist.snapshot.index,
                                             .term = action->u.persist.snapshot.term,
                                             .bytes = action->u.persist.snapshot.bytes };
    struct shoal_store_hard hard = { .term = action->u.persist.hard.term,
                                     .vote_node = action->u.persist.hard.vote_node,
                                     .vote_store = action->u.persist.hard.vote_store,
                                     .config = action->u.persist.hard.config };
    struct stored_arg *stored = malloc(sizeof(*stored));
    struct shoal_msg msg = { "no memory" };
    enum shoal_err err = SHOAL_ERR_FULL;

    for (size_t i = 0; i < action->u.persist.entry_count; i++)
        entries[i] = (struct shoal_store_entry){ .index = action->u.persist.entries[i].index,
                                                 .term = action->u.persist.entries[i].term,
                                                 .kind = action->u.persist.entries[i].kind,
                                                 .bytes = action->u.persist.entries[i].bytes };
    if (action->u.persist.has_snapshot)
        agent_bundle_cut(action->u.persist.group);
    if (stored != NULL) {
        *stored = (struct stored_arg){ .agent = agent, .mark = action->u.persist.mark };
        batch.snapshot = action->u.persist.has_snapshot ? &snapshot : NULL;
        batch.hard = action->u.persist.has_hard ? &hard : NULL;
        batch.done = on_stored_mark;
        batch.arg = stored;
        err = shoal_store_append(agent->store, &batch, &msg);
    }
    if (err != SHOAL_OK) { /* what the core counts on cannot be kept: start again from disk */
        free(stored);
        agent_log(agent, "the store takes no more: %s", msg.text);
        agent_stop(agent, 1);
    }
}

static void remove_group(struct agent *agent, struct shoal_job_id group)
{
    struct shoal_store_batch batch = { .group = group, .remove = true };
    struct shoal_msg msg;

    agent_bundle_drop(group);
    if (shoal_store_append(agent->store, &batch, &msg) != SHOAL_OK)
        agent_log(agent, "a group's log stays on disk: %s", msg.text);
}

/* The copy of the slots' table (slots.copy), on the files' thread: one at a time, and the newest waits. It is not flushed: the
 * runners say what lives. */
struct slots_keep {
    struct agent_file_job file;
    char path[AGENT_PATH_BYTES + 32];
    struct shoal_buf bytes;
    bool kept;
};

static void run_slots_keep(struct agent_file_job *job)
{
    struct slots_keep *keep = (struct slots_keep *)(void *)job;
    char part[sizeof(keep->path) + 8];
    FILE *file;

    (void)snprintf(part, sizeof(part), "%s.part", keep->path);
    file = fopen(part, "we");
    if (file == NULL)
        return;
    keep->kept = fwrite(keep->bytes.bytes, 1, keep->bytes.len, file) == keep->bytes.len;
    keep->kept = fclose(file) == 0 && keep->kept && rename(part, keep->path) == 0;
}

static void keep_slots_next(struct agent *agent);

static void slots_kept(struct agent_file_job *job)
{
    struct slots_keep *keep = (struct slots_keep *)(void *)job;
    struct agent *agent = job->agent;

    agent->slots_keeping = false;
    if (keep->kept)
        agent_runs_kept(agent, agent->slots_covered);
    shoal_buf_deinit(&keep->bytes);
    free(keep);
    keep_slots_next(agent);
}

static void keep_slots_next(struct agent *agent)
{
    struct slots_keep *keep = agent->slots_next.len == 0 || agent->slots_keeping ? NULL : calloc(1, sizeof(*keep));

    if (keep == NULL)
        return;
    (void)snprintf(keep->path, sizeof(keep->path), "%s/slots.copy", agent->settings.data);
    keep->file = (struct agent_file_job){ .bytes = agent->slots_next.len, .run = run_slots_keep, .done = slots_kept };
    keep->bytes = agent->slots_next;
    agent->slots_next = (struct shoal_buf){ 0 };
    agent->slots_covered = agent->slots_next_covered;
    agent->slots_keeping = agent_file_submit(agent, &keep->file) == SHOAL_OK;
    if (agent->slots_keeping)
        return;
    shoal_buf_deinit(&keep->bytes);
    free(keep);
}

static void keep_slots(struct agent *agent, struct shoal_view bytes)
{
    agent->slots_next.len = 0;
    if (shoal_buf_append(&agent->slots_next, bytes.bytes, bytes.len) != SHOAL_OK)
        return;
    agent->slots_next_covered = agent->ended_run_total;
    keep_slots_next(agent);
}

/* ---- actions ---- */

static void send_frame(struct agent *agent, const struct shoal_sched_action *action)
{
    /* Lost: the core repeats. */
    shoal_ignore(shoal_link_send(agent->link, action->u.send.to,
                                 action->u.send.bulk ? SHOAL_LANE_BULK : SHOAL_LANE_CONTROL, PEER_CHANNEL_SCHED,
                                 action->u.send.bytes));
}

static void send_datagram(struct agent *agent, const struct shoal_sched_action *action)
{
    uint8_t bytes[SHOAL_DATAGRAM_PAYLOAD_MAX];
    struct shoal_member member;

    if (agent->membership == NULL || action->u.send.bytes.len + 1 > sizeof(bytes) ||
        !shoal_swim_member_find(membership_swim(agent->membership), action->u.send.to, &member))
        return;
    bytes[0] = AGENT_DATAGRAM_SUPPORT;
    memcpy(bytes + 1, action->u.send.bytes.bytes, action->u.send.bytes.len);
    shoal_ignore(shoal_datagram_send(agent->datagram, member.id, member.address,
                                     shoal_view_of(bytes, action->u.send.bytes.len + 1))); /* repeated each 100 ms */
}

static void carry_out_order(struct agent *agent, const struct shoal_host_order *order)
{
    switch (order->kind) {
    case SHOAL_HOST_DO_JOB_OPEN:
        agent_job_open(agent, order->u.job.job, order->u.job.generation, order->u.job.spec);
        break;
    case SHOAL_HOST_DO_JOB_CLOSED: agent_job_closed(agent, order->u.job.job); break;
    case SHOAL_HOST_DO_RUN: agent_job_run(agent, order); break;
    case SHOAL_HOST_DO_RENEW:
        workers_renew(agent->workers, order->u.worker.worker_id,
                      order->u.worker.deadline_ns - SHOAL_LEASE_FROZEN_BEFORE_NS,
                      order->u.worker.deadline_ns + SHOAL_LEASE_KILLED_AFTER_NS);
        break;
    case SHOAL_HOST_DO_FREEZE: workers_freeze(agent->workers, order->u.worker.worker_id); break;
    case SHOAL_HOST_DO_THAW: workers_thaw(agent->workers, order->u.worker.worker_id); break;
    case SHOAL_HOST_DO_KILL: agent_serve_stop(agent, order->u.worker.worker_id, order->u.worker.grace_ns); break;
    case SHOAL_HOST_DO_SEND: agent_worker_send(agent, order); break;
    case SHOAL_HOST_DO_REVOKE: workers_revoke(agent->workers, order->u.revoke.job, order->u.revoke.epoch_word); break;
    case SHOAL_HOST_DO_FETCH:
        agent_fetch(agent, order->u.fetch.job, order->u.fetch.hash, order->u.fetch.sources,
                    order->u.fetch.source_count);
        break;
    case SHOAL_HOST_DO_GUARDIANS: {
        struct agent_job *job = agent_job_find(agent, order->u.fetch.job);

        if (job != NULL)
            agent_job_guarded(job, order->u.fetch.sources, order->u.fetch.source_count);
        break;
    }
    case SHOAL_HOST_DO_MANIFEST:
        agent_manifest(agent, order->u.manifest.job, order->u.manifest.generation, order->u.manifest.call);
        break;
    }
}

static void carry_out_publish(struct agent *agent, const struct shoal_sched_action *action)
{
    struct shoal_record record;

    shoal_control_publish(action, &record);
    agent_publish(agent, &record);
}

static void carry_out(struct agent *agent, const struct shoal_sched_action *action)
{
    switch (action->kind) {
    case SHOAL_SCHED_SEND: send_frame(agent, action); break;
    case SHOAL_SCHED_SEND_DATAGRAM: send_datagram(agent, action); break;
    case SHOAL_SCHED_PERSIST: persist(agent, action); break;
    case SHOAL_SCHED_REMOVE_GROUP: remove_group(agent, action->u.group.group); break;
    case SHOAL_SCHED_LOAD:
        SHOAL_ASSERT(agent->load_count < SHOAL_SCHED_LOADS_MAX); /* the core bounds them */
        agent->loads[agent->load_count++] = action->u.group.group;
        break;
    case SHOAL_SCHED_REPLY: on_reply(agent, action); break;
    case SHOAL_SCHED_PUBLISH_SUMMARY:
    case SHOAL_SCHED_PUBLISH_SLOTS: carry_out_publish(agent, action); break;
    case SHOAL_SCHED_PUBLISH_MESH:
        carry_out_publish(agent, action);
        agent->mesh_version = action->u.publish.version;
        agent->mesh_config = action->u.publish.config;
        if (action->u.publish.own)
            agent_publish_facts(agent);
        break;
    case SHOAL_SCHED_INDEX: agent_list_index(agent, action); break;
    case SHOAL_SCHED_KEEP_SLOTS: keep_slots(agent, action->u.publish.payload); break;
    case SHOAL_SCHED_KEEP_MESH:
        agent_file_replace(agent, "mesh.copy", action->u.publish.payload);
        agent->mesh_news = true;
        (void)uv_timer_start(&agent->publish_timer, on_publish, 0, 0);
        break;
    case SHOAL_SCHED_BLOB_PUT:
        agent_bundle_put(agent, action->u.blob.job, action->u.blob.hash, action->u.blob.bytes);
        break;
    case SHOAL_SCHED_JOB_DELETED: agent_job_deleted(agent, action->u.group.group); break;
    case SHOAL_SCHED_JOB_ARCHIVED: agent_job_archived(agent, action->u.group.group, action->u.group.keep); break;
    case SHOAL_SCHED_ARCHIVE_MAKE: agent_archive_make(agent, action); break;
    case SHOAL_SCHED_ARCHIVE_FETCH: agent_archive_fetch(agent, action); break;
    case SHOAL_SCHED_ROLE: {
        char text[SHOAL_JOB_ID_TEXT_BYTES];

        shoal_job_id_text(action->u.role.group, text);
        if (agent->settings.verbose || action->u.role.leads)
            agent_log(agent, "%s %s in term %llu", action->u.role.leads ? "leads" : "follows in",
                      shoal_job_id_is_mesh(action->u.role.group) ? "mesh" : text,
                      (unsigned long long)action->u.role.term);
        break;
    }
    case SHOAL_SCHED_SAY: agent_log(agent, "%s", action->u.fatal.text); break;
    case SHOAL_SCHED_FATAL:
        agent_log(agent, "stops: %s", action->u.fatal.text);
        agent_stop(agent, 1);
        break;
    case SHOAL_SCHED_ORDER: carry_out_order(agent, &action->u.order); break;
    }
}

/* ---- steps ---- */

static void on_sched_timer(uv_timer_t *timer)
{
    agent_event(timer->data, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_TIMER });
}

static void arm(struct agent *agent)
{
    uint64_t deadline_ns = shoal_sched_deadline_ns(agent->sched);
    uint64_t now = agent_now_ns();
    uint64_t wait_ms = deadline_ns <= now ? 0 : (deadline_ns - now) / SHOAL_MS + 1;

    if (agent->load_count > 0)
        (void)uv_timer_start(&agent->sched_timer, on_sched_timer, 0, 0);
    else if (deadline_ns == UINT64_MAX)
        (void)uv_timer_stop(&agent->sched_timer);
    else
        (void)uv_timer_start(&agent->sched_timer, on_sched_timer, wait_ms, 0);
}

static void step_one(struct agent *agent, struct shoal_sched_event *event)
{
    event->wall_ms = agent_wall_ms();
    if (shoal_sched_step(agent->sched, event, agent_now_ns(), agent->actions) != SHOAL_OK && agent->settings.verbose)
        agent_log(agent, "an event of kind %d was malformed", (int)event->kind);
    for (uint32_t i = 0; i < agent->actions->count && !agent->stopping; i++)
        carry_out(agent, &agent->actions->list[i]);
    agent_archive_changed(agent);
}

static void defer(struct agent *agent, const struct shoal_sched_event *event)
{
    SHOAL_ASSERT(event->kind != SHOAL_SCHED_FRAME);
    SHOAL_ASSERT(event->kind != SHOAL_SCHED_HOST || event->u.host.kind != SHOAL_HOST_ON_MESSAGE); /* N2 */
    if (agent->deferred_count == agent->deferred_cap) {
        size_t cap = agent->deferred_cap == 0 ? 16 : 2 * agent->deferred_cap;
        struct shoal_sched_event *grown = realloc(agent->deferred, cap * sizeof(*grown));

        SHOAL_ASSERT(grown != NULL);
        agent->deferred = grown;
        agent->deferred_cap = cap;
    }
    agent->deferred[agent->deferred_count++] = *event;
}

static void step_deferred(struct agent *agent)
{
    for (size_t i = 0; i < agent->deferred_count && i < DEFERRED_TURNS_MAX; i++) {
        struct shoal_sched_event next = agent->deferred[i];

        step_one(agent, &next);
    }
    agent->deferred_count = 0;
}

static void load_group(struct agent *agent, struct shoal_job_id group);

/* Parked groups that are wanted, a few a turn: each is read from the disk here. */
static void load_groups(struct agent *agent)
{
    unsigned count = agent->load_count < LOADS_TURN_MAX ? agent->load_count : LOADS_TURN_MAX;
    struct shoal_job_id groups[LOADS_TURN_MAX];

    memcpy(groups, agent->loads, count * sizeof(groups[0]));
    agent->load_count -= count;
    memmove(agent->loads, agent->loads + count, agent->load_count * sizeof(agent->loads[0]));
    for (unsigned i = 0; i < count && !agent->stopping; i++) {
        load_group(agent, groups[i]);
        step_deferred(agent);
    }
}

void agent_event(struct agent *agent, struct shoal_sched_event *event)
{
    if (agent->stopping || agent->sched == NULL)
        return;
    if (agent->stepping) {
        defer(agent, event);
        return;
    }
    agent->stepping = true;
    step_one(agent, event);
    step_deferred(agent);
    load_groups(agent);
    agent->stepping = false;
    if (!agent->stopping)
        arm(agent);
}

void agent_host_event(struct agent *agent, const struct shoal_host_event *host)
{
    agent_event(agent, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_HOST, .u.host = *host });
}

/* ---- start ---- */

/* A stored group. All are gathered while the store opens, and restored once it can take what their steps write. */
struct stored_group {
    struct stored_group *next;
    struct shoal_job_id group;
    struct shoal_sched_hard hard;
    uint8_t *config;
    bool has_snapshot;
    struct shoal_sched_snapshot snapshot;
    struct shoal_buf snapshot_bytes;
    struct shoal_buf bytes; /* of the entries, one behind the other */
    struct shoal_sched_entry *entries;
    size_t count, cap;
};

struct replay {
    struct stored_group *first;
    struct stored_group *last;
};

static struct shoal_sched_event restore_event(struct stored_group *stored)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_RESTORE };
    size_t at = 0;

    for (size_t i = 0; i < stored->count; i++) { /* the buffer may have moved while it grew */
        stored->entries[i].bytes.bytes = stored->bytes.bytes + at;
        at += stored->entries[i].bytes.len;
    }
    event.u.restore.group = stored->group;
    event.u.restore.has_hard = true;
    event.u.restore.hard = stored->hard;
    event.u.restore.has_snapshot = stored->has_snapshot;
    event.u.restore.snapshot = stored->snapshot;
    event.u.restore.snapshot.bytes = shoal_buf_view(&stored->snapshot_bytes);
    event.u.restore.entries = stored->entries;
    event.u.restore.entry_count = stored->count;
    return event;
}

static void stored_group_free(struct stored_group *stored)
{
    shoal_buf_deinit(&stored->bytes);
    shoal_buf_deinit(&stored->snapshot_bytes);
    free(stored->entries);
    free(stored->config);
    free(stored);
}

static void replay_group(void *arg, struct shoal_job_id group, const struct shoal_store_hard *hard)
{
    struct replay *replay = arg;
    struct stored_group *stored = calloc(1, sizeof(*stored));

    SHOAL_ASSERT(stored != NULL);
    stored->group = group;
    stored->hard =
        (struct shoal_sched_hard){ .term = hard->term, .vote_node = hard->vote_node, .vote_store = hard->vote_store };
    stored->config = malloc(hard->config.len + 1);
    SHOAL_ASSERT(stored->config != NULL);
    if (hard->config.len > 0)
        memcpy(stored->config, hard->config.bytes, hard->config.len);
    stored->hard.config = shoal_view_of(stored->config, hard->config.len);
    if (replay->last == NULL)
        replay->first = stored;
    else
        replay->last->next = stored;
    replay->last = stored;
}

static void replay_snapshot(void *arg, struct shoal_job_id group, const struct shoal_store_snapshot *snapshot)
{
    struct stored_group *stored = ((struct replay *)arg)->last;
    enum shoal_err err;

    (void)group;
    stored->has_snapshot = true;
    stored->snapshot = (struct shoal_sched_snapshot){ .index = snapshot->index, .term = snapshot->term };
    err = shoal_buf_append(&stored->snapshot_bytes, snapshot->bytes.bytes, snapshot->bytes.len);
    SHOAL_ASSERT(err == SHOAL_OK);
}

static void replay_entry(void *arg, struct shoal_job_id group, const struct shoal_store_entry *entry)
{
    struct stored_group *stored = ((struct replay *)arg)->last;
    enum shoal_err err;

    (void)group;
    if (stored->count == stored->cap) {
        stored->cap = stored->cap == 0 ? 16 : 2 * stored->cap;
        stored->entries = realloc(stored->entries, stored->cap * sizeof(*stored->entries));
        SHOAL_ASSERT(stored->entries != NULL);
    }
    err = shoal_buf_append(&stored->bytes, entry->bytes.bytes, entry->bytes.len);
    SHOAL_ASSERT(err == SHOAL_OK);
    stored->entries[stored->count++] = (struct shoal_sched_entry){
        .index = entry->index, .term = entry->term, .kind = entry->kind, .bytes = { .len = entry->bytes.len }
    };
}

/* Parked groups stay in the store until they are wanted. */
static bool replay_skips(void *arg, struct shoal_job_id group, struct shoal_view config)
{
    (void)arg, (void)group;
    return shoal_sched_is_parked(config);
}

static void load_group(struct agent *agent, struct shoal_job_id group)
{
    struct replay replay = { 0 };
    const struct shoal_store_replay each = {
        .arg = &replay, .on_group = replay_group, .on_snapshot = replay_snapshot, .on_entry = replay_entry
    };
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_RESTORE };
    enum shoal_err err = shoal_store_load(agent->store, group, &each);
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    if (err == SHOAL_OK) {
        event = restore_event(replay.first);
    } else {
        shoal_job_id_text(group, text);
        agent_log(agent, "%s cannot be read from the store: %s", text, shoal_err_name(err));
        event.u.restore.group = group; /* the core has asked, and is answered */
    }
    step_one(agent, &event);
    if (replay.first != NULL)
        stored_group_free(replay.first);
}

static void on_store_fatal(void *arg, const char *text)
{
    struct agent *agent = arg;

    agent_log(agent, "stops: %s", text);
    agent_stop(agent, 1);
}

static struct shoal_hash env_hash(void *arg, struct shoal_view bytes)
{
    (void)arg;
    return shoal_hash_of(bytes);
}

static void env_sign(void *arg, struct shoal_view bytes, uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    const struct agent *agent = arg;
    struct shoal_signature made = shoal_sign(&agent->identity.secret_key, bytes);

    memcpy(signature, made.bytes, sizeof(made.bytes));
}

static bool env_verify(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                       const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    struct shoal_public_key public_key;
    struct shoal_signature given;

    (void)arg;
    memcpy(public_key.bytes, key, sizeof(public_key.bytes));
    memcpy(given.bytes, signature, sizeof(given.bytes));
    return shoal_verify(&public_key, bytes, &given);
}

static struct shoal_node_id env_node(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES])
{
    struct shoal_public_key public_key;

    (void)arg;
    memcpy(public_key.bytes, key, sizeof(public_key.bytes));
    return shoal_node_id_of(&public_key);
}

static void copy_restore(struct agent *agent, enum shoal_sched_event_kind kind, const char *name)
{
    struct shoal_sched_event event = { .kind = kind };
    char path[AGENT_PATH_BYTES + 32];
    struct shoal_buf copy = { 0 };
    struct shoal_msg msg;

    (void)snprintf(path, sizeof(path), "%s/%s", agent->settings.data, name);
    if (shoal_disk_read(path, 4 * SHOAL_MIB, &copy, &msg) == SHOAL_OK) {
        event.u.mesh_copy.bytes = shoal_buf_view(&copy);
        agent_event(agent, &event);
    }
    shoal_buf_deinit(&copy);
}

static enum shoal_err store_restore(struct agent *agent, struct shoal_msg *msg)
{
    struct replay replay = { 0 };
    char path[AGENT_PATH_BYTES + 32];
    struct shoal_store_options options = { .loop = &agent->loop,
                                           .dir = path,
                                           .store_id = agent->identity.store,
                                           .prefill_bytes = agent->settings.prefill_bytes,
                                           .map_bytes = agent->settings.store_map_bytes,
                                           .on_fatal = on_store_fatal,
                                           .fatal_arg = agent };
    enum shoal_err err;

    (void)snprintf(path, sizeof(path), "%s/store", agent->settings.data);
    options.replay = (struct shoal_store_replay){ .arg = &replay,
                                                  .on_group = replay_group,
                                                  .on_snapshot = replay_snapshot,
                                                  .on_entry = replay_entry,
                                                  .skips = replay_skips };
    err = shoal_store_open(&agent->store, &options, msg);
    while (replay.first != NULL) {
        struct stored_group *stored = replay.first;

        replay.first = stored->next;
        if (err == SHOAL_OK) {
            struct shoal_sched_event event = restore_event(stored);

            agent_event(agent, &event);
        }
        stored_group_free(stored);
    }
    return err;
}

enum shoal_err agent_control_create(struct agent *agent, struct shoal_msg *msg)
{
    struct shoal_sched_options options = { .self = agent->identity.node,
                                           .store = agent->identity.store,
                                           .incarnation = agent->identity.incarnation,
                                           .start_ns = agent_now_ns(),
                                           .slots = agent_slots_all(&agent->settings),
                                           .cards = agent->settings.shares > 0 ? agent->settings.slots : 0,
                                           .shares = agent->settings.shares,
                                           .tells_needs = true,
                                           .reattaches = true,
                                           .device = agent->settings.device,
                                           .archive_ns = agent->settings.archive_s * SHOAL_S };
    uint64_t seed;
    enum shoal_err err;

    for (uint32_t i = 0; i < options.cards; i++)
        options.card_mib[i] = agent->settings.devices.list[i].mib;
    options.peer_count = agent_peers_ids(options.peers, SHOAL_SCHED_PEERS_MAX);
    memcpy(options.public_key, agent->identity.public_key.bytes, sizeof(options.public_key));
    memcpy(options.domain, agent->settings.domain, sizeof(options.domain));
    options.env = (struct shoal_sched_env){ .arg = agent,
                                            .hash = env_hash,
                                            .sign = env_sign,
                                            .verify = env_verify,
                                            .node_of_key = env_node,
                                            .who = agent_token_who };
    shoal_random(&seed, sizeof(seed));
    shoal_rand_init(&options.chance, seed);
    agent->actions = malloc(sizeof(*agent->actions));
    if (agent->actions == NULL || shoal_sched_create(&agent->sched, &options) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_FULL, "no memory for the control plane");
    (void)uv_timer_init(&agent->loop, &agent->sched_timer);
    agent->sched_timer.data = agent;
    (void)uv_timer_init(&agent->loop, &agent->publish_timer);
    agent->publish_timer.data = agent;
    copy_restore(agent, SHOAL_SCHED_MESH_COPY, "mesh.copy");
    copy_restore(agent, SHOAL_SCHED_SLOTS_COPY, "slots.copy");
    err = store_restore(agent, msg);
    if (err != SHOAL_OK)
        return err;
    agent_event(agent, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_RESTORED });
    return SHOAL_OK;
}
