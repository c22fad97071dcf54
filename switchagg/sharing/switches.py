"""The switches below a controller's own, and the tree of them that a job gets. Rules H1, H6 and C18 to C20.

Pure, as the `Controller` that asks it. Every switch has a name; the controller's own is ROOT.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from switchagg.job import MAX_CHILDREN, MAX_ELEMENTS, MAX_SLOTS, Address

ROOT = ""
"""Name of the controller's own switch."""

NAME_MAX = 100
SWITCHES_MAX = 4096

Held = Mapping[tuple[int, int], str]
"""(job_id, generation) -> "", or why it was refused, of each job that a switch was told to take."""


@dataclass(frozen=True, slots=True)
class SwitchOffer:
    """A switch's request to serve below others. above: name of its parent. address: of its data plane; host "": the one
    its control plane is reached at. control: its control address. incarnation: as of a Join. slots, elements:
    its memory. packets_held: of its largest packets, by its receive buffer; 0: enough (C17)."""

    name: str
    above: str
    address: Address
    control: str
    incarnation: int
    slots: int
    elements: int
    packets_held: int = 0

    def __str__(self) -> str:
        return f"switch {self.name!r} at {self.address[0]}:{self.address[1]}"

    def fault(self) -> str:
        """Why no switch can be like that, or ""."""
        if not (self.name.isprintable() and 1 <= len(self.name) <= NAME_MAX):
            return f"switch name {self.name[:NAME_MAX]!r}: 1 to {NAME_MAX} printable characters"
        for what, value, most in (("slots", self.slots, MAX_SLOTS), ("elements", self.elements, MAX_ELEMENTS)):
            if not 1 <= value <= most:
                return f"{self}: {what} {value}: 1 to {most}"
        return ""


@dataclass(frozen=True, slots=True)
class Share:
    """A job's part at one switch. children: where its ranks there send from. below: of each, the job's ranks that it
    stands for. parent: name of the switch above in the job, None at its root; rank: its own there. offer: ROOT's: None.
    """

    switch: str
    offer: SwitchOffer | None
    children: tuple[Address, ...]
    below: tuple[tuple[int, ...], ...]
    parent: str | None = None
    rank: int = 0

    def wire_rank(self, rank: int) -> int | None:
        """Of a worker of the job that sends to this switch; None: it doesn't."""
        return self.below.index((rank,)) if (rank,) in self.below else None


@dataclass(slots=True)
class _Seat:
    offer: SwitchOffer
    heard_ns: int
    held: Held = field(default_factory=dict)


