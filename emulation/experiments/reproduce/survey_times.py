"""Our numbers of the quantitative survey: seven methods of training, three models, one cluster.

Times per byte, call and step are constants of the cluster. Cells of one model fix them, and the others follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log
from typing import Any

import msgspec

from emulation.experiments.reproduce.published import Numbers, Published
from emulation.experiments.reproduce.timed import push_pull_ns, rate_for
from emulation.scenario.profiles.model_profile import BACKWARD_OPERATIONS, ModelLayer, ModelProfile, load
from transport.group.method_name import traffic
from transport.schedule.by_arrival import MgWfbp
from transport.schedule.by_urgency import ByteScheduler
from transport.schedule.profile import Profile, TensorProfile
from transport.schedule.schedule_model import Network, predict

SERVERS = "-PS"
"""The end of the names of methods with servers; the others are allreduces."""
NS_PER_BYTE_MOST = 10.0
CALL_NS_MOST = 10_000_000.0


def seven_methods(published: Published) -> Numbers:
    """Samples per second of all GPUs. Only cells of the model that calibrates are read."""
    cluster = SurveyCluster(published)
    return {
        f"{model}, {gpus} GPUs, {method}": gpus * cluster.constants["batch"][model] * 1e9 / time_ns(model, gpus)
        for method in cluster.constants["methods"]
        for time_ns in [partial(cluster.iteration_ns, method)]
        for model in cluster.constants["batch"]
        for gpus in cluster.constants["gpus"]
    }


@dataclass(frozen=True)
class SurveyCluster:
    """The survey's machines, each of several GPUs behind one NIC, and its methods as its scripts start them."""

    published: Published

    @property
    def constants(self) -> Mapping[str, Any]:
        return self.published.constants

    def iteration_ns(self, method: str, model: str, gpus: int) -> float:
        """One iteration, with the constants that the calibrating model fixes."""
        if method.endswith(SERVERS):
            return self._with_servers(method, model, gpus, self._machine_ns_per_byte, self._server_ns_per_byte)
        return self._allreduced(method, model, gpus, self._ring_ns_per_byte, self._call_ns(gpus))

    # ---- the two kinds of methods

    def _allreduced(self, method: str, model: str, gpus: int, ns_per_byte: float, call_ns: float) -> float:
        """NCCL's ring through all GPUs crosses each NIC once each way; it runs one call after the other."""
        profile, around = self._slowed(method, model), traffic("ring", gpus)
        network = Network(ns_per_byte * around, overhead_ns=call_ns)
        if method == "MG-WFBP":
            policy = MgWfbp(*self.constants["merge_costs"][str(gpus)])
            return predict(policy, profile, network, crossing=False).iteration_ns
        if method == "ByteScheduler-A2A":
            # Horovod fuses what the scheduler's credit lets out together: one call for each credit of bytes.
            credit, partition = self.constants["credit_bytes"], self.constants["allreduce_partition_bytes"]
            network = Network(ns_per_byte * around + call_ns / credit)
            scheduler = ByteScheduler(partition_bytes=partition, credit_bytes=credit)
            return predict(scheduler, profile, network).iteration_ns
        schedule = {"BSP-A2A": "bsp", "WFBP-A2A": "wfbp"}[method]
        return predict(schedule, profile, network, crossing=False).iteration_ns

    def _with_servers(
        self, method: str, model: str, gpus: int, machine_ns_per_byte: float, server_ns_per_byte: float
    ) -> float:
        """BytePS: a machine pushes and pulls partitions once, to as many servers as there are machines. Either the
        machine's side limits the rate or the busiest server does; no layer waits for less than all."""
        profile, partition = self.profiles[model], self.constants["server_partition_bytes"]
        sizes = {tensor.name: tensor.size_bytes for tensor in profile.tensors}
        tensors = [(place, sizes[name]) for place, name in enumerate(sorted(sizes))]
        if method == "BSP-PS":
            tensors = [(2 * len(sizes), profile.size_bytes)]  # declared after a gradient and a parameter of each name
            bucket = TensorProfile("all", profile.size_bytes // 4, 0, profile.backward_ns)
            profile = replace(profile, tensors=(bucket,))
        share = busiest_share(tensors, gpus // self.constants["gpus_per_machine"], partition)
        return push_pull_ns(
            ByteScheduler(partition_bytes=partition, credit_bytes=1 << 62),
            profile,
            max(machine_ns_per_byte, server_ns_per_byte * share),
            latency_ns=self._inside_ns_per_byte * partition / 2,
            crossing=False,
        )

    # ---- what the calibrating model's cells fix

    def _too_slow(self, method: str, gpus: int, time_ns: float) -> float:
        """The logarithm of our time over the calibrating model's published one."""
        model = self.constants["calibrates"]
        rate = self.published.number(f"{model}, {gpus} GPUs, {method}")
        return log(time_ns * rate / (gpus * self.constants["batch"][model] * 1e9))

    @cached_property
    def _ring_ns_per_byte(self) -> float:
        model, counts = self.constants["calibrates"], self.constants["gpus"]

        def too_slow(ns: float) -> float:
            return sum(
                self._too_slow("BSP-A2A", gpus, self._allreduced("BSP-A2A", model, gpus, ns, 0.0)) for gpus in counts
            )

        return rate_for(0.0, too_slow, 0.0, NS_PER_BYTE_MOST)

    def _call_ns(self, gpus: int) -> float:
        """Of a call beyond its bytes: something of itself, and something for each of the ring's steps."""
        (least_ns, most_ns), counts = self._calls_ns, self.constants["gpus"]
        return float(least_ns + (most_ns - least_ns) * (gpus - counts[0]) / (counts[-1] - counts[0]))

    @cached_property
    def _calls_ns(self) -> tuple[float, float]:
        """Of a call among the fewest GPUs, and among the most."""
        model, counts = self.constants["calibrates"], self.constants["gpus"]

        def too_slow(gpus: int, call_ns: float) -> float:
            time_ns = self._allreduced("WFBP-A2A", model, gpus, self._ring_ns_per_byte, call_ns)
            return self._too_slow("WFBP-A2A", gpus, time_ns)

        least_ns, most_ns = (
            rate_for(0.0, partial(too_slow, gpus), 0.0, CALL_NS_MOST) for gpus in (counts[0], counts[-1])
        )
        return least_ns, most_ns

    def _rate_of_servers(self, gpus: int, machine_ns_per_byte: float | None) -> float:
        """The machines' or, where those' rate is given, the servers' ns per byte: right on average of three methods."""
        model = self.constants["calibrates"]
        methods = [method for method in self.constants["methods"] if method.endswith(SERVERS)]

        def too_slow(ns: float) -> float:
            rates = (ns, 0.0) if machine_ns_per_byte is None else (machine_ns_per_byte, ns)
            times = (self._with_servers(method, model, gpus, *rates) for method in methods)
            return sum(self._too_slow(method, gpus, time) for method, time in zip(methods, times, strict=True))

        return rate_for(0.0, too_slow, 0.0, NS_PER_BYTE_MOST)

    @cached_property
    def _machine_ns_per_byte(self) -> float:
        return self._rate_of_servers(self.constants["gpus"][0], None)

    @cached_property
    def _server_ns_per_byte(self) -> float:
        return self._rate_of_servers(self.constants["gpus"][-1], self._machine_ns_per_byte)

    @cached_property
    def _inside_ns_per_byte(self) -> float:
        """From a GPU to the host's memory and back: what one machine of the calibrating model lost to it."""
        model = self.constants["calibrates"]
        profile = self.profiles[model]
        return (self._one_machine_ns("BSP-PS", model) - profile.forward_ns - profile.backward_ns) / profile.size_bytes

    # ---- models

    def _one_machine_ns(self, method: str, model: str) -> float:
        per_machine, rates = self.constants["gpus_per_machine"], self.constants["one_machine"][method]
        return float(per_machine * self.constants["batch"][model] * 1e9 / rates[model])

    def _slowed(self, method: str, model: str) -> Profile:
        """With what a scheduler itself costs on one machine, without a network: waits of the forward pass."""
        profile = self.profiles[model]
        if method not in self.constants["schedulers"]:
            return profile
        costs_ns = self._one_machine_ns(method, model) - self._one_machine_ns("WFBP-A2A", model)
        longer = 1 + max(0.0, costs_ns) / profile.forward_ns
        layers = tuple(replace(layer, forward_ns=round(layer.forward_ns * longer)) for layer in profile.layers)
        return replace(profile, layers=layers)

    @cached_property
    def profiles(self) -> dict[str, Profile]:
        """Each as long as an iteration of one GPU."""
        constants, profiles = self.constants, dict[str, Profile]()
        for model, name in constants["profiles"].items():
            model_profile, heads = load(name), constants["heads"].get(model)
            if heads:
                model_profile = with_pretraining_heads(model_profile, **heads)
            profiles[model] = model_profile.schedule_profile(
                round(constants["batch"][model] * 1e9 / constants["samples_per_s_alone"][model])
            )
        return profiles


def busiest_share(tensors: Sequence[tuple[int, int]], servers: int, partition_bytes: int) -> float:
    """Bytes of the busiest of BytePS's servers over the mean of all, 1 or more. tensors: (declared key, bytes).

    A partition goes to the server that a hash (DJB2) of the decimal digits of its key says: the tensor's, shifted by
    16 bits, and the partition's number.
    """
    loads = [0] * servers
    for declared, size_bytes in tensors:
        for place, start in enumerate(range(0, size_bytes, partition_bytes)):
            digest = 5381
            for digit in str((declared << 16) + place).encode():
                digest = (33 * digest + digit) % 2**64
            loads[digest % servers] += min(partition_bytes, size_bytes - start)
    return max(loads) * servers / sum(loads)


def with_pretraining_heads(bert: ModelProfile, *, vocabulary: int, tokens: int) -> ModelProfile:
    """BertModel as BertForPreTraining, whose words' weights decode too. vocabulary: as padded; tokens: of a sample of
    the profile. A layer's tensors have the names that PyTorch gives them."""
    words, *layers_behind = bert.layers
    width = layers_behind[0].tensors["weight"] // 512  # positions
    layers = [msgspec.structs.replace(words, tensors={"weight": vocabulary * width}), *layers_behind]
    heads = (
        ("predictions.transform.dense", {"weight": width * width, "bias": width}, width * width),
        ("predictions.transform.LayerNorm", {"weight": width, "bias": width}, 0),
        ("predictions", {"bias": vocabulary}, vocabulary * width),
        ("seq_relationship", {"weight": 2 * width, "bias": 2}, 0),
    )
    named_layers = [msgspec.structs.replace(layer, name=f"bert.{layer.name}") for layer in layers]
    for name, tensors, products in heads:
        forward_ns = round(2 * tokens * products * bert.batch * 1e9 / bert.device_flops)
        named_layers.append(ModelLayer(f"cls.{name}", tensors, forward_ns, BACKWARD_OPERATIONS * forward_ns))
    return ModelProfile(bert.name, tuple(named_layers))
