/* A host: the shells of node/agent/agent_control.c and node/agent/membership_uv.c again, on virtual time. It translates
 * and decides nothing. Steps do not nest: what an action brings about comes as a later event. */
#include "sim.h"
#include "sim_service.h"

#include "shoal/control_record.h"
#include "shoal/sched_look.h"

#include "shoal/banned.h"

#define CLOCK_START_NS (10 * SHOAL_S)
#define HEALTH_NS (100 * SHOAL_MS)
#define LOOK_AGAIN_NS (3600 * SHOAL_S)
#define CHECK_SMALL 64
#define CHECK_SMALL_STEPS 16
#define WALL_START_MS 1700000000000ull

/* ---- toy cryptography: stable, and a wrong key does not verify ---- */

static struct shoal_hash toy_hash(void *arg, struct shoal_view bytes)
{
    struct shoal_hash hash;
    uint64_t state = sim_hash_bytes(bytes);

    (void)arg;
    for (unsigned i = 0; i < 4; i++) {
        uint64_t word = shoal_splitmix64(&state);

        for (unsigned b = 0; b < 8; b++)
            hash.bytes[8 * i + b] = (uint8_t)(word >> (8 * b));
    }
    return hash;
}

static void toy_signature(const uint8_t key[32], struct shoal_view bytes, uint8_t signature[64])
{
    struct shoal_hash hash = toy_hash(NULL, bytes);
    uint8_t both[64];

    memcpy(both, key, 32);
    memcpy(both + 32, hash.bytes, 32);
    hash = toy_hash(NULL, shoal_view_of(both, sizeof(both)));
    memcpy(signature, hash.bytes, 32);
    memcpy(signature + 32, hash.bytes, 32);
}

static struct shoal_node_id toy_node(const uint8_t key[32])
{
    struct shoal_hash hash = toy_hash(NULL, shoal_view_of(key, 32));
    struct shoal_node_id id;

    memcpy(id.bytes, hash.bytes, sizeof(id.bytes));
    return id;
}

static void sched_sign(void *arg, struct shoal_view bytes, uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    toy_signature(((const struct sim_host *)arg)->key.bytes, bytes, signature);
}

static bool sched_verify(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES], struct shoal_view bytes,
                         const uint8_t signature[SHOAL_SCHED_SIGNATURE_BYTES])
{
    uint8_t want[SHOAL_SCHED_SIGNATURE_BYTES];

    (void)arg;
    toy_signature(key, bytes, want);
    return memcmp(want, signature, sizeof(want)) == 0;
}

static struct shoal_node_id sched_node_of_key(void *arg, const uint8_t key[SHOAL_SCHED_KEY_BYTES])
{
    (void)arg;
    return toy_node(key);
}

static struct shoal_signature swim_sign(void *arg, struct shoal_view bytes)
{
    struct shoal_signature signature = { { 0 } };

    toy_signature(((const struct sim_host *)arg)->key.bytes, bytes, signature.bytes);
    return signature;
}

static bool swim_verify(void *arg, const struct shoal_public_key *key, struct shoal_view bytes,
                        const struct shoal_signature *signature)
{
    return sched_verify(arg, key->bytes, bytes, signature->bytes);
}

static struct shoal_node_id swim_node_id(void *arg, const struct shoal_public_key *key)
{
    (void)arg;
    return toy_node(key->bytes);
}

/* ---- clocks and timers ---- */

/* How far the host's clock has gone, `gone` nanoseconds after its boot. */
static uint64_t clock_of(const struct sim_host *host, uint64_t gone)
{
    return (uint64_t)((int64_t)gone + (int64_t)gone / 1000 * host->drift_ppm / 1000);
}

uint64_t sim_host_now(const struct sim_host *host)
{
    return CLOCK_START_NS + clock_of(host, host->sim->now_ns - host->boot_true_ns);
}

uint64_t sim_host_wall_ms(const struct sim_host *host)
{
    int64_t gone = (int64_t)(host->sim->now_ns / SHOAL_MS);

    return (uint64_t)((int64_t)WALL_START_MS + gone + gone * host->drift_ppm / 1000000 + host->wall_ms);
}

uint64_t sim_host_true(const struct sim_host *host, uint64_t at_ns)
{
    uint64_t shown = at_ns < CLOCK_START_NS ? 0 : at_ns - CLOCK_START_NS;
    uint64_t gone = (uint64_t)((shoal_u128)shown * 1000000u / (uint64_t)(1000000 + host->drift_ppm));

    while (clock_of(host, gone) < shown) /* rounded: by some microseconds at most */
        gone += shown - clock_of(host, gone);
    return host->boot_true_ns + gone;
}

