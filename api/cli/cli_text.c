/* Text of others on its way to a terminal: a job's words, a node's refusal, a name. What a terminal would take for an order, and
 * what would make lines of its own, is shown as it is written in a program: \x1b, \x0a, \u202e. */
#include "cli_internal.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "shoal/text.h"

#include "shoal/banned.h"

/* As many as one line shows, and as long as a detail with a trace may be. */
#define SHOWN_COPIES 16u
#define SHOWN_BYTES 4096u
#define ESCAPE_BYTES 8u /* of one, with its end */

/* The bytes of what begins at `at`: a character, or one byte that is none. `escape`: how it is shown, "" as it is. */
static size_t next_shown(const char *at, char escape[ESCAPE_BYTES])
{
    const uint8_t *bytes = (const uint8_t *)at;
    size_t len = shoal_utf8_len(bytes, 4);
    uint32_t code = len == 0 ? bytes[0] : shoal_utf8_code(bytes, len);

    escape[0] = '\0';
    if (len == 0 || (code != '\t' && shoal_code_is_control(code)))
        (void)snprintf(escape, ESCAPE_BYTES, code > 0xff ? "\\u%04" PRIx32 : "\\x%02" PRIx32, code);
    return len == 0 ? 1 : len;
}

const char *cli_shown(const char *text)
{
    static char copies[SHOWN_COPIES][SHOWN_BYTES];
    static unsigned next;
    char escape[ESCAPE_BYTES];
    const char *at = text;
    size_t len = 0;
    char *copy;

    while (*at != '\0') {
        size_t bytes = next_shown(at, escape);

        if (escape[0] != '\0')
            break;
        at += bytes;
    }
    if (*at == '\0')
        return text;
    copy = copies[next++ % SHOWN_COPIES];
    for (at = text; *at != '\0' && len + ESCAPE_BYTES < SHOWN_BYTES;) {
        size_t bytes = next_shown(at, escape);

        if (escape[0] == '\0')
            memcpy(copy + len, at, bytes);
        else
            memcpy(copy + len, escape, strlen(escape));
        len += escape[0] == '\0' ? bytes : strlen(escape);
        at += bytes;
    }
    (void)snprintf(copy + len, SHOWN_BYTES - len, "%s", *at == '\0' ? "" : "...");
    return copy;
}

void cli_put_lines(const char *text, unsigned indent)
{
    char escape[ESCAPE_BYTES];

    while (*text != '\0') {
        size_t bytes = next_shown(text, escape);

        if (*text == '\n' && text[1] != '\0')
            (void)printf("\n%*s", (int)indent, "");
        else if (*text != '\n' && escape[0] == '\0')
            (void)fwrite(text, 1, bytes, stdout);
        else if (*text != '\n')
            (void)fputs(escape, stdout);
        text += bytes;
    }
    (void)putchar('\n');
}

void cli_put_json(FILE *out, const char *json)
{
    while (*json != '\0') {
        size_t plain = 0, bytes = shoal_utf8_len((const uint8_t *)json, 4);
        uint32_t code = bytes == 0 ? 0 : shoal_utf8_code((const uint8_t *)json, bytes);

        while ((json[plain] >= 0x20 && json[plain] < 0x7f) || json[plain] == '\n')
            plain++;
        if (plain > 0)
            bytes = plain;
        if (plain > 0 || (bytes > 0 && !shoal_code_is_control(code)))
            (void)fwrite(json, 1, bytes, out);
        else if (bytes > 0 && code != '\t' && code != '\r') /* within a string, where this says the same */
            (void)fprintf(out, "\\u%04" PRIx32, code);
        else
            (void)fputs(bytes > 0 ? " " : "\xef\xbf\xbd", out);
        json += bytes == 0 ? 1 : bytes;
    }
}

void cli_print_json(const char *json)
{
    cli_put_json(stdout, json);
    (void)putchar('\n');
}

/* ---- logs ---- */

/* Whether so many bytes may be the beginning of a character. */
static bool is_cut(const uint8_t *at, size_t have)
{
    for (size_t i = 1; i < have; i++)
        if ((at[i] & 0xc0) != 0x80)
            return false;
    return have < shoal_utf8_want(at[0]);
}

/* One character, or a byte that is none, as cat -v shows it. */
static void put_log_char(const uint8_t *at, size_t len)
{
    uint32_t code = len == 0 ? at[0] : shoal_utf8_code(at, len);

    if ((code > 0 && code < 0x80 && strchr("\n\t\r\b", (int)code) != NULL) || !shoal_code_is_control(code))
        (void)fwrite(at, 1, len == 0 ? 1 : len, stdout);
    else if (code < 0x80)
        (void)printf("^%c", (int)code ^ 64);
    else if (code < 0xa0)
        (void)printf("M-^%c", (int)code ^ 0xc0);
    else
        (void)printf("\\u%04" PRIx32, code);
}

void cli_put_log(struct cli_log_text *text, const char *bytes, size_t len)
{
    if (isatty(STDOUT_FILENO) != 1) {
        (void)fwrite(bytes, 1, len, stdout);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        text->held[text->held_len++] = (uint8_t)bytes[i];
        while (text->held_len > 0 && !is_cut(text->held, text->held_len)) {
            size_t its = shoal_utf8_len(text->held, text->held_len);
            size_t used = its == 0 ? 1 : its;

            put_log_char(text->held, its);
            text->held_len -= (unsigned)used;
            memmove(text->held, text->held + used, text->held_len);
        }
    }
}
