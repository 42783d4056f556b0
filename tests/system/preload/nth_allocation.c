/* Lets one allocation of a process fail: the one whose number, counted from its main(), is in SHOAL_ALLOC_FAIL. Built by
 * test_no_memory.py, loaded by LD_PRELOAD. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *old, size_t size_bytes);

static atomic_ulong fail_at; /* 0: none */
static atomic_ulong count;

__attribute__((constructor)) static void begin(void)
{
    const char *number = getenv("SHOAL_ALLOC_FAIL");

    if (number != NULL)
        fail_at = strtoul(number, NULL, 10);
    (void)unsetenv("LD_PRELOAD"); /* this process alone */
}

static int fails(void)
{
    if (fail_at == 0 || ++count != fail_at)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size_bytes) { return fails() ? NULL : __libc_malloc(size_bytes); }

void *calloc(size_t number, size_t size_bytes) { return fails() ? NULL : __libc_calloc(number, size_bytes); }

void *realloc(void *old, size_t size_bytes) { return fails() ? NULL : __libc_realloc(old, size_bytes); }
