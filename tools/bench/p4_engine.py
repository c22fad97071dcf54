"""The P4 engine: what a packet costs in memory and on veth interfaces, and how long a program takes to be ready.

The program is programs/v1model/switchagg.p4 of switchagg with 32 values to a packet. In memory, the engine gets full
windows of two workers' packets on one core. On veth: `switchagg p4 run` between two workers that keep a window in
flight and check every sum, and, where it is installed, bmv2's simple_switch in its place, in turns.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emulation.experiments.bench import bandwidths
from emulation.experiments.bench.plane_times import BUNDLE_ROWS, WINDOW, BundleTraffic
from emulation.experiments.progress_text import Log, Passing
from emulation.report import table_kit
from emulation.scenario.errors import RunFailed
from emulation.testbed import children, netns, patience
from emulation.testbed.children import Child
from emulation.testbed.mininet.services import switchagg_command
from switchagg.dataplane.p4 import bmv2_plane, p4_plane
from switchagg.dataplane.p4.plane_program import HEADERS_BYTES, PROGRAMS, PlaneControl, Run, defines, headers_of
from switchagg.errors import SwitchaggError
from tools.bench.p4_worker import BeginSending, Counts, WorkerPlace, job_of
from tools.bench.veth_pair import VethPair

if TYPE_CHECKING:
    from p4vm.control.controlled_switch import ControlledSwitch


ELEMENTS, WORKERS, SLOTS, VETH_WINDOW = 32, 2, 256, 32
ANSWER_S = 60.0
START = """import sys, time
begun = time.perf_counter()
from pathlib import Path
from p4vm.compile import compile_program
program, backend, cache, *macros = sys.argv[1:]
compile_program(program, backend=backend, defines=dict(word.split("=") for word in macros), cache=Path(cache))
print(time.perf_counter() - begun)
"""


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The part `p4` of the document: rows (in memory), starts (seconds to ready), veth, failures."""
    part: dict[str, Any] = {"rows": [], "starts": [], "veth": [], "failures": {}}
    if reason := p4_plane.missing():
        part["failures"]["p4"] = reason
        return part
    for backend, seconds in (("native", 0.3 if quick else 2.0), ("python", 0.5 if quick else 3.0)):
        log(Passing(f"P4 engine {backend}, in memory"))
        try:
            part["rows"].append(in_memory(backend, seconds))
            part["starts"] += starts(backend, 1 if quick else 5)
        except (SwitchaggError, RunFailed) as error:
            part["failures"][f"p4 {backend}"] = str(error)
    log(Passing("P4 switch on veth"))
    try:
        part["veth"] = on_veth(1.0 if quick else 3.0, 1 if quick else 5, log)
    except (SwitchaggError, RunFailed, subprocess.SubprocessError, OSError) as error:
        part["failures"]["p4 on veth"] = str(error)
    return part


def lines(part: dict[str, Any]) -> list[str]:
    """The tables for people."""
    text_lines = table_kit.columns(
        ("in memory", "packets/s", "ns per packet", "min", "max"),
        [
            (
                row["backend"],
                f"{1e9 / row['ns']['median']:,.0f}",
                *(f"{row['ns'][k]:,.0f}" for k in ("median", "least", "most")),
            )
            for row in part["rows"]
        ],
    )
    text_lines += table_kit.columns(
        ("compile to ready", "seconds", "min", "max"),
        [(row["what"], *(f"{row['seconds'][k]:.2f}" for k in ("median", "least", "most"))) for row in part["starts"]],
    )
    text_lines += table_kit.columns(
        ("on veth, 2 workers", "packets in/s", "min", "max", "results", "wrong", "resent"),
        [
            (row["switch"], *(f"{row['pps'][k]:,.0f}" for k in ("median", "least", "most")),
             str(row["results"]), str(row["wrong"]), str(row["resent"]))
            for row in part["veth"]
        ],
    )  # fmt: skip
    return text_lines


# ---- in memory


