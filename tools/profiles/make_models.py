"""Writes the shipped model profiles, emulation/scenario/profiles/models/*.toml, from the models' definitions.

Parameters are exact; each model's sum is checked against the published count. Times are derived: multiplications and
additions of convolutions and matrix products, two for each pair, over a device's rate. Run from the repository:

    .venv/bin/python tools/profiles/make_models.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from emulation.scenario.profiles.model_profile import MODELS_FOLDER, ModelLayer, ModelProfile

V100_FLOPS = 10e12
V100 = (
    "derived, not measured: flops at 10 TFLOP/s, a round number below the 15.7 TFLOP/s of float32 in the data sheet of "
    "NVIDIA's V100; the backward pass takes twice the forward pass"
)
A100_FLOPS = 150e12
A100 = (
    "derived, not measured: flops at 150 TFLOP/s, about half of the 312 TFLOP/s of bfloat16 in the data sheet of "
    "NVIDIA's A100; the backward pass takes twice the forward pass; gradients are summed in float32"
)

ROWS = ("attention.output.dense", "output.dense", "c_proj", "o_proj", "down_proj")
COLUMNS = ("query", "key", "value", "intermediate.dense", "c_attn", "c_fc")
COLUMNS += ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
CUTS: dict[str, Literal["row", "column"]] = {**dict.fromkeys(ROWS, "row"), **dict.fromkeys(COLUMNS, "column")}
"""How Megatron-LM cuts layers of transformers, by how their names end."""


class Images:
    """Layers of a convolutional network, one after the other, on square images."""

    def __init__(self) -> None:
        self.layers: list[ModelLayer] = []

    def conv(self, name: str, channels: tuple[int, int], kernel: int, size: int, *, bias: bool = False) -> None:
        """size: of its output's side."""
        into, out = channels
        tensors = {"weight": out * into * kernel**2, **({"bias": out} if bias else {})}
        flops = 2.0 * out * into * kernel**2 * size**2
        self.layers.append(ModelLayer(name, tensors, flops=flops, output=out * size**2))

    def norm(self, name: str, channels: int, size: int) -> None:
        self.layers.append(ModelLayer(name, {"weight": channels, "bias": channels}, output=channels * size**2))

    def conv_norm(self, names: tuple[str, str], channels: tuple[int, int], kernel: int, size: int) -> None:
        self.conv(names[0], channels, kernel, size)
        self.norm(names[1], channels[1], size)

    def linear(self, name: str, into: int, out: int) -> None:
        self.layers.append(linear(name, into, out))


def linear(name: str, into: int, out: int, tokens: int = 1, *, bias: bool = True, more_flops: float = 0) -> ModelLayer:
    """A matrix product of each of a sample's tokens."""
    tensors = {"weight": into * out, **({"bias": out} if bias else {})}
    cut = next((cut for end, cut in CUTS.items() if name.endswith(end)), "")
    return ModelLayer(name, tensors, flops=2.0 * into * out * tokens + more_flops, output=out * tokens, cut=cut)


def norm(name: str, width: int, tokens: int, *, bias: bool = True) -> ModelLayer:
    return ModelLayer(name, {"weight": width, **({"bias": width} if bias else {})}, output=width * tokens)


def attention_flops(tokens: int, width: int) -> float:
    """Scores and weighted sums of all heads together."""
    return 2.0 * 2 * tokens * tokens * width


def alexnet() -> list[ModelLayer]:
    net = Images()
    for name, channels, kernel, size in (
        ("features.0", (3, 64), 11, 55),
        ("features.3", (64, 192), 5, 27),
        ("features.6", (192, 384), 3, 13),
        ("features.8", (384, 256), 3, 13),
        ("features.10", (256, 256), 3, 13),
    ):
        net.conv(name, channels, kernel, size, bias=True)
    for name, into, out in (("1", 256 * 6 * 6, 4096), ("4", 4096, 4096), ("6", 4096, 1000)):
        net.linear(f"classifier.{name}", into, out)
    return net.layers


