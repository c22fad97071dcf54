/* Loses packets of any kind on their way into an interface: the same loss for every method that is compared. */
#include "switchagg/native/rule/wire.h"

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "switchagg/native/xdp/maps.h"
#include "switchagg/native/xdp/random.bpf.h"

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, uint32_t);
    __type(value, struct sa_loss);
} losses SEC(".maps");

SEC("xdp.frags")
int sa_lose(struct xdp_md *ctx) {
    uint32_t zero = 0;
    (void)ctx;
    struct sa_loss *loss = bpf_map_lookup_elem(&losses, &zero);
    if (!loss) return XDP_PASS;
    if (sa_random_hit(&loss->state, loss->threshold)) {
        loss->lost++;
        return XDP_DROP;
    }
    loss->passed++;
    return XDP_PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
