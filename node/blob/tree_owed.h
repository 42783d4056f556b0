/* What another host has of a job, and has not brought here (tree_owed.c). */
#ifndef SHOAL_NODE_TREE_OWED_H
#define SHOAL_NODE_TREE_OWED_H

#include "shoal/error.h"
#include "shoal/ids.h"

#define TREE_OWED_BYTES 300

/* Keeps the line that `from` has told in `folder`, in place of what it told before; "": all is here. Flushed. */
SHOAL_MUST_CHECK enum shoal_err tree_owed_put(const char *folder, struct shoal_node_id from, const char *line);

/* A line that some host has told. False: none. */
bool tree_owed_get(const char *folder, char line[TREE_OWED_BYTES]);

#endif
