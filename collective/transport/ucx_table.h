/* UCX through a table of our own: what this library asks of libucp.so.0, declared here, and loaded at run time. So the
 * build needs no UCX, and a host without one trains all the same.
 *
 * Only what UCX keeps for good is declared: the calls of its API 1, and of each struct of parameters the fields before
 * the last one that is named by our mask; zeroes stand for the rest, which UCX does not read.
 *
 * Source: the API of UCX 1.15 and later (https://openucx.org/documentation). */
#ifndef COLLECTIVE_UCX_TABLE_H
#define COLLECTIVE_UCX_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/error.h"

/* Before 1.15 the tcp transport aborts the process now and then when an epoch changes (docs/decisions/0004). */
#define UCX_MAJOR 1u
#define UCX_MINOR_OLDEST 15u

/* The path of libucp.so.0: of the environment of the job's interpreter, or the user's choice. */
#define UCX_ENV_LIBRARY "SHOAL_UCX"

typedef int8_t ucx_status; /* 0: well; 1: in progress; below 0: an error. UCX packs it into a byte */
typedef void *ucx_result;  /* NULL: done at once; an error, or a request */

#define UCX_OK ((ucx_status)0)
#define UCX_IN_PROGRESS ((ucx_status)1)
#define UCX_TRUNCATED ((ucx_status)-9)
#define UCX_ERROR_LAST (-100)

static inline bool ucx_is_error(ucx_result result) { return (uintptr_t)result >= (uintptr_t)(intptr_t)UCX_ERROR_LAST; }
static inline bool ucx_is_request(ucx_result result) { return result != NULL && !ucx_is_error(result); }
static inline ucx_status ucx_error_of(ucx_result result) { return (ucx_status)(intptr_t)result; }

/* Bits of the masks: each says that a field is set. */
#define UCX_PARAMS_FEATURES 1u
#define UCX_FEATURE_TAG 1u
#define UCX_FEATURE_WAKEUP 16u
#define UCX_WORKER_THREAD_MODE 1u
#define UCX_THREAD_SERIALIZED 1 /* several threads, one at a time */
#define UCX_EP_ADDRESS 1u
#define UCX_EP_ERROR_MODE 2u
#define UCX_EP_ERROR_HANDLER 4u
#define UCX_ERROR_MODE_PEER 1
#define UCX_OP_CALLBACK 2u
#define UCX_OP_USER_DATA 4u
#define UCX_OP_FLAGS 16u
#define UCX_OP_NOT_AT_ONCE 65536u /* always a request, so that the callback says how much arrived */
#define UCX_CLOSE_FORCE 1u

struct ucx_params {
    uint64_t mask;
    uint64_t features;
    uint64_t zero[30];
};

struct ucx_worker_params {
    uint64_t mask;
    int thread_mode;
    uint64_t zero[64];
};

struct ucx_ep_params {
    uint64_t mask;
    const void *address;
    int error_mode;
    struct {
        void (*call)(void *arg, void *ep, ucx_status status);
        void *arg;
    } error_handler;
    uint64_t zero[30];
};

struct ucx_received {
    uint64_t tag;
    size_t len;
};

struct ucx_op {
    uint32_t mask;
    uint32_t flags;
    void *request;
    union {
        void (*sent)(void *request, ucx_status status, void *arg);
        void (*received)(void *request, ucx_status status, const struct ucx_received *info, void *arg);
    } call;
    uint64_t datatype; /* not named by our masks: bytes */
    void *arg;
    uint64_t zero[16];
};

struct ucx_table {
    void (*get_version)(unsigned *major, unsigned *minor, unsigned *release);
    ucx_status (*init_version)(unsigned major, unsigned minor, const struct ucx_params *params, void *config,
                               void **context);
    void (*cleanup)(void *context);
    ucx_status (*config_read)(const char *prefix, const char *file, void **config);
    ucx_status (*config_modify)(void *config, const char *name, const char *value);
    void (*config_release)(void *config);
    ucx_status (*worker_create)(void *context, const struct ucx_worker_params *params, void **worker);
    void (*worker_destroy)(void *worker);
    ucx_status (*worker_get_address)(void *worker, void **address, size_t *len);
    void (*worker_release_address)(void *worker, void *address);
    ucx_status (*worker_get_efd)(void *worker, int *fd);
    ucx_status (*worker_arm)(void *worker);
    unsigned (*worker_progress)(void *worker);
    ucx_status (*ep_create)(void *worker, const struct ucx_ep_params *params, void **ep);
    ucx_result (*ep_close_nbx)(void *ep, const struct ucx_op *op);
    ucx_result (*tag_send_nbx)(void *ep, const void *bytes, size_t len, uint64_t tag, const struct ucx_op *op);
    ucx_result (*tag_recv_nbx)(void *worker, void *bytes, size_t len, uint64_t tag, uint64_t mask,
                               const struct ucx_op *op);
    void *(*tag_probe_nb)(void *worker, uint64_t tag, uint64_t mask, int remove, struct ucx_received *info);
    ucx_result (*tag_msg_recv_nbx)(void *worker, void *bytes, size_t len, void *message, const struct ucx_op *op);
    ucx_status (*request_check_status)(void *request);
    void (*request_cancel)(void *worker, void *request);
    void (*request_free)(void *request);
    const char *(*status_string)(ucx_status status);
    unsigned major, minor, release;
};

/* Load the library that SHOAL_UCX names, else the system's, and find its calls. It stays loaded: its threads and hooks
 * do not survive being unloaded. UNSUPPORTED: there is none, or it is too old, or lacks a call; the text says which. */
SHOAL_MUST_CHECK enum shoal_err ucx_table_load(struct ucx_table *ucx, struct shoal_msg *msg);

#endif
