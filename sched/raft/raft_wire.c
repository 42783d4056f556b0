/* Bytes of a Raft message (little-endian; the group's id goes in front and is not the core's business).
 *
 *     u8 kind | u8 version 1 | u8 oldest reader 1 | id from (16 + 16) | id to (16 + 16) | u64 term | by kind:
 *     PREVOTE, VOTE              u64 for_term, last_index, last_term | bool transfer
 *     PREVOTE_REPLY, VOTE_REPLY  u64 for_term | bool granted
 *     APPEND                     u64 prev_index, prev_term, commit, seq | u8 count |
 *                                count x (u64 term | u8 kind | bytes)
 *     APPEND_REPLY               bool rejected | u64 index, hint, hint_term, commit, seq
 *     READ, READ_REPLY           u64 seq
 *     INSTALL                    u64 index, term | bytes config | u64 offset, total | bytes
 *     INSTALL_REPLY              u64 index, offset, match
 *     TIMEOUT_NOW, GONE          nothing
 *
 * Indexes of entries are not sent: they follow prev_index.
 *
 * W1. What is encoded decodes again: kinds, terms, counts and lengths are in bounds on both sides; here they are
 *     asserted, and in the decoder, which reads foreign bytes, they are errors. */
#include "shoal/raft.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

#define RAFT_WIRE_VERSION 1

static void put_id(struct shoal_writer *w, struct shoal_raft_id id)
{
    shoal_put_node_id(w, id.node);
    shoal_put_store_id(w, id.store);
}

static struct shoal_raft_id get_id(struct shoal_reader *r)
{
    struct shoal_raft_id id;

    id.node = shoal_get_node_id(r);
    id.store = shoal_get_store_id(r);
    return id;
}

static void put_append(struct shoal_writer *w, const struct shoal_raft_message *message)
{
    shoal_put_u64(w, message->u.append.prev_index);
    shoal_put_u64(w, message->u.append.prev_term);
    shoal_put_u64(w, message->u.append.commit);
    shoal_put_u64(w, message->u.append.seq);
    SHOAL_ASSERT(message->u.append.count <= SHOAL_RAFT_BATCH_ENTRIES_MAX);                   /* W1 */
    SHOAL_ASSERT(message->u.append.prev_index <= UINT64_MAX - SHOAL_RAFT_BATCH_ENTRIES_MAX); /* W1 */
    shoal_put_u8(w, (uint8_t)message->u.append.count);
    for (uint32_t i = 0; i < message->u.append.count; i++) {
        const struct shoal_entry *entry = message->u.append.entries[i];

        SHOAL_ASSERT(entry->term > 0);                                      /* L2 */
        SHOAL_ASSERT(entry->index == message->u.append.prev_index + 1 + i); /* L1 */
        SHOAL_ASSERT(entry->len <= SHOAL_ENTRY_BYTES_MAX);                  /* W1 */
        shoal_put_u64(w, entry->term);
        shoal_put_u8(w, (uint8_t)entry->kind);
        shoal_put_bytes(w, shoal_entry_view(entry));
    }
}

static void put_install(struct shoal_writer *w, const struct shoal_raft_message *message)
{
    uint8_t config[SHOAL_RAFT_CONFIG_BYTES_MAX];
    size_t len = shoal_raft_config_encode(&message->u.install.snapshot.config, config);

    SHOAL_ASSERT(message->u.install.bytes.len <= SHOAL_RAFT_CHUNK_BYTES_MAX); /* W1 */
    shoal_put_u64(w, message->u.install.snapshot.index);
    shoal_put_u64(w, message->u.install.snapshot.term);
    shoal_put_bytes(w, shoal_view_of(config, len));
    shoal_put_u64(w, message->u.install.offset);
    shoal_put_u64(w, message->u.install.total);
    shoal_put_bytes(w, message->u.install.bytes);
}

