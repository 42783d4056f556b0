/* The mesh group orders what belongs to everyone: users, the token key, frameworks, revoked tokens, evicted nodes
 * (PROTOCOLS 4).
 *
 *     mesh group: commands in log order --> shoal_mesh_apply() on each of its guardians
 *     every node: the newest sealed copy, shoal_mesh_decode(), serves logons and reads from it
 *
 * A replicated state machine: pure, bit-identical on all replicas, no clock (times ride in the commands). The copy
 * holds password hashes and the token key: it travels over links only, never in gossip, and lies in a file of mode
 * 0600. */
#ifndef SHOAL_MESH_H
#define SHOAL_MESH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

struct shoal_mesh; /* state: its fields live in sched/job/mesh.c */

#define SHOAL_MESH_USER_BYTES 64      /* with the NUL, as SHOAL_USER_BYTES_MAX */
#define SHOAL_MESH_PASSWORD_BYTES 128 /* text of crypto_pwhash_str, with the NUL */
#define SHOAL_MESH_KEY_BYTES 32
#define SHOAL_MESH_KEYS_MAX 2
#define SHOAL_MESH_TOKEN_ID_BYTES 16
#define SHOAL_TOKEN_ID_UID_BYTES 4 /* a token's id begins with its user's uid */
#define SHOAL_MESH_FRAMEWORK_BYTES 48
#define SHOAL_MESH_SETTINGS_BYTES 1024
/* A framework's row of this name and a runtime's behind it is that runtime (decision 0043). */
#define SHOAL_MESH_RUNTIME_PREFIX "runtime@"
#define SHOAL_MESH_TEXT_BYTES 64
#define SHOAL_MESH_SERVICE_BYTES 64

/* Bounds: a change beyond them is refused (FULL) and counted by the caller. */
#define SHOAL_MESH_USERS_MAX 1024
#define SHOAL_MESH_FRAMEWORKS_MAX 64
#define SHOAL_MESH_REVOCATIONS_MAX 8192
/* Tokens of one user that have a row each: one logoff every three minutes for twelve hours. Beyond it a logoff ends all
 * tokens of that user, which takes no row; so 32 users that try together fill the table, and then the same goes for all. */
#define SHOAL_MESH_USER_REVOCATIONS_MAX 256
/* Rows that stay free for logoffs that were decided by an older copy of the table. */
#define SHOAL_MESH_REVOCATIONS_RESERVE 64
#define SHOAL_MESH_EVICTIONS_MAX 1024
#define SHOAL_MESH_SERVICES_MAX 1024
/* The whole encoded state. */
#define SHOAL_MESH_COPY_BYTES_MAX (1024u * 1024u)
#define SHOAL_MESH_COMMAND_BYTES_MAX 2048

struct shoal_mesh_user {
    char name[SHOAL_MESH_USER_BYTES];         /* 1 to 63 of A-Z a-z 0-9 . _ @ - */
    char password[SHOAL_MESH_PASSWORD_BYTES]; /* Argon2id text */
    uint32_t uid;                             /* given by the group, from 1000 on; never used again */
    bool admin;
    bool disabled;
    uint64_t tokens_from_s; /* tokens issued before this time (epoch seconds) are void; 0: all stand */
};

struct shoal_mesh_framework {
    char name[SHOAL_MESH_FRAMEWORK_BYTES]; /* canonical spelling; compared without case */
    bool enabled;
    char settings[SHOAL_MESH_SETTINGS_BYTES]; /* JSON object that overrides the built-in description; "" = none */
};

struct shoal_mesh_revocation {
    uint8_t token[SHOAL_MESH_TOKEN_ID_BYTES];
    uint64_t exp_s; /* forgotten after this time */
};

/* A service's name, and the job that has its replicas. */
struct shoal_mesh_service {
    char name[SHOAL_MESH_SERVICE_BYTES]; /* as shoal_service_name_valid says */
    char creator[SHOAL_MESH_USER_BYTES];
    struct shoal_job_id job;
    struct shoal_job_id before; /* of a command: the job that the name stands for now; zero: the name is not in use. In the
                                   state: the job that it stood for before this one */
    uint64_t created_s;         /* wall clock; given by the group */
    uint64_t updated_s;
    uint32_t version;  /* from 1, one more for each job; given by the group */
    uint32_t replicas; /* as it was deployed: what a start asks for */
};

enum shoal_mesh_command_kind {
    SHOAL_MESH_INIT,         /* first command: `name`, `user` (an administrator), `key`, `now_s` */
    SHOAL_MESH_ADD_USER,     /* EXISTS */
    SHOAL_MESH_SET_USER,     /* role, disabled; NOT_FOUND; INVALID: the last administrator stays one */
    SHOAL_MESH_SET_PASSWORD, /* voids older tokens: tokens_from_s = now_s */
    SHOAL_MESH_REMOVE_USER,
    SHOAL_MESH_ROTATE_KEY,    /* `key` becomes the newest, the newest the older one */
    SHOAL_MESH_SET_FRAMEWORK, /* adds or replaces */
    SHOAL_MESH_REMOVE_FRAMEWORK,
    SHOAL_MESH_REVOKE,      /* `token` until `exp_s` */
    SHOAL_MESH_VOID_TOKENS, /* all tokens of `user.name` issued before now_s */
    SHOAL_MESH_EVICT,       /* `node` guards nothing and runs nothing from now on */
    SHOAL_MESH_READMIT,
    SHOAL_MESH_SET_SERVICE,    /* name, creator, job, before. EXISTS: the name is in use; STALE: for another job than
                                  `before`; DENIED: it is another user's */
    SHOAL_MESH_REMOVE_SERVICE, /* name, creator, before. NOT_FOUND, STALE, DENIED */
};
#define SHOAL_MESH_COMMAND_KINDS 14

