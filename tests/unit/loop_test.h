/* Tests of shells on a libuv loop share this: waiting with an end, and leaving nothing open. A fixture has `loop` (or
 * `agent`, whose loop it is), and `late`, which loop_watch() sets when a case takes too long. */
#ifndef TESTS_LOOP_TEST_H
#define TESTS_LOOP_TEST_H

#include <setjmp.h>
#include <stdarg.h>

#include <uv.h>

#include <cmocka.h>

#include "shoal/address.h"

#define LOOP_PATIENCE_MS 60000

#define RUN_LOOP_UNTIL(loop_of, f, condition)                                                                          \
    do {                                                                                                               \
        while (!(condition)) {                                                                                         \
            (void)uv_run(&(loop_of)->loop, UV_RUN_ONCE);                                                               \
            if ((f)->late)                                                                                             \
                fail_msg("%s:%d: never came: %s", __FILE__, __LINE__, #condition);                                     \
        }                                                                                                              \
    } while (0)

#define RUN_UNTIL(f, condition) RUN_LOOP_UNTIL(f, f, condition)
#define RUN_AGENT_UNTIL(f, condition) RUN_LOOP_UNTIL((f)->agent, f, condition)

static inline void loop_is_late(uv_timer_t *timer) { *(bool *)timer->data = true; }

static inline void loop_watch(uv_loop_t *loop, uv_timer_t *watchdog, bool *late)
{
    (void)uv_timer_init(loop, watchdog);
    watchdog->data = late;
    (void)uv_timer_start(watchdog, loop_is_late, LOOP_PATIENCE_MS, 0);
}

static inline void loop_close_one(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* For a case of many rounds, each with the patience of a whole one. */
static inline void loop_watch_again(uv_timer_t *watchdog)
{
    (void)uv_timer_start(watchdog, loop_is_late, LOOP_PATIENCE_MS, 0);
}

/* A failed case leaves sockets of its own open. */
static inline void loop_end(uv_loop_t *loop)
{
    uv_walk(loop, loop_close_one, NULL);
    (void)uv_run(loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(loop), 0);
}

static inline struct shoal_address loopback(uint16_t port)
{
    struct shoal_address address;

    assert_int_equal(shoal_address_parse("127.0.0.1:0", 0, &address, NULL), SHOAL_OK);
    address.port = port;
    return address;
}

#endif
