/* The environment and the arguments of a job's processes (spec/training-contract 2): what all have in common, what
 * is ours, an array's task, a service's replica, what the user asked for, above which stands what begins with SHOAL_. */
#include "agent.h"

#include <unistd.h>

#include "shoal/service_doc.h"
#include "shoal/slots.h"

#include "agent_env.h"

#include "shoal/banned.h"

#define OURS_MAX 96 /* variables that the agent adds */
_Static_assert(SHOAL_JOB_ARGV_MAX + 4 <= SHOAL_RUNNER_STRINGS_MAX, "what a submit may give can be started");
_Static_assert(SHOAL_JOB_ENV_MAX + OURS_MAX + 8 <= SHOAL_RUNNER_STRINGS_MAX, "what a submit may give can be started");

const char *agent_start_keep(struct agent_start_text *t, const char *text)
{
    size_t len = strlen(text) + 1;
    char *at = t->bytes + t->used;

    if (len > sizeof(t->bytes) - t->used) {
        t->full = true;
        return "";
    }
    memcpy(at, text, len);
    t->used += len;
    return at;
}

__attribute__((format(printf, 3, 4))) static void put_env(struct agent_start_text *t, const char *name,
                                                          const char *format, ...)
{
    char *pair = t->bytes + t->used;
    size_t left = sizeof(t->bytes) - t->used;
    size_t name_len = strlen(name) + 1;
    va_list args;
    int len;

    if (name_len >= left) {
        t->full = true;
        return;
    }
    (void)snprintf(pair, left, "%s=", name);
    va_start(args, format);
    len = vsnprintf(pair + name_len, left - name_len, format, args);
    va_end(args);
    if (len < 0 || (size_t)len >= left - name_len) {
        t->full = true;
        return;
    }
    t->used += name_len + (size_t)len + 1;
    for (uint32_t i = 0; i < t->start.envc; i++)
        if (strncmp(t->start.env[i], pair, name_len) == 0) {
            t->start.env[i] = pair;
            return;
        }
    if (t->start.envc < SHOAL_RUNNER_STRINGS_MAX - 8) {
        t->start.env[t->start.envc++] = pair;
        t->start.env[t->start.envc] = NULL;
    } else {
        t->full = true;
    }
}

static bool is_keras(const struct agent_job *job)
{
    return strcmp(job->spec.framework, "edtTensorflow") == 0; /* the canonical name: args_framework_find() */
}

/* Where Python and the loader look: what is ours first, for no job runs without it, then what the user adds, the job's own folder, and
 * last what any of them may have in another version. False: `name` is neither. */
static bool put_search_path(const struct agent *agent, const struct agent_job *job, struct agent_start_text *t, const char *name,
                            const char *users)
{
    const char *home = agent->settings.fabric_home;
    const char *colon = users[0] == '\0' ? "" : ":";

    if (strcmp(name, "PYTHONPATH") == 0)
        put_env(t, name, "%s/tools:%s/libs/fabric.zip%s%s:%s:%s/site", home, home, colon, users, job->work_dir, home);
    else if (strcmp(name, "LD_LIBRARY_PATH") == 0)
        put_env(t, name, "%s/native%s%s", home, colon, users);
    else
        return false;
    return true;
}

