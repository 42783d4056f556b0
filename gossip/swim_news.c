/* News and the datagrams that carry it.
 *
 *   heard or made here --> queue --(fewest sends first, until 4 * ceil(log10(n + 1)) sends)--> the spare room of
 *                                                                                             every datagram
 *
 * N1. Statements are passed on unchanged, so a receiver can check them whoever sent them.
 * N2. Members' news leave 40 % of the room to records that wait, and the reverse; in turn each goes first and may place
 *     one statement whatever its size, so that neither starves.
 * N3. A queue never grows beyond queue_max; anti-entropy repairs what gave way.
 * N4. `fresh` counts the news that was never sent; a news is queued at most once for a subject and a statement.
 * N5. A datagram holds a news once, and no more than fits.
 * N8. A member about which there is news is marked so: for the many about which there is none no queue is searched.
 * Source: memberlist's transmit-limited queue; its starvation (memberlist #299) is why N2. */
#include "swim_state.h"

#include <string.h>

#include "shoal/banned.h"

/* ---- queues --------------------------------------------------------------------------------------------------- */

/* N8. */
static bool is_told_of(const struct shoal_swim *swim, uint32_t member)
{
    SHOAL_ASSERT(member < swim->members_used); /* T4 */
    return (swim->members[member].flags & MEMBER_NEWS) != 0;
}

static void queue_remove(struct shoal_swim *swim, struct swim_queue *queue, uint32_t at)
{
    const struct swim_news *news = &queue->items[at];

    SHOAL_ASSERT(at < queue->count);                                                /* N3 */
    SHOAL_ASSERT((news->kind == NEWS_RECORD) == (queue == &swim->queue_records));   /* N2 */
    SHOAL_ASSERT(news->kind != NEWS_RECORD || swim->records[news->subject].queued); /* N4 */
    SHOAL_ASSERT(news->kind == NEWS_RECORD || is_told_of(swim, news->subject));     /* N8 */
    if (news->kind == NEWS_RECORD)
        swim->records[news->subject].queued = false;
    gossip_pool_unref(swim->pool, news->blob);
    swim_queue_remove(queue, at);
}

static void queue_add(struct shoal_swim *swim, struct swim_queue *queue, enum swim_news_kind kind, uint32_t subject,
                      uint32_t blob)
{
    if (queue->count == queue->max) {
        queue_remove(swim, queue, swim_queue_stalest(queue));
        shoal_count(&swim->stats.drop_queue_full);
    }
    SHOAL_ASSERT(queue->count < queue->max); /* N3 */
    gossip_pool_ref(swim->pool, blob);
    if (kind == NEWS_RECORD)
        swim->records[subject].queued = true;
    else
        swim->members[subject].flags |= MEMBER_NEWS;
    swim_queue_add(queue, &(struct swim_news){ .kind = (uint8_t)kind,
                                               .subject = subject,
                                               .blob = blob,
                                               .len = (uint16_t)gossip_pool_view(swim->pool, blob).len });
    SHOAL_ASSERT(queue->fresh <= queue->count); /* N4 */
}

static bool blob_is_verdict(const struct shoal_swim *swim, uint32_t blob)
{
    SHOAL_ASSERT(gossip_pool_view(swim->pool, blob).bytes[0] == SWIM_ACCUSE); /* only an accusation has a verdict */
    return gossip_pool_view(swim->pool, blob).bytes[3] != SWIM_SUSPECT;
}

/* A card ends every older news about its member; a verdict ends the suspicions; the same statement is not queued
 * twice. */
void swim_news_member(struct shoal_swim *swim, enum swim_news_kind kind, uint32_t member, uint32_t blob)
{
    struct swim_queue *queue = &swim->queue_members;
    bool verdict = kind == NEWS_ACCUSE && blob_is_verdict(swim, blob);

    SHOAL_ASSERT(kind != NEWS_RECORD);                                     /* records have a queue of their own (N2) */
    SHOAL_ASSERT(kind != NEWS_CARD || swim->members[member].card == blob); /* N1: the newest card only */
    for (uint32_t i = is_told_of(swim, member) ? queue->count : 0; i-- > 0;) {
        const struct swim_news *news = &queue->items[i];

        if (news->subject != member)
            continue;
        if (news->blob == blob)
            return;
        if (kind == NEWS_CARD || (verdict && news->kind == NEWS_ACCUSE))
            queue_remove(swim, queue, i);
    }
    queue_add(swim, queue, kind, member, blob);
}

