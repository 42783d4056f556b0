/* The simulator: whole meshes of production cores on virtual time.
 *
 *      script or swarm of faults          one heap of events, keyed (time, sequence)
 *      -------------------------   --->   ------------------------------------------------------------------
 *      kill, crash, cut, stall ...        host 1..N: shoal_swim + shoal_sched, each on its own drifting clock
 *                                           | datagrams, links         | PERSIST          | RUN, KILL, ...
 *                                           v                          v                  v
 *                                         sim_net.c: loss, delay,    sim_store.c:       sim_worker.c: processes that
 *                                         cuts, links up and down    unsynced is lost   follow shoal/worker.h
 *                                                                    sim_files.c: torn,
 *                                                                    reordered
 *                                                     \                |                 /
 *                                                      sim_check.c: after every event, in true time
 *
 * I1. One seed decides everything: chance comes from streams split by label and host, so that a draw more in one place
 *     changes nothing elsewhere; no clock, address or hash order of this process reaches a decision.
 * I2. Bytes between cores, and between agent and worker, pass through the production codecs.
 * I3. Cores do not see true time: only their host's clock, which drifts and starts anew at a boot.
 * I4. The end is bounded: all faults are healed, and the mesh must converge within SIM_SETTLE_NS. */
#ifndef SHOAL_SIM_INTERNAL_H
#define SHOAL_SIM_INTERNAL_H

#include <stdio.h>

#include "shoal/autoscale.h"
#include "shoal/gossip.h"
#include "shoal/job.h"
#include "shoal/mesh.h"
#include "shoal/rand.h"
#include "shoal/sched.h"
#include "shoal/slots.h"

/* Bounds of what a script may ask for; tables grow with what it does ask for. */
#define SIM_HOSTS_MAX 10000
#define SIM_JOBS_MAX 100000
#define SIM_COMMANDS_MAX 100000
/* Of the words of scripts: raised whenever an old file would mean another mesh. */
#define SIM_VERSION 1
#define SIM_SETTLE_NS (180 * SHOAL_S)
#define SIM_READY_NS (30 * SHOAL_S)
#define SIM_VIRTUAL_WORKERS 6 /* of a job's steps, unless it may have more workers */

/* ---- a map of 64-bit keys ---- */

struct sim_map {
    struct sim_place {
        uint64_t key, value; /* value 0: free */
    } * places;
    size_t count, cap; /* cap: a power of two */
};

/* The value that was put there; 0: none. */
uint64_t sim_map_find(const struct sim_map *map, uint64_t key);
void sim_map_put(struct sim_map *map, uint64_t key, uint64_t value); /* value above 0 */
void sim_map_remove(struct sim_map *map, uint64_t key);
void sim_map_deinit(struct sim_map *map);

/* ---- events ---- */

enum sim_kind {
    SIM_GOSSIP,     /* a datagram */
    SIM_SUPPORT,    /* a datagram of the control plane */
    SIM_PUMP,       /* the next frame of a link's lane is due */
    SIM_LINK,       /* a link went up (1), down (0) or was refused (2) */
    SIM_LINK_CHECK, /* a cut lasts: the link breaks */
    SIM_DIAL,
    SIM_WRITTEN, /* the disk has flushed a batch */
    SIM_SWIM_TIMER,
    SIM_SCHED_TIMER,
    SIM_HEALTH,
    SIM_PUBLISH,      /* a record of ours goes to gossip */
    SIM_ANSWER,       /* a prepared event for the control plane */
    SIM_RUNNERS,      /* after an agent's restart: what lives here */
    SIM_TO_AGENT,     /* a worker's message */
    SIM_TO_WORKER,    /* the worker's inbox holds a message */
    SIM_RUNNER_TIMER, /* the runner freezes or kills by the lease */
    SIM_EXIT,         /* the process ends */
    SIM_SLOT_IDLE,
    SIM_WATCH, /* the agent's watchdog looks at a worker that stands still */
    SIM_WORK,  /* a worker does what it is about to */
    SIM_TRAIN, /* engines of a job go on */
    SIM_COMMAND,
    SIM_RETRY,        /* a client asks again */
    SIM_CLIENT,       /* a reader asks */
    SIM_SERVE_LOOK,   /* an agent looks after services, and requests for them */
    SIM_INFER_ASK,    /* a request comes to the host of a kernel */
    SIM_INFER_WORD,   /* it waits there (1), or is in a kernel (0) */
    SIM_INFER_ANSWER, /* what came of it: enum shoal_err */
    SIM_KERNEL,       /* a kernel has computed it */
    SIM_KINDS,
};

struct sim_write;