static void put_body(struct shoal_writer *w, const struct shoal_raft_message *message)
{
    switch (message->kind) {
    case SHOAL_RAFT_PREVOTE:
    case SHOAL_RAFT_VOTE:
        shoal_put_u64(w, message->u.vote.for_term);
        shoal_put_u64(w, message->u.vote.last_index);
        shoal_put_u64(w, message->u.vote.last_term);
        shoal_put_bool(w, message->u.vote.transfer);
        return;
    case SHOAL_RAFT_PREVOTE_REPLY:
    case SHOAL_RAFT_VOTE_REPLY:
        shoal_put_u64(w, message->u.vote_reply.for_term);
        shoal_put_bool(w, message->u.vote_reply.granted);
        return;
    case SHOAL_RAFT_APPEND: put_append(w, message); return;
    case SHOAL_RAFT_APPEND_REPLY:
        shoal_put_bool(w, message->u.append_reply.rejected);
        shoal_put_u64(w, message->u.append_reply.index);
        shoal_put_u64(w, message->u.append_reply.hint);
        shoal_put_u64(w, message->u.append_reply.hint_term);
        shoal_put_u64(w, message->u.append_reply.commit);
        shoal_put_u64(w, message->u.append_reply.seq);
        return;
    case SHOAL_RAFT_READ:
    case SHOAL_RAFT_READ_REPLY: shoal_put_u64(w, message->u.read.seq); return;
    case SHOAL_RAFT_INSTALL: put_install(w, message); return;
    case SHOAL_RAFT_INSTALL_REPLY:
        shoal_put_u64(w, message->u.install_reply.index);
        shoal_put_u64(w, message->u.install_reply.offset);
        shoal_put_u64(w, message->u.install_reply.match);
        return;
    case SHOAL_RAFT_TIMEOUT_NOW:
    case SHOAL_RAFT_GONE: return;
    }
}

enum shoal_err shoal_raft_message_encode(const struct shoal_raft_message *message, uint8_t *bytes, size_t cap,
                                         size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    SHOAL_ASSERT((unsigned)message->kind < SHOAL_RAFT_MESSAGE_KINDS); /* W1 */
    SHOAL_ASSERT(message->term > 0);                                  /* W1 */
    shoal_put_u8(&w, (uint8_t)message->kind);
    shoal_put_u8(&w, RAFT_WIRE_VERSION);
    shoal_put_u8(&w, RAFT_WIRE_VERSION);
    put_id(&w, message->from);
    put_id(&w, message->to);
    shoal_put_u64(&w, message->term);
    put_body(&w, message);
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

/* Entries made so far are in the message, so that its deinit undoes a failure. */
static enum shoal_err get_append(struct shoal_reader *r, struct shoal_raft_message *message)
{
    uint32_t count;
    uint64_t index;

    message->u.append.prev_index = shoal_get_u64(r);
    message->u.append.prev_term = shoal_get_u64(r);
    message->u.append.commit = shoal_get_u64(r);
    message->u.append.seq = shoal_get_u64(r);
    count = shoal_get_u8(r);
    index = message->u.append.prev_index;
    if (r->failed || count > SHOAL_RAFT_BATCH_ENTRIES_MAX || index > UINT64_MAX - SHOAL_RAFT_BATCH_ENTRIES_MAX)
        return SHOAL_ERR_MALFORMED;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t term = shoal_get_u64(r);
        enum shoal_entry_kind kind = (enum shoal_entry_kind)shoal_get_enum(r, SHOAL_ENTRY_KINDS);
        struct shoal_view view = shoal_get_bytes(r, SHOAL_ENTRY_BYTES_MAX);

        if (r->failed || term == 0)
            return SHOAL_ERR_MALFORMED;
        message->u.append.entries[i] = shoal_entry_create_at(term, index + 1 + i, kind, view);
        if (message->u.append.entries[i] == NULL)
            return SHOAL_ERR_FULL;
        message->u.append.count++;
    }
    return SHOAL_OK;
}

static enum shoal_err get_install(struct shoal_reader *r, struct shoal_raft_message *message)
{
    struct shoal_view config;

    message->u.install.snapshot.index = shoal_get_u64(r);
    message->u.install.snapshot.term = shoal_get_u64(r);
    config = shoal_get_bytes(r, SHOAL_RAFT_CONFIG_BYTES_MAX);
    message->u.install.offset = shoal_get_u64(r);
    message->u.install.total = shoal_get_u64(r);
    message->u.install.bytes = shoal_get_bytes(r, SHOAL_RAFT_CHUNK_BYTES_MAX);
    if (r->failed)
        return SHOAL_ERR_MALFORMED;
    return shoal_raft_config_decode(config, &message->u.install.snapshot.config);
}

