/* This file checks the contents of a model's package. See package_check.h. */
#include "package_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shoal/limits.h"

#include "api/http/json_input.h"

#include "shoal/banned.h"

#define MODEL_JSON_BYTES_MAX (256u * SHOAL_KIB)
#define ENTRIES_STEP 256u

/* The text begins as WMLA's does. */
static enum shoal_err invalid_key(const struct json_value *root, const char *key, bool strict, struct shoal_msg *msg)
{
    static const char *const texts[] = { "name", "kernel_path", "runtime", "tag", "weight_path", "readme" };
    const char *why = "";

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (strncmp(key, texts[i], strlen(texts[i])) != 0)
            continue;
        if (json_input_get(root, texts[i]) == NULL)
            why = strict ? " (it is missing; dlim wants name, kernel_path, runtime and weight_path)" : " (it is missing)";
        else if (json_input_text(root, texts[i]) == NULL)
            why = " (it is no text)";
    }
    return shoal_fail(msg, SHOAL_ERR_INVALID, "model.json is invalid: %s%s", key, why);
}

static unsigned depth_of(const char *path)
{
    unsigned depth = 0;

    for (; *path != '\0'; path++)
        depth += *path == '/';
    return depth;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

enum shoal_err package_find_model(const struct package_entry *entries, size_t count, size_t *found,
                                  struct shoal_msg *msg)
{
    size_t best = count;
    unsigned same = 0;

    for (size_t i = 0; i < count; i++) {
        if (entries[i].is_dir || strcmp(base_of(entries[i].path), "model.json") != 0)
            continue;
        if (best == count || depth_of(entries[i].path) < depth_of(entries[best].path)) {
            best = i;
            same = 1;
        } else if (depth_of(entries[i].path) == depth_of(entries[best].path)) {
            same++;
        }
    }
    if (same > 1)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          "model.json is missing in the package. (%u folders have one; pack one model)", same);
    *found = best;
    return SHOAL_OK;
}

/* ---- what model.json says ---- */

/* Copies a text of model.json. False: it is missing though it must not be, is no text, or is too long. */
static bool take_text(const struct json_value *root, const char *key, bool needed, char *out, size_t cap)
{
    const struct json_value *value = json_input_get(root, key);
    const char *text = json_input_text(root, key);

    out[0] = '\0';
    if (value == NULL)
        return !needed;
    if (text == NULL || strlen(text) >= cap || (needed && text[0] == '\0'))
        return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

static bool is_letter_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool name_is_good(const char *name)
{
    size_t len = strlen(name);

    if (len == 0 || !is_letter_or_digit(name[0]) || !is_letter_or_digit(name[len - 1]))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!is_letter_or_digit(name[i]) && name[i] != '-' && name[i] != '_' && name[i] != '.')
            return false;
    return true;
}

/* A list of {"key": text, "value": text}, or of {"name": ..., "value": ...}. */
static bool pairs_are_good(const struct json_value *root, const char *list, const char *key)
{
    const struct json_value *pairs = json_input_get(root, list);

    if (pairs == NULL)
        return true;
    if (!json_input_is_array(pairs))
        return false;
    for (size_t i = 0; i < json_input_count(pairs); i++) {
        const struct json_value *pair = json_input_at(pairs, i);

        if (!json_input_is_object(pair) || json_input_text(pair, key) == NULL || json_input_text(pair, "value") == NULL)
            return false;
    }
    return true;
}

/* Normal form of a path that a person wrote: no "." and no empty component. False: it leaves the folder, or is none. */
static bool normal_path(const char *path, char *out, size_t cap)
{
    size_t len = 0;

    if (path[0] == '/')
        return false;
    while (*path != '\0') {
        size_t piece = strcspn(path, "/");

        if (piece == 2 && path[0] == '.' && path[1] == '.')
            return false;
        if (piece > 0 && !(piece == 1 && path[0] == '.')) {
            if (len + piece + 2 > cap)
                return false;
            if (len > 0)
                out[len++] = '/';
            memcpy(out + len, path, piece);
            len += piece;
        }
        path += piece;
        while (*path == '/')
            path++;
    }
    out[len] = '\0';
    return len > 0;
}

