/* Every bound, with its reason. Limits that lean on each other are tied at compile time. What happens when a limit is
 * reached is said where it is used: refuse, drop the oldest, or push back; each is counted. */
#ifndef SHOAL_LIMITS_H
#define SHOAL_LIMITS_H

#define SHOAL_KIB 1024u
#define SHOAL_MIB (1024u * 1024u)
#define SHOAL_MS 1000000ull /* nanoseconds */
#define SHOAL_S 1000000000ull

/* Below the smallest path MTU we support, so that gossip and support are never fragmented. */
#define SHOAL_DATAGRAM_BYTES_MAX 1200
/* Sealing a datagram costs: kind and version 4, sender's key 32, start 8, salt 8, sequence 8, tag 16. */
#define SHOAL_DATAGRAM_SEAL_BYTES 76
#define SHOAL_DATAGRAM_PAYLOAD_MAX (SHOAL_DATAGRAM_BYTES_MAX - SHOAL_DATAGRAM_SEAL_BYTES)

/* One frame on a link; a Noise message is at most 65,535 bytes, larger frames are split by the link. A chunk of a blob
 * and its head fit one frame. */
#define SHOAL_FRAME_BYTES_MAX (SHOAL_MIB + 64 * SHOAL_KIB)

/* Members of a mesh that one agent keeps: the 10,000 hosts that a mesh is made for, and room for those that have left. */
#define SHOAL_MEMBERS_MAX 16384

/* A gossip record's payload; what is larger is a blob named by its hash. */
#define SHOAL_RECORD_PAYLOAD_MAX 768
_Static_assert(SHOAL_RECORD_PAYLOAD_MAX + 160 <= SHOAL_DATAGRAM_PAYLOAD_MAX,
               "a record with its signature fits a datagram");

/* MessagePack (include/shoal/pack.h). Arrays and maps inside each other: ours have three, a request of another program
 * rarely more than five; and a reader's stack stays below 2 KiB. Fields of one map: ours have at most forty. */
#define SHOAL_PACK_DEPTH_MAX 12
#define SHOAL_PACK_FIELDS_MAX 256

/* Voters and learners of one group: 5 voters, a joint change doubles the set at most, and some learners. */
#define SHOAL_GROUP_NODES_MAX 12
/* Groups that one node holds in memory, sleeping ones included: each takes up to 10 KiB and its log; those of jobs that
 * only wait are parked. */
#define SHOAL_GROUPS_MAX 4096

/* One Raft entry: a founding record with a small bundle is the largest. */
#define SHOAL_ENTRY_BYTES_MAX (128 * SHOAL_KIB)
/* A bundle up to this size travels inside the founding record. */
/* Room that files of jobs leave on a disk, for the store and for what an agent writes of itself. */
#define SHOAL_DISK_RESERVE_BYTES (64 * SHOAL_MIB)
#define SHOAL_BUNDLE_INLINE_MAX (64 * SHOAL_KIB)
_Static_assert(SHOAL_BUNDLE_INLINE_MAX + 32 * SHOAL_KIB <= SHOAL_ENTRY_BYTES_MAX, "a founding record fits one entry");
/* The arguments of one submit: what a command line may hold. */
#define SHOAL_ARGS_BYTES_MAX (16 * SHOAL_KIB)
/* Of them, what a process is started with: beside these stand what the agent adds (its own variables, the interpreter). */
#define SHOAL_JOB_ARGV_MAX 500
#define SHOAL_JOB_ENV_MAX 384
#define SHOAL_JOB_ENV_NAME_BYTES 256

/* Blobs are cut into chunks of this size, so that no message is large. */
#define SHOAL_CHUNK_BYTES_MAX (SHOAL_MIB)
_Static_assert(SHOAL_CHUNK_BYTES_MAX + 4 * SHOAL_KIB <= SHOAL_FRAME_BYTES_MAX, "a chunk fits a frame");

/* Slots of one host: eight devices of seven slices each, and some CPU shares. */
#define SHOAL_SLOTS_MAX 64

/* Warm interpreters that wait on a host, one for each user and environment: each has 10 MB and more. Beyond them the one
 * that was not used for the longest time ends. */
