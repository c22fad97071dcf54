/* The data plane `xdp` runs the switch rule in the kernel, on any Linux box.

   sa_switch (XDP, on every port) takes the datagrams sent to the switch's address and nothing else: it checks them (P5,
   P6, S1), applies S2 to S5 (H2 to H5 below another switch) under the lock of the slot version, and drops them, but for a
   packet that completes its chunk or asks for a result again: that one becomes the result (S6), or the sums for the
   parent, and goes up to sa_deliver (tc ingress of the same port), which sends a copy to each target. An XDP redirect would be shorter, but bypasses the queueing
   discipline of the port, and with it the shaper. Results of a route have two sizes, and a header-only packet may cause one
   with values, for which XDP has no room in the buffers of small frames: sa_deliver makes both, from the slot.
   Built twice: SA_ELEMENTS is the most elements per packet. */
#include "switchagg/native/rule/wire.h"

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_helpers.h>

#include "switchagg/native/rule/slot.h"
#include "switchagg/native/xdp/maps.h"
#include "switchagg/native/xdp/random.bpf.h"

#if SA_ELEMENTS > 860 /* what one page holds, with room for the kernel's own */
#define SA_XDP "xdp.frags"
#else
#define SA_XDP "xdp"
#endif

#define SA_BLOCK 8u /* elements per iteration; those beyond E are padding that nothing reads */
_Static_assert(SA_ELEMENTS % SA_BLOCK == 0, "whole blocks");
#define SA_PACKET_MAX (SA_HEADER_BYTES + 4u * SA_ELEMENTS)
#define SA_CHECKSUM_BLOCK 512u /* the most bpf_csum_diff takes at once before Linux 6.13 */
#define SA_CHECKSUM_BLOCKS ((SA_PACKET_MAX + SA_CHECKSUM_BLOCK - 1) / SA_CHECKSUM_BLOCK)
#define SA_HEADERS_BYTES 42u /* Ethernet, IPv4 without options, UDP */
#define SA_HOPS 64u
#define SA_UDP 17u

/* The targets of a result, from sa_switch to sa_deliver in IPv4's identification: all, or one rank, counted from 1. */
#define SA_TO_ALL 0u

const volatile struct sa_xdp_configuration configuration = {0};

struct slot {
    SA_XDP_SLOT
    uint32_t sums[SA_ELEMENTS]; /* host byte order */
};

struct scratch {
    struct sa_header header;
    uint32_t values[SA_CHECKSUM_BLOCKS * SA_CHECKSUM_BLOCK / 4];
};

struct counters {
    uint64_t packets[SA_XDP_EXTRAS];
};

/* Sizes of slots and jobs are the loader's. Index of a slot version: 2 * slot + version. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, uint32_t);
    __type(value, struct slot);
} slots SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1);
    __uint(map_flags, BPF_F_NO_PREALLOC);
    __type(key, uint32_t);
    __type(value, struct sa_xdp_job);
} jobs SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, uint32_t);
    __type(value, struct scratch);
} scratches SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, uint32_t);
    __type(value, struct counters);
} counts SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_HASH);
    __uint(max_entries, 256);
    __type(key, uint32_t);
    __type(value, struct sa_xdp_impairment);
} impairments SEC(".maps");

SA_INLINE void count(uint32_t what) {
    uint32_t zero = 0;
    struct counters *counters = bpf_map_lookup_elem(&counts, &zero);
    if (counters && what < SA_XDP_EXTRAS) counters->packets[what]++;
}

SA_INLINE uint32_t folded(uint64_t sum) {
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint32_t)((sum & 0xffff) + (sum >> 16));
}

SA_INLINE uint32_t address_sum(uint32_t address) { return (address & 0xffff) + (address >> 16); }

/* Returns the sum of a whole packet in the scratch, `size` bytes, a multiple of 4. */
SA_INLINE uint64_t packet_sum(struct scratch *scratch, uint32_t size) {
    uint64_t sum = 0;
    for (uint32_t block = 0; block < SA_CHECKSUM_BLOCKS; block++) {
        uint32_t at = block * SA_CHECKSUM_BLOCK;
        if (at >= size) break;
        uint32_t bytes = size - at;
        if (bytes > SA_CHECKSUM_BLOCK) bytes = SA_CHECKSUM_BLOCK;
        barrier_var(bytes);
        if (bytes > SA_CHECKSUM_BLOCK) break; /* for the verifier: it can't see through the barrier */
        sum = (uint32_t)bpf_csum_diff(0, 0, (void *)scratch + at, bytes, (uint32_t)sum);
    }
    return sum;
}

