/* The mesh group's state machine (PROTOCOLS 4).
 *
 *     command bytes --decode--> check (says no, changes nothing) --> change
 *
 * M1. The state is a function of the commands and their indexes: no clock, no chance, no pointer value.
 * M2. A refused command changes the version only, so that every replica's version is that of its log.
 * M3. The last enabled administrator stays one: nobody can lock everybody out.
 * M4. A uid is never given twice: each is below the next one to be given.
 * M5. Users and services are in the order of their names, revocations of their tokens, evictions of their ids, each there once.
 * M6. Each table holds what its limit says at most: a command that would exceed it was refused by the check. */
#include "shoal/mesh.h"

#include <stdlib.h>
#include <string.h>

#include "shoal/job_spec.h"
#include "shoal/wire.h"

#include "shoal/banned.h"

#define MESH_FORMAT 1
#define MESH_FIRST_UID 1000u

struct shoal_mesh {
    uint64_t version;
    char name[SHOAL_MESH_TEXT_BYTES];
    bool initialised;
    uint32_t next_uid;
    uint32_t key_count;
    uint8_t keys[SHOAL_MESH_KEYS_MAX][SHOAL_MESH_KEY_BYTES];
    uint32_t user_count;
    uint32_t framework_count;
    uint32_t revocation_count;
    uint32_t eviction_count;
    uint32_t service_count;
    struct shoal_mesh_user users[SHOAL_MESH_USERS_MAX];                   /* in name order */
    struct shoal_mesh_framework frameworks[SHOAL_MESH_FRAMEWORKS_MAX];    /* in order of arrival */
    struct shoal_mesh_revocation revocations[SHOAL_MESH_REVOCATIONS_MAX]; /* in token order */
    struct shoal_node_id evictions[SHOAL_MESH_EVICTIONS_MAX];             /* in order of ids */
    struct shoal_mesh_service services[SHOAL_MESH_SERVICES_MAX];          /* in name order */
};

struct shoal_mesh *shoal_mesh_create(void)
{
    struct shoal_mesh *mesh = calloc(1, sizeof(*mesh));

    if (mesh != NULL)
        mesh->next_uid = MESH_FIRST_UID;
    return mesh;
}

/* The compiler may drop a memset before free; a volatile store it may not. */
static void wipe(void *bytes, size_t len)
{
    SHOAL_ASSERT(bytes != NULL);
    volatile uint8_t *at = bytes;

    for (size_t i = 0; i < len; i++)
        at[i] = 0;
}

void shoal_mesh_destroy(struct shoal_mesh *mesh)
{
    if (mesh == NULL)
        return;
    wipe(mesh->keys, sizeof(mesh->keys));
    free(mesh);
}

/* ---- Texts ---------------------------------------------------------------------------------------------------- */

static char lower(char c) { return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); }

static bool text_same_folded(const char *a, const char *b)
{
    size_t i = 0;

    while (a[i] != '\0' && lower(a[i]) == lower(b[i]))
        i++;
    SHOAL_ASSERT(i < SHOAL_MESH_TEXT_BYTES); /* texts end */
    return lower(a[i]) == lower(b[i]);
}

#define USER_NAME "user name '%s': use 1 to 63 of A-Z a-z 0-9 . _ @ -, a letter or digit first"

static bool name_is_valid(const char *name)
{
    size_t len = strlen(name);

    SHOAL_ASSERT(strlen(name) < SHOAL_MESH_TEXT_BYTES); /* texts end */
    if (len == 0)
        return false;
    for (size_t i = 0; i < len; i++) {
        char c = lower(name[i]);

        if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '@' && c != '-')
            return false;
    }
    return true;
}

