#include "http_clients.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/error.h"

#include "shoal/banned.h"

/* FNV-1a. A stranger who chooses addresses of one chain makes it as long as the server has connections, and no longer. */
static struct http_client **chain_of(struct http_clients *clients, const uint8_t key[16])
{
    uint32_t hash = 2166136261u;

    for (unsigned i = 0; i < 16; i++)
        hash = (hash ^ key[i]) * 16777619u;
    return &clients->chains[(hash ^ hash >> 16) % HTTP_CLIENT_CHAINS];
}

/* Its row, which is made if there is none; NULL: no memory. */
static struct http_client *row_of(struct http_clients *clients, const uint8_t key[16])
{
    struct http_client **chain = chain_of(clients, key);
    struct http_client *client = *chain;

    while (client != NULL && memcmp(client->key, key, sizeof(client->key)) != 0)
        client = client->next;
    if (client != NULL || (client = calloc(1, sizeof(*client))) == NULL)
        return client;
    memcpy(client->key, key, sizeof(client->key));
    client->next = *chain;
    *chain = client;
    return client;
}

static void forget_if_none(struct http_clients *clients, struct http_client *client)
{
    struct http_client **at = chain_of(clients, client->key);

    if (client->connections > 0 || client->requests > 0)
        return;
    while (*at != client) {
        SHOAL_ASSERT(*at != NULL); /* it is in its chain */
        at = &(*at)->next;
    }
    *at = client->next;
    free(client);
}

struct http_client *http_client_enter(struct http_clients *clients, const uint8_t key[16])
{
    struct http_client *client = row_of(clients, key);

    if (client != NULL)
        client->connections++;
    return client;
}

void http_client_leave(struct http_clients *clients, struct http_client *client)
{
    SHOAL_ASSERT(client->connections > 0);
    client->connections--;
    forget_if_none(clients, client);
}

struct http_client *http_client_ask(struct http_clients *clients, const uint8_t key[16])
{
    struct http_client *client = row_of(clients, key);

    if (client != NULL)
        client->requests++;
    return client;
}

void http_client_answered(struct http_clients *clients, struct http_client *client)
{
    SHOAL_ASSERT(client->requests > 0);
    client->requests--;
    forget_if_none(clients, client);
}
