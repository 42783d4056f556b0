/* Statements about members change the table: cards (a node's word about itself) and accusations (others' words about
 * it).
 *
 *              card, higher incarnation            silence, or a signed accusation
 *        +--------------------------------+   +--------------------------------------+
 *        v                                |   |                                      v
 *      ALIVE <---- card, higher ------ SUSPECT ---- time is up, or a verdict ----> DEAD --- grace ---> forgotten
 *        |                                                                          |
 *        +------- signed leave, or removal, from any state --> LEFT --- grace ------+
 *
 * M1. Only a node raises its own incarnation; a card is believed only with that node's signature.
 * M2. A suspect becomes dead here by timeout, by another member's word that it is dead, or by a refused port seen here.
 * M3. A verdict about a member that nobody suspected yet only opens a suspicion: its accuser may have missed the
 *     answer. Repeated, it confirms nothing: the next verdict has to be another member's.
 * M4. From anti-entropy, "I hold it for dead" opens a suspicion, never a verdict; about a stranger it is kept as a
 *     death with its age, so that the dead are forgotten everywhere at about the same time.
 * M5. Signatures are checked only on what would change something here.
 * M6. A second verdict does not renew the time of death.
 * M7. The owner says who was removed from the mesh (EXPEL, `admits`): such a node has left, and no card of it is taken.
 * M8. An accusation counts against the very card that is known here. One of an older card is answered already; one of a
 *     newer card may be of a card that its owner never signed, and so could never refute: the card comes first.
 * Sources: SWIM (DSN 2002) section 4.2; Lifeguard (arXiv 1707.00788); memberlist's state rules. */
#include "swim_state.h"

#include <string.h>

#include "shoal/banned.h"

static bool same_life(struct shoal_incarnation a, struct shoal_incarnation b)
{
    return a.host_epoch == b.host_epoch && a.agent == b.agent;
}

static bool later_life(struct shoal_incarnation a, struct shoal_incarnation b)
{
    return a.host_epoch != b.host_epoch ? a.host_epoch > b.host_epoch : a.agent > b.agent;
}

void swim_health_add(struct shoal_swim *swim, int points)
{
    int score = (int)swim->counted_health + points;

    SHOAL_ASSERT(swim->counted_health <= SWIM_HEALTH_MAX); /* I4 of swim.c */
    if (score < 0)
        score = 0;
    if (score > SWIM_HEALTH_MAX)
        score = SWIM_HEALTH_MAX;
    swim->counted_health = (unsigned)score;
}

void swim_member_out(const struct shoal_swim *swim, uint32_t member, struct shoal_member *out)
{
    const struct swim_member *m = &swim->members[member];
    struct swim_card card;
    enum shoal_err err = swim_get_card(swim_card_of(swim, member), &card);

    SHOAL_ASSERT(err == SHOAL_OK);                /* M1: only what decoded and was signed is held */
    SHOAL_ASSERT(m->state < SHOAL_MEMBER_STATES); /* T8 */
    *out = (struct shoal_member){ .id = card.id,
                                  .store = card.store,
                                  .incarnation = card.incarnation,
                                  .state = (enum shoal_member_state)m->state,
                                  .health = m->health,
                                  .agent_gone = (m->flags & MEMBER_GONE) != 0,
                                  .since_ns = m->since_ns,
                                  .address = card.address,
                                  .link_port = card.link_port,
                                  .http_port = card.http_port,
                                  .public_key = card.key };
    memcpy(out->name, card.name, sizeof(out->name));
}

static void tell(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member,
                 enum shoal_member_state old, enum shoal_swim_why why, uint32_t by)
{
    struct shoal_swim_action *action = swim_act(swim, actions, SHOAL_SWIM_MEMBER);

