/* `shoal doctor`: looks at this host as an operator would who wonders why a job does not run here, and says what to do.
 *
 *   ok    what is well            note  what may be meant so
 *   bad   what keeps jobs away, or gives the mesh away; exit code 1
 *
 * In 80 columns, or as JSON: {"ok": bool, "checks": [{"check", "state", "text"}, ...]}. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

#include "agent_probe.h"
#include "agent_python.h"
#include "agent_room.h"
#include "agent_settings.h"

#include "node/runner/descriptors.h"

#include "shoal/banned.h"

#define COLUMNS 80
#define INDENT 6
#define IMPORT_SECONDS 120u /* a cold disk and a loaded host: it took 4 s on ours */
#define PEER_MS 2000 /* say_of_peer() says it */

struct doctor {
    const struct agent_settings *settings;
    bool json;
    bool bad;
    unsigned said;
};

static void print_json(const char *text)
{
    (void)putchar('"');
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            (void)printf("\\%c", *c);
        else if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
            (void)printf("\\u%04x", (unsigned char)*c);
        else
            (void)putchar(*c);
    }
    (void)putchar('"');
}

/* Words, broken at spaces. */
static void print_wrapped(const char *text)
{
    size_t column = INDENT;

    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (column > INDENT && column + 1 + len > COLUMNS) {
            (void)printf("\n%*s", INDENT, "");
            column = INDENT;
        } else if (column > INDENT) {
            (void)putchar(' ');
            column++;
        }
        (void)printf("%.*s", (int)len, text);
        column += len;
        text += len + strspn(text + len, " ");
    }
    (void)putchar('\n');
}

__attribute__((format(printf, 4, 5))) static void say(struct doctor *d, const char *state, const char *check,
                                                      const char *format, ...)
{
    char text[800];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    d->bad = d->bad || strcmp(state, "bad") == 0;
    if (d->json) {
        (void)printf("%s{\"check\":\"%s\",\"state\":\"%s\",\"text\":", d->said++ == 0 ? "" : ",", check, state);
        print_json(text);
        (void)putchar('}');
        return;
    }
    (void)printf("%-*s", INDENT, state);
    print_wrapped(text);
}

/* Can jobs of the frameworks run here? */
static void look_at_python(struct doctor *d)
{
    const struct agent_settings *s = d->settings;
    char path[AGENT_PATH_BYTES + 32];
    char said[400];

    (void)snprintf(path, sizeof(path), "%s/native/libshoal.so", s->fabric_home);
    if (access(path, R_OK) == 0)
        say(d, "ok", "libs", "FABRIC_HOME %s", s->fabric_home);
    else
        say(d, "bad", "libs",
            "FABRIC_HOME %s has no native/libshoal.so: jobs cannot train here. Name the folder that "
            "`make` or `make install` made with --libs",
            s->fabric_home);
    if (s->serves == 0)
        say(d, "bad", "python",
            "Python %s has no torch or tensorflow, or no numpy: this host offers no slots. Start the "
            "agent with --python and one that has them; `shoal init` and `shoal join` make one "
            "of torch with --setup-python",
            s->python);
    else if (agent_python_try(s, IMPORT_SECONDS, said, sizeof(said)))
        say(d, "ok", "python", "Python %s: %s", s->python, said);
    else
        say(d, "bad", "python",
            "Python %s cannot import what jobs need: %s. Mend that installation, or name another "
            "with --python",
            s->python, said);
}

