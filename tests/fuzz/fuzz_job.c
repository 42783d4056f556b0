/* libFuzzer: log entries (first byte even) and snapshots, specifications, summaries (odd). What decodes is applied. */
#include "shoal/job.h"
#include "shoal/job_entry.h"
#include "shoal/job_facts.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct target {
    struct shoal_job_spec spec;
    struct shoal_job *job;
    uint64_t index;
};

static uint8_t spec_bytes[4096], snapshot[SHOAL_JOB_SNAPSHOT_BYTES_MAX];

static bool renew(struct target *target)
{
    struct shoal_job_founding founding = { .ticket_ms = 1 };
    size_t len;

    shoal_job_destroy(target->job);
    target->job = NULL;
    if (shoal_job_spec_encode(&target->spec, spec_bytes, sizeof(spec_bytes), &len) != SHOAL_OK)
        return false;
    founding.spec = shoal_view_of(spec_bytes, len);
    return shoal_job_create(&target->job, &founding) == SHOAL_OK;
}

static void apply(struct target *target, struct shoal_view view)
{
    static struct shoal_job_entry entry;
    struct shoal_job *copy;
    size_t len;

    if ((target->job == NULL || shoal_job_state_ended((enum shoal_job_state)target->job->state)) && !renew(target))
        return;
    (void)shoal_job_apply(target->job, ++target->index, view, &entry);
    SHOAL_ASSERT(shoal_job_snapshot_encode(target->job, snapshot, sizeof(snapshot), &len) == SHOAL_OK);
    SHOAL_ASSERT(shoal_job_restore(&copy, shoal_view_of(snapshot, len)) == SHOAL_OK);
    SHOAL_ASSERT(copy->digest == target->job->digest && copy->placement_count == target->job->placement_count);
    shoal_job_destroy(copy);
}

/* One elastic job and one array: an entry is applied to both. */
static void apply_all(struct shoal_view view)
{
    static struct target targets[] = {
        { .spec = { .elastic = true, .workers_min = 1, .workers_max = 4 } },
        { .spec = { .workers_min = 1, .workers_max = 1, .array = "0-9,20-90:7%5" } },
    };

    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
        apply(&targets[i], view);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct shoal_view view = shoal_view_of(bytes + 1, len == 0 ? 0 : len - 1);
    static struct shoal_job_summary summary;
    static struct shoal_job_facts facts;
    struct shoal_job_spec spec;
    struct shoal_job *job;
    struct shoal_msg msg;

    if (len == 0)
        return 0;
    if (bytes[0] % 2 == 0) {
        apply_all(view);
        return 0;
    }
    if (shoal_job_restore(&job, view) == SHOAL_OK)
        shoal_job_destroy(job);
    if (shoal_job_spec_decode(view, &spec) == SHOAL_OK) {
        for (const char *text = NULL; (text = shoal_job_texts_next(&spec.argv, text)) != NULL;)
            SHOAL_ASSERT(strlen(text) < len);
        (void)!shoal_job_spec_check(&spec, &msg);
    }
    (void)!shoal_job_summary_decode(view, &summary);
    (void)!shoal_job_facts_decode(view, &facts);
    return 0;
}
