/* Files that a power cut leaves as they were, or as they were to be, and never in between (PROTOCOLS 8).
 *
 *   part, written --flush--> part, whole --rename--> name --flush of the folder--> held
 *
 * Everything that another host, the log or a user is told to be held goes through here before it is told: blobs, bundles
 * made into files, replicated files of a result folder, what is noted of them, the ledger.
 *
 * D1. Under its name a file is whole: all of it was flushed before it got the name.
 * D2. The name is there after a power cut once the call has returned: its folder was flushed too.
 * D3. What fails leaves the old file, and at most a part that nobody reads.
 *
 * Every call waits for the disk, so none belongs on a loop's thread. Any thread may call; two writers of one name at one
 * time need different parts. Errors: FULL, no space; STORAGE, anything else; each names the path and the remedy. */
#ifndef SHOAL_DISK_H
#define SHOAL_DISK_H

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"

#include <errno.h>

static inline const char *shoal_disk_remedy(int error)
{
    if (error == EMFILE || error == ENFILE)
        return "raise the limit of open files (ulimit -n, LimitNOFILE=)";
    return error == EIO ? "the disk is failing, replace it" : "make it writable for the agent's user";
}

/* FULL or STORAGE by errno, as "cannot WHAT PATH: why; remedy". */
SHOAL_MUST_CHECK enum shoal_err shoal_disk_fail(struct shoal_msg *msg, const char *what, const char *path);

/* All of it, at the descriptor's place. Not flushed. */
SHOAL_MUST_CHECK bool shoal_disk_write(int fd, struct shoal_view view);

SHOAL_MUST_CHECK bool shoal_disk_flush_folder(const char *path);

/* The folder and those above it that are not there yet, each flushed into the one that holds it, and with them the deepest
 * that was there. STORAGE, too: something else has the name. A folder that is there whole is not flushed again. */
SHOAL_MUST_CHECK enum shoal_err shoal_disk_folders(const char *path, unsigned mode, struct shoal_msg *msg);

/* The order of a commit, apart from the calls that carry it out, so that a simulated disk can stand below it too. `carry_out`
 * returns false where a step fails, which ends it. The step that failed; DONE: none. */
enum shoal_disk_step {
    SHOAL_DISK_DONE,
    SHOAL_DISK_FLUSH,  /* what was written into the part */
    SHOAL_DISK_RENAME, /* the part gets the name */
    SHOAL_DISK_FLUSH_FOLDER,
};
SHOAL_MUST_CHECK enum shoal_disk_step shoal_disk_order(bool (*carry_out)(void *arg, enum shoal_disk_step step),
                                                       void *arg);

/* Gives the file `part`, written through `fd`, its name: flush, rename, flush of the folder, which is `dir`. Both names
 * are relative to it; AT_FDCWD: to the process. `fd` stays open. */
SHOAL_MUST_CHECK enum shoal_err shoal_disk_commit(int dir, int fd, const char *part, const char *name,
                                                  struct shoal_msg *msg);

/* The whole of `path` becomes these bytes, with that mode whatever the umask is. */
SHOAL_MUST_CHECK enum shoal_err shoal_disk_replace(const char *path, struct shoal_view view, unsigned mode,
                                                   struct shoal_msg *msg);

/* The whole file, at most `max_bytes` (TOO_BIG). NOT_FOUND: there is none. The caller frees `buf`. */
SHOAL_MUST_CHECK enum shoal_err shoal_disk_read(const char *path, size_t max_bytes, struct shoal_buf *buf,
                                                struct shoal_msg *msg);

/* The same of the regular file `name` in the folder of a job, which may have laid anything in its place: as of
 * shoal_open_below(), nothing is followed and nothing is waited for. STORAGE, too: it is none. */
SHOAL_MUST_CHECK enum shoal_err shoal_disk_read_below(const char *folder, const char *name, size_t max_bytes,
                                                      struct shoal_buf *buf, struct shoal_msg *msg);

/* BLAKE2b-256 and length of what is in the file now, read from its start. */
SHOAL_MUST_CHECK bool shoal_disk_digest(int fd, struct shoal_hash *hash, uint64_t *bytes);

#endif
