/* Members last known, in <data>/peers, a line "ADDRESS ID" each: a host that was started again finds its mesh by them
 * when the member that it once joined through is gone, or when it founded the mesh and never joined through any.
 *
 * A missing or stale list costs a datagram to nobody; and without it, this host takes itself for a mesh of its own, and
 * answers 404 where it cannot know. */
#include "node/agent/agent.h"
#include "node/agent/agent_files.h"

#include "shoal/banned.h"

struct known_peer {
    struct shoal_node_id id;
    struct shoal_address address;
    bool there; /* alive or suspected, when last heard of */
};

static struct {
    struct known_peer list[SHOAL_SWIM_SEEDS_MAX]; /* of this process's one agent; owned by its loop */
    size_t count;
} peers;

static void peers_path(const char *data, char path[AGENT_PATH_BYTES + 16])
{
    (void)snprintf(path, AGENT_PATH_BYTES + 16, "%s/peers", data);
}

void agent_peers_read(struct agent_settings *settings)
{
    char path[AGENT_PATH_BYTES + 16];
    char line[128];
    FILE *file;

    peers_path(settings->data, path);
    file = fopen(path, "re");
    peers.count = 0;
    while (file != NULL && fgets(line, sizeof(line), file) != NULL && peers.count < SHOAL_SWIM_SEEDS_MAX) {
        struct known_peer *peer = &peers.list[peers.count];
        char *id = strchr(line, ' ');
        struct shoal_msg msg;
        bool told = false;

        *peer = (struct known_peer){ .there = false };
        line[strcspn(line, "\n")] = '\0';
        if (id == NULL || !shoal_hex_parse(id + 1, peer->id.bytes, sizeof(peer->id.bytes)))
            continue;
        *id = '\0';
        if (shoal_address_parse(line, 0, &peer->address, &msg) != SHOAL_OK || peer->address.port == 0)
            continue;
        peers.count++;
        for (size_t i = 0; i < settings->seed_count; i++)
            told = told || shoal_address_equal(settings->seeds[i], peer->address);
        if (!told && settings->seed_count < SHOAL_SWIM_SEEDS_MAX)
            settings->seeds[settings->seed_count++] = peer->address;
    }
    if (file != NULL)
        (void)fclose(file);
}

static void peers_write(struct agent *agent)
{
    struct shoal_buf text = { 0 };
    bool whole = true;

    for (size_t i = 0; i < peers.count; i++) {
        char address[SHOAL_ADDRESS_TEXT_BYTES];
        char id[2 * sizeof(peers.list[i].id.bytes) + 1];
        char line[sizeof(address) + sizeof(id) + 2];

        shoal_address_text(peers.list[i].address, address);
        shoal_hex_text(peers.list[i].id.bytes, sizeof(peers.list[i].id.bytes), id);
        (void)snprintf(line, sizeof(line), "%s %s\n", address, id);
        whole = whole && shoal_buf_append(&text, line, strlen(line)) == SHOAL_OK;
    }
    if (whole)
        agent_file_replace(agent, "peers", shoal_buf_view(&text));
    shoal_buf_deinit(&text);
}

/* The peers that a newcomer asks; the whole list may be of members that are there, and they will do. */
static struct known_peer *room_for_one(void)
{
    if (peers.count < SHOAL_SWIM_SEEDS_MAX)
        return &peers.list[peers.count++];
    for (size_t i = 0; i < peers.count; i++)
        if (!peers.list[i].there)
            return &peers.list[i];
    return NULL;
}

uint32_t agent_peers_ids(struct shoal_node_id *ids, uint32_t cap)
{
    uint32_t count = 0;

    for (size_t i = 0; i < peers.count && count < cap; i++)
        ids[count++] = peers.list[i].id;
    return count;
}

void agent_peers_note(struct agent *agent, const struct shoal_member *member)
{
    bool there = member->state == SHOAL_MEMBER_ALIVE || member->state == SHOAL_MEMBER_SUSPECT;
    struct known_peer *peer = NULL;

    for (size_t i = 0; i < peers.count && peer == NULL; i++)
        if (shoal_node_id_equal(peers.list[i].id, member->id))
            peer = &peers.list[i];
    if (peer != NULL)
        peer->there = there;
    if (member->state == SHOAL_MEMBER_LEFT && peer != NULL) {
        *peer = peers.list[--peers.count];
    } else {
        if (!there || (peer != NULL && shoal_address_equal(peer->address, member->address)))
            return;
        if (peer == NULL)
            peer = room_for_one();
        if (peer == NULL)
            return;
        *peer = (struct known_peer){ .id = member->id, .address = member->address, .there = true };
    }
    peers_write(agent);
}

/* A peer of the last life is forgotten by the others after gossip's grace; this agent cannot know of that. */
#define UNHEARD_NS (30 * SHOAL_S)

size_t agent_peers_unheard(const struct agent *agent, char (*names)[64], size_t cap)
{
    struct shoal_member member;
    size_t count = 0;

    if (agent_now_ns() > agent->start_ns + UNHEARD_NS)
        return 0;
    for (size_t i = 0; i < peers.count; i++) {
        if (peers.list[i].there ||
            shoal_swim_member_find(membership_swim(agent->membership), peers.list[i].id, &member))
            continue;
        if (count < cap)
            shoal_address_text(peers.list[i].address, names[count]);
        count++;
    }
    return count;
}
