"""Codec `exact` on every method: the correctly rounded sum, the same bits whatever carries it (F19 to F21)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.size_only import SizeOnlyArray
from switchagg.calls.call_request import own_shard
from switchagg.codecs import ARRAY_CODECS
from switchagg.codecs.spec import parse_codec
from switchagg.errors import AggregationFailed, JobError
from tests.oracles.correct_rounding import combined
from tests.transport.contracts.groups import closed, together
from tests.transport.contracts.meshes import free_addresses
from transport.group.group_opening import open_group
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.torch.gloo import GlooGroup
from transport.worker.join_options import JoinOptions

SOON_S = 120.0
WORKERS = 3
METHODS = ["switch", "ring", "halving_doubling", "tree", "ps", "auto", "gloo"]
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "switch, small packets, a window of 2": ("switch@udp", {"elements": 8, "window_slots": 2}),
    "switch, two streams, split calls": ("switch@udp", {"streams": 2, "split_calls": 1, "window_slots": 4}),
    "switch, classes": ("switch@udp", {"priorities": [0, 3, 7]}),
    "switch, verified": ("switch@udp", {"verify": "on"}),
    "switch, in Python": ("switch@udp", {"core": "python"}),
    "switch@zeromq": ("switch@zeromq", {}),
    "ring@udp": ("ring@udp", {}),
    "tree@zeromq, short segments": ("tree@zeromq", {"segment_bytes": 64}),
    "hierarchical@tcp": ("hierarchical@tcp", {}),
}


@contextmanager
def groups(method: str, workers: int = WORKERS, codec: str = "exact", **more: Any) -> Iterator[list[Any]]:
    """One for each rank."""
    name, _, link = method.partition("@")
    addresses = free_addresses(workers)
    if name == "gloo":
        store = dist.HashStore()

        def gloo(rank: int) -> Any:
            backend = dist.ProcessGroupGloo(store, rank, workers, timedelta(seconds=SOON_S))
            return GlooGroup(backend, "exact", parse_codec(codec))

        with closed(together(workers, gloo)) as found:
            yield found
        return

    def opened(rank: int, **how: Any) -> Any:
        options = {"codec": codec, "timeout_s": 20.0, **how, **more}
        way = link or ("udp" if name == "switch" else "tcp")
        return open_group(name, way, rank, addresses, job="exact", options=options)

    if name != "switch":
        with closed(together(workers, opened)) as found:
            yield found
        return
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096, link=link or "udp")) as daemon:
        how = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "window_slots": 64} | more
        with closed(together(workers, lambda rank: opened(rank, **how))) as found:
            yield found


def inputs(size: int, dtype: str = "float32", workers: int = WORKERS, seed: int = 0) -> list[Any]:
    """Numbers whose sums in floats depend on the order, some of them far from the others, some special."""
    found = []
    for rank in range(workers):
        random = np.random.default_rng([seed, size, rank])
        values = random.standard_normal(size) * 2.0 ** random.integers(-9, 5, size)
        values[random.random(size) < 0.1] *= -0.0
        if dtype != "float16":
            values[random.random(size) < 0.05] *= 2.0**60
        values[random.random(size) < 0.002] = np.inf
        values[random.random(size) < 0.002] = np.nan
        found.append(values.astype(dtype))
    return found


def same_bits(left: Any, right: Any) -> bool:
    """All NaN have one pattern, of the type."""
    return left.tobytes() == right.tobytes()


def results(ranks: list[Any], arrays: list[Any], kind: str = "allreduce", op: str = "sum", **how: Any) -> list[Any]:
    copies = [array.copy() for array in arrays]
    futures = [getattr(group, kind)(array, op, **how) for group, array in zip(ranks, copies, strict=True)]
    return [future.result(SOON_S) for future in futures]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_correctly_rounded_sum(method: str) -> None:
    """Of one value and of many, of every type of floats; so do means, and the shards of a reduce-scatter."""
    with groups(method) as ranks:
        for dtype in ("float32", "float64", "float16"):
            for size in (1, 5, 63, 1000):
                arrays = inputs(size, dtype)
                for op, divisor in (("sum", 1), ("avg", WORKERS)):
                    expected = combined(arrays, divisor=divisor)
                    found = results(ranks, arrays, op=op)
                    assert all(same_bits(one, expected) for one in found), (dtype, size, op)
                    for rank, one in enumerate(results(ranks, arrays, "reduce_scatter", op)):
                        assert same_bits(one, own_shard(expected, rank, WORKERS)), (dtype, size, op)
                    reduced = results(ranks, arrays, "reduce", op, root=WORKERS - 1)
                    assert same_bits(reduced[-1], expected), (dtype, size, op)


@pytest.mark.parametrize("way", WAYS)
def test_bits_depend_on_no_option(way: str) -> None:
    method, options = WAYS[way]
    priorities = options.get("priorities", [0])
    with groups(method, **options) as ranks:
        for size in (1, 700, 5000):
            arrays = inputs(size)
            expected = combined(arrays)
            for priority in priorities:
                assert all(same_bits(one, expected) for one in results(ranks, arrays, priority=priority)), size


@pytest.mark.parametrize("method", ["switch", "ring"])
def test_bits_depend_on_nothing_beside_the_values(method: str) -> None:
    """Cuts, order of ranks, ranks that add zeros: the sums of floats on the same group depend on the first two."""
    arrays, size = inputs(3000, workers=3), 3000
    expected = combined(arrays)
    cut = np.array_split(np.arange(size), [1, 70, 64 * 9, 1999])
    zeros = [np.zeros(size, np.float32), np.full(size, -0.0, np.float32)]
    differ = 0
    for codec in ("exact", None):
        with groups(method, 5, **({"codec": codec} if codec else {"codec": "fixed_point"})) as ranks:
            for order in ([0, 1, 2, 3, 4], [3, 2, 0, 4, 1]):
                every = [(arrays + zeros)[number] for number in order]
                whole = results(ranks, every)[0]
                parts = np.concatenate([results(ranks, [array[part] for array in every])[0] for part in cut])
                if codec:
                    assert same_bits(whole, expected)
                    assert same_bits(parts, expected)
                differ += not same_bits(parts, expected)
    assert differ  # else the inputs would show nothing


@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_sum_of_floats_travels_as_ever(method: str) -> None:
    with groups(method) as ranks:
        integers = [np.arange(100, dtype=np.int32) * (rank - 1) for rank in range(WORKERS)]
        assert all((one == 0).all() for one in results(ranks, integers))
        assert all((one == np.maximum.reduce(integers)).all() for one in results(ranks, integers, op="max"))
        floats = [array.astype(np.float32) for array in integers]
        assert all((one == np.maximum.reduce(floats)).all() for one in results(ranks, floats, op="max"))
        with pytest.raises(ValueError, match=r"op 'avg' is unknown; allowed: sum, max|avg"):
            ranks[0].allreduce(integers[0], "avg")


@pytest.mark.parametrize("method", ["switch", "ring", "ps"])
def test_many_calls_at_once(method: str) -> None:
    every = [inputs(200 + number, seed=number) for number in range(12)]
    with groups(method) as ranks:
        copies = [[array.copy() for array in arrays] for arrays in every]
        calls = [[group.allreduce(arrays[rank]) for arrays in copies] for rank, group in enumerate(ranks)]
        for call in calls:
            for arrays, future in zip(every, call, strict=True):
                assert same_bits(future.result(SOON_S), combined(arrays))


@pytest.mark.parametrize("method", ["switch", "ring"])
def test_ranks_whose_calls_differ_are_told_so(method: str) -> None:
    """Also where their codes are as many, and of zeros, which have no words."""
    for calls, words in (
        ([("sum", 100), ("sum", 101)], r"10[01] float32|arrays of 100 and of 101 values"),
        ([("sum", 100), ("avg", 100)], r"\(avg\)"),
    ):
        with groups(method, 2) as ranks:
            futures = [
                group.allreduce(np.zeros(size, np.float32), op) for group, (op, size) in zip(ranks, calls, strict=True)
            ]
            for future in futures:
                with pytest.raises((AggregationFailed, ValueError), match=words):
                    future.result(SOON_S)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    for options in ({"backups": 1}, {"close_after_ns": 1_000_000}):
        with pytest.raises(JobError, match="no partial sums with codec exact: it needs all ranks") as caught:
            JoinOptions(codec="exact", **options)
        assert "\n" not in str(caught.value)
    for text, words in (
        ("exact+ef", "codec exact: nothing is lost in it, so +ef has nothing to feed back"),
        ("exact:least=5", "codec exact: every sum goes through it, so it takes no least"),
        ("exact:momentum=0.9", "codec exact: every sum goes through it, so it takes no momentum"),
    ):
        with pytest.raises(ValueError, match=words.replace("+", r"\+")):
            parse_codec(text)


@pytest.mark.parametrize("method", ["switch", "ring", "ps", "gloo"])
def test_virtual_time_has_the_same_bits(method: str) -> None:
    arrays = inputs(3000)
    expected, found = combined(arrays, divisor=WORKERS), [array.copy() for array in arrays]
    simulation = SIMULATIONS[method](SimulationConfig(WORKERS, LinkConfig(10**9, 5_000), codec="exact"))
    assert simulation.mean_op == "avg"
    pending = set(range(WORKERS))

    def ended(rank: int) -> None:
        pending.discard(rank)
        if not pending:
            simulation.network.stop()

    for rank, array in enumerate(found):
        simulation.launch(rank, array, simulation.mean_op, lambda rank=rank: ended(rank))  # type: ignore[misc]
    simulation.run("sums")
    assert all(same_bits(one, expected) for one in found)


@pytest.mark.parametrize("workers", [2, 4, 64])
def test_an_array_without_values_sends_what_is_typical(workers: int) -> None:
    codec = ARRAY_CODECS["exact"]()
    values = 6400
    from switchagg.codecs.compression import Compression

    (step, words) = [
        reduction.array.nbytes
        for reduction in _alone(Compression(parse_codec("exact"), 0, workers), codec.typical(values))
    ]
    assert step - 8 + words == round(codec.moved(values, workers)["allreduce"])
    assert SizeOnlyArray(values, np.float32).zeros().shape == codec.typical(values).shape


def _alone(compression: Any, array: Any) -> Iterator[Any]:
    return compression.rounds(array, None)  # type: ignore[no-any-return]
