/* A job as others hear of it, in MessagePack: all that `show` says, asked of a leader or kept in the archive, and the
 * summary that gossip carries. A field that is added here is a row; older nodes pass over it. */
#include "shoal/job.h"
#include "shoal/job_facts.h"

#include "shoal/pack.h"

#include "shoal/banned.h"

#define VERSION 2 /* 1 was a fixed layout; both messages changed with it */
#define OLDEST 2

/* ---- All that `show` says ---- */

#define TEXT(name, member) SHOAL_PACK_TEXT(struct shoal_job_facts, name, member)
#define ROW(name, shape, member, max) SHOAL_PACK_ROW(struct shoal_job_facts, name, shape, member, max)
#define ID(name, member) SHOAL_PACK_ID(struct shoal_job_facts, name, member)

static const struct shoal_pack_field facts_fields[] = {
    TEXT("app", app_name),
    ROW("applied", U64, applied, UINT64_MAX),
    ROW("args", STR, args, SHOAL_JOB_SPEC_BYTES_MAX),
    ROW("attempt", U32, attempt, UINT32_MAX),
    ID("bundle", bundle),
    ROW("call", U32, call, UINT32_MAX),
    ROW("create_ms", U64, create_ms, UINT64_MAX),
    TEXT("creator", creator),
    ROW("data", STR, data_json, SHOAL_JOB_SPEC_BYTES_MAX),
    ROW("data_epoch", U32, data_epoch, UINT32_MAX),
    ROW("deleted", BOOL, deleted, 1),
    ROW("device", U8, device, SHOAL_JOB_DEVICE_COUNT - 1),
    ROW("document", STR, document, SHOAL_SERVICE_DOCUMENT_BYTES_MAX),
    ID("driver_node", driver_node),
    ROW("elastic", BOOL, elastic, 1),
    ROW("end_ms", U64, end_ms, UINT64_MAX),
    ROW("epoch", U32, epoch.e, UINT32_MAX),
    ROW("epoch_k", U32, epoch.k, UINT32_MAX),
    ROW("exit_code", I32, exit_code, 0),
    ID("files", files),
    TEXT("framework", framework),
    ROW("generation", U32, generation, UINT32_MAX),
    ROW("has_metrics", BOOL, has_metrics, 1),
    ID("id", id),
    ROW("join_pause_us", U32, join_pause_us, UINT32_MAX),
    ID("leader", leader),
    ROW("logged_step", U64, logged_step, UINT64_MAX),
    ROW("loss_micro", I64, loss_micro, 0),
    ROW("metric_micro", I64, metric_micro, 0),
    TEXT("pending", pending),
    ROW("priority", U32, priority, UINT32_MAX),
    ROW("rate_milli", U32, rate_milli, UINT32_MAX),
    TEXT("reason", reason),
    ROW("replicas", U32, replicas, UINT32_MAX),
    ID("result", result),
    ROW("revision", U32, revision, UINT32_MAX),
    TEXT("service", service),
    ROW("start_ms", U64, start_ms, UINT64_MAX),
    ROW("state", U8, state, SHOAL_JOB_STATE_COUNT - 1),
    ROW("step", U64, step, UINT64_MAX),
    ROW("stop", BOOL, stop, 1),
    ROW("tasks_done", U32, task_counts[SHOAL_TASK_DONE], UINT32_MAX),
    ROW("tasks_failed", U32, task_counts[SHOAL_TASK_FAILED], UINT32_MAX),
    ROW("tasks_pending", U32, task_counts[SHOAL_TASK_PENDING], UINT32_MAX),
    ROW("tasks_running", U32, task_counts[SHOAL_TASK_RUNNING], UINT32_MAX),
    ROW("tasks_stopped", U32, task_counts[SHOAL_TASK_STOPPED], UINT32_MAX),
    ROW("term", U64, term, UINT64_MAX),
    ROW("ticket_ms", U64, ticket_ms, UINT64_MAX),
    TEXT("transport", transport),
    ROW("version", U32, version, UINT32_MAX),
    TEXT("work", work),
    ROW("worker_mib", U32, worker_mib, UINT32_MAX),
    ROW("workers_max", U32, workers_max, UINT32_MAX),
    ROW("workers_min", U32, workers_min, UINT32_MAX),
    ROW("workers_now", U32, workers_now, UINT32_MAX),
};
static const struct shoal_pack_table facts_table = SHOAL_PACK_TABLE(facts_fields);
#undef TEXT
#undef ROW
#undef ID

