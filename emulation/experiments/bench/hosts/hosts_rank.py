"""A rank of `switchagg bench hosts`: a process that torchrun has started, on any machine.

The default group is Gloo's: it compares the ranks' flags, begins blocks together and gathers measurements. A
method has a group alone, as a training job makes it. Some operations of every method and size are checked element by
element; blocks of timed operations follow, method after method, in an order that moves on by one from block to block.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from emulation.experiments.bench import document
from emulation.experiments.bench.allreduce.exact_inputs import ExactInputs, SumCheck, tensors_of
from emulation.experiments.bench.hosts import hosts_rows
from emulation.experiments.bench.hosts.hosts_plan import BASELINE, HostsPlan, same_or_raise
from emulation.experiments.bench.hosts.hosts_rows import MethodMeasurements, RankHost, RowContext
from emulation.scenario.errors import RunFailed
from emulation.scenario.scenario import ScenarioError
from emulation.testbed.host import host_facts, interface_bytes
from switchagg.errors import SwitchaggError
from transport.group.method_name import MethodName
from transport.links.addresses import parse_endpoint, resolve_host
from transport.torch.rendezvous import SwitchOptions, interface_with

_SIOCGIFMTU = 0x8921
_OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# Renamed in PyTorch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
IN_PLACE = ("allreduce", "broadcast", "reduce")


@dataclass(frozen=True)
class Files:
    """The files that rank 0 writes."""

    json: Path | None
    csv: Path | None


def run(plan: HostsPlan, files: Files) -> NoReturn:
    """Measure as torchrun's variables say; ends the process: groups that have failed may not come to an end.

    Exit codes as of every command; what went wrong is one line on stderr. SIGTERM, which torchrun sends to the ranks
    that are left when one has died, and Ctrl-C end it at once.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    code = 1
    try:
        measure(plan, files, _joined(plan, rank, workers))
        code = 0
    except (ScenarioError, RunFailed, SwitchaggError, RuntimeError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        sys.stderr.write(f"switchagg: rank {rank}: {lines[0].removeprefix('switchagg: ')}\n")
        code = 2 if isinstance(error, ScenarioError) else 1
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _joined(plan: HostsPlan, rank: int, workers: int) -> RankHost:
    """Where this rank is, once it has met the others. Raises ScenarioError, RunFailed."""
    if workers < 2:
        raise ScenarioError(
            "one rank alone: nothing to measure; torchrun --nnodes or --nproc-per-node, at least 2 ranks"
        )
    if not plan.root < workers:
        raise ScenarioError(f"--root {plan.root}: ranks are 0 to {workers - 1}")
    place = place_of(rank, plan)
    if place.interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", place.interface)  # Gloo would ask the resolver for our name
    try:
        dist.init_process_group(BASELINE, timeout=timedelta(seconds=plan.timeout_s))
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise RunFailed(
            f"the {workers} ranks did not meet at MASTER_ADDR within {plan.timeout_s:g} s: {reason}"
        ) from error
    return place


def measure(plan: HostsPlan, files: Files, place: RankHost) -> None:
    """All methods and sizes, by the ranks of the default group. Raises RunFailed, also if elements are wrong,
    ScenarioError and what torch raises."""
    places = _agreed(plan, files, place)
    mtu_bytes, remote = min(rank_host.mtu_bytes for rank_host in places), sum(rank_host.remote for rank_host in places)
    rank, workers = place.rank, len(places)
    setting = RowContext(plan, workers, mtu_bytes, remote, SwitchOptions.from_environment().verify)
    in_numpy = "float32" if plan.item_bytes == 2 else plan.datatype
    counts = plan.counts(workers)
    numbers = ExactInputs(rank, workers, in_numpy, counts[-1], plan.greatest(workers), plan.op)
    contestants = [_Contestant(setting, name, numbers) for name in plan.names]
    say = print if rank == 0 else _silent
    for text in hosts_rows.heading(setting, places):
        say(text, flush=True)
    rows: list[dict[str, Any]] = []
    for cycle in range(plan.run_cycles):
        for count in counts:
            rows += _size(setting, cycle, count, contestants, place, say)
    for text in hosts_rows.closing(rows):
        say(text, flush=True)
    if rank == 0 and files.csv:
        hosts_rows.write_csv(files.csv, rows)
    if rank == 0 and files.json:
        document.write(files.json, hosts_rows.document(setting, places, rows))
    dist.barrier()
    if wrong := sum(row["wrong_elements"] or 0 for row in rows):
        raise RunFailed(f"{wrong} elements are not what they must be: column #wrong")


def _silent(*_: object, **__: object) -> None:
    """Ranks other than 0 print nothing."""


def _agreed(plan: HostsPlan, files: Files, place: RankHost) -> list[RankHost]:
    """Where all ranks are. Raises ScenarioError, RunFailed on all ranks alike."""
    trouble = ""
    try:
        if any(name.is_switch for name in plan.names):
            _options(plan).require_switch()
    except dist.DistBackendError as error:
        trouble = str(error)
    for path in (files.json, files.csv) if place.rank == 0 else ():
        if path and not path.parent.is_dir():
            trouble = f"{path}: there is no folder {path.parent}; make it first"
    messages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(messages, (plan, place, trouble))
    same_or_raise([rank_plan for rank_plan, _, _ in messages])
    if troubles := [reason for _, _, reason in messages if reason]:
        raise RunFailed(troubles[0])
    places = [host for _, host, _ in messages]
    for host in places:
        sharers = [other.rank for other in places if other.address == host.address]
        if plan.link_bps and len(sharers) > 1:
            raise ScenarioError(
                f"--link: ranks {sharers[0]} and {sharers[1]} share the address {host.address}, and a bound is of "
                "links that ranks have alone; --nproc-per-node 1, or leave it out"
            )
    return places


def _options(plan: HostsPlan) -> SwitchOptions:
    return replace(SwitchOptions.from_environment(), switch=plan.switch)


def place_of(rank: int, plan: HostsPlan) -> RankHost:
    address = SwitchOptions.from_environment().local_address()
    interface, mtu_bytes = interface_with(address), 1500
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFMTU, struct.pack("16si12x", interface.encode(), 0))
        mtu_bytes = struct.unpack("16si12x", answer)[1]
    facts = host_facts(["switchagg", *sys.argv[1:]])
    switch = resolve_host(parse_endpoint(plan.switch)[0]) if plan.switch else address
    remote = switch != address and not switch.startswith("127.")
    return RankHost(rank, socket.gethostname(), os.getpid(), address, interface, mtu_bytes, remote, facts)


