/* A look inside a node's control plane, for lists, logs, /v1/debug, tests and the simulator. Nothing here changes it. What
 * is given out is borrowed until the next step. */
#ifndef SHOAL_SCHED_LOOK_H
#define SHOAL_SCHED_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/memory.h"
#include "shoal/sched.h"

struct shoal_slots;
/* This host's slots (slots.h): for a worker's HELLO, `top` and /v1/debug. */
const struct shoal_slots *shoal_sched_slots(const struct shoal_sched *sched);
/* The newest copy of the mesh's state known here: users, keys, frameworks (mesh.h). NULL: none yet. */
const struct shoal_mesh *shoal_sched_mesh(const struct shoal_sched *sched);
uint64_t shoal_sched_mesh_version(const struct shoal_sched *sched);
/* Everybody follows the rules of this version, and nothing else is taken (L4 of sched/node/sched_seal.c). */
bool shoal_sched_is_bound(const struct shoal_sched *sched);
/* False: a host that is here runs an agent of a version before those rules; what only newer ones read would part them. */
bool shoal_sched_all_follow_rules(const struct shoal_sched *sched);
/* True: `node` is here, and runs an agent of a version that takes no job of so many workers. */
bool shoal_sched_refuses_workers(const struct shoal_sched *sched, uint32_t workers, struct shoal_node_id *node);
/* That host says that it follows them. */
bool shoal_sched_follows_rules(const struct shoal_sched *sched, struct shoal_node_id node);
/* True when the mesh group has a leader that this node knows; outside of the group, when it hears most of the guardians. */
bool shoal_sched_mesh_writable(const struct shoal_sched *sched);

struct shoal_sched_group_status {
    struct shoal_job_id id;
    bool leads;
    bool founded; /* false: the founding record is not here (yet) */
    bool asleep;
    bool stopped;  /* its digest differed from the others', or it was refused */
    bool changing; /* its members: the change is not committed yet */
    uint8_t voters;
    uint8_t learners;
    uint64_t term;
    uint64_t commit;
    uint64_t applied;
    uint64_t last;
    struct shoal_node_id leader; /* zero: unknown */
    struct shoal_node_id guardians[SHOAL_GROUP_NODES_MAX];
    /* Those whose majority has committed `commit`: others than the above while a change of them is in the log alone. */
    uint8_t commit_voters;
    struct shoal_node_id commit_guardians[SHOAL_GROUP_NODES_MAX];
};
size_t shoal_sched_group_count(const struct shoal_sched *sched);
bool shoal_sched_group_at(const struct shoal_sched *sched, size_t i, struct shoal_sched_group_status *status);
bool shoal_sched_group_find(const struct shoal_sched *sched, struct shoal_job_id id,
                            struct shoal_sched_group_status *status);
/* Rolling hash of all that the group has applied, and up to where: replicas at the same index must agree. */
/* The job's replica held here; NULL: none, or its founding record is not applied yet. */
struct shoal_job;
const struct shoal_job *shoal_sched_job(const struct shoal_sched *sched, struct shoal_job_id id);
bool shoal_sched_group_digest(const struct shoal_sched *sched, struct shoal_job_id id, uint64_t *applied,
                              uint64_t *digest);

/* A list shows this of a job whose group is here, right now. */
struct shoal_sched_row {
    struct shoal_sched_version version;
    bool leads;              /* this node leads the group: nothing that was acknowledged is newer */
    bool tail;               /* entries that are not applied yet are held here: something newer may be acknowledged */
    bool deleted;            /* its deletion is committed */
    struct shoal_view facts; /* as in INDEX; lies in `bytes` */
};
/* False: no group, or nothing known of it: the index's row stands. */
bool shoal_sched_row_find(const struct shoal_sched *sched, struct shoal_job_id id,
                          uint8_t bytes[SHOAL_SCHED_ROW_BYTES_MAX], struct shoal_sched_row *row);
/* Parked groups: they are in the store, and come back when they are wanted. `config`: of a stored hard state. A shell
 * that restores one that is parked gives the hard state alone. */
bool shoal_sched_is_parked(struct shoal_view config);
size_t shoal_sched_parked_count(const struct shoal_sched *sched);
bool shoal_sched_parked_find(const struct shoal_sched *sched, struct shoal_job_id id);

