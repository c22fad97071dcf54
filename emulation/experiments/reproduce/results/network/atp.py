"""ATP: what can't be judged yet."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell


def _compute() -> Mapping[str, float]:
    return {}


RESULT = Published(
    name="atp",
    title="ATP in a cluster shared by several jobs",
    paper="Lao et al., ATP: In-network Aggregation for Multi-tenant Learning, NSDI",
    year=2021,
    source="abstract: “accelerating training throughput by up to 38% - 66% in a cluster shared by multiple DT jobs”",
    conditions="several jobs; which, on how many workers, with how many aggregators, and against what, isn't in the "
    "abstract",
    inputs="none",
    unit="speed-up",
    cells=(
        PublishedCell("throughput, shared cluster, at least", 1.38, role="shown"),
        PublishedCell("throughput, shared cluster, at most", 1.66, role="shown"),
    ),
    compute=_compute,
    missing="the full text with its jobs, workers, aggregators and baselines. The method itself runs in virtual time; "
    "what it gains there is in sharing.md",
)
