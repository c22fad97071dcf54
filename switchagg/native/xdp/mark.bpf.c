/* Marks packets of ECN-capable senders that leave an interface behind more than so much of a shaped link's queue: an AQM
   for kernels without one. At clsact's egress, before the shaper: it counts what the shaper's queue must hold. */
#include "switchagg/native/rule/wire.h"

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

/* Written into the object's file before it is loaded: see emulation/testbed/mininet/marks.py. */
const volatile uint64_t ns_per_mebibyte = 0x5a5a5a5a5a5a5a01;
const volatile uint64_t threshold_ns = 0x5a5a5a5a5a5a5a02;
const volatile uint64_t limit_ns = 0x5a5a5a5a5a5a5a03;

struct queue {
    struct bpf_spin_lock lock;
    uint32_t unused;
    uint64_t idle_ns; /* when it will be empty */
    uint64_t marked;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, uint32_t);
    __type(value, struct queue);
} queues SEC(".maps");

SEC("tc")
int sa_mark(struct __sk_buff *packet) {
    uint32_t zero = 0;
    struct queue *queue = bpf_map_lookup_elem(&queues, &zero);
    if (!queue) return -1;
    uint64_t bytes = packet->wire_len, now_ns = bpf_ktime_get_ns(); /* a bundle as its segments, as the shaper counts */
    bpf_spin_lock(&queue->lock);
    uint64_t idle_ns = queue->idle_ns > now_ns ? queue->idle_ns : now_ns, wait_ns = idle_ns - now_ns;
    if (wait_ns <= limit_ns) queue->idle_ns = idle_ns + (bytes * ns_per_mebibyte >> 20); /* else it is dropped */
    bpf_spin_unlock(&queue->lock);
    if (wait_ns > threshold_ns && bpf_skb_ecn_set_ce(packet)) __sync_fetch_and_add(&queue->marked, 1);
    return -1; /* what other filters and the shaper say */
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
