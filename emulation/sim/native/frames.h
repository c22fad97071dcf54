/* Frames of reliable connections (transport/native/hosts/reliable.h) in the simulator: bodies that say which part of which message they carry,
   and have its bytes' CRC-32 where there is a trace. */
#ifndef SWITCHAGG_SIM_FRAMES_H
#define SWITCHAGG_SIM_FRAMES_H

#include "transport/native/hosts/reliable.h"
#include "emulation/sim/native/sim.h"

/* NULL, and the run ends: no memory. */
struct sim_body *sim_data_frame(struct sa_sim *sim, const struct sa_segment *segment,
                                const struct sa_reliable_config *config, uint32_t connection);
struct sim_body *sim_ack_frame(struct sa_sim *sim, const struct sa_ack *ack, uint32_t connection);

/* The contents of a frame: a segment, or else an acknowledgement. */
bool sim_has_segment(const struct sim_body *body);
struct sa_segment sim_segment_in(const struct sim_body *body);
struct sa_ack sim_ack_in(const struct sim_body *body);

#endif
