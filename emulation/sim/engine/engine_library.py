"""What the parts of the packet engine in C share (`emulation/sim/native`)."""

import ctypes
import random

from switchagg.native import headers

FAULTS = headers.names("sim_fault", "SIM_")


def random_words(seed: str) -> ctypes.Array[ctypes.c_uint32]:
    """The state of `random.Random(seed)`, as C's has it."""
    return (ctypes.c_uint32 * 625)(*random.Random(seed).getstate()[1])


def there(pointer: int | None) -> int:
    """An object that C has created. Raises MemoryError."""
    if not pointer:
        raise MemoryError("no memory for the simulation")
    return pointer
