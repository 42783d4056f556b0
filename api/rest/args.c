/* Options inside `args`, by one table (execs-api 4.5).
 *
 *   text -> tokens -> option with its value?  yes: checked by its class, then applied, noted, refused or dropped
 *                                             no : a word for the script, in order
 *   after a lone "--" every token is a word.
 *
 * A1. A token that the table does not know reaches the script unchanged: nothing is guessed, nothing abbreviated.
 * A2. A secret is in no result: not in the kept text, the options, the notes, or a message.
 * A3. What is understood but not done yet is refused by name, unless the specification calls it ignored. */
#include "args_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "shoal/limits.h"

#include "api/http/json_writer.h"

#include "shoal/banned.h"

enum option_id {
    OPT_EXEC_START,
    OPT_MODEL_MAIN,
    OPT_MODEL_DIR,
    OPT_USER_CMD,
    OPT_PBMODEL,
    OPT_APP_NAME,
    OPT_SUBMIT_USER,
    OPT_PRIORITY,
    OPT_PENDING_TIMEOUT,
    OPT_DATASTORE,
    OPT_WORKERS,
    OPT_DEVICE_TYPE,
    OPT_DEVICE_NUM,
    OPT_WORKER_MEMORY,
    OPT_NUM_PS,
    OPT_NUM_DRIVER,
    OPT_DRIVER_DEVICE,
    OPT_DRIVER_DEVICE_NUM,
    OPT_DRIVER_MEMORY,
    OPT_EDT_OPTIONS,
    OPT_ENV,
    OPT_ATTR,
    OPT_LABEL,
    OPT_DEBUG_LEVEL,
    OPT_ARRAY,
    OPT_WARM,
    OPT_CONDA,   /* WMLA's own environments are the host's Python, as they are for kernels; others are not supported yet */
    OPT_NOTE,    /* accepted, has no effect: a line in the launcher log */
    OPT_SILENT,  /* accepted, has no effect, by specification */
    OPT_REFUSED, /* not supported yet */
    OPT_DROPPED, /* a client's own option: vanishes with its value */
};

enum option_class {
    CLASS_FLAG,     /* no value */
    CLASS_ANY,      /* "-" of the specification: never an error */
    CLASS_TEXT,     /* M */
    CLASS_INT,      /* I */
    CLASS_CHOICE,   /* E */
    CLASS_SIZE,     /* Z */
    CLASS_QUANTITY, /* Q */
    CLASS_PAIR,     /* K */
    CLASS_PAIRS,    /* K, a comma list */
    CLASS_PATH,     /* P */
};

struct option_row {
    const char *name;
    enum option_id id;
    enum option_class class;
    int64_t min; /* INT */
    int64_t max;
    const char *choices; /* CHOICE: "|a|b|" */
    bool secret;         /* its value is kept nowhere */
};

#define PRIORITY_MAX 1000000
#define SECONDS_MAX 31622400 /* 366 days */

