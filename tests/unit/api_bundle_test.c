/* Bundles: good archives of all forms, hostile ones, the hash, and the way back to a folder. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/cli/cli_internal.h"
#include "shoal/bundle.h"
#include "shoal/rand.h"

#include "shoal/banned.h"

enum form { TAR, TAR_GZ, ZIP, PAX };

struct item {
    const char *path;
    const char *content; /* NULL: no content */
    const char *link;    /* symbolic; "=x": hard to x */
    unsigned type;       /* 0: file */
    unsigned mode;       /* 0: 0644 */
    int64_t claims;      /* another size than the content's: sparse */
};

/* Packs into a new memory file; returns its descriptor. */
static int pack(enum form form, const struct item *items, size_t count)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    struct archive *a = archive_write_new();

    assert_int_equal(form == ZIP   ? archive_write_set_format_zip(a)
                     : form == PAX ? archive_write_set_format_pax(a)
                                   : archive_write_set_format_gnutar(a),
                     ARCHIVE_OK);
    if (form == TAR_GZ)
        assert_int_equal(archive_write_add_filter_gzip(a), ARCHIVE_OK);
    assert_int_equal(archive_write_open_fd(a, fd), ARCHIVE_OK);
    for (size_t i = 0; i < count; i++) {
        struct archive_entry *e = archive_entry_new();
        size_t len = items[i].content == NULL ? 0 : strlen(items[i].content);

        archive_entry_set_pathname(e, items[i].path);
        archive_entry_set_filetype(e, items[i].type == 0 ? AE_IFREG : items[i].type);
        archive_entry_set_perm(e, (mode_t)(items[i].mode == 0 ? 0644 : items[i].mode));
        archive_entry_set_mtime(e, (time_t)i, 0);
        if (items[i].link != NULL && items[i].link[0] == '=')
            archive_entry_set_hardlink(e, items[i].link + 1);
        else if (items[i].link != NULL)
            archive_entry_set_symlink(e, items[i].link);
        else if (items[i].type == 0)
            archive_entry_set_size(e, items[i].claims != 0 ? items[i].claims : (la_int64_t)len);
        if (items[i].claims != 0)
            archive_entry_sparse_add_entry(e, 0, 512);
        assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
        if (len > 0)
            assert_int_equal(archive_write_data(a, items[i].content, len), len);
        archive_entry_free(e);
    }
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
    return fd;
}

static uint64_t size_of(int fd)
{
    struct stat status;

    assert_int_equal(fstat(fd, &status), 0);
    return (uint64_t)status.st_size;
}

static bool refuses_links_out; /* what `make` asks for */

static enum shoal_err make(int fd, const char *name, const char *prefix, int *bundle, struct shoal_bundle_info *info,
                           struct shoal_msg *msg)
{
    const struct shoal_bundle_upload upload = { .fd = fd, .bytes = size_of(fd), .name = name };
    const struct shoal_bundle_options options = { .uploads = &upload,
                                                  .upload_count = 1,
                                                  .single_name = "main.py",
                                                  .prefix = prefix,
                                                  .spool_dir = "/tmp",
                                                  .refuses_links_out = refuses_links_out,
                                                  .limits = { .entries_max = 1000, .bytes_max = 64ull << 20 } };

    *bundle = -1;
    msg->text[0] = '\0';
    return shoal_bundle_make(&options, bundle, info, msg);
}

