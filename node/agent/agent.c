/* The life of an agent: start in order, run the loop, stop in reverse. Also `shoal init`, `join` and `doctor`. */
#include "agent.h"

#include "agent_files.h"
#include "agent_out.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/mesh.h"
#include "shoal/disk.h"

#include "agent_conf.h"
#include "agent_room.h"
#include "agent_python.h"
#include "agent_settings.h"
#include "agent_workers.h"

#include "node/runner/descriptors.h"

#include "shoal/banned.h"

#define HEAP_BODY_BYTES (4 << 20)
#define HEAP_KEPT_BYTES (32 << 20)

#define HEALTH_MS 100
#define LAG_NOTED_MS 100
#define LOAD_TICKS 30 /* load is told each 3 s */
#define ALONE_MS 3000 /* so long after its start a host that found no mesh says so */

static void no_work(uv_work_t *work) { (void)work; }

/* The best class the kernel gives us. */
static void take_class(struct agent *agent)
{
    struct sched_param param = { .sched_priority = 1 };

    if (sched_setscheduler(0, SCHED_RR, &param) == 0)
        (void)snprintf(agent->scheduling, sizeof(agent->scheduling), "round robin, real-time priority 1");
    else if (setpriority(PRIO_PROCESS, 0, -15) == 0)
        (void)snprintf(agent->scheduling, sizeof(agent->scheduling), "normal, nice -15");
    else
        (void)snprintf(agent->scheduling, sizeof(agent->scheduling),
                       "normal, nice 0 (allow CAP_SYS_NICE for steadier heartbeats)");
}

/* All threads must have the same class: the loop spins (uv__async_spin) while a thread is inside uv_async_send, so a thread of
 * a lower class that was preempted there would never finish. Hence the pool's threads are made now, and inherit it; children
 * must not, see scheduling_end. */
static void scheduling(struct agent *agent)
{
    static uv_work_t work;

    take_class(agent);
    (void)uv_queue_work(&agent->loop, &work, no_work, NULL);
}

/* Every thread is made: from here on what this thread forks starts in the normal class. */
static void scheduling_end(const struct agent *agent)
{
    struct sched_param param = { .sched_priority = 1 };

    const struct rlimit none = { 0, 0 };

    if (strncmp(agent->scheduling, "round", 5) == 0)
        (void)sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param);
    /* A service manager may have let this process have its class by a limit. What it forks could take it by the same. */
    (void)setrlimit(RLIMIT_RTPRIO, &none);
    (void)setrlimit(RLIMIT_NICE, &none);
}

/* ---- callbacks of the parts ---- */

/* Names are for people: two hosts of one name work, and whoever reads a list or drains one of them is misled. */
static void look_at_name(struct agent *agent, const struct shoal_member *member, enum shoal_member_state old)
{
    char text[SHOAL_ADDRESS_TEXT_BYTES];

    if (member->state != SHOAL_MEMBER_ALIVE || old == SHOAL_MEMBER_ALIVE || old == SHOAL_MEMBER_SUSPECT ||
        strcmp(member->name, agent->settings.name) != 0)
        return;
    shoal_address_text(member->address, text);
    agent_log(agent, "warning: the host at %s is named %s, too; give one of them another name with --name", text, member->name);
}

static void on_member(void *arg, const struct shoal_member *member, enum shoal_member_state old)
{
    struct agent *agent = arg;
    struct shoal_address address = member->address;
    bool self = shoal_node_id_equal(member->id, agent->identity.node);
    static const char *const names[] = { "unknown", "alive", "suspected", "dead", "gone (it left)" };

    if (!self && (member->state != old || agent->settings.verbose) && member->state < SHOAL_MEMBER_STATES)
        agent_log(agent, "%s is %s", member->name, names[member->state]);
    if (!self)
        look_at_name(agent, member, old);
    if (!self && (member->state == SHOAL_MEMBER_ALIVE || member->state == SHOAL_MEMBER_SUSPECT)) {
        address.port = member->link_port;
        shoal_ignore(shoal_datagram_learn(agent->datagram, &member->public_key)); /* asked for when it is needed */
        shoal_ignore(shoal_link_want(agent->link, member->id, address));
    } else if (!self) {
        shoal_link_unwant(agent->link, member->id);
    }
    if (!self)
        agent_peers_note(agent, member);
    agent_node_event(agent, member);
}

static bool admits(void *arg, struct shoal_node_id node) { return agent_admits(arg, node); }

static void on_member_record(void *arg, const struct shoal_record *record) { agent_on_record(arg, record); }

static void on_cloned(void *arg, struct shoal_address address)
{
    struct agent *agent = arg;
    char text[SHOAL_ADDRESS_TEXT_BYTES];

    shoal_address_text(address, text);
    agent_log(agent,
              "stops: a later life of this node is at %s: this data folder was rolled back, or one of the two is a copy; "
              "remove it and join anew",
              text);
    agent_stop(agent, 1);
}

