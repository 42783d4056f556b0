/* The agent's own parts and how they hang together. One loop thread owns all of it.
 *
 *   datagrams --> membership (gossip) --+--> control (shoal_sched) --> workers, blobs, store, links
 *   links ------> control, peer calls   |         ^
 *   store ------> control               |         | requests
 *   runners ----> control               +---- backend <--- http
 *
 * control decides, the others carry out. Each part below is one file, named in its comment. */
#ifndef SHOAL_NODE_AGENT_H
#define SHOAL_NODE_AGENT_H

#include <uv.h>

#include "shoal/blob.h"
#include "shoal/cli.h"
#include "shoal/control_record.h"
#include "shoal/http.h"
#include "shoal/identity.h"
#include "shoal/job.h"
#include "shoal/job_facts.h"
#include "shoal/job_index.h"
#include "shoal/link.h"
#include "shoal/metric_text.h"
#include "shoal/sched.h"
#include "shoal/sched_look.h"
#include "shoal/store.h"

#include "membership.h"
#include "node/link/peer_call.h"
#include "node/runner/workers.h"
#include "node/serve/serve_host.h"

#define SHOAL_VERSION "0.1"
#define AGENT_PATH_BYTES 512
#define AGENT_LOG_BYTES 160 /* of a log, relative to the result folder */
/* Jobs of which something runs here, or files are on their way, or a ledger is held. An ended one is read from disk. */
#define AGENT_JOBS_MAX 1024
#define AGENT_REQUESTS_MAX 1024
#define AGENT_SPARE_LOG_BYTES 100 /* "app." and a task's name */
/* A longer turn of the loop is counted as late. */
#define AGENT_TURN_NS (20 * SHOAL_MS)
#define AGENT_DATAGRAM_GOSSIP 'g'
#define AGENT_DATAGRAM_SUPPORT 's'
#define AGENT_DATAGRAM_REMOVED 'r' /* to a node that was removed from the mesh, in answer to what it sent */

struct agent;
struct file_queue;
struct infer_call;
struct ledger;
struct service_knobs;
struct tree;

#define AGENT_DELETED_MAX 256
/* Of jobs that this node keeps, where they ran: what they wrote last may still come from there. */
#define AGENT_RAN_MAX 256
#define AGENT_RAN_HOSTS_MAX 8
#define AGENT_DEVICE_BYTES 96 /* NVML's bound of a UUID */
#define AGENT_INTERFACE_BYTES 16 /* IF_NAMESIZE, with its NUL */

struct agent_device {
    char uuid[AGENT_DEVICE_BYTES]; /* "GPU-..." or "MIG-...": what CUDA_VISIBLE_DEVICES takes */
    char name[AGENT_DEVICE_BYTES];
    uint32_t mib; /* its memory; 0: not told */
};

struct agent_devices {
    uint32_t count;
    struct agent_device list[SHOAL_SLOTS_MAX];
};

struct agent_settings {
    char data[AGENT_PATH_BYTES];
    char name[64];
    char domain[SHOAL_SCHED_DOMAIN_BYTES];
    char metrics_token[SHOAL_METRICS_TOKEN_BYTES]; /* "": none */
    char api_host[64];
    char fabric_home[AGENT_PATH_BYTES];
    char python[AGENT_PATH_BYTES];
    uint32_t serves;         /* SHOAL_SERVES_*: frameworks that the Python of jobs has; 0: none, and so no slots are offered */
    char transport[8];       /* between hosts: auto, ucx, tcp */
    char fabric_trusted[64]; /* interfaces where training data between hosts goes in the open, or empty */
    char fabric_sealed[64];  /* else the address whose interface carries it sealed */
    struct shoal_address address; /* to bind and advertise: datagrams and links */
    char interface[AGENT_INTERFACE_BYTES]; /* that has it; "": none was found */
    uint16_t api_port;
    bool api_plain;
    struct shoal_address seeds[SHOAL_SWIM_SEEDS_MAX];
    size_t seed_count;
    size_t told_count; /* of them: by the operator; the others were members when this host last ran */
    uint32_t slots;
    uint8_t device; /* enum shoal_sched_device */
    struct agent_devices devices; /* with more slots than devices, slots share them in turn */
    uint32_t shares;              /* of each of `slots`, which are cards that services may share; 0: none are */
    bool simulated;
    char numeric_class[SHOAL_CLASS_TEXT_BYTES];
    uint64_t prefill_bytes;
    uint64_t store_map_bytes; /* 0: the default */
    uint32_t log_max_mib;
    uint32_t files_max; /* of one job's result folder */
    uint64_t files_gib;
    uint32_t archive_s;
    uint64_t warm_memory_bytes; /* of interpreters that wait with a framework loaded; 0: none does */
    bool verbose;
};