static void timer_arm(struct sim_host *host, enum sim_kind kind, uint64_t deadline_ns, uint64_t *armed_ns)
{
    struct sim *sim = host->sim;
    uint64_t now_ns = sim_host_now(host);
    uint64_t at_ns;

    if (deadline_ns == UINT64_MAX)
        return;
    if (deadline_ns > now_ns && deadline_ns - now_ns > LOOK_AGAIN_NS)
        deadline_ns = now_ns + LOOK_AGAIN_NS; /* far away: the sums below must not wrap */
    /* As the event loop: whole milliseconds, never early. */
    at_ns = deadline_ns <= now_ns ? now_ns : now_ns + ((deadline_ns - now_ns) / SHOAL_MS + 1) * SHOAL_MS;
    if (*armed_ns <= at_ns)
        return; /* it looks again then */
    *armed_ns = at_ns;
    at_ns = deadline_ns <= now_ns ? sim->now_ns + 1000 : sim_host_true(host, at_ns);
    sim_push(sim, kind, host->index, at_ns > sim->now_ns ? at_ns - sim->now_ns : 1)->word = *armed_ns;
}

static uint64_t node_key(struct shoal_node_id id) { return sim_hash_bytes(shoal_view_of(id.bytes, sizeof(id.bytes))); }

uint32_t sim_host_find(const struct sim *sim, struct shoal_node_id id)
{
    uint64_t at = sim_map_find(&sim->host_index, node_key(id));

    return at == 0 ? UINT32_MAX : (uint32_t)at - 1;
}

/* ---- records ---- */

void sim_host_publish(struct sim_host *host, const struct shoal_record *record)
{
    struct sim_event *event = sim_push(host->sim, SIM_PUBLISH, host->index, 10000);

    event->record = sim_alloc(sizeof(*event->record));
    *event->record = *record;
    if (record->payload.len > 0)
        sim_event_bytes(event, record->payload);
}

static void publish_facts(struct sim_host *host)
{
    const struct shoal_facts_record facts = { .rules = SHOAL_SCHED_RULES,
                                              .job_workers = SHOAL_JOB_WORKERS_MAX,
                                              .mesh_version = host->mesh_version,
                                              .mesh_config = host->mesh_config,
                                              .cpus = 4,
                                              .simulated = true,
                                              .draining = host->draining,
                                              .numeric_class = "simulated",
                                              .api_url = "http://simulated" };
    uint8_t bytes[SHOAL_RECORD_PAYLOAD_MAX];
    size_t len;

    if (shoal_facts_record_encode(&facts, bytes, sizeof(bytes), &len) == SHOAL_OK)
        sim_host_publish(
            host, &(struct shoal_record){ .kind = SHOAL_RECORD_NODE_FACTS, .payload = shoal_view_of(bytes, len) });
}

static const struct shoal_record *find_own(const struct sim_host *host, enum shoal_record_kind kind,
                                           struct shoal_node_id node, struct shoal_record *record)
{
    return shoal_records_find(host->swim, kind, node, (struct shoal_record_key){ { 0 } }, record) ? record : NULL;
}

static void node_event(struct sim_host *host, const struct shoal_member *member)
{
    struct shoal_sched_event event;
    struct shoal_record slots, facts;

    shoal_control_node(member, find_own(host, SHOAL_RECORD_NODE_SLOTS, member->id, &slots),
                       find_own(host, SHOAL_RECORD_NODE_FACTS, member->id, &facts), &event);
    sim_sched_step(host, &event);
}

static void on_record(struct sim_host *host, const struct shoal_record *record)
{
    struct shoal_sched_event event;
    struct shoal_member member;

    if (shoal_control_tells_node(record->kind)) {
        if (shoal_swim_member_find(host->swim, record->author, &member))
            node_event(host, &member);
    } else if (shoal_control_heard(record, &event)) {
        sim_sched_step(host, &event);
    }
}

static void on_publish(struct sim_host *host, struct sim_event *event)
{
    static const struct shoal_record_version none;
    struct shoal_record *record = event->record;
    struct shoal_member self;

    record->payload = event->bytes;
    if (shoal_record_version_cmp(record->version, none) == 0)
        record->version = (struct shoal_record_version){ { host->incarnation.host_epoch, host->incarnation.agent,
                                                           ++host->record_sequence } };
    sim_swim_step(host, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_PUBLISH, .record = record });
    if (!shoal_control_tells_node(record->kind))
        return;
    shoal_swim_self(host->swim, &self); /* what we say of ourselves does not come back as news */
    node_event(host, &self);
}

static void publish_action(struct sim_host *host, const struct shoal_sched_action *action)
{
    struct shoal_record record;

    shoal_control_publish(action, &record);
    sim_host_publish(host, &record);
}

/* ---- actions ---- */

void sim_answer(struct sim_host *host, const struct shoal_sched_event *event, uint64_t delay_ns)
{
    struct sim_event *later = sim_push(host->sim, SIM_ANSWER, host->index, delay_ns);

    later->answer = sim_alloc(sizeof(*later->answer));
    *later->answer = *event;
    later->word = (uint64_t)event->kind;
}

void sim_host_answer(struct sim_host *host, const struct shoal_host_event *event, uint64_t delay_ns)
{
    sim_answer(host, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_HOST, .u.host = *event }, delay_ns);
}

void sim_host_step(struct sim_host *host, const struct shoal_host_event *event)
{
    sim_sched_step(host, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_HOST, .u.host = *event });
}

static uint64_t blob_key(struct shoal_hash hash)
{
    return sim_hash_bytes(shoal_view_of(hash.bytes, sizeof(hash.bytes)));
}