#define SHOAL_WARM_SERVERS_MAX 4
#define SHOAL_WARM_IDLE_NS (300 * SHOAL_S)
/* One with a framework saves seconds, not milliseconds, and waits longer. None lives longer than an hour: what it has loaded
 * may have changed where it does not look. */
#define SHOAL_WARM_FRAMEWORK_IDLE_NS (900 * SHOAL_S)
#define SHOAL_WARM_AGE_NS (3600 * SHOAL_S)
/* It is made when the job that wanted it has ended and no other has run here for so long, or at the latest after so long:
 * its imports take seconds of a core, which jobs at work need more. */
#define SHOAL_WARM_QUIET_NS (2 * SHOAL_S)
#define SHOAL_WARM_WANTED_NS (20 * SHOAL_S)
/* The bound of those with a framework on a host, in MiB of memory of their own (warm-memory); torch takes 230. And what
 * must be free on the host when one is made, and while it waits. */
#define SHOAL_WARM_MEMORY_MIB 1024
#define SHOAL_WARM_MEMORY_MIB_MAX (1 << 20)
#define SHOAL_WARM_FREE_MIB 1024
/* One that did not come up is not tried again for so long: each try costs as much as the start that it was to save. */
#define SHOAL_WARM_FAILED_NS (60 * SHOAL_S)
/* An order that is not carried out by then goes to the spawn helper. An interpreter comes up in 0.1 s on a quiet machine. */
#define SHOAL_WARM_ANSWER_NS (5 * SHOAL_S)
/* The variables that an interpreter reads while it starts, and its own name. A longer text starts cold. */
#define SHOAL_WARM_KEY_BYTES 8192
/* Members of a communicator: ranks of one epoch, on two hosts or more beyond the slots of one. */
#define SHOAL_RANKS_MAX 128
/* Workers of one job: as many as a communicator has members. A plain job has at most 64, as versions before this one take
 * them: what is written of it is what they write, and its bounds are theirs. A wide one runs where every host takes it. */
#define SHOAL_JOB_WORKERS_MAX 128
#define SHOAL_JOB_WORKERS_PLAIN 64
/* Collectives of a communicator that were started and are not waited for: a model's buckets, not its parameters. */
#define SHOAL_OPS_MAX 64
/* A call of NCCL that makes or changes a communicator, until it is given up and host memory is used: some 100 ms in a host, and
 * more where a driver loads its kernels for the first time. And one that revokes or aborts (data-plane 3). */
#define SHOAL_NCCL_MAKE_NS (30 * SHOAL_S)
#define SHOAL_NCCL_END_NS (2 * SHOAL_S)
/* Tasks of one array job. At 16 bytes a task the largest takes 1.6 MB on each guardian, and its snapshot 1.3 MB, which
 * is written each 512 entries; ten times as many would write for longer than they run. */
#define SHOAL_ARRAY_TASKS_MAX 100000
/* Library threads of different hosts beat over their data connections, in a step or not (PROTOCOLS 12). Silent: six
 * beats in a row are missing; before the first word of a peer, which may still be computing for the epoch before, it
 * has longer. A link that says nothing for so long that TCP or a middlebox must have lost it counts as broken. */
#define SHOAL_BEAT_NS (50 * SHOAL_MS)
#define SHOAL_BEAT_UNHEARD_NS (300 * SHOAL_MS)
#define SHOAL_BEAT_FIRST_NS (SHOAL_S)
#define SHOAL_BEAT_BROKEN_NS (5 * SHOAL_S)
/* A kernel answers a connection at once, whatever its process is in; this is the time for a second and a third try.
 * Such a link breaks three times in the 10 s of sched/lead/link_breaks.h. */
#define SHOAL_LINK_CONNECT_NS (3 * SHOAL_S)

/* A worker's lease (S5 of slots.h), by the clock of its host, after the newest stamp that a renewal echoed:
 *
 *     stamp ---- 10 s ----> frozen ---- 5 s ----> deadline ---- 595 s ----> killed by the runner
 *
 * It is renewed each 3 s, so a freeze means that three renewals are missing. The 5 s before the deadline make sure that
 * a worker stands still before another job may claim its slot. A frozen worker keeps its memory for ten minutes: a
 * short loss of quorum destroys nothing. */
