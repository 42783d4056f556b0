#include "shoal/below.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/banned.h"

/* The descriptor, if it is of a regular file, or of a folder where one is asked for. Else -1, and it is closed. */
static int checked(int fd, int flags)
{
    mode_t wanted = (flags & O_DIRECTORY) != 0 ? S_IFDIR : S_IFREG;
    struct stat facts;

    if (fd < 0 || (fstat(fd, &facts) == 0 && (facts.st_mode & S_IFMT) == wanted))
        return fd;
    (void)close(fd);
    errno = ENXIO;
    return -1;
}

int shoal_open_below(const char *root, const char *relative, int flags)
{
    struct open_how how = { .flags = (unsigned)flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW,
                            .mode = (flags & O_CREAT) != 0 ? 0600 : 0,
                            .resolve =
                                RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV };
    int folder = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int error, fd;

    if (folder < 0)
        return -1;
    fd = (int)syscall(SYS_openat2, folder, relative, &how, sizeof(how));
    error = errno;
    (void)close(folder);
    errno = error;
    return checked(fd, flags);
}

int shoal_open_regular(const char *path, int flags)
{
    return checked(open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW, 0600), flags);
}