struct shoal_mesh_command {
    enum shoal_mesh_command_kind kind;
    uint64_t now_s;                    /* wall clock of who asked: for tokens_from_s and for forgetting revocations */
    char name[SHOAL_MESH_TEXT_BYTES];  /* INIT: of the mesh */
    struct shoal_mesh_user user;       /* by kind: name; name and password; ... */
    uint8_t key[SHOAL_MESH_KEY_BYTES]; /* INIT, ROTATE_KEY */
    struct shoal_mesh_framework framework;
    struct shoal_mesh_revocation revocation;
    struct shoal_node_id node;
    struct shoal_mesh_service service;
};

/* TOO_BIG: does not fit; SHOAL_MESH_COMMAND_BYTES_MAX is always enough. */
SHOAL_MUST_CHECK enum shoal_err shoal_mesh_command_encode(const struct shoal_mesh_command *command, uint8_t *bytes,
                                                          size_t cap, size_t *len);
/* MALFORMED: does not decode, or a field is out of its range. */
SHOAL_MUST_CHECK enum shoal_err shoal_mesh_command_decode(struct shoal_view bytes, struct shoal_mesh_command *command);

/* Empty: version 0. NULL: no memory. */
struct shoal_mesh *shoal_mesh_create(void);
void shoal_mesh_destroy(struct shoal_mesh *mesh); /* accepts NULL; wipes the keys */

/* Apply the log entry at `index`. Deterministic: a refused command (with its code and message) changes nothing but the
 * version. The version is the index. STALE: index is not above the version, nothing was done. */
SHOAL_MUST_CHECK enum shoal_err shoal_mesh_apply(struct shoal_mesh *mesh, uint64_t index, struct shoal_view command,
                                                 struct shoal_msg *msg);
/* Says what apply would say, without changing anything: for a refusal before the log. */
SHOAL_MUST_CHECK enum shoal_err shoal_mesh_check(const struct shoal_mesh *mesh, struct shoal_view command,
                                                 struct shoal_msg *msg);

/* The whole state, appended to `buf`: snapshot and copy. FULL: no memory. */
SHOAL_MUST_CHECK enum shoal_err shoal_mesh_encode(const struct shoal_mesh *mesh, struct shoal_buf *buf);
/* Replaces the state, on success only. MALFORMED, FULL (no memory). */
SHOAL_MUST_CHECK enum shoal_err shoal_mesh_decode(struct shoal_mesh *mesh, struct shoal_view bytes);

/* Reads, at once. Pointers live until the next apply, decode or destroy. */
uint64_t shoal_mesh_version(const struct shoal_mesh *mesh);
const char *shoal_mesh_name(const struct shoal_mesh *mesh);
const struct shoal_mesh_user *shoal_mesh_user_find(const struct shoal_mesh *mesh, const char *name);
bool shoal_mesh_user_name_is_valid(const char *name); /* of any length */
size_t shoal_mesh_user_count(const struct shoal_mesh *mesh);
const struct shoal_mesh_user *shoal_mesh_user_at(const struct shoal_mesh *mesh, size_t i); /* in name order */
/* The newest first: it signs, all verify. Returns the count, at most SHOAL_MESH_KEYS_MAX. */
size_t shoal_mesh_token_keys(const struct shoal_mesh *mesh, uint8_t keys[SHOAL_MESH_KEYS_MAX][SHOAL_MESH_KEY_BYTES]);
const struct shoal_mesh_framework *shoal_mesh_framework_find(const struct shoal_mesh *mesh, const char *name);
size_t shoal_mesh_framework_count(const struct shoal_mesh *mesh);
const struct shoal_mesh_framework *shoal_mesh_framework_at(const struct shoal_mesh *mesh, size_t i);
bool shoal_mesh_token_revoked(const struct shoal_mesh *mesh, const uint8_t token[SHOAL_MESH_TOKEN_ID_BYTES]);
/* Whether a token of this user may be ended by a row of its own (REVOKE); else by VOID_TOKENS, together with all others of
 * the user. A token's id
 * begins with the user's uid, so the rows of a user can be told. */
bool shoal_mesh_revokes_singly(const struct shoal_mesh *mesh, uint32_t uid, uint64_t now_s);
bool shoal_mesh_evicted(const struct shoal_mesh *mesh, struct shoal_node_id node);
size_t shoal_mesh_eviction_count(const struct shoal_mesh *mesh);
struct shoal_node_id shoal_mesh_eviction_at(const struct shoal_mesh *mesh, size_t i);
const struct shoal_mesh_service *shoal_mesh_service_find(const struct shoal_mesh *mesh, const char *name);
size_t shoal_mesh_service_count(const struct shoal_mesh *mesh);
const struct shoal_mesh_service *shoal_mesh_service_at(const struct shoal_mesh *mesh, size_t i); /* in name order */

#endif
