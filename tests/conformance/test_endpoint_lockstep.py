"""Are the endpoints in Python and in C the same machine? Both get the same inputs, step by step: W1 to W9, W12,
F1 to F7, Q6 to Q8 in jobs with partial sums, V4 to V9 in those with verified ones, X3 in those with secret ones.

A script is drawn from a seed: calls of all kinds, sending with all limits, results in any order, lost, twice, spoilt,
unknown senders, timers early and late; in verified jobs sums that are tampered with. After every step the frames must
be the same bytes, and so must events, deadlines, counters and the arrays of finished calls; now and then the rows of
running calls that hold results, too, and all arrays: rows that hold none are as they were given.
"""

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from switchagg.calls.array_calls import array_call, form_of, split
from switchagg.calls.mask import NO_KEY
from switchagg.codecs import FIXED_POINT, Codec, codec_named
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature, Words
from switchagg.endpoint import CallCompleted
from switchagg.job import CONGESTION, MODULUS, JobConfig, StreamConfig
from switchagg.layout import Layout, Shares, shares_of
from switchagg.native.library import missing
from switchagg.native.native_endpoint import ENDPOINT_COUNTERS, NativeEndpoint
from switchagg.partial_endpoint import CHUNKS_OF, endpoint_of
from switchagg.wire import FLAG_RESULT, FLAGS_AT, HEADER_BYTES, MARKED, RANK_AT, Op, Packet, encode, frame_bytes

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs the compiled core: {missing()}")

MS = 1_000_000
STEPS = 120


