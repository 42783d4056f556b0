/* Frames, tickets, founding records, snapshot heads and mesh copies as bytes.
 *
 *   every one: u8 kind, u8 version, u8 oldest version that can read it, then the fields in the order of the struct
 *
 * Nothing here is trusted: lengths meet their bounds first, enums are checked, leftovers are malformed. */
#include "sched_wire.h"

#include "shoal/job.h"

#include "shoal/raft.h"

#include "shoal/pack.h"
#include "shoal/sched_look.h"
#include "shoal/sched_ticket.h"

#include "shoal/banned.h"

/* Kinds of what is kept or carried inside frames; beyond those of frames, so that none passes for another. */
#define KIND_TICKET 0x41
#define KIND_HEAD 0x43
#define KIND_MESH_HINT 0x44
#define KIND_MESH_COPY 0x45
#define KIND_RECOVERY 0x46
#define KIND_KEPT 0x48
#define KIND_MESH_STATEMENT 0x49
#define COPY_SEALED_VERSION 2 /* of KIND_MESH_COPY; 1 has one signature */

#define BODY_MAX (SHOAL_FRAME_BYTES_MAX - 1024)

static void put_head(struct shoal_writer *w, unsigned kind)
{
    SHOAL_ASSERT(kind <= UINT8_MAX);
    shoal_put_u8(w, (uint8_t)kind);
    shoal_put_u8(w, SCHED_WIRE_VERSION);
    shoal_put_u8(w, SCHED_WIRE_VERSION);
}

static void get_head(struct shoal_reader *r, unsigned kind)
{
    SHOAL_ASSERT(r->at <= r->len);
    if (shoal_get_u8(r) != kind)
        r->failed = true;
    (void)shoal_get_u8(r);
    if (shoal_get_u8(r) > SCHED_WIRE_VERSION) /* written for newer readers only */
        r->failed = true;
}

/* ---- Frames ----------------------------------------------------------------------------------------------------- */

static void put_request(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_REQUEST);
    SHOAL_ASSERT(f->u.request.kind < SHOAL_SCHED_REQUEST_KINDS); /* what is written can be read */
    shoal_put_u64(w, f->u.request.id);
    shoal_put_u8(w, f->u.request.hops);
    shoal_put_u8(w, f->u.request.kind);
    shoal_put_job_id(w, f->u.request.job);
    shoal_put_bool(w, f->u.request.linearizable);
    shoal_put_u32(w, f->u.request.deadline_ms);
    shoal_put_text(w, f->u.request.by);
    shoal_put_bytes(w, f->u.request.command);
    if (f->u.request.token.len > 0)
        shoal_put_bytes(w, f->u.request.token);
}

static void put_response(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_RESPONSE);
    shoal_put_u64(w, f->u.response.id);
    shoal_put_u16(w, f->u.response.err);
    shoal_put_bool(w, f->u.response.retry);
    shoal_put_node_id(w, f->u.response.leader);
    shoal_put_u64(w, f->u.response.version);
    shoal_put_text(w, f->u.response.text);
    shoal_put_bytes(w, f->u.response.bytes);
}

static void put_found_reply(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_FOUND_REPLY);
    SHOAL_ASSERT(f->u.found_reply.answer < FOUND_ANSWERS); /* what is written can be read */
    shoal_put_job_id(w, f->u.found_reply.job);
    shoal_put_u64(w, f->u.found_reply.nonce);
    shoal_put_u8(w, f->u.found_reply.answer);
    shoal_put_text(w, f->u.found_reply.text);
}

static void put_who_reply(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_WHO_REPLY);
    shoal_put_u64(w, f->u.who_reply.id);
    shoal_put_job_id(w, f->u.who_reply.job);
    shoal_put_bool(w, f->u.who_reply.holds);
    shoal_put_bool(w, f->u.who_reply.gone);
    shoal_put_node_id(w, f->u.who_reply.leader);
}

static void put_mesh_part(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_MESH_PART);
    shoal_put_u64(w, f->u.mesh_part.version);
    shoal_put_u64(w, f->u.mesh_part.offset);
    shoal_put_u64(w, f->u.mesh_part.total);
    shoal_put_bytes(w, f->u.mesh_part.bytes);
}

static void put_seal(struct shoal_writer *w, const struct mesh_seal *seal)
{
    SHOAL_ASSERT(seal != NULL);
    shoal_put_raw(w, seal->key, sizeof(seal->key));
    shoal_put_bool(w, seal->binds);
    shoal_put_raw(w, seal->signature, sizeof(seal->signature));
}

static void get_seal(struct shoal_reader *r, struct mesh_seal *seal)
{
    SHOAL_ASSERT(r->at <= r->len);
    shoal_get_raw(r, seal->key, sizeof(seal->key));
    seal->binds = shoal_get_bool(r);
    shoal_get_raw(r, seal->signature, sizeof(seal->signature));
}

