/* The runner's files share this: its table of children and what it holds open. One process, one runner.
 *
 *   runner.c          the loop, the agent's socket, deadlines
 *   runner_start.c    a START: the slot's lock, the logs, fork and exec
 *   runner_server.c   the engine server that forks elastic engines
 *   runner_peer.c     who knocks at the agent's socket
 *   runner_child.c    the table of children, how one is stopped and ended, and who it leaves behind
 *   runner_log.c      what children print, on its way into files */
#ifndef NODE_RUNNER_STATE_H
#define NODE_RUNNER_STATE_H

#include <sys/types.h>

#include "shoal/host.h"
#include "shoal/runner.h"
#include "shoal/worker.h"

#include "runner_log.h"

/* A sweep looks again at a process that is just executing a program, since that one shows no environment. */
#define RUNNER_SWEEP_NS (20 * SHOAL_MS)
#define RUNNER_SWEEPS_MAX 20
/* An exit waits at most this long to be told until what was printed is in its file: a disk that hangs must not hold
 * it. */
#define RUNNER_LOG_SYNC_NS (2 * SHOAL_S)

/* The file of a slot's lock, as long as the runner lives. */
struct lock_file {
    bool used;
    dev_t device;
    ino_t inode;
};

struct child {
    bool used;
    bool exited; /* reported as soon as an agent listens */
    bool told;   /* ... to this agent, which may die before it has acted on it: the next one hears it again */
    bool doomed; /* killed before it had a process: it ends as soon as it has one */
    bool frozen;
    uint64_t worker_id;
    uint32_t slot;
    pid_t pid;
    uint64_t start_ticks;
    uint64_t freeze_at_ns; /* 0: never */
    uint64_t kill_at_ns;
    uint64_t term_kill_at_ns; /* SIGTERM was sent, SIGKILL then; 0: no */
    uint64_t tell_at_ns;      /* exited: its output is on its way to its files until then at most; 0: it is there */
    int log_fds[2];           /* of an engine, which opens them by our number some time after its fork; 0: none */
    int status;
    bool signalled;
    char text[512];
    char cgroup[256];
};

struct runner {
    int epoll;
    int listener;
    int agent; /* -1: none */
    int signals;
    int timer;
    int server; /* socket to the engine server, -1: none */
    pid_t server_pid;
    int control_fd;
    int arena_fd;
    struct shoal_control_page *page;
    struct child children[SHOAL_RUNNER_WORKERS_MAX];
    struct lock_file locks[SHOAL_SLOTS_MAX];
    struct runner_logs logs;
    bool closing;
    bool refused; /* somebody wanted to be its agent, and the log says so */
    uint64_t idle_since_ns;
    uint64_t sweep_at_ns; /* 0: none is due */
    unsigned sweeps_left; /* for the sake of those that could not be told apart */
    uint8_t server_answer[8192];
    struct shoal_runner_message in;
    struct shoal_runner_message out;
    uint8_t bytes[SHOAL_RUNNER_MESSAGE_MAX];
};

/* runner.c */
uint64_t runner_now_ns(void); /* CLOCK_BOOTTIME */
void runner_note(const char *what, int code);
void runner_watch(struct runner *runner, int fd);
void runner_tell_started(struct runner *runner, const struct child *child);
void runner_tell_exited(struct runner *runner, struct child *child);
/* Carries out what is due and arms the timer for the next deadline. */
void runner_timer_turn(struct runner *runner);

/* runner_start.c */
void runner_on_start(struct runner *runner, const struct shoal_runner_start *start);
/* What SHOAL_ENV_STDOUT says of the pipe `fd`, for elog.py: its lines go there, between those that the script prints. False: too long. */
#define RUNNER_STDOUT_BYTES 4160u /* an inode and a path */
bool runner_name_stdout(const struct shoal_runner_start *start, int fd, char *text, size_t cap);
/* `given`: the descriptor that the process gets beside the pages: its slot's lock, or the engine server's socket; -1: none. */
SHOAL_MUST_CHECK enum shoal_err runner_exec(struct runner *runner, const struct shoal_runner_start *start, int given,
                                            pid_t *pid, struct shoal_msg *msg);

/* runner_server.c */
SHOAL_MUST_CHECK enum shoal_err runner_server_start(struct runner *runner, const struct shoal_runner_start *start,
                                                    struct shoal_msg *msg);
SHOAL_MUST_CHECK enum shoal_err runner_server_fork(struct runner *runner, const struct shoal_runner_start *start,
                                                   const int logs[2], int lock, struct shoal_msg *msg);
void runner_on_server(struct runner *runner);
struct runner_server_answer {
    uint64_t worker_id;
    int64_t pid;
    struct shoal_view error; /* of the bytes; empty: none */
};

/* False: what a job's own process wrote is no answer. */
bool runner_server_answer_decode(struct shoal_view bytes, struct runner_server_answer *answer);
/* An engine was killed that the server has not forked yet. */
void runner_server_unwanted(struct runner *runner);

/* runner_peer.c */
/* Whether the process that connected is one of the job's: of this runner's descendants, or nobody's by now. */
bool runner_peer_is_below(int fd);

/* runner_child.c */
struct child *child_find(struct runner *runner, uint64_t worker_id);
struct child *child_of_pid(struct runner *runner, pid_t pid);
bool child_any_alive(const struct runner *runner);
void child_signal(const struct child *child, int signal_number);
void child_freeze(struct runner *runner, struct child *child);
void child_thaw(struct runner *runner, struct child *child);
void child_kill(struct runner *runner, struct child *child);
void child_running(struct runner *runner, struct child *child, pid_t pid);
void child_ended(struct runner *runner, struct child *child, int status, bool signalled);
void child_kill_left_behind(struct runner *runner);
void runner_cgroup_write(const char *cgroup, const char *file, const char *text);

#endif
