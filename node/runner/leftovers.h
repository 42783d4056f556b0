/* Processes of a job whose runner is gone, and with it whoever would have found and ended them. */
#ifndef NODE_LEFTOVERS_H
#define NODE_LEFTOVERS_H

/* Sends SIGKILL to every process that was started with this job's id and this agent's socket in its environment. How many
 * there were: they go within moments, and what they have forked meanwhile is found by the next call. A process that has
 * executed a program with an environment of its own choice is not found: that takes a cgroup. */
unsigned leftovers_kill(const char *job, const char *socket_path);

#endif