static void put_replica(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_REPLICA);
    shoal_put_u64(w, f->u.replica.id);
    shoal_put_job_id(w, f->u.replica.job);
    shoal_put_store_id(w, f->u.replica.store);
    shoal_put_bool(w, f->u.replica.holds);
    shoal_put_u64(w, f->u.replica.term);
    shoal_put_u64(w, f->u.replica.last_index);
    shoal_put_u64(w, f->u.replica.last_term);
}

static void put_archive(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_ARCHIVE);
    SHOAL_ASSERT(f->u.archive.word < ARCHIVE_WORDS); /* what is written can be read */
    shoal_put_job_id(w, f->u.archive.job);
    shoal_put_u8(w, f->u.archive.word);
    shoal_put_bool(w, f->u.archive.final);
    shoal_put_bool(w, f->u.archive.deleted);
    shoal_put_hash(w, f->u.archive.hash);
    shoal_put_bytes(w, f->u.archive.record);
}

static void put_park(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_PARK);
    SHOAL_ASSERT(f->u.park.word < PARK_WORDS); /* what is written can be read */
    shoal_put_job_id(w, f->u.park.job);
    shoal_put_u8(w, f->u.park.word);
    shoal_put_u64(w, f->u.park.term);
    shoal_put_u64(w, f->u.park.index);
}

static void put_news(struct shoal_writer *w, const struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_NEWS);
    shoal_put_bool(w, f->u.news.is_summary);
    shoal_put_u64(w, f->u.news.version.config);
    shoal_put_u64(w, f->u.news.version.term);
    shoal_put_u64(w, f->u.news.version.applied);
    shoal_put_bytes(w, f->u.news.payload);
}

bool sched_frame_encode(const struct frame *f, struct shoal_writer *w)
{
    SHOAL_ASSERT(f->kind < FRAME_KINDS); /* what is written can be read */
    put_head(w, f->kind);
    switch (f->kind) {
    case FRAME_RAFT:
        shoal_put_job_id(w, f->u.raft.group);
        shoal_put_raw(w, f->u.raft.message.bytes, f->u.raft.message.len);
        break;
    case FRAME_FOUND: shoal_put_bytes(w, f->u.found.record); break;
    case FRAME_FOUND_REPLY: put_found_reply(w, f); break;
    case FRAME_HOST: shoal_put_bytes(w, f->u.host.bytes); break;
    case FRAME_REQUEST: put_request(w, f); break;
    case FRAME_RESPONSE: put_response(w, f); break;
    case FRAME_WHO:
    case FRAME_REBUILD:
    case FRAME_GONE:
        shoal_put_u64(w, f->u.who.id);
        shoal_put_job_id(w, f->u.who.job);
        break;
    case FRAME_WHO_REPLY: put_who_reply(w, f); break;
    case FRAME_MESH_GET:
        shoal_put_u64(w, f->u.mesh_get.version);
        shoal_put_u64(w, f->u.mesh_get.offset);
        break;
    case FRAME_MESH_PART: put_mesh_part(w, f); break;
    case FRAME_DIGEST:
        shoal_put_job_id(w, f->u.digest.group);
        shoal_put_u64(w, f->u.digest.index);
        shoal_put_u64(w, f->u.digest.digest);
        break;
    case FRAME_REPLICA_ASK:
        shoal_put_u64(w, f->u.replica.id);
        shoal_put_job_id(w, f->u.replica.job);
        break;
    case FRAME_REPLICA: put_replica(w, f); break;
    case FRAME_ARCHIVE: put_archive(w, f); break;
    case FRAME_PARK: put_park(w, f); break;
    case FRAME_NEWS: put_news(w, f); break;
    case FRAME_SEAL:
        shoal_put_u64(w, f->u.seal.version);
        shoal_put_u64(w, f->u.seal.config);
        shoal_put_bool(w, f->u.seal.wanted);
        put_seal(w, &f->u.seal.seal);
        break;
    case FRAME_KINDS: break;
    }
    return !w->failed;
}

static void get_request(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_REQUEST);
    f->u.request.id = shoal_get_u64(r);
    f->u.request.hops = shoal_get_u8(r);
    f->u.request.kind = shoal_get_enum(r, SHOAL_SCHED_REQUEST_KINDS);
    f->u.request.job = shoal_get_job_id(r);
    f->u.request.linearizable = shoal_get_bool(r);
    f->u.request.deadline_ms = shoal_get_u32(r);
    shoal_get_text(r, f->u.request.by, sizeof(f->u.request.by));
    f->u.request.command = shoal_get_bytes(r, BODY_MAX);
    f->u.request.token = (struct shoal_view){ 0 };
    if (shoal_reader_left(r) > 0)
        f->u.request.token = shoal_get_bytes(r, SHOAL_SCHED_TOKEN_BYTES_MAX);
}

