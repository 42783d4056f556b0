#include "tree_walk.h"

#include "tree_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "shoal/bundle.h"
#include "shoal/limits.h"
#include "shoal/log_order.h"

#include "shoal/banned.h"

#define YIELD_LOOKS 64u
#define CODE_FOLDERS 32u /* that one entry of a bundle may lie in, at most */
#define CODE "_submitted_code/"

/* One folder on the way down. Its path lies in `path`, whose first `len` bytes are its own; of one that is outside, those of the
 * last folder above it that is not. */
struct folder {
    int fd;
    size_t len;
    unsigned depth;
    bool hidden;  /* what lies in it is counted, and not told */
    bool outside; /* ... though it should be: W2 */
};

/* W1. The order of two logs (shoal/log_order.h) is looked at after them, in a listing made after that, and so leaves out
 *     nothing of what they held. Elsewhere there is one round.
 * W2. What lies too deep, or has too long a path, is counted like everything else, and told to be outside. */
enum round { EVERYTHING, LOGS, THEIR_ORDER };

/* On its way to another name, which no other host would hear of. */
static bool is_temporary(const char *name)
{
    size_t len = strlen(name);

    return (len > 5 && strcmp(name + len - 5, ".part") == 0) || (len > 4 && strcmp(name + len - 4, ".tmp") == 0);
}

static bool is_told(const char *name)
{
    return name[0] != '.' && !is_temporary(name) && strcmp(name, "__pycache__") != 0;
}

bool tree_walk_is_order(const char *path)
{
    const size_t end = sizeof(SHOAL_LOG_ORDER_END) - 1;
    size_t len = strlen(path);

    return len > end && strcmp(path + len - end, SHOAL_LOG_ORDER_END) == 0;
}

static bool is_in_round(const char *name, enum round round)
{
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    return round == EVERYTHING || tree_walk_is_order(name) == (round == THEIR_ORDER);
}

static bool is_of_logs(const struct folder *folder, const char *path)
{
    return strncmp(path, "log", 3) == 0 && (folder->len == 3 || path[3] == '/');
}

static bool add(struct tree_walk *walk, const char *path, const struct stat *facts)
{
    if (walk->count == walk->cap) {
        size_t cap = walk->cap == 0 ? 16 : 2 * walk->cap;
        struct tree_found *grown = realloc(walk->found, cap * sizeof(*grown));

        if (grown == NULL)
            return false;
        walk->found = grown;
        walk->cap = cap;
    }
    walk->found[walk->count] =
        (struct tree_found){ .path_at = walk->paths.len,
                             .bytes = (uint64_t)facts->st_size,
                             .mtime_ns = (uint64_t)facts->st_mtim.tv_sec * SHOAL_S + (uint64_t)facts->st_mtim.tv_nsec,
                             .mode = facts->st_mode & 0777 };
    if (shoal_buf_append(&walk->paths, (const uint8_t *)path, strlen(path) + 1) != SHOAL_OK)
        return false;
    walk->count++;
    return true;
}

/* Of a name that is no folder's. False: a bound is reached. */
static bool on_name(struct tree_walk *walk, const char *path, bool told, bool outside, const struct stat *facts)
{
    bool code = strncmp(path, CODE, sizeof(CODE) - 1) == 0;
    bool file = S_ISREG(facts->st_mode);
    uint64_t counted;

    walk->files++;
    walk->bytes += file ? (uint64_t)facts->st_size : 0;
    walk->code += code;
    walk->outside += file && told && outside && !(code && facts->st_mtime == SHOAL_BUNDLE_MTIME_S); /* that one is everywhere */
    counted = walk->files - (walk->code < walk->code_files ? walk->code : walk->code_files);
    if (counted > walk->files_max || walk->bytes > walk->bytes_max)
        walk->end = TREE_WALK_OVER;
    else if (file && told && !outside && !add(walk, path, facts))
        walk->end = TREE_WALK_FAILED;
    return walk->end == TREE_WALK_WHOLE;
}

