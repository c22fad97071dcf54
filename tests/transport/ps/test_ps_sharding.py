"""Slices and servers: everything covered once, bytes balanced, the same on all members; and the arithmetic on them."""

from typing import Any

import numpy as np
import pytest

from switchagg.native.library import missing
from tests.shared.ps_world import World
from transport.ps.config import PsConfig, config_from_bytes
from transport.ps.ps_arithmetic import (
    NATIVE_DTYPES,
    Arithmetic,
    NativeArithmetic,
    NumpyArithmetic,
    Step,
    fastest,
    maximum,
)
from transport.ps.ps_messages import EVERYBODY, HEAD_BYTES, Head, PsMessageKind, PsOp, unpack
from transport.ps.sharding import ServerSlice, Sharding
from transport.ps.shared_buffer import POOL_BYTES_MAX, Pool


def covered(slices: list[ServerSlice], elements: int) -> bool:
    """Each element once, in order; numbered from 0."""
    at = 0
    for number, part in enumerate(slices):
        if part.number != number or part.low != at or part.high < part.low:
            return False
        at = part.high
    return at == elements


def test_long_arrays_load_all_servers_alike() -> None:
    for servers in (1, 2, 3, 7):
        sharding = Sharding(servers, 40_000)
        for elements in (0, 1, 39_999, 40_000, 40_001, 100_000, 6_553_600):
            for key in range(4):
                slices = sharding.cut(key, elements)
                assert covered(slices, elements)
                assert all(part.high - part.low <= 40_000 for part in slices)
                assert slices[0].server == sharding.first_server(key) == key % servers
                load = [sum(p.high - p.low for p in slices if p.server == server) for server in range(servers)]
                if elements > 40_000:
                    assert max(load) - min(load) <= len(slices) // servers
                else:
                    assert len(slices) == 1


def test_declared_tensors_go_to_the_emptiest_server() -> None:
    """Largest first; the very large one is everywhere, and counts nowhere."""
    sizes = [40, 10, 30, 20, 20, 1, 161]
    sharding = Sharding(3, 40, sizes)
    first = [sharding.first_server(key) for key in range(7)]
    assert first == [0, 1, 1, 2, 2, 0, 0]  # 40 1 | 30 10 | 20 20
    assert sharding.first_server(8) == 2  # not declared
    assert [Sharding(3, 40, sizes).first_server(key) for key in range(7)] == first


@pytest.mark.parametrize("gather", [True, False])
def test_slices_end_where_shards_end(gather: bool) -> None:
    for workers, elements in ((1, 5), (3, 100), (4, 3), (5, 0), (3, 7)):
        slices = Sharding(2, 10).cut_shards(3, elements, workers, gather=gather)
        assert covered(slices, elements)
        for part in slices:
            owner, rest = (part.source, part.sink) if gather else (part.sink, part.source)
            assert rest == EVERYBODY
            assert owner * elements // workers <= part.low
            assert part.high <= (owner + 1) * elements // workers
            assert part.high - part.low <= 10


def test_heads_decode_to_what_was_encoded() -> None:
    head = Head(PsMessageKind.ANSWER, (1 << 64) - 1, 7, 8, 1 << 40, 9, 10, 4, PsOp.PULL, EVERYBODY, 3, 2, -5)
    assert unpack(head.pack()) == head
    assert len(head.pack()) == HEAD_BYTES == 48
    good = Head(PsMessageKind.BEAT).pack()
    for bad in (b"", good[:-1], good + b"x", b"XX" + good[2:], good[:2] + b"\x09" + good[3:]):
        assert unpack(bad) is None
    for at in (3, 36, 37):  # kind, dtype, op
        assert unpack(good[:at] + b"\xff" + good[at + 1 :]) is None


def test_each_slice_is_one_message_each_way() -> None:
    """n bytes out and n in per worker, one message per slice each way, and p·n/k each way per server."""
    world = World(PsConfig(4, 2, slice_elements=10))
    arrays = [np.ones(100, np.float32) for _ in range(4)]
    for rank in range(4):
        world.call(rank, "allreduce", arrays[rank])
    sent: dict[tuple[int, int], list[int]] = {}
    world.on_delivery = lambda sender, to, message: sent.setdefault((sender, to), []).append(len(message.data))
    world.run()
    for rank in range(4):
        for server in (4, 5):
            assert [size for size in sent[rank, server] if size][1:] == [40] * 5  # after the hello
            assert [size for size in sent[server, rank] if size] == [40] * 5


# ---- arithmetic

