"""THC: bits per value on the wire."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.scenario.bounds import coded_share
from transport.group.method_name import MethodName

_WORKERS = 4


def _compute() -> Mapping[str, float]:
    method = MethodName("switch", "udp", codec="thc")
    less = coded_share(method, "float32", 360, _WORKERS)
    return {"to the aggregator": less, "from the aggregator": less}


RESULT = Published(
    name="thc",
    title="THC: less on the wire than float32",
    paper="Li et al., THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression, NSDI",
    year=2024,
    source="the released server and worker (SophiaLi06/BytePS_THC): indices of 4 bits up, sums of 8 bits down; the "
    "headline is in the abstract",
    conditions="4 bits per value, sums in 8; the abstract's 1.40 to 1.47 times less time to accuracy is for vision "
    "and language models whose step times we couldn't read",
    inputs="the bits; codec `thc` for 4 workers through the switch, exponents included",
    unit="speed-up",
    cells=(
        PublishedCell("to the aggregator", 8.0, "direction"),
        PublishedCell("from the aggregator", 4.0, "direction"),
        PublishedCell("time to accuracy, in the network, at most", 1.47, role="shown"),
        PublishedCell("time to accuracy, in the network, at least", 1.40, role="shown"),
    ),
    compute=_compute,
    because="a switch that only adds needs lanes of 8 bits on the way up too, so that sums don't carry into each "
    "other: twice THC's bytes up, as many down. On links that are as fast each way the time is the same",
)
