"""ByteScheduler and P3 in training, over MXNet's parameter servers and TCP."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published
from emulation.experiments.reproduce.results.schedules.bytescheduler_training import (
    GPUS,
    cells_of,
    rate_of,
    speed,
    step_profile,
)
from emulation.experiments.reproduce.timed import rate_for

_ALONE = {"VGG-16": 4060 / 8, "ResNet-50": 13250 / 8}
_PUBLISHED = {
    "VGG-16": {"baseline": (367, 761, 1489), "P3": (534, 1042, 2130), "ByteScheduler": (728, 1369, 2892)},
    "ResNet-50": {"baseline": (1292, 2847, 5628), "P3": (1555, 2847, 5650), "ByteScheduler": (2102, 4051, 7358)},
}


def _compute() -> Mapping[str, float]:
    profiles = {model: step_profile(model, alone) for model, alone in _ALONE.items()}
    rates = {model: rate_of(profiles[model], rows["baseline"][0] / 2) for model, rows in _PUBLISHED.items()}

    def slower(less_ns: float) -> float:
        return speed("p3", profiles["VGG-16"], rates["VGG-16"], -less_ns)

    slice_ns = -rate_for(_PUBLISHED["VGG-16"]["P3"][0] / 2, slower, -5e6, 0.0)
    reproduced = dict[str, float]()
    for model, profile in profiles.items():
        for system, schedule, each_ns in (
            ("baseline", "wfbp", 0.0),
            ("P3", "p3", slice_ns),
            ("ByteScheduler", "bytescheduler", 0.0),
        ):
            machine = speed(schedule, profile, rates[model], each_ns)
            reproduced.update({f"{model}, {gpus} GPUs, {system}": gpus / 8 * machine for gpus in GPUS})
    return reproduced


RESULT = Published(
    name="bytescheduler_tcp",
    title="ByteScheduler and P3 in training, MXNet's servers, TCP",
    paper="Peng et al., A Generic Communication Scheduler for Distributed DNN Training Acceleration, SOSP",
    year=2019,
    source="figures 10 (a) and 11 (a), in others' notes (ruipeterpan/paper_notes)",
    conditions="as in bytescheduler_training, over TCP",
    inputs="as in bytescheduler_training; P3's slices of 40,000 parameters",
    calibration="“16 GPUs, baseline” fixes the rate for each model, and “VGG-16, 16 GPUs, P3” what a slice costs, for "
    "both models",
    reading="bars of a small image measured in pixels: VGG-16 to 20 images/s, ResNet-50 to 65",
    unit="images/s",
    cells=cells_of(_PUBLISHED, ("VGG-16, 16 GPUs, baseline", "ResNet-50, 16 GPUs, baseline", "VGG-16, 16 GPUs, P3")),
    compute=_compute,
    because="ByteScheduler gained more of ResNet-50 than an order and partitions give; probably ours counts as rate "
    "what the baseline loses on so many small tensors. Met: all of VGG-16, and P3 of ResNet-50 by what a slice of "
    "VGG-16 cost",
)
