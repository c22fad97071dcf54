"""The source text of Python's standard library, learnt by a GPT of 10.7 M parameters."""

from __future__ import annotations

import functools
import hashlib
import math
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from emulation.scenario.errors import WorkloadError
from emulation.workloads.tasks.task import Batch


class TextTask:
    """Python's standard library, byte by byte: predict the next byte. Every tenth file is held out.

    The text differs between versions of Python: `source_sha256` shows whether two runs learnt from the same bytes.
    """

    name = "text"
    description = "GPT, 6 blocks of width 384 over 64 bytes of context, on the source text of Python's standard library"
    peak_learning_rate = 3e-4
    sgd_learning_rate = 0.3
    context = 64
    held_out_windows = 64  # spread evenly over the held-out bytes; more would take longer than an iteration

    def __init__(self) -> None:
        self._learnt, held_out, self.source_sha256, files = _standard_library()
        self.samples = len(self._learnt) // self.context - 1
        self.source = (
            f"standard library of Python {sysconfig.get_python_version()}: {files} files, "
            f"{len(self._learnt)} bytes to learn from, {len(held_out)} held out"
        )
        starts = np.linspace(0, len(held_out) - self.context - 1, self.held_out_windows).astype(np.int64)
        self._held_out = _windows(held_out, starts, self.context)

    def build_model(self) -> nn.Module:
        return Gpt(vocabulary=256, context=self.context, width=384, heads=6, blocks=6)

    def batch(self, indices: np.ndarray, generator: np.random.Generator) -> Batch:
        # Windows stay disjoint between ranks: each begins within its own `context` bytes.
        return _windows(self._learnt, indices * self.context, self.context)

    def held_out(self) -> Iterator[Batch]:
        inputs, targets = self._held_out
        for low in range(0, len(inputs), 16):
            yield inputs[low : low + 16], targets[low : low + 16]


class SmallTextTask(TextTask):
    """The same for a GPT of 0.25 M parameters, of which many can be trained."""

    name = "small_text"
    description = "GPT, 2 blocks of width 96 over 64 bytes of context, on the source text of Python's standard library"
    peak_learning_rate = 3e-3

    def build_model(self) -> nn.Module:
        return Gpt(vocabulary=256, context=self.context, width=96, heads=4, blocks=2)


TEXT_BYTES_MAX = 4_000_000  # thousands of iterations of data; reads in well under a second
_NOT_READ = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "site-packages", "dist-packages", "__pycache__"}


@functools.cache
def _standard_library() -> tuple[np.ndarray, np.ndarray, str, int]:
    """Bytes to learn from and bytes held out, uint8; sha256 of both; files read. Raises WorkloadError."""
    root = Path(sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if not _NOT_READ & set(name.split("/"))]
    learnt, held_out = bytearray(), bytearray()
    files = 0
    for name in names:
        if len(learnt) + len(held_out) >= TEXT_BYTES_MAX:
            break
        try:
            text = (root / name).read_bytes()
        except OSError:
            continue
        (held_out if files % 10 == 9 else learnt).extend(text)
        files += 1
    if len(learnt) < 100_000 or len(held_out) < 10_000:
        raise WorkloadError(
            f"workload text: no sources of the standard library in {root} ({files} files); "
            "use a Python that ships them, or the workload digits"
        )
    digest = hashlib.sha256(learnt + held_out).hexdigest()
    return np.frombuffer(learnt, np.uint8), np.frombuffer(held_out, np.uint8), digest, files


def _windows(text: np.ndarray, starts: np.ndarray, context: int) -> Batch:
    """Inputs and targets int64 (b, context): the bytes from each start, and the same one byte later."""
    both = text[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return torch.from_numpy(both[:, :-1]), torch.from_numpy(both[:, 1:])


class Gpt(nn.Module):
    """Decoder-only transformer, pre-norm, output layer tied to the embedding. (b, positions) -> (b, positions, v).

    block: made of (width, heads); default: GptBlock.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        heads: int,
        blocks: int,
        block: Callable[[int, int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        block = block or GptBlock
        self.symbols = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith(("symbols.weight", "positions.weight", "linear.weight")):
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("residual.weight"):  # keeps the variance of the sum over all blocks
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * blocks))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        hidden = self.symbols(symbols) + self.positions.weight[: symbols.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.symbols.weight)


class GptBlock(nn.Module):
    """Causal self-attention and a two-layer net, each added to what came in. (b, positions, width) both ways."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention = nn.ModuleDict({"linear": nn.Linear(width, 3 * width), "residual": nn.Linear(width, width)})
        self.net_norm = nn.LayerNorm(width)
        self.net = nn.ModuleDict({"linear": nn.Linear(width, 4 * width), "residual": nn.Linear(4 * width, width)})

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, positions, width = hidden.shape
        mixed = self.attention["linear"](self.attention_norm(hidden)).view(rows, positions, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention["residual"](attended.transpose(1, 2).reshape(rows, positions, width))
        widened = functional.gelu(self.net["linear"](self.net_norm(hidden)))
        return torch.add(hidden, self.net["residual"](widened))
