"""A codec is a file and a line in `CODECS`: a toy registered here works everywhere without another edit."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulation.scenario.bounds import NetworkParameters, algbw_bound, bound
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from switchagg.calls.array_calls import array_call, chunked_call, share_of_chunks, share_of_rounds
from switchagg.codecs import CODECS, FIXED_POINT, PLAIN, CallShape, Codec, codec_for, codec_named, names
from switchagg.job import JobConfig, StreamConfig
from switchagg.native.library import missing
from switchagg.wire import Op, kind_of
from tests.transport.contracts.meshes import free_addresses
from transport.group.group_opening import open_group
from transport.group.method_name import parse
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SOON_S = 120.0
WORKERS, ELEMENTS = 3, 8
FLOAT32, FLOAT64, INT32 = (np.dtype(name) for name in ("float32", "float64", "int32"))


class Halves(Codec):
    """Quarters from -1000 to 1000, two in a word of 32 bits, for up to 8 ranks; nothing to agree on."""

    name = "halves"
    rounds = 0
    dtypes = (FLOAT32,)
    bias = 4000

    def values_per_word(self, dtype: "np.dtype[Any]") -> int:
        return 2

    def begin(self, shape: CallShape) -> Any:
        return _Halves(self.bias, shape.workers)


class _Halves:
    def __init__(self, bias: int, workers: int) -> None:
        self.bias, self.workers = bias, workers

    def encode(self, values: Any, rows: Any) -> Any:
        codes = (np.rint(values * 4).astype(np.int32) + self.bias).reshape(len(values), -1, 2)
        return codes[:, :, 0] | codes[:, :, 1] << 16

    def decode(self, words: Any, rows: Any) -> Any:
        sums = np.stack([words & 0xFFFF, words.view(np.uint32) >> 16], axis=2).reshape(len(words), -1)
        return ((sums.astype(np.int64) - self.bias * self.workers) / 4).astype(np.float32)


class Deaf(Halves):
    """One whose words don't add."""

    name = "deaf"
    adds = False


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Codec:
    for codec in (Halves(), Deaf()):
        monkeypatch.setitem(CODECS, codec.name, codec)
    return CODECS["halves"]


def quarters(rank: int, size: int = 1003) -> Any:
    return (np.random.default_rng(rank).integers(-4000, 4001, size) / 4).astype(np.float32)


TOTAL = np.sum([quarters(rank) for rank in range(WORKERS)], axis=0)


def test_chunks(halves: Codec) -> None:
    """W3, W4: half as many, and no scale chunks among them."""
    job = JobConfig(1, 1, WORKERS, ELEMENTS, (StreamConfig(0, 4),))
    arrays = [quarters(rank) for rank in range(WORKERS)]
    calls = [chunked_call(array_call(array, "sum", job, halves), job) for array in arrays]
    assert calls[0].chunks == calls[0].ready_chunks == -(-1003 // (2 * ELEMENTS))
    order = random.Random(1).sample(range(calls[0].chunks), calls[0].chunks)
    for chunk in order:
        assert calls[0].kind(chunk) == kind_of(Op.SUM, 0)
        total = np.sum([call.read([chunk]) for call in calls], axis=0, dtype=np.uint32).view(np.int32)
        for call in calls:
            call.write([chunk], total)
    assert all((array == TOTAL).all() for array in arrays)


def test_types_it_does_not_take_are_sent_without_it(halves: Codec) -> None:
    assert [codec_for(np.dtype(name), halves) for name in ("float32", "float64", "int64", "int8")] == [
        halves, FIXED_POINT, PLAIN, None,
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["switch", "ring", "tree", "ps", "auto"])
def test_virtual_time(method: str, halves: Codec) -> None:
    """Sums are right, of real values, and of the bytes on the wire half are left."""
    config = SimulationConfig(WORKERS, LinkConfig(10**9, 10_000), elements=ELEMENTS * 20, servers=2 * (method == "ps"))
    told = {codec: time_allreduce(replace(config, codec=codec), method, 400_000, "float32") for codec in ("", "halves")}
    whole, half = (sum(told[codec].wire_tx_bytes) for codec in ("", "halves"))
    assert told["halves"].wrong_elements == told[""].wrong_elements == 0
    assert 0.45 < half / whole < 0.55


@pytest.mark.parametrize("method", ["ring", "ps"])
def test_host_groups(method: str, halves: Codec) -> None:
    options = {"codec": "halves", "codec_elements": ELEMENTS}
    with open_group(method, "tcp", 0, free_addresses(1), job="toy", options=options) as group:
        assert (group.allreduce(quarters(0)).result(SOON_S) == quarters(0)).all()
        doubles = np.linspace(0, 1, 9)
        assert (group.allreduce(doubles.copy()).result(SOON_S) == doubles).all()


@pytest.mark.filterwarnings("ignore:the Python core carries")
def test_a_session_uses_it_on_the_python_core(halves: Codec) -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=512)) as daemon:
        place = (daemon.control_endpoint, "toy", 0, 1)
        with SwitchSession.join(*place, JoinOptions(bind="127.0.0.1", window_slots=64, codec="halves")) as session:
            assert session.core == "python"
            assert (session.allreduce(quarters(0)).result(SOON_S) == quarters(0)).all()
            assert session.allreduce(np.array([0.1])).result(SOON_S).tolist() == [0.1]
        for name, how, fault in (
            ("halves", {"core": "native"}, missing() or "codec halves is not in the compiled core"),
            ("deaf", {}, "codec deaf: its words can't be summed"),
            ("morse", {}, f"codec 'morse' is unknown; allowed: {', '.join(names())}"),
        ):
            with pytest.raises(Exception, match=fault.replace(".", r"\.")):
                SwitchSession.join(*place, JoinOptions(bind="127.0.0.1", codec=name, **how))  # type: ignore[arg-type]


def test_bits_and_shares(halves: Codec) -> None:
    assert [FIXED_POINT.bits(FLOAT32), FIXED_POINT.bits(FLOAT64), halves.bits(FLOAT32)] == [32, 64, 16]
    assert share_of_chunks(INT32, 360) == 1
    assert share_of_chunks(FLOAT32, 360) == 360 / 361
    assert share_of_chunks(FLOAT64, 360) == pytest.approx(2 / 3 * 360 / 361)
    assert share_of_chunks(FLOAT32, 360, halves) == 2
    assert share_of_chunks(FLOAT64, 360, halves) == share_of_chunks(FLOAT64, 360)
    assert share_of_rounds(FLOAT32, 360, FIXED_POINT) == 360 / 361
    assert share_of_rounds(FLOAT32, 360, halves) == 2


@pytest.mark.parametrize("method", ["switch", "ring", "tree@udp", "ps@rdma"])
def test_bounds(method: str, halves: Codec) -> None:
    """Half the bits on the wire, and no scale chunks: the bound of floats is twice that of integers."""
    name, coded, network = parse(method), parse(f"{method}~halves"), NetworkParameters(4, 10**9, 1500, 360)
    assert algbw_bound(coded, "float32", network) == 2 * algbw_bound(name, "int32", network)
    assert algbw_bound(coded, "int32", network) == algbw_bound(name, "int32", network)
    efficiency = [bound(one, 10**6, network).framing_efficiency for one in (coded, name)]
    assert efficiency[0] == pytest.approx(efficiency[1] * (2 * 361 / 360 if method == "switch" else 2))


def test_names() -> None:
    assert all(codec_named(name).name == name for name in CODECS)
