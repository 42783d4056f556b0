/* libFuzzer: log entries (first byte even) and snapshots, specifications, summaries (odd). What decodes is applied. */
#include "shoal/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void apply(struct shoal_view view)
{
    static struct shoal_job *job;
    static struct shoal_job_entry entry;
    static uint8_t spec_bytes[1024], snapshot[SHOAL_JOB_SNAPSHOT_BYTES_MAX];
    static uint64_t index;
    struct shoal_job_spec spec = { .elastic = true, .workers_min = 1, .workers_max = 4 };
    struct shoal_job *copy;
    size_t len;

    if (job == NULL || shoal_job_state_ended((enum shoal_job_state)job->state)) {
        struct shoal_job_founding founding = { .ticket_ms = 1 };

        shoal_job_destroy(job);
        job = NULL;
        if (shoal_job_spec_encode(&spec, spec_bytes, sizeof(spec_bytes), &len) != SHOAL_OK)
            return;
        founding.spec = shoal_view_of(spec_bytes, len);
        if (shoal_job_create(&job, &founding) != SHOAL_OK)
            return;
    }
    (void)shoal_job_apply(job, ++index, view, &entry);
    SHOAL_ASSERT(shoal_job_snapshot_encode(job, snapshot, sizeof(snapshot), &len) == SHOAL_OK);
    SHOAL_ASSERT(shoal_job_restore(&copy, shoal_view_of(snapshot, len)) == SHOAL_OK);
    SHOAL_ASSERT(copy->digest == job->digest && copy->placement_count == job->placement_count);
    shoal_job_destroy(copy);
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
        apply(view);
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
