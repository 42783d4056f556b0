/* LMDB's environments, as an agent wants them. */
#ifndef NODE_ENV_LMDB_H
#define NODE_ENV_LMDB_H

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>

/* mdb_env_open(), and no program that this process executes gets the file: LMDB leaves its data file open for those. Returns
 * an error of LMDB's; the environment is the caller's to close, also after one. */
static inline int env_open_private(MDB_env *env, const char *dir, unsigned flags)
{
    int rc = mdb_env_open(env, dir, flags, 0600);
    int fd = -1;

    if (rc == 0)
        rc = mdb_env_get_fd(env, &fd);
    if (rc == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
        rc = errno;
    return rc;
}

#endif
