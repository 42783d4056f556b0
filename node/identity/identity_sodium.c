/* The data folder's small files (identity.h). Every file is replaced whole, so a crash leaves the old or the new
 * one. */
#include "shoal/identity.h"

#include "shoal/disk.h"
#include "shoal/hash.h"

#include "node/format.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/banned.h"

#define FILE_VERSION 1
#define FILE_BYTES_MAX 512

/* ---- the three files: header, fields, CRC-32C ---- */

static enum shoal_err path_of(const char *data_dir, const char *name, char path[PATH_MAX], struct shoal_msg *msg)
{
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", data_dir, name) >= PATH_MAX - 16)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the data folder's path is too long");
    return SHOAL_OK;
}

static enum shoal_err fields_save(const char *data_dir, const char *name, struct shoal_writer *w, struct shoal_msg *msg)
{
    char path[PATH_MAX];
    enum shoal_err err = path_of(data_dir, name, path, msg);

    if (err != SHOAL_OK)
        return err;
    shoal_put_u32(w, shoal_crc32c(0, shoal_writer_view(w)));
    SHOAL_ASSERT(!w->failed);
    return shoal_disk_replace(path, shoal_writer_view(w), 0600, msg);
}

/* The fields, behind the header and without the sum; `buf` owns them. */
static enum shoal_err fields_load(const char *data_dir, const char *name, enum format_kind kind, struct shoal_buf *buf,
                                  struct shoal_reader *r, struct shoal_msg *msg)
{
    char path[PATH_MAX];
    struct shoal_reader tail;
    enum shoal_err err = path_of(data_dir, name, path, msg);

    if (err == SHOAL_OK)
        err = shoal_disk_read(path, FILE_BYTES_MAX, buf, msg);
    if (err == SHOAL_ERR_NOT_FOUND)
        return shoal_fail(msg, err, "%s holds no mesh; run `shoal init` or `shoal join` first", data_dir);
    if (err != SHOAL_OK)
        return err;
    if (buf->len < FORMAT_HEADER_BYTES + 4)
        return shoal_fail(msg, SHOAL_ERR_MALFORMED, "%s is cut short; restore it, or join with a new data folder",
                          path);
    tail = shoal_reader_init(shoal_view_of(buf->bytes + buf->len - 4, 4));
    if (shoal_get_u32(&tail) != shoal_crc32c(0, shoal_view_of(buf->bytes, buf->len - 4)))
        return shoal_fail(msg, SHOAL_ERR_MALFORMED, "%s is damaged; restore it, or join with a new data folder", path);
    *r = shoal_reader_init(shoal_view_of(buf->bytes, buf->len - 4));
    if (format_get_header(r, kind, FILE_VERSION) == 0)
        return shoal_fail(msg, SHOAL_ERR_MALFORMED, "%s was written by a newer shoal; start that version", path);
    return SHOAL_OK;
}

static enum shoal_err fields_end(struct shoal_reader *r, const char *data_dir, const char *name, struct shoal_msg *msg)
{
    if (shoal_reader_done(r))
        return SHOAL_OK;
    return shoal_fail(msg, SHOAL_ERR_MALFORMED, "%s/%s does not decode; restore it, or join with a new data folder",
                      data_dir, name);
}

static enum shoal_err identity_save(const char *data_dir, const struct shoal_identity *identity, struct shoal_msg *msg)
{
    uint8_t bytes[FILE_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    enum shoal_err err;

    format_put_header(&w, FORMAT_IDENTITY, FILE_VERSION, 1);
    shoal_put_raw(&w, identity->secret_key.bytes, sizeof(identity->secret_key.bytes));
    shoal_put_store_id(&w, identity->store);
    err = fields_save(data_dir, "identity", &w, msg);
    shoal_wipe(bytes, sizeof(bytes));
    return err;
}

static enum shoal_err identity_read(const char *data_dir, struct shoal_identity *identity, struct shoal_msg *msg)
{
    struct shoal_buf buf = { 0 };
    struct shoal_reader r;
    enum shoal_err err = fields_load(data_dir, "identity", FORMAT_IDENTITY, &buf, &r, msg);

    if (err == SHOAL_OK) {
        struct shoal_secret_key stored;

        shoal_get_raw(&r, stored.bytes, sizeof(stored.bytes));
        identity->store = shoal_get_store_id(&r);
        err = fields_end(&r, data_dir, "identity", msg);
        shoal_key_of_seed(stored.bytes, &identity->public_key, &identity->secret_key);
        identity->node = shoal_node_id_of(&identity->public_key);
        shoal_wipe(&stored, sizeof(stored));
    }
    if (buf.bytes != NULL)
        shoal_wipe(buf.bytes, buf.cap);
    shoal_buf_deinit(&buf);
    return err;
}

static enum shoal_err mesh_save(const char *data_dir, const struct shoal_identity *identity, struct shoal_msg *msg)
{
    uint8_t bytes[FILE_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));
    enum shoal_err err;

