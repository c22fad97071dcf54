"""One network of the benchmark: the Mininet star, shaped or not, with a switch process for each data plane asked for.

Unshaped links keep a plain FIFO as root, which counts bytes and packets as HTB does (a GSO bundle as its segments) and
limits nothing.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from emulation.bench.allreduce.methods import Method
from emulation.bounds import Network, elements_of
from emulation.errors import RunFailed
from emulation.mininet import netns
from emulation.mininet.qdisc import QdiscReader
from emulation.mininet.shaping import RATE_MOST_BPS, NetworkSpec, UnfitError
from emulation.mininet.switch_process import RunningDataPlane, SwitchPlace
from switchagg.dataplane.table import DATAPLANES
from switchagg.errors import SwitchaggError
from transport.links.table import LINKS
from transport.worker.options import SEGMENTS_MAX

if TYPE_CHECKING:
    from emulation.mininet.topology import EmulatedNetwork
    from switchagg.native.bpf import LossProgram

CONTROL_PORT = 5600
UNSHAPED_QUEUE = "pfifo limit 10000"
QUEUE_SHARE_NS = 4_000_000  # of the link's rate: what a TCP sender may hold, half of the queue at 1 Gb/s


@dataclass(frozen=True)
class BenchNetwork:
    """A star of `workers`; rate_bps None: unshaped."""

    workers: int
    rate_bps: int | None
    mtu_bytes: int = 1500
    elements: int = 360
    window_slots: int = 256
    streams: int = 2
    segments_max: int = SEGMENTS_MAX  # packets per send of the switch's workers: what a shaper's burst holds
    loss: float | None = None  # share of the packets lost on every link, in each direction; 0: its machinery alone
    lost_in_switch: bool = False  # by the native switch itself instead of programs on the links: no other method's way
    seed: int = 1

    @property
    def title(self) -> str:
        from emulation.certificate.fidelity import rate_text

        where = " in the switch" if self.lost_in_switch else ""
        lost = f", {100 * self.loss:g} % lost{where}" if self.loss is not None else ""
        return f"n = {self.workers}, {'unshaped' if self.rate_bps is None else rate_text(self.rate_bps)}{lost}"

    @property
    def tcp_buffer_bytes(self) -> int:
        """What a ring's socket may hold: enough to keep the link busy, less than the queue that it would overflow."""
        if self.rate_bps is None:
            return 4 << 20
        return max(256 << 10, self.rate_bps * QUEUE_SHARE_NS // 8_000_000_000)

    def links(self, rate_bps: int) -> Network:
        """What bounds an allreduce, of a shaped network."""
        return Network(self.workers, rate_bps, self.mtu_bytes, self.elements)

    def elements_of(self, method: Method) -> int:
        """Values in a packet of the switch."""
        return elements_of(method.method, self.elements, self.mtu_bytes)


@dataclass
class SwitchProcess:
    """A data plane that runs in the switch's namespace."""

    plane: str
    control: str
    running: RunningDataPlane

    def check(self) -> None:
        """Raises RunFailed if it has ended."""
        if self.running.ended:
            words = self.running.last_line() or "it wrote nothing"
            raise RunFailed(f"switch:{self.plane}: its process ended: {words.removeprefix('switchagg: ')}")


class RunningNetwork:
    """The network while it runs: a context manager that ends all it has started. Raises UnfitError, RunFailed."""

    def __init__(self, wish: BenchNetwork) -> None:
        from emulation.mininet import topology

        self.wish = wish
        spec = NetworkSpec(wish.workers, wish.rate_bps or RATE_MOST_BPS, mtu_bytes=wish.mtu_bytes)
        self.star: EmulatedNetwork = topology.EmulatedNetwork(spec)
        self.switches: dict[str, SwitchProcess] = {}
        self._losses: list[LossProgram] = []
        self._root_kinds: set[str] = set()

    def __enter__(self) -> RunningNetwork:
        self.star.__enter__()
        try:
            if self.wish.rate_bps is None:
                self._unshape()
            if self.wish.loss is not None and not self.wish.lost_in_switch:
                self._lose(self.wish.loss)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for running in self.switches.values():
            running.running.close()
        for program in self._losses:
            program.close()
        self.star.close()

    @property
    def facts(self) -> dict[str, Any]:
        """As read back from the kernel. Unshaped links have no rate."""
        found = dataclasses.asdict(self.star.verification)
        if self.wish.rate_bps is None:
            for port in found["ports"]:
                port.update(rate_bps=None, ceil_bps=None, burst_bytes=None, queue_bytes=None)
            found["root_qdiscs"] = sorted(self._root_kinds - {"noqueue"})
            found["notes"] = [f"links are not shaped; their root qdisc is {UNSHAPED_QUEUE}, which counts"]
        return found

    def start_switch(self, method: Method) -> SwitchProcess:
        """Starts the data plane of a method and waits until it answers. Raises RunFailed with its error."""
        wish, at_ports = self.wish, DATAPLANES[method.variant].in_kernel
        port = CONTROL_PORT + 2 * len(self.switches)
        ports = self.star.verification.ports
        place = SwitchPlace(
            control_port=port,
            data_port=LINKS[method.carrier].port or port + 1,
            dataplane=method.variant,
            link=method.carrier,
            elements=wish.elements_of(method),
            slots=wish.streams * wish.window_slots,
            interfaces=tuple(port.interface for port in ports if port.node == "s1") if at_ports else (),
            impair=f"loss={wish.loss!r},seed={wish.seed}" if wish.lost_in_switch and wish.loss is not None else "",
        )
        running = RunningDataPlane(self.star.switch_pid, place.process())
        started = self.switches[method.name] = SwitchProcess(method.variant, place.control, running)
        try:
            running.wait_until_ready()
        except UnfitError as error:
            started.check()
            raise RunFailed(f"{method.name}: its process was not ready after {running.plane.timeout_s:g} s") from error
        return started

    def check_switches(self) -> None:
        """Raises RunFailed if one has ended."""
        for running in self.switches.values():
            running.check()

    def _interfaces(self) -> list[tuple[int, list[str]]]:
        pids = {worker.name: worker.pid for worker in self.star.workers} | {"s1": self.star.switch_pid}
        ports = self.star.verification.ports
        return [(pid, [port.interface for port in ports if port.node == node]) for node, pid in pids.items()]

    def _unshape(self) -> None:
        for pid, names in self._interfaces():
            _each(pid, names, f"tc qdisc replace dev NAME root {UNSHAPED_QUEUE}")
            reader = QdiscReader(pid)
            try:
                kinds = {entry.kind for entry in reader.qdiscs() if entry.parent == 0xFFFF_FFFF}
            finally:
                reader.close()
            if "htb" in kinds or "pfifo" not in kinds:
                raise UnfitError(f"links could not be unshaped: the kernel says {', '.join(sorted(kinds))}")
            self._root_kinds |= kinds

    def _lose(self, share: float) -> None:
        """Puts a program at both ends of every link that loses packets one by one, of all methods. Raises UnfitError.

        It stands where packets come in, behind the shaper: a lost packet has used its share of the link.
        """
        from switchagg.native.bpf import LossProgram

        for place, (pid, names) in enumerate(self._interfaces()):
            for number, name in enumerate(names):
                seed = self.wish.seed * 10_000 + place * 100 + number
                try:
                    self._losses.append(netns.within(pid, partial(_losing, LossProgram, name, share, seed)))
                except (SwitchaggError, OSError) as error:
                    raise UnfitError(f"packets can't be lost on {name}: {error}") from error

    @property
    def lost(self) -> tuple[int, int]:
        """(passed, lost) packets of all links, in both directions."""
        counts = [program.counts for program in self._losses]
        return sum(passed for passed, _ in counts), sum(lost for _, lost in counts)


def _losing(make: Any, interface: str, share: float, seed: int) -> LossProgram:
    made: LossProgram = make(interface, share, seed)
    return made.__enter__()


def _each(pid: int, interfaces: Sequence[str], line: str) -> None:
    """Runs a line for each interface in a namespace. Raises UnfitError."""
    try:
        netns.run_script(pid, "\n".join(line.replace("NAME", name) for name in interfaces))
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().splitlines() or ["no message"]
        raise UnfitError(f"this machine can't set a link up: {words[-1]}") from error
