/* The control plane's records in gossip: see control_record.h. Only gossip's types are used here, none of its
 * functions. */
#include "shoal/control_record.h"

#include "shoal/pack.h"
#include "shoal/slots.h"

#include "shoal/banned.h"

#define VERSION 2 /* of facts and load; 1 was a fixed layout */
#define OLDEST 2
/* In the last word of a tombstone's version: the job is in the archive. No later summary has a higher one. */
#define ARCHIVED_BIT ((uint64_t)1 << 63)

static const struct shoal_pack_field facts_fields[] = {
    SHOAL_PACK_TEXT(struct shoal_facts_record, "api_url", api_url),
    SHOAL_PACK_TEXT(struct shoal_facts_record, "class", numeric_class),
    SHOAL_PACK_ROW(struct shoal_facts_record, "cpus", U32, cpus, UINT32_MAX),
    SHOAL_PACK_TEXT(struct shoal_facts_record, "domain", domain),
    SHOAL_PACK_ROW(struct shoal_facts_record, "drained", BOOL, drained, 1),
    SHOAL_PACK_ROW(struct shoal_facts_record, "draining", BOOL, draining, 1),
    SHOAL_PACK_ROW(struct shoal_facts_record, "mesh_config", U64, mesh_config, UINT64_MAX),
    SHOAL_PACK_ROW(struct shoal_facts_record, "mesh_version", U64, mesh_version, UINT64_MAX),
    SHOAL_PACK_ROW(struct shoal_facts_record, "rules", U32, rules, UINT32_MAX),
    SHOAL_PACK_ROW(struct shoal_facts_record, "serves", U32, serves, UINT32_MAX),
    SHOAL_PACK_ROW(struct shoal_facts_record, "simulated", BOOL, simulated, 1),
    SHOAL_PACK_ROW(struct shoal_facts_record, "workers", U32, job_workers, UINT32_MAX),
};
static const struct shoal_pack_table facts_table = SHOAL_PACK_TABLE(facts_fields);

enum shoal_err shoal_facts_record_encode(const struct shoal_facts_record *facts, uint8_t *bytes, size_t cap,
                                         size_t *len)
{
    struct shoal_pack_head head = { SHOAL_PACK_KIND_FACTS, VERSION, OLDEST };

    SHOAL_ASSERT(len != NULL && cap > 0);
    return shoal_pack_encode(head, &facts_table, facts, bytes, cap, len);
}

enum shoal_err shoal_facts_record_decode(struct shoal_view bytes, struct shoal_facts_record *facts)
{
    struct shoal_facts_record decoded = { 0 };
    enum shoal_err err = shoal_pack_decode(bytes, SHOAL_PACK_KIND_FACTS, VERSION, &facts_table, &decoded);

    SHOAL_ASSERT(facts != NULL);
    if (err == SHOAL_OK)
        *facts = decoded;
    return err;
}

/* One array: a job, its pause, a job, its pause. */
static bool put_pauses(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_load_record *load = base;

    SHOAL_ASSERT(load->count <= SHOAL_LOAD_JOBS_MAX); /* what is written can be read */
    if (w == NULL || load->count == 0)
        return load->count > 0;
    shoal_pack_put_array(w, 2u * load->count);
    for (unsigned i = 0; i < load->count; i++) {
        shoal_pack_put_bin(w, shoal_view_of(load->jobs[i].job.bytes, sizeof(load->jobs[i].job.bytes)));
        shoal_pack_put_u64(w, load->jobs[i].pause_us);
    }
    return true;
}

static void get_pauses(struct shoal_pack_reader *r, void *base)
{
    struct shoal_load_record *load = base;
    uint32_t count = shoal_pack_get_array(r, 2 * SHOAL_LOAD_JOBS_MAX);

    SHOAL_ASSERT(load->count == 0); /* decoded into zeroes */
    if (count % 2 != 0)
        r->failed = true;
    for (unsigned i = 0; i < count / 2 && !r->failed; i++) {
        struct shoal_view job = shoal_pack_get_bin(r, sizeof(load->jobs[i].job.bytes));

        if (job.len == sizeof(load->jobs[i].job.bytes))
            memcpy(load->jobs[i].job.bytes, job.bytes, job.len);
        else
            r->failed = true;
        load->jobs[i].pause_us = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
    }
    load->count = (uint8_t)(count / 2);
}