struct sim_event {
    uint64_t at_ns;
    enum sim_kind kind;
    uint32_t to;   /* host */
    uint32_t from; /* host, or what the kind says */
    uint32_t life; /* of the agent at `to`; 0: for the host, whoever runs there */
    uint64_t word;
    uint64_t link;           /* number of the link that it goes over */
    struct shoal_view bytes; /* owned */
    struct sim_write *write;
    struct shoal_sched_event *answer;
    struct shoal_record *record; /* its payload is `bytes` */
    struct sim_event *next;      /* of the spare ones */
};

/* Its place in the heap: what decides is here, so that a search through it touches no event. */
struct sim_due {
    uint64_t at_ns, seq;
    struct sim_event *event;
};

/* ---- network ---- */

enum { SIM_LANE_CONTROL, SIM_LANE_BULK, SIM_LANES };

struct sim_frame {
    struct sim_frame *next;
    uint64_t due_ns;
    size_t len;
    uint8_t bytes[];
};

struct sim_lane {
    struct sim_frame *first, *last;
    uint64_t due_ns; /* of the last one: a lane keeps its order */
    bool pumping;
};

/* One direction between two hosts; made when something is first sent, cut or dialled there. */
struct sim_path {
    uint32_t from, to;
    bool cut;
    bool link_cut; /* connections alone */
    bool data_cut; /* between workers alone: agents go on talking */
    bool dialing;
    bool wanted;
    bool link_up; /* the connection between the two, whoever dialled; kept where `from` is below `to` */
    uint64_t clog_ns; /* nothing passes before */
    struct shoal_rand chance;
    struct sim_lane *lanes; /* NULL: no frame has gone this way */
    uint64_t link_number;
};
_Static_assert(sizeof(struct sim_path) <= 72, "each of a thousand hosts has a path to each other one");

/* Paths in the order of their making; they stay where they are. */
#define SIM_PATHS_A_BLOCK 256u

/* ---- store ---- */

struct sim_disk_group {
    struct shoal_job_id id;
    bool used;
    bool has_hard;
    struct shoal_sched_hard hard;
    uint8_t hard_config[SHOAL_SCHED_CONFIG_BYTES_MAX];
    bool has_snapshot;
    struct shoal_sched_snapshot snapshot; /* bytes owned */
    struct shoal_sched_entry *entries;    /* bytes owned */
    size_t entry_count, entry_cap;
    uint64_t left_term; /* as it was when the group was removed: the votes given by then went out */
    struct shoal_node_id left_vote;
};

/* A batch on its way to the disk. */
struct sim_write {
    struct sim_write *next; /* of this host, in order */
    uint64_t begun_ns;
    bool remove;
    uint64_t truncate_from;
    struct shoal_sched_mark mark;
    struct sim_disk_group add; /* `id`: the group */
};

/* A file on its way to its name by shoal_disk_order(), or under it while its folder is not flushed. */
enum sim_file_kind { SIM_FILE_BLOB, SIM_FILE_ARCHIVE, SIM_FILE_MESH };

struct sim_file {
    struct sim_file *next; /* of this host, in the order of their writes */
    enum sim_file_kind kind;
    uint64_t key;            /* of the blob, or the job */
    struct shoal_view bytes; /* of the mesh's copy; owned */
    uint32_t sectors;
    uint64_t held_ns; /* somebody is told then that it is held; 0: nobody */
    uint32_t count;
    struct sim_file_step {
        uint8_t step; /* enum shoal_disk_step */
        uint64_t done_ns;
    } steps[4];
};

struct sim_disk {
    struct sim_disk_group *groups;
    size_t count, cap;
    struct sim_map group_index;
    struct sim_write *first, *last; /* not flushed */
    uint32_t flushing, waiting;     /* the first so many are in the flush under way, the others come with the next */
    uint64_t stall_ns;              /* nothing is flushed before */
    uint64_t flush_ns;              /* mean */
    uint64_t slow_ns;               /* it is so many `times` slower before */
    uint32_t slow_times;
    uint64_t full_ns; /* it takes nothing before: the agent stops at its next flush */
    struct shoal_buf mesh_copy;
    struct shoal_buf slots_copy;
    struct shoal_node_id peers[SHOAL_SCHED_PEERS_MAX]; /* whom this host has heard of */
    uint32_t peer_count;
    struct sim_map here; /* files, as the agent sees them */
    struct sim_file *files;
    struct shoal_buf mesh_flushed; /* the copy that a power cut leaves */
    struct shoal_rand chance, file_chance;
};

/* ---- workers ---- */

struct sim_message {
    struct sim_message *next;
    size_t len;
    uint8_t bytes[];
};

enum sim_work {
    SIM_WORK_HELLO = 1,
    SIM_WORK_READY,
    SIM_WORK_TRAIN,
    SIM_WORK_CLOSED,
    SIM_WORK_UNHEARD,
    SIM_WORK_DONE,
    SIM_WORK_FILES,
    SIM_WORK_RECORDS,
    SIM_WORK_SNAPSHOT,
    SIM_WORK_END, /* by itself, with status 0 */
};

