"""Fidelity levels flow and formula: their times beside packets', bytes and sums, and what they leave to packets."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from emulation.cli import compare_console as console
from emulation.scenario.scenario import SHIPPED_FOLDER, ScenarioError, load
from emulation.scenario.topologies.topology import Fabric
from emulation.sim import fidelity_level
from emulation.sim.flow import flow_methods
from emulation.sim.flow.fair import by_priority, max_min
from emulation.sim.flow.flow_methods import FLOWS
from emulation.sim.flow.flow_simulation import FlowSimulation, NotDescribed
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.size_only import SizeOnlyArray
from transport.group.method_name import parse

GIGABIT_10 = LinkConfig(10_000_000_000, 5_000)
RACKS = Fabric("leaf_spine", racks=2)


def times(simulation: Simulation, launches: list[tuple[int, int, int]], **how: Any) -> tuple[list[int], list[int]]:
    """When each of (start in ns, rank, bytes) is done, and the bytes that ranks have sent in the end."""
    done_ns = [0] * len(launches)
    left = len(launches)

    def launch(number: int) -> None:
        _, rank, size_bytes = launches[number]

        def done() -> None:
            nonlocal left
            done_ns[number] = simulation.network.now_ns
            left -= 1
            if not left:
                simulation.network.stop()

        simulation.launch(rank, SizeOnlyArray(size_bytes // 4, np.float32), "sum", done, **how)

    for number, (start_ns, _, _) in enumerate(launches):
        simulation.network.schedule(start_ns, lambda _frame, number, _to: launch(number), None, number)
    simulation.run("the end")
    return done_ns, [simulation.wire_bytes(rank)[0] for rank in range(simulation.config.workers)]


def both(method: str, config: SimulationConfig, launches: list[tuple[int, int, int]]) -> tuple[float, bool]:
    """Flow's last end over packets', less 1; and whether all ranks sent the same bytes."""
    exact, bytes_exact = times(SIMULATIONS[method](config), launches)
    flow, bytes_flow = times(FLOWS[method](config), launches)
    return max(flow) / max(exact) - 1, bytes_exact == bytes_flow


def test_rates_are_max_min_fair():
    # Two links of rate 1; flows over the first, over both, over the second at most at 0.2.
    use, most = np.array([[1.0, 0], [1, 1], [0, 1]]), np.array([1.0, 1, 0.2])
    assert max_min(use, most, np.ones(2)) == pytest.approx([0.5, 0.5, 0.2])
    assert by_priority(use, most, [1, 0, 1], 2) == pytest.approx([0, 1, 0])
    assert max_min(np.array([[2.0], [0.5]]), np.ones(2), np.ones(1)) == pytest.approx([0.25, 1])  # rates 0.5 and 0.5


@pytest.mark.parametrize(
    ("method", "fabric", "size_bytes", "error"),
    [
        ("ring", Fabric(), 100_000, 0.01),
        ("ring", RACKS, 100_000, 0.03),
        ("ring", RACKS, 400, 0.001),
        ("halving_doubling", Fabric(), 100_000, 0.02),
        ("tree", Fabric(), 100_000, 0.03),
        ("direct", Fabric(), 100_000, 0.02),
        ("switch", Fabric(), 100_000, 0.0001),
        ("switch", RACKS, 400, 0.001),
    ],
)
def test_one_call_takes_what_it_takes_by_packets(method: str, fabric: Fabric, size_bytes: int, error: float):
    config = SimulationConfig(4, GIGABIT_10, fabric)
    off, same_bytes = both(method, config, [(0, rank, size_bytes) for rank in range(4)])
    assert abs(off) <= error
    assert same_bytes


@pytest.mark.parametrize("size_bytes", [80_000, 134_000])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_other_collectives_by_the_switch(kind: str, size_bytes: int):
    config, launches = SimulationConfig(4, GIGABIT_10), [(0, rank, size_bytes) for rank in range(4)]
    exact, flow = (times(table["switch"](config), launches, kind=kind) for table in (SIMULATIONS, FLOWS))
    assert flow[0] == pytest.approx(exact[0], rel=0.001)  # of every rank: shards take turns, of 14 rows or of 16 and 8
    assert flow[1] == exact[1]


@pytest.mark.parametrize("own_servers", [0, 1])
@pytest.mark.parametrize("push_then_pull", [False, True])
def test_parameter_servers(own_servers: int, push_then_pull: bool):
    config = SimulationConfig(3, GIGABIT_10, servers=own_servers, ps={"push_then_pull": push_then_pull})
    off, _ = both("ps", config, [(0, rank, 150_000) for rank in range(3)])
    assert abs(off) <= 0.03


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_calls_at_once_share_links_and_wait_for_the_last_rank(method: str):
    config = SimulationConfig(3, GIGABIT_10)
    launches = [(start_ns + 20_000 * rank, rank, 100_000) for start_ns in (0, 30_000, 60_000) for rank in range(3)]
    off, same_bytes = both(method, config, launches)
    assert abs(off) <= 0.03
    assert same_bytes


def test_the_window_bounds_the_rate():
    config = SimulationConfig(3, LinkConfig(10_000_000_000, 100_000), window_slots=16)
    off, _ = both("switch", config, [(0, rank, 200_000) for rank in range(3)])
    assert abs(off) <= 0.001


@pytest.mark.parametrize("method", ["ring", "halving_doubling", "torus"])
def test_phases_of_equal_ranks_are_as_their_messages(method: str, monkeypatch: pytest.MonkeyPatch):
    config = SimulationConfig(16, GIGABIT_10, Fabric("leaf_spine", racks=4))
    sizes = (3_000_000, 8_000)  # links' rates decide, or latencies
    by_messages = [fidelity_level.flow_seconds(FLOWS[method](config), size_bytes) for size_bytes in sizes]
    monkeypatch.setattr(flow_methods, "MESSAGES_MOST", 0)
    by_phases = [fidelity_level.flow_seconds(FLOWS[method](config), size_bytes) for size_bytes in sizes]
    assert by_phases == pytest.approx(by_messages, rel=0.03)


def test_all_ranks_at_once_are_as_each_for_itself():
    config = SimulationConfig(8, GIGABIT_10, Fabric("leaf_spine", racks=2))
    for method in ("ring", "switch", "tree"):
        apart, _ = times(FLOWS[method](config), [(0, rank, 300_000) for rank in range(8)])
        assert fidelity_level.flow_seconds(FLOWS[method](config), 300_000) == max(apart) / 1e9


def sums(make: type[Simulation] | FlowSimulation, config: SimulationConfig, dtype: str) -> list[np.ndarray]:
    """What all ranks have after an allreduce of values that only sums in one order give the same bits."""
    simulation, source = make(config), np.random.default_rng(3)  # type: ignore[operator]
    arrays = [(source.standard_normal(3_000) * 100).astype(dtype) for _ in range(config.workers)]
    left = [config.workers]

    def done() -> None:
        left[0] -= 1
        if not left[0]:
            simulation.network.stop()

    for rank, array in enumerate(arrays):
        simulation.launch(rank, array, "sum", done)
    simulation.run("the sums")
    return arrays


@pytest.mark.parametrize(
    ("method", "codec", "dtype"),
    [("switch", "", "float32"), ("switch", "lanes8", "float32"), ("ring", "lanes8", "float32"), ("ring", "", "int32")],
)
def test_sums_have_the_bits_of_packets(method: str, codec: str, dtype: str):
    config = SimulationConfig(3, GIGABIT_10, codec=codec)
    for one, other in zip(sums(SIMULATIONS[method], config, dtype), sums(FLOWS[method], config, dtype), strict=True):
        assert one.tobytes() == other.tobytes()


def test_plain_floats_are_added_in_the_order_of_ranks():
    config, source = SimulationConfig(3, GIGABIT_10), np.random.default_rng(3)
    arrays = [(source.standard_normal(3_000) * 100).astype(np.float32) for _ in range(3)]
    expected = arrays[0] + arrays[1] + arrays[2]
    assert all(array.tobytes() == expected.tobytes() for array in sums(FLOWS["ring"], config, "float32"))


@pytest.mark.parametrize(
    ("method", "changes", "reason"),
    [
        ("ring", {"link": LinkConfig(10**9, loss=0.01)}, "lose"),
        ("switch", {"backups": 1}, "partial"),
        ("ps", {"ps": {"mode": "asp"}}, "asynchronous"),
        ("ring", {"fabric": Fabric("leaf_spine", racks=2, spines=2, paths="hash")}, "hash"),
    ],
)
def test_what_needs_packets_is_refused(method: str, changes: dict[str, object], reason: str):
    with pytest.raises(NotDescribed, match=reason):
        FLOWS[method](dataclasses.replace(SimulationConfig(4, GIGABIT_10), **changes))  # type: ignore[arg-type]


def test_the_formula_is_the_busiest_link_and_a_latency_for_each_message():
    config = SimulationConfig(4, GIGABIT_10)
    simulation = FLOWS["ring"](config, by_formula=True)
    seconds = fidelity_level.flow_seconds(simulation, 100_000)
    wire_bytes = 2 * 3 / 4 * 100_000 * 1514 / 1448
    latency = 2 * 3 * 2 * 5e-6
    assert seconds == pytest.approx(wire_bytes * 8e-10 + latency, rel=0.02)


def test_auto_takes_the_finest_that_is_fast_enough(monkeypatch: pytest.MonkeyPatch):
    """And what needs packets gets them, with the reason."""
    taken = {}
    for packet_s, flow_s in ((1.0, 1.0), (100.0, 1.0), (100.0, 100.0)):
        monkeypatch.setattr(fidelity_level, "seconds_by_packets", lambda *_, s=packet_s: s)
        monkeypatch.setattr(fidelity_level, "_seconds_by_flows", lambda *_, s=flow_s: s)
        scenario = load(
            SHIPPED_FOLDER / "quickstart.toml", {"virtual_time.fidelity_level": "auto", "virtual_time.within_s": 10}
        )
        config = SimulationConfig(4, GIGABIT_10)
        found = fidelity_level.fidelity_level_of(scenario, parse("ring"), config, 1_000_000)
        taken[packet_s, flow_s] = found.name
        assert f"Fidelity level auto took {found.name}" in found.notes[1]
    assert list(taken.values()) == ["packet", "flow", "formula"]
    lossy = load(SHIPPED_FOLDER / "lossy.toml", {"virtual_time.fidelity_level": "flow"})
    refused = fidelity_level.fidelity_level_of(
        lossy, parse("ring"), SimulationConfig(4, LinkConfig(10**9, loss=0.01)), 1_000_000
    )
    assert refused.name == "packet"
    assert "Fidelity level packet, not flow: links lose" in refused.notes[1]


def test_the_command_says_what_fidelity_level_belongs_to():
    assert console.fidelity_overrides("auto", 3, None) == {
        "virtual_time.fidelity_level": "auto",
        "virtual_time.within_s": 3,
    }
    assert console.fidelity_overrides(None, 3, "sim") == {
        "virtual_time.fidelity_level": "auto",
        "virtual_time.within_s": 3,
    }
    with pytest.raises(ScenarioError, match="Mininet sends real packets"):
        console.fidelity_overrides("flow", None, "mininet")
    with pytest.raises(ScenarioError, match="--within: it belongs to --fidelity-level auto, not flow"):
        console.fidelity_overrides("flow", 3, None)
