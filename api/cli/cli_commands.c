/* This table lists every command of the command line, with its options and the function that runs it. */
#include "cli_internal.h"

#include "shoal/banned.h"

#define AGENT_OPTIONS                                                                                                  \
    { "data", "DIR", "data folder of this node", 'd' }, { "name", "NAME", "name of this node [host name]", 0 },        \
        { "host", "ADDRESS", "address for gossip and links, at which other hosts reach this one [127.0.0.1]", 0 },                                                      \
        { "port", "PORT", "port for gossip and links [7410]", 'p' }, { "api-host", "ADDRESS", "address of the HTTP API [that of --host]", 0 }, \
        { "api-port", "PORT", "port of the HTTP API [9243]", 0 },                                                             \
        { "api-plain", NULL, "HTTP without TLS: for tests and trusted proxies only", 0 },                              \
        { "slots", "N", "slots of this host [a GPU each, else a processor each]", 0 },                                            \
        { "inventory", "TEXT", "a declared inventory instead of the real one, such as cpu:2", 0 },                     \
        { "fabric-trusted", "NAMES", "interfaces where training data goes unsealed [none but lo]", 0 },                \
        { "transport", "NAME", "where it is unsealed: auto (UCX if every host has it), ucx or tcp [auto]", 0 },         \
        { "metrics-token-file", "FILE", "its first line opens /metrics, and nothing else, as a bearer token", 0 },     \
        { "domain", "NAME", "failure domain of this host", 0 },                                                        \
        { "prefill", "MIB", "size to which the store is filled beforehand", 0 },                                       \
        { "store-map", "MIB", "the most that the store may take [8192]", 0 },                                          \
        { "log-max", "MIB", "what the logs of one job may take on this host [256]", 0 },                               \
        { "files-max", "COUNT", "files and links that one job's result folder may hold here [50000]", 0 },                             \
        { "files-gib", "GIB", "what one job's result folder may hold on this host [1024]", 0 },                        \
        { "archive-after", "SECONDS", "from a job's end to its archive [600]", 0 },                                    \
        { "warm-memory", "MIB", "what interpreters kept ready with a framework may hold; 0: none is kept [1024]", 0 }, \
        { "python", "FILE", "interpreter of the workers", 0 },                                                         \
        { "libs", "DIR", "folder of libshoal and its modules", 0 },                                                    \
    {                                                                                                                  \
        "log-level", "LEVEL", "debug or info [info]", 0                                                                \
    }