/* A blob is here already, or comes from any of its sources that can be reached. */
static void fetch(struct sim_host *host, const struct shoal_host_order *order)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_BLOB };
    uint64_t delay_ns;

    event.u.blob.hash = order->u.fetch.hash;
    event.u.blob.ok = sim_file_here(host, SIM_FILE_BLOB, blob_key(order->u.fetch.hash));
    for (uint8_t i = 0; i < order->u.fetch.source_count && !event.u.blob.ok; i++) {
        uint32_t source = sim_host_find(host->sim, order->u.fetch.sources[i]);

        event.u.blob.ok =
            source != UINT32_MAX && host->sim->hosts[source].agent && sim_can_talk(host->sim, source, host->index);
    }
    sim_trace(host->sim, "%s: a blob from %u sources is %s", host->name, order->u.fetch.source_count,
              event.u.blob.ok ? "fetched" : "out of reach");
    delay_ns = 2 * SHOAL_MS + shoal_rand_below(&host->chance, 20 * SHOAL_MS);
    if (event.u.blob.ok)
        sim_file_put(host, SIM_FILE_BLOB, blob_key(order->u.fetch.hash), delay_ns, true);
    else
        (void)snprintf(event.u.blob.text, sizeof(event.u.blob.text), "no source of the blob can be reached");
    sim_host_answer(host, &event, delay_ns);
}

static void manifest(struct sim_host *host, const struct shoal_host_order *order)
{
    struct shoal_host_event event = { .kind = SHOAL_HOST_ON_MANIFEST };
    struct shoal_view job = shoal_view_of(order->u.manifest.job.bytes, sizeof(order->u.manifest.job.bytes));

    event.u.manifest.job = order->u.manifest.job;
    event.u.manifest.call = order->u.manifest.call;
    event.u.manifest.ok = true;
    event.u.manifest.hash = toy_hash(NULL, job);
    event.u.manifest.hash.bytes[31] = (uint8_t)(order->u.manifest.call + 1);
    sim_host_answer(host, &event, 10 * SHOAL_MS + shoal_rand_below(&host->chance, 40 * SHOAL_MS));
}

bool sim_blobs_are_here(const struct sim_host *host, uint32_t job)
{
    return sim_file_here(host, SIM_FILE_ARCHIVE, job);
}

static void blobs_gone(struct sim_host *host, struct shoal_job_id id)
{
    uint32_t job = sim_job_find(host->sim, id);

    if (job != UINT32_MAX)
        sim_file_remove(host, SIM_FILE_ARCHIVE, job);
}

/* A job's blobs are made where its leader is, and come from any source that has them and can be reached. */
static void archive(struct sim_host *host, const struct shoal_sched_action *action)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_ARCHIVE_MADE };
    struct shoal_job_id id = action->u.archive.job;
    uint32_t job = sim_job_find(host->sim, id);
    uint64_t delay_ns;

    event.u.archive.job = id;
    event.u.archive.list = toy_hash(NULL, shoal_view_of(id.bytes, sizeof(id.bytes)));
    event.u.archive.ok = job != UINT32_MAX;
    if (action->kind == SHOAL_SCHED_ARCHIVE_FETCH) {
        event.kind = SHOAL_SCHED_ARCHIVE_FETCHED;
        event.u.archive.ok = false;
        for (uint8_t i = 0; job != UINT32_MAX && i < action->u.archive.source_count && !event.u.archive.ok; i++) {
            uint32_t source = sim_host_find(host->sim, action->u.archive.sources[i]);

            event.u.archive.ok = source != UINT32_MAX && host->sim->hosts[source].agent &&
                                 sim_can_talk(host->sim, source, host->index) &&
                                 sim_blobs_are_here(&host->sim->hosts[source], job);
        }
    }
    delay_ns = 2 * SHOAL_MS + shoal_rand_below(&host->chance, 40 * SHOAL_MS);
    if (event.u.archive.ok)
        sim_file_put(host, SIM_FILE_ARCHIVE, job, delay_ns, true);
    sim_answer(host, &event, delay_ns);
}

static void on_role(struct sim_host *host, const struct shoal_sched_action *action)
{
    char text[SHOAL_JOB_ID_TEXT_BYTES];

    shoal_job_id_text(action->u.role.group, text);
    if (action->u.role.leads) {
        host->sim->elections++;
        sim_trace(host->sim, "%s leads %s in term %llu", host->name,
                  shoal_job_id_is_mesh(action->u.role.group) ? "the mesh" : text,
                  (unsigned long long)action->u.role.term);
        sim_check_led(host, action->u.role.group, action->u.role.term);
    }
}

static void send_datagram(struct sim_host *host, const struct shoal_sched_action *action)
{
    struct shoal_member member;
    uint32_t to = sim_host_find(host->sim, action->u.send.to);

    if (to != UINT32_MAX && host->swim != NULL && shoal_swim_member_find(host->swim, action->u.send.to, &member))
        sim_datagram(host->sim, SIM_SUPPORT, host->index, to, action->u.send.bytes);
}

static void send_frame(struct sim_host *host, const struct shoal_sched_action *action)
{
    uint32_t to = sim_host_find(host->sim, action->u.send.to);

    if (to != UINT32_MAX && to != host->index)
        sim_frame(host->sim, host->index, to, action->u.send.bulk, action->u.send.bytes);
}

