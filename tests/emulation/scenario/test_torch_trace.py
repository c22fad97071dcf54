"""Traces of torch.profiler: what is computing and what is waiting, derived by hand; and traces that are wrong."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from emulation.experiments.whatif.recorded_run import read
from emulation.scenario.profiles.graph import WorkloadGraph
from emulation.scenario.profiles.profile_errors import ProfileError, read_bytes
from emulation.scenario.profiles.profile_formats import load
from emulation.scenario.profiles.torch_trace import graph, model_profile, record
from tests.emulation.scenario.trace_events import Event, ddp_step, span, write

TRACES = Path(__file__).parent / "traces"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_waiting_is_not_computing(path: Path) -> None:
    """Of 200 µs the rank waits 40, from 140 to 180; what it does while the first bucket travels is its own."""
    found = record(write(path, [*ddp_step(1000, 3), *ddp_step(1200, 4), *ddp_step(1400, 5)]))
    assert found.compute == (160.0, 160.0, 160.0)
    assert found.like.backward == (50, 130)
    assert found.like.issues == (70, 130)
    assert found.like.needs == (160, 160)
    assert [each.size_bytes for each in found.like.collectives] == [4000, 16_000]
    assert found.data_parallel
    assert found.jitter == 0
    assert found.notes == ("3 iterations by the profiler's steps",)


def test_a_collective_whose_end_is_noted_late_was_waited_for(path: Path) -> None:
    """Its thread notes the end at 185.5, when the rank that it woke at 185 copies already."""
    steps = [event for turn in range(3) for event in ddp_step(1000 + 200 * turn)]
    for event in steps:
        if event["dur"] == 40:
            event["dur"] = 45.5
    assert record(write(path, steps)).compute == (155.0, 155.0, 155.0)


def test_layers_are_gradients_with_the_times_of_both_passes(path: Path) -> None:
    found = model_profile([record(write(path, [*ddp_step(1000), *ddp_step(1200)]))], "toy")
    assert [layer.name for layer in found.layers] == ["0 linear", "1 addmm"]
    assert [layer.tensors["0"] for layer in found.layers] == [4000, 1000]
    assert [layer.backward_ns for layer in found.layers] == [60_000, 19_000]
    assert [layer.forward_ns for layer in found.layers] == [30_000 + 31_000, 20_000]  # and what follows the passes
    assert found.compute_ns == 160_000
    assert found.sent_bytes == (4000, 16_000)


def test_iterations_are_found_without_marks(path: Path) -> None:
    events = [event for turn in range(4) for event in ddp_step(1000 + 200 * turn, steps=False)]
    assert record(write(path, events)).compute == (160.0, 160.0, 160.0)  # from one optimizer step to the next
    unmarked = [event for event in events if not event["name"].startswith("Optimizer")]
    found = record(write(path, unmarked))
    assert found.compute == (160.0, 160.0, 160.0)
    assert found.notes[0] == "3 iterations by what repeats in its collectives"


def test_iterations_with_other_collectives_are_left_out_and_counted(path: Path) -> None:
    odd = [event for event in ddp_step(1000) if event["ts"] < 1130 or event["cat"] == "user_annotation"]
    barrier = span("c10d::barrier", 1210, 1)
    found = record(write(path, [*odd, barrier, *ddp_step(1200), *ddp_step(1400)]))
    assert found.notes[1:] == ("with other collectives, so left out: 1 iterations", "left out: 1 of barrier")


def test_ranks_differ(tmp_path: Path) -> None:
    """The second rank's forward pass takes 90 µs instead of 50."""
    traces = [
        record(write(tmp_path / f"{rank}.json.gz", [*ddp_step(0, slow=slow), *ddp_step(300, slow=slow)], rank=rank))
        for rank, slow in enumerate((1.0, 1.8))
    ]
    assert model_profile(traces, "toy").skew == (1.0, 1.25)
    assert model_profile(traces[:1], "toy").skew == ()


