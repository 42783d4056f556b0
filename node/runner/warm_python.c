/* The warm server's own code, and that of what it forks (warm.h): an extension that warm.py loads once the interpreter has
 * come up. Loading it serves orders, and returns only in a process that is to be a script.
 *
 *   warm.py --load--> PyInit__shoal_warm: serve --fork--> runner --fork--> script: returns into warm.py, which sets up
 *                                                                          argv, path, environment, and ends by raising;
 *                     excepthook: run the file <-- the interpreter's top, where no frame of warm.py is left ----'
 *
 * An exception at the interpreter's top calls sys.excepthook with no frame below it: so the script's frame is the first,
 * as in a fresh interpreter, and a traceback shows nothing of ours. What follows the script (exit status, atexit, the end
 * by SIGINT) is the interpreter's own doing.
 *
 * Python's headers belong to one version; what is used of its interface is declared here, and is the same in 3.8 to 3.13. A
 * version that lacks one of the functions cannot load this file, and its scripts start cold. */
#include "warm.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

typedef struct _object PyObject;
struct method {
    const char *name;
    PyObject *(*function)(PyObject *self, PyObject *args);
    int flags;
    const char *doc;
};
#define METHOD_VARARGS 1

extern PyObject *PyExc_ImportError;
extern PyObject *PyImport_AddModule(const char *name);
extern void Py_IncRef(PyObject *object);
extern PyObject *PyCFunction_NewEx(struct method *method, PyObject *self, PyObject *module);
extern PyObject *PyBytes_FromStringAndSize(const char *bytes, ssize_t len);
extern PyObject *PySys_GetObject(const char *name);
extern int PySys_SetObject(const char *name, PyObject *value);
extern void PyErr_SetString(PyObject *type, const char *text);
extern void PyErr_Clear(void);
extern int PyRun_AnyFileExFlags(FILE *file, const char *name, int close, void *flags);
extern int Py_FinalizeEx(void);
extern void PyOS_BeforeFork(void);
extern void PyOS_AfterFork_Parent(void);
extern void PyOS_AfterFork_Child(void);
extern char **environ;

#define WATCHED_MAX 32

struct watched {
    struct stat before; /* all 0: there was none */
    char path[SPAWN_DIR_BYTES];
};

static struct {
    jmp_buf leave;
    const struct shoal_runner_start *start;
    struct spawn_title title;
    char **own_environ;
    char *room; /* WARM_ROOM_BYTES; NULL: none */
    enum shoal_warm kind;
    char python[SPAWN_DIR_BYTES];
    char main[SPAWN_DIR_BYTES];   /* the file that a process becomes */
    char engine[SPAWN_DIR_BYTES]; /* FRAMEWORK: the one that is an engine server */
    struct watched watched[WATCHED_MAX];
    unsigned watched_count;
} warm; /* one interpreter, one server */

/* ---- the server ---- */

static bool unchanged(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static unsigned tasks_count(void)
{
    DIR *dir = opendir("/proc/self/task");
    const struct dirent *entry;
    unsigned count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    if (dir != NULL)
        (void)closedir(dir);
    return count;
}

/* Has this process a GPU open? What is forked from it could not use one. */
static bool has_gpu(void)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;
    bool found = false;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char target[64] = "";

        found = found || (readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1) > 0 &&
                          strncmp(target, "/dev/nvidia", 11) == 0);
    }
    if (dir != NULL)
        (void)closedir(dir);
    return found;
}

static bool may_fork(void)
{
    unsigned tasks = tasks_count();

    if (tasks != 1) {
        (void)dprintf(2, "warm python: it has %u threads, so it forks nothing and ends\n", tasks);
        return false;
    }
    if (warm.kind == SHOAL_WARM_FRAMEWORK && has_gpu()) {
        (void)dprintf(2, "warm python: what it has loaded has opened a GPU, so it forks nothing and ends\n");
        return false;
    }
    for (unsigned i = 0; i < warm.watched_count; i++) {
        struct stat now = { 0 };

        if (stat(warm.watched[i].path, &now) != 0)
            now = (struct stat){ 0 };
        if (unchanged(&now, &warm.watched[i].before))
            continue;
        (void)dprintf(2, "warm python: %s has changed, so it ends, and the next one begins anew\n",
                      warm.watched[i].path);
        return false;
    }
    return true;
}

static pid_t warm_fork(void)
{
    pid_t pid;

    PyOS_BeforeFork();
    pid = fork();
    if (pid == 0)
        PyOS_AfterFork_Child();
    else
        PyOS_AfterFork_Parent();
    return pid;
}