/* A worker that RUN asked for and that waits for its job's files, or that runs. */
struct agent_run {
    bool used;
    bool started;
    bool ordered; /* to end, by its job's leader or by the slots' table */
    uint64_t worker_id;
    uint32_t slot; /* SHOAL_SLOT_NONE: a driver, which takes none */
    uint8_t role;  /* enum shoal_job_role */
    uint8_t token[SHOAL_JOB_TOKEN_BYTES];
    uint64_t lease_generation;
    uint64_t deadline_ns;
    uint32_t attempt;
    uint32_t index; /* of an array's task */
    uint64_t lines_ns; /* when the first of `lines` was logged */
    unsigned lines;    /* of what it says, in the agent's log */
    char task[96];  /* <exec id>-task12n-<5 characters>; of an array: <exec id>-<index>; of a service: <exec id>-task12n-<index>-<5
                     * characters> */
};

enum agent_files { AGENT_FILES_NONE, AGENT_FILES_FETCHING, AGENT_FILES_READY, AGENT_FILES_FAILED };

/* Folders that silent jobs have left, for the next ones (agent_folders.c). */
struct agent_spares {
    unsigned count;
    unsigned temporaries; /* that were moved there so far: the name of the next one */
    char logs[SHOAL_SPARE_FOLDERS_MAX][AGENT_SPARE_LOG_BYTES];
};

/* A job of which something runs here, or whose files are kept here. */
struct agent_job {
    bool used;
    bool opened;     /* JOB_OPEN: something of it runs, or will run, here */
    bool reopened;   /* ... after this agent's restart */
    bool cold_said;  /* a run was to be warm, and the launcher's log says why it is not */
    bool notes_said; /* the launcher's log names the options that have no effect */
    struct shoal_job_id id;
    char text[SHOAL_JOB_ID_TEXT_BYTES];
    uint32_t generation;
    uint32_t call; /* of train(), the newest that a worker here has been told of */
    struct shoal_buf spec_bytes;
    struct shoal_job_spec spec; /* views into spec_bytes */
    bool document_asked; /* of a service: its replicas start when it has come, and lies beside the specification */
    struct shoal_node_id guardians[SHOAL_SCHED_SOURCES_MAX]; /* as a host that is none of them was told */
    unsigned guardian_count;
    enum agent_files files; /* of the submitted code */
    struct unpacking *unpacking; /* of it, under way; NULL: none */
    uint32_t code_whole;    /* files of it that were unpacked, whose content nobody has changed; 0: not known */
    uint32_t code_files;    /* of the submitted code: they do not count as the job's */
    char over[200];         /* it has written too much, so it is ended here, and why; "": it has not */
    char failure[SHOAL_JOB_REASON_BYTES];
    bool failed_for_all; /* another host would do no better with these files */
    char result_dir[AGENT_PATH_BYTES];
    char work_dir[AGENT_PATH_BYTES];
    char main_path[AGENT_PATH_BYTES];
    struct agent_run runs[SHOAL_RUNNER_WORKERS_MAX];
    struct ledger *ledger;
    struct tree *tree; /* of the result folder, while something runs here */
    char spare_log
        [AGENT_SPARE_LOG_BYTES]; /* below log/ of folders that were another job's, until it is given its name */
    char last_task[AGENT_SPARE_LOG_BYTES - 4];
    uint64_t touched_ns; /* when it was last needed, or closed */
};

typedef void agent_reply_fn(void *arg, enum shoal_err err, const struct shoal_sched_action *reply);

struct agent_request {
    uint64_t id; /* 0: free */
    agent_reply_fn *done;
    void *arg;
    uint8_t *kept; /* token and command of one that was made within a step; NULL: the caller's live as long */
};

/* Between two copies of the slots' table, 200 ms apart; one more is forgotten at once. */
#define AGENT_ENDED_RUNS_MAX 256

