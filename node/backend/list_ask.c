/* A list of the whole mesh, as any node makes it: what every living node says of the jobs that it has a part in.
 *
 *   round:   "your first N rows that match, after this place" --> every node; answers merged by job
 *            up to the place that every answer has reached, and no further
 *   doubt:   jobs of which no leader has spoken --> "what of these jobs?" --> every node that answered; again, while
 *            nobody knows, for LIST_NS at most
 *   page:    the first N that still match; fewer than N, and not at the end: another round
 *
 * K1. Of one job the newest row counts: (configuration, term, applied). A deletion that anybody knows of counts more.
 * K2. A row is beyond doubt if the group's leader gave it, or if two nodes or more have it, none of them holds entries
 *     that it has not applied, and what is asked for cannot hide a newer one: the job has ended, or all rows of it were
 *     asked for. Otherwise its leader has just died, or is elsewhere with another state: it is asked for by its id.
 * K3. Nothing acknowledged is missing as long as at most one node is silent: whatever was acknowledged is durable on two
 *     guardians of three, on both of two, on three of five. The only guardian of a job may be the silent one, where the
 *     mesh has less than three nodes. The page says so (`complete`), and who is silent.
 * K4. Memory: twice N rows and one answer. When more jobs match, the last are dropped, and the list ends there. */
#include "list.h"

#include "shoal/banned.h"

#define LISTS_MAX 32
/* Questions of one list at one time: the table of open questions is for all lists, and for files and logs too. */
#define ASKS_MAX 64
#define TICK_MS 50
#define ANSWER_NS (4 * SHOAL_S)
/* A node whose link is down: it may be about to come up, after a start here or there. */
#define LINK_NS (SHOAL_S)
#define LIST_NS (5 * SHOAL_S)
#define JOIN_NS (3 * SHOAL_S)
#define DOUBT_PAUSE_NS (100 * SHOAL_MS)
#define ROUNDS_MAX 64

enum asked_state { ASKED_NOT_YET, ASKED_WAITS, ASKED_ANSWERED, ASKED_SILENT };

struct asked {
    struct shoal_node_id node;
    char name[64];
    enum asked_state state;
};

struct merged {
    struct shoal_list_place place;
    struct shoal_job_facts *facts; /* NULL: deleted */
    struct shoal_sched_version version;
    unsigned seen; /* nodes that gave it */
    bool leads, tail, deleted;
};

enum listing_phase { LISTING_JOINS, LISTING_ROUND, LISTING_DOUBTS, LISTING_PAUSES };

struct listing {
    struct agent *agent;
    struct list_query query;
    list_page_fn *done;
    void *arg;
    enum listing_phase phase;
    uint64_t start_ns, pause_ns;
    unsigned rounds;
    bool over;       /* told; calls may still be open */
    unsigned open;   /* calls */
    uint64_t serial; /* of the round or doubt under way: what comes later is not for it */
    struct asked *nodes;
    size_t node_count;
    struct merged *rows; /* in order, up to `upto` */
    size_t count, cap;
    bool cut; /* there may be rows behind `upto` */
    struct shoal_list_place upto;
    struct list_query doubts;
    struct shoal_job_facts **page; /* of earlier rounds, and what this one adds */
    size_t page_count;
    struct shoal_list_place page_end;
    unsigned unsettled;
    uv_timer_t timer;
};

struct call {
    struct listing *listing;
    size_t node;
    uint64_t serial;
};

static unsigned lists_open;
static void go_on(struct listing *l);

/* ---- Life ---- */

static void on_closed(uv_handle_t *handle)
{
    struct listing *l = handle->data;

    for (size_t i = 0; i < l->count; i++)
        free(l->rows[i].facts);
    for (size_t i = 0; i < l->page_count; i++)
        free(l->page[i]);
    free(l->page);
    free(l->rows);
    free(l->nodes);
    free(l);
    lists_open--;
}

