"""BytePS and Horovod: images per second of VGG-16 and ResNet-50 over 20 Gb/s TCP."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.experiments.reproduce.timed import push_pull_ns, rate_for
from emulation.scenario.profiles.model_profile import load
from transport.group.method_name import traffic
from transport.schedule.by_arrival import Fusion
from transport.schedule.by_urgency import ByteScheduler
from transport.schedule.profile import Profile
from transport.schedule.schedule_model import Network, predict

_GPUS_PER_NODE = 8
_BATCH = 64
_LINE_BPS = 20e9
_PUBLISHED = {
    "VGG-16": {
        "Horovod": {8: 1633, 16: 1578, 32: 2068, 64: 3320},
        "BytePS": {8: 1741, 16: 2449, 32: 4190, 64: 6639},
    },
    "ResNet-50": {
        "Horovod": {8: 2449, 16: 3946, 32: 7619, 64: 11429},
        "BytePS": {8: 2585, 16: 4762, 32: 8844, 64: 16599},
    },
}
_PROFILES = {"VGG-16": "vgg16", "ResNet-50": "resnet50"}


def _iteration_ns(system: str, profile: Profile, nodes: int, rate_bps: float) -> float:
    if system == "Horovod":
        network = Network.of_star(traffic("ring", nodes), rate_bps)
        return predict(Fusion(threshold_bytes=64 << 20), profile, network, crossing=False).iteration_ns
    partitions = ByteScheduler(partition_bytes=4_096_000, credit_bytes=1 << 62)
    return push_pull_ns(partitions, profile, 8e9 / rate_bps, crossing=False)


def _compute() -> Mapping[str, float]:
    reproduced = dict[str, float]()
    for model, systems in _PUBLISHED.items():
        for system, row in systems.items():
            profile = load(_PROFILES[model]).schedule_profile(round(_GPUS_PER_NODE * _BATCH * 1e9 / row[8]))

            def speed(gpus: int, rate_bps: float, system: str = system, profile: Profile = profile) -> float:
                return gpus * _BATCH * 1e9 / _iteration_ns(system, profile, gpus // _GPUS_PER_NODE, rate_bps)

            rate_bps = rate_for(row[16], lambda rate, speed=speed: speed(16, rate), 1e8, _LINE_BPS)  # type: ignore[misc]
            for gpus in row:
                reproduced[f"{model}, {system}, {gpus} GPUs"] = (
                    row[8] if gpus == _GPUS_PER_NODE else speed(gpus, rate_bps)
                )
    return reproduced


RESULT = Published(
    name="byteps_training",
    title="BytePS and Horovod in training, 20 Gb/s TCP",
    paper="BytePS, README and docs/performance.md of bytedance/byteps",
    year=2019,
    source="the two figures of docs/performance.md, “NVLink + TCP”",
    conditions="cloud machines with 8 V100 and NVLink, 20 Gb/s TCP, batch 64 per GPU; as many servers as machines "
    "with GPUs, of their own (its guide's advice; the page doesn't say)",
    inputs="batch, GPUs per machine; one transfer per machine; layers' shares of the time from our profiles. Horovod: "
    "ring, fused up to 64 MB. BytePS: partitions of 4,096,000 bytes, a partition pulled when it has been pushed. A "
    "step ends when all parameters are there",
    calibration="8 GPUs fix the time of a step without a network, 16 GPUs the rate that the system gets out of a "
    "link, both for each model and system",
    reading="bars measured in pixels: VGG-16 to 27 images/s, ResNet-50 to 68",
    unit="images/s",
    cells=tuple(
        PublishedCell(
            f"{model}, {system}, {gpus} GPUs",
            speed,
            f"{model}, {gpus} GPUs",
            "judged" if gpus > 16 else "calibrates",
        )
        for model, systems in _PUBLISHED.items()
        for system, row in systems.items()
        for gpus, speed in row.items()
    ),
    compute=_compute,
    because="one rate per system doesn't describe this cloud: of VGG-16 both systems get less out of a link with "
    "every machine more, of ResNet-50 Horovod gets more on 4 machines than on 2. With servers beside the workers "
    "instead BytePS is 6 to 25 % too slow. Met: which system is faster, everywhere",
)
