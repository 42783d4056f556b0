/* Packages of models: what their files and their model.json must say, and the texts of what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "api/rest/package_check.h"

#include "shoal/banned.h"

#define GOOD "{\"name\":\"echo-a\",\"kernel_path\":\"kernel.py\",\"weight_path\":\"N/A\",\"runtime\":\"python\""
#define NO_MODEL "the package has no kernel (kernel_path of model.json), and no file of a model at its top: name a Python"
#define FILES_MAX 8

struct file {
    const char *path;
    const char *content; /* NULL: a folder */
};

static void put(int fd, uint64_t value, unsigned bytes)
{
    uint8_t out[8];

    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
    assert_int_equal(write(fd, out, bytes), bytes);
}

/* The canonical bundle of files in the order of their paths. */
static int bundle_of(const struct file *files, size_t count)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    assert_int_equal(write(fd, SHOAL_BUNDLE_MAGIC, 8), 8);
    put(fd, 1, 4);
    put(fd, count, 4);
    for (size_t i = 0; i < count; i++) {
        size_t len = files[i].content == NULL ? 0 : strlen(files[i].content);

        put(fd, strlen(files[i].path), 2);
        assert_int_equal(write(fd, files[i].path, strlen(files[i].path)), strlen(files[i].path));
        put(fd, files[i].content == NULL ? SHOAL_BUNDLE_DIR | 0755u : 0644u, 4);
        put(fd, len, 8);
        if (len > 0)
            assert_int_equal(write(fd, files[i].content, len), len);
    }
    return fd;
}

