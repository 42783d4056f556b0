/* Users and tokens, from this node's copy of the mesh; a password is checked in a thread. */
#include "agent_backend.h"

#include "shoal/mesh.h"
#include "shoal/sched_look.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000

static void user_of(const struct shoal_mesh_user *from, struct shoal_user *user)
{
    *user = (struct shoal_user){ .uid = from->uid, .admin = from->admin, .tokens_from_s = from->tokens_from_s };
    (void)snprintf(user->name, sizeof(user->name), "%s", from->name);
}

bool backend_user_find(void *ctx, const char *name, struct shoal_user *user)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_user *found = mesh == NULL ? NULL : shoal_mesh_user_find(mesh, name);

    if (found == NULL || found->disabled)
        return false;
    user_of(found, user);
    return true;
}

struct logon {
    uv_work_t work;
    char password[SHOAL_PASSWORD_BYTES_MAX + 1];
    char hash[SHOAL_PASSWORD_HASH_BYTES];
    struct shoal_user user;
    bool good;
    shoal_backend_user_fn *done;
    void *arg;
};

static void logon_work(uv_work_t *work)
{
    struct logon *l = work->data;

    l->good = shoal_password_verify(shoal_view_text(l->password), l->hash) && l->user.name[0] != '\0';
}

static void logon_done(uv_work_t *work, int status)
{
    struct logon *l = work->data;
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_OK;

    (void)status;
    if (!l->good)
        err = shoal_fail(&msg, SHOAL_ERR_DENIED, "wrong user name or password");
    l->done(l->arg, err, &msg, l->good ? &l->user : NULL);
    shoal_wipe(l->password, sizeof(l->password));
    free(l);
}

void backend_logon(void *ctx, const char *user, const char *password, shoal_backend_user_fn *done, void *arg)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_user *found = mesh == NULL ? NULL : shoal_mesh_user_find(mesh, user);
    struct shoal_msg msg = { "" };
    struct logon *l;

    if (mesh == NULL || strlen(password) > SHOAL_PASSWORD_BYTES_MAX) {
        enum shoal_err err = mesh == NULL
                                 ? shoal_fail(&msg, SHOAL_ERR_UNREACHABLE,
                                              "this node has not got the mesh's users yet; try again in a second")
                                 : shoal_fail(&msg, SHOAL_ERR_DENIED, "wrong user name or password");

        done(arg, err, &msg, NULL);
        return;
    }
    l = calloc(1, sizeof(*l));
    SHOAL_ASSERT(l != NULL);
    l->work.data = l;
    l->done = done;
    l->arg = arg;
    memcpy(l->password, password, strlen(password) + 1);
    /* An unknown user costs the same time as a wrong password. */
    if (found == NULL)
        found = shoal_mesh_user_at(mesh, 0);
    else if (!found->disabled)
        user_of(found, &l->user);
    if (found != NULL)
        memcpy(l->hash, found->password, sizeof(l->hash));
    (void)uv_queue_work(&agent->loop, &l->work, logon_work, logon_done);
}

void backend_logoff(void *ctx, const uint8_t token_id[SHOAL_TOKEN_ID_BYTES], uint64_t exp_s,
                    shoal_backend_done_fn *done, void *arg)
{
    struct shoal_mesh_command *command = calloc(1, sizeof(*command));
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_CHANGE, .deadline_ms = REQUEST_MS };
    size_t len;

    SHOAL_ASSERT(command != NULL);
    command->kind = SHOAL_MESH_REVOKE;
    command->now_s = agent_wall_ms() / 1000;
    memcpy(command->revocation.token, token_id, SHOAL_MESH_TOKEN_ID_BYTES);
    command->revocation.exp_s = exp_s;
    if (shoal_mesh_command_encode(command, bytes, sizeof(bytes), &len) == SHOAL_OK)
        request.command = shoal_view_of(bytes, len);
    free(command);
    agent_request(ctx, &request, backend_on_done, backend_call_create(ctx, (backend_any_fn *)done, arg));
}

void backend_token_keys(void *ctx, struct shoal_token_keys *keys)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);

    keys->count = mesh == NULL ? 0 : shoal_mesh_token_keys(mesh, keys->keys);
}

bool backend_token_revoked(void *ctx, const uint8_t token_id[SHOAL_TOKEN_ID_BYTES])
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);

    return mesh != NULL && shoal_mesh_token_revoked(mesh, token_id);
}

const struct shoal_framework *backend_frameworks(void *ctx, size_t *count)
{
    (void)ctx;
    return shoal_frameworks_builtin(count);
}
