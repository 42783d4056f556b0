/* The codec of gossip's datagrams and statements; the byte tables are in swim_wire.h.
 *
 * W1. What is encoded decodes again: the same bounds are asserted here and are errors in the decoders, which read
 *     foreign bytes. */
#include "swim_wire.h"

#include <string.h>

#include "shoal/banned.h"

void swim_put_head(struct shoal_writer *w, const struct swim_head *head)
{
    SHOAL_ASSERT(head->message >= SWIM_PING && head->message < SWIM_MESSAGES); /* W1 */
    SHOAL_ASSERT((head->flags & ~(SWIM_WANT_CARD | SWIM_RELAYED)) == 0);       /* W1 */
    SHOAL_ASSERT(head->health <= SWIM_HEALTH_MAX);                             /* W1 */
    shoal_put_u8(w, SWIM_DATAGRAM_KIND);
    shoal_put_u8(w, SWIM_VERSION);
    shoal_put_u8(w, SWIM_VERSION);
    shoal_put_u8(w, (uint8_t)head->message);
    shoal_put_u8(w, head->flags);
    shoal_put_u8(w, head->health);
    shoal_put_u16(w, head->tag);
}

enum shoal_err swim_get_head(struct shoal_reader *r, struct swim_head *head)
{
    uint8_t kind = shoal_get_u8(r), version = shoal_get_u8(r), oldest = shoal_get_u8(r), message = shoal_get_u8(r);

    head->flags = shoal_get_u8(r);
    head->health = shoal_get_u8(r);
    head->tag = shoal_get_u16(r);
    if (r->failed || kind != SWIM_DATAGRAM_KIND || version == 0)
        return SHOAL_ERR_MALFORMED;
    if (oldest > SWIM_VERSION)
        return SHOAL_ERR_UNSUPPORTED;
    if (message < SWIM_PING || message >= SWIM_MESSAGES)
        return version > SWIM_VERSION ? SHOAL_ERR_UNSUPPORTED : SHOAL_ERR_MALFORMED;
    if (head->health > SWIM_HEALTH_MAX)
        head->health = SWIM_HEALTH_MAX;
    head->message = (enum swim_message)message;
    return SHOAL_OK;
}

static void put_statement(struct shoal_writer *w, enum swim_statement kind)
{
    SHOAL_ASSERT(kind >= SWIM_CARD && kind <= SWIM_RECORD); /* W1 */
    SHOAL_ASSERT(w->len == 0);                              /* a statement is signed from its first byte on */
    shoal_put_u8(w, (uint8_t)kind);
    shoal_put_u8(w, SWIM_VERSION);
    shoal_put_u8(w, SWIM_VERSION);
}

/* A reader over what is signed; failed when the kind is another or the signature cannot be there. */
static struct shoal_reader open_statement(struct shoal_view statement, enum swim_statement kind)
{
    struct shoal_reader r = shoal_reader_init(statement);

    if (statement.len < SWIM_SIGNATURE_BYTES)
        r.failed = true;
    else
        r.len -= SWIM_SIGNATURE_BYTES;
    if (shoal_get_u8(&r) != kind || shoal_get_u8(&r) == 0 || shoal_get_u8(&r) > SWIM_VERSION)
        r.failed = true;
    return r;
}

void swim_put_card(struct shoal_writer *w, const struct swim_card *card)
{
    size_t name_len = strnlen(card->name, SHOAL_GOSSIP_NAME_BYTES - 1);

    SHOAL_ASSERT(!shoal_node_id_is_zero(card->id));                /* W1 */
    SHOAL_ASSERT(card->name[SHOAL_GOSSIP_NAME_BYTES - 1] == '\0'); /* W1 */
    put_statement(w, SWIM_CARD);
    shoal_put_bool(w, card->leaving);
    shoal_put_node_id(w, card->id);
    shoal_put_incarnation(w, card->incarnation);
    shoal_put_raw(w, card->key.bytes, sizeof(card->key.bytes));
    shoal_put_store_id(w, card->store);
    shoal_put_address(w, card->address);
    shoal_put_u16(w, card->link_port);
    shoal_put_u16(w, card->http_port);
    shoal_put_u8(w, (uint8_t)name_len);
    shoal_put_raw(w, card->name, name_len);
}

enum shoal_err swim_get_card(struct shoal_view statement, struct swim_card *card)
{
    struct shoal_reader r = open_statement(statement, SWIM_CARD);
    size_t name_len;

    memset(card, 0, sizeof(*card));
    card->leaving = shoal_get_bool(&r);
    card->id = shoal_get_node_id(&r);
    card->incarnation = shoal_get_incarnation(&r);
    shoal_get_raw(&r, card->key.bytes, sizeof(card->key.bytes));
    card->store = shoal_get_store_id(&r);
    card->address = shoal_get_address(&r);
    card->link_port = shoal_get_u16(&r);
    card->http_port = shoal_get_u16(&r);
    name_len = shoal_get_u8(&r);
    if (name_len >= SHOAL_GOSSIP_NAME_BYTES)
        return SHOAL_ERR_MALFORMED;
    shoal_get_raw(&r, card->name, name_len);
    if (!shoal_reader_done(&r) || memchr(card->name, 0, name_len) != NULL || shoal_node_id_is_zero(card->id))
        return SHOAL_ERR_MALFORMED;
    return SHOAL_OK;
}

