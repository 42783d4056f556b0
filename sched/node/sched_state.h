/* The state of one node's control plane, shared by the sched*.c files and by nobody else. A part's own structs, and
 * the functions that it offers to the others, stand in its header (sched_group.h, sched_request.h, sched_archive.h ...).
 *
 *   sched.c          step, settling, deadlines, looking inside
 *   sched_node.c     what is known of nodes; host-pair support and what it means to groups
 *   sched_group.c    the table of groups; one raft driven, its actions carried out, entries applied
 *   sched_store.c    snapshots, installs, restore after a start
 *   sched_gone.c     removed ids
 *   sched_shelf.c    ids of deleted jobs that these have no room for
 *   sched_found.c    tickets, guardians, founding
 *   sched_settle.c   foundings that find no majority
 *   sched_digest.c   replicas compared, and rebuilt
 *   sched_request.c  requests: here, forwarded, asked around
 *   sched_recover.c  the next recovery generation, from a single replica
 *   sched_keep.c     membership upkeep: growth and replacement of guardians
 *   sched_park.c     pending jobs that leave memory, and come back
 *   sched_archive.c  ended jobs: from groups to records on three hosts
 *   sched_copy.c     the mesh's sealed copy
 *   sched_seal.c     what makes it genuine
 *   sched_index.c    what lists show of each job
 *   sched_lead.c     leads of jobs
 *   sched_slots.c    this host's slots
 *   sched_local.c    what leads and slots tell each other
 *   sched_summary.c  jobs' summaries, from gossip and into it
 *   sched_news.c     free slots and demands, told directly to those who wait
 *   sched_view.c     hosts and jobs in one view, and its allocation
 *   sched_interest.c support that jobs want */
#ifndef SCHED_STATE_H
#define SCHED_COPIES_MAX 8 /* of the mesh, in one step */
#define SCHED_STATE_H

#include "shoal/job.h"
#include "shoal/job_entry.h"
#include "shoal/lead.h"
#include "shoal/mesh.h"
#include "shoal/raft.h"
#include "shoal/sched.h"
#include "shoal/sched_look.h"
#include "shoal/slots.h"
#include "shoal/support.h"
#include "sched_found.h"
#include "sched_seal.h"
#include "sched_slots.h"
#include "sched_view.h"
#include "sched_wire.h"

#define SCHED_NEVER UINT64_MAX
static inline uint64_t sched_sooner(uint64_t a_ns, uint64_t b_ns) { return a_ns < b_ns ? a_ns : b_ns; }

#define SCHED_DIGEST_ENTRIES 1024
/* Room that one raft step may need. */
#define SCHED_ROOM_ACTIONS (SHOAL_RAFT_ACTIONS_MAX + 64)
#define SCHED_ROOM_ENTRIES 64
/* Sends stop here, so that what must not be lost still fits. */
#define SCHED_POOL_KEPT (512 * SHOAL_KIB)
/* Due so often at one instant, a part of the core is made to wait this long: settling must come to an end. */
#define SCHED_DUE_MAX 32
#define SCHED_DUE_PAUSE_NS SHOAL_MS
/* Rounds of settling in one step; what is left comes in the next one. */
#define SCHED_TURNS_MAX 4096

#define SCHED_SHELF_IDS_ALL ((size_t)SHOAL_SCHED_SHELVES_MAX * SHOAL_SCHED_SHELF_IDS)
/* Ids of deleted jobs for which the table has no room. */
struct sched_shelf {
    struct shoal_job_id *ids; /* in order; room for SCHED_SHELF_IDS_ALL */
    size_t count;
    uint64_t next;                                        /* number of the next shelf */
    struct shoal_job_id newest[SHOAL_SCHED_SHELVES_MAX]; /* T8: of each; zero: all are of a time to come */
};

struct shoal_sched {
    struct shoal_node_id self;
    struct shoal_store_id store;
    struct shoal_incarnation incarnation;
    struct shoal_sched_options options;
    struct shoal_rand chance;

    /* The step under way. */
    uint64_t now;
    uint64_t wall_ms;
    uint64_t deadline_ns; /* as the last step left it: before, nothing comes due by itself */
    struct shoal_sched_actions *actions;
    struct shoal_raft_actions raft_actions;
    struct shoal_support_actions support_actions;
    struct shoal_entry *held[SHOAL_SCHED_ENTRIES_MAX]; /* entries in this step's PERSISTs */
    uint32_t held_count;
    bool more;

    bool restored; /* start-up is over */
    struct shoal_support *support;
    struct shoal_support_health health;
    uint64_t links_ns;     /* control links were watched then */
    uint8_t store_percent; /* in use */

