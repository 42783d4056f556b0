/* The agent's log, of which nobody reads anything for a while. */
#include "node/agent/agent_out.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define LINES 20000

/* Nothing waits, all lines are whole and in order, and those that are missing were counted. */
static void a_log_that_nobody_reads_holds_nobody(void **state)
{
    FILE *before = stderr, *read_end;
    unsigned next = 0, said = 0, notes = 0;
    char line[200];
    struct shoal_msg msg;
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(agent_out_start(ends[1], &msg), SHOAL_OK);
    for (unsigned i = 0; i < LINES; i++)
        (void)fprintf(stderr, "%05u %060d\n", i, 0);
    read_end = fdopen(ends[0], "r");
    assert_non_null(read_end);
    while (next < LINES && fgets(line, sizeof(line), read_end) != NULL) {
        if (strstr(line, " lines were lost: nobody read the log\n") != NULL) {
            notes++;
            next += (unsigned)atoi(line); /* what is missing before it */
            continue;
        }
        assert_int_equal(strlen(line), 67);
        assert_int_equal(atoi(line), next++);
        said++;
    }
    assert_int_equal(next, LINES);
    assert_true(said > SHOAL_LOG_WAITS_BYTES / 67 / 2 && notes > 0);
    (void)fprintf(stderr, "the last\n");
    agent_out_flush();
    assert_non_null(fgets(line, sizeof(line), read_end));
    assert_string_equal(line, "the last\n");
    stderr = before;
    (void)fclose(read_end);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_log_that_nobody_reads_holds_nobody) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
