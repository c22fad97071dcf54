"""DCQCN as the C core has it (switchagg/native/roce/dcqcn.h): its parameters, a state machine for tests."""

import ctypes
from functools import lru_cache

from switchagg.native import library

ALPHA_ONE = 1 << 20
"""SA_ALPHA_ONE: alpha counts in parts of this."""

CNP_INTERVAL_NS = 50_000
"""A receiver sends at most one CNP per queue pair in so much time."""


class DcqcnConfig(ctypes.Structure):
    """`struct sa_dcqcn_config`; bounds and meaning are there. Rates in bit/s."""

    _fields_ = [
        ("line_bps", ctypes.c_uint64),
        ("min_bps", ctypes.c_uint64),
        ("additive_bps", ctypes.c_uint64),
        ("hyper_bps", ctypes.c_uint64),
        ("byte_counter", ctypes.c_uint64),
        ("timer_ns", ctypes.c_int64),
        ("alpha_timer_ns", ctypes.c_int64),
        ("cut_interval_ns", ctypes.c_int64),
        ("recovery_rounds", ctypes.c_uint32),
        ("gain_shift", ctypes.c_uint32),
    ]


class DcqcnState(ctypes.Structure):
    """`struct sa_dcqcn`."""

    _fields_ = [
        ("config", DcqcnConfig),
        ("current_bps", ctypes.c_uint64),
        ("target_bps", ctypes.c_uint64),
        ("alpha", ctypes.c_uint32),
        ("timer_steps", ctypes.c_uint32),
        ("byte_steps", ctypes.c_uint32),
        ("cut_once", ctypes.c_bool),
        ("timer_from_ns", ctypes.c_int64),
        ("alpha_from_ns", ctypes.c_int64),
        ("cut_ns", ctypes.c_int64),
        ("bytes", ctypes.c_uint64),
        ("debt", ctypes.c_uint64),
        ("debt_ns", ctypes.c_int64),
        ("cnps", ctypes.c_uint64),
        ("cuts", ctypes.c_uint64),
    ]


class CnpGate(ctypes.Structure):
    """`struct sa_cnp_gate`."""

    _fields_ = [("last_ns", ctypes.c_int64), ("marked", ctypes.c_uint64), ("cnps", ctypes.c_uint64)]


class ReactionPoint:
    """A sender's rate; see dcqcn.h. Times are nanoseconds, not negative, never decreasing.

    Raises ValueError for a config outside its bounds, `library.CoreMissing` without the compiled core.
    """

    def __init__(self, config: DcqcnConfig, now_ns: int = 0) -> None:
        self._library = dcqcn_library()
        self.state = DcqcnState()
        self._place = ctypes.byref(self.state)
        if self._library.sa_dcqcn_init(self._place, ctypes.byref(config), now_ns):
            raise ValueError("DCQCN: a parameter is outside its bounds (switchagg/native/roce/dcqcn.h)")

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


def default_config(line_bps: int) -> DcqcnConfig:
    """The paper's parameters on a link of this rate."""
    config = DcqcnConfig()
    dcqcn_library().sa_dcqcn_defaults(ctypes.byref(config), line_bps)
    return config


@lru_cache(maxsize=1)
def dcqcn_library() -> ctypes.CDLL:
    """The library with the functions of dcqcn.h declared. Raises `library.CoreMissing`."""
    loaded = library.load()
    place, u64, i64 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64
    for function, result, arguments in (
        (loaded.sa_dcqcn_defaults, None, (place, u64)),
        (loaded.sa_dcqcn_init, ctypes.c_int, (place, place, i64)),
        (loaded.sa_dcqcn_cnp, None, (place, i64)),
        (loaded.sa_dcqcn_rate_bps, u64, (place, i64)),
        (loaded.sa_dcqcn_allowance, u64, (place, u64, i64)),
        (loaded.sa_dcqcn_sent, None, (place, u64, i64)),
        (loaded.sa_dcqcn_next_ns, i64, (place, u64, i64)),
        (loaded.sa_cnp_due, ctypes.c_bool, (place, i64, i64)),
    ):
        function.restype = result
        function.argtypes = arguments
    return loaded
