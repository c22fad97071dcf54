"""Jobs' parts at the switches of a tree, as messages, and the slots that all of them hold of a job (C13, C19)."""

from switchagg.aggregator import SlotView, older
from switchagg.controller.switch_registry import merged_ranks
from switchagg.job import Address
from switchagg.membership import JobAdmitted, Share, SwitchOffer
from transport.contracts.switch_host import Uplink
from transport.control import control_messages
from transport.control.hop_secrets import HopSecrets

Slots = dict[tuple[int, int], SlotView]


def offer_of(request: control_messages.Register) -> SwitchOffer:
    """The offer of a switch that registers."""
    return SwitchOffer(
        request.name,
        request.above,
        (request.host, request.port),
        f"tcp://{request.host}:{request.control_port}",
        request.incarnation,
        request.slots,
        request.elements,
        request.packets_held,
        request.tags,
    )


def share_message(admitted: JobAdmitted, share: Share, root: Address, secrets: HopSecrets) -> control_messages.JobShare:
    """The message to a switch about a job. root: data address of the controller's own switch."""
    parent, parent_keys = None, b""
    if share.parent is not None:
        parent_keys = secrets.keys(admitted, share.parent, share.rank)
        above = next(other for other in admitted.shares if other.switch == share.parent)
        parent = (*(root if above.offer is None else above.offer.address), share.rank)
    below = [list(ranks) for ranks in share.below]
    return control_messages.JobShare(
        *control_messages.facts_of(admitted),
        list(share.children),
        below,
        parent,
        secrets.of(admitted, share.switch),
        parent_keys,
    )


def uplink_of(share: control_messages.JobShare, root_host: str) -> Uplink | None:
    """Where its sums go. root_host: the controller's, as we reach it."""
    if share.parent is None:
        return None
    host, port, rank = share.parent
    return Uplink((host or root_host, port), rank, share.parent_keys)


def merged(shares: tuple[Share, ...], slots_of: dict[str, Slots]) -> Slots:
    """(slot, version) -> the newest chunk that any switch of a job holds, and the job's ranks whose values are in it
    somewhere. slots_of: by switch, its slots, with its own ranks."""
    newest: dict[tuple[int, int], int] = {}
    for slots in slots_of.values():
        for place, view in slots.items():
            if place not in newest or older(newest[place], view.chunk):
                newest[place] = view.chunk
    merged_slots: Slots = {}
    for place, chunk in newest.items():
        views = {name: slots[place] for name, slots in slots_of.items() if place in slots}
        seen = {name: view.ranks for name, view in views.items() if view.chunk == chunk}
        merged_slots[place] = SlotView(chunk, merged_ranks(shares, seen))
    return merged_slots
