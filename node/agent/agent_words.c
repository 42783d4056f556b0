/* Reads the end of a log (agent_words.h).
 *
 *     Traceback (most recent call last):
 *       File "/.../_submitted_code/model/main.py", line 12, in area      a frame: the user's, by its folder
 *         return box["width"] * 2                                       its source, where Python has it
 *     KeyError: 'width'                                                 the end: the first line that is not indented
 *
 * or what Python's faulthandler leaves, the innermost frame first:
 *
 *     Fatal Python error: Segmentation fault
 *
 *     Current thread 0x00007fe68c9f4b80 (most recent call first):
 *       File "/.../_submitted_code/model/main.py", line 7 in area
 *
 *     Extension modules: numpy.core (total: 1) */
#include "agent_words.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "shoal/error.h"

#include "shoal/banned.h"

#define HEADER "Traceback (most recent call last):"
#define FRAME "  File \""
#define USERS "/_submitted_code/" /* agent_jobs.c unpacks what was submitted there */
#define FATAL "Fatal Python error: "
#define CURRENT "Current thread"
#define WARNING "Warning"
#define SOURCE_BYTES 60
#define PLACE_BYTES 120

struct line {
    const char *at;
    size_t len;
};

/* The line at `at`, and where the next one begins: NULL after the last. */
static const char *line_of(const char *at, struct line *line)
{
    const char *end = strchr(at, '\n');

    SHOAL_ASSERT(at != NULL);
    line->at = at;
    line->len = end == NULL ? strlen(at) : (size_t)(end - at);
    return end == NULL ? NULL : end + 1;
}

