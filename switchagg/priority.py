"""Priority classes: 0 is the most urgent, 7 is best effort; what each looks like on the wire (W10).

A class is three bits of the packet: the class selectors of RFC 2474, in the upper three of the DSCP's six bits, the
larger the more urgent, so that a queue that knows nothing of us serves them in the right order. Best effort is DSCP 0:
a job without priorities sends what it always sent.
"""

from collections.abc import Sequence

CLASSES = 8
MOST_URGENT = 0
BEST_EFFORT = CLASSES - 1

SOCKET_PRIORITY_MAX = 6
"""Largest SO_PRIORITY that needs no privilege: classes 0 and 1 share it and differ in their DSCP."""

ECN_MASK = 3
ECT_0 = 2
"""The ECN bits of who knows what marks mean."""

CE = 3
"""The network's mark."""


def class_of(priority: int) -> int:
    """The class of a stream's priority, which may be any number: what lies beyond the ends counts as the end."""
    return min(max(priority, MOST_URGENT), BEST_EFFORT)


def dscp_of(priority: int) -> int:
    """The DSCP of a priority's class: CS7 (56) for class 0, down to CS0 (0) for class 7."""
    return (BEST_EFFORT - class_of(priority)) * 8


def tos_of(priority: int, tos: int = 0) -> int:
    """The TOS byte (IPv6: traffic class) of a priority's packets from a socket whose own is `tos`.

    Classes 0 to 6 replace the DSCP and leave the two ECN bits; best effort leaves the whole byte.
    """
    dscp = dscp_of(priority)
    return dscp << 2 | tos & ECN_MASK if dscp else tos


def class_of_tos(tos: int) -> int:
    """The class in which a TOS byte travels: every DSCP belongs to the class of its upper three bits."""
    return BEST_EFFORT - (tos >> 5 & BEST_EFFORT)


def socket_priority_of(priority: int) -> int:
    """SO_PRIORITY of a priority's class: 0 for best effort, higher is more urgent, as Linux and 802.1p count."""
    return min(BEST_EFFORT - class_of(priority), SOCKET_PRIORITY_MAX)


def socket_priority_of_tos(tos: int) -> int:
    """SO_PRIORITY of the class in which a TOS byte travels; Linux's own reading of IP_TOS ignores those three bits."""
    return socket_priority_of(class_of_tos(tos))


def spread(place: int, places: int, classes: Sequence[int]) -> int:
    """The class for place 0 … places − 1 in an order of urgency, where there are fewer classes than places.

    Equal shares of the order, the first places in the most urgent class. classes: those there are, in any order.
    """
    assert 0 <= place < places, (place, places)
    ordered = sorted(set(classes))
    return ordered[place * len(ordered) // places]


def flow_of(priority: int, classes: Sequence[int]) -> int:
    """Where in `classes`, the most urgent first, a priority belongs: the first class no more urgent than it, or the
    last; 0 if there are none."""
    kind = class_of(priority)
    return next((place for place, other in enumerate(classes) if other >= kind), max(0, len(classes) - 1))


def marks(priorities: Sequence[int], tos: int = 0) -> tuple[int, ...]:
    """`tos_of` each; empty if no stream has a class other than best effort: nothing is to be marked then."""
    if all(class_of(priority) == BEST_EFFORT for priority in priorities):
        return ()
    return tuple(tos_of(priority, tos) for priority in priorities)
