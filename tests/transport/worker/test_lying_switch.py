"""Sums of a real job over UDP, through switches that lie, or one below an honest one: every rank says so, and no array
holds a wrong value."""

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from emulation.sim.flow.call_values import in_rounds
from switchagg.calls.array_calls import rounds_of
from switchagg.codecs import FIXED_POINT
from switchagg.dataplane.contract import Output
from switchagg.dataplane.plane_kinds import DATAPLANES, PlaneKind
from switchagg.dataplane.reference import ReferencePlane
from switchagg.errors import AggregationFailed
from switchagg.native import library
from switchagg.wire import RANK_AT, Bundle, Op, Packet, decode, encode
from transport.control.control_client import query_status
from transport.group.group_opening import open_group
from transport.meshes.mesh_opening import bind_place
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

EXAMPLE = Path(__file__).parents[3] / "examples/lying_switch.py"
WORKERS, VALUES, SOON_S = 3, 20_000, 120.0
AT_ROOT, IN_TREE = [""] * WORKERS, ["leaf", "leaf", ""]
"""The switch of each rank (JoinOptions.via)."""

TOKEN = "0123456789abcdef0123456789abcdef"
Lie = Callable[[Packet, "LyingPlane"], Packet]


class LyingPlane(ReferencePlane):
    """The reference switch, but for what `lie` makes of its results. told: (stream, chunk) of results that it changed;
    kept: the latest sums of each stream, by chunk."""

    name = "lying"
    lie: Lie = staticmethod(lambda result, plane: result)

    def __init__(self, slots: int, elements: int) -> None:
        super().__init__(slots, elements)
        self.told: set[tuple[int, int]] = set()
        self.kept: dict[tuple[int, int], np.ndarray] = {}

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        """See `DataPlane`."""
        return [Output(self._changed(output.bundle), output.ports) for output in super().process(bundle, port)]

    def _changed(self, bundle: Bundle) -> Bundle:
        result = decode(bundle.tobytes(), header_only=True)
        if not result.values.size:
            return bundle
        self.kept[result.stream, result.chunk] = result.values.copy()
        changed = type(self).lie(result, self)
        return np.frombuffer(encode(changed), np.uint8)[np.newaxis, :]


def on_sums(change: Callable[[np.ndarray], None]) -> Lie:
    """A lie about every twentieth sum, each time that it is asked for."""

    def lie(result: Packet, plane: LyingPlane) -> Packet:
        if result.op is not Op.SUM or result.chunk % 20 != 7:
            return result
        values = result.values.copy()
        change(values)
        return replace(result, values=values)

    return lie


def upwards(lie: Lie) -> Lie:
    """A lie of a switch below another in what it sends there; a second one, about the result, could undo it."""
    return lambda packet, plane: packet if packet.result else lie(packet, plane)


def flip(place: int, bit: int) -> Lie:
    """One bit of an element."""

    def change(values: np.ndarray) -> None:
        values.view(np.uint32)[place] ^= np.uint32(1 << bit)

    return on_sums(change)


def by_31_bits(values: np.ndarray) -> None:
    """A change that a hash modulo 2**31 - 1 doesn't notice."""
    values[3] += np.int32((1 << 31) - 1) if values[3] < 0 else -np.int32((1 << 31) - 1)


def exchange(values: np.ndarray) -> None:
    """Two values change places."""
    values[[0, 1]] = values[[1, 0]] if values[0] != values[1] else (values[0] + 1, values[1])


def earlier(result: Packet, plane: LyingPlane) -> Packet:
    """The sum of the chunk before."""
    before = plane.kept.get((result.stream, result.chunk - 1))
    if result.op is not Op.SUM or result.chunk % 20 != 7 or before is None:
        return result
    return replace(result, values=before)


def maxima(by: int, scales: bool) -> Lie:
    """Greater or smaller maxima, alike for all ranks: of scales, or of calls' descriptions (W12)."""

    def lie(result: Packet, plane: LyingPlane) -> Packet:
        if result.op is not Op.MAX or bool((np.abs(result.values) <= 1 << 15).all()) is not scales:
            return result
        return replace(result, values=result.values + np.int32(by))

    return lie


LIES: dict[str, Lie] = {
    "lowest bit of the first value": flip(0, 0),
    "sign of a value": flip(100, 31),
    "a bit of the tag": flip(358, 5),
    "2**31 - 1": on_sums(by_31_bits),
    "two values exchanged": on_sums(exchange),
    "zeros": on_sums(lambda values: values.fill(0)),
    "the chunk before": earlier,
    "greater scales": maxima(1, True),
    "smaller scales": maxima(-1, True),
    "smaller descriptions": maxima(-1, False),
}


