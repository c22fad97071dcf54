"""What the model of `transport.schedule.model` predicts for a method's schedule on a scenario's links."""

from __future__ import annotations

from emulation.bounds import algbw_bound
from emulation.scenario import Scenario
from switchagg.priority import CLASSES
from transport.group.method_name import MethodName
from transport.schedule.model import Network, Prediction, predict
from transport.schedule.scheduler import Policy, Profile


def predicted(scenario: Scenario, name: MethodName, policy: Policy, profile: Profile) -> Prediction:
    """One iteration in the steady state. profile: of a rank; its times are those of computing alone."""
    network, links = scenario.network, scenario.links(name.method)
    ways = [links.path(worker, links.root) for worker in links.workers]
    model = Network(
        beta_ns_per_byte=1e9 / algbw_bound(name, "float32", network),
        latency_ns=4.0 * max(sum(links.settings(hop).delay_ns for hop in way) for way in ways),
    )
    return predict(policy, profile, model, classes=CLASSES if name.in_packets else None)
