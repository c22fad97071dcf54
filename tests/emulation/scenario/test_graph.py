"""Workload graphs: what makers make of a model, what can't be, and their iterations in virtual time."""

from pathlib import Path
from typing import Any

import pytest

from emulation.results.results import MethodResult, document
from emulation.scenario.compute import ComputeTimes
from emulation.scenario.profiles import makers
from emulation.scenario.profiles.graph import COMPUTE, RECEIVE, SEND, WORLD, GraphOperation, WorkloadGraph
from emulation.scenario.profiles.model_profile import decode, load
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.scenario import Scenario, ScenarioError, parse
from emulation.sim.network.simulation import Simulation, SimulationConfig
from emulation.sim.network.simulations import SIMULATIONS
from emulation.sim.network.timing import time_allreduce
from emulation.sim.replay.graph_training import GraphTraining
from emulation.sim.simulated_run import run_method, simulation_config
from tests.oracles.oracle_network import OracleConfig
from transport.group.method_name import parse as parse_method

MODEL = """
name = "small"
batch = 4
layers = [
    { name = "a", tensors = { w = 2000 }, forward_ns = 100_000, backward_ns = 200_000, output = 500, cut = "column" },
    { name = "b", tensors = { w = 4000, z = 8 }, forward_ns = 60_000, backward_ns = 120_000, output = 300, cut = "row"},
    { name = "n", tensors = { w = 20 }, forward_ns = 10_000, backward_ns = 20_000, output = 300 },
    { name = "c", tensors = { w = 9000 }, forward_ns = 30_000, backward_ns = 60_000, output = 100, cut = "column" },
    { name = "d", tensors = { w = 3000 }, forward_ns = 20_000, backward_ns = 40_000, output = 700, cut = "row" },
]
"""
model = decode(MODEL, "small.toml")


def scenario(tmp_path: Path, **overrides: Any) -> Scenario:
    (tmp_path / "small.toml").write_text(MODEL)
    text = 'name = "t"\ntitle = "t"\n[methods]\nmininet = []\nsim = ["ring"]\n[workload]\nprofile = "small.toml"\n'
    given = {
        "topology.workers": 4,
        "topology.rate_bps": 10**9,
        "workload.iterations": 3,
        "workload.warmup_iterations": 1,
    }
    return parse(text, "t.toml", {**given, "workload.bucket_bytes": 20_000, **overrides}, tmp_path)


def ran(given: Scenario, method: str) -> MethodResult:
    return run_method(given, parse_method(method, virtual=True), Path(), lambda *_: None)


def replayed(given: Scenario, graph: WorkloadGraph, method: str = "ring") -> MethodResult:
    def made(config: SimulationConfig) -> Simulation:
        return SIMULATIONS[method](config)

    def beside(other: str, config: SimulationConfig, shared: Any) -> Simulation:
        return SIMULATIONS[other](config, shared)

    compute = ComputeTimes(given, tuple(map(graph.compute_ns, range(graph.ranks))))
    training = GraphTraining(given, graph, simulation_config(given), method, made, beside, compute, lambda *_: None)
    training.run()
    return training.result(parse_method(method), [])


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_the_graph_of_ddp_takes_as_long_as_ddp(tmp_path: Path, method: str) -> None:
    given = scenario(tmp_path)
    graph, plain = replayed(given, makers.ddp(model, 4, 20_000), method), ran(given, method)
    assert [each.duration_ns for each in graph.iterations] == [each.duration_ns for each in plain.iterations]
    assert [each.communication_ns for each in graph.iterations] == [each.communication_ns for each in plain.iterations]
    assert graph.wire_tx_bytes_per_rank == plain.wire_tx_bytes_per_rank
    assert graph.gradient_bytes == plain.gradient_bytes == 4 * 18_028


