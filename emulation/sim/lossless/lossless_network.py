"""A switched network whose links are lossless: every port of a switch can pause what leads to it."""

import ctypes
from dataclasses import replace
from itertools import permutations
from typing import Any

from emulation.scenario.topologies.topology import Hop, Topology
from emulation.sim.engine import engine_library
from emulation.sim.engine.packet_clock import PacketClock
from emulation.sim.lossless.deadlock import DeadlockWatch, refuse_cycles
from emulation.sim.lossless.pausing import IngressPort, PausableLink, PfcConfig, facts_of
from emulation.sim.network.simulated_link import CLASS_SHIFT, LinkConfig
from emulation.sim.network.switched_network import SwitchedNetwork
from switchagg.native.library import load
from switchagg.priority import BEST_EFFORT, CLASSES


class LosslessNetwork(SwitchedNetwork):
    """As `SwitchedNetwork`, for jobs and flows alike; TCP of flows is in a class that drops, if there is one.
    SimulationError, naming the ports, for routes that can deadlock; from the run, if it does.

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
        refuse_cycles(
            view.path(sender, to) for view in topology.views for sender, to in permutations(topology.hosts, 2)
        )
        self.pfc = pfc
        self.pausable: dict[Hop, PausableLink] = {}
        super().__init__(topology, link, latency_ns=latency_ns, seed=seed, trace=trace)
        self.ports = {
            hop: self._entry(link, self.pausable[hop[::-1]])
            for hop, link in self.pausable.items()
            if hop[1] in self.switches
        }
        lossy_classes = [kind for kind in range(CLASSES) if kind not in pfc.classes]
        self.tcp_bits = BEST_EFFORT - lossy_classes[-1] << CLASS_SHIFT if lossy_classes else 0
        DeadlockWatch(self.time, self.pausable, pfc.stuck_ns)
        self.documents.append(self.document)

    def _clock(self, trace: bool) -> PacketClock:
        clock = super()._clock(trace)
        self._handle = engine_library.there(load().sa_sim_pfc(clock.handle, ctypes.byref(facts_of(self.pfc))))
        return clock

    def _partitions(self) -> dict[str, Any]:
        return dict.fromkeys(self.topology.nodes, self.time)  # a pause is felt at once at the other end

    def document(self) -> dict[str, Any]:
        """`pauses` of a result, as `results_schema.md` has them."""
        pfc = self.pfc
        return {
            "pauses": {
                "xoff_bytes": pfc.xoff_bytes,
                "xon_bytes": pfc.xon_bytes,
                "run_ns": self.time.now_ns,
                "links": [self._pause_counters(hop, link) for hop, link in self.pausable.items()],
            }
        }

    def _pause_counters(self, hop: Hop, link: PausableLink) -> dict[str, Any]:
        port = self.ports.get(hop)
        return {
            "from": hop[0],
            "to": hop[1],
            "pauses": link.pauses,
            "paused_ns": link.paused_ns(*range(CLASSES)),
            "queue_most_bytes": link.most_bytes,
            "held_most_bytes": port.most_bytes if port else 0,
            "headroom_bytes": self.pfc.headroom(link.config) if port else 0,
            "lossless_drops": port.dropped if port else 0,
            "dropped_frames": link.faults["drop_queue"],
            "marked_frames": link.marked_frames,
        }

    def _joined(self, config: LinkConfig, seed: str, hop: Hop) -> PausableLink:
        without_tail = replace(config, tail=None)  # headroom is for links that deliver after delay_ns
        link = self.pausable[hop] = self._pausable(without_tail, f"{self._seed} {'-'.join(hop)}", hop)
        return link

    def _pausable(self, config: LinkConfig, seed: str, hop: Hop) -> PausableLink:
        link = PausableLink(self.time, config, seed, self._handle)
        self._lead(link, hop)
        return link

    def _entry(self, link: PausableLink, reverse: PausableLink) -> IngressPort:
        return IngressPort(link, reverse, self.pfc.xoff_bytes + self.pfc.headroom(link.config))
