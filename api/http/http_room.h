/* Rooms: what a server shares out among requests whose bodies it holds, that of uploads in places, that of models in bytes. Nobody
 * takes a room from the others, and who is alone may have most of it.
 *
 * R1. The last part of a room is for users who hold no more than such a part.
 * R2. When there is no room, a body that is still to come gives way: one of the user who holds most, of these one of the address for
 *     which most is held, of these the one that came most slowly of late. So it is if that user, or of an equal one that address,
 *     holds more than who asks would; else who asks is refused. Nobody gives way to itself.
 * R3. What gives way is answered, and what it held is free at once: a guest says how much that is just now.
 * R4. What a request holds is given back with it, at the latest.
 * R5. Another's answer may close connections (H6 of http_server.h): who asks for room holds its request. */
#ifndef API_HTTP_ROOM_H
#define API_HTTP_ROOM_H

#include <stdbool.h>
#include <stdint.h>

#include "shoal/error.h"

#include "http_clients.h"

struct http_request;
struct shoal_http;

struct http_room {
    struct http_request *guests;
    uint64_t taken;
    uint64_t most;
    uint64_t last; /* R1 */
};

/* What a route does for R3. */
struct http_guest {
    /* How much would be free at once, of what the request holds; 0: it does not give way. */
    uint64_t (*frees)(const struct http_request *request);
    /* It answers, and frees so much. */
    void (*leave)(struct http_request *request);
};

/* What a request holds of a room; of one room at most. */
struct http_stay {
    struct http_room *room; /* NULL: nothing */
    const struct http_guest *guest;
    struct http_request *next, *prev;
    enum http_room_name name;
    uint64_t held;
    bool asks; /* it is asking: it does not give way meanwhile */
};

void http_rooms_init(struct shoal_http *http);
/* False: there is no room, and nothing was taken. */
SHOAL_MUST_CHECK bool http_room_take(struct http_request *request, enum http_room_name name,
                                     const struct http_guest *guest, uint64_t more);
/* The same of what is there already and only changes its shape: beyond all bounds. The request holds something of the room, or `guest`
 * says what. */
void http_room_add(struct http_request *request, enum http_room_name name, const struct http_guest *guest, uint64_t more);
void http_room_leave(struct http_request *request, uint64_t less);
/* R4. */
void http_room_leave_all(struct http_request *request);

#endif
