/* Rooms that users share: who is let in, and who gives way. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "api/http/http_server.h"

#include "shoal/banned.h"

#define GUESTS 8

static uv_loop_t loop;
static struct shoal_http http;
static struct http_request *guests[GUESTS];

static uint64_t frees(const struct http_request *request) { return request->responded ? 0 : request->stay.held; }
static void leave(struct http_request *request) { request->responded = true; }
static const struct http_guest guest = { .frees = frees, .leave = leave };

/* A request of a user at an address, of whose body so many bytes have come. */
static struct http_request *ask(unsigned at, char user, char address, uint64_t came)
{
    uint8_t of_user[16] = { 0 }, of_address[16] = { 0 };
    struct http_request *request = calloc(1, sizeof(*request));

    assert_non_null(request);
    memset(of_user, user, sizeof(of_user));
    memset(of_address, address, sizeof(of_address));
    request->http = &http;
    request->refs = 1;
    request->client = http_client_ask(&http.clients, of_address);
    request->asker = http_client_ask(&http.askers, of_user);
    http_pace_begin(&request->pace, http_now_ms(&http));
    http_pace_add(&request->pace, came);
    guests[at] = request;
    return request;
}

static bool takes(struct http_request *request, uint64_t more)
{
    return http_room_take(request, HTTP_ROOM_MODELS, &guest, more);
}

static int begin(void **state)
{
    (void)state;
    http = (struct shoal_http){ .loop = &loop };
    (void)uv_loop_init(&loop);
    http.rooms[HTTP_ROOM_MODELS] = (struct http_room){ .most = 100, .last = 25 };
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (unsigned i = 0; i < GUESTS; i++) {
        if (guests[i] == NULL)
            continue;
        http_room_leave_all(guests[i]);
        http_client_answered(&http.clients, guests[i]->client);
        http_client_answered(&http.askers, guests[i]->asker);
        free(guests[i]);
        guests[i] = NULL;
    }
    assert_int_equal(http.rooms[HTTP_ROOM_MODELS].taken, 0);
    assert_null(http.rooms[HTTP_ROOM_MODELS].guests);
    (void)uv_loop_close(&loop);
    return 0;
}

static void test_the_last_part_is_for_those_who_hold_little(void **state)
{
    (void)state;
    assert_true(takes(ask(0, 'e', 'x', 0), 75));
    assert_false(takes(ask(1, 'e', 'x', 0), 1));
    assert_true(takes(ask(2, 'a', 'x', 0), 25));
    assert_false(guests[0]->responded);
    assert_int_equal(http.stats.refused_busy, 1);
    assert_int_equal(http.stats.gave_way, 0);
}

static void test_the_slowest_of_the_user_who_holds_most_gives_way(void **state)
{
    (void)state;
    assert_true(takes(ask(0, 'e', 'w', 900), 25));
    assert_true(takes(ask(1, 'e', 'w', 10), 25));
    assert_true(takes(ask(2, 'e', 'w', 500), 25));
    assert_true(takes(ask(3, 'a', 'x', 0), 24));
    assert_true(takes(ask(4, 'b', 'x', 0), 2));
    assert_true(guests[1]->responded);
    assert_false(guests[0]->responded || guests[2]->responded || guests[3]->responded);
    assert_int_equal(http.stats.gave_way, 1);
    assert_int_equal(http.rooms[HTTP_ROOM_MODELS].taken, 76);
}

static void test_who_would_hold_as_much_takes_nothing_from_others(void **state)
{
    (void)state;
    http.rooms[HTTP_ROOM_MODELS].last = 0;
    assert_true(takes(ask(0, 'e', 'x', 0), 50));
    assert_true(takes(ask(1, 'a', 'y', 0), 49));
    assert_false(takes(guests[1], 2)); /* 51 were more than 50 */
    assert_false(takes(ask(2, 'e', 'z', 0), 2)); /* and nobody gives way to itself */
    assert_true(takes(ask(3, 'b', 'z', 0), 2));
    assert_true(guests[0]->responded && !guests[1]->responded);
}

static void test_of_equal_users_the_address_that_has_most_gives_way(void **state)
{
    (void)state;
    http.rooms[HTTP_ROOM_MODELS].most = 3;
    http.rooms[HTTP_ROOM_MODELS].last = 0;
    assert_true(takes(ask(0, 'a', 'x', 0), 1));
    assert_true(takes(ask(1, 'b', 'y', 1), 1));
    assert_true(takes(ask(2, 'c', 'y', 2), 1));
    assert_false(takes(ask(3, 'd', 'y', 0), 1));
    assert_true(takes(ask(4, 'd', 'z', 0), 1));
    assert_true(guests[1]->responded && !guests[0]->responded && !guests[2]->responded);
}

static void test_what_frees_nothing_stays(void **state)
{
    (void)state;
    assert_true(takes(ask(0, 'e', 'x', 0), 75));
    guests[0]->responded = true;
    assert_true(takes(ask(1, 'a', 'y', 0), 20));
    assert_false(takes(ask(2, 'b', 'z', 0), 25));
    http_room_leave(guests[0], 20);
    assert_true(takes(guests[2], 25));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_last_part_is_for_those_who_hold_little, begin, end),
        cmocka_unit_test_setup_teardown(test_the_slowest_of_the_user_who_holds_most_gives_way, begin, end),
        cmocka_unit_test_setup_teardown(test_who_would_hold_as_much_takes_nothing_from_others, begin, end),
        cmocka_unit_test_setup_teardown(test_of_equal_users_the_address_that_has_most_gives_way, begin, end),
        cmocka_unit_test_setup_teardown(test_what_frees_nothing_stays, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