#define SHOAL_LEASE_NS (15 * SHOAL_S)
#define SHOAL_LEASE_FREEZE_NS (10 * SHOAL_S)
#define SHOAL_LEASE_KILL_NS (600 * SHOAL_S)
#define SHOAL_LEASE_FROZEN_BEFORE_NS (SHOAL_LEASE_NS - SHOAL_LEASE_FREEZE_NS)
#define SHOAL_LEASE_KILLED_AFTER_NS (SHOAL_LEASE_KILL_NS - SHOAL_LEASE_FROZEN_BEFORE_NS)
_Static_assert(SHOAL_LEASE_FREEZE_NS < SHOAL_LEASE_NS, "a worker stands still before its slot can go to another");
_Static_assert(SHOAL_JOB_WORKERS_MAX <= SHOAL_RANKS_MAX, "a job's workers are members of one communicator");
/* Virtual workers of a job (the sync interval): 32 for each of 128 workers. The tree over them has 12 levels. */
#define SHOAL_VIRTUAL_MAX 4096

/* Steps of one call: 34 years of a thousand a second. And what else a worker counts, as samples or bytes: what every reader of
 * JSON takes. What says more is no worker, but a process of its job. */
#define SHOAL_STEPS_MAX (1ull << 40)
#define SHOAL_COUNT_MAX (1ull << 53)

/* The processes of one job may print so much into their logs on one host, in MiB, unless the operator says otherwise
 * (log-max): room for weeks of a line a second, and no host's disk is filled by a script that floods. Beyond it output
 * is dropped, and the log says so. */
#define SHOAL_JOB_LOG_MIB 256
#define SHOAL_JOB_LOG_MIB_MAX (1024u * 1024u)
/* A job's result folder may hold so many files and links, as many folders, and so many GiB, on one host, unless the operator
 * says otherwise (files-max, files-gib): more than a careful script writes, and less than what fills every host's disk, or its
 * tables, over night. Each file costs about 400 bytes of the agent's memory while its job runs. Beyond it the job is ended, and
 * says why. */
#define SHOAL_JOB_FILES 50000u
#define SHOAL_JOB_FILES_MAX 1000000u
#define SHOAL_JOB_FILES_GIB 1024u
#define SHOAL_JOB_FILES_GIB_MAX (1024u * 1024u)
/* Files and folders of a bundle: as many as an archive of a large script's libraries has. */
#define SHOAL_BUNDLE_ENTRIES_MAX 20000u

/* A message between agent and worker on the SEQPACKET socket: below the default socket buffer. */
#define SHOAL_WORKER_MESSAGE_MAX (60 * SHOAL_KIB)
/* A worker's transport address (UCX: about 100 to 300 bytes for a few interfaces). */
#define SHOAL_TRANSPORT_ADDRESS_MAX 512

/* HTTP: a request line and header block, a JSON body (jansson builds a tree: 1 MiB of text is 1 ms, of empty objects 100), what
 * reading one may cost in units of 10 ns, and an upload. */
#define SHOAL_HTTP_HEAD_BYTES_MAX (32 * SHOAL_KIB)
#define SHOAL_HTTP_HEADERS_MAX 100
#define SHOAL_JSON_BYTES_MAX (SHOAL_MIB)
#define SHOAL_JSON_WORK_MAX 1500000u
/* Bodies that are handled in a turn of the loop; the requests behind them wait for the next one. */
#define SHOAL_HTTP_TURN_BODIES_BYTES (256 * SHOAL_KIB)
#define SHOAL_UPLOAD_BYTES_MAX (8ull * 1024 * SHOAL_MIB)

/* Results of an answer of /edimodels that are grouped by sample. */
#define SHOAL_EDI_RESULTS_MAX 1024u

/* Lines of an agent's log that wait for whoever reads it, some thousands; beyond, they are dropped and counted. */
#define SHOAL_LOG_WAITS_BYTES (256 * SHOAL_KIB)

/* Connections to the API at once, in all and from one address: clients of a few hundred users, some of them behind one
 * proxy. Beyond the second, the one of that address that has waited longest for its client is closed; beyond the first, one of
 * the address that has the most; where none waits, the new one. All are counted. An agent that may open fewer files takes half as many
 * connections as files. */
