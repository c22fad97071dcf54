"""Child processes of a chaos run that are no ranks: the switch daemon, as `switchagg switch` runs it."""

from __future__ import annotations

import msgspec

from transport.switch.daemon import run_switch
from transport.switch.daemon_options import DaemonOptions


class ChaosSwitchPlace(msgspec.Struct):
    """The addresses of a switch, and how long it waits."""

    control: str
    data: tuple[str, int]
    lease_s: float
    drain_s: float


def run_switch_child(words: str) -> int:
    """A switch until it is asked to end. words: a ChaosSwitchPlace as JSON."""
    place = msgspec.json.decode(words, type=ChaosSwitchPlace)
    return run_switch(DaemonOptions(place.control, place.data, lease_s=place.lease_s, drain_s=place.drain_s))