struct agent {
    uv_loop_t loop;
    struct agent_settings settings;
    struct shoal_identity identity;
    struct passwords *passwords; /* NULL until somebody logs on */
    int lock_fd;
    bool boot_is_new; /* this host has started anew since the agent before: files may have lost what was not flushed */
    bool stopping;
    uint64_t ended_runs[AGENT_ENDED_RUNS_MAX]; /* agent_run_forget_later() */
    unsigned ended_run_count;
    uint64_t ended_run_total;    /* that there ever were */
    struct shoal_buf slots_next; /* the newest copy of the slots' table, not yet on its way to the disk */
    uint64_t slots_next_covered; /* the ended runs of which it says that they are over, as ended_run_total */
    uint64_t slots_covered;      /* the same of the one that is being written */
    bool slots_keeping;
    int exit_code;
    uint64_t start_ns;
    uint32_t descriptors; /* that it may have open */
    struct shoal_link *link;
    struct shoal_datagram *datagram;
    struct membership *membership;
    struct peer_calls *calls;
    struct workers *workers;
    struct shoal_store *store;
    struct shoal_cache *cache;
    struct shoal_index *index; /* of jobs, for lists */
    struct shoal_blobs *blobs;
    struct file_queue *files; /* agent_files.c */
    struct shoal_http *http;
    uv_timer_t health_timer;
    uint64_t health_due_ns;
    uint64_t health_cpu_ns; /* what the loop's thread had computed when health was last looked at */
    unsigned health_ticks;
    uint64_t room_due_ns, room_bytes; /* agent_room.c: when the disks are looked at next, and what is free on the fullest */
    bool room_looking, room_lacks;
    uint64_t loop_lag_ns; /* worst of the last second */
    uv_prepare_t turn_end;
    uint64_t turn_began_ns, turn_idle_ns; /* at the end of the last turn: the time, and what was waited until then */
    struct shoal_histogram turns;         /* how long they took */
    uint64_t turn_longest_ns;             /* since the start */
    uint64_t turn_cpu_ns;                 /* at the end of the last turn: what the loop's thread has computed */
    uint64_t turn_cpu_longest_ns;         /* of one turn: its own work, however busy the host is */
    uint64_t turns_late;                  /* longer than AGENT_TURN_NS */
    uv_signal_t signals[2];
    char scheduling[64]; /* the class we got */

    /* control (agent_control.c) */
    struct shoal_sched *sched;
    struct shoal_sched_actions *actions;
    uv_timer_t sched_timer;
    bool stepping;
    struct shoal_sched_event *deferred; /* events raised by actions, for after the step; by value, without views */
    size_t deferred_count, deferred_cap;
    struct shoal_job_id loads[SHOAL_SCHED_LOADS_MAX]; /* parked groups that the core wants */
    unsigned load_count;
    uint64_t next_request;
    struct agent_request requests[AGENT_REQUESTS_MAX];
    struct agent_publish *publishes; /* records for the next turn: gossip's steps do not nest in ours */
    uv_timer_t publish_timer;
    uint64_t mesh_version, mesh_config; /* of the copy held here, as its facts say */
    bool draining, drained;             /* agent_drain.c */
    uint64_t leave_ns;                  /* it has said goodbye, and stops then; 0: it stays */
    bool mesh_news;                     /* the copy of the mesh is new: who was removed is looked at in the next turn */
    uint64_t mesh_heard;

    struct archive_index *archive; /* agent_archive_index.c */

    /* services (agent_serve.c) */
    struct serve_host *serve;
    struct served *served;          /* requests of other nodes that kernels of this host have (backend_infer_serve.c) */
    uint64_t served_bytes;          /* of their bodies */
    uint64_t infer_answer_bytes;    /* of answers that come in pieces, and are put together here */
    uv_timer_t infer_timer;         /* while something waits for room in a link's queue */
    bool infer_stuck;               /* such a thing was seen */
    void (*services_down)(struct agent *agent, struct shoal_node_id node); /* a link broke */
    struct infer_call *infer_calls; /* all requests of clients of this node */
    struct infer_call *infers; /* requests that another host has (backend_infer.c) */
    struct infer_call *held;   /* that wait for a kernel of a service that has none ready */
    uint64_t infer_next;
    uint64_t infer_looked;     /* the request that the last look at those that wait at hosts ended with; 0: it saw them all */
    struct scale_state *scales;                 /* of the services that are led here (backend_scale.c) */
    void (*services_look)(struct agent *agent); /* each tick: who waits for kernels, and how many there are to be */
    size_t (*services_held)(struct agent *agent, struct shoal_serving *held, size_t cap); /* for gossip */
    bool serving_changed;                                                                 /* others are to hear of it */
    struct shoal_serving_record serving_told; /* what they have heard last */

