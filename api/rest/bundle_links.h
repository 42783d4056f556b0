/* Links of an archive become copies of what they point to: a canonical bundle has no links. */
#ifndef API_BUNDLE_LINKS_H
#define API_BUNDLE_LINKS_H

#include "bundle_file_sodium.h"

#define BUNDLE_LINK_TEXT_MAX 4096u /* of a target, as a system has it */

struct bundle_link {
    char *path; /* in normal form */
    char *target;
    bool is_hard; /* its target is a path of the archive; else one beside the link */
};

/* Links are sorted here. Entries are sorted by path, and `copy` may add others behind them, and move them. */
struct bundle_linker {
    struct bundle_link *links;
    size_t link_count;
    struct bundle_entry *const *entries;
    size_t entry_count;
    uint32_t looks_left; /* entries and links that are looked at for a copy; 0: refused */
    uint32_t steps_left; /* components of targets */
    bool refuses_out;    /* a link out of the archive is refused; else dropped */
    enum shoal_err (*copy)(void *arg, size_t entry, const char *path);
    enum shoal_err (*refuse)(void *arg, enum shoal_err err, const char *path, const char *why);
    void *arg;
};

SHOAL_MUST_CHECK enum shoal_err bundle_links_copy(struct bundle_linker *linker);

#endif