struct sim_worker {
    uint64_t id;
    uint32_t job; /* index */
    uint32_t host;
    uint32_t slot;
    uint8_t role; /* enum shoal_sched_run_role */
    uint8_t token[SHOAL_JOB_TOKEN_BYTES];
    uint32_t generation;
    uint64_t lease_generation;
    uint32_t attempt;
    uint32_t task; /* of an array: its index */
    int32_t pid;
    bool alive, frozen, connected, dying;
    bool dead;      /* killed: its memory is being torn down, SIM_EXIT follows */
    bool stopped;   /* it stands still until somebody kills it */
    uint32_t still; /* looks of the watchdog that found it so, in one life of the agent */
    uint32_t still_life;
    uint64_t freeze_at_ns, kill_at_ns; /* the host's clock, as the runner holds them */
    uint32_t call;                     /* loaded */
    bool ready;
    uint64_t epoch; /* word of the epoch it is in; 0: none */
    bool closed, entered;
    uint64_t applied, complete;
    uint64_t snapshot_said;
    bool done;
    bool train_done;            /* driver */
    struct shoal_ranks silent;  /* members that it cannot hear, since when */
    uint64_t silent_ns;
    uint64_t entered_ns;
    struct shoal_ranks broken;  /* links that broke, as said with CLOSED */
    struct shoal_ranks unheard; /* as said */
    uint32_t in_hand; /* of a kernel: requests */
    bool draining;    /* it gets no more, and ends at `drain_ns` at the latest */
    uint64_t drain_ns;
    struct shoal_worker_epoch *last_epoch; /* the one entered last, as its agent sent it */
    struct sim_message *inbox, *inbox_last;
    struct sim_worker *next;
};

/* A runner: one per job with workers here, until JOB_CLOSED. */
struct sim_runner {
    bool used;
    uint32_t job;
    uint32_t generation;
    uint64_t revoked;
};

/* ---- hosts ---- */

struct sim_log_mark {
    uint64_t term;
    uint64_t hash;
};

/* ---- services: sim_service.c ---- */

#define SIM_TRIES_MAX 8u

/* A request, as the node that was asked holds it. */
struct sim_infer {
    uint32_t number, job;
    uint32_t from, life; /* whom its client asked */
    uint64_t deadline_ns, asked_ns;
    enum { SIM_INFER_HELD, SIM_INFER_ASKING, SIM_INFER_OUT, SIM_INFER_OVER } state;
    uint32_t at;   /* OUT: the host */
    uint64_t link; /* ... and the link to it */
    bool waits;    /* there, by its last word */
    bool full, probe;
    bool may_refuse;
    uint32_t tried[SIM_TRIES_MAX], tries;
    uint32_t runs, lost_waiting; /* kernels that got it; hosts that were lost while it waited there */
    enum shoal_err err;
};

/* The same, where it is computed. */
struct sim_served {
    struct sim_served *next;
    uint32_t infer;
    uint64_t worker; /* 0: it waits */
};

/* An agent's memory of a service that it leads. */
struct sim_scale {
    struct shoal_autoscale autoscale;
    uint64_t request; /* the SCALE asked last */
    uint64_t floor_ns, burst_ns;
    uint32_t burst_have;
};

/* The last state of a replica that the checks saw. */
struct sim_replica {
    struct shoal_job_id id;
    bool used;
    uint64_t commit, applied;
    uint64_t term;
    uint64_t epoch; /* word of the newest epoch applied */
    uint64_t first; /* index of log[0] */
    struct sim_log_mark *log;
    size_t count, cap;
};

struct sim_host {
    struct sim *sim;
    uint32_t index;
    char name[16];
    bool exists;                        /* has been started once */
    bool destroyed;                     /* with its disk; it never comes back */
    uint64_t mesh_version, mesh_config; /* as said in its facts */
    bool draining;                      /* an operator takes its work away */
    bool powered;
    bool agent; /* runs */
    uint32_t life;
    struct shoal_incarnation incarnation;
    uint64_t boot_true_ns;
    int64_t drift_ppm;
    int64_t wall_ms;    /* how far its wall clock is ahead; it goes at the host's own rate */
    uint64_t paused_ns; /* the agent does nothing before */
    struct shoal_public_key key;
    struct shoal_node_id id;
    struct shoal_store_id store;
    struct shoal_address address;
    uint32_t slots;
    struct shoal_swim *swim;
    struct shoal_sched *sched;
    uint64_t swim_timer_ns, sched_timer_ns; /* armed for; UINT64_MAX: not */
    uint64_t record_sequence;
    uint64_t health_due_ns;
    struct sim_disk disk;
    struct sim_worker *workers; /* alive */
    struct sim_runner *runners;
    size_t runner_count, runner_cap;
    uint64_t idle_ns[SHOAL_SLOTS_MAX]; /* since when the slot is free, true time; 0: it is not */
    bool runners_found;                /* by this life of the agent: it closes the connections of workers before */
    struct sim_served *served;         /* requests for services, in the order of their coming */
    struct sim_scale *scales;          /* by job */
    size_t scale_cap;
    bool serving_changed;
    uint32_t serve_looks;
    uint64_t look_ns;
    struct sim_replica *replicas;
    size_t replica_count;
    struct shoal_rand chance;
    uint64_t sched_steps, swim_steps;
    uint64_t swim_check_step; /* when all of its state is looked at again */
};

