/* The control plane's records in gossip: see control_record.h. Only gossip's types are used here, none of its
 * functions. */
#include "shoal/control_record.h"

#include "shoal/slots.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

#define FACTS_VERSION 1
#define LOAD_VERSION 1
/* In the last word of a tombstone's version: the job is in the archive. No later summary has a higher one. */
#define ARCHIVED_BIT ((uint64_t)1 << 63)

enum shoal_err shoal_facts_record_encode(const struct shoal_facts_record *facts, uint8_t *bytes, size_t cap,
                                         size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    shoal_put_u8(&w, FACTS_VERSION);
    shoal_put_u32(&w, facts->cpus);
    shoal_put_bool(&w, facts->simulated);
    shoal_put_text(&w, facts->domain);
    shoal_put_text(&w, facts->numeric_class);
    shoal_put_text(&w, facts->api_url);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_facts_record_decode(struct shoal_view bytes, struct shoal_facts_record *facts)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_facts_record decoded = { 0 };

    if (shoal_get_u8(&r) == 0)
        return SHOAL_ERR_MALFORMED;
    decoded.cpus = shoal_get_u32(&r);
    decoded.simulated = shoal_get_bool(&r);
    shoal_get_text(&r, decoded.domain, sizeof(decoded.domain));
    shoal_get_text(&r, decoded.numeric_class, sizeof(decoded.numeric_class));
    shoal_get_text(&r, decoded.api_url, sizeof(decoded.api_url));
    if (r.failed)
        return SHOAL_ERR_MALFORMED;
    *facts = decoded;
    return SHOAL_OK;
}

enum shoal_err shoal_load_record_encode(const struct shoal_load_record *load, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    SHOAL_ASSERT(load->count <= SHOAL_LOAD_JOBS_MAX);
    shoal_put_u8(&w, LOAD_VERSION);
    shoal_put_u32(&w, load->load_milli);
    shoal_put_u8(&w, load->count);
    for (unsigned i = 0; i < load->count; i++) {
        shoal_put_job_id(&w, load->jobs[i].job);
        shoal_put_u32(&w, load->jobs[i].pause_us);
    }
    shoal_put_u64(&w, load->archive);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_load_record_decode(struct shoal_view bytes, struct shoal_load_record *load)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_load_record decoded = { 0 };

    if (shoal_get_u8(&r) == 0)
        return SHOAL_ERR_MALFORMED;
    decoded.load_milli = shoal_get_u32(&r);
    decoded.count = shoal_get_enum(&r, SHOAL_LOAD_JOBS_MAX + 1);
    for (unsigned i = 0; i < decoded.count; i++) {
        decoded.jobs[i].job = shoal_get_job_id(&r);
        decoded.jobs[i].pause_us = shoal_get_u32(&r);
    }
    if (shoal_reader_left(&r) > 0) /* earlier versions ended here */
        decoded.archive = shoal_get_u64(&r);
    if (r.failed)
        return SHOAL_ERR_MALFORMED;
    *load = decoded;
    return SHOAL_OK;
}

void shoal_control_publish(const struct shoal_sched_action *action, struct shoal_record *record)
{
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
    } else {
        SHOAL_ASSERT(action->kind == SHOAL_SCHED_PUBLISH_SLOTS);
    }
}

static enum shoal_sched_node_state node_state(enum shoal_member_state state)
{
    switch (state) {
    case SHOAL_MEMBER_ALIVE: return SHOAL_SCHED_NODE_ALIVE;
    case SHOAL_MEMBER_SUSPECT: return SHOAL_SCHED_NODE_SUSPECT;
    case SHOAL_MEMBER_LEFT: return SHOAL_SCHED_NODE_LEFT;
    case SHOAL_MEMBER_DEAD:
    case SHOAL_MEMBER_NONE:
    case SHOAL_MEMBER_STATES: break;
    }
    return SHOAL_SCHED_NODE_DEAD;
}

static void node_slots(struct shoal_sched_node *node, const struct shoal_record *record)
{
    struct shoal_slots_record slots;

    if (record == NULL || record->tombstone || shoal_slots_record_decode(record->payload, &slots) != SHOAL_OK)
        return;
    node->slots = slots.slots;
    node->slots_free = slots.free;
    node->device = slots.device == SHOAL_JOB_DEVICE_GPU ? SHOAL_SCHED_GPU : SHOAL_SCHED_CPU;
    node->slot_stamp = slots.stamp;
    node->record_seq = slots.version;
}

static void node_facts(struct shoal_sched_node *node, const struct shoal_record *record)
{
    struct shoal_facts_record facts;

    if (record == NULL || record->tombstone || shoal_facts_record_decode(record->payload, &facts) != SHOAL_OK)
        return;
    node->cpus = facts.cpus;
    memcpy(node->domain, facts.domain, sizeof(node->domain));
    memcpy(node->numeric_class, facts.numeric_class, sizeof(node->numeric_class));
}

void shoal_control_node(const struct shoal_member *member, const struct shoal_record *slots,
                        const struct shoal_record *facts, struct shoal_sched_event *event)
{
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
    switch (record->kind) {
    case SHOAL_RECORD_JOB_SUMMARY:
        *event = (struct shoal_sched_event){ .kind = SHOAL_SCHED_SUMMARY };
        memcpy(event->u.summary.job.bytes, record->key.bytes, sizeof(event->u.summary.job.bytes));
        event->u.summary.payload = record->tombstone ? (struct shoal_view){ 0 } : record->payload;
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