def vgg16() -> list[ModelLayer]:
    net, into, size, place = Images(), 3, 224, 0
    for out in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if not out:  # pooling
            size, place = size // 2, place + 1
            continue
        net.conv(f"features.{place}", (into, out), 3, size, bias=True)
        into, place = out, place + 2
    for name, wide, out in (("0", 512 * 7 * 7, 4096), ("3", 4096, 4096), ("6", 4096, 1000)):
        net.linear(f"classifier.{name}", wide, out)
    return net.layers


def resnet50() -> list[ModelLayer]:
    net, into, size = Images(), 64, 56
    net.conv_norm(("conv1", "bn1"), (3, 64), 7, 112)
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            before, size = size, size // 2 if stage > 1 and not block else size
            net.conv_norm((f"{name}.conv1", f"{name}.bn1"), (into, width), 1, before)
            net.conv_norm((f"{name}.conv2", f"{name}.bn2"), (width, width), 3, size)
            net.conv_norm((f"{name}.conv3", f"{name}.bn3"), (width, 4 * width), 1, size)
            if not block:
                net.conv_norm((f"{name}.downsample.0", f"{name}.downsample.1"), (into, 4 * width), 1, size)
            into = 4 * width
    net.linear("fc", into, 1000)
    return net.layers


def googlenet() -> list[ModelLayer]:
    """torchvision's: batch normalisation, 3 x 3 where the paper has 5 x 5, without the auxiliary classifiers."""
    net = Images()

    def unit(name: str, channels: tuple[int, int], kernel: int, size: int) -> None:
        net.conv_norm((f"{name}.conv", f"{name}.bn"), channels, kernel, size)

    unit("conv1", (3, 64), 7, 112)
    unit("conv2", (64, 64), 1, 56)
    unit("conv3", (64, 192), 3, 56)
    into = 192
    for name, size, one, (three_in, three), (five_in, five), pooled in (
        ("3a", 28, 64, (96, 128), (16, 32), 32),
        ("3b", 28, 128, (128, 192), (32, 96), 64),
        ("4a", 14, 192, (96, 208), (16, 48), 64),
        ("4b", 14, 160, (112, 224), (24, 64), 64),
        ("4c", 14, 128, (128, 256), (24, 64), 64),
        ("4d", 14, 112, (144, 288), (32, 64), 64),
        ("4e", 14, 256, (160, 320), (32, 128), 128),
        ("5a", 7, 256, (160, 320), (32, 128), 128),
        ("5b", 7, 384, (192, 384), (48, 128), 128),
    ):
        unit(f"inception{name}.branch1", (into, one), 1, size)
        unit(f"inception{name}.branch2.0", (into, three_in), 1, size)
        unit(f"inception{name}.branch2.1", (three_in, three), 3, size)
        unit(f"inception{name}.branch3.0", (into, five_in), 1, size)
        unit(f"inception{name}.branch3.1", (five_in, five), 3, size)
        unit(f"inception{name}.branch4.1", (into, pooled), 1, size)
        into = one + three + five + pooled
    net.linear("fc", into, 1000)
    return net.layers


def bert(blocks: int, width: int, tokens: int) -> Iterator[ModelLayer]:
    for name, rows in (("word", 30522), ("position", 512), ("token_type", 2)):
        yield ModelLayer(f"embeddings.{name}_embeddings", {"weight": rows * width}, output=width * tokens)
    yield norm("embeddings.LayerNorm", width, tokens)
    for block in range(blocks):
        name = f"encoder.layer.{block}"
        for each in ("query", "key", "value"):
            more = attention_flops(tokens, width) if each == "value" else 0
            yield linear(f"{name}.attention.self.{each}", width, width, tokens, more_flops=more)
        yield linear(f"{name}.attention.output.dense", width, width, tokens)
        yield norm(f"{name}.attention.output.LayerNorm", width, tokens)
        yield linear(f"{name}.intermediate.dense", width, 4 * width, tokens)
        yield linear(f"{name}.output.dense", 4 * width, width, tokens)
        yield norm(f"{name}.output.LayerNorm", width, tokens)
    yield linear("pooler.dense", width, width)


