#include "ended.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define STATE_FIELD 3 /* proc(5): pid (name) state ... num_threads */
#define THREADS_FIELD 20

/* Its state's letter as proc(5) has it, and how many threads it has. False: it is gone, or not known. */
static bool look(int32_t pid, char *state, unsigned long *threads)
{
    char path[64], text[512];
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
            *state = *at;
        if (field == THREADS_FIELD)
            *threads = strtoul(at, NULL, 10);
    }
    return at != NULL;
}

/* The first thread of a process may end before the others: then it is a zombie with more threads than one. */
bool ended_process(int32_t pid)
{
    char state = '?';
    unsigned long threads = 0;

    return look(pid, &state, &threads) && (state == 'Z' || state == 'X') && threads <= 1;
}

/* argv of a runner: shoal runner FOLDER JOB ... */
static bool is_runner(const char *pid, const char *folder, const char *job)
{
    char path[64], text[2048];
    const char *words[4] = { "", "", "", "" };
    ssize_t got;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%.20s/cmdline", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    text[got < 0 ? 0 : got] = '\0';
    for (ssize_t at = 0, word = 0; at < got && word < 4; at += (ssize_t)strlen(text + at) + 1)
        words[word++] = text + at;
    return strcmp(words[1], "runner") == 0 && strcmp(words[2], folder) == 0 && strcmp(words[3], job) == 0;
}

bool ended_stopped_runner(const char *folder, const char *job)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    bool any = false;

    while (proc != NULL && (entry = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        struct stat facts;
        char state = '?';
        unsigned long threads = 0;

        if (pid <= 1 || pid == getpid() || fstatat(dirfd(proc), entry->d_name, &facts, 0) != 0 ||
            facts.st_uid != getuid() || !is_runner(entry->d_name, folder, job))
            continue;
        if (look((int32_t)pid, &state, &threads) && (state == 'T' || state == 't'))
            any = kill(pid, SIGKILL) == 0 || any;
    }
    if (proc != NULL)
        (void)closedir(proc);
    return any;
}
