/* Administrators change hosts and the mesh group here: see shoal/backend.h, node_change and mesh_recover. */
#include "routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/crypto.h"

#include "shoal/banned.h"

#define KEY_BYTES_MAX 200

bool routes_flag(struct http_request *request, const char *key, bool *value)
{
    const char *text = http_query(request, key);

    *value = text != NULL && strcmp(text, "true") == 0;
    if (text == NULL || *value || strcmp(text, "false") == 0)
        return true;
    http_respond_error(request, 400, "%s: \"%.40s\" is not true or false", key, text);
    return false;
}

/* ---- nodes ---- */

static void on_changed(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct http_request *request = arg;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        json_object_begin(&w, NULL);
        json_text(&w, "text", msg->text);
        json_end(&w);
        http_respond_json(request, 200, &w);
    }
    http_request_release(request);
}

static void change(struct http_request *request, enum shoal_node_verb verb, bool force)
{
    const struct shoal_backend *backend = &request->http->backend;

    if (!request->user.admin) {
        http_respond_error(request, 403, "only an administrator may change which hosts belong to the mesh; ask one");
        return;
    }
    http_request_hold(request);
    backend->node_change(backend->ctx, &request->user, request->params[0], verb, force, on_changed, request);
}

void routes_node_remove(struct http_request *request)
{
    bool force;

    if (routes_flag(request, "force", &force))
        change(request, SHOAL_NODE_REMOVE, force);
}

void routes_node_readmit(struct http_request *request) { change(request, SHOAL_NODE_READMIT, false); }

void routes_node_drain(struct http_request *request) { change(request, SHOAL_NODE_DRAIN, false); }

void routes_node_undrain(struct http_request *request) { change(request, SHOAL_NODE_UNDRAIN, false); }

void routes_node_leave(struct http_request *request)
{
    bool force;

    if (routes_flag(request, "force", &force))
        change(request, SHOAL_NODE_LEAVE, force);
}

/* ---- the mesh group ---- */

void routes_recovery_begin(const struct shoal_recovery_info *recovery, const char *of, char *text, size_t cap)
{
    (void)snprintf(text, cap, "%u of %u guardians%s are lost:", recovery->lost_count, recovery->guardians, of);
    for (unsigned i = 0; i < recovery->lost_count; i++) {
        size_t used = strlen(text);

        (void)snprintf(text + used, cap - used, " %s", recovery->lost[i]);
    }
}

void routes_recovery_answer(struct http_request *request, const struct shoal_recovery_info *recovery, const char *id,
                            const char *text)
{
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    json_object_begin(&w, NULL);
    if (id != NULL)
        json_text(&w, "id", id);
    json_bool(&w, "recovered", recovery->done);
    json_uint(&w, "generation", recovery->generation);
    json_text(&w, "node", recovery->node);
    if (id != NULL)
        json_uint(&w, "term", recovery->term);
    json_uint(&w, "index", recovery->index);
    json_uint(&w, "committed", recovery->commit);
    json_uint(&w, "guardians", recovery->guardians);
    json_array_begin(&w, "lost");
    for (unsigned i = 0; i < recovery->lost_count; i++)
        json_text(&w, NULL, recovery->lost[i]);
    json_end(&w);
    json_text(&w, "text", text);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

static void recovery_text(const struct shoal_recovery_info *recovery, char *text, size_t cap)
{
    size_t used;

    routes_recovery_begin(recovery, " of the mesh group", text, cap);
    used = strlen(text);
    (void)snprintf(
        text + used, cap - used,
        ". %s holds what the group ordered up to entry %" PRIu64
        ". Users, passwords, revoked tokens, frameworks and removed hosts that were changed after that are as "
        "they were before. ",
        recovery->node, recovery->index);
    used = strlen(text);
    if (recovery->done)
        (void)snprintf(text + used, cap - used,
                       "The mesh group goes on from there as generation %" PRIu32
                       "; what the lost guardians hold is void, also if they come back",
                       recovery->generation);
    else
        (void)snprintf(text + used, cap - used,
                       "Nothing was changed. If they are gone for good, and not just parted from this node: shoal mesh "
                       "recover --yes --key mesh.key");
}

/* The mesh's key, for as long as the backend may look at it. */
struct recovering {
    char key[KEY_BYTES_MAX];
};

static void recovering_free(void *state)
{
    shoal_wipe(state, sizeof(struct recovering));
    free(state);
}

static void on_recovery(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                        const struct shoal_recovery_info *recovery)
{
    struct http_request *request = arg;
    char text[1600];

    if (err != SHOAL_OK) {
        http_respond_failure(request, err, msg, 404);
    } else {
        recovery_text(recovery, text, sizeof(text));
        routes_recovery_answer(request, recovery, NULL, text);
    }
    http_request_release(request);
}

void routes_mesh_recover(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_view value = { 0 };
    struct recovering *recovering;
    bool confirmed;

    if (!request->user.admin) {
        http_respond_error(
            request, 403,
            "only an administrator may recover the mesh group: it gives up what lost guardians alone knew; ask one");
        return;
    }
    if (!routes_flag(request, "confirm", &confirmed))
        return;
    recovering = calloc(1, sizeof(*recovering));
    if (recovering == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return;
    }
    if (http1_header_find(&request->head, "shoal-mesh-key", &value) && value.len < sizeof(recovering->key))
        memcpy(recovering->key, value.bytes, value.len);
    request->state = recovering;
    request->state_free = recovering_free;
    http_request_hold(request);
    backend->mesh_recover(backend->ctx, &request->user, value.len == 0 ? NULL : recovering->key, confirmed, on_recovery,
                          request);
}
