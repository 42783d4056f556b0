/* See http_room.h for the rules. */
#include "http_room.h"

#include <stddef.h>

#include "shoal/limits.h"

#include "http_server.h"

#include "shoal/banned.h"

void http_rooms_init(struct shoal_http *http)
{
    http->rooms[HTTP_ROOM_UPLOADS] = (struct http_room){ .most = SHOAL_UPLOADS_MAX, .last = SHOAL_UPLOADS_LAST };
    http->rooms[HTTP_ROOM_MODELS] =
        (struct http_room){ .most = SHOAL_INFER_HELD_BYTES_MAX, .last = SHOAL_INFER_HELD_BYTES_LAST };
}

/* ---- who holds what ---- */

static struct http_client *user_of(const struct http_request *request)
{
    return request->asker != NULL ? request->asker : request->client;
}

static void count(struct http_request *request, uint64_t more, uint64_t less)
{
    struct http_stay *stay = &request->stay;

    SHOAL_ASSERT(stay->held + more >= less);
    stay->held += more - less;
    stay->room->taken += more - less;
    request->client->holds[stay->name] += more - less;
    if (request->asker != NULL)
        request->asker->holds[stay->name] += more - less;
}

void http_room_add(struct http_request *request, enum http_room_name name, const struct http_guest *guest, uint64_t more)
{
    struct http_room *room = &request->http->rooms[name];
    struct http_stay *stay = &request->stay;

    if (more == 0)
        return;
    SHOAL_ASSERT(stay->room == NULL || stay->room == room);
    if (stay->room == NULL) {
        stay->room = room;
        stay->name = name;
        stay->guest = guest;
        stay->prev = NULL;
        stay->next = room->guests;
        if (stay->next != NULL)
            stay->next->stay.prev = request;
        room->guests = request;
    }
    count(request, more, 0);
}

void http_room_leave(struct http_request *request, uint64_t less)
{
    struct http_stay *stay = &request->stay;

    if (less == 0)
        return;
    SHOAL_ASSERT(stay->room != NULL);
    count(request, 0, less);
    if (stay->held > 0)
        return;
    if (stay->prev != NULL)
        stay->prev->stay.next = stay->next;
    else
        stay->room->guests = stay->next;
    if (stay->next != NULL)
        stay->next->stay.prev = stay->prev;
    stay->room = NULL;
}

void http_room_leave_all(struct http_request *request) { http_room_leave(request, request->stay.held); }

/* ---- who gives way ---- */

/* R1. */
static bool fits(const struct http_room *room, const struct http_request *request, enum http_room_name name,
                 uint64_t more)
{
    uint64_t most = user_of(request)->holds[name] + more > room->last ? room->most - room->last : room->most;

    return room->taken + more <= most;
}

/* R2: whether `one` holds more than `other` would, with `more`. */
static bool is_heavier(const struct http_request *one, const struct http_request *other, enum http_room_name name,
                       uint64_t more)
{
    uint64_t user = user_of(one)->holds[name], others = user_of(other)->holds[name] + more;

    if (user != others)
        return user > others;
    return one->client->holds[name] > other->client->holds[name] + more;
}

static bool goes_before(const struct http_request *one, const struct http_request *other, enum http_room_name name)
{
    uint64_t now_ms = http_now_ms(one->http);

    if (other == NULL || is_heavier(one, other, name, 0))
        return true;
    return !is_heavier(other, one, name, 0) && http_pace_rate(&one->pace, now_ms) < http_pace_rate(&other->pace, now_ms);
}

/* R2; NULL: nobody. */
static struct http_request *first_to_go(const struct http_room *room, const struct http_request *request,
                                        enum http_room_name name, uint64_t more)
{
    struct http_request *first = NULL;

    for (struct http_request *one = room->guests; one != NULL; one = one->stay.next)
        if (!one->stay.asks && is_heavier(one, request, name, more) && one->stay.guest->frees(one) > 0 &&
            goes_before(one, first, name))
            first = one;
    return first;
}

/* R3. */
static void dismiss(struct http_request *request)
{
    uint64_t freed = request->stay.guest->frees(request);

    request->http->stats.gave_way++;
    http_request_hold(request);
    request->stay.guest->leave(request);
    SHOAL_ASSERT(request->stay.guest->frees(request) == 0); /* it goes once */
    http_room_leave(request, freed);
    http_request_release(request);
}

bool http_room_take(struct http_request *request, enum http_room_name name, const struct http_guest *guest,
                    uint64_t more)
{
    const struct http_room *room = &request->http->rooms[name];
    struct http_request *first;
    bool asked = request->stay.asks;

    request->stay.asks = true;
    while (!fits(room, request, name, more) && (first = first_to_go(room, request, name, more)) != NULL)
        dismiss(first);
    request->stay.asks = asked;
    if (!fits(room, request, name, more)) {
        request->http->stats.refused_busy++;
        return false;
    }
    http_room_add(request, name, guest, more);
    return true;
}
