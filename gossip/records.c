/* Signed records: what each node has, what each job looks like. Newest version wins.
 *
 *   author signs --> published --> news (piggyback, repeated 4 * ceil(log10(n + 1)) times) --> everybody
 *                                                            missed? --> anti-entropy (swim_sync.c)
 *
 * R1. Of a kind with one author there is one record per (author, key); of a shared kind one per key, whoever signed it.
 * R2. The higher version wins; of two contents with one version the greater bytes win, so that all nodes agree.
 * R3. A record is believed with its author's signature only: the key comes from the author's card, or for shared kinds
 *     (whose signer may be forgotten by now) from the record itself, if the author's id belongs to it.
 * R4. A tombstone lasts the grace, counted from the deletion and carried as an age; from half the grace on it is
 *     neither offered nor taken up, so that no clock difference below that keeps one alive for ever.
 * R5. One author's records take at most their share of the table; a forgotten author's records go with it.
 * R6. A place is in use exactly while it has a statement; then it is in the chain of its name's hash, else on the free
 *     list. Anti-entropy's sums hold each record that is not faded, once.
 * R7. What a step replaced is released at the next one: an action may still show it.
 * Sources: chitchat's tombstones and their bugs (#161, PR #123); DESIGN section 5, PROTOCOLS section 8. */
#include "swim_state.h"

#include <string.h>

#include "shoal/banned.h"

static uint64_t name_hash(enum shoal_record_kind kind, struct shoal_node_id author, struct shoal_record_key key)
{
    uint8_t bytes[33] = { (uint8_t)kind };

    SHOAL_ASSERT((unsigned)kind < SHOAL_RECORD_KINDS); /* the decoder, and swim_publish, refuse others */
    if (!shoal_record_is_shared(kind))
        memcpy(bytes + 1, author.bytes, 16);
    memcpy(bytes + 17, key.bytes, 16);
    return gossip_hash(shoal_view_of(bytes, sizeof(bytes)), 3);
}

static void held_out(const struct shoal_swim *swim, uint32_t at, struct shoal_record *out)
{
    struct swim_record record;
    enum shoal_err err = swim_get_record(gossip_pool_view(swim->pool, swim->records[at].blob), &record);

    SHOAL_ASSERT(err == SHOAL_OK);                              /* R3: only what decoded and was signed is held */
    SHOAL_ASSERT(record.record.kind == swim->records[at].kind); /* R6 */
    SHOAL_ASSERT(record.record.tombstone == swim->records[at].tombstone); /* R4 */
    *out = record.record;
}

static struct swim_record_name name_of(const struct shoal_swim *swim, uint32_t at)
{
    struct swim_record_name name = swim_record_name(gossip_pool_view(swim->pool, swim->records[at].blob));

    SHOAL_ASSERT(name.kind == swim->records[at].kind); /* R6 */
    return name;
}

uint64_t swim_record_hash(const struct shoal_swim *swim, uint32_t record)
{
    struct swim_record_name name = name_of(swim, record);

    return name_hash(name.kind, name.author, name.key);
}

uint64_t swim_record_sum(const struct shoal_swim *swim, uint32_t record)
{
    uint64_t z = gossip_pool_hash(swim->pool, swim->records[record].blob);

    SHOAL_ASSERT(!swim->records[record].faded); /* R6: the faded are in no sum */
    return shoal_splitmix64(&z);
}

static uint32_t *chain_of(const struct shoal_swim *swim, uint64_t hash)
{
    SHOAL_ASSERT(swim->record_chains.bits >= 8 && swim->record_chains.bits <= 24);
    return &swim->record_chains.heads[hash >> (64 - swim->record_chains.bits)];
}

static uint32_t find(const struct shoal_swim *swim, enum shoal_record_kind kind, struct shoal_node_id author,
                     struct shoal_record_key key, uint64_t hash)
{
    uint32_t at = *chain_of(swim, hash);

    for (; at != SWIM_NONE; at = swim->records[at].next) {
        struct swim_record_name name;

        SHOAL_ASSERT(at < swim->records_used && swim->records[at].blob != 0); /* R6 */
        name = name_of(swim, at);
        if (name.kind == kind && memcmp(name.key.bytes, key.bytes, sizeof(key.bytes)) == 0 &&
            (shoal_record_is_shared(kind) || shoal_node_id_equal(name.author, author)))
            return at;
    }
    return SWIM_NONE;
}

