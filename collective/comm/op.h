/* Types and calls that the files of the collectives outside of steps share (collective_op.h).
 *
 *   op_check.c   is a call sound, and do all members make the same one      op_queue.c   handles, the thread
 *   op_memory.c  between the caller's memory and the arena                  ops.c        the movements */
#ifndef COLLECTIVE_OP_H
#define COLLECTIVE_OP_H

#include "comm.h"

#include "shoal/collective_op.h"

#include "collective/device/device.h"

/* A type of one byte, for shoal_comm_broadcast. */
#define OP_BYTES ((uint32_t)SHOAL_TYPE_COUNT)

/* ---- ops.c ---- */
/* Carry it out, on the caller's or the queue's thread. */
enum shoal_err op_execute(struct shoal_comm *comm, const struct shoal_op *op);
/* A barrier among the workers of this host; `ready` also ends the wait. */
enum shoal_err op_local_phase(struct shoal_comm *comm);
bool op_all_said(struct shoal_comm *comm, uint64_t phase);

/* ---- op_check.c ---- */
uint32_t op_type_bytes(uint32_t type);
/* INVALID: outside of an epoch, or what one member alone can see; then the others have not been told yet. */
enum shoal_err op_check_epoch(struct shoal_comm *comm);
enum shoal_err op_check(struct shoal_comm *comm, const struct shoal_op *op);
/* Every member says what it was asked for, and hears what the others were (O2). `refused`: by op_check here. */
enum shoal_err op_agree(struct shoal_comm *comm, const struct shoal_op *op, bool refused);

/* ---- op_nccl.c ---- */
bool op_nccl_there(const struct shoal_comm *comm);
/* `done`: NCCL has carried it out, or it failed; else host memory may. RANK_LOST as comm_wait. */
enum shoal_err op_nccl_run(struct shoal_comm *comm, const struct shoal_op *op, bool *done);

/* ---- op_device.c ---- */
/* D1 of shoal/device.h, on the caller's thread. */
enum shoal_err op_await_stream(struct shoal_comm *comm, const struct shoal_op *op, struct shoal_msg *msg);

/* ---- op_memory.c ---- */
/* Values [at, at + elems) of `in` into the arena, in the type in which they are added up; and back, divided. */
enum shoal_err op_load(struct shoal_comm *comm, const struct shoal_op *op, uint64_t at, uint64_t elems, void *stage);
enum shoal_err op_store(struct shoal_comm *comm, const struct shoal_op *op, uint64_t at, uint64_t elems, void *stage);
/* Bytes as they are. */
enum shoal_err op_copy_in(struct shoal_comm *comm, const struct shoal_op *op, void *stage, const void *from,
                          uint64_t bytes);
enum shoal_err op_copy_out(struct shoal_comm *comm, const struct shoal_op *op, void *to, const void *stage,
                           uint64_t bytes);

#endif