static void on_gossip_send(void *arg, struct shoal_node_id to, struct shoal_address address, struct shoal_view bytes)
{
    struct agent *agent = arg;
    uint8_t sealed[SHOAL_DATAGRAM_PAYLOAD_MAX + 1];

    if (bytes.len > SHOAL_DATAGRAM_PAYLOAD_MAX)
        return;
    sealed[0] = AGENT_DATAGRAM_GOSSIP;
    memcpy(sealed + 1, bytes.bytes, bytes.len);
    shoal_ignore(shoal_datagram_send(agent->datagram, to, address, shoal_view_of(sealed, bytes.len + 1)));
}

static void on_datagram(void *arg, struct shoal_node_id from, struct shoal_address address, struct shoal_view payload)
{
    struct agent *agent = arg;
    struct shoal_view rest;

    if (payload.len < 1 || agent->membership == NULL)
        return;
    if (!agent_admits(agent, from)) {
        agent_removed_tell(agent, from, address);
        return;
    }
    rest = shoal_view_of(payload.bytes + 1, payload.len - 1);
    if (payload.bytes[0] == AGENT_DATAGRAM_REMOVED) {
        agent_removed_heard(agent, address);
    } else if (payload.bytes[0] == AGENT_DATAGRAM_GOSSIP) {
        membership_datagram(agent->membership, from, address, rest);
    } else if (payload.bytes[0] == AGENT_DATAGRAM_SUPPORT) {
        struct shoal_sched_event event = { .kind = SHOAL_SCHED_DATAGRAM };

        event.u.frame.from = from;
        event.u.frame.bytes = rest;
        agent_event(agent, &event);
    }
}

static void on_note(void *arg, const char *text) { agent_log(arg, "%s", text); }

static void link_event(struct agent *agent, struct shoal_node_id node, enum shoal_sched_link_state state)
{
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_LINK };

    event.u.link.node = node;
    event.u.link.state = state;
    agent_event(agent, &event);
}

static void on_link_up(void *arg, const struct shoal_link_peer *peer)
{
    struct agent *agent = arg;

    shoal_ignore(shoal_datagram_learn(agent->datagram, &peer->key));
    link_event(agent, peer->node, SHOAL_SCHED_LINK_UP);
}

static void on_link_down(void *arg, struct shoal_node_id node)
{
    struct agent *agent = arg;

    peer_calls_down(agent->calls, node);
    if (agent->services_down != NULL)
        agent->services_down(agent, node);
    link_event(agent, node, SHOAL_SCHED_LINK_DOWN);
}

static void on_link_failure(void *arg, const struct shoal_link_failure *failure)
{
    struct agent *agent = arg;

    if (failure->refused) {
        if (agent->membership != NULL)
            membership_refused(agent->membership, failure->node);
        link_event(agent, failure->node, SHOAL_SCHED_LINK_REFUSED);
    }
    if (failure->err == SHOAL_ERR_DENIED || agent->settings.verbose)
        agent_log(agent, "%s", failure->text);
}

static void on_link_frame(void *arg, struct shoal_node_id node, enum shoal_lane lane, uint8_t channel,
                          struct shoal_view frame)
{
    struct agent *agent = arg;

    (void)lane;
    if (channel == PEER_CHANNEL_SCHED) {
        struct shoal_sched_event event = { .kind = SHOAL_SCHED_FRAME };

        event.u.frame.from = node;
        event.u.frame.bytes = frame;
        agent_event(agent, &event);
    } else if (channel == PEER_CHANNEL_CALL) {
        peer_calls_frame(agent->calls, node, frame);
    }
}

static uint8_t store_percent(const struct agent *agent)
{
    const struct shoal_store_stats *stats = shoal_store_stats(agent->store);
    uint64_t percent = stats->map_bytes == 0 ? 0 : stats->used_bytes / (stats->map_bytes / 100);

    return percent > 100 ? 100 : (uint8_t)percent;
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec used = { 0 };

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * SHOAL_S + (uint64_t)used.tv_nsec;
}

static void say_that_nobody_answers(struct agent *agent)
{
    char told[SHOAL_SWIM_SEEDS_MAX * (SHOAL_ADDRESS_TEXT_BYTES + 2)] = "";

    for (size_t i = 0, len = 0; i < agent->settings.told_count; i++) {
        char text[SHOAL_ADDRESS_TEXT_BYTES];

        shoal_address_text(agent->settings.seeds[i], text);
        len += (size_t)snprintf(told + len, sizeof(told) - len, "%s%s", i > 0 ? ", " : "", text);
    }
    agent_log(agent,
              "no host answers that this one was told to join (%s); is its agent running, is the address right, and is "
              "mesh.key of the same mesh (another mesh secret is not answered: that host's log says so)?",
              told);
}

