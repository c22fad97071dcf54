/* DCQCN (Zhu et al., SIGCOMM 2015): the rate of one queue pair, cut when a CNP reports that its packets met congestion,
   and raised again step by step; and when a receiver sends a CNP. Pure state machines in integers: their inputs are
   bytes and the time; the same on every machine. It has no clock, and allocates nothing. Times are nanoseconds from any
   origin, not negative, never decreasing. A single thread at a time may use it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* sa_dcqcn_defaults gives those in brackets. */
struct sa_dcqcn_config {
    uint64_t line_bps;       /* the link's rate, where the queue pair starts; 1 kbit/s to 4 Tbit/s */
    uint64_t min_bps;        /* never slower: [1 Mbit/s], at most line_bps */
    uint64_t additive_bps;   /* R_AI [40 Mbit/s]: what each step of additive increase adds; at least line_bps / 65536 */
    uint64_t hyper_bps;      /* R_HAI [400 Mbit/s]: what the i-th step of hyper increase adds, i times */
    uint64_t byte_counter;   /* B [10 MB]: every so many bytes sent are a step */
    int64_t timer_ns;        /* T [55 us]: every so much time is a step */
    int64_t alpha_timer_ns;  /* K [55 us]: so long without a CNP, alpha falls */
    int64_t cut_interval_ns; /* [50 us]: CNPs closer together cut once; receivers shouldn't send them, but may */
    uint32_t recovery_rounds; /* F [5] */
    uint32_t gain_shift;      /* g = 1 / 2^gain_shift [8: 1/256]; 1 to 16 */
};

#define SA_ALPHA_ONE (1u << 20) /* 1.0 for alpha */

/* The reaction point is the sender's side. */
struct sa_dcqcn {
    struct sa_dcqcn_config config;
    uint64_t current_bps; /* Rc: may be sent at */
    uint64_t target_bps;  /* Rt: where recovery goes */
    uint32_t alpha;       /* estimate of recent congestion, 0 to SA_ALPHA_ONE; starts as 1 */
    uint32_t timer_steps; /* T and BC of the paper: steps since the last cut */
    uint32_t byte_steps;
    bool cut_once;        /* until then the line rate is the only limit */
    int64_t timer_from_ns;
    int64_t alpha_from_ns;
    int64_t cut_ns;
    uint64_t bytes;       /* since the last step by bytes */
    uint64_t debt;        /* bits sent ahead of the rate, in 10^-9 bit */
    int64_t debt_ns;      /* as of then */
    uint64_t cnps;        /* that came, and rate cuts they caused */
    uint64_t cuts;
};

void sa_dcqcn_defaults(struct sa_dcqcn_config *config, uint64_t line_bps);

/* 0, or -1: the config is outside the bounds above, and nothing was written. */
int sa_dcqcn_init(struct sa_dcqcn *rp, const struct sa_dcqcn_config *config, int64_t now_ns);

/* A CNP came: Rt = Rc, Rc = Rc * (1 - alpha / 2), alpha = (1 - g) * alpha + g, all steps restart. */
void sa_dcqcn_cnp(struct sa_dcqcn *rp, int64_t now_ns);

/* The rate now, after all steps that are due: in order, halfway to the target for F steps (recovery), then
   with a target raised by R_AI, or by i * R_HAI once both counters are i above F. */
uint64_t sa_dcqcn_rate_bps(struct sa_dcqcn *rp, int64_t now_ns);

/* Pacing. How many bytes may be sent now, so that no more than burst_bytes (at most 16 MB) leave at once; 0: not before
   sa_dcqcn_next_ns. May be less than a packet: then send a whole packet; the pause after it is longer. */
uint64_t sa_dcqcn_allowance(struct sa_dcqcn *rp, uint64_t burst_bytes, int64_t now_ns);
/* `bytes` (at most 16 MB) were sent, headers included. */
void sa_dcqcn_sent(struct sa_dcqcn *rp, uint64_t bytes, int64_t now_ns);
/* When to call sa_dcqcn_allowance again: when it is more than 0 at the present rate, or when time raises the rate, if
   that comes first; now_ns if it is more than 0. */
int64_t sa_dcqcn_next_ns(struct sa_dcqcn *rp, uint64_t burst_bytes, int64_t now_ns);

/* The notification point is the receiver's side, one per queue pair. All zeros at first. */
struct sa_cnp_gate {
    int64_t last_ns;
    uint64_t marked; /* packets that came with CE, and the CNPs for them */
    uint64_t cnps;
};

#define SA_CNP_INTERVAL_NS 50000 /* the paper's */

/* A packet came with CE: whether a CNP goes back, at most one in interval_ns. */
bool sa_cnp_due(struct sa_cnp_gate *gate, int64_t interval_ns, int64_t now_ns);
