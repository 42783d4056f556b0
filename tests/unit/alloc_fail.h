/* Lets the nth allocation of this thread fail, and counts what is taken and not given back: the test defines the
 * allocator's names, which glibc allows (alloc_count.h). What other threads take is theirs; what they give back counts. */
#ifndef TESTS_ALLOC_FAIL_H
#define TESTS_ALLOC_FAIL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOC_FAILS 0
#else
#define ALLOC_FAILS 1
#endif

#define ALLOC_SEEN_MAX 65536

static _Thread_local bool alloc_armed;
static _Thread_local uint64_t alloc_fail_at; /* 0: none fails */
static uint64_t alloc_count;
static int64_t alloc_live;
static void *alloc_seen[ALLOC_SEEN_MAX]; /* blocks taken while armed, by address: a hash with linear probing */

static inline void alloc_arm(uint64_t fail_at)
{
    alloc_count = 0;
    alloc_live = 0;
    for (size_t i = 0; i < ALLOC_SEEN_MAX; i++)
        alloc_seen[i] = NULL;
    alloc_fail_at = fail_at;
    alloc_armed = true;
}

static inline void alloc_disarm(void) { alloc_armed = false; }

#if ALLOC_FAILS
static atomic_flag alloc_busy = ATOMIC_FLAG_INIT;

void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *old, size_t size_bytes);
void __libc_free(void *block);

static bool alloc_fails(void)
{
    if (!alloc_armed || ++alloc_count != alloc_fail_at)
        return false;
    errno = ENOMEM;
    return true;
}

static size_t alloc_place(const void *block) { return ((uintptr_t)block >> 4) * 0x9e3779b1u % ALLOC_SEEN_MAX; }

static void alloc_lock(void)
{
    while (atomic_flag_test_and_set(&alloc_busy)) { /* a few instructions elsewhere */
    }
}

static void *alloc_note(void *block)
{
    size_t i = alloc_place(block);

    if (!alloc_armed || block == NULL)
        return block;
    alloc_lock();
    for (size_t n = 0; n < ALLOC_SEEN_MAX && alloc_seen[i] != NULL && alloc_seen[i] != (void *)&alloc_live; n++)
        i = (i + 1) % ALLOC_SEEN_MAX;
    alloc_seen[i] = block;
    alloc_live++;
    atomic_flag_clear(&alloc_busy);
    return block;
}

/* False: it was taken before. */
static bool alloc_forget(const void *block)
{
    bool found = false;

    alloc_lock();
    for (size_t i = alloc_place(block), n = 0; n < ALLOC_SEEN_MAX && alloc_seen[i] != NULL && !found;
         i = (i + 1) % ALLOC_SEEN_MAX, n++) {
        if (alloc_seen[i] != block)
            continue;
        alloc_seen[i] = (void *)&alloc_live; /* a grave: what lies behind is found still */
        alloc_live--;
        found = true;
    }
    atomic_flag_clear(&alloc_busy);
    return found;
}

__attribute__((visibility("default"))) void *malloc(size_t size_bytes)
{
    return alloc_fails() ? NULL : alloc_note(__libc_malloc(size_bytes));
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size_bytes)
{
    return alloc_fails() ? NULL : alloc_note(__libc_calloc(count, size_bytes));
}

__attribute__((visibility("default"))) void *realloc(void *old, size_t size_bytes)
{
    void *grown;
    bool ours;

    if (alloc_fails())
        return NULL;
    ours = old != NULL && alloc_forget(old);
    grown = __libc_realloc(old, size_bytes);
    if (ours || old == NULL)
        (void)alloc_note(grown == NULL && size_bytes > 0 ? old : grown);
    return grown;
}

__attribute__((visibility("default"))) void free(void *block)
{
    if (block != NULL)
        (void)alloc_forget(block);
    __libc_free(block);
}
#endif

#endif