/* Its results lie in a folder of that name. */
static bool begins_plain(const char *name)
{
    char c = lower(name[0]);

    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool shoal_mesh_user_name_is_valid(const char *name)
{
    return strlen(name) < SHOAL_MESH_TEXT_BYTES && name_is_valid(name) && begins_plain(name);
}

/* ---- Codec ---------------------------------------------------------------------------------------------------- */

static void put_user(struct shoal_writer *w, const struct shoal_mesh_user *user)
{
    SHOAL_ASSERT(memchr(user->name, 0, sizeof(user->name)) != NULL);         /* texts end */
    SHOAL_ASSERT(memchr(user->password, 0, sizeof(user->password)) != NULL); /* texts end */
    shoal_put_text(w, user->name);
    shoal_put_text(w, user->password);
    shoal_put_u32(w, user->uid);
    shoal_put_bool(w, user->admin);
    shoal_put_bool(w, user->disabled);
    shoal_put_u64(w, user->tokens_from_s);
}

static void get_user(struct shoal_reader *r, struct shoal_mesh_user *user)
{
    SHOAL_ASSERT(user->uid == 0); /* read into zeroes */
    shoal_get_text(r, user->name, sizeof(user->name));
    shoal_get_text(r, user->password, sizeof(user->password));
    user->uid = shoal_get_u32(r);
    user->admin = shoal_get_bool(r);
    user->disabled = shoal_get_bool(r);
    user->tokens_from_s = shoal_get_u64(r);
}

static void put_framework(struct shoal_writer *w, const struct shoal_mesh_framework *framework)
{
    SHOAL_ASSERT(memchr(framework->name, 0, sizeof(framework->name)) != NULL); /* texts end */
    shoal_put_text(w, framework->name);
    shoal_put_bool(w, framework->enabled);
    shoal_put_text(w, framework->settings);
}

static void get_framework(struct shoal_reader *r, struct shoal_mesh_framework *framework)
{
    shoal_get_text(r, framework->name, sizeof(framework->name));
    framework->enabled = shoal_get_bool(r);
    shoal_get_text(r, framework->settings, sizeof(framework->settings));
}

static void put_revocation(struct shoal_writer *w, const struct shoal_mesh_revocation *revocation)
{
    shoal_put_raw(w, revocation->token, sizeof(revocation->token));
    shoal_put_u64(w, revocation->exp_s);
}

static void get_revocation(struct shoal_reader *r, struct shoal_mesh_revocation *revocation)
{
    shoal_get_raw(r, revocation->token, sizeof(revocation->token));
    revocation->exp_s = shoal_get_u64(r);
}

static void put_service(struct shoal_writer *w, const struct shoal_mesh_service *service)
{
    SHOAL_ASSERT(memchr(service->name, 0, sizeof(service->name)) != NULL); /* texts end */
    shoal_put_text(w, service->name);
    shoal_put_text(w, service->creator);
    shoal_put_job_id(w, service->job);
    shoal_put_job_id(w, service->before);
    shoal_put_u64(w, service->created_s);
    shoal_put_u64(w, service->updated_s);
    shoal_put_u32(w, service->version);
    shoal_put_u32(w, service->replicas);
}

static void get_service(struct shoal_reader *r, struct shoal_mesh_service *service)
{
    shoal_get_text(r, service->name, sizeof(service->name));
    shoal_get_text(r, service->creator, sizeof(service->creator));
    service->job = shoal_get_job_id(r);
    service->before = shoal_get_job_id(r);
    service->created_s = shoal_get_u64(r);
    service->updated_s = shoal_get_u64(r);
    service->version = shoal_get_u32(r);
    service->replicas = shoal_get_u32(r);
}

enum shoal_err shoal_mesh_command_encode(const struct shoal_mesh_command *command, uint8_t *bytes, size_t cap,
                                         size_t *len)
{
    struct shoal_writer w = shoal_writer_init(bytes, cap);

    SHOAL_ASSERT((unsigned)command->kind < SHOAL_MESH_COMMAND_KINDS); /* the decoder refuses others */
    shoal_put_u8(&w, MESH_FORMAT);
    shoal_put_u8(&w, (uint8_t)command->kind);
    shoal_put_u64(&w, command->now_s);
    switch (command->kind) {
    case SHOAL_MESH_INIT:
        shoal_put_text(&w, command->name);
        shoal_put_raw(&w, command->key, sizeof(command->key));
        put_user(&w, &command->user);
        break;
    case SHOAL_MESH_ADD_USER:
    case SHOAL_MESH_SET_USER:
    case SHOAL_MESH_SET_PASSWORD: put_user(&w, &command->user); break;
    case SHOAL_MESH_REMOVE_USER:
    case SHOAL_MESH_VOID_TOKENS: shoal_put_text(&w, command->user.name); break;
    case SHOAL_MESH_ROTATE_KEY: shoal_put_raw(&w, command->key, sizeof(command->key)); break;
    case SHOAL_MESH_SET_FRAMEWORK: put_framework(&w, &command->framework); break;
    case SHOAL_MESH_REMOVE_FRAMEWORK: shoal_put_text(&w, command->framework.name); break;
    case SHOAL_MESH_REVOKE: put_revocation(&w, &command->revocation); break;
    case SHOAL_MESH_EVICT:
    case SHOAL_MESH_READMIT: shoal_put_node_id(&w, command->node); break;
    case SHOAL_MESH_SET_SERVICE:
    case SHOAL_MESH_REMOVE_SERVICE: put_service(&w, &command->service); break;
    }
    if (w.failed)
        return SHOAL_ERR_TOO_BIG;
    *len = w.len;
    return SHOAL_OK;
}

enum shoal_err shoal_mesh_command_decode(struct shoal_view bytes, struct shoal_mesh_command *command)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_mesh_command c = { 0 };

    SHOAL_ASSERT(command != NULL);
    if (shoal_get_u8(&r) != MESH_FORMAT)
        return SHOAL_ERR_MALFORMED;
    c.kind = (enum shoal_mesh_command_kind)shoal_get_enum(&r, SHOAL_MESH_COMMAND_KINDS);
    c.now_s = shoal_get_u64(&r);
    switch (c.kind) {
    case SHOAL_MESH_INIT:
        shoal_get_text(&r, c.name, sizeof(c.name));
        shoal_get_raw(&r, c.key, sizeof(c.key));
        get_user(&r, &c.user);
        break;
    case SHOAL_MESH_ADD_USER:
    case SHOAL_MESH_SET_USER:
    case SHOAL_MESH_SET_PASSWORD: get_user(&r, &c.user); break;
    case SHOAL_MESH_REMOVE_USER:
    case SHOAL_MESH_VOID_TOKENS: shoal_get_text(&r, c.user.name, sizeof(c.user.name)); break;
    case SHOAL_MESH_ROTATE_KEY: shoal_get_raw(&r, c.key, sizeof(c.key)); break;
    case SHOAL_MESH_SET_FRAMEWORK: get_framework(&r, &c.framework); break;
    case SHOAL_MESH_REMOVE_FRAMEWORK: shoal_get_text(&r, c.framework.name, sizeof(c.framework.name)); break;
    case SHOAL_MESH_REVOKE: get_revocation(&r, &c.revocation); break;
    case SHOAL_MESH_EVICT:
    case SHOAL_MESH_READMIT: c.node = shoal_get_node_id(&r); break;
    case SHOAL_MESH_SET_SERVICE:
    case SHOAL_MESH_REMOVE_SERVICE: get_service(&r, &c.service); break;
    }
    if (!shoal_reader_done(&r))
        return SHOAL_ERR_MALFORMED;
    *command = c;
    return SHOAL_OK;
}

/* Bytes of the whole state at most, from its counts: so that one reserve is enough. */
static size_t state_bytes(const struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(mesh->user_count <= SHOAL_MESH_USERS_MAX &&
                 mesh->framework_count <= SHOAL_MESH_FRAMEWORKS_MAX);   /* M6 */
    SHOAL_ASSERT(mesh->key_count <= SHOAL_MESH_KEYS_MAX);               /* M6 */
    SHOAL_ASSERT(mesh->revocation_count <= SHOAL_MESH_REVOCATIONS_MAX); /* M6 */
    SHOAL_ASSERT(mesh->eviction_count <= SHOAL_MESH_EVICTIONS_MAX);     /* M6 */
    return 256 + mesh->user_count * (sizeof(struct shoal_mesh_user) + 16) +
           mesh->framework_count * (sizeof(struct shoal_mesh_framework) + 16) +
           mesh->revocation_count * (sizeof(struct shoal_mesh_revocation)) +
           mesh->eviction_count * sizeof(struct shoal_node_id) +
           mesh->service_count * (sizeof(struct shoal_mesh_service) + 16);
}