static void toggle_sum(struct shoal_swim *swim, uint32_t at)
{
    SHOAL_ASSERT(swim->records[at].blob != 0); /* R6 */
    if (!swim->records[at].faded)
        swim_chains_add(&swim->record_chains, swim_record_hash(swim, at), swim_record_sum(swim, at));
}

static void fade(struct shoal_swim *swim, uint32_t record)
{
    SHOAL_ASSERT(swim->records[record].blob != 0); /* R6 */
    toggle_sum(swim, record);
    swim->records[record].faded = true;
}

/* A free place in its chain, not in the sums yet; SWIM_NONE: full. Takes over one reference to `blob`. */
static uint32_t place(struct shoal_swim *swim, enum shoal_record_kind kind, uint32_t author, uint64_t hash,
                      uint32_t blob)
{
    uint32_t at = swim->records_free;
    uint32_t *chain = chain_of(swim, hash);

    if (at != SWIM_NONE)
        swim->records_free = swim->records[at].next;
    else if (swim->records_used < swim->opt.records_max)
        at = swim->records_used++;
    else
        return SWIM_NONE;
    SHOAL_ASSERT(swim->records[at].blob == 0 && blob != 0);              /* R6 */
    SHOAL_ASSERT((author == SWIM_NONE) == shoal_record_is_shared(kind)); /* R1 */
    swim->records[at] = (struct swim_held_record){
        .blob = blob, .author = author, .kind = (uint8_t)kind, .next = *chain, .faded = true
    };
    *chain = at;
    swim->records_count++;
    if (author != SWIM_NONE)
        swim->members[author].records++;
    SHOAL_ASSERT(author == SWIM_NONE || swim->members[author].records <= SHOAL_RECORDS_PER_AUTHOR_MAX); /* R5 */
    return at;
}

static void remove_record(struct shoal_swim *swim, uint32_t record)
{
    struct swim_held_record *held = &swim->records[record];
    uint32_t *link = chain_of(swim, swim_record_hash(swim, record));

    toggle_sum(swim, record);
    swim_news_drop_record(swim, record);
    while (*link != record) {
        SHOAL_ASSERT(*link != SWIM_NONE); /* R6 */
        link = &swim->records[*link].next;
    }
    *link = held->next;
    SHOAL_ASSERT(held->author == SWIM_NONE || swim->members[held->author].records > 0); /* R5 */
    SHOAL_ASSERT(!held->tombstone || swim->tombstones > 0);                             /* R4 */
    if (held->author != SWIM_NONE)
        swim->members[held->author].records--;
    if (held->tombstone)
        swim->tombstones--;
    gossip_pool_unref(swim->pool, held->blob);
    *held = (struct swim_held_record){ .next = swim->records_free };
    swim->records_free = record;
    swim->records_count--;
}

/* Put the statement in place of what is held at `at` (SWIM_NONE: nothing). FULL: nothing changed. */
static enum shoal_err store(struct shoal_swim *swim, uint32_t *at, uint32_t author, const struct shoal_record *record,
                            struct shoal_view statement, uint64_t since_ns)
{
    uint32_t blob;
    struct swim_held_record *held;

    if (*at == SWIM_NONE && (swim->records_count == swim->opt.records_max ||
                             (author != SWIM_NONE && swim->members[author].records >= SHOAL_RECORDS_PER_AUTHOR_MAX))) {
        shoal_count(&swim->stats.drop_records_full);
        return SHOAL_ERR_FULL;
    }
    blob = gossip_pool_intern(swim->pool, statement);
    if (blob == 0) {
        shoal_count(&swim->stats.drop_pool_full);
        return SHOAL_ERR_FULL;
    }
    if (*at == SWIM_NONE) {
        *at = place(swim, record->kind, author, name_hash(record->kind, record->author, record->key), blob);
        SHOAL_ASSERT(*at != SWIM_NONE); /* there was room, see above */
        held = &swim->records[*at];
    } else {
        held = &swim->records[*at];
        toggle_sum(swim, *at);
        SHOAL_ASSERT(swim->retired_count < SWIM_RETIRED_MAX); /* R7 */
        SHOAL_ASSERT(held->author == author);                 /* R1 */
        swim->retired[swim->retired_count++] = held->blob;
        held->blob = blob;
        if (held->tombstone)
            swim->tombstones--;
    }
    held->tombstone = record->tombstone;
    if (held->tombstone)
        swim->tombstones++;
    SHOAL_ASSERT(since_ns <= swim->now_ns); /* nothing happened in the future */
    held->since_ns = since_ns;
    held->faded = author != SWIM_NONE && (swim->members[author].flags & MEMBER_FADED) != 0;
    toggle_sum(swim, *at);
    swim_news_record(swim, *at);
    return SHOAL_OK;
}

