#include "http_clients.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/error.h"

#include "shoal/banned.h"

/* FNV-1a. A stranger who chooses addresses of one chain makes it as long as the server has connections, and no longer. */
static struct http_client **chain_of(struct http_clients *clients, const uint8_t address[16])
{
    uint32_t hash = 2166136261u;

    for (unsigned i = 0; i < 16; i++)
        hash = (hash ^ address[i]) * 16777619u;
    return &clients->chains[(hash ^ hash >> 16) % HTTP_CLIENT_CHAINS];
}

struct http_client *http_client_enter(struct http_clients *clients, const uint8_t address[16])
{
    struct http_client **chain = chain_of(clients, address);
    struct http_client *client = *chain;

    while (client != NULL && memcmp(client->address, address, sizeof(client->address)) != 0)
        client = client->next;
    if (client == NULL) {
        client = calloc(1, sizeof(*client));
        if (client == NULL)
            return NULL;
        memcpy(client->address, address, sizeof(client->address));
        client->next = *chain;
        *chain = client;
    }
    client->connections++;
    return client;
}

void http_client_leave(struct http_clients *clients, struct http_client *client)
{
    struct http_client **at = chain_of(clients, client->address);

    SHOAL_ASSERT(client->connections > 0);
    if (--client->connections > 0)
        return;
    while (*at != client) {
        SHOAL_ASSERT(*at != NULL); /* it is in its chain */
        at = &(*at)->next;
    }
    *at = client->next;
    free(client);
}