enum shoal_err shoal_job_facts_encode(const struct shoal_job_facts *facts, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_pack_head head = { SHOAL_PACK_KIND_JOB, VERSION, OLDEST };

    SHOAL_ASSERT(facts->state < SHOAL_JOB_STATE_COUNT); /* what is written can be read */
    return shoal_pack_encode(head, &facts_table, facts, bytes, cap, len);
}

enum shoal_err shoal_job_facts_decode(struct shoal_view bytes, struct shoal_job_facts *facts)
{
    SHOAL_ASSERT(facts != NULL);
    memset(facts, 0, sizeof(*facts));
    return shoal_pack_decode(bytes, SHOAL_PACK_KIND_JOB, VERSION, &facts_table, facts);
}

/* ---- What gossip carries ---- */

/* The hosts are one array: a node, its slots, a node, its slots. */
static bool put_hosts(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_job_summary *s = base;

    SHOAL_ASSERT(((const struct shoal_job_summary *)base)->host_count <=
                 SHOAL_SUMMARY_HOSTS_MAX); /* what is written can be read */
    if (w == NULL || s->host_count == 0)
        return s->host_count > 0;
    shoal_pack_put_array(w, 2u * s->host_count);
    for (unsigned i = 0; i < s->host_count; i++) {
        shoal_pack_put_bin(w, shoal_view_of(s->hosts[i].node.bytes, sizeof(s->hosts[i].node.bytes)));
        shoal_pack_put_u64(w, s->hosts[i].slots);
    }
    return true;
}

static void get_hosts(struct shoal_pack_reader *r, void *base)
{
    struct shoal_job_summary *s = base;
    uint32_t count = shoal_pack_get_array(r, 2 * SHOAL_SUMMARY_HOSTS_MAX);

    SHOAL_ASSERT(((const struct shoal_job_summary *)base)->host_count == 0); /* read into zeroes */
    if (count % 2 != 0)
        r->failed = true;
    for (unsigned i = 0; i < count / 2 && !r->failed; i++) {
        struct shoal_view node = shoal_pack_get_bin(r, sizeof(s->hosts[i].node.bytes));

        if (node.len == sizeof(s->hosts[i].node.bytes))
            memcpy(s->hosts[i].node.bytes, node.bytes, node.len);
        else
            r->failed = true;
        s->hosts[i].slots = shoal_pack_get_u64(r, UINT64_MAX);
    }
    s->host_count = r->failed ? 0 : (uint8_t)(count / 2);
}

static bool put_unfit(struct shoal_pack_writer *w, const void *base)
{
    const struct shoal_job_summary *s = base;

    SHOAL_ASSERT(s->unfit_count <= SHOAL_SUMMARY_UNFIT_MAX); /* what is written can be read */
    if (w == NULL || s->unfit_count == 0)
        return s->unfit_count > 0;
    shoal_pack_put_array(w, s->unfit_count);
    for (unsigned i = 0; i < s->unfit_count; i++)
        shoal_pack_put_bin(w, shoal_view_of(s->unfit[i].bytes, sizeof(s->unfit[i].bytes)));
    return true;
}

static void get_unfit(struct shoal_pack_reader *r, void *base)
{
    struct shoal_job_summary *s = base;
    uint32_t count = shoal_pack_get_array(r, SHOAL_SUMMARY_UNFIT_MAX);

    SHOAL_ASSERT(((const struct shoal_job_summary *)base)->unfit_count == 0); /* read into zeroes */
    for (unsigned i = 0; i < count && !r->failed; i++) {
        struct shoal_view node = shoal_pack_get_bin(r, sizeof(s->unfit[i].bytes));

        if (node.len == sizeof(s->unfit[i].bytes))
            memcpy(s->unfit[i].bytes, node.bytes, node.len);
        else
            r->failed = true;
    }
    s->unfit_count = r->failed ? 0 : (uint8_t)count;
}

#define TEXT(name, member) SHOAL_PACK_TEXT(struct shoal_job_summary, name, member)
#define ROW(name, shape, member, max) SHOAL_PACK_ROW(struct shoal_job_summary, name, shape, member, max)
#define ID(name, member) SHOAL_PACK_ID(struct shoal_job_summary, name, member)

