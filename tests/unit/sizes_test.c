/* Sizes of what there are many of: a field more here is megabytes there. A row that fails says what its growth costs;
 * raise it on purpose, with the product in mind. Sizes are of 64-bit Linux; each row leaves a little room.
 *
 * The first table names every row of the cores' memory lists (shoal/memory.h), as `shoal doctor` prints them: a new table
 * of a core needs a row here. The second one is of structs that several of those hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sched/lead/lead_state.h"
#include "sched/node/sched_group.h"
#include "sched/node/sched_node.h"
#include "sched/node/sched_park.h"
#include "sched/node/sched_request.h"
#include "sched/raft/raft_state.h"
#include "shoal/gossip.h"
#include "shoal/sched.h"
#include "shoal/sched_look.h"

#include "shoal/banned.h"

struct size_row {
    const char *what;
    uint64_t bytes_max;
};

static const struct size_row tables[] = {
    { "gossip: the core", 16384 },
    { "gossip: members, with their place in the probe order", 40 }, /* 16,384 of them, at 10,000 hosts */
    { "gossip: records", 24 },
    { "gossip: chains of members and records", 4 },
    { "gossip: suspicions", 64 },
    { "gossip: news in two queues", 32 },
    { "gossip: pages of signed statements", 16640 },
    { "raft: groups, with what they write themselves", 8192 },
    { "raft: places for entries in the rings", 8 },
    { "raft: entries since the last snapshot, and those not committed", 6291456 },
    { "support: the core", 20480 },
    { "support: peers of interest", 832 },
    { "support: own claims towards them", 24 },
    { "support: claims of theirs", 56 },
    { "lead: jobs that this host leads", 598016 }, /* of 128 workers on 288 hosts; of a plain job two thirds */
    { "slots: the core", 753664 },
    { "slots: jobs with workers here", 135168 },
    { "sched: the core", 188416 },
    { "sched: groups, each with its job's specification", 65536 }, /* of 144 placements; of a plain job 80 */
    { "sched: what an elastic job adds", 122880 },
    { "sched: requests", 520 },
    { "sched: foundings, with a record each", 135168 },
    { "sched: ids that are gone", 72 },
    { "sched: ids of deleted jobs", 10240 },
    { "sched: archived jobs", 224 }, /* two million of them */
    { "sched: bytes of archived jobs", 1 },
};

static const struct size_row structs[] = {
    { "a parked group", 64 }, /* a hundred thousand of them are 8 MiB with their places */
    { "a member of a mesh, as the control plane knows it", 680 }, /* with what it says of the mesh, and of up to 16 cards */
    { "a group without its Raft and its job", 2560 },
    { "a request that is open", 520 },
    { "a worker, as its leader knows it", 2816 },
    { "a host, as a leader knows it", 224 },
    { "a placement", 72 }, /* 80 a job, of a wide one 144, and in each PLACE entry */
    { "one guardian of one Raft group", 7168 },
};

static const size_t struct_bytes[] = {
    sizeof(struct sched_parked),    sizeof(struct sched_node), sizeof(struct sched_group),
    sizeof(struct sched_request),   sizeof(struct lworker),    sizeof(struct lhost),
    sizeof(struct shoal_placement), sizeof(struct shoal_raft),
};
_Static_assert(sizeof(structs) / sizeof(structs[0]) == sizeof(struct_bytes) / sizeof(struct_bytes[0]),
               "each struct has its row");

static const struct size_row *row_of(const char *what)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (strcmp(tables[i].what, what) == 0)
            return &tables[i];
    return NULL;
}

static void check(const char *what, uint64_t bytes, uint64_t count_max, uint64_t bytes_max)
{
    if (bytes > bytes_max)
        fail_msg("%s: %llu bytes each, at most %llu expected; %llu of them are %llu KiB more", what,
                 (unsigned long long)bytes, (unsigned long long)bytes_max, (unsigned long long)count_max,
                 (unsigned long long)((bytes - bytes_max) * count_max / 1024));
}

static void test_tables_of_the_cores_keep_their_sizes(void **state)
{
    struct shoal_memory memory = { 0 };

    (void)state;
    shoal_swim_memory(&memory);
    shoal_sched_memory(&memory);
    assert_int_equal(memory.count, sizeof(tables) / sizeof(tables[0]));
    for (uint32_t i = 0; i < memory.count; i++) {
        const struct size_row *row = row_of(memory.rows[i].what);

        if (row == NULL)
            fail_msg("a table that has no row here: %s", memory.rows[i].what);
        else
            check(row->what, memory.rows[i].bytes_each, memory.rows[i].count_max, row->bytes_max);
    }
}

static void test_structs_of_peers_members_and_requests_keep_their_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(structs) / sizeof(structs[0]); i++)
        check(structs[i].what, struct_bytes[i], 1, structs[i].bytes_max);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_of_the_cores_keep_their_sizes),
        cmocka_unit_test(test_structs_of_peers_members_and_requests_keep_their_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
