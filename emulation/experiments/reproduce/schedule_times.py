"""Our numbers of when what is sent: iterations of models, overlapped in one way or another.

Each function takes a published result and returns our numbers by the names of its cells; its file has the constants.
`three_layers` can be checked by hand.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import mean

from emulation.experiments.reproduce.published import Numbers, Published
from emulation.experiments.reproduce.timed import (
    busy_share,
    forward_end_ns,
    push_pull_ns,
    rate_for,
    servers_beside_ns,
)
from emulation.scenario.profiles.model_profile import ModelProfile, load
from transport.group.method_name import traffic
from transport.schedule.by_arrival import Fusion
from transport.schedule.by_urgency import P3, ByteScheduler
from transport.schedule.profile import LayerProfile, LinearCost, Profile, TensorProfile
from transport.schedule.schedule_model import Network, predict, ready_times, serve
from transport.schedule.schedule_plan import Transfer
from transport.schedule.schedule_table import plan_transfers


def three_layers(published: Published) -> Numbers:
    """An iteration's length in the drawing's units: first in, first out, and in the order of ByteScheduler."""
    unit_ns, unit_bytes, compute_units = 1_000_000, 4_000, published.constants["compute_units"]
    # As drawn: a gradient that comes to exist as a partition leaves is there before the next one does.
    ready_ns = [(3 - layer) * compute_units * unit_ns - (2 - layer) for layer in range(3)]
    tensors = tuple(
        TensorProfile(f"tensor {layer}", units * unit_bytes // 4, layer, ready_ns[layer])
        for layer, units in enumerate(published.constants["tensor_units"])
    )
    layers = tuple(LayerProfile(f"layer {number}", compute_units * unit_ns) for number in range(3))
    profile = Profile(tensors, layers, 3 * compute_units * unit_ns)
    scheduled = ByteScheduler(partition_bytes=unit_bytes, credit_bytes=unit_bytes)
    before, after = (push_pull_ns(policy, profile, unit_ns / unit_bytes) / unit_ns for policy in ("wfbp", scheduled))
    return {"first in, first out": before, "priorities and partitions": after, "speed-up": before / after}


def push_pull_training(published: Published) -> Numbers:
    """Images per second over parameter servers. The cell of the fewest GPUs by `baseline` fixes a machine's rate for
    each model; where the file names one, another cell fixes what a slice costs, for all models."""
    constants = published.constants
    first, per_machine = constants["gpus"][0], constants["gpus_per_machine"]
    batch = per_machine * constants["batch_per_gpu"]
    profiles = {
        model: load(name).schedule_profile(round(batch * 1e9 / constants["images_per_s_alone"][model]))
        for model, name in constants["profiles"].items()
    }

    def speed(schedule: str, model: str, rate_bps: float, overhead_ns: float = 0.0) -> float:
        """Of a machine."""
        time_ns = push_pull_ns(schedule, profiles[model], 8e9 / rate_bps, overhead_ns=overhead_ns)
        return float(batch * 1e9 / time_ns)

    def of_machine(cell: str) -> float:
        return float(published.number(cell) / (first / per_machine))

    rates = {
        model: rate_for(
            of_machine(f"{model}, {first} GPUs, baseline"),
            partial(speed, "wfbp", model),
            1e8,
            constants["rate_bps_most"],
        )
        for model in profiles
    }
    costs_ns = dict[str, float]()
    for system, cell in constants.get("slice_cost_from", {}).items():
        schedule, model = constants["schedules"][system], cell.partition(",")[0]

        def faster(saved_ns: float, schedule: str = schedule, model: str = model) -> float:
            return speed(schedule, model, rates[model], -saved_ns)

        costs_ns[system] = -rate_for(of_machine(cell), faster, -5e6, 0.0)
    numbers = dict[str, float]()
    for model in profiles:
        for system, schedule in constants["schedules"].items():
            cost_ns = costs_ns.get(system, 0.0)
            for gpus in constants["gpus"]:
                machines, name = gpus / per_machine, f"{model}, {gpus} GPUs, {system}"
                numbers[name] = machines * speed(schedule, model, rates[model], cost_ns)
                for times in constants.get("rate_times", []):
                    faster_bps = times * rates[model]
                    numbers[f"{name}, {times} times the rate"] = machines * speed(schedule, model, faster_bps, cost_ns)
    return numbers


def one_transfer_per_machine(published: Published) -> Numbers:
    """Images per second of Horovod and BytePS. One machine's cell fixes a step without a network, two machines' cell
    the rate that a system gets out of a link."""
    constants, numbers = published.constants, dict[str, float]()
    per_machine, batch, (fewest, next_gpus, *_) = (
        constants["gpus_per_machine"],
        constants["batch_per_gpu"],
        constants["gpus"],
    )

    def iteration_ns(system: str, profile: Profile, nodes: int, rate_bps: float) -> float:
        if system == "Horovod":
            network = Network.of_star(traffic("ring", nodes), rate_bps)
            return predict(Fusion(threshold_bytes=64 << 20), profile, network, crossing=False).iteration_ns
        partitions = ByteScheduler(partition_bytes=4_096_000, credit_bytes=1 << 62)
        return push_pull_ns(partitions, profile, 8e9 / (rate_bps * busy_share(nodes, nodes)), crossing=False)

    for model, profile_name in constants["profiles"].items():
        for system in constants["systems"]:
            alone = published.number(f"{model}, {system}, {fewest} GPUs")
            profile = load(profile_name).schedule_profile(round(per_machine * batch * 1e9 / alone))

            def speed(gpus: int, rate_bps: float, system: str = system, profile: Profile = profile) -> float:
                return float(gpus * batch * 1e9 / iteration_ns(system, profile, gpus // per_machine, rate_bps))

            goal = published.number(f"{model}, {system}, {next_gpus} GPUs")
            rate_bps = rate_for(goal, partial(speed, next_gpus), 1e8, constants["line_bps"])
            for gpus in constants["gpus"]:
                name = f"{model}, {system}, {gpus} GPUs"
                numbers[name] = alone if gpus == fewest else speed(gpus, rate_bps)
                for times in constants["rate_times"]:
                    numbers[f"{name}, {times} times the rate"] = speed(gpus, times * rate_bps)
    return numbers


def merged_gradients(published: Published) -> Numbers:
    """Images per second and GPU by schedule; the cell without overlap fixes the time of a byte, for each model and
    number of nodes."""
    constants, numbers = published.constants, dict[str, float]()
    for model, batch in constants["batch"].items():
        alone_ns = batch / constants["images_per_s_alone"][model] * 1e9
        profile = load(constants["profiles"][model]).schedule_profile(round(alone_ns))
        for nodes in constants["nodes"]:
            start_ns = 2 * nodes * constants["step_ns"]
            plain_ns = batch / published.number(f"{model}, {nodes} nodes, without overlap") * 1e9
            for call_ns, change in ((0, ""), (constants["call_ns"], ", with 0.8 ms a call")):
                slower_ns = start_ns + call_ns
                beta = (plain_ns - alone_ns - slower_ns) / profile.size_bytes
                for name, schedule in constants["schedules"].items():
                    network = Network(beta, overhead_ns=slower_ns)
                    iteration_ns = predict(schedule, profile, network, crossing=False).iteration_ns
                    numbers[f"{model}, {nodes} nodes, {name}{change}"] = batch * 1e9 / iteration_ns
    return numbers


def scaling_with_fewer_bytes(published: Published) -> Numbers:
    """Per cent of the speed of one GPU, where a ring carries fewer bytes by a ratio and compressing takes no time."""
    constants, numbers = published.constants, dict[str, float]()
    workers, buckets = constants["workers"], Fusion(threshold_bytes=64 << 20, cycle_ns=5_000_000)
    for model, ratios in constants["ratios"].items():
        shares, batch_ns = load(model), constants["batch_ns"][model]
        profile = shares.schedule_profile(round(constants["backward_ns"][model] / (1 - shares.forward_fraction)))
        for ratio in ratios:
            additions_ns, rate_bps = (workers - 1) * constants["addition_ns"], constants["rate_bps"] * ratio
            network = Network.of_star(traffic("ring", workers), rate_bps, overhead_ns=additions_ns)
            predicted = predict(buckets, profile, network, crossing=False)
            waited_ns = predicted.iteration_ns - predicted.compute_ns
            numbers[f"{model}, {ratio} x"] = 100 * batch_ns / (batch_ns + waited_ns)
    return numbers


def best_gain_of_slices(published: Published) -> Numbers:
    """P3 over sending each tensor as it comes: the largest gain over all ratios of computing, links and servers."""
    constants = published.constants
    slices = replace(P3(), slice_elements=constants["slice_elements"])

    def gain(model: ModelProfile) -> float:
        profile, best = model.schedule_profile(), 0.0
        for link_ns in (profile.backward_ns * 1.15**step / profile.size_bytes for step in range(-10, 10)):
            for server_ns in (times * link_ns for times in constants["server_over_link"]):
                before, after = (servers_beside_ns(policy, profile, link_ns, server_ns) for policy in ("wfbp", slices))
                best = max(best, before / after)
        return best

    return {"ResNet-50": gain(load("resnet50")), "VGG-19": gain(_vgg19())}


def _vgg19() -> ModelProfile:
    """VGG-16 with the last convolution of each of its last three blocks there once more."""
    layers = []
    for layer in load("vgg16").layers:
        layers.append(layer)
        if layer.name in ("features.14", "features.21", "features.28"):
            layers.append(type(layer)(f"{layer.name}b", layer.tensors, layer.forward_ns, layer.backward_ns))
    return ModelProfile("vgg19", tuple(layers))


def best_gain_of_an_order(published: Published) -> Numbers:
    """TicTac over the mean of random orders of pulls: the largest gain of inference and of training, over models and
    ratios of computing to communication."""
    best = [0.0, 0.0]
    for model in published.constants["models"]:
        profile = load(model).schedule_profile()
        for rate in (1.5**step for step in range(12)):
            beta = profile.backward_ns * rate / 50 / profile.size_bytes
            ordered = plan_transfers("tictac", profile, LinearCost(0, beta))
            orders = [_shuffled(ordered, seed) for seed in range(published.constants["seeds"])]
            for training in (False, True):
                after = _pulled_ns(profile, ordered, beta, training)
                before = mean(_pulled_ns(profile, order, beta, training) for order in orders)
                best[training] = max(best[training], before / after)
    return {"inference": best[False], "training": best[True]}


def _pulled_ns(profile: Profile, transfers: Sequence[Transfer], beta: float, training: bool) -> float:
    """An iteration: all parameters are pulled in the order of the transfers, then pushed as their gradients come."""
    link = Network(beta)
    arrived = [0.0] * len(profile.layers)
    for service in serve(transfers, [0.0] * len(transfers), link, 1):
        for part in transfers[service.key].parts:
            place = profile.tensors[part.tensor].layer
            arrived[place] = max(arrived[place], service.completed_ns)
    forward = forward_end_ns(replace(profile, backward_ns=0), arrived)
    if not training:
        return forward
    pushed = serve(transfers, ready_times(transfers, profile), link, None)
    return forward + max(float(profile.backward_ns), max(service.completed_ns for service in pushed))


def _shuffled(transfers: Sequence[Transfer], seed: int) -> tuple[Transfer, ...]:
    order = list(range(len(transfers)))
    random.Random(seed).shuffle(order)
    return tuple(transfer._replace(priority=place) for transfer, place in zip(transfers, order, strict=True))
