#include "agent_room.h"

#include <inttypes.h>
#include <sys/statvfs.h>

#include "agent_files.h"

#include "shoal/banned.h"

#define LOOK_NS (5 * SHOAL_S)

struct look {
    struct agent_file_job job; /* first */
    char data[AGENT_PATH_BYTES];
    struct agent_room room;
    bool seen;
};

bool agent_room_look(const char *data, struct agent_room *room)
{
    static const char *const names[] = { "", "/store", "/jobs", "/results", "/blobs" };
    bool seen = false;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char folder[sizeof(room->folder)];
        struct statvfs st;
        uint64_t free_bytes;
        bool no_names;

        (void)snprintf(folder, sizeof(folder), "%s%s", data, names[i]);
        if (statvfs(folder, &st) != 0)
            continue;
        free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
        no_names = st.f_files != 0 && st.f_favail == 0;
        if (seen && (room->no_names || (!no_names && free_bytes >= room->free_bytes)))
            continue;
        memcpy(room->folder, folder, sizeof(folder));
        room->free_bytes = free_bytes;
        room->no_names = no_names;
        seen = true;
    }
    return seen;
}

bool agent_room_lacks(const struct agent_room *room)
{
    return room->no_names || room->free_bytes < SHOAL_DISK_RESERVE_BYTES;
}

void agent_room_text(const struct agent_room *room, char *text, size_t size_bytes)
{
    if (room->no_names)
        (void)snprintf(text, size_bytes,
                       "the disk of %s takes no more files (its inodes are used up): jobs that bring files start on other "
                       "hosts; remove files there, or delete jobs that have ended",
                       room->folder);
    else
        (void)snprintf(text, size_bytes,
                       "the disk of %s is full: %" PRIu64 " MiB are free, and %u are kept for the store: jobs that "
                       "bring files start on other hosts; free space there, or delete jobs that have ended",
                       room->folder, room->free_bytes / SHOAL_MIB, SHOAL_DISK_RESERVE_BYTES / SHOAL_MIB);
}

static void look_run(struct agent_file_job *job)
{
    struct look *look = (struct look *)(void *)job;

    look->seen = agent_room_look(look->data, &look->room);
}

static void look_done(struct agent_file_job *job)
{
    struct look *look = (struct look *)(void *)job;
    struct agent *agent = job->agent;
    char text[AGENT_PATH_BYTES + 320];
    bool lacks = look->seen && agent_room_lacks(&look->room);

    agent->room_looking = false;
    if (look->seen)
        agent->room_bytes = look->room.free_bytes;
    if (lacks && !agent->room_lacks) {
        agent_room_text(&look->room, text, sizeof(text));
        agent_log(agent, "%s", text);
    } else if (look->seen && !lacks && agent->room_lacks) {
        agent_log(agent, "there is room again on the disk of %s: %" PRIu64 " MiB are free", look->room.folder,
                  look->room.free_bytes / SHOAL_MIB);
    }
    agent->room_lacks = look->seen ? lacks : agent->room_lacks;
    free(look);
}

void agent_room_tick(struct agent *agent)
{
    struct look *look;

    if (agent->stopping || agent->room_looking || agent_now_ns() < agent->room_due_ns)
        return;
    agent->room_due_ns = agent_now_ns() + LOOK_NS;
    look = calloc(1, sizeof(*look));
    if (look == NULL)
        return;
    memcpy(look->data, agent->settings.data, sizeof(look->data));
    look->job = (struct agent_file_job){ .run = look_run, .done = look_done };
    agent->room_looking = agent_file_submit(agent, &look->job) == SHOAL_OK;
    if (!agent->room_looking)
        free(look);
}
