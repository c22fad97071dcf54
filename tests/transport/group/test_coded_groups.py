"""Sums through a codec: every method gives the bits of the switch, in whatever order it adds (F7)."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest
from rank_threads import outcomes

from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from switchagg.calls.call_request import own_shard
from switchagg.errors import JobError
from tests.transport.contracts.meshes import free_addresses
from transport.contracts.group_contract import Group
from transport.group.group_opening import open_group
from transport.group.ps_group import open_ps_server
from transport.ps.config import PsConfig
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

LIVENESS_S = 120.0
WORKERS, ELEMENTS = 4, 32
KEYS = [3, None, 0, 7]  # one call has its running number


def on_every_rank(method: str, act: Callable[[int, Group], Any], servers: int = 0, **more: Any) -> list[Any]:
    """What `act` returned or raised on each rank."""
    addresses = free_addresses(WORKERS + servers)
    places = {"servers": addresses[WORKERS:]} if servers else {}
    options = {"timeout_s": LIVENESS_S, **more}

    def run(rank: int) -> Any:
        if rank >= WORKERS:
            return serve(rank - WORKERS)
        mine = {name: value[rank] if isinstance(value, list) else value for name, value in options.items()}
        link = "udp" if method == "switch" else "tcp"
        with open_group(method, link, rank, addresses[:WORKERS], job=method, options=mine, **places) as group:
            return act(rank, group)

    def serve(server: int) -> None:
        with_ = PsConfig(WORKERS, servers, codec=f"codec fixed_point of {ELEMENTS} elements")
        host = open_ps_server("tcp", server, addresses[:WORKERS], addresses[WORKERS:], config=with_, job=method)
        host.wait(LIVENESS_S)
        host.close()

    return outcomes(WORKERS + servers, run)[:WORKERS]


def values(rank: int, dtype: str, size: int = 1000) -> Any:
    """Of all magnitudes, so that in floats the order of addition matters."""
    random = np.random.default_rng([rank, size])
    found = random.standard_normal(size) * 10.0 ** random.integers(-6, 4, size)
    found[5] = np.nan if rank == 2 else 1
    return found.astype(dtype)


def sums(rank: int, group: Group) -> list[bytes]:
    """Several calls at once, some with keys, in another order on each rank where that may be."""
    arrays = [values(rank, dtype, 900 + 40 * n) for n, dtype in enumerate(("float32", "float64", "float16", "float32"))]
    arrays[3][:] = 0.1  # the fourth is summed as a mixture of two codes
    arrays[3][::64] = 1e20
    kept: dict[int, Future[Any]] = {}
    for number in ((0, 1, 2, 3), (2, 3, 0, 1))[rank % 2 if group.matching == "key" else 0]:
        kept[number] = group.allreduce(arrays[number], key=KEYS[number])
    part = values(rank, "float32", 333)
    own = group.reduce_scatter(part).result(LIVENESS_S).copy()
    whole = group.all_gather(_placed(own, rank, 333)).result(LIVENESS_S)
    return [kept[number].result(LIVENESS_S).tobytes() for number in range(4)] + [whole.tobytes()]


def _placed(own: Any, rank: int, size: int) -> Any:
    whole = np.zeros(size, own.dtype)
    own_shard(whole, rank, WORKERS)[:] = own
    return whole


@pytest.fixture(scope="module")
def of_the_switch() -> list[bytes]:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096)) as daemon:
        options = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "window_slots": 64}
        found = on_every_rank("switch", sums, elements=ELEMENTS, codec="fixed_point", **options)
    assert all(one == found[0] for one in found), found
    return found[0]


@pytest.mark.parametrize(
    ("method", "servers"), [("ring", 0), ("tree", 0), ("halving_doubling", 0), ("auto", 0), ("ps", 0), ("ps", 2)]
)
def test_every_method_gives_the_bits_of_the_switch(method: str, servers: int, of_the_switch: list[bytes]) -> None:
    found = on_every_rank(method, sums, servers, codec="fixed_point", codec_elements=ELEMENTS)
    assert found == [of_the_switch] * WORKERS


def lossy_sums(rank: int, group: Group) -> list[bytes]:
    """Calls without keys, in one order."""
    arrays = [values(rank, dtype, 900 + 200 * n) for n, dtype in enumerate(("float32", "float16", "float32"))]
    pending = [group.allreduce(array) for array in arrays]
    part = group.reduce_scatter(values(rank, "float32", 333)).result(LIVENESS_S)
    whole = group.all_gather(_placed(part.copy(), rank, 333)).result(LIVENESS_S)
    return [future.result(LIVENESS_S).tobytes() for future in pending] + [whole.tobytes()]


@pytest.mark.filterwarnings("ignore:the Python core carries")
@pytest.mark.parametrize("codec", ["fixed_point", "lanes8:least=0"])
def test_bits_are_those_of_a_switch_whose_sums_are_verified(codec: str) -> None:
    """Rows are as short everywhere (V4): through a switch from both cores, by host methods, and in virtual time."""
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096)) as daemon:
        options = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "window_slots": 64, "streams": 1}
        cores = ["python", "auto", "python", "auto"]
        found = on_every_rank("switch", lossy_sums, elements=ELEMENTS, codec=codec, verify="on", core=cores, **options)
    assert all(one == found[0] for one in found), found
    for method in ("ring", "ps"):
        hosts = {"codec": codec, "codec_elements": ELEMENTS}
        assert on_every_rank(method, lossy_sums, verify="on", **hosts) == found
        assert on_every_rank(method, lossy_sums, verify="off", **hosts) != found
    link = LinkConfig(10**9, 10_000)
    config = SimulationConfig(WORKERS, link, elements=ELEMENTS, streams=1, codec=codec, verify="on")
    assert_virtual_time_has(found[0][0], config)


@pytest.mark.filterwarnings("ignore:the Python core carries")
@pytest.mark.parametrize("name", ["lanes16", "lanes8", "rotated8", "thc", "ternary"])
def test_lanes_have_the_same_bits_everywhere(name: str) -> None:
    """F9 to F11, F14: through a switch with one stream, from both cores, by host methods, and in virtual time."""
    codec = f"{name}:least=0"
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096)) as daemon:
        options = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "window_slots": 64, "streams": 1}
        cores = ["python", "auto", "python", "auto"]
        found = on_every_rank("switch", lossy_sums, elements=ELEMENTS, codec=codec, core=cores, **options)
    assert all(one == found[0] for one in found), found
    for method in ("ring", "ps"):
        assert on_every_rank(method, lossy_sums, codec=codec, codec_elements=ELEMENTS) == found
    config = SimulationConfig(WORKERS, LinkConfig(10**9, 10_000), elements=ELEMENTS, streams=1, codec=codec)
    assert_virtual_time_has(found[0][0], config)
    other = on_every_rank("ring", lossy_sums, codec=codec, codec_elements=ELEMENTS, codec_seed=1)
    assert (other == found) is codec.startswith("lanes16"), "another seed rounds otherwise, where rounding is random"


def assert_virtual_time_has(sums: bytes, config: SimulationConfig) -> None:
    """A switch and a host method in virtual time give these sums, on every rank."""
    for kind in ("switch", "halving_doubling"):
        simulation = SIMULATIONS[kind](config)
        arrays = [values(rank, "float32", 900) for rank in range(WORKERS)]
        done: list[int] = []
        for rank, array in enumerate(arrays):
            simulation.launch(rank, array, "sum", partial(_one_of_all, simulation, done))
        simulation.run(f"a sum by {kind}")
        assert [array.tobytes() for array in arrays] == [sums] * WORKERS


def _one_of_all(simulation: Simulation, done: list[int]) -> None:
    done.append(1)
    if len(done) == WORKERS:
        simulation.network.stop()


def test_a_codec_that_cannot_sum_so_many_is_refused_before_anything_is_opened() -> None:
    for method in ("ring", "ps", "switch"):
        link, options = ("udp", {"switch": "tcp://127.0.0.1:9"}) if method == "switch" else ("tcp", {})
        with pytest.raises(
            JobError, match="codec lanes4 can't sum 8 workers exactly; workers at most: lanes4 7, lanes5"
        ):
            open_group(method, link, 0, free_addresses(8), job="x", options={"codec": "lanes4", **options})


def test_without_a_codec_the_bits_are_others(of_the_switch: list[bytes]) -> None:
    """Or the test above would prove nothing."""
    assert on_every_rank("ring", sums)[0] != of_the_switch


def test_different_codecs_are_refused_naming_both() -> None:
    codecs = ["fixed_point", "fixed_point", None, "fixed_point"]
    found = on_every_rank("ring", sums, codec=codecs)
    assert all(isinstance(one, JobError) for one in found)
    assert all("codec fixed_point of 357 elements" in str(one) and "'ring'" in str(one) for one in found), found


def test_a_switch_refuses_different_codecs_naming_both() -> None:
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=4096)) as daemon:
        options = {"switch": daemon.control_endpoint, "bind": "127.0.0.1", "timeout_s": 2.0}  # C1: some are told then
        found = on_every_rank("switch", sums, codec=["fixed_point", "plain", "plain", "plain"], **options)
    assert all(isinstance(one, JobError) for one in found)
    both = ("codec is fixed_point", "says plain"), ("codec is plain", "says fixed_point")
    assert all(any(one in str(error) and two in str(error) for one, two in both) for error in found), found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"codec": "morse"}, "codec 'morse' is unknown; allowed: fixed_point"),
        ({"codec": "fixed_point", "codec_elements": 2}, "codec_elements 2: 3 to 16000"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(JobError, match=text):
        open_group("ring", "tcp", 0, free_addresses(1), job="x", options=options)


def test_a_codec_is_refused_with_servers_that_may_lose_workers() -> None:
    with pytest.raises(ValueError, match="its sums need all workers"):
        PsConfig(3, 1, mode="backup", backups=1, codec="codec x")


def test_calls_after_closing_fail_and_invalid_ones_are_refused_at_once() -> None:
    group = open_group("ring", "tcp", 0, free_addresses(1), job="x", options={"codec": "fixed_point"})
    with pytest.raises(ValueError, match="key"):
        group.allreduce(np.ones(4, np.float32), key=1 << 60)
    assert group.allreduce(np.ones(4, np.float32)).result(LIVENESS_S).tolist() == [1.0] * 4
    assert group.allreduce(np.zeros(0, np.float32)).result(LIVENESS_S).tolist() == []
    assert group.allreduce(np.ones(4, np.float32), "max").result(LIVENESS_S).tolist() == [1.0] * 4
    group.close()
    assert isinstance(group.allreduce(np.ones(4, np.float32)).exception(LIVENESS_S), Exception)
