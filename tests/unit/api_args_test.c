/* Tables of args (execs-api 4.3 to 4.6): what reaches options, what reaches the script, what is refused and how. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/rest/args.h"

#include "shoal/banned.h"

static const struct shoal_user ada = { .name = "ada", .uid = 1007 };
static const struct shoal_user root = { .name = "root", .uid = 1, .admin = true };

/* The fields of interest as one line, so that a row is one comparison. */
static void describe(const struct args_result *r, char *out, size_t cap)
{
    const struct shoal_job_options *o = &r->options;
    size_t len = 0;

    len += (size_t)snprintf(out + len, cap - len, "%s", o->framework);
    if (o->main[0] != '\0')
        len += (size_t)snprintf(out + len, cap - len, " main=%s", o->main);
    if (o->model_dir[0] != '\0')
        len += (size_t)snprintf(out + len, cap - len, " dir=%s", o->model_dir);
    if (o->user_cmd)
        len += (size_t)snprintf(out + len, cap - len, " cmd");
    if (o->workers_max != 1)
        len += (size_t)snprintf(out + len, cap - len, " w=%u-%u", o->workers_min, o->workers_max);
    if (o->device != SHOAL_DEVICE_AUTO)
        len += (size_t)snprintf(out + len, cap - len, " %s", o->device == SHOAL_DEVICE_CPU ? "cpu" : "gpu");
    if (o->worker_memory_bytes != 4ull << 30)
        len += (size_t)snprintf(out + len, cap - len, " mem=%llu", (unsigned long long)o->worker_memory_bytes);
    if (o->driver_memory_bytes != 0)
        len += (size_t)snprintf(out + len, cap - len, " dmem=%llu", (unsigned long long)o->driver_memory_bytes);
    if (o->worker_cpu_milli != 0)
        len += (size_t)snprintf(out + len, cap - len, " cpu=%um", o->worker_cpu_milli);
    if (o->priority != 0)
        len += (size_t)snprintf(out + len, cap - len, " prio=%u", o->priority);
    if (o->pending_timeout_s != 0)
        len += (size_t)snprintf(out + len, cap - len, " pend=%u", o->pending_timeout_s);
    if (strstr(o->app_name, "Train") == NULL)
        len += (size_t)snprintf(out + len, cap - len, " app=%s", o->app_name);
    if (o->data_path[0] != '\0')
        len += (size_t)snprintf(out + len, cap - len, " data=%s", o->data_path);
    if (strcmp(o->debug_level, "info") != 0)
        len += (size_t)snprintf(out + len, cap - len, " debug=%s", o->debug_level);
    if (o->warm)
        len += (size_t)snprintf(out + len, cap - len, " warm");
    if (o->array[0] != '\0')
        len += (size_t)snprintf(out + len, cap - len, " array=%s", o->array);
    for (size_t i = 0; i < o->env.count; i++)
        len += (size_t)snprintf(out + len, cap - len, " env:%s", o->env.items[i]);
    for (size_t i = 0; i < o->attrs.count; i++)
        len += (size_t)snprintf(out + len, cap - len, " attr:%s", o->attrs.items[i]);
    for (size_t i = 0; i < o->labels.count; i++)
        len += (size_t)snprintf(out + len, cap - len, " label:%s", o->labels.items[i]);
    for (size_t i = 0; i < o->notes.count; i++)
        len += (size_t)snprintf(out + len, cap - len, " note");
    for (size_t i = 0; i < o->script_argv.count; i++)
        len += (size_t)snprintf(out + len, cap - len, " [%s]", o->script_argv.items[i]);
}

struct row {
    const char *name;
    const char *args;
    const char *data; /* NULL: none */
    const char *want; /* described, or a part of the message */
    enum shoal_err err;
};

#define P "--exec-start PyTorch --model-main m.py "
#define E "--exec-start edtPyTorch --model-main m.py "
#define INV SHOAL_ERR_INVALID
#define UNS SHOAL_ERR_UNSUPPORTED

