/* An operator's words about hosts (PROTOCOLS 3 and 4): removed from the mesh, readmitted, drained, left; and the mesh
 * group recovered.
 *
 *   name or id --> which node is meant --> may it be? --> removal: a command of the mesh group, committed on its majority
 *                                                     --> drain, leave: the host's own word, which it is asked to give
 *
 * O1. A text names a node by its whole name, or by the first digits of its id. What names several, or none, changes
 *     nothing.
 * O2. A host that may still be there is removed only when the operator insists. */
#include "agent_backend.h"

#include "shoal/mesh.h"

#include "shoal/banned.h"

#define REQUEST_MS 5000
#define ID_DIGITS_MIN 4u
#define HEX_BYTES (2 * sizeof(((struct shoal_node_id *)0)->bytes) + 1)

struct asked_node {
    struct shoal_node_id id;
    char name[64];
    bool member; /* gossip knows it */
    struct shoal_member is;
    unsigned matches;
    char others[160]; /* what a text that names several may mean */
};

static bool starts_id(struct shoal_node_id id, const char *text)
{
    char hex[HEX_BYTES];
    size_t len = strlen(text);

    shoal_hex_text(id.bytes, sizeof(id.bytes), hex);
    return len >= ID_DIGITS_MIN && len < sizeof(hex) && strncmp(hex, text, len) == 0;
}

static void take_match(struct asked_node *node, struct shoal_node_id id, const struct shoal_member *member)
{
    size_t used = strlen(node->others);

    node->matches++;
    node->id = id;
    node->member = member != NULL;
    if (member != NULL)
        node->is = *member;
    (void)snprintf(node->name, sizeof(node->name), "%s", member == NULL ? "" : member->name);
    if (used + HEX_BYTES < sizeof(node->others)) {
        if (used > 0)
            node->others[used++] = ' ';
        shoal_hex_text(id.bytes, sizeof(id.bytes) / 2, node->others + used);
    }
    if (node->name[0] == '\0')
        shoal_hex_text(id.bytes, sizeof(id.bytes) / 2, node->name);
}

/* O1. */
static enum shoal_err find_node(struct agent *agent, const char *text, struct asked_node *node, struct shoal_msg *msg)
{
    const struct shoal_swim *swim = membership_swim(agent->membership);
    const struct shoal_mesh *mesh = shoal_sched_mesh(agent->sched);
    struct shoal_member member;

    *node = (struct asked_node){ .matches = 0 };
    for (unsigned pass = 0; pass < 2 && node->matches == 0; pass++) {
        uint32_t cursor = 0;

        while (shoal_swim_member_next(swim, &cursor, &member))
            if (pass == 0 ? strcmp(member.name, text) == 0 : starts_id(member.id, text))
                take_match(node, member.id, &member);
        for (size_t i = 0; pass == 1 && mesh != NULL && i < shoal_mesh_eviction_count(mesh); i++) {
            struct shoal_node_id id = shoal_mesh_eviction_at(mesh, i);

            if (starts_id(id, text) && !shoal_swim_member_find(swim, id, &member))
                take_match(node, id, NULL);
        }
    }
    if (node->matches == 0)
        return shoal_fail(
            msg, SHOAL_ERR_NOT_FOUND,
            "no node \"%.64s\": give a name, or at least %u digits of an id, as `shoal node list` shows them", text,
            ID_DIGITS_MIN);
    if (node->matches > 1)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "\"%.64s\" names %u nodes (%s); give more digits of the id", text,
                          node->matches, node->others);
    return SHOAL_OK;
}

static bool may_be_there(const struct asked_node *node)
{
    return node->member && (node->is.state == SHOAL_MEMBER_ALIVE || node->is.state == SHOAL_MEMBER_SUSPECT);
}

static enum shoal_err check_removal(struct agent *agent, const struct asked_node *node, bool force,
                                    struct shoal_msg *msg)
{
    if (!agent_admits(agent, node->id))
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "%s was removed already", node->name);
    if (shoal_node_id_equal(node->id, agent->identity.node)) {
        if (shoal_swim_live_count(membership_swim(agent->membership)) < 2)
            return shoal_fail(msg, SHOAL_ERR_EXISTS,
                              "%s is the last node that is there, and the mesh ends with it: stop its agent instead",
                              node->name);
        return shoal_fail(msg, SHOAL_ERR_EXISTS,
                          "%s is the node that you ask; ask another one (--node), which is still there afterwards",
                          node->name);
    }
    if (may_be_there(node) && !force && backend_facts_of(agent, node->id).draining &&
        !backend_facts_of(agent, node->id).drained)
        return shoal_fail(msg, SHOAL_ERR_EXISTS,
                          "%s is draining, and not empty yet: wait until `shoal node list` says drained, or insist "
                          "(--force): its workers are lost then, as if it had lost its power",
                          node->name);
    if (may_be_there(node) && !force && !backend_facts_of(agent, node->id).drained) /* O2 */
        return shoal_fail(
            msg, SHOAL_ERR_EXISTS,
            "%s is %s; drain it first (shoal node drain), or insist (--force): its workers are lost then, as "
            "if it had lost its power",
            node->name, node->is.state == SHOAL_MEMBER_ALIVE ? "alive" : "suspected, and may be alive");
    return SHOAL_OK;
}

