"""The simulation of each method, by the name that scenarios and reports use."""

from collections.abc import Callable
from functools import partial

from emulation.sim.atp.aggregators import Preemptive
from emulation.sim.atp.atp_simulation import AtpSimulation
from emulation.sim.network.bounded_simulation import BoundedSimulation
from emulation.sim.network.gloo_simulation import GlooSimulation
from emulation.sim.network.host_simulation import HostSimulation
from emulation.sim.network.ps_simulation import PsSimulation
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.switch_simulation import SwitchSimulation
from emulation.sim.network.switched_network import SwitchedNetwork
from transport.bounded.bounded_table import BOUNDED
from transport.group.method_name import host_methods


def _switch_simulation(config: SimulationConfig, shared: SwitchedNetwork | None = None) -> Simulation:
    if config.failover is None:
        return SwitchSimulation(config, shared)
    from emulation.sim.failover.failover_simulation import FailoverSimulation  # a third of what a run would load

    return FailoverSimulation(config, shared)


SIMULATIONS: dict[str, Callable[..., Simulation]] = {
    "switch": _switch_simulation,
    "atp": AtpSimulation,
    "esa": partial(AtpSimulation, kind=Preemptive),
    **{method: partial(HostSimulation, method=method) for method in (*host_methods(), "auto")},
    "ps": PsSimulation,
    "gloo": GlooSimulation,
    **{method: partial(BoundedSimulation, method=method) for method in BOUNDED},
}
"""of(config), with a network of its own, or of(config, shared): `Simulation`."""
