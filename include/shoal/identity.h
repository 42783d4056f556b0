/* The data folder's small files, which say who this node is, and the lock that keeps a second agent off it.
 *
 *   <data>/lock       flock, held while an agent runs
 *   <data>/identity   Ed25519 key and store id, made once, mode 0600
 *   <data>/mesh       mesh name and mesh secret, mode 0600
 *   <data>/boot       kernel boot id, host epoch, agent incarnation: raised and flushed at each start
 *   <data>/store/     the durable environment (store.h)      <data>/cache/   the rebuildable one
 *   <data>/blobs/     chunks and manifests (blob.h)
 *
 * Each file begins with (kind, version, oldest readable) and ends with a CRC-32C; it is replaced by write, flush,
 * rename, flush of the folder. */
#ifndef SHOAL_IDENTITY_H
#define SHOAL_IDENTITY_H

#include "shoal/crypto.h"

#define SHOAL_MESH_NAME_MAX 63
#define SHOAL_BOOT_ID_BYTES 37 /* text of /proc/sys/kernel/random/boot_id, NUL included */
/* "name:64 hex digits" and NUL: what `shoal init` prints and `shoal join` takes. */
#define SHOAL_MESH_KEY_TEXT_BYTES (SHOAL_MESH_NAME_MAX + 1 + SHOAL_SECRET_TEXT_BYTES)

struct shoal_identity {
    struct shoal_public_key public_key;
    struct shoal_secret_key secret_key;
    struct shoal_node_id node;   /* hash of public_key */
    struct shoal_store_id store; /* random, made with the folder */
    struct shoal_secret mesh_secret;
    char mesh_name[SHOAL_MESH_NAME_MAX + 1];
    struct shoal_incarnation incarnation; /* refutation is 0 */
};

struct shoal_identity_options {
    const char *data_dir;
    const char *mesh_name;                  /* 1 to 63 of a-z 0-9 - */
    const struct shoal_secret *mesh_secret; /* NULL: make one (init) */
};

/* Make the folder (its parent must exist) and its files. The incarnation stays 0 until the first load.
 * EXISTS: the folder belongs to a mesh already. INVALID: the name. STORAGE: the folder cannot be written. */
SHOAL_MUST_CHECK enum shoal_err shoal_identity_create(const struct shoal_identity_options *options,
                                                      struct shoal_identity *identity, struct shoal_msg *msg);

/* Read the folder; with `raise`, raise the incarnation (and the host epoch, when the kernel's boot id changed) and
 * flush that before returning: only an agent that holds the lock does so. `boot_id` NULL: the kernel's. NOT_FOUND: no
 * mesh here yet. MALFORMED: a file is damaged or newer than this binary. STORAGE: cannot read or write. */
SHOAL_MUST_CHECK enum shoal_err shoal_identity_load(const char *data_dir, const char *boot_id, bool raise,
                                                    struct shoal_identity *identity, struct shoal_msg *msg);

void shoal_identity_wipe(struct shoal_identity *identity);

/* `*fd` holds the lock until it is closed; it is close-on-exec. EXISTS: another agent runs on this folder. */
SHOAL_MUST_CHECK enum shoal_err shoal_folder_lock(const char *data_dir, int *fd, struct shoal_msg *msg);
void shoal_folder_unlock(int *fd);

void shoal_mesh_key_text(const struct shoal_identity *identity, char text[SHOAL_MESH_KEY_TEXT_BYTES]);
SHOAL_MUST_CHECK enum shoal_err shoal_mesh_key_parse(const char *text, char name[SHOAL_MESH_NAME_MAX + 1],
                                                     struct shoal_secret *secret, struct shoal_msg *msg);

#endif
