/* A job as others see it, and its bytes: the facts that GET answers and the archive keeps, and the summary that gossip
 * carries. */
#ifndef SHOAL_JOB_FACTS_H
#define SHOAL_JOB_FACTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/job.h"

/* The facts that GET answers: flat. (`struct shoal_job_info` is the HTTP API's own.) */
struct shoal_job_facts {
    struct shoal_job_id id;
    uint8_t state;
    bool elastic;
    bool stop;
    bool deleted;
    bool has_metrics;
    char framework[SHOAL_JOB_TEXT_BYTES];
    char creator[SHOAL_JOB_TEXT_BYTES];
    char app_name[SHOAL_JOB_APP_BYTES];
    char work[SHOAL_JOB_APP_BYTES];       /* the work directory, below the submitted code; "": that itself, or a path too long for here */
    char reason[SHOAL_JOB_REASON_BYTES];  /* why it ended */
    char pending[SHOAL_JOB_REASON_BYTES]; /* why it waits; "" if it does not */
    uint32_t generation;
    uint32_t attempt;
    uint32_t workers_min, workers_max, workers_now;
    uint32_t priority;
    uint8_t device;      /* enum shoal_job_device: what was asked for; where that was AUTO, what its workers have now */
    uint32_t worker_mib; /* memory that was asked for, of each worker */
    int32_t exit_code;
    uint64_t ticket_ms, create_ms, start_ms, end_ms;
    struct shoal_node_id leader;
    struct shoal_node_id driver_node; /* zero: none */
    uint64_t term, applied;
    struct shoal_epoch epoch;
    char transport[16]; /* what the members of the epoch use: memory, tcp, "tcp sealed", "ucx 1.22"; "": no epoch */
    uint32_t call;
    uint64_t step;
    uint64_t logged_step; /* of the newest call */
    uint32_t data_epoch;
    uint32_t rate_milli; /* steps per second x 1000 */
    int64_t loss_micro, metric_micro;
    uint32_t join_pause_us;
    struct shoal_hash result;
    struct shoal_hash files;           /* of the newest finished call */
    struct shoal_hash bundle;          /* what was submitted, of a job that has a result; else zero */
    struct shoal_view args, data_json; /* into the job, or into the decoded bytes */
    /* Tasks of an array, by state; all 0: not an array. */
    uint32_t task_counts[SHOAL_TASK_STATE_COUNT];
    char service[SHOAL_JOB_TEXT_BYTES]; /* "": it is none */
    uint32_t replicas;                  /* of a service: how many are to run */
    uint32_t version;                   /* which of the service's it is; 0: not told */
    uint32_t revision;                  /* of its document */
    struct shoal_view document;         /* JSON, see api/rest/service_doc.h; as args */
};
#define SHOAL_JOB_FACTS_BYTES_MAX (48 * SHOAL_KIB + SHOAL_SERVICE_DOCUMENT_BYTES_MAX)
/* What was asked for and does not change: priority, device, memory, work directory. */
void shoal_job_facts_asked(const struct shoal_job_spec *spec, struct shoal_job_facts *facts);
/* All that the replicated state knows; a lead adds progress and the pending text (shoal_lead_facts). */
void shoal_job_facts(const struct shoal_job *job, struct shoal_job_facts *facts);
SHOAL_MUST_CHECK enum shoal_err shoal_job_facts_encode(const struct shoal_job_facts *facts, uint8_t *bytes, size_t cap,
                                                       size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_job_facts_decode(struct shoal_view bytes, struct shoal_job_facts *facts);

/* The part of a job that gossip carries: enough for lists and for every node's allocation. */
#define SHOAL_SUMMARY_HOSTS_MAX 12
#define SHOAL_SUMMARY_UNFIT_MAX 8
struct shoal_job_summary {
    struct shoal_job_id id;
    uint8_t state;
    uint8_t device;
    uint32_t gpu_mib;  /* of a service: so much of a card that kernels of its pack share; 0: none is shared */
    uint64_t gpu_pack;
    bool elastic;
    bool serves; /* a service: shoal/allocate.h */
    bool has_metrics;
    char creator[SHOAL_JOB_TEXT_BYTES];
    char framework[SHOAL_JOB_TEXT_BYTES];
    char app_name[SHOAL_JOB_TEXT_BYTES]; /* cut */
    char pending[96];                    /* cut; when ended: the reason */
    uint32_t priority;
    uint64_t ticket_ms;
    /* Demand on slots right now: 0 and 0 when it wants none (ended, or between two calls). */
    uint32_t want_min, want_max;
    uint32_t workers_min, workers_max; /* of the specification, for lists */
    uint32_t held;
    uint32_t class_hash; /* 0: any host; else of shoal_class_hash(numeric class) */
    struct shoal_node_id leader;
    uint64_t term;
    struct shoal_epoch epoch;
    uint64_t step;
    uint32_t data_epoch;
    uint32_t rate_milli;
    int64_t loss_micro, metric_micro;
    uint64_t create_ms, start_ms, end_ms;
    /* Tasks of an array: all, DONE and FAILED. 0: not an array. */
    uint32_t tasks_all, tasks_done, tasks_failed;
    uint32_t version; /* of a service, as in its facts */
    /* Of a service: one more than the percentage of unpinned requests that its other version is to get; 0: there is no canary. */
    uint8_t canary;
    /* The hosts where it holds slots; those beyond the bound are left out (`held` counts all). */
    uint8_t host_count;
    struct {
        struct shoal_node_id node;
        uint64_t slots; /* bit i: slot i */
    } hosts[SHOAL_SUMMARY_HOSTS_MAX];
    /* Hosts on which no engine of it can run; those beyond the bound are known to its leader alone. */
    uint8_t unfit_count;
    struct shoal_node_id unfit[SHOAL_SUMMARY_UNFIT_MAX];
};
/* At most SHOAL_RECORD_PAYLOAD_MAX bytes. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_summary_encode(const struct shoal_job_summary *summary, uint8_t *bytes,
                                                         size_t cap, size_t *len);
SHOAL_MUST_CHECK enum shoal_err shoal_job_summary_decode(struct shoal_view bytes, struct shoal_job_summary *summary);
uint32_t shoal_class_hash(const char *numeric_class); /* never 0 for a text that is not empty */

/* The frameworks of a host's Python, by the host's own word, and those that a job needs, by its framework's canonical name: a
 * service of any name needs none, for its package may be of either. The bits are in records of gossip. 0: a host of the version before, which does not tell; a framework that needs none of these. */
#define SHOAL_SERVES_TORCH 1u
#define SHOAL_SERVES_TENSORFLOW 2u
#define SHOAL_SERVES_ALL (SHOAL_SERVES_TORCH | SHOAL_SERVES_TENSORFLOW)
uint32_t shoal_framework_needs(const char *framework, bool service);
static inline bool shoal_host_serves(uint32_t serves, uint32_t needs) { return serves == 0 || (serves & needs) == needs; }

#endif
