/* The table of clients: a row for each address that has a connection, so that a full server takes places from whoever has the
 * most of them. */
#ifndef API_HTTP_CLIENTS_H
#define API_HTTP_CLIENTS_H

#include <stdint.h>

#define HTTP_CLIENT_CHAINS 256u /* of at most SHOAL_HTTP_CONNECTIONS_MAX rows */

struct http_client {
    struct http_client *next; /* of its chain */
    uint8_t address[16];      /* an IPv4 one in IPv6 form */
    unsigned connections;     /* at least one */
};

struct http_clients {
    struct http_client *chains[HTTP_CLIENT_CHAINS];
};

/* One more connection of this address. The row stays the table's, until as many have left; NULL: no memory. */
struct http_client *http_client_enter(struct http_clients *clients, const uint8_t address[16]);
void http_client_leave(struct http_clients *clients, struct http_client *client);

#endif