static const char *wrong_key(const struct json_value *root, bool strict, struct package *package)
{
    char ignored[PACKAGE_TEXT_BYTES_MAX];

    if (!take_text(root, "name", strict, package->name, sizeof(package->name)) ||
        (package->name[0] != '\0' && !name_is_good(package->name)))
        return "name (letters, digits, '-', '_' and '.', the first and last a letter or digit, at most 200)";
    if (!take_text(root, "kernel_path", strict, package->kernel_path, sizeof(package->kernel_path)))
        return "kernel_path";
    if (!take_text(root, "runtime", strict, package->runtime, sizeof(package->runtime)))
        return "runtime";
    if (!take_text(root, "tag", false, package->tag, sizeof(package->tag)))
        return "tag";
    if (!take_text(root, "weight_path", false, package->weight_path, sizeof(package->weight_path)) ||
        (strict && json_input_get(root, "weight_path") == NULL))
        return "weight_path";
    if (!take_text(root, "readme", false, ignored, sizeof(ignored)))
        return "readme";
    if (!pairs_are_good(root, "attributes", "key"))
        return "attributes";
    return pairs_are_good(root, "mk_environments", "name") ? NULL : "mk_environments";
}

/* ---- against the files ---- */

/* The file `name` of the package's root, NULL: there is none. */
static const struct package_entry *file_at(const struct package_entry *entries, size_t count, const char *root,
                                           const char *name, bool any_case)
{
    size_t root_len = strlen(root);

    for (size_t i = 0; i < count; i++) {
        const char *path = entries[i].path;

        if (entries[i].is_dir)
            continue;
        if (root_len > 0 && (strncmp(path, root, root_len) != 0 || path[root_len] != '/'))
            continue;
        path += root_len > 0 ? root_len + 1 : 0;
        if (any_case ? strcasecmp(path, name) == 0 : strcmp(path, name) == 0)
            return &entries[i];
    }
    return NULL;
}

/* A kernel host loads these without code; the same list is in pyedt/_kernel_files.py. */
static const char *const model_kinds[] = { ".h5", ".hdf5",   ".joblib", ".json", ".keras", ".onnx", ".pickle", ".pkl",
                                           ".pt", ".pt2",    ".pth",    ".skops", ".ts",   ".ubj",  ".xgb" };
#define MODEL_KINDS ".h5 .hdf5 .joblib .json .keras .onnx .pickle .pkl .pt .pt2 .pth .skops .ts .ubj .xgb"
#define NO_KERNEL "the package has no kernel (kernel_path of model.json), and "

static bool is_of_a_kind(const char *name)
{
    const char *dot = strrchr(name, '.');

    for (size_t i = 0; dot != NULL && dot > name && i < sizeof(model_kinds) / sizeof(model_kinds[0]); i++)
        if (strcasecmp(dot, model_kinds[i]) == 0)
            return true;
    return false;
}

/* The path within the root; NULL: it lies elsewhere. */
static const char *below_root(const char *path, const char *root)
{
    size_t len = strlen(root);

    if (len == 0)
        return path;
    return strncmp(path, root, len) == 0 && path[len] == '/' ? path + len + 1 : NULL;
}

/* Whether this entry is a model at the package's top: a file of a known kind, or the graph of a SavedModel's folder. JSON may
 * be a sample, and counts where nothing else does. */
static bool is_model(const struct package_entry *entry, const char *root, bool json)
{
    const char *path = below_root(entry->path, root);
    const char *dot = path == NULL ? NULL : strrchr(path, '.');

    if (path == NULL || entry->is_dir || path[0] == '.')
        return false;
    if (strcmp(base_of(path), "saved_model.pb") == 0)
        return depth_of(path) <= 1;
    return depth_of(path) == 0 && is_of_a_kind(path) && strcmp(path, "model.json") != 0 &&
           (dot != NULL && strcasecmp(dot, ".json") == 0) == json;
}

/* Whether `named` is a file, or the folder of a SavedModel. */
static bool is_there(const struct package_entry *entries, size_t count, const char *root, const char *named)
{
    char path[PACKAGE_PATH_BYTES_MAX + sizeof("/saved_model.pb")];
    char normal[PACKAGE_PATH_BYTES_MAX];

    if (!normal_path(named, normal, sizeof(normal)))
        return false;
    (void)snprintf(path, sizeof(path), "%s/saved_model.pb", normal);
    return file_at(entries, count, root, normal, false) != NULL || file_at(entries, count, root, path, false) != NULL;
}

