"""Codecs: how the values of a call become integers that a switch, a ring or a server can sum, and how sums come back.

Pure, NumPy only; imported by the core, transport and emulation. Start at codec.py, the contract; `fixed_point` is what
the switch does with floats, `lanes` packs several of them in a word, as known methods do in `quantised`, and after a
random rotation in `rotated`; `plain` is what it does with integers, `raw` how it passes bytes on. Codecs that see whole
arrays have a contract of their own, array_codec.py; `exact` is one, which loses nothing. A new one is a file here and
a line in `CODECS` or `ARRAY_CODECS`; how users write it, with error feedback and what all codecs have, is spec.py.
"""

import numpy as np

from switchagg.codecs.array_codec import ArrayCodec
from switchagg.codecs.codec import Array, CallShape, Codec, Codes, Coding, RowIndex
from switchagg.codecs.constant import EXPONENTS, Constant
from switchagg.codecs.exact.exact import ExactSums
from switchagg.codecs.fixed_point import FixedPoint
from switchagg.codecs.gathered.dgc import DeepGradientCompression
from switchagg.codecs.gathered.efsign import EfSign
from switchagg.codecs.gathered.gtopk import GlobalTopK
from switchagg.codecs.gathered.threshold import Drop, Threshold
from switchagg.codecs.gathered.topk import TopK
from switchagg.codecs.lanes import WIDTHS, Lanes
from switchagg.codecs.plain import Narrow, Plain
from switchagg.codecs.quantised.families import FAMILIES, Bf16, ByWorkers, Fp16
from switchagg.codecs.raw import Raw
from switchagg.codecs.rotated.released import ThcReleased
from switchagg.codecs.rotated.rows import Rotated
from switchagg.codecs.rotated.thc import THC
from switchagg.codecs.sparse.agreed import Agreed
from switchagg.codecs.sparse.nonzero import NonZero
from switchagg.codecs.sparse.powersgd import PowerSgd
from switchagg.codecs.sparse.randomk import RandomK
from switchagg.codecs.sparse.sketch import Sketch
from switchagg.codecs.split import Split
from switchagg.option_syntax import choices

FIXED_POINT = FixedPoint()
PLAIN = Plain()
RAW = Raw()
NARROW = Narrow()
SPLIT = Split()

CODECS: dict[str, Codec] = {
    variant.name: variant
    for codec in (
        FIXED_POINT,
        *map(Lanes, WIDTHS),
        *map(Rotated, WIDTHS),
        *THC,
        Fp16(16),
        Bf16(16),
        *map(ByWorkers, FAMILIES),
        *map(Constant, EXPONENTS),
        PLAIN,
    )
    for variant in (codec, *codec.variants)
}
"""By the name used in options."""

ARRAY_CODECS: dict[str, type[ArrayCodec]] = {
    codec.name: codec
    for codec in (
        RandomK,
        Sketch,
        PowerSgd,
        Agreed,
        NonZero,
        ThcReleased,
        TopK,
        EfSign,
        Threshold,
        Drop,
        DeepGradientCompression,
        GlobalTopK,
        ExactSums,
    )
}
"""The codecs that see whole arrays: a class each, whose fields are options."""


def names() -> list[str]:
    """Names that users write; the variants that families stand for with some number of workers are left out."""
    variants = {variant.name for codec in CODECS.values() for variant in codec.variants}
    return [name for name in CODECS if name not in variants]


def codec_named(name: str, *, adds: bool = False) -> Codec:
    """Raises ValueError that lists the names there are; adds: also for one whose words can't be summed."""
    if name not in CODECS:
        raise ValueError(f"codec '{name[:60]}' is unknown{choices(name, names())}")
    if adds and not CODECS[name].adds:
        raise ValueError(f"codec {name}: its words can't be summed, and no method here does anything else")
    return CODECS[name]


def codec_for(dtype: "np.dtype[np.generic]", codec: Codec) -> Codec | None:
    """The codec for this type where `codec` was requested: the first of it, `fixed_point` and `plain` that can."""
    return next((candidate for candidate in (codec, FIXED_POINT, PLAIN) if dtype in candidate.dtypes), None)


__all__ = [
    "ARRAY_CODECS",
    "CODECS",
    "FIXED_POINT",
    "NARROW",
    "PLAIN",
    "RAW",
    "SPLIT",
    "Array",
    "ArrayCodec",
    "CallShape",
    "Codec",
    "Codes",
    "Coding",
    "RowIndex",
    "codec_for",
    "codec_named",
    "names",
]