static void free_if_done(struct listing *l)
{
    if (l->over && l->open == 0 && !uv_is_closing((uv_handle_t *)&l->timer))
        uv_close((uv_handle_t *)&l->timer, on_closed);
}

static void end(struct listing *l, enum shoal_err err, const char *text)
{
    const char *missing[64];
    struct list_page page = { .rows = (const struct shoal_job_facts *const *)l->page,
                              .count = l->page_count,
                              .unsettled = l->unsettled,
                              .missing = missing };
    struct shoal_msg msg;
    size_t silent = 0;

    for (size_t i = 0; i < l->node_count; i++) {
        if (l->nodes[i].state != ASKED_SILENT)
            continue;
        if (page.missing_count < sizeof(missing) / sizeof(missing[0]))
            missing[page.missing_count++] = l->nodes[i].name;
        silent++;
    }
    page.complete = l->unsettled == 0 && (silent == 0 || (silent == 1 && l->node_count >= 3)); /* K3 */
    if (l->cut || l->page_count == l->query.limit)
        page.next = l->page_end;
    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    l->over = true;
    (void)uv_timer_stop(&l->timer);
    l->done(l->arg, err, &msg, err == SHOAL_OK ? &page : NULL);
    free_if_done(l);
}

/* ---- Merging ---- */

static int version_cmp(struct shoal_sched_version a, struct shoal_sched_version b)
{
    if (a.config != b.config)
        return a.config < b.config ? -1 : 1;
    if (a.term != b.term)
        return a.term < b.term ? -1 : 1;
    return a.applied < b.applied ? -1 : a.applied > b.applied;
}