    if (action == NULL)
        return;
    SHOAL_ASSERT(member != SWIM_SELF); /* T5: the owner knows about itself */
    swim_member_out(swim, member, &action->member.member);
    action->member.old = old;
    action->member.why = why;
    action->member.by = by == SWIM_NONE ? (struct shoal_node_id){ { 0 } } : swim_id_of(swim, by);
}

/* ---- ourselves ------------------------------------------------------------------------------------------------ */

bool swim_self_card(struct shoal_swim *swim, uint32_t refutation, bool leaving)
{
    const struct shoal_swim_options *opt = &swim->opt;
    struct swim_card card = { .leaving = leaving,
                              .id = opt->id,
                              .key = opt->public_key,
                              .store = opt->store,
                              .incarnation = { opt->host_epoch, opt->agent, refutation },
                              .address = opt->address,
                              .link_port = opt->link_port,
                              .http_port = opt->http_port };
    uint8_t bytes[SWIM_CARD_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    uint32_t blob;

    SHOAL_ASSERT(swim->members_count == 0 ||
                 shoal_incarnation_cmp(card.incarnation, swim->incarnation) > 0); /* M1: it only rises */
    SHOAL_ASSERT(!swim->leaving); /* a leave is the last word of a life */
    memcpy(card.name, opt->name, sizeof(card.name));
    swim_put_card(&w, &card);
    swim_sign(swim, &w);
    blob = gossip_pool_intern(swim->pool, shoal_writer_view(&w));
    if (blob == 0) {
        shoal_count(&swim->stats.drop_pool_full);
        return false;
    }
    swim->incarnation = card.incarnation;
    if (swim->members_count == 0)
        (void)swim_table_add(swim, blob, SHOAL_MEMBER_ALIVE, swim->now_ns);
    else
        swim_table_set_card(swim, SWIM_SELF, blob);
    SHOAL_ASSERT(swim->members[SWIM_SELF].card == blob); /* T5: place 0 is ourselves */
    swim_news_member(swim, NEWS_CARD, SWIM_SELF, blob);
    return true;
}

static void refute(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct shoal_node_id by)
{
    if (swim->leaving || swim->cloned || swim->incarnation.refutation == UINT32_MAX)
        return;
    SHOAL_ASSERT(!shoal_node_id_equal(by, swim->opt.id)); /* nobody accuses itself */
    if (!swim_self_card(swim, swim->incarnation.refutation + 1, false))
        return;
    swim->stats.refutations++;
    swim_health_add(swim, 1);
    swim_note(swim, actions, SHOAL_SWIM_NOTE_REFUTE, swim->opt.id, by);
}

static void cloned(struct shoal_swim *swim, struct shoal_swim_actions *actions, const struct swim_card *card)
{
    struct shoal_swim_action *action;

    if (swim->cloned)
        return;
    SHOAL_ASSERT(shoal_incarnation_cmp(card->incarnation, swim->incarnation) >= 0); /* M1: we signed no such word */
    swim->cloned = true;
    action = swim_act(swim, actions, SHOAL_SWIM_CLONED);
    if (action == NULL)
        return;
    action->cloned.id = card->id;
    action->cloned.incarnation = card->incarnation;
    action->cloned.address = card->address;
}

/* A card with our id. A later life, or this life's future, was signed with our key by somebody else. */
static void hear_own_card(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct shoal_view statement,
                          const struct swim_card *card)
{
    int order = shoal_incarnation_cmp(card->incarnation, swim->incarnation);

    SHOAL_ASSERT(shoal_node_id_equal(card->id, swim->opt.id));
    if (order < 0) {
        shoal_count(&swim->stats.drop_old);
        /* Somebody missed our newest card: say it again, unless that is on its way. */
        if (!same_life(card->incarnation, swim->incarnation) && !swim_news_has_card(swim, SWIM_SELF))
            swim_news_member(swim, NEWS_CARD, SWIM_SELF, swim->members[SWIM_SELF].card);
        return;
    }
    if (shoal_view_equal(statement, swim_card_of(swim, SWIM_SELF))) {
        shoal_count(&swim->stats.drop_old);
        return;
    }
    if (swim_verify(swim, &swim->opt.public_key, statement))
        cloned(swim, actions, card);
}

/* ---- cards ---------------------------------------------------------------------------------------------------- */

/* The statement's handle with one reference, its signature and its id checked; 0: not believed, or no room. */
static uint32_t take_card(struct shoal_swim *swim, struct shoal_view statement, const struct swim_card *card)
{
    uint32_t blob;

    if (gossip_pool_find(swim->pool, statement) == 0) {
        struct shoal_node_id id = swim->opt.env.node_id(swim->opt.env.arg, &card->key);

        if (!shoal_node_id_equal(id, card->id)) {
            shoal_count(&swim->stats.drop_bad_signature);
            return 0;
        }
        if (!swim_verify(swim, &card->key, statement))
            return 0;
    }
    blob = gossip_pool_intern(swim->pool, statement);
    if (blob == 0)
        shoal_count(&swim->stats.drop_pool_full);
    SHOAL_ASSERT(blob == 0 || shoal_node_id_equal(swim_card_id(gossip_pool_view(swim->pool, blob)), card->id)); /* M1 */
    return blob;
}

static void hear_new_card(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_view statement,
                          const struct swim_card *card, uint64_t age_s)
{
    enum shoal_member_state state = card->leaving ? SHOAL_MEMBER_LEFT : SHOAL_MEMBER_ALIVE;
    uint64_t age_ns = age_s == SWIM_AGE_NONE ? 0 : age_s * SHOAL_S;
    uint32_t blob, member;

    if (origin->sync && age_s != SWIM_AGE_NONE && !card->leaving)
        state = SHOAL_MEMBER_DEAD; /* M4 */
    if (state != SHOAL_MEMBER_ALIVE && age_ns >= swim->opt.grace_ns / 2) {
        shoal_count(&swim->stats.drop_expired);
        return;
    }
    if (swim->members_count == swim->opt.members_max) {
        shoal_count(&swim->stats.drop_members_full);
        return;
    }
    blob = take_card(swim, statement, card);
    if (blob == 0)
        return;
    if (age_ns > swim->now_ns)
        age_ns = swim->now_ns;
    member = swim_table_add(swim, blob, state, swim->now_ns - (state == SHOAL_MEMBER_ALIVE ? 0 : age_ns));
    SHOAL_ASSERT(member != SWIM_NONE);                                        /* there was room, see above */
    SHOAL_ASSERT(state == SHOAL_MEMBER_ALIVE || age_ns < swim->opt.grace_ns); /* M4 */
    if (state != SHOAL_MEMBER_DEAD)
        swim_news_member(swim, NEWS_CARD, member, blob);
    tell(swim, origin->actions, member, SHOAL_MEMBER_NONE, SHOAL_SWIM_WHY_CARD, SWIM_NONE);
}

static void hear_newer_card(struct shoal_swim *swim, const struct swim_origin *origin, uint32_t member,
                            struct shoal_view statement, const struct swim_card *card, uint64_t age_s)
{
    struct swim_member *m = &swim->members[member];
    enum shoal_member_state old = (enum shoal_member_state)m->state;
    enum shoal_member_state state = card->leaving ? SHOAL_MEMBER_LEFT : SHOAL_MEMBER_ALIVE;
    bool restarted = !same_life(swim_card_incarnation(swim_card_of(swim, member)), card->incarnation);
    uint32_t blob = take_card(swim, statement, card);
    uint64_t since_ns = swim->now_ns;

    SHOAL_ASSERT(member != SWIM_SELF); /* M1: ours is heard by hear_own_card */
    if (blob == 0)
        return;
    if (restarted)
        m->flags &= (uint8_t)~MEMBER_DOUBT;
    else if ((m->flags & MEMBER_GONE) != 0)
        m->flags |= MEMBER_DOUBT;
    m->flags &= (uint8_t)~MEMBER_STALE_CARD;
    m->misses = 0;
    if (swim->probe.member == member)
        swim->probe.open = false; /* its silence was before this word */
    if (card->leaving && age_s != SWIM_AGE_NONE && age_s * SHOAL_S < since_ns)
        since_ns -= age_s * SHOAL_S;
    swim_table_set_card(swim, member, blob);
    if (old != state)
        swim_table_move(swim, member, state, since_ns);
    swim_news_member(swim, NEWS_CARD, member, blob);
    tell(swim, origin->actions, member, old, SHOAL_SWIM_WHY_CARD, SWIM_NONE);
}

void swim_hear_card(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_view statement,
                    uint64_t age_s)
{
    struct swim_card card;
    uint32_t member;
    int order;

    if (swim_get_card(statement, &card) != SHOAL_OK) {
        shoal_count(&swim->stats.drop_malformed);
        return;
    }
    if (shoal_node_id_equal(card.id, swim->opt.id)) {
        hear_own_card(swim, origin->actions, statement, &card);
        return;
    }
    if (swim->opt.env.admits != NULL && !swim->opt.env.admits(swim->opt.env.arg, card.id)) { /* M7 */
        shoal_count(&swim->stats.drop_expelled);
        return;
    }
    member = swim_table_find(swim, card.id);
    if (member == SWIM_NONE) {
        hear_new_card(swim, origin, statement, &card, age_s);
    } else {
        order = shoal_incarnation_cmp(card.incarnation, swim_card_incarnation(swim_card_of(swim, member)));
        if (order > 0)
            hear_newer_card(swim, origin, member, statement, &card, age_s);
        else if (order == 0 && !shoal_view_equal(statement, swim_card_of(swim, member)))
            shoal_count(&swim->stats.drop_conflict);
        else
            shoal_count(&swim->stats.drop_old);
    }
    /* The same data folder under another key: believed as far as that key's signature goes. */
    if (shoal_store_id_equal(card.store, swim->opt.store) && later_life(card.incarnation, swim->incarnation) &&
        gossip_pool_find(swim->pool, statement) != 0)
        cloned(swim, origin->actions, &card);
}

/* ---- accusations ---------------------------------------------------------------------------------------------- */

static void die(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member, enum shoal_swim_why why,
                uint32_t by, bool gone)
{
    enum shoal_member_state old = (enum shoal_member_state)swim->members[member].state;

    SHOAL_ASSERT(old == SHOAL_MEMBER_ALIVE || old == SHOAL_MEMBER_SUSPECT); /* M6 */
    swim_table_move(swim, member, SHOAL_MEMBER_DEAD, swim->now_ns);
    if (gone)
        swim->members[member].flags |= MEMBER_GONE;
    swim->stats.deaths++;
    tell(swim, actions, member, old, why, by);
}

/* Open a suspicion; false: the table of suspicions is full. */
static bool suspect(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member, uint32_t accuser,
                    uint32_t blob, enum shoal_swim_why why)
{
    if (swim_suspicion_open(swim, member, accuser, blob) == NULL) {
        shoal_count(&swim->stats.drop_suspicions_full);
        return false;
    }
    SHOAL_ASSERT(accuser != member); /* nobody accuses itself */
    swim_table_move(swim, member, SHOAL_MEMBER_SUSPECT, swim->now_ns);
    swim->stats.suspicions++;
    tell(swim, actions, member, SHOAL_MEMBER_ALIVE, why, accuser);
    return true;
}

/* About as many as can confirm or clear a suspicion look for themselves, whatever the mesh's size. */
static void look_soon(struct shoal_swim *swim, uint32_t member)
{
    uint32_t live = swim->order_count + 1;

    SHOAL_ASSERT(swim_member_is_live(swim, member)); /* T1: it is in the order */
    if (shoal_rand_below(&swim->chance, live) < 2 * swim->opt.confirmations + 2)
        swim_order_hasten(swim, member);
}

static void hear_of_live(struct shoal_swim *swim, const struct swim_origin *origin, const struct swim_accuse *accuse,
                         uint32_t member, uint32_t accuser, uint32_t blob)
{
    struct shoal_swim_actions *actions = origin->actions;
    struct swim_suspicion *s = swim_suspicion_of(swim, member);
    bool verdict = accuse->verdict != SWIM_SUSPECT;

    SHOAL_ASSERT(swim_member_is_live(swim, member)); /* M6: would_change came before */
    SHOAL_ASSERT(accuser != member && accuser != SWIM_SELF);
    if (s == NULL) {
        if (!suspect(swim, actions, member, accuser, blob, SHOAL_SWIM_WHY_TOLD))
            return;
        s = swim_suspicion_of(swim, member);
        SHOAL_ASSERT(s != NULL);  /* T2 */
        s->opened_dead = verdict; /* M3 */
        swim_news_member(swim, NEWS_ACCUSE, member, blob);
        if (accuse->verdict == SWIM_GONE)
            swim_order_hasten(swim, member);
        else
            look_soon(swim, member);
        return;
    }
    if (verdict && !(s->opened_dead && s->accusers[0] == accuser)) {
        die(swim, actions, member, SHOAL_SWIM_WHY_TOLD, accuser, accuse->verdict == SWIM_GONE);
        swim_news_member(swim, NEWS_ACCUSE, member, blob);
        return;
    }
    if (!swim_suspicion_confirm(swim, s, accuser, blob)) {
        shoal_count(&swim->stats.drop_old);
        return;
    }
    swim_news_member(swim, NEWS_ACCUSE, member, blob);
    swim_note(swim, actions, SHOAL_SWIM_NOTE_CONFIRMED, accuse->target, accuse->accuser);
}

static void hear_of_self(struct shoal_swim *swim, const struct swim_origin *origin, const struct swim_accuse *accuse)
{
    SHOAL_ASSERT(shoal_incarnation_cmp(accuse->incarnation, swim->incarnation) == 0); /* M8: would_change() came before */
    SHOAL_ASSERT(shoal_node_id_equal(accuse->target, swim->opt.id));
    refute(swim, origin->actions, accuse->accuser);
}

static bool would_change(const struct shoal_swim *swim, uint32_t member, const struct swim_accuse *accuse)
{
    SHOAL_ASSERT(shoal_node_id_equal(accuse->target, swim_id_of(swim, member)));
    return swim_member_is_live(swim, member) &&
           shoal_incarnation_cmp(accuse->incarnation, swim_card_incarnation(swim_card_of(swim, member))) == 0; /* M8 */
}

void swim_hear_accuse(struct shoal_swim *swim, const struct swim_origin *origin, struct shoal_view statement)
{
    struct swim_accuse accuse;
    struct swim_card card;
    uint32_t target, accuser, blob;

    if (swim_get_accuse(statement, &accuse) != SHOAL_OK) {
        shoal_count(&swim->stats.drop_malformed);
        return;
    }
    target = swim_table_find(swim, accuse.target);
    accuser = swim_table_find(swim, accuse.accuser);
    if (target == SWIM_NONE || accuser == SWIM_NONE) {
        shoal_count(target == SWIM_NONE ? &swim->stats.drop_unknown_subject : &swim->stats.drop_unknown_accuser);
        return;
    }
    /* Our own word comes back to us, or from our past: what we think now is known here already. */
    if (accuser == SWIM_SELF || accuser == target || !would_change(swim, target, &accuse)) {
        shoal_count(&swim->stats.drop_old);
        return;
    }
    if (swim_get_card(swim_card_of(swim, accuser), &card) != SHOAL_OK || !swim_verify(swim, &card.key, statement))
        return;
    if (target == SWIM_SELF) {
        hear_of_self(swim, origin, &accuse);
        return;
    }
    blob = gossip_pool_intern(swim->pool, statement);
    if (blob == 0) {
        shoal_count(&swim->stats.drop_pool_full);
        return;
    }
    SHOAL_ASSERT(target != SWIM_SELF); /* M1: only we answer for ourselves */
    hear_of_live(swim, origin, &accuse, target, accuser, blob);
    gossip_pool_unref(swim->pool, blob);
}

void swim_suspect(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member)
{
    struct swim_suspicion *s = swim_suspicion_of(swim, member);
    uint32_t blob = swim_accuse_make(swim, member, SWIM_SUSPECT);
    bool news;

    SHOAL_ASSERT(swim_member_is_live(swim, member)); /* M2 */
    if (blob == 0)
        return;
    if (s == NULL)
        news = suspect(swim, actions, member, SWIM_SELF, blob, SHOAL_SWIM_WHY_SILENT);
    else
        news = swim_suspicion_confirm(swim, s, SWIM_SELF, blob);
    if (news)
        swim_news_member(swim, NEWS_ACCUSE, member, blob);
    if (news && s != NULL)
        swim_note(swim, actions, SHOAL_SWIM_NOTE_CONFIRMED, swim_id_of(swim, member), swim->opt.id);
    gossip_pool_unref(swim->pool, blob);
}

void swim_declare(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member,
                  enum swim_verdict verdict)
{
    bool gone = verdict == SWIM_GONE;
    uint32_t blob = swim_accuse_make(swim, member, verdict);

    SHOAL_ASSERT(verdict != SWIM_SUSPECT);                                              /* M2 */
    SHOAL_ASSERT(gone || swim_suspicion_of(swim, member)->deadline_ns <= swim->now_ns); /* M2: its time is up */
    die(swim, actions, member, gone ? SHOAL_SWIM_WHY_REFUSED : SHOAL_SWIM_WHY_TIMEOUT, SWIM_NONE, gone);
    if (blob != 0)
        swim_news_member(swim, NEWS_ACCUSE, member, blob);
    gossip_pool_unref(swim->pool, blob);
}

void swim_forget(struct shoal_swim *swim, struct shoal_swim_actions *actions, uint32_t member)
{
    enum shoal_member_state old = (enum shoal_member_state)swim->members[member].state;
    struct shoal_swim_action *action = swim_act(swim, actions, SHOAL_SWIM_MEMBER);

    SHOAL_ASSERT(swim->now_ns - swim->members[member].since_ns >= swim->opt.grace_ns); /* M4: everywhere about then */
    if (action != NULL) {
        swim_member_out(swim, member, &action->member.member);
        action->member.member.state = SHOAL_MEMBER_NONE;
        action->member.old = old;
        action->member.why = SHOAL_SWIM_WHY_EXPIRED;
        action->member.by = (struct shoal_node_id){ { 0 } };
    }
    swim_table_remove(swim, member);
}

enum shoal_err swim_expel(struct shoal_swim *swim, struct shoal_swim_actions *actions, struct shoal_node_id id)
{
    uint32_t member = swim_table_find(swim, id);
    enum shoal_member_state old;

    if (member == SWIM_NONE || member == SWIM_SELF)
        return SHOAL_ERR_NOT_FOUND;
    old = (enum shoal_member_state)swim->members[member].state;
    if (old == SHOAL_MEMBER_LEFT)
        return SHOAL_OK;
    if (swim->probe.member == member)
        swim->probe.open = false;
    swim_table_move(swim, member, SHOAL_MEMBER_LEFT, swim->now_ns);
    swim_news_drop_member(swim, member);              /* M7: nobody is told of it any more */
    SHOAL_ASSERT(!swim_member_is_live(swim, member)); /* M7 */
    tell(swim, actions, member, old, SHOAL_SWIM_WHY_EXPELLED, SWIM_NONE);
    return SHOAL_OK;
}
