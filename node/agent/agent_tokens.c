/* Users' tokens between hosts (R5 of sched_request.c): what a host passes on for a user goes with that user's token, and the
 * host that acts looks at it by its own copy of the mesh.
 *
 *     API: Bearer --> the very token          API: Basic --> one that this host makes, good for a minute
 *     the host that acts: signature, time, revocation, the user as it is now --> who asks */
#include "agent.h"

#include "shoal/mesh.h"
#include "shoal/sched_look.h"
#include "shoal/submit.h"
#include "shoal/token.h"

#include "shoal/banned.h"

#define PASSED_ON_S 60

static bool keys_of(const struct shoal_mesh *mesh, struct shoal_token_keys *keys)
{
    keys->count = mesh == NULL ? 0 : shoal_mesh_token_keys(mesh, keys->keys);
    return keys->count > 0;
}

struct shoal_view agent_token_of(struct agent *agent, const struct shoal_user *user, char *text)
{
    struct token_claims claims = token_claims_of(user, agent_wall_ms() / 1000);
    struct shoal_token_keys keys;
    struct shoal_msg msg;

    text[0] = '\0';
    claims.exp_s = claims.issued_s + PASSED_ON_S;
    if (user->token[0] != '\0')
        (void)snprintf(text, SHOAL_TOKEN_TEXT_BYTES, "%s", user->token);
    else if (keys_of(shoal_sched_mesh(agent->sched), &keys) &&
             token_make(&claims, keys.keys[0], text, &msg) != SHOAL_OK)
        text[0] = '\0';
    shoal_wipe(&keys, sizeof(keys));
    return shoal_view_text(text);
}

enum shoal_err agent_token_who(void *arg, struct shoal_view token, uint64_t wall_ms, struct shoal_sched_caller *caller,
                               struct shoal_msg *msg)
{
    const struct agent *agent = arg;
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    const struct shoal_mesh_user *user;
    struct shoal_token_keys keys = { .count = 0 };
    struct token_claims claims;
    enum shoal_err err;

    (void)keys_of(mesh, &keys);
    err = token_check(token, &keys, wall_ms / 1000, &claims, msg);
    shoal_wipe(&keys, sizeof(keys));
    if (err != SHOAL_OK)
        return err;
    user = shoal_mesh_user_find(mesh, claims.user);
    if (user == NULL || user->disabled || claims.issued_s < user->tokens_from_s)
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the token's user was changed or removed; log on again");
    if (shoal_mesh_token_revoked(mesh, claims.id))
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the token was logged off; log on again");
    *caller = (struct shoal_sched_caller){ .admin = user->admin };
    (void)snprintf(caller->name, sizeof(caller->name), "%s", user->name);
    memcpy(caller->token_id, claims.id, sizeof(caller->token_id));
    return SHOAL_OK;
}

bool agent_follows_rules(const struct agent *agent, struct shoal_node_id node)
{
    return shoal_sched_follows_rules(agent->sched, node);
}

enum shoal_err agent_is_administrator(struct agent *agent, struct shoal_node_id from, struct shoal_view token,
                                      struct shoal_msg *msg)
{
    struct shoal_sched_caller caller;
    enum shoal_err err;

    if (token.len == 0 && !shoal_sched_is_bound(agent->sched) && !agent_follows_rules(agent, from))
        return SHOAL_OK; /* L4 of sched_seal.c: of the version before */
    if (token.len == 0)
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the host that passes this on gave no user's token with it");
    err = agent_token_who(agent, token, agent_wall_ms(), &caller, msg);
    if (err == SHOAL_OK && !caller.admin)
        err = shoal_fail(msg, SHOAL_ERR_DENIED, "only an administrator may do this; ask one");
    return err;
}
