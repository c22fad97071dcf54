"""The prediction of `transport.schedule.schedule_model` for a method's schedule on a scenario's links."""

from __future__ import annotations

from dataclasses import replace

from emulation.scenario.bounds import algbw_bound, needs
from emulation.scenario.scenario import Scenario
from emulation.sim.flow.formula import MessageCost, call_ns
from switchagg.priority import CLASSES
from transport.collectives.programs import SEGMENT_BYTES
from transport.group.method_name import MethodName
from transport.schedule.schedule_model import Network, Prediction, predict
from transport.schedule.scheduler import Policy, Profile


def predicted(scenario: Scenario, name: MethodName, policy: Policy, profile: Profile) -> Prediction:
    """An iteration in the steady state. profile: of a rank; its times are those of computing alone."""
    network, links = scenario.network, scenario.links(name.method)
    paths = [links.path(worker, links.root) for worker in links.workers]
    latency_ns = 4.0 * max(sum(links.settings(hop).delay_ns for hop in path) for path in paths)
    beta = 1e9 / algbw_bound(name, "float32", network)
    hosts = replace(network, push_then_pull=False)
    free = replace(hosts, transfer_ns=0, flow_bps=0, call_ns=0)
    plain = replace(name, schedule="", codec="")
    message = MessageCost(latency_ns / 2, 1.0, SEGMENT_BYTES)

    def later_ns(size_bytes: int) -> float:
        """The hosts' addition to a call alone; where calls take turns, all time except its bytes', since nothing hides
        that time."""
        needed, alone_ns = call_ns(plain, hosts, "allreduce", size_bytes, message)
        if network.calls_at_once:
            return max(0.0, alone_ns - needed.link_ns - latency_ns)
        without, free_ns = call_ns(plain, free, "allreduce", size_bytes, message)
        return alone_ns - needed.link_ns - (free_ns - without.link_ns)

    call_needs = needs(plain, SEGMENT_BYTES + 1, 1.0, network)
    model = Network(
        beta_ns_per_byte=beta,
        latency_ns=latency_ns,
        host_ns=max(call_needs.host_ns, network.call_ns),
        later_ns=later_ns,
        answer_share=call_needs.late_share,
        calls_at_once=network.calls_at_once,
    )
    return predict(policy, profile, model, classes=CLASSES if name.in_packets else None)
