"""Traces of others: what they hold, what is left out and said, and what is refused in one line."""

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.experiments.whatif.recorded_run import of_graph
from emulation.scenario.profiles import chakra, goal_format, simai
from emulation.scenario.profiles.graph import WorkloadGraph
from emulation.scenario.profiles.profile_errors import ProfileError
from emulation.scenario.profiles.profile_formats import load

# --- SimAI's text

HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8 checkpoints: 0 "
    "checkpoint_initiates: 0 pp_comm: 0"
)
ROWS = (
    "embedding -1 1000 ALLREDUCE 4096 2000 NONE 0 3000 ALLREDUCE 8000 100",
    "moe\t-1\t500\tALLTOALL_EP\t1024\t700\tALLTOALL_EP\t1024\t0\tREDUCESCATTER_DP_EP\t16000\t0",
    "norm -1 50 NONE 0 60 ALLGATHER 2048 0 NONE 0 0",
)
SIMAI = "\n".join((HEADER, str(len(ROWS)), *ROWS)) + "\n"


def test_a_simai_workload() -> None:
    graph = simai.decode(SIMAI, "w.txt", 8)
    assert graph.ranks == 8
    assert graph.compute_ns(5) == 1000 + 500 + 50 + 2000 + 700 + 60 + 3000 + 100
    assert graph.moved(0) == {
        "allreduce": 4096 + 8000, "all_to_all": 2048, "reduce_scatter": 16000, "all_gather": 2048,
    }  # fmt: skip
    assert [graph.members(name, 6) for name in ("tp", "dp", "ep", "dp_ep")] == [(6, 7), (0, 2, 4, 6), (4, 6), (2, 6)]
    names = [(each.kind, each.name, each.group) for each in graph.programs[0] if each.collective]
    assert names[0] == ("allreduce", "forward embedding", "tp")
    assert names[-1] == ("allreduce", "gradients of weights embedding", "dp")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("HYBRID", "HYBRIDX", "line 1: no workload of SimAI"),
        ("pp: 1", "pp: 2", "line 1: pp: 2, but no pp_comm"),
        (
            "pp: 1 vpp: 1 ga: 1 all_gpus: 8 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0",
            "pp: 2 all_gpus: 8 pp_comm: 4",
            "0 rows from the first embedding_layer on are no whole number of micro-batches; ga: 1",
        ),
        ("all_gpus: 8", "all_gpus: 6", "line 1: 6 ranks are no whole number of groups of 2 x 2 x 1"),
        ("all_gpus: 8", "all_gpus: 0", "line 1: all_gpus: 0; allowed: 1 … 65536$"),
        ("all_gpus: 8", "", "line 1: all_gpus: 0; .*; it isn't in the file: say how many workers"),
        ("ALLTOALL_EP", "ALLTOSOME", "line 4: moe: type 'ALLTOSOME' is unknown"),
        ("ALLTOALL_EP", "ALLTOALL_XY", "line 4: moe: group of 'ALLTOALL_XY' is unknown"),
        ("-1 50", "-1 -50", "line 5: '-50' is no time or size"),
        (" 0 0\n", " 0\n", "line 5: 11 fields; allowed: 12"),
        ("\n3\n", "\n4\n", "line 5: 3 rows, but line 2 says 4"),
        ("\n3\n", "\n", "line 2: the number of rows is missing"),
    ],
)
def test_simai_workloads_that_cannot_be(old: str, new: str, message: str) -> None:
    with pytest.raises(ProfileError, match=f"^w.txt: {message}"):
        simai.decode(SIMAI.replace(old, new, 1), "w.txt")
    with pytest.raises(ProfileError, match="all_gpus: 8, but the scenario has 4 workers"):
        simai.decode(SIMAI, "w.txt", 4)


PIPELINE = """HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 pp: 2 vpp: 8 ga: 2 all_gpus: 8 pp_comm 4000
6
grad_gather -1 1 NONE 0 1 NONE 0 1 ALLGATHER 8000 10
embedding_layer -1 100 ALLREDUCE 400 200 NONE 0 300 NONE 0 0
mlp -1 5 NONE 0 6 ALLREDUCE 400 7 NONE 0 0
embedding_layer -1 100 ALLREDUCE 400 200 NONE 0 300 NONE 0 0
mlp -1 5 NONE 0 6 ALLREDUCE 400 7 NONE 0 0
cross_entropy1 -1 0 ALLREDUCE 16 0 NONE 0 0 NONE 0 0
"""