static void env_common(struct agent *agent, struct agent_job *job, struct agent_start_text *t, const char *log_dir)
{
    const struct agent_settings *s = &agent->settings;
    const char *user = job->spec.submit_user[0] != '\0' ? job->spec.submit_user : job->spec.creator;
    char python_dir[AGENT_PATH_BYTES];
    char temporary[AGENT_PATH_BYTES];
    const char *slash;

    (void)snprintf(python_dir, sizeof(python_dir), "%s", s->python);
    slash = strrchr(python_dir, '/');
    if (slash != NULL)
        python_dir[slash - python_dir] = '\0';
    put_env(t, "PATH", "%s:/usr/local/bin:/usr/bin:/bin", python_dir);
    put_env(t, "HOME", "%s/home", s->data);
    put_env(t, "USER", "%s", user);
    put_env(t, "LANG", "C.UTF-8");
    agent_folders_temporary(agent, job->id, temporary);
    put_env(t, "TMPDIR", "%s", temporary);
    put_env(t, "TORCHINDUCTOR_CACHE_DIR", "%s/home/.cache/torchinductor", s->data); /* it would be in TMPDIR, for one job */
    put_env(t, "DLI_DATA_FS", "%s/datasets", s->data);
    put_env(t, "DATA_DIR", "%s/datasets%s%s", s->data, job->spec.data_path[0] == '\0' ? "" : "/", job->spec.data_path);
    put_env(t, "DLI_RESULT_FS", "%s/results", s->data);
    put_env(t, "DLI_SHARED_FS", "%s", s->fabric_home);
    put_env(t, "DL_NFS_PATH", "%s", s->fabric_home);
    put_env(t, "RESULT_DIR", "%s", job->result_dir);
    put_env(t, "LOG_DIR", "%s", log_dir);
    put_env(t, "CHECKPOINT_DIR", "%s/checkpoint", job->result_dir);
    put_env(t, "SAVED_MODEL_DIR", "%s/model", job->result_dir);
    put_env(t, "DLI_EXECID", "%s", job->text);
    put_env(t, "APP_ID", "%s", job->text);
    put_env(t, "JOB_ID", "%s", job->text);
    put_env(t, "DLI_WORK_DIR", "%s", job->work_dir);
    put_env(t, "MODEL_PATH", "%s", job->work_dir);
    put_env(t, "PS_PATH", "%s", job->work_dir);
    put_env(t, "PWD", "%s", job->work_dir);
    put_env(t, "FRAME_WORK", "%s", job->spec.framework);
    put_env(t, "DATA_PATH", "%s", job->spec.data_path);
    put_env(t, "DLI_CS_DATASTORE_META", "%.*s", (int)job->spec.datastore_meta.len,
            job->spec.datastore_meta.len == 0 ? "" : (const char *)job->spec.datastore_meta.bytes);
    put_env(t, "DLI_LOGGER_LEVEL", "%s", job->spec.debug_level[0] == '\0' ? "info" : job->spec.debug_level);
    put_env(t, "DLI_IS_ELASTIC", "%s", job->spec.elastic ? "true" : "false");
    put_env(t, "DLI_SUBMIT_USERNAME", "%s", user);
    put_env(t, "DLI_RUN_AS_USERNAME", "%s", user);
    put_env(t, "DLI_RUN_AS_USERID", "%u", (unsigned)getuid());
    put_env(t, "DLI_RUN_AS_GROUPID", "%u", (unsigned)getgid());
    put_env(t, "FABRIC_HOME", "%s", s->fabric_home);
    put_env(t, "DLI_FABRIC_HOME", "%s", s->fabric_home);
    (void)put_search_path(agent, job, t, "PYTHONPATH", "");
    (void)put_search_path(agent, job, t, "LD_LIBRARY_PATH", "");
    put_env(t, "PYTHONUSERBASE", "%s/userbase/%s", s->data, user);
    put_env(t, "PYTHONUNBUFFERED", "1");
    put_env(t, "OMP_NUM_THREADS", "1");
    put_env(t, "MKL_NUM_THREADS", "1");
    put_env(t, "OPENBLAS_NUM_THREADS", "1");
    put_env(t, "NVIDIA_DRIVER_CAPABILITIES", "compute,utility");
    put_env(t, "DATA_SOURCE_RESERVE", "%s", ""); /* nothing is downloaded for a job that could be kept */
    put_env(t, "TASK12N_DEVICE_TYPE", "%s", s->device == SHOAL_SCHED_GPU ? "gpu" : "cpu");
    put_env(t, "WMLA_NWORKER", "%u", job->spec.workers_max);
    put_env(t, "WMLA_WORKER_NDEVICE", "%u", job->spec.devices_per_worker == 0 ? 1 : job->spec.devices_per_worker);
}

/* Where NCCL and Gloo reach the other hosts' workers: they look for an interface by its name. */
static void env_interface(const struct agent *agent, struct agent_start_text *t)
{
    if (agent->settings.interface[0] == '\0')
        return;
    put_env(t, "NCCL_SOCKET_IFNAME", "%s", agent->settings.interface);
    put_env(t, "GLOO_SOCKET_IFNAME", "%s", agent->settings.interface);
}

