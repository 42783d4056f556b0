/* A group's log holds entries, and some of them are configurations (shoal/raft.h). */
#ifndef SHOAL_RAFT_ENTRY_H
#define SHOAL_RAFT_ENTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/error.h"
#include "shoal/ids.h"
#include "shoal/limits.h"

/* ---- Entries -------------------------------------------------------------------------------------------------- */

enum shoal_entry_kind {
    SHOAL_ENTRY_NOOP,   /* made by the core when a term begins */
    SHOAL_ENTRY_CONFIG, /* an encoded shoal_raft_config; made by the core, or entry 1 of a founding */
    SHOAL_ENTRY_USER,   /* the state machine's */
};
#define SHOAL_ENTRY_KINDS 3

/* Counted, immutable once it has an index. */
struct shoal_entry {
    uint64_t term;
    uint64_t index; /* from 1; 0: not in a log yet */
    uint32_t refs;
    uint32_t len;
    uint32_t cap;
    enum shoal_entry_kind kind;
    uint8_t bytes[];
};

/* A copy of `bytes` with one reference, which is the caller's. NULL: no memory, or over SHOAL_ENTRY_BYTES_MAX. */
struct shoal_entry *shoal_entry_create(enum shoal_entry_kind kind, struct shoal_view bytes);
/* As shoal_entry_create, at a given place: for a store that reads its log, and for foundings. */
struct shoal_entry *shoal_entry_create_at(uint64_t term, uint64_t index, enum shoal_entry_kind kind,
                                          struct shoal_view bytes);
struct shoal_entry *shoal_entry_ref(struct shoal_entry *entry);
void shoal_entry_unref(struct shoal_entry *entry); /* accepts NULL */
static inline struct shoal_view shoal_entry_view(const struct shoal_entry *entry)
{
    return (struct shoal_view){ .bytes = entry->bytes, .len = entry->len };
}

/* ---- Configuration -------------------------------------------------------------------------------------------- */

/* A member is a store on a node: a wiped store is another member, and holds no vote. */
struct shoal_raft_id {
    struct shoal_node_id node;
    struct shoal_store_id store;
};

static inline bool shoal_raft_id_equal(struct shoal_raft_id a, struct shoal_raft_id b)
{
    return shoal_node_id_equal(a.node, b.node) && shoal_store_id_equal(a.store, b.store);
}
static inline bool shoal_raft_id_is_zero(struct shoal_raft_id a)
{
    return shoal_raft_id_equal(a, (struct shoal_raft_id){ .node = { { 0 } } });
}

/* Bits of a member. LEARNER excludes VOTER. VOTER_OLD only while the configuration is joint; with neither of the other
 * bits the member leaves when the joint phase ends. */
#define SHOAL_RAFT_VOTER 1u
#define SHOAL_RAFT_LEARNER 2u
#define SHOAL_RAFT_VOTER_OLD 4u

struct shoal_raft_member {
    struct shoal_raft_id id;
    uint8_t bits;
};

struct shoal_raft_config {
    bool joint; /* decisions need a majority of VOTER and a majority of VOTER_OLD */
    uint8_t count;
    struct shoal_raft_member members[SHOAL_GROUP_NODES_MAX];
};

#define SHOAL_RAFT_CONFIG_BYTES_MAX (2 + 33 * SHOAL_GROUP_NODES_MAX)

/* Bytes of a CONFIG entry. Encode: into `bytes` of at least SHOAL_RAFT_CONFIG_BYTES_MAX, returns the length. */
size_t shoal_raft_config_encode(const struct shoal_raft_config *config, uint8_t *bytes);
SHOAL_MUST_CHECK enum shoal_err shoal_raft_config_decode(struct shoal_view bytes, struct shoal_raft_config *config);
/* NULL when the node is no member. */
const struct shoal_raft_member *shoal_raft_config_find(const struct shoal_raft_config *config,
                                                       struct shoal_node_id node);
/* One voter at least, no member twice, bits consistent. */
bool shoal_raft_config_valid(const struct shoal_raft_config *config);

#endif
