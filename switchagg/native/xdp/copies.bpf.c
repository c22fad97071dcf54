/* The switch sends one packet for all workers of a job: where it leaves the switch's interface, the kernel makes each
   worker's from it. A packet to group 239.OWNER.JOB.JOB (switch.c) goes on as a copy for each member, with its
   addresses; copies share the values, which the switch gave the kernel once. Bundles (GSO) stay whole. */
#include "switchagg/native/rule/wire.h"

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_helpers.h>

#include "switchagg/native/xdp/maps.h"

#define NEXT (-1) /* tcx: the next program decides */
#define PASS 0
#define HEADERS_BYTES (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define IP_AT sizeof(struct ethhdr)
#define UDP_AT (IP_AT + sizeof(struct iphdr))

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 256);
    __type(key, uint32_t);
    __type(value, struct sa_copies_job);
} jobs SEC(".maps");

/* Address the packet to a member instead of `address`, `port`. Returns whether it was done. */
SA_INLINE int readdress(struct __sk_buff *skb, const struct sa_copies_member *member, uint32_t address, uint16_t port) {
    struct sa_copies_member to = *member;
    return !bpf_skb_store_bytes(skb, 0, to.mac, sizeof to.mac, 0) &&
           !bpf_l4_csum_replace(skb, UDP_AT + __builtin_offsetof(struct udphdr, check), address, to.address,
                                BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | sizeof to.address) &&
           !bpf_l4_csum_replace(skb, UDP_AT + __builtin_offsetof(struct udphdr, check), port, to.port,
                                BPF_F_MARK_MANGLED_0 | sizeof to.port) &&
           !bpf_l3_csum_replace(skb, IP_AT + __builtin_offsetof(struct iphdr, check), address, to.address,
                                sizeof to.address) &&
           !bpf_skb_store_bytes(skb, IP_AT + __builtin_offsetof(struct iphdr, daddr), &to.address, sizeof to.address, 0) &&
           !bpf_skb_store_bytes(skb, UDP_AT + __builtin_offsetof(struct udphdr, dest), &to.port, sizeof to.port, 0);
}

SEC("tc")
int sa_copy(struct __sk_buff *skb) {
    void *data = (void *)(long)skb->data;
    if (data + HEADERS_BYTES > (void *)(long)skb->data_end) return NEXT;
    const struct ethhdr *ethernet = data;
    const struct iphdr *ip = data + IP_AT;
    const struct udphdr *udp = data + UDP_AT;
    if (ethernet->h_proto != SA_BE16(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP) return NEXT;
    uint32_t address = ip->daddr, group = SA_BE32(address);
    uint16_t port = udp->dest, source = udp->source;
    if (group >> 24 != SA_GROUP) return NEXT;
    uint32_t number = group & 0xffffu, owner = group >> 16 & 0xffu;
    const struct sa_copies_job *job = bpf_map_lookup_elem(&jobs, &number);
    if (!job || job->port != source) return NEXT;
    uint32_t last = job->workers - 1;
    if (last == (owner ^ SA_GROUP_WITHOUT)) last--; /* that one gets none */
    for (uint32_t rank = 0; rank < SA_WORKERS_MAX; rank++) {
        if (rank > last) break;
        if (rank == (owner ^ SA_GROUP_WITHOUT)) continue;
        const struct sa_copies_member *member = &job->members[rank];
        if (!readdress(skb, member, address, port)) return NEXT;
        address = member->address;
        port = member->port;
        if (rank < last) bpf_clone_redirect(skb, skb->ifindex, 0); /* comes by here again, and passes */
    }
    return PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
