#include "shoal/below.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/banned.h"

int shoal_open_below(const char *root, const char *relative, int flags)
{
    struct open_how how = { .flags = (unsigned)flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW,
                            .mode = (flags & O_CREAT) != 0 ? 0600 : 0,
                            .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV };
    int folder = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    mode_t wanted = (flags & O_DIRECTORY) != 0 ? S_IFDIR : S_IFREG;
    struct stat facts;
    int error, fd;

    if (folder < 0)
        return -1;
    fd = (int)syscall(SYS_openat2, folder, relative, &how, sizeof(how));
    error = errno;
    (void)close(folder);
    if (fd >= 0 && (fstat(fd, &facts) != 0 || (facts.st_mode & S_IFMT) != wanted)) {
        (void)close(fd);
        fd = -1;
        error = ENXIO;
    }
    errno = error;
    return fd;
}
