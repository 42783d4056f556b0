/* Removing a folder that a job has filled. */
#ifndef SHOAL_REMOVE_TREE_H
#define SHOAL_REMOVE_TREE_H

#include <stdbool.h>

/* Removes what is at `path`, with all below it: however deep, folders without permissions included, and what can be removed
 * beside what cannot. Links are removed, not followed; what is mounted below stays. False with errno: something is left, and
 * errno says why the first of it is. Waits for the disk: call it on a thread that may. */
bool shoal_remove_tree(const char *path);

#endif
