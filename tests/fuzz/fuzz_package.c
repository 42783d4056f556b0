/* libFuzzer: the bytes are a model.json, in a package of two files; or, the first byte says so, a whole bundle. */
#include "api/rest/package_check.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check(enum shoal_err err, const struct package *package, const struct shoal_msg *msg)
{
    if (err != SHOAL_OK)
        SHOAL_ASSERT(msg->text[0] != '\0');
    else
        SHOAL_ASSERT(package->kernel_path[0] != '/' && strncmp(package->kernel_path, "../", 3) != 0 &&
                     strstr(package->kernel_path, "/../") == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    const struct package_entry entries[] = { { .path = "a/README.md", .place = { 0, 1 } },
                                             { .path = "a/kernel.py", .place = { 1, 1 } },
                                             { .path = "a/model.json", .place = { 2, len } } };
    struct package package = { .name = "" };
    struct shoal_msg msg = { .text = "" };
    size_t found = 0;
    int fd;

    if (len < 1)
        return 0;
    SHOAL_ASSERT(package_find_model(entries, 3, &found, &msg) == SHOAL_OK && found == 2);
    if (bytes[0] % 2 == 0) {
        check(package_check(entries, 3, found, shoal_view_of(bytes + 1, len - 1),
                            bytes[0] % 4 == 0 ? PACKAGE_WMLA : PACKAGE_OURS, &package, &msg),
              &package, &msg);
        return 0;
    }
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    SHOAL_ASSERT(fd >= 0 && write(fd, bytes + 1, len - 1) == (ssize_t)(len - 1));
    check(package_check_bundle(fd, PACKAGE_OURS, &package, &msg), &package, &msg);
    (void)close(fd);
    return 0;
}
