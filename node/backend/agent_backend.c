/* The table behind the HTTP API (shoal/backend.h), and what it says of the mesh itself. The rest lies beside it:
 *
 *   backend_verbs.c    which job is meant, and who may ask       backend_list.c    lists, endings, deletion of all
 *   backend_jobs.c     get, stop, delete, recover, why           list_*.c          lists of the whole mesh
 *   backend_submit.c   submits and tickets                       backend_logs.c    logs, and who has a job's files
 *   backend_users.c    users and tokens                          backend_results.c results and ledgers
 *   backend_known.c    what is known of a job here               backend_looks.c   metrics and debug
 *   backend_nodes.c    hosts removed, the mesh group recovered   backend_files.c   what lies in a job's RESULT_DIR
 *   backend_curve.c    the loss curve */
#include "agent_backend.h"
#include "backend_services.h"

#include "backend_files.h"
#include "node/agent/agent_settings.h"

#include "shoal/control_record.h"
#include "shoal/slots.h"
#include "shoal/sched_look.h"
#include "shoal/job_facts.h"

#include "shoal/banned.h"

/* The host says this of its slots; all zero: nothing yet. */
static struct shoal_slots_record slots_of(struct agent *agent, struct shoal_node_id node)
{
    struct shoal_slots_record slots = { 0 };
    struct shoal_record record;

    if (!shoal_records_find(membership_swim(agent->membership), SHOAL_RECORD_NODE_SLOTS, node,
                            (struct shoal_record_key){ { 0 } }, &record) ||
        shoal_slots_record_decode(record.payload, &slots) != SHOAL_OK)
        slots = (struct shoal_slots_record){ 0 };
    return slots;
}

struct shoal_facts_record backend_facts_of(struct agent *agent, struct shoal_node_id node)
{
    struct shoal_facts_record facts = { 0 };
    struct shoal_record record;

    if (!shoal_records_find(membership_swim(agent->membership), SHOAL_RECORD_NODE_FACTS, node,
                            (struct shoal_record_key){ { 0 } }, &record) ||
        shoal_facts_record_decode(record.payload, &facts) != SHOAL_OK)
        facts = (struct shoal_facts_record){ 0 };
    return facts;
}

/* All but jobs_led. */
static void node_of(struct agent *agent, const struct shoal_member *member, struct shoal_node_info *info)
{
    static const char *const states[] = { "unknown", "alive", "suspect", "dead", "left" };
    struct shoal_slots_record slots = slots_of(agent, member->id);
    const struct shoal_facts_record facts = backend_facts_of(agent, member->id);
    uint32_t pause = 0;

    *info = (struct shoal_node_info){ .id = member->id, .incarnation = member->incarnation };
    (void)snprintf(info->name, sizeof(info->name), "%s", member->name);
    shoal_address_text(member->address, info->address);
    info->self = shoal_node_id_equal(member->id, agent->identity.node);
    (void)snprintf(info->state, sizeof(info->state), "%s",
                   !agent_admits(agent, member->id)      ? "removed"
                   : member->state < SHOAL_MEMBER_STATES ? states[member->state]
                                                         : "");
    info->age_ms = (agent_now_ns() - member->since_ns) / SHOAL_MS;
    info->slots_total = slots.slots;
    info->slots_free = (unsigned)__builtin_popcountll(slots.free);
    info->serves = facts.serves;
    info->shares_total = slots.cards.count * (slots.cards.shares + 1);
    info->gpus = slots.device == SHOAL_JOB_DEVICE_GPU ? slots.slots : 0;
    (void)agent_load_of(agent, member->id, (struct shoal_job_id){ { 0 } }, &info->load_milli, &pause);
    memcpy(info->api_url, facts.api_url, sizeof(info->api_url));
    if (member->state == SHOAL_MEMBER_ALIVE && facts.draining && agent_admits(agent, member->id))
        (void)snprintf(info->state, sizeof(info->state), "%s", facts.drained ? "drained" : "draining");
}

/* One walk over the jobs for all nodes. */
static void count_led(struct agent *agent, struct shoal_node_info *nodes, size_t count)
{
    static struct shoal_job_summary summary;
    uint32_t cursor = 0;

    while (backend_summary_next(agent, &cursor, &summary)) {
        size_t i = 0;

        if (shoal_job_state_ended((enum shoal_job_state)summary.state))
            continue;
        while (i < count && !shoal_node_id_equal(summary.leader, nodes[i].id))
            i++;
        if (i < count)
            nodes[i].jobs_led++;
    }
}

