"""A job whose workers are sockets of the test: what its ranks send, and what the switch should do with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, SupportsBytes

import numpy as np
from numpy.typing import ArrayLike

from switchagg.aggregator import Verdict
from switchagg.dataplane.p4.plane_traffic import SAYS
from switchagg.errors import DecodeError, SwitchaggError
from switchagg.job import JobConfig
from switchagg.wire import HEADER_BYTES, Op, Packet, Route, Values, decode, encode, givers, kind_of
from transport.testing.packets import bytes_of, describe, difference

if TYPE_CHECKING:
    from transport.testing.switches import Port, SwitchUnderTest


class _Any:
    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any()
"""In place of values that are not compared."""


class Unexpected(AssertionError):
    """The switch did something else than the test expects: what was sent, what should have come, and what came."""


@dataclass(frozen=True)
class _Expected:
    data: bytes
    any_values: bool = False

    def difference(self, received: bytes) -> list[str]:
        same = received[HEADER_BYTES:] if self.any_values and len(received) == len(self.data) else b""
        return difference(self.data[:HEADER_BYTES] + same if same else self.data, received)


@dataclass(frozen=True)
class _SentPacket:
    rank: int
    data: bytes
    counted: str

    def __str__(self) -> str:
        counted = f"; the switch counted it as {self.counted}{_rule_of(self.counted)}" if self.counted else ""
        return f"rank {self.rank} sent: {describe(self.data)}{counted}"


def _rule_of(counter: str) -> str:
    return f" ({SAYS[counter]})" if counter in SAYS else ""


def _rule_of_field(line: str) -> str:
    """The rule that says what a field of a result is, from a line that names the field first."""
    name = line.split()[0].partition("[")[0]
    return {"value": "S4: the sums", "MARKED": "G3: the mark"}.get(name, "S6: the header of a result")


class Job:
    """A job on a switch under test. `config`: as it was admitted. `workers`: the socket of each rank. `parent`: that of
    the switch above, whose part the test plays, and our switch's rank there; or None.

    Made by `SwitchUnderTest.job`. Whatever the switch sends is kept until a check looks at it; none is forgotten.
    """

    def __init__(
        self,
        switch: "SwitchUnderTest",
        config: JobConfig,
        workers: "Sequence[Port]",
        parent: "tuple[Port, int] | None" = None,
    ) -> None:
        self.switch = switch
        self.workers = tuple(workers)
        self.parent = parent
        self.config = self._admit(config)
        self._last: _SentPacket | None = None

    def _admit(self, config: JobConfig) -> JobConfig:
        above = (self.parent[0].address, self.parent[1]) if self.parent else None
        return self.switch.admit(config, [port.address for port in self.workers], above)

    def restart(self, generation: int) -> None:
        """The same job in a new generation: its slots are cleared (S7)."""
        self.config = self._admit(replace(self.config, generation=generation))

    def contribution(self, rank: int, chunk: int, values: ArrayLike = (), *, stream: int = 0, **fields: Any) -> Packet:
        """What a rank sends for a chunk of a stream, by the rules. values: int32, one for all or one each; none: a
        header-only packet. fields: of a Packet, which may be wrong ones: `op`, `route`, `owner`, `generation`,
        `slot`, …"""
        slot, version = self.config.place(stream, chunk)
        packet = Packet(
            self.config.job_id,
            self.config.generation,
            stream,
            rank,
            Op.SUM,
            slot,
            version,
            chunk % (1 << 32),
            self._values(values),
        )
        return replace(packet, **fields)

    def send(self, rank: int, packet: Packet | SupportsBytes, tos: int = 0) -> None:
        """Send a packet, any bytes or a scapy layer from a rank's socket; returns once the switch has dealt with it.

        tos: DSCP and ECN bits of its IP header. Raises SwitchaggError if the switch doesn't take it.
        """
        data = bytes_of(packet)
        counted = self.switch.deliver(self.workers[rank], data, tos)
        self._last = _SentPacket(rank, data, counted)

    def contribute(self, rank: int, chunk: int, values: ArrayLike = (), *, tos: int = 0, **fields: Any) -> None:
        """`send` a `contribution`."""
        self.send(rank, self.contribution(rank, chunk, values, **fields), tos)

    def expect(
        self, verdict: Verdict, values: ArrayLike | _Any | None = None, *, counted: str = "", **fields: Any
    ) -> None:
        """Check what the switch did with the packet sent last: who got what (S5, S6, H3), and that nobody got more.

        values: of the results, one for all or one each, or ANY; not for DROP. counted: the counter that has to have
        counted it, like "absorbed" or "drop_generation", of a switch that says what it counts. fields: of the result,
        where they aren't those of the packet sent, like `marked`. Raises Unexpected. RESEND is about another packet
        than the one sent: `expect_packets`.
        """
        __tracebackhide__ = True
        if verdict is Verdict.DROP:
            self._check({}, "DROP: nothing for anybody (S5)", counted)
            return
        last = self._last_packet()
        try:
            packet = replace(
                decode(last.data, header_only=True), result=verdict is not Verdict.UP, retransmission=False
            )
        except DecodeError as error:
            raise SwitchaggError(f"{verdict.name} of what is no packet ({error}): use expect_packets") from error
        packet = replace(packet, **fields)
        if verdict is Verdict.RESEND:
            raise SwitchaggError("RESEND is about an earlier chunk: say with expect_packets what comes where")
        if verdict is Verdict.UP:
            if self.parent is None:
                raise SwitchaggError("UP: the job has no parent; make it with parent_rank=…")
            port, rank = self.parent
            self._check(
                {port: self._expected(replace(packet, rank=rank), values, verdict)},
                "UP: the sum, to the parent (H3)",
                counted,
            )
            return
        alone = verdict is Verdict.REPLY
        results = {
            self.workers[rank]: self._expected(packet, () if self._gives(packet, rank) else values, verdict)
            for rank in ([last.rank] if alone else range(len(self.workers)))
        }
        who = f"rank {last.rank} alone" if alone else "every rank"
        self._check(results, f"{verdict.name}: a result for {who} (S5)", counted)

    def expect_nothing(self, counted: str = "") -> None:
        """Check that nobody got anything. counted: as of `expect`."""
        __tracebackhide__ = True
        self.expect_packets({}, counted=counted)

    def expect_packets(self, packets: Mapping[int, Packet | SupportsBytes], *, counted: str = "") -> None:
        """Check that these ranks got one packet each, bit for bit, and that nobody got more."""
        __tracebackhide__ = True
        expected = {self.workers[rank]: _Expected(bytes_of(packet)) for rank, packet in packets.items()}
        ranks = f"one packet for each of ranks {', '.join(map(str, packets))}" if packets else "nothing for anybody"
        self._check(expected, ranks, counted)

    def evict(self) -> None:
        """The switch forgets the job (S8); the sockets stay open."""
        self.switch.evict(self.config.job_id)

    def _values(self, values: ArrayLike) -> Values:
        array = np.asarray(values)
        if array.ndim == 0:
            array = np.full(self.config.elements, array)
        if array.size and (array.max() >= 1 << 31 or array.min() < -(1 << 31)):
            raise SwitchaggError(f"values {values!r}: 32 bits with a sign")
        return array.astype(np.int32)

    def _gives(self, packet: Packet, rank: int) -> bool:
        """Whether a route makes a rank give values: its result is header-only (S6)."""
        everyone = (1 << len(self.workers)) - 1
        gives = givers(kind_of(packet.op, 0, packet.route, packet.owner), everyone) >> rank & 1
        return packet.route is not Route.ALL and bool(gives)

    def _expected(self, packet: Packet, values: ArrayLike | _Any | None, verdict: Verdict) -> "_Expected":
        if values is None:
            raise SwitchaggError(
                f"expect({verdict.name}) also needs the values of the result, like expect({verdict.name}, 7) where all "
                f"are 7; expect({verdict.name}, ANY) takes whatever values come"
            )
        if isinstance(values, _Any):
            return _Expected(encode(replace(packet, values=self._values(0))), any_values=True)
        return _Expected(encode(replace(packet, values=self._values(values))))

    def _last_packet(self) -> _SentPacket:
        if self._last is None:
            raise SwitchaggError("nothing was sent yet: send or contribute first")
        return self._last

    def _check(self, expected: "Mapping[Port, _Expected]", title: str, counted: str) -> None:
        """Compare what has come, at all sockets of the job, with what should have."""
        __tracebackhide__ = True  # of pytest: a failure shows the test's own line
        faults = []
        for name, port in self._ports():
            if (wanted := expected.get(port)) is not None:
                received = port.receive()
                if received is None:
                    faults.append(f"{name}: nothing came, expected {describe(wanted.data)}")
                elif lines := wanted.difference(received):
                    faults.append(f"{name} received: {describe(received)}")
                    faults += [f"    {line}  ({_rule_of_field(line)})" for line in lines]
            while (received := port.receive(0)) is not None:
                faults.append(f"{name}: unexpected {describe(received)}")
        last = self._last
        if counted and last is not None and last.counted and last.counted != counted:
            faults.append(f"the counter {counted} should have counted it{_rule_of(counted)}")
        if faults:
            raise Unexpected("\n".join([str(last or "nothing was sent"), f"expected {title}", *faults]))

    def _ports(self) -> "list[tuple[str, Port]]":
        named = [(f"rank {rank}", port) for rank, port in enumerate(self.workers)]
        return [*named, ("parent", self.parent[0])] if self.parent else named
