"""Parameter servers beside SwitchML in its own microbenchmark."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.scenario.bounds import NetworkParameters, algbw_bound
from transport.group.method_name import MethodName

_WORKERS = (4, 8, 16)


def _compute() -> Mapping[str, float]:
    reproduced = dict[str, float]()
    for workers in _WORKERS:
        for kind, servers in (("dedicated", workers), ("co-located", 0)):
            network = NetworkParameters(workers, 10**10, 1500, 360, servers=servers)
            ps = algbw_bound(MethodName("ps", "tcp"), "int32", network)
            switch = algbw_bound(MethodName("switch", "udp"), "int32", network)
            reproduced[f"{kind} servers, {workers} workers"] = ps / switch
    return reproduced


RESULT = Published(
    name="switchml_servers",
    title="Parameter servers, as a share of SwitchML's rate",
    paper="Sapio et al., Scaling Distributed Machine Learning with In-Network Aggregation, NSDI",
    year=2021,
    source="figure 3 (top), bars Dedicated PS and Colocated PS over SwitchML DPDK 256",
    conditions="10 Gb/s; how many servers isn't in the figure",
    inputs="workers, and as many servers; what a long tensor needs at least, from the methods' own plans and framing",
    reading="bars measured in pixels, to 3 %",
    unit="share",
    cells=(
        *(PublishedCell(f"dedicated servers, {workers} workers", 0.70, "dedicated") for workers in _WORKERS),
        *(PublishedCell(f"co-located servers, {workers} workers", 0.34, "co-located") for workers in _WORKERS),
    ),
    compute=_compute,
    because="the bars are flat, at 0.70 and half of it, and no link explains that: a server with a link of its own "
    "carries each byte once each way, so its bound is the switch's rate, and a co-located one's is the ring's. What "
    "holds them there must be the servers' software, whose cost we couldn't read",
)