/* The part of the checksum of a result in the scratch that is the same for every target. */
SA_INLINE uint32_t result_sum(struct scratch *scratch, uint32_t size) {
    uint16_t udp_bytes = SA_BE16((uint16_t)(size + sizeof(struct udphdr)));
    return folded(packet_sum(scratch, size) + udp_bytes + udp_bytes + SA_BE16((uint16_t)SA_UDP));
}

/* Read again before each loop: the verifier infers the number from the iteration that a loop ends in, and would explore
   what follows once for each such number. */
SA_INLINE uint32_t blocks_of(const struct scratch *scratch) {
    return (SA_BE16(*(const volatile uint16_t *)&scratch->header.elements) + SA_BLOCK - 1) / SA_BLOCK;
}

/* Applies S4 to a packet, in a loop of its own for each action. */
SA_INLINE void combine(enum sa_values action, struct slot *slot, const struct scratch *scratch) {
    uint32_t blocks = blocks_of(scratch);
    for (uint32_t block = 0; block < SA_ELEMENTS / SA_BLOCK; block++) {
        if (block >= blocks) break;
        uint32_t *sums = slot->sums + block * SA_BLOCK;
        const uint32_t *values = scratch->values + block * SA_BLOCK;
#pragma clang loop unroll(full)
        for (uint32_t i = 0; i < SA_BLOCK; i++) {
            if (action == SA_ZERO)
                ((volatile uint32_t *)sums)[i] = 0; /* or it becomes a call of memset */
            else
                sums[i] = sa_combine(action, sums[i], SA_BE32(values[i]));
        }
    }
}

SA_INLINE void copy_out(const struct slot *slot, struct scratch *scratch) {
    uint32_t blocks = blocks_of(scratch);
    for (uint32_t block = 0; block < SA_ELEMENTS / SA_BLOCK; block++) {
        if (block >= blocks) break;
        const uint32_t *sums = slot->sums + block * SA_BLOCK;
        uint32_t *values = scratch->values + block * SA_BLOCK;
#pragma clang loop unroll(full)
        for (uint32_t i = 0; i < SA_BLOCK; i++) values[i] = SA_BE32(sums[i]);
    }
}

/* S2 to S5 and G3 for the packet in the scratch, under the slot's lock; the sums are copied to the scratch if a result
   is sent: the next packet may overwrite them. The owner is checked again: since S1 was checked the job may have been
   evicted and its slots given to another. two_windows: of its stream. The function isn't inlined, or the verifier would
   explore its loops once for every path that leads here. */
