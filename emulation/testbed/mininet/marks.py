"""Links that mark (ECN): a BPF program before the shaper of each port, since kernels often lack the queues that do it.

The program counts what the shaper's queue must hold, by the link's rate, and marks ECN-capable packets behind more than
ecn_bytes. HTB lets a burst pass at once, which its queue never holds. A GSO bundle is marked whole.
"""

import functools
import struct
import tempfile
from pathlib import Path

from switchagg import errors

OBJECT = Path(errors.__file__).parent / "native" / "mark.bpf.o"
"""Built beside the core, which needs NumPy: a plain Mininet comes here without."""
PLACES = tuple(0x5A5A5A5A5A5A5A00 + number for number in (1, 2, 3))
"""Numbers in the object's file that stand for those of `struct` configuration in mark.bpf.c, in its order."""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="switchagg-marks-")


@functools.cache
def program(rate_bps: int, ecn_bytes: int, burst_bytes: int, queue_bytes: int) -> Path:
    """The program for such a port, in a file that goes with this process. OSError: it was not built."""
    data = OBJECT.read_bytes()
    per_byte = 8_000_000_000 / rate_bps
    values = (1 << 20, ecn_bytes + burst_bytes, queue_bytes + burst_bytes)
    for place, value in zip(PLACES, values, strict=True):
        data = data.replace(struct.pack("=Q", place), struct.pack("=Q", round(value * per_byte)))
    path = Path(_folder().name) / f"{rate_bps}-{ecn_bytes}-{burst_bytes}-{queue_bytes}.o"
    path.write_bytes(data)
    return path


def lines(interface: str, path: Path) -> list[str]:
    """Shell lines that have an interface mark. tc wants a bpffs, which Mininet's nodes lack: it gets one meanwhile."""
    load = f"tc filter replace dev {interface} egress pref 1 handle 1 bpf da obj {path} sec tc"
    return [
        f"tc qdisc replace dev {interface} clsact",
        f'unshare -m sh -c "mount -t bpf none /mnt && TC_BPF_MNT=/mnt {load}"',
    ]