static const struct option_row table[] = {
    /* command */
    { .name = "exec-start", .id = OPT_EXEC_START, .class = CLASS_TEXT },
    { .name = "ig", .id = OPT_SILENT, .class = CLASS_ANY },
    /* what to run */
    { .name = "model-main", .id = OPT_MODEL_MAIN, .class = CLASS_TEXT },
    { .name = "model-dir", .id = OPT_MODEL_DIR, .class = CLASS_PATH },
    { .name = "user-cmd", .id = OPT_USER_CMD, .class = CLASS_FLAG },
    { .name = "pbmodel-name", .id = OPT_PBMODEL, .class = CLASS_TEXT },
    { .name = "pbmodel-cmd", .id = OPT_PBMODEL, .class = CLASS_TEXT },
    /* identity and place */
    { .name = "appName", .id = OPT_APP_NAME, .class = CLASS_TEXT },
    { .name = "submit-user", .id = OPT_SUBMIT_USER, .class = CLASS_TEXT },
    { .name = "consumer", .id = OPT_REFUSED, .class = CLASS_TEXT },
    { .name = "msd-priority", .id = OPT_PRIORITY, .class = CLASS_INT, .min = 1, .max = PRIORITY_MAX },
    { .name = "msd-pending-timeout", .id = OPT_PENDING_TIMEOUT, .class = CLASS_INT, .min = 1, .max = SECONDS_MAX },
    { .name = "msd-array", .id = OPT_ARRAY, .class = CLASS_TEXT },
    { .name = "msd-warm", .id = OPT_WARM, .class = CLASS_FLAG },
    { .name = "msd-pack-id", .id = OPT_REFUSED, .class = CLASS_TEXT },
    /* data */
    { .name = "cs-datastore-meta", .id = OPT_DATASTORE, .class = CLASS_PAIRS },
    { .name = "data-source", .id = OPT_REFUSED, .class = CLASS_ANY },
    /* Python environment */
    { .name = "conda-home", .id = OPT_NOTE, .class = CLASS_ANY },
    { .name = "conda-env-name", .id = OPT_CONDA, .class = CLASS_TEXT },
    { .name = "conda-env-yaml", .id = OPT_REFUSED, .class = CLASS_TEXT },
    { .name = "conda-package", .id = OPT_REFUSED, .class = CLASS_TEXT },
    { .name = "python-version", .id = OPT_SILENT, .class = CLASS_ANY },
    /* workers and driver */
    { .name = "numWorker", .id = OPT_WORKERS, .class = CLASS_INT, .min = 1, .max = INT32_MAX },
    { .name = "workerDeviceType", .id = OPT_DEVICE_TYPE, .class = CLASS_CHOICE, .choices = "|cpu|gpu|" },
    { .name = "workerDeviceNum", .id = OPT_DEVICE_NUM, .class = CLASS_INT, .min = 0, .max = INT32_MAX },
    { .name = "gpuPerWorker", .id = OPT_DEVICE_NUM, .class = CLASS_INT, .min = 0, .max = INT32_MAX },
    { .name = "workerMemory", .id = OPT_WORKER_MEMORY, .class = CLASS_SIZE },
    { .name = "workerCPULimit", .id = OPT_REFUSED, .class = CLASS_QUANTITY },
    { .name = "workerGPULimit", .id = OPT_REFUSED, .class = CLASS_QUANTITY },
    { .name = "workerMemoryLimit", .id = OPT_REFUSED, .class = CLASS_SIZE },
    { .name = "numPs", .id = OPT_NUM_PS, .class = CLASS_INT, .min = 0, .max = INT32_MAX },
    { .name = "numDriver", .id = OPT_NUM_DRIVER, .class = CLASS_INT, .min = 0, .max = 1 },
    { .name = "driverDeviceType", .id = OPT_DRIVER_DEVICE, .class = CLASS_CHOICE, .choices = "|cpu|gpu|" },
    { .name = "driverDeviceNum", .id = OPT_DRIVER_DEVICE_NUM, .class = CLASS_INT, .min = 0, .max = INT32_MAX },
    { .name = "driverMemory", .id = OPT_DRIVER_MEMORY, .class = CLASS_SIZE },
    { .name = "driverCPULimit", .id = OPT_REFUSED, .class = CLASS_QUANTITY },
    { .name = "driverGPULimit", .id = OPT_REFUSED, .class = CLASS_QUANTITY },
    { .name = "driverMemoryLimit", .id = OPT_REFUSED, .class = CLASS_SIZE },
    { .name = "edt-options", .id = OPT_EDT_OPTIONS, .class = CLASS_TEXT },
    { .name = "lsf-gpu-syntax", .id = OPT_NOTE, .class = CLASS_ANY },
    { .name = "exclusive", .id = OPT_REFUSED, .class = CLASS_FLAG },
    { .name = "accelerators", .id = OPT_REFUSED, .class = CLASS_TEXT },
    { .name = "mpiarg", .id = OPT_REFUSED, .class = CLASS_TEXT },
    /* security context, image, environment */
    { .name = "sc-runasuser", .id = OPT_REFUSED, .class = CLASS_INT, .min = 0, .max = UINT32_MAX },
    { .name = "sc-runasgroup", .id = OPT_REFUSED, .class = CLASS_INT, .min = 0, .max = UINT32_MAX },
    { .name = "sc-fsgroup", .id = OPT_REFUSED, .class = CLASS_INT, .min = 0, .max = UINT32_MAX },
    { .name = "msd-env", .id = OPT_ENV, .class = CLASS_PAIR },
    { .name = "msd-attr", .id = OPT_ATTR, .class = CLASS_PAIR },
    { .name = "msd-label", .id = OPT_LABEL, .class = CLASS_PAIR },
    { .name = "msd-image-name", .id = OPT_NOTE, .class = CLASS_TEXT },
    { .name = "msd-image-pull-secret", .id = OPT_NOTE, .class = CLASS_TEXT, .secret = true },
    { .name = "msd-image-pull-policy",
      .id = OPT_NOTE,
      .class = CLASS_CHOICE,
      .choices = "|Always|Never|IfNotPresent|" },
    { .name = "msd-task0-node-selector", .id = OPT_REFUSED, .class = CLASS_PAIRS },
    { .name = "msd-task12n-node-selector", .id = OPT_REFUSED, .class = CLASS_PAIRS },
    { .name = "msd-podaffinity-rule", .id = OPT_REFUSED, .class = CLASS_CHOICE, .choices = "|preferred|required|" },
    { .name = "msd-podaffinity-topology-key", .id = OPT_REFUSED, .class = CLASS_TEXT },
    /* metrics, other */
    { .name = "cs-rmq-meta", .id = OPT_NOTE, .class = CLASS_ANY, .secret = true },
    { .name = "cs-url-meta", .id = OPT_NOTE, .class = CLASS_ANY },
    { .name = "cs-url-bearer", .id = OPT_NOTE, .class = CLASS_ANY, .secret = true },
    { .name = "debug-level", .id = OPT_DEBUG_LEVEL, .class = CLASS_CHOICE, .choices = "|debug|info|warn|error|" },
    /* a client's own (execs-api 4.4) */
    { .name = "rest-host", .id = OPT_DROPPED, .class = CLASS_ANY },
    { .name = "rest-port", .id = OPT_DROPPED, .class = CLASS_ANY },
    { .name = "master-host", .id = OPT_DROPPED, .class = CLASS_ANY },
    { .name = "dli-rest-port", .id = OPT_DROPPED, .class = CLASS_ANY },
    { .name = "username", .id = OPT_DROPPED, .class = CLASS_ANY },
    { .name = "password", .id = OPT_DROPPED, .class = CLASS_ANY },
    { .name = "jwt-token", .id = OPT_DROPPED, .class = CLASS_ANY },
    { .name = "query-args", .id = OPT_DROPPED, .class = CLASS_ANY },
};

