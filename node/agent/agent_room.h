/* Room on the disks below the data folder: who looks in vain for why no job starts here finds it in the log, in the metrics
 * and in `shoal doctor` (agent_room.c). */
#ifndef SHOAL_NODE_AGENT_ROOM_H
#define SHOAL_NODE_AGENT_ROOM_H

#include "agent.h"

struct agent_room {
    char folder[AGENT_PATH_BYTES + 16]; /* on the fullest of the disks */
    uint64_t free_bytes;                /* that an agent may take */
    bool no_names;                      /* no more files can be made there, whatever is free */
};

/* Looks at the disks of `data` and of the folders below it that may lie on others. Waits for the disk. False: it could not. */
bool agent_room_look(const char *data, struct agent_room *room);
/* Is it less than SHOAL_DISK_RESERVE_BYTES, so that no job that brings files starts here? */
bool agent_room_lacks(const struct agent_room *room);
/* What an operator is told where it lacks. */
void agent_room_text(const struct agent_room *room, char *text, size_t size_bytes);
/* Called with each tick of the loop's health: looks each 5 s, and says in the log when room goes and when it is back. */
void agent_room_tick(struct agent *agent);

#endif