static void carry_out_order(struct sim_host *host, const struct shoal_host_order *order)
{
    switch (order->kind) {
    case SHOAL_HOST_DO_JOB_OPEN:
        sim_job_open(host, order->u.job.job, order->u.job.generation, order->u.job.spec);
        break;
    case SHOAL_HOST_DO_JOB_CLOSED: sim_job_closed(host, order->u.job.job); break;
    case SHOAL_HOST_DO_RUN: sim_worker_run(host, order); break;
    case SHOAL_HOST_DO_RENEW:
    case SHOAL_HOST_DO_FREEZE:
    case SHOAL_HOST_DO_THAW:
    case SHOAL_HOST_DO_KILL: sim_worker_order(host, order); break;
    case SHOAL_HOST_DO_SEND: sim_worker_told(host, order); break;
    case SHOAL_HOST_DO_REVOKE: sim_revoke(host, order->u.revoke.job, order->u.revoke.epoch_word); break;
    case SHOAL_HOST_DO_FETCH: fetch(host, order); break;
    case SHOAL_HOST_DO_GUARDIANS: break; /* files are the shell's */
    case SHOAL_HOST_DO_MANIFEST: manifest(host, order); break;
    }
}

static void load_group(struct sim_host *host, struct shoal_job_id group)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_RESTORE };

    event.u.restore.group = group;
    sim_answer(host, &event, shoal_rand_below(&host->chance, 2 * SHOAL_MS));
}

static void carry_out(struct sim_host *host, const struct shoal_sched_action *action)
{
    switch (action->kind) {
    case SHOAL_SCHED_SEND: send_frame(host, action); break;
    case SHOAL_SCHED_SEND_DATAGRAM: send_datagram(host, action); break;
    case SHOAL_SCHED_PERSIST:
        sim_check_persist(host, action);
        sim_persist(host, action);
        break;
    case SHOAL_SCHED_REMOVE_GROUP:
        sim_check_removed(host, action->u.group.group);
        sim_remove_group(host, action->u.group.group);
        break;
    case SHOAL_SCHED_LOAD: load_group(host, action->u.group.group); break;
    case SHOAL_SCHED_REPLY: sim_on_reply(host->sim, action); break;
    case SHOAL_SCHED_PUBLISH_SUMMARY:
    case SHOAL_SCHED_PUBLISH_SLOTS: publish_action(host, action); break;
    case SHOAL_SCHED_PUBLISH_MESH:
        publish_action(host, action);
        host->mesh_version = action->u.publish.version;
        host->mesh_config = action->u.publish.config;
        if (action->u.publish.own)
            publish_facts(host);
        break;
    case SHOAL_SCHED_KEEP_SLOTS: sim_keep(&host->disk.slots_copy, action->u.publish.payload); break;
    case SHOAL_SCHED_KEEP_MESH: sim_file_mesh(host, action->u.publish.payload); break;
    case SHOAL_SCHED_INDEX: break; /* nobody lists jobs here */
    case SHOAL_SCHED_BLOB_PUT:
        sim_file_put(host, SIM_FILE_BLOB, blob_key(action->u.blob.hash), host->disk.flush_ns, false);
        break;
    case SHOAL_SCHED_JOB_DELETED: blobs_gone(host, action->u.group.group); break;
    case SHOAL_SCHED_JOB_ARCHIVED:
        if (!action->u.group.keep)
            blobs_gone(host, action->u.group.group);
        break;
    case SHOAL_SCHED_ARCHIVE_MAKE:
    case SHOAL_SCHED_ARCHIVE_FETCH: archive(host, action); break;
    case SHOAL_SCHED_ROLE: on_role(host, action); break;
    case SHOAL_SCHED_SAY: sim_trace(host->sim, "%s: %s", host->name, action->u.fatal.text); break;
    case SHOAL_SCHED_FATAL: sim_fail(host->sim, "%s stops: %s", host->name, action->u.fatal.text); break;
    case SHOAL_SCHED_ORDER: carry_out_order(host, &action->u.order); break;
    }
}

/* ---- steps ---- */

void sim_sched_step(struct sim_host *host, const struct shoal_sched_event *event)
{
    struct sim *sim = host->sim;
    struct shoal_sched_event copy = *event;
    enum shoal_err err;

    copy.wall_ms = sim_host_wall_ms(host);
    err = shoal_sched_step(host->sched, &copy, sim_host_now(host), sim->sched_actions);
    if (host->sched_steps % 16 == 0)
        shoal_sched_check(host->sched); /* it looks at every entry */
    host->sched_steps++;
    if (err == SHOAL_ERR_MALFORMED)
        sim_fail(sim, "%s finds an event of kind %d malformed", host->name, (int)event->kind);
    sim_mix(sim, sim->sched_actions->count);
    for (uint32_t i = 0; i < sim->sched_actions->count && !sim->failed; i++)
        carry_out(host, &sim->sched_actions->list[i]);
    sim_check_host(host);
    timer_arm(host, SIM_SCHED_TIMER, shoal_sched_deadline_ns(host->sched), &host->sched_timer_ns);
}

