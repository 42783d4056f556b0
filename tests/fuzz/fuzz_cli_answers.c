/* libFuzzer: what a node may answer to the command line. The first byte chooses the command, the rest is the body of every
 * answer to it. Whatever comes, the command ends, and what it prints has no control character in it.
 *
 * cli_call(), cli_print() and cli_pause_ms() here stand before the ones that use the network (the Makefile links this program so). */
#include "api/cli/cli_internal.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define JOB "shoal-0123456789abcdef"
#define WORDS_MAX 6

static const char *const commands[][WORDS_MAX] = {
    { "job", "list" },      { "job", "show", JOB },  { "job", "tasks", JOB },
    { "job", "files", JOB }, { "job", "metrics", JOB }, { "job", "metrics", JOB, "--plot" },
    { "job", "ledger", JOB }, { "node", "list" },      { "why", JOB },
    { "frameworks" },       { "status" },            { "top", "--count", "1" },
    { "job", "stop", JOB },  { "job", "recover", JOB }, { "job", "list", "--all" },
};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static struct shoal_view the_body; /* of the input under way */
static unsigned the_calls;

int cli_call(struct cli *cli, const struct cli_call *call, struct cli_answer *answer, bool hush)
{
    (void)cli, (void)hush;
    *answer = (struct cli_answer){ .status = 200, .log_ended = true };
    if (++the_calls > 40) /* pages that follow without end */
        return SHOAL_EXIT_UNREACHABLE;
    if (call->sink != NULL) {
        (void)fwrite(the_body.bytes, 1, the_body.len, call->sink);
        return SHOAL_EXIT_OK;
    }
    if (shoal_buf_append(&answer->body, the_body.bytes, the_body.len) != SHOAL_OK ||
        shoal_buf_append(&answer->body, (const uint8_t *)"", 1) != SHOAL_OK)
        abort();
    answer->body.len--;
    return SHOAL_EXIT_OK;
}

void cli_pause_ms(long ms) { (void)ms; }

int cli_print(struct cli *cli, const char *path)
{
    (void)cli, (void)path;
    return SHOAL_EXIT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const struct shoal_cli_hooks hooks = { .init = NULL };
    static char words[WORDS_MAX + 2][64] = { "shoal" };
    char *argv[WORDS_MAX + 3] = { words[0] };
    FILE *usual = stdout;
    char *printed = NULL;
    size_t printed_len = 0;
    int argc = 1;

    if (len == 0)
        return 0;
    for (unsigned i = 0; i < WORDS_MAX && commands[bytes[0] % COMMAND_COUNT][i] != NULL; i++) {
        (void)snprintf(words[argc], sizeof(words[0]), "%s", commands[bytes[0] % COMMAND_COUNT][i]);
        argv[argc] = words[argc];
        argc++;
    }
    the_body = shoal_view_of(bytes + 1, len - 1);
    the_calls = 0;
    stdout = open_memstream(&printed, &printed_len);
    if (stdout == NULL)
        abort();
    (void)shoal_cli_main(argc, argv, &hooks);
    (void)fclose(stdout);
    stdout = usual;
    for (size_t i = 0; i < printed_len;) {
        const uint8_t *at = (const uint8_t *)printed + i;
        size_t its = shoal_utf8_len(at, printed_len - i);

        /* a column that is full may end within a letter */
        SHOAL_ASSERT(its > 0 || *at >= 0xa0 || (i > 0 && at[-1] >= 0x80));
        SHOAL_ASSERT(its == 0 || *at == '\n' || *at == '\t' || !shoal_code_is_control(shoal_utf8_code(at, its)));
        i += its == 0 ? 1 : its;
    }
    free(printed);
    return 0;
}
