/* libFuzzer: messages between an agent and its runners. What decodes must encode to the same bytes, and its texts lie
 * within the message's own memory. Both sides run as the same user, but of two versions. */
#include "shoal/runner.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_text(const struct shoal_runner_message *m, const char *text)
{
    SHOAL_ASSERT(text >= m->strings && text < m->strings + sizeof(m->strings));
    SHOAL_ASSERT(memchr(text, 0, (size_t)(m->strings + sizeof(m->strings) - text)) != NULL);
}

static void check_start(const struct shoal_runner_message *m)
{
    const struct shoal_runner_start *start = &m->start;

    check_text(m, start->cwd);
    check_text(m, start->stdout_path);
    check_text(m, start->stderr_path);
    check_text(m, start->lock_path);
    check_text(m, start->cgroup);
    SHOAL_ASSERT(start->argc > 0 && start->argv[start->argc] == NULL && start->env[start->envc] == NULL);
    for (uint32_t i = 0; i < start->argc; i++)
        check_text(m, start->argv[i]);
    for (uint32_t i = 0; i < start->envc; i++)
        check_text(m, start->env[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct shoal_runner_message m;
    static uint8_t again[SHOAL_RUNNER_MESSAGE_MAX];
    uint8_t *exact = malloc(len + 2);
    size_t written;

    SHOAL_ASSERT(exact != NULL);
    if (len > 0) {
        exact[0] = bytes[0] % SHOAL_RUNNER_KIND_COUNT;
        exact[1] = exact[2] = SHOAL_RUNNER_VERSION;
        memcpy(exact + 3, bytes + 1, len - 1);
        if (shoal_runner_decode(shoal_view_of(exact, len + 2), &m) == SHOAL_OK) {
            if (m.kind == SHOAL_RUNNER_START)
                check_start(&m);
            SHOAL_ASSERT(shoal_runner_encode(&m, again, sizeof(again), &written) == SHOAL_OK && written == len + 2);
            SHOAL_ASSERT(memcmp(again, exact, written) == 0);
        }
    }
    free(exact);
    return 0;
}
