"""ByteScheduler in training: VGG-16 and ResNet-50 over MXNet's parameter servers and RDMA."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.experiments.reproduce.timed import push_pull_ns, rate_for
from emulation.scenario.profiles.model_profile import load
from transport.schedule.profile import Profile

GPUS = (16, 32, 64)
_BATCH = 8 * 32  # of a machine; another one scales the rate that is calibrated, and nothing else
_PROFILES = {"VGG-16": "vgg16", "ResNet-50": "resnet50"}
_ALONE = {"VGG-16": 6316 / 8, "ResNet-50": 13271 / 8}
_PUBLISHED = {
    "VGG-16": {"baseline": (672, 1416, 2733), "ByteScheduler": (1511, 2832, 5411)},
    "ResNet-50": {"baseline": (2535, 5194, 10986), "ByteScheduler": (2933, 5784, 11593)},
}

Rows = Mapping[str, Mapping[str, tuple[int, int, int]]]
"""Model -> system -> images per second with each number of GPUs."""


def step_profile(model: str, alone: float) -> Profile:
    """A step that takes as long as a machine that does so many images per second alone."""
    return load(_PROFILES[model]).schedule_profile(round(_BATCH * 1e9 / alone))


def speed(schedule: str, profile: Profile, rate_bps: float, overhead_ns: float = 0.0) -> float:
    """Images per second of a machine."""
    return _BATCH * 1e9 / push_pull_ns(schedule, profile, 8e9 / rate_bps, overhead_ns=overhead_ns)


def rate_of(profile: Profile, baseline: float) -> float:
    """What a machine gets out of the servers, in bits per second, if it does so many images per second as baseline."""
    return rate_for(baseline, partial(speed, "wfbp", profile), 1e8, 100e9)


def cells_of(published: Rows, calibrating: tuple[str, ...]) -> tuple[PublishedCell, ...]:
    """calibrating: names of cells."""
    cells = []
    for model, rows in published.items():
        for system, row in rows.items():
            for gpus, images in zip(GPUS, row, strict=True):
                name = f"{model}, {gpus} GPUs, {system}"
                cell = PublishedCell(name, images, f"{model}, {gpus} GPUs")
                cells.append(replace(cell, role="calibrates") if name in calibrating else cell)
    return tuple(cells)


def _compute() -> Mapping[str, float]:
    reproduced = dict[str, float]()
    for model, rows in _PUBLISHED.items():
        profile = step_profile(model, _ALONE[model])
        rate_bps = rate_of(profile, rows["baseline"][0] / 2)
        for system, schedule in {"baseline": "wfbp", "ByteScheduler": "bytescheduler"}.items():
            for gpus in GPUS:
                reproduced[f"{model}, {gpus} GPUs, {system}"] = gpus / 8 * speed(schedule, profile, rate_bps)
    return reproduced


RESULT = Published(
    name="bytescheduler_training",
    title="ByteScheduler in training, MXNet's servers, RDMA",
    paper="Peng et al., A Generic Communication Scheduler for Distributed DNN Training Acceleration, SOSP",
    year=2019,
    source="figures 10 (b) and 11 (b), as mxnet_ps_rdma_*_sync.png in bytescheduler/docs of bytedance/byteps",
    conditions="machines with 8 V100, 100 Gb/s RoCE. The batch isn't printed there, and doesn't matter: twice the "
    "batch is twice the step and half the calibrated rate",
    inputs="“linear scaling” for a step without a network; ByteScheduler's partition and credit by default; a "
    "transfer is pulled once it has been pushed; servers have links of their own, as many as machines",
    calibration="“16 GPUs, baseline” fixes the rate that a machine gets out of the servers, for each model: 12 and 6 "
    "Gb/s if the batch is 32 per GPU, so it is not the links that limit",
    reading="bars measured in pixels, to 1 %",
    unit="images/s",
    cells=cells_of(_PUBLISHED, ("VGG-16, 16 GPUs, baseline", "ResNet-50, 16 GPUs, baseline")),
    compute=_compute,
)
