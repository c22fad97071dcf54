"""Secret sums (X1 to X4): switches and wires see noise, no mask hides two payloads, and results are those of the open
run, bit for bit, under losses and in any order, with endpoints in Python and in C side by side."""

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulation.test_simulation import replayable
from simulation.test_trees import ENDPOINTS, LEAVES, TREES, UP
from simulation.world import ABOVE, ANY_ORDER, MS, SWITCH, AnyEndpoint, World
from switchagg.calls.array_calls import array_call
from switchagg.calls.mask import NO_KEY, masks
from switchagg.codecs import CODECS, FIXED_POINT, NARROW, Codec
from switchagg.codecs.codec import FLOAT32
from switchagg.dataplane.plane_kinds import DATAPLANES
from switchagg.dataplane.reference import ReferencePlane
from switchagg.description import CallSignature, Kind
from switchagg.endpoint import CallCompleted, WrongSum
from switchagg.job import MODULUS, TAG_ELEMENTS, JobConfig, StreamConfig
from switchagg.layout import shares_of
from switchagg.tag import KEY_BYTES
from switchagg.wire import Op, Packet, decode, encode

WORKERS, ELEMENTS = 3, 40
SECRET = JobConfig(1, 7, WORKERS, ELEMENTS, (StreamConfig(0, 8), StreamConfig(8, 4)), verify="on", secret="on")
OPEN = replace(SECRET, secret="off")
KEY, OTHER_KEY = (random.Random(seed).randbytes(len(NO_KEY)) for seed in range(2))
ROUTES: tuple[Kind, ...] = ("allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
SUMMED = [codec for codec in CODECS.values() if codec.adds and not codec.variants and FLOAT32 in codec.dtypes]
SAME_SUMS = 2


@dataclass
class Outcome:
    """What came of calls: the arrays and residuals of all ranks, and the packets on the wires."""

    arrays: list[bytes] = field(default_factory=list)
    sent: list[tuple[int, Packet]] = field(default_factory=list)
    results: list[Packet] = field(default_factory=list)
    failures: list[Any] = field(default_factory=list)

    def words(self) -> NDArray[np.uint32]:
        """(k, E - 3): of each different packet of a sum, both ways, the words before the tag."""
        packets = [*(packet for _, packet in self.sent), *self.results]
        rows = {p.values[:-TAG_ELEMENTS].tobytes() for p in packets if p.op is Op.SUM and p.values.size}
        return np.frombuffer(b"".join(sorted(rows)), np.uint32).reshape(len(rows), -1)


class Calls:
    """The calls of all ranks: kinds and codecs by turns; values: all zeros, or such as training has."""

    def __init__(self, seed: int, codecs: Sequence[Codec] = (FIXED_POINT,), zeros: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.described, self.routed = bool(self.rng.integers(2)), bool(self.rng.integers(2))
        self.kinds = [(kind, codec) for codec in codecs for kind in ROUTES if kind != "reduce" or seed % 2]
        self.arrays = [[self._drawn(kind, codec) * (not zeros) for _ in range(WORKERS)] for kind, codec in self.kinds]
        for of_ranks in self.arrays:  # of one type and size
            of_ranks[:] = [array.astype(of_ranks[0].dtype)[: min(map(len, of_ranks))] for array in of_ranks]

    def _drawn(self, kind: Kind, codec: Codec) -> NDArray[Any]:
        size = int(self.rng.choice([1, 30, 60, 700]))
        if codec is NARROW:
            return self.rng.integers(0, 1 << 20, size).astype(np.int32)
        dtype = (
            np.float32 if codec is not FIXED_POINT else self.rng.choice([np.float32, np.float64, np.int32, np.int64])
        )
        return (self.rng.standard_normal(size) * 2.0 ** self.rng.integers(-3, 4)).astype(dtype)

    def submit(self, job: JobConfig, endpoint: AnyEndpoint) -> list[NDArray[Any]]:
        """Copies of this rank's arrays, and of what it keeps of them."""
        filled = []
        for number, ((kind, codec), of_ranks) in enumerate(zip(self.kinds, self.arrays, strict=True)):
            array = of_ranks[endpoint.rank].copy()
            feeds_back = codec.lossy and codec.feeds_back and kind == "allreduce" and number % 2
            residual = np.zeros_like(array) if feeds_back else None
            shares = shares_of(kind, number % WORKERS)._replace(routed=self.routed)
            call = array_call(array, "sum", job, codec.for_workers(WORKERS), shares, residual)
            call.key = 100 * endpoint.rank + number
            if self.described:
                call.description = CallSignature(kind, "sum", array.dtype, array.size).words(number)
            endpoint.submit(number % len(job.streams), call)
            filled += [array] if residual is None else [array, residual]
        return filled


def run(
    job: JobConfig, calls: Calls, seed: int, key: bytes = KEY, spoil: Callable[[Packet], Packet] | None = None
) -> Outcome:
    """The calls through a switch, over wires that lose and reorder. spoil: what the switch does to results."""
    rng, outcome, arrays = random.Random(seed), Outcome(), []
    plane = ReferencePlane(job.slots[1], job.elements)
    plane.admit(job, range(job.workers))
    endpoints = [ENDPOINTS[(rank + seed) % len(ENDPOINTS)](job, rank, key=key) for rank in range(job.workers)]
    for endpoint in endpoints:
        arrays += calls.submit(job, endpoint)
    ended, now_ns, wires = 0, 0, []
    while ended < job.workers * len(calls.kinds) and not outcome.failures:
        now_ns += MS
        for rank, endpoint in enumerate(endpoints):
            endpoint.handle_timer(now_ns)
            while len(frames := endpoint.frames_to_send(now_ns, 5)):
                outcome.sent += [(rank, decode(row.tobytes(), True)) for row in frames]
                for output in plane.process(frames[rng.random() < 0.05 :] if len(frames) > 1 else frames, rank):
                    wires += [(port, row.tobytes()) for row in output.bundle for port in output.ports]
        rng.shuffle(wires)
        for port, frame in wires[: len(wires) // 2 + 1]:
            packet = decode(frame, True)
            outcome.results.append(packet)
            if rng.random() < 0.9:
                told = encode(spoil(packet)) if spoil else frame
                endpoints[port].receive(np.frombuffer(told, np.uint8)[np.newaxis].copy(), now_ns)
        del wires[: len(wires) // 2 + 1]
        for endpoint in endpoints:
            while (event := endpoint.next_event()) is not None:
                ended += isinstance(event, CallCompleted)
                outcome.failures += [] if isinstance(event, CallCompleted) else [event]
        assert now_ns < 100_000 * MS
    outcome.arrays = [array.tobytes() for array in arrays]
    return outcome


# ---- what ranks get


@pytest.mark.parametrize("codec", [FIXED_POINT, NARROW, *SUMMED], ids=lambda codec: codec.name)
def test_results_are_those_of_the_open_run(codec: Codec) -> None:
    """All codecs, types, routes and none, small and described calls, what is fed back; any order and loss."""
    for seed in range(SAME_SUMS):
        calls = Calls(seed, (codec, FIXED_POINT))
        secret, in_clear = run(SECRET, calls, seed), run(OPEN, calls, seed + 1)
        assert not secret.failures
        assert secret.arrays == in_clear.arrays


class SecretWorld(World):
    """Jobs whose sums are secret. `payloads`: of each mask, that is key, stream, chunk and rank, what it hid."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, verified=True, **options)
        self.payloads: dict[tuple[Any, ...], set[bytes]] = {}
        for job in self.jobs:
            job.config = replace(job.config, secret="on")

    def endpoint(self, config: JobConfig, rank: int, wire_rank: int) -> AnyEndpoint:
        """See `World`: a key for each generation, and a name of it in each rank's packets."""
        return self._endpoint(config, rank, wire_rank, key=_key_of(config.job_id, config.generation))

    def _transmit(self, to: int, source: int, frame: bytes) -> None:
        packet = decode(frame, True)
        if source < SWITCH and packet.op is Op.SUM and packet.values.size:
            place = packet.job, packet.generation, packet.stream, packet.chunk, source
            self.payloads.setdefault(place, set()).add(packet.values.tobytes())
        super()._transmit(to, source, frame)


def _key_of(job_id: int, generation: int) -> bytes:
    return random.Random(job_id << 32 | generation).randbytes(len(NO_KEY))


def test_sums_are_exact_under_any_faults_and_no_mask_hides_two_payloads(seed: int) -> None:
    """Routes, small calls, trees, restarts; copies of a packet are alike, and each mask of each generation is another
    one's (X2): of (key, stream, chunk, rank), which name it, none has two payloads."""
    plane, endpoint = DATAPLANES[LEAVES[seed % len(LEAVES)]], ENDPOINTS[seed % len(ENDPOINTS)]
    with replayable("test_sums_are_exact_under_any_faults_and_no_mask_hides_two_payloads", seed):
        for above, faults in ((ABOVE, ANY_ORDER), (TREES[seed % len(TREES)], UP)):
            world = SecretWorld(seed, faults if seed % 3 == 0 else None, plane, endpoint, above)
            world.run()
            assert all(len(payloads) == 1 for payloads in world.payloads.values())


def test_no_two_masks_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """(key, nonce) of every keystream that endpoints in Python ask for names one stream, chunk and index; all blocks of
    all of them differ."""
    seen: dict[tuple[bytes, bytes], bytes] = {}
    asked: dict[tuple[bytes, bytes], tuple[int, int]] = {}
    from switchagg.calls import mask

    original = mask.keystreams

    def spy(key: bytes, nonces: NDArray[np.uint32], count: int) -> NDArray[np.uint32]:
        words = original(key, nonces, count)
        for nonce, row in zip(nonces, words, strict=True):
            place = key, nonce.tobytes()
            assert seen.setdefault(place, row.tobytes()) == row.tobytes()
            asked[place] = int(nonce[2]) >> 16, int(nonce[0]) | int(nonce[1]) << 32
        return words

    monkeypatch.setattr(mask, "keystreams", spy)
    monkeypatch.setattr("simulation.test_secret_sums.ENDPOINTS", ENDPOINTS[:1])
    for key in (KEY, OTHER_KEY):
        run(SECRET, Calls(3), 3, key)
    assert len({key for key, _ in seen}) == 2
    blocks = [row[at : at + 16] for row in seen.values() for at in range(0, len(row) - 15, 16)]
    assert len(set(blocks)) == len(blocks) > 500
    assert {place for place in asked.values() if place[0] == 1}


# ---- what others see


def randomness(words: NDArray[np.uint32]) -> float:
    """How far bytes are from all equally frequent: about 0 for noise, in units of the deviation that noise has."""
    counts = np.bincount(words.view(np.uint8).reshape(-1), minlength=256)
    expected = words.nbytes / 256
    return float((((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255))


def compressed(words: NDArray[np.uint32]) -> float:
    """Size after compression, of size before."""
    return len(zlib.compress(words.tobytes(), 9)) / words.nbytes


@pytest.mark.parametrize("zeros", [True, False])
def test_switch_and_wires_see_noise(zeros: bool) -> None:
    """Packets of ranks and results, of zeros and of values; in the open the same statistics see them at once."""
    calls = Calls(5, (FIXED_POINT, CODECS["lanes8"], CODECS["fp16"]) * 3, zeros)
    secret, in_clear = run(SECRET, calls, 5).words(), run(OPEN, calls, 5).words()
    assert secret.nbytes > 20_000
    assert abs(randomness(secret)) < 5
    assert compressed(secret) > 0.999
    assert abs(randomness(in_clear)) > 100
    assert compressed(in_clear) < 0.8
    for bit in range(32):  # of each bit half are set
        assert abs(((secret >> np.uint32(bit)) & 1).mean() - 0.5) < 5 * 0.5 / np.sqrt(secret.size)
    assert len(np.unique(secret)) > 0.999 * secret.size


def test_two_generations_and_two_chunks_have_nothing_in_common() -> None:
    """Differences of packets that carry the same values are noise, too: between generations, chunks, and ranks."""
    calls = Calls(7, zeros=True)
    first, second = run(SECRET, calls, 7), run(SECRET, calls, 7, OTHER_KEY)
    packets = [
        {
            (rank, p.stream, p.chunk): p.values[:-TAG_ELEMENTS]
            for rank, p in one.sent
            if p.op is Op.SUM and p.values.size
        }
        for one in (first, second)
    ]
    assert packets[0].keys() == packets[1].keys()
    places = sorted(packets[0])
    between_keys = np.array([packets[0][place] - packets[1][place] for place in places])
    between_places = np.array([packets[0][a] - packets[0][b] for a, b in pairwise(places)])
    for difference in (between_keys, between_places):
        assert abs(randomness(difference.view(np.uint32))) < 5
        assert compressed(difference.view(np.uint32)) > 0.999


def test_the_published_masks_show_the_sum_to_who_gets_it() -> None:
    """Masks that cancel around a ring of ranks leave the sum of the packets in clear; these leave the first and the
    last keystream (X3)."""
    values = np.arange(WORKERS * 50, dtype=np.uint32).reshape(WORKERS, 50)
    total = values.sum(axis=0, dtype=np.uint32)
    ring = [masks(KEY[KEY_BYTES:], 0, [9], rank, (rank + 1) % WORKERS, 50)[0] for rank in range(WORKERS)]
    line = [masks(KEY[KEY_BYTES:], 0, [9], rank, rank + 1, 50)[0] for rank in range(WORKERS)]
    assert ((values + ring).sum(axis=0, dtype=np.uint32) == total).all()
    assert ((values + line).sum(axis=0, dtype=np.uint32) != total).all()


# ---- who changes them


def test_a_changed_secret_sum_is_refused() -> None:
    """A mask hides a sum and doesn't protect it: the tag does."""

    def shifted(packet: Packet) -> Packet:
        if packet.op is not Op.SUM or not packet.values.size or packet.chunk < 3:
            return packet
        values = packet.values.copy()
        values[0] += 1
        return replace(packet, values=values)

    outcome = run(SECRET, Calls(1, (CODECS["lanes8"],)), 1, spoil=shifted)
    assert outcome.failures
    assert isinstance(outcome.failures[0], WrongSum)


def test_chunks_beyond_the_wrap_have_masks_of_their_own() -> None:
    """c isn't reduced modulo 2**32 (X2)."""
    near, far = (masks(KEY[KEY_BYTES:], 1, [chunk], 0, 1, 37)[0] for chunk in (5, MODULUS + 5))
    assert np.count_nonzero(near != far) == 37


# ---- what can't be


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verify": "off"}, "secret sums need verify=on"),
        ({"verify": "auto"}, "secret sums need verify=on"),
        ({"backups": 1}, "secret sums can't be partial"),
        ({"close_after_ns": 1000}, "secret sums can't be partial"),
        ({"secret": "maybe"}, "secret 'maybe' is unknown; allowed: off, on"),
    ],
)
def test_jobs_whose_sums_can_not_be_secret(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        replace(SECRET, **changes)
    assert "\n" not in str(refused.value)
