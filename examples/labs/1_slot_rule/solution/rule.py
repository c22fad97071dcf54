"""The slot rule of PROTOCOL.md: which chunk a slot version holds is asked first (S2), so any order is safe."""


class Rule:
    """Registers, indexed [slot][version]."""

    def __init__(self, slots, workers):
        self.everyone = (1 << workers) - 1
        self.held = [[-1, -1] for _ in range(slots)]  # the chunk's number
        self.seen = [[0, 0] for _ in range(slots)]  # bitmap of ranks
        self.sums = [[None, None] for _ in range(slots)]

    def packet(self, slot, version, rank, chunk, values):
        """The switch's answer: None, ("one", sums) to this worker alone, or ("all", sums) to all of them."""
        bit = 1 << rank
        if chunk < self.held[slot][version]:
            return None  # older: it changes nothing (numbers on the wire wrap, which this exercise leaves out)
        if chunk > self.held[slot][version]:
            self.held[slot][version] = chunk  # newer: it takes the slot version over
            self.seen[slot][version] = 0
        before = self.seen[slot][version]
        self.seen[slot][version] |= bit
        if before == 0:
            self.sums[slot][version] = values.copy()
        elif not before & bit:
            self.sums[slot][version] += values
        if self.seen[slot][version] != self.everyone:
            return None
        return ("one" if before & bit else "all", self.sums[slot][version])
