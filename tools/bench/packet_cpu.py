"""Where the CPU time of a packet goes, at a worker and at the switch: ns per packet by part, and by kernel function.

A scenario of the benchmark (allreduce through the native switch in network namespaces) runs while all CPUs are sampled.
The scheduler's own account says how much time a process took; the samples say on what.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulation.experiments.bench.allreduce.allreduce_cells import Bench, BenchRequest
from emulation.experiments.bench.allreduce.rank_messages import OperationsMeasured, RunOperations
from emulation.experiments.bench.allreduce.ranks import Ranks
from emulation.experiments.progress_text import Passing
from emulation.report.table_kit import columns
from emulation.testbed.mininet.launch import RunningScenario
from switchagg.native import library
from tools.bench.sampling import Sample, Sampler, Symbols

WARMUP_OPERATIONS = 3
OPERATIONS_MOST = 1000

OTHER_USER = "Python and libraries"
OTHER_KERNEL = "kernel: interrupts, the rest"
LOOP = "protocol and loop"
USER_PARTS = {
    "exponents": ("sa_greatest_magnitude", "greatest32", "greatest64", "prepare", "sa_own_codes"),
    "values to integers": (
        *("quantise32", "quantise64", "quantise", "encode", "split64"),
        *("encode_nearest", "encode_random", "add_nearest", "add_random", "fill", "swap"),
    ),
    "integers to values": ("dequantise32", "dequantise64", "dequantise", "decode", "join64"),
    "values, byte order (int32)": ("swap32",),
    "tags of sums": (
        *("sa_verified_put_tag", "sa_verified_fits", "sa_hash_signed", "sa_hash_unsigned", "hash_of", "hash_wide"),
        *("add_vectors", "add_products", "sa_tag_pads", "randoms", "tag_of"),
    ),
    "switch rule": (
        *("sa_plane_accept", "accept_routed", "address", "accept_at_leaf", "accept_result"),
        *("combine", "write_values", "add_values", "take_maxima", "emit"),
    ),
}
KERNEL_PARTS = {
    "kernel: copy in": ("_copy_from_iter", "copy_from_iter", "skb_copy_to_page_nocache"),
    "kernel: copy out": ("_copy_to_iter", "copy_to_iter", "_copy_to_user"),
    "kernel: wake-ups": ("try_to_wake_up", "__wake_up_common", "__wake_up_sync_key", "sock_def_readable"),
    "kernel: delivery (softirq)": ("handle_softirqs", "__do_softirq", "net_rx_action", "do_softirq"),
    "kernel: sleep, context switches": (
        *("schedule", "__schedule", "do_poll", "do_sys_poll", "__x64_sys_ppoll", "__se_sys_ppoll", "ksys_read"),
        *("__x64_sys_futex", "do_futex", "schedule_hrtimeout_range_clock", "hrtimer_interrupt"),
    ),
    "kernel: send": ("__sys_sendmmsg", "__sys_sendmsg", "___sys_sendmsg", "__x64_sys_sendmmsg"),
    "kernel: receive": ("__sys_recvmmsg", "do_recvmmsg", "___sys_recvmsg", "__x64_sys_recvmmsg"),
    "kernel: page faults": ("exc_page_fault", "asm_exc_page_fault"),
}
"""In the kernel the innermost function of a chain that is named here decides."""

_USER_PART = {name: part for part, names in USER_PARTS.items() for name in names}
_KERNEL_PART = {name: part for part, names in KERNEL_PARTS.items() for name in names}
PARTS = (*USER_PARTS, LOOP, OTHER_USER, *KERNEL_PARTS, OTHER_KERNEL)


@dataclass(frozen=True)
class CpuShare:
    """A process's CPU time by part and by function. samples: how many these figures are of."""

    cpu_ns_per_packet: float
    samples: int
    parts: dict[str, float]  # ns per packet
    functions: dict[str, float]  # of core and kernel, without what they call; the dearest first
    packets_per: dict[str, float]  # send, receive, sleep


@dataclass(frozen=True)
class PacketCost:
    """worker: the mean of all. packets: that one worker sent, each answered by a result."""

    title: str
    packets: int
    operations: int
    worker: CpuShare
    switch: CpuShare


