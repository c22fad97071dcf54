/* Threads that take the partitions of a window, each the next one that nobody has taken. */
#ifndef SWITCHAGG_SIM_TEAM_H
#define SWITCHAGG_SIM_TEAM_H

#include "emulation/sim/native/partitions.h"

/* So many threads, the caller among them. NULL: it can't have them. */
struct sim_team *sim_team_new(uint32_t threads);
void sim_team_free(struct sim_team *team);

/* Let one window happen in all partitions but 0; without a team, or if there was little to do in the last one, in this
   thread. */
void sim_team_run(struct sim_team *team, struct sim_partitions *all);

/* For team.c. */
void sim_window(struct sa_sim *sim);

#endif
