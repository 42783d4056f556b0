/* Functions that must not be used: some write without a bound, the others are a hidden source of chance or state. Each .c file
 * of ours includes this as its last header, so that the system's own headers may still name them. */
#ifndef SHOAL_BANNED_H
#define SHOAL_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC poison strcpy strcat sprintf vsprintf gets srand random srandom strtok

#endif
