"""How an architecture is described: its records, its blocks, and what becomes of a packet, in order.

A packet makes passes: through ingress, where it comes from a port or once more, and through egress, once for each
copy. A pass sets fields of the state (`Input`), then does its steps in order: blocks run, and the fates of the packet
are decided. The state is a set of records, all zero when a pass begins but for those that the step before kept.
A new architecture is one file like v1model.py or psa.py, its include file, and a line of `architecture_table`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class PacketPath(IntEnum):
    """How a packet came to its pass. It matches `enum p4_path`."""

    NORMAL = 0
    UNICAST = 1
    MULTICAST = 2
    CLONE_I2E = 3
    CLONE_E2E = 4
    RESUBMIT = 5
    RECIRCULATE = 6


class Source(IntEnum):
    """What a pass writes into a field."""

    PORT = 0
    """Of ingress or of egress. A resubmitted packet keeps its port; a recirculated one has the port that it left by."""
    LENGTH = 1
    """Bytes of the packet as it was parsed last."""
    TIME_US = 2
    PATH = 3
    """The number of the path, from `Architecture.paths`."""
    INSTANCE = 4
    """Of the replica; 0 for packets that are none."""
    DEPTH = 5
    """Packets in the queue of the port, as the host set it."""
    ZERO = 6
    TRUE = 7
    FIELD = 8
    """Another field of the state."""


class Move(IntEnum):
    """What a step does. It matches `enum p4_move`."""

    PARSE = 0
    RUN = 1
    DEPARSE = 2
    """Runs a deparser: its bytes and the payload are the packet from now on."""
    CLONE = 3
    """Copies for a clone session go to egress: in ingress of the bytes as they entered, in egress as they are."""
    DROP = 4
    RESUBMIT = 5
    MULTICAST = 6
    UNICAST = 7
    RECIRCULATE = 8
    SEND = 9
    """Output on the copy's port. This step, like UNICAST, always ends the pass."""


EVERY_PATH = tuple(PacketPath)


@dataclass(frozen=True, slots=True)
class Input:
    """field: "record.field" of the state. paths: packets that came otherwise keep what the field has. other: the field
    that Source.FIELD reads."""

    field: str
    source: Source
    paths: tuple[PacketPath, ...] = EVERY_PATH
    other: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pass.

    role: of a block (PARSE, RUN, DEPARSE), as reports name it; for CLONE the parser that parses the copies again, where
    egress gets parsed headers. records: those that a block gets, in order; those that a packet keeps on its way to
    another pass. field: PARSE writes the parser's error there; MULTICAST and UNICAST read the group and the port;
    others do what they do if the field is `equals`, or, without `equals`, anything but 0. Without a field a request of
    an extern decides. session: the field with the number of a clone session. parsed_with: the field that is set while
    the copies are parsed again.
    """

    move: Move
    role: str = ""
    records: tuple[str, ...] = ()
    field: str = ""
    equals: int | None = None
    session: str = ""
    parsed_with: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Architecture:
    """package: the type of `main`. include: the file that declares it. records: of the state. roles: blocks in the
    order in which main and the packages within it name them. paths: numbers of `PacketPath`, for Source.PATH.
    listed: the record whose fields @field_list names. functions: extern functions of `ir.extern_kinds` that there are.
    externs: extern types -> their kinds in `ir.extern_kinds`. properties: of tables, that name an extern ->
    implementation, counters or meters. algorithms: names of hash functions, in lower case -> those of
    `p4vm.algorithms`, where they differ.
    """

    name: str
    package: str
    include: str
    records: tuple[str, ...]
    roles: tuple[str, ...]
    ingress: Pass
    egress: Pass
    paths: tuple[int, ...] = tuple(range(len(PacketPath)))
    listed: str = ""
    functions: frozenset[str] = frozenset()
    externs: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    algorithms: Mapping[str, str] = field(default_factory=dict)

    @property
    def passes(self) -> tuple[Pass, Pass]:
        return self.ingress, self.egress

    def step_of(self, role: str) -> Step:
        """The step that runs a block."""
        blocks = (Move.PARSE, Move.RUN, Move.DEPARSE)
        return next(s for p in self.passes for s in p.steps if s.role == role and s.move in blocks)
