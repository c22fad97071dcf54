"""The switches below a controller's own, and the tree of them that a job gets (rules H1, H6 and C18 to C20).

It is pure, as the `Controller` that uses it. Every switch has a name; the controller's own is ROOT.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from switchagg.job import MAX_CHILDREN, Address
from switchagg.join import ROOT
from switchagg.membership import Share, SwitchOffer

SWITCHES_MAX = 4096

Held = Mapping[tuple[int, int], str]
"""(job_id, generation) -> "", or why it was refused, of each job that a switch was told to take."""


@dataclass(slots=True)
class _Registration:
    offer: SwitchOffer
    heard_ns: int
    held: Held = field(default_factory=dict)
    draining: str = ""


class Switches:
    """The switches that have registered and live. lease_ns: silence after which a switch is dead."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._registrations: dict[str, _Registration] = {}
        self._lost: list[tuple[str, str]] = []

    def __len__(self) -> int:
        return len(self._registrations)

    def __contains__(self, name: str) -> bool:
        return name == ROOT or name in self._registrations

    @property
    def offers(self) -> list[SwitchOffer]:
        """The offers of all switches, in the order in which they came."""
        return [registration.offer for registration in self._registrations.values()]

    def of(self, incarnation: int) -> str | None:
        """The name of a switch that lives."""
        return next(
            (
                name
                for name, registration in self._registrations.items()
                if registration.offer.incarnation == incarnation
            ),
            None,
        )

    def register(self, offer: SwitchOffer, now_ns: int) -> tuple[str, bool]:
        """Why a switch isn't taken, and whether it may ask again; "" if it is. A repeated request is a heartbeat."""
        if fault := offer.fault():
            return fault, False
        registration = self._registrations.get(offer.name)
        if registration is not None and registration.offer.incarnation == offer.incarnation:
            registration.heard_ns = now_ns
            return "", False
        path = [offer.above, *self._above(offer.above)]
        if offer.name in path:
            circle = [offer.name, *path[: path.index(offer.name) + 1]]
            return f"switches in a circle: {' is below '.join(map(repr, circle))}", False
        if offer.above not in self:
            return f"{offer} is below {offer.above!r}, which has not registered here yet", True
        if registration is not None and registration.offer.address != offer.address:
            return f"{registration.offer} has that name and is alive; give {offer} another --name", True
        if len(self._registrations) >= SWITCHES_MAX:
            return f"{SWITCHES_MAX} switches have registered already", False
        if registration is not None:
            self._lose(offer.name, f"{offer} was restarted")
        self._registrations[offer.name] = _Registration(offer, now_ns)
        return "", False

    def beat(self, name: str, held: Held, now_ns: int, draining: str = "") -> None:
        """A switch lives. held: the jobs that it took or refused; draining: why it takes no others, or ""."""
        registration = self._registrations[name]
        registration.heard_ns, registration.held, registration.draining = now_ns, held, draining

    def withdraw(self, name: str, reason: str) -> None:
        """A switch goes on its own."""
        self._lose(name, f"{self._registrations[name].offer} has stopped{': ' * bool(reason)}{reason}")

    def expire(self, now_ns: int) -> None:
        """Removes the switches whose lease has ended."""
        for name, registration in list(self._registrations.items()):
            if now_ns - registration.heard_ns >= self._lease_ns:
                silence = f"no heartbeat for {self._lease_ns / 1e9:g} s (dead, stopped or cut off)"
                self._lose(name, f"{registration.offer}: {silence}")

    def lost(self) -> list[tuple[str, str]]:
        """Names of switches that were lost since the last call, and why."""
        lost, self._lost = self._lost, []
        return lost

    def deadlines_ns(self) -> list[int]:
        """When leases end."""
        return [registration.heard_ns + self._lease_ns for registration in self._registrations.values()]

    def tree(self, vias: Sequence[tuple[str, Address]]) -> tuple[Share, ...] | str:
        """The job's part at each switch, its root's first, or why there is no such tree. vias: by rank, the switch
        that a worker sends to, and its address. The job's root is the lowest switch that all are below."""
        order: dict[str, list[str | int]] = {}
        for rank, (via, _) in enumerate(vias):
            path = [via, *self._above(via)]
            if fault := self._missing(path):
                return fault
            order.setdefault(via, []).append(rank)
            for name, above in pairwise(path):
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
            if offer and (reason := self._registrations[offer.name].draining):
                return f"{offer} drains: {reason}"
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
                children.append(self._registrations[child].offer.address)
                below.append(self._add(shares, order, vias, (child, name, number)))
        offer = None if name == ROOT else self._registrations[name].offer
        shares[at] = Share(name, offer, tuple(children), tuple(below), parent, rank)
        return tuple(sorted(rank for ranks in below for rank in ranks))

    def _missing(self, path: Sequence[str]) -> str:
        """Why a worker can't send by way of these switches, from its own upward, or ""."""
        missing = next((name for name in path if name not in self), None)
        if missing is None:
            return ""
        known = ", ".join(map(repr, sorted(self._registrations))) or "none"
        below = "" if missing == path[0] else f", which {path[0]!r} is below,"
        return f"switch {missing!r}{below} is not registered here; registered: {known}"

    def _above(self, name: str) -> list[str]:
        """The switches above a switch, upward; the last one may be missing."""
        path: list[str] = []
        while name in self._registrations and (name := self._registrations[name].offer.above) not in path:
            path.append(name)
        return path

    def _lose(self, name: str, reason: str) -> None:
        del self._registrations[name]
        self._lost.append((name, reason))


def merged_ranks(shares: Sequence[Share], seen: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The job's ranks whose values are in a chunk somewhere. seen: by switch, the ranks there that it has seen."""
    ranks: set[int] = set()
    for share in shares:
        for rank in seen.get(share.switch, ()):
            if rank < len(share.below):  # not the parent's, whose result is there
                ranks.update(share.below[rank])
    return tuple(sorted(ranks))


def limits(shares: Sequence[Share], slots: int, elements: int) -> tuple[int, int]:
    """(slots, elements) that all these switches have. slots, elements: what ROOT has."""
    offers = [share.offer for share in shares]
    return (
        min(slots if offer is None else offer.slots for offer in offers),
        min(elements if offer is None else offer.elements for offer in offers),
    )