void swim_news_record(struct shoal_swim *swim, uint32_t record)
{
    SHOAL_ASSERT(swim->records[record].blob != 0); /* N1 */
    swim_news_drop_record(swim, record);
    queue_add(swim, &swim->queue_records, NEWS_RECORD, record, swim->records[record].blob);
}

static void drop_subject(struct shoal_swim *swim, struct swim_queue *queue, uint32_t subject)
{
    SHOAL_ASSERT(queue->count <= queue->max); /* N3 */
    for (uint32_t i = queue->count; i-- > 0;)
        if (queue->items[i].subject == subject)
            queue_remove(swim, queue, i);
}

void swim_news_drop_member(struct shoal_swim *swim, uint32_t member)
{
    if (!is_told_of(swim, member))
        return;
    drop_subject(swim, &swim->queue_members, member);
    swim->members[member].flags &= (uint8_t)~MEMBER_NEWS;
}

void swim_news_drop_record(struct shoal_swim *swim, uint32_t record)
{
    if (swim->records[record].queued)
        drop_subject(swim, &swim->queue_records, record);
    SHOAL_ASSERT(!swim->records[record].queued); /* N4 */
}

bool swim_news_waits(const struct shoal_swim *swim)
{
    SHOAL_ASSERT(swim->queue_members.fresh <= swim->queue_members.count); /* N4 */
    SHOAL_ASSERT(swim->queue_records.fresh <= swim->queue_records.count); /* N4 */
    return swim->queue_members.count + swim->queue_records.count > 0;
}

bool swim_news_has_card(const struct shoal_swim *swim, uint32_t member)
{
    for (uint32_t i = 0; i < swim->queue_members.count && is_told_of(swim, member); i++)
        if (swim->queue_members.items[i].subject == member && swim->queue_members.items[i].kind == NEWS_CARD)
            return true;
    return false;
}

static uint32_t retransmit_limit(const struct shoal_swim *swim)
{
    uint32_t n = swim->order_count + 2, digits = 0; /* log10(members + 1), rounded up */

    for (uint64_t power = 1; power < n; power *= 10)
        digits++;
    SHOAL_ASSERT(digits <= 10); /* of a 32-bit number */
    return swim->opt.retransmit * (digits == 0 ? 1 : digits);
}

/* ---- statements ----------------------------------------------------------------------------------------------- */

void swim_sign(struct shoal_swim *swim, struct shoal_writer *w)
{
    struct shoal_signature signature;

    SHOAL_ASSERT(!w->failed); /* N1: a statement is signed whole */
    signature = swim->opt.env.sign(swim->opt.env.arg, shoal_writer_view(w));
    swim->stats.signed_count++;
    shoal_put_raw(w, signature.bytes, sizeof(signature.bytes));
    SHOAL_ASSERT(!w->failed); /* and has room for its signature */
}

bool swim_verify(struct shoal_swim *swim, const struct shoal_public_key *key, struct shoal_view statement)
{
    struct shoal_signature signature;

    /* Only what was verified once is in the pool. */
    if (gossip_pool_find(swim->pool, statement) != 0)
        return true;
    SHOAL_ASSERT(statement.len > SWIM_SIGNATURE_BYTES); /* hear_news refuses shorter ones */
    memcpy(signature.bytes, statement.bytes + statement.len - SWIM_SIGNATURE_BYTES, SWIM_SIGNATURE_BYTES);
    statement.len -= SWIM_SIGNATURE_BYTES;
    swim->stats.verified++;
    if (swim->opt.env.verify(swim->opt.env.arg, key, statement, &signature))
        return true;
    shoal_count(&swim->stats.drop_bad_signature);
    return false;
}

uint32_t swim_accuse_make(struct shoal_swim *swim, uint32_t member, enum swim_verdict verdict)
{
    uint8_t bytes[SWIM_ACCUSE_BYTES];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    struct shoal_view card = swim_card_of(swim, member);
    uint32_t blob;

    SHOAL_ASSERT(member != SWIM_SELF); /* T5: nobody accuses itself */
    swim_put_accuse(&w, &(struct swim_accuse){ .verdict = verdict,
                                               .target = swim_card_id(card),
                                               .incarnation = swim_card_incarnation(card),
                                               .accuser = swim->opt.id });
    swim_sign(swim, &w);
    blob = gossip_pool_intern(swim->pool, shoal_writer_view(&w));
    if (blob == 0)
        shoal_count(&swim->stats.drop_pool_full);
    return blob;
}

