/* Files that a job can touch. It may have put anything at a path: a link out of its folder, a pipe that makes open()
 * wait, a device. */
#ifndef SHOAL_BELOW_H
#define SHOAL_BELOW_H

/* Opens the regular file at `relative`, which lies below the folder `root`, without following a link of any kind or
 * leaving the folder or its file system, and without waiting. What lies above `root`
 * is trusted. `flags` as of open(2); O_CLOEXEC
 * is added, and new files get mode 0600. With O_DIRECTORY it opens a folder. -1 with errno; ENXIO: it is neither. */
int shoal_open_below(const char *root, const char *relative, int flags);
/* The same for a path whose folders are trusted: only its last part is looked at. */
int shoal_open_regular(const char *path, int flags);

#endif