enum shoal_err shoal_mesh_encode(const struct shoal_mesh *mesh, struct shoal_buf *buf)
{
    size_t cap = state_bytes(mesh);
    enum shoal_err err = shoal_buf_reserve(buf, cap);
    struct shoal_writer w;

    SHOAL_ASSERT(mesh->initialised == (mesh->user_count > 0)); /* M3 */
    if (err != SHOAL_OK)
        return err;
    w = shoal_writer_init(buf->bytes + buf->len, cap);
    shoal_put_u8(&w, MESH_FORMAT);
    shoal_put_u64(&w, mesh->version);
    shoal_put_bool(&w, mesh->initialised);
    shoal_put_text(&w, mesh->name);
    shoal_put_u32(&w, mesh->next_uid);
    shoal_put_u8(&w, (uint8_t)mesh->key_count);
    for (uint32_t i = 0; i < mesh->key_count; i++)
        shoal_put_raw(&w, mesh->keys[i], SHOAL_MESH_KEY_BYTES);
    shoal_put_u32(&w, mesh->user_count);
    for (uint32_t i = 0; i < mesh->user_count; i++)
        put_user(&w, &mesh->users[i]);
    shoal_put_u32(&w, mesh->framework_count);
    for (uint32_t i = 0; i < mesh->framework_count; i++)
        put_framework(&w, &mesh->frameworks[i]);
    shoal_put_u32(&w, mesh->revocation_count);
    for (uint32_t i = 0; i < mesh->revocation_count; i++)
        put_revocation(&w, &mesh->revocations[i]);
    shoal_put_u32(&w, mesh->eviction_count);
    for (uint32_t i = 0; i < mesh->eviction_count; i++)
        shoal_put_node_id(&w, mesh->evictions[i]);
    if (mesh->service_count > 0) /* as older versions wrote it, until there is one */
        shoal_put_u32(&w, mesh->service_count);
    for (uint32_t i = 0; i < mesh->service_count; i++)
        put_service(&w, &mesh->services[i]);
    SHOAL_ASSERT(!w.failed); /* state_bytes() is enough */
    buf->len += w.len;
    return SHOAL_OK;
}

static uint32_t other_admins(const struct shoal_mesh *mesh, const char *name);

static uint32_t get_count(struct shoal_reader *r, uint32_t max)
{
    uint32_t count = shoal_get_u32(r);

    SHOAL_ASSERT(max > 0);
    if (count > max) {
        r->failed = true;
        return 0;
    }
    return count;
}

static void decode_services(struct shoal_reader *r, struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(mesh->service_count == 0); /* read into a fresh state */
    if (r->failed || shoal_reader_left(r) == 0)
        return;
    mesh->service_count = get_count(r, SHOAL_MESH_SERVICES_MAX);
    for (uint32_t i = 0; i < mesh->service_count && !r->failed; i++) {
        get_service(r, &mesh->services[i]);
        if (i > 0 && strcmp(mesh->services[i - 1].name, mesh->services[i].name) >= 0) /* M5 */
            r->failed = true;
    }
}

static void decode_state(struct shoal_reader *r, struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(mesh->user_count == 0); /* read into a fresh state */
    if (shoal_get_u8(r) != MESH_FORMAT)
        r->failed = true;
    mesh->version = shoal_get_u64(r);
    mesh->initialised = shoal_get_bool(r);
    shoal_get_text(r, mesh->name, sizeof(mesh->name));
    mesh->next_uid = shoal_get_u32(r);
    mesh->key_count = shoal_get_enum(r, SHOAL_MESH_KEYS_MAX + 1);
    for (uint32_t i = 0; i < mesh->key_count; i++)
        shoal_get_raw(r, mesh->keys[i], SHOAL_MESH_KEY_BYTES);
    mesh->user_count = get_count(r, SHOAL_MESH_USERS_MAX);
    for (uint32_t i = 0; i < mesh->user_count && !r->failed; i++) {
        get_user(r, &mesh->users[i]);
        if (mesh->users[i].uid >= mesh->next_uid) /* M4 */
            r->failed = true;
        if (i > 0 && strcmp(mesh->users[i - 1].name, mesh->users[i].name) >= 0)
            r->failed = true;
    }
    mesh->framework_count = get_count(r, SHOAL_MESH_FRAMEWORKS_MAX);
    for (uint32_t i = 0; i < mesh->framework_count && !r->failed; i++)
        get_framework(r, &mesh->frameworks[i]);
    mesh->revocation_count = get_count(r, SHOAL_MESH_REVOCATIONS_MAX);
    for (uint32_t i = 0; i < mesh->revocation_count && !r->failed; i++)
        get_revocation(r, &mesh->revocations[i]);
    for (uint32_t i = 1; i < mesh->revocation_count && !r->failed; i++) /* M5 */
        r->failed = memcmp(mesh->revocations[i - 1].token, mesh->revocations[i].token, SHOAL_MESH_TOKEN_ID_BYTES) >= 0;
    mesh->eviction_count = get_count(r, SHOAL_MESH_EVICTIONS_MAX);
    for (uint32_t i = 0; i < mesh->eviction_count && !r->failed; i++)
        mesh->evictions[i] = shoal_get_node_id(r);
    for (uint32_t i = 1; i < mesh->eviction_count && !r->failed; i++) /* M5 */
        r->failed = shoal_node_id_cmp(mesh->evictions[i - 1], mesh->evictions[i]) >= 0;
    decode_services(r, mesh);
    if (mesh->next_uid == UINT32_MAX || mesh->initialised != (mesh->user_count > 0) ||
        (mesh->initialised && (mesh->key_count == 0 || other_admins(mesh, "") == 0))) /* M3, M4 */
        r->failed = true;
}

