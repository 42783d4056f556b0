/* libFuzzer: questions and answers of another agent of the mesh, as they come behind an authenticated link: chunks,
 * files of result folders, logs, step records, what is archived. Behind them is what serves them in an agent, with a
 * data folder in memory. Whatever is asked, nothing outside that folder may be written. */
#include "node/agent/agent.h"

#include "node/backend/agent_backend.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/hash.h"

#include "tests/unit/no_env.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const struct shoal_node_id peer = { { 2 } };
static struct agent agent;

static void on_frame(void *arg, struct shoal_node_id node, enum shoal_lane lane, uint8_t channel,
                     struct shoal_view frame)
{
    (void)arg, (void)node, (void)lane, (void)channel, (void)frame;
}
static void on_up(void *arg, const struct shoal_link_peer *up) { (void)arg, (void)up; }
static void on_down(void *arg, struct shoal_node_id node) { (void)arg, (void)node; }
static void on_writable(void *arg, struct shoal_node_id node, enum shoal_lane lane)
{
    (void)arg, (void)node, (void)lane;
}
static void on_failure(void *arg, const struct shoal_link_failure *failure) { (void)arg, (void)failure; }
static void on_note(void *arg, const char *text) { (void)arg, (void)text; }

static void on_send(void *arg, struct shoal_node_id to, struct shoal_address address, struct shoal_view bytes)
{
    (void)arg, (void)to, (void)address, (void)bytes;
}
static void on_member(void *arg, const struct shoal_member *member, enum shoal_member_state old)
{
    (void)arg, (void)member, (void)old;
}
static void on_record(void *arg, const struct shoal_record *record) { (void)arg, (void)record; }
static void on_cloned(void *arg, struct shoal_address where)
{
    (void)arg;
    (void)where;
}

static void folder_clean(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char below[1024];

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        (void)snprintf(below, sizeof(below), "%.500s/%.300s", path, entry->d_name);
        if (entry->d_type == DT_DIR)
            folder_clean(below);
        else
            (void)unlink(below);
    }
    if (dir != NULL)
        (void)closedir(dir);
    (void)rmdir(path);
}

static void at_end(void) { folder_clean(agent.settings.data); }

/* The control plane is there, and is never stepped: what it would call is named, and calls nothing. */
static struct shoal_hash env_hash(void *arg, struct shoal_view bytes)
{
    (void)arg;
    return shoal_hash_of(bytes);
}

/* An operator's word is two bytes, and what it does is done by the control plane. */
static void not_here(void *arg, struct shoal_node_id from, struct shoal_view args, struct peer_question *question)
{
    (void)arg;
    (void)from;
    (void)args;
    peer_answer(question, SHOAL_ERR_INVALID, "", (struct shoal_view){ 0 });
}

static void make_agent(void)
{
    struct shoal_link_options link = { .loop = &agent.loop, .identity = &agent.identity };
    struct membership_options membership = { .loop = &agent.loop,
                                             .identity = &agent.identity,
                                             .name = "fuzz",
                                             .send = on_send,
                                             .on_member = on_member,
                                             .on_record = on_record,
                                             .on_cloned = on_cloned };
    static struct shoal_backend backend;
    char path[AGENT_PATH_BYTES + 16], index[AGENT_PATH_BYTES + 16];
    struct shoal_blobs_options blobs = { .loop = &agent.loop, .dir = path };
    struct shoal_sched_options sched = { .self = { { 1 } },
                                         .slots = 2,
                                         .env = { .hash = env_hash, .verify = no_verify } };
    struct shoal_msg msg = { "" };

    SHOAL_ASSERT(shoal_crypto_init(&msg) == SHOAL_OK && uv_loop_init(&agent.loop) == 0);
    (void)snprintf(agent.settings.data, sizeof(agent.settings.data), "/dev/shm/shoal-fuzz-peer-%d", (int)getpid());
    SHOAL_ASSERT(mkdir(agent.settings.data, 0700) == 0 && atexit(at_end) == 0);
    shoal_key_create(&agent.identity.public_key, &agent.identity.secret_key);
    agent.identity.node = shoal_node_id_of(&agent.identity.public_key);
    agent.identity.incarnation = (struct shoal_incarnation){ 1, 1, 0 };
    link.handlers = (struct shoal_link_handlers){ .on_up = on_up,
                                                  .on_down = on_down,
                                                  .on_frame = on_frame,
                                                  .on_writable = on_writable,
                                                  .on_failure = on_failure,
                                                  .on_note = on_note };
    SHOAL_ASSERT(shoal_address_parse("127.0.0.1:0", 0, &link.listen, NULL) == SHOAL_OK);
    membership.address = link.listen;
    agent_jobs_create(&agent);
    (void)snprintf(path, sizeof(path), "%s/blobs", agent.settings.data);
    (void)snprintf(index, sizeof(index), "%s/index", agent.settings.data);
    if (shoal_blobs_create(&agent.blobs, &blobs, &msg) != SHOAL_OK ||
        shoal_link_create(&agent.link, &link, &msg) != SHOAL_OK ||
        membership_create(&agent.membership, &membership, &msg) != SHOAL_OK ||
        shoal_sched_create(&agent.sched, &sched) != SHOAL_OK ||
        shoal_index_open(&agent.index, &agent.loop, index, &msg) != SHOAL_OK)
        abort();
    agent.calls = peer_calls_create(&agent.loop, agent.link);
    agent_blobs_create(&agent);
    agent_tree_create(&agent);
    agent_ledger_create(&agent);
    agent_archive_create(&agent);
    agent_serve_create(&agent);
    agent_backend(&agent, &backend);
    peer_serve(agent.calls, PEER_NODE_VERB, not_here, NULL);
}

/* A question with a good head; `args` are the fuzzer's. */
static void ask(uint8_t method, struct shoal_view args)
{
    static uint8_t frame[SHOAL_FRAME_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(frame, sizeof(frame));

    shoal_put_u8(&w, 0);
    shoal_put_u64(&w, 1);
    shoal_put_u8(&w, method % PEER_METHOD_COUNT);
    shoal_put_raw(&w, args.bytes, args.len);
    if (!w.failed)
        peer_calls_frame(agent.calls, peer, shoal_writer_view(&w));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (agent.calls == NULL)
        make_agent();
    if (len < 1)
        return 0;
    if (bytes[0] == 255)
        peer_calls_frame(agent.calls, peer, shoal_view_of(bytes + 1, len - 1));
    else if (bytes[0] == 254)
        agent_archive_told(&agent, peer, shoal_view_of(bytes + 1, len - 1));
    else if (bytes[0] == 253)
        (void)agent_archive_lines(shoal_view_of(bytes + 1, len - 1));
    else
        ask(bytes[0], shoal_view_of(bytes + 1, len - 1));
    (void)uv_run(&agent.loop, UV_RUN_NOWAIT);
    return 0;
}
