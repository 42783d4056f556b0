/* Requests for models on their way between two nodes (the picture of all of it: backend_infer.c).
 *
 *     the node that was asked                             the host of the kernel
 *       OPEN  head, first bytes of the body  ---------->    a question: its answer ends the request
 *       BODY  the next bytes                 ---------->    at most INFER_ON_WAY_BYTES that it has not TOOK
 *                                  <-- WAITS, HANDED ---    the body is whole: in the queue; in a kernel
 *                                            <--- PIECE     of an answer in pieces: within the window of shoal/backend.h
 *                                            <--- PART      of an answer's body that is large
 *       MORE  so many bytes were passed on   ---------->
 *       CANCEL                               ---------->
 *       BACK  unless a kernel has it         ---------->    STALE, or nothing: an older node does not know the word
 *                                            <--- answer    status, type, and what is left of the body
 *
 * L1. All of a request goes over one lane, in order: no word has a number.
 * L2. What finds no room in the link's queue stays where it is and is tried again every INFER_AGAIN_MS: the answer, too, which ends
 *     the request. Only a request's first word goes to another host at once, or is refused; and BACK waits for the next look.
 * L3. A node that says in gossip that it takes pieces is asked so (decision 0009); an older one with RUN, in one frame. */
#ifndef SHOAL_NODE_BACKEND_INFER_H
#define SHOAL_NODE_BACKEND_INFER_H

#include "agent_backend.h"
#include "backend_services.h"

#define INFER_TRIES_MAX 8
/* Bytes of one frame of a body: a turn of the loop seals a few of them. */
#define INFER_CHUNK_BYTES (256 * SHOAL_KIB)
#define INFER_ON_WAY_BYTES SHOAL_MIB
/* The largest body for an older node. */
#define INFER_WHOLE_BYTES_MAX SHOAL_MIB
#define INFER_AGAIN_MS 10

enum infer_word {
    WORD_RUN,
    WORD_WAITS,
    WORD_HANDED,
    WORD_LOOK = BACKEND_INFER_LOOK,
    WORD_OPEN,
    WORD_BODY,
    WORD_TOOK,
    WORD_PIECE,
    WORD_PART,
    WORD_MORE,
    WORD_CANCEL,
    WORD_BACK,
    WORD_COUNT
};

struct infer_call {
    struct infer_call *next;     /* of those that another host has, or that are held */
    struct infer_call *all_next; /* of all */
    struct agent *agent;
    uint64_t id;
    uint64_t kernel_id; /* of serve_host, where a kernel of this host has it; else 0 */
    bool gone;          /* I4 */
    struct shoal_infer infer;
    struct shoal_job_id job;     /* whose kernels are asked */
    struct shoal_job_id current; /* that the service's name stands for, or that its client has pinned */
    uint64_t begun_ns, deadline_ns;
    struct shoal_node_id tried[INFER_TRIES_MAX]; /* the last one has it now */
    unsigned tries;
    bool waits;                 /* there, by its word */
    bool back;                  /* it was asked for: I7 */
    unsigned moves;             /* I7: how often it was given back */
    bool locked;                /* within its own sending: what ends at once is looked at after it */
    bool again;                 /* it did end so: another host is to be chosen */
    bool full;                  /* a host was */
    bool crowded;               /* the way to a host was: there is no room for one more question, or in its link */
    enum shoal_err unsent;      /* with `again`: why */
    bool cancels;               /* CANCEL found no room (L2) */
    bool held;                  /* I3: here, or its group is being asked whether it is to be */
    uint64_t asked_ns;          /* when its group was asked; 0: it was not */
    struct shoal_job_id before; /* of a version that is not ready yet: the one that it takes the place of */
    struct shoal_job_id canary; /* which it was drawn for; zero: it was not */
    struct shoal_job_id group;  /* that says whether the service is started */
    bool pieces;                /* L3: of the host that has it */
    size_t body_sent, body_took;
    int64_t window;          /* bytes of pieces that may come */
    size_t passed;           /* bytes that were passed on, of which the host does not know yet */
    struct shoal_buf answer; /* what has come of a large one */
    shoal_backend_infer_fn *done;
    void *arg;
};

/* backend_infer.c */
void backend_infer_next(struct infer_call *call);
/* The host that was asked has no kernel for it, or is full. */
void backend_infer_elsewhere(struct infer_call *call, bool full);
/* The host that was asked gave it back. */
void backend_infer_moved(struct infer_call *call);
/* I7: another host has a kernel that is free, as far as is known here. */
bool backend_infer_may_move(struct infer_call *call);
void backend_infer_end(struct infer_call *call, enum shoal_err err, const char *text,
                       const struct shoal_inferred *inferred);
/* NULL: there is none, or its client is gone. */
struct infer_call *backend_infer_find(const struct agent *agent, uint64_t number);

/* backend_infer_out.c */
void backend_infer_out(struct infer_call *call, struct shoal_node_id node, uint32_t timeout_ms);
void backend_infer_out_more(struct infer_call *call, size_t bytes);
void backend_infer_out_cancel(struct infer_call *call);
/* WAITS, HANDED, TOOK, PIECE or PART, of the host that has the request. */
void backend_infer_out_word(struct agent *agent, enum infer_word word, uint64_t id, struct shoal_node_id from,
                            struct shoal_view rest);
/* I7: asks the host for it, if another one has a free kernel. */
void backend_infer_out_back(struct infer_call *call);
/* L2. */
void backend_infer_out_again(struct agent *agent);
/* False: there was no room, which will be looked at again; or no link. */
bool backend_infer_tell(struct agent *agent, struct shoal_node_id node, enum infer_word word, uint64_t id,
                        struct shoal_view rest);
bool backend_infer_tell_count(struct agent *agent, struct shoal_node_id node, enum infer_word word, uint64_t id,
                              size_t count);
/* Ends the question. False: there was no room, which will be looked at again. */
bool backend_infer_answer(struct agent *agent, struct peer_question *question, enum shoal_err err, const char *text,
                          struct shoal_view answer);

/* backend_infer_serve.c */
void backend_infer_serve_look(struct agent *agent);
void backend_infer_serve_again(struct agent *agent);

#endif