/* ---- tokens ---- */

#define QUOTE "_QUOTE_"
#define QUOTE_LEN (sizeof(QUOTE) - 1)

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* One token from *at on; white space between two _QUOTE_ marks is part of it. */
static enum shoal_err take_token(struct parse *p, const char **at, struct token *token)
{
    const char *start = *at;
    const char *end = start;
    bool quoted = false;
    size_t len = 0;
    char *text;

    while (*end != '\0' && (quoted || !is_space(*end))) {
        if (strncmp(end, QUOTE, QUOTE_LEN) == 0) {
            quoted = !quoted;
            end += QUOTE_LEN;
        } else {
            end++;
        }
    }
    if (quoted)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "args: a %s that is not closed by another one", QUOTE);
    text = arena_copy(p->arena, shoal_view_of(start, (size_t)(end - start)));
    if (text == NULL)
        return shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory; try again later");
    token->raw = text;
    token->text = text;
    token->kept = true;
    if (strstr(text, QUOTE) != NULL) {
        char *clean = arena_text(p->arena, text);

        if (clean == NULL)
            return shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory; try again later");
        for (const char *from = text; *from != '\0';) {
            if (strncmp(from, QUOTE, QUOTE_LEN) == 0)
                from += QUOTE_LEN;
            else
                clean[len++] = *from++;
        }
        clean[len] = '\0';
        token->text = clean;
    }
    *at = end;
    return SHOAL_OK;
}

static enum shoal_err tokenize(struct parse *p, const char *args)
{
    size_t max = strlen(args) / 2 + 2;

    p->tokens = arena_alloc(p->arena, max * sizeof(*p->tokens));
    p->words = arena_alloc(p->arena, max * sizeof(*p->words));
    p->env = arena_alloc(p->arena, max * sizeof(*p->env));
    p->attrs = arena_alloc(p->arena, max * sizeof(*p->attrs));
    p->labels = arena_alloc(p->arena, max * sizeof(*p->labels));
    p->notes = arena_alloc(p->arena, (max + 8) * sizeof(*p->notes));
    if (p->tokens == NULL || p->words == NULL || p->env == NULL || p->attrs == NULL || p->labels == NULL ||
        p->notes == NULL)
        return shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory; try again later");
    while (*args != '\0') {
        enum shoal_err err;

        if (is_space(*args)) {
            args++;
            continue;
        }
        SHOAL_ASSERT(p->count < max);
        err = take_token(p, &args, &p->tokens[p->count]);
        if (err != SHOAL_OK)
            return err;
        p->count++;
    }
    return SHOAL_OK;
}

/* ---- classes ---- */