__attribute__((noinline)) int sa_aggregate(uint32_t index, uint32_t job_id, uint64_t full, uint32_t parent,
                                           uint32_t two_windows) {
    uint32_t zero = 0;
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    struct slot *slot = bpf_map_lookup_elem(&slots, &index);
    if (!scratch || !slot) return SA_DROP_SLOT;
    struct sa_header *header = &scratch->header;
    uint32_t kind = SA_BE32(header->kind), chunk = SA_BE32(header->chunk), rank = header->rank, outcome;
    uint32_t generation = SA_BE32(header->generation);
    bpf_spin_lock(&slot->lock);
    if (slot->job != job_id || slot->generation != generation) {
        outcome = slot->job == job_id ? SA_DROP_GENERATION : SA_DROP_JOB;
    } else {
        uint32_t marked = slot->marked;
        struct sa_decision decision;
        if (!parent)
            decision = sa_slot_accept(&slot->held, &slot->seen, &marked, full, two_windows, kind, chunk, rank);
        else if (kind & SA_RESULT)
            decision = sa_leaf_take(slot->held, &slot->seen, full, chunk);
        else
            decision = sa_leaf_accept(&slot->held, &slot->seen, &marked, &slot->requesters, full, two_windows, kind, chunk, rank);
        if (kind & SA_RESULT)
            marked = decision.outcome == SA_BROADCAST ? rank & SA_MARKED : marked;
        else
            header->rank |= (uint8_t)marked;
        slot->marked = (uint16_t)marked;
        if (decision.outcome == SA_UP || decision.outcome == SA_UP_AGAIN)
            header->rank = (uint8_t)((parent - 1) | marked);
        outcome = decision.outcome;
        if (decision.values == SA_WRITE)
            combine(SA_WRITE, slot, scratch);
        else if (decision.values == SA_ADD)
            combine(SA_ADD, slot, scratch);
        else if (decision.values == SA_MAXIMUM)
            combine(SA_MAXIMUM, slot, scratch);
        else if (decision.values == SA_ZERO)
            combine(SA_ZERO, slot, scratch);
        if (!sa_route(kind) && sa_sends(outcome)) copy_out(slot, scratch);
    }
    bpf_spin_unlock(&slot->lock);
    return (int)outcome;
}

/* The sums of the chunk in the scratch's header, which was complete, into the scratch; 0 if the slot version holds them
   no longer: a later chunk has it, or another job, and nobody waits for this result any more. Not inlined, as above. */
__attribute__((noinline)) int sa_fetch(uint32_t index, uint32_t job_id) {
    uint32_t zero = 0, there;
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    struct slot *slot = bpf_map_lookup_elem(&slots, &index);
    if (!scratch || !slot) return 0;
    uint32_t generation = SA_BE32(scratch->header.generation), chunk = SA_BE32(scratch->header.chunk);
    bpf_spin_lock(&slot->lock);
    there = slot->job == job_id && slot->generation == generation && slot->held == chunk;
    if (there) copy_out(slot, scratch);
    bpf_spin_unlock(&slot->lock);
    return (int)there;
}

/* The index of the slot version in `slots`. */
SA_INLINE uint32_t index_of(const struct sa_header *header) {
    return 2u * SA_BE16(header->slot) + (SA_BE32(header->kind) & SA_VERSION ? 1 : 0);
}

/* S1, in its order; SA_ABSORBED if the packet is its job's. */
SA_INLINE uint32_t membership_fault(const struct sa_xdp_job *job, const struct sa_header *header, uint32_t address,
                                    uint16_t port) {
    uint32_t rank = header->rank & ~SA_MARKED, stream = header->stream, slot = SA_BE16(header->slot);
    uint32_t kind = SA_BE32(header->kind), result = kind & SA_RESULT;
    if (!job) return result ? SA_DROP_RESULT : SA_DROP_JOB;
    const struct sa_xdp_member *parent = &job->members[job->workers & (SA_WORKERS_MAX - 1)];
    if (result && (!job->parent || parent->address != address || parent->port != port)) return SA_DROP_RESULT;
    if (SA_BE32(header->generation) != job->generation) return SA_DROP_GENERATION;
    if (stream >= job->stream_count) return SA_DROP_STREAM;
    const struct sa_xdp_range *range = &job->streams[stream & (SA_STREAMS_MAX - 1)];
    if (slot - range->first_slot >= range->window) return SA_DROP_SLOT;
    if (!result && rank >= job->workers) return SA_DROP_RANK;
    const struct sa_xdp_member *member = &job->members[rank & (SA_WORKERS_MAX - 1)];
    if (!result && (member->address != address || member->port != port)) return SA_DROP_PORT;
    if (sa_route(kind) && job->parent) return SA_DROP_ROUTE;
    if (sa_route(kind) && (sa_owner(kind) >= job->workers || job->workers < 2)) return SA_DROP_OWNER;
    uint32_t elements = result || sa_givers(kind, job->full) >> (rank & 63) & 1 ? job->elements : 0;
    if (SA_BE16(header->elements) != elements) return SA_DROP_ELEMENTS;
    return SA_ABSORBED;
}