#define TABLE_BYTES(name) sizeof(((struct shoal_mesh *)NULL)->name)
_Static_assert(offsetof(struct shoal_mesh, users) + TABLE_BYTES(users) + TABLE_BYTES(frameworks) +
                       TABLE_BYTES(revocations) + TABLE_BYTES(evictions) + TABLE_BYTES(services) ==
                   sizeof(struct shoal_mesh),
               "a table that is added is replaced, too");

static size_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Most of each table is zeroes in both, on every node: it is left alone. */
static void replace(struct shoal_mesh *mesh, const struct shoal_mesh *fresh)
{
    size_t users = larger(mesh->user_count, fresh->user_count);
    size_t frameworks = larger(mesh->framework_count, fresh->framework_count);
    size_t revocations = larger(mesh->revocation_count, fresh->revocation_count);
    size_t evictions = larger(mesh->eviction_count, fresh->eviction_count);
    size_t services = larger(mesh->service_count, fresh->service_count);

    SHOAL_ASSERT(users <= SHOAL_MESH_USERS_MAX && frameworks <= SHOAL_MESH_FRAMEWORKS_MAX &&
                 revocations <= SHOAL_MESH_REVOCATIONS_MAX && evictions <= SHOAL_MESH_EVICTIONS_MAX &&
                 services <= SHOAL_MESH_SERVICES_MAX); /* M6 */
    memcpy(mesh, fresh, offsetof(struct shoal_mesh, users));
    memcpy(mesh->users, fresh->users, users * sizeof(mesh->users[0]));
    memcpy(mesh->frameworks, fresh->frameworks, frameworks * sizeof(mesh->frameworks[0]));
    memcpy(mesh->revocations, fresh->revocations, revocations * sizeof(mesh->revocations[0]));
    memcpy(mesh->evictions, fresh->evictions, evictions * sizeof(mesh->evictions[0]));
    memcpy(mesh->services, fresh->services, services * sizeof(mesh->services[0]));
}

enum shoal_err shoal_mesh_decode(struct shoal_mesh *mesh, struct shoal_view bytes)
{
    struct shoal_reader r = shoal_reader_init(bytes);
    struct shoal_mesh *fresh = shoal_mesh_create();
    bool fine;

    SHOAL_ASSERT(mesh != NULL);
    if (fresh == NULL)
        return SHOAL_ERR_FULL;
    decode_state(&r, fresh);
    fine = shoal_reader_done(&r);
    if (fine)
        replace(mesh, fresh);
    shoal_mesh_destroy(fresh);
    return fine ? SHOAL_OK : SHOAL_ERR_MALFORMED;
}

/* ---- Reads ---------------------------------------------------------------------------------------------------- */

uint64_t shoal_mesh_version(const struct shoal_mesh *mesh) { return mesh->version; }
const char *shoal_mesh_name(const struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(memchr(mesh->name, 0, sizeof(mesh->name)) != NULL); /* texts end */
    return mesh->name;
}
size_t shoal_mesh_user_count(const struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(mesh->user_count <= SHOAL_MESH_USERS_MAX); /* M6 */
    return mesh->user_count;
}
size_t shoal_mesh_framework_count(const struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(mesh->framework_count <= SHOAL_MESH_FRAMEWORKS_MAX); /* M6 */
    return mesh->framework_count;
}
size_t shoal_mesh_eviction_count(const struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(mesh->eviction_count <= SHOAL_MESH_EVICTIONS_MAX); /* M6 */
    return mesh->eviction_count;
}