/* "4G", "512", "1.5gib": bytes. No unit means MiB; k, m, g and t are powers of 1,024. */
bool args_parse_size(const char *text, uint64_t *bytes)
{
    uint64_t whole = 0;
    uint64_t part = 0;
    uint64_t scale = 1;
    uint64_t unit = 1ull << 20;
    unsigned digits = 0;

    for (; *text >= '0' && *text <= '9'; text++, digits++) {
        if (whole > (1ull << 40))
            return false;
        whole = whole * 10 + (uint64_t)(*text - '0');
    }
    if (digits == 0)
        return false;
    if (*text == '.') {
        text++;
        if (*text < '0' || *text > '9')
            return false;
        for (; *text >= '0' && *text <= '9'; text++) {
            if (scale < 1000000) {
                part = part * 10 + (uint64_t)(*text - '0');
                scale *= 10;
            }
        }
    }
    if (*text != '\0' && strchr("kmgtKMGT", *text) != NULL) {
        const char *units = "kmgt";

        unit = 1ull << (10 * (strchr(units, *text | 32) - units + 1));
        text++;
        if ((*text | 32) == 'i')
            text++;
        if ((*text | 32) == 'b')
            text++;
    } else if ((*text | 32) == 'b') {
        unit = 1;
        text++;
    }
    if (*text != '\0' || whole > (1ull << 60) / unit)
        return false;
    *bytes = whole * unit + part * (unit / scale) + part * (unit % scale) / scale;
    return true;
}

bool args_parse_int(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    int64_t sum = 0;

    if (negative)
        text++;
    if (*text == '\0')
        return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || sum > INT64_MAX / 10 - 9)
            return false;
        sum = sum * 10 + (*text - '0');
    }
    *value = negative ? -sum : sum;
    return true;
}

bool args_is_quantity(const char *text)
{
    unsigned digits = 0;
    unsigned points = 0;

    for (; (*text >= '0' && *text <= '9') || (*text == '.' && points == 0 && digits > 0); text++) {
        points += *text == '.' ? 1u : 0u;
        digits += *text == '.' ? 0u : 1u;
    }
    return digits > 0 && text[-1] != '.' && (*text == '\0' || (strcmp(text, "m") == 0 && points == 0));
}

static bool is_pair(const char *text, size_t len)
{
    size_t name = 0;

    while (name < len && ((text[name] >= 'a' && text[name] <= 'z') || (text[name] >= 'A' && text[name] <= 'Z') ||
                          text[name] == '_' || (name > 0 && text[name] >= '0' && text[name] <= '9')))
        name++;
    return name > 0 && name < len && text[name] == '=';
}

static bool is_pair_list(const char *text)
{
    while (true) {
        size_t len = strcspn(text, ",");

        if (!is_pair(text, len))
            return false;
        if (text[len] == '\0')
            return true;
        text += len + 1;
    }
}

bool args_has_dotdot(const char *path)
{
    while (true) {
        size_t len = strcspn(path, "/");

        if (len == 2 && memcmp(path, "..", 2) == 0)
            return true;
        if (path[len] == '\0')
            return false;
        path += len + 1;
    }
}

static bool is_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (const char *at = choices; len > 0 && *at != '\0'; at++)
        if (*at == '|' && strncasecmp(at + 1, text, len) == 0 && at[1 + len] == '|')
            return true;
    return false;
}

static enum shoal_err bad(struct parse *p, const struct option_row *row, const char *value, const char *want)
{
    return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--%s: \"%.60s\" is not %s", row->name, row->secret ? "***" : value,
                      want);
}

static enum shoal_err check_class(struct parse *p, const struct option_row *row, const char *value, int64_t *number)
{
    uint64_t bytes;
    char want[96];

    switch (row->class) {
    case CLASS_FLAG:
    case CLASS_ANY:
    case CLASS_TEXT: return SHOAL_OK;
    case CLASS_INT:
        if (args_parse_int(value, number) && *number >= row->min && *number <= row->max)
            return SHOAL_OK;
        if (row->max == INT32_MAX || row->max == UINT32_MAX)
            (void)snprintf(want, sizeof(want), "an integer of %" PRId64 " or more", row->min);
        else
            (void)snprintf(want, sizeof(want), "an integer from %" PRId64 " to %" PRId64, row->min, row->max);
        return bad(p, row, value, want);
    case CLASS_CHOICE:
        if (is_choice(row->choices, value))
            return SHOAL_OK;
        (void)snprintf(want, sizeof(want), "one of %s", row->choices);
        return bad(p, row, value, want);
    case CLASS_SIZE: return args_parse_size(value, &bytes) ? SHOAL_OK : bad(p, row, value, "a size such as 512M or 4G");
    case CLASS_QUANTITY: return args_is_quantity(value) ? SHOAL_OK : bad(p, row, value, "a quantity such as 2, 0.5 or 500m");
    case CLASS_PAIR: return is_pair(value, strlen(value)) ? SHOAL_OK : bad(p, row, value, "of the form NAME=VALUE");
    case CLASS_PAIRS: return is_pair_list(value) ? SHOAL_OK : bad(p, row, value, "a comma list of NAME=VALUE");
    case CLASS_PATH:
        if (value[0] == '/')
            return bad(p, row, value, "a relative path: give the directory's name inside the upload");
        return args_has_dotdot(value) ? bad(p, row, value, "a path without \"..\"") : SHOAL_OK;
    }
    return SHOAL_OK;
}

