/* What the links of an archive stand for.
 *
 *   in the archive    v2/w.bin   now -> v2   best -> now/w.bin          made of it    v2/w.bin   now/w.bin   best
 *
 * L1. No link is followed on a disk. Targets are texts, which are looked up among the paths of the archive.
 * L2. Nothing else lies at the place of a link, or below it: such an archive is refused. So no link leads where a file is written.
 * L3. A link out of the archive is dropped, or refused, as the caller says. A symbolic one to nothing is dropped.
 * L4. A link that leads into itself is refused: hops, steps, looks, and links within what links stand for are bounded. */
#include "bundle_links.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shoal/banned.h"

#define HOPS_MAX 40u /* as a system follows for one path */
#define NESTED_MAX 16u
#define TOO_LONG "a path longer than 1023 bytes"

enum found { FOUND, OUTSIDE, NOWHERE, LOOP };

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct bundle_link *)a)->path, ((const struct bundle_link *)b)->path);
}

static const struct bundle_link *find_link(const struct bundle_linker *l, char *path)
{
    struct bundle_link key = { .path = path };

    return l->link_count == 0 ? NULL : bsearch(&key, l->links, l->link_count, sizeof(key), by_path);
}

static const char *entry_path(const struct bundle_linker *l, size_t i) { return (*l->entries)[i].path; }

static const char *link_path(const struct bundle_linker *l, size_t i) { return l->links[i].path; }