def test_makers_move_what_their_way_of_sharing_does() -> None:
    graph = makers.fsdp(model, 4, 20_000)
    padded = 4 * (6008 + 9020 + 3000)  # units a+b, n+c, d; elements by four ranks
    assert graph.moved(0) == {"all_gather": 2 * padded, "reduce_scatter": padded}
    assert graph.compute_ns(0) == model.compute_ns

    graph = makers.tensor_parallel(model, 4, 2, 1 << 30)
    activations = 4 * 4 * (300 + 700 + 300)  # outputs of b and d, and of what c has for inputs; a has the images
    gradients = 4 * (1000 + 2004 + 20 + 4500 + 1500)
    assert graph.moved(0) == {"allreduce": activations + gradients}
    assert graph.compute_ns(3) == 30_000 + (300_000 + 180_000 + 90_000 + 60_000) // 2
    assert [members for name, members in graph.used_groups() if name == makers.MODEL] == [(0, 1), (2, 3)]
    assert [members for name, members in graph.used_groups() if name == makers.REPLICAS] == [(0, 2), (1, 3)]

    graph = makers.pipeline_parallel(model, 4, 2, micro_batches=4)
    assert graph.pairs() == [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert graph.moved(0)["send"] == graph.moved(1)["receive"] == 4 * 4 * 500
    assert [graph.moved(rank)["allreduce"] for rank in (0, 1)] == [4 * 2000, 4 * 16_028]
    assert graph.compute_ns(0) + graph.compute_ns(1) == model.compute_ns
    order = [each.name for each in graph.program(0) if each.kind == COMPUTE][:5]
    assert order == ["forward 0", "forward 1", "backward 0", "forward 2", "backward 1"]


def test_tensors_stages_and_replicas_at_once() -> None:
    graph = makers.three_d(model, 8, degree=2, stages=2, micro_batches=2, bucket_bytes=1 << 30)
    assert graph.program_of == (0, 0, 0, 0, 1, 1, 1, 1)
    groups = {name: [members for other, members in graph.used_groups() if other == name] for name in graph.groups}
    assert groups[makers.MODEL] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert groups[makers.REPLICAS] == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert graph.pairs() == sorted((rank, (rank + 4) % 8) for rank in range(8))
    between = 4 * 4 * 300  # behind b; not behind a, of whose outputs no rank has all
    first = 4 * (4 * 300 + 1000 + 2004)  # outputs of b; gradients of both
    last = 4 * (4 * 700 + 4 * 300 + 20 + 4500 + 1500)  # outputs of d, gradients of what c has for inputs, gradients
    for rank, size in ((3, first), (4, last)):
        assert graph.moved(rank) == {"allreduce": size, "send": between, "receive": between}
    assert [graph.compute_ns(rank) for rank in (0, 7)] == [480_000 // 2, 30_000 + 150_000 // 2]
    with pytest.raises(ProfileError, match="8 workers are no whole number of groups of 2 x 3"):
        makers.three_d(model, 8, 2, 3)
    with pytest.raises(ProfileError, match="4 stages of 3 layers"):
        makers.three_d(model, 8, 2, 4)


def test_the_gradients_of_llama_are_each_summed_once() -> None:
    llama = load("llama7b")
    graph = makers.three_d(llama, 16, degree=2, stages=4, micro_batches=1)
    summed = sum(each.elements for rank in range(16) for each in graph.program(rank) if each.group == makers.REPLICAS)
    parts = [sum(layer.elements for layer in llama.layers if bool(layer.cut) is cut) for cut in (True, False)]
    assert sum(parts) == 6_738_415_616
    assert summed == 2 * (parts[0] + 2 * parts[1])  # two replicas; what isn't cut is on both ranks


def test_makers_refuse_what_a_model_does_not_say() -> None:
    vision = load("alexnet")
    with pytest.raises(ProfileError, match="alexnet: no layer has cut = 'row'"):
        makers.tensor_parallel(vision, 4)
    with pytest.raises(ProfileError, match="4 workers are no whole number of groups of 3"):
        makers.pipeline_parallel(model, 4, 3)
    with pytest.raises(ProfileError, match="9 stages of 5 layers"):
        makers.pipeline_parallel(model, 9)
    with pytest.raises(ProfileError, match="5 micro-batches of a batch of 4"):
        makers.pipeline_parallel(model, 2, micro_batches=5)


@pytest.mark.parametrize("method", ["ring", "switch"])
@pytest.mark.parametrize("parallel", ["fsdp", "tp", "pp", "3d"])
def test_every_way_of_sharing_is_replayed(tmp_path: Path, method: str, parallel: str) -> None:
    degree = {"workload.degree": 1 if parallel == "3d" else 2} if parallel != "fsdp" else {}
    degree |= {"workload.stages": 2} if parallel == "3d" else {}
    given = scenario(
        tmp_path, **{"workload.parallel": parallel, **degree, "faults.loss": 0.002, "topology.delay_ns": 1000}
    )
    result = ran(given, method)
    first, *others = [each.duration_ns for each in result.iterations]
    least_ns = max(map(given.replayed.compute_ns, range(4)))  # type: ignore[union-attr]
    assert all(each > least_ns for each in (first, *others))
    built = document(given, "sim", [result])
    assert built["methods"][0]["summary"]["share_of_bound"] <= 1
    assert result.environment["operations"]["compute"] > 4


def test_processors_of_a_rank_compute_at_once(tmp_path: Path) -> None:
    program = tuple(
        GraphOperation(COMPUTE, "c", needs, 1000 * micros, unit=unit)
        for micros, unit, needs in ((50, 0, ()), (30, 1, ()), (40, 1, ()), (10, 0, (1,)))
    )
    graph = WorkloadGraph("two", (program,), (0,) * 4)
    assert graph.compute_ns(0) == 70_000
    assert [each.duration_ns for each in replayed(scenario(tmp_path), graph).iterations] == [70_000] * 3


def test_messages_take_what_their_links_take(tmp_path: Path) -> None:
    """From rank 0 to rank 3 through a switch, and on to rank 1, each behind some computing."""

    def compute(needs: tuple[int, ...] = ()) -> GraphOperation:
        return GraphOperation(COMPUTE, "c", needs, 50_000)

    first = (compute(), GraphOperation(SEND, "s", (0,), elements=25_000, peer=3))
    last = (
        GraphOperation(RECEIVE, "r", elements=25_000, peer=-3),
        compute((0,)),
        GraphOperation(SEND, "t", (1,), elements=25_000, peer=-2),
    )
    middle = (GraphOperation(RECEIVE, "u", elements=25_000, peer=2),)
    graph = WorkloadGraph("relay", (first, middle, (), last), (0, 1, 2, 3))
    took = [each.duration_ns for each in replayed(scenario(tmp_path), graph).iterations]
    bits = 25_000 * 32 * 1e9 / 1e9
    assert 2 * bits + 100_000 < took[0] < 2.3 * bits + 100_000


def test_collectives_of_groups_run_beside_each_other(tmp_path: Path) -> None:
    """Two pairs on one star have links of their own: they take as long as one pair alone."""
    size = GraphOperation("allreduce", "x", elements=50_000, group="pairs")
    graph = WorkloadGraph("pairs", ((size,),), (0,) * 4, {"pairs": ((0, 1), (2, 3))})
    given = scenario(tmp_path)
    for method in ("ring", "switch"):
        alone = time_allreduce(
            simulation_config(scenario(tmp_path, **{"topology.workers": 2})), method, 200_000, "float32"
        )
        assert replayed(given, graph, method).iterations[0].duration_ns == alone.duration_ns


def test_every_collective_is_replayed(tmp_path: Path) -> None:
    kinds = ("allreduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
    took = {}
    for kind in kinds:
        graph = WorkloadGraph(kind, ((GraphOperation(kind, elements=40_000),),), (0,) * 4)
        result = replayed(scenario(tmp_path), graph)
        took[kind] = result.iterations[0].duration_ns
        sent = sum(result.wire_tx_bytes_per_rank) / 2
        share = {"allreduce": 6, "broadcast": 3}.get(kind, 3)  # of the array, all ranks together
        assert share * 160_000 < sent < 1.12 * share * 160_000
    assert took["allreduce"] > 1.9 * took["all_gather"]


def test_a_straggler_holds_up_all(tmp_path: Path) -> None:
    late, quick = [{"rank": 1, "factor": 3}], {"workload.parallel": "fsdp", "topology.rate_bps": 10**10}
    slow = ran(scenario(tmp_path, **quick, **{"faults.stragglers": late}), "ring")
    fast = ran(scenario(tmp_path, **quick), "ring")
    assert slow.iterations[1].compute_ns == 3 * fast.iterations[1].compute_ns
    assert slow.iterations[1].duration_ns > 2 * fast.iterations[1].duration_ns


def compute(*needs: int) -> GraphOperation:
    return GraphOperation(COMPUTE, "x", needs, 1)


SUM = GraphOperation("allreduce", "s", elements=4)


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ([(compute(1), compute(0))], r"rank 0, operation 0 \(x\): waits for itself: a cycle of dependencies"),
        ([(GraphOperation("allreduce", "s", (1,), elements=4), SUM)], "waits for itself"),
        ([(compute(5),)], "needs operation 5, which there isn't"),
        ([(GraphOperation(COMPUTE, duration_ns=-1),)], "-1 ns; allowed: 0"),
        ([(GraphOperation("reduce", elements=1),)], "kind 'reduce' is unknown; allowed: compute, send"),
        ([(GraphOperation("allreduce", elements=0),)], "0 elements"),
        ([(GraphOperation("allreduce", elements=1, group="g"),)], "group 'g' is unknown"),
        ([(SUM,), ()], "group world: 1 collectives on rank 0, 0 on rank 1"),
        (
            [(SUM,), (GraphOperation("broadcast", elements=4),)],
            "collective 0: allreduce of 4 elements on rank 0, broadcast of 4",
        ),
        (
            [(GraphOperation(SEND, elements=4, peer=1),), ()],
            "rank 0 to rank 1, tag 0: 1 sends of 4 elements, 0 receives of 0",
        ),
        ([(GraphOperation(RECEIVE, "r", elements=4, peer=-1),)], "rank 0: receive r: no rank -1"),
        ([], "0 ranks"),
    ],
)
def test_graphs_that_cannot_be(programs: list[tuple[GraphOperation, ...]], message: str) -> None:
    with pytest.raises(ProfileError, match=f"^g: .*{message}"):
        WorkloadGraph("g", tuple(programs), tuple(range(len(programs))))
    with pytest.raises(ProfileError, match="g: group p: ranks must be 0 … 0, each in one set at most"):
        WorkloadGraph("g", ((),), (0,), {"p": ((0, 0),)})
    assert WorkloadGraph("g", ((SUM,),), (0, 0)).groups[WORLD] == ((0, 1),)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"methods.sim": ["ring+p3"]},
            r"\[methods\] sim: ring\+p3: a workload graph is more than sums of gradients, not for",
        ),
        ({"methods.sim": ["ps"]}, "sim: ps: a workload graph"),
        ({"workload.degree": 3}, "4 workers are no whole number of groups of 3"),
        ({"jobs": [{"name": "a"}]}, r"\[\[jobs\]\]: not beside a workload graph"),
    ],
)
def test_scenarios_that_a_graph_cannot_have(tmp_path: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^t\.toml: .*{message}"):
        scenario(tmp_path, **{"workload.parallel": "tp", **overrides})
    with pytest.raises(ScenarioError, match=r"\[workload\] parallel: it needs a profile; allowed: ddp without one"):
        parse('name = "t"\ntitle = "t"\n', "t.toml", {"workload.parallel": "tp"})


@pytest.mark.parametrize("parallel", ["fsdp", "tp", "pp"])
def test_flows_take_what_packets_do(tmp_path: Path, parallel: str) -> None:
    degree = {"workload.degree": 2} if parallel != "fsdp" else {}
    given = {"workload.parallel": parallel, **degree, "topology.delay_ns": 1000}
    packets = ran(scenario(tmp_path, **given), "ring").iterations[1].duration_ns
    flows = (
        ran(scenario(tmp_path, **given, **{"virtual_time.fidelity_level": "flow"}), "ring").iterations[1].duration_ns
    )
    assert flows == pytest.approx(packets, rel=0.1)


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_the_network_and_its_oracle_replay_a_trace_of_others_alike(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that overlap, all-to-alls among hosts beside the switch's sums, and losses."""
    rows = ("a -1 9000 ALLREDUCE 40960 20 NONE 0 30 ALLREDUCE 80000 10", "b -1 5 ALLTOALL_EP 10240 7 NONE 0 0 NONE 0 0")
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 all_gpus: 8"
    (tmp_path / "w.txt").write_text("\n".join((head, "2", *rows)))
    given = {"workload.profile": "w.txt", "topology.workers": 8, "faults.loss": 0.002}
    found = []
    for kinds in (SimulationConfig.network_kinds, OracleConfig.network_kinds):
        monkeypatch.setattr(SimulationConfig, "network_kinds", kinds)
        result = ran(scenario(tmp_path, **given), method)
        found.append(
            (result.retransmissions, result.wire_tx_bytes_per_rank, [each.duration_ns for each in result.iterations])
        )
    assert found[0] == found[1]
    assert found[0][0] > 0


def test_a_rank_computes_one_thing_at_a_time(tmp_path: Path) -> None:
    """While it receives another: what is independent overlaps with the network alone."""
    first = (
        *(GraphOperation(COMPUTE, "c", (), 100_000) for _ in range(3)),
        GraphOperation(RECEIVE, "r", elements=5000, peer=1),
    )
    graph = WorkloadGraph("g", (first, (GraphOperation(SEND, "s", elements=5000, peer=-1),)), (0, 1))
    took = replayed(scenario(tmp_path, **{"topology.workers": 2}), graph).iterations[1].duration_ns
    assert 300_000 <= took < 330_000  # 20 kB take 167 µs


TENANT = """num_ranks 2
rank 0 {
a: calc 40000
b: send 30000b to 1 tag 0
b requires a
}
rank 1 {
c: recv 30000b from 0 tag 0
}
"""


@pytest.mark.parametrize("method", ["ring", "switch"])
def test_a_tenant_replays_a_goal_file_beside_the_job(tmp_path: Path, method: str) -> None:
    (tmp_path / "tenant.goal").write_text(TENANT)
    given = {"topology.queue_bytes": 300_000}
    alone = ran(scenario(tmp_path, **given), method)
    jobs = [
        {"name": "other", "profile": "tenant.goal", "on": [2, 0]},
        {"name": "own", "profile": "tenant.goal", "sums": 3},
    ]
    beside = ran(scenario(tmp_path, **given, jobs=jobs), method)
    assert beside.iterations[1].duration_ns > alone.iterations[1].duration_ns
    _, other, own = beside.tenants["jobs"]
    assert (own["sums"], own["wrong_elements"], own["method"]) == (3, 0, "direct")
    assert own["sum_ns"]["median"] >= 40_000
    assert own["ended_ns"] > 40_000 + 3 * 240_000  # 30 kB at 1 Gb/s; computing goes on meanwhile
    assert other["sums"] > 5
    assert other["ended_ns"] is None


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"profile": "gone.goal"}, r"\[\[jobs\]\] profile: .*gone\.goal: cannot be read"),
        ({"profile": "tenant.goal", "workers": 3}, r"tenant\.goal: 2 ranks, but the scenario has 3 workers"),
        ({"profile": "tenant.goal", "size_bytes": 4}, r"\[\[jobs\]\] size_bytes: 4 is of sums"),
        ({"profile": "sums.txt"}, "it has collectives; allowed beside a job: sends and receives alone"),
        ({"profile": "small.toml"}, "it has collectives; allowed beside a job: sends and receives alone"),
    ],
)
def test_tenants_that_cannot_be(tmp_path: Path, job: dict[str, Any], message: str) -> None:
    head = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 all_gpus: 2"
    (tmp_path / "sums.txt").write_text(f"{head}\n1\na -1 9 ALLREDUCE 4096 20 NONE 0 30 NONE 0 10\n")
    (tmp_path / "tenant.goal").write_text(TENANT)
    with pytest.raises(ScenarioError, match=message):
        scenario(tmp_path, jobs=[{"name": "a", **job}])
