"""Method `gloo` in virtual time: PyTorch's Gloo by its algorithms, without what it loses on a real host."""

from emulation.sim.network.host_simulation import HostSimulation
from emulation.sim.network.simulation import Call, SimulationConfig
from transport.group.method_name import METHODS


class GlooSimulation(HostSimulation):
    """Rings, as Gloo's; what it does by another kind of call, so does this."""

    def __init__(self, config: SimulationConfig) -> None:
        super().__init__(config, "ring")

    def begin(self, rank: int, call: Call) -> None:
        super().begin(rank, call._replace(kind=METHODS["gloo"].does.get(call.kind, call.kind)))
