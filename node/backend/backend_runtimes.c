/* Runtimes of kernels that administrators make: rows of the mesh group, beside its frameworks and of their form, so that an
 * agent of the version before keeps them, too (decision 0043). */
#include <stdlib.h>

#include "shoal/mesh.h"
#include "shoal/sched_look.h"

#include "agent_backend.h"
#include "backend_services.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000
_Static_assert(sizeof(SHOAL_MESH_RUNTIME_PREFIX) - 1 + SHOAL_RUNTIME_NAME_BYTES <= SHOAL_MESH_FRAMEWORK_BYTES, "a runtime's row has a name");
_Static_assert(SHOAL_RUNTIME_JSON_BYTES <= SHOAL_MESH_SETTINGS_BYTES, "what is written of a runtime fits its row");

struct reading {
    struct agent *agent;
    shoal_backend_text_fn *done;
    void *arg;
};

static bool is_runtime(const struct shoal_mesh_framework *row)
{
    return strncmp(row->name, SHOAL_MESH_RUNTIME_PREFIX, sizeof(SHOAL_MESH_RUNTIME_PREFIX) - 1) == 0 && row->settings[0] != '\0';
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct shoal_mesh_framework *const *)a)->name,
                  (*(const struct shoal_mesh_framework *const *)b)->name);
}

static enum shoal_err put_rows(const struct shoal_mesh *mesh, struct shoal_buf *json)
{
    const struct shoal_mesh_framework *rows[SHOAL_MESH_FRAMEWORKS_MAX];
    size_t count = 0, all = mesh == NULL ? 0 : shoal_mesh_framework_count(mesh);
    enum shoal_err err = shoal_buf_append(json, "{\"runtimes\":[", 13);

    for (size_t i = 0; i < all; i++)
        if (is_runtime(shoal_mesh_framework_at(mesh, i)))
            rows[count++] = shoal_mesh_framework_at(mesh, i);
    qsort(rows, count, sizeof(rows[0]), by_name);
    for (size_t i = 0; i < count && err == SHOAL_OK; i++) {
        if (i > 0)
            err = shoal_buf_append(json, ",", 1);
        if (err == SHOAL_OK)
            err = shoal_buf_append(json, rows[i]->settings, strlen(rows[i]->settings));
    }
    return err == SHOAL_OK ? shoal_buf_append(json, "]}", 2) : err;
}

static void on_read(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct reading *r = arg;
    struct shoal_buf json = { 0 };
    struct shoal_msg msg = backend_reply_msg(reply);

    if (err == SHOAL_OK)
        err = put_rows(shoal_sched_mesh(r->agent->sched), &json);
    r->done(r->arg, err, &msg, shoal_buf_view(&json));
    shoal_buf_deinit(&json);
    free(r);
}

void backend_runtimes(void *ctx, const struct shoal_user *caller, shoal_backend_text_fn *done, void *arg)
{
    struct shoal_sched_request read = { .kind = SHOAL_SCHED_MESH_READ, .deadline_ms = REQUEST_MS };
    struct reading *r = calloc(1, sizeof(*r));

    (void)caller; /* everybody may name every runtime, so everybody sees what there is */
    SHOAL_ASSERT(r != NULL);
    *r = (struct reading){ ctx, done, arg };
    agent_request(ctx, &read, on_read, r);
}

void backend_runtime_set(void *ctx, const struct shoal_user *caller, const char *name, struct shoal_view json,
                         shoal_backend_done_fn *done, void *arg)
{
    struct agent *agent = ctx;
    struct shoal_mesh_command *command;
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_CHANGE, .deadline_ms = REQUEST_MS };
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    char token[SHOAL_TOKEN_TEXT_BYTES];
    size_t len;

    if (!caller->admin) {
        done(arg, SHOAL_ERR_DENIED, &(struct shoal_msg){ "only an administrator makes, changes or deletes runtimes" });
        return;
    }
    command = calloc(1, sizeof(*command));
    SHOAL_ASSERT(command != NULL && json.len < SHOAL_RUNTIME_JSON_BYTES && strlen(name) < SHOAL_RUNTIME_NAME_BYTES);
    command->kind = json.len == 0 ? SHOAL_MESH_REMOVE_FRAMEWORK : SHOAL_MESH_SET_FRAMEWORK;
    command->framework.enabled = true;
    command->now_s = agent_wall_ms() / 1000;
    (void)snprintf(command->framework.name, sizeof(command->framework.name), SHOAL_MESH_RUNTIME_PREFIX "%s", name);
    if (json.len > 0)
        memcpy(command->framework.settings, json.bytes, json.len);
    request.token = agent_token_of(agent, caller, token);
    (void)snprintf(request.by, sizeof(request.by), "%s", caller->name);
    if (shoal_mesh_command_encode(command, bytes, sizeof(bytes), &len) == SHOAL_OK)
        request.command = shoal_view_of(bytes, len);
    free(command);
    agent_request(agent, &request, backend_on_done, backend_call_create(agent, (backend_any_fn *)done, arg));
}