static const struct shoal_pack_field load_fields[] = {
    SHOAL_PACK_ROW(struct shoal_load_record, "archive", U64, archive, UINT64_MAX),
    SHOAL_PACK_ROW(struct shoal_load_record, "load_milli", U32, load_milli, UINT32_MAX),
    SHOAL_PACK_OWN("pauses_us", put_pauses, get_pauses),
};
static const struct shoal_pack_table load_table = SHOAL_PACK_TABLE(load_fields);

enum shoal_err shoal_load_record_encode(const struct shoal_load_record *load, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_pack_head head = { SHOAL_PACK_KIND_LOAD, VERSION, OLDEST };

    SHOAL_ASSERT(load->count <= SHOAL_LOAD_JOBS_MAX); /* what is written can be read */
    return shoal_pack_encode(head, &load_table, load, bytes, cap, len);
}

enum shoal_err shoal_load_record_decode(struct shoal_view bytes, struct shoal_load_record *load)
{
    struct shoal_load_record decoded = { 0 };
    enum shoal_err err = shoal_pack_decode(bytes, SHOAL_PACK_KIND_LOAD, VERSION, &load_table, &decoded);

    SHOAL_ASSERT(load != NULL);
    if (err == SHOAL_OK)
        *load = decoded;
    return err;
}

/* One array: a job and its three numbers, the next job, ... */
#define SERVING_VALUES 4

static bool put_serving(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_serving_record *serving = base;

    SHOAL_ASSERT(serving->count <= SHOAL_SERVING_MAX); /* what is written can be read */
    if (w == NULL || serving->count == 0)
        return serving->count > 0;
    shoal_pack_put_array(w, SERVING_VALUES * serving->count);
    for (unsigned i = 0; i < serving->count; i++) {
        const struct shoal_serving *s = &serving->services[i];

        shoal_pack_put_bin(w, shoal_view_of(s->job.bytes, sizeof(s->job.bytes)));
        shoal_pack_put_u64(w, s->ready);
        shoal_pack_put_u64(w, s->room);
        shoal_pack_put_u64(w, s->open);
    }
    return true;
}

static void get_serving(struct shoal_pack_reader *r, void *base)
{
    struct shoal_serving_record *serving = base;
    uint32_t count = shoal_pack_get_array(r, SERVING_VALUES * SHOAL_SERVING_MAX);

    SHOAL_ASSERT(serving->count == 0); /* decoded into zeroes */
    if (count % SERVING_VALUES != 0)
        r->failed = true;
    for (unsigned i = 0; i < count / SERVING_VALUES && !r->failed; i++) {
        struct shoal_serving *s = &serving->services[i];
        struct shoal_view job = shoal_pack_get_bin(r, sizeof(s->job.bytes));

        if (job.len == sizeof(s->job.bytes))
            memcpy(s->job.bytes, job.bytes, job.len);
        else
            r->failed = true;
        s->ready = (uint32_t)shoal_pack_get_u64(r, UINT16_MAX);
        s->room = (uint32_t)shoal_pack_get_u64(r, UINT16_MAX);
        s->open = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
    }
    serving->count = (uint8_t)(count / SERVING_VALUES);
}

static bool put_pieces(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_serving_record *serving = base;

    if (w != NULL && serving->pieces)
        shoal_pack_put_u64(w, 1);
    return serving->pieces;
}

static void get_pieces(struct shoal_pack_reader *r, void *base)
{
    ((struct shoal_serving_record *)base)->pieces = shoal_pack_get_u64(r, UINT32_MAX) > 0;
}

/* One number for each of `services`, in their order. Where none is told, there is no such field. */
static bool put_seconds(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_serving_record *serving = base;
    bool told = false;

    for (unsigned i = 0; i < serving->count; i++)
        told = told || serving->services[i].limit_s > 0;
    if (w == NULL || !told)
        return told;
    shoal_pack_put_array(w, serving->count);
    for (unsigned i = 0; i < serving->count; i++)
        shoal_pack_put_u64(w, serving->services[i].limit_s);
    return true;
}

static void get_seconds(struct shoal_pack_reader *r, void *base)
{
    struct shoal_serving_record *serving = base;
    uint32_t count = shoal_pack_get_array(r, SHOAL_SERVING_MAX);

    for (unsigned i = 0; i < count && !r->failed; i++)
        serving->services[i].limit_s = (uint32_t)shoal_pack_get_u64(r, UINT32_MAX);
}

