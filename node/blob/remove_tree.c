/* A job chooses depth, names and permissions of what it leaves, so neither a path nor a stack may grow with it:
 *
 *     root/a/b/.../z      LEVELS below the root: z is not entered but moved up
 *     root/.moved-0       ... to here, and is removed from here in the next pass
 *
 * R1. At most LEVELS folders are open at a time. Names are one part long, so no path becomes too long.
 * R2. A folder that may not be read or written by its owner is made so first: only root could remove it as it is.
 * R3. A pass that has removed and moved nothing is the last one. */
#include "shoal/remove_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/error.h"

#include "shoal/banned.h"

#define LEVELS 16u

struct removal {
    int root;
    dev_t device;
    uint64_t moved; /* the number of the next name */
    bool progress;  /* of this pass */
    int error;      /* the first one of this pass; 0: none */
};

static void note(struct removal *r, int error)
{
    if (r->error == 0)
        r->error = error;
}

/* R2. The folder, ready to be read; -1: with errno. */
static int open_folder(int above, const char *name)
{
    int place = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    char link[40];
    struct stat facts;
    int error, fd;

    if (place < 0)
        return -1;
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", place);
    if (fstat(place, &facts) == 0 && (facts.st_mode & 0700) != 0700)
        (void)chmod(link, 0700); /* of the folder itself, whatever its name means by now */
    fd = openat(place, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    error = errno;
    (void)close(place);
    errno = error;
    return fd;
}

static bool move_up(struct removal *r, int above, const char *name)
{
    char to[32];

    for (unsigned i = 0; i < 1000; i++) { /* a job may have names like ours */
        (void)snprintf(to, sizeof(to), ".moved-%llu", (unsigned long long)r->moved++);
        if (renameat(above, name, r->root, to) == 0)
            return true;
        if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
            return false;
    }
    return false;
}

static void empty(struct removal *r, int fd, unsigned level);

static void remove_folder(struct removal *r, int above, const char *name, unsigned level)
{
    struct stat facts;
    int fd;

    if (unlinkat(above, name, AT_REMOVEDIR) == 0) {
        r->progress = true;
        return;
    }
    fd = open_folder(above, name);
    if (fd < 0 || fstat(fd, &facts) != 0 || facts.st_dev != r->device) {
        note(r, fd < 0 ? errno : EXDEV);
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    if (level == LEVELS) { /* R1 */
        (void)close(fd);
        if (move_up(r, above, name))
            r->progress = true;
        else
            note(r, errno);
        return;
    }
    empty(r, fd, level + 1);
    if (unlinkat(above, name, AT_REMOVEDIR) == 0)
        r->progress = true;
    else
        note(r, errno);
}

/* Takes the descriptor. */
static void empty(struct removal *r, int fd, unsigned level)
{
    DIR *dir = fdopendir(fd);
    const struct dirent *entry;

    SHOAL_ASSERT(level <= LEVELS);
    if (dir == NULL) {
        note(r, errno);
        (void)close(fd);
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        (void)sched_yield(); /* there may be many, and who calls may have the loop's class */
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            r->progress = true;
        else if (errno == EISDIR || errno == EPERM)
            remove_folder(r, dirfd(dir), entry->d_name, level);
        else if (errno != ENOENT)
            note(r, errno);
    }
    (void)closedir(dir);
}

bool shoal_remove_tree(const char *path)
{
    struct removal r = { .progress = true };
    struct stat facts;

    if (unlink(path) == 0 || rmdir(path) == 0 || errno == ENOENT)
        return true;
    while (r.progress) { /* R3 */
        r.progress = false;
        r.error = 0;
        r.root = open_folder(AT_FDCWD, path);
        if (r.root < 0 || fstat(r.root, &facts) != 0) {
            note(&r, errno);
            break;
        }
        r.device = facts.st_dev;
        empty(&r, r.root, 1);
        if (rmdir(path) == 0 || errno == ENOENT)
            return true;
        note(&r, errno);
    }
    errno = r.error;
    return false;
}
