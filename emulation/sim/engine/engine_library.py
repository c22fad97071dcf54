"""The functions of `switchagg/native/sim` and their structs, as ctypes has them."""

import ctypes
import random
from functools import lru_cache

from switchagg.native.library import load

NOTICE = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
DUE = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
ARRIVE = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)
DAMAGE = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)
CHOOSE = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)

STOPPED, NOTHING_LEFT, UNFINISHED, NO_MEMORY = range(4)
"""`enum sim_end`."""

FAULTS = ("drop_queue", "drop_first", "lost", "duplicated", "held_back", "corrupted")
"""In the order of `enum sim_fault`."""

_POINTER, _U32, _U64, _I64, _DOUBLE = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64, ctypes.c_double


class SimState(ctypes.Structure):
    """The beginning of `struct sa_sim`."""

    _fields_ = [
        ("now_ns", _I64),
        ("events", _U64),
        ("stopped", _U32),
        ("size_only", _U32),
        ("stray", _U32),
        ("failed", _U32),
    ]


class SimRecord(ctypes.Structure):
    """`struct sim_record`."""

    _fields_ = [("time_ns", _I64), ("sender", _U32), ("to", _U32), ("content", _U64)]


class TailFacts(ctypes.Structure):
    """`struct sim_tail_facts`."""

    _fields_ = [("p50_ns", _DOUBLE), ("sigma", _DOUBLE), ("burst_rate", _DOUBLE), ("words", _POINTER)]


class LinkFacts(ctypes.Structure):
    """`struct sim_link_facts`."""

    _fields_ = [
        ("rate_bps", _U64),
        ("delay_ns", _I64),
        ("queue_bytes", _I64),
        ("ecn_bytes", _I64),
        ("drop_bytes", _I64),
        ("loss", _DOUBLE),
        ("duplicate", _DOUBLE),
        ("reorder", _DOUBLE),
        ("corrupt", _DOUBLE),
        ("words", _POINTER),
        ("tail", TailFacts),
        ("strict", _U32),
    ]


class LinkState(ctypes.Structure):
    """The beginning of `struct sim_link`."""

    _fields_ = [
        ("lane", _U64 * 8),
        ("times", _U64 * 4),
        ("sent_frames", _U64),
        ("sent_bytes", _U64),
        ("delivered_frames", _U64),
        ("delivered_bytes", _U64),
        ("costs", _U64 * 7),
        ("is_plain", _U32),
        ("users", _U32),
        ("ahead", _U64 * 8),
        ("marked_frames", _U64),
        ("faults", _U64 * len(FAULTS)),
    ]


class SwitchState(ctypes.Structure):
    """The beginning of `struct sim_switch`."""

    _fields_ = [("node", _POINTER * 4), ("drop_checksum", _U64)]


class PythonState(ctypes.Structure):
    """The beginning of `struct sim_python`."""

    _fields_ = [("node", _POINTER * 4), ("next", _U32)]


class WatchedBytes(ctypes.Structure):
    """`struct sim_counted`."""

    _fields_ = [("bytes", _U64), ("job", ctypes.c_int32), ("sender", _U32), ("flow", _U32), ("used", _U32)]


class TreeFacts(ctypes.Structure):
    """`struct sim_tree`."""

    _fields_ = [("endpoint", _POINTER), ("to", ctypes.POINTER(_U32)), ("job_id", _U32), ("streams", _U32)]


@lru_cache(maxsize=1)
def engine() -> ctypes.CDLL:
    """The library with this piece's functions declared. Raises library.CoreMissing."""
    library = load()
    words = ctypes.POINTER(_U32)
    for name, result, arguments in (
        ("sim_new", _POINTER, [_U32, NOTICE, DUE]),
        ("sim_free", None, [_POINTER]),
        ("sim_schedule", ctypes.c_int, [_POINTER, _I64, _U64, _U32, _U32, _U64]),
        ("sim_pending", _U32, [_POINTER]),
        ("sim_run", _U32, [_POINTER, _U64]),
        ("sim_records", _U64, [_POINTER, ctypes.POINTER(ctypes.POINTER(SimRecord))]),
        ("sim_link", _POINTER, [_POINTER, ctypes.POINTER(LinkFacts)]),
        ("sim_switch", _POINTER, [_POINTER, _I64]),
        ("sim_paths", _POINTER, [_POINTER, ctypes.POINTER(_POINTER), _U32, _POINTER, _U32]),
        ("sim_lead_to", None, [_POINTER, _POINTER]),
        ("sim_route", ctypes.c_int, [_POINTER, _POINTER, _POINTER]),
        ("sim_aggregate", None, [_POINTER, _POINTER, _U32, _U32]),
        (
            "sim_worker",
            _POINTER,
            [_POINTER, _POINTER, _U32, _U32, ctypes.POINTER(TreeFacts), _U32, words, _U32, _U32],
        ),
        ("sim_worker_readmit", None, [_POINTER, ctypes.POINTER(_POINTER)]),
        ("sim_worker_pace", None, [_POINTER, _U64]),
        ("sim_worker_pump", None, [_POINTER]),
        ("sim_worker_drop_checksum", _U64, [_POINTER]),
        ("sim_python", _POINTER, [_POINTER, ARRIVE, DAMAGE]),
        ("sim_attached", _U32, [_POINTER, _U32]),
        ("sim_python_at", ctypes.c_int, [_POINTER, _U32]),
        ("sim_python_send", ctypes.c_int, [_POINTER, _POINTER, _U32, _U32, _U32, _U32, _U32, _I64, _U32, _U32]),
        ("sim_backlog_bytes", _U64, [_POINTER, _I64]),
        ("sim_backlog_of", _U64, [_POINTER, _U32]),
        ("sim_time_at_backlog_ns", _I64, [_POINTER, _U64]),
        ("sim_watch", _POINTER, [_POINTER]),
        ("sim_watched", _U32, [_POINTER, ctypes.POINTER(ctypes.POINTER(WatchedBytes))]),
        ("endpoint_leave_values", None, [_POINTER]),
        ("plane_leave_values", None, [_POINTER]),
    ):
        function = getattr(library, f"sa_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


def random_words(seed: str) -> ctypes.Array[ctypes.c_uint32]:
    """The state of `random.Random(seed)`, as C's has it."""
    return (_U32 * 625)(*random.Random(seed).getstate()[1])


def there(pointer: int | None) -> int:
    """An object that C has created. Raises MemoryError."""
    if not pointer:
        raise MemoryError("no memory for the simulation")
    return pointer