/* Remember how the worker is reached. Written only when new: the line is read by all CPUs. The interface stays until it
   is gone or down, which the loader sees: a host with the worker's address behind another interface gets no results. */
SA_INLINE void learn(struct sa_xdp_member *member, const struct ethhdr *ethernet, uint32_t address, uint32_t ifindex) {
    if (member->ifindex && member->ifindex != ifindex && !member->lost) return;
    const uint16_t *to = (const void *)ethernet->h_dest, *from = (const void *)ethernet->h_source;
    if (member->ifindex == ifindex && !member->lost && member->switch_address == address && member->ethernet[0] == from[0] &&
        member->ethernet[1] == from[1] && member->ethernet[2] == from[2] && member->ethernet[3] == to[0] &&
        member->ethernet[4] == to[1] && member->ethernet[5] == to[2])
        return;
#pragma clang loop unroll(full)
    for (int i = 0; i < 3; i++) {
        member->ethernet[i] = from[i];
        member->ethernet[i + 3] = to[i];
    }
    member->switch_address = address;
    member->ifindex = ifindex;
    member->lost = 0;
}

SA_INLINE int is_ours(uint32_t address) {
    for (uint32_t i = 0; i < SA_XDP_ADDRESSES; i++) {
        if (i >= configuration.address_count) break;
        if (configuration.addresses[i] == address) return 1;
    }
    return 0;
}

/* Returns the impairments of a port; 0: none. */
SA_INLINE struct sa_xdp_impairment *impairment_of(uint32_t ifindex) {
    return configuration.impaired ? bpf_map_lookup_elem(&impairments, &ifindex) : 0;
}

/* The packet in the scratch becomes the frame's payload again, as a result (S6) or the sums for a parent (H3), for
   sa_deliver; with a route, the header alone. The checksum field gets the sum of what is the same for every target. to:
   SA_TO_ALL, or who gets it, counted from 1. */
SA_INLINE int pass_up(struct xdp_md *ctx, struct scratch *scratch, uint32_t size, uint32_t outcome, uint32_t to) {
    uint32_t kind = SA_BE32(scratch->header.kind), contribution = !(kind & SA_RESULT);
    kind &= ~SA_RETRANSMISSION;
    if (outcome == SA_UP_AGAIN) kind |= SA_RETRANSMISSION;
    if (outcome == SA_BROADCAST || outcome == SA_REPLY) kind |= SA_RESULT;
    scratch->header.kind = SA_BE32(kind);
    if (sa_route(kind)) size = SA_HEADER_BYTES;
    uint32_t sum = result_sum(scratch, size);
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + SA_HEADERS_BYTES > end) return XDP_DROP;
    uint16_t *source = data + ETH_ALEN;
    source[0] = configuration.ticket[0];
    source[1] = configuration.ticket[1];
    source[2] = configuration.ticket[2];
    struct iphdr *ip = data + sizeof(struct ethhdr);
    ip->id = SA_BE16((uint16_t)to);
    if (contribution && sa_is_ce(ip->tos)) ip->tos &= (uint8_t)~1u; /* G4; its checksum is made anew */
    struct udphdr *udp = (void *)(ip + 1);
    udp->check = (uint16_t)sum;
    if (size > SA_PACKET_MAX || bpf_xdp_store_bytes(ctx, SA_HEADERS_BYTES, scratch, size)) return XDP_DROP;
    return XDP_PASS;
}