static const struct cli_option init_options[] = {
    AGENT_OPTIONS,
    { "setup-python", NULL, "where --python lacks torch, make one in the data folder, by pip", 0 },
    { "mesh-name", "NAME", "name of the new mesh [shoal]", 0 },
    { "admin-user", "NAME", "first user [admin]", 0 },
    { "admin-password-file", "FILE", "its password is the first line of FILE [one is made and printed]", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option join_options[] = {
    AGENT_OPTIONS,
    { "setup-python", NULL, "where --python lacks torch, make one in the data folder, by pip", 0 },
    { "join", "ADDRESS", "host:port or [ipv6]:port of any member, instead of the word", 0 },
    { "secret-file", "FILE", "the mesh secret; - for standard input", 0 },
    { "run", NULL, "also run the agent", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option agent_options[] = {
    AGENT_OPTIONS,
    { "join", "ADDRESS", "host:port or [ipv6]:port of any member", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option doctor_options[] = {
    AGENT_OPTIONS,
    { "join", "ADDRESS", "host:port or [ipv6]:port of any member", 0 },
    { "verbose", NULL, "also what each table of the agent may take at most, by its limits", 'v' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option run_options[] = {
    { "framework", "NAME", "PyTorch, edtPyTorch, tensorflow, edtTensorflow, distPyTorch, disttensorflow, shoalC; `shoal frameworks` says more", 0 },
    { "model-main", "FILE", "script to start, relative to the model directory", 0 },
    { "model-dir", "DIR", "directory to send; may be deleted after the answer", 0 },
    { "workers", "N", "workers; for elastic frameworks the most", 'w' },
    { "device", "KIND", "cpu or gpu", 0 },
    { "memory", "SIZE", "memory of a worker, such as 4G", 0 },
    { "priority", "N", "greater is served first", 0 },
    { "pending-timeout", "SECONDS", "fail if it still waits after this time", 0 },
    { "name", "NAME", "name to show", 0 },
    { "env", "NAME=VALUE", "environment variable of all tasks; may be repeated", 'e' },
    { "data-path", "DIR", "DATA_DIR, relative to the data file system", 0 },
    { "command", NULL, "run the words after -- as a command, not Python", 0 },
    { "option", "TEXT", "any option of execs-api 4.5 as it is (\"--msd-label a=b\"); may be repeated", 0 },
    { "array", "RANGES", "a task for each index, such as 0-9, 1-100:7, 3,5,9-12 or 0-999%8 (8 at once)", 0 },
    { "warm", NULL, "fork the script from a Python that has come up already: saves most of its start", 0 },
    { "ticket", NULL, "take a ticket first, so that every retry is safe", 0 },
    { "wait", NULL, "wait for its end; the exit code is the job's", 0 },
    { "follow", NULL, "print its log while waiting", 'f' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option list_options[] = {
    { "active", NULL, "only jobs that have not ended", 'a' },
    { "state", "LIST", "only in these states, such as RUNNING,FINISHED", 's' },
    { "owner", "NAME", "only this user's (administrators see everybody's)", 0 },
    { "name", "TEXT", "only with this in their name", 0 },
    { "since", "TIME", "created since: 2h, 3d, or 2031-05-01, or 2031-05-01T09:30:00Z", 0 },
    { "until", "TIME", "created before", 0 },
    { "sort", "FIELD", "created, state, name, user, framework, workers; -FIELD: reversed [-created]", 0 },
    { "limit", "N", "at most so many [on a terminal what fits, else all]", 0 },
    { "page", "TOKEN", "what follows: as the list before said", 0 },
    { "all", NULL, "all pages", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option logs_options[] = {
    { "follow", NULL, "go on until the job ends", 'f' },
    { "which", "NAME", "out, err, outerr, driver, launcher, task-out, task-err, task-outerr, task-launcher [outerr]",
      0 },
    { "rank", "N", "what this worker printed, from 0 on; all: every worker and the driver, each line with its name",
      'r' },
    { "tail", "N", "only the last N lines, and with --follow what comes after them", 't' },
    { "task", "N", "of an array: the task's index; else, for the task logs: 0 the driver, 1 and up the workers", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option tasks_options[] = {
    { "failed", NULL, "only those that failed", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option result_options[] = {
    { "model", NULL, "only what is below model/ in the result folder", 0 },
    { "all", NULL, "everything in the result folder, which is the default", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option metrics_options[] = {
    { "plot", NULL, "draw them", 0 },
    { "csv", NULL, "as CSV, for other programs", 0 },
    { "names", "LIST", "only these metrics, such as loss,accuracy", 0 },
    { "from", "STEP", "from this step on [1]", 0 },
    { "to", "STEP", "up to this step [the last]", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option get_options[] = {
    { "to", "FILE", "the same as FILE [its own name]", 'O' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option delete_options[] = {
    { "all", NULL, "all jobs of yours; services stay", 0 },
    { "yes", NULL, "with --all: do not ask", 'y' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option recover_options[] = {
    { "yes", NULL, "do it; else only say what may be missing", 'y' },
    { NULL, NULL, NULL, 0 },
};
#define MODEL_OPTIONS                                                                                                  \
    { "weight", "FILE", "of a job: the file of its result that is served [the final model]", 0 },                      \
        { "kernel", "FILE", "of a job: the kernel, a submitted file or one of the result [none: by the model's file]", 0 }, \
    {                                                                                                                  \
        "class", "FILE:CLASS", "of a job: the submitted class whose state the file holds [that of its FabricModel]", 0 \
    }

static const struct cli_option deploy_options[] = {
    { "package", "PATH", "directory or archive to serve: model.json and its kernel, or a model's file", 0 },
    { "from-job", "ID", "serve the model of a job that has ended, instead", 0 },
    { "replicas", "N", "kernels that are to run, on as many hosts as there are; 0: none yet [1]", 0 },
    { "update", NULL, "the next version of a service of this name; the one before answers until it is ready", 0 },
    { "canary", "PERCENT", "the next version, which gets that part of the requests; the current one stays", 0 },
    MODEL_OPTIONS,
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option job_deploy_options[] = {
    { "name", "NAME", "of the service [the job's name]", 0 },
    { "replicas", "N", "kernels that are to run, on as many hosts as there are; 0: none yet [1]", 0 },
    { "update", NULL, "the next version of a service of this name; the one before answers until it is ready", 0 },
    { "canary", "PERCENT", "the next version, which gets that part of the requests; the current one stays", 0 },
    MODEL_OPTIONS,
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option test_options[] = {
    { "input", "FILE", "what is sent; - for standard input", 'i' },
    { "path", "NAME", "infer (/v2/models) or dlim (/dlim/v1/inference) [infer for an OIP request, else dlim]", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option canary_options[] = {
    { "version", "N", "the other version that is kept, by its number", 0 },
    { "weight", "PERCENT", "of the requests that name no version, 0 to 100", 0 },
    { "off", NULL, "it gets none any more, and its kernels end", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option rollback_options[] = {
    { "to", "N", "that version, by its number: may be said again, and changes nothing then", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option edit_options[] = {
    { "set", "PATH=VALUE", "one field, such as policy.kernel_max=4; may be repeated", 's' },
    { "file", "FILE", "a profile, whole or in part, as JSON; - for standard input", 'f' },
    { "dry-run", NULL, "say what would change and whether it may, and change nothing", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option replica_options[] = {
    { "replica", "N", "which replica's [0]", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option remove_options[] = {
    { "force", NULL, "also if it is alive: its workers are lost then", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option leave_options[] = {
    { "force", NULL, "also if it is not drained: its workers are lost then", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option mesh_recover_options[] = {
    { "yes", NULL, "do it; else only say what may be missing", 'y' },
    { "key", "FILE", "the mesh's key: what `shoal init` wrote into mesh.key", 0 },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option logon_options[] = {
    { "fingerprint", "TEXT", "believe the mesh with this fingerprint (`shoal init` and `shoal doctor` print it)", 0 },
    { "yes", NULL, "believe whoever answers, this first time, and hold on to it", 'y' },
    { NULL, NULL, NULL, 0 },
};
static const struct cli_option top_options[] = {
    { "interval", "SECONDS", "time between looks [1]", 'i' },
    { "count", "N", "looks; 0: no end [on a terminal 0, else 1]", 'c' },
    { NULL, NULL, NULL, 0 },
};

const struct cli_command cli_commands[] = {
    { .words = "init",
      .args = "",
      .help = "found a mesh on this host",
      .options = init_options,
      .run = cli_run_init,
      .more = "  shoal init --data /var/lib/shoal --mesh-name lab\n" },
    { .words = "join",
      .args = "[ADDRESS]",
      .help = "make this host ready to join a mesh",
      .options = join_options,
      .run = cli_run_join,
      .more = "  shoal join 10.0.0.1:7410 --data /var/lib/shoal --secret-file mesh.key --run\n" },
    { .words = "agent",
      .args = "",
      .help = "run this node",
      .options = agent_options,
      .run = cli_run_agent,
      .more = "  shoal agent --data /var/lib/shoal\n" },
    { .words = "node list", .args = "", .help = "the nodes of the mesh", .run = cli_node_list },
    { .words = "node remove",
      .args = "NODE",
      .help = "a host is gone for good: others take its places, and it is refused from now on (administrators)",
      .options = remove_options,
      .run = cli_node_remove,
      .more = "  shoal node remove gpu7\n" },
    { .words = "node readmit",
      .args = "NODE",
      .help = "its removal was a mistake: take it back (administrators)",
      .run = cli_node_readmit },
    { .words = "node drain",
      .args = "NODE",
      .help = "nothing new goes there; training and replicas move to free slots, scripts and tasks end there (administrators)",
      .run = cli_node_drain,
      .more = "  shoal node drain gpu7; shoal node list; shoal node leave gpu7\n" },
    { .words = "node undrain",
      .args = "NODE",
      .help = "it takes work again (administrators)",
      .run = cli_node_undrain },
    { .words = "node leave",
      .args = "NODE",
      .help = "a host that is drained says goodbye, and its agent stops (administrators)",
      .options = leave_options,
      .run = cli_node_leave },
    { .words = "mesh recover",
      .args = "",
      .help = "most of the mesh group's guardians are gone for good: go on without them (administrators)",
      .options = mesh_recover_options,
      .run = cli_mesh_recover,
      .more = "  shoal mesh recover                       what is left, and what may be missing\n"
              "  shoal mesh recover --yes --key mesh.key  found the next generation from it\n" },
    { .words = "job run",
      .args = "",
      .help = "submit a job",
      .options = run_options,
      .run = cli_job_run,
      .rest = true,
      .more = "  shoal job run --framework edtPyTorch --model-main main.py \\\n      --model-dir my_model --workers 6\n"
              "  shoal job run --framework PyTorch --model-main t.py --model-dir my_model \\\n      --wait -- --epochs 3\n"
              "  shoal job run --framework PyTorch --model-main t.py --model-dir my_model \\\n      --array 0-999%8\n" },
    { .words = "job list", .args = "", .help = "jobs, the newest first", .options = list_options, .run = cli_job_list },
    { .words = "job show", .args = "ID", .help = "all about one job", .run = cli_job_show },
    { .words = "job tasks",
      .args = "ID",
      .help = "the tasks of an array: state, exit code, host",
      .options = tasks_options,
      .run = cli_job_tasks,
      .more = "  shoal job tasks 41z --failed\n" },
    { .words = "job logs",
      .args = "ID",
      .help = "its log",
      .options = logs_options,
      .run = cli_job_logs,
      .more = "  shoal job logs -f 41z\n" },
    { .words = "job metrics",
      .args = "ID",
      .help = "loss and metrics of its committed steps",
      .options = metrics_options,
      .run = cli_job_metrics,
      .more = "  shoal job metrics 41z --plot\n"
              "  shoal job metrics 41z --csv > curve.csv\n" },
    { .words = "job wait", .args = "ID", .help = "wait for its end; the exit code is the job's", .run = cli_job_wait },
    { .words = "job stop", .args = "ID", .help = "stop it", .run = cli_job_stop },
    { .words = "job files", .args = "ID", .help = "the files in its result folder", .run = cli_job_files },
    { .words = "job get",
      .args = "ID PATH [FILE]",
      .help = "fetch one of them (- for standard output; a terminal is shown its control characters, as in logs)",
      .options = get_options,
      .run = cli_job_get,
      .more = "  shoal job get 41z model/train/model_epoch_final.pth model.pth\n" },
    { .words = "job result",
      .args = "ID [FILE]",
      .help = "fetch all of them as a zip (- for standard output, unless that is a terminal)",
      .options = result_options,
      .run = cli_job_result },
    { .words = "job delete",
      .args = "[ID]",
      .help = "delete it and its result; stops it first",
      .options = delete_options,
      .run = cli_job_delete },
    { .words = "job recover",
      .args = "ID",
      .help = "most of its guardians are gone for good: go on from the replica that is left (administrators)",
      .options = recover_options,
      .run = cli_job_recover,
      .more = "  shoal job recover 41z          what is left, and what may be missing\n"
              "  shoal job recover 41z --yes    found the next recovery generation from it\n" },
    { .words = "job deploy",
      .args = "ID",
      .help = "serve its model: any node answers for it",
      .options = job_deploy_options,
      .run = cli_job_deploy,
      .more = "  shoal job deploy 41z --name digits --replicas 3\n"
              "  shoal job deploy 42b --name digits --update  # the next version\n" },
    { .words = "job ledger",
      .args = "ID",
      .help = "which samples were trained, epoch by epoch",
      .run = cli_job_ledger },
    { .words = "service deploy",
      .args = "NAME",
      .help = "serve a model: any node answers for it",
      .options = deploy_options,
      .run = cli_service_deploy,
      .rest = true,
      .more = "  shoal service deploy digits --package my_package --replicas 3\n"
              "  shoal service deploy digits --from-job 41z                 # trained by a job\n"
              "  shoal service deploy digits --package my_package --update  # its next version\n"
              "  shoal service deploy echo --package my_package -- ./my_kernel  # in C\n" },
    { .words = "service list", .args = "", .help = "the services of the mesh", .run = cli_service_list },
    { .words = "service show", .args = "NAME", .help = "all about one service", .run = cli_service_show },
    { .words = "service start",
      .args = "NAME",
      .help = "as many replicas as its profile says",
      .run = cli_service_start },
    { .words = "service stop", .args = "NAME", .help = "no replica; it stays deployed", .run = cli_service_stop },
    { .words = "service scale", .args = "NAME N", .help = "as many replicas as that", .run = cli_service_scale },
    { .words = "service canary",
      .args = "NAME",
      .help = "a part of the requests for another version than the current one",
      .options = canary_options,
      .run = cli_service_canary,
      .more = "  shoal service canary digits --version 2 --weight 10\n"
              "  shoal service canary digits --off\n" },
    { .words = "service promote",
      .args = "NAME",
      .help = "the canary is the current version from now on",
      .run = cli_service_promote },
    { .words = "service rollback",
      .args = "NAME",
      .help = "back to the version before",
      .options = rollback_options,
      .run = cli_service_rollback },
    { .words = "service edit",
      .args = "NAME",
      .help = "its profile: print it, or change it",
      .options = edit_options,
      .run = cli_service_edit,
      .more = "  shoal service edit digits --set policy.kernel_min=1 \\\n      --set policy.kernel_max=4 --dry-run\n"
              "  shoal service edit digits --output json > profile.json\n  shoal service edit digits -f profile.json\n" },
    { .words = "service test",
      .args = "NAME",
      .help = "send it one request and print the answer",
      .options = test_options,
      .run = cli_service_test,
      .more = "  shoal service test digits --input sample.json\n"
              "  a model without a kernel of its own reads, for its shape of one sample\n"
              "  (here three numbers):\n"
              "  {\"inputs\": [{\"name\": \"x\", \"datatype\": \"FP32\", \"shape\": [1, 3],\n"
              "               \"data\": [1, 2, 3]}]}\n" },
    { .words = "service delete", .args = "NAME", .help = "end it and forget it", .run = cli_service_delete },
    { .words = "service logs",
      .args = "NAME",
      .help = "what a replica prints",
      .options = replica_options,
      .run = cli_service_logs },
    { .words = "top", .args = "", .help = "nodes and jobs, live", .options = top_options, .run = cli_top },
    { .words = "why", .args = "ID", .help = "why a job, or a service, is where it is", .run = cli_why },
    { .words = "frameworks", .args = "", .help = "what jobs can be", .run = cli_frameworks },
    { .words = "status", .args = "", .help = "whether the node and its mesh are well", .run = cli_status },
    { .words = "logon",
      .args = "[USER]",
      .help = "get a token and keep it, and get to know the mesh [USER: --user, else SHOAL_USER]",
      .options = logon_options,
      .run = cli_logon,
      .more = "  SHOAL_PASSWORD=... shoal logon ada --node https://host:9243\n" },
    { .words = "logoff", .args = "", .help = "end the kept token everywhere", .run = cli_logoff },
    { .words = "dlim",
      .args = "...",
      .help = "models and their services by the words of WMLA's dlim; so does a link of this name",
      .run = cli_run_dlim,
      .more = "  shoal dlim config -c https://host:9243\n  shoal dlim config -t -u ada -x PASSWORD\n"
              "  shoal dlim model deploy -p my_model; shoal dlim model view my-model -s\n"
              "  shoal dlim --help\n" },
    { .words = "sim", .args = "...", .help = "run the cores of the agent in a simulated mesh (shoal sim --help)", .run = cli_run_sim },
    { .words = "doctor", .args = "", .help = "check this host", .options = doctor_options, .run = cli_run_doctor },
    { .words = "version", .args = "", .help = "print the version", .run = cli_run_version },
    { .words = "help", .args = "[COMMAND...]", .help = "this text, or that of one command", .run = cli_run_help },
};

const unsigned cli_command_count = sizeof(cli_commands) / sizeof(cli_commands[0]);
