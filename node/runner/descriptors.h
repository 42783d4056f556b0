/* How many files an agent may have open. A login's soft limit, 1,024 as a rule, is for programs that use select(), as users' programs
 * may: the agent takes what the hard limit allows, and its processes for jobs get the old one back. */
#ifndef NODE_DESCRIPTORS_H
#define NODE_DESCRIPTORS_H

#include <stdint.h>
#include <sys/types.h>

/* Below it an agent says so when it starts. */
#define DESCRIPTORS_LOW 4096u
#define DESCRIPTORS_REMEDY "raise the limit of open files (ulimit -n, LimitNOFILE=)"

/* Once, before anything is started. Returns the limit from now on. */
uint32_t descriptors_raise(void);
/* The limit that descriptors_raise() would come to. */
uint32_t descriptors_allowed(void);
/* A process that was just started for jobs, which has forked nothing yet. */
void descriptors_give_back(pid_t pid);

#endif