/* The folders and files that warm.py names, which the interpreter has read or searched. */
static void watch(const char *list)
{
    while (list != NULL && list[0] != '\0' && warm.watched_count < WATCHED_MAX) {
        struct watched *watched = &warm.watched[warm.watched_count];
        size_t len = strcspn(list, ":");

        if (len < sizeof(watched->path)) {
            memcpy(watched->path, list, len);
            watched->path[len] = '\0';
            if (stat(watched->path, &watched->before) != 0)
                watched->before = (struct stat){ 0 };
            warm.watched_count++;
        }
        list += len + (list[len] == ':');
    }
}

/* Finds the words and the environment that the kernel shows: fields 48 to 51 of the process's own line. */
static bool shown_of_self(char *ends[4])
{
    unsigned long long found[4] = { 0 };
    char line[2048];
    char *at;
    ssize_t len;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);

    len = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
    if (fd >= 0)
        (void)close(fd);
    line[len < 0 ? 0 : len] = '\0';
    at = strrchr(line, ')');
    for (int field = 2; at != NULL && field < 48; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL || sscanf(at, " %llu %llu %llu %llu", &found[0], &found[1], &found[2], &found[3]) != 4)
        return false;
    for (unsigned i = 0; i < 4; i++)
        ends[i] = (char *)(uintptr_t)found[i];
    return ends[0] != NULL && ends[1] > ends[0] && ends[2] >= ends[1] && ends[3] > ends[2];
}

/* The last variable, whose value is the room: where the kernel has it, whatever became of the C library's. */
static char *room_before(char *begin, char *end)
{
    static const char name[] = WARM_ROOM_ENV "=";
    char *room = end - WARM_ROOM_BYTES;

    if ((size_t)(end - begin) < WARM_ROOM_BYTES + sizeof(name) ||
        strncmp(room - (sizeof(name) - 1), name, sizeof(name) - 1) != 0 || strlen(room) != WARM_ROOM_BYTES - 1)
        return NULL;
    return room;
}

/* ---- a script ---- */

static const char *value_in(char *const *pairs, const char *pair)
{
    size_t len = strcspn(pair, "=") + 1;

    for (; *pairs != NULL; pairs++)
        if (strncmp(*pairs, pair, len) == 0)
            return *pairs + len;
    return NULL;
}

static bool all_equal(char *const *pairs, char *const *others)
{
    for (; *pairs != NULL; pairs++) {
        bool kept = warm_keeps(*pairs, warm.kind);
        const char *other = kept ? value_in(others, *pairs) : NULL;

        if (kept && (other == NULL || strcmp(other, *pairs + strcspn(*pairs, "=") + 1) != 0))
            return false;
    }
    return true;
}

/* The file that a start would run; NULL: none that can be run from here. */
static const char *file_of(const struct shoal_runner_start *start)
{
    size_t len = start->argc < 2 ? 0 : strlen(start->argv[1]);

    if (warm.engine[0] != '\0' && start->argc == 3 && strcmp(start->argv[1], "-m") == 0 &&
        strcmp(start->argv[2], "pyedt.engine_server") == 0)
        return warm.engine;
    if (len > 3 && len < sizeof(warm.main) && start->argv[1][0] == '/' && strcmp(start->argv[1] + len - 3, ".py") == 0)
        return start->argv[1];
    return NULL;
}

/* W1 */
static bool fits(const struct shoal_runner_start *start)
{
    char *const *env = (char *const *)(uintptr_t)start->env;
    const char *file = file_of(start);

    return file != NULL && access(file, R_OK) == 0 && strcmp(start->argv[0], warm.python) == 0 &&
           all_equal(env, warm.own_environ) && all_equal(warm.own_environ, env);
}

/* Sets what the kernel shows as the environment that this process was started with: by it people, runners and agents find whose
 * it is. Variables that are kept stand before the room already. */
static void show_environment(const struct shoal_runner_start *start)
{
    size_t used = 1; /* the room's own variable becomes empty */

    if (warm.room == NULL)
        return;
    memset(warm.room, 0, WARM_ROOM_BYTES);
    for (unsigned pass = 0; pass < 2; pass++) /* ours first: they have room in any case */
        for (uint32_t i = 0; i < start->envc; i++) {
            size_t len = strlen(start->env[i]) + 1;
            bool ours = strncmp(start->env[i], "SHOAL_", 6) == 0;

            if (ours != (pass == 0) || warm_keeps(start->env[i], warm.kind) || len > WARM_ROOM_BYTES - used)
                continue;
            memcpy(warm.room + used, start->env[i], len);
            used += len;
        }
}

/* Closes what an exec would close: all but the standard streams and what the worker is given. */
static void close_others(const int *kept, unsigned kept_count)
{
    unsigned from = 3;

    for (;;) {
        unsigned next = ~0u;

        for (unsigned i = 0; i < kept_count; i++)
            if (kept[i] >= (int)from && (unsigned)kept[i] < next)
                next = (unsigned)kept[i];
        if (next > from)
            (void)close_range(from, next == ~0u ? ~0u : next - 1, 0);
        if (next == ~0u)
            return;
        from = next + 1;
    }
}