#define SHOAL_HTTP_CONNECTIONS_MAX 1024
#define SHOAL_HTTP_ADDRESS_CONNECTIONS_MAX 256
/* HTTP/2: requests at once on one connection, as RFC 9113 advises; of strangers whose bodies are still to come, so that a
 * connection of theirs holds little. Windows: what a client may send ahead of one request, enough for 1 GB/s over a
 * tenth of a millisecond, and of all of a connection, which is what a connection's bodies hold at most. */
#define SHOAL_H2_STREAMS_MAX 100u
#define SHOAL_H2_STRANGERS_MAX 2u
#define SHOAL_H2_STREAM_WINDOW_BYTES (128 * SHOAL_KIB)
#define SHOAL_H2_WINDOW_BYTES (512 * SHOAL_KIB)
/* Pieces of one head: 32 KiB need three. */
#define SHOAL_H2_CONTINUATIONS_MAX 4u
/* A head that compression makes larger than it may be is read on up to this, for an answer; then the connection ends. */
#define SHOAL_H2_HEAD_READ_MAX (2 * SHOAL_HTTP_HEAD_BYTES_MAX)
/* Frames that ask for nothing, and requests given up: how many at once, and how many a second from then on. A client that
 * reads at full speed sends two a frame of ours, which are not counted. */
#define SHOAL_H2_FRAMES_MAX 2000u
#define SHOAL_H2_FRAMES_RATE 500u
#define SHOAL_H2_RESETS_MAX 400u
#define SHOAL_H2_RESETS_RATE 100u
/* Answers that a connection's client does not take, before its next request is refused (to be sent again). */
#define SHOAL_H2_OUT_BYTES_MAX (4 * SHOAL_MIB)
/* Answers that clients do not take, and bodies of HTTP/2 that wait, all together: beyond it the connection goes that holds most,
 * of the address for which most is held. */
#define SHOAL_HTTP_HELD_BYTES_MAX (256 * SHOAL_MIB)
/* Requests in hand at once, those of clients that have gone included: a few KiB each. More are refused, to be sent again. */
#define SHOAL_HTTP_REQUESTS_MAX 4096u
/* Of them, those of one address, and those of one user: a quarter, so that nobody takes all of them from the others. */
#define SHOAL_HTTP_SHARE_REQUESTS_MAX (SHOAL_HTTP_REQUESTS_MAX / 4)
/* Requests of one user that wait for more of a log on one node: each page or terminal that follows a log is one. Those above
 * are answered at once with what there is. */
#define SHOAL_LOG_WAITS_USER_MAX 64u
/* Requests begun for one connection in a turn of the loop, then it is another one's turn: 2 ms. */
#define SHOAL_H2_TURN_REQUESTS_MAX 64u
/* Answers to hellos of TLS in a span of so many milliseconds: each costs a key exchange and a signature, 0.3 ms of the loop.
 * So a flood of hellos takes a quarter of a core and no turn is long by it; 800 clients a second are let in. Of what is
 * above, each connection waits for its place in the line. */
#define SHOAL_HANDSHAKES_MAX 8
#define SHOAL_HANDSHAKES_SPAN_MS 10
/* The body of a request from someone who has not shown who they are: a name and a password. 1,000 of a megabyte each,
 * sent but for their last byte, held a gigabyte. */
#define SHOAL_OPEN_BODY_BYTES_MAX (4u * SHOAL_KIB)
/* All that one HTTP request may remember besides its upload: a JSON body, its parsed form and the answer's pieces. */
#define SHOAL_REQUEST_ARENA_MAX (8u * SHOAL_MIB)
/* Uploads in hand at once: each may hold a spool file and 4 MiB of writes under way. The last of them are for users who have no
 * more than so many, and then one that comes slowly, of the user who has most, gives way to a user who has fewer; more are
 * answered 503. */
#define SHOAL_UPLOADS_MAX 80
#define SHOAL_UPLOADS_LAST 16
/* Password checks that wait or run, in all and from one address: two run at a time, each with the memory that Argon2id is
 * meant to take, a tenth of a second each. So 16 are answered within a second or so; more are told to come again then. */
