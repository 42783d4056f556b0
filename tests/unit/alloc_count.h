/* Counts what a step takes from the heap: the test defines the allocator's names, which glibc allows, and counts while
 * `alloc_counting` is set. A sanitizer has an allocator of its own: there ALLOC_COUNTS is 0, and the tests are skipped. */
#ifndef TESTS_ALLOC_COUNT_H
#define TESTS_ALLOC_COUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ALLOC_COUNTS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ALLOC_COUNTS 0
#endif
#endif
#ifndef ALLOC_COUNTS
#define ALLOC_COUNTS 1
#endif

static bool alloc_counting;
static uint64_t alloc_count;

#if ALLOC_COUNTS
void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *old, size_t size_bytes);

__attribute__((visibility("default"))) void *malloc(size_t size_bytes)
{
    alloc_count += alloc_counting;
    return __libc_malloc(size_bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t count, size_t size_bytes)
{
    alloc_count += alloc_counting;
    return __libc_calloc(count, size_bytes);
}

__attribute__((visibility("default"))) void *realloc(void *old, size_t size_bytes)
{
    alloc_count += alloc_counting;
    return __libc_realloc(old, size_bytes);
}
#endif

#endif