/* Answered, failed, of the next service answered, ... */
static bool put_ends(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_serving_record *serving = base;
    bool told = false;

    SHOAL_ASSERT(serving->count <= SHOAL_SERVING_MAX); /* what is written can be read */
    for (unsigned i = 0; i < serving->count; i++)
        told = told || serving->services[i].answered > 0 || serving->services[i].failed > 0;
    if (w == NULL || !told)
        return told;
    shoal_pack_put_array(w, 2u * serving->count);
    for (unsigned i = 0; i < serving->count; i++) {
        shoal_pack_put_u64(w, serving->services[i].answered);
        shoal_pack_put_u64(w, serving->services[i].failed);
    }
    return true;
}

static void get_ends(struct shoal_pack_reader *r, void *base)
{
    struct shoal_serving_record *serving = base;
    uint32_t count = shoal_pack_get_array(r, 2 * SHOAL_SERVING_MAX);

    SHOAL_ASSERT(serving->count == 0); /* "services" comes after it, into zeroes */
    if (count % 2 != 0)
        r->failed = true;
    for (unsigned i = 0; i < count / 2 && !r->failed; i++) {
        serving->services[i].answered = shoal_pack_get_u64(r, UINT64_MAX);
        serving->services[i].failed = shoal_pack_get_u64(r, UINT64_MAX);
    }
}

static const struct shoal_pack_field serving_fields[] = { SHOAL_PACK_OWN("ends", put_ends, get_ends),
                                                          SHOAL_PACK_OWN("pieces", put_pieces, get_pieces),
                                                          SHOAL_PACK_OWN("seconds", put_seconds, get_seconds),
                                                          SHOAL_PACK_OWN("services", put_serving, get_serving) };
static const struct shoal_pack_table serving_table = SHOAL_PACK_TABLE(serving_fields);

enum shoal_err shoal_serving_record_encode(const struct shoal_serving_record *serving, uint8_t *bytes, size_t cap,
                                           size_t *len)
{
    struct shoal_pack_head head = { SHOAL_PACK_KIND_SERVING, 1, 1 };

    SHOAL_ASSERT(serving->count <= SHOAL_SERVING_MAX); /* what is written can be read */
    return shoal_pack_encode(head, &serving_table, serving, bytes, cap, len);
}

enum shoal_err shoal_serving_record_decode(struct shoal_view bytes, struct shoal_serving_record *serving)
{
    struct shoal_serving_record decoded = { 0 };
    enum shoal_err err = shoal_pack_decode(bytes, SHOAL_PACK_KIND_SERVING, 1, &serving_table, &decoded);

    SHOAL_ASSERT(serving != NULL);
    if (err == SHOAL_OK)
        *serving = decoded;
    return err;
}

void shoal_control_publish(const struct shoal_sched_action *action, struct shoal_record *record)
{
    SHOAL_ASSERT(action->kind != SHOAL_SCHED_KEEP_MESH &&
                 action->kind != SHOAL_SCHED_KEEP_SLOTS); /* kept here, and not told */
    *record = (struct shoal_record){ .kind = SHOAL_RECORD_NODE_SLOTS, .payload = action->u.publish.payload };
    if (action->kind == SHOAL_SCHED_PUBLISH_SUMMARY) {
        record->kind = SHOAL_RECORD_JOB_SUMMARY;
        record->tombstone = action->u.summary.tombstone;
        memcpy(record->key.bytes, action->u.summary.job.bytes, sizeof(action->u.summary.job.bytes));
        record->version.word[0] = action->u.summary.version.config;
        record->version.word[1] = action->u.summary.version.term;
        record->version.word[2] = action->u.summary.version.applied | (action->u.summary.archived ? ARCHIVED_BIT : 0);
        record->payload = action->u.summary.payload;
    } else if (action->kind == SHOAL_SCHED_PUBLISH_MESH) {
        record->kind = SHOAL_RECORD_MESH_STATE;
        record->version.word[0] = action->u.publish.version;
        record->version.word[1] = action->u.publish.config;
    } else {
        SHOAL_ASSERT(action->kind == SHOAL_SCHED_PUBLISH_SLOTS);
    }
}