/* ---- what options do ---- */

static enum shoal_err not_yet(struct parse *p, const char *name)
{
    return shoal_fail(p->msg, SHOAL_ERR_UNSUPPORTED, "not supported yet: --%s; leave it out", name);
}

static enum shoal_err set_text(struct parse *p, const struct option_row *row, const char **slot, const char *value)
{
    if (strlen(value) > 255)
        return shoal_fail(p->msg, SHOAL_ERR_TOO_BIG, "--%s: longer than 255 bytes", row->name);
    for (const char *at = value; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--%s: a control character in its value", row->name);
    *slot = value;
    return SHOAL_OK;
}

static void note(struct parse *p, const char *text)
{
    if (text != NULL)
        p->notes[p->note_count++] = text;
}

/* A relative path without leading, trailing and doubled slashes; "" for "/". */
char *args_clean_path(struct arena *arena, const char *path)
{
    char *out = arena_text(arena, path);
    size_t len = 0;

    if (out == NULL)
        return NULL;
    while (*path != '\0') {
        size_t piece = strcspn(path, "/");

        if (piece > 0 && !(piece == 1 && *path == '.')) {
            if (len > 0)
                out[len++] = '/';
            memcpy(out + len, path, piece);
            len += piece;
        }
        path += piece + (path[piece] == '/' ? 1 : 0);
    }
    out[len] = '\0';
    return out;
}

static enum shoal_err apply_datastore(struct parse *p, const struct option_row *row, const char *value)
{
    struct shoal_job_options *o = &p->out->options;
    const char *at = value;

    o->datastore_meta = value;
    o->data_path = "";
    while (true) {
        size_t len = strcspn(at, ",");

        if (strncmp(at, "type=", 5) == 0 && !(len == 7 && strncasecmp(at + 5, "fs", 2) == 0))
            return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--%s: type must be fs", row->name);
        if (strncmp(at, "data_path=", 10) == 0) {
            char *path = arena_copy(p->arena, shoal_view_of(at + 10, len - 10));

            if (path == NULL || (path = args_clean_path(p->arena, path)) == NULL)
                return shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory; try again later");
            if (args_has_dotdot(path))
                return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--%s: \"..\" in data_path", row->name);
            o->data_path = path;
        }
        if (at[len] == '\0')
            return SHOAL_OK;
        at += len + 1;
    }
}

/* An elastic job has one way to train, which keeps what each mode promises (decision 0056). */
static enum shoal_err apply_edt(struct parse *p, const char *value)
{
    struct args_edt edt;
    enum shoal_err err = args_edt_parse(value, &edt, p->msg);

    if (err == SHOAL_OK && edt.workers > 0)
        p->workers = edt.workers;
    if (err == SHOAL_OK && edt.mode != NULL)
        note(p, arena_printf(p->arena,
                             "--edt-options mode=%s is done as sync_gdc: an update of the weights waits for the mini-batches "
                             "of engines_number, so no gradient is older than the weights that it changes",
                             edt.mode));
    if (err == SHOAL_OK && edt.unknown[0] != '\0')
        note(p, arena_printf(p->arena, "--edt-options: %s has no effect here; maxWorkers and mode are known", edt.unknown));
    return err;
}

static enum shoal_err apply_submit_user(struct parse *p, const char *value)
{
    const struct shoal_user *caller = p->input->caller;

    if (caller == NULL || strcmp(value, caller->name) == 0)
        return SHOAL_OK;
    if (!caller->admin)
        return shoal_fail(p->msg, SHOAL_ERR_DENIED, "--submit-user: only an administrator may submit for another user");
    return not_yet(p, "submit-user");
}

