/* See dcqcn.h. */
#include "transport/native/roce/dcqcn.h"
#include "switchagg/native/abi.h"

#include <string.h>

#define LINE_MIN 1000ull
#define LINE_MAX 4000000000000ull /* times SA_ALPHA_ONE fits 63 bits */
#define STEPS_MAX (1u << 30)
#define BYTES_MAX (16ull << 20) /* in 10^-9 bit it is 1.3e17 */
#define GIGA 1000000000ull

SA_EXPORT void sa_dcqcn_defaults(struct sa_dcqcn_config *config, uint64_t line_bps) {
    *config = (struct sa_dcqcn_config){
        .line_bps = line_bps,
        .min_bps = line_bps < 1000000 ? line_bps : 1000000,
        .additive_bps = 40000000,
        .hyper_bps = 400000000,
        .byte_counter = 10000000,
        .timer_ns = 55000,
        .alpha_timer_ns = 55000,
        .cut_interval_ns = SA_CNP_INTERVAL_NS,
        .recovery_rounds = 5,
        .gain_shift = 8,
    };
}

static bool fits(const struct sa_dcqcn_config *c) {
    return c->line_bps >= LINE_MIN && c->line_bps <= LINE_MAX && c->min_bps >= 1 && c->min_bps <= c->line_bps &&
           c->additive_bps >= c->line_bps >> 16 && c->additive_bps >= 1 && c->additive_bps <= LINE_MAX &&
           c->hyper_bps <= LINE_MAX && c->byte_counter >= 1 && c->timer_ns >= 1 && c->alpha_timer_ns >= 1 &&
           c->cut_interval_ns >= 0 && c->recovery_rounds < STEPS_MAX && c->gain_shift >= 1 && c->gain_shift <= 16;
}

SA_EXPORT int sa_dcqcn_init(struct sa_dcqcn *rp, const struct sa_dcqcn_config *config, int64_t now_ns) {
    if (!fits(config)) return -1;
    memset(rp, 0, sizeof *rp);
    rp->config = *config;
    rp->current_bps = rp->target_bps = config->line_bps;
    rp->alpha = SA_ALPHA_ONE;
    rp->timer_from_ns = rp->alpha_from_ns = rp->debt_ns = now_ns;
    return 0;
}

static bool at_line(const struct sa_dcqcn *rp) { return rp->current_bps == rp->config.line_bps; }

/* Does one step of recovery or increase, after one of the two counters has risen. */
static void raise_rate(struct sa_dcqcn *rp) {
    const struct sa_dcqcn_config *c = &rp->config;
    uint32_t most = rp->timer_steps > rp->byte_steps ? rp->timer_steps : rp->byte_steps;
    uint32_t least = rp->timer_steps > rp->byte_steps ? rp->byte_steps : rp->timer_steps;
    if (most > c->recovery_rounds) { /* the first F steps only return */
        uint64_t more = c->additive_bps;
        if (least > c->recovery_rounds) {
            uint64_t steps = least - c->recovery_rounds;
            more = c->hyper_bps > c->line_bps / steps ? c->line_bps : steps * c->hyper_bps;
        }
        rp->target_bps = rp->target_bps + more > c->line_bps ? c->line_bps : rp->target_bps + more;
    }
    rp->current_bps = (rp->current_bps + rp->target_bps + 1) / 2; /* rounded up, or it would never reach the target */
}

static void pay(struct sa_dcqcn *rp, int64_t now_ns) {
    uint64_t passed = (uint64_t)(now_ns - rp->debt_ns);
    rp->debt = passed >= rp->debt / rp->current_bps + 1 ? 0 : rp->debt - passed * rp->current_bps;
    rp->debt_ns = now_ns;
}

/* Apply the timer steps up to now, and let the debt be paid at the rates between them. Ends early where nothing changes
   any more, so a long pause costs little: each step beyond recovery raises the target by at least a 65536th of the
   line. */
