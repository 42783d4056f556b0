/* libFuzzer: what an agent reads back from its data folder at start, apart from the store (fuzz_store.c). The first
 * byte chooses: one of the identity's files (with its right sum, so that the fuzzer gets behind it), the slots' copy,
 * the mesh's copy. A folder in memory is made once a process. */
#include "shoal/disk.h"
#include "shoal/hash.h"
#include "shoal/identity.h"
#include "shoal/mesh.h"
#include "shoal/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const char *const names[3] = { "identity", "mesh", "boot" };

static void in_folder(const char *folder, const char *name, char *path, size_t cap)
{
    (void)snprintf(path, cap, "%s/%s", folder, name);
}

static void write_file(const char *path, struct shoal_view view)
{
    FILE *file = fopen(path, "we");

    SHOAL_ASSERT(file != NULL && fwrite(view.bytes, 1, view.len, file) == view.len && fclose(file) == 0);
}

/* The folder, and the good bytes of its three files. */
static const char *folder(struct shoal_buf good[3])
{
    static char path[64];
    static struct shoal_buf kept[3];
    struct shoal_identity_options options = { .data_dir = path, .mesh_name = "fuzz" };
    struct shoal_identity identity;
    struct shoal_msg msg;
    char file[128];

    if (path[0] == '\0') {
        (void)snprintf(path, sizeof(path), "/dev/shm/shoal-fuzz-%d", (int)getpid());
        SHOAL_ASSERT(shoal_crypto_init(&msg) == SHOAL_OK);
        SHOAL_ASSERT(shoal_identity_create(&options, &identity, &msg) == SHOAL_OK);
        for (unsigned i = 0; i < 3; i++) {
            in_folder(path, names[i], file, sizeof(file));
            SHOAL_ASSERT(shoal_disk_read(file, 4096, &kept[i], &msg) == SHOAL_OK);
        }
    }
    memcpy(good, kept, sizeof(kept));
    return path;
}

static void put_sum(uint8_t *bytes, size_t len)
{
    struct shoal_writer w = shoal_writer_init(bytes + len, 4);

    shoal_put_u32(&w, shoal_crc32c(0, shoal_view_of(bytes, len)));
}

static void remove_folder(const char *path)
{
    char file[128];

    for (unsigned i = 0; i < 3; i++) {
        in_folder(path, names[i], file, sizeof(file));
        (void)unlink(file);
    }
    (void)rmdir(path);
}

static char to_remove[64];
static void at_end(void) { remove_folder(to_remove); }

static void identity(struct shoal_view view)
{
    struct shoal_buf good[3];
    const char *path = folder(good);
    struct shoal_identity loaded;
    struct shoal_msg msg = { "" };
    char name[SHOAL_MESH_NAME_MAX + 1];
    char key[SHOAL_MESH_KEY_TEXT_BYTES];
    struct shoal_secret secret;
    enum shoal_err err;
    char file[128];
    unsigned which = view.len == 0 ? 0 : view.bytes[0] % 3;
    uint8_t *bytes = malloc(view.len + 8);

    if (to_remove[0] == '\0') {
        (void)snprintf(to_remove, sizeof(to_remove), "%s", path);
        (void)atexit(at_end);
    }
    SHOAL_ASSERT(bytes != NULL);
    memcpy(bytes, good[which].bytes, 3); /* kind, version, oldest */
    memcpy(bytes + 3, view.bytes, view.len);
    put_sum(bytes, view.len + 3);
    in_folder(path, names[which], file, sizeof(file));
    write_file(file, shoal_view_of(bytes, view.len + 7));
    if (shoal_identity_load(path, "boot", false, &loaded, &msg) == SHOAL_OK) {
        shoal_mesh_key_text(&loaded, key);
        err = shoal_mesh_key_parse(key, name, &secret, &msg);
        SHOAL_ASSERT(err == SHOAL_OK); /* the name that was read is one that a mesh can have */
    } else {
        SHOAL_ASSERT(msg.text[0] != '\0');
    }
    write_file(file, shoal_buf_view(&good[which]));
    free(bytes);
}

static void slots_copy(struct shoal_view view)
{
    static uint8_t again[SHOAL_SLOTS_STATE_BYTES_MAX];
    struct shoal_slots_options options = { .self = { { 1 } }, .slots = 4, .start_ns = 1000 * SHOAL_S };
    struct shoal_slots *slots;
    size_t len;

    if (shoal_slots_restore(&slots, &options, view) != SHOAL_OK)
        return;
    SHOAL_ASSERT(shoal_slots_encode(slots, again, sizeof(again), &len) == SHOAL_OK);
    shoal_slots_destroy(slots);
    SHOAL_ASSERT(shoal_slots_restore(&slots, &options, shoal_view_of(again, len)) == SHOAL_OK);
    shoal_slots_destroy(slots);
}

static void mesh_copy(struct shoal_view view)
{
    struct shoal_mesh *mesh = shoal_mesh_create();
    struct shoal_mesh_command command;

    SHOAL_ASSERT(mesh != NULL);
    (void)!shoal_mesh_decode(mesh, view);
    if (shoal_mesh_command_decode(view, &command) == SHOAL_OK) {
        struct shoal_msg msg = { "" };

        if (shoal_mesh_check(mesh, view, &msg) != SHOAL_OK)
            SHOAL_ASSERT(msg.text[0] != '\0');
    }
    shoal_mesh_destroy(mesh);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len == 0 || len > 4000)
        return 0;
    switch (bytes[0] % 3) {
    case 0: identity(shoal_view_of(bytes + 1, len - 1)); break;
    case 1: slots_copy(shoal_view_of(bytes + 1, len - 1)); break;
    default: mesh_copy(shoal_view_of(bytes + 1, len - 1)); break;
    }
    return 0;
}
