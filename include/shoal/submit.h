/* Names who asks; holds a submit whose options are parsed and whose upload is a canonical bundle (execs-api 4).
 * All texts are borrowed. */
#ifndef SHOAL_SUBMIT_H
#define SHOAL_SUBMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

#define SHOAL_USER_BYTES_MAX 64 /* with the NUL */
#define SHOAL_FRAMEWORK_BYTES_MAX 48
#define SHOAL_TICKET_BYTES_MAX 1024
#define SHOAL_TOKEN_KEY_BYTES 32
#define SHOAL_TOKEN_ID_BYTES 16
#define SHOAL_TOKEN_TEXT_BYTES 722 /* of each (T1 of shoal/token.h), with the NUL */

/* ---- users and tokens ---- */

struct shoal_user {
    char name[SHOAL_USER_BYTES_MAX];
    uint32_t uid;
    bool admin;
    char token[SHOAL_TOKEN_TEXT_BYTES]; /* that it came with; "" when it came with its password */
    uint64_t tokens_from_s;             /* tokens issued before this time (epoch seconds) are void; 0: all stand */
};

struct shoal_token_keys {
    uint8_t keys[2][SHOAL_TOKEN_KEY_BYTES]; /* the newest first: it signs, both verify */
    size_t count;                           /* 0: this node has not yet got the mesh's copy */
};

/* ---- frameworks ---- */

struct shoal_framework {
    const char *name; /* canonical spelling */
    const char *version;
    const char *app_name;      /* default application name */
    const char *exec_mode;     /* "single" or "distributed" */
    const char *backend;       /* "PyTorch", ... */
    const char *worker_memory; /* "4G" */
    const char *const *desc;   /* usage lines, NULL at the end */
    bool elastic;
    bool supported; /* false: known, refused with "not supported yet" */
    unsigned workers_default;
    unsigned workers_max;
    unsigned gpus_per_worker_max;
};

/* The six names of the specification, and shoalC, for workers of libshoal's own C interface. */
const struct shoal_framework *shoal_frameworks_builtin(size_t *count);

/* ---- submit ---- */

enum shoal_device {
    SHOAL_DEVICE_AUTO, /* not said: gpu if the mesh has one, else cpu */
    SHOAL_DEVICE_CPU,
    SHOAL_DEVICE_GPU,
};

struct shoal_texts {
    const char *const *items; /* NUL-terminated each */
    size_t count;
};

/* The options of execs-api 4.5 as parsed; texts are "" where not given. What the mesh cannot do (yet) of it, `submit`
 * answers with UNSUPPORTED and the option's name. */
struct shoal_job_options {
    const char *framework; /* canonical name */
    const char *app_name;
    const char *main; /* --model-main: in a submit equal to main_path, or an absolute path on the job's file system */
    const char *model_dir; /* --model-dir: in a submit equal to work_dir */
    const char *main_path; /* where it was found in the bundle; "" for an absolute main and for user_cmd */
    const char *work_dir;  /* the work directory inside the bundle (execs-api 4.8); "" = its root */
    const char *submit_user;
    const char *data_path;      /* of --cs-datastore-meta, relative, no ".."; "" = the root */
    const char *datastore_meta; /* its whole text, for DLI_CS_DATASTORE_META */
    const char *debug_level;
    bool elastic;
    bool user_cmd;        /* run script_argv itself in the work directory, not Python with `main` */
    unsigned workers_min; /* 1 for elastic jobs, workers_max for others */
    unsigned workers_max;
    enum shoal_device device;
    unsigned devices_per_worker;
    uint32_t worker_cpu_milli; /* of hardwareSpec: a wish, 0: not said */
    uint64_t worker_memory_bytes;
    uint64_t driver_memory_bytes; /* 0: not said */
    uint32_t priority;            /* 0: the plan's default */
    uint32_t pending_timeout_s;   /* 0: none */
    struct shoal_texts env;       /* NAME=VALUE, in order, later ones win */
    struct shoal_texts attrs;
    struct shoal_texts labels;
    struct shoal_texts script_argv; /* what follows the main file */
    bool warm;                      /* forked from a waiting interpreter where that is possible */
    const char *array;              /* ranges of an array of tasks (shoal/array.h); "" = none */
    const char *service;            /* "": none; else its name, and the job runs its replicas */
    unsigned replicas;              /* of a service */
    uint32_t service_version;       /* of a service: the first, or given by the agent that knows the one before */
    const char *profile;            /* of a service: its document (shoal/service_doc.h) */
    bool service_new;               /* refused (EXISTS) where the name is in use; else it is that one's next version */
    bool service_known;             /* refused (NOT_FOUND) where it is not */
    unsigned service_canary;        /* it does not take over: its percentage of the requests, and one; 0: it does */
    struct shoal_texts notes;       /* what was accepted but has no effect: lines for the launcher log */
};

struct shoal_submit {
    const struct shoal_user *caller;
    const struct shoal_job_options *options;
    const char *args;      /* as received, secrets removed: kept and shown */
    const char *data_json; /* the field `data`, secrets removed, normalised to strict JSON; "" if none */
    /* The canonical bundle (shoal/bundle.h). The descriptor is readable from offset 0 and always there; `bundle` also
     * holds its bytes when they are at most SHOAL_BUNDLE_INLINE_MAX. A job without files has an empty bundle. */
    int bundle_fd;
    uint64_t bundle_bytes;
    struct shoal_view bundle;
    struct shoal_hash bundle_hash; /* over the sorted (path, mode, content hash) */
    struct shoal_hash spec_hash;   /* over args, data and bundle_hash: the one that a ticket names */
    struct shoal_view ticket;      /* empty: the backend makes one by itself */
};

#endif
