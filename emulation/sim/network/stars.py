"""The star of each method, by the name that scenarios and reports use."""

from collections.abc import Callable
from functools import partial

from emulation.sim.network.host_star import HostStar
from emulation.sim.network.ps_star import PsStar
from emulation.sim.network.star import Star, StarConfig, SwitchStar
from transport.group.method_name import HOST_METHODS

STARS: dict[str, Callable[[StarConfig], Star]] = {
    "switch": SwitchStar,
    **{method: partial(HostStar, method=method) for method in (*HOST_METHODS, "auto")},
    "ps": PsStar,
}