static int remove_one(const char *path, const struct stat *status, int flag, struct FTW *ftw)
{
    (void)status;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void expect_file(const char *dir, const char *path, const char *content, bool executable)
{
    char name[512];
    char text[64] = "";
    struct stat status;
    FILE *file;

    (void)snprintf(name, sizeof(name), "%s/%s", dir, path);
    file = fopen(name, "re");
    if (file == NULL)
        fail_msg("%s: %s", name, strerror(errno));
    (void)!fread(text, 1, sizeof(text) - 1, file);
    assert_string_equal(text, content);
    assert_int_equal(fstat(fileno(file), &status), 0);
    assert_int_equal(status.st_mode & 07777, executable ? 0755 : 0644);
    (void)fclose(file);
}

static const struct item good[] = {
    { .path = "./md/", .type = AE_IFDIR, .mode = 0755 },
    { .path = "./md/main.py", .content = "print(1)\n" },
    { .path = "md/run.sh", .content = "#!/bin/sh\n", .mode = 0700 },
    { .path = "md/sub/deep/x.txt", .content = "x", .mode = 06755 },
    { .path = "md/empty/", .type = AE_IFDIR, .mode = 0755 },
};

static void test_round_trip(void **state)
{
    static const enum form forms[] = { TAR, TAR_GZ, ZIP, PAX };
    struct shoal_hash first = { { 0 } };

    (void)state;
    for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
        char dir[] = "/tmp/shoal-bundle-XXXXXX";
        struct shoal_bundle_info info;
        struct shoal_bundle_info again;
        struct shoal_msg msg;
        bool found;
        int fd = pack(forms[f], good, sizeof(good) / sizeof(good[0]));
        int bundle;
        char empty[64];
        struct stat status;

        if (make(fd, "x.modelDir.tar", "md", &bundle, &info, &msg) != SHOAL_OK)
            fail_msg("form %zu: %s", f, msg.text);
        assert_int_equal(info.entries, 4);
        assert_int_equal(info.content_bytes, 20);
        assert_string_equal(info.top, "md");
        assert_false(info.prefixed);
        assert_int_equal(info.bundle_bytes, size_of(bundle));
        if (f == 0)
            first = info.hash;
        assert_true(shoal_hash_equal(first, info.hash)); /* I1 of the header */
        assert_int_equal(shoal_bundle_check(bundle, &again, &msg), SHOAL_OK);
        assert_true(shoal_hash_equal(again.hash, info.hash));
        assert_int_equal(shoal_bundle_find(bundle, "md/main.py", &found, &msg), SHOAL_OK);
        assert_true(found);
        assert_int_equal(shoal_bundle_find(bundle, "md/empty", &found, &msg), SHOAL_OK);
        assert_false(found);
        assert_non_null(mkdtemp(dir));
        assert_int_equal(shoal_bundle_unpack(bundle, dir, &again, &msg), SHOAL_OK);
        assert_true(shoal_hash_equal(again.hash, info.hash));
        expect_file(dir, "md/main.py", "print(1)\n", false);
        expect_file(dir, "md/run.sh", "#!/bin/sh\n", true);
        expect_file(dir, "md/sub/deep/x.txt", "x", true);
        (void)snprintf(empty, sizeof(empty), "%s/md/empty", dir);
        assert_int_equal(stat(empty, &status), 0);
        /* Never twice into the same place. */
        assert_int_equal(shoal_bundle_unpack(bundle, dir, &again, &msg), SHOAL_ERR_STORAGE);
        (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        (void)close(bundle);
        (void)close(fd);
    }
}

/* The hash sees paths, execute bits and contents, and nothing else. */
static void test_hash(void **state)
{
    static const struct item base[] = { { .path = "a", .content = "1" }, { .path = "b", .content = "2" } };
    static const struct {
        const char *name;
        struct item items[2];
        bool same;
    } cases[] = {
        { "another order", { { .path = "b", .content = "2" }, { .path = "a", .content = "1" } }, true },
        { "other read bits", { { .path = "a", .content = "1", .mode = 0600 }, { .path = "b", .content = "2" } }, true },
        { "./ before a path", { { .path = "./a", .content = "1" }, { .path = ".//b", .content = "2" } }, true },
        { "an execute bit", { { .path = "a", .content = "1", .mode = 0744 }, { .path = "b", .content = "2" } }, false },
        { "another content", { { .path = "a", .content = "1" }, { .path = "b", .content = "3" } }, false },
        { "another path", { { .path = "a", .content = "1" }, { .path = "c", .content = "2" } }, false },
        { "contents exchanged", { { .path = "a", .content = "2" }, { .path = "b", .content = "1" } }, false },
    };
    struct shoal_bundle_info want;
    struct shoal_msg msg;
    int fd = pack(TAR, base, 2);
    int bundle;

    (void)state;
    assert_int_equal(make(fd, "x.tar", "", &bundle, &want, &msg), SHOAL_OK);
    (void)close(bundle);
    (void)close(fd);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shoal_bundle_info info;

        fd = pack(TAR_GZ, cases[i].items, 2);
        assert_int_equal(make(fd, "x.tar", "", &bundle, &info, &msg), SHOAL_OK);
        if (shoal_hash_equal(info.hash, want.hash) != cases[i].same)
            fail_msg("%s", cases[i].name);
        (void)close(bundle);
        (void)close(fd);
    }
}

static char long_name[300];
static char deep_name[200];
static char long_path[1400];

struct hostile {
    const char *name;
    enum form form;
    struct item items[3];
    const char *says; /* in the message */
};