def awkward_values(rng: random.Random, size: int, dtype: type) -> NDArray[Any]:
    """Ordinary numbers, now and then with the rare ones: NaN, infinities, -0, subnormals, both ends of the range."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return numbers.integers(info.min, info.max, size, dtype, endpoint=True)
    values = (numbers.standard_normal(size) * 10.0 ** rng.randint(-40, 38)).astype(dtype)
    info = np.finfo(dtype)
    rare = [np.nan, np.inf, -np.inf, -0.0, 0.0, info.max, -info.max, info.tiny, info.smallest_subnormal, 1e-30]
    for _ in range(rng.choice([0, 0, 0, 1, 5]) if size else 0):
        values[rng.randrange(size)] = rng.choice(rare)
    if rng.random() < 0.2:
        values[: rng.randint(0, size)] = 0
    return values


class Pair:
    """One worker, twice."""

    def __init__(self, job: JobConfig, rank: int, start: int, key: bytes = NO_KEY) -> None:
        self.python = endpoint_of(job, rank, key=key)
        self.native = NativeEndpoint(job, rank, key=key)
        self._calls: dict[int, tuple[Any, Any]] = {}
        self._rows: dict[int, tuple[NDArray[np.bool_], Layout, NDArray[Any]]] = {}
        """Of each call: the rows that held results after the last step, where they lie, and the array then."""
        self._steps = 0
        for stream, window in enumerate(self.python._windows):
            size = window.window
            window.end = window.limit = start
            window._free = list(range(start, start + size))
            window.chunk = [start + (offset - start) % size for offset in range(size)]
            self.native.start_at(stream, start)

    def submit(
        self, stream: int, array: NDArray[Any], op: str, shares: Shares, words: Words | None, codec: Codec, lost: bool
    ) -> None:
        job = self.python.job
        plain, twin = (
            array_call(one, op, job, codec, shares, np.full(len(one), 7, np.float32) if lost else None)
            for one in (array, array.copy())
        )
        plain.description = twin.description = words
        plain.key = twin.key = len(self._calls)
        self._calls[id(plain)] = (plain, twin)
        layout = form_of(plain, job).layout
        self._rows[id(plain)] = np.zeros(layout.chunks, bool), layout, plain.array.copy()
        self.python.submit(stream, plain)
        self.native.submit(stream, twin)

    def receive(self, bundle: NDArray[np.uint8], now_ns: int, congested: bool = False) -> None:
        self.python.receive(bundle, now_ns, congested)
        self.native.receive(bundle, now_ns, congested)

    def handle_timer(self, now_ns: int) -> None:
        self.python.handle_timer(now_ns)
        self.native.handle_timer(now_ns)

    def frames_to_send(self, now_ns: int, limit: int) -> NDArray[np.uint8]:
        frames = self.python.frames_to_send(now_ns, limit)
        assert frames.tobytes() == self.native.frames_to_send(now_ns, limit).tobytes()
        return frames

    def compare(self) -> list[str]:
        """Names of the events that came, the same on both sides."""
        names = []
        while (event := self.python.next_event()) is not None:
            twin = self.native.next_event()
            if isinstance(event, CallCompleted):
                assert isinstance(twin, CallCompleted)
                mine, its = self._calls.pop(id(event.call))
                held, layout, before = self._rows.pop(id(event.call))
                for low, high in map(layout.span, np.flatnonzero(held).tolist()):
                    assert mine.array[low:high].tobytes() == before[low:high].tobytes()
                assert twin.call is its
                assert twin.stream == event.stream
                assert its.array.tobytes() == mine.array.tobytes()
                if mine.residual is not None:
                    assert its.residual.tobytes() == mine.residual.tobytes()
            else:
                assert type(twin) is type(event)
                assert twin == event
            names.append("Differs" if "calls" in getattr(event, "reason", "") else type(event).__name__)
        assert self.native.next_event() is None
        self._compare_rows()
        assert self.native.next_deadline_ns() == self.python.next_deadline_ns()
        assert self.native.counters == self.python.counters
        return names

    def _compare_rows(self) -> None:
        self._steps += 1
        if self._steps % 4 or (self.python.job.partial and self.python.counters.get("wrong_sums")):
            return  # it takes time; of wrong sums that came early nothing is taken, and the stream ends
        for mine, its in self._calls.values():
            held, layout, before = self._rows[id(mine)]
            holds = self.python.held(mine)
            assert holds.tolist() == self.native.held(its).tolist()
            assert not (held & ~holds).any()
            for low, high in map(layout.span, np.flatnonzero(holds & ~held).tolist()):
                before[low:high] = mine.array[low:high]
            held[:] = holds
            assert mine.array.tobytes() == its.array.tobytes() == before.tobytes()


class Script:
    """A job, its workers in pairs, a switch, and the results in flight to each rank."""

    def __init__(self, seed: int, partial: bool = False, verified: bool = False, secret: bool = False) -> None:
        rng = self.rng = random.Random(seed)
        streams, first = [], 0
        for _ in range(rng.choice([1, 1, 2, 3])):
            streams.append(StreamConfig(first, rng.choice([1, 2, 3, 6, 16]), rng.choice([0, 0, 1])))
            first += streams[-1].window_slots + rng.randint(0, 1)
        self.job = JobConfig(
            rng.choice([0, 9, 65535]),
            rng.randrange(MODULUS),
            rng.choice([1, 1, 2, 3]),
            rng.choice([1, 3, 8, 17, 25]),
            tuple(streams),
            rto_initial_ns=50 * MS,
            rto_min_ns=rng.choice([MS, 10 * MS]),
            rto_max_ns=rng.choice([60 * MS, 400 * MS]),
            retry_limit=rng.choice([2, 100]),
            congestion=rng.choice(CONGESTION),
        )
        if partial:
            workers = max(2, self.job.workers)
            backups, close_ns = rng.choice([(1, 0), (workers - 1, 0), (0, 3 * MS), (1, 20 * MS)])
            elements = max(self.job.elements, 4)
            terms: dict[str, Any] = {"backups": backups, "close_after_ns": close_ns, "elements": elements}
            self.job = replace(self.job, workers=workers, **terms)
        if verified:
            self.job = replace(self.job, verify="on", elements=max(self.job.elements, 8))
        if secret:
            self.job = replace(self.job, secret="on")
        self.marked = rng.choice([0, 0, 0.02, 0.3, 1])  # of what arrives
        self.switch = ReferencePlane(first, self.job.elements)
        self.switch.admit(self.job, range(self.job.workers))
        # Only a worker alone can start near the end of the chunk numbers: its own frames are its results.
        start = rng.choice([0, 2**32 - 5, 2**33 - 1]) if self.job.workers == 1 else 0
        key = random.Random(seed).randbytes(len(NO_KEY))
        self.pairs = [Pair(self.job, rank, start, key) for rank in range(self.job.workers)]
        self.under_way: list[list[bytes]] = [[] for _ in self.pairs]
        self.codecs = random.Random(~seed)
        names = ["lanes4", "lanes8", "lanes16"] + ["constant0", "constant16"] * (self.job.elements > 8)
        names += ["rotated8", "thc", "ternary", "sign", "bf16"] if partial else []  # decoded as sums of fewer ranks
        self.codec = self.codecs.choice([FIXED_POINT] * 2 * len(names) + [codec_named(name) for name in names])
        self.described = rng.random() < 0.5 and not partial
        self.routed = rng.random() < 0.8
        self.now_ns = rng.randrange(10**18)
        self.events: list[str] = []

    def run(self) -> None:
        steps = [self.submit, self.send, self.send, self.answer, self.answer, self.lose, self.wait]
        steps += [self.disturb, self.come_too_early, *[self.tamper] * (self.job.tag_elements > 0)]
        for _ in range(STEPS):
            self.now_ns += self.rng.choice([0, 1, MS, 3 * MS])
            rank = self.rng.randrange(len(self.pairs))
            self.rng.choice(steps)(rank)
            self.events += self.pairs[rank].compare()
        for _ in range(30):  # and now in peace, so that scripts also end
            for rank in range(len(self.pairs)):
                while self.send(rank, 1000):
                    pass
            for rank in range(len(self.pairs)):
                self.answer(rank, 10_000)
                self.events += self.pairs[rank].compare()

    def submit(self, rank: int) -> None:
        dtype = self.rng.choice([np.float32, np.float32, np.float64, np.int32, np.int64])
        if self.job.elements < 4:
            dtype = self.rng.choice([np.float32, np.int32])
        op = "max" if dtype is np.int32 and self.rng.random() < 0.5 else "sum"
        kind = self.rng.choice(["allreduce", "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce"])
        if self.job.partial and dtype in (np.float32, np.float64):
            kind = "allreduce" if kind.startswith("reduce") else kind  # Q8
            op = self.rng.choice(["sum", "avg"]) if kind == "allreduce" else op
        root, unit = self.rng.randrange(len(self.pairs)), self.rng.choice([1, 1, 2])
        shares = shares_of(kind, root, unit)._replace(routed=self.routed, run=self.rng.choice([1, 2, 16]))
        stream = self.rng.randrange(len(self.job.streams))
        size = self.rng.choice([0, 1, self.job.elements, self.rng.randrange(30), self.rng.randrange(400)])
        if size % 2:  # a part of a split call (W11)
            call = array_call(np.zeros(size // unit * unit, dtype), op, self.job, self.codec, shares)
            windows = {number: config.window_slots for number, config in enumerate(self.job.streams)}
            shares = split(call, self.job, windows).get(stream, shares)
        told = CallSignature(kind, op, np.dtype(dtype), size, root).words(len(self.events)) if self.described else None
        odd = self.rng.randrange(-20, len(self.pairs))
        lost = kind == "allreduce" and dtype is np.float32 and self.codecs.random() < 0.2 + 0.4 * self.codec.lossy
        for number, pair in enumerate(self.pairs):
            values = awkward_values(self.rng, size + self.job.elements if number == odd else size, dtype)
            words = told and (*told[:1], len(values), *told[2:])
            values = values if self.described else values[:size]
            how = shares, words, self.codec, lost
            pair.submit(stream, values[: len(values) // unit * unit], op, *how)

    def send(self, rank: int, limit: int = -1) -> int:
        limit = limit if limit >= 0 else self.rng.choice([0, 1, 2, 3, 8, 64])
        frames = self.pairs[rank].frames_to_send(self.now_ns, limit)
        if self.job.workers == 1:
            for row in frames.copy():
                row[FLAGS_AT] |= FLAG_RESULT
                self.under_way[0].append(row.tobytes())
            return len(frames)
        for output in self.switch.process(frames, rank):
            for port in output.ports:
                self.under_way[port] += [row.tobytes() for row in output.bundle]
        return len(frames)

    def answer(self, rank: int, most: int = -1) -> None:
        """Results in order from the front, or any, also more than once; each size by itself."""
        waiting = self.under_way[rank]
        most = most if most >= 0 else self.rng.randint(1, 20)
        taken = waiting[:most]
        if self.rng.random() < 0.5:
            taken = self.rng.sample(waiting, min(most, len(waiting)))
        if self.rng.random() < 0.3:
            taken += self.rng.sample(taken, self.rng.randint(0, len(taken)))
        else:
            self.under_way[rank] = [frame for frame in waiting if frame not in taken]
        self.deliver(rank, taken)

    def lose(self, rank: int) -> None:
        self.under_way[rank] = [frame for frame in self.under_way[rank] if self.rng.random() < 0.7]

    def disturb(self, rank: int) -> None:
        """What is no awaited result: results with one field changed, and any bytes."""
        if self.rng.random() < 0.3 or not self.under_way[rank]:
            size = self.rng.choice([0, 1, 19, 20, 24, frame_bytes(self.job.elements)])
            self.pairs[rank].receive(
                np.frombuffer(self.rng.randbytes(2 * size), np.uint8).reshape(2, size), self.now_ns
            )
            return
        frames = []
        for frame in self.rng.choices(self.under_way[rank], k=3):
            spoilt = bytearray(frame)
            at, length = self.rng.choice([(0, 2), (2, 1), (3, 1), (4, 2), (6, 2), (8, 4), (12, 1), (14, 2), (16, 4)])
            bits = (
                0b110 if at == 2 and self.rng.random() < 0.2 else 1 << self.rng.randrange(8 * length)
            )  # no such route
            field = int.from_bytes(spoilt[at : at + length], "big") ^ bits
            spoilt[at : at + length] = field.to_bytes(length, "big")
            frames.append(bytes(spoilt))
        self.deliver(rank, frames)
        self.deliver(rank, [frame[: self.rng.randrange(1, HEADER_BYTES + 8)] for frame in frames[:1]])

    def tamper(self, rank: int) -> None:
        """A result under way has a changed value, or the values of another, from now on or once."""
        waiting = self.under_way[rank]
        if not waiting:
            return
        place = self.rng.randrange(len(waiting))
        frame, other = bytearray(waiting[place]), self.rng.choice(waiting)
        if len(frame) == len(other) and self.rng.random() < 0.3:
            frame[HEADER_BYTES:] = other[HEADER_BYTES:]
        elif len(frame) > HEADER_BYTES:
            frame[self.rng.randrange(HEADER_BYTES, len(frame))] ^= 1 << self.rng.randrange(8)
        if self.rng.random() < 0.5:
            waiting[place] = bytes(frame)
        self.deliver(rank, [bytes(frame)] * self.rng.choice([0, 1, 1, 2]))
        if self.rng.random() < 0.5:
            self.send(rank)
            self.deliver(rank, [bytes(frame)])

    def come_too_early(self, rank: int) -> None:
        """Results of the chunks that free slots take next, before those were ever sent."""
        stream = self.rng.randrange(len(self.job.streams))
        window = self.pairs[rank].python._windows[stream]
        frames = []
        for offset, chunk in enumerate(window.chunk):
            if not window.in_flight[offset]:
                slot, version = self.job.place(stream, chunk)
                values = np.full(self.job.elements, 7, np.int32)
                place = (self.job.job_id, self.job.generation, stream, rank, Op.SUM, slot, version, chunk % MODULUS)
                frames.append(encode(Packet(*place, values, result=True)))
        self.deliver(rank, frames)

    def wait(self, rank: int) -> None:
        deadline_ns = self.pairs[rank].python.next_deadline_ns()
        if deadline_ns is not None and self.rng.random() < 0.7:
            self.now_ns = max(self.now_ns, deadline_ns + self.rng.choice([-1, 0, MS]))
        self.pairs[rank].handle_timer(self.now_ns)

    def deliver(self, rank: int, frames: list[bytes]) -> None:
        for _, together in itertools.groupby(frames, len):
            alike = list(together)
            bundle = np.frombuffer(b"".join(alike), np.uint8).reshape(len(alike), -1).copy()
            for row in bundle if bundle.shape[1] > RANK_AT else ():
                row[RANK_AT] |= MARKED * (self.rng.random() < self.marked)
            self.pairs[rank].receive(bundle, self.now_ns, self.rng.random() < self.marked)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # sums beyond the float type are among what is compared
@pytest.mark.parametrize(
    ("partial", "verified", "secret"),
    [(False, False, False), (True, False, False), (False, True, False), (True, True, False), (False, True, True)],
)
def test_every_step_is_the_same(seed: int, partial: bool, verified: bool, secret: bool) -> None:
    try:
        Script(seed, partial, verified, secret).run()
    except AssertionError as error:
        pytest.fail(f"{error}\nreplay: python -m pytest tests/conformance -k every_step_is_the_same --seed {seed}")


def test_scripts_reach_losses_timeouts_and_completions() -> None:
    """Calls end, streams give up, chunks are resent by evidence and by timers, and every counter counts."""
    events: list[str] = []
    counters: dict[str, int] = {}
    for seed in range(160):
        script = Script(seed, seed % 4 == 3, seed % 3 == 1)
        script.run()
        events += script.events
        for pair in script.pairs:
            for name, count in pair.native.counters.items():
                counters[name] = counters.get(name, 0) + count
    assert events.count("CallCompleted") > 300
    assert events.count("StreamFailed") > 3
    assert events.count("Differs") > 5
    assert events.count("WrongSum") > 5
    assert all(count > 5 for count in counters.values()), counters
    assert counters.keys() == {name for name in ENDPOINT_COUNTERS if not name.startswith(CHUNKS_OF)} - {
        "early_refused"
    } | {f"{CHUNKS_OF}{ranks}" for ranks in range(4)}


@pytest.mark.parametrize("congestion", CONGESTION)
def test_windows_that_follow_marks_are_the_same_in_the_long_run(congestion: str) -> None:
    """G6: hundreds of rounds, in which the estimate falls from 1 to its least and rises again."""
    rng = random.Random(4)
    pair = Pair(JobConfig(1, 1, 1, 1, (StreamConfig(0, 40),), congestion=congestion), 0, 0)
    array = np.zeros(6000, np.int32)
    pair.submit(0, array, "sum", Shares(), None, FIXED_POINT, False)
    sent = []
    while not pair.compare():
        frames = pair.frames_to_send(0, 64).copy()
        sent.append(len(frames))
        frames[:, FLAGS_AT] |= FLAG_RESULT
        share = (0.02, 0, 0.6, 0.02)[len(sent) // 60 % 4]
        for row in frames:
            row[RANK_AT] |= MARKED * (rng.random() < share)
        pair.receive(frames, 0)
    assert (min(sent) == 40) == (congestion == "none")
