/* The runner: one tiny process per job and host that starts, watches and ends the job's processes, and outlives the
 * agent (PROTOCOLS 6 and 13).
 *
 *   agent --SEQPACKET <jobs>/<id>/runner.sock--> runner --fork, exec--> driver, script, C worker
 *                                                  └--fork, exec--> engine server --fork--> engine, engine, ...
 *
 * R1. Every process of a slot inherits a descriptor with the slot's BSD lock: the lock stands while any of them lives.
 * R2. The runner is subreaper: whoever a worker forks and leaves behind comes back to it, and is killed with its slot.
 * R3. A lease's deadlines are enforced on CLOCK_BOOTTIME without the agent: freeze at `freeze_at_ns`, kill at
 *     `kill_at_ns`.
 * R4. The control page and the arena are the runner's memfds: they outlive agent and workers.
 * R5. It has one agent at a time, and none of its own descendants is one: another that connects is hung up on as long as
 *     its agent is there, and a process of the job always. So a job cannot take its runner from its agent.
 *
 * An agent that connects gets WELCOME (with the control page's descriptor), then STARTED for each worker (pid 0: it is
 * being started) and EXITED for each that ended while nobody listened. Every message: u8 kind, u8 version, u8 oldest,
 * fields. */
#ifndef SHOAL_RUNNER_H
#define SHOAL_RUNNER_H

#include "shoal/ids.h"
#include "shoal/limits.h"

#define SHOAL_RUNNER_VERSION 1
#define SHOAL_RUNNER_MESSAGE_MAX (96 * SHOAL_KIB)
#define SHOAL_RUNNER_WORKERS_MAX (SHOAL_SLOTS_MAX + 2) /* a driver or two beside the slots */
#define SHOAL_RUNNER_STRINGS_MAX 512
/* Numbers of the two shared descriptors in every process of a job. */
#define SHOAL_RUNNER_CONTROL_FD 200
#define SHOAL_RUNNER_ARENA_FD 201

enum shoal_runner_kind {
    SHOAL_RUNNER_START, /* agent to runner */
    SHOAL_RUNNER_RENEW,
    SHOAL_RUNNER_FREEZE,
    SHOAL_RUNNER_THAW,
    SHOAL_RUNNER_KILL,
    SHOAL_RUNNER_CLOSE,   /* end when the last worker has ended */
    SHOAL_RUNNER_WELCOME, /* runner to agent */
    SHOAL_RUNNER_STARTED,
    SHOAL_RUNNER_EXITED,
    SHOAL_RUNNER_KIND_COUNT,
};

/* How a worker starts. */
enum shoal_start_how {
    SHOAL_START_EXEC, /* argv is a program */
    SHOAL_START_FORK, /* by the engine server, whose argv this is; it is started at the first such message */
    SHOAL_START_COUNT,
};

/* The waiting interpreter that is to fork the runner (node/runner/warm.h). */
enum shoal_warm {
    SHOAL_WARM_NONE,
    SHOAL_WARM_SCRIPT,    /* one that has come up, and is made if there is none */
    SHOAL_WARM_FRAMEWORK, /* one that has the framework loaded, if there is one */
    SHOAL_WARM_COUNT,
};

#define SHOAL_SLOT_NONE UINT32_MAX

struct shoal_runner_start {
    uint64_t worker_id;
    uint32_t slot; /* SHOAL_SLOT_NONE: a driver */
    uint8_t how;   /* enum shoal_start_how */
    uint8_t nice;
    uint64_t freeze_at_ns; /* CLOCK_BOOTTIME; 0: never */
    uint64_t kill_at_ns;
    const char *cwd;
    const char *stdout_path; /* opened for append, directories made */
    const char *stderr_path;
    const char *lock_path; /* "" : no lock */
    const char *cgroup;    /* "" : none; a directory that exists */
    uint32_t argc;
    const char *argv[SHOAL_RUNNER_STRINGS_MAX + 1]; /* ends with NULL */
    uint32_t envc;
    const char *env[SHOAL_RUNNER_STRINGS_MAX + 1]; /* NAME=VALUE, ends with NULL: the whole environment */
    /* Not on the wire: */
    uint8_t warm;     /* enum shoal_warm: whom the agent asks for the runner */
    const char *user; /* whose job it is; no other user's is forked from the same interpreter */
};

struct shoal_runner_message {
    uint8_t kind;
    uint64_t worker_id;
    uint32_t slot;
    int32_t pid;
    int32_t status; /* EXITED: exit status, or the signal if `signalled`; -1: could not be started, see `text`. STARTED:
                     * 1 = frozen. WELCOME: so many STARTED and EXITED belong to it; who takes fewer for all takes live
                     * workers for dead */
    bool signalled;
    uint64_t start_ticks; /* STARTED: field 22 of /proc/pid/stat, so that a pid is never mistaken for another's */
    uint64_t freeze_at_ns;
    uint64_t kill_at_ns;
    uint64_t grace_ns; /* KILL: SIGTERM now, SIGKILL then; 0: SIGKILL now */
    char text[512];
    struct shoal_runner_start start;
    /* START: memory of the decoded texts; one message is about 200 KiB, keep it static or on the heap. */
    char strings[SHOAL_RUNNER_MESSAGE_MAX];
};

enum shoal_err shoal_runner_encode(const struct shoal_runner_message *message, uint8_t *bytes, size_t cap,
                                   size_t *len) SHOAL_MUST_CHECK;
enum shoal_err shoal_runner_decode(struct shoal_view datagram, struct shoal_runner_message *message) SHOAL_MUST_CHECK;

/* main() of `shoal runner DIR JOB GENERATION LISTEN_FD`: never returns before the last worker has ended. */
int shoal_runner_main(int argc, char **argv);

/* main() of `shoal-runner spawn-helper FD PADDING`, and of `shoal` with the same words: forks runners as the agent at the
 * other end of the socket FD orders (node/runner/spawn.h), until that end is closed. The padding is room for the words
 * that `ps` shows of a runner. */
int shoal_spawn_helper_main(int argc, char **argv);

#endif
