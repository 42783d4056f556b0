#include "fault.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "shoal/banned.h"

static const char *const point_names[FAULT_POINT_COUNT] = {
    [FAULT_BEFORE_READY] = "before_ready",
    [FAULT_ENTERING] = "entering",
    [FAULT_FETCHING] = "fetching",
    [FAULT_BEFORE_PUBLISH] = "before_publish",
    [FAULT_AFTER_PUBLISH] = "after_publish",
    [FAULT_MID_PARTS] = "mid_parts",
    [FAULT_MID_EARLY] = "mid_early",
    [FAULT_BEFORE_REDUCE] = "before_reduce",
    [FAULT_MID_REDUCE] = "mid_reduce",
    [FAULT_MID_UPDATE] = "mid_update",
    [FAULT_SLICES_DONE] = "slices_done",
    [FAULT_AFTER_REDUCE] = "after_reduce",
    [FAULT_BEFORE_COMPLETE] = "before_complete",
    [FAULT_AFTER_COMPLETE] = "after_complete",
    [FAULT_BEFORE_APPLY] = "before_apply",
    [FAULT_JOIN_COPY] = "join_copy",
    [FAULT_GIVE_COPY] = "give_copy",
    [FAULT_DONE] = "done",
    [FAULT_BEFORE_FILES] = "before_files",
};

enum fault_action { ACTION_KILL, ACTION_STOP, ACTION_EXIT, ACTION_PAUSE, ACTION_BREAK, ACTION_COUNT };
static const char *const action_names[ACTION_COUNT] = { "kill", "stop", "exit", "pause", "break" };

#define FDS_LOOKED_AT 1024

static int find_name(const char *const *names, size_t count, const char *text, size_t len)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == len && memcmp(names[i], text, len) == 0)
            return (int)i;
    return -1;
}

static bool parse_rule(const char *text, size_t len, struct fault_rule *rule)
{
    const char *first = memchr(text, ':', len);
    const char *second = first == NULL ? NULL : memchr(first + 1, ':', len - (size_t)(first + 1 - text));
    const char *third = second == NULL ? NULL : memchr(second + 1, ':', len - (size_t)(second + 1 - text));
    const char *limit = third == NULL ? text + len : third;
    char *end;
    int point;
    int action;

    if (second == NULL)
        return false;
    point = find_name(point_names, FAULT_POINT_COUNT, text, (size_t)(first - text));
    action = find_name(action_names, ACTION_COUNT, second + 1, (size_t)(limit - second) - 1);
    if (point < 0 || action < 0)
        return false;
    rule->once[0] = '\0';
    if (third != NULL) {
        size_t path_len = (size_t)(text + len - third) - 1;

        if (path_len == 0 || path_len >= sizeof(rule->once))
            return false;
        memcpy(rule->once, third + 1, path_len);
        rule->once[path_len] = '\0';
    }
    rule->point = (uint32_t)point;
    rule->action = (uint32_t)action;
    rule->step = UINT64_MAX;
    if (first[1] == '*')
        return second == first + 2;
    rule->step = strtoull(first + 1, &end, 10);
    return end == second && end != first + 1;
}

enum shoal_err fault_init(struct fault *fault, const char *text, struct shoal_msg *msg)
{
    *fault = (struct fault){ 0 };
    while (text != NULL && *text != '\0') {
        size_t len = strcspn(text, ",");

        if (fault->count == FAULT_RULES_MAX || !parse_rule(text, len, &fault->rules[fault->count]))
            return shoal_fail(msg, SHOAL_ERR_INVALID, "SHOAL_FAULT: \"%s\" is not point:step:action[:once]", text);
        fault->count++;
        text += len + (text[len] == ',');
    }
    return SHOAL_OK;
}

/* Whether this process is the one that strikes. */
static bool fault_is_mine(const struct fault_rule *rule)
{
    char pid[16];
    int fd;

    if (rule->once[0] == '\0')
        return true;
    fd = open(rule->once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    (void)!write(fd, pid, (size_t)snprintf(pid, sizeof(pid), "%d\n", (int)getpid()));
    (void)close(fd);
    return true;
}

/* Every data connection of this process ends, as if a middlebox had forgotten them. */
static void break_links(void)
{
    for (int fd = 3; fd < FDS_LOOKED_AT; fd++) {
        int domain = 0;
        int listens = 0;
        socklen_t len = sizeof(int);

        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_INET &&
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens == 0)
            (void)shutdown(fd, SHUT_RDWR);
    }
}

void fault_strike(const struct fault *fault, enum fault_point point, uint64_t step)
{
    for (uint32_t i = 0; i < fault->count; i++) {
        const struct fault_rule *rule = &fault->rules[i];

        if (rule->point != point || (rule->step != UINT64_MAX && rule->step != step) || !fault_is_mine(rule))
            continue;
        switch ((enum fault_action)rule->action) {
        case ACTION_KILL: (void)kill(getpid(), SIGKILL); break;
        case ACTION_STOP: (void)kill(getpid(), SIGSTOP); break;
        case ACTION_EXIT: _exit(3);
        case ACTION_PAUSE: (void)nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL); break;
        case ACTION_BREAK: break_links(); break;
        case ACTION_COUNT: break;
        }
    }
}
