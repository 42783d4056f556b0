/* Each failed call of CUDA is SHOAL_ERR_DEVICE and names the call and the device (D2 of device.h); no device is
 * UNSUPPORTED and says what to look at. tests/fake/gpu_fake.c stands for the driver; whole steps on it:
 * tests/system/test_comm_device.py. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shoal/device.h"

#include "shoal/banned.h"

enum moment { AT_OPEN, AT_ALLOCATE, AT_WRITE, AT_READ };

static const struct {
    const char *call; /* as the fake calls it */
    int code;
    enum moment moment;
    enum shoal_err err;
    const char *says;
} cases[] = {
    { "cuInit", 100, AT_OPEN, SHOAL_ERR_UNSUPPORTED, "cuInit: " },
    { "cuDevicePrimaryCtxRetain", 46, AT_OPEN, SHOAL_ERR_DEVICE,
      "cuDevicePrimaryCtxRetain on device 0 (Pretence GPU): " },
    { "cuMemAlloc_v2", 2, AT_ALLOCATE, SHOAL_ERR_DEVICE, "use a smaller batch, or a slot with more memory" },
    { "cuMemcpyHtoDAsync_v2", 700, AT_WRITE, SHOAL_ERR_DEVICE, "cuMemcpyHtoDAsync on device 0 (Pretence GPU): " },
    { "cuMemcpyDtoHAsync_v2", 700, AT_READ, SHOAL_ERR_DEVICE, "cuMemcpyDtoHAsync on device 0 (Pretence GPU): " },
    { "cuStreamSynchronize", 719, AT_READ, SHOAL_ERR_DEVICE, "cuStreamSynchronize on device 0 (Pretence GPU): " },
};

static void fake_found(void)
{
    char path[PATH_MAX];
    char library[PATH_MAX + 32];
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);

    assert_true(len > 0);
    path[len] = '\0';
    *strrchr(path, '/') = '\0';
    (void)snprintf(library, sizeof(library), "%s/../fake/libgpu_fake.so", path);
    if (access(library, R_OK) != 0)
        fail_msg("%s: missing; make tools", library);
    assert_int_equal(setenv("SHOAL_CUDA", library, 1), 0);
    assert_int_equal(setenv("SHOAL_NCCL", library, 1), 0);
}

/* The fake counts the calls of the name that is to fail, and every case makes one of them. */
static void fail_next(unsigned made, const char *call, int code)
{
    char value[96];

    (void)snprintf(value, sizeof(value), "%s:%u:%d", call, made + 1, code);
    assert_int_equal(setenv("GPU_FAKE_FAIL", value, 1), 0);
}

/* Makes the call of that moment; all before it must be right. */
static enum shoal_err at_moment(struct shoal_comm *comm, unsigned number)
{
    struct shoal_dev_buf buf = { 0 };
    uint8_t bytes[64] = { 7 };
    enum shoal_err err;

    if (cases[number].moment == AT_OPEN)
        fail_next(number, cases[number].call, cases[number].code);
    err = shoal_device_open(comm, 0);
    if (cases[number].moment == AT_OPEN)
        return err;
    assert_int_equal(err, SHOAL_OK);
    if (cases[number].moment == AT_ALLOCATE)
        fail_next(number, cases[number].call, cases[number].code);
    err = shoal_device_allocate(comm, sizeof(bytes), &buf);
    if (cases[number].moment == AT_ALLOCATE)
        return err;
    assert_int_equal(err, SHOAL_OK);
    if (cases[number].moment == AT_READ)
        assert_int_equal(shoal_device_write(comm, buf.address, bytes, sizeof(bytes), NULL), SHOAL_OK);
    fail_next(number, cases[number].call, cases[number].code);
    err = cases[number].moment == AT_READ ? shoal_device_read(comm, bytes, buf.address, sizeof(bytes), NULL)
                                          : shoal_device_write(comm, buf.address, bytes, sizeof(bytes), NULL);
    assert_int_equal(shoal_device_free(comm, &buf), SHOAL_OK);
    return err;
}

static void a_failed_call_names_itself_and_the_device(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_comm *comm;

        assert_int_equal(shoal_comm_open_solo(&comm, NULL), SHOAL_OK);
        assert_int_equal(at_moment(comm, i), cases[i].err);
        if (strstr(shoal_comm_error(comm), cases[i].says) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].call, shoal_comm_error(comm), cases[i].says);
        assert_int_equal(unsetenv("GPU_FAKE_FAIL"), 0);
        shoal_comm_close(comm);
    }
}

static void a_device_that_is_not_there_is_unsupported(void **state)
{
    struct shoal_comm *comm;

    (void)state;
    assert_int_equal(shoal_comm_open_solo(&comm, NULL), SHOAL_OK);
    assert_int_equal(shoal_device_open(comm, 3), SHOAL_ERR_UNSUPPORTED);
    assert_non_null(strstr(shoal_comm_error(comm), "device 3: this process sees 1 (CUDA_VISIBLE_DEVICES="));
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
    assert_int_equal(shoal_device_open(comm, 0), SHOAL_ERR_UNSUPPORTED);
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    assert_int_equal(shoal_device_open(comm, 0), SHOAL_OK);
    assert_int_equal(shoal_device_open(comm, 0), SHOAL_ERR_EXISTS);
    shoal_comm_close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_call_names_itself_and_the_device),
        cmocka_unit_test(a_device_that_is_not_there_is_unsupported),
    };

    fake_found();
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