/* The first of the sorted paths that is not before `path`. */
static size_t first_from(const struct bundle_linker *l, const char *(*path_of)(const struct bundle_linker *, size_t), size_t count,
                         const char *path)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(path_of(l, middle), path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- L2 ---- */

static enum shoal_err check_above(const struct bundle_linker *l, const char *whole)
{
    char path[BUNDLE_PATH_BYTES_MAX];
    char *slash;

    (void)snprintf(path, sizeof(path), "%s", whole);
    while ((slash = strrchr(path, '/')) != NULL) {
        *slash = '\0';
        if (find_link(l, path) != NULL)
            return l->refuse(l->arg, SHOAL_ERR_INVALID, whole, "it lies below a symbolic link; pack what the link points to");
    }
    return SHOAL_OK;
}

static enum shoal_err check_places(const struct bundle_linker *l)
{
    enum shoal_err err = SHOAL_OK;

    for (size_t i = 0; i < l->link_count && err == SHOAL_OK; i++) {
        const char *path = l->links[i].path;
        size_t at = first_from(l, entry_path, l->entry_count, path);

        if ((i > 0 && strcmp(path, l->links[i - 1].path) == 0) || (at < l->entry_count && strcmp(entry_path(l, at), path) == 0))
            return l->refuse(l->arg, SHOAL_ERR_INVALID, path, "twice in the upload; pack it once");
        err = check_above(l, path);
    }
    for (size_t i = 0; i < l->entry_count && err == SHOAL_OK; i++)
        err = check_above(l, entry_path(l, i));
    return err;
}

/* ---- where a link leads ---- */

struct walk {
    char path[BUNDLE_PATH_BYTES_MAX]; /* so far: no component of it is a link */
    size_t len;
    char rest[2 * BUNDLE_LINK_TEXT_MAX];
    size_t at; /* in the rest */
    unsigned hops;
};

static void walk_up(struct walk *w)
{
    while (w->len > 0 && w->path[w->len - 1] != '/')
        w->len--;
    w->len -= w->len > 0;
    w->path[w->len] = '\0';
}

/* The walk stands at a link, and goes on with its target. */
static enum found walk_link(struct walk *w, const struct bundle_link *link, const char *then)
{
    char rest[sizeof(w->rest)];
    int len = snprintf(rest, sizeof(rest), "%s/%s", link->target, then);

    if (++w->hops > HOPS_MAX || len < 0 || (size_t)len >= sizeof(rest))
        return LOOP;
    if (link->target[0] == '/')
        return OUTSIDE;
    if (link->is_hard)
        w->len = 0;
    else
        walk_up(w);
    w->path[w->len] = '\0';
    memcpy(w->rest, rest, (size_t)len + 1);
    w->at = 0;
    return FOUND;
}

/* One component of the rest, of `piece` bytes. */
static enum found walk_step(struct bundle_linker *l, struct walk *w, const char *name, size_t piece)
{
    const bool is_up = piece == 2 && memcmp(name, "..", 2) == 0;
    const struct bundle_link *link;

    if (l->steps_left == 0)
        return LOOP;
    l->steps_left--;
    w->at += piece;
    if (is_up && w->len == 0)
        return OUTSIDE;
    if (w->len + 1 + piece >= sizeof(w->path))
        return NOWHERE;
    if (is_up) {
        walk_up(w);
    } else if (piece != 1 || name[0] != '.') {
        if (w->len > 0)
            w->path[w->len++] = '/';
        memcpy(w->path + w->len, name, piece);
        w->len += piece;
        w->path[w->len] = '\0';
        link = find_link(l, w->path);
        if (link != NULL)
            return walk_link(w, link, w->rest + w->at);
    }
    return FOUND;
}

static enum found walk_all(struct bundle_linker *l, const struct bundle_link *link, struct walk *w)
{
    enum found found;

    w->len = (size_t)snprintf(w->path, sizeof(w->path), "%s", link->path);
    w->hops = 0;
    found = walk_link(w, link, "");
    while (found == FOUND) {
        const char *name = w->rest + w->at + strspn(w->rest + w->at, "/");

        w->at = (size_t)(name - w->rest);
        if (name[0] == '\0')
            return FOUND;
        found = walk_step(l, w, name, strcspn(name, "/"));
    }
    return found;
}

/* ---- copies ---- */

static bool is_below(const char *path, const char *root, size_t root_len)
{
    return root_len == 0 || (strncmp(path, root, root_len) == 0 && path[root_len] == '/');
}

static enum shoal_err look(struct bundle_linker *l, const char *path)
{
    if (l->looks_left == 0)
        return l->refuse(l->arg, SHOAL_ERR_TOO_BIG, path, "links stand for more entries than are allowed");
    l->looks_left--;
    return SHOAL_OK;
}

static enum shoal_err copy_link(struct bundle_linker *l, const struct bundle_link *link, const char *to, unsigned nested);

/* `from` and what lies below it, to `to`. */
static enum shoal_err copy_tree(struct bundle_linker *l, const char *from, const char *to, unsigned nested, bool *any)
{
    const size_t len = strlen(from);
    char start[BUNDLE_PATH_BYTES_MAX + 1];
    char path[2 * BUNDLE_PATH_BYTES_MAX];
    size_t at = first_from(l, entry_path, l->entry_count, from);
    enum shoal_err err = SHOAL_OK;

    for (; len > 0 && at < l->entry_count && strcmp(entry_path(l, at), from) == 0 && err == SHOAL_OK; at++) {
        *any = true;
        err = look(l, to);
        err = err == SHOAL_OK ? l->copy(l->arg, at, to) : err;
    }
    (void)snprintf(start, sizeof(start), "%s%s", from, len == 0 ? "" : "/");
    at = first_from(l, entry_path, l->entry_count, start);
    for (; err == SHOAL_OK && at < l->entry_count && is_below(entry_path(l, at), from, len); at++) {
        *any = true;
        (void)snprintf(path, sizeof(path), "%s/%s", to, entry_path(l, at) + strlen(start));
        err = look(l, to);
        err = err == SHOAL_OK ? l->copy(l->arg, at, path) : err;
    }
    at = first_from(l, link_path, l->link_count, start);
    for (; err == SHOAL_OK && at < l->link_count && is_below(l->links[at].path, from, len); at++) {
        *any = true;
        (void)snprintf(path, sizeof(path), "%s/%s", to, l->links[at].path + strlen(start));
        err = strlen(path) < BUNDLE_PATH_BYTES_MAX ? copy_link(l, &l->links[at], path, nested + 1)
                                                   : l->refuse(l->arg, SHOAL_ERR_TOO_BIG, to, TOO_LONG);
    }
    return err;
}

/* L3, L4 */
static enum shoal_err copy_link(struct bundle_linker *l, const struct bundle_link *link, const char *to, unsigned nested)
{
    struct walk *w = malloc(sizeof(*w));
    enum shoal_err err = w == NULL ? l->refuse(l->arg, SHOAL_ERR_FULL, link->path, "out of memory") : look(l, link->path);
    enum found found = err == SHOAL_OK ? walk_all(l, link, w) : NOWHERE;
    char from[BUNDLE_PATH_BYTES_MAX];
    bool any = false;

    (void)snprintf(from, sizeof(from), "%s", found == FOUND ? w->path : "");
    free(w);
    if (err != SHOAL_OK)
        return err;
    if (found == LOOP || nested > NESTED_MAX || (found == FOUND && is_below(link->path, from, strlen(from))))
        return l->refuse(l->arg, SHOAL_ERR_INVALID, link->path, "a link that leads into itself, or through too many others");
    if (found == OUTSIDE && l->refuses_out)
        return l->refuse(l->arg, SHOAL_ERR_INVALID, link->path, "a link out of the archive; pack what it points to (tar --dereference)");
    if (found == FOUND)
        err = copy_tree(l, from, to, nested, &any);
    if (err == SHOAL_OK && link->is_hard && !any && found != OUTSIDE)
        err = l->refuse(l->arg, SHOAL_ERR_INVALID, link->path, "a hard link to what is not in the archive; pack it again");
    return err;
}

enum shoal_err bundle_links_copy(struct bundle_linker *linker)
{
    enum shoal_err err;

    if (linker->link_count == 0)
        return SHOAL_OK;
    qsort(linker->links, linker->link_count, sizeof(*linker->links), by_path);
    err = check_places(linker);
    for (size_t i = 0; i < linker->link_count && err == SHOAL_OK; i++)
        err = copy_link(linker, &linker->links[i], linker->links[i].path, 0);
    return err;
}