/* ---- jobs, groups, requests ---- */

/* Tasks of an array in a script. */
#define SIM_TASKS_MAX 1000

struct sim_job {
    bool script;
    uint32_t tasks; /* 0: no array */
    bool service;   /* its tasks are replicas */
    uint32_t kernels_min, kernels_max, batch;
    uint64_t stop_request;
    struct sim_revision {
        uint64_t known_ns; /* when an answer first told of it; 0: none has */
        uint32_t edit;
    } * revisions; /* of its document */
    size_t revision_count, revision_cap;
    uint32_t from, workers_min, workers_max;
    uint64_t steps;
    bool asked, acknowledged, refused, stop_asked, delete_asked;
    bool deleted;             /* acknowledged */
    bool known;               /* id is set */
    uint64_t acknowledged_ns; /* when it was first */
    uint64_t stop_told_ns, delete_asked_ns,
        deleted_ns;   /* when a stop was acknowledged, a deletion asked for, and so on */
    uint64_t seen_ns; /* the newest linearizable answer: when it came, and its state */
    uint64_t seen_ended_ns;
    uint32_t seen_generation;
    uint64_t seen_applied;
    bool recovered; /* by an operator: what only the lost ones knew is gone */
    bool probe;     /* it only shows that a slot can be given */
    struct shoal_job_id id;
    struct shoal_buf ticket;
    uint64_t request;
    uint32_t tries; /* with its ticket: each at the next host */
    uint64_t steps_done;
    uint64_t newest_epoch; /* word of the newest that a member has entered, and the step that it decided */
    uint64_t newest_decided;
    bool training; /* a TRAIN event is under way */
    bool ended;
    uint64_t ended_index;
    uint8_t ended_state;
    uint32_t generation;  /* newest seen */
    uint8_t *task_states; /* enum shoal_task_state: DONE and FAILED, once they were applied anywhere */
    struct shoal_rand chance;
};

static inline uint32_t sim_virtual_workers(const struct sim_job *job)
{
    return job->workers_max > SIM_VIRTUAL_WORKERS ? job->workers_max : SIM_VIRTUAL_WORKERS;
}

struct sim_term {
    uint64_t term;
    uint32_t host;
};

struct sim_group {
    struct shoal_job_id id;
    uint64_t lineage; /* high half of its terms: a recovery begins a new one, without what only the lost ones had */
    struct sim_term *terms;
    size_t term_count, term_cap;
    struct sim_log_mark *committed; /* by index - 1; term 0: not seen */
    uint64_t *digests;              /* by index - 1, as applied; 0: not seen */
    size_t cap;
    uint64_t commit;
};

struct sim_request {
    uint32_t host, life;
    uint32_t job; /* UINT32_MAX: none */
    bool removal; /* a change of the mesh that adds no user */
    enum shoal_sched_request_kind kind;
    bool answered;
    bool linearizable;
    bool read;                /* by a reader: the history judges the answer */
    bool probe;               /* ... and after all faults: it must be an answer */
    enum shoal_err err, want; /* `want`: of a recovery */
    uint64_t asked_ns;
    uint32_t edit, revision; /* EDIT: which one, and from which revision */
    uint32_t infer;          /* of this request, and 1; 0: of none */
};

/* ---- scripts ---- */

enum sim_verb {
    SIM_SUBMIT,
    SIM_KILL,
    SIM_KILL_WORKER,
    SIM_STOP_WORKER,
    SIM_CRASH,
    SIM_DESTROY,
    SIM_START,
    SIM_PAUSE,
    SIM_STALL,
    SIM_SLOW_DISK,
    SIM_FULL_DISK,
    SIM_LOSE, /* destroy, where every group keeps a majority */
    SIM_CUT,
    SIM_CUT_DATA,
    SIM_CUT_LINKS, /* connections alone: datagrams pass */
    SIM_CLOG,
    SIM_PARTITION,
    SIM_HEAL,
    SIM_LOSS,
    SIM_WALL,
    SIM_STOP,
    SIM_DELETE,
    SIM_RECOVER,
    SIM_USER,
    SIM_REMOVE,
    SIM_DRAIN,
    SIM_UNDRAIN,
    SIM_RECOVER_MESH,
    SIM_BURST,
    SIM_EXPECT_ANSWERED,
    SIM_EXPECT_FINISHED,
    SIM_EXPECT_ENGINES,
    SIM_EXPECT_SHRINKS,
    SIM_EXPECT_STATE,
    SIM_EXPECT_ARCHIVED,
    SIM_EXPECT_GAP,
    SIM_SHOW,
};

