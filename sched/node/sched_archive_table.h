/* The files of the archive share this: its table, the hosts of a record, and what is said between them. */
#ifndef SCHED_ARCHIVE_TABLE_H
#define SCHED_ARCHIVE_TABLE_H

#include "sched_archive.h"

struct shoal_sched;

#define ARCHIVE_LOOK_NS (500 * SHOAL_MS)
#define ARCHIVE_LOOK_IDLE_NS (60 * SHOAL_S)
/* A record's share of the time over which looks are spread when nodes come or go. */
#define ARCHIVE_LOOK_NODES_RECORD_NS SHOAL_MS

/* sched_archive_table.c */
/* The place that the record of this id has, or would have, in the order of ids. */
size_t sched_archive_place_of(const struct shoal_sched *s, struct shoal_job_id id);
/* NULL: this node has no record of the job. */
struct sched_archived *sched_archived_find(const struct shoal_sched *s, struct shoal_job_id id);
/* The only way from one state to another: a move that the table does not know is a bug (A3). */
void sched_archived_move(struct sched_archived *a, enum archived_state to);
bool sched_archived_is_stored(const struct sched_archived *a);
bool sched_archived_is_stored_final(const struct sched_archived *a);
/* The id under which the store keeps the record. */
struct shoal_job_id sched_archive_kept_id(struct shoal_job_id id);
void sched_archived_look_at(struct shoal_sched *s, struct sched_archived *a, uint64_t at_ns);
/* NULL: no room, or no memory. The record's bytes are copied; they decode. */
struct sched_archived *sched_archived_add(struct shoal_sched *s, struct shoal_job_id id, struct shoal_view bytes);
void sched_archived_warm_put(struct shoal_sched *s, struct sched_archived *a);
/* Take the oldest records' bytes out of memory while there are too many (A8). */
void sched_archive_cool_some(struct shoal_sched *s);
/* Ask the store for a cold record's bytes; who wants them asks again. */
void sched_archived_warm_up(struct shoal_sched *s, struct sched_archived *a);
/* Forget the record alone; what the job's blobs become is the caller's. The record is freed. */
void sched_archived_drop(struct shoal_sched *s, struct sched_archived *a);
/* Write the record to the store, now or when there is room. */
void sched_archived_keep(struct shoal_sched *s, struct sched_archived *a);
bool sched_archived_must_write(const struct sched_archived *a);
void sched_archived_make_final(struct shoal_sched *s, struct sched_archived *a);

/* sched_archive_hosts.c */
/* Name anew who should hold the record; what is known of those that still should stays. The new count. */
uint8_t sched_archive_hosts_update(const struct shoal_sched *s, struct shoal_job_id id, struct sched_held_record *hosts,
                                   uint8_t host_count);
struct sched_held_record *sched_archive_copy_at(struct sched_held_record *hosts, uint8_t count,
                                                struct shoal_node_id node);
/* True: each of them holds it (as final), and there is at least one. */
bool sched_archive_all_hold(const struct sched_held_record *hosts, uint8_t count, bool final);

/* sched_archive.c */
void sched_archive_say(struct shoal_sched *s, struct shoal_node_id to, enum archive_word word, struct shoal_job_id id,
                       struct shoal_hash hash, bool final);
void sched_archive_forget_deleted(struct shoal_sched *s, struct shoal_job_id id);
/* All nodes; or only those that should hold its record. */
void sched_archive_tell_holders(struct shoal_sched *s, struct shoal_job_id id);
void sched_archive_tell_deleted(struct shoal_sched *s, struct shoal_job_id id);
void sched_archive_tell_back(struct shoal_sched *s, struct shoal_node_id to);

#endif