static const struct hostile hostile[] = {
    { "a parent path", TAR, { { .path = "../x", .content = "1" } }, "\"..\"" },
    { "a parent path inside", TAR_GZ, { { .path = "a/../../x", .content = "1" } }, "\"..\"" },
    { "a parent path at the end", ZIP, { { .path = "a/..", .content = "1" } }, "\"..\"" },
    { "an absolute path", PAX, { { .path = "/etc/x", .content = "1" } }, "absolute" },
    { "an absolute path in a zip", ZIP, { { .path = "/etc/x", .content = "1" } }, "absolute" },
    { "a link out, then a file through it",
      TAR,
      { { .path = "a", .link = "/tmp", .type = AE_IFLNK }, { .path = "a/x", .content = "1" } },
      "below a symbolic link" },
    { "a file, then a link that it lies below",
      TAR,
      { { .path = "a/b/x", .content = "1" }, { .path = "a", .link = "..", .type = AE_IFLNK } },
      "below a symbolic link" },
    { "a link below a link",
      ZIP,
      { { .path = "d/x", .content = "1" }, { .path = "a", .link = "d", .type = AE_IFLNK }, { .path = "a/b", .link = "../..", .type = AE_IFLNK } },
      "below a symbolic link" },
    { "a file in a link's place",
      TAR,
      { { .path = "b", .link = "/etc/passwd", .type = AE_IFLNK }, { .path = "b", .content = "1" } },
      "twice" },
    { "two links in one place",
      TAR,
      { { .path = "a", .content = "1" }, { .path = "b", .link = "a", .type = AE_IFLNK }, { .path = "./b", .link = "=a" } },
      "twice" },
    { "a link to itself", TAR, { { .path = "x", .content = "1" }, { .path = "a", .link = "a", .type = AE_IFLNK } }, "leads into itself" },
    { "two links that lead to each other",
      TAR,
      { { .path = "x", .content = "1" }, { .path = "a", .link = "b/x", .type = AE_IFLNK }, { .path = "b", .link = "a", .type = AE_IFLNK } },
      "leads into itself" },
    { "a link to the folder that it is in",
      TAR,
      { { .path = "d/x", .content = "1" }, { .path = "d/a", .link = "../d", .type = AE_IFLNK } },
      "leads into itself" },
    { "a link to the root", TAR, { { .path = "x", .content = "1" }, { .path = "d/a", .link = "..", .type = AE_IFLNK } }, "leads into itself" },
    { "a hard link to nothing", TAR, { { .path = "x", .content = "1" }, { .path = "b", .link = "=a" } }, "not in the archive" },
    { "a link with an absolute path",
      TAR,
      { { .path = "x", .content = "1" }, { .path = "/a", .link = "x", .type = AE_IFLNK } },
      "absolute" },
    { "a link with a path out", TAR, { { .path = "x", .content = "1" }, { .path = "../a", .link = "x", .type = AE_IFLNK } }, "\"..\"" },
    { "nothing but a link", TAR, { { .path = "a", .link = "b", .type = AE_IFLNK } }, "empty" },
    { "a pipe", TAR, { { .path = "a", .type = AE_IFIFO } }, "device, pipe" },
    { "a character device", TAR, { { .path = "a", .type = AE_IFCHR } }, "device, pipe" },
    { "a block device", PAX, { { .path = "a", .type = AE_IFBLK } }, "device, pipe" },
    { "the same file twice", TAR, { { .path = "a", .content = "1" }, { .path = "./a", .content = "2" } }, "twice" },
    { "a file and a directory",
      TAR,
      { { .path = "a", .content = "1" }, { .path = "a/b", .content = "2" } },
      "both a file" },
    { "a directory and a file",
      TAR,
      { { .path = "a/b", .content = "1" }, { .path = "a", .content = "2" } },
      "both a file" },
    { "a file that is also an empty directory",
      TAR,
      { { .path = "a", .type = AE_IFDIR }, { .path = "a", .content = "2" } },
      "twice" },
    { "a control character", TAR, { { .path = "a\x1b[2J", .content = "1" } }, "control character" },
    { "a line break", PAX, { { .path = "a\nb", .content = "1" } }, "control character" },
    { "a backslash", TAR, { { .path = "a\\b", .content = "1" } }, "backslash" },
    { "a component too long", PAX, { { .path = long_name, .content = "1" } }, "longer than 255" },
    { "a path too long", PAX, { { .path = long_path, .content = "1" } }, "longer than 1023" },
    { "nested too deep", PAX, { { .path = deep_name, .content = "1" } }, "nested too deep" },
    { "a sparse file of 1 TiB", PAX, { { .path = "a", .content = "1", .claims = 1ll << 40 } }, "claims to be larger" },
    { "only the root", TAR, { { .path = "./", .type = AE_IFDIR } }, "empty" },
};

static void test_hostile(void **state)
{
    unsigned failed = 0;

    (void)state;
    memset(long_name, 'a', sizeof(long_name) - 1);
    for (size_t i = 0; i + 2 < sizeof(deep_name); i += 2)
        memcpy(deep_name + i, "d/", 3);
    for (size_t i = 0; i + 101 < sizeof(long_path); i += 101) {
        memset(long_path + i, 'b', 100);
        long_path[i + 100] = '/';
    }
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        size_t count = 0;
        struct shoal_bundle_info info;
        struct shoal_msg msg;
        enum shoal_err err;
        int bundle;
        int fd;

        while (count < 3 && hostile[i].items[count].path != NULL)
            count++;
        fd = pack(hostile[i].form, hostile[i].items, count);
        err = make(fd, "x.tar", "", &bundle, &info, &msg);
        if (err == SHOAL_OK || strstr(msg.text, hostile[i].says) == NULL || bundle != -1) {
            print_error("FAIL bundle: %s: got %s \"%s\"\n", hostile[i].name, shoal_err_name(err), msg.text);
            failed++;
        }
        for (const char *at = msg.text; *at != '\0'; at++)
            assert_true((unsigned char)*at >= 0x20);
        if (bundle >= 0)
            (void)close(bundle);
        (void)close(fd);
    }
    assert_int_equal(failed, 0);
}

static int file_of(const void *bytes, size_t len)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    assert_int_equal(write(fd, bytes, len), len);
    return fd;
}

static void expect_refused(int fd, const char *name, const char *says)
{
    struct shoal_bundle_info info;
    struct shoal_msg msg;
    int bundle;

    if (make(fd, name, "", &bundle, &info, &msg) == SHOAL_OK || strstr(msg.text, says) == NULL)
        fail_msg("%s: want \"%s\" got \"%s\"", name, says, msg.text);
    assert_int_equal(bundle, -1);
    (void)close(fd);
}

/* A tar of one entry of a block, made by hand. */
static int tar_of(const char *name, char kind)
{
    uint8_t tar[4 * 512] = { 0 };
    unsigned sum = 0;

    memcpy(tar, name, strlen(name));
    memcpy(tar + 100, "0000755", 7);
    memcpy(tar + 124, "00000001000", 11); /* 512 */
    memcpy(tar + 148, "        ", 8);
    tar[156] = (uint8_t)kind;
    memcpy(tar + 257, "ustar", 5);
    memcpy(tar + 263, "00", 2);
    for (size_t i = 0; i < 512; i++)
        sum += tar[i];
    (void)snprintf((char *)tar + 148, 8, "%06o", sum);
    return file_of(tar, sizeof(tar));
}

