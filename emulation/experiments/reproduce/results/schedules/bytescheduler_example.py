"""ByteScheduler's drawn example: three layers, first in first out against priorities and partitions."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.experiments.reproduce.timed import push_pull_ns
from transport.schedule.by_urgency import ByteScheduler
from transport.schedule.profile import LayerProfile, Profile, TensorProfile

_UNIT_NS = 1_000_000
_UNIT_BYTES = 4_000
_COMPUTE_UNITS = 2
_TENSOR_UNITS = (3, 6, 3)


def _compute() -> Mapping[str, float]:
    # As drawn: a gradient that comes to exist as a partition leaves is there before the next one does.
    ready_ns = [(3 - layer) * _COMPUTE_UNITS * _UNIT_NS - (2 - layer) for layer in range(3)]
    tensors = tuple(
        TensorProfile(f"tensor {layer}", units * _UNIT_BYTES // 4, layer, ready_ns[layer])
        for layer, units in enumerate(_TENSOR_UNITS)
    )
    layers = tuple(LayerProfile(f"layer {number}", _COMPUTE_UNITS * _UNIT_NS) for number in range(3))
    profile = Profile(tensors, layers, 3 * _COMPUTE_UNITS * _UNIT_NS)
    beta = _UNIT_NS / _UNIT_BYTES
    scheduled = ByteScheduler(partition_bytes=_UNIT_BYTES, credit_bytes=_UNIT_BYTES)
    reproduced = {
        "first in, first out": push_pull_ns("wfbp", profile, beta) / _UNIT_NS,
        "priorities and partitions": push_pull_ns(scheduled, profile, beta) / _UNIT_NS,
    }
    reproduced["speed-up"] = reproduced["first in, first out"] / reproduced["priorities and partitions"]
    return reproduced


RESULT = Published(
    name="bytescheduler_example",
    title="ByteScheduler's example of three layers",
    paper="Peng et al., A Generic Communication Scheduler for Distributed DNN Training Acceleration, SOSP",
    year=2019,
    source="figure 2, as drawn in bytescheduler/docs/contrived_example.png of bytedance/byteps, with “44% speedup”",
    conditions="one worker, one server; a transfer is pulled when it has been pushed whole; times as drawn: passes of "
    "2 units per layer, tensors of 3, 6 and 3 units, partitions of 1",
    inputs="the drawing's units; our scheduler and its two queues, one each way",
    unit="units",
    cells=(
        PublishedCell("first in, first out", 26.0, "length"),
        PublishedCell("priorities and partitions", 18.0, "length"),
        PublishedCell("speed-up", 1.44, "speed-up"),
    ),
    compute=_compute,
)