/* A package without a model.json: its kernel host runs in the one folder that holds everything, if there is one. */
static void take_only_folder(const struct package_entry *entries, size_t count, struct package *package)
{
    size_t len = count == 0 ? 0 : strcspn(entries[0].path, "/");
    bool all = count > 0 && len < sizeof(package->root);

    for (size_t i = 0; all && i < count; i++)
        all = strncmp(entries[i].path, entries[0].path, len) == 0 &&
              (entries[i].path[len] == '/' || (entries[i].path[len] == '\0' && entries[i].is_dir));
    if (!all)
        return;
    memcpy(package->root, entries[0].path, len);
    package->root[len] = '\0';
}

/* A package without a kernel is one model that says by its kind what loads it. */
static enum shoal_err check_model(const struct package_entry *entries, size_t count, const struct package *package,
                                  struct shoal_msg *msg)
{
    const char *found[2] = { NULL, NULL };
    size_t models = 0;

    if (package->kernel_path[0] != '\0' || is_there(entries, count, package->root, package->weight_path))
        return SHOAL_OK;
    for (unsigned json = 0; json < 2 && models == 0; json++) {
        for (size_t i = 0; i < count; i++) {
            if (!is_model(&entries[i], package->root, json == 1))
                continue;
            if (models < 2)
                found[models] = below_root(entries[i].path, package->root);
            models++;
        }
    }
    if (models == 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID,
                          NO_KERNEL "no file of a model at its top: name a Python file as kernel_path, or add one file of " MODEL_KINDS
                                    ", or a SavedModel's folder");
    if (models > 1 && strcmp(found[0], "saved_model.pb") != 0 && strcmp(found[1], "saved_model.pb") != 0)
        return shoal_fail(msg, SHOAL_ERR_INVALID, NO_KERNEL "%zu models (%.100s, %.100s%s): name one in model.json's weight_path",
                          models, found[0], found[1], models > 2 ? ", ..." : "");
    return SHOAL_OK;
}

static enum shoal_err check_files(const struct package_entry *entries, size_t count, const struct json_value *root,
                                  bool strict, struct package *package, struct shoal_msg *msg)
{
    char said[PACKAGE_PATH_BYTES_MAX];
    const struct package_entry *readme = NULL;
    const char *readme_name = json_input_text(root, "readme");

    memcpy(said, package->kernel_path, sizeof(said));
    if (said[0] != '\0' && (!normal_path(said, package->kernel_path, sizeof(package->kernel_path)) ||
                            file_at(entries, count, package->root, package->kernel_path, false) == NULL))
        return shoal_fail(msg, SHOAL_ERR_INVALID, "Kernel file %.200s does not exist.", said);
    if (readme_name != NULL)
        readme = file_at(entries, count, package->root, readme_name, true);
    if (readme == NULL)
        readme = file_at(entries, count, package->root, "README.md", true);
    if (readme == NULL && strict)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "README.md is missing in the package.");
    if (readme != NULL)
        package->readme = readme->place;
    return SHOAL_OK;
}

static enum shoal_err take_root(const char *path, struct package *package, struct shoal_msg *msg)
{
    size_t len = (size_t)(base_of(path) - path);

    if (len >= sizeof(package->root))
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "the path of model.json is longer than %u bytes",
                          PACKAGE_PATH_BYTES_MAX);
    memcpy(package->root, path, len);
    package->root[len > 0 ? len - 1 : 0] = '\0';
    return SHOAL_OK;
}

enum shoal_err package_check(const struct package_entry *entries, size_t count, size_t model, struct shoal_view text,
                             enum package_kind kind, struct package *package, struct shoal_msg *msg)
{
    struct package made = { .model_json = entries[model].place };
    struct json_input *input = NULL;
    struct shoal_msg why = { .text = "" };
    bool strict = kind == PACKAGE_WMLA;
    enum shoal_err err;
    const char *wrong;

    for (size_t i = 0; i < count; i++)
        made.content_bytes += entries[i].place.bytes;
    if (json_input_parse(text, &input, &why) != SHOAL_OK)
        return shoal_fail(msg, SHOAL_ERR_INVALID, "model.json is invalid: %.300s", why.text);
    if (!json_input_is_object(json_input_root(input))) {
        json_input_free(input);
        return shoal_fail(msg, SHOAL_ERR_INVALID, "model.json is invalid: it is no object");
    }
    wrong = wrong_key(json_input_root(input), strict, &made);
    err = wrong != NULL ? invalid_key(json_input_root(input), wrong, strict, msg) : take_root(entries[model].path, &made, msg);
    if (err == SHOAL_OK)
        err = check_files(entries, count, json_input_root(input), strict, &made, msg);
    json_input_free(input);
    if (err == SHOAL_OK)
        *package = made;
    return err;
}

