#include "ended.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shoal/banned.h"

#define STATE_FIELD 3 /* proc(5): pid (name) state ... num_threads */
#define THREADS_FIELD 20

/* The first thread of a process may end before the others: then it is a zombie with more threads than one. */
bool ended_process(int32_t pid)
{
    char path[64], text[512], state = '?';
    unsigned long threads = 0;
    const char *at;
    ssize_t got;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = pid <= 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    if (got <= 0)
        return false;
    text[got] = '\0';
    at = strrchr(text, ')'); /* a name may hold anything */
    for (unsigned field = STATE_FIELD; at != NULL && field <= THREADS_FIELD; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return false;
        at++;
        if (field == STATE_FIELD)
            state = *at;
        if (field == THREADS_FIELD)
            threads = strtoul(at, NULL, 10);
    }
    return at != NULL && (state == 'Z' || state == 'X') && threads <= 1;
}
