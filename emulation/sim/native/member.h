/* A member of a host method on a simulated link: its calls (party.h), or a party in Python, a credit for what was taken from its queue and isn't
   on the link yet, and a reliable connection (transport/native/hosts/reliable.h) to each member it has to do with. As `OracleMeshHost` of
   tests/oracles/mesh_host.py. */
#ifndef SWITCHAGG_SIM_MEMBER_H
#define SWITCHAGG_SIM_MEMBER_H

#include "transport/native/hosts/reliable.h"
#include "emulation/sim/native/host.h"
#include "emulation/sim/native/party.h"

/* The kind of a report to a party in Python. peer: the sender, or the member that gives no answer. message: its
   number. */
enum sim_report {
    SIM_REPORT_PUMPS,     /* hand out messages */
    SIM_REPORT_CAME,      /* take a message */
    SIM_REPORT_CAME_LAST, /* the same; notice what has happened, and hand out messages */
    SIM_REPORT_SENT,      /* a message's last frame is on the link; notice, hand out */
    SIM_REPORT_DUE,       /* it is the deadline, or before; notice, hand out */
    SIM_REPORT_UNANSWERED /* a peer, for too long: fail */
};

#define SIM_BROKEN_OFF INT64_MIN

/* Facts that all members of a job share. config_of(member, to): of the connection from one to another, asked once at
   each end; outlives the simulation. credit_bytes: of each class; negative: no bound. report: NULL: calls are C's; else
   it returns the party's deadline, -1: none, or SIM_BROKEN_OFF: the run ends. */
typedef const struct sa_reliable_config *(*sim_config_of)(uint32_t member, uint32_t to);
typedef int64_t (*sim_tell)(uint32_t member, uint32_t what, uint32_t peer, uint64_t message);

struct sim_group_facts {
    uint32_t first; /* the first member's address */
    int64_t credit_bytes, call_timeout_ns;
    sim_config_of config_of;
    sim_tell report;
};

struct sim_group;
struct sim_member;

/* Returns NULL without memory. Freed with the simulation. number: what Python is told of a member, once calls have
   ended or failed. */
SA_EXPORT struct sim_group *sa_sim_group(struct sa_sim *sim, const struct sim_group_facts *facts);

/* From the start: as of `HostCosts` in emulation/sim/host_costs.py; 0: nothing, and as much as links. */
SA_EXPORT void sa_sim_group_costs(struct sim_group *group, int64_t transfer_ns, uint64_t flow_bps);
SA_EXPORT struct sim_member *sa_sim_member(struct sim_group *group, struct sim_link *link, uint32_t member,
                                           uint32_t number, uint32_t strict);

/* Begin a call; send what is ready with sa_sim_member_pump, once what has ended was seen. 0; -ENOMEM; -ECANCELED. */
SA_EXPORT int sa_sim_member_submit(struct sim_member *member, const struct sim_call_facts *facts);
SA_EXPORT void sa_sim_member_pump(struct sim_member *member);

/* Queue a message of a party in Python. number: of its own, while it is under way. costs: it is the first of a transfer.
   values: copied; NULL: what C needs not know, or zeros. 0; -ENOMEM. */
SA_EXPORT int sa_sim_member_push(struct sim_member *member, uint64_t number, uint32_t to, int32_t priority,
                                 const uint8_t *head, uint32_t head_bytes, uint32_t costs, const uint8_t *values,
                                 uint64_t size_bytes);

/* The number of a call that has ended, each once; -1: none. */
SA_EXPORT int64_t sa_sim_member_ended(struct sim_member *member);
SA_EXPORT uint64_t sa_sim_member_retransmissions(const struct sim_member *member);
SA_EXPORT uint64_t sa_sim_member_drop_checksum(const struct sim_member *member);

/* Why the calls of the group have failed, or failure is SIM_FINE. */
SA_EXPORT const struct sim_failed *sa_sim_group_failed(const struct sim_group *group);

#endif
