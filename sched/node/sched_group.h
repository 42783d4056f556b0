/* The groups of a node: what is kept of each, and what drives it. */
#ifndef SCHED_GROUP_H
#define SCHED_GROUP_H

#include "shoal/job.h"
#include "shoal/lead.h"
#include "shoal/mesh.h"
#include "shoal/raft.h"
#include "shoal/sched.h"
#include "sched_archive.h"
#include "sched_wire.h"

struct shoal_sched;

/* A group's lineage: recovery generation - 1 (16 bits), and who founded it (16 bits); 0 as founded first. The high
 * half of every term (sched_recover.c). */
#define SCHED_LINEAGE_SHIFT 32
static inline uint64_t sched_lineage(uint64_t term) { return term >> SCHED_LINEAGE_SHIFT; }

#define SCHED_TOLD_MAX (SHOAL_GROUP_NODES_MAX + 4)
#define SCHED_WAITERS_MAX 8
#define SCHED_NEEDS_MAX 4
/* A group without a leader asks around after this time. */
#define SCHED_ORPHAN_NS (10 * SHOAL_S)
#define SCHED_MESH_TARGET 5
#define SCHED_DOOM_NS (3 * SHOAL_S)

/* A host as a group's raft was told of it, and the group as that host was told of it. */
struct sched_told {
    struct shoal_node_id node;
    bool supported;
    bool supporting;
    uint64_t claimed; /* its claim, as told to the raft; 0: none */
    uint64_t claim;   /* ours towards it; 0: none */
    bool broken;      /* its replica has stopped: it is to be rebuilt (leader) */
    uint64_t parked;  /* it has parked the group, which ended at this index then; 0: no */
};

/* The digest that a guardian's machine came to. */
struct sched_digest {
    struct shoal_node_id node;
    uint64_t index, digest;
};

struct sched_waiter {
    struct shoal_node_id node;
    uint64_t nonce;
};

struct sched_need {
    struct shoal_raft_id peer;
    uint64_t index;
    uint64_t offset;
};

struct sched_lead_state; /* what belongs to a lead: sched_lead.c */

struct sched_group {
    struct shoal_job_id id;
    uint64_t life; /* of this group on this node: marks name it, so that an older life's are not believed */
    struct shoal_raft *raft;
    struct shoal_mesh *mesh; /* the mesh group's machine; NULL in a job's group */
    struct shoal_job *job;   /* NULL until the founding record is applied */
    struct shoal_lead *lead;
    struct sched_lead_state *lead_state;

    uint64_t applied;
    uint64_t applied_term;
    uint64_t config_index; /* newest committed configuration */
    uint64_t snapshot_index;
    uint64_t log_bytes; /* since the snapshot */
    bool snapshot_saving;

    bool leads;
    bool founded; /* a founding record or snapshot was applied */
    bool stopped; /* its digest differs: takes no part any more */
    bool refused;
    bool record_known; /* spec_hash and target are set */
    bool bundle_asked;
    bool bundle_here;
    bool mesh_is;
    bool role_changed;
    bool hurry; /* recovered: it is below its target, and grows at once */
    uint64_t term;
    struct shoal_node_id leader;

    struct shoal_hash spec_hash;
    struct shoal_hash bundle_hash;
    uint8_t target;

    /* Founding: who is told when the record is durable. */
    uint64_t found_seq; /* of the PERSIST that carries it; 0: none under way */
    bool found_durable;
    uint8_t waiter_count;
    struct sched_waiter waiters[SCHED_WAITERS_MAX];
    uint64_t orphan_ns;   /* no leader is known: asks then whether it is a member still */
    uint64_t refuse_term; /* REFUSED was proposed in this term */
    uint64_t complete_ns; /* a holder without a majority offers the record again then */
    uint32_t complete_tries;

    /* Snapshots: the one that followers are given, the one that comes in. */
    struct shoal_buf snap;
    struct shoal_raft_snapshot snap_at;
    uint64_t snap_used_ns;
    struct shoal_buf part;
    uint64_t part_index;
    uint8_t need_count;
    struct sched_need needs[SCHED_NEEDS_MAX]; /* beyond it the raft asks again */

    /* Digests of the machine at the newest multiple of SCHED_DIGEST_ENTRIES. */
    uint64_t digest_index, digest;
    struct sched_digest digests[SHOAL_SCHED_SOURCES_MAX]; /* the others' newest */
    uint64_t rebuild_ns;                                  /* stopped: asks then to be rebuilt */

    /* Reads: those that wait share the next round. */
    uint64_t read_serial; /* of the round under way; 0: none */
    bool reads_waiting;

    /* Upkeep of the membership (leader). */
    uint64_t below_since_ns; /* 0: at its target */
    uint64_t keep_ns;        /* look again then */
    uint64_t doomed_ns;      /* removed then; SCHED_NEVER: lives */
    bool gone_for_good;      /* its id is remembered */
    bool gone_archived;      /* the archive has it */
    bool said;               /* a summary was told from here, and not taken back */
    struct shoal_sched_version said_version; /* of the newest one (Y6) */
    bool told_elsewhere;     /* of its end, by another than its leader */

    /* Ended, on its way into the archive (leader): sched_archive.c. */
    uint64_t archive_ns;     /* look again then */
    bool archive_due;        /* the time since its end is over */
    bool ended_led;          /* counted among the ended ones that are led here */
    bool archive_making;     /* the shell lists its blobs */
    uint64_t archive_end_ns; /* every holder has it as final since then; 0: not yet */
    uint8_t archive_host_count;
    struct sched_held_record archive_hosts[SHOAL_ARCHIVE_COPIES];