def gpt2(blocks: int, width: int, tokens: int) -> Iterator[ModelLayer]:
    yield ModelLayer("wte", {"weight": 50257 * width}, output=width * tokens)
    yield ModelLayer("wpe", {"weight": 1024 * width}, output=width * tokens)
    for block in range(blocks):
        name = f"h.{block}"
        yield norm(f"{name}.ln_1", width, tokens)
        yield linear(f"{name}.attn.c_attn", width, 3 * width, tokens, more_flops=attention_flops(tokens, width))
        yield linear(f"{name}.attn.c_proj", width, width, tokens)
        yield norm(f"{name}.ln_2", width, tokens)
        yield linear(f"{name}.mlp.c_fc", width, 4 * width, tokens)
        yield linear(f"{name}.mlp.c_proj", 4 * width, width, tokens)
    yield norm("ln_f", width, tokens)
    yield ModelLayer("lm_head", {}, flops=2.0 * 50257 * width * tokens, output=50257 * tokens)  # its weight is wte's


def llama(blocks: int, width: int, inner: int, tokens: int) -> Iterator[ModelLayer]:
    words = 32000
    yield ModelLayer("embed_tokens", {"weight": words * width}, output=width * tokens)
    for block in range(blocks):
        name = f"layers.{block}"
        yield norm(f"{name}.input_layernorm", width, tokens, bias=False)
        for each in "qkvo":
            more = attention_flops(tokens, width) if each == "v" else 0
            yield linear(f"{name}.self_attn.{each}_proj", width, width, tokens, bias=False, more_flops=more)
        yield norm(f"{name}.post_attention_layernorm", width, tokens, bias=False)
        yield linear(f"{name}.mlp.gate_proj", width, inner, tokens, bias=False)
        yield linear(f"{name}.mlp.up_proj", width, inner, tokens, bias=False)
        yield linear(f"{name}.mlp.down_proj", inner, width, tokens, bias=False)
    yield norm("norm", width, tokens, bias=False)
    yield linear("lm_head", width, words, tokens, bias=False)


def models() -> Iterator[tuple[ModelProfile, int]]:
    """Each with its published number of parameters."""
    vision, image = "torchvision's", "images of 224 x 224; the batch is chosen"
    face, read = "Transformers'", "tokens a sample; the batch is chosen"
    for name, layers, count, what, batch, sample in (
        ("alexnet", alexnet(), 61_100_840, f"{vision}, alexnet", 128, image),
        ("vgg16", vgg16(), 138_357_544, f"{vision}, vgg16", 32, image),
        ("resnet50", resnet50(), 25_557_032, f"{vision}, resnet50", 32, image),
        ("googlenet", googlenet(), 6_624_904, f"{vision}, googlenet without auxiliary classifiers", 32, image),
        ("bert_base", [*bert(12, 768, 128)], 109_482_240, f"{face} BertModel, bert-base-uncased", 32, f"128 {read}"),
        ("bert_large", [*bert(24, 1024, 128)], 335_141_888, f"{face} BertModel, bert-large-uncased", 16, f"128 {read}"),
        ("gpt2", [*gpt2(12, 768, 1024)], 124_439_808, f"{face} GPT2LMHeadModel of gpt2", 4, f"1024 {read}"),
        (
            "llama7b",
            [*llama(32, 4096, 11008, 2048)],
            6_738_415_616,
            f"{face} LlamaForCausalLM of Llama 2 7B",
            1,
            f"2048 {read}",
        ),
    ):  # fmt: skip
        times, rate = (A100, A100_FLOPS) if name == "llama7b" else (V100, V100_FLOPS)
        source = {"parameters": f"{what}; exact: {count:_} in all", "times": times, "batch": sample}
        yield ModelProfile(name, tuple(layers), source, batch=batch, device_flops=rate), count


def write(folder: Path) -> None:
    """All of them; AssertionError where the parameters aren't those that were published."""
    for profile, count in models():
        assert profile.elements == count, f"{profile.name}: {profile.elements} parameters, published: {count}"
        head = "# Written by tools/profiles/make_models.py; change that, not this.\n"
        (folder / f"{profile.name}.toml").write_text(head + profile.toml(), encoding="utf-8")
        print(f"{profile.name}: {count:_} parameters, {profile.compute_ns / 1e6:.1f} ms for a batch of {profile.batch}")


if __name__ == "__main__":
    MODELS_FOLDER.mkdir(exist_ok=True)
    write(MODELS_FOLDER)