static bool begins(struct line line, const char *with)
{
    return line.len >= strlen(with) && memcmp(line.at, with, strlen(with)) == 0;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_empty(struct line line)
{
    for (size_t i = 0; i < line.len; i++)
        if (line.at[i] != ' ' && line.at[i] != '\r')
            return false;
    return true;
}

/* `  File "/a/_submitted_code/m/main.py", line 12, in area` becomes `main.py, line 12, in area`; false: not of the user's. */
static bool place_of(struct line line, char *place, size_t cap)
{
    struct line path = { .at = line.at + strlen(FRAME) };
    const char *quote, *users, *name;

    SHOAL_ASSERT(begins(line, FRAME) && cap > 0);
    quote = memchr(path.at, '"', line.len - strlen(FRAME));
    if (quote == NULL)
        return false;
    path.len = (size_t)(quote - path.at);
    users = memmem(path.at, path.len, USERS, strlen(USERS));
    if (users == NULL)
        return false;
    name = users + strlen(USERS);
    for (const char *c = name; c < quote; c++)
        if (*c == '/')
            name = c + 1;
    (void)snprintf(place, cap, "%.*s%.*s", (int)(quote - name > 60 ? 60 : quote - name), name,
                   (int)(line.at + line.len - quote - 1), quote + 1);
    return true;
}

static void add_source(struct line line, char *place, size_t cap)
{
    size_t used = strlen(place);

    while (line.len > 0 && *line.at == ' ') {
        line.at++;
        line.len--;
    }
    if (line.len > 0 && line.at[0] != '^' && line.at[0] != '~')
        (void)snprintf(place + used, cap - used, ": %.*s", (int)(line.len > SOURCE_BYTES ? SOURCE_BYTES : line.len), line.at);
}

/* Reads the frames from `at` on: the last place of the user's, and the line that ends the traceback. Returns what follows. */
static const char *read_frames(const char *at, char *place, size_t cap, struct line *end)
{
    bool wants_source = false;
    struct line line;

    SHOAL_ASSERT(cap > 0);
    place[0] = '\0';
    *end = (struct line){ 0 };
    while (at != NULL) {
        char found[PLACE_BYTES];

        at = line_of(at, &line);
        if (begins(line, FRAME)) {
            wants_source = place_of(line, found, sizeof(found));
            if (wants_source)
                (void)snprintf(place, cap, "%s", found);
            continue;
        }
        if (line.len > 0 && line.at[0] != ' ') {
            *end = line;
            break;
        }
        if (wants_source)
            add_source(line, place, cap);
        wants_source = false;
    }
    return at;
}

/* The last line that says something. */
static struct line last_line(const char *at)
{
    struct line line, last = { .at = "" };

    while (at != NULL) {
        at = line_of(at, &line);
        if (!is_empty(line))
            last = line;
    }
    while (last.len > 0 && (last.at[last.len - 1] == ' ' || last.at[last.len - 1] == '\r'))
        last.len--;
    return last;
}

/* The first frame of the last traceback; NULL: there is none. */
static const char *last_traceback(const char *at)
{
    const char *found = NULL;
    struct line line;

    while (at != NULL) {
        at = line_of(at, &line);
        if (begins(line, HEADER))
            found = at;
    }
    return found;
}

/* Whether the lines from `at` on belong to what came before: each is indented, or empty. */
static bool goes_on(const char *at)
{
    struct line line;

    while (at != NULL) {
        at = line_of(at, &line);
        if (!is_empty(line) && line.at[0] != ' ' && line.at[0] != '\t')
            return false;
    }
    return true;
}

/* `main.py:12: UserWarning: text` of Python's own warnings, `[W1128 12:13:14.15 file.cpp:16] text` of torch's, and logging's. */
static bool is_warning(struct line line)
{
    if (begins(line, "WARNING:") || (begins(line, "[W") && line.len > 2 && is_digit(line.at[2])))
        return true;
    for (size_t i = 0; i + 1 < line.len; i++) { /* a colon, digits, a colon, a name that ends with Warning, a colon */
        size_t digits = i + 1, name;

        if (line.at[i] != ':')
            continue;
        while (digits < line.len && is_digit(line.at[digits]))
            digits++;
        if (digits == i + 1 || digits + 1 >= line.len || line.at[digits] != ':' || line.at[digits + 1] != ' ')
            continue;
        name = digits + 2;
        for (i = name; i < line.len && line.at[i] != ':' && line.at[i] != ' ';)
            i++;
        return i < line.len && line.at[i] == ':' && i - name >= strlen(WARNING) &&
               memcmp(line.at + i - strlen(WARNING), WARNING, strlen(WARNING)) == 0;
    }
    return false;
}

/* All of `tail` but warnings, each with its source below it: they are no reason why something ended. */
static void leave_out_warnings(const char *tail, char *kept, size_t cap)
{
    bool within = false;
    size_t used = 0;
    struct line line;

    for (const char *at = tail, *next; at != NULL; at = next) {
        next = line_of(at, &line);
        within = is_warning(line) || (within && line.len > 0 && (line.at[0] == ' ' || line.at[0] == '\t'));
        if (within || used + line.len + 2 > cap)
            continue;
        memcpy(kept + used, line.at, line.len);
        used += line.len;
        if (next != NULL)
            kept[used++] = '\n';
    }
    kept[used] = '\0';
}

/* The message comes first: where there is no room for both, the place loses its source, then its parts. A message that is cut
 * all the same leaves the place a quarter. */
static void fit_place(char *place, size_t message, size_t cap)
{
    char *source = strstr(place, ": ");
    size_t left = message + sizeof(" ()") < cap ? cap - message - sizeof(" ()") : 0;

    SHOAL_ASSERT(cap > 3);
    if (message >= cap)
        left = cap / 4;
    if (strlen(place) > left && source != NULL)
        *source = '\0';
    while (strlen(place) > left) { /* "main.py, line 12, in area": whole parts of it */
        char *comma = strrchr(place, ',');

        *(comma == NULL ? place : comma) = '\0';
    }
}

/* Whether a line stands in what faulthandler writes below its first one. */
static bool is_dump(struct line line)
{
    return is_empty(line) || line.at[0] == ' ' || begins(line, CURRENT) || begins(line, "Thread ") || begins(line, "Stack (") ||
           begins(line, "Extension modules: ");
}

/* The last words of one that a fatal signal has ended: which, and the innermost frame of the user's in the thread that it came to.
 * False: the log ends otherwise. */
static bool fatal_words(const char *at, char *text, size_t cap)
{
    struct line line, fatal = { 0 };
    char place[PLACE_BYTES] = "";
    bool current = false;

    SHOAL_ASSERT(cap > 0);
    while (at != NULL) {
        at = line_of(at, &line);
        if (begins(line, FATAL)) {
            fatal = line;
            place[0] = '\0';
            current = false;
        } else if (!is_dump(line)) {
            fatal.len = 0;
        } else if (current && place[0] == '\0' && begins(line, FRAME)) {
            (void)place_of(line, place, sizeof(place));
        } else if (!is_empty(line) && line.at[0] != ' ') {
            current = begins(line, CURRENT);
        }
    }
    if (fatal.len > 0)
        (void)snprintf(text, cap, "%.*s%s%s%s", (int)fatal.len, fatal.at, place[0] == '\0' ? "" : " (", place,
                       place[0] == '\0' ? "" : ")");
    return fatal.len > 0;
}

void agent_words(const char *tail, char *text, size_t cap)
{
    char said[AGENT_WORDS_TAIL_BYTES];
    struct line last, end = { 0 };
    const char *frames, *after = NULL;
    char place[2 * PLACE_BYTES] = "";
    size_t room;

    SHOAL_ASSERT(cap > sizeof(place) / 4);
    leave_out_warnings(tail, said, sizeof(said));
    if (fatal_words(said, text, cap))
        return;
    last = last_line(said);
    frames = last_traceback(said);
    if (frames != NULL)
        after = read_frames(frames, place, sizeof(place), &end);
    if (end.len == 0 || !goes_on(after)) { /* no traceback, or the script went on after it */
        (void)snprintf(text, cap, "%.*s", (int)last.len, last.at);
        return;
    }
    while (last.len > 0 && (*last.at == ' ' || *last.at == '\t')) {
        last.at++;
        last.len--;
    }
    if (end.at == last.at)
        last.len = 0;
    fit_place(place, end.len + (last.len > 0 ? last.len + 1 : 0), cap);
    room = cap - 1 - (place[0] == '\0' ? 0 : strlen(place) + strlen(" ()"));
    if (end.len > room)
        end.len = room;
    if (last.len + 1 > room - end.len)
        last.len = 0;
    (void)snprintf(text, cap, "%.*s%s%.*s%s%s%s", (int)end.len, end.at, last.len > 0 ? " " : "", (int)last.len, last.at,
                   place[0] == '\0' ? "" : " (", place, place[0] == '\0' ? "" : ")");
}
