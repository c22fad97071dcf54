"""The table at the end of a run: each test on each switch, its verdict, and the packets that the switch dealt with."""

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from switchagg.wire import FLAG_RETRANSMISSION, FLAGS_AT, HEADER_BYTES

DUPLICATE = "drop_duplicate"
COLUMNS = ("test", "switch", "verdict", "sequences", "in", "out", "resent", "duplicates", "refused, or why skipped")
TEXTS = ("test", "switch", "verdict", COLUMNS[-1])


@dataclass
class PacketTally:
    """Packets of a test: sent to the switch, and of these retransmissions; results that the test's sockets received;
    counter of the switch -> packets; orders of arrival that sequences were run in."""

    sequences: int = 0
    packets_in: int = 0
    packets_out: int = 0
    retransmissions: int = 0
    counted: dict[str, int] = field(default_factory=dict)

    def note(self, data: bytes, counted: str) -> None:
        """A packet was sent, and the switch counted it; "": it doesn't say."""
        self.packets_in += 1
        self.retransmissions += len(data) >= HEADER_BYTES and bool(data[FLAGS_AT] & FLAG_RETRANSMISSION)
        if counted:
            self.counted[counted] = self.counted.get(counted, 0) + 1

    def __add__(self, other: "PacketTally") -> "PacketTally":
        return PacketTally(
            self.sequences + other.sequences,
            self.packets_in + other.packets_in,
            self.packets_out + other.packets_out,
            self.retransmissions + other.retransmissions,
            dict(Counter(self.counted) + Counter(other.counted)),
        )


@dataclass(frozen=True)
class VerdictRow:
    """A test on a switch, or all tests on one. why: it was skipped."""

    test: str
    switch: str
    verdict: str
    why: str
    tally: PacketTally

    def saved(self) -> dict[str, Any]:
        """As a report of pytest carries it, also between processes."""
        return asdict(self)

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Self:
        return cls(**{**saved, "tally": PacketTally(**saved["tally"])})

    def cells(self) -> list[str]:
        tally = self.tally
        drops = {name.removeprefix("drop_"): n for name, n in sorted(tally.counted.items()) if name.startswith("drop_")}
        duplicates = drops.pop(DUPLICATE.removeprefix("drop_"), 0)
        numbers = (tally.sequences or "", tally.packets_in, tally.packets_out, tally.retransmissions, duplicates)
        refused = ", ".join(f"{name} {packets}" for name, packets in drops.items())
        return [self.test, self.switch, self.verdict, *map(str, numbers), refused or self.why]


def by_switch(rows: Iterable[VerdictRow]) -> list[VerdictRow]:
    """A row for each switch: how many tests have each verdict, and their packets together."""
    groups: dict[str, list[VerdictRow]] = {}
    for row in rows:
        groups.setdefault(row.switch, []).append(row)
    together = []
    for switch, group in groups.items():
        verdicts = Counter(row.verdict for row in group)
        words = ", ".join(f"{tests} {verdict}" for verdict, tests in sorted(verdicts.items()))
        why = next((row.why for row in group if row.why), "")
        together.append(VerdictRow("all", switch, words, why, sum((row.tally for row in group), PacketTally())))
    return together


def without_repeats(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    """The rows, with those of a switch whose tests were all skipped as one."""
    skipped = [row for row in by_switch(rows) if row.why and not row.tally.packets_in]
    return [row for row in rows if row.switch not in {row.switch for row in skipped}] + skipped


def lines_of(rows: Sequence[VerdictRow]) -> list[str]:
    """The table as text."""
    cells = [list(COLUMNS), *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if name in TEXTS else text.rjust(width)
            for name, text, width in zip(COLUMNS, line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]


def write_csv(path: Path, rows: Iterable[VerdictRow]) -> None:
    """The table as a file of comma-separated values, a line for each test on each switch."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *(row.cells() for row in rows)])
