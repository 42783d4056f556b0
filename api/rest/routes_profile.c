/* A service's profile: read, edited, or edited only to see what would come of it.
 *
 *   PUT --> the document as it is --> service_doc_edit(), which says no --> what changes --> the mesh has room for it?
 *           dry_run: that is the answer;  else: the backend's edit, made of the newest document, then the same answer
 *
 * What WMLA's address edits goes the same way, with its own answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shoal/service_doc.h"

#include "routes.h"

#include "shoal/banned.h"

struct profile_edit {
    struct http_request *request;
    struct service_doc_edit edit;
    bool dry, dlim;
    struct shoal_buf changes, notes;
};

static void edit_free(void *state)
{
    struct profile_edit *e = state;

    shoal_buf_deinit(&e->changes);
    shoal_buf_deinit(&e->notes);
    free(e);
}

static struct profile_edit *begin(struct http_request *request)
{
    struct profile_edit *e = calloc(1, sizeof(*e));

    if (e == NULL) {
        http_respond_error(request, 503, "out of memory; try again later");
        return NULL;
    }
    e->request = request;
    request->state = e;
    request->state_free = edit_free;
    http_request_hold(request);
    return e;
}

/* ---- reading ---- */

static void on_look(void *arg, enum shoal_err err, const struct shoal_msg *msg, const struct shoal_service_info *info)
{
    struct profile_edit *e = arg;
    struct http_request *request = e->request;
    struct shoal_msg why = *msg;
    struct service_doc_facts facts = { .service_uri = "" };

    if (err == SHOAL_OK) {
        facts.name = info->name;
        facts.creator = info->creator;
        facts.created_s = info->created_s;
        facts.updated_s = info->updated_s;
        facts.values = routes_model_is_own(request, info);
        err = service_doc_profile(info->document, &facts, &e->changes);
        if (err != SHOAL_OK)
            (void)shoal_fail(&why, err, "what is kept of this service does not decode; deploy it again");
    }
    if (err == SHOAL_OK)
        http_respond(request, 200, "application/json", shoal_buf_view(&e->changes));
    else
        http_respond_failure(request, err, &why, 404);
    http_request_release(request);
}

static void handle_get(struct http_request *request)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct profile_edit *e = begin(request);

    if (e != NULL)
        backend->service_look(backend->ctx, &request->user, request->params[0], on_look, e);
}

/* ---- editing ---- */

static void answer(struct profile_edit *e, const char *text)
{
    struct http_request *request = e->request;
    struct shoal_buf buf = { 0 };
    struct json_writer w = json_writer_init(&buf);

    if (e->dlim) {
        http_respond(request, 200, "application/json", shoal_view_text("{}"));
        return;
    }
    json_object_begin(&w, NULL);
    json_raw(&w, "changes", shoal_buf_view(&e->changes));
    json_bool(&w, "dryRun", e->dry);
    json_raw(&w, "notes", shoal_buf_view(&e->notes));
    json_text(&w, "text", text);
    json_end(&w);
    http_respond_json(request, 200, &w);
}

static void on_edited(void *arg, enum shoal_err err, const struct shoal_msg *msg)
{
    struct profile_edit *e = arg;
    struct http_request *request = e->request;

    if (err == SHOAL_OK)
        answer(e, "changed: how many kernels there may be counts at once, the rest from the next start of a kernel on");
    else
        http_respond_failure(request, err, msg, 404);
    http_request_release(request);
}

/* Slots of the hosts that are there, by their own word. */
static unsigned slots_of_mesh(const struct shoal_backend *backend, bool shared)
{
    size_t count = backend->nodes(backend->ctx, NULL, 0);
    struct shoal_node_info *nodes = calloc(count + 1, sizeof(*nodes));
    unsigned slots = 0;

    if (nodes == NULL)
        return UINT32_MAX;
    count = backend->nodes(backend->ctx, nodes, count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(nodes[i].state, "alive") == 0 || strcmp(nodes[i].state, "suspect") == 0)
            slots += shared ? nodes[i].shares_total : nodes[i].slots_total;
    free(nodes);
    return slots;
}

/* Kernels that are always to run must have a place: said before they wait for one in vain. */
static enum shoal_err check_room(const struct profile_edit *e, const struct shoal_service_info *info,
                                 struct shoal_view after, struct shoal_msg *msg)
{
    struct service_knobs was, is;
    unsigned slots;

    service_doc_knobs(info->document, info->replicas, &was);
    service_doc_knobs(after, info->replicas, &is);
    if (is.kernels_min <= was.kernels_min)
        return SHOAL_OK;
    slots = slots_of_mesh(&e->request->http->backend, is.need.pack != 0);
    if (is.kernels_min <= slots || (is.need.pack != 0 && slots == 0)) /* a GPU that is not there yet is waited for */
        return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_INVALID,
                      "policy.kernel_min: %u kernels are to run at any time, and the mesh has %u slots; ask for fewer, or add "
                      "hosts first",
                      is.kernels_min, slots);
}

static void on_current(void *arg, enum shoal_err err, const struct shoal_msg *msg,
                       const struct shoal_service_info *info)
{
    struct profile_edit *e = arg;
    struct http_request *request = e->request;
    const struct shoal_backend *backend = &request->http->backend;
    struct shoal_buf after = { 0 };
    struct shoal_msg why = *msg;

    if (err == SHOAL_OK && !routes_model_is_own(request, info)) /* a dry run, too, says the values that there are */
        err = shoal_fail(&why, SHOAL_ERR_DENIED, "the service %.63s belongs to %.63s", info->name, info->creator);
    if (err == SHOAL_OK) {
        e->edit.name = info->name;
        e->edit.now_s = (uint64_t)time(NULL);
        err = service_doc_edit(info->document, &e->edit, &after, &why);
    }
    if (err == SHOAL_OK)
        err = check_room(e, info, shoal_buf_view(&after), &why);
    if (err == SHOAL_OK)
        err = service_doc_changes(info->document, shoal_buf_view(&after), &e->changes, &e->notes);
    shoal_buf_deinit(&after);
    if (err != SHOAL_OK || e->dry) {
        if (err == SHOAL_OK)
            answer(e, "nothing was changed: a dry run");
        else
            http_respond_failure(request, err, &why, 404);
        http_request_release(request);
        return;
    }
    e->edit.name = NULL; /* it lived for this call */
    backend->service_edit(backend->ctx, &request->user, request->params[0], &e->edit, on_edited, e);
}

static void edit(struct http_request *request, bool dry, bool dlim)
{
    const struct shoal_backend *backend = &request->http->backend;
    struct profile_edit *e = begin(request);

    if (e == NULL)
        return;
    e->edit = (struct service_doc_edit){ .kind = SERVICE_DOC_PROFILE, .body = shoal_buf_view(&request->body) };
    e->dry = dry;
    e->dlim = dlim;
    backend->service_look(backend->ctx, &request->user, request->params[0], on_current, e);
}

void routes_profile_put_dlim(struct http_request *request) { edit(request, false, true); }

static void handle_put(struct http_request *request)
{
    bool dry = false;

    if (routes_flag(request, "dry_run", &dry))
        edit(request, dry, false);
}

static const struct http_route routes[] = {
    { .method = HTTP1_GET, .pattern = "/v1/services/{}/profile", .handle = handle_get },
    { .method = HTTP1_PUT, .pattern = "/v1/services/{}/profile", .handle = handle_put, .mode = HTTP_BODY_BUFFER },
};

const struct http_route *http_routes_profile(size_t *count)
{
    *count = sizeof(routes) / sizeof(routes[0]);
    return routes;
}