/* A datagram to the switch, of `size` bytes: count it; it ends here unless it becomes a result. */
SA_INLINE int take(struct xdp_md *ctx, const struct ethhdr *ethernet, const struct iphdr *ip, const struct udphdr *udp,
                   uint32_t size) {
    uint32_t zero = 0, address = ip->saddr, to = ip->daddr, check = udp->check;
    uint16_t port = udp->source;
    uint64_t addresses = address_sum(address) + address_sum(to);
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    if (!scratch) return XDP_DROP;
    if (size < SA_HEADER_BYTES) {
        count(SA_DROP_SHORT);
        return XDP_DROP;
    }
    uint32_t held = size > SA_PACKET_MAX ? SA_HEADER_BYTES : size; /* a larger one fails S1: no job has so many elements */
    if (bpf_xdp_load_bytes(ctx, SA_HEADERS_BYTES, scratch, held)) return XDP_DROP;
    const struct sa_header *header = &scratch->header;
    uint32_t outcome = sa_fault(SA_BE32(header->kind), SA_BE16(header->elements), size);
    if (outcome != SA_ABSORBED) { /* dropped whatever its checksum */
        count(outcome);
        return XDP_DROP;
    }
    if (check && size <= SA_PACKET_MAX) { /* 0: the sender made none */
        uint16_t bytes = SA_BE16((uint16_t)(size + sizeof(struct udphdr)));
        uint64_t pseudo = addresses + bytes + SA_BE16((uint16_t)SA_UDP);
        uint64_t sum = packet_sum(scratch, size) + pseudo + bytes + port + udp->dest + check;
        uint32_t partial = configuration.partial_accepted && check == folded(pseudo);
        if (folded(sum) != 0xffff && !partial) {
            count(SA_XDP_DROP_CHECKSUM);
            return XDP_DROP;
        }
    }
    uint32_t result = SA_BE32(header->kind) & SA_RESULT, rank = header->rank & SA_RANK_BITS;
    if (!result && sa_is_ce(ip->tos)) scratch->header.rank |= SA_MARKED; /* G2 */
    uint32_t job_id = SA_BE16(header->job);
    struct sa_xdp_job *job = bpf_map_lookup_elem(&jobs, &job_id);
    outcome = membership_fault(job, header, address, port);
    if (outcome != SA_ABSORBED || !job || size > SA_PACKET_MAX) {
        count(outcome);
        return XDP_DROP;
    }
    uint32_t workers = job->workers, from = (result ? workers : rank) & (SA_WORKERS_MAX - 1);
    learn(&job->members[from], ethernet, to, ctx->ingress_ifindex);
    scratch->header.elements = SA_BE16((uint16_t)job->elements); /* of the sums, also where the packet brings none */
    uint32_t two_windows = 2 * job->streams[header->stream & (SA_STREAMS_MAX - 1)].window;
    outcome = (uint32_t)sa_aggregate(index_of(header), job_id, job->full, job->parent, two_windows);
    count(outcome);
    if (!sa_sends(outcome)) return XDP_DROP;
    return pass_up(ctx, scratch, size, outcome,
                   outcome == SA_BROADCAST ? SA_TO_ALL : 1 + (outcome == SA_REPLY ? rank : workers));
}

SEC(SA_XDP)
int sa_switch(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + SA_HEADERS_BYTES > end) return XDP_PASS;
    const struct ethhdr *ethernet = data;
    const struct iphdr *ip = (void *)(ethernet + 1);
    const struct udphdr *udp = (void *)(ip + 1);
    /* IP options and fragments go to the stack, where a socket at this address counts them. So do frames to a multicast
       address: results would be sent from it. */
    if ((ethernet->h_dest[0] & 1) || ethernet->h_proto != SA_BE16(ETH_P_IP) || *(const uint8_t *)ip != 0x45 || ip->protocol != SA_UDP ||
        (ip->frag_off & SA_BE16(0x3fff)) || udp->dest != configuration.port || !is_ours(ip->daddr))
        return XDP_PASS;
    uint32_t ip_bytes = SA_BE16(ip->tot_len), udp_bytes = SA_BE16(udp->len);
    if (udp_bytes < sizeof(*udp) || ip_bytes < sizeof(*ip) + udp_bytes ||
        bpf_xdp_get_buff_len(ctx) < sizeof(*ethernet) + ip_bytes)
        return XDP_PASS; /* cut off: the stack drops it */
    struct sa_xdp_impairment *impairment = impairment_of(ctx->ingress_ifindex);
    if (impairment && sa_random_hit(&impairment->state, impairment->loss_in)) {
        count(SA_XDP_UP_LOST);
        return XDP_DROP;
    }
    return take(ctx, ethernet, ip, udp, udp_bytes - sizeof(*udp));
}