    format_put_header(&w, FORMAT_MESH, FILE_VERSION, 1);
    shoal_put_text(&w, identity->mesh_name);
    shoal_put_raw(&w, identity->mesh_secret.bytes, sizeof(identity->mesh_secret.bytes));
    err = fields_save(data_dir, "mesh", &w, msg);
    shoal_wipe(bytes, sizeof(bytes));
    return err;
}

static bool mesh_name_is_valid(const char *name)
{
    size_t len = strlen(name);

    return len >= 1 && len <= SHOAL_MESH_NAME_MAX && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static enum shoal_err mesh_read(const char *data_dir, struct shoal_identity *identity, struct shoal_msg *msg)
{
    struct shoal_buf buf = { 0 };
    struct shoal_reader r;
    enum shoal_err err = fields_load(data_dir, "mesh", FORMAT_MESH, &buf, &r, msg);

    if (err == SHOAL_OK) {
        shoal_get_text(&r, identity->mesh_name, sizeof(identity->mesh_name));
        shoal_get_raw(&r, identity->mesh_secret.bytes, sizeof(identity->mesh_secret.bytes));
        if (!mesh_name_is_valid(identity->mesh_name))
            r.failed = true;
        err = fields_end(&r, data_dir, "mesh", msg);
    }
    if (buf.bytes != NULL)
        shoal_wipe(buf.bytes, buf.cap);
    shoal_buf_deinit(&buf);
    return err;
}

static enum shoal_err boot_save(const char *data_dir, const char *boot_id, struct shoal_incarnation incarnation,
                                struct shoal_msg *msg)
{
    uint8_t bytes[FILE_BYTES_MAX];
    struct shoal_writer w = shoal_writer_init(bytes, sizeof(bytes));

    format_put_header(&w, FORMAT_BOOT, FILE_VERSION, 1);
    shoal_put_text(&w, boot_id);
    shoal_put_u32(&w, incarnation.host_epoch);
    shoal_put_u32(&w, incarnation.agent);
    return fields_save(data_dir, "boot", &w, msg);
}

static enum shoal_err boot_read(const char *data_dir, char boot_id[SHOAL_BOOT_ID_BYTES],
                                struct shoal_incarnation *incarnation, struct shoal_msg *msg)
{
    struct shoal_buf buf = { 0 };
    struct shoal_reader r;
    enum shoal_err err = fields_load(data_dir, "boot", FORMAT_BOOT, &buf, &r, msg);

    if (err == SHOAL_OK) {
        shoal_get_text(&r, boot_id, SHOAL_BOOT_ID_BYTES);
        *incarnation = (struct shoal_incarnation){ 0 };
        incarnation->host_epoch = shoal_get_u32(&r);
        incarnation->agent = shoal_get_u32(&r);
        err = fields_end(&r, data_dir, "boot", msg);
    }
    shoal_buf_deinit(&buf);
    return err;
}

/* ---- the contract ---- */

enum shoal_err shoal_identity_create(const struct shoal_identity_options *options, struct shoal_identity *identity,
                                     struct shoal_msg *msg)
{
    struct shoal_identity made = { 0 };
    char path[PATH_MAX];
    enum shoal_err err;

    if (!mesh_name_is_valid(options->mesh_name))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "a mesh name is 1 to %d of a-z, 0-9 and -, not \"%.80s\"",
                          SHOAL_MESH_NAME_MAX, options->mesh_name);
    err = path_of(options->data_dir, "mesh", path, msg);
    if (err != SHOAL_OK)
        return err;
    if (mkdir(options->data_dir, 0700) != 0 && errno != EEXIST)
        return shoal_disk_fail(msg, "make the data folder", options->data_dir);
    if (access(path, F_OK) == 0)
        return shoal_fail(msg, SHOAL_ERR_EXISTS,
                          "%s belongs to a mesh already; use another data folder, or remove this one",
                          options->data_dir);
    shoal_key_create(&made.public_key, &made.secret_key);
    made.node = shoal_node_id_of(&made.public_key);
    shoal_random(made.store.bytes, sizeof(made.store.bytes));
    made.mesh_secret = options->mesh_secret != NULL ? *options->mesh_secret : shoal_secret_random();
    memcpy(made.mesh_name, options->mesh_name, strlen(options->mesh_name));
    /* `mesh` comes last: a folder without it holds nothing yet, and may be made again after a crash. */
    err = identity_save(options->data_dir, &made, msg);
    if (err == SHOAL_OK)
        err = boot_save(options->data_dir, "", made.incarnation, msg);
    if (err == SHOAL_OK)
        err = mesh_save(options->data_dir, &made, msg);
    if (err == SHOAL_OK)
        *identity = made;
    shoal_wipe(&made, sizeof(made));
    return err;
}