def nccl_step(at: float) -> list[Event]:
    """Kernels for 10 … 40 and 40 … 60 µs, launched at 0 and 5; a sum of both ranks' bfloat16 after the first, seen at
    40 … 90; the optimizer's kernel waits for it and runs at 90 … 100, launched at 20."""
    message = {
        "Collective name": "allreduce",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "dtype": "BFloat16",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1, ...]",
        "Rank": 0,
    }
    number = round(at)
    return [
        span("ProfilerStep#1", at, 100, "user_annotation"),
        *(span("cudaLaunchKernel", at + begun, 1, "cuda_runtime", correlation=number + begun) for begun in (0, 5, 20)),
        span("aten::mm", at, 2),
        span("autograd::engine::evaluate_function: MmBackward0", at + 4, 2),
        span("record_param_comms", at + 3, 1, **message),
        span("record_param_comms", at + 15, 1, **{**message, "Collective name": "wait", "In msg nelems": 0}),
        span("gemm", at + 10, 30, "kernel", 20, correlation=number),
        span("gemm_backward", at + 40, 20, "kernel", 20, correlation=number + 5),
        span("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", at + 40, 50, "kernel", 30, **message),
        span("adam", at + 90, 10, "kernel", 20, correlation=number + 20),
    ]


def test_on_a_gpu_a_collective_begins_after_the_kernels_before_it(path: Path) -> None:
    events = [event for turn in range(3) for event in nccl_step(1000 + 100 * turn)]
    found = record(write(path, events, backend="nccl"))
    (each,) = found.like.collectives
    assert (each.kind, each.size_bytes, each.sent_as, each.ranks) == ("allreduce", 2 << 20, "bfloat16", 2)
    assert found.compute[1:] == (70.0, 70.0)  # 30 of 100 µs nothing ran but the collective, until it had ended
    # An iteration begins once the last one's kernels are done, at 0; the first kernel ends at 40.
    assert found.like.issues == (40,)
    assert model_profile([found], "toy").sent_as == "bfloat16"
    assert model_profile([found], "toy").elements == 1 << 20


def marked_step(at: float, exchanged: int = 96) -> list[Event]:
    """As PyTorch 2.0 writes it: sizes only in marks, which for some collectives are in operators of c10d."""

    def mark(name: str, ts: float, *dims: int, kind: str = "float") -> Event:
        return span(f"nccl:{name}", at + ts, 1, "user_annotation", **{"Input Dims": [list(dims)], "Input type": [kind]})

    listed = {"Input Dims": [[], [], []], "Input type": ["TensorList", "", ""]}
    return [
        span("ProfilerStep#1", at, 100, "user_annotation"),
        span("aten::mm", at + 1, 4),
        mark("all_to_all", 6, exchanged, 2, kind="long"),
        span("c10d::allgather_", at + 8, 4, **listed),
        mark("all_gather", 9, 500),
        span("c10d::alltoall_base_", at + 13, 2, **{"Input Dims": [[0], [0]], "Input type": ["int", "int"]}),
        span("c10d::allreduce_", at + 20, 5, **listed),
        mark("all_reduce", 21, 70, 10),
        span("gemm", at + 10, 60, "kernel", 20),
        span("ncclKernel_AllReduce_RING_LL_Sum_float", at + 30, 10, "kernel", 30),
    ]


def test_collectives_of_older_versions_have_sizes_in_marks(tmp_path: Path) -> None:
    """All-to-alls are as long as there is for each, at each time and on each rank."""
    paths = []
    for rank in (0, 1):
        events = [event for turn in range(3) for event in marked_step(1000 + 100 * turn, 96 + turn + 10 * rank)]
        paths.append(str(write(tmp_path / f"{rank}.json", events, backend="nccl", rank=rank, world=4)))
    found = record(Path(paths[0]))
    assert [(each.kind, each.size_bytes) for each in found.like.collectives] == [
        ("all_to_all", 97 * 2 * 8),
        ("all_gather", 4 * 500 * 4),
        ("allreduce", 700 * 4),
    ]
    assert found.notes == (
        "3 iterations by the profiler's steps of a GPU",
        "all-to-alls differ between iterations: medians of their sizes",
        "left out: 3 of alltoallbase of 0 int values",
        "no backward pass in the trace: a share of 0.33 is taken for the forward pass",
    )
    assert [each.size_bytes for each in read(paths).collectives] == [107 * 2 * 8, 4 * 500 * 4, 700 * 4]


