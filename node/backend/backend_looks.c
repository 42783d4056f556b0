/* An agent says this of itself: /v1/debug; and why a job is where it is, as JSON. */
#include "agent_backend.h"

#include <math.h>

#include "shoal/json_text.h"
#include "shoal/lead.h"
#include "shoal/slots.h"
#include "shoal/sched_look.h"

#include "node/agent/agent_ledger.h"

#include "shoal/banned.h"

__attribute__((format(printf, 2, 3))) static enum shoal_err put(struct shoal_buf *buf, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return shoal_buf_append(buf, text, strlen(text));
}

/* A line with the names of hosts where it has their ids: cores know no names. */
static enum shoal_err append_named(struct agent *agent, const char *line, size_t len, struct shoal_buf *named)
{
    enum shoal_err err = SHOAL_OK;

    for (size_t at = 0; at < len && err == SHOAL_OK;) {
        struct shoal_node_id node;
        char hex[SHOAL_NODE_ID_TEXT_BYTES] = "";
        char name[64];
        size_t digits = 0;

        while (at + digits < len && ((line[at + digits] >= '0' && line[at + digits] <= '9') ||
                                     (line[at + digits] >= 'a' && line[at + digits] <= 'f')))
            digits++;
        if (digits == 2 * sizeof(node.bytes))
            memcpy(hex, line + at, digits);
        if (shoal_hex_parse(hex, node.bytes, sizeof(node.bytes)) &&
            backend_node_name(agent, node, name, sizeof(name))[0] != '\0') {
            err = shoal_buf_append(named, name, strlen(name));
        } else {
            digits = digits == 0 ? 1 : digits;
            err = shoal_buf_append(named, line + at, digits);
        }
        at += digits;
    }
    return err;
}

void backend_name_hosts(struct agent *agent, const char *line, char *text, size_t cap)
{
    struct shoal_buf named = { 0 };

    if (append_named(agent, line, strlen(line), &named) == SHOAL_OK)
        (void)snprintf(text, cap, "%.*s", (int)named.len, (const char *)named.bytes);
    else
        (void)snprintf(text, cap, "%s", line);
    shoal_buf_deinit(&named);
}

static enum shoal_err put_named(struct agent *agent, const char *line, size_t len, struct shoal_buf *json)
{
    struct shoal_buf named = { 0 };
    enum shoal_err err = append_named(agent, line, len, &named);

    if (err == SHOAL_OK)
        err = shoal_json_quote(shoal_buf_view(&named), json);
    shoal_buf_deinit(&named);
    return err;
}

/* A training that ends well may have made nothing of use. */
static enum shoal_err put_loss(struct agent *agent, struct shoal_job_id id, bool first, struct shoal_buf *json)
{
    struct ledger_progress progress;

    if (!agent_ledger_look(agent, id, &progress) || !progress.has_metrics || isfinite(progress.loss))
        return SHOAL_OK;
    return put(json,
               "%s\"the loss of its last train step, step %llu, is no finite number; `shoal job metrics ID` shows since when\"",
               first ? "" : ",", (unsigned long long)progress.train_steps);
}

/* {"job": id, "why": [line, ...]} */
enum shoal_err backend_why_json(struct agent *agent, struct shoal_job_id id, struct shoal_view text,
                                struct shoal_buf *json)
{
    char id_text[SHOAL_JOB_ID_TEXT_BYTES];
    const char *at = (const char *)text.bytes;
    size_t left = text.len;
    bool first = true;
    enum shoal_err err;

    shoal_job_id_text(id, id_text);
    err = put(json, "{\"job\":\"%s\",\"why\":[", id_text);
    while (left > 0 && err == SHOAL_OK) {
        const char *end = memchr(at, '\n', left);
        size_t len = end == NULL ? left : (size_t)(end - at);

        if (len > 0) {
            if (!first)
                err = put(json, ",");
            first = false;
            if (err == SHOAL_OK)
                err = put_named(agent, at, len, json);
        }
        at += len + (end == NULL ? 0 : 1);
        left -= len + (end == NULL ? 0 : 1);
    }
    if (err == SHOAL_OK)
        err = put_loss(agent, id, first, json);
    return err == SHOAL_OK ? put(json, "]}") : err;
}

static enum shoal_err debug_groups(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");

    for (size_t i = 0; i < shoal_sched_group_count(agent->sched) && err == SHOAL_OK; i++) {
        struct shoal_sched_group_status s;
        char id[SHOAL_JOB_ID_TEXT_BYTES];
        char leader[64];

        if (!shoal_sched_group_at(agent->sched, i, &s))
            continue;
        shoal_job_id_text(s.id, id);
        err = put(json,
                  "%s{\"group\":\"%s\",\"leads\":%s,\"term\":%llu,\"leader\":\"%s\",\"commit\":%llu,\"applied\":%llu,"
                  "\"last\":%llu,\"voters\":%u,\"learners\":%u,\"asleep\":%s,\"guardians\":[",
                  i == 0 ? "" : ",", shoal_job_id_is_mesh(s.id) ? "mesh" : id, s.leads ? "true" : "false",
                  (unsigned long long)s.term, backend_node_name(agent, s.leader, leader, sizeof(leader)),
                  (unsigned long long)s.commit, (unsigned long long)s.applied, (unsigned long long)s.last, s.voters,
                  s.learners, s.asleep ? "true" : "false");
        for (unsigned j = 0; j < (unsigned)s.voters + s.learners && j < SHOAL_GROUP_NODES_MAX && err == SHOAL_OK; j++)
            err = put(json, "%s\"%s\"", j == 0 ? "" : ",",
                      backend_node_name(agent, s.guardians[j], leader, sizeof(leader)));
        if (err == SHOAL_OK)
            err = put(json, "]}");
    }
    return err == SHOAL_OK ? put(json, "]") : err;
}

