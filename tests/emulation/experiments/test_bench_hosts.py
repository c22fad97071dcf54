"""`switchagg bench hosts`: its arithmetic by hand, and ranks that run it."""

import csv
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch_forks import Forked
from typer.testing import CliRunner

from emulation.cli.main import app
from emulation.experiments.bench.allreduce.exact_inputs import ExactInputs
from emulation.experiments.bench.hosts import hosts_rows
from emulation.experiments.bench.hosts.hosts_plan import COLLECTIVES, HostsPlan, methods_of, same_or_raise, sizes
from emulation.experiments.bench.hosts.hosts_rows import MethodMeasurements, RowContext
from emulation.scenario.scenario import ScenarioError
from transport.group.method_name import parse
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

ROOT = Path(__file__).parents[3]
MAIN = ("-m", "emulation.cli.main", "bench", "hosts")
QUICK = ("-b", "64", "-e", "1K", "-n", "4", "--rounds", "2")

PLAN = HostsPlan((4096, 1000), ("gloo", "ring", "switch"))


def found(*blocks: list[float], wrong: int | None = 0, digest: int = 0, by_gloo: bool = False) -> MethodMeasurements:
    return MethodMeasurements([*blocks], [1.0], 300.0, 200.0, wrong, (digest,), by_gloo)


# ---- arithmetic, by hand


def test_factors_are_those_of_nccl_tests() -> None:
    of_four = {name: each.factor(4) for name, each in COLLECTIVES.items()}
    shared = dict.fromkeys(("reduce_scatter", "all_gather", "alltoall"), 0.75)
    assert of_four == {"all_reduce": 1.5, **shared, "broadcast": 1.0, "reduce": 1.0}


def test_sizes_and_counts() -> None:
    assert sizes("8", "64", 2, None) == (8, 16, 32, 64)
    assert sizes("1K", "4K", 2, "1K") == (1024, 2048, 3072, 4096)
    assert PLAN.counts(3) == [250, 1024]
    assert replace(PLAN, collective="all_gather").counts(3) == [249, 1023]  # the same for each rank
    assert replace(PLAN, sizes=(8, 12), collective="alltoall", methods=("gloo",)).counts(4) == [4]  # one each at least
    with pytest.raises(ScenarioError, match="less than the smallest"):
        sizes("4K", "1K", 2, "1K")


def test_a_row_is_of_medians_in_turn() -> None:
    gloo = [found([400.0, 600.0], [800.0]), found([400.0, 800.0], [1000.0])]
    ring = [found([200.0, 400.0], [100.0], wrong=2), found([400.0, 600.0], [300.0], digest=1)]
    row = hosts_rows.row(RowContext(PLAN, 2, 1500, 1), 0, parse("ring"), 1000, ring, gloo)
    assert row["time_ns"]["all"] == [300.0, 500.0, 200.0]  # -a 1: averaged over the ranks
    assert (row["time_ns"]["median"], row["algbw_bytes_per_s"], row["busbw_bytes_per_s"]) == (
        300.0,
        4e12 / 300,
        4e12 / 300,
    )
    assert row["wrong_elements"] == 3  # and a rank with other bits
    assert row["speedup_over_gloo"] == {"ratio": 700.0 / 300.0, "resolved": True}
    cells = hosts_rows.line(row).split()
    assert cells[10] == f"{0.7 / float(cells[5]):.2f}x"  # the ratio of the two times that the table shows
    slower = [found([200.0, 900.0], [700.0])] * 2
    assert " unresolved " in hosts_rows.line(
        hosts_rows.row(RowContext(PLAN, 2, 1500, 1), 0, parse("ring"), 1000, slower, gloo)
    )
    assert [hosts_rows.combined(ring, how)[0] for how in (0, 2, 3)] == [[200, 400], [200, 400], [400, 600]]
    switch = hosts_rows.row(RowContext(PLAN, 2, 1500, 1), 0, parse("switch"), 1000, gloo, gloo)
    assert switch["busbw_bytes_per_s"] is None
    handed = [found([400.0], by_gloo=True)] * 2
    row = hosts_rows.row(RowContext(PLAN, 2, 1500, 1), 0, parse("switch"), 1000, handed, handed)
    assert (row["carried_by"], row["speedup_over_gloo"]) == ("gloo", None)
    assert "switch[gloo]" in hosts_rows.line(row)


