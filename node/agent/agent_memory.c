/* By its limits an agent may hold so much: the cores' tables, and what waits on links, on the disk and in requests. */
#include "agent.h"
#include "shoal/gossip.h"
#include "shoal/memory.h"
#include "shoal/sched.h"
#include "shoal/sched_look.h"

#include "shoal/banned.h"

#define NAME_COLUMNS 38

static void memory_max(struct shoal_memory *memory)
{
    *memory = (struct shoal_memory){ 0 };
    shoal_swim_memory(memory);
    shoal_sched_memory(memory);
    shoal_memory_add(memory, "links: waiting to be sent, control", SHOAL_LINK_PEERS_MAX, SHOAL_LINK_CONTROL_QUEUE_MAX);
    shoal_memory_add(memory, "links: waiting to be sent, bulk", SHOAL_LINK_PEERS_MAX, SHOAL_LINK_BULK_QUEUE_MAX);
    shoal_memory_add(memory, "store: waiting for the disk", SHOAL_STORE_PENDING_BYTES_MAX, 1);
    shoal_memory_add(memory, "blobs: waiting for their thread", SHOAL_BLOB_QUEUE_BYTES_MAX, 1);
    shoal_memory_add(memory, "files of jobs: waiting for their thread", SHOAL_FILE_QUEUE_BYTES_MAX, 1);
    shoal_memory_add(memory, "api: uploads under way", SHOAL_UPLOADS_MAX, SHOAL_UPLOAD_PENDING_MAX);
    shoal_memory_add(memory, "api: requests", SHOAL_HTTP_CONNECTIONS_MAX, SHOAL_REQUEST_ARENA_MAX);
}

uint64_t agent_memory_mib(void)
{
    struct shoal_memory memory;

    memory_max(&memory);
    return shoal_memory_bytes(&memory) / SHOAL_MIB;
}

/* The space at which a text is to be broken, so that at most `columns` come before. */
static int cut_at(const char *text, int columns)
{
    int at = (int)strnlen(text, (size_t)columns + 1);

    while (at > columns || (text[at] != '\0' && text[at] != ' ' && at > 0))
        at--;
    return at > 0 ? at : columns;
}

/* 80 columns. */
void agent_memory_print(void)
{
    struct shoal_memory memory;

    memory_max(&memory);
    (void)printf("ok    memory: at most %llu MiB, were every table full at once\n",
                 (unsigned long long)(shoal_memory_bytes(&memory) / SHOAL_MIB));
    for (uint32_t i = 0; i < memory.count; i++) {
        const struct shoal_memory_row *row = &memory.rows[i];

        int first = cut_at(row->what, NAME_COLUMNS);

        (void)printf("      %-*.*s %8llu x %8llu B %8llu KiB\n", NAME_COLUMNS, first, row->what,
                     (unsigned long long)row->count_max, (unsigned long long)row->bytes_each,
                     (unsigned long long)(row->count_max * row->bytes_each / SHOAL_KIB));
        if (row->what[first] != '\0')
            (void)printf("        %s\n", row->what + first + 1);
    }
}