static void test_made_by_hand(void **state)
{
    (void)state;
    /* Of GNU's incremental kind: what a directory brings would be unpacked and thrown away, however much it is. */
    expect_refused(tar_of("d/", 'D'), "x.tar", "a directory with content");
    /* CSI, as one character of C1. */
    expect_refused(tar_of("a\xc2\x9b"
                          "2J",
                          '0'),
                   "x.tar", "control character");
}

/* A zip whose first entry is changed: a byte of both copies of its name, or what its directory says of its kind. */
static int zip_of(bool nul, uint32_t type)
{
    const struct item items[] = { { .path = "plain.py!x", .content = type == 0 ? "1" : NULL }, { .path = "b", .content = "2" } };
    static uint8_t zip[4096];
    int fd = pack(ZIP, items, 2);
    ssize_t len = pread(fd, zip, sizeof(zip), 0);

    assert_true(len > 0 && (size_t)len < sizeof(zip));
    (void)close(fd);
    for (ssize_t i = 0; i + 46 < len; i++) {
        if (nul && memcmp(zip + i, "plain.py!", 9) == 0)
            zip[i + 8] = 0;
        if (type != 0 && memcmp(zip + i, "PK\1\2", 4) == 0 && memcmp(zip + i + 46, "plain", 5) == 0)
            zip[i + 41] = (uint8_t)(type >> 8);
    }
    return file_of(zip, (size_t)len);
}

/* What libarchive would take, under another name or as an empty file. */
static void test_zips_made_by_hand(void **state)
{
    struct shoal_bundle_info info;
    struct shoal_msg msg;
    int bundle, fd = zip_of(false, 0);

    (void)state;
    if (make(fd, "x.zip", "", &bundle, &info, &msg) == SHOAL_OK)
        (void)close(bundle);
    else
        fail_msg("a zip that is right: %s", msg.text);
    (void)close(fd);
    expect_refused(zip_of(true, 0), "x.zip", "\"plain.py\": its name goes on behind a NUL");
    expect_refused(zip_of(false, AE_IFIFO), "x.zip", "a device, pipe or socket");
    expect_refused(zip_of(false, AE_IFCHR), "x.zip", "a device, pipe or socket");
    expect_refused(zip_of(false, AE_IFSOCK), "x.zip", "a device, pipe or socket");
}

/* Its mark is there, and no whole block is. */
static void test_a_tar_cut_within_its_first_block(void **state)
{
    uint8_t head[511] = "main.py";

    (void)state;
    memcpy(head + 257, "ustar", 5);
    for (size_t len = 262; len < 512; len += 83) {
        struct shoal_bundle_info info;
        struct shoal_msg msg;
        int fd = file_of(head, len), bundle;

        assert_int_equal(make(fd, "x.tar", "", &bundle, &info, &msg), SHOAL_ERR_MALFORMED);
        assert_non_null(strstr(msg.text, "cut short"));
        (void)close(fd);
    }
}

static void test_not_archives(void **state)
{
    (void)state;
    expect_refused(file_of("", 0), "x.modelDir.tar", "is empty (0 bytes)");
    expect_refused(file_of("hello", 5), "x.modelDir.tar", "is not an archive");
    expect_refused(file_of("hello", 5), "x.zip", "is not an archive");
    expect_refused(file_of("\x1f\x8b\x08\0\0\0\0\0\0\0", 10), "x.tar", "damaged or cut short");
    expect_refused(file_of("PK\3\4junk junk junk junk junk junk", 32), "x.zip", "");
    expect_refused(file_of("\xfd"
                           "7zXZ\0 junk",
                           12),
                   "x.tar", "\"x.tar\" is xz; send a tar, a tar packed with gzip, or a zip"); /* it is not read */
    expect_refused(file_of("BZh91AY&SY", 10), "x.tar.bz2", "\"x.tar.bz2\" is bzip2; send");
    expect_refused(file_of("BZh91AY&SY", 10), "", "it is bzip2; send");
    expect_refused(file_of("Rar!\x1a\x07", 6), "x.rar", "is rar; send");
    expect_refused(file_of("hello", 5), "a/b.py", "slash");
    expect_refused(file_of("hello", 5), "..", "\"..\"");
}

/* ---- links ---- */

struct linked {
    const char *name;
    enum form form;
    struct item items[5];
    const char *same[8]; /* the files that it is the same as; a file's content is its first letter */
    bool leads_out;      /* such a link is left out, or refused where that is asked for */
};

