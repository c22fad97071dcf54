"""The control plane of a program on any engine: what may be set and read, checked once for all back ends.

    switch = ControlledSwitch(compile_program("prog.p4"))
    switch.table_add("ipv4_lpm", "forward", ["10.0.1.0/24"], ["08:00:00:00:01:11", 1])
    switch.process(0, b"…")                                   # [(port, bytes), …]

Names may be given in full or as any suffix that means one thing only. A wrong call raises P4Error, one line; nothing
has changed then. Commands and packets take turns: one thread, or a lock of the caller's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from p4vm.control.control_cells import CellControl
from p4vm.control.control_profiles import ProfileControl
from p4vm.control.control_tables import table_state
from p4vm.control.multicast_groups import ReplicationControl, checked_port
from p4vm.engine import Crc, Engine
from p4vm.ir import ir_nodes as ir
from p4vm.source import P4Error

QUEUE_DEPTH = 64
"""Default number of packets that one output queue holds, as in bmv2."""
DEPTH_MAX = 1 << 20
RATE_MAX = 1_000_000_000


@dataclass(slots=True)
class QueueSettings:
    """Depth in packets, rate in packets per second (0: no limit) of output queues: for all, or a port's.

    The narrowest setting holds. They act where there are real queues: a switch on interfaces.
    """

    depths: dict[tuple[int, ...], int] = field(default_factory=dict)
    rates: dict[tuple[int, ...], int] = field(default_factory=dict)
    changes: int = 0

    def depth(self, port: int) -> int:
        return self.depths.get((port,), self.depths.get((), QUEUE_DEPTH))

    def rate(self, port: int) -> int:
        return self.rates.get((port,), self.rates.get((), 0))

    def _set(self, settings: dict[tuple[int, ...], int], value: int, place: tuple[int, ...]) -> None:
        for narrower in [other for other in settings if other[: len(place)] == place]:
            del settings[narrower]
        settings[place] = value
        self.changes += 1


class ControlledSwitch(ProfileControl, CellControl, ReplicationControl):
    """A program that runs, and everything that may be asked of it. Methods are named as the commands are."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.queues = QueueSettings()
        self.ports: dict[int, str] = {}

    # ---- packets

    def process(self, port: int, data: bytes, now_us: int = 0) -> list[tuple[int, bytes]]:
        """All packets that this one causes: (port, bytes), in the order they leave."""
        return self.engine.process(port, data, now_us)

    def process_many(
        self, ports: Sequence[int], packets: Sequence[bytes], now_us: int = 0
    ) -> list[list[tuple[int, bytes]]]:
        return self.engine.process_many(ports, packets, now_us)

    # ---- hashes

    def set_crc_parameters(self, crc: Crc) -> None:
        """Let crc16_custom (width 16) or crc32_custom (width 32) compute this from now on."""
        if crc.width not in (16, 32):
            raise P4Error(f"a CRC of {crc.width} bits: the custom ones have 16 or 32")
        for value in (crc.polynomial, crc.initial, crc.final_xor):
            if not 0 <= value < 1 << crc.width:
                raise P4Error(f"Integer cannot fit within {crc.width} bits: {value:#x}")
        self.engine.set_crc(crc)

    # ---- queues

    def set_queue_depth(self, packets: int, port: int | None = None, priority: int | None = None) -> None:
        if not 1 <= packets <= DEPTH_MAX:
            raise P4Error(f"queue depth {packets}: expected 1 to {DEPTH_MAX} packets")
        self.queues._set(self.queues.depths, packets, _place(port, priority))

    def set_queue_rate(self, packets_per_s: int, port: int | None = None, priority: int | None = None) -> None:
        """The rate at which output queues are emptied; 0: no limit."""
        if not 0 <= packets_per_s <= RATE_MAX:
            raise P4Error(f"queue rate {packets_per_s}: expected 0 (no limit) to {RATE_MAX} packets per second")
        self.queues._set(self.queues.rates, packets_per_s, _place(port, priority))

    # ---- all of it

    def reset_state(self) -> None:
        """As at the start: entries and defaults of the program, no groups or sessions, registers, counters and meters
        zero, queues as they were first."""
        with self.batch():
            for name, state in self.tables.parts.items():
                self.tables.parts[name] = table_state(state.table)
                self._push("table", name)
            for name, profile in self.profiles.parts.items():
                profile.members.clear()
                profile.groups.clear()
                self._push("profile", name)
        for group in list(self.groups):
            self.mc_mgrp_destroy(group)
        self.nodes.clear()
        for session in list(self.mirrors):
            self.mirroring_delete(session)
        for value_set in self.value_sets:
            self.pvs_clear(value_set)
        for name, index in self._rates:
            self.engine.meter_set_rates(name, index, ())
        self._rates.clear()
        self.queues.depths.clear()
        self.queues.rates.clear()
        self.queues.changes += 1
        self.engine.reset()

    def actions(self) -> dict[str, ir.TableAction]:
        """All actions that tables may run, by name."""
        by_name: dict[str, ir.TableAction] = {}
        for table in self.program.tables:
            for action in table.actions:
                by_name.setdefault(action.name, action)
        return by_name


def _place(port: int | None, priority: int | None) -> tuple[int, ...]:
    if port is None:
        return ()
    checked_port(port)
    if priority:
        raise P4Error(f"queue priority {priority}: a port has one queue, of priority 0; leave the priority out")
    return (port,)