def test_a_pipeline_of_simai() -> None:
    graph = simai.decode(PIPELINE, "w.txt")
    assert graph.program_of == (0,) * 4 + (1,) * 4
    assert {graph.compute_ns(rank) for rank in range(8)} == {13 + 2 * (600 + 18)}
    assert graph.pairs() == sorted([(rank, rank + 4) for rank in range(4)] + [(rank + 4, rank) for rank in range(4)])
    assert graph.moved(1) == {
        "send": 8000, "receive": 8000, "all_gather": 8000, "allreduce": 4 * 400 + 16
    }  # fmt: skip
    assert [graph.members(name, 7) for name in ("tp", "dp", "ep", "dp_ep")] == [(6, 7), (5, 7), (7,), (5, 7)]
    names = [[each.name for each in program if each.kind != "compute"] for program in graph.programs]
    ahead, behind = names[0].index("backward 0"), names[1].index("backward 0")
    assert names[0][:ahead].count("forward 1") == 1
    assert names[1][:behind].count("forward 1") == 0  # 1F1B
    assert [each[-1] for each in names] == ["gradients of weights grad_gather"] * 2


def test_single_collectives_of_simai() -> None:
    text = "MICRO\n1\nmicro_test\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tBROADCAST\t4096\t1\n"
    graph = simai.decode(text, "w.txt", 4)
    assert [
        (each.kind, each.elements, graph.members(each.group, 0)) for each in graph.program(0) if each.collective
    ] == [("broadcast", 1024, (0, 1, 2, 3))]


# --- Chakra's messages


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def node(
    place: int,
    kind: int,
    needs: tuple[int, ...] = (),
    micros: int = 0,
    calls: tuple[int, ...] = (),
    inputs: str = "[]",
    name: str = "",
    **attributes: int | str,
) -> bytes:
    found = number(1, place) + text(2, name or f"n{place}") + number(3, kind) + number(7, micros)
    found += text(5, b"".join(map(varint, needs))) + b"".join(number(4, each) for each in (*needs[:1], *calls))
    for name, value in attributes.items():
        found += text(10, text(1, name) + (text(29, value) if isinstance(value, str) else number(9, value)))
    return found + text(8, text(1, inputs))


def trace(*messages: bytes, version: str = "0.0.4") -> bytes:
    return b"".join(varint(len(each)) + each for each in (text(1, version), *messages))


COLL = {"comm_type": 0, "comm_size": 4000}


def nodes(rank: int) -> tuple[bytes, ...]:
    """Numbers need not be in order, and may be large."""
    other = (
        {"comm_dst": 1, "comm_size": 100, "comm_tag": 7}
        if rank == 0
        else {"comm_src": 0, "comm_size": 100, "comm_tag": 7}
    )
    return (
        node(1 << 40, 4, (), 12),
        node(9, 7, (1 << 40,), **COLL, pg_name="3"),
        node(5, 7, (9,), comm_type=2, comm_size=400),
        node(6, 2, (5,)),
        node(7, 5 if rank == 0 else 6, (6,), **other),
        node(8, 7, (7,), comm_type=9),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in (0, 1):
        (tmp_path / f"llama.{rank}.et").write_bytes(trace(*nodes(rank)))
    (tmp_path / "comm_group.json").write_text('{"3": [0, 1]}')
    return tmp_path


def test_chakra_traces(folder: Path) -> None:
    for graph in (load("", folder), load("llama.1.et", folder, 2)):
        assert isinstance(graph, WorkloadGraph)
        assert (graph.ranks, graph.compute_ns(1), graph.name) == (2, 12_000, "llama")
        kinds = [(each.kind, each.elements, each.group, each.needs) for each in graph.program(0)]
        assert kinds == [
            ("compute", 0, "world", ()), ("allreduce", 1000, "3", (0,)), ("all_gather", 200, "world", (1,)),
            ("compute", 0, "world", (2,)), ("send", 25, "world", (3,)), ("allreduce", 1, "world", (4,)),
        ]  # fmt: skip
        assert (graph.program(0)[4].peer, graph.program(1)[4].peer, graph.program(1)[4].tag) == (1, -1, 7)
        assert graph.notes == ("llama: left out: 2 nodes of type memory load.",)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ((node(1, 11),), r"node 1 \(n1\): type 11 is unknown; allowed: 1 … 10"),
        ((node(1, 4, (2,)),), r"node 1 \(n1\): depends on node 2, which there isn't"),
        ((node(1, 4), node(1, 4)), "node 1 .*: its number is there twice"),
        ((node(1, 4, (2,)), node(2, 4, (1,))), r"rank 0, operation 0 \(n1\): waits for itself"),
        ((node(1, 4, (), -5),), "node 1 .*µs; allowed: 0"),
        ((node(1, 7, (), comm_type=0, comm_size=-3),), "node 1 .*: comm_size: -3; allowed: numbers from 1 on"),
        ((node(1, 7, (), comm_type=12, comm_size=3),), "comm_type 12 is unknown"),
        ((node(1, 7, (), comm_type=0),), "comm_size: None"),
        ((node(1, 7, (), **COLL, pg_name="9"),), r"group '9' is not in comm_group\.json"),
        ((node(1, 5, (), comm_dst=1, comm_size=4),), "rank 0 to rank 1, tag 0: 1 sends of 1 elements, 0 receives"),
    ],
)
def test_chakra_traces_that_cannot_be(folder: Path, messages: tuple[bytes, ...], message: str) -> None:
    (folder / "llama.0.et").write_bytes(trace(*messages))
    (folder / "llama.1.et").write_bytes(trace())
    with pytest.raises(ProfileError, match=message) as caught:
        load("llama.0.et", folder)
    assert "\n" not in str(caught.value)