static const struct linked linked[] = {
    { "a symbolic link to a file", TAR, { { .path = "d/w", .content = "w" }, { .path = "d/x", .link = "w", .type = AE_IFLNK } }, { "wd/w", "wd/x" }, false },
    { "one that comes before it", TAR_GZ, { { .path = "d/x", .link = "../d/w", .type = AE_IFLNK }, { .path = "d/w", .content = "w" } }, { "wd/w", "wd/x" }, false },
    { "one in a zip", ZIP, { { .path = "d/w", .content = "w" }, { .path = "x", .link = "d/w", .type = AE_IFLNK } }, { "wd/w", "wx" }, false },
    { "a hard link", TAR, { { .path = "./d/w", .content = "w" }, { .path = "e/x", .link = "=./d/w" } }, { "wd/w", "we/x" }, false },
    { "a hard link to a symbolic one", PAX, { { .path = "d/w", .content = "w" }, { .path = "d/l", .link = "w", .type = AE_IFLNK }, { .path = "x", .link = "=d/l" } }, { "wd/w", "wd/l", "wx" }, false },
    { "a folder, and a path through its link",
      TAR,
      { { .path = "v2/a/w", .content = "w" }, { .path = "v2/b", .content = "b" }, { .path = "now", .link = "./v2//", .type = AE_IFLNK }, { .path = "best", .link = "now/a/../a/w", .type = AE_IFLNK } },
      { "wv2/a/w", "bv2/b", "wnow/a/w", "bnow/b", "wbest" },
      false },
    { "links within a folder that a link points to",
      TAR,
      { { .path = "d/w", .content = "w" }, { .path = "d/l", .link = "../e", .type = AE_IFLNK }, { .path = "e/x", .content = "x" }, { .path = "f", .link = "d", .type = AE_IFLNK } },
      { "wd/w", "xd/l/x", "xe/x", "wf/w", "xf/l/x" },
      false },
    { "a link to nothing", TAR, { { .path = "w", .content = "w" }, { .path = "x", .link = "gone/y", .type = AE_IFLNK } }, { "ww" }, false },
    { "a symbolic link out", TAR, { { .path = "d/w", .content = "w" }, { .path = "d/x", .link = "../../etc/passwd", .type = AE_IFLNK } }, { "wd/w" }, true },
    { "an absolute one", ZIP, { { .path = "d/w", .content = "w" }, { .path = "d/x", .link = "/etc", .type = AE_IFLNK } }, { "wd/w" }, true },
    { "a hard link out", TAR, { { .path = "d/w", .content = "w" }, { .path = "d/x", .link = "=/etc/passwd" } }, { "wd/w" }, true },
    { "a hard link out by steps", TAR, { { .path = "d/w", .content = "w" }, { .path = "d/x", .link = "=d/../../d/w" } }, { "wd/w" }, true },
    { "one out, and in again", TAR, { { .path = "d/w", .content = "w" }, { .path = "x", .link = "../etc/d/w", .type = AE_IFLNK } }, { "wd/w" }, true },
    { "one out through another",
      TAR,
      { { .path = "w", .content = "w" }, { .path = "d/up", .link = "..", .type = AE_IFLNK }, { .path = "x", .link = "d/up/../w", .type = AE_IFLNK } },
      { "" },
      true },
};

/* The hash of the same files without a link. */
static struct shoal_hash hash_of(const char *const *files)
{
    struct item items[8] = { { 0 } };
    char contents[8][2] = { "" };
    struct shoal_bundle_info info;
    struct shoal_msg msg;
    size_t count = 0;
    int bundle;
    int fd;

    for (; count < 8 && files[count] != NULL; count++) {
        contents[count][0] = files[count][0];
        items[count] = (struct item){ .path = files[count] + 1, .content = contents[count] };
    }
    fd = pack(TAR, items, count);
    assert_int_equal(make(fd, "x.tar", "", &bundle, &info, &msg), SHOAL_OK);
    (void)close(bundle);
    (void)close(fd);
    return info.hash;
}

static void test_links(void **state)
{
    unsigned failed = 0;

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(linked) / sizeof(linked[0]); i++) {
        const struct linked *row = &linked[i / 2];
        struct shoal_bundle_info info = { .entries = 0 };
        struct shoal_msg msg;
        size_t count = 0;
        enum shoal_err err;
        bool good_one;
        int bundle;
        int fd;

        while (count < 5 && row->items[count].path != NULL)
            count++;
        fd = pack(row->form, row->items, count);
        refuses_links_out = i % 2 == 1;
        err = make(fd, "x.tar", "", &bundle, &info, &msg);
        if (row->same[0][0] == '\0') /* it leads into itself besides */
            good_one = err == SHOAL_ERR_INVALID;
        else if (row->leads_out && refuses_links_out)
            good_one = err == SHOAL_ERR_INVALID && strstr(msg.text, "a link out of the archive") != NULL;
        else
            good_one = err == SHOAL_OK && shoal_hash_equal(info.hash, hash_of(row->same));
        if (!good_one) {
            print_error("FAIL bundle: %s: got %s \"%s\", %u entries\n", row->name, shoal_err_name(err), msg.text, info.entries);
            failed++;
        }
        refuses_links_out = false;
        if (bundle >= 0)
            (void)close(bundle);
        (void)close(fd);
    }
    assert_int_equal(failed, 0);
}

/* Each folder has two links to the one before: 2^30 copies, of a file or of nothing. */
static void test_links_of_links(void **state)
{
    static char paths[60][16], targets[60][16];

    (void)state;
    for (unsigned empty = 0; empty < 2; empty++) {
        struct item items[61] = { { .path = empty ? "d0/gone/x" : "d0/x", .content = "x" } };
        int fd;

        for (unsigned i = 0; i < 60; i++) {
            (void)snprintf(paths[i], sizeof(paths[i]), "d%u/%c", i / 2 + 1, i % 2 == 0 ? 'a' : 'b');
            (void)snprintf(targets[i], sizeof(targets[i]), "../d%u", i / 2);
            items[i + 1] = (struct item){ .path = paths[i], .link = targets[i], .type = AE_IFLNK };
        }
        if (empty)
            items[0].path = "w";
        fd = pack(TAR, items, 61);
        expect_refused(fd, "x.tar", "link");
    }
}