static enum shoal_err apply(struct parse *p, const struct option_row *row, const char *value, int64_t number)
{
    struct shoal_job_options *o = &p->out->options;

    switch (row->id) {
    case OPT_EXEC_START:
        p->framework = args_framework_find(p->input->frameworks, p->input->framework_count, value, p->msg);
        return p->framework != NULL ? SHOAL_OK : SHOAL_ERR_INVALID;
    case OPT_MODEL_MAIN: return set_text(p, row, &o->main, value);
    case OPT_MODEL_DIR: {
        const char *dir = args_clean_path(p->arena, value);

        return dir == NULL ? shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory") : set_text(p, row, &o->model_dir, dir);
    }
    case OPT_USER_CMD: o->user_cmd = true; return SHOAL_OK;
    case OPT_PBMODEL: p->pbmodel = value; return SHOAL_OK;
    case OPT_APP_NAME: return set_text(p, row, &o->app_name, value);
    case OPT_SUBMIT_USER: return apply_submit_user(p, value);
    case OPT_PRIORITY: o->priority = (uint32_t)number; return SHOAL_OK;
    case OPT_PENDING_TIMEOUT: o->pending_timeout_s = (uint32_t)number; return SHOAL_OK;
    case OPT_DATASTORE: return apply_datastore(p, row, value);
    case OPT_WORKERS: p->workers = number; return SHOAL_OK;
    case OPT_DEVICE_TYPE: o->device = (value[0] | 32) == 'g' ? SHOAL_DEVICE_GPU : SHOAL_DEVICE_CPU; return SHOAL_OK;
    case OPT_DEVICE_NUM: p->device_num = number; return SHOAL_OK;
    case OPT_WORKER_MEMORY:
        note(p, arena_printf(p->arena, "--%s %.80s is not enforced here: a worker may use more", row->name, value));
        return args_parse_size(value, &o->worker_memory_bytes) ? SHOAL_OK : SHOAL_ERR_INVALID;
    case OPT_NUM_PS:
        if (number > 0)
            note(p, arena_printf(p->arena,
                                 "--numPs %.20s has no effect here: no process is a parameter server, each worker of an "
                                 "elastic job holds the weights and updates them",
                                 value));
        return SHOAL_OK;
    case OPT_NUM_DRIVER: p->num_driver = number; return SHOAL_OK;
    case OPT_DRIVER_DEVICE: p->driver_gpu = (value[0] | 32) == 'g'; return SHOAL_OK;
    case OPT_DRIVER_DEVICE_NUM: return number <= 1 ? SHOAL_OK : not_yet(p, row->name);
    case OPT_DRIVER_MEMORY:
        note(p, arena_printf(p->arena, "--%s %.80s is not enforced here: the driver may use more", row->name, value));
        return args_parse_size(value, &o->driver_memory_bytes) ? SHOAL_OK : SHOAL_ERR_INVALID;
    case OPT_EDT_OPTIONS: return apply_edt(p, value);
    case OPT_ENV: p->env[p->env_count++] = value; return SHOAL_OK;
    case OPT_ATTR: p->attrs[p->attr_count++] = value; return SHOAL_OK;
    case OPT_LABEL: p->labels[p->label_count++] = value; return SHOAL_OK;
    case OPT_DEBUG_LEVEL: return set_text(p, row, &o->debug_level, value);
    case OPT_ARRAY: return set_text(p, row, &o->array, value);
    case OPT_WARM: o->warm = true; return SHOAL_OK;
    case OPT_CONDA:
        if (strncmp(value, "dlipy", 5) != 0)
            return not_yet(p, row->name);
        note(p, arena_printf(p->arena, "--%s %.80s is the host's own Python here", row->name, value));
        return SHOAL_OK;
    case OPT_NOTE:
        note(p, row->secret ? arena_printf(p->arena, "--%s has no effect here", row->name)
                            : arena_printf(p->arena, "--%s %.80s has no effect here", row->name, value));
        return SHOAL_OK;
    case OPT_REFUSED: return not_yet(p, row->name);
    case OPT_SILENT:
    case OPT_DROPPED: return SHOAL_OK;
    }
    return SHOAL_OK;
}

/* ---- the walk ---- */

/* The row of "--name" or "--name=value"; *value is set in the second case. */
static const struct option_row *find_option(const char *text, const char **value)
{
    size_t len;

    *value = NULL;
    if (text[0] != '-' || text[1] != '-')
        return NULL;
    text += 2;
    len = strcspn(text, "=");
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strlen(table[i].name) == len && memcmp(table[i].name, text, len) == 0) {
            if (text[len] == '=')
                *value = text + len + 1;
            return &table[i];
        }
    }
    return NULL;
}

