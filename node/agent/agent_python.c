/* Finds, makes and tries the interpreter of jobs (agent_python.h). */
#include "agent_python.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/job_facts.h"

#include "python_packages.h"

#include "shoal/banned.h"

/* Its path, and whether it finds what a framework imports: torch or TensorFlow, which both need NumPy. */
#define ASK                                                                                                            \
    "import sys, importlib.util as u; print(sys.executable); "                                                         \
    "print(*[m for m in (\"torch\", \"tensorflow\") if u.find_spec(\"numpy\") and u.find_spec(m)])"
#define TRY                                                                                                            \
    "import sys, ctypes, numpy, importlib as i, importlib.util as u; "                                                 \
    "ctypes.CDLL(sys.argv[1] + \"/native/libshoal.so\"); "                                                             \
    "has = {m: i.import_module(m) for m in (\"torch\", \"tensorflow\") if u.find_spec(m)}; "                           \
    "said = [\"%s %s\" % (m, has[m].__version__) for m in has] + [\"numpy \" + numpy.__version__]; "                   \
    "said += [\"%d GPUs\" % has[\"torch\"].cuda.device_count()] if \"torch\" in has else []; print(\", \".join(said))"

#define TRY_UCX                                                                                                        \
    "import sys, os, ctypes, importlib.util as u; s = u.find_spec(\"libucx\"); "                                        \
    "p = [os.path.join(f, \"lib\", \"libucp.so.0\") for f in (s.submodule_search_locations or ())] if s else []; "        \
    "p and os.environ.setdefault(\"SHOAL_UCX\", p[0]); b = ctypes.create_string_buffer(400); "                          \
    "l = ctypes.CDLL(sys.argv[1] + \"/native/libshoal.so\"); e = l.shoal_ucx_look(b, 400); "                            \
    "print(b.value.decode()); sys.exit(e)"

/* Never realpath, which loses a virtual environment; nor the name as it was given, which may be a shim. `serves`:
 * SHOAL_SERVES_*. */
static enum shoal_err ask(const char *wanted, char python[AGENT_PATH_BYTES], uint32_t *serves, struct shoal_msg *msg)
{
    char command[AGENT_PATH_BYTES + 256];
    char finds[64] = "";
    FILE *pipe;

    if (strpbrk(wanted, "'\\\n") != NULL)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "--python %s: no quotes or backslashes in this path, please", wanted);
    (void)snprintf(command, sizeof(command), "'%.400s' -c '" ASK "' 2>/dev/null", wanted);
    pipe = popen(command, "re");
    if (pipe == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "cannot start %s: %s", wanted, strerror(errno));
    if (fgets(python, AGENT_PATH_BYTES, pipe) == NULL)
        python[0] = '\0';
    if (fgets(finds, sizeof(finds), pipe) == NULL)
        finds[0] = '\0';
    *serves = (strstr(finds, "torch") != NULL ? SHOAL_SERVES_TORCH : 0) |
              (strstr(finds, "tensorflow") != NULL ? SHOAL_SERVES_TENSORFLOW : 0);
    (void)pclose(pipe);
    python[strcspn(python, "\n")] = '\0';
    if (python[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "%s is not a Python that runs; name one with --python", wanted);
    return SHOAL_OK;
}

enum shoal_err agent_python_find(struct agent_settings *settings, const char *wanted, struct shoal_msg *msg)
{
    enum shoal_err err = ask(wanted[0] == '\0' ? "python3" : wanted, settings->python, &settings->serves, msg);

    if (err != SHOAL_OK)
        return err;
    if (settings->serves == 0)
        settings->slots = 0;
    return SHOAL_OK;
}