class Switches:
    """Those that have registered and live. lease_ns: silence after which one is dead."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._seats: dict[str, _Seat] = {}
        self._lost: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._seats)

    def __contains__(self, name: str) -> bool:
        return name == ROOT or name in self._seats

    @property
    def offers(self) -> list[SwitchOffer]:
        """Of all, as they came."""
        return [seat.offer for seat in self._seats.values()]

    def of(self, incarnation: int) -> str | None:
        """The name of a switch that lives."""
        return next((name for name, seat in self._seats.items() if seat.offer.incarnation == incarnation), None)

    def register(self, offer: SwitchOffer, now_ns: int) -> tuple[str, bool]:
        """Why a switch isn't taken, and whether it may ask again; "" if it is. A repeated request is a heartbeat."""
        if fault := offer.fault():
            return fault, False
        earlier = self._seats.get(offer.name)
        if earlier is not None and earlier.offer.incarnation == offer.incarnation:
            earlier.heard_ns = now_ns
            return "", False
        way = [offer.above, *self._above(offer.above)]
        if offer.name in way:
            circle = [offer.name, *way[: way.index(offer.name) + 1]]
            return f"switches in a circle: {' is below '.join(map(repr, circle))}", False
        if offer.above not in self:
            return f"{offer} is below {offer.above!r}, which has not registered here yet", True
        if earlier is not None and earlier.offer.address != offer.address:
            return f"{earlier.offer} has that name and is alive; give {offer} another --name", True
        if len(self._seats) >= SWITCHES_MAX:
            return f"{SWITCHES_MAX} switches have registered already", False
        if earlier is not None:
            self._lose(offer.name, f"{offer} was restarted")
        self._seats[offer.name] = _Seat(offer, now_ns)
        return "", False

    def beat(self, name: str, held: Held, now_ns: int) -> None:
        """A switch lives, and has what it was told, or not."""
        seat = self._seats[name]
        seat.heard_ns, seat.held = now_ns, held

    def withdraw(self, name: str, reason: str) -> None:
        """A switch goes on its own."""
        self._lose(name, f"{self._seats[name].offer} has stopped{': ' * bool(reason)}{reason}")

    def expire(self, now_ns: int) -> None:
        """Loses those whose lease has ended."""
        for name, seat in list(self._seats.items()):
            if now_ns - seat.heard_ns >= self._lease_ns:
                silence = f"no heartbeat for {self._lease_ns / 1e9:g} s (dead, stopped or cut off)"
                self._lose(name, f"{seat.offer}: {silence}")

    def lost(self) -> list[tuple[str, str]]:
        """Names of switches that were lost since the last call, and why."""
        lost, self._lost = self._lost, []
        return lost

    def deadlines_ns(self) -> list[int]:
        """When leases end."""
        return [seat.heard_ns + self._lease_ns for seat in self._seats.values()]

    def tree(self, vias: Sequence[tuple[str, Address]]) -> tuple[Share, ...] | str:
        """The job's part at each switch, its root's first, of workers that send to these switches from there, by rank;
        or why there is no such tree. Its root is the lowest switch that all are below."""
        order: dict[str, list[str | int]] = {}
        for rank, (via, _) in enumerate(vias):
            way = [via, *self._above(via)]
            if fault := self._missing(way):
                return fault
            order.setdefault(via, []).append(rank)
            for name, above in pairwise(way):
                if name not in order.setdefault(above, []):
                    order[above].append(name)
        top = ROOT
        while len(order[top]) == 1 and isinstance(only := order[top][0], str):
            top = only
        shares: list[Share] = []
        self._add(shares, order, vias, (top, None, 0))
        for share in shares:
            most = MAX_CHILDREN - (share.parent is not None)
            if len(share.children) > most:
                return (
                    f"switch {share.switch!r} would have {len(share.children)} workers and switches below; {most} fit"
                )
        return tuple(shares)

    def tree_for(self, vias: Sequence[tuple[str, Address]], slots: int, elements: int) -> tuple[Share, ...] | str:
        """`tree`, where each switch has so many slots of so many elements, or why not."""
        shares = self.tree(vias)
        for share in () if isinstance(shares, str) else shares:
            if (offer := share.offer) and (slots > offer.slots or elements > offer.elements):
                wanted = f"the job needs {slots} slots of {elements}"
                return f"{offer} has {offer.slots} slots of up to {offer.elements} elements, {wanted}"
        return shares

    def _add(
        self,
        shares: list[Share],
        order: Mapping[str, Sequence[str | int]],
        vias: Sequence[tuple[str, Address]],
        place: tuple[str, str | None, int],
    ) -> tuple[int, ...]:
        """Adds the part of a switch, then those below it; returns the ranks that are below it. place: name, parent,
        rank there."""
        name, parent, rank = place
        at = len(shares)
        children: list[Address] = []
        below: list[tuple[int, ...]] = []
        shares.append(Share(name, None, (), ()))
        for number, child in enumerate(order[name]):
            if isinstance(child, int):
                children.append(vias[child][1])
                below.append((child,))
            else:
                children.append(self._seats[child].offer.address)
                below.append(self._add(shares, order, vias, (child, name, number)))
        offer = None if name == ROOT else self._seats[name].offer
        shares[at] = Share(name, offer, tuple(children), tuple(below), parent, rank)
        return tuple(sorted(rank for ranks in below for rank in ranks))

    def _missing(self, way: Sequence[str]) -> str:
        """Why a worker can't send by way of these switches, from its own upward, or ""."""
        missing = next((name for name in way if name not in self), None)
        if missing is None:
            return ""
        known = ", ".join(map(repr, sorted(self._seats))) or "none"
        below = "" if missing == way[0] else f", which {way[0]!r} is below,"
        return f"switch {missing!r}{below} is not registered here; registered: {known}"

    def _above(self, name: str) -> list[str]:
        """The switches above one, upward; the last one may be missing."""
        way: list[str] = []
        while name in self._seats and (name := self._seats[name].offer.above) not in way:
            way.append(name)
        return way

    def _lose(self, name: str, reason: str) -> None:
        del self._seats[name]
        self._lost.append((name, reason))


def merged_ranks(shares: Sequence[Share], seen: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The job's ranks whose values are in a chunk somewhere. seen: by switch, the ranks there that it has seen."""
    found: set[int] = set()
    for share in shares:
        for rank in seen.get(share.switch, ()):
            if rank < len(share.below):  # not the parent's, whose result is there
                found.update(share.below[rank])
    return tuple(sorted(found))


def limits(shares: Sequence[Share], slots: int, elements: int) -> tuple[int, int]:
    """(slots, elements) that all these switches have. slots, elements: of ROOT."""
    offers = [share.offer for share in shares]
    return (
        min(slots if offer is None else offer.slots for offer in offers),
        min(elements if offer is None else offer.elements for offer in offers),
    )
