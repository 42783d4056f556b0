/* A kernel of a service in C (or C++, Rust, Fortran: whatever makes a shared library). Plain C11; it needs no other header of
 * ours, and nothing is linked:
 *
 *     #include <shoal/kernel.h>
 *
 *     static int run(void *state, const struct shoal_kernel_task *tasks, size_t count, char *error, size_t error_bytes)
 *     {
 *         for (size_t i = 0; i < count; i++)
 *             tasks[i].host->answer(&tasks[i], 200, "text/plain", tasks[i].body, tasks[i].body_bytes);
 *         return 0;
 *     }
 *     SHOAL_KERNEL_EXPORT const struct shoal_kernel shoal_kernel = { .abi = SHOAL_KERNEL_ABI, .run = run };
 *
 *     cc -shared -fPIC -I... -o kernel.so kernel.c        and model.json: {"name": "echo", "kernel_path": "kernel.so"}
 *
 * The library is loaded into a process of its own, one for each replica, which has its package's folder in
 * shoal_kernel_start.model_path, and is watched as kernels in Python are (docs/how-to/kernels.md). What it prints goes to the
 * service's log.
 *
 * K1. start, run and stop are called from one thread, the process's first, and never two at a time.
 * K2. A task, and all that it points to, is borrowed until `run` returns. Until then any thread may answer it.
 * K3. A task is answered once. What `run` leaves unanswered is answered with 500 and the text in `error`, if there is any.
 * K4. Answers are copied before `answer` and `part` return.
 * K5. Structs of the host's may grow at their ends; `abi` changes when anything else does. Zeros stand for what is not set. */
#ifndef SHOAL_KERNEL_H
#define SHOAL_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define SHOAL_KERNEL_ABI 1

/* A library that is built with -fvisibility=hidden shows this all the same. */
#define SHOAL_KERNEL_EXPORT __attribute__((visibility("default")))

enum shoal_kernel_log { SHOAL_KERNEL_DEBUG = -1, SHOAL_KERNEL_INFO, SHOAL_KERNEL_WARN, SHOAL_KERNEL_ERROR };

struct shoal_kernel_task;

/* The calls that the host offers to a kernel; lives as long as the process. */
struct shoal_kernel_host {
    /* `status` as in HTTP, 200 to 599. `content_type` NULL: application/json where the body is JSON, else text/plain. At most
     * 64 MiB, else the client is told 500. 0: passed on; -1: it was answered already. */
    int (*answer)(const struct shoal_kernel_task *task, int status, const char *content_type, const void *body, size_t bytes);
    /* A piece of an answer, at most 256 KiB, for a client that takes pieces; it waits while the client does not read. `answer`
     * ends them. 0: sent; -1: this client wants the answer whole, is gone, or has no time left. */
    int (*part)(const struct shoal_kernel_task *task, const void *body, size_t bytes);
    /* 0: the client is gone, and nobody will read the answer. */
    int (*is_wanted)(const struct shoal_kernel_task *task);
    /* One line of the service's log, unless the level is below DLIM_MK_LOG_LEVEL. */
    void (*log)(enum shoal_kernel_log level, const char *text);
};

/* One request. Texts are UTF-8, end with a zero and are never NULL. */
struct shoal_kernel_task {
    const struct shoal_kernel_host *host;
    const void *body; /* never NULL */
    size_t body_bytes;
    uint32_t header_bytes; /* of a body that begins with JSON and goes on with tensors (Open Inference Protocol); 0: one piece */
    uint32_t deadline_ms;  /* left when `run` was called; 0: none */
    const char *id;        /* unique in the mesh; good as a file's name */
    const char *path;      /* the address that was asked: "/v2/models/echo/infer" */
    const char *content_type;
};

struct shoal_kernel_start {
    const struct shoal_kernel_host *host;
    const char *name;        /* of this kernel: unique for each start of one */
    const char *description; /* the model as JSON: what model.json says, and what the mesh adds */
    const char *model_path;  /* the package's folder, absolute */
    uint32_t batch_max;      /* tasks of one `run`: the profile's task_batch_size */
};

/* A kernel's library exports one of these by the name shoal_kernel. */
struct shoal_kernel {
    uint32_t abi; /* SHOAL_KERNEL_ABI */
    /* Once, before any task; may take its time. `*state` is the kernel's own, and goes to the others. Not 0: it cannot serve, and
     * `error` (a text of at most `error_bytes` with its zero) says why; it is started again later. NULL: nothing to do. */
    int (*start)(void **state, const struct shoal_kernel_start *start, char *error, size_t error_bytes);
    /* Tasks that wait now, 1 to batch_max, in their order. Not 0: it failed, and the next tasks come all the same (K3). */
    int (*run)(void *state, const struct shoal_kernel_task *tasks, size_t count, char *error, size_t error_bytes);
    /* Once before an orderly end, with at most 30 s; not after a failed start. NULL: nothing to do. */
    void (*stop)(void *state);
};

#endif