static void on_health(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    struct shoal_sched_event event = { .kind = SHOAL_SCHED_HEALTH };
    uint64_t now = agent_now_ns();
    uint64_t lag = agent->health_due_ns != 0 && now > agent->health_due_ns ? now - agent->health_due_ns : 0;
    uint64_t cpu = thread_cpu_ns();

    if (lag > LAG_NOTED_MS * SHOAL_MS) /* did it work, or was it not let (no processor, a disk, a stop)? */
        agent_log(agent, "the loop was %llu ms late, and computed for %llu ms", (unsigned long long)(lag / SHOAL_MS),
                  (unsigned long long)((cpu - agent->health_cpu_ns) / SHOAL_MS));
    agent->health_due_ns = now + HEALTH_MS * SHOAL_MS;
    agent->health_cpu_ns = cpu;
    agent->loop_lag_ns =
        lag > agent->loop_lag_ns - agent->loop_lag_ns / 8 ? lag : agent->loop_lag_ns - agent->loop_lag_ns / 8;
    event.u.health.loop_lag_ns = lag;
    event.u.health.flush_age_ns = shoal_store_oldest_pending_ns(agent->store);
    event.u.health.store_percent = store_percent(agent);
    agent_event(agent, &event);
    if (agent->membership != NULL && (agent->draining || agent->leave_ns != 0))
        agent_drain_look(agent);
    if (++agent->health_ticks % LOAD_TICKS == 0 && agent->membership != NULL)
        agent_publish_load(agent);
    if (agent->health_ticks * HEALTH_MS == ALONE_MS && agent->settings.told_count > 0 && agent->membership != NULL &&
        !shoal_swim_is_joined(membership_swim(agent->membership)))
        say_that_nobody_answers(agent);
    if (lag > 20 * SHOAL_MS && agent->membership != NULL)
        membership_health(agent->membership, lag);
    if (agent->membership != NULL)
        agent_serve_look(agent);
    if (agent->membership != NULL && agent->services_look != NULL)
        agent->services_look(agent);
    agent_service_look(agent);
    agent_room_tick(agent);
}

/* Once a turn, before the loop waits: a turn took what was not waited in it. */
static void on_turn_end(uv_prepare_t *prepare)
{
    struct agent *agent = prepare->data;
    uint64_t now = uv_hrtime();
    uint64_t idle = uv_metrics_idle_time(&agent->loop);
    uint64_t passed = agent->turn_began_ns == 0 ? 0 : now - agent->turn_began_ns;
    uint64_t waited = idle - agent->turn_idle_ns;
    uint64_t took = passed > waited ? passed - waited : 0;
    uint64_t cpu = thread_cpu_ns();

    if (agent->turn_began_ns != 0 && cpu - agent->turn_cpu_ns > agent->turn_cpu_longest_ns)
        agent->turn_cpu_longest_ns = cpu - agent->turn_cpu_ns;
    agent->turn_cpu_ns = cpu;
    agent->turn_began_ns = now;
    agent->turn_idle_ns = idle;
    shoal_histogram_add(&agent->turns, took);
    if (took > agent->turn_longest_ns)
        agent->turn_longest_ns = took;
    if (took > AGENT_TURN_NS)
        agent->turns_late++;
}

static void watch_turns(struct agent *agent)
{
    (void)uv_prepare_init(&agent->loop, &agent->turn_end);
    agent->turn_end.data = agent;
    (void)uv_prepare_start(&agent->turn_end, on_turn_end);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    agent_stop(handle->data, 0);
}

/* ---- start ---- */

static enum shoal_err start_network(struct agent *agent, struct shoal_msg *msg)
{
    struct shoal_link_options link = { .loop = &agent->loop,
                                       .identity = &agent->identity,
                                       .listen = agent->settings.address };
    struct shoal_datagram_options datagram = { .loop = &agent->loop,
                                               .identity = &agent->identity,
                                               .listen = agent->settings.address };
    enum shoal_err err;

    link.handlers = (struct shoal_link_handlers){ .arg = agent,
                                                  .on_up = on_link_up,
                                                  .on_down = on_link_down,
                                                  .on_frame = on_link_frame,
                                                  .on_failure = on_link_failure,
                                                  .on_note = on_note,
                                                  .admits = admits };
    err = shoal_link_create(&agent->link, &link, msg);
    if (err != SHOAL_OK)
        return err;
    agent->settings.address.port = shoal_link_port(agent->link);
    datagram.listen.port = agent->settings.address.port;
    datagram.handlers =
        (struct shoal_datagram_handlers){ .arg = agent, .on_datagram = on_datagram, .on_note = on_note };
    return shoal_datagram_create(&agent->datagram, &datagram, msg);
}

