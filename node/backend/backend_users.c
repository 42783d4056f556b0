/* Users and tokens, from this node's copy of the mesh; a password is checked in a thread. */
#include "agent_backend.h"

#include "passwords_uv.h"

#include "shoal/mesh.h"
#include "shoal/sched_look.h"
#include "shoal/token.h"

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
    struct shoal_user user; /* without a name: there is no such user */
    shoal_backend_user_fn *done;
    void *arg;
};

static void on_checked(void *arg, bool good)
{
    struct logon *l = arg;
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_OK;

    good = good && l->user.name[0] != '\0';
    if (!good)
        err = shoal_fail(&msg, SHOAL_ERR_DENIED, "wrong user name or password");
    l->done(l->arg, err, &msg, good ? &l->user : NULL);
    free(l);
}

void backend_logon(void *ctx, const char *user, const char *password, shoal_backend_user_fn *done, void *arg)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_user *found = mesh == NULL ? NULL : shoal_mesh_user_find(mesh, user);
    const char *hash;
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
    l->done = done;
    l->arg = arg;
    /* An unknown user costs the same time as a wrong password. */
    if (found == NULL)
        found = shoal_mesh_user_at(mesh, 0);
    else if (!found->disabled)
        user_of(found, &l->user);
    hash = found == NULL ? "" : found->password;
    if (passwords_check(&agent->passwords, &agent->loop, password, hash, on_checked, l) != SHOAL_OK) {
        free(l);
        done(arg, shoal_fail(&msg, SHOAL_ERR_FULL, "no memory to check a password; try again in a second"), &msg, NULL);
    }
}

/* A token has a row of its own until its end. A user with many rows, or any while the table is all but full, ends what it
 * got before now: that needs no row, so nobody can take from others what they need to log off. */
void backend_logoff(void *ctx, const struct shoal_user *caller, const struct token_claims *token,
                    shoal_backend_done_fn *done, void *arg)
{
    struct agent *agent = ctx;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    struct shoal_mesh_command *command = calloc(1, sizeof(*command));
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_CHANGE, .deadline_ms = REQUEST_MS };
    char text[SHOAL_TOKEN_TEXT_BYTES];
    size_t len;

    SHOAL_ASSERT(command != NULL);
    request.token = agent_token_of(ctx, caller, text);
    (void)snprintf(request.by, sizeof(request.by), "%s", caller->name);
    command->kind = SHOAL_MESH_REVOKE;
    command->now_s = agent_wall_ms() / 1000;
    memcpy(command->revocation.token, token->id, SHOAL_MESH_TOKEN_ID_BYTES);
    command->revocation.exp_s = token->exp_s;
    if (mesh != NULL && !shoal_mesh_revokes_singly(mesh, caller->uid, command->now_s)) {
        command->kind = SHOAL_MESH_VOID_TOKENS;
        (void)snprintf(command->user.name, sizeof(command->user.name), "%s", caller->name);
        if (command->now_s <= token->issued_s) /* this one, too */
            command->now_s = token->issued_s + 1;
    }
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