class DoublingPlane(ReferencePlane):
    """It leaves rank 1 out, and counts rank 0 twice: for packets of rank 1 it takes those of rank 0."""

    name = "doubling"

    def __init__(self, slots: int, elements: int) -> None:
        super().__init__(slots, elements)
        self._of_rank_0: dict[bytes, np.ndarray] = {}
        self._waiting: dict[bytes, tuple[np.ndarray, int]] = {}

    def process(self, bundle: Bundle, port: int) -> list[Output]:
        """See `DataPlane`."""
        outputs = []
        for row in bundle:
            rank, place = row[RANK_AT], row[6:RANK_AT].tobytes() + row[16:20].tobytes()
            packet = decode(row.tobytes(), header_only=True)
            if packet.op is Op.MAX or packet.result:  # a result comes from the switch above
                outputs += super().process(row[np.newaxis], port)
            elif rank == 1 and place not in self._of_rank_0:
                self._waiting[place] = row.copy(), port
            else:
                if rank == 0:
                    self._of_rank_0[place] = row.copy()
                outputs += super().process(self._taken(row, place), port)
                if rank == 0 and place in self._waiting:
                    waiting, waiting_port = self._waiting.pop(place)
                    outputs += super().process(self._taken(waiting, place), waiting_port)
        return outputs

    def _taken(self, row: np.ndarray, place: bytes) -> Bundle:
        taken = row.copy()
        if row[RANK_AT] == 1:
            taken[20:] = self._of_rank_0[place][20:]
        return taken[np.newaxis]


LEAVES: dict[str, tuple[type[ReferencePlane], Lie | None]] = {
    "adds wrongly": (LyingPlane, upwards(flip(0, 0))),
    "drops a child and doubles another": (DoublingPlane, None),
}


@pytest.fixture(params=["native", "python"])
def core(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and library.missing():
        pytest.skip(f"native core: {library.missing()}")
    return str(request.param)


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SwitchDaemon]]:
    """Starts a switch with a data plane of the test."""
    with ExitStack() as ending:

        def start(plane: type[ReferencePlane], lie: Lie | None = None, **place: str) -> SwitchDaemon:
            if lie is not None:
                monkeypatch.setattr(plane, "lie", staticmethod(lie))
            monkeypatch.setitem(DATAPLANES, plane.name, PlaneKind(plane.name, plane, "of a test", leaf=True))
            options = DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), dataplane=plane.name, **place)
            return ending.enter_context(SwitchDaemon(options))

        yield start


def root_of_tree(lying: Callable[..., SwitchDaemon], plane: type[ReferencePlane], lie: Lie | None) -> SwitchDaemon:
    """An honest switch, and a switch "leaf" with a data plane of the test below."""
    root = lying(ReferencePlane)
    lying(plane, lie, parent=root.control_endpoint, name="leaf")
    until(lambda: "leaf" in query_status(root.control_endpoint).switches)
    return root


def inputs(dtype: str) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [(random.standard_normal(VALUES) * 1e6).astype(dtype) for _ in range(WORKERS)]


def outcomes(
    daemon: SwitchDaemon, core: str, arrays: list[np.ndarray], vias: Sequence[str] = AT_ROOT, **options: Any
) -> list[Any]:
    """What each rank's call ends with, an array or an error, and its counters."""

    def one(rank: int) -> tuple[Any, dict[str, int]]:
        terms = {"core": core, "verify": "on", "token": TOKEN, "window_slots": 64, "streams": 1, "via": vias[rank]}
        how = JoinOptions(**{**terms, **options})
        with SwitchSession.join(daemon.control_endpoint, "sums", rank, WORKERS, how) as session:
            future: Future[Any] = session.allreduce(arrays[rank])
            error = future.exception(SOON_S)
            return error or future.result(), session.counters

    with ThreadPoolExecutor(WORKERS) as ranks:
        return list(ranks.map(one, range(WORKERS)))


def assert_all_say_so(ended: list[Any], arrays: list[np.ndarray], given: list[np.ndarray]) -> None:
    """Every rank has an error; one at least, that of a wrong sum; and no value that isn't the rank's own or right."""
    wrong = 0
    for rank, (error, _) in enumerate(ended):
        assert isinstance(error, AggregationFailed), error
        assert "wrong sum" in str(error)
        assert "\n" not in str(error)
        assert TOKEN not in str(error)
        if error.chunk is not None:
            wrong += 1
            assert f"rank {rank}: wrong sum, also when it was asked for again" in str(error)
            assert error.stream == 0
    assert wrong
    total = np.sum([array.astype(np.float64) for array in given], axis=0)
    for array, own in zip(arrays, given, strict=True):
        right = np.abs(array.astype(np.float64) - total) <= 1e-3 * np.abs(total) + 1
        assert (right | (array == own)).all()


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_an_error_on_every_rank(lying: Callable[..., SwitchDaemon], core: str, lie: str, dtype: str) -> None:
    if dtype == "int32" and "scales" in lie:
        pytest.skip("integers have no scales")
    given = inputs(dtype)
    arrays = [array.copy() for array in given]
    daemon = lying(LyingPlane, LIES[lie])
    ended = outcomes(daemon, core, arrays)
    assert_all_say_so(ended, arrays, given)
    assert query_status(daemon.control_endpoint).control_counters["left_wrong_sum"] >= 1


