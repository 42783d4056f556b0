/* `shoal sim`: the cores of the agent (gossip, groups, jobs, slots) in a simulated mesh, on virtual time, from one
 * seed. */
#ifndef SHOAL_SIM_H
#define SHOAL_SIM_H

/* argv[0] is "sim". Returns the process's exit code (enum shoal_exit). */
int shoal_sim_main(int argc, char **argv);

#endif