/* The archive's records on this node. */
static enum shoal_err debug_archive(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");
    struct shoal_sched_archived here;
    char id[SHOAL_JOB_ID_TEXT_BYTES];
    unsigned shown = 0;

    for (size_t i = 0; i < shoal_sched_archive_count(agent->sched) && err == SHOAL_OK; i++) {
        if (!shoal_sched_archive_at(agent->sched, i, &here))
            continue;
        shoal_job_id_text(here.id, id);
        err = put(json, "%s{\"job\":\"%s\",\"final\":%s,\"bytes\":%zu}", shown++ == 0 ? "" : ",", id,
                  here.final ? "true" : "false", here.facts.len + here.summary.len);
    }
    return err == SHOAL_OK ? put(json, "]") : err;
}

/* Workers of this host as their control pages show them. */
static enum shoal_err debug_epochs(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");
    bool first = true;

    for (unsigned i = 0; i < AGENT_JOBS_MAX && err == SHOAL_OK; i++) {
        const struct agent_job *job = agent->jobs[i];
        const struct shoal_control_page *page =
            job == NULL || !job->opened ? NULL : workers_page(agent->workers, job->id);

        if (page == NULL)
            continue;
        err = put(json, "%s{\"job\":\"%s\",\"published\":%llu,\"revoked\":%llu,\"workers\":[", first ? "" : ",",
                  job->text, (unsigned long long)page->published, (unsigned long long)page->revoked);
        first = false;
        for (unsigned slot = 0, shown = 0; slot < agent_slots_all(&agent->settings) && err == SHOAL_OK; slot++) {
            const struct shoal_control_slot *s = &page->slots[slot];

            if (s->worker_id == 0)
                continue;
            err = put(
                json,
                "%s{\"slot\":%u,\"worker\":%llu,\"pid\":%d,\"epoch\":%u,\"k\":%u,\"started\":%llu,\"complete\":%llu,"
                "\"applied\":%llu,\"minibatches\":%llu,\"updates\":%llu,\"activity\":%u,\"pause_us\":%llu}",
                shown++ == 0 ? "" : ",", slot, (unsigned long long)s->worker_id, (int)s->pid,
                (unsigned)(s->epoch_word >> 32), (unsigned)s->epoch_word, (unsigned long long)s->started_step,
                (unsigned long long)s->complete_step, (unsigned long long)s->applied_step,
                (unsigned long long)s->minibatches, (unsigned long long)s->updates, (unsigned)s->activity,
                (unsigned long long)s->join_pause_ns / 1000);
        }
        if (err == SHOAL_OK)
            err = put(json, "]}");
    }
    return err == SHOAL_OK ? put(json, "]") : err;
}

static enum shoal_err debug_leases(struct agent *agent, struct shoal_buf *json)
{
    enum shoal_err err = put(json, "[");
    unsigned shown = 0;

    for (unsigned i = 0; i < AGENT_JOBS_MAX && err == SHOAL_OK; i++)
        for (unsigned j = 0; agent->jobs[i] != NULL && j < SHOAL_RUNNER_WORKERS_MAX && err == SHOAL_OK; j++) {
            const struct agent_run *run = &agent->jobs[i]->runs[j];

            if (!run->used)
                continue;
            err = put(json,
                      "%s{\"job\":\"%s\",\"worker\":%llu,\"slot\":%d,\"role\":%u,\"generation\":%llu,\"task\":\"%s\"}",
                      shown++ == 0 ? "" : ",", agent->jobs[i]->text, (unsigned long long)run->worker_id, (int)run->slot,
                      run->role, (unsigned long long)run->lease_generation, run->task);
        }
    return err == SHOAL_OK ? put(json, "]") : err;
}

struct link_rows {
    struct agent *agent;
    struct shoal_buf *json;
    enum shoal_err err;
    unsigned count;
};

static void link_row(void *arg, const struct shoal_link_peer *peer)
{
    struct link_rows *rows = arg;
    char name[64];
    char address[SHOAL_ADDRESS_TEXT_BYTES];

    shoal_address_text(peer->address, address);
    if (rows->err == SHOAL_OK)
        rows->err = put(rows->json, "%s{\"node\":\"%s\",\"address\":\"%s\",\"dialled\":%s}",
                        rows->count++ == 0 ? "" : ",", backend_node_name(rows->agent, peer->node, name, sizeof(name)),
                        address, peer->dialled ? "true" : "false");
}

enum shoal_err backend_debug(void *ctx, const char *name, struct shoal_buf *json)
{
    struct agent *agent = ctx;

    if (strcmp(name, "groups") == 0)
        return debug_groups(agent, json);
    if (strcmp(name, "archive") == 0)
        return debug_archive(agent, json);
    if (strcmp(name, "epochs") == 0)
        return debug_epochs(agent, json);
    if (strcmp(name, "leases") == 0)
        return debug_leases(agent, json);
    if (strcmp(name, "links") == 0) {
        struct link_rows rows = { .agent = agent, .json = json, .err = put(json, "[") };

        shoal_link_each(agent->link, link_row, &rows);
        return rows.err == SHOAL_OK ? put(json, "]") : rows.err;
    }
    return SHOAL_ERR_NOT_FOUND;
}
