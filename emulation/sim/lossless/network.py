"""A switched network whose links are lossless: every port of a switch can pause what leads to it."""

from dataclasses import replace
from itertools import permutations

from emulation.sim.lossless.deadlock import DeadlockWatch, refuse_cycles
from emulation.sim.lossless.pausing import Charges, PausableLink, PfcConfig, Port
from emulation.sim.network.link import Link, LinkConfig
from emulation.sim.network.network import Action
from emulation.sim.network.switched_network import SwitchedNetwork
from emulation.topologies.topology import Hop, LinkSettings, Topology


class LosslessNetwork(SwitchedNetwork):
    """As `SwitchedNetwork`, for jobs and flows alike. SimulationError, naming the ports, for routes that can deadlock;
    from the run, if it does.

    A contribution gives its room back once it is folded into its slot, so a switch that waits for a slow worker holds
    nobody's credit.
    """

    def __init__(
        self,
        topology: Topology,
        link: LinkConfig,
        pfc: PfcConfig,
        *,
        latency_ns: int = 0,
        seed: int = 1,
        trace: bool = False,
    ) -> None:
        refuse_cycles(topology.path(sender, to) for sender, to in permutations(topology.hosts, 2))
        self.pfc = pfc
        self.charges = Charges()
        self.pausable: dict[Hop, PausableLink] = {}
        super().__init__(topology, link, latency_ns=latency_ns, seed=seed, trace=trace)
        self.ports = {
            hop: Port(made, self.pausable[hop[::-1]], self.switches[hop[1]].receive, pfc)
            for hop, made in self.pausable.items()
            if hop[1] in self.switches
        }
        DeadlockWatch(self.time, self.pausable, pfc.stuck_ns)

    def _made(self, hop: Hop, settings: LinkSettings) -> Link:
        config = replace(
            self._link, rate_bps=settings.rate_bps, delay_ns=settings.delay_ns, queue_bytes=settings.queue_bytes
        )
        receive: Action = super()._made(hop, settings).receive
        name = f"{self._seed} {'-'.join(hop)}"
        made = self.pausable[hop] = PausableLink(self.time, config, receive, name, self.pfc, self.charges)
        return made
