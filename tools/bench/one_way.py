"""Links one way: messages of some sizes between two namespaces joined by a veth pair, not shaped.

Every candidate is opened once; for each size there are some rounds, and in each every candidate runs once, with the
order moving on by one. The receiver times from the first message to the last.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

from emulation.experiments.bench import bandwidths
from emulation.experiments.progress_text import Log, Passing
from emulation.report import table_kit
from emulation.results.results import percentile
from emulation.scenario.errors import RunFailed
from emulation.testbed import children, netns
from emulation.testbed.children import Child, ChildFailed
from emulation.testbed.resource import Resource
from switchagg.errors import SwitchaggError
from tools.bench import rdma
from tools.bench.link_end import EndPlace, OpenCandidate, RunTransfer, TransferMeasured
from tools.bench.veth_pair import HOSTS, VethPair
from transport.meshes.job_key import TOKEN_VARIABLE, new_token

SIZES = (1024, 65_536, 1_048_576)
PLAIN = tuple(f"plain {kind} {copy}" for kind in ("dealer", "push") for copy in ("copy", "no-copy"))
CONTENDERS = ("zeromq", *PLAIN, *(f"{name} bounded" for name in PLAIN if "no-copy" in name), "tcp", "udp", "rdma")
PORT = 29_900
ROUNDS, TURN_S = 7, 0.25
QUICK_ROUNDS, QUICK_TURN_S = 3, 0.1
PROBE_BYTES = 4 << 20
ANSWER_S = 90.0


class EndpointPair(Resource):
    """The two processes. Raises RunFailed."""

    def __init__(self, pair: VethPair, bytes_most: int) -> None:
        self._pair, self._bytes_most = pair, bytes_most
        self._children: list[Child[Any]] = []

    def _open(self) -> None:
        environment = {**os.environ, TOKEN_VARIABLE: new_token()}
        module = "tools.bench.link_end"
        for member, pid in enumerate(self._pair.pids):
            place = EndPlace(member, HOSTS, self._bytes_most)
            spawn, name = partial(netns.spawn, pid), ("sender", "receiver")[member]
            self._children.append(children.start(spawn, name, module, place, TransferMeasured, environment))
        children.gather(self._children, ANSWER_S)

    def close(self) -> None:
        children.close(self._children)
        self._children.clear()

    def ask(self, order: OpenCandidate | RunTransfer) -> list[Any]:
        """Send a command to both ends; returns their answers. Raises RunFailed naming the candidate."""
        for child in self._children:
            child.send(order)
        try:
            return children.gather(self._children, ANSWER_S)
        except ChildFailed as error:
            raise RunFailed(f"{order.contender}: {error}") from error


def measure(quick: bool, log: Log, contenders: Sequence[str] = CONTENDERS) -> dict[str, Any]:
    """The part `links` of the document. A candidate that fails is left out, with its reason."""
    failures: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        log(Passing(f"links: {size} bytes, {len(contenders)} contenders"))
        speeds: dict[str, list[float]] = {}
        cpu: dict[str, list[float]] = {}
        while remaining := [name for name in contenders if name not in failures and name not in speeds]:
            with VethPair() as pair, EndpointPair(pair, max(SIZES)) as ends:
                failed = _rounds(ends, remaining, size, quick, speeds, cpu)
            for name, reason in failed.items():
                log(f"{reason}; going on without it")
                failures[name] = reason
                speeds = {}  # the others are measured again, on new processes
        rows += [_row(name, size, values, cpu[name]) for name, values in speeds.items()]
    return {"rows": rows, "failures": failures, "mtu_bytes": 1500, "writes": _writes(quick, log, failures)}


def _writes(quick: bool, log: Log, failures: dict[str, str]) -> list[dict[str, Any]]:
    """RDMA WRITE of 1 MB beside plain UDP, as `tools.bench.rdma` measures it."""
    writes = []
    for kind in ("RC", "UC"):
        for mtu in sorted(rdma.LINK_MTU):
            log(Passing(f"links: RDMA WRITE over {kind}, path MTU {mtu}"))
            how = {"cell_s": 0.3, "rounds": 2} if quick else {"cell_s": 0.6, "rounds": 5}
            try:
                writes.append(rdma.rdma_write_throughput(kind, mtu, **how))  # type: ignore[arg-type]
            except (RunFailed, SwitchaggError) as error:
                failures[f"RDMA {kind} {mtu}"] = f"RDMA WRITE over {kind}, path MTU {mtu}: {error}"
    return writes


def _rounds(
    ends: EndpointPair,
    contenders: Sequence[str],
    size: int,
    quick: bool,
    speeds: dict[str, list[float]],
    cpu: dict[str, list[float]],
) -> dict[str, str]:
    """All rounds of one size; the candidate that failed, with its reason, after which the processes are of no use."""
    rounds, turn_s = (QUICK_ROUNDS, QUICK_TURN_S) if quick else (ROUNDS, TURN_S)
    counts: dict[str, int] = {}
    name = ""
    try:
        for number, name in enumerate(contenders):
            ends.ask(OpenCandidate(name, PORT + number))
            counts[name] = max(8, PROBE_BYTES // size)
            speed = _run(ends, name, size, counts[name])[0]
            counts[name] = max(8, int(turn_s * speed / size))
        for turn in range(rounds):
            for place in range(len(contenders)):
                name = contenders[(turn + place) % len(contenders)]
                speed, cpu_ns = _run(ends, name, size, counts[name])
                speeds.setdefault(name, []).append(speed)
                cpu.setdefault(name, []).append(cpu_ns)
    except RunFailed as error:
        return {name: str(error)}
    return {}


def _run(ends: EndpointPair, name: str, size: int, count: int) -> tuple[float, float]:
    """Bytes per second, and CPU time of both processes per message."""
    answers = ends.ask(RunTransfer(name, size, count))
    duration_ns = max(1, answers[1].duration_ns)
    return size * (count - 1) * 1e9 / duration_ns, sum(answer.cpu_ns for answer in answers) / count


def _row(name: str, size: int, speeds: Sequence[float], cpu: Sequence[float]) -> dict[str, Any]:
    speed = bandwidths.spread(speeds)
    return {
        "name": name,
        "size_bytes": size,
        "bytes_per_s": dataclasses.asdict(speed),
        "messages_per_s": speed.median / size,
        "cpu_ns_per_message": percentile(cpu, 0.5),
    }


def best_plain(rows: Sequence[dict[str, Any]], size: int) -> dict[str, Any] | None:
    """The fastest of the plain ways at this size."""
    plain_rows = [row for row in rows if row["size_bytes"] == size and row["name"].startswith("plain")]
    return max(plain_rows, key=lambda row: float(row["bytes_per_s"]["median"]), default=None)


def lines(part: dict[str, Any]) -> list[str]:
    """The table for people."""
    cells = []
    for row in part["rows"]:
        speed, plain = row["bytes_per_s"], best_plain(part["rows"], row["size_bytes"])
        share = f"{100 * speed['median'] / plain['bytes_per_s']['median']:.0f} %" if plain else "-"
        cells.append(
            (
                row["name"],
                str(row["size_bytes"]),
                f"{speed['median'] * 8e-9:.2f}",
                f"{speed['p25'] * 8e-9:.2f} … {speed['p75'] * 8e-9:.2f}",
                f"{row['messages_per_s']:.0f}",
                f"{row['cpu_ns_per_message'] / 1e3:.1f}",
                share,
            )
        )
    head = ("one way, veth, not shaped", "size (B)", "Gb/s", "25 % … 75 %", "messages/s", "CPU (us/message)")
    return [*table_kit.columns((*head, "of plain pyzmq"), cells), "", *_write_lines(part["writes"])]


def _write_lines(writes: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for write in writes:
        rdma_gbps, plain = write["rdma_gbps"], write["udp_gbps"]
        cells.append(
            (
                f"RDMA WRITE {write['kind']}, path MTU {write['mtu']}",
                str(write["message_bytes"]),
                f"{rdma_gbps['median']:.2f}",
                f"{rdma_gbps['low']:.2f} … {rdma_gbps['high']:.2f}",
                f"{plain['median']:.2f}",
                f"{100 * write['share']:.0f} %",
            )
        )
    head = ("one way, veth, not shaped", "size (B)", "Gb/s", "least … most", "plain UDP (Gb/s)", "of plain UDP")
    return table_kit.columns(head, cells)


def missing() -> str:
    """Why no veth pair can be had here; "" if it can."""
    if not netns.is_privileged():
        return "needs root (network namespaces)"
    lacking = [name for name in ("ip", "unshare", "mnexec", "setpriv") if shutil.which(name) is None]
    return f"{', '.join(lacking)} is missing" if lacking else ""