/* As node/backend/agent_peers.c. */
static void peer_note(struct sim_disk *disk, const struct shoal_member *member)
{
    uint32_t at = 0;

    while (at < disk->peer_count && !shoal_node_id_equal(disk->peers[at], member->id))
        at++;
    if (member->state == SHOAL_MEMBER_LEFT && at < disk->peer_count)
        disk->peers[at] = disk->peers[--disk->peer_count];
    else if (member->state == SHOAL_MEMBER_ALIVE && at == disk->peer_count && at < SHOAL_SCHED_PEERS_MAX)
        disk->peers[disk->peer_count++] = member->id;
}

static void on_member(struct sim_host *host, const struct shoal_swim_action *action)
{
    static const char *const names[] = { "unknown", "alive", "suspected", "dead", "gone" };
    const struct shoal_member *member = &action->member.member;
    uint32_t peer = sim_host_find(host->sim, member->id);

    if (peer == UINT32_MAX)
        return;
    if (peer != host->index) {
        peer_note(&host->disk, member);
        if (member->state != action->member.old)
            sim_trace(host->sim, "%s: %s is %s", host->name, member->name, names[member->state]);
        sim_want(host->sim, host->index, peer,
                 member->state == SHOAL_MEMBER_ALIVE || member->state == SHOAL_MEMBER_SUSPECT);
    }
    node_event(host, member);
}

/* Steps until a core's whole state is looked at again: in a small mesh often, in a large one so that a step's share of
 * the work does not grow with the mesh. */
static uint64_t check_pause(const struct sim_host *host)
{
    uint64_t entries = shoal_swim_live_count(host->swim) + shoal_records_count(host->swim);

    return entries <= CHECK_SMALL ? CHECK_SMALL_STEPS : entries;
}

/* A datagram goes to an address; a named receiver must be the one there, else the seal does not open. */
static void gossip_send(struct sim_host *host, const struct shoal_swim_action *action)
{
    const uint8_t *ip = action->send.address.ip;
    uint32_t to = ((uint32_t)ip[13] << 16 | (uint32_t)ip[14] << 8 | ip[15]) - 1;
    const struct sim_host *peer = to < host->sim->host_count ? &host->sim->hosts[to] : NULL;

    if (peer == NULL || !shoal_address_equal(peer->address, action->send.address))
        return;
    if (shoal_node_id_is_zero(action->send.to) || shoal_node_id_equal(action->send.to, peer->id))
        sim_datagram(host->sim, SIM_GOSSIP, host->index, to, action->send.bytes);
}

void sim_swim_step(struct sim_host *host, const struct shoal_swim_event *event)
{
    struct sim *sim = host->sim;
    struct shoal_swim_actions *actions = sim->swim_actions;
    enum shoal_err err = shoal_swim_step(host->swim, event, sim_host_now(host), actions);

    if (host->swim_steps++ >= host->swim_check_step) {
        shoal_swim_check(host->swim);
        host->swim_check_step = host->swim_steps + check_pause(host);
    }
    if (err == SHOAL_ERR_MALFORMED)
        sim_fail(sim, "%s finds a gossip datagram malformed", host->name);
    sim_mix(sim, actions->count);
    for (size_t i = 0; i < actions->count && !sim->failed; i++) {
        const struct shoal_swim_action *action = &actions->items[i];

        switch (action->kind) {
        case SHOAL_SWIM_SEND: gossip_send(host, action); break;
        case SHOAL_SWIM_MEMBER: on_member(host, action); break;
        case SHOAL_SWIM_RECORD: on_record(host, &action->record); break;
        case SHOAL_SWIM_CLONED: sim_fail(sim, "%s believes that its store was cloned", host->name); break;
        case SHOAL_SWIM_NOTE: break;
        }
    }
    timer_arm(host, SIM_SWIM_TIMER, shoal_swim_deadline_ns(host->swim), &host->swim_timer_ns);
}

/* ---- events ---- */

static void on_health(struct sim_host *host)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_HEALTH };
    uint64_t now_ns = host->sim->now_ns;
    uint64_t lag_ns = now_ns > host->health_due_ns ? now_ns - host->health_due_ns : 0;

    host->health_due_ns = now_ns + HEALTH_NS;
    (void)sim_push(host->sim, SIM_HEALTH, host->index, HEALTH_NS);
    event.u.health.loop_lag_ns = lag_ns;
    event.u.health.flush_age_ns = sim_disk_flush_age(host);
    sim_sched_step(host, &event);
    if (lag_ns > 20 * SHOAL_MS) {
        struct shoal_swim_event health = { .kind = SHOAL_SWIM_HEALTH };

        health.health.loop_lag_ns = lag_ns;
        sim_swim_step(host, &health);
    }
}

static void on_link(struct sim_host *host, const struct sim_event *from)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_LINK };
    uint32_t peer = from->from;
    uint64_t number;
    bool up = sim_link_is_up(host->sim, host->index, peer, &number);

    event.u.link.node = host->sim->hosts[peer].id;
    event.u.link.state = (enum shoal_sched_link_state)(from->word >> 48);
    if (event.u.link.state != SHOAL_SCHED_LINK_REFUSED && (from->word & 0xffffffffffffu) != number)
        return; /* of a link that another has replaced */
    if (event.u.link.state == SHOAL_SCHED_LINK_UP && !up)
        return;
    if (event.u.link.state == SHOAL_SCHED_LINK_REFUSED)
        sim_swim_step(host, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_REFUSED, .peer = event.u.link.node });
    sim_sched_step(host, &event);
}

