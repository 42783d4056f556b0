/* The agent as a service: what the service manager is told over NOTIFY_SOCKET (systemd's sd_notify(3), of which this is all
 * that is needed), and SIGHUP.
 *
 *     start ----------------> READY=1, STATUS=          SIGHUP --> RELOADING=1
 *     each 3 s, if changed -> STATUS=                              agent.conf is read (a thread) --> what changed, in
 *     each half of the time   WATCHDOG=1                           the log: taken now, or by a restart
 *     that the manager allows                           READY=1 <--'
 *     SIGTERM, SIGINT ------> STOPPING=1
 *
 * V1. WATCHDOG=1 is sent by a timer of the loop: a loop that stands is killed and started again, and jobs do not notice.
 * V2. No child finds the manager's socket in its environment: a job cannot speak for the agent.
 * V3. A reload changes all or nothing: a file with an error leaves everything as it was, and the log says the error. */
#include "agent.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "agent_conf.h"
#include "agent_files.h"

#include "shoal/banned.h"

#define STATUS_TICKS 30 /* health ticks between two looks at what to say: 3 s */
#define STATUS_BYTES 200

static struct {
    int socket; /* -1: no service manager listens */
    struct sockaddr_un address;
    socklen_t address_len;
    uint64_t watchdog_ns; /* half of what the manager allows; 0: it does not watch */
    uint64_t watched_ns;
    unsigned ticks;
    char said[STATUS_BYTES];
    struct shoal_cli_agent given, kept; /* of the command line; with the file beneath it */
    struct shoal_buf file;              /* in which texts of `kept` live */
    bool reloading, again;              /* `again`: SIGHUP came meanwhile */
    uv_signal_t hangup;
} service = { .socket = -1 }; /* of this process's one agent; owned by its loop */

static void notify(const char *text)
{
    /* News that do not fit into the manager's queue are lost, and said again in time. */
    if (service.socket >= 0)
        (void)sendto(service.socket, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL,
                     (const struct sockaddr *)&service.address, service.address_len);
}

/* A path, or "@name" of the abstract space. */
static bool address_of(const char *text)
{
    size_t len = strlen(text);

    if ((text[0] != '/' && text[0] != '@') || len < 2 || len >= sizeof(service.address.sun_path))
        return false;
    service.address.sun_family = AF_UNIX;
    memcpy(service.address.sun_path, text, len + 1);
    if (text[0] == '@')
        service.address.sun_path[0] = '\0';
    service.address_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (text[0] == '@' ? 0u : 1u));
    return true;
}

static uint64_t number_in(const char *name)
{
    const char *text = getenv(name);

    return text == NULL ? 0 : strtoull(text, NULL, 10);
}

void agent_service_init(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    uint64_t pid = number_in("WATCHDOG_PID");

    if (path != NULL && address_of(path))
        service.socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (pid == 0 || pid == (uint64_t)getpid())
        service.watchdog_ns = number_in("WATCHDOG_USEC") * 1000 / 2;
    (void)unsetenv("NOTIFY_SOCKET"); /* V2 */
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
}

/* ---- what is said ---- */

static void say_status(const struct agent *agent, const char *before)
{
    char text[STATUS_BYTES];
    char message[STATUS_BYTES + 32];
    struct shoal_member member;
    uint32_t cursor = 0;
    unsigned known = 0;
    unsigned alive = 0;

    while (agent->membership != NULL && shoal_swim_member_next(membership_swim(agent->membership), &cursor, &member)) {
        known++;
        alive += member.state == SHOAL_MEMBER_ALIVE;
    }
    (void)snprintf(text, sizeof(text), "mesh %.64s: %u of %u nodes alive; %u slots, %u jobs here%s",
                   agent->identity.mesh_name, alive, known, agent->settings.slots, agent_jobs_count(agent),
                   agent->drained    ? "; drained"
                   : agent->draining ? "; draining"
                                     : "");
    if (before[0] == '\0' && strcmp(text, service.said) == 0)
        return;
    (void)snprintf(service.said, sizeof(service.said), "%s", text);
    (void)snprintf(message, sizeof(message), "%sSTATUS=%s", before, text);
    notify(message);
}

void agent_service_ready(const struct agent *agent) { say_status(agent, "READY=1\n"); }

void agent_service_stopping(void) { notify("STOPPING=1\nSTATUS=stops; what runs goes on"); }

void agent_service_failed(const char *text)
{
    char message[sizeof(struct shoal_msg) + 32];

    (void)snprintf(message, sizeof(message), "STATUS=cannot start: %s", text);
    notify(message);
}