/* ---- publishing ----------------------------------------------------------------------------------------------- */

enum shoal_err swim_publish(struct shoal_swim *swim, const struct shoal_record *draft)
{
    uint8_t bytes[SWIM_RECORD_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct swim_record record = { .record = *draft, .signer = swim->opt.public_key };
    bool shared;
    uint32_t at;

    if ((unsigned)draft->kind >= SHOAL_RECORD_KINDS || (draft->tombstone && draft->payload.len > 0))
        return SHOAL_ERR_INVALID;
    if (draft->payload.len > SHOAL_RECORD_PAYLOAD_MAX)
        return SHOAL_ERR_TOO_BIG;
    shared = shoal_record_is_shared(draft->kind);
    record.record.author = swim->opt.id;
    at = find(swim, draft->kind, swim->opt.id, draft->key, name_hash(draft->kind, swim->opt.id, draft->key));
    if (at != SWIM_NONE) {
        struct shoal_record held;

        held_out(swim, at, &held);
        if (shoal_record_version_cmp(draft->version, held.version) <= 0)
            return SHOAL_ERR_STALE;
    }
    SHOAL_ASSERT(shoal_node_id_equal(record.record.author, swim->opt.id)); /* R1: a node writes in its own name only */
    swim_put_record(&w, &record);
    swim_sign(swim, &w);
    return store(swim, &at, shared ? SWIM_NONE : SWIM_SELF, &record.record, shoal_writer_view(&w), swim->now_ns);
}

/* ---- hearing -------------------------------------------------------------------------------------------------- */

/* R2. */
static bool is_newer(struct shoal_swim *swim, uint32_t at, const struct shoal_record *record,
                     struct shoal_view statement)
{
    struct shoal_view ours = gossip_pool_view(swim->pool, swim->records[at].blob);
    struct shoal_record held;
    int order;

    held_out(swim, at, &held);
    SHOAL_ASSERT(held.kind == record->kind); /* R1: both are of one name */
    order = shoal_record_version_cmp(record->version, held.version);
    if (order == 0 && !shoal_view_equal(ours, statement)) {
        shoal_count(&swim->stats.drop_conflict);
        order = memcmp(statement.bytes, ours.bytes, statement.len < ours.len ? statement.len : ours.len);
        if (order == 0)
            order = statement.len < ours.len ? -1 : 1;
    } else if (order <= 0) {
        shoal_count(&swim->stats.drop_old);
    }
    return order > 0;
}

/* R3. */
static bool is_genuine(struct shoal_swim *swim, const struct swim_record *record, uint32_t author,
                       struct shoal_view statement)
{
    struct swim_card card;