static void on_gossip(struct sim_host *host, const struct sim_event *from)
{
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_DATAGRAM };

    event.datagram.from = host->sim->hosts[from->from].id;
    event.datagram.address = host->sim->hosts[from->from].address;
    event.datagram.bytes = from->bytes;
    sim_swim_step(host, &event);
}

static void on_support(struct sim_host *host, const struct sim_event *from)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_DATAGRAM };

    event.u.frame.from = host->sim->hosts[from->from].id;
    event.u.frame.bytes = from->bytes;
    sim_sched_step(host, &event);
}

static void on_timer(struct sim_host *host, const struct sim_event *event)
{
    bool swim = event->kind == SIM_SWIM_TIMER;
    uint64_t *armed_ns = swim ? &host->swim_timer_ns : &host->sched_timer_ns;
    uint64_t deadline_ns;

    if (event->word != *armed_ns)
        return; /* an earlier one took its place */
    *armed_ns = UINT64_MAX;
    deadline_ns = swim ? shoal_swim_deadline_ns(host->swim) : shoal_sched_deadline_ns(host->sched);
    if (deadline_ns > sim_host_now(host))
        timer_arm(host, event->kind, deadline_ns, armed_ns);
    else if (swim)
        sim_swim_step(host, &(struct shoal_swim_event){ .kind = SHOAL_SWIM_TIMER });
    else
        sim_sched_step(host, &(struct shoal_sched_event){ .kind = SHOAL_SCHED_TIMER });
}

void sim_host_event(struct sim_host *host, struct sim_event *event)
{
    if (event->kind == SIM_EXIT || event->kind == SIM_WORK || event->kind == SIM_RUNNER_TIMER ||
        event->kind == SIM_TO_WORKER || event->kind == SIM_WATCH) {
        sim_worker_event(host, event);
        return;
    }
    if (!host->agent || (event->life != 0 && event->life != host->life))
        return;
    switch (event->kind) {
    case SIM_GOSSIP: on_gossip(host, event); break;
    case SIM_SUPPORT: on_support(host, event); break;
    case SIM_LINK: on_link(host, event); break;
    case SIM_WRITTEN: sim_written(host); break;
    case SIM_SWIM_TIMER:
    case SIM_SCHED_TIMER: on_timer(host, event); break;
    case SIM_HEALTH: on_health(host); break;
    case SIM_PUBLISH: on_publish(host, event); break;
    case SIM_ANSWER:
        if (event->answer->kind == SHOAL_SCHED_RESTORE)
            sim_disk_load(host, event->answer->u.restore.group);
        else
            sim_sched_step(host, event->answer);
        break;
    case SIM_RUNNERS: sim_runners_found(host); break;
    case SIM_TO_AGENT:
    case SIM_SLOT_IDLE: sim_worker_event(host, event); break;
    case SIM_SERVE_LOOK:
    case SIM_INFER_ASK:
    case SIM_INFER_WORD:
    case SIM_INFER_ANSWER:
    case SIM_KERNEL: sim_service_event(host, event); break;
    default: SHOAL_ASSERT(false);
    }
}

/* ---- requests ---- */

uint64_t sim_request(struct sim_host *host, struct shoal_sched_request *request, uint32_t job)
{
    struct sim *sim = host->sim;
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_REQUEST };

    sim->requests = sim_grow(sim->requests, &sim->request_cap, sim->request_count + 3, sizeof(*sim->requests));
    request->id = ++sim->request_count;
    sim->requests[request->id] = (struct sim_request){ .host = host->index,
                                                       .life = host->life,
                                                       .job = job,
                                                       .kind = request->kind,
                                                       .asked_ns = sim->now_ns,
                                                       .linearizable = request->linearizable,
                                                       .infer = sim->next_infer,
                                                       .edit = sim->requests[request->id].edit,
                                                       .revision = sim->requests[request->id].revision,
                                                       .read = sim->next_read,
                                                       .probe = sim->next_probe,
                                                       .want = sim->requests[request->id].want };
    event.u.request = *request;
    sim_sched_step(host, &event);
    return request->id;
}

static void ask_change(struct sim *sim, uint32_t at, enum shoal_sched_request_kind kind,
                       const struct shoal_mesh_command *command)
{
    struct shoal_sched_request request = { .kind = kind };
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    size_t len;
    enum shoal_err err = shoal_mesh_command_encode(command, bytes, sizeof(bytes), &len);

    SHOAL_ASSERT(err == SHOAL_OK);
    request.command = shoal_view_of(bytes, len);
    if (sim->hosts[at].agent)
        sim->mesh_request = sim_request(&sim->hosts[at], &request, UINT32_MAX);
}

void sim_drain(struct sim_host *host, bool on)
{
    host->draining = on; /* its own word, which outlives its agent */
    sim_trace(host->sim, "%s is drained%s", host->name, on ? "" : " no more");
    if (host->agent)
        publish_facts(host);
}