static bool binds(const struct agent_settings *s, int type, uint16_t port)
{
    struct sockaddr_storage at;
    struct shoal_address address = s->address;
    int yes = 1;
    int fd;
    bool bound;

    address.port = port;
    shoal_address_to_sockaddr(address, &at);
    fd = socket(at.ss_family, type | SOCK_CLOEXEC, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    bound = fd >= 0 &&
            bind(fd, (const struct sockaddr *)&at,
                 at.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) == 0 &&
            (type != SOCK_STREAM || listen(fd, 1) == 0);
    if (fd >= 0)
        (void)close(fd);
    return bound;
}

/* Does an agent run on this folder? */
static bool is_running(const struct agent_settings *s)
{
    char path[AGENT_PATH_BYTES + 16];
    int fd;
    bool runs;

    (void)snprintf(path, sizeof(path), "%s/lock", s->data);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    runs = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    (void)close(fd);
    return runs;
}

static void look_at_network(struct doctor *d)
{
    const struct agent_settings *s = d->settings;
    char text[SHOAL_ADDRESS_TEXT_BYTES];
    bool running = is_running(s);

    shoal_address_text(s->address, text);
    if (!binds(s, SOCK_DGRAM, 0)) {
        say(d, "bad", "address", "--host: %s is no address of this host (`ip -brief address` lists them)", text);
        return;
    }
    if (shoal_address_is_loopback(s->address))
        say(d, "note", "address", "links and gossip on %s: no other host can reach this one; give --host", text);
    else
        say(d, "ok", "address", "links and gossip on %s", text);
    if (s->fabric_sealed[0] != '\0')
        say(d, "ok", "fabric", "training data between hosts: sealed, by %s", s->fabric_sealed);
    else
        say(d, shoal_address_is_loopback(s->address) ? "ok" : "note", "fabric",
            "training data between hosts: unsealed, by %s", s->fabric_trusted);
    if (running)
        say(d, "ok", "ports", "an agent runs on this folder");
    else if (!binds(s, SOCK_STREAM, s->address.port) || !binds(s, SOCK_DGRAM, s->address.port))
        say(d, "bad", "ports", "port %u is in use by another program: give --port", s->address.port);
    else if (!binds(s, SOCK_STREAM, s->api_port))
        say(d, "bad", "ports", "port %u is in use by another program: give --api-port", s->api_port);
    else
        say(d, "ok", "ports", "ports %u (TCP and UDP) and %u (API) are free", s->address.port, s->api_port);
}

/* The transport of training data between hosts. */
static void look_at_transport(struct doctor *d)
{
    const struct agent_settings *s = d->settings;
    bool asked = strcmp(s->transport, "ucx") == 0;
    bool alone = agent_fabric_is_loopback(s);
    char said[400];

    if (strcmp(s->transport, "tcp") == 0 || ((s->fabric_sealed[0] != '\0' || alone) && !asked))
        say(d, "ok", "transport", "training data between hosts: TCP%s",
            s->fabric_sealed[0] != '\0'          ? ", since it is sealed"
            : strcmp(s->transport, "tcp") == 0 ? ", by --transport tcp"
                                               : ", since they are all on loopback");
    else if (agent_python_try_ucx(s, IMPORT_SECONDS, said, sizeof(said)))
        say(d, "ok", "transport", "training data between hosts: %s, where all hosts of a job have that version", said);
    else
        say(d, asked ? "bad" : "note", "transport",
            "training data between hosts: %s, since there is no UCX: %s. `%s -m pip install libucx-cu13` brings one",
            asked ? "none" : "TCP", said, s->python);
}

static void say_of_peer(struct doctor *d, const char *state, const struct agent_probe *probe)
{
    char text[SHOAL_ADDRESS_TEXT_BYTES];

    shoal_address_text(probe->address, text);
    if (probe->err == SHOAL_OK)
        say(d, "ok", "peers", "%s answers: an agent of this mesh", text);
    else if (probe->err == SHOAL_ERR_EXISTS)
        say(d, "note", "peers", "%s: this host's own agent listens there; name another host", text);
    else if (probe->err == SHOAL_ERR_UNREACHABLE || probe->err == SHOAL_ERR_TIMEOUT)
        say(d, state, "peers",
            "%s does not answer: %s. Does its agent run? Do firewalls let TCP and UDP through, both ways?", text,
            probe->err == SHOAL_ERR_TIMEOUT ? "nothing came within 2 s" : probe->text);
    else if (probe->err == SHOAL_ERR_MALFORMED)
        say(d, state, "peers",
            "%s: what answers there is no agent's port for links: another program's, or that of an agent's API. Hosts "
            "join at the port for links and gossip, %u unless --port says otherwise",
            text, AGENT_PORT);
    else
        say(d, state, "peers", "%s: an agent answers, but does not take this host: %s", text, probe->text);
}

static void look_at_peers(struct doctor *d, const struct shoal_identity *identity)
{
    const struct agent_settings *s = d->settings;
    struct agent_probe probes[SHOAL_SWIM_SEEDS_MAX];
    size_t count = 0, told = 0;

    if (s->seed_count == 0) {
        say(d, "note", "peers", "this host knows no other one yet: run `shoal join` there");
        return;
    }
    for (size_t i = 0; i < s->seed_count; i++) {
        size_t same = 0;

        while (same < count && !shoal_address_equal(probes[same].address, s->seeds[i]))
            same++;
        if (same == count)
            probes[count++].address = s->seeds[i];
        told = i < s->told_count ? count : told;
    }
    agent_probe_all(identity, probes, count, PEER_MS);
    for (size_t i = 0; i < count; i++)
        say_of_peer(d, i < told ? "bad" : "note", &probes[i]);
}

static void look_at_disk(struct doctor *d)
{
    struct agent_room room;
    char text[sizeof(room.folder) + 320];

    if (!agent_room_look(d->settings->data, &room)) {
        say(d, "note", "disk", "the disk of %s does not say how much is free", d->settings->data);
    } else if (agent_room_lacks(&room)) {
        agent_room_text(&room, text, sizeof(text));
        say(d, "bad", "disk", "%s", text);
    } else {
        say(d, "ok", "disk", "%llu MiB are free on the disk of %s", (unsigned long long)(room.free_bytes / SHOAL_MIB),
            room.folder);
    }
}

/* Whoever reads one of these can join a host, or be this one. */
static void look_at_secrets(struct doctor *d)
{
    static const char *const names[] = { "identity", "mesh.key" };
    char path[AGENT_PATH_BYTES + 16];
    struct stat st;
    bool open_to_others = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", d->settings->data, names[i]);
        if (stat(path, &st) != 0 || (st.st_mode & 077) == 0)
            continue;
        open_to_others = true;
        say(d, "bad", "secrets", "%s can be read or written by others than its owner (mode %03o): chmod 600 %s", path,
            st.st_mode & 0777, path);
    }
    if (!open_to_others)
        say(d, "ok", "secrets", "identity and mesh.key are this user's alone");
}