static size_t place_for(const struct listing *l, const struct shoal_list_place *place)
{
    size_t low = 0;
    size_t high = l->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (list_place_cmp(&l->query, &l->rows[mid].place, place) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct merged *find_job(struct listing *l, struct shoal_job_id id, const struct shoal_list_place *place)
{
    size_t at = place == NULL ? l->count : place_for(l, place);

    if (at < l->count && shoal_job_id_equal(l->rows[at].place.id, id))
        return &l->rows[at];
    /* In another place: nodes may differ in what the list is sorted by. */
    for (size_t i = 0; l->query.sort != SHOAL_SORT_CREATED && i < l->count; i++)
        if (shoal_job_id_equal(l->rows[i].place.id, id))
            return &l->rows[i];
    return NULL;
}

static void take_out(struct listing *l, size_t at)
{
    free(l->rows[at].facts);
    l->count--;
    memmove(&l->rows[at], &l->rows[at + 1], (l->count - at) * sizeof(*l->rows));
}

static bool put_in(struct listing *l, const struct merged *row)
{
    size_t at = place_for(l, &row->place);

    if (l->count == l->cap) {
        size_t cap = l->cap == 0 ? 64 : 2 * l->cap;
        struct merged *grown = realloc(l->rows, cap * sizeof(*grown));

        if (grown == NULL)
            return false;
        l->rows = grown;
        l->cap = cap;
    }
    memmove(&l->rows[at + 1], &l->rows[at], (l->count - at) * sizeof(*l->rows));
    l->rows[at] = *row;
    l->count++;
    return true;
}

/* What is behind this place is not known of all nodes, or has no room: K4. */
static void cut_at(struct listing *l, const struct shoal_list_place *place)
{
    if (l->cut && list_place_cmp(&l->query, &l->upto, place) <= 0)
        return;
    l->cut = true;
    l->upto = *place;
    while (l->count > 0 && list_place_cmp(&l->query, &l->rows[l->count - 1].place, place) > 0)
        take_out(l, l->count - 1);
}

/* K1. False: no memory. */
static bool merge(struct listing *l, const struct list_row *row)
{
    struct merged now = { .version = row->version,
                          .seen = 1,
                          .leads = row->leads,
                          .tail = row->tail,
                          .deleted = row->deleted,
                          .place = { .is_set = true, .id = row->id } };
    struct shoal_job_facts *facts = calloc(1, sizeof(*facts));
    bool decoded;
    struct merged *old;

    if (facts == NULL)
        return false;
    decoded = row->facts.len > 0 && shoal_job_facts_decode(row->facts, facts) == SHOAL_OK;
    facts->args = facts->data_json = (struct shoal_view){ 0 }; /* their bytes go with the answer */
    if (decoded)
        list_place_of(l->query.sort, facts, &now.place);
    else
        now.deleted = true; /* of a version that this node cannot read, or of a deleted job */
    old = find_job(l, row->id, decoded ? &now.place : NULL);
    if (old != NULL) {
        now.seen += old->seen;
        now.leads = now.leads || old->leads;
        now.tail = now.tail || old->tail;
        now.deleted = now.deleted || old->deleted;
    }
    if (old != NULL && (!decoded || version_cmp(old->version, row->version) >= 0)) {
        old->seen = now.seen;
        old->leads = now.leads;
        old->tail = now.tail;
        old->deleted = now.deleted;
        free(facts);
        return true;
    }
    if (old != NULL)
        take_out(l, (size_t)(old - l->rows));
    now.facts = decoded ? facts : NULL;
    if (!decoded)
        free(facts);
    if (!decoded && l->phase == LISTING_ROUND)
        return true;
    return put_in(l, &now);
}

static void take_answer(struct listing *l, struct asked *node, struct shoal_view bytes)
{
    struct list_answer answer;

    if (list_answer_decode(bytes, &answer) != SHOAL_OK) {
        node->state = ASKED_SILENT;
        return;
    }
    node->state = answer.broken ? ASKED_SILENT : ASKED_ANSWERED;
    for (uint32_t i = 0; i < answer.count; i++)
        if (!merge(l, &answer.rows[i]))
            node->state = ASKED_SILENT;
    if (l->phase == LISTING_ROUND && answer.more)
        cut_at(l, &answer.upto);
    if (l->phase == LISTING_ROUND && l->count > 2 * (size_t)l->query.limit) {
        struct shoal_list_place last = l->rows[l->query.limit - 1].place;

        cut_at(l, &last);
    }
    free(answer.rows);
}

/* ---- Asking ---- */

static void on_answered(struct call *call, enum shoal_err err, struct shoal_view answer)
{
    struct listing *l = call->listing;
    struct asked *node = &l->nodes[call->node];
    bool current = !l->over && call->serial == l->serial && node->state == ASKED_WAITS;

    free(call);
    l->open--;
    if (current && err == SHOAL_OK)
        take_answer(l, node, answer);
    else if (current)
        node->state = err == SHOAL_ERR_FULL && agent_now_ns() < l->start_ns + ANSWER_NS ? ASKED_NOT_YET : ASKED_SILENT;
    /* The tick goes on: an answer may come before the question has returned. */
    if (current && !l->over)
        (void)uv_timer_start(&l->timer, l->timer.timer_cb, node->state == ASKED_NOT_YET ? TICK_MS : 0, TICK_MS);
    free_if_done(l);
}

static void on_peer(void *arg, enum shoal_err err, const struct shoal_msg *msg, struct shoal_view answer)
{
    (void)msg;
    on_answered(arg, err, answer);
}

static void on_self(void *arg, enum shoal_err err, const char *text, struct shoal_view answer)
{
    (void)text;
    on_answered(arg, err, answer);
}

static void ask_node(struct listing *l, size_t at)
{
    static uint8_t bytes[LIST_QUERY_BYTES_MAX]; /* copied before anything else runs */
    const struct list_query *query = l->phase == LISTING_ROUND ? &l->query : &l->doubts;
    struct asked *node = &l->nodes[at];
    struct call *call = malloc(sizeof(*call));
    enum shoal_err err;
    size_t len = 0;

    SHOAL_ASSERT(call != NULL);
    err = list_query_encode(query, bytes, sizeof(bytes), &len);
    SHOAL_ASSERT(err == SHOAL_OK);
    *call = (struct call){ .listing = l, .node = at, .serial = l->serial };
    node->state = ASKED_WAITS;
    l->open++;
    if (shoal_node_id_equal(node->node, l->agent->identity.node))
        list_serve(l->agent, query, on_self, call);
    else
        peer_ask(l->agent->calls, node->node, PEER_JOBS_LIST, shoal_view_of(bytes, len), ANSWER_NS, on_peer, call);
}

/* It answers nothing any more, or has no link for too long. */
static bool is_silent(struct listing *l, const struct asked *node)
{
    struct shoal_member member;

    if (shoal_node_id_equal(node->node, l->agent->identity.node))
        return false;
    if (!shoal_swim_member_find(membership_swim(l->agent->membership), node->node, &member) ||
        member.state == SHOAL_MEMBER_DEAD || member.state == SHOAL_MEMBER_LEFT)
        return true;
    return !shoal_link_is_up(l->agent->link, node->node) && agent_now_ns() >= l->start_ns + LINK_NS;
}

/* True: every node has answered, or will not. */
static bool ask_all(struct listing *l)
{
    unsigned waits = 0;
    bool all = true;

    for (size_t i = 0; i < l->node_count; i++)
        waits += l->nodes[i].state == ASKED_WAITS ? 1 : 0;
    for (size_t i = 0; i < l->node_count; i++) {
        struct asked *node = &l->nodes[i];

        if (node->state <= ASKED_WAITS && is_silent(l, node))
            node->state = ASKED_SILENT;
        if (node->state == ASKED_NOT_YET && waits < ASKS_MAX &&
            (shoal_node_id_equal(node->node, l->agent->identity.node) ||
             shoal_link_is_up(l->agent->link, node->node))) {
            ask_node(l, i);
            waits++;
        }
        all = all && node->state >= ASKED_ANSWERED;
    }
    return all;
}

static void ask_again(struct listing *l, enum listing_phase phase)
{
    l->phase = phase;
    l->serial++;
    for (size_t i = 0; i < l->node_count; i++)
        if (l->nodes[i].state != ASKED_SILENT)
            l->nodes[i].state = ASKED_NOT_YET;
}

/* ---- Rounds, doubts, pages ---- */

/* K2. */
static bool is_in_doubt(const struct listing *l, const struct merged *row)
{
    bool ended = row->facts != NULL && shoal_job_state_ended((enum shoal_job_state)row->facts->state);

    if (row->deleted || row->leads)
        return false;
    if (row->tail)
        return true;
    if (l->phase == LISTING_DOUBTS)
        return false; /* everybody was asked for it by its id */
    return row->seen < 2 || (!ended && list_query_is_mutable(&l->query));
}

/* The rows in doubt leave the list: what the answers say of them comes into it again. */
static void collect_doubts(struct listing *l)
{
    l->doubts = (struct list_query){ .limit = l->query.limit, .sort = l->query.sort };
    for (size_t i = l->count; i > 0; i--) {
        const struct merged *row = &l->rows[i - 1];

        if (!is_in_doubt(l, row) || l->doubts.id_count == SHOAL_LIST_ROWS_MAX)
            continue;
        l->doubts.ids[l->doubts.id_count++] = row->place.id;
    }
}

static void forget_doubted(struct listing *l)
{
    for (uint32_t d = 0; d < l->doubts.id_count; d++)
        for (size_t i = l->count; i > 0; i--)
            if (shoal_job_id_equal(l->rows[i - 1].place.id, l->doubts.ids[d])) {
                take_out(l, i - 1);
                break;
            }
}

/* The rows of this round behind those of the page. False: no memory. */
static bool take_page(struct listing *l)
{
    for (size_t i = 0; i < l->count && l->page_count < l->query.limit; i++) {
        struct merged *row = &l->rows[i];

        if (row->facts == NULL) /* deleted: what it was sorted by is not known */
            continue;
        l->page_end = row->place;
        if (row->deleted || !list_query_takes(&l->query, row->facts))
            continue;
        l->page[l->page_count++] = row->facts;
        row->facts = NULL;
    }
    if (l->page_count < l->query.limit && l->cut)
        l->page_end = l->upto;
    while (l->count > 0)
        take_out(l, l->count - 1);
    return true;
}

static void settle(struct listing *l)
{
    collect_doubts(l);
    if (l->doubts.id_count > 0 && agent_now_ns() < l->start_ns + LIST_NS) {
        bool again = l->phase == LISTING_DOUBTS;

        l->phase = again ? LISTING_PAUSES : LISTING_DOUBTS;
        l->pause_ns = agent_now_ns() + DOUBT_PAUSE_NS;
        if (again)
            return;
        forget_doubted(l);
        ask_again(l, LISTING_DOUBTS);
        go_on(l);
        return;
    }
    for (size_t i = 0; i < l->count; i++)
        l->unsettled += l->rows[i].tail && !l->rows[i].leads && !l->rows[i].deleted ? 1 : 0;
    (void)take_page(l);
    if (l->page_count == l->query.limit || !l->cut || ++l->rounds == ROUNDS_MAX) {
        end(l, SHOAL_OK, "");
        return;
    }
    l->query.after = l->page_end;
    l->cut = false;
    ask_again(l, LISTING_ROUND);
    go_on(l);
}

static void name_node(struct listing *l, struct shoal_node_id id, const char *name, enum asked_state state)
{
    struct asked *grown = realloc(l->nodes, (l->node_count + 1) * sizeof(*grown));

    SHOAL_ASSERT(grown != NULL);
    l->nodes = grown;
    l->nodes[l->node_count] = (struct asked){ .node = id, .state = state };
    (void)snprintf(l->nodes[l->node_count++].name, sizeof(l->nodes[0].name), "%s", name);
}

static void name_nodes(struct listing *l)
{
    struct shoal_member member;
    char names[16][64];
    uint32_t cursor = 0;
    size_t unheard = agent_peers_unheard(l->agent, names, 16);

    while (shoal_swim_member_next(membership_swim(l->agent->membership), &cursor, &member))
        if (member.state != SHOAL_MEMBER_LEFT)
            name_node(l, member.id, member.name, ASKED_NOT_YET);
    for (size_t i = 0; i < unheard && i < 16; i++)
        name_node(l, (struct shoal_node_id){ { 0 } }, names[i], ASKED_SILENT);
}

static void go_on(struct listing *l)
{
    uint64_t now = agent_now_ns();

    if (l->agent->stopping) {
        end(l, SHOAL_ERR_UNREACHABLE, "this agent stops; ask another node");
        return;
    }
    if (l->phase == LISTING_JOINS) {
        char names[1][64];

        if (agent_peers_unheard(l->agent, names, 1) > 0 && now < l->start_ns + JOIN_NS)
            return;
        name_nodes(l);
        l->start_ns = now;
        ask_again(l, LISTING_ROUND);
    }
    if (l->phase == LISTING_PAUSES) {
        if (now < l->pause_ns)
            return;
        forget_doubted(l);
        ask_again(l, LISTING_DOUBTS);
    }
    if (ask_all(l))
        settle(l);
}

static void on_tick(uv_timer_t *timer)
{
    struct listing *l = timer->data;

    if (!l->over)
        go_on(l);
}

enum shoal_err list_ask(struct agent *agent, const struct list_query *query, list_page_fn *done, void *arg)
{
    struct listing *l = lists_open == LISTS_MAX ? NULL : calloc(1, sizeof(*l));

    if (l != NULL)
        l->page = calloc(query->limit + 1, sizeof(*l->page));
    if (l == NULL || l->page == NULL) {
        free(l);
        return SHOAL_ERR_FULL;
    }
    lists_open++;
    l->agent = agent;
    l->query = *query;
    l->done = done;
    l->arg = arg;
    l->start_ns = agent_now_ns();
    (void)uv_timer_init(&agent->loop, &l->timer);
    l->timer.data = l;
    (void)uv_timer_start(&l->timer, on_tick, 0, TICK_MS);
    return SHOAL_OK;
}