uint64_t swim_age_s(const struct shoal_swim *swim, uint64_t since_ns)
{
    SHOAL_ASSERT(swim->started || since_ns <= swim->now_ns); /* nothing happened in the future */
    return since_ns > swim->now_ns ? 0 : (swim->now_ns - since_ns) / SHOAL_S;
}

/* ---- actions -------------------------------------------------------------------------------------------------- */

struct shoal_swim_action *swim_act(struct shoal_swim *swim, struct shoal_swim_actions *actions,
                                   enum shoal_swim_action_kind kind)
{
    struct shoal_swim_action *action;

    if (actions->count == SHOAL_SWIM_ACTIONS_MAX) {
        shoal_count(&swim->stats.drop_actions_full);
        return NULL;
    }
    SHOAL_ASSERT(actions->count < SHOAL_SWIM_ACTIONS_MAX);
    action = &actions->items[actions->count++];
    action->kind = kind;
    return action;
}

void swim_note(struct shoal_swim *swim, struct shoal_swim_actions *actions, enum shoal_swim_why what,
               struct shoal_node_id id, struct shoal_node_id by)
{
    struct shoal_swim_action *action = swim_act(swim, actions, SHOAL_SWIM_NOTE);

    if (action == NULL)
        return;
    SHOAL_ASSERT(!shoal_node_id_is_zero(id)); /* a note is about somebody */
    action->note.what = what;
    action->note.id = id;
    action->note.by = by;
}

/* ---- datagrams ------------------------------------------------------------------------------------------------ */

bool swim_out_begin(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct swim_out *out,
                    enum swim_message message, uint32_t member, struct shoal_node_id to, struct shoal_address address,
                    uint8_t flags)
{
    struct swim_head head = { .message = message, .flags = flags, .health = (uint8_t)shoal_swim_health(swim) };

    if (actions->sends == SHOAL_SWIM_SENDS_MAX || actions->count == SHOAL_SWIM_ACTIONS_MAX) {
        shoal_count(&swim->stats.drop_actions_full);
        return false;
    }
    if (member == SWIM_NONE || (swim->members[member].flags & MEMBER_STALE_CARD) != 0)
        head.flags |= SWIM_WANT_CARD;
    SHOAL_ASSERT(actions->sends < SHOAL_SWIM_SENDS_MAX);
    SHOAL_ASSERT(head.health <= SWIM_HEALTH_MAX); /* I4: the bound that a decoder has */
    head.tag = (uint16_t)gossip_pool_hash(swim->pool, swim->members[SWIM_SELF].card);
    out->actions = actions;
    out->to = to;
    out->address = address;
    out->w = shoal_writer_init(actions->bytes[actions->sends], SHOAL_DATAGRAM_PAYLOAD_MAX);
    swim_put_head(&out->w, &head);
    return true;
}

bool swim_out_to(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct swim_out *out,
                 enum swim_message message, uint32_t member)
{
    struct shoal_view card = swim_card_of(swim, member);

    SHOAL_ASSERT(member != SWIM_SELF); /* a node never writes to itself */
    return swim_out_begin(swim, actions, out, message, member, swim_card_id(card), swim_card_address(card), 0);
}

static size_t room(const struct swim_out *out)
{
    SHOAL_ASSERT(out->w.len <= out->w.cap); /* N5 */
    return out->w.cap - out->w.len;
}

bool swim_out_statement(struct swim_out *out, struct shoal_view statement, uint64_t age_s)
{
    if (room(out) < SWIM_NEWS_HEAD_BYTES + statement.len)
        return false;
    SHOAL_ASSERT(statement.len <= GOSSIP_POOL_STATEMENT_MAX); /* N5: what a receiver takes */
    shoal_put_u16(&out->w, (uint16_t)statement.len);
    shoal_put_u16(&out->w, (uint16_t)(age_s < SWIM_AGE_NONE ? age_s : SWIM_AGE_NONE));
    shoal_put_raw(&out->w, statement.bytes, statement.len);
    return true;
}

