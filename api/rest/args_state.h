/* One reading of `args`, and what its files share. Picture and rules: args.c. */
#ifndef API_ARGS_STATE_H
#define API_ARGS_STATE_H

#include "args.h"

struct token {
    const char *raw;  /* as received */
    const char *text; /* _QUOTE_ marks taken out */
    bool kept;        /* goes into the text that is stored */
    bool masked;      /* there only its name is, or stars */
};

struct parse {
    struct arena *arena;
    const struct args_input *input;
    struct args_result *out;
    struct shoal_msg *msg;
    struct token *tokens;
    size_t count;
    const char **words; /* for the script */
    size_t word_count;
    const char **env, **attrs, **labels, **notes;
    size_t env_count, attr_count, label_count, note_count;
    const struct shoal_framework *framework;
    const char *pbmodel;
    int64_t workers;    /* -1: not said */
    int64_t device_num; /* -1 */
    int64_t num_driver; /* -1 */
    bool driver_gpu;
    bool separator;     /* "--" was there */
    size_t words_after; /* words after it */
};

/* args.c */
/* "4G", "512", "1.5gib": bytes; no unit means MiB. False: it is no size. */
bool args_parse_size(const char *text, uint64_t *bytes);
bool args_parse_int(const char *text, int64_t *value);
bool args_is_quantity(const char *text); /* of CPUs or devices, as Kubernetes writes them */
bool args_has_dotdot(const char *path);
/* A relative path without leading, trailing and doubled slashes; "" for "/". NULL: no memory. */
char *args_clean_path(struct arena *arena, const char *path);

/* args_data.c: each takes NULL for a part that is not there */
SHOAL_MUST_CHECK enum shoal_err args_apply_hardware(struct parse *p, const struct json_value *spec);
SHOAL_MUST_CHECK enum shoal_err args_apply_sources(struct parse *p, const struct json_value *sources);
SHOAL_MUST_CHECK enum shoal_err args_keep_data(struct parse *p);

#endif
