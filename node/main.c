/* One binary: the command line, the agent, and the runner's own entry. */
#include "node/agent/agent.h"

#include "shoal/runner.h"
#include "shoal/sim.h"

#include "shoal/banned.h"

static bool internal(int argc, char **argv, int *exit_code)
{
    if (argc < 2)
        return false;
    if (strcmp(argv[1], "runner") == 0)
        *exit_code = shoal_runner_main(argc - 1, argv + 1);
    else if (strcmp(argv[1], "spawn-helper") == 0)
        *exit_code = shoal_spawn_helper_main(argc, argv);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    static const struct shoal_cli_hooks hooks = { .init = agent_init_main,
                                                  .join = agent_join_main,
                                                  .agent = agent_main,
                                                  .sim = shoal_sim_main,
                                                  .doctor = agent_doctor_main,
                                                  .internal = internal,
                                                  .version = SHOAL_VERSION };

    return shoal_cli_main(argc, argv, &hooks);
}
