"""The table of kinds of faults."""

from __future__ import annotations

from emulation.experiments.chaos.fault_kinds.fault_kind import FaultKind
from emulation.experiments.chaos.fault_kinds.forged_packets import ForgedPackets
from emulation.experiments.chaos.fault_kinds.link_cut import LinkCut
from emulation.experiments.chaos.fault_kinds.link_flap import LinkFlap
from emulation.experiments.chaos.fault_kinds.random_packets import RandomPackets
from emulation.experiments.chaos.fault_kinds.replayed_packets import ReplayedPackets
from emulation.experiments.chaos.fault_kinds.switch_kill import SwitchKill
from emulation.experiments.chaos.fault_kinds.switch_pause import SwitchPause
from emulation.experiments.chaos.fault_kinds.switch_restart import SwitchRestart
from emulation.experiments.chaos.fault_kinds.switch_stop import SwitchStop
from emulation.experiments.chaos.fault_kinds.worker_kill import WorkerKill
from emulation.experiments.chaos.fault_kinds.worker_pause import WorkerPause
from emulation.experiments.chaos.fault_kinds.worker_stop import WorkerStop

FAULT_KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        WorkerKill(),
        WorkerStop(),
        WorkerPause(),
        SwitchKill(),
        SwitchStop(),
        SwitchPause(),
        SwitchRestart(),
        LinkCut(),
        LinkFlap(),
        RandomPackets(),
        ReplayedPackets(),
        ForgedPackets(),
    )
}
"""All kinds, by name."""
