/* A data folder that was copied while its agent runs, and started at another address: two agents of one identity would take each
 * other's place in the mesh again and again, and the newer one would win.
 *
 *   <data>/address   where the agent of this folder has listened last, as text
 *
 * C1. An agent that starts at another address than the last one asks there first, before it raises its incarnation: whoever
 *     proves this folder's own key there is the original, and the copy does not start. Nobody has heard of it then.
 * C2. Where nobody answers, the folder was moved: it goes on. The same address is never held by two. */
#include "agent.h"

#include "agent_probe.h"
#include "agent_settings.h"

#include "shoal/disk.h"

#include "shoal/banned.h"

#define ASK_MS 2000

static void path_of(const struct agent *agent, char path[AGENT_PATH_BYTES + 16])
{
    (void)snprintf(path, AGENT_PATH_BYTES + 16, "%s/address", agent->settings.data);
}

/* False: none was noted. */
static bool last_address(const struct agent *agent, struct shoal_address *address)
{
    char path[AGENT_PATH_BYTES + 16], text[SHOAL_ADDRESS_TEXT_BYTES] = "";
    struct shoal_buf file = { 0 };
    struct shoal_msg msg;
    bool found;

    path_of(agent, path);
    found = shoal_disk_read(path, sizeof(text) - 1, &file, &msg) == SHOAL_OK && file.len > 0;
    if (found)
        memcpy(text, file.bytes, file.len);
    shoal_buf_deinit(&file);
    text[strcspn(text, "\r\n")] = '\0';
    return found && shoal_address_parse(text, AGENT_PORT, address, &msg) == SHOAL_OK;
}

enum shoal_err agent_copy_check(const struct agent *agent, struct shoal_msg *msg)
{
    struct agent_probe probe = { .err = SHOAL_OK };
    struct shoal_identity identity = { 0 };
    char text[SHOAL_ADDRESS_TEXT_BYTES];
    enum shoal_err err;

    if (!last_address(agent, &probe.address) || shoal_address_equal(probe.address, agent->settings.address))
        return SHOAL_OK;
    err = shoal_identity_load(agent->settings.data, NULL, false, &identity, msg);
    if (err != SHOAL_OK)
        return err;
    agent_probe_all(&identity, &probe, 1, ASK_MS);
    shoal_identity_wipe(&identity);
    if (probe.err != SHOAL_ERR_EXISTS)
        return SHOAL_OK;
    shoal_address_text(probe.address, text);
    return shoal_fail(msg, SHOAL_ERR_EXISTS,
                      "%s is a copy: an agent with its identity runs at %s. If this host is to take that one's place, stop "
                      "the agent there first; else remove this folder, and make one with `shoal join`",
                      agent->settings.data, text);
}

void agent_copy_note(struct agent *agent)
{
    char path[AGENT_PATH_BYTES + 16], text[SHOAL_ADDRESS_TEXT_BYTES + 1];
    struct shoal_address last;
    struct shoal_msg msg = { "" };

    if (last_address(agent, &last) && shoal_address_equal(last, agent->settings.address))
        return;
    path_of(agent, path);
    shoal_address_text(agent->settings.address, text);
    (void)strncat(text, "\n", sizeof(text) - strlen(text) - 1);
    if (shoal_disk_replace(path, shoal_view_text(text), 0600, &msg) != SHOAL_OK)
        agent_log(agent, "%s; a copy of this folder would not be noticed", msg.text);
}
