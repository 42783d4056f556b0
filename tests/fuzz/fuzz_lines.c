/* libFuzzer: lines and small messages that others wrote. The first byte chooses: the list of an archived job's blobs, or of a
 * result's files, as another host sends it; names and lines on their way to a terminal; an engine server's answer to its runner.
 * What is taken of a list stays below the job's folder and is written again as it was read; nothing that is shown has a control
 * character. */
#include <stdlib.h>
#include <string.h>

#include "node/agent/agent_archive.h"
#include "node/agent/agent_results.h"
#include "node/runner/runner_state.h"
#include "api/cli/cli_internal.h"
#include "shoal/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_line(const struct archive_line *line)
{
    char text[ARCHIVE_PATH_BYTES + 256];
    struct archive_lines again = { .list = NULL };

    SHOAL_ASSERT(strchr("lgarf", line->what) != NULL);
    SHOAL_ASSERT(memchr(line->path, '\0', sizeof(line->path)) != NULL && strchr(line->path, '\n') == NULL);
    if (line->what == 'l')
        SHOAL_ASSERT(archive_is_log(line->path) && strstr(line->path, "..") != line->path);
    if (line->what == 'f')
        SHOAL_ASSERT(agent_result_is_shown(line->path) && line->path[0] != '/');
    if (!archive_line_text(line, text, sizeof(text)))
        return;
    SHOAL_ASSERT(archive_lines_read(&again, shoal_view_text(text)) == SHOAL_OK && again.count == 1);
    SHOAL_ASSERT(again.list[0].what == line->what && again.list[0].bytes == line->bytes);
    SHOAL_ASSERT(strcmp(again.list[0].path, line->path) == 0);
    free(again.list);
}

static void archive_list(struct shoal_view view)
{
    struct archive_lines lines = { .list = NULL };
    enum shoal_err err = archive_lines_read(&lines, view);

    SHOAL_ASSERT(err == SHOAL_OK || err == SHOAL_ERR_MALFORMED || err == SHOAL_ERR_TOO_BIG || err == SHOAL_ERR_FULL);
    for (size_t i = 0; i < lines.count; i++)
        check_line(&lines.list[i]);
    free(lines.list);
}

static void shown(const char *text)
{
    char encoded[300];

    for (const uint8_t *at = (const uint8_t *)cli_shown(text); *at != 0;) {
        size_t len = shoal_utf8_len(at, 4);

        SHOAL_ASSERT(len > 0 && (*at == '\t' || !shoal_code_is_control(shoal_utf8_code(at, len))));
        at += len;
    }
    cli_encode(text, encoded, sizeof(encoded));
    if (encoded[0] > '\0' && encoded[0] < ' ')
        return; /* it does not fit, and cli_call() refuses it */
    for (const char *at = encoded; *at != '\0'; at++)
        SHOAL_ASSERT((unsigned char)*at > 0x20 && (unsigned char)*at < 0x7f && *at != '/' && *at != '?');
}

static void engine_answer(struct shoal_view view)
{
    struct runner_server_answer answer;

    if (!runner_server_answer_decode(view, &answer))
        return;
    SHOAL_ASSERT(answer.error.len == 0 || (answer.error.bytes >= view.bytes &&
                                           answer.error.bytes + answer.error.len <= view.bytes + view.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char *text;

    if (len == 0)
        return 0;
    text = malloc(len); /* NUL at the memory's end */
    SHOAL_ASSERT(text != NULL);
    memcpy(text, bytes + 1, len - 1);
    text[len - 1] = '\0';
    switch (bytes[0] % 3) {
    case 0: archive_list(shoal_view_of((const uint8_t *)text, len - 1)); break;
    case 1: shown(text); break;
    default: engine_answer(shoal_view_of((const uint8_t *)text, len - 1)); break;
    }
    free(text);
    return 0;
}
