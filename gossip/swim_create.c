/* Gossip's core is made with its bounds checked, and unmade. The rules of its tables: swim_table.c, swim_members.c, records.c. */
#include "shoal/gossip.h"

#include "swim_state.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

static void default_u32(uint32_t *value, uint32_t standard)
{
    SHOAL_ASSERT(standard > 0); /* 0 asks for the standard */
    *value = *value == 0 ? standard : *value;
}

static void default_u64(uint64_t *value, uint64_t standard)
{
    SHOAL_ASSERT(standard > 0); /* the same */
    *value = *value == 0 ? standard : *value;
}

static void fill_defaults(struct shoal_swim_options *opt)
{
    default_u32(&opt->members_max, SHOAL_MEMBERS_MAX);
    default_u32(&opt->records_max, SHOAL_RECORDS_MAX);
    default_u32(&opt->suspicions_max, SHOAL_SUSPICIONS_MAX);
    default_u32(&opt->queue_max, SHOAL_GOSSIP_QUEUE_MAX);
    default_u64(&opt->probe_interval_ns, 500 * SHOAL_MS);
    default_u64(&opt->ack_wait_min_ns, 100 * SHOAL_MS);
    default_u64(&opt->ack_wait_max_ns, 250 * SHOAL_MS);
    default_u64(&opt->gossip_interval_ns, 200 * SHOAL_MS);
    default_u64(&opt->gossip_eager_ns, 50 * SHOAL_MS);
    default_u64(&opt->sync_interval_ns, 10 * SHOAL_S);
    default_u64(&opt->grace_ns, 600 * SHOAL_S);
    default_u64(&opt->reconnect_interval_ns, 5 * SHOAL_S);
    default_u32(&opt->helpers, 3);
    default_u32(&opt->confirmations, 3);
    default_u32(&opt->suspicion_tenths, 25);
    default_u32(&opt->suspicion_max_factor, 6);
    default_u32(&opt->fanout, 3);
    default_u32(&opt->retransmit, 4);
}

static enum shoal_err check_bounds(const struct shoal_swim_options *opt, struct shoal_msg *msg)
{
    struct {
        const char *name;
        uint64_t value, min, max;
    } bounds[] = {
        { "members_max", opt->members_max, 2, UINT32_MAX / 4 },
        { "records_max", opt->records_max, 1, UINT32_MAX / 4 },
        { "suspicions_max", opt->suspicions_max, 1, UINT16_MAX - 1 },
        { "queue_max", opt->queue_max, 8, SWIM_QUEUE_BOUND },
        { "probe_interval_ns", opt->probe_interval_ns, 10 * SHOAL_MS, 60 * SHOAL_S },
        { "ack_wait_min_ns", opt->ack_wait_min_ns, SHOAL_MS, opt->ack_wait_max_ns },
        { "ack_wait_max_ns", opt->ack_wait_max_ns, SHOAL_MS, opt->probe_interval_ns * 3 / 4 },
        { "gossip_interval_ns", opt->gossip_interval_ns, SHOAL_MS, 60 * SHOAL_S },
        { "gossip_eager_ns", opt->gossip_eager_ns, SHOAL_MS, opt->gossip_interval_ns },
        { "sync_interval_ns", opt->sync_interval_ns, 100 * SHOAL_MS, 3600 * SHOAL_S },
        { "grace_ns", opt->grace_ns, 10 * SHOAL_S, 24 * 3600 * SHOAL_S },
        { "reconnect_interval_ns", opt->reconnect_interval_ns, 100 * SHOAL_MS, 3600 * SHOAL_S },
        { "helpers", opt->helpers, 1, SWIM_HELPERS_MAX },
        { "confirmations", opt->confirmations, 1, SWIM_CONFIRMATIONS_MAX },
        { "suspicion_tenths", opt->suspicion_tenths, 10, 1000 },
        { "suspicion_max_factor", opt->suspicion_max_factor, 1, 100 },
        { "fanout", opt->fanout, 1, SWIM_FANOUT_MAX },
        { "retransmit", opt->retransmit, 1, 100 },
    };

    for (size_t i = 0; i < sizeof(bounds) / sizeof(bounds[0]); i++)
        if (bounds[i].value < bounds[i].min || bounds[i].value > bounds[i].max)
            return shoal_fail(msg, SHOAL_ERR_INVALID, "gossip: %s is %llu, must be from %llu to %llu", bounds[i].name,
                              (unsigned long long)bounds[i].value, (unsigned long long)bounds[i].min,
                              (unsigned long long)bounds[i].max);
    return SHOAL_OK;
}

static enum shoal_err check_options(const struct shoal_swim_options *opt, struct shoal_msg *msg)
{
    struct shoal_node_id id;

    if (opt->pool == NULL || opt->env.sign == NULL || opt->env.verify == NULL || opt->env.node_id == NULL)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "gossip: a pool and an environment are needed");
    if (memchr(opt->name, 0, sizeof(opt->name)) == NULL)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "gossip: the name is longer than %d bytes",
                          SHOAL_GOSSIP_NAME_BYTES - 1);
    id = opt->env.node_id(opt->env.arg, &opt->public_key);
    if (!shoal_node_id_equal(id, opt->id) || shoal_node_id_is_zero(id))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "gossip: the node id does not belong to the public key");
    return check_bounds(opt, msg);
}

