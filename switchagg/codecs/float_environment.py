"""The floating-point environment of the threads that code and sum gradients."""

import ctypes
import sys

_FE_DFL_ENV = ctypes.c_void_p(-1)  # of glibc and musl


def use_ieee_arithmetic() -> None:
    """Give this thread the default environment, with subnormal numbers and rounding to nearest; on Linux alone.

    A thread begins with its maker's environment, and `torch.set_flush_denormal(True)` or a library built with
    -ffast-math make subnormal numbers 0 in theirs: then one rank's results have other bits than the others' (F7).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).fesetenv(_FE_DFL_ENV)