/* The cache lasts as long as the kernel runs. Where it has gone otherwise, files are doubted without need. */
static void note_boot(struct agent *agent)
{
    static const char name[] = "boot";
    struct shoal_view key = shoal_view_of((const uint8_t *)name, sizeof(name));
    struct shoal_buf noted = { 0 };

    agent->boot_is_new = shoal_cache_get(agent->cache, SHOAL_CACHE_OTHER, key, &noted) != SHOAL_OK;
    shoal_buf_deinit(&noted);
    shoal_ignore(shoal_cache_put(agent->cache, SHOAL_CACHE_OTHER, key, key));
}

static void on_index_trouble(void *arg, const char *text) { agent_log(arg, "%s", text); }

static enum shoal_err start_disk(struct agent *agent, struct shoal_msg *msg)
{
    char path[AGENT_PATH_BYTES + 16];
    char boot_id[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    struct shoal_blobs_options blobs = { .loop = &agent->loop, .dir = path };
    enum shoal_err err;

    if (fd >= 0) {
        ssize_t len = read(fd, boot_id, sizeof(boot_id) - 1);

        boot_id[len > 0 ? len - 1 : 0] = '\0';
        (void)close(fd);
    }
    (void)snprintf(path, sizeof(path), "%s/cache", agent->settings.data);
    err = shoal_cache_open(&agent->cache, path, boot_id, 64 * SHOAL_MIB, msg);
    if (err == SHOAL_OK) {
        note_boot(agent);
        (void)snprintf(path, sizeof(path), "%s/index", agent->settings.data);
        err = shoal_index_open(&agent->index, &agent->loop, path, msg);
    }
    if (err == SHOAL_OK)
        shoal_index_tell(agent->index, on_index_trouble, agent);
    if (err != SHOAL_OK)
        return err;
    (void)snprintf(path, sizeof(path), "%s/blobs", agent->settings.data);
    err = shoal_blobs_create(&agent->blobs, &blobs, msg);
    return err == SHOAL_OK ? agent_files_create(agent, msg) : err;
}

/* The other half is for jobs, links and stores: strangers' connections must leave these what they need. */
static uint32_t http_connections(const struct agent *agent)
{
    const uint32_t half = agent->descriptors / 2;

    return half > 0 && half < SHOAL_HTTP_CONNECTIONS_MAX ? half : SHOAL_HTTP_CONNECTIONS_MAX;
}

static enum shoal_err start_http(struct agent *agent, struct shoal_msg *msg)
{
    char tls[AGENT_PATH_BYTES + 16];
    char spool[AGENT_PATH_BYTES + 16];
    char host[SHOAL_ADDRESS_TEXT_BYTES];
    struct shoal_backend backend;
    enum shoal_err err;
    struct shoal_http_options options = { .host = agent->settings.api_host,
                                          .port = agent->settings.api_port,
                                          .plain = agent->settings.api_plain,
                                          .tls_dir = tls,
                                          .spool_dir = spool,
                                          .connections_max = http_connections(agent),
                                          .scrape_token = agent->settings.metrics_token };

    (void)snprintf(tls, sizeof(tls), "%s/tls", agent->settings.data);
    (void)snprintf(spool, sizeof(spool), "%s/spool", agent->settings.data);
    agent_backend(agent, &backend);
    agent_tls_names(&agent->identity, &options.tls);
    agent_host_text(agent->settings.address, host);
    options.tls.names[0] = agent->settings.api_host;
    options.tls.names[1] = host;
    options.tls.names[2] = agent->settings.name;
    err = shoal_http_start(&agent->loop, &options, &backend, &agent->http, msg);
    shoal_wipe(&options, sizeof(options));
    return err;
}

static enum shoal_err start_membership(struct agent *agent, struct shoal_msg *msg)
{
    struct membership_options options = { .loop = &agent->loop,
                                          .identity = &agent->identity,
                                          .address = agent->settings.address,
                                          .link_port = agent->settings.address.port,
                                          .http_port = shoal_http_port(agent->http),
                                          .name = agent->settings.name,
                                          .seeds = agent->settings.seeds,
                                          .seed_count = agent->settings.seed_count,
                                          .arg = agent,
                                          .send = on_gossip_send,
                                          .on_member = on_member,
                                          .on_record = on_member_record,
                                          .admits = admits,
                                          .on_cloned = on_cloned };
    struct shoal_member self;
    enum shoal_err err = membership_create(&agent->membership, &options, msg);

