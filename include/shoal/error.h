/* Errors and assertions, used by every module.
 *
 * The code is for the program: it says how much must be given up. The message is for a person: written once,
 * where the cause is known, with the values and the remedy. */
#ifndef SHOAL_ERROR_H
#define SHOAL_ERROR_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum shoal_err {
    SHOAL_OK = 0,
    /* The request: nothing changed. */
    SHOAL_ERR_INVALID,     /* an argument or an input is wrong; the message says which */
    SHOAL_ERR_FULL,        /* a bound of limits.h is reached; try again later */
    SHOAL_ERR_TOO_BIG,     /* larger than a bound of limits.h; do not try again */
    SHOAL_ERR_NOT_LEADER,  /* another node leads this group */
    SHOAL_ERR_NOT_FOUND,   /* no such thing, and every node that could know was asked */
    SHOAL_ERR_EXISTS,      /* it exists already, with another content */
    SHOAL_ERR_DENIED,      /* not allowed for this caller */
    SHOAL_ERR_UNSUPPORTED, /* understood, not offered yet */
    SHOAL_ERR_TIMEOUT,     /* no answer in time; the outcome is unknown */
    SHOAL_ERR_STALE,       /* refers to an older epoch, term, generation or attempt */
    /* The peer: the mesh goes on. */
    SHOAL_ERR_MALFORMED,   /* bytes that do not decode */
    SHOAL_ERR_UNREACHABLE, /* no connection, or no majority */
    /* The job: the node goes on. */
    SHOAL_ERR_RANK_LOST, /* a member of the communicator is gone: retry in the next epoch */
    SHOAL_ERR_DEVICE,    /* a device, or its library, failed; the text names it and the call */
    /* The node: restart from disk. */
    SHOAL_ERR_STORAGE,
    SHOAL_ERR_NO_SPACE, /* the request, nothing changed: the store keeps what is left for the jobs that run */
};
/* A frame may name these: errors are added at the end, and a newer one is malformed to an older node. */
#define SHOAL_ERRS (SHOAL_ERR_NO_SPACE + 1)

#define SHOAL_MUST_CHECK __attribute__((warn_unused_result))

/* A message for a person; always NUL-terminated. */
struct shoal_msg {
    char text[400];
};

static inline const char *shoal_err_name(enum shoal_err err)
{
    switch (err) {
    case SHOAL_OK: return "ok";
    case SHOAL_ERR_INVALID: return "invalid";
    case SHOAL_ERR_FULL: return "full";
    case SHOAL_ERR_TOO_BIG: return "too big";
    case SHOAL_ERR_NOT_LEADER: return "not leader";
    case SHOAL_ERR_NOT_FOUND: return "not found";
    case SHOAL_ERR_EXISTS: return "exists";
    case SHOAL_ERR_DENIED: return "denied";
    case SHOAL_ERR_UNSUPPORTED: return "unsupported";
    case SHOAL_ERR_TIMEOUT: return "timeout";
    case SHOAL_ERR_STALE: return "stale";
    case SHOAL_ERR_MALFORMED: return "malformed";
    case SHOAL_ERR_UNREACHABLE: return "unreachable";
    case SHOAL_ERR_RANK_LOST: return "rank lost";
    case SHOAL_ERR_DEVICE: return "device";
    case SHOAL_ERR_STORAGE: return "storage";
    case SHOAL_ERR_NO_SPACE: return "no space";
    }
    return "unknown";
}

__attribute__((format(printf, 2, 3))) static inline void shoal_msg_set(struct shoal_msg *msg, const char *format, ...)
{
    va_list args;

    if (msg == NULL)
        return;
    va_start(args, format);
    (void)vsnprintf(msg->text, sizeof(msg->text), format, args);
    va_end(args);
}

/* Fill `msg` (may be NULL) and hand `err` back, so that a refusal is one line. A macro, so that an analyzer, which
 * follows no variable arguments, sees what comes back. */
#define shoal_fail(msg, err, ...) (shoal_msg_set((msg), __VA_ARGS__), (enum shoal_err)(err))

/* For a result that changes nothing here; the line says who repairs it. */
static inline void shoal_ignore(enum shoal_err err) { (void)err; }

__attribute__((noreturn)) static inline void shoal_assert_failed(const char *fact, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, fact);
    abort();
}

/* For our own bugs only; stays on in release. Bytes from network, disk, user or device are never asserted. */
#define SHOAL_ASSERT(fact) ((fact) ? (void)0 : shoal_assert_failed(#fact, __FILE__, __LINE__))

#endif