    struct sched_group **groups; /* in order of ids */
    size_t group_count;
    size_t groups_max;
    struct sched_group **heap; /* by deadline */
    size_t heap_count;
    struct sched_group *dirty_first, *dirty_last;
    struct sched_group *index_first, *index_last;
    size_t index_gone;                 /* deleted ids that are to be emitted after a start */
    struct shoal_job_spec *index_spec; /* scratch */
    uint64_t lives;

    struct sched_node *nodes; /* in order of ids */
    size_t node_count;
    size_t node_cap;
    uint64_t nodes_dropped; /* how often one left the table */

    struct sched_request *requests;
    uint64_t request_serial;
    uint32_t request_count;
    uint64_t requests_ns; /* the earliest retry or deadline */

    struct sched_founding *foundings;
    uint64_t foundings_ns;
    struct sched_fetching *fetching;
    struct sched_survey surveys[SCHED_SURVEYS_MAX];
    struct sched_refusal refusals[SCHED_REFUSALS_MAX];
    uint64_t settle_ns; /* the earliest */

    /* Ids removed, refused, or moved to other guardians, oldest first; kept in the store as the snapshot of a group of
     * its own. */
    struct sched_gone *gone; /* options.gone_max of them */
    size_t gone_count;
    struct shoal_job_id gone_horizon; /* newest forgotten */
    uint64_t gone_version;
    uint32_t gone_pieces; /* written since the snapshot */
    bool gone_dirty;
    bool gone_due;         /* some of them may have something left to do that can be done now (T6) */
    uint64_t gone_durable; /* version */
    uint64_t gone_tell_ns; /* the first tell_ns of them */
    struct shoal_buf gone_bytes;
    struct sched_shelf shelf;

    struct sched_park *park;

    /* The archive. */
    struct sched_archived **archive;      /* in order of ids */
    struct sched_archived **archive_heap; /* by look_ns */
    size_t archive_cap;
    struct sched_archived *warm_first, *warm_last;
    size_t warm_count;
    uint32_t archive_loading;
    uint32_t ended_led; /* ended jobs that are led here */
    size_t archive_count;
    size_t archive_bytes; /* in memory */
    uint64_t archive_version;
    uint64_t archive_look_ns; /* the earliest */

    /* The mesh's copy. */
    struct shoal_mesh *mesh;                     /* decoded; NULL: none */
    struct shoal_buf copy;                       /* as kept and given away */
    struct shoal_buf copy_old[SCHED_COPIES_MAX]; /* replaced within this step: actions may still name their bytes */
    uint32_t copy_old_count;
    uint64_t copy_version;
    bool copy_sealed;            /* by a majority, not signed by one as the version before did */
    bool copy_bound;             /* L4 of sched_seal.c */
    uint64_t rules_lacked_ns;    /* a live host did not follow the rules then */
    struct shoal_buf copy_plain; /* for hosts of the version before */
    uint64_t copy_plain_version, copy_plain_config;
    uint64_t copy_said_config; /* in this host's own record */
    struct sched_sealing sealing;
    struct mesh_hint mesh_hint; /* of the copy */
    struct shoal_node_id mesh_leader;
    bool copy_dirty; /* the group here has applied something new */
    struct {
        uint64_t version; /* 0: nothing under way */
        size_t turn;      /* who is asked next */
        struct shoal_node_id from;
        struct shoal_buf bytes;
        uint64_t total;
        uint64_t retry_ns;
    } getting;

    /* Jobs. */
    struct shoal_lead_actions *lead_actions;
    struct shoal_job_entry *job_scratch;
    struct shoal_tasks_page tasks_page; /* scratch */
    struct shoal_buf scratch;           /* of snapshots and answers, taken at create */
    struct sched_slots slots;
    struct sched_local local;
    struct sched_summaries summaries;
    struct sched_view view;
    struct sched_interest interest;

    struct shoal_sched_stats stats;
};

/* sched.c */
struct shoal_sched_action *sched_act(struct shoal_sched *s, enum shoal_sched_action_kind kind);
bool sched_has_room(const struct shoal_sched *s);
/* Bytes of the action pool; NULL when it is full. `keep`: what must stay free after it. */
uint8_t *sched_pool(struct shoal_sched *s, size_t len, size_t keep);
struct shoal_view sched_pool_copy(struct shoal_sched *s, struct shoal_view view);
/* A frame; dropped and counted when there is no room. */
void sched_send(struct shoal_sched *s, struct shoal_node_id to, const struct frame *frame);
void sched_send_view(struct shoal_sched *s, struct shoal_node_id to, struct shoal_view bytes, bool bulk);
struct shoal_hash sched_hash(const struct shoal_sched *s, struct shoal_view bytes);
bool sched_is_self(const struct shoal_sched *s, struct shoal_node_id node);
/* The first digits of a node's id behind the text, for a message to people; nothing when it is full. */
void sched_add_name(char *text, size_t cap, struct shoal_node_id node);

#endif