    /* The queue of pending jobs (leader): sched_park.c. */
    bool held;    /* it waits without a lead */
    bool called;  /* its turn has come: it is not held */
    bool shown;   /* counted among those with a lead that only wait */
    bool counted; /* counted among those held */
    uint64_t called_ns;
    uint64_t stay_ns;     /* it has come back: not parked before */
    uint64_t park_ask_ns; /* followers are not asked again before */

    /* Told hosts, dirty queue, deadline heap. */
    uint8_t told_count;
    struct sched_told told[SCHED_TOLD_MAX];
    bool dirty;
    struct sched_group *next_dirty;
    /* Its row in lists: sched_index.c. */
    bool index_dirty;
    struct sched_group *index_next, *index_prev;
    uint64_t index_mark; /* of the row emitted last; 0: none */
    uint64_t due_ns;     /* when it was due last, and how often at that instant */
    uint32_t due_count;
    uint64_t floor_ns; /* not due again before */
    uint64_t deadline_ns;
    size_t heap_at;

    unsigned changed; /* of the job, not yet told to the lead */
    bool lead_refused;
    uint64_t lead_ns;
};

/* sched_group.c */
struct sched_group *sched_group_find(const struct shoal_sched *s, struct shoal_job_id id);
enum shoal_err sched_group_admit(struct shoal_sched *s, struct shoal_job_id id, struct sched_group **g);
void sched_group_free(struct sched_group *g);
void sched_group_remove(struct shoal_sched *s, struct sched_group *g);
void sched_group_dirty(struct shoal_sched *s, struct sched_group *g);
void sched_group_rearm(struct shoal_sched *s, struct sched_group *g);
void sched_group_clean(struct shoal_sched *s, struct sched_group *g); /* take it from the dirty queue's head */
void sched_raft_options(struct shoal_sched *s, struct shoal_raft_options *options);
/* Tell support's news, then step; carries the actions out. */
SHOAL_MUST_CHECK enum shoal_err sched_group_step(struct shoal_sched *s, struct sched_group *g,
                                                 const struct shoal_raft_event *event);
void sched_group_sync(struct shoal_sched *s, struct sched_group *g);
void sched_carry_out(struct shoal_sched *s, struct sched_group *g);
void sched_group_due(struct shoal_sched *s, struct sched_group *g);
void sched_group_apply(struct shoal_sched *s, struct sched_group *g, uint64_t upto); /* entries of the log here */
uint64_t sched_group_lineage(const struct sched_group *g);                           /* of the replica here */
/* (lineage, configuration): the higher one is the newer. */
uint64_t sched_group_config_version(const struct sched_group *g);
enum shoal_err sched_on_raft(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_on_stored(struct shoal_sched *s, struct shoal_job_id group, struct shoal_sched_mark mark);
/* It leads, and has committed something in its own term. One that was elected while the others ended the group hears no
 * answer any more, and learns the end from them. */
bool sched_group_decides(const struct sched_group *g);
void sched_group_doom(struct shoal_sched *s, struct sched_group *g, uint64_t after_ns, bool for_good);
void sched_say_gone(struct shoal_sched *s, struct shoal_node_id to, struct shoal_job_id id);
/* G7. Of a group that is here: a member of the newest configuration held, or who leads it by gossip, may say that it has
 * ended, or goes on without this node; where no other member is left in the mesh, whoever knows. */
bool sched_may_say_gone(const struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id from);
void sched_on_gone(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
/* To one that asks or campaigns and is no member (any more) of a group that is here. */
void sched_say_superseded(struct shoal_sched *s, const struct sched_group *g, struct shoal_node_id to);
void sched_say_removed(struct shoal_sched *s, struct sched_group *g, struct shoal_node_id to);
/* Propose a USER entry; `ctx` comes back when refused. NULL: no memory. The reference is the caller's. */
struct shoal_entry *sched_propose(struct shoal_sched *s, struct sched_group *g, struct shoal_view bytes, uint64_t ctx);
/* A copy of the job's founding record as it stands in the log; empty when it is no longer held. */
struct shoal_view sched_group_record(const struct sched_group *g);
size_t sched_group_guardians(const struct sched_group *g, struct shoal_node_id *nodes, size_t cap); /* voters */

/* These bits of a ctx say which part of the core proposed an entry or asked for a read; without one it is a request's
 * serial. */
#define SCHED_CTX_LEAD (1ull << 62)
#define SCHED_CTX_READ (1ull << 61)
#define SCHED_CTX_KEEP (1ull << 60)

/* sched_digest.c */
void sched_on_digest(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
void sched_take_digest(struct shoal_sched *s, struct sched_group *g);
void sched_group_stop(struct shoal_sched *s, struct sched_group *g, const char *why); /* this replica is no good */
void sched_rebuild_ask(struct shoal_sched *s, struct sched_group *g);
void sched_on_rebuild(struct shoal_sched *s, struct shoal_node_id from, const struct frame *frame);
bool sched_is_broken(const struct sched_group *g, struct shoal_node_id node); /* says so to this leader */

/* sched_keep.c */
void sched_keep(struct shoal_sched *s, struct sched_group *g);
void sched_keep_all(struct shoal_sched *s); /* nodes came or went */
/* U5, as a drained host sees it: nobody could take its place, and those that stay are a majority without it. */
bool sched_keep_spares(const struct shoal_sched *s, const struct shoal_node_id *voters, unsigned count);

#endif