static enum shoal_err get_body(struct shoal_reader *r, struct shoal_raft_message *message)
{
    switch (message->kind) {
    case SHOAL_RAFT_PREVOTE:
    case SHOAL_RAFT_VOTE:
        message->u.vote.for_term = shoal_get_u64(r);
        message->u.vote.last_index = shoal_get_u64(r);
        message->u.vote.last_term = shoal_get_u64(r);
        message->u.vote.transfer = shoal_get_bool(r);
        return SHOAL_OK;
    case SHOAL_RAFT_PREVOTE_REPLY:
    case SHOAL_RAFT_VOTE_REPLY:
        message->u.vote_reply.for_term = shoal_get_u64(r);
        message->u.vote_reply.granted = shoal_get_bool(r);
        return SHOAL_OK;
    case SHOAL_RAFT_APPEND: return get_append(r, message);
    case SHOAL_RAFT_APPEND_REPLY:
        message->u.append_reply.rejected = shoal_get_bool(r);
        message->u.append_reply.index = shoal_get_u64(r);
        message->u.append_reply.hint = shoal_get_u64(r);
        message->u.append_reply.hint_term = shoal_get_u64(r);
        message->u.append_reply.commit = shoal_get_u64(r);
        message->u.append_reply.seq = shoal_get_u64(r);
        return SHOAL_OK;
    case SHOAL_RAFT_READ:
    case SHOAL_RAFT_READ_REPLY: message->u.read.seq = shoal_get_u64(r); return SHOAL_OK;
    case SHOAL_RAFT_INSTALL: return get_install(r, message);
    case SHOAL_RAFT_INSTALL_REPLY:
        message->u.install_reply.index = shoal_get_u64(r);
        message->u.install_reply.offset = shoal_get_u64(r);
        message->u.install_reply.match = shoal_get_u64(r);
        return SHOAL_OK;
    case SHOAL_RAFT_TIMEOUT_NOW:
    case SHOAL_RAFT_GONE: return SHOAL_OK;
    }
    return SHOAL_ERR_MALFORMED;
}

enum shoal_err shoal_raft_message_decode(struct shoal_view bytes, struct shoal_raft_message *message)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_raft_message decoded;
    enum shoal_err err;

    memset(&decoded, 0, sizeof(decoded));
    decoded.kind = (enum shoal_raft_message_kind)shoal_get_enum(&r, SHOAL_RAFT_MESSAGE_KINDS);
    (void)shoal_get_u8(&r);
    if (shoal_get_u8(&r) > RAFT_WIRE_VERSION)
        return SHOAL_ERR_MALFORMED;
    decoded.from = get_id(&r);
    decoded.to = get_id(&r);
    decoded.term = shoal_get_u64(&r);
    if (r.failed || decoded.term == 0)
        return SHOAL_ERR_MALFORMED;
    err = get_body(&r, &decoded);
    if (err == SHOAL_OK && !shoal_reader_done(&r))
        err = SHOAL_ERR_MALFORMED;
    if (err != SHOAL_OK) {
        shoal_raft_message_deinit(&decoded);
        return err;
    }
    *message = decoded;
    return SHOAL_OK;
}

void shoal_raft_message_copy(const struct shoal_raft_message *message, struct shoal_raft_message *copy)
{
    SHOAL_ASSERT(copy != message); /* it would count references twice */
    *copy = *message;
    if (copy->kind != SHOAL_RAFT_APPEND)
        return;
    for (uint32_t i = 0; i < copy->u.append.count; i++)
        (void)shoal_entry_ref(copy->u.append.entries[i]);
}

void shoal_raft_message_deinit(struct shoal_raft_message *message)
{
    if (message->kind != SHOAL_RAFT_APPEND)
        return;
    SHOAL_ASSERT(message->u.append.count <= SHOAL_RAFT_BATCH_ENTRIES_MAX); /* W1 */
    for (uint32_t i = 0; i < message->u.append.count; i++)
        shoal_entry_unref(message->u.append.entries[i]);
    message->u.append.count = 0;
}
