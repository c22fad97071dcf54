"""BytePS: what extra CPU machines are worth, by architecture."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.scenario.bounds import NetworkParameters, busiest, loads

_GPU_MACHINES = 8
_GOODPUT_GBPS = 90
_PS = (12.7, 20.6, 25.5, 30.8, 34.3, 37.3, 42.5, 45.5)


def _network(servers: int = 0) -> NetworkParameters:
    return NetworkParameters(_GPU_MACHINES, _GOODPUT_GBPS * 10**9, 1500, 360, servers=servers)


def _gbps(method: str, servers: int = 0) -> float:
    """Of a long array: how often the busiest link carries it."""
    return _GOODPUT_GBPS / float(busiest(method, _network(servers)).arrays)


def _best_gbps(servers: int) -> float:
    """The best division between servers on CPU machines and on GPU machines, by counting what each link carries."""
    beside = loads("ps", _network())
    apart = loads("ps", _network(servers)) if servers else {}
    pairs = [(float(apart.get(hop, 0)), float(beside.get(hop, 0))) for hop in {*beside, *apart}]
    shares = [index / 1000 for index in range(1001)] if servers else [0.0]
    least = min(max(share * there + (1 - share) * here for there, here in pairs) for share in shares)
    return _GOODPUT_GBPS / least


def _compute() -> Mapping[str, float]:
    reproduced = {"all-reduce": _gbps("ring")}
    for servers in range(_GPU_MACHINES + 1):
        reproduced[f"optimal, {servers} CPU machines"] = _best_gbps(servers)
        if servers:
            reproduced[f"PS, {servers} CPU machines"] = _gbps("ps", servers)
    return reproduced


def _optimal(servers: int) -> float:
    """The paper's theorem 1."""
    n = _GPU_MACHINES
    return round(90 * (n * n + servers * n - 2 * servers) / (2 * n * (n - 1)), 1)


RESULT = Published(
    name="byteps_servers",
    title="BytePS: goodput with CPU machines added",
    paper="Jiang et al., A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU "
    "Clusters, OSDI",
    year=2020,
    source="figure 12 (markers), and theorem 1 for the line “Optimal”; without BytePS itself, whose split between the "
    "two kinds of machines no method here has",
    conditions="8 machines of one GPU, 0 … 8 CPU machines, 100 Gb/s RDMA; point-to-point goodput about 90 Gb/s",
    inputs="machines and the goodput; how often the busiest link carries a long tensor, counted from the methods' own "
    "plans, and for the optimum at the best division of the bytes between servers of both kinds",
    reading="markers measured in pixels, to 1 Gb/s",
    unit="Gb/s",
    cells=(
        *(PublishedCell(f"optimal, {servers} CPU machines", _optimal(servers), "optimal") for servers in range(9)),
        *(PublishedCell(f"PS, {servers} CPU machines", gbps, "PS") for servers, gbps in enumerate(_PS, start=1)),
        PublishedCell("all-reduce", 36.3),
    ),
    compute=_compute,
    because="from 3 CPU machines on the paper's servers stay below what their links carry (it names their processors "
    "as a limit), and its all-reduce (NCCL) reaches 71 % of what the ring's bytes allow. Met: the theorem, and PS "
    "while links limit it, with 1 and 2 CPU machines",
)
