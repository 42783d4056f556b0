/* Knows the variables that an interpreter reads while it starts, and those that the C library reads before that (warm.h, W1). */
#include "warm.h"

#include <string.h>

#include "shoal/banned.h"

static bool begins_with_any(const char *pair, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(pair, list[i], strlen(list[i])) == 0)
            return true;
    return false;
}

bool warm_keeps(const char *pair, enum shoal_warm kind)
{
    static const char *const plain[] = { "PYTHON", "LD_", "LC_",   "LANG",  "MALLOC_",
                                         "GLIBC_", "TZ",  "HOME=", "USER=", "COVERAGE_PROCESS_START=" };
    /* Those that torch, NumPy and the libraries below them read when they are loaded, and where they look for files. */
    static const char *const framework[] = { "OMP_",         "GOMP_",  "KMP_",   "MKL_",    "OPENBLAS_", "GOTO_",
                                             "NUMEXPR_",     "BLIS_",  "NPY_",   "NUMPY_",  "TORCH",     "ATEN_",
                                             "PYTORCH",      "CAFFE2", "DNNL_",  "ONEDNN_", "NCCL_",     "NVIDIA_TF32_",
                                             "XDG_",         "CUDA_",  "USE_",   "TRITON_", "NNPACK",    "KINETO_",
                                             "FABRIC_HOME=", "PATH=",  "SYMPY_", "MPMATH_" };

    SHOAL_ASSERT(kind == SHOAL_WARM_SCRIPT || kind == SHOAL_WARM_FRAMEWORK);
    if (strncmp(pair, "PYTHONPATH=", 11) == 0)
        return false;
    if (begins_with_any(pair, plain, sizeof(plain) / sizeof(plain[0])))
        return true;
    /* Read when a GPU is first used, and so not before a script begins (W5). */
    return kind == SHOAL_WARM_FRAMEWORK && strncmp(pair, "CUDA_VISIBLE_DEVICES=", 21) != 0 &&
           begins_with_any(pair, framework, sizeof(framework) / sizeof(framework[0]));
}