def test_ours_beside_those_of_nccl(path: Path) -> None:
    """DDP's hook sums through the switch, the loss by NCCL; a coalesced call's event has several tensors."""
    kinds = {"Input Dims": [[100], [7, 4]], "Input type": ["float", "float"]}
    sums = [span("switchagg:all_reduce", at + 8, 45, "user_annotation", **kinds) for at in range(1000, 1300, 100)]
    events = [event for turn in range(3) for event in nccl_step(1000 + 100 * turn)]
    found = record(write(path, [*events, *sums], backend="nccl"))
    assert [each.size_bytes for each in found.like.collectives] == [2 << 20, 128 * 4]
    assert found.compute[1:] == (70.0, 70.0)


def grouped(path: Path, groups: dict[str, list[int]], world: int = 8) -> Path:
    """Sums of bfloat16 of a group of four, and of all."""
    message = {"Collective name": "allreduce", "In msg nelems": 64, "dtype": "BFloat16"}
    events = [
        span("ProfilerStep#1", 0, 100, "user_annotation"),
        span("aten::mm", 0, 20),
        span("record_param_comms", 20, 1, **message, **{"Group size": 4, "Process Group Name": "7"}),
        span("aten::mm", 30, 20),
        span("record_param_comms", 60, 1, **message, **{"Group size": world, "Process Group Name": "0"}),
    ]
    return write(path, events, rank=3, world=world, groups=groups)


def test_groups_of_some_ranks(path: Path) -> None:
    """A trace has the ranks of its own groups; others are as far apart."""
    found = load(str(grouped(path, {"7": [1, 3, 5, 7], "0": list(range(8))})))
    assert isinstance(found, WorkloadGraph)
    assert found.groups["7"] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert [each.group for each in found.program(0) if each.collective] == ["7", "world"]
    for groups, message in (
        ({}, "4 of 8 ranks: whose, it can't say"),
        ({"7": [0, 3, 5, 7]}, "4 of 8 ranks, 0, 3, 5, 7: who is with whom else, it can't say"),
        ({"7": [3, 3, 3, 3]}, "4 of 8 ranks, 3, 3, 3, 3: who"),
        ({"7": [3, 2, 1, 0]}, "4 of 8 ranks, 3, 2, 1, 0: who"),
    ):
        with pytest.raises(ProfileError, match=message):
            load(str(grouped(path, groups)))