    if (err != SHOAL_OK)
        return err;
    agent_drain_read(agent);
    agent_publish_facts(agent);
    shoal_swim_self(membership_swim(agent->membership), &self);
    agent_node_event(agent, &self);
    agent_removed_look(agent); /* it may have been removed in its last life */
    return SHOAL_OK;
}

static void on_mesh_made(void *arg, enum shoal_err err, const struct shoal_sched_action *reply)
{
    struct agent *agent = arg;
    char path[AGENT_PATH_BYTES + 16];

    (void)snprintf(path, sizeof(path), "%s/init", agent->settings.data);
    if (err == SHOAL_OK || err == SHOAL_ERR_EXISTS)
        (void)unlink(path);
    else
        agent_log(agent, "the mesh is not founded: %s", reply->u.reply.text);
}

/* `shoal init` has left the first command of the mesh group. */
static void found_mesh(struct agent *agent)
{
    struct shoal_sched_request request = { .kind = SHOAL_SCHED_MESH_INIT };
    char path[AGENT_PATH_BYTES + 16];
    struct shoal_buf command = { 0 };
    struct shoal_msg msg;

    (void)snprintf(path, sizeof(path), "%s/init", agent->settings.data);
    if (shoal_disk_read(path, SHOAL_MESH_COMMAND_BYTES_MAX, &command, &msg) == SHOAL_OK) {
        request.command = shoal_buf_view(&command);
        agent_request(agent, &request, on_mesh_made, agent);
    }
    shoal_buf_deinit(&command);
}

static enum shoal_err start_all(struct agent *agent, struct shoal_msg *msg)
{
    enum shoal_err err;

    agent_jobs_create(agent);
    err = start_disk(agent, msg);
    if (err == SHOAL_OK)
        err = start_network(agent, msg);
    if (err != SHOAL_OK)
        return err;
    agent->calls = peer_calls_create(&agent->loop, agent->link);
    agent_blobs_create(agent);
    agent_tree_create(agent);
    agent_ledger_create(agent);
    agent_serve_create(agent);
    agent_archive_create(agent);
    agent_list_create(agent);
    err = agent_workers_create(agent, msg);
    if (err == SHOAL_OK)
        err = agent_control_create(agent, msg);
    if (err == SHOAL_OK)
        err = start_http(agent, msg);
    if (err == SHOAL_OK)
        err = start_membership(agent, msg);
    if (err != SHOAL_OK)
        return err;
    scheduling_end(agent);
    agent_copy_note(agent);
    watch_turns(agent);
    agent_workers_reattach(agent);
    found_mesh(agent);
    agent_service_ready(agent);
    if (!agent->stopping) /* agent_stop() uses it */
        (void)uv_timer_start(&agent->health_timer, on_health, HEALTH_MS, HEALTH_MS);
    for (unsigned i = 0; i < 2; i++) {
        (void)uv_signal_init(&agent->loop, &agent->signals[i]);
        agent->signals[i].data = agent;
        (void)uv_signal_start(&agent->signals[i], on_signal, i == 0 ? SIGINT : SIGTERM);
    }
    return SHOAL_OK;
}

static void on_leave_over(uv_timer_t *timer) { uv_stop(timer->loop); }

/* Runners and workers stay: they are found again by the next agent on this folder. */
void agent_stop(struct agent *agent, int exit_code)
{
    if (agent->stopping)
        return;
    agent->stopping = true;
    agent->exit_code = exit_code;
    agent_service_stopping();
    (void)uv_timer_stop(&agent->health_timer);
    (void)uv_timer_start(&agent->health_timer, on_leave_over, 0, 0);
}

/* A body of a mebibyte comes from the heap, and as much of the heap's end stays as a few of them: given back to the system with
 * each request, its pages are cleared and mapped anew for the next one, which took two fifths of a request's time. */
static void memory(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, HEAP_BODY_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, HEAP_KEPT_BYTES);
}