static void pass_time(struct sa_dcqcn *rp, int64_t now_ns) {
    const struct sa_dcqcn_config *c = &rp->config;
    while (now_ns - rp->alpha_from_ns >= c->alpha_timer_ns) {
        uint32_t fall = (uint32_t)(((uint64_t)rp->alpha + (1u << c->gain_shift) - 1) >> c->gain_shift);
        if (!fall) { /* alpha is 0 */
            rp->alpha_from_ns = now_ns - (now_ns - rp->alpha_from_ns) % c->alpha_timer_ns;
            break;
        }
        rp->alpha -= fall;
        rp->alpha_from_ns += c->alpha_timer_ns;
    }
    while (now_ns - rp->timer_from_ns >= c->timer_ns) {
        if (at_line(rp)) {
            rp->timer_from_ns = now_ns - (now_ns - rp->timer_from_ns) % c->timer_ns;
            break;
        }
        if (rp->timer_steps < STEPS_MAX) rp->timer_steps++;
        rp->timer_from_ns += c->timer_ns;
        pay(rp, rp->timer_from_ns);
        raise_rate(rp);
    }
    pay(rp, now_ns);
}

SA_EXPORT void sa_dcqcn_cnp(struct sa_dcqcn *rp, int64_t now_ns) {
    const struct sa_dcqcn_config *c = &rp->config;
    rp->cnps++;
    if (rp->cut_once && now_ns - rp->cut_ns < c->cut_interval_ns) return;
    pass_time(rp, now_ns);
    rp->cuts++;
    rp->cut_once = true;
    rp->cut_ns = rp->timer_from_ns = rp->alpha_from_ns = now_ns;
    rp->target_bps = rp->current_bps;
    rp->current_bps -= rp->current_bps * rp->alpha / (2ull * SA_ALPHA_ONE);
    if (rp->current_bps < c->min_bps) rp->current_bps = c->min_bps;
    rp->alpha += (SA_ALPHA_ONE - rp->alpha) >> c->gain_shift;
    rp->timer_steps = rp->byte_steps = 0;
    rp->bytes = 0;
}

SA_EXPORT uint64_t sa_dcqcn_rate_bps(struct sa_dcqcn *rp, int64_t now_ns) {
    pass_time(rp, now_ns);
    return rp->current_bps;
}

SA_EXPORT uint64_t sa_dcqcn_allowance(struct sa_dcqcn *rp, uint64_t burst_bytes, int64_t now_ns) {
    pass_time(rp, now_ns);
    uint64_t burst = (burst_bytes < BYTES_MAX ? burst_bytes : BYTES_MAX) * 8 * GIGA;
    return rp->debt >= burst ? 0 : (burst - rp->debt + 8 * GIGA - 1) / (8 * GIGA);
}

SA_EXPORT void sa_dcqcn_sent(struct sa_dcqcn *rp, uint64_t bytes, int64_t now_ns) {
    const struct sa_dcqcn_config *c = &rp->config;
    if (bytes > BYTES_MAX) bytes = BYTES_MAX;
    pass_time(rp, now_ns);
    rp->debt += bytes * 8 * GIGA;
    if (rp->debt > 2 * BYTES_MAX * 8 * GIGA) rp->debt = 2 * BYTES_MAX * 8 * GIGA; /* only without an allowance */
    for (rp->bytes += bytes; rp->bytes >= c->byte_counter && !at_line(rp); rp->bytes -= c->byte_counter) {
        if (rp->byte_steps < STEPS_MAX) rp->byte_steps++;
        raise_rate(rp);
    }
    if (rp->bytes >= c->byte_counter) rp->bytes %= c->byte_counter;
}

SA_EXPORT int64_t sa_dcqcn_next_ns(struct sa_dcqcn *rp, uint64_t burst_bytes, int64_t now_ns) {
    if (sa_dcqcn_allowance(rp, burst_bytes, now_ns)) return now_ns;
    uint64_t burst = (burst_bytes < BYTES_MAX ? burst_bytes : BYTES_MAX) * 8 * GIGA;
    int64_t paid_ns = now_ns + (int64_t)((rp->debt - burst) / rp->current_bps) + 1;
    int64_t step_ns = rp->timer_from_ns + rp->config.timer_ns;
    return at_line(rp) || paid_ns < step_ns ? paid_ns : step_ns;
}

SA_EXPORT bool sa_cnp_due(struct sa_cnp_gate *gate, int64_t interval_ns, int64_t now_ns) {
    gate->marked++;
    if (gate->cnps && now_ns - gate->last_ns < interval_ns) return false;
    gate->last_ns = now_ns;
    gate->cnps++;
    return true;
}
