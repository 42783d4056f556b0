/* Snapshots, installs, restore after a start, and removed ids. */
#ifndef SCHED_STORE_H
#define SCHED_STORE_H

#include "shoal/raft.h"
#include "shoal/sched.h"
#include "sched_wire.h"

struct shoal_sched;
struct sched_group;

#define SCHED_SNAPSHOT_ENTRIES 512
#define SCHED_SNAPSHOT_BYTES (256 * SHOAL_KIB)
#define SCHED_SNAPSHOT_IDLE_NS (30 * SHOAL_S)

enum gone_why {
    GONE_DELETED,  /* or refused */
    GONE_MOVED,    /* the group lives on elsewhere: this node may become a member again, but founds it no more */
    GONE_ARCHIVED, /* the group has ended: the archive has the job */
    GONE_WHYS,
};

struct sched_gone {
    struct shoal_job_id id;
    uint8_t why;                   /* enum gone_why */
    bool files;                    /* DELETED: once this is durable, what the host has of the job goes (T6) */
    bool tell;                     /* ... and others are told */
    uint8_t told;                  /* how often the hosts of its record were */
    uint64_t tell_ns;              /* they are again; 0: they are not (A5) */
    uint64_t spec_mark;            /* ARCHIVED: the first bytes of the specification's hash */
    uint64_t written;              /* gone_version that holds it: durable when gone_durable is there */
    uint64_t since;                /* archive_version */
    struct shoal_raft_floor floor; /* MOVED: what its replica answered for */
};

/* sched_store.c */
/* Snapshot and mark of a group at rest, in one write. False: no memory or no room, nothing is written. */
bool sched_store_park(struct shoal_sched *s, struct sched_group *g, const struct park_mark *mark, uint64_t seq);
void sched_persist(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_action *action);
void sched_snapshot_take(struct shoal_sched *s, struct sched_group *g);
/* The configuration of a group without entries. False: no memory. */
bool sched_snapshot_witness(struct shoal_sched *s, struct sched_group *g);
void sched_snapshot_found(struct shoal_sched *s, struct sched_group *g); /* the whole of a new lineage */
void sched_snapshot_give(struct shoal_sched *s, struct sched_group *g);
void sched_snapshot_part(struct shoal_sched *s, struct sched_group *g, const struct shoal_raft_action *action);
bool sched_snapshot_stored(struct shoal_sched *s, struct sched_group *g, struct shoal_sched_mark mark);
enum shoal_err sched_on_restore(struct shoal_sched *s, const struct shoal_sched_event *event);
void sched_on_restored(struct shoal_sched *s);

/* sched_gone.c */
bool sched_gone_restore(struct shoal_sched *s, const struct shoal_sched_event *event); /* false: not theirs */
bool sched_is_gone(const struct shoal_sched *s, struct shoal_job_id id); /* for good */
bool sched_may_found(const struct shoal_sched *s, struct shoal_job_id id);
void sched_gone_add(struct shoal_sched *s, struct shoal_job_id id, enum gone_why why, struct shoal_hash spec_hash);
struct sched_gone *sched_gone_find(const struct shoal_sched *s, struct shoal_job_id id);
void sched_gone_archived(struct shoal_sched *s, struct shoal_job_id id, uint64_t spec_mark);
uint64_t sched_spec_mark(struct shoal_hash spec_hash);
/* Not newer than the newest that was forgotten: it may have been removed. */
bool sched_gone_is_forgotten(const struct shoal_sched *s, struct shoal_job_id id);
bool sched_gone_stored(struct shoal_sched *s, struct shoal_job_id group,
                       struct shoal_sched_mark mark); /* false: not theirs */
bool sched_gone_is_durable(const struct shoal_sched *s, struct shoal_job_id id);
void sched_gone_save(struct shoal_sched *s);
/* The host deletes what it has of a job that is gone, once that is durable (T6). */
void sched_gone_files(struct shoal_sched *s, struct shoal_job_id id);
void sched_gone_tell(struct shoal_sched *s, struct shoal_job_id id);
bool sched_id_is_ahead(const struct shoal_sched *s, struct shoal_job_id id); /* of a time to come */
/* sched_shelf.c */
bool sched_is_shelf(struct shoal_job_id group);
bool sched_shelf_has(const struct shoal_sched *s, struct shoal_job_id id);
/* Deleted ids whose deletion is durable, at most SHOAL_SCHED_SHELF_IDS; they are sorted. False: no room in this step, nothing
 * has changed. */
SHOAL_MUST_CHECK bool sched_shelf_put(struct shoal_sched *s, struct shoal_job_id *ids, size_t count);
void sched_shelf_restore(struct shoal_sched *s, const struct shoal_sched_event *event);
void sched_gone_settle(struct shoal_sched *s); /* at the end of a step: what is to be written or told */
/* Keeps the floor of a replica that was, and may again become, a member: T5. */
void sched_gone_keep_floor(struct shoal_sched *s, const struct sched_group *g);
void sched_gone_set_floor(struct shoal_sched *s, struct sched_group *g);

#endif