static void get_response(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_RESPONSE);
    f->u.response.id = shoal_get_u64(r);
    f->u.response.err = shoal_get_u16(r);
    if (f->u.response.err >= SHOAL_ERRS)
        r->failed = true;
    f->u.response.retry = shoal_get_bool(r);
    f->u.response.leader = shoal_get_node_id(r);
    f->u.response.version = shoal_get_u64(r);
    shoal_get_text(r, f->u.response.text, sizeof(f->u.response.text));
    f->u.response.bytes = shoal_get_bytes(r, BODY_MAX);
}

static void get_mesh_part(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_MESH_PART);
    f->u.mesh_part.version = shoal_get_u64(r);
    f->u.mesh_part.offset = shoal_get_u64(r);
    f->u.mesh_part.total = shoal_get_u64(r);
    f->u.mesh_part.bytes = shoal_get_bytes(r, BODY_MAX);
    if (f->u.mesh_part.offset > f->u.mesh_part.total ||
        f->u.mesh_part.bytes.len > f->u.mesh_part.total - f->u.mesh_part.offset)
        r->failed = true;
}

static void get_raft(struct shoal_reader *r, struct frame *f)
{
    size_t left;

    SHOAL_ASSERT(f->kind == FRAME_RAFT);
    f->u.raft.group = shoal_get_job_id(r);
    left = shoal_reader_left(r);
    f->u.raft.message = shoal_view_of(shoal_get_space(r, left), left);
    if (left == 0)
        r->failed = true;
}

static void get_found_reply(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_FOUND_REPLY);
    f->u.found_reply.job = shoal_get_job_id(r);
    f->u.found_reply.nonce = shoal_get_u64(r);
    f->u.found_reply.answer = shoal_get_enum(r, FOUND_ANSWERS);
    shoal_get_text(r, f->u.found_reply.text, sizeof(f->u.found_reply.text));
}

static void get_who_reply(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_WHO_REPLY);
    f->u.who_reply.id = shoal_get_u64(r);
    f->u.who_reply.job = shoal_get_job_id(r);
    f->u.who_reply.holds = shoal_get_bool(r);
    f->u.who_reply.gone = shoal_get_bool(r);
    f->u.who_reply.leader = shoal_get_node_id(r);
}

static void get_replica(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_REPLICA);
    f->u.replica.id = shoal_get_u64(r);
    f->u.replica.job = shoal_get_job_id(r);
    f->u.replica.store = shoal_get_store_id(r);
    f->u.replica.holds = shoal_get_bool(r);
    f->u.replica.term = shoal_get_u64(r);
    f->u.replica.last_index = shoal_get_u64(r);
    f->u.replica.last_term = shoal_get_u64(r);
}

static void get_archive(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_ARCHIVE);
    f->u.archive.job = shoal_get_job_id(r);
    f->u.archive.word = shoal_get_enum(r, ARCHIVE_WORDS);
    f->u.archive.final = shoal_get_bool(r);
    f->u.archive.deleted = shoal_get_bool(r);
    f->u.archive.hash = shoal_get_hash(r);
    f->u.archive.record = shoal_get_bytes(r, SHOAL_ARCHIVE_RECORD_BYTES_MAX);
}

static void get_park(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_PARK);
    f->u.park.job = shoal_get_job_id(r);
    f->u.park.word = shoal_get_enum(r, PARK_WORDS);
    f->u.park.term = shoal_get_u64(r);
    f->u.park.index = shoal_get_u64(r);
}

static void get_news(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind == FRAME_NEWS);
    f->u.news.is_summary = shoal_get_bool(r);
    f->u.news.version.config = shoal_get_u64(r);
    f->u.news.version.term = shoal_get_u64(r);
    f->u.news.version.applied = shoal_get_u64(r);
    f->u.news.payload = shoal_get_bytes(r, SHOAL_RECORD_PAYLOAD_MAX);
}

static void get_body(struct shoal_reader *r, struct frame *f)
{
    SHOAL_ASSERT(f->kind < FRAME_KINDS); /* the head was read */
    switch (f->kind) {
    case FRAME_RAFT: get_raft(r, f); break;
    case FRAME_FOUND: f->u.found.record = shoal_get_bytes(r, SHOAL_ENTRY_BYTES_MAX); break;
    case FRAME_FOUND_REPLY: get_found_reply(r, f); break;
    case FRAME_HOST: f->u.host.bytes = shoal_get_bytes(r, BODY_MAX); break;
    case FRAME_REQUEST: get_request(r, f); break;
    case FRAME_RESPONSE: get_response(r, f); break;
    case FRAME_WHO:
    case FRAME_REBUILD:
    case FRAME_GONE:
        f->u.who.id = shoal_get_u64(r);
        f->u.who.job = shoal_get_job_id(r);
        break;
    case FRAME_WHO_REPLY: get_who_reply(r, f); break;
    case FRAME_MESH_GET:
        f->u.mesh_get.version = shoal_get_u64(r);
        f->u.mesh_get.offset = shoal_get_u64(r);
        break;
    case FRAME_MESH_PART: get_mesh_part(r, f); break;
    case FRAME_DIGEST:
        f->u.digest.group = shoal_get_job_id(r);
        f->u.digest.index = shoal_get_u64(r);
        f->u.digest.digest = shoal_get_u64(r);
        break;
    case FRAME_REPLICA_ASK:
        f->u.replica.id = shoal_get_u64(r);
        f->u.replica.job = shoal_get_job_id(r);
        break;
    case FRAME_REPLICA: get_replica(r, f); break;
    case FRAME_ARCHIVE: get_archive(r, f); break;
    case FRAME_PARK: get_park(r, f); break;
    case FRAME_NEWS: get_news(r, f); break;
    case FRAME_SEAL:
        f->u.seal.version = shoal_get_u64(r);
        f->u.seal.config = shoal_get_u64(r);
        f->u.seal.wanted = shoal_get_bool(r);
        get_seal(r, &f->u.seal.seal);
        break;
    case FRAME_KINDS: break;
    }
}