/* Copies count as much as what they are of. */
static void test_copies_are_counted(void **state)
{
    size_t len = 5u << 20;
    char *text = malloc(len + 1);
    struct item items[20] = { { .path = "w", .content = text } };
    static char paths[20][8];
    struct shoal_rand rand;
    int fd;

    (void)state;
    assert_non_null(text);
    shoal_rand_init(&rand, 5);
    for (size_t i = 0; i < len; i++)
        text[i] = (char)('!' + shoal_rand_below(&rand, 90));
    text[len] = '\0';
    for (unsigned i = 1; i < 20; i++) {
        (void)snprintf(paths[i], sizeof(paths[i]), "c%u", i);
        items[i] = (struct item){ .path = paths[i], .link = i % 2 == 0 ? "=w" : "w", .type = i % 2 == 0 ? 0 : AE_IFLNK };
    }
    fd = pack(TAR, items, 20); /* 100 MiB, and 64 may be */
    expect_refused(fd, "x.tar", "unpacks to more than is allowed");
    memset(text, '0', len);
    fd = pack(TAR_GZ, items, 8); /* 40 MiB of a few KiB */
    expect_refused(fd, "x.tar", "far more than its own size");
    free(text);
}

/* Cut anywhere, an archive is refused or holds all its files. */
static void test_truncated(void **state)
{
    static const enum form forms[] = { TAR, TAR_GZ, ZIP };

    (void)state;
    for (size_t f = 0; f < 3; f++) {
        int fd = pack(forms[f], good, sizeof(good) / sizeof(good[0]));
        uint64_t whole = size_of(fd);
        uint8_t *bytes = malloc(whole);
        uint64_t step = whole > 2000 ? 128 : 1; /* cuts between a tar's blocks, too */

        assert_int_equal(pread(fd, bytes, whole, 0), whole);
        for (uint64_t len = step; len < whole; len += step) {
            int cut = file_of(bytes, len);
            struct shoal_bundle_info info;
            struct shoal_msg msg;
            int bundle;

            if (make(cut, "x.tar", "", &bundle, &info, &msg) == SHOAL_OK) {
                if (info.entries != 4)
                    fail_msg("form %zu cut at %llu: taken with %u entries", f, (unsigned long long)len, info.entries);
                (void)close(bundle);
            }
            (void)close(cut);
        }
        free(bytes);
        (void)close(fd);
    }
}

/* A changed byte is refused, or gives a bundle that checks. */
static void test_damaged(void **state)
{
    struct shoal_rand rand;
    int fd = pack(ZIP, good, sizeof(good) / sizeof(good[0]));
    uint64_t whole = size_of(fd);
    uint8_t *bytes = malloc(whole);

    (void)state;
    shoal_rand_init(&rand, 3);
    for (unsigned turn = 0; turn < 400; turn++) {
        struct shoal_bundle_info info;
        struct shoal_bundle_info again;
        struct shoal_msg msg;
        int bundle;
        int bad;

        assert_int_equal(pread(fd, bytes, whole, 0), whole);
        bytes[shoal_rand_below(&rand, whole)] ^= (uint8_t)(1 + shoal_rand_below(&rand, 255));
        bad = file_of(bytes, whole);
        if (make(bad, "x.zip", "", &bundle, &info, &msg) == SHOAL_OK) {
            assert_int_equal(shoal_bundle_check(bundle, &again, &msg), SHOAL_OK);
            assert_true(shoal_hash_equal(info.hash, again.hash));
            (void)close(bundle);
        }
        (void)close(bad);
    }
    free(bytes);
    (void)close(fd);
}

/* Bytes that changed on their way: gzip's own CRC says so, of each member. */
static void test_damaged_gzip(void **state)
{
    int fd = pack(TAR_GZ, good, sizeof(good) / sizeof(good[0]));
    uint64_t whole = size_of(fd);
    uint8_t *bytes = calloc(1, 2 * whole + 64);
    struct shoal_bundle_info info, sound;
    struct shoal_msg msg;
    unsigned damaged = 0;
    int bad, bundle;

    (void)state;
    assert_int_equal(pread(fd, bytes, whole, 0), whole);
    assert_int_equal(make(fd, "x.tar.gz", "", &bundle, &sound, &msg), SHOAL_OK);
    (void)close(bundle);
    for (uint64_t bit = 10 * 8; bit < whole * 8; bit++) { /* behind the head, which says nothing of the content */
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        bad = file_of(bytes, whole);
        if (make(bad, "x.tar.gz", "", &bundle, &info, &msg) == SHOAL_OK) {
            damaged += !shoal_hash_equal(info.hash, sound.hash); /* a few bits change nothing of what comes out */
            (void)close(bundle);
        }
        (void)close(bad);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(damaged, 0);
    memset(bytes + whole - 8, 0, 4);
    bad = file_of(bytes, whole);
    expect_refused(bad, "x.tar.gz", "damaged or cut short, pack and send it again");
    /* Two members are one archive; what is no member behind them is nobody's. */
    assert_int_equal(pread(fd, bytes, whole, 0), whole);
    bad = file_of(bytes, whole + 16);
    assert_int_equal(make(bad, "x.tar.gz", "", &bundle, &info, &msg), SHOAL_OK);
    assert_int_equal(info.entries, 4);
    (void)close(bundle);
    (void)close(bad);
    memcpy(bytes + whole, bytes, whole);
    bytes[2 * whole - 6] ^= 1; /* of the second one's CRC */
    bad = file_of(bytes, 2 * whole);
    expect_refused(bad, "x.tar.gz", "damaged or cut short, pack and send it again");
    bytes[2 * whole - 6] ^= 1;
    bad = file_of(bytes, 2 * whole);
    assert_int_equal(make(bad, "x.tar.gz", "", &bundle, &info, &msg), SHOAL_OK);
    (void)close(bundle);
    (void)close(bad);
    free(bytes);
    (void)close(fd);
}

static void test_bombs(void **state)
{
    size_t len = 40u << 20;
    char *zeroes = calloc(1, len + 1);
    struct item items[2] = { { .path = "a" }, { .path = "b" } };
    static struct item many[1001];
    static char names[1001][16];
    int fd;

    (void)state;
    memset(zeroes, '0', len);
    items[0].content = zeroes;
    fd = pack(TAR_GZ, items, 1);
    expect_refused(fd, "x.tar", "far more than its own size");
    fd = pack(ZIP, items, 1);
    expect_refused(fd, "x.zip", "far more than its own size");
    items[1].content = zeroes;
    fd = pack(TAR, items, 2);
    expect_refused(fd, "x.tar", "more than is allowed");
    free(zeroes);
    for (unsigned i = 0; i < 1001; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "f%u", i);
        many[i] = (struct item){ .path = names[i], .content = "" };
    }
    fd = pack(TAR_GZ, many, 1001);
    expect_refused(fd, "x.tar", "more than 1000 entries");
}