static const struct row rows[] = {
    /* frameworks */
    { "the plainest job", "--exec-start PyTorch --model-main m.py", NULL, "PyTorch main=m.py", 0 },
    { "the order of options is free", "--model-main m.py --exec-start PyTorch", NULL, "PyTorch main=m.py", 0 },
    { "a framework's case does not matter", "--exec-start pytorch --model-main m.py", NULL, "PyTorch main=m.py", 0 },
    { "an elastic framework", E, NULL, "edtPyTorch main=m.py", 0 },
    { "an alias of 1.2", "--exec-start PyTorch041 --model-main m.py", NULL, "PyTorch main=m.py", 0 },
    { "an alias of ours", "--exec-start elasticpytorch --model-main m.py", NULL, "edtPyTorch main=m.py", 0 },
    { "a framework for later", "--exec-start disttensorflow --model-main m.py", NULL,
      "not supported yet: framework disttensorflow", UNS },
    { "an alias of one for later", "--exec-start disttensorflow_v1 --model-main m.py", NULL,
      "not supported yet: framework disttensorflow", UNS },
    { "TensorFlow by its older name", "--exec-start keras --model-main m.py", NULL, "tensorflow main=m.py mem=8589934592", 0 },
    { "elastic TensorFlow by its older name", "--exec-start edtKeras --model-main m.py", NULL, "edtTensorflow main=m.py mem=8589934592", 0 },
    { "a framework that is gone", "--exec-start ddlCaffe --model-main m.py", NULL, "gone", INV },
    { "an unknown framework lists the known", "--exec-start foo --model-main m.py", NULL,
      "unknown framework foo; there are PyTorch, tensorflow, edtPyTorch, edtTensorflow, shoalC", INV },
    { "distributed PyTorch", "--exec-start distPyTorch --model-main m.py", NULL,
      "not supported yet: framework distPyTorch; edtPyTorch trains with several workers (FabricModel in the place of "
      "DistributedDataParallel)", UNS },
    { "no --exec-start", "--model-main m.py", NULL, "--exec-start", INV },
    { "no args at all", "", NULL, "--exec-start", INV },
    { "only white space", " \t\r\n ", NULL, "--exec-start", INV },
    { "--exec-start without a value", "--model-main m.py --exec-start", NULL, "--exec-start: its value is missing",
      INV },
    { "--exec-start followed by an option", "--exec-start --model-main m.py", NULL,
      "--exec-start: its value is missing", INV },
    { "the last framework wins", "--exec-start edtPyTorch --exec-start PyTorch --model-main m.py", NULL,
      "PyTorch main=m.py", 0 },
    /* grammar */
    { "the form with =", "--exec-start=PyTorch --model-main=m.py", NULL, "PyTorch main=m.py", 0 },
    { "= inside a value stays", P "--appName=a=b", NULL, "PyTorch main=m.py app=a=b", 0 },
    { "an empty value after = is missing", P "--appName=", NULL, "--appName: its value is missing", INV },
    { "runs of white space separate", "--exec-start \t PyTorch\r\n--model-main  m.py", NULL, "PyTorch main=m.py", 0 },
    { "unknown options reach the script in order", P "--epochs 3 --lr=0.1 -b 4", NULL,
      "PyTorch main=m.py [--epochs] [3] [--lr=0.1] [-b] [4]", 0 },
    { "stray words reach the script", "foo --exec-start PyTorch bar --model-main m.py baz", NULL,
      "PyTorch main=m.py [foo] [bar] [baz]", 0 },
    { "an abbreviation is unknown", P "--numW 2", NULL, "PyTorch main=m.py [--numW] [2]", 0 },
    { "another case is unknown", P "--appname x", NULL, "PyTorch main=m.py [--appname] [x]", 0 },
    { "a single dash is unknown", P "-numWorker 2", NULL, "PyTorch main=m.py [-numWorker] [2]", 0 },
    { "a name in two words is two tokens", P "--appName DDP Tutorial", NULL, "PyTorch main=m.py app=DDP [Tutorial]",
      0 },
    { "quotes are ordinary characters", P "--appName \"DDP Tutorial\"", NULL,
      "PyTorch main=m.py app=\"DDP [Tutorial\"]", 0 },
    { "_QUOTE_ keeps white space", P "--appName _QUOTE_DDP Tutorial_QUOTE_", NULL, "PyTorch main=m.py app=DDP Tutorial",
      0 },
    { "_QUOTE_ inside a token", P "--msd-env A=_QUOTE_b c_QUOTE_", NULL, "PyTorch main=m.py env:A=b c", 0 },
    { "_QUOTE_ for the script", P "--title _QUOTE_a b_QUOTE_", NULL, "PyTorch main=m.py [--title] [a b]", 0 },
    { "an open _QUOTE_ is refused", P "--title _QUOTE_a b", NULL, "not closed", INV },
    { "everything after -- is the script's", P "-- --numWorker 9 --appName x", NULL,
      "PyTorch main=m.py [--numWorker] [9] [--appName] [x]", 0 },
    { "-- itself is not passed", P "a -- b", NULL, "PyTorch main=m.py [a] [b]", 0 },
    { "a second -- is passed", P "-- a -- b", NULL, "PyTorch main=m.py [a] [--] [b]", 0 },
    { "a quoted -- is no separator", P "_QUOTE_--_QUOTE_ --appName x", NULL, "PyTorch main=m.py app=x [--]", 0 },
    { "a trailing --", P "--", NULL, "PyTorch main=m.py", 0 },
    { "an option's value may begin with one dash", P "--appName -x", NULL, "PyTorch main=m.py app=-x", 0 },
    { "pbmodel's own options are the script's", P "--epochs 1 --batch-size 2 --lr 3 --momentum 4", NULL,
      "PyTorch main=m.py [--epochs] [1] [--batch-size] [2] [--lr] [3] [--momentum] [4]", 0 },
    { "-o loses nothing: both words are stray", P "-o json", NULL, "PyTorch main=m.py [-o] [json]", 0 },
    { "UTF-8 passes", P "--name caf\xc3\xa9", NULL, "PyTorch main=m.py [--name] [caf\xc3\xa9]", 0 },
    /* what to run */
    { "nothing to run", "--exec-start PyTorch", NULL, "nothing to run", INV },
    { "a directory alone says not what to start", "--exec-start PyTorch --model-dir d", NULL, "--model-dir alone",
      INV },
    { "directory and main", P "--model-dir d", NULL, "PyTorch main=m.py dir=d", 0 },
    { "slashes round the directory", P "--model-dir ./a//b/", NULL, "PyTorch main=m.py dir=a/b", 0 },
    { "an absolute main", "--exec-start PyTorch --model-main /x/y.py", NULL, "PyTorch main=/x/y.py", 0 },
    { "an absolute directory", P "--model-dir /x", NULL, "relative path", INV },
    { ".. in the directory", P "--model-dir a/../b", NULL, "without \"..\"", INV },
    { "dots that are no parent", P "--model-dir a..b", NULL, "PyTorch main=m.py dir=a..b", 0 },
    { "a directory without a value", P "--model-dir", NULL, "--model-dir: its value is missing", INV },
    { "a user command", "--exec-start PyTorch --user-cmd -- sh -c ls", NULL, "PyTorch cmd [sh] [-c] [ls]", 0 },
    { "words before its -- are no part of it", "--exec-start PyTorch x --user-cmd -- ls", NULL, "PyTorch cmd [ls]", 0 },
    { "a user command without --", "--exec-start PyTorch --user-cmd", NULL, "the command is missing", INV },
    { "a user command with nothing after --", "--exec-start PyTorch --user-cmd --", NULL, "the command is missing",
      INV },
    { "an elastic user command", "--exec-start edtPyTorch --user-cmd -- ls", NULL, "not supported yet", UNS },
    { "a worker in C", "--exec-start shoalc --model-main m.py --numWorker 3 7", NULL, "shoalC main=m.py w=1-3 [7]", 0 },
    { "a prebuilt model", "--exec-start PyTorch --pbmodel-name MNIST --pbmodel-cmd train", NULL, "no prebuilt models",
      INV },
    { "a prebuilt model without a name", P "--pbmodel-name --x", NULL, "--pbmodel-name: its value is missing", INV },
    /* identity and place */
    { "the default name", E, NULL, "edtPyTorch main=m.py", 0 },
    { "a name", P "--appName lab", NULL, "PyTorch main=m.py app=lab", 0 },
    { "the caller as submit user", P "--submit-user ada", NULL, "PyTorch main=m.py", 0 },
    { "another submit user", P "--submit-user eve", NULL, "only an administrator", SHOAL_ERR_DENIED },
    { "a plan", P "--consumer /a/b", NULL, "not supported yet: --consumer", UNS },
    { "a priority", P "--msd-priority 7", NULL, "PyTorch main=m.py prio=7", 0 },
    { "priority 0", P "--msd-priority 0", NULL, "--msd-priority: \"0\" is not an integer from 1", INV },
    { "a priority below 0", P "--msd-priority -1", NULL, "--msd-priority", INV },
    { "a priority that is a word", P "--msd-priority high", NULL, "--msd-priority: \"high\"", INV },
    { "a priority with a tail", P "--msd-priority 7x", NULL, "--msd-priority", INV },
    { "a priority too large for any integer", P "--msd-priority 99999999999999999999", NULL, "--msd-priority", INV },
    { "a pending timeout", P "--msd-pending-timeout 60", NULL, "PyTorch main=m.py pend=60", 0 },
    { "a pending timeout of 0", P "--msd-pending-timeout 0", NULL, "--msd-pending-timeout", INV },
    { "a warm start", P "--msd-warm", NULL, "PyTorch main=m.py warm", 0 },
    { "an array", P "--msd-array 0-9%2 --array 5", NULL, "PyTorch main=m.py array=0-9%2 [--array] [5]", 0 },
    { "a pack", P "--msd-pack-id shoal-1", NULL, "not supported yet: --msd-pack-id", UNS },
    /* data */
    { "a data path", P "--cs-datastore-meta type=fs,data_path=mnist", NULL, "PyTorch main=m.py data=mnist", 0 },
    { "slashes round a data path", P "--cs-datastore-meta data_path=/a/b/", NULL, "PyTorch main=m.py data=a/b", 0 },
    { "the root as data path", P "--cs-datastore-meta type=fs,data_path=/", NULL, "PyTorch main=m.py", 0 },
    { "another type of data", P "--cs-datastore-meta type=s3", NULL, "type must be fs", INV },
    { ".. in a data path", P "--cs-datastore-meta data_path=a/../../b", NULL, "\"..\"", INV },
    { "data without a name", P "--cs-datastore-meta mnist", NULL, "NAME=VALUE", INV },
    { "a data source in args", P "--data-source=[{}]", NULL, "not supported yet: --data-source", UNS },
    /* Python environment */
    { "a conda home has no effect", P "--conda-home /opt/conda", NULL, "PyTorch main=m.py note", 0 },
    { "the conda environment that WMLA ships", P "--conda-env-name dlipy3", NULL, "PyTorch main=m.py note", 0 },
    { "an older one of its", P "--conda-env-name dlipy36-wmlce170", NULL, "PyTorch main=m.py note", 0 },
    { "a conda environment", P "--conda-env-name dl", NULL, "not supported yet: --conda-env-name", UNS },
    { "a conda environment without a name", P "--conda-env-name", NULL, "--conda-env-name: its value is missing", INV },
    { "a conda file", P "--conda-env-yaml e.yml", NULL, "not supported yet: --conda-env-yaml", UNS },
    { "a Python version is ignored", P "--python-version 3.6", NULL, "PyTorch main=m.py", 0 },
    { "an instance group is ignored", P "--ig dli", NULL, "PyTorch main=m.py", 0 },
    { "an ignored option may lack its value", P "--ig", NULL, "PyTorch main=m.py", 0 },
    /* workers and driver */
    { "elastic workers", E "--numWorker 6", NULL, "edtPyTorch main=m.py w=1-6", 0 },
    { "the last number wins", E "--numWorker 6 --numWorker=3", NULL, "edtPyTorch main=m.py w=1-3", 0 },
    { "no workers", E "--numWorker 0", NULL, "--numWorker: \"0\" is not an integer of 1 or more", INV },
    { "half a worker", E "--numWorker 1.5", NULL, "--numWorker", INV },
    { "workers without a number", E "--numWorker", NULL, "--numWorker: its value is missing", INV },
    { "more workers than a framework has", P "--numWorker 2", NULL,
      "above the 1 that framework PyTorch allows; edtPyTorch trains with several workers (FabricModel in the place of "
      "DistributedDataParallel)", INV },
    { "more workers than anything has", E "--numWorker 100000", NULL, "that framework edtPyTorch allows", INV },
    { "the old name of workers", E "--edt-options maxWorkers=5,x=y", NULL, "edtPyTorch main=m.py w=1-5 note", 0 },
    { "only what is not known", E "--edt-options=x=y,,z,mode=async", NULL, "edtPyTorch main=m.py note note", 0 },
    { "the mode that there is", E "--edt-options maxWorkers=5,mode=SYNC_GDC", NULL, "edtPyTorch main=m.py w=1-5", 0 },
    { "a mode that is done in another way", E "--edt-options mode=async,maxWorkers=5", NULL,
      "edtPyTorch main=m.py w=1-5 note", 0 },
    { "another one", E "--edt-options mode=Sync", NULL, "edtPyTorch main=m.py note", 0 },
    { "no mode at all", E "--edt-options mode=", NULL, "is none of sync, sync_gdc, async and async_gdc", INV },
    { "a mode that nobody knows", E "--edt-options mode=asyncs", NULL, "mode=asyncs is none of", INV },
    { "the old name with 0", E "--edt-options maxWorkers=0", NULL, "--edt-options", INV },
    { "a cpu job", E "--workerDeviceType cpu", NULL, "edtPyTorch main=m.py cpu", 0 },
    { "a gpu job in capitals", E "--workerDeviceType GPU", NULL, "edtPyTorch main=m.py gpu", 0 },
    { "another device", E "--workerDeviceType tpu", NULL, "one of |cpu|gpu|", INV },
    { "an empty device", E "--workerDeviceType=", NULL, "its value is missing", INV },
    { "one device", E "--workerDeviceNum 1", NULL, "edtPyTorch main=m.py", 0 },
    { "no device means cpu", E "--workerDeviceNum 0", NULL, "edtPyTorch main=m.py cpu", 0 },
    { "two devices", P "--workerDeviceNum 2", NULL, "not supported yet: --workerDeviceNum", UNS },
    { "too many devices", P "--workerDeviceNum 99", NULL, "above the 8", INV },
    { "a fraction of a device", P "--workerDeviceNum 0.5", NULL, "--workerDeviceNum", INV },
    { "the old name of devices", P "--gpuPerWorker 1", NULL, "PyTorch main=m.py", 0 },
    { "memory in G", P "--workerMemory 8G", NULL, "PyTorch main=m.py mem=8589934592 note", 0 },
    { "memory in GiB", P "--workerMemory 8gib", NULL, "PyTorch main=m.py mem=8589934592 note", 0 },
    { "memory without a unit is MiB", P "--workerMemory 512", NULL, "PyTorch main=m.py mem=536870912 note", 0 },
    { "memory with a fraction", P "--workerMemory 1.5g", NULL, "PyTorch main=m.py mem=1610612736 note", 0 },
    { "memory in another unit", P "--workerMemory 8X", NULL, "a size such as", INV },
    { "memory below 0", P "--workerMemory -1G", NULL, "a size such as", INV },
    { "memory that ends in a point", P "--workerMemory 1.G", NULL, "a size such as", INV },
    { "a limit of cpus", P "--workerCPULimit 500m", NULL, "not supported yet: --workerCPULimit", UNS },
    { "a limit that is no quantity", P "--workerCPULimit abc", NULL, "a quantity such as", INV },
    { "a limit of memory", P "--workerMemoryLimit 4G", NULL, "not supported yet: --workerMemoryLimit", UNS },
    { "no parameter servers", P "--numPs 0", NULL, "PyTorch main=m.py", 0 },
    { "parameter servers", E "--numPs 2", NULL, "edtPyTorch main=m.py note", 0 },
    { "parameter servers below 0", E "--numPs -1", NULL, "--numPs", INV },
    { "a driver where there is one", E "--numDriver 1", NULL, "edtPyTorch main=m.py", 0 },
    { "no driver where there is one", E "--numDriver 0", NULL, "not supported yet: --numDriver", UNS },
    { "two drivers", E "--numDriver 2", NULL, "from 0 to 1", INV },
    { "a driver on a cpu", E "--driverDeviceType cpu --driverDeviceNum 1", NULL, "edtPyTorch main=m.py", 0 },
    { "a driver on a gpu", E "--driverDeviceType gpu", NULL, "not supported yet: --driverDeviceType", UNS },
    { "a driver's memory", E "--driverMemory 2G", NULL, "edtPyTorch main=m.py dmem=2147483648 note", 0 },
    { "another scheduler's syntax", P "--lsf-gpu-syntax num=1", NULL, "PyTorch main=m.py note", 0 },
    { "exclusive", P "--exclusive", NULL, "not supported yet: --exclusive", UNS },
    { "arguments of MPI", P "--mpiarg x", NULL, "not supported yet: --mpiarg", UNS },
    /* security, image, environment */
    { "a user id", P "--sc-runasuser 1000", NULL, "not supported yet: --sc-runasuser", UNS },
    { "a user id that is a name", P "--sc-runasuser ada", NULL, "--sc-runasuser: \"ada\"", INV },
    { "environment in order", P "--msd-env A=1 --msd-env B=x=y,z", NULL, "PyTorch main=m.py env:A=1 env:B=x=y,z", 0 },
    { "an empty variable", P "--msd-env A=", NULL, "PyTorch main=m.py env:A=", 0 },
    { "the other form of a variable", P "--msd-env=A=1", NULL, "PyTorch main=m.py env:A=1", 0 },
    { "a variable without =", P "--msd-env A", NULL, "NAME=VALUE", INV },
    { "a variable that starts with a digit", P "--msd-env 1A=2", NULL, "NAME=VALUE", INV },
    { "a variable without a name", P "--msd-env =2", NULL, "NAME=VALUE", INV },
    { "attributes and labels", P "--msd-attr a=b --msd-label c=d", NULL, "PyTorch main=m.py attr:a=b label:c=d", 0 },
    { "an image has no effect", P "--msd-image-name i:1 --msd-image-pull-policy never", NULL,
      "PyTorch main=m.py note note", 0 },
    { "another pull policy", P "--msd-image-pull-policy Sometimes", NULL, "one of", INV },
    { "a node selector", P "--msd-task12n-node-selector a=b", NULL, "not supported yet: --msd-task12n-node-selector",
      UNS },
    { "a node selector without =", P "--msd-task0-node-selector a", NULL, "NAME=VALUE", INV },
    { "affinity", P "--msd-podaffinity-rule preferred", NULL, "not supported yet: --msd-podaffinity-rule", UNS },
    { "another affinity", P "--msd-podaffinity-rule maybe", NULL, "one of", INV },
    /* metrics and logs */
    { "targets of metrics", P "--cs-url-meta http://x --cs-url-bearer t0ken", NULL, "PyTorch main=m.py note note", 0 },
    { "a debug level", P "--debug-level debug", NULL, "PyTorch main=m.py debug=debug", 0 },
    { "another debug level", P "--debug-level loud", NULL, "one of", INV },
    /* a client's own */
    { "connection options go", P "--rest-host h --rest-port 1 --username u --password p", NULL, "PyTorch main=m.py",
      0 },
    { "a token goes", P "--jwt-token=abc x", NULL, "PyTorch main=m.py [x]", 0 },
    { "a password after -- goes", P "-- --password=p x", NULL, "PyTorch main=m.py [x]", 0 },
    { "a script's own word stays", P "-- --passwords=p", NULL, "PyTorch main=m.py [--passwords=p]", 0 },
    /* hardwareSpec */
    { "hardware stands above args", E "--numWorker 6", "{\"hardwareSpec\":{\"nodes\":{\"num_nodes\":2}}}",
      "edtPyTorch main=m.py w=1-2 cpu", 0 },
    { "numbers as texts", E, "{'hardwareSpec':{'nodes':{'num_nodes':'4','cpu':{'units':'2'},'mem':{'size':'8Gi'}}}}",
      "edtPyTorch main=m.py w=1-4 cpu mem=8589934592 cpu=2000m", 0 },
    { "a gpu each", E, "{\"hardwareSpec\":{\"nodes\":{\"gpu\":{\"num_gpu\":1,\"gpu_profile\":\"full\"}}}}",
      "edtPyTorch main=m.py gpu", 0 },
    { "slices", E, "{\"hardwareSpec\":{\"nodes\":{\"gpu\":{\"num_gpu\":1,\"gpu_profile\":\"slice\"}}}}", "slice", UNS },
    { "an unknown profile", E, "{\"hardwareSpec\":{\"nodes\":{\"gpu\":{\"gpu_profile\":\"x\"}}}}", "gpu_profile", INV },
    { "a name of hardware", E, "{\"hardwareSpec\":{\"name\":\"V100x2\"}}", "no specification of that name", INV },
    { "hardware that is a list", E, "{\"hardwareSpec\":[]}", "must be a JSON object", INV },
    { "no nodes", E, "{\"hardwareSpec\":{\"nodes\":{\"num_nodes\":0}}}", "num_nodes must be", INV },
    { "hardware that is null", P, "{\"hardwareSpec\":null,\"dataSource\":null}", "PyTorch main=m.py", 0 },
    { "a driver that the framework has not", P, "{\"hardwareSpec\":{\"nodes\":{\"num_drivers\":1}}}", "PyTorch main=m.py cpu", 0 },
    { "no driver where there must be one", E, "{\"hardwareSpec\":{\"nodes\":{\"num_drivers\":0}}}", "numDriver 0", UNS },
    { "memory that is none", E, "{\"hardwareSpec\":{\"nodes\":{\"mem\":{\"size\":\"big\"}}}}", "mem.size", INV },
    { "the driver's memory", E,
      "{\"hardwareSpec\":{\"nodes\":{\"num_drivers\":1,\"drivers\":{\"mem\":{\"size\":\"1Gi\"}}}}}",
      "edtPyTorch main=m.py cpu dmem=1073741824", 0 },
    /* dataSource */
    { "a data source", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"mnist/\"}}]}",
      "PyTorch main=m.py data=mnist", 0 },
    { "a data source stands above the option", P "--cs-datastore-meta data_path=x",
      "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"y\"}}]}", "PyTorch main=m.py data=y", 0 },
    { "no data source", P, "{\"dataSource\":[]}", "PyTorch main=m.py", 0 },
    { "a connection", P, "{\"dataSource\":[{\"type\":\"connection\"}]}", "connection", UNS },
    { "a volume", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"volume\":\"a::b\"}}]}", "volume", UNS },
    { "another type of source", P, "{\"dataSource\":[{\"type\":\"ftp\"}]}", "type must be", INV },
    { "a location that is a text", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":\"x\"}]}", "location must be",
      INV },
    { ".. in a source", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"../x\"}}]}", "\"..\"", INV },
    { "two paths: the folder that has both", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"a/b/c, /a/b/d/\"}}]}",
      "PyTorch main=m.py data=a/b", 0 },
    { "a folder and what is in it", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"a/b,a,\"}}]}", "PyTorch main=m.py data=a", 0 },
    { "names that begin alike", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"ab,abc\"}}]}", "PyTorch main=m.py", 0 },
    { ".. behind a comma", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"x, ../y\"}}]}", "\"..\"", INV },
    { "two sources: the first one counts", P,
      "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"x\"}},{\"type\":\"fs\",\"location\":{\"paths\":\"y\"}}]}",
      "PyTorch main=m.py data=x", 0 },
    { "two sources, one of them bad", P, "{\"dataSource\":[{\"type\":\"fs\",\"location\":{\"paths\":\"x\"}},{\"type\":\"ftp\"}]}", "type must be",
      INV },
    { "a source that is no list", P, "{\"dataSource\":{}}", "must be a JSON array", INV },
};

