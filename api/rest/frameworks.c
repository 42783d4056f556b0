/* The six framework names of WMLA's Kubernetes generations, and the older ones that still stand in users' scripts. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "shoal/backend.h"

#include "args.h"

#include "shoal/banned.h"

static const char *const pytorch_desc[] = {
    "PyTorch: one process, as its script says",
    "Examples:",
    "  shoal job run --framework PyTorch --model-main train.py --model-dir my_model -- --epochs 3",
    "  dlicmd --exec-start PyTorch --model-main train.py --model-dir my_model --workerDeviceNum 1 --epochs 3",
    NULL,
};
static const char *const edt_pytorch_desc[] = {
    "edtPyTorch: elastic training with FabricModel; workers join and leave while it runs",
    "Examples:",
    "  shoal job run --framework edtPyTorch --workers 6 --model-main main.py --model-dir my_model",
    "  dlicmd --exec-start edtPyTorch --numWorker 6 --model-main main.py --model-dir my_model",
    NULL,
};
static const char *const tensorflow_desc[] = {
    "TensorFlow: one process, as its script says. The Python of each host must have tensorflow",
    "Examples:",
    "  shoal job run --framework tensorflow --model-main train.py --model-dir my_model -- --epochs 3",
    "  dlicmd --exec-start tensorflow --model-main train.py --model-dir my_model --workerDeviceNum 1 --epochs 3",
    NULL,
};
static const char *const edt_tensorflow_desc[] = {
    "edtTensorflow: elastic training of a TF.Keras model with FabricModel. The Python of each host must have tensorflow 2.15",
    "Examples:",
    "  shoal job run --framework edtTensorflow --workers 6 --model-main main.py --model-dir my_model",
    "  dlicmd --exec-start edtTensorflow --numWorker 6 --model-main main.py --model-dir my_model",
    NULL,
};
static const char *const c_desc[] = {
    "shoalC: elastic training by a program of yours that calls libshoal (shoal/collective.h)",
    "Examples:",
    "  shoal job run --framework shoalC --workers 6 --model-main fit --model-dir my_model",
    NULL,
};
static const char *const later_desc[] = { "Known, not supported yet.", NULL };

static const struct shoal_framework builtin[] = {
    { .name = "PyTorch",
      .version = "2",
      .app_name = "SingleNodePytorchTrain",
      .exec_mode = "single",
      .backend = "PyTorch",
      .worker_memory = "4G",
      .desc = pytorch_desc,
      .supported = true,
      .workers_default = 1,
      .workers_max = 1,
      .gpus_per_worker_max = 8 },
    { .name = "distPyTorch",
      .version = "2",
      .app_name = "DistributePyTorchTrain",
      .exec_mode = "distributed",
      .backend = "PyTorch",
      .worker_memory = "4G",
      .desc = later_desc,
      .workers_default = 1,
      .workers_max = SHOAL_JOB_WORKERS_MAX,
      .gpus_per_worker_max = 8 },
    { .name = "tensorflow",
      .version = "2",
      .app_name = "SingleNodeTensorflowTrain",
      .exec_mode = "single",
      .backend = "TensorFlow",
      .worker_memory = "8G",
      .desc = tensorflow_desc,
      .supported = true,
      .workers_default = 1,
      .workers_max = 1,
      .gpus_per_worker_max = 8 },
    { .name = "disttensorflow",
      .version = "2",
      .app_name = "DistributeTensorflow2xTrain",
      .exec_mode = "distributed",
      .backend = "TensorFlow",
      .worker_memory = "8G",
      .desc = later_desc,
      .workers_default = 1,
      .workers_max = SHOAL_JOB_WORKERS_MAX,
      .gpus_per_worker_max = 8 },
    { .name = "edtPyTorch",
      .version = "2",
      .app_name = "ElasticPyTorchTrain",
      .exec_mode = "distributed",
      .backend = "pytorch",
      .worker_memory = "4G",
      .desc = edt_pytorch_desc,
      .elastic = true,
      .supported = true,
      .workers_default = 1,
      .workers_max = SHOAL_JOB_WORKERS_MAX,
      .gpus_per_worker_max = 1 },
    { .name = "edtTensorflow",
      .version = "2",
      .app_name = "ElasticTensorflow1xTrain",
      .exec_mode = "distributed",
      .backend = "tensorflow",
      .worker_memory = "8G",
      .desc = edt_tensorflow_desc,
      .elastic = true,
      .supported = true,
      .workers_default = 1,
      .workers_max = SHOAL_JOB_WORKERS_MAX,
      .gpus_per_worker_max = 1 },
    { .name = "shoalC",
      .version = "1",
      .app_name = "ElasticCTrain",
      .exec_mode = "distributed",
      .backend = "C",
      .worker_memory = "4G",
      .desc = c_desc,
      .elastic = true,
      .supported = true,
      .workers_default = 1,
      .workers_max = SHOAL_JOB_WORKERS_MAX,
      .gpus_per_worker_max = 1 },
};

/* training-contract 1.1; "" = refused. */
static const char *const aliases[][2] = {
    { "keras", "tensorflow" },
    { "edtKeras", "edtTensorflow" },
    { "tensorflow_v1", "tensorflow" },
    { "tensorflow1100", "tensorflow" },
    { "tensorflow200_alpha", "tensorflow" },
    { "PyTorch041", "PyTorch" },
    { "disttensorflow_v1", "disttensorflow" },
    { "elasticPyTorch", "edtPyTorch" },
    { "elasticTensorFlow", "edtTensorflow" },
    { "ddlCaffe", "" },
    { "ddlTensorFlow", "" },
    { "PowerAICaffeIBM", "" },
};

