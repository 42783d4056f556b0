/* A warm server's key, and its process, which is made from the key alone: the job that wanted it may be long over
 * (warm.h). */
#include "warm.h"

#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "shoal/banned.h"

#define SOCKET_FD 3
#define LOG_FD 4
#define KEPT_VARIABLES_MAX 128
#define KEY_HEAD_LINES 4 /* kind, user, program, the program's file; variables follow */

/* ---- the key ---- */

struct key_text {
    char *bytes; /* SHOAL_WARM_KEY_BYTES */
    size_t used;
    bool failed;
};

/* One line. What has an end of line in it cannot be one. */
static void put_line(struct key_text *key, const char *text)
{
    size_t len = strlen(text);

    if (key->failed || len + 2 > SHOAL_WARM_KEY_BYTES - key->used || strchr(text, '\n') != NULL) {
        key->failed = true;
        return;
    }
    memcpy(key->bytes + key->used, text, len);
    key->used += len;
    key->bytes[key->used++] = '\n';
    key->bytes[key->used] = '\0';
}

/* W6: PYTHONPATH but for the job's own folder. */
static void put_path(struct key_text *key, const struct shoal_runner_start *start)
{
    char line[SHOAL_WARM_KEY_BYTES];
    int used = snprintf(line, sizeof(line), WARM_PATH_ENV "=");
    const char *path = "";
    size_t cwd_len = strlen(start->cwd);

    for (uint32_t i = 0; i < start->envc; i++)
        if (strncmp(start->env[i], "PYTHONPATH=", 11) == 0)
            path = start->env[i] + 11;
    for (bool first = true; *path != '\0';) {
        size_t len = strcspn(path, ":");

        if (len != cwd_len || strncmp(path, start->cwd, len) != 0) {
            int more = snprintf(line + used, sizeof(line) - (size_t)used, "%s%.*s", first ? "" : ":", (int)len, path);

            if (more < 0 || (size_t)more >= sizeof(line) - (size_t)used) {
                key->failed = true;
                return;
            }
            used += more;
            first = false;
        }
        path += len + (path[len] == ':');
    }
    put_line(key, line);
}

/* W5 */
static bool has_one_thread(const struct shoal_runner_start *start)
{
    static const char *const wanted[] = { "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1" };
    unsigned found = 0;

    for (size_t w = 0; w < sizeof(wanted) / sizeof(wanted[0]); w++)
        for (uint32_t i = 0; i < start->envc; i++)
            if (strcmp(start->env[i], wanted[w]) == 0) {
                found++;
                break;
            }
    return found == sizeof(wanted) / sizeof(wanted[0]);
}

