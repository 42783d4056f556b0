/* The value of --edt-options: a comma list of NAME=VALUE. Published clients send maxWorkers, and names that only their own
 * server knows: those are named in the launcher's log, never refused. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "args.h"

#include "shoal/banned.h"

static enum shoal_err take_workers(const char *text, size_t len, int64_t *workers, struct shoal_msg *msg)
{
    int64_t sum = 0;

    for (size_t i = 0; i < len && sum >= 0; i++)
        sum = text[i] < '0' || text[i] > '9' || sum > INT32_MAX ? -1 : sum * 10 + (text[i] - '0');
    if (sum < 1)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "--edt-options: maxWorkers=%.*s is not an integer of 1 or more",
                          len > 40 ? 40 : (int)len, text);
    *workers = sum;
    return SHOAL_OK;
}

static enum shoal_err take_mode(const char *text, size_t len, const char **mode, struct shoal_msg *msg)
{
    static const char *const known[] = { "sync_gdc", "sync", "async", "async_gdc" };

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (len != strlen(known[i]) || strncasecmp(text, known[i], len) != 0)
            continue;
        *mode = i == 0 ? NULL : known[i];
        return SHOAL_OK;
    }
    return shoal_fail(msg, SHOAL_ERR_INVALID, "--edt-options: mode=%.*s is none of sync, sync_gdc, async and async_gdc",
                      len > 40 ? 40 : (int)len, text);
}

enum shoal_err args_edt_parse(const char *value, struct args_edt *out, struct shoal_msg *msg)
{
    *out = (struct args_edt){ .workers = -1 };
    for (; true; value++) {
        size_t len = strcspn(value, ","), name = strcspn(value, "=,"), have = strlen(out->unknown);
        enum shoal_err err = SHOAL_OK;

        if (strncasecmp(value, "maxWorkers=", 11) == 0)
            err = take_workers(value + 11, len - 11, &out->workers, msg);
        else if (strncasecmp(value, "mode=", 5) == 0)
            err = take_mode(value + 5, len - 5, &out->mode, msg);
        else if (len > 0 && have + 44 < sizeof(out->unknown))
            (void)snprintf(out->unknown + have, sizeof(out->unknown) - have, "%s%.*s", have == 0 ? "" : ", ",
                           name > 40 ? 40 : (int)name, value);
        if (err != SHOAL_OK)
            return err;
        value += len;
        if (*value == '\0')
            return SHOAL_OK;
    }
}