/* Empty: none, also of those that the agent sees. */
static void put_devices(struct agent_start_text *t, const char *devices)
{
    put_env(t, "CUDA_VISIBLE_DEVICES", "%s", devices);
    put_env(t, "NVIDIA_VISIBLE_DEVICES", "%s", devices);
}

/* This host's address, without port and brackets. */
static void put_address(const struct agent *agent, struct agent_start_text *t, const char *name)
{
    char text[SHOAL_ADDRESS_TEXT_BYTES];
    size_t len;

    shoal_address_text(agent->settings.address, text);
    len = (size_t)(strrchr(text, ':') - text);
    if (text[0] == '[')
        put_env(t, name, "%.*s", (int)len - 2, text + 1);
    else
        put_env(t, name, "%.*s", (int)len, text);
}

static void call_link(const struct agent *agent, const struct agent_job *job, char path[AGENT_PATH_BYTES + 32])
{
    agent_job_folder(agent, job->id, path, AGENT_PATH_BYTES);
    memcpy(path + strlen(path), "/call.bundle", 13);
}

void agent_job_call(struct agent *agent, const struct agent_job *job, const char *path)
{
    char name[AGENT_PATH_BYTES + 32];
    char temporary[AGENT_PATH_BYTES + 40];

    call_link(agent, job, name);
    (void)snprintf(temporary, sizeof(temporary), "%s.new", name);
    (void)unlink(temporary);
    if (symlink(path, temporary) != 0 || rename(temporary, name) != 0)
        agent_log(agent, "%s: %s; engines here start without preloading", name, strerror(errno));
}

static void env_shoal(struct agent *agent, struct agent_job *job, const struct agent_run *run,
                      struct agent_start_text *t)
{
    char hex[SHOAL_NODE_ID_TEXT_BYTES];
    char path[AGENT_PATH_BYTES + 32];
    char device[AGENT_DEVICE_BYTES];

    shoal_hex_text(agent->identity.node.bytes, sizeof(agent->identity.node.bytes), hex);
    put_env(t, SHOAL_ENV_SOCKET, "%s/w.sock", agent->settings.data);
    put_env(t, SHOAL_ENV_JOB, "%s", job->text);
    put_env(t, SHOAL_ENV_GENERATION, "%u", job->generation);
    put_env(t, SHOAL_ENV_NODE, "%s", hex);
    put_env(t, SHOAL_ENV_WORKER, "%llu", (unsigned long long)run->worker_id);
    if (agent->settings.fabric_sealed[0] != '\0')
        put_env(t, SHOAL_ENV_FABRIC_SEALED, "%s", agent->settings.fabric_sealed);
    else
        put_env(t, SHOAL_ENV_FABRIC, "%s", agent->settings.fabric_trusted);
    if (strcmp(agent->settings.transport, "auto") != 0) /* else a job may choose by this name */
        put_env(t, SHOAL_ENV_TRANSPORT, "%s", agent->settings.transport);
    put_env(t, SHOAL_ENV_LOG_MIB, "%u", agent->settings.log_max_mib);
    shoal_hex_text(run->token, sizeof(run->token), hex);
    put_env(t, SHOAL_ENV_TOKEN, "%s", hex);
    /* The runner's descriptors keep their numbers: control page and arena are made before anything else is opened. */
    put_env(t, SHOAL_ENV_CONTROL_FD, "%d", SHOAL_RUNNER_CONTROL_FD);
    put_env(t, SHOAL_ENV_ARENA_FD, "%d", SHOAL_RUNNER_ARENA_FD);
    if (run->slot != SHOAL_SLOT_NONE)
        put_env(t, SHOAL_ENV_SLOT, "%u", run->slot);
    agent_slot_devices(&agent->settings, run->slot, device);
    put_devices(t, device);
    put_env(t, "TASK_ID", "%u", run->slot == SHOAL_SLOT_NONE ? 0 : run->slot + 1);
    put_env(t, "TASK_JOB_ID", "%s", job->text);
    put_env(t, "MSD_POD_NAME", "%s", run->task);
    put_env(t, "HOSTNAME", "%s", run->task);
    put_address(agent, t, "MSD_POD_IP");
    put_env(t, "MSD_WAIT_AFTER_FINISHED_IN_SEC", "0"); /* no task lingers */
    if (job->spec.elastic) {
        call_link(agent, job, path);
        put_env(t, SHOAL_ENV_CALL_BUNDLE, "%s", path);
        put_env(t, "FABRIC_BACKEND", "%s", is_keras(job) ? "keras" : "pytorch");
        put_env(t, "RESUME_WEIGHT_PATH", "null");
        put_env(t, "RDMA_ENABLED", "false");
        put_env(t, "PYTHONHASHSEED", "0"); /* a set of texts has one order in all engines, and so have labels that are made of it */
        put_env(t, "RDMA_BUFFER_SIZE", "%u", 1u << 30);
        put_env(t, "RDMA_DEVICE_NAME", "%s", "");
        put_env(t, "RDMA_DEVICE_PORT", "%s", "");
        if (run->role == SHOAL_JOB_DRIVER)
            put_env(t, "DLI_IS_DRIVER", "true");
    }
    if (job->spec.user_cmd && run->role == SHOAL_JOB_SCRIPT) /* torchrun --node_rank */
        put_env(t, "NODE_RANK", "%u", run->index);
}