    /* lists of files that clients of this node have asked for, and that are made here (backend_files.c) */
    unsigned lists_here;
    struct list_call *lists_wait, *lists_last;

    /* looks at logs (backend_logs.c) */
    struct log_call *log_waits; /* of clients that wait for more of one */
    unsigned log_wait_count;
    uint64_t log_turn_ms, log_turn_ns; /* the turn, and what such looks have taken of it */

    /* jobs (agent_jobs.c) */
    struct agent_job *jobs[AGENT_JOBS_MAX];
    struct ledger_looks *ledger_looks; /* agent_ledger.c */
    struct audit_queue *audits;        /* agent_audit.c */
    struct making *makings;            /* agent_archive.c, N6 */
    struct listing *listings;          /* agent_manifest.c, M1 */
    bool makings_start, listings_start;
    struct curve_queue *curves;        /* agent_metrics.c */
    struct agent_spares spares;
    uv_timer_t tree_timer;
    uv_timer_t merge_timer;
    unsigned tree_scans;
    struct agent_ran {
        struct shoal_job_id job;
        struct shoal_node_id hosts[AGENT_RAN_HOSTS_MAX];
        unsigned host_count;
    } ran[AGENT_RAN_MAX];
    unsigned ran_next;
    struct shoal_job_id deleted_jobs[AGENT_DELETED_MAX]; /* the last ones: pieces of their files may still come */
    unsigned deleted_next;
};

/* agent_control.c */
enum shoal_err agent_control_create(struct agent *agent, struct shoal_msg *msg) SHOAL_MUST_CHECK;
void agent_event(struct agent *agent, struct shoal_sched_event *event);
void agent_host_event(struct agent *agent, const struct shoal_host_event *host);
void agent_request(struct agent *agent, struct shoal_sched_request *request, agent_reply_fn *done, void *arg);
void agent_node_event(struct agent *agent, const struct shoal_member *member);
void agent_on_record(struct agent *agent, const struct shoal_record *record);
void agent_publish_facts(struct agent *agent);

void agent_publish(struct agent *agent, const struct shoal_record *record);

/* agent_serve.c: replicas of services on this host */
void agent_serve_create(struct agent *agent);
/* The process of a replica is started, or was found again. */
void agent_serve_started(struct agent *agent, const struct agent_job *job, const struct agent_run *run);
void agent_serve_ended(struct agent *agent, uint64_t worker_id);
/* The mesh has no such version of a service any more. */
void agent_serve_forget(struct agent *agent, struct shoal_job_id job);
/* Asks the service's group how it is to run now; agent_job_asked() follows. */
void agent_serve_ask(struct agent *agent, struct agent_job *job);
/* By the document that lies here, which the kernel starts with; zeroes: there is none. */
void agent_serve_knobs(const struct agent *agent, const struct agent_job *job, struct service_knobs *knobs);
/* A file in the folder of that job becomes these bytes, not flushed. False: the job has laid something in its place. */
SHOAL_MUST_CHECK bool agent_serve_write(const struct agent *agent, struct shoal_job_id job, const char *name,
                                        struct shoal_view document);
/* The path of the file that holds the group's answer. */
void agent_serve_document(const struct agent *agent, const struct agent_job *job, char *path, size_t cap);
/* A worker is to end; a replica that has requests in hand ends when it has answered them. */
void agent_serve_stop(struct agent *agent, uint64_t worker_id, uint64_t grace_ns);
void agent_serve_look(struct agent *agent); /* now and then: others hear how much is in hand here */
/* The path at which a replica's kernel is to listen. */
void agent_serve_socket(const struct agent *agent, const struct agent_job *job, const struct agent_run *run, char *path,
                        size_t cap);

/* agent_drain.c: this host is drained, and leaves */
void agent_drain_read(struct agent *agent);
SHOAL_MUST_CHECK enum shoal_err agent_drain(struct agent *agent, bool on, struct shoal_msg *msg);
/* EXISTS: something is left to be moved. */
SHOAL_MUST_CHECK enum shoal_err agent_leave(struct agent *agent, bool force, struct shoal_msg *msg);
void agent_drain_look(struct agent *agent); /* now and then */