class _Contestant:
    """A method with a process group, connected before anything is timed. Raises RunFailed, RuntimeError."""

    def __init__(self, setting: RowContext, name: MethodName, numbers: ExactInputs) -> None:
        plan = setting.plan
        self.name, self.numbers, self._plan = name, numbers, plan
        self.check = SumCheck(name, numbers, setting.workers, plan.datatype, setting.room)
        timeout = timedelta(seconds=plan.timeout_s)
        self.is_switchagg = name.method != BASELINE
        self.checked = not plan.unchecked(name)
        self.operations = 0
        if not self.is_switchagg:
            self.group: Any = dist.new_group(backend=BASELINE, timeout=timeout)
            return
        options = replace(_options(plan), method=str(name), link="", codec="")
        self.checked = self.checked and not (options.backups or options.close_after_ns)
        self.group = dist.new_group(backend="switchagg", timeout=timeout, pg_options=options)
        if not self.group.connect():
            raise RunFailed(
                f"{name}: the switch {options.switch} has no room for this job of {setting.workers} ranks, and Gloo "
                "would stand in: free slots there, or start it with more (`switchagg switch --slots`); 64 ranks at most"
            )

    def gloo_calls(self) -> int:
        """How many collectives of the group Gloo has carried out."""
        counts = self.group.traffic.counts() if self.is_switchagg else {}
        return sum(ways.get(BASELINE, {"calls": 0})["calls"] for ways in counts.values())

    def begin(self, input_array: torch.Tensor, output_array: torch.Tensor) -> Any:
        """The Work of an operation."""
        plan, group = self._plan, self.group
        op = _OPS[plan.op]
        match plan.collective:
            case "all_reduce":
                if self.name.codec and (named := tensors_of(self.name, output_array.numpy())) is not None:
                    return group.allreduce_tensors(output_array, named)
                return dist.all_reduce(output_array, op, group, async_op=True)
            case "reduce_scatter":
                return _reduce_scatter(output_array, input_array, op, group, async_op=True)
            case "all_gather":
                return _all_gather(output_array, input_array, group, async_op=True)
            case "broadcast":
                return dist.broadcast(output_array, plan.root, group, async_op=True)
            case "reduce":
                return dist.reduce(output_array, plan.root, op, group, async_op=True)
            case _:
                return dist.all_to_all_single(output_array, input_array, group=group, async_op=True)