void agent_service_look(struct agent *agent)
{
    uint64_t now = agent_now_ns();

    if (agent->stopping)
        return;
    if (service.watchdog_ns != 0 && now - service.watched_ns >= service.watchdog_ns) {
        service.watched_ns = now;
        notify("WATCHDOG=1"); /* V1 */
    }
    if (++service.ticks % STATUS_TICKS == 0)
        say_status(agent, "");
}

/* ---- SIGHUP ---- */

struct reload {
    struct agent_file_job job;
    struct shoal_cli_agent kept;
    struct shoal_buf file;
    struct shoal_msg msg;
    enum shoal_err err;
};

static void on_change(void *arg, const char *name, const char *was, const char *is)
{
    static const char *const at_once[] = { "log-level", "log-max", "files-max", "files-gib" };
    bool now = false;

    for (size_t i = 0; i < sizeof(at_once) / sizeof(at_once[0]); i++)
        now = now || strcmp(name, at_once[i]) == 0;
    agent_log(arg, "agent.conf: %s is %s (was %s): %s", name, is, was,
              now ? "in force from now on" : "takes a restart of the agent");
}

static void reload_begin(struct agent *agent);

static void reload_done(struct agent_file_job *job)
{
    struct reload *reload = (struct reload *)(void *)job;
    struct agent *agent = job->agent;
    const struct shoal_cli_agent *kept = &reload->kept;

    if (reload->err != SHOAL_OK) { /* V3 */
        agent_log(agent, "nothing is reloaded: %s", reload->msg.text);
        shoal_buf_deinit(&reload->file);
    } else {
        agent_log(agent, "has read agent.conf again");
        agent_conf_changes(&service.kept, kept, on_change, agent);
        agent->settings.verbose = strcmp(kept->log_level, "debug") == 0;
        agent->settings.log_max_mib = kept->log_max_mib == 0 ? SHOAL_JOB_LOG_MIB : kept->log_max_mib;
        agent->settings.files_max = kept->files_max == 0 ? SHOAL_JOB_FILES : kept->files_max;
        agent->settings.files_gib = kept->files_gib == 0 ? SHOAL_JOB_FILES_GIB : kept->files_gib;
        shoal_buf_deinit(&service.file);
        service.kept = *kept;
        service.file = reload->file;
    }
    free(reload);
    service.reloading = false;
    if (service.again)
        reload_begin(agent);
    else
        agent_service_ready(agent);
}

static void reload_run(struct agent_file_job *job)
{
    struct reload *reload = (struct reload *)(void *)job;

    reload->err = agent_conf_read(&reload->kept, &reload->file, &reload->msg);
    if (reload->err == SHOAL_OK && reload->file.len == 0 && service.file.len > 0)
        reload->err = shoal_fail(&reload->msg, SHOAL_ERR_NOT_FOUND,
                                 "there is no agent.conf in %.300s any more; restore it, or make an empty one for the defaults",
                                 reload->kept.data);
}

static void reload_begin(struct agent *agent)
{
    struct reload *reload = calloc(1, sizeof(*reload));

    service.again = false;
    if (reload == NULL)
        return;
    reload->kept = service.given;
    reload->kept.data = agent->settings.data;
    reload->job = (struct agent_file_job){ .run = reload_run, .done = reload_done };
    if (agent_file_submit(agent, &reload->job) == SHOAL_OK) {
        service.reloading = true;
        return;
    }
    agent_log(agent, "nothing is reloaded: too much waits for the disk; try again");
    free(reload);
    agent_service_ready(agent);
}

static void on_hangup(uv_signal_t *handle, int number)
{
    char text[64];
    struct timespec now;

    (void)number;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
                   (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000);
    notify(text);
    service.again = service.reloading;
    if (!service.reloading)
        reload_begin(handle->data);
}

/* Before the loop runs: a SIGHUP that comes during the start is answered after it. */
enum shoal_err agent_service_create(struct agent *agent, const struct shoal_cli_agent *given, struct shoal_msg *msg)
{
    enum shoal_err err;

    service.given = *given;
    service.kept = *given;
    service.kept.data = agent->settings.data;
    (void)uv_signal_init(&agent->loop, &service.hangup);
    service.hangup.data = agent;
    (void)uv_signal_start(&service.hangup, on_hangup, SIGHUP);
    err = agent_conf_read(&service.kept, &service.file, msg);
    if (err == SHOAL_OK && service.file.len == 0)
        agent_log(agent, "there is no agent.conf in %s: what was not given at the start is its default", agent->settings.data);
    return err;
}