/* Folders that nobody names are made all the same. */
static void test_folders_of_files_are_counted(void **state)
{
    static struct item items[501];
    static char names[501][64];
    struct shoal_bundle_info info;
    struct shoal_msg msg;
    int fd, bundle;

    (void)state;
    for (unsigned i = 0; i < 501; i++) { /* a folder of its own for each, and some that all lie in */
        (void)snprintf(names[i], sizeof(names[i]), i == 500 ? "a/last" : "a/b-c/e%03u/x", i);
        items[i] = (struct item){ .path = names[i], .content = "" };
    }
    fd = pack(TAR_GZ, items, 498); /* with 498 folders, a and a/b-c: 998 */
    assert_int_equal(make(fd, "x.tar", "", &bundle, &info, &msg), SHOAL_OK);
    (void)close(bundle);
    (void)close(fd);
    fd = pack(ZIP, items, 499); /* the most */
    assert_int_equal(make(fd, "x.zip", "", &bundle, &info, &msg), SHOAL_OK);
    (void)close(bundle);
    (void)close(fd);
    fd = pack(TAR_GZ, items, 500);
    expect_refused(fd, "x.tar", "more than 1000 entries: 500, and 502 folders");
    fd = pack(ZIP, items, 501);
    expect_refused(fd, "x.zip", "more than 1000 entries");
}

static void test_names_and_prefix(void **state)
{
    static const struct {
        const char *name;
        struct item items[3];
        const char *prefix;
        const char *find;
        const char *top;
        bool prefixed;
    } cases[] = {
        { "a top directory",
          { { .path = "md/a", .content = "1" }, { .path = "md/b", .content = "1" } },
          "md",
          "md/a",
          "md",
          false },
        { "no top directory",
          { { .path = "a", .content = "1" }, { .path = "./s/b", .content = "1" } },
          "md",
          "md/s/b",
          "",
          true },
        { "no prefix", { { .path = "a", .content = "1" }, { .path = "s/b", .content = "1" } }, "", "s/b", "", false },
        { "macOS files beside the top",
          { { .path = "._md", .content = "1" }, { .path = "md/a", .content = "1" } },
          "md",
          "md/a",
          "md",
          false },
        { "a name in UTF-8",
          { { .path = "md/caf\xc3\xa9.py", .content = "1" } },
          "",
          "md/caf\xc3\xa9.py",
          "md",
          false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = cases[i].items[1].path == NULL ? 1 : 2;
        struct shoal_bundle_info info;
        struct shoal_msg msg;
        bool found = false;
        int fd = pack(TAR, cases[i].items, count);
        int bundle;

        if (make(fd, "x.tar", cases[i].prefix, &bundle, &info, &msg) != SHOAL_OK)
            fail_msg("%s: %s", cases[i].name, msg.text);
        assert_int_equal(shoal_bundle_find(bundle, cases[i].find, &found, &msg), SHOAL_OK);
        if (!found || info.prefixed != cases[i].prefixed || strcmp(info.top, cases[i].top) != 0)
            fail_msg("%s: found %d, prefixed %d, top \"%s\"", cases[i].name, found, info.prefixed, info.top);
        (void)close(bundle);
        (void)close(fd);
    }
}

static void test_single_file(void **state)
{
    static const struct {
        const char *name;
        const char *found;
    } cases[] = { { "train.py", "train.py" }, { "", "main.py" } };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct shoal_bundle_info info;
        struct shoal_msg msg;
        bool found = false;
        int fd = file_of("print(1)", 8);
        int bundle;

        assert_int_equal(make(fd, cases[i].name, "", &bundle, &info, &msg), SHOAL_OK);
        assert_int_equal(shoal_bundle_find(bundle, cases[i].found, &found, &msg), SHOAL_OK);
        assert_true(found);
        (void)close(bundle);
        (void)close(fd);
    }
}

static void test_empty_bundle(void **state)
{
    const struct shoal_bundle_options options = { .single_name = "", .prefix = "md", .spool_dir = "/tmp" };
    struct shoal_bundle_info info;
    struct shoal_bundle_info again;
    struct shoal_msg msg;
    int bundle;

    (void)state;
    assert_int_equal(shoal_bundle_make(&options, &bundle, &info, &msg), SHOAL_OK);
    assert_int_equal(info.entries, 0);
    assert_int_equal(info.bundle_bytes, 16);
    assert_int_equal(shoal_bundle_check(bundle, &again, &msg), SHOAL_OK);
    assert_true(shoal_hash_equal(info.hash, again.hash));
    (void)close(bundle);
}