def in_memory(backend: str, budget_s: float) -> dict[str, Any]:
    """ns per packet: a turn of all workers' packets in one call, the frames made before. Sums are checked once."""
    traffic = BundleTraffic(WORKERS, ELEMENTS)
    check(backend)
    switch = admitted(backend, traffic)
    engine: Any = switch.engine
    samples: list[float] = []
    ends = time.perf_counter() + budget_s
    try:
        for number, turn in enumerate(traffic.turns()):
            ports = np.repeat([port for _, port in turn], BUNDLE_ROWS).astype(np.uint16)
            frames = np.concatenate([with_headers(bundle, port) for bundle, port in turn])
            if backend == "native":
                offsets = np.arange(0, frames.size + 1, frames.shape[1], dtype=np.uint32)
                data = frames.reshape(-1)
                begun_ns = time.perf_counter_ns()
                engine.run_batch(ports, offsets, data)
            else:
                rows, places = [row.tobytes() for row in frames], ports.tolist()
                begun_ns = time.perf_counter_ns()
                engine.process_many(places, rows)
            duration_ns = time.perf_counter_ns() - begun_ns
            if number > 1:
                samples.append(duration_ns / traffic.packets)
            if number > 3 and time.perf_counter() > ends:
                break
    finally:
        engine.close()
    return {"backend": backend, "elements": ELEMENTS, "workers": WORKERS, "ns": asdict(bandwidths.spread(samples))}


def admitted(backend: str, traffic: BundleTraffic) -> ControlledSwitch:
    """The program with the traffic's job in its tables, its workers behind ports 1 and 2."""
    switch, run = started(backend)
    PlaneControl(run, ELEMENTS, SLOTS, p4_plane.PORTS).admit(traffic.job, traffic.ports)
    return switch


def started(backend: str) -> tuple[ControlledSwitch, Run]:
    """The program on an engine, and what carries out commands for it. Raises SwitchaggError: it can't be compiled."""
    from p4vm.commands.line import run_command
    from p4vm.compile import compile_program
    from p4vm.control.controlled_switch import ControlledSwitch
    from p4vm.source import P4vmError

    program = PROGRAMS / "v1model/switchagg.p4"
    try:
        switch = ControlledSwitch(compile_program(program, backend=backend, defines=defines(ELEMENTS, SLOTS)))
    except P4vmError as error:
        raise SwitchaggError(str(error)) from error
    return switch, lambda commands: [run_command(switch, command) for command in commands]


def with_headers(bundle: Any, port: int) -> Any:
    frames = np.empty((len(bundle), HEADERS_BYTES + bundle.shape[1]), np.uint8)
    frames[:, :HEADERS_BYTES] = np.frombuffer(headers_of(port, bundle.shape[1]), np.uint8)
    frames[:, HEADERS_BYTES:] = bundle
    return frames


def check(backend: str) -> None:
    """Raise RunFailed unless a turn gives what the reference gives."""
    from switchagg.dataplane.reference import ReferencePlane

    traffic = BundleTraffic(WORKERS, ELEMENTS)
    planes = p4_plane.P4Plane(WINDOW, ELEMENTS, backend=backend), ReferencePlane(WINDOW, ELEMENTS)
    for plane in planes:
        plane.admit(traffic.job, traffic.ports)
    for bundle, port in next(traffic.turns()):
        outputs = [
            [(row.tobytes(), output.ports) for output in plane.process(bundle, port) for row in output.bundle]
            for plane in planes
        ]
        if outputs[0] != outputs[1]:
            raise RunFailed(f"the P4 engine ({backend}) and the reference differ")


def starts(backend: str, rounds: int) -> list[dict[str, Any]]:
    """Seconds from importing the engine to a program that is ready, in a new process: without a cache, and with it."""
    cold: list[float] = []
    cached: list[float] = []
    program = str(PROGRAMS / "v1model/switchagg.p4")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-P", "-c", START, program, backend, place]
            command += [f"{name}={value}" for name, value in defines(ELEMENTS, SLOTS).items()]
            for samples in (cold, cached):
                done = patience.run(command, ANSWER_S)
                if done.returncode:
                    raise RunFailed(f"the program could not be compiled: {done.stderr.strip().splitlines()[-1]}")
                samples.append(float(done.stdout))
    return [
        {"what": f"{backend}, {kind}", "backend": backend, "kind": kind, "seconds": asdict(bandwidths.spread(samples))}
        for kind, samples in (("cold", cold), ("cached", cached))
    ]


# ---- on veth


def on_veth(seconds: float, rounds: int, log: Log) -> list[dict[str, Any]]:
    """Packets per second into the switch, per candidate; rounds in turns."""
    contenders = ["native"]
    if not (reason := bmv2_plane.missing()):
        contenders.append("simple_switch")
    else:
        log(f"bmv2 is not here to be measured beside: {reason}")
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in contenders:
            samples[name].append(one_run(name, seconds))
    return [
        {
            "switch": name,
            "pps": asdict(bandwidths.spread([run["packets_in"] / run["seconds"] for run in runs])),
            **{what: int(sum(run[what] for run in runs)) for what in ("results", "wrong", "resent")},
        }
        for name, runs in samples.items()
    ]


