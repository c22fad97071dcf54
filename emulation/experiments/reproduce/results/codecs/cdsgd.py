"""CD-SGD: what can't be judged yet."""

from collections.abc import Mapping

from emulation.experiments.reproduce.published import Published, PublishedCell


def _compute() -> Mapping[str, float]:
    return {}


RESULT = Published(
    name="cdsgd",
    title="CD-SGD over 2-bit compression",
    paper="Yu et al., CD-SGD: Distributed Stochastic Gradient Descent with Compression and Delay Compensation, ICPP",
    year=2021,
    source="abstract: end-to-end time 30 % less than 2-bit compression's",
    conditions="16 GPUs, 56 Gb/s, MXNet; model, batch, machines and k aren't in the abstract",
    inputs="none",
    unit="speed-up",
    cells=(PublishedCell("time of 2-bit compression over CD-SGD's", round(1 / 0.7, 2), role="shown"),),
    compute=_compute,
    missing="model, batch, and how long coding takes: CD-SGD hides that behind the next step, so the gain is its "
    "share. What the method does to accuracy is in training-methods.md",
)
