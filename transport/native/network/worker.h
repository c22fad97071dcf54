/* The worker's event loop runs one endpoint over one UDP socket,

       submissions -> receive -> timer -> send -> events -> sleep

   Exactly one thread at a time runs the loop: a thread that waits for a call (sa_worker_wait), or else the background
   thread (sa_worker_run), which sleeps while another thread runs it or, without partial sums, no call is pending. The loop allocates nothing
   per packet. */
#pragma once

#include "switchagg/native/worker/endpoint.h"
#include "transport/native/network/hop.h"
#include "transport/native/network/udp.h"

struct sa_worker;

enum sa_worker_counter {
    SA_WORKER_UNKNOWN_SENDERS,  /* datagrams from elsewhere than the switch: ignored */
    SA_WORKER_ECN_MARKED, /* datagrams of the switch that were marked on the way (ECN: CE) */
    SA_WORKER_CREDIT_USED, /* times that frames waited because the credit was used up */
    SA_WORKER_UNAUTHENTICATED, /* datagrams with the switch's address and a wrong tag: ignored (A5) */
    SA_WORKER_COUNTERS
};

/* endpoint, udp and `wake`, a non-blocking eventfd, stay the caller's and must outlive the worker's last run or wait, and
   nothing else may use them meanwhile. Returns NULL without memory or a descriptor. */
struct sa_worker *sa_worker_new(struct sa_endpoint *endpoint, struct sa_udp *udp, int wake,
                                const struct sa_address *peer, uint32_t rows_per_send);

/* No thread may be in any of its functions any more. */
void sa_worker_free(struct sa_worker *worker);

/* Set the TOS of each stream's packets, or SA_TOS_OF_SOCKET (W10). Before the first sa_worker_run; without it none is
   marked. */
void sa_worker_mark(struct sa_worker *worker, const int32_t *tos, uint32_t streams);

/* Packets have tags, of the hop's only child. Before the first sa_worker_run; the worker frees the hop. */
void sa_worker_authenticate(struct sa_worker *worker, struct sa_hop *hop);

/* Queue a call for sa_endpoint_submit. Where no thread runs the loop, a small one is sent at once; the background
   thread takes over when its first result comes, unless somebody waits for it by then. Any thread may call it. Returns
   -1 without memory. */
int sa_worker_submit(struct sa_worker *worker, const struct sa_submission *submission);

/* Limit of a call that its submitter sends and its waiter carries: that takes less than the wake-up of a thread. */
#define SA_SMALL_VALUES 8192u

enum { SA_LOOK_AGAIN, SA_FINISHED, SA_BUSY };

/* Run the loop until this call, submitted and not yet reported to this caller, is finished: SA_FINISHED, once, instead
   of its event, and *finished is 1. SA_LOOK_AGAIN: limit_ns from now are over, a signal came, or the background thread
   has handed out events, among which the call's may be. SA_BUSY: another thread runs the loop, and the call will have
   its event. It returns -errno as sa_worker_run does. Any thread may call it. */
int sa_worker_wait(struct sa_worker *worker, uint64_t call, int64_t limit_ns, int *finished);

/* Make the present sa_worker_run, or else the next, return soon, also under load, and leave the loop to that thread.
   Any thread may call it. */
void sa_worker_call(struct sa_worker *worker);

/* Run until there are events, sa_worker_call, or CLOCK_MONOTONIC is until_ns. Returns the number of events written, at
   most `room`; 0; or -errno: the socket is broken, or there was no memory for a submission (ENOMEM). Only the
   background thread may call it. */
int sa_worker_run(struct sa_worker *worker, int64_t until_ns, struct sa_event *events, uint32_t room);

/* Nothing is sent, received or written into an array from now on: sa_worker_wait is SA_BUSY. The caller calls neither
   sa_worker_run nor sa_worker_submit afterwards. */
void sa_worker_close(struct sa_worker *worker);

/* After sa_worker_close, until it returns 0: all submissions reach the endpoint, and the events that nobody has been given
   are written, at most `room`. Returns how many, or -ENOMEM. In the background thread. */
int sa_worker_finish(struct sa_worker *worker, struct sa_event *events, uint32_t room);

/* Returns SA_WORKER_COUNTERS numbers, which are valid as long as the worker. */
const uint64_t *sa_worker_counters(const struct sa_worker *worker);
