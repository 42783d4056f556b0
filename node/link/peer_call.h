/* Questions between agents, answered exactly once: blobs, files, logs, step records. On the bulk lane, so that they
 * never delay control. A question that gets no answer in time, or whose link breaks, ends with an error. */
#ifndef SHOAL_NODE_PEER_CALL_H
#define SHOAL_NODE_PEER_CALL_H

#include "shoal/link.h"

#define PEER_CHANNEL_SCHED 1 /* frames of the control plane, control lane */
#define PEER_CHANNEL_CALL 2  /* this file, bulk lane */

enum peer_method {
    PEER_GET_CHUNK,     /* hash -> bytes */
    PEER_PUT_CHUNK,     /* hash, bytes -> nothing, durable */
    PEER_HOLD,          /* job, blob -> nothing, durable */
    PEER_PUSH_FILE,     /* a piece of a file of a job's result folder -> kept (what is here is not older), which; or a
                         * job -> nothing, once all of its files are with the asker; or a job, a line -> nothing: what
                         * the asker has not brought here is noted */
    PEER_LOG_READ,      /* job, kind, task, cursor, max -> cursor, ended, bytes */
    PEER_RECORDS,       /* job, step records -> call, step: everything up to here is held */
    PEER_LEDGER,        /* job -> JSON */
    PEER_ARCHIVE_FILES, /* job, user, path, offset -> a piece of a log or of the ledger; path empty: what there is, after so
                         * many files */
    PEER_ARCHIVE_LIST,  /* mark -> mark, summaries of archived jobs, deleted ids: what is new since */
    PEER_JOBS_LIST,     /* a question for a list (node/backend/list_query.h) -> rows of the jobs that this node knows */
    PEER_NODE_VERB, /* drain, undrain or leave -> nothing: an operator's word, passed on by the node that was asked */
    PEER_RESULT_FILES, /* job, what, path, offset, max -> the files of a result folder, or a piece of one */
    PEER_METRICS,      /* job, from, to, points -> the loss curve as JSON */
    PEER_INFER,        /* a request for a service with replicas there -> the answer of its kernel (backend_infer.c) */
    PEER_METHOD_COUNT,
};

struct uv_loop_s;
struct peer_calls;
struct peer_question; /* one to be answered: keep it, then peer_answer() exactly once */

typedef void peer_answer_fn(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer);
/* `args` is borrowed for the call. */
typedef void peer_serve_fn(void *arg, struct shoal_node_id from, struct shoal_view args,
                           struct peer_question *question);

/* They live as long as the process: an agent ends by _exit, since all that must last is in the store. */
struct peer_calls *peer_calls_create(struct uv_loop_s *loop, struct shoal_link *link);
void peer_serve(struct peer_calls *calls, enum peer_method method, peer_serve_fn *serve, void *arg);

/* Ends exactly once by `done`, maybe before this returns. */
void peer_ask(struct peer_calls *calls, struct shoal_node_id node, enum peer_method method, struct shoal_view args,
              uint64_t timeout_ns, peer_answer_fn *done, void *arg);
/* A word that nobody answers, in two parts. FULL: the lane's queue is. */
#define PEER_TELL_START_MAX 64
SHOAL_MUST_CHECK enum shoal_err peer_tell(struct peer_calls *calls, struct shoal_node_id node, enum peer_method method,
                                          struct shoal_view start, struct shoal_view rest);
/* Where the lane's queue has no room for it, the asker is told to ask again. */
void peer_answer(struct peer_question *question, enum shoal_err err, const char *text, struct shoal_view answer);
/* False: the lane's queue has no room for it, and the question is still to be answered. */
SHOAL_MUST_CHECK bool peer_answer_try(struct peer_question *question, enum shoal_err err, const char *text,
                                      struct shoal_view answer);

/* From the link's callbacks. */
void peer_calls_frame(struct peer_calls *calls, struct shoal_node_id from, struct shoal_view frame);
void peer_calls_down(struct peer_calls *calls, struct shoal_node_id node);

#endif