/* Whether the kernel completes the frame's checksum where it leaves, and wants the pseudo-header's sum in the field
   until then. Only the frame shows it: of requests, 1 in 65,536 has a field that is right either way. The helper
   changes the field of a frame whose checksum is complete, and no other's. Negative if it fails. */
SA_INLINE int is_partial(struct __sk_buff *skb, uint16_t field) {
    const uint32_t at = sizeof(struct ethhdr) + sizeof(struct iphdr) + __builtin_offsetof(struct udphdr, check);
    uint16_t now;
    if (bpf_l4_csum_replace(skb, at, 0, 1, sizeof(uint16_t)) || bpf_skb_load_bytes(skb, at, &now, sizeof(now))) return -1;
    return now == field;
}

/* Address the frame to one worker and send a copy of it out of that worker's port, through its queueing discipline. sum:
   of the checksum, what is the same for every target. complete: 0xffff, or 0 if the checksum is to be partial. */
SA_INLINE void deliver(struct __sk_buff *skb, const struct sa_xdp_member *member, uint32_t sum, uint32_t complete) {
    uint32_t ifindex = member->ifindex;
    struct sa_xdp_impairment *impairment = impairment_of(ifindex);
    if (impairment && sa_random_hit(&impairment->state, impairment->loss_out)) {
        count(SA_XDP_DOWN_LOST);
        return;
    }
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    if (data + SA_HEADERS_BYTES > end) return;
    uint16_t *ethernet = data;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    struct udphdr *udp = (void *)(ip + 1);
#pragma clang loop unroll(full)
    for (int i = 0; i < 6; i++) ethernet[i] = member->ethernet[i];
    uint32_t saddr = member->switch_address, daddr = member->address, port = member->port;
    uint32_t mark = impairment && (ip->tos & 3) && sa_random_hit(&impairment->state, impairment->mark_out);
    uint8_t tos = ip->tos | (mark ? 3 : 0);
    uint64_t addresses = address_sum(saddr) + address_sum(daddr);
    ip->tos = tos;
    ip->id = 0;
    ip->frag_off = SA_BE16(0x4000);
    ip->ttl = SA_HOPS;
    ip->saddr = saddr;
    ip->daddr = daddr;
    ip->check = (uint16_t)~folded(addresses + SA_BE16((uint16_t)(0x4500 | tos)) + ip->tot_len + SA_BE16(0x4000) +
                                  SA_BE16((uint16_t)(SA_HOPS << 8 | SA_UDP)));
    udp->source = configuration.port;
    udp->dest = (uint16_t)port;
    uint32_t check = folded(addresses + sum + (port & complete)) ^ complete;
    udp->check = (uint16_t)(check ? check : complete);
    int64_t error = ifindex ? bpf_clone_redirect(skb, ifindex, 0) : -1;
    count(error ? SA_XDP_SEND_ERRORS : SA_XDP_RESULTS_SENT);
    if (mark) count(SA_XDP_ECN_MARKED);
}

/* Send the frame, a result of the job in the scratch's header, to those of `targets` that the job has. sum: what
   `result_sum` says; partial: what `is_partial` says, without a branch, or the verifier would follow both ways for every
   target. Not inlined, as above. */
__attribute__((noinline)) int sa_send(struct __sk_buff *skb, uint64_t targets, uint32_t sum, uint32_t partial) {
    uint32_t zero = 0;
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    if (!scratch) return 0;
    uint32_t job_id = SA_BE16(scratch->header.job), size = SA_HEADER_BYTES + 4u * SA_BE16(scratch->header.elements);
    struct sa_xdp_job *job = bpf_map_lookup_elem(&jobs, &job_id);
    if (!job || job->generation != SA_BE32(scratch->header.generation)) return 0; /* evicted meanwhile (S8) */
    uint32_t complete = (partial - 1u) & 0xffff, up = !(SA_BE32(scratch->header.kind) & SA_RESULT);
    uint32_t workers = job->workers + up; /* what isn't a result is for the parent behind them */
    uint32_t pseudo = SA_BE16((uint16_t)(size + sizeof(struct udphdr))) + SA_BE16((uint16_t)SA_UDP);
    sum = (folded(sum + configuration.port) & complete) | (folded(pseudo) & ~complete);
    for (uint32_t target = 0; target < SA_WORKERS_MAX; target++) {
        if (target >= workers) break;
        if (targets >> target & 1) deliver(skb, &job->members[target], sum, complete);
    }
    return 0;
}