#define SHOAL_LOGONS_MAX 16
#define SHOAL_LOGONS_ADDRESS_MAX 12
#define SHOAL_UPLOAD_PENDING_MAX (4u * SHOAL_MIB)
/* Parts of one multipart body (no client sends more than a few), and the header block of one part. */
#define SHOAL_MULTIPART_PARTS_MAX 16
#define SHOAL_MULTIPART_HEAD_MAX (8u * SHOAL_KIB)

/* Raft (sched/raft/raft.c). One append carries at most this many entries and payload bytes (one larger entry goes
 * alone). */
#define SHOAL_RAFT_BATCH_ENTRIES_MAX 32
#define SHOAL_RAFT_BATCH_BYTES_MAX (64 * SHOAL_KIB)
_Static_assert(SHOAL_ENTRY_BYTES_MAX + 4 * SHOAL_KIB <= SHOAL_FRAME_BYTES_MAX, "the largest append fits one frame");
/* Appends on their way to one follower; beyond either bound the leader waits for an answer. */
#define SHOAL_RAFT_INFLIGHT_MAX 16
#define SHOAL_RAFT_INFLIGHT_BYTES_MAX (SHOAL_MIB)
/* Proposed and not yet committed in one group; beyond it a proposal is refused (FULL). */
#define SHOAL_RAFT_UNCOMMITTED_BYTES_MAX (2 * SHOAL_MIB)
_Static_assert(SHOAL_RAFT_UNCOMMITTED_BYTES_MAX >= 2 * SHOAL_ENTRY_BYTES_MAX, "two large entries may wait");
/* Entries that a group keeps in memory: the ring starts at the first size, doubles only in shoal_raft_reserve, and at
 * the second refuses proposals until a snapshot lets it forget. */
#define SHOAL_RAFT_LOG_ENTRIES_MIN 16
#define SHOAL_RAFT_LOG_ENTRIES_MAX 16384
/* Reads that wait for a quorum round; the owner batches reads of a loop turn into one. */
#define SHOAL_RAFT_READS_MAX 32
/* Actions of one step; sends stop early and go on in the next step, nothing else can overflow it. */
#define SHOAL_RAFT_ACTIONS_MAX 128
/* A piece of a snapshot: small, so that appends of other groups on the same link do not wait behind it. The whole: an
 * array of the largest size takes 1.3 MB, the mesh state with thousands of users less; the rest is room. */
#define SHOAL_RAFT_CHUNK_BYTES_MAX (32 * SHOAL_KIB)
#define SHOAL_SNAPSHOT_BYTES_MAX (64 * SHOAL_MIB)

/* Host-pair support (sched/raft/support.c): peers of interest, groups that one host leads towards one peer, actions of
 * one step, and claims that ride in the heartbeat itself. */
#define SHOAL_SUPPORT_PEERS_MAX 1024
#define SHOAL_SUPPORT_CLAIMS_MAX SHOAL_GROUPS_MAX
#define SHOAL_SUPPORT_ACTIONS_MAX 64
#define SHOAL_SUPPORT_INLINE_CLAIMS_MAX 8

/* Links. Peers an agent may want or have; probes at once; connections whose handshake is open (the
 * oldest is closed to make room: an honest one lasts milliseconds). */
#define SHOAL_LINK_PEERS_MAX 2048
#define SHOAL_LINK_PROBES_MAX 64
#define SHOAL_LINK_HANDSHAKES_MAX 64
/* So much may wait to be sent, per lane: then a send is answered FULL. Room for four of the largest frames. */
#define SHOAL_LINK_CONTROL_QUEUE_MAX (5 * SHOAL_MIB)
#define SHOAL_LINK_BULK_QUEUE_MAX (16 * SHOAL_MIB)
_Static_assert(4 * SHOAL_FRAME_BYTES_MAX <= SHOAL_LINK_CONTROL_QUEUE_MAX, "a lane's queue holds four frames");

/* Datagram senders whose key is not kept: computing one costs 50 us, so at most this many in a second. */
#define SHOAL_DATAGRAM_UNKNOWN_PER_S 500