void sim_remove(struct sim *sim, uint32_t at)
{
    const struct shoal_mesh_command command = { .kind = SHOAL_MESH_EVICT, .now_s = 1, .node = sim->hosts[at].id };
    uint32_t other = 0;

    while (other < sim->host_count && (other == at || !sim->hosts[other].agent))
        other++;
    sim_trace(sim, "%s is removed", sim->hosts[at].name);
    if (other < sim->host_count) {
        ask_change(sim, other, SHOAL_SCHED_MESH_CHANGE, &command);
        sim->requests[sim->mesh_request].removal = true;
    }
}

void sim_recover_mesh(struct sim *sim, uint32_t at)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_RECOVER, .of_mesh = true, .confirmed = true };

    sim_trace(sim, "the mesh group is recovered, asked of %s", sim->hosts[at].name);
    if (sim->hosts[at].agent)
        (void)sim_request(&sim->hosts[at], &request, UINT32_MAX);
}

/* Found the mesh, or add a user to it. */
void sim_ask_mesh(struct sim *sim, uint32_t at, const char *user)
{
    struct shoal_mesh_command command = { .kind = user == NULL ? SHOAL_MESH_INIT : SHOAL_MESH_ADD_USER, .now_s = 1 };

    (void)snprintf(command.name, sizeof(command.name), "simulated");
    (void)snprintf(command.user.name, sizeof(command.user.name), "%.63s", user == NULL ? "admin" : user);
    (void)snprintf(command.user.password, sizeof(command.user.password), "x");
    command.user.admin = user == NULL;
    ask_change(sim, at, user == NULL ? SHOAL_SCHED_MESH_INIT : SHOAL_SCHED_MESH_CHANGE, &command);
}

/* ---- life ---- */

void sim_host_init(struct sim *sim, uint32_t index)
{
    struct sim_host *host = &sim->hosts[index];
    struct shoal_rand rand;

    host->sim = sim;
    host->index = index;
    host->slots = sim->options.slots;
    (void)snprintf(host->name, sizeof(host->name), "h%u", index + 1);
    sim_stream(sim, &rand, "identity", index, 0);
    for (unsigned i = 0; i < 32; i++)
        host->key.bytes[i] = (uint8_t)shoal_rand_u64(&rand);
    for (unsigned i = 0; i < 16; i++)
        host->store.bytes[i] = (uint8_t)shoal_rand_u64(&rand);
    host->id = toy_node(host->key.bytes);
    sim_map_put(&sim->host_index, node_key(host->id), index + 1);
    host->address.ip[10] = host->address.ip[11] = 0xff;
    host->address.ip[12] = 10;
    host->address.ip[13] = (uint8_t)((index + 1) >> 16);
    host->address.ip[14] = (uint8_t)((index + 1) >> 8);
    host->address.ip[15] = (uint8_t)(index + 1);
    host->address.port = 7000;
    host->disk.flush_ns = sim->options.flush_ns;
    sim_stream(sim, &host->disk.chance, "disk", index, 0);
    sim_stream(sim, &host->disk.file_chance, "files", index, 0);
    sim_stream(sim, &host->chance, "host", index, 0);
    if (sim->options.drift_ppm > 0)
        host->drift_ppm = (int64_t)shoal_rand_below(&rand, 2 * sim->options.drift_ppm + 1) - sim->options.drift_ppm;
    sim_stream(sim, &rand, "wall", index, 0);
    host->wall_ms = index * 3;
    if (sim->options.wall_ns > 0)
        host->wall_ms += (int64_t)shoal_rand_below(&rand, 2 * sim->options.wall_ns / SHOAL_MS + 1) -
                         (int64_t)(sim->options.wall_ns / SHOAL_MS);
}

static void sched_create(struct sim_host *host)
{
    struct shoal_sched_options options = { .self = host->id,
                                           .store = host->store,
                                           .incarnation = host->incarnation,
                                           .start_ns = sim_host_now(host),
                                           .groups_max = 128,
                                           .loaded_max = host->sim->options.loaded_max,
                                           .archive_ns = host->sim->options.archive_ns,
                                           .slots = host->slots,
                                           .reattaches = true,
                                           .peer_count = host->disk.peer_count };
    enum shoal_err err;

    memcpy(options.peers, host->disk.peers, sizeof(options.peers));
    memcpy(options.public_key, host->key.bytes, sizeof(options.public_key));
    options.env = (struct shoal_sched_env){
        .arg = host, .hash = toy_hash, .sign = sched_sign, .verify = sched_verify, .node_of_key = sched_node_of_key
    };
    sim_stream(host->sim, &options.chance, "sched", host->index, host->life);
    err = shoal_sched_create(&host->sched, &options);
    SHOAL_ASSERT(err == SHOAL_OK);
}