/* Runs a program to its end with our standard error for both streams; false: it failed. */
static bool run(const char *const words[])
{
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        (void)dup2(STDERR_FILENO, STDOUT_FILENO);
        (void)execvp(words[0], (char *const *)(uintptr_t)words);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Before anything is loaded: what, how much, and how it would be less. */
static void say_what_is_installed(const char *base, const char *folder)
{
    struct agent_devices devices = { 0 };

    agent_devices_find(&devices);
    (void)fprintf(stderr,
                  "%s has no torch: makes %s and installs " PYTHON_TORCH ", " PYTHON_NUMPY " and " PYTHON_SCIKIT_LEARN
                  " there, by pip; all hosts of a mesh need the same torch, in the same build.\n"
                  "About 200 MB to load where pip's index gives torch's CPU build; several GB, and 6 GB on disk, where it gives "
                  "the one with CUDA.\n%s",
                  base, folder,
                  devices.count > 0 ? ""
                                    : "No NVIDIA GPU is found here: the CPU build is enough if no host has one. PIP_INDEX_URL or "
                                      "/etc/pip.conf names the index that is asked.\n");
}

enum shoal_err agent_python_make(const char *data, const char *wanted, char python[AGENT_PATH_BYTES],
                                 struct shoal_msg *msg)
{
    char folder[AGENT_PATH_BYTES], made[AGENT_PATH_BYTES + 16], base[AGENT_PATH_BYTES];
    uint32_t serves;
    char *resolved;
    enum shoal_err err = ask(wanted[0] == '\0' ? "python3" : wanted, base, &serves, msg);

    if (err != SHOAL_OK)
        return err;
    if (serves != 0) {
        memcpy(python, base, AGENT_PATH_BYTES);
        return SHOAL_OK;
    }
    if (mkdir(data, 0700) != 0 && errno != EEXIST)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s: %s", data, strerror(errno));
    resolved = realpath(data, NULL);
    if (resolved == NULL || strlen(resolved) > AGENT_PATH_BYTES - 32) {
        free(resolved);
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "%s: no folder for an environment of Python", data);
    }
    (void)snprintf(folder, sizeof(folder), "%s/python", resolved);
    (void)snprintf(made, sizeof(made), "%s/bin/python", folder);
    free(resolved);
    say_what_is_installed(base, folder);
    if (access(made, X_OK) != 0 && !run((const char *const[]){ base, "-m", "venv", folder, NULL }))
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND,
                          "%s makes no virtual environment (Debian: apt install python3-venv); then say this again",
                          base);
    if (!run((const char *const[]){ made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PYTHON_TORCH,
                                    PYTHON_NUMPY, PYTHON_SCIKIT_LEARN, NULL }))
        return shoal_fail(msg, SHOAL_ERR_UNREACHABLE,
                          "pip could not install " PYTHON_TORCH ", " PYTHON_NUMPY " and " PYTHON_SCIKIT_LEARN " (above is why; they "
                          "need Python " PYTHON_OLDEST " or later): set its index in /etc/pip.conf or PIP_INDEX_URL and say this "
                          "again, or name a Python that has them with --python");
    return ask(made, python, &serves, msg);
}

/* Reads what the child writes until it ends or its time is over. Its exit status; -1: it was stopped. */
static int listen_to(pid_t pid, int fd, unsigned seconds, char *text, size_t cap)
{
    uint64_t end_ns = agent_now_ns() + seconds * SHOAL_S;
    struct pollfd p = { .fd = fd, .events = POLLIN };
    char bytes[1024];
    size_t len = 0;
    int status = -1;

    for (;;) {
        uint64_t now = agent_now_ns();
        ssize_t got =
            now < end_ns && poll(&p, 1, (int)((end_ns - now) / SHOAL_MS) + 1) > 0 ? read(fd, bytes, sizeof(bytes)) : -1;

        if (got <= 0) {
            if (got < 0)
                (void)kill(pid, SIGKILL);
            break;
        }
        for (ssize_t i = 0; i < got; i++) { /* the last line that is not empty */
            if (len > 0 && text[len - 1] == '\n' && bytes[i] != '\n')
                len = 0;
            if (len + 1 < cap && (bytes[i] != '\n' || len > 0))
                text[len++] = bytes[i];
        }
    }
    text[len] = '\0';
    text[strcspn(text, "\n")] = '\0';
    (void)close(fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool try_script(const struct agent_settings *settings, const char *script, unsigned seconds, char *said,
                       size_t cap)
{
    int ends[2], status;
    pid_t pid;

    said[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid = fork();
    if (pid == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)dup2(ends[1], STDERR_FILENO);
        (void)execl(settings->python, settings->python, "-c", script, settings->fabric_home, (char *)NULL);
        _exit(127);
    }
    (void)close(ends[1]);
    status = pid < 0 ? -1 : listen_to(pid, ends[0], seconds, said, cap);
    if (status == -1)
        (void)snprintf(said, cap, "it took longer than %u s", seconds);
    return status == 0;
}

bool agent_python_try(const struct agent_settings *settings, unsigned seconds, char *said, size_t cap)
{
    return try_script(settings, TRY, seconds, said, cap);
}

bool agent_python_try_ucx(const struct agent_settings *settings, unsigned seconds, char *said, size_t cap)
{
    return try_script(settings, TRY_UCX, seconds, said, cap);
}