#define SIM_LEADER 0x10000000u         /* in place of a host: who leads job 1, or the mesh before there is a job */
#define SIM_FOLLOWER (SIM_LEADER + 1u) /* another guardian of it */
#define SIM_DRIVER (SIM_LEADER + 2u)   /* where the driver of job 1 runs */
#define SIM_ALL (SIM_LEADER + 3u)
#define SIM_ANY (SIM_LEADER + 4u)    /* a host with engines, by chance */
#define SIM_STRUCK (SIM_LEADER + 5u) /* where a worker was killed or stopped last */

struct sim_command {
    uint64_t at_ns;
    enum sim_verb verb;
    unsigned line;
    uint32_t a, b; /* hosts from 0, or as above */
    bool one_way;
    bool script;
    bool service; /* SUBMIT: of workers_min to workers_max kernels, each for `number` requests */
    uint32_t workers_min, workers_max;
    uint32_t tasks;
    uint64_t number; /* steps, per mille, nanoseconds, engines */
    uint32_t times;  /* SUBMIT: so many alike */
    uint32_t job;
    uint8_t state;
    uint16_t *part; /* PARTITION: the group of each host, 0: reaches everyone */
    size_t part_count;
};

struct sim_options {
    uint64_t seed;
    uint32_t hosts;
    uint32_t slots;
    uint64_t latency_ns, jitter_ns;
    uint32_t loss, duplicate, slow; /* per mille */
    uint64_t flush_ns;
    uint32_t drift_ppm;  /* at most, either way */
    uint64_t wall_ns;    /* wall clocks are apart by so much, either way */
    bool torn;           /* of a write that was not flushed a part may survive a power cut */
    bool reorder_disk;   /* of several that were not flushed, any may */
    uint64_t archive_ns; /* 0: the default */
    uint32_t loaded_max; /* 0: the default */
    uint32_t readers;    /* clients that ask for jobs, at any host */
    uint64_t think_ns;   /* between two questions of one, about */
    bool probe;          /* at the end, the mesh shows that it answers and that every slot can be given */
};

/* ---- the swarm ---- */

enum sim_swarm_kind {
    SIM_SWARM_KILL,
    SIM_SWARM_CRASH,
    SIM_SWARM_POWER, /* of all hosts at once */
    SIM_SWARM_PAUSE,
    SIM_SWARM_STALL,
    SIM_SWARM_SLOW_DISK,
    SIM_SWARM_FULL,
    SIM_SWARM_CUT,
    SIM_SWARM_PARTITION,
    SIM_SWARM_LINKS,
    SIM_SWARM_CLOG,
    SIM_SWARM_LOSS,
    SIM_SWARM_REPEAT,
    SIM_SWARM_REORDER,
    SIM_SWARM_WORKERS,
    SIM_SWARM_DATA,
    SIM_SWARM_DESTROY,
    SIM_SWARM_JOIN,
    SIM_SWARM_STOP,
    SIM_SWARM_DELETE,
    SIM_SWARM_USER,
    SIM_SWARM_READ,
    SIM_SWARM_DRIFT,
    SIM_SWARM_ARCHIVE,
    SIM_SWARM_PARK,
    SIM_SWARM_ARRAY,
    SIM_SWARM_LONG,
    SIM_SWARM_PROBE,
    SIM_SWARM_WALL,
    SIM_SWARM_TORN, /* from here on each kind is drawn by itself, so that older seeds stay what they were */
    SIM_SWARM_REORDER_DISK,
    SIM_SWARM_SERVICE,
    SIM_SWARM_DRAIN, /* an operator empties a host for a while */
    SIM_SWARM_KINDS,
};

struct sim_script {
    const char *name;
    struct sim_options options;
    struct sim_command *commands;
    size_t count, cap;
    uint32_t version; /* as the file says; 0: it does not */
};

/* ---- the mesh ---- */