static void become(const struct shoal_runner_start *start, const int *kept, unsigned kept_count)
{
    const char *name = strrchr(start->argv[0], '/');

    if (!fits(start))
        return;
    close_others(kept, kept_count);
    (void)signal(SIGPIPE, SIG_IGN); /* as an interpreter does when it starts */
    (void)prctl(PR_SET_NAME, name == NULL ? start->argv[0] : name + 1);
    spawn_title_put(&warm.title, start->argv, start->argc);
    show_environment(start);
    (void)snprintf(warm.main, sizeof(warm.main), "%s", file_of(start));
    warm.start = start;
    longjmp(warm.leave, 1);
}

/* Called at the interpreter's top. Returns where the script ended by an exception, which has been printed: what follows is
 * what follows any such end. */
static PyObject *run_script(PyObject *self, PyObject *args)
{
    PyObject *usual = PySys_GetObject("__excepthook__");
    FILE *file = fopen(warm.main, "rbe");

    (void)self;
    (void)PySys_SetObject("excepthook", usual);
    (void)PySys_SetObject("last_type", NULL);
    (void)PySys_SetObject("last_value", NULL);
    (void)PySys_SetObject("last_traceback", NULL);
    (void)PySys_SetObject("last_exc", NULL);
    PyErr_Clear();
    if (file == NULL) {
        (void)dprintf(2, "%s: can't open file '%s': [Errno %d] %s\n", warm.python, warm.main, errno, strerror(errno));
        exit(2);
    }
    if (PyRun_AnyFileExFlags(file, warm.main, 1, NULL) == 0)
        exit(Py_FinalizeEx() < 0 ? 120 : 0);
    (void)args;
    Py_IncRef(usual); /* any object will do as the result */
    return usual;
}

static PyObject *texts(const char *const *list, uint32_t count)
{
    size_t len = 0, at = 0;
    PyObject *bytes;
    char *all;

    for (uint32_t i = 0; i < count; i++)
        len += strlen(list[i]) + 1;
    all = malloc(len + 1);
    if (all == NULL)
        _exit(126);
    for (uint32_t i = 0; i < count; i++) {
        size_t one = strlen(list[i]) + 1;

        memcpy(all + at, list[i], one);
        at += one;
    }
    bytes = PyBytes_FromStringAndSize(all, (ssize_t)len);
    free(all);
    return bytes;
}

static void serve(void)
{
    static const struct runner_hooks hooks = { .fork = warm_fork, .become = become, .may_fork = may_fork };
    const char *python = getenv("SHOAL_WARM_PYTHON");
    const char *fd_text = getenv("SHOAL_WARM_FD");
    const char *engine = getenv("SHOAL_WARM_ENGINE");
    char *shown[4];
    int fd;

    if (python == NULL || fd_text == NULL)
        return;
    fd = (int)strtol(fd_text, NULL, 10);
    (void)snprintf(warm.python, sizeof(warm.python), "%s", python);
    (void)snprintf(warm.engine, sizeof(warm.engine), "%s", engine == NULL ? "" : engine);
    warm.kind = getenv(WARM_PATH_ENV) == NULL ? SHOAL_WARM_SCRIPT : SHOAL_WARM_FRAMEWORK;
    watch(getenv("SHOAL_WARM_WATCH"));
    warm.own_environ = environ;
    if (shown_of_self(shown)) {
        warm.title = (struct spawn_title){ .at = shown[0], .cap = (size_t)(shown[1] - shown[0]) };
        warm.room = room_before(shown[2], shown[3]);
        (void)unsetenv(WARM_ROOM_ENV);
    }
    runner_hooks_use(&hooks);
    if (send(fd, "r", 1, MSG_NOSIGNAL) != 1) /* ready */
        return;
    spawn_serve(fd, &warm.title, "shoal-warm");
}

__attribute__((visibility("default"))) PyObject *PyInit__shoal_warm(void);
PyObject *PyInit__shoal_warm(void)
{
    static struct method run_method = { "run_script", run_script, METHOD_VARARGS, NULL };

    if (setjmp(warm.leave) == 0) {
        serve();
        _exit(0);
    }
    Py_IncRef(PyImport_AddModule("__main__")); /* the interpreter goes on using the dictionary of warm.py */
    (void)PySys_SetObject("_shoal_argv", texts(warm.start->argv, warm.start->argc));
    (void)PySys_SetObject("_shoal_env", texts(warm.start->env, warm.start->envc));
    (void)PySys_SetObject("excepthook", PyCFunction_NewEx(&run_method, NULL, NULL));
    PyErr_SetString(PyExc_ImportError, "a script");
    return NULL;
}
