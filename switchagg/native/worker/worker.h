/* The worker's event loop: runs one endpoint over one UDP socket,

       submissions -> receive -> timer -> send -> events -> sleep

   until there is something for the caller. Only sa_worker_submit and sa_worker_call may be called by other threads than
   the one that runs the loop. No allocation per packet. */
#ifndef SWITCHAGG_WORKER_H
#define SWITCHAGG_WORKER_H

#include "worker/endpoint.h"
#include "network/udp.h"

struct sa_worker;

enum sa_worker_counter {
    SA_WORKER_STRANGERS,  /* datagrams from elsewhere than the switch: ignored */
    SA_WORKER_ECN_MARKED, /* datagrams of the switch that were marked on the way (ECN: CE) */
    SA_WORKER_CREDIT_USED, /* times that frames waited because the credit was used up */
    SA_WORKER_COUNTERS
};

/* endpoint, udp and `wake`, a non-blocking eventfd, stay the caller's and must outlive the worker, and nothing else may
   use them meanwhile. NULL: no memory. */
struct sa_worker *sa_worker_new(struct sa_endpoint *endpoint, struct sa_udp *udp, int wake,
                                const struct sa_address *peer, uint32_t rows_per_send);
void sa_worker_free(struct sa_worker *worker);

/* The TOS of each stream's packets, or SA_TOS_OF_SOCKET (W10). Before the first sa_worker_run; without it none is
   marked. */
void sa_worker_mark(struct sa_worker *worker, const int32_t *tos, uint32_t streams);

/* Queue a call for sa_endpoint_submit and wake the loop. Any thread. -1: no memory. */
int sa_worker_submit(struct sa_worker *worker, const struct sa_submission *submission);

/* Make the present sa_worker_run, or else the next, return soon, also under load. Any thread. */
void sa_worker_call(struct sa_worker *worker);

/* Run until there are events, sa_worker_call, or CLOCK_MONOTONIC is until_ns. Returns the number of events written, at
   most `room`; 0; or -errno: the socket is broken, or there was no memory for a submission (ENOMEM). */
int sa_worker_run(struct sa_worker *worker, int64_t until_ns, struct sa_event *events, uint32_t room);

/* SA_WORKER_COUNTERS numbers, valid as long as the worker. */
const uint64_t *sa_worker_counters(const struct sa_worker *worker);

#endif
