/* The specification of a job: what its submit asked for, and its bytes in the log and on the wire. */
#ifndef SHOAL_JOB_SPEC_H
#define SHOAL_JOB_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/array.h"
#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

#define SHOAL_JOB_TEXT_BYTES 64 /* names: user, plan, framework */
#define SHOAL_JOB_APP_BYTES 128
#define SHOAL_JOB_FILE_BYTES 512 /* paths inside the bundle */
#define SHOAL_JOB_REASON_BYTES 400
#define SHOAL_JOB_LIST_MAX 1024 /* texts in argv, env */

enum shoal_job_device { SHOAL_JOB_DEVICE_AUTO, SHOAL_JOB_DEVICE_CPU, SHOAL_JOB_DEVICE_GPU, SHOAL_JOB_DEVICE_COUNT };

/* A list of texts: each ends with its NUL, one behind the other. */
struct shoal_job_texts {
    uint32_t count;
    struct shoal_view bytes;
};

/* On the wire and in the log: a head (kind SPEC) and a map, decision 0013. The table in sched/job/job_spec.c names its
 * fields. A new field is zero where a job does not use it, and is not written then. A job that an older version must
 * not run without knowing the field says so in `oldest`. */
#define SHOAL_JOB_SPEC_VERSION 5
struct shoal_job_spec {
    uint8_t oldest; /* version that can run it; 0: any that can read it */
    char framework[SHOAL_JOB_TEXT_BYTES];
    char creator[SHOAL_JOB_TEXT_BYTES];
    char submit_user[SHOAL_JOB_TEXT_BYTES];
    char plan[SHOAL_JOB_TEXT_BYTES];
    char app_name[SHOAL_JOB_APP_BYTES];
    char main_file[SHOAL_JOB_FILE_BYTES];
    char model_dir[SHOAL_JOB_FILE_BYTES];
    char data_path[SHOAL_JOB_FILE_BYTES];
    char debug_level[16];
    bool elastic;
    bool warm;     /* its scripts may be forked from an interpreter that has come up already; an older host starts them
                    * cold */
    bool user_cmd; /* run argv itself in the work directory, not Python with main_file */
    uint32_t uid;  /* of the creator on the hosts */
    uint32_t workers_min;
    uint32_t workers_max; /* not elastic: the gang, equal to workers_min */
    uint32_t devices_per_worker;
    uint8_t device;              /* enum shoal_job_device */
    uint32_t priority;           /* higher goes first */
    uint64_t pending_timeout_ms; /* 0: none */
    uint64_t worker_memory_bytes;
    uint64_t driver_memory_bytes;
    uint64_t submit_ms;            /* wall clock, display */
    struct shoal_hash bundle_hash; /* zero: no files */
    uint64_t bundle_bytes;
    struct shoal_view args; /* as received, secrets removed */
    struct shoal_view data_json;
    struct shoal_view datastore_meta;
    struct shoal_job_texts argv;
    struct shoal_job_texts env;
    struct shoal_job_texts attrs;
    struct shoal_job_texts labels;
    struct shoal_job_texts notes;
    char array[SHOAL_ARRAY_TEXT_BYTES]; /* "": not an array; else as shoal_array_parse reads it */
    char service[SHOAL_JOB_TEXT_BYTES]; /* "": no service; else its name, and the tasks of `array` are its replicas */
    uint32_t replicas;                  /* of a service, to begin with */
    uint32_t version;                   /* of a service: which of its versions; 0: an older agent founded it */
    struct shoal_view profile;          /* of a service: JSON; empty: the defaults */
    struct shoal_view kept;             /* by decode: fields of a later version, which encode writes back */
};

#define SHOAL_JOB_SPEC_BYTES_MAX (48 * SHOAL_KIB)

/* TOO_BIG: over `cap` or SHOAL_JOB_SPEC_BYTES_MAX. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_spec_encode(const struct shoal_job_spec *spec, uint8_t *bytes, size_t cap,
                                                      size_t *len);
/* Views point into `bytes`. MALFORMED. UNSUPPORTED: it is of a version that this one cannot run. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_spec_decode(struct shoal_view bytes, struct shoal_job_spec *spec);
/* Refuse a specification that can never run: INVALID or UNSUPPORTED with cause and remedy. Call before founding. */
SHOAL_MUST_CHECK enum shoal_err shoal_job_spec_check(const struct shoal_job_spec *spec, struct shoal_msg *msg);
/* The bound of replicas: a service grows to as many without another specification. */
#define SHOAL_SERVICE_ARRAY "0-63"
/* 1 to 63 of A-Z a-z 0-9 . _ - and the first a letter or digit. */
bool shoal_service_name_valid(const char *name);
/* Its tasks are replicas: they have no end of their own, and are started again until the job is stopped. */
static inline bool shoal_job_spec_serves(const struct shoal_job_spec *spec) { return spec->service[0] != '\0'; }
/* More workers than versions before this one take. */
static inline bool shoal_job_spec_is_wide(const struct shoal_job_spec *spec) { return spec->workers_max > SHOAL_JOB_WORKERS_PLAIN; }
/* The next text of a list, or NULL: for (t = NULL; (t = shoal_job_texts_next(&list, t)) != NULL;) */
const char *shoal_job_texts_next(const struct shoal_job_texts *texts, const char *text);

#endif