/* The first user not before `name`. */
static uint32_t user_place(const struct shoal_mesh *mesh, const char *name)
{
    uint32_t low = 0;
    uint32_t high = mesh->user_count;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (strcmp(mesh->users[mid].name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    SHOAL_ASSERT(low == mesh->user_count || strcmp(mesh->users[low].name, name) >= 0); /* M5 */
    return low;
}

/* The index, or the count when there is none. */
static uint32_t user_index(const struct shoal_mesh *mesh, const char *name)
{
    uint32_t at = user_place(mesh, name);

    SHOAL_ASSERT(mesh->user_count <= SHOAL_MESH_USERS_MAX); /* M6 */
    return at < mesh->user_count && strcmp(mesh->users[at].name, name) == 0 ? at : mesh->user_count;
}

const struct shoal_mesh_user *shoal_mesh_user_find(const struct shoal_mesh *mesh, const char *name)
{
    uint32_t at = user_index(mesh, name);

    SHOAL_ASSERT(name != NULL);
    return at < mesh->user_count ? &mesh->users[at] : NULL;
}

const struct shoal_mesh_user *shoal_mesh_user_at(const struct shoal_mesh *mesh, size_t i)
{
    SHOAL_ASSERT(mesh->user_count <= SHOAL_MESH_USERS_MAX); /* M6 */
    return i < mesh->user_count ? &mesh->users[i] : NULL;
}

size_t shoal_mesh_token_keys(const struct shoal_mesh *mesh, uint8_t keys[SHOAL_MESH_KEYS_MAX][SHOAL_MESH_KEY_BYTES])
{
    SHOAL_ASSERT(mesh->key_count <= SHOAL_MESH_KEYS_MAX); /* M6 */
    memcpy(keys, mesh->keys, sizeof(mesh->keys));
    return mesh->key_count;
}

static uint32_t framework_index(const struct shoal_mesh *mesh, const char *name)
{
    SHOAL_ASSERT(mesh->framework_count <= SHOAL_MESH_FRAMEWORKS_MAX); /* M6 */
    for (uint32_t i = 0; i < mesh->framework_count; i++) {
        if (text_same_folded(mesh->frameworks[i].name, name))
            return i;
    }
    return mesh->framework_count;
}

const struct shoal_mesh_framework *shoal_mesh_framework_find(const struct shoal_mesh *mesh, const char *name)
{
    uint32_t at = framework_index(mesh, name);

    SHOAL_ASSERT(name != NULL);
    return at < mesh->framework_count ? &mesh->frameworks[at] : NULL;
}

const struct shoal_mesh_framework *shoal_mesh_framework_at(const struct shoal_mesh *mesh, size_t i)
{
    SHOAL_ASSERT(mesh->framework_count <= SHOAL_MESH_FRAMEWORKS_MAX); /* M6 */
    return i < mesh->framework_count ? &mesh->frameworks[i] : NULL;
}

static uint32_t revocation_place(const struct shoal_mesh *mesh, const uint8_t *token)
{
    uint32_t low = 0;
    uint32_t high = mesh->revocation_count;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (memcmp(mesh->revocations[mid].token, token, SHOAL_MESH_TOKEN_ID_BYTES) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    SHOAL_ASSERT(low == mesh->revocation_count ||
                 memcmp(mesh->revocations[low].token, token, SHOAL_MESH_TOKEN_ID_BYTES) >= 0); /* M5 */
    return low;
}

bool shoal_mesh_token_revoked(const struct shoal_mesh *mesh, const uint8_t token[SHOAL_MESH_TOKEN_ID_BYTES])
{
    uint32_t at = revocation_place(mesh, token);

    SHOAL_ASSERT(mesh->revocation_count <= SHOAL_MESH_REVOCATIONS_MAX); /* M6 */
    return at < mesh->revocation_count && memcmp(mesh->revocations[at].token, token, SHOAL_MESH_TOKEN_ID_BYTES) == 0;
}

/* Revocations that are still of use at `now_s`; of one user if the ids begin with these bytes. */
static uint32_t revocations_left(const struct shoal_mesh *mesh, uint64_t now_s, const uint8_t *begin, size_t len)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < mesh->revocation_count; i++) {
        const struct shoal_mesh_revocation *revocation = &mesh->revocations[i];

        left += revocation->exp_s >= now_s && (len == 0 || memcmp(revocation->token, begin, len) == 0) ? 1 : 0;
    }
    SHOAL_ASSERT(left <= mesh->revocation_count);
    return left;
}

bool shoal_mesh_revokes_singly(const struct shoal_mesh *mesh, uint32_t uid, uint64_t now_s)
{
    uint8_t begin[SHOAL_TOKEN_ID_UID_BYTES];
    struct shoal_writer w = shoal_writer_init(begin, sizeof(begin));

    SHOAL_ASSERT(mesh->revocation_count <= SHOAL_MESH_REVOCATIONS_MAX); /* M6 */
    shoal_put_u32(&w, uid);
    return revocations_left(mesh, now_s, begin, sizeof(begin)) < SHOAL_MESH_USER_REVOCATIONS_MAX &&
           revocations_left(mesh, now_s, NULL, 0) < SHOAL_MESH_REVOCATIONS_MAX - SHOAL_MESH_REVOCATIONS_RESERVE;
}

static uint32_t eviction_place(const struct shoal_mesh *mesh, struct shoal_node_id node)
{
    uint32_t at = 0;

    SHOAL_ASSERT(mesh->eviction_count <= SHOAL_MESH_EVICTIONS_MAX); /* M6 */
    while (at < mesh->eviction_count && shoal_node_id_cmp(mesh->evictions[at], node) < 0)
        at++;
    return at;
}

bool shoal_mesh_evicted(const struct shoal_mesh *mesh, struct shoal_node_id node)
{
    uint32_t at = eviction_place(mesh, node);

    SHOAL_ASSERT(mesh->eviction_count <= SHOAL_MESH_EVICTIONS_MAX); /* M6 */
    return at < mesh->eviction_count && shoal_node_id_equal(mesh->evictions[at], node);
}

struct shoal_node_id shoal_mesh_eviction_at(const struct shoal_mesh *mesh, size_t i)
{
    SHOAL_ASSERT(mesh->eviction_count <= SHOAL_MESH_EVICTIONS_MAX); /* M6 */
    return i < mesh->eviction_count ? mesh->evictions[i] : (struct shoal_node_id){ { 0 } };
}

/* The first service not before `name`. */
static uint32_t service_place(const struct shoal_mesh *mesh, const char *name)
{
    uint32_t low = 0, high = mesh->service_count;

    SHOAL_ASSERT(mesh->service_count <= SHOAL_MESH_SERVICES_MAX); /* M6 */
    while (low < high) { /* M5 */
        uint32_t mid = low + (high - low) / 2;

        if (strcmp(mesh->services[mid].name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct shoal_mesh_service *shoal_mesh_service_find(const struct shoal_mesh *mesh, const char *name)
{
    uint32_t at = service_place(mesh, name);

    SHOAL_ASSERT(name != NULL);
    return at < mesh->service_count && strcmp(mesh->services[at].name, name) == 0 ? &mesh->services[at] : NULL;
}

size_t shoal_mesh_service_count(const struct shoal_mesh *mesh)
{
    SHOAL_ASSERT(mesh->service_count <= SHOAL_MESH_SERVICES_MAX); /* M6 */
    return mesh->service_count;
}

const struct shoal_mesh_service *shoal_mesh_service_at(const struct shoal_mesh *mesh, size_t i)
{
    SHOAL_ASSERT(mesh->service_count <= SHOAL_MESH_SERVICES_MAX); /* M6 */
    return i < mesh->service_count ? &mesh->services[i] : NULL;
}

/* ---- Checks: what a command may not do -------------------------------------------------------------------------- */

/* Enabled administrators other than `name`. */
static uint32_t other_admins(const struct shoal_mesh *mesh, const char *name)
{
    uint32_t count = 0;

    SHOAL_ASSERT(mesh->user_count <= SHOAL_MESH_USERS_MAX); /* M6 */
    for (uint32_t i = 0; i < mesh->user_count; i++) {
        const struct shoal_mesh_user *user = &mesh->users[i];

        if (user->admin && !user->disabled && strcmp(user->name, name) != 0)
            count++;
    }
    return count;
}

static enum shoal_err check_new_user(const struct shoal_mesh *mesh, const struct shoal_mesh_user *user,
                                     struct shoal_msg *msg)
{
    SHOAL_ASSERT(mesh->user_count <= SHOAL_MESH_USERS_MAX); /* M6 */
    if (!name_is_valid(user->name))
        return shoal_fail(msg, SHOAL_ERR_INVALID, USER_NAME, user->name);
    if (user->password[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "user '%s' has no password hash", user->name);
    if (shoal_mesh_user_find(mesh, user->name) != NULL)
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "user '%s' exists already", user->name);
    if (mesh->user_count == SHOAL_MESH_USERS_MAX)
        return shoal_fail(msg, SHOAL_ERR_FULL, "the mesh has %u users, its limit; remove one first",
                          (unsigned)SHOAL_MESH_USERS_MAX);
    return SHOAL_OK;
}

static enum shoal_err check_user(const struct shoal_mesh *mesh, const struct shoal_mesh_command *c,
                                 struct shoal_msg *msg)
{
    const struct shoal_mesh_user *user = shoal_mesh_user_find(mesh, c->user.name);
    bool stays_admin =
        c->kind == SHOAL_MESH_SET_USER ? c->user.admin && !c->user.disabled : c->kind != SHOAL_MESH_REMOVE_USER;

    SHOAL_ASSERT(mesh->initialised); /* check() has looked */
    if (user == NULL)
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "no user '%s'", c->user.name);
    if (c->kind == SHOAL_MESH_SET_PASSWORD && c->user.password[0] == '\0')
        return shoal_fail(msg, SHOAL_ERR_INVALID, "user '%s': the new password hash is empty", c->user.name);
    if (user->admin && !user->disabled && !stays_admin && other_admins(mesh, user->name) == 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "'%s' is the last administrator; make another one first", user->name);
    return SHOAL_OK;
}

static enum shoal_err check_init(const struct shoal_mesh *mesh, const struct shoal_mesh_command *c,
                                 struct shoal_msg *msg)
{
    SHOAL_ASSERT(c->kind == SHOAL_MESH_INIT);
    if (mesh->initialised)
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "this mesh is '%s' already", mesh->name);
    if (!name_is_valid(c->name))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "mesh name '%s': use 1 to 63 of a-z 0-9 -", c->name);
    if (!c->user.admin || c->user.disabled)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "the first user must be an administrator");
    return check_new_user(mesh, &c->user, msg);
}

static enum shoal_err check_service(const struct shoal_mesh *mesh, const struct shoal_mesh_command *c,
                                    struct shoal_msg *msg)
{
    const struct shoal_mesh_service *service = shoal_mesh_service_find(mesh, c->service.name);
    bool sets = c->kind == SHOAL_MESH_SET_SERVICE;

    SHOAL_ASSERT(mesh->initialised); /* check() has looked */
    if (!shoal_service_name_valid(c->service.name))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "service name '%s' is not valid", c->service.name);
    if (service == NULL && (!sets || !shoal_job_id_is_mesh(c->service.before)))
        return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "no service '%s'", c->service.name);
    if (service == NULL && mesh->service_count == SHOAL_MESH_SERVICES_MAX)
        return shoal_fail(msg, SHOAL_ERR_FULL, "the mesh has %u services, its limit; delete one first",
                          (unsigned)SHOAL_MESH_SERVICES_MAX);
    if (service == NULL)
        return SHOAL_OK;
    if (strcmp(service->creator, c->service.creator) != 0)
        return shoal_fail(msg, SHOAL_ERR_DENIED, "the service '%s' belongs to %s", service->name, service->creator);
    if (shoal_job_id_is_mesh(c->service.before))
        return shoal_fail(msg, SHOAL_ERR_EXISTS, "service '%s' exists already", service->name);
    if (!shoal_job_id_equal(service->job, c->service.before))
        return shoal_fail(msg, SHOAL_ERR_STALE, "the service '%s' was changed by somebody else; look again",
                          service->name);
    return SHOAL_OK;
}