enum shoal_err sched_frame_decode(struct shoal_view bytes, struct frame *frame)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    unsigned kind = shoal_get_enum(&r, FRAME_KINDS);

    SHOAL_ASSERT(frame != NULL);
    frame->kind = (enum frame_kind)kind;
    (void)shoal_get_u8(&r);
    if (r.failed || shoal_get_u8(&r) > SCHED_WIRE_VERSION)
        return SHOAL_ERR_MALFORMED;
    get_body(&r, frame);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

/* ---- Tickets ---- */

bool sched_ticket_encode_body(const struct shoal_sched_ticket *t, struct shoal_writer *w)
{
    SHOAL_ASSERT(t->guardian_count <= SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    put_head(w, KIND_TICKET);
    shoal_put_job_id(w, t->job);
    shoal_put_hash(w, t->spec_hash);
    shoal_put_u64(w, t->wall_ms);
    shoal_put_node_id(w, t->issuer);
    shoal_put_incarnation(w, t->incarnation);
    shoal_put_u64(w, t->nonce);
    shoal_put_u8(w, t->target);
    shoal_put_u8(w, t->guardian_count);
    for (unsigned i = 0; i < t->guardian_count; i++) {
        shoal_put_node_id(w, t->guardians[i].node);
        shoal_put_store_id(w, t->guardians[i].store);
    }
    shoal_put_raw(w, t->key, sizeof(t->key));
    return !w->failed;
}

enum shoal_err shoal_sched_ticket_encode(const struct shoal_sched_ticket *ticket, uint8_t *bytes, size_t cap,
                                         size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    if (ticket->guardian_count > SHOAL_SCHED_SOURCES_MAX)
        return SHOAL_ERR_TOO_BIG;
    (void)sched_ticket_encode_body(ticket, &w);
    shoal_put_raw(&w, ticket->signature, sizeof(ticket->signature));
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_sched_ticket_decode(struct shoal_view bytes, struct shoal_sched_ticket *ticket)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_sched_ticket t = { 0 };

    SHOAL_ASSERT(ticket != NULL);
    get_head(&r, KIND_TICKET);
    t.job = shoal_get_job_id(&r);
    t.spec_hash = shoal_get_hash(&r);
    t.wall_ms = shoal_get_u64(&r);
    t.issuer = shoal_get_node_id(&r);
    t.incarnation = shoal_get_incarnation(&r);
    t.nonce = shoal_get_u64(&r);
    t.target = shoal_get_enum(&r, SHOAL_SCHED_SOURCES_MAX + 1);
    t.guardian_count = shoal_get_enum(&r, SHOAL_SCHED_SOURCES_MAX + 1);
    for (unsigned i = 0; i < t.guardian_count; i++) {
        t.guardians[i].node = shoal_get_node_id(&r);
        t.guardians[i].store = shoal_get_store_id(&r);
    }
    shoal_get_raw(&r, t.key, sizeof(t.key));
    shoal_get_raw(&r, t.signature, sizeof(t.signature));
    if (!shoal_reader_done(&r) || t.guardian_count == 0 || shoal_job_id_is_mesh(t.job))
        return SHOAL_ERR_MALFORMED;
    for (unsigned i = 0; i < t.guardian_count; i++) {
        for (unsigned j = 0; j < i; j++) {
            if (shoal_node_id_equal(t.guardians[i].node, t.guardians[j].node))
                return SHOAL_ERR_MALFORMED;
        }
    }
    *ticket = t;
    return SHOAL_OK;
}

/* ---- What a recovery found ----------------------------------------------------------------------------------------
 */

size_t shoal_sched_recovery_encode(const struct shoal_sched_recovery *recovery, uint8_t *bytes)
{
    struct shoal_writer w = shoal_writer_init(bytes, SHOAL_SCHED_RECOVERY_BYTES_MAX);

    SHOAL_ASSERT(recovery->lost_count <= SHOAL_GROUP_NODES_MAX); /* what is written can be read */
    put_head(&w, KIND_RECOVERY);
    shoal_put_bool(&w, recovery->done);
    shoal_put_node_id(&w, recovery->node);
    shoal_put_u32(&w, recovery->generation);
    shoal_put_u64(&w, recovery->term);
    shoal_put_u64(&w, recovery->index);
    shoal_put_u64(&w, recovery->commit);
    shoal_put_u8(&w, recovery->guardian_count);
    shoal_put_u8(&w, recovery->lost_count);
    for (unsigned i = 0; i < recovery->lost_count; i++)
        shoal_put_node_id(&w, recovery->lost[i]);
    SHOAL_ASSERT(!w.failed);
    return w.len;
}

enum shoal_err shoal_sched_recovery_decode(struct shoal_view bytes, struct shoal_sched_recovery *recovery)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(recovery != NULL);
    *recovery = (struct shoal_sched_recovery){ 0 };
    get_head(&r, KIND_RECOVERY);
    recovery->done = shoal_get_bool(&r);
    recovery->node = shoal_get_node_id(&r);
    recovery->generation = shoal_get_u32(&r);
    recovery->term = shoal_get_u64(&r);
    recovery->index = shoal_get_u64(&r);
    recovery->commit = shoal_get_u64(&r);
    recovery->guardian_count = shoal_get_enum(&r, SHOAL_GROUP_NODES_MAX + 1);
    recovery->lost_count = shoal_get_enum(&r, SHOAL_GROUP_NODES_MAX + 1);
    for (unsigned i = 0; i < recovery->lost_count; i++)
        recovery->lost[i] = shoal_get_node_id(&r);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

/* ---- Founding records ---------------------------------------------------------------------------------------------
 */

bool sched_record_encode(const struct founding_record *record, struct shoal_writer *w)
{
    SHOAL_ASSERT(record->generation > 0); /* what is written can be read */
    shoal_put_u8(w, RECORD_FOUND);
    shoal_put_u8(w, SCHED_WIRE_VERSION);
    shoal_put_u8(w, SCHED_WIRE_VERSION);
    if (!sched_ticket_encode_body(&record->ticket, w))
        return false;
    shoal_put_raw(w, record->ticket.signature, sizeof(record->ticket.signature));
    shoal_put_u32(w, record->generation);
    shoal_put_bytes(w, record->spec);
    shoal_put_hash(w, record->bundle_hash);
    shoal_put_bytes(w, record->bundle);
    return !w->failed;
}

enum shoal_err sched_record_decode(struct shoal_view bytes, struct founding_record *record)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_view ticket;
    size_t ticket_at;
    enum shoal_err err;

    SHOAL_ASSERT(record != NULL);
    get_head(&r, RECORD_FOUND);
    /* The ticket has no length before it: its guardians' count tells it. */
    ticket_at = r.at;
    (void)shoal_get_space(&r, 3 + 10 + 32 + 8 + 16 + 12 + 8 + 1);
    (void)shoal_get_space(&r, 32 * (size_t)shoal_get_enum(&r, SHOAL_SCHED_SOURCES_MAX + 1));
    (void)shoal_get_space(&r, SHOAL_SCHED_KEY_BYTES + SHOAL_SCHED_SIGNATURE_BYTES);
    if (r.failed)
        return SHOAL_ERR_MALFORMED;
    ticket = shoal_view_of(bytes.bytes + ticket_at, r.at - ticket_at);
    err = shoal_sched_ticket_decode(ticket, &record->ticket);
    if (err != SHOAL_OK)
        return err;
    record->generation = shoal_get_u32(&r);
    record->spec = shoal_get_bytes(&r, SHOAL_SCHED_SPEC_BYTES_MAX);
    record->bundle_hash = shoal_get_hash(&r);
    record->bundle = shoal_get_bytes(&r, SHOAL_BUNDLE_INLINE_MAX);
    return shoal_reader_done(&r) && record->generation > 0 ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

/* ---- Snapshots ---- */

bool sched_head_encode(const struct group_head *head, struct shoal_writer *w)
{
    SHOAL_ASSERT(head->config.len <= SHOAL_RAFT_CONFIG_BYTES_MAX); /* what is written can be read */
    put_head(w, KIND_HEAD);
    shoal_put_bytes(w, head->config);
    shoal_put_u64(w, head->config_index);
    shoal_put_hash(w, head->spec_hash);
    shoal_put_hash(w, head->bundle_hash);
    shoal_put_u8(w, head->target);
    shoal_put_bool(w, head->refused);
    shoal_put_bytes(w, head->machine);
    return !w->failed;
}

enum shoal_err sched_head_decode(struct shoal_view bytes, struct group_head *head)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(head != NULL);
    get_head(&r, KIND_HEAD);
    head->config = shoal_get_bytes(&r, SHOAL_RAFT_CONFIG_BYTES_MAX);
    head->config_index = shoal_get_u64(&r);
    head->spec_hash = shoal_get_hash(&r);
    head->bundle_hash = shoal_get_hash(&r);
    head->target = shoal_get_u8(&r);
    head->refused = shoal_get_bool(&r);
    head->machine = shoal_get_bytes(&r, SHOAL_SNAPSHOT_BYTES_MAX);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

/* ---- The mesh's copy ---- */

static void put_guardians(struct shoal_writer *w, uint8_t count, const struct shoal_node_id *guardians)
{
    SHOAL_ASSERT(count <= SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    shoal_put_u8(w, count);
    for (unsigned i = 0; i < count; i++)
        shoal_put_node_id(w, guardians[i]);
}

static uint8_t get_guardians(struct shoal_reader *r, struct shoal_node_id *guardians)
{
    uint8_t count = shoal_get_enum(r, SHOAL_SCHED_SOURCES_MAX + 1);

    SHOAL_ASSERT(r->at <= r->len);
    for (unsigned i = 0; i < count; i++)
        guardians[i] = shoal_get_node_id(r);
    return count;
}

/* ---- The archive ---- */

/* One bin: the ids, one behind the other. */
static bool put_archive_guardians(struct shoal_pack_writer *w, const void *base)
{
    const struct archive_record *record = base;

    SHOAL_ASSERT(((const struct archive_record *)base)->guardian_count <=
                 SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    if (w != NULL && record->guardian_count > 0)
        shoal_pack_put_bin(w, shoal_view_of(record->guardians, record->guardian_count * sizeof(record->guardians[0])));
    return record->guardian_count > 0;
}

static void get_archive_guardians(struct shoal_pack_reader *r, void *base)
{
    struct archive_record *record = base;
    struct shoal_view ids = shoal_pack_get_bin(r, sizeof(record->guardians));

    SHOAL_ASSERT(((const struct archive_record *)base)->guardian_count == 0); /* read into zeroes */
    if (ids.len % sizeof(record->guardians[0]) != 0)
        r->failed = true;
    if (r->failed || ids.len == 0)
        return;
    memcpy(record->guardians, ids.bytes, ids.len);
    record->guardian_count = (uint8_t)(ids.len / sizeof(record->guardians[0]));
}

#define ROW(name, shape, member, max) SHOAL_PACK_ROW(struct archive_record, name, shape, member, max)
static const struct shoal_pack_field archive_fields[] = {
    ROW("applied", U64, version.applied, UINT64_MAX),
    ROW("config", U64, version.config, UINT64_MAX),
    ROW("facts", BIN, facts, SHOAL_ARCHIVE_RECORD_BYTES_MAX),
    SHOAL_PACK_OWN("guardians", put_archive_guardians, get_archive_guardians),
    SHOAL_PACK_ID(struct archive_record, "job", job),
    SHOAL_PACK_ID(struct archive_record, "list", list),
    SHOAL_PACK_ID(struct archive_record, "spec_hash", spec_hash),
    ROW("summary", BIN, summary, SHOAL_SCHED_SUMMARY_BYTES_MAX),
    ROW("term", U64, version.term, UINT64_MAX),
    SHOAL_PACK_TEXT(struct archive_record, "user", user),
};
#undef ROW
static const struct shoal_pack_table archive_table = SHOAL_PACK_TABLE(archive_fields);
#define ARCHIVE_VERSION 2 /* 1 was a fixed layout */

/* The signature is over these very bytes, which are kept and passed on as they are: whoever does not know a field of
 * a later version does not change it. */
bool sched_archive_encode_body(const struct archive_record *record, struct shoal_writer *w)
{
    struct shoal_pack_head head = { SHOAL_PACK_KIND_ARCHIVE, ARCHIVE_VERSION, 2 };
    size_t len = 0;

    SHOAL_ASSERT(w->len <= w->cap);
    if (w->failed ||
        shoal_pack_encode(head, &archive_table, record, w->bytes + w->len, w->cap - w->len, &len) != SHOAL_OK)
        w->failed = true;
    w->len += len;
    return !w->failed;
}

enum shoal_err sched_archive_decode(struct shoal_view bytes, struct archive_record *record, size_t *signed_len)
{
    struct shoal_pack_reader body = shoal_pack_reader_init(bytes);
    struct shoal_reader r = shoal_reader_init(bytes);
    enum shoal_err err = shoal_pack_get_head(&body, SHOAL_PACK_KIND_ARCHIVE, ARCHIVE_VERSION, NULL);

    SHOAL_ASSERT(signed_len != NULL);
    memset(record, 0, sizeof(*record));
    if (err != SHOAL_OK)
        return err;
    shoal_pack_get_fields(&body, &archive_table, record, NULL);
    if (body.failed)
        return SHOAL_ERR_MALFORMED;
    (void)shoal_get_space(&r, body.at);
    shoal_get_raw(&r, record->key, sizeof(record->key));
    shoal_get_raw(&r, record->signature, sizeof(record->signature));
    if (!shoal_reader_done(&r) || shoal_job_id_is_mesh(record->job) || bytes.len > SHOAL_ARCHIVE_RECORD_BYTES_MAX)
        return SHOAL_ERR_MALFORMED;
    *signed_len = body.at;
    return SHOAL_OK;
}

bool sched_kept_encode(bool final, struct shoal_view record, struct shoal_writer *w)
{
    SHOAL_ASSERT(record.len > 0);
    put_head(w, KIND_KEPT);
    shoal_put_bool(w, final);
    shoal_put_bytes(w, record);
    return !w->failed;
}

enum shoal_err sched_kept_decode(struct shoal_view bytes, bool *final, struct shoal_view *record)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(final != NULL);
    get_head(&r, KIND_KEPT);
    *final = shoal_get_bool(&r);
    *record = shoal_get_bytes(&r, SHOAL_ARCHIVE_RECORD_BYTES_MAX);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

bool sched_mesh_hint_encode(const struct mesh_hint *hint, struct shoal_writer *w)
{
    SHOAL_ASSERT(hint->count <= SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    put_head(w, KIND_MESH_HINT);
    shoal_put_u64(w, hint->version);
    shoal_put_u64(w, hint->config);
    put_guardians(w, hint->count, hint->guardians);
    return !w->failed;
}

enum shoal_err sched_mesh_hint_decode(struct shoal_view bytes, struct mesh_hint *hint)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(hint != NULL);
    get_head(&r, KIND_MESH_HINT);
    hint->version = shoal_get_u64(&r);
    hint->config = shoal_get_u64(&r);
    hint->count = get_guardians(&r, hint->guardians);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

static void put_copy_fields(struct shoal_writer *w, const struct mesh_copy *copy)
{
    SHOAL_ASSERT(copy->count <= SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    shoal_put_u64(w, copy->version);
    shoal_put_u64(w, copy->config);
    put_guardians(w, copy->count, copy->guardians);
    shoal_put_bytes(w, copy->state);
}

bool sched_mesh_copy_encode_body(const struct mesh_copy *copy, struct shoal_writer *w)
{
    SHOAL_ASSERT(w != NULL);
    put_head(w, KIND_MESH_COPY);
    put_copy_fields(w, copy);
    return !w->failed;
}

bool sched_mesh_copy_encode(const struct mesh_copy *copy, struct shoal_writer *w)
{
    SHOAL_ASSERT(copy->seal_count > 0 && copy->seal_count <= SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    shoal_put_u8(w, KIND_MESH_COPY);
    shoal_put_u8(w, COPY_SEALED_VERSION);
    shoal_put_u8(w, COPY_SEALED_VERSION);
    put_copy_fields(w, copy);
    shoal_put_u8(w, copy->seal_count);
    for (unsigned i = 0; i < copy->seal_count; i++)
        put_seal(w, &copy->seals[i]);
    return !w->failed;
}

bool sched_mesh_statement_encode(const struct mesh_copy *copy, struct shoal_hash state, bool binds,
                                 struct shoal_writer *w)
{
    SHOAL_ASSERT(copy->count <= SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    put_head(w, KIND_MESH_STATEMENT);
    shoal_put_u64(w, copy->version);
    shoal_put_u64(w, copy->config);
    put_guardians(w, copy->count, copy->guardians);
    shoal_put_hash(w, state);
    shoal_put_bool(w, binds);
    return !w->failed;
}

static void get_seals(struct shoal_reader *r, struct mesh_copy *copy)
{
    SHOAL_ASSERT(copy->seal_count == 0); /* read into zeroes */
    copy->seal_count = shoal_get_enum(r, SHOAL_SCHED_SOURCES_MAX + 1);
    if (copy->seal_count == 0)
        r->failed = true;
    for (unsigned i = 0; i < copy->seal_count; i++)
        get_seal(r, &copy->seals[i]);
}

enum shoal_err sched_mesh_copy_decode(struct shoal_view bytes, struct mesh_copy *copy, size_t *signed_len)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    bool sealed;

    SHOAL_ASSERT(signed_len != NULL);
    memset(copy, 0, sizeof(*copy));
    if (shoal_get_u8(&r) != KIND_MESH_COPY)
        r.failed = true;
    sealed = shoal_get_u8(&r) >= COPY_SEALED_VERSION;
    if (shoal_get_u8(&r) > COPY_SEALED_VERSION) /* written for newer readers only */
        r.failed = true;
    copy->version = shoal_get_u64(&r);
    copy->config = shoal_get_u64(&r);
    copy->count = get_guardians(&r, copy->guardians);
    copy->state = shoal_get_bytes(&r, SHOAL_SNAPSHOT_BYTES_MAX);
    *signed_len = 0;
    if (sealed) {
        get_seals(&r, copy);
    } else {
        *signed_len = r.at;
        shoal_get_raw(&r, copy->key, sizeof(copy->key));
        shoal_get_raw(&r, copy->signature, sizeof(copy->signature));
    }
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

/* ---- Hard states --------------------------------------------------------------------------------------------------
 *
 *     in use:  u8 1 | u64 commit
 *     parked:  u8 2 | u64 commit | u8 behind | u8 target | u8 device | u32 priority | u64 ticket_ms | owner | u8 n | n x node
 *              | u64 config, term, applied | row
 *     cold:    u8 3 | hash | u64 spec_mark | u64 config, term, applied | row     a record of the archive */

bool sched_park_mark_encode(const struct park_mark *mark, struct shoal_writer *w)
{
    SHOAL_ASSERT(mark->guardian_count > 0 &&
                 mark->guardian_count <= SHOAL_SCHED_SOURCES_MAX); /* what is written can be read */
    SHOAL_ASSERT(mark->device < SHOAL_JOB_DEVICE_COUNT);           /* what is written can be read */
    shoal_put_u8(w, SCHED_HARD_PARKED);
    shoal_put_u64(w, mark->commit);
    shoal_put_bool(w, mark->behind);
    shoal_put_u8(w, mark->target);
    shoal_put_u8(w, mark->device);
    shoal_put_u32(w, mark->priority);
    shoal_put_u64(w, mark->ticket_ms);
    shoal_put_node_id(w, mark->owner);
    shoal_put_u8(w, mark->guardian_count);
    for (unsigned i = 0; i < mark->guardian_count; i++)
        shoal_put_node_id(w, mark->guardians[i]);
    shoal_put_u64(w, mark->version.config);
    shoal_put_u64(w, mark->version.term);
    shoal_put_u64(w, mark->version.applied);
    shoal_put_bytes(w, mark->row);
    return !w->failed;
}

enum shoal_err sched_park_mark_decode(struct shoal_view bytes, struct park_mark *mark)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(mark != NULL);
    *mark = (struct park_mark){ 0 };
    if (shoal_get_u8(&r) != SCHED_HARD_PARKED)
        return SHOAL_ERR_MALFORMED;
    mark->commit = shoal_get_u64(&r);
    mark->behind = shoal_get_bool(&r);
    mark->target = shoal_get_u8(&r);
    mark->device = shoal_get_enum(&r, SHOAL_JOB_DEVICE_COUNT);
    mark->priority = shoal_get_u32(&r);
    mark->ticket_ms = shoal_get_u64(&r);
    mark->owner = shoal_get_node_id(&r);
    mark->guardian_count = shoal_get_enum(&r, SHOAL_SCHED_SOURCES_MAX + 1);
    for (unsigned i = 0; i < mark->guardian_count; i++)
        mark->guardians[i] = shoal_get_node_id(&r);
    mark->version.config = shoal_get_u64(&r);
    mark->version.term = shoal_get_u64(&r);
    mark->version.applied = shoal_get_u64(&r);
    mark->row = shoal_get_bytes(&r, SHOAL_SCHED_ROW_BYTES_MAX);
    return shoal_reader_done(&r) && mark->guardian_count > 0 ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

bool sched_cold_mark_encode(const struct cold_mark *mark, struct shoal_writer *w)
{
    SHOAL_ASSERT(mark->row.len <= SHOAL_SCHED_ROW_BYTES_MAX); /* what is written can be read */
    shoal_put_u8(w, SCHED_HARD_COLD);
    shoal_put_hash(w, mark->hash);
    shoal_put_u64(w, mark->spec_mark);
    shoal_put_u64(w, mark->version.config);
    shoal_put_u64(w, mark->version.term);
    shoal_put_u64(w, mark->version.applied);
    shoal_put_bytes(w, mark->row);
    return !w->failed;
}

enum shoal_err sched_cold_mark_decode(struct shoal_view bytes, struct cold_mark *mark)
{
    struct shoal_reader r = shoal_reader_init(bytes);

    SHOAL_ASSERT(mark != NULL);
    *mark = (struct cold_mark){ 0 };
    if (shoal_get_u8(&r) != SCHED_HARD_COLD)
        return SHOAL_ERR_MALFORMED;
    mark->hash = shoal_get_hash(&r);
    mark->spec_mark = shoal_get_u64(&r);
    mark->version.config = shoal_get_u64(&r);
    mark->version.term = shoal_get_u64(&r);
    mark->version.applied = shoal_get_u64(&r);
    mark->row = shoal_get_bytes(&r, SHOAL_SCHED_ROW_BYTES_MAX);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

uint64_t sched_hard_commit(struct shoal_view bytes)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct park_mark mark;
    uint64_t commit;

    SHOAL_ASSERT(bytes.len == 0 || bytes.bytes != NULL);
    if (sched_park_mark_decode(bytes, &mark) == SHOAL_OK)
        return mark.commit;
    if (shoal_get_u8(&r) != SCHED_HARD_FORMAT)
        return 0;
    commit = shoal_get_u64(&r);
    return shoal_reader_done(&r) ? commit : 0;
}

bool shoal_sched_is_parked(struct shoal_view config)
{
    struct park_mark mark;
    struct cold_mark cold;

    return sched_park_mark_decode(config, &mark) == SHOAL_OK || sched_cold_mark_decode(config, &cold) == SHOAL_OK;
}
