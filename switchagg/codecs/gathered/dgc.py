"""`dgc`: deep gradient compression. The greatest values, far fewer of them than training stands from its first step."""

from dataclasses import dataclass
from typing import ClassVar

from switchagg.codecs.gathered.topk import TopK
from switchagg.option_syntax import count, decimal, option, share

_STAGES = 5


@dataclass(frozen=True)
class DeepGradientCompression(TopK):
    """Momentum correction and masking come with it, from where error feedback is (`+ef`).

    Published code keeps the first k values beyond a sampled threshold, so low indices win; here the sample only finds
    candidates, and the greatest k are kept. ratio: after the first `ramp` sums of a tensor, which are in five stages:
    ratio^(1/5), ratio^(2/5), …: 0.25, 0.063, 0.016, 0.004 where it is 0.001. nesterov: 1: in that form. clip: the norm
    of a tensor's summed gradient; each rank clips its own at clip / sqrt(workers) first. 0: it doesn't.
    """

    name: ClassVar[str] = "dgc"
    masks: ClassVar[bool] = True
    momentum: ClassVar[float] = 0.9

    ratio: float = option("ratio", share, 0.001)
    ramp: int = option("ramp", count(0), 0)
    nesterov: int = option("nesterov", count(0), 0)
    clip: float = option("clip", decimal(), 0.0)

    def ratio_at(self, step: int) -> float:
        stage = _STAGES if step >= self.ramp else 1 + step * _STAGES // self.ramp
        return float(self.ratio ** (stage / _STAGES))
