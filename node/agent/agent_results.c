/* Chooses the files of a RESULT_DIR that are its results.
 *
 *   RESULT_DIR/model/...        all        RESULT_DIR/log/...             all
 *   RESULT_DIR/anything/...     all        RESULT_DIR/_submitted_code/... what the job has written or changed there
 *
 * E1. Regular files only, and no link is followed: a job may have put anything there.
 * E2. Neither *.tmp nor *.part, hidden names or __pycache__: they are on their way to another name, or nobody's result.
 * E3. A submitted file is none: unpacking gives it SHOAL_BUNDLE_MTIME_S, and whoever writes to it changes that.
 * E4. What lies in a folder that may not be looked into counts as one file that is left out. */
#include "agent_results.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/below.h"
#include "shoal/bundle.h"
#include "shoal/limits.h"
#include "shoal/text.h"

#include "shoal/banned.h"

#define COUNTED_DEPTH_MAX 64u /* as tree_walk.h */
#define CODE "_submitted_code/"

bool agent_result_is_temporary(const char *path)
{
    size_t len = strlen(path);

    return (len > 4 && strcmp(path + len - 4, ".tmp") == 0) || (len > 5 && strcmp(path + len - 5, ".part") == 0);
}

/* The bytes of the UTF-8 character at `text`; 0: it is none, or a control character. */
static size_t character_len(const uint8_t *text)
{
    size_t len = shoal_utf8_len(text, 4);

    return len > 0 && len <= 2 && shoal_code_is_control(shoal_utf8_code(text, len)) ? 0 : len;
}

bool agent_result_is_shown(const char *path)
{
    size_t at = 0;

    while (path[at] != '\0') {
        size_t len = character_len((const uint8_t *)path + at);

        if (len == 0 || ((at == 0 || path[at - 1] == '/') && (path[at] == '.' || path[at] == '/')))
            return false;
        at += len;
    }
    return at > 0 && at < AGENT_RESULT_PATH_BYTES && path[at - 1] != '/';
}

static struct agent_result *add(struct agent_results *results)
{
    if (results->count == SHOAL_RESULT_FILES_MAX)
        return NULL;
    if (results->count == results->cap) {
        size_t cap = results->cap == 0 ? 16 : 2 * results->cap;
        struct agent_result *grown = realloc(results->list, cap * sizeof(*grown));

        if (grown == NULL)
            return NULL;
        results->list = grown;
        results->cap = cap;
    }
    return &results->list[results->count++];
}

static void look_at(struct agent_results *results, const char *path, const struct stat *facts)
{
    struct agent_result *result;

    if (strncmp(path, CODE, sizeof(CODE) - 1) == 0 && facts->st_mtime == SHOAL_BUNDLE_MTIME_S)
        return; /* E3 */
    result = agent_result_is_shown(path) ? add(results) : NULL;
    if (result == NULL) {
        results->left_out++;
        return;
    }
    *result = (struct agent_result){ .bytes = (uint64_t)facts->st_size,
                                     .mtime_s = facts->st_mtime > 0 ? (uint64_t)facts->st_mtime : 0,
                                     .executable = (facts->st_mode & 0111) != 0 };
    memcpy(result->path, path, strlen(path) + 1);
}

/* E4 */
static void note_shut(struct agent_results *results) { results->left_out += errno == EACCES; }

static bool is_left(const char *name) { return name[0] == '.' || strcmp(name, "__pycache__") == 0; }

/* What lies in a folder that is too deep, or whose path is too long. Takes the descriptor. */
static void count(int fd, unsigned depth, struct agent_results *results)
{
    DIR *dir = fd < 0 || depth > COUNTED_DEPTH_MAX ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (fd < 0)
        note_shut(results);
    if (fd >= 0 && dir == NULL)
        (void)close(fd);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        struct stat facts;

        if (is_left(entry->d_name))
            continue;
        if (fstatat(fd, entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
            note_shut(results);
            continue;
        }
        if (S_ISDIR(facts.st_mode))
            count(openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), depth + 1, results);
        else if (S_ISREG(facts.st_mode) && !agent_result_is_temporary(entry->d_name) &&
                 facts.st_mtime != SHOAL_BUNDLE_MTIME_S) /* E3 */
            results->left_out++;
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static void walk(const char *root, const char *relative, unsigned depth, struct agent_results *results)
{
    int fd = shoal_open_below(root, relative[0] == '\0' ? "." : relative, O_RDONLY | O_DIRECTORY);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;

    if (fd < 0)
        note_shut(results);
    if (fd >= 0 && dir == NULL)
        (void)close(fd);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[2 * AGENT_RESULT_PATH_BYTES];
        struct stat facts;
        bool fits;

        if (is_left(entry->d_name))
            continue;
        if (fstatat(fd, entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
            note_shut(results);
            continue;
        }
        fits = (size_t)snprintf(path, sizeof(path), "%s%s%s", relative, relative[0] == '\0' ? "" : "/", entry->d_name) <
               AGENT_RESULT_PATH_BYTES;
        if (S_ISDIR(facts.st_mode) && fits && depth < AGENT_RESULT_DEPTH_MAX)
            walk(root, path, depth + 1, results);
        else if (S_ISDIR(facts.st_mode))
            count(openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), depth + 1, results);
        else if (S_ISREG(facts.st_mode) && !agent_result_is_temporary(path)) /* E1, E2 */
            look_at(results, path, &facts);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct agent_result *)a)->path, ((const struct agent_result *)b)->path);
}

void agent_results_walk(const char *root, struct agent_results *results)
{
    *results = (struct agent_results){ 0 };
    walk(root, "", 0, results);
    if (results->count > 1)
        qsort(results->list, results->count, sizeof(*results->list), by_path);
}