struct sim {
    const struct sim_script *script;
    struct sim_options options;
    bool trace;
    uint64_t now_ns;
    uint64_t base_ns; /* when the mesh was ready: script times count from here; UINT64_MAX: not yet */
    uint64_t seq;
    uint64_t events;
    uint64_t second; /* of virtual time, and its events */
    uint32_t second_events;
    uint64_t hash;
    struct sim_due *queue; /* heap */
    size_t queue_count, queue_cap;
    struct sim_event *spare; /* events to be used again, by `next` */
    struct sim_host *hosts;
    uint32_t host_count;       /* those that exist or may be started later */
    struct sim_map host_index; /* of node ids */
    uint32_t **paths;          /* by `from`, then `to`: number from 1 of a path; NULL, 0: none */
    struct sim_path **path_blocks;
    size_t path_count, path_cap;
    uint64_t link_number;
    struct sim_job *jobs;
    uint32_t job_count;
    size_t job_cap;
    struct sim_map job_index; /* of ids that are known */
    struct sim_map workers;   /* of worker ids: the host */
    struct sim_group *groups;
    size_t group_count, group_cap;
    struct sim_map group_index;
    struct sim_map entries;       /* hashes of all that was written, by group, index and term */
    uint32_t users_told;          /* users of the mesh that were acknowledged */
    struct sim_request *requests; /* from 1 */
    uint64_t request_count;
    size_t request_cap;
    uint64_t mesh_request;
    bool mesh_made;
    bool settling;              /* all is healed: nobody reads any more */
    bool next_read, next_probe; /* of the request that is being made */
    bool explained;             /* what the probe waits for */
    uint64_t probe_ns;
    struct shoal_rand reader_chance;
    uint64_t reads, reads_refused; /* by readers; answered with "cannot tell now" */
    uint32_t services;
    struct sim_infer *infers;
    size_t infer_cap;
    uint32_t infer_count, infer_first; /* all before `infer_first` are over */
    uint32_t infers_open, infers_answered;
    uint32_t edits;
    uint32_t next_infer;       /* of the request that is being made */
    uint64_t look_late_ns;     /* how late a look may be that is under way */
    uint64_t services_calm_ns; /* since when no request is open, all faults healed */
    bool services_probed;
    struct shoal_rand service_chance;
    struct shoal_gossip_pool *pool;
    struct shoal_sched_actions *sched_actions;
    struct shoal_swim_actions *swim_actions;
    struct shoal_worker_message *message; /* scratch */
    struct shoal_rand command_chance;
    /* Counts for the summary line. */
    uint64_t runs, epochs, datagrams, lost, elections, restarts, strikes, shrinks;
    uint64_t gap_ns; /* longest that a job waited beside a free slot before its script ran, and which job */
    uint32_t gap_job;
    uint32_t struck; /* host, where a worker was killed or stopped last; UINT32_MAX: none */
    bool failed;
    char failure[1024];
};

/* sim.c */
struct sim_event *sim_push(struct sim *sim, enum sim_kind kind, uint32_t to, uint64_t delay_ns);
void sim_event_bytes(struct sim_event *event, struct shoal_view bytes);
struct shoal_view sim_copy(struct shoal_view bytes);
void *sim_alloc(size_t bytes);
void *sim_grow(void *array, size_t *cap, size_t need, size_t item);
void sim_stream(const struct sim *sim, struct shoal_rand *rand, const char *label, uint64_t a, uint64_t b);
uint64_t sim_about(struct shoal_rand *rand, uint64_t mean_ns); /* 1/2 to 3/2 of the mean */
void sim_mix(struct sim *sim, uint64_t word);
uint64_t sim_hash_bytes(struct shoal_view bytes);
uint64_t sim_key_job(struct shoal_job_id id);
bool sim_run(struct sim *sim); /* false: it failed */
struct sim *sim_create(const struct sim_script *script, bool trace);
void sim_destroy(struct sim *sim);
__attribute__((format(printf, 2, 3))) void sim_trace(const struct sim *sim, const char *format, ...);
__attribute__((format(printf, 2, 3))) void sim_fail(struct sim *sim, const char *format, ...);