/* As Slurm names them too: scripts written for it find what they look for. */
static void env_array(const struct agent_job *job, const struct agent_run *run, struct agent_start_text *t)
{
    static const char *const prefixes[] = { "SHOAL", "SLURM" };
    struct shoal_array array;
    char name[64];

    if (run->role != SHOAL_JOB_TASK || shoal_array_parse(job->spec.array, &array, NULL) != SHOAL_OK)
        return;
    for (unsigned i = 0; i < 2; i++) {
        const struct {
            const char *end;
            uint32_t value;
        } rows[] = { { "ID", run->index },
                     { "COUNT", array.task_count },
                     { "MIN", array.index_min },
                     { "MAX", array.index_max },
                     { "STEP", array.ranges[0].step } };

        for (unsigned r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
            (void)snprintf(name, sizeof(name), "%s_ARRAY_TASK_%s", prefixes[i], rows[r].end);
            put_env(t, name, "%u", rows[r].value);
        }
        (void)snprintf(name, sizeof(name), "%s_ARRAY_JOB_ID", prefixes[i]);
        put_env(t, name, "%s", job->text);
    }
    put_env(t, "SHOAL_ARRAY_TASK_ATTEMPT", "%u", run->attempt);
}

/* Of a slot with a card a kernel sees it only if its profile says so. */
static void env_gpu(const struct agent *agent, const struct agent_job *job, const struct agent_run *run,
                    struct agent_start_text *t)
{
    struct shoal_slot_status status = { .gpu_mib = 0 };
    struct service_knobs knobs;

    agent_serve_knobs(agent, job, &knobs);
    if (knobs.need.device != SHOAL_JOB_DEVICE_GPU) {
        put_devices(t, "");
        put_env(t, "TASK12N_DEVICE_TYPE", "%s", "cpu");
        return;
    }
    if (run->slot < agent_slots_all(&agent->settings))
        shoal_slots_slot(shoal_sched_slots(agent->sched), run->slot, &status);
    if (status.gpu_mib > 0)
        put_env(t, "SHOAL_GPU_MEM_MIB", "%u", status.gpu_mib);
}

static void env_service(const struct agent *agent, const struct agent_job *job, const struct agent_run *run,
                        struct agent_start_text *t)
{
    const char *allow = getenv("SHOAL_KERNEL_ALLOW_PICKLE");
    char path[AGENT_PATH_BYTES + 32];

    if (!shoal_job_spec_serves(&job->spec))
        return;
    agent_serve_socket(agent, job, run, path, sizeof(path));
    put_env(t, "SHOAL_KERNEL_SOCKET", "%s", path);
    put_env(t, "SHOAL_SERVICE", "%s", job->spec.service);
    agent_serve_document(agent, job, path, sizeof(path));
    put_env(t, "SHOAL_SERVICE_DOCUMENT", "%s", path);
    env_gpu(agent, job, run, t);
    put_env(t, "REDHARE_MODEL_CREATOR", "%s", job->spec.creator);
    /* The operator's word, by the agent's own environment; always said, so that nobody who deploys says it. */
    put_env(t, "SHOAL_KERNEL_ALLOW_PICKLE", "%d", allow != NULL && strcmp(allow, "1") == 0);
}

