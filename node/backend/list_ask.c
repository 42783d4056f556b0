/* A list of the whole mesh, as any node makes it: what every living node says of the jobs that it has a part in.
 *
 *   round:   "your first N rows that match, after this place" --> every node; answers merged by job
 *            up to the place that every answer has reached, and no further
 *   doubt:   jobs of which no leader has spoken --> "what of these jobs?" --> every node that answered; again, while
 *            nobody knows, for LIST_NS at most
 *   page:    the first N that still match; fewer than N, and not at the end: another round
 *
 * K1, K2, K4: list_merge.h, which merges the answers.
 * K3. Nothing acknowledged is missing as long as at most one node is silent: whatever was acknowledged is durable on two
 *     guardians of three, on both of two, on three of five. The only guardian of a job may be the silent one, where the
 *     mesh has less than three nodes. The page says so (`complete`), and who is silent. */
#include "shoal/job_facts.h"
#include "list.h"

#include "list_merge.h"

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

enum listing_phase { LISTING_JOINS, LISTING_ROUND, LISTING_DOUBTS, LISTING_PAUSES };

struct listing {
    struct agent *agent;
    struct list_merge merge; /* its query says what is asked for, and after which place */
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

    list_merge_deinit(&l->merge);
    for (size_t i = 0; i < l->page_count; i++)
        free(l->page[i]);
    free(l->page);
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
    if (l->merge.cut || l->page_count == l->merge.query.limit)
        page.next = l->page_end;
    (void)snprintf(msg.text, sizeof(msg.text), "%s", text);
    l->over = true;
    (void)uv_timer_stop(&l->timer);
    l->done(l->arg, err, &msg, err == SHOAL_OK ? &page : NULL);
    free_if_done(l);
}

/* ---- Asking ---- */

static void take_answer(struct listing *l, struct asked *node, struct shoal_view bytes)
{
    node->state = list_merge_answer(&l->merge, bytes) ? ASKED_ANSWERED : ASKED_SILENT;
}

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
    const struct list_query *query = l->phase == LISTING_ROUND ? &l->merge.query : &l->merge.doubts;
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
    l->merge.by_id = phase == LISTING_DOUBTS;
    l->serial++;
    for (size_t i = 0; i < l->node_count; i++)
        if (l->nodes[i].state != ASKED_SILENT)
            l->nodes[i].state = ASKED_NOT_YET;
}

/* ---- Rounds, doubts, pages ---- */

static void settle(struct listing *l)
{
    if (list_merge_doubt(&l->merge) > 0 && agent_now_ns() < l->start_ns + LIST_NS) {
        bool again = l->phase == LISTING_DOUBTS;

        l->phase = again ? LISTING_PAUSES : LISTING_DOUBTS;
        l->pause_ns = agent_now_ns() + DOUBT_PAUSE_NS;
        if (again)
            return;
        list_merge_forget(&l->merge);
        ask_again(l, LISTING_DOUBTS);
        go_on(l);
        return;
    }
    l->unsettled += list_merge_unsettled(&l->merge);
    list_merge_take(&l->merge, l->page, &l->page_count, l->merge.query.limit, &l->page_end);
    if (l->page_count == l->merge.query.limit || !l->merge.cut || ++l->rounds == ROUNDS_MAX) {
        end(l, SHOAL_OK, "");
        return;
    }
    l->merge.query.after = l->page_end;
    l->merge.cut = false;
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
        list_merge_forget(&l->merge);
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
    l->merge.query = *query;
    l->done = done;
    l->arg = arg;
    l->start_ns = agent_now_ns();
    (void)uv_timer_init(&agent->loop, &l->timer);
    l->timer.data = l;
    (void)uv_timer_start(&l->timer, on_tick, 0, TICK_MS);
    return SHOAL_OK;
}