int agent_main(const struct shoal_cli_agent *options)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    char text[SHOAL_ADDRESS_TEXT_BYTES], url[AGENT_URL_BYTES];

    SHOAL_ASSERT(agent != NULL);
    memory();
    agent->descriptors = descriptors_raise();
    agent->lock_fd = -1;
    agent->start_ns = agent_now_ns();
    agent_service_init();
    err = shoal_crypto_init(&msg);
    if (err == SHOAL_OK)
        err = agent_settings_of(&agent->settings, options, &msg);
    if (err == SHOAL_OK)
        err = shoal_folder_lock(agent->settings.data, &agent->lock_fd, &msg);
    if (err == SHOAL_OK)
        err = agent_copy_check(agent, &msg);
    if (err == SHOAL_OK)
        err = shoal_identity_load(agent->settings.data, NULL, true, &agent->identity, &msg);
    if (err == SHOAL_OK && uv_loop_init(&agent->loop) != 0)
        err = shoal_fail(&msg, SHOAL_ERR_FULL, "no memory, or no file descriptor, for the event loop");
    if (err == SHOAL_OK) {
        (void)signal(SIGPIPE, SIG_IGN);
        (void)uv_loop_configure(&agent->loop, UV_METRICS_IDLE_TIME); /* for watch_turns() */
        (void)uv_timer_init(&agent->loop, &agent->health_timer);     /* a start that fails may stop the agent, too */
        agent->health_timer.data = agent;
        scheduling(agent);
        err = agent_out_start(STDERR_FILENO, &msg);
    }
    if (err == SHOAL_OK)
        err = agent_service_create(agent, options, &msg);
    if (err == SHOAL_OK)
        err = start_all(agent, &msg);
    if (err != SHOAL_OK) {
        agent_service_failed(msg.text);
        /* The handles that were started hold the agent, and the process ends here. NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        (void)fprintf(stderr, "shoal agent: %s\n", msg.text);
        agent_out_flush();
        return err == SHOAL_ERR_INVALID ? SHOAL_EXIT_USAGE : SHOAL_EXIT_FAILED;
    }
    shoal_address_text(agent->settings.address, text);
    agent_api_url(&agent->settings, shoal_http_port(agent->http), url);
    agent_log(agent, "mesh %s, %u slots (%s), links and gossip on %s, API on %s, scheduling %s",
              agent->identity.mesh_name, agent->settings.slots,
              agent->settings.device == SHOAL_SCHED_GPU ? "gpu" : "cpu", text, url,
              agent->scheduling);
    if (agent->descriptors < DESCRIPTORS_LOW)
        agent_log(agent, "warning: %u files may be open at once, and connections to the API take half of them: " DESCRIPTORS_REMEDY,
                  agent->descriptors);
    if (agent->settings.serves == 0)
        agent_log(
            agent,
            "offers no slots: %s has no torch or tensorflow, or no numpy, which jobs of all frameworks need; start "
            "again with --python and one that has them",
            agent->settings.python);
    agent_log(agent, "memory: at most %llu MiB, were every table full at once; shoal doctor -v lists them",
              (unsigned long long)agent_memory_mib());
    (void)uv_run(&agent->loop, UV_RUN_DEFAULT);
    agent_log(agent, "stops");
    agent_out_flush();
    /* Everything durable is in the store already; the kernel closes the rest. */
    _exit(agent->exit_code);
}

/* ---- init, join, doctor ---- */

static enum shoal_err read_secret_line(const char *path, char *text, size_t cap, struct shoal_msg *msg)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    struct stat facts;
    size_t len;

    if (file == NULL)
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "%s: %s", path, strerror(errno));
    if (fstat(fileno(file), &facts) == 0 && S_ISDIR(facts.st_mode)) {
        if (file != stdin)
            (void)fclose(file);
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%s is a directory; name the file in it", path);
    }
    if (fgets(text, (int)cap, file) == NULL)
        text[0] = '\0';
    if (file != stdin)
        (void)fclose(file);
    len = strcspn(text, "\r\n");
    if (text[len] == '\0' && len + 1 == cap)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "%s: its first line is longer than %zu bytes", path, cap - 2);
    text[len] = '\0';
    return len == 0 ? shoal_fail(msg, SHOAL_ERR_INVALID, "%s is empty", path) : SHOAL_OK;
}

/* The first administrator, and its password: before anything is written. */
static enum shoal_err read_password(const struct shoal_cli_agent *options, char *password, bool *made,
                                    struct shoal_msg *msg)
{
    uint8_t chance[9];

    if (!shoal_mesh_user_name_is_valid(options->admin_user[0] == '\0' ? "admin" : options->admin_user))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "--admin-user: \"%.70s\": use 1 to 63 of A-Z a-z 0-9 . _ @ -, a letter or digit first",
                          options->admin_user);
    *made = options->admin_password_file[0] == '\0';
    if (!*made)
        return read_secret_line(options->admin_password_file, password, SHOAL_PASSWORD_BYTES_MAX + 2, msg);
    shoal_random(chance, sizeof(chance));
    shoal_hex_text(chance, sizeof(chance), password);
    return SHOAL_OK;
}

static enum shoal_err write_init(const char *data, const struct shoal_cli_agent *options, const char *password,
                                 struct shoal_msg *msg)
{
    static struct shoal_mesh_command command;
    uint8_t bytes[SHOAL_MESH_COMMAND_BYTES_MAX];
    char path[AGENT_PATH_BYTES];
    size_t len;
    enum shoal_err err;