/* The store. A value above about 2 KiB would move to overflow pages, which need contiguous free ones. */
#define SHOAL_STORE_VALUE_MAX 1900
#define SHOAL_STORE_CONFIG_MAX 1600
/* One transaction takes at most this much of what waits. */
#define SHOAL_STORE_COMMIT_FRAMES_MAX 512
#define SHOAL_STORE_COMMIT_BYTES_MAX (SHOAL_MIB)
/* Shares of the store's map. Above the first share no job is founded here any more, above the second no entry is taken
 * and the agent stops: what lies between is for the jobs that run, whose entries are small. What frees space is always
 * taken. */
#define SHOAL_STORE_SUBMIT_PERCENT 55
#define SHOAL_STORE_FULL_PERCENT 60
_Static_assert(SHOAL_STORE_SUBMIT_PERCENT + 5 <= SHOAL_STORE_FULL_PERCENT, "running jobs have room to end");
/* So much may wait for the disk: then an append is answered FULL. */
#define SHOAL_STORE_PENDING_BYTES_MAX (64 * SHOAL_MIB)

/* To how much the store's file may be filled beforehand. */
#define SHOAL_PREFILL_MIB_MAX (1024u * 1024u)
/* The smallest map: below it not even one job's entries fit beside the free pages. */
#define SHOAL_STORE_MAP_MIB_MIN 8u

/* Scans of the index of jobs at one time, waiting ones included: each may keep the newest rows in memory. */
#define SHOAL_INDEX_SCANS_MAX 64
/* Rows of one page of a list: about a megabyte as JSON, and what one turn of the loop can make of it. */
#define SHOAL_LIST_ROWS_MAX 1000

/* Services. Replicas of one: as many as tasks of an array run at one time. Bodies of requests and answers: images in base64
 * are usual. Requests that wait at one host for one service, and their bytes: then 429. */
#define SHOAL_SERVICE_REPLICAS_MAX 64u
#define SHOAL_SERVICE_CANARY_MAX 101u /* as summaries say it: a percentage, and one */
/* The document of one service: its model, its profile and its readme, as JSON. It rides in one entry of its group. */
#define SHOAL_SERVICE_DOCUMENT_BYTES_MAX (24 * SHOAL_KIB)
/* A runtime that an administrator made: its name and what is written of it, which lie in a framework's row of the mesh group. */
#define SHOAL_RUNTIME_NAME_BYTES 40u
#define SHOAL_RUNTIME_JSON_BYTES 1024u
/* A package as it is sent: twice what WMLA's users were told to expect. What is larger, a kernel fetches when it starts. */
#define SHOAL_PACKAGE_BYTES_MAX (2ull * 1024 * SHOAL_MIB)
#define SHOAL_INFER_BODY_BYTES_MAX (64 * SHOAL_MIB)
/* Bodies of requests for models that one agent's server holds at one time. The last of it is for users who hold no more than so
 * much: two of the largest bodies. What is not whole gives way, as uploads do. */
#define SHOAL_INFER_HELD_BYTES_MAX (512 * SHOAL_MIB)
#define SHOAL_INFER_HELD_BYTES_LAST (128 * SHOAL_MIB)
#define SHOAL_SERVICE_QUEUE_MAX 1024u
#define SHOAL_SERVICE_QUEUE_BYTES_MAX (256 * SHOAL_MIB)
/* In a kernel at one time, whatever its batch. */
#define SHOAL_KERNEL_BATCH_MAX 256u
#define SHOAL_INFER_TIMEOUT_MS 60000u
#define SHOAL_INFER_TIMEOUT_MS_MAX 3600000u
/* Requests of one gRPC stream that are not answered yet, the inference contract's window: a kernel's batches stay full, and a
 * client that sends without reading holds no more of a node than that. */
#define SHOAL_GRPC_TASKS_MAX 16u
/* Numbers that are read one by one of a message of gRPC, or written so into one: 10 ms. Tensors of more are sent raw. */
#define SHOAL_GRPC_NUMBERS_MAX (1u << 20)
/* The room for what a kernel says: beyond that it is given back when all of it was taken. Requests that it has answered without
 * reading them, which wait in its socket all the same: beyond that it is ended. */
#define SHOAL_KERNEL_LINK_KEPT_BYTES (SHOAL_MIB)
#define SHOAL_KERNEL_UNREAD_BYTES_MAX (2 * SHOAL_INFER_BODY_BYTES_MAX)