/* Engines and driver are the user's own program, which calls libshoal. */
static bool is_program(const struct agent_job *job) { return strcmp(job->spec.framework, "shoalC") == 0; }

static void put_argv(struct agent_start_text *t, const char *text)
{
    if (t->start.argc < SHOAL_RUNNER_STRINGS_MAX) {
        t->start.argv[t->start.argc++] = agent_start_keep(t, text);
        t->start.argv[t->start.argc] = NULL;
    } else {
        t->full = true;
    }
}

static void argv_of(struct agent *agent, struct agent_job *job, const struct agent_run *run, struct agent_start_text *t)
{
    const char *text = NULL;

    if (run->role == SHOAL_JOB_ENGINE && !is_program(job)) {
        t->start.how = SHOAL_START_FORK;
        t->start.warm = is_keras(job) ? SHOAL_WARM_NONE : SHOAL_WARM_FRAMEWORK; /* what waits has torch loaded */
        put_argv(t, agent->settings.python);
        put_argv(t, "-m");
        put_argv(t, "pyedt.engine_server");
        return;
    }
    t->start.how = SHOAL_START_EXEC;
    if (shoal_job_spec_serves(&job->spec) && job->spec.argv.count == 0) {
        put_argv(t, agent->settings.python);
        put_argv(t, "-m");
        put_argv(t, "pyedt.kernel_host");
        return;
    }
    if (run->role == SHOAL_JOB_DRIVER && !is_program(job) && !is_keras(job))
        t->start.warm = SHOAL_WARM_FRAMEWORK;
    else if (job->spec.warm)
        t->start.warm = SHOAL_WARM_SCRIPT;
    if (!job->spec.user_cmd && !is_program(job))
        put_argv(t, agent->settings.python);
    if (!job->spec.user_cmd)
        put_argv(t, job->main_path);
    while ((text = shoal_job_texts_next(&job->spec.argv, text)) != NULL)
        put_argv(t, text);
}

/* The variables of our own prefix stand above the user's: bounds, descriptors, which worker it is. */
static bool is_ours(const struct agent_start_text *t, const char *pair)
{
    size_t len = strcspn(pair, "=") + 1;

    for (uint32_t i = 0; strncmp(pair, "SHOAL_", 6) == 0 && i < t->start.envc; i++)
        if (strncmp(t->start.env[i], pair, len) == 0)
            return true;
    return false;
}

static void env_user(const struct agent *agent, const struct agent_job *job, struct agent_start_text *t)
{
    const char *text = NULL;

    while ((text = shoal_job_texts_next(&job->spec.env, text)) != NULL) {
        const char *equals = strchr(text, '=');
        char name[SHOAL_JOB_ENV_NAME_BYTES];

        if (equals == NULL || (size_t)(equals - text) >= sizeof(name) || is_ours(t, text))
            continue;
        memcpy(name, text, (size_t)(equals - text));
        name[equals - text] = '\0';
        if (!put_search_path(agent, job, t, name, equals + 1))
            put_env(t, name, "%s", equals + 1);
    }
}

void agent_env_fill(struct agent *agent, struct agent_job *job, const struct agent_run *run, const char *log_dir,
                    struct agent_start_text *t)
{
    env_common(agent, job, t, log_dir);
    env_interface(agent, t);
    env_shoal(agent, job, run, t);
    env_array(job, run, t);
    env_service(agent, job, run, t);
    env_user(agent, job, t);
    argv_of(agent, job, run, t);
}

void agent_env_exposed(const struct agent_start_text *t, char *text, size_t cap)
{
    static const char *const names[] = { "DATA_DIR", "RESULT_DIR", "LOG_DIR", "SAVED_MODEL_DIR" };
    size_t used = 0;

    text[0] = '\0';
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++)
        for (uint32_t i = 0; i < t->start.envc && used < cap; i++) {
            const char *pair = t->start.env[i];
            size_t len = strlen(names[n]);

            if (strncmp(pair, names[n], len) == 0 && pair[len] == '=')
                used += (size_t)snprintf(text + used, cap - used, "%sExposed the environment variable %s to: %s",
                                         used == 0 ? "" : "\n", names[n], pair + len + 1);
        }
}
