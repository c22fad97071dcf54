"""Registers, counters and meters of the Python back end."""

from collections.abc import Sequence

from p4vm.algorithms import WORD, Meter
from p4vm.engine import MeterRate
from p4vm.ir import ir_nodes as ir
from p4vm.python.runtime import PacketBits, SharedState

SPARSE = 1 << 20
"""Registers with more cells keep only those that were written."""


class SparseCells(dict[int, int]):
    """Cells of which most were never written. initial: what those hold."""

    def __init__(self, initial: int) -> None:
        super().__init__()
        self.initial = initial

    def __missing__(self, index: int) -> int:
        return self.initial


class RegisterCells:
    """An array of numbers."""

    def __init__(self, instance: ir.ExternInstance) -> None:
        self.kind = instance.cell
        self.initial = instance.initial
        self.size = instance.cells
        self.cells: SparseCells | list[int] = []
        self.reset()

    def reset(self) -> None:
        self.cells = SparseCells(self.initial) if self.size > SPARSE else [self.initial] * self.size


class Tally:
    """Packets and bytes of cells that are named by number; of a table's entries by handle."""

    def __init__(self) -> None:
        self.cells: dict[int, list[int]] = {}

    def add(self, index: int, packet: PacketBits) -> None:
        cell = self.cells.setdefault(index, [0, 0])
        cell[0] = cell[0] + 1 & WORD
        cell[1] = cell[1] + len(packet.data) & WORD

    def read(self, index: int) -> tuple[int, int]:
        packets, size_bytes = self.cells.get(index, (0, 0))
        return packets, size_bytes

    def write(self, index: int, packets: int, size_bytes: int) -> None:
        self.cells[index] = [packets & WORD, size_bytes & WORD]

    def reset(self) -> None:
        self.cells.clear()

    def keep(self, handles: set[int]) -> None:
        self.cells = {handle: cell for handle, cell in self.cells.items() if handle in handles}


class Counter(Tally):
    """An array of counters."""

    def __init__(self, instance: ir.ExternInstance, shared: SharedState) -> None:
        super().__init__()
        self.size = instance.cells
        self.shared = shared

    def count(self, index: int, packet: PacketBits) -> None:
        if 0 <= index < self.size:
            self.add(index, packet)
        else:
            self.shared.count("counter_out_of_range")


class Meters:
    """Meters that are named by number. bytes: whether bytes are metered, not packets."""

    def __init__(self, bytes_metered: bool) -> None:
        self.bytes_metered = bytes_metered
        self.cells: dict[int, Meter] = {}

    def set_rates(self, index: int, rates: Sequence[MeterRate]) -> None:
        if rates:
            self.cells[index] = Meter(rates)
        else:
            self.cells.pop(index, None)

    def color_of(self, index: int, packet: PacketBits) -> int:
        meter = self.cells.get(index)
        if meter is None:
            return 0
        return meter.color(packet.now_us, len(packet.data) if self.bytes_metered else 1)

    def refill(self) -> None:
        """Tokens as when the rates were set."""
        for meter in self.cells.values():
            meter.refill()

    def keep(self, handles: set[int]) -> None:
        self.cells = {handle: meter for handle, meter in self.cells.items() if handle in handles}


class MeterArray(Meters):
    """An array of meters."""

    def __init__(self, instance: ir.ExternInstance, shared: SharedState) -> None:
        super().__init__("bytes" in instance.arguments[1:])
        self.size = instance.cells
        self.shared = shared

    def execute(self, index: int, packet: PacketBits) -> int:
        if 0 <= index < self.size:
            return self.color_of(index, packet)
        self.shared.count("meter_out_of_range")
        return 0


class DirectMeter(Meters):
    """Meters of a table's entries, by handle. color: of the last apply in this pass."""

    def __init__(self, instance: ir.ExternInstance) -> None:
        super().__init__("bytes" in instance.arguments)
        self.color = 0

    def execute(self, handle: int, packet: PacketBits) -> None:
        self.color = self.color_of(handle, packet)