static enum shoal_err parse_row(struct arena *arena, const struct row *row, const struct shoal_user *user,
                                struct args_result *result, struct shoal_msg *msg)
{
    struct args_input input = { .args = row->args, .caller = user };
    struct json_input *json = NULL;
    enum shoal_err err;

    input.frameworks = shoal_frameworks_builtin(&input.framework_count);
    if (row->data != NULL) {
        assert_int_equal(json_input_parse_lenient(shoal_view_text(row->data), &json, msg), SHOAL_OK);
        input.data = json_input_root(json);
    }
    err = args_parse(arena, &input, result, msg);
    if (json != NULL)
        json_input_free(json);
    return err;
}

static void test_rows(void **state)
{
    unsigned failed = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct arena arena = { 0 };
        struct args_result result;
        struct shoal_msg msg = { "" };
        char got[2048] = "";
        enum shoal_err err = parse_row(&arena, &rows[i], &ada, &result, &msg);
        bool ok = err == rows[i].err;

        if (err == SHOAL_OK)
            describe(&result, got, sizeof(got));
        ok = ok && (err == SHOAL_OK ? strcmp(got, rows[i].want) == 0 : strstr(msg.text, rows[i].want) != NULL);
        if (!ok) {
            print_error("FAIL args: %s: want \"%s\" got %s \"%s\"\n", rows[i].name, rows[i].want, shoal_err_name(err),
                        err == SHOAL_OK ? got : msg.text);
            failed++;
        }
        arena_deinit(&arena);
    }
    assert_int_equal(failed, 0);
}