/* sim_host.c */
void sim_host_init(struct sim *sim, uint32_t index);
void sim_host_boot(struct sim_host *host); /* power on, and start the agent */
void sim_agent_start(struct sim_host *host);
void sim_agent_kill(struct sim_host *host); /* workers live on */
void sim_host_crash(struct sim_host *host); /* power off */
void sim_host_destroy(struct sim_host *host);
bool sim_may_lose(struct sim *sim, uint32_t host); /* every group keeps a majority without it */
uint64_t sim_host_now(const struct sim_host *host);
uint64_t sim_host_wall_ms(const struct sim_host *host);
uint64_t sim_host_true(const struct sim_host *host, uint64_t at_ns); /* when the host's clock shows it */
void sim_sched_step(struct sim_host *host, const struct shoal_sched_event *event);
void sim_swim_step(struct sim_host *host, const struct shoal_swim_event *event);
void sim_host_event(struct sim_host *host, struct sim_event *event);
void sim_answer(struct sim_host *host, const struct shoal_sched_event *event, uint64_t delay_ns);
void sim_host_answer(struct sim_host *host, const struct shoal_host_event *event, uint64_t delay_ns);
void sim_host_step(struct sim_host *host, const struct shoal_host_event *event);
bool sim_blobs_are_here(const struct sim_host *host, uint32_t job);     /* of its archive */
uint32_t sim_host_find(const struct sim *sim, struct shoal_node_id id); /* UINT32_MAX: none */
uint64_t sim_request(struct sim_host *host, struct shoal_sched_request *request, uint32_t job);
void sim_host_publish(struct sim_host *host, const struct shoal_record *record);
void sim_drain(struct sim_host *host, bool on);
void sim_remove(struct sim *sim, uint32_t at); /* the host, from the mesh; asked of the first other one */
void sim_recover_mesh(struct sim *sim, uint32_t at);
void sim_ask_mesh(struct sim *sim, uint32_t at, const char *user);

/* sim_net.c */
struct sim_path *sim_path(struct sim *sim, uint32_t from, uint32_t to);
const struct sim_path *sim_path_seen(const struct sim *sim, uint32_t from,
                                     uint32_t to); /* one without any faults, where there is none yet */
bool sim_link_is_up(const struct sim *sim, uint32_t a, uint32_t b, uint64_t *number);
bool sim_can_talk(const struct sim *sim, uint32_t a, uint32_t b);  /* both ways, both powered */
bool sim_can_train(const struct sim *sim, uint32_t a, uint32_t b); /* workers of a with those of b */
void sim_datagram(struct sim *sim, enum sim_kind kind, uint32_t from, uint32_t to, struct shoal_view bytes);
void sim_frame(struct sim *sim, uint32_t from, uint32_t to, bool bulk, struct shoal_view bytes);
void sim_pump(struct sim *sim, const struct sim_event *event);
void sim_want(struct sim *sim, uint32_t from, uint32_t to, bool wanted);
void sim_dial(struct sim *sim, const struct sim_event *event);
void sim_links_lost(struct sim *sim, uint32_t host, bool powered);
void sim_link_check(struct sim *sim, const struct sim_event *event);
void sim_cut(struct sim *sim, uint32_t from, uint32_t to);
void sim_cut_links(struct sim *sim, uint32_t from, uint32_t to);
void sim_net_heal(struct sim *sim);
void sim_net_deinit(struct sim *sim);

/* sim_store.c */
void sim_persist(struct sim_host *host, const struct shoal_sched_action *action);
void sim_remove_group(struct sim_host *host, struct shoal_job_id group);
void sim_disk_load(struct sim_host *host, struct shoal_job_id group); /* a parked group comes back */
void sim_written(struct sim_host *host);
void sim_disk_crash(struct sim_host *host);
void sim_disk_destroy(struct sim_host *host);
void sim_disk_restore(struct sim_host *host);
uint64_t sim_disk_flush_age(const struct sim_host *host);
/* The index of the snapshot that a parked group has here, with nothing behind it; 0: it is not parked. */
uint64_t sim_disk_parked_at(const struct sim_host *host, struct shoal_job_id group);
void sim_keep(struct shoal_buf *to, struct shoal_view bytes);
void sim_disk_deinit(struct sim_host *host);

/* sim_files.c */
/* Written now, held in `take_ns`. `told`: somebody hears of that then. */
void sim_file_put(struct sim_host *host, enum sim_file_kind kind, uint64_t key, uint64_t take_ns, bool told);
void sim_file_mesh(struct sim_host *host, struct shoal_view bytes);
void sim_file_remove(struct sim_host *host, enum sim_file_kind kind, uint64_t key);
bool sim_file_here(const struct sim_host *host, enum sim_file_kind kind, uint64_t key);
void sim_files_end(struct sim_host *host, bool powered); /* the agent ends, or the power does */
void sim_files_deinit(struct sim_host *host);

/* sim_worker.c */
void sim_worker_run(struct sim_host *host, const struct shoal_host_order *order);
void sim_worker_order(struct sim_host *host, const struct shoal_host_order *order);
void sim_worker_told(struct sim_host *host, const struct shoal_host_order *order);
void sim_revoke(struct sim_host *host, struct shoal_job_id job, uint64_t word);
void sim_job_open(struct sim_host *host, struct shoal_job_id job, uint32_t generation, struct shoal_view spec);
void sim_job_closed(struct sim_host *host, struct shoal_job_id job);
void sim_runners_found(struct sim_host *host);
void sim_workers_crash(struct sim_host *host);
void sim_worker_kill(struct sim_host *host, struct sim_worker *worker, uint64_t grace_ns);
void sim_worker_strike(struct sim_host *host, bool stop); /* one of its engines, by chance */
static inline bool sim_worker_stands(const struct sim_worker *worker)
{
    return worker->frozen || worker->stopped || worker->dead;
}
void sim_worker_event(struct sim_host *host, const struct sim_event *event);
uint32_t sim_job_find(const struct sim *sim, struct shoal_job_id id); /* UINT32_MAX: none */
void sim_job_known(struct sim *sim, uint32_t job, struct shoal_job_id id);

