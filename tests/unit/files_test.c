/* Work on files of result folders (agent_files.c): what is small goes first, and of what is long a slice at a time. */
#include "node/agent/agent_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SLICES 40

struct one {
    struct agent_file_job file;
    char name;
    unsigned slices; /* that are left */
    uv_sem_t *starts; /* the thread waits for it before the first slice */
};

static struct agent *agents[2]; /* their threads wait until the process ends */
static char order[256];
static size_t order_len;

static void run(struct agent_file_job *file)
{
    struct one *one = (struct one *)(void *)file;

    if (one->starts != NULL)
        uv_sem_wait(one->starts);
    one->starts = NULL;
    one->slices--;
}

static void done(struct agent_file_job *file)
{
    struct one *one = (struct one *)(void *)file;

    if (order_len + 1 < sizeof(order))
        order[order_len++] = one->name;
    if (one->slices > 0)
        agent_tree_again(file);
}

static void start(struct agent *agent, struct one *one, char name, bool bulk, unsigned slices)
{
    *one = (struct one){ .file = { .bytes = 1, .bulk = bulk, .run = run, .done = done },
                         .name = name,
                         .slices = slices,
                         .starts = one->starts };
    assert_int_equal(agent_tree_submit(agent, &one->file), SHOAL_OK);
}

static void turn(struct agent *agent, size_t until)
{
    while (order_len < until)
        (void)uv_run(&agent->loop, UV_RUN_ONCE);
}

/* F3. Two jobs have a long file each, a third one many small files, all of which come later. */
static void a_long_file_holds_up_nothing(void **state)
{
    struct agent *agent = agents[0] = calloc(1, sizeof(*agent));
    struct one a = { 0 }, b = { 0 }, small[40] = { 0 };
    struct shoal_msg msg;
    uv_sem_t starts;
    size_t last_small = 0, apart = 0;

    (void)state;
    assert_non_null(agent);
    assert_int_equal(uv_loop_init(&agent->loop), 0);
    assert_int_equal(agent_files_create(agent, &msg), SHOAL_OK);
    assert_int_equal(uv_sem_init(&starts, 0), 0);
    a.starts = &starts;
    start(agent, &a, 'a', true, SLICES);
    start(agent, &b, 'b', true, SLICES);
    for (size_t i = 0; i < 40; i++)
        start(agent, &small[i], 's', false, 1);
    uv_sem_post(&starts);
    turn(agent, 2 * SLICES + 40);
    order[order_len] = '\0';
    for (size_t i = 0; i < order_len; i++)
        last_small = order[i] == 's' ? i : last_small;
    if (last_small > 45)
        fail_msg("small files waited for more than five slices: %s", order);
    for (size_t i = last_small + 1, run_of = 0; i < order_len; i++) {
        run_of = order[i] == order[i - 1] ? run_of + 1 : 0;
        apart = run_of > apart ? run_of : apart;
    }
    if (apart > 1)
        fail_msg("two long files take no turns: %s", order);
    uv_sem_destroy(&starts);
}

/* F3. They do not wait for ever either. */
static void a_long_file_gets_its_turn(void **state)
{
    static struct one small[200];
    struct agent *agent = agents[1] = calloc(1, sizeof(*agent));
    struct one a = { 0 };
    struct shoal_msg msg;
    uv_sem_t starts;

    (void)state;
    assert_non_null(agent);
    assert_int_equal(uv_loop_init(&agent->loop), 0);
    assert_int_equal(agent_files_create(agent, &msg), SHOAL_OK);
    assert_int_equal(uv_sem_init(&starts, 0), 0);
    order_len = 0;
    small[0].starts = &starts;
    for (size_t i = 0; i < 200; i++)
        start(agent, &small[i], 's', false, 1);
    start(agent, &a, 'a', true, 3);
    uv_sem_post(&starts);
    turn(agent, 203);
    order[order_len] = '\0';
    if (strchr(order, 'a') == NULL || strrchr(order, 'a') > order + 60)
        fail_msg("a long file waits for all small ones: %s", order);
    uv_sem_destroy(&starts);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_long_file_holds_up_nothing),
                                        cmocka_unit_test(a_long_file_gets_its_turn) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
