/* The files under <data>/blobs. Every function blocks: for the blob thread, and before the loop runs. */
#ifndef NODE_BLOB_DISK_H
#define NODE_BLOB_DISK_H

#include "shoal/blob.h"

/* Make the folders, empty part/. */
SHOAL_MUST_CHECK enum shoal_err blob_disk_init(const char *dir, struct shoal_msg *msg);

/* `*shared`: it was there already. FULL: no space, or less than `reserve` would stay. STORAGE: the disk failed. */
SHOAL_MUST_CHECK enum shoal_err blob_disk_write(const char *dir, struct shoal_hash hash, struct shoal_view bytes,
                                                uint64_t reserve, bool *shared, struct shoal_msg *msg);
/* Appended to `buf`. NOT_FOUND. MALFORMED: its content has another name; it is moved to damaged/. */
SHOAL_MUST_CHECK enum shoal_err blob_disk_read(const char *dir, struct shoal_hash hash, struct shoal_buf *buf,
                                               struct shoal_msg *msg);
void blob_disk_remove(const char *dir, struct shoal_hash hash);

/* The file that says that the owner holds the blob. */
SHOAL_MUST_CHECK enum shoal_err blob_disk_hold(const char *dir, struct shoal_job_id owner, struct shoal_hash blob,
                                               struct shoal_msg *msg);
SHOAL_MUST_CHECK enum shoal_err blob_disk_release(const char *dir, struct shoal_job_id owner, struct shoal_hash blob,
                                                  struct shoal_msg *msg);
/* Every hold of the owner. */
SHOAL_MUST_CHECK enum shoal_err blob_disk_release_all(const char *dir, struct shoal_job_id owner,
                                                      struct shoal_msg *msg);

/* Call `each` for every chunk, or every hold; it returns an error to stop. Foreign names are left alone. */
SHOAL_MUST_CHECK enum shoal_err
blob_disk_each_chunk(const char *dir, enum shoal_err (*each)(void *arg, struct shoal_hash hash, uint32_t bytes),
                     void *arg, struct shoal_msg *msg);
SHOAL_MUST_CHECK enum shoal_err blob_disk_each_hold(const char *dir,
                                                    enum shoal_err (*each)(void *arg, struct shoal_job_id owner,
                                                                           struct shoal_hash blob),
                                                    void *arg, struct shoal_msg *msg);

#endif
