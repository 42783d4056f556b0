/* One GPU of this process: its context, a stream of ours, copies. And the life of a communicator of NCCL on it.
 *
 *   device.c      CUDA: open, copy           nccl_life.c   make, shrink, grow, revoke, abort, and wait for any of them
 *
 * I1. Every call that may wait for other processes is asked for until it is over, and gives up when `stop` says that the
 *     epoch is over, or the limit has passed (limits.h).
 * I2. A communicator is released by abort alone: destroy waits for members that may be dead.
 * I3. Whatever fails names its call and the device. */
#ifndef COLLECTIVE_DEVICE_H
#define COLLECTIVE_DEVICE_H

#include <stdbool.h>

#include "cuda_table.h"
#include "nccl_table.h"

#include "shoal/device.h"
#include "shoal/limits.h"

/* Memory between the device and what widens or narrows values. */
#define DEVICE_BOUNCE_BYTES (512u * 1024u)

/* Slices of a result and partial sums. */
#define DEVICE_PINS_MAX (2u * SHOAL_RANKS_MAX)

enum nccl_flag { NCCL_WHOLE = 1, NCCL_CAN_SHRINK = 2, NCCL_CAN_GROW = 4 };

struct nccl_life {
    struct nccl_table table;
    bool there;     /* the library, and it has not failed too often */
    unsigned fails; /* communicators given up */
    nccl_comm comm; /* NULL: none */
    nccl_comm made; /* where NCCL writes the next one, late for one that is shrunk */
    uint64_t name;  /* of `comm`, the same in all members */
    bool revoked;
    bool id_given; /* of `comm`, to grow it: until it has grown there is no other */
    bool left;     /* an abort did not end: NCCL may still write here */
    uint32_t size;
    uint64_t members[SHOAL_RANKS_MAX]; /* workers, by rank */
};

struct device {
    struct cuda_table cuda;
    struct nccl_life nccl;
    int ordinal;
    int handle;
    void *context;
    void *stream;
    char name[48];
    uint8_t *bounce;
    void *pins[DEVICE_PINS_MAX]; /* memory of the host that is registered; NULL: none */
    struct shoal_msg no_nccl; /* why */
    uint64_t group_epoch;     /* word of the epoch for which NCCL was looked at */
    bool group_stands;        /* there, and it can be used */
    bool said_why;
    struct shoal_device_counts counts;
};

enum shoal_err device_create(struct device **device, int ordinal, struct shoal_msg *msg);
void device_destroy(struct device *device);
/* Both wait until the copy is over, and until what `stream` has under way was. */
enum shoal_err device_copy_in(struct device *device, uint64_t to, const void *from, uint64_t bytes, struct shoal_msg *msg);
enum shoal_err device_copy_out(struct device *device, void *to, uint64_t from, uint64_t bytes, struct shoal_msg *msg);
/* Wait for the work of a stream of the caller's. */
enum shoal_err device_wait_for(struct device *device, void *stream, struct shoal_msg *msg);
/* Register memory of the host, and let go of it: before it is unmapped. */
enum shoal_err device_pin(struct device *device, void *bytes, uint64_t len, struct shoal_msg *msg);
enum shoal_err device_unpin(struct device *device, void *bytes, struct shoal_msg *msg);
void device_unpin_all(struct device *device);
/* Make the context this thread's. */
enum shoal_err device_use(struct device *device, struct shoal_msg *msg);
enum shoal_err device_fail(const struct device *device, const char *call, cuda_result result, struct shoal_msg *msg);

/* ---- nccl_life.c ---- */
typedef bool nccl_stop_fn(void *arg);
struct nccl_stop {
    nccl_stop_fn *stop;
    void *arg;
};

/* A new communicator in the place of the one that is held. STALE: stopped; TIMEOUT, DEVICE: as the text says. In all these
 * cases none is held afterwards. */
enum shoal_err nccl_life_make(struct device *device, const struct nccl_id *id, uint32_t size, uint32_t rank,
                              const struct nccl_stop *stop, struct shoal_msg *msg);
/* Without the ranks in `excluded`, which ascend. */
enum shoal_err nccl_life_shrink(struct device *device, int *excluded, uint32_t count, const struct nccl_stop *stop,
                                struct shoal_msg *msg);
/* `rank`: mine in the new one, for who holds none. The root gives the id on, who holds one and is not the root NULL. */
enum shoal_err nccl_life_grow(struct device *device, const struct nccl_id *id, uint32_t size, uint32_t rank,
                              const struct nccl_stop *stop, struct shoal_msg *msg);
/* Wait for an operation whose call gave `result`, on the device's stream. STALE: stopped; the communicator is revoked, or
 * aborted where it cannot be. */
enum shoal_err nccl_life_finish(struct device *device, const char *call, nccl_result result, const struct nccl_stop *stop,
                                struct shoal_msg *msg);
/* Let go of the communicator. DEVICE: the abort did not end; the process is not to be used any more. */
enum shoal_err nccl_life_abort(struct device *device, struct shoal_msg *msg);

#endif