/* The archive's records on this node, in order of ids. One that is not final belongs to a job whose group has yet to
 * commit it; it answers requests only when gossip knows nothing of the job. */
struct shoal_sched_archived {
    struct shoal_job_id id;
    bool final;
    bool cold;      /* only in the store now: list, user, facts and summary are empty here */
    uint64_t since; /* shoal_sched_archive_version() when it was stored */
    struct shoal_hash list;
    char user[SHOAL_SCHED_BY_BYTES];
    struct shoal_view facts, summary; /* encoded as in job.h */
};
size_t shoal_sched_archive_count(const struct shoal_sched *sched); /* those on their way here included */
/* False: no such record, or not stored yet. */
bool shoal_sched_archive_at(const struct shoal_sched *sched, size_t i, struct shoal_sched_archived *archived);
/* The final records in memory, the newest first; `*cursor` is NULL at first. Until the next step. */
bool shoal_sched_archive_newest(const struct shoal_sched *sched, const void **cursor,
                                struct shoal_sched_archived *archived);
/* Tells where the store keeps the record of a job (a group without entries), and what its snapshot says: for a cold one. The
 * views point into `kept`. */
struct shoal_job_id shoal_sched_archive_place(struct shoal_job_id id);
bool shoal_sched_archive_read(struct shoal_view kept, struct shoal_sched_archived *archived);
bool shoal_sched_archive_find(const struct shoal_sched *sched, struct shoal_job_id id,
                              struct shoal_sched_archived *archived);
/* Counted up with every record that is stored, and with every deletion that is heard of. */
uint64_t shoal_sched_archive_version(const struct shoal_sched *sched);
/* Deleted ids that are remembered here: the i-th, and the version at which it was heard of (0: in an earlier life). */
bool shoal_sched_deleted_at(const struct shoal_sched *sched, size_t i, struct shoal_job_id *id, uint64_t *since);
/* The nodes that should hold the job's record, in order; this node may be among them. */
size_t shoal_sched_archive_hosts(const struct shoal_sched *sched, struct shoal_job_id id,
                                 struct shoal_node_id nodes[SHOAL_ARCHIVE_COPIES]);

/* Nothing is left to be moved off this node: no worker has a slot of it, it leads nothing, and of what it guards the others
 * could not take more, and decide without it. `text`: what is left. */
bool shoal_sched_is_empty(const struct shoal_sched *sched, char *text, size_t cap);

struct shoal_sched_stats {
    uint64_t frames_in, frames_out, frames_malformed, frames_unknown;
    uint64_t sends_dropped; /* the action pool was full; the core repeats */
    uint64_t requests, replies, requests_refused_full, requests_timed_out, forwarded;
    uint64_t groups, groups_led, groups_refused_full;
    uint64_t foundings, foundings_refused, terms_led;
    uint64_t witnesses; /* foundings without a majority that this node took part in settling */
    uint64_t snapshots, snapshots_sent;
    uint64_t digest_mismatches;
    uint64_t pauses; /* a group or the slots were due too often at one instant */
    uint64_t config_changes;
    uint64_t gone_refused;    /* words that a group has ended, of a node that cannot know */
    uint64_t requests_denied; /* passed on by another host, without a token or with one of a user who may not */
    uint64_t copies_refused;  /* of the mesh, that were not genuine */
    uint64_t removed_refused; /* frames and datagrams of nodes that were removed from the mesh */
    uint64_t archived;        /* groups that ended here */
    uint64_t archive_records, archive_refused_full, archive_loads;
    uint64_t parked, parks, loads, loads_refused; /* now; since the start */
    uint64_t pending_shown, pending_held;         /* now, of the jobs led here */
    uint64_t park_widened;                        /* those at the head of the queue were stuck beside free slots */
};
/* Asserts every invariant of every group's Raft and of support: for tests and the simulator. */
void shoal_sched_check(const struct shoal_sched *s);
/* The tables of the control plane, those of Raft and support among them. */
void shoal_sched_memory(struct shoal_memory *memory);
void shoal_sched_stats(const struct shoal_sched *sched, struct shoal_sched_stats *stats);

#endif
