"""Deep Gradient Compression: what is left of a gradient."""

from collections.abc import Mapping, Sequence

from emulation.experiments.reproduce.published import Published, PublishedCell
from emulation.scenario.profiles.model_profile import load
from switchagg.codecs.array_codec import ArrayCodec
from switchagg.codecs.spec import parse_codec

_MIB = 1 << 20
_HIDDEN, _WORDS = 1500, 10_000
_LSTM = ([_WORDS * _HIDDEN, *[4 * _HIDDEN * _HIDDEN] * 4], [*[4 * _HIDDEN] * 4, _WORDS])


def _sent_bytes(matrices: Sequence[int], vectors: Sequence[int]) -> float:
    """By one rank, tensor by tensor: of matrices the values chosen and where they are, vectors whole."""
    codec = parse_codec("dgc:ratio=0.001+ef").codec
    assert isinstance(codec, ArrayCodec)
    return sum(sum(codec.moved(values, 1).values()) for values in matrices) + 4 * sum(vectors)


def _tensors(profile: str) -> tuple[list[int], list[int]]:
    """Matrices and vectors: biases, and what a norm has of the same size."""
    matrices, vectors = list[int](), list[int]()
    for layer in load(profile).layers:
        bias = layer.tensors.get("bias")
        for size in layer.tensors.values():
            (vectors if size == bias else matrices).append(size)
    return matrices, vectors


def _compute() -> Mapping[str, float]:
    models = {"AlexNet": _tensors("alexnet"), "ResNet-50": _tensors("resnet50"), "LSTM, Penn Treebank": _LSTM}
    reproduced = dict[str, float]()
    for model, (matrices, vectors) in models.items():
        reproduced[f"{model}, dense"] = 4 * (sum(matrices) + sum(vectors)) / _MIB
        reproduced[f"{model}, compressed"] = _sent_bytes(matrices, vectors) / _MIB
    return reproduced


RESULT = Published(
    name="dgc",
    title="Deep Gradient Compression: bytes per gradient",
    paper="Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training, ICLR",
    year=2018,
    source="tables 3 and 4, in full text",
    conditions="0.1 % of the values, after warm-up; AlexNet and ResNet-50 on ImageNet, an LSTM of 2 layers of 1500 on "
    "Penn Treebank",
    inputs="the models' tensors and the ratio; bytes that codec `dgc` sends for each, in the paper's MB of 2²⁰ bytes, "
    "tensors of one dimension whole, as the authors' code sends them. AlexNet is torchvision's, 0.2 % larger; the "
    "LSTM's decoder shares its embedding's weights, as its size says. LibriSpeech's GRUs (488.08 to 0.74 MB) are left "
    "out: their tensors aren't printed",
    reading="two digits are printed of what is compressed",
    unit="MB",
    cells=(
        PublishedCell("AlexNet, dense", 232.56, "dense"),
        PublishedCell("AlexNet, compressed", 0.39, "compressed"),
        PublishedCell("ResNet-50, dense", 97.49, "dense"),
        PublishedCell("ResNet-50, compressed", 0.35, "compressed"),
        PublishedCell("LSTM, Penn Treebank, dense", 194.68, "dense"),
        PublishedCell("LSTM, Penn Treebank, compressed", 0.42, "compressed"),
    ),
    compute=_compute,
)
