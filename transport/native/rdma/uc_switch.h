/* The switch for RDMA workers: queue pairs (uc_plane.h) behind a UDP socket on port 4791.

       receive -> take each packet -> lay out what completed -> send

   A single thread at a time may use it. */
#pragma once

#include "transport/native/rdma/uc_plane.h"

struct sa_uc_switch;

/* Plane and socket stay the caller's. wake: an eventfd. segments: datagrams of one GSO send. Returns NULL without
   memory. */
SA_EXPORT struct sa_uc_switch *sa_uc_switch_new(struct sa_uc_plane *rdma, struct sa_udp *udp, int wake,
                                                    uint32_t segments);
SA_EXPORT void sa_uc_switch_free(struct sa_uc_switch *sw);

/* Serve until `wake` is written (1), CLOCK_MONOTONIC is until_ns (0), or an error: -errno. The caller may use the plane
   between two runs. */
SA_EXPORT int sa_uc_switch_run(struct sa_uc_switch *sw, int64_t until_ns);