bool warm_key_of(const struct shoal_runner_start *start, char bytes[SHOAL_WARM_KEY_BYTES])
{
    struct key_text key = { .bytes = bytes };
    bool framework = start->warm == SHOAL_WARM_FRAMEWORK;
    struct stat file;
    char line[128];

    SHOAL_ASSERT(start->warm == SHOAL_WARM_SCRIPT || framework);
    if (start->argc < 2 || start->user == NULL || start->argv[0][0] != '/' || stat(start->argv[0], &file) != 0 ||
        (framework && !has_one_thread(start)))
        return false;
    put_line(&key, framework ? "framework" : "script");
    put_line(&key, start->user);
    put_line(&key, start->argv[0]);
    (void)snprintf(line, sizeof(line), "%llu %llu %lld.%ld", (unsigned long long)file.st_dev,
                   (unsigned long long)file.st_ino, (long long)file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
    put_line(&key, line);
    for (uint32_t i = 0; i < start->envc; i++)
        if (warm_keeps(start->env[i], start->warm))
            put_line(&key, start->env[i]);
    if (framework)
        put_path(&key, start);
    return !key.failed;
}

enum shoal_warm warm_key_kind(const char *key)
{
    return strncmp(key, "framework\n", 10) == 0 ? SHOAL_WARM_FRAMEWORK : SHOAL_WARM_SCRIPT;
}

/* ---- the process ---- */

struct inherited {
    int socket;
    int pipe;
    int log;
};

/* The key, taken apart: its lines end with 0 now. */
struct recipe {
    char text[SHOAL_WARM_KEY_BYTES];
    const char *program;
    char *env[KEPT_VARIABLES_MAX + 4];
    unsigned count;
};

static void recipe_of(const char *key, struct recipe *recipe)
{
    unsigned line = 0;

    memcpy(recipe->text, key, strlen(key) + 1);
    recipe->count = 0;
    for (char *at = recipe->text; *at != '\0'; line++) {
        char *end = strchr(at, '\n');

        SHOAL_ASSERT(end != NULL);
        *end = '\0';
        if (line == 2)
            recipe->program = at;
        if (line >= KEY_HEAD_LINES && recipe->count < KEPT_VARIABLES_MAX)
            recipe->env[recipe->count++] = at;
        at = end + 1;
    }
    SHOAL_ASSERT(line >= KEY_HEAD_LINES);
}

static int server_exec(const char *native, struct recipe *recipe, const struct inherited *fds, pid_t *pid)
{
    static char padding[SPAWN_DIR_BYTES];
    static char room[sizeof(WARM_ROOM_ENV) + WARM_ROOM_BYTES] = WARM_ROOM_ENV "=";
    char script[SPAWN_DIR_BYTES + 16];
    char fd_text[32];
    char python[SPAWN_DIR_BYTES + 32];
    char *argv[] = { (char *)(uintptr_t)recipe->program, script, padding, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    int code;

    memset(padding, '-', sizeof(padding) - 1);
    memset(room + sizeof(WARM_ROOM_ENV), '-', WARM_ROOM_BYTES - 1);
    (void)snprintf(script, sizeof(script), "%s/warm.py", native);
    (void)snprintf(fd_text, sizeof(fd_text), "SHOAL_WARM_FD=%d", SOCKET_FD);
    (void)snprintf(python, sizeof(python), "SHOAL_WARM_PYTHON=%s", recipe->program);
    recipe->env[recipe->count++] = fd_text;
    recipe->env[recipe->count++] = python;
    recipe->env[recipe->count++] = room; /* the last: there the kernel lets it grow no further, and shows it whole */
    recipe->env[recipe->count] = NULL;
    (void)sigfillset(&all);
    (void)sigemptyset(&none);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->pipe, 1);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->pipe, 2);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->socket, SOCKET_FD);
    (void)posix_spawn_file_actions_adddup2(&actions, fds->log, LOG_FD);
    (void)posix_spawnattr_setsigdefault(&attributes, &all);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    code = posix_spawn(pid, recipe->program, &actions, &attributes, argv, recipe->env);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

/* Its output is made on a pipe, as that of a script is; where what it says of itself goes is the agent's own log. */
int warm_process_start(const char *native, const char *key, int socket, pid_t *pid)
{
    struct inherited fds = { -1, -1, -1 };
    struct recipe recipe;
    int ends[2];
    int code = 0;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return errno;
    recipe_of(key, &recipe);
    fds.socket = fcntl(socket, F_DUPFD_CLOEXEC, LOG_FD + 1); /* above the numbers that they are to have */
    fds.pipe = fcntl(ends[1], F_DUPFD_CLOEXEC, LOG_FD + 1);
    fds.log = fcntl(2, F_DUPFD_CLOEXEC, LOG_FD + 1);
    if (fds.socket < 0 || fds.pipe < 0 || fds.log < 0)
        code = errno;
    else
        code = server_exec(native, &recipe, &fds, pid);
    if (code == 0)
        descriptors_give_back(*pid);
    (void)close(ends[0]);
    (void)close(ends[1]);
    if (fds.socket >= 0)
        (void)close(fds.socket);
    if (fds.pipe >= 0)
        (void)close(fds.pipe);
    if (fds.log >= 0)
        (void)close(fds.log);
    return code;
}

/* ---- memory ---- */

static bool file_text(const char *path, char *text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, text, cap - 1);

    if (fd >= 0)
        (void)close(fd);
    text[len < 0 ? 0 : len] = '\0';
    return len > 0;
}

uint64_t warm_process_bytes(pid_t pid)
{
    unsigned long long size, resident, shared;
    char path[64], text[256];

    (void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    if (!file_text(path, text, sizeof(text)) || sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3 ||
        shared > resident)
        return 0;
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t warm_free_bytes(void)
{
    unsigned long long kib;
    char text[1024];
    const char *line;

    if (!file_text("/proc/meminfo", text, sizeof(text)) || (line = strstr(text, "MemAvailable:")) == NULL ||
        sscanf(line, "MemAvailable: %llu", &kib) != 1)
        return UINT64_MAX; /* a kernel that does not say so */
    return kib * SHOAL_KIB;
}
