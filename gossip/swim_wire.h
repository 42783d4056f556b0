/* The bytes of gossip. All integers little-endian (wire.h).
 *
 * A datagram (at most SHOAL_DATAGRAM_PAYLOAD_MAX):
 *
 *   0  kind 0x47        1  version   2  oldest version that can read it
 *   3  message          enum swim_message
 *   4  flags            SWIM_WANT_CARD: send me your card; SWIM_RELAYED: an ack through a helper
 *   5  health           the sender's score, 0 to 7
 *   6  card tag, u16    of the sender's own card's hash: tells a receiver whether it holds that card
 *   8  body             by message:
 *        PING     u32 seq, 16 target id (zero: whoever is there)
 *        ACK      u32 seq; with SWIM_RELAYED 16 target id
 *        NACK     u32 seq: I am fine, the target is silent
 *        ASK      u32 seq, 16 target id, 18 target address, u16 milliseconds until a nack is wanted
 *        NOT_ME   u32 seq, 16 the id that was wanted here
 *        GOSSIP   nothing
 *        ROOT     u32 session, u64 members' root, u64 records' root
 *        SAME     u32 session
 *        BUCKETS  u32 session, u8 domain, u64 root, 256 x u32 bucket hash
 *        DIGEST   u32 session, u8 domain, then ranges to the end: u8 bits, u16 prefix, u8 count,
 *                 count x (u64 key, u32 tag)
 *        ITEMS    u32 session
 *        WANT     u32 session, u8 domain, then u64 keys to the end
 *      then, in all but ROOT, SAME, BUCKETS, DIGEST and WANT, news to the end: u16 length, u16 age (seconds since the
 *      sender took it for dead, left or deleted; 0xffff: it lives), statement
 *
 * A statement is signed by the node it speaks for, last 64 bytes over all before them; it is passed on unchanged:
 *
 *   0  kind (enum swim_statement)   1  version   2  oldest version that can read it
 *   CARD     3 status (0 alive, 1 leaving), 4 node id, 20 incarnation, 32 public key, 64 store id, 80 address,
 *            98 link port, 100 http port, 102 u8 length, name                         signed by that node
 *   ACCUSE   3 verdict, 4 target id, 20 incarnation, 32 accuser id                    signed by the accuser
 *   RECORD   3 record kind, 4 flags (1: tombstone), 5 author, 21 key, 37 version (3 x u64),
 *            then for shared kinds 32 public key, then u16 length, payload            signed by the author */
#ifndef SWIM_WIRE_H
#define SWIM_WIRE_H

#include "shoal/gossip.h"

#define SWIM_DATAGRAM_KIND 0x47
#define SWIM_VERSION 1
#define SWIM_HEAD_BYTES 8
#define SWIM_HEALTH_MAX 7 /* a sender's score; a higher one counts as this */

enum swim_message {
    SWIM_PING = 1,
    SWIM_ACK,
    SWIM_NACK,
    SWIM_ASK,
    SWIM_NOT_ME,
    SWIM_GOSSIP,
    SWIM_ROOT,
    SWIM_SAME,
    SWIM_BUCKETS,
    SWIM_DIGEST,
    SWIM_ITEMS,
    SWIM_WANT,
    SWIM_MESSAGES,
};

#define SWIM_WANT_CARD 1u
#define SWIM_RELAYED 2u

enum swim_domain {
    SWIM_DOMAIN_MEMBERS,
    SWIM_DOMAIN_RECORDS,
    SWIM_DOMAINS,
};

#define SWIM_BUCKETS_COUNT 256
_Static_assert(SWIM_HEAD_BYTES + 13 + 4 * SWIM_BUCKETS_COUNT <= SHOAL_DATAGRAM_PAYLOAD_MAX,
               "all buckets fit one datagram");

struct swim_head {
    enum swim_message message;
    uint8_t flags;
    uint8_t health;
    uint16_t tag;
};

enum swim_statement {
    SWIM_CARD = 1,
    SWIM_ACCUSE,
    SWIM_RECORD,
};

#define SWIM_SIGNATURE_BYTES 64
#define SWIM_NEWS_HEAD_BYTES 4
#define SWIM_AGE_NONE 0xffffu
#define SWIM_CARD_BYTES_MAX (103 + SHOAL_GOSSIP_NAME_BYTES - 1 + SWIM_SIGNATURE_BYTES)
#define SWIM_ACCUSE_BYTES (48 + SWIM_SIGNATURE_BYTES)
#define SWIM_RECORD_BYTES_MAX (61 + 32 + 2 + SHOAL_RECORD_PAYLOAD_MAX + SWIM_SIGNATURE_BYTES)
_Static_assert(SWIM_HEAD_BYTES + 64 + SWIM_NEWS_HEAD_BYTES + SWIM_RECORD_BYTES_MAX <= SHOAL_DATAGRAM_PAYLOAD_MAX,
               "the largest record fits any datagram that carries news");

struct swim_card {
    bool leaving;
    struct shoal_node_id id;
    struct shoal_incarnation incarnation;
    struct shoal_public_key key;
    struct shoal_store_id store;
    struct shoal_address address;
    uint16_t link_port;
    uint16_t http_port;
    char name[SHOAL_GOSSIP_NAME_BYTES];
};

enum swim_verdict {
    SWIM_SUSPECT,
    SWIM_DEAD,
    SWIM_GONE, /* its port refused */
    SWIM_VERDICTS,
};

struct swim_accuse {
    enum swim_verdict verdict;
    struct shoal_node_id target;
    struct shoal_incarnation incarnation;
    struct shoal_node_id accuser;
};

/* A record as stated: `key` is the signer's for shared kinds, zero otherwise. */
struct swim_record {
    struct shoal_record record;
    struct shoal_public_key signer;
};

void swim_put_head(struct shoal_writer *w, const struct swim_head *head);
/* UNSUPPORTED: a newer protocol. MALFORMED. */
enum shoal_err swim_get_head(struct shoal_reader *r, struct swim_head *head);

/* Without the signature; the caller appends 64 bytes. */
void swim_put_card(struct shoal_writer *w, const struct swim_card *card);
void swim_put_accuse(struct shoal_writer *w, const struct swim_accuse *accuse);
void swim_put_record(struct shoal_writer *w, const struct swim_record *record);

/* The whole statement with its signature; views point into it. MALFORMED. */
enum shoal_err swim_get_card(struct shoal_view statement, struct swim_card *card);
enum shoal_err swim_get_accuse(struct shoal_view statement, struct swim_accuse *accuse);
enum shoal_err swim_get_record(struct shoal_view statement, struct swim_record *record);

/* Single fields of a card that was decoded before. */
struct shoal_node_id swim_card_id(struct shoal_view card);
struct shoal_incarnation swim_card_incarnation(struct shoal_view card);
struct shoal_address swim_card_address(struct shoal_view card);
/* The name of a record that was decoded before: kind, author and key, without a look at the rest. */
struct swim_record_name {
    enum shoal_record_kind kind;
    struct shoal_node_id author;
    struct shoal_record_key key;
};
struct swim_record_name swim_record_name(struct shoal_view record);
#endif