    command = (struct shoal_mesh_command){ .kind = SHOAL_MESH_INIT, .now_s = agent_wall_ms() / 1000 };
    (void)snprintf(command.name, sizeof(command.name), "%s",
                   options->mesh_name[0] == '\0' ? "shoal" : options->mesh_name);
    (void)snprintf(command.user.name, sizeof(command.user.name), "%s",
                   options->admin_user[0] == '\0' ? "admin" : options->admin_user);
    command.user.admin = true;
    shoal_random(command.key, sizeof(command.key));
    err = shoal_password_hash(shoal_view_text(password), command.user.password, msg);
    if (err == SHOAL_OK)
        err = shoal_mesh_command_encode(&command, bytes, sizeof(bytes), &len);
    if (err != SHOAL_OK)
        return err;
    (void)snprintf(path, sizeof(path), "%s/init", data);
    return shoal_disk_replace(path, shoal_view_of(bytes, len), 0600, msg);
}

static int refused(const char *verb, enum shoal_err err, const struct shoal_msg *msg)
{
    (void)fprintf(stderr, "shoal %s: %s\n", verb, msg->text);
    if (err == SHOAL_ERR_EXISTS)
        return SHOAL_EXIT_CONFLICT;
    return err == SHOAL_ERR_INVALID || err == SHOAL_ERR_TOO_BIG ? SHOAL_EXIT_USAGE : SHOAL_EXIT_FAILED;
}

/* --setup-python: `kept` names the Python that is kept for the agent's starts. A folder that is in use stays as it is. */
static enum shoal_err setup_python(struct shoal_cli_agent *kept, char python[AGENT_PATH_BYTES], struct shoal_msg *msg)
{
    char path[AGENT_PATH_BYTES + 16];
    enum shoal_err err;

    (void)snprintf(path, sizeof(path), "%.500s/identity", kept->data);
    if (!kept->setup_python || access(path, F_OK) == 0)
        return SHOAL_OK;
    err = agent_python_make(kept->data, kept->python, python, msg);
    if (err == SHOAL_OK)
        kept->python = python;
    return err;
}

/* As a shell takes it: what is printed here is typed next. */
static const char *typed(const char *text, char out[4 * AGENT_PATH_BYTES])
{
    size_t len = 0;

    if (text[0] != '\0' && text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%,=")] == '\0')
        return text;
    out[len++] = '\'';
    for (; *text != '\0' && len + 6 < 4 * AGENT_PATH_BYTES; text++) {
        if (*text == '\'')
            len += (size_t)snprintf(out + len, 5, "'\\''");
        else
            out[len++] = *text;
    }
    out[len++] = '\'';
    out[len] = '\0';
    return out;
}

/* Its log would say so later, when a job has waited for it. */
static void say_what_it_lacks(const struct shoal_cli_agent *options)
{
    static struct agent_settings settings; /* large */
    char data[4 * AGENT_PATH_BYTES];
    struct shoal_msg msg = { "" };

    settings = (struct agent_settings){ .serves = 0 };
    if (agent_settings_of(&settings, options, &msg) != SHOAL_OK || settings.serves != 0)
        return;
    (void)printf("  no slots yet:    %s has no torch or tensorflow, or no numpy, which jobs need. Start the agent with\n"
                 "                   --python and one that has them, or have one made for this host: in a new --data, with "
                 "--setup-python\n"
                 "                   (`shoal doctor --data %s` says how a host fares)\n",
                 settings.python, typed(options->data, data));
}

int agent_init_main(const struct shoal_cli_agent *options)
{
    struct shoal_cli_agent kept = *options;
    char python[AGENT_PATH_BYTES];
    struct shoal_identity identity = { 0 };
    struct shoal_identity_options create = { .data_dir = options->data,
                                             .mesh_name =
                                                 options->mesh_name[0] == '\0' ? "shoal" : options->mesh_name };
    char password[SHOAL_PASSWORD_BYTES_MAX + 2];
    char key[SHOAL_MESH_KEY_TEXT_BYTES];
    char path[AGENT_PATH_BYTES];
    char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES] = "", quoted[4 * AGENT_PATH_BYTES];
    struct shoal_msg msg = { "" };
    bool made = false;
    enum shoal_err err = shoal_crypto_init(&msg);

    if (err == SHOAL_OK)
        err = agent_settings_check(options, &msg);
    if (err == SHOAL_OK)
        err = read_password(options, password, &made, &msg);
    if (err == SHOAL_OK)
        err = setup_python(&kept, python, &msg);
    if (err == SHOAL_OK)
        err = shoal_identity_create(&create, &identity, &msg);
    if (err == SHOAL_OK)
        err = agent_conf_write(&kept, &msg);
    if (err == SHOAL_OK)
        err = write_init(options->data, options, password, &msg);
    if (err == SHOAL_OK)
        err = agent_tls_ready(options->data, &identity, fingerprint, &msg);
    if (err != SHOAL_OK)
        return refused("init", err, &msg);
    shoal_mesh_key_text(&identity, key);
    (void)snprintf(path, sizeof(path), "%s/mesh.key", options->data);
    (void)strncat(key, "\n", sizeof(key) - strlen(key) - 1);
    err = shoal_disk_replace(path, shoal_view_text(key), 0600, &msg);
    if (err != SHOAL_OK)
        return refused("init", err, &msg);
    (void)printf("mesh %s is prepared in %s\n", identity.mesh_name, options->data);
    (void)printf("  start it:        shoal agent --data %s\n", typed(options->data, quoted));
    (void)printf("  other hosts:     shoal join HOST:PORT --data DIR --secret-file mesh.key   (copy %s there)\n",
                 typed(path, quoted));
    (void)printf("  who logs on:     shoal logon USER --fingerprint %s\n", fingerprint);
    (void)snprintf(path, sizeof(path), "%s/tls/ca.crt", options->data);
    (void)printf("                   or --ca FILE with a copy of %s\n", typed(path, quoted));
    if (made)
        (void)printf("  administrator:   %s, password %s   (shown this once)\n",
                     options->admin_user[0] == '\0' ? "admin" : options->admin_user, password);
    shoal_wipe(password, sizeof(password));
    shoal_identity_wipe(&identity);
    say_what_it_lacks(options);
    return SHOAL_EXIT_OK;
}