static void test_administrator(void **state)
{
    const struct row row = { .args = P "--submit-user eve" };
    struct arena arena = { 0 };
    struct args_result result;
    struct shoal_msg msg;

    (void)state;
    assert_int_equal(parse_row(&arena, &row, &root, &result, &msg), SHOAL_ERR_UNSUPPORTED);
    arena_deinit(&arena);
}

/* A2: a secret is nowhere. */
static void test_secrets(void **state)
{
    static const struct {
        const char *args;
        const char *kept;
    } cases[] = {
        { P "--password=secret a", "--exec-start PyTorch --model-main m.py a " },
        { P "--password secret a", "--exec-start PyTorch --model-main m.py a " },
        { P "--jwt-token secret", "--exec-start PyTorch --model-main m.py " },
        { P "-- --password=secret b", "--exec-start PyTorch --model-main m.py -- b " },
        { P "--cs-url-bearer secret a", "--exec-start PyTorch --model-main m.py --cs-url-bearer *** a " },
        { P "--cs-url-bearer=secret a", "--exec-start PyTorch --model-main m.py --cs-url-bearer=*** a " },
        { P "--cs-rmq-meta host=h,password=secret", "--exec-start PyTorch --model-main m.py --cs-rmq-meta *** " },
        { P "--cs-url-bearer _QUOTE_secret x_QUOTE_", "--exec-start PyTorch --model-main m.py --cs-url-bearer *** " },
        { "  --exec-start   PyTorch\n--model-main m.py", "--exec-start PyTorch --model-main m.py " },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct row row = { .args = cases[i].args,
                                 .data = "{\"args\":\"--password=secret\",\"hardwareSpec\":{}}" };
        struct arena arena = { 0 };
        struct args_result result;
        struct shoal_msg msg;

        assert_int_equal(parse_row(&arena, &row, &ada, &result, &msg), SHOAL_OK);
        assert_string_equal(result.args, cases[i].kept);
        assert_string_equal(result.data_json, "{\"hardwareSpec\":{}}");
        for (size_t n = 0; n < result.options.notes.count; n++)
            assert_null(strstr(result.options.notes.items[n], "secret"));
        for (size_t n = 0; n < result.options.script_argv.count; n++)
            assert_null(strstr(result.options.script_argv.items[n], "secret"));
        arena_deinit(&arena);
    }
}