class _Arrays:
    """A rank's input and output arrays at a size; each of the operations that are begun at once has an output."""

    def __init__(self, setting: RowContext, numbers: ExactInputs, count: int, rank: int) -> None:
        plan, workers = setting.plan, setting.workers
        self._plan, self._numbers, self._rank, self._workers = plan, numbers, rank, workers
        self._shard = count // workers
        dtype = getattr(torch, plan.datatype)
        self.input_array = torch.zeros(self._shard if plan.kind.shards == "input" else count, dtype=dtype)
        size = self._shard if plan.kind.shards == "output" else count
        self.output_arrays = [torch.zeros(size, dtype=dtype) for _ in range(plan.agg_iters)]

    def fill(self, operation: int) -> None:
        """Write another operation's input."""
        self.input_array.copy_(torch.from_numpy(self._numbers.of(self._rank, self.input_array.numel(), operation)))

    def reset(self) -> None:
        """Clear earlier results; the array of an operation in place gets its input."""
        for output_array in self.output_arrays:
            if self._plan.kind.kind in IN_PLACE:
                output_array.copy_(self.input_array)
            else:
                output_array.zero_()

    def result(self) -> NDArray[Any]:
        """The result of the first operation."""
        first = self.output_arrays[0]
        return (first.float() if self._plan.item_bytes == 2 else first).numpy()

    def wrong(self, operation: int, check: SumCheck) -> int:
        """How many elements of the result are not what they must be."""
        result, kind = self.result(), self._plan.kind.kind
        if kind == "allreduce":
            return check.wrong(result, operation)
        if kind == "reduce" and self._rank != self._plan.root:
            return 0  # what lies there isn't defined
        return int(np.count_nonzero(result != self._expected(operation)))

    def _expected(self, operation: int) -> NDArray[Any]:
        numbers, shard, full_count = self._numbers, self._shard, self._shard * self._workers
        match self._plan.kind.kind:
            case "broadcast":
                return numbers.of(self._plan.root, self.input_array.numel(), operation)
            case "reduce":
                return numbers.combined(self.input_array.numel(), operation)
            case "reduce_scatter":
                return numbers.combined(full_count, operation)[self._rank * shard :][:shard]
            case kind:
                first = self._rank * shard if kind == "all_to_all" else 0
                return np.concatenate([numbers.of(rank, shard, operation, first) for rank in range(self._workers)])