static const struct {
    const char *name;
    struct file files[FILES_MAX];
    const char *wmla; /* the refusal begins so; NULL: it is taken */
    const char *ours;
} rows[] = {
    { "a kernel at the top", { { "README.md", "r" }, { "kernel.py", "k" }, { "model.json", GOOD "}" } }, NULL, NULL },
    { "in one folder, its readme in other letters",
      { { "a", NULL }, { "a/kernel.py", "k" }, { "a/model.json", GOOD "}" }, { "a/readme.MD", "r" } },
      NULL,
      NULL },
    { "beside what editors and macOS leave",
      { { "._model.json", "x" },
        { "a/.ipynb_checkpoints/model.json", "x" },
        { "a/README.md", "r" },
        { "a/kernel.py", "k" },
        { "a/model.json", GOOD ",\"schema_version\":\"1\",\"framework\":[1]}" },
        { "a/update_model.json", "x" } },
      NULL,
      NULL },
    { "a path with dots, and a readme by another name",
      { { "k/x.py", "k" },
        { "model.json", "{\"name\":\"a\",\"kernel_path\":\"./k//x.py\",\"weight_path\":\"\",\"runtime\":\"r\","
                        "\"readme\":\"told.txt\"}" },
        { "told.txt", "r" } },
      NULL,
      NULL },
    { "a model's file alone", { { "m.onnx", "m" } }, "model.json is missing in the package.", NULL },
    { "nothing", { { NULL, NULL } }, "model.json is missing in the package.", NO_MODEL },
    { "neither kernel nor model", { { "notes.txt", "n" } }, "model.json is missing in the package.", NO_MODEL },
    { "a model that lies too deep", { { "a/b/m.onnx", "m" } }, "model.json is missing in the package.", NO_MODEL },
    { "a model in the only folder", { { "a", NULL }, { "a/m.onnx", "m" } }, "model.json is missing in the package.", NULL },
    { "a model in one of two folders",
      { { "a/m.onnx", "m" }, { "ab/m.txt", "m" } },
      "model.json is missing in the package.",
      NO_MODEL },
    { "a SavedModel in the only folder",
      { { "a/fingerprint.pb", "f" }, { "a/m/saved_model.pb", "m" } },
      "model.json is missing in the package.",
      NULL },
    { "two models",
      { { "a.onnx", "m" }, { "b.pt", "m" } },
      "model.json is missing in the package.",
      "the package has no kernel (kernel_path of model.json), and 2 models (a.onnx, b.pt): name one" },
    { "two models, and the name of one",
      { { "a.onnx", "m" }, { "b.pt", "m" }, { "model.json", "{\"weight_path\":\"./b.pt\"}" } },
      "model.json is invalid: name",
      NULL },
    { "a model beside its sample", { { "m.ONNX", "m" }, { "sample.json", "{}" } }, "model.json is missing in the package.", NULL },
    { "a model in JSON", { { "m.json", "{}" } }, "model.json is missing in the package.", NULL },
    { "a hidden file", { { ".m.onnx", "m" } }, "model.json is missing in the package.", NO_MODEL },
    { "a SavedModel", { { "saved_model.pb", "m" } }, "model.json is missing in the package.", NULL },
    { "a SavedModel in its folder", { { "m/saved_model.pb", "m" } }, "model.json is missing in the package.", NULL },
    { "a SavedModel by its name",
      { { "a/b/saved_model.pb", "m" }, { "model.json", "{\"weight_path\":\"a/b\"}" } },
      "model.json is invalid: name",
      NULL },
    { "two folders with a model each",
      { { "a/model.json", GOOD "}" }, { "b/model.json", GOOD "}" } },
      "model.json is missing in the package.",
      "model.json is missing in the package. (2 folders" },
    { "a folder named model.json", { { "model.json", NULL } }, "model.json is missing in the package.", NO_MODEL },
    { "no readme", { { "kernel.py", "k" }, { "model.json", GOOD "}" } }, "README.md is missing in the package.", NULL },
    { "no kernel_path",
      { { "README.md", "r" },
        { "m.pt", "m" },
        { "model.json", "{\"name\":\"a\",\"weight_path\":\"m.pt\",\"runtime\":\"python\"}" } },
      "model.json is invalid: kernel_path",
      NULL },
    { "a kernel that is not there",
      { { "README.md", "r" }, { "model.json", GOOD "}" } },
      "Kernel file kernel.py does not exist.",
      "Kernel file kernel.py does not exist." },
    { "a kernel that is a folder",
      { { "README.md", "r" }, { "kernel.py", NULL }, { "model.json", GOOD "}" } },
      "Kernel file kernel.py does not exist.",
      "Kernel file kernel.py does not exist." },
    { "a kernel above the root",
      { { "README.md", "r" },
        { "a/kernel.py", "k" },
        { "model.json",
          "{\"name\":\"a\",\"kernel_path\":\"x/../a/kernel.py\",\"weight_path\":\"\",\"runtime\":\"r\"}" } },
      "Kernel file x/../a/kernel.py does not exist.",
      "Kernel file x/../a/kernel.py does not exist." },
    { "a kernel by an absolute path",
      { { "README.md", "r" },
        { "kernel.py", "k" },
        { "model.json", "{\"name\":\"a\",\"kernel_path\":\"/kernel.py\",\"weight_path\":\"\",\"runtime\":\"r\"}" } },
      "Kernel file /kernel.py does not exist.",
      "Kernel file /kernel.py does not exist." },
    { "no JSON", { { "model.json", "{'name': 1}" } }, "model.json is invalid: ", "model.json is invalid: " },
    { "an empty model.json", { { "model.json", "" } }, "model.json is invalid: ", "model.json is invalid: " },
    { "a list",
      { { "model.json", "[]" } },
      "model.json is invalid: it is no object",
      "model.json is invalid: it is no" },
    { "no name", { { "m.pt", "m" }, { "model.json", "{}" } }, "model.json is invalid: name", NULL },
    { "a name that is a number",
      { { "model.json", "{\"name\":7}" } },
      "model.json is invalid: name",
      "model.json is invalid: name" },
    { "a name with a blank",
      { { "model.json", "{\"name\":\"a b\"}" } },
      "model.json is invalid: name",
      "model.json is invalid: name" },
    { "a name that ends badly",
      { { "model.json", "{\"name\":\"a-\"}" } },
      "model.json is invalid: name",
      "model.json is invalid: name" },
    { "no runtime",
      { { "kernel.py", "k" }, { "model.json", "{\"name\":\"a\",\"kernel_path\":\"kernel.py\",\"weight_path\":\"\"}" } },
      "model.json is invalid: runtime (it is missing; dlim wants name, kernel_path, runtime and weight_path)",
      NULL },
    { "no weight_path",
      { { "kernel.py", "k" }, { "model.json", "{\"name\":\"a\",\"kernel_path\":\"kernel.py\",\"runtime\":\"r\"}" } },
      "model.json is invalid: weight_path (it is missing; dlim wants name, kernel_path, runtime and weight_path)",
      NULL },
    { "a runtime that is a number",
      { { "kernel.py", "k" },
        { "model.json", "{\"name\":\"a\",\"kernel_path\":\"kernel.py\",\"weight_path\":\"\",\"runtime\":1}" } },
      "model.json is invalid: runtime (it is no text)",
      "model.json is invalid: runtime (it is no text)" },
    { "an attribute without a value",
      { { "kernel.py", "k" }, { "model.json", GOOD ",\"attributes\":[{\"key\":\"a\"}]}" } },
      "model.json is invalid: attributes",
      "model.json is invalid: attributes" },
    { "an environment that is an object",
      { { "kernel.py", "k" }, { "model.json", GOOD ",\"mk_environments\":{}}" } },
      "model.json is invalid: mk_environments",
      "model.json is invalid: mk_environments" },
};

static size_t count_of(const struct file *files)
{
    size_t count = 0;

    while (count < FILES_MAX && files[count].path != NULL)
        count++;
    return count;
}

