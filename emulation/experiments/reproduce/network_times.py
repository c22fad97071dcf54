"""Our numbers of what networks and servers do with an allreduce: times and rates, without a model that trains.

Each function takes a published result and returns our numbers by the names of its cells; its file has the constants.
"""

from __future__ import annotations

from math import log2

from emulation.experiments.reproduce.published import Numbers, Published
from emulation.experiments.reproduce.timed import allreduce_ns, busy_share
from emulation.scenario.bounds import NetworkParameters, algbw_bound, busiest, loads
from emulation.scenario.profiles.model_profile import load
from transport.group.method_name import MethodName


def goodput_of_servers(published: Published) -> Numbers:
    """Gb/s of a long array beside more and more servers, by how often the busiest link carries it, and by how long that
    is busy: what NCCL gets out of a ring's links is of another paper, and of servers `busy_share`."""
    constants = published.constants
    machines, goodput_gbps = constants["machines"], constants["goodput_gbps"]

    def network(servers: int = 0) -> NetworkParameters:
        return NetworkParameters(machines, goodput_gbps * 10**9, 1500, 360, servers=servers)

    def gbps(method: str, servers: int = 0) -> float:
        return float(goodput_gbps / float(busiest(method, network(servers)).arrays))

    def best_gbps(servers: int) -> float:
        """At the best division between servers on CPU machines and on GPU machines."""
        beside = loads("ps", network())
        apart = loads("ps", network(servers)) if servers else {}
        pairs = [(float(apart.get(hop, 0)), float(beside.get(hop, 0))) for hop in {*beside, *apart}]
        shares = [index / 1000 for index in range(1001)] if servers else [0.0]
        least = min(max(share * there + (1 - share) * here for there, here in pairs) for share in shares)
        return float(goodput_gbps / least)

    numbers = {"all-reduce": gbps("ring") * constants["nccl_share"]}
    for servers in range(machines + 1):
        numbers[f"optimal, {servers} CPU machines"] = best_gbps(servers)
        if servers:
            numbers[f"PS, {servers} CPU machines"] = gbps("ps", servers) * busy_share(machines, servers)
    return numbers


def halving_over_ring(published: Published) -> Numbers:
    """A ring's time over halving-doubling's, by packets, at the limits of small and large buffers; and by α-β of a
    model's tensors one at a time."""
    constants, numbers = published.constants, dict[str, float]()
    for servers in constants["servers"]:
        for buffer, size_bytes, delay_ns in (
            ("small", 4 * servers, constants["delay_ns"]),
            ("large", constants["large_bytes"], 0),
        ):
            ring, halving = (
                allreduce_ns(method, servers, constants["rate_bps"], size_bytes, delay_ns=delay_ns)
                for method in ("ring", "halving_doubling")
            )
            numbers[f"{servers} servers, {buffer} buffers"] = ring / halving
    servers, tensors = constants["servers"][-1], load(constants["profile"]).schedule_profile().tensors
    array_bytes = sum(tensor.size_bytes for tensor in tensors)
    bytes_ns = 2 * (servers - 1) / servers * array_bytes * 8e9 / constants["rate_bps"]
    steps_ns = len(tensors) * constants["step_ns"]
    by_tensor = (2 * (servers - 1) * steps_ns + bytes_ns) / (2 * log2(servers) * steps_ns + bytes_ns)
    return {**numbers, f"{servers} servers, ResNet-50": by_tensor}


def servers_beside_switch(published: Published) -> Numbers:
    """The rate of parameter servers as a share of the switch's: what links allow, from the plans and the framing of
    both methods, or what a host's software does, which handles each array that comes or goes; a cell fixes that."""
    numbers, (few, *_) = dict[str, float](), published.constants["workers"]
    arrays_beside = published.constants["arrays_of_a_host"]
    software = published.number(f"dedicated servers, {few} workers") * arrays_beside["dedicated"]
    for workers in published.constants["workers"]:
        for kind, servers in (("dedicated", workers), ("co-located", 0)):
            network = NetworkParameters(workers, 10**10, 1500, 360, servers=servers)
            ps = algbw_bound(MethodName("ps", "tcp"), "int32", network)
            switch = algbw_bound(MethodName("switch", "udp"), "int32", network)
            numbers[f"{kind} servers, {workers} workers"] = min(ps / switch, software / arrays_beside[kind])
    return numbers


def switch_over_ring(published: Published) -> Numbers:
    """The switch's speed-up over a ring by packets, and its time on more workers; a cell fixes what NCCL-RDMA loses."""
    constants, numbers, switch_ns = published.constants, dict[str, float](), dict[int, int]()
    few, fast = constants["workers"][0], dict[str, float]()
    for workers in constants["workers"]:
        switch_ns[workers] = allreduce_ns("switch", workers, 10e9, constants["size_bytes"])
        speedup = allreduce_ns("ring", workers, 10e9, constants["size_bytes"]) / switch_ns[workers]
        numbers[f"10 Gb/s, {workers} workers, over NCCL-TCP"] = speedup
        fast[f"100 Gb/s, {workers} workers, over NCCL-RDMA"] = speedup
        numbers[f"SwitchML, {workers} workers over {few}"] = switch_ns[few] / switch_ns[workers]
    switch_speed, nccl_speed = constants["speeds_of_fewest"]
    lost = switch_speed / nccl_speed / fast[f"100 Gb/s, {few} workers, over NCCL-RDMA"]
    return {**numbers, **{name: speedup * lost for name, speedup in fast.items()}}
