"""What compiling a plan does, readable: `transport.collectives.programs` in C must give the same nodes."""

from switchagg.native.headers import SA_NODE_COMBINE, SA_NODE_LOCAL, SA_NODE_OVERWRITE, SA_NODE_SEND
from transport.collectives.collective_plan import CollectivePlan, LocalCombine, Receive, Send
from transport.collectives.programs import NOBODY, ProgramLists


def compile_plan(plan: CollectivePlan, itemsize: int, segment_bytes: int) -> ProgramLists:
    """Cut a plan's ranges into segments of at most segment_bytes (at least an element) and find what waits for what."""
    return _Compiler(plan, itemsize, segment_bytes).program


class _Compiler:
    """Memory is cut at all ends of segments into pieces; each knows its last writer and the readers since."""

    def __init__(self, plan: CollectivePlan, itemsize: int, segment_bytes: int) -> None:
        self._per_segment = max(1, segment_bytes // itemsize)
        self.program = ProgramLists([], [], [], [], [], [], [], {}, {})
        cut = [
            (operation, number, low, high)
            for operation in plan.operations
            for number, (low, high) in enumerate(self._cut(operation.low, operation.high))
        ]
        ends = {end for _, _, low, high in cut for end in (low, high)}
        for operation, _, low, high in cut:
            if isinstance(operation, LocalCombine):
                shift = operation.source - operation.low
                ends.update((low + shift, high + shift))
        ordered = sorted(ends)
        self._piece = {end: index for index, end in enumerate(ordered)}
        # The second half is for empty ranges: each place has a piece of its own for them.
        self._writer = [-1] * (2 * len(ordered))
        self._readers: list[list[int]] = [[] for _ in range(2 * len(ordered))]
        self._after: list[list[int]] = []
        for operation, number, low, high in cut:
            self._add(operation, number, low, high)
        self.program.after.extend(map(tuple, self._after))

    def _cut(self, low: int, high: int) -> list[tuple[int, int]]:
        if low == high:
            return [(low, high)]
        return [(first, min(first + self._per_segment, high)) for first in range(low, high, self._per_segment)]

    def _pieces(self, low: int, high: int) -> range:
        if low == high:
            place = len(self._piece) + self._piece[low]
            return range(place, place + 1)
        return range(self._piece[low], self._piece[high])

    def _add(self, operation: Send | Receive | LocalCombine, number: int, low: int, high: int) -> None:
        program, node = self.program, len(self._after)
        self._after.append([])
        waits: set[int] = set()
        label, source = (NOBODY, 0, 0), 0
        if isinstance(operation, Send):
            kind = SA_NODE_SEND
            label = (operation.to, operation.step, number)
            self._read(node, low, high, waits)
        elif isinstance(operation, Receive):
            kind = SA_NODE_COMBINE if operation.combine else SA_NODE_OVERWRITE
            arrival = (operation.sender, operation.step, number)
            assert arrival not in program.arrivals, f"step {operation.step} of {operation.sender} is listed twice"
            program.arrivals[arrival] = node
            program.expected[operation.sender] = program.expected.get(operation.sender, 0) + 1
            self._write(node, low, high, waits)
        else:
            kind = SA_NODE_LOCAL
            source = operation.source + low - operation.low
            self._read(node, source, source + high - low, waits)
            self._write(node, low, high, waits)
        waits.discard(node)  # an empty Local reads and writes the same place
        for earlier in waits:
            self._after[earlier].append(node)
        program.kinds.append(kind)
        program.lows.append(low)
        program.highs.append(high)
        program.sources.append(source)
        program.labels.append(label)
        program.waits.append(len(waits))

    def _read(self, node: int, low: int, high: int, waits: set[int]) -> None:
        for piece in self._pieces(low, high):
            if self._writer[piece] >= 0:
                waits.add(self._writer[piece])
            self._readers[piece].append(node)

    def _write(self, node: int, low: int, high: int, waits: set[int]) -> None:
        for piece in self._pieces(low, high):
            if readers := self._readers[piece]:  # which wait for the last writer themselves
                waits.update(readers)
                self._readers[piece] = []
            elif self._writer[piece] >= 0:
                waits.add(self._writer[piece])
            self._writer[piece] = node
