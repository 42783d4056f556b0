/* A scenario: commands, a line of dashes, and the trace that they must produce. To see a script's trace instead of
 * having it compared: SHOAL_SCENARIO_PRINT=1. To run others: SHOAL_SCENARIO=PATTERN. */
#ifndef TESTS_SCENARIO_SCRIPT_H
#define TESTS_SCENARIO_SCRIPT_H

#include <ctype.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shoal/limits.h"

#define SCRIPT_TRACE_BYTES (256 * 1024)
#define SCRIPT_WORDS_MAX 20

struct script {
    const char *path;
    char trace[SCRIPT_TRACE_BYTES];
    size_t len;
};

/* `words` ends with NULL. */
typedef void script_command_fn(char **words, int count, int line);

/* One line of the trace: "[ milliseconds] who  what". */
__attribute__((format(printf, 4, 0))) static inline void script_say(struct script *s, uint64_t ms, const char *who,
                                                                    const char *format, va_list args)
{
    int wrote = snprintf(s->trace + s->len, sizeof(s->trace) - s->len, "[%5llu] %s  ", (unsigned long long)ms, who);

    assert_true(wrote > 0 && s->len + (size_t)wrote < sizeof(s->trace));
    s->len += (size_t)wrote;
    wrote = vsnprintf(s->trace + s->len, sizeof(s->trace) - s->len, format, args);
    assert_true(wrote > 0 && s->len + (size_t)wrote + 2 < sizeof(s->trace));
    s->len += (size_t)wrote;
    s->trace[s->len++] = '\n';
    s->trace[s->len] = '\0';
}

/* "800ms" or "5s". */
static inline uint64_t script_time(const char *word)
{
    char *unit;
    uint64_t n = strtoull(word, &unit, 10);

    return strcmp(unit, "ms") == 0 ? n * SHOAL_MS : n * SHOAL_S;
}

static inline int script_split(char *text, char **words)
{
    int count = 0;
    char *hash = strchr(text, '#');

    if (hash != NULL)
        *hash = '\0';
    while (count < SCRIPT_WORDS_MAX) {
        while (isspace((unsigned char)*text))
            *text++ = '\0';
        if (*text == '\0')
            break;
        words[count++] = text;
        while (*text != '\0' && !isspace((unsigned char)*text))
            text++;
    }
    return count;
}

/* Runs the commands up to the dashes, whose line number it returns. */
static inline int script_commands(const struct script *s, FILE *file, script_command_fn *command)
{
    char text[512];
    int line = 0;

    while (fgets(text, sizeof(text), file) != NULL) {
        char *words[SCRIPT_WORDS_MAX + 1] = { NULL };
        int count;

        line++;
        if (strncmp(text, "----", 4) == 0)
            return line;
        count = script_split(text, words);
        if (count > 0)
            command(words, count, line);
    }
    fail_msg("%s: no line of dashes", s->path);
    return line;
}

static inline void script_compare(const struct script *s, FILE *file, int line, const char *again)
{
    char want[512];
    const char *at = s->trace;

    while (fgets(want, sizeof(want), file) != NULL) {
        size_t want_len = strcspn(want, "\n");
        size_t len = strcspn(at, "\n");

        line++;
        if (want_len == 0)
            continue;
        if (want_len != len || memcmp(want, at, len) != 0)
            fail_msg("FAIL %s:%d want \"%.*s\" got \"%.*s\"; SHOAL_SCENARIO_PRINT=1 make test T=unit/%s", s->path, line,
                     (int)want_len, want, (int)len, at, again);
        at += len + (at[len] == '\n' ? 1 : 0);
    }
    if (*at != '\0')
        fail_msg("FAIL %s:%d want the end got \"%.*s\"", s->path, line, (int)strcspn(at, "\n"), at);
}

/* Runs the script and compares, or prints, its trace. */
static inline void script_run(struct script *s, const char *path, script_command_fn *command, const char *again)
{
    FILE *file = fopen(path, "re");
    int line;

    assert_non_null(file);
    s->path = path;
    s->len = 0;
    s->trace[0] = '\0';
    line = script_commands(s, file, command);
    if (getenv("SHOAL_SCENARIO_PRINT") != NULL)
        (void)printf("==> %s\n%s", path, s->trace);
    else
        script_compare(s, file, line, again);
    assert_int_equal(fclose(file), 0);
}

static inline void script_each(const char *pattern, size_t at_least, void (*run)(const char *path))
{
    const char *other = getenv("SHOAL_SCENARIO");
    glob_t found;

    assert_int_equal(glob(other != NULL ? other : pattern, 0, NULL, &found), 0);
    assert_true(other != NULL || found.gl_pathc >= at_least);
    for (size_t i = 0; i < found.gl_pathc; i++)
        run(found.gl_pathv[i]);
    globfree(&found);
}

#endif