/* agent_copy.c. EXISTS: the data folder is a copy, and the agent of the original runs. */
SHOAL_MUST_CHECK enum shoal_err agent_copy_check(const struct agent *agent, struct shoal_msg *msg);
void agent_copy_note(struct agent *agent); /* this agent listens */

/* agent_removed.c: who was removed from the mesh is not linked, not heard and not told of */
bool agent_admits(const struct agent *agent, struct shoal_node_id node);
void agent_removed_look(struct agent *agent); /* the copy of the mesh is new */
/* A datagram of a node that was removed came: it is told so. */
void agent_removed_tell(struct agent *agent, struct shoal_node_id node, struct shoal_address address);
/* Another member says that this one was removed. */
void agent_removed_heard(struct agent *agent, struct shoal_address address);

/* agent_service.c: a service of this host's service manager; SIGHUP reads the configuration again */
void agent_service_init(void); /* first of all: what the manager has put into the environment is taken out of it */
SHOAL_MUST_CHECK enum shoal_err agent_service_create(struct agent *agent, const struct shoal_cli_agent *given,
                                                     struct shoal_msg *msg);
void agent_service_ready(const struct agent *agent); /* every verb is served from now on */
void agent_service_look(struct agent *agent);        /* each health tick: says that the loop turns */
void agent_service_stopping(void);
void agent_service_failed(const char *text); /* it cannot start */

/* agent_peers.c: the members that this host knew when its agent last ran */
void agent_peers_read(struct agent_settings *settings); /* they become seeds, too */
void agent_peers_note(struct agent *agent, const struct shoal_member *member);
uint32_t agent_peers_ids(struct shoal_node_id *ids, uint32_t cap); /* as they were when this agent started; how many */
/* The addresses of those of which nothing was heard since then. Returns how many. */
size_t agent_peers_unheard(const struct agent *agent, char (*names)[64], size_t cap);
void agent_publish_load(struct agent *agent);
bool agent_load_of(struct agent *agent, struct shoal_node_id node, struct shoal_job_id job, uint32_t *load_milli,
                   uint32_t *pause_us);
uint64_t agent_now_ns(void);
uint64_t agent_wall_ms(void);
/* agent_fault.c: where a test lets this agent die. */
void agent_fault_point(const char *point);
/* agent_memory.c: what the limits imply, in all and by table. */
uint64_t agent_memory_mib(void);
void agent_memory_print(void);
int agent_doctor(const struct agent *agent, bool json, bool verbose); /* prints, and is the exit code */

/* agent_tls.c: for the node's certificate; wipe it after use. */
void agent_tls_names(const struct shoal_identity *identity, struct shoal_tls_names *names);
/* Makes <data>/tls/ca.crt, as shoal_tls_ca_ready(); with `data` NULL it only tells the fingerprint. */
SHOAL_MUST_CHECK enum shoal_err agent_tls_ready(const char *data, const struct shoal_identity *identity,
                                                char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES], struct shoal_msg *msg);

