"""Loads a compiled program, and declares the functions of its runtime (runtime/p4vm.h)."""

import ctypes
from pathlib import Path
from typing import Any

from p4vm.source import P4Error


class NativeOutput(ctypes.Structure):
    """`struct p4_output`."""

    _fields_ = [("port", ctypes.c_uint32), ("size", ctypes.c_uint32), ("at", ctypes.c_uint64)]


class NativeCounter(ctypes.Structure):
    """`struct p4_counter`."""

    _fields_ = [("packets", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class NativeRecord(ctypes.Structure):
    """`struct p4_record`, the values of which follow it."""

    _fields_ = [("next", ctypes.c_void_p), ("id", ctypes.c_uint32), ("limbs", ctypes.c_uint32)]

    @classmethod
    def size(cls) -> int:
        return ctypes.sizeof(cls)


VOID = None
INT, UINT, LONG, POINTER = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "p4_engine_new": (POINTER, [POINTER]),
    "p4_engine_free": (VOID, [POINTER]),
    "p4_engine_reset": (VOID, [POINTER]),
    "p4_engine_run": (VOID, [POINTER, UINT, POINTER, POINTER, POINTER, LONG, POINTER]),
    "p4_engine_outputs": (ctypes.POINTER(NativeOutput), [POINTER]),
    "p4_engine_data": (POINTER, [POINTER]),
    "p4_engine_counts": (ctypes.POINTER(LONG), [POINTER]),
    "p4_engine_set_table": (INT, [POINTER, INT, UINT, UINT, POINTER, POINTER, POINTER, POINTER, POINTER, LONG]),
    "p4_engine_set_default": (INT, [POINTER, UINT, UINT, POINTER, UINT]),
    "p4_engine_set_profile": (INT, [POINTER, UINT, UINT, POINTER, POINTER, LONG, UINT, POINTER, POINTER]),
    "p4_engine_set_replicas": (INT, [POINTER, INT, UINT, UINT, POINTER, UINT, UINT]),
    "p4_engine_registers": (POINTER, [POINTER, UINT]),
    "p4_engine_grow_counter": (INT, [POINTER, UINT, LONG]),
    "p4_engine_grow_meter": (INT, [POINTER, UINT, LONG]),
    "p4_engine_counter": (ctypes.POINTER(NativeCounter), [POINTER, UINT, LONG]),
    "p4_engine_reset_counter": (VOID, [POINTER, UINT]),
    "p4_engine_set_meter": (VOID, [POINTER, UINT, LONG, UINT, POINTER, POINTER]),
    "p4_engine_set_crc": (VOID, [POINTER, POINTER]),
    "p4_engine_record": (ctypes.POINTER(NativeRecord), [POINTER, INT]),
    "p4_engine_take_record": (VOID, [POINTER, INT]),
}
"""Name -> (result, parameters)."""


def load(path: str | Path, functions: dict[str, tuple[Any, list[Any]]] = FUNCTIONS) -> ctypes.CDLL:
    """The library, its functions declared. Raises P4Error where it can't be loaded."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, parameters) in functions.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = parameters
    except (OSError, AttributeError) as error:
        raise P4Error(f"{path} can't be loaded: {error}; remove it, and it is made anew") from error
    return library