    if (author != SWIM_NONE) {
        enum shoal_err err = swim_get_card(swim_card_of(swim, author), &card);

        SHOAL_ASSERT(err == SHOAL_OK); /* M1: only what decoded and was signed is held */
        return swim_verify(swim, &card.key, statement);
    }
    if (gossip_pool_find(swim->pool, statement) == 0) {
        struct shoal_node_id id = swim->opt.env.node_id(swim->opt.env.arg, &record->signer);

        if (!shoal_node_id_equal(id, record->record.author)) {
            shoal_count(&swim->stats.drop_bad_signature);
            return false;
        }
    }
    return swim_verify(swim, &record->signer, statement);
}

void swim_hear_record(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_view statement,
                      uint64_t age_s)
{
    struct swim_record heard;
    const struct shoal_record *record = &heard.record;
    struct shoal_swim_action *action;
    uint64_t age_ns;
    uint32_t author = SWIM_NONE, at;

    if (swim_get_record(statement, &heard) != SHOAL_OK) {
        shoal_count(&swim->stats.drop_malformed);
        return;
    }
    age_ns = record->tombstone && age_s != SWIM_AGE_NONE ? age_s * SHOAL_S : 0;
    if (!shoal_record_is_shared(record->kind)) {
        author = swim_table_find(swim, record->author);
        if (author == SWIM_NONE) {
            shoal_count(&swim->stats.drop_unknown_author);
            return;
        }
    }
    at = find(swim, record->kind, record->author, record->key, name_hash(record->kind, record->author, record->key));
    if (at == SWIM_NONE && age_ns >= swim->opt.grace_ns / 2) {
        shoal_count(&swim->stats.drop_expired); /* R4 */
        return;
    }
    if (at != SWIM_NONE && !is_newer(swim, at, record, statement))
        return;
    if (!is_genuine(swim, &heard, author, statement))
        return;
    if (store(swim, &at, author, record, statement, age_ns > swim->now_ns ? 0 : swim->now_ns - age_ns) != SHOAL_OK)
        return;
    SHOAL_ASSERT(at != SWIM_NONE && swim->records[at].kind == record->kind); /* R6 */
    swim->stats.records_accepted++;
    action = swim_act(swim, origin->actions, SHOAL_SWIM_RECORD);
    if (action != NULL)
        held_out(swim, at, &action->record);
}

/* ---- ageing --------------------------------------------------------------------------------------------------- */

void swim_records_forget(struct shoal_swim *swim, uint32_t member)
{
    for (uint32_t i = 0; i < swim->records_used && swim->members[member].records > 0; i++)
        if (swim->records[i].blob != 0 && swim->records[i].author == member)
            remove_record(swim, i);
    SHOAL_ASSERT(swim->members[member].records == 0); /* R5 */
}

void swim_records_fade(struct shoal_swim *swim, uint32_t member)
{
    uint32_t left = swim->members[member].records;

    for (uint32_t i = 0; i < swim->records_used && left > 0; i++) {
        if (swim->records[i].blob == 0 || swim->records[i].author != member)
            continue;
        fade(swim, i);
        left--;
    }
    SHOAL_ASSERT(left == 0); /* R5: as many as are counted */
}

void swim_records_unfade(struct shoal_swim *swim, uint32_t member)
{
    uint32_t left = swim->members[member].records;

    for (uint32_t i = 0; i < swim->records_used && left > 0; i++) {
        struct swim_held_record *held = &swim->records[i];

        if (held->blob == 0 || held->author != member)
            continue;
        left--;
        if (held->tombstone && swim->now_ns - held->since_ns >= swim->opt.grace_ns / 2)
            continue;
        toggle_sum(swim, i); /* nothing while it is faded, its sum afterwards */
        held->faded = false;
        toggle_sum(swim, i);
    }
    SHOAL_ASSERT(left == 0); /* R5: as many as are counted */
}

void swim_records_sweep(struct shoal_swim *swim)
{
    uint32_t left = swim->tombstones;

    for (uint32_t i = 0; i < swim->records_used && left > 0; i++) {
        const struct swim_held_record *held = &swim->records[i];
        uint64_t age_ns;

        if (held->blob == 0 || !held->tombstone)
            continue;
        left--;
        age_ns = swim->now_ns - held->since_ns;
        if (age_ns >= swim->opt.grace_ns)
            remove_record(swim, i);
        else if (age_ns >= swim->opt.grace_ns / 2 && !held->faded)
            fade(swim, i);
    }
    SHOAL_ASSERT(left == 0); /* R4: as many as are counted */
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

bool shoal_records_find(const struct shoal_swim *swim, enum shoal_record_kind kind, struct shoal_node_id author,
                        struct shoal_record_key key, struct shoal_record *record)
{
    uint32_t at = find(swim, kind, author, key, name_hash(kind, author, key));

    if (at == SWIM_NONE)
        return false;
    held_out(swim, at, record);
    return true;
}

bool shoal_records_next(const struct shoal_swim *swim, enum shoal_record_kind kind, uint32_t *cursor,
                        struct shoal_record *record)
{
    while (*cursor < swim->records_used) {
        uint32_t at = (*cursor)++;

        if (swim->records[at].blob == 0 || swim->records[at].kind != kind || swim->records[at].tombstone)
            continue;
        held_out(swim, at, record);
        return true;
    }
    return false;
}

uint32_t shoal_records_count(const struct shoal_swim *swim)
{
    SHOAL_ASSERT(swim->records_count <= swim->records_used); /* R6 */
    SHOAL_ASSERT(swim->tombstones <= swim->records_count);   /* R4 */
    return swim->records_count;
}