/* The rebuildable store: small facts by a name or an id, such as a worker's last state. */
#define SHOAL_CACHE_KEY_MAX 64
#define SHOAL_CACHE_VALUE_MAX (4 * SHOAL_KIB)

/* Blobs. A manifest is a chunk itself: 20 bytes and 32 for each chunk. */
#define SHOAL_BLOB_CHUNKS_MAX 32000
_Static_assert(20 + 32 * SHOAL_BLOB_CHUNKS_MAX <= SHOAL_CHUNK_BYTES_MAX, "a manifest fits one chunk");
_Static_assert(SHOAL_UPLOAD_BYTES_MAX <= (unsigned long long)SHOAL_BLOB_CHUNKS_MAX * SHOAL_CHUNK_BYTES_MAX,
               "the largest upload fits one manifest");
/* Chunks of one writer that wait for the disk: then its append is answered FULL. */
#define SHOAL_BLOB_WRITER_CHUNKS 4
/* shoal_blobs_put takes so much in one piece. */
#define SHOAL_BLOB_PUT_MAX (16 * SHOAL_MIB)
/* Files of jobs that wait for their thread, and the bytes they hold: what a few hosts push within a second. Beyond that
 * one is refused, and its sender tries again. */
#define SHOAL_FILE_QUEUE_MAX 4096
#define SHOAL_FILE_QUEUE_BYTES_MAX (64 * SHOAL_MIB)
/* Requests that wait for the blob thread, and the bytes they hold: then a request is answered FULL. */
#define SHOAL_BLOB_QUEUE_MAX 1024
#define SHOAL_BLOB_QUEUE_BYTES_MAX (64 * SHOAL_MIB)
_Static_assert(SHOAL_BLOB_PUT_MAX + 2 * SHOAL_MIB <= SHOAL_BLOB_QUEUE_BYTES_MAX,
               "a blob put in one piece fits the queue");

/* Gossip. Records of one agent: three for each of 16,384 members, the rest for jobs that are shown and services. */
#define SHOAL_RECORDS_MAX 65536
/* Records of one author, so that one node cannot fill the tables of all. */
#define SHOAL_RECORDS_PER_AUTHOR_MAX 64
/* Members suspected at once; more wait for the next probe. */
#define SHOAL_SUSPICIONS_MAX 256
/* News of one sort that wait to be repeated: a join storm of 256 and its accusations. */
#define SHOAL_GOSSIP_QUEUE_MAX 512

/* The control plane (sched/node/sched.c): requests open at one time, foundings conducted at one time (a body each, up
 * to 128 KiB), removed and refused ids that are remembered, summaries of jobs heard of; beyond each a request is
 * refused (FULL), the oldest id is forgotten, the summary is not kept. */
#define SHOAL_SCHED_REQUESTS_MAX 1024
#define SHOAL_SCHED_FOUNDINGS_MAX 64
#define SHOAL_SCHED_GONE_MAX 4096
/* Ids of deleted jobs beyond those (sched/node/sched_shelf.c), 10 bytes each in memory and in the store: a shelf takes a
 * quarter of the table in one write, and as many shelves make a million, 10 MiB. */
#define SHOAL_SCHED_SHELF_IDS 1024
#define SHOAL_SCHED_SHELVES_MAX 1024
_Static_assert(SHOAL_SCHED_GONE_MAX / 4 <= SHOAL_SCHED_SHELF_IDS, "a quarter of the table fits one shelf");
#define SHOAL_SCHED_SUMMARIES_MAX 16384
/* Parked groups (sched/node/sched_park.c): pending jobs of one leader that have a lead (each tens of KiB, and a record
 * in the gossip of all), far more than become ready to run within a look at the queue; groups read back from the store
 * at one time; rows of 56 bytes, ten times the 100,000 pending jobs that a mesh is made for. Beyond the last a group
 * stays in memory. */
#define SHOAL_SCHED_SHOWN_MAX 256u
#define SHOAL_SCHED_LOADS_MAX 256u /* the archive's included */
#define SHOAL_SCHED_PARKED_MAX (1024u * 1024u)
/* A script, or a task of an array, is begun anew when its host is lost, so often in all: what brings its hosts down goes
 * no further. */