/* Somebody must be there to take what it has. */
static enum shoal_err check_drain(struct agent *agent, const struct asked_node *node, struct shoal_msg *msg)
{
    struct shoal_member member;
    uint32_t cursor = 0;

    if (!agent_admits(agent, node->id))
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "%s was removed from the mesh", node->name);
    if (!may_be_there(node))
        return shoal_fail(msg, SHOAL_ERR_EXISTS,
                          "%s is not there, and cannot move anything; if it is gone for good: shoal node remove",
                          node->name);
    if (backend_facts_of(agent, node->id).draining)
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "%s is drained already; `shoal node list` says how far it is",
                          node->name);
    while (shoal_swim_member_next(membership_swim(agent->membership), &cursor, &member))
        if (member.state == SHOAL_MEMBER_ALIVE && !shoal_node_id_equal(member.id, node->id) &&
            agent_admits(agent, member.id) && !backend_facts_of(agent, member.id).draining)
            return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_EXISTS,
                      "%s is the last node that could take anything; nobody is there to take it over", node->name);
}

static enum shoal_err check_verb(struct agent *agent, const struct asked_node *node, enum shoal_node_verb verb,
                                 bool force, struct shoal_msg *msg)
{
    switch (verb) {
    case SHOAL_NODE_REMOVE: return check_removal(agent, node, force, msg);
    case SHOAL_NODE_READMIT:
        if (agent_admits(agent, node->id))
            return shoal_fail(msg, SHOAL_ERR_EXISTS, "%s was not removed; nothing was done", node->name);
        return SHOAL_OK;
    case SHOAL_NODE_DRAIN: return check_drain(agent, node, msg);
    case SHOAL_NODE_UNDRAIN:
        if (!backend_facts_of(agent, node->id).draining)
            return shoal_fail(msg, SHOAL_ERR_EXISTS, "%s is not drained; nothing was done", node->name);
        return SHOAL_OK;
    case SHOAL_NODE_LEAVE:
        if (!may_be_there(node))
            return shoal_fail(msg, SHOAL_ERR_EXISTS, "%s is not there; if it is gone for good: shoal node remove",
                              node->name);
        return SHOAL_OK;
    case SHOAL_NODE_VERBS: break;
    }
    return SHOAL_ERR_INVALID;
}

struct node_call {
    shoal_backend_done_fn *done;
    void *arg;
    enum shoal_node_verb verb;
    char name[64];
};

static void on_committed(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct node_call *call = arg;
    struct shoal_msg msg = backend_reply_msg(reply);

    if (err == SHOAL_OK && call->verb == SHOAL_NODE_REMOVE)
        (void)snprintf(msg.text, sizeof(msg.text),
                       "%s is removed: what it guarded goes to other hosts, and nobody listens to it any more",
                       call->name);
    else if (err == SHOAL_OK)
        (void)snprintf(msg.text, sizeof(msg.text), "%s is readmitted; start its agent", call->name);
    else if (err == SHOAL_ERR_UNREACHABLE || err == SHOAL_ERR_TIMEOUT)
        (void)snprintf(
            msg.text, sizeof(msg.text),
            "%.240s. A removal needs the mesh group's majority; if that is lost for good: shoal mesh recover",
            reply->u.reply.text);
    call->done(call->arg, err, &msg);
    free(call);
}

/* ---- the host's own word ---- */

/* Two bytes, the verb and whether it is forced; then the token of the administrator whose word it is. */
static enum shoal_err own_word(struct agent *agent, enum shoal_node_verb verb, bool force, struct shoal_msg *msg)
{
    switch (verb) {
    case SHOAL_NODE_DRAIN: return agent_drain(agent, true, msg);
    case SHOAL_NODE_UNDRAIN: return agent_drain(agent, false, msg);
    case SHOAL_NODE_LEAVE: return agent_leave(agent, force, msg);
    case SHOAL_NODE_REMOVE:
    case SHOAL_NODE_READMIT:
    case SHOAL_NODE_VERBS: break;
    }
    return shoal_fail(msg, SHOAL_ERR_MALFORMED, "not a word that a host gives");
}

void backend_serve_node(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    struct shoal_msg msg = { "" };
    enum shoal_err err = SHOAL_ERR_MALFORMED;

    if (args.len >= 2 && args.bytes[0] < SHOAL_NODE_VERBS)
        err = agent_is_administrator(arg, from, shoal_view_of(args.bytes + 2, args.len - 2), &msg);
    if (err == SHOAL_OK)
        err = own_word(arg, (enum shoal_node_verb)args.bytes[0], args.bytes[1] != 0, &msg);
    peer_answer(question, err, msg.text, (struct shoal_view){ 0 });
}