/* sim_train.c */
void sim_train(struct sim *sim, uint32_t job);
void sim_enter(struct sim_host *host, struct sim_worker *worker, const struct shoal_worker_epoch *epoch);
void sim_close(struct sim_host *host, struct sim_worker *worker);
struct sim_worker *sim_worker_find(struct sim *sim, uint64_t id);
void sim_work_later(struct sim_host *host, const struct sim_worker *worker, enum sim_work work, uint64_t delay_ns);

/* sim_check.c */
void sim_check_led(struct sim_host *host, struct shoal_job_id group, uint64_t term);
void sim_check_host(struct sim_host *host);
void sim_check_persist(struct sim_host *host, const struct shoal_sched_action *action);
void sim_check_restored(struct sim_host *host, const struct sim_disk_group *group);
void sim_check_forget(struct sim_host *host);
void sim_check_removed(struct sim_host *host, struct shoal_job_id group);
void sim_check_run(struct sim_host *host, const struct sim_worker *fresh);
void sim_check_alone(struct sim_host *host, const struct sim_worker *runs);
bool sim_converged(struct sim *sim, char *why, size_t cap);
bool sim_job_archived(struct sim *sim, uint32_t job, char *why, size_t cap);
bool sim_job_state(struct sim *sim, uint32_t job, uint8_t *state); /* by the newest replica; false: none */
uint32_t sim_job_engines(struct sim *sim, uint32_t job);
uint32_t sim_leader(struct sim *sim, struct shoal_job_id group); /* UINT32_MAX: none */
void sim_check_deinit(struct sim *sim);

/* sim_durable.c */
struct shoal_sched_group_status;
void sim_check_votes(struct sim_host *host, const struct shoal_sched_group_status *status, uint64_t term);
void sim_check_flushed(struct sim_host *host, const struct shoal_sched_group_status *status);
void sim_check_told(struct sim *sim, uint32_t at, struct shoal_job_id job);
void sim_check_entry(struct sim_host *host, struct shoal_job_id id, const struct shoal_sched_entry *entry);
void sim_check_hard(struct sim_host *host, const struct sim_disk_group *before, const struct sim_disk_group *after);

/* sim_script.c */
void sim_script_deinit(struct sim_script *script);
uint32_t sim_script_hosts(const struct sim_script *script); /* those that there are or may be */
bool sim_script_read(struct sim_script *script, const char *path, char *error, size_t cap);
void sim_script_random(struct sim_script *script, uint64_t seed);
void sim_script_begin(struct sim_script *script, const char *name); /* empty, with the defaults */
struct sim_command *sim_script_add(struct sim_script *script, enum sim_verb verb, uint64_t at_ns);

/* sim_text.c */
void sim_script_write(FILE *to, const struct sim_script *script);

/* sim_shrink.c: takes out what the failure does not need. False: it does not fail. */
bool sim_shrink(struct sim_script *script, char *cause, size_t cap);

/* sim_swarm.c */
struct sim_scenario {
    const char *name, *what;
    uint64_t never, always; /* bits of kinds */
    uint32_t hosts;         /* 0: drawn */
    uint64_t span_ns;       /* 0: drawn */
};
const struct sim_scenario *sim_scenario_at(size_t i); /* NULL: no more */
const struct sim_scenario *sim_scenario_find(const char *name, size_t len);
/* `more`: what the command line adds to the scenario. */
void sim_script_swarm(struct sim_script *script, uint64_t seed, const struct sim_scenario *scenario,
                      const struct sim_scenario *more);
const char *sim_swarm_kind_name(unsigned kind); /* NULL: no such kind */

/* sim_client.c */
void sim_client(struct sim *sim, uint32_t client); /* asks, and thinks */
void sim_client_told(struct sim *sim, const struct sim_request *request, const struct shoal_sched_action *action);
void sim_probe_begin(struct sim *sim);
bool sim_probe_done(struct sim *sim, char *why, size_t cap);
void sim_command(struct sim *sim, const struct sim_command *command);
void sim_submit(struct sim *sim, uint32_t job);
void sim_ask_about(struct sim *sim, uint32_t job, enum shoal_sched_request_kind kind);
void sim_on_reply(struct sim *sim, const struct shoal_sched_action *action);
void sim_heal(struct sim *sim);

#endif
