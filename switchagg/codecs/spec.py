"""How a codec is written, with what surrounds it: `lanes8`, `lanes8+ef`, `topk:ratio=0.01,momentum=0.9+ef`.

    name[:option=value,…][+ef | +ef21]

Options that all codecs have: `least`, `warmup`, `momentum`; some have their own. All ranks use the same text.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from switchagg.codecs import ARRAY_CODECS, CODECS, names
from switchagg.codecs.array_codec import ArrayCodec, SumTerms
from switchagg.codecs.codec import Codec
from switchagg.option_syntax import choices, count, decimal, describe, option, option_choices, parse

FEEDBACK = ("ef", "ef21")
"""Error feedback: e <- v - C(v) of v = g + e; and EF21: h <- h + C(g - h), the mean of h is applied."""

LEAST = 1024
"""Values, by default: fewer are no gradient of weight, but a mean of losses for one."""


@dataclass(frozen=True)
class CodecSpec:
    """A codec and what surrounds it.

    codec: what `codec_of` resolves. feedback: "", "ef" or "ef21". least: sums of fewer values travel as without a
    codec. warmup: so do the first sums of every tensor. momentum: of the correction (DGC), which takes the optimiser's
    place: u <- m u + g, v <- v + u, and v is sent; needs "ef".
    """

    codec: Codec | ArrayCodec
    feedback: str = ""
    least: int = option("least", count(0), LEAST)
    warmup: int = option("warmup", count(0), 0)
    momentum: float = option("momentum", decimal(1), 0.0)

    @property
    def name(self) -> str:
        """The codec's."""
        return self.codec.name

    @property
    def lossy(self) -> bool:
        """Error feedback has something to do."""
        return self.codec.lossy

    @property
    def exact(self) -> bool:
        """Sums are what they must be, whatever carries them: none goes another way, however short its array."""
        return isinstance(self.codec, ArrayCodec) and not self.lossy

    @property
    def divides(self) -> bool:
        """The codec makes means, too, of any kind of sum."""
        return isinstance(self.codec, ArrayCodec) and self.codec.sums(SumTerms(op="avg"))

    @property
    def warning(self) -> str:
        """For users who left out the feedback that the codec needs; "" for others."""
        if self.feedback or not self.codec.needs_feedback:
            return ""
        return f"codec {self} without error feedback: training may stall or diverge; with it: {self}+ef"

    @property
    def row_codec(self) -> Codec | None:
        """The codec, if it sees rows."""
        return self.codec if isinstance(self.codec, Codec) else None

    def codes_rows(self, dtype: "np.dtype[Any]", values: int) -> bool:
        """Whether a sum of so many values goes through the codec alone, by rows."""
        codec = self.row_codec
        return codec is not None and dtype in codec.dtypes and (not codec.lossy or values >= self.least)

    def agreed_text(self, seed: int) -> str:
        """As ranks tell each other. seed: of random numbers; codecs that see arrays draw some all alike."""
        return f"{self}, codec_seed {seed}" if seed and self.row_codec is None else str(self)

    def __str__(self) -> str:
        """As it is written; options that are as by default are left out."""
        words = describe(self.codec, default=False).partition(":")[2] if isinstance(self.codec, ArrayCodec) else ""
        momentum = None if self.momentum == _momentum(self.codec, self.feedback) else self.momentum
        common = describe(_Common(least=self.least, warmup=self.warmup, momentum=momentum), default=False).partition(
            ":"
        )[2]
        options = ",".join(filter(None, (words, common)))
        return self.name + (f":{options}" if options else "") + (f"+{self.feedback}" if self.feedback else "")

    def for_workers(self, workers: int) -> "CodecSpec":
        """With what so many ranks use. Raises ValueError: what codec, what number, what it can."""
        if isinstance(self.codec, Codec):
            return replace(self, codec=self.codec.for_workers(workers))
        if fault := self.codec.fault(workers):
            raise ValueError(fault)
        return self


@dataclass(frozen=True)
class _Common:
    """The options that all codecs have, to read them."""

    name: str = "codec"
    least: int = option("least", count(0), LEAST)
    warmup: int = option("warmup", count(0), 0)
    momentum: float | None = option("momentum", decimal(1), None)


_COMMON = {entry.name for entry in fields(_Common) if entry.metadata}


def _momentum(codec: Codec | ArrayCodec, feedback: str) -> float:
    """By default."""
    return codec.momentum if isinstance(codec, ArrayCodec) and feedback == "ef" else 0.0


def parse_codec(text: str) -> CodecSpec:
    """The codec that `text` names. Raises ValueError, one line that lists what is allowed."""
    head, *words = text.split("+")
    name, _, options = head.partition(":")
    option_words = options.split(",") if options else []
    common = [word for word in option_words if word.partition("=")[0] in _COMMON]
    codec_options = [word for word in option_words if word not in common]
    feedback = words[0] if words else ""
    if words[1:] or (words and feedback not in FEEDBACK):
        allowed = choices(f"+{feedback}", [f"+{word}" for word in FEEDBACK])
        raise ValueError(f"codec {name}: '+{'+'.join(words)[:60]}' is unknown{allowed}")
    if name in CODECS and codec_options:
        allowed = option_choices(codec_options[0].partition("=")[0], sorted(_COMMON))
        raise ValueError(f"codec {name}: option '{codec_options[0][:60]}' is unknown{allowed}")
    codec: Codec | ArrayCodec
    if name in ARRAY_CODECS:
        codec = parse("codec", ":".join(filter(None, (name, ",".join(codec_options)))), ARRAY_CODECS)
    elif name in CODECS:
        codec = CODECS[name]
    else:
        raise ValueError(f"codec '{name[:60]}' is unknown{choices(name, (*names(), *ARRAY_CODECS))}")
    left_out = next((word for word in common if word.partition("=")[2] != "0"), "")
    if left_out and isinstance(codec, ArrayCodec) and not codec.lossy:
        raise ValueError(f"codec {name}: every sum goes through it, so it takes no {left_out[:60]}")
    read = parse("codec", ":".join(filter(None, ("codec", ",".join(common)))), {"codec": _Common})
    momentum = _momentum(codec, feedback) if read.momentum is None else read.momentum
    spec = CodecSpec(codec, feedback, read.least, read.warmup, momentum)
    if feedback and isinstance(codec, Codec) and not codec.feeds_back:
        raise ValueError(f"codec {name}: its sums are votes, of which +{feedback} has nothing to feed back")
    if feedback and not spec.lossy:
        raise ValueError(f"codec {name}: nothing is lost in it, so +{feedback} has nothing to feed back")
    if spec.momentum and feedback != "ef":
        raise ValueError(f"codec {name}: momentum={spec.momentum:g} corrects what error feedback keeps: write +ef, too")
    return spec


def parse_sums(text: str) -> CodecSpec:
    """The same, for groups of ranks: one whose words add, or that sees whole arrays. Raises ValueError."""
    spec = parse_codec(text)
    if isinstance(spec.codec, Codec) and not spec.codec.adds:
        raise ValueError(f"codec {spec.name}: its words can't be summed, and no method here does anything else")
    return spec