/* Short names: the whole of it fits one record of gossip. */
static const struct shoal_pack_field summary_fields[] = {
    TEXT("app", app_name),
    ROW("by", U32, priority, UINT32_MAX),
    ROW("cls", U32, class_hash, UINT32_MAX),
    ROW("cn", U8, canary, SHOAL_SERVICE_CANARY_MAX),
    TEXT("cr", creator),
    ROW("de", U32, data_epoch, UINT32_MAX),
    ROW("dev", U8, device, SHOAL_JOB_DEVICE_COUNT - 1),
    ROW("e", U32, epoch.e, UINT32_MAX),
    ROW("el", BOOL, elastic, 1),
    TEXT("fw", framework),
    ROW("gm", U32, gpu_mib, UINT32_MAX),
    ROW("gp", U64, gpu_pack, UINT64_MAX),
    ROW("held", U32, held, UINT32_MAX),
    SHOAL_PACK_OWN("hosts", put_hosts, get_hosts),
    ID("id", id),
    ROW("k", U32, epoch.k, UINT32_MAX),
    ID("ld", leader),
    ROW("loss", I64, loss_micro, 0),
    ROW("max", U32, workers_max, UINT32_MAX),
    ROW("met", I64, metric_micro, 0),
    ROW("min", U32, workers_min, UINT32_MAX),
    ROW("ms", BOOL, has_metrics, 1),
    TEXT("pend", pending),
    ROW("rate", U32, rate_milli, UINT32_MAX),
    ROW("st", U8, state, SHOAL_JOB_STATE_COUNT - 1),
    ROW("step", U64, step, UINT64_MAX),
    ROW("sv", BOOL, serves, 1),
    ROW("t0", U64, create_ms, UINT64_MAX),
    ROW("t1", U64, start_ms, UINT64_MAX),
    ROW("t2", U64, end_ms, UINT64_MAX),
    ROW("td", U32, tasks_done, UINT32_MAX),
    ROW("term", U64, term, UINT64_MAX),
    ROW("tf", U32, tasks_failed, UINT32_MAX),
    ROW("tk", U64, ticket_ms, UINT64_MAX),
    ROW("tn", U32, tasks_all, UINT32_MAX),
    SHOAL_PACK_OWN("unfit", put_unfit, get_unfit),
    ROW("vn", U32, version, UINT32_MAX),
    ROW("wmax", U32, want_max, UINT32_MAX),
    ROW("wmin", U32, want_min, UINT32_MAX),
};
static const struct shoal_pack_table summary_table = SHOAL_PACK_TABLE(summary_fields);

/* Texts and counts at their longest leave room for seven hosts; then those that are unfit are left out, and others of its own,
 * as beyond the bound. */
enum shoal_err shoal_job_summary_encode(const struct shoal_job_summary *s, uint8_t *bytes, size_t cap, size_t *len)
{
    struct shoal_pack_head head = { SHOAL_PACK_KIND_SUMMARY, VERSION, OLDEST };
    struct shoal_job_summary fits = *s;
    enum shoal_err err;

    SHOAL_ASSERT(s->state < SHOAL_JOB_STATE_COUNT); /* what is written can be read */
    if (s->host_count > SHOAL_SUMMARY_HOSTS_MAX)
        return SHOAL_ERR_TOO_BIG;
    if (cap > SHOAL_RECORD_PAYLOAD_MAX)
        cap = SHOAL_RECORD_PAYLOAD_MAX;
    err = shoal_pack_encode(head, &summary_table, &fits, bytes, cap, len);
    while (err == SHOAL_ERR_TOO_BIG && fits.host_count + fits.unfit_count > 0) {
        *(fits.unfit_count > 0 ? &fits.unfit_count : &fits.host_count) -= 1;
        err = shoal_pack_encode(head, &summary_table, &fits, bytes, cap, len);
    }
    return err;
}

enum shoal_err shoal_job_summary_decode(struct shoal_view bytes, struct shoal_job_summary *s)
{
    SHOAL_ASSERT(s != NULL);
    memset(s, 0, sizeof(*s));
    return shoal_pack_decode(bytes, SHOAL_PACK_KIND_SUMMARY, VERSION, &summary_table, s);
}