static enum shoal_err check(const struct shoal_mesh *mesh, const struct shoal_mesh_command *c, struct shoal_msg *msg)
{
    SHOAL_ASSERT((unsigned)c->kind < SHOAL_MESH_COMMAND_KINDS); /* decoded */
    if (c->kind == SHOAL_MESH_INIT)
        return check_init(mesh, c, msg);
    if (!mesh->initialised)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "this mesh has not been set up; run `shoal init`");
    switch (c->kind) {
    case SHOAL_MESH_ADD_USER: return check_new_user(mesh, &c->user, msg);
    case SHOAL_MESH_SET_USER:
    case SHOAL_MESH_SET_PASSWORD:
    case SHOAL_MESH_REMOVE_USER:
    case SHOAL_MESH_VOID_TOKENS: return check_user(mesh, c, msg);
    case SHOAL_MESH_SET_FRAMEWORK:
        if (!name_is_valid(c->framework.name))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "framework name '%s' is not valid", c->framework.name);
        if (framework_index(mesh, c->framework.name) == SHOAL_MESH_FRAMEWORKS_MAX)
            return shoal_fail(msg, SHOAL_ERR_FULL, "the mesh has %u frameworks, its limit",
                              (unsigned)SHOAL_MESH_FRAMEWORKS_MAX);
        return SHOAL_OK;
    case SHOAL_MESH_REMOVE_FRAMEWORK:
        if (framework_index(mesh, c->framework.name) == mesh->framework_count)
            return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "no framework '%s'", c->framework.name);
        return SHOAL_OK;
    case SHOAL_MESH_REVOKE:
        if (!shoal_mesh_token_revoked(mesh, c->revocation.token) &&
            revocations_left(mesh, c->now_s, NULL, 0) == SHOAL_MESH_REVOCATIONS_MAX)
            return shoal_fail(msg, SHOAL_ERR_FULL, "%u tokens are revoked, the limit; void the user's tokens instead",
                              (unsigned)SHOAL_MESH_REVOCATIONS_MAX);
        return SHOAL_OK;
    case SHOAL_MESH_EVICT:
        if (!shoal_mesh_evicted(mesh, c->node) && mesh->eviction_count == SHOAL_MESH_EVICTIONS_MAX)
            return shoal_fail(msg, SHOAL_ERR_FULL, "%u nodes are evicted, the limit; change the mesh secret instead",
                              (unsigned)SHOAL_MESH_EVICTIONS_MAX);
        return SHOAL_OK;
    case SHOAL_MESH_READMIT:
        if (!shoal_mesh_evicted(mesh, c->node))
            return shoal_fail(msg, SHOAL_ERR_NOT_FOUND, "that node is not evicted");
        return SHOAL_OK;
    case SHOAL_MESH_SET_SERVICE:
    case SHOAL_MESH_REMOVE_SERVICE: return check_service(mesh, c, msg);
    case SHOAL_MESH_INIT:
    case SHOAL_MESH_ROTATE_KEY: return SHOAL_OK;
    }
    return SHOAL_ERR_MALFORMED;
}

