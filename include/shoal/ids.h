/* Names of things: different ids are different types (PROTOCOLS section 1). */
#ifndef SHOAL_IDS_H
#define SHOAL_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "shoal/wire.h"

/* Hash of the node's Ed25519 public key (BLAKE2b, 16 bytes). */
struct shoal_node_id {
    uint8_t bytes[16];
};

/* Random, made with the data folder: a wiped store is another store. */
struct shoal_store_id {
    uint8_t bytes[16];
};

/* 44 bits of milliseconds, 16 bits of the founder's node id, 20 bits of a hash; sorts by time. Also names studies,
 * services and, all zeroes, the mesh group. */
struct shoal_job_id {
    uint8_t bytes[10];
};

/* BLAKE2b-256 of some bytes: names a blob, a bundle, a specification. */
struct shoal_hash {
    uint8_t bytes[32];
};

/* One life of an agent: the host epoch rises with the kernel's boot id, the incarnation at each agent start, both
 * durable; only SWIM raises the refutation. Compared in this order. */
struct shoal_incarnation {
    uint32_t host_epoch;
    uint32_t agent;
    uint32_t refutation;
};

/* A communicator's epoch (PROTOCOLS 7 and 12): the group commits `e`, a host that holds all members may raise `k`. */
struct shoal_epoch {
    uint32_t e;
    uint32_t k;
};

#define SHOAL_JOB_ID_DIGITS 16
#define SHOAL_JOB_ID_TEXT_BYTES (6 + SHOAL_JOB_ID_DIGITS + 1) /* "shoal-", digits, NUL */
#define SHOAL_NODE_ID_TEXT_BYTES 33                           /* 32 hex digits, NUL */
#define SHOAL_HASH_TEXT_BYTES 65

static inline int shoal_node_id_cmp(struct shoal_node_id a, struct shoal_node_id b)
{
    return memcmp(a.bytes, b.bytes, sizeof(a.bytes));
}

static inline bool shoal_node_id_equal(struct shoal_node_id a, struct shoal_node_id b)
{
    return shoal_node_id_cmp(a, b) == 0;
}

static inline bool shoal_node_id_is_zero(struct shoal_node_id a)
{
    return shoal_node_id_equal(a, (struct shoal_node_id){ { 0 } });
}

static inline bool shoal_store_id_equal(struct shoal_store_id a, struct shoal_store_id b)
{
    return memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

static inline bool shoal_job_id_equal(struct shoal_job_id a, struct shoal_job_id b)
{
    return memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

/* The first eight bytes, as a number: the compiler makes one load of it. */
static inline uint64_t shoal_job_id_head(struct shoal_job_id a)
{
    const uint8_t *b = a.bytes;

    return (uint64_t)b[0] << 56 | (uint64_t)b[1] << 48 | (uint64_t)b[2] << 40 | (uint64_t)b[3] << 32 |
           (uint64_t)b[4] << 24 | (uint64_t)b[5] << 16 | (uint64_t)b[6] << 8 | (uint64_t)b[7];
}

/* As memcmp() orders them, without a call: every table of groups, jobs and records is searched by it. */
static inline int shoal_job_id_cmp(struct shoal_job_id a, struct shoal_job_id b)
{
    uint64_t head_a = shoal_job_id_head(a), head_b = shoal_job_id_head(b);
    int tail_a = a.bytes[8] << 8 | a.bytes[9], tail_b = b.bytes[8] << 8 | b.bytes[9];

    if (head_a != head_b)
        return head_a < head_b ? -1 : 1;
    return tail_a - tail_b;
}

static inline bool shoal_job_id_is_mesh(struct shoal_job_id a)
{
    return shoal_job_id_equal(a, (struct shoal_job_id){ { 0 } });
}

static inline bool shoal_hash_equal(struct shoal_hash a, struct shoal_hash b)
{
    return memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
}

static inline bool shoal_hash_is_zero(struct shoal_hash a) { return shoal_hash_equal(a, (struct shoal_hash){ { 0 } }); }

static inline int shoal_incarnation_cmp(struct shoal_incarnation a, struct shoal_incarnation b)
{
    if (a.host_epoch != b.host_epoch)
        return a.host_epoch < b.host_epoch ? -1 : 1;
    if (a.agent != b.agent)
        return a.agent < b.agent ? -1 : 1;
    if (a.refutation != b.refutation)
        return a.refutation < b.refutation ? -1 : 1;
    return 0;
}

static inline int shoal_epoch_cmp(struct shoal_epoch a, struct shoal_epoch b)
{
    if (a.e != b.e)
        return a.e < b.e ? -1 : 1;
    if (a.k != b.k)
        return a.k < b.k ? -1 : 1;
    return 0;
}

/* As one word, for atomics: order is kept. */
static inline uint64_t shoal_epoch_word(struct shoal_epoch epoch) { return (uint64_t)epoch.e << 32 | epoch.k; }

static inline struct shoal_epoch shoal_epoch_of_word(uint64_t word)
{
    return (struct shoal_epoch){ .e = (uint32_t)(word >> 32), .k = (uint32_t)word };
}

static inline void shoal_hex_text(const uint8_t *bytes, size_t len, char *text)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * len] = '\0';
}