static void end_own(struct node_call *call, enum shoal_err err, struct shoal_msg *msg)
{
    if (err == SHOAL_OK && call->verb == SHOAL_NODE_DRAIN)
        (void)snprintf(msg->text, sizeof(msg->text),
                       "%s is drained: nothing new goes there, and what it has moves; `shoal node list` shows when "
                       "nothing is left",
                       call->name);
    else if (err == SHOAL_OK)
        (void)snprintf(msg->text, sizeof(msg->text),
                       call->verb == SHOAL_NODE_LEAVE ? "%s leaves" : "%s takes work again", call->name);
    call->done(call->arg, err, msg);
    free(call);
}

static void on_own_word(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    struct shoal_msg said = *msg;

    (void)answer;
    end_own(arg, err, &said);
}

static void ask_host(struct agent *agent, const struct shoal_user *caller, struct node_call *call,
                     const struct asked_node *node, bool force)
{
    uint8_t args[2 + SHOAL_TOKEN_TEXT_BYTES] = { (uint8_t)call->verb, force ? 1 : 0 };
    char token[SHOAL_TOKEN_TEXT_BYTES];
    struct shoal_view shown = agent_token_of(agent, caller, token);
    struct shoal_msg msg = { "" };

    if (!agent_follows_rules(agent, node->id))
        shown.len = 0; /* one of the version before does not read it */
    memcpy(args + 2, token, shown.len);
    if (shoal_node_id_equal(node->id, agent->identity.node))
        end_own(call, own_word(agent, call->verb, force, &msg), &msg);
    else
        peer_ask(agent->calls, node->id, PEER_NODE_VERB, shoal_view_of(args, 2 + shown.len), REQUEST_MS * SHOAL_MS,
                 on_own_word, call);
}

void backend_node_change(void *ctx, const struct shoal_user *caller, const char *text, enum shoal_node_verb verb,
                         bool force, shoal_backend_done_fn *done, void *arg)
{
    struct agent *agent = ctx;
    struct shoal_mesh_command *command = calloc(1, sizeof(*command));
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_CHANGE, .deadline_ms = REQUEST_MS };
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    struct node_call *call = calloc(1, sizeof(*call));
    struct asked_node node;
    struct shoal_msg msg = { "" };
    char token[SHOAL_TOKEN_TEXT_BYTES];
    enum shoal_err err;
    size_t len = 0;

    SHOAL_ASSERT(command != NULL && call != NULL);
    request.token = agent_token_of(agent, caller, token);
    (void)snprintf(request.by, sizeof(request.by), "%s", caller->name);
    *call = (struct node_call){ .done = done, .arg = arg, .verb = verb };
    err = find_node(agent, text, &node, &msg);
    if (err == SHOAL_OK)
        err = check_verb(agent, &node, verb, force, &msg);
    command->kind = verb == SHOAL_NODE_REMOVE ? SHOAL_MESH_EVICT : SHOAL_MESH_READMIT;
    command->now_s = agent_wall_ms() / 1000;
    command->node = node.id;
    if (err == SHOAL_OK)
        err = shoal_mesh_command_encode(command, bytes, sizeof(bytes), &len);
    free(command);
    if (err != SHOAL_OK) {
        free(call);
        done(arg, err, &msg);
        return;
    }
    (void)snprintf(call->name, sizeof(call->name), "%s", node.name);
    if (verb != SHOAL_NODE_REMOVE && verb != SHOAL_NODE_READMIT) {
        ask_host(agent, caller, call, &node, force);
        return;
    }
    request.command = shoal_view_of(bytes, len);
    agent_request(agent, &request, on_committed, call);
}

/* The mesh's secret says that who asks may speak for the mesh, whose users' majority is not there to ask. */
static enum shoal_err check_key(const struct agent *agent, const char *key, struct shoal_msg *msg)
{
    char name[SHOAL_MESH_NAME_MAX + 1];
    struct shoal_secret secret;
    enum shoal_err err;

    if (key == NULL)
        return shoal_fail(msg, SHOAL_ERR_DENIED,
                          "the mesh's key is wanted too: --key FILE with what `shoal init` wrote into mesh.key");
    err = shoal_mesh_key_parse(key, name, &secret, msg);
    if (err == SHOAL_OK && !shoal_secret_equal(&secret, &agent->identity.mesh_secret, sizeof(secret)))
        err = shoal_fail(msg, SHOAL_ERR_DENIED, "that is another mesh's key");
    shoal_wipe(&secret, sizeof(secret));
    return err;
}

void backend_mesh_recover(void *ctx, const struct shoal_user *caller, const char *key, bool confirmed,
                          shoal_backend_recovery_fn *done, void *arg)
{
    struct agent *agent = ctx;
    struct shoal_msg msg = { "" };
    enum shoal_err err = confirmed ? check_key(agent, key, &msg) : SHOAL_OK;

    if (err != SHOAL_OK) {
        done(arg, err, &msg, &(struct shoal_recovery_info){ .done = false });
        return;
    }
    backend_recover_mesh(agent, caller, confirmed, done, arg);
}
