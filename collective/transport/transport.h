/* Between hosts: messages by tag among the members of one epoch. One table, so that another fabric is another file.
 *
 * I1. What is received goes into memory of the library only, which outlives the epoch: a late write spoils nothing.
 * I2. After reset() no request of the old peers is under way, and none of their memory is touched again.
 *
 * All functions of one transport are called under one lock; none waits. */
#ifndef COLLECTIVE_TRANSPORT_H
#define COLLECTIVE_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/error.h"
#include "shoal/ranks.h"

struct transport;
struct transport_request;

/* The bits of a tag that name the epoch. */
#define TRANSPORT_EPOCH_MASK 0xffff000000000000ull

/* One member of another host, as this epoch names it. */
struct transport_peer {
    uint64_t epoch; /* in the bits of TRANSPORT_EPOCH_MASK */
    uint32_t rank;
    uint32_t my_rank;
    const uint8_t *token;    /* 16 bytes: what it must show */
    const uint8_t *my_token; /* what I show */
    const uint8_t *address;
    size_t address_len;
};

enum transport_state { TRANSPORT_PENDING, TRANSPORT_DONE, TRANSPORT_FAILED };

struct transport_ops {
    const char *name;
    /* `devices`: interfaces, by name or address, comma separated; one that this host lacks is refused. `sealed`: the
     * network is not trusted. UNSUPPORTED: this fabric cannot seal. */
    enum shoal_err (*create)(struct transport **transport, const char *devices, bool sealed, struct shoal_msg *msg);
    void (*destroy)(struct transport *transport);
    enum shoal_err (*address)(struct transport *transport, uint8_t *bytes, size_t cap, size_t *len);
    enum shoal_err (*connect)(struct transport *transport, const struct transport_peer *peer);
    /* NULL: refused (no memory, no connection); the transport counts as failed then. The memory is borrowed until the
     * request is done. */
    struct transport_request *(*send)(struct transport *transport, uint32_t peer, uint64_t tag, const void *bytes,
                                      size_t len);
    struct transport_request *(*recv)(struct transport *transport, uint64_t tag, void *bytes, size_t len);
    /* DONE and FAILED free the request. A receive of another length than asked for fails. */
    enum transport_state (*test)(struct transport *transport, struct transport_request *request);
    unsigned (*progress)(struct transport *transport);
    /* A descriptor to sleep on after arm() said true; it is readable when progress() is needed. */
    int (*wait_fd)(struct transport *transport);
    bool (*arm)(struct transport *transport);
    bool (*failed)(const struct transport *transport, struct shoal_msg *msg);
    /* To whom the connections led that failed: bit by rank. 0: none did, or it is not known. */
    struct shoal_ranks (*lost)(const struct transport *transport);
    /* My connection to that rank stands: its kernel has answered, whatever its process is in. */
    bool (*connected)(const struct transport *transport, uint32_t rank);
    /* Looks whether what I sent to that rank arrives, for the next connection to its address to be made so that it does;
     * `silent`: nothing comes from there, either. NULL: this fabric has no remedy. */
    void (*look)(struct transport *transport, uint32_t rank, bool silent);
    /* Close every connection by force, cancel every request, forget unexpected messages with `stale_tag` in the bits
     * of `stale_mask`. */
    void (*reset)(struct transport *transport, uint64_t stale_tag, uint64_t stale_mask);
};

extern const struct transport_ops transport_tcp;
extern const struct transport_ops transport_ucx;

#endif