def test_a_rank_left_out_for_another_is_an_error_on_every_rank(lying: Callable[..., SwitchDaemon], core: str) -> None:
    given = inputs("float32")
    arrays = [array.copy() for array in given]
    assert_all_say_so(outcomes(lying(DoublingPlane), core, arrays), arrays, given)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_lie_of_a_leaf_is_an_error_on_every_rank(lying: Callable[..., SwitchDaemon], core: str, leaf: str) -> None:
    given = inputs("float32")
    arrays = [array.copy() for array in given]
    assert_all_say_so(outcomes(root_of_tree(lying, *LEAVES[leaf]), core, arrays, IN_TREE), arrays, given)


@pytest.mark.parametrize("vias", [AT_ROOT, IN_TREE], ids=["one switch", "a tree"])
def test_honest_switches_give_the_bits_of_host_methods_and_no_wrong_sums(
    lying: Callable[..., SwitchDaemon], core: str, vias: list[str]
) -> None:
    """A ring with rows of as many values, F7."""
    daemon = root_of_tree(lying, LyingPlane, None) if vias is IN_TREE else lying(LyingPlane)
    for dtype in ("float32", "int32", "float64", "int64"):
        given = inputs(dtype)
        ended = outcomes(daemon, core, [array.copy() for array in given], vias)
        if dtype.startswith("float"):
            expected = [array.copy() for array in given]
            in_rounds([rounds_of(array, 357, WORKERS, FIXED_POINT) for array in expected])
        else:
            expected = [np.sum(given, axis=0, dtype=dtype)] * WORKERS
        for (array, counters), right in zip(ended, expected, strict=True):
            assert (array == right).all()
            assert counters.get("wrong_sums", 0) == 0


def test_the_example_lies_and_only_verified_sums_tell(lying: Callable[..., SwitchDaemon], core: str) -> None:
    spec = importlib.util.spec_from_file_location("lying_switch", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    given = [np.ones(60_000, np.float32) * (rank + 1) for rank in range(WORKERS)]
    daemon, arrays = lying(example.LyingPlane), [array.copy() for array in given]
    assert_all_say_so(outcomes(daemon, core, arrays), arrays, given)
    ended = outcomes(daemon, core, [array.copy() for array in given], verify="off")
    assert all((array != sum(range(1, WORKERS + 1))).sum() == 1 for array, _ in ended)


def test_damage_on_a_wire_is_repaired_by_asking_again(lying: Callable[..., SwitchDaemon], core: str) -> None:
    """The first result of a few chunks has a wrong bit, further copies of it are whole."""

    def once(result: Packet, plane: LyingPlane) -> Packet:
        place = result.stream, result.chunk
        if result.op is not Op.SUM or result.chunk % 20 != 7 or place in plane.told:
            return result
        plane.told.add(place)
        return flip(5, 17)(result, plane)

    given = inputs("int32")
    ended = outcomes(lying(LyingPlane, once), core, [array.copy() for array in given])
    for array, counters in ended:
        assert (array == np.sum(given, axis=0, dtype=np.int32)).all()
        assert counters["wrong_sums"] > 0
        assert counters["retransmitted"] >= counters["wrong_sums"]
    assert len({counters["wrong_sums"] for _, counters in ended}) == 1


def test_without_verifying_the_same_lie_is_a_wrong_sum_that_nobody_notices(
    lying: Callable[..., SwitchDaemon], core: str
) -> None:
    given = inputs("int32")
    ended = outcomes(lying(LyingPlane, flip(0, 0)), core, [array.copy() for array in given], verify="off")
    right = np.sum(given, axis=0, dtype=np.int32)
    assert all((array != right).any() for array, _ in ended)


def test_a_job_with_a_fallback_leaves_a_switch_that_lies_for_good(lying: Callable[..., SwitchDaemon]) -> None:
    daemon = lying(LyingPlane, flip(0, 0))
    places = [bind_place("tcp", "127.0.0.1") for _ in range(WORKERS)]
    options = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "fallback": "ring", "token": TOKEN}

    def train(rank: int) -> tuple[Any, dict[str, int]]:
        addresses = [place.address for place in places]
        with open_group("switch", "udp", rank, addresses, job="j", options=options, bound=places[rank]) as group:
            sums = [group.allreduce(np.full(VALUES, rank, np.int32)).result(SOON_S) for _ in range(20)]
            time.sleep(1.0)  # a job that trusts the switch would be back
            return sums, dict(group.counters)

    with ThreadPoolExecutor(WORKERS) as pool:
        for sums, counters in pool.map(train, range(WORKERS)):
            assert all((one == sum(range(WORKERS))).all() for one in sums)
            assert (counters["recoveries"], counters["moves_to_switch"]) == (1, 0)
