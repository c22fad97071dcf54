"""Post-local SGD: synchronous SGD at first, while parameters change quickly; then local SGD.

Lin et al., *Don't Use Large Mini-batches, Use Local SGD*, ICLR 2020.
"""

from dataclasses import dataclass

from switchagg.option_syntax import count, option
from transport.torch.training.local_sgd import LocalSgd


@dataclass(frozen=True)
class PostLocalSgd(LocalSgd):
    """start: the last synchronous step; in the paper the first decay of the rate. Later steps are as in LocalSgd."""

    name = "post_local_sgd"
    label = "Post-local SGD"
    summary = "synchronous at first, then local SGD"

    period: int = option("period", count(1), 16)
    start: int = option("start", count(0), 100)

    @property
    def synchronous_steps(self) -> int:
        return self.start