def _size(
    setting: RowContext,
    cycle: int,
    count: int,
    contestants: list[_Contestant],
    place: RankHost,
    say: Callable[..., None],
) -> list[dict[str, Any]]:
    """All methods at one size, and their rows."""
    plan, arrays = setting.plan, _Arrays(setting, contestants[0].numbers, count, place.rank)
    records = [MethodMeasurements([], [], None, None, None, (), False) for _ in contestants]
    calls = [other.gloo_calls() for other in contestants]
    for at, contestant in enumerate(contestants):
        if plan.check and contestant.checked:
            wrong, digests = _checked(plan, contestant, arrays)
            records[at] = replace(records[at], wrong=wrong, digests=digests)
    arrays.fill(0)
    blocks = [size for turn in range(plan.rounds) if (size := len(range(turn, plan.iters, plan.rounds)))]
    for turn, size in enumerate(blocks):
        order = [(turn + step) % len(contestants) for step in range(len(contestants))]
        for at in order:
            records[at] = _block(plan, contestants[at], arrays, size, place.interface, records[at])
    records = [
        replace(record, by_gloo=contestant.gloo_calls() > before)
        for record, contestant, before in zip(records, contestants, calls, strict=True)
    ]
    gathered: list[Any] = [None] * setting.workers
    dist.all_gather_object(gathered, records)
    of_method = list(zip(*gathered, strict=True))
    baseline = next(
        (ranks for ranks, other in zip(of_method, contestants, strict=True) if not other.is_switchagg), None
    )
    size_rows = []
    for ranks, contestant in zip(of_method, contestants, strict=True):
        reference = baseline if contestant.is_switchagg else None
        size_rows.append(hosts_rows.row(setting, cycle, contestant.name, count, ranks, reference))
        say(hosts_rows.line(size_rows[-1]), flush=True)
    return size_rows


def _checked(plan: HostsPlan, contestant: _Contestant, arrays: _Arrays) -> tuple[int, tuple[int, ...]]:
    """Wrong elements, and digests where sums aren't exact, of as many operations as -c says."""
    wrong, digests, check = 0, [], contestant.check
    for operation in range(contestant.operations + 1, contestant.operations + 1 + plan.check):
        arrays.fill(operation)
        arrays.reset()
        contestant.begin(arrays.input_array, arrays.output_arrays[0]).wait()
        wrong += arrays.wrong(operation, check)
        digests.append(check.digest(arrays.result()))
    contestant.operations += plan.check
    return wrong, tuple(digests)


def _block(
    plan: HostsPlan, contestant: _Contestant, arrays: _Arrays, size: int, interface: str, record: MethodMeasurements
) -> MethodMeasurements:
    """`record`, and a block of timed operations; bytes are the mean over all blocks."""
    dist.barrier()
    for _ in range(plan.warmup_iters):
        _operation(contestant, arrays)
    before = interface_bytes(interface) if interface else (0, 0)
    times, cpu = zip(*(_operation(contestant, arrays) for _ in range(size)), strict=True)
    after = interface_bytes(interface) if interface else (0, 0)
    sent_bytes, received = (
        ((old or 0.0) * len(record.cpu_ns) + (last - first) / plan.agg_iters) / (len(record.cpu_ns) + size)
        for old, last, first in zip((record.tx, record.rx), after, before, strict=True)
    )
    record = replace(record, times_ns=[*record.times_ns, [*times]], cpu_ns=[*record.cpu_ns, *cpu])
    return replace(record, tx=sent_bytes, rx=received) if interface else record


def _operation(contestant: _Contestant, arrays: _Arrays) -> tuple[float, float]:
    """Time and CPU time, ns, of one of the operations that are begun at once."""
    arrays.reset()
    cpu_ns, start_ns = time.process_time_ns(), time.perf_counter_ns()
    works = [contestant.begin(arrays.input_array, output_array) for output_array in arrays.output_arrays]
    for work in works:
        work.wait()
    end_ns = time.perf_counter_ns()
    cpu_ns = time.process_time_ns() - cpu_ns
    return (end_ns - start_ns) / len(works), cpu_ns / len(works)