static bool chains_create(struct swim_chains *chains, uint32_t items_max)
{
    chains->bits = 8;
    while (chains->bits < 24 && 1u << chains->bits < items_max / 2)
        chains->bits++;
    SHOAL_ASSERT(chains->bits >= 8 && chains->bits <= 24); /* a bucket of anti-entropy is a range of chains */
    chains->heads = malloc(sizeof(*chains->heads) << chains->bits);
    if (chains->heads == NULL)
        return false;
    memset(chains->heads, 0xff, sizeof(*chains->heads) << chains->bits); /* SWIM_NONE */
    return true;
}

static bool tables_create(struct shoal_swim *swim)
{
    const struct shoal_swim_options *opt = &swim->opt;

    swim->members = calloc(opt->members_max, sizeof(*swim->members));
    swim->order = calloc(opt->members_max, sizeof(*swim->order));
    swim->records = calloc(opt->records_max, sizeof(*swim->records));
    swim->suspicions = calloc(opt->suspicions_max, sizeof(*swim->suspicions));
    swim->members_free = swim->records_free = SWIM_NONE;
    return swim->members != NULL && swim->order != NULL && swim->records != NULL && swim->suspicions != NULL &&
           swim_queue_create(&swim->queue_members, opt->queue_max) &&
           swim_queue_create(&swim->queue_records, opt->queue_max) &&
           chains_create(&swim->member_chains, opt->members_max) &&
           chains_create(&swim->record_chains, opt->records_max);
}

enum shoal_err shoal_swim_create(struct shoal_swim **swim, const struct shoal_swim_options *options,
                                 struct shoal_msg *msg)
{
    struct shoal_swim_options opt = *options;
    struct shoal_swim *made;
    enum shoal_err err;

    fill_defaults(&opt);
    err = check_options(&opt, msg);
    if (err != SHOAL_OK)
        return err;
    made = calloc(1, sizeof(*made));
    if (made == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "gossip: no memory");
    made->opt = opt;
    made->pool = opt.pool;
    shoal_rand_init(&made->chance, opt.seed);
    made->seq = (uint32_t)shoal_rand_u64(&made->chance);
    made->session.id = (uint32_t)shoal_rand_u64(&made->chance);
    made->joined = true;
    if (!tables_create(made) || !swim_self_card(made, 0, false)) {
        shoal_swim_destroy(made);
        return shoal_fail(msg, SHOAL_ERR_FULL, "gossip: no memory for %u members and %u records", opt.members_max,
                          opt.records_max);
    }
    SHOAL_ASSERT(made->members_count == 1 && shoal_node_id_equal(swim_id_of(made, SWIM_SELF), opt.id)); /* T5 */
    *swim = made;
    return SHOAL_OK;
}

static void queue_destroy(struct shoal_swim *swim, struct swim_queue *queue)
{
    SHOAL_ASSERT(queue->count <= queue->max); /* N3 */
    for (uint32_t i = 0; i < queue->count; i++)
        gossip_pool_unref(swim->pool, queue->items[i].blob);
    swim_queue_deinit(queue);
}

void swim_release_retired(struct shoal_swim *swim)
{
    SHOAL_ASSERT(swim->retired_count <= SWIM_RETIRED_MAX); /* R7 of records.c */
    while (swim->retired_count > 0)
        gossip_pool_unref(swim->pool, swim->retired[--swim->retired_count]);
}

void shoal_swim_destroy(struct shoal_swim *swim)
{
    if (swim == NULL)
        return;
    swim_release_retired(swim);
    for (uint32_t i = 0; i < swim->members_used; i++)
        gossip_pool_unref(swim->pool, swim->members[i].card);
    for (uint32_t i = 0; i < swim->records_used; i++)
        gossip_pool_unref(swim->pool, swim->records[i].blob);
    for (uint32_t i = 0; i < swim->suspicion_count; i++)
        gossip_pool_unref(swim->pool, swim->suspicions[i].blob);
    queue_destroy(swim, &swim->queue_members);
    queue_destroy(swim, &swim->queue_records);
    free(swim->members);
    free(swim->order);
    free(swim->records);
    free(swim->suspicions);
    free(swim->member_chains.heads);
    free(swim->record_chains.heads);
    free(swim);
}

void shoal_swim_memory(struct shoal_memory *memory)
{
    struct shoal_swim_options opt = { .members_max = 0 };

    fill_defaults(&opt);
    SHOAL_ASSERT(opt.members_max == SHOAL_MEMBERS_MAX && opt.records_max == SHOAL_RECORDS_MAX);
    shoal_memory_add(memory, "gossip: the core", 1, sizeof(struct shoal_swim));
    shoal_memory_add(memory, "gossip: members, with their place in the probe order", opt.members_max,
                     sizeof(struct swim_member) + sizeof(uint32_t));
    shoal_memory_add(memory, "gossip: records", opt.records_max, sizeof(struct swim_held_record));
    shoal_memory_add(memory, "gossip: chains of members and records", (opt.members_max + opt.records_max) / 2,
                     sizeof(uint32_t));
    shoal_memory_add(memory, "gossip: suspicions", opt.suspicions_max, sizeof(struct swim_suspicion));
    shoal_memory_add(memory, "gossip: news in two queues", 2ull * opt.queue_max,
                     sizeof(struct swim_news) + sizeof(struct swim_turn));
    gossip_pool_memory(memory);
}