#define SHOAL_ATTEMPTS_MAX 3u
/* The archive (sched/node/sched_archive.c). Hosts that hold an ended job's record and its blobs; records of one node,
 * and their bytes (2 KiB each, mostly arguments): beyond either a node takes no more, and a job that finds no holder
 * stays in its group. Seconds from a job's end to its archive: the default is long enough to look at what has just
 * ended. */
#define SHOAL_ARCHIVE_COPIES 3
#define SHOAL_ARCHIVE_RECORDS_MAX (2u * 1024 * 1024)
#define SHOAL_ARCHIVE_BYTES_MAX (64 * SHOAL_MIB)
#define SHOAL_ARCHIVE_RECORD_BYTES_MAX (50 * SHOAL_KIB)
/* Of them the newest stay in memory (2 KiB each); an older one is a row of 250 bytes, and is read back from the store
 * when somebody asks, so many at one time. */
#define SHOAL_ARCHIVE_WARM_MAX 4096u
#define SHOAL_ARCHIVE_LOADS_MAX 64u
_Static_assert(SHOAL_ARCHIVE_LOADS_MAX < SHOAL_SCHED_LOADS_MAX, "groups are loaded beside records");
/* Ended jobs led by one node that wait for their time: beyond it the newest goes into the archive at once. */
#define SHOAL_ARCHIVE_EARLY_MAX 256u
#define SHOAL_ARCHIVE_S 600
#define SHOAL_ARCHIVE_S_MIN 1
#define SHOAL_ARCHIVE_S_MAX (30u * 24 * 3600)
/* Files of one job's RESULT_DIR that a list of them shows, and that go into the archive: a zip of them has a directory of a
 * megabyte. What is beyond is counted, and said. */
#define SHOAL_RESULT_FILES_MAX 8000u
/* The token of a scraper: at least as long as nobody guesses. */
#define SHOAL_METRICS_TOKEN_BYTES 128
#define SHOAL_METRICS_TOKEN_BYTES_MIN 16
/* Points of one answer of a job's loss curve: what a screen can show, and one frame holds with two values a point. Of more
 * steps each point stands for several. */
#define SHOAL_METRIC_POINTS_MAX 4000u
/* Of the files beside logs and the committed model the archive takes so many bytes a job, the first by path: three hosts
 * keep them for ever. What does not fit stays where it is. */
#define SHOAL_ARCHIVE_FILES_BYTES_MAX (4096ull * SHOAL_MIB)
/* Archived jobs of the whole mesh that one node lists, newest first; an older one answers to its full id alone. */
#define SHOAL_ARCHIVE_LISTED_MAX 16384
/* Messages between a job's leader and the slots of the same host that wait for their turn; beyond it they are dropped
 * and repeated by who sent them. */
#define SHOAL_SCHED_LOCAL_MAX 256

/* Step records that a worker keeps until the agent acknowledges them; a full queue pushes training back. 32 MiB are
 * 90,000 steps of 8 mini-batches: an agent that is away for minutes is not noticed. */
#define SHOAL_RECORD_QUEUE_BYTES (32 * SHOAL_MIB)
#define SHOAL_RECORD_QUEUE_MAX 131072u

/* Folders that silent jobs have left to the next ones: no more than jobs end on a host at about one time. A job that finds
 * no room leaves its own where they are. */
#define SHOAL_SPARE_FOLDERS_MAX 64

/* One host's slots core: workers known here, ended ones that their leader has not forgotten yet included (a CONFIRM
 * beyond it is refused); jobs with workers here (about 100 KiB each, mostly a specification and an epoch). */
#define SHOAL_HOST_WORKERS_MAX 192
#define SHOAL_HOST_JOBS_MAX 64
_Static_assert(SHOAL_HOST_WORKERS_MAX >= SHOAL_SLOTS_MAX + SHOAL_HOST_JOBS_MAX, "every slot and every driver");

/* Pieces of an answer of a model. So many bytes of them are on their way before somebody says that some were passed on: a page of
 * text, and what a host has in hand for a client that does not read. One piece is a message, and rides in one frame. */
#define SHOAL_INFER_WINDOW_BYTES (64 * SHOAL_KIB)
#define SHOAL_INFER_PIECE_BYTES_MAX (256 * SHOAL_KIB)

#endif
