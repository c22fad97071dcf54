"""A Tofino pipeline's resources, a program's demands on them, and the result of comparing the two."""

from dataclasses import dataclass, field

from p4vm.source import Position


@dataclass(frozen=True, slots=True)
class Limits:
    """A pipe of a Tofino 1, ingress and egress together.

    Published or measured by those who programmed it: 12 stages; per stage 4 stateful ALUs, 16 logical tables, 80 SRAM
    blocks of 128 kbit, 24 TCAM blocks of 512 × 44 bits; 4096 bits of header vector per direction. A stateful ALU
    compares twice, takes two 32-bit words from the packet, gives one back, and holds four constants beyond -8 … 7. A
    register lies in one stage: 35 blocks at most, and one more to be written while it is read.
    """

    stages: int = 12
    stateful_alus: int = 4
    tables: int = 16
    sram_blocks: int = 80
    sram_block_bits: int = 1 << 17
    tcam_blocks: int = 24
    tcam_entries: int = 512
    tcam_bits: int = 44
    header_bits: int = 4096
    register_bits: int = 64
    register_blocks: int = 35
    comparisons: int = 2
    packet_words: int = 2
    large_constants: int = 4
    recirculation_ports: range = range(64, 72)  # the port's number within its pipe: its lower seven bits


TOFINO = Limits()


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that the program breaks, and where. certain: no compiler gets around it; others are warnings."""

    message: str
    position: Position
    certain: bool = True

    def __str__(self) -> str:
        return f"{self.position}: {self.message}"


@dataclass(slots=True, eq=False)
class Memory:
    """A register, counter or meter. alu: it takes a stateful ALU (counters have units of their own); direct: it has a
    cell for each entry of a table, and goes with them."""

    name: str
    kind: str
    entries: int
    width: int
    position: Position
    alu: bool = True
    direct: bool = False

    @property
    def bits(self) -> int:
        return self.entries * self.width


@dataclass(frozen=True, slots=True)
class Access:
    """A use of a memory within an action."""

    memory: Memory
    position: Position


@dataclass(slots=True, eq=False)
class Effects:
    """The effects of statements on fields and memories. matched: fields that must be known when their stage begins;
    computed: those of the written ones that are more than a copy, which whoever reads them could copy instead."""

    matched: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    computed: set[str] = field(default_factory=set)
    accesses: list[Access] = field(default_factory=list)

    def add(self, other: "Effects") -> None:
        self.matched |= other.matched
        self.reads |= other.reads
        self.writes |= other.writes
        self.computed |= other.computed
        self.accesses += other.accesses


@dataclass(slots=True, eq=False, kw_only=True)
class Unit(Effects):
    """A logical table: a table with its actions, or statements that run together as a table without a key.

    direction: ingress, egress; number: its place there. matched: by keys and register indices; read, written: by its
    actions. branch: for each `if` or `switch` around it, which one and the way taken there; conditions: the fields that
    decided each of them, and how many units stood before it; decides: those that this table's result decides. ended:
    branches before it that end with `exit` or `return`. blocks: memory of the match itself. bare: statements, named by
    their place. unordered: the program has its dependencies ignored.
    """

    name: str
    direction: str
    position: Position
    branch: tuple[tuple[int, int], ...]
    number: int = 0
    conditions: tuple[tuple[int, frozenset[str]], ...] = ()
    decides: set[int] = field(default_factory=set)
    ended: tuple[tuple[tuple[int, int], ...], ...] = ()
    sram_blocks: int = 0
    tcam_blocks: int = 0
    bare: bool = False
    unordered: bool = False
    stage: int = -1

    def excludes(self, other: "Unit") -> bool:
        """True if no packet runs both: they are on different ways of one branching, or this one's way ends before
        the other."""
        ways = dict(self.branch)
        return any(ways.get(node, way) != way for node, way in other.branch) or any(
            self.branch[: len(way)] == way for way in other.ended
        )


@dataclass(slots=True)
class PipelineStage:
    """The resources of one stage that the program uses."""

    units: list[Unit] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    sram_blocks: int = 0
    tcam_blocks: int = 0

    @property
    def stateful_alus(self) -> int:
        return sum(memory.alu for memory in self.memories)


@dataclass(slots=True)
class Fit:
    """The result. header_bits: per direction, what the packet's headers and metadata take of the header vector.

    faults: rules broken whatever a compiler does; warnings: what a compiler may or may not find a way around.

    recirculations: further passes a packet makes; each takes as much port bandwidth as the packet's first.
    """

    file: str
    stages: list[PipelineStage]
    units: list[Unit]
    memories: list[Memory]
    header_bits: dict[str, int]
    recirculations: int
    faults: list[Fault]
    limits: Limits = TOFINO
    warnings: list[Fault] = field(default_factory=list)

    @property
    def stages_used(self) -> int:
        return max((number for number, stage in enumerate(self.stages, 1) if stage.units), default=0)

    @property
    def line_rate_share(self) -> float:
        """The ports that carry recirculated packets can't carry others: 1 / passes."""
        return 1 / (1 + self.recirculations)


def overlap(path: str, other_path: str) -> bool:
    """Whether two paths name the same field, or one holds the other."""
    return (
        path == other_path
        or path.startswith((other_path + ".", other_path + "["))
        or other_path.startswith((path + ".", path + "["))
    )


def meet(paths: set[str], other_paths: set[str]) -> str:
    """A field of `some` that is, or holds, or lies in one of `others`; "" if none does."""
    if both := paths & other_paths:
        return min(both)
    return next((path for path in sorted(paths) for other_path in other_paths if overlap(path, other_path)), "")
