"""The scale of fidelity level `flow`: an iteration of a model profile on 4 … 16,384 workers, by each method; a figure.

    python tools/fidelity_level_scale.py [--figure FILE.png] [--profile llama7b] [--methods ring,switch] [--most 16384]

Racks of 32 in a fat tree without oversubscription, 100 Gb/s, 1 us a link. Gradients leave in buckets of 25 MB while the
backward pass goes on; an iteration ends with the last sum. CPU time includes building the topology.
"""

import argparse
import time
from functools import partial

from emulation.scenario.profiles.model_profile import ModelProfile, load
from emulation.scenario.topologies.topology import STAR, Fabric
from emulation.scenario.topologies.topology_kinds import topology
from emulation.sim.flow.flow_methods import FLOWS
from emulation.sim.flow.flow_simulation import FlowSimulation
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.size_only import SizeOnlyArray

BUCKET_BYTES = 25_000_000
RACK = 32


def config_of(workers: int) -> SimulationConfig:
    """The links, as above."""
    fabric = Fabric("fat_tree", racks=workers // RACK) if workers > RACK else STAR
    link = LinkConfig(100_000_000_000, 1_000, queue_bytes=4_000_000)
    return SimulationConfig(workers, link, fabric, window_slots=512)


def iteration_ns(simulation: FlowSimulation, profile: ModelProfile) -> int:
    """From the start of the forward pass until all sums are there."""
    buckets, network = profile.buckets(BUCKET_BYTES), simulation.network
    forward_ns = profile.forward_ns
    left = len(buckets)

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            network.stop()

    def launch(array: SizeOnlyArray, _frame: None, _sender: int, _to: int) -> None:
        simulation.launch_all(array, "sum", done)

    for bucket in buckets:
        ready_ns = forward_ns + round((profile.compute_ns - forward_ns) * bucket.ready_fraction)
        network.schedule(ready_ns, partial(launch, SizeOnlyArray(bucket.elements, profile.dtype)))
    simulation.run("an iteration")
    return max(network.now_ns, profile.compute_ns)


def main() -> None:
    """Prints a table, and draws it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure")
    parser.add_argument("--profile", default="llama7b")
    parser.add_argument("--methods", default="ring,halving_doubling,switch")
    parser.add_argument("--most", type=int, default=16_384)
    options = parser.parse_args()
    profile = load(options.profile)
    counts = [workers for workers in (4, 16, 64, 256, 1024, 4096, 16_384) if workers <= options.most]
    print(f"| workers | method | iteration, s | CPU, s |\n|---|---|---|---|  {profile.name}")
    found: dict[str, list[tuple[float, float]]] = {}
    for method in options.methods.split(","):
        for workers in counts:
            topology.cache_clear()
            begin = time.process_time()
            seconds = iteration_ns(FLOWS[method](config_of(workers)), profile) / 1e9
            needed = time.process_time() - begin
            found.setdefault(method, []).append((seconds, needed))
            print(f"| {workers} | {method} | {seconds:.3f} | {needed:.2f} |", flush=True)
    if options.figure:
        draw(counts, found, profile, options.figure)


def draw(counts: list[int], found: dict[str, list[tuple[float, float]]], profile: ModelProfile, path: str) -> None:
    """Predicted iterations, and the CPU time of predicting them."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for method, points in found.items():
        left.plot(counts, [seconds for seconds, _ in points], marker="o", label=method)
        right.plot(counts, [needed for _, needed in points], marker="o", label=method)
    left.axhline(profile.compute_ns / 1e9, color="grey", linestyle=":", label="computing alone")
    for axes, title in ((left, f"an iteration of {profile.name}, s"), (right, "CPU time to predict it, s")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("workers")
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    left.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
