/* The table of clients: a row for each address that has a connection or a request in hand, so that a full server takes places from
 * whoever has the most of them. A second one has a row for each user that has a request in hand. */
#ifndef API_HTTP_CLIENTS_H
#define API_HTTP_CLIENTS_H

#include <stddef.h>
#include <stdint.h>

#define HTTP_CLIENT_CHAINS 256u /* of at most SHOAL_HTTP_CONNECTIONS_MAX rows, and one for each request of a client that has gone */

enum http_room_name { HTTP_ROOM_UPLOADS, HTTP_ROOM_MODELS };
#define HTTP_ROOMS 2u

struct http_client {
    struct http_client *next; /* of its chain */
    uint8_t key[16];          /* an address, an IPv4 one in IPv6 form; or what stands for a user's name */
    unsigned connections;
    unsigned requests; /* in hand, those whose connection is gone included */
    size_t held;       /* bytes of its connections: answers that it has not taken, bodies that wait */
    uint64_t holds[HTTP_ROOMS]; /* what its requests hold (http_room.h) */
};

struct http_clients {
    struct http_client *chains[HTTP_CLIENT_CHAINS];
};

/* One more connection. The row stays the table's, until all that was counted there has left; NULL: no memory. */
struct http_client *http_client_enter(struct http_clients *clients, const uint8_t key[16]);
void http_client_leave(struct http_clients *clients, struct http_client *client);
/* The same of a request. */
struct http_client *http_client_ask(struct http_clients *clients, const uint8_t key[16]);
void http_client_answered(struct http_clients *clients, struct http_client *client);

#endif