static uint64_t news_age_s(const struct shoal_swim *swim, const struct swim_news *news)
{
    SHOAL_ASSERT(news->kind == NEWS_RECORD || swim->members[news->subject].card != 0); /* T4 */
    if (news->kind == NEWS_RECORD)
        return swim->records[news->subject].tombstone ? swim_age_s(swim, swim->records[news->subject].since_ns)
                                                      : SWIM_AGE_NONE;
    if (news->kind == NEWS_CARD && swim->members[news->subject].state == SHOAL_MEMBER_LEFT)
        return swim_age_s(swim, swim->members[news->subject].since_ns);
    return SWIM_AGE_NONE;
}

/* Put news from `queue` into at most `budget` bytes; with `one`, one statement may exceed the budget. */
static void fill(struct shoal_swim *swim, struct swim_out *out, struct swim_queue *queue, size_t budget, bool one)
{
    uint32_t limit = retransmit_limit(swim);

    while (queue->count > 0) {
        uint32_t at = swim_queue_pick(queue, one ? room(out) : budget, swim->datagram_mark);
        const struct swim_news *news;
        size_t len;

        if (at == SWIM_NONE)
            return;
        news = &queue->items[at];
        SHOAL_ASSERT(news->mark != swim->datagram_mark); /* N5 */
        len = (size_t)news->len + SWIM_NEWS_HEAD_BYTES;
        if (!swim_out_statement(out, gossip_pool_view(swim->pool, news->blob), news_age_s(swim, news)))
            return;
        budget = len > budget ? 0 : budget - len;
        one = false;
        swim_queue_sent(queue, at, swim->datagram_mark);
        if (queue->items[at].sends >= limit)
            queue_remove(swim, queue, at);
    }
}

static void fill_both(struct shoal_swim *swim, struct swim_out *out)
{
    struct swim_queue *first = swim->records_first ? &swim->queue_records : &swim->queue_members;
    struct swim_queue *second = swim->records_first ? &swim->queue_members : &swim->queue_records;
    bool both = first->count > 0 && second->count > 0;
    size_t share = both ? room(out) * 6 / 10 : room(out); /* N2 */

    SHOAL_ASSERT(share <= room(out)); /* N2 */
    if (++swim->datagram_mark == 0)
        swim->datagram_mark = 1;
    fill(swim, out, first, share, true);
    if (!both)
        first = second;
    else
        fill(swim, out, second, room(out) < share ? room(out) : share, false);
    fill(swim, out, first, room(out), false);
    if (both)
        swim->records_first = !swim->records_first;
}

/* The accused hears first what it is accused of, so that it can refute at once: the buddy system. */
static void tell_accused(struct shoal_swim *swim, struct swim_out *out, uint32_t member)
{
    const struct swim_member *m = &swim->members[member];

    SHOAL_ASSERT((m->state == SHOAL_MEMBER_SUSPECT) == (m->suspicion != 0)); /* T2 */
    if (m->state == SHOAL_MEMBER_SUSPECT) {
        swim_out_statement(out, gossip_pool_view(swim->pool, swim_suspicion_of(swim, member)->blob), SWIM_AGE_NONE);
    } else if (m->state == SHOAL_MEMBER_DEAD) {
        uint32_t blob = swim_accuse_make(swim, member, SWIM_SUSPECT);

        if (blob != 0)
            swim_out_statement(out, gossip_pool_view(swim->pool, blob), SWIM_AGE_NONE);
        gossip_pool_unref(swim->pool, blob);
    }
}

void swim_out_news(struct shoal_swim *swim, struct swim_out *out, uint32_t member, bool own_card)
{
    SHOAL_ASSERT(member != SWIM_SELF); /* a node never writes to itself */
    if (own_card)
        swim_out_statement(out, swim_card_of(swim, SWIM_SELF), swim->leaving ? 0 : SWIM_AGE_NONE);
    if (member != SWIM_NONE)
        tell_accused(swim, out, member);
    fill_both(swim, out);
}

void swim_out_end(struct shoal_swim *swim, struct swim_out *out)
{
    struct shoal_swim_action *action;

    SHOAL_ASSERT(!out->w.failed);                           /* N5 */
    SHOAL_ASSERT(out->w.len <= SHOAL_DATAGRAM_PAYLOAD_MAX); /* N5 */
    action = swim_act(swim, out->actions, SHOAL_SWIM_SEND);
    if (action == NULL)
        return;
    action->send.to = out->to;
    action->send.address = out->address;
    action->send.bytes = shoal_writer_view(&out->w);
    out->actions->sends++;
    swim->stats.sent_datagrams++;
    swim->stats.sent_bytes += out->w.len;
}