def test_chakra_files_that_cannot_be(folder: Path) -> None:
    def refused(message: str, name: str = "llama.0.et", workers: int = 0) -> None:
        with pytest.raises(ProfileError, match=message):
            load(name, folder, workers)

    refused("traces of 2 ranks, but the scenario has 4 workers", workers=4)
    (folder / "llama.0.et").write_bytes(trace(version="2.0"))
    refused(r"llama\.0\.et: schema '2\.0'; allowed: 0\.0\.4, 1\.0")
    (folder / "llama.0.et").write_bytes(b"")
    refused("empty: no metadata")
    (folder / "comm_group.json").write_text("[1]")
    refused(r"comm_group\.json: no groups of ranks")
    (folder / "llama.0.et").rename(folder / "llama.5.et")
    refused("rank 0 has no file; there are 2", "llama.5.et")
    refused("no files NAME", "gone.0.et")
    refused("format unknown; allowed: a folder of Chakra traces, ", "trace.xyz")


def test_chakra_traces_as_converters_of_pytorch_write_them(tmp_path: Path) -> None:
    """Groups are in nodes, calls on the CPU go on beside what the GPU does, of calls some were removed."""
    told = [{"pg_name": "0", "ranks": []}, {"pg_name": "5", "ranks": [0, 2]}, {"pg_name": "6", "ranks": [1, 3]}]
    for rank in range(4):
        messages = (
            node(1, 1, name="## process_group:init ##", inputs=f"['{json.dumps(told)}']"),
            node(2, 4, (), 30, calls=(99,), is_cpu_op=1),
            node(3, 7, (2,), 40, name="c10d::allreduce_", is_cpu_op=1),  # begins the next
            node(4, 4, (2,), 50, is_cpu_op=0),
            node(5, 7, (3, 4), comm_type=2, comm_size=400, pg_name="56"[rank % 2], is_cpu_op=0),
            node(6, 4, (5,), 7),
        )
        (tmp_path / f"run.{rank}.et").write_bytes(trace(*messages))
    graph = load("", tmp_path)
    assert isinstance(graph, WorkloadGraph)
    assert graph.program_of == (0, 1, 0, 1)
    assert (graph.members("5", 2), graph.members("6", 1), graph.members("0", 1)) == ((0, 2), (1, 3), (0, 1, 2, 3))
    found = [(each.kind, each.unit, each.elements) for each in graph.program(0)]
    assert found[1:] == [
        ("compute", 1, 0), ("compute", 1, 0), ("compute", 0, 0), ("all_gather", 0, 200), ("compute", 0, 0),
    ]  # fmt: skip
    assert graph.compute_ns(0) == 70_000  # of the CPU; of the GPU 57
    assert graph.notes == (
        "run: left out: 4 calls of nodes that there aren't.", "run: left out: 4 nodes of type metadata.",
    )  # fmt: skip


def test_equal_ranks_of_a_chakra_trace_share_a_program(tmp_path: Path) -> None:
    """So that whatif reads it: the GPU computes 60 beside the CPU's 50, then both end with 5."""
    messages = (
        node(1, 4, (), 50, is_cpu_op=1), node(2, 4, (), 60), node(3, 7, (1,), **COLL), node(4, 4, (2, 3), 5),
    )  # fmt: skip
    for rank in (0, 1):
        (tmp_path / f"run.{rank}.et").write_bytes(trace(*messages))
    graph = load("", tmp_path)
    assert isinstance(graph, WorkloadGraph)
    assert graph.program_of == (0, 0)
    run = of_graph(graph)
    assert (run.compute_ns, [(each.issue_ns, each.need_ns) for each in run.collectives]) == (65_000, [(50_000, 60_000)])