/* The result of a route (S6) in the frame, with values or header-only; the scratch has its header. Returns what `result_sum`
   says, or a negative number: there is no memory, which is counted, or nobody waits for it any more. Not inlined, as
   above. */
__attribute__((noinline)) int sa_reshape(struct __sk_buff *skb, uint32_t header_only) {
    uint32_t zero = 0, elements = 0;
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    if (!scratch) return -1;
    if (!header_only) {
        uint32_t job_id = SA_BE16(scratch->header.job);
        struct sa_xdp_job *job = bpf_map_lookup_elem(&jobs, &job_id);
        if (!job) return -1;
        elements = job->elements;
        scratch->header.elements = SA_BE16((uint16_t)elements);
        if (!sa_fetch(index_of(&scratch->header), job_id)) return -1;
    }
    scratch->header.elements = SA_BE16((uint16_t)elements);
    uint32_t size = SA_HEADER_BYTES + 4 * elements;
    if (size < SA_HEADER_BYTES || size > SA_PACKET_MAX || bpf_skb_change_tail(skb, SA_HEADERS_BYTES + size, 0) ||
        bpf_skb_store_bytes(skb, SA_HEADERS_BYTES, scratch, size, 0)) {
        count(SA_XDP_SEND_ERRORS);
        return -1;
    }
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    if (data + SA_HEADERS_BYTES > end) return -1;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    struct udphdr *udp = (void *)(ip + 1);
    ip->tot_len = SA_BE16((uint16_t)(size + sizeof(*ip) + sizeof(*udp)));
    udp->len = SA_BE16((uint16_t)(size + sizeof(*udp)));
    return (int)result_sum(scratch, size);
}

SEC("tc")
int sa_deliver(struct __sk_buff *skb) {
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    if (data + sizeof(struct ethhdr) > end) return TC_ACT_UNSPEC;
    const uint16_t *source = data + ETH_ALEN;
    if (source[0] != configuration.ticket[0] || source[1] != configuration.ticket[1] ||
        source[2] != configuration.ticket[2])
        return TC_ACT_UNSPEC;
    uint32_t zero = 0;
    struct scratch *scratch = bpf_map_lookup_elem(&scratches, &zero);
    /* Several joined into one by the receiving port (rx-udp-gro-forwarding) can't be told apart here. */
    if (!scratch || skb->gso_size || bpf_skb_pull_data(skb, SA_HEADERS_BYTES) ||
        bpf_skb_load_bytes(skb, SA_HEADERS_BYTES, &scratch->header, SA_HEADER_BYTES))
        goto lost;
    data = (void *)(long)skb->data;
    end = (void *)(long)skb->data_end;
    if (data + SA_HEADERS_BYTES > end) goto lost;
    const struct iphdr *ip = data + sizeof(struct ethhdr);
    const struct udphdr *udp = (void *)(ip + 1);
    uint32_t kind = SA_BE32(scratch->header.kind), to = SA_BE16(ip->id);
    int sum = udp->check, partial = is_partial(skb, (uint16_t)sum);
    if (partial < 0) goto lost;
    uint64_t targets = to == SA_TO_ALL ? ~0ull : 1ull << (to - 1 & 63);
    if (!sa_route(kind)) {
        sa_send(skb, targets, sum, partial);
        return TC_ACT_SHOT;
    }
    uint64_t givers = sa_givers(kind, ~0ull);
    if (targets & ~givers) {
        if ((sum = sa_reshape(skb, 0)) < 0) return TC_ACT_SHOT;
        sa_send(skb, targets & ~givers, sum, partial);
    }
    if (targets & givers && (sum = sa_reshape(skb, 1)) >= 0) sa_send(skb, targets & givers, sum, partial);
    return TC_ACT_SHOT;
lost:
    count(SA_XDP_SEND_ERRORS);
    return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Apache-2.0";
