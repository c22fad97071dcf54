"""AutoParty: a pure party of collectives that measures the links first, and then chooses an algorithm by size.

Rank 0 sends messages of some sizes to rank 1 and back, fits α and β to half the round trips, and sends them to all;
calls made before are kept until then. So every rank chooses alike, whenever it gets them. Calls wait for the
measurement, at most about a second on a link of 10 Mb/s, where longer messages are left out.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

from numpy.typing import NDArray

from switchagg.calls.call_request import CallRequest
from switchagg.description import Kind
from switchagg.errors import AggregationFailed
from transport.collectives.choice import SIZES_BYTES, AlgorithmChoice, fit, to_words
from transport.collectives.collective_party import CollectiveFinished, CollectiveParty
from transport.collectives.collective_table import fitting
from transport.meshes.mesh import Buffer, OutgoingMessage

ROUNDS = 5
"""Messages of each size; the median counts."""

LONG_NS = 50_000_000
"""A round trip as long as this is the last: longer messages would only take longer."""

_HEAD = struct.Struct(">3sBI")  # magic, what, number
_MAGIC = b"fit"
_PROBE, _ECHO, _RESULT = range(3)
_RESULT_DATA = struct.Struct(">QQ")  # α in ns, β in 10⁻¹⁵ s per byte
_ALPHA_NS_MAX, _BETA_FS_MAX = 10**13, 10**15


class AutoParty:
    """Wraps the party of a worker; a Party, with `submit` and `events` as HostGroup wants them.

    log: called with a line, once per size class (powers of four) of an allreduce: what was chosen and why.
    segment_bytes: as the party's. `choice`: what was fitted; None until then.
    """

    def __init__(self, party: CollectiveParty, segment_bytes: int, log: Callable[[str], None]) -> None:
        self.choice: AlgorithmChoice | None = None
        self._party, self._segment_bytes, self._log = party, segment_bytes, log
        self._rank, self._workers = party.member, party.workers
        self._held: list[tuple[CallRequest, NDArray[Any]]] = []
        self._held_calls: list[Any] = []
        self._aliases: dict[int, Any] = {}  # id of a party's call -> the call that `submit` returned
        self._out: list[OutgoingMessage] = []
        self._tickets = 0
        self._logged: set[int] = set()
        self._plan = [size for size in SIZES_BYTES for _ in range(ROUNDS)]
        self._at = -1  # the probe that is in flight
        self._sent_ns = 0
        self._moved_ns = 0  # when a message of the measurement last came, or the first call began to wait for it
        self._measured: list[tuple[int, float]] = []
        self._failed: list[CollectiveFinished] = []
        if self._workers == 1:
            self.choice = AlgorithmChoice(1, 0, 1, segment_bytes)
        elif self._rank == 0:
            self._at = 0  # the first is sent when the loop first asks

    def fail(self, detail: str, missing: tuple[int, ...]) -> None:
        """As the party's."""
        self._party.fail(detail, missing)

    def give_up(self, reason: str) -> None:
        """As GroupParty."""
        if self._held:
            self._fail_unmeasured(reason)
        self._party.give_up(reason)

    # Calls

    def submit(self, request: CallRequest, array: NDArray[Any], *, now_ns: int) -> Any:
        """Begin a call, or hold it until the choice is known. It raises what the party raises."""
        if self.choice is None and self._party.failure is None:
            call = object()
            if not self._held:
                self._moved_ns = now_ns
            self._held.append((request, array))
            self._held_calls.append(call)
            return call
        return self._begin(request, array, now_ns)

    def _begin(self, request: CallRequest, array: NDArray[Any], now_ns: int) -> Any:
        kind, algorithm = cast(Kind, request.kind), "ring"
        if self.choice is not None and self._workers > 1:
            algorithm = self.choice.algorithm(array.nbytes)
            if kind == "allreduce":
                self._explain(array.nbytes)
        return self._party.submit(request, fitting(kind, algorithm, self._workers), array, now_ns=now_ns)

    def _explain(self, size_bytes: int) -> None:
        size_class = (size_bytes.bit_length() + 1) // 2
        if size_class not in self._logged:
            self._logged.add(size_class)
            assert self.choice is not None
            self._log(self.choice.words(size_bytes))

    def events(self) -> Sequence[Any]:
        """As the party's; of a call that was held, under the name that `submit` gave it."""
        events = [
            CollectiveFinished(self._aliases.pop(id(call), call), failure) for call, failure in self._party.events()
        ]
        if self._party.failure is not None and self._held_calls:
            events += [CollectiveFinished(call, self._party.failure) for call in self._held_calls]
            self._held.clear()
            self._held_calls.clear()
        events += self._failed
        self._failed = []
        return events

    @property
    def failure(self) -> AggregationFailed | None:
        return self._party.failure

    # Party

    def place(self, sender: int, head: bytes, size_bytes: int) -> memoryview | None:
        """As Party."""
        return None if head[:3] == _MAGIC else self._party.place(sender, head, size_bytes)

    def receive(self, sender: int, head: bytes, data: Buffer, now_ns: int) -> None:
        """As Party."""
        if len(head) != _HEAD.size or head[:3] != _MAGIC:
            self._party.receive(sender, head, data, now_ns)
            return
        _, what, number = _HEAD.unpack(head)
        self._moved_ns = now_ns
        if what == _PROBE and sender == 0 and self._rank == 1:
            self._send(0, _ECHO, number, bytes(data))
        elif what == _ECHO and sender == 1 and self._rank == 0 and number == self._at and self.choice is None:
            self._echoed(now_ns)
        elif what == _RESULT and sender == 0 and len(data) == _RESULT_DATA.size and self.choice is None:
            alpha_ns, beta_fs = _RESULT_DATA.unpack(data)
            self._chosen(min(alpha_ns, _ALPHA_NS_MAX), max(1, min(beta_fs, _BETA_FS_MAX)), now_ns)

    def on_sent(self, ticket: int) -> None:
        """As Party."""
        if ticket >= 0:
            self._party.on_sent(ticket)

    def lost(self, member: int, reason: str, now_ns: int) -> None:
        """As Party. Without rank 0 or 1 nothing will be chosen: what is held begins, and fails as it would."""
        self._party.lost(member, reason, now_ns)
        if self.choice is None and member in (0, 1):
            self._chosen(0, 1, now_ns)

    def messages_to_send(self) -> list[OutgoingMessage]:
        """As Party."""
        if not self._out:
            return self._party.messages_to_send()
        out, self._out = self._out, []
        return out + self._party.messages_to_send()

    def next_deadline_ns(self) -> int | None:
        """As Party; at once for the first probe."""
        if self._at == 0 and not self._sent_ns:
            return 0
        deadline_ns = self._party.next_deadline_ns()
        if self._held and self._party.failure is None:
            gives_up_ns = self._moved_ns + self._party.call_timeout_ns
            deadline_ns = gives_up_ns if deadline_ns is None else min(deadline_ns, gives_up_ns)
        return deadline_ns

    def handle_timer(self, now_ns: int) -> None:
        """As Party. Calls wait for the measurement no longer than for anything else."""
        if self._at == 0 and not self._sent_ns:
            self._probe(now_ns)
        still_ns = now_ns - self._moved_ns
        if self._held and still_ns >= self._party.call_timeout_ns:
            self._fail_unmeasured(f"has waited {still_ns / 1e9:g} s")
        self._party.handle_timer(now_ns)

    def _fail_unmeasured(self, reason: str) -> None:
        missing = tuple({0, 1} - {self._rank})
        whom = " and ".join(f"rank {rank}" for rank in sorted(missing))
        waits = f"rank {self._rank} {reason} for {whom}"
        self._party.fail(f"{waits} to measure the link from rank 0 to rank 1, which method auto begins with", missing)

    # Measuring

    def _probe(self, now_ns: int) -> None:
        self._sent_ns = now_ns
        self._send(1, _PROBE, self._at, bytes(self._plan[self._at]))

    def _echoed(self, now_ns: int) -> None:
        """Rank 0: a probe is back."""
        trip_ns = max(1, now_ns - self._sent_ns)
        self._measured.append((self._plan[self._at], trip_ns / 2e9))
        self._at += 1
        sizes = {size for size, _ in self._measured}
        if self._at < len(self._plan) and (trip_ns < LONG_NS or len(sizes) < 2):
            self._probe(now_ns)
            return
        alpha_ns, beta_fs = to_words(fit(self._measured))
        alpha_ns, beta_fs = min(alpha_ns, _ALPHA_NS_MAX), max(1, min(beta_fs, _BETA_FS_MAX))
        for to in range(1, self._workers):
            self._send(to, _RESULT, 0, _RESULT_DATA.pack(alpha_ns, beta_fs))
        self._chosen(alpha_ns, beta_fs, now_ns)

    def _chosen(self, alpha_ns: int, beta_fs: int, now_ns: int) -> None:
        self.choice = AlgorithmChoice(self._workers, alpha_ns, beta_fs, self._segment_bytes)
        held, calls = self._held, self._held_calls
        self._held, self._held_calls = [], []
        for (request, array), call in zip(held, calls, strict=True):
            try:
                submitted = self._begin(request, array, now_ns)
            except ValueError as error:  # a key that is in use
                failure = AggregationFailed(str(error), job="auto", missing=())
                self._failed.append(CollectiveFinished(call, failure))
                continue
            self._aliases[id(submitted)] = call

    def _send(self, to: int, what: int, number: int, data: bytes) -> None:
        self._tickets -= 1  # the party's own aren't negative
        self._out.append(OutgoingMessage(to, _HEAD.pack(_MAGIC, what, number), data, self._tickets))
