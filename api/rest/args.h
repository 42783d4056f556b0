/* The text `args` of a submit: decoded, cut into tokens, sorted into options of the system and words for the script
 * (execs-api 4.3 to 4.6, training-contract 2.4). */
#ifndef API_ARGS_H
#define API_ARGS_H

#include "shoal/backend.h"

#include "api/http/arena.h"
#include "api/http/json_input.h"

/* `args` of a raw query string (execs-api 4.3, steps 1 to 4); *args is NULL if there is none. */
SHOAL_MUST_CHECK enum shoal_err args_from_query(struct arena *arena, struct shoal_view query, const char **args,
                                                struct shoal_msg *msg);

struct args_input {
    const char *args;
    const struct json_value *data; /* the field `data`; NULL if none */
    const struct shoal_framework *frameworks;
    size_t framework_count;
    const struct shoal_user *caller;
};

struct args_result {
    struct shoal_job_options options;
    const char *args;      /* to be kept and shown: secrets are out */
    const char *data_json; /* hardwareSpec and dataSource alone; "" if neither */
};

/* Everything in `out` lives in the arena. INVALID, UNSUPPORTED, DENIED (another user), TOO_BIG: no job is to be
 * made. */
SHOAL_MUST_CHECK enum shoal_err args_parse(struct arena *arena, const struct args_input *input, struct args_result *out,
                                           struct shoal_msg *msg);

/* A framework by its name: exact, then without case, then by its old names. NULL: `msg` says what is known. */
const struct shoal_framework *args_framework_find(const struct shoal_framework *frameworks, size_t count,
                                                  const char *name, struct shoal_msg *msg);
/* Behind the refusal of several workers: which framework has them. "": nothing to say. */
const char *args_framework_of_several(const struct shoal_framework *framework);

struct args_edt {
    int64_t workers;   /* maxWorkers; -1: not said */
    const char *mode;  /* one that is done as sync_gdc, in small letters; NULL: none */
    char unknown[200]; /* the names that are neither, as many as there is room for */
};

/* The value of --edt-options. INVALID: a number or a mode that is none. */
SHOAL_MUST_CHECK enum shoal_err args_edt_parse(const char *value, struct args_edt *out, struct shoal_msg *msg);

#endif