enum shoal_err shoal_mesh_check(const struct shoal_mesh *mesh, struct shoal_view command, struct shoal_msg *msg)
{
    struct shoal_mesh_command c;
    enum shoal_err err = shoal_mesh_command_decode(command, &c);

    SHOAL_ASSERT(mesh->initialised == (mesh->user_count > 0)); /* M3 */
    if (err != SHOAL_OK)
        return shoal_fail(msg, err, "the command does not decode; is this node older than the one that sent it?");
    /* Not where entries are applied: a leader of the version before takes others. */
    if ((c.kind == SHOAL_MESH_INIT || c.kind == SHOAL_MESH_ADD_USER) && !shoal_mesh_user_name_is_valid(c.user.name))
        return shoal_fail(msg, SHOAL_ERR_INVALID, USER_NAME, c.user.name);
    return check(mesh, &c, msg);
}

/* ---- Changes ---------------------------------------------------------------------------------------------------- */

static void add_user(struct shoal_mesh *mesh, const struct shoal_mesh_user *user)
{
    uint32_t at = user_place(mesh, user->name);

    SHOAL_ASSERT(mesh->user_count < SHOAL_MESH_USERS_MAX);                                /* M6 */
    SHOAL_ASSERT(at == mesh->user_count || strcmp(mesh->users[at].name, user->name) > 0); /* M5 */
    SHOAL_ASSERT(mesh->next_uid < UINT32_MAX);                                            /* M4 */
    memmove(&mesh->users[at + 1], &mesh->users[at], (mesh->user_count - at) * sizeof(mesh->users[0]));
    mesh->users[at] = *user;
    mesh->users[at].uid = mesh->next_uid++;
    mesh->users[at].tokens_from_s = 0;
    mesh->user_count++;
}

static void remove_user(struct shoal_mesh *mesh, const char *name)
{
    uint32_t at = user_index(mesh, name);

    SHOAL_ASSERT(at < mesh->user_count);        /* the check refused what names nobody */
    SHOAL_ASSERT(other_admins(mesh, name) > 0); /* M3 */
    mesh->user_count--;
    memmove(&mesh->users[at], &mesh->users[at + 1], (mesh->user_count - at) * sizeof(mesh->users[0]));
}

static void set_framework(struct shoal_mesh *mesh, const struct shoal_mesh_framework *framework)
{
    uint32_t at = framework_index(mesh, framework->name);

    SHOAL_ASSERT(at < SHOAL_MESH_FRAMEWORKS_MAX);                     /* M6 */
    SHOAL_ASSERT(mesh->framework_count <= SHOAL_MESH_FRAMEWORKS_MAX); /* M6 */
    mesh->frameworks[at] = *framework;
    if (at == mesh->framework_count)
        mesh->framework_count++;
}

static void remove_framework(struct shoal_mesh *mesh, const char *name)
{
    uint32_t at = framework_index(mesh, name);

    SHOAL_ASSERT(at < mesh->framework_count); /* the check refused what names nothing */
    mesh->framework_count--;
    memmove(&mesh->frameworks[at], &mesh->frameworks[at + 1],
            (mesh->framework_count - at) * sizeof(mesh->frameworks[0]));
}

static void init(struct shoal_mesh *mesh, const struct shoal_mesh_command *c)
{
    static const char *const defaults[] = { "PyTorch", "edtPyTorch" };

    SHOAL_ASSERT(!mesh->initialised && mesh->user_count == 0); /* a mesh is set up once */
    SHOAL_ASSERT(c->kind == SHOAL_MESH_INIT);
    mesh->initialised = true;
    memcpy(mesh->name, c->name, sizeof(mesh->name));
    memcpy(mesh->keys[0], c->key, SHOAL_MESH_KEY_BYTES);
    mesh->key_count = 1;
    add_user(mesh, &c->user);
    for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++) {
        struct shoal_mesh_framework framework = { .enabled = true };

        memcpy(framework.name, defaults[i], strlen(defaults[i]));
        set_framework(mesh, &framework);
    }
}

static void rotate_key(struct shoal_mesh *mesh, const uint8_t *key)
{
    SHOAL_ASSERT(mesh->key_count > 0);                    /* set up with one */
    SHOAL_ASSERT(mesh->key_count <= SHOAL_MESH_KEYS_MAX); /* M6 */
    memmove(mesh->keys[1], mesh->keys[0], SHOAL_MESH_KEY_BYTES);
    memcpy(mesh->keys[0], key, SHOAL_MESH_KEY_BYTES);
    mesh->key_count = mesh->key_count < SHOAL_MESH_KEYS_MAX ? mesh->key_count + 1 : SHOAL_MESH_KEYS_MAX;
}