/* execs-api 4.3. */
static void test_query(void **state)
{
    static const struct {
        const char *query;
        const char *want; /* NULL: none; "!": refused */
    } cases[] = {
        { "args=--exec-start%20PyTorch", "--exec-start PyTorch" },
        { "args=a+b", "a b" },
        { "args=a%2Bb", "a+b" },
        { "args=a%20b+c", "a b+c" },
        { "sigName=x&args=a+b", "a b" },
        { "args=a&sigName=x", "a" },
        { "args=a&b", "a&b" },
        { "args=a&b&args=c", "a&b" },
        { "args=a%26b", "a&b" },
        { "foo=1&args=a", "a" },
        { "args=", "" },
        { "argsx=a", NULL },
        { "xargs=a", NULL },
        { "", NULL },
        { "args=a%0Ab", "a\nb" },
        { "args=caf%C3%A9", "caf\xc3\xa9" },
        { "args=a=b", "a=b" },
        { "args=100%25", "100%" },
        { "args=a%", "!" },
        { "args=a%2", "!" },
        { "args=a%zz", "!" },
        { "args=a%00b", "!" },
        { "args=%ff%fe", "!" },
        { "args=a&logType=x&b", "a" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct arena arena = { 0 };
        struct shoal_msg msg;
        const char *args = "?";
        enum shoal_err err = args_from_query(&arena, shoal_view_text(cases[i].query), &args, &msg);

        if (cases[i].want != NULL && strcmp(cases[i].want, "!") == 0) {
            assert_int_equal(err, SHOAL_ERR_INVALID);
        } else {
            assert_int_equal(err, SHOAL_OK);
            if (cases[i].want == NULL)
                assert_null(args);
            else
                assert_string_equal(args, cases[i].want);
        }
        arena_deinit(&arena);
    }
}

static void test_too_long(void **state)
{
    char *text = malloc(SHOAL_ARGS_BYTES_MAX + 2);
    const struct row row = { .args = text };
    struct arena arena = { 0 };
    struct args_result result;
    struct shoal_msg msg;

    (void)state;
    memset(text, 'a', SHOAL_ARGS_BYTES_MAX + 1);
    text[SHOAL_ARGS_BYTES_MAX + 1] = '\0';
    assert_int_equal(parse_row(&arena, &row, &ada, &result, &msg), SHOAL_ERR_TOO_BIG);
    arena_deinit(&arena);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),  cmocka_unit_test(test_administrator), cmocka_unit_test(test_secrets),
        cmocka_unit_test(test_query), cmocka_unit_test(test_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