/* Nothing in Shoal needs equal clocks; who compares logs of two hosts does. */
static void look_at_clock(struct doctor *d)
{
    struct timex now = { 0 };

    if (adjtimex(&now) == TIME_ERROR || (now.status & STA_UNSYNC) != 0)
        say(d, "note", "clock",
            "this host's clock is not synchronized: times in its logs may differ from those of "
            "others (`timedatectl set-ntp true`)");
    else
        say(d, "ok", "clock", "the clock is synchronized");
}

static void look_at_descriptors(struct doctor *d)
{
    const uint32_t allowed = descriptors_allowed();

    if (allowed < DESCRIPTORS_LOW)
        say(d, "note", "files", "an agent that is started here may have %u files open at once, of which connections to the API take half: "
            DESCRIPTORS_REMEDY, allowed);
    else
        say(d, "ok", "files", "an agent that is started here may have %u files open at once", allowed);
}

int agent_doctor(const struct agent *agent, bool json, bool verbose)
{
    const struct agent_settings *s = &agent->settings;
    struct doctor d = { .settings = s, .json = json };
    char fingerprint[SHOAL_FINGERPRINT_TEXT_BYTES];
    struct shoal_msg msg;

    if (json)
        (void)printf("{\"checks\":[");
    say(&d, "ok", "data", "data folder %s, mesh %s", s->data, agent->identity.mesh_name);
    if (agent_tls_ready(NULL, &agent->identity, fingerprint, &msg) == SHOAL_OK)
        say(&d, "ok", "trust", "who logs on: shoal logon USER --fingerprint %s", fingerprint);
    if (s->slots > 0)
        say(&d, "ok", "slots", "%u slots (%s)", s->slots, s->device == SHOAL_SCHED_GPU ? "gpu" : "cpu");
    for (uint32_t i = 0; i < s->devices.count; i++)
        say(&d, "ok", "GPU", "slot %u: %s, %s", i, s->devices.list[i].name, s->devices.list[i].uuid);
    if (s->shares > 0)
        say(&d, "ok", "GPU", "services may share each card, by the memory that their kernels declare: %u at one time",
            s->shares + 1);
    look_at_disk(&d);
    look_at_secrets(&d);
    look_at_python(&d);
    look_at_network(&d);
    look_at_transport(&d);
    look_at_peers(&d, &agent->identity);
    look_at_clock(&d);
    look_at_descriptors(&d);
    say(&d, "ok", "scheduling", "scheduling class: %s", agent->scheduling);
    if (json)
        (void)printf("],\"ok\":%s}\n", d.bad ? "false" : "true");
    else if (verbose)
        agent_memory_print();
    return d.bad ? SHOAL_EXIT_FAILED : SHOAL_EXIT_OK;
}