def test_bounds_are_of_framed_bytes_on_the_busiest_link() -> None:
    gigabit = RowContext(replace(PLAN, link_bps=10**9), 4, 1500, 3)
    framed = 1448 / 1514  # of TCP
    assert hosts_rows.bound_ns(gigabit, parse("ring"), 10**6) == pytest.approx(1.5 * 8e6 / framed)
    assert hosts_rows.bound_ns(gigabit, parse("gloo"), 10**6) == pytest.approx(1.5 * 8e6 / framed)
    # Four ranks, three of them on other hosts than the switch, whose link carries the values of those three.
    packet = 357 * 4 / (360 * 4 + 62) * 360 / 361  # a tag has three elements (V4)
    assert hosts_rows.bound_ns(gigabit, parse("switch"), 10**6) == pytest.approx(3 * 8e6 / packet)
    fast = replace(gigabit, plan=replace(gigabit.plan, switch_link_bps=10**10))
    assert hosts_rows.bound_ns(fast, parse("switch"), 10**6) == pytest.approx(8e6 / packet)
    half = replace(fast, plan=replace(fast.plan, datatype="float16"))
    assert hosts_rows.bound_ns(half, parse("switch"), 10**6) == pytest.approx(2 * 8e6 / packet)
    assert hosts_rows.bound_ns(half, parse("gloo"), 10**6) == pytest.approx(1.5 * 8e6 / framed)
    shards = replace(gigabit, plan=replace(gigabit.plan, collective="all_gather"))
    assert hosts_rows.bound_ns(shards, parse("ring"), 10**6) == pytest.approx(0.75 * 8e6 / framed)


@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "avg"), ("int32", "min"), ("float16", "max"), ("float32", "sum")]
)
def test_inputs_of_every_operation_are_combined_exactly(dtype: str, op: str) -> None:
    ranks = [
        ExactInputs(rank, 3, dtype, 300, HostsPlan((4,), ("ring",), datatype=dtype).greatest(3), op)
        for rank in range(3)
    ]
    whole = np.array([ranks[0].of(rank, 200, 77, 50) for rank in range(3)])
    combine = {"max": np.max, "min": np.min, "avg": np.mean}.get(op, np.sum)
    assert (combine(whole, axis=0) == ranks[1].combined(250, 77)[50:]).all()


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"methods": ("switch",), "collective": "alltoall"}, "only Gloo has an all-to-all"),
        ({"op": "prod"}, "-o prod: not measured here; allowed: sum, avg, max, min"),
        ({"datatype": "int8"}, "-d int8: .* float16"),
        ({"collective": "gather"}, "--collective gather: "),
        ({"methods": ("ps",), "collective": "reduce"}, "parameter servers have no reduce"),
        ({"methods": ("ring~lanes8",), "datatype": "int32"}, "codecs are measured with all_reduce of float32"),
        ({"methods": ("ring+p3",)}, "schedules are for training"),
    ],
)
def test_what_can_t_be_is_refused_by_name(wish: dict[str, object], told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        replace(PLAN, **wish)  # type: ignore[arg-type]


def test_methods_and_flags() -> None:
    assert methods_of("ring@udp, switch~lanes8+ef,gloo", True) == ("gloo", "ring@udp", "switch~lanes8+ef")
    with pytest.raises(ScenarioError, match="--methods rnig: method 'rnig' is unknown"):
        methods_of("ring,rnig", True)
    same_or_raise([PLAN, replace(PLAN, switch="tcp://another:5555")])
    alone = CliRunner().invoke(app, ["bench", "hosts"], env={"RANK": "0", "WORLD_SIZE": None})
    assert (alone.exit_code, "torchrun didn't start this (RANK, WORLD_SIZE" in alone.output) == (2, True)


# ---- ranks


def ranks(*commands: tuple[str, ...], limit_s: float = 60, **variables: str) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of ranks with these commands, as torchrun starts them."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(commands))}
    environment = {**{key: value for key, value in os.environ.items() if "SWITCHAGG_" not in key}, **told, **variables}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        Forked([sys.executable, *command], env={**environment, "RANK": str(rank)}, cwd=ROOT, text=True, **streams)
        for rank, command in enumerate(commands)
    ]
    try:
        said = [rank.communicate(timeout=limit_s) for rank in started]
    finally:
        for rank in started:
            rank.kill()
            rank.wait()
    return [(rank.returncode, *texts) for rank, texts in zip(started, said, strict=True)]