/* Takes the option at *i, and its value if that is the next token. */
static enum shoal_err take_option(struct parse *p, const struct option_row *row, const char *value, size_t *i)
{
    struct token *token = &p->tokens[*i];
    struct token *next = *i + 1 < p->count ? &p->tokens[*i + 1] : NULL;
    int64_t number = 0;
    enum shoal_err err;

    if (row->id == OPT_DROPPED)
        token->kept = false;
    token->masked = row->secret && value != NULL;
    if (row->class == CLASS_FLAG)
        return apply(p, row, "", 0);
    if (value == NULL && next != NULL && strncmp(next->text, "--", 2) != 0) {
        value = next->text;
        next->kept = row->id != OPT_DROPPED;
        next->masked = row->secret;
        (*i)++;
    }
    if (value == NULL || value[0] == '\0') {
        if (row->class == CLASS_ANY)
            return row->id == OPT_REFUSED ? not_yet(p, row->name) : SHOAL_OK;
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--%s: its value is missing", row->name);
    }
    err = check_class(p, row, value, &number);
    return err == SHOAL_OK ? apply(p, row, value, number) : err;
}

static enum shoal_err walk(struct parse *p)
{
    for (size_t i = 0; i < p->count; i++) {
        const char *value;
        const struct option_row *row = find_option(p->tokens[i].text, &value);
        enum shoal_err err;

        if (p->separator) {
            /* dlicmd removes its own options here too; what is left of them has the form --password=... */
            if (row != NULL && row->id == OPT_DROPPED && value != NULL) {
                p->tokens[i].kept = false;
                continue;
            }
            p->words[p->word_count++] = p->tokens[i].text;
            p->words_after++;
        } else if (strcmp(p->tokens[i].raw, "--") == 0) {
            p->separator = true;
        } else if (row == NULL) {
            p->words[p->word_count++] = p->tokens[i].text;
        } else {
            err = take_option(p, row, value, &i);
            if (err != SHOAL_OK)
                return err;
        }
    }
    return SHOAL_OK;
}

/* The text to keep: as received, single spaces, one at the end, secrets out. */
static enum shoal_err keep_text(struct parse *p)
{
    struct shoal_buf text = { 0 };
    enum shoal_err err = SHOAL_OK;

    for (size_t i = 0; i < p->count && err == SHOAL_OK; i++) {
        const struct token *token = &p->tokens[i];
        size_t name = token->masked && strncmp(token->text, "--", 2) == 0 ? strcspn(token->text, "=") + 1 : 0;

        if (!token->kept)
            continue;
        if (token->masked) {
            err = shoal_buf_append(&text, token->text, name);
            if (err == SHOAL_OK)
                err = shoal_buf_append(&text, "***", 3);
        } else {
            err = shoal_buf_append(&text, token->raw, strlen(token->raw));
        }
        if (err == SHOAL_OK)
            err = shoal_buf_append(&text, " ", 1);
    }
    p->out->args = err == SHOAL_OK ? arena_copy(p->arena, shoal_buf_view(&text)) : NULL;
    shoal_buf_deinit(&text);
    return p->out->args != NULL ? SHOAL_OK : shoal_fail(p->msg, SHOAL_ERR_FULL, "out of memory; try again later");
}

/* ---- the whole ---- */

static enum shoal_err check_command(struct parse *p)
{
    const struct shoal_job_options *o = &p->out->options;

    if (p->framework == NULL)
        return shoal_fail(
            p->msg, SHOAL_ERR_INVALID,
            "args: no framework; begin with --exec-start and its name (GET /execs/frameworks lists them)");
    if (!p->framework->supported)
        return shoal_fail(p->msg, SHOAL_ERR_UNSUPPORTED, "not supported yet: framework %s%s", p->framework->name,
                          args_framework_of_several(p->framework));
    if (p->pbmodel != NULL)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--pbmodel-name: framework %s has no prebuilt models",
                          p->framework->name);
    if (o->user_cmd && p->framework->elastic)
        return not_yet(p, "user-cmd with an elastic framework");
    if (o->warm && (o->user_cmd || p->framework->elastic))
        return shoal_fail(p->msg, SHOAL_ERR_INVALID,
                          "--msd-warm: only plain Python scripts start warm; leave it out %s",
                          o->user_cmd ? "with --user-cmd" : "with an elastic framework, whose workers start so anyway");
    if (o->user_cmd && p->words_after == 0)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--user-cmd: the command is missing; write it after a lone --");
    if (!o->user_cmd && o->main[0] == '\0' && o->model_dir[0] != '\0')
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "--model-dir alone says not what to start; add --model-main");
    if (!o->user_cmd && o->main[0] == '\0')
        return shoal_fail(p->msg, SHOAL_ERR_INVALID, "nothing to run; give --model-main, or --user-cmd and a command");
    return SHOAL_OK;
}