/* From a peer: every prefix and every kind of wrong field is refused, and unpacking leaves nothing outside. */
static void test_bad_bundles(void **state)
{
    int fd = pack(TAR, good, sizeof(good) / sizeof(good[0]));
    struct shoal_bundle_info info;
    struct shoal_msg msg;
    struct shoal_rand rand;
    uint8_t *bytes;
    uint8_t *copy;
    uint64_t len;
    int bundle;

    (void)state;
    assert_int_equal(make(fd, "x.tar", "md", &bundle, &info, &msg), SHOAL_OK);
    len = size_of(bundle);
    bytes = malloc(len);
    copy = malloc(len + 1);
    assert_int_equal(pread(bundle, bytes, len, 0), len);
    for (uint64_t cut = 0; cut < len; cut++) {
        int bad = file_of(bytes, cut);

        assert_int_equal(shoal_bundle_check(bad, &info, &msg), SHOAL_ERR_MALFORMED);
        (void)close(bad);
    }
    memcpy(copy, bytes, len);
    copy[len] = 'x';
    {
        int bad = file_of(copy, len + 1);

        assert_int_equal(shoal_bundle_check(bad, &info, &msg), SHOAL_ERR_MALFORMED);
        (void)close(bad);
    }
    shoal_rand_init(&rand, 5);
    for (unsigned turn = 0; turn < 2000; turn++) {
        int bad;

        memcpy(copy, bytes, len);
        copy[shoal_rand_below(&rand, len)] = turn % 3 == 0   ? (uint8_t)'/'
                                             : turn % 3 == 1 ? (uint8_t)'.'
                                                             : (uint8_t)shoal_rand_below(&rand, 256);
        bad = file_of(copy, len);
        (void)!shoal_bundle_check(bad, &info, &msg);
        (void)close(bad);
    }
    free(bytes);
    free(copy);
    (void)close(bundle);
    (void)close(fd);
}

/* B4: a link that waits in the folder is not followed. */
static void test_unpack_through_link(void **state)
{
    char dir[] = "/tmp/shoal-bundle-XXXXXX";
    char outside[] = "/tmp/shoal-outside-XXXXXX";
    char link[64];
    char leaked[64];
    int fd = pack(TAR, good, sizeof(good) / sizeof(good[0]));
    struct shoal_bundle_info info;
    struct shoal_msg msg;
    int bundle;

    (void)state;
    assert_int_equal(make(fd, "x.tar", "md", &bundle, &info, &msg), SHOAL_OK);
    assert_non_null(mkdtemp(dir));
    assert_non_null(mkdtemp(outside));
    (void)snprintf(link, sizeof(link), "%s/md", dir);
    (void)snprintf(leaked, sizeof(leaked), "%s/main.py", outside);
    assert_int_equal(symlink(outside, link), 0);
    assert_int_equal(shoal_bundle_unpack(bundle, dir, &info, &msg), SHOAL_ERR_STORAGE);
    assert_int_not_equal(access(leaked, F_OK), 0);
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)nftw(outside, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)close(bundle);
    (void)close(fd);
}

/* What the command line packs arrives by the same names, byte for byte, in the locale C that this test runs in. */
static void test_names_are_bytes(void **state)
{
    static const char *const names[] = {
        "gr\xc3\xbc\xc3\x9fung.txt", "\xe6\xa8\xa1\xe5\x9e\x8b.py", "latin-\xfc.txt", "half-\xc3", "new\xff\xfe name",
    };
    char dir[] = "/tmp/shoal-names-XXXXXX", out[] = "/tmp/shoal-bundle-XXXXXX";
    char path[512], deep[256], packed[1024];
    struct shoal_bundle_info info;
    struct shoal_msg msg = { .text = "" };
    int fd, bundle;

    (void)state;
    for (size_t i = 0; i < 250; i++)
        deep[i] = i % 2 == 0 ? '\xc3' : '\xa4';
    deep[250] = '\0';
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i <= sizeof(names) / sizeof(names[0]); i++) {
        const char *name = i < sizeof(names) / sizeof(names[0]) ? names[i] : deep;

        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0);
    }
    if (cli_pack(dir, "m\xc3\xb6" "del", packed, sizeof(packed), &msg) != SHOAL_OK)
        fail_msg("%s", msg.text);
    fd = open(packed, O_RDONLY | O_CLOEXEC);
    assert_int_equal(unlink(packed), 0);
    if (make(fd, "x.modelDir.tar", "m\xc3\xb6" "del", &bundle, &info, &msg) != SHOAL_OK)
        fail_msg("%s", msg.text);
    assert_non_null(mkdtemp(out));
    assert_int_equal(shoal_bundle_unpack(bundle, out, &info, &msg), SHOAL_OK);
    for (size_t i = 0; i <= sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "m\xc3\xb6" "del/%s", i < sizeof(names) / sizeof(names[0]) ? names[i] : deep);
        expect_file(out, path, "x", false);
    }
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)nftw(out, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)close(bundle);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_names_are_bytes),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_made_by_hand),
        cmocka_unit_test(test_zips_made_by_hand),
        cmocka_unit_test(test_a_tar_cut_within_its_first_block),
        cmocka_unit_test(test_not_archives),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_damaged_gzip),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_folders_of_files_are_counted),
        cmocka_unit_test(test_names_and_prefix),
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_empty_bundle),
        cmocka_unit_test(test_bad_bundles),
        cmocka_unit_test(test_unpack_through_link),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_links_of_links),
        cmocka_unit_test(test_copies_are_counted),
    };

    return sodium_init() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
