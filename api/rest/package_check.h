/* A model's package: what its files and its model.json must say before it is deployed (WMLA's packages, and ours, which
 * may be a model's file alone). Pure: entries and bytes in, facts or a refusal out.
 *
 * The root is the folder of the shallowest model.json. The refusals are WMLA's texts, which clients compare. */
#ifndef API_PACKAGE_CHECK_H
#define API_PACKAGE_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/buf.h"
#include "shoal/bundle.h"
#include "shoal/error.h"

#define PACKAGE_NAME_BYTES_MAX 200u
#define PACKAGE_PATH_BYTES_MAX 1024u
#define PACKAGE_TEXT_BYTES_MAX 1024u /* of runtime, tag, weight_path */

/* WMLA: a kernel, a README.md and the keys are wanted. OURS: a model.json may be left out, and so may its keys; then there is
 * one model. WORDS: the deployment says what runs, and neither kernel nor model is wanted. */
enum package_kind { PACKAGE_OURS, PACKAGE_WMLA, PACKAGE_WORDS };

struct package {
    char root[PACKAGE_PATH_BYTES_MAX]; /* of model.json within the bundle, without a slash at its end; "": the top */
    char name[PACKAGE_NAME_BYTES_MAX + 1];
    char kernel_path[PACKAGE_PATH_BYTES_MAX]; /* below the root, in normal form; "": the package brings no code */
    char runtime[PACKAGE_TEXT_BYTES_MAX];
    char tag[PACKAGE_TEXT_BYTES_MAX];
    char weight_path[PACKAGE_TEXT_BYTES_MAX];
    uint64_t content_bytes;                       /* of all its files, unpacked */
    struct shoal_bundle_place model_json, readme; /* where their bytes are in the bundle; bytes 0: there is none */
};

struct package_entry {
    const char *path; /* as a canonical bundle has it */
    struct shoal_bundle_place place;
    bool is_dir;
};

/* Finds the entry that is the package's model.json; `count`: none. INVALID: more than one at the same depth. */
SHOAL_MUST_CHECK enum shoal_err package_find_model(const struct package_entry *entries, size_t count, size_t *found,
                                                   struct shoal_msg *msg);
/* Checks what `text`, the content of entry `model`, says against the entries. INVALID: the message says what is wrong. */
SHOAL_MUST_CHECK enum shoal_err package_check(const struct package_entry *entries, size_t count, size_t model,
                                              struct shoal_view text, enum package_kind kind, struct package *package,
                                              struct shoal_msg *msg);
/* The same for the canonical bundle in `fd`. Blocks: run it where a bundle is made. */
SHOAL_MUST_CHECK enum shoal_err package_check_bundle(int fd, enum package_kind kind, struct package *package,
                                                     struct shoal_msg *msg);

#endif
