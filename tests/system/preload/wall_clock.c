/* A wall clock that a test moves: the seconds that stand in the file SHOAL_WALL_FILE, eight bytes, are added to the real
 * time. Time that only goes forward (CLOCK_MONOTONIC) stays as it is. Built by test_clocks.py, loaded by LD_PRELOAD. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *moved_s;

__attribute__((constructor)) static void map_it(void)
{
    const char *path = getenv("SHOAL_WALL_FILE");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);

    if (page != MAP_FAILED)
        moved_s = page;
    if (fd >= 0)
        (void)close(fd);
}

static time_t moved(void) { return moved_s == NULL ? 0 : (time_t)*moved_s; }

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);

    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += moved();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int result = (int)syscall(SYS_gettimeofday, now, zone);

    if (result == 0)
        now->tv_sec += moved();
    return result;
}

time_t time(time_t *out)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}
