"""The congestion controls by name."""

from emulation.scenario.scenario_tables import CONTROLS, CUBIC
from emulation.sim.traffic.bbr import Bbr
from emulation.sim.traffic.congestion_control import CongestionControl, Reno
from emulation.sim.traffic.cubic import Cubic


def control(name: str, seed: str = "") -> CongestionControl:
    """A new one, a name of CONTROLS. seed: for what one draws."""
    if name == "bbr":
        return Bbr(seed)
    assert name in CONTROLS
    return Cubic() if name == CUBIC else Reno()