def measure(request: BenchRequest, seconds: float, log: Callable[[str], None]) -> PacketCost:
    """Runs the request's first method at its first size. Raises UnfitError, RunFailed."""
    method, scenario, size_bytes = request.methods[0], request.scenario, request.sizes[0]
    log(Passing(f"{scenario.title}: building the network, starting {scenario.topology.workers} ranks"))
    with RunningScenario(scenario) as network:
        switch = network.start_switch(method.cell(scenario, size_bytes), method.method, method.name)
        with Ranks(network, request.dtype, size_bytes, seconds + 60.0) as ranks:
            Bench(request, network, {method: switch}, ranks).open(method)
            switch_pid = switch.running.process.pid
            pids = [*ranks.pids, switch_pid]

            def run(operations: int) -> list[OperationsMeasured]:
                answers: list[OperationsMeasured] = ranks.ask(
                    RunOperations(method, size_bytes, operations, 0, size_bytes, 0, False), seconds + 60.0
                )
                return answers

            times_ns = [call.end_ns - call.start_ns for call in run(WARMUP_OPERATIONS)[0].operations]
            operations = max(1, min(OPERATIONS_MOST, round(seconds * 1e9 / 2 / min(times_ns))))
            log(Passing(f"{operations} operations of {size_bytes} bytes, sampled"))
            with Sampler() as sampler:
                before, before_ns = network.switch_counters(switch), switch.running.cpu_ns()
                sleeps = [_sleeps(pid) for pid in pids]
                answers = run(operations)
                slept = [_sleeps(pid) - earlier for pid, earlier in zip(pids, sleeps, strict=True)]
                switch_ns = switch.running.cpu_ns() - before_ns
            after = network.switch_counters(switch)
            symbols = Symbols(Path(library.load()._name), pids)
    packets = [answer.counters["sent"] + answer.counters["retransmitted"] for answer in answers]
    calls = [[(call.start_ns, call.end_ns) for call in answer.operations] for answer in answers]
    worker_ns = sum(call.cpu_ns for answer in answers for call in answer.operations)
    in_calls = [
        sample for pid, times in zip(pids, calls, strict=False) for sample in within(sampler.samples, pid, times)
    ]
    served = [sample for sample in sampler.samples if sample.pid == switch_pid]
    return PacketCost(
        scenario.title,
        packets[0],
        operations,
        share(in_calls, worker_ns / sum(packets), symbols, bundles(answers[0].counters, slept[0])),
        share(
            served,
            switch_ns / sum(packets),
            symbols,
            bundles({name: after[name] - before.get(name, 0) for name in after}, slept[-1]),
        ),
    )


def within(samples: Iterable[Sample], pid: int, times: Sequence[tuple[int, int]]) -> list[Sample]:
    """A process's samples from the first of a pair of times to the second; pairs and samples are ascending per CPU."""
    starts = [start for start, _ in times]
    samples_within = []
    for sample in samples:
        if sample.pid == pid:
            at = bisect_right(starts, sample.time_ns) - 1
            if at >= 0 and sample.time_ns < times[at][1]:
                samples_within.append(sample)
    return samples_within


def bundles(counted: dict[str, int], sleeps: int) -> dict[str, float]:
    """Packets per send, receive and sleep of a process, from what its link has counted meanwhile."""
    received = counted["link_received_datagrams"]
    return {
        "send": counted["link_sent_datagrams"] / max(1, counted["link_sent_bundles"]),
        "receive": received / max(1, counted["link_received_bundles"]),
        "sleep": received / max(1, sleeps),
    }


def _sleeps(pid: int) -> int:
    """How often the threads of a process have gone to sleep so far."""
    texts = [(task / "status").read_text(encoding="ascii") for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def share(
    samples: Sequence[Sample], cpu_ns_per_packet: float, symbols: Symbols, packets_per: dict[str, float]
) -> CpuShare:
    """Splits a packet's time by what the samples hit."""
    unit = cpu_ns_per_packet / max(1, len(samples))
    parts = Counter(part_of(hit, symbols) for hit in samples)
    functions = Counter(symbols.of_kernel(hit.address) or symbols.of_library(hit.pid, hit.address) for hit in samples)
    functions.pop(None, None)
    return CpuShare(
        cpu_ns_per_packet,
        len(samples),
        {part: parts[part] * unit for part in PARTS if parts[part]},
        {str(name): count * unit for name, count in functions.most_common()},
        packets_per,
    )


def part_of(sample: Sample, symbols: Symbols) -> str:
    """The part of a sample, from PARTS."""
    if not symbols.of_kernel(sample.address):
        name = symbols.of_library(sample.pid, sample.address)
        return OTHER_USER if name is None else _USER_PART.get(name, LOOP)
    for address in (sample.address, *sample.chain):
        if part := _KERNEL_PART.get(symbols.of_kernel(address)):
            return part
    return OTHER_KERNEL


def lines(cost: PacketCost, functions: int) -> list[str]:
    """The table for people."""
    worker, switch = cost.worker, cost.switch

    def row(name: str, worker_ns: float, switch_ns: float) -> list[str]:
        cells = [name]
        for ns, total in ((worker_ns, worker.cpu_ns_per_packet), (switch_ns, switch.cpu_ns_per_packet)):
            cells += [f"{ns:.0f}" if ns else "-", f"{100 * ns / total:.1f} %" if ns and total else ""]
        return cells

    rows = [row(part, worker.parts.get(part, 0.0), switch.parts.get(part, 0.0)) for part in PARTS]
    rows = [cells for cells in rows if cells[1:] != ["-", "", "-", ""]]
    rows.append(row("all", worker.cpu_ns_per_packet, switch.cpu_ns_per_packet))
    names = sorted(
        {*worker.functions, *switch.functions},
        key=lambda name: -worker.functions.get(name, 0.0) - switch.functions.get(name, 0.0),
    )[:functions]
    dearest = [row(name, worker.functions.get(name, 0.0), switch.functions.get(name, 0.0)) for name in names]
    head = ("ns of CPU per packet", "worker", "", "switch", "")
    return [
        f"# {cost.title}: {cost.operations} operations of {cost.packets // cost.operations} packets per worker; "
        f"{worker.samples} and {switch.samples} samples",
        *columns(head, rows),
        "",
        *columns(
            ("packets per", "worker", "switch"),
            [
                [f"{name}", f"{worker.packets_per[name]:.1f}", f"{switch.packets_per[name]:.1f}"]
                for name in switch.packets_per
            ],
        ),
        "",
        *columns(("functions themselves, of core and kernel", "worker", "", "switch", ""), dearest),
    ]
