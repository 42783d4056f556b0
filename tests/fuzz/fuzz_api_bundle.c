/* libFuzzer: the first byte chooses: an uploaded archive, or a canonical bundle from a peer. What is made from an
 * archive must check. */
#include "shoal/bundle.h"
#include "shoal/buf.h"

#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void from_archive(int fd, size_t len)
{
    const struct shoal_bundle_upload upload = { .fd = fd, .bytes = len, .name = "" };
    const struct shoal_bundle_options options = { .uploads = &upload,
                                                  .upload_count = 1,
                                                  .single_name = "main.py",
                                                  .prefix = "md",
                                                  .spool_dir = "/tmp",
                                                  .limits = { .entries_max = 100, .bytes_max = 1u << 20 } };
    struct shoal_bundle_info info;
    struct shoal_bundle_info again;
    struct shoal_msg msg;
    int bundle = -1;

    if (shoal_bundle_make(&options, &bundle, &info, &msg) != SHOAL_OK) {
        SHOAL_ASSERT(bundle == -1 && msg.text[0] != '\0');
        return;
    }
    SHOAL_ASSERT(shoal_bundle_check(bundle, &again, &msg) == SHOAL_OK);
    SHOAL_ASSERT(shoal_hash_equal(info.hash, again.hash) && info.bundle_bytes == again.bundle_bytes);
    (void)close(bundle);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct shoal_bundle_info info;
    struct shoal_msg msg;
    bool found;
    int fd;

    if (len < 2)
        return 0;
    fd = memfd_create("fuzz", MFD_CLOEXEC);
    SHOAL_ASSERT(fd >= 0 && write(fd, bytes + 1, len - 1) == (ssize_t)(len - 1));
    if (bytes[0] % 2 == 0)
        from_archive(fd, len - 1);
    else if (shoal_bundle_check(fd, &info, &msg) == SHOAL_OK)
        SHOAL_ASSERT(shoal_bundle_find(fd, "main.py", &found, &msg) == SHOAL_OK);
    (void)close(fd);
    return 0;
}