both = pytest.mark.parametrize("arithmetic", [NumpyArithmetic, "native"])


def made(arithmetic: Any) -> Arithmetic:
    return NativeArithmetic() if arithmetic == "native" else NumpyArithmetic()


def bits(dtype: np.dtype[Any], count: int, seed: int) -> bytearray:
    """Any values: also subnormal, infinite, none at all."""
    return bytearray(np.random.default_rng(seed).bytes(count * dtype.itemsize))


@both
@pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)
def test_sums_have_the_same_bits_in_c_and_numpy(arithmetic: Any, dtype: np.dtype[Any]) -> None:
    for count in (0, 1, 3, 17, 1000, 40_001):
        total, values = bits(dtype, count, 1), bits(dtype, count, 2)
        with np.errstate(all="ignore"):
            expected = np.frombuffer(total, dtype) + np.frombuffer(values, dtype)
        for shift in (0, 1):  # aligned or not
            memory = memoryview(bytearray(shift) + total)[shift:]
            made(arithmetic).add(memory, values, dtype)
            known = ~np.isnan(expected)  # which NaN comes of two is the machine's choice
            assert np.frombuffer(memory, dtype)[known].tobytes() == expected[known].tobytes()
            assert np.isnan(np.frombuffer(memory, dtype)[~known]).all()


@both
@pytest.mark.parametrize("dtype", NATIVE_DTYPES[:2], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("compensation", [None, 0.04])
def test_steps_have_the_same_bits_in_c_and_numpy(
    arithmetic: Any, dtype: np.dtype[Any], momentum: float, decay: float, compensation: float | None
) -> None:
    """Against the formula written out, several steps on: nothing may be fused."""
    random = np.random.default_rng(5)
    weights, velocity, backup = (random.standard_normal(10_007).astype(dtype) for _ in range(3))
    w, v, b, f = weights.copy(), velocity.copy(), backup.copy(), dtype.type
    step = Step(0.1, momentum, decay, compensation or 0.0)
    for _ in range(3):
        gradient = random.standard_normal(10_007).astype(dtype)
        given = gradient.copy()
        made(arithmetic).step(
            step, weights, velocity if momentum else None, None if compensation is None else backup, given
        )
        assert given.tobytes() == gradient.tobytes()
        if compensation is not None:
            gradient = gradient + f(compensation) * gradient * gradient * (w - b)
        if decay:
            gradient = gradient + f(decay) * w
        if momentum:
            v = f(momentum) * v + gradient
            gradient = v
        w = w - f(0.1) * gradient
        if compensation is not None:
            b = w.copy()
        assert (weights.tobytes(), velocity.tobytes(), backup.tobytes()) == (w.tobytes(), v.tobytes(), b.tobytes())


@both
@pytest.mark.parametrize("dtype", NATIVE_DTYPES[:2], ids=str)
def test_averages_have_the_same_bits_in_c_and_numpy(arithmetic: Any, dtype: np.dtype[Any]) -> None:
    values = np.random.default_rng(1).standard_normal(1001).astype(dtype)
    expected = values / dtype.type(3)
    made(arithmetic).divide(values.data.cast("B"), 3, dtype)
    assert values.tobytes() == expected.tobytes()


def test_the_compiled_core_is_used_where_it_is_built() -> None:
    assert fastest().name == ("numpy" if missing() else "native")


def test_a_maximum_with_a_nan_is_nan() -> None:
    total = np.array([1, np.nan, 3], np.float32)
    maximum(total.data.cast("B"), np.array([2, 0, np.nan], np.float32).tobytes(), total.dtype)
    assert np.array_equal(total, np.array([2, np.nan, np.nan], np.float32), equal_nan=True)


def test_memory_is_reused_and_bounded() -> None:
    pool = Pool()
    first = pool.take(1000)
    view = first.view
    first.users += 1
    pool.release(first)
    assert pool.used_bytes == 1000
    pool.release(first)
    assert pool.used_bytes == 0
    assert pool.take(1000).view is view
    large = [pool.take(POOL_BYTES_MAX // 2 + 1) for _ in range(3)]
    for one in large:
        pool.release(one)
    assert pool._free_bytes == POOL_BYTES_MAX // 2 + 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        PsConfig(3).to_bytes().replace(b"3", b'"3"'),
        PsConfig(3).to_bytes().replace(b"[]", b'["x"]'),
        PsConfig(3).to_bytes().replace(b"0.01", b"NaN"),
    ],
)
def test_impossible_configurations_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        config_from_bytes(data)