def one_run(name: str, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place, VethPair(links=2) as links:
        commands = Path(place) / "commands"
        commands.write_text("\n".join(set_up()) + "\n")
        switch = start_simple_switch if name == "simple_switch" else start_engine
        processes = switch(links, commands, Path(place))
        try:
            return drive(links, seconds)
        finally:
            for process in reversed(processes):
                netns.end(process)


def set_up() -> list[str]:
    """The commands that fill a fresh program's tables and registers for the workers' job."""
    _, run = started("python")
    recorded: list[str] = []

    def record(commands: Sequence[str]) -> list[str]:
        recorded.extend(commands)
        return run(commands)

    PlaneControl(record, ELEMENTS, SLOTS, WORKERS).admit(job_of(WORKERS, ELEMENTS, VETH_WINDOW), range(WORKERS))
    return recorded


def start_engine(links: VethPair, commands: Path, place: Path) -> list[subprocess.Popen[bytes]]:
    ready = place / "ready"
    words = [word for port, name in enumerate(links.names[0]) for word in ("-i", f"{port}@{name}")]
    words += [word for name, value in defines(ELEMENTS, SLOTS).items() for word in ("-D", f"{name}={value}")]
    program = str(PROGRAMS / "v1model/switchagg.p4")
    words += ["--commands", str(commands), "--ready-file", str(ready), "--control", str(place / "control")]
    command = switchagg_command("p4", "run", program, *words, "--backend", "native")
    process = netns.spawn(links.pids[0], command, stdout=subprocess.DEVNULL, stderr=(place / "log").open("wb"))
    wait_for(process, ready.exists, place)
    return [process]


def start_simple_switch(links: VethPair, commands: Path, place: Path) -> list[subprocess.Popen[bytes]]:
    words = [word for port, name in enumerate(links.names[0]) for word in ("-i", f"{port}@{name}")]
    command = ["simple_switch", *words, "--thrift-port", "9090", str(bmv2_plane.compiled((ELEMENTS, False), SLOTS))]
    log = (place / "log").open("wb")
    process = netns.spawn(links.pids[0], command, stdout=log, stderr=log)
    listening = Path(f"/proc/{process.pid}/net/tcp"), Path(f"/proc/{process.pid}/net/tcp6")
    wait_for(process, lambda: any(":2382 " in path.read_text() for path in listening), place)
    with commands.open("rb") as commands_file:
        cli = ["simple_switch_CLI", "--thrift-port", "9090"]
        filled = netns.spawn(links.pids[0], cli, stdin=commands_file, stdout=subprocess.DEVNULL, stderr=log)
        filled.wait(ANSWER_S)
    return [process]


def wait_for(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], place: Path) -> None:
    limit = patience.Patience(ANSWER_S, lambda: [process.pid], "the P4 switch has not started")
    while not is_ready():
        if process.poll() is not None or limit.over():
            log_lines = (place / "log").read_text(errors="replace").strip().splitlines()
            netns.end(process)
            raise RunFailed(f"the P4 switch did not start: {log_lines[-1] if log_lines else 'it said nothing'}")
        time.sleep(0.02)


def drive(links: VethPair, seconds: float) -> dict[str, float]:
    """Run both workers at once; returns the sums of their counts."""
    workers: list[Child[Counts]] = []
    try:
        for rank, interface in enumerate(links.names[1]):
            place = WorkerPlace(rank, WORKERS, interface, ELEMENTS, VETH_WINDOW, seconds)
            spawn = partial(netns.spawn, links.pids[1])
            workers.append(children.start(spawn, f"worker {rank}", "tools.bench.p4_worker", place, Counts))
        children.gather(workers, ANSWER_S)
        for worker in workers:
            worker.send(BeginSending())
        counts: list[Counts] = children.gather(workers, seconds + ANSWER_S)
    finally:
        children.close(workers)
    return {
        "results": sum(count.results for count in counts),
        "wrong": sum(count.wrong for count in counts),
        "resent": sum(count.resent for count in counts),
        "packets_in": sum(count.sent_packets + count.resent for count in counts),
        "seconds": max(count.seconds for count in counts),
    }
