/* Tells the changes that an edit makes to a service's profile. See shoal/service_doc.h. */
#include "shoal/service_doc.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

#define DEPTH_MAX 8u
#define PATH_BYTES 400

struct lists {
    json_t *changes, *notes;
};

static bool add_change(struct lists *lists, const char *path, json_t *from, json_t *to)
{
    json_t *change = json_pack("{s:s, s:O?, s:O?}", "path", path, "from", from, "to", to);
    char note[PATH_BYTES + 100];

    if (change == NULL || json_array_append_new(lists->changes, change) != 0)
        return false;
    if (from != NULL || service_doc_knows(path))
        return true;
    (void)snprintf(note, sizeof(note), "%s: Shoal knows no such field of a profile, and it has no effect", path);
    return json_array_append_new(lists->notes, json_string(note)) == 0;
}

/* Objects are walked; every other value is compared whole. */
static bool compare(struct lists *list, const char *path, json_t *from, json_t *to, unsigned depth)
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

static bool put_list(struct shoal_buf *out, const json_t *list)
{
    char *text = json_dumps(list, JSON_COMPACT);
    bool put = text != NULL && shoal_buf_append(out, text, strlen(text)) == SHOAL_OK;

    free(text);
    return put;
}

enum shoal_err service_doc_changes(struct shoal_view before, struct shoal_view after, struct shoal_buf *out,
                                   struct shoal_buf *notes)
{
    json_t *was = before.len == 0 ? json_object() : json_loadb((const char *)before.bytes, before.len, 0, NULL);
    json_t *is = json_loadb((const char *)after.bytes, after.len, 0, NULL);
    struct lists lists = { json_array(), json_array() };
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    if (was != NULL && is != NULL && lists.changes != NULL && lists.notes != NULL &&
        compare(&lists, "", json_object_get(was, "profile"), json_object_get(is, "profile"), 0))
        err = put_list(out, lists.changes) && put_list(notes, lists.notes) ? SHOAL_OK : SHOAL_ERR_FULL;
    json_decref(was);
    json_decref(is);
    json_decref(lists.changes);
    json_decref(lists.notes);
    return err;
}