/* Exactly 2 * len hex digits, then NUL; false otherwise. */
static inline bool shoal_hex_parse(const char *text, uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < 2 * len; i++) {
        char c = text[i];
        unsigned digit;

        if (c >= '0' && c <= '9')
            digit = (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (unsigned)(c - 'a') + 10;
        else
            return false;
        bytes[i / 2] = (uint8_t)(i % 2 == 0 ? digit << 4 : bytes[i / 2] | digit);
    }
    return text[2 * len] == '\0';
}

/* The time at which the job's ticket was issued, by the issuer's wall clock. */
static inline uint64_t shoal_job_id_ms(struct shoal_job_id id)
{
    uint64_t ms = 0;

    for (unsigned i = 0; i < 5; i++)
        ms = ms << 8 | id.bytes[i];
    return ms << 4 | id.bytes[5] >> 4;
}

/* Crockford base 32, lower case, without the prefix or with it. `text` holds SHOAL_JOB_ID_TEXT_BYTES. */
static inline void shoal_job_id_text(struct shoal_job_id id, char *text)
{
    static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz";

    memcpy(text, "shoal-", 6);
    for (unsigned i = 0; i < SHOAL_JOB_ID_DIGITS; i++) {
        unsigned bit = i * 5;
        unsigned pair =
            (unsigned)id.bytes[bit / 8] << 8 | (bit / 8 + 1 < sizeof(id.bytes) ? id.bytes[bit / 8 + 1] : 0u);

        text[6 + i] = digits[pair >> (11 - bit % 8) & 31];
    }
    text[6 + SHOAL_JOB_ID_DIGITS] = '\0';
}

static inline bool shoal_job_id_parse(const char *text, struct shoal_job_id *id)
{
    static const char digits[] = "0123456789abcdefghjkmnpqrstvwxyz";
    struct shoal_job_id parsed = { { 0 } };

    if (strncmp(text, "shoal-", 6) == 0)
        text += 6;
    for (unsigned i = 0; i < SHOAL_JOB_ID_DIGITS; i++) {
        const char *digit = text[i] == '\0' ? NULL : strchr(digits, text[i]);

        if (digit == NULL)
            return false;
        for (unsigned b = 0; b < 5; b++) {
            unsigned bit = i * 5 + b;

            if ((digit - digits) >> (4 - b) & 1)
                parsed.bytes[bit / 8] |= (uint8_t)(128 >> bit % 8);
        }
    }
    if (text[SHOAL_JOB_ID_DIGITS] != '\0')
        return false;
    *id = parsed;
    return true;
}

static inline void shoal_put_node_id(struct shoal_writer *w, struct shoal_node_id id)
{
    shoal_put_raw(w, id.bytes, 16);
}
static inline void shoal_put_store_id(struct shoal_writer *w, struct shoal_store_id id)
{
    shoal_put_raw(w, id.bytes, 16);
}
static inline void shoal_put_job_id(struct shoal_writer *w, struct shoal_job_id id) { shoal_put_raw(w, id.bytes, 10); }
static inline void shoal_put_hash(struct shoal_writer *w, struct shoal_hash hash) { shoal_put_raw(w, hash.bytes, 32); }

static inline struct shoal_node_id shoal_get_node_id(struct shoal_reader *r)
{
    struct shoal_node_id id;

    shoal_get_raw(r, id.bytes, sizeof(id.bytes));
    return id;
}

static inline struct shoal_store_id shoal_get_store_id(struct shoal_reader *r)
{
    struct shoal_store_id id;

    shoal_get_raw(r, id.bytes, sizeof(id.bytes));
    return id;
}

static inline struct shoal_job_id shoal_get_job_id(struct shoal_reader *r)
{
    struct shoal_job_id id;

    shoal_get_raw(r, id.bytes, sizeof(id.bytes));
    return id;
}

static inline struct shoal_hash shoal_get_hash(struct shoal_reader *r)
{
    struct shoal_hash hash;

    shoal_get_raw(r, hash.bytes, sizeof(hash.bytes));
    return hash;
}

static inline void shoal_put_incarnation(struct shoal_writer *w, struct shoal_incarnation i)
{
    shoal_put_u32(w, i.host_epoch);
    shoal_put_u32(w, i.agent);
    shoal_put_u32(w, i.refutation);
}

static inline struct shoal_incarnation shoal_get_incarnation(struct shoal_reader *r)
{
    struct shoal_incarnation i;

    i.host_epoch = shoal_get_u32(r);
    i.agent = shoal_get_u32(r);
    i.refutation = shoal_get_u32(r);
    return i;
}

static inline void shoal_put_epoch(struct shoal_writer *w, struct shoal_epoch epoch)
{
    shoal_put_u32(w, epoch.e);
    shoal_put_u32(w, epoch.k);
}

static inline struct shoal_epoch shoal_get_epoch(struct shoal_reader *r)
{
    struct shoal_epoch epoch;

    epoch.e = shoal_get_u32(r);
    epoch.k = shoal_get_u32(r);
    return epoch;
}

#endif
