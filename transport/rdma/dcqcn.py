"""DCQCN as the C core has it (transport/native/roce/dcqcn.h): its parameters, a state machine for tests."""

import ctypes
from typing import Any

from switchagg.native import headers, library

DcqcnConfig = headers.struct("sa_dcqcn_config")
"""Parameters; bounds and meaning are in dcqcn.h. Rates in bit/s."""

_DcqcnState = headers.struct("sa_dcqcn")


class ReactionPoint:
    """A sender's rate; see dcqcn.h. Times are nanoseconds, not negative, never decreasing.

    Raises ValueError for a config outside its bounds, `library.CoreMissing` without the compiled core.
    """

    def __init__(self, config: Any, now_ns: int = 0) -> None:
        self._library = library.load()
        self.state = _DcqcnState()
        self._place = ctypes.byref(self.state)
        if self._library.sa_dcqcn_init(self._place, ctypes.byref(config), now_ns):
            raise ValueError("DCQCN: a parameter is outside its bounds (transport/native/roce/dcqcn.h)")

    def cnp(self, now_ns: int) -> None:
        """A CNP came: cut."""
        self._library.sa_dcqcn_cnp(self._place, now_ns)

    def rate_bps(self, now_ns: int) -> int:
        """The rate now."""
        rate: int = self._library.sa_dcqcn_rate_bps(self._place, now_ns)
        return rate

    def allowance(self, burst_bytes: int, now_ns: int) -> int:
        """How many bytes may be sent now, at most burst_bytes at once."""
        allowed: int = self._library.sa_dcqcn_allowance(self._place, burst_bytes, now_ns)
        return allowed

    def on_sent(self, size_bytes: int, now_ns: int) -> None:
        """Count bytes that were sent."""
        self._library.sa_dcqcn_sent(self._place, size_bytes, now_ns)

    def next_ns(self, burst_bytes: int, now_ns: int) -> int:
        """When the allowance is more than 0."""
        due_ns: int = self._library.sa_dcqcn_next_ns(self._place, burst_bytes, now_ns)
        return due_ns


def default_config(line_bps: int) -> Any:
    """The paper's parameters, a `DcqcnConfig`, on a link of this rate."""
    config = DcqcnConfig()
    library.load().sa_dcqcn_defaults(ctypes.byref(config), line_bps)
    return config
