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
/* What sealing a datagram costs: kind and version, sender, sequence, tag. */
#define SHOAL_DATAGRAM_SEAL_BYTES 48
#define SHOAL_DATAGRAM_PAYLOAD_MAX (SHOAL_DATAGRAM_BYTES_MAX - SHOAL_DATAGRAM_SEAL_BYTES)

/* One frame on a link; a Noise message is at most 65,535 bytes, larger frames are split by the link. */
#define SHOAL_FRAME_BYTES_MAX (256 * SHOAL_KIB)

/* Members of a mesh that one agent keeps. */
#define SHOAL_MEMBERS_MAX 16384

/* A gossip record's payload; what is larger is a blob named by its hash. */
#define SHOAL_RECORD_PAYLOAD_MAX 768
_Static_assert(SHOAL_RECORD_PAYLOAD_MAX + 160 <= SHOAL_DATAGRAM_PAYLOAD_MAX, "a record with its signature fits a datagram");

/* Voters and learners of one group: 5 voters, a joint change doubles the set at most, and some learners. */
#define SHOAL_GROUP_NODES_MAX 12
/* Groups that one node holds, sleeping ones included. */
#define SHOAL_GROUPS_MAX 4096

/* One Raft entry: a founding record with a small bundle is the largest. */
#define SHOAL_ENTRY_BYTES_MAX (128 * SHOAL_KIB)
/* A bundle up to this size travels inside the founding record. */
#define SHOAL_BUNDLE_INLINE_MAX (64 * SHOAL_KIB)
_Static_assert(SHOAL_BUNDLE_INLINE_MAX + 32 * SHOAL_KIB <= SHOAL_ENTRY_BYTES_MAX, "a founding record fits one entry");
/* The arguments of one submit: what a command line may hold. */
#define SHOAL_ARGS_BYTES_MAX (16 * SHOAL_KIB)

/* Blobs are cut into chunks of this size, so that no message is large. */
#define SHOAL_CHUNK_BYTES_MAX (SHOAL_MIB)

/* Slots of one host, and workers of one job (an epoch with every address fits one worker message). */
#define SHOAL_SLOTS_MAX 64
#define SHOAL_RANKS_MAX 64
/* Virtual workers of a job (the sync interval). */
#define SHOAL_VIRTUAL_MAX 4096

/* A message between agent and worker on the SEQPACKET socket: below the default socket buffer. */
#define SHOAL_WORKER_MESSAGE_MAX (60 * SHOAL_KIB)
/* A worker's transport address (UCX: about 100 to 300 bytes for a few interfaces). */
#define SHOAL_TRANSPORT_ADDRESS_MAX 512

/* HTTP: a request line and header block, a JSON body (jansson builds a tree; 1 MiB is about 20 ms), an upload. */
#define SHOAL_HTTP_HEAD_BYTES_MAX (32 * SHOAL_KIB)
#define SHOAL_HTTP_HEADERS_MAX 100
#define SHOAL_JSON_BYTES_MAX (SHOAL_MIB)
#define SHOAL_UPLOAD_BYTES_MAX (8ull * 1024 * SHOAL_MIB)

#endif