int agent_join_main(const struct shoal_cli_agent *options)
{
    struct shoal_cli_agent kept = *options;
    char python[AGENT_PATH_BYTES];
    struct shoal_identity identity = { 0 };
    struct shoal_secret secret;
    char name[SHOAL_MESH_NAME_MAX + 1];
    char key[SHOAL_MESH_KEY_TEXT_BYTES + 2];
    char path[AGENT_PATH_BYTES];
    char line[160];
    char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES], path_typed[4 * AGENT_PATH_BYTES];
    struct shoal_address seed;
    struct shoal_identity_options create = { .data_dir = options->data, .mesh_name = name, .mesh_secret = &secret };
    struct shoal_msg msg = { "" };
    enum shoal_err err = shoal_crypto_init(&msg);

    if (err == SHOAL_OK && options->join[0] == '\0')
        err = shoal_fail(&msg, SHOAL_ERR_INVALID,
                         "needs the address of any member: shoal join HOST:PORT --data DIR --secret-file FILE");
    if (err == SHOAL_OK && options->secret_file[0] == '\0')
        err = shoal_fail(&msg, SHOAL_ERR_INVALID,
                         "needs --secret-file FILE with the key that `shoal init` made: a copy of mesh.key in the data "
                         "folder of the first host");
    if (err == SHOAL_OK)
        err = agent_settings_check(options, &msg);
    if (err == SHOAL_OK)
        err = agent_join_parse(options->join, &seed, &msg);
    if (err == SHOAL_OK)
        err = read_secret_line(options->secret_file, key, sizeof(key), &msg);
    if (err == SHOAL_OK)
        err = shoal_mesh_key_parse(key, name, &secret, &msg);
    if (err == SHOAL_OK)
        err = setup_python(&kept, python, &msg);
    if (err == SHOAL_OK)
        err = shoal_identity_create(&create, &identity, &msg);
    if (err == SHOAL_OK) {
        (void)snprintf(path, sizeof(path), "%s/seeds", options->data);
        (void)snprintf(line, sizeof(line), "%.150s\n", options->join);
        err = shoal_disk_replace(path, shoal_view_text(line), 0600, &msg);
    }
    if (err == SHOAL_OK)
        err = agent_conf_write(&kept, &msg);
    if (err == SHOAL_OK)
        err = agent_tls_ready(options->data, &identity, fingerprint, &msg);
    shoal_wipe(&secret, sizeof(secret));
    if (err != SHOAL_OK)
        return refused("join", err, &msg);
    shoal_identity_wipe(&identity);
    if (options->foreground)
        return agent_main(options);
    (void)printf("%s is prepared to join mesh %s\n", options->data, name);
    (void)printf("  start it:        shoal agent --data %s\n", typed(options->data, path_typed));
    say_what_it_lacks(options);
    return SHOAL_EXIT_OK;
}

int agent_doctor_main(const struct shoal_cli_agent *options)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    struct shoal_msg msg = { "" };
    enum shoal_err err;
    int code;

    SHOAL_ASSERT(agent != NULL);
    err = shoal_crypto_init(&msg);
    if (err == SHOAL_OK)
        err = agent_settings_of(&agent->settings, options, &msg);
    if (err == SHOAL_OK)
        err = shoal_identity_load(agent->settings.data, NULL, false, &agent->identity, &msg);
    if (err != SHOAL_OK) {
        if (options->json)
            return refused("doctor", err, &msg);
        (void)printf("bad   %s\n", msg.text);
        free(agent);
        return SHOAL_EXIT_FAILED;
    }
    take_class(agent);
    code = agent_doctor(agent, options->json, options->verbose);
    free(agent);
    return code;
}