static size_t backend_nodes(void *ctx, struct shoal_node_info *nodes, size_t max)
{
    struct agent *agent = ctx;
    struct shoal_member member;
    uint32_t cursor = 0;
    size_t count = 0;

    while (shoal_swim_member_next(membership_swim(agent->membership), &cursor, &member)) {
        if (count < max)
            node_of(agent, &member, &nodes[count]);
        count++;
    }
    if (max > 0)
        count_led(agent, nodes, count < max ? count : max);
    return count;
}

/* Every job that is told of asks for this: no walk over jobs in here. */
static void backend_status(void *ctx, struct shoal_mesh_status *status)
{
    struct agent *agent = ctx;
    struct shoal_member member;
    uint32_t cursor = 0;

    *status = (struct shoal_mesh_status){ .node_id = agent->identity.node };
    (void)snprintf(status->version, sizeof(status->version), "%s", SHOAL_VERSION);
    (void)snprintf(status->node_name, sizeof(status->node_name), "%s", agent->settings.name);
    (void)snprintf(status->mesh_name, sizeof(status->mesh_name), "%s", agent->identity.mesh_name);
    agent_api_url(&agent->settings, shoal_http_port(agent->http), status->api_url);
    status->mesh_writable = shoal_sched_mesh_writable(agent->sched);
    while (shoal_swim_member_next(membership_swim(agent->membership), &cursor, &member)) {
        status->members_known++;
        if (member.state == SHOAL_MEMBER_ALIVE || member.state == SHOAL_MEMBER_SUSPECT)
            status->members_alive++;
        else if (member.state != SHOAL_MEMBER_LEFT && agent_admits(agent, member.id))
            status->members_silent++;
    }
}

static void services_look(struct agent *agent)
{
    backend_infer_look(agent);
    if (agent->stopping)
        backend_scale_end(agent);
    else
        backend_scale_look(agent);
}

void agent_backend(struct agent *agent, struct shoal_backend *backend)
{
    agent->services_look = services_look;
    agent->services_held = backend_infer_held;
    agent->services_down = backend_infer_down;
    *backend = (struct shoal_backend){ .ctx = agent,
                                       .submit = backend_service_submit,
                                       .ticket_new = backend_ticket,
                                       .get = backend_get,
                                       .list = backend_list,
                                       .stop = backend_stop,
                                       .del = backend_del,
                                       .recover = backend_recover,
                                       .node_change = backend_node_change,
                                       .mesh_recover = backend_mesh_recover,
                                       .delete_all = backend_delete_all,
                                       .log_read = backend_log_read,
                                       .result_open = backend_result_open,
                                       .result_read = backend_result_read,
                                       .result_close = backend_result_close,
                                       .ledger = backend_ledger,
                                       .curve = backend_curve,
                                       .why = backend_why,
                                       .tasks = backend_tasks,
                                       .bundle_open = backend_bundle_open,
                                       .infer = backend_infer,
                                       .infer_more = backend_infer_more,
                                       .infer_cancel = backend_infer_cancel,
                                       .services = backend_services,
                                       .runtimes = backend_runtimes,
                                       .runtime_set = backend_runtime_set,
                                       .service_look = backend_service_look,
                                       .service_edit = backend_service_edit,
                                       .service_canary = backend_service_canary,
        .service_kernels = backend_service_kernels,
                                       .service_change = backend_service_change,
                                       .logon = backend_logon,
                                       .logoff = backend_logoff,
                                       .user_find = backend_user_find,
                                       .token_keys = backend_token_keys,
                                       .token_revoked = backend_token_revoked,
                                       .frameworks = backend_frameworks,
                                       .nodes = backend_nodes,
                                       .status = backend_status,
                                       .metrics = backend_metrics,
                                       .debug = backend_debug };
    peer_serve(agent->calls, PEER_LOG_READ, backend_serve_log, agent);
    peer_serve(agent->calls, PEER_NODE_VERB, backend_serve_node, agent);
    peer_serve(agent->calls, PEER_LEDGER, backend_serve_ledger, agent);
    peer_serve(agent->calls, PEER_RESULT_FILES, backend_serve_files, agent);
    peer_serve(agent->calls, PEER_METRICS, backend_serve_curve, agent);
    peer_serve(agent->calls, PEER_INFER, backend_serve_infer, agent);
}
