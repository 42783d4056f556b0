/* Functions that must not be used: the first unbounded, the others a hidden source of chance. Included by every file
 * of ours after the system headers (the Makefile's -include does it through base.h). */
#ifndef SHOAL_BANNED_H
#define SHOAL_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC poison strcpy strcat sprintf vsprintf gets srand random srandom strtok

#endif
