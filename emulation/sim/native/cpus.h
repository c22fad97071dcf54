/* CPUs on which the programs of hosts and switches handle packets, as where a network is emulated on one machine. A program
   handles one packet after the other; each occupies a CPU for packet_ns, and so does each that the program sends; the first
   one after a pause for wake_ns besides. Programs that have packets take turns, a packet each, on a number of CPUs; or, if
   that is 0, each has a CPU of its own.
   As `OracleCpus` of tests/oracles/cpus.py. */
#ifndef SWITCHAGG_SIM_CPUS_H
#define SWITCHAGG_SIM_CPUS_H

#include "emulation/sim/native/forward.h"

struct sim_cpus;
struct sim_program;

/* The simulation must have one partition. Returns NULL without memory. */
SA_EXPORT struct sim_cpus *sa_sim_cpus(struct sa_sim *sim, uint32_t count, int64_t wake_ns);

/* The program of a host; or, where `at` isn't NULL, of a switch, which takes frames that are addressed to it and no others.
   Returns NULL without memory. */
SA_EXPORT struct sim_program *sa_sim_program_on(struct sim_cpus *cpus, struct sim_switch *at, int64_t packet_ns);

/* A link that the program sends on. Returns 0, or -1 without memory. */
SA_EXPORT int sa_sim_program_sends(struct sim_program *program, const struct sim_link *link);

/* Frames of a link come to the program first, whatever they were led to. Returns 0, or -1 without memory. */
SA_EXPORT int sa_sim_program_takes(struct sim_program *program, struct sim_link *link);

/* How often an idle program got a packet, so far. */
SA_EXPORT uint64_t sa_sim_wakes(const struct sim_cpus *cpus);

#endif
