/* A member of a host method on a simulated link: its calls (party.h), a credit for what was taken from its queue and isn't
   on the link yet, and a reliable connection (hosts/reliable.h) to each member it has to do with. As `MeshHost` of
   emulation/sim/network/mesh.py. */
#ifndef SWITCHAGG_SIM_MEMBER_H
#define SWITCHAGG_SIM_MEMBER_H

#include "hosts/reliable.h"
#include "sim/host.h"
#include "sim/party.h"

/* What the members of a job have in common. config_of(member, to): of the connection from one to another, asked once at each
   end; outlives the simulation. credit_bytes: of each class; negative: no bound. As `GroupFacts` in
   emulation/sim/engine/compiled_member.py. */
struct sim_group_facts {
    uint32_t first; /* the first member's address */
    int64_t credit_bytes, call_timeout_ns;
    const struct sa_reliable_config *(*config_of)(uint32_t member, uint32_t to);
};

struct sim_group;
struct sim_member;

/* NULL: no memory. Freed with the simulation. number: what Python is told of a member, once calls have ended or failed. */
SA_EXPORT struct sim_group *sa_sim_group(struct sa_sim *sim, const struct sim_group_facts *facts);
SA_EXPORT struct sim_member *sa_sim_member(struct sim_group *group, struct sim_link *link, uint32_t member,
                                           uint32_t number, uint32_t strict);

/* Begin a call; send what is ready with sa_sim_member_pump, once what has ended was seen. 0; -ENOMEM; -ECANCELED. */
SA_EXPORT int sa_sim_member_submit(struct sim_member *member, const struct sim_call_facts *facts);
SA_EXPORT void sa_sim_member_pump(struct sim_member *member);

/* The number of a call that has ended, each once; -1: none. */
SA_EXPORT int64_t sa_sim_member_ended(struct sim_member *member);
SA_EXPORT uint64_t sa_sim_member_retransmissions(const struct sim_member *member);
SA_EXPORT uint64_t sa_sim_member_drop_checksum(const struct sim_member *member);

/* Why the calls of the group have failed, or failure is SIM_FINE. */
SA_EXPORT const struct sim_failed *sa_sim_group_failed(const struct sim_group *group);

#endif