@pytest.mark.parametrize("left_out", [1, 3, 4])
def test_collectives_and_computing_that_are_left_out_are_counted(folder: Path, left_out: int) -> None:
    for rank in (0, 1):
        other = node(1, 7, (), comm_type=left_out, comm_size=8)
        (folder / f"llama.{rank}.et").write_bytes(trace(other, node(2, 4, (), num_ops=10**9)))
    graph = load("llama.0.et", folder)
    assert isinstance(graph, WorkloadGraph)
    assert graph.notes[1].startswith("llama: left out: 2 computing nodes with num_ops") or len(graph.notes) == 2


# --- GOAL

GOAL = """num_ranks 2
/* a
comment */
rank 0 {
l1: calc 100
l2: send 4096b to 1 tag 3 cpu 0 nic 0
l2 requires l1 // it does
}
rank 1 {
a: recv 4096b from 0 tag 3
b: calc 7
b irequires a
c: calc 20 cpu 3
}
"""


def test_goal() -> None:
    graph = goal_format.decode(GOAL, "x.goal", 2)
    assert [graph.compute_ns(0), graph.compute_ns(1), graph.pairs()] == [100, 20, [(0, 1)]]  # on a processor each
    assert [(operation.duration_ns, operation.unit) for operation in graph.program(1)[1:]] == [(7, 0), (20, 3)]
    assert graph.program(1)[1].needs == (0,)
    assert graph.program(0)[1].needs == (0,)
    assert graph.notes == ("x.goal: 1 irequires taken for requires.",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_ranks 2", "num_ranks 1", "line 9: rank 1 of 1"),
        ("calc 100", "calc -1", "line 5: 'l1: calc -1' is no calc, send, recv or requires"),
        ("calc 100", f"calc {10**15}", "line 5: 1000000000000000 ns"),
        ("l2 requires l1", "l2 requires l9", "line 7: no operation l9"),
        ("l2 requires l1", "l2 requires l1\nl1 requires l2", "rank 0, operation 0 .l1.: waits for itself"),
        ("l2: send", "l1: send", "line 6: label l1 is there twice"),
        ("tag 3 cpu", "tag 4 cpu", "rank 0 to rank 1, tag 3: 0 sends"),
        ("cpu 3\n}", "cpu 3", "ends within rank 1"),
        ("rank 0 {\n", "", "line 4: 'l1: calc 100' is in no rank"),
    ],
)
def test_goal_that_cannot_be(old: str, new: str, message: str) -> None:
    with pytest.raises(ProfileError, match=f"^x.goal: {message}"):
        goal_format.decode(GOAL.replace(old, new, 1), "x.goal")


# --- damaged files


def refused_in_a_line(read: Callable[[], object]) -> None:
    """Or not at all."""
    said = "nothing"
    try:
        read()
    except ProfileError as error:
        said = str(error)
    assert re.fullmatch(r"[^\n]+", said)


def test_files_cut_at_every_byte(folder: Path) -> None:
    whole = trace(*nodes(0))
    for cut in range(len(whole)):
        (folder / "llama.0.et").write_bytes(whole[:cut])
        with pytest.raises(ProfileError) as caught:
            load("llama.0.et", folder)
        assert re.fullmatch(r"llama[^\n]+", str(caught.value))
    for source, read in ((SIMAI, simai.decode), (GOAL, goal_format.decode)):
        for cut in range(len(source) - 2):
            refused_in_a_line(partial(read, source[:cut], "f"))


@given(st.data())
def test_files_with_changes(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["chakra", "simai", "goal"]))
    whole = {"chakra": trace(*nodes(0)), "simai": SIMAI.encode(), "goal": GOAL.encode()}[kind]
    place, until = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 4))
    changed = whole[:place] + data.draw(st.binary(max_size=4)) + whole[place + until :]
    if kind == "chakra":
        groups = {"world": ((0, 1),), "3": ((0, 1),)}
        refused_in_a_line(lambda: chakra.program(chakra.decode(changed, "f.0.et"), 0, groups, Counter()))
    else:
        decode = simai.decode if kind == "simai" else goal_format.decode
        refused_in_a_line(lambda: decode(changed.decode(errors="replace"), "f"))


def test_groups_file_is_json(folder: Path) -> None:
    (folder / "comm_group.json").write_text(json.dumps({"3": "ab"}))
    with pytest.raises(ProfileError, match="no groups of ranks"):
        load("", folder)