/* ---- of a bundle ---- */

struct listing {
    struct package_entry *entries;
    char **paths; /* what the entries point to */
    size_t count;
    size_t cap;
    struct shoal_msg *msg;
};

static enum shoal_err grow(struct listing *listing)
{
    size_t cap = listing->cap + ENTRIES_STEP + listing->cap / 2;
    struct package_entry *entries = realloc(listing->entries, cap * sizeof(*entries));
    char **paths;

    if (entries != NULL)
        listing->entries = entries;
    paths = realloc(listing->paths, cap * sizeof(*paths));
    if (paths != NULL)
        listing->paths = paths;
    if (entries == NULL || paths == NULL)
        return shoal_fail(listing->msg, SHOAL_ERR_FULL, "out of memory");
    listing->cap = cap;
    return SHOAL_OK;
}

static enum shoal_err list_entry(void *arg, const char *path, bool is_dir, struct shoal_bundle_place place)
{
    struct listing *listing = arg;
    enum shoal_err err = listing->count < listing->cap ? SHOAL_OK : grow(listing);
    char *copy = err == SHOAL_OK ? strdup(path) : NULL;

    if (copy == NULL)
        return shoal_fail(listing->msg, SHOAL_ERR_FULL, "out of memory");
    listing->paths[listing->count] = copy;
    listing->entries[listing->count++] = (struct package_entry){ .path = copy, .place = place, .is_dir = is_dir };
    return SHOAL_OK;
}

static void listing_deinit(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free(listing->paths[i]);
    free(listing->paths);
    free(listing->entries);
}

static enum shoal_err read_model(int fd, struct shoal_bundle_place place, char **text, struct shoal_msg *msg)
{
    size_t done = 0;

    if (place.bytes > MODEL_JSON_BYTES_MAX)
        return shoal_fail(msg, SHOAL_ERR_TOO_BIG, "model.json is invalid: it is larger than %u KiB",
                          (unsigned)(MODEL_JSON_BYTES_MAX / SHOAL_KIB));
    *text = malloc((size_t)place.bytes + 1);
    if (*text == NULL)
        return shoal_fail(msg, SHOAL_ERR_FULL, "out of memory");
    while (done < place.bytes) {
        ssize_t got = pread(fd, *text + done, (size_t)place.bytes - done, (off_t)(place.offset + done));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(*text);
            *text = NULL;
            return shoal_fail(msg, SHOAL_ERR_STORAGE, "reading a package: %s", got < 0 ? strerror(errno) : "cut short");
        }
        done += (size_t)got;
    }
    return SHOAL_OK;
}

enum shoal_err package_check_bundle(int fd, enum package_kind kind, struct package *package, struct shoal_msg *msg)
{
    struct listing listing = { .msg = msg };
    struct package made = { .root = "" };
    enum shoal_err err = shoal_bundle_each(fd, list_entry, &listing, msg);
    char *text = NULL;
    size_t model = 0;

    if (err == SHOAL_OK)
        err = package_find_model(listing.entries, listing.count, &model, msg);
    if (err == SHOAL_OK && model == listing.count && kind == PACKAGE_WMLA)
        err = shoal_fail(msg, SHOAL_ERR_INVALID, "model.json is missing in the package.");
    for (size_t i = 0; i < listing.count; i++)
        made.content_bytes += listing.entries[i].place.bytes;
    if (err == SHOAL_OK && model < listing.count)
        err = read_model(fd, listing.entries[model].place, &text, msg);
    if (err == SHOAL_OK && model < listing.count)
        err = package_check(listing.entries, listing.count, model,
                            shoal_view_of(text, (size_t)listing.entries[model].place.bytes), kind, &made, msg);
    if (model == listing.count)
        take_only_folder(listing.entries, listing.count, &made);
    if (err == SHOAL_OK && kind == PACKAGE_OURS)
        err = check_model(listing.entries, listing.count, &made, msg);
    if (err == SHOAL_OK)
        *package = made;
    free(text);
    listing_deinit(&listing);
    return err;
}
