/* Priority flow control (IEEE 802.1Qbb): links whose classes can be paused, and the buffers of the ports that pause them. As
   emulation/sim/lossless/pausing.py, whose words these are. */
#ifndef SWITCHAGG_SIM_PAUSING_H
#define SWITCHAGG_SIM_PAUSING_H

#include "sim/link.h"

/* It matches `PfcFacts` in emulation/sim/engine/compiled_lossless.py. classes: a bit for each that is lossless.
   red_most_bytes: -1: marks are the links' own. */
struct sim_pfc_facts {
    int64_t xoff_bytes, xon_bytes, red_least_bytes, red_most_bytes;
    double red_chance;
    uint32_t classes, strict;
};

struct sim_pfc;
struct sim_ingress;

SA_EXPORT struct sim_pfc *sa_sim_pfc(struct sa_sim *sim, const struct sim_pfc_facts *facts);

/* Let a link's classes be paused. words: of the random numbers of its marks. Returns NULL without memory. */
SA_EXPORT struct sim_pausing *sa_sim_pausing(struct sim_link *link, struct sim_pfc *pfc, const uint32_t *words);

/* The buffer where a link comes in at a switch, to which it leads already; reverse: on which pauses travel. */
SA_EXPORT struct sim_ingress *sa_sim_ingress(struct sim_pausing *link, struct sim_pausing *reverse,
                                             uint64_t room_bytes);

/* Whether frames of a class that came in by a port wait for a link. */
SA_EXPORT uint32_t sa_sim_waits_for(const struct sim_pausing *pausing, const struct sim_ingress *ingress, uint32_t kind);

#endif