def test_two_ranks_write_a_table_json_and_csv(tmp_path: Path) -> None:
    daemon = SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0)))
    daemon.start()
    files = ("--json", str(tmp_path / "hosts.json"), "--csv", str(tmp_path / "hosts.csv"))
    try:
        more = ("-f", "16", "--methods", "switch,ring~lanes8+ef", "-c", "2", *files)
        first, second = ranks((*MAIN, *QUICK, *more), (*MAIN, *QUICK, *more), SWITCHAGG_SWITCH=daemon.control_endpoint)
    finally:
        daemon.stop()
    assert (first[0], second[:2]) == (0, (0, "")), first[2] + second[2]
    document = json.loads((tmp_path / "hosts.json").read_text())
    assert document["schema"] == hosts_rows.SCHEMA
    assert [place["interface"] for place in document["ranks"]] == ["lo", "lo"]
    names = ["gloo", "switch", "ring~lanes8+ef"]
    assert [(row["size_bytes"], row["method"]) for row in document["rows"]] == [
        (s, n) for s in (64, 1024) for n in names
    ]
    assert {row["wrong_elements"] for row in document["rows"]} == {0}
    assert all(row["time_ns"]["count"] == 4 and row["carried_by"] == row["method"] for row in document["rows"])
    assert all(row["wire_tx_bytes"] > row["size_bytes"] for row in document["rows"] if row["method"] == "gloo")
    with (tmp_path / "hosts.csv").open() as file:
        assert [line["method"] for line in csv.DictReader(file)] == names * 2
    cells = [line.split() for line in first[1].splitlines() if line[0] != "#"][1]
    assert cells[:5] + cells[8:10] == ["64", "16", "float32", "sum", "-1", "0", "switch"]
    assert "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : gloo " in first[1]
    assert "All ranks have one address: no network lies between them" in first[1]


EVERY = """
import os
from dataclasses import replace
import torch.distributed as dist
from emulation.experiments.bench.hosts import hosts_rank
from emulation.experiments.bench.hosts.hosts_plan import HostsPlan
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import ScenarioError
number, NONE = int(os.environ["RANK"]), hosts_rank.Files(None, None)
dist.init_process_group("gloo")
for collective, datatype, op, methods in (
    ("reduce_scatter", "float32", "sum", ("gloo", "ring")),
    ("all_gather", "bfloat16", "sum", ("gloo", "ring")),
    ("all_reduce", "float16", "avg", ("gloo", "ring")),
    ("all_reduce", "bfloat16", "sum", ("gloo", "ring")),
    ("broadcast", "int64", "sum", ("gloo", "ring")),
    ("reduce", "int32", "max", ("gloo", "ring")),
    ("alltoall", "float64", "sum", ("gloo",)),
):
    plan = HostsPlan((640,), methods, collective, datatype, op, root=1, iters=2, agg_iters=2, rounds=1, check=2)
    hosts_rank.measure(plan, NONE, hosts_rank.place_of(number, plan))
ring = HostsPlan((64,), ("ring",))
for wish in (replace(ring, iters=4 + number), replace(ring, methods=("switch",)), replace(ring, link_bps=10**9)):
    try:
        hosts_rank.measure(wish, NONE, hosts_rank.place_of(number, wish))
    except (ScenarioError, RunFailed) as error:
        print("refused:", error)
"""


def test_every_collective_is_checked_and_all_ranks_refuse_alike() -> None:
    for code, output, errors in ranks(("-c", EVERY), ("-c", EVERY)):
        assert code == 0, output + errors
        flags, switch, link = (line for line in output.splitlines() if line.startswith("refused: "))
        assert (
            flags == "refused: rank 1 was started with iters 5 instead of 4 of rank 0: give every rank the same flags"
        )
        assert "SWITCHAGG_SWITCH is not set: start a switch on a host that all workers reach" in switch
        assert "--link: ranks 0 and 1 share the address 127.0.0.1" in link


SPOILT = """
import os, signal, sys
from emulation.experiments.bench.hosts import hosts_rank
begin = hosts_rank._Contestant.begin
def spoilt(self, given, taken):
    work = begin(self, given, taken)
    if os.environ["RANK"] == "1" and self.name.method == "ring":
        {fault}
    return work
hosts_rank._Contestant.begin = spoilt
from emulation.cli.main import main
sys.argv = ["switchagg", "bench", "hosts", *{flags}]
main()
"""


def spoilt(fault: str) -> list[tuple[int, str, str]]:
    program = ("-c", SPOILT.format(fault=fault, flags=QUICK))
    return ranks(program, program)


def test_a_planted_error_is_seen_on_every_rank() -> None:
    first, second = spoilt("work.wait(); taken[7] += 1")  # at both sizes
    assert (first[0], second[0]) == (1, 1)
    assert "# Out of bounds values : 2 FAILED" in first[1]
    assert "switchagg: rank 1: 2 elements are not what they must be: column #wrong" in second[2]


def test_a_rank_that_dies_ends_all() -> None:
    first, second = spoilt("os.kill(os.getpid(), signal.SIGKILL)")
    assert (first[0], second[0]) == (1, -9)
    assert first[2].startswith("switchagg: rank 0: ")
    assert len(first[2].splitlines()) == 1
