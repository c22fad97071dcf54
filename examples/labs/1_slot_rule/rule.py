"""The slot rule that was published for such switches. It is right as long as packets keep their order.

A switch has slots, and of each slot two versions, so that one can be summed while the other's result is still there to
be asked for. With W slots chunk c is in slot c mod W; its version changes with every turn: 0 for chunks 0 to W - 1, 1
for W to 2W - 1, 0 again for 2W to 3W - 1. A worker sends chunk c + W once it has the result of chunk c.
"""


class Rule:
    """Registers, indexed [slot][version]. Change `packet`, and add the registers that it needs here."""

    def __init__(self, slots, workers):
        self.workers = workers
        self.seen = [[0, 0] for _ in range(slots)]  # bitmap of ranks
        self.missing = [[0, 0] for _ in range(slots)]  # ranks that are still to come; 0: complete, or never used
        self.sums = [[None, None] for _ in range(slots)]

    def packet(self, slot, version, rank, chunk, values):
        """Handle a worker's packet. values: an int32 array.

        Returns the switch's answer: None, ("one", sums) to this worker alone, or ("all", sums) to all of them.
        """
        bit = 1 << rank
        before = self.seen[slot][version]
        self.seen[slot][version] |= bit  # my bit here …
        self.seen[slot][1 - version] &= ~bit  # … and out of the other version: it is free for its next turn
        if before & bit:  # sent again
            complete = self.missing[slot][version] == 0
            return ("one", self.sums[slot][version]) if complete else None
        if before == 0:  # the first of its turn
            self.sums[slot][version] = values.copy()
        else:
            self.sums[slot][version] += values
        if self.missing[slot][version] == 0:
            self.missing[slot][version] = self.workers
        self.missing[slot][version] -= 1
        return ("all", self.sums[slot][version]) if self.missing[slot][version] == 0 else None