static void expect(const char *name, int fd, enum package_kind kind, const char *refusal)
{
    struct package package = { .name = "untouched" };
    struct shoal_msg msg = { .text = "" };
    enum shoal_err err = package_check_bundle(fd, kind, &package, &msg);

    if ((err == SHOAL_OK) != (refusal == NULL) || (refusal != NULL && strncmp(msg.text, refusal, strlen(refusal)) != 0))
        fail_msg("%s (%s): \"%s\"", name, kind == PACKAGE_WMLA ? "WMLA's" : "ours", msg.text);
    if (refusal != NULL)
        assert_string_equal(package.name, "untouched");
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int fd = bundle_of(rows[i].files, count_of(rows[i].files));

        expect(rows[i].name, fd, PACKAGE_WMLA, rows[i].wmla);
        expect(rows[i].name, fd, PACKAGE_OURS, rows[i].ours);
        if (rows[i].ours != NULL && strncmp(rows[i].ours, "the package has no kernel", 25) == 0)
            expect(rows[i].name, fd, PACKAGE_WORDS, NULL);
        (void)close(fd);
    }
}

static void test_facts(void **state)
{
    const struct file files[] = { { "top/README.md", "read me" },
                                  { "top/model.json", GOOD ",\"tag\":\"t\"}" },
                                  { "top/kernel.py", "k" } };
    const struct file sorted[] = { files[0], files[2], files[1] };
    int fd = bundle_of(sorted, 3);
    struct package package;
    struct shoal_msg msg;
    char readme[8] = "";

    (void)state;
    assert_int_equal(package_check_bundle(fd, PACKAGE_WMLA, &package, &msg), SHOAL_OK);
    assert_string_equal(package.root, "top");
    assert_string_equal(package.name, "echo-a");
    assert_string_equal(package.kernel_path, "kernel.py");
    assert_string_equal(package.runtime, "python");
    assert_string_equal(package.tag, "t");
    assert_string_equal(package.weight_path, "N/A");
    assert_int_equal(package.content_bytes, 7 + 1 + strlen(files[1].content));
    assert_int_equal(package.model_json.bytes, strlen(files[1].content));
    assert_int_equal(pread(fd, readme, package.readme.bytes, (off_t)package.readme.offset), 7);
    assert_string_equal(readme, "read me");
    (void)close(fd);
}

static void test_long_values(void **state)
{
    static char text[600u * SHOAL_KIB];
    const struct file files[] = { { "README.md", "r" }, { "kernel.py", "k" }, { "m.pt", "m" }, { "model.json", text } };
    const size_t head = strlen(GOOD ",\"x\":\"");
    int fd;

    (void)state;
    memcpy(text, GOOD ",\"x\":\"", head);
    memset(text + head, 'a', 300u * SHOAL_KIB);
    memcpy(text + head + 300u * SHOAL_KIB, "\"}", 3);
    fd = bundle_of(files, 4);
    expect("a model.json of 300 KiB", fd, PACKAGE_WMLA, "model.json is invalid: it is larger than 256 KiB");
    (void)close(fd);
    memcpy(text, "{\"name\":\"", 9);
    memset(text + 9, 'a', PACKAGE_NAME_BYTES_MAX + 1);
    memcpy(text + 9 + PACKAGE_NAME_BYTES_MAX + 1, "\"}", 3);
    fd = bundle_of(files, 4);
    expect("a name of 201 bytes", fd, PACKAGE_WMLA, "model.json is invalid: name");
    (void)close(fd);
    memcpy(text + 9 + PACKAGE_NAME_BYTES_MAX, "\"}", 3);
    fd = bundle_of(files, 4);
    expect("a name of 200 bytes", fd, PACKAGE_OURS, NULL);
    (void)close(fd);
}

static void test_damaged(void **state)
{
    const struct file files[] = { { "README.md", "r" }, { "kernel.py", "k" }, { "model.json", GOOD "}" } };
    int fd = bundle_of(files, 3);
    off_t len = lseek(fd, 0, SEEK_END);
    struct package package;
    struct shoal_msg msg;

    (void)state;
    for (off_t cut = len - 1; cut >= 0; cut--) {
        assert_int_equal(ftruncate(fd, cut), 0);
        assert_int_equal(package_check_bundle(fd, PACKAGE_WMLA, &package, &msg), SHOAL_ERR_MALFORMED);
    }
    (void)close(fd);
}

static void test_archives(void **state)
{
    uint8_t tar[512] = { 0 };

    (void)state;
    memcpy(tar + 257, "ustar", 5);
    assert_true(shoal_bundle_is_archive(tar, sizeof(tar)));
    assert_false(shoal_bundle_is_archive(tar, 200));
    assert_true(shoal_bundle_is_archive((const uint8_t *)"\x1f\x8b\x08", 3));
    assert_true(shoal_bundle_is_archive((const uint8_t *)"PK\3\4", 4));
    assert_false(shoal_bundle_is_archive((const uint8_t *)"print(1)", 8));
    assert_false(shoal_bundle_is_archive(NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_facts),    cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_archives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