void agent_log(const struct agent *agent, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* agent_jobs.c: job folders, environments, starts */
void agent_jobs_create(struct agent *agent);
struct agent_job *agent_job_find(struct agent *agent, struct shoal_job_id id);
bool agent_job_known(struct agent *agent, struct shoal_job_id id); /* it runs here, or this node guards it */
struct agent_job *agent_job_need(struct agent *agent, struct shoal_job_id id); /* makes it; NULL: the table is full */
/* The guardians of the job, as its leader has told this host. */
void agent_job_guarded(struct agent_job *job, const struct shoal_node_id *nodes, unsigned count);
void agent_job_open(struct agent *agent, struct shoal_job_id id, uint32_t generation, struct shoal_view spec);
void agent_job_reopen(struct agent *agent, struct agent_job *job, uint32_t generation);
void agent_job_closed(struct agent *agent, struct shoal_job_id id);
void agent_job_left(struct agent *agent, struct shoal_job_id id);
void agent_job_deleted(struct agent *agent, struct shoal_job_id id);
void agent_job_archived(struct agent *agent, struct shoal_job_id id, bool keep);
void agent_job_run(struct agent *agent, const struct shoal_host_order *order);
void agent_job_asked(struct agent *agent, struct agent_job *job); /* what waited for agent_serve_ask() starts */
/* A call's bundle lies at `path` below the job's folder: the engine server finds it under one name. */
void agent_job_call(struct agent *agent, const struct agent_job *job, const char *path);
/* The file that holds what `run` prints; `end` is "stdout" or "stderr". */
void agent_run_log(const struct agent_run *run, const char *end, char *path, size_t cap);
/* The same of a task of an array, relative to the job's result folder. */
void agent_task_log(uint32_t index, uint32_t attempt, const char *end, char *path, size_t cap);
/* A line of the launcher's log, which says which worker was started where, and how one ended that was not to end. A job of one process
 * has nothing to tell apart, and no such file. */
void agent_run_launcher(const struct agent_job *job, const struct agent_run *run, const char *text);
/* What the launcher's log says of its start on `host`, and the agent's log of its end. */
void agent_run_start_text(const struct agent_run *run, const char *host, char *text, size_t cap);
bool agent_run_ended_as_ordered(const struct agent_run *run, int32_t status, bool signalled);
void agent_run_end_text(const struct agent_run *run, int32_t status, bool signalled, const char *why, char *text, size_t cap);
void agent_job_cold(void *arg, struct shoal_job_id id, const char *why); /* `arg` is the agent */
struct agent_run *agent_run_find(struct agent *agent, uint64_t worker_id, struct agent_job **job);
bool agent_run_restore(struct agent *agent, struct agent_job *job, uint64_t worker_id, struct agent_run *run);
/* It has ended: what is kept of it goes once the copy of the slots' table says so. */
void agent_run_forget_later(struct agent *agent, uint64_t worker_id);
void agent_runs_kept(struct agent *agent,
                     uint64_t total); /* that copy was written; it covers so many of all there were */
void agent_job_folder(const struct agent *agent, struct shoal_job_id id, char *path, size_t cap);
/* Forgets what has ended. */
void agent_jobs_sweep(struct agent *agent);
unsigned agent_jobs_count(const struct agent *agent);
/* The result folder that lies here of a job of unknown owner; "": none. */
void agent_find_result_dir(const struct agent *agent, struct shoal_job_id id, char path[AGENT_PATH_BYTES]);
bool agent_job_is_single(const struct agent_job *job);

/* agent_folders.c: folders, and those that silent jobs leave to others */
void agent_folders_create(struct agent *agent);
void agent_folders_make(const char *path); /* and those above it */
void agent_folders_open(struct agent *agent, struct agent_job *job);
void agent_folders_code(struct agent_job *job, const char *path); /* for the submitted files */
void agent_folders_log(struct agent_job *job, const char *path);  /* for the log of one process */
void agent_folders_leave(struct agent *agent, struct agent_job *job);
void agent_folders_temporary(const struct agent *agent, struct shoal_job_id id, char path[AGENT_PATH_BYTES]); /* F3 */
void agent_folders_drop_temporary(struct agent *agent, struct shoal_job_id id); /* once nobody of the job is here */
/* Both, "" for none, after the pieces of files that have come here so far are written. */
void agent_folders_remove(struct agent *agent, const char *folder, const char *other);
void agent_folders_clear(struct agent *agent, const char *path); /* where a file is to be, of what is none */
void agent_folders_drop_bundle(const struct agent *agent, const struct agent_job *job); /* of a driver that has ended */

/* agent_blobs.c: fetch, replicate, manifests, materialise */
void agent_blobs_create(struct agent *agent);

/* agent_bundles.c: inline bundles, put into the blob store when it has time, or when they are asked for. */
typedef void agent_bundle_fn(void *arg, enum shoal_err err, const char *text);
void agent_bundle_put(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, struct shoal_view bytes);
/* True: it waited and is put now; `done` says when. False: none such waits. */
bool agent_bundle_now(struct shoal_hash hash, agent_bundle_fn *done, void *arg);
void agent_bundle_cut(struct shoal_job_id job);  /* the group's log is about to lose its first entries */
void agent_bundle_drop(struct shoal_job_id job); /* the group is gone */
/* The job is gone from this host: it holds no blob any more, nor will what is being put for it be held. */
void agent_bundle_let_go(struct agent *agent, struct shoal_job_id job);
void agent_fetch(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash,
                 const struct shoal_node_id *sources, unsigned source_count);
void agent_manifest(struct agent *agent, struct shoal_job_id job, uint32_t generation, uint32_t call);
typedef void agent_path_fn(void *arg, enum shoal_err err, const char *text_or_path);
/* The blob as a local file below the job's folder; it is there when `done` runs. */
void agent_materialise(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, agent_path_fn *done,
                       void *arg);
typedef void agent_blob_fn(void *arg, enum shoal_err err, const char *text, struct shoal_hash hash);
/* Store a local file as a blob held by the job, here and on one more of its guardians if there is one. */
void agent_store_file(struct agent *agent, struct shoal_job_id job, const char *path, agent_blob_fn *done, void *arg);
/* The same of a file that is open; `fd` stays the caller's, and may be closed at once. */
void agent_store_fd(struct agent *agent, struct shoal_job_id job, int fd, agent_blob_fn *done, void *arg);
/* The same of what a job can touch: a file below `root`. */
void agent_store_below(struct agent *agent, struct shoal_job_id job, const char *root, const char *path,
                       agent_blob_fn *done, void *arg);
/* The whole blob into memory, from here or from the job's guardians. */
typedef void agent_bytes_fn(void *arg, enum shoal_err err, const char *text, struct shoal_view bytes);
void agent_read_blob(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash, size_t max,
                     agent_bytes_fn *done, void *arg);

typedef void agent_fetched_fn(void *arg, enum shoal_err err, const char *text);
/* One blob, fetched and held. */
void agent_fetch_blob(struct agent *agent, struct shoal_job_id job, struct shoal_hash hash,
                      const struct shoal_node_id *sources, size_t source_count, agent_fetched_fn *done, void *arg);

/* agent_archive.c, agent_archive_fetch.c, agent_archive_index.c: what belongs to an ended job, as blobs; and the list of
 * all archived jobs of the mesh */
void agent_archive_create(struct agent *agent);
void agent_archive_make(struct agent *agent, const struct shoal_sched_action *action);
void agent_archive_fetch(struct agent *agent, const struct shoal_sched_action *action);
void agent_archive_changed(struct agent *agent); /* after every step of the control plane */
/* The result folder of a user's job. */
void agent_archive_folder(const struct agent *agent, const char *user, struct shoal_job_id id, char *path, size_t cap);
uint64_t agent_archive_mark(const struct agent *agent);
void agent_archive_heard(struct agent *agent, struct shoal_node_id node, uint64_t mark);
/* Another host's answer: what is new in its part. False: it does not decode, or has nothing more. */
bool agent_archive_told(struct agent *agent, struct shoal_node_id node, struct shoal_view answer);
/* How many lines a list of blobs has; 0: it does not decode. */
size_t agent_archive_lines(struct shoal_view list);
/* The record of the archive on this node, read from the store if it is cold. Until the next call. */
bool agent_archived(struct agent *agent, struct shoal_job_id id, struct shoal_sched_archived *here);
/* An archived job that is known here; `source`: who told of it. */
const struct shoal_job_summary *agent_archive_find(struct agent *agent, struct shoal_job_id id,
                                                   struct shoal_node_id *source);
/* Names of the tasks below <result_dir>/log, in the order of their logs; how many, at most `max`. On any thread. */
size_t agent_log_tasks(const char *result_dir, char (*names)[96], size_t max);

/* agent_workers.c: its workers here are ended, and say why. */
void agent_job_over(struct agent *agent, struct agent_job *job, const char *text);

/* agent_tree.c: the result folder looks the same on every host of a job */
void agent_tree_create(struct agent *agent);
void agent_tree_stop(struct agent_job *job);
void agent_tree_scan(struct agent *agent, struct agent_job *job);
/* `fn` is called when a look that begins now has ended, of a folder of few files before this returns. */
void agent_tree_scan_then(struct agent *agent, struct agent_job *job, void (*fn)(void *arg), void *arg);
/* Nothing that was found here is still to be sent, or on its way. */
bool agent_tree_quiet(const struct agent_job *job);
uint64_t agent_tree_progress_ns(const struct agent_job *job); /* when copying went on last; 0: never */
size_t agent_tree_left(const struct agent_job *job, const char **path); /* files that some host lacks, and the first one's path */
bool agent_tree_sent(const struct agent_job *job, struct shoal_node_id node, bool logs); /* the same of one host, or of logs alone */
/* agent_tree_wait.c. `done` is called when the job's files that other hosts have written, or its `logs` alone, are here, as far
 * as those can be reached, or `wait_ms` are over (`all` is false), at most 5 s; maybe before this returns. */
void agent_tree_await(struct agent *agent, struct shoal_job_id id, bool logs, unsigned wait_ms,
                      void (*done)(void *arg, bool all), void *arg);
/* Where it runs now is noted, while it runs; and found, with its guardians, when it has ended. Returns how many. */
void agent_tree_note_hosts(struct agent *agent, struct shoal_job_id id);
size_t agent_tree_hosts(struct agent *agent, struct shoal_job_id id, struct shoal_node_id *nodes, size_t cap);
/* That question of another host. */
void agent_tree_settle(struct agent *agent, struct shoal_node_id from, struct shoal_job_id id, bool logs,
                       struct peer_question *question);
/* agent_tree_take.c: where the hosts' lines lie that say which files of the job they have not brought here, and, on any thread, the
 * line of one of them. False: there is none. */
#define AGENT_OWED_BYTES 300
void agent_tree_owed_folder(const struct agent *agent, struct shoal_job_id id, char folder[AGENT_PATH_BYTES]);
bool agent_tree_owed(const char *folder, char line[AGENT_OWED_BYTES]);
void agent_tree_deleted(struct agent *agent, struct shoal_job_id id); /* no piece of its files is taken any more */
/* The same, unless it was done a moment ago: tasks of an array end by the hundred. */
void agent_tree_scan_some(struct agent *agent, struct agent_job *job);

/* agent_ledger.c: step records */
void agent_ledger_create(struct agent *agent);
void agent_ledger_records(struct agent *agent, struct agent_job *job, uint64_t worker_id,
                          const struct shoal_worker_records *records);
void agent_ledger_close(struct agent_job *job);
bool agent_ledger_is_idle(struct agent_job *job); /* all of it is flushed, and with the guardians; or there is none */

/* list_serve.c: what the control plane says of a job, into the index; what others ask of it */
void agent_list_create(struct agent *agent);
void agent_list_index(struct agent *agent, const struct shoal_sched_action *action);

/* agent_backend.c */
void agent_backend(struct agent *agent, struct shoal_backend *backend);

/* Nodes of a job other than this one: its guardians, then hosts it runs on. Returns how many. */
size_t agent_job_nodes(struct agent *agent, struct shoal_job_id id, struct shoal_node_id *nodes, size_t cap,
                       size_t *guardians);

/* agent.c: the three hooks of the command line */
int agent_init_main(const struct shoal_cli_agent *options);
int agent_join_main(const struct shoal_cli_agent *options);
int agent_main(const struct shoal_cli_agent *options);
int agent_doctor_main(const struct shoal_cli_agent *options);
void agent_stop(struct agent *agent, int exit_code);

/* inventory.c */
/* Slots with the shares of cards among them, which follow those that `settings->slots` counts. */
uint32_t agent_slots_all(const struct agent_settings *settings);
/* The device of a slot, or NULL. */
const struct agent_device *agent_slot_device(const struct agent_settings *settings, uint32_t slot);
void agent_slot_devices(const struct agent_settings *settings, uint32_t slot, char text[AGENT_DEVICE_BYTES]);
void agent_devices_find(struct agent_devices *devices); /* devices_nvml.c; none: no library, no driver or no GPU */
SHOAL_MUST_CHECK enum shoal_err agent_inventory(struct agent_settings *settings, const char *declared, unsigned slots,
                                                struct shoal_msg *msg);

/* agent_tokens.c */
struct shoal_user;
struct shoal_sched_caller;
/* The token that goes with what this user asks of another host, in `text` of SHOAL_TOKEN_TEXT_BYTES; empty: there is no key
 * yet. */
struct shoal_view agent_token_of(struct agent *agent, const struct shoal_user *user, char *text);
enum shoal_err agent_token_who(void *arg, struct shoal_view token, uint64_t wall_ms, struct shoal_sched_caller *caller,
                               struct shoal_msg *msg);
/* Whether the token of what another host passes on is an administrator's. DENIED: it is not. */
enum shoal_err agent_is_administrator(struct agent *agent, struct shoal_node_id from, struct shoal_view token,
                                      struct shoal_msg *msg);
/* It runs this version, or a later one. */
bool agent_follows_rules(const struct agent *agent, struct shoal_node_id node);

#endif