static enum shoal_err settle_workers(struct parse *p)
{
    struct shoal_job_options *o = &p->out->options;
    const struct shoal_framework *f = p->framework;
    int64_t workers;

    SHOAL_ASSERT(f != NULL); /* check_command came first */
    workers = p->workers < 0 ? (int64_t)f->workers_default : p->workers;
    if (workers > (int64_t)f->workers_max)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID,
                          "--numWorker: %" PRId64 " is above the %u that framework %s allows%s", workers, f->workers_max,
                          f->name, args_framework_of_several(f));
    o->workers_max = (unsigned)workers;
    o->workers_min = f->elastic ? 1 : (unsigned)workers;
    if (p->device_num == 0)
        o->device = SHOAL_DEVICE_CPU;
    if (p->device_num > (int64_t)f->gpus_per_worker_max)
        return shoal_fail(p->msg, SHOAL_ERR_INVALID,
                          "--workerDeviceNum: %" PRId64 " is above the %u that framework %s allows", p->device_num,
                          f->gpus_per_worker_max, f->name);
    if (p->device_num > 1)
        return not_yet(p, "workerDeviceNum above 1");
    o->devices_per_worker = 1;
    if (p->num_driver >= 0 && (p->num_driver == 1) != f->elastic)
        return not_yet(p, f->elastic ? "numDriver 0 with an elastic framework"
                                     : "numDriver 1 with a framework without a driver");
    if (p->driver_gpu)
        return not_yet(p, "driverDeviceType gpu");
    if (o->worker_memory_bytes == 0 && !args_parse_size(f->worker_memory, &o->worker_memory_bytes))
        o->worker_memory_bytes = 4ull << 30;
    return SHOAL_OK;
}

static void settle_options(struct parse *p)
{
    struct shoal_job_options *o = &p->out->options;

    o->framework = p->framework->name;
    o->elastic = p->framework->elastic;
    if (o->app_name[0] == '\0')
        o->app_name = p->framework->app_name;
    o->env = (struct shoal_texts){ p->env, p->env_count };
    o->attrs = (struct shoal_texts){ p->attrs, p->attr_count };
    o->labels = (struct shoal_texts){ p->labels, p->label_count };
    o->notes = (struct shoal_texts){ p->notes, p->note_count };
    o->script_argv = (struct shoal_texts){ p->words, p->word_count };
    if (o->user_cmd) { /* stray words before the separator are no part of the command */
        o->script_argv.items += p->word_count - p->words_after;
        o->script_argv.count = p->words_after;
    }
}

enum shoal_err args_parse(struct arena *arena, const struct args_input *input, struct args_result *out,
                          struct shoal_msg *msg)
{
    struct parse p = {
        .arena = arena, .input = input, .out = out, .msg = msg, .workers = -1, .device_num = -1, .num_driver = -1
    };
    enum shoal_err err;

    *out = (struct args_result){
        .options = { .app_name = "",
                     .main = "",
                     .model_dir = "",
                     .submit_user = "",
                     .data_path = "",
                     .datastore_meta = "",
                     .debug_level = "info",
                     .array = "",
                     .service = "",
                     .profile = "" },
    };
    if (strlen(input->args) > SHOAL_ARGS_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "args: %zu bytes; at most %u are taken", strlen(input->args),
                          SHOAL_ARGS_BYTES_MAX);
    err = tokenize(&p, input->args);
    if (err == SHOAL_OK)
        err = walk(&p);
    if (err == SHOAL_OK)
        err = check_command(&p);
    if (err == SHOAL_OK && input->data != NULL)
        err = args_apply_hardware(&p, json_input_get(input->data, "hardwareSpec"));
    if (err == SHOAL_OK && input->data != NULL)
        err = args_apply_sources(&p, json_input_get(input->data, "dataSource"));
    if (err == SHOAL_OK)
        err = settle_workers(&p);
    if (err == SHOAL_OK)
        err = keep_text(&p);
    if (err == SHOAL_OK)
        err = args_keep_data(&p);
    if (err == SHOAL_OK)
        settle_options(&p);
    return err;
}