void swim_put_accuse(struct shoal_writer *w, const struct swim_accuse *accuse)
{
    SHOAL_ASSERT((unsigned)accuse->verdict < SWIM_VERDICTS);             /* W1 */
    SHOAL_ASSERT(!shoal_node_id_equal(accuse->target, accuse->accuser)); /* nobody accuses itself */
    put_statement(w, SWIM_ACCUSE);
    shoal_put_u8(w, (uint8_t)accuse->verdict);
    shoal_put_node_id(w, accuse->target);
    shoal_put_incarnation(w, accuse->incarnation);
    shoal_put_node_id(w, accuse->accuser);
}

enum shoal_err swim_get_accuse(struct shoal_view statement, struct swim_accuse *accuse)
{
    struct shoal_reader r = open_statement(statement, SWIM_ACCUSE);

    accuse->verdict = (enum swim_verdict)shoal_get_enum(&r, SWIM_VERDICTS);
    accuse->target = shoal_get_node_id(&r);
    accuse->incarnation = shoal_get_incarnation(&r);
    accuse->accuser = shoal_get_node_id(&r);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

void swim_put_record(struct shoal_writer *w, const struct swim_record *record)
{
    const struct shoal_record *it = &record->record;

    SHOAL_ASSERT((unsigned)it->kind < SHOAL_RECORD_KINDS);                                                 /* W1 */
    SHOAL_ASSERT(it->payload.len <= SHOAL_RECORD_PAYLOAD_MAX && (!it->tombstone || it->payload.len == 0)); /* W1 */
    put_statement(w, SWIM_RECORD);
    shoal_put_u8(w, (uint8_t)it->kind);
    shoal_put_u8(w, it->tombstone ? 1 : 0);
    shoal_put_node_id(w, it->author);
    shoal_put_raw(w, it->key.bytes, sizeof(it->key.bytes));
    for (unsigned i = 0; i < 3; i++)
        shoal_put_u64(w, it->version.word[i]);
    if (shoal_record_is_shared(it->kind))
        shoal_put_raw(w, record->signer.bytes, sizeof(record->signer.bytes));
    shoal_put_u16(w, (uint16_t)it->payload.len);
    shoal_put_raw(w, it->payload.bytes, it->payload.len);
}

enum shoal_err swim_get_record(struct shoal_view statement, struct swim_record *record)
{
    struct shoal_reader r = open_statement(statement, SWIM_RECORD);
    struct shoal_record *it = &record->record;
    size_t len;

    memset(record, 0, sizeof(*record));
    it->kind = (enum shoal_record_kind)shoal_get_enum(&r, SHOAL_RECORD_KINDS);
    it->tombstone = shoal_get_bool(&r);
    it->author = shoal_get_node_id(&r);
    shoal_get_raw(&r, it->key.bytes, sizeof(it->key.bytes));
    for (unsigned i = 0; i < 3; i++)
        it->version.word[i] = shoal_get_u64(&r);
    if (shoal_record_is_shared(it->kind))
        shoal_get_raw(&r, record->signer.bytes, sizeof(record->signer.bytes));
    len = shoal_get_u16(&r);
    if (len > SHOAL_RECORD_PAYLOAD_MAX || (it->tombstone && len > 0))
        return SHOAL_ERR_MALFORMED;
    it->payload = shoal_view_of(shoal_get_space(&r, len), len);
    return shoal_reader_done(&r) ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

struct shoal_node_id swim_card_id(struct shoal_view card)
{
    struct shoal_node_id id;

    SHOAL_ASSERT(card.len > SWIM_SIGNATURE_BYTES && card.bytes[0] == SWIM_CARD); /* decoded before */
    memcpy(id.bytes, card.bytes + 4, sizeof(id.bytes));
    return id;
}

struct shoal_incarnation swim_card_incarnation(struct shoal_view card)
{
    struct shoal_reader r = { .bytes = card.bytes, .len = card.len, .at = 20 };

    SHOAL_ASSERT(card.len > SWIM_SIGNATURE_BYTES && card.bytes[0] == SWIM_CARD); /* decoded before */
    return shoal_get_incarnation(&r);
}

struct shoal_address swim_card_address(struct shoal_view card)
{
    struct shoal_reader r = { .bytes = card.bytes, .len = card.len, .at = 80 };

    SHOAL_ASSERT(card.len > SWIM_SIGNATURE_BYTES && card.bytes[0] == SWIM_CARD); /* decoded before */
    return shoal_get_address(&r);
}

struct swim_record_name swim_record_name(struct shoal_view record)
{
    struct swim_record_name name;

    SHOAL_ASSERT(record.len > SWIM_SIGNATURE_BYTES && record.bytes[0] == SWIM_RECORD); /* decoded before */
    name.kind = (enum shoal_record_kind)record.bytes[3];
    memcpy(name.author.bytes, record.bytes + 5, sizeof(name.author.bytes));
    memcpy(name.key.bytes, record.bytes + 21, sizeof(name.key.bytes));
    return name;
}