static enum shoal_err kernel_boot_id(char boot_id[SHOAL_BOOT_ID_BYTES], struct shoal_msg *msg)
{
    struct shoal_buf buf = { 0 };
    enum shoal_err err = shoal_disk_read("/proc/sys/kernel/random/boot_id", 64, &buf, msg);

    if (err == SHOAL_OK && buf.len < SHOAL_BOOT_ID_BYTES - 1)
        err = shoal_fail(msg, SHOAL_ERR_STORAGE, "/proc/sys/kernel/random/boot_id is too short; is /proc mounted?");
    if (err == SHOAL_OK) {
        memcpy(boot_id, buf.bytes, SHOAL_BOOT_ID_BYTES - 1);
        boot_id[SHOAL_BOOT_ID_BYTES - 1] = '\0';
    }
    shoal_buf_deinit(&buf);
    return err;
}

static enum shoal_err boot_raise(const char *data_dir, const char *given, struct shoal_identity *identity,
                                 const char *stored, struct shoal_msg *msg)
{
    char current[SHOAL_BOOT_ID_BYTES] = "";
    struct shoal_incarnation *i = &identity->incarnation;
    enum shoal_err err = SHOAL_OK;

    if (given == NULL)
        err = kernel_boot_id(current, msg);
    else
        (void)snprintf(current, sizeof(current), "%s", given);
    if (err != SHOAL_OK)
        return err;
    if (i->host_epoch == UINT32_MAX || i->agent == UINT32_MAX)
        return shoal_fail(msg, SHOAL_ERR_STORAGE, "%s/boot counts no further; join with a new data folder", data_dir);
    if (strcmp(current, stored) != 0)
        i->host_epoch++;
    i->agent++;
    return boot_save(data_dir, current, *i, msg);
}

enum shoal_err shoal_identity_load(const char *data_dir, const char *boot_id, bool raise,
                                   struct shoal_identity *identity, struct shoal_msg *msg)
{
    struct shoal_identity loaded = { 0 };
    char stored[SHOAL_BOOT_ID_BYTES] = "";
    enum shoal_err err = mesh_read(data_dir, &loaded, msg);

    if (err == SHOAL_OK)
        err = identity_read(data_dir, &loaded, msg);
    if (err == SHOAL_OK)
        err = boot_read(data_dir, stored, &loaded.incarnation, msg);
    if (err == SHOAL_OK && raise)
        err = boot_raise(data_dir, boot_id, &loaded, stored, msg);
    if (err == SHOAL_OK)
        *identity = loaded;
    shoal_wipe(&loaded, sizeof(loaded));
    return err;
}

void shoal_identity_wipe(struct shoal_identity *identity) { shoal_wipe(identity, sizeof(*identity)); }

enum shoal_err shoal_folder_lock(const char *data_dir, int *fd, struct shoal_msg *msg)
{
    char path[PATH_MAX];
    enum shoal_err err = path_of(data_dir, "lock", path, msg);
    int opened;

    if (err != SHOAL_OK)
        return err;
    opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (opened < 0)
        return shoal_disk_fail(msg, "open", path);
    if (flock(opened, LOCK_EX | LOCK_NB) != 0) {
        err = errno == EWOULDBLOCK
                  ? shoal_fail(msg, SHOAL_ERR_EXISTS, "another agent runs on %s; stop it, or use another data folder",
                               data_dir)
                  : shoal_disk_fail(msg, "lock", path);
        (void)close(opened);
        return err;
    }
    *fd = opened;
    return SHOAL_OK;
}

void shoal_folder_unlock(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

void shoal_mesh_key_text(const struct shoal_identity *identity, char text[SHOAL_MESH_KEY_TEXT_BYTES])
{
    size_t len = strlen(identity->mesh_name);

    memcpy(text, identity->mesh_name, len);
    text[len] = ':';
    shoal_hex_text(identity->mesh_secret.bytes, sizeof(identity->mesh_secret.bytes), text + len + 1);
}

enum shoal_err shoal_mesh_key_parse(const char *text, char name[SHOAL_MESH_NAME_MAX + 1], struct shoal_secret *secret,
                                    struct shoal_msg *msg)
{
    const char *colon = strchr(text, ':');
    char parsed[SHOAL_MESH_NAME_MAX + 1] = { 0 };
    struct shoal_secret bytes;

    if (colon == NULL || (size_t)(colon - text) > SHOAL_MESH_NAME_MAX)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "a mesh key is name:secret, as `shoal init` prints it");
    memcpy(parsed, text, (size_t)(colon - text));
    if (!mesh_name_is_valid(parsed))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the mesh key's name is not 1 to %d of a-z, 0-9 and -",
                          SHOAL_MESH_NAME_MAX);
    if (!shoal_hex_parse(colon + 1, bytes.bytes, sizeof(bytes.bytes)))
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "the mesh key's secret is not 64 lower-case hex digits; copy it whole");
    memcpy(name, parsed, sizeof(parsed));
    *secret = bytes;
    return SHOAL_OK;
}