static void revoke(struct shoal_mesh *mesh, const struct shoal_mesh_command *c)
{
    uint32_t kept = 0;
    uint32_t at;

    SHOAL_ASSERT(c->kind == SHOAL_MESH_REVOKE);
    for (uint32_t i = 0; i < mesh->revocation_count; i++) {
        if (mesh->revocations[i].exp_s >= c->now_s)
            mesh->revocations[kept++] = mesh->revocations[i];
    }
    mesh->revocation_count = kept;
    at = revocation_place(mesh, c->revocation.token);
    if (shoal_mesh_token_revoked(mesh, c->revocation.token)) {
        mesh->revocations[at] = c->revocation;
        return;
    }
    SHOAL_ASSERT(kept < SHOAL_MESH_REVOCATIONS_MAX); /* M6 */
    memmove(&mesh->revocations[at + 1], &mesh->revocations[at], (kept - at) * sizeof(mesh->revocations[0]));
    mesh->revocations[at] = c->revocation;
    mesh->revocation_count++;
}

static void evict(struct shoal_mesh *mesh, struct shoal_node_id node)
{
    uint32_t at = eviction_place(mesh, node);

    if (shoal_mesh_evicted(mesh, node))
        return;
    SHOAL_ASSERT(mesh->eviction_count < SHOAL_MESH_EVICTIONS_MAX); /* M6 */
    memmove(&mesh->evictions[at + 1], &mesh->evictions[at], (mesh->eviction_count - at) * sizeof(mesh->evictions[0]));
    mesh->evictions[at] = node;
    mesh->eviction_count++;
}

static void readmit(struct shoal_mesh *mesh, struct shoal_node_id node)
{
    uint32_t at = eviction_place(mesh, node);

    SHOAL_ASSERT(shoal_mesh_evicted(mesh, node)); /* the check refused what names nobody */
    SHOAL_ASSERT(mesh->eviction_count > 0);
    mesh->eviction_count--;
    memmove(&mesh->evictions[at], &mesh->evictions[at + 1], (mesh->eviction_count - at) * sizeof(mesh->evictions[0]));
}

static void set_service(struct shoal_mesh *mesh, const struct shoal_mesh_command *c)
{
    uint32_t at = service_place(mesh, c->service.name);
    struct shoal_mesh_service *service = &mesh->services[at];

    if (at == mesh->service_count || strcmp(service->name, c->service.name) != 0) {
        SHOAL_ASSERT(mesh->service_count < SHOAL_MESH_SERVICES_MAX); /* M6 */
        memmove(service + 1, service, (mesh->service_count - at) * sizeof(mesh->services[0]));
        *service = c->service;
        service->created_s = c->now_s;
        service->version = 0;
        mesh->service_count++;
    }
    service->job = c->service.job;
    service->replicas = c->service.replicas;
    service->before = c->service.before;
    service->updated_s = c->now_s;
    service->version++;
}

static void remove_service(struct shoal_mesh *mesh, const char *name)
{
    uint32_t at = service_place(mesh, name);

    SHOAL_ASSERT(at < mesh->service_count); /* the check refused what names nothing */
    mesh->service_count--;
    memmove(&mesh->services[at], &mesh->services[at + 1], (mesh->service_count - at) * sizeof(mesh->services[0]));
}

static void change(struct shoal_mesh *mesh, const struct shoal_mesh_command *c)
{
    uint32_t at = user_index(mesh, c->user.name);
    struct shoal_mesh_user *user = at < mesh->user_count ? &mesh->users[at] : NULL;

    /* shoal_mesh_check() has refused what names nobody. */
    SHOAL_ASSERT(mesh->initialised || c->kind == SHOAL_MESH_INIT);
    SHOAL_ASSERT(user != NULL || (c->kind != SHOAL_MESH_SET_USER && c->kind != SHOAL_MESH_SET_PASSWORD &&
                                  c->kind != SHOAL_MESH_VOID_TOKENS));
    switch (c->kind) {
    case SHOAL_MESH_INIT: init(mesh, c); break;
    case SHOAL_MESH_ADD_USER: add_user(mesh, &c->user); break;
    case SHOAL_MESH_SET_USER:
        user->admin = c->user.admin;
        user->disabled = c->user.disabled;
        break;
    case SHOAL_MESH_SET_PASSWORD:
        memcpy(user->password, c->user.password, sizeof(user->password));
        user->tokens_from_s = c->now_s;
        break;
    case SHOAL_MESH_REMOVE_USER: remove_user(mesh, c->user.name); break;
    case SHOAL_MESH_ROTATE_KEY: rotate_key(mesh, c->key); break;
    case SHOAL_MESH_SET_FRAMEWORK: set_framework(mesh, &c->framework); break;
    case SHOAL_MESH_REMOVE_FRAMEWORK: remove_framework(mesh, c->framework.name); break;
    case SHOAL_MESH_REVOKE: revoke(mesh, c); break;
    case SHOAL_MESH_VOID_TOKENS: user->tokens_from_s = c->now_s; break;
    case SHOAL_MESH_EVICT: evict(mesh, c->node); break;
    case SHOAL_MESH_READMIT: readmit(mesh, c->node); break;
    case SHOAL_MESH_SET_SERVICE: set_service(mesh, c); break;
    case SHOAL_MESH_REMOVE_SERVICE: remove_service(mesh, c->service.name); break;
    }
    SHOAL_ASSERT(other_admins(mesh, "") > 0); /* M3 */
}

enum shoal_err shoal_mesh_apply(struct shoal_mesh *mesh, uint64_t index, struct shoal_view command,
                                struct shoal_msg *msg)
{
    struct shoal_mesh_command c;
    enum shoal_err err;

    if (index <= mesh->version)
        return shoal_fail(msg, SHOAL_ERR_STALE, "entry %llu is not above version %llu", (unsigned long long)index,
                          (unsigned long long)mesh->version);
    SHOAL_ASSERT(index > mesh->version); /* M2: it only rises */
    mesh->version = index;
    err = shoal_mesh_command_decode(command, &c);
    if (err != SHOAL_OK)
        return shoal_fail(msg, err, "the command does not decode");
    err = check(mesh, &c, msg);
    if (err == SHOAL_OK)
        change(mesh, &c);
    return err;
}
