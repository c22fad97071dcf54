"""What the model of `transport.schedule.model` predicts for a method's schedule on a scenario's links."""

from __future__ import annotations

from emulation.bounds import framing_efficiency
from emulation.scenario import Scenario
from switchagg.priority import CLASSES
from transport.group.method_name import MethodName, traffic
from transport.schedule.model import Network, Prediction, predict
from transport.schedule.scheduler import Policy, Profile


def predicted(scenario: Scenario, name: MethodName, policy: Policy, profile: Profile) -> Prediction:
    """One iteration in the steady state. profile: of a rank; its times are those of computing alone."""
    topology = scenario.topology
    efficiency = framing_efficiency(name, scenario.switch.elements, topology.mtu_bytes)
    factor = traffic(name.method, topology.workers, scenario.ps.servers)
    network = Network(
        beta_ns_per_byte=8e9 / topology.rate_bps / efficiency * factor, latency_ns=4.0 * topology.delay_ns
    )
    return predict(policy, profile, network, classes=CLASSES if name.is_switch else None)