static enum shoal_sched_node_state node_state(enum shoal_member_state state)
{
    SHOAL_ASSERT(state < SHOAL_MEMBER_STATES);
    switch (state) {
    case SHOAL_MEMBER_ALIVE: return SHOAL_SCHED_NODE_ALIVE;
    case SHOAL_MEMBER_SUSPECT: return SHOAL_SCHED_NODE_SUSPECT;
    case SHOAL_MEMBER_LEFT: return SHOAL_SCHED_NODE_LEFT;
    case SHOAL_MEMBER_NONE: return SHOAL_SCHED_NODE_FORGOTTEN;
    case SHOAL_MEMBER_DEAD:
    case SHOAL_MEMBER_STATES: break;
    }
    return SHOAL_SCHED_NODE_DEAD;
}

static void node_slots(struct shoal_sched_node *node, const struct shoal_record *record)
{
    struct shoal_slots_record slots;

    SHOAL_ASSERT(node->slots == 0 && node->slots_free == 0); /* filled once, from zeroes */
    if (record == NULL || record->tombstone || shoal_slots_record_decode(record->payload, &slots) != SHOAL_OK)
        return;
    node->slots = slots.slots;
    node->device = slots.device == SHOAL_JOB_DEVICE_GPU ? SHOAL_SCHED_GPU : SHOAL_SCHED_CPU;
    if (slots.host_epoch != node->incarnation.host_epoch)
        return; /* of the boot before: its clock has begun anew, and what was free then says nothing */
    node->slots_free = slots.free;
    node->cards = slots.cards;
    node->slot_stamp = slots.stamp;
    node->record_seq = slots.version;
}

static void node_facts(struct shoal_sched_node *node, const struct shoal_record *record)
{
    struct shoal_facts_record facts;

    SHOAL_ASSERT(node->cpus == 0); /* filled once, from zeroes */
    if (record == NULL || record->tombstone || shoal_facts_record_decode(record->payload, &facts) != SHOAL_OK)
        return;
    node->cpus = facts.cpus;
    node->draining = facts.draining;
    node->rules = facts.rules;
    node->serves = facts.serves;
    node->job_workers = facts.job_workers;
    node->mesh_version = facts.mesh_version;
    node->mesh_config = facts.mesh_config;
    memcpy(node->domain, facts.domain, sizeof(node->domain));
    memcpy(node->numeric_class, facts.numeric_class, sizeof(node->numeric_class));
}

void shoal_control_node(const struct shoal_member *member, const struct shoal_record *slots,
                        const struct shoal_record *facts, struct shoal_sched_event *event)
{
    SHOAL_ASSERT(member->state < SHOAL_MEMBER_STATES);
    *event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_NODE };
    event->u.node.id = member->id;
    event->u.node.store = member->store;
    event->u.node.state = node_state(member->state);
    event->u.node.incarnation = member->incarnation;
    node_slots(&event->u.node, slots);
    node_facts(&event->u.node, facts);
}

bool shoal_control_heard(const struct shoal_record *record, struct shoal_sched_event *event)
{
    SHOAL_ASSERT(record->kind < SHOAL_RECORD_KINDS); /* gossip has decoded it */
    switch (record->kind) {
    case SHOAL_RECORD_JOB_SUMMARY:
        *event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_SUMMARY };
        memcpy(event->u.summary.job.bytes, record->key.bytes, sizeof(event->u.summary.job.bytes));
        event->u.summary.payload = record->tombstone ? (struct shoal_view){ 0 } : record->payload;
        event->u.summary.version = (struct shoal_sched_version){ record->version.word[0], record->version.word[1],
                                                                 record->version.word[2] & ~ARCHIVED_BIT };
        event->u.summary.archived = record->tombstone && (record->version.word[2] & ARCHIVED_BIT) != 0;
        return true;
    case SHOAL_RECORD_MESH_STATE:
        *event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_MESH_HEARD };
        event->u.mesh_heard.author = record->author;
        event->u.mesh_heard.payload = record->payload;
        return true;
    case SHOAL_RECORD_NODE_FACTS:
    case SHOAL_RECORD_NODE_SLOTS:
    case SHOAL_RECORD_NODE_LOAD:
    case SHOAL_RECORD_SERVICE:
    case SHOAL_RECORD_KINDS: break;
    }
    return false;
}