def test_collectives_of_fsdp_have_places_where_they_are_needed(path: Path) -> None:
    """An all-gather is needed where its copy-out begins, a reduce-scatter at the end."""
    shard = {"Input Dims": [[4000], [2000]], "Input type": ["float", "float"]}
    events = [
        span("ProfilerStep#1", 0, 100, "user_annotation"),
        span("c10d::_allgather_base_", 5, 1, **shard),
        span("aten::mm", 10, 20),
        span("FSDP::all_gather_copy_out (0)", 30, 2, "user_annotation"),
        span("aten::mm", 32, 20),
        span("autograd::engine::evaluate_function: MmBackward0", 52, 20),
        span("c10d::_reduce_scatter_base_", 80, 1, **{**shard, "Input Dims": [[2000], [4000]]}),
        span("aten::add_", 90, 10),
    ]
    found = record(write(path, events))
    assert [(each.kind, each.size_bytes) for each in found.like.collectives] == [
        ("all_gather", 16_000),
        ("reduce_scatter", 16_000),
    ]
    assert (found.like.issues, found.like.needs) == ((5, 80), (30, 100))
    assert not found.data_parallel
    (program,) = graph(found).programs
    assert [(each.kind, each.duration_ns, each.elements, each.needs) for each in program] == [
        ("compute", 5_000, 0, ()),
        ("all_gather", 0, 4000, (0,)),
        ("compute", 25_000, 0, (0,)),
        ("compute", 50_000, 0, (1, 2)),
        ("reduce_scatter", 0, 4000, (3,)),
        ("compute", 20_000, 0, (3,)),
    ]
    assert load(str(path)) == graph(found)
    with pytest.raises(ProfileError, match="of 2 ranks, not 4"):
        load(str(path), workers=4)
    at_once = graph(record(write(path, [event for event in events if "copy_out" not in event["name"]])))
    assert [each.needs for each in at_once.programs[0]] == [(), (0,), (0, 1), (2,), (2,)]


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_traces_recorded_from_training(name: str) -> None:
    """On torch 2.13, Gloo, two ranks: three layers of 131,584, 262,656 and 5,130 parameters."""
    found = record(TRACES / f"{name}.rank0.json.gz")
    sizes = {
        "ddp": [267_786, 131_584],
        "fsdp": [131584, 262656, 5130, 5130, 262656, 5130, 131584, 262656, 131584],
    }
    assert [each.size_bytes // 4 for each in found.like.collectives] == sizes[name]
    assert found.workers == 2
    assert len(found.compute) == 2
    assert found.data_parallel == (name == "ddp")
    if name == "ddp":
        layers = model_profile([found], name).layers
        assert [layer.elements for layer in layers] == [131_072, 512, 262_144, 512, 5_120, 10]
        assert [layer.name for layer in layers][::2] == ["0 linear", "2 linear", "4 linear"]


WRONG = {
    "cut": (lambda text: text[:900], "line 59: Input data was truncated: the trace is broken or was cut"),
    "broken": (lambda text: text.replace('"ts": 1000', '"ts": oops', 1), "line [0-9]+: .*malformed"),
    "no number": (lambda text: text.replace('"ts": 1000', '"ts": "soon"', 1), r"traceEvents\[1\]\.ts: Expected"),
    "negative": (lambda text: text.replace('"dur": 30', '"dur": -30', 1), r"traceEvents\[1\] \(aten::linear\): .*-30"),
    "version": (lambda text: text.replace('"schemaVersion": 1', '"schemaVersion": 9'), "schemaVersion 9 is unknown"),
    "old": (lambda text: text.replace('"cpu_op"', '"Operator"'), "named as by a PyTorch of before 1.11"),
    "no trace": (lambda text: '{"traceEvents": []}', "no operators of PyTorch"),
    "alone": (lambda text: text.replace('"world_size": 2', '"world_size": 1'), "no collectives among ranks"),
    "two processes": (
        lambda text: text.replace('"pid": 7, "tid": 1', '"pid": 8', 1).replace('"pid": 7', '"pid": 8', 2),
        "2 processes",
    ),
    "no shapes": (lambda text: text.replace("Input ", ""), "record with record_shapes=True"),
    "no kernels": (lambda text: text.replace('"gloo"', '"nccl"'), "no kernels of a GPU"),
    "negative count": (lambda text: text.replace('"Input Dims"', '"Group size": -2, "Input Dims"'), "negative number"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_is_one_line_that_names_the_file_and_the_place(path: Path, fault: str) -> None:
    change, message = WRONG[fault]
    write(path, ddp_step(1000))
    path.write_text(change(path.read_text()))
    with pytest.raises(ProfileError, match=message) as raised:
        record(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_what_is_read_is_bounded_by_what_a_trace_can_be(tmp_path: Path) -> None:
    """Of a file that unpacks to 1,000 times its size, and of one that never ends, no more than a trace needs."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + bytes(200_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(ProfileError, match="more than 100 times its size unpacked: no trace"):
            record(path)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
    path.with_suffix("").write_text('{"traceEvents": [' + "{}," * 1_000_000 + "{}]}")
    with pytest.raises(ProfileError, match="1000002 objects in 3000021 bytes: no trace"):
        record(path.with_suffix(""))
    with pytest.raises(ProfileError, match=r"/dev/zero: .* or more; allowed: 50000000 at most"):
        read_bytes(Path("/dev/zero"), 50_000_000)


def test_a_cut_gzip_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json.gz", ddp_step(1000))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ProfileError, match=r"gzip: .*cut or damaged"):
        record(path)
    path.write_bytes(gzip.compress(json.dumps([]).encode()))
    with pytest.raises(ProfileError, match="top level: Expected `object`, got `array`"):
        record(path)