static void swim_create(struct sim_host *host)
{
    struct sim *sim = host->sim;
    struct shoal_swim_options options = { .id = host->id,
                                          .public_key = host->key,
                                          .store = host->store,
                                          .host_epoch = host->incarnation.host_epoch,
                                          .agent = host->incarnation.agent,
                                          .address = host->address,
                                          .link_port = 7000,
                                          .http_port = 7001,
                                          .pool = sim->pool,
                                          .members_max = sim->host_count <= 32 ? 64 : 2 * sim->host_count,
                                          .records_max = sim->host_count <= 32 ? 1024 : 1024 + 8 * sim->host_count };
    struct shoal_address seeds[SHOAL_SWIM_SEEDS_MAX];
    struct shoal_swim_event event = { .kind = SHOAL_SWIM_JOIN };
    struct shoal_rand rand;
    struct shoal_msg msg;
    enum shoal_err err;

    options.env =
        (struct shoal_swim_env){ .arg = host, .sign = swim_sign, .verify = swim_verify, .node_id = swim_node_id };
    (void)snprintf(options.name, sizeof(options.name), "%s", host->name);
    sim_stream(sim, &rand, "swim", host->index, host->life);
    options.seed = shoal_rand_u64(&rand);
    err = shoal_swim_create(&host->swim, &options, &msg);
    SHOAL_ASSERT(err == SHOAL_OK);
    for (uint32_t i = 0; i < sim->host_count && event.join.count < SHOAL_SWIM_SEEDS_MAX; i++)
        if (i != host->index && sim->hosts[i].exists)
            seeds[event.join.count++] = sim->hosts[i].address;
    event.join.addresses = seeds;
    if (event.join.count > 0)
        sim_swim_step(host, &event);
}

void sim_agent_start(struct sim_host *host)
{
    struct sim *sim = host->sim;
    struct shoal_member self;

    if (!host->powered || host->agent)
        return;
    host->life++;
    host->incarnation.agent++;
    host->agent = true;
    host->runners_found = false;
    host->paused_ns = 0;
    host->swim_timer_ns = host->sched_timer_ns = UINT64_MAX;
    host->record_sequence = 0;
    host->health_due_ns = sim->now_ns + HEALTH_NS;
    sim->restarts += host->life > 1;
    sim_trace(sim, "%s: the agent starts, life %u", host->name, host->life);
    sched_create(host);
    sim_disk_restore(host);
    (void)sim_push(sim, SIM_RUNNERS, host->index, 5 * SHOAL_MS);
    swim_create(host);
    publish_facts(host);
    shoal_swim_self(host->swim, &self);
    node_event(host, &self);
    (void)sim_push(sim, SIM_HEALTH, host->index, HEALTH_NS);
    sim_service_start(host);
    timer_arm(host, SIM_SWIM_TIMER, shoal_swim_deadline_ns(host->swim), &host->swim_timer_ns);
}

void sim_host_boot(struct sim_host *host)
{
    if (host->destroyed)
        return;
    if (host->powered) {
        sim_agent_start(host);
        return;
    }
    host->exists = true;
    host->powered = true;
    host->boot_true_ns = host->sim->now_ns;
    host->incarnation.host_epoch++;
    sim_agent_start(host);
}

static void agent_end(struct sim_host *host, bool powered)
{
    host->agent = false;
    host->life++; /* nothing of this life arrives in the next */
    sim_disk_crash(host);
    sim_files_end(host, powered);
    sim_service_end(host);
    shoal_sched_destroy(host->sched);
    shoal_swim_destroy(host->swim);
    host->sched = NULL;
    host->swim = NULL;
    sim_check_forget(host);
    sim_links_lost(host->sim, host->index, powered);
    for (struct sim_worker *worker = host->workers; worker != NULL; worker = worker->next)
        worker->connected = false;
}

void sim_agent_kill(struct sim_host *host)
{
    if (!host->agent)
        return;
    sim_trace(host->sim, "%s: the agent is killed", host->name);
    agent_end(host, true);
}

void sim_host_crash(struct sim_host *host)
{
    if (!host->powered)
        return;
    sim_trace(host->sim, "%s: the power fails", host->name);
    if (host->agent)
        agent_end(host, false);
    else
        sim_files_end(host, false);
    host->powered = false;
    if (shoal_rand_below(&host->chance, 2) == 0)
        shoal_buf_deinit(&host->disk.slots_copy); /* it had not been flushed */
    sim_workers_crash(host);
}

bool sim_may_lose(struct sim *sim, uint32_t lost)
{
    struct shoal_sched_group_status status;
    uint32_t whole = 0;

    for (uint32_t i = 0; i < sim->host_count; i++) {
        const struct sim_host *host = &sim->hosts[i];

        whole += host->agent && i != lost;
        if (host->exists && !host->agent)
            return false; /* it may hold what the lost one has, and nobody can ask it */
        for (size_t g = 0; host->agent && shoal_sched_group_at(host->sched, g, &status); g++) {
            unsigned kept = 0;

            for (unsigned v = 0; v < status.voters; v++) {
                uint32_t voter = sim_host_find(sim, status.guardians[v]);

                kept += voter != lost && voter != UINT32_MAX && !sim->hosts[voter].destroyed;
            }
            if (2 * kept <= status.voters || status.learners > 0 || (status.leads && status.changing))
                return false; /* a change under way may need it */
        }
    }
    return whole >= 2;
}

void sim_host_destroy(struct sim_host *host)
{
    sim_host_crash(host);
    sim_disk_destroy(host);
    sim_trace(host->sim, "%s is destroyed", host->name);
    host->exists = false;
    host->destroyed = true;
}
