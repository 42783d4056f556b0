/* Lines that other hosts have told of a job's files: which of them are not here, and why.
 *
 *   <data>/jobs/<id>/owed/<node>      a line; no file: nothing is owed
 *
 * A host tells before it copies what takes long, and once more when all has come: so who lists the job's files knows that some
 * are missing, after the other host is lost, too. */
#include "tree_owed.h"

#include "shoal/below.h"
#include "shoal/disk.h"
#include "shoal/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "shoal/banned.h"

#define PATH_BYTES 800

static bool owed_path(const char *folder, struct shoal_node_id from, char path[PATH_BYTES])
{
    char hex[SHOAL_NODE_ID_TEXT_BYTES];

    shoal_hex_text(from.bytes, sizeof(from.bytes), hex);
    return (size_t)snprintf(path, PATH_BYTES, "%s/%s", folder, hex) < PATH_BYTES;
}

enum shoal_err tree_owed_put(const char *folder, struct shoal_node_id from, const char *line)
{
    char path[PATH_BYTES];
    enum shoal_err err;

    if (!owed_path(folder, from, path))
        return SHOAL_ERR_INVALID;
    if (line[0] != '\0') {
        err = shoal_disk_folders(folder, 0700, NULL);
        return err == SHOAL_OK
                   ? shoal_disk_replace(path, shoal_view_of((const uint8_t *)line, strlen(line)), 0600, NULL)
                   : err;
    }
    if (unlink(path) != 0 && errno != ENOENT)
        return SHOAL_ERR_STORAGE;
    (void)rmdir(folder); /* the last one; a power cut brings it back at worst */
    return SHOAL_OK;
}

/* It came off the wire: one line, of printable text. */
static void clean(char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
            line[i] = '?';
    line[len] = '\0';
}

bool tree_owed_get(const char *folder, char line[TREE_OWED_BYTES])
{
    int at = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = at < 0 ? NULL : fdopendir(at);
    const struct dirent *item;
    bool found = false;

    if (dir == NULL && at >= 0)
        (void)close(at);
    while (dir != NULL && !found && (item = readdir(dir)) != NULL) {
        int fd = item->d_name[0] == '.' ? -1 : shoal_open_below(folder, item->d_name, O_RDONLY);
        ssize_t len = fd < 0 ? -1 : read(fd, line, TREE_OWED_BYTES - 1);

        found = len > 0 && strchr(item->d_name, '.') == NULL; /* not one that is being written */
        if (found)
            clean(line, (size_t)len);
        if (fd >= 0)
            (void)close(fd);
    }
    if (dir != NULL)
        (void)closedir(dir);
    return found;
}