/* False: a bound is reached. */
static bool count_folder(struct tree_walk *walk, unsigned depth)
{
    walk->folders++;
    walk->too_deep = depth > TREE_WALK_COUNTED_MAX;
    walk->too_wide = walk->folders > walk->files_max && walk->folders - walk->files_max > CODE_FOLDERS * walk->code_files;
    if (walk->too_deep || walk->too_wide)
        walk->end = TREE_WALK_OVER;
    return walk->end == TREE_WALK_WHOLE;
}

static bool walk_folder(struct tree_walk *walk, const struct folder *folder, char path[TREE_PATH_BYTES]);

static bool go_down(struct tree_walk *walk, const struct folder *above, const char *name, struct folder folder,
                    char path[TREE_PATH_BYTES])
{
    folder.depth = above->depth + 1;
    folder.outside = folder.outside || folder.depth > TREE_WALK_DEPTH_MAX;
    if (!count_folder(walk, folder.depth))
        return false;
    folder.fd = openat(above->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    walk->shut = walk->shut || (folder.fd < 0 && errno == EACCES);
    walk->blind = walk->blind || (folder.fd < 0 && errno != ENOENT);
    return folder.fd < 0 || walk_folder(walk, &folder, path);
}

static bool look_at(struct tree_walk *walk, const struct folder *folder, const char *name, char path[TREE_PATH_BYTES])
{
    size_t name_len = strlen(name);
    size_t begin = folder->len == 0 ? 0 : folder->len + 1;
    struct folder below = { .hidden = folder->hidden || !is_told(name),
                            .outside = folder->outside || begin + name_len >= TREE_PATH_BYTES };
    struct stat facts;

    if (walk->looks % YIELD_LOOKS == 0)
        (void)sched_yield(); /* the loop has the thread's class, and is not to wait for a time slice of 100 ms */
    if (++walk->looks > walk->looks_max) {
        walk->end = TREE_WALK_CUT;
        return false;
    }
    if (fstatat(folder->fd, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
        walk->shut = walk->shut || errno == EACCES;
        walk->blind = walk->blind || errno != ENOENT;
        return true;
    }
    below.len = below.outside ? folder->len : begin + name_len;
    if (!below.outside) {
        if (begin > 0)
            path[folder->len] = '/';
        memcpy(path + begin, name, name_len + 1);
    }
    if (S_ISDIR(facts.st_mode))
        return go_down(walk, folder, name, below, path);
    return on_name(walk, path, !below.hidden, below.outside, &facts);
}

static bool walk_round(struct tree_walk *walk, const struct folder *folder, DIR *dir, enum round round,
                       char path[TREE_PATH_BYTES])
{
    const struct dirent *item;

    while ((item = readdir(dir)) != NULL)
        if (is_in_round(item->d_name, round) && !look_at(walk, folder, item->d_name, path))
            return false;
    return true;
}

/* Takes the folder's descriptor. */
static bool walk_folder(struct tree_walk *walk, const struct folder *folder, char path[TREE_PATH_BYTES])
{
    bool logs = is_of_logs(folder, path);
    DIR *dir = fdopendir(folder->fd);
    bool goes_on;

    if (dir == NULL) {
        (void)close(folder->fd);
        walk->blind = true;
        return true;
    }
    goes_on = walk_round(walk, folder, dir, logs ? LOGS : EVERYTHING, path);
    if (logs && goes_on) {
        rewinddir(dir);
        goes_on = walk_round(walk, folder, dir, THEIR_ORDER, path);
    }
    (void)closedir(dir);
    return goes_on;
}

void tree_walk(const char *root, struct tree_walk *walk)
{
    char path[TREE_PATH_BYTES] = "";
    struct folder top = { .fd = open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) };

    walk->end = TREE_WALK_WHOLE;
    walk->blind = top.fd < 0;
    if (top.fd >= 0)
        (void)walk_folder(walk, &top, path);
}

const char *tree_walk_path(const struct tree_walk *walk, size_t i)
{
    SHOAL_ASSERT(i < walk->count);
    return (const char *)walk->paths.bytes + walk->found[i].path_at;
}

void tree_walk_deinit(struct tree_walk *walk)
{
    free(walk->found);
    shoal_buf_deinit(&walk->paths);
    walk->found = NULL;
    walk->count = walk->cap = 0;
}