const struct shoal_framework *shoal_frameworks_builtin(size_t *count)
{
    *count = sizeof(builtin) / sizeof(builtin[0]);
    return builtin;
}

static const struct shoal_framework *find_name(const struct shoal_framework *frameworks, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(frameworks[i].name, name) == 0)
            return &frameworks[i];
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(frameworks[i].name, name) == 0)
            return &frameworks[i];
    return NULL;
}

const char *args_framework_of_several(const struct shoal_framework *framework)
{
    if (strcmp(framework->name, "PyTorch") == 0 || strcmp(framework->name, "distPyTorch") == 0)
        return "; edtPyTorch trains with several workers (FabricModel in the place of DistributedDataParallel)";
    if (strcmp(framework->name, "tensorflow") == 0 || strcmp(framework->name, "disttensorflow") == 0)
        return "; edtTensorflow trains with several workers (FabricModel in the place of tf.distribute)";
    return "";
}

const struct shoal_framework *args_framework_find(const struct shoal_framework *frameworks, size_t count,
                                                  const char *name, struct shoal_msg *msg)
{
    const struct shoal_framework *found = find_name(frameworks, count, name);
    char known[256] = "";
    size_t len = 0;

    for (size_t i = 0; found == NULL && i < sizeof(aliases) / sizeof(aliases[0]); i++) {
        if (strcasecmp(aliases[i][0], name) != 0)
            continue;
        if (aliases[i][1][0] == '\0') {
            (void)shoal_fail(msg, SHOAL_ERR_UNSUPPORTED,
                             "framework %s is not supported: IBM DDL and Caffe are gone; use edtPyTorch",
                             aliases[i][0]);
            return NULL;
        }
        found = find_name(frameworks, count, aliases[i][1]);
    }
    if (found != NULL)
        return found;
    for (size_t i = 0; i < count && len < sizeof(known); i++)
        if (frameworks[i].supported)
            len += (size_t)snprintf(known + len, sizeof(known) - len, "%s%s", len == 0 ? "" : ", ", frameworks[i].name);
    (void)shoal_fail(msg, SHOAL_ERR_INVALID, "unknown framework %.48s; there are %s", name, known);
    return NULL;
}
