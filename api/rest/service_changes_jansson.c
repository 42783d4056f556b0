/* What an edit changes in a service's profile. See shoal/service_doc.h. */
#include "shoal/service_doc.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

#define DEPTH_MAX 8u
#define PATH_BYTES 400

static bool add_change(json_t *list, const char *path, json_t *from, json_t *to)
{
    json_t *change = json_pack("{s:s, s:O?, s:O?}", "path", path, "from", from, "to", to);

    return change != NULL && json_array_append_new(list, change) == 0;
}

/* Objects are walked; every other value is compared whole. */
static bool compare(json_t *list, const char *path, json_t *from, json_t *to, unsigned depth)
{
    const char *key;
    json_t *value;
    char below[PATH_BYTES];
    bool fine = true;

    if (depth == DEPTH_MAX || !json_is_object(from) || !json_is_object(to))
        return json_equal(from, to) || add_change(list, path, from, to);
    json_object_foreach(to, key, value) {
        (void)snprintf(below, sizeof(below), "%s%s%s", path, path[0] == '\0' ? "" : ".", key);
        fine = fine && compare(list, below, json_object_get(from, key), value, depth + 1);
    }
    json_object_foreach(from, key, value) {
        (void)snprintf(below, sizeof(below), "%s%s%s", path, path[0] == '\0' ? "" : ".", key);
        if (json_object_get(to, key) == NULL)
            fine = fine && add_change(list, below, value, NULL);
    }
    return fine;
}

enum shoal_err service_doc_changes(struct shoal_view before, struct shoal_view after, struct shoal_buf *out)
{
    json_t *was = before.len == 0 ? json_object() : json_loadb((const char *)before.bytes, before.len, 0, NULL);
    json_t *is = json_loadb((const char *)after.bytes, after.len, 0, NULL);
    json_t *list = json_array();
    char *text = NULL;
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    if (was != NULL && is != NULL && list != NULL &&
        compare(list, "", json_object_get(was, "profile"), json_object_get(is, "profile"), 0))
        text = json_dumps(list, JSON_COMPACT);
    if (text != NULL)
        err = shoal_buf_append(out, text, strlen(text));
    free(text);
    json_decref(was);
    json_decref(is);
    json_decref(list);
    return err;
}
